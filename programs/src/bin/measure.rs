//! What threads cost: time from wake-up to running again, depth of kernel stacks, bytes; and ten thousand threads at once (K-14).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, MS, Usage};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use rt::abi::rights;
use rt::thread::{self, Builder};
use rt::{Client, ExitReason, Factory, MemoryObject, ParkSpace, Parked, caps, println, time};

rt::main!(run);

/// Rounds of each measurement.
const ROUNDS: usize = 300;
/// Threads in all, if memory allows, and of one process (the kernel's limit is 1024).
const CROWD: u32 = 10_000;
const PER_PROCESS: u32 = 1_000;
/// A guest with this many frames must hold all threads: 512 MiB, less what firmware and kernel take.
const CROWD_FRAMES: u64 = 120_000;

fn run() -> i64 {
    let mut args = rt::args::args();
    match args.next() {
        Some("crowd") => return prove_quietly(crowd_member(args.next())),
        Some("leaver") => return leaver(),
        _ => {}
    }
    prove("measure", || {
        println!("measure: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("parked to running again (K-14)", resume)?;
        step("a process that ends while a thread of it is parked (K-14)", exit_while_parked)?;
        step("ten thousand threads", crowd)?;
        step("sizes", sizes)
    })
}

fn prove_quietly(outcome: Outcome) -> i64 {
    match outcome {
        Ok(()) => 0,
        Err(Failure(why)) => {
            println!("measure: {why}");
            1
        }
    }
}

fn print_spread(what: &str, samples: &mut [u64]) {
    samples.sort_unstable();
    let (min, max) = (samples[0], samples[samples.len() - 1]);
    println!(
        "    {what}: min {min} ns, median {} ns, max {max} ns ({} rounds)",
        samples[samples.len() / 2],
        samples.len()
    );
}

fn resume() -> Outcome {
    let word = Arc::new(AtomicU32::new(0));
    let (woken_at, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (theirs, stamp, over) = (Arc::clone(&word), Arc::clone(&woken_at), Arc::clone(&is_over));
    let sleeper = Builder::new()
        .spawn(move || -> Outcome {
            let space: ParkSpace = caps::any()?;
            while !over.load(Ordering::Acquire) {
                if space.park(&theirs, 0, 1000 * MS)? == Parked::Woken {
                    stamp.store(time::now_ns()?, Ordering::Release);
                }
            }
            Ok(())
        })
        .doing("spawn")?;
    let space: ParkSpace = caps::any()?;
    let mut samples = Vec::new();
    let mut unpark_ns = Vec::new();
    while samples.len() < ROUNDS {
        // Long enough that the thread is parked, and its CPU idle, most of the time; if it is not, no thread is woken and this is
        // repeated.
        time::sleep(MS / 5)?;
        woken_at.store(0, Ordering::Release);
        let before = time::now_ns()?;
        if space.unpark(&word, 1)? == 0 {
            continue;
        }
        unpark_ns.push(time::now_ns()? - before);
        let woken = loop {
            match woken_at.load(Ordering::Acquire) {
                0 => thread::yield_now(),
                woken => break woken,
            }
        };
        ensure!(woken >= before, "it ran before it was woken");
        samples.push(woken - before);
    }
    is_over.store(true, Ordering::Release);
    space.unpark(&word, 1)?;
    sleeper.join()??;
    print_spread("unpark to running in user mode", &mut samples);
    print_spread("the unpark itself", &mut unpark_ns);
    Ok(())
}

/// Role `leaver`: one thread is parked, the other ends the process.
fn leaver() -> i64 {
    let word: &'static AtomicU32 = alloc::boxed::Box::leak(alloc::boxed::Box::new(AtomicU32::new(0)));
    let parked = thread::spawn(move || {
        let _ = caps::any::<ParkSpace>().and_then(|space| space.park(word, 0, u64::MAX));
    });
    core::mem::forget(parked);
    let _ = time::sleep(2 * MS);
    let _ = caps::get::<rt::ProcessHandle>("self").and_then(|me| me.kill());
    1
}

fn exit_while_parked() -> Outcome {
    let mut before = Usage::now()?;
    let mut samples = Vec::new();
    for round in 0..12 {
        let started = time::now_ns()?;
        let child = kit::again(&["leaver"], &[])?;
        let exit = child.wait().doing("wait")?;
        samples.push(time::now_ns()? - started);
        ensure!(exit.reason == ExitReason::Killed, "{exit}");
        drop(child);
        if round == 3 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after processes that ended while parked")?;
    print_spread("spawn, 2 ms, exit beside a parked thread", &mut samples);
    Ok(())
}

/// What the members of the crowd tell their parent, in shared memory.
#[repr(C)]
struct Board {
    made: AtomicU32,
    finished: AtomicU32,
    go: AtomicU32,
}

fn board(object: &MemoryObject) -> Outcome<&'static Board> {
    let at = object.map(None, 0, 4096, true).doing("map the board")?;
    // SAFETY: a page of zeros, shared with processes that use the same structure of atomics; it stays mapped.
    Ok(unsafe { &*(at as *const Board) })
}

/// Role `crowd`: starts threads until it has enough or there is no room, and holds them until it is told to end.
fn crowd_member(count: Option<&str>) -> Outcome {
    let count: u32 = count.and_then(|text| text.parse().ok()).ok_or_else(|| Failure::new("how many?"))?;
    let board = board(&caps::get("board")?)?;
    let wait = move || {
        let space: rt::Result<ParkSpace> = caps::any();
        while board.go.load(Ordering::Acquire) == 0 {
            let _ = space.as_ref().map(|space| space.park(&board.go, 0, u64::MAX));
        }
    };
    let mut threads = Vec::new();
    for _ in 0..count {
        match Builder::new().stack_bytes(4096).spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                println!("    after {} threads of this process: {error}", threads.len());
                break;
            }
        }
        board.made.fetch_add(1, Ordering::AcqRel);
    }
    board.finished.fetch_add(1, Ordering::AcqRel);
    wait();
    for thread in threads {
        thread.join()?;
    }
    Ok(())
}

