//! Ends: of loans by third parties, of generations, of endpoints and of threads.

use kcore::loans::{Loan, Name};

use super::state::{Actor, At, Box, Call, Cid, Config, Op, State, Tid};
use super::{BookFlaw, Flaw, mark};

impl State {
    /// Ends the loan of `lender` and those above it; the box goes back to it, wherever it was.
    pub(super) fn end_loan(&mut self, config: &Config, actor: Actor, lender: Tid) {
        let Some((context, at)) = self.loan_of(lender) else { return };
        if config.flaw == Some(Flaw::LockHeldWhileWaiting) && self.blocker_of_loan(config, lender).is_some() {
            self.record_mut(context).locked = Some(actor);
            return self.push(actor, Op::EndLoan(lender));
        }
        self.record_mut(context).locked = None;
        let time = self.seize(context);
        let first = self.record(context).book.loans()[at];
        self.end_from(config, context, at);
        if actor != lender && actor != first.borrower {
            self.marks |= mark::ENDED;
        }
        let Some(time) = time else { return self.wake_lender(config, lender) };
        let book = &mut self.record_mut(context).book;
        book.put(time);
        let holder = *book.holder();
        self.give(config, holder, context);
    }

    /// The box, in hand, from wherever it is. Nothing, with the bug of not waiting for it.
    fn seize(&mut self, context: Cid) -> Option<Box> {
        if let Some(time) = self.record_mut(context).book.seize() {
            return Some(time);
        }
        let holder = *self.record(context).book.holder();
        let has_it = self.threads.get(usize::from(holder)).is_some_and(|thread| {
            thread.time.as_ref().is_some_and(|time| time.context == context) && thread.way.is_none()
        });
        let time = if has_it { self.take_time(holder) } else { None };
        if time.is_some() {
            self.record_mut(context).book.seized();
        }
        time
    }

    /// What the thread, which is to end, owns and has: it must not have to wait for budget.
    pub(super) fn lay_down(&mut self, tid: Tid) {
        let Some(context) = self.own(tid) else { return };
        let Some(time) = self.seize(context) else { return };
        let book = &mut self.record_mut(context).book;
        book.put(time);
        let Ok(()) = book.lay_down() else { unreachable!("it is in the record, and not lent") };
    }

    /// Ends the loans from `at` on: nobody borrows, and nobody waits for a loan any more.
    fn end_from(&mut self, config: &Config, context: Cid, at: usize) {
        let ended: Vec<Loan<Tid>> = match self.record_mut(context).book.end_loans(at) {
            Ok(ended) => ended.to_vec(),
            Err(refused) => unreachable!("a loan ends with the box in hand: {refused:?}"),
        };
        for loan in ended.iter().rev() {
            self.thread_mut(loan.borrower).claim.take_if(|claim| *claim == context);
            self.thread_mut(loan.lender).lent = false;
            self.wake_lender(config, loan.lender);
        }
    }

    /// A revocation, a logout or the owner's end has the box: the generation moves on, and nobody has or had it on loan.
    pub(super) fn stale(&mut self, config: &Config, context: Cid) {
        if self.record(context).book.is_over() {
            return;
        }
        if self.holder_of_box(context).is_some() {
            self.marks |= mark::CHASED;
        }
        let leaves_it = config.flaw == Some(Flaw::Book(BookFlaw::StaleAccepted));
        let time = if leaves_it { None } else { self.seize(context) };
        self.end_from(config, context, 0);
        let record = self.record_mut(context);
        record.retired = time;
        let Ok(owner) = record.book.end() else {
            unreachable!("the box is in hand, and all loans have ended")
        };
        if owner != Tid::NOBODY {
            self.thread_mut(owner).claim.take_if(|claim| *claim == context);
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
        (thread.bind_requested, thread.lent) = (false, false);
    }
}
