//! What each step does: user mode, waiting, waking, and the way back to user mode.

use super::state::{Action, Actor, At, Box, Call, Cid, Config, Errand, Op, State, Tid, Way};
use super::{Flaw, fault, mark};

impl State {
    /// Lets it happen, and looks what came of it.
    pub(super) fn act(&mut self, config: &Config, action: Action) {
        self.marks = 0;
        match action {
            Action::Step(actor) => self.step(config, actor),
            Action::Begin(at) => self.begin(config, at),
            Action::Work(tid) => self.work(tid),
            Action::Call(tid, server) => {
                self.thread_mut(tid).calls_left -= 1;
                self.submit(config, tid, Op::Wait, &[Op::Meet(server)]);
            }
            Action::Return(tid, caller, false) => self.submit(config, tid, Op::Leave, &[Op::Answer(caller)]),
            Action::Return(tid, caller, true) if self.thread(tid).receives => {
                self.submit(config, tid, Op::Wait, &[Op::Answer(caller)]);
            }
            Action::Return(tid, caller, true) => {
                self.submit(config, tid, Op::Wait, &[Op::Receive, Op::LeaveLoan(tid), Op::Answer(caller)]);
            }
            Action::Recv(tid) => self.submit(config, tid, Op::Wait, &[Op::Receive, Op::LeaveLoan(tid)]),
            Action::WaitMore(tid) => self.enter(tid, Op::Wait),
            Action::Interrupt(tid) => self.enter(tid, Op::Leave),
            Action::Cancel(tid) => self.push(tid, Op::Cancel),
            Action::Revoke(tid, context) => self.push(tid, Op::Revoke(context)),
        }
        self.broken |= self.check(config);
    }

    /// What is wrong here.
    pub(super) fn faults(&self) -> u16 {
        self.broken
    }

    fn enter(&mut self, tid: Tid, op: Op) {
        self.thread_mut(tid).at = At::Kernel;
        self.push(tid, op);
    }

    /// Does these, last first, and then `end`, with room for others in between; or does them in the batch that is under way.
    fn submit(&mut self, config: &Config, tid: Tid, end: Op, ops: &[Op]) {
        let calls = ops.iter().any(|op| matches!(op, Op::Meet(_)));
        if self.thread(tid).at == At::User {
            self.enter(tid, end);
            if config.mixed || calls && (config.cancels || !config.batch.is_empty()) {
                self.push(tid, Op::Batch);
            }
        }
        self.thread_mut(tid).todo.extend(ops);
    }

    fn begin(&mut self, config: &Config, at: u8) {
        let actor = self.threads.len() as Actor + at;
        let early = config.flaw == Some(Flaw::RequestsBindTooEarly);
        match config.errands[usize::from(at)] {
            Errand::Revoke(context) => self.push(actor, Op::Revoke(context)),
            Errand::Kill(tid) => self.push(actor, Op::Doom(tid)),
            Errand::Close(tid) => self.push(actor, Op::Close(tid)),
            Errand::Chance(tid) => self.push(actor, Op::Chance(tid)),
            Errand::Bind(tid, context) => {
                self.push(actor, Op::Bind(tid, context));
                if early {
                    self.push(actor, Op::RequestBind(tid));
                }
            }
        }
    }

    fn work(&mut self, tid: Tid) {
        let thread = self.thread_mut(tid);
        thread.uncharged = 1;
        if let Some(context) = thread.time.as_ref().map(|time| time.context) {
            self.record_mut(context).worked += 1;
        }
    }

