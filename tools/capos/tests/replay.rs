//! T-02: traces of a small kernel replay without a difference, and all planted damage is caught.

use capos::replay::{Fault, replay};
use sched::{
    Blocked, Context, ContextId, Cpu, CpuId, CpuMask, Decision, EvictionReason, LatencyClass, MoveOutcome,
    Overrun, PolicyKind, Proposal, Runnable, Spec, ThreadId,
};
use trace::dump::{CpuPart, Dump, Header, Record, Thread};
use trace::{Event, Kind, RuleError, TraceError};

/// A kernel that does at random what threads and machines do, and records it as the real one does.
struct Kernel {
    cpus: Vec<Cpu<()>>,
    blocked: Vec<Blocked<()>>,
    records: Vec<Record>,
    threads: u32,
    /// Contexts that no thread runs on.
    // Contexts are moved as boxes everywhere, so the list holds boxes, too.
    #[allow(clippy::vec_box)]
    contexts: Vec<Box<Context>>,
    made: u32,
    /// How many of 16 steps are about contexts.
    context_steps: u64,
    now: u64,
    seed: u64,
}

impl Kernel {
    fn new(cpus: usize, policy: PolicyKind, seed: u64) -> Kernel {
        let cpu = |cpu| {
            let mut cpu = Cpu::new(CpuId::new(cpu).unwrap(), policy, 100);
            cpu.set_overheads(sched::Overheads::KERNEL);
            cpu
        };
        let cpus = (0..cpus).map(cpu).collect();
        Kernel {
            cpus,
            blocked: Vec::new(),
            records: Vec::new(),
            threads: 0,
            contexts: Vec::new(),
            made: 0,
            context_steps: 0,
            now: 1000,
            seed,
        }
    }

    fn random(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % bound
    }

    fn record(&mut self, cpu: usize, kind: Kind) {
        let (ticket, writer) = (self.records.len() as u64, (self.seed % self.cpus.len() as u64) as u16);
        self.records.push(Record {
            ticket,
            writer,
            event: Event { time_ns: self.now, cpu: cpu as u16, kind },
        });
    }

    fn mask(&mut self, cpu: usize, thread: u32, cpus: CpuMask) {
        let mut bytes = [0; sched::MAX_CPUS / 8];
        cpus.to_bytes(&mut bytes);
        for (part, four) in (0..).zip(bytes.chunks_exact(4)) {
            let cpus = u32::from_le_bytes(four.try_into().unwrap());
            self.record(cpu, Kind::Affinity { part, thread, cpus });
        }
    }

    fn spawn(&mut self, cpu: usize) {
        let thread = self.threads;
        self.threads += 1;
        let mut runnable = Runnable::new(ThreadId(thread.into()), ());
        if self.random(4) == 0 {
            runnable.owe(5_000_000);
            self.record(cpu, Kind::Debt { high: 0, thread, low: 5_000_000 });
        }
        let (weight, class) = (1 + self.random(300) as u16, self.random(4) as u8);
        runnable.set_weight(weight).unwrap();
        runnable.set_class(LatencyClass::ALL[usize::from(class)]);
        self.record(cpu, Kind::Weight { thread, weight: weight.into() });
        self.record(cpu, Kind::Class { thread, class });
        if self.random(4) == 0 {
            let only = CpuMask::only(CpuId::new(cpu).unwrap());
            runnable.set_allowed(only).unwrap();
            self.mask(cpu, thread, only);
        }
        if self.context_steps > 0 && self.random(2) == 0 {
            runnable.set_context_only(true);
            self.record(cpu, Kind::ContextOnly { thread, only: true });
        }
        let here = self.contexts.iter().position(|context| context.home().index() == cpu);
        if let Some(at) = here.filter(|_| self.random(2) == 0) {
            let context = self.contexts.swap_remove(at);
            self.record(cpu, Kind::Bind { thread, context: context.identity().id as u32 });
            assert!(matches!(runnable.bind(context), Ok(None)));
        } else if !runnable.may_run_on(CpuId::new(cpu).unwrap()) {
            runnable.set_context_only(false);
            self.record(cpu, Kind::ContextOnly { thread, only: false });
        }
        self.record(cpu, Kind::Spawn { thread });
        let _ = self.cpus[cpu].enqueue(runnable, self.now).unwrap();
    }

