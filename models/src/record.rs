//! A thread as the kernel keeps it: the slot that owns it while it waits, and the ticket of its last queue.
//!
//! The slot is why exactly one waker wins: the [`Blocked`] in it can be moved out once. A wake that comes while the thread
//! is elsewhere leaves a *permit*, and the CPU that wants to park the thread finds it: the wake is not lost.

use std::sync::Arc;

use sched::{Blocked, Payload, Runnable, ThreadId, Ticket};

use crate::sync::{Backend, LEAF, Lock, Word};

/// Where a thread is, seen from its slot.
pub enum Slot<B: Backend> {
    /// In a queue, on a CPU, or in somebody's hands.
    Away {
        /// A wake came in the meantime.
        permit: bool,
    },
    /// Here.
    Parked(Blocked<Handle<B>>),
    /// Nowhere any more.
    Dead,
}

/// The kernel's record of one thread.
pub struct Record<B: Backend> {
    /// Its name.
    pub id: ThreadId,
    /// Guards the slot; a leaf.
    pub slot: B::Lock<Slot<B>>,
    /// Guards the last ticket; a leaf, also taken under CPU locks.
    ticket: B::Lock<Option<Ticket>>,
    /// Not zero: to be killed by whoever has it. Set before the slot is searched, so that a CPU that parks the thread either
    /// sees it or leaves the thread in the slot for the killer.
    doomed: B::Word,
}

impl<B: Backend> Record<B> {
    /// A thread that waits. `adjust` sets its knobs.
    pub fn parked(id: u64, adjust: impl FnOnce(&mut Blocked<Handle<B>>)) -> Arc<Record<B>> {
        let record = Arc::new(Record {
            id: ThreadId(id),
            slot: B::Lock::new(LEAF, Slot::Dead),
            ticket: B::Lock::new(LEAF, None),
            doomed: B::Word::new(),
        });
        let mut blocked = Runnable::new(ThreadId(id), Handle(Arc::clone(&record))).park();
        adjust(&mut blocked);
        *record.slot.lock() = Slot::Parked(blocked);
        record
    }

    /// Where it was queued last.
    pub fn ticket(&self) -> Option<Ticket> {
        *self.ticket.lock()
    }

    /// From here on, whoever has the thread ends it.
    pub fn doom(&self) {
        self.doomed.set(1);
    }

    /// Is it to be killed?
    pub fn is_doomed(&self) -> bool {
        self.doomed.load() != 0
    }
}

/// What the core carries for the kernel with each thread.
pub struct Handle<B: Backend>(pub Arc<Record<B>>);

impl<B: Backend> Payload for Handle<B> {
    fn queued(&self, ticket: Ticket) {
        *self.0.ticket.lock() = Some(ticket);
    }
}
