//! The glue that a kernel needs around the locks of its CPUs: every step that touches shared scheduling state.
//!
//! # Steps
//! Each method marked *step* is one critical section or one group of lock-free accesses; between two steps anything may
//! happen, and the model lets it. The others are sequences of steps for real threads ([`Machine::wake`],
//! [`Machine::kill`], …).
//!
//! # Lock order
//! 1. the locks of CPUs, ascending by number; a second one out of order only by `try_lock` ([`Machine::balance`]);
//! 2. a leaf: the slot or the ticket of one thread. Nothing is waited for while a leaf is held, and never two leaves.
//!
//! A slot lock is never held together with a CPU lock; a ticket lock may be taken under CPU locks (`Payload::queued`).
//! Threads, contexts and their memory are freed with no lock held.
//!
//! # Effects on another CPU
//! An [`Effect`] is about the CPU that the event happened to. A remote caller cannot switch threads or arm timers
//! there, so it rings for everything but `Keep`, and the rung CPU answers with `dispatch`, not with `timer`: the core
//! already counts a `Rearm` as done, and `timer` would say `Keep`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sched::{
    Blocked, Context, ContextId, Cpu, CpuId, CpuMap, CpuMask, Decision, Effect, MoveOutcome, PolicyKind,
    Proposal, Runnable, Spec, Summary, ThreadId, Ticket, Topology, balance_plan, most_overdue, place,
};

use crate::Flaw;
use crate::board::Board;
use crate::doorbell::{Doorbell, mask_of};
use crate::record::{Handle, Record, Slot};
use crate::sync::{Backend, Lock};

/// All CPUs and threads, and what they share.
pub struct Machine<B: Backend> {
    cpus: Vec<B::Lock<Cpu<Handle<B>>>>,
    threads: Vec<Arc<Record<B>>>,
    /// Who is idle, rung, or has too much.
    pub bell: Doorbell<B>,
    board: Board,
    topology: Topology,
    /// The run time of all threads that were buried, for the books.
    buried_ns: AtomicU64,
    flaw: Option<Flaw>,
}

/// What came of a wake.
pub enum Claim<B: Backend> {
    /// The thread is ours to make runnable.
    Won(Runnable<Handle<B>>),
    /// It is elsewhere; whoever parks it will see that it was woken.
    Noted,
    /// It runs on contexts only, and has none.
    NeedsContext,
    /// It is dead.
    Gone,
}

/// What a CPU does after its lock is released.
#[must_use = "the CPU must switch, arm its timer and settle the thread that left"]
pub struct Next<B: Backend> {
    /// Who runs.
    pub run: Option<ThreadId>,
    /// Until when.
    pub until_ns: u64,
    /// The thread that left the CPU and all queues: give it to [`Machine::settle`].
    pub off: Option<Blocked<Handle<B>>>,
}

impl<B: Backend> Machine<B> {
    /// Idle CPUs and the threads that wait.
    pub fn new(
        cpus: usize,
        threads: Vec<Arc<Record<B>>>,
        policy: PolicyKind,
        flaw: Option<Flaw>,
    ) -> Machine<B> {
        let bell = Doorbell::new(cpus, flaw);
        let locks = (0..cpus)
            .filter_map(CpuId::new)
            .map(|id| B::Lock::new(id.index() as u32, Cpu::new(id, policy, 0)))
            .collect();
        let topology = Topology::flat(cpus).expect("a machine has 1 to 64 CPUs");
        let (board, buried_ns) = (Board::new(cpus), AtomicU64::new(0));
        let machine = Machine { cpus: locks, threads, bell, board, topology, buried_ns, flaw };
        machine.board.cpus().for_each(|cpu| machine.look(cpu, |state| machine.publish(state)));
        machine
    }

    /// The threads, dead ones included.
    pub fn threads(&self) -> &[Arc<Record<B>>] {
        &self.threads
    }

