//! Contexts and their loans: a call to a server that waits and has no context lends the caller's, the answer gives it back, and when a thread
//! ends or a context is revoked, the other threads of the chain go on at their weight (`docs/contexts.md`).
//!
//! The context itself is a value of the core, in the entity of one thread. The kernel's own book (`kcore::loans`) says which thread should have
//! it, along which calls it is lent and what may happen to it next; this file moves the context.

use kcore::loans::{Book, Refused, Sound};
use sched::{Context, CpuId, Decision, Spec, Taken};
use trace::Kind;

use super::{Engine, Event, Member, Wait};
use crate::scenario::{self, ContextSpec};

/// A thread makes one call at a time, so its calls need no numbers.
const CALL: u64 = 0;

/// The result of a call that lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lent {
    /// The core has chosen the thread that runs here.
    Here,
    /// The server runs on another CPU, and the caller has left this one.
    Away,
    /// No CPU may run the server on the caller's context, or will host it: the call is not made.
    Nowhere,
}

/// What the engine knows of a context, wherever the context itself is.
pub(super) struct Record {
    pub(super) book: Book<u32, Box<Context>>,
    /// What it may have used in all stretches before the current one together, and when the current one began: see `sched::Ledger::reconfigure`.
    allowed_ns: u64,
    since_ns: u64,
}

impl Record {
    /// The record of a context that was just admitted for `owner`, and the context, which goes to the owner's entity.
    pub(super) fn new(owner: u32, time: Box<Context>, budget_ns: u64, now: u64) -> (Record, Box<Context>) {
        let mut book = Book::vacant(Sound);
        book.make(time);
        book.bind(owner);
        let time = book.promise(owner).and_then(|()| book.fetch(owner)).expect("it is new, and the owner's");
        (Record { book, allowed_ns: budget_ns, since_ns: now }, time)
    }

    /// The most that it may have used by now (S-03): a budget at the start, and one for every period since.
    pub(super) fn most_ns(&self, spec: &Spec, now: u64) -> u64 {
        self.allowed_ns + (now - self.since_ns) / spec.period_ns * spec.budget_ns
    }
}

pub(super) fn spec_of(wish: &ContextSpec, cpu_mask: sched::CpuMask) -> Spec {
    Spec {
        budget_ns: wish.budget_ns,
        period_ns: wish.period_ns,
        relative_deadline_ns: wish.deadline_ns,
        cpu_mask,
        overrun: match wish.overrun {
            scenario::Overrun::Throttle => sched::Overrun::Throttle,
            scenario::Overrun::Fault => sched::Overrun::Fault,
            scenario::Overrun::Demote => sched::Overrun::Demote,
        },
        criticality: wish.band,
        timeout_endpoint: None,
        max_refills: wish.refills,
    }
}

