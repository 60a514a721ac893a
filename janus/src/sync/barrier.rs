//! A barrier, at which tasks wait for each other.

use crate::chan::charge;
use crate::cx::Cx;
use crate::error::Cancelled;
use crate::lock::SpinLock;
use crate::waiters::{End, List, Node, SERVED, WAITING, wait};
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering;

/// Lets a number of tasks wait for each other, again and again: [`std::sync::Barrier`] with a [`Cx`]. A task that is
/// cancelled while it waits does not count any more.
///
/// ```
/// # use janus::{Config, Runtime, sync::Barrier};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let meeting = Barrier::new(3);
/// let leaders = runtime.run(|cx| cx.nursery(|nursery| {
///     let tasks = [(); 3].map(|()| nursery.spawn(|cx| meeting.wait(cx).unwrap()));
///     Ok(tasks.map(|task| task.join(cx).unwrap()).iter().filter(|leads| **leads).count())
/// })).unwrap().unwrap();
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    size: usize,
    state: SpinLock<State>,
}

struct State {
    there: usize,
    waiting: List<()>,
}

// SAFETY: the pointers are to nodes of waiters, under the lock.
unsafe impl Send for State {}

impl Barrier {
    /// A barrier for `size` tasks; with 0 or 1 nobody ever waits.
    #[must_use]
    pub fn new(size: usize) -> Barrier {
        Barrier { size, state: SpinLock::new(State { there: 0, waiting: List::new() }) }
    }

    /// Waits until `size` tasks are there; true for exactly one of them.
    #[track_caller]
    pub fn wait(&self, cx: &Cx) -> Result<bool, Cancelled> {
        let at = Location::caller();
        charge(cx, at)?;
        let mut state = self.state.lock();
        if state.there + 1 >= self.size {
            // Tasks that come from now on wait for the next meeting, so the list of this one is taken over first.
            let mut met = std::mem::replace(&mut *state, State { there: 0, waiting: List::new() });
            // Under the lock, so that a task that is cancelled meanwhile finds itself served.
            // SAFETY: the lock is held.
            while let Some(node) = unsafe { met.waiting.pop() } {
                let waiter = node.mark(SERVED, cx.shared());
                waiter.wake(Some(cx.worker()));
            }
            return Ok(true);
        }
        state.there += 1;
        let node = Node::new(cx.waiter(), Some(()), ptr::null(), 0);
        // SAFETY: the node stays here until it is served or taken out below.
        unsafe { state.waiting.push(&node) };
        drop(state);
        if wait(cx, &node, None, at) != End::Served {
            let mut state = self.state.lock();
            if node.listed.get() {
                // SAFETY: it is in this list, and the lock is held.
                unsafe { state.waiting.remove(&node) };
                state.there -= 1;
            }
            drop(state);
            if node.state.load(Ordering::Acquire) == WAITING {
                cx.stop_if_doomed();
                return Err(Cancelled);
            }
        }
        Ok(false)
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("size", &self.size).finish_non_exhaustive()
    }
}
