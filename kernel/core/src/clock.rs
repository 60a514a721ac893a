//! Time from the time-stamp counter (K-03): calibration, the step that keeps it in line with a reference, and CPUs that differ.
//!
//! A [`Clock`] is a straight line from counter to nanoseconds. [`Clock::discipline`] bends it at each tick and never breaks it: the
//! new line starts where the old one ends, and runs a little faster or slower until it meets the reference.
//!
//! A CPU that publishes a new line to others must read the counter *after* it made readers wait (the odd phase of a sequence lock); then no reader
//! used the old line at a later count, and time goes forward on every CPU.

use core::fmt;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Largest correction of the clock's speed, in parts per million. Counters and crystals are good to some 100.
pub const SLEW_PPM_MAX: u64 = 500;
/// A difference from the reference is corrected within this time, unless it is so large that the speed limit makes it take longer.
pub const SLEW_HORIZON_NS: u64 = 100_000_000;
/// The most for clocks that tick so rarely that they would overshoot: for them it is twice the time since the last tick, up to this.
pub const SLEW_HORIZON_NS_MAX: u64 = 10_000_000_000;
/// Samples of a calibration may differ by this much, in parts per million.
pub const CALIBRATION_SPREAD_PPM_MAX: u64 = 10_000;
/// Slowest counter that is believed.
pub const HZ_MIN: u64 = 1_000_000;
/// Fastest counter that is believed.
pub const HZ_MAX: u64 = 100_000_000_000;

const NS_PER_S: u64 = 1_000_000_000;
/// Binary places of a factor: a counter of 3 GHz is exact to 3 in 10^12.
const SHIFT: u32 = 40;
/// The speed limit as a fraction.
const SLEW_PART: u64 = 1_000_000 / SLEW_PPM_MAX;

/// Factors between counter and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Nanoseconds per count, times 2^40.
    mult: u64,
    /// Counts per nanosecond, times 2^40; rounded up, so that a deadline is never early.
    inverse: u64,
}

impl Scale {
    /// The factors of a counter with frequency `hz`; `None` if that is not in [`HZ_MIN`]..=[`HZ_MAX`].
    pub const fn from_hz(hz: u64) -> Option<Scale> {
        if hz < HZ_MIN || hz > HZ_MAX {
            return None;
        }
        let mult = (((NS_PER_S as u128) << SHIFT) / hz as u128) as u64;
        Some(Scale { mult, inverse: ((1u128 << (2 * SHIFT)).div_ceil(mult as u128)) as u64 })
    }

    /// Nanoseconds of `ticks` counts, rounded down.
    #[inline]
    pub const fn ns(self, ticks: u64) -> u64 {
        scaled(ticks, self.mult)
    }

    /// Counts of `ns` nanoseconds, rounded up: `self.ns(self.ticks(ns)) >= ns`, unless that is past the end of the counter.
    #[inline]
    pub const fn ticks(self, ns: u64) -> u64 {
        let ticks = ((ns as u128 * self.inverse as u128) >> SHIFT) + 1;
        if ticks > u64::MAX as u128 { u64::MAX } else { ticks as u64 }
    }

    /// The scale of a clock that runs faster by `part / whole` of the speed limit.
    fn slewed(self, part: i64, whole: i64) -> Scale {
        let step = |factor: u64| (factor / SLEW_PART) as i64 * part / whole;
        Scale {
            mult: self.mult.wrapping_add_signed(step(self.mult)),
            // 1 / (1 + f) is less than 1 - f + 2^-21 for all f up to the limit; so a deadline is late by 0.5 ppm at most.
            inverse: self.inverse.wrapping_add_signed(-step(self.inverse)) + (self.inverse >> 21) + 1,
        }
    }
}

/// The part of a [`Clock`] that is needed to read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The count at the last tick.
    pub base_tsc: u64,
    /// The time then.
    pub base_ns: u64,
    /// Nanoseconds per count, times 2^40.
    pub mult: u64,
}

impl Line {
    /// As [`Clock::now`].
    #[inline]
    pub const fn now(&self, tsc: u64) -> u64 {
        match tsc.checked_sub(self.base_tsc) {
            Some(ticks) => match self.base_ns.checked_add(scaled(ticks, self.mult)) {
                Some(now) => now,
                None => rarely(u64::MAX),
            },
            None => rarely(self.base_ns),
        }
    }
}

/// Keeps the code of a rare case out of the usual path.
#[cold]
#[inline(never)]
const fn rarely(value: u64) -> u64 {
    value
}

#[inline]
const fn scaled(ticks: u64, mult: u64) -> u64 {
    let product = ticks as u128 * mult as u128;
    // One comparison of the upper half, where comparing the quotient would be two.
    if (product >> 64) as u64 >= 1 << SHIFT { u64::MAX } else { (product >> SHIFT) as u64 }
}

/// The line from counter to nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    base_tsc: u64,
    base_ns: u64,
    scale: Scale,
    /// As calibrated, without correction.
    nominal: Scale,
}

