//! Checks a kernel's trace: it must obey the rules of the vocabulary, and the scheduling core, given the same input again, must make the
//! same decisions.
//!
//! For the second check, a fresh `sched::Cpu` for each CPU is led through the events in the order of their tickets. Arrivals, timers,
//! migrations and checks of the running thread are given to it at the recorded times. Where the trace says that a thread leaves and which
//! one runs next, the core is asked to decide. The first difference ends the replay: after it, the two have different histories.

mod contexts;

use std::collections::BTreeMap;
use std::fmt;

use contexts::Contexts;
use sched::{
    Blocked, Cpu, CpuId, CpuMask, Decision, EvictionReason, LatencyClass, MoveOutcome, Policy, PolicyKind,
    Runnable, ThreadId, Violation,
};
use trace::dump::{Dump, Record};
use trace::{Kind, RuleError};

/// With up to this many threads in a queue, all its invariants are checked after each event; with more, after every [`CHECK_EVERY`]th.
const CHECK_QUEUED_MAX: usize = 32;
const CHECK_EVERY: usize = 256;

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The trace breaks a rule.
    Rule(RuleError),
    /// The core decides differently.
    Decision {
        /// What the core was asked.
        asked: &'static str,
        /// The thread that the core chooses; `None` is idle.
        core: Option<u32>,
        /// The thread that the kernel ran.
        kernel: Option<u32>,
    },
    /// The core moves another thread, or none.
    Move {
        /// The thread that the core moves.
        core: Option<u32>,
        /// The thread that the kernel moved.
        kernel: u32,
    },
    /// The core refuses what the kernel did.
    Refused {
        /// Why.
        what: &'static str,
        /// The thread.
        thread: u32,
    },
    /// The core refuses what the kernel did with a context.
    Context {
        /// Why.
        what: &'static str,
        /// The context.
        context: u32,
    },
    /// The core and the kernel disagree on what became of the thread that left.
    Fate {
        /// What became of it according to the core.
        core: &'static str,
        /// What became of it according to the kernel.
        kernel: &'static str,
        /// The thread.
        thread: u32,
    },
    /// The events of one operation are not in the form in which the kernel writes them.
    Grammar {
        /// What is wrong.
        what: &'static str,
    },
    /// The kernel did something that this replay does not support yet.
    Unsupported {
        /// The event.
        event: &'static str,
    },
    /// The beginning is missing: later events have overwritten it.
    Overwritten {
        /// The first event after which none is missing.
        first: u64,
    },
    /// An invariant of the core is broken.
    Invariant(Violation),
    /// The core's accounts of a CPU's time differ from the kernel's (S-12).
    Account {
        /// Thread, idle and interrupt time according to the core.
        core: [u64; 3],
        /// The same according to the kernel.
        kernel: [u64; 3],
    },
}

/// Where and how a trace is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The ticket of the event; none if the fault concerns the whole trace.
    pub ticket: Option<u64>,
    /// When.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u16,
    /// What.
    pub fault: Fault,
    /// The fault in words, with names.
    pub text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ticket {
            Some(ticket) => {
                write!(f, "event {ticket} at {} ns on CPU {}: {}", self.time_ns, self.cpu, self.text)
            }
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for Difference {}

/// A trace that was replayed without a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events that were replayed.
    pub events: usize,
    /// Decisions that were repeated.
    pub decisions: usize,
    /// Threads that were moved by stealing and balancing, repeated by the core.
    pub moves: usize,
    /// CPUs whose account of time was compared.
    pub accounts: usize,
    /// The first event that is missing: nothing from there on was replayed.
    pub lost_from: Option<u64>,
    /// CPUs on which the trace ends within an operation.
    pub unfinished: usize,
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { events, decisions, moves, accounts, .. } = self;
        write!(
            f,
            "{events} events, {decisions} decisions and {moves} moves as recorded, {accounts} accounts add up"
        )?;
        if let Some(ticket) = self.lost_from {
            write!(f, "; events are missing from {ticket} on, and the replay ends there")?;
        }
        if self.unfinished > 0 {
            write!(f, "; {} CPUs stopped within an operation", self.unfinished)?;
        }
        Ok(())
    }
}

/// The properties that a thread which does not exist yet will begin with.
#[derive(Default)]
struct Birth {
    weight: Option<u32>,
    class: Option<u8>,
    debt_ns: u64,
    context_only: bool,
}

