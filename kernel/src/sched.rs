//! The dispatcher: the scheduling core of `sched/` on each CPU, and switching between threads.
//!
//! Each CPU's queue is a `sched::Cpu` under the CPU's own lock. A switch holds that lock, and the *wait* lock of the thread that
//! is left if it blocks, until the next thread stands on its own stack: so nobody can run a thread that is still being left.

use crate::arch::percpu::{self, PerCpu};
use crate::arch::{cpu, features, fpu, segments, smp, switch};
use crate::lock::{Guard, Rank, SpinLock};
use crate::mm::paging;
use crate::mm::stacks::OffStackToken;
use crate::mm::tlb::AtomicMask;
use crate::thread::{self, State, Thread, Wait};
use crate::time;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use kcore::generation::ThreadRef;
use kcore::timerq::TimerQueue;
use sched::{
    CpuId, CpuMask, Decision, Effect, Landscape, Misplaced, MoveOutcome, PolicyKind, Runnable, ThreadId,
    Topology,
};

type Queue = sched::Cpu<()>;

/// The scheduling state of one CPU.
pub struct CpuSched {
    /// Who runs and who waits to.
    pub queue: SpinLock<Queue>,
    /// Deadlines that this CPU's timer serves.
    pub timers: SpinLock<TimerQueue>,
    /// The nearest of them (`u64::MAX`: none); written under `timers`.
    pub next_deadline: AtomicU64,
    /// The idle loop's saved stack pointer.
    idle_rsp: Cell<u64>,
    /// Whose *wait* lock is held over the switch.
    leaving: Cell<Option<&'static Thread>>,
    /// Who was left only to be placed anew.
    requeue: Cell<Option<ThreadRef>>,
    /// Somebody else should run.
    resched: Cell<bool>,
    /// Nothing to run, and it said so in [`IDLE`].
    pub idle: AtomicBool,
    /// A direct handoff left the timer as it was.
    unarmed: Cell<bool>,
    /// Next look at the neighbours.
    balance_ns: Cell<u64>,
    /// Switches so far.
    pub switches: AtomicU64,
    /// Threads taken from other CPUs.
    pub steals: AtomicU64,
}

/// Proof that a switch is over: the thread that was left stands on its stack no more.
pub struct Switched(());

/// CPUs with nothing to run.
static IDLE: AtomicMask = AtomicMask::new();
/// CPUs that were told to look and have not yet.
static PENDING: AtomicMask = AtomicMask::new();
static TOPOLOGY: AtomicPtr<Topology> = AtomicPtr::new(core::ptr::null_mut());

impl CpuSched {
    /// An idle CPU.
    pub fn new(id: usize) -> CpuSched {
        let id = CpuId::new(id).expect("a CPU number");
        CpuSched {
            queue: SpinLock::new(Rank::Cpu, Queue::new(id, PolicyKind::default(), time::now_ns())),
            timers: SpinLock::new(Rank::Timers, TimerQueue::new()),
            next_deadline: AtomicU64::new(u64::MAX),
            idle_rsp: Cell::new(0),
            leaving: Cell::new(None),
            requeue: Cell::new(None),
            resched: Cell::new(false),
            idle: AtomicBool::new(false),
            unarmed: Cell::new(false),
            balance_ns: Cell::new(0),
            switches: AtomicU64::new(0),
            steals: AtomicU64::new(0),
        }
    }
}

/// All CPUs are up: wake-ups may use them.
pub fn set_topology(topology: Topology) {
    TOPOLOGY.store(alloc::boxed::Box::leak(alloc::boxed::Box::new(topology)), Ordering::Release);
}

fn topology() -> Option<&'static Topology> {
    // SAFETY: leaked, stored when complete.
    unsafe { TOPOLOGY.load(Ordering::Acquire).as_ref() }
}

// ---- waking ---------------------------------------------------------------------------------------------------------------

/// What came of a wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// It will run.
    Yes,
    /// It had not come to wait yet, and will not.
    Early,
    /// No such thread any more.
    Stale,
}

