//! The watchdog (K-27): notices a CPU that takes no interrupts any more, and threads that nobody dispatches.
//!
//! Two housekeeping CPUs look at all CPUs in turn, one look a second between them, so that each is watched by the other. A look reads what a CPU
//! leaves behind anyway: its counts of recorded events and of switches, pending requests, its deadlines, its run queue. A quiet CPU is not
//! interrupted for that, and while nothing runs anywhere there are no looks. Only a CPU that has left something undone and has shown no event for
//! all looks but one is sent an interrupt, as the last test; if it misses the next look, too, the kernel ends with a report.
//!
//! Looks are counted rather than time: a machine that its host has stopped for a minute has missed looks, but no limit.

use crate::arch::{cpu, smp};
use crate::bootinfo::Plant;
use crate::dispatch::percpu::{self, PerCpu};
use crate::patience;
use crate::time;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use kcore::watch::{Signs, Step, Undone};

/// How many CPUs look.
const HOUSEKEEPERS: usize = 2;
/// The time between two looks of different housekeepers.
const PERIOD_NS: u64 = 1_000_000_000;
const _: () = assert!(patience::ROUND_NS == PERIOD_NS * HOUSEKEEPERS as u64);
/// Looks without a sign of life before the kernel gives up, unless the option `watchdog=n` says otherwise: 20 seconds.
const LOOKS: u32 = 10;
/// How many CPUs one look covers; if there are more, each look covers others.
const AT_ONCE: usize = 32;
/// A deadline that is late by more than this shows that its CPU does not take its timer's interrupts.
const OVERDUE_NS: u64 = PERIOD_NS;
/// When a planted failure acts, after the machine has booted.
const PLANT_NS: u64 = 20_000_000;

/// Whether housekeepers look, or will soon. Always true where there are none.
static ON_DUTY: AtomicBool = AtomicBool::new(true);
/// The failure that the boot options ask for.
static PLANT: AtomicU8 = AtomicU8::new(0);
/// Whether the planted failure is due.
static PLANT_IS_DUE: AtomicBool = AtomicBool::new(false);
/// Whether a failure was planted, even if it has acted.
static IS_TO_FAIL: AtomicBool = AtomicBool::new(false);
/// The idle loop runs no thread: a planted failure.
static NO_DISPATCH: AtomicBool = AtomicBool::new(false);

/// What the watchdog keeps for a CPU.
pub struct Watch {
    /// When this CPU looks next; `u64::MAX` if it does not. Written by the CPU itself.
    next_ns: AtomicU64,
    /// What each housekeeper has seen of this CPU. Written by that housekeeper.
    seen: [Seen; HOUSEKEEPERS],
}

struct Seen {
    events: AtomicU64,
    switches: AtomicU64,
    /// Looks in a row in which the CPU had left something undone and had shown no sign of life.
    misses: AtomicU32,
}

impl Seen {
    const fn new() -> Seen {
        Seen { events: AtomicU64::new(0), switches: AtomicU64::new(0), misses: AtomicU32::new(0) }
    }
}

impl Watch {
    /// For a CPU that nobody has looked at.
    pub const fn new() -> Watch {
        Watch { next_ns: AtomicU64::new(u64::MAX), seen: [const { Seen::new() }; HOUSEKEEPERS] }
    }

    /// When the CPU looks next: its timer is armed for no later.
    #[inline(always)]
    pub fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::Relaxed)
    }
}

/// Starts the watchdog: the machine has booted.
pub fn begin(looks: Option<u32>, plant: Option<Plant>) {
    let looks = looks.unwrap_or(LOOKS);
    // The look before the last one sends the interrupt, so there must be two.
    patience::set_limit(if looks == 0 { 0 } else { looks.max(2) });
    PLANT.store(plant.map_or(0, |plant| plant as u8), Ordering::Relaxed);
    IS_TO_FAIL.store(plant.is_some(), Ordering::Relaxed);
    let (me, now) = (percpu::this(), time::now_ns());
    if plant.is_some() {
        look_at(me, now + PLANT_NS, now);
    } else if has_housekeepers() {
        look_at(me, now + PERIOD_NS, now);
    }
    if let Some(second) = percpu::get(1).filter(|_| has_housekeepers()) {
        smp::interrupt(second, smp::IPI_WATCH, None);
    }
}

