//! Waiting for completions.

use crate::dispatch;
use crate::thread::{TIMEOUT, Thread};
use crate::{time, timers};

/// Waits until there are `min` unread completions or `timeout_ns` have passed. Says how many there are.
#[inline(always)]
pub fn wait(thread: &'static Thread, min: u32, timeout_ns: u64) -> u32 {
    let mut ring = thread.ring.lock();
    let unread = ring.unread();
    if unread >= min || timeout_ns == 0 {
        return unread;
    }
    ring.need = min;
    drop(ring);
    wait_for_more(thread, min, timeout_ns)
}

/// Completions that the program has not taken.
pub fn unread(thread: &Thread) -> u32 {
    thread.ring.lock().unread()
}

/// The slow part of [`wait`]: completions are still missing, and the ring's `need` says how many are needed.
#[inline(never)]
fn wait_for_more(thread: &'static Thread, min: u32, timeout_ns: u64) -> u32 {
    let deadline = if timeout_ns == u64::MAX { u64::MAX } else { time::deadline(timeout_ns) };
    if deadline != u64::MAX {
        timers::set_timer(thread, TIMEOUT, 0, false, deadline);
    }
    let unread = loop {
        // `is_ending` is set before the threads of the process are woken: a thread that was not woken yet sees it here, or is woken.
        let ended = thread.shared().is_ending();
        if !ended {
            dispatch::block_here();
        }
        let mut ring = thread.ring.lock();
        let unread = ring.unread();
        if unread >= min || ended || (deadline != u64::MAX && time::now_ns() >= deadline) {
            ring.need = 0;
            break unread;
        }
        ring.need = min;
        drop(ring);
        // Threads that are woken for nothing one after the other would delay interrupts.
        crate::preempt::point();
    };
    if deadline != u64::MAX {
        timers::cancel_timer(thread, TIMEOUT);
    }
    unread
}
