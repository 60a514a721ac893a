//! The admission test: exact processor demand for each CPU and band (S-14).
//!
//! Every piece of a context's budget comes back at least a period after it became usable ([`crate::Ledger`]), so a context is a sporadic task
//! `(C, T, D)` with `D <= T`. Bands are fixed priorities; within a band the earliest deadline runs first. A set of contexts is admitted if it keeps
//!
//! * **A1** `sum of C/T <= 95 %` over all bands;
//! * **A2** for every band and every deadline `t` in it: the least `w` with `w = B(t) + h(t) + sum over higher bands of ceil(w/T) * C` has `w <= t`,
//!   where `h(t)` is the budget that becomes usable and is due within any interval of length `t`, and `B(t)` is how long less urgent work may keep
//!   the CPU.
//!
//! Since `h(t) <= sum of C/T * (t + T - D)` and `ceil(w/T) <= w/T + 1`, no `t` above `(B + sum of C/T * (T - D) + sum over higher of C) / (1 - U)`
//! can fail. From there QPA (Zhang and Burns, 2009) searches downwards: `w` never falls as `t` grows, so if `w(t) < t` nothing between the two can
//! fail, and the search goes on at `w(t)`.

use core::fmt;

use crate::context::{Spec, Utilisation};
use crate::{CpuId, LOOKS_PER_PIECE, MAX_EVALUATIONS};

/// What a context may demand of its CPU, as the test sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Demand {
    /// The context's number.
    pub id: u64,
    /// CPU time in every period.
    pub budget_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// How soon after becoming usable the budget is due.
    pub deadline_ns: u64,
    /// The longest section: how long it may hold something that a more urgent context waits for. A context without sections never waits for those of
    /// others.
    pub section_ns: u64,
    /// The band.
    pub band: u8,
    /// Whether its context has gone and what that used has not come back.
    pub leaving: bool,
}

impl Demand {
    /// The budget that becomes usable and is due within an interval of `t_ns`.
    #[inline]
    fn within(&self, t_ns: u64) -> u64 {
        if t_ns < self.deadline_ns {
            return 0;
        }
        ((t_ns - self.deadline_ns) / self.period_ns + 1) * self.budget_ns
    }

    /// The most that it can take of an interval of `t_ns` if it goes first.
    #[inline]
    fn before(&self, t_ns: u64) -> u64 {
        t_ns.div_ceil(self.period_ns) * self.budget_ns
    }

    pub(crate) fn utilisation(&self) -> Utilisation {
        if self.budget_ns == 0 {
            return Utilisation::default();
        }
        Utilisation::of(self.budget_ns, self.period_ns)
    }

    /// What it may take of a CPU, in parts of 2^32, rounded down.
    #[inline]
    fn share(&self) -> u64 {
        // Four seconds (2^32 ns) and more would overflow when shifted.
        if self.budget_ns >> 32 == 0 {
            return (self.budget_ns << 32) / self.period_ns;
        }
        ((u128::from(self.budget_ns) << 32) / u128::from(self.period_ns)) as u64
    }

    /// Whether a CPU that can serve `other` can serve this demand in its place.
    pub(crate) fn is_within(&self, other: &Demand) -> bool {
        self.band == other.band
            && self.budget_ns <= other.budget_ns
            && self.period_ns >= other.period_ns
            && self.deadline_ns >= other.deadline_ns
            && self.section_ns <= other.section_ns
    }
}

/// What the machine takes for itself, which admission must count (`realtime-policy-facts`, 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overheads {
    /// The longest interrupts-off span: K.
    pub blocked_ns: u64,
    /// A dispatch and a switch: one to begin and one to end each piece of a budget.
    pub switch_ns: u64,
    /// The cost of a timer interrupt, counted twice a job.
    pub timer_ns: u64,
    /// How far a budget may be overdrawn.
    pub overshoot_ns: u64,
    /// The delay from when budget becomes usable until the kernel notices.
    pub latency_ns: u64,
    /// The share that interrupts may take, in parts per million.
    pub interrupt_ppm: u64,
    /// Admission tests only the utilisation, not the deadlines: for proofs of how missed deadlines are reported.
    pub is_overload_taken: bool,
}

impl Overheads {
    /// A machine that takes nothing.
    pub const NONE: Overheads = Overheads {
        blocked_ns: 0,
        switch_ns: 0,
        timer_ns: 0,
        overshoot_ns: 0,
        latency_ns: 0,
        interrupt_ppm: 0,
        is_overload_taken: false,
    };

