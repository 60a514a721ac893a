//! What a kernel does around the core: wake, place, interrupt, dispatch, steal, balance.

use std::cell::Cell;
use std::rc::Rc;

use sched::{
    AdmissionError, BALANCE_SCAN_CPUS, Context, ContextId, CpuId, CpuMap, CpuMask, Decision, Effect,
    EvictionReason, FOREVER, LatencyClass, Level, MoveOutcome, Proposal, QueueKind, Runnable, SLICE_NS,
    ThreadId, balance_plan, most_overdue, place,
};
use trace::Kind;

use super::loans::{Record, spec_of};
use super::{Engine, Event, Member, ORDER_KEPT, Plant, SimError, Thread, Wait};
use crate::scenario::{self, ThreadSpec, limits};

impl Engine<'_> {
    // ---- threads ------------------------------------------------------------------------------------------------

    /// Creates a thread, parked until it is woken for the first time.
    pub(super) fn create(
        &mut self,
        spec: usize,
        instance: u32,
        parent: Option<u32>,
        strict: bool,
    ) -> Result<u32, SimError> {
        if self.live as u32 >= limits::THREADS_MAX {
            return Err(SimError::TooManyThreads { time_ns: self.now });
        }
        let scenario = self.scenario;
        let definition = &scenario.threads[spec];
        let index = self.threads.len() as u32;
        let place: Rc<Cell<_>> = Rc::default();
        let member = Member { index, place: Rc::clone(&place), refilled: Rc::clone(&self.refilled) };
        let mut owner = Runnable::new(ThreadId(u64::from(index)), member);
        owner.set_weight(definition.weight).expect("the parser checks weights");
        if let Some(cpu) = parent.and(self.executing) {
            owner.owe(self.cpus[cpu].core.current_debt_ns(self.now));
        }
        let mut owner = owner.park();
        owner.set_class(class_of(definition.class));
        let allowed = match &definition.cpus {
            Some(cpus) => cpus.iter().filter_map(|cpu| CpuId::new(*cpu as usize)).fold(
                CpuMask::EMPTY,
                |mut mask, cpu| {
                    mask.insert(cpu);
                    mask
                },
            ),
            None => CpuMask::ALL,
        };
        owner.set_allowed(allowed).expect("the parser refuses empty CPU lists");
        let mut holds = None;
        if let Some(wish) = &definition.context {
            // Children of even definitions are successors of one template; those of odd ones are independent of each other.
            let template = if parent.is_some() && spec.is_multiple_of(2) { spec as u64 + 1 } else { 0 };
            match self.admit(definition, &allowed, template) {
                Ok(context) => {
                    let id = context.identity().id;
                    holds = Some(id);
                    let (record, time) = Record::new(index, context, wish.budget_ns, self.now);
                    self.records.insert(id, record);
                    drop(owner.bind(time).expect("a home is among the allowed CPUs"));
                }
                Err(why) if strict => {
                    let (line, thread) = (definition.line.0, definition.name.clone());
                    return Err(SimError::Admission { line, thread, why: why.to_string() });
                }
                Err(_) => self.counters.admissions_refused += 1,
            }
        }
        self.threads.push(Thread {
            spec,
            instance,
            parked: Some((owner, Wait::Start)),
            place,
            on_cpu: None,
            ended: None,
            pc: 0,
            loops: Vec::new(),
            remaining_ns: 0,
            wake_version: 0,
            parent,
            children: 0,
            serving: None,
            answered: None,
            holds,
            last_ran: None,
            is_due: false,
            owed_ns: 0,
            queued_at: None,
        });
        self.live += 1;
        self.alive[spec] += 1;
        self.checker.thread_created(definition);
        self.describe(index);
        Ok(index)
    }

    /// Asks the allowed CPUs for a context: the wished one first, then the emptiest.
    fn admit(
        &mut self,
        definition: &ThreadSpec,
        allowed: &CpuMask,
        template: u64,
    ) -> Result<Box<Context>, AdmissionError> {
        let wish = definition.context.as_ref().expect("only called for threads with a context");
        let spec = spec_of(wish, *allowed);
        let identity = ContextId { id: self.next_context, generation: 0 };
        let mut homes: Vec<usize> =
            (0..self.cpus.len()).filter(|cpu| allowed.contains(self.cpus[*cpu].id)).collect();
        homes
            .sort_by_key(|cpu| (definition.home != Some(*cpu as u32), self.cpus[*cpu].core.reserved(), *cpu));
        let mut refusal = None;
        let mut proposal = Proposal::new(identity, spec).of_template(template);
        for cpu in homes {
            match self.cpus[cpu].core.admit(proposal, self.now) {
                Ok(context) => {
                    self.next_context += 1;
                    return Ok(context);
                }
                Err(refused) => {
                    refusal = refusal.or(Some(refused.why));
                    proposal = refused.proposal;
                }
            }
        }
        Err(refusal.expect("a thread is allowed on at least one CPU"))
    }

    /// Wakes a parked thread; returns the CPU that got it.
    pub(super) fn wake(&mut self, index: u32, waker: Option<usize>, direct: bool) -> Option<usize> {
        let scenario = self.scenario;
        let thread = &mut self.threads[index as usize];
        let (blocked, wait) = thread.parked.take()?;
        thread.wake_version += 1;
        let runnable = match blocked.wake() {
            Ok(runnable) => runnable,
            Err(blocked) => {
                thread.parked = Some((blocked, Wait::Context));
                return None;
            }
        };
        thread.queued_at = Some((self.now, self.overhead_ns));
        self.counters.wakes += 1;
        let home = scenario.threads[thread.spec].home.and_then(|cpu| CpuId::new(cpu as usize));
        // A timer fires on the CPU where the thread was put to sleep.
        let last = runnable.last_cpu();
        // Initial threads are created on one CPU after the other, so that placement does not always begin at CPU 0.
        let turn = || (wait == Wait::Start).then(|| self.cpus[index as usize % self.cpus.len()].id);
        let waker_id = waker.map(|cpu| self.cpus[cpu].id).or(last).or_else(turn);
        let land =
            CpuMap { topology: &self.topology, online: self.online, idle: self.idle, pending: self.pending };
        let load = |cpu: CpuId| self.loads[cpu.index()];
        let target = place(&land, &runnable.allowed(), last.or(home), waker_id, load)
            .expect("a thread is allowed on at least one CPU")
            .cpu
            .index();
        let kind =
            if wait == Wait::Start { Kind::Spawn { thread: index } } else { Kind::Wake { thread: index } };
        self.record(self.now, target, kind);
        if let Some(from) = last.filter(|from| from.index() != target) {
            self.record(self.now, target, Kind::Place { thread: index, from: from.index() as u16 });
        }
        let boots = waker.is_none() && wait == Wait::Start;
        let remote = !boots && waker_id.is_some_and(|waker| waker.index() != target);
        if remote {
            self.wait_for_lock(waker, target);
        }
        self.sync(target);
        let hand_over = direct && !remote;
        let core = &mut self.cpus[target].core;
        let effect =
            if hand_over { core.hand_over(runnable, self.now) } else { core.enqueue(runnable, self.now) };
        if hand_over {
            self.record(self.now, target, Kind::Handoff { thread: index });
        }
        let effect = effect.expect("placement obeys the mask");
        self.react(target, effect, remote);
        Some(target)
    }

    /// Does what an effect asks for, on whichever CPU it is.
    pub(super) fn react(&mut self, cpu: usize, effect: Effect, remote: bool) {
        self.update_masks(cpu);
        match effect {
            Effect::Keep => {}
            Effect::Rearm { until_ns } => {
                self.cpus[cpu].until_ns = until_ns;
                self.arm(cpu);
            }
            Effect::Dispatch if self.executing == Some(cpu) => self.cpus[cpu].needs_dispatch = true,
            Effect::Dispatch if remote || self.executing.is_some() => self.send_ipi(cpu),
            Effect::Dispatch if self.cpus[cpu].stalled_until_ns > self.now => self.send_ipi(cpu),
            Effect::Dispatch => self.dispatch(cpu),
        }
    }

    fn send_ipi(&mut self, cpu: usize) {
        let id = self.cpus[cpu].id;
        if self.pending.contains(id) {
            return;
        }
        self.pending.insert(id);
        self.counters.ipis += 1;
        let from = self.executing.unwrap_or(cpu);
        self.record(self.now, from, Kind::Ipi { to: cpu as u16 });
        if self.options.plant == Some(Plant::ForgottenIpi) && self.counters.ipis.is_multiple_of(3) {
            self.pending.remove(id);
            return;
        }
        let mut delay = self.options.costs.ipi_ns;
        if self.fault_random.permille(self.options.faults.late_ipi) {
            self.counters.injected += 1;
            delay += self.fault_random.below(SLICE_NS);
            self.checker.allow_delay(SLICE_NS);
        }
        self.push(self.now + delay, Event::Ipi { cpu: cpu as u16 });
    }

    /// Charges the CPU that executes for another's lock: the wait, and its own hold.
    fn wait_for_lock(&mut self, waker: Option<usize>, target: usize) {
        let hold = self.options.costs.lock_hold_ns;
        if hold == 0 {
            return;
        }
        let wait = self.cpus[target].lock_free_at_ns.saturating_sub(self.now);
        self.cpus[target].lock_free_at_ns = self.now + wait + hold;
        if let Some(cpu) = waker.filter(|_| self.executing == waker) {
            self.overhead(cpu, wait + hold);
        }
    }

    // ---- CPUs ---------------------------------------------------------------------------------------------------

    /// Brings the running thread's progress up to now.
    pub(super) fn sync(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        if state.in_overhead && state.runs_from_ns <= self.now {
            let (from, doing) = (state.runs_from_ns, state.doing);
            state.core.interrupt_end(from);
            state.in_overhead = false;
            self.record(from, cpu, doing.map_or(Kind::Idle, |thread| Kind::Run { thread }));
        }
        let state = &mut self.cpus[cpu];
        let Some(index) = state.doing else { return };
        let progress = self.now.saturating_sub(state.runs_from_ns);
        state.runs_from_ns = state.runs_from_ns.max(self.now);
        let thread = &mut self.threads[index as usize];
        if thread.remaining_ns != FOREVER {
            thread.remaining_ns = thread.remaining_ns.saturating_sub(progress);
        }
    }

    /// The CPU spends time that is charged to no thread before its thread goes on.
    pub(super) fn overhead(&mut self, cpu: usize, cost_ns: u64) {
        if cost_ns == 0 {
            return;
        }
        let state = &mut self.cpus[cpu];
        state.runs_from_ns = state.runs_from_ns.max(self.now) + cost_ns;
        self.overhead_ns += cost_ns;
        if !state.in_overhead {
            state.core.interrupt_begin(self.now);
            state.in_overhead = true;
        }
        self.record(self.now, cpu, Kind::System);
    }

    /// Sets the CPU's next event: its timer, or its thread's next step.
    pub(super) fn arm(&mut self, cpu: usize) {
        let state = &self.cpus[cpu];
        // Overhead is charged to no thread, so a slice or a budget ends that much later.
        let shift = if state.in_overhead { state.runs_from_ns.saturating_sub(self.now) } else { 0 };
        let mut timer = state.until_ns.saturating_add(shift);
        let done = match state.doing.map(|index| self.threads[index as usize].remaining_ns) {
            Some(remaining) => state.runs_from_ns.max(self.now).saturating_add(remaining),
            None => FOREVER,
        };
        if timer != FOREVER {
            // Interrupts are off during overhead: the timer is served after it.
            let earliest = if state.in_overhead { state.runs_from_ns } else { self.now };
            timer = self.with_timer_faults(timer.max(earliest), cpu);
        }
        let next = timer.min(done);
        let state = &mut self.cpus[cpu];
        if next == state.armed_for_ns {
            return; // that event is scheduled already
        }
        state.version += 1;
        state.armed_for_ns = next;
        if next != FOREVER {
            let version = state.version;
            self.push(next, Event::Cpu { cpu: cpu as u16, version });
        }
    }

    fn with_timer_faults(&mut self, timer: u64, cpu: usize) -> u64 {
        let faults = self.options.faults;
        if self.fault_random.permille(faults.lost_tick) {
            self.counters.injected += 1;
            self.checker.allow_delay(SLICE_NS);
            self.record(self.now, cpu, Kind::LostTick);
            return timer + SLICE_NS;
        }
        if self.fault_random.permille(faults.late_timer) {
            self.counters.injected += 1;
            self.checker.allow_delay(SLICE_NS / 4);
            return timer + self.fault_random.below(SLICE_NS / 4);
        }
        timer
    }

    /// The CPU's own event: its thread finished a step, or its timer fired.
    pub(super) fn cpu_event(&mut self, cpu: usize) -> Result<(), SimError> {
        self.sync(cpu);
        if self.cpus[cpu].in_overhead {
            self.arm(cpu);
            return Ok(());
        }
        match self.cpus[cpu].doing {
            Some(index) if self.threads[index as usize].remaining_ns == 0 => self.step(cpu, index),
            _ => {
                self.look(cpu);
                Ok(())
            }
        }
    }

    /// The timer of a sleeping thread interrupts the CPU where it was set, if that takes time; the thread is woken at the interrupt's end, and is
    /// charged for it later (S-16). Returns that CPU. `None`: the interrupt takes no time, or is over.
    pub(super) fn timer_interrupt(&mut self, thread: u32) -> Option<usize> {
        let cost_ns = self.options.costs.timer_ns;
        let state = &mut self.threads[thread as usize];
        let sleeps = matches!(state.parked, Some((_, Wait::Sleep)));
        if cost_ns == 0 || !sleeps || std::mem::take(&mut state.is_due) {
            return None;
        }
        let cpu = state.last_ran?.index();
        (state.is_due, state.owed_ns) = (true, state.owed_ns + cost_ns);
        self.sync(cpu);
        self.overhead(cpu, cost_ns);
        self.cpus[cpu].core.note_service(cost_ns, 0, self.now);
        self.arm(cpu);
        Some(cpu)
    }

    /// Asks the core whether another thread should run.
    pub(super) fn look(&mut self, cpu: usize) {
        while let Some(missed) = self.cpus[cpu].core.next_missed(self.now) {
            self.counters.misses += 1;
            self.record(self.now, cpu, Kind::Fault { thread: missed.thread.0 as u32 });
        }
        match self.cpus[cpu].core.timer(self.now) {
            Effect::Dispatch => self.dispatch(cpu),
            Effect::Keep => self.arm(cpu),
            Effect::Rearm { until_ns } => {
                self.cpus[cpu].until_ns = until_ns;
                self.arm(cpu);
            }
        }
    }

    pub(super) fn dispatch(&mut self, cpu: usize) {
        let decision = self.cpus[cpu].core.dispatch(self.now);
        self.apply(cpu, decision, Kind::Preempt { thread: 0 });
    }

    /// Carries out a decision. `leaving` says why the previous thread leaves if it can still run.
    pub(super) fn apply(&mut self, cpu: usize, mut decision: Decision<Member>, leaving: Kind) {
        self.cpus[cpu].needs_dispatch = false;
        let previous = self.cpus[cpu].doing;
        if let Some(evicted) = decision.evicted.take() {
            self.evict(cpu, evicted);
        }
        let mut overhead = 0;
        if decision.run.is_none()
            && let Some(cost) = self.try_steal(cpu)
        {
            overhead += cost;
            decision = self.cpus[cpu].core.dispatch(self.now);
        }
        let next = self.cpus[cpu].core.current_payload().map(|member| member.index);
        self.cpus[cpu].until_ns = decision.until_ns;
        if next != previous {
            self.note_departure(cpu, previous, leaving);
            overhead += self.start(cpu, next);
        }
        if overhead > 0 {
            self.overhead(cpu, overhead);
        } else if next != previous {
            // A switch in progress is cut short, and no other one costs anything.
            if std::mem::take(&mut self.cpus[cpu].in_overhead) {
                self.cpus[cpu].core.interrupt_end(self.now);
            }
            let kind = next.map_or(Kind::Idle, |thread| Kind::Run { thread });
            self.record(self.now, cpu, kind);
        }
        if self.options.plant == Some(Plant::UnchargedSwitch) && self.cpus[cpu].in_overhead {
            self.cpus[cpu].in_overhead = false; // and the core is never told that the interrupt is over
        }
        for thread in self.refilled.take() {
            self.record(self.now, cpu, Kind::Refill { thread });
        }
        self.update_masks(cpu);
        self.arm(cpu);
    }

    fn evict(&mut self, cpu: usize, evicted: sched::Evicted<Member>) {
        let index = evicted.thread.payload().index;
        let thread = &mut self.threads[index as usize];
        match evicted.reason {
            EvictionReason::TimeoutFault => {
                self.counters.depletions += 1;
                self.record(self.now, cpu, Kind::Deplete { thread: index });
                self.record(self.now, cpu, Kind::Fault { thread: index });
                self.fault(index, evicted.thread);
            }
            EvictionReason::ContextLost => thread.parked = Some((evicted.thread, Wait::Context)),
        }
    }

    fn note_departure(&mut self, cpu: usize, previous: Option<u32>, leaving: Kind) {
        let Some(thread) = previous else { return };
        let state = &mut self.threads[thread as usize];
        if state.on_cpu == Some(cpu) {
            state.on_cpu = None;
        }
        if state.ended.is_some() {
            return; // its `Exit` was recorded
        }
        let throttled = state.place.get().is_some_and(|ticket| ticket.queue == QueueKind::Throttled);
        let kind = match state.parked {
            Some((_, Wait::Refill)) => Kind::Throttle { thread },
            Some(_) => Kind::Block { thread },
            None if throttled => {
                self.counters.depletions += 1;
                self.record(self.now, cpu, Kind::Deplete { thread });
                Kind::Throttle { thread }
            }
            None => {
                state.queued_at = Some((self.now, self.overhead_ns));
                if matches!(leaving, Kind::Yield { .. }) {
                    Kind::Yield { thread }
                } else {
                    Kind::Preempt { thread }
                }
            }
        };
        self.record(self.now, cpu, kind);
    }

    /// The CPU switches to another thread; returns what that costs.
    fn start(&mut self, cpu: usize, next: Option<u32>) -> u64 {
        self.counters.switches += 1;
        let id = self.cpus[cpu].id;
        self.cpus[cpu].doing = next;
        self.cpus[cpu].runs_from_ns = self.now;
        let Some(index) = next else { return 0 };
        if let Some((since, overhead)) = self.threads[index as usize].queued_at.take() {
            let spent = self.overhead_ns - overhead;
            let spec = self.threads[index as usize].spec;
            if self.threads[index as usize].holds.is_none() {
                self.checker.waited(&self.scenario.threads[spec], self.now - since, spent, index, self.now);
            }
            self.counters.longest_wait_ns = self.counters.longest_wait_ns.max(self.now - since);
        }
        self.order_hash = [self.now, cpu as u64, u64::from(index)]
            .into_iter()
            .fold(self.order_hash, |hash, part| (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3));
        let record = self.options.record;
        if record && self.order[cpu].len() < ORDER_KEPT {
            self.order[cpu].push(index);
        }
        let costs = self.options.costs;
        let thread = &mut self.threads[index as usize];
        let came_from = thread.last_ran.replace(id);
        thread.on_cpu = Some(cpu);
        let mut cost = costs.switch_ns;
        if self.cpus[cpu].last_space.replace(thread.spec).is_some_and(|space| space != thread.spec) {
            cost += costs.address_space_ns;
        }
        if let Some(from) = came_from.filter(|from| *from != id) {
            cost += costs.cold_ns(&self.topology, from, id);
        }
        cost
    }

    pub(super) fn update_masks(&mut self, cpu: usize) {
        let state = &self.cpus[cpu];
        self.loads[cpu] = state.core.load();
        let set = |mask: &mut CpuMask, member: bool| {
            if member { mask.insert(state.id) } else { mask.remove(state.id) }
        };
        set(&mut self.stealable, state.core.waiting() > 0);
        set(&mut self.idle, state.core.current().is_none() && state.core.waiting() == 0);
    }

    // ---- between CPUs -------------------------------------------------------------------------------------------

    fn two(&mut self, a: usize, b: usize) -> (&mut super::SimCpu, &mut super::SimCpu) {
        let [a, b] = self.cpus.get_disjoint_mut([a, b]).expect("two different CPUs");
        (a, b)
    }

    /// An idle CPU looks for work, nearest first; returns what it costs if it found a thread.
    fn try_steal(&mut self, cpu: usize) -> Option<u64> {
        if self.stealable.is_empty() {
            return None;
        }
        let id = self.cpus[cpu].id;
        for level in Level::ALL {
            let near = self.stealable.and(&self.topology.group(id, level));
            let summaries = near.iter().map(|other| self.cpus[other.index()].core.summary());
            let Some(victim) = most_overdue(id, summaries) else { continue };
            let victim = victim.index();
            self.sync(victim);
            let now = self.now;
            let (thief, other) = self.two(cpu, victim);
            if let MoveOutcome::Moved { thread, .. } = thief.core.steal_from(&mut other.core, now) {
                self.counters.steals += 1;
                self.record(now, cpu, Kind::Steal { thread: thread.0 as u32, from: victim as u16 });
                self.update_masks(victim);
                let hold = self.options.costs.lock_hold_ns;
                let wait = self.cpus[victim].lock_free_at_ns.saturating_sub(now);
                self.cpus[victim].lock_free_at_ns = now + wait + hold;
                return Some(self.options.costs.steal_ns + wait);
            }
        }
        None
    }

    /// The periodic step: compare clocks with a bounded number of others, move at most one thread.
    pub(super) fn balance(&mut self, cpu: usize) {
        self.sync(cpu);
        let me = self.cpus[cpu].core.refreshed_summary(self.now);
        if me.weight == 0 || self.cpus[cpu].stalled_until_ns > self.now {
            return;
        }
        let count = self.cpus.len();
        let scan = BALANCE_SCAN_CPUS.min(count - 1);
        // With more CPUs than one step looks at, each step looks at different ones.
        let step = if count - 1 > scan { (self.now / sched::BALANCE_PERIOD_NS) as usize * scan } else { 0 };
        let others = (0..scan).map(|at| (cpu + 1 + (step + at) % (count - 1)) % count);
        let plan = balance_plan(&me, others.map(|other| self.cpus[other].core.summary()));
        if let Some(limit) = plan.forgive_below {
            self.counters.forgiven_ns += self.cpus[cpu].core.forgive_below(limit) as u64;
        }
        let Some(from) = plan.pull_from.map(CpuId::index) else { return };
        if self.fault_random.permille(self.options.faults.busy_lock) {
            self.counters.injected += 1;
            return;
        }
        self.sync(from);
        let now = self.now;
        let (fast, slow) = self.two(cpu, from);
        if let MoveOutcome::Moved { thread, effect } = fast.core.balance_from(&mut slow.core, now) {
            self.counters.balances += 1;
            self.record(now, cpu, Kind::Balance { thread: thread.0 as u32, from: from as u16 });
            self.update_masks(from);
            self.overhead(cpu, self.options.costs.steal_ns);
            self.react(cpu, effect, false);
        }
    }
}

pub(super) fn class_of(class: scenario::Class) -> LatencyClass {
    match class {
        scenario::Class::Interactive => LatencyClass::Interactive,
        scenario::Class::Normal => LatencyClass::Normal,
        scenario::Class::Batch => LatencyClass::Batch,
        scenario::Class::IpcServer => LatencyClass::IpcServer,
    }
}
