//! Every public operation of 1 to 4 CPUs as data, and a world that carries them out beside a shadow model.
//!
//! `tests/operations.rs` feeds it with shrinkable random sequences, `fuzz/` with bytes. Arguments are numbers that are taken
//! modulo whatever there is to choose from, so every sequence is valid; stale tickets, wrong CPUs, weights out of range and
//! ignored effects are part of the game, because the core must survive a careless caller unharmed.
//!
//! After every operation: I1 to I7 of every CPU; each thread is in exactly one place, and in the one that the shadow says;
//! reservations are the sum over the contexts that exist; run time of threads and of CPUs is the same; what may only grow has
//! grown; and no CPU with work to do is idle or without a timer, unless the caller ignored an effect.

use std::collections::BTreeMap;

use sched::*;

/// Bytes of one encoded operation.
pub(crate) const OP_BYTES: usize = 6;

/// One operation. `cpu`, `hand`, `context` and `ticket` choose by number; `x` is whatever else is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Op {
    Spawn { cpu: u8, x: u16 },
    Enqueue { cpu: u8, hand: u8 },
    HandOver { cpu: u8, hand: u8 },
    Block { cpu: u8 },
    Timer { cpu: u8 },
    Dispatch { cpu: u8 },
    Yield { cpu: u8 },
    Remove { cpu: u8, ticket: u8 },
    Interrupt { cpu: u8, x: u16 },
    CurrentWeight { cpu: u8, x: u16 },
    CurrentClass { cpu: u8, x: u16 },
    QueuedWeight { cpu: u8, ticket: u8, x: u16 },
    HandKnobs { hand: u8, x: u16 },
    HandMask { hand: u8, x: u16 },
    Admit { cpu: u8, context: u8, x: u16 },
    Retire { cpu: u8, context: u8 },
    BindHand { hand: u8, context: u8 },
    UnbindHand { hand: u8 },
    BindCurrent { cpu: u8, context: u8 },
    UnbindCurrent { cpu: u8 },
    BlockFor { cpu: u8, hand: u8 },
    BlockLending { cpu: u8, hand: u8 },
    TakeContext { cpu: u8, x: u16 },
    YieldTo { cpu: u8, x: u16 },
    Readmit { cpu: u8, context: u8, x: u16 },
    Host { cpu: u8, context: u8 },
    Unhost { cpu: u8, context: u8 },
    Steal { cpu: u8, x: u16 },
    Balance { cpu: u8, x: u16 },
    Forgive { cpu: u8, x: u16 },
    Dismantle { hand: u8 },
    Advance { x: u16, scale: u8 },
}

impl Op {
    /// Any bytes are an operation.
    pub(crate) fn decode(bytes: [u8; OP_BYTES]) -> Op {
        let [kind, cpu, first, second, low, high] = bytes;
        let x = u16::from_le_bytes([low, high]);
        let (hand, context, ticket) = (first, second, first);
        match kind % 44 {
            0 | 1 => Op::Spawn { cpu, x },
            2 | 3 => Op::Enqueue { cpu, hand },
            4 => Op::HandOver { cpu, hand },
            5 => Op::Block { cpu },
            6 => Op::Timer { cpu },
            7 => Op::Dispatch { cpu },
            8 => Op::Yield { cpu },
            9 => Op::Remove { cpu, ticket },
            10 => Op::Interrupt { cpu, x },
            11 => Op::CurrentWeight { cpu, x },
            12 => Op::CurrentClass { cpu, x },
            13 => Op::QueuedWeight { cpu, ticket, x },
            14 => Op::HandKnobs { hand, x },
            15 => Op::HandMask { hand, x },
            16 | 17 => Op::Admit { cpu, context, x },
            18 => Op::Retire { cpu, context },
            19 | 20 => Op::BindHand { hand, context },
            21 => Op::UnbindHand { hand },
            22 => Op::BindCurrent { cpu, context },
            23 => Op::UnbindCurrent { cpu },
            24 => Op::Steal { cpu, x },
            25 => Op::Balance { cpu, x },
            26 => Op::Forgive { cpu, x },
            27 => Op::Dismantle { hand },
            28 => Op::BlockFor { cpu, hand },
            29..=31 => Op::BlockLending { cpu, hand },
            32 | 33 => Op::TakeContext { cpu, x },
            34 => Op::YieldTo { cpu, x },
            35 => Op::Readmit { cpu, context, x },
            36 => Op::Host { cpu, context },
            37 => Op::Unhost { cpu, context },
            _ => Op::Advance { x, scale: first },
        }
    }
}

