//! Everything that can go wrong, as types: SPEC-021 [SCHED:14.1.1] "Scheduler Errors". Each message names what is wrong
//! and what to do next.

use crate::alloc::Quiet;
use crate::budget::Resource;
use crate::chan::{RecvError, SendError};
use crate::cx::ChargeError;
use crate::io::IoError;
use crate::sync::WaitError;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Why something did not complete: the one error of tasks, joins, nurseries, deadlines and bodies, so that `?` passes
/// it through all of them. [`Handle::join`](crate::Handle::join) returns it for one task,
/// [`Cx::nursery`](crate::Cx::nursery) for the first task that failed.
///
/// `?` turns the errors of this crate, [`std::io::Error`] and boxed errors into a `TaskError`; [`TaskError::failed`]
/// does so for any other.
#[derive(Clone, Debug)]
pub enum TaskError {
    /// The task was cancelled before it ran, or ended itself with [`Cancelled`].
    Cancelled,
    /// The time of a [`Cx::timeout`](crate::Cx::timeout) or [`Cx::deadline`](crate::Cx::deadline) is over.
    TimedOut,
    /// There is no such task: the spawn was refused.
    Refused(SpawnError),
    /// The task that opens a nursery has less of this resource than the pool asks for. Nothing was run.
    Pool(Resource),
    /// The task panicked with this message.
    Panicked(String),
    /// The task used more stack than it was given. If a check noticed in time, the task was unwound; otherwise its
    /// frames were abandoned and no destructor ran.
    StackOverflow,
    /// A part of the task's budget was spent, and nobody was left to recharge it; or the task allocated far beyond its
    /// memory.
    BudgetExceeded(Resource),
    /// The worker that ran the task panicked in the runtime itself; the worker was replaced.
    WorkerPanic,
    /// The task returned a negative error code (C).
    Code(i64),
    /// The task returned an error: a task of [`Scope::spawn_try`](crate::Scope::spawn_try), or the body of a nursery.
    Failed(Arc<dyn Error + Send + Sync>),
}

impl TaskError {
    /// Wraps an error of your own.
    ///
    /// ```
    /// # use janus::TaskError;
    /// let number = "seven".parse::<u32>().map_err(TaskError::failed);
    /// assert_eq!(number.unwrap_err().to_string(), "the task failed: invalid digit found in string");
    /// ```
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> TaskError {
        TaskError::from(error.into())
    }

    /// Whether the error says only that the task was asked to end, even if it is wrapped in an error of your own.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            TaskError::Cancelled | TaskError::Refused(SpawnError::Cancelled) => true,
            TaskError::Failed(error) => says_cancelled(&**error),
            _ => false,
        }
    }

    /// The specification's code for C [SCHED:3.6.1].
    #[must_use]
    pub fn code(&self) -> i64 {
        match self {
            TaskError::Cancelled | TaskError::TimedOut => -1,
            TaskError::Panicked(_) | TaskError::StackOverflow | TaskError::WorkerPanic => -2,
            TaskError::BudgetExceeded(_) | TaskError::Pool(_) => -3,
            TaskError::Refused(_) => -4,
            TaskError::Code(code) => *code,
            TaskError::Failed(_) => i64::MIN,
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskError::Cancelled => f.write_str("the task was cancelled"),
            TaskError::TimedOut => {
                f.write_str("the time that was set for it is over; give it more, or retry")
            }
            TaskError::Refused(why) => write!(f, "there is no such task: {why}"),
            TaskError::Pool(r) => {
                write!(f, "the task has less {r} than the nursery's pool asks for; ask for less")
            }
            TaskError::Panicked(message) => write!(f, "the task panicked: {message}"),
            TaskError::StackOverflow => {
                f.write_str("the task overflowed its stack; give it more with Spawn::stack, or recurse less")
            }
            TaskError::BudgetExceeded(resource) => {
                write!(f, "the task's {resource} budget is spent and nobody recharged it; grant it more")
            }
            TaskError::WorkerPanic => f.write_str("the worker that ran the task panicked and was replaced"),
            TaskError::Code(code) => write!(f, "the task returned error code {code}"),
            TaskError::Failed(error) => write!(f, "the task failed: {error}"),
        }
    }
}

