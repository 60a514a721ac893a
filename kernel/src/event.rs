//! Clock events (K-04): interrupts of each CPU's own timer, once, periodically, or not at all.
//!
//! The dispatcher uses one-shots only. A one-shot that is armed while the timer runs periodically replaces the periodic one. When a one-shot fires in
//! kernel mode, the dispatcher arms the next one, so that a CPU with something to wait for always has a live timer.

use crate::arch::percpu::MachineCpu;
use crate::arch::{apic, pit};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Counts of the local timer in a nanosecond, shifted by 32.
static COUNTS: AtomicU64 = AtomicU64::new(0);
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// The least delay of an event: a shorter one makes no difference, as going back to user mode takes as long.
pub const MIN_DELTA_NS: u64 = 100;
/// An event that is further away is armed in steps, because the counter has 32 bits.
pub const MAX_DELTA_NS: u64 = 1_000_000_000;
/// How often all CPUs are interrupted if there are no local timers.
pub const PIT_TICK_NS: u64 = 1_000_000;

/// The hardware that makes the events.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nothing yet.
    None = 0,
    /// Each CPU's local APIC.
    Apic = 1,
    /// The PIT through the PIC, on the boot CPU, which passes each tick on to the others.
    Pit = 2,
}

/// The hardware that makes the events.
#[inline]
pub fn source() -> Source {
    match SOURCE.load(Ordering::Relaxed) {
        1 => Source::Apic,
        2 => Source::Pit,
        _ => Source::None,
    }
}

/// Chooses the source: the local timers if they could be calibrated.
pub fn choose(apic_hz: Option<u64>) {
    if let Some(hz) = apic_hz {
        COUNTS.store(((u128::from(hz) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
    }
    SOURCE.store(if apic_hz.is_some() { Source::Apic } else { Source::Pit } as u8, Ordering::Relaxed);
}

/// Sets this CPU's timer up for the kernel.
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

/// Arms one event in `ns`, or as close to that as the hardware can.
#[inline]
pub fn program_oneshot(ns: u64) {
    if source() == Source::Apic {
        apic::timer_oneshot(counts(ns));
    }
}

/// Arms events every `ns`, until something else is armed.
pub fn program_periodic(ns: u64) {
    if source() == Source::Apic {
        apic::timer_setup_periodic(counts(ns));
    }
}

/// Arms a one-shot on a timer that runs periodically.
pub fn oneshot_over_periodic(ns: u64) {
    if source() == Source::Apic {
        apic::timer_setup_oneshot();
        apic::timer_oneshot(counts(ns));
    }
}

/// Arms nothing.
#[inline]
pub fn stop() {
    if source() == Source::Apic {
        apic::timer_stop();
    }
}
