//! The order of locks while everything ends at once: a call and its answer, the ends of a thread, a process, an endpoint and a context
//! (M-01, S-09). Ranks are those of `docs/kernel.md`, with *context* between *object* and *park*.
//!
//! A CPU is a list of acquisitions and releases, as `docs/contexts.md` and the kernel's paths have them; the model visits every
//! interleaving. What is done under the locks is the subject of [`crate::loans`], with one exception: a context in transit. CPUs wait for it
//! as for a lock, but it has no rank, so it is modelled here, too.

use stateright::{Model, Property};

/// A lock, in the order of ranks: one of a process's tables, of an endpoint, of a context's record, of a ring, of a thread's wait slot, of
/// a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lock {
    /// Rank *process*.
    Process,
    /// Rank *object*.
    Endpoint,
    /// Rank *context*.
    Record,
    /// Rank *ring*, of this thread.
    Ring(u8),
    /// Rank *wait*, of this thread.
    Wait(u8),
    /// Rank *CPU*: two of them by ascending number.
    Cpu(u8),
}

impl Lock {
    fn rank(self) -> u8 {
        match self {
            Lock::Process => 2,
            Lock::Endpoint => 4,
            Lock::Record => 5,
            Lock::Ring(_) => 10,
            Lock::Wait(_) => 11,
            Lock::Cpu(_) => 13,
        }
    }

    /// Whether a CPU that holds `held` may take this lock.
    fn may_follow(self, held: Lock) -> bool {
        match (held, self) {
            (Lock::Cpu(held), Lock::Cpu(wanted)) => held < wanted,
            _ => held.rank() < self.rank(),
        }
    }
}

/// The threads that call and serve. The caller and the loan are on CPU 0; the server came from CPU 1, and the paths that end something run there
/// or on other CPUs.
const CALLER: u8 = 0;
const SERVER: u8 = 1;
const HOME: Lock = Lock::Cpu(0);
const OTHER: Lock = Lock::Cpu(1);

/// What a CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Waits for a lock, and takes it.
    Take(Lock),
    /// Lets it go.
    Drop(Lock),
    /// Takes a lock and releases it, in one step. A CPU that takes no other lock meanwhile does not wait while it holds this one, so no
    /// interleaving is missed.
    Touch(Lock),
    /// The record names the new holder, and the context is in transit. Does nothing if it is already: then this path does not have it.
    Send,
    /// The context has arrived.
    Arrive,
    /// Waits until no context is in transit.
    Await,
}

use Step::{Arrive, Await, Drop, Send, Take, Touch};

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A thread that ends fails its calls under the record's lock: record, then endpoint.
    Inverted,
    /// The context is given to its lender under the lock of the CPU that it was taken from.
    GivenUnderCpu,
    /// The wait slots of both threads are held for the move.
    TwoSlots,
    /// The path that closes an endpoint waits for the context with the endpoint's lock held.
    AwaitsUnderEndpoint,
    /// The path that closes an endpoint waits for the context with the record's lock held.
    AwaitsUnderRecord,
    /// Two CPUs' locks are taken in the order in which they are met.
    CpusUnordered,
}

/// A path through the kernel that takes several locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// A call to a waiting server, up to the switch; if the server is gone, the loan is undone.
    Call,
    /// Its answer, and the next receive.
    Answer,
    /// The server's thread ends.
    ThreadEnd,
    /// The caller's process is killed.
    Kill,
    /// The endpoint closes.
    Close,
    /// The context is revoked.
    Revoke,
    /// A CPU takes a thread from another.
    Balance,
}

fn under(lock: Lock, steps: &[Step]) -> Vec<Step> {
    if steps.is_empty() {
        return vec![Touch(lock)];
    }
    [&[Take(lock)], steps, &[Drop(lock)]].concat()
}

/// Wakes a thread: its wait slot, and under it the queue of a CPU.
fn wake(thread: u8, cpu: Lock) -> Vec<Step> {
    under(Lock::Wait(thread), &under(cpu, &[]))
}

/// The current thread blocks, and the thread in the handoff slot runs: the context arrives under both locks.
fn block(thread: u8) -> Vec<Step> {
    under(Lock::Wait(thread), &under(HOME, &[Arrive]))
}

/// Under the record's lock: the context is taken from a wait slot or a CPU, and then given to a wait slot. One of these locks at a time.
fn move_box(flaw: Option<Flaw>) -> Vec<Step> {
    let (from, to) = (Lock::Wait(SERVER), Lock::Wait(CALLER));
    let inside = match flaw {
        Some(Flaw::GivenUnderCpu) => [under(from, &[]), under(HOME, &under(to, &[]))].concat(),
        Some(Flaw::TwoSlots) => under(from, &under(to, &under(HOME, &[]))),
        _ => [under(from, &[]), under(HOME, &[]), under(to, &[])].concat(),
    };
    under(Lock::Record, &inside)
}

/// The loan of a call that fails ends, then the caller is completed and woken.
fn fail(flaw: Option<Flaw>) -> Vec<Step> {
    [vec![Await], move_box(flaw), under(Lock::Ring(CALLER), &[]), wake(CALLER, OTHER)].concat()
}

