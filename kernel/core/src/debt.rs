//! What a thread owes for interrupts that served it, until it pays (S-16).
//!
//! Whoever serves a thread knows its record and its generation, and puts the time down when the interrupt ends. By then the thread may have ended, on
//! another CPU, and the record may be another's, who must not pay for it. So generation and debt are one word: a look at the one and a change of the
//! other cannot be parted.

use core::sync::atomic::{AtomicU64, Ordering};

const GENERATION_SHIFT: u32 = 32;

/// Of the thread in one record.
#[derive(Debug, Default)]
pub struct Debt(AtomicU64);

impl Debt {
    /// Of a record that was never used.
    pub const fn new() -> Debt {
        Debt(AtomicU64::new(0))
    }

    /// The record is that of the thread of this generation from now on, which owes nothing.
    pub fn begin(&self, generation: u32) {
        self.0.store(u64::from(generation) << GENERATION_SHIFT, Ordering::Relaxed);
    }

    /// The thread of this generation owes `ns` more, if it is still here. Four seconds are the most that one owes at a time.
    #[inline(always)]
    pub fn add(&self, generation: u32, ns: u64) {
        let more = |word: u64| {
            let is_here = word >> GENERATION_SHIFT == u64::from(generation);
            let owed = u64::from(word as u32).saturating_add(ns).min(u64::from(u32::MAX));
            is_here.then_some(word >> GENERATION_SHIFT << GENERATION_SHIFT | owed)
        };
        let _ = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whoever is here owes `ns` more: for records that have no generations, and for askers who are known to be here.
    #[inline(always)]
    pub fn add_to_whoever(&self, ns: u64) {
        let more = |word: u64| {
            let owed = u64::from(word as u32).saturating_add(ns).min(u64::from(u32::MAX));
            Some(word >> GENERATION_SHIFT << GENERATION_SHIFT | owed)
        };
        let _ = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// What it owes.
    #[inline(always)]
    pub fn ns(&self) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed) as u32)
    }

    /// May it be served on its own account, which has `available_ns`? Not if it owes all of that: what interrupts do for it then is limited, as for who has none.
    #[inline(always)]
    pub fn is_covered_by(&self, available_ns: u64) -> bool {
        available_ns > self.ns()
    }

    /// It pays: what it owed.
    pub fn pay(&self) -> u64 {
        let all = u64::MAX << GENERATION_SHIFT;
        u64::from(self.0.fetch_and(all, Ordering::Relaxed) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-16, K-05: an interrupt that ends after the thread that it served is paid for by nobody, least of all by the next one in its record.
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
        // It is still the same one after it has paid.
        debt.add(8, 40);
        assert_eq!(debt.ns(), 40);
    }

    /// A record that has never had a thread has none to owe anything.
    #[test]
    fn s_16_an_unused_record_owes_nothing_to_anybody() {
        let debt = Debt::new();
        debt.add(1, 10);
        assert_eq!(debt.pay(), 0);
    }

    /// S-16: who waits and is served meanwhile pays later; a promise that is spent by then serves it no more.
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

    /// What several CPUs put down at once is all paid, once.
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
