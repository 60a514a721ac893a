//! What the kernel's own work costs, for benchmarks (T-03): ticks of the TSC, by what they went to.
//!
//! Only in kernels with the feature `measure`. Without it these are functions that do nothing, and not even their names are in the kernel:
//! `capos` looks whether that is so when it builds one with the feature.

#[cfg(feature = "measure")]
mod enabled {
    use crate::arch::{cpu, percpu};
    use core::sync::atomic::{AtomicU64, Ordering};
    use sched::MAX_CPUS;

    /// How often, and how many ticks in all. One for all CPUs: they disturb each other, which is why this is not always on.
    struct Total(AtomicU64, AtomicU64);

    impl Total {
        fn add(&self, ticks: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.fetch_add(ticks, Ordering::Relaxed);
        }
    }

    static DISPATCHES: Total = Total(AtomicU64::new(0), AtomicU64::new(0));
    static INTERRUPTS: Total = Total(AtomicU64::new(0), AtomicU64::new(0));
    /// When the dispatch of each CPU began that is under way; 0 if none is.
    static BEGAN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

    /// How many counters there are.
    pub const COUNT: usize = 4;

    /// All of them.
    pub fn all() -> [(&'static str, u64); COUNT] {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("measured_dispatches", load(&DISPATCHES.0)),
            ("measured_dispatch_ticks", load(&DISPATCHES.1)),
            ("measured_interrupts", load(&INTERRUPTS.0)),
            ("measured_interrupt_ticks", load(&INTERRUPTS.1)),
        ]
    }

    /// This CPU leaves a thread, or the next one takes its first step.
    pub fn dispatch(begins: bool) {
        let began = &BEGAN[percpu::this().id];
        let now = cpu::rdtsc();
        let before = began.swap(if begins { now } else { 0 }, Ordering::Relaxed);
        if !begins && before != 0 {
            DISPATCHES.add(now.wrapping_sub(before));
        }
    }

    /// An interrupt begins.
    pub fn interrupt_begins() -> u64 {
        cpu::rdtsc()
    }

    /// It ends.
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