impl Error for TaskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TaskError::Failed(error) => Some(&**error),
            TaskError::Refused(error) => Some(error),
            _ => None,
        }
    }
}

/// Whether this error, or one of its sources, says that a task was asked to end.
fn says_cancelled(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_io = || error.downcast_ref::<std::io::Error>().and_then(IoError::of);
        let says = error.is::<Cancelled>()
            || error.downcast_ref() == Some(&RecvError::Cancelled)
            || error.downcast_ref() == Some(&ChargeError::Cancelled)
            || error.downcast_ref() == Some(&SpawnError::Cancelled)
            || error.downcast_ref() == Some(&WaitError::Cancelled)
            || error.downcast_ref() == Some(&IoError::Cancelled)
            || of_io() == Some(IoError::Cancelled)
            || error.downcast_ref().is_some_and(TaskError::is_cancelled);
        if says {
            return true;
        }
        next = error.source();
    }
    false
}

impl From<Box<dyn Error + Send + Sync>> for TaskError {
    /// An error of this crate about a task keeps its meaning; any other becomes `Failed`.
    fn from(error: Box<dyn Error + Send + Sync>) -> TaskError {
        let error = match error.downcast::<TaskError>() {
            Ok(error) => return *error,
            Err(error) => error,
        };
        if let Some(&refused) = error.downcast_ref::<SpawnError>() {
            return refused.into();
        }
        let of_io = error.downcast_ref().and_then(IoError::of);
        let of_charge = error.downcast_ref::<ChargeError>().copied();
        if let Some(IoError::BudgetExceeded(resource)) = of_io {
            return TaskError::BudgetExceeded(resource);
        }
        if let Some(ChargeError::BudgetExceeded(resource)) = of_charge {
            return TaskError::BudgetExceeded(resource);
        }
        let direct = error.is::<Cancelled>()
            || error.downcast_ref() == Some(&RecvError::Cancelled)
            || of_charge == Some(ChargeError::Cancelled)
            || error.downcast_ref() == Some(&WaitError::Cancelled)
            || of_io == Some(IoError::Cancelled);
        if direct {
            return TaskError::Cancelled;
        }
        let _quiet = Quiet::new();
        TaskError::Failed(error.into())
    }
}

impl From<SpawnError> for TaskError {
    fn from(error: SpawnError) -> TaskError {
        if error == SpawnError::Cancelled { TaskError::Cancelled } else { TaskError::Refused(error) }
    }
}

impl From<Cancelled> for TaskError {
    fn from(_: Cancelled) -> TaskError {
        TaskError::Cancelled
    }
}

impl<T> From<SendError<T>> for TaskError {
    /// The message is dropped, because an error may outlive what the message borrows.
    fn from(error: SendError<T>) -> TaskError {
        match error {
            SendError::Cancelled(_) => TaskError::Cancelled,
            SendError::Closed(_) => TaskError::failed(SendError::Closed(())),
            SendError::Full(_) => TaskError::failed(SendError::Full(())),
        }
    }
}

/// Conversions of errors that are boxed first.
macro_rules! from {
    ($($error:ty),*) => {$(
        impl From<$error> for TaskError {
            fn from(error: $error) -> TaskError {
                TaskError::failed(error)
            }
        }
    )*};
}
from!(RecvError, ChargeError, RechargeError, WaitError, std::io::Error);

/// The task was asked to end. Pass it on with `?`; the nursery waits until the task has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this task was cancelled")
    }
}

impl Error for Cancelled {}

