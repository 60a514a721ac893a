//! A thread's life while other actors bind, wake, lend, kill and revoke (K-31): `kcore::life` itself, driven from several CPUs.
//!
//! There is one thread record, used by two threads in turn, and one context, whose record is the kernel's own book (`kcore::loans`). A step is what
//! happens under one lock (*wait*, or a CPU's); the lock of the context's record is held over several steps. What `kcore::life` answers is done here
//! as the kernel does it (`kernel/src/dispatch.rs`, `kernel/src/dispatch/budgets.rs`, `kernel/src/context.rs`). So a rule that holds only if no other
//! actor comes in between is broken in some interleaving.

use kcore::life::{Action, Event, Life, Refused, Stage, StopReason};
use kcore::loans::{Book, Rules};
use stateright::{Model, Property};

/// The generation of the thread that all actors refer to; the next thread of the record is none of their business.
const FIRST: u32 = 1;
/// The generation that every capability to the context has.
const HELD: u64 = 1;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A bind checks whether the thread exists, but not whether it is about to end.
    BindsTheEnding,
    /// A thread that is about to end is stopped for lack of a context, like any other.
    StopsTheEnding,
    /// A thread is found by the number of its record, without its generation.
    NoGeneration,
    /// A thread is asked to bind without a check whether it has blocked meanwhile.
    RequestsBindBlindly,
    /// A killed thread loses its context before it is marked as ending.
    StripsFirst,
    /// A thread that was stopped before it could fetch a promised context is left to fetch it itself.
    NotDelivered,
    /// The actor that gives a stopped thread its context does not wake it.
    NotWoken,
    /// A thread that was killed before it fetched a promised context still fetches it.
    FetchesTheEnding,
}

/// An actor besides the thread and the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Binds the thread to the context, once.
    Binder {
        /// Whether the thread stops when it loses the context; otherwise it goes on without one.
        context_only: bool,
    },
    /// Wakes the thread, once.
    Waker,
    /// Kills the thread.
    Killer,
    /// Ends the context.
    Revoker,
    /// Takes the context from the thread, and leaves it for the next bind.
    Unbinder,
    /// Lends the thread another context while it is blocked, and takes that back.
    Lender,
}

/// How far an actor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    /// Has done its first step: has claimed the thread, told it to end, or lent to it.
    Second,
    /// Holds the record's lock, and tries to give the context to a thread that is blocked; then to one that is queued; then to one that runs.
    Waiting,
    Queued,
    Runs,
    /// Holds the thread's entity, which it took from a queue.
    Hand,
    /// Wakes the thread, as its last step.
    Wakes,
    Done,
}

/// Where the scheduler's entity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// With its creator: the thread has not been started.
    Maker,
    Queue,
    Cpu,
    /// Under the *wait* lock.
    Parked,
    /// Held by an actor or by the dispatcher, in no queue.
    Hand,
}

/// What the thread is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Anything,
    /// It was asked to bind, and looks into the record. The value is what it does if there is nothing to fetch.
    Fetches(Option<bool>),
    /// It has taken the context from the record, and binds to it.
    Binds,
    /// It ends: first it gives up its contexts, then it can no longer be found, then it leaves its stack.
    Strips,
    Closes,
    Ends,
    /// It no longer uses its stack.
    Gone,
}

/// Which context the thread has, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Has {
    Nothing,
    Own,
    Loan,
}

/// The book's rules. Its invariants are not asserted if a bug is planted, which may break them.
#[derive(Clone, Copy, Debug)]
struct Law {
    is_sound: bool,
}

impl Rules for Law {
    fn is_sound(&self) -> bool {
        self.is_sound
    }
}

