//! Why an actor ended, and why a supervisor gave up.

use crate::budget::Resource;
use crate::error::{SpawnError, TaskError};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How one incarnation of a child ended.
#[derive(Clone, Debug)]
pub enum Exit {
    /// It returned `Ok`.
    Normal,
    /// It returned an error. The error of a supervisor that gave up is a [`GaveUp`].
    Failed(Arc<dyn Error + Send + Sync>),
    /// It panicked with this message.
    Panicked(String),
    /// It used more stack than it was given.
    Overflow,
    /// This part of its budget was spent, and its supervisor gave it no more.
    Budget(Resource),
    /// It ended itself with [`Cancelled`](crate::Cancelled), though nobody had asked it to.
    Cancelled,
    /// Its supervisor stopped it: for good, or because a sibling is restarted.
    Stopped,
    /// This actor, to which it was linked, ended abnormally.
    Linked(&'static str),
    /// No task could be spawned for it.
    NotStarted(SpawnError),
    /// The runtime itself failed under it.
    Runtime,
}

impl Exit {
    /// Whether the end is a fault. A [transient](super::Restart::Transient) child is restarted after one, and links
    /// pass it on.
    #[must_use]
    pub fn is_abnormal(&self) -> bool {
        !matches!(self, Exit::Normal | Exit::Cancelled | Exit::Stopped)
    }

    pub(super) fn of(result: Result<(), TaskError>) -> Exit {
        match result {
            Ok(()) => Exit::Normal,
            Err(TaskError::Cancelled) => Exit::Cancelled,
            Err(TaskError::Panicked(message)) => Exit::Panicked(message),
            Err(TaskError::StackOverflow) => Exit::Overflow,
            Err(TaskError::BudgetExceeded(resource)) => Exit::Budget(resource),
            Err(TaskError::Failed(error)) => Exit::Failed(error),
            Err(TaskError::Refused(error)) => Exit::NotStarted(error),
            // An ordinary error that the child passed on.
            Err(error @ (TaskError::TimedOut | TaskError::Pool(_))) => Exit::Failed(Arc::new(error)),
            Err(TaskError::Code(_) | TaskError::WorkerPanic) => Exit::Runtime,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Normal => f.write_str("returned"),
            Exit::Failed(error) => write!(f, "failed: {error}"),
            Exit::Panicked(message) => write!(f, "panicked: {message}"),
            Exit::Overflow => f.write_str("overflowed its stack"),
            Exit::Budget(resource) => write!(f, "spent its {resource} budget"),
            Exit::Cancelled => f.write_str("cancelled itself"),
            Exit::Stopped => f.write_str("was stopped"),
            Exit::Linked(name) => write!(f, "was linked to {name}, which failed"),
            Exit::NotStarted(error) => write!(f, "was not started: {error}"),
            Exit::Runtime => f.write_str("failed with the runtime under it"),
        }
    }
}

/// The error of a supervisor that restarts no more: its children are stopped, and its own supervisor, or the task that
/// ran it, learns why.
#[derive(Clone, Debug)]
pub struct GaveUp {
    /// The child that ended once too often.
    pub child: &'static str,
    /// How it ended the last time.
    pub exit: Exit,
    /// The number of restarts that were allowed.
    pub restarts: usize,
    /// The time within which they were allowed.
    pub window: Duration,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GaveUp { child, exit, restarts, window } = self;
        write!(f, "{child} {exit}, and {restarts} restarts in {window:?} are all that is allowed")
    }
}

impl Error for GaveUp {}
