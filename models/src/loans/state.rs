//! What the model knows of threads, records and errands, and what can happen next.

use kcore::loans::{Book, Flaw as BookFlaw, Loan, Name, Rules};

use super::Flaw;

/// A thread, by number.
pub(super) type Tid = u8;
/// A context, by number.
pub(super) type Cid = u8;
/// A thread, or (behind the threads) an errand.
pub(super) type Actor = u8;

/// The time itself. Never cloned but with the whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Box {
    pub(super) context: Cid,
    pub(super) generation: u8,
    pub(super) left: u8,
}

/// A thread makes one call at a time, so its calls need no numbers.
pub(super) const CALL: u64 = 0;
/// The generation that every capability has.
pub(super) const HELD: u64 = 1;

/// The book's rules: with a shorter chain, and perhaps with a bug.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    depth: u8,
    flaw: Option<Flaw>,
}

impl Rules for Law {
    fn max_depth(&self) -> usize {
        self.depth.into()
    }

    fn has(&self, flaw: BookFlaw) -> bool {
        self.flaw == Some(Flaw::Book(flaw))
    }

    fn is_sound(&self) -> bool {
        self.flaw.is_none()
    }
}

/// The kernel's record of a context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) book: Book<Tid, Box, Law>,
    /// The box, when the context is over.
    pub(super) retired: Option<Box>,
    /// Who keeps the lock while it waits: only with the bug that this is.
    pub(super) locked: Option<Actor>,
    /// How much work was done on it, as the world saw it.
    pub(super) worked: u8,
}

impl Record {
    /// To whom the box is promised.
    pub(super) fn promised(&self) -> Option<Tid> {
        self.book.kept().and(Some(*self.book.holder())).filter(|holder| *holder != Tid::NOBODY)
    }
}

/// Where a thread is. What it does next in the kernel is its list of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    User,
    Kernel,
    /// In its wait slot.
    Parked,
    /// In the handoff place of this thread's CPU.
    Handed(Tid),
    Dead,
}

/// A thread's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    None,
    Queued(Tid),
    Flies(Tid),
    /// Taken out by this actor, to be completed.
    Taken(Actor),
}

/// Which way a box goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// To a server.
    Out,
    /// To a caller.
    Back,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) at: At,
    /// What it does in the kernel, last first.
    pub(super) todo: Vec<Op>,
    /// In its entity.
    pub(super) time: Option<Box>,
    /// Work that is not charged yet.
    pub(super) uncharged: u8,
    /// The one context that it has, or is to get: taken before anything else.
    pub(super) claim: Option<Cid>,
    pub(super) woken: bool,
    pub(super) ending: bool,
    pub(super) bind_requested: bool,
    /// It has lent: it looks at the record before it goes back to user mode.
    pub(super) lent: bool,
    /// Its endpoint has it as a receiver.
    pub(super) receives: bool,
    /// Its endpoint takes no more.
    pub(super) closed: bool,
    /// A completion is there.
    pub(super) ready: bool,
    /// It waits for one.
    pub(super) need: bool,
    pub(super) call: Call,
    pub(super) handoff: Option<Tid>,
    pub(super) way: Option<(Cid, Way)>,
    pub(super) calls_left: u8,
}