    /// The kernel's overheads: bounds that its proofs assert (an interrupts-off span, an overrun), and what `make bench-kernel` counts, with some
    /// margin.
    pub const KERNEL: Overheads = Overheads {
        blocked_ns: 50_000,
        switch_ns: 300,
        timer_ns: 1_000,
        overshoot_ns: 5_000,
        latency_ns: 0,
        interrupt_ppm: 0,
        is_overload_taken: false,
    };

    /// What `spec` demands of a machine that takes this much.
    pub fn demand(&self, id: u64, spec: &Spec) -> Demand {
        let pieces = u64::from(spec.max_refills).max(1);
        let switched_ns = spec.budget_ns + 2 * self.switch_ns * pieces;
        let free_ppm = 1_000_000 - self.interrupt_ppm;
        let stretched_ns = (u128::from(switched_ns) * 1_000_000).div_ceil(u128::from(free_ppm)) as u64;
        Demand {
            id,
            budget_ns: stretched_ns + 2 * self.timer_ns + self.overshoot_ns,
            period_ns: spec.period_ns.saturating_sub(self.latency_ns).max(1),
            deadline_ns: spec.relative_deadline_ns.saturating_sub(self.latency_ns).max(1),
            section_ns: 0,
            band: spec.criticality,
            leaving: false,
        }
    }
}

/// Why a CPU does not promise what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// All promises together pass the bound of a CPU (A1).
    Utilisation,
    /// A context in the newcomer's band would be late (A2).
    Demand,
    /// A context in a lower band would be late (A2).
    LowerBandLate,
    /// None of several CPUs admits it.
    NoHome,
    /// The test would take too long.
    AnalysisLimit,
    /// There will be room when the time that other contexts used before they left has come back.
    BusyLeaving,
}

impl Reason {
    /// Every one, in ABI order.
    pub const ALL: [Reason; 6] = [
        Reason::Utilisation,
        Reason::Demand,
        Reason::LowerBandLate,
        Reason::NoHome,
        Reason::AnalysisLimit,
        Reason::BusyLeaving,
    ];

    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Utilisation => "utilisation",
            Reason::Demand => "demand",
            Reason::LowerBandLate => "lowerBandLate",
            Reason::NoHome => "noHome",
            Reason::AnalysisLimit => "analysisLimit",
            Reason::BusyLeaving => "busyLeaving",
        }
    }
}

/// The evidence that a promise could not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Why it was refused.
    pub reason: Reason,
    /// The CPU that refused.
    pub cpu: CpuId,
    /// The band in which a context would be late.
    pub band: u8,
    /// The length of the interval that shows it.
    pub t_ns: u64,
    /// What is due within that interval.
    pub demand_ns: u64,
    /// What the CPU can supply within that interval.
    pub supply_ns: u64,
    /// The context that contributes most.
    pub largest: u64,
    /// What is left of the CPU, in parts per million.
    pub free_ppm: u64,
    /// When the leaving promises that are in the way will have left (`BusyLeaving` only).
    pub until_ns: u64,
}

impl Witness {
    /// The witness of a test that was not finished.
    pub const fn unfinished(cpu: CpuId) -> Witness {
        let reason = Reason::AnalysisLimit;
        let (t_ns, demand_ns, supply_ns) = (0, 0, 0);
        Witness { reason, cpu, band: 0, t_ns, demand_ns, supply_ns, largest: 0, free_ppm: 0, until_ns: 0 }
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Witness { reason, cpu, band, t_ns, demand_ns, supply_ns, largest, free_ppm, .. } = self;
        write!(
            f,
            "{}: {demand_ns} ns of {supply_ns} ns due within {t_ns} ns in band {band} of {cpu}, most of it for context {largest}; {free_ppm} ppm are free",
            reason.name()
        )
    }
}

/// What a test may still do: a limited number of evaluations, with a pause after so many looks at contexts.
pub(crate) struct Effort<'a> {
    evaluations: u32,
    looks: u32,
    /// Called between two pieces of the test; `false` makes it give up.
    pause: &'a mut dyn FnMut() -> bool,
}

