//! Proof by proofs: runs those of threads, timers, parking, IPC and rings as child processes, and looks at the kernel's counters.
#![no_std]
#![no_main]

extern crate alloc;

use programs::ensure;
use programs::kit::{self, Usage};
use programs::proof::{Outcome, prove, step};
use rt::println;

rt::main!(run);

/// The children.
const PROOFS: [&str; 6] = ["thread-lifecycle", "timer-smoke", "timer-flood", "park", "ipc", "ring-flood"];

fn run() -> i64 {
    prove("spawn", || {
        println!("spawn: pid {}, {} CPUs", rt::boot_info().pid, rt::boot_info().cpus);
        for name in PROOFS {
            step(name, || kit::succeeds(name, &kit::start(name, &[], &[])?))?;
        }
        step("what ran before leaves nothing behind when it runs again (K-07)", || {
            let before = Usage::settled()?;
            kit::succeeds("timer-smoke", &kit::start("timer-smoke", &[], &[])?)?;
            before.comes_back("after a second timer-smoke")
        })?;
        step("every exit was checked for leftovers in queues (K-17)", counters)
    })
}

fn counters() -> Outcome {
    for counter in kit::system()?.counters()? {
        println!("    {:24} {}", counter.name, counter.value);
    }
    let (checked, unexpected) = (kit::counter("exits_checked")?, kit::counter("unexpected_interrupts")?);
    ensure!(checked > 0, "no exit was checked (K-17)");
    ensure!(unexpected == 0, "{unexpected} unexpected interrupts");
    let (depth, bytes) = (kit::counter("kernel_stack_depth")?, kit::counter("kernel_stack_bytes")?);
    ensure!(depth < bytes, "kernel stacks of {bytes} bytes were used to a depth of {depth}");
    Ok(())
}
