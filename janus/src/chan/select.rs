//! Waiting for the first of several events: channel operations, ends of tasks, times, sockets, signals.
//!
//! Arms are of two kinds. A channel's arm is *served*: the task at the other end of the channel does the operation for
//! the select. The others are *polled*: something wakes the select, which looks whether they are ready, and the caller
//! then does the operation.
//!
//! All channels are locked, in the order of their addresses, while the arms are tried and, if none is ready, while the
//! select joins all their lists of waiters; so no message can slip in between. Then the select sleeps. The task that
//! serves one of the arms first wins `choice` (invariant 3 of `waiters.rs`), and the select leaves the other channels
//! when it wakes.
//!
//! While an arm is in a list, other threads write into its node, which lies in the arm. So there must be no `&mut` to
//! an arm meanwhile: a select uses shared references from its beginning to its end, and what changes lies in `Slot`s.

use super::{Attempt, CLOSED, Node, OPEN, Receiver, RecvError, SendError, Sender, ensure_room};
use crate::cx::Cx;
use crate::error::Cancelled;
use crate::nursery::Nursery;
use crate::runtime::Shared;
use crate::scope::FOREIGN_LOOK;
use crate::task::Wait;
use crate::timers::Timer;
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

pub(crate) mod sealed {
    use super::*;

    /// What a select does with a served arm, which belongs to the select until `leave`. Only `unlock`, `attempt` and
    /// `join` are called under the channel's lock.
    pub trait Operation {
        fn address(&self) -> usize;
        /// Drops what an earlier select left in the arm. That runs the user's code, which may panic or use the channel,
        /// so it happens before anything is locked or joined.
        fn forget(&self);
        fn lock(&self);
        /// # Safety
        /// The lock is held.
        unsafe fn unlock(&self);
        /// Tries the operation. `None`: it would have to wait. Otherwise it is done, and the waiter, if any, is to be
        /// woken.
        ///
        /// # Safety
        /// The lock is held.
        unsafe fn attempt(&self, mine: *const Shared) -> Option<Option<Wakeup>>;
        /// # Safety
        /// The lock is held, and the arm stays where it is until `leave`.
        unsafe fn join(&self, waiter: Waiter, choice: *const AtomicUsize, arm: usize);
        /// Takes the arm out of the list of waiters, if it is still there, and keeps what it got.
        fn leave(&self);
    }

    /// What a select does with a polled arm.
    pub trait Poll {
        /// Whether the arm is ready. Called without any lock, on the fiber of the task.
        fn is_ready(&self, cx: &Cx) -> bool;
        /// From now on the task is woken when the arm may be ready. No code of the user's runs until `end`.
        fn begin(&self, cx: &Cx);
        /// Ends what `begin` began.
        fn end(&self, cx: &Cx);
        /// Whether the arm becomes ready without a task of the same nursery having to act.
        fn is_outside(&self) -> bool {
            true
        }
        /// The address of a nursery whose failure ends this very wait, by making the arm ready.
        fn nursery(&self) -> *const () {
            std::ptr::null()
        }
        /// Whether nothing can wake the task for this arm, so that it has to poll from time to time.
        fn needs_looks(&self, _cx: &Cx) -> bool {
            false
        }
    }

    /// An arm of either kind.
    pub trait Either {
        fn served(&self) -> Option<&dyn Operation> {
            None
        }
        fn polled(&self) -> Option<&dyn Poll> {
            None
        }
    }
}

/// One of the events that a [`Cx::select`] waits for: [`Sender::arm`], [`Receiver::arm`],
/// [`Handle::arm`](crate::Handle::arm), [`Cx::after`], [`TcpListener::arm`](crate::net::TcpListener::arm),
/// [`TcpStream::arm`](crate::net::TcpStream::arm), [`Signals::arm`](crate::signal::Signals::arm).
pub trait Arm: sealed::Either {}

/// A part of an arm that a select changes through a shared reference. An arm is neither `Sync` nor lent to anybody
/// while it is in a select, so only the select touches this; other threads touch only what is in a listed node.
pub(super) struct Slot<T>(UnsafeCell<T>);

impl<T> Slot<T> {
    pub(super) fn new(value: T) -> Slot<T> {
        Slot(UnsafeCell::new(value))
    }

    fn set(&self, value: T) {
        drop(self.replace(value));
    }

    fn replace(&self, value: T) -> T {
        // SAFETY: see the type; no reference to the value is kept, and if it is a node, it is in no list.
        unsafe { self.0.get().replace(value) }
    }
}

