//! Proof that a deadline miss is noted at the deadline, by the timer, whichever thread runs (S-15).
//!
//! No set of contexts that the kernel admits misses a deadline, so this kernel is booted with `overload`: it promises what
//! it cannot keep.
#![no_std]
#![no_main]

use programs::contexts::misses;
use programs::kit::{self, MS};
use programs::proof::{Outcome, prove, step};
use programs::ticks::Scale;

rt::main!(run);

fn run() -> i64 {
    prove("deadline-misses", || {
        let scale = Scale::measure()?;
        step("while it waits (S-15)", || misses::missed(scale, [MS, 20 * MS], 0))?;
        step("while it runs (S-15)", || misses::missed(scale, [4 * MS, 3 * MS], 0))?;
        let last = last_cpu()?;
        step("told on another CPU (S-15)", || misses::missed(scale, [MS, 20 * MS], last))
    })
}

fn last_cpu() -> Outcome<u32> {
    Ok(kit::system()?.machine(0)?.cpus - 1)
}
