//! The clock and the timers: `monotonic_ns` from the TSC, one-shot events by the local APIC or the PIT, and deadlines of threads.
//!
//! A CPU's event is armed for the nearest of its threads' deadlines and the end of the running slice. A CPU with neither has none.

use crate::arch::percpu::{self, PerCpu};
use crate::arch::{apic, cpu, pit};
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, OPS, TIMEOUT, Thread};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use kcore::timerq::{Node, Store};

/// Due timers that one interrupt serves; the rest gets the next, which comes at once.
const BATCH: usize = 64;
/// A clock event further away than this is armed in steps.
const MAX_DELTA_NS: u64 = 1_000_000_000;
/// Nearer than this makes no difference.
const MIN_DELTA_NS: u64 = 1_000;

static TSC_BASE: AtomicU64 = AtomicU64::new(0);
/// ns = ticks * mult >> 32.
static NS_MULT: AtomicU64 = AtomicU64::new(1 << 32);
/// Timer counts = ns * mult >> 32.
static COUNT_MULT: AtomicU64 = AtomicU64::new(0);
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// What makes the clock events.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nothing yet.
    None = 0,
    /// Each CPU's local APIC.
    Apic = 1,
    /// The PIT through the PIC, on the boot CPU, which passes it on.
    Pit = 2,
}

/// What makes the clock events.
pub fn source() -> Source {
    match SOURCE.load(Ordering::Relaxed) {
        1 => Source::Apic,
        2 => Source::Pit,
        _ => Source::None,
    }
}

/// Nanoseconds since the clock was calibrated. Never goes back.
#[inline]
pub fn now_ns() -> u64 {
    let ticks = cpu::rdtsc().wrapping_sub(TSC_BASE.load(Ordering::Relaxed));
    (u128::from(ticks) * u128::from(NS_MULT.load(Ordering::Relaxed)) >> 32) as u64
}

/// How the clock was made, for the boot log.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// TSC ticks a second.
    pub tsc_hz: u64,
    /// Counts of the local timer a second, if it counts.
    pub apic_hz: Option<u64>,
}

