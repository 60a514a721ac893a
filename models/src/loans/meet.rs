//! Callers and servers: calling, answering, receiving.

use kcore::loans::Refused;

use super::state::{Actor, At, CALL, Call, Config, HELD, Op, State, Tid, Way};
use super::{Flaw, mark};

impl State {
    /// The context of this thread: that which it has claimed, or (with the bug of not doing so) that whose box it has.
    fn context_of(&self, tid: Tid) -> Option<u8> {
        let thread = self.thread(tid);
        thread.claim.or(thread.time.as_ref().map(|time| time.context))
    }

    /// The same, if it may be lent now.
    fn lendable(&self, tid: Tid) -> Option<u8> {
        self.context_of(tid).filter(|context| self.record(*context).book.may_lend(tid).is_ok())
    }

    /// A thread without a context, that nobody is about to give one.
    fn is_free(&self, config: &Config, tid: Tid) -> bool {
        let thread = self.thread(tid);
        if config.flaw == Some(Flaw::Unclaimed) { thread.time.is_none() } else { thread.claim.is_none() }
    }

    fn claim(&mut self, config: &Config, tid: Tid, context: u8) {
        if config.flaw != Some(Flaw::Unclaimed) {
            self.thread_mut(tid).claim = Some(context);
        }
    }

    pub(super) fn meet(&mut self, config: &Config, tid: Tid, server: Tid) {
        if self.thread(server).closed {
            self.thread_mut(tid).ready = true;
            return;
        }
        if !self.thread(server).receives {
            self.thread_mut(tid).call = Call::Queued(server);
            return;
        }
        if let Some(context) = self.context_of(tid) {
            let waits = self.thread(server).at == At::Parked;
            let is_refused = match self.record(context).book.offer(tid, server, !self.is_free(config, server))
            {
                Err(Refused::Cycle) => true,
                Err(Refused::TooDeep) => waits,
                _ => false,
            };
            if is_refused {
                self.marks |= mark::REFUSED;
                self.thread_mut(tid).ready = true;
                return;
            }
        }
        self.thread_mut(server).receives = false;
        self.thread_mut(tid).call = Call::Flies(server);
        self.push(tid, Op::Deliver(server));
    }

    pub(super) fn deliver(&mut self, tid: Tid, server: Tid) {
        if self.thread(server).at == At::Dead {
            if self.thread(tid).call == Call::Flies(server) {
                self.thread_mut(tid).call = Call::None;
                self.completed(tid);
            }
        } else if self.completed(server) {
            self.push(tid, Op::WakeServer(server));
        }
    }

    /// Lends to a server that still waits, along a call that is still under way: the server goes to the handoff place, and the box follows.
    pub(super) fn wake_server(&mut self, config: &Config, tid: Tid, server: Tid) {
        let under_way = self.thread(tid).call != Call::None || config.flaw == Some(Flaw::LentAlongNothing);
        // One that has asked for another call as well would take that one on this one's account.
        let asks = self.thread(server).receives && config.flaw != Some(Flaw::LentToReceiver);
        let waits = self.thread(server).at == At::Parked && !asks && self.thread(tid).handoff.is_none();
        let lends = self.lendable(tid).filter(|_| under_way && waits && self.is_free(config, server));
        if !self.hand_over(tid, server) {
            return self.wake(server);
        }
        if let Some(context) = lends {
            self.record_mut(context).book.lend(tid, CALL, server);
            self.thread_mut(tid).way = Some((context, Way::Out));
            self.claim(config, server, context);
            self.thread_mut(tid).lent = true;
        }
    }

    /// The call is taken out to be answered.
    pub(super) fn answer(&mut self, tid: Tid, caller: Tid) {
        if matches!(self.thread(caller).call, Call::Flies(_)) {
            self.thread_mut(caller).call = Call::Taken(tid);
            self.push(tid, Op::Post(caller));
            self.push(tid, Op::GiveBack(caller));
        }
    }

