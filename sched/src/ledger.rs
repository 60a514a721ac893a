//! The ledger of a context: how much CPU time it has, and when it gets back what it has used.
//!
//! A sporadic server. The budget is split into refills, ordered by the time from which they may be used:
//! ```text
//!        now
//!         |
//!   [ 3 ms | t=0 ]   [ 5 ms | t=12 ]   [ 2 ms | t=14 ]      sum = 10 ms, always (I4)
//!     head: usable     used at 2..7,     used at 4..6
//!                      comes back one period (10 ms) after it became usable
//! ```
//! Using time from a refill moves that amount to the end of the list, usable one period after the refill it was taken
//! from became usable. So whatever the pattern of running and sleeping, no more than the budget comes back per period: time
//! is moved, never made. When the list is full, the last two refills become one at the *later* time.

use crate::{MAX_DEBT_PERIODS, MAX_REFILLS, MIN_BUDGET_NS, MIN_REFILLS};

/// An amount of CPU time, and the time from which it may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refill {
    /// Usable from here on.
    pub time_ns: u64,
    /// How much.
    pub amount_ns: u64,
}

/// The refills of one context.
#[derive(Clone, Debug)]
pub struct Ledger {
    period_ns: u64,
    limit: usize,
    /// `refills[..len]`, ascending in time.
    refills: [Refill; MAX_REFILLS],
    len: usize,
    /// Nothing that is used comes back before this time: what was used under an earlier specification, or by a predecessor, does not either.
    not_before_ns: u64,
}

impl Ledger {
    /// A full budget, usable from `now`. `limit` is the number of refills to keep, [`MIN_REFILLS`] to [`MAX_REFILLS`].
    pub fn new(budget_ns: u64, period_ns: u64, limit: usize, now: u64) -> Ledger {
        let mut refills = [Refill::default(); MAX_REFILLS];
        refills[0] = Refill { time_ns: now, amount_ns: budget_ns };
        let limit = limit.clamp(MIN_REFILLS, MAX_REFILLS);
        Ledger { period_ns, limit, refills, len: 1, not_before_ns: 0 }
    }

    /// Makes the part of the budget that a predecessor used usable from `until_ns` on only.
    pub(crate) fn inherit(&mut self, used_ns: u64, until_ns: u64) {
        let Refill { time_ns, amount_ns } = self.refills[0];
        if self.len != 1 || used_ns == 0 || until_ns <= time_ns {
            return;
        }
        let used_ns = used_ns.min(amount_ns);
        self.refills[0].amount_ns -= used_ns;
        self.refills[1] = Refill { time_ns: until_ns, amount_ns: used_ns };
        self.len = 2;
        // After an overrun, `until_ns` may be later than a period from now; what is used from now on must not come back before it.
        self.not_before_ns = until_ns;
        self.skip_scraps();
    }

    /// What was used and has not come back by `now`, and when the last of it does.
    pub(crate) fn booked(&self, now: u64) -> (u64, u64) {
        let last_ns = self.refills[self.len - 1].time_ns;
        (self.total_ns() - self.available_ns(now), last_ns.max(self.not_before_ns))
    }

    /// The refills, ascending in time.
    pub fn refills(&self) -> &[Refill] {
        &self.refills[..self.len]
    }

    /// All time in the ledger: the budget.
    pub fn total_ns(&self) -> u64 {
        self.refills().iter().map(|refill| refill.amount_ns).sum()
    }

    /// What may be used without waiting.
    pub fn available_ns(&self, now: u64) -> u64 {
        self.refills().iter().take_while(|refill| refill.time_ns <= now).map(|refill| refill.amount_ns).sum()
    }

    /// What may be used of the first refill; after that the next one applies, with its own deadline.
    pub fn head_ns(&self, now: u64) -> u64 {
        if self.refills[0].time_ns <= now { self.refills[0].amount_ns } else { 0 }
    }

    /// When the first refill becomes, or became, usable.
    pub fn ready_at_ns(&self) -> u64 {
        self.refills[0].time_ns
    }

    /// The thread did not need its time until now: what was usable before counts as usable from now on, as one refill.
    pub fn activate(&mut self, now: u64) {
        if self.refills[0].time_ns >= now {
            return;
        }
        self.refills[0].time_ns = now;
        while self.len > 1 && self.refills[1].time_ns <= now {
            self.refills[1].amount_ns += self.refills[0].amount_ns;
            self.refills[1].time_ns = now;
            self.drop_head();
        }
    }

