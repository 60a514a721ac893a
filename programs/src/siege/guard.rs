//! The threads that were promised something: on every CPU one that always wants to run and has a guaranteed budget, and one of the highest band
//! that sleeps repeatedly. They measure themselves, by the clock and by a mark that a thread loses when it enters the kernel (`programs::mark`),
//! and trust nothing that the kernel counts.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use rt::abi::{TransportError, rights};
use rt::{
    Child, Client, Error, Factory, Fallback, MemoryObject, NotificationKind, SchedulingContext,
    SchedulingPolicy, Spec, caps, println,
};

use super::pin;
use crate::contexts::{copy, new_context_soon};
use crate::ensure;
use crate::kit::{self, MS};
use crate::proof::{Doing, Outcome};
use crate::ticks::{self, Scale};
use crate::{mark, workload};

/// What each worker is promised: a fifth of its CPU.
const BUDGET_NS: u64 = 20 * MS;
const PERIOD_NS: u64 = 100 * MS;
/// The band of the sleepers, and their budget, which is far more than they need.
pub const HIGHEST_BAND: u8 = 7;
const SLEEPER: Spec = Spec::new(2 * MS, 20 * MS).criticality(HIGHEST_BAND);
const NAP_NS: u64 = MS;
/// At least this percentage of a promise must be measured (S-13, S-16).
const SHARE_PERCENT: u64 = 99;
/// The longest that a sleeper of the highest band may be late (K-26): 100 us where an instruction takes a nanosecond.
const LATE_MAX_INSTRUCTIONS: u64 = 100_000;
/// The most CPUs that are watched.
const CPUS_MAX: usize = 16;
/// Turns of the compute loop between two readings of the clock.
const TURNS: u64 = 10;
/// From one reading of the clock to the next fewer ticks pass, unless another CPU has its turn.
const STEP_TICKS: u64 = 300;
/// The argument that asks for threads which keep the CPUs busy.
const BUSY: &str = "busy";
const PAGE: usize = 4096;

/// What the guarded threads report, in memory that they share with the supervisor.
#[repr(C)]
struct Board {
    lanes: [Lane; CPUS_MAX],
    ready: AtomicU64,
    /// Guarded threads that have ended, which none of them should.
    ended: AtomicU64,
}

#[repr(C)]
struct Lane {
    /// Ticks for which the worker had its CPU since `since_ns`.
    had: AtomicU64,
    /// When the worker began to count, on the timer's clock.
    since_ns: AtomicU64,
    /// The part of `had` in which the worker did not stand still because the emulator ran another CPU.
    moved: AtomicU64,
    /// How often the worker lost its CPU, to an interrupt or to another thread.
    entries: AtomicU64,
    /// How long an instruction takes, where instructions are counted.
    instruction_ns: AtomicU64,
    /// Deadlines that passed before the work was done, as reported by the worker's context.
    misses: AtomicU64,
    /// How late the sleeper was at most, and how often it slept.
    late_ns: AtomicU64,
    naps: AtomicU64,
}

fn cpus() -> u32 {
    rt::boot_info().cpus.min(CPUS_MAX as u32)
}

fn map(memory: &MemoryObject) -> Outcome<&'static Board> {
    let at = memory.map(None, 0, PAGE, true).doing("map the board")?;
    const _: () = assert!(size_of::<Board>() <= PAGE);
    // SAFETY: mapped for as long as the process lives; only atomics, and every pattern of bits is a number.
    Ok(unsafe { &*(at as *const Board) })
}

