//! The simulator: N CPUs around the scheduling core, driven by events in virtual time.
//!
//! The engine does what a kernel does around the core: it holds the CPUs, delivers timers and interrupts, places woken
//! threads, steals when idle, balances periodically, and runs the threads' programs. All scheduling decisions are the core's.
//! A run is a function of (scenario, options): same input, same events, same bytes out.

mod actions;
mod check;
pub mod costs;
mod glue;
mod loans;
mod program;
pub mod random;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use sched::{
    BALANCE_PERIOD_NS, Blocked, Cpu, CpuId, CpuMask, CpuTime, FOREVER, Payload, PolicyKind, QueueKind,
    Snapshot, Ticket, Topology,
};
use trace::{Kind, ThreadInfo, Trace};

use crate::scenario::{PolicyName, Scenario};
use costs::Costs;
use random::Random;

pub use check::{Broken, CheckLevel};

/// How a scenario is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What things cost.
    pub costs: Costs,
    /// Keep a trace (memory grows with every event).
    pub record: bool,
    /// How thoroughly invariants are checked.
    pub check: CheckLevel,
    /// What goes wrong on purpose.
    pub faults: Faults,
    /// A bug in the engine itself, to show that the checks find it.
    pub plant: Option<Plant>,
    /// Whether a thread whose context is refused at the start goes without, and is counted; otherwise the run is refused.
    pub lenient: bool,
}

/// Bugs that tests plant to see them caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Every third inter-processor interrupt is not sent.
    ForgottenIpi,
    /// After a switch, the core is never told that its overhead is over: no thread is charged any more.
    UnchargedSwitch,
    /// An exiting thread's context keeps its share of the CPU.
    LeakedReservation,
    /// A server that does not answer keeps its loan, and its caller goes on.
    KeptLoan,
    /// A context that comes back from a loan has its full budget again.
    FreshLoan,
    /// What a context used is forgotten when it goes: the next one gets that time again.
    ForgottenUse,
}

impl Options {
    /// What the scenario itself asks for, fully recorded and checked.
    #[must_use]
    pub fn of(scenario: &Scenario) -> Options {
        let costs = match scenario.costs {
            crate::scenario::CostsName::None => Costs::NONE,
            crate::scenario::CostsName::Timers => Costs::TIMERS,
            crate::scenario::CostsName::Default => Costs::defaults(),
        };
        Options {
            costs,
            record: true,
            check: CheckLevel::EveryStep,
            faults: Faults::default(),
            plant: None,
            lenient: false,
        }
    }
}

/// Faults to inject, each with its chance in a thousand at every opportunity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A timer interrupt does not come; the next tick does.
    pub lost_tick: u32,
    /// A timer interrupt comes late.
    pub late_timer: u32,
    /// An inter-processor interrupt takes up to a slice.
    pub late_ipi: u32,
    /// A balance step finds the other CPU's lock taken.
    pub busy_lock: u32,
}

/// Why a run could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimError {
    /// A thread's context was refused.
    Admission {
        /// The thread's line in the scenario.
        line: u32,
        /// The thread.
        thread: String,
        /// The core's reason.
        why: String,
    },
    /// The core broke a promise.
    Broken(Broken),
    /// Threads make steps for ever without time passing.
    Livelock {
        /// When.
        time_ns: u64,
        /// How many steps were made at that instant.
        steps: u64,
    },
    /// Forks made more threads than the simulator takes.
    TooManyThreads {
        /// When.
        time_ns: u64,
    },
}

impl std::fmt::Display for SimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SimError::Admission { line, thread, why } => {
                write!(f, "line {line}: thread `{thread}`: its context is refused: {why}")
            }
            SimError::Broken(broken) => broken.fmt(f),
            SimError::Livelock { time_ns, steps } => write!(
                f,
                "no time passes: {steps} steps at {time_ns} ns; add a `run` or `sleep` to the threads that call each other"
            ),
            SimError::TooManyThreads { time_ns } => {
                write!(f, "forks exceed {} threads at {time_ns} ns", crate::scenario::limits::THREADS_MAX)
            }
        }
    }
}

