//! Proof of the clock and of sleeping (K-13, and the deadline of K-10).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{MS, refused};
use programs::proof::{Doing, Outcome, prove, step};
use programs::random::Random;
use programs::rawring::RawRing;
use rt::abi::{CQ_ENTRIES, Op, Sqe, TransportError};
use rt::thread::Builder;
use rt::{Client, Timer, caps, println, ring, syscall, time};

rt::main!(run);

fn run() -> i64 {
    prove("timer-smoke", || {
        println!("timer-smoke: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("the clock never goes back, on one CPU or across them (K-13)", clock)?;
        step("no sleep is too short, however short (K-13)", sleeps)?;
        step("sleeps of one thread complete in the order of their deadlines (K-13)", order)?;
        step("a sleep can be withdrawn (K-13)", cancel)?;
        step("cap_enter returns at its deadline (K-10)", deadline)?;
        step("only a timer sleeps, and only with known fields (K-13)", refusals)
    })
}

/// Each thread reads the clock after it has seen another thread's reading: its own must not be earlier.
fn clock() -> Outcome {
    let latest = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for _ in 0..=rt::boot_info().cpus.min(16) {
        let latest = Arc::clone(&latest);
        let read = move || -> Outcome<u64> {
            let mut reads = 0;
            for _ in 0..400 {
                let before = latest.load(Ordering::Acquire);
                let now = time::now_ns().doing("now")?;
                ensure!(now >= before, "the clock was at {before}, then at {now}");
                latest.fetch_max(now, Ordering::AcqRel);
                reads += 1;
            }
            Ok(reads)
        };
        threads.push(Builder::new().spawn(read).doing("spawn")?);
    }
    let mut reads = 0;
    for thread in threads {
        reads += thread.join()??;
    }
    println!("    {reads} readings");
    Ok(())
}

fn sleeps() -> Outcome {
    for ns in [0, 1, 1000, MS / 3, MS, 5 * MS, 11 * MS] {
        let before = time::now_ns()?;
        time::sleep(ns).doing("sleep")?;
        let took = time::now_ns()? - before;
        ensure!(took >= ns, "a sleep of {ns} ns took {took}");
        println!("    sleep of {ns} ns: {took} ns");
    }
    Ok(())
}

/// Ticks of the CPU's counter in a microsecond.
fn ticks_per_us() -> Outcome<u64> {
    let (ticks, ns) = (ticks(), time::now_ns()?);
    time::sleep(5 * MS)?;
    Ok((self::ticks() - ticks) * 1000 / (time::now_ns()? - ns).max(1))
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and the kernel allows it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn order() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let mut random = Random::new(13);
    let per_us = ticks_per_us()?.max(1);
    let mut spread_max = 0;
    for round in 0..5 {
        // A different number of milliseconds for each, in random order.
        let mut lengths: Vec<u64> = (1..=u64::from(CQ_ENTRIES)).collect();
        for at in (1..lengths.len()).rev() {
            lengths.swap(at, random.below(at as u64 + 1) as usize);
        }
        let mut came = Vec::with_capacity(64);
        let before = time::now_ns()?;
        // SAFETY: nothing of rt is under way; the entries name no memory; all completions are taken.
        let mut ring = unsafe { RawRing::take() };
        for length in &lengths {
            let sleep = Sqe { op: Op::Sleep as u8, cap: timer, arg0: length * MS, ..Sqe::default() };
            ring.push(Sqe { user_data: *length, ..sleep });
        }
        // Deadlines count from when the kernel takes the entries: the first and the last differ by at most this.
        let taking = ticks();
        ring.enter(0, 0);
        let spread_us = (ticks() - taking) / per_us + 1;
        while came.len() < lengths.len() {
            let cqe = ring.next_cqe();
            came.push((cqe.user_data, cqe.status));
        }
        drop(ring);
        let took = time::now_ns()? - before;
        let mut latest = 0;
        for (length, status) in &came {
            ensure!(*status == 0 && lengths.contains(length), "round {round}: a sleep ended as {came:?}");
            ensure!(
                latest * 1000 <= length * 1000 + spread_us,
                "round {round}: sleeps of {lengths:?} ms, taken within {spread_us} us, ended as {came:?}"
            );
            latest = latest.max(*length);
        }
        ensure!(took >= u64::from(CQ_ENTRIES) * MS, "round {round}: all were over after {took} ns");
        spread_max = spread_max.max(spread_us);
    }
    println!("    5 times 32 sleeps of 1 to 32 ms, taken within {spread_max} us");
    Ok(())
}

fn cancel() -> Outcome {
    let timer: Timer = caps::any()?;
    for ns in [3_600_000 * MS, u64::MAX, u64::MAX - 1] {
        let sleeping = timer.sleep_start(ns).doing("start a sleep")?;
        refused("a withdrawn sleep", sleeping.cancel(), TransportError::Cancelled)?;
    }
    let mut over = timer.sleep_start(MS)?;
    ensure!(over.wait_timeout(10_000 * MS).is_some(), "a sleep of 1 ms was not over after 10 s");
    // A sleep that is over, or never existed, cannot be cancelled.
    // SAFETY: names no memory.
    let nothing = unsafe { ring::run(Sqe { op: Op::Cancel as u8, arg0: 0xdead, ..Sqe::default() }) };
    ensure!(nothing.status == 0 && nothing.value == 0, "withdrawing nothing: {nothing:?}");
    // Cancelled and completed at about the same time: exactly one of both happens.
    let (mut completed, mut withdrawn) = (0, 0);
    for n in 0..200 {
        let sleeping = timer.sleep_start(n * 1000 + 1)?;
        match sleeping.cancel() {
            Ok(()) => completed += 1,
            Err(error) if error.transport() == Some(TransportError::Cancelled) => withdrawn += 1,
            Err(error) => return Err(error.into()),
        }
    }
    println!(
        "    200 sleeps of 0 to 200 us: {completed} were over before they were withdrawn, {withdrawn} not"
    );
    Ok(())
}

fn deadline() -> Outcome {
    for ns in [1, MS, 4 * MS] {
        let before = time::now_ns()?;
        // SAFETY: the queue is empty.
        let there = unsafe { syscall::cap_enter(1, ns) };
        let took = time::now_ns()? - before;
        ensure!(there == 0 && took >= ns, "a wait of {ns} ns for nothing took {took} and found {there}");
    }
    // A completion ends the wait before its deadline.
    let timer: Timer = caps::any()?;
    let mut sleeping = timer.sleep_start(2 * MS)?;
    let before = time::now_ns()?;
    let is_over = sleeping.wait_timeout(60_000 * MS).is_some();
    let took = time::now_ns()? - before;
    ensure!(is_over && took < 60_000 * MS, "a sleep of 2 ms ended after {took} ns: {is_over}");
    // Threads with deadlines of their own.
    let mut threads = Vec::new();
    for n in 1..=8 {
        let wait = move || -> Outcome {
            for _ in 0..5 {
                let before = time::now_ns()?;
                // SAFETY: the queue is empty.
                let there = unsafe { syscall::cap_enter(1, n * MS) };
                let took = time::now_ns()? - before;
                ensure!(there == 0 && took >= n * MS, "a wait of {n} ms took {took} ns and found {there}");
            }
            Ok(())
        };
        threads.push(Builder::new().spawn(wait).doing("spawn")?);
    }
    threads.into_iter().try_for_each(|thread| thread.join()?)
}

fn refusals() -> Outcome {
    let timer = caps::any::<Timer>()?.cap().id().0;
    let console = caps::any::<rt::Console>()?.cap().id().0;
    let sleep = Sqe { op: Op::Sleep as u8, arg0: 1, ..Sqe::default() };
    let cases = [
        ("a sleep by nothing", Sqe { cap: 0, ..sleep }, TransportError::BadCap),
        ("a sleep by a console", Sqe { cap: console, ..sleep }, TransportError::NotPermitted),
        ("a quiet sleep", Sqe { cap: timer, flags: 4, ..sleep }, TransportError::BadFlags),
    ];
    for (what, sqe, want) in cases {
        // SAFETY: names no memory.
        let cqe = unsafe { ring::run(sqe) };
        ensure!(cqe.status == want as i32, "{what}: {cqe:?} instead of {want:?}");
    }
    let unknown = Sqe { op: Op::Call as u8, cap: timer, method: 99, ..Sqe::default() };
    // SAFETY: names no memory.
    let cqe = unsafe { ring::run(unknown) };
    ensure!(cqe.status == rt::abi::Exception::Unimplemented as i32, "method 99 of a timer: {cqe:?}");
    Ok(())
}