impl Clock {
    /// A clock that shows `base_ns` when the counter is `base_tsc`.
    pub const fn new(base_tsc: u64, base_ns: u64, scale: Scale) -> Clock {
        Clock { base_tsc, base_ns, scale, nominal: scale }
    }

    /// The time at count `tsc`. Counts before the last tick read as that tick.
    #[inline]
    pub const fn now(&self, tsc: u64) -> u64 {
        self.line().now(tsc)
    }

    /// What [`Clock::now`] computes with, for callers that publish it as words.
    #[inline]
    pub const fn line(&self) -> Line {
        Line { base_tsc: self.base_tsc, base_ns: self.base_ns, mult: self.scale.mult }
    }

    /// The count at which it is `ns`: never too early, unless a later tick makes the clock slower.
    #[inline]
    pub const fn tsc_at(&self, ns: u64) -> u64 {
        if ns <= self.base_ns {
            return self.base_tsc;
        }
        self.base_tsc.saturating_add(self.scale.ticks(ns - self.base_ns))
    }

    /// The clock after a tick at count `tsc`, when the reference says `reference_ns`.
    ///
    /// The new clock starts at what this one shows, so it is never behind it, and its speed differs from the calibrated one by [`SLEW_PPM_MAX`] at
    /// most.
    #[must_use = "the clock that is given stays as it is"]
    pub fn discipline(&self, tsc: u64, reference_ns: u64) -> Clock {
        let now = self.now(tsc);
        let horizon = (now - self.base_ns).saturating_mul(2).clamp(SLEW_HORIZON_NS, SLEW_HORIZON_NS_MAX);
        // What the speed limit allows within the horizon; bounded, so that the products of `slewed` fit.
        let limit = (horizon / SLEW_PART) as i64;
        let ahead = i64::try_from(now.abs_diff(reference_ns)).unwrap_or(i64::MAX).min(limit);
        let error = if reference_ns < now { -ahead } else { ahead };
        Clock { base_tsc: tsc, base_ns: now, scale: self.nominal.slewed(error, limit), nominal: self.nominal }
    }

    /// The time of the last tick.
    pub const fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// The factors as calibrated.
    pub const fn nominal(&self) -> Scale {
        self.nominal
    }
}

/// Why a calibration is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalibrationError {
    /// There is no sample.
    NoSamples,
    /// A sample has no counts or no time: the counter or the reference stands still.
    Zero {
        /// Which sample.
        sample: usize,
    },
    /// A sample says a frequency that no counter has.
    OutOfRange {
        /// The frequency.
        hz: u64,
    },
    /// Samples contradict each other.
    Spread {
        /// The lowest frequency.
        hz_min: u64,
        /// The highest frequency.
        hz_max: u64,
    },
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CalibrationError::NoSamples => f.write_str("no sample"),
            CalibrationError::Zero { sample } => {
                write!(f, "sample {sample}: counter or reference stands still")
            }
            CalibrationError::OutOfRange { hz } => write!(f, "{hz} Hz is not in {HZ_MIN}..={HZ_MAX}"),
            CalibrationError::Spread { hz_min, hz_max } => {
                write!(
                    f,
                    "samples from {hz_min} to {hz_max} Hz: more than {CALIBRATION_SPREAD_PPM_MAX} ppm apart"
                )
            }
        }
    }
}

impl core::error::Error for CalibrationError {}

/// Two intervals agree if their speeds differ by no more than this part.
const AGREE: u128 = 200;

/// Which intervals of (counts, nanoseconds by the reference) are believed: the slowest `N` that agree with each other, if there are so many.
///
/// A host that pauses the virtual machine makes some of them wrong. A pause longer than a full turn of the reference counter makes the interval look
/// shorter than it was, and the counter faster: so of several groups the slowest is right. A pause between two readings makes one interval look slow
/// and the next one fast: so an interval that stands alone says nothing, however slow it is.
pub fn believed<const N: usize>(intervals: &[(u64, u64)]) -> Option<[usize; N]> {
    let times = |a: u64, b: u64| u128::from(a) * u128::from(b);
    let is_slower = |(a, b): ((u64, u64), (u64, u64))| times(a.0, b.1) < times(b.0, a.1);
    let mut best: Option<[usize; N]> = None;
    for (at, &slowest) in intervals.iter().enumerate() {
        let mut group = [at; N];
        let mut count = 1;
        for (other, &interval) in intervals.iter().enumerate() {
            let (this, least) = (times(interval.0, slowest.1), times(slowest.0, interval.1));
            if other != at && count < N && (least..=least + least / AGREE).contains(&this) {
                group[count] = other;
                count += 1;
            }
        }
        if count == N && best.is_none_or(|best| is_slower((slowest, intervals[best[0]]))) {
            best = Some(group);
        }
    }
    best
}

