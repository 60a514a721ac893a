//! `monotonic_ns`: the TSC, calibrated against the PIT at boot and disciplined by it from then on (K-03).
//!
//! The arithmetic is in `kcore::clock`. The clock's parameters change about once a second and are read everywhere, so a sequence counter guards
//! them. A TSC that cannot be calibrated is not used: then ticks are counted, and the clock is as coarse as they are.

use crate::arch::{apic, cpu, pit};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use kcore::clock::{Clock, CpuClock, HighWater, Line, Scale};

/// This many intervals must agree.
const INTERVALS: usize = 3;
/// At most this many are measured until they do.
const INTERVALS_MAX: usize = 40;
/// Counts of the PIT in one interval: about 5 ms.
const INTERVAL_COUNTS: u16 = 6000;
/// How often the clock is compared with the PIT.
const DISCIPLINE_NS: u64 = 1_000_000_000;
/// One round of the PIT's counter.
const PIT_ROUND: u64 = 1 << 16;

struct Shared {
    /// How many changes of the parameters have begun, and how many are done. While the two differ, readers must not use what they read.
    begun: AtomicU32,
    done: AtomicU32,
    /// The clock's `Line`, word by word: the part that nearly every reader needs.
    base_tsc: AtomicU64,
    base_ns: AtomicU64,
    mult: AtomicU64,
    clock: UnsafeCell<Clock>,
}
// SAFETY: only the boot CPU writes, between the two counts; readers try again when the counts differ.
unsafe impl Sync for Shared {}

static CLOCK: Shared = Shared {
    begun: AtomicU32::new(0),
    done: AtomicU32::new(0),
    base_tsc: AtomicU64::new(0),
    base_ns: AtomicU64::new(0),
    // 1 GHz, like the clock below.
    mult: AtomicU64::new(1 << 40),
    clock: UnsafeCell::new(Clock::new(0, 0, Scale::from_hz(1_000_000_000).expect("1 GHz is a frequency"))),
};
/// Engaged if some CPU's TSC is not in step with that of the boot CPU.
static HIGH_WATER: HighWater = HighWater::new();
/// The TSC could not be calibrated: ticks are counted instead.
static BY_TICKS: AtomicBool = AtomicBool::new(false);
static TICKS_NS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds since the clock was calibrated. Never goes back, neither on one CPU nor across CPUs.
#[inline]
pub fn now_ns() -> u64 {
    match usual(cpu::rdtsc) {
        Some(now) => now,
        None => now_otherwise(),
    }
}

/// As [`now_ns`], for a moment ago, when this CPU's TSC read `tsc`. Where the TSC alone does not tell the time, the time of now is returned.
#[inline]
pub fn ns_at(tsc: u64) -> u64 {
    match usual(|| tsc) {
        Some(now) => now,
        None => now_otherwise(),
    }
}

/// The time, unless the clock is just being changed or is [`UNUSUAL`].
#[inline(always)]
fn usual(tsc: impl FnOnce() -> u64) -> Option<u64> {
    let done = CLOCK.done.load(Ordering::Acquire);
    let line = Line {
        base_tsc: CLOCK.base_tsc.load(Ordering::Relaxed),
        base_ns: CLOCK.base_ns.load(Ordering::Relaxed),
        mult: CLOCK.mult.load(Ordering::Relaxed),
    };
    let tsc = tsc();
    fence(Ordering::Acquire);
    (CLOCK.begun.load(Ordering::Relaxed) == done).then(|| line.now(tsc))
}

/// A bit that [`Shared::begun`] may have and [`Shared::done`] never has: it sends readers to [`BY_TICKS`] or [`HIGH_WATER`].
const UNUSUAL: u32 = 1 << 31;

/// From here on readers ask [`BY_TICKS`] or [`HIGH_WATER`].
fn become_unusual() {
    CLOCK.begun.fetch_or(UNUSUAL, Ordering::Release);
}

#[cold]
#[inline(never)]
fn now_otherwise() -> u64 {
    loop {
        if CLOCK.begun.load(Ordering::Acquire) & UNUSUAL != 0 {
            return unusual();
        }
        if let Some(now) = usual(cpu::rdtsc) {
            return now;
        }
        cpu::pause();
    }
}

