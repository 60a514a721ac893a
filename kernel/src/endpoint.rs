//! Endpoints (K-15): where calls meet receivers.
//!
//! A call waits in the queue until a thread receives it; a receiver waits until a thread calls. A call that is delivered and not yet answered is *in
//! flight*, under a token that only the receiver's process may use. A server that is blocked is run at once on the caller's CPU, in what is left
//! of the caller's slice.
//!
//! Messages are copied between address spaces without the endpoint's lock: the parties are taken out of their queues first.

mod faults;

pub use faults::FaultRoom;

use crate::context::{self, complete, loan};
use crate::deferred_work;
use crate::dispatch::percpu;
use crate::lock::{Rank, SpinLock};
use crate::object::Cap;
use crate::preempt::Pacer;
use crate::process::{MessageCharge, Process, ResourceLedger};
use crate::queue;
use crate::ring::{self, Completion, Waitable, Waiter, Withdraw};
use crate::session::Denied;
use crate::thread::{self, OPS, Thread};
use abi::{CapId, Exception, TransportError, cqe_flags};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use faults::Fault;
use kcore::callq::{self, CallQueue, CallState};
use kcore::generation::ThreadRef;
use kcore::quota::Kind;
pub use kcore::request::Buffer;

/// Calls that may be queued or in flight at one endpoint.
pub const MAX_CALLS: usize = 1024;
/// Receivers that may wait at one endpoint.
pub const MAX_RECEIVERS: usize = 1024;

/// The contents of a call or an answer.
pub enum Message {
    /// Two words.
    Inline([u64; 2]),
    /// Bytes, copied into the kernel and charged to the process that sent them.
    Bytes {
        /// The copy.
        bytes: Vec<u8>,
        /// The charge, which is given back with the bytes.
        _charge: MessageCharge,
    },
}

/// A call that was not delivered yet.
pub struct Call {
    /// The operation that waits for the answer.
    pub caller: Waiter,
    /// Where the answer goes.
    pub reply: Buffer,
    /// The method that is called.
    pub method: u16,
    /// The badge of the capability that was used.
    pub badge: u32,
    /// The epoch of that capability.
    pub epoch: u64,
    /// The contents of the call.
    pub message: Message,
    /// The capability that is passed along, if any.
    pub cap: Option<Cap>,
}

struct Receiver {
    waiter: Waiter,
    /// The epoch of the capability that was used.
    epoch: u64,
    buffer: Buffer,
}

/// A place for a call in flight.
struct Flight {
    /// The upper half of the token of the call, or of the last call that was here.
    generation: u32,
    /// Whether a call is here.
    taken: bool,
    /// The call, or the last one that was here.
    entry: InFlight,
}

impl Flight {
    fn get(&self) -> Option<&InFlight> {
        self.taken.then_some(&self.entry)
    }
}

/// A thread that waits for an answer.
#[derive(Clone, Copy)]
pub struct Caller {
    /// The thread, and its call.
    waiter: Waiter,
    /// The thread has not called: it was stopped because its budget is spent, and waits for the verdict. `waiter` names no operation then.
    is_stopped: bool,
}

impl Caller {
    /// Completes the call with the answer.
    #[inline(always)]
    fn tell(&self, completion: &Completion, direct: bool) {
        if self.is_stopped {
            return tell_stopped(self.waiter.thread, completion);
        }
        complete::operation_here(&self.waiter, completion, direct);
    }

    /// Answers the call with two words.
    #[inline(always)]
    pub fn answer_words(self, words: [u64; 2], direct: bool) {
        let completion = Completion { flags: cqe_flags::INLINE, w: words, ..Completion::OK };
        self.tell(&completion, direct);
    }
}

/// [`Caller::tell`], for a thread that waits for the verdict on a timeout fault.
#[cold]
#[inline(never)]
fn tell_stopped(thread: ThreadRef, completion: &Completion) {
    context::faults::fault_answered(&thread, completion);
}