    fn admit(&mut self, cpu: usize) {
        let spec = self.spec();
        let (context, now) = (self.made, self.now);
        let identity = ContextId { id: context.into(), generation: 0 };
        if let Ok(admitted) = self.cpus[cpu].admit(Proposal::new(identity, spec), now) {
            self.made += 1;
            self.contexts.push(admitted);
            self.specify(cpu, context, &spec);
            self.record(cpu, Kind::Admit { context });
        }
    }

    fn spec(&mut self) -> Spec {
        let period = 5_000_000 + self.random(30_000_000);
        let mut spec = Spec::new(period * (2 + self.random(20)) / 100, period);
        spec.overrun = [Overrun::Throttle, Overrun::Fault, Overrun::Demote][self.random(3) as usize];
        (spec.criticality, spec.max_refills) = (self.random(8) as u8, 2 + self.random(7) as u8);
        spec
    }

    fn specify(&mut self, cpu: usize, context: u32, spec: &Spec) {
        let mut parts = Vec::new();
        for long in [spec.budget_ns, spec.period_ns, spec.relative_deadline_ns] {
            parts.extend([long as u32, (long >> 32) as u32]);
        }
        parts.push(u32::from_le_bytes([spec.overrun as u8, spec.criticality, spec.max_refills, 0]));
        let mut bytes = [0; sched::MAX_CPUS / 8];
        spec.cpu_mask.to_bytes(&mut bytes);
        parts.extend(bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())));
        parts.push(0);
        assert_eq!(parts.len(), usize::from(trace::SPEC_PARTS));
        for (part, value) in (0..).zip(parts) {
            self.record(cpu, Kind::Spec { part, context, value });
        }
    }

    /// Does something with a context that no thread runs on.
    fn with_idle(&mut self, cpu: usize) {
        if self.contexts.is_empty() {
            return self.admit(cpu);
        }
        let at = self.random(self.contexts.len() as u64) as usize;
        let mut old = self.contexts.swap_remove(at);
        let (context, home, now) = (old.identity().id as u32, old.home().index(), self.now);
        match self.random(5) {
            0 if !old.is_hosted() => {
                self.record(home, Kind::Retire { context });
                assert!(self.cpus[home].retire(old, now).is_ok());
                return;
            }
            1 if !old.is_hosted() => {
                let spec = self.spec();
                match self.cpus[home].readmit(old, spec, now) {
                    Ok(new) => {
                        self.specify(home, context, &spec);
                        self.record(home, Kind::Readmit { context });
                        old = new;
                    }
                    Err((_, same)) => old = same,
                }
            }
            2 if old.is_hosted() => {
                self.record(home, Kind::Unhost { context });
                old = self.cpus[home].unhost(old, now);
            }
            2 => match self.cpus[cpu].host(old, now) {
                Ok(guest) => {
                    self.record(cpu, Kind::Host { context });
                    old = guest;
                }
                Err((_, same)) => old = same,
            },
            3 if self.cpus[cpu].current().is_some() => match self.cpus[cpu].bind_current(old, now) {
                Ok(_) => {
                    let thread = self.cpus[cpu].current().unwrap().0 as u32;
                    return self.record(cpu, Kind::Bind { thread, context });
                }
                Err(same) => old = same, // and nothing is charged
            },
            _ => {
                let free =
                    self.blocked.iter_mut().find(|it| it.context().is_none() && it.could_run_on(old.home()));
                if let Some(thread) = free {
                    assert!(matches!(thread.bind(old), Ok(None)));
                    let thread = thread.id().0 as u32;
                    return self.record(cpu, Kind::Bind { thread, context });
                }
            }
        }
        self.contexts.push(old);
    }

    /// Takes a context away from a thread that waits, or is on this CPU.
    fn take_context(&mut self, cpu: usize) {
        let (id, now) = (ThreadId(self.random(self.threads.max(1).into())), self.now);
        let thread = id.0 as u32;
        let ticket = self.cpus[cpu].find(id);
        if let Some(taken) = self.blocked.iter_mut().find(|it| it.id() == id).and_then(Blocked::unbind) {
            self.contexts.push(taken);
            self.record(cpu, Kind::Unbind { thread });
        } else if let Some(taken) = self.cpus[cpu].take_context(&ticket, now) {
            self.contexts.push(taken.context);
            self.record(cpu, Kind::Unbind { thread });
            if let Some(stopped) = taken.stopped {
                self.blocked.push(stopped);
                self.record(cpu, Kind::Evict { thread, lost: true });
            }
        }
    }

    /// Takes a thread out of its queue.
    fn dequeue(&mut self, cpu: usize) {
        let mut tickets = Vec::new();
        self.cpus[cpu].for_each_queued(|ticket, _, ()| tickets.push(ticket));
        if tickets.is_empty() {
            return;
        }
        let ticket = tickets[self.random(tickets.len() as u64) as usize];
        let dequeued = self.cpus[cpu].remove(&ticket, self.now).unwrap();
        self.record(cpu, Kind::Evict { thread: ticket.thread.0 as u32, lost: false });
        self.blocked.push(dequeued.park());
    }

    /// Records what became of the thread that left, and which one runs.
    fn settle(&mut self, cpu: usize, thread: u32, decision: Decision<()>) {
        if let Some(evicted) = decision.evicted {
            self.record(cpu, Kind::Evict { thread, lost: evicted.reason == EvictionReason::ContextLost });
            self.blocked.push(evicted.thread);
        }
        self.decide(cpu, decision.run);
    }

    fn woken(&mut self) -> Option<Runnable<()>> {
        if self.blocked.is_empty() {
            return None;
        }
        let at = self.random(self.blocked.len() as u64) as usize;
        match self.blocked.swap_remove(at).wake() {
            Ok(runnable) => Some(runnable),
            Err(blocked) => {
                self.blocked.push(blocked);
                None
            }
        }
    }

    fn decide(&mut self, cpu: usize, run: Option<ThreadId>) {
        self.record(cpu, run.map_or(Kind::Idle, |id| Kind::Run { thread: id.0 as u32 }));
    }

    fn wake(&mut self, cpu: usize) {
        let Some(runnable) = self.woken() else { return };
        if !runnable.may_run_on(CpuId::new(cpu).unwrap()) {
            self.blocked.push(runnable.park());
            return;
        }
        self.record(cpu, Kind::Wake { thread: runnable.id().0 as u32 });
        let _ = self.cpus[cpu].enqueue(runnable, self.now).unwrap();
    }

    fn leave(&mut self, cpu: usize, thread: u32) {
        let now = self.now;
        match self.random(6) {
            0 => {
                self.record(cpu, Kind::Block { thread });
                let next = self.woken();
                let next = match next {
                    Some(next) if !next.may_run_on(CpuId::new(cpu).unwrap()) => {
                        self.blocked.push(next.park());
                        None
                    }
                    next => next,
                };
                let (blocked, decision) = match next {
                    Some(next) => {
                        let other = next.id().0 as u32;
                        self.record(cpu, Kind::Wake { thread: other });
                        if self.cpus[cpu].current_context().is_some() && next.context().is_none() {
                            self.record(cpu, Kind::Lend { thread: other });
                            self.cpus[cpu].block_lending(next, now).unwrap()
                        } else {
                            self.record(cpu, Kind::Handoff { thread: other });
                            self.cpus[cpu].block_for(next, now).unwrap()
                        }
                    }
                    None => (self.cpus[cpu].block(now), self.cpus[cpu].dispatch(now)),
                };
                self.blocked.extend(blocked);
                self.decide(cpu, decision.run);
            }
            1 if self.random(4) == 0 => {
                self.record(cpu, Kind::Exit { thread });
                let context = self.cpus[cpu].block(now).and_then(|ended| ended.dismantle().2);
                self.contexts.extend(context);
                let run = self.cpus[cpu].dispatch(now).run;
                self.decide(cpu, run);
            }
            1 | 2 => {
                let mut ready = None;
                self.cpus[cpu].for_each_queued(|ticket, _, ()| {
                    if ticket.queue == sched::QueueKind::Guaranteed {
                        ready = Some(ticket);
                    }
                });
                let decision = match ready.filter(|_| self.cpus[cpu].current_is_guaranteed()) {
                    Some(target) => match self.cpus[cpu].yield_to(&target, now) {
                        Ok(decision) => {
                            self.record(cpu, Kind::Yield { thread });
                            self.record(cpu, Kind::Behind { thread: target.thread.0 as u32 });
                            decision
                        }
                        Err(_) => return self.record(cpu, Kind::Charge),
                    },
                    None => {
                        self.record(cpu, Kind::Yield { thread });
                        self.cpus[cpu].yield_now(now)
                    }
                };
                self.settle(cpu, thread, decision);
            }
            3 => {
                let weight = 1 + self.random(300) as u16;
                self.record(cpu, Kind::Weight { thread, weight: weight.into() });
                self.cpus[cpu].set_current_weight(weight, now).unwrap();
            }
            _ => {
                let decision = self.cpus[cpu].dispatch(now);
                let goes_on = decision.run == Some(ThreadId(thread.into()));
                self.record(
                    cpu,
                    match goes_on {
                        true => Kind::Keep { thread },
                        false if decision.noted.has(sched::Noted::THROTTLED) => Kind::Throttle { thread },
                        false => Kind::Preempt { thread },
                    },
                );
                self.settle(cpu, thread, decision);
            }
        }
    }

    fn take(&mut self, cpu: usize) {
        let (from, now, balances) =
            (self.random(self.cpus.len() as u64) as usize, self.now, self.random(2) == 0);
        let Ok([mine, theirs]) = self.cpus.get_disjoint_mut([cpu, from]) else { return };
        let outcome = if balances { mine.balance_from(theirs, now) } else { mine.steal_from(theirs, now) };
        let from = from as u16;
        match outcome {
            MoveOutcome::Moved { thread, .. } => {
                let thread = thread.0 as u32;
                let kind =
                    if balances { Kind::Balance { thread, from } } else { Kind::Steal { thread, from } };
                self.record(cpu, kind);
            }
            MoveOutcome::Nothing if balances => {
                self.record(cpu, Kind::Charge);
                self.record(from.into(), Kind::Charge);
            }
            MoveOutcome::Nothing => {}
        }
    }

    /// Advances the time. Now and then a CPU has read its clock and then waited for the lock, while others were served.
    fn step(&mut self) {
        self.now += self.random(3_000_000);
        let latest = self.now;
        if self.random(4) == 0 {
            self.now -= self.random(2_000_000).min(self.now - 1000);
        }
        self.act();
        self.now = self.now.max(latest);
    }

    fn act(&mut self) {
        let cpu = self.random(self.cpus.len() as u64) as usize;
        if self.context_steps > 0 && self.random(16) < self.context_steps {
            return match self.random(8) {
                0 => self.admit(cpu),
                1 if self.random(2) == 0 => self.dequeue(cpu),
                1 => self.take_context(cpu),
                _ => self.with_idle(cpu),
            };
        }
        match self.random(8) {
            0 if self.threads < 40 => self.spawn(cpu),
            0 | 1 => self.wake(cpu),
            2 => {
                self.record(cpu, Kind::Timer);
                let _ = self.cpus[cpu].timer(self.now);
            }
            3 => self.take(cpu),
            4 if self.random(2) == 0 => {
                self.record(cpu, Kind::System);
                self.cpus[cpu].interrupt_begin(self.now);
                self.now += self.random(30_000);
                self.wake(cpu);
                let run = self.cpus[cpu].current();
                self.decide(cpu, run);
                self.cpus[cpu].interrupt_end(self.now);
            }
            4 => {
                let limit = self.now as i64 / 4 - (1 << 33);
                self.record(cpu, Kind::Forgive { high: (limit >> 32) as u32, low: limit as u32 });
                self.cpus[cpu].forgive_below(limit);
            }
            _ => match self.cpus[cpu].current() {
                Some(id) => self.leave(cpu, id.0 as u32),
                None => {
                    let run = self.cpus[cpu].dispatch(self.now).run;
                    self.decide(cpu, run);
                }
            },
        }
    }

    fn dump(self) -> Dump {
        let part = |(number, cpu): (u16, &Cpu<()>)| CpuPart {
            started_ns: cpu.started_ns(),
            time: Some([cpu.time().thread_ns, cpu.time().idle_ns, cpu.time().interrupt_ns]),
            events: self.records.iter().filter(|record| record.writer == number).count() as u32,
            lost: 0,
            lost_at: u64::MAX,
        };
        let thread = |id| Thread { id, pid: 1, name: "test".into() };
        Dump {
            header: Header {
                cpus: self.cpus.len() as u16,
                policy: self.cpus[0].policy() as u8,
                panicked: false,
                keeps_last: false,
                capacity: 1 << 20,
                threads: self.threads,
                end_ns: self.now,
                tickets: self.records.len() as u64,
            },
            cpus: (0..).zip(&self.cpus).map(part).collect(),
            threads: (0..self.threads).map(thread).collect(),
            records: self.records,
        }
    }
}

