//! A semaphore: a counted number of permits.

use super::{WaitError, cancelled};
use crate::chan::charge;
use crate::cx::{Cx, make_room_here};
use crate::error::Cancelled;
use crate::lock::SpinLock;
use crate::waiter::Wakeup;
use crate::waiters::{End, List, Node, SERVED, WAITING, wait};
use crate::worker::current_worker;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Lets a limited number of tasks at a time use something. A task that asks for many permits is not overtaken by tasks
/// that ask for few.
///
/// ```
/// # use janus::{Config, Runtime, sync::Semaphore};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let doors = Semaphore::new(2);
/// runtime.run(|cx| {
///     let _one = doors.acquire(cx, 1).unwrap();
///     let _other = doors.acquire(cx, 1).unwrap();
///     assert!(doors.try_acquire(cx, 1).unwrap().is_none());
/// }).unwrap();
/// assert_eq!(doors.available(), 2);
/// ```
pub struct Semaphore {
    state: SpinLock<State>,
}

struct State {
    permits: usize,
    /// The waiters, each with the number of permits that it wants.
    waiting: List<usize>,
}

// SAFETY: the pointers are to nodes of waiters, under the lock.
unsafe impl Send for State {}

/// Permits of a [`Semaphore`], given back when dropped.
#[must_use = "it is given back when this is dropped"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Semaphore {
    /// A semaphore with `permits` permits.
    #[must_use]
    pub fn new(permits: usize) -> Semaphore {
        Semaphore { state: SpinLock::new(State { permits, waiting: List::new() }) }
    }

    /// How many permits are left.
    #[must_use]
    pub fn available(&self) -> usize {
        self.state.lock().permits
    }

    /// Takes `count` permits, all at once, and waits for them.
    #[track_caller]
    pub fn acquire(&self, cx: &Cx, count: usize) -> Result<Permit<'_>, Cancelled> {
        self.acquire_by(cx, count, None, Location::caller()).map_err(cancelled)
    }

    /// As [`acquire`](Semaphore::acquire), for `timeout` at most.
    #[track_caller]
    pub fn acquire_timeout(&self, cx: &Cx, count: usize, timeout: Duration) -> Result<Permit<'_>, WaitError> {
        self.acquire_by(cx, count, Some(cx.until(timeout)), Location::caller())
    }

    /// As [`acquire`](Semaphore::acquire), if that needs no wait. The attempt is charged even if it fails.
    #[track_caller]
    pub fn try_acquire(&self, cx: &Cx, count: usize) -> Result<Option<Permit<'_>>, Cancelled> {
        charge(cx, Location::caller())?;
        let taken = self.state.lock().take(count);
        Ok(taken.then(|| Permit { semaphore: self, count }))
    }

    pub(super) fn acquire_by(
        &self,
        cx: &Cx,
        count: usize,
        until: Option<u64>,
        at: &'static Location<'static>,
    ) -> Result<Permit<'_>, WaitError> {
        charge(cx, at)?;
        let permit = Permit { semaphore: self, count };
        let mut state = self.state.lock();
        if state.take(count) {
            return Ok(permit);
        }
        let node = Node::new(cx.waiter(), Some(count), ptr::null(), 0);
        // SAFETY: the node stays here until it is served or taken out below.
        unsafe { state.waiting.push(&node) };
        drop(state);
        let end = wait(cx, &node, until, at);
        if end != End::Served {
            let mut state = self.state.lock();
            if node.listed.get() {
                // SAFETY: it is in this list, and the lock is held.
                unsafe { state.waiting.remove(&node) };
            }
            drop(state);
            if node.state.load(Ordering::Acquire) == WAITING {
                std::mem::forget(permit);
                // The waiters behind this one may only have waited because it was in front of them.
                self.give(0);
                cx.stop_if_doomed();
                return Err(if end == End::TimedOut { WaitError::TimedOut } else { WaitError::Cancelled });
            }
        }
        Ok(permit)
    }

    /// Adds `count` permits: permits that come back, or new ones.
    pub fn give(&self, count: usize) {
        make_room_here();
        let here = current_worker();
        let mine = here.map_or(ptr::null(), |worker| worker.shared);
        let mut more = count;
        loop {
            let woken = {
                let mut state = self.state.lock();
                state.permits += std::mem::take(&mut more);
                state.serve(mine)
            };
            match woken {
                Some(waiter) => waiter.wake(here),
                None => return,
            }
        }
    }
}

impl State {
    /// First come first served: nothing is taken while another task waits.
    fn take(&mut self, count: usize) -> bool {
        // SAFETY: we have `&mut State`, so the lock is held.
        let free = unsafe { self.waiting.first() }.is_none() && self.permits >= count;
        if free {
            self.permits -= count;
        }
        free
    }

    /// Gives the first waiter what it wants, if that many permits are there.
    fn serve(&mut self, mine: *const crate::runtime::Shared) -> Option<Wakeup> {
        // SAFETY: we have `&mut State`, so the lock is held; the number that a waiter wants is never written again.
        let wanted = unsafe { (*self.waiting.first()?.message.get()).unwrap_or(0) };
        if wanted > self.permits {
            return None;
        }
        self.permits -= wanted;
        // SAFETY: as above.
        unsafe { self.waiting.pop() }.map(|node| node.mark(SERVED, mine))
    }
}

impl Permit<'_> {
    /// Keeps the permits for good: they are not given back.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.give(self.count);
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish()
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish()
    }
}
