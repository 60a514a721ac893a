//! The clock, and sleeping.

use alloc_crate::vec::Vec;

use abi::{Op, Sqe};
use schema::messages_capnp::timer_now_results;

use super::call::{invoke, read};
use crate::caps::entry;
use crate::error::{Result, check};
use crate::pending::Pending;
use crate::ring;

super::client!(Timer, "The clock, and sleeping.");

impl Timer {
    /// Nanoseconds since boot; never backwards.
    pub fn now_ns(&self) -> Result<u64> {
        let mut room = [0; 96];
        let results = invoke(self.0.id(), 0, &mut room)?;
        read::<_, timer_now_results::Owned>(results.bytes, |results| Some(results.get_ns()))
    }

    /// Sleeps for at least `ns`.
    pub fn sleep(&self, ns: u64) -> Result<()> {
        // SAFETY: names no memory.
        check(&unsafe { ring::run(self.sleep_entry(ns)) })
    }

    /// Completes after `ns`.
    pub fn sleep_start(&self, ns: u64) -> Result<Pending<()>> {
        Pending::start(self.sleep_entry(ns), Vec::new(), Vec::new(), |_, _| Ok(()))
    }

    fn sleep_entry(&self, ns: u64) -> Sqe {
        Sqe { arg0: ns, ..entry(Op::Sleep, self.0.id()) }
    }
}
