//! Proof that a program that does something forbidden dies alone: runs `fault` with each of its forbidden
//! things.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::arch::asm;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, Usage};
use programs::proof::{Doing, Outcome, prove, step};
use rt::abi::rights;
use rt::thread::Builder;
use rt::{Endpoint, ExitReason, Factory, caps, println};

rt::main!(run);

/// Forbidden things that must end the process.
const DEADLY: [&str; 10] = [
    "null-read",
    "kernel-read",
    "write-text",
    "execute-data",
    "jump-kernel",
    "jump-noncanonical",
    "divide",
    "privileged",
    "stack-overflow",
    "suspend-smap",
];

fn run() -> i64 {
    if rt::args::args().next() == Some("neighbour") {
        return prove("faults neighbour", neighbour);
    }
    prove("faults", || {
        println!("faults: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        let endpoint = caps::any::<Factory>()?.endpoint()?;
        let neighbour =
            kit::again(&["neighbour"], &[("served", rt::Client::cap(&endpoint), rights::RECV, 0)])?;
        // A thread of this process, which must not notice anything, either.
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
        step("what a neighbour loads into segment registers is not seen here", || {
            for bits in 1..8 {
                let loaded = endpoint.call(LOAD, [bits, 0]).doing("call the neighbour")?[1];
                ensure!(loaded == bits, "the neighbour loaded {loaded:#b} instead of {bits:#b}");
                let found = selectors();
                ensure!(found == [0; 4], "DS, ES, FS, GS after {bits:#b}: {found:x?}");
                calls += 1;
            }
            Ok(())
        })?;
        let mut all = || -> Outcome {
            for name in DEADLY {
                deadly(name)?;
                // The neighbour goes on counting.
                let counted = endpoint.call(1, [calls, 0]).doing("call the neighbour")?;
                ensure!(counted == [calls + 1, calls], "the neighbour says {counted:?} after {calls} calls");
                calls += 1;
            }
            Ok(())
        };
        step("each of ten faults ends its process, as faulted, and no other", &mut all)?;
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

/// Runs `fault` with one of its deadly things.
fn deadly(name: &str) -> Outcome {
    let child = kit::start("fault", &[name], &[])?;
    let exit = child.wait().doing("wait")?;
    ensure!(exit.reason == ExitReason::Faulted && exit.code != 0, "{name}: {exit}");
    Ok(())
}

/// A call that makes the neighbour load segment registers.
const LOAD: u16 = 2;
/// The selector of user mode's data.
const USER_DATA: u16 = 0x1b;

/// DS, ES, FS and GS.
fn selectors() -> [u16; 4] {
    let (ds, es, fs, gs): (u64, u64, u64, u64);
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0:e}, ds", "mov {1:e}, es", "mov {2:e}, fs", "mov {3:e}, gs",
            out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags));
    }
    [ds, es, fs, gs].map(|selector| selector as u16)
}

/// Loads DS, ES and GS by the bits of `wanted` (FS is left alone, because thread-local data uses it);
/// returns which are loaded.
fn load_selectors(wanted: u64) -> u64 {
    let [ds, es, gs] = [1, 2, 4].map(|bit| if wanted & bit == 0 { 0 } else { u64::from(USER_DATA) });
    // SAFETY: in 64-bit mode DS and ES mean nothing, and nothing here uses GS.
    unsafe {
        asm!("mov ds, {0:e}", "mov es, {1:e}", "mov gs, {2:e}",
            in(reg) ds, in(reg) es, in(reg) gs, options(nomem, nostack, preserves_flags));
    }
    let [ds, es, _, gs] = selectors().map(|selector| u64::from(selector == USER_DATA));
    ds | es << 1 | gs << 2
}

/// Role `neighbour`: counts calls, and loads segment registers if asked.
fn neighbour() -> Outcome {
    let endpoint: Endpoint = caps::get("served")?;
    let mut count = 0;
    endpoint
        .serve(|call| {
            count += 1;
            let word = call.message.words()[0];
            match call.method {
                0 => Break([count, 0]),
                LOAD => Continue([count, load_selectors(word)]),
                _ => Continue([count, word]),
            }
        })
        .doing("serve")
}
