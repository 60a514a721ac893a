//! Interrupts that serve somebody: who pays for them, and how much of a promised time they may take (S-16).
//!
//! A timer that a thread has set fires while somebody else runs. That time is the thread's: it *owes* it, and pays, out of its budget or its
//! virtual time, when it next leaves a CPU ([`Cpu::pay`]). So a storm of timers uses up what its maker has, and ends there.
//!
//! A refill is such a timer, too: the interrupt that comes for it is its thread's ([`Cpu::take_refilled`]), whether that runs at once or not.
//!
//! Paying later does not help who runs now. A thread that runs on a promise loses at most a small part of its time to others, by a bucket that
//! leaks: what fires beyond that waits until the bucket has room, or until the CPU has time that is promised to nobody. With nobody's promise
//! at stake there is no limit, so sleeps are as exact as the timer is.

use crate::cpu::{Cpu, Running, Tier};
use crate::{Payload, Policy, SERVICE_BURST_NS, SERVICE_DIVISOR, ThreadId};

/// What interrupts did for threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service {
    /// Taken from promised time for others, and not leaked away yet, at `at_ns`.
    level_ns: u64,
    at_ns: u64,
}

impl Service {
    /// The level at `now`, and what has leaked away since.
    fn leak(&mut self, now: u64) {
        let elapsed_ns = now.saturating_sub(self.at_ns);
        let leaked_ns = elapsed_ns / SERVICE_DIVISOR;
        if leaked_ns >= self.level_ns {
            (self.level_ns, self.at_ns) = (0, now);
        } else if leaked_ns > 0 {
            self.level_ns -= leaked_ns;
            // Not more than what has leaked in whole nanoseconds.
            self.at_ns += leaked_ns * SERVICE_DIVISOR;
        }
    }
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// Whether a thread runs here on time that was promised to it.
    #[inline]
    pub fn is_promised(&self) -> bool {
        matches!(&self.running, Some(Running { tier: Tier::Guaranteed, .. }))
    }

    /// How urgent the running thread is, if it runs on a promise: less is more. The band is above, the deadline below.
    pub fn current_urgency(&self) -> Option<u64> {
        let Running { thread, tier: Tier::Guaranteed, .. } = self.running.as_ref()? else { return None };
        Some(thread.key.tag as u64)
    }

    /// Whether a timer interrupt at `now` comes for somebody's refill: not for the thread that runs, whose turn may last.
    #[inline]
    pub fn is_refill_due(&self, now: u64) -> bool {
        self.anybody_is_dry() && self.next_release_ns() <= now
    }

    /// Whose refill has come since this was asked last, of several the last one: whom an interrupt has served that came for it.
    #[inline]
    pub fn take_refilled(&mut self) -> Option<ThreadId> {
        self.refilled.take()
    }

    /// How long an interrupt at `now` may work for others than the running thread: [`u64::MAX`] unless that runs on a promise.
    #[inline]
    pub fn service_left_ns(&mut self, now: u64) -> u64 {
        if self.contexts == 0 || !self.is_promised() {
            return u64::MAX;
        }
        self.service.leak(now);
        SERVICE_BURST_NS.saturating_sub(self.service.level_ns)
    }

    /// When half of the bucket is free again, from `now` on: before that, others are not worth an interrupt.
    pub fn service_again_ns(&mut self, now: u64) -> u64 {
        self.service.leak(now);
        let over_ns = self.service.level_ns.saturating_sub(SERVICE_BURST_NS / 2);
        now + over_ns * SERVICE_DIVISOR
    }

    /// The interrupt under way was on behalf of threads for `owned_ns`; for `others_ns` of those, of threads that had no better right to the
    /// CPU than who runs. They are told what they owe by the caller, who knows them.
    #[inline]
    pub fn note_service(&mut self, owned_ns: u64, others_ns: u64, now: u64) {
        self.time.interrupt_owned_ns += owned_ns;
        if others_ns > 0 && self.is_promised() {
            self.service.leak(now);
            self.service.level_ns += others_ns;
        }
    }

    /// The running thread pays for what interrupts have done for it. It is about to leave: nobody is dispatched for this.
    pub fn pay(&mut self, owed_ns: u64, now: u64) {
        self.charge(now);
        let Some(running) = &mut self.running else { return };
        let thread = &mut *running.thread;
        thread.account.served_ns += owed_ns;
        match (running.tier, &mut thread.context) {
            (Tier::Guaranteed, Some(context)) => {
                self.noted = self.noted.and(context.pay(owed_ns, self.at_ns));
                thread.key.tag = context.urgency_tag();
            }
            _ => {
                // Where it stands moves on, what it ran does not.
                thread.quantum_ns = thread.quantum_ns.saturating_sub(owed_ns);
                let virtual_ns = thread.fair.virtual_of(owed_ns);
                let moved_ns = thread.fair.advance(virtual_ns);
                self.clock.advance(thread.fair.weight(), moved_ns);
            }
        }
    }
}