/// A region under locks, in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Endpoint, and a look at the record: meets a receiver.
    Meet(Tid),
    /// The server's ring.
    Deliver(Tid),
    /// Record, own ring, the server's wait lock: to the handoff place, with a loan if it can be.
    WakeServer(Tid),
    /// Other submissions of the same batch.
    Batch,
    /// Endpoint: takes the call to be answered.
    Answer(Tid),
    /// Record, the caller's wait lock: its loan comes back, to the handoff place if it waits.
    GiveBack(Tid),
    /// Record, wait, CPU: ends the loan of this lender, wherever the box is.
    EndLoan(Tid),
    /// This caller's ring.
    Post(Tid),
    /// This thread's wait lock: to a queue.
    Wake(Tid),
    /// This caller's wait lock: to the handoff place.
    WakeCaller(Tid),
    /// Own CPU: closes the own way, empties the own handoff place.
    Settle,
    /// Record: a loan that this server still has goes back.
    LeaveLoan(Tid),
    /// Endpoint, record: takes a queued call, or becomes a receiver.
    Receive,
    /// Own ring: is there a completion?
    Wait,
    /// Own wait and CPU lock.
    Block,
    /// Whatever a thread does before user mode.
    Leave,
    /// Own requests to bind, and the end.
    Attend,
    /// Record: fetches what is promised.
    Fetch,
    /// Record: has it lent?
    LookLent,
    /// Own wait and CPU lock, until the loan is back.
    BlockLent,
    /// Endpoint: withdraws what is under way.
    Withdraw,
    /// Endpoint: the next call that was not answered, of those at this thread.
    Fail(Tid),
    /// The contexts that it owned.
    Disown,
    /// It is off its stack.
    Die,
    /// A revocation begins.
    Revoke(Cid),
    /// Record, wait or CPU: takes the box, and moves the generation on.
    Stale(Cid),
    /// Sets `ending`.
    Doom(Tid),
    /// Record, wait, CPU: one that is to end does not keep its own box.
    LayDown(Tid),
    /// Endpoint: closes.
    Close(Tid),
    /// Record, wait: binds.
    Bind(Tid, Cid),
    /// Record, wait: gives what was bound.
    Give(Tid, Cid),
    /// Sets the request to bind.
    RequestBind(Tid),
    /// A completion that is nothing to anybody.
    Chance(Tid),
    /// Own call, cancelled.
    Cancel,
}

/// What somebody outside does once, at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errand {
    /// Revokes a context; a logout of its owner's session is the same.
    Revoke(u8),
    /// Kills a thread.
    Kill(u8),
    /// Closes the endpoint of a thread.
    Close(u8),
    /// Binds a thread to a context.
    Bind(u8, u8),
    /// Another completion comes for a thread.
    Chance(u8),
}

/// How large, and what may happen.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which context each thread owns at first.
    pub owners: Vec<Option<u8>>,
    /// How many calls each may make.
    pub calls: Vec<u8>,
    /// Whom a thread may call (all others if empty).
    pub peers: Vec<(u8, u8)>,
    /// Contexts.
    pub contexts: u8,
    /// Budget of each, in units of work. At 0 nobody works.
    pub budget: u8,
    /// Frames at most.
    pub depth: u8,
    /// What happens besides.
    pub errands: Vec<Errand>,
    /// Submissions after a call, in the same batch: cancelling it, and revoking these contexts.
    pub batch: Vec<u8>,
    /// See `batch`.
    pub cancels: bool,
    /// Calls, answers and receives may come in one batch, in any order.
    pub mixed: bool,
    /// Threads 1 and 2 are of one process: each may answer what the other received.
    pub pair: bool,
    /// Servers wait for calls from the beginning.
    pub waiting: bool,
    /// What must be seen ([`super::mark`]).
    pub expect: u16,
    /// A planted bug.
    pub flaw: Option<Flaw>,
}

impl Config {
    /// Thread 0 owns context 0; each of `calls` is how many calls a thread may make.
    pub fn new(calls: &[u8]) -> Config {
        let mut owners = vec![None; calls.len()];
        owners[0] = Some(0);
        Config {
            owners,
            calls: calls.to_vec(),
            peers: Vec::new(),
            contexts: 1,
            budget: 0,
            depth: 3,
            errands: Vec::new(),
            batch: Vec::new(),
            cancels: false,
            mixed: false,
            pair: false,
            waiting: false,
            expect: 0,
            flaw: None,
        }
    }
}

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// An actor goes on in the kernel.
    Step(u8),
    /// An errand begins.
    Begin(u8),
    /// In user mode: works for one unit.
    Work(u8),
    /// In user mode or its batch: calls.
    Call(u8, u8),
    /// In user mode or its batch: answers this caller; and then asks for the next call?
    Return(u8, u8, bool),
    /// In user mode or its batch: asks for the next call.
    Recv(u8),
    /// In user mode: waits for what it asked for.
    WaitMore(u8),
    /// In user mode: an interrupt takes it to the kernel.
    Interrupt(u8),
    /// In its batch: cancels its call.
    Cancel(u8),
    /// In its batch: revokes a context.
    Revoke(u8, u8),
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) threads: Vec<Thread>,
    pub(super) records: Vec<Record>,
    /// What each errand still has to do; `None` before it begins.
    pub(super) errands: Vec<Option<Vec<Op>>>,
    /// What a step found wrong.
    pub(super) broken: u16,
    pub(super) marks: u16,
}