/// A call that was delivered and not yet answered. It is copied at every call, so the fields are ordered to have no padding.
#[derive(Clone, Copy)]
pub struct InFlight {
    caller: Caller,
    /// Where the answer goes: see [`Buffer`].
    reply_length: u32,
    reply_address: u64,
    server: ThreadRef,
    /// The epoch of the capability that the server used.
    epoch: u64,
}

/// A process: number and generation.
type ProcessRef = (u32, u32);

fn process_of(thread: &ThreadRef) -> ProcessRef {
    (thread.pid, thread.process_generation)
}

struct State {
    /// The process that revoked last: what it has under way goes on.
    owner: ProcessRef,
    /// How many capabilities of this epoch may receive. With the last of them the endpoint closes.
    servers: u32,
    /// Ordered by band, deadline and arrival (S-15).
    calls: CallQueue<Call>,
    /// Timeout faults that wait for a receiver; they go before all calls. There is room for one of each [`FaultRoom`].
    faults: VecDeque<Fault>,
    /// How many [`FaultRoom`]s there are.
    fault_room: usize,
    receivers: VecDeque<Receiver>,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// The generation of the last call that was delivered. Shared by all places, so that no token comes again.
    generation: u32,
    closed: bool,
    /// The next endpoint in the list of those that a thread is about to close (`deferred_work`).
    next: Option<Arc<Endpoint>>,
}

/// An object that threads call, and that servers receive calls from.
pub struct Endpoint {
    state: SpinLock<State>,
    /// Moves on, under the lock, when capabilities are revoked.
    pub epoch: AtomicU64,
    /// The last search for calls of an ended thread that came by. Two searches at a time overwrite each other's number, and look once too often.
    pub search: AtomicU64,
    /// The account that the queues are charged to: that of the process that created the endpoint, whoever uses it now.
    payer: Arc<ResourceLedger>,
}

impl Endpoint {
    /// An endpoint without receivers, whose queues are charged to `payer`.
    pub fn new(payer: Arc<ResourceLedger>) -> Result<Endpoint, Denied> {
        payer.session().take(Kind::Endpoints, 1)?;
        Ok(Endpoint {
            state: SpinLock::new(
                Rank::Object,
                State {
                    owner: (0, 0),
                    servers: 0,
                    calls: CallQueue::new(),
                    faults: VecDeque::new(),
                    fault_room: 0,
                    receivers: VecDeque::new(),
                    flights: Vec::new(),
                    free: Vec::new(),
                    generation: 0,
                    closed: false,
                    next: None,
                },
            ),
            epoch: AtomicU64::new(1),
            search: AtomicU64::new(0),
            payer,
        })
    }

    /// Gives back the memory of queues that are empty.
    #[cold]
    fn trim(&self, state: &mut State) {
        let payer = &self.payer;
        queue::trim(&mut state.calls, payer);
        queue::trim(&mut state.receivers, payer);
        // Faults were promised room: it stays, and so does the room for their flights.
        if state.fault_room > 0 {
            return;
        }
        queue::trim(&mut state.faults, payer);
        if state.free.len() == state.flights.len() {
            state.flights.clear();
            state.free.clear();
            queue::trim(&mut state.flights, payer);
            queue::trim(&mut state.free, payer);
        }
    }

    /// One more capability of `epoch` may receive.
    pub fn add_server(&self, epoch: u64) {
        let mut state = self.state.lock();
        if epoch == self.epoch.load(Ordering::Relaxed) {
            state.servers += 1;
        }
    }

    /// One capability of `epoch` fewer may receive.
    pub fn drop_server(self: &Arc<Endpoint>, epoch: u64) {
        let mut state = self.state.lock();
        if epoch != self.epoch.load(Ordering::Relaxed) {
            return;
        }
        state.servers -= 1;
        if state.servers == 0 {
            self.close(&mut state);
        }
    }

    /// Closes the endpoint: it accepts nothing any more. Threads that wait there are told later, by [`Endpoint::tell_all`].
    fn close(self: &Arc<Endpoint>, state: &mut State) {
        if !state.closed {
            state.closed = true;
            deferred_work::close(self, &mut state.next);
        }
    }

