//! What must hold, and who waits for whom.

use kcore::loans::Name;

use super::state::{Actor, At, Call, Cid, Config, Op, Record, State, Thread, Tid};
use super::{BookFlaw, Flaw, fault};

/// Whom somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// This one moves the box.
    Actor(Actor),
    /// Nobody does.
    Nobody,
}

impl State {
    /// Whom the next operation of an actor waits for, without a lock or for one.
    pub(super) fn waits_for(&self, config: &Config, actor: Actor) -> Option<Blocker> {
        let op = *self.todo(actor).last()?;
        if let Some(locked) = self.record_of(actor, op).and_then(|context| self.record(context).locked)
            && locked != actor
        {
            return Some(Blocker::Actor(locked));
        }
        match op {
            Op::EndLoan(lender) => {
                let blocker = self.blocker_of_loan(config, lender)?;
                let (context, _) = self.loan_of(lender)?;
                // With the planted bug the first look takes the lock, and the next one waits.
                let takes_lock = config.flaw == Some(Flaw::LockHeldWhileWaiting);
                if takes_lock && self.record(context).locked.is_none() { None } else { Some(blocker) }
            }
            Op::Stale(_) if config.flaw == Some(Flaw::Book(BookFlaw::StaleAccepted)) => None,
            Op::Stale(context) => self.blocker_of_box(config, context),
            Op::LayDown(tid) => self.own(tid).and_then(|context| self.blocker_of_box(config, context)),
            Op::Withdraw => match self.thread(actor).call {
                Call::Taken(by) => Some(Blocker::Actor(by)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The record whose lock an operation takes.
    fn record_of(&self, actor: Actor, op: Op) -> Option<Cid> {
        let runs_on = |tid: Tid| self.thread(tid).time.as_ref().map(|time| time.context);
        match op {
            Op::Meet(_) | Op::WakeServer(_) => runs_on(actor),
            Op::LeaveLoan(tid) => runs_on(tid),
            Op::LayDown(tid) => self.own(tid),
            Op::GiveBack(tid) | Op::EndLoan(tid) => self.loan_of(tid).map(|(context, _)| context),
            Op::Receive | Op::Fetch | Op::LookLent => self.thread(actor).claim,
            Op::Stale(context) | Op::Bind(_, context) | Op::Give(_, context) => Some(context),
            _ => None,
        }
    }

    /// Who has a box of this context on its way.
    fn mover(&self, context: Cid) -> Blocker {
        let mover = self.tids().find(|tid| self.thread(*tid).way.is_some_and(|(c, _)| c == context));
        mover.map_or(Blocker::Nobody, Blocker::Actor)
    }

    /// In a handoff place no lock reaches it.
    fn handed_by(&self, tid: Tid) -> Option<Blocker> {
        if let At::Handed(by) = self.thread(tid).at { Some(Blocker::Actor(by)) } else { None }
    }

    /// Why the loan of `lender` cannot be ended now.
    pub(super) fn blocker_of_loan(&self, config: &Config, lender: Tid) -> Option<Blocker> {
        let (context, _) = self.loan_of(lender)?;
        self.blocker_of_box(config, context)
    }

    /// Why the box cannot be taken now from where it is.
    fn blocker_of_box(&self, config: &Config, context: Cid) -> Option<Blocker> {
        if self.on_way(context) && config.flaw != Some(Flaw::Book(BookFlaw::WayIgnored)) {
            return Some(self.mover(context));
        }
        self.handed_by(self.holder_of_box(context)?)
    }

    // ---- faults ---------------------------------------------------------------------------------------------------

    /// Every fault of this state.
    pub(super) fn check(&self, config: &Config) -> u16 {
        let mut faults = 0;
        let mut add = |broken: bool, fault: u16| faults |= if broken { fault } else { 0 };
        for (record, context) in self.records.iter().zip(0..) {
            let kept = record.book.kept().into_iter().chain(&record.retired);
            let boxes = self.threads.iter().filter_map(|t| t.time.as_ref()).chain(kept);
            add(boxes.filter(|time| time.context == context).count() != 1, fault::PLACE);
            add(!self.is_spent(config, record, context), fault::SPENT);
            add(!self.is_chain(record, context), fault::STACK);
        }
        for (thread, tid) in self.threads.iter().zip(0..) {
            if thread.at == At::User {
                add(self.lender_runs(tid), fault::LENDER_RUNS);
                add(self.runs_stale(thread), fault::STALE);
            }
            let borrows = || self.loans().any(|loan| loan.borrower == tid);
            add(thread.receives && borrows(), fault::STACK);
        }
        add(self.actors().any(|actor| self.waits_for_ever(config, actor)), fault::WAITS);
        if !self.actors().any(|actor| self.is_busy(actor)) {
            let is_left = |(record, context)| self.record_is_left(config, record, context);
            add(self.records.iter().zip(0..).any(is_left), fault::REST);
            add(self.threads.iter().zip(0..).any(|(thread, tid)| self.is_left(thread, tid)), fault::REST);
        }
        faults
    }

    fn is_spent(&self, config: &Config, record: &Record, context: Cid) -> bool {
        let in_entities = self.threads.iter().filter_map(|t| Some((t.time.as_ref()?, t.uncharged)));
        let kept = record.book.kept().into_iter().chain(&record.retired);
        let mut all = in_entities.chain(kept.map(|time| (time, 0)));
        let found = all.find(|(time, _)| time.context == context);
        found.is_none_or(|(time, uncharged)| time.left + record.worked == config.budget + uncharged)
    }

    /// From the owner to whoever has the box, or will as soon as it has arrived or is fetched.
    fn is_chain(&self, record: &Record, context: Cid) -> bool {
        if record.book.check().is_err() {
            return false;
        }
        if !record.book.has_time() {
            return true;
        }
        match self.holder_of_box(context) {
            Some(tid) if self.on_way(context) => self.thread(tid).way.is_some_and(|(c, _)| c == context),
            Some(tid) => tid == *record.book.holder(),
            None => record.book.kept().is_some() && !self.on_way(context),
        }
    }

    /// In user mode with a loan out, or before the box is back.
    fn lender_runs(&self, tid: Tid) -> bool {
        let is_out = self.loans().any(|loan| loan.lender == tid);
        let comes =
            |thread: &Thread, c: Cid| matches!(thread.way, Some((way, super::state::Way::Back)) if way == c);
        let is_away = |context: Cid| {
            let record = self.record(context);
            *record.book.holder() == tid && self.threads.iter().any(|thread| comes(thread, context))
        };
        is_out || self.cids().any(is_away)
    }

    fn runs_stale(&self, thread: &Thread) -> bool {
        let Some(time) = &thread.time else { return false };
        u64::from(time.generation) != self.record(time.context).book.generation()
    }

    /// Follows who waits for whom: it must end with somebody who goes on by itself.
    fn waits_for_ever(&self, config: &Config, actor: Actor) -> bool {
        let mut at = actor;
        for _ in self.actors() {
            if !self.is_busy(at) {
                return at != actor;
            }
            match self.waits_for(config, at) {
                None => return false,
                Some(Blocker::Nobody) => return true,
                Some(Blocker::Actor(next)) => at = next,
            }
        }
        true
    }

    /// At rest: nothing on its way, idle records keep their boxes, and every loan belongs to a call that is under way.
    fn record_is_left(&self, config: &Config, record: &Record, context: Cid) -> bool {
        let differs = |tid: Tid| (self.thread(tid).claim == Some(context)) != self.is_in(record, tid);
        let flies = |lender: Tid, borrower: Tid| self.thread(lender).call == Call::Flies(borrower);
        let (book, holder) = (&record.book, *record.book.holder());
        let is_bound = *book.owner() != Tid::NOBODY;
        self.on_way(context)
            || record.locked.is_some()
            || book.has_time() && is_bound && holder == Tid::NOBODY && !self.thread(*book.owner()).ending
            || book.loans().iter().any(|loan| !flies(loan.lender, loan.borrower))
            || record
                .promised()
                .is_some_and(|tid| !self.thread(tid).bind_requested && !self.thread(tid).ending)
            || config.flaw != Some(Flaw::Unclaimed) && self.tids().any(differs)
    }

    fn is_in(&self, record: &Record, tid: Tid) -> bool {
        *record.book.owner() == tid || record.book.loan_to(tid).is_some()
    }

    /// At rest: nobody sleeps over what it waits for.
    fn is_left(&self, thread: &Thread, tid: Tid) -> bool {
        let sleeps_over = match thread.todo.last() {
            _ if thread.at != At::Parked => false,
            Some(Op::Leave) => self.loan_of(tid).is_none(),
            _ => thread.ready || thread.ending,
        };
        let is_dead = thread.at == At::Dead;
        let is_named = || self.records.iter().any(|record| self.is_in(record, tid));
        sleeps_over || thread.way.is_some() || thread.handoff.is_some() || is_dead && is_named()
    }
}
