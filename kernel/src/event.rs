//! Clock events (K-04): each CPU's own timer, once or periodically, or not at all.
//!
//! The dispatcher uses one-shots only. A one-shot that is armed while the timer runs periodically replaces it; when it was consumed in
//! kernel mode the dispatcher arms the next, so that a CPU with something to wait for always has a live timer.

use crate::arch::percpu::MachineCpu;
use crate::arch::{apic, pit};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Counts of the local timer in a nanosecond, shifted by 32.
static COUNTS: AtomicU64 = AtomicU64::new(0);
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// Nearer than this makes no difference: going back to user mode takes as long.
pub const MIN_DELTA_NS: u64 = 100;
/// An event further away is armed in steps: the counter has 32 bits.
pub const MAX_DELTA_NS: u64 = 1_000_000_000;
/// Without local timers everybody is asked this often.
pub const PIT_TICK_NS: u64 = 1_000_000;

/// What makes the events.
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

/// What makes the events.
#[inline]
pub fn source() -> Source {
    match SOURCE.load(Ordering::Relaxed) {
        1 => Source::Apic,
        2 => Source::Pit,
        _ => Source::None,
    }
}

/// Chooses the source by what calibrated.
pub fn choose(apic_hz: Option<u64>) {
    if let Some(hz) = apic_hz {
        COUNTS.store(((u128::from(hz) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
    }
    SOURCE.store(if apic_hz.is_some() { Source::Apic } else { Source::Pit } as u8, Ordering::Relaxed);
}

/// This CPU's timer is ours from now on.
pub fn start(me: &MachineCpu) {
    match source() {
        Source::Apic => apic::timer_setup_oneshot(),
        Source::Pit if me.id == 0 => {
            if apic::exists() {
                apic::accept_pic();
            }
            pit::unmask_pic(0);
            pit::periodic(PIT_TICK_NS);
        }
        _ => {}
    }
}

fn counts(ns: u64) -> u32 {
    let ns = ns.clamp(MIN_DELTA_NS, MAX_DELTA_NS);
    let counts = (u128::from(ns) * u128::from(COUNTS.load(Ordering::Relaxed))) >> 32;
    (counts as u32).max(1)
}

/// One event in `ns`, or as near as the hardware can.
#[inline]
pub fn program_oneshot(ns: u64) {
    if source() == Source::Apic {
        apic::timer_oneshot(counts(ns));
    }
}

/// Events every `ns`, until something else is asked for.
pub fn program_periodic(ns: u64) {
    if source() == Source::Apic {
        apic::timer_setup_periodic(counts(ns));
    }
}

/// A one-shot over a timer that runs periodically.
pub fn oneshot_over_periodic(ns: u64) {
    if source() == Source::Apic {
        apic::timer_setup_oneshot();
        apic::timer_oneshot(counts(ns));
    }
}

/// No event.
#[inline]
pub fn stop() {
    if source() == Source::Apic {
        apic::timer_stop();
    }
}