    fn step(&mut self, config: &Config, actor: Actor) {
        let Some(op) = self.pop(actor) else { return };
        match op {
            Op::Meet(server) => self.meet(config, actor, server),
            Op::Deliver(server) => self.deliver(actor, server),
            Op::WakeServer(server) => self.wake_server(config, actor, server),
            Op::Batch => {}
            Op::Answer(caller) => self.answer(actor, caller),
            Op::GiveBack(caller) => self.give_back(actor, caller),
            Op::EndLoan(lender) => self.end_loan(config, actor, lender),
            Op::Post(caller) => self.post(config, actor, caller),
            Op::Wake(tid) => self.wake(tid),
            Op::WakeCaller(caller) => self.wake_caller(actor, caller),
            Op::Settle => self.settle(actor),
            Op::LeaveLoan(tid) => self.leave_loan(config, actor, tid),
            Op::Receive => self.receive(config, actor),
            Op::Wait => self.wait(actor),
            Op::Block => self.block(config, actor),
            Op::Leave => {
                self.push(actor, Op::LookLent);
                self.push(actor, Op::Attend);
                self.must_settle(actor);
            }
            Op::Attend => self.attend(config, actor),
            Op::Fetch => self.fetch(actor),
            Op::LookLent => self.look_lent(config, actor),
            Op::BlockLent => {
                if std::mem::take(&mut self.thread_mut(actor).woken) {
                    self.push(actor, Op::Leave);
                } else {
                    self.thread_mut(actor).at = At::Parked;
                    self.push(actor, Op::Leave);
                }
            }
            Op::Withdraw => self.withdraw(config, actor),
            Op::Fail(server) => self.fail_next(config, actor, server),
            Op::Disown => {
                if let Some(context) = self.cids().find(|c| *self.record(*c).book.owner() == actor) {
                    self.push(actor, Op::Disown);
                    self.push(actor, Op::Revoke(context));
                }
            }
            Op::Die => self.die(actor),
            Op::Stale(context) => self.stale(config, context),
            Op::Revoke(context) => {
                self.push(actor, Op::Stale(context));
                if config.flaw != Some(Flaw::OwnWayOpen) {
                    self.must_settle(actor);
                }
            }
            Op::Doom(tid) => {
                self.thread_mut(tid).ending = true;
                self.push(actor, Op::Wake(tid));
                self.push(actor, Op::LayDown(tid));
                self.push(actor, Op::LeaveLoan(tid));
            }
            Op::LayDown(tid) => self.lay_down(tid),
            Op::Close(server) => self.close(actor, server),
            Op::Bind(tid, context) => self.bind(config, actor, tid, context),
            Op::Give(tid, context) => self.give_bound(config, tid, context),
            Op::RequestBind(tid) => self.thread_mut(tid).bind_requested = true,
            Op::Chance(tid) => self.complete(actor, tid),
            Op::Cancel => self.cancel(config, actor),
        }
    }

    // ---- boxes ----------------------------------------------------------------------------------------------------

    /// The box leaves the thread's entity, and the thread is charged up to now.
    pub(super) fn take_time(&mut self, tid: Tid) -> Option<Box> {
        let thread = self.thread_mut(tid);
        if let Some(time) = &mut thread.time {
            time.left -= std::mem::take(&mut thread.uncharged);
        }
        thread.time.take()
    }

    /// The box enters the thread's entity.
    pub(super) fn place(&mut self, tid: Tid, time: Box) {
        if self.thread(tid).time.is_some() || self.thread(tid).at == At::Dead {
            self.broken |= fault::PLACE;
        }
        self.thread_mut(tid).time = Some(time);
    }

    /// Under the record's lock: the box, which is promised to a thread, goes to it if it waits, or lies in the record until it is fetched.
    pub(super) fn give(&mut self, config: &Config, tid: Tid, context: Cid) {
        if self.thread(tid).at != At::Parked {
            self.thread_mut(tid).bind_requested = true;
        } else if let Ok(time) = self.record_mut(context).book.fetch(tid) {
            self.place(tid, time);
        }
        self.wake_lender(config, tid);
    }

    /// A loan has ended: whoever waits for that, and for nothing else, goes on.
    pub(super) fn wake_lender(&mut self, config: &Config, tid: Tid) {
        let thread = self.thread(tid);
        let waits_for_more = thread.at == At::Parked && thread.todo.last() != Some(&Op::Leave);
        if config.flaw != Some(Flaw::LenderNotWoken) && !waits_for_more {
            self.wake(tid);
        }
    }

    // ---- waiting and waking ---------------------------------------------------------------------------------------

    pub(super) fn wake(&mut self, tid: Tid) {
        let thread = self.thread_mut(tid);
        match thread.at {
            At::Dead => {}
            At::Parked => thread.at = At::Kernel,
            At::User | At::Kernel | At::Handed(_) => thread.woken = true,
        }
    }

    /// To the handoff place of `by`'s CPU, if it waits and the place is free. Says whether it waited.
    pub(super) fn hand_over(&mut self, by: Tid, tid: Tid) -> bool {
        if self.thread(tid).at != At::Parked {
            self.wake(tid);
            return false;
        }
        if self.thread(by).handoff.is_some() {
            return false;
        }
        self.thread_mut(tid).at = At::Handed(by);
        self.thread_mut(by).handoff = Some(tid);
        true
    }

