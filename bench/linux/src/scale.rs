//! The work of `thread-scale`, by one, two and four threads: the same source and the same table as capOS's program has.

use std::sync::{Barrier, Mutex};
use std::thread;

use crate::measure::ticks;
use crate::workload::{BLOCKS, Block, ROUNDS, fresh, part, spin, sum, work};

/// Ticks of one measurement.
struct Times {
    /// From the first to begin its work to the last to end it.
    work: u64,
    /// With starting and joining them.
    total: u64,
}

/// Prints a line for each number of workers: workers, work, total, and the work of a bare loop, in ticks.
pub(crate) fn scale() -> Result<(), String> {
    let mut wanted = None;
    for workers in [1, 2, 4] {
        let mut blocks: Vec<Block> = (0..BLOCKS).map(fresh).collect();
        let times = work_of(&mut blocks, workers);
        let found = sum(&blocks);
        if *wanted.get_or_insert(found) != found {
            return Err(format!("{workers} threads computed {found:#x}"));
        }
        // As capOS's program: a turn is about a fifth of what a block takes.
        let turns = BLOCKS as u64 * ROUNDS * 5 / workers as u64;
        let bare = race((0..workers as u64).map(|seed| move || spin(turns, seed)).collect());
        println!("{workers} {} {} {}", times.work, times.total, bare.work);
    }
    Ok(())
}

fn work_of(blocks: &mut [Block], workers: usize) -> Times {
    let mut rest = blocks;
    let mut parts = Vec::new();
    for at in 0..workers {
        let (from, to) = part(BLOCKS, at, workers);
        let (mine, others) = rest.split_at_mut(to - from);
        rest = others;
        parts.push(move || work(mine, ROUNDS));
    }
    race(parts)
}

/// Starts a thread for each part, lets them begin together when all are there, and joins them.
fn race<F: FnOnce() -> u64 + Send>(parts: Vec<F>) -> Times {
    let gate = Barrier::new(parts.len() + 1);
    let span = Mutex::new((u64::MAX, 0));
    let began = ticks();
    thread::scope(|scope| {
        for part in parts {
            let (gate, span) = (&gate, &span);
            scope.spawn(move || {
                gate.wait();
                let from = ticks();
                core::hint::black_box(part());
                let to = ticks();
                let mut span = span.lock().expect("nobody panics with it");
                *span = (span.0.min(from), span.1.max(to));
            });
        }
        gate.wait();
    });
    let total = ticks() - began;
    let (first, last) = span.into_inner().expect("nobody panics with it");
    Times { work: last - first, total }
}
