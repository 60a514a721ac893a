//! Parking by address (K-14): a table of buckets whose lists run through the threads themselves, so nothing is allocated.

use crate::lock::{Rank, SpinLock};
use crate::object::Waitable;
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, ParkLink, Thread};
use crate::time;
use abi::TransportError;

const BUCKETS: usize = 256;
const NONE: u32 = u32::MAX;

/// First and last of a bucket.
struct Bucket {
    first: u32,
    last: u32,
}

static TABLE: [SpinLock<Bucket>; BUCKETS] =
    [const { SpinLock::new(Rank::Park, Bucket { first: NONE, last: NONE }) }; BUCKETS];

fn bucket(key: (u64, u64)) -> &'static SpinLock<Bucket> {
    let hash = (key.0 ^ key.1 >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> 56) as usize % BUCKETS]
}

/// # Safety
/// The lock of the bucket that the link is (or will be) in is held.
#[allow(clippy::mut_from_ref)]
unsafe fn link(thread: &Thread) -> &mut ParkLink {
    // SAFETY: the caller's promise: the bucket's lock guards the link.
    unsafe { &mut *thread.park.get() }
}

impl Bucket {
    fn push(&mut self, thread: &'static Thread, key: (u64, u64), waiter: &Waiter) {
        // SAFETY: `self` is borrowed from its lock.
        unsafe {
            let Waiter { op, sequence, .. } = *waiter;
            *link(thread) = ParkLink { key, op, sequence, queued: true, next: NONE, previous: self.last };
            match thread::get(self.last) {
                Some(last) => link(last).next = thread.tid(),
                None => self.first = thread.tid(),
            }
        }
        self.last = thread.tid();
    }

    fn remove(&mut self, thread: &'static Thread) {
        // SAFETY: `self` is borrowed from its lock, and the thread is in this bucket.
        unsafe {
            let ParkLink { next, previous, .. } = *link(thread);
            match thread::get(previous) {
                Some(before) => link(before).next = next,
                None => self.first = next,
            }
            match thread::get(next) {
                Some(after) => link(after).previous = previous,
                None => self.last = previous,
            }
            link(thread).queued = false;
        }
    }
}

/// Parks the current thread's operation on `address` if the word there is `expected`.
pub fn park(
    thread: &'static Thread,
    user_data: u64,
    address: u64,
    expected: u32,
    timeout_ns: u64,
) -> Option<Completion> {
    // SAFETY: only the thread itself sets `queued`, and whoever clears it does so once; a stale `true` refuses, nothing more.
    if unsafe { (*thread.park.get()).queued } {
        return Some(Completion::error(TransportError::NoSpace));
    }
    let process = &thread.body().process;
    let outcome = process.space.with_word(address, |value, key| {
        if value != expected {
            return Err(TransportError::WouldNotPark);
        }
        if timeout_ns == 0 {
            return Err(TransportError::TimedOut);
        }
        let mut bucket = bucket(key).lock();
        let waiter = ring::accept(thread, user_data, Waitable::Park).ok_or(TransportError::NoSpace)?;
        // The timer first: once the bucket is open, the operation may complete.
        if timeout_ns != u64::MAX {
            time::set_timer(thread, waiter.op as usize, waiter.sequence, time::deadline(timeout_ns));
        }
        bucket.push(thread, key, &waiter);
        Ok(())
    });
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Completion::error(error)),
        Err(_) => Some(Completion::error(TransportError::BadAddress)),
    }
}

/// Most threads that one UNPARK wakes.
pub const MAX_UNPARK: u64 = 1024;

/// Wakes at most `count` threads that are parked on `address` of the current process. Says how many.
pub fn unpark(thread: &'static Thread, address: u64, count: u64) -> Completion {
    let key = match thread.body().process.space.key_of(address) {
        Ok(key) => key,
        Err(_) => return Completion::error(TransportError::BadAddress),
    };
    let mut woken = 0;
    while woken < count.min(MAX_UNPARK) {
        let Some(waiter) = take_first(key) else { break };
        if let Some(parked) = thread::get(waiter.thread.tid) {
            time::cancel_timer(parked, waiter.op as usize);
        }
        if ring::complete(&waiter, &Completion::OK, false) {
            woken += 1;
        }
    }
    Completion::value(woken)
}

fn take_first(key: (u64, u64)) -> Option<Waiter> {
    let mut bucket = bucket(key).lock();
    let mut at = bucket.first;
    while let Some(thread) = thread::get(at) {
        // SAFETY: the bucket's lock is held.
        let (its_key, op, sequence, next) = unsafe {
            let link = link(thread);
            (link.key, link.op, link.sequence, link.next)
        };
        if its_key == key {
            bucket.remove(thread);
            return Some(Waiter { thread: thread.reference(), op, sequence });
        }
        at = next;
    }
    None
}

/// Takes a parked operation out, if it is still parked.
pub fn withdraw(waiter: &Waiter) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    time::cancel_timer(thread, waiter.op as usize);
    unqueue(thread, waiter)
}

/// Generation and sequence number matter: since the waiter was taken the thread may have been woken and have parked again with the same
/// operation slot, or its record may serve another thread that has.
fn unqueue(thread: &'static Thread, waiter: &Waiter) -> bool {
    // The key does not change while the thread is parked; if it is not, the look under the lock says so.
    // SAFETY: a racy read of plain numbers, checked again under the lock.
    let key = unsafe { core::ptr::addr_of!((*thread.park.get()).key).read_volatile() };
    let mut bucket = bucket(key).lock();
    // SAFETY: the bucket's lock is held, if the key is what we read.
    let found = unsafe {
        let link = link(thread);
        let same = link.op == waiter.op && link.sequence == waiter.sequence && link.key == key;
        link.queued && same && thread.is(&waiter.thread)
    };
    if found {
        bucket.remove(thread);
    }
    found
}

/// The time limit of a parked operation is over.
pub fn timed_out(waiter: &Waiter) {
    let Some(thread) = thread::get(waiter.thread.tid) else { return };
    if unqueue(thread, waiter) {
        ring::complete(waiter, &Completion::error(TransportError::TimedOut), false);
    }
}