    /// The CPUs.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + use<B> {
        self.board.cpus()
    }

    /// The run time of all threads that were buried.
    pub fn buried_runtime_ns(&self) -> u64 {
        self.buried_ns.load(Ordering::Relaxed)
    }

    /// Calls `visit` with a CPU under its lock.
    pub fn look<R>(&self, cpu: CpuId, visit: impl FnOnce(&Cpu<Handle<B>>) -> R) -> R {
        visit(&self.cpus[cpu.index()].lock())
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Tells the others about a CPU. Under its lock, after every change.
    fn publish(&self, cpu: &Cpu<Handle<B>>) {
        let summary = cpu.summary();
        self.board.publish(&summary);
        self.bell.publish_offer(cpu.id(), takers(&summary, cpu.current().is_some()));
    }

    /// One critical section of one CPU.
    fn with<R>(&self, cpu: CpuId, change: impl FnOnce(&mut Cpu<Handle<B>>) -> R) -> R {
        let mut state = self.cpus[cpu.index()].lock();
        let result = change(&mut state);
        self.publish(&state);
        result
    }

    // ---- waking ---------------------------------------------------------------------------------------------------

    /// Step: takes a waiting thread out of its slot, or leaves a permit there.
    pub fn claim(&self, thread: usize) -> Claim<B> {
        let mut slot = self.threads[thread].slot.lock();
        match std::mem::replace(&mut *slot, Slot::Away { permit: false }) {
            Slot::Parked(blocked) => match blocked.wake() {
                Ok(runnable) => Claim::Won(runnable),
                Err(blocked) => {
                    *slot = Slot::Parked(blocked);
                    Claim::NeedsContext
                }
            },
            Slot::Away { .. } => {
                *slot = Slot::Away { permit: true };
                Claim::Noted
            }
            Slot::Dead => {
                *slot = Slot::Dead;
                Claim::Gone
            }
        }
    }

    /// Step: where to put a thread, from hints; and whether that CPU looks idle.
    pub fn choose(&self, thread: &Runnable<Handle<B>>, waker: Option<CpuId>) -> Option<(CpuId, bool)> {
        let land = CpuMap {
            topology: &self.topology,
            online: CpuMask::first_n(self.cpus.len()),
            idle: mask_of(self.bell.idle()),
            pending: mask_of(self.bell.pending()),
        };
        let placement =
            place(&land, &thread.allowed(), thread.last_cpu(), waker, |cpu| self.board.weight(cpu))?;
        Some((placement.cpu, placement.was_idle))
    }

    /// Step: queues a thread on a CPU; what that means for the CPU goes to [`Self::notify`].
    pub fn insert(
        &self,
        cpu: CpuId,
        thread: Runnable<Handle<B>>,
        now: u64,
    ) -> Result<Effect, Runnable<Handle<B>>> {
        self.with(cpu, |state| {
            if self.has(Flaw::WakeForgotten) && state.current().is_some() {
                drop(thread);
                return Ok(Effect::Keep);
            }
            state.enqueue(thread, now).map_err(|misplaced| misplaced.0)
        })
    }

    /// Step: rings the CPU to which `effect` happened.
    pub fn notify(&self, cpu: CpuId, effect: Effect, looked_idle: bool) {
        let must = if self.has(Flaw::IdleCheckedTooEarly) { looked_idle } else { effect != Effect::Keep };
        if must {
            self.bell.ring(cpu);
        }
    }

    /// Makes a thread runnable on the best CPU, and sees to it that it is looked at.
    pub fn make_runnable(&self, thread: Runnable<Handle<B>>, waker: Option<CpuId>, now: u64) {
        let mut thread = thread;
        while let Some((cpu, looked_idle)) = self.choose(&thread, waker) {
            match self.insert(cpu, thread, now) {
                Ok(effect) => {
                    self.notify(cpu, effect, looked_idle);
                    self.bell.call_help();
                    return;
                }
                Err(back) => thread = back,
            }
        }
        // It may run nowhere: it waits for a mask that names an online CPU.
        let record = Arc::clone(&thread.payload().0);
        *record.slot.lock() = Slot::Parked(thread.park());
    }

    /// Wakes a thread; answers whether it was this waker that did.
    pub fn wake(&self, thread: usize, waker: Option<CpuId>, now: u64) -> bool {
        let Claim::Won(runnable) = self.claim(thread) else { return false };
        self.make_runnable(runnable, waker, now);
        true
    }

    // ---- a CPU's own events ---------------------------------------------------------------------------------------

    /// Step: who runs next. Also takes a doomed thread off the CPU.
    pub fn redispatch(&self, cpu: CpuId, now: u64) -> Next<B> {
        self.with(cpu, |state| {
            let corpse = if is_doomed(state) { state.block(now) } else { None };
            self.next(state, corpse, now)
        })
    }

    fn next(&self, state: &mut Cpu<Handle<B>>, off: Option<Blocked<Handle<B>>>, now: u64) -> Next<B> {
        let decision = state.dispatch(now);
        self.follow(state, decision, off)
    }

    fn follow(
        &self,
        state: &Cpu<Handle<B>>,
        decision: Decision<Handle<B>>,
        off: Option<Blocked<Handle<B>>>,
    ) -> Next<B> {
        if is_doomed(state) {
            self.bell.ring(state.id()); // one corpse at a time: come back for this one
        }
        let Decision { run, until_ns, evicted, .. } = decision;
        Next { run, until_ns, off: off.or(evicted.map(|evicted| evicted.thread)) }
    }

    /// Step: the timer fired.
    pub fn timer(&self, cpu: CpuId, now: u64) -> Effect {
        self.with(cpu, |state| state.timer(now))
    }

    /// Step: the running thread waits for something.
    pub fn block(&self, cpu: CpuId, now: u64) -> Next<B> {
        self.with(cpu, |state| {
            let off = state.block(now);
            self.next(state, off, now)
        })
    }

    /// Step: the running thread lets others go first.
    pub fn yield_now(&self, cpu: CpuId, now: u64) -> Next<B> {
        self.with(cpu, |state| {
            let decision = state.yield_now(now);
            self.follow(state, decision, None)
        })
    }

    /// Step: the running thread hands the CPU to a server that it woke, and waits.
    pub fn call(
        &self,
        cpu: CpuId,
        server: Runnable<Handle<B>>,
        now: u64,
    ) -> (Next<B>, Option<Runnable<Handle<B>>>) {
        self.with(cpu, |state| {
            let refused = state.hand_over(server, now).err().map(|misplaced| misplaced.0);
            let off = state.block(now);
            (self.next(state, off, now), refused)
        })
    }

    /// Step: a thread that left its CPU goes to its slot, or to its end, or (a wake came first) back to the caller.
    pub fn settle(&self, blocked: Blocked<Handle<B>>) -> Option<Runnable<Handle<B>>> {
        let record = Arc::clone(&blocked.payload().0);
        let mut slot = record.slot.lock();
        if record.is_doomed() {
            *slot = Slot::Dead;
            drop(slot);
            self.bury(blocked);
            return None;
        }
        if matches!(*slot, Slot::Away { permit: true }) && !self.has(Flaw::PermitIgnored) {
            *slot = Slot::Away { permit: false };
            match blocked.wake() {
                Ok(runnable) => return Some(runnable),
                Err(blocked) => *slot = Slot::Parked(blocked),
            }
            return None;
        }
        *slot = Slot::Parked(blocked);
        None
    }

    // ---- the end --------------------------------------------------------------------------------------------------

    /// Step: marks a thread for death, and takes it if it waits.
    pub fn doom(&self, thread: usize) -> Option<Blocked<Handle<B>>> {
        let record = &self.threads[thread];
        record.doom();
        let mut slot = record.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Dead) {
            Slot::Parked(blocked) => Some(blocked),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Step: takes a queued thread out by its ticket.
    pub fn take_queued(&self, ticket: &Ticket, now: u64) -> Option<Blocked<Handle<B>>> {
        self.with(ticket.cpu, |state| state.remove(ticket, now)).map(Runnable::park)
    }

    /// Step: ends a thread that is in our hands; its context's promise is given back.
    pub fn bury(&self, blocked: Blocked<Handle<B>>) {
        let (handle, snapshot, context) = blocked.dismantle();
        self.buried_ns.fetch_add(snapshot.runtime_ns, Ordering::Relaxed);
        *handle.0.slot.lock() = Slot::Dead;
        if let Some(context) = context {
            self.retire(context);
        }
    }

    /// Step: gives a promise back.
    pub fn retire(&self, context: Box<Context>) {
        // As of the CPU's last event: models have no clock of their own.
        let left_over = self.with(context.home(), |state| state.retire(context, 0));
        debug_assert!(left_over.is_ok(), "a context is retired at home"); // and freed here, outside the lock
    }

    /// Kills a thread wherever it is. If it is on its way from one owner to the next, its next CPU ends it.
    pub fn kill(&self, thread: usize, now: u64) {
        if let Some(blocked) = self.doom(thread) {
            return self.bury(blocked);
        }
        let mut last = None;
        loop {
            let Some(ticket) = self.threads[thread].ticket() else { return };
            if last == Some(ticket) {
                self.bell.ring(ticket.cpu); // not queued: it may be running there
                return;
            }
            if let Some(blocked) = self.take_queued(&ticket, now) {
                return self.bury(blocked);
            }
            last = Some(ticket);
        }
    }

    // ---- moving between CPUs --------------------------------------------------------------------------------------

    /// Step: whom to steal from. Candidates come from the offers, the order among them from hints.
    pub fn pick_victim(&self, thief: CpuId) -> Option<CpuId> {
        let hints = self.bell.offers_to(thief).map(|cpu| self.board.read(cpu));
        most_overdue(thief, hints).or_else(|| self.bell.offers_to(thief).next())
    }

    /// Step: steals, and dispatches before the locks are released, so that nobody steals it back.
    pub fn pull(&self, thief: CpuId, victim: CpuId, now: u64) -> Option<Next<B>> {
        let (low, high) =
            if self.has(Flaw::LocksUnordered) || thief < victim { (thief, victim) } else { (victim, thief) };
        let (mut first, mut second) = (self.cpus[low.index()].lock(), self.cpus[high.index()].lock());
        let (own, other) = if low == thief { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let outcome = own.steal_from(other, now);
        let next = matches!(outcome, MoveOutcome::Moved { .. }).then(|| self.next(own, None, now));
        self.publish(own);
        self.publish(other);
        next
    }

    /// Step, flawed: the ticket of the first thread of the victim, for later.
    pub fn note_first(&self, victim: CpuId) -> Option<Ticket> {
        self.look(victim, |state| {
            let mut first = None;
            state.for_each_queued(|ticket, _, _| first = first.or(Some(ticket)));
            first
        })
    }

    /// The periodic balance step of a busy CPU: its own lock, and the other's if it is free. Answers whether the CPU must
    /// be dispatched.
    pub fn balance(&self, cpu: CpuId, now: u64) -> bool {
        let mut own = self.cpus[cpu.index()].lock();
        let plan = balance_plan(&own.summary(), self.board.cpus().map(|other| self.board.read(other)));
        let mut outcome = MoveOutcome::Nothing;
        if let Some(slow) = plan.pull_from
            && let Some(mut other) = self.cpus[slow.index()].try_lock()
        {
            outcome = own.balance_from(&mut other, now);
            self.publish(&other);
        }
        if let Some(limit) = plan.forgive_below {
            own.forgive_below(limit);
        }
        self.publish(&own);
        matches!(outcome, MoveOutcome::Moved { effect, .. } if effect != Effect::Keep)
    }

    // ---- knobs ----------------------------------------------------------------------------------------------------

    /// Changes the weight of a thread where it is; answers false if it was on the move.
    pub fn reweigh(&self, thread: usize, weight: u16, now: u64) -> bool {
        let record = &self.threads[thread];
        if let Slot::Parked(blocked) = &mut *record.slot.lock() {
            return blocked.set_weight(weight).is_ok();
        }
        let Some(ticket) = record.ticket() else { return false };
        self.with(ticket.cpu, |state| {
            if state.current() == Some(record.id) {
                return state.set_current_weight(weight, now).is_ok();
            }
            state.set_queued_weight(&ticket, weight, now) == Ok(true)
        })
    }

    /// Asks `cpu` for a promise.
    pub fn admit(&self, cpu: CpuId, identity: ContextId, spec: Spec, now: u64) -> Option<Box<Context>> {
        let proposal = Proposal::new(identity, spec); // allocated before the lock is taken
        self.with(cpu, |state| state.admit(proposal, now)).ok()
    }

    /// Gives a waiting thread a context; what is left over (this one, or the one it had) is retired.
    pub fn bind_parked(&self, thread: usize, context: Box<Context>) -> bool {
        let (bound, left_over) = match &mut *self.threads[thread].slot.lock() {
            Slot::Parked(blocked) => match blocked.bind(context) {
                Ok(before) => (true, before),
                Err(context) => (false, Some(context)),
            },
            _ => (false, Some(context)),
        };
        if let Some(context) = left_over {
            self.retire(context);
        }
        bound
    }

    /// Takes the context of a waiting thread away.
    pub fn unbind_parked(&self, thread: usize) -> bool {
        let context = match &mut *self.threads[thread].slot.lock() {
            Slot::Parked(blocked) => blocked.unbind(),
            _ => None,
        };
        context.map(|context| self.retire(context)).is_some()
    }

    /// Gives the running thread a context of this CPU.
    pub fn bind_current(&self, cpu: CpuId, context: Box<Context>, now: u64) -> bool {
        match self.with(cpu, |state| state.bind_current(context, now)) {
            Ok(effect) => {
                self.notify(cpu, effect, false);
                true
            }
            Err(context) => {
                self.retire(context);
                false
            }
        }
    }

    /// Takes the context of the running thread away.
    pub fn unbind_current(&self, cpu: CpuId, now: u64) -> bool {
        let Some((context, effect)) = self.with(cpu, |state| state.unbind_current(now)) else { return false };
        self.retire(context);
        self.notify(cpu, effect, false);
        true
    }
}

impl<B: Backend> Drop for Machine<B> {
    /// A parked thread and its record own each other.
    fn drop(&mut self) {
        self.threads.iter().for_each(|record| *record.slot.lock() = Slot::Dead);
    }
}

fn is_doomed<B: Backend>(state: &Cpu<Handle<B>>) -> bool {
    state.current_payload().is_some_and(|handle| handle.0.is_doomed())
}

/// Who could take a thread that this CPU will not run at its next dispatch.
fn takers(summary: &Summary, running: bool) -> u64 {
    let waiting = summary.waiting.saturating_sub(u32::from(!running));
    match (waiting, summary.overdue) {
        (0, _) => 0,
        (_, Some(_)) => u64::MAX,
        (_, None) => crate::doorbell::bits_of(summary.restricted_reach),
    }
}