    /// Sets another budget and period. What was used stays used: what was usable stays usable, as far as the new budget goes. The rest comes one new
    /// period from now, but not before the last part of what was used under the old period would have; nor does what is used from now on.
    ///
    /// So a reconfiguration creates no time. Let `u` be what is usable at the first one, and let the ledger then run for times `d_i` under budgets
    /// `b_i` and periods `p_i`. Every part of a budget becomes usable at most once a period, and parts that were not usable at the beginning of a
    /// stretch wait for a whole period: within `d_i`, `floor(d_i / p_i) * b_i` become usable, and at its end no more is left to use than that and
    /// what was usable before, minus what was used. Adding up: **used <= `u` + sum of `floor(d_i / p_i) * b_i`**. Reconfiguring more often than once
    /// a period yields nothing but `u`. And until the last refill of the old budget is due, no more than the old budget can be used (S-13).
    pub fn reconfigure(&mut self, budget_ns: u64, period_ns: u64, limit: usize, now: u64) {
        let usable_ns = self.available_ns(now).min(budget_ns);
        let (_, last_ns) = self.booked(now);
        *self = Ledger::new(budget_ns, period_ns, limit, now);
        self.not_before_ns = last_ns;
        if usable_ns < budget_ns {
            self.refills[0].amount_ns = usable_ns;
            let time_ns = last_ns.max(now + period_ns);
            self.refills[1] = Refill { time_ns, amount_ns: budget_ns - usable_ns };
            self.len = 2;
            self.skip_scraps();
        }
    }

    /// The usual charge, for the time up to `now`: the first refill was usable for that long and is left with at least [`MIN_BUDGET_NS`]. Otherwise
    /// nothing happens, and the result is `false`.
    #[inline]
    pub(crate) fn charge_head(&mut self, used_ns: u64, now: u64) -> bool {
        let head = self.refills[0];
        if head.amount_ns < used_ns + MIN_BUDGET_NS || head.time_ns + used_ns > now {
            return false;
        }
        self.refills[0].amount_ns -= used_ns;
        self.book(Refill { time_ns: head.time_ns + self.period_ns, amount_ns: used_ns });
        true
    }

    /// Takes `used_ns` out, and books its return. More than is available is taken from what comes next, so that an
    /// overrun is paid for.
    pub fn charge(&mut self, used_ns: u64) {
        let total = self.total_ns();
        let mut left = used_ns;
        if left >= total {
            // Whole budgets: every refill is used once a round and returns a period later.
            let rounds = (left / total).min(MAX_DEBT_PERIODS);
            for refill in &mut self.refills[..self.len] {
                refill.time_ns =
                    (refill.time_ns + self.period_ns).max(self.not_before_ns) + (rounds - 1) * self.period_ns;
            }
            left %= total;
        }
        while left > 0 {
            let head = self.refills[0];
            let taken = head.amount_ns.min(left);
            left -= taken;
            if taken == head.amount_ns {
                self.drop_head();
            } else {
                self.refills[0].amount_ns -= taken;
            }
            self.book(Refill { time_ns: head.time_ns + self.period_ns, amount_ns: taken });
        }
        self.skip_scraps();
        debug_assert_eq!(self.total_ns(), total, "I4: refills are conserved");
    }

    /// A refill too small to be worth a switch waits for the next one.
    fn skip_scraps(&mut self) {
        while self.len > 1 && self.refills[0].amount_ns < MIN_BUDGET_NS {
            self.refills[1].amount_ns += self.refills[0].amount_ns;
            self.drop_head();
        }
    }

    fn drop_head(&mut self) {
        self.refills.copy_within(1..self.len, 0);
        self.len -= 1;
    }

    fn book(&mut self, mut refill: Refill) {
        refill.time_ns = refill.time_ns.max(self.not_before_ns);
        if self.len > 0 {
            let last = &mut self.refills[self.len - 1];
            debug_assert!(last.time_ns <= refill.time_ns, "refills are booked in order");
            if last.time_ns == refill.time_ns || self.len == self.limit {
                last.amount_ns += refill.amount_ns;
                last.time_ns = refill.time_ns;
                return;
            }
        }
        self.refills[self.len] = refill;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    /// S-03: the worked example of the module's picture.
    #[test]
    fn s_03_used_time_returns_one_period_later() {
        let mut ledger = Ledger::new(10 * MS, 10 * MS, 8, 0);
        ledger.charge(4 * MS); // usable from 0, back at 10
        assert_eq!(ledger.available_ns(4 * MS), 6 * MS);
        ledger.activate(6 * MS); // slept until 6: the other 6 ms count from 6
        ledger.charge(6 * MS);
        assert_eq!(ledger.refills()[0], Refill { time_ns: 10 * MS, amount_ns: 4 * MS });
        assert_eq!(ledger.refills()[1], Refill { time_ns: 16 * MS, amount_ns: 6 * MS });
        assert_eq!(ledger.available_ns(9 * MS), 0);
        assert_eq!(ledger.available_ns(10 * MS), 4 * MS);
    }

    /// S-03: an overrun is taken from the future, and whole budgets push the ledger back by whole periods.
    #[test]
    fn s_03_overruns_are_paid_for() {
        let mut ledger = Ledger::new(2 * MS, 10 * MS, 8, 0);
        ledger.charge(3 * MS); // one whole budget and half of the next
        assert_eq!(ledger.total_ns(), 2 * MS);
        assert_eq!(ledger.refills()[0], Refill { time_ns: 10 * MS, amount_ns: MS });
        assert_eq!(ledger.refills()[1], Refill { time_ns: 20 * MS, amount_ns: MS });
    }

    /// S-13: what a successor uses comes back no earlier than what it inherited as used, which after an overrun may be later than a period from now.
    #[test]
    fn s_13_nothing_comes_back_before_what_was_inherited() {
        let mut ledger = Ledger::new(4 * MS, 20 * MS, 8, 0);
        ledger.inherit(MS, 50 * MS);
        assert_eq!(ledger.available_ns(0), 3 * MS);
        ledger.charge(3 * MS);
        assert_eq!(ledger.refills(), [Refill { time_ns: 50 * MS, amount_ns: 4 * MS }]);
    }

    /// S-03: random running and sleeping: the sum is conserved, and no window sees more than its budgets.
    #[test]
    fn s_03_no_amplification_in_any_window() {
        for seed in 1..400u64 {
            let mut next = random(seed);
            let (budget, period) = (MIN_BUDGET_NS + next(5 * MS), 6 * MS + next(20 * MS));
            let mut ledger = Ledger::new(budget, period, 2 + next(7) as usize, 0);
            let mut now = 0;
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for _ in 0..300 {
                if next(3) == 0 {
                    now += next(2 * period);
                    ledger.activate(now);
                }
                now = now.max(ledger.ready_at_ns());
                let used = (1 + next(budget)).min(ledger.available_ns(now));
                runs.push((now, used));
                now += used;
                ledger.charge(used);
                assert_eq!(ledger.total_ns(), budget);
                assert!(ledger.refills().windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
                assert!(ledger.refills().len() <= MAX_REFILLS);
            }
            // Any window of k periods holds at most k + 1 budgets.
            for (at, &(start, _)) in runs.iter().enumerate() {
                let mut sum = 0;
                for &(begin, used) in &runs[at..] {
                    sum += used;
                    let periods = (begin + used - start).div_ceil(period);
                    assert!(sum <= (periods + 1) * budget, "seed {seed}: {sum} in {periods} periods");
                }
            }
        }
    }

    /// A seeded generator (xorshift): numbers below the argument.
    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        }
    }

