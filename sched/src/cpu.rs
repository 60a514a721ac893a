//! One CPU: its queues, its running thread, and the events that change them.
//!
//! The caller guards each CPU by one lock. Every event first charges the time since the previous event to exactly one target: the running
//! thread, idle time or interrupt time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::budget::Demoted;
use crate::clock::VirtualClock;
use crate::demand::Overheads;
use crate::entity::{Entity, Entrance, Key, Link};
use crate::miss::Misses;
use crate::promise::Promise;
use crate::queue::{Aggregates, Queue, Wanted};
use crate::serve::Service;
use crate::{
    Blocked, Context, CpuId, CpuTime, Decision, Effect, Evicted, EvictionReason, Exchanged, FOREVER,
    LatencyClass, MAX_CONTEXTS_PER_CPU, MAX_PROMISES_PER_CPU, Misplaced, Noted, Overrun, Payload, Policy,
    PolicyKind, QueueKind, Replaced, Runnable, Snapshot, ThreadId, Ticket, Utilisation, Weight, WeightError,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Guaranteed,
    Fair,
}

pub(crate) struct Running<T> {
    pub(crate) thread: Box<Entity<T>>,
    pub(crate) tier: Tier,
    pub(crate) until_ns: u64,
}

/// Where a thread was queued just now.
pub(crate) struct Arrival {
    pub(crate) queue: QueueKind,
    pub(crate) key: Key,
    /// Virtual time; meaningful in the fair queues only.
    pub(crate) position: i64,
}

/// All scheduling state of one CPU.
pub struct Cpu<T, P: Policy = PolicyKind> {
    pub(crate) id: CpuId,
    pub(crate) policy: P,
    /// Time has been charged up to here.
    pub(crate) at_ns: u64,
    pub(crate) started_ns: u64,
    in_interrupt: bool,
    pub(crate) running: Option<Running<T>>,
    pub(crate) direct: Link<T>,
    pub(crate) guaranteed: Queue<T>,
    pub(crate) open: Queue<T>,
    pub(crate) restricted: Queue<T>,
    pub(crate) throttled: Queue<T>,
    /// At most `MAX_CONTEXTS_PER_CPU`, allocated at the start.
    pub(crate) demoted: Vec<Demoted>,
    pub(crate) clock: VirtualClock,
    sequence: u64,
    /// An event has asked for a dispatch, which has not happened yet.
    pub(crate) wanted: bool,
    /// What the thread that ran last left of its slice: the longest that a direct handoff may run.
    pub(crate) leftover_ns: u64,
    /// The share of this CPU that is promised to the contexts here.
    pub(crate) reserved: Utilisation,
    /// At most `MAX_PROMISES_PER_CPU`, allocated at the start; by band, highest first.
    pub(crate) promises: Vec<Promise>,
    /// The number of the promise that began to leave last; `None` if nothing of it had to be kept.
    pub(crate) departed: Option<u64>,
    /// How many promises were made; a verdict about an earlier number is stale.
    pub(crate) admissions: u64,
    /// When this CPU last had no thread with budget to run.
    pub(crate) relaxed_ns: u64,
    pub(crate) overheads: Overheads,
    /// How many contexts are admitted or hosted here. With none, no thread is guaranteed, throttled or demoted, so events need not look for one
    /// (I6).
    pub(crate) contexts: usize,
    /// What the next decision reports about contexts.
    pub(crate) noted: Noted,
    pub(crate) misses: Misses,
    pub(crate) service: Service,
    /// The thread whose refill came last, until [`Cpu::take_refilled`] fetches it.
    pub(crate) refilled: Option<ThreadId>,
    pub(crate) time: CpuTime,
    /// Threads that came from another CPU.
    migrations: u64,
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// An idle CPU.
    pub fn new(id: CpuId, policy: P, now: u64) -> Cpu<T, P> {
        let least = policy.eligible_only();
        Cpu {
            id,
            policy,
            at_ns: now,
            started_ns: now,
            in_interrupt: false,
            running: None,
            direct: None,
            guaranteed: Queue::new(Aggregates::NONE),
            open: Queue::new(Aggregates { least, reach: false }),
            restricted: Queue::new(Aggregates { least, reach: true }),
            throttled: Queue::new(Aggregates::NONE),
            demoted: Vec::with_capacity(MAX_CONTEXTS_PER_CPU),
            clock: VirtualClock::new(),
            sequence: 0,
            wanted: false,
            leftover_ns: 0,
            reserved: Utilisation::default(),
            promises: Vec::with_capacity(MAX_PROMISES_PER_CPU),
            departed: None,
            admissions: 0,
            relaxed_ns: now,
            overheads: Overheads::NONE,
            contexts: 0,
            noted: Noted::NOTHING,
            misses: Misses::NONE,
            service: Service::default(),
            refilled: None,
            time: CpuTime::default(),
            migrations: 0,
        }
    }

