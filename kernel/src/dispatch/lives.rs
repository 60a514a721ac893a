//! Steps of threads' lives (K-31): each changes the life's word under the thread's *wait* lock (`kcore::life`), and does what that change asks for.

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

/// Wakes a thread, if `who` still names it. With `direct` it runs here as soon as the current thread blocks, in what is left of the current thread's
/// slice: the fast path of a call to a waiting server.
pub fn wake(who: &ThreadRef, direct: bool) {
    if let Some(thread) = heads::get(who.tid) {
        wake_thread(thread, who, direct);
    }
}

/// As [`wake`], if the caller has the record that `who` names already.
#[inline(always)]
pub fn wake_thread(thread: &'static ThreadHead, who: &ThreadRef, direct: bool) {
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return;
    }
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    // A thread that runs or was stopped is marked as woken, and sees that when it wants to block. Refused if it has ended: there is nothing to wake.
    let Ok(action) = thread.turn(&mut wait, Event::Wake { runnable }) else { return };
    let Some(runnable) = released(&mut wait, action) else { return };
    if direct {
        drop(wait);
        hand_over(runnable);
    } else {
        enqueue(runnable);
    }
}

/// Takes the entity from under this lock, if the action says that the thread is to run.
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

/// Queues the thread if its change of life asks for it, and releases its lock.
pub(super) fn follow(mut wait: Guard<'_, Wait>, action: Action) {
    if let Some(runnable) = released(&mut wait, action) {
        enqueue(runnable);
    }
}

/// Starts a new thread.
pub fn start(runnable: Runnable<SchedRef>) {
    let thread = runnable.payload().head();
    crate::recorder::introduce(thread);
    thread.must(&mut thread.wait.lock(), Event::Start);
    enqueue(runnable);
}

/// Queues a thread whose entity the caller has taken and given a context.
pub fn run(runnable: Runnable<SchedRef>) {
    enqueue(runnable);
}

/// Tells a thread to end: from now on it blocks for nothing, and gets no context. `false` if it has ended, or `who` names another thread.
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

/// Begins the end of the current thread: from here on it is given no context, and not stopped for lack of one. If it `is_killed`, it ends at the
/// default weight at least.
pub fn exit(is_killed: impl FnOnce() -> bool) {
    let thread = heads::current();
    thread.must(&mut thread.wait.lock(), Event::Exit);
    if is_killed() {
        // When its killer searched for it, it may have been in transit to this CPU, in no queue.
        hasten_on(percpu::this(), thread);
    }
}

// ---- the weight of killed threads -------------------------------------------------------------------------------------------
//
// A thread that is told to end does so at the default weight, if its own is lower (K-29): at its own weight it could keep its process, and everything
// that the process has, for as long as other threads want the CPU.

fn is_slow(snapshot: &Snapshot) -> bool {
    snapshot.weight < Weight::DEFAULT
}

/// Lets a thread that was told to end do so at the default weight at least, also if it is queued already.
///
/// A thread that neither runs nor is queued is about to be queued by a CPU that may not have seen yet that it is to end. That CPU checks this under
/// the lock of the run queue, and holds the lock until the thread is in it. So taking each CPU's lock once is enough: either the thread is found
/// here, or [`hasten_arrival`] or [`exit`] sees that it is to end.
pub fn hasten(thread: &'static ThreadHead, who: &ThreadRef) {
    // Held to the end, so that the record stays this thread's, and the thread neither blocks nor is woken.
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

/// [`hasten`] for a thread that is about to be queued on `target`, whose lock is held.
#[cold]
#[inline(never)]
pub(super) fn hasten_arrival(target: &PerCpu, runnable: &mut Runnable<SchedRef>, now: u64) {
    if !is_slow(&runnable.snapshot()) {
        return;
    }
    // For a thread that was never queued, the trace records the weight when it arrives.
    if runnable.last_cpu().is_some() {
        tracing::weighs(target, runnable.id(), Weight::DEFAULT, now);
    }
    let set = runnable.set_weight(DEFAULT_WEIGHT);
    debug_assert!(set.is_ok(), "a weight is a weight");
}

/// Places a thread again that was switched out for that, now that it no longer uses its stack.
pub(super) fn requeue(thread: &'static ThreadHead) {
    let mut wait = thread.wait.lock();
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    let action = thread.must(&mut wait, Event::Requeue { runnable });
    follow(wait, action);
}
