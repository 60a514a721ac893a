//! Finding queued threads, by ticket or one after the other, and reading their counters.

use crate::cpu::Cpu;
use crate::entity::{Entity, Key};
use crate::queue::Wanted;
use crate::{Payload, Policy, QueueKind, Snapshot, ThreadId, Ticket};

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// Calls `visit` with the ticket and snapshot of every queued thread, its present wait included. Linear: for listings, not for dispatch.
    pub fn for_each_queued(&self, mut visit: impl FnMut(Ticket, Snapshot, &T)) {
        let queues = [
            (QueueKind::Guaranteed, &self.guaranteed),
            (QueueKind::Open, &self.open),
            (QueueKind::Restricted, &self.restricted),
            (QueueKind::Throttled, &self.throttled),
        ];
        for (queue, threads) in queues {
            threads.for_each(&mut |thread| {
                visit(self.ticket(thread, queue), self.waiting_snapshot(thread, queue), &thread.payload);
            });
        }
        if let Some(thread) = &self.direct {
            let direct = QueueKind::Direct;
            visit(self.ticket(thread, direct), self.waiting_snapshot(thread, direct), &thread.payload);
        }
    }

    /// The ticket of a thread, valid until the thread moves. For a thread that is not queued here, a ticket that finds nothing. Linear: for
    /// callers that do not keep the tickets that [`Payload::queued`] brings.
    pub fn find(&self, thread: ThreadId) -> Ticket {
        let mut found =
            Ticket { thread, cpu: self.id, queue: QueueKind::Direct, key: Key { tag: 0, sequence: 0 } };
        self.for_each_queued(|ticket, _, _| {
            if ticket.thread == thread {
                found = ticket;
            }
        });
        found
    }

    /// The thread that waits where the ticket says, unless the ticket is stale.
    pub(crate) fn waiting_at(&self, ticket: &Ticket) -> Option<&Entity<T>> {
        if ticket.cpu != self.id {
            return None;
        }
        let waiting = match ticket.queue {
            QueueKind::Direct => self.direct.as_deref().filter(|thread| thread.key == ticket.key),
            QueueKind::Guaranteed => self.guaranteed.find(Wanted::Exactly(ticket.key)),
            QueueKind::Open => self.open.find(Wanted::Exactly(ticket.key)),
            QueueKind::Restricted => self.restricted.find(Wanted::Exactly(ticket.key)),
            QueueKind::Throttled => self.throttled.find(Wanted::Exactly(ticket.key)),
        };
        waiting.filter(|thread| thread.id == ticket.thread)
    }

    /// Counters and knobs of a queued thread, its present wait included. `None` if the ticket is stale.
    pub fn queued_snapshot(&self, ticket: &Ticket) -> Option<Snapshot> {
        self.waiting_at(ticket).map(|thread| self.waiting_snapshot(thread, ticket.queue))
    }

    /// A snapshot as of the last charge. A wait enters a thread's account only when it ends, so the present one is added here.
    fn waiting_snapshot(&self, thread: &Entity<T>, queue: QueueKind) -> Snapshot {
        let mut snapshot = thread.snapshot();
        let mut account = thread.account;
        if queue == QueueKind::Throttled {
            let refill_ns = thread.key.tag as u64;
            account.end_throttle(refill_ns, self.at_ns);
            snapshot.throttled_ns = account.throttled_ns;
            snapshot.is_throttled = refill_ns > self.at_ns;
        }
        snapshot.runnable_accumulated_ns += self.at_ns.saturating_sub(account.runnable_since_ns);
        snapshot
    }

    pub(crate) fn ticket(&self, thread: &Entity<T>, queue: QueueKind) -> Ticket {
        Ticket { thread: thread.id, cpu: self.id, queue, key: thread.key }
    }
}
