//! Ends: of loans by third parties, of generations, of endpoints and of threads.

use super::state::{Actor, At, Call, Cid, Config, Frame, Op, State, Tid};
use super::{Flaw, mark};

impl State {
    /// Ends the loan of `lender` and those above it; the box goes back to it, wherever it was.
    pub(super) fn end_loan(&mut self, config: &Config, actor: Actor, lender: Tid) {
        let Some((context, at)) = self.loan_of(lender) else { return };
        if config.flaw == Some(Flaw::LockHeldWhileWaiting) && self.blocker_of_loan(config, lender).is_some() {
            self.record_mut(context).locked = Some(actor);
            return self.push(actor, Op::EndLoan(lender));
        }
        let only_one = config.flaw == Some(Flaw::NestedIgnored);
        let record = self.record_mut(context);
        record.locked = None;
        let end = if only_one { at + 1 } else { record.stack.len() };
        let ended: Vec<Frame> = record.stack.drain(at..end).collect();
        record.promised = None;
        let kept = record.kept.take();
        for frame in &ended {
            self.thread_mut(frame.borrower).claim.take_if(|claim| *claim == context);
        }
        for frame in &ended[1..] {
            self.wake_lender(config, frame.lender);
        }
        let last = ended[ended.len() - 1].borrower;
        if actor != lender && actor != ended[0].borrower {
            self.marks |= mark::ENDED;
        }
        let has_it = self.thread(last).time.as_ref().is_some_and(|time| time.context == context);
        match kept.or_else(|| if has_it { self.take_time(last) } else { None }) {
            Some(time) => self.give(config, lender, time),
            None => self.wake_lender(config, lender),
        }
    }

    /// A revocation, a logout or the owner's end has the box: the generation moves on, and nobody has or had it on loan.
    pub(super) fn stale(&mut self, config: &Config, context: Cid) {
        let record = self.record_mut(context);
        if record.generation > 0 {
            return;
        }
        record.generation += 1;
        record.promised = None;
        let owner = record.owner.take();
        let frames = std::mem::take(&mut record.stack);
        if let Some(tid) = self.holder_of_box(context)
            && config.flaw != Some(Flaw::StaleAccepted)
        {
            let time = self.take_time(tid);
            self.record_mut(context).kept = time;
            self.marks |= mark::CHASED;
        }
        for tid in owner.into_iter().chain(frames.iter().map(|frame| frame.borrower)) {
            self.thread_mut(tid).claim.take_if(|claim| *claim == context);
        }
        for frame in frames {
            self.wake_lender(config, frame.lender);
        }
    }

    /// Where the box of this context is, if a thread has it.
    pub(super) fn holder_of_box(&self, context: Cid) -> Option<Tid> {
        self.tids().find(|tid| self.thread(*tid).time.as_ref().is_some_and(|time| time.context == context))
    }

    // ---- endpoints and threads ------------------------------------------------------------------------------------

    pub(super) fn close(&mut self, actor: Actor, server: Tid) {
        self.push(actor, Op::Fail(server));
        let thread = self.thread_mut(server);
        thread.closed = true;
        if std::mem::take(&mut thread.receives) {
            self.complete(actor, server);
        }
    }

    /// The next call that `server` does not answer any more fails; its loan ends first.
    pub(super) fn fail_next(&mut self, config: &Config, actor: Actor, server: Tid) {
        let is_here = |call: Call| matches!(call, Call::Queued(s) | Call::Flies(s) if s == server);
        let Some(caller) = self.tids().find(|tid| is_here(self.thread(*tid).call)) else { return };
        self.thread_mut(caller).call = Call::Taken(actor);
        self.push(actor, Op::Fail(server));
        self.push(actor, Op::Post(caller));
        if config.flaw != Some(Flaw::ReturnSkippedOnException) {
            self.push(actor, Op::EndLoan(caller));
        }
    }

    pub(super) fn withdraw(&mut self, config: &Config, tid: Tid) {
        let thread = self.thread_mut(tid);
        (thread.receives, thread.closed) = (false, true);
        thread.call = Call::None;
        if self.loan_of(tid).is_some() {
            self.push(tid, Op::EndLoan(tid));
            if config.flaw != Some(Flaw::OwnWayOpen) {
                self.must_settle(tid);
            }
        }
    }

    /// The last step. It has no box: what it had on loan went back, and what it owned is stale.
    pub(super) fn die(&mut self, tid: Tid) {
        let thread = self.thread_mut(tid);
        thread.at = At::Dead;
        // The entity is dropped, and whatever is in it.
        thread.time = None;
        thread.todo.clear();
        thread.claim = None;
        (thread.ready, thread.need, thread.woken) = (false, false, false);
        (thread.summoned, thread.lent) = (false, false);
    }
}
