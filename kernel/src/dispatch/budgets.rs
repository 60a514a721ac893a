//! What contexts ask of the dispatcher: to take a thread's context, wherever the thread is, and to let a thread go on with one.

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
        // The deferred charge is taken from the context that the thread loses. A thread that is bound and unbound again and again would otherwise
        // never be switched out with it, and never be charged.
        pay(target, &mut queue, thread, now);
    }
    let taken = queue.take_context(&ticket, now)?;
    tracing::unbound(target, ticket.thread, taken.stopped.is_some(), now);
    drop(queue);
    time::leave_debt(thread);
    apply(target, me, taken.effect, thread, now);
    if let Some(blocked) = taken.stopped {
        // It was queued, so it does not use its stack. If a context is promised to it, it is the one that was just taken, so there is nothing to
        // deliver.
        let (wait, action) = evict(thread, blocked, StopReason::Context);
        follow(wait, action);
    }
    Some(taken.context)
}

/// Puts a thread that is in no queue any more, and does not use its stack, under its *wait* lock as stopped.
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

/// Stops a thread that was taken off its CPU and no longer uses its stack, until it gets a context or its fault handler has answered.
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

/// Tells a stopped thread that there is no context to fetch any more: it does what its request to bind said for this case.
pub fn find_nothing(thread: &'static ThreadHead) {
    let mut wait = thread.wait.lock();
    // Refused if the thread is no longer stopped.
    if let Ok(action) = thread.turn(&mut wait, Event::Fetch) {
        follow(wait, action);
    }
}

/// Lets a parked thread run without a context from now on.
pub(super) fn free(parked: &mut Blocked<SchedRef>) {
    if parked.is_context_only() {
        tracing::depends(percpu::this(), parked.id(), false, time::now_ns());
        parked.set_context_only(false);
    }
}

/// Sets whether the current thread stops while it has no context. If it has none, it stops at once.
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

/// Why a queued thread was not bound; the context is given back.
pub enum NotBound {
    /// The thread is in no queue.
    NotQueued(Box<Context>),
    /// The thread may not run on the CPU that promised the time.
    Elsewhere(Box<Context>),
}

/// Binds a thread that is queued on some CPU to `time`, and queues it on the CPU that promised the time.
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
        // Only after the bind: a thread that needs a context and has none may be in no queue.
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

/// Takes a thread out of the run queue that it is in, on any CPU. `None` if it is in no queue, or migrates meanwhile.
fn dequeue(thread: &'static ThreadHead, who: &ThreadRef) -> Option<Runnable<SchedRef>> {
    let cpu = percpu::get(thread.ticket().cpu.index())?;
    let mut queue = cpu.dispatch.queue.lock();
    // The record of its context is locked and names it, and no thread with a context ends without that lock. So the record still belongs to this
    // thread, as `models/src/lives.rs` shows.
    debug_assert!(thread.is(who), "K-31: {who:?} has ended while its context was given to it");
    take_out(cpu, &mut queue, &thread.ticket(), time::now_ns())
}

/// Takes a thread out of the run queue of `cpu`, if it is there.
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

/// The state of the context of `thread`, charged up to now, if the thread runs or is queued on CPU number `cpu`.
pub fn context_info(cpu: usize, thread: &ThreadHead) -> Option<ContextInfo> {
    let target = percpu::get(cpu)?;
    let mut queue = target.dispatch.queue.lock();
    charge(target, &mut queue);
    queue.context_info(&thread.ticket())
}

/// Takes a hosted context back from its host, and returns the number of the promise that the host still holds for it, if any.
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

/// Whether the affinity of the current thread allows CPU number `cpu`.
pub fn current_may_run_on(cpu: usize) -> bool {
    CpuId::new(cpu).is_some_and(|cpu| may_run_on(heads::current(), cpu))
}

/// Whether the affinity of `thread` allows `cpu`, if it is the current thread. For other threads the answer is always yes, because their mask is not
/// known here; it is checked when they fetch a context.
pub fn may_run_on(thread: &'static ThreadHead, cpu: CpuId) -> bool {
    let me = percpu::this();
    if !core::ptr::eq(me.current.get(), thread) {
        return true;
    }
    me.dispatch.queue.lock().current_allowed().is_none_or(|allowed| allowed.contains(cpu))
}

/// Queues the current thread behind the one that `target` names, if both have budget and the target is ready on this CPU; `false` otherwise.
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
        // The core charges before it can tell whether the target has budget, so the trace records a charge.
        tracing::note(me, Kind::Charge, now);
        return false;
    };
    tracing::decided(me, Some(thread), Why::YieldTo(ticket.thread), &decision, now);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
    true
}

/// Binds the current thread to `time`, and moves it to the CPU that promised the time unless that `is_here`. `context_only` is `None` if it stays as
/// it was.
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
    // Checked before the thread is taken off its CPU. Afterwards it would be queued while it still has to give the context back, and a thread that
    // waits in the kernel for that context, on the CPU where it is queued, would keep it from running.
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
