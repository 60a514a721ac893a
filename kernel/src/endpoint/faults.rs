//! Timeout faults: how an endpoint is told that a thread's budget is spent.
//!
//! A context that faults holds a [`FaultRoom`] at its endpoint from its creation on: a place in the queue, charged to the creator of the endpoint.
//! So telling the endpoint needs no memory, and the queue is never longer than there are rooms (K-30).

use super::{Buffer, Caller, Endpoint, InFlight, MAX_CALLS, Receiver, new_flight};
use crate::context::{self, complete};
use crate::mm::heap;
use crate::queue;
use crate::ring::{Completion, Waiter};
use abi::{TransportError, cqe_flags};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use kcore::generation::ThreadRef;

/// A thread whose budget is spent.
pub struct Fault {
    thread: ThreadRef,
    words: [u64; 2],
    /// The room whose place this fault takes; kept until it has left the queue.
    room: Arc<FaultRoom>,
}

/// A context's place among the faults of an endpoint.
pub struct FaultRoom {
    endpoint: Arc<Endpoint>,
    /// The badge of the capability that named the endpoint.
    badge: u32,
    /// Whether a fault is in this place. Written under the endpoint's lock.
    is_taken: AtomicBool,
}

impl FaultRoom {
    /// Reserves a place at `endpoint`. `None` if the endpoint has no room for one more, or its payer or the machine has no memory.
    pub fn reserve(endpoint: Arc<Endpoint>, badge: u32) -> Option<Arc<FaultRoom>> {
        if !endpoint.reserve_fault() {
            return None;
        }
        // From here on dropping it gives the place back.
        heap::try_arc(FaultRoom { endpoint, badge, is_taken: AtomicBool::new(false) }).ok()
    }

    /// The budget of `thread` is spent: a receiver is told now, or as soon as there is one. False if that will never happen: the endpoint is
    /// closed, or the context's last fault is still waiting there.
    pub fn tell(room: &Arc<FaultRoom>, thread: &ThreadRef, words: [u64; 2]) -> bool {
        let endpoint = &room.endpoint;
        let mut state = endpoint.state.lock();
        if state.closed {
            return false;
        }
        let fault = Fault { thread: *thread, words, room: room.clone() };
        if let Some(receiver) = state.receivers.pop_front() {
            drop(state);
            endpoint.deliver_fault(fault, receiver);
            return true;
        }
        if room.is_taken.swap(true, Ordering::Relaxed) {
            // Dropping the clone with `fault` does not end the room: the context and the waiting fault have it, too.
            drop(state);
            return false;
        }
        debug_assert!(state.faults.len() < state.faults.capacity(), "K-30: a room has a place");
        state.faults.push_back(fault);
        true
    }
}

impl Drop for FaultRoom {
    fn drop(&mut self) {
        let mut state = self.endpoint.state.lock();
        state.fault_room -= 1;
        self.endpoint.trim(&mut state);
    }
}

impl Fault {
    /// The fault has left the queue; under the endpoint's lock.
    pub(super) fn leaves(&self) {
        self.room.is_taken.store(false, Ordering::Relaxed);
    }

    /// No receiver will ever be told: the thread goes on.
    pub(super) fn cancel(self) {
        context::faults::fault_answered(&self.thread, &Completion::error(TransportError::Cancelled));
    }
}

impl Endpoint {
    fn reserve_fault(&self) -> bool {
        let mut state = self.state.lock();
        let room = state.fault_room + 1;
        let wanted = room.saturating_sub(state.faults.len());
        let flights = state.flights.len() + room;
        let payer = &self.payer;
        let state = &mut *state;
        if room > MAX_CALLS
            || !queue::reserve(&mut state.faults, wanted, payer)
            || !queue::reserve(&mut state.flights, room, payer)
            || !queue::reserve(&mut state.free, flights, payer)
        {
            self.trim(state);
            return false;
        }
        state.fault_room = room;
        true
    }

    /// As [`Endpoint::deliver`], for a fault, which the kernel reports.
    pub(super) fn deliver_fault(&self, fault: Fault, receiver: Receiver) {
        let server = receiver.waiter.thread;
        let caller = Waiter { thread: fault.thread, op: 0, sequence: 0 };
        let called = InFlight::called(caller, Buffer { address: 0, length: 0 }, server, receiver.epoch);
        let flight = InFlight { caller: Caller { is_stopped: true, ..called.caller }, ..called };
        let made = new_flight(&mut self.state.lock(), flight, &self.payer);
        let Ok(token) = made else {
            complete::operation(&receiver.waiter, &Completion::error(TransportError::NoSpace), false);
            flight.caller.tell(&Completion::error(TransportError::NoSpace), false);
            return;
        };
        let completion = Completion {
            flags: u32::from(abi::TIMEOUT_METHOD) << cqe_flags::METHOD_SHIFT | cqe_flags::INLINE,
            badge: fault.room.badge,
            value: token,
            w: fault.words,
            ..Completion::OK
        };
        if !complete::operation(&receiver.waiter, &completion, false) {
            self.undelivered(token);
        }
    }
}