fn made(cpus: usize, policy: PolicyKind, seed: u64, steps: usize) -> Dump {
    let mut kernel = Kernel::new(cpus, policy, seed);
    (0..steps).for_each(|_| kernel.step());
    kernel.dump()
}

/// As `made`, with contexts.
fn made_with_contexts(cpus: usize, policy: PolicyKind, seed: u64, steps: usize) -> Dump {
    let mut kernel = Kernel::new(cpus, policy, seed);
    kernel.context_steps = 4;
    (0..steps).for_each(|_| kernel.step());
    kernel.dump()
}

/// What a replay finds after `spoil`.
fn found(spoil: impl FnOnce(&mut Dump)) -> Fault {
    let mut dump = made(2, PolicyKind::Wfq, 5, 3000);
    spoil(&mut dump);
    replay(&dump).expect_err("spoilt").fault
}

fn position(dump: &Dump, wanted: impl Fn(usize, Kind) -> bool) -> usize {
    (500..dump.records.len()).find(|at| wanted(*at, dump.records[*at].event.kind)).expect("there is one")
}

#[test]
fn random_kernels_replay_without_a_difference() {
    for cpus in [1, 2, 4] {
        for policy in [PolicyKind::Wfq, PolicyKind::Eevdf] {
            for seed in 1..6 {
                let dump = made(cpus, policy, seed, 4000);
                let read = Dump::parse(&dump.encode()).unwrap();
                assert_eq!(read, dump);
                let replayed =
                    replay(&read).unwrap_or_else(|difference| panic!("{cpus} {seed}: {difference}"));
                assert_eq!((replayed.events, replayed.accounts), (dump.records.len(), cpus));
                assert!(replayed.decisions > 500, "{replayed:?}");
                assert!(cpus == 1 || replayed.moves > 20, "{replayed:?}");
            }
        }
    }
}

