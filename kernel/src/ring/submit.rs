//! Taking submissions.

use super::{Completion, Pending, Waitable, Waiter};
use crate::arch::mem::{is_rest_zero_64, snapshot_64};
use crate::dispatch::percpu;
use crate::irqoff::{self, Path};
use crate::planted::{self, Bug};
use crate::preempt::Pacer;
use crate::thread::{self, OPS, Thread};
use abi::{OP_END_LEASE, Op, Ring, SQ_ENTRIES, SQE_VERSION, Sqe, TransportError};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use kcore::sqlease::{SqLease, SqOwner, StaleSqConsumer, Verified};

/// Accepts an operation of the current thread that completes later. `None` if all its slots are in use, which a credit excludes.
#[inline(always)]
pub fn accept(thread: &Thread, user_data: u64, on: Waitable) -> Option<Waiter> {
    let mut ring = thread.ring.lock();
    let op = ring.busy.trailing_ones();
    if op as usize >= OPS {
        return None;
    }
    ring.busy |= 1 << op;
    ring.reserved += 1;
    ring.sequence = ring.sequence.wrapping_add(1);
    let sequence = ring.sequence;
    let before = ring.pending[op as usize].replace(Pending { sequence, user_data, on });
    debug_assert!(before.is_none(), "the slot was free");
    // Nothing needs to be dropped, which the compiler cannot know.
    core::mem::forget(before);
    drop(ring);
    Some(Waiter { thread: thread.reference(), op: op as u8, sequence })
}

/// The thread that submits an entry, and how it does.
#[derive(Clone, Copy)]
pub struct Submitter {
    /// The thread whose ring it is.
    pub thread: &'static Thread,
    /// The thread is about to wait for completions, so a thread that it wakes may take over its CPU.
    pub will_wait: bool,
}

/// The outcome of a submission.
pub enum Submitted {
    /// It is answered, or will be.
    Done,
    /// It will be answered, and the thread has lent its context along with it: no further entry is taken until the context is back.
    Lent,
    /// The thread ends.
    Exit(i64),
}

/// Takes submissions of a thread and has each done by `submit`, until none is left or the next would have to wait for a free completion entry.
/// Takes at most one queue full, so that a program that writes faster than the kernel reads does not keep the CPU here. `Some(code)` if the thread
/// asked to end.
#[inline(always)]
pub fn drain(
    by: Submitter,
    page: *const Ring,
    submit: impl Fn(Submitter, &Sqe) -> Submitted,
) -> Result<Option<i64>, TransportError> {
    let thread = by.thread;
    // SAFETY: the thread's own ring page, mapped while it lives.
    if unsafe { (*page).sq_tail.load(Ordering::Acquire) } == thread.sq_head.get() {
        return Ok(None);
    }
    consume(thread, page, by.will_wait, submit)
}

/// The longest queue whose entries are taken without reading the clock; only a longer one begins a measured interrupts-off span.
const SHORT_QUEUE: u32 = 4;

/// The first word of a NOP without flags; behind it come its number (`user_data`) and zeros (K-28).
const PLAIN_NOP: u64 = Op::Nop as u64 | (SQE_VERSION as u64) << 8;

/// Whether the entry at `from`, whose first word is `first`, is a NOP without flags. `request::decode` would say the same of it.
#[inline(always)]
fn is_plain_nop(from: *const Sqe, first: u64) -> bool {
    // SAFETY: an entry of the thread's own ring page, which is mapped while it lives.
    first == PLAIN_NOP && unsafe { is_rest_zero_64(from.cast()) }
}

// A plain NOP completes with `OK`, which `put_plain` writes as zeros.
const _: () = {
    let Completion { status, cap, value, flags, badge, w } = Completion::OK;
    assert!(status == 0 && cap == 0 && value == 0 && flags == 0 && badge == 0 && w[0] == 0 && w[1] == 0);
};

/// Completes the plain NOP whose number is `user_data`, and those that follow it from `head` on, at most `most` of them. Says how many followed.
#[inline(always)]
fn complete_nops(
    thread: &Thread,
    lease: &SqLease,
    page: *const Ring,
    head: u32,
    user_data: u64,
    most: u32,
) -> u32 {
    let mut ring = thread.ring.lock();
    ring.put_plain(0, user_data);
    let mut count = 0;
    while count < most
        && let Ok(verified) = verify(thread, lease)
    {
        let (from, [first, user_data]) = entry(page, head.wrapping_add(count), verified);
        if !is_plain_nop(from, first) {
            break;
        }
        count += 1;
        ring.put_plain(count, user_data);
    }
    ring.publish(count + 1);
    count
}