enum Hand {
    Blocked(Blocked<u32>),
    Runnable(Runnable<u32>),
}

impl Hand {
    fn id(&self) -> ThreadId {
        match self {
            Hand::Blocked(thread) => thread.id(),
            Hand::Runnable(thread) => thread.id(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        match self {
            Hand::Blocked(thread) => thread.snapshot(),
            Hand::Runnable(thread) => thread.snapshot(),
        }
    }
}

/// Calls a method that both owners have.
macro_rules! in_hand {
    ($hand:expr, $thread:ident => $call:expr) => {
        match $hand {
            Hand::Blocked($thread) => $call,
            Hand::Runnable($thread) => $call,
        }
    };
}

/// Where the shadow thinks a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Hand,
    Cpu(usize),
}

/// The CPUs, everything that is in the caller's hands, and the shadow.
pub(crate) struct World {
    cpus: Vec<Cpu<u32>>,
    now: u64,
    hands: Vec<Hand>,
    // A context is a box wherever it goes: that is how the core hands it out and takes it back.
    #[allow(clippy::vec_box)]
    contexts: Vec<Box<Context>>,
    /// Old and current ones alike.
    tickets: Vec<Ticket>,
    places: BTreeMap<u64, Place>,
    /// By context id: home, and share in parts of 2^32 (the shadow's own arithmetic).
    promises: BTreeMap<u64, (usize, u128)>,
    /// By context id: where it is a guest.
    guests: BTreeMap<u64, usize>,
    /// By context id: what it had used.
    used_ns: BTreeMap<u64, u64>,
    grown: BTreeMap<u64, (u64, u64)>,
    dead_runtime_ns: u64,
    until: Vec<u64>,
    /// A dispatch was asked for and has not happened.
    pending: Vec<bool>,
    next_id: u64,
}

impl World {
    /// So many (1 to 4) idle CPUs.
    pub(crate) fn new(cpus: usize, policy: PolicyKind) -> World {
        World {
            cpus: (0..cpus).map(|cpu| Cpu::new(CpuId::new(cpu).unwrap(), policy, 0)).collect(),
            now: 0,
            hands: Vec::new(),
            contexts: Vec::new(),
            tickets: Vec::new(),
            places: BTreeMap::new(),
            promises: BTreeMap::new(),
            guests: BTreeMap::new(),
            used_ns: BTreeMap::new(),
            grown: BTreeMap::new(),
            dead_runtime_ns: 0,
            until: vec![FOREVER; cpus],
            pending: vec![false; cpus],
            next_id: 0,
        }
    }

    /// Carries out one operation, checks everything. An `obedient` caller dispatches when it is told to.
    pub(crate) fn step(&mut self, op: Op, obedient: bool) {
        self.perform(op);
        if obedient {
            for cpu in 0..self.cpus.len() {
                if self.pending[cpu] {
                    self.dispatch(cpu);
                }
            }
        }
        self.verify();
    }

