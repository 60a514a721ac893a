//! The functions of higher layers that the dispatcher calls; those layers pass them down at boot (K-25). None is on the usual path of a switch.

use crate::dispatch::heads::{self, ContextHead, ThreadHead};
use crate::hook::Hook;
use crate::mm::stacks::OffStackToken;
use ::sched::{ContextInfo, Missed, Noted, ThreadId};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;

/// The functions of higher layers that the dispatcher calls.
pub struct Above {
    /// Makes the current thread fetch the context that is promised to it, before it blocks.
    pub complete_bind: fn(&'static ThreadHead),
    /// Raises the timeout fault of a thread that was stopped because its budget is spent.
    pub fault: fn(&'static ThreadHead),
    /// Gives a thread the context that is promised to it, because it was stopped before it could fetch it.
    pub deliver: fn(&'static ThreadHead),
    /// Tells the observers of a context. Called without a lock held.
    pub post: fn(&News),
    /// Frees the resources of a thread that has ended and no longer uses its stack.
    pub reap: fn(&'static ThreadHead, OffStackToken),
}

static ABOVE: Hook<&'static Above> = Hook::empty();

/// Sets the functions of higher layers; called once, before the first thread runs.
pub fn hand_down(above: &'static Above) {
    ABOVE.set(above);
}

pub(super) fn above() -> &'static Above {
    ABOVE.get().expect("handed down before the first thread runs")
}

/// What the core noted about a context, for its observers: kept in the CPU's own memory until no lock is held.
#[derive(Clone, Copy)]
pub struct News {
    /// The context's record, as threads name it.
    pub context: *const ContextHead,
    /// Which context this is about: records are used again, under another number.
    pub id: u64,
    /// What was noted.
    pub noted: Noted,
    /// The thread that ran on it.
    pub holder: ThreadRef,
    /// How much of the budget was usable then.
    pub remaining_ns: u64,
    /// When the next refill comes; for [`News::of_missed`], the deadline that was missed.
    pub next_ns: u64,
    /// Whether the holder had it on loan.
    pub donated: bool,
}

impl News {
    /// The thread that ran on the context.
    pub(super) fn thread(&self) -> Option<&'static ThreadHead> {
        heads::get(self.holder.tid)
    }

    /// What the core noted about the context of `thread`, which was switched out; `left` is the context's state if the thread is queued. The caller
    /// holds the CPU's lock, and the thread's *wait* lock if it blocks: so the context cannot be taken away meanwhile, and the record is still this
    /// thread's.
    pub(super) fn of_left(thread: &ThreadHead, noted: Noted, left: Option<&ContextInfo>) -> Option<News> {
        let context = thread.context()?;
        Some(News {
            context: thread.context_record(),
            id: context.life.load(Ordering::Relaxed),
            noted,
            holder: thread.reference(),
            remaining_ns: left.map_or(0, |left| left.available_ns),
            next_ns: left.map_or(0, |left| left.ready_at_ns),
            // Read without the context record's lock, which may not be taken here: if the loan changes at this moment, either answer is right.
            donated: thread.borrows.load(Ordering::Relaxed),
        })
    }

    /// A deadline that passed while its thread was queued or running (S-15). Called without a lock held.
    pub(super) fn of_missed(missed: &Missed) -> Option<News> {
        let ThreadId(tid) = missed.thread;
        let thread = heads::get(tid as u32)?;
        thread.context()?;
        Some(News {
            context: thread.context_record(),
            id: missed.context.identity.id,
            noted: Noted::LATE,
            holder: thread.reference(),
            remaining_ns: missed.context.available_ns,
            next_ns: missed.deadline_ns,
            donated: thread.borrows.load(Ordering::Relaxed),
        })
    }
}
