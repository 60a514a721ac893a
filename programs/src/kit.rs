//! Helpers for what many proofs do: check expected refusals, read counters, check that memory comes back, start children.

use alloc::vec::Vec;
use core::fmt::Debug;

use abi::{CapId, Exception, TransportError};
use rt::{Cap, Child, Client, Command, Error, ProcessSpawner, SystemInfo, ThreadState, caps, println, time};

use crate::ensure;
use crate::proof::{Doing, Failure, Outcome};

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// How often a waiter looks, about a millisecond apart, for something that the kernel does by itself before that thing counts as stuck.
const LOOKS_MAX: u32 = 20_000;

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

/// The capability to ask for facts about the machine.
pub fn system() -> Outcome<SystemInfo> {
    caps::any().doing("system info")
}

/// The value of the kernel counter `name`.
pub fn counter(name: &str) -> Outcome<u64> {
    let counters = system()?.counters().doing("counters")?;
    let found = counters.iter().find(|counter| counter.name == name);
    found.map(|counter| counter.value).ok_or_else(|| Failure::new(format_args!("there is no counter {name}")))
}

/// Limits how long a proof waits for something that may never happen.
///
/// It counts looks, not time: a busy host slows the waiting thread and the awaited event alike, so no proof fails because its host had other things
/// to do (K-24). How long a whole proof may take is decided by the host, which knows how busy it is.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
}

impl Patience {
    /// Counts one look in vain. Returns whether another look, after a pause, is allowed.
    pub fn is_left(&mut self) -> bool {
        self.looks += 1;
        self.looks < LOOKS_MAX
    }
}

/// Waits until `is_so` returns true; fails if that does not happen within the limit of [`Patience`].
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome {
    let mut patience = Patience::default();
    while !is_so()? {
        if !patience.is_left() {
            tell_who_does_what();
            return Err(Failure::new(format_args!(
                "{what}: not after {LOOKS_MAX} looks, a millisecond apart"
            )));
        }
        time::sleep(MS).doing("sleep")?;
    }
    Ok(())
}

/// Prints what the machine's first threads, contexts and CPUs do. It is called when a wait was in vain, so that the log shows what held it up.
fn tell_who_does_what() {
    const LINES_MAX: usize = 48;
    let Ok(system) = system() else { return };
    for thread in system.threads().iter().flatten().take(LINES_MAX) {
        println!("    {thread:?}");
    }
    for context in system.contexts().iter().flatten().take(LINES_MAX) {
        println!("    {context:?}");
    }
    for cpu in system.cpus().iter().flatten().take(LINES_MAX) {
        println!("    {cpu:?}");
    }
}

/// Calls `wait` with a timeout in nanoseconds until it returns a value; returns `None` if it is stuck.
pub fn patiently<T>(mut wait: impl FnMut(u64) -> Option<T>) -> Option<T> {
    (0..LOOKS_MAX).find_map(|_| wait(MS))
}

/// What the kernel uses. These counts are exact. The count of free frames alone is not: a page of the kernel's heap is in use as long as a single
/// block in it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Frames in use by anything but the kernel's heap.
    pub frames: u64,
    /// Bytes of the kernel's heap.
    pub heap_bytes: u64,
    /// Frames that this process owns.
    pub own_frames: u64,
    /// Free frames, as SystemInfo says it.
    pub free_frames: u64,
    /// Records of threads that exist; the records of ended threads are kept for new threads.
    pub records: u64,
}

/// By how many frames the count of free frames may differ although nothing is lost: heap pages that other blocks keep in use now.
const FRAGMENTS: u64 = 8;

impl Usage {
    /// The use at this moment.
    pub fn now() -> Outcome<Usage> {
        let processes = system()?.processes().doing("processes")?;
        let own_frames =
            processes.iter().find(|process| process.pid == rt::boot_info().pid).map_or(0, |own| own.frames);
        Ok(Usage {
            frames: counter("frames_outside_heap")?,
            heap_bytes: counter("heap_used_bytes")?,
            own_frames,
            free_frames: system()?.free_frames().doing("free frames")?,
            records: counter("thread_records")?,
        })
    }

    /// The use once it does not change any more: the kernel clears ended threads and processes away in the background.
    pub fn settled() -> Outcome<Usage> {
        let mut last = Usage::now()?;
        wait_until("the use of memory settles", || {
            time::sleep(4 * MS)?;
            let now = Usage::now()?;
            Ok(core::mem::replace(&mut last, now) == now)
        })?;
        Ok(last)
    }

    fn is_back(&self, now: &Usage) -> bool {
        let (mine, theirs) = (self.frames - self.own_frames, now.frames - now.own_frames);
        let slack = self.own_frames.abs_diff(now.own_frames) + FRAGMENTS;
        // A new maximum of concurrent threads makes the records and a few lists and tables longer, for good.
        let grown = if now.records > self.records { 2 * (now.records - self.records) + 2 } else { 0 };
        (mine..=mine + grown).contains(&theirs)
            && (self.heap_bytes..=self.heap_bytes + 1024 * grown).contains(&now.heap_bytes)
            && self.free_frames.abs_diff(now.free_frames) <= slack + grown
    }

    /// Waits until the kernel uses as much as when `self` was taken, apart from this process's own memory.
    pub fn comes_back(&self, what: &str) -> Outcome {
        let mut now = *self;
        let is_back = wait_until(what, || {
            now = Usage::now()?;
            Ok(self.is_back(&now))
        });
        is_back.map_err(|_| Failure::new(format_args!("{what}: {now:?} after {self:?}")))
    }
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

/// Starts this program again with `args`, with everything that this process has and with `more` (name, capability, rights, badge).
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

/// Copies `cap` until the table of capabilities is full.
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

/// A client that uses capability `id` without owning it: dropping the client leaves the capability in place.
pub fn client<C: Client>(id: CapId) -> C {
    C::of(Cap::borrowed(id))
}