fn unusual() -> u64 {
    if BY_TICKS.load(Ordering::Relaxed) {
        return TICKS_NS.load(Ordering::Relaxed);
    }
    loop {
        let done = CLOCK.done.load(Ordering::Acquire);
        // SAFETY: the copy may be torn; it is used only if the counts show that it is not.
        let clock = unsafe { CLOCK.clock.get().read_volatile() };
        let tsc = cpu::rdtsc();
        fence(Ordering::Acquire);
        if CLOCK.begun.load(Ordering::Relaxed) & !UNUSUAL == done {
            return CpuClock::IN_STEP.now(&clock, tsc, &HIGH_WATER);
        }
        cpu::pause();
    }
}

fn publish(make: impl FnOnce(u64, &Clock) -> Clock) {
    let begun = CLOCK.begun.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    // SAFETY: the counts differ, so no reader uses what it reads; only the boot CPU writes.
    unsafe {
        let clock = CLOCK.clock.get();
        *clock = make(cpu::rdtsc(), &*clock);
        let Line { base_tsc, base_ns, mult } = (*clock).line();
        CLOCK.base_tsc.store(base_tsc, Ordering::Relaxed);
        CLOCK.base_ns.store(base_ns, Ordering::Relaxed);
        CLOCK.mult.store(mult, Ordering::Relaxed);
    }
    CLOCK.done.store(begun & !UNUSUAL, Ordering::Release);
}

/// How the clock was made, for the boot log.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// TSC ticks per second; `None` if the TSC is not used.
    pub tsc_hz: Option<u64>,
    /// Counts of the local timer per second, if it counts.
    pub apic_hz: Option<u64>,
}

/// A reading of all clocks at one instant.
struct Sample {
    tsc: u64,
    pit: u16,
    apic: u32,
}

/// Reads all clocks several times, and keeps the reading that took least time: the host may stop this CPU in the middle of one.
fn sample(apic: bool) -> Sample {
    let mut best = (u64::MAX, Sample { tsc: 0, pit: 0, apic: 0 });
    for _ in 0..8 {
        let before = cpu::rdtsc();
        let pit = pit::counter();
        let apic = if apic { apic::timer_current() } else { 0 };
        let width = cpu::rdtsc().wrapping_sub(before);
        if width < best.0 {
            best = (width, Sample { tsc: before.wrapping_add(width / 2), pit, apic });
        }
    }
    best.1
}

/// The next sample, one interval later; `None` if the PIT does not count.
fn sample_after(last: &Sample, apic: bool) -> Option<Sample> {
    for _ in 0..10_000_000u32 {
        if last.pit.wrapping_sub(pit::counter()) >= INTERVAL_COUNTS {
            return Some(sample(apic));
        }
        cpu::pause();
    }
    None
}

fn pit_ns(counts: u64) -> u64 {
    counts * 1_000_000_000 / pit::HZ
}

/// Calibrates the TSC and the local timer against the PIT. `force_pit` pretends that there is no local timer, `fail` that nothing counts.
pub fn calibrate(force_pit: bool, fail: bool) -> Calibration {
    let mut tsc = [(0u64, 0u64); INTERVALS_MAX];
    let mut counts = [(0u64, 0u64); INTERVALS_MAX];
    let (mut measured, mut believed) = (0, None);
    let apic = apic::exists() && !force_pit;
    if apic {
        apic::timer_setup_masked();
    }
    pit::start_counter();
    let mut last = sample(apic);
    while measured < INTERVALS_MAX && believed.is_none() {
        let Some(next) = sample_after(&last, apic).filter(|_| !fail) else { break };
        let ns = pit_ns(last.pit.wrapping_sub(next.pit).into());
        tsc[measured] = (next.tsc.wrapping_sub(last.tsc), ns);
        counts[measured] = (last.apic.wrapping_sub(next.apic).into(), ns);
        measured += 1;
        last = next;
        believed = kcore::clock::believed::<INTERVALS>(&tsc[..measured]);
    }
    if apic {
        apic::timer_stop();
    }
    let calibrated = |samples: &[(u64, u64)], what: &str| {
        let refused = |error| crate::println!("time: {what} does not calibrate: {error}");
        let found = match believed {
            Some(group) => kcore::clock::calibrate(&group.map(|at| samples[at])),
            // No three intervals agree: the error says how far apart they are.
            None => kcore::clock::calibrate(&samples[..measured]),
        };
        found.map_err(refused).ok()
    };
    let tsc_hz = calibrated(&tsc, "the TSC");
    let apic_hz = if apic { calibrated(&counts, "the local timer") } else { None };
    match tsc_hz.and_then(Scale::from_hz) {
        Some(scale) => publish(|tsc, _| Clock::new(tsc, 0, scale)),
        None => {
            BY_TICKS.store(true, Ordering::Relaxed);
            become_unusual();
        }
    }
    Calibration { tsc_hz, apic_hz }
}