    fn perform(&mut self, op: Op) {
        let count = self.cpus.len();
        let cpu_of = |number: u8| number as usize % count;
        match op {
            Op::Spawn { cpu, x } => self.spawn(cpu_of(cpu), x),
            Op::Enqueue { cpu, hand } => self.enqueue(cpu_of(cpu), hand, false),
            Op::HandOver { cpu, hand } => self.enqueue(cpu_of(cpu), hand, true),
            Op::Block { cpu } => self.block(cpu_of(cpu)),
            Op::Timer { cpu } => self.timer(cpu_of(cpu)),
            Op::Dispatch { cpu } => self.dispatch(cpu_of(cpu)),
            Op::Yield { cpu } => {
                let cpu = cpu_of(cpu);
                let decision = self.cpus[cpu].yield_now(self.now);
                self.carry_out(cpu, decision);
            }
            Op::Remove { cpu, ticket } => self.remove(cpu_of(cpu), ticket),
            Op::Interrupt { cpu, x } => match x % 2 {
                0 => self.cpus[cpu_of(cpu)].interrupt_begin(self.now),
                _ => self.cpus[cpu_of(cpu)].interrupt_end(self.now),
            },
            Op::CurrentWeight { cpu, x } => {
                let accepted = self.cpus[cpu_of(cpu)].set_current_weight(x % 1100, self.now).is_ok();
                assert_eq!(accepted, (1..=1024).contains(&(x % 1100)), "F-05");
            }
            Op::CurrentClass { cpu, x } => {
                self.cpus[cpu_of(cpu)].set_current_class(LatencyClass::ALL[x as usize % 4]);
            }
            Op::QueuedWeight { cpu, ticket, x } => {
                let cpu = cpu_of(cpu);
                if let Some(ticket) = self.pick_ticket(cpu, ticket) {
                    let good = self.cpus[cpu].set_queued_weight(&ticket, x % 1100, self.now);
                    assert_eq!(good.is_ok(), (1..=1024).contains(&(x % 1100)), "F-05");
                }
            }
            Op::HandKnobs { hand, x } => self.knobs(hand, x),
            Op::HandMask { hand, x } => {
                let mask = CpuMask::from_bytes(&[x as u8 & 15]).unwrap_or(CpuMask::EMPTY);
                let mask = if x & 16 == 0 { mask } else { CpuMask::ALL };
                if let Some(hand) = choose(&mut self.hands, hand) {
                    let home = in_hand!(hand, thread => thread.context().map(|context| context.home()));
                    let accepted = in_hand!(hand, thread => thread.set_allowed(mask)).is_ok();
                    let fits = !mask.is_empty() && home.is_none_or(|home| mask.contains(home));
                    assert_eq!(accepted, fits, "a thread must be able to run somewhere");
                }
            }
            Op::Admit { cpu, context, x } => self.admit(cpu_of(cpu), context, x),
            Op::Retire { cpu, context } => self.retire(cpu_of(cpu), context),
            Op::BindHand { hand, context } => {
                if self.contexts.is_empty() || self.hands.is_empty() {
                    return;
                }
                let context = self.contexts.swap_remove(context as usize % self.contexts.len());
                if let Some(hand) = choose(&mut self.hands, hand) {
                    match in_hand!(hand, thread => thread.bind(context)) {
                        Ok(old) => self.contexts.extend(old),
                        Err(context) => self.contexts.push(context),
                    }
                }
            }
            Op::UnbindHand { hand } => {
                if let Some(hand) = choose(&mut self.hands, hand) {
                    let old = in_hand!(hand, thread => thread.unbind());
                    self.contexts.extend(old);
                }
            }
            Op::BindCurrent { cpu, context } => self.bind_current(cpu_of(cpu), context),
            Op::UnbindCurrent { cpu } => {
                let cpu = cpu_of(cpu);
                if let Some((context, effect)) = self.cpus[cpu].unbind_current(self.now) {
                    self.contexts.push(context);
                    self.obey(cpu, effect);
                }
            }
            Op::BlockFor { cpu, hand } => self.exchange(cpu_of(cpu), hand, false),
            Op::BlockLending { cpu, hand } => self.exchange(cpu_of(cpu), hand, true),
            Op::TakeContext { cpu, x } => self.take_context(cpu_of(cpu), u64::from(x)),
            Op::YieldTo { cpu, x } => self.yield_to(cpu_of(cpu), u64::from(x)),
            Op::Readmit { cpu, context, x } => self.readmit(cpu_of(cpu), context, x),
            Op::Host { cpu, context } => self.host(cpu_of(cpu), context),
            Op::Unhost { cpu, context } => self.unhost(cpu_of(cpu), context),
            Op::Steal { cpu, x } => self.take(cpu_of(cpu), x, false),
            Op::Balance { cpu, x } => self.take(cpu_of(cpu), x, true),
            Op::Forgive { cpu, x } => {
                let cpu = cpu_of(cpu);
                let limit = self.cpus[cpu].refreshed_summary(self.now).clock + i64::from(x as i16) * 1_000;
                let forgiven = self.cpus[cpu].forgive_below(limit);
                assert_eq!(forgiven, i64::from(x as i16).max(0) * 1_000);
            }
            Op::Dismantle { hand } => self.dismantle(hand),
            // Up to 65 us, 65 ms or 65 s: shorter than a budget, about a slice, longer than any period.
            Op::Advance { x, scale } => {
                self.now += u64::from(x) * [1, 1_000, 1_000, 1_000_000][scale as usize % 4]
            }
        }
    }

