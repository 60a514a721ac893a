//! Computes numbers that are known: with threads, calls to itself, sleeps, locks and memory of its own. If a proof started it, it reports
//! every round to `report` and goes on until it is told to stop; otherwise it makes as many rounds as its argument says.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};

use programs::ensure;
use programs::proof::{Doing, Outcome, prove};
use programs::victim::{BROKEN, DONE, PARTS, REPORT, expected, mix, words};
use rt::sync::{Condvar, Mutex};
use rt::{Endpoint, Factory, ProcessHandle, args, caps, println, ring, thread, time};

rt::main!(run);

/// Words of memory that no other code may touch, and that are checked repeatedly.
const KEPT_WORDS: usize = 8192;
/// A line is printed every so many rounds.
const LINE_EVERY: u64 = 256;
const SLEEP_NS: u64 = 200_000;
const STOP: u16 = 9;

fn run() -> i64 {
    match caps::get::<Endpoint>("report") {
        Ok(report) => match rounds(u64::MAX, Some(&report)) {
            Ok(_) => 0,
            Err(failure) => {
                println!("victim: {}", failure.0);
                let _ = report.call(BROKEN, [u64::MAX, 0]);
                // Its threads wait for work that does not come, so the process kills itself.
                let _ = caps::get::<ProcessHandle>("self").and_then(|handle| handle.kill());
                1
            }
        },
        Err(_) => prove("victim", || {
            let count = args::number(0, 64).doing("the number of rounds is no number")?;
            let sum = rounds(count, None)?;
            let exact = (0..count).map(expected).fold(0, mix);
            println!("  {count} rounds: checksum {sum:#018x}, exact {exact:#018x}");
            ensure!(sum == exact, "another checksum");
            Ok(())
        }),
    }
}

/// What threads hand to each other under a lock.
struct Post {
    part: Mutex<Option<u64>>,
    changed: Condvar,
}

fn rounds(count: u64, report: Option<&Endpoint>) -> Outcome<u64> {
    let factory: Factory = caps::any().doing("factory")?;
    let desk = Arc::new(factory.endpoint().doing("make an endpoint")?);
    let post = Arc::new(Post { part: Mutex::new(None), changed: Condvar::new() });
    let mut workers = Vec::new();
    for _ in 0..2 {
        let desk = Arc::clone(&desk);
        let work = move || {
            let served = desk.serve(|call| {
                let [round, part] = call.message.words();
                if call.method == STOP { Break([0; 2]) } else { Continue([piece(round, part), part]) }
            });
            (served, ring::strays())
        };
        workers.push(thread::Builder::new().spawn(work).doing("spawn")?);
    }
    let kept: Vec<u64> = (0..KEPT_WORDS as u64).map(kept_word).collect();
    let mut total = 0;
    let mut round = 0;
    let mut is_over = false;
    while round < count && !is_over {
        let sum = one_round(round, &desk, &post)?;
        if round % 8 == 0 {
            let bad = kept.iter().enumerate().find(|(at, word)| **word != kept_word(*at as u64));
            ensure!(bad.is_none(), "my memory was changed: {bad:x?}");
        }
        total = mix(total, sum);
        if round % LINE_EVERY == 0 {
            println!("victim: round {round} checksum {sum:#018x}");
        }
        if let Some(report) = report {
            let [stop, _] = report.call(REPORT, [round, sum]).doing("report")?;
            is_over = stop != 0;
        }
        round += 1;
    }
    for _ in 0..workers.len() {
        desk.call(STOP, [0; 2]).doing("stop a worker")?;
    }
    for worker in workers {
        let (served, strays) = worker.join()?;
        served.doing("serve")?;
        ensure!(strays == 0, "{strays} completions were nobody's");
    }
    ensure!(ring::strays() == 0, "{} completions were nobody's", ring::strays());
    if let Some(report) = report {
        report.call(DONE, [0; 2]).doing("report the end")?;
    }
    Ok(total)
}

fn kept_word(at: u64) -> u64 {
    at.wrapping_mul(0xd134_2543_de82_ef95) | 1
}

/// The sum of a piece, computed through heap memory.
fn piece(round: u64, part: u64) -> u64 {
    let words: Vec<u64> = words(round, part).collect();
    words.iter().fold(part, |sum, word| mix(sum, *word))
}

/// The sum of a round: two pieces by calls, one by a new thread, one through a lock, with a sleep in between.
fn one_round(round: u64, desk: &Endpoint, post: &Arc<Post>) -> Outcome<u64> {
    let mut parts = [0; PARTS as usize];
    let is_steady = args::args().next() == Some("steady");
    for part in 0..if is_steady { PARTS } else { 2 } {
        let [sum, same] = desk.call(1, [round, part]).doing("call")?;
        ensure!(same == part, "round {round}: asked for piece {part}, got {same}");
        parts[part as usize] = sum;
    }
    if is_steady {
        time::sleep(SLEEP_NS).doing("sleep")?;
        return Ok(parts.into_iter().fold(round, mix));
    }
    let theirs = Arc::clone(post);
    let fresh = move || {
        *theirs.part.lock() = Some(piece(round, 3));
        theirs.changed.notify_one();
        piece(round, 2)
    };
    let fresh = thread::Builder::new().spawn(fresh).doing("spawn")?;
    let before = time::now_ns().doing("now")?;
    time::sleep(SLEEP_NS).doing("sleep")?;
    let took = time::now_ns().doing("now")?.checked_sub(before);
    ensure!(took.is_some_and(|ns| ns >= SLEEP_NS), "a sleep of {SLEEP_NS} ns took {took:?}");
    let mut part = post.changed.wait_while(post.part.lock(), |part| part.is_none());
    parts[3] = part.take().unwrap_or(0);
    drop(part);
    parts[2] = fresh.join()?;
    Ok(parts.into_iter().fold(round, mix))
}