    /// A completion for a thread: true if it waited for one.
    pub(super) fn completed(&mut self, tid: Tid) -> bool {
        let thread = self.thread_mut(tid);
        if thread.at == At::Dead {
            return false;
        }
        thread.ready = true;
        std::mem::take(&mut thread.need)
    }

    /// The same, and wakes it.
    pub(super) fn complete(&mut self, actor: Actor, tid: Tid) {
        if self.completed(tid) {
            self.push(actor, Op::Wake(tid));
        }
    }

    fn wait(&mut self, tid: Tid) {
        let thread = self.thread_mut(tid);
        if thread.ready || thread.ending {
            (thread.ready, thread.need) = (false, false);
            self.push(tid, Op::Leave);
        } else {
            thread.need = true;
            self.push(tid, Op::Block);
        }
    }

    /// `Cpu::block_lending`: the thread waits, who was handed over runs, and the box goes along.
    fn block(&mut self, config: &Config, tid: Tid) {
        self.push(tid, Op::Wait);
        let thread = self.thread_mut(tid);
        if std::mem::take(&mut thread.woken) {
            return;
        }
        thread.at = At::Parked;
        let Some(next) = thread.handoff.take() else { return };
        let way = thread.way.take();
        self.thread_mut(next).at = At::Kernel;
        let has_it =
            |(context, _): &(Cid, Way)| self.thread(tid).time.as_ref().is_some_and(|t| t.context == *context);
        let Some((context, way)) = way.filter(has_it) else { return };
        let time = if config.flaw == Some(Flaw::ChargedAfterMove) {
            let time = self.thread_mut(tid).time.take();
            self.thread_mut(tid).uncharged = 0;
            time
        } else {
            self.take_time(tid)
        };
        let Some(time) = time else { return };
        let nested = self.record(context).book.loans().len() > 1;
        self.place(next, time);
        if way == Way::Back {
            self.marks |= mark::BACK;
        } else {
            self.marks |= mark::LENT | if nested { mark::NESTED } else { 0 };
        }
    }

    // ---- back to user mode ----------------------------------------------------------------------------------------

    /// Before a thread waits for a box or leaves: closes its own way first, if it has one.
    pub(super) fn must_settle(&mut self, actor: Actor) {
        let thread = self.threads.get(usize::from(actor));
        if thread.is_some_and(|thread| thread.way.is_some() || thread.handoff.is_some()) {
            self.push(actor, Op::Settle);
        }
    }

    /// The thread does not block after all: who stands in the handoff place goes to a queue, with the box if it is to have it.
    fn settle(&mut self, tid: Tid) {
        let thread = self.thread_mut(tid);
        let (way, next) = (thread.way.take(), thread.handoff.take());
        let Some(next) = next else { return };
        if way.is_some()
            && let Some(time) = self.take_time(tid)
        {
            self.place(next, time);
        }
        self.thread_mut(next).at = At::Kernel;
    }

    fn attend(&mut self, config: &Config, tid: Tid) {
        let thread = self.thread_mut(tid);
        if thread.ending && config.flaw == Some(Flaw::EndsByCalls) {
            thread.todo = vec![Op::Die, Op::Disown, Op::Fail(tid), Op::Withdraw];
        } else if thread.ending {
            thread.todo = vec![Op::Die, Op::Disown, Op::LeaveLoan(tid), Op::Fail(tid), Op::Withdraw];
        } else if std::mem::take(&mut thread.bind_requested) {
            self.push(tid, Op::Fetch);
        }
    }

    fn fetch(&mut self, tid: Tid) {
        for context in self.cids() {
            if let Ok(time) = self.record_mut(context).book.fetch(tid) {
                self.place(tid, time);
                self.marks |= mark::FETCHED;
            }
        }
    }

    fn look_lent(&mut self, config: &Config, tid: Tid) {
        if self.thread(tid).lent && config.flaw != Some(Flaw::LenderRuns) {
            return self.push(tid, Op::BlockLent);
        }
        self.thread_mut(tid).at = At::User;
    }

    fn cancel(&mut self, config: &Config, tid: Tid) {
        if matches!(self.thread(tid).call, Call::Flies(_)) {
            self.thread_mut(tid).call = Call::None;
            self.completed(tid);
            self.push(tid, Op::EndLoan(tid));
            if config.flaw != Some(Flaw::OwnWayOpen) {
                self.must_settle(tid);
            }
        }
    }
}