/// A state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    life: u64,
    place: Place,
    context_only: bool,
    /// Whether the entity has a context.
    boxed: bool,
    doing: Doing,
    has: Has,
    /// The record of the context that can be bound. It names threads by their generation; while the context is not in the record, [`State::boxed`] is
    /// set.
    book: Book<u32, (), Law>,
    bound_only: bool,
    /// The actor that holds the record's lock.
    locked: Option<u8>,
    actors: Vec<At>,
    /// The dispatcher's pending work: to place the thread again, to stop it for this reason, to deliver a promised context.
    requeues: bool,
    evicts: Option<Evicts>,
    delivers: bool,
    /// The timeout handler was asked, and has not answered.
    asked: bool,
    /// The thread was woken or stopped, and has to run as soon as it can.
    owed: bool,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Evicts {
    Context,
    Budget,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The dispatcher runs the thread.
    Dispatch,
    /// The dispatcher preempts the thread: it is queued, or held by the dispatcher to be stopped.
    Preempt,
    /// The dispatcher takes the thread off its CPU because its budget is spent.
    Spend,
    /// The dispatcher stops the thread that it holds.
    Stop,
    /// The dispatcher places the thread again that was switched out for that.
    Requeue,
    /// The dispatcher delivers the promised context to a thread that it stopped.
    Deliver,
    /// The timeout handler answers.
    Answer,
    /// The thread blocks.
    Block,
    /// The thread is switched out to be placed again.
    SwitchOut,
    /// The thread goes on with what it is doing.
    Goes,
    /// The thread begins to end.
    Exit,
    /// The record is freed and used again, or its new thread is started.
    Reuse,
    /// Actor number n goes on.
    Act(u8),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Lives {
    /// Who acts.
    pub actors: Vec<Actor>,
    /// The planted bug.
    pub flaw: Option<Flaw>,
}

impl State {
    fn life(&self) -> Life {
        Life::from_word(self.life)
    }

    fn runnable(&self) -> bool {
        !self.context_only || self.boxed
    }

    fn broke(&mut self, what: &'static str) {
        self.broken = self.broken.or(Some(what));
    }

    fn turn(&mut self, event: Event) -> Result<Action, Refused> {
        let (life, action) = self.life().after(event)?;
        self.life = life.word();
        Ok(action)
    }

    /// Applies an event that cannot be refused.
    fn must(&mut self, event: Event) -> Option<Action> {
        let done = self.turn(event);
        if done.is_err() {
            self.broke(NO_REFUSAL);
        }
        done.ok()
    }

    /// Puts the entity where a change of life wants it.
    fn follow(&mut self, action: Action) {
        match action {
            Action::Free => {
                self.context_only = false;
                self.place = Place::Queue;
                self.owed = false;
            }
            Action::Run => {
                self.place = Place::Queue;
                self.owed = false;
            }
            _ => {}
        }
        if self.place == Place::Queue && !self.runnable() {
            self.broke(QUEUED_RUNS);
        }
    }

    fn wake(&mut self, by_reference: bool) {
        if !by_reference {
            self.broke(STRANGERS);
            return;
        }
        let runnable = self.runnable();
        let was_parked = self.place == Place::Parked;
        if let Ok(action) = self.turn(Event::Wake { runnable }) {
            self.owed |= was_parked;
            self.follow(action);
        }
    }

    /// Takes the context out of the record or the entity; `None` if it is in transit. `Some(true)` if the caller holds the thread's entity now.
    fn take_box(&mut self) -> Option<bool> {
        // A borrowed context has a record of its own, which is not modelled.
        if self.has == Has::Loan { self.take_from_entity() } else { self.seize_own() }
    }

    /// The same for the context of the modelled record.
    fn seize_own(&mut self) -> Option<bool> {
        if self.book.seize().is_some() {
            return Some(false);
        }
        let stops = self.take_from_entity()?;
        self.book.seized();
        Some(stops)
    }

    fn take_from_entity(&mut self) -> Option<bool> {
        if !self.boxed || self.place == Place::Hand {
            return None;
        }
        self.boxed = false;
        let stops = self.place == Place::Queue && self.context_only;
        if stops {
            self.place = Place::Hand;
        }
        Some(stops)
    }
}

impl Lives {
    /// Whether the actors' reference names the thread in the record. With the bug of not looking at generations, it names any thread there.
    fn names(&self, state: &State) -> bool {
        state.life().names(FIRST)
            || self.flaw == Some(Flaw::NoGeneration) && state.life().live_generation() != 0
    }

    /// Whether no actor, and not the dispatcher, is in the middle of something.
    fn is_quiet(&self, state: &State) -> bool {
        let at_rest = |at: &At| matches!(at, At::Begin | At::Done);
        let loan_out = |(at, actor): (&At, &Actor)| *actor == Actor::Lender && *at == At::Second;
        let mut actors = state.actors.iter().zip(&self.actors);
        actors.all(|(at, actor)| at_rest(at) || loan_out((at, actor)))
            && !state.requeues
            && state.evicts.is_none()
            && !state.delivers
            && !state.asked
            && !matches!(state.doing, Doing::Binds)
    }

    fn evicted(&self, state: &mut State, want: StopReason) {
        state.place = Place::Parked;
        state.owed = true;
        let Some(action) = state.must(Event::Evict(want)) else { return };
        if action == Action::Free && self.flaw == Some(Flaw::StopsTheEnding) {
            return;
        }
        state.follow(action);
        state.asked |= action == Action::Park && want == StopReason::FaultReply;
        state.delivers |= action == Action::Deliver && self.flaw != Some(Flaw::NotDelivered);
    }

    /// Gives the context, under the record's lock, to a thread that is blocked or stopped. Says whether it is to be woken; `None` if it is neither.
    fn give_waiting(&self, state: &mut State) -> Option<bool> {
        if !self.names(state) || state.life().after(Event::Bind).is_err() {
            return Some(false);
        }
        if state.place != Place::Parked {
            state.must(Event::GiveContext);
            return None;
        }
        if state.book.fetch(FIRST).is_err() {
            return Some(false);
        }
        state.boxed = true;
        state.context_only = state.bound_only;
        let woken = state.must(Event::GiveContext) == Some(Action::Wake);
        Some(woken && self.flaw != Some(Flaw::NotWoken))
    }

    fn act(&self, state: &mut State, me: u8) {
        let at = state.actors[usize::from(me)];
        let next = match self.actors[usize::from(me)] {
            Actor::Binder { context_only } => self.bind(state, me, at, context_only),
            Actor::Waker => {
                if self.names(state) {
                    let is_it = state.life().names(FIRST);
                    state.wake(is_it);
                }
                At::Done
            }
            Actor::Killer => self.kill(state, at),
            Actor::Revoker => self.revoke(state, at, true),
            Actor::Unbinder if at == At::Begin && state.book.may_unbind(HELD).is_err() => At::Done,
            Actor::Unbinder => self.revoke(state, at, false),
            Actor::Lender => self.lend(state, at),
        };
        state.actors[usize::from(me)] = next;
    }

    fn bind(&self, state: &mut State, me: u8, at: At, context_only: bool) -> At {
        match at {
            At::Begin => {
                let is_free = state.book.may_bind(HELD).is_ok();
                let may = self.flaw == Some(Flaw::BindsTheEnding) || state.life().after(Event::Bind).is_ok();
                if !is_free || !self.names(state) || !may || state.has != Has::Nothing {
                    return At::Done;
                }
                if !state.life().names(FIRST) {
                    state.broke(STRANGERS);
                }
                state.book.bind(FIRST);
                (state.bound_only, state.has) = (context_only, Has::Own);
                At::Second
            }
            At::Second if state.book.promise(FIRST).is_ok() => {
                state.locked = Some(me);
                At::Waiting
            }
            At::Second => At::Done,
            At::Waiting => match self.give_waiting(state) {
                None => At::Queued,
                Some(wakes) => {
                    state.locked = None;
                    if wakes { At::Wakes } else { At::Done }
                }
            },
            At::Queued => {
                if state.place != Place::Queue {
                    return At::Runs;
                }
                // The generation need not be checked here: the record names this thread, its lock is held, and the thread does not end without that
                // lock.
                if !state.life().names(FIRST) {
                    state.broke(STRANGERS);
                }
                (state.boxed, state.context_only) = (state.book.fetch(FIRST).is_ok(), state.bound_only);
                state.locked = None;
                At::Done
            }
            At::Runs => {
                let bind_requested = state.turn(Event::RequestBind(Some(state.bound_only)));
                if bind_requested == Err(Refused::Waits) && self.flaw != Some(Flaw::RequestsBindBlindly) {
                    return At::Waiting;
                }
                state.locked = None;
                At::Done
            }
            At::Wakes => {
                if self.names(state) {
                    let is_it = state.life().names(FIRST);
                    state.wake(is_it);
                }
                At::Done
            }
            At::Hand | At::Done => At::Done,
        }
    }

    fn doom(&self, state: &mut State) {
        if !self.names(state) {
            return;
        }
        if !state.life().names(FIRST) {
            state.broke(STRANGERS);
        }
        if let Ok(action) = state.turn(Event::Kill) {
            state.follow(action);
        }
    }

    /// Takes the context that a thread runs on; `None` if that is in transit.
    fn strip(&self, state: &mut State) -> Option<At> {
        if !state.life().names(FIRST) {
            return Some(At::Done);
        }
        match state.has {
            Has::Own if *state.book.holder() == FIRST => {
                let stops = state.take_box()?;
                state.book.put(());
                if state.book.lay_down().is_err() {
                    state.broke(NO_REFUSAL);
                }
                Some(if stops { At::Hand } else { At::Done })
            }
            Has::Loan if state.boxed => {
                let stops = state.take_box()?;
                state.has = Has::Nothing;
                Some(if stops { At::Hand } else { At::Done })
            }
            _ => Some(At::Done),
        }
    }

    fn kill(&self, state: &mut State, at: At) -> At {
        let strips_first = self.flaw == Some(Flaw::StripsFirst);
        match at {
            At::Begin if !strips_first => {
                self.doom(state);
                At::Second
            }
            At::Begin => match self.strip(state) {
                Some(At::Hand) => At::Hand,
                Some(_) => At::Second,
                None => At::Begin,
            },
            At::Second if !strips_first => self.strip(state).unwrap_or(At::Second),
            At::Second => {
                self.doom(state);
                At::Done
            }
            At::Hand => {
                self.evicted(state, StopReason::Context);
                if strips_first { At::Second } else { At::Done }
            }
            _ => At::Done,
        }
    }

    fn revoke(&self, state: &mut State, at: At, for_ever: bool) -> At {
        if at == At::Hand {
            self.evicted(state, StopReason::Context);
            return At::Done;
        }
        if state.book.is_over() {
            return At::Done;
        }
        let is_reached = state.has == Has::Own || state.book.kept().is_some();
        let taken = if is_reached { state.seize_own() } else { None };
        let Some(stops) = taken else { return at };
        if !for_ever {
            state.book.put(());
        }
        let owner = if for_ever { state.book.end() } else { state.book.unbind() };
        match owner {
            Ok(owner) if state.life().names(owner) => state.has = Has::Nothing,
            Ok(_) => {}
            Err(_) => state.broke(NO_REFUSAL),
        }
        if stops { At::Hand } else { At::Done }
    }

    fn lend(&self, state: &mut State, at: At) -> At {
        match at {
            At::Begin => {
                let fits =
                    state.life().names(FIRST) && state.has == Has::Nothing && state.place == Place::Parked;
                if fits && state.turn(Event::Take) == Ok(Action::Run) {
                    (state.has, state.boxed) = (Has::Loan, true);
                    state.follow(Action::Run);
                    At::Second
                } else {
                    At::Done
                }
            }
            At::Second if state.has == Has::Loan => {
                let Some(stops) = state.take_box() else { return At::Second };
                state.has = Has::Nothing;
                if stops { At::Hand } else { At::Done }
            }
            At::Hand => {
                self.evicted(state, StopReason::Context);
                At::Done
            }
            _ => At::Done,
        }
    }

    /// Whether actor `me` can go on.
    fn can_act(&self, state: &State, me: usize) -> bool {
        let at = state.actors[me];
        let takes_record = match self.actors[me] {
            Actor::Waker => false,
            Actor::Binder { .. } => matches!(at, At::Begin | At::Second),
            Actor::Killer => match self.flaw {
                Some(Flaw::StripsFirst) => at == At::Begin,
                _ => at == At::Second,
            },
            Actor::Revoker | Actor::Unbinder => at == At::Begin,
            Actor::Lender => matches!(at, At::Begin | At::Second),
        };
        // A borrowed context has a record of its own, which is not modelled: it is taken from where the thread is.
        let is_locked = takes_record && state.locked.is_some() && self.actors[me] != Actor::Lender;
        at != At::Done && !is_locked
    }

    /// The running thread goes on.
    fn go(&self, state: &mut State) {
        match state.doing {
            Doing::Anything => {
                if let Some(Action::Depend(without)) = state.must(Event::Fetch) {
                    state.doing = Doing::Fetches(without);
                }
            }
            Doing::Fetches(without) => {
                let holder = *state.book.holder();
                let is_its = match self.flaw {
                    Some(Flaw::FetchesTheEnding) => state.life().names(holder),
                    _ => state.life().fetches(holder),
                };
                if state.has == Has::Own && is_its && state.book.fetch(holder).is_ok() {
                    state.doing = Doing::Binds;
                } else {
                    state.context_only = without.unwrap_or(state.context_only);
                    state.doing = Doing::Anything;
                }
            }
            Doing::Binds => {
                (state.boxed, state.context_only) = (true, state.bound_only);
                state.doing = Doing::Anything;
            }
            Doing::Strips => match state.has {
                Has::Nothing => state.doing = Doing::Closes,
                // The thread's own context ends with it.
                Has::Own if state.life().names(*state.book.owner()) => {
                    state.seize_own();
                    state.has = Has::Nothing;
                    if state.book.end().is_err() {
                        state.broke(NO_REFUSAL);
                    }
                }
                Has::Own => state.broke(ENDS),
                Has::Loan => (state.boxed, state.has) = (false, Has::Nothing),
            },
            Doing::Closes => {
                state.must(Event::Close);
                state.doing = Doing::Ends;
            }
            Doing::Ends => {
                state.must(Event::End);
                state.place = Place::Parked;
                state.doing = Doing::Gone;
            }
            Doing::Gone => {}
        }
    }

    fn reuse(&self, state: &mut State) {
        if state.life().stage() == Stage::Made {
            state.must(Event::Start);
            state.place = Place::Queue;
            return;
        }
        state.must(Event::Reap);
        state.must(Event::Reuse);
        if state.has != Has::Nothing || state.boxed {
            state.broke(CLEAN);
        }
        (state.place, state.context_only, state.doing, state.owed) =
            (Place::Maker, false, Doing::Anything, false);
    }
}

impl Model for Lives {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let made = Life::UNUSED.after(Event::Reuse).map_or(Life::UNUSED, |(life, _)| life);
        let mut book = Book::vacant(Law { is_sound: self.flaw.is_none() });
        book.make(());
        vec![State {
            life: made.word(),
            place: Place::Maker,
            context_only: false,
            boxed: false,
            doing: Doing::Anything,
            has: Has::Nothing,
            book,
            bound_only: false,
            locked: None,
            actors: vec![At::Begin; self.actors.len()],
            requeues: false,
            evicts: None,
            delivers: false,
            asked: false,
            owed: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        let life = state.life();
        match state.place {
            Place::Queue => steps.push(Step::Dispatch),
            // The kernel does not preempt itself, and there is no preemption point while a thread fetches a context.
            Place::Cpu if !matches!(state.doing, Doing::Fetches(_) | Doing::Binds) => {
                steps.push(Step::Preempt);
                if state.boxed {
                    steps.push(Step::Spend);
                }
            }
            Place::Maker => steps.push(Step::Reuse),
            _ => {}
        }
        if state.place == Place::Cpu {
            let is_free = state.doing == Doing::Anything;
            let looks = matches!(state.doing, Doing::Fetches(_) | Doing::Strips);
            if !(looks && state.locked.is_some()) && (!is_free || life.has_errands() && !life.is_ending()) {
                steps.push(Step::Goes);
            }
            if is_free {
                steps.extend([Step::Block, Step::SwitchOut, Step::Exit]);
            }
        }
        steps.extend(state.evicts.map(|_| Step::Stop));
        steps.extend(state.requeues.then_some(Step::Requeue));
        steps.extend((state.delivers && state.locked.is_none()).then_some(Step::Deliver));
        steps.extend(state.asked.then_some(Step::Answer));
        if state.doing == Doing::Gone && life.generation() == FIRST && !state.asked && !state.delivers {
            steps.push(Step::Reuse);
        }
        steps.extend(
            (0..self.actors.len()).filter(|at| self.can_act(state, *at)).map(|at| Step::Act(at as u8)),
        );
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Dispatch => state.place = Place::Cpu,
            Step::Preempt if state.runnable() => state.place = Place::Queue,
            Step::Preempt => (state.place, state.evicts) = (Place::Hand, Some(Evicts::Context)),
            Step::Spend => (state.place, state.evicts) = (Place::Hand, Some(Evicts::Budget)),
            Step::Stop => {
                let want = match state.evicts.take()? {
                    Evicts::Context => StopReason::Context,
                    Evicts::Budget => StopReason::FaultReply,
                };
                self.evicted(&mut state, want);
            }
            Step::Requeue => {
                state.requeues = false;
                let runnable = state.runnable();
                let action = state.must(Event::Requeue { runnable })?;
                if self.flaw != Some(Flaw::StopsTheEnding) || runnable {
                    state.follow(action);
                }
                state.owed |= state.place == Place::Parked;
            }
            Step::Deliver => {
                state.delivers = false;
                if state.has == Has::Own && state.book.is_promised_to(state.life().live_generation()) {
                    if self.give_waiting(&mut state) == Some(true) {
                        state.wake(true);
                    }
                } else if let Ok(action) = state.turn(Event::Fetch) {
                    state.follow(action);
                }
            }
            Step::Answer => {
                state.asked = false;
                if self.names(&state) && state.turn(Event::FaultReply) == Ok(Action::Wake) {
                    state.wake(true);
                }
            }
            Step::Block => {
                if state.must(Event::Block)? == Action::Park {
                    state.place = Place::Parked;
                }
            }
            Step::SwitchOut => {
                // A thread that is asked to bind fetches the context first, which is a step of its own.
                if state.must(Event::SwitchOut)? == Action::Park {
                    (state.place, state.requeues) = (Place::Parked, true);
                }
            }
            Step::Goes => self.go(&mut state),
            Step::Exit => {
                state.must(Event::Exit)?;
                state.doing = Doing::Strips;
            }
            Step::Reuse => self.reuse(&mut state),
            Step::Act(me) => self.act(&mut state, me),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Lives>> {
        fn holds(what: &'static str) -> impl Fn(&State) -> bool {
            move |state| state.broken != Some(what)
        }
        vec![
            Property::always(COHERENT, |_, state: &State| {
                state.broken.is_some() || state.life().is_parked() == (state.place == Place::Parked)
            }),
            Property::always(CLEAN, |_, state: &State| holds(CLEAN)(state)),
            Property::always(ENDS, |_, state: &State| holds(ENDS)(state)),
            Property::always(STRANGERS, |_, state: &State| holds(STRANGERS)(state)),
            Property::always(QUEUED_RUNS, |_, state: &State| holds(QUEUED_RUNS)(state)),
            Property::always(NO_REFUSAL, |_, state: &State| holds(NO_REFUSAL)(state)),
            Property::always(MORTAL, |model: &Lives, state: &State| {
                let waits = state.place == Place::Parked && state.life().stage() != Stage::Ended;
                !(model.is_quiet(state) && state.life().is_ending() && waits)
            }),
            Property::always(UNPAID, |model: &Lives, state: &State| {
                let is_killed =
                    model.actors.iter().zip(&state.actors).any(|it| it == (&Actor::Killer, &At::Done));
                let ends = state.life().is_ending() && state.life().names(FIRST);
                !(model.is_quiet(state) && is_killed && ends && state.boxed && state.doing == Doing::Anything)
            }),
            Property::always(PROMISED, |model: &Lives, state: &State| {
                let lies = state.book.is_promised_to(state.life().live_generation());
                let waits = state.life().stage() == Stage::Stopped;
                !(model.is_quiet(state) && lies && waits)
            }),
            Property::always(WOKEN, |model: &Lives, state: &State| {
                let waits = matches!(state.life().stage(), Stage::Waiting | Stage::Stopped);
                !(model.is_quiet(state) && state.owed && waits && state.runnable())
            }),
            Property::sometimes("the record is used again", |_, state: &State| {
                state.life().generation() == 2 && state.place == Place::Cpu
            }),
            Property::sometimes("it is stopped", |_, state: &State| state.life().stage() == Stage::Stopped),
        ]
    }
}

/// The life's word and the place of the entity agree.
pub const COHERENT: &str = "who waits, is set aside, is stopped or has ended is parked, and nobody else";
/// Broken, this was the kernel's panic `a record in a context`.
pub const CLEAN: &str = "a record that is used again has no context";
/// Broken, this was an endless loop at a thread's end.
pub const ENDS: &str = "a thread that ends finds no context of another life";
/// Generations are looked at.
pub const STRANGERS: &str = "nobody touches the next life";
/// The core accepts only runnable threads.
pub const QUEUED_RUNS: &str = "who is queued can run";
/// The kernel panics (`ThreadHead::must`) if this does not hold.
pub const NO_REFUSAL: &str = "what cannot be refused is not";
/// Broken, this was a process that could not be killed.
pub const MORTAL: &str = "who is to end is not left waiting";
/// A kill does not wait for a refill.
pub const UNPAID: &str = "who was killed runs on no budget";
/// Promises are kept.
pub const PROMISED: &str = "a promised context does not lie beside a stopped thread";
/// Wake-ups are not lost.
pub const WOKEN: &str = "who was stopped and can run, runs";
