//! The best-effort state of one thread: its knobs, and its position in virtual time.

use crate::{LatencyClass, Policy, SLICE_NS, WAKE_GAP_DIVISOR, Weight};

/// What ordering policies see of a thread.
///
/// While the thread is on a CPU (queued or running), `position` is in that CPU's frame. Off CPU it is in the common
/// frame, and `lag` remembers how far behind (positive) or ahead the thread was when it left.
#[derive(Clone, Copy, Debug)]
pub struct Fair {
    weight: Weight,
    class: LatencyClass,
    /// Cached from weight and class, so that an enqueue divides nothing.
    virtual_slice: i64,
    /// The most that a joining thread may be behind the clock: one default slice of its own. Cached as well.
    credit_limit: i64,
    /// What the last charge could not express in whole virtual nanoseconds, in units of 1/weight.
    remainder: u64,
    pub(crate) position: i64,
    pub(crate) lag: i64,
    /// What a migrated thread is owed beyond the one slice of lag that it brings along: paid while it runs, lost when it blocks.
    pub(crate) arrears: i64,
    /// End of the current request (EEVDF); WFQ derives a new one at every enqueue.
    pub(crate) deadline: i64,
}

impl Fair {
    pub(crate) fn new(weight: Weight, class: LatencyClass) -> Fair {
        let mut fair = Fair {
            weight,
            class,
            virtual_slice: 0,
            credit_limit: 0,
            remainder: 0,
            position: i64::MIN / 2,
            lag: 0,
            arrears: 0,
            deadline: i64::MIN / 2,
        };
        fair.derive();
        fair
    }

    /// The thread's weight.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// The thread's latency class.
    pub fn class(&self) -> LatencyClass {
        self.class
    }

    /// Where the thread is in virtual time.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Where its current request ends, for policies that keep one.
    pub fn deadline(&self) -> i64 {
        self.deadline
    }

    /// Sets where its current request ends. It moves along when the thread joins another clock.
    pub fn set_deadline(&mut self, deadline: i64) {
        self.deadline = deadline;
    }

    /// The slice of its class, in its own virtual time.
    pub fn virtual_slice(&self) -> i64 {
        self.virtual_slice
    }

    /// The most that a joining thread may be behind the clock: one default slice of its own.
    pub(crate) fn credit_limit(&self) -> i64 {
        self.credit_limit
    }

    /// A thread that has never run begins in debt by this much real time.
    pub(crate) fn owe(&mut self, real_ns: u64) {
        self.lag = -self.weight.to_virtual(real_ns);
    }

    /// Changes the weight of a thread that is `behind` (or ahead of) the clock. What it is owed in real time stays the same, so
    /// its distance in virtual time shrinks or grows with the weight.
    pub(crate) fn set_weight(&mut self, weight: Weight, behind: i64) {
        let (old, new) = (i64::from(self.weight.get()), i64::from(weight.get()));
        let request = (self.deadline - self.position).max(0) * old / new;
        self.position += behind - behind * old / new;
        self.deadline = self.position + request;
        self.lag = self.lag * old / new;
        self.arrears = self.arrears * old / new;
        // The remainder is a fraction of one virtual nanosecond; keep its value under the new denominator.
        self.remainder = self.remainder * u64::from(weight.get()) / u64::from(self.weight.get());
        self.weight = weight;
        self.derive();
    }

    /// As `set_weight`, for a thread that no clock counts: it is behind by the lag with which it left.
    pub(crate) fn set_weight_off_cpu(&mut self, weight: Weight) {
        self.set_weight(weight, self.lag);
    }

    pub(crate) fn set_class(&mut self, class: LatencyClass) {
        self.class = class;
        self.derive();
    }

    /// Moves forward by what it ran, in its own virtual time, and returns how far. A thread with arrears moves at three
    /// quarters of its speed until they are paid: soon enough for the next move, and too slowly to keep others waiting.
    #[inline(always)]
    pub(crate) fn advance(&mut self, virtual_ns: i64) -> i64 {
        let paid = if self.arrears == 0 { 0 } else { self.arrears.min(virtual_ns / 4) };
        self.arrears -= paid;
        self.position += virtual_ns - paid;
        virtual_ns - paid
    }

    /// Real time as its own virtual time (F-02), carrying the remainder.
    pub(crate) fn virtual_of(&mut self, real_ns: u64) -> i64 {
        if self.weight.get() == crate::REFERENCE_WEIGHT {
            // At this weight the division is exact; a remainder from another weight is less than one and stays.
            return real_ns as i64;
        }
        let weight = u64::from(self.weight.get());
        let scaled = real_ns * u64::from(crate::REFERENCE_WEIGHT) + self.remainder;
        let virtual_ns = (scaled / weight) as i64;
        self.remainder = scaled % weight;
        virtual_ns
    }

