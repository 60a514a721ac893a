//! The donation stack: every interleaving of calls, answers, revocations and ends on a few threads and contexts (M-01, S-06, S-07, S-09).
//!
//! The rules of loans are the kernel's own book, `kcore::loans`: this model drives that very file, as the kernel does, and has no copy of them.
//! What it has is the kernel's part around the book: locks, wake-ups, and the way of the box (`docs/contexts.md`). A step is one region under locks (record, ring, wait or CPU; a region under several that nest is one
//! step, as nobody can look into it), or one look of somebody who waits without a lock. Every thread has a CPU to itself: more interleavings
//! than a kernel has, never fewer.
//!
//! # The way of a box
//! On the fast path the record names the new holder first, and the box follows when the thread that has it blocks. In between it is *on its way*:
//! the new holder stands in the handoff place of that thread's CPU. Whoever else wants the box waits, without a lock. That this ends is
//! [`WAITS_END`]: whoever waits, waits for somebody who moves, or who waits for somebody who does.
//!
//! # What it does not cover
//! * Memory ordering and the locks' own order: the latter is [`crate::teardown`]'s part.
//! * CPU masks, hosting on another CPU, throttling: a thread without budget cannot work, and that is all.
//! * Refills: budget only goes down here.
//! * Fairness: it shows that nobody waits for ever on somebody who waits, not how long it takes.

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
    /// One of the book.
    Book(BookFlaw),
    /// The lender is charged after the box has left it: the charge finds no account.
    ChargedAfterMove,
    /// A call that fails completes its caller and leaves the loan.
    ReturnSkippedOnException,
    /// Who waits for a box keeps the record's lock.
    LockHeldWhileWaiting,
    /// A thread is asked to bind before its box lies in the record.
    RequestsBindTooEarly,
    /// Who waits for a box does not settle its own way first.
    OwnWayOpen,
    /// The end of a loan wakes its lender only if the ring says so.
    LenderNotWoken,
    /// A lender that is woken by something else goes back to user mode.
    LenderRuns,
    /// Lending and binding look whether the thread has a context, and do not claim it.
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
        // Nothing is to be learned behind a fault.
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

/// What a search must have met, by the bits of [`Config::expect`]; otherwise it proves less than it says.
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
    /// A box went to a server.
    pub const LENT: u16 = 1;
    /// By one who had it on loan.
    pub const NESTED: u16 = 2;
    /// A box came back with an answer.
    pub const BACK: u16 = 4;
    /// Somebody else than the two ended a loan.
    pub const ENDED: u16 = 8;
    /// A box was taken from a thread, stale.
    pub const CHASED: u16 = 16;
    /// A thread fetched what was promised to it.
    pub const FETCHED: u16 = 64;
    /// A circle was refused.
    pub const REFUSED: u16 = 128;
}

/// What is wrong with a state, as bits.
pub mod fault {
    /// A box is in no place, or in two, or was laid over another.
    pub const PLACE: u16 = 1;
    /// A thread is in user mode while its context is lent.
    pub const LENDER_RUNS: u16 = 2;
    /// A thread is in user mode on a stale box.
    pub const STALE: u16 = 4;
    /// What was used is not what is gone.
    pub const SPENT: u16 = 8;
    /// The record's frames do not say who has the box.
    pub const STACK: u16 = 16;
    /// Somebody waits for a box that nobody will move.
    pub const WAITS: u16 = 32;
    /// At rest, something is left undone.
    pub const REST: u16 = 64;
}

/// A box is a value.
pub const ONE_PLACE: &str = "every box is in exactly one place";
/// Donor blocked until the loan is back.
pub const LENDERS_WAIT: &str = "nobody is in user mode while its context is lent";
/// Generations are obeyed.
pub const NOBODY_STALE: &str = "nobody runs on a stale box";
/// Never amplified.
pub const SPENT_IS_SPENT: &str = "what was used is gone from the box, no more and no less";
/// The record is true.
pub const STACK_IS_TRUE: &str = "frames form a chain from the owner to whoever has the box";
/// No deadlock among those who wait for boxes.
pub const WAITS_END: &str = "whoever waits for a box waits for somebody who moves";
/// Nothing is forgotten.
pub const NOTHING_LEFT: &str = "at rest no wake, request to bind, frame or box is forgotten";