/// Whether CPUs watch each other: a single one cannot watch itself, except for what `Patience` finds.
fn has_housekeepers() -> bool {
    percpu::count() > 1 && patience::limit() != 0
}

/// Sets the next look of `me` to `at_ns`.
fn look_at(me: &PerCpu, at_ns: u64, now: u64) {
    me.flight.watch.next_ns.store(at_ns, Ordering::Relaxed);
    time::arm(me, at_ns, now);
}

/// The timer event of this CPU has fired.
#[inline(always)]
pub fn event(me: &'static PerCpu, now: u64) {
    if now >= me.flight.watch.next_ns() {
        look(me, now);
    }
}

/// An idle CPU begins to run a thread.
#[inline(always)]
pub fn somebody_runs(me: &'static PerCpu) {
    if !ON_DUTY.load(Ordering::Relaxed) {
        resume(me);
    }
}

/// Starts the looks again; they had stopped because nothing ran.
#[cold]
#[inline(never)]
fn resume(me: &'static PerCpu) {
    ON_DUTY.store(true, Ordering::Relaxed);
    for keeper in (0..HOUSEKEEPERS).filter_map(percpu::get) {
        if keeper.id == me.id {
            asked(me, time::now_ns());
        } else {
            smp::interrupt(keeper, smp::IPI_WATCH, None);
        }
    }
}

/// Handles [`smp::IPI_WATCH`], which another CPU has sent.
#[cold]
#[inline(never)]
pub fn asked(me: &'static PerCpu, now: u64) {
    if PLANT_IS_DUE.load(Ordering::Relaxed)
        && is_victim(me)
        && let Some(plant) = take_plant()
    {
        act(plant, me);
    }
    if me.id < HOUSEKEEPERS && has_housekeepers() && me.flight.watch.next_ns() == u64::MAX {
        // One after the other.
        look_at(me, now + PERIOD_NS * (1 + me.id as u64), now);
    }
}

/// Looks at the CPUs.
#[cold]
#[inline(never)]
fn look(me: &'static PerCpu, now: u64) {
    plant(me);
    if !has_housekeepers() {
        return me.flight.watch.next_ns.store(u64::MAX, Ordering::Relaxed);
    }
    let mut is_busy = false;
    for cpu in window(now) {
        is_busy |= look_at_cpu(me, cpu, now);
    }
    // If only some CPUs were looked at, others may be busy.
    is_busy |= percpu::count() > AT_ONCE;
    if is_busy {
        me.flight.watch.next_ns.store(now + PERIOD_NS * HOUSEKEEPERS as u64, Ordering::Relaxed);
    } else {
        // `next_ns` is reset before `ON_DUTY`: a CPU that leaves idle afterwards can start the looks again. At worst it asks once too often.
        me.flight.watch.next_ns.store(u64::MAX, Ordering::Relaxed);
        ON_DUTY.store(false, Ordering::SeqCst);
    }
}

/// The CPUs that one look covers.
fn window(now: u64) -> impl Iterator<Item = &'static PerCpu> {
    let (count, turn) = (percpu::count(), (now / PERIOD_NS) as usize / HOUSEKEEPERS);
    let first = if count > AT_ONCE { turn * AT_ONCE % count } else { 0 };
    (0..count.min(AT_ONCE)).filter_map(move |at| percpu::get((first + at) % count))
}

