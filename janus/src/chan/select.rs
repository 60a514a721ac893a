//! Waiting for the first of several channel operations.
//!
//! All channels are locked, in the order of their addresses, while the arms are tried and, if none is ready, while the
//! select joins all their waiters; so no message can slip in between. Then it sleeps; whoever serves one of the arms wins
//! `choice` first (invariant 3 of the channel), and the select leaves the other channels when it wakes.

use super::{Attempt, CLOSED, Node, OPEN, Receiver, RecvError, SendError, Sender};
use crate::cx::Cx;
use crate::error::Cancelled;
use crate::runtime::Shared;
use crate::task::Wait;
use crate::waiter::{Waiter, Wakeup};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most arms of one select.
const MOST: usize = 64;

/// What a select ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The arm at this index is done: ask it for its result.
    Arm(usize),
    /// The time is over.
    Timeout,
}

mod sealed {
    use super::*;

    /// What a select does with an arm. All under the channel's lock, but `address`.
    pub trait Operation {
        fn address(&self) -> usize;
        /// Drops what an earlier select left: the user's code, which may panic or use the channel, so before anything is
        /// locked or joined.
        fn forget(&mut self);
        fn lock(&self);
        /// # Safety
        /// The lock is held.
        unsafe fn unlock(&self);
        /// Tries it: None, it would have to wait; else whom to wake.
        ///
        /// # Safety
        /// The lock is held.
        unsafe fn attempt(&mut self, mine: *const Shared) -> Option<Option<Wakeup>>;
        /// # Safety
        /// The lock is held, and the arm stays where it is until `leave`.
        unsafe fn join(&mut self, waiter: Waiter, choice: *const AtomicUsize, arm: usize);
        /// Out of the waiters, if it is still there; keeps what it got.
        fn leave(&mut self);
    }
}

/// One operation of a [`Cx::select`]: [`Sender::arm`] or [`Receiver::arm`].
pub trait Arm: sealed::Operation {}

/// See [`Receiver::arm`].
pub struct RecvArm<'a, T> {
    pub(super) receiver: &'a Receiver<T>,
    pub(super) node: Option<Node<T>>,
    pub(super) result: Option<Result<T, RecvError>>,
}

/// See [`Sender::arm`].
pub struct SendArm<'a, T> {
    pub(super) sender: &'a Sender<T>,
    pub(super) node: Option<Node<T>>,
    pub(super) message: Option<T>,
    pub(super) closed: bool,
}

impl<T> RecvArm<'_, T> {
    /// The message, if this arm was selected; `Empty` if it was not.
    pub fn into_result(self) -> Result<T, RecvError> {
        self.result.unwrap_or(Err(RecvError::Empty))
    }
}

impl<T> SendArm<'_, T> {
    /// Ok if this arm was selected and sent; else the message comes back: `Full` means that it was not selected.
    pub fn into_result(self) -> Result<(), SendError<T>> {
        match self.message {
            None => Ok(()),
            Some(message) if self.closed => Err(SendError::Closed(message)),
            Some(message) => Err(SendError::Full(message)),
        }
    }
}

impl<T: Send> sealed::Operation for RecvArm<'_, T> {
    fn address(&self) -> usize {
        std::ptr::from_ref(&*self.receiver.channel).addr()
    }

    fn forget(&mut self) {
        drop(self.result.take());
    }

    fn lock(&self) {
        self.receiver.channel.state.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.receiver.channel.state.give() };
    }

    unsafe fn attempt(&mut self, mine: *const Shared) -> Option<Option<Wakeup>> {
        // SAFETY: the caller holds the lock.
        match unsafe { self.receiver.channel.state.held() }.receive(mine) {
            Attempt::Taken(message, waiter) => {
                self.result = Some(Ok(message));
                Some(waiter)
            }
            Attempt::Closed => {
                self.result = Some(Err(RecvError::Closed));
                Some(None)
            }
            _ => None,
        }
    }

    unsafe fn join(&mut self, waiter: Waiter, choice: *const AtomicUsize, arm: usize) {
        let node = self.node.insert(Node::new(waiter, None, choice, arm));
        // SAFETY: the caller holds the lock, and the node stays until `leave`.
        unsafe { self.receiver.channel.state.held().receivers.push(node) };
    }

    fn leave(&mut self) {
        let Some(node) = &self.node else { return };
        let mut state = self.receiver.channel.state.lock();
        if node.listed.get() {
            // SAFETY: it is in this list, and the lock is held.
            unsafe { state.receivers.remove(node) };
        }
        drop(state);
        // SAFETY: out of the list, it is ours alone.
        let message = unsafe { (*node.message.get()).take() };
        self.result = match message {
            Some(message) => Some(Ok(message)),
            None if node.state.load(Ordering::Acquire) == CLOSED => Some(Err(RecvError::Closed)),
            None => None,
        };
        self.node = None;
    }
}

