//! What contexts ask of the dispatcher: to find the box of a thread, wherever that is, and to have threads go on with one.

use super::above::above;
use super::looks::charge;
use super::{Queue, apply, enqueue, flush_handoff, follow, leave, pay, requeue_current};
use crate::arch::fpu;
use crate::dispatch::heads::{self, SchedRef, ThreadHead, Wait};
use crate::dispatch::percpu::{self, PerCpu};
use crate::lock::Guard;
use crate::time;
use crate::tracing::{self, Promise, Why};
use ::sched::{
    Blocked, Context, ContextInfo, CpuId, Effect, Evicted, EvictionReason, Runnable, ThreadId, Ticket,
};
use alloc::boxed::Box;
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event, StopReason};
use trace::Kind;

/// Takes the context of `thread` out of the queue of CPU number `cpu`, if it is there: running or queued.
pub fn take_context(cpu: usize, thread: &'static ThreadHead) -> Option<Box<Context>> {
    let me = percpu::this();
    let target = percpu::get(cpu)?;
    let now = time::now_ns();
    let mut queue = target.dispatch.queue.lock();
    let ticket = thread.ticket();
    if queue.current() == Some(ticket.thread) && queue.current_context().is_some() {
        // Out of what it loses: who is bound and unbound again and again never leaves its CPU with it.
        pay(target, &mut queue, thread, now);
    }
    let taken = queue.take_context(&ticket, now)?;
    tracing::unbound(target, ticket.thread, taken.stopped.is_some(), now);
    drop(queue);
    time::leave_debt(thread);
    apply(target, me, taken.effect, thread, now);
    if let Some(blocked) = taken.stopped {
        // It was queued, so it stands on no stack. What is promised to it, if anything, is what was just taken.
        let (wait, action) = evict(thread, blocked, StopReason::Context);
        follow(wait, action);
    }
    Some(taken.context)
}

/// A thread has no place in a queue any more, and stands on no stack.
fn evict(
    thread: &'static ThreadHead,
    blocked: Blocked<SchedRef>,
    want: StopReason,
) -> (Guard<'static, Wait>, Action) {
    let mut wait = thread.wait.lock();
    wait.parked = Some(blocked);
    let action = thread.must(&mut wait, Event::Evict(want));
    (wait, action)
}

/// A thread was taken off its CPU, and stands on its stack no more: it waits until somebody decides what becomes of it.
#[cold]
pub(super) fn stop(thread: &'static ThreadHead, evicted: Evicted<SchedRef>) {
    let Evicted { thread: blocked, reason } = evicted;
    let want = match reason {
        EvictionReason::TimeoutFault => StopReason::FaultReply,
        EvictionReason::ContextLost => StopReason::Context,
    };
    let (wait, action) = evict(thread, blocked, want);
    follow(wait, action);
    match action {
        Action::Park if want == StopReason::FaultReply => (above().fault)(thread),
        Action::Deliver => (above().deliver)(thread),
        _ => {}
    }
}

/// A thread that is stopped has nothing to fetch any more: it does what it was bound to do then.
pub fn find_nothing(thread: &'static ThreadHead) {
    let mut wait = thread.wait.lock();
    // Refused if it goes on already.
    if let Ok(action) = thread.turn(&mut wait, Event::Fetch) {
        follow(wait, action);
    }
}

/// A thread that waits may run without a context from now on.
pub(super) fn free(parked: &mut Blocked<SchedRef>) {
    if parked.is_context_only() {
        tracing::depends(percpu::this(), parked.id(), false, time::now_ns());
        parked.set_context_only(false);
    }
}

/// The current thread stops without a context from now on, or does not; at once, if it has none.
pub fn depend(only: bool) {
    let (me, now) = (percpu::this(), time::now_ns());
    let mut queue = me.dispatch.queue.lock();
    tracing::depends(me, ThreadId(u64::from(heads::current().tid())), only, now);
    queue.set_current_context_only(only);
    let stops = only && queue.current_context().is_none();
    drop(queue);
    if stops {
        me.want_switch();
    }
}

/// Why a thread was not bound in a queue; the box comes back.
pub enum NotBound {
    /// It is in none.
    NotQueued(Box<Context>),
    /// It may not run where the time was promised.
    Elsewhere(Box<Context>),
}

