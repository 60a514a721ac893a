//! Contexts on the move: lent along a call, taken away from wherever their thread is, and put behind another one.
//!
//! A loan moves the box. There is one, so what the borrower uses is gone for the lender, and nobody has more than was promised (S-06).

use alloc::boxed::Box;

use crate::cpu::{Cpu, Running, Tier};
use crate::entity::{Entity, Entrance};
use crate::{
    Blocked, Context, ContextInfo, CpuMask, Decision, Effect, Exchanged, Misplaced, NotReady, Payload,
    Policy, QueueKind, Runnable, Taken, Ticket,
};

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// As [`Cpu::block_for`], but the running thread's context goes to `next`, in one step: a call lends it to the server, and the answer gives it
    /// back. Use goes on without a gap, so nothing is activated anew. If there is nothing to lend, or `next` has a context, it does what
    /// `block_for` does, only slower: ask [`Cpu::current_context`] first.
    ///
    /// `next` runs at once if it may: there is budget, nobody else is more urgent. Otherwise it waits as its new budget says.
    #[inline]
    pub fn block_lending(&mut self, next: Runnable<T>, now: u64) -> Result<Exchanged<T>, Misplaced<T>> {
        self.charge(now);
        match &mut self.running {
            // Before `until_ns` no refill of others is due, and whoever came meanwhile and is more urgent has asked for a dispatch. But
            // a rest too small to use may have been put off, and the deadline with it.
            Some(running)
                if running.tier == Tier::Guaranteed
                    && self.at_ns < running.until_ns
                    && !self.wanted
                    && self.direct.is_none()
                    && next.0.context.is_none()
                    && next.0.is_allowed_on(self.id)
                    && running
                        .thread
                        .context
                        .as_ref()
                        .is_some_and(|context| context.ledger.ready_at_ns() <= self.at_ns)
                    && self.guaranteed.first_key().is_none_or(|first| first > running.thread.key) =>
            {
                let mut next = next.0;
                self.arrive(&mut next);
                Ok(self.lend_and_run(next))
            }
            _ => self.block_lending_slowly(next, now),
        }
    }

    /// The borrower takes the lender's place, its urgency and its time: who runs changes, and nothing else.
    #[inline]
    fn lend_and_run(&mut self, mut next: Box<Entity<T>>) -> Exchanged<T> {
        let Some(running) = &mut self.running else { unreachable!("the lender runs") };
        let lender = &mut running.thread;
        lender.account.voluntary_blocks += 1;
        next.key = lender.key;
        next.context = lender.context.take();
        let run = Some(next.id);
        let blocked = Blocked(core::mem::replace(lender, next));
        let until_ns = running.until_ns;
        let noted = core::mem::take(&mut self.noted);
        (Some(blocked), Decision { run, until_ns, switched: true, noted, evicted: None })
    }

    #[inline(never)]
    fn block_lending_slowly(&mut self, next: Runnable<T>, now: u64) -> Result<Exchanged<T>, Misplaced<T>> {
        let lends = self.running.as_ref().is_some_and(|running| running.thread.context.is_some());
        if !lends || next.0.context.is_some() {
            return self.block_and_hand_over(next, now); // as `block_for`, without its shortcut
        }
        let mut next = next.0;
        if !next.is_allowed_on(self.id) {
            return Err(Misplaced(Runnable(next)));
        }
        let Some(mut lender) = self.block(now) else { unreachable!("the lender runs") };
        self.leftover_ns = 0;
        next.context = lender.unbind();
        next.account.runnable_since_ns = self.at_ns;
        self.arrive(&mut next);
        self.queue_by_budget(next);
        Ok((Some(lender), self.dispatch(now)))
    }

    /// Takes the context of a thread that runs here, or waits where the ticket says. The thread goes on at its weight, unless it runs on
    /// contexts only. `None`, and nothing has happened, if the thread is not here, or has none.
    pub fn take_context(&mut self, ticket: &Ticket, now: u64) -> Option<Taken<T>> {
        if self.current() == Some(ticket.thread) {
            let (context, effect) = self.unbind_current(now)?;
            return Some(Taken { context, effect, stopped: None });
        }
        self.waiting_at(ticket)?.context.as_ref()?;
        let queue = ticket.queue;
        self.charge(now);
        let mut thread = self.take_by(ticket)?;
        let context = thread.context.take()?;
        if queue == QueueKind::Throttled {
            thread.account.end_throttle(thread.key.tag as u64, self.at_ns);
        }
        if thread.context_only {
            if queue.is_fair() {
                self.leave_fair(&mut thread);
            }
            return Some(Taken { context, effect: self.rearm(), stopped: Some(Blocked(thread)) });
        }
        if queue.is_fair() {
            self.forget_demotion(&mut thread);
        } else {
            self.enter_fair(&mut thread);
        }
        let arrival = self.queue_fair(thread);
        Some(Taken { context, effect: self.effect_of_arrival(arrival), stopped: None })
    }

    /// What may be told of the context of a thread that runs here, or waits where the ticket says, as of the last event.
    pub fn context_info(&self, ticket: &Ticket) -> Option<ContextInfo> {
        if self.current() == Some(ticket.thread) {
            return self.current_context().map(|context| context.info(self.at_ns));
        }
        self.waiting_at(ticket)?.context.as_ref().map(|context| context.info(self.at_ns))
    }

    /// The running thread, which must have budget, queues behind `target`, which must wait here with budget: not before it is as late
    /// as that one's deadline. Whoever is more urgent than the target still runs before both, and nobody else is put off.
    pub fn yield_to(&mut self, target: &Ticket, now: u64) -> Result<Decision<T>, NotReady> {
        self.charge(now);
        let has_budget = |running: &Running<T>| {
            let context = running.thread.context.as_ref();
            running.tier == Tier::Guaranteed
                && context.is_some_and(|context| context.ledger.available_ns(self.at_ns) > 0)
        };
        if !self.running.as_ref().is_some_and(has_budget) {
            return Err(NotReady);
        }
        let behind = match self.waiting_at(target) {
            Some(waiting) if target.queue == QueueKind::Guaranteed => waiting.key,
            _ => return Err(NotReady),
        };
        let Some(Running { mut thread, .. }) = self.running.take() else { return Err(NotReady) };
        let previous = Some(thread.id);
        self.release_due();
        (self.wanted, self.leftover_ns) = (false, 0);
        thread.account.runnable_since_ns = self.at_ns;
        // What it has left counts from now on, as of any thread that did not want it (see `ask_anew`).
        let tag = thread.context.as_mut().map_or(i64::MAX, |context| {
            context.ledger.activate(self.at_ns);
            context.urgency_tag()
        });
        self.insert_guaranteed(thread, tag.max(behind.tag));
        let next = self.pick();
        Ok(self.start(next, previous, None))
    }

    /// Where the running thread may run, by its own mask.
    pub fn current_allowed(&self) -> Option<CpuMask> {
        self.running.as_ref().map(|running| running.thread.allowed)
    }

    /// Makes the running thread stop, or not, when it has no context; from its next dispatch on.
    pub fn set_current_context_only(&mut self, context_only: bool) {
        if let Some(running) = &mut self.running {
            running.thread.context_only = context_only;
            running.thread.remember_anywhere();
        }
    }

    /// The yield of a thread with budget. It goes behind those who are at least as urgent as it is if its deadline counts from now on, and not behind
    /// others: best effort has the time that nobody was promised. If there is nobody, nothing changes. Otherwise what it has left counts from now on,
    /// as after a wait: it could have let others go first for as long as it liked, and with its old deadline, past by then, it would be more urgent
    /// than all of whom admission knows (S-15). `None`, and nothing has happened, if the running thread has no budget.
    #[inline]
    pub(crate) fn ask_anew(&mut self) -> Option<Decision<T>> {
        let Some(Running { thread, tier: Tier::Guaranteed, .. }) = &mut self.running else { return None };
        let context = thread.context.as_mut()?;
        if context.ledger.head_ns(self.at_ns) == 0 {
            return None;
        }
        if let Some(next) = self.guaranteed.pop_first() {
            let tag = context.tag_from(self.at_ns);
            if next.key.tag <= tag {
                context.ledger.activate(self.at_ns);
                return Some(self.take_turns_on_budget(next, tag));
            }
            self.guaranteed.put_back(next);
        }
        let previous = self.current();
        Some(self.start(None, previous, None))
    }

    /// The usual yield of a thread with budget, to another one.
    #[inline(always)]
    fn take_turns_on_budget(&mut self, mut next: Box<Entity<T>>, tag: i64) -> Decision<T> {
        self.requeue_direct();
        next.account.runnable_ns += self.at_ns.saturating_sub(next.account.runnable_since_ns);
        if let Some(Running { mut thread, .. }) = self.running.take() {
            thread.account.runnable_since_ns = self.at_ns;
            self.insert_guaranteed(thread, tag);
        }
        let end_ns = self.end_of_promise(next.context.as_deref());
        let until_ns = self.before_miss(end_ns);
        let run = Some(next.id);
        self.running = Some(Running { thread: next, tier: Tier::Guaranteed, until_ns });
        let noted = core::mem::take(&mut self.noted);
        Decision { run, until_ns, switched: true, noted, evicted: None }
    }

    /// The running thread goes on with a context. Given back, and nothing has happened, if it has one already, or if the time runs elsewhere.
    pub fn bind_current(&mut self, mut context: Box<Context>, now: u64) -> Result<Effect, Box<Context>> {
        let has_none = self.running.as_ref().is_some_and(|running| running.thread.context.is_none());
        if !has_none || context.home() != self.id {
            return Err(context);
        }
        self.charge(now);
        let Some(running) = &mut self.running else { return Err(context) };
        // What lay unused counts from now on; otherwise every period since then would come back at once.
        context.ledger.activate(self.at_ns);
        running.tier = Tier::Guaranteed;
        running.thread.key.tag = context.urgency_tag();
        running.thread.context = Some(context);
        self.clock.leave(&mut running.thread.fair);
        running.thread.entrance = Entrance::Join;
        Ok(self.want_dispatch())
    }

    /// Takes the running thread's context away: it falls back to best effort, or stops if it runs on contexts only. If it has none, nothing
    /// happens, and nothing is charged: another CPU that looks for a context which is on its way here asks again and again, and its
    /// looks must not decide up to when the thread pays for itself.
    pub fn unbind_current(&mut self, now: u64) -> Option<(Box<Context>, Effect)> {
        self.current_context()?;
        self.charge(now);
        let mut running = self.running.take()?;
        let context = running.thread.context.take();
        if context.is_some() && running.tier == Tier::Guaranteed {
            running.tier = Tier::Fair;
            running.thread.quantum_ns = 0;
            self.enter_fair(&mut running.thread);
        }
        self.forget_demotion(&mut running.thread);
        self.running = Some(running);
        context.map(|context| (context, self.want_dispatch()))
    }
}
