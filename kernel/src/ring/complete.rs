//! Posting completions.

use super::{Completion, STALE_COMPLETIONS, Waiter, uncharge};
use crate::dispatch;
use crate::dispatch::percpu;
use crate::planted::{self, Bug};
use crate::thread::{self, Thread};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;

/// Posts a completion for an entry that was answered at once. The caller has made sure that there is a credit.
#[inline]
pub fn post_now(thread: &Thread, user_data: u64, completion: &Completion) {
    thread.ring.lock().post(user_data, completion);
}

/// Completes an operation along which no context was lent (only calls lend). False if its thread is gone or the operation is over.
#[inline(always)]
pub fn complete(waiter: &Waiter, completion: &Completion) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    match post(thread, waiter, completion) {
        Posted::Stale => false,
        Posted::Quiet => true,
        Posted::Wakes => {
            wake(thread, waiter, false);
            true
        }
        Posted::Lent => unreachable!("only calls lend"),
    }
}

/// Wakes the thread that a completion was posted to; `post` has just checked its generation. The planted bug wakes whichever thread has the record.
#[inline(always)]
pub fn wake(thread: &'static Thread, waiter: &Waiter, direct: bool) {
    if planted::is(Bug::NoGenerationCheck) {
        dispatch::wake_thread(thread, &thread.reference(), direct);
    } else {
        dispatch::wake_thread(thread, &waiter.thread, direct);
    }
}

/// The outcome of posting a completion.
pub enum Posted {
    /// The thread is gone or the operation is over: nobody was told.
    Stale,
    /// Posted; the thread does not wait, or waits for more completions.
    Quiet,
    /// Posted, and the thread is to be woken.
    Wakes,
    /// Nothing was posted: a context was lent along the operation, and has to come back first.
    Lent,
}

/// Runs `then` while the ring of `who` is open and cannot be closed. `None` if that thread is gone.
pub fn while_open<R>(who: &ThreadRef, then: impl FnOnce(&'static Thread) -> R) -> Option<R> {
    let thread = thread::get(who.tid)?;
    let ring = thread.ring.lock();
    (thread.is(who) && !ring.page.is_null()).then(|| then(thread))
}

/// Runs `then` while the operation is under way and cannot complete. `None` if it is over.
#[inline(always)]
pub fn while_pending<R>(thread: &Thread, waiter: &Waiter, then: impl FnOnce() -> R) -> Option<R> {
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref()?;
    (pending.sequence == waiter.sequence && thread.is(&waiter.thread)).then(then)
}

/// Posts a completion, unless a context is lent along the operation.
#[inline(always)]
pub fn post(thread: &'static Thread, waiter: &Waiter, completion: &Completion) -> Posted {
    let mut ring = thread.ring.lock();
    // K-05: the record may serve another thread by now.
    if !thread.is(&waiter.thread) && !planted::is(Bug::NoGenerationCheck) || ring.page.is_null() {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return Posted::Stale;
    }
    // `lent` is set under the ring's lock, too: a call either completes before it lends, or its completion finds the loan and brings it back.
    let lent = thread.lent.load(Ordering::Relaxed);
    if lent != 0 && lent == waiter.ticket() {
        return Posted::Lent;
    }
    let Some(pending) = ring.free(waiter.op, Some(waiter.sequence)) else {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return Posted::Stale;
    };
    debug_assert!(
        !percpu::this().in_interrupt.get() || !pending.on.keeps_something(),
        "K-18: an interrupt completes what keeps something"
    );
    uncharge(thread, &pending.on);
    ring.post(pending.user_data, completion);
    let wake = ring.satisfied();
    if wake {
        ring.need = 0;
    }
    drop(ring);
    // The object that it waited on may end here, so no lock may be held.
    drop(pending);
    if wake { Posted::Wakes } else { Posted::Quiet }
}
