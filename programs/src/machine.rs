//! The machine as a whole: free frames and live processes, before and after.

use rt::abi::{CapSetEntry, Interface};
use rt::{Command, SystemInfo, caps, println, thread, time};

use crate::ensure;
use crate::proof::{Doing, Outcome};

/// A millisecond.
pub const MS: u64 = 1_000_000;

/// How long the kernel may take to free what ended processes had.
const PATIENCE_NS: u64 = 5_000 * MS;

/// The machine at one moment at which nothing is under way.
pub struct Before {
    info: SystemInfo,
    /// Frames that nobody used.
    pub free: u64,
    /// Processes that there were.
    pub processes: usize,
}

impl Before {
    /// Waits until the count of free frames stands still, and remembers it.
    pub fn take() -> Outcome<Before> {
        let info: SystemInfo = caps::any().doing("system_info")?;
        thread::trim();
        // Once, so that what the list needs of this program's heap is there already.
        let mut processes = info.processes().doing("list processes")?.len();
        let (mut free, mut calm) = (0, 0);
        while calm < 5 {
            time::sleep(3 * MS).doing("sleep")?;
            let now = info.free_frames().doing("free frames")?;
            calm = if now == free { calm + 1 } else { 0 };
            free = now;
            processes = processes.min(info.processes().doing("list processes")?.len());
        }
        Ok(Before { info, free, processes })
    }

    /// Fails unless the machine comes back to exactly what it was.
    pub fn check(&self, what: &str) -> Outcome {
        thread::trim();
        let (mut free, mut processes) = (0, 0);
        let end = time::now_ns().doing("now")? + PATIENCE_NS;
        while time::now_ns().doing("now")? < end {
            processes = self.info.processes().doing("list processes")?.len();
            free = self.info.free_frames().doing("free frames")?;
            if (free, processes) == (self.free, self.processes) {
                println!("    {what}: {free} frames free and {processes} processes, as before");
                return Ok(());
            }
            time::sleep(5 * MS).doing("sleep")?;
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
            free == self.free,
            "{what}: {free} frames are free, there were {}: {} are lost",
            self.free,
            self.free.cast_signed() - free.cast_signed()
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

/// `program` with everything that this process was granted, except its own handle and the power switch.
pub fn command<'a>(program: &'a str, name: &'a str) -> Command<'a> {
    let is_left_out =
        |entry: &CapSetEntry| caps::name_of(entry) == "self" || entry.interface == Interface::Power as u16;
    Command::new(program).name(name).grant_all(is_left_out)
}

/// Makes the kernel's tables as large as they will get: `threads` threads at once, in this process. What the tables take they keep,
/// and that is no leak.
pub fn warm_up(threads: usize) -> Outcome {
    let mut handles = alloc::vec::Vec::new();
    for _ in 0..threads {
        let nap = || time::sleep(20 * MS).is_ok();
        handles.push(thread::Builder::new().stack_bytes(8192).spawn(nap).doing("warm up: spawn")?);
    }
    for handle in handles {
        handle.join().doing("warm up: join")?;
    }
    thread::trim();
    Ok(())
}
