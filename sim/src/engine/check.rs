//! The invariants that every run is checked against, at every step.
//!
//! The core's own (`Cpu::check`: order, sums, refills, time, masks), and those that need a view of all CPUs: every thread has exactly one
//! owner, clocks do not go back, and no thread waits longer than the starvation bound.
//!
//! # The starvation bound (F-10)
//! A best-effort thread `i` is queued under a virtual finish time `F`. Another thread `j` can run before it only while its own tag is lower
//! than `F`. It entered at most one slice behind the clock `V`, so it gets at most `w_j/64 * (F - V) + slice` before its tag passes `F`, and
//! then at most the slice it is in. `F - V` is at most the virtual slice of `i` plus what `i` may be ahead of the clock, which is at most the
//! largest virtual slice of any thread. Summed over all threads that might be on the CPU, and stretched by what contexts may take of it:
//! `wait_i <= (sum_j (w_j/64 * (vslice_i + vslice_max) + 2*slice_max) + budgets) / (1 - reserved)`, plus overhead and injected delays.

use sched::{BEST_EFFORT_RESERVE_PPM, MAX_SLICE_NS, REFERENCE_WEIGHT, Violation, Weight};

use super::{Engine, SimError};
use crate::scenario::ThreadSpec;

/// How often everything is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckLevel {
    /// After every event.
    EveryStep,
    /// After every so many events: for runs with so many threads that a full check takes long.
    Every(u64),
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// When it was found.
    pub time_ns: u64,
    /// What was broken.
    pub what: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "invariant broken at {} ns: {}", self.time_ns, self.what)
    }
}

pub(super) struct Checker {
    level: CheckLevel,
    steps: u64,
    /// Sum of weights and number of live threads, and the most of each at any time.
    weights: u64,
    count: u64,
    weights_most: u64,
    count_most: u64,
    budgets_ns: u64,
    largest_slice: i64,
    has_contexts: bool,
    /// What injected faults may have added to any wait.
    allowed_delay_ns: u64,
    /// Whether time passes exactly as the core was told: then every promise is kept to the nanosecond.
    is_exact: bool,
    /// Last seen clock of each CPU.
    clocks: Vec<i64>,
    starved: Option<Broken>,
}

impl Checker {
    pub(super) fn new(level: CheckLevel) -> Checker {
        Checker {
            level,
            steps: 0,
            weights: 0,
            count: 0,
            weights_most: 0,
            count_most: 0,
            budgets_ns: 0,
            largest_slice: 0,
            has_contexts: false,
            allowed_delay_ns: 0,
            is_exact: false,
            clocks: Vec::new(),
            starved: None,
        }
    }

    pub(super) fn thread_created(&mut self, definition: &ThreadSpec) {
        self.weights += u64::from(definition.weight);
        self.count += 1;
        self.weights_most = self.weights_most.max(self.weights);
        self.count_most = self.count_most.max(self.count);
        self.largest_slice = self.largest_slice.max(virtual_slice(definition));
        if let Some(context) = &definition.context {
            self.budgets_ns += context.budget_ns;
            self.has_contexts = true;
        }
    }

    pub(super) fn thread_ended(&mut self, definition: &ThreadSpec) {
        self.weights -= u64::from(definition.weight);
        self.count -= 1;
    }

    /// A weight was changed from outside: from now on the bound uses the worst case.
    pub(super) fn weight_changed(&mut self, weight: u16) {
        self.weights += u64::from(weight);
        self.weights_most = self.weights_most.max(self.weights);
        if let Ok(weight) = Weight::new(weight) {
            self.largest_slice = self.largest_slice.max(weight.to_virtual(MAX_SLICE_NS));
        }
    }

    pub(super) fn class_changed(&mut self, definition: &ThreadSpec) {
        if let Ok(weight) = Weight::new(definition.weight) {
            self.largest_slice = self.largest_slice.max(weight.to_virtual(MAX_SLICE_NS));
        }
    }

    pub(super) fn allow_delay(&mut self, delay_ns: u64) {
        self.allowed_delay_ns += delay_ns;
        self.is_exact = false;
    }

    /// From here on promises are checked, until something happens that they do not cover.
    pub(super) fn hold_to_promises(&mut self, is_exact: bool) {
        self.is_exact = is_exact;
    }

    /// The longest that a thread like this may wait for a CPU.
    pub(super) fn starvation_bound_ns(&self, definition: &ThreadSpec, overhead_ns: u64) -> u64 {
        let ahead = u128::from((virtual_slice(definition).max(0) + self.largest_slice) as u64);
        let served = u128::from(self.weights_most) * ahead / u128::from(REFERENCE_WEIGHT)
            + u128::from(2 * self.count_most * MAX_SLICE_NS)
            + u128::from(self.budgets_ns);
        let stretched =
            if self.has_contexts { served * 1_000_000 / u128::from(BEST_EFFORT_RESERVE_PPM) } else { served };
        u64::try_from(stretched)
            .unwrap_or(u64::MAX)
            .saturating_add(overhead_ns)
            .saturating_add(self.allowed_delay_ns)
    }

