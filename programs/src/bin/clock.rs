//! Proof of the clock (K-03): it never goes back, on one CPU or between CPUs; it resolves parts of a tick; and it runs as fast as the CPU's
//! counter.
//!
//! A busy host may stop a CPU between any two readings. So nothing here asks that an interval is short, only that the shortest of many is.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use programs::ensure;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use rt::{println, thread, time};

rt::main!(run);

const MS: u64 = 1_000_000;
/// How long threads compare each other's readings.
const WATCH_NS: u64 = 300 * MS;
/// A part of a tick of 1 ms; shorter than any tick that the kernel uses.
const PART_NS: u64 = MS / 2;
/// Number of tries, of which the best counts.
const TRIES: u32 = 40;
/// By how much two speeds may differ, in parts per thousand: many times the accuracy of a counter and its calibration.
const SPEED_PER_MILLE: u64 = 20;

fn run() -> i64 {
    prove("clock", || {
        println!("clock: {}", programs::text::cpus());
        step("no reading is before one that anybody made earlier (K-03)", forward)?;
        step("half a millisecond reads as half a millisecond (K-03)", fine)?;
        step("the clock keeps its speed (K-03)", steady)?;
        step("no sleep is too short (K-13)", sleeps)
    })
}

fn now() -> Outcome<u64> {
    time::now_ns().doing("now")
}

fn counter() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Starts one thread more than there are CPUs, so that threads move: each reading must be at least the latest that any thread has published.
fn forward() -> Outcome {
    let latest = Arc::new(AtomicU64::new(0));
    let end = now()? + WATCH_NS;
    let mut threads = Vec::new();
    for _ in 0..=rt::boot_info().cpus {
        let latest = Arc::clone(&latest);
        let watch = move || -> Outcome<u64> {
            let mut readings = 0;
            loop {
                let before = latest.load(Ordering::SeqCst);
                let time = now()?;
                ensure!(time >= before, "a reading of {time} ns after somebody read {before} ns");
                latest.fetch_max(time, Ordering::SeqCst);
                readings += 1;
                if time >= end {
                    return Ok(readings);
                }
            }
        };
        threads.push(thread::Builder::new().spawn(watch).doing("spawn")?);
    }
    let mut readings = 0;
    for thread in threads {
        readings += thread.join()??;
    }
    println!("    {readings} readings");
    Ok(())
}

/// How far the counter advances while the clock moves by `ns` or a little more, and by how much the clock moved.
fn span(ns: u64) -> Outcome<(u64, u64)> {
    let (first, start) = (counter(), now()?);
    loop {
        let time = now()?;
        if time >= start + ns {
            return Ok((counter().wrapping_sub(first), time - start));
        }
    }
}

/// The clock's readings lie closer together than a tick; and the shortest time in which the clock is seen to move by a part of a tick is that
/// part.
fn fine() -> Outcome {
    let mut shortest = u64::MAX;
    let mut smallest = u64::MAX;
    for _ in 0..TRIES {
        let start = now()?;
        let mut last = start;
        while last < start + PART_NS {
            let time = now()?;
            if time > last {
                smallest = smallest.min(time - last);
            }
            last = time;
        }
        shortest = shortest.min(last - start);
    }
    println!("    {PART_NS} ns read as {shortest} ns; the smallest step was {smallest} ns");
    ensure!(smallest < PART_NS / 2, "the clock moves in steps of {smallest} ns");
    ensure!(shortest < 2 * PART_NS, "no interval of {PART_NS} ns read as less than {shortest} ns");
    Ok(())
}

/// Counts per second, from the sharpest of some spans: the one that took the fewest counts for its nanoseconds.
fn speed(ns: u64) -> Outcome<u64> {
    let mut best: Option<u64> = None;
    for _ in 0..TRIES {
        let (counts, ns) = span(ns)?;
        let hz =
            u64::try_from(u128::from(counts) * 1_000_000_000 / u128::from(ns.max(1))).unwrap_or(u64::MAX);
        best = Some(best.map_or(hz, |best| best.min(hz)));
    }
    best.ok_or_else(|| Failure::new("no span"))
}

fn steady() -> Outcome {
    let first = speed(2 * MS)?;
    let second = speed(5 * MS)?;
    println!("    {} and {} thousand counts a second", first / 1000, second / 1000);
    let differ = first.abs_diff(second) * 1000 / first.max(1);
    ensure!(differ <= SPEED_PER_MILLE, "the clock's speed changed by {differ} per mille");
    Ok(())
}

fn sleeps() -> Outcome {
    let mut latest = 0;
    for ns in [1, 100_000, PART_NS, MS, 1_700_000, 5 * MS, 20 * MS] {
        for _ in 0..5 {
            let before = now()?;
            time::sleep(ns).doing("sleep")?;
            let took = now()? - before;
            ensure!(took >= ns, "a sleep of {ns} ns took {took} ns");
            latest = latest.max(took - ns);
        }
    }
    println!("    the latest woke {latest} ns late");
    Ok(())
}