    /// The number of this CPU.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The ordering policy.
    pub fn policy(&self) -> P {
        self.policy
    }

    /// When this CPU was created: its wall time is counted from here.
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// The running thread.
    pub fn current(&self) -> Option<ThreadId> {
        self.running.as_ref().map(|running| running.thread.id)
    }

    /// What the caller attached to the running thread.
    pub fn current_payload(&self) -> Option<&T> {
        self.running.as_ref().map(|running| &running.thread.payload)
    }

    /// Counters and knobs of the running thread, as of the last event.
    pub fn current_snapshot(&self) -> Option<Snapshot> {
        self.running.as_ref().map(|running| running.thread.snapshot())
    }

    /// The context of the running thread.
    pub fn current_context(&self) -> Option<&Context> {
        self.running.as_ref()?.thread.context.as_deref()
    }

    /// How far the running thread is ahead of its share, in real time: the debt with which a thread that it creates starts ([`Runnable::owe`]).
    pub fn current_debt_ns(&mut self, now: u64) -> u64 {
        self.charge(now);
        self.clock.settle();
        match &self.running {
            Some(Running { thread, tier: Tier::Fair, .. }) => {
                thread.fair.weight().to_real(thread.fair.position - self.clock.now())
            }
            _ => 0,
        }
    }

    /// Where the time since the start went, as of the last event.
    pub fn time(&self) -> CpuTime {
        self.time
    }

    /// Wall time since the start, as of the last event: what [`Cpu::time`] adds up to (S-12).
    pub fn wall_ns(&self) -> u64 {
        self.at_ns - self.started_ns
    }

    /// Threads that came here from another CPU.
    pub fn migrations(&self) -> u64 {
        self.migrations
    }

    /// Best-effort threads that wait here.
    pub fn waiting(&self) -> usize {
        self.open.len() + self.restricted.len() + usize::from(self.direct.is_some())
    }

    /// As `waiting() > 0`, without counting.
    fn anybody_waits(&self) -> bool {
        !self.open.is_empty() || !self.restricted.is_empty() || self.direct.is_some()
    }

    /// Whether this CPU is idle and a dispatch would find no thread to run. It may be `false` needlessly, but is never wrongly `true`.
    pub fn stays_idle(&self) -> bool {
        self.running.is_none() && self.contexts == 0 && !self.anybody_waits()
    }

    /// Whether time is charged to interrupts, and to no thread, at the moment.
    pub fn is_in_interrupt(&self) -> bool {
        self.in_interrupt
    }

    /// Up to when time was charged.
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// What the timer must be armed for ([`FOREVER`]: no timer needed).
    pub fn until_ns(&self) -> u64 {
        self.running.as_ref().map_or_else(|| self.end_of_turn(), |running| running.until_ns)
    }

    /// Whether an event has asked for a dispatch that has not happened yet.
    pub fn wants_dispatch(&self) -> bool {
        self.wanted
    }

    /// The weight of all best-effort threads here, the running one included: what placement compares.
    pub fn load(&self) -> u64 {
        self.clock.weight()
    }

    /// All threads that wait here, throttled ones included.
    pub fn queued(&self) -> usize {
        self.waiting() + self.guaranteed.len() + self.throttled.len()
    }

    // ---- time -------------------------------------------------------------------------------------------------

