//! The two system calls (K-10).

use crate::arch::entry::Frame;
use crate::process;
use crate::{ring, sched, thread, time};
use abi::{CQ_ENTRIES, SYS_CAP_ENTER, SYS_EXIT, TransportError};

/// From assembly: two arguments and the number. What it returns is in RAX.
pub extern "C" fn syscall(first: u64, second: u64, number: u64) -> i64 {
    let result = match number {
        SYS_CAP_ENTER => cap_enter(first, second),
        SYS_EXIT => process::exit_current(first as i64),
        _ => TransportError::UnknownSyscall as i64,
    };
    sched::preempt_if_needed();
    process::exit_if_ending();
    result
}

#[inline]
fn cap_enter(min_complete: u64, timeout_ns: u64) -> i64 {
    let thread = thread::current();
    // More than the queue holds can never be there; a full queue then has to do.
    let min = min_complete.min(CQ_ENTRIES.into()) as u32;
    let page = thread.body().ring_frame.pointer();
    match ring::drain(thread, page, min > 0) {
        Ok(None) => {}
        Ok(Some(code)) => process::exit_current(code),
        Err(error) => return error as i64,
    }
    let deadline = if timeout_ns == 0 { 0 } else { time::deadline(timeout_ns) };
    i64::from(ring::wait(thread, min, deadline))
}

const _: () = assert!(size_of::<Frame>() == 22 * 8);