/// The counter's frequency from pairs of (counts, nanoseconds by the reference).
pub fn calibrate(samples: &[(u64, u64)]) -> Result<u64, CalibrationError> {
    let (mut hz_min, mut hz_max) = (u64::MAX, 0);
    let (mut counts, mut time_ns) = (0u128, 0u128);
    for (sample, &(tsc_delta, ref_ns)) in samples.iter().enumerate() {
        if tsc_delta == 0 || ref_ns == 0 {
            return Err(CalibrationError::Zero { sample });
        }
        let hz = u128::from(tsc_delta) * u128::from(NS_PER_S) / u128::from(ref_ns);
        let hz = u64::try_from(hz).unwrap_or(u64::MAX);
        if !(HZ_MIN..=HZ_MAX).contains(&hz) {
            return Err(CalibrationError::OutOfRange { hz });
        }
        hz_min = hz_min.min(hz);
        hz_max = hz_max.max(hz);
        counts += u128::from(tsc_delta);
        time_ns += u128::from(ref_ns);
    }
    if time_ns == 0 {
        return Err(CalibrationError::NoSamples);
    }
    if (hz_max - hz_min) as u128 * 1_000_000 > u128::from(hz_min) * u128::from(CALIBRATION_SPREAD_PPM_MAX) {
        return Err(CalibrationError::Spread { hz_min, hz_max });
    }
    // Within the range of the samples; the product is below 2^128 because each sample is below 2^64 counts and a slice is not so long.
    Ok((counts.saturating_mul(u128::from(NS_PER_S)) / time_ns) as u64)
}

/// One exchange with the boot CPU: this CPU's counter before the question, the boot CPU's answer, this CPU's counter after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// This CPU's counter before.
    pub before: u64,
    /// The boot CPU's counter in between.
    pub boot: u64,
    /// This CPU's counter after.
    pub after: u64,
}

/// How one CPU's counter relates to the boot CPU's, as found when it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuClock {
    /// To be added to this CPU's counter; 0 if no exchange contradicts that they are the same.
    offset_ticks: i64,
}

impl CpuClock {
    /// Of the boot CPU, and of every CPU whose counter is in step with it.
    pub const IN_STEP: CpuClock = CpuClock { offset_ticks: 0 };

    /// From exchanges at bring-up: in step if every answer lies within its exchange, because then no message between the CPUs has been
    /// seen to go back in time. Otherwise the offset is that of the shortest exchange. Without exchanges: in step.
    pub fn estimate(exchanges: &[Exchange]) -> CpuClock {
        let agrees = |one: &Exchange| one.before <= one.boot && one.boot <= one.after;
        if exchanges.iter().all(agrees) {
            return CpuClock::IN_STEP;
        }
        let round = |one: &&Exchange| one.after.wrapping_sub(one.before);
        let best = exchanges.iter().min_by_key(round);
        let offset_ticks = best.map_or(0, |one| {
            let middle = one.before.wrapping_add(one.after.wrapping_sub(one.before) / 2);
            one.boot.wrapping_sub(middle) as i64
        });
        CpuClock { offset_ticks }
    }

    /// Whether this CPU reads the same counts as the boot CPU. If not, [`HighWater::engage`] before it reads the time.
    pub const fn is_in_step(self) -> bool {
        self.offset_ticks == 0
    }

    /// What the boot CPU's counter shows when this one shows `tsc`.
    #[inline]
    pub const fn boot_tsc(self, tsc: u64) -> u64 {
        tsc.wrapping_add_signed(self.offset_ticks)
    }

    /// The time at this CPU's count `tsc`; never less than any CPU was told before, by the same `high`.
    #[inline]
    pub fn now(self, clock: &Clock, tsc: u64, high: &HighWater) -> u64 {
        high.raise(clock.now(self.boot_tsc(tsc)))
    }
}

/// The latest time that any CPU was told. It costs a shared cache line, so it is used only if some CPU is out of step; then all CPUs use it.
#[derive(Debug, Default)]
pub struct HighWater {
    engaged: AtomicBool,
    mark_ns: AtomicU64,
}

impl HighWater {
    /// Not engaged.
    pub const fn new() -> HighWater {
        HighWater { engaged: AtomicBool::new(false), mark_ns: AtomicU64::new(0) }
    }

    /// From now on no CPU is told a time before the mark. To be called for a CPU that is out of step, before it reads the time for the first time;
    /// `now_ns` is the boot CPU's time, to which the mark is raised.
    pub fn engage(&self, now_ns: u64) {
        self.mark_ns.fetch_max(now_ns, Ordering::AcqRel);
        self.engaged.store(true, Ordering::Release);
    }

    /// Whether CPUs use the mark.
    pub fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Acquire)
    }

    #[inline]
    fn raise(&self, ns: u64) -> u64 {
        if !self.engaged.load(Ordering::Relaxed) {
            return ns;
        }
        self.mark_ns.fetch_max(ns, Ordering::AcqRel).max(ns)
    }
}