    fn spawn(&mut self, cpu: usize, x: u16) {
        if self.places.len() >= 40 {
            return; // enough for every interleaving, and `check` is linear
        }
        let id = self.next_id;
        self.next_id += 1;
        let mut thread = Runnable::new(ThreadId(id), id as u32);
        thread.set_class(LatencyClass::ALL[x as usize % 4]);
        thread.set_weight(1 + (x >> 2) % 1024).unwrap();
        self.places.insert(id, Place::Hand);
        self.hands.push(Hand::Runnable(thread));
        self.enqueue(cpu, self.hands.len() as u8 - 1, false);
    }

    fn enqueue(&mut self, cpu: usize, hand: u8, direct: bool) {
        if self.hands.is_empty() {
            return;
        }
        let hand = self.hands.swap_remove(hand as usize % self.hands.len());
        let thread = match hand {
            Hand::Runnable(thread) => thread,
            Hand::Blocked(thread) => match thread.wake() {
                Ok(thread) => thread,
                Err(thread) => {
                    assert!(thread.context().is_none(), "only a thread without a context is refused a wake");
                    return self.hands.push(Hand::Blocked(thread));
                }
            },
        };
        let (id, allowed) = (thread.id(), thread.allowed().contains(self.cpus[cpu].id()));
        let core = &mut self.cpus[cpu];
        let result = if direct { core.hand_over(thread, self.now) } else { core.enqueue(thread, self.now) };
        assert_eq!(result.is_ok(), allowed, "S-04: {id} on cpu{cpu}");
        match result {
            Ok(effect) => {
                self.places.insert(id.0, Place::Cpu(cpu));
                self.obey(cpu, effect);
            }
            Err(Misplaced(thread)) => self.hands.push(Hand::Runnable(thread)),
        }
    }

    fn block(&mut self, cpu: usize) {
        let current = self.cpus[cpu].current();
        let blocked = self.cpus[cpu].block(self.now);
        assert_eq!(blocked.as_ref().map(Blocked::id), current);
        if let Some(blocked) = blocked {
            self.places.insert(blocked.id().0, Place::Hand);
            self.hands.push(Hand::Blocked(blocked));
            self.pending[cpu] = true;
        }
    }

    fn timer(&mut self, cpu: usize) {
        let effect = self.cpus[cpu].timer(self.now);
        self.obey(cpu, effect);
    }

    fn dispatch(&mut self, cpu: usize) {
        let decision = self.cpus[cpu].dispatch(self.now);
        self.carry_out(cpu, decision);
    }

    fn carry_out(&mut self, cpu: usize, decision: Decision<u32>) {
        self.pending[cpu] = false;
        self.until[cpu] = decision.until_ns;
        assert_eq!(decision.run, self.cpus[cpu].current());
        if let Some(evicted) = decision.evicted {
            self.places.insert(evicted.thread.id().0, Place::Hand);
            self.hands.push(Hand::Blocked(evicted.thread));
        }
    }