impl std::error::Error for SimError {}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events that reached the core.
    pub events: u64,
    /// Changes of the running thread.
    pub switches: u64,
    /// Threads that became runnable.
    pub wakes: u64,
    /// Inter-processor interrupts.
    pub ipis: u64,
    /// Threads taken by idle CPUs.
    pub steals: u64,
    /// Threads moved by the balance step.
    pub balances: u64,
    /// Virtual time forgiven to CPUs that could not be balanced.
    pub forgiven_ns: u64,
    /// Budgets that were used up.
    pub depletions: u64,
    /// Deadlines that passed before their budget was served.
    pub misses: u64,
    /// Timers that were made to fail or come late.
    pub injected: u64,
    /// Contexts that a fork could not get, and new parameters that did not fit.
    pub admissions_refused: u64,
    /// Contexts that were lent along a call.
    pub loans: u64,
    /// Those that another CPU hosted for it.
    pub loans_hosted: u64,
    /// The longest chain of loans.
    pub loan_depth_max: u64,
    /// Calls that were not made: the chain too long, in a circle, or without a common CPU.
    pub loans_refused: u64,
    /// Longest time that a queued thread waited for a CPU.
    pub longest_wait_ns: u64,
}

/// What one thread got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadResult {
    /// Its name, with the instance where there are several.
    pub name: String,
    /// Which thread of the scenario.
    pub spec: usize,
    /// Which instance of it.
    pub instance: u32,
    /// The core's counters.
    pub snapshot: Snapshot,
    /// When it ended, if it did.
    pub ended_ns: Option<u64>,
}

/// A finished run.
#[derive(Debug)]
pub struct Outcome {
    /// When the last thread ended, or the scenario's time was over.
    pub end_ns: u64,
    /// One entry a thread, in order of creation.
    pub threads: Vec<ThreadResult>,
    /// Where each CPU's time went.
    pub cpus: Vec<CpuTime>,
    /// What happened how often.
    pub counters: Counters,
    /// A digest of which thread started where and when: equal digests, equal schedules.
    pub order_hash: u64,
    /// The threads that ran first on each CPU, in order (recorded runs only).
    pub order: Vec<Vec<u32>>,
    /// Every event (recorded runs only).
    pub trace: Option<Trace>,
}

/// What the core carries for the engine: the thread's number, and a place to note where it was queued.
#[derive(Debug)]
pub(crate) struct Member {
    index: u32,
    place: Rc<Cell<Option<Ticket>>>,
    refilled: Rc<RefCell<Vec<u32>>>,
}