impl State {
    /// All threads in user mode (or all servers waiting), boxes with their owners.
    pub(super) fn new(config: &Config) -> State {
        let mut state = State {
            threads: config.calls.iter().map(|calls| Thread::new(*calls)).collect(),
            records: (0..config.contexts).map(|context| Record::new(context, config)).collect(),
            errands: vec![None; config.errands.len()],
            broken: 0,
            marks: 0,
        };
        for (thread, owns) in state.threads.iter_mut().zip(0..).zip(&config.owners) {
            let ((thread, tid), Some(context)) = (thread, owns) else { continue };
            let book = &mut state.records[usize::from(*context)].book;
            book.bind(tid);
            thread.time = book.promise(tid).and_then(|()| book.fetch(tid)).ok();
            thread.claim = Some(*context);
        }
        for tid in state.tids().filter(|tid| config.waiting && config.is_server(*tid)) {
            let thread = state.thread_mut(tid);
            thread.at = At::Parked;
            thread.todo = vec![Op::Wait];
            (thread.receives, thread.need) = (true, true);
        }
        state
    }

    pub(super) fn thread(&self, tid: Tid) -> &Thread {
        &self.threads[usize::from(tid)]
    }

    pub(super) fn thread_mut(&mut self, tid: Tid) -> &mut Thread {
        &mut self.threads[usize::from(tid)]
    }

    pub(super) fn record(&self, context: Cid) -> &Record {
        &self.records[usize::from(context)]
    }

    pub(super) fn record_mut(&mut self, context: Cid) -> &mut Record {
        &mut self.records[usize::from(context)]
    }

    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> + use<> {
        0..self.threads.len() as Tid
    }

    pub(super) fn cids(&self) -> impl Iterator<Item = Cid> + use<> {
        0..self.records.len() as Cid
    }

    /// What an actor still has to do.
    pub(super) fn todo(&self, actor: Actor) -> &[Op] {
        match self.threads.get(usize::from(actor)) {
            Some(thread) => &thread.todo,
            None => self.errands[usize::from(actor) - self.threads.len()].as_deref().unwrap_or(&[]),
        }
    }

    /// Puts an operation before whatever the actor has to do.
    pub(super) fn push(&mut self, actor: Actor, op: Op) {
        let threads = self.threads.len();
        let todo = match self.threads.get_mut(usize::from(actor)) {
            Some(thread) => &mut thread.todo,
            None => self.errands[usize::from(actor) - threads].get_or_insert_default(),
        };
        todo.push(op);
    }

    pub(super) fn pop(&mut self, actor: Actor) -> Option<Op> {
        let threads = self.threads.len();
        match self.threads.get_mut(usize::from(actor)) {
            Some(thread) => thread.todo.pop(),
            None => self.errands[usize::from(actor) - threads].as_mut()?.pop(),
        }
    }

    /// Is the actor in the kernel, on a CPU?
    pub(super) fn is_busy(&self, actor: Actor) -> bool {
        match self.threads.get(usize::from(actor)) {
            Some(thread) => thread.at == At::Kernel,
            None => !self.todo(actor).is_empty(),
        }
    }

    /// Every actor.
    pub(super) fn actors(&self) -> impl Iterator<Item = Actor> + use<> {
        0..(self.threads.len() + self.errands.len()) as Actor
    }

    /// The loan that this thread made: context and place in the stack.
    pub(super) fn loan_of(&self, lender: Tid) -> Option<(Cid, usize)> {
        self.cids().find_map(|context| {
            let at = self.record(context).book.loan_along(lender, CALL)?;
            Some((context, at))
        })
    }

    /// Every loan that there is.
    pub(super) fn loans(&self) -> impl Iterator<Item = &Loan<Tid>> {
        self.records.iter().flat_map(|record| record.book.loans())
    }

    /// The context that this thread owns and should have.
    pub(super) fn own(&self, tid: Tid) -> Option<Cid> {
        let is_own = |book: &Book<Tid, Box, Law>| *book.owner() == tid && *book.holder() == tid;
        self.cids().find(|context| is_own(&self.record(*context).book))
    }