    /// Takes the next endpoint out of the list of those that a thread is about to close.
    pub fn take_next(&self) -> Option<Arc<Endpoint>> {
        self.state.lock().next.take()
    }

    /// Begins a new epoch, in which only a capability of `owner` has access; `serves` says whether that one may receive. Operations that are under
    /// way with older capabilities are ended by [`Endpoint::expel`].
    /// `None` if a capability of `epoch` has been revoked in the meantime.
    pub fn revoke(&self, epoch: u64, owner: ProcessRef, serves: bool) -> Option<u64> {
        let mut state = self.state.lock();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            return None;
        }
        state.owner = owner;
        state.servers = u32::from(serves);
        self.epoch.store(epoch + 1, Ordering::Release);
        Some(epoch + 1)
    }

    /// Whether what `thread` has under way with a capability of `epoch` may go on.
    fn is_current(&self, state: &State, epoch: u64, thread: &ThreadRef) -> bool {
        epoch == self.epoch.load(Ordering::Relaxed) || process_of(thread) == state.owner
    }

    /// Ends what is under way with revoked capabilities: their calls and receivers are told, and so are the callers whom they did not answer.
    pub fn expel(self: &Arc<Endpoint>) {
        let mut pacer = Pacer::of_searches();
        // Each place is looked at once: calls that come from now on are not meant.
        let mut from = 0;
        loop {
            let mut state = self.state.lock();
            if state.servers == 0 {
                return self.close(&mut state);
            }
            let is_old = |call: &Call| !self.is_current(&state, call.epoch, &call.caller.thread);
            let Some(at) = state.calls.find_from(from, is_old) else { break };
            let Some(call) = state.calls.take(at, |_| true) else { break };
            from = at + 1;
            drop(state);
            complete::operation(&call.caller, &Completion::error(TransportError::Revoked), false);
            drop(call);
            pacer.step();
        }
        self.dismiss(
            |state, receiver| !self.is_current(state, receiver.epoch, &receiver.waiter.thread),
            |waiter| {
                complete::operation(waiter, &Completion::error(TransportError::Revoked), false);
            },
        );
        self.fail_flights(|state, flight| !self.is_current(state, flight.epoch, &flight.server));
    }

    /// A process has given up its last capability to receive: it can answer no call any more.
    pub fn process_left(&self, process: ProcessRef) {
        self.dismiss(|_, receiver| process_of(&receiver.waiter.thread) == process, crate::object::cancelled);
        self.fail_flights(|_, flight| process_of(&flight.server) == process);
    }

    /// Tells every thread that waits for a server that there is none. The endpoint is closed, so nobody else comes. One thread at a time, because
    /// each may be ending on another CPU.
    pub fn tell_all(&self) {
        let mut pacer = Pacer::of_wakes();
        loop {
            let mut state = self.state.lock();
            if let Some(fault) = state.faults.pop_front() {
                fault.leaves();
                drop(state);
                fault.cancel();
            } else if let Some((_, call)) = state.calls.pop() {
                drop(state);
                disconnect(&call);
            } else if let Some(receiver) = state.receivers.pop_front() {
                drop(state);
                crate::object::cancelled(&receiver.waiter);
            } else {
                break;
            }
            pacer.step();
        }
        self.fail_flights(|_, _| true);
    }

    /// A server thread ends, and receives no more: the calls that it did not answer fail.
    pub fn server_ended(&self, server: &ThreadRef) {
        self.fail_flights(|_, flight| flight.server == *server);
    }

    /// Removes the receivers for which `is_meant` holds, and tells them. Other threads may run between two of them.
    fn dismiss(&self, is_meant: impl Fn(&State, &Receiver) -> bool, tell: impl Fn(&Waiter)) {
        let mut pacer = Pacer::of_searches();
        loop {
            let mut state = self.state.lock();
            let found = state.receivers.iter().position(|receiver| is_meant(&state, receiver));
            let Some(receiver) = found.and_then(|at| state.receivers.remove(at)) else { return };
            drop(state);
            tell(&receiver.waiter);
            pacer.step();
        }
    }

    /// Calls in flight for which `is_meant` holds fail. Other threads may run between two of them. Each place is looked at once: a call that is
    /// delivered from now on goes to a server that is not meant.
    fn fail_flights(&self, is_meant: impl Fn(&State, &InFlight) -> bool) {
        let mut from = 0;
        let mut pacer = Pacer::of_wakes();
        loop {
            let mut state = self.state.lock();
            let is_theirs =
                |at: &usize| state.flights[*at].get().is_some_and(|entry| is_meant(&state, entry));
            let Some(at) = (from..state.flights.len()).find(is_theirs) else {
                return self.trim(&mut state);
            };
            let flight = take_flight(&mut state, at);
            drop(state);
            from = at + 1;
            if let Some(flight) = flight {
                flight.disconnect();
            }
            pacer.step();
        }
    }

    /// Delivers a call to a receiver that waits, or queues it. `direct`: the caller is about to block.
    pub fn call(&self, thread: &'static Thread, call: Call, direct: bool) {
        self.offer(call, Some(thread), direct, None);
    }

    /// The usual call in one step: words, to a receiver that waits. `None` if it is not that simple; then nothing has changed.
    #[inline(always)]
    pub fn rendezvous(
        self: &Arc<Endpoint>,
        thread: &'static Thread,
        user_data: u64,
        epoch: u64,
        reply: Buffer,
    ) -> Option<Rendezvous> {
        let mut state = self.state.lock();
        let current = self.epoch.load(Ordering::Relaxed);
        let server = state.receivers.front().filter(|receiver| receiver.epoch == current)?.waiter;
        if state.closed || epoch != current || state.free.is_empty() {
            return None;
        }
        let lends = thread.context().is_some() && loan::judge(thread, &server.thread).ok()?;
        let caller = ring::accept(thread, user_data, Waitable::Call(self.clone()))?;
        state.receivers.pop_front();
        let flight = InFlight::called(caller, reply, server.thread, epoch);
        let token = new_flight(&mut state, flight, &self.payer).ok()?;
        thread.call_places[caller.op as usize % OPS].store(token as u32, Ordering::Relaxed);
        Some(Rendezvous { server, token, lends: lends.then_some(caller) })
    }

    /// The second half of [`Endpoint::rendezvous`]: completes the receiver's operation.
    #[inline(always)]
    pub fn deliver_words(
        &self,
        thread: &'static Thread,
        met: &Rendezvous,
        completion: &Completion,
        direct: bool,
    ) {
        let delivered = match &met.lends {
            Some(call) => complete::recv_lending(&met.server, completion, thread, call),
            None => complete::operation_here(&met.server, completion, direct),
        };
        if !delivered {
            self.undelivered(met.token);
        }
    }

    /// The receiver ended before it could be told: nobody will answer.
    #[cold]
    fn undelivered(&self, token: u64) {
        let flight = {
            let mut state = self.state.lock();
            find_by_token(&state, token, None).map(|at| land(&mut state, at, |flight| *flight))
        };
        if let Some(flight) = flight {
            flight.disconnect();
        }
    }

    /// Waits for a call, if there is nothing else to do. `false` if there is; then nothing has changed.
    #[inline(always)]
    pub fn wait_for_call(
        self: &Arc<Endpoint>,
        thread: &'static Thread,
        user_data: u64,
        buffer: Buffer,
        epoch: u64,
    ) -> bool {
        let mut state = self.state.lock();
        let is_simple = epoch == self.epoch.load(Ordering::Relaxed)
            && !state.closed
            && state.calls.is_empty()
            && state.faults.is_empty()
            && state.receivers.len() < state.receivers.capacity().min(MAX_RECEIVERS);
        if !is_simple {
            return false;
        }
        let Some(waiter) = ring::accept(thread, user_data, Waitable::Recv(self.clone())) else {
            return false;
        };
        thread.served.set(true);
        // K-30: there is room, as `is_simple` has checked.
        state.receivers.push_back(Receiver { waiter, epoch, buffer });
        true
    }

    /// As [`Endpoint::call`]; `by` is the caller if that is the current thread. With `again` the call was accepted before, and goes back to its old
    /// place in the queue.
    fn offer(&self, mut call: Call, by: Option<&'static Thread>, direct: bool, again: Option<callq::Key>) {
        loop {
            let mut state = self.state.lock();
            if state.closed {
                drop(state);
                return disconnect(&call);
            }
            if !self.is_current(&state, call.epoch, &call.caller.thread) {
                drop(state);
                complete::operation(&call.caller, &Completion::error(TransportError::Revoked), false);
                return;
            }
            let mut lender = None;
            if let (Some(by), Some(receiver)) = (by, state.receivers.front()) {
                match loan::judge(by, &receiver.waiter.thread) {
                    Ok(lends) => lender = lends.then_some(by),
                    Err(error) => {
                        drop(state);
                        complete::operation(&call.caller, &Completion::error(error), false);
                        return;
                    }
                }
            }
            let Some(receiver) = state.receivers.pop_front() else {
                let is_full = state.calls.len() + state.flights.len() - state.free.len() >= MAX_CALLS;
                if is_full && again.is_none() || !queue::reserve(&mut state.calls, 1, &self.payer) {
                    drop(state);
                    return overloaded(&call);
                }
                let caller = call.caller;
                let at = match again {
                    Some(key) => state.calls.put_back(key, call),
                    None => state.calls.push(by.map_or(callq::LAST, urgency), call),
                };
                note_place(&caller, at);
                return;
            };
            drop(state);
            match self.deliver(call, receiver, lender, direct) {
                Delivered::Yes => return,
                Delivered::NotTo(back) => call = back,
            }
        }
    }

    /// Receives a call for the current thread, if one is queued; otherwise the thread's operation waits.
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
        let payer = &self.payer;
        if state.receivers.len() >= MAX_RECEIVERS || !queue::reserve(&mut state.receivers, 1, payer) {
            return Some(Completion::error(TransportError::NoSpace));
        }
        let Some(waiter) = ring::accept(thread, user_data, Waitable::Recv(self.clone())) else {
            return Some(Completion::error(TransportError::NoSpace));
        };
        thread.served.set(true);
        let receiver = Receiver { waiter, epoch, buffer };
        if let Some(fault) = state.faults.pop_front() {
            fault.leaves();
            drop(state);
            self.deliver_fault(fault, receiver);
            return None;
        }
        match state.calls.pop() {
            None => state.receivers.push_back(receiver),
            Some((key, call)) => {
                if state.calls.is_empty() {
                    self.trim(&mut state);
                }
                drop(state);
                let caller = call.caller;
                // The call was in no queue meanwhile: other receivers may have come, or the last server may have gone.
                match self.deliver(call, receiver, None, false) {
                    Delivered::Yes => loan::borrow(thread, &caller),
                    Delivered::NotTo(call) => self.offer(call, None, false, Some(key)),
                }
            }
        }
        None
    }

    /// Gives the call to the receiver. Both are out of their queues.
    /// `lender`: the caller, if it is the current thread and is to lend its context.
    fn deliver(
        &self,
        call: Call,
        receiver: Receiver,
        lender: Option<&'static Thread>,
        direct: bool,
    ) -> Delivered {
        let Call { caller, reply, method, badge, epoch, message, cap } = call;
        let mut completion =
            Completion { flags: u32::from(method) << cqe_flags::METHOD_SHIFT, badge, ..Completion::OK };
        // The message first: if the receiver cannot take it, the receiver fails, and the call does not.
        match &message {
            Message::Inline(words) => {
                completion.flags |= cqe_flags::INLINE;
                completion.w = *words;
            }
            Message::Bytes { bytes, .. } => {
                let buffer = &receiver.buffer;
                let fits = bytes.len() <= buffer.length as usize;
                if !fits || !write(&receiver.waiter.thread, buffer.address, bytes) {
                    let error = if fits { TransportError::BadAddress } else { TransportError::TooLong };
                    complete::operation(&receiver.waiter, &Completion::error(error), false);
                    return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
                }
                completion.w = [bytes.len() as u64, 0];
            }
        }
        if let Some(cap) = cap {
            match insert(&receiver.waiter.thread, cap) {
                Ok(id) => completion.cap = id.0,
                Err(cap) => {
                    complete::operation(&receiver.waiter, &Completion::error(TransportError::NoSpace), false);
                    let cap = Some(cap);
                    return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
                }
            }
        }
        let server = receiver.waiter.thread;
        let take_back = || {
            let process = Process::of_thread(&receiver.waiter.thread)?;
            process.caps.lock().remove(CapId(completion.cap))
        };
        let payer = &self.payer;
        let token = {
            let mut state = self.state.lock();
            if state.closed || !self.is_current(&state, receiver.epoch, &server) {
                let error = if state.closed { TransportError::Cancelled } else { TransportError::Revoked };
                drop(state);
                let cap = take_back();
                complete::operation(&receiver.waiter, &Completion::error(error), false);
                return Delivered::NotTo(Call { caller, reply, method, badge, epoch, message, cap });
            }
            let epoch = receiver.epoch;
            match new_flight(&mut state, InFlight::called(caller, reply, server, epoch), payer) {
                Ok(token) => {
                    note_place(&caller, token as u32);
                    token
                }
                Err(flight) => {
                    drop(state);
                    drop(take_back());
                    complete::operation(&receiver.waiter, &Completion::error(TransportError::NoSpace), false);
                    flight.fail(Exception::Overloaded, "the endpoint is full");
                    return Delivered::Yes;
                }
            }
        };
        completion.value = token;
        // The sender's process may end from here on.
        drop(message);
        let delivered = match lender {
            Some(lender) => complete::recv_lending(&receiver.waiter, &completion, lender, &caller),
            None => complete::operation(&receiver.waiter, &completion, direct),
        };
        if !delivered {
            self.undelivered(token);
        }
        Delivered::Yes
    }

    /// Takes the call with `token`, to be answered, if it is in flight and was delivered to the process of `server`.
    pub fn take(&self, server: &ThreadRef, token: u64) -> Option<InFlight> {
        self.take_as(server, token, |flight| *flight)
    }

    /// As [`Endpoint::take`], for an answer in words, which does not need the caller's memory.
    #[inline(always)]
    pub fn take_caller(&self, server: &ThreadRef, token: u64) -> Option<Caller> {
        self.take_as(server, token, |flight| flight.caller)
    }

    #[inline(always)]
    fn take_as<T>(&self, server: &ThreadRef, token: u64, part: impl FnOnce(&InFlight) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let flight = find_by_token(&state, token, Some(server)).map(|at| land(&mut state, at, part));
        if state.free.len() > queue::KEPT && state.free.len() == state.flights.len() {
            self.trim(&mut state);
        }
        flight
    }
}

