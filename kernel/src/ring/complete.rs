//! Posting completions.

use super::{Completion, STALE_COMPLETIONS, Waiter, uncharge};
use crate::dispatch;
use crate::dispatch::percpu;
use crate::planted::{self, Bug};
use crate::thread::{self, Thread};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;

/// Posts a completion for an entry that was answered at once. The caller has seen a credit.
#[inline]
pub fn post_now(thread: &Thread, user_data: u64, completion: &Completion) {
    thread.ring.lock().post(user_data, completion);
}

/// Completes an operation along which no context was lent, as it is along calls only, if its thread is still there.
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

/// The thread that a completion was posted to. The same, as was just checked; without that check whoever is there now is woken.
#[inline(always)]
pub fn wake(thread: &'static Thread, waiter: &Waiter, direct: bool) {
    if planted::is(Bug::NoGenerationCheck) {
        dispatch::wake_thread(thread, &thread.reference(), direct);
    } else {
        dispatch::wake_thread(thread, &waiter.thread, direct);
    }
}

/// What came of a completion.
pub enum Posted {
    /// Nobody to tell.
    Stale,
    /// It waits for more.
    Quiet,
    /// It is to be woken.
    Wakes,
    /// Nothing was posted: a context was lent along the operation, and has to come back first.
    Lent,
}

/// Runs `then` while the ring of `who` is open and cannot be closed; nothing, if that thread is gone.
pub fn while_open<R>(who: &ThreadRef, then: impl FnOnce(&'static Thread) -> R) -> Option<R> {
    let thread = thread::get(who.tid)?;
    let ring = thread.ring.lock();
    (thread.is(who) && !ring.page.is_null()).then(|| then(thread))
}

/// Runs `then` while the operation is under way and cannot complete; nothing, if it is over.
#[inline(always)]
pub fn while_pending<R>(thread: &Thread, waiter: &Waiter, then: impl FnOnce() -> R) -> Option<R> {
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref()?;
    (pending.sequence == waiter.sequence && thread.is(&waiter.thread)).then(then)
}

/// Posts a completion.
#[inline(always)]
pub fn post(thread: &'static Thread, waiter: &Waiter, completion: &Completion) -> Posted {
    let mut ring = thread.ring.lock();
    // K-05: the record may serve another thread by now.
    if !thread.is(&waiter.thread) && !planted::is(Bug::NoGenerationCheck) || ring.page.is_null() {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return Posted::Stale;
    }
    // Under the ring's lock, as it is set: a call either completes before it lends, or brings the loan back.
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
    // What it waited on may end here, without a lock.
    drop(pending);
    if wake { Posted::Wakes } else { Posted::Quiet }
}
