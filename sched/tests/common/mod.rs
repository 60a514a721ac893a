//! A driver of one or several [`Cpu`]s in virtual time, for the tests beside it.
//!
//! It plays the kernel: it keeps the timers that decisions ask for, wakes sleepers, lets idle CPUs steal and busy ones
//! balance, and measures *with its own stopwatch* who ran when. After every event it compares that stopwatch with the
//! core's accounts (S-12) and calls [`Cpu::check`].

// Every test binary uses a part of this.
#![allow(dead_code)]

pub(crate) mod ops;

use sched::*;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// A seeded generator (xorshift64*): the same seed is the same workload on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

pub(crate) fn cpu_id(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

/// What a thread does with the CPU time it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// Runs whenever it may.
    Hog,
    /// Runs for `run_ns`, sleeps for `sleep_ns`, for ever.
    Cycle { run_ns: u64, sleep_ns: u64 },
    /// Runs for a millisecond, sleeps once (so that it comes back to a clock that has moved on), then runs for ever.
    Sleeper { sleep_ns: u64 },
}

/// What to spawn.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) weight: u16,
    pub(crate) class: LatencyClass,
    pub(crate) life: Life,
    pub(crate) cpu: usize,
    pub(crate) allowed: Option<CpuMask>,
    pub(crate) context: Option<Spec>,
}

impl Plan {
    pub(crate) fn new(weight: u16, life: Life) -> Plan {
        Plan { weight, class: LatencyClass::Normal, life, cpu: 0, allowed: None, context: None }
    }

    pub(crate) fn hog(weight: u16) -> Plan {
        Plan::new(weight, Life::Hog)
    }

    pub(crate) fn class(mut self, class: LatencyClass) -> Plan {
        self.class = class;
        self
    }

    pub(crate) fn on(mut self, cpu: usize) -> Plan {
        self.cpu = cpu;
        self
    }

    pub(crate) fn with(mut self, spec: Spec) -> Plan {
        self.context = Some(spec);
        self
    }

    pub(crate) fn pinned(mut self) -> Plan {
        self.allowed = Some(CpuMask::only(cpu_id(self.cpu)));
        self
    }
}

/// What the driver knows of a thread, from its own stopwatch.
pub(crate) struct Seen {
    pub(crate) plan: Plan,
    /// Time on a CPU.
    pub(crate) service_ns: u64,
    /// Completed waits: from runnable (spawned, woken or preempted) to running.
    pub(crate) waits_ns: Vec<u64>,
    /// The same, but only those that began with a wake.
    pub(crate) wake_waits_ns: Vec<u64>,
    pub(crate) blocked: Option<Blocked<u32>>,
    pub(crate) evictions: Vec<EvictionReason>,
    /// How often it went to sleep, and how often it lost the CPU otherwise.
    pub(crate) sleeps: u64,
    pub(crate) losses: u64,
    pub(crate) runnable_since: Option<u64>,
    woke: bool,
    burst_left_ns: u64,
    wake_at_ns: u64,
}

impl Seen {
    /// The longest wait, one that is still going on included.
    pub(crate) fn longest_wait_ns(&self, now: u64) -> u64 {
        let finished = self.waits_ns.iter().copied().max().unwrap_or(0);
        finished.max(self.runnable_since.map_or(0, |since| now - since))
    }
}

/// Several CPUs and their threads.
pub(crate) struct Machine {
    pub(crate) cpus: Vec<Cpu<u32>>,
    pub(crate) now: u64,
    pub(crate) threads: Vec<Seen>,
    /// When each CPU's timer fires.
    until: Vec<u64>,
    ran_ns: Vec<u64>,
    idled_ns: Vec<u64>,
    /// When each CPU takes its next balance step.
    balance_at: Vec<u64>,
    pub(crate) steals: u64,
    pub(crate) balances: u64,
    /// Switches between threads, over all CPUs.
    pub(crate) switches: u64,
}

