//! Lists of tasks and threads that wait for something that has a lock: a channel, a semaphore, a condition variable.
//!
//! Invariants:
//! 1. A waiter has a node in a list, which is guarded by the lock of what it waits for; the node lies in the waiter's
//!    frame and is out of the list before the frame ends.
//! 2. A thread that serves a waiter takes the node out, writes what the waiter gets, copies the waiter out of the node,
//!    and only then marks the node: from that moment the frame may be gone. It wakes the waiter last.
//! 3. Of a select's nodes at most one is served: serving a node begins with winning `choice`.

use crate::cx::Cx;
use crate::runtime::Shared;
use crate::task::Wait;
use crate::waiter::{Waiter, Wakeup};
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

pub(crate) const WAITING: u8 = 0;
pub(crate) const SERVED: u8 = 1;
pub(crate) const CLOSED: u8 = 2;

/// No arm of a select is chosen yet.
pub(crate) const OPEN: usize = usize::MAX;

/// One waiter (invariant 1).
pub(crate) struct Node<T> {
    waiter: Waiter,
    pub(crate) state: AtomicU8,
    pub(crate) message: UnsafeCell<Option<T>>,
    before: Cell<*const Node<T>>,
    after: Cell<*const Node<T>>,
    pub(crate) listed: Cell<bool>,
    /// The select that the node belongs to (null if none), and its arm there.
    choice: *const AtomicUsize,
    arm: usize,
}

impl<T> Node<T> {
    pub(crate) fn new(waiter: Waiter, message: Option<T>, choice: *const AtomicUsize, arm: usize) -> Node<T> {
        Node {
            waiter,
            state: AtomicU8::new(WAITING),
            message: UnsafeCell::new(message),
            before: Cell::new(ptr::null()),
            after: Cell::new(ptr::null()),
            listed: Cell::new(false),
            choice,
            arm,
        }
    }

    /// Whether the caller may serve this node (invariant 3).
    fn win(&self) -> bool {
        // SAFETY: the select's frame is there as long as the node is listed, and the caller holds the lock.
        match unsafe { self.choice.as_ref() } {
            None => true,
            Some(choice) => {
                choice.compare_exchange(OPEN, self.arm, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
        }
    }

    /// Marks the node, after copying the waiter out of it (invariant 2).
    #[inline]
    pub(crate) fn mark(&self, state: u8, mine: *const Shared) -> Wakeup {
        let waiter = Wakeup::new(self.waiter, mine);
        self.state.store(state, Ordering::Release);
        waiter
    }
}

/// A queue of waiters, the longest-waiting first.
pub(crate) struct List<T> {
    first: *const Node<T>,
    last: *const Node<T>,
}

impl<T> List<T> {
    pub(crate) const fn new() -> List<T> {
        List { first: ptr::null(), last: ptr::null() }
    }

    /// # Safety
    /// The node stays where it is until it is out of the list; the caller holds the lock.
    pub(crate) unsafe fn push(&mut self, node: &Node<T>) {
        node.before.set(self.last);
        node.after.set(ptr::null());
        node.listed.set(true);
        // SAFETY: invariant 1.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.after.set(node),
            None => self.first = node,
        }
        self.last = node;
    }

    /// # Safety
    /// The node is in this list, and the caller holds the lock.
    pub(crate) unsafe fn remove(&mut self, node: &Node<T>) {
        let (before, after) = (node.before.get(), node.after.get());
        // SAFETY: invariant 1.
        unsafe {
            match before.as_ref() {
                Some(before) => before.after.set(after),
                None => self.first = after,
            }
            match after.as_ref() {
                Some(after) => after.before.set(before),
                None => self.last = before,
            }
        }
        node.listed.set(false);
    }

    /// Takes the first waiter that may be served.
    ///
    /// # Safety
    /// The caller holds the lock, and keeps it until it has marked the node.
    pub(crate) unsafe fn pop<'a>(&mut self) -> Option<&'a Node<T>>
    where
        T: 'a,
    {
        loop {
            // SAFETY: invariant 1: the node is there until it is marked.
            let node = unsafe { self.first.as_ref() }?;
            // SAFETY: it is the first of this list.
            unsafe { self.remove(node) };
            if node.win() {
                return Some(node);
            }
        }
    }

    /// The waiter at the head of the list.
    ///
    /// # Safety
    /// The caller holds the lock, and keeps it while it looks.
    pub(crate) unsafe fn first<'a>(&self) -> Option<&'a Node<T>>
    where
        T: 'a,
    {
        // SAFETY: invariant 1.
        unsafe { self.first.as_ref() }
    }
}

/// How a wait for a node ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Served,
    Cancelled,
    TimedOut,
}

/// Sleeps until the node is served, the task is cancelled, or the time is over. The caller takes the node out of its
/// list, under the lock, and looks whether it was served after all.
pub(crate) fn wait<T>(cx: &Cx, node: &Node<T>, until: Option<u64>, at: &'static Location<'static>) -> End {
    let timer = until.map(|until| cx.arm(until));
    // A wait with a time limit ends by itself, so it counts as a sleep.
    let kind = if until.is_some() { Wait::Sleep } else { Wait::Lock };
    let end = loop {
        if node.state.load(Ordering::Acquire) != WAITING {
            break End::Served;
        }
        if until.is_some_and(|until| cx.shared().now_ns() >= until) {
            break End::TimedOut;
        }
        if cx.block(kind, at).is_err() {
            break End::Cancelled;
        }
    };
    if let Some(timer) = timer {
        cx.shared().timers.disarm(timer);
    }
    end
}
