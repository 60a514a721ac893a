//! The word that synchronises a task's end with its handle: SPEC-021 [SCHED:15.2.2], results only to the parent.
//!
//! Invariants, checked under loom by `models/tests/janus_wake_loom.rs`:
//! 1. Exactly one side frees the task: the later one of [`Join::finish`] and [`Join::detach`] (a join counts as a
//!    detach after the end).
//! 2. A joiner that has registered is woken by `finish`, and by nothing else.

use crate::atomics::{AtomicUsize, Ordering};

const OPEN: usize = 0;
const DONE: usize = 1;
const DETACHED: usize = 2;

/// See the module. A waiter is a number above 2, whose meaning this file does not know.
pub(crate) struct Join(AtomicUsize);

/// What `finish` found, and so who frees the task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// No joiner waits yet: the handle still exists, and its holder frees the task.
    Kept,
    /// There is no handle any more: the caller drops the result and frees the task.
    Unwanted,
    /// This waiter waits, and frees the task. The caller wakes it and does not touch the task again.
    Awaited(usize),
}

impl Join {
    pub(crate) fn new() -> Join {
        Join(AtomicUsize::new(OPEN))
    }

    /// Prepares the word for a new task; `wanted`: there will be a handle.
    #[inline]
    pub(crate) fn reset(&self, wanted: bool) {
        self.0.store(if wanted { OPEN } else { DETACHED }, Ordering::Relaxed);
    }

    /// Called when the task has ended and its result is written.
    #[inline]
    pub(crate) fn finish(&self) -> Finished {
        match self.0.swap(DONE, Ordering::AcqRel) {
            OPEN => Finished::Kept,
            DETACHED => Finished::Unwanted,
            waiter => Finished::Awaited(waiter),
        }
    }

    /// Has the task ended?
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) == DONE
    }

    /// Whether there is no handle any more. Only the task asks, before its end.
    #[inline]
    pub(crate) fn is_detached(&self) -> bool {
        self.0.load(Ordering::Acquire) == DETACHED
    }

    /// Registers a joiner; false: the task has ended already. Registering again is harmless. There is one handle, so
    /// one joiner at a time: it replaces an earlier joiner that gave up.
    #[inline]
    pub(crate) fn wait(&self, waiter: usize) -> bool {
        debug_assert!(waiter > DETACHED);
        let mut found = OPEN;
        while found != DONE {
            match self.0.compare_exchange(found, waiter, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => found = other,
            }
        }
        false
    }

    /// Called when the handle goes away. True: the task had ended, and the caller drops the result and frees the task.
    #[inline]
    #[must_use]
    pub(crate) fn detach(&self) -> bool {
        self.0.swap(DETACHED, Ordering::AcqRel) == DONE
    }
}
