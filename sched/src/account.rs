//! What is counted: the time of a thread, and where each nanosecond of a CPU went.

use crate::{LatencyClass, Weight};

/// The running totals of one thread. Nothing here is ever rewritten, only added to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) runtime_ns: u64,
    pub(crate) virtual_runtime_ns: u64,
    pub(crate) runnable_ns: u64,
    pub(crate) runnable_since_ns: u64,
    pub(crate) throttled_ns: u64,
    pub(crate) served_ns: u64,
    pub(crate) voluntary_blocks: u64,
    pub(crate) preemptions: u64,
    pub(crate) migrations: u64,
    pub(crate) throttles: u64,
}

/// What a thread may be told about itself (F-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its weight.
    pub weight: Weight,
    /// Its latency class.
    pub class: LatencyClass,
    /// Time on a CPU.
    pub runtime_ns: u64,
    /// Weighted time on a CPU in the best-effort tier; cumulative, never rewritten by joining or migration.
    pub virtual_runtime_ns: u64,
    /// How often it gave up the CPU to wait.
    pub voluntary_blocks: u64,
    /// How often it lost the CPU while it could have gone on.
    pub preemptions: u64,
    /// Time spent waiting for a CPU.
    pub runnable_accumulated_ns: u64,
    /// Time spent waiting for a refill, in which it could not have used a CPU (S-15).
    pub throttled_ns: u64,
    /// Interrupt time that served it and was charged to it (S-16). Not part of `runtime_ns`.
    pub served_ns: u64,
    /// How often it changed CPU.
    pub migrations: u64,
    /// How often it ran out of its context's budget.
    pub throttles: u64,
    /// Whether it waits for a refill now.
    pub is_throttled: bool,
}

/// Where the wall time of a CPU went: the first three always add up to it (S-12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Spent running threads.
    pub thread_ns: u64,
    /// Spent with nothing to run.
    pub idle_ns: u64,
    /// Spent in interrupts and in the kernel, as the running time of no thread.
    pub interrupt_ns: u64,
    /// The part of `interrupt_ns` that served threads, which are charged for it (S-16). The rest is charged to no
    /// thread.
    pub interrupt_owned_ns: u64,
}

impl Account {
    /// Ends, at `now`, the wait for a refill that came at `refill_ns`; the time after the refill was a wait for
    /// the CPU.
    pub(crate) fn end_throttle(&mut self, refill_ns: u64, now: u64) {
        let end_ns = refill_ns.min(now).max(self.runnable_since_ns);
        self.throttled_ns += end_ns - self.runnable_since_ns;
        self.runnable_since_ns = end_ns;
    }
}

impl CpuTime {
    /// All of it: the wall time since the CPU's start.
    pub const fn total_ns(&self) -> u64 {
        self.thread_ns + self.idle_ns + self.interrupt_ns
    }
}