/// A thread that leaves its CPU, while the trace has not yet said which one runs next.
struct Leaving {
    kind: Kind,
    thread: u32,
    time_ns: u64,
    /// The thread that it hands its slice to.
    next: Option<Runnable<()>>,
    said: bool,
    /// Whether it lends its context, too.
    lends: bool,
    /// The thread that it yields to.
    behind: Option<u32>,
    /// Set if it was evicted: true because it lost its context, false because its budget was used up.
    evicted: Option<bool>,
}

struct Core {
    queue: Cpu<()>,
    leaving: Option<Leaving>,
}

struct Replayer {
    cores: Vec<Core>,
    blocked: BTreeMap<u32, Blocked<()>>,
    /// Deferred charges of waiting threads, which their contexts pay when the threads are queued.
    debts: BTreeMap<u32, u64>,
    births: BTreeMap<u32, Birth>,
    /// CPU masks under construction, and those that take effect with the next enqueue.
    masks: BTreeMap<u32, [u64; 4]>,
    contexts: Contexts,
    result: Replayed,
}

const fn id(thread: u32) -> ThreadId {
    ThreadId(thread as u64)
}

fn name(thread: Option<ThreadId>) -> Option<u32> {
    thread.map(|thread| thread.0 as u32)
}

/// Checks a whole dump.
///
/// # Errors
/// With the first difference.
pub fn replay(dump: &Dump) -> Result<Replayed, Difference> {
    let whole = |fault: Fault, text: String| Difference { ticket: None, time_ns: 0, cpu: 0, fault, text };
    let first = dump.first_whole();
    if first > 0 {
        let text = format!(
            "the first {first} of its events were overwritten by later ones, and a replay needs all from the beginning: \
             boot with a larger trace=, or with trace=first:n for the first ones"
        );
        return Err(whole(Fault::Overwritten { first }, text));
    }
    let trace = dump.trace("replay");
    if let Err(error) = trace.check_rules() {
        let named = |thread| format!("{error} (thread {thread} is {})", dump.name(thread));
        let text = match error {
            RuleError::State { thread, .. } | RuleError::NotThere { thread, .. } => named(thread),
            RuleError::Form(trace::TraceError::RunsTwice { thread, .. }) => named(thread),
            _ => error.to_string(),
        };
        return Err(whole(Fault::Rule(error), text));
    }
    let policy = if dump.header.policy == 1 { PolicyKind::Eevdf } else { PolicyKind::Wfq };
    debug_assert!(matches!(policy.name(), "wfq" | "eevdf"));
    let cores = (0..).zip(&dump.cpus).map(|(number, cpu)| {
        let number = CpuId::new(number).ok_or_else(|| {
            let fault = Fault::Grammar { what: "more CPUs than the core has" };
            whole(fault, "there are more CPUs than the core has".to_owned())
        })?;
        let mut queue = Cpu::new(number, policy, cpu.started_ns);
        queue.set_overheads(sched::Overheads::KERNEL);
        Ok(Core { queue, leaving: None })
    });
    let mut replayer = Replayer {
        cores: cores.collect::<Result<_, Difference>>()?,
        blocked: BTreeMap::new(),
        debts: BTreeMap::new(),
        births: BTreeMap::new(),
        masks: BTreeMap::new(),
        contexts: Contexts::default(),
        result: Replayed { lost_from: dump.lost_from(), ..Replayed::default() },
    };
    for record in dump.whole() {
        replayer.step(record).map_err(|fault| {
            let text = describe(dump, &fault);
            let trace::Event { time_ns, cpu, .. } = record.event;
            Difference { ticket: Some(record.ticket), time_ns, cpu, fault, text }
        })?;
    }
    replayer.finish(dump)?;
    Ok(replayer.result)
}

