//! One CPU: its queues, its running thread, and the events that change them.
//!
//! Guarded by one lock of the caller's. Every event first charges the time since the last one, to exactly one target.

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
    /// In virtual time; means something in the fair queues only.
    pub(crate) position: i64,
}

/// All scheduling state of one CPU.
pub struct Cpu<T, P: Policy = PolicyKind> {
    pub(crate) id: CpuId,
    pub(crate) policy: P,
    /// Charged up to here.
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
    /// An event said that somebody else should run, and nobody has dispatched since.
    pub(crate) wanted: bool,
    /// What the last thread left of its slice: the most that a direct handoff may run.
    pub(crate) leftover_ns: u64,
    /// Promised to contexts that are here.
    pub(crate) reserved: Utilisation,
    /// At most `MAX_PROMISES_PER_CPU`, allocated at the start; by band, highest first.
    pub(crate) promises: Vec<Promise>,
    /// The one of them that left last, by its number, if it did not leave at once.
    pub(crate) departed: Option<u64>,
    /// How often something was promised.
    pub(crate) admissions: u64,
    /// When there was last no budget to serve.
    pub(crate) relaxed_ns: u64,
    pub(crate) overheads: Overheads,
    /// Admitted here. With none, nobody is guaranteed, throttled or demoted, and events need not look (I6).
    pub(crate) contexts: usize,
    /// What the next decision has to say about contexts.
    pub(crate) noted: Noted,
    pub(crate) misses: Misses,
    pub(crate) service: Service,
    /// Whose refill has come last, until somebody asks.
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

    /// Its number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The ordering policy.
    pub fn policy(&self) -> P {
        self.policy
    }

    /// When it was made: its time is counted from here.
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

    /// By how much real time the running thread is ahead of its share: what a thread that it makes begins with.
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

    /// Whether it is idle and stays so for now: a dispatch would find nobody. It may say no too often, but never yes.
    pub fn stays_idle(&self) -> bool {
        self.running.is_none() && self.contexts == 0 && !self.anybody_waits()
    }

    /// Whether time goes to nobody's account at the moment.
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

    /// Whether somebody else should run, and nobody has dispatched since.
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
                // What is counted is all that it ran; arrears change where it stands, not what it had (F-02).
                let virtual_ns = thread.fair.virtual_of(elapsed);
                thread.account.virtual_runtime_ns += virtual_ns as u64;
                thread.quantum_ns = thread.quantum_ns.saturating_sub(elapsed);
                let moved_ns = thread.fair.advance(virtual_ns);
                self.clock.advance(thread.fair.weight(), moved_ns);
            }
        }
    }

    /// From here on, time goes to nobody's account but the kernel's. Does not nest: the first end ends it.
    pub fn interrupt_begin(&mut self, now: u64) {
        self.charge(now);
        self.in_interrupt = true;
    }

    /// From here on, time goes to the running thread (or idle) again.
    pub fn interrupt_end(&mut self, now: u64) {
        self.charge(now);
        self.in_interrupt = false;
    }

    // ---- arrivals -----------------------------------------------------------------------------------------------

    /// A thread becomes runnable here. Refused, and given back, if its CPU mask or its context's home say otherwise.
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

    /// Queues a thread that is on no clock, and says what that means for the CPU.
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

    /// The running thread waits for something. Dispatch must follow.
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

    /// `hand_over`, `block` and `dispatch` in one: the running thread waits for `next`, which runs in what is left of its slice. The way of
    /// every synchronous call, so the usual case (nobody has a context) is a path of its own.
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

    /// The usual case of [`Cpu::block_for`]: nobody here has a context, `next` may run here, and there is something left of the slice. Otherwise
    /// nothing has happened but the charge.
    #[inline(always)]
    pub fn take_place(&mut self, next: Runnable<T>, now: u64) -> Result<Replaced<T>, Runnable<T>> {
        self.charge(now);
        let left_ns = match &self.running {
            Some(Running { thread, tier: Tier::Fair, .. }) => thread.quantum_ns,
            _ => 0,
        };
        // Without contexts nobody is demoted, either.
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

    /// Takes a queued thread out, for whatever reason; a stale ticket finds nothing and changes nothing.
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

    /// Changes the weight of a queued thread. Its place is not recomputed: that happens at its next enqueue. Answers
    /// whether the ticket was good.
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

    /// The timer fired (early, late or on time), or another CPU's event made the caller look: the answer to an inter-processor
    /// interrupt. [`Effect::Keep`] compares with what was said last, perhaps to that other CPU; [`Cpu::until_ns`] tells what
    /// the timer must be armed for.
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
                // Alone: a new slice without a switch.
                running.thread.key.tag = self.policy.tag(&mut running.thread.fair);
                running.thread.quantum_ns = self.policy.quantum_ns(&running.thread.fair);
                false
            }
        };
        if over { Effect::Dispatch } else { self.rearm() }
    }

    /// Puts the running thread back where it belongs and chooses who runs next, and until when.
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
            // Not preempted after all; a thread that was throttled in between cannot be here.
            thread.account.preemptions -= 1;
        }
        self.start(next, previous, evicted)
    }

    /// The usual dispatch of an idle CPU: nobody has a context.
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

    /// Whether [`Cpu::run_at_once`] would run it.
    #[inline]
    pub fn runs_at_once(&self, next: &Runnable<T>) -> bool {
        self.stays_idle() && next.0.context.is_none() && next.0.may_run_on(self.id)
    }

    /// [`Cpu::enqueue`] and [`Cpu::dispatch`] in one, of a thread that wakes an idle CPU: nobody runs or waits, and nobody here has a context.
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

    /// The running thread lets the others go first: it is queued only after the next one was chosen. With budget it lets those go first who are
    /// at least as urgent as it is by then: see `ask_anew`.
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

    /// The usual yield: to a thread that waits, when nobody has a context.
    #[inline]
    fn take_turns(&mut self, mut next: Box<Entity<T>>) -> Decision<T> {
        next.quantum_ns = self.policy.quantum_ns(&next.fair);
        next.account.runnable_ns += self.at_ns.saturating_sub(next.account.runnable_since_ns);
        let run = Some(next.id);
        // Whoever yields waits now.
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

    /// When the caller must ask again at the latest.
    fn horizon(&mut self) -> u64 {
        let end_ns = self.end_of_turn();
        self.before_miss(end_ns)
    }

    /// As [`Cpu::horizon`], but for deadlines that others may miss.
    fn end_of_turn(&self) -> u64 {
        let end = match &self.running {
            None => FOREVER,
            Some(Running { thread, tier: Tier::Guaranteed, .. }) => {
                return self.end_of_promise(thread.context.as_deref());
            }
            // Somebody with budget has come, and is to be dispatched: should that be forgotten, it does not wait for ever.
            Some(_) if !self.anybody_waits() && self.guaranteed.is_empty() => FOREVER,
            Some(Running { thread, .. }) => self.at_ns + thread.quantum_ns,
        };
        if self.anybody_is_dry() { end.min(self.next_release_ns()) } else { end }
    }

    /// As [`Cpu::end_of_turn`], of a thread that runs on its context.
    #[inline(always)]
    pub(crate) fn end_of_promise(&self, context: Option<&Context>) -> u64 {
        // Not all that is available: the next refill has the next deadline, and somebody else's may be earlier.
        let mut end_ns = self.at_ns;
        if let Some(context) = context {
            end_ns += context.ledger.head_ns(self.at_ns);
            // Or it is late itself.
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
