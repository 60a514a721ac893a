//! Tests of the clock and its events that the kernel makes at every boot, before anything depends on them (K-03, K-04).

use crate::arch::cpu;
use crate::clock::now_ns;
use crate::event::{self, Source};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const TICK_NS: u64 = 10_000_000;
/// How often a late event is tried again before it counts as a fault: the host may be busy.
const TRIES: usize = 20;
/// An event that fires earlier than this before its time is a different one.
const EARLY_NS: u64 = 1_000;
/// In its best try an event must come before the next tick would have: that is what *sub-tick* means.
const LATE_NS: u64 = TICK_NS / 2;

static ACTIVE: AtomicBool = AtomicBool::new(false);
static FIRED_NS: AtomicU64 = AtomicU64::new(0);

/// Takes the timer's event, if the tests are running.
pub fn take_event() -> bool {
    let active = ACTIVE.load(Ordering::Relaxed);
    if active {
        FIRED_NS.store(now_ns(), Ordering::Relaxed);
    }
    active
}

/// Waits in kernel mode for an event, and returns when it came.
fn wait() -> u64 {
    FIRED_NS.store(0, Ordering::Relaxed);
    loop {
        cpu::wait_for_interrupt();
        let fired = FIRED_NS.load(Ordering::Relaxed);
        if fired != 0 {
            return fired;
        }
    }
}

/// Stops the timer and lets an event that is already pending pass.
fn settle() {
    event::stop();
    cpu::open_window();
}

/// The least delay past `ns` of several one-shots.
fn least_late(ns: u64, arm: impl Fn(u64)) -> u64 {
    let mut best = u64::MAX;
    for _ in 0..TRIES {
        settle();
        let start = now_ns();
        arm(ns);
        let took = wait() - start;
        // The host may stop this CPU between arming one timer and the next; then the first one fires, and the try says nothing.
        if took + EARLY_NS >= ns {
            best = best.min(took.saturating_sub(ns));
        }
        if best < LATE_NS / 16 {
            break;
        }
    }
    best
}

/// Checks that one-shots fire on time, also on a timer that runs periodically, and that half a tick is measured as half a tick.
pub fn run() {
    if event::source() != Source::Apic {
        crate::println!("clock: self-proof left out: events by {:?}", event::source());
        return;
    }
    ACTIVE.store(true, Ordering::Relaxed);
    let half = least_late(TICK_NS / 2, event::program_oneshot);
    event::program_periodic(TICK_NS);
    let first = wait();
    let second = wait();
    assert!(second > first, "K-03: the clock went back");
    // A one-shot a third of a tick away, while the periodic timer runs: it must fire then, and not at the tick.
    let over = least_late(TICK_NS / 3, |ns| {
        event::program_periodic(TICK_NS);
        event::oneshot_over_periodic(ns);
    });
    event::stop();
    event::start(crate::arch::percpu::this());
    ACTIVE.store(false, Ordering::Relaxed);
    assert!(half < LATE_NS && over < LATE_NS, "K-04: events are late by {half} and {over} ns");
    crate::println!(
        "clock: self-proof ok: half a tick is {} us, a one-shot over ticks {} us late",
        (TICK_NS / 2 + half) / 1000,
        over / 1000
    );
}
