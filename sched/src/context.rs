//! Scheduling contexts: the right to CPU time, as a value that can be moved but not copied.

use alloc::boxed::Box;
use core::fmt;

use crate::ledger::{Ledger, Refill};
use crate::{
    BEST_EFFORT_RESERVE_PPM, FOREVER, MAX_CONTEXTS_PER_CPU, MAX_CRITICALITY, MAX_PERIOD_NS, MAX_REFILLS,
    MIN_BUDGET_NS, MIN_REFILLS,
};
use crate::{CpuId, CpuMask, Noted};

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

    /// The share of a CPU that this needs in its worst window.
    pub fn utilisation(&self) -> Utilisation {
        Utilisation::of(self.budget_ns, self.relative_deadline_ns.min(self.period_ns))
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
    /// What admission will promise of a CPU: all but the share kept for best effort.
    pub const BOUND: Utilisation =
        Utilisation(((1u64 << 32) * (1_000_000 - BEST_EFFORT_RESERVE_PPM)) / 1_000_000);

    /// `time` in every `window`.
    pub fn of(time_ns: u64, window_ns: u64) -> Utilisation {
        debug_assert!(window_ns > 0);
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
    /// The promises to others leave too little.
    Overcommitted {
        /// Asked for, in parts per million of the CPU.
        asked_ppm: u64,
        /// Still to be had, in parts per million.
        free_ppm: u64,
    },
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
            AdmissionError::Overcommitted { asked_ppm, free_ppm } => {
                write!(f, "asked for {asked_ppm} ppm of the CPU; {free_ppm} ppm are free")
            }
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
        }))
    }

    /// What is asked for.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    pub(crate) fn admitted(mut self, home: CpuId, now: u64) -> Box<Context> {
        let spec = &self.0.spec;
        self.0.ledger = Ledger::new(spec.budget_ns, spec.period_ns, usize::from(spec.max_refills), now);
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

    /// When the first refill must have been served.
    #[inline]
    fn due_ns(&self) -> u64 {
        self.ledger.ready_at_ns() + self.spec.relative_deadline_ns
    }

    /// The tag in the guaranteed queue: higher bands first, then the earlier deadline.
    pub(crate) fn urgency_tag(&self) -> i64 {
        const BAND_SHIFT: u32 = 60; // 2^60 ns are 36 years of uptime
        let deadline = self.due_ns();
        debug_assert!(deadline < 1 << BAND_SHIFT);
        (i64::from(MAX_CRITICALITY - self.spec.criticality) << BAND_SHIFT) | deadline as i64
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
        assert_eq!(Utilisation::BOUND.ppm(), 949_999);
    }
}