    fn obey(&mut self, cpu: usize, effect: Effect) {
        match effect {
            Effect::Keep => {}
            Effect::Rearm { until_ns } => self.until[cpu] = until_ns,
            Effect::Dispatch => self.pending[cpu] = true,
        }
    }

    /// A ticket of a thread that is queued there, or one that was remembered some time ago.
    fn pick_ticket(&mut self, cpu: usize, ticket: u8) -> Option<Ticket> {
        let mut live = Vec::new();
        self.cpus[cpu].for_each_queued(|ticket, _, _| live.push(ticket));
        if self.tickets.len() < 64 {
            self.tickets.extend(live.iter().take(4));
        }
        let from = if ticket.is_multiple_of(4) { &self.tickets } else { &live };
        from.get(ticket as usize / 4 % from.len().max(1)).copied()
    }

    fn remove(&mut self, cpu: usize, ticket: u8) {
        let Some(ticket) = self.pick_ticket(cpu, ticket) else { return };
        let mut live = false;
        self.cpus[cpu].for_each_queued(|other, _, _| live |= other == ticket);
        let removed = self.cpus[cpu].remove(&ticket, self.now);
        assert_eq!(
            removed.is_some(),
            live,
            "a stale ticket finds nothing, a live one its thread: {ticket:?}"
        );
        if let Some(thread) = removed {
            assert_eq!(thread.id(), ticket.thread);
            self.places.insert(thread.id().0, Place::Hand);
            self.hands.push(Hand::Runnable(thread));
        }
    }

    fn knobs(&mut self, hand: u8, x: u16) {
        let Some(hand) = choose(&mut self.hands, hand) else { return };
        let accepted = in_hand!(hand, thread => thread.set_weight(x % 1100)).is_ok();
        assert_eq!(accepted, (1..=1024).contains(&(x % 1100)), "F-05");
        in_hand!(hand, thread => thread.set_class(LatencyClass::ALL[x as usize % 4]));
        in_hand!(hand, thread => thread.set_context_only(x.is_multiple_of(5)));
    }

    fn admit(&mut self, cpu: usize, context: u8, x: u16) {
        let spec = spec_from(context, x);
        let identity = ContextId { id: self.next_id, generation: 1 };
        self.next_id += 1;
        let before = self.cpus[cpu].reserved();
        match self.cpus[cpu].admit(Proposal::new(identity, spec), self.now) {
            Ok(context) => {
                self.promises.insert(identity.id, (cpu, share_of(&spec)));
                self.contexts.push(context);
            }
            Err(_) => assert_eq!(self.cpus[cpu].reserved(), before, "a refusal changes nothing"),
        }
    }

    fn retire(&mut self, cpu: usize, context: u8) {
        if self.contexts.is_empty() {
            return;
        }
        let context = self.contexts.swap_remove(context as usize % self.contexts.len());
        let (id, at_home) = (context.identity().id, !context.is_hosted() && context.home().index() == cpu);
        match self.cpus[cpu].retire(context, self.now) {
            Ok(_) => {
                assert!(at_home);
                self.promises.remove(&id);
                self.used_ns.remove(&id);
            }
            Err(context) => {
                assert!(!at_home);
                self.contexts.push(context);
            }
        }
    }

    fn bind_current(&mut self, cpu: usize, context: u8) {
        if self.contexts.is_empty() {
            return;
        }
        let context = self.contexts.swap_remove(context as usize % self.contexts.len());
        let core = &mut self.cpus[cpu];
        let fits =
            core.current().is_some() && core.current_context().is_none() && context.home() == core.id();
        match core.bind_current(context, self.now) {
            Ok(effect) => {
                assert!(fits);
                self.obey(cpu, effect);
            }
            Err(context) => {
                assert!(!fits, "a second context, or one from elsewhere, comes back");
                self.contexts.push(context);
            }
        }
    }

