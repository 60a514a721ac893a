//! Endpoints (K-15): calls meet receivers.
//!
//! A call waits in the queue until somebody receives; a receiver waits until somebody calls. What is delivered and not yet answered is *in
//! flight*, under a token that only the receiver's process may use. A server that waits is run at once on the caller's CPU, in what is left
//! of the caller's slice.
//!
//! Messages are copied between address spaces without the endpoint's lock: the parties are taken out of their queues first.

use crate::lock::{Rank, SpinLock};
use crate::object::{Cap, Waitable};
use crate::process::Process;
use crate::ring::{self, Completion, Waiter};
use crate::thread::Thread;
use abi::{CapId, Exception, TransportError, cqe_flags};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::generation::ThreadRef;

/// Calls that may wait or be in flight at one endpoint.
pub const MAX_CALLS: usize = 1024;
/// Receivers that may wait.
pub const MAX_RECEIVERS: usize = 1024;

/// What is said.
pub enum Message {
    /// Two words.
    Inline([u64; 2]),
    /// Bytes, in the kernel's hands.
    Bytes(Vec<u8>),
}

/// Where bytes for a party go.
pub struct Buffer {
    /// Whose memory.
    pub process: Arc<Process>,
    /// Where.
    pub address: u64,
    /// How much fits.
    pub length: u32,
}

/// A call on its way.
pub struct Call {
    /// Who waits for the answer.
    pub caller: Waiter,
    /// Where the answer goes.
    pub reply: Buffer,
    /// Which method.
    pub method: u16,
    /// Of the capability that was used.
    pub badge: u32,
    /// Its epoch.
    pub epoch: u64,
    /// What is said.
    pub message: Message,
    /// What comes along.
    pub cap: Option<Cap>,
}

struct Receiver {
    waiter: Waiter,
    /// Of the capability that was used.
    epoch: u64,
    buffer: Buffer,
}

struct Flight {
    generation: u32,
    entry: Option<InFlight>,
}

/// A call that was delivered and not yet answered.
pub struct InFlight {
    caller: Waiter,
    reply: Buffer,
    server: ThreadRef,
    /// Of the capability that the server used.
    epoch: u64,
}

/// A process: number and generation.
type ProcessRef = (u32, u32);

fn process_of(thread: &ThreadRef) -> ProcessRef {
    (thread.pid, thread.process_generation)
}

struct State {
    /// Who revoked last: what its process has under way goes on.
    owner: ProcessRef,
    /// Capabilities of this epoch that may receive. With the last of them the endpoint closes.
    servers: u32,
    calls: VecDeque<Call>,
    receivers: VecDeque<Receiver>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    closed: bool,
}

/// A place to call.
pub struct Endpoint {
    state: SpinLock<State>,
    /// Moves on, under the lock, when capabilities are revoked.
    pub epoch: AtomicU64,
}

impl Endpoint {
    /// An endpoint without receivers.
    pub fn new() -> Endpoint {
        Endpoint {
            state: SpinLock::new(
                Rank::Object,
                State {
                    owner: (0, 0),
                    servers: 0,
                    calls: VecDeque::new(),
                    receivers: VecDeque::new(),
                    flights: Vec::new(),
                    free: Vec::new(),
                    closed: false,
                },
            ),
            epoch: AtomicU64::new(1),
        }
    }

    /// One more capability of `epoch` may receive.
    pub fn add_server(&self, epoch: u64) {
        let mut state = self.state.lock();
        if epoch == self.epoch.load(Ordering::Relaxed) {
            state.servers += 1;
        }
    }

    /// One fewer.
    pub fn drop_server(&self, epoch: u64) {
        let mut state = self.state.lock();
        if epoch != self.epoch.load(Ordering::Relaxed) {
            return;
        }
        state.servers -= 1;
        let is_last = state.servers == 0;
        drop(state);
        if is_last {
            self.close();
        }
    }