impl Payload for Member {
    fn queued(&self, ticket: Ticket) {
        let before = self.place.replace(Some(ticket));
        let was_throttled = before.is_some_and(|before| before.queue == QueueKind::Throttled);
        if was_throttled && ticket.queue != QueueKind::Throttled {
            self.refilled.borrow_mut().push(self.index);
        }
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Start,
    Sleep,
    Message,
    Reply,
    Children,
    Barrier(usize),
    /// Its budget's refill, after a timeout fault.
    Refill,
    /// The answer of its timeout handler.
    Handler,
    /// Nothing: it is in transit to another CPU.
    Move,
    /// A context, which it will never get.
    Context,
}

pub(crate) struct Thread {
    spec: usize,
    instance: u32,
    /// Owns the thread while it waits; inside a CPU it is `None`.
    parked: Option<(Blocked<Member>, Wait)>,
    place: Rc<Cell<Option<Ticket>>>,
    /// The CPU where it runs now.
    on_cpu: Option<usize>,
    ended: Option<(u64, Snapshot)>,
    pc: usize,
    loops: Vec<(usize, u32)>,
    /// CPU time until the current step is done; `FOREVER` for a hog.
    remaining_ns: u64,
    /// Invalidates wake-ups that are scheduled already.
    wake_version: u32,
    parent: Option<u32>,
    children: u32,
    /// The caller that this server works for.
    serving: Option<u32>,
    /// The caller that this server has answered on the caller's own context, which goes back when the server blocks.
    answered: Option<u32>,
    /// The context that it has, its own or a borrowed one.
    holds: Option<u64>,
    last_ran: Option<CpuId>,
    /// Whether its timer's interrupt is being handled.
    is_due: bool,
    /// The deferred charge for interrupts that served it.
    owed_ns: u64,
    /// Since when it waits for a CPU, and how much overhead there had been by then.
    queued_at: Option<(u64, u64)>,
}

struct Endpoint {
    callers: VecDeque<u32>,
    servers: VecDeque<u32>,
}

pub(crate) struct SimCpu {
    core: Cpu<Member>,
    id: CpuId,
    doing: Option<u32>,
    /// From this time on the running thread makes progress; before it, the CPU is busy with overhead.
    runs_from_ns: u64,
    in_overhead: bool,
    until_ns: u64,
    version: u32,
    /// When the event of this version comes (`FOREVER`: none is scheduled).
    armed_for_ns: u64,
    stalled_until_ns: u64,
    lock_free_at_ns: u64,
    needs_dispatch: bool,
    last_space: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Cpu { cpu: u16, version: u32 },
    Ipi { cpu: u16 },
    Wake { thread: u32, version: u32 },
    Timed { index: u32 },
    Balance { cpu: u16 },
}

/// An event with its time, and the order in which events of the same time were scheduled, as one number to compare.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    order: u128,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// One run in progress.
pub struct Engine<'a> {
    scenario: &'a Scenario,
    options: Options,
    now: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    cpus: Vec<SimCpu>,
    threads: Vec<Thread>,
    live: usize,
    /// Live threads of each definition.
    alive: Vec<u32>,
    /// Instances of each definition that were forked.
    forked: Vec<u32>,
    endpoints: Vec<Endpoint>,
    barriers: Vec<Vec<u32>>,
    topology: Topology,
    online: CpuMask,
    idle: CpuMask,
    pending: CpuMask,
    /// CPUs where a thread waits.
    stealable: CpuMask,
    /// The weight on each CPU.
    loads: Vec<u64>,
    random: Random,
    fault_random: Random,
    trace: Trace,
    counters: Counters,
    order_hash: u64,
    order: Vec<Vec<u32>>,
    refilled: Rc<RefCell<Vec<u32>>>,
    checker: check::Checker,
    instant_steps: u64,
    /// The CPU whose thread is making its steps right now.
    executing: Option<usize>,
    next_context: u64,
    /// The record of every context that exists.
    records: BTreeMap<u64, loans::Record>,
    /// Time that all CPUs together spent on overhead.
    overhead_ns: u64,
}

/// More steps than this at one instant are a livelock.
const INSTANT_STEPS_MAX: u64 = 50_000_000;
/// How many runs of each CPU are kept for `expect order`.
const ORDER_KEPT: usize = 4096;

