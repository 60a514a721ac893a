//! Whoever was promised something: on every CPU a thread that always wants to run and has a guarantee, and one of the highest band that
//! sleeps again and again. They measure themselves, by the clock and by a mark that no thread keeps which enters the kernel
//! (`programs::mark`), and believe nothing that the kernel counts.

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

/// What each worker was promised: a fifth of its CPU.
const BUDGET_NS: u64 = 20 * MS;
const PERIOD_NS: u64 = 100 * MS;
/// The band of the sleepers, and the time that they have: far more than they need.
pub const HIGHEST_BAND: u8 = 7;
const SLEEPER: Spec = Spec::new(2 * MS, 20 * MS).criticality(HIGHEST_BAND);
const NAP_NS: u64 = MS;
/// Of a promise at least so many percent must be seen (S-13, S-16).
const SHARE_PERCENT: u64 = 99;
/// Longest that a sleeper of the highest band may be late (K-26): 100 us where an instruction takes a nanosecond.
const LATE_MAX_INSTRUCTIONS: u64 = 100_000;
/// CPUs that are watched.
const CPUS_MAX: usize = 16;
/// Turns of the compute loop between two looks at the clock.
const TURNS: u64 = 10;
/// A look takes fewer ticks, unless another CPU has its turn.
const STEP_TICKS: u64 = 300;
/// The word for those who keep their CPU busy.
const BUSY: &str = "busy";
const PAGE: usize = 4096;

/// What the guarded tell, in memory that they share with the supervisor.
#[repr(C)]
struct Board {
    lanes: [Lane; CPUS_MAX],
    ready: AtomicU64,
    /// Threads that have ended, which none of them should.
    ended: AtomicU64,
}

#[repr(C)]
struct Lane {
    /// Ticks for which the worker had its CPU, since
    had: AtomicU64,
    /// this moment, on the timer's clock.
    since_ns: AtomicU64,
    /// Those of them in which it did not stand still because the emulator ran another CPU.
    moved: AtomicU64,
    /// How often it lost its CPU, to an interrupt or to another thread.
    entries: AtomicU64,
    /// What an instruction takes, where they are counted.
    instruction_ns: AtomicU64,
    /// Deadlines that passed before the work was done, as the worker's context says.
    misses: AtomicU64,
    /// How late the sleeper was at the most, and how often it slept.
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

/// Where they tell what they had.
pub struct Shared(MemoryObject, &'static Board);

impl Shared {
    /// Made before the machine's memory is counted: it stays mapped.
    pub fn new() -> Outcome<Shared> {
        let memory = caps::any::<Factory>()?.memory_object(PAGE as u64).doing("a board")?;
        let board = map(&memory)?;
        Ok(Shared(memory, board))
    }
}

/// The guarded, as the supervisor sees them.
pub struct Guarded {
    child: Child,
    board: &'static Board,
    scale: Scale,
}

impl Guarded {
    /// Starts them, and waits until each has what it was promised. If they are to be `judged`, no CPU is ever idle: what takes a CPU's time
    /// is told from the turns of the others by their number.
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

    /// Fails unless everybody has had what was promised up to now, in time. Only a machine that counts instructions can be judged: on any
    /// other the host takes time from all. `instruction` is how far the clock goes in one of a CPU (`turns`).
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

    /// Says what each had.
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

    /// Ends them.
    pub fn finish(self) -> Outcome {
        self.child.handle.kill().doing("end the guarded")?;
        self.child.wait().doing("wait for the guarded")?;
        Ok(())
    }
}

/// Role `guarded`, with this word: until it is killed.
pub fn run(busy: Option<&str>) -> Outcome {
    let memory: MemoryObject = caps::get("board")?;
    let board = map(&memory)?;
    let scale = Scale::measure()?;
    // Where CPUs take turns each of them is as much slower as there are, beside the clock: its interrupts are as much rarer.
    let nap_ns = if busy == Some(BUSY) { NAP_NS * u64::from(cpus()) } else { NAP_NS };
    let mut contexts: Vec<SchedulingContext> = Vec::new();
    for cpu in 0..cpus() {
        let lane = &board.lanes[cpu as usize];
        // The attacks before have gone, and their time comes back by and by (S-13).
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
                // An attack has all memory, and the answer needs some. What was missed is counted until the next look.
                Err(Error::Transport(TransportError::NoSpace)) => continue,
                news => news?.ok()?,
            };
            let missed = news.get(NotificationKind::DeadlineOrTimeout).map_or(0, |cell| cell.coalesced);
            lane.misses.fetch_add(missed, Ordering::Relaxed);
        }
    }
}

/// A guarded thread has ended: whatever the reason, somebody was kept from what was promised.
fn ends(board: &Board, who: &str, how: Outcome) {
    board.ended.fetch_add(1, Ordering::Relaxed);
    println!("siege guarded: the {who} has ended: {how:?}");
}

/// Nothing but runs, and counts the time for which it does: from one look at the clock to the next, if it has kept its mark all the while. What the
/// emulator's other CPUs do meanwhile is in that, as in all time; what its own CPU does for others is not.
fn work(context: &SchedulingContext, lane: &Lane, board: &Board, scale: Scale) -> Outcome {
    lane.instruction_ns.store(ticks::instruction_ns(scale), Ordering::Relaxed);
    // It binds itself, and counts from then on: whoever did it for this thread might have to wait until its first budget is used up.
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

/// So that its CPU is not idle: whoever else wants to run is before it.
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
