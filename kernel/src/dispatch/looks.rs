//! Statistics of threads and CPUs, as the scheduler counts them.

use super::Queue;
use crate::arch::cpu;
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::{self, PerCpu};
use crate::time;
use crate::tracing;
use ::sched::{CpuTime, Snapshot};
use core::sync::atomic::Ordering;
use trace::Kind;

/// How often [`snapshot`] looks for a thread that migrates meanwhile.
const LOOKS: usize = 4;

/// What the scheduler counts for thread `tid`, wherever it is. `None` if it ended, or was found in none of several attempts because it migrated.
pub fn snapshot(tid: u32) -> Option<Snapshot> {
    let thread = heads::get(tid)?;
    for _ in 0..LOOKS {
        let wait = thread.wait.lock();
        if let Some(parked) = &wait.parked {
            return Some(parked.snapshot());
        }
        drop(wait);
        // The CPU where it was queued last, or the one where it ran last: a thread that wakes an idle CPU runs without having been queued.
        let places = [thread.ticket().cpu.index(), thread.cpu.load(Ordering::Relaxed) as usize];
        let found = places.into_iter().find_map(|cpu| snapshot_on(percpu::get(cpu)?, thread));
        if found.is_some() {
            return found;
        }
        cpu::pause();
    }
    None
}

fn snapshot_on(cpu: &PerCpu, thread: &ThreadHead) -> Option<Snapshot> {
    let mut queue = cpu.dispatch.queue.lock();
    // The time since the last event counts, too.
    charge(cpu, &mut queue);
    let ticket = thread.ticket();
    if queue.current() == Some(ticket.thread) {
        return queue.current_snapshot();
    }
    queue.queued_snapshot(&ticket)
}

/// What the scheduler counts for the thread that runs here, charged up to now.
pub fn current_snapshot() -> Option<Snapshot> {
    let me = percpu::this();
    let mut queue = me.dispatch.queue.lock();
    charge(me, &mut queue);
    queue.current_snapshot()
}

/// Charges the time of a CPU up to now.
pub(super) fn charge(cpu: &PerCpu, queue: &mut Queue) {
    let now = time::now_ns();
    tracing::note(cpu, Kind::Charge, now);
    queue.refreshed_summary(now);
}

/// A CPU's time so far, and how many threads wait there.
pub fn cpu_time(cpu: &PerCpu) -> (CpuTime, usize) {
    let mut queue = cpu.dispatch.queue.lock();
    charge(cpu, &mut queue);
    assert_time(&queue);
    (queue.time(), queue.waiting())
}

/// How often a thread migrated to this CPU.
pub fn migrations(cpu: &PerCpu) -> u64 {
    cpu.dispatch.queue.lock().migrations()
}

/// S-12: every nanosecond of a CPU was charged to a thread, to idle or to interrupts. S-16: threads are charged for no more interrupt time than there
/// was.
pub(super) fn assert_time(queue: &Queue) {
    let time = queue.time();
    assert_eq!(time.total_ns(), queue.wall_ns(), "S-12: a CPU's time does not add up");
    assert!(time.interrupt_owned_ns <= time.interrupt_ns, "S-16: threads pay for interrupts that were none");
}
