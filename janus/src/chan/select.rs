//! Waiting for the first of several channel operations.
//!
//! All channels are locked, in the order of their addresses, while the arms are tried and, if none is ready, while the
//! select joins all their waiters; so no message can slip in between. Then it sleeps; whoever serves one of the arms wins
//! `choice` first (invariant 3 of the channel), and the select leaves the other channels when it wakes.
//!
//! While an arm is in a list, other threads write into its node, which lies in the arm. So nobody has a `&mut` to an arm
//! meanwhile: a select uses shared references from its beginning to its end, and what changes lies in `Slot`s.

use super::{Attempt, CLOSED, Node, OPEN, Receiver, RecvError, SendError, Sender};
use crate::cx::Cx;
use crate::error::Cancelled;
use crate::runtime::Shared;
use crate::task::Wait;
use crate::waiter::{Waiter, Wakeup};
use std::cell::{Cell, UnsafeCell};
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

    /// What a select does with an arm, which is its own until `leave`. All under the channel's lock, but `address`.
    pub trait Operation {
        fn address(&self) -> usize;
        /// Drops what an earlier select left: the user's code, which may panic or use the channel, so before anything is
        /// locked or joined.
        fn forget(&self);
        fn lock(&self);
        /// # Safety
        /// The lock is held.
        unsafe fn unlock(&self);
        /// Tries it: None, it would have to wait; else whom to wake.
        ///
        /// # Safety
        /// The lock is held.
        unsafe fn attempt(&self, mine: *const Shared) -> Option<Option<Wakeup>>;
        /// # Safety
        /// The lock is held, and the arm stays where it is until `leave`.
        unsafe fn join(&self, waiter: Waiter, choice: *const AtomicUsize, arm: usize);
        /// Out of the waiters, if it is still there; keeps what it got.
        fn leave(&self);
    }
}

/// One operation of a [`Cx::select`]: [`Sender::arm`] or [`Receiver::arm`].
pub trait Arm: sealed::Operation {}

/// What a select changes of an arm by a shared reference. An arm is neither `Sync` nor lent to anybody while it is in a
/// select, which is the only one to touch this; others touch what is in a listed node.
pub(super) struct Slot<T>(UnsafeCell<T>);

impl<T> Slot<T> {
    pub(super) fn new(value: T) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    fn set(&self, value: T) {
        drop(self.replace(value));
    }

    fn replace(&self, value: T) -> T {
        // SAFETY: see the type; no reference to the value is kept by anybody, and if it is a node, it is in no list.
        unsafe { self.0.get().replace(value) }
    }
}

impl<T> Slot<Option<T>> {
    fn take(&self) -> Option<T> {
        self.replace(None)
    }

    /// # Safety
    /// Nobody replaces the value as long as the answer is used.
    unsafe fn get(&self) -> Option<&T> {
        // SAFETY: the caller's.
        unsafe { (*self.0.get()).as_ref() }
    }
}

/// See [`Receiver::arm`].
pub struct RecvArm<'a, T> {
    pub(super) receiver: &'a Receiver<T>,
    pub(super) node: Slot<Option<Node<T>>>,
    pub(super) result: Slot<Option<Result<T, RecvError>>>,
}

/// See [`Sender::arm`].
pub struct SendArm<'a, T> {
    pub(super) sender: &'a Sender<T>,
    pub(super) node: Slot<Option<Node<T>>>,
    pub(super) message: Slot<Option<T>>,
    pub(super) closed: Cell<bool>,
}

impl<T> RecvArm<'_, T> {
    /// The message, if this arm was selected; `Empty` if it was not.
    pub fn into_result(self) -> Result<T, RecvError> {
        self.result.take().unwrap_or(Err(RecvError::Empty))
    }
}

impl<T> SendArm<'_, T> {
    /// Ok if this arm was selected and sent; else the message comes back: `Full` means that it was not selected.
    pub fn into_result(self) -> Result<(), SendError<T>> {
        match self.message.take() {
            None => Ok(()),
            Some(message) if self.closed.get() => Err(SendError::Closed(message)),
            Some(message) => Err(SendError::Full(message)),
        }
    }
}

impl<T: Send> sealed::Operation for RecvArm<'_, T> {
    fn address(&self) -> usize {
        std::ptr::from_ref(&*self.receiver.channel).addr()
    }

    fn forget(&self) {
        drop(self.result.take());
    }

    fn lock(&self) {
        self.receiver.channel.state.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.receiver.channel.state.give() };
    }

    unsafe fn attempt(&self, mine: *const Shared) -> Option<Option<Wakeup>> {
        // SAFETY: the caller holds the lock.
        match unsafe { self.receiver.channel.state.held() }.receive(mine) {
            Attempt::Taken(message, waiter) => {
                self.result.set(Some(Ok(message)));
                Some(waiter)
            }
            Attempt::Closed => {
                self.result.set(Some(Err(RecvError::Closed)));
                Some(None)
            }
            _ => None,
        }
    }

    unsafe fn join(&self, waiter: Waiter, choice: *const AtomicUsize, arm: usize) {
        self.node.set(Some(Node::new(waiter, None, choice, arm)));
        // SAFETY: the caller holds the lock, and the node stays until `leave`.
        unsafe {
            if let Some(node) = self.node.get() {
                self.receiver.channel.state.held().receivers.push(node);
            }
        }
    }

    fn leave(&self) {
        // SAFETY: it is replaced below, when it is out of the list.
        let Some(node) = (unsafe { self.node.get() }) else { return };
        let mut state = self.receiver.channel.state.lock();
        if node.listed.get() {
            // SAFETY: it is in this list, and the lock is held.
            unsafe { state.receivers.remove(node) };
        }
        drop(state);
        // SAFETY: out of the list, it is ours alone.
        let message = unsafe { (*node.message.get()).take() };
        self.result.set(match message {
            Some(message) => Some(Ok(message)),
            None if node.state.load(Ordering::Acquire) == CLOSED => Some(Err(RecvError::Closed)),
            None => None,
        });
        self.node.set(None);
    }
}

