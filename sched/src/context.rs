//! Scheduling contexts: the right to CPU time, as a value that can be moved but not copied.

use alloc::boxed::Box;
use core::fmt;

use crate::ledger::{Ledger, Refill};
use crate::miss::BAND_SHIFT;
use crate::{
    BEST_EFFORT_RESERVE_PPM, FOREVER, MAX_CONTEXTS_PER_CPU, MAX_CRITICALITY, MAX_PERIOD_NS,
    MAX_PROMISES_PER_CPU, MAX_REFILLS, MIN_BUDGET_NS, MIN_REFILLS,
};
use crate::{CpuId, CpuMask, Noted, Witness};

/// What happens to a thread whose budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Overrun {
    /// It waits for the next refill.
    #[default]
    Throttle,
    /// It stops, and the handler of its timeouts is told.
    Fault,
    /// It goes on at its weight among the best-effort threads until the next refill.
    Demote,
}

/// A request for CPU time (S-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// CPU time in every period.
    pub budget_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// How soon after becoming usable the budget must have been available.
    pub relative_deadline_ns: u64,
    /// The CPUs that may admit it.
    pub cpu_mask: CpuMask,
    /// What happens when the budget is spent.
    pub overrun: Overrun,
    /// The band: higher ones run first.
    pub criticality: u8,
    /// The endpoint that is told of a timeout, as a number that only the caller interprets.
    pub timeout_endpoint: Option<u64>,
    /// How many pieces the budget may be split into.
    pub max_refills: u8,
}

impl Spec {
    /// `budget_ns` in every `period_ns`, on any CPU, throttled when spent.
    pub const fn new(budget_ns: u64, period_ns: u64) -> Spec {
        Spec {
            budget_ns,
            period_ns,
            relative_deadline_ns: period_ns,
            cpu_mask: CpuMask::ALL,
            overrun: Overrun::Throttle,
            criticality: 0,
            timeout_endpoint: None,
            max_refills: MAX_REFILLS as u8,
        }
    }

    /// Checks everything about a spec that does not depend on a CPU.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.budget_ns < MIN_BUDGET_NS {
            return Err(SpecError::BudgetTooSmall { found_ns: self.budget_ns });
        }
        if self.period_ns > MAX_PERIOD_NS {
            return Err(SpecError::PeriodTooLong { found_ns: self.period_ns });
        }
        if self.budget_ns > self.period_ns {
            return Err(SpecError::BudgetAbovePeriod {
                budget_ns: self.budget_ns,
                period_ns: self.period_ns,
            });
        }
        if self.relative_deadline_ns < self.budget_ns || self.relative_deadline_ns > self.period_ns {
            return Err(SpecError::DeadlineOutOfRange { found_ns: self.relative_deadline_ns });
        }
        if self.cpu_mask.is_empty() {
            return Err(SpecError::NoCpu);
        }
        if self.criticality > MAX_CRITICALITY {
            return Err(SpecError::CriticalityTooHigh { found: self.criticality });
        }
        if !(MIN_REFILLS..=MAX_REFILLS).contains(&usize::from(self.max_refills)) {
            return Err(SpecError::RefillsOutOfRange { found: self.max_refills });
        }
        Ok(())
    }

    /// The share of a CPU that this needs.
    pub fn utilisation(&self) -> Utilisation {
        Utilisation::of(self.budget_ns, self.period_ns)
    }
}

