//! The same work on one, two and four threads (F-13): 262,144 blocks of 64 bytes, 64 rounds, and a parent that waits for its threads.
//!
//! `thread-scale [rounds]`. For comparison, a bare compute loop touches no memory and asks nothing of the kernel: the difference is the cost
//! of memory and of the kernel. Times depend on the host, so they are only printed; instructions are asserted, where the machine counts them.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::ensure;
use programs::fair;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::scale::{Row, Table};
use programs::ticks;
use programs::workload::{self, BLOCKS, Block, ROUNDS};
use rt::thread::{self, JoinHandle};
use rt::{ParkSpace, caps, println};

rt::main!(run);

/// Instructions that a thread may cost: about 15,000 to create and join it; the rest is for waking idle CPUs.
const PER_THREAD: u64 = 80_000;

fn run() -> i64 {
    prove("thread-scale", || {
        let rounds = rt::args::number(0, ROUNDS).map_err(Failure::new)?;
        println!("thread-scale: {BLOCKS} blocks of 64 bytes, {rounds} rounds, {}", programs::text::cpus());
        let mut table = Table::new("threads", BLOCKS as u64 * rounds, PER_THREAD, 0);
        step("the same work on 1, 2 and 4 threads (F-13)", || {
            let mut blocks: Vec<Block> = (0..BLOCKS).map(workload::fresh).collect();
            let mut wanted = None;
            for workers in [1, 2, 4] {
                let row = scale(&mut blocks, workers, rounds)?;
                // The result is the same, however many threads computed it.
                let sum = workload::sum(&blocks);
                ensure!(*wanted.get_or_insert(sum) == sum, "{workers} threads computed {sum:#x}");
                blocks.iter_mut().enumerate().for_each(|(at, block)| *block = workload::fresh(at));
                table.add(row, bare(workers, rounds)?);
            }
            Ok(())
        })?;
        table.show();
        step("threads cost next to nothing, in instructions (F-13)", || table.check())
    })
}

/// What threads and their parent share.
struct Gate {
    ready: AtomicU32,
    go: AtomicU32,
}

/// Starts `workers` threads that wait for the gate, opens it, and joins them. Returns the time from the first start to the last join, and from
/// the opening to the end of the last thread's work.
fn race(workers: usize, mut make: impl FnMut(usize) -> Box<dyn FnOnce() -> u64 + Send>) -> Outcome<Row> {
    let gate = Arc::new(Gate { ready: AtomicU32::new(0), go: AtomicU32::new(0) });
    let space: ParkSpace = caps::any().doing("park")?;
    let began = ticks::now();
    let mut threads: Vec<JoinHandle<Outcome<(u64, u64)>>> = Vec::new();
    for at in 0..workers {
        let (gate, run) = (Arc::clone(&gate), make(at));
        let body = move || {
            let space: ParkSpace = caps::any().doing("park")?;
            gate.ready.fetch_add(1, Ordering::AcqRel);
            space.unpark(&gate.ready, 1).doing("unpark")?;
            fair::wait_for(&gate.go)?;
            let began = ticks::now();
            core::hint::black_box(run());
            Ok((began, ticks::now()))
        };
        threads.push(thread::Builder::new().spawn(body).doing("start a thread")?);
    }
    loop {
        let ready = gate.ready.load(Ordering::Acquire);
        if ready as usize == workers {
            break;
        }
        space.park(&gate.ready, ready, u64::MAX).doing("park")?;
    }
    gate.go.store(1, Ordering::Release);
    space.unpark(&gate.go, u32::MAX).doing("unpark")?;
    let (mut first, mut last) = (u64::MAX, 0);
    for thread in threads {
        let (from, to) = thread.join().doing("join")??;
        (first, last) = (first.min(from), last.max(to));
    }
    Ok(Row { workers, work: last - first, total: ticks::now() - began })
}

/// The work on `workers` threads, each with its own part of the blocks.
fn scale(blocks: &mut Vec<Block>, workers: usize, rounds: u64) -> Outcome<Row> {
    let mut parts: Vec<Option<Vec<Block>>> = Vec::new();
    // A thread may live as long as the program, so it cannot borrow: each owns its part, and gives it back.
    let mut rest = core::mem::take(blocks);
    for at in (0..workers).rev() {
        parts.push(Some(rest.split_off(workload::part(BLOCKS, at, workers).0)));
    }
    parts.reverse();
    let back = Arc::new(rt::sync::Mutex::new(Vec::<(usize, Vec<Block>)>::new()));
    let row = race(workers, |at| {
        let mut part = parts[at].take().unwrap_or_default();
        let back = Arc::clone(&back);
        Box::new(move || {
            let sum = workload::work(&mut part, rounds);
            back.lock().push((at, part));
            sum
        })
    })?;
    let mut parts = core::mem::take(&mut *back.lock());
    parts.sort_unstable_by_key(|(at, _)| *at);
    for (_, part) in parts {
        blocks.extend(part);
    }
    ensure!(blocks.len() == BLOCKS, "{} blocks came back", blocks.len());
    Ok(row)
}

/// A compute loop of about as many instructions, split into as many parts.
fn bare(workers: usize, rounds: u64) -> Outcome<Row> {
    // A turn takes about a fifth of the instructions for a block.
    let turns = BLOCKS as u64 * rounds * 5 / workers as u64;
    race(workers, |at| Box::new(move || workload::spin(turns, at as u64)))
}
