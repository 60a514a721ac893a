//! Locks on [`crate::ParkSpace`]: without contention no system call, with contention no spinning.
//!
//! A program without a park space still has correct locks: a thread that must wait yields instead of parking.

mod condvar;
mod mutex;
mod once;
mod semaphore;

pub use condvar::Condvar;
pub use mutex::{Mutex, MutexGuard};
pub use once::Once;
pub use semaphore::Semaphore;

use core::sync::atomic::AtomicU32;

use abi::{CapId, Interface, Op, Sqe, TransportError};

use crate::caps::{Known, entry};
use crate::ring;

static PARK: Known = Known::new(Interface::ParkSpace);

/// How a wait for a word ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parked {
    /// Woken, or the word had another value, or for no reason: look again.
    LookAgain,
    /// The time is over.
    TimedOut,
}

/// Parks while `word` is `expected`, for `timeout_ns` at most.
pub(crate) fn park(word: &AtomicU32, expected: u32, timeout_ns: u64) -> Parked {
    let cap = PARK.id();
    if cap == CapId::NONE {
        yield_now();
        return Parked::LookAgain;
    }
    let sqe =
        Sqe { addr: word.as_ptr() as u64, arg0: expected.into(), arg1: timeout_ns, ..entry(Op::Park, cap) };
    // SAFETY: the kernel reads the word, which the caller holds a reference to.
    let cqe = unsafe { ring::run(sqe) };
    if cqe.status == TransportError::TimedOut as i32 { Parked::TimedOut } else { Parked::LookAgain }
}

/// Wakes at most `count` threads that are parked on the word at `word`. The word need not exist any more: nothing is
/// read.
pub(crate) fn unpark(word: *const AtomicU32, count: u32) {
    let cap = PARK.id();
    if cap != CapId::NONE {
        let sqe = Sqe { addr: word as u64, arg0: count.into(), ..entry(Op::Unpark, cap) };
        // SAFETY: names no memory that would be touched.
        unsafe { ring::run_quiet(sqe) };
    }
}

/// Gives the CPU to others that want it.
pub(crate) fn yield_now() {
    // SAFETY: names no memory.
    let _ = unsafe { ring::run(entry(Op::Yield, CapId::NONE)) };
}
