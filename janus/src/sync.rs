//! Locks and related primitives for tasks: they block the task and not its worker, first come first served.
//!
//! | to | use |
//! |---|---|
//! | let one task at a time use something | [`Mutex`] |
//! | wait until the value of a mutex has changed | [`Condvar`] |
//! | let a limited number of tasks at a time use something | [`Semaphore`] |
//! | make something once, by the task that needs it first | [`OnceCell`], [`Once`] |
//! | wait for each other | [`Barrier`] |
//!
//! Each call that may wait costs one channel operation and one of `ops`, however long it waits: a lock is like a
//! channel with one token in it. Each call ends with [`Cancelled`] when the task is cancelled, and calls with a timeout
//! end with [`WaitError::TimedOut`]. With a seed all of them replay.
//!
//! There is no poisoning: a task that panics while it holds a lock releases it as it unwinds, and its nursery learns of
//! the panic. A task that runs over its stack and cannot be unwound releases nothing (`docs/overflow.md`).

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

/// Why a wait with a timeout ended without success.
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

/// For waits without a timeout, which can fail for one reason only.
fn cancelled(_: WaitError) -> Cancelled {
    Cancelled
}
