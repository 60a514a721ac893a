//! Interrupts that serve a thread: which thread is charged for them, and how much promised time they may take from others (S-16).
//!
//! A timer that a thread has set fires while another thread runs. The interrupt's time is charged to the thread that set the timer, as a
//! *deferred charge*: to its budget or its virtual time, when it next leaves a CPU ([`Cpu::pay`]). So a storm of timers uses up the time of
//! its maker, and ends there.
//!
//! A refill is such a timer, too: its interrupt is charged to the thread that is refilled ([`Cpu::take_refilled`]), whether that runs at once
//! or not.
//!
//! A deferred charge does not help the thread that is interrupted. So a thread that runs on a promise loses at most a small part of its time
//! to others, limited by a leaky bucket: a timer beyond that waits until the bucket has room, or until the CPU has time that is promised to no
//! thread. While no promise is at stake there is no limit, so sleeps are as exact as the timer is.

use crate::cpu::{Cpu, Running, Tier};
use crate::{Payload, Policy, SERVICE_BURST_NS, SERVICE_DIVISOR, ThreadId};

/// The leaky bucket of promised time that interrupts took for other threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service {
    /// Promised time that was taken for others and has not leaked away at `at_ns`.
    level_ns: u64,
    at_ns: u64,
}

impl Service {
    /// Lowers the level by what has leaked away by `now`.
    fn leak(&mut self, now: u64) {
        let elapsed_ns = now.saturating_sub(self.at_ns);
        let leaked_ns = elapsed_ns / SERVICE_DIVISOR;
        if leaked_ns >= self.level_ns {
            (self.level_ns, self.at_ns) = (0, now);
        } else if leaked_ns > 0 {
            self.level_ns -= leaked_ns;
            // Only the time that stands for whole leaked nanoseconds; the rest counts the next time.
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

    /// How urgent the running thread is, if it runs on a promise; smaller is more urgent. The band is in the high bits, the deadline in the
    /// low ones.
    pub fn current_urgency(&self) -> Option<u64> {
        let Running { thread, tier: Tier::Guaranteed, .. } = self.running.as_ref()? else { return None };
        Some(thread.key.tag as u64)
    }

    /// Whether a timer interrupt at `now` comes for the refill of a throttled or demoted thread, and not for the running thread, whose turn
    /// may last.
    #[inline]
    pub fn is_refill_due(&self, now: u64) -> bool {
        self.anybody_is_dry() && self.next_release_ns() <= now
    }

    /// The thread whose refill has come since the last call (of several, the last one): an interrupt that came for the refill has served this
    /// thread.
    #[inline]
    pub fn take_refilled(&mut self) -> Option<ThreadId> {
        self.refilled.take()
    }

    /// How long an interrupt at `now` may work for threads other than the running one: [`u64::MAX`] unless that runs on a promise.
    #[inline]
    pub fn service_left_ns(&mut self, now: u64) -> u64 {
        if self.contexts == 0 || !self.is_promised() {
            return u64::MAX;
        }
        self.service.leak(now);
        SERVICE_BURST_NS.saturating_sub(self.service.level_ns)
    }

    /// When half of the bucket will be free again: before that, serving other threads is not worth an interrupt.
    pub fn service_again_ns(&mut self, now: u64) -> u64 {
        self.service.leak(now);
        let over_ns = self.service.level_ns.saturating_sub(SERVICE_BURST_NS / 2);
        now + over_ns * SERVICE_DIVISOR
    }

    /// Notes that the current interrupt served threads for `owned_ns`; `others_ns` of that were for threads with no better right to the CPU
    /// than the running one. The caller, which knows these threads, records the deferred charges.
    #[inline]
    pub fn note_service(&mut self, owned_ns: u64, others_ns: u64, now: u64) {
        self.time.interrupt_owned_ns += owned_ns;
        if others_ns > 0 && self.is_promised() {
            self.service.leak(now);
            self.service.level_ns += others_ns;
        }
    }

    /// Charges the running thread for interrupts that have served it. It is about to leave the CPU, so this asks for no dispatch.
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
                // The position advances, but this is not running time.
                thread.quantum_ns = thread.quantum_ns.saturating_sub(owed_ns);
                let virtual_ns = thread.fair.virtual_of(owed_ns);
                let moved_ns = thread.fair.advance(virtual_ns);
                self.clock.advance(thread.fair.weight(), moved_ns);
            }
        }
    }
}
