//! The named constants of the scheduler, and the two knobs of a best-effort thread: weight and latency class.

use core::fmt;
use core::num::NonZeroU16;

/// The weight at which virtual time runs as fast as real time.
pub const REFERENCE_WEIGHT: u16 = 64;
/// The weight of a thread unless another one is set.
pub const DEFAULT_WEIGHT: u16 = REFERENCE_WEIGHT;
/// The smallest weight that is accepted.
pub const MIN_WEIGHT: u16 = 1;
/// The largest weight that is accepted.
pub const MAX_WEIGHT: u16 = 1024;

/// The default slice, by measurement (`docs/fairness.md`): a thread with a third of a CPU is never further from its share in any
/// window of 100 ms than two thirds of a slice, 2 points (F-17).
pub const SLICE_NS: u64 = 3_000_000;
/// An interactive thread asks for a slice this many times shorter.
pub const INTERACTIVE_SLICE_DIVISOR: u64 = 2;
/// A batch thread asks for a slice this many times longer.
pub const BATCH_SLICE_MULTIPLIER: u64 = 4;
/// The longest slice of any class; it bounds how long one best-effort thread can keep another waiting.
pub const MAX_SLICE_NS: u64 = SLICE_NS * BATCH_SLICE_MULTIPLIER;

/// A woken thread preempts a running one that has run for this part of its slice and would come after it if it were queued now; it preempts at once
/// if it would have come first already when the running thread was picked.
pub const WAKE_GAP_DIVISOR: i64 = 32;

/// How many loads placement compares for a thread that has never run, beginning with the CPU where it was created.
pub const PLACE_SCAN_CPUS: usize = 64;
/// How many other CPUs one balance step looks at; with more, steps take turns.
pub const BALANCE_SCAN_CPUS: usize = 16;
/// How often a CPU compares its virtual clock with its neighbours' (see `balance`).
pub const BALANCE_PERIOD_NS: u64 = 2 * SLICE_NS;
/// How far (in virtual ns) two clocks must be apart before a thread is moved to mend it.
pub const BALANCE_GAP_NS: i64 = SLICE_NS as i64 / 2;
/// How far clocks may be apart before the rest is forgiven: an imbalance that could not be corrected (masks, pinned work) must not be paid back
/// later, all at once.
pub const MAX_SKEW_NS: i64 = 4 * SLICE_NS as i64;

/// The smallest budget of a context: below it, the cost of enforcing a budget would be most of the budget.
pub const MIN_BUDGET_NS: u64 = 20_000;
/// The longest period of a context: one minute keeps all ledger arithmetic far from overflow.
pub const MAX_PERIOD_NS: u64 = 60_000_000_000;
/// The most refills that a context may keep; more pieces than this are merged, later, never earlier.
pub const MAX_REFILLS: usize = 8;
/// The fewest refills: with one, using a part of the budget would delay the rest of it.
pub const MIN_REFILLS: usize = 2;
/// How many periods an overrun can cost: a CPU that stood still for minutes must not stop its threads for days.
pub const MAX_DEBT_PERIODS: u64 = 1024;
/// Criticality bands: 0 (lowest) to this.
pub const MAX_CRITICALITY: u8 = 7;
/// The most contexts that one CPU admits; it bounds every loop over contexts.
pub const MAX_CONTEXTS_PER_CPU: usize = 128;
/// The most promises that one CPU keeps: to its contexts, and to contexts that have gone and whose used time has not come back. A context that goes
/// keeps its place until then, so there is always one for it, and no two promises have to be merged.
pub const MAX_PROMISES_PER_CPU: usize = MAX_CONTEXTS_PER_CPU + 32;
/// How often one admission may look at all contexts of a CPU before it gives up.
pub const MAX_EVALUATIONS: u32 = 512;
/// How many contexts one admission looks at before it pauses (K-26): some 10,000 instructions.
pub const LOOKS_PER_PIECE: u32 = 512;
/// The share of every CPU, in parts per million, that admission leaves to best-effort threads.
pub const BEST_EFFORT_RESERVE_PPM: u64 = 50_000;

/// Interrupts that serve other threads may take one part in this many of the time of a thread that runs on a promise.
pub const SERVICE_DIVISOR: u64 = 200;
/// How much of that may come at once: a few dozen timers.
pub const SERVICE_BURST_NS: u64 = 50_000;

/// The weight of a best-effort thread: always within `MIN_WEIGHT..=MAX_WEIGHT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

