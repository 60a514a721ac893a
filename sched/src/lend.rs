//! Contexts on the move: lent along a call, taken away from wherever their thread is, and put behind another one.
//!
//! A loan moves the box. There is one, so what the borrower uses is gone for the lender, and nobody has more than was promised (S-06).

use alloc::boxed::Box;

use crate::cpu::{Cpu, Running, Tier};
use crate::entity::{Entity, Entrance, Key};
use crate::queue::Wanted;
use crate::{
    Blocked, Context, ContextInfo, CpuMask, Decision, Effect, Exchanged, Misplaced, NotReady, Payload,
    Policy, QueueKind, Runnable, Taken, ThreadId,
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

    /// Takes the context of a thread that runs or waits here. The thread goes on at its weight, unless it runs on contexts only. `None`,
    /// and nothing has happened, if the thread is not here, or has none. Bounded by `MAX_CONTEXTS_PER_CPU`, however many other threads
    /// there are.
    pub fn take_context(&mut self, thread: ThreadId, now: u64) -> Option<Taken<T>> {
        if self.current() == Some(thread) {
            let (context, effect) = self.unbind_current(now)?;
            return Some(Taken { context, effect, stopped: None });
        }
        let (queue, key) = self.find_context(thread)?;
        self.charge(now);
        let mut thread = self.queue_mut(queue).take(Wanted::Exactly(key))?;
        let context = thread.context.take()?;
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

    /// Where a thread with a context waits: with budget, without, or demoted. The direct slot takes no contexts.
    fn find_context(&self, thread: ThreadId) -> Option<(QueueKind, Key)> {
        let mut found = None;
        for (kind, queue) in
            [(QueueKind::Guaranteed, &self.guaranteed), (QueueKind::Throttled, &self.throttled)]
        {
            queue.for_each(&mut |waiting| {
                if waiting.id == thread {
                    found = Some((kind, waiting.key));
                }
            });
        }
        found.or_else(|| {
            self.demoted.iter().find(|demoted| demoted.thread == thread).and_then(|demoted| demoted.place)
        })
    }

    /// What may be told of the context of a thread that runs or waits here, as of the last event. Bounded as [`Cpu::take_context`].
    pub fn context_info(&self, thread: ThreadId) -> Option<ContextInfo> {
        if self.current() == Some(thread) {
            return self.current_context().map(|context| context.info(self.at_ns));
        }
        let (queue, key) = self.find_context(thread)?;
        let threads = match queue {
            QueueKind::Guaranteed => &self.guaranteed,
            QueueKind::Throttled => &self.throttled,
            _ => &self.restricted,
        };
        let waiting = threads.find(Wanted::Exactly(key))?;
        waiting.context.as_ref().map(|context| context.info(self.at_ns))
    }

    /// The running thread, which must have budget, queues behind `target`, which must wait here with budget: not before it is as late
    /// as that one's deadline. Whoever is more urgent than the target still runs before both, and nobody else is put off.
    pub fn yield_to(&mut self, target: ThreadId, now: u64) -> Result<Decision<T>, NotReady> {
        self.charge(now);
        let has_budget = |running: &Running<T>| {
            let context = running.thread.context.as_ref();
            running.tier == Tier::Guaranteed
                && context.is_some_and(|context| context.ledger.available_ns(self.at_ns) > 0)
        };
        if !self.running.as_ref().is_some_and(has_budget) {
            return Err(NotReady);
        }
        let Some((QueueKind::Guaranteed, behind)) = self.find_context(target) else { return Err(NotReady) };
        let Some(Running { mut thread, .. }) = self.running.take() else { return Err(NotReady) };
        let previous = Some(thread.id);
        self.release_due();
        (self.wanted, self.leftover_ns) = (false, 0);
        thread.account.runnable_since_ns = self.at_ns;
        let tag = thread.key.tag.max(behind.tag);
        self.insert_guaranteed(thread, tag);
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

    /// Whoever waits with budget and is first, if the running thread has some too: then a yield only exchanges the two.
    #[inline]
    pub(crate) fn next_with_budget(&mut self) -> Option<Box<Entity<T>>> {
        let Some(Running { thread, tier: Tier::Guaranteed, .. }) = &self.running else { return None };
        let context = thread.context.as_ref()?;
        if self.direct.is_some() || context.ledger.head_ns(self.at_ns) == 0 {
            return None;
        }
        self.guaranteed.pop_first()
    }

    /// The usual yield of a thread with budget, to another one.
    #[inline]
    pub(crate) fn take_turns_on_budget(&mut self, mut next: Box<Entity<T>>) -> Decision<T> {
        next.account.runnable_ns += self.at_ns.saturating_sub(next.account.runnable_since_ns);
        let left_ns = next.context.as_ref().map_or(0, |context| context.ledger.head_ns(self.at_ns));
        let until_ns = (self.at_ns + left_ns).min(self.next_release_ns());
        let run = Some(next.id);
        let running = Running { thread: next, tier: Tier::Guaranteed, until_ns };
        if let Some(Running { mut thread, .. }) = self.running.replace(running) {
            thread.account.runnable_since_ns = self.at_ns;
            let tag = thread.key.tag;
            self.insert_guaranteed(thread, tag);
        }
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
