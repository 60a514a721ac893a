//! Queues of kernel objects, whose memory is charged to a process (K-07).
//!
//! They grow by doubling, after the bytes were charged to the payer. A long queue that becomes empty gives its memory back.

use crate::process::ResourceLedger;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use kcore::callq::CallQueue;

/// How many places an empty queue keeps: most queues never have more, and then need not allocate again.
pub const KEPT: usize = 16;
const FIRST: usize = 4;

/// A queue that can grow.
pub trait Queue: Default {
    /// Bytes of one place.
    const PLACE_BYTES: usize;
    /// How many places are taken.
    fn taken(&self) -> usize;
    /// How many places there are.
    fn places(&self) -> usize;
    /// Makes room for exactly `more` beyond the places that are taken. False if there is no memory.
    fn grow(&mut self, more: usize) -> bool;
}

impl<T> Queue for Vec<T> {
    const PLACE_BYTES: usize = size_of::<T>();
    fn taken(&self) -> usize {
        self.len()
    }
    fn places(&self) -> usize {
        self.capacity()
    }
    fn grow(&mut self, more: usize) -> bool {
        self.try_reserve_exact(more).is_ok()
    }
}

impl<T> Queue for VecDeque<T> {
    const PLACE_BYTES: usize = size_of::<T>();
    fn taken(&self) -> usize {
        self.len()
    }
    fn places(&self) -> usize {
        self.capacity()
    }
    fn grow(&mut self, more: usize) -> bool {
        self.try_reserve_exact(more).is_ok()
    }
}

impl<T> Queue for CallQueue<T> {
    const PLACE_BYTES: usize = CallQueue::<T>::PLACE_BYTES;
    fn taken(&self) -> usize {
        self.len()
    }
    fn places(&self) -> usize {
        self.places()
    }
    fn grow(&mut self, more: usize) -> bool {
        self.grow(more)
    }
}

/// The bytes of all places of a queue.
pub fn bytes<Q: Queue>(queue: &Q) -> u32 {
    (queue.places() * Q::PLACE_BYTES) as u32
}

/// Makes room for `more` in a queue. False if the payer's limit does not allow it, or there is no memory; then nothing has changed.
#[must_use]
pub fn reserve<Q: Queue>(queue: &mut Q, more: usize, payer: &ResourceLedger) -> bool {
    let wanted = queue.taken() + more;
    if wanted <= queue.places() {
        return true;
    }
    let places = wanted.next_power_of_two().max(FIRST);
    let cost = ((places - queue.places()) * Q::PLACE_BYTES) as u32;
    if !payer.take_queue(cost) {
        return false;
    }
    if !queue.grow(places - queue.taken()) {
        payer.release_queue(cost);
        return false;
    }
    debug_assert_eq!(queue.places(), places, "a queue has grown by more than was paid for");
    true
}

/// Gives the memory of a long queue back, if the queue is empty.
pub fn trim<Q: Queue>(queue: &mut Q, payer: &ResourceLedger) {
    if queue.taken() == 0 && queue.places() > KEPT {
        payer.release_queue(bytes(queue));
        *queue = Q::default();
    }
}
