//! What the kernel says about a worker's thread: how much CPU time it had, and whether it wants more. By this the
//! watchdog distinguishes a task that holds its worker from a task whose worker gets no CPU.

use std::sync::atomic::{AtomicI32, Ordering};

/// The thread of a worker; 0 until one is bound.
#[derive(Debug, Default)]
pub(crate) struct ThreadCpu(AtomicI32);

impl ThreadCpu {
    /// Without a thread.
    pub(crate) const fn new() -> ThreadCpu {
        ThreadCpu(AtomicI32::new(0))
    }

    /// Binds it to the calling thread.
    pub(crate) fn bind(&self) {
        // SAFETY: takes no arguments, and cannot fail.
        self.0.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }

    /// The CPU time that the thread had; `None`: it is gone, or there is none.
    pub(crate) fn time_ns(&self) -> Option<u64> {
        let id = self.0.load(Ordering::Relaxed);
        // The kernel's number for the clock of a thread: the thread's id, inverted, and three bits that say "thread"
        // and "scheduled".
        let clock = (!id << 3) | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: there is room for the answer. A clock that does not exist is an error.
        let answer = unsafe { libc::clock_gettime(clock, &raw mut time) };
        (id != 0 && answer == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// What the kernel says about the thread in this file.
    fn told(&self, file: &str) -> std::io::Result<String> {
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0.load(Ordering::Relaxed)))
    }

    /// Whether the thread is in this state, which stands behind its name; the name may contain anything.
    fn is_in(&self, state: char) -> bool {
        self.told("stat")
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state)))
    }

    /// Whether the thread runs, or waits for nothing but a CPU.
    pub(crate) fn wants_cpu(&self) -> bool {
        self.is_in('R')
    }

    /// Whether the thread is in the system call that waits for locks, condition variables and joins of threads. Where
    /// the kernel does not tell the system call, whether it sleeps at all.
    pub(crate) fn waits_for_lock(&self) -> bool {
        match self.told("syscall") {
            Ok(call) => call.split(' ').next() == Some(&libc::SYS_futex.to_string()),
            Err(_) => self.is_in('S'),
        }
    }
}
