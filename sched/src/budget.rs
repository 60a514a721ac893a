//! Threads with contexts in a CPU's queues: throttled or demoted without budget, and back again when a refill
//! comes.

use alloc::boxed::Box;

use crate::cpu::{Arrival, Cpu, Tier};
use crate::entity::{Entity, Entrance, Key};
use crate::queue::Wanted;
use crate::{Context, FOREVER, Overrun, Payload, Policy, QueueKind, ThreadId, Ticket};

/// A thread that spent its budget and runs at its weight until `ready_at_ns`.
pub(crate) struct Demoted {
    pub(crate) thread: ThreadId,
    pub(crate) ready_at_ns: u64,
    /// Its place in a fair queue; `None` while it runs.
    pub(crate) place: Option<(QueueKind, Key)>,
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// Calls `visit` with the ticket and context of every queued thread that has one. Linear.
    pub fn for_each_queued_context(&self, mut visit: impl FnMut(Ticket, &Context)) {
        let queues = [
            (QueueKind::Guaranteed, &self.guaranteed),
            (QueueKind::Restricted, &self.restricted),
            (QueueKind::Throttled, &self.throttled),
        ];
        for (queue, threads) in queues {
            threads.for_each(&mut |thread| {
                thread.context.iter().for_each(|context| visit(self.ticket(thread, queue), context));
            });
        }
    }

    /// Whether any thread waits for a refill, throttled or demoted: never without contexts (I6).
    #[inline]
    pub(crate) fn anybody_is_dry(&self) -> bool {
        self.contexts > 0 && !(self.throttled.is_empty() && self.demoted.is_empty())
    }

    /// Threads whose refill has come move back to the guaranteed tier. Bounded by `MAX_CONTEXTS_PER_CPU`.
    #[inline]
    pub(crate) fn release_due(&mut self) {
        if self.anybody_is_dry() {
            self.release_those_due();
        }
    }

    fn release_those_due(&mut self) {
        for _ in 0..self.throttled.len() {
            if self.throttled.first_key().is_none_or(|key| key.tag as u64 > self.at_ns) {
                break;
            }
            let Some(mut thread) = self.throttled.pop_first() else { break };
            thread.account.end_throttle(thread.key.tag as u64, self.at_ns);
            self.refilled = Some(thread.id);
            self.queue_by_budget(thread);
        }
        for _ in 0..self.demoted.len() {
            let due = |demoted: &Demoted| demoted.ready_at_ns <= self.at_ns;
            let Some(at) = self.demoted.iter().position(due) else { break };
            match self.demoted[at].place {
                Some((queue, key)) => {
                    let Some(mut thread) = self.queue_mut(queue).take(Wanted::Exactly(key)) else { break };
                    self.leave_fair(&mut thread);
                    self.refilled = Some(thread.id);
                    self.queue_guaranteed(thread);
                }
                None => {
                    let Some(running) = &mut self.running else { break };
                    let thread = &mut running.thread;
                    running.tier = Tier::Guaranteed;
                    thread.key.tag =
                        thread.context.as_ref().map_or(i64::MAX, |context| context.urgency_tag());
                    self.clock.leave(&mut thread.fair);
                    thread.entrance = Entrance::Join;
                    thread.demoted = false;
                    self.demoted.swap_remove(at);
                }
            }
        }
    }

    #[inline(never)] // keeps the path of threads without contexts short
    pub(crate) fn note_demotion(&mut self, thread: &mut Entity<T>, place: Option<(QueueKind, Key)>) {
        let ready_at_ns = thread.context.as_ref().map_or(FOREVER, |context| context.ledger.ready_at_ns());
        match self.demoted.iter_mut().find(|demoted| demoted.thread == thread.id) {
            Some(demoted) => demoted.place = place,
            None => self.demoted.push(Demoted { thread: thread.id, ready_at_ns, place }),
        }
        thread.demoted = true;
    }

    pub(crate) fn forget_demotion(&mut self, thread: &mut Entity<T>) {
        if thread.demoted {
            self.demoted.retain(|demoted| demoted.thread != thread.id);
            thread.demoted = false;
        }
    }

    /// Puts a thread that has a context, and that the virtual clock does not count, into the queue that its
    /// budget calls for.
    pub(crate) fn queue_by_budget(&mut self, mut thread: Box<Entity<T>>) -> Arrival {
        if let Some(context) = &thread.context {
            if context.ledger.available_ns(self.at_ns) > 0 {
                return self.queue_guaranteed(thread);
            }
            if context.spec().overrun != Overrun::Demote {
                return self.queue_throttled(thread);
            }
        }
        self.enter_fair(&mut thread);
        self.queue_fair(thread)
    }

    pub(crate) fn queue_guaranteed(&mut self, thread: Box<Entity<T>>) -> Arrival {
        let tag = thread.context.as_ref().map_or(i64::MAX, |context| context.urgency_tag());
        self.insert_guaranteed(thread, tag)
    }

    pub(crate) fn insert_guaranteed(&mut self, mut thread: Box<Entity<T>>, tag: i64) -> Arrival {
        self.expect_miss(&thread, tag);
        thread.key = self.next_key(tag);
        let key = thread.key;
        thread.payload.queued(self.ticket(&thread, QueueKind::Guaranteed));
        self.guaranteed.insert(thread);
        Arrival { queue: QueueKind::Guaranteed, key, position: 0 }
    }

    pub(crate) fn queue_throttled(&mut self, mut thread: Box<Entity<T>>) -> Arrival {
        let ready = thread.context.as_ref().map_or(FOREVER, |context| context.ledger.ready_at_ns());
        thread.key = self.next_key(ready as i64);
        thread.account.throttles += 1;
        let key = thread.key;
        thread.payload.queued(self.ticket(&thread, QueueKind::Throttled));
        self.throttled.insert(thread);
        Arrival { queue: QueueKind::Throttled, key, position: 0 }
    }

    /// When the next throttled or demoted thread gets budget.
    #[inline(never)] // keeps the path of CPUs without contexts short
    pub(crate) fn next_release_ns(&self) -> u64 {
        if self.throttled.is_empty() && self.demoted.is_empty() {
            return FOREVER;
        }
        let refill = self.throttled.first_key().map_or(FOREVER, |key| key.tag as u64);
        let promotion = self.demoted.iter().map(|demoted| demoted.ready_at_ns).min().unwrap_or(FOREVER);
        refill.min(promotion)
    }
}