impl Withdraw for Endpoint {
    /// Takes a call out of the queue; or, if it is in flight, forgets that its caller waits.
    fn withdraw(&self, waiter: &Waiter) -> bool {
        let mut state = self.state.lock();
        let noted = call_place(waiter).map_or(0, |place| place.load(Ordering::Relaxed));
        let flights = &state.flights;
        let is_flight = |at: usize| {
            flights[at]
                .get()
                .is_some_and(|flight| flight.caller.waiter == *waiter && !flight.caller.is_stopped)
        };
        // The noted place may be another call's: see `note_place`.
        let is_meant = |call: &Call| call.caller == *waiter;
        let (call, is_found) = match state.calls.whereabouts(noted, is_meant, flights.len(), is_flight) {
            Some(CallState::Waits(at)) => (state.calls.take(at, |_| true), true),
            Some(CallState::Flies(at)) => (None, take_flight(&mut state, at).is_some()),
            None => (None, false),
        };
        self.trim(&mut state);
        drop(state);
        drop(call);
        is_found
    }

    /// Takes a receiver out of the queue.
    fn withdraw_receiver(&self, waiter: &Waiter) -> bool {
        let mut state = self.state.lock();
        let found =
            state.receivers.iter().position(|r| r.waiter.thread == waiter.thread && r.waiter.op == waiter.op);
        let receiver = found.and_then(|at| state.receivers.remove(at));
        self.trim(&mut state);
        drop(state);
        receiver.is_some()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let State { calls, faults, receivers, flights, free, .. } = self.state.get_mut();
        let queues = queue::bytes(calls) + queue::bytes(faults) + queue::bytes(receivers);
        self.payer.release_queue(queues + queue::bytes(flights) + queue::bytes(free));
        self.payer.session().release(Kind::Endpoints, 1);
    }
}