/// A spec that was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// The budget is below [`MIN_BUDGET_NS`]; zero included.
    BudgetTooSmall {
        /// What was asked for.
        found_ns: u64,
    },
    /// The period is above [`MAX_PERIOD_NS`].
    PeriodTooLong {
        /// What was asked for.
        found_ns: u64,
    },
    /// The budget is longer than the period.
    BudgetAbovePeriod {
        /// The budget.
        budget_ns: u64,
        /// The period.
        period_ns: u64,
    },
    /// The relative deadline is shorter than the budget or longer than the period.
    DeadlineOutOfRange {
        /// What was asked for.
        found_ns: u64,
    },
    /// The CPU mask is empty.
    NoCpu,
    /// Above [`MAX_CRITICALITY`].
    CriticalityTooHigh {
        /// What was asked for.
        found: u8,
    },
    /// Fewer than [`MIN_REFILLS`] or more than [`MAX_REFILLS`].
    RefillsOutOfRange {
        /// What was asked for.
        found: u8,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::BudgetTooSmall { found_ns } => {
                write!(f, "budget {found_ns} ns is below the minimum of {MIN_BUDGET_NS} ns")
            }
            SpecError::PeriodTooLong { found_ns } => {
                write!(f, "period {found_ns} ns is above the maximum of {MAX_PERIOD_NS} ns")
            }
            SpecError::BudgetAbovePeriod { budget_ns, period_ns } => {
                write!(f, "budget {budget_ns} ns exceeds the period of {period_ns} ns")
            }
            SpecError::DeadlineOutOfRange { found_ns } => {
                write!(f, "relative deadline {found_ns} ns is not between the budget and the period")
            }
            SpecError::NoCpu => write!(f, "the CPU mask is empty"),
            SpecError::CriticalityTooHigh { found } => {
                write!(f, "criticality {found} is above {MAX_CRITICALITY}")
            }
            SpecError::RefillsOutOfRange { found } => {
                write!(f, "{found} refills asked for; {MIN_REFILLS} to {MAX_REFILLS} are possible")
            }
        }
    }
}

impl core::error::Error for SpecError {}

/// A share of one CPU, in parts of 2^32, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Utilisation(u64);

impl Utilisation {
    /// A whole CPU.
    pub const ONE: Utilisation = Utilisation(1 << 32);
    /// The most that admission promises of a CPU: all but the share kept for best effort. Every promise is rounded up by less than one part, so
    /// the bound is raised by one part for each: otherwise 50 % and 45 % would be more than 95 %.
    pub const BOUND: Utilisation = Utilisation(
        ((1u64 << 32) * (1_000_000 - BEST_EFFORT_RESERVE_PPM)).div_ceil(1_000_000)
            + MAX_PROMISES_PER_CPU as u64,
    );

    /// `time` in every `window`.
    pub fn of(time_ns: u64, window_ns: u64) -> Utilisation {
        debug_assert!(window_ns > 0);
        // Most budgets are below four seconds (2^32 ns): a 64-bit division will do.
        if time_ns >> 32 == 0 {
            return Utilisation((time_ns << 32).div_ceil(window_ns));
        }
        Utilisation((u128::from(time_ns) << 32).div_ceil(u128::from(window_ns)) as u64)
    }

    /// In parts per million, for people.
    pub fn ppm(self) -> u64 {
        ((u128::from(self.0) * 1_000_000) >> 32) as u64
    }

    pub(crate) fn plus(self, other: Utilisation) -> Utilisation {
        Utilisation(self.0 + other.0)
    }

    pub(crate) fn minus(self, other: Utilisation) -> Utilisation {
        Utilisation(self.0 - other.0)
    }
}

/// Why a CPU did not take a context on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// The spec itself is wrong.
    Invalid(SpecError),
    /// The mask does not name this CPU.
    WrongCpu(CpuId),
    /// The admission test failed; the witness says why.
    Refused(Witness),
    /// The CPU has promised something else since the survey was taken.
    Stale,
    /// The CPU holds [`MAX_CONTEXTS_PER_CPU`] already.
    TooMany,
    /// The context is not where the operation needs it, but on this CPU, at home or as a guest. (A survey that lacks the context names its own
    /// CPU.)
    Elsewhere(CpuId),
}

impl fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmissionError::Invalid(error) => error.fmt(f),
            AdmissionError::WrongCpu(cpu) => write!(f, "the context's CPU mask does not name {cpu}"),
            AdmissionError::Refused(witness) => witness.fmt(f),
            AdmissionError::Stale => write!(f, "the CPU has promised something else meanwhile"),
            AdmissionError::Elsewhere(cpu) => write!(f, "the context is at {cpu} now"),
            AdmissionError::TooMany => write!(f, "the CPU holds {MAX_CONTEXTS_PER_CPU} contexts already"),
        }
    }
}

impl core::error::Error for AdmissionError {}

/// The identity of a context. Generations do not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    /// Its number.
    pub id: u64,
    /// Tells apart the contexts that have had this number one after the other.
    pub generation: u64,
}

