//! The two system calls (K-10).

use crate::arch::entry::Frame;
use crate::process;
use crate::process::records::Owned;
use crate::ring::Submitter;
use crate::thread::{self, Thread};
use crate::{context, dispatch, ops, ring};
use abi::{CQ_ENTRIES, SYS_CAP_ENTER, SYS_EXIT, TransportError};

/// Called by the assembly entry with two arguments and the number. The result goes to RAX.
// SAFETY: nothing else has this name; the machine's entry code calls it by name, because it is below this layer (K-25).
#[unsafe(export_name = "kernel_syscall")]
pub extern "C" fn syscall(first: u64, second: u64, number: u64) -> i64 {
    // Still the right one after a wait: it is the thread whose stack this is.
    let thread = thread::current();
    let result = match number {
        SYS_CAP_ENTER => cap_enter(thread, first, second),
        SYS_EXIT => process::exit_current(first as i64),
        _ => TransportError::UnknownSyscall as i64,
    };
    if context::reschedule_leaving(thread) || thread.life().has_errands() {
        return after_marks(thread, number, result);
    }
    process::exit_if_ending(thread);
    result
}

/// The end of a system call whose thread has errands for its context first, or ends.
#[cold]
#[inline(never)]
fn after_marks(thread: &'static Thread, number: u64, result: i64) -> i64 {
    context::settle_before_user(thread);
    process::exit_if_ending(thread);
    dispatch::end_irq_off();
    // More completions may have come meanwhile.
    if number == SYS_CAP_ENTER && result >= 0 { ring::unread(thread).into() } else { result }
}

#[inline]
fn cap_enter(thread: &'static Thread, min_complete: u64, timeout_ns: u64) -> i64 {
    // There can never be more completions than the queue holds, so a full queue is enough.
    let min = min_complete.min(CQ_ENTRIES.into()) as u32;
    let page = thread.body().ring_frame.pointer();
    let by = Submitter { thread, will_wait: min > 0 };
    match ring::drain(by, page, ops::submit) {
        Ok(None) => {}
        Ok(Some(code)) => process::exit_current(code),
        Err(error) => return error as i64,
    }
    debug_assert!(!thread.deferred().any(), "a thread waits and has deferred work left");
    i64::from(ring::wait(thread, min, timeout_ns))
}

const _: () = assert!(size_of::<Frame>() == 22 * 8);
