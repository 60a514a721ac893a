//! The run-queue ownership model: every interleaving of the steps of a small [`World`] (M-01, F-01, F-08).
//!
//! # How it drives the real code
//! `sched::Cpu` can be neither cloned nor hashed, and should not have to be. A state is the list of actions that led to it; to
//! expand it, the actions are replayed on a fresh machine. States are compared by [`World::key`].
//!
//! # Why comparing by key is sound
//! With `ticks: 0` time stands still. Then no thread is ever charged, all virtual positions, lags and clocks are
//! equal, and what a `Cpu` will do follows from the order of its queues, its running thread, the end it was promised,
//! and each thread's last CPU, all of which are in the key. What the key leaves out only counts up (sequence numbers, counters) and is used for
//! nothing but the order that is in it. So two states with one key have the same future, and the search ends with *all*
//! reachable states, not with those of a bounded depth.
//!
//! With `ticks` above 0, timers fire that many times. The key then also holds the clocks, the tags and the virtual run times; the
//! lag of a waiting thread follows from its last tag, its run time and the clocks when it left, of which the last is not in
//! the key. Two such states may be taken for one, so these runs may miss a state; they report no false one.
//!
//! # What it does not cover
//! * Memory ordering: steps are sequentially consistent. That is loom's part.
//! * Hints torn or older than one step.
//! * Contexts, weights and balancing: the stress and the simulator have them.
//! * More CPUs and threads than are asked for, and liveness beyond "at rest, nothing is left undone".

use stateright::{Model, Property};

use crate::world::{Action, Config, World, fault, mark};

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Ownership(pub Config);

/// The way to a state, and what was found there.
#[derive(Clone, Debug)]
pub struct State {
    history: Vec<Action>,
    key: Vec<u8>,
    enabled: Vec<Action>,
    faults: u16,
    marks: u16,
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.key.hash(hasher);
        // What is wrong, or was shown, by the last step must not hide behind a state that was reached properly.
        (self.faults, self.marks).hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        (&self.key, self.faults, self.marks) == (&other.key, other.faults, other.marks)
    }
}

impl Ownership {
    fn replay(&self, history: Vec<Action>) -> State {
        let mut world = World::new(self.0);
        history.iter().for_each(|action| world.act(*action));
        State {
            key: world.key(),
            enabled: world.enabled(),
            faults: world.faults(),
            marks: world.marks(),
            history,
        }
    }
}

impl Model for Ownership {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.replay(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Nothing is to be learned behind a fault, and a broken machine may panic.
        if state.faults == 0 {
            actions.extend(&state.enabled);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut history = Vec::with_capacity(last.history.len() + 1);
        history.extend(&last.history);
        history.push(action);
        Some(self.replay(history))
    }

    fn properties(&self) -> Vec<Property<Ownership>> {
        let mut properties = vec![
            Property::always(ONE_OWNER, |_, state: &State| state.faults & fault::OWNER == 0),
            Property::always(CHECKED, |_, state: &State| state.faults & fault::CHECK == 0),
            Property::always(LOCK_ORDER, |_, state: &State| state.faults & fault::LOCKS == 0),
            Property::always(NO_LOST_WAKE, |_, state: &State| state.faults & fault::LOST_WAKE == 0),
            Property::always(NO_IDLE_BESIDE_WORK, |_, s: &State| s.faults & fault::IDLE_BESIDE_WORK == 0),
            Property::always(TIMER_ARMED, |_, state: &State| state.faults & fault::NO_TIMER == 0),
            Property::always(DEAD_STAY_DEAD, |_, state: &State| state.faults & fault::UNDEAD == 0),
            Property::always(WAKES_HONOURED, |_, state: &State| state.faults & fault::WAKE_DROPPED == 0),
            Property::sometimes("an idle CPU steals", |_, state: &State| state.marks & mark::STOLE != 0),
        ];
        if self.0.permits {
            let met = |_: &Ownership, state: &State| state.marks & mark::PERMIT != 0;
            properties.push(Property::sometimes("a wake meets a blocking thread", met));
        }
        if self.0.threads > 2 || self.0.cpus > 2 {
            let late = |_: &Ownership, state: &State| state.marks & mark::TOO_LATE != 0;
            properties.push(Property::sometimes("a thief comes too late", late));
        }
        if self.0.kills > 0 {
            let killed = |_: &Ownership, state: &State| state.marks & mark::KILLED_QUEUED != 0;
            let stale = |_: &Ownership, state: &State| state.marks & mark::STALE_TICKET != 0;
            properties.push(Property::sometimes("a queued thread is killed", killed));
            properties.push(Property::sometimes("a stale ticket finds nothing", stale));
        }
        properties
    }
}

/// A live thread has exactly one owner: slot, queue, CPU, or somebody's hands.
pub const ONE_OWNER: &str = "every live thread has exactly one owner";
/// The core's own invariants hold.
pub const CHECKED: &str = "Cpu::check finds nothing";
/// Locks are taken by ascending rank.
pub const LOCK_ORDER: &str = "the lock order is respected";
/// At rest, no CPU halts over work.
pub const NO_LOST_WAKE: &str = "at rest no CPU idles while its own queue has work";
/// At rest, no CPU halts beside work.
pub const NO_IDLE_BESIDE_WORK: &str = "at rest no CPU idles beside work that it could take";
/// At rest, a CPU that must share has a timer.
pub const TIMER_ARMED: &str = "at rest a CPU with threads waiting has its timer armed";
/// At rest, the killed are gone or queued.
pub const DEAD_STAY_DEAD: &str = "at rest no killed thread runs or waits";
/// A wake that was noted takes effect.
pub const WAKES_HONOURED: &str = "no thread waits that was woken";