    /// The running thread blocks, and a thread from the hands runs: with its context, or without.
    fn exchange(&mut self, cpu: usize, hand: u8, lending: bool) {
        if self.hands.is_empty() {
            return;
        }
        let next = match self.hands.swap_remove(hand as usize % self.hands.len()) {
            Hand::Runnable(thread) => thread,
            Hand::Blocked(thread) => thread.wake_to_borrow(),
        };
        let core = &mut self.cpus[cpu];
        let (next_id, current) = (next.id(), core.current());
        let lent = match (core.current_context(), next.context()) {
            (Some(context), None) if lending => Some(context.identity()),
            _ => None,
        };
        // What it needs from the mask alone: a borrower may be one that cannot run without the loan.
        let mut fits = next.may_run_on(core.id());
        let mut next = next;
        if lent.is_some() {
            next.set_context_only(false);
            fits = next.may_run_on(core.id());
            next.set_context_only(next_id.0.is_multiple_of(5));
        }
        let result =
            if lending { core.block_lending(next, self.now) } else { core.block_for(next, self.now) };
        assert_eq!(result.is_ok(), fits, "S-04, S-06: {next_id} on cpu{cpu}");
        match result {
            Ok((blocked, decision)) => {
                assert_eq!(blocked.as_ref().map(Blocked::id), current);
                if let Some(blocked) = blocked {
                    assert!(lent.is_none() || blocked.context().is_none(), "S-06: it lent its context");
                    self.places.insert(blocked.id().0, Place::Hand);
                    self.hands.push(Hand::Blocked(blocked));
                }
                self.places.insert(next_id.0, Place::Cpu(cpu));
                if let (Some(lent), Some(run)) = (lent, decision.run)
                    && run == next_id
                {
                    let holds = self.cpus[cpu].current_context().map(Context::identity);
                    assert_eq!(holds, Some(lent), "S-06: the borrower runs on the loan");
                }
                self.carry_out(cpu, decision);
            }
            Err(Misplaced(thread)) => self.hands.push(Hand::Runnable(thread)),
        }
    }

    fn take_context(&mut self, cpu: usize, thread: u64) {
        let thread = ThreadId(thread % self.next_id.max(1));
        let mut has = self.cpus[cpu].current() == Some(thread) && self.cpus[cpu].current_context().is_some();
        let mut waits = false;
        self.cpus[cpu].for_each_queued_context(|ticket, _| waits |= ticket.thread == thread);
        has |= waits;
        let ticket = self.cpus[cpu].find(thread);
        let taken = self.cpus[cpu].take_context(&ticket, self.now);
        assert_eq!(taken.is_some(), has, "S-09: found if and only if it is here: {thread}");
        let Some(Taken { context, effect, stopped }) = taken else { return };
        self.contexts.push(context);
        assert!(stopped.is_none() || waits);
        if let Some(stopped) = stopped {
            assert_eq!(stopped.id(), thread);
            self.places.insert(thread.0, Place::Hand);
            self.hands.push(Hand::Blocked(stopped));
        }
        self.obey(cpu, effect);
    }

    fn yield_to(&mut self, cpu: usize, thread: u64) {
        let thread = ThreadId(thread % self.next_id.max(1));
        let before = self.cpus[cpu].current();
        let ticket = self.cpus[cpu].find(thread);
        if let Ok(decision) = self.cpus[cpu].yield_to(&ticket, self.now) {
            assert_ne!(decision.run, before, "somebody else was ready");
            assert!(decision.switched && self.cpus[cpu].current_is_guaranteed());
            self.carry_out(cpu, decision);
        }
    }