/// Looks at one CPU, and says whether anything is going on there.
fn look_at_cpu(me: &'static PerCpu, cpu: &'static PerCpu, now: u64) -> bool {
    let seen = &cpu.flight.watch.seen[me.id];
    let (events, switches) = (cpu.flight.ring.written(), cpu.counters.switches.get());
    let nearest = cpu.dispatch.nearest.iter().map(|nearest| nearest.load(Ordering::Relaxed)).min();
    // A thread for which alone an idle CPU was woken is in no queue: it is in the handoff place, which only the CPU itself may look at.
    let handed = usize::from(cpu.id == me.id && me.is_attention_asked());
    let signs = Signs {
        is_own: cpu.id == me.id,
        is_idle: cpu.dispatch.idle.load(Ordering::Relaxed),
        has_moved: seen.events.swap(events, Ordering::Relaxed) != events,
        has_switched: seen.switches.swap(switches, Ordering::Relaxed) != switches,
        waiting: cpu.dispatch.queue.try_lock().map(|queue| queue.waiting() + handed),
        is_overdue: nearest.is_some_and(|at_ns| at_ns.saturating_add(OVERDUE_NS) < now),
        is_asked: cpu.ipi.load(Ordering::Relaxed) != 0,
        is_in_kernel: cpu.irq_off.is_measured(),
    };
    let undone = signs.undone();
    let misses = if undone.is_some() { seen.misses.load(Ordering::Relaxed) + 1 } else { 0 };
    seen.misses.store(misses, Ordering::Relaxed);
    match undone.map(|undone| (undone, undone.step(misses, patience::limit()))) {
        Some((undone, Step::Alarm)) => alarm(cpu.id, undone, misses),
        Some((_, Step::Interrupt)) => smp::interrupt(cpu, smp::IPI_KICK, None),
        Some((_, Step::Wait)) | None => {}
    }
    !signs.is_idle || signs.has_switched || undone.is_some()
}

/// Ends the kernel with a report.
#[cold]
fn alarm(id: usize, undone: Undone, looks: u32) -> ! {
    let what = format_args!("watchdog: CPU {id} {undone} ({looks} looks)");
    crate::panic::report(what, None, |_| 0, None)
}

/// Takes the planted failure, which acts once.
fn take_plant() -> Option<Plant> {
    let all = [Plant::IrqsOff, Plant::Lock, Plant::NoDispatch, Plant::TripleFault, Plant::Panic];
    let asked = PLANT.swap(0, Ordering::Relaxed);
    all.into_iter().find(|plant| *plant as u8 == asked)
}

/// Makes the planted failure happen on this CPU.
fn act(plant: Plant, me: &'static PerCpu) {
    match plant {
        Plant::IrqsOff => hang(),
        Plant::Lock => {
            let _held = me.dispatch.queue.lock();
            hang()
        }
        Plant::NoDispatch => NO_DISPATCH.store(true, Ordering::Relaxed),
        Plant::TripleFault => cpu::triple_fault(),
        Plant::Panic => panic!("asked for on the command line, while everything runs"),
    }
}

/// Loops for ever, under a name that a report shows.
#[cold]
#[inline(never)]
fn hang() -> ! {
    loop {
        cpu::pause();
    }
}

/// Whether planted failures act on this CPU: the last one.
fn is_victim(me: &PerCpu) -> bool {
    me.id + 1 == percpu::count()
}

/// If a failure is planted, makes it happen now, on the CPU that it is meant for.
fn plant(me: &'static PerCpu) {
    if PLANT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if is_victim(me) || PLANT.load(Ordering::Relaxed) >= Plant::NoDispatch as u8 {
        if let Some(plant) = take_plant() {
            act(plant, me);
        }
    } else if let Some(victim) = percpu::get(percpu::count() - 1) {
        PLANT_IS_DUE.store(true, Ordering::Relaxed);
        smp::interrupt(victim, smp::IPI_WATCH, None);
    }
}

/// Whether this machine was booted to fail.
pub fn is_to_fail() -> bool {
    IS_TO_FAIL.load(Ordering::Relaxed)
}

/// Whether the idle loop must run no thread: a planted failure.
#[inline(always)]
pub fn forbids_dispatch() -> bool {
    NO_DISPATCH.load(Ordering::Relaxed)
}