impl InFlight {
    #[inline(always)]
    fn called(waiter: Waiter, reply: Buffer, server: ThreadRef, epoch: u64) -> InFlight {
        let Buffer { address: reply_address, length: reply_length } = reply;
        InFlight { caller: Caller { waiter, is_stopped: false }, reply_length, reply_address, server, epoch }
    }

    fn reply(&self) -> Buffer {
        Buffer { address: self.reply_address, length: self.reply_length }
    }

    /// Answers the caller. The call was taken, so nobody else can answer it.
    pub fn answer(self, answer: Answer, direct: bool) {
        let (caller, reply) = (&self.caller.waiter.thread, self.reply());
        let Answer { exception, message, cap } = answer;
        let mut completion = Completion { status: exception.map_or(0, |e| e as i32), ..Completion::OK };
        match &message {
            Message::Inline(words) => {
                completion.flags = cqe_flags::INLINE;
                completion.w = *words;
            }
            Message::Bytes { bytes, .. } => {
                // The text of an exception is cut to the room that the caller has; half an answer would be useless.
                let cut =
                    if exception.is_some() { bytes.len().min(reply.length as usize) } else { bytes.len() };
                if cut > reply.length as usize {
                    completion.status = TransportError::TooLong as i32;
                } else if !write(caller, reply.address, &bytes[..cut]) {
                    completion.status = TransportError::BadAddress as i32;
                }
                completion.value = cut as u64;
            }
        }
        if let Some(cap) = cap.filter(|_| completion.status >= 0) {
            match insert(caller, cap) {
                Ok(id) => completion.cap = id.0,
                Err(_) => completion.status = TransportError::NoSpace as i32,
            }
        }
        self.caller.tell(&completion, direct);
    }