    /// S-02, S-03: whatever is reconfigured whenever, no more is used than was usable at the first time, and `floor(d_i / p_i)` budgets of each
    /// stretch (the proof is at `reconfigure`). With overruns, which are paid back, not even that.
    #[test]
    fn s_03_reconfiguring_makes_no_time() {
        for seed in 1..600u64 {
            let mut next = random(seed);
            let mut ledger = Ledger::new(5 * MS, 10 * MS, 8, 0);
            let (mut now, mut used) = (0, 0);
            let mut allowed = ledger.available_ns(0);
            // Some seeds never let a period pass: those get what was there, and nothing else.
            let hurry = seed.is_multiple_of(3);
            for _ in 0..60 {
                let period = MS + next(20 * MS);
                let budget = MIN_BUDGET_NS + next(period - MIN_BUDGET_NS);
                ledger.reconfigure(budget, period, 2 + next(7) as usize, now);
                assert_eq!(ledger.total_ns(), budget);
                let (begin, end) = (now, now + if hurry { next(period) } else { next(6 * period) });
                while now < end {
                    match next(4) {
                        0 => now = end.min(now + next(2 * period)),
                        1 => ledger.activate(now),
                        _ => {
                            let most = ledger.available_ns(now).min(end - now);
                            let spent = if most == 0 { 0 } else { 1 + next(most) };
                            ledger.charge(spent);
                            (now, used) = (now + spent, used + spent);
                            if spent == 0 {
                                now = end.min(now.max(ledger.ready_at_ns()));
                            }
                        }
                    }
                }
                allowed += (now - begin) / period * budget;
                assert!(used <= allowed, "seed {seed}: {used} ns of {allowed}");
                assert!(!hurry || allowed <= 5 * MS);
            }
            assert!(used > 0);
        }
    }

    /// S-03: an overrun is not forgiven by a new spec: what had been put off by whole periods stays put off.
    #[test]
    fn s_03_reconfiguring_forgives_no_overrun() {
        let mut ledger = Ledger::new(2 * MS, 10 * MS, 8, 0);
        ledger.charge(6 * MS); // three budgets: nothing before 30
        assert_eq!(ledger.ready_at_ns(), 30 * MS);
        ledger.reconfigure(4 * MS, 8 * MS, 8, 6 * MS);
        assert_eq!(ledger.refills(), [Refill { time_ns: 30 * MS, amount_ns: 4 * MS }]);
    }

    /// The short charge does what the long one does.
    #[test]
    fn s_03_both_charges_agree() {
        for seed in 1..300u64 {
            let mut next = random(seed);
            let mut short = Ledger::new(3 * MS, 10 * MS, 2 + next(7) as usize, 0);
            let mut now = 0;
            let mut times = 0;
            for _ in 0..200 {
                now += next(3 * MS);
                let spent = 1 + next(MS);
                if next(4) == 0 {
                    short.activate(now);
                }
                now += spent;
                let mut long = short.clone();
                long.charge(spent);
                if short.charge_head(spent, now) {
                    assert_eq!(short.refills(), long.refills(), "seed {seed}");
                    times += 1;
                } else {
                    short = long;
                }
            }
            assert!(times > 20, "seed {seed}: {times}");
        }
    }
}
