//! Steps of threads' lives (K-31): each is a change of the word under the thread's *wait* lock (`kcore::life`), and what that asks for.

use super::budgets::free;
use super::{enqueue, hand_over};
use crate::lock::Guard;
use crate::thread::{self, Seat, Thread, Wait};
use ::sched::{Blocked, Runnable};
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event};

/// Lets a thread go on, if it is still the one that is meant. With `direct` it runs here as soon as the current thread waits, in what is left
/// of that one's slice: the fast path of a call to a waiting server.
pub fn wake(who: &ThreadRef, direct: bool) {
    if let Some(thread) = thread::get(who.tid) {
        wake_thread(thread, who, direct);
    }
}

/// As [`wake`], of the record that `who` names.
#[inline(always)]
pub fn wake_thread(thread: &'static Thread, who: &ThreadRef, direct: bool) {
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return;
    }
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    // One that runs, or was stopped, finds that it was woken; of one that is gone, nothing is left to wake.
    let Ok(action) = thread.turn(&mut wait, Event::Wake { runnable }) else { return };
    let Some(runnable) = released(&mut wait, action) else { return };
    if direct {
        drop(wait);
        hand_over(runnable);
    } else {
        enqueue(runnable);
    }
}

/// The thread that lay under this lock, if it is to run.
#[inline(always)]
fn released(wait: &mut Wait, action: Action) -> Option<Runnable<Seat>> {
    if !matches!(action, Action::Run | Action::Free) {
        return None;
    }
    if cfg!(feature = "planted-stops-the-ending") && !wait.parked.as_ref()?.is_runnable() {
        return None;
    }
    let mut blocked = wait.parked.take()?;
    if action == Action::Free {
        free(&mut blocked);
    }
    blocked.wake().ok()
}

/// Does what a change of a thread's life asks for, and lets its lock go.
pub(super) fn follow(mut wait: Guard<'_, Wait>, action: Action) {
    if let Some(runnable) = released(&mut wait, action) {
        enqueue(runnable);
    }
}

/// A new thread may run.
pub fn start(runnable: Runnable<Seat>) {
    let thread = runnable.payload().thread();
    thread.must(&mut thread.wait.lock(), Event::Start);
    enqueue(runnable);
}

/// A thread that was taken from its wait runs, on what it was given.
pub fn run(runnable: Runnable<Seat>) {
    enqueue(runnable);
}

/// A thread is to end: it waits for nothing any more, and gets no context. False if it has ended, or is another one.
pub fn doom(thread: &'static Thread, who: &ThreadRef) -> bool {
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return false;
    }
    match thread.turn(&mut wait, Event::Kill) {
        Ok(action) => {
            follow(wait, action);
            true
        }
        Err(_) => false,
    }
}

/// The current thread ends. From here on nobody gives it a context, and it is not stopped for want of one.
pub fn exit() {
    let thread = thread::current();
    thread.must(&mut thread.wait.lock(), Event::Exit);
}

/// A thread that was set aside is off its stack: it is placed anew.
pub(super) fn requeue(thread: &'static Thread) {
    let mut wait = thread.wait.lock();
    let runnable = wait.parked.as_ref().is_some_and(Blocked::is_runnable);
    let action = thread.must(&mut wait, Event::Requeue { runnable });
    follow(wait, action);
}