impl<'a> Engine<'a> {
    /// Sets everything up; contexts are admitted here.
    ///
    /// # Errors
    /// [`SimError::Admission`] if a context does not fit.
    pub fn new(scenario: &'a Scenario, options: Options) -> Result<Engine<'a>, SimError> {
        let topology = match scenario.topology {
            Some(spec) => Topology::regular(spec.sockets, spec.cores, spec.threads, spec.numa),
            None => Topology::flat(scenario.cpus as usize),
        }
        .expect("the parser bounds the number of CPUs");
        let policy = match scenario.policy {
            PolicyName::Wfq => PolicyKind::Wfq,
            PolicyName::Eevdf => PolicyKind::Eevdf,
        };
        let online = CpuMask::first_n(scenario.cpus as usize);
        let cpus = online
            .iter()
            .map(|id| SimCpu {
                core: Cpu::new(id, policy, 0),
                id,
                doing: None,
                runs_from_ns: 0,
                in_overhead: false,
                until_ns: FOREVER,
                version: 0,
                armed_for_ns: FOREVER,
                stalled_until_ns: 0,
                lock_free_at_ns: 0,
                needs_dispatch: false,
                last_space: None,
            })
            .collect();
        let trace = Trace { title: scenario.title.clone(), cpus: scenario.cpus as u16, ..Trace::default() };
        let mut engine = Engine {
            scenario,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            cpus,
            threads: Vec::new(),
            live: 0,
            alive: vec![0; scenario.threads.len()],
            forked: vec![0; scenario.threads.len()],
            endpoints: scenario
                .threads
                .iter()
                .map(|_| Endpoint { callers: VecDeque::new(), servers: VecDeque::new() })
                .collect(),
            barriers: vec![Vec::new(); scenario.barriers.len()],
            topology,
            online,
            idle: online,
            pending: CpuMask::EMPTY,
            stealable: CpuMask::EMPTY,
            loads: vec![0; scenario.cpus as usize],
            random: Random::new(scenario.seed),
            fault_random: Random::new(scenario.seed ^ 0xfa17),
            trace,
            counters: Counters::default(),
            order_hash: 0xcbf2_9ce4_8422_2325,
            order: vec![Vec::new(); scenario.cpus as usize],
            refilled: Rc::default(),
            checker: check::Checker::new(options.check),
            instant_steps: 0,
            executing: None,
            next_context: 1,
            records: BTreeMap::new(),
            overhead_ns: 0,
            options,
        };
        let Faults { lost_tick, late_timer, late_ipi, busy_lock: _ } = engine.options.faults;
        let is_punctual = engine.options.costs == Costs::NONE && lost_tick + late_timer + late_ipi == 0;
        engine.checker.hold_to_promises(is_punctual);
        engine.set_up()?;
        Ok(engine)
    }

    fn set_up(&mut self) -> Result<(), SimError> {
        for (spec, thread) in self.scenario.threads.iter().enumerate() {
            for instance in 0..thread.count {
                let index = self.create(spec, instance, None, !self.options.lenient)?;
                self.push(thread.start_ns, Event::Wake { thread: index, version: 0 });
            }
        }
        for index in 0..self.scenario.timed.len() {
            self.push(self.scenario.timed[index].at_ns, Event::Timed { index: index as u32 });
        }
        if self.cpus.len() > 1 {
            for cpu in 0..self.cpus.len() {
                // Staggered, so that CPUs do not all look at each other at once.
                let first = BALANCE_PERIOD_NS + BALANCE_PERIOD_NS * cpu as u64 / self.cpus.len() as u64;
                self.push(first, Event::Balance { cpu: cpu as u16 });
            }
        }
        Ok(())
    }

    fn push(&mut self, time_ns: u64, event: Event) {
        self.sequence += 1;
        let order = u128::from(time_ns) << 64 | u128::from(self.sequence);
        self.events.push(Reverse(Scheduled { order, event }));
    }

    fn record(&mut self, time_ns: u64, cpu: usize, kind: Kind) {
        if self.options.record {
            self.trace.push(time_ns, cpu as u16, kind);
        }
    }

    /// How far the run is, for a progress display: (simulated time, events so far).
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.now, self.counters.events)
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The first broken invariant, or a livelock.
    pub fn run(mut self) -> Result<Outcome, SimError> {
        while self.advance(u64::MAX)? {}
        self.finish()
    }

