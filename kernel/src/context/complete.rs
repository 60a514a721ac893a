//! Completing operations of programs. A call along which a context was lent brings the context back, however the call ends.

use super::loan;
use crate::dispatch;
use crate::planted::{self, Bug};
use crate::ring::{self, Completion, Posted, Waiter};
use crate::thread::{self, Thread};

/// Completes an operation, if its thread is still there. With `direct` the thread runs next on this CPU.
///
/// If a context was lent along the operation, it is back before the completion is posted, however the call ends.
pub fn operation(waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    operation_here(waiter, completion, direct)
}

/// As [`operation`], for the paths of every call and answer.
#[inline(always)]
pub fn operation_here(waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    match ring::post(thread, waiter, completion) {
        Posted::Stale => false,
        Posted::Quiet => true,
        Posted::Wakes => {
            ring::wake(thread, waiter, direct);
            true
        }
        Posted::Lent => complete_lent(thread, waiter, completion, direct),
    }
}

/// As [`operation`], for a call along which the thread has lent its context. The thread is woken in any case: it may wait for the loan only.
#[cold]
#[inline(never)]
fn complete_lent(thread: &'static Thread, waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    if planted::is(Bug::ExceptionKeepsLoan) && completion.status > 0 {
        loan::forget(thread);
    }
    let mut handed = loan::settle(thread, waiter, direct);
    let posted = loop {
        match ring::post(thread, waiter, completion) {
            // Another CPU is about to end the loan: it has begun, under the context's lock, and does not wait for any other CPU.
            Posted::Lent => {
                crate::arch::cpu::pause();
                crate::arch::tlb::poll();
                handed = handed.or_else(|| loan::settle(thread, waiter, direct));
            }
            posted => break posted,
        }
    };
    match handed {
        Some(runnable) => dispatch::hand_over_lending(runnable),
        None => {
            dispatch::wake_thread(thread, &waiter.thread, direct);
        }
    }
    !matches!(posted, Posted::Stale)
}

/// Completes the RECV of a server. The current thread lends the server its context along `call`, if it can.
#[inline]
pub fn recv_lending(
    server: &Waiter,
    completion: &Completion,
    lender: &'static Thread,
    call: &Waiter,
) -> bool {
    let Some(thread) = thread::get(server.thread.tid) else { return false };
    match ring::post(thread, server, completion) {
        Posted::Stale => false,
        Posted::Quiet => true,
        Posted::Wakes => {
            // A server that waits for more calls does not work for this one alone, so it gets no loan.
            if ring::receives(thread) || !loan::lend(lender, call, thread, &server.thread) {
                ring::wake(thread, server, true);
            }
            true
        }
        Posted::Lent => complete_lent(thread, server, completion, true),
    }
}
