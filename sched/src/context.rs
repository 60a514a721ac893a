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
    /// It stops, and whoever handles its timeout is told.
    Fault,
    /// It goes on at its weight among the best-effort threads until the next refill.
    Demote,
}

/// A request for CPU time (S-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// This much CPU time
    pub budget_ns: u64,
    /// in every period of this length,
    pub period_ns: u64,
    /// to be had within this time of becoming usable,
    pub relative_deadline_ns: u64,
    /// on one of these CPUs.
    pub cpu_mask: CpuMask,
    /// What happens when the budget is spent.
    pub overrun: Overrun,
    /// The band: higher ones run first.
    pub criticality: u8,
    /// Who is told of a timeout, in the caller's terms.
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

    /// Everything that can be said against a spec without looking at a CPU.
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
    /// More time than there is.
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
    /// What admission will promise of a CPU: all but the share kept for best effort. Every promise is rounded up by less than one part, so as many
    /// parts more do no harm: half and 45 % are 95 %.
    pub const BOUND: Utilisation = Utilisation(
        ((1u64 << 32) * (1_000_000 - BEST_EFFORT_RESERVE_PPM)).div_ceil(1_000_000)
            + MAX_PROMISES_PER_CPU as u64,
    );

    /// `time` in every `window`.
    pub fn of(time_ns: u64, window_ns: u64) -> Utilisation {
        debug_assert!(window_ns > 0);
        // Less than four seconds, as budgets mostly are: a division in one step.
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
    /// Somebody would be late, or there is not so much time.
    Refused(Witness),
    /// The CPU has promised something else since it was looked at.
    Stale,
    /// The CPU holds [`MAX_CONTEXTS_PER_CPU`] already.
    TooMany,
    /// It runs on this CPU, as a guest or at home, and must be there, or come from there.
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

/// The identity of a context; generations do not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    /// Which one.
    pub id: u64,
    /// In which life.
    pub generation: u64,
}

/// A context that nobody has promised yet: made, or left over, outside all locks.
#[derive(Debug)]
pub struct Proposal(Box<Context>);

impl Proposal {
    /// Asks for CPU time. The spec is judged by the CPU that it is brought to.
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

    /// The next in a line of contexts that follow each other: it begins with what the last one of its line and kind, which has gone, has left of
    /// its budget. 0: of no line.
    #[must_use]
    pub fn of_template(mut self, template: u64) -> Proposal {
        self.0.template = template;
        self
    }

    /// Which line it is of.
    pub fn template(&self) -> u64 {
        self.0.template
    }

    /// What is asked for.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// From `now` on, less what the one before it has used until some time.
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

/// CPU time that was admitted on one CPU. Whoever holds the value holds the time; there is no second.
#[derive(Debug)]
#[must_use = "dropping it leaves its share of the CPU reserved; give it to `Cpu::retire`"]
pub struct Context {
    identity: ContextId,
    spec: Spec,
    /// Where it runs.
    home: CpuId,
    /// Where it was admitted: elsewhere while it is hosted.
    origin: CpuId,
    pub(crate) ledger: Ledger,
    consumed_ns: u64,
    depletions: u64,
    late: u64,
    /// The refill that was counted as late last, by its time.
    late_refill_ns: u64,
    /// Used beyond what was available, since it last had something.
    overdrawn_ns: u64,
    overrun_max_ns: u64,
    /// Contexts of one template follow each other: see [`Proposal::of_template`].
    template: u64,
    /// When it was charged last.
    pub(crate) used_at_ns: u64,
    /// What was consumed when its present specification was promised,
    before_ns: u64,
    /// and what the one before it had used.
    inherited_ns: u64,
}

/// What may be told about a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// Which one.
    pub identity: ContextId,
    /// What was promised.
    pub spec: Spec,
    /// Where it runs.
    pub home: CpuId,
    /// Who promised it.
    pub origin: CpuId,
    /// Usable now.
    pub available_ns: u64,
    /// When the next time becomes (or became) usable.
    pub ready_at_ns: u64,
    /// All that was ever used.
    pub consumed_ns: u64,
    /// How often it ran dry.
    pub depletions: u64,
    /// How many refills were not served within their deadline.
    pub late: u64,
    /// The most that was used at once beyond what was available.
    pub overrun_max_ns: u64,
}

impl Context {
    /// Which one.
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
        // Taken from a refill that had not come yet: the new ones do not know of it.
        let unpaid_ns = if self.ledger.ready_at_ns() > now { self.overdrawn_ns } else { 0 };
        self.ledger.reconfigure(spec.budget_ns, spec.period_ns, usize::from(spec.max_refills), now);
        if unpaid_ns > 0 {
            self.ledger.charge(unpaid_ns);
        }
        self.spec = spec;
        (self.before_ns, self.inherited_ns) = (self.consumed_ns, 0);
    }

    /// Which line it is of.
    pub fn template(&self) -> u64 {
        self.template
    }

    /// What it has used of its present specification and does not have back by `now`, and when it has.
    pub(crate) fn booked(&self, now: u64) -> (u64, u64) {
        let (booked_ns, until_ns) = self.ledger.booked(now);
        (booked_ns.min(self.consumed_ns - self.before_ns + self.inherited_ns), until_ns)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Everything that may be told, at `now`.
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

    /// Charges the time up to `now`. With another refill at the head comes another deadline, and so another tag.
    #[inline(never)] // keeps the path of threads without contexts short
    pub(crate) fn charge(&mut self, used_ns: u64, now: u64, tag: &mut i64, noted: &mut Noted) {
        self.consumed_ns += used_ns;
        self.used_at_ns = now;
        if now > self.due_ns() || !self.ledger.charge_head(used_ns, now) {
            *noted = noted.and(self.charge_through(used_ns, now));
            *tag = self.urgency_tag();
        }
    }

    /// A charge that ends a refill, or comes after its deadline; answers what came of it.
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

    /// Interrupts have used this much on its thread's behalf. It is not a time in which the thread ran: no deadline is met or missed by it.
    pub(crate) fn pay(&mut self, owed_ns: u64, now: u64) -> Noted {
        self.consumed_ns += owed_ns;
        let had_budget = self.ledger.ready_at_ns() <= now;
        self.ledger.charge(owed_ns);
        let depleted = had_budget && self.ledger.ready_at_ns() > now;
        self.depletions += u64::from(depleted);
        Noted::DEPLETED.only_if(depleted)
    }

    /// Its refill is late, though its thread waits for the CPU. Says whether that is new.
    pub(crate) fn miss(&mut self) -> bool {
        let is_new = !self.is_missed();
        self.late = self.late.saturating_add(u64::from(is_new));
        self.late_refill_ns = self.ledger.ready_at_ns();
        is_new
    }

    /// Whether that is known.
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

    /// The same, if what it has counted from `now` on.
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
