//! The same glue on real OS threads with real locks (M-01, F-01): some hundred scheduled threads that run, block, wake, are
//! stolen, balanced, killed, reweighed and given contexts, all at random. Bounded in operations, not in time.
//!
//! Every worker is one CPU. It takes the kernel's steps whenever it has some to take, and otherwise plays what happens
//! on that CPU: its running thread does something, or an interrupt wakes, kills or changes a random thread. The seed
//! fixes each worker's choices, not their interleaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use models::Flaw;
use models::core::{Core, Phase};
use models::protocol::Machine;
use models::record::{Handle, Record, Slot};
use models::sync::{self, Host, Lock};
use sched::{ContextId, CpuId, CpuMask, Overrun, PolicyKind, Spec};

const THREADS: u64 = 240;
/// Time moves by up to this much with every operation: slices, budgets and refills all expire many times.
const STEP_NS_MAX: u64 = 400_000;
/// One operation in this many is a kill,
const KILL_ONE_IN: u64 = 2_000;
/// of one thread in so many: the others live to the end.
const MORTAL_ONE_IN: usize = 3;

/// What the workers share.
struct Stage {
    machine: Machine<Host>,
    now: AtomicU64,
    contexts: AtomicU64,
}

/// One CPU and its dice.
struct Worker {
    core: Core<Host>,
    random: u64,
    kills: u64,
    wakes: u64,
    steals: u64,
    binds: u64,
    moves: u64,
}

impl Worker {
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn run(&mut self, stage: &Stage, operations: u64) {
        for _ in 0..operations {
            let now = stage.now.fetch_add(self.random % STEP_NS_MAX, Ordering::Relaxed);
            if self.core.rests(&stage.machine) {
                self.play(stage, now);
            } else {
                self.go_on(stage, now);
            }
        }
        assert_eq!(sync::breaches(), 0, "{} broke the lock order", self.core.id);
    }

    /// A step of the kernel's own.
    fn go_on(&mut self, stage: &Stage, now: u64) {
        let pulling = matches!(self.core.phase, Phase::Pull(_));
        if let Some(thread) = self.core.step(&stage.machine, now) {
            stage.machine.make_runnable(thread, Some(self.core.id), now);
        }
        self.steals += u64::from(pulling && self.core.phase != Phase::Look);
    }

    /// Something happens on this CPU.
    fn play(&mut self, stage: &Stage, now: u64) {
        let machine = &stage.machine;
        let cpu = self.core.id;
        let thread = self.below(THREADS) as usize;
        let running = self.core.phase == Phase::Run;
        if self.core.armed_ns <= now {
            return self.core.timer(machine, now);
        }
        if self.below(KILL_ONE_IN) == 0 {
            self.kills += 1;
            return machine.kill(thread / MORTAL_ONE_IN * MORTAL_ONE_IN, now);
        }
        match self.below(16) {
            0..=3 if running => self.core.block(machine, now),
            4 if running => self.core.yield_now(machine, now),
            5 if running => self.call(stage, thread, now),
            6 if running => self.bind_current(stage, now),
            7 if running => drop(machine.unbind_current(cpu, now)),
            8 if running && machine.balance(cpu, now) => {
                self.moves += 1;
                machine.bell.ring(cpu);
            }
            9 => drop(machine.reweigh(thread, 1 + self.below(1024) as u16, now)),
            10 => {
                if let Some(context) = self.context(stage, now) {
                    self.binds += u64::from(machine.bind_parked(thread, context));
                }
            }
            11 => drop(machine.unbind_parked(thread)),
            _ => self.wakes += u64::from(machine.wake(thread, Some(cpu), now)),
        }
    }

    fn call(&mut self, stage: &Stage, server: usize, now: u64) {
        use models::protocol::Claim;
        let Claim::Won(server) = stage.machine.claim(server) else { return };
        if let Some(back) = self.core.call(&stage.machine, server, now) {
            stage.machine.make_runnable(back, Some(self.core.id), now);
        }
    }

    fn context(&mut self, stage: &Stage, now: u64) -> Option<Box<sched::Context>> {
        let id = stage.contexts.fetch_add(1, Ordering::Relaxed);
        let budget = 100_000 + self.below(2_000_000);
        let mut spec = Spec::new(budget, budget * (5 + self.below(20)));
        spec.overrun = [Overrun::Throttle, Overrun::Fault, Overrun::Demote][self.below(3) as usize];
        spec.criticality = self.below(8) as u8;
        stage.machine.admit(self.core.id, ContextId { id, generation: 0 }, spec, now)
    }

    fn bind_current(&mut self, stage: &Stage, now: u64) {
        if let Some(context) = self.context(stage, now) {
            self.binds += u64::from(stage.machine.bind_current(self.core.id, context, now));
        }
    }
}

fn new_stage(cpus: usize, policy: PolicyKind, flaw: Option<Flaw>) -> Stage {
    let threads = (0..THREADS)
        .map(|id| {
            Record::parked(id, |blocked: &mut sched::Blocked<Handle<Host>>| {
                if id % 8 == 0 {
                    let home = CpuId::new(id as usize / 8 % cpus).expect("small");
                    blocked.set_allowed(CpuMask::only(home)).expect("not empty");
                }
                blocked.set_context_only(id % 16 == 1);
            })
        })
        .collect();
    let machine = Machine::new(cpus, threads, policy, flaw);
    Stage { machine, now: AtomicU64::new(0), contexts: AtomicU64::new(0) }
}