impl<'a> Effort<'a> {
    /// The limit of one test, for which `copied` contexts were looked at already.
    pub(crate) fn new(pause: &'a mut dyn FnMut() -> bool, copied: usize) -> Effort<'a> {
        Effort { evaluations: MAX_EVALUATIONS, looks: copied as u32, pause }
    }

    /// Restores the limit, for another test of the same set or a part of it.
    pub(crate) fn again(&mut self) {
        self.evaluations = MAX_EVALUATIONS;
    }

    /// Evaluations since the limit was last set.
    pub(crate) fn evaluations(&self) -> u32 {
        MAX_EVALUATIONS - self.evaluations
    }

    /// Counts looks at so many contexts, which belong to one piece; pauses first where a new piece begins. `None` if the test shall give up.
    #[inline]
    fn look(&mut self, contexts: usize) -> Option<()> {
        self.looks += contexts as u32;
        if self.looks > LOOKS_PER_PIECE {
            self.looks = contexts as u32;
            return (self.pause)().then_some(());
        }
        Some(())
    }

    /// Counts one evaluation, which looks at so many contexts. `None` if the limit is reached or the test shall give up.
    #[inline]
    fn evaluate(&mut self, contexts: usize) -> Option<()> {
        self.evaluations = self.evaluations.checked_sub(1)?;
        self.look(contexts)
    }
}

/// Where the test stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// In `band`, the work that is due within `t_ns` may take `demand_ns`.
    At { band: u8, t_ns: u64, demand_ns: u64 },
    /// Too many evaluations.
    Limit { band: u8, t_ns: u64 },
}

/// Tests A2 for `from_band` and the bands below it. `demands` are sorted by band, highest first, and A1 holds.
pub(crate) fn anybody_late(
    demands: &[Demand],
    from_band: u8,
    blocked_ns: u64,
    effort: &mut Effort<'_>,
) -> Result<(), Late> {
    let mut rest = 0;
    while rest < demands.len() {
        let band = demands[rest].band;
        let count = demands[rest..].iter().take_while(|demand| demand.band == band).count();
        if band <= from_band && !(rest == 0 && is_loose(&demands[..count], demands, blocked_ns)) {
            // `Level::new` looks at all demands a few times.
            effort.look(4 * demands.len()).ok_or(Late::Limit { band, t_ns: 0 })?;
            let level = Level::new(demands, rest..rest + count, blocked_ns);
            level.check(effort)?;
        }
        rest += count;
    }
    Ok(())
}

/// Whether the highest band cannot fail, by one look at each of `own`: with `D <= T`, no interval `t` has more than `t * C/D` due, and blocking takes
/// no more than `t * B/D` of it, for the shortest deadline `D`. A band that is not that loose is tested exactly.
fn is_loose(own: &[Demand], all: &[Demand], blocked_ns: u64) -> bool {
    let mut soonest_ns = u64::MAX;
    let mut sum = Utilisation::default();
    for demand in own {
        if demand.section_ns > 0 {
            return false;
        }
        let window_ns = demand.deadline_ns.min(demand.period_ns);
        soonest_ns = soonest_ns.min(window_ns);
        sum = sum.plus(Utilisation::of(demand.budget_ns, window_ns));
    }
    let others_have_sections = all[own.len()..].iter().any(|demand| demand.section_ns > 0);
    sum <= Utilisation::ONE
        && sum.plus(Utilisation::of(blocked_ns, soonest_ns)) <= Utilisation::ONE
        && !others_have_sections
}

/// One band to be tested, with the bands that go first and those that come after it.
struct Level<'a> {
    band: u8,
    higher: &'a [Demand],
    own: &'a [Demand],
    lower: &'a [Demand],
    blocked_ns: u64,
    /// The longest section of any demand.
    section_ns: u64,
    /// One minus the share of the higher bands, in parts of 2^32; never less than the exact value.
    left: u64,
    /// No interval longer than this can fail.
    limit_ns: u64,
}

const ONE: u64 = 1 << 32;

