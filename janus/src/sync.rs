//! Locks and their relatives for tasks: they block the task and not its worker, first come first served.
//!
//! | to | use |
//! |---|---|
//! | let one at a time at something | [`Mutex`] |
//! | wait until what is in it has changed | [`Condvar`] |
//! | let so many at a time at something | [`Semaphore`] |
//! | make something once, by whoever needs it first | [`OnceCell`], [`Once`] |
//! | wait for each other | [`Barrier`] |
//!
//! Each call that may wait costs one channel operation and one of `ops`, however long it waits: a lock is a channel with one
//! token in it. Each ends with [`Cancelled`] when the task is cancelled, and those with a timeout with
//! [`WaitError::TimedOut`]. Under a seed all of them replay.
//!
//! There is no poison: a task that panics while it holds a lock gives it back as it unwinds, and its nursery learns of the
//! panic. A task that overflows its stack gives back nothing (`docs/overflow.md`).

mod barrier;
mod condvar;
mod mutex;
mod once;
mod semaphore;

pub use barrier::Barrier;
pub use condvar::Condvar;
pub use mutex::{Mutex, MutexGuard};
pub use once::{Once, OnceCell};
pub use semaphore::{Permit, Semaphore};

use crate::error::Cancelled;
use std::error::Error;
use std::fmt;

/// Why a wait with a timeout ended for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// The task was cancelled.
    Cancelled,
    /// The time is over.
    TimedOut,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitError::Cancelled => "this task was cancelled",
            WaitError::TimedOut => "the time that was set for this wait is over",
        })
    }
}

impl Error for WaitError {}

impl From<Cancelled> for WaitError {
    fn from(_: Cancelled) -> WaitError {
        WaitError::Cancelled
    }
}

/// A wait without a timeout ends for one reason only.
fn cancelled(_: WaitError) -> Cancelled {
    Cancelled
}
