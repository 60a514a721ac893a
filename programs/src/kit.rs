//! What proofs ask of the kernel again and again: expected refusals, counters, frames that must come back, children.

use alloc::vec::Vec;
use core::fmt::Debug;

use abi::{CapId, Exception, TransportError};
use rt::{Cap, Child, Client, Command, Error, ProcessSpawner, SystemInfo, ThreadState, caps, time};

use crate::ensure;
use crate::proof::{Doing, Failure, Outcome};

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// How long something that the kernel does by itself may take. Long: the host may be busy.
pub const PATIENCE_MS: u64 = 20_000;

/// Fails unless `result` is the transport error `want`.
pub fn refused<T: Debug>(what: &str, result: rt::Result<T>, want: TransportError) -> Outcome {
    ensure!(
        result.as_ref().err().and_then(Error::transport) == Some(want),
        "{what}: {result:?} instead of {want:?}"
    );
    Ok(())
}

/// Fails unless `result` is the exception `want`, with a text.
pub fn raised<T: Debug>(what: &str, result: rt::Result<T>, want: Exception) -> Outcome {
    match &result {
        Err(Error::Exception { kind, message }) if *kind == want && !message.as_str().is_empty() => Ok(()),
        _ => Err(Failure::new(format_args!("{what}: {result:?} instead of {want:?} with a text"))),
    }
}

/// The machine's facts.
pub fn system() -> Outcome<SystemInfo> {
    caps::any().doing("system info")
}

/// A counter of the kernel.
pub fn counter(name: &str) -> Outcome<u64> {
    let counters = system()?.counters().doing("counters")?;
    let found = counters.iter().find(|counter| counter.name == name);
    found.map(|counter| counter.value).ok_or_else(|| Failure::new(format_args!("there is no counter {name}")))
}

/// Waits until `is_so` says so; fails after [`PATIENCE_MS`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome {
    let end = time::now_ns().doing("now")? + PATIENCE_MS * MS;
    while !is_so()? {
        ensure!(time::now_ns().doing("now")? < end, "{what}: not after {PATIENCE_MS} ms");
        time::sleep(MS).doing("sleep")?;
    }
    Ok(())
}

/// Waits until as many frames are free as `want`: what ended threads and processes had comes back when a CPU has left it.
pub fn frames_back(what: &str, want: u64) -> Outcome {
    let system = system()?;
    let mut free = 0;
    let is_back = wait_until(what, || {
        free = system.free_frames().doing("free frames")?;
        Ok(free == want)
    });
    is_back.map_err(|_| Failure::new(format_args!("{what}: {free} frames are free, not {want} as before")))
}

/// Waits until thread `tid` of this process waits in the kernel.
pub fn wait_blocked(tid: u32) -> Outcome {
    let (system, pid) = (system()?, rt::boot_info().pid);
    wait_until("a thread should wait", || {
        let threads = system.threads().doing("threads")?;
        let mut mine = threads.iter().filter(|thread| thread.pid == pid && thread.tid == tid);
        Ok(mine.any(|thread| thread.state == ThreadState::Blocked))
    })
}

/// How many threads this process has.
pub fn thread_count() -> Outcome<u32> {
    let processes = system()?.processes().doing("processes")?;
    let mine = processes.iter().find(|process| process.pid == rt::boot_info().pid);
    mine.map(|process| process.threads).ok_or_else(|| Failure::new("this process is not in the list"))
}

/// Starts this program again with `args`, with everything that this process has and `more`: name, capability, rights, badge.
pub fn again(args: &[&str], more: &[(&str, &Cap, u16, u32)]) -> Outcome<Child> {
    start(rt::args::program(), args, more)
}

/// Starts `program` with `args`, with everything that this process has and `more`.
pub fn start(program: &str, args: &[&str], more: &[(&str, &Cap, u16, u32)]) -> Outcome<Child> {
    let spawner: ProcessSpawner = caps::any()?;
    let mut command = Command::new(program).grant_all(|entry| {
        let name = caps::name_of(entry);
        name == "self" || more.iter().any(|(other, ..)| *other == name)
    });
    for arg in args {
        command = command.arg(arg);
    }
    for (name, cap, rights, badge) in more {
        command = command.grant(name, cap, *rights, *badge);
    }
    command.spawn(&spawner).doing("spawn a process")
}

/// Waits for a child that must succeed.
pub fn succeeds(what: &str, child: &Child) -> Outcome {
    let exit = child.wait().doing("wait")?;
    ensure!(exit.is_success(), "{what}: {exit}");
    Ok(())
}

/// Copies of `cap` until the table of capabilities is full.
pub fn fill_caps(cap: &Cap, rights: u16) -> Outcome<Vec<Cap>> {
    let mut copies = Vec::new();
    loop {
        match cap.copy(rights, 0) {
            Ok(copy) => copies.push(copy),
            Err(Error::Transport(TransportError::NoSpace)) => return Ok(copies),
            Err(error) => return Err(Failure::new(format_args!("copy {}: {error}", copies.len()))),
        }
    }
}

/// A client by the number of its capability, which stays.
pub fn client<C: Client>(id: CapId) -> C {
    C::of(Cap::borrowed(id))
}