    /// Charges everything up to `now` to the one target that had the CPU (S-12). Time never goes back: an older `now`
    /// charges nothing.
    #[inline(always)]
    pub(crate) fn charge(&mut self, now: u64) {
        if now <= self.at_ns {
            return;
        }
        let elapsed = now - self.at_ns;
        self.at_ns = now;
        if self.in_interrupt {
            self.time.interrupt_ns += elapsed;
            return;
        }
        let Some(running) = &mut self.running else {
            self.time.idle_ns += elapsed;
            return;
        };
        self.time.thread_ns += elapsed;
        let thread = &mut *running.thread;
        thread.account.runtime_ns += elapsed;
        match (running.tier, &mut thread.context) {
            (Tier::Guaranteed, Some(context)) => {
                context.charge(elapsed, now, &mut thread.key.tag, &mut self.noted);
            }
            _ => {
                // The account counts all of the running time; arrears only slow down the thread's position (F-02).
                let virtual_ns = thread.fair.virtual_of(elapsed);
                thread.account.virtual_runtime_ns += virtual_ns as u64;
                thread.quantum_ns = thread.quantum_ns.saturating_sub(elapsed);
                let moved_ns = thread.fair.advance(virtual_ns);
                self.clock.advance(thread.fair.weight(), moved_ns);
            }
        }
    }

    /// From here on, time is charged to the kernel and not to a thread. Calls do not nest: the first `interrupt_end` ends it.
    pub fn interrupt_begin(&mut self, now: u64) {
        self.charge(now);
        self.in_interrupt = true;
    }

    /// From here on, time is charged to the running thread (or idle) again.
    pub fn interrupt_end(&mut self, now: u64) {
        self.charge(now);
        self.in_interrupt = false;
    }

    // ---- arrivals -----------------------------------------------------------------------------------------------

    /// Queues a thread that has become runnable. A thread is refused, and given back, if its CPU mask or its context's home exclude this CPU.
    pub fn enqueue(&mut self, thread: Runnable<T>, now: u64) -> Result<Effect, Misplaced<T>> {
        let mut thread = thread.0;
        if !thread.may_run_on(self.id) {
            return Err(Misplaced(Runnable(thread)));
        }
        self.charge(now);
        thread.account.runnable_since_ns = self.at_ns;
        self.arrive(&mut thread);
        if let Some(context) = &mut thread.context {
            context.ledger.activate(self.at_ns);
        }
        Ok(self.queue_and_react(thread))
    }

    /// Queues a thread that the virtual clock does not count, and returns what the CPU must do.
    pub(crate) fn queue_and_react(&mut self, mut thread: Box<Entity<T>>) -> Effect {
        let arrival = if thread.context.is_some() {
            self.queue_by_budget(thread)
        } else {
            self.enter_fair(&mut thread);
            self.queue_fair(thread)
        };
        self.effect_of_arrival(arrival)
    }

    /// As `enqueue`, but the thread runs at the next dispatch, for as long as the caller's slice lasts: the fast path of
    /// a call to a waiting server. A preference, not a privilege: threads with budget still come first, and when the
    /// slice is used up or the slot is taken the thread queues like any other.
    pub fn hand_over(&mut self, thread: Runnable<T>, now: u64) -> Result<Effect, Misplaced<T>> {
        if self.direct.is_some() || thread.0.context.is_some() || !thread.0.may_run_on(self.id) {
            return self.enqueue(thread, now);
        }
        self.charge(now);
        let mut thread = thread.0;
        thread.account.runnable_since_ns = self.at_ns;
        self.arrive(&mut thread);
        self.enter_fair(&mut thread);
        let tag = self.policy.tag(&mut thread.fair);
        thread.key = self.next_key(tag);
        thread.payload.queued(self.ticket(&thread, QueueKind::Direct));
        self.direct = Some(thread);
        Ok(if self.running.is_none() { Effect::Dispatch } else { self.rearm() })
    }

    #[inline]
    pub(crate) fn arrive(&mut self, thread: &mut Entity<T>) {
        if thread.last_cpu.is_some_and(|last| last != self.id) {
            thread.account.migrations += 1;
            self.migrations += 1;
        }
        thread.last_cpu = Some(self.id);
    }

    pub(crate) fn enter_fair(&mut self, thread: &mut Entity<T>) {
        match thread.entrance {
            Entrance::New => self.clock.enter_new(&mut thread.fair),
            Entrance::Join => self.clock.enter(&mut thread.fair),
            Entrance::Moved => self.clock.enter_moved(&mut thread.fair),
        }
    }

    pub(crate) fn leave_fair(&mut self, thread: &mut Entity<T>) {
        self.clock.leave(&mut thread.fair);
        thread.entrance = Entrance::Join;
        self.forget_demotion(thread);
    }