fn describe(dump: &Dump, fault: &Fault) -> String {
    let who = |thread: &Option<u32>| thread.map_or_else(|| "nobody".to_owned(), |id| dump.name(id));
    match fault {
        Fault::Rule(error) => error.to_string(),
        Fault::Decision { asked, core, kernel } => {
            format!("after {asked}, the core chooses {} and the kernel ran {}", who(core), who(kernel))
        }
        Fault::Move { core, kernel } => {
            format!("the core moves {} and the kernel moved {}", who(core), dump.name(*kernel))
        }
        Fault::Refused { what, thread } => format!("{what} ({})", dump.name(*thread)),
        Fault::Context { what, context } => format!("{what} (context {context})"),
        Fault::Fate { core, kernel, thread } => {
            format!("{} is {core} by the core and {kernel} by the kernel", dump.name(*thread))
        }
        Fault::Grammar { what } => (*what).to_owned(),
        Fault::Overwritten { first } => format!("the events before {first} were overwritten"),
        Fault::Unsupported { event } => format!("a replay does not know `{event}` yet"),
        Fault::Invariant(violation) => violation.to_string(),
        Fault::Account { core, kernel } => format!(
            "S-12: thread, idle and interrupt time are {core:?} ns by the core and {kernel:?} ns by the kernel"
        ),
    }
}

impl Replayer {
    fn step(&mut self, record: &Record) -> Result<(), Fault> {
        let trace::Event { time_ns: now, cpu, kind } = record.event;
        let at = usize::from(cpu);
        let remark = matches!(kind, Kind::Ipi { .. } | Kind::Place { .. });
        let goes_on = matches!(
            kind,
            Kind::Run { .. }
                | Kind::Idle
                | Kind::Wake { .. }
                | Kind::Handoff { .. }
                | Kind::Lend { .. }
                | Kind::Behind { .. }
                | Kind::Evict { .. }
        );
        if self.cores[at].leaving.is_some() && !remark && !goes_on {
            return Err(Fault::Grammar {
                what: "something happens between a thread's leaving and the next one",
            });
        }
        match kind {
            Kind::Spawn { thread } => self.spawn(at, thread, now)?,
            Kind::Wake { thread } => self.wake(at, thread, now)?,
            Kind::Handoff { thread } | Kind::Lend { thread } => {
                let leaving = self.cores[at].leaving.as_mut();
                let next = leaving.filter(|it| it.next.as_ref().is_some_and(|next| next.id() == id(thread)));
                let leaving =
                    next.ok_or(Fault::Grammar { what: "a handoff to a thread that was not woken for it" })?;
                (leaving.said, leaving.lends) = (true, matches!(kind, Kind::Lend { .. }));
            }
            Kind::Behind { thread } => {
                let leaving = self.cores[at].leaving.as_mut();
                let yields = leaving.filter(|it| matches!(it.kind, Kind::Yield { .. }));
                yields.ok_or(Fault::Grammar { what: "behind somebody, without a yield" })?.behind =
                    Some(thread);
            }
            Kind::Evict { thread, lost } => {
                match self.cores[at].leaving.as_mut().filter(|it| it.thread == thread) {
                    Some(leaving) => leaving.evicted = Some(lost),
                    // The thread was queued, and its context was taken away.
                    None if lost && self.blocked.contains_key(&thread) => {}
                    None => self.dequeue(at, thread, now)?,
                }
            }
            Kind::Block { thread }
            | Kind::Exit { thread }
            | Kind::Yield { thread }
            | Kind::Preempt { thread }
            | Kind::Throttle { thread }
            | Kind::Keep { thread } => self.leave(at, kind, thread, now)?,
            Kind::Run { thread } => self.decide(at, Some(thread), now)?,
            Kind::Idle => self.decide(at, None, now)?,
            Kind::System => self.cores[at].queue.interrupt_begin(now),
            Kind::Timer => drop(self.cores[at].queue.timer(now)),
            Kind::Charge => drop(self.cores[at].queue.refreshed_summary(now)),
            Kind::Forgive { high, low } => {
                let limit = (u64::from(high) << 32 | u64::from(low)) as i64;
                self.cores[at].queue.forgive_below(limit);
            }
            Kind::Steal { thread, from } => self.take(at, usize::from(from), thread, now, false)?,
            Kind::Balance { thread, from } => self.take(at, usize::from(from), thread, now, true)?,
            Kind::Weight { thread, weight } => self.weigh(at, thread, weight, now)?,
            Kind::Class { thread, class } => self.class(thread, class)?,
            Kind::Affinity { part, thread, cpus } => {
                let words = self.masks.entry(thread).or_default();
                let word = words.get_mut(usize::from(part / 2));
                let word = word.ok_or(Fault::Grammar { what: "a part of a mask that masks do not have" })?;
                *word |= u64::from(cpus) << (32 * (part % 2));
            }
            Kind::Debt { high, thread, low } => {
                let debt_ns = u64::from(high) << 32 | u64::from(low);
                let queue = &mut self.cores[at].queue;
                if queue.current() == Some(id(thread)) {
                    queue.pay(debt_ns, now);
                } else if self.blocked.contains_key(&thread) {
                    // Charged when it is queued: it may not have its context before that.
                    self.debts.insert(thread, debt_ns);
                } else {
                    self.births.entry(thread).or_default().debt_ns = debt_ns;
                }
            }
            Kind::Ipi { .. } | Kind::Place { .. } => {}
            other => self.context_event(at, other, now)?,
        }
        self.result.events += 1;
        let queue = &self.cores[at].queue;
        if queue.queued() <= CHECK_QUEUED_MAX || self.result.events.is_multiple_of(CHECK_EVERY) {
            queue.check().map_err(Fault::Invariant)?;
        }
        Ok(())
    }

