//! Deadlines that pass while their thread waits for the CPU, or runs: noted when it happens, whichever thread runs (S-15).
//!
//! Every band of the guaranteed queue is sorted by deadline, so the next deadline to pass is the earliest among the first threads of all
//! bands. It is searched for only if it may pass before the CPU asks again anyway: mostly one comparison with a lower bound is enough.

use crate::cpu::{Cpu, Running, Tier};
use crate::entity::{Entity, Key};
use crate::queue::Wanted;
use crate::{ContextInfo, FOREVER, MAX_CRITICALITY, Noted, Payload, Policy, ThreadId};

/// Tags of the guaranteed queue have the band in the high bits and the deadline in the low ones. 2^60 ns are 36 years of uptime.
pub(crate) const BAND_SHIFT: u32 = 60;
const DEADLINE: i64 = (1 << BAND_SHIFT) - 1;

/// What a CPU knows of deadlines to come.
pub(crate) struct Misses {
    /// No deadline that is not noted passes before this time; it may be too early, when a thread was served meanwhile.
    bound_ns: u64,
    /// Deadlines up to this one, ordered by time and arrival, have been noted.
    noted: Key,
}

impl Misses {
    pub(crate) const NONE: Misses = Misses { bound_ns: FOREVER, noted: Key { tag: 0, sequence: 0 } };
}

/// A refill that was not served within its deadline, though its thread was running or ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The thread that was not served in time.
    pub thread: ThreadId,
    /// The deadline.
    pub deadline_ns: u64,
    /// Its context, which has counted the miss already.
    pub context: ContextInfo,
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// A thread begins to wait with budget under this tag: the bound must not be later than its deadline.
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
            // It was late when it came, and that is not counted yet: the next search begins with it.
            self.misses.bound_ns = late_ns;
            self.misses.noted = self.misses.noted.min(Key { tag: deadline_ns - 1, sequence: u64::MAX });
        }
    }

    /// When the CPU must ask again: at `end_ns`, or earlier when a waiting thread misses a deadline.
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
        // That deadline has passed, and the timer's interrupt will find it. The timer must still be armed for the next one.
        let passed = Key { tag: self.at_ns as i64 - 1, sequence: u64::MAX };
        self.next_to_miss(passed).map_or(end_ns, |next| end_ns.min(deadline_of(next) + 1))
    }

    /// Makes the bound exact.
    fn find_bound(&mut self) {
        self.misses.bound_ns =
            self.next_to_miss(self.misses.noted).map_or(FOREVER, |thread| deadline_of(thread) + 1);
    }

    /// Of the threads that wait with budget, the one with the earliest deadline after `last`, by time and arrival. One descent for each band
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
                // This band has no such thread. The thread found is the first of a lower band, and may have been noted: search that band from
                // `last` on.
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

    /// A thread that has missed a deadline by `now` and whose miss was not noted yet. The timer's interrupt calls this until it returns
    /// `None`, at most as often as there are contexts here, and then calls [`Cpu::timer`].
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
            // The thread runs and goes on, so there is no decision that would report it.
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
