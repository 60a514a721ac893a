//! What the dispatcher asks of layers above it, which hand it down at boot (K-25). None of it is on the usual path of a switch.

use crate::dispatch::heads::{self, ContextHead, ThreadHead};
use crate::hook::Hook;
use crate::mm::stacks::OffStackToken;
use ::sched::{ContextInfo, Missed, Noted, ThreadId};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;

/// What layers above do.
pub struct Above {
    /// The current thread fetches the context that is promised to it, before it waits.
    pub complete_bind: fn(&'static ThreadHead),
    /// The budget of a thread is spent, and the thread was stopped for that.
    pub fault: fn(&'static ThreadHead),
    /// A thread was stopped on the way to a context that is promised to it.
    pub deliver: fn(&'static ThreadHead),
    /// Observers of a context are told. Without a lock held.
    pub post: fn(&News),
    /// A thread has ended, and is off its stack.
    pub reap: fn(&'static ThreadHead, OffStackToken),
}

static ABOVE: Hook<&'static Above> = Hook::empty();

/// Before the first thread runs.
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
    /// Which life of the record it is about.
    pub id: u64,
    /// What was noted.
    pub noted: Noted,
    /// Who ran on it.
    pub holder: ThreadRef,
    /// Usable then.
    pub remaining_ns: u64,
    /// The next refill, or the deadline that passed.
    pub next_ns: u64,
    /// The holder had it on loan.
    pub donated: bool,
}

impl News {
    /// Who ran on the context.
    pub(super) fn thread(&self) -> Option<&'static ThreadHead> {
        heads::get(self.holder.tid)
    }

    /// `thread` left its CPU, and the core noted something about its context, which has `left` if it is queued. The CPU's lock is held, and so
    /// the thread's *wait* lock if it waits: nobody takes its context away meanwhile, and the record is still its.
    pub(super) fn of_left(thread: &ThreadHead, noted: Noted, left: Option<&ContextInfo>) -> Option<News> {
        let context = thread.context()?;
        Some(News {
            context: thread.context_record(),
            id: context.life.load(Ordering::Relaxed),
            noted,
            holder: thread.reference(),
            remaining_ns: left.map_or(0, |left| left.available_ns),
            next_ns: left.map_or(0, |left| left.ready_at_ns),
            // Without the record's lock, which may not be taken here: a chain that changes at this moment may be told either way.
            donated: thread.borrows.load(Ordering::Relaxed),
        })
    }

    /// A deadline passed while its thread waited for the CPU, or ran (S-15). Without a lock held.
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