fn crowd() -> Outcome {
    let object = caps::any::<Factory>()?.memory_object(4096)?;
    let board = board(&object)?;
    let space: ParkSpace = caps::any()?;
    let machine = kit::system()?.machine(0)?;
    let (started, before) = (time::now_ns()?, kit::system()?.free_frames()?);
    let mut children = Vec::new();
    // One process after the other, so that the time of each thread is its own.
    while board.made.load(Ordering::Acquire) < CROWD {
        let made = board.made.load(Ordering::Acquire);
        let wanted = (CROWD - made).min(PER_PROCESS);
        let grant = ("board", object.cap(), rights::CALL | rights::WRITE, 0);
        match kit::again(&["crowd", &format!("{wanted}")], &[grant]) {
            Ok(child) => children.push(child),
            Err(Failure(why)) => {
                println!("    no further process: {why}");
                break;
            }
        }
        while (board.finished.load(Ordering::Acquire) as usize) < children.len() {
            time::sleep(2 * MS)?;
            if let Some(child) = children.last()
                && let Some(exit) = child.handle.exit()?
            {
                return Err(Failure::new(format_args!("a process of the crowd ended: {exit}")));
            }
        }
        if board.made.load(Ordering::Acquire) < made + wanted {
            break;
        }
    }
    let made = board.made.load(Ordering::Acquire);
    let (took, after) = (time::now_ns()? - started, kit::system()?.free_frames()?);
    let running = kit::system()?.processes()?.iter().map(|process| process.threads).sum::<u32>();
    ensure!(running >= made, "{made} threads were made, {running} are there");
    let each = (before - after) * 4096 / u64::from(made.max(1));
    println!(
        "    {made} threads in {} processes in {} ms: {each} bytes each with stack and ring, {} us each",
        children.len(),
        took / MS,
        took / 1000 / u64::from(made.max(1))
    );
    println!("    {after} of {} frames are left", machine.frames);
    board.go.store(1, Ordering::Release);
    // One wake-up reaches at most 1024 threads.
    while space.unpark(&board.go, u32::MAX)? > 0 {}
    for child in &children {
        kit::succeeds("a process of the crowd", child)?;
    }
    ensure!(
        made == CROWD || machine.frames < CROWD_FRAMES,
        "only {made} threads fit in {} frames",
        machine.frames
    );
    Ok(())
}

fn sizes() -> Outcome {
    let machine = kit::system()?.machine(0)?;
    println!(
        "    bytes of kernel memory: {} a thread, {} a process, {} a ring",
        machine.bytes_per_thread, machine.bytes_per_process, machine.bytes_per_ring
    );
    let (depth, bytes) = (kit::counter("kernel_stack_depth")?, kit::counter("kernel_stack_bytes")?);
    println!("    kernel stacks of {bytes} bytes were used to a depth of {depth} bytes at most");
    ensure!(depth > 0 && depth < bytes, "the depth of kernel stacks is {depth} of {bytes} bytes");
    let counters = kit::system()?.counters()?;
    let value =
        |name: &str| counters.iter().find(|counter| counter.name == name).map(|counter| counter.value);
    for (what, count, ticks) in [
        ("a dispatch", "measured_dispatches", "measured_dispatch_ticks"),
        ("an interrupt", "measured_interrupts", "measured_interrupt_ticks"),
    ] {
        // Only a kernel that measures itself has these (T-03).
        let (Some(count), Some(ticks)) = (value(count), value(ticks)) else { continue };
        ensure!(count > 0 && ticks > count, "{what}: {count} times, {ticks} ticks");
        println!("    {} ticks {what}, {count} times", ticks / count);
    }
    for counter in counters {
        println!("    {:24} {}", counter.name, counter.value);
    }
    Ok(())
}