/// A thread that is queued somewhere goes on with `time`, where that was promised.
pub fn bind_queued(
    thread: &'static ThreadHead,
    who: &ThreadRef,
    time: Box<Context>,
    context_only: Option<bool>,
) -> Result<(), NotBound> {
    let Some(mut runnable) = dequeue(thread, who) else { return Err(NotBound::NotQueued(time)) };
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

/// Takes a thread out of the queue that it waits in, wherever that is. Nobody, if it is in none, or moves from one to another meanwhile.
fn dequeue(thread: &'static ThreadHead, who: &ThreadRef) -> Option<Runnable<SchedRef>> {
    let cpu = percpu::get(thread.ticket().cpu.index())?;
    let mut queue = cpu.dispatch.queue.lock();
    // The record of its context is locked and names it, and no thread ends without that lock: `models/src/lives.rs` shows that nobody else is here.
    debug_assert!(thread.is(who), "K-31: {who:?} has ended while its context was given to it");
    take_out(cpu, &mut queue, &thread.ticket(), time::now_ns())
}

/// Takes a thread out of the queue of `cpu`, if it is there.
pub(super) fn take_out(
    cpu: &PerCpu,
    queue: &mut Queue,
    ticket: &Ticket,
    now: u64,
) -> Option<Runnable<SchedRef>> {
    let runnable = queue.remove(ticket, now)?;
    tracing::dequeued(cpu, ticket.thread, now);
    Some(runnable)
}

/// What the context of `thread` has left, if the thread runs or is queued on CPU number `cpu`.
pub fn context_info(cpu: usize, thread: &ThreadHead) -> Option<ContextInfo> {
    let target = percpu::get(cpu)?;
    let mut queue = target.dispatch.queue.lock();
    charge(target, &mut queue);
    queue.context_info(&thread.ticket())
}

/// Sends a guest home.
pub fn send_home(time: Box<Context>) -> (Box<Context>, Option<u64>) {
    if !time.is_hosted() {
        return (time, None);
    }
    let Some(host) = percpu::get(time.home().index()) else { return (time, None) };
    let mut queue = host.dispatch.queue.lock();
    let now = time::now_ns();
    tracing::promised(host, &time, Promise::Unhost, now);
    let time = queue.unhost(time, now);
    (time, queue.departed())
}

/// Does what the core asked for on this CPU.
pub fn obey(effect: Effect, now: u64) {
    let me = percpu::this();
    match effect {
        Effect::Keep => {}
        Effect::Rearm { until_ns } => time::arm(me, until_ns, now),
        Effect::Dispatch => me.want_switch(),
    }
}

/// May the current thread run on CPU number `cpu`, by its mask?
pub fn current_may_run_on(cpu: usize) -> bool {
    CpuId::new(cpu).is_some_and(|cpu| may_run_on(heads::current(), cpu))
}

/// May the current thread run on `cpu`, by its mask? Of others that is not known here; they are asked when they fetch a context.
pub fn may_run_on(thread: &'static ThreadHead, cpu: CpuId) -> bool {
    let me = percpu::this();
    if !core::ptr::eq(me.current.get(), thread) {
        return true;
    }
    me.dispatch.queue.lock().current_allowed().is_none_or(|allowed| allowed.contains(cpu))
}

/// The current thread queues behind the one that `target` names, if that is ready on this CPU with budget.
pub fn yield_to(target: &ThreadRef) -> bool {
    let me = percpu::this();
    let thread = heads::current();
    flush_handoff(me);
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.dispatch.queue.lock();
    let Some(ticket) = heads::get(target.tid).filter(|thread| thread.is(target)).map(ThreadHead::ticket)
    else {
        return false;
    };
    let Ok(decision) = queue.yield_to(&ticket, now) else {
        // Whether it has budget is known after a charge only.
        tracing::note(me, Kind::Charge, now);
        return false;
    };
    tracing::decided(me, Some(thread), Why::YieldTo(ticket.thread), &decision, now);
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
        let mut queue = me.dispatch.queue.lock();
        let id = ThreadId(u64::from(heads::current().tid()));
        if let Some(only) = context_only {
            tracing::depends(me, id, only, now);
            queue.set_current_context_only(only);
        }
        let effect = queue.bind_current(time, now)?;
        if let Some(context) = queue.current_context() {
            tracing::bound(me, id, context, now);
        }
        drop(queue);
        let thread = heads::current();
        thread.debt.add_to_whoever(time::debt_of_context(thread));
        obey(effect, now);
        return Ok(());
    }
    // Not after it was taken off its CPU: it would be queued with the box in its hands, and whoever looks for that waits, in the kernel, on the CPU where
    // it is queued.
    if !may_run_on(heads::current(), time.home()) {
        return Err(time);
    }
    let mut time = Some(time);
    let bound = requeue_current(
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