/// Lets a thread go on, if it is still the one that is meant. With `direct` it runs here next, in what is left of the caller's slice: the
/// fast path of a call to a waiting server.
pub fn wake(who: &ThreadRef, direct: bool) -> Woken {
    let Some(thread) = thread::get(who.tid) else { return Woken::Stale };
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return Woken::Stale;
    }
    wake_locked(thread, &mut wait, direct)
}

fn wake_locked(thread: &'static Thread, wait: &mut Guard<'_, Wait>, direct: bool) -> Woken {
    let Some(blocked) = wait.parked.take() else {
        wait.woken = true;
        return Woken::Early;
    };
    thread.state.store(State::Runnable as u8, Ordering::Relaxed);
    match blocked.wake() {
        Ok(runnable) => enqueue(runnable, direct),
        // Threads that run on contexts only do not exist yet.
        Err(blocked) => wait.parked = Some(blocked),
    }
    Woken::Yes
}

/// A new thread may run.
pub fn start(runnable: Runnable<()>) {
    enqueue(runnable, false);
}

fn enqueue(runnable: Runnable<()>, direct: bool) {
    let me = percpu::this();
    let target = if direct { me } else { place(&runnable, me) };
    let now = time::now_ns();
    let mut queue = target.sched.queue.lock();
    if cfg!(feature = "planted-alloc-under-lock") {
        drop(core::hint::black_box(alloc::boxed::Box::new(now)));
    }
    let outcome = if direct { queue.hand_over(runnable, now) } else { queue.enqueue(runnable, now) };
    drop(queue);
    match outcome {
        // The caller is about to wait: the switch arms the timer. If it does not wait after all, `preempt_if_needed` does.
        Ok(Effect::Rearm { .. }) if direct => me.sched.unarmed.set(true),
        Ok(effect) => apply(target, me, effect, now),
        // A preference only: it may not run here.
        Err(Misplaced(runnable)) if direct => enqueue(runnable, false),
        // `place` obeys masks; a thread that no CPU may run would be lost here.
        Err(_) => panic!("a thread was placed on CPU {} which it may not use", target.id),
    }
}