    pub(crate) fn next_key(&mut self, tag: i64) -> Key {
        self.sequence += 1;
        Key { tag, sequence: self.sequence }
    }

    /// Queues a thread that is already counted by the clock.
    pub(crate) fn queue_fair(&mut self, mut thread: Box<Entity<T>>) -> Arrival {
        let tag = self.policy.tag(&mut thread.fair);
        thread.key = self.next_key(tag);
        let key = thread.key;
        let position = thread.fair.position;
        let anywhere = thread.anywhere && thread.context.is_none();
        let queue = if anywhere { QueueKind::Open } else { QueueKind::Restricted };
        thread.payload.queued(self.ticket(&thread, queue));
        if thread.context.is_some() {
            self.note_demotion(&mut thread, Some((queue, key)));
        }
        match queue {
            QueueKind::Open => self.open.insert(thread),
            _ => self.restricted.insert(thread),
        }
        Arrival { queue, key, position }
    }

    pub(crate) fn effect_of_arrival(&mut self, arrival: Arrival) -> Effect {
        let Arrival { queue, key, position } = arrival;
        let Some(running) = &self.running else {
            return if queue == QueueKind::Throttled { self.rearm() } else { Effect::Dispatch };
        };
        let preempts = match (queue, running.tier) {
            (QueueKind::Throttled, _) => false,
            (QueueKind::Guaranteed, Tier::Guaranteed) => key < running.thread.key,
            (QueueKind::Guaranteed, Tier::Fair) => true,
            (_, Tier::Guaranteed) => false,
            (_, Tier::Fair) => {
                let eligible = !self.policy.eligible_only() || position <= self.clock.eligible_until();
                let to_beat = running.thread.fair.tag_to_beat(self.policy, running.thread.key.tag, position);
                self.policy.preempts(key.tag, eligible, to_beat)
            }
        };
        if preempts { self.want_dispatch() } else { self.rearm() }
    }

    pub(crate) fn want_dispatch(&mut self) -> Effect {
        self.wanted = true;
        Effect::Dispatch
    }

    // ---- departures ---------------------------------------------------------------------------------------------

    /// The running thread blocks. A dispatch must follow.
    pub fn block(&mut self, now: u64) -> Option<Blocked<T>> {
        self.charge(now);
        let Running { mut thread, tier, .. } = self.running.take()?;
        self.leftover_ns = 0;
        if tier == Tier::Fair {
            self.leftover_ns = thread.quantum_ns;
            self.leave_fair(&mut thread);
        }
        thread.account.voluntary_blocks += 1;
        Some(Blocked(thread))
    }

    /// `hand_over`, `block` and `dispatch` in one: the running thread blocks, and `next` runs in what is left of its slice. Every synchronous
    /// call comes this way, so the usual case (no context on this CPU) is a path of its own.
    #[inline]
    pub fn block_for(&mut self, next: Runnable<T>, now: u64) -> Result<Exchanged<T>, Misplaced<T>> {
        match self.take_place(next, now) {
            Ok(Replaced { blocked, run, until_ns }) => {
                let decision = Decision {
                    run: Some(run),
                    until_ns,
                    switched: true,
                    noted: Noted::NOTHING,
                    evicted: None,
                };
                Ok((Some(blocked), decision))
            }
            Err(next) => self.block_and_hand_over(next, now),
        }
    }

    /// The usual case of [`Cpu::block_for`]: no context is here, `next` may run here, and some of the slice is left. Otherwise `next` is given
    /// back, and nothing has happened but the charge.
    #[inline(always)]
    pub fn take_place(&mut self, next: Runnable<T>, now: u64) -> Result<Replaced<T>, Runnable<T>> {
        self.charge(now);
        let left_ns = match &self.running {
            Some(Running { thread, tier: Tier::Fair, .. }) => thread.quantum_ns,
            _ => 0,
        };
        // Without contexts no thread is demoted either, so there is no demotion to forget.
        let is_plain = self.contexts == 0 && self.direct.is_none() && next.0.context.is_none();
        if !is_plain || left_ns == 0 || !next.0.may_run_on(self.id) {
            return Err(next);
        }
        let mut next = next.0;
        self.arrive(&mut next);
        let Some(running) = &mut self.running else { unreachable!("it has some of its slice left") };
        let left = &mut running.thread;
        match next.entrance {
            Entrance::New => {
                self.clock.enter_new(&mut next.fair);
                self.clock.leave(&mut left.fair);
            }
            Entrance::Join | Entrance::Moved => self.clock.exchange(&mut next.fair, &mut left.fair),
        }
        left.entrance = Entrance::Join;
        left.account.voluntary_blocks += 1;
        let tag = self.policy.tag(&mut next.fair);
        self.sequence += 1;
        next.key = Key { tag, sequence: self.sequence };
        next.quantum_ns = left_ns.min(self.policy.quantum_ns(&next.fair));
        let run = next.id;
        let blocked = Blocked(core::mem::replace(left, next));
        running.until_ns = FOREVER;
        if !self.open.is_empty() || !self.restricted.is_empty() {
            running.until_ns = self.at_ns + running.thread.quantum_ns;
        }
        let until_ns = running.until_ns;
        self.wanted = false;
        self.leftover_ns = 0;
        Ok(Replaced { blocked, run, until_ns })
    }