    /// If the one who answers has the box, by the top of the stack, and the caller waits, the box goes the fast way.
    pub(super) fn give_back(&mut self, tid: Tid, caller: Tid) {
        let Some((context, _)) = self.loan_of(caller) else { return };
        if self.thread(tid).handoff.is_some() {
            self.push(tid, Op::GiveBack(caller));
            return self.push(tid, Op::Settle);
        }
        let book = &self.record(context).book;
        let is_quick = book.may_return(caller, CALL).is_ok() && *book.holder() == tid;
        if is_quick && self.thread(caller).at == At::Parked {
            self.record_mut(context).book.hand_back();
            self.thread_mut(tid).claim = None;
            self.thread_mut(caller).lent = false;
            self.hand_over(tid, caller);
            self.thread_mut(tid).way = Some((context, Way::Back));
        } else {
            self.push(tid, Op::EndLoan(caller));
            self.must_settle(tid);
        }
    }

    /// The caller's completion, after its loan has ended: also one that was made since we looked.
    pub(super) fn post(&mut self, config: &Config, actor: Actor, caller: Tid) {
        let skips =
            [Some(Flaw::ReturnSkippedOnException), Some(Flaw::LentAlongNothing)].contains(&config.flaw);
        if self.loan_of(caller).is_some() && !skips {
            self.push(actor, Op::Post(caller));
            return self.push(actor, Op::EndLoan(caller));
        }
        if self.thread(caller).call == Call::Taken(actor) {
            self.thread_mut(caller).call = Call::None;
        }
        if self.completed(caller) {
            let answers = usize::from(actor) < self.threads.len() && !self.thread(actor).ending;
            self.push(actor, if answers { Op::WakeCaller(caller) } else { Op::Wake(caller) });
        }
    }

    pub(super) fn wake_caller(&mut self, tid: Tid, caller: Tid) {
        if self.thread(caller).at != At::Handed(tid) && !self.hand_over(tid, caller) {
            self.wake(caller);
        }
    }

    /// Who asks for the next call does not work on the account of the last one.
    pub(super) fn leave_loan(&mut self, config: &Config, actor: Actor, tid: Tid) {
        let mine = self.loans().find(|loan| loan.borrower == tid).map(|loan| loan.lender);
        if let Some(lender) = mine.filter(|_| config.flaw != Some(Flaw::KeptOverRecv)) {
            self.push(actor, Op::EndLoan(lender));
            self.must_settle(actor);
        }
    }

    /// Takes a call that waits, with its caller's time if that waits too; or waits for one.
    pub(super) fn receive(&mut self, config: &Config, tid: Tid) {
        if self.thread(tid).closed {
            self.thread_mut(tid).ready = true;
            return;
        }
        let Some(caller) = self.tids().find(|caller| self.thread(*caller).call == Call::Queued(tid)) else {
            self.thread_mut(tid).receives = true;
            return;
        };
        self.thread_mut(caller).call = Call::Flies(tid);
        self.thread_mut(tid).ready = true;
        let Some(context) = self.lendable(caller) else { return };
        if self.thread(caller).at != At::Parked || !self.is_free(config, tid) {
            return;
        }
        let Some(time) = self.take_time(caller) else { return };
        self.claim(config, tid, context);
        self.thread_mut(caller).lent = true;
        self.thread_mut(tid).bind_requested = true;
        let book = &mut self.record_mut(context).book;
        book.seized();
        book.lend(caller, CALL, tid);
        book.put(time);
        self.marks |= mark::LENT;
    }

    pub(super) fn bind(&mut self, config: &Config, actor: Actor, tid: Tid, context: u8) {
        let may_bind = self.record(context).book.may_bind(HELD).is_ok();
        if !may_bind || self.thread(tid).ending || !self.is_free(config, tid) {
            return;
        }
        self.claim(config, tid, context);
        self.record_mut(context).book.bind(tid);
        self.push(actor, Op::Give(tid, context));
    }

    /// What was bound is given, unless somebody took it back since, or the thread is to end.
    pub(super) fn give_bound(&mut self, config: &Config, tid: Tid, context: u8) {
        if self.record_mut(context).book.promise(tid).is_ok() && !self.thread(tid).ending {
            let bind_requested = self.thread(tid).bind_requested;
            self.give(config, tid, context);
            if config.flaw == Some(Flaw::RequestsBindTooEarly) {
                self.thread_mut(tid).bind_requested = bind_requested;
            }
        }
    }
}
