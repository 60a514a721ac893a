//! What the core answers: who runs, until when, and what the caller has to see to.

use alloc::boxed::Box;

use crate::{Blocked, Context, Runnable, ThreadId};

/// What the caller must do after an event.
#[must_use = "the CPU may have to be dispatched or its timer armed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: who runs and until when is unchanged.
    Keep,
    /// The same thread goes on, but the timer must fire at this time ([`crate::FOREVER`]: not at all).
    Rearm {
        /// When.
        until_ns: u64,
    },
    /// Call [`crate::Cpu::dispatch`].
    Dispatch,
}

/// Who runs next, and until when.
#[must_use = "the CPU must switch to the chosen thread and arm its timer"]
#[derive(Debug)]
pub struct Decision<T> {
    /// The thread to run; `None` is idle.
    pub run: Option<ThreadId>,
    /// Ask again no later than this ([`crate::FOREVER`]: no timer needed).
    pub until_ns: u64,
    /// Whether this is another thread than before.
    pub switched: bool,
    /// What happened to the context that the CPU was last used on, since the last decision.
    pub noted: Noted,
    /// The thread that ran before, if it may not be queued again.
    pub evicted: Option<Evicted<T>>,
}

/// One thread waits and another runs in its place, at once: what came of [`crate::Cpu::take_place`].
#[derive(Debug)]
pub struct Replaced<T> {
    /// Who waits.
    pub blocked: Blocked<T>,
    /// Who runs.
    pub run: ThreadId,
    /// As [`Decision::until_ns`].
    pub until_ns: u64,
}

/// What an observer of a context wants to be told (S-08). It is about the context of the thread that ran before. A set of bits: every
/// dispatch asks whether there is anything.
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

    /// Both.
    #[must_use]
    pub const fn and(self, other: Noted) -> Noted {
        Noted(self.0 | other.0)
    }

    /// All but `other`.
    #[must_use]
    pub const fn without(self, other: Noted) -> Noted {
        Noted(self.0 & !other.0)
    }

    /// This, if `so`.
    #[must_use]
    pub const fn only_if(self, so: bool) -> Noted {
        if so { self } else { Noted::NOTHING }
    }

    /// Is `what` among it?
    #[must_use]
    pub const fn has(self, what: Noted) -> bool {
        self.0 & what.0 != 0
    }
}

/// A thread that was taken off the CPU and out of all queues.
#[derive(Debug)]
pub struct Evicted<T> {
    /// It.
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

/// Who waits now, and who runs: the answer of [`crate::Cpu::block_for`].
pub type Exchanged<T> = (Option<Blocked<T>>, Decision<T>);

/// A context that was taken from its thread: the answer of [`crate::Cpu::take_context`].
#[must_use = "the CPU may have to be dispatched, and the thread may be in your hands now"]
#[derive(Debug)]
pub struct Taken<T> {
    /// The time.
    pub context: Box<Context>,
    /// What the CPU must do.
    pub effect: Effect,
    /// The thread, if it waited in a queue and runs on contexts only: it stops here, and is in the caller's hands, as with
    /// [`EvictionReason::ContextLost`]. One that *runs* is evicted by the dispatch that `effect` asks for.
    pub stopped: Option<Blocked<T>>,
}

/// One cannot queue behind that thread: it has no budget or does not wait here, or the caller itself runs on no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotReady;
