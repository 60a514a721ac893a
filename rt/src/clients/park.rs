//! Parking and waking threads by address: what [`crate::sync`] is made of.

use core::sync::atomic::AtomicU32;

use abi::{Cqe, Op, Sqe, TransportError};

use crate::caps::entry;
use crate::error::{Error, Result, check};
use crate::ring;

super::client!(ParkSpace, "Parking and waking threads by address.");

/// How a park ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// By an unpark.
    Woken,
    /// The word did not have the expected value, so the thread did not park.
    OtherValue,
    /// The time is over.
    TimedOut,
}

impl ParkSpace {
    /// Parks the calling thread if `word` is `expected`, until it is woken or `timeout_ns` are over.
    pub fn park(&self, word: &AtomicU32, expected: u32, timeout_ns: u64) -> Result<Parked> {
        let sqe = Sqe {
            addr: word.as_ptr() as u64,
            arg0: expected.into(),
            arg1: timeout_ns,
            ..entry(Op::Park, self.0.id())
        };
        // SAFETY: the kernel reads the word, which the caller holds a reference to.
        outcome(&unsafe { ring::run(sqe) })
    }

    /// Wakes at most `count` threads that are parked on `wake`, then parks as [`ParkSpace::park`] does, by one system call. One of them
    /// runs at once in the caller's place: the way to pass a turn on and wait for the next.
    pub fn unpark_then_park(
        &self,
        wake: &AtomicU32,
        count: u32,
        word: &AtomicU32,
        expected: u32,
        timeout_ns: u64,
    ) -> Result<Parked> {
        // SAFETY: names a word that the caller holds a reference to, and is done with it before the park below returns.
        unsafe { ring::queue_quiet(self.unpark_entry(wake, count)) };
        self.park(word, expected, timeout_ns)
    }

    /// Wakes at most `count` threads that are parked on `word`; returns how many.
    pub fn unpark(&self, word: &AtomicU32, count: u32) -> Result<u64> {
        // SAFETY: names a word that the caller holds a reference to.
        let cqe = unsafe { ring::run(self.unpark_entry(word, count)) };
        check(&cqe)?;
        Ok(cqe.value)
    }

    fn unpark_entry(&self, word: &AtomicU32, count: u32) -> Sqe {
        Sqe { addr: word.as_ptr() as u64, arg0: count.into(), ..entry(Op::Unpark, self.0.id()) }
    }
}

fn outcome(cqe: &Cqe) -> Result<Parked> {
    match cqe.status {
        0 => Ok(Parked::Woken),
        status if status == TransportError::WouldNotPark as i32 => Ok(Parked::OtherValue),
        status if status == TransportError::TimedOut as i32 => Ok(Parked::TimedOut),
        _ => Err(Error::of(cqe, &[])),
    }
}