fn place(runnable: &Runnable<()>, me: &'static PerCpu) -> &'static PerCpu {
    let Some(topology) = topology() else { return me };
    let previous = runnable.last_cpu();
    // The usual case first: it ran here, may do so again, and nobody else is idle.
    let may_stay = |last: CpuId| last.index() == me.id && runnable.allowed().contains(last);
    if previous.is_some_and(may_stay) && IDLE.is_empty() {
        return me;
    }
    let idle = IDLE.snapshot();
    let land =
        Landscape { topology, online: CpuMask::first_n(percpu::count()), idle, pending: PENDING.snapshot() };
    let load = |cpu: CpuId| {
        // A look without the lock would do; a try keeps the number whole.
        percpu::get(cpu.index())
            .and_then(|cpu| cpu.sched.queue.try_lock().map(|queue| queue.load()))
            .unwrap_or(u64::MAX)
    };
    let chosen = sched::place(&land, &runnable.allowed(), previous, CpuId::new(me.id), load);
    chosen.and_then(|placement| percpu::get(placement.cpu.index())).unwrap_or(me)
}

/// Does what the core asked for on `target`.
fn apply(target: &'static PerCpu, me: &'static PerCpu, effect: Effect, now: u64) {
    match effect {
        Effect::Keep => {}
        _ if target.id != me.id => {
            PENDING.insert(target.id);
            smp::interrupt(target, smp::IPI_RESCHED);
        }
        Effect::Rearm { until_ns } => time::arm(me, until_ns, now),
        Effect::Dispatch => me.sched.resched.set(true),
    }
}

// ---- waiting --------------------------------------------------------------------------------------------------------------

/// The current thread waits until somebody wakes it; at once back if somebody has already.
pub fn block() {
    let me = percpu::this();
    let thread = thread::current();
    debug_assert!(!me.held.any(), "blocking with a lock held");
    let mut wait = thread.wait.lock();
    if wait.woken {
        wait.woken = false;
        return;
    }
    thread.state.store(State::Waiting as u8, Ordering::Relaxed);
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    wait.parked = queue.block(now);
    debug_assert!(wait.parked.is_some());
    let decision = queue.dispatch(now);
    me.sched.leaving.set(Some(thread));
    core::mem::forget(wait);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
}

/// The current thread ends: it is never run again, and whoever runs next frees what it stood on.
pub fn end() -> ! {
    let me = percpu::this();
    let thread = thread::current();
    debug_assert!(!me.held.any(), "ending with a lock held");
    let mut wait = thread.wait.lock();
    thread.state.store(State::Ended as u8, Ordering::Relaxed);
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    wait.parked = queue.block(now);
    assert_unnamed(&queue, thread);
    let decision = queue.dispatch(now);
    me.sched.leaving.set(Some(thread));
    me.dead.set(Some(thread.tid()));
    core::mem::forget(wait);
    leave(me, queue, decision, now);
    unreachable!("an ended thread was run");
}

/// K-17: this CPU's queue does not name the thread any more. (No other can: the entity is a single value, and it is in our hands.)
fn assert_unnamed(queue: &Queue, thread: &Thread) {
    let id = ThreadId(u64::from(thread.tid()));
    assert!(queue.current() != Some(id), "K-17: an ended thread is still current");
    if cfg!(debug_assertions) {
        queue.for_each_queued(|ticket, _, ()| {
            assert!(ticket.thread != id, "K-17: an ended thread is still queued")
        });
    }
    EXITS_CHECKED.fetch_add(1, Ordering::Relaxed);
}

/// Exits for which [`assert_unnamed`] held.
pub static EXITS_CHECKED: AtomicU64 = AtomicU64::new(0);

/// No CPU of a mask is online.
#[derive(Clone, Copy, Debug)]
pub struct NoSuchCpu;

/// From now on the current thread runs on these CPUs only; it does when this returns.
pub fn set_affinity(cpus: CpuMask) -> Result<(), NoSuchCpu> {
    let online = CpuMask::first_n(percpu::count());
    if cpus.and(&online).is_empty() {
        return Err(NoSuchCpu);
    }
    let cpus = if online.without(&cpus).is_empty() { CpuMask::ALL } else { cpus };
    let me = percpu::this();
    let thread = thread::current();
    let mut wait = thread.wait.lock();
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    let mut blocked = queue.block(now).expect("the current thread");
    let changed = blocked.set_allowed(cpus);
    debug_assert!(changed.is_ok(), "the mask is not empty");
    wait.parked = Some(blocked);
    let decision = queue.dispatch(now);
    me.sched.leaving.set(Some(thread));
    // It is off its stack only after the switch; whoever is next wakes it.
    me.sched.requeue.set(Some(thread.reference()));
    core::mem::forget(wait);
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
    Ok(())
}

/// Somebody else should run: does so, if that is (still) true. For paths that return to user mode.
#[inline]
pub fn preempt_if_needed() {
    let me = percpu::this();
    if me.sched.resched.get() {
        preempt(me, false);
    } else if me.sched.unarmed.replace(false) {
        let until_ns = me.sched.queue.lock().until_ns();
        time::arm(me, until_ns, time::now_ns());
    }
}

/// Gives the CPU to others.
pub fn yield_now() {
    preempt(percpu::this(), true);
}

#[cold]
fn preempt(me: &'static PerCpu, voluntarily: bool) {
    me.sched.resched.set(false);
    let thread = thread::current();
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    let decision = if voluntarily { queue.yield_now(now) } else { queue.dispatch(now) };
    leave(me, queue, decision, now);
    fpu::reset(thread.mxcsr.get());
}

/// Switches to whom `decision` names. Returns when this context is chosen again.
fn leave(me: &'static PerCpu, queue: Guard<'_, Queue>, decision: Decision<()>, now: u64) {
    debug_assert!(decision.evicted.is_none(), "nobody has a context yet");
    let next = decision.run.and_then(|id| thread::get(id.0 as u32));
    let next_pointer = next.map_or(core::ptr::null(), |thread| thread as *const Thread);
    time::arm(me, decision.until_ns, now);
    me.sched.resched.set(false);
    me.sched.unarmed.set(false);
    let previous = me.current.get();
    if core::ptr::eq(previous, next_pointer) {
        if let Some(left) = me.sched.leaving.take() {
            // SAFETY: `block` forgot the guard.
            unsafe { left.wait.unlock_forgotten() };
        }
        return;
    }
    core::mem::forget(queue);
    me.sched.switches.fetch_add(1, Ordering::Relaxed);
    me.current.set(next_pointer);
    // SAFETY: records are never unmapped.
    let save = match unsafe { previous.as_ref() } {
        Some(thread) => thread.rsp.as_ptr(),
        None => me.sched.idle_rsp.as_ptr(),
    };
    let to = match next {
        Some(thread) => {
            thread.cpu.store(me.id as u32, Ordering::Relaxed);
            let body = thread.body();
            segments::set_kernel_stack(me, body.stack.top());
            load_space(me, Some(&body.process));
            features::set_fs_base(thread.fs_base.get());
            thread.rsp.get()
        }
        None => {
            load_space(me, None);
            me.sched.idle_rsp.get()
        }
    };
    // SAFETY: `to` was saved when that context was left or made, and it is chosen by this CPU alone: the entity is a single value.
    unsafe { switch::switch_stack(save, to) };
    finish_switch();
}

/// The first thing on a stack that was switched to: opens what the switch held, and frees who ended.
pub fn finish_switch() {
    let me = percpu::this();
    // SAFETY: `leave` forgot the guard, on this CPU, just before the switch.
    unsafe { me.sched.queue.unlock_forgotten() };
    if let Some(left) = me.sched.leaving.take() {
        // SAFETY: `block` or `end` forgot the guard.
        unsafe { left.wait.unlock_forgotten() };
    }
    if let Some(left) = me.sched.requeue.take() {
        wake(&left, false);
    }
    if let Some(tid) = me.dead.take() {
        let switched = Switched(());
        let thread = thread::get(tid).expect("records are never unmapped");
        crate::process::reap(thread, OffStackToken::after_switch(&switched));
    }
}

/// Loads the tables of `process`, or the kernel's, unless they are.
fn load_space(me: &'static PerCpu, process: Option<&alloc::sync::Arc<crate::process::Process>>) {
    let root = process.map_or(paging::kernel_root(), |process| process.space.root());
    if me.root.get() == root {
        return;
    }
    if let Some(process) = process {
        process.space.resident.insert(me.id);
    }
    let old = me.space.replace(process.map(|process| &raw const process.space).unwrap_or(core::ptr::null()));
    me.root.set(root);
    // SAFETY: every root maps the kernel alike.
    unsafe { cpu::set_cr3(root) };
    // SAFETY: the old space's process is kept by its threads; its last one loads the kernel's tables before it lets go.
    if let Some(old) = unsafe { old.as_ref() } {
        old.resident.remove(me.id);
    }
}

/// Leaves the current process's tables for the kernel's: the process is about to be taken apart.
pub fn leave_space() {
    load_space(percpu::this(), None);
}

// ---- idle -----------------------------------------------------------------------------------------------------------------

/// What a CPU does with nothing to do. Never returns, never blocks.
pub extern "C" fn idle_loop(_: u64) -> ! {
    let me = percpu::this();
    loop {
        let now = time::now_ns();
        let mut queue = me.sched.queue.lock();
        let decision = queue.dispatch(now);
        if decision.run.is_some() {
            unmark_idle(me);
            leave(me, queue, decision, now);
            continue;
        }
        drop(queue);
        if steal(me) {
            continue;
        }
        if !me.sched.idle.swap(true, Ordering::Relaxed) {
            IDLE.insert(me.id);
            // Somebody may have queued for a busy neighbour before the mark was seen: look once more.
            continue;
        }
        time::arm(me, u64::MAX, now);
        crate::process::note_idle(me.id);
        cpu::wait_for_interrupt();
    }
}

fn unmark_idle(me: &PerCpu) {
    if me.sched.idle.swap(false, Ordering::Relaxed) {
        IDLE.remove(me.id);
    }
}

/// Takes the most overdue thread that another CPU has waiting.
fn steal(me: &'static PerCpu) -> bool {
    let thief = CpuId::new(me.id).expect("a CPU number");
    let summaries = percpu::all()
        .filter(|other| other.id != me.id)
        .filter_map(|other| other.sched.queue.try_lock().map(|queue| queue.summary()));
    let Some(victim) = sched::most_overdue(thief, summaries) else { return false };
    let Some(victim) = percpu::get(victim.index()) else { return false };
    let moved = with_both(me, victim, |mine, theirs, now| mine.steal_from(theirs, now));
    let stolen = matches!(moved, MoveOutcome::Moved { .. });
    me.sched.steals.fetch_add(u64::from(stolen), Ordering::Relaxed);
    stolen
}

/// Runs `with` under the locks of two CPUs, taken in ascending number.
fn with_both(
    me: &'static PerCpu,
    other: &'static PerCpu,
    with: impl FnOnce(&mut Queue, &mut Queue, u64) -> MoveOutcome,
) -> MoveOutcome {
    let now;
    if me.id < other.id {
        let mut mine = me.sched.queue.lock();
        let mut theirs = other.sched.queue.lock();
        now = time::now_ns();
        with(&mut mine, &mut theirs, now)
    } else {
        let mut theirs = other.sched.queue.lock();
        let mut mine = me.sched.queue.lock();
        now = time::now_ns();
        with(&mut mine, &mut theirs, now)
    }
}

/// The timer fired or another CPU asked: what does the core say?
pub fn look(me: &'static PerCpu) {
    PENDING.remove(me.id);
    let now = time::now_ns();
    if now >= me.sched.balance_ns.get() {
        let id = CpuId::new(me.id).expect("a CPU number");
        me.sched.balance_ns.set(sched::next_balance_ns(id, now));
        balance(me, now);
    }
    let mut queue = me.sched.queue.lock();
    let effect = queue.timer(now);
    let until_ns = queue.until_ns();
    drop(queue);
    match effect {
        Effect::Dispatch => me.sched.resched.set(true),
        Effect::Keep | Effect::Rearm { .. } => time::arm(me, until_ns, now),
    }
}

/// A CPU that is ahead takes a thread from one that is behind.
fn balance(me: &'static PerCpu, now: u64) {
    if percpu::count() == 1 {
        return;
    }
    let mine = me.sched.queue.lock().refreshed_summary(now);
    let others = (1..percpu::count())
        .map(|step| (me.id + step) % percpu::count())
        .take(sched::BALANCE_SCAN_CPUS)
        .filter_map(percpu::get)
        .filter_map(|other| other.sched.queue.try_lock().map(|queue| queue.summary()));
    let plan = sched::balance_plan(&mine, others);
    if let Some(slow) = plan.pull_from.and_then(|slow| percpu::get(slow.index())) {
        let outcome = with_both(me, slow, |mine, theirs, now| mine.balance_from(theirs, now));
        if let MoveOutcome::Moved { effect, .. } = outcome {
            apply(me, me, effect, now);
        }
    }
    if let Some(limit) = plan.forgive_below {
        me.sched.queue.lock().forgive_below(limit);
    }
}

/// Makes the idle context of a CPU and enters it. The boot stack is left for ever.
pub fn enter_idle(me: &'static PerCpu) -> ! {
    // SAFETY: the idle stack is mapped and nobody stands on it.
    let top = unsafe { switch::prepare(me.idle_stack.top(), idle_loop, 0) };
    segments::set_kernel_stack(me, me.idle_stack.top());
    let mut boot = 0;
    // SAFETY: made just now.
    unsafe { switch::switch_stack(&mut boot, top) };
    unreachable!("the boot context was run again");
}

// ---- looking --------------------------------------------------------------------------------------------------------------

/// What the scheduler counts of thread `tid`, wherever it is. `None` if it ended, or moved while we looked.
pub fn snapshot(tid: u32) -> Option<::sched::Snapshot> {
    let thread = thread::get(tid)?;
    let wait = thread.wait.lock();
    if let Some(parked) = &wait.parked {
        return Some(parked.snapshot());
    }
    drop(wait);
    let id = ThreadId(u64::from(tid));
    let cpu = percpu::get(thread.cpu.load(Ordering::Relaxed) as usize)?;
    let queue = cpu.sched.queue.lock();
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

/// A CPU's time so far, and how many threads wait there.
pub fn cpu_time(cpu: &PerCpu) -> (::sched::CpuTime, usize) {
    let mut queue = cpu.sched.queue.lock();
    queue.refreshed_summary(time::now_ns());
    (queue.time(), queue.waiting())
}
