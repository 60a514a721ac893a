//! Steps of threads' lives (K-31): each is a change of the word under the thread's *wait* lock (`kcore::life`), and what that asks for.

use super::budgets::{free, take_out};
use super::percpu::{self, PerCpu};
use super::{enqueue, hand_over};
use crate::dispatch::heads::{self, SchedRef, ThreadHead, Wait};
use crate::lock::Guard;
use crate::planted::{self, Bug};
use crate::time;
use crate::tracing;
use ::sched::{Blocked, DEFAULT_WEIGHT, Runnable, Snapshot, Weight};
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event};

/// Lets a thread go on, if it is still the one that is meant. With `direct` it runs here as soon as the current thread waits, in what is left
/// of that one's slice: the fast path of a call to a waiting server.
pub fn wake(who: &ThreadRef, direct: bool) {
    if let Some(thread) = heads::get(who.tid) {
        wake_thread(thread, who, direct);
    }
}

/// As [`wake`], of the record that `who` names.
#[inline(always)]
pub fn wake_thread(thread: &'static ThreadHead, who: &ThreadRef, direct: bool) {
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return;
    }
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    // One that runs, or was stopped, finds that it was woken; of one that is gone, nothing is left to wake.
    let Ok(action) = thread.turn(&mut wait, Event::Wake { runnable }) else { return };
    let Some(runnable) = released(&mut wait, action) else { return };
    if direct {
        drop(wait);
        hand_over(runnable);
    } else {
        enqueue(runnable);
    }
}

/// The thread that lay under this lock, if it is to run.
#[inline(always)]
fn released(wait: &mut Wait, action: Action) -> Option<Runnable<SchedRef>> {
    if !matches!(action, Action::Run | Action::Free) {
        return None;
    }
    if planted::is(Bug::StopsTheEnding) && !wait.parked.as_ref()?.is_runnable() {
        return None;
    }
    let mut blocked = wait.parked.take()?;
    if action == Action::Free {
        free(&mut blocked);
    }
    blocked.wake().ok()
}

/// Does what a change of a thread's life asks for, and lets its lock go.
pub(super) fn follow(mut wait: Guard<'_, Wait>, action: Action) {
    if let Some(runnable) = released(&mut wait, action) {
        enqueue(runnable);
    }
}

/// A new thread may run.
pub fn start(runnable: Runnable<SchedRef>) {
    let thread = runnable.payload().head();
    crate::recorder::introduce(thread);
    thread.must(&mut thread.wait.lock(), Event::Start);
    enqueue(runnable);
}

/// A thread that was taken from its wait runs, on what it was given.
pub fn run(runnable: Runnable<SchedRef>) {
    enqueue(runnable);
}

/// A thread is to end: it waits for nothing any more, and gets no context. False if it has ended, or is another one.
pub fn doom(thread: &'static ThreadHead, who: &ThreadRef) -> bool {
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return false;
    }
    match thread.turn(&mut wait, Event::Kill) {
        Ok(action) => {
            follow(wait, action);
            true
        }
        Err(_) => false,
    }
}

/// The current thread ends, and perhaps `is_killed`. From here on nobody gives it a context, and it is not stopped for want of one.
pub fn exit(is_killed: impl FnOnce() -> bool) {
    let thread = heads::current();
    thread.must(&mut thread.wait.lock(), Event::Exit);
    if is_killed() {
        // It may have been on its way here, and in no queue, when whoever kills it looked for it.
        hasten_on(percpu::this(), thread);
    }
}

// ---- the weight of those who are killed -------------------------------------------------------------------------------------
//
// A thread that is told to end does so at the default weight, if its own is below that (K-29): at its own it could keep its process, and all that it
// has, for as long as others want the CPU.

fn is_slow(snapshot: &Snapshot) -> bool {
    snapshot.weight < Weight::DEFAULT
}

/// A thread that was doomed ends at the default weight at least, also if it is queued already.
///
/// One that is in nobody's queue and does not run is about to be queued, by a CPU that may not have seen yet that it is to end. That CPU holds the lock
/// of the queue from its look at that on: so each lock is taken once, and afterwards the thread was found, or [`hasten_arrival`] or [`exit`] finds it.
pub fn hasten(thread: &'static ThreadHead, who: &ThreadRef) {
    // Held to the end: so the record is still this thread's, and the thread neither begins to wait nor is woken.
    let _wait = thread.wait.lock();
    if !thread.is(who) || thread.life().is_parked() {
        return;
    }
    let likely = percpu::get(thread.ticket().cpu.index());
    let _ = likely.into_iter().chain(percpu::all()).any(|cpu| hasten_on(cpu, thread));
}

/// [`hasten`], if the thread runs or is queued on `cpu`.
fn hasten_on(cpu: &'static PerCpu, thread: &'static ThreadHead) -> bool {
    let now = time::now_ns();
    let mut queue = cpu.dispatch.queue.lock();
    let ticket = thread.ticket();
    if queue.current() == Some(ticket.thread) {
        if queue.current_snapshot().is_some_and(|current| is_slow(&current)) {
            tracing::weighs(cpu, ticket.thread, Weight::DEFAULT, now);
            let set = queue.set_current_weight(DEFAULT_WEIGHT, now);
            debug_assert!(set.is_ok(), "a weight is a weight");
        }
        return true;
    }
    let Some(queued) = queue.queued_snapshot(&ticket) else { return false };
    let slow = if is_slow(&queued) { take_out(cpu, &mut queue, &ticket, now) } else { None };
    drop(queue);
    if let Some(runnable) = slow {
        enqueue(runnable);
    }
    true
}

/// A thread that is to end is about to be queued on `target`, whose lock is held.
#[cold]
#[inline(never)]
pub(super) fn hasten_arrival(target: &PerCpu, runnable: &mut Runnable<SchedRef>, now: u64) {
    if !is_slow(&runnable.snapshot()) {
        return;
    }
    // The weight of one that was never queued is written when it arrives.
    if runnable.last_cpu().is_some() {
        tracing::weighs(target, runnable.id(), Weight::DEFAULT, now);
    }
    let set = runnable.set_weight(DEFAULT_WEIGHT);
    debug_assert!(set.is_ok(), "a weight is a weight");
}

/// A thread that was set aside is off its stack: it is placed anew.
pub(super) fn requeue(thread: &'static ThreadHead) {
    let mut wait = thread.wait.lock();
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    let action = thread.must(&mut wait, Event::Requeue { runnable });
    follow(wait, action);
}
