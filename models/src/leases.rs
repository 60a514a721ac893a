//! Leases that are created, put into force on another CPU, revoked and expire, all at once (I-04, I-05, I-12, M-01): `kcore::leases` itself, driven from
//! several CPUs.
//!
//! A step is what happens under one lock: that of the book, or that of the leased CPU. The design of the driver is `docs/leases.md`: whoever creates a lease
//! parks a request in the slot of the CPU and interrupts it; the CPU decides again, because the request may be old by then; whoever ends leases takes them
//! out of the book first and interrupts their CPUs afterwards. The kernel has no such driver yet: this model says what it will have to do.

use kcore::leases::{
    self, Book, GrantId, LeaseId, Machine, Owner, Pool, PoolId, Reason, Request, Rules, Sound, Tables,
    Through,
};
use sched::{CpuId, CpuMask};
use stateright::{Model, Property};

/// The invariants of the book hold.
pub const BOOK: &str = "the invariants of the book hold";
/// When nobody has anything left to do, what is in force is live.
pub const ENDS: &str = "a lease that has ended is in force no more when all is quiet";
/// What is put into force was live then.
pub const FRESH: &str = "a lease is put into force only while it is live";

/// The CPU that all leases are for.
const CPU: usize = 1;
/// The account and the pool of the grant that is minted, and of the other one.
const ACCOUNT: u64 = 6;
const LIFETIME_NS: u64 = 2;

/// A bug that can be planted in the driver; those of the book are `kcore::leases::Flaw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// The book has this one.
    Book(leases::Flaw),
    /// The CPU takes a request as it is.
    NotCheckedAgain,
    /// Whoever ends a lease does not interrupt its CPU.
    NotTold,
    /// Whoever ends a lease interrupts its CPU before the book knows of it.
    ToldTooEarly,
}

impl Rules for Flaw {
    fn has(&self, flaw: leases::Flaw) -> bool {
        *self == Flaw::Book(flaw)
    }
}

/// The rules of the model's book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Planted(Option<Flaw>);

impl Rules for Planted {
    fn has(&self, flaw: leases::Flaw) -> bool {
        self.0.map_or_else(|| Sound.has(flaw), |planted| planted.has(flaw))
    }
}

/// What somebody does, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Creates a lease through the minted grant, and puts it into force.
    Holder,
    /// The same without a grant.
    Stranger,
    /// Revokes the minted grant.
    Minter,
    /// Ends the first lease that there ever was.
    Revoker,
    /// Sees to leases whose lifetime is over.
    Keeper,
}

/// How far an actor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    /// Has made this lease, and asks the CPU to put it into force.
    Made(LeaseId),
    /// Has to interrupt the CPU.
    Tells,
    Done,
}

/// What can be seen of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    book: Book<Planted>,
    actors: Vec<At>,
    now: u64,
    /// The CPU's slot for requests.
    slot: Option<LeaseId>,
    /// The CPU was interrupted, and has not looked yet.
    is_told: bool,
    in_force: Option<LeaseId>,
    /// A lease was put into force that had ended.
    is_stale: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The actor of this number goes on.
    Acts(usize),
    /// The CPU takes its interrupt.
    Interrupt,
    /// Time passes.
    Tick,
}

/// Some actors, and a bug or none.
#[derive(Clone, Debug)]
pub struct Leases {
    /// Who acts.
    pub actors: Vec<Actor>,
    /// The bug.
    pub flaw: Option<Flaw>,
}

fn cpu() -> CpuId {
    CpuId::new(CPU).expect("a CPU")
}

/// The grant that was minted, after that of the tables.
const MINTED: GrantId = GrantId(2);

impl Leases {
    fn request(actor: Actor) -> Request {
        let through = match actor {
            Actor::Holder => Through::Grant(MINTED),
            _ => Through::Creator { account: 9, pool: PoolId(1) },
        };
        let owner = Owner { process: 1, session: 1 };
        Request { through, cpus: CpuMask::only(cpu()), owner, latency_ns: 1, lifetime_ns: LIFETIME_NS }
    }

    /// A lease, or several, leave the book: was there one?
    fn end(actor: Actor, state: &mut State) -> bool {
        let mut ended = false;
        match actor {
            Actor::Minter => drop(state.book.revoke_grant(MINTED, |_| ended = true)),
            Actor::Revoker => ended = state.book.end(LeaseId(1), Reason::Revoked).is_ok(),
            _ => state.book.expire(state.now, |_| ended = true),
        }
        ended
    }

