//! The siege: programs that have only what the shell gives to `run` attack the kernel in every known way, in an order that a seed decides,
//! beside threads that were promised something. The supervisor is `src/bin/siege.rs`.
//!
//! [`machine`] has the attacks on memory, threads, endpoints and interrupts, [`time`] those on CPU time, and [`guard`] the threads that were
//! promised something and measure by themselves whether they got it. An attack goes on until its process is killed. An operation that is
//! refused is tried again: only the effect on others counts.

pub mod guard;
pub mod machine;
pub mod time;

use alloc::vec::Vec;

use rt::thread::{Builder, JoinHandle};
use rt::{ThreadControl, caps};

use crate::proof::Outcome;
use crate::random::Random;
use crate::workload;

/// The body of an attack; it returns only if there is nothing left to try.
type Attack = fn(&mut Random) -> Outcome;

/// All attacks, with no more than [`THREADS_MAX`] threads each.
pub const ATTACKS: [(&str, Attack); 23] = [
    ("hogs", machine::hogs),
    ("sleeps", machine::sleeps),
    ("maps", machine::maps),
    ("objects", machine::objects),
    ("memory", machine::memory),
    ("spawns", machine::spawns),
    ("capabilities", machine::capabilities),
    ("chains", machine::chains),
    ("crowd", machine::crowd),
    ("wakes", machine::wakes),
    ("listings", machine::listings),
    ("orphans", machine::orphans),
    ("sessions", machine::sessions),
    ("contexts", time::contexts),
    ("tiny", time::tiny),
    ("refusals", time::refusals),
    ("successors", time::successors),
    ("changes", time::changes),
    ("relay", time::relay),
    ("late-binds", time::late_binds),
    ("stops", time::stops),
    ("faults", time::faults),
    ("loans", time::loans),
];

/// The most threads that one attack may have at once, those of its children included.
pub const THREADS_MAX: usize = 320;
/// The most processes that one attack may have at once.
pub const PROCESSES_MAX: usize = 12;

/// The main function of a process of the siege: `siege attack NAME SEED`, or one of the roles that attacks start.
pub fn role(name: &str, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    match ATTACKS.iter().find(|(attack, _)| *attack == name) {
        Some((_, attack)) => attack(&mut random),
        None => match name {
            "leaf" => Ok(()),
            "crowd-member" => machine::park_many(200),
            "lingers" => machine::linger(&mut random),
            "has-orphans" => machine::leave_orphans(&mut random),
            "runner" => time::runner(),
            _ => Err(crate::proof::Failure::new(format_args!("there is no attack {name}"))),
        },
    }
}

/// Starts a thread with a small stack.
fn small(f: impl FnOnce() + Send + 'static) -> Outcome<JoinHandle<()>> {
    Ok(Builder::new().stack_bytes(16 << 10).spawn(f)?)
}

/// Starts threads that do `f` for as long as the process lives.
fn crew(count: usize, f: impl Fn() + Clone + Send + 'static) -> Outcome {
    for _ in 0..count {
        core::mem::forget(small(f.clone())?);
    }
    Ok(())
}

/// A random CPU of this machine.
fn some_cpu(random: &mut Random) -> u32 {
    random.below(u64::from(rt::boot_info().cpus)) as u32
}

/// Pins the calling thread to `cpu`.
fn pin(cpu: u32) {
    let mut mask: Vec<u8> = alloc::vec![0; cpu as usize / 8 + 1];
    mask[cpu as usize / 8] = 1 << (cpu % 8);
    if let Ok(control) = caps::any::<ThreadControl>() {
        let _ = control.set_affinity(&mask);
    }
}

/// Computes for ever, without a pause hint: an emulator whose CPUs take turns would then give the rest of this CPU's turn to the others.
fn spin() {
    let mut seed = 1;
    loop {
        seed = core::hint::black_box(workload::spin(200, seed));
    }
}

/// Waits until the process is killed.
fn wait_for_the_end() -> Outcome {
    rt::time::sleep(u64::MAX)?;
    Ok(())
}
