//! A condition variable: waiting for a change of a mutex's value.

use super::mutex::MutexGuard;
use super::{WaitError, cancelled};
use crate::chan::charge;
use crate::cx::{Cx, make_room_here};
use crate::error::Cancelled;
use crate::lock::SpinLock;
use crate::waiters::{End, List, Node, SERVED, WAITING, wait};
use crate::worker::current_worker;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Wakes tasks that wait for a change: [`std::sync::Condvar`] with a [`Cx`].
///
/// ```
/// # use janus::{Config, Runtime, sync::{Condvar, Mutex}};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let (ready, changed) = (Mutex::new(false), Condvar::new());
/// runtime.run(|cx| cx.nursery(|nursery| {
///     nursery.spawn(|cx| {
///         *ready.lock(cx).unwrap() = true;
///         changed.notify_one();
///     });
///     let guard = changed.wait_while(cx, ready.lock(cx).unwrap(), |ready| !*ready).unwrap();
///     assert!(*guard);
///     Ok(())
/// })).unwrap().unwrap();
/// ```
pub struct Condvar {
    waiting: SpinLock<Waiting>,
}

struct Waiting(List<()>);

// SAFETY: the pointers are to nodes of waiters, under the lock.
unsafe impl Send for Waiting {}

impl Condvar {
    /// A condition variable for which no task waits yet.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar { waiting: SpinLock::new(Waiting(List::new())) }
    }

    /// Releases the lock, waits to be notified, and takes the lock again. When the task is cancelled, the lock is not
    /// taken. The call may return without a notification: check in a loop, or use [`Condvar::wait_while`].
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(
        &self,
        cx: &Cx,
        guard: MutexGuard<'a, T>,
    ) -> Result<MutexGuard<'a, T>, Cancelled> {
        self.wait_by(cx, guard, None, Location::caller()).map(|(guard, _)| guard).map_err(cancelled)
    }

    /// As [`wait`](Condvar::wait), for `timeout` at most; true beside the guard: the time is over.
    #[track_caller]
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        cx: &Cx,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> Result<(MutexGuard<'a, T>, bool), Cancelled> {
        self.wait_by(cx, guard, Some(cx.until(timeout)), Location::caller()).map_err(cancelled)
    }

    /// Waits as long as `condition` is true.
    #[track_caller]
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        cx: &Cx,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Result<MutexGuard<'a, T>, Cancelled> {
        let at = Location::caller();
        while condition(&mut guard) {
            guard = self.wait_by(cx, guard, None, at).map_err(cancelled)?.0;
        }
        Ok(guard)
    }

    fn wait_by<'a, T: ?Sized>(
        &self,
        cx: &Cx,
        guard: MutexGuard<'a, T>,
        until: Option<u64>,
        at: &'static Location<'static>,
    ) -> Result<(MutexGuard<'a, T>, bool), WaitError> {
        charge(cx, at)?;
        let mutex = guard.mutex;
        let node = Node::new(cx.waiter(), Some(()), ptr::null(), 0);
        // The node is listed before the lock is released, so a notification after that finds it.
        // SAFETY: the node stays here until it is served or taken out below.
        unsafe { self.waiting.lock().0.push(&node) };
        drop(guard);
        let end = wait(cx, &node, until, at);
        if end != End::Served {
            let mut waiting = self.waiting.lock();
            if node.listed.get() {
                // SAFETY: it is in this list, and the lock is held.
                unsafe { waiting.0.remove(&node) };
            }
        }
        let notified = node.state.load(Ordering::Acquire) != WAITING;
        let locked = if cx.is_asked() { Err(WaitError::Cancelled) } else { mutex.lock_by(cx, None, at) };
        // This task was to learn of the change and cannot: another one does instead.
        if locked.is_err() && notified {
            self.notify_one();
        }
        if locked.is_err() {
            cx.stop_if_doomed();
        }
        locked.map(|guard| (guard, !notified))
    }

    /// Wakes the task that has waited longest. It costs nothing.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all that wait now.
    pub fn notify_all(&self) {
        self.notify(usize::MAX);
    }

    /// Under the lock, so that a task that is woken and waits again is not woken again.
    fn notify(&self, most: usize) {
        make_room_here();
        let here = current_worker();
        let mut waiting = self.waiting.lock();
        for _ in 0..most {
            // SAFETY: the lock is held.
            let Some(node) = (unsafe { waiting.0.pop() }) else { return };
            node.mark(SERVED, here.map_or(ptr::null(), |worker| worker.shared)).wake(here);
        }
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