impl<T: Send> sealed::Operation for SendArm<'_, T> {
    fn address(&self) -> usize {
        std::ptr::from_ref(&*self.sender.channel).addr()
    }

    fn forget(&mut self) {}

    fn lock(&self) {
        self.sender.channel.state.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.sender.channel.state.give() };
    }

    unsafe fn attempt(&mut self, mine: *const Shared) -> Option<Option<Wakeup>> {
        // It has sent already: there is nothing to choose.
        self.message.as_ref()?;
        // SAFETY: the caller holds the lock.
        match unsafe { self.sender.channel.state.held() }.send(&mut self.message, mine) {
            Attempt::Done(waiter) => Some(waiter),
            Attempt::Closed => {
                self.closed = true;
                Some(None)
            }
            _ => None,
        }
    }

    unsafe fn join(&mut self, waiter: Waiter, choice: *const AtomicUsize, arm: usize) {
        let Some(message) = self.message.take() else { return };
        let node = self.node.insert(Node::new(waiter, Some(message), choice, arm));
        // SAFETY: the caller holds the lock, and the node stays until `leave`.
        unsafe { self.sender.channel.state.held().senders.push(node) };
    }

    fn leave(&mut self) {
        let Some(node) = &self.node else { return };
        let mut state = self.sender.channel.state.lock();
        if node.listed.get() {
            // SAFETY: it is in this list, and the lock is held.
            unsafe { state.senders.remove(node) };
        }
        drop(state);
        // SAFETY: out of the list, it is ours alone.
        self.message = unsafe { (*node.message.get()).take() };
        self.closed = node.state.load(Ordering::Acquire) == CLOSED;
        self.node = None;
    }
}

impl<T: Send> Arm for RecvArm<'_, T> {}
impl<T: Send> Arm for SendArm<'_, T> {}

impl Cx {
    /// Waits for the first of several channel operations, or until `timeout` is over (`None`: for ever), and does exactly
    /// that one. It costs one channel operation. Of several that are ready, any may be chosen. An arm that has sent its
    /// message is never chosen again; one that has received drops what it got and receives anew.
    ///
    /// # Panics
    /// If there are more than 64 arms.
    #[track_caller]
    pub fn select(
        &self,
        arms: &mut [&mut dyn Arm],
        timeout: Option<Duration>,
    ) -> Result<Selected, Cancelled> {
        assert!(arms.len() <= MOST, "a select has at most {MOST} arms");
        let at = Location::caller();
        super::charge(self, at)?;
        for arm in arms.iter_mut() {
            arm.forget();
        }
        let choice = AtomicUsize::new(OPEN);
        if let Some(ready) = self.attempt_or_join(arms, &choice, timeout == Some(Duration::ZERO)) {
            return Ok(ready);
        }
        let until = timeout.map(|timeout| self.deadline(timeout));
        let timer = until.map(|until| self.arm(until));
        let mut result = Ok(Selected::Timeout);
        loop {
            if choice.load(Ordering::Acquire) != OPEN {
                break;
            }
            if until.is_some_and(|until| self.shared().now_ns() >= until) {
                break;
            }
            let wait = if until.is_some() { Wait::Sleep } else { Wait::Select };
            if self.block(wait, at).is_err() {
                result = Err(Cancelled);
                break;
            }
        }
        if let Some(timer) = timer {
            self.shared().timers.disarm(timer);
        }
        for arm in arms.iter_mut() {
            arm.leave();
        }
        // After `leave` nobody can choose any more.
        match choice.load(Ordering::Acquire) {
            OPEN => result,
            chosen => Ok(Selected::Arm(chosen)),
        }
    }

    /// With every channel locked: does the first arm that is ready, from a random one on; else joins all of them.
    fn attempt_or_join(
        &self,
        arms: &mut [&mut dyn Arm],
        choice: &AtomicUsize,
        poll: bool,
    ) -> Option<Selected> {
        let mut order: [u8; MOST] = std::array::from_fn(|index| index as u8);
        let order = &mut order[..arms.len()];
        order.sort_unstable_by_key(|&index| arms[usize::from(index)].address());
        let mut held = 0;
        for &index in order.iter() {
            let arm = &arms[usize::from(index)];
            // Two arms of one channel lock it once.
            if arm.address() != held {
                held = arm.address();
                arm.lock();
            }
        }
        let start = if arms.is_empty() { 0 } else { self.random() as usize % arms.len() };
        let mut found = None;
        for turn in 0..arms.len() {
            let index = (start + turn) % arms.len();
            // SAFETY: all locks are held.
            if let Some(waiter) = unsafe { arms[index].attempt(self.shared()) } {
                found = Some((index, waiter));
                break;
            }
        }
        if found.is_none() && !poll {
            for (index, arm) in arms.iter_mut().enumerate() {
                // SAFETY: all locks are held; the arms are borrowed until `leave`.
                unsafe { arm.join(self.waiter(), choice, index) };
            }
        }
        let mut held = 0;
        for &index in order.iter() {
            let arm = &arms[usize::from(index)];
            if arm.address() != held {
                held = arm.address();
                // SAFETY: it is held.
                unsafe { arm.unlock() };
            }
        }
        match found {
            Some((index, waiter)) => {
                super::wake(waiter, Some(self.worker()));
                Some(Selected::Arm(index))
            }
            None if poll => Some(Selected::Timeout),
            None => None,
        }
    }
}