    fn readmit(&mut self, cpu: usize, context: u8, x: u16) {
        if self.contexts.is_empty() {
            return;
        }
        let old = self.contexts.swap_remove(context as usize % self.contexts.len());
        let (before, reserved) = (old.info(self.now), self.cpus[cpu].reserved());
        let spec = spec_from(context, x);
        match self.cpus[cpu].readmit(old, spec, self.now) {
            Ok(context) => {
                let after = context.info(self.now);
                assert_eq!(after.identity, before.identity);
                assert_eq!((after.consumed_ns, after.depletions), (before.consumed_ns, before.depletions));
                assert!(after.available_ns <= before.available_ns, "S-03: nothing is made");
                self.promises.insert(before.identity.id, (cpu, share_of(&spec)));
                self.contexts.push(context);
            }
            Err((_, context)) => {
                assert_eq!(context.info(self.now), before, "a refusal changes nothing");
                assert_eq!(self.cpus[cpu].reserved(), reserved);
                self.contexts.push(context);
            }
        }
    }

    fn host(&mut self, cpu: usize, context: u8) {
        if self.contexts.is_empty() {
            return;
        }
        let context = self.contexts.swap_remove(context as usize % self.contexts.len());
        let before = context.info(self.now);
        match self.cpus[cpu].host(context, self.now) {
            Ok(context) => {
                assert_eq!((context.home().index(), context.origin()), (cpu, before.origin));
                assert_eq!(self.guests.insert(before.identity.id, cpu), None);
                self.contexts.push(context);
            }
            Err((_, context)) => {
                assert_eq!(context.info(self.now), before, "a refusal changes nothing");
                self.contexts.push(context);
            }
        }
    }

    fn unhost(&mut self, cpu: usize, context: u8) {
        if self.contexts.is_empty() {
            return;
        }
        let context = self.contexts.swap_remove(context as usize % self.contexts.len());
        let id = context.identity().id;
        let context = self.cpus[cpu].unhost(context, self.now);
        if self.guests.get(&id) == Some(&cpu) {
            assert!(!context.is_hosted());
            self.guests.remove(&id);
        }
        self.contexts.push(context);
    }

    fn take(&mut self, thief: usize, x: u16, balance: bool) {
        let victim = x as usize % self.cpus.len();
        if victim == thief {
            return; // not in the contract: the caller holds two different locks
        }
        let [own, other] = self.cpus.get_disjoint_mut([thief, victim]).unwrap();
        let outcome =
            if balance { own.balance_from(other, self.now) } else { own.steal_from(other, self.now) };
        if let MoveOutcome::Moved { thread, effect } = outcome {
            assert_eq!(self.places.insert(thread.0, Place::Cpu(thief)), Some(Place::Cpu(victim)));
            self.obey(thief, effect);
        }
    }

    fn dismantle(&mut self, hand: u8) {
        if self.hands.is_empty() {
            return;
        }
        let thread = match self.hands.swap_remove(hand as usize % self.hands.len()) {
            Hand::Blocked(thread) => thread,
            Hand::Runnable(thread) => thread.park(),
        };
        let id = thread.id().0;
        let (payload, snapshot, context) = thread.dismantle();
        assert_eq!(u64::from(payload), id);
        self.dead_runtime_ns += snapshot.runtime_ns;
        self.contexts.extend(context);
        self.places.remove(&id);
        self.grown.remove(&id);
    }

