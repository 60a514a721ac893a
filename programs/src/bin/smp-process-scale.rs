//! The work of `thread-scale`, done by processes (F-13): each maps its own part of the 16 MiB, and they share nothing but a page for
//! synchronisation.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use programs::ensure;
use programs::fair;
use programs::kit;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::scale::{Row, Table};
use programs::ticks;
use programs::workload::{self, BLOCKS, Block, ROUNDS};
use rt::abi::rights;
use rt::{Client, Factory, MemoryObject, ParkSpace, caps, println};

rt::main!(run);

/// Instructions that a process may cost: about 60,000 to spawn it; the rest is for waking idle CPUs.
const PER_PROCESS: u64 = 400_000;
/// Instructions to map and fill the memory of all processes: 160 for a block of eight words.
const MEMORY: u64 = BLOCKS as u64 * 160;

fn run() -> i64 {
    let mut args = rt::args::args();
    if args.next() == Some("worker") {
        let numbers: Vec<usize> = args.filter_map(|arg| arg.parse().ok()).collect();
        return match worker(&numbers) {
            Ok(()) => 0,
            Err(Failure(why)) => {
                println!("smp-process-scale: {why}");
                1
            }
        };
    }
    prove("smp-process-scale", || {
        let rounds = rt::args::number(0, ROUNDS).map_err(Failure::new)?;
        println!("smp-process-scale: {BLOCKS} blocks, {rounds} rounds, {}", programs::text::cpus());
        let mut table = Table::new("processes", BLOCKS as u64 * rounds, PER_PROCESS, MEMORY);
        step("the same work by 1, 2 and 4 processes (F-13)", || {
            let mut wanted = None;
            for workers in [1, 2, 4] {
                let (row, sum) = race(workers, rounds, true)?;
                ensure!(*wanted.get_or_insert(sum) == sum, "{workers} processes computed {sum:#x}");
                table.add(row, race(workers, rounds, false)?.0);
            }
            Ok(())
        })?;
        table.show();
        step("processes cost next to nothing, in instructions (F-13)", || table.check())
    })
}

/// The page by which parent and workers synchronise.
#[repr(C)]
struct Board {
    ready: AtomicU32,
    go: AtomicU32,
    sum: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

fn board(object: &MemoryObject) -> Outcome<&'static Board> {
    let at = object.map(None, 0, 4096, true).doing("map the board")?;
    // SAFETY: a page of zeros, shared with processes that use the same structure of atomics; it stays mapped.
    Ok(unsafe { &*(at as *const Board) })
}

/// Role `worker at of rounds is_memory`.
fn worker(numbers: &[usize]) -> Outcome {
    let &[at, workers, rounds, is_memory] = numbers else { return Err(Failure::new("four numbers")) };
    let board = board(&caps::get("board").doing("board")?)?;
    let (from, to) = workload::part(BLOCKS, at, workers);
    let mut blocks: Vec<Block> =
        if is_memory == 1 { (from..to).map(workload::fresh).collect() } else { Vec::new() };
    let space: ParkSpace = caps::any().doing("park")?;
    board.ready.fetch_add(1, Ordering::AcqRel);
    space.unpark(&board.ready, 1).doing("unpark")?;
    fair::wait_for(&board.go)?;
    let began = ticks::now();
    let sum = match is_memory {
        1 => workload::work(&mut blocks, rounds as u64),
        _ => workload::spin((to - from) as u64 * rounds as u64 * 5, at as u64),
    };
    let ended = ticks::now();
    board.sum.fetch_add(sum, Ordering::AcqRel);
    board.first.fetch_min(began, Ordering::AcqRel);
    board.last.fetch_max(ended, Ordering::AcqRel);
    Ok(())
}

fn race(workers: usize, rounds: u64, is_memory: bool) -> Outcome<(Row, u64)> {
    let object = caps::any::<Factory>()?.memory_object(4096).doing("make the board")?;
    let board = board(&object)?;
    board.first.store(u64::MAX, Ordering::Release);
    let space: ParkSpace = caps::any().doing("park")?;
    let began = ticks::now();
    let mut children = Vec::new();
    for at in 0..workers {
        let grant = ("board", object.cap(), rights::CALL | rights::WRITE, 0);
        let numbers = [at as u64, workers as u64, rounds, is_memory.into()].map(|number| format!("{number}"));
        let [at, workers, rounds, is_memory] = &numbers;
        children.push(kit::again(&["worker", at, workers, rounds, is_memory], &[grant])?);
    }
    while (board.ready.load(Ordering::Acquire) as usize) < workers {
        let ready = board.ready.load(Ordering::Acquire);
        if (ready as usize) < workers {
            space.park(&board.ready, ready, u64::MAX).doing("park")?;
        }
    }
    board.go.store(1, Ordering::Release);
    space.unpark(&board.go, u32::MAX).doing("unpark")?;
    for child in &children {
        kit::succeeds("a worker", child)?;
    }
    let total = ticks::now() - began;
    let (first, last) = (board.first.load(Ordering::Acquire), board.last.load(Ordering::Acquire));
    Ok((Row { workers, work: last - first, total }, board.sum.load(Ordering::Acquire)))
}
