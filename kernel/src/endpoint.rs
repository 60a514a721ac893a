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
use abi::{Exception, TransportError, cqe_flags};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
    /// What is said.
    pub message: Message,
    /// What comes along.
    pub cap: Option<Cap>,
}

struct Receiver {
    waiter: Waiter,
    buffer: Buffer,
}

struct Flight {
    generation: u32,
    entry: Option<InFlight>,
}

struct InFlight {
    caller: Waiter,
    reply: Buffer,
    server: ThreadRef,
}

struct State {
    calls: VecDeque<Call>,
    receivers: VecDeque<Receiver>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    closed: bool,
}

/// A place to call.
pub struct Endpoint {
    state: SpinLock<State>,
    /// Moves on when capabilities are revoked.
    pub epoch: AtomicU64,
    /// Capabilities that may receive. With the last of them the endpoint closes.
    servers: AtomicU32,
}

impl Endpoint {
    /// An endpoint without receivers.
    pub fn new() -> Endpoint {
        Endpoint {
            state: SpinLock::new(
                Rank::Object,
                State {
                    calls: VecDeque::new(),
                    receivers: VecDeque::new(),
                    flights: Vec::new(),
                    free: Vec::new(),
                    closed: false,
                },
            ),
            epoch: AtomicU64::new(1),
            servers: AtomicU32::new(0),
        }
    }

    /// One more capability may receive.
    pub fn add_server(&self) {
        self.servers.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer.
    pub fn drop_server(&self) {
        if self.servers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    /// Everybody who waits for a server learns that there is none.
    fn close(&self) {
        loop {
            let mut state = self.state.lock();
            state.closed = true;
            let call = state.calls.pop_front();
            let flight = if call.is_none() { take_any(&mut state) } else { None };
            let receiver = if call.is_none() && flight.is_none() { state.receivers.pop_front() } else { None };
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
            let found = state.flights.iter().position(|f| f.entry.as_ref().is_some_and(|e| e.server == *server));
            let Some(flight) = found.and_then(|at| take_flight(&mut state, at)) else { return };
            drop(state);
            disconnect(&flight.caller, &flight.reply);
        }
    }

    /// Delivers a call to a receiver that waits, or queues it. `direct`: the caller is about to wait.
    pub fn call(&self, mut call: Call, direct: bool) {
        loop {
            let mut state = self.state.lock();
            if state.closed {
                drop(state);
                return disconnect(&call.caller, &call.reply);
            }
            let Some(receiver) = state.receivers.pop_front() else {
                if state.calls.len() + state.flights.len() - state.free.len() >= MAX_CALLS
                    || state.calls.try_reserve(1).is_err()
                {
                    drop(state);
                    return overloaded(&call);
                }
                state.calls.push_back(call);
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
    pub fn recv(self: &Arc<Endpoint>, thread: &'static Thread, user_data: u64, buffer: Buffer) -> Option<Completion> {
        let mut state = self.state.lock();
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
        let receiver = Receiver { waiter, buffer };
        match state.calls.pop_front() {
            None => state.receivers.push_back(receiver),
            Some(call) => {
                drop(state);
                if let Delivered::NotTo(call) = self.deliver(call, receiver, false) {
                    let mut state = self.state.lock();
                    // Others may have come in the meantime, to the queue or to receive.
                    if !state.closed && state.receivers.is_empty() && state.calls.try_reserve(1).is_ok() {
                        state.calls.push_front(call);
                    } else {
                        drop(state);
                        self.call(call, false);
                    }
                }
            }
        }
        None
    }

    fn deliver(&self, call: Call, receiver: Receiver, direct: bool) -> Delivered {
        let Call { caller, reply, method, badge, message, cap } = call;
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
                    return Delivered::NotTo(Call { caller, reply, method, badge, message, cap });
                }
                completion.w = [bytes.len() as u64, 0];
            }
        }
        let token = {
            let mut state = self.state.lock();
            match new_flight(&mut state, InFlight { caller, reply, server: receiver.waiter.thread }) {
                Ok(token) => token,
                Err(flight) => {
                    drop(state);
                    crate::object::cancelled(&receiver.waiter);
                    fail(&flight.caller, &flight.reply, Exception::Overloaded, "the endpoint is full");
                    return Delivered::Yes;
                }
            }
        };
        completion.value = token;
        if let Some(cap) = cap {
            match receiver.buffer.process.insert_cap(cap) {
                Ok(id) => completion.cap = id.0,
                Err(cap) => {
                    // A server that was told of a failure does not answer: the caller learns it here.
                    let flight = take_by_token(&mut self.state.lock(), token, None);
                    drop(cap);
                    ring::complete(&receiver.waiter, &Completion::error(TransportError::NoSpace), false);
                    if let Some(flight) = flight {
                        let why = "the server has no room for the capability";
                        fail(&flight.caller, &flight.reply, Exception::Overloaded, why);
                    }
                    return Delivered::Yes;
                }
            }
        }
        if !ring::complete(&receiver.waiter, &completion, direct) {
            // The receiver died under our hands: nobody will answer.
            let flight = take_by_token(&mut self.state.lock(), token, None);
            if let Some(flight) = flight {
                disconnect(&flight.caller, &flight.reply);
            }
        }
        Delivered::Yes
    }

    /// Answers the call with `token`, if it is in flight and `server`'s process has it.
    pub fn reply(&self, server: &ThreadRef, token: u64, answer: Answer, direct: bool) -> Result<(), TransportError> {
        let flight = take_by_token(&mut self.state.lock(), token, Some(server)).ok_or(TransportError::BadToken)?;
        let InFlight { caller, reply, .. } = flight;
        let Answer { exception, message, cap } = answer;
        let mut completion = Completion { status: exception.map_or(0, |e| e as i32), ..Completion::OK };
        match &message {
            Message::Inline(words) => {
                completion.flags = cqe_flags::INLINE;
                completion.w = *words;
            }
            Message::Bytes(bytes) => {
                if bytes.len() > reply.length as usize {
                    completion.status = TransportError::TooLong as i32;
                } else if reply.process.space.write(reply.address, bytes).is_err() {
                    completion.status = TransportError::BadAddress as i32;
                }
                completion.value = bytes.len() as u64;
            }
        }
        if let Some(cap) = cap {
            match reply.process.insert_cap(cap) {
                Ok(id) => completion.cap = id.0,
                Err(_) => completion.status = TransportError::NoSpace as i32,
            }
        }
        ring::complete(&caller, &completion, direct);
        Ok(())
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
        let found = state.receivers.iter().position(|r| r.waiter.thread == waiter.thread && r.waiter.op == waiter.op);
        let receiver = found.and_then(|at| state.receivers.remove(at));
        drop(state);
        receiver.is_some()
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
    let process = |r: &ThreadRef| (r.pid, r.process_generation);
    if u64::from(flight.generation) != token >> 32
        || server.is_some_and(|server| process(server) != process(&entry.server))
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