    #[inline(never)]
    pub(crate) fn block_and_hand_over(
        &mut self,
        next: Runnable<T>,
        now: u64,
    ) -> Result<Exchanged<T>, Misplaced<T>> {
        let _ = self.hand_over(next, now)?;
        let blocked = self.block(now);
        Ok((blocked, self.dispatch(now)))
    }

    /// Takes a queued thread out of its queue; a stale ticket finds nothing and changes nothing.
    pub fn remove(&mut self, ticket: &Ticket, now: u64) -> Option<Runnable<T>> {
        let mut thread = self.take_by(ticket)?;
        self.charge(now);
        match ticket.queue {
            QueueKind::Throttled => thread.account.end_throttle(thread.key.tag as u64, self.at_ns),
            queue if queue.is_fair() => self.leave_fair(&mut thread),
            _ => {}
        }
        Some(Runnable(thread))
    }

    pub(crate) fn take_by(&mut self, ticket: &Ticket) -> Option<Box<Entity<T>>> {
        if ticket.cpu != self.id {
            return None;
        }
        let thread = match ticket.queue {
            QueueKind::Direct => self.direct.take_if(|thread| thread.key == ticket.key),
            queue => self.queue_mut(queue).take(Wanted::Exactly(ticket.key)),
        }?;
        // Keys are never used twice on a CPU, so this is the thread, unless the ticket was made up.
        if thread.id != ticket.thread {
            self.give_back(ticket.queue, thread);
            return None;
        }
        Some(thread)
    }

    /// Undoes `take_by`.
    fn give_back(&mut self, queue: QueueKind, thread: Box<Entity<T>>) {
        match queue {
            QueueKind::Direct => self.direct = Some(thread),
            queue => self.queue_mut(queue).put_back(thread),
        }
    }

    pub(crate) fn queue_mut(&mut self, queue: QueueKind) -> &mut Queue<T> {
        match queue {
            QueueKind::Guaranteed => &mut self.guaranteed,
            QueueKind::Open => &mut self.open,
            QueueKind::Restricted => &mut self.restricted,
            QueueKind::Throttled => &mut self.throttled,
            QueueKind::Direct => unreachable!("the direct slot is no queue"),
        }
    }

    // ---- knobs --------------------------------------------------------------------------------------------------

    /// Changes the weight of the running thread: its next charge and its next enqueue use it (F-05, F-07).
    pub fn set_current_weight(&mut self, weight: u16, now: u64) -> Result<(), WeightError> {
        let weight = Weight::new(weight)?;
        self.charge(now);
        if let Some(running) = &mut self.running {
            match running.tier {
                Tier::Fair => self.clock.reweigh(&mut running.thread.fair, weight),
                Tier::Guaranteed => running.thread.fair.set_weight_off_cpu(weight),
            }
        }
        Ok(())
    }

    /// Changes the latency class of the running thread: its next enqueue uses it.
    pub fn set_current_class(&mut self, class: LatencyClass) {
        if let Some(running) = &mut self.running {
            running.thread.fair.set_class(class);
        }
    }