impl Path {
    /// All steps of the path, in order.
    fn steps(self, flaw: Option<Flaw>) -> Vec<Step> {
        let (caller, server) = (Lock::Ring(CALLER), Lock::Ring(SERVER));
        match self {
            Path::Call => {
                let judge = under(Lock::Record, &under(Lock::Wait(SERVER), &[]));
                let meet = under(Lock::Endpoint, &[under(caller, &[]), judge].concat());
                // The receiver may have ended meanwhile: then the call is taken back.
                let undelivered = under(Lock::Endpoint, &[]);
                let met = [under(Lock::Process, &meet), under(server, &[]), undelivered].concat();
                let looks = [under(caller, &[]), under(Lock::Wait(SERVER), &[])].concat();
                let lend = under(Lock::Record, &[looks, vec![Send]].concat());
                [met, lend, under(caller, &[]), block(CALLER)].concat()
            }
            Path::Answer => {
                let take = under(Lock::Endpoint, &[]);
                let settle = under(Lock::Record, &[under(Lock::Wait(CALLER), &[]), vec![Send]].concat());
                let complete = [settle, under(caller, &[])].concat();
                let receive = under(Lock::Endpoint, &under(server, &[]));
                let receive = under(Lock::Process, &receive);
                [under(Lock::Process, &take), complete, receive, under(server, &[]), block(SERVER)].concat()
            }
            Path::ThreadEnd => {
                let mut steps = [under(server, &[]), under(Lock::Endpoint, &[])].concat();
                steps.extend(under(Lock::Process, &[]));
                match flaw {
                    Some(Flaw::Inverted) => {
                        steps.push(Await);
                        steps.extend(under(Lock::Record, &under(Lock::Endpoint, &[])));
                    }
                    _ => steps.extend(under(Lock::Endpoint, &[])),
                }
                [steps, fail(flaw), under(server, &[]), under(Lock::Wait(SERVER), &under(OTHER, &[]))]
                    .concat()
            }
            Path::Kill => [under(Lock::Process, &[]), wake(CALLER, OTHER), wake(SERVER, HOME)].concat(),
            Path::Close => match flaw {
                Some(Flaw::AwaitsUnderEndpoint) => {
                    let held = [vec![Await], move_box(None)].concat();
                    [under(Lock::Endpoint, &held), under(caller, &[]), wake(CALLER, OTHER)].concat()
                }
                Some(Flaw::AwaitsUnderRecord) => {
                    let held = under(Lock::Record, &[Await]);
                    [under(Lock::Endpoint, &[]), held, under(caller, &[]), wake(CALLER, OTHER)].concat()
                }
                _ => [under(Lock::Endpoint, &[]), fail(flaw)].concat(),
            },
            Path::Revoke => {
                let look = [under(Lock::Wait(SERVER), &[]), under(HOME, &[])].concat();
                let seize = [vec![Await], under(Lock::Record, &look)].concat();
                // Lenders that wait for their loans go on.
                [under(Lock::Process, &[]), seize, wake(CALLER, OTHER)].concat()
            }
            Path::Balance => match flaw {
                Some(Flaw::CpusUnordered) => under(OTHER, &under(HOME, &[])),
                _ => under(HOME, &under(OTHER, &[])),
            },
        }
    }
}

/// The model: these paths, each on a CPU of its own.
#[derive(Clone, Debug)]
pub struct Teardown(Vec<Vec<Step>>);

/// How far each path is, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    at: Vec<u8>,
    /// Lock and path.
    held: Vec<(Lock, u8)>,
    /// The path that has sent the context, while that is in transit.
    on_way: Option<u8>,
    breach: bool,
}

impl Teardown {
    /// With these paths, perhaps with a planted bug.
    pub fn new(paths: &[Path], flaw: Option<Flaw>) -> Teardown {
        Teardown(paths.iter().map(|path| path.steps(flaw)).collect())
    }

    fn next(&self, state: &State, path: usize) -> Option<Step> {
        self.0[path].get(usize::from(state.at[path])).copied()
    }

    fn can_step(&self, state: &State, path: usize) -> bool {
        match self.next(state, path) {
            None => false,
            Some(Take(lock) | Touch(lock)) => state.held.iter().all(|(held, _)| *held != lock),
            Some(Await) => state.on_way.is_none(),
            Some(Drop(_) | Send | Arrive) => true,
        }
    }

    fn is_stuck(&self, state: &State) -> bool {
        let mut paths = 0..self.0.len();
        let is_over = paths.clone().all(|path| self.next(state, path).is_none());
        !is_over && !paths.any(|path| self.can_step(state, path))
    }
}

impl Model for Teardown {
    type State = State;
    type Action = u8;

    fn init_states(&self) -> Vec<State> {
        vec![State { at: vec![0; self.0.len()], held: Vec::new(), on_way: None, breach: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<u8>) {
        actions.extend((0..self.0.len() as u8).filter(|path| self.can_step(state, usize::from(*path))));
    }

    fn next_state(&self, last: &State, path: u8) -> Option<State> {
        let mut state = last.clone();
        state.at[usize::from(path)] += 1;
        let step = self.next(last, usize::from(path))?;
        if let Take(lock) | Touch(lock) = step {
            let mut mine = last.held.iter().filter(|(_, by)| *by == path);
            state.breach |= mine.any(|(held, _)| !lock.may_follow(*held));
        }
        match step {
            Take(lock) => {
                state.held.push((lock, path));
                state.held.sort_unstable();
            }
            Drop(lock) => state.held.retain(|held| *held != (lock, path)),
            Send => state.on_way = state.on_way.or(Some(path)),
            Arrive => state.on_way = state.on_way.filter(|by| *by != path),
            Touch(_) | Await => {}
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Teardown>> {
        vec![
            Property::always(ORDER, |_, state: &State| !state.breach),
            Property::always(NO_DEADLOCK, |model: &Teardown, state: &State| !model.is_stuck(state)),
            Property::sometimes("all paths come to their end", |model: &Teardown, state: &State| {
                (0..model.0.len()).all(|path| model.next(state, path).is_none())
            }),
        ]
    }
}

/// Ranks ascend.
pub const ORDER: &str = "no lock of a lower or equal rank is taken";
/// Some path can always go on.
pub const NO_DEADLOCK: &str = "somebody can go on until all is done";