impl Machine {
    pub(crate) fn new(cpus: usize, policy: PolicyKind) -> Machine {
        Machine {
            cpus: (0..cpus).map(|cpu| Cpu::new(cpu_id(cpu), policy, 0)).collect(),
            now: 0,
            threads: Vec::new(),
            until: vec![FOREVER; cpus],
            ran_ns: vec![0; cpus],
            idled_ns: vec![0; cpus],
            balance_at: (0..cpus).map(|cpu| next_balance_ns(cpu_id(cpu), 0)).collect(),
            steals: 0,
            balances: 0,
            switches: 0,
        }
    }

    /// Starts a thread; returns its number.
    pub(crate) fn spawn(&mut self, plan: Plan) -> usize {
        let number = self.threads.len();
        let mut thread = Runnable::new(ThreadId(number as u64), number as u32);
        thread.set_weight(plan.weight).unwrap();
        thread.set_class(plan.class);
        if let Some(allowed) = plan.allowed {
            thread.set_allowed(allowed).unwrap();
        }
        if let Some(spec) = plan.context {
            let identity = ContextId { id: number as u64, generation: 1 };
            let context =
                self.cpus[plan.cpu].admit(Proposal::new(identity, spec), self.now).expect("admitted");
            assert!(matches!(thread.bind(context), Ok(None)));
        }
        let cpu = plan.cpu;
        let mut seen = Seen {
            service_ns: 0,
            waits_ns: Vec::new(),
            wake_waits_ns: Vec::new(),
            blocked: None,
            evictions: Vec::new(),
            sleeps: 0,
            losses: 0,
            runnable_since: Some(self.now),
            woke: false,
            burst_left_ns: FOREVER,
            wake_at_ns: FOREVER,
            plan,
        };
        match seen.plan.life {
            Life::Hog => {}
            Life::Cycle { run_ns, .. } => seen.burst_left_ns = run_ns,
            Life::Sleeper { .. } => seen.burst_left_ns = MS,
        }
        self.threads.push(seen);
        let effect = self.cpus[cpu].enqueue(thread, self.now).expect("may run there");
        self.apply(cpu, effect);
        number
    }

    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: u64) {
        self.run_observed(end, |_| {});
    }

    /// Runs until `end`; `observe` sees the machine after every event.
    pub(crate) fn run_observed(&mut self, end: u64, mut observe: impl FnMut(&Machine)) {
        let mut events_at_once = 0;
        while self.now < end {
            let next = self.next_event().min(end);
            // A scheduler that asks for the same instant for ever would hang the kernel: 8 events for each thread and
            // CPU at one instant are far more than any correct chain of refill, wake, steal and dispatch needs.
            events_at_once = if next == self.now { events_at_once + 1 } else { 0 };
            assert!(events_at_once <= 8 * (self.threads.len() + self.cpus.len()), "stuck at {}", self.now);
            self.advance(next);
            self.handle_events();
            observe(self);
        }
        for cpu in 0..self.cpus.len() {
            let effect = self.cpus[cpu].timer(self.now);
            self.apply(cpu, effect);
        }
    }

    fn next_event(&self) -> u64 {
        let mut next = self.until.iter().copied().min().unwrap_or(FOREVER).max(self.now);
        for cpu in &self.cpus {
            if let Some(thread) = cpu.current() {
                next = next.min(self.now.saturating_add(self.threads[thread.0 as usize].burst_left_ns));
            }
        }
        for thread in self.threads.iter().filter(|thread| thread.blocked.is_some()) {
            next = next.min(thread.wake_at_ns.max(self.now));
        }
        let balance = self.balance_at.iter().copied().min().unwrap_or(FOREVER);
        if self.cpus.len() > 1 { next.min(balance) } else { next }
    }

    fn advance(&mut self, to: u64) {
        let elapsed = to - self.now;
        for (number, cpu) in self.cpus.iter().enumerate() {
            match cpu.current() {
                Some(thread) => {
                    let seen = &mut self.threads[thread.0 as usize];
                    seen.service_ns += elapsed;
                    if seen.burst_left_ns != FOREVER {
                        seen.burst_left_ns -= elapsed;
                    }
                    self.ran_ns[number] += elapsed;
                }
                None => self.idled_ns[number] += elapsed,
            }
        }
        self.now = to;
    }

    fn handle_events(&mut self) {
        for cpu in 0..self.cpus.len() {
            let done = self.cpus[cpu].current().filter(|id| self.threads[id.0 as usize].burst_left_ns == 0);
            if let Some(thread) = done {
                self.sleep_current(cpu, thread.0 as usize);
            }
        }
        for thread in 0..self.threads.len() {
            if self.threads[thread].blocked.is_some() && self.threads[thread].wake_at_ns <= self.now {
                self.wake(thread);
            }
        }
        for cpu in 0..self.cpus.len() {
            if self.until[cpu] <= self.now {
                let effect = self.cpus[cpu].timer(self.now);
                self.apply(cpu, effect);
            }
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus.len() == 1 || self.balance_at[cpu] > self.now {
                continue;
            }
            self.balance_at[cpu] = next_balance_ns(cpu_id(cpu), self.now);
            match self.cpus[cpu].current() {
                None => self.steal(cpu),
                Some(_) => self.balance(cpu),
            }
        }
    }

    fn sleep_current(&mut self, cpu: usize, thread: usize) {
        let blocked = self.cpus[cpu].block(self.now).expect("it runs");
        assert_eq!(blocked.id(), ThreadId(thread as u64));
        let seen = &mut self.threads[thread];
        seen.blocked = Some(blocked);
        seen.sleeps += 1;
        let (run_ns, sleep_ns) = match seen.plan.life {
            Life::Cycle { run_ns, sleep_ns } => (run_ns, sleep_ns),
            Life::Sleeper { sleep_ns } => (FOREVER, sleep_ns),
            Life::Hog => unreachable!("a hog never sleeps"),
        };
        seen.burst_left_ns = run_ns;
        seen.wake_at_ns = self.now + sleep_ns;
        self.dispatch(cpu);
    }

    /// Makes a sleeping thread runnable where it ran last.
    pub(crate) fn wake(&mut self, thread: usize) {
        let seen = &mut self.threads[thread];
        let Ok(runnable) = seen.blocked.take().expect("it sleeps").wake() else { panic!("context-only") };
        seen.wake_at_ns = FOREVER;
        seen.runnable_since = Some(self.now);
        seen.woke = true;
        let cpu = runnable.last_cpu().map_or(seen.plan.cpu, CpuId::index);
        let effect = self.cpus[cpu].enqueue(runnable, self.now).expect("ran there before");
        self.apply(cpu, effect);
    }

    pub(crate) fn apply(&mut self, cpu: usize, effect: Effect) {
        match effect {
            Effect::Keep => self.verify(cpu),
            Effect::Rearm { until_ns } => {
                self.until[cpu] = until_ns;
                self.verify(cpu);
            }
            Effect::Dispatch => self.dispatch(cpu),
        }
    }

    pub(crate) fn dispatch(&mut self, cpu: usize) {
        let before = self.cpus[cpu].current();
        let decision = self.cpus[cpu].dispatch(self.now);
        self.carry_out(cpu, before, decision);
        if self.cpus[cpu].current().is_none() {
            self.steal(cpu);
        }
    }

    pub(crate) fn carry_out(&mut self, cpu: usize, before: Option<ThreadId>, decision: Decision<u32>) {
        assert_eq!(decision.switched, before != decision.run);
        self.until[cpu] = decision.until_ns;
        if decision.switched {
            self.switches += 1;
            if let Some(loser) = before {
                let loser = &mut self.threads[loser.0 as usize];
                loser.runnable_since = Some(self.now);
                loser.woke = false;
                loser.losses += u64::from(decision.evicted.is_none());
            }
        }
        if let Some(evicted) = decision.evicted {
            let seen = &mut self.threads[evicted.thread.id().0 as usize];
            seen.runnable_since = None;
            seen.evictions.push(evicted.reason);
            seen.blocked = Some(evicted.thread);
        }
        if let Some(winner) = decision.run {
            let now = self.now;
            let winner = &mut self.threads[winner.0 as usize];
            if let Some(since) = winner.runnable_since.take() {
                winner.waits_ns.push(now - since);
                if winner.woke {
                    winner.wake_waits_ns.push(now - since);
                }
            }
        }
        self.verify(cpu);
    }

    fn steal(&mut self, thief: usize) {
        let Some(victim) = most_overdue(cpu_id(thief), self.cpus.iter().map(Cpu::summary)) else { return };
        let [own, other] = self.cpus.get_disjoint_mut([thief, victim.index()]).unwrap();
        if let MoveOutcome::Moved { effect, .. } = own.steal_from(other, self.now) {
            self.steals += 1;
            self.verify(victim.index());
            self.apply(thief, effect);
        }
    }

    fn balance(&mut self, cpu: usize) {
        let summaries: Vec<Summary> =
            self.cpus.iter_mut().map(|cpu| cpu.refreshed_summary(self.now)).collect();
        let plan = balance_plan(&summaries[cpu], summaries.iter().copied());
        if let Some(limit) = plan.forgive_below {
            self.cpus[cpu].forgive_below(limit);
        }
        if let Some(slow) = plan.pull_from {
            let [own, other] = self.cpus.get_disjoint_mut([cpu, slow.index()]).unwrap();
            let outcome = own.balance_from(other, self.now);
            self.verify(slow.index());
            if let MoveOutcome::Moved { effect, .. } = outcome {
                self.balances += 1;
                self.apply(cpu, effect);
            }
        }
    }

    /// S-12 and I1 to I7. Called right after an event at `now`, which has charged everything up to `now`.
    fn verify(&self, cpu: usize) {
        let core = &self.cpus[cpu];
        core.check().unwrap_or_else(|violation| panic!("{violation}"));
        let time = core.time();
        assert_eq!(time.total_ns(), self.now, "S-12: all wall time is on somebody's account");
        assert_eq!(
            (time.thread_ns, time.idle_ns),
            (self.ran_ns[cpu], self.idled_ns[cpu]),
            "S-12: by stopwatch"
        );
    }

    /// The snapshot of a thread, wherever it is.
    pub(crate) fn snapshot(&self, thread: usize) -> Snapshot {
        let id = ThreadId(thread as u64);
        if let Some(blocked) = &self.threads[thread].blocked {
            return blocked.snapshot();
        }
        for cpu in &self.cpus {
            if cpu.current() == Some(id) {
                return cpu.current_snapshot().unwrap();
            }
            let mut found = None;
            cpu.for_each_queued(|ticket, snapshot, _| {
                if ticket.thread == id {
                    found = Some(snapshot);
                }
            });
            if let Some(snapshot) = found {
                return snapshot;
            }
        }
        panic!("thread {thread} is nowhere")
    }

    /// The ticket of a queued thread.
    pub(crate) fn ticket(&self, cpu: usize, thread: usize) -> Ticket {
        let mut found = None;
        self.cpus[cpu].for_each_queued(|ticket, _, _| {
            if ticket.thread == ThreadId(thread as u64) {
                found = Some(ticket);
            }
        });
        found.unwrap_or_else(|| panic!("thread {thread} is not queued on cpu{cpu}"))
    }
}