    /// Changes the weight of a queued thread. Its place is not recomputed: that happens at its next enqueue. Returns whether the ticket was
    /// valid.
    pub fn set_queued_weight(&mut self, ticket: &Ticket, weight: u16, now: u64) -> Result<bool, WeightError> {
        let weight = Weight::new(weight)?;
        let Some(mut thread) = self.take_by(ticket) else { return Ok(false) };
        self.charge(now);
        if ticket.queue.is_fair() {
            self.clock.reweigh(&mut thread.fair, weight);
        } else {
            thread.fair.set_weight_off_cpu(weight);
        }
        self.give_back(ticket.queue, thread);
        Ok(true)
    }

    // ---- decisions ----------------------------------------------------------------------------------------------

    /// The timer fired (early, late or on time), or an inter-processor interrupt asked this CPU to look because of another CPU's event.
    /// [`Effect::Keep`] means "as the last answer said", and that may have gone to the other CPU; [`Cpu::until_ns`] tells what the timer must be
    /// armed for.
    pub fn timer(&mut self, now: u64) -> Effect {
        self.charge(now);
        self.release_due();
        let waiting = self.anybody_waits();
        let Some(running) = &mut self.running else {
            return if self.guaranteed.is_empty() && !waiting { self.rearm() } else { Effect::Dispatch };
        };
        let over = match (running.tier, &running.thread.context) {
            _ if self.wanted => true,
            (Tier::Guaranteed, Some(context)) => {
                context.ledger.available_ns(self.at_ns) == 0
                    || self.guaranteed.first_key().is_some_and(|first| first < running.thread.key)
            }
            _ if !self.guaranteed.is_empty() => true,
            _ if running.thread.quantum_ns > 0 => false,
            _ if waiting => true,
            _ => {
                // No other thread waits: the running one gets a new slice without a switch.
                running.thread.key.tag = self.policy.tag(&mut running.thread.fair);
                running.thread.quantum_ns = self.policy.quantum_ns(&running.thread.fair);
                false
            }
        };
        if over { Effect::Dispatch } else { self.rearm() }
    }

    /// Puts the running thread back into its queue and chooses which thread runs next, and until when.
    pub fn dispatch(&mut self, now: u64) -> Decision<T> {
        self.charge(now);
        self.release_due();
        self.wanted = false;
        if self.stays_idle() {
            self.leftover_ns = 0;
            return Decision {
                run: None,
                until_ns: FOREVER,
                switched: false,
                noted: Noted::NOTHING,
                evicted: None,
            };
        }
        if self.running.is_none()
            && self.contexts == 0
            && self.direct.is_none()
            && let Some(next) = self.pop_fair()
        {
            return self.end_idleness(next);
        }
        let previous = self.current();
        let mut evicted = None;
        if let Some(running) = self.running.take() {
            self.leftover_ns = if running.tier == Tier::Fair { running.thread.quantum_ns } else { 0 };
            evicted = self.put_back(running, true);
        }
        let mut next = self.pick();
        if !matches!(next, Some((_, Tier::Guaranteed))) {
            self.relaxed_ns = self.at_ns;
        }
        if let Some((thread, _)) = &mut next
            && previous == Some(thread.id)
        {
            // It was not preempted after all, though `put_back` has counted that; a thread that was throttled in between cannot be here.
            thread.account.preemptions -= 1;
        }
        self.start(next, previous, evicted)
    }

    /// The usual dispatch of an idle CPU: no context is here.
    #[inline]
    fn end_idleness(&mut self, mut next: Box<Entity<T>>) -> Decision<T> {
        self.leftover_ns = 0;
        next.quantum_ns = self.policy.quantum_ns(&next.fair);
        next.account.runnable_ns += self.at_ns.saturating_sub(next.account.runnable_since_ns);
        let run = Some(next.id);
        let until_ns = if self.anybody_waits() { self.at_ns + next.quantum_ns } else { FOREVER };
        self.running = Some(Running { thread: next, tier: Tier::Fair, until_ns });
        Decision { run, until_ns, switched: true, noted: Noted::NOTHING, evicted: None }
    }

    /// Whether [`Cpu::run_at_once`] would run `next`.
    #[inline]
    pub fn runs_at_once(&self, next: &Runnable<T>) -> bool {
        self.stays_idle() && next.0.context.is_none() && next.0.may_run_on(self.id)
    }

