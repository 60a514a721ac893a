//! The dispatcher: the scheduling core of `sched/` on each CPU, and switching between threads.
//!
//! Each CPU's run queue is a `sched::Cpu` under the CPU's own lock. A switch holds that lock until the next thread runs on its own stack, and also
//! the *wait* lock of the previous thread if that blocks. So no other CPU can run a thread that is still being switched out.

mod above;
mod admission;
mod budgets;
mod events;
mod finish;
pub mod heads;
mod idle;
mod lives;
mod looks;
mod moves;
pub mod percpu;
mod spaces;
mod turn;

pub use above::{Above, News, hand_down};
pub use admission::{Desk, HOST_PIECES, TRIES, admit, host, judge_change, readmit, take_overload};
pub use budgets::{
    NotBound, bind_current, bind_queued, context_info, current_may_run_on, depend, find_nothing, may_run_on,
    obey, send_home, take_context, yield_to,
};
pub use events::{
    found_interrupt_ends, interrupt_begins, interrupt_ends, interrupt_is_found, look, look_as_asked,
    look_for_woken, measure_ways, share_ways,
};
pub use finish::finish_switch;
pub use idle::{idle_loop, programs_speak, tell_idle};
pub use lives::{doom, exit, hasten, run, start, wake, wake_thread};
pub use looks::{cpu_time, current_snapshot, migrations, snapshot};
pub use spaces::{leave_space, unload};
pub use turn::{may_end_turn, reschedule_interrupted, turn_ends};

use crate::arch::tlb::AtomicMask;
use crate::arch::{features, fpu, segments, smp, switch};
use crate::lock::{Guard, Rank, SpinLock};
use crate::planted::{self, Bug};
use crate::recorder;
use crate::time::{self, Payer};
use crate::tracing::{self, Why};
use above::above;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use finish::{finish, finish_switch_and};
use heads::{SchedRef, ThreadHead, Wait};
use kcore::life::{Action, Event};
use kcore::timerq::TimerQueue;
use lives::follow;
use percpu::{PerCpu, attention};
use sched::{
    Blocked, CpuId, CpuMap, CpuMask, Decision, Effect, Evicted, Noted, PolicyKind, Replaced, Runnable,
    Topology,
};
use spaces::load_space;
use trace::Kind;

type Queue = sched::Cpu<SchedRef>;

