//! Contexts that change hands: lent along a call, taken from their thread, bound to the running one. And yielding by threads with budget.
//!
//! A loan moves the context itself. It cannot be copied, so what the borrower uses is gone for the lender, and no thread has more than was promised
//! (S-06).

use alloc::boxed::Box;

use crate::cpu::{Cpu, Running, Tier};
use crate::entity::{Entity, Entrance};
use crate::{
    Blocked, Context, ContextInfo, CpuMask, Decision, Effect, Exchanged, Misplaced, NotReady, Payload,
    Policy, QueueKind, Runnable, Taken, Ticket,
};

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// As [`Cpu::block_for`], but the running thread's context goes to `next`, in one step: a call lends it to the server, and the answer gives it
    /// back. The context is used without a gap, so its ledger is not activated anew. If there is nothing to lend, or `next` has a context, this does
    /// what `block_for` does, only slower: ask [`Cpu::current_context`] first.
    ///
    /// `next` runs at once if there is budget and no other thread is more urgent. Otherwise it waits as its new budget says.
    #[inline]
    pub fn block_lending(&mut self, next: Runnable<T>, now: u64) -> Result<Exchanged<T>, Misplaced<T>> {
        self.charge(now);
        match &mut self.running {
            // Before `until_ns` no other thread's refill is due, and a more urgent thread that came meanwhile has asked for a dispatch. But a rest of
            // budget too small to use may have been merged into a later refill, with a later deadline: so the ledger must be ready now.
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

    /// The borrower takes over the lender's place, urgency and time: only the running thread changes.
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

    /// Takes the context of a thread that runs here, or waits where the ticket says. The thread goes on at its weight, unless it runs on contexts
    /// only. `None`, and nothing has happened, if the thread is not here or has no context.
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

    /// What may be reported about the context of a thread that runs here, or waits where the ticket says, as of the last event.
    pub fn context_info(&self, ticket: &Ticket) -> Option<ContextInfo> {
        if self.current() == Some(ticket.thread) {
            return self.current_context().map(|context| context.info(self.at_ns));
        }
        self.waiting_at(ticket)?.context.as_ref().map(|context| context.info(self.at_ns))
    }

    /// The running thread, which must have budget, queues behind `target`, which must wait here with budget: with a deadline no earlier than the
    /// target's. A thread that is more urgent than the target still runs before both, and no other thread is delayed.
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
        // Its remaining budget counts as usable from now on, as for any thread that did not want it (see `ask_anew`).
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

    /// Sets whether the running thread stops when it has no context; from its next dispatch on.
    pub fn set_current_context_only(&mut self, context_only: bool) {
        if let Some(running) = &mut self.running {
            running.thread.context_only = context_only;
            running.thread.remember_anywhere();
        }
    }

    /// The yield of a thread with budget. It yields only to threads with budget that are at least as urgent as it would be with a deadline counted
    /// from now; best-effort threads get the time that is promised to no thread. If there is no such thread, nothing changes. Otherwise its remaining
    /// budget counts as usable from now on, as after a wait: it could have yielded for as long as it liked, and with its old deadline, past by then,
    /// it would be more urgent than any context that admission knows (S-15). `None`, and nothing has happened, if the running thread has no budget.
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

    /// Binds a context to the running thread. It is given back, and nothing has happened, if the thread has one already or the context's home is
    /// another CPU.
    pub fn bind_current(&mut self, mut context: Box<Context>, now: u64) -> Result<Effect, Box<Context>> {
        let has_none = self.running.as_ref().is_some_and(|running| running.thread.context.is_none());
        if !has_none || context.home() != self.id {
            return Err(context);
        }
        self.charge(now);
        let Some(running) = &mut self.running else { return Err(context) };
        // Budget that lay unused counts as usable from now on; otherwise the budgets of all periods since then would come back at once.
        context.ledger.activate(self.at_ns);
        running.tier = Tier::Guaranteed;
        running.thread.key.tag = context.urgency_tag();
        running.thread.context = Some(context);
        self.clock.leave(&mut running.thread.fair);
        running.thread.entrance = Entrance::Join;
        Ok(self.want_dispatch())
    }

    /// Takes the running thread's context away: the thread falls back to best effort, or stops if it runs on contexts only. If it has none, nothing
    /// happens, and nothing is charged: another CPU that looks for a context in transit to this one asks again and again, and its looks must not
    /// decide up to when the thread's own time is charged.
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