/// A context that no CPU has promised yet: newly created, or retired. It is created and dropped outside all locks.
#[derive(Debug)]
pub struct Proposal(Box<Context>);

impl Proposal {
    /// Requests CPU time. The CPU to which this is proposed judges the spec.
    pub fn new(identity: ContextId, spec: Spec) -> Proposal {
        let home = CpuId::new(0).expect("there is a first CPU");
        let ledger = Ledger::new(spec.budget_ns, spec.period_ns, usize::from(spec.max_refills), 0);
        Proposal(Box::new(Context {
            identity,
            spec,
            home,
            origin: home,
            ledger,
            consumed_ns: 0,
            depletions: 0,
            late: 0,
            late_refill_ns: FOREVER,
            overdrawn_ns: 0,
            overrun_max_ns: 0,
            template: 0,
            used_at_ns: 0,
            before_ns: 0,
            inherited_ns: 0,
        }))
    }

    /// Makes this context a successor of those of one template (0: of none): it begins with what the last one with the same template and the same
    /// demand, which has gone, has left of its budget.
    #[must_use]
    pub fn of_template(mut self, template: u64) -> Proposal {
        self.0.template = template;
        self
    }

    /// The template that it was created from; 0 if there is none.
    pub fn template(&self) -> u64 {
        self.0.template
    }

    /// The CPU time that is asked for.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// The context, with a full budget from `now` on, less what its predecessor has used: that amount, and the time from which it is usable again.
    pub(crate) fn admitted(mut self, home: CpuId, used: Option<(u64, u64)>, now: u64) -> Box<Context> {
        let spec = &self.0.spec;
        self.0.ledger = Ledger::new(spec.budget_ns, spec.period_ns, usize::from(spec.max_refills), now);
        self.0.used_at_ns = 0;
        (self.0.before_ns, self.0.inherited_ns) = (self.0.consumed_ns, 0);
        if let Some((used_ns, until_ns)) = used {
            self.0.ledger.inherit(used_ns, until_ns);
            self.0.inherited_ns = used_ns;
        }
        self.0.late_refill_ns = FOREVER;
        (self.0.home, self.0.origin) = (home, home);
        self.0
    }

    pub(crate) fn from_retired(context: Box<Context>) -> Proposal {
        Proposal(context)
    }
}

/// A refusal, with the proposal to try elsewhere.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: AdmissionError,
    /// What was refused.
    pub proposal: Proposal,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl core::error::Error for Refused {}

/// CPU time that was admitted on one CPU. The holder of the value holds the time; the value cannot be copied.
#[derive(Debug)]
#[must_use = "dropping it leaves its share of the CPU reserved; give it to `Cpu::retire`"]
pub struct Context {
    identity: ContextId,
    spec: Spec,
    /// The CPU that it runs on.
    home: CpuId,
    /// The CPU that admitted it; not `home` while it is hosted.
    origin: CpuId,
    pub(crate) ledger: Ledger,
    consumed_ns: u64,
    depletions: u64,
    late: u64,
    /// The time of the refill that was counted as late last.
    late_refill_ns: u64,
    /// What was used beyond the available budget since it last had some.
    overdrawn_ns: u64,
    overrun_max_ns: u64,
    /// The template that it was created from: see [`Proposal::of_template`].
    template: u64,
    /// When it was charged last.
    pub(crate) used_at_ns: u64,
    /// `consumed_ns` when its present specification was promised.
    before_ns: u64,
    /// What its predecessor had used then: see [`Proposal::of_template`].
    inherited_ns: u64,
}

/// What may be reported about a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// Its number and generation.
    pub identity: ContextId,
    /// What was promised.
    pub spec: Spec,
    /// Where it runs.
    pub home: CpuId,
    /// The CPU that promised it.
    pub origin: CpuId,
    /// Budget that is usable now.
    pub available_ns: u64,
    /// When the first refill becomes (or became) usable.
    pub ready_at_ns: u64,
    /// All time that was ever charged to it.
    pub consumed_ns: u64,
    /// How often the budget was used up.
    pub depletions: u64,
    /// How many refills were not served within their deadline.
    pub late: u64,
    /// The most that was used at once beyond what was available.
    pub overrun_max_ns: u64,
}

impl Context {
    /// Its number and generation.
    pub fn identity(&self) -> ContextId {
        self.identity
    }

