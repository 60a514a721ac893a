//! Proof that a program that does what it may not dies alone: runs `fault` in each of its ways.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, Usage};
use programs::proof::{Doing, Outcome, prove, step};
use rt::abi::rights;
use rt::thread::Builder;
use rt::{Endpoint, ExitReason, Factory, caps, println};

rt::main!(run);

/// Ways to go wrong that must end the process.
const DEADLY: [&str; 9] = [
    "null-read",
    "kernel-read",
    "write-text",
    "execute-data",
    "jump-kernel",
    "jump-noncanonical",
    "divide",
    "privileged",
    "stack-overflow",
];

fn run() -> i64 {
    if rt::args::args().next() == Some("neighbour") {
        return prove("faults neighbour", neighbour);
    }
    prove("faults", || {
        println!("faults: pid {}, {} CPUs", rt::boot_info().pid, rt::boot_info().cpus);
        let endpoint = caps::any::<Factory>()?.endpoint()?;
        let neighbour =
            kit::again(&["neighbour"], &[("served", rt::Client::cap(&endpoint), rights::RECV, 0)])?;
        // A thread of this process that has to notice nothing, either.
        let (is_over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (theirs, count) = (Arc::clone(&is_over), Arc::clone(&turns));
        let spin = move || {
            while !theirs.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
                rt::thread::yield_now();
            }
        };
        let spinner = Builder::new().spawn(spin).doing("spawn")?;
        let mut calls = 0;
        let mut all = || -> Outcome {
            for name in DEADLY {
                deadly(name)?;
                // The neighbour counts on.
                let counted = endpoint.call(1, [calls, 0]).doing("call the neighbour")?;
                ensure!(counted == [calls + 1, calls], "the neighbour says {counted:?} after {calls} calls");
                calls += 1;
            }
            Ok(())
        };
        step("each of nine faults ends its process, as faulted, and no other", &mut all)?;
        step("system calls that do not exist are no fault (K-10)", || {
            kit::succeeds("bad-syscall", &kit::start("fault", &["bad-syscall"], &[])?)
        })?;
        let before = Usage::settled()?;
        step("the machine is as before after two more rounds", || {
            all()?;
            all()?;
            before.comes_back("after faults")
        })?;
        is_over.store(true, Ordering::Relaxed);
        spinner.join()?;
        endpoint.call(0, [0; 2]).doing("the last call")?;
        kit::succeeds("the neighbour", &neighbour)?;
        println!(
            "    the neighbour answered {calls} calls, a thread beside took {} turns",
            turns.load(Ordering::Relaxed)
        );
        Ok(())
    })
}

/// Runs `fault` with one of its deadly ways.
fn deadly(name: &str) -> Outcome {
    let child = kit::start("fault", &[name], &[])?;
    let exit = child.wait().doing("wait")?;
    ensure!(exit.reason == ExitReason::Faulted && exit.code != 0, "{name}: {exit}");
    Ok(())
}

/// Role `neighbour`: counts calls.
fn neighbour() -> Outcome {
    let endpoint: Endpoint = caps::get("served")?;
    let mut count = 0;
    endpoint
        .serve(|call| {
            count += 1;
            if call.method == 0 { Break([count, 0]) } else { Continue([count, call.message.words()[0]]) }
        })
        .doing("serve")
}
