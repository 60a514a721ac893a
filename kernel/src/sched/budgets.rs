//! What contexts ask of the dispatcher: to find the box of a thread, wherever that is, and to have threads go on with one.

use super::looks::charge;
use super::{apply, enqueue, flush_handoff, leave, replant};
use crate::arch::fpu;
use crate::arch::percpu;
use crate::context;
use crate::thread::{self, State, Thread, mark};
use crate::time;
use crate::tracing::{self, Promise, Why};
use ::sched::{
    Blocked, Context, ContextInfo, CpuId, Effect, Evicted, EvictionReason, Runnable, Spec, ThreadId,
};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use trace::Kind;

/// Takes the context of `thread` out of the queue of CPU number `cpu`, if it is there: running or queued.
pub fn take_context(cpu: usize, thread: &'static Thread) -> Option<Box<Context>> {
    let me = percpu::this();
    let target = percpu::get(cpu)?;
    let now = time::now_ns();
    let mut queue = target.sched.queue.lock();
    let id = ThreadId(u64::from(thread.tid()));
    let taken = queue.take_context(id, now)?;
    tracing::unbound(target, id, taken.stopped.is_some(), now);
    drop(queue);
    apply(target, me, taken.effect, now);
    if let Some(blocked) = taken.stopped {
        // It was queued, so it stands on no stack.
        thread.wait.lock().parked = Some(blocked);
        thread.state.store(State::Waiting as u8, Ordering::Relaxed);
        thread.stopped.store(true, Ordering::Release);
    }
    Some(taken.context)
}

/// A thread was taken off its CPU, and stands on its stack no more: it waits until somebody decides what becomes of it.
#[cold]
pub(super) fn stop(thread: &'static Thread, evicted: Evicted<()>) {
    let Evicted { thread: mut blocked, reason } = evicted;
    let mut wait = thread.wait.lock();
    if thread.marks.load(Ordering::Acquire) & mark::ENDS != 0 {
        // Its context was taken from it while it ran, so that it can end: see `context::strip`.
        free(&mut blocked);
    }
    wait.parked = Some(blocked);
    thread.state.store(State::Waiting as u8, Ordering::Relaxed);
    thread.stopped.store(true, Ordering::Release);
    let is_wanted = core::mem::take(&mut wait.woken);
    drop(wait);
    match reason {
        EvictionReason::TimeoutFault => context::methods::fault(thread),
        EvictionReason::ContextLost => {}
    }
    // It is to end, or got a context, while nobody could wake it.
    let is_bound =
        reason == EvictionReason::ContextLost && (thread.marks.load(Ordering::Acquire) & mark::SUMMONS != 0);
    if is_wanted || is_bound {
        context::unstop(thread);
    }
}

/// A thread that waits may run without a context from now on.
pub fn free(parked: &mut Blocked<()>) {
    if parked.is_context_only() {
        tracing::depends(percpu::this(), parked.id(), false, time::now_ns());
        parked.set_context_only(false);
    }
}

/// The current thread stops without a context from now on, or does not; at once, if it has none.
pub fn depend(only: bool) {
    let (me, now) = (percpu::this(), time::now_ns());
    let mut queue = me.sched.queue.lock();
    tracing::depends(me, ThreadId(u64::from(thread::current().tid())), only, now);
    queue.set_current_context_only(only);
    let stops = only && queue.current_context().is_none();
    drop(queue);
    if stops {
        me.sched.want_switch();
    }
}

/// Why a thread was not bound in a queue; the box comes back.
pub enum NotBound {
    /// It is in none.
    NotQueued(Box<Context>),
    /// It may not run where the time was promised.
    Elsewhere(Box<Context>),
}

/// A thread that is queued somewhere goes on with `time`, where that was promised. Linear in the threads that wait, as listings are.
pub fn bind_queued(
    thread: &'static Thread,
    time: Box<Context>,
    context_only: Option<bool>,
) -> Result<(), NotBound> {
    let Some(mut runnable) = pluck(thread) else { return Err(NotBound::NotQueued(time)) };
    let (me, now) = (percpu::this(), time::now_ns());
    let bound = runnable.bind(time);
    if bound.is_ok() {
        // Not before: a thread that runs on contexts only and was refused one has no place in any queue.
        if let Some(only) = context_only {
            tracing::depends(me, runnable.id(), only, now);
            runnable.set_context_only(only);
        }
        if let Some(context) = runnable.context() {
            tracing::bound(me, runnable.id(), context, now);
        }
    }
    enqueue(runnable);
    bound.map(|before| debug_assert!(before.is_none(), "it had one already")).map_err(NotBound::Elsewhere)
}