    /// What was promised.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The CPU that it runs on: the one that promised it, or the one that hosts it.
    #[inline]
    pub fn home(&self) -> CpuId {
        self.home
    }

    /// The CPU that promised it.
    pub fn origin(&self) -> CpuId {
        self.origin
    }

    /// Whether it runs elsewhere than it was promised.
    pub fn is_hosted(&self) -> bool {
        self.home != self.origin
    }

    pub(crate) fn move_to(&mut self, home: CpuId) {
        self.home = home;
    }

    /// Another spec, from now on; what was used stays used.
    pub(crate) fn reconfigure(&mut self, spec: Spec, now: u64) {
        // The overrun was taken from refills that had not come yet. The new ones do not know of it, so it is charged to them again.
        let unpaid_ns = if self.ledger.ready_at_ns() > now { self.overdrawn_ns } else { 0 };
        self.ledger.reconfigure(spec.budget_ns, spec.period_ns, usize::from(spec.max_refills), now);
        if unpaid_ns > 0 {
            self.ledger.charge(unpaid_ns);
        }
        self.spec = spec;
        (self.before_ns, self.inherited_ns) = (self.consumed_ns, 0);
    }

    /// The template that it was created from; 0 if there is none.
    pub fn template(&self) -> u64 {
        self.template
    }

    /// What it has used of its present specification and does not have back by `now`, and when the last of that comes back.
    pub(crate) fn booked(&self, now: u64) -> (u64, u64) {
        let (booked_ns, until_ns) = self.ledger.booked(now);
        (booked_ns.min(self.consumed_ns - self.before_ns + self.inherited_ns), until_ns)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What may be reported about it, at `now`.
    pub fn info(&self, now: u64) -> ContextInfo {
        ContextInfo {
            identity: self.identity,
            spec: self.spec,
            home: self.home,
            origin: self.origin,
            available_ns: self.ledger.available_ns(now),
            ready_at_ns: self.ledger.ready_at_ns(),
            consumed_ns: self.consumed_ns,
            depletions: self.depletions,
            late: self.late,
            overrun_max_ns: self.overrun_max_ns,
        }
    }

    /// Charges `used_ns` of running time up to `now`. When another refill becomes the first one, the deadline changes, and so does the tag.
    #[inline(never)] // keeps the path of threads without contexts short
    pub(crate) fn charge(&mut self, used_ns: u64, now: u64, tag: &mut i64, noted: &mut Noted) {
        self.consumed_ns += used_ns;
        self.used_at_ns = now;
        if now > self.due_ns() || !self.ledger.charge_head(used_ns, now) {
            *noted = noted.and(self.charge_through(used_ns, now));
            *tag = self.urgency_tag();
        }
    }

    /// A charge that uses up a refill, or comes after its deadline; returns what observers are to be told.
    fn charge_through(&mut self, used_ns: u64, now: u64) -> Noted {
        let Refill { time_ns, amount_ns } = self.ledger.refills()[0];
        let had_budget = time_ns <= now - used_ns;
        let served_ns = now - used_ns.saturating_sub(amount_ns);
        let late = had_budget && served_ns > self.due_ns() && self.late_refill_ns != time_ns;
        if late {
            self.late = self.late.saturating_add(1);
            self.late_refill_ns = time_ns;
        }
        if had_budget {
            self.overdrawn_ns = 0;
        }
        self.overdrawn_ns += used_ns.saturating_sub(self.ledger.available_ns(now));
        self.overrun_max_ns = self.overrun_max_ns.max(self.overdrawn_ns);
        self.ledger.charge(used_ns);
        let depleted = had_budget && self.ledger.ready_at_ns() > now;
        self.depletions += u64::from(depleted);
        Noted::DEPLETED.only_if(depleted).and(Noted::LATE.only_if(late))
    }

    /// Charges interrupt time that served its thread. The thread did not run in that time, so no deadline is met or missed by it.
    pub(crate) fn pay(&mut self, owed_ns: u64, now: u64) -> Noted {
        self.consumed_ns += owed_ns;
        let had_budget = self.ledger.ready_at_ns() <= now;
        self.ledger.charge(owed_ns);
        let depleted = had_budget && self.ledger.ready_at_ns() > now;
        self.depletions += u64::from(depleted);
        Noted::DEPLETED.only_if(depleted)
    }

    /// Counts the first refill as late, because its thread still waits for the CPU. Returns whether it was not counted before.
    pub(crate) fn miss(&mut self) -> bool {
        let is_new = !self.is_missed();
        self.late = self.late.saturating_add(u64::from(is_new));
        self.late_refill_ns = self.ledger.ready_at_ns();
        is_new
    }

    /// Whether the first refill is already counted as late.
    pub(crate) fn is_missed(&self) -> bool {
        self.late_refill_ns == self.ledger.ready_at_ns()
    }

    /// The deadline that was missed last.
    pub(crate) fn missed_ns(&self) -> u64 {
        self.late_refill_ns.saturating_add(self.spec.relative_deadline_ns)
    }

    /// When the first refill must have been served.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.ledger.ready_at_ns() + self.spec.relative_deadline_ns
    }