    /// Raises an exception at the caller.
    fn fail(self, exception: Exception, why: &str) {
        self.caller.tell(&failure(&self.caller.waiter.thread, &self.reply(), exception, why), false);
    }

    fn disconnect(self) {
        self.fail(Exception::Disconnected, GONE);
    }
}

/// A caller and a receiver that have met, by [`Endpoint::rendezvous`].
pub struct Rendezvous {
    server: Waiter,
    /// The token with which the receiver answers.
    pub token: u64,
    /// The caller's operation, if its context is to be lent along with it.
    lends: Option<Waiter>,
}

enum Delivered {
    Yes,
    /// The receiver could not take the call, which is as before.
    NotTo(Call),
}

/// A server's answer.
pub struct Answer {
    /// Raise this exception at the caller.
    pub exception: Option<Exception>,
    /// The contents of the answer, or the exception's text.
    pub message: Message,
    /// The capability that is passed along, if any.
    pub cap: Option<Cap>,
}

#[inline(always)]
fn new_flight(state: &mut State, entry: InFlight, payer: &ResourceLedger) -> Result<u64, InFlight> {
    let at = match state.free.pop() {
        Some(at) => at as usize,
        None => match more_flights(state, &entry, payer) {
            Some(at) => at,
            None => return Err(entry),
        },
    };
    state.generation = state.generation.wrapping_add(1).max(1);
    state.flights[at] = Flight { generation: state.generation, taken: true, entry };
    Ok(u64::from(state.generation) << 32 | at as u64)
}