/// Takes a thread out of the queue that it waits in, wherever that is.
fn pluck(thread: &'static Thread) -> Option<Runnable<()>> {
    let id = ThreadId(u64::from(thread.tid()));
    let last = thread.cpu.load(Ordering::Relaxed) as usize;
    let others = percpu::all().filter(|cpu| cpu.id != last);
    percpu::get(last).into_iter().chain(others).find_map(|cpu| {
        let mut queue = cpu.sched.queue.lock();
        let mut found = None;
        queue.for_each_queued(|ticket, _, ()| {
            if ticket.thread == id {
                found = Some(ticket);
            }
        });
        let ticket = found?;
        let now = time::now_ns();
        let runnable = queue.remove(&ticket, now)?;
        tracing::plucked(cpu, id, now);
        Some(runnable)
    })
}

/// What the context of `thread` has left, if the thread runs or is queued on CPU number `cpu`.
pub fn context_info(cpu: usize, thread: &Thread) -> Option<ContextInfo> {
    let target = percpu::get(cpu)?;
    let mut queue = target.sched.queue.lock();
    charge(target, &mut queue);
    queue.context_info(ThreadId(u64::from(thread.tid())))
}

/// Changes what was promised, on its CPU; with `false` nothing has changed.
pub fn readmit(cpu: usize, time: Box<Context>, spec: Spec) -> (Box<Context>, bool) {
    let Some(home) = percpu::get(cpu) else { return (time, false) };
    let mut queue = home.sched.queue.lock();
    let now = time::now_ns();
    let (time, done) = match queue.readmit(time, spec, now) {
        Ok(time) => (time, true),
        Err((_, time)) => (time, false),
    };
    if done {
        tracing::promised(home, &time, Promise::Readmit, now);
    }
    (time, done)
}

/// Sends a guest home.
pub fn send_home(time: Box<Context>) -> Box<Context> {
    if !time.is_hosted() {
        return time;
    }
    let Some(host) = percpu::get(time.home().index()) else { return time };
    let mut queue = host.sched.queue.lock();
    tracing::promised(host, &time, Promise::Unhost, time::now_ns());
    queue.unhost(time)
}

/// Does what the core asked for on this CPU.
pub fn obey(effect: Effect, now: u64) {
    let me = percpu::this();
    apply(me, me, effect, now);
}

/// May the current thread run on CPU number `cpu`, by its mask?
pub fn current_may_run_on(cpu: usize) -> bool {
    CpuId::new(cpu).is_some_and(|cpu| may_run_on(thread::current(), cpu))
}

/// May the current thread run on `cpu`, by its mask? Of others that is not known here; they are asked when they fetch a context.
pub fn may_run_on(thread: &'static Thread, cpu: CpuId) -> bool {
    let me = percpu::this();
    if !core::ptr::eq(me.current.get(), thread) {
        return true;
    }
    me.sched.queue.lock().current_allowed().is_none_or(|allowed| allowed.contains(cpu))
}

/// The current thread queues behind the one that `target` names, if that is ready on this CPU with budget.
pub fn yield_to(target: &ThreadRef) -> bool {
    let me = percpu::this();
    let thread = thread::current();
    flush_handoff(me);
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    let Ok(decision) = queue.yield_to(ThreadId(u64::from(target.tid)), now) else {
        // Whether it has budget is known after a charge only.
        tracing::note(me, Kind::Charge, now);
        return false;
    };
    tracing::decided(me, Some(thread), Why::YieldTo(ThreadId(u64::from(target.tid))), &decision, now);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
    true
}

/// The current thread goes on with `time`: here, if it `is_here` that it was promised, otherwise there. `context_only` if that changes.
pub fn bind_current(
    time: Box<Context>,
    is_here: bool,
    context_only: Option<bool>,
) -> Result<(), Box<Context>> {
    if is_here {
        let me = percpu::this();
        let now = time::now_ns();
        let mut queue = me.sched.queue.lock();
        let id = ThreadId(u64::from(thread::current().tid()));
        if let Some(only) = context_only {
            tracing::depends(me, id, only, now);
            queue.set_current_context_only(only);
        }
        let effect = queue.bind_current(time, now)?;
        if let Some(context) = queue.current_context() {
            tracing::bound(me, id, context, now);
        }
        drop(queue);
        apply(me, me, effect, now);
        return Ok(());
    }
    let mut time = Some(time);
    let bound = replant(
        |_, _, _| {},
        |blocked| match time.take().map(|time| blocked.bind(time)) {
            Some(Err(back)) => {
                time = Some(back);
                Err(())
            }
            _ => {
                if let Some(only) = context_only {
                    blocked.set_context_only(only);
                }
                Ok(())
            }
        },
        |me, parked, now| {
            if let Some(context) = parked.context() {
                tracing::bound(me, parked.id(), context, now);
                tracing::depends(me, parked.id(), parked.is_context_only(), now);
            }
        },
    );
    match (bound, time) {
        (Err(()), Some(time)) => Err(time),
        _ => Ok(()),
    }
}