    pub(super) fn waited(
        &mut self,
        definition: &ThreadSpec,
        wait_ns: u64,
        overhead_ns: u64,
        thread: u32,
        time_ns: u64,
    ) {
        if definition.context.is_some() || self.starved.is_some() {
            return;
        }
        let bound = self.starvation_bound_ns(definition, overhead_ns);
        if wait_ns > bound {
            let what = format!(
                "starvation: thread {thread} (`{}`) waited {wait_ns} ns, the bound is {bound} ns",
                definition.name
            );
            self.starved = Some(Broken { time_ns, what });
        }
    }
}

fn virtual_slice(definition: &ThreadSpec) -> i64 {
    let class = super::glue::class_of(definition.class);
    Weight::new(definition.weight).map_or(0, |weight| weight.to_virtual(class.slice_ns()))
}

impl Engine<'_> {
    /// The checks after an event that touched this CPU.
    pub(super) fn check_step(&mut self, touched: usize) -> Result<(), SimError> {
        if let Some(starved) = self.checker.starved.take() {
            return Err(SimError::Broken(starved));
        }
        self.checker.steps += 1;
        self.check_clock(touched)?;
        match self.checker.level {
            CheckLevel::EveryStep => {
                self.core_check(touched)?;
                self.check_promises(touched)?;
                // A full check costs time for every thread; with many threads, it is made now and then.
                let every = (self.threads.len() as u64 / 32).max(1);
                if !self.checker.steps.is_multiple_of(every) {
                    return Ok(());
                }
                self.check_owners()?;
                self.check_contexts()
            }
            CheckLevel::Every(every) if self.checker.steps.is_multiple_of(every.max(1)) => self.check_all(),
            CheckLevel::Every(_) => Ok(()),
        }
    }

    /// What is promised to every context (S-13, S-14): a thread that is ready on a budget has had it by its deadline, whatever others did.
    fn check_promises(&self, cpu: usize) -> Result<(), SimError> {
        if !self.checker.is_exact {
            return Ok(());
        }
        let core = &self.cpus[cpu].core;
        let mut late = None;
        // A running thread has had more than was charged to it so far.
        let mut see = |thread: u64, context: &sched::Context, runs_since_ns: u64| {
            let head = context.ledger().refills()[0];
            let due_ns = head.time_ns + context.spec().relative_deadline_ns;
            let missing_ns = head.amount_ns.saturating_sub(due_ns.saturating_sub(runs_since_ns));
            if missing_ns > 0 && self.now > due_ns {
                late = late.take().or(Some(format!(
                    "S-13: thread {thread} was promised {} ns by {due_ns} ns on cpu{cpu}, and {missing_ns} are missing",
                    context.spec().budget_ns,
                )));
            }
        };
        core.for_each_queued_context(|ticket, context| {
            if ticket.queue == sched::QueueKind::Guaranteed {
                see(ticket.thread.0, context, sched::FOREVER);
            }
        });
        let running = core.current().zip(core.current_context()).filter(|_| core.current_is_guaranteed());
        running.iter().for_each(|(thread, context)| see(thread.0, context, core.wall_ns()));
        late.map_or(Ok(()), |what| Err(self.broken(what)))
    }

    /// At the end: threads that still wait have not waited too long either.
    pub(super) fn check_open_waits(&mut self) -> Result<(), SimError> {
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            let queued = thread.parked.is_none() && thread.ended.is_none() && thread.on_cpu.is_none();
            if let Some((since, overhead)) = thread.queued_at.filter(|_| queued && thread.holds.is_none()) {
                let (wait, spent) = (self.now - since, self.overhead_ns - overhead);
                let definition = &self.scenario.threads[thread.spec];
                self.checker.waited(definition, wait, spent, index as u32, self.now);
            }
        }
        self.checker.starved.take().map_or(Ok(()), |starved| Err(SimError::Broken(starved)))
    }

    pub(super) fn check_all(&mut self) -> Result<(), SimError> {
        (0..self.cpus.len()).try_for_each(|cpu| self.core_check(cpu))?;
        self.check_owners()?;
        self.check_contexts()
    }

    fn broken(&self, what: String) -> SimError {
        SimError::Broken(Broken { time_ns: self.now, what })
    }

    fn core_check(&self, cpu: usize) -> Result<(), SimError> {
        self.check_work_conserved(cpu)?;
        self.cpus[cpu].core.check().map_err(|violation: Violation| self.broken(violation.to_string()))
    }

    /// A CPU with work in its queue runs some of it, or has been told to look.
    fn check_work_conserved(&self, cpu: usize) -> Result<(), SimError> {
        let state = &self.cpus[cpu];
        let told = self.pending.contains(state.id) || state.stalled_until_ns > self.now;
        if state.doing.is_none() && !told && !state.core.summary().idle {
            return Err(
                self.broken(format!("cpu{cpu} is idle with {} threads in its queues", state.core.queued()))
            );
        }
        let (at, wall) = (state.core.time().total_ns(), self.now);
        if at > wall {
            return Err(self.broken(format!("cpu{cpu} has charged {at} ns of {wall} ns")));
        }
        if !state.in_overhead && state.core.is_in_interrupt() {
            return Err(self.broken(format!("cpu{cpu} charges its thread's time to nobody")));
        }
        Ok(())
    }

    /// What CPUs have promised is what live threads hold: every context is in one place, at the CPU where it runs, with the thread that its
    /// record names. Its refills add up to its budget, and it has not used more than its budgets since it was made, however it was lent
    /// (S-03, S-06).
    fn check_contexts(&self) -> Result<(), SimError> {
        let mut promised = vec![0usize; self.cpus.len()];
        let mut boxes = 0;
        let mut wrong = None;
        let mut see = |holder: u32, context: &sched::Context| {
            boxes += 1;
            promised[context.home().index()] += 1;
            if context.is_hosted() {
                promised[context.origin().index()] += 1;
            }
            wrong = wrong.take().or(self.wrong_with(holder, context));
        };
        for (index, thread) in (0..).zip(&self.threads) {
            thread.parked.iter().filter_map(|(blocked, _)| blocked.context()).for_each(|it| see(index, it));
        }
        for cpu in &self.cpus {
            cpu.doing.zip(cpu.core.current_context()).iter().for_each(|(index, it)| see(*index, it));
            cpu.core.for_each_queued_context(|ticket, it| see(ticket.thread.0 as u32, it));
        }
        // A lender waits until the loan is returned (S-06).
        for loan in self.records.values().flat_map(|record| record.book.loans()) {
            let lender = loan.lender as usize;
            if !matches!(self.threads[lender].parked, Some((_, super::Wait::Reply))) {
                wrong = wrong.or(Some(format!("thread {lender} has lent its context, and does not wait")));
            }
        }
        if boxes != self.records.len() {
            let records = self.records.len();
            wrong = wrong.or(Some(format!("there are {records} contexts, and threads hold {boxes}")));
        }
        for (cpu, state) in self.cpus.iter().enumerate() {
            let (core, held) = (state.core.contexts(), promised[cpu]);
            if core != held {
                wrong = wrong.or(Some(format!("cpu{cpu} promised {core} contexts, threads hold {held}")));
            }
        }
        wrong.map_or(Ok(()), |what| Err(self.broken(what)))
    }

    fn wrong_with(&self, holder: u32, context: &sched::Context) -> Option<String> {
        let info = context.info(self.now);
        let id = info.identity.id;
        let Some(record) = self.records.get(&id) else { return Some(format!("context {id} was retired")) };
        let holds = self.threads[holder as usize].holds;
        if let Err(broken) = record.book.check() {
            return Some(format!("context {id}: {broken}"));
        }
        if *record.book.holder() != holder || holds != Some(id) {
            let named = record.book.holder();
            return Some(format!(
                "context {id} is with thread {holder}, which holds {holds:?}, not with {named}"
            ));
        }
        if context.ledger().total_ns() != info.spec.budget_ns {
            return Some(format!("the refills of context {id} are not its budget"));
        }
        let most = record.most_ns(&info.spec, self.now) + info.overrun_max_ns;
        let used = info.consumed_ns;
        (used > most).then(|| format!("context {id} has used {used} ns of at most {most} ns: time was made"))
    }

    fn check_clock(&mut self, cpu: usize) -> Result<(), SimError> {
        let clock = self.cpus[cpu].core.summary().clock;
        self.checker.clocks.resize(self.cpus.len(), i64::MIN);
        let before = std::mem::replace(&mut self.checker.clocks[cpu], clock);
        if clock < before {
            return Err(self.broken(format!("virtual clock of cpu{cpu} went back from {before} to {clock}")));
        }
        Ok(())
    }

    /// Every thread is parked, ended, or in exactly one place of exactly one CPU; and that CPU agrees with the engine.
    fn check_owners(&self) -> Result<(), SimError> {
        let mut owners = vec![0u32; self.threads.len()];
        for (cpu, state) in self.cpus.iter().enumerate() {
            state.core.for_each_queued(|_, _, member| owners[member.index as usize] += 1);
            let running = state.core.current_payload().map(|member| member.index);
            if running != state.doing {
                return Err(self.broken(format!("cpu{cpu} runs {running:?}, the machine {:?}", state.doing)));
            }
            running.iter().for_each(|index| owners[*index as usize] += 1);
        }
        for (index, thread) in self.threads.iter().enumerate() {
            let outside = u32::from(thread.parked.is_some()) + u32::from(thread.ended.is_some());
            if owners[index] + outside != 1 {
                return Err(self.broken(format!("thread {index} has {} owners", owners[index] + outside)));
            }
        }
        Ok(())
    }
}
