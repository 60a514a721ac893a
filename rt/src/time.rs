//! The clock, by the first granted Timer.

use abi::Interface;

use crate::caps::{Cap, Known};
use crate::clients::Timer;
use crate::error::Result;

static TIMER: Known = Known::new(Interface::Timer);

/// The process's timer.
pub fn timer() -> Result<Timer> {
    Ok(Timer(Cap::borrowed(TIMER.get()?)))
}

/// Nanoseconds since boot; never backwards.
pub fn now_ns() -> Result<u64> {
    timer()?.now_ns()
}

/// Sleeps for at least `ns`.
pub fn sleep(ns: u64) -> Result<()> {
    timer()?.sleep(ns)
}

/// The time at which `timeout_ns` from now are over; `None` if they never are, if they are over already (0),
/// or without a clock.
pub(crate) fn deadline(timeout_ns: u64) -> Option<u64> {
    if timeout_ns == 0 || timeout_ns == u64::MAX {
        return None;
    }
    now_ns().ok()?.checked_add(timeout_ns)
}

/// What is left until `deadline_ns`.
pub(crate) fn left_ns(deadline_ns: u64) -> u64 {
    now_ns().map_or(0, |now| deadline_ns.saturating_sub(now))
}