    fn spawn(&mut self, at: usize, thread: u32, now: u64) -> Result<(), Fault> {
        let mut runnable = Runnable::new(id(thread), ());
        let birth = self.births.remove(&thread).unwrap_or_default();
        // The debt comes first, as in the kernel: the weight determines how much virtual time a debt is.
        if birth.debt_ns > 0 {
            runnable.owe(birth.debt_ns);
        }
        if let Some(weight) = birth.weight {
            set_weight(thread, weight, |weight| runnable.set_weight(weight))?;
        }
        if let Some(class) = birth.class {
            runnable.set_class(class_of(class)?);
        }
        runnable.set_context_only(birth.context_only);
        self.enqueue(at, thread, runnable, now)
    }

    /// Queues a thread with the mask and the context that it has by now.
    fn enqueue(&mut self, at: usize, thread: u32, mut runnable: Runnable<()>, now: u64) -> Result<(), Fault> {
        self.confine(thread, &mut runnable, now)?;
        match self.cores[at].queue.enqueue(runnable, now) {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault::Refused { what: "the thread may not run on this CPU", thread }),
        }
    }

    fn confine(&mut self, thread: u32, runnable: &mut Runnable<()>, now: u64) -> Result<(), Fault> {
        if let Some(words) = self.masks.remove(&thread) {
            let allowed = runnable.set_allowed(CpuMask::from_words(words));
            allowed.map_err(|_| Fault::Refused { what: "the thread may run nowhere", thread })?;
        }
        let bound = self.contexts.promised_to(thread).map(|context| runnable.bind(context));
        if let Some(debt_ns) = self.debts.remove(&thread) {
            runnable.pay(debt_ns, now);
        }
        match bound {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(_))) => Err(Fault::Refused { what: "the thread has a context", thread }),
            Some(Err(_)) => {
                Err(Fault::Refused { what: "the thread may not run where its context is", thread })
            }
        }
    }

    fn wake(&mut self, at: usize, thread: u32, now: u64) -> Result<(), Fault> {
        let blocked = self.blocked.remove(&thread);
        let blocked = blocked.ok_or(Fault::Refused { what: "woken, and did not wait", thread })?;
        // A thread that runs only on contexts may be lent one; otherwise the core refuses it.
        let mut runnable = blocked.wake_to_borrow();
        let Some(leaving) = &mut self.cores[at].leaving else {
            return self.enqueue(at, thread, runnable, now);
        };
        if !matches!(leaving.kind, Kind::Block { .. }) || leaving.next.is_some() {
            return Err(Fault::Grammar { what: "a wake-up between a thread's leaving and the next one" });
        }
        self.confine(thread, &mut runnable, now)?;
        if let Some(leaving) = &mut self.cores[at].leaving {
            leaving.next = Some(runnable);
        }
        Ok(())
    }

    fn leave(&mut self, at: usize, kind: Kind, thread: u32, now: u64) -> Result<(), Fault> {
        let core = &mut self.cores[at];
        if core.queue.current() != Some(id(thread)) {
            return Err(Fault::Refused { what: "leaves, and did not run here", thread });
        }
        core.leaving = Some(Leaving {
            kind,
            thread,
            time_ns: now,
            next: None,
            said: false,
            lends: false,
            behind: None,
            evicted: None,
        });
        Ok(())
    }

    /// Asks the core which thread runs next, and compares.
    fn decide(&mut self, at: usize, kernel: Option<u32>, now: u64) -> Result<(), Fault> {
        let core = &mut self.cores[at];
        if core.queue.is_in_interrupt() {
            core.queue.interrupt_end(now);
            let goes_on = name(core.queue.current());
            let fault = Fault::Decision { asked: "an interrupt", core: goes_on, kernel };
            return if goes_on == kernel { Ok(()) } else { Err(fault) };
        }
        let Some(leaving) = core.leaving.take() else {
            if core.queue.current().is_some() {
                return Err(Fault::Grammar { what: "a decision though nobody has left" });
            }
            let decision = core.queue.dispatch(now);
            return self.compare("the idle loop's look", &decision, kernel);
        };
        if leaving.time_ns != now {
            return Err(Fault::Grammar { what: "a decision at another time than what led to it" });
        }
        let thread = leaving.thread;
        let (asked, decision) = match (leaving.kind, leaving.next) {
            (Kind::Block { .. }, Some(next)) => {
                if !leaving.said {
                    return Err(Fault::Grammar {
                        what: "a wake-up between a thread's leaving and the next one",
                    });
                }
                let switched = if leaving.lends {
                    core.queue.block_lending(next, now)
                } else {
                    core.queue.block_for(next, now)
                };
                let (blocked, decision) =
                    switched.map_err(|_| Fault::Refused { what: "handed to the wrong CPU", thread })?;
                self.blocked.extend(blocked.map(|blocked| (thread, blocked)));
                (if leaving.lends { "a loan" } else { "a handoff" }, decision)
            }
            (Kind::Block { .. }, None) => {
                self.blocked.extend(core.queue.block(now).map(|blocked| (thread, blocked)));
                ("a wait", core.queue.dispatch(now))
            }
            (Kind::Exit { .. }, _) => {
                let context = core.queue.block(now).and_then(|ended| ended.dismantle().2);
                self.contexts.left_by(thread, context);
                ("an exit", core.queue.dispatch(now))
            }
            (Kind::Yield { .. }, _) => match leaving.behind {
                Some(target) => {
                    let decision = core.queue.yield_to(&core.queue.find(id(target)), now);
                    let refused = Fault::Refused { what: "yields to a thread that is not ready", thread };
                    ("a yield to another", decision.map_err(|_| refused)?)
                }
                None => ("a yield", core.queue.yield_now(now)),
            },
            _ => ("a look at the queue", core.queue.dispatch(now)),
        };
        self.compare(asked, &decision, kernel)?;
        self.compare_fate(leaving.kind, thread, leaving.evicted, decision)
    }

    /// Compares what became of the thread that left.
    fn compare_fate(
        &mut self,
        kind: Kind,
        thread: u32,
        evicted: Option<bool>,
        decision: Decision<()>,
    ) -> Result<(), Fault> {
        let named = |evicted: Option<bool>, throttled: bool| match evicted {
            Some(true) => "evicted without a context",
            Some(false) => "evicted without budget",
            None if throttled => "throttled",
            None => "gone on or queued",
        };
        let lost = decision.evicted.as_ref().map(|it| it.reason == EvictionReason::ContextLost);
        // Only where the kernel checked the running thread does the trace tell a preempted thread from a throttled one.
        let looked = matches!(kind, Kind::Preempt { .. } | Kind::Throttle { .. } | Kind::Keep { .. });
        let core = named(lost, looked && decision.noted.has(sched::Noted::THROTTLED));
        let kernel = named(evicted, matches!(kind, Kind::Throttle { .. }));
        self.blocked.extend(decision.evicted.map(|evicted| (thread, evicted.thread)));
        if core == kernel { Ok(()) } else { Err(Fault::Fate { core, kernel, thread }) }
    }

    fn compare(
        &mut self,
        asked: &'static str,
        decision: &Decision<()>,
        kernel: Option<u32>,
    ) -> Result<(), Fault> {
        self.result.decisions += 1;
        let core = name(decision.run);
        if core == kernel { Ok(()) } else { Err(Fault::Decision { asked, core, kernel }) }
    }

    fn take(&mut self, at: usize, from: usize, thread: u32, now: u64, balances: bool) -> Result<(), Fault> {
        let itself = Fault::Grammar { what: "a CPU takes a thread from itself" };
        let [mine, theirs] = self.cores.get_disjoint_mut([at, from]).map_err(|_| itself)?;
        if theirs.leaving.is_some() {
            return Err(Fault::Grammar { what: "a thread is taken from a CPU whose lock is held" });
        }
        let outcome = if balances {
            mine.queue.balance_from(&mut theirs.queue, now)
        } else {
            mine.queue.steal_from(&mut theirs.queue, now)
        };
        let moved = match outcome {
            MoveOutcome::Moved { thread, .. } => Some(thread.0 as u32),
            MoveOutcome::Nothing => None,
        };
        if moved != Some(thread) {
            return Err(Fault::Move { core: moved, kernel: thread });
        }
        self.result.moves += 1;
        theirs.queue.check().map_err(Fault::Invariant)
    }

    fn weigh(&mut self, at: usize, thread: u32, weight: u32, now: u64) -> Result<(), Fault> {
        let queue = &mut self.cores[at].queue;
        if queue.current() == Some(id(thread)) {
            return set_weight(thread, weight, |weight| queue.set_current_weight(weight, now));
        }
        if let Some(blocked) = self.blocked.get_mut(&thread) {
            return set_weight(thread, weight, |weight| blocked.set_weight(weight));
        }
        match ticket_of(queue, thread) {
            Some(ticket) => {
                set_weight(thread, weight, |weight| queue.set_queued_weight(&ticket, weight, now).map(drop))
            }
            None => {
                self.births.entry(thread).or_default().weight = Some(weight);
                Ok(())
            }
        }
    }

    /// Removes the thread from its queue.
    fn dequeue(&mut self, at: usize, thread: u32, now: u64) -> Result<(), Fault> {
        let queue = &mut self.cores[at].queue;
        let dequeued = ticket_of(queue, thread).and_then(|ticket| queue.remove(&ticket, now));
        let dequeued =
            dequeued.ok_or(Fault::Refused { what: "taken out of a queue, and is not there", thread })?;
        self.blocked.insert(thread, dequeued.park());
        Ok(())
    }

    fn class(&mut self, thread: u32, class: u8) -> Result<(), Fault> {
        let named = class_of(class)?;
        let running = self.cores.iter_mut().find(|core| core.queue.current() == Some(id(thread)));
        if let Some(core) = running {
            core.queue.set_current_class(named);
        } else if let Some(blocked) = self.blocked.get_mut(&thread) {
            blocked.set_class(named);
        } else {
            self.births.entry(thread).or_default().class = Some(class);
        }
        Ok(())
    }

    /// Checks at the end of a trace that no CPU is within an operation, and that the accounts equal the kernel's.
    fn finish(&mut self, dump: &Dump) -> Result<(), Difference> {
        self.result.unfinished = self.cores.iter().filter(|core| core.leaving.is_some()).count();
        if self.result.lost_from.is_some() {
            return Ok(());
        }
        for ((cpu, core), part) in (0..).zip(&self.cores).zip(&dump.cpus) {
            let Some(kernel) = part.time.filter(|_| core.leaving.is_none()) else { continue };
            let time = core.queue.time();
            let core = [time.thread_ns, time.idle_ns, time.interrupt_ns];
            if core != kernel {
                let fault = Fault::Account { core, kernel };
                let text = format!("CPU {cpu}: {}", describe(dump, &fault));
                return Err(Difference { ticket: None, time_ns: dump.header.end_ns, cpu, fault, text });
            }
            self.result.accounts += 1;
        }
        Ok(())
    }
}

fn ticket_of(queue: &Cpu<()>, thread: u32) -> Option<sched::Ticket> {
    let mut ticket = None;
    queue.for_each_queued(|found, _, ()| {
        if found.thread == id(thread) {
            ticket = Some(found);
        }
    });
    ticket
}

fn set_weight<E>(thread: u32, weight: u32, set: impl FnOnce(u16) -> Result<(), E>) -> Result<(), Fault> {
    let refused = Fault::Refused { what: "a weight that threads cannot have", thread };
    let weight = u16::try_from(weight).map_err(|_| refused.clone())?;
    set(weight).map_err(|_| refused)
}

fn class_of(class: u8) -> Result<LatencyClass, Fault> {
    let class = LatencyClass::ALL.get(usize::from(class)).copied();
    class.ok_or(Fault::Grammar { what: "a latency class that does not exist" })
}