impl<'a> Level<'a> {
    fn new(demands: &'a [Demand], own: core::ops::Range<usize>, blocked_ns: u64) -> Level<'a> {
        let (higher, rest) = demands.split_at(own.start);
        let (own, lower) = rest.split_at(own.len());
        let section_ns = demands.iter().map(|demand| demand.section_ns).max().unwrap_or(0);
        let share = Demand::share;
        // `shares` is rounded down and `total` up: each errs on its safe side.
        let shares: u64 = higher.iter().map(share).sum();
        let total: u64 =
            shares + higher.len() as u64 + own.iter().map(|demand| share(demand) + 1).sum::<u64>();
        let tails: u64 = own
            .iter()
            .map(|demand| {
                let early_ns = demand.period_ns.saturating_sub(demand.deadline_ns);
                if early_ns == 0 {
                    0
                } else {
                    (((share(demand) + 1) as u128 * early_ns as u128) >> 32) as u64 + 1
                }
            })
            .sum();
        let firsts: u64 = higher.iter().map(|demand| demand.budget_ns).sum();
        let extra = blocked_ns + section_ns + tails + firsts;
        let free = ONE.saturating_sub(total).max(1);
        let limit_ns = if extra >> 32 == 0 {
            (extra << 32) / free
        } else {
            ((u128::from(extra) << 32) / u128::from(free)).min(u128::from(u64::MAX >> 2)) as u64
        } + 1;
        let band = own.first().map_or(0, |demand| demand.band);
        Level {
            band,
            higher,
            own,
            lower,
            blocked_ns,
            section_ns,
            left: ONE.saturating_sub(shares).max(1),
            limit_ns,
        }
    }

    fn check(&self, effort: &mut Effort<'_>) -> Result<(), Late> {
        let Some(soonest_ns) = self.own.iter().map(|demand| demand.deadline_ns).min() else { return Ok(()) };
        let mut t_ns = self.deadline_below(self.limit_ns + 1);
        while t_ns >= soonest_ns {
            let late = |demand_ns| Late::At { band: self.band, t_ns, demand_ns };
            let limit = Late::Limit { band: self.band, t_ns };
            let due_ns = self.own.iter().map(|demand| demand.within(t_ns)).sum::<u64>() + self.blocked_ns;
            let section_ns = self.section_at(t_ns);
            let done_ns = self.done_by(due_ns + section_ns, t_ns, effort).ok_or(limit)?;
            if done_ns > t_ns {
                return Err(late(done_ns));
            }
            // Sections may be longer at an earlier deadline: the jump counts the longest.
            let jump_ns = if section_ns == self.section_ns {
                done_ns
            } else {
                self.done_by(due_ns + self.section_ns, t_ns, effort).ok_or(limit)?
            };
            t_ns = if jump_ns < t_ns { jump_ns } else { self.deadline_below(t_ns) };
        }
        Ok(())
    }

    /// When work of `due_ns` is done if the higher bands go first; more than `t_ns` if it is not done by then. `None`: too many evaluations.
    fn done_by(&self, due_ns: u64, t_ns: u64, effort: &mut Effort<'_>) -> Option<u64> {
        effort.evaluate(self.own.len() + self.higher.len())?;
        if self.higher.is_empty() || due_ns > t_ns {
            return Some(due_ns);
        }
        let mut done_ns = if due_ns >> 32 == 0 {
            (due_ns << 32) / self.left
        } else {
            ((u128::from(due_ns) << 32) / u128::from(self.left)) as u64
        };
        loop {
            let next_ns = due_ns + self.higher.iter().map(|demand| demand.before(done_ns)).sum::<u64>();
            if next_ns <= done_ns || next_ns > t_ns {
                return Some(next_ns);
            }
            done_ns = next_ns;
            effort.evaluate(self.higher.len())?;
        }
    }

    /// The last deadline before `t_ns`, if all contexts begin at 0 together; 0 if there is none.
    fn deadline_below(&self, t_ns: u64) -> u64 {
        let last = |demand: &Demand| {
            let after_ns = t_ns.checked_sub(demand.deadline_ns + 1)?;
            Some(demand.deadline_ns + after_ns / demand.period_ns * demand.period_ns)
        };
        self.own.iter().filter_map(last).max().unwrap_or(0)
    }

    /// The longest section of a less urgent context that a context due by `t_ns` may have to wait for.
    fn section_at(&self, t_ns: u64) -> u64 {
        if self.section_ns == 0 {
            return 0;
        }
        let calls = |demand: &&Demand| demand.section_ns > 0;
        let due = self
            .own
            .iter()
            .filter(|demand| demand.deadline_ns <= t_ns)
            .chain(self.higher)
            .any(|it| calls(&it));
        let later = self.own.iter().filter(|demand| demand.deadline_ns > t_ns).chain(self.lower);
        if due { later.map(|demand| demand.section_ns).max().unwrap_or(0) } else { 0 }
    }
}

/// Judges a whole set of which nothing is admitted yet, for test vectors and plans. Returns how many evaluations it took.
pub fn judge_all(demands: &mut [Demand], blocked_ns: u64, cpu: CpuId) -> Result<u32, Witness> {
    demands.sort_unstable_by_key(|demand| core::cmp::Reverse(demand.band));
    let band = demands.first().map_or(0, |demand| demand.band);
    let asked = Demand { band, ..Demand::default() };
    let mut never = || true;
    let mut effort = Effort::new(&mut never, 0);
    judge(demands, &asked, blocked_ns, cpu, &mut effort).map(|()| effort.evaluations())
}

/// Tests A1, and A2 from the newcomer's band downwards, for a sorted set that contains the newcomer; it cannot affect the bands above.
pub(crate) fn judge(
    demands: &[Demand],
    newcomer: &Demand,
    blocked_ns: u64,
    cpu: CpuId,
    effort: &mut Effort<'_>,
) -> Result<(), Witness> {
    // One look each for the sum, and one for the highest band. A pause that says no is heeded at a later look only.
    let _ = effort.look(2 * demands.len());
    let total = demands.iter().fold(Utilisation::default(), |sum, demand| sum.plus(demand.utilisation()));
    let late = if total > Utilisation::BOUND {
        None
    } else {
        match anybody_late(demands, newcomer.band, blocked_ns, effort) {
            Ok(()) => return Ok(()),
            Err(late) => Some(late),
        }
    };
    // For the largest contributor, all are looked at again.
    let _ = effort.look(2 * demands.len());
    Err(refusal(demands, newcomer, total, late, cpu))
}

/// The witness of a refusal: by the total utilisation if `late` is `None`, otherwise by where the test stopped.
#[cold]
fn refusal(
    demands: &[Demand],
    newcomer: &Demand,
    total: Utilisation,
    late: Option<Late>,
    cpu: CpuId,
) -> Witness {
    let largest =
        |by: &dyn Fn(&Demand) -> u64| demands.iter().max_by_key(|demand| by(demand)).map_or(0, |it| it.id);
    let others = total.minus(newcomer.utilisation());
    let free_ppm = if others > Utilisation::BOUND { 0 } else { Utilisation::BOUND.minus(others).ppm() };
    let band = newcomer.band;
    let mut witness = Witness {
        reason: Reason::Utilisation,
        cpu,
        band,
        t_ns: 1_000_000,
        demand_ns: total.ppm(),
        supply_ns: Utilisation::BOUND.ppm(),
        largest: 0,
        free_ppm,
        until_ns: 0,
    };
    let Some(late) = late else {
        witness.largest = largest(&|demand| demand.utilisation().ppm());
        return witness;
    };
    match late {
        Late::At { band: late_band, t_ns, demand_ns } => {
            witness.reason = if late_band < band { Reason::LowerBandLate } else { Reason::Demand };
            (witness.band, witness.t_ns, witness.demand_ns, witness.supply_ns) =
                (late_band, t_ns, demand_ns, t_ns);
        }
        Late::Limit { band: late_band, t_ns } => {
            witness.reason = Reason::AnalysisLimit;
            (witness.band, witness.t_ns, witness.demand_ns, witness.supply_ns) = (late_band, t_ns, 0, t_ns);
        }
    }
    let (late_band, t_ns) = (witness.band, witness.t_ns);
    witness.largest = largest(&|demand| match demand.band {
        its if its > late_band => demand.before(t_ns),
        its if its == late_band => demand.within(t_ns),
        _ => 0,
    });
    witness
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-14: a test that takes too long is refused by name, and says where it was.
    #[test]
    fn s_14_the_limit_is_a_refusal() {
        let demand = |id, budget_ns, band| Demand {
            id,
            budget_ns,
            period_ns: 100,
            deadline_ns: 40,
            band,
            ..Demand::default()
        };
        let set = [demand(1, 20, 1), demand(2, 20, 0)];
        let cpu = CpuId::new(0).unwrap();
        let mut never = || true;
        let mut effort = Effort::new(&mut never, 0);
        assert_eq!(judge(&set, &set[0], 0, cpu, &mut effort), Ok(()));
        assert!(effort.evaluations() > 0);
        effort.evaluations = 0;
        let witness = judge(&set, &set[0], 0, cpu, &mut effort).unwrap_err();
        assert_eq!((witness.reason, witness.supply_ns), (Reason::AnalysisLimit, witness.t_ns));
    }
}
