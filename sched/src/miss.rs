//! Deadlines that pass while their thread waits for the CPU, or runs: noted when it happens, whoever runs (S-15).
//!
//! Every band of the guaranteed queue is sorted by deadline, so the next one that will pass is the least of the bands' firsts. It is looked
//! for only if it may pass before the CPU asks again anyway: mostly a comparison with a lower bound is all.

use crate::cpu::{Cpu, Running, Tier};
use crate::entity::{Entity, Key};
use crate::queue::Wanted;
use crate::{ContextInfo, FOREVER, MAX_CRITICALITY, Noted, Payload, Policy, ThreadId};

/// Tags of the guaranteed queue: the band above, the deadline below. 2^60 ns are 36 years of uptime.
pub(crate) const BAND_SHIFT: u32 = 60;
const DEADLINE: i64 = (1 << BAND_SHIFT) - 1;

/// What a CPU knows of deadlines to come.
pub(crate) struct Misses {
    /// No deadline passes unnoted before this; it may be too early, when the thread was served meanwhile.
    bound_ns: u64,
    /// Deadlines up to this one, in the order of time and arrival, are noted.
    noted: Key,
}

impl Misses {
    pub(crate) const NONE: Misses = Misses { bound_ns: FOREVER, noted: Key { tag: 0, sequence: 0 } };
}

/// A refill that was not served within its deadline, though its thread was running or ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Whose.
    pub thread: ThreadId,
    /// The deadline.
    pub deadline_ns: u64,
    /// Its context, which has counted it.
    pub context: ContextInfo,
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// A thread with this tag begins to wait with budget.
    #[inline]
    pub(crate) fn expect_miss(&mut self, thread: &Entity<T>, tag: i64) {
        let deadline_ns = tag & DEADLINE;
        let late_ns = deadline_ns as u64 + 1;
        if late_ns >= self.misses.bound_ns {
            return;
        }
        if late_ns > self.at_ns {
            self.misses.bound_ns = late_ns;
        } else if thread.context.as_ref().is_some_and(|context| !context.is_missed()) {
            // Late when it came, and nobody knows: the next look begins with it.
            self.misses.bound_ns = late_ns;
            self.misses.noted = self.misses.noted.min(Key { tag: deadline_ns - 1, sequence: u64::MAX });
        }
    }

    /// When to ask again, if it was to be at `end_ns`: when somebody misses a deadline before.
    #[inline]
    pub(crate) fn before_miss(&mut self, end_ns: u64) -> u64 {
        if self.misses.bound_ns >= end_ns { end_ns } else { self.before_next_miss(end_ns) }
    }

    #[inline(never)] // keeps the usual path short
    fn before_next_miss(&mut self, end_ns: u64) -> u64 {
        self.find_bound();
        if self.misses.bound_ns > self.at_ns {
            return end_ns.min(self.misses.bound_ns);
        }
        // That one has passed: the timer's interrupt will find it. The next one is still to be armed for.
        let passed = Key { tag: self.at_ns as i64 - 1, sequence: u64::MAX };
        self.next_to_miss(passed).map_or(end_ns, |next| end_ns.min(deadline_of(next) + 1))
    }

    /// Makes the bound exact.
    fn find_bound(&mut self) {
        self.misses.bound_ns =
            self.next_to_miss(self.misses.noted).map_or(FOREVER, |thread| deadline_of(thread) + 1);
    }

    /// Of the threads that wait with budget, the one with the earliest deadline behind `last`, by time and arrival. One descent for each band
    /// that is in use.
    fn next_to_miss(&self, last: Key) -> Option<&Entity<T>> {
        let Key { tag: last_ns, sequence } = last;
        let mut earliest: Option<&Entity<T>> = None;
        let mut band = 0;
        while band <= i64::from(MAX_CRITICALITY) {
            let last = Key { tag: band << BAND_SHIFT | last_ns, sequence };
            let Some(next) = self.guaranteed.first_after(last) else { break };
            let its_band = next.key.tag >> BAND_SHIFT;
            if its_band > band {
                // Nobody here: the first of a band further down may have been noted.
                band = its_band;
                continue;
            }
            if earliest.is_none_or(|earliest| order(next) < order(earliest)) {
                earliest = Some(next);
            }
            band += 1;
        }
        earliest
    }

    /// Somebody who has missed a deadline by `now` and of whom that was not noted; for the timer's interrupt, which asks until there is
    /// nobody more, and calls [`Cpu::timer`] then. At most as often as there are contexts here.
    #[inline]
    pub fn next_missed(&mut self, now: u64) -> Option<Missed> {
        if self.contexts == 0 { None } else { self.find_missed(now) }
    }

    #[inline(never)] // keeps the path of CPUs without contexts short
    fn find_missed(&mut self, now: u64) -> Option<Missed> {
        self.charge(now);
        self.release_due();
        if self.noted.has(Noted::LATE)
            && let Some(Running { thread, tier: Tier::Guaranteed, .. }) = &self.running
            && let Some(context) = &thread.context
        {
            // It runs, and goes on: there is no decision that would tell.
            self.noted = self.noted.without(Noted::LATE);
            let deadline_ns = context.missed_ns();
            return Some(Missed { thread: thread.id, deadline_ns, context: context.info(self.at_ns) });
        }
        while self.at_ns >= self.misses.bound_ns {
            let next = self.next_to_miss(self.misses.noted);
            let Some(next) = next.filter(|next| deadline_of(next) < self.at_ns) else {
                self.find_bound();
                return None;
            };
            let (key, deadline_ns) = (next.key, deadline_of(next));
            self.misses.noted = Key { tag: key.tag & DEADLINE, sequence: key.sequence };
            let mut thread = self.guaranteed.take(Wanted::Exactly(key))?;
            let is_new = thread.context.as_mut().is_some_and(|context| context.miss());
            let context = thread.context.as_ref().map(|context| context.info(self.at_ns));
            let thread_id = thread.id;
            self.guaranteed.put_back(thread);
            if is_new && let Some(context) = context {
                return Some(Missed { thread: thread_id, deadline_ns, context });
            }
        }
        None
    }
}

/// The deadline of a thread that waits with budget.
fn deadline_of<T>(thread: &Entity<T>) -> u64 {
    (thread.key.tag & DEADLINE) as u64
}

/// By time, then by arrival.
fn order<T>(thread: &Entity<T>) -> (u64, u64) {
    (deadline_of(thread), thread.key.sequence)
}