/// S-06, T-02: with contexts bound, lent, taken, hosted, used up and recreated, a replay still decides the same; all kinds of events occur.
#[test]
fn s_06_kernels_with_contexts_replay_without_a_difference() {
    let mut seen = std::collections::BTreeSet::new();
    for cpus in [1, 2, 4] {
        for policy in [PolicyKind::Wfq, PolicyKind::Eevdf] {
            for seed in 1..8 {
                let dump = made_with_contexts(cpus, policy, seed, 6000);
                let read = Dump::parse(&dump.encode()).unwrap();
                let replayed =
                    replay(&read).unwrap_or_else(|difference| panic!("{cpus} {seed}: {difference}"));
                assert_eq!((replayed.events, replayed.accounts), (dump.records.len(), cpus));
                seen.extend(dump.records.iter().map(|record| record.event.kind.name()));
            }
        }
    }
    let wanted = [
        "spec",
        "admit",
        "readmit",
        "retire",
        "host",
        "unhost",
        "bind",
        "unbind",
        "lend",
        "behind",
        "throttle",
        "context_only",
        "evict",
    ];
    let missing: Vec<_> = wanted.iter().filter(|name| !seen.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} in none of the runs");
}

/// S-06: a loan recorded as an ordinary handoff, a missing unbind, another budget: each is caught.
#[test]
fn s_06_wrong_tales_about_contexts_are_caught() {
    let found = |spoil: fn(&mut Dump)| {
        let mut dump = made_with_contexts(2, PolicyKind::Wfq, 3, 6000);
        spoil(&mut dump);
        replay(&dump).expect_err("spoilt").fault
    };
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Lend { .. }));
        let Kind::Lend { thread } = dump.records[at].event.kind else { unreachable!() };
        dump.records[at].event.kind = Kind::Handoff { thread };
    });
    let noticed = matches!(
        fault,
        Fault::Decision { .. } | Fault::Refused { .. } | Fault::Context { .. } | Fault::Fate { .. }
    );
    assert!(noticed, "{fault:?}");
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Unbind { .. }));
        dump.records.remove(at);
    });
    let noticed = matches!(
        fault,
        Fault::Decision { .. } | Fault::Refused { .. } | Fault::Context { .. } | Fault::Rule(_)
    );
    assert!(noticed, "{fault:?}");
    let fault = found(|dump| {
        for record in &mut dump.records {
            if let Kind::Spec { part: 0, value, .. } = &mut record.event.kind {
                *value += 100_000;
            }
        }
    });
    let noticed = matches!(fault, Fault::Decision { .. } | Fault::Fate { .. } | Fault::Context { .. });
    assert!(noticed, "{fault:?}");
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Throttle { .. }));
        let Kind::Throttle { thread } = dump.records[at].event.kind else { unreachable!() };
        dump.records[at].event.kind = Kind::Preempt { thread };
    });
    assert!(matches!(fault, Fault::Fate { core: "throttled", .. }), "{fault:?}");
}

