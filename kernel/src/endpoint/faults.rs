//! Timeout faults: what the kernel says to an endpoint when a thread's budget is spent.
//!
//! A context that faults holds a [`FaultRoom`] at its endpoint from its making on: a place in the queue, charged to whoever made the endpoint.
//! So telling needs no memory, and the queue is never longer than there are rooms (K-30).

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
    /// Whose place it has; kept until it has left the queue.
    room: Arc<FaultRoom>,
}

/// A context's place among the faults of an endpoint.
pub struct FaultRoom {
    endpoint: Arc<Endpoint>,
    /// Of the capability that named the endpoint.
    badge: u32,
    /// Its place is taken. Written under the endpoint's lock.
    is_taken: AtomicBool,
}

impl FaultRoom {
    /// A place at `endpoint`. `None` if it has no room for one more, or its payer, or the machine.
    pub fn reserve(endpoint: Arc<Endpoint>, badge: u32) -> Option<Arc<FaultRoom>> {
        if !endpoint.reserve_fault() {
            return None;
        }
        // From here on dropping it gives the place back.
        heap::try_arc(FaultRoom { endpoint, badge, is_taken: AtomicBool::new(false) }).ok()
    }

    /// The budget of `thread` is spent: whoever receives is told, or will be. False if nobody ever will: the endpoint is closed, or the
    /// context's last fault is still waiting there.
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
            // The room stays: the context has it, and who waits.
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
    /// It has left the queue; under the endpoint's lock.
    pub(super) fn leaves(&self) {
        self.room.is_taken.store(false, Ordering::Relaxed);
    }

    /// Nobody will ever be told: the thread goes on.
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

    /// As [`Endpoint::deliver`], of what the kernel says.
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