impl<T> Slot<Option<T>> {
    fn take(&self) -> Option<T> {
        self.replace(None)
    }

    /// # Safety
    /// The value is not replaced as long as the returned reference is used.
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
    /// Ok if this arm was selected and sent; otherwise the message comes back: `Full` means that the arm was not
    /// selected.
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
        ensure_room::<T>();
        drop(self.result.take());
    }

    fn lock(&self) {
        self.receiver.channel.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.receiver.channel.give() };
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
        let mut state = self.receiver.channel.lock();
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

    fn forget(&self) {
        ensure_room::<T>();
    }

    fn lock(&self) {
        self.sender.channel.take();
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's.
        unsafe { self.sender.channel.give() };
    }

    unsafe fn attempt(&self, mine: *const Shared) -> Option<Option<Wakeup>> {
        // An arm that has sent its message already cannot be chosen again.
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
        let mut state = self.sender.channel.lock();
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

impl<T: Send> sealed::Either for RecvArm<'_, T> {
    fn served(&self) -> Option<&dyn sealed::Operation> {
        Some(self)
    }
}

impl<T: Send> sealed::Either for SendArm<'_, T> {
    fn served(&self) -> Option<&dyn sealed::Operation> {
        Some(self)
    }
}

impl Cx {
    /// Waits for the first of several events, or until `timeout` is over (`None`: for ever). It costs one channel
    /// operation. If several are ready, any of them may be chosen.
    ///
    /// - The operation of a channel's arm is done when the arm is chosen, and only then: ask the arm for its result. An
    ///   arm that has sent its message is never chosen again; an arm that has received drops what it got and receives
    ///   anew.
    /// - The other arms say that an operation will not wait: [`join`](crate::Handle::join), `accept`, `read`,
    ///   [`Signals::next`](crate::signal::Signals::next). (If several tasks wait for one socket, another may have been
    ///   faster.)
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
        // Shared references from here on: see the module.
        let arms: &[&mut dyn Arm] = arms;
        for arm in arms.iter().filter_map(|arm| arm.served()) {
            arm.forget();
        }
        let choice = AtomicUsize::new(OPEN);
        let poll = timeout == Some(Duration::ZERO);
        // Neither kind is always tried first: an arm of one kind that is always ready would starve the other kind.
        let polled_first = self.random().is_multiple_of(2);
        if polled_first && let Some(ready) = self.find_ready(arms) {
            return Ok(Selected::Arm(ready));
        }
        if let Some(chosen) = self.attempt_or_join(arms, &choice, poll) {
            if chosen == Selected::Timeout
                && let Some(ready) = self.find_ready(arms)
            {
                return Ok(Selected::Arm(ready));
            }
            return Ok(chosen);
        }
        for arm in arms.iter().filter_map(|arm| arm.polled()) {
            arm.begin(self);
        }
        let result = self.wait_for_choice(arms, &choice, timeout, at);
        for arm in arms {
            match (arm.served(), arm.polled()) {
                (Some(served), _) => served.leave(),
                (_, Some(polled)) => polled.end(self),
                _ => {}
            }
        }
        // After `leave` no arm can be chosen any more.
        match choice.load(Ordering::Acquire) {
            OPEN => {
                if result.is_err() {
                    self.stop_if_doomed();
                }
                result.map(|()| Selected::Timeout)
            }
            chosen => Ok(Selected::Arm(chosen)),
        }
    }

    /// The first polled arm that is ready, beginning with a random one.
    fn find_ready(&self, arms: &[&mut dyn Arm]) -> Option<usize> {
        let start = if arms.is_empty() { 0 } else { self.random() as usize % arms.len() };
        let mut turns = (0..arms.len()).map(|turn| (start + turn) % arms.len());
        turns.find(|&index| arms[index].polled().is_some_and(|arm| arm.is_ready(self)))
    }

    /// Sleeps until an arm is chosen, by the task that serves it or because it is ready, or until the time is over.
    fn wait_for_choice(
        &self,
        arms: &[&mut dyn Arm],
        choice: &AtomicUsize,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> Result<(), Cancelled> {
        let until = timeout.map(|timeout| self.until(timeout));
        let timer = until.map(|until| self.arm(until));
        let polled = || arms.iter().filter_map(|arm| arm.polled());
        let outside = until.is_some() || polled().any(sealed::Poll::is_outside);
        let looks = polled().any(|arm| arm.needs_looks(self));
        let except = polled().map(sealed::Poll::nursery).find(|nursery| !nursery.is_null());
        let wait = if outside { Wait::Sleep } else { Wait::Select };
        let result = loop {
            if choice.load(Ordering::Acquire) != OPEN {
                break Ok(());
            }
            if let Some(ready) = self.find_ready(arms) {
                // A sender or receiver may be faster, and then its choice counts.
                let _ = choice.compare_exchange(OPEN, ready, Ordering::AcqRel, Ordering::Acquire);
                break Ok(());
            }
            if until.is_some_and(|until| self.shared().now_ns() >= until) {
                break Ok(());
            }
            let look = looks.then(|| self.arm(self.until(FOREIGN_LOOK)));
            let slept = self.block_but(except.unwrap_or(std::ptr::null()).cast::<Nursery>(), wait, at);
            if let Some(look) = look {
                self.shared().timers.disarm(look);
            }
            if slept.is_err() {
                break slept;
            }
        };
        if let Some(timer) = timer {
            self.shared().timers.disarm(timer);
        }
        result
    }

    /// With every channel locked: does the first served arm that is ready, beginning with a random one; if there is
    /// none, joins all of them.
    fn attempt_or_join(&self, arms: &[&mut dyn Arm], choice: &AtomicUsize, poll: bool) -> Option<Selected> {
        let address = |index: u8| arms[usize::from(index)].served().map_or(0, sealed::Operation::address);
        let mut order: [u8; MOST] = std::array::from_fn(|index| index as u8);
        let order = &mut order[..arms.len()];
        order.sort_unstable_by_key(|&index| address(index));
        // Two arms of one channel lock it once; arms without a channel come first in the order, and lock nothing.
        let once = |(held, &index): (&mut usize, &u8)| {
            let new = address(index) != *held;
            *held = address(index);
            new.then(|| arms[usize::from(index)].served()).flatten()
        };
        let mut held = 0;
        for index in order.iter() {
            if let Some(arm) = once((&mut held, index)) {
                arm.lock();
            }
        }
        let start = if arms.is_empty() { 0 } else { self.random() as usize % arms.len() };
        let mut found = None;
        for turn in 0..arms.len() {
            let index = (start + turn) % arms.len();
            // SAFETY: all locks are held.
            if let Some(waiter) = arms[index].served().and_then(|arm| unsafe { arm.attempt(self.shared()) }) {
                found = Some((index, waiter));
                break;
            }
        }
        if found.is_none() && !poll {
            for (index, arm) in arms.iter().enumerate() {
                if let Some(arm) = arm.served() {
                    // SAFETY: all locks are held; the arms are borrowed until `leave`.
                    unsafe { arm.join(self.waiter(), choice, index) };
                }
            }
        }
        let mut held = 0;
        for index in order.iter() {
            if let Some(arm) = once((&mut held, index)) {
                // SAFETY: its lock is held.
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

    /// An arm of a [`Cx::select`] that is ready from `time` from now on: one arm may be used for many selects.
    ///
    /// ```
    /// # use janus::{Config, Runtime, Selected, channel};
    /// # use std::time::Duration;
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// let chosen = runtime.run(|cx| {
    ///     let (_silent, never) = channel::<u32>(0);
    ///     let (mut message, mut time) = (never.arm(), cx.after(Duration::from_millis(1)));
    ///     cx.select(&mut [&mut message, &mut time], None)
    /// }).unwrap();
    /// assert_eq!(chosen, Ok(Selected::Arm(1)));
    /// ```
    #[must_use]
    pub fn after(&self, time: Duration) -> TimeArm {
        TimeArm { until: self.until(time), timer: Cell::new(None) }
    }
}

/// See [`Cx::after`].
#[derive(Debug)]
pub struct TimeArm {
    until: u64,
    timer: Cell<Option<Timer>>,
}

impl sealed::Poll for TimeArm {
    fn is_ready(&self, cx: &Cx) -> bool {
        cx.shared().now_ns() >= self.until
    }

    fn begin(&self, cx: &Cx) {
        self.timer.set(Some(cx.arm(self.until)));
    }

    fn end(&self, cx: &Cx) {
        if let Some(timer) = self.timer.take() {
            cx.shared().timers.disarm(timer);
        }
    }
}

impl sealed::Either for TimeArm {
    fn polled(&self) -> Option<&dyn sealed::Poll> {
        Some(self)
    }
}

impl Arm for TimeArm {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chan::channel;

    /// The node that another thread serves lies in its arm. This does not compile if anything that a select does
    /// between its first and its last step needs a `&mut` to the arm, which would promise the compiler that no other
    /// thread writes there.
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