impl Engine<'_> {
    fn record_of(&self, thread: u32) -> Option<(u64, &Record)> {
        let id = self.threads[thread as usize].holds?;
        Some((id, &self.records[&id]))
    }

    fn book(&mut self, id: u64) -> &mut Book<u32, Box<Context>> {
        &mut self.records.get_mut(&id).expect("a context that is held or lent has a record").book
    }

    /// Whether a call of `caller` to these servers would lend and must not be made: the chain is too long, or it would close a circle. A thread
    /// here does one thing at a time, so a server that has lent cannot take a call: it would never be answered.
    pub(super) fn loan_is_refused(&self, caller: u32, server: usize) -> bool {
        let Some((_, record)) = self.record_of(caller) else { return false };
        let servers =
            (0..).zip(&self.threads).filter(|(_, thread)| thread.spec == server && thread.ended.is_none());
        let mut offers = servers.map(|(index, _)| (index, self.offer(record, caller, index)));
        let is_circle = |(index, offer)| index == caller || offer == Err(Refused::Cycle);
        offers.clone().all(is_circle) || offers.any(|(_, offer)| offer == Err(Refused::TooDeep))
    }

    /// What the book says of a call to `server`, if that server waits.
    fn offer(&self, record: &Record, caller: u32, server: u32) -> Result<(), Refused> {
        let has_lent = record.book.loan_along(server, CALL).is_some();
        record.book.offer(caller, server, has_lent || self.threads[server as usize].holds.is_some())
    }

    /// Whether a call of `caller` lends to `server`, which waits.
    pub(super) fn lends_to(&self, caller: u32, server: u32) -> bool {
        self.record_of(caller).is_some_and(|(_, record)| self.offer(record, caller, server).is_ok())
    }

    /// Notes that the caller lends its context, which it may.
    fn note_loan(&mut self, lender: u32, borrower: u32) {
        let Some(id) = self.threads[lender as usize].holds.take() else { return };
        self.threads[borrower as usize].holds = Some(id);
        let depth = self.book(id).lend(lender, CALL, borrower);
        self.counters.loans += 1;
        self.counters.loan_depth_max = self.counters.loan_depth_max.max(depth as u64);
    }

    /// The running caller lends its context to a server that waits, if possible.
    pub(super) fn lend(&mut self, cpu: usize, caller: u32, server: u32) -> Lent {
        let here = self.cpus[cpu].id;
        let waits = self.threads[server as usize].parked.as_ref();
        if waits.is_some_and(|(blocked, _)| blocked.could_run_on(here)) {
            self.note_loan(caller, server);
            self.exchange(cpu, caller, Wait::Reply, server);
            return Lent::Here;
        }
        let (context, _) = self.cpus[cpu].core.unbind_current(self.now).expect("the caller runs on it");
        let id = context.identity().id;
        self.book(id).seized();
        match self.host_for(context, server) {
            Ok(guest) => {
                self.book(id).host(guest);
                let guest = self.book(id).guest(caller).expect("it was taken in for this loan");
                self.note_loan(caller, server);
                self.book(id).given();
                self.counters.loans_hosted += 1;
                self.park(cpu, caller, Wait::Reply);
                self.bind_parked(server, guest);
                self.wake(server, Some(cpu), true);
                self.record(self.now, cpu, Kind::Lend { thread: server });
                Lent::Away
            }
            Err(context) => {
                let effect = self.cpus[cpu].core.bind_current(context, self.now);
                let effect = effect.expect("it ran on it before");
                self.book(id).given();
                self.react(cpu, effect, false);
                Lent::Nowhere
            }
        }
    }

    /// Asks the CPUs of both masks to take a context in, the emptiest first.
    fn host_for(&mut self, mut context: Box<Context>, server: u32) -> Result<Box<Context>, Box<Context>> {
        let Some((blocked, _)) = &self.threads[server as usize].parked else { return Err(context) };
        let both = blocked.mask().and(&context.spec().cpu_mask).and(&self.online);
        let mut hosts: Vec<usize> = both.iter().map(CpuId::index).collect();
        hosts.sort_by_key(|cpu| (self.cpus[*cpu].core.reserved(), *cpu));
        for host in hosts {
            match self.cpus[host].core.host(context, self.now) {
                Ok(guest) => return Ok(guest),
                Err((_, back)) => context = back,
            }
        }
        Err(context)
    }

    /// The running thread blocks, and `next` goes on with its context: in one step of the core.
    fn exchange(&mut self, cpu: usize, running: u32, wait: Wait, next: u32) {
        let thread = &mut self.threads[next as usize];
        let Some((blocked, _)) = thread.parked.take() else { unreachable!("it waits") };
        thread.wake_version += 1;
        self.counters.wakes += 1;
        let last = blocked.last_cpu();
        self.record(self.now, cpu, Kind::Wake { thread: next });
        if let Some(from) = last.filter(|from| from.index() != cpu) {
            self.record(self.now, cpu, Kind::Place { thread: next, from: from.index() as u16 });
        }
        self.record(self.now, cpu, Kind::Lend { thread: next });
        let exchanged = self.cpus[cpu].core.block_lending(blocked.wake_to_borrow(), self.now);
        let (blocked, decision): (_, Decision<Member>) = exchanged.expect("it may run here");
        let blocked = blocked.expect("the lender runs");
        self.threads[running as usize].parked = Some((blocked, wait));
        self.apply(cpu, decision, Kind::Block { thread: running });
    }

    fn bind_parked(&mut self, thread: u32, context: Box<Context>) {
        let Some((blocked, _)) = &mut self.threads[thread as usize].parked else { unreachable!("it waits") };
        let old = blocked.bind(context).expect("it may run where the context does");
        assert!(old.is_none(), "a thread has one context at most");
    }

    /// The running server has received a call that waited in the queue: the caller's context is lent now. Returns whether the server stays on
    /// this CPU.
    pub(super) fn borrow(&mut self, cpu: usize, server: u32, caller: u32) -> bool {
        let lends = self.record_of(caller).is_some_and(|(_, record)| record.book.may_lend(caller).is_ok());
        if !lends || self.threads[server as usize].holds.is_some() {
            return true;
        }
        let Some((blocked, Wait::Reply)) = &mut self.threads[caller as usize].parked else { return true };
        let allowed = self.cpus[cpu].core.current_allowed().expect("the server runs");
        let Some(context) = blocked.unbind() else { return true };
        if !allowed.contains(context.home()) {
            self.bind_parked(caller, context);
            return true;
        }
        self.note_loan(caller, server);
        self.record(self.now, cpu, Kind::Lend { thread: server });
        if context.home() == self.cpus[cpu].id {
            let effect =
                self.cpus[cpu].core.bind_current(context, self.now).expect("it has none, and runs here");
            self.react(cpu, effect, false);
            return true;
        }
        self.park(cpu, server, Wait::Move);
        self.bind_parked(server, context);
        self.wake(server, Some(cpu), false);
        false
    }

    /// Whether the running server has the context of the caller that it answers.
    pub(super) fn has_loan_of(&self, server: u32, caller: u32) -> bool {
        self.record_of(server).is_some_and(|(_, record)| {
            record.book.loan_along(caller, CALL).is_some_and(|at| record.book.loan_to(server) == Some(at))
        })
    }

    /// The running server waits for the next call, and the answered caller goes on: with its context, in one step, if both can run here. `false`
    /// if not.
    pub(super) fn answer_and_wait(&mut self, cpu: usize, server: u32, caller: u32) -> bool {
        let id = self.threads[server as usize].holds.expect("it answers on a loan");
        let here = self.cpus[cpu].id;
        let waits = self.threads[caller as usize].parked.as_ref();
        let is_here = waits.is_some_and(|(blocked, _)| blocked.could_run_on(here));
        if !is_here || self.book(id).may_return(caller, CALL).is_err() {
            return false;
        }
        self.book(id).hand_back();
        self.threads[server as usize].holds = None;
        self.threads[caller as usize].holds = Some(id);
        self.exchange(cpu, server, Wait::Message, caller);
        true
    }

    /// Ends the loans from `at` on. The context is in hand.
    fn end_loans(&mut self, id: u64, at: usize) {
        let book = &mut self.records.get_mut(&id).expect("it is lent, or ends").book;
        for loan in book.end_loans(at).expect("the box is in hand").iter().rev() {
            self.threads[loan.borrower as usize].holds = None;
            let lender = &mut self.threads[loan.lender as usize];
            lender.holds = lender.ended.is_none().then_some(id);
        }
    }

    /// Takes the context from wherever it is. The thread that had it goes on at its weight.
    fn seize(&mut self, id: u64) -> Box<Context> {
        self.book(id).seized();
        let holder = *self.book(id).holder();
        let thread = &mut self.threads[holder as usize];
        if let Some((blocked, _)) = &mut thread.parked {
            return blocked.unbind().expect("the record says who has the box");
        }
        let cpu = thread.on_cpu.or(thread.place.get().map(|ticket| ticket.cpu.index()));
        let cpu = cpu.expect("who is not parked is on a CPU");
        if thread.on_cpu.is_none() {
            // From here on it waits as best-effort threads do.
            thread.queued_at = Some((self.now, self.overhead_ns));
        }
        self.sync(cpu);
        let ticket = self.cpus[cpu].core.find(sched::ThreadId(holder.into()));
        let taken = self.cpus[cpu].core.take_context(&ticket, self.now);
        let Taken { context, effect, stopped } = taken.expect("the record says who has the box");
        assert!(stopped.is_none(), "nobody here runs on contexts only");
        self.react(cpu, effect, false);
        context
    }

    /// The context in hand: the one that an ending thread left behind, or taken from its holder.
    fn in_hand(&mut self, id: u64, has: Option<Box<Context>>) -> Box<Context> {
        let Some(context) = has else { return self.seize(id) };
        self.book(id).seized();
        context
    }

    /// A guest goes home.
    fn send_home(&mut self, context: Box<Context>) -> Box<Context> {
        let at = context.home().index();
        self.cpus[at].core.unhost(context, self.now)
    }

    /// Ends the loan at `at` and those above it: the lender, which waits, has its context back.
    pub(super) fn return_loan(&mut self, id: u64, at: usize, has: Option<Box<Context>>) {
        let mut context = self.in_hand(id, has);
        if self.book(id).ends_visit(at) {
            context = self.send_home(context);
        }
        if self.options.plant == Some(super::Plant::FreshLoan) && !context.is_hosted() {
            let home = &mut self.cpus[context.home().index()].core;
            let proposal = home.retire(context, self.now).expect("it is at home");
            context = home.admit(proposal, self.now).expect("there was room for it");
        }
        self.end_loans(id, at);
        let lender = *self.book(id).holder();
        self.bind_parked(lender, context);
        self.book(id).given();
    }

    /// The loan that the thread got from its caller, even if it has lent the context on: in which context's chain, and where.
    pub(super) fn loan_to(&self, borrower: u32) -> Option<(u64, usize)> {
        self.records.iter().find_map(|(id, record)| record.book.loan_to(borrower).map(|at| (*id, at)))
    }

    /// The context that the thread owns, wherever that is.
    pub(super) fn owned_by(&self, owner: u32) -> Option<u64> {
        self.records.iter().find(|(_, record)| *record.book.owner() == owner).map(|(id, _)| *id)
    }

    /// Ends a context: no thread gets it back, and the thread that ran on it goes on at its weight.
    pub(super) fn end_context(&mut self, id: u64, has: Option<Box<Context>>) {
        let context = self.in_hand(id, has);
        let context = self.send_home(context);
        self.end_loans(id, 0);
        let owner = self.book(id).end().expect("the box is in hand, and all loans have ended");
        self.records.remove(&id);
        self.threads[owner as usize].holds = None;
        self.retire(context);
    }

    /// Gives the thread's context other parameters; the thread that has it goes on with it. Refused where they do not fit, and for guests.
    pub(super) fn reconfigure(&mut self, owner: u32, wish: &ContextSpec) {
        let Some(id) = self.owned_by(owner) else { return };
        let holder = *self.book(id).holder();
        if self.book(id).hosted_from().is_some() {
            self.counters.admissions_refused += 1;
            return;
        }
        let thread = &mut self.threads[holder as usize];
        if let Some((blocked, _)) = &mut thread.parked {
            let old = blocked.unbind().expect("the record says who has the box");
            let new = self.readmit(id, old, wish);
            self.bind_parked(holder, new);
        } else if let Some(cpu) = thread.on_cpu {
            self.sync(cpu);
            let (old, _) = self.cpus[cpu].core.unbind_current(self.now).expect("it runs on it");
            let new = self.readmit(id, old, wish);
            let effect = self.cpus[cpu].core.bind_current(new, self.now).expect("it ran on it before");
            self.react(cpu, effect, false);
        } else if let Some(ticket) = thread.place.get() {
            let cpu = ticket.cpu.index();
            self.sync(cpu);
            let mut thread = self.cpus[cpu].core.remove(&ticket, self.now).expect("it is queued");
            let old = thread.unbind().expect("the record says who has the box");
            let bound = thread.bind(self.readmit(id, old, wish));
            assert!(matches!(bound, Ok(None)), "it ran on it before");
            let effect = self.cpus[cpu].core.enqueue(thread, self.now).expect("it was allowed here before");
            self.react(cpu, effect, false);
        }
    }

    fn readmit(&mut self, id: u64, old: Box<Context>, wish: &ContextSpec) -> Box<Context> {
        let spec = spec_of(wish, old.spec().cpu_mask);
        let most = self.records[&id].most_ns(old.spec(), self.now);
        let home = old.home().index();
        match self.cpus[home].core.readmit(old, spec, self.now) {
            Ok(new) => {
                let record = self.records.get_mut(&id).expect("it has a record");
                (record.allowed_ns, record.since_ns) = (most, self.now);
                new
            }
            Err((_, same)) => {
                self.counters.admissions_refused += 1;
                same
            }
        }
    }

    /// A budget is spent, and the timeout handler is told: the thread waits for the answer. Without a handler, it waits for the refill.
    pub(super) fn fault(&mut self, index: u32, blocked: sched::Blocked<Member>) {
        let ready = blocked.context().map_or(sched::FOREVER, |context| context.ledger().ready_at_ns());
        let owner = self.record_of(index).map(|(_, record)| *record.book.owner());
        let handler = owner.and_then(|owner| {
            self.scenario.threads[self.threads[owner as usize].spec].context.and_then(|it| it.handler)
        });
        let thread = &mut self.threads[index as usize];
        match handler.filter(|handler| self.alive[*handler] > 0) {
            Some(handler) => {
                thread.parked = Some((blocked, Wait::Handler));
                match self.endpoints[handler].servers.pop_front() {
                    Some(server) => {
                        let server_state = &mut self.threads[server as usize];
                        server_state.serving = Some(index);
                        let version = server_state.wake_version;
                        // As soon as this CPU has switched to another thread.
                        self.push(self.now, Event::Wake { thread: server, version });
                    }
                    None => self.endpoints[handler].callers.push_back(index),
                }
            }
            None => {
                thread.parked = Some((blocked, Wait::Refill));
                let version = thread.wake_version;
                self.push(ready.max(self.now), Event::Wake { thread: index, version });
            }
        }
    }

    /// The handler lets the thread go on without its context: it is unbound, or the loan is returned.
    pub(super) fn let_go(&mut self, index: u32) {
        if let Some((id, at)) = self.loan_to(index) {
            self.return_loan(id, at, None);
        } else if let Some(id) = self.owned_by(index) {
            self.end_context(id, None);
        }
    }
}
