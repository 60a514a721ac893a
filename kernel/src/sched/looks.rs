//! What the scheduler counts, for those who look.

use super::Queue;
use crate::arch::cpu;
use crate::arch::percpu::{self, PerCpu};
use crate::thread;
use crate::time;
use crate::tracing;
use ::sched::{CpuTime, Snapshot, ThreadId};
use core::sync::atomic::Ordering;
use trace::Kind;

/// How often [`snapshot`] looks for a thread that moves meanwhile.
const LOOKS: usize = 4;

/// What the scheduler counts of thread `tid`, wherever it is. `None` if it ended, or moved each time that we looked.
pub fn snapshot(tid: u32) -> Option<Snapshot> {
    let thread = thread::get(tid)?;
    for _ in 0..LOOKS {
        let wait = thread.wait.lock();
        if let Some(parked) = &wait.parked {
            return Some(parked.snapshot());
        }
        drop(wait);
        // Where it ran last; then everywhere, because it may wait where it has never run.
        let last = thread.cpu.load(Ordering::Relaxed) as usize;
        let others = percpu::all().filter(|cpu| cpu.id != last);
        let found = percpu::get(last).into_iter().chain(others).find_map(|cpu| snapshot_on(cpu, tid));
        if found.is_some() {
            return found;
        }
        cpu::pause();
    }
    None
}

fn snapshot_on(cpu: &PerCpu, tid: u32) -> Option<Snapshot> {
    let id = ThreadId(u64::from(tid));
    let mut queue = cpu.sched.queue.lock();
    // What it has run or waited since its last event counts.
    charge(cpu, &mut queue);
    if queue.current() == Some(id) {
        return queue.current_snapshot();
    }
    let mut found = None;
    queue.for_each_queued(|ticket, snapshot, ()| {
        if ticket.thread == id {
            found = Some(snapshot);
        }
    });
    found
}

/// What the scheduler counts of the thread that runs here, up to now.
pub fn current_snapshot() -> Option<Snapshot> {
    let me = percpu::this();
    let mut queue = me.sched.queue.lock();
    charge(me, &mut queue);
    queue.current_snapshot()
}

/// Brings the accounts of a CPU up to now.
pub(super) fn charge(cpu: &PerCpu, queue: &mut Queue) {
    let now = time::now_ns();
    tracing::note(cpu, Kind::Charge, now);
    queue.refreshed_summary(now);
}

/// A CPU's time so far, and how many threads wait there.
pub fn cpu_time(cpu: &PerCpu) -> (CpuTime, usize) {
    let mut queue = cpu.sched.queue.lock();
    charge(cpu, &mut queue);
    assert_time(&queue);
    (queue.time(), queue.waiting())
}

/// Threads that came to a CPU from another one.
pub fn migrations(cpu: &PerCpu) -> u64 {
    cpu.sched.queue.lock().migrations()
}

/// S-12: every nanosecond of a CPU went to a thread, to idle or to interrupts.
pub(super) fn assert_time(queue: &Queue) {
    assert_eq!(queue.time().total_ns(), queue.wall_ns(), "S-12: a CPU's time does not add up");
}
