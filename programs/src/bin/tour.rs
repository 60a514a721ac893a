//! A short tour that shows what the kernel is by what it does. Every sentence with a number in it is checked; the exit code is 1 if
//! one is not true. The steps about CPU time are in `programs/src/tour.rs`.
//!
//! `tour` plays it; `tour skippable` ends at a key; `tour count` is the neighbour of the step about faults.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::ensure;
use programs::proof::{Doing, Failure, Outcome, prove};
use programs::text::{Bar, Count, Mib, Thousands, permille};
use programs::tour::{self, Visitor};
use rt::abi::rights;
use rt::{
    Client, Command, Console, CpuInfo, Endpoint, Error, ExitReason, Factory, ProcessSpawner, SystemInfo,
    ThreadState, Timer, caps, print, println, thread, time,
};

rt::main!(run);

const MS: u64 = 1_000_000;
/// Columns of a bar.
const WIDTH: usize = 40;
/// How many CPUs get a thread and a bar. A machine with more is usually emulated, and its CPUs share a few real ones.
const BARS_MAX: usize = 16;
/// The time between two pictures of the CPUs.
const PICTURE_NS: u64 = 150 * MS;
/// Processes that are started and end in the last step.
const ROUNDS: u64 = 10;

/// A step: what it shows, and its function.
type Step = (&'static str, fn(&mut Visitor) -> Outcome);

const STEPS: [Step; 6] = [
    (
        "CPUs. Each has a run queue of its own; one busy thread for each, 16 at most,\n\
         \x20  and each has one for itself.",
        cpus,
    ),
    (
        "A budget. A thread holds 4 ms of CPU 0 in every 20 ms: before all others, and\n\
         \x20  no more. It wants the whole CPU, and so do two hogs of 16 times its weight.",
        tour::budget,
    ),
    (
        "Lent along a call. It calls a server that has no time of its own: the server\n\
         \x20  runs at once, past the hogs, on the caller's budget and not beyond it.",
        tour::loan,
    ),
    (
        "Taken back. A budget is a capability: whoever made it can revoke it while it\n\
         \x20  is in use, and give another.",
        tour::taken_back,
    ),
    (
        "Faults. A process reads address 0 and dies, with a report by the kernel; its\n\
         \x20  neighbour, another process, goes on counting.",
        fault,
    ),
    ("Memory. Processes come and go, and every frame that they had comes back.", frames),
];

fn run() -> i64 {
    let mode = rt::args::args().next();
    match mode {
        Some("count") => return count(),
        None | Some("skippable") => {}
        Some(other) => {
            println!("tour: what is `{other}`? Type `run tour`");
            return 2;
        }
    }
    if mode.is_some() {
        return skippable();
    }
    prove("tour", || {
        let mut visitor = Visitor { is_live: false, key: None, has_left: false };
        play("", &mut visitor).map(|_| ())
    })
}

/// The tour until a key is pressed.
fn skippable() -> i64 {
    let console: Result<Console, Error> = caps::any();
    let key = console.and_then(|console| console.read_start(1)).ok();
    let mut visitor = Visitor { is_live: true, key, has_left: false };
    match play("\nA key skips the rest of it.", &mut visitor) {
        Ok(true) => println!("tour: all of it was true"),
        Ok(false) => println!("tour: skipped"),
        Err(Failure(why)) => {
            println!("tour: FAILED {why}");
            return 1;
        }
    }
    println!("Next: `help` lists demos and commands; `run budget` is one, `top` shows the CPUs.");
    0
}

/// Plays the steps, after a `hint`, until the visitor leaves; returns whether all were played.
fn play(hint: &str, visitor: &mut Visitor) -> Outcome<bool> {
    let machine = caps::any::<SystemInfo>()?.machine(0)?;
    println!(
        "\nA tour of {}: {}, {} MiB of memory, {} ms after boot.{hint}",
        machine.kernel_version,
        Count(machine.cpus.into(), "CPU"),
        Mib(machine.frames),
        machine.uptime_ns / MS
    );
    for (index, (text, show)) in STEPS.iter().enumerate() {
        println!("\n{}. {text}", index + 1);
        show(visitor).map_err(|Failure(why)| Failure::new(format_args!("step {}: {why}", index + 1)))?;
        if visitor.leaves() {
            return Ok(false);
        }
    }
    println!();
    Ok(true)
}

/// The busy part of a CPU's time between two samples, in thousandths.
fn busy(before: &CpuInfo, now: &CpuInfo) -> u64 {
    let busy = (now.busy_ns + now.interrupt_ns).saturating_sub(before.busy_ns + before.interrupt_ns);
    permille(busy, busy + now.idle_ns.saturating_sub(before.idle_ns))
}

/// Starts a thread that counts turns until `is_over`, and returns how many.
fn turner(is_over: &Arc<AtomicBool>) -> Outcome<thread::JoinHandle<u64>> {
    let is_over = Arc::clone(is_over);
    let work = move || {
        let mut turns = 0_u64;
        while !is_over.load(Ordering::Relaxed) {
            turns += 1;
            core::hint::spin_loop();
        }
        turns
    };
    thread::Builder::new().stack_bytes(8192).spawn(work).doing("start a thread")
}

/// Draws a bar for each CPU, with the threads of this process that are on it.
fn draw_cpus(system: &SystemInfo, before: &[CpuInfo], now: &[CpuInfo], is_live: bool) -> Outcome {
    let mut threads = system.threads()?;
    threads.retain(|thread| thread.pid == rt::boot_info().pid && thread.state != ThreadState::Blocked);
    let mut bars: Vec<(u64, &CpuInfo)> =
        before.iter().zip(now).map(|(old, cpu)| (busy(old, cpu), cpu)).collect();
    // If there are too many CPUs, only the busiest are shown.
    if bars.len() > BARS_MAX {
        bars.sort_by_key(|(share, _)| u64::MAX - share);
        bars.truncate(BARS_MAX);
        bars.sort_by_key(|(_, cpu)| cpu.id);
    }
    for (share, cpu) in bars {
        print!("   cpu {:2} |{}| {:3} %", cpu.id, Bar { permille: share, width: WIDTH }, share / 10);
        for thread in threads.iter().filter(|thread| thread.cpu == cpu.id && thread.tid != thread::id()) {
            print!("  thread {}", thread.tid);
        }
        println!("{}", if is_live { "\x1b[K" } else { "" });
    }
    Ok(())
}

fn cpus(visitor: &mut Visitor) -> Outcome {
    let system: SystemInfo = caps::any()?;
    let start = system.cpus()?;
    let (count, busy_count) = (start.len(), start.len().min(BARS_MAX));
    ensure!(count == rt::boot_info().cpus as usize, "{count} CPUs answer");
    ensure!(start.iter().all(|cpu| cpu.is_online), "a CPU is offline");
    let is_over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let (mut before, mut now) = (start.clone(), start);
    // Pictures with no threads, with half of them, and with all; the last one after they have been spread.
    let pictures = [0, busy_count / 2, busy_count, busy_count];
    for (picture, wanted) in pictures.into_iter().enumerate() {
        if visitor.leaves() {
            break;
        }
        while threads.len() < wanted {
            threads.push(turner(&is_over)?);
        }
        before = system.cpus()?;
        time::sleep(PICTURE_NS)?;
        now = system.cpus()?;
        let is_last = picture + 1 == pictures.len();
        if visitor.is_live && picture > 0 {
            print!("\x1b[{busy_count}A");
        }
        if visitor.is_live || is_last {
            draw_cpus(&system, &before, &now, visitor.is_live)?;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let mut turns = 0;
    for thread in threads {
        let own = thread.join()?;
        ensure!(own > 0 || visitor.has_left, "a thread never ran");
        turns += own;
    }
    if visitor.has_left {
        return Ok(());
    }
    if count > BARS_MAX {
        println!("   and {} CPUs more", count - BARS_MAX);
    }
    let shares: Vec<u64> = before.iter().zip(&now).map(|(old, cpu)| busy(old, cpu)).collect();
    let used = shares.iter().filter(|share| **share >= 250).count();
    ensure!(used >= busy_count, "{busy_count} threads kept {used} CPUs busy only: {shares:?} thousandths");
    let threads = Count(busy_count as u64, "thread");
    println!("   {threads} made {} thousand turns together; each ran", Thousands(turns / 1000));
    Ok(())
}

/// The neighbour: counts in one thread and reports the count in the other.
fn count() -> i64 {
    let tally = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&tally);
    let counter = move || {
        loop {
            theirs.fetch_add(1, Ordering::Relaxed);
            core::hint::spin_loop();
        }
    };
    // The thread counts until this process ends.
    let counting = thread::Builder::new().spawn(counter);
    let served = caps::get::<Endpoint>("count").and_then(|endpoint| {
        endpoint.serve(|call| {
            let words = [tally.load(Ordering::Relaxed), 0];
            if call.method == 1 { Continue(words) } else { Break(words) }
        })
    });
    i64::from(counting.is_err() || served.is_err())
}

fn fault(_: &mut Visitor) -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    let endpoint = caps::any::<Factory>()?.endpoint()?;
    let ask = endpoint.caller(1)?;
    let neighbour = Command::new("tour")
        .name("neighbour")
        .arg("count")
        .grant_basics()
        .grant("count", endpoint.cap(), rights::CALL | rights::RECV, 0)
        .spawn(&spawner)
        .doing("start the neighbour")?;
    // Only the neighbour can answer now, so a call would fail if it died.
    drop(endpoint);
    let before = ask.call(1, [0; 2]).doing("ask the neighbour")?[0];
    println!("   the neighbour (pid {}) has counted to {}", neighbour.pid, Thousands(before));
    let console: Console = caps::any()?;
    let child = Command::new("fault")
        .arg("null-read")
        .grant_basics()
        .grant("console", console.cap(), rights::CALL, 0)
        .spawn(&spawner)
        .doing("start the process that will die")?;
    let exit = child.wait()?;
    ensure!(exit.reason == ExitReason::Faulted, "pid {} ended otherwise: {exit}", child.pid);
    time::sleep(100 * MS)?;
    let after = ask.call(1, [0; 2]).doing("ask the neighbour again")?[0];
    ensure!(after > before, "the neighbour stands at {after}, after {before}");
    println!("   pid {} {exit}; the neighbour has counted to {}", child.pid, Thousands(after));
    ask.call(2, [0; 2])?;
    let exit = neighbour.wait()?;
    ensure!(exit.is_success(), "the neighbour ended: {exit}");
    Ok(())
}

/// Runs one process from start to end; returns the free frames while it lives.
fn one_process(spawner: &ProcessSpawner, system: &SystemInfo, timer: &Timer) -> Outcome<u64> {
    let child =
        Command::new("hello").grant_basics().grant("timer", timer.cap(), rights::CALL, 0).spawn(spawner)?;
    let during = system.free_frames()?;
    let exit = child.wait()?;
    ensure!(exit.is_success(), "hello (pid {}) ended: {exit}", child.pid);
    Ok(during)
}

fn frames(visitor: &mut Visitor) -> Outcome {
    let (spawner, system, timer): (ProcessSpawner, SystemInfo, Timer) =
        (caps::any()?, caps::any()?, caps::any()?);
    thread::trim();
    // The first processes make the tables grow to the size that they need.
    for _ in 0..2 {
        one_process(&spawner, &system, &timer)?;
    }
    time::sleep(50 * MS)?;
    let before = system.free_frames()?;
    let mut lowest = before;
    print!("   spawn, run, exit: ");
    for _ in 0..ROUNDS {
        lowest = lowest.min(one_process(&spawner, &system, &timer)?);
        print!("#");
        if visitor.leaves() {
            println!();
            return Ok(());
        }
    }
    println!(" {ROUNDS} processes");
    // The last thread's stack is freed by the thread that runs next on its CPU.
    let mut after = system.free_frames()?;
    for _ in 0..100 {
        if after == before {
            break;
        }
        time::sleep(10 * MS)?;
        after = system.free_frames()?;
    }
    println!("   free frames: {before} before, {lowest} at the lowest, {after} after");
    ensure!(after == before, "{} frames are missing", before as i64 - after as i64);
    ensure!(lowest < before, "no process used any frame");
    Ok(())
}