    /// [`Cpu::enqueue`] and [`Cpu::dispatch`] in one, for a thread that wakes an idle CPU: no thread runs or waits, and no context is here.
    /// Otherwise the thread is given back, and nothing has happened.
    #[inline]
    pub fn run_at_once(&mut self, next: Runnable<T>, now: u64) -> Result<Decision<T>, Runnable<T>> {
        if !self.runs_at_once(&next) {
            return Err(next);
        }
        self.charge(now);
        let mut next = next.0;
        self.arrive(&mut next);
        self.enter_fair(&mut next);
        let tag = self.policy.tag(&mut next.fair);
        next.key = self.next_key(tag);
        next.quantum_ns = self.policy.quantum_ns(&next.fair);
        next.account.runnable_since_ns = self.at_ns;
        let run = Some(next.id);
        (self.wanted, self.leftover_ns) = (false, 0);
        self.running = Some(Running { thread: next, tier: Tier::Fair, until_ns: FOREVER });
        Ok(Decision { run, until_ns: FOREVER, switched: true, noted: Noted::NOTHING, evicted: None })
    }

    /// The running thread yields: it is queued only after the next thread was chosen. A thread with budget yields only to threads that are at
    /// least as urgent as it would be with a deadline counted from now: see `ask_anew`.
    pub fn yield_now(&mut self, now: u64) -> Decision<T> {
        self.charge(now);
        self.release_due();
        self.wanted = false;
        self.leftover_ns = 0;
        if self.contexts == 0
            && self.direct.is_none()
            && self.running.as_ref().is_some_and(|running| !running.thread.context_only)
            && let Some(next) = self.pop_fair()
        {
            return self.take_turns(next);
        }
        if let Some(decision) = self.ask_anew() {
            return decision;
        }
        let previous = self.current();
        let Some(running) = self.running.take() else {
            let next = self.pick();
            return self.start(next, previous, None);
        };
        let next = self.pick();
        let evicted = self.put_back(running, false);
        let next = next.or_else(|| self.pick());
        self.start(next, previous, evicted)
    }

    /// The usual yield: to a waiting thread, on a CPU without contexts.
    #[inline]
    fn take_turns(&mut self, mut next: Box<Entity<T>>) -> Decision<T> {
        next.quantum_ns = self.policy.quantum_ns(&next.fair);
        next.account.runnable_ns += self.at_ns.saturating_sub(next.account.runnable_since_ns);
        let run = Some(next.id);
        // The thread that yields waits now, so the slice of the next one is limited.
        let until_ns = self.at_ns + next.quantum_ns;
        if let Some(left) = self.running.replace(Running { thread: next, tier: Tier::Fair, until_ns }) {
            let mut thread = left.thread;
            thread.account.runnable_since_ns = self.at_ns;
            self.queue_fair(thread);
        }
        Decision { run, until_ns, switched: true, noted: Noted::NOTHING, evicted: None }
    }

    fn put_back(&mut self, running: Running<T>, preempted: bool) -> Option<Evicted<T>> {
        let Running { mut thread, tier, .. } = running;
        if thread.context_only && thread.context.is_none() {
            if tier == Tier::Fair {
                self.leave_fair(&mut thread);
            }
            return Some(Evicted { thread: Blocked(thread), reason: EvictionReason::ContextLost });
        }
        thread.account.runnable_since_ns = self.at_ns;
        thread.account.preemptions += u64::from(preempted);
        match (tier, &thread.context) {
            (Tier::Guaranteed, Some(context)) => {
                if context.ledger.available_ns(self.at_ns) > 0 {
                    self.queue_guaranteed(thread);
                    return None;
                }
                if context.spec().overrun == Overrun::Fault {
                    thread.account.throttles += 1;
                    return Some(Evicted { thread: Blocked(thread), reason: EvictionReason::TimeoutFault });
                }
                let is_throttled = self.queue_by_budget(thread).queue == QueueKind::Throttled;
                self.noted = self.noted.and(Noted::THROTTLED.only_if(is_throttled));
            }
            _ => {
                self.queue_fair(thread);
            }
        }
        None
    }

    #[inline]
    pub(crate) fn pick(&mut self) -> Option<(Box<Entity<T>>, Tier)> {
        let leftover_ns = core::mem::take(&mut self.leftover_ns);
        if self.contexts > 0
            && let Some(thread) = self.guaranteed.pop_first()
        {
            self.requeue_direct();
            return Some((thread, Tier::Guaranteed));
        }
        if leftover_ns > 0
            && let Some(mut thread) = self.direct.take()
        {
            thread.quantum_ns = leftover_ns.min(self.policy.quantum_ns(&thread.fair));
            return Some((thread, Tier::Fair));
        }
        self.requeue_direct();
        let mut thread = self.pop_fair()?;
        thread.quantum_ns = self.policy.quantum_ns(&thread.fair);
        Some((thread, Tier::Fair))
    }

