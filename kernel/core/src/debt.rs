//! The deferred charge of a thread: the time of interrupts that served it, until it is charged (S-16).
//!
//! An interrupt that serves a thread knows its record and its generation, and the time is added when the interrupt ends. By then the thread may have
//! ended, on another CPU, and another thread may have the record, which must not be charged. So generation and charge are one word: checking the one
//! and changing the other is one step.

use core::sync::atomic::{AtomicU64, Ordering};

const GENERATION_SHIFT: u32 = 32;

/// The deferred charge of the thread in one record.
#[derive(Debug, Default)]
pub struct Debt(AtomicU64);

impl Debt {
    /// For a record that was never used.
    pub const fn new() -> Debt {
        Debt(AtomicU64::new(0))
    }

    /// The thread of this generation has the record from now on, with a charge of 0.
    pub fn begin(&self, generation: u32) {
        self.0.store(u64::from(generation) << GENERATION_SHIFT, Ordering::Relaxed);
    }

    /// Adds `ns` to the charge of the thread of this generation, if it is still here. The charge is at most four seconds at a time.
    #[inline(always)]
    pub fn add(&self, generation: u32, ns: u64) {
        let more = |word: u64| {
            let is_here = word >> GENERATION_SHIFT == u64::from(generation);
            let owed = u64::from(word as u32).saturating_add(ns).min(u64::from(u32::MAX));
            is_here.then_some(word >> GENERATION_SHIFT << GENERATION_SHIFT | owed)
        };
        let _ = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Adds `ns` to the charge of whichever thread is here: for records that have no generations, and for threads that are known to be here.
    #[inline(always)]
    pub fn add_to_whoever(&self, ns: u64) {
        let more = |word: u64| {
            let owed = u64::from(word as u32).saturating_add(ns).min(u64::from(u32::MAX));
            Some(word >> GENERATION_SHIFT << GENERATION_SHIFT | owed)
        };
        let _ = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The charge so far.
    #[inline(always)]
    pub fn ns(&self) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed) as u32)
    }

    /// Whether it may be served on its own account, which has `available_ns`. Not if the charge is at least as large as that: then interrupts may do
    /// no more for it than for a thread without budget.
    #[inline(always)]
    pub fn is_covered_by(&self, available_ns: u64) -> bool {
        available_ns > self.ns()
    }

    /// Takes the charge, which is 0 afterwards.
    pub fn pay(&self) -> u64 {
        let all = u64::MAX << GENERATION_SHIFT;
        u64::from(self.0.fetch_and(all, Ordering::Relaxed) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-16, K-05: an interrupt that ends after the thread that it served is charged to no thread, least of all to the next one in its record.
    #[test]
    fn s_16_nobody_pays_for_the_thread_before() {
        let debt = Debt::new();
        debt.begin(7);
        debt.add(7, 100);
        debt.add(7, 20);
        assert_eq!(debt.ns(), 120);
        debt.begin(8);
        debt.add(7, 5_000);
        assert_eq!(debt.ns(), 0);
        debt.add(8, 30);
        debt.add(7, 5_000);
        debt.add(0, 5_000);
        assert_eq!((debt.ns(), debt.pay(), debt.pay()), (30, 30, 0));
        // It is still the same thread after it was charged.
        debt.add(8, 40);
        assert_eq!(debt.ns(), 40);
    }

    /// A record that has never had a thread has no charge.
    #[test]
    fn s_16_an_unused_record_owes_nothing_to_anybody() {
        let debt = Debt::new();
        debt.add(1, 10);
        assert_eq!(debt.pay(), 0);
    }

    /// S-16: a thread that waits and is served meanwhile is charged later; a budget that the charge will use up does not count as available.
    #[test]
    fn s_16_what_is_owed_is_not_there_to_be_spent() {
        let debt = Debt::new();
        debt.begin(1);
        assert!(debt.is_covered_by(1) && !debt.is_covered_by(0));
        debt.add(1, 500);
        assert!(debt.is_covered_by(501) && !debt.is_covered_by(500) && !debt.is_covered_by(499));
        debt.pay();
        assert!(debt.is_covered_by(1));
    }

    #[test]
    fn s_16_a_debt_does_not_run_over() {
        let debt = Debt::new();
        debt.begin(u32::MAX);
        debt.add(u32::MAX, u64::MAX);
        debt.add(u32::MAX, u64::MAX);
        assert_eq!(debt.pay(), u64::from(u32::MAX));
        debt.add(u32::MAX, 1);
        assert_eq!(debt.pay(), 1);
    }

    /// What several CPUs add at once is all charged, once.
    #[test]
    fn s_16_what_cpus_add_at_once_is_paid_once() {
        extern crate std;
        let (debt, rounds) = (Debt::new(), 20_000);
        debt.begin(3);
        let paid = std::thread::scope(|scope| {
            let cpus: [_; 2] =
                core::array::from_fn(|_| scope.spawn(|| (0..rounds).for_each(|_| debt.add(3, 3))));
            let mut paid = 0;
            while cpus.iter().any(|cpu| !cpu.is_finished()) {
                paid += debt.pay();
            }
            paid
        });
        assert_eq!(paid + debt.pay(), 2 * 3 * rounds);
    }
}