    /// Begins a new epoch, in which nobody but a capability of `owner` has access; `serves` says whether that one may receive. Whoever is
    /// under way with an older one is told by [`Endpoint::expel`].
    pub fn revoke(&self, owner: ProcessRef, serves: bool) -> u64 {
        let mut state = self.state.lock();
        state.owner = owner;
        state.servers = u32::from(serves);
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// May what `thread` has under way with a capability of `epoch` go on?
    fn is_current(&self, state: &State, epoch: u64, thread: &ThreadRef) -> bool {
        epoch == self.epoch.load(Ordering::Relaxed) || process_of(thread) == state.owner
    }

    /// Ends what is under way with revoked capabilities: their calls and receivers are told, and so are those whom they did not answer.
    pub fn expel(&self) {
        loop {
            let mut state = self.state.lock();
            if state.servers == 0 {
                drop(state);
                return self.close();
            }
            let old = |epoch: u64, thread: &ThreadRef| !self.is_current(&state, epoch, thread);
            let call = state.calls.iter().position(|call| old(call.epoch, &call.caller.thread));
            let receiver = state.receivers.iter().position(|r| old(r.epoch, &r.waiter.thread));
            let flight =
                state.flights.iter().position(|f| f.entry.as_ref().is_some_and(|e| old(e.epoch, &e.server)));
            let call = call.and_then(|at| state.calls.remove(at));
            let receiver = receiver.and_then(|at| state.receivers.remove(at));
            let flight = flight.and_then(|at| take_flight(&mut state, at));
            drop(state);
            if call.is_none() && receiver.is_none() && flight.is_none() {
                return;
            }
            for waiter in call.iter().map(|call| &call.caller).chain(receiver.iter().map(|r| &r.waiter)) {
                ring::complete(waiter, &Completion::error(TransportError::Revoked), false);
            }
            if let Some(flight) = flight {
                disconnect(&flight.caller, &flight.reply);
            }
        }
    }

    /// A process has given up its last capability to receive: it can answer nobody any more.
    pub fn process_left(&self, process: ProcessRef) {
        loop {
            let mut state = self.state.lock();
            let receiver = state.receivers.iter().position(|r| process_of(&r.waiter.thread) == process);
            let flight = state
                .flights
                .iter()
                .position(|f| f.entry.as_ref().is_some_and(|e| process_of(&e.server) == process));
            let receiver = receiver.and_then(|at| state.receivers.remove(at));
            let flight = flight.and_then(|at| take_flight(&mut state, at));
            drop(state);
            if receiver.is_none() && flight.is_none() {
                return;
            }
            if let Some(receiver) = receiver {
                crate::object::cancelled(&receiver.waiter);
            }
            if let Some(flight) = flight {
                disconnect(&flight.caller, &flight.reply);
            }
        }
    }

    /// Everybody who waits for a server learns that there is none.
    fn close(&self) {
        loop {
            let mut state = self.state.lock();
            state.closed = true;
            let call = state.calls.pop_front();
            let flight = if call.is_none() { take_any(&mut state) } else { None };
            let receiver =
                if call.is_none() && flight.is_none() { state.receivers.pop_front() } else { None };
            drop(state);
            match (call, flight, receiver) {
                (Some(call), ..) => disconnect(&call.caller, &call.reply),
                (None, Some(flight), _) => disconnect(&flight.caller, &flight.reply),
                (None, None, Some(receiver)) => crate::object::cancelled(&receiver.waiter),
                (None, None, None) => return,
            }
        }
    }

    /// A server thread ends: calls that it did not answer fail.
    pub fn server_ended(&self, server: &ThreadRef) {
        loop {
            let mut state = self.state.lock();
            let found =
                state.flights.iter().position(|f| f.entry.as_ref().is_some_and(|e| e.server == *server));
            let Some(flight) = found.and_then(|at| take_flight(&mut state, at)) else { return };
            drop(state);
            disconnect(&flight.caller, &flight.reply);
        }
    }

    /// Delivers a call to a receiver that waits, or queues it. `direct`: the caller is about to wait.
    pub fn call(&self, call: Call, direct: bool) {
        self.offer(call, direct, false);
    }

    /// As [`Endpoint::call`]; with `again` the call was accepted before, and is the first in the queue.
    fn offer(&self, mut call: Call, direct: bool, again: bool) {
        loop {
            let mut state = self.state.lock();
            if state.closed {
                drop(state);
                return disconnect(&call.caller, &call.reply);
            }
            if !self.is_current(&state, call.epoch, &call.caller.thread) {
                drop(state);
                ring::complete(&call.caller, &Completion::error(TransportError::Revoked), false);
                return;
            }
            let Some(receiver) = state.receivers.pop_front() else {
                let is_full = state.calls.len() + state.flights.len() - state.free.len() >= MAX_CALLS;
                if is_full && !again || state.calls.try_reserve(1).is_err() {
                    drop(state);
                    return overloaded(&call);
                }
                if again {
                    state.calls.push_front(call);
                } else {
                    state.calls.push_back(call);
                }
                return;
            };
            drop(state);
            match self.deliver(call, receiver, direct) {
                Delivered::Yes => return,
                Delivered::NotTo(back) => call = back,
            }
        }
    }

    /// A call for the current thread, if one waits; otherwise the thread's operation waits.
    pub fn recv(
        self: &Arc<Endpoint>,
        thread: &'static Thread,
        user_data: u64,
        buffer: Buffer,
        epoch: u64,
    ) -> Option<Completion> {
        let mut state = self.state.lock();
        if epoch != self.epoch.load(Ordering::Relaxed) {
            return Some(Completion::error(TransportError::Revoked));
        }
        if state.closed {
            return Some(Completion::error(TransportError::Cancelled));
        }
        if state.receivers.len() >= MAX_RECEIVERS || state.receivers.try_reserve(1).is_err() {
            return Some(Completion::error(TransportError::NoSpace));
        }
        let Some(waiter) = ring::accept(thread, user_data, Waitable::Recv(self.clone())) else {
            return Some(Completion::error(TransportError::NoSpace));
        };
        thread.served.set(true);
        let receiver = Receiver { waiter, epoch, buffer };
        match state.calls.pop_front() {
            None => state.receivers.push_back(receiver),
            Some(call) => {
                drop(state);
                // It was nobody's while we tried: others may have come to receive, or the last server may have gone.
                if let Delivered::NotTo(call) = self.deliver(call, receiver, false) {
                    self.offer(call, false, true);
                }
            }
        }
        None
    }

    /// Gives the call to the receiver. Both are out of their queues.
    fn deliver(&self, call: Call, receiver: Receiver, direct: bool) -> Delivered {
        let Call { caller, reply, method, badge, epoch, message, cap } = call;
        let mut completion =
            Completion { flags: u32::from(method) << cqe_flags::METHOD_SHIFT, badge, ..Completion::OK };
        // The message first: a receiver that cannot take it loses its turn, not the call.
        match &message {
            Message::Inline(words) => {
                completion.flags |= cqe_flags::INLINE;
                completion.w = *words;
            }
            Message::Bytes(bytes) => {
                let buffer = &receiver.buffer;
                let fits = bytes.len() <= buffer.length as usize;
                if !fits || buffer.process.space.write(buffer.address, bytes).is_err() {
                    let error = if fits { TransportError::BadAddress } else { TransportError::TooLong };
                    ring::complete(&receiver.waiter, &Completion::error(error), false);
                    return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
                }
                completion.w = [bytes.len() as u64, 0];
            }
        }
        if let Some(cap) = cap {
            match receiver.buffer.process.insert_cap(cap) {
                Ok(id) => completion.cap = id.0,
                Err(cap) => {
                    ring::complete(&receiver.waiter, &Completion::error(TransportError::NoSpace), false);
                    let cap = Some(cap);
                    return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
                }
            }
        }
        let server = receiver.waiter.thread;
        let take_back = || receiver.buffer.process.caps.lock().remove(CapId(completion.cap));
        let token = {
            let mut state = self.state.lock();
            if !self.is_current(&state, receiver.epoch, &server) {
                drop(state);
                let cap = take_back();
                ring::complete(&receiver.waiter, &Completion::error(TransportError::Revoked), false);
                return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
            }
            match new_flight(&mut state, InFlight { caller, reply, server, epoch: receiver.epoch }) {
                Ok(token) => token,
                Err(flight) => {
                    drop(state);
                    drop(take_back());
                    crate::object::cancelled(&receiver.waiter);
                    fail(&flight.caller, &flight.reply, Exception::Overloaded, "the endpoint is full");
                    return Delivered::Yes;
                }
            }
        };
        completion.value = token;
        if !ring::complete(&receiver.waiter, &completion, direct) {
            // The receiver died under our hands: nobody will answer.
            let flight = take_by_token(&mut self.state.lock(), token, None);
            if let Some(flight) = flight {
                disconnect(&flight.caller, &flight.reply);
            }
        }
        Delivered::Yes
    }

    /// The call with `token`, to be answered, if it is in flight and `server`'s process has it.
    pub fn take(&self, server: &ThreadRef, token: u64) -> Option<InFlight> {
        take_by_token(&mut self.state.lock(), token, Some(server))
    }

    /// Takes a call out of the queue, or forgets who waits for its answer.
    pub fn withdraw_call(&self, waiter: &Waiter) -> bool {
        let mut state = self.state.lock();
        let same = |w: &Waiter| w.thread == waiter.thread && w.op == waiter.op;
        if let Some(at) = state.calls.iter().position(|call| same(&call.caller)) {
            let call = state.calls.remove(at);
            drop(state);
            drop(call);
            return true;
        }
        let found = state.flights.iter().position(|f| f.entry.as_ref().is_some_and(|e| same(&e.caller)));
        let flight = found.and_then(|at| take_flight(&mut state, at));
        drop(state);
        flight.is_some()
    }

    /// Takes a receiver out of the queue.
    pub fn withdraw_recv(&self, waiter: &Waiter) -> bool {
        let mut state = self.state.lock();
        let found =
            state.receivers.iter().position(|r| r.waiter.thread == waiter.thread && r.waiter.op == waiter.op);
        let receiver = found.and_then(|at| state.receivers.remove(at));
        drop(state);
        receiver.is_some()
    }
}

impl InFlight {
    /// Answers the caller. Nobody else can any more.
    pub fn answer(self, answer: Answer, direct: bool) {
        let InFlight { caller, reply, .. } = self;
        let Answer { exception, message, cap } = answer;
        let mut completion = Completion { status: exception.map_or(0, |e| e as i32), ..Completion::OK };
        match &message {
            Message::Inline(words) => {
                completion.flags = cqe_flags::INLINE;
                completion.w = *words;
            }
            Message::Bytes(bytes) => {
                // Of an exception's text the caller gets what it has room for; half an answer is none.
                let cut =
                    if exception.is_some() { bytes.len().min(reply.length as usize) } else { bytes.len() };
                if cut > reply.length as usize {
                    completion.status = TransportError::TooLong as i32;
                } else if reply.process.space.write(reply.address, &bytes[..cut]).is_err() {
                    completion.status = TransportError::BadAddress as i32;
                }
                completion.value = cut as u64;
            }
        }
        if let Some(cap) = cap.filter(|_| completion.status >= 0) {
            match reply.process.insert_cap(cap) {
                Ok(id) => completion.cap = id.0,
                Err(_) => completion.status = TransportError::NoSpace as i32,
            }
        }
        ring::complete(&caller, &completion, direct);
    }
}

enum Delivered {
    Yes,
    /// The receiver could not take it; the call is as before.
    NotTo(Call),
}

/// What a server says.
pub struct Answer {
    /// Raise this instead.
    pub exception: Option<Exception>,
    /// What is said.
    pub message: Message,
    /// What comes along.
    pub cap: Option<Cap>,
}

fn new_flight(state: &mut State, entry: InFlight) -> Result<u64, InFlight> {
    let at = match state.free.pop() {
        Some(at) => at as usize,
        None => {
            let room = state.flights.len() + 1;
            if room > MAX_CALLS
                || state.flights.try_reserve(1).is_err()
                || state.free.try_reserve(room).is_err()
            {
                return Err(entry);
            }
            state.flights.push(Flight { generation: 0, entry: None });
            state.flights.len() - 1
        }
    };
    let flight = &mut state.flights[at];
    flight.generation = flight.generation.wrapping_add(1).max(1);
    flight.entry = Some(entry);
    Ok(u64::from(flight.generation) << 32 | at as u64)
}

fn take_flight(state: &mut State, at: usize) -> Option<InFlight> {
    let entry = state.flights.get_mut(at)?.entry.take()?;
    state.free.push(at as u32);
    Some(entry)
}

fn take_by_token(state: &mut State, token: u64, server: Option<&ThreadRef>) -> Option<InFlight> {
    let at = token as u32 as usize;
    let flight = state.flights.get(at)?;
    let entry = flight.entry.as_ref()?;
    if u64::from(flight.generation) != token >> 32
        || server.is_some_and(|server| process_of(server) != process_of(&entry.server))
    {
        return None;
    }
    take_flight(state, at)
}

fn take_any(state: &mut State) -> Option<InFlight> {
    let at = state.flights.iter().position(|flight| flight.entry.is_some())?;
    take_flight(state, at)
}

fn disconnect(caller: &Waiter, reply: &Buffer) {
    fail(caller, reply, Exception::Disconnected, "the server is gone");
}

fn overloaded(call: &Call) {
    fail(&call.caller, &call.reply, Exception::Overloaded, "too many calls wait at the endpoint");
}

/// Raises an exception at the caller.
fn fail(caller: &Waiter, reply: &Buffer, exception: Exception, why: &str) {
    let text = &why.as_bytes()[..why.len().min(reply.length as usize)];
    let written = reply.process.space.write(reply.address, text).is_ok();
    let value = if written { text.len() as u64 } else { 0 };
    ring::complete(caller, &Completion { status: exception as i32, value, ..Completion::OK }, false);
}