    fn verify(&mut self) {
        let mut found: BTreeMap<u64, (Place, Snapshot)> = BTreeMap::new();
        let mut see = |id: ThreadId, place: Place, snapshot: Snapshot| {
            assert!(found.insert(id.0, (place, snapshot)).is_none(), "F-01: {id} has two owners");
        };
        for hand in &self.hands {
            see(hand.id(), Place::Hand, hand.snapshot());
        }
        let mut cpu_ns = 0;
        for (number, cpu) in self.cpus.iter().enumerate() {
            cpu.check().unwrap_or_else(|violation| panic!("{violation}"));
            cpu.for_each_queued(|ticket, snapshot, _| see(ticket.thread, Place::Cpu(number), snapshot));
            if let (Some(id), Some(snapshot)) = (cpu.current(), cpu.current_snapshot()) {
                see(id, Place::Cpu(number), snapshot);
            }
            cpu_ns += cpu.time().thread_ns;
            assert!(cpu.time().total_ns() <= self.now);
            let shares = || {
                let here = |id: &u64, home: usize| home == number || self.guests.get(id) == Some(&number);
                self.promises
                    .iter()
                    .filter(move |(id, (home, _))| here(id, *home))
                    .map(|(_, (_, share))| share)
            };
            assert_eq!(cpu.contexts(), shares().count());
            let reserved_ppm = (shares().sum::<u128>() * 1_000_000) >> 32;
            assert_eq!(u128::from(cpu.reserved().ppm()), reserved_ppm, "S-11: promises are all there is");
            if !self.pending[number] {
                let ready = cpu.queued() > 0;
                assert!(
                    !ready || self.until[number] != FOREVER,
                    "F-10: cpu{number} has work waiting and no timer"
                );
                let summary = cpu.summary();
                assert!(cpu.current().is_some() || summary.idle, "F-10: cpu{number} idles beside work");
            }
        }
        assert!(found.keys().eq(self.places.keys()), "F-01: lost or invented threads");
        let mut thread_ns = self.dead_runtime_ns;
        for (id, (place, snapshot)) in &found {
            assert_eq!(self.places[id], *place, "F-01: thread {id}");
            thread_ns += snapshot.runtime_ns;
            let grown = (snapshot.runtime_ns, snapshot.virtual_runtime_ns);
            let before = self.grown.insert(*id, grown).unwrap_or_default();
            assert!(before.0 <= grown.0 && before.1 <= grown.1, "F-15: the totals of {id} were rewritten");
        }
        assert_eq!(thread_ns, cpu_ns, "S-12: charged to threads and to CPUs alike");
        self.verify_contexts();
    }

    /// Every context that was admitted is in one place, at the CPU where it runs, and adds up; what it used only grows.
    fn verify_contexts(&mut self) {
        let mut used_ns = BTreeMap::new();
        let mut see = |context: &Context, cpu: Option<usize>| {
            let info = context.info(self.now);
            let id = info.identity.id;
            assert!(used_ns.insert(id, info.consumed_ns).is_none(), "S-06: context {id} is in two places");
            assert_eq!(context.ledger().total_ns(), info.spec.budget_ns, "S-03");
            assert!(cpu.is_none_or(|cpu| info.home.index() == cpu), "S-04");
            assert_eq!(info.home.index(), *self.guests.get(&id).unwrap_or(&self.promises[&id].0));
            assert_eq!(info.origin.index(), self.promises[&id].0);
        };
        self.contexts.iter().for_each(|context| see(context, None));
        for hand in &self.hands {
            in_hand!(hand, thread => thread.context()).iter().for_each(|context| see(context, None));
        }
        for (number, cpu) in self.cpus.iter().enumerate() {
            cpu.current_context().iter().for_each(|context| see(context, Some(number)));
            cpu.for_each_queued_context(|_, context| see(context, Some(number)));
        }
        assert!(used_ns.keys().eq(self.promises.keys()), "S-06: a context was lost or made");
        for (id, before) in &self.used_ns {
            assert!(used_ns[id] >= *before, "S-03: what context {id} used was forgotten");
        }
        self.used_ns = used_ns;
    }
}

fn spec_from(context: u8, x: u16) -> Spec {
    let mut spec = Spec::new(u64::from(x % 400) * 10_000, u64::from(1 + x / 400) * 500_000);
    spec.overrun = [Overrun::Throttle, Overrun::Fault, Overrun::Demote][context as usize % 3];
    spec.criticality = context / 3 % 9;
    spec.max_refills = 2 + x as u8 % 7;
    if context >= 128 {
        spec.cpu_mask = CpuMask::only(CpuId::new(context as usize % 4).unwrap());
    }
    spec
}

fn share_of(spec: &Spec) -> u128 {
    (u128::from(spec.budget_ns) << 32).div_ceil(u128::from(spec.relative_deadline_ns))
}

fn choose(hands: &mut [Hand], number: u8) -> Option<&mut Hand> {
    let len = hands.len();
    hands.get_mut(number as usize % len.max(1))
}
