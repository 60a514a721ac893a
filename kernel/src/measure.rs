//! The cost of the kernel's own work, for benchmarks (T-03), in ticks of the TSC.
//!
//! Only in kernels with the feature `measure`. Without it these functions do nothing, and not even their names are in the kernel: `capos` checks
//! that when it builds a kernel with the feature.

#[cfg(feature = "measure")]
mod enabled {
    use crate::arch::{cpu, percpu};
    use core::sync::atomic::{AtomicU64, Ordering};
    use sched::MAX_CPUS;

    /// A count, and the sum of ticks. One for all CPUs: they disturb each other, which is why this is not always on.
    struct Total(AtomicU64, AtomicU64);

    impl Total {
        fn add(&self, ticks: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.fetch_add(ticks, Ordering::Relaxed);
        }
    }

    static DISPATCHES: Total = Total(AtomicU64::new(0), AtomicU64::new(0));
    static INTERRUPTS: Total = Total(AtomicU64::new(0), AtomicU64::new(0));
    /// When the dispatch that is under way on each CPU began; 0 if none is.
    static BEGAN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

    /// How many counters there are.
    pub const COUNT: usize = 4;

    /// The values of all of them.
    pub fn all() -> [(&'static str, u64); COUNT] {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("measured_dispatches", load(&DISPATCHES.0)),
            ("measured_dispatch_ticks", load(&DISPATCHES.1)),
            ("measured_interrupts", load(&INTERRUPTS.0)),
            ("measured_interrupt_ticks", load(&INTERRUPTS.1)),
        ]
    }

    /// A dispatch begins (this CPU switches a thread out) or ends (the next thread takes its first step).
    pub fn dispatch(begins: bool) {
        let began = &BEGAN[percpu::this().id];
        let now = cpu::rdtsc();
        let before = began.swap(if begins { now } else { 0 }, Ordering::Relaxed);
        if !begins && before != 0 {
            DISPATCHES.add(now.wrapping_sub(before));
        }
    }

    /// The time at which an interrupt begins.
    pub fn interrupt_begins() -> u64 {
        cpu::rdtsc()
    }

    /// The interrupt that began then ends.
    pub fn interrupt_ends(began: u64) {
        INTERRUPTS.add(cpu::rdtsc().wrapping_sub(began));
    }
}

#[cfg(not(feature = "measure"))]
mod disabled {
    pub const COUNT: usize = 0;
    pub fn all() -> [(&'static str, u64); COUNT] {
        []
    }
    #[inline(always)]
    pub fn dispatch(_: bool) {}
    /// Nothing to remember.
    pub struct Began;
    #[inline(always)]
    pub fn interrupt_begins() -> Began {
        Began
    }
    #[inline(always)]
    pub fn interrupt_ends(_: Began) {}
}

#[cfg(not(feature = "measure"))]
pub use disabled::*;
#[cfg(feature = "measure")]
pub use enabled::*;
