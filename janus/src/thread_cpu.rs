//! What the kernel says of a worker's thread: how much CPU time it had, and whether it wants more. The watchdog tells a task
//! that holds its worker from one whose worker gets no CPU.

use std::sync::atomic::{AtomicI32, Ordering};

/// The thread of a worker; none at first.
#[derive(Debug, Default)]
pub(crate) struct ThreadCpu(AtomicI32);

impl ThreadCpu {
    /// No thread yet.
    pub(crate) const fn new() -> ThreadCpu {
        ThreadCpu(AtomicI32::new(0))
    }

    /// It is the calling thread.
    pub(crate) fn bind(&self) {
        // SAFETY: takes nothing, and cannot fail.
        self.0.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }

    /// The CPU time that it had; None: it is gone, or there is none.
    pub(crate) fn time_ns(&self) -> Option<u64> {
        let id = self.0.load(Ordering::Relaxed);
        // How the kernel numbers the clock of a thread: its id, inverted, and three bits that say "thread" and "scheduled".
        let clock = (!id << 3) | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: there is room for the answer. A clock that there is not is an error.
        let answer = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (id != 0 && answer == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// What the kernel tells of it in this file.
    fn told(&self, file: &str) -> std::io::Result<String> {
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0.load(Ordering::Relaxed)))
    }

    /// Is it in this state? It stands behind its name, which may contain anything.
    fn is_in(&self, state: char) -> bool {
        self.told("stat")
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state)))
    }

    /// Does it run, or wait for nothing but a CPU?
    pub(crate) fn wants_cpu(&self) -> bool {
        self.is_in('R')
    }

    /// Is it in the system call by which locks, conditions and joins of threads are waited for? Where the kernel does not tell, does it
    /// sleep at all?
    pub(crate) fn waits_for_lock(&self) -> bool {
        match self.told("syscall") {
            Ok(call) => call.split(' ').next() == Some(&libc::SYS_futex.to_string()),
            Err(_) => self.is_in('S'),
        }
    }
}