    /// Handles up to `limit` events; returns whether there is more to do.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn advance(&mut self, limit: u64) -> Result<bool, SimError> {
        for _ in 0..limit {
            // When all threads have ended, only balance events are left.
            if self.live == 0 {
                return Ok(false);
            }
            let Some(Reverse(Scheduled { order, event })) = self.events.pop() else { return Ok(false) };
            let time_ns = (order >> 64) as u64;
            if time_ns > self.scenario.duration_ns {
                return Ok(false);
            }
            if time_ns != self.now {
                self.now = time_ns;
                self.instant_steps = 0;
            }
            self.instant_steps += 1;
            if self.instant_steps > INSTANT_STEPS_MAX {
                return Err(SimError::Livelock { time_ns, steps: self.instant_steps });
            }
            if let Some(touched) = self.handle(event)? {
                self.counters.events += 1;
                self.check_step(touched)?;
            }
        }
        Ok(true)
    }

    /// Handles one event; returns the CPU that it touched.
    fn handle(&mut self, event: Event) -> Result<Option<usize>, SimError> {
        match event {
            Event::Cpu { cpu, version } => {
                let cpu = usize::from(cpu);
                if self.cpus[cpu].version != version {
                    return Ok(None);
                }
                if self.cpus[cpu].stalled_until_ns > self.now {
                    let again = self.cpus[cpu].stalled_until_ns;
                    self.push(again, event);
                    return Ok(None);
                }
                self.cpus[cpu].armed_for_ns = FOREVER;
                self.cpu_event(cpu)?;
                Ok(Some(cpu))
            }
            Event::Ipi { cpu } => {
                let cpu = usize::from(cpu);
                if self.cpus[cpu].stalled_until_ns > self.now {
                    let again = self.cpus[cpu].stalled_until_ns;
                    self.push(again, event);
                    return Ok(None);
                }
                self.pending.remove(self.cpus[cpu].id);
                self.sync(cpu);
                self.dispatch(cpu);
                Ok(Some(cpu))
            }
            Event::Wake { thread, version } => {
                if self.threads[thread as usize].wake_version != version {
                    return Ok(None);
                }
                if let Some(cpu) = self.timer_interrupt(thread) {
                    self.push(self.now + self.options.costs.timer_ns, event);
                    return Ok(Some(cpu));
                }
                let cpu = self.wake(thread, None, false);
                Ok(cpu)
            }
            Event::Timed { index } => {
                self.timed_action(index as usize)?;
                Ok(Some(0))
            }
            Event::Balance { cpu } => {
                self.balance(usize::from(cpu));
                self.push(sched::next_balance_ns(self.cpus[usize::from(cpu)].id, self.now), event);
                Ok(Some(usize::from(cpu)))
            }
        }
    }

    fn finish(mut self) -> Result<Outcome, SimError> {
        // All scheduled events are done, or later than the end.
        let end_ns = if self.live == 0 { self.now } else { self.scenario.duration_ns };
        for cpu in 0..self.cpus.len() {
            self.now = end_ns;
            self.sync(cpu);
            // Charges everything up to the end, and decides nothing more.
            self.cpus[cpu].core.refreshed_summary(end_ns);
        }
        self.now = end_ns;
        self.check_open_waits()?;
        self.check_all()?;
        let cpus = self.cpus.iter().map(|cpu| cpu.core.time()).collect();
        let mut threads = Vec::with_capacity(self.threads.len());
        let mut queued: Vec<(u32, Snapshot)> = Vec::new();
        for cpu in &self.cpus {
            cpu.core.for_each_queued(|_, snapshot, member| queued.push((member.index, snapshot)));
            queued.extend(cpu.doing.zip(cpu.core.current_snapshot()));
        }
        queued.sort_unstable_by_key(|(index, _)| *index);
        for index in 0..self.threads.len() {
            let name = self.name(index as u32);
            let thread = &self.threads[index];
            let snapshot = match (&thread.ended, &thread.parked) {
                (Some((_, snapshot)), _) => *snapshot,
                (None, Some((blocked, _))) => blocked.snapshot(),
                (None, None) => {
                    let at = queued.binary_search_by_key(&(index as u32), |(index, _)| *index);
                    queued[at.expect("a thread that is nowhere else is in a queue")].1
                }
            };
            threads.push(ThreadResult {
                name,
                spec: thread.spec,
                instance: thread.instance,
                snapshot,
                ended_ns: thread.ended.map(|(time, _)| time),
            });
        }
        let trace = self.options.record.then(|| {
            let mut trace = std::mem::take(&mut self.trace);
            trace.events.retain(|event| event.time_ns <= end_ns);
            // The end of overhead is noticed at the CPU's next event, and written down then.
            trace.events.sort_by_key(|event| event.time_ns);
            trace.end_ns = end_ns;
            trace
        });
        Ok(Outcome {
            end_ns,
            threads,
            cpus,
            counters: self.counters,
            order_hash: self.order_hash,
            order: self.order,
            trace,
        })
    }

    fn name(&self, index: u32) -> String {
        let thread = &self.threads[index as usize];
        let spec = &self.scenario.threads[thread.spec];
        if spec.count == 1 { spec.name.clone() } else { format!("{}#{}", spec.name, thread.instance) }
    }

    fn describe(&mut self, index: u32) {
        if !self.options.record {
            return;
        }
        let name = self.name(index);
        let spec = &self.scenario.threads[self.threads[index as usize].spec];
        let context = spec.context.as_ref().map(|context| {
            let text = crate::scenario::duration_text;
            format!("{}/{} {}", text(context.budget_ns), text(context.period_ns), context.overrun)
        });
        self.trace.threads.push(ThreadInfo {
            id: index,
            name,
            weight: u32::from(spec.weight),
            class: spec.class.to_string(),
            context,
        });
    }
}