/// The scheduling state of one CPU.
pub struct CpuSched {
    /// The run queue, and the thread that runs.
    pub queue: SpinLock<Queue>,
    /// Deadlines that this CPU's timer serves, by the `Class` of the thread that set each.
    pub timers: SpinLock<[TimerQueue; time::CLASSES]>,
    /// The earliest deadline of each class, `u64::MAX` if there is none; written under the lock of `timers`.
    pub nearest: [AtomicU64; time::CLASSES],
    /// Until when timers of `Class::Other` are held back because a thread runs on a promise (S-16); 0 if they are not.
    pub held_until_ns: Cell<u64>,
    /// Whether timers of `Class::Promised` are held back as well, because the running thread is in a higher band.
    pub holds_promised: Cell<bool>,
    /// How long the current interrupt may work for threads other than the running one.
    pub service_left_ns: Cell<u64>,
    /// The idle loop's saved stack pointer.
    idle_rsp: Cell<u64>,
    /// The thread that is switched out, if its *wait* lock is held over the switch.
    leaving: Cell<Option<&'static ThreadHead>>,
    /// Whether one of the next three fields holds work to finish for the thread that was switched out.
    is_work_left: Cell<bool>,
    /// Why it was switched out, if there is something to do because of that.
    after: Cell<Option<After>>,
    /// The thread and its entity, if its context makes it stop.
    evicted: Cell<Option<(&'static ThreadHead, Evicted<SchedRef>)>>,
    /// What the observers of its context are to be told, if anything.
    news: Cell<Option<News>>,
    /// The core asked for a dispatch: another thread should run.
    resched: Cell<bool>,
    /// The handoff slot: the thread that runs next if the current thread blocks before it returns to user mode. It is in no queue.
    handoff: Cell<Option<Runnable<SchedRef>>>,
    /// Whether the thread in the handoff slot takes the current thread's context along.
    lends: Cell<bool>,
    /// This CPU has nothing to run, and is marked in [`IDLE`].
    pub idle: AtomicBool,
    /// When this CPU compares itself with its neighbours next.
    balance_ns: Cell<u64>,
}

/// What is done for a thread once it no longer uses its kernel stack.
enum After {
    /// It was switched out only to be placed again.
    Requeue(&'static ThreadHead),
    /// It ended, and its resources are freed.
    Reap(&'static ThreadHead),
}

/// The argument `resumed` of [`leave_until`] for a caller that was not interrupted: there is nothing to do first when it is chosen again.
const AS_IT_WAS: Option<fn(&mut Queue, u64)> = None;

/// CPUs with nothing to run.
static IDLE: AtomicMask = AtomicMask::new();
/// CPUs that were sent a request to look at their run queue and have not done so yet.
static PENDING: AtomicMask = AtomicMask::new();
static TOPOLOGY: AtomicPtr<Topology> = AtomicPtr::new(core::ptr::null_mut());

impl CpuSched {
    /// An idle CPU.
    pub fn new(id: usize) -> CpuSched {
        let id = CpuId::new(id).expect("a CPU number");
        CpuSched {
            queue: SpinLock::new(Rank::Cpu, admission::queue(id)),
            timers: SpinLock::new(Rank::Timers, [const { TimerQueue::new() }; time::CLASSES]),
            nearest: [const { AtomicU64::new(u64::MAX) }; time::CLASSES],
            held_until_ns: Cell::new(0),
            holds_promised: Cell::new(false),
            service_left_ns: Cell::new(u64::MAX),
            idle_rsp: Cell::new(0),
            leaving: Cell::new(None),
            is_work_left: Cell::new(false),
            after: Cell::new(None),
            evicted: Cell::new(None),
            news: Cell::new(None),
            resched: Cell::new(false),
            handoff: Cell::new(None),
            lends: Cell::new(false),
            idle: AtomicBool::new(false),
            balance_ns: Cell::new(0),
        }
    }

    /// Notes what is to be done for the thread that is about to be switched out.
    fn leave_for(&self, after: After) {
        self.after.set(Some(after));
        self.is_work_left.set(true);
    }
}

impl PerCpu {
    /// A switch begins or ends: in between, every lock but that of the CPU's own run queue is counted.
    #[inline(always)]
    fn mark_dispatch(&self, begins: bool) {
        if cfg!(debug_assertions) {
            self.in_dispatch.set(begins);
        }
        crate::measure::dispatch(begins);
    }

    /// Whether another thread may have to run: `resched` or `handoff` is set.
    #[inline(always)]
    pub fn is_attention_asked(&self) -> bool {
        self.attention.get() & attention::RESCHEDULE != 0
    }

    #[inline(always)]
    fn attended(&self) {
        self.attention.set(self.attention.get() & !attention::RESCHEDULE);
    }

    fn want_switch(&self) {
        self.dispatch.resched.set(true);
        self.ask_for(attention::RESCHEDULE);
    }
}

static IS_EEVDF: AtomicBool = AtomicBool::new(false);

/// Chooses the order of best-effort threads, before any CPU has a queue.
pub fn set_policy(policy: PolicyKind) {
    IS_EEVDF.store(policy == PolicyKind::Eevdf, Ordering::Relaxed);
}

/// The order of best-effort threads.
pub fn policy() -> PolicyKind {
    if IS_EEVDF.load(Ordering::Relaxed) { PolicyKind::Eevdf } else { PolicyKind::Wfq }
}

/// Gives this CPU a new run queue that counts from now, because the clock was set. The time up to which the old one had charged is of another clock,
/// perhaps far ahead, and nothing would be charged until the new clock had caught up.
pub fn restart() {
    let me = percpu::this();
    let id = CpuId::new(me.id).expect("a CPU number");
    let mut queue = admission::queue(id);
    core::mem::swap(&mut queue, &mut me.dispatch.queue.lock());
    assert!(queue.stays_idle(), "the clock was set while threads ran");
}

/// Lets wake-ups use all CPUs, now that they are up. Called at boot, so it may allocate (K-30).
pub fn set_topology(topology: Topology) {
    TOPOLOGY.store(alloc::boxed::Box::leak(alloc::boxed::Box::new(topology)), Ordering::Release);
}

fn topology() -> Option<&'static Topology> {
    // SAFETY: the topology is leaked, so it lives for ever, and its address is stored when it is complete.
    unsafe { TOPOLOGY.load(Ordering::Acquire).as_ref() }
}

// ---- waking ---------------------------------------------------------------------------------------------------------------

/// Puts a woken thread into the handoff slot, for the [`block`] that is expected next. The thread is queued if the slot is taken or it may not run
/// here.
#[inline(always)]
fn hand_over(runnable: Runnable<SchedRef>) {
    let me = percpu::this();
    let first = me.dispatch.handoff.take();
    if first.is_none() && CpuId::new(me.id).is_some_and(|cpu| runnable.may_run_on(cpu)) {
        me.dispatch.handoff.set(Some(runnable));
        me.ask_for(attention::RESCHEDULE);
    } else {
        me.dispatch.handoff.set(first);
        me.counters.handoffs_flushed.bump();
        enqueue(runnable);
    }
}

/// As `hand_over`, with the current thread's context: so every loan is made, and so it comes back with the answer. A thread that was in the slot
/// before is queued.
#[inline]
pub fn hand_over_lending(runnable: Runnable<SchedRef>) {
    let me = percpu::this();
    flush_handoff(me);
    me.dispatch.handoff.set(Some(runnable));
    me.dispatch.lends.set(true);
    me.ask_for(attention::RESCHEDULE);
}

/// Empties the handoff slot because the current thread does not block after all: the thread in the slot is queued like any other.
fn flush_handoff(me: &'static PerCpu) {
    if let Some(runnable) = me.dispatch.handoff.take() {
        me.counters.handoffs_flushed.bump();
        let runnable = if me.dispatch.lends.replace(false) { donate_to(me, runnable) } else { runnable };
        // Into a queue, also on an idle CPU: `enqueue` could put the thread back into the slot, which the caller wants empty.
        enqueue_on(me, place(&runnable, me), runnable);
    }
}

/// Gives the current thread's context to `runnable`, without a switch.
fn donate_to(me: &'static PerCpu, mut runnable: Runnable<SchedRef>) -> Runnable<SchedRef> {
    let now = time::now_ns();
    let mut queue = me.dispatch.queue.lock();
    let current = queue.current();
    let taken = queue.unbind_current(now);
    if let (Some(current), Some((time, _))) = (current, &taken) {
        tracing::unbound(me, current, false, now);
        tracing::bound(me, runnable.id(), time, now);
    }
    drop(queue);
    if let Some((time, effect)) = taken {
        let bound = runnable.bind(time);
        debug_assert!(matches!(bound, Ok(None)), "it was to run here, on this context: {bound:?}");
        obey(effect, now);
    }
    runnable
}

/// Empties this CPU's handoff slot; a thread in it is queued.
pub fn settle_handoff() {
    flush_handoff(percpu::this());
}

#[inline(never)]
fn enqueue(runnable: Runnable<SchedRef>) {
    let me = percpu::this();
    let target = place(&runnable, me);
    if target.id == me.id && me.current.get().is_null() && runnable.context().is_none() {
        // A thread that wakes an idle CPU is run by the idle loop if it stays the only one; several are queued in the order in which they came.
        // A thread with a context is always queued, because a revocation that searches for the context must find it.
        match me.dispatch.handoff.take() {
            None => {
                me.dispatch.handoff.set(Some(runnable));
                return me.ask_for(attention::RESCHEDULE);
            }
            Some(first) => enqueue_on(me, me, first),
        }
    }
    enqueue_on(me, target, runnable);
}

fn enqueue_on(me: &'static PerCpu, target: &'static PerCpu, mut runnable: Runnable<SchedRef>) {
    let now = time::now_ns();
    let mut queue = target.dispatch.queue.lock();
    if planted::is(Bug::AllocUnderLock) {
        // The planted bug: K-30 and K-18 forbid to allocate here.
        drop(core::hint::black_box(alloc::boxed::Box::new(now)));
    }
    let thread = runnable.payload().head();
    let owed_ns = if runnable.context().is_some() { time::debt_of_context(thread) } else { 0 };
    if owed_ns != 0 {
        tracing::pays(target, thread, owed_ns, now);
        runnable.pay(owed_ns, now);
    }
    if thread.life().is_ending() {
        lives::hasten_arrival(target, &mut runnable, now);
    }
    tracing::arrives(target, &runnable, now);
    let outcome = queue.enqueue(runnable, now);
    target.counters.queue_depth_max.raise(queue.waiting() as u64);
    drop(queue);
    if target.id != me.id {
        me.counters.queue_locks_by_wakes.bump();
    }
    match outcome {
        Ok(effect) => apply(target, me, effect, thread, now),
        // Cannot happen, because `place` obeys affinity masks; and a thread that was dropped here would never run again.
        Err(_) => panic!("a thread was placed on CPU {} which it may not use", target.id),
    }
}

fn place(runnable: &Runnable<SchedRef>, me: &'static PerCpu) -> &'static PerCpu {
    let Some(topology) = topology() else { return me };
    if percpu::count() == 1 {
        me.counters.wakes_stayed.bump();
        return me;
    }
    let previous = runnable.last_cpu();
    // The usual case first: the thread ran here last, may do so again, and no CPU is idle.
    let may_stay = |last: CpuId| last.index() == me.id && runnable.allowed().contains(last);
    if previous.is_some_and(may_stay) && IDLE.is_empty() {
        me.counters.wakes_stayed.bump();
        return me;
    }
    // The next most usual case: the CPU where it ran last is idle, and was not asked to run another thread.
    if let Some(last) = previous
        && IDLE.contains(last.index())
        && !PENDING.contains(last.index())
        && runnable.may_run_on(last)
        && let Some(target) = percpu::get(last.index())
    {
        me.counters.wakes_stayed.bump();
        return target;
    }
    let idle = IDLE.snapshot();
    let land =
        CpuMap { topology, online: CpuMask::first_n(percpu::count()), idle, pending: PENDING.snapshot() };
    let load = |cpu: CpuId| {
        // A racy read would be good enough for placement; the try-lock makes it a sound one. A CPU whose lock is taken counts as fully loaded.
        if cpu.index() != me.id {
            me.counters.queue_locks_by_wakes.bump();
        }
        percpu::get(cpu.index())
            .and_then(|cpu| cpu.dispatch.queue.try_lock().map(|queue| queue.load()))
            .unwrap_or(u64::MAX)
    };
    let chosen = sched::place(&land, &runnable.allowed(), previous, CpuId::new(me.id), load);
    let outcome = match chosen {
        None => &me.counters.wakes_failed,
        Some(placement) if Some(placement.cpu) == previous => &me.counters.wakes_stayed,
        Some(placement) if placement.was_idle => &me.counters.wakes_to_idle,
        Some(_) => &me.counters.wakes_to_loaded,
    };
    outcome.bump();
    chosen.and_then(|placement| percpu::get(placement.cpu.index())).unwrap_or(me)
}

/// Does what the core asked for on `target`, whose lock was held, on behalf of `thread`.
///
/// Another CPU is not interrupted for a deadline that is no earlier than the one its timer is armed for: that interrupt finds nothing due, and arms
/// the timer for the right time. `armed_ns` is read here after the lock was held, so it is not older than the change to the queue. If it is too
/// early, it belongs to a timer interrupt that is being served, and that CPU is about to look at its queue anyway.
fn apply(
    target: &'static PerCpu,
    me: &'static PerCpu,
    effect: Effect,
    thread: &'static ThreadHead,
    now: u64,
) {
    match effect {
        Effect::Keep => {}
        Effect::Rearm { until_ns }
            if target.id != me.id && target.armed_ns.load(Ordering::Relaxed) <= until_ns => {}
        _ if target.id != me.id => {
            // The mask has a fixed size, so this allocates nothing (K-30).
            PENDING.insert(target.id);
            tracing::note(me, Kind::Ipi { to: target.id as u16 }, now);
            smp::interrupt(target, smp::IPI_RESCHED, Some(Payer::of(thread).debt));
        }
        _ => obey(effect, now),
    }
}

/// Interrupts the CPU on which `thread` runs, if that is another one, so that the thread sees that it is to end or is promised a context. A thread
/// that is blocked or queued needs no interrupt: it checks before it returns to user mode.
pub fn kick(thread: &ThreadHead) {
    let Some(cpu) = percpu::get(thread.cpu.load(Ordering::Relaxed) as usize) else { return };
    let runs = || cpu.dispatch.queue.lock().current() == Some(thread.ticket().thread);
    if cpu.id != percpu::this().id && runs() {
        smp::interrupt(cpu, smp::IPI_KICK, Payer::asker().map(|payer| payer.debt));
    }
}

// ---- waiting --------------------------------------------------------------------------------------------------------------

/// Blocks the current thread until it is woken; returns at once if it was woken already.
#[inline(never)]
pub fn block() {
    block_here();
}

/// As [`block`], inlined into the path that every wait takes.
#[inline(always)]
pub fn block_here() {
    let me = percpu::this();
    let thread = heads::current();
    debug_assert!(!me.held.any(), "blocking with a lock held");
    let mut wait = thread.wait.lock();
    match thread.must(&mut wait, Event::Block) {
        Action::Park => {}
        Action::Fetch => {
            drop(wait);
            return fetch_and_block(thread);
        }
        _ => return,
    }
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    me.mark_dispatch(true);
    let mut queue = me.dispatch.queue.lock();
    // The usual case is a direct handoff: another thread takes the place of this one, and nothing else changes.
    if !me.dispatch.lends.get()
        && let Some(next) = me.dispatch.handoff.take()
    {
        match queue.take_place(next, now) {
            Ok(Replaced { blocked, run, until_ns }) => {
                me.counters.handoffs_taken.bump();
                tracing::handed_over(me, thread, run, now);
                debug_assert!(wait.parked.is_none() && blocked.context().is_none());
                // The old value is `None`, so nothing is leaked; `forget` only saves the drop code, which the compiler cannot rule out.
                core::mem::forget(wait.parked.replace(blocked));
                me.dispatch.leaving.set(Some(thread));
                core::mem::forget(wait);
                let next = heads::get(run.0 as u32).expect("a thread that runs");
                time::arm(me, until_ns, now);
                me.attended();
                me.dispatch.resched.set(false);
                switch_to(me, queue, thread, next, now);
                return fpu::reset(thread.mxcsr.get());
            }
            Err(next) => me.dispatch.handoff.set(Some(next)),
        }
    }
    block_rarely(me, thread, wait, queue, now);
}

/// [`block`] for a thread that is asked to bind: it fetches the promised context first.
#[cold]
#[inline(never)]
fn fetch_and_block(thread: &'static ThreadHead) {
    (above().complete_bind)(thread);
    block();
}

/// The rest of [`block`], when it is not a plain handoff.
#[inline(never)]
fn block_rarely(
    me: &'static PerCpu,
    thread: &'static ThreadHead,
    mut wait: Guard<'static, Wait>,
    mut queue: Guard<'static, Queue>,
    now: u64,
) {
    pay(me, &mut queue, thread, now);
    let (blocked, decision) = match me.dispatch.handoff.take() {
        Some(next) => {
            me.counters.handoffs_taken.bump();
            let lends = me.dispatch.lends.replace(false);
            let why = if lends { Why::Lend(next.id()) } else { Why::Handoff(next.id()) };
            // Neither step refuses: `hand_over` has checked that the thread may run here.
            let moves = lends && !planted::is(Bug::WrongContext);
            let switched = if moves { queue.block_lending(next, now) } else { queue.block_for(next, now) };
            let switched = switched.unwrap_or_else(|_| unreachable!("handed to the wrong CPU"));
            tracing::decided(me, Some(thread), why, &switched.1, now);
            switched
        }
        None => {
            let switched = (queue.block(now), queue.dispatch(now));
            tracing::decided(me, Some(thread), Why::Block, &switched.1, now);
            switched
        }
    };
    wait.parked = blocked;
    debug_assert!(wait.parked.is_some());
    debug_assert!(
        thread.context().is_some() || wait.parked.as_ref().is_some_and(|parked| parked.context().is_none()),
        "I-C5: a thread waits with a context that is not its own: {:?}",
        wait.parked.as_ref().and_then(|parked| parked.context()).map(|context| context.identity())
    );
    me.dispatch.leaving.set(Some(thread));
    core::mem::forget(wait);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
}

/// Ends the current thread: it never runs again, and its stack is freed by the next thread of this CPU.
pub fn end() -> ! {
    let me = percpu::this();
    let thread = heads::current();
    debug_assert!(!me.held.any(), "ending with a lock held");
    flush_handoff(me);
    let mut wait = thread.wait.lock();
    thread.must(&mut wait, Event::End);
    let now = time::now_ns();
    me.mark_dispatch(true);
    let mut queue = me.dispatch.queue.lock();
    pay(me, &mut queue, thread, now);
    if planted::is(Bug::EndsInQueue) {
        let _ = queue.yield_now(now);
    }
    wait.parked = queue.block(now);
    // K-17: each thread has one `SchedRef`, and it is in this entity. So no queue, no slot and no other CPU refers to the thread.
    let is_unnamed = wait.parked.as_ref().is_some_and(|it| core::ptr::eq(it.payload().head(), thread));
    assert!(is_unnamed, "K-17: an ended thread is still queued");
    me.counters.exits_checked.bump();
    let decision = queue.dispatch(now);
    tracing::decided(me, Some(thread), Why::Exit, &decision, now);
    me.dispatch.leaving.set(Some(thread));
    me.dispatch.leave_for(After::Reap(thread));
    core::mem::forget(wait);
    leave_rarely(me, queue, decision, now);
    unreachable!("an ended thread was run");
}

/// No CPU of a mask is online.
#[derive(Clone, Copy, Debug)]
pub struct NoSuchCpu;

/// Restricts the current thread to these CPUs; it runs on one of them when this returns. Refused if the home of its context is not among them.
pub fn set_affinity(cpus: CpuMask) -> Result<(), NoSuchCpu> {
    let online = CpuMask::first_n(percpu::count());
    if cpus.and(&online).is_empty() {
        return Err(NoSuchCpu);
    }
    let cpus = if online.without(&cpus).is_empty() { CpuMask::ALL } else { cpus };
    requeue_current(
        |me, thread, now| tracing::confined(me, thread, cpus, now),
        |blocked| blocked.set_allowed(cpus).map_err(|_| NoSuchCpu),
        |_, _, _| {},
    )
}

/// Takes the current thread off its CPU, changes it, and has it placed again. `before` and `after` record the change in the trace, before or after
/// the dispatch.
fn requeue_current<E>(
    before: impl FnOnce(&'static PerCpu, &'static ThreadHead, u64),
    change: impl FnOnce(&mut Blocked<SchedRef>) -> Result<(), E>,
    after: impl FnOnce(&'static PerCpu, &Blocked<SchedRef>, u64),
) -> Result<(), E> {
    let me = percpu::this();
    let thread = heads::current();
    flush_handoff(me);
    let mut wait = thread.wait.lock();
    // No endless loop: a thread that has fetched a context is not promised another one.
    while thread.must(&mut wait, Event::SwitchOut) == Action::Fetch {
        drop(wait);
        (above().complete_bind)(thread);
        wait = thread.wait.lock();
    }
    // Fetching the context may have moved this thread to another CPU.
    let me = percpu::this();
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.dispatch.queue.lock();
    let mut blocked = queue.block(now).expect("the current thread");
    let changed = change(&mut blocked);
    if changed.is_ok() {
        before(me, thread, now);
    }
    wait.parked = Some(blocked);
    let decision = queue.dispatch(now);
    tracing::decided(me, Some(thread), Why::Block, &decision, now);
    if let Some(parked) = &wait.parked {
        after(me, parked, now);
    }
    me.dispatch.leaving.set(Some(thread));
    // It uses its stack until the switch is done, so the next thread of this CPU queues it.
    me.dispatch.leave_for(After::Requeue(thread));
    core::mem::forget(wait);
    leave_rarely(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
    changed
}

/// Lets other threads run if something since the thread entered the kernel asks for it, and says whether it did. For paths that return to user mode.
#[inline(always)]
pub fn reschedule() -> bool {
    let me = percpu::this();
    let is_asked = me.is_attention_asked();
    if is_asked {
        reschedule_now(me);
    }
    is_asked
}

/// Ends the interrupts-off span: interrupts are about to be enabled, in user mode or in the idle loop.
#[inline]
pub fn end_irq_off() {
    let me = percpu::this();
    me.attention.set(me.attention.get() & !attention::MEASURED);
    crate::irqoff::ends(me);
}

#[cold]
fn reschedule_now(me: &'static PerCpu) {
    let mut me = me;
    // In a loop, because the work for the previous thread after a switch may wake more threads: the handler of a timeout fault, for one.
    while me.is_attention_asked() {
        flush_handoff(me);
        if me.dispatch.resched.get() {
            switch_away(me, false);
            me = percpu::this();
        } else {
            me.attended();
        }
    }
}

/// Lets threads of this CPU that are as urgent go first.
pub fn yield_now() {
    let me = percpu::this();
    flush_handoff(me);
    switch_away(me, true);
}

/// Puts the current thread back into the run queue and switches to the thread that the core chooses, which may be the same one.
fn switch_away(me: &'static PerCpu, voluntarily: bool) {
    let thread = heads::current();
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    me.mark_dispatch(true);
    let mut queue = me.dispatch.queue.lock();
    pay(me, &mut queue, thread, now);
    let mut decision = if voluntarily { queue.yield_now(now) } else { queue.dispatch(now) };
    if planted::is(Bug::SecondChoice) {
        second_choice(&mut queue, &mut decision, now);
    }
    tracing::decided(me, Some(thread), if voluntarily { Why::Yield } else { Why::Look }, &decision, now);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
}

/// The planted bug `second-choice`: where there is a choice, the core is asked a second time, until it has once named another thread, and the trace
/// records only the first answer. One wrong decision is enough for the checker; to do it always, or every other time, might never let one of two
/// threads run.
fn second_choice(queue: &mut Queue, decision: &mut Decision<SchedRef>, now: u64) {
    static ACTED: AtomicBool = AtomicBool::new(false);
    let is_choice = decision.run.is_some() && decision.evicted.is_none() && queue.waiting() > 0;
    if is_choice && !ACTED.load(Ordering::Relaxed) {
        let first = core::mem::replace(decision, queue.yield_now(now));
        ACTED.store(first.run != decision.run, Ordering::Relaxed);
    }
}

/// Charges a thread that is about to be switched out for what interrupts did for it since it last was (S-16).
#[inline(always)]
fn pay(me: &PerCpu, queue: &mut Queue, thread: &ThreadHead, now: u64) {
    if thread.debt.ns() != 0 {
        let owed_ns = thread.debt.pay();
        tracing::pays(me, thread, owed_ns, now);
        queue.pay(owed_ns, now);
    }
}

/// As [`leave`], but not inlined: for rare paths.
#[inline(never)]
fn leave_rarely(me: &'static PerCpu, queue: Guard<'_, Queue>, decision: Decision<SchedRef>, now: u64) {
    leave(me, queue, decision, now);
}

/// Switches to the thread that `decision` names, or to the idle loop. Returns when the caller is chosen again.
#[inline(always)]
fn leave(me: &'static PerCpu, queue: Guard<'_, Queue>, decision: Decision<SchedRef>, now: u64) {
    leave_until(me, queue, decision, now, AS_IT_WAS);
}

/// As [`leave`]; `resumed` is called first when the caller is chosen again, under the same hold of the CPU's lock as the choice: nothing was charged
/// in between. Its argument is the time from which on time is no longer charged to the previous thread.
#[inline(always)]
fn leave_until(
    me: &'static PerCpu,
    queue: Guard<'_, Queue>,
    mut decision: Decision<SchedRef>,
    now: u64,
    resumed: Option<impl FnOnce(&mut Queue, u64)>,
) {
    let previous = me.current.get();
    if decision.noted != Noted::NOTHING || decision.evicted.is_some() {
        note_context(me, &queue, &mut decision);
    }
    let next = decision.run.and_then(|id| heads::get(id.0 as u32));
    let next_pointer = next.map_or(core::ptr::null(), |thread| thread as *const ThreadHead);
    if me.dispatch.held_until_ns.get() != 0 && (me.dispatch.holds_promised.get() || !queue.is_promised()) {
        time::stop_holding(me);
    }
    time::arm(me, decision.until_ns, now);
    me.attended();
    me.dispatch.resched.set(false);
    if core::ptr::eq(previous, next_pointer) {
        return finish(me, queue, resumed);
    }
    // SAFETY: records are never unmapped.
    if let (Some(next), Some(previous)) = (next, unsafe { previous.as_ref() }) {
        switch_stacks(me, queue, previous, next, now);
        return finish_switch_and(resumed);
    }
    core::mem::forget(queue);
    me.counters.switches.bump();
    me.current.set(next_pointer);
    // SAFETY: records are never unmapped.
    let save = match unsafe { previous.as_ref() } {
        Some(thread) => thread.rsp.as_ptr(),
        None => me.dispatch.idle_rsp.as_ptr(),
    };
    let to = match next {
        Some(thread) => {
            recorder::runs(me, now, thread);
            load_thread_state(me, thread);
            thread.rsp.get()
        }
        None => {
            load_space(me, None);
            me.dispatch.idle_rsp.get()
        }
    };
    // SAFETY: `to` was saved when that thread or idle loop was switched out or created, and only this CPU has chosen it: the entity is a single
    // value.
    unsafe { switch::switch_stack(save, to) };
    finish_switch_and(resumed);
}

/// Switches from one thread to another, neither of which is the idle loop.
#[inline(always)]
fn switch_to(
    me: &'static PerCpu,
    queue: Guard<'_, Queue>,
    previous: &'static ThreadHead,
    next: &'static ThreadHead,
    now: u64,
) {
    switch_stacks(me, queue, previous, next, now);
    finish_switch();
}

/// The first part of [`switch_to`]: the lock is still held when it returns.
#[inline(always)]
fn switch_stacks(
    me: &'static PerCpu,
    queue: Guard<'_, Queue>,
    previous: &'static ThreadHead,
    next: &'static ThreadHead,
    now: u64,
) {
    core::mem::forget(queue);
    me.counters.switches.bump();
    me.current.set(next);
    recorder::runs(me, now, next);
    load_thread_state(me, next);
    // SAFETY: `next.rsp` was saved when that thread was switched out, or made for it, and only this CPU has chosen it: the entity is a single value.
    unsafe { switch::switch_stack(previous.rsp.as_ptr(), next.rsp.get()) };
}

/// Loads what the CPU keeps of the running thread: kernel stack, address space, FS base.
#[inline(always)]
fn load_thread_state(me: &'static PerCpu, thread: &'static ThreadHead) {
    thread.cpu.store(me.id as u32, Ordering::Relaxed);
    segments::set_kernel_stack(me, thread.stack_top.get());
    load_space(me, spaces::of(thread));
    features::set_fs_base(thread.fs_base.get());
}

/// Keeps what the core noted of the previous thread's context for after the switch: it was depleted, missed a deadline, or makes the thread stop.
#[cold]
fn note_context(me: &PerCpu, queue: &Queue, decision: &mut Decision<SchedRef>) {
    // SAFETY: records are never unmapped.
    let Some(left) = (unsafe { me.current.get().as_ref() }) else { return };
    let noted = decision.noted;
    let info = queue.context_info(&left.ticket());
    if noted != Noted::NOTHING {
        me.dispatch.news.set(News::of_left(left, noted, info.as_ref()));
    }
    me.dispatch.evicted.set(decision.evicted.take().map(|evicted| (left, evicted)));
    me.dispatch.is_work_left.set(true);
    if noted.has(Noted::DEPLETED) {
        me.counters.budgets_exhausted.bump();
    }
    if noted.has(Noted::LATE) {
        me.counters.deadlines_missed.bump();
    }
}

/// Enters the idle loop of a CPU on its own stack. The boot stack is never used again.
pub fn enter_idle(me: &'static PerCpu) -> ! {
    // SAFETY: the idle stack is mapped, and nothing runs on it yet.
    let top = unsafe { switch::prepare(me.idle_stack.top(), idle_loop, 0) };
    segments::set_kernel_stack(me, me.idle_stack.top());
    crate::irqoff::forget(me);
    let mut boot = 0;
    // SAFETY: `top` was prepared just now, for a first switch to it.
    unsafe { switch::switch_stack(&mut boot, top) };
    unreachable!("the boot context was run again");
}