/// Calibrates TSC and local timer against the PIT. `force_pit` pretends that the local timer does not count, `fail` that nothing does.
pub fn calibrate(force_pit: bool, fail: bool) -> Calibration {
    let mut tsc = [(0u64, 0u64); INTERVALS];
    let mut counts = [(0u64, 0u64); INTERVALS];
    let apic = apic::exists() && !force_pit;
    if apic {
        apic::timer_setup_masked();
    }
    pit::start_counter();
    let mut last = sample(apic);
    for i in 0..INTERVALS {
        let Some(next) = sample_after(&last, apic).filter(|_| !fail) else { break };
        let ns = u64::from(last.pit - next.pit) * 1_000_000_000 / pit::HZ;
        tsc[i] = (next.tsc.wrapping_sub(last.tsc), ns);
        counts[i] = (u64::from(last.apic.wrapping_sub(next.apic)), ns);
        last = next;
    }
    if apic {
        apic::timer_stop();
    }
    let tsc_hz = kcore::clock::calibrate(&tsc).unwrap_or_else(|error| {
        crate::println!("time: the TSC does not calibrate ({error:?}); taken for 1 GHz");
        1_000_000_000
    });
    let apic_hz = if apic {
        kcore::clock::calibrate(&counts)
            .map_err(|error| crate::println!("time: the local timer does not calibrate ({error:?}); using the PIT"))
            .ok()
    } else {
        None
    };
    NS_MULT.store(((1_000_000_000u128 << 32) / u128::from(tsc_hz)) as u64, Ordering::Relaxed);
    TSC_BASE.store(cpu::rdtsc(), Ordering::Relaxed);
    if let Some(hz) = apic_hz {
        COUNT_MULT.store(((u128::from(hz) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
    }
    SOURCE.store(if apic_hz.is_some() { Source::Apic } else { Source::Pit } as u8, Ordering::Relaxed);
    Calibration { tsc_hz, apic_hz }
}

const INTERVALS: usize = 3;
/// Counts of the PIT in one interval: about 5 ms.
const INTERVAL_COUNTS: u16 = 6000;

/// All clocks at one instant.
struct Sample {
    tsc: u64,
    pit: u16,
    apic: u32,
}

/// Reads all clocks, several times, and keeps the reading that took least: whoever else uses the host may stop us in the middle.
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
        let now = pit::counter();
        if now > last.pit {
            return None;
        }
        if last.pit - now >= INTERVAL_COUNTS {
            return Some(sample(apic)).filter(|next| next.pit < last.pit);
        }
        cpu::pause();
    }
    None
}

/// This CPU's timer is ours from now on.
pub fn start_events() {
    match source() {
        Source::Apic => apic::timer_setup_oneshot(),
        Source::Pit if percpu::this().id == 0 => {
            if apic::exists() {
                apic::accept_pic();
            }
            pit::unmask_pic(0);
            pit::periodic(PIT_TICK_NS);
        }
        _ => {}
    }
}

/// Without local timers everybody is asked this often.
pub const PIT_TICK_NS: u64 = 1_000_000;

/// Arms this CPU's event for `until_ns` or its nearest deadline, unless it is armed for exactly that.
#[inline]
pub fn arm(me: &PerCpu, until_ns: u64) {
    let at = until_ns.min(me.sched.next_deadline.load(Ordering::Relaxed));
    if at != me.armed_ns.get() {
        program(me, at);
    }
}

fn program(me: &PerCpu, at: u64) {
    me.armed_ns.set(at);
    if source() != Source::Apic {
        return;
    }
    if at == u64::MAX {
        return apic::timer_stop();
    }
    let delta = at.saturating_sub(now_ns()).clamp(MIN_DELTA_NS, MAX_DELTA_NS);
    let count = (u128::from(delta) * u128::from(COUNT_MULT.load(Ordering::Relaxed)) >> 32) as u32;
    apic::timer_oneshot(count.max(1));
}

/// The event fired.
pub fn event(me: &'static PerCpu) {
    me.armed_ns.set(u64::MAX);
    let now = now_ns();
    for _ in 0..BATCH {
        if now < me.sched.next_deadline.load(Ordering::Relaxed) {
            break;
        }
        let Some(waiter) = pop_due(me, now) else { break };
        if waiter.op as usize == TIMEOUT {
            crate::sched::wake(&waiter.thread, false);
        } else {
            ring::timer_due(&waiter);
        }
    }
    crate::sched::look(me);
}

struct Records;
impl Store for Records {
    fn node(&mut self, id: u32) -> &mut Node {
        let (thread, slot) = split(id);
        // SAFETY: nodes belong to the queue of one CPU, whose lock the callers hold.
        unsafe { &mut *thread.timers[slot].node.get() }
    }
}

fn join(thread: &Thread, slot: usize) -> u32 {
    thread.tid() << 6 | slot as u32
}

fn split(id: u32) -> (&'static Thread, usize) {
    (thread::get(id >> 6).expect("timers belong to records"), id as usize & 63)
}

fn pop_due(me: &PerCpu, now: u64) -> Option<Waiter> {
    let mut timers = me.sched.timers.lock();
    let due = timers.pop_due(&mut Records, now).map(|id| {
        let (thread, slot) = split(id);
        thread.timers[slot].cpu.store(u32::MAX, Ordering::Relaxed);
        Waiter { thread: thread.reference(), op: slot as u8, sequence: thread.timers[slot].sequence.load(Ordering::Relaxed) }
    });
    publish(me, &mut timers);
    due
}

fn publish(me: &PerCpu, timers: &mut kcore::timerq::TimerQueue) {
    let next = timers.first().map_or(u64::MAX, |(deadline, _)| deadline);
    me.sched.next_deadline.store(next, Ordering::Relaxed);
}

/// Timer `slot` of the current thread will fire at `deadline`.
pub fn set_timer(thread: &'static Thread, slot: usize, sequence: u32, deadline: u64) {
    debug_assert!(slot <= OPS);
    let me = percpu::this();
    let mut timers = me.sched.timers.lock();
    thread.timers[slot].cpu.store(me.id as u32, Ordering::Relaxed);
    thread.timers[slot].sequence.store(sequence, Ordering::Relaxed);
    timers.insert(&mut Records, join(thread, slot), deadline);
    publish(me, &mut timers);
    drop(timers);
    arm(me, crate::sched::until_ns(me));
}

/// Timer `slot` of the thread will not fire any more. Did it wait to?
pub fn cancel_timer(thread: &'static Thread, slot: usize) -> bool {
    let owner = thread.timers[slot].cpu.load(Ordering::Relaxed);
    let Some(cpu) = percpu::get(owner as usize) else { return false };
    let mut timers = cpu.sched.timers.lock();
    // It may have fired in the meantime.
    if thread.timers[slot].cpu.load(Ordering::Relaxed) != owner {
        return false;
    }
    let found = timers.cancel(&mut Records, join(thread, slot));
    thread.timers[slot].cpu.store(u32::MAX, Ordering::Relaxed);
    publish(cpu, &mut timers);
    found
}

/// A time argument as an absolute deadline: 0 is now, `u64::MAX` never.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == u64::MAX { u64::MAX } else { now_ns().saturating_add(timeout_ns) }
}

/// The completion of a sleep.
pub const SLEPT: Completion = Completion::OK;
