//! Parking by address (K-14): a table of buckets with lists that are linked through the threads themselves, so nothing is allocated.

use crate::context::complete;
use crate::lock::{Rank, SpinLock};
use crate::process::records::Owned;
use crate::ring::{self, Completion, Waitable, Waiter};
use crate::thread::{self, ParkLink, Thread};
use crate::time;
use crate::timers;
use abi::TransportError;
use core::sync::atomic::{AtomicU64, Ordering};

const BUCKETS: usize = 256;
const NONE: u32 = u32::MAX;

/// The first and the last thread of a bucket's list.
struct Bucket {
    first: u32,
    last: u32,
}

static TABLE: [SpinLock<Bucket>; BUCKETS] =
    [const { SpinLock::new(Rank::Park, Bucket { first: NONE, last: NONE }) }; BUCKETS];

static SALT: AtomicU64 = AtomicU64::new(0);

/// Chooses the salt, before the first thread parks.
pub fn init() {
    SALT.store(crate::arch::cpu::rdtsc().wrapping_mul(0xbf58_476d_1ce4_e5b9), Ordering::Relaxed);
}

fn bucket(key: (u64, u64)) -> &'static SpinLock<Bucket> {
    // Programs do not know the salt: so none can choose words that share a bucket with those of another process.
    let salted = (key.0 ^ key.1 >> 2) ^ SALT.load(Ordering::Relaxed);
    let hash = (salted ^ salted >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> 56) as usize % BUCKETS]
}

/// # Safety
/// The lock of the bucket that the link is (or will be) in is held.
#[allow(clippy::mut_from_ref)]
unsafe fn link(thread: &Thread) -> &mut ParkLink {
    // SAFETY: the caller's promise: the bucket's lock guards the link.
    unsafe { &mut *thread.park.get() }
}

/// Names one parked operation, whichever thread has the record later; never 0.
fn ticket(waiter: &Waiter) -> u64 {
    u64::from(waiter.thread.thread_generation) << 32 | u64::from(waiter.sequence)
}

impl Bucket {
    fn push(&mut self, thread: &'static Thread, key: (u64, u64), waiter: &Waiter) {
        // SAFETY: `self` is borrowed from its lock.
        unsafe {
            *link(thread) = ParkLink { key, waiter: *waiter, next: NONE, previous: self.last };
            match thread::get(self.last) {
                Some(last) => link(last).next = thread.tid(),
                None => self.first = thread.tid(),
            }
        }
        self.last = thread.tid();
        thread.park_ticket.store(ticket(waiter), Ordering::Release);
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
        }
        thread.park_ticket.store(0, Ordering::Release);
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
    // A plain check is enough: only the thread itself parks.
    if thread.park_ticket.load(Ordering::Acquire) != 0 {
        return Some(Completion::error(TransportError::NoSpace));
    }
    let process = &thread.body().process;
    let outcome = process.space.with_word(address, |word, key| {
        // The word is read under the bucket's lock. A thread that changes it, perhaps in another process, and then unparks was either here before,
        // and the change is seen, or it comes later, and finds this thread.
        let mut bucket = bucket(key).lock();
        if word.get() != expected {
            return Err(TransportError::WouldNotPark);
        }
        if timeout_ns == 0 {
            return Err(TransportError::TimedOut);
        }
        let waiter = ring::accept(thread, user_data, Waitable::Park(key)).ok_or(TransportError::NoSpace)?;
        // The timer first: once the bucket's lock is released, the operation may complete.
        if timeout_ns != u64::MAX {
            timers::set_timer(thread, waiter.op as usize, waiter.sequence, true, time::deadline(timeout_ns));
        }
        // The list is linked through the threads, so it needs no memory (K-30).
        bucket.push(thread, key, &waiter);
        Ok(())
    });
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Completion::error(error)),
        Err(_) => Some(Completion::error(TransportError::BadAddress)),
    }
}

/// The most threads that one UNPARK wakes.
pub const MAX_UNPARK: u64 = 1024;

/// Wakes at most `count` threads that are parked on `address` of the current process, and says how many. With `direct` the caller is about to block,
/// and the first of them takes over its CPU.
pub fn unpark(thread: &'static Thread, address: u64, count: u64, direct: bool) -> Completion {
    let key = match thread.body().process.space.key_of(address) {
        Ok(key) => key,
        Err(_) => return Completion::error(TransportError::BadAddress),
    };
    if count == 1 {
        // The usual case, without a batch: a mutex, or a turn that is passed on.
        let mut one = [None];
        while take_first(key, &mut one) == 1 {
            if one.iter().flatten().any(|waiter| wake(waiter, direct)) {
                return Completion::value(1);
            }
        }
        return Completion::value(0);
    }
    let count = count.min(MAX_UNPARK);
    let mut woken = 0;
    while woken < count {
        // A batch in one walk through the bucket: threads that wait for other words may be parked there, too, as many as there are.
        let mut batch = [const { None }; BATCH];
        let wanted = BATCH.min((count - woken) as usize);
        let found = take_first(key, &mut batch[..wanted]);
        for waiter in batch.iter().flatten() {
            woken += u64::from(wake(waiter, direct && woken == 0));
        }
        if found < wanted {
            break;
        }
        crate::preempt::point();
    }
    Completion::value(woken)
}

fn wake(waiter: &Waiter, direct: bool) -> bool {
    timers::cancel_operation(waiter);
    complete::operation(waiter, &Completion::OK, direct)
}

/// Threads that are taken out of a bucket at once, and woken before a preemption point.
const BATCH: usize = 8;

/// Takes out the first operations that are parked on `key`, as many as fit in `taken`. Says how many.
#[inline(always)]
fn take_first(key: (u64, u64), taken: &mut [Option<Waiter>]) -> usize {
    let mut bucket = bucket(key).lock();
    let mut at = bucket.first;
    let mut count = 0;
    while count < taken.len()
        && let Some(thread) = thread::get(at)
    {
        // SAFETY: the bucket's lock is held.
        let (its_key, waiter, next) = unsafe {
            let link = link(thread);
            (link.key, link.waiter, link.next)
        };
        if its_key == key {
            bucket.remove(thread);
            taken[count] = Some(waiter);
            count += 1;
        }
        at = next;
    }
    count
}

/// Takes a parked operation out, if it is still parked.
pub fn withdraw(waiter: &Waiter, key: (u64, u64)) -> bool {
    if let Some(thread) = thread::get(waiter.thread.tid) {
        // The timer of the thread itself, which may be ending.
        timers::cancel_timer(thread, waiter.op as usize);
    }
    unqueue(waiter, key)
}

/// The ticket is compared under the lock of the bucket that the operation was put into. If the thread is parked elsewhere by now, its ticket is
/// another one, which was written after its link.
fn unqueue(waiter: &Waiter, key: (u64, u64)) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    let mut bucket = bucket(key).lock();
    let found = thread.park_ticket.load(Ordering::Acquire) == ticket(waiter);
    if found {
        bucket.remove(thread);
    }
    found
}

/// The time limit of an operation that was parked on `key` has passed.
pub fn timed_out(waiter: &Waiter, key: (u64, u64)) {
    if unqueue(waiter, key) {
        complete::operation(waiter, &Completion::error(TransportError::TimedOut), false);
    }
}