    /// Moves forward by `real_ns` of running; returns how far.
    #[cfg(test)]
    pub(crate) fn charge(&mut self, real_ns: u64) -> i64 {
        let virtual_ns = self.virtual_of(real_ns);
        self.advance(virtual_ns)
    }

    /// The tag below which a newcomer at `position` preempts this thread, which runs and was picked under `picked_tag` (F-17). Among equal tags the
    /// thread that is further behind goes first. The running thread has advanced since it was picked, so the tag that it would get now counts as
    /// well, less what a switch must be worth, so that two threads that wake each other do not preempt each other at every wake-up.
    #[inline]
    pub(crate) fn tag_to_beat(mut self, policy: impl Policy, picked_tag: i64, position: i64) -> i64 {
        let now_tag = policy.tag(&mut self) - self.virtual_slice / WAKE_GAP_DIVISOR;
        now_tag.max(picked_tag + i64::from(position < self.position))
    }

    fn derive(&mut self) {
        self.virtual_slice = self.weight.to_virtual(self.class.slice_ns());
        self.credit_limit = self.weight.to_virtual(SLICE_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-02: however time is cut into charges, the sum is `elapsed * 64 / weight`, rounded down once.
    #[test]
    fn f_02_remainders_are_carried() {
        for weight in [1, 3, 63, 64, 65, 127, 1000, 1024] {
            let mut fair = Fair::new(Weight::new(weight).unwrap(), LatencyClass::Normal);
            let (mut real, mut total) = (0u64, 0i64);
            for step in 0..10_000u64 {
                let elapsed = step * 7919 % 1013;
                real += elapsed;
                total += fair.charge(elapsed);
                assert_eq!(total as u64, real * 64 / u64::from(weight));
            }
        }
    }

    /// A heavy thread that runs in bursts of a few nanoseconds is still charged.
    #[test]
    fn f_15_heavy_weights_do_not_round_to_zero() {
        let mut fair = Fair::new(Weight::new(1024).unwrap(), LatencyClass::Normal);
        let total: i64 = (0..1_600).map(|_| fair.charge(1)).sum();
        assert_eq!(total, 100);
    }

    /// Arrears are paid by a quarter of each charge, to the last nanosecond; then the thread moves at full speed again.
    #[test]
    fn f_16_arrears_are_paid_while_running() {
        let mut fair = Fair::new(Weight::DEFAULT, LatencyClass::Normal);
        (fair.position, fair.arrears) = (0, 3_000_000);
        assert_eq!((fair.charge(8_000_000), fair.arrears), (6_000_000, 1_000_000));
        assert_eq!((fair.charge(8_000_000), fair.arrears), (7_000_000, 0));
        assert_eq!((fair.charge(8_000_000), fair.position), (8_000_000, 21_000_000));
    }

    /// F-07: what a thread is owed in real time does not change with its weight.
    #[test]
    fn f_07_weight_change_keeps_real_lag() {
        let mut fair = Fair::new(Weight::new(16).unwrap(), LatencyClass::Batch);
        (fair.position, fair.lag) = (-40_000_000, 40_000_000); // 10 ms behind in real time: 40 * 16/64
        fair.set_weight_off_cpu(Weight::new(1024).unwrap());
        assert_eq!((fair.position, fair.lag), (-625_000, 625_000)); // 0.625 * 1024/64 = 10 ms
    }

    /// F-07, F-16: arrears are owed in real time as well: 3 ms are 12 of virtual time at a quarter of the weight, and three quarters of one at four times.
    #[test]
    fn f_16_a_weight_change_keeps_real_arrears() {
        for (weight, arrears) in [(16, 12_000_000), (256, 750_000), (64, 3_000_000)] {
            let mut fair = Fair::new(Weight::DEFAULT, LatencyClass::Normal);
            (fair.position, fair.arrears) = (0, 3_000_000);
            fair.set_weight(Weight::new(weight).unwrap(), 0);
            assert_eq!(fair.arrears, arrears, "weight {weight}");
            // A quarter of what it runs pays them: four times 3 ms of running, whatever it weighs.
            fair.charge(11_999_000);
            assert!(fair.arrears > 0, "weight {weight}");
            fair.charge(2_000);
            assert_eq!(fair.arrears, 0, "weight {weight}");
        }
    }

    #[test]
    fn weight_change_keeps_the_fraction() {
        let mut fair = Fair::new(Weight::new(128).unwrap(), LatencyClass::Normal);
        assert_eq!(fair.charge(1), 0); // 64/128: one half is carried
        fair.set_weight(Weight::new(64).unwrap(), 0);
        assert_eq!(fair.remainder, 32); // one half of 64
    }
}