    /// The tag in the guaranteed queue: higher bands first, then the earlier deadline.
    pub(crate) fn urgency_tag(&self) -> i64 {
        self.tag_of(self.due_ns())
    }

    /// The tag that it would have if its budget became usable at `now`.
    #[inline]
    pub(crate) fn tag_from(&self, now: u64) -> i64 {
        self.tag_of(now + self.spec.relative_deadline_ns)
    }

    #[inline]
    fn tag_of(&self, deadline_ns: u64) -> i64 {
        debug_assert!(deadline_ns < 1 << BAND_SHIFT);
        (i64::from(MAX_CRITICALITY - self.spec.criticality) << BAND_SHIFT) | deadline_ns as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-01: each malformed field has its own name.
    #[test]
    fn s_01_specs_are_refused_by_name() {
        let good = Spec::new(1_000_000, 10_000_000);
        assert_eq!(good.validate(), Ok(()));
        let bad = |change: fn(&mut Spec)| {
            let mut spec = good;
            change(&mut spec);
            spec.validate().unwrap_err()
        };
        assert_eq!(bad(|s| s.budget_ns = 0), SpecError::BudgetTooSmall { found_ns: 0 });
        assert_eq!(
            bad(|s| s.budget_ns = MIN_BUDGET_NS - 1),
            SpecError::BudgetTooSmall { found_ns: MIN_BUDGET_NS - 1 }
        );
        assert_eq!(
            bad(|s| s.budget_ns = 10_000_001),
            SpecError::BudgetAbovePeriod { budget_ns: 10_000_001, period_ns: 10_000_000 }
        );
        assert_eq!(
            bad(|s| s.period_ns = MAX_PERIOD_NS + 1),
            SpecError::PeriodTooLong { found_ns: MAX_PERIOD_NS + 1 }
        );
        assert_eq!(
            bad(|s| s.period_ns = 0),
            SpecError::BudgetAbovePeriod { budget_ns: 1_000_000, period_ns: 0 }
        );
        assert_eq!(bad(|s| s.relative_deadline_ns = 0), SpecError::DeadlineOutOfRange { found_ns: 0 });
        assert_eq!(
            bad(|s| s.relative_deadline_ns = 10_000_001),
            SpecError::DeadlineOutOfRange { found_ns: 10_000_001 }
        );
        assert_eq!(bad(|s| s.cpu_mask = CpuMask::EMPTY), SpecError::NoCpu);
        assert_eq!(bad(|s| s.criticality = 8), SpecError::CriticalityTooHigh { found: 8 });
        assert_eq!(bad(|s| s.max_refills = 1), SpecError::RefillsOutOfRange { found: 1 });
        assert_eq!(bad(|s| s.max_refills = 9), SpecError::RefillsOutOfRange { found: 9 });
    }

    #[test]
    fn utilisation_rounds_up() {
        assert_eq!(Utilisation::of(10, 10), Utilisation::ONE);
        assert!(Utilisation::of(1, 3).plus(Utilisation::of(2, 3)) > Utilisation::ONE);
        assert_eq!(Utilisation::BOUND.ppm(), 950_000);
        assert!(Utilisation::of(1, 2).plus(Utilisation::of(45, 100)) <= Utilisation::BOUND);
        assert!(Utilisation::of(950_001, 1_000_000) > Utilisation::BOUND);
    }
}