impl<T: Send> sealed::Operation for SendArm<'_, T> {
    fn address(&self) -> usize {
        std::ptr::from_ref(&*self.sender.channel).addr()
    }

    fn forget(&self) {}

    fn lock(&self) {
        self.sender.channel.state.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.sender.channel.state.give() };
    }

    unsafe fn attempt(&self, mine: *const Shared) -> Option<Option<Wakeup>> {
        // One that has sent already has nothing to choose.
        let mut message = Some(self.message.take()?);
        // SAFETY: the caller holds the lock.
        let attempt = unsafe { self.sender.channel.state.held() }.send(&mut message, mine);
        self.message.set(message);
        match attempt {
            Attempt::Done(waiter) => Some(waiter),
            Attempt::Closed => {
                self.closed.set(true);
                Some(None)
            }
            _ => None,
        }
    }

    unsafe fn join(&self, waiter: Waiter, choice: *const AtomicUsize, arm: usize) {
        let Some(message) = self.message.take() else { return };
        self.node.set(Some(Node::new(waiter, Some(message), choice, arm)));
        // SAFETY: the caller holds the lock, and the node stays until `leave`.
        unsafe {
            if let Some(node) = self.node.get() {
                self.sender.channel.state.held().senders.push(node);
            }
        }
    }

    fn leave(&self) {
        // SAFETY: it is replaced below, when it is out of the list.
        let Some(node) = (unsafe { self.node.get() }) else { return };
        let mut state = self.sender.channel.state.lock();
        if node.listed.get() {
            // SAFETY: it is in this list, and the lock is held.
            unsafe { state.senders.remove(node) };
        }
        drop(state);
        // SAFETY: out of the list, it is ours alone.
        self.message.set(unsafe { (*node.message.get()).take() });
        self.closed.set(node.state.load(Ordering::Acquire) == CLOSED);
        self.node.set(None);
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
        // Shared from here on: see the module.
        let arms: &[&mut dyn Arm] = arms;
        for arm in arms {
            arm.forget();
        }
        let choice = AtomicUsize::new(OPEN);
        if let Some(ready) = self.attempt_or_join(arms, &choice, timeout == Some(Duration::ZERO)) {
            return Ok(ready);
        }
        let until = timeout.map(|timeout| self.until(timeout));
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
        for arm in arms {
            arm.leave();
        }
        // After `leave` nobody can choose any more.
        match choice.load(Ordering::Acquire) {
            OPEN => {
                if result.is_err() {
                    self.stop_if_doomed();
                }
                result
            }
            chosen => Ok(Selected::Arm(chosen)),
        }
    }

    /// With every channel locked: does the first arm that is ready, from a random one on; else joins all of them.
    fn attempt_or_join(&self, arms: &[&mut dyn Arm], choice: &AtomicUsize, poll: bool) -> Option<Selected> {
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
            for (index, arm) in arms.iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chan::channel;

    /// A node that another thread serves lies in its arm: this does not compile if anything that a select does between
    /// the first and the last needs a `&mut` to the arm, which would promise the compiler that nobody else writes there.
    #[test]
    fn an_arm_in_a_list_is_shared() {
        fn only_shared(arm: &dyn sealed::Operation, choice: &AtomicUsize, waiter: Waiter) {
            arm.forget();
            arm.lock();
            // SAFETY: the lock is held, and the arm stays.
            unsafe {
                assert!(arm.attempt(std::ptr::null()).is_none());
                arm.join(waiter, choice, 3);
                arm.unlock();
            }
        }
        let (sender, receiver) = channel::<String>(0);
        let waiter = Waiter::thread(crate::waiter::Parker::mine());
        let choice = AtomicUsize::new(OPEN);
        let arm = receiver.arm();
        only_shared(&arm, &choice, waiter);
        std::thread::scope(|threads| {
            // Served from another thread while this one holds its reference.
            threads.spawn(|| sender.send_blocking("served".into()).unwrap());
        });
        sealed::Operation::leave(&arm);
        assert_eq!(choice.into_inner(), 3);
        assert_eq!(arm.into_result().unwrap(), "served");
        let (choice, arm) = (AtomicUsize::new(OPEN), sender.arm("sent".into()));
        only_shared(&arm, &choice, waiter);
        std::thread::scope(|threads| {
            threads.spawn(|| assert_eq!(receiver.recv_blocking().unwrap(), "sent"));
        });
        sealed::Operation::leave(&arm);
        assert!(arm.into_result().is_ok());
    }
}