    pub(crate) fn requeue_direct(&mut self) {
        if let Some(thread) = self.direct.take() {
            self.queue_fair(thread);
        }
    }

    #[inline]
    fn pop_fair(&mut self) -> Option<Box<Entity<T>>> {
        if self.policy.eligible_only() {
            let wanted = Wanted::EligibleAt(self.clock.eligible_until());
            let in_restricted = self.restricted.find(wanted).map(|thread| thread.key);
            let eligible = match in_restricted {
                None => self.open.take(wanted),
                Some(key) if self.open.find(wanted).is_some_and(|open| open.key < key) => {
                    self.open.take(wanted)
                }
                Some(_) => self.restricted.take(wanted),
            };
            if eligible.is_some() {
                return eligible;
            } // Otherwise only threads outside the queues pull the average down: take the first.
        }
        match (self.open.first_key(), self.restricted.first_key()) {
            (Some(a), Some(b)) if b < a => self.restricted.pop_first(),
            (None, _) => self.restricted.pop_first(),
            _ => self.open.pop_first(),
        }
    }

    #[inline]
    pub(crate) fn start(
        &mut self,
        next: Option<(Box<Entity<T>>, Tier)>,
        previous: Option<ThreadId>,
        evicted: Option<Evicted<T>>,
    ) -> Decision<T> {
        if let Some((mut thread, tier)) = next {
            thread.account.runnable_ns += self.at_ns.saturating_sub(thread.account.runnable_since_ns);
            if tier == Tier::Fair && thread.context.is_some() {
                self.note_demotion(&mut thread, None);
            }
            self.running = Some(Running { thread, tier, until_ns: FOREVER });
        }
        let until_ns = self.horizon();
        if let Some(running) = &mut self.running {
            running.until_ns = until_ns;
        }
        let run = self.current();
        let noted = if self.contexts == 0 { Noted::NOTHING } else { core::mem::take(&mut self.noted) };
        Decision { run, until_ns, switched: run != previous, noted, evicted }
    }

    /// The latest time at which the caller must ask again.
    fn horizon(&mut self) -> u64 {
        let end_ns = self.end_of_turn();
        self.before_miss(end_ns)
    }

    /// As [`Cpu::horizon`], without regard to deadlines that waiting threads may miss.
    fn end_of_turn(&self) -> u64 {
        let end = match &self.running {
            None => FOREVER,
            Some(Running { thread, tier: Tier::Guaranteed, .. }) => {
                return self.end_of_promise(thread.context.as_deref());
            }
            // A thread in the guaranteed queue has asked for a dispatch; should the caller forget it, the timer bounds its wait.
            Some(_) if !self.anybody_waits() && self.guaranteed.is_empty() => FOREVER,
            Some(Running { thread, .. }) => self.at_ns + thread.quantum_ns,
        };
        if self.anybody_is_dry() { end.min(self.next_release_ns()) } else { end }
    }

    /// As [`Cpu::end_of_turn`], for a thread that runs on its context.
    #[inline(always)]
    pub(crate) fn end_of_promise(&self, context: Option<&Context>) -> u64 {
        // Only the first refill counts, not all that is available: the next refill has another deadline, and another thread's may be earlier.
        let mut end_ns = self.at_ns;
        if let Some(context) = context {
            end_ns += context.ledger.head_ns(self.at_ns);
            // The turn ends, too, when the thread itself becomes late: that must be noted.
            let late_ns = context.due_ns() + 1;
            if late_ns > self.at_ns {
                end_ns = end_ns.min(late_ns);
            }
        }
        if self.anybody_is_dry() { end_ns.min(self.next_release_ns()) } else { end_ns }
    }

    pub(crate) fn rearm(&mut self) -> Effect {
        let until_ns = self.horizon();
        match &mut self.running {
            Some(running) if running.until_ns == until_ns => Effect::Keep,
            Some(running) => {
                running.until_ns = until_ns;
                Effect::Rearm { until_ns }
            }
            None => Effect::Rearm { until_ns },
        }
    }
}
