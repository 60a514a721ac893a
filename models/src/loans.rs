//! The donation stack: every interleaving of calls, answers, revocations and ends on a few threads and contexts (M-01, S-06, S-07, S-09).
//!
//! The rules of loans are the kernel's own book, `kcore::loans`: this model drives that very file, as the kernel does, and has no copy of them. It
//! models the kernel's part around the book: locks, wake-ups, and the moves of a context (the [`Box`]) between threads and its record
//! (`docs/contexts.md`). A step is one critical section (record, ring, wait or CPU lock; nested ones are one step, because no other CPU can see into
//! them), or one check by an actor that waits without a lock. Every thread has a CPU to itself: more interleavings than a kernel has, never fewer.
//!
//! # Contexts in transit
//! On the fast path the record names the new holder first, and the context follows when the thread that has it blocks. In between it is *in transit*:
//! the new holder is in the handoff slot of that thread's CPU. An actor that wants the context meanwhile waits, without a lock. That such waits end
//! is [`WAITS_END`]: a chain of actors that wait for each other ends with one that can go on.
//!
//! # What it does not cover
//! * Memory ordering and the locks' own order: the latter is [`crate::teardown`]'s part.
//! * CPU masks, hosting on another CPU, throttling: here a thread without budget only cannot work.
//! * Refills: budget only goes down here.
//! * Fairness: it shows that no circle of actors wait for each other for ever, not how long a wait takes.

mod check;
mod end;
mod meet;
mod state;
mod step;

use stateright::{Model, Property};

pub use kcore::loans::Flaw as BookFlaw;
pub use state::{Action, Box, Config, Errand, Op, State};

/// A bug that can be planted, in the book or around it. A kernel has none of these branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A bug in the book itself.
    Book(BookFlaw),
    /// The lender is charged after its context has left it, so the charge goes to no account.
    ChargedAfterMove,
    /// A call that fails completes its caller and leaves the loan.
    ReturnSkippedOnException,
    /// An actor that waits for a context keeps the record's lock.
    LockHeldWhileWaiting,
    /// A thread is asked to bind before the context is in the record.
    RequestsBindTooEarly,
    /// A thread that waits for a context does not empty its own handoff slot first.
    OwnWayOpen,
    /// The end of a loan wakes its lender only if the ring says so.
    LenderNotWoken,
    /// A lender that is woken by something else goes back to user mode.
    LenderRuns,
    /// Lending and binding check whether the thread has a context, but do not claim the thread.
    Unclaimed,
    /// A server keeps its loan when it asks for the next call.
    KeptOverRecv,
    /// A loan is made along a call that has been answered or has failed meanwhile.
    LentAlongNothing,
    /// A loan is made to a server that has asked for more calls than this one.
    LentToReceiver,
    /// A thread that ends gives back the loans of calls that it has not answered, not those that the record says it has.
    EndsByCalls,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Loans(pub Config);

impl Model for Loans {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // The search stops at a fault: what follows from it tells nothing.
        if state.faults() == 0 {
            state.enabled(&self.0, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        next.act(&self.0, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Loans>> {
        let mut properties: Vec<Property<Loans>> = vec![
            Property::always(ONE_PLACE, |_, state: &State| state.faults() & fault::PLACE == 0),
            Property::always(LENDERS_WAIT, |_, state: &State| state.faults() & fault::LENDER_RUNS == 0),
            Property::always(NOBODY_STALE, |_, state: &State| state.faults() & fault::STALE == 0),
            Property::always(SPENT_IS_SPENT, |_, state: &State| state.faults() & fault::SPENT == 0),
            Property::always(STACK_IS_TRUE, |_, state: &State| state.faults() & fault::STACK == 0),
            Property::always(WAITS_END, |_, state: &State| state.faults() & fault::WAITS == 0),
            Property::always(NOTHING_LEFT, |_, state: &State| state.faults() & fault::REST == 0),
        ];
        for (wanted, name, seen) in SEEN {
            if self.0.expect & wanted != 0 {
                properties.push(Property::sometimes(name, seen));
            }
        }
        properties
    }
}

type Seen = fn(&Loans, &State) -> bool;

/// What a search must have met, by the bits of [`Config::expect`]: a search that never met it would prove less than it claims.
const SEEN: [(u16, &str, Seen); 7] = [
    (mark::LENT, "a box is lent", |_, state| state.marks & mark::LENT != 0),
    (mark::NESTED, "a loan is lent on", |_, state| state.marks & mark::NESTED != 0),
    (mark::BACK, "a box comes back by an answer", |_, state| state.marks & mark::BACK != 0),
    (mark::ENDED, "a third party ends a loan", |_, state| state.marks & mark::ENDED != 0),
    (mark::CHASED, "a revocation takes the box from a thread", |_, state| state.marks & mark::CHASED != 0),
    (mark::FETCHED, "a promised box is fetched", |_, state| state.marks & mark::FETCHED != 0),
    (mark::REFUSED, "a circle is refused", |_, state| state.marks & mark::REFUSED != 0),
];

/// What the last step showed, as bits.
pub mod mark {
    /// A context went to a server.
    pub const LENT: u16 = 1;
    /// The lender had it on loan itself.
    pub const NESTED: u16 = 2;
    /// A context came back with an answer.
    pub const BACK: u16 = 4;
    /// An actor other than lender and borrower ended a loan.
    pub const ENDED: u16 = 8;
    /// A revoked context was taken from the thread that had it.
    pub const CHASED: u16 = 16;
    /// A thread fetched what was promised to it.
    pub const FETCHED: u16 = 64;
    /// A circle was refused.
    pub const REFUSED: u16 = 128;
}

/// What is wrong with a state, as bits.
pub mod fault {
    /// A context is in no place, in two, or was put where another one was.
    pub const PLACE: u16 = 1;
    /// A thread is in user mode while its context is lent.
    pub const LENDER_RUNS: u16 = 2;
    /// A thread is in user mode on a context of an earlier generation.
    pub const STALE: u16 = 4;
    /// The budget that is gone is not the work that was done.
    pub const SPENT: u16 = 8;
    /// The record's chain of loans does not lead to the thread that has the context.
    pub const STACK: u16 = 16;
    /// An actor waits for a context that no actor will move.
    pub const WAITS: u16 = 32;
    /// At rest, something is left undone.
    pub const REST: u16 = 64;
}

/// A context is a value that cannot be copied.
pub const ONE_PLACE: &str = "every box is in exactly one place";
/// A lender stays blocked until the loan is back.
pub const LENDERS_WAIT: &str = "nobody is in user mode while its context is lent";
/// Generations are obeyed.
pub const NOBODY_STALE: &str = "nobody runs on a stale box";
/// Lending never amplifies a budget.
pub const SPENT_IS_SPENT: &str = "what was used is gone from the box, no more and no less";
/// The record tells the truth.
pub const STACK_IS_TRUE: &str = "frames form a chain from the owner to whoever has the box";
/// There is no deadlock among actors that wait for contexts.
pub const WAITS_END: &str = "whoever waits for a box waits for somebody who moves";
/// Nothing is forgotten.
pub const NOTHING_LEFT: &str = "at rest no wake, request to bind, frame or box is forgotten";
