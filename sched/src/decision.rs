//! The answers of the core: which thread runs, until when, and what the caller must do.

use alloc::boxed::Box;

use crate::{Blocked, Context, Runnable, ThreadId};

/// What the caller must do after an event.
#[must_use = "the CPU may have to be dispatched or its timer armed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: which thread runs and until when is unchanged.
    Keep,
    /// The same thread goes on, but the timer must fire at this time ([`crate::FOREVER`]: not at all).
    Rearm {
        /// When the timer must fire.
        until_ns: u64,
    },
    /// Call [`crate::Cpu::dispatch`].
    Dispatch,
}

/// Which thread runs next, and until when.
#[must_use = "the CPU must switch to the chosen thread and arm its timer"]
#[derive(Debug)]
pub struct Decision<T> {
    /// The thread to run; `None` is idle.
    pub run: Option<ThreadId>,
    /// Ask again no later than this ([`crate::FOREVER`]: no timer needed).
    pub until_ns: u64,
    /// Whether this is another thread than before.
    pub switched: bool,
    /// What happened, since the last decision, to the context of the thread that ran.
    pub noted: Noted,
    /// The thread that ran before, if it may not be queued again.
    pub evicted: Option<Evicted<T>>,
}

/// The result of [`crate::Cpu::take_place`]: one thread has blocked, and another one runs in its place.
#[derive(Debug)]
pub struct Replaced<T> {
    /// The thread that has blocked.
    pub blocked: Blocked<T>,
    /// The thread that runs.
    pub run: ThreadId,
    /// As [`Decision::until_ns`].
    pub until_ns: u64,
}

/// What an observer of a context wants to be told (S-08), about the context of the thread that ran before. A set of bits, because
/// every dispatch asks whether there is anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Noted(u8);

impl Noted {
    /// Nothing to tell.
    pub const NOTHING: Noted = Noted(0);
    /// The budget ran dry.
    pub const DEPLETED: Noted = Noted(1);
    /// A refill was not served within its deadline, though its thread was running or ready.
    pub const LATE: Noted = Noted(2);
    /// The thread waits for its refill now.
    pub const THROTTLED: Noted = Noted(4);

    /// The union of both sets.
    #[must_use]
    pub const fn and(self, other: Noted) -> Noted {
        Noted(self.0 | other.0)
    }

    /// All but `other`.
    #[must_use]
    pub const fn without(self, other: Noted) -> Noted {
        Noted(self.0 & !other.0)
    }

    /// This set if `so`, otherwise the empty one.
    #[must_use]
    pub const fn only_if(self, so: bool) -> Noted {
        if so { self } else { Noted::NOTHING }
    }

    /// Whether anything of `what` is in the set.
    #[must_use]
    pub const fn has(self, what: Noted) -> bool {
        self.0 & what.0 != 0
    }
}

/// A thread that was taken off the CPU and out of all queues.
#[derive(Debug)]
pub struct Evicted<T> {
    /// The thread.
    pub thread: Blocked<T>,
    /// Why.
    pub reason: EvictionReason,
}

/// Why a thread was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// Its budget is spent, and its context asks for a timeout fault.
    TimeoutFault,
    /// It runs on contexts only, and lost its own.
    ContextLost,
}

/// A thread that may not run on the CPU it was given to (or nowhere: it runs on contexts only, and has none); it comes back
/// unchanged.
#[derive(Debug)]
pub struct Misplaced<T>(pub Runnable<T>);

/// The thread that has blocked, and the decision that follows: the answer of [`crate::Cpu::block_for`].
pub type Exchanged<T> = (Option<Blocked<T>>, Decision<T>);

/// A context that was taken from its thread: the answer of [`crate::Cpu::take_context`].
#[must_use = "the CPU may have to be dispatched, and the thread may be in your hands now"]
#[derive(Debug)]
pub struct Taken<T> {
    /// The context.
    pub context: Box<Context>,
    /// What the CPU must do.
    pub effect: Effect,
    /// The thread, if it waited in a queue and runs on contexts only: it stops here, and the caller holds it, as with
    /// [`EvictionReason::ContextLost`]. A thread that *runs* is evicted by the dispatch that `effect` asks for.
    pub stopped: Option<Blocked<T>>,
}

/// [`crate::Cpu::yield_to`] is not possible: the target has no budget or does not wait here, or the running thread has no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady;