    fn act(&self, number: usize, state: &mut State) -> Option<()> {
        let actor = self.actors[number];
        let next = match (actor, state.actors[number]) {
            (Actor::Holder | Actor::Stranger, At::Begin) => {
                let machine = Machine { online: CpuMask::first_n(2), homes: CpuMask::EMPTY };
                // What is over is ended in the same step, and its CPU interrupted, as a keeper does it.
                state.book.expire(state.now, |_| state.is_told = true);
                match state.book.create(&Leases::request(actor), &machine, state.now) {
                    Ok(id) => At::Made(id),
                    Err(_) => At::Done,
                }
            }
            (_, At::Made(id)) => {
                // A slot that is taken refuses: the lease stays granted, and is not in force.
                if state.slot.is_none() {
                    state.slot = Some(id);
                    state.is_told = true;
                }
                At::Done
            }
            (Actor::Keeper, At::Begin) if state.book.next_expiry_ns() > state.now => return None,
            (_, At::Begin) if self.flaw == Some(Flaw::ToldTooEarly) => {
                state.is_told = true;
                At::Tells
            }
            (_, At::Begin) => match (Leases::end(actor, state), self.flaw) {
                (true, Some(Flaw::NotTold)) | (false, _) => At::Done,
                (true, _) => At::Tells,
            },
            (_, At::Tells) if self.flaw == Some(Flaw::ToldTooEarly) => {
                Leases::end(actor, state);
                At::Done
            }
            (_, At::Tells) => {
                state.is_told = true;
                At::Done
            }
            (_, At::Done) => return None,
        };
        state.actors[number] = next;
        Some(())
    }

    /// The CPU, under its own lock and the book's: what has ended is in force no more, and then a request is taken, if its lease is live.
    fn interrupt(&self, state: &mut State) {
        state.is_told = false;
        let is_live = |state: &State, id: LeaseId| state.book.get(id).is_some();
        if let Some(id) = state.in_force
            && !is_live(state, id)
        {
            state.in_force = None;
        }
        if let Some(id) = state.slot.take()
            && (is_live(state, id) || self.flaw == Some(Flaw::NotCheckedAgain))
        {
            state.is_stale |= !is_live(state, id);
            state.in_force = Some(id);
        }
    }

    fn is_quiet(&self, state: &State) -> bool {
        let is_over =
            |(actor, at): (&Actor, &At)| *at == At::Done || *actor == Actor::Keeper && *at == At::Begin;
        !state.is_told && self.actors.iter().zip(&state.actors).all(is_over)
    }
}

impl Model for Leases {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let cpus = CpuMask::only(cpu());
        let pool = Pool { id: PoolId(1), cpus, max_leases: 2, max_leases_per_account: 1 };
        let tables = Tables::new(&[pool], &[], &[(ACCOUNT, PoolId(1))]).expect("good tables");
        let mut book = Book::with_rules(tables, Planted(self.flaw));
        assert_eq!(book.mint(ACCOUNT, PoolId(1)), Ok(MINTED));
        let actors = vec![At::Begin; self.actors.len()];
        vec![State { book, actors, now: 0, slot: None, is_told: false, in_force: None, is_stale: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend((0..self.actors.len()).map(Step::Acts));
        if state.is_told {
            actions.push(Step::Interrupt);
        }
        // Time goes on while there is a lease that it could end.
        if state.book.next_expiry_ns() != u64::MAX && state.now < state.book.next_expiry_ns() {
            actions.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Acts(number) => self.act(number, &mut state)?,
            Step::Interrupt => self.interrupt(&mut state),
            Step::Tick => state.now += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Leases>> {
        vec![
            Property::always(BOOK, |_, state: &State| state.book.check(&CpuMask::first_n(2)).is_ok()),
            Property::always(FRESH, |_, state: &State| !state.is_stale),
            Property::always(ENDS, |model: &Leases, state: &State| {
                !model.is_quiet(state) || state.in_force.is_none_or(|id| state.book.get(id).is_some())
            }),
            Property::sometimes("a lease is in force", |_, state: &State| state.in_force.is_some()),
        ]
    }
}
