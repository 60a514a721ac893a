//! The numbered invariants of `lib.rs`, checked all at once. Linear in the threads of the CPU: for tests, simulation and
//! debug builds.

use core::fmt;

use crate::cpu::{Cpu, Tier};
use crate::entity::Entity;
use crate::{Context, CpuId, CpuMask, MAX_PROMISES_PER_CPU, Payload, Policy, ThreadId, Utilisation};

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one: I1 to I7.
    pub invariant: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The CPU on which it is broken.
    pub cpu: CpuId,
    /// The thread concerned, if it is a single one.
    pub thread: Option<ThreadId>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken on {}: {}", self.invariant, self.cpu, self.what)?;
        self.thread.map_or(Ok(()), |thread| write!(f, " (thread {thread})"))
    }
}

impl core::error::Error for Violation {}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// Checks every invariant of this CPU.
    pub fn check(&self) -> Result<(), Violation> {
        let broken = |invariant, what, thread| Err(Violation { invariant, what, cpu: self.id, thread });
        for queue in [&self.guaranteed, &self.open, &self.restricted, &self.throttled] {
            if let Err(what) = queue.check() {
                return broken("I1", what, None);
            }
        }
        let (mut weight, mut weighted) = (0u64, 0i128);
        let mut count = |thread: &Entity<T>| {
            weight += u64::from(thread.fair.weight().get());
            weighted += i128::from(thread.fair.weight().get()) * i128::from(thread.fair.position);
        };
        self.open.for_each(&mut |thread| count(thread));
        self.restricted.for_each(&mut |thread| count(thread));
        self.direct.iter().for_each(|thread| count(thread));
        let running_fair = self.running.as_ref().filter(|running| running.tier == Tier::Fair);
        running_fair.iter().for_each(|running| count(&running.thread));
        if self.clock.sums() != (weight, weighted) {
            return broken("I2", "the virtual clock's sums", None);
        }
        if self.time.total_ns() != self.at_ns - self.started_ns {
            return broken("I5", "thread + idle + interrupt time is not wall time", None);
        }
        self.check_contexts()
    }

    fn check_contexts(&self) -> Result<(), Violation> {
        let broken = |invariant, what, thread| Err(Violation { invariant, what, cpu: self.id, thread });
        let mut first_broken = Ok(());
        let (mut reserved, mut contexts) = (Utilisation::default(), 0);
        let mut see = |thread: &Entity<T>, queued: bool| {
            if queued && !thread.may_run_on(self.id) && first_broken.is_ok() {
                first_broken = broken("I7", "a queued thread may not run here", Some(thread.id));
            }
            let anywhere = thread.allowed == CpuMask::ALL && !thread.context_only;
            if thread.anywhere != anywhere && first_broken.is_ok() {
                first_broken = broken("I7", "what is remembered of a CPU mask", Some(thread.id));
            }
            let Some(context) = &thread.context else { return };
            reserved = reserved.plus(context.spec().utilisation());
            contexts += 1;
            if !conserved(context) && first_broken.is_ok() {
                first_broken = broken("I4", "refills do not add up to the budget", Some(thread.id));
            }
        };
        for queue in [&self.guaranteed, &self.open, &self.restricted, &self.throttled] {
            queue.for_each(&mut |thread| see(thread, true));
        }
        self.direct.iter().for_each(|thread| see(thread, true));
        self.running.iter().for_each(|running| see(&running.thread, false));
        first_broken?;
        // Contexts of blocked threads are out of sight, so the sum here can only be smaller.
        if reserved > self.reserved || contexts > self.contexts || self.reserved > Utilisation::BOUND {
            return broken("I6", "reserved utilisation", None);
        }
        let staying = self.promises.iter().filter(|promise| !promise.demand.leaving);
        let sum = staying.fold(Utilisation::default(), |sum, promise| sum.plus(promise.demand.utilisation()));
        let is_sorted = self.promises.is_sorted_by_key(|promise| core::cmp::Reverse(promise.demand.band));
        if sum < self.reserved || !is_sorted || self.promises.len() > MAX_PROMISES_PER_CPU {
            return broken("I6", "the list of promises", None);
        }
        let promised = self.guaranteed.len() + self.throttled.len() + self.demoted.len();
        if self.contexts == 0 && promised > 0 {
            return broken("I6", "threads in the tier of contexts, but no context", None);
        }
        for demoted in &self.demoted {
            let mut known = self.current() == Some(demoted.thread);
            self.for_each_queued(|ticket, _, _| known |= ticket.thread == demoted.thread);
            if !known {
                return broken("I6", "a demoted thread is remembered but gone", Some(demoted.thread));
            }
        }
        Ok(())
    }
}

fn conserved(context: &Context) -> bool {
    let ledger = context.ledger();
    ledger.total_ns() == context.spec().budget_ns
        && ledger.refills().len() <= usize::from(context.spec().max_refills)
        && ledger.refills().is_sorted_by_key(|refill| refill.time_ns)
}