/// Plays on `cpus` OS threads and returns everything that is wrong afterwards.
fn play(cpus: usize, policy: PolicyKind, flaw: Option<Flaw>, operations: u64) -> Vec<String> {
    let stage = Arc::new(new_stage(cpus, policy, flaw));
    let workers: Vec<_> = stage
        .machine
        .cpu_ids()
        .map(|id| {
            let stage = Arc::clone(&stage);
            let random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(id.index() as u64 + 1);
            let core = Core::new(id, flaw);
            let mut worker = Worker { core, random, kills: 0, wakes: 0, steals: 0, binds: 0, moves: 0 };
            std::thread::spawn(move || {
                worker.run(&stage, operations);
                worker
            })
        })
        .collect();
    let mut workers: Vec<Worker> =
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect();
    let mut wrong = audit(&stage, &mut workers);
    let sum = |count: fn(&Worker) -> u64| workers.iter().map(count).sum::<u64>();
    let (wakes, steals, kills) = (sum(|w| w.wakes), sum(|w| w.steals), sum(|w| w.kills));
    let (binds, moves) = (sum(|w| w.binds), sum(|w| w.moves));
    println!(
        "{cpus} CPUs, {policy:?}, {flaw:?}: {wakes} wakes, {steals} steals, {moves} balanced, {kills} kills, {binds} binds"
    );
    if flaw.is_none() && (wakes == 0 || steals == 0 || kills == 0 || binds == 0) {
        wrong.push("something never happened: the stress shows nothing".into());
    }
    wrong
}

/// Lets every CPU finish what it is doing, and then counts everything.
fn audit(stage: &Stage, workers: &mut [Worker]) -> Vec<String> {
    let machine = &stage.machine;
    let now = stage.now.load(Ordering::Relaxed);
    while !workers.iter().all(|worker| worker.core.rests(machine)) {
        for worker in workers.iter_mut().filter(|worker| !worker.core.rests(machine)) {
            worker.go_on(stage, now);
        }
    }
    let mut wrong = Vec::new();
    let mut owners = vec![0u32; THREADS as usize];
    let (mut cpu_ns, mut live_ns, mut reserved) = (0u64, 0u64, 0usize);
    for worker in workers.iter() {
        let id = worker.core.id;
        let offered = machine.bell.offers_to(id).next().is_some();
        machine.look(id, |cpu| {
            wrong.extend(cpu.check().err().map(|violation| violation.to_string()));
            cpu_ns += cpu.time().thread_ns;
            let mut count = |thread: u64, runtime_ns: u64| {
                owners[thread as usize] += 1;
                live_ns += runtime_ns;
            };
            if let (Some(thread), Some(snapshot)) = (cpu.current(), cpu.current_snapshot()) {
                count(thread.0, snapshot.runtime_ns);
            }
            cpu.for_each_queued(|ticket, snapshot, _| count(ticket.thread.0, snapshot.runtime_ns));
            let idle = cpu.summary().idle;
            if cpu.current().is_none() && !idle {
                wrong.push(format!("{id} halts over its own queue"));
            }
            if idle && offered {
                wrong.push(format!("{id} halts beside work that it could take"));
            }
            reserved += usize::from(cpu.reserved() > sched::Utilisation::BOUND);
        });
    }
    for (record, owners) in machine.threads().iter().zip(&mut owners) {
        match &*record.slot.lock() {
            Slot::Parked(blocked) => {
                *owners += 1;
                live_ns += blocked.snapshot().runtime_ns;
                if record.is_doomed() {
                    wrong.push(format!("thread {} was killed and waits", record.id));
                }
            }
            Slot::Dead if !record.is_doomed() => wrong.push(format!("thread {} died unasked", record.id)),
            Slot::Dead => *owners += 1,
            Slot::Away { .. } => {}
        }
        if *owners != 1 {
            wrong.push(format!("thread {} has {owners} owners", record.id));
        }
    }
    if live_ns + machine.buried_runtime_ns() != cpu_ns {
        let buried = machine.buried_runtime_ns();
        wrong.push(format!("threads ran {live_ns} + {buried} ns, CPUs ran threads for {cpu_ns} ns"));
    }
    assert_eq!(reserved, 0, "a CPU promised more than it may");
    wrong
}

/// Operations of each CPU.
const OPERATIONS: u64 = 3_000_000;

#[test]
fn m_01_f_01_stress_on_two_cpus() {
    assert_eq!(play(2, PolicyKind::Wfq, None, OPERATIONS), Vec::<String>::new());
}

#[test]
fn m_01_f_01_stress_on_four_cpus() {
    assert_eq!(play(4, PolicyKind::Wfq, None, OPERATIONS), Vec::<String>::new());
}

#[test]
fn m_01_f_11_stress_of_eevdf_on_three_cpus() {
    assert_eq!(play(3, PolicyKind::Eevdf, None, OPERATIONS), Vec::<String>::new());
}

#[test]
fn m_01_stress_catches_a_forgotten_wake() {
    let wrong = play(3, PolicyKind::Wfq, Some(Flaw::WakeForgotten), OPERATIONS / 100);
    assert!(wrong.iter().any(|what| what.ends_with("has 0 owners")), "not caught: {wrong:?}");
}