/// Why there is no child. Nothing was changed, and the closure was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// The pool's, or the spawning task's, `spawn_count` is spent.
    SpawnBudgetExhausted,
    /// The pool has no memory for the child.
    MemoryBudgetExhausted,
    /// The pool has less of this resource than [`Spawn::budget`](crate::Spawn::budget) asks for.
    PoolExhausted(Resource),
    /// There is no open nursery here, or it is closing.
    NurseryNotActive,
    /// The profile asks for a [`CapSpawn`](crate::CapSpawn), and the task holds none.
    NoCapability,
    /// The nursery, or the spawning task, was cancelled.
    Cancelled,
    /// There is no memory for the child's stack or its closure.
    OutOfMemory,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::SpawnBudgetExhausted => f.write_str(
                "the spawn budget is spent: recharge it, or allow the task more children with Spawn::children",
            ),
            SpawnError::MemoryBudgetExhausted => f.write_str("the nursery's memory budget is spent: recharge it"),
            SpawnError::PoolExhausted(r) => write!(f, "the nursery's pool has less {r} than the child asks for"),
            SpawnError::NurseryNotActive => f.write_str("there is no open nursery here: open one first"),
            SpawnError::NoCapability => {
                f.write_str("this profile spawns only with a CapSpawn: have one granted with Spawn::grant_spawn")
            }
            SpawnError::Cancelled => f.write_str("the nursery was cancelled: it takes no more children"),
            SpawnError::OutOfMemory => f.write_str("no memory for another task"),
        }
    }
}

impl Error for SpawnError {}

/// Why a budget was not recharged. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RechargeError {
    /// A task recharges itself only with a [`CapBudget`](crate::CapBudget).
    NoCapability,
    /// The capability's limit, or the pool, has less of this resource left.
    Exhausted(Resource),
    /// The task has ended.
    Ended,
}

impl fmt::Display for RechargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RechargeError::NoCapability => f.write_str(
                "a task recharges itself only with a CapBudget: have one granted with Spawn::grant_budget",
            ),
            RechargeError::Exhausted(r) => write!(f, "there is not enough {r} left to give"),
            RechargeError::Ended => f.write_str("the task has ended"),
        }
    }
}

impl Error for RechargeError {}

/// Why a runtime was not made, or did not run something.
#[derive(Debug)]
pub enum RuntimeError {
    /// A runtime has at least one worker.
    NoWorkers,
    /// More than [`MAX_WORKERS`](crate::MAX_WORKERS).
    TooManyWorkers(usize),
    /// The `:core` profile has no scheduler [SCHED:10.2.1].
    CoreProfile,
    /// [`Runtime::run`](crate::Runtime::run) was called by one of the runtime's own tasks, which it would block.
    InsideTask,
    /// The operating system refused a thread, memory or a signal handler.
    Os(std::io::Error),
    /// The task that [`Runtime::run`](crate::Runtime::run) ran failed.
    Task(TaskError),
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuntimeError::NoWorkers => f.write_str("a runtime needs at least one worker"),
            RuntimeError::TooManyWorkers(n) => {
                write!(f, "{n} workers are too many: there may be up to {}", crate::MAX_WORKERS)
            }
            RuntimeError::CoreProfile => f.write_str(
                "the :core profile is single-threaded and has no scheduler: choose another profile",
            ),
            RuntimeError::InsideTask => f.write_str(
                "Runtime::run inside a task of the same runtime would block its worker: open a nursery",
            ),
            RuntimeError::Os(error) => write!(f, "the operating system refused: {error}"),
            RuntimeError::Task(error) => write!(f, "{error}"),
        }
    }
}

impl Error for RuntimeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RuntimeError::Os(error) => Some(error),
            RuntimeError::Task(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TaskError> for RuntimeError {
    fn from(error: TaskError) -> RuntimeError {
        RuntimeError::Task(error)
    }
}

impl From<std::io::Error> for RuntimeError {
    fn from(error: std::io::Error) -> RuntimeError {
        RuntimeError::Os(error)
    }
}
