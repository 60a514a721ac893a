//! The machine as a whole: compares free frames and live processes before and after a test.

use alloc::sync::Arc;
use alloc::vec::Vec;
use rt::abi::{CapSetEntry, Interface, rights};
use rt::sync::Mutex;
use rt::{Command, ProcessSpawner, SystemInfo, caps, println, thread, time};

use crate::ensure;
use crate::kit::Patience;
use crate::proof::{Doing, Outcome};

/// A millisecond.
pub const MS: u64 = 1_000_000;

/// The state of the machine at a moment when nothing is under way.
pub struct Before {
    info: SystemInfo,
    /// Free frames.
    pub free: u64,
    /// Live processes.
    pub processes: usize,
    /// Frames in use by anything but the kernel's heap, and bytes of that heap in use.
    used: (u64, u64),
    /// Records of threads. They are never given back: if there are more at the check, the warm-up was too small.
    records: u64,
}

impl Before {
    /// Waits until the count of free frames stands still, and remembers it.
    pub fn take() -> Outcome<Before> {
        let info: SystemInfo = caps::any().doing("system_info")?;
        thread::trim();
        // Lists the processes once before measuring, so that this program's heap already has the memory that the list needs.
        let mut processes = info.processes().doing("list processes")?.len();
        let (mut free, mut calm) = (0, 0);
        while calm < 5 {
            time::sleep(3 * MS).doing("sleep")?;
            let now = info.free_frames().doing("free frames")?;
            calm = if now == free { calm + 1 } else { 0 };
            free = now;
            processes = processes.min(info.processes().doing("list processes")?.len());
        }
        let used = used(&info)?;
        let mut before = Before { info, free, processes, used, records: 0 };
        before.records = before.counter("thread_records")?;
        Ok(before)
    }

    /// Fails unless the machine returns to this state: as many processes, as many frames in use, as many bytes of the kernel's heap.
    ///
    /// The count of free frames is only printed. It may differ by a page or two of the heap, because a page stays in use as long as one block
    /// in it does: the nodes of run queues pass from thread to thread, so an old thread may hold a node that a new one brought.
    pub fn check(&self, what: &str) -> Outcome {
        thread::trim();
        let (mut processes, mut now_used) = (0, (0, 0));
        let mut patience = Patience::default();
        while patience.is_left() {
            processes = self.info.processes().doing("list processes")?.len();
            now_used = used(&self.info)?;
            let free = self.info.free_frames().doing("free frames")?;
            if (now_used, processes) == (self.used, self.processes) {
                let (frames, bytes) = now_used;
                println!(
                    "    {what}: {processes} processes, {frames} frames and {bytes} bytes of heap in use, as before; \
                     {free} frames free, {:+}",
                    free.cast_signed() - self.free.cast_signed()
                );
                return Ok(());
            }
            time::sleep(MS).doing("sleep")?;
        }
        for process in self.info.processes().doing("list processes")? {
            println!(
                "    pid {} ({}) {:?}: {} threads, {} frames",
                process.pid, process.name, process.state, process.threads, process.frames
            );
        }
        for thread in self.info.threads().doing("list threads")? {
            println!("    thread {} of pid {}: {:?}", thread.tid, thread.pid, thread.state);
        }
        ensure!(
            processes == self.processes,
            "{what}: {processes} processes are left, there were {}",
            self.processes
        );
        ensure!(
            now_used == self.used,
            "{what}: {} frames and {} bytes of heap are in use, there were {} and {}; {} thread records, there were {}",
            now_used.0,
            now_used.1,
            self.used.0,
            self.used.1,
            self.counter("thread_records")?,
            self.records
        );
        Ok(())
    }

    /// One of the kernel's counters.
    pub fn counter(&self, name: &str) -> Outcome<u64> {
        let all = self.info.counters().doing("counters")?;
        let found = all.iter().find(|counter| counter.name == name);
        Ok(found.map_or(0, |counter| counter.value))
    }
}

fn used(info: &SystemInfo) -> Outcome<(u64, u64)> {
    let all = info.counters().doing("counters")?;
    let value =
        |name: &str| all.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value);
    Ok((value("frames_outside_heap"), value("heap_used_bytes")))
}

/// `program` with everything that this process was granted, except its own handle and the power switch.
pub fn command<'a>(program: &'a str, name: &'a str) -> Command<'a> {
    Command::new(program).name(name).grant_all(is_power)
}

/// `program` with the capabilities that the shell gives to every program: as [`command`], but without a right to bands above 0.
pub fn ordinary<'a>(program: &'a str, name: &'a str) -> Command<'a> {
    let given = |entry: &CapSetEntry| (!is_power(entry)).then_some(entry.rights & !rights::BANDS);
    Command::new(program).name(name).grant_each(given)
}

fn is_power(entry: &CapSetEntry) -> bool {
    entry.interface == Interface::Power as u16
}

/// Makes the kernel's tables as large as they will get, by so many concurrent threads in this process and so many concurrent processes (of
/// `program` with the argument `nap`, which must end by itself after a while). The tables keep that memory, which is no leak.
pub fn warm_up(threads: usize, program: &str, processes: usize) -> Outcome {
    // The threads stay until all of them exist, however long that takes.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let mut handles = Vec::new();
    for _ in 0..threads {
        let gate = Arc::clone(&gate);
        let pass = move || drop(gate.lock());
        handles.push(thread::Builder::new().stack_bytes(8192).spawn(pass).doing("warm up: spawn")?);
    }
    drop(closed);
    for handle in handles {
        handle.join().doing("warm up: join")?;
    }
    let spawner: ProcessSpawner = caps::any().doing("process_spawner")?;
    let mut children = Vec::new();
    for _ in 0..processes {
        children.push(command(program, "nap").arg("nap").spawn(&spawner).doing("warm up: start a process")?);
    }
    for child in children {
        child.handle.kill().doing("warm up: kill")?;
        child.wait().doing("warm up: wait")?;
    }
    thread::trim();
    Ok(())
}

/// The main function of a process that was started with the argument `nap`.
pub fn nap() -> i64 {
    i64::from(time::sleep(60_000 * MS).is_err())
}