/// A weight that was refused; weights are never clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightError {
    /// What was asked for.
    pub found: u16,
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {} is outside {MIN_WEIGHT}..={MAX_WEIGHT}", self.found)
    }
}

impl core::error::Error for WeightError {}

impl Weight {
    /// The weight of a thread unless another one is set.
    pub const DEFAULT: Weight = Weight(NonZeroU16::new(DEFAULT_WEIGHT).unwrap());

    /// Accepts a weight, or names the one that was out of range.
    pub const fn new(weight: u16) -> Result<Weight, WeightError> {
        match NonZeroU16::new(weight) {
            Some(valid) if weight >= MIN_WEIGHT && weight <= MAX_WEIGHT => Ok(Weight(valid)),
            _ => Err(WeightError { found: weight }),
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// Real time of a thread of this weight, as virtual time (rounded down).
    pub const fn to_virtual(self, real_ns: u64) -> i64 {
        (real_ns * REFERENCE_WEIGHT as u64 / self.get() as u64) as i64
    }

    /// Virtual time of a thread of this weight, as real time (rounded up).
    pub const fn to_real(self, virtual_ns: i64) -> u64 {
        if virtual_ns <= 0 {
            return 0;
        }
        (virtual_ns as u64 * self.get() as u64).div_ceil(REFERENCE_WEIGHT as u64)
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// How soon a thread wants to run once it can; it changes the length of its slices, never its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LatencyClass {
    /// Short slices: an early place in the queue.
    Interactive,
    /// The default.
    #[default]
    Normal,
    /// Long slices: a late place in the queue, few switches.
    Batch,
    /// A server on an endpoint; ordered as `Normal`, told apart for policy.
    IpcServer,
}

impl LatencyClass {
    /// Every class, in ABI order.
    pub const ALL: [LatencyClass; 4] =
        [LatencyClass::Interactive, LatencyClass::Normal, LatencyClass::Batch, LatencyClass::IpcServer];

    /// The slice that a thread of this class asks for.
    pub const fn slice_ns(self) -> u64 {
        match self {
            LatencyClass::Interactive => SLICE_NS / INTERACTIVE_SLICE_DIVISOR,
            LatencyClass::Normal | LatencyClass::IpcServer => SLICE_NS,
            LatencyClass::Batch => SLICE_NS * BATCH_SLICE_MULTIPLIER,
        }
    }

    /// Rank for comparing policy priority: Interactive > IpcServer = Normal > Batch.
    pub const fn urgency(self) -> u8 {
        match self {
            LatencyClass::Interactive => 2,
            LatencyClass::Normal | LatencyClass::IpcServer => 1,
            LatencyClass::Batch => 0,
        }
    }

    /// The name used in scenarios, counters and traces.
    pub const fn name(self) -> &'static str {
        match self {
            LatencyClass::Interactive => "interactive",
            LatencyClass::Normal => "normal",
            LatencyClass::Batch => "batch",
            LatencyClass::IpcServer => "ipcserver",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-05: 0 and everything outside the range is refused, nothing is clamped.
    #[test]
    fn f_05_weights_are_refused_not_clamped() {
        for bad in [0, MAX_WEIGHT + 1, u16::MAX] {
            assert_eq!(Weight::new(bad), Err(WeightError { found: bad }));
        }
        for good in [MIN_WEIGHT, DEFAULT_WEIGHT, MAX_WEIGHT] {
            assert_eq!(Weight::new(good).unwrap().get(), good);
        }
    }

    /// F-04: the class scales the slice as the constants say, and IpcServer is Normal.
    #[test]
    fn f_04_class_slices() {
        assert_eq!(LatencyClass::Interactive.slice_ns(), 1_500_000);
        assert_eq!(LatencyClass::Normal.slice_ns(), 3_000_000);
        assert_eq!(LatencyClass::Batch.slice_ns(), 12_000_000);
        assert_eq!(LatencyClass::IpcServer.slice_ns(), LatencyClass::Normal.slice_ns());
    }

    #[test]
    fn virtual_and_real_time_agree() {
        let double = Weight::new(128).unwrap();
        assert_eq!(double.to_virtual(SLICE_NS), 1_500_000);
        assert_eq!(double.to_real(1_500_000), SLICE_NS);
        assert_eq!(Weight::new(1).unwrap().to_virtual(SLICE_NS), 192_000_000);
        assert_eq!(double.to_real(-1), 0);
    }
}