/// The name of the clock source, for reports.
pub fn source() -> &'static str {
    if BY_TICKS.load(Ordering::Relaxed) { "ticks" } else { "tsc" }
}

/// A tick of `ns` has passed; used where ticks are the only clock.
pub fn tick(ns: u64) {
    TICKS_NS.fetch_add(ns, Ordering::Relaxed);
}

/// Waits until `done` holds or `ns` have passed by the PIT's counter, which works even if nothing could be calibrated. Says whether `done` holds.
pub fn spin(ns: u64, mut done: impl FnMut() -> bool) -> bool {
    let mut counts = ns * pit::HZ / 1_000_000_000;
    let mut last = pit::counter();
    while counts > 0 {
        if done() {
            return true;
        }
        let now = pit::counter();
        counts = counts.saturating_sub(last.wrapping_sub(now).into());
        last = now;
        cpu::pause();
    }
    done()
}

// ---- discipline -----------------------------------------------------------------------------------------------------------

struct Reference {
    /// Nanoseconds by the PIT, and the value of its counter then.
    ns: u64,
    pit: u16,
    next_ns: u64,
}

static REFERENCE: crate::lock::SpinLock<Option<Reference>> =
    crate::lock::SpinLock::new(crate::lock::Rank::Console, None);

/// Called now and then on the boot CPU: compares the clock with the PIT, and lets it run a little faster or slower until they agree.
#[inline]
pub fn discipline(now: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if now >= NEXT.load(Ordering::Relaxed) && !BY_TICKS.load(Ordering::Relaxed) {
        NEXT.store(now + DISCIPLINE_NS, Ordering::Relaxed);
        step(now);
    }
}

#[cold]
fn step(now: u64) {
    let pit = sample(false).pit;
    let mut reference = REFERENCE.lock();
    let Some(last) = reference.as_mut() else {
        *reference = Some(Reference { ns: now, pit, next_ns: 0 });
        return;
    };
    // The counter wraps every 55 ms. The clock itself says how often it did, as long as it is wrong by less than half a round.
    let phase = u64::from(last.pit.wrapping_sub(pit));
    let estimate = u128::from(now - last.ns) * u128::from(pit::HZ) / 1_000_000_000;
    let rounds = (estimate as u64 + PIT_ROUND / 2).saturating_sub(phase) / PIT_ROUND;
    last.ns += pit_ns(rounds * PIT_ROUND + phase);
    last.pit = pit;
    last.next_ns = now;
    let reference_ns = last.ns;
    drop(reference);
    publish(|tsc, clock| clock.discipline(tsc, reference_ns));
}

/// How far the clock is from the PIT's reading, in ns, at the last comparison.
pub fn reference_error_ns() -> Option<i64> {
    REFERENCE.lock().as_ref().filter(|r| r.next_ns != 0).map(|r| r.next_ns as i64 - r.ns as i64)
}

// ---- other CPUs -----------------------------------------------------------------------------------------------------------

static BOOT_TSC: AtomicU64 = AtomicU64::new(0);

/// The boot CPU is about to start another.
pub fn before_start() {
    BOOT_TSC.store(cpu::rdtsc(), Ordering::Release);
}

/// On a new CPU: its TSC must be ahead of what the boot CPU read before. If it is not, all CPUs use a shared high-water mark from now on.
pub fn check_step() {
    if cpu::rdtsc() < BOOT_TSC.load(Ordering::Acquire) {
        HIGH_WATER.engage(now_ns());
        become_unusual();
    }
}

/// On the boot CPU, after a new CPU has reported its TSC: that must be behind the boot CPU's.
pub fn check_behind(other_tsc: u64) {
    if cpu::rdtsc() < other_tsc {
        HIGH_WATER.engage(now_ns());
        become_unusual();
    }
}

/// Whether all CPUs' counters are in step.
pub fn in_step() -> bool {
    !HIGH_WATER.is_engaged()
}