/// Adds a place for a call in flight, as all are taken. The list of free places is empty, and gets room for all of them.
#[cold]
#[inline(never)]
fn more_flights(state: &mut State, entry: &InFlight, payer: &ResourceLedger) -> Option<usize> {
    let room = state.flights.len() + 1;
    if room > MAX_CALLS
        || !queue::reserve(&mut state.flights, 1, payer)
        || !queue::reserve(&mut state.free, room, payer)
    {
        return None;
    }
    state.flights.push(Flight { generation: 0, taken: false, entry: *entry });
    Some(state.flights.len() - 1)
}

fn take_flight(state: &mut State, at: usize) -> Option<InFlight> {
    let is_taken = state.flights.get(at).is_some_and(|flight| flight.taken);
    is_taken.then(|| land(state, at, |flight| *flight))
}

/// Frees place `at`, whose call is no longer in flight; `part` of the call is returned.
#[inline(always)]
fn land<T>(state: &mut State, at: usize, part: impl FnOnce(&InFlight) -> T) -> T {
    let flight = &mut state.flights[at];
    flight.taken = false;
    let part = part(&flight.entry);
    // K-30: `more_flights` made room here for every place.
    state.free.push(at as u32);
    part
}

/// The place of the call with `token`, if it is in flight and was delivered to the process of `server`.
#[inline(always)]
fn find_by_token(state: &State, token: u64, server: Option<&ThreadRef>) -> Option<usize> {
    let at = token as u32 as usize;
    let flight = state.flights.get(at)?;
    let entry = flight.get()?;
    if u64::from(flight.generation) != token >> 32
        || server.is_some_and(|server| process_of(server) != process_of(&entry.server))
    {
        return None;
    }
    Some(at)
}