/// The memory in which the guarded threads report.
pub struct Shared(MemoryObject, &'static Board);

impl Shared {
    /// Creates the memory. It stays mapped, so call this before the machine's memory is counted.
    pub fn new() -> Outcome<Shared> {
        let memory = caps::any::<Factory>()?.memory_object(PAGE as u64).doing("a board")?;
        let board = map(&memory)?;
        Ok(Shared(memory, board))
    }
}

/// The guarded threads, as the supervisor sees them.
pub struct Guarded {
    child: Child,
    board: &'static Board,
    scale: Scale,
}

impl Guarded {
    /// Starts the guarded threads and waits until each has its promised budget. If they are to be `judged`, no CPU is ever idle: the turns of the
    /// other CPUs are then told apart from lost time by the number of CPUs.
    pub fn start(shared: &Shared, judged: bool) -> Outcome<Guarded> {
        let Shared(memory, board) = shared;
        let scale = Scale::measure()?;
        let shared = ("board", memory.cap(), rights::CALL | rights::WRITE, 0);
        let child = kit::again(&["guarded", if judged { BUSY } else { "idle" }], &[shared])?;
        kit::wait_until("the guarded are ready", || {
            let ended = board.ended.load(Ordering::Relaxed);
            ensure!(ended == 0, "{ended} of the guarded threads have ended before they were ready");
            Ok(board.ready.load(Ordering::Acquire) == u64::from(2 * cpus()))
        })?;
        Ok(Guarded { child, board, scale })
    }

    /// Fails unless every guarded thread has had, in time, what it was promised up to now. Only a machine that counts instructions can be judged:
    /// on any other, the host takes time from all threads. `instruction` is how many ticks pass while a CPU executes one instruction (`turns`).
    pub fn have_their_due(&self, instruction: Option<u64>) -> Outcome {
        let ended = self.board.ended.load(Ordering::Relaxed);
        ensure!(ended == 0, "{ended} of the guarded threads have ended");
        let Some(instruction) = instruction else { return Ok(()) };
        for (cpu, lane) in self.board.lanes.iter().enumerate().take(cpus() as usize) {
            let periods = (rt::time::now_ns()? - lane.since_ns.load(Ordering::Relaxed)) / PERIOD_NS;
            let had_ns = self.scale.to_ns(lane.had.load(Ordering::Relaxed));
            let (due_ns, late_ns) = (periods * BUDGET_NS, lane.late_ns.load(Ordering::Relaxed));
            let (misses, naps) = (lane.misses.load(Ordering::Relaxed), lane.naps.load(Ordering::Relaxed));
            ensure!(
                had_ns * 100 >= due_ns * SHARE_PERCENT,
                "CPU {cpu}: the worker had {had_ns} ns of {due_ns} that it was promised (S-13, S-16)"
            );
            ensure!(misses == 0, "CPU {cpu}: {misses} deadlines passed (S-15)");
            let late = late_ns / (instruction * lane.instruction_ns.load(Ordering::Relaxed).max(1));
            ensure!(
                late <= LATE_MAX_INSTRUCTIONS,
                "CPU {cpu}: the highest band was late by {late} instructions (K-26)"
            );
            ensure!(naps > 0 || periods == 0, "CPU {cpu}: the sleeper never ran");
        }
        Ok(())
    }

    /// Prints what each guarded thread had.
    pub fn show(&self) -> Outcome {
        for (cpu, lane) in self.board.lanes.iter().enumerate().take(cpus() as usize) {
            let elapsed_ns = rt::time::now_ns()? - lane.since_ns.load(Ordering::Relaxed);
            let had = lane.had.load(Ordering::Relaxed).max(1);
            println!(
                "    cpu {cpu}: {} ppm of {}, interrupted {} times, {} ppm of it in turns of others; {} deadlines missed; \
                 the sleeper late by {} ns at most in {} naps",
                self.scale.to_ns(had) * 1_000_000 / elapsed_ns.max(1),
                BUDGET_NS * 1_000_000 / PERIOD_NS,
                lane.entries.load(Ordering::Relaxed),
                (had - lane.moved.load(Ordering::Relaxed).min(had)) * 1_000_000 / had,
                lane.misses.load(Ordering::Relaxed),
                lane.late_ns.load(Ordering::Relaxed),
                lane.naps.load(Ordering::Relaxed),
            );
        }
        Ok(())
    }

    /// Ends the guarded threads.
    pub fn finish(self) -> Outcome {
        self.child.handle.kill().doing("end the guarded")?;
        self.child.wait().doing("wait for the guarded")?;
        Ok(())
    }
}

/// Role `guarded`, with the argument `busy`; runs until it is killed.
pub fn run(busy: Option<&str>) -> Outcome {
    let memory: MemoryObject = caps::get("board")?;
    let board = map(&memory)?;
    let scale = Scale::measure()?;
    // Where CPUs take turns, each CPU is slower than the clock by the number of CPUs, so it gets interrupts less often by the same factor.
    let nap_ns = if busy == Some(BUSY) { NAP_NS * u64::from(cpus()) } else { NAP_NS };
    let mut contexts: Vec<SchedulingContext> = Vec::new();
    for cpu in 0..cpus() {
        let lane = &board.lanes[cpu as usize];
        // The attacks before are gone, and the time that they used comes back gradually (S-13).
        let context = new_context_soon(&Spec::new(BUDGET_NS, PERIOD_NS).cpus([cpu]))?;
        contexts.push(copy(&context)?);
        core::mem::forget(super::small(move || {
            pin(cpu);
            ends(board, "worker", work(&context, lane, board, scale));
        })?);
        core::mem::forget(super::small(move || {
            ends(board, "sleeper", nap(cpu, lane, board, nap_ns));
        })?);
        if busy == Some(BUSY) {
            core::mem::forget(super::small(move || keep_busy(cpu))?);
        }
    }
    loop {
        rt::time::sleep(PERIOD_NS / 2)?;
        for (context, lane) in contexts.iter().zip(&board.lanes) {
            let news = match context.drain() {
                // An attack holds all memory, and the answer needs some. Misses stay counted until the next drain.
                Err(Error::Transport(TransportError::NoSpace)) => continue,
                news => news?.ok()?,
            };
            let missed = news.get(NotificationKind::DeadlineOrTimeout).map_or(0, |cell| cell.coalesced);
            lane.misses.fetch_add(missed, Ordering::Relaxed);
        }
    }
}

/// Reports that a guarded thread has ended: whatever the reason, it was kept from what it was promised.
fn ends(board: &Board, who: &str, how: Outcome) {
    board.ended.fetch_add(1, Ordering::Relaxed);
    println!("siege guarded: the {who} has ended: {how:?}");
}

/// Only runs, and counts for how long: from one reading of the clock to the next, if the thread has kept its mark all the while. The turns of the
/// emulator's other CPUs are included, as in all time; what the thread's own CPU does for others is not.
fn work(context: &SchedulingContext, lane: &Lane, board: &Board, scale: Scale) -> Outcome {
    lane.instruction_ns.store(ticks::instruction_ns(scale), Ordering::Relaxed);
    // The thread binds itself and counts from then on. A thread that did it instead might have to wait until this one has used up its first budget.
    context.bind(Fallback::BestEffort)?.ok()?;
    lane.since_ns.store(rt::time::now_ns()?, Ordering::Relaxed);
    board.ready.fetch_add(1, Ordering::Release);
    let mut seed = 1;
    loop {
        mark::set();
        let mut last = ticks::now();
        loop {
            seed = core::hint::black_box(workload::spin(TURNS, seed));
            let now = ticks::now();
            if !mark::is_kept() {
                break;
            }
            lane.had.fetch_add(now - last, Ordering::Relaxed);
            if now - last < STEP_TICKS {
                lane.moved.fetch_add(now - last, Ordering::Relaxed);
            }
            last = now;
        }
        lane.entries.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps `cpu` from being idle, at the smallest weight, so that every other thread goes before it.
fn keep_busy(cpu: u32) {
    pin(cpu);
    if let Ok(policy) = caps::any::<SchedulingPolicy>() {
        let _ = policy.set_weight(1);
    }
    super::spin();
}

fn nap(cpu: u32, lane: &Lane, board: &Board, nap_ns: u64) -> Outcome {
    pin(cpu);
    let context = new_context_soon(&SLEEPER.cpus([cpu]))?;
    context.bind(Fallback::BestEffort)?.ok()?;
    rt::time::sleep(nap_ns)?;
    board.ready.fetch_add(1, Ordering::Release);
    loop {
        let due_ns = rt::time::now_ns()? + nap_ns;
        rt::time::sleep(nap_ns)?;
        lane.late_ns.fetch_max(rt::time::now_ns()?.saturating_sub(due_ns), Ordering::Relaxed);
        lane.naps.fetch_add(1, Ordering::Relaxed);
    }
}