/// Length of a slice in the thread's own virtual time, as real numbers: the tests' own arithmetic.
pub(crate) fn virtual_slice(weight: u16, class: LatencyClass) -> f64 {
    slice(class) * 64.0 / f64::from(weight)
}

/// F-04, restated: the slice of a class.
pub(crate) fn slice(class: LatencyClass) -> f64 {
    match class {
        LatencyClass::Interactive => 1.5e6,
        LatencyClass::Normal | LatencyClass::IpcServer => 3e6,
        LatencyClass::Batch => 12e6,
    }
}

/// Makes `spec` fit beside `others` on one CPU: first as small as need be, then in the highest band.
pub(crate) fn made_to_fit(mut spec: Spec, others: &[Spec]) -> Spec {
    let wanted_ns = spec.budget_ns;
    loop {
        let demands = others.iter().chain([&spec]).zip(1..);
        let mut demands: Vec<_> = demands.map(|(spec, id)| Overheads::NONE.demand(id, spec)).collect();
        if judge_all(&mut demands, 0, CpuId::FIRST).is_ok() {
            return spec;
        }
        spec.budget_ns /= 2;
        if spec.budget_ns < MIN_BUDGET_NS {
            assert_ne!(spec.criticality, MAX_CRITICALITY, "nothing fits");
            (spec.budget_ns, spec.criticality) = (wanted_ns, MAX_CRITICALITY);
        }
    }
}