    /// Whether the box is on its way to whom the record names.
    pub(super) fn on_way(&self, context: Cid) -> bool {
        self.threads.iter().any(|thread| thread.way.is_some_and(|(c, _)| c == context))
    }

    // ---- what can happen ------------------------------------------------------------------------------------------

    /// Every action that is possible now.
    pub(super) fn enabled(&self, config: &Config, actions: &mut Vec<Action>) {
        for actor in self.actors() {
            if self.is_busy(actor) && self.waits_for(config, actor).is_none() {
                actions.push(Action::Step(actor));
            }
        }
        let waiting = self.errands.iter().zip(0..).filter(|(errand, _)| errand.is_none());
        actions.extend(waiting.map(|(_, at)| Action::Begin(at)));
        for tid in self.tids() {
            match self.thread(tid).at {
                At::User => self.in_user_mode(config, tid, actions),
                At::Kernel if self.todo(tid).last() == Some(&Op::Batch) => {
                    self.in_batch(config, tid, actions)
                }
                _ => {}
            }
        }
    }

    fn in_batch(&self, config: &Config, tid: Tid, actions: &mut Vec<Action>) {
        let cancels = config.cancels && matches!(self.thread(tid).call, Call::Flies(_));
        actions.extend(cancels.then_some(Action::Cancel(tid)));
        let revokes = config.batch.iter().filter(|context| self.record(**context).book.has_time());
        actions.extend(revokes.map(|context| Action::Revoke(tid, *context)));
        if config.mixed {
            self.submissions(config, tid, actions);
        }
    }

    fn in_user_mode(&self, config: &Config, tid: Tid, actions: &mut Vec<Action>) {
        let thread = self.thread(tid);
        if thread.bind_requested || thread.ending {
            // The interrupt that says so is on its way; whatever else the thread does first, it could have done before.
            actions.push(Action::Interrupt(tid));
            return;
        }
        if config.budget > 0
            && thread.uncharged == 0
            && thread.time.as_ref().is_some_and(|time| time.left > 0)
        {
            actions.push(Action::Work(tid));
        }
        self.submissions(config, tid, actions);
        if thread.receives || thread.call != Call::None {
            actions.push(Action::WaitMore(tid));
        }
    }

    /// Calls, answers and receives.
    fn submissions(&self, config: &Config, tid: Tid, actions: &mut Vec<Action>) {
        let thread = self.thread(tid);
        let is_peer = |peer: Tid| config.peers.is_empty() || config.peers.contains(&(tid, peer));
        if thread.call == Call::None && thread.calls_left > 0 {
            let peers = self.tids().filter(|peer| *peer != tid && is_peer(*peer));
            actions.extend(peers.map(|peer| Action::Call(tid, peer)));
        }
        let is_one =
            |server: Tid| server == tid || config.pair && server.min(tid) == 1 && server.max(tid) == 2;
        for caller in self.tids() {
            if matches!(self.thread(caller).call, Call::Flies(server) if is_one(server)) {
                actions.extend([false, true].map(|next| Action::Return(tid, caller, next)));
            }
        }
        if !thread.closed && !thread.receives && config.is_server(tid) {
            actions.push(Action::Recv(tid));
        }
    }
}

impl Config {
    /// Can anybody call it?
    fn is_server(&self, tid: Tid) -> bool {
        if self.peers.is_empty() { tid > 0 } else { self.peers.iter().any(|(_, peer)| *peer == tid) }
    }
}

impl Thread {
    fn new(calls_left: u8) -> Thread {
        Thread {
            at: At::User,
            todo: Vec::new(),
            time: None,
            uncharged: 0,
            claim: None,
            woken: false,
            ending: false,
            bind_requested: false,
            lent: false,
            receives: false,
            closed: false,
            ready: false,
            need: false,
            call: Call::None,
            handoff: None,
            way: None,
            calls_left,
        }
    }
}

impl Record {
    fn new(context: Cid, config: &Config) -> Record {
        let mut book = Book::vacant(Law { depth: config.depth, flaw: config.flaw });
        book.make(Box { context, generation: HELD as u8, left: config.budget });
        Record { book, retired: None, locked: None, worked: 0 }
    }
}