#[test]
fn a_thread_on_two_cpus_is_caught() {
    let fault = found(|dump| {
        // The thread that runs on CPU 0 also runs on CPU 1.
        let mut there = None;
        for record in &mut dump.records[500..] {
            match (record.event.cpu, record.event.kind, there) {
                (0, Kind::Run { thread }, _) => there = Some(thread),
                (0, kind, _) if kind.leaves_cpu() => there = None,
                (1, Kind::Run { .. }, Some(thread)) => {
                    record.event.kind = Kind::Run { thread };
                    break;
                }
                _ => {}
            }
        }
    });
    assert!(matches!(fault, Fault::Rule(RuleError::Form(TraceError::RunsTwice { .. }))), "{fault:?}");
}

#[test]
fn a_wrong_choice_is_caught() {
    // The preempted thread runs on: the rules allow it, but the core decides otherwise.
    let fault = found(|dump| {
        let at = position(dump, |at, kind| {
            matches!((dump.records[at - 1].event.kind, kind), (Kind::Preempt { .. }, Kind::Run { .. }))
        });
        let (Kind::Preempt { thread }, Kind::Run { thread: other }) =
            (dump.records[at - 1].event.kind, dump.records[at].event.kind)
        else {
            unreachable!()
        };
        assert_ne!(thread, other);
        dump.records[at].event.kind = Kind::Run { thread };
        // Nothing follows, so that the rules of a thread's life still hold.
        dump.records.truncate(at + 1);
    });
    assert!(matches!(fault, Fault::Decision { core: Some(_), kernel: Some(_), .. }), "{fault:?}");
}