/// Whether one more entry may be taken: the lease must still hold.
#[inline(always)]
fn verify(thread: &Thread, lease: &SqLease) -> Result<Verified, StaleSqConsumer> {
    if planted::is(Bug::StaleConsumer) {
        // The bug: the lease of an unused ring is verified instead, which always holds.
        let other = SqOwner::new();
        return other.acquire_syscall(0).map_err(|_| StaleSqConsumer).and_then(|its| other.verify(&its));
    }
    thread.sq.verify(lease)
}

/// The entry at `head`, and its first two words. `_verified` shows that the lease was found to hold.
#[inline(always)]
fn entry(page: *const Ring, head: u32, _verified: Verified) -> (*const Sqe, [u64; 2]) {
    // SAFETY: the thread's own ring page, mapped while it lives; each word is read once.
    unsafe {
        let from = &raw const (*page).sq[(head % SQ_ENTRIES) as usize];
        (from, from.cast::<[u64; 2]>().read_volatile())
    }
}

#[inline(never)]
fn consume(
    thread: &'static Thread,
    page: *const Ring,
    will_wait: bool,
    submit: impl Fn(Submitter, &Sqe) -> Submitted,
) -> Result<Option<i64>, TransportError> {
    let lease = match thread.sq.acquire_syscall(thread.tid()) {
        Ok(lease) => lease,
        Err(_) => return Err(TransportError::SqBusy),
    };
    let mut result = Ok(None);
    let mut head = thread.sq_head.get();
    // Credits only grow during the loop: nobody else accepts operations of this thread.
    let mut credits = thread.ring.lock().credits();
    // SAFETY: the thread's own ring page, mapped while it lives.
    let tail = unsafe { (*page).sq_tail.load(Ordering::Acquire) };
    let count = tail.wrapping_sub(head);
    if count > SQ_ENTRIES {
        // The program wrote nonsense; there is no entry to complete with an error.
        thread.sq.release(lease);
        return Err(TransportError::BadMessage);
    }
    if count > SHORT_QUEUE {
        irqoff::begins(percpu::this(), Path::Queue);
    }
    let mut left = count;
    let mut pacer = Pacer::of_entries();
    while left > 0 {
        if credits == 0 {
            credits = thread.ring.lock().credits();
            if credits == 0 {
                break;
            }
        }
        credits -= 1;
        left -= 1;
        let Ok(verified) = verify(thread, &lease) else {
            result = Err(TransportError::StaleSqConsumer);
            break;
        };
        // The program may change the entry until it is copied below; then the copy counts.
        let (from, [first, user_data]) = entry(page, head, verified);
        head = head.wrapping_add(1);
        if is_plain_nop(from, first) {
            let nops = 1 + complete_nops(thread, &lease, page, head, user_data, left.min(credits));
            (head, left, credits) = (head.wrapping_add(nops - 1), left - (nops - 1), credits - (nops - 1));
            continue;
        }
        let mut sqe = MaybeUninit::<Sqe>::uninit();
        // SAFETY: as above; a copy, because the program may change the entry while we look at it. Any bytes are an entry.
        let sqe = unsafe {
            snapshot_64(from.cast(), sqe.as_mut_ptr().cast());
            sqe.assume_init_ref()
        };
        match submit(Submitter { thread, will_wait }, sqe) {
            Submitted::Done => {}
            // A thread that has lent its context waits from here on.
            Submitted::Lent => break,
            Submitted::Exit(code) => {
                result = Ok(Some(code));
                break;
            }
        }
        // A queue full of sleeps takes long, too (K-26).
        if left > 0 {
            pacer.step();
        }
    }
    thread.sq_head.set(head);
    // SAFETY: as above.
    unsafe { (*page).sq_head.store(head, Ordering::Release) };
    thread.sq.release(lease);
    result
}

// ---- leases that end on purpose ----------------------------------------------------------------------------------------------

/// Whether the kernel was booted with `endlease`.
static MAY_END_LEASES: AtomicBool = AtomicBool::new(false);

/// From now on programs may end leases; at boot.
pub fn allow_ending_leases() {
    MAY_END_LEASES.store(true, Ordering::Relaxed);
}

/// Answers an entry of an unknown operation; only a kernel that was booted with `endlease` knows [`abi::OP_END_LEASE`]. It does what a second
/// consumer will do when it takes a ring over: today a ring has one consumer only, the thread itself, and no program can make it a stale one
/// (K-12).
#[cold]
pub fn end_lease(thread: &Thread, sqe: &Sqe) -> Completion {
    if sqe.op != OP_END_LEASE || !MAY_END_LEASES.load(Ordering::Relaxed) {
        return Completion::error(TransportError::UnknownOp);
    }
    let pid = |thread: &Thread| thread.pid.load(Ordering::Relaxed);
    let target = if sqe.arg0 == 0 { Some(thread) } else { thread::get(sqe.arg0 as u32) };
    let Some(target) = target.filter(|target| pid(target) == pid(thread)) else {
        return Completion::error(TransportError::BadMessage);
    };
    Completion::value(target.sq.invalidate().into())
}
