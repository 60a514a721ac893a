//! What a dispatch costs, in instructions, and how that grows: with the number of runnable threads (on one CPU), and with the number
//! of CPUs that dispatch at the same time (on several). To be run under icount, where the clock counts the instructions of all CPUs
//! together.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::{ensure, kit, ticks};
use rt::abi::rights;
use rt::thread::{self, Builder};
use rt::{Client, Factory, MemoryObject, ParkSpace, SystemInfo, ThreadControl, caps, println, time};

rt::main!(run);

/// Threads of one process (the kernel's limit is 1024).
const PER_PROCESS: u32 = 1_000;
/// Numbers of runnable threads.
const CROWDS: [u32; 4] = [2, 10, 100, 500];
/// By how many instructions the cost of a dispatch may grow when the number of runnable threads doubles.
const DOUBLING_MAX: u64 = 60;
/// How long a measurement lasts, in instructions: a few rounds of the largest crowd.
const SPAN_TICKS: u64 = 6_000_000;

fn run() -> i64 {
    if rt::args::args().next() == Some("crowd") {
        return match member() {
            Ok(()) => 0,
            Err(Failure(why)) => {
                println!("dispatch: {why}");
                1
            }
        };
    }
    prove("dispatch", || {
        println!("dispatch: {}", programs::text::cpus());
        ensure!(ticks::is_counted(), "this counts instructions: run it under icount (ICOUNT=1)");
        if rt::boot_info().cpus == 1 {
            step("more threads cost a dispatch little", crowds)?;
        } else {
            step("more CPUs cost a dispatch nothing", pairs)?;
        }
        step("no CPU took a lock of another to dispatch", || {
            let locks = counter("shared_locks_in_dispatch")?;
            println!("    {locks} such locks in {} switches", counter("switches")?);
            ensure!(locks == 0, "{locks} locks of others were taken in dispatches");
            Ok(())
        })
    })
}

fn counter(name: &str) -> Outcome<u64> {
    let all = caps::any::<SystemInfo>()?.counters().doing("counters")?;
    let found = all.iter().find(|counter| counter.name == name);
    found.map(|counter| counter.value).ok_or_else(|| Failure::new(format_args!("no counter {name}")))
}

/// What the crowd and the measuring thread share.
#[repr(C)]
struct Board {
    made: AtomicU32,
    go: AtomicU32,
    running: AtomicU32,
    stop: AtomicU32,
}

fn board(object: &MemoryObject) -> Outcome<&'static Board> {
    let at = object.map(None, 0, 4096, true).doing("map the board")?;
    // SAFETY: a page of zeros, shared with processes that use the same structure of atomics; it stays mapped.
    Ok(unsafe { &*(at as *const Board) })
}

/// Yields until it is told to stop.
fn take_turns(board: &Board) {
    board.running.fetch_add(1, Ordering::AcqRel);
    while board.stop.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
}

/// Role `crowd`: starts threads that wait until all exist.
fn member() -> Outcome {
    let count = rt::args::number(1, 0).doing("how many?")?;
    let board = board(&caps::get("board")?)?;
    let turns = move || {
        let space: rt::Result<ParkSpace> = caps::any();
        board.made.fetch_add(1, Ordering::AcqRel);
        while board.go.load(Ordering::Acquire) == 0 {
            let _ = space.as_ref().map(|space| space.park(&board.go, 0, u64::MAX));
        }
        take_turns(board);
    };
    let mut threads = Vec::new();
    for _ in 1..count {
        threads.push(Builder::new().stack_bytes(4096).spawn(turns).doing("spawn")?);
    }
    turns();
    for thread in threads {
        thread.join()?;
    }
    Ok(())
}

fn crowds() -> Outcome {
    let mut base = None;
    for count in CROWDS {
        let cost = crowd(count)?;
        println!("    {count:>6} threads want to run: {cost} instructions for each switch");
        match base {
            Some((few, least)) if count > few => {
                let doublings = u64::from((count / few).ilog2());
                ensure!(
                    cost <= least + doublings * DOUBLING_MAX,
                    "{count} threads: {cost} instructions, more than {least} and {DOUBLING_MAX} for each doubling"
                );
            }
            // Two threads are a special case: at most one waits.
            _ if count >= 10 => base = Some((count, cost)),
            _ => {}
        }
    }
    Ok(())
}

/// The cost of a switch with `count` runnable threads, this one among them.
fn crowd(count: u32) -> Outcome<u64> {
    let object = caps::any::<Factory>()?.memory_object(4096)?;
    let board = board(&object)?;
    let space: ParkSpace = caps::any()?;
    let mut children = Vec::new();
    let mut left = count - 1;
    while left > 0 {
        let part = left.min(PER_PROCESS);
        let grant = ("board", object.cap(), rights::CALL | rights::WRITE, 0);
        children.push(kit::again(&["crowd", &format!("{part}")], &[grant])?);
        left -= part;
    }
    while board.made.load(Ordering::Acquire) < count - 1 {
        time::sleep(1_000_000).doing("sleep")?;
    }
    board.go.store(1, Ordering::Release);
    while space.unpark(&board.go, u32::MAX)? > 0 || board.running.load(Ordering::Acquire) < count - 1 {
        thread::yield_now();
    }
    let (switches, start) = (counter("switches")?, ticks::now());
    while ticks::now() - start < SPAN_TICKS {
        thread::yield_now();
    }
    let cost = (ticks::now() - start) / (counter("switches")? - switches);
    board.stop.store(1, Ordering::Release);
    for child in children {
        child.wait().doing("wait")?;
    }
    Ok(cost)
}

/// Two threads on one CPU, then two on each.
fn pairs() -> Outcome {
    let one = pairs_on(&[1])?;
    let all: Vec<u8> = (0..rt::boot_info().cpus as u8).collect();
    let each = pairs_on(&all)?;
    println!("    {one} instructions for each switch on one CPU, {each} on each of {}", all.len());
    ensure!(each * 10 <= one * 11, "{each} instructions are more than a tenth above {one}");
    Ok(())
}

fn pairs_on(cpus: &[u8]) -> Outcome<u64> {
    static BOARD: Board = Board {
        made: AtomicU32::new(0),
        go: AtomicU32::new(0),
        running: AtomicU32::new(0),
        stop: AtomicU32::new(0),
    };
    BOARD.running.store(0, Ordering::Relaxed);
    BOARD.stop.store(0, Ordering::Relaxed);
    let mut threads = Vec::new();
    for &cpu in cpus.iter().flat_map(|cpu| [cpu, cpu]) {
        let turns = move || -> Outcome {
            let mut mask = [0; 32];
            mask[usize::from(cpu / 8)] = 1 << (cpu % 8);
            caps::any::<ThreadControl>()?.set_affinity(&mask[..=usize::from(cpu / 8)]).doing("pin")?;
            take_turns(&BOARD);
            Ok(())
        };
        threads.push(Builder::new().spawn(turns).doing("spawn")?);
    }
    while BOARD.running.load(Ordering::Acquire) < threads.len() as u32 {
        time::sleep(100_000).doing("sleep")?;
        // A thread that could not be pinned has ended; its error is reported below.
        if threads.iter().any(|thread| thread.is_finished()) {
            break;
        }
    }
    let (switches, start) = (counter("switches")?, ticks::now());
    time::sleep(SPAN_TICKS / 3).doing("sleep")?;
    let cost = (ticks::now() - start) / (counter("switches")? - switches);
    BOARD.stop.store(1, Ordering::Release);
    for thread in threads {
        thread.join()??;
    }
    Ok(cost)
}