/// How urgent a call of the current thread is: as urgent as the thread is now. Threads that run at their weight come after those that run on a
/// budget, even if their context is merely used up. A call's place in the queue is final, whatever becomes of the deadline or the context.
fn urgency(caller: &'static Thread) -> u64 {
    if caller.context().is_none() {
        return callq::LAST;
    }
    percpu::this().dispatch.queue.lock().current_urgency().unwrap_or(callq::LAST)
}

/// Where the hint about the place of an operation's call is kept.
fn call_place(caller: &Waiter) -> Option<&'static AtomicU32> {
    thread::get(caller.thread.tid)?.call_places.get(usize::from(caller.op))
}

/// Notes where a call is, for its caller; only a hint. While a call is neither queued nor in flight its caller may end, and the caller's record may
/// then belong to another thread; so whoever uses the note must check whose call is there.
fn note_place(caller: &Waiter, at: u32) {
    if let Some(place) = call_place(caller) {
        place.store(at, Ordering::Relaxed);
    }
}

/// Writes to the memory of the thread `whose`. False if its process is gone: then nobody is left to be told.
fn write(whose: &ThreadRef, address: u64, bytes: &[u8]) -> bool {
    bytes.is_empty()
        || Process::of_thread(whose).is_some_and(|process| process.space.write(address, bytes).is_ok())
}

/// Gives a capability to the process of the thread `whose`. The capability comes back if that process has no room, or is gone.
fn insert(whose: &ThreadRef, cap: Cap) -> Result<CapId, Cap> {
    match Process::of_thread(whose) {
        Some(process) => process.insert_cap(cap).map_err(|(_, cap)| cap),
        None => Err(cap),
    }
}

/// The text that callers get when nobody will answer.
const GONE: &str = "the server is gone";

fn disconnect(call: &Call) {
    fail(call, Exception::Disconnected, GONE);
}

fn overloaded(call: &Call) {
    fail(call, Exception::Overloaded, "too many calls wait at the endpoint");
}

/// Raises an exception at the caller.
fn fail(call: &Call, exception: Exception, why: &str) {
    let completion = failure(&call.caller.thread, &call.reply, exception, why);
    complete::operation(&call.caller, &completion, false);
}

/// The completion that raises an exception. Its text goes to the caller's memory, as far as there is room.
fn failure(caller: &ThreadRef, reply: &Buffer, exception: Exception, why: &str) -> Completion {
    let text = &why.as_bytes()[..why.len().min(reply.length as usize)];
    let value = if write(caller, reply.address, text) { text.len() as u64 } else { 0 };
    Completion { status: exception as i32, value, ..Completion::OK }
}
