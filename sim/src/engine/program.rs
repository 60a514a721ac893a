//! Running a thread's program: from one step that takes time to the next.

use sched::FOREVER;
use trace::Kind;

use super::loans::Lent;
use super::{Engine, Event, SimError, Wait};
use crate::scenario::Op;

/// What a step means for the CPU that made it.
enum Next {
    /// Go on with the next step at once.
    Continue,
    /// The thread computes for a while.
    Compute,
    /// The thread has left the CPU.
    Left,
    /// The thread yielded, and another one was started.
    Yielded,
}

impl Engine<'_> {
    /// The running thread has finished what it was computing: make its next steps.
    pub(super) fn step(&mut self, cpu: usize, index: u32) -> Result<(), SimError> {
        self.executing = Some(cpu);
        let result = self.steps(cpu, index);
        self.executing = None;
        match result? {
            Next::Left => self.dispatch(cpu),
            Next::Yielded => {}
            _ if self.cpus[cpu].needs_dispatch => {
                self.dispatch(cpu);
            }
            _ => self.look(cpu),
        }
        Ok(())
    }

    fn steps(&mut self, cpu: usize, index: u32) -> Result<Next, SimError> {
        loop {
            self.instant_steps += 1;
            if self.instant_steps > super::INSTANT_STEPS_MAX {
                return Err(SimError::Livelock { time_ns: self.now, steps: self.instant_steps });
            }
            match self.one_step(cpu, index)? {
                Next::Continue => {}
                next => return Ok(next),
            }
        }
    }

    fn one_step(&mut self, cpu: usize, index: u32) -> Result<Next, SimError> {
        let scenario = self.scenario;
        let thread = &mut self.threads[index as usize];
        let Some(&op) = scenario.threads[thread.spec].program.get(thread.pc) else {
            self.settle_answer(cpu, index);
            self.end(cpu, index);
            return Ok(Next::Left);
        };
        thread.pc += 1;
        if !matches!(op, Op::Receive | Op::LoopStart { .. } | Op::LoopEnd { .. }) {
            self.settle_answer(cpu, index);
        }
        let thread = &mut self.threads[index as usize];
        match op {
            Op::Run(span) => {
                thread.remaining_ns = self.random.between(span.min_ns, span.max_ns);
                Ok(Next::Compute)
            }
            Op::RunForever => {
                thread.remaining_ns = FOREVER;
                Ok(Next::Compute)
            }
            Op::Sleep(span) => {
                let until = self.now + self.random.between(span.min_ns, span.max_ns);
                let version = self.park(cpu, index, Wait::Sleep);
                self.push(until, Event::Wake { thread: index, version });
                Ok(Next::Left)
            }
            Op::Call(server) => Ok(self.call(cpu, index, server)),
            Op::Receive => Ok(self.receive(cpu, index)),
            Op::Reply | Op::Release => {
                if let Some(caller) = self.threads[index as usize].serving.take() {
                    self.answer(cpu, index, caller, op == Op::Release);
                }
                Ok(Next::Continue)
            }
            Op::Fork { thread: child, count } => {
                for _ in 0..count {
                    let instance = self.forked[child];
                    self.forked[child] += 1;
                    let created = self.create(child, instance, Some(index), false)?;
                    self.threads[index as usize].children += 1;
                    self.wake(created, Some(cpu), false);
                }
                Ok(Next::Continue)
            }
            Op::Join if thread.children == 0 => Ok(Next::Continue),
            Op::Join => {
                self.park(cpu, index, Wait::Children);
                Ok(Next::Left)
            }
            Op::Yield => Ok(self.give_way(cpu, index)),
            Op::Barrier(barrier) => Ok(self.arrive(cpu, index, barrier)),
            Op::Exit => {
                self.end(cpu, index);
                Ok(Next::Left)
            }
            Op::LoopStart { times, end } => {
                if let Some(times) = times {
                    thread.loops.push((end, times));
                }
                Ok(Next::Continue)
            }
            Op::LoopEnd { start } => {
                let end = thread.pc - 1;
                match thread.loops.last_mut() {
                    Some((of, left)) if *of == end => {
                        *left -= 1;
                        if *left == 0 {
                            thread.loops.pop();
                        } else {
                            thread.pc = start + 1;
                        }
                    }
                    _ => thread.pc = start + 1, // for ever
                }
                Ok(Next::Continue)
            }
        }
    }

    /// The running thread blocks; returns the version that a wake-up must name.
    pub(super) fn park(&mut self, cpu: usize, index: u32, wait: Wait) -> u32 {
        match std::mem::take(&mut self.threads[index as usize].owed_ns) {
            0 => {}
            owed_ns => self.cpus[cpu].core.pay(owed_ns, self.now),
        }
        let blocked = self.cpus[cpu].core.block(self.now).expect("the thread that makes steps is running");
        let thread = &mut self.threads[index as usize];
        thread.parked = Some((blocked, wait));
        thread.wake_version
    }

    fn call(&mut self, cpu: usize, index: u32, server: usize) -> Next {
        if self.alive[server] == 0 {
            return Next::Continue; // no server is left to answer: the call fails at once
        }
        if self.loan_is_refused(index, server) {
            self.counters.loans_refused += 1;
            return Next::Continue;
        }
        match self.endpoints[server].servers.pop_front() {
            Some(receiver) if self.lends_to(index, receiver) => {
                self.threads[receiver as usize].serving = Some(index);
                match self.lend(cpu, index, receiver) {
                    Lent::Here => return Next::Yielded,
                    Lent::Away => {}
                    Lent::Nowhere => {
                        self.threads[receiver as usize].serving = None;
                        self.endpoints[server].servers.push_front(receiver);
                        self.counters.loans_refused += 1;
                        return Next::Continue;
                    }
                }
            }
            Some(receiver) => {
                self.park(cpu, index, Wait::Reply);
                self.threads[receiver as usize].serving = Some(index);
                self.wake(receiver, Some(cpu), true);
            }
            None => {
                self.park(cpu, index, Wait::Reply);
                self.endpoints[server].callers.push_back(index);
            }
        }
        Next::Left
    }

    /// The caller goes on at once when the server waits for the next message. A loan goes back then.
    fn answer(&mut self, cpu: usize, server: u32, caller: u32, lets_go: bool) {
        let faulted = matches!(self.threads[caller as usize].parked, Some((_, Wait::Handler)));
        if faulted && lets_go {
            self.let_go(caller);
        }
        if !faulted && self.has_loan_of(server, caller) {
            self.threads[server as usize].answered = Some(caller);
        } else {
            // A thread that faulted did not call: it gets no direct handoff.
            self.wake(caller, Some(cpu), !faulted);
        }
    }

    /// The server that has answered does not wait for the next call: the loan is returned on its own.
    fn settle_answer(&mut self, cpu: usize, server: u32) {
        if let Some(caller) = self.threads[server as usize].answered.take() {
            if let Some((id, at)) = self.loan_to(server) {
                self.return_loan(id, at, None);
            }
            self.wake(caller, Some(cpu), true);
        }
    }

    fn receive(&mut self, cpu: usize, index: u32) -> Next {
        // A server that receives again without a reply releases its caller.
        if let Some(caller) = self.threads[index as usize].serving.take() {
            let keeps = self.options.plant == Some(super::Plant::KeptLoan);
            if let Some((id, at)) = self.loan_to(index).filter(|_| !keeps) {
                self.return_loan(id, at, None);
            }
            self.wake(caller, Some(cpu), false);
        }
        let spec = self.threads[index as usize].spec;
        match self.endpoints[spec].callers.pop_front() {
            Some(caller) => {
                self.settle_answer(cpu, index);
                self.threads[index as usize].serving = Some(caller);
                if self.borrow(cpu, index, caller) { Next::Continue } else { Next::Left }
            }
            None => {
                if let Some(caller) = self.threads[index as usize].answered.take() {
                    if self.answer_and_wait(cpu, index, caller) {
                        self.endpoints[spec].servers.push_back(index);
                        return Next::Yielded;
                    }
                    self.threads[index as usize].answered = Some(caller);
                    self.settle_answer(cpu, index);
                }
                self.park(cpu, index, Wait::Message);
                self.endpoints[spec].servers.push_back(index);
                Next::Left
            }
        }
    }

    fn arrive(&mut self, cpu: usize, index: u32, barrier: usize) -> Next {
        let parties = self.scenario.barriers[barrier].parties as usize;
        if self.barriers[barrier].len() + 1 < parties {
            self.park(cpu, index, Wait::Barrier(barrier));
            self.barriers[barrier].push(index);
            return Next::Left;
        }
        for waiting in std::mem::take(&mut self.barriers[barrier]) {
            self.wake(waiting, Some(cpu), false);
        }
        Next::Continue
    }

    fn give_way(&mut self, cpu: usize, index: u32) -> Next {
        let decision = self.cpus[cpu].core.yield_now(self.now);
        let stays = decision.run == Some(sched::ThreadId(u64::from(index)));
        self.apply(cpu, decision, Kind::Yield { thread: index });
        // `apply` armed the timer for the thread that runs now; the one that yielded goes on when it is chosen again,
        // with nothing left to run.
        if stays { Next::Continue } else { Next::Yielded }
    }

    /// The running thread ends.
    fn end(&mut self, cpu: usize, index: u32) {
        let blocked = self.cpus[cpu].core.block(self.now).expect("the thread that makes steps is running");
        self.record(self.now, cpu, Kind::Exit { thread: index });
        self.bury(index, blocked);
    }

    /// Everything that the end of a thread means for others.
    pub(super) fn bury(&mut self, index: u32, blocked: sched::Blocked<super::Member>) {
        let (_, snapshot, context) = blocked.dismantle();
        let thread = &mut self.threads[index as usize];
        thread.ended = Some((self.now, snapshot));
        thread.wake_version += 1;
        thread.on_cpu = None;
        self.live -= 1;
        let (parent, caller, spec) = (thread.parent, thread.serving.take(), thread.spec);
        if let Some((id, at)) = self.loan_to(index) {
            self.return_loan(id, at, context);
        } else if let Some(id) = self.owned_by(index) {
            self.end_context(id, context);
        }
        if let Some(caller) = caller {
            self.wake(caller, self.executing, false);
        }
        self.endpoints[spec].servers.retain(|server| *server != index);
        let scenario = self.scenario;
        self.checker.thread_ended(&scenario.threads[spec]);
        self.alive[spec] -= 1;
        if self.alive[spec] == 0 {
            // The last server is gone: the callers that wait for it go on.
            for caller in std::mem::take(&mut self.endpoints[spec].callers) {
                self.wake(caller, self.executing, false);
            }
        }
        if let Some(parent) = parent {
            let state = &mut self.threads[parent as usize];
            state.children -= 1;
            if state.children == 0 && matches!(state.parked, Some((_, Wait::Children))) {
                self.wake(parent, self.executing, false);
            }
        }
    }

    pub(super) fn retire(&mut self, context: Box<sched::Context>) {
        if self.options.plant == Some(super::Plant::LeakedReservation) {
            return;
        }
        let home = context.home().index();
        self.cpus[home]
            .core
            .retire(context, self.now)
            .expect("a context goes back to the CPU that admitted it");
        if self.options.plant == Some(super::Plant::ForgottenUse) {
            self.cpus[home].core.forget_leaving();
        }
    }
}
