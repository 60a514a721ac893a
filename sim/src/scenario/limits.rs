//! Every bound and default of the scenario language, in one place.
//!
//! These bound what a *file* may say. The scheduling core checks its own
//! parameters again (a minimal budget, the admission bound), so a scenario that
//! passes here may still be refused there, never the other way round.

/// The smallest weight a thread may have.
pub const WEIGHT_MIN: u16 = 1;
/// The largest weight a thread may have.
pub const WEIGHT_MAX: u16 = 1024;
/// The weight of a thread that names none.
pub const WEIGHT_DEFAULT: u16 = 64;

/// The most CPUs a scenario may have.
pub const CPUS_MAX: u32 = 256;
/// The most threads started at boot, and the most that one `fork` may start.
pub const THREADS_MAX: u32 = 1 << 20;
/// The deepest nesting of `loop`: an interpreter needs a counter for each level.
pub const LOOP_DEPTH_MAX: usize = 8;
/// The most steps that a program's loops may take in a row without passing
/// time. It keeps a simulator from being stuck at one instant.
pub const INSTANT_STEPS_MAX: u64 = 1 << 20;

/// The longest name of a thread or a barrier, in bytes.
pub const NAME_LEN_MAX: usize = 48;
/// The longest duration or instant: far from overflow when times are added.
pub const TIME_NS_MAX: u64 = 1_000_000 * 1_000_000_000;

/// The refill slots of a context that names none.
pub const REFILLS_DEFAULT: u8 = REFILLS_MAX;
/// The fewest refill slots: what the core takes.
pub const REFILLS_MIN: u8 = sched::MIN_REFILLS as u8;
/// The most.
pub const REFILLS_MAX: u8 = sched::MAX_REFILLS as u8;
/// The seed of a scenario that names none.
pub const SEED_DEFAULT: u64 = 1;

/// One whole (100%, or a ratio of 1) in the parts per million of expectations.
pub const WHOLE_PPM: u64 = 1_000_000;
/// The largest ratio that `expect ratio` takes.
pub const RATIO_MAX: u64 = 1_000_000;
