//! Runs other proofs (of threads, timers, parking, IPC and rings) as child processes, and checks the kernel's counters.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use programs::ensure;
use programs::kit::{self, MS, Usage, raised};
use programs::proof::{Doing, Outcome, prove, step};
use rt::abi::{Exception, rights};
use rt::{
    Answer, Client, Command, Endpoint, ExitReason, Factory, ProcessHandle, ProcessSpawner, caps, println,
    time,
};

rt::main!(run);

/// The children.
const PROOFS: [&str; 6] = ["thread-lifecycle", "timer-smoke", "timer-flood", "park", "ipc", "ring-flood"];

fn run() -> i64 {
    match rt::args::args().next() {
        Some("waited-for") => return prove("spawn waited-for", waited_for),
        Some("waiter") => return prove("spawn waiter", waiter),
        _ => {}
    }
    prove("spawn", || {
        println!("spawn: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        for name in PROOFS {
            step(name, || kit::succeeds(name, &kit::start(name, &[], &[])?))?;
        }
        step("what ran before leaves nothing behind when it runs again (K-07)", || {
            let before = Usage::settled()?;
            kit::succeeds("timer-smoke", &kit::start("timer-smoke", &[], &[])?)?;
            before.comes_back("after a second timer-smoke")
        })?;
        step("whoever else waits for a process, its parent can (K-08)", waiters)?;
        step("names that cannot be printed are refused", names)?;
        step("every exit was checked for leftovers in queues (K-17)", counters)
    })
}

/// Processes that wait, and how often each tries to: more often than there are places.
const WAITERS: u64 = 3;
const WAITS_OF_EACH: u64 = 25;

/// Role `waited-for`: a process that waits for itself cannot take the places of processes that wait for it.
fn waited_for() -> Outcome {
    let own: ProcessHandle = caps::get("self")?;
    for _ in 0..100 {
        let end = own.wait_start()?.wait_timeout(MS);
        ensure!(end.is_some(), "a process waits for its own end");
        raised("waiting for oneself", end.unwrap_or(Err(rt::Error::BadReply)), Exception::Failed)?;
    }
    caps::get::<Endpoint>("door")?.call(0, [0; 2])?;
    Ok(time::sleep(u64::MAX)?)
}

/// Role `waiter`: waits as often as it may for a process that is killed.
fn waiter() -> Outcome {
    let whom: ProcessHandle = caps::get("whom")?;
    let mut waits = Vec::new();
    for _ in 0..WAITS_OF_EACH {
        let mut wait = whom.wait_start()?;
        match wait.poll() {
            None => waits.push(wait),
            Some(end) => raised("one who waits too many", end, Exception::Overloaded)?,
        }
    }
    caps::get::<Endpoint>("door")?.call(0, [waits.len() as u64, 0])?;
    for wait in waits {
        let end = wait.wait().doing("wait")?;
        ensure!(end.reason == ExitReason::Killed, "the end is {end}");
    }
    Ok(())
}

fn waiters() -> Outcome {
    let door: Endpoint = caps::any::<Factory>()?.endpoint()?;
    let mut buffer = [0; 16];
    let mut hear = || -> Outcome<u64> {
        let call = door.recv(&mut buffer).doing("hear from a child")?;
        let [word, _] = call.message.words();
        door.reply(call.token, Answer::Words([0; 2]))?;
        Ok(word)
    };
    let child = kit::again(&["waited-for"], &[("door", door.cap(), rights::CALL, 0)])?;
    hear()?;
    let mut others = Vec::new();
    let mut waiting = 0;
    for _ in 0..WAITERS {
        let whom = ("whom", child.handle.cap(), rights::CALL, 0);
        others.push(kit::again(&["waiter"], &[whom, ("door", door.cap(), rights::CALL, 0)])?);
        waiting += hear()?;
    }
    ensure!(waiting < WAITERS * WAITS_OF_EACH, "all of {waiting} may wait: the list was not full");
    let end = child.handle.wait_start()?;
    child.handle.kill().doing("kill")?;
    let end = end.wait().doing("the parent waits")?;
    ensure!(end.reason == ExitReason::Killed, "the end is {end}");
    println!("    beside {waiting} others, who heard the same");
    others.iter().try_for_each(|other| kit::succeeds("one who waits", other))
}

fn names() -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let long = "x".repeat(25);
    for name in ["a\nb", "\x1b[2J", "DEL\x7f", "C1\u{80}", "CSI\u{9b}2J", "\u{9f}", &long] {
        raised(name, factory.session(name).map(drop), Exception::InvalidArgument)?;
        let child = Command::new(rt::args::program()).name(name).arg("waited-for").spawn(&spawner);
        raised(name, child.map(drop), Exception::InvalidArgument)?;
    }
    for name in ["with blanks", "\u{a0}", "h\u{e9}t\u{e9}rog\u{e8}ne", "~"] {
        factory.session(name).doing(name)?;
    }
    Ok(())
}

fn counters() -> Outcome {
    for counter in kit::system()?.counters()? {
        println!("    {:24} {}", counter.name, counter.value);
    }
    let (checked, unexpected) = (kit::counter("exits_checked")?, kit::counter("unexpected_interrupts")?);
    ensure!(checked > 0, "no exit was checked (K-17)");
    let shared = kit::counter("shared_locks_in_dispatch")?;
    ensure!(shared == 0, "dispatch took {shared} locks that others use");
    ensure!(unexpected == 0, "{unexpected} unexpected interrupts");
    let (depth, bytes) = (kit::counter("kernel_stack_depth")?, kit::counter("kernel_stack_bytes")?);
    ensure!(depth < bytes, "kernel stacks of {bytes} bytes were used to a depth of {depth}");
    Ok(())
}