#[test]
fn a_second_wake_up_is_caught() {
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Wake { .. }));
        dump.records.insert(at + 1, dump.records[at]);
    });
    let twice = matches!(fault, Fault::Rule(RuleError::State { event: "wake", state: "runnable", .. }));
    assert!(twice, "{fault:?}");
}

#[test]
fn another_time_than_the_cores_is_caught() {
    // A long time is charged to another thread than the kernel charged: sooner or later, the core chooses otherwise.
    let fault = found(|dump| {
        let at = position(dump, |at, kind| {
            matches!((dump.records[at - 1].event.kind, kind), (Kind::Preempt { .. }, Kind::Run { .. }))
        });
        dump.records[at].event.time_ns += 1;
    });
    assert_eq!(fault, Fault::Grammar { what: "a decision at another time than what led to it" });
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Timer));
        let next = dump.records[at + 1..].iter().map(|record| record.event.time_ns).find(|time| *time > 0);
        dump.records[at].event.time_ns = next.unwrap() + 20_000_000;
    });
    assert!(
        matches!(fault, Fault::Decision { .. } | Fault::Move { .. } | Fault::Account { .. }),
        "{fault:?}"
    );
}

#[test]
fn a_forgotten_arrival_and_a_wrong_move_are_caught() {
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Weight { .. }));
        dump.records.remove(at);
    });
    assert!(matches!(fault, Fault::Decision { .. } | Fault::Move { .. }), "{fault:?}");
    let fault = found(|dump| {
        let at = position(dump, |_, kind| matches!(kind, Kind::Steal { .. } | Kind::Balance { .. }));
        dump.records.remove(at);
    });
    assert!(
        matches!(fault, Fault::Decision { .. } | Fault::Move { .. } | Fault::Refused { .. }),
        "{fault:?}"
    );
}

#[test]
fn accounts_that_do_not_add_up_are_caught() {
    let fault = found(|dump| {
        if let Some(time) = &mut dump.cpus[1].time {
            (time[0], time[1]) = (time[0] + 1, time[1] - 1);
        }
    });
    assert!(matches!(fault, Fault::Account { .. }), "{fault:?}");
}

/// With lost events the replay goes as far as it can, reports that, and guesses nothing.
#[test]
fn a_replay_ends_where_events_are_missing() {
    let mut dump = made(2, PolicyKind::Wfq, 5, 3000);
    let first = dump.records.iter().filter(|record| record.writer == 1).nth(100).unwrap().ticket;
    let all = dump.records.len();
    dump.records.retain(|record| record.writer == 0 || record.ticket < first);
    let lost = (all - dump.records.len()) as u64;
    dump.cpus[1] = CpuPart { lost, lost_at: first, events: 100, ..dump.cpus[1] };
    let read = Dump::parse(&dump.encode()).unwrap();
    let replayed = replay(&read).unwrap();
    assert_eq!((replayed.events as u64, replayed.lost_from), (first, Some(first)));
    assert_eq!(replayed.accounts, 0, "what is not whole is not compared");
    assert!(replayed.to_string().contains(&format!("missing from {first} on")), "{replayed}");
}

/// If later events have overwritten the first ones, there is no beginning: that is reported, and nothing is replayed.
#[test]
fn k_27_a_replay_without_a_beginning_is_refused() {
    let mut dump = made(2, PolicyKind::Wfq, 5, 3000);
    dump.header.keeps_last = true;
    let whole = replay(&Dump::parse(&dump.encode()).unwrap());
    assert_eq!(whole.map(|replayed| replayed.events), Ok(dump.records.len()), "nothing was overwritten");
    let last = dump.records.iter().filter(|record| record.writer == 1).nth(9).unwrap().ticket;
    dump.records.retain(|record| record.writer == 0 || record.ticket > last);
    dump.cpus[1] = CpuPart { lost: 10, lost_at: last, events: dump.cpus[1].events - 10, ..dump.cpus[1] };
    let refused = replay(&Dump::parse(&dump.encode()).unwrap()).unwrap_err();
    assert_eq!(refused.fault, Fault::Overwritten { first: last + 1 });
    let text = refused.to_string();
    assert!(text.contains("were overwritten by later ones") && text.contains("trace=first:n"), "{text}");
}

/// A trace by hand, as the kernel would write it for two threads on one CPU.
#[test]
fn a_trace_by_hand() {
    let kinds = [
        (0, Kind::Spawn { thread: 0 }),
        (0, Kind::Run { thread: 0 }),
        (5, Kind::Spawn { thread: 1 }),
        (9_000_000, Kind::Timer),
        (10_000_000, Kind::Timer),
        (10_000_000, Kind::Preempt { thread: 0 }),
        (10_000_000, Kind::Run { thread: 1 }),
        (10_500_000, Kind::Block { thread: 1 }),
        (10_500_000, Kind::Run { thread: 0 }),
        (11_000_000, Kind::Wake { thread: 1 }),
        (11_000_000, Kind::Exit { thread: 0 }),
        (11_000_000, Kind::Run { thread: 1 }),
        (12_000_000, Kind::Exit { thread: 1 }),
        (12_000_000, Kind::Idle),
    ];
    let record =
        |(ticket, (time_ns, kind))| Record { ticket, writer: 0, event: Event { time_ns, cpu: 0, kind } };
    let records: Vec<Record> = (0..).zip(kinds).map(record).collect();
    let part =
        CpuPart { time: Some([12_000_000, 0, 0]), lost_at: u64::MAX, events: 14, ..CpuPart::default() };
    let header = Header {
        cpus: 1,
        policy: 0,
        panicked: false,
        keeps_last: false,
        capacity: 64,
        threads: 0,
        end_ns: 13_000_000,
        tickets: 14,
    };
    let mut dump = Dump { header, cpus: vec![part], threads: Vec::new(), records };
    let replayed = replay(&dump).unwrap_or_else(|difference| panic!("{difference}"));
    assert_eq!((replayed.decisions, replayed.accounts, replayed.unfinished), (5, 1, 0));
    // Cut within an operation, as by a panic.
    dump.records.truncate(6);
    dump.header.tickets = 6;
    let replayed = replay(&dump).unwrap_or_else(|difference| panic!("{difference}"));
    assert_eq!((replayed.unfinished, replayed.accounts), (1, 0));
}
