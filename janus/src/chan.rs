//! Channels between tasks: rendezvous (capacity 0) and bounded, many senders and many receivers, first come first
//! served, and a select over any number of them. A wait blocks the task and not its worker, ends when the task is
//! cancelled, and costs one channel operation however long it is.
//!
//! Invariants, in addition to those of `waiters.rs`: a channel's whole state is under its lock. A task or thread that
//! waits has a node in one of the two lists, and the one that serves it moves the message before it marks the node.
//! Messages wait only if no receiver does; receivers wait only if no message and no sender does.

use crate::alloc::Quiet;
use crate::cx::{Cx, ensure_stack, make_room_here};
use crate::error::Cancelled;
use crate::lock::{SpinGuard, SpinLock};
use crate::runtime::Shared;
use crate::stack::ROOM;
use crate::task::Wait;
use crate::waiter::{Parker, Waiter, Wakeup};
use crate::waiters::{CLOSED, List, Node, OPEN, SERVED, WAITING};
use crate::worker::{Worker, current_worker};
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

struct State<T> {
    messages: VecDeque<T>,
    capacity: usize,
    senders: List<T>,
    receivers: List<T>,
    closed: bool,
}

// SAFETY: the pointers are to nodes of waiters, which are accessed only under the lock; messages may move between
// threads.
unsafe impl<T: Send> Send for State<T> {}

/// The outcome of an attempt to send or receive without waiting.
enum Attempt<T> {
    /// Sent; the waiter, if any, is to be woken.
    Done(Option<Wakeup>),
    /// Received; the waiter, if any, is to be woken.
    Taken(T, Option<Wakeup>),
    /// The channel is closed. An unsent message stays with the caller.
    Closed,
    /// The operation would have to wait.
    Wait,
}

impl<T> State<T> {
    /// Sends what is in `message`, if that needs no wait. `mine` is the runtime of the caller.
    #[inline]
    fn send(&mut self, message: &mut Option<T>, mine: *const Shared) -> Attempt<T> {
        if self.closed {
            return Attempt::Closed;
        }
        // SAFETY: we have `&mut State`, so the lock is held.
        if let Some(receiver) = unsafe { self.receivers.pop() } {
            // SAFETY: we serve it (invariant 2).
            unsafe { *receiver.message.get() = message.take() };
            return Attempt::Done(Some(receiver.mark(SERVED, mine)));
        }
        if self.messages.len() < self.capacity {
            // The queue grows under the lock, where a task may not be stopped for its memory.
            let _quiet = (self.messages.len() == self.messages.capacity()).then(Quiet::new);
            // Not by `extend`: in an unoptimised build that keeps a dozen copies of a large message on the stack.
            if let Some(message) = message.take() {
                self.messages.push_back(message);
            }
            return Attempt::Done(None);
        }
        Attempt::Wait
    }

    #[inline]
    fn receive(&mut self, mine: *const Shared) -> Attempt<T> {
        if let Some(message) = self.messages.pop_front() {
            // There is room now for the first sender that waits.
            // SAFETY: we have `&mut State`, so the lock is held.
            let waiter = unsafe { self.senders.pop() }.map(|sender| {
                // SAFETY: we serve it (invariant 2).
                if let Some(message) = unsafe { (*sender.message.get()).take() } {
                    self.messages.push_back(message);
                }
                sender.mark(SERVED, mine)
            });
            return Attempt::Taken(message, waiter);
        }
        // SAFETY: as above.
        if let Some(sender) = unsafe { self.senders.pop() } {
            // SAFETY: we serve it (invariant 2); a waiting sender has its message.
            let message = unsafe { (*sender.message.get()).take() }.expect("a sender has a message");
            return Attempt::Taken(message, Some(sender.mark(SERVED, mine)));
        }
        if self.closed { Attempt::Closed } else { Attempt::Wait }
    }
}

struct Channel<T> {
    state: SpinLock<State<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// Messages up to this size fit several times into the headroom that the runtime keeps on every stack.
const SMALL: usize = 128;
/// About how many copies of a message the calls under the lock make in their frames.
const COPIES: usize = 4 * ROOM;

const fn is_large<T>() -> bool {
    size_of::<T>() > SMALL
}

/// The state, locked. Nobody knows how much stack it takes to move a large message, least of all in a program that is
/// not optimised. So a task that moves one is treated like a task that is allocating: it is not abandoned before it has
/// unlocked.
struct Locked<'a, T> {
    state: SpinGuard<'a, State<T>>,
    _quiet: QuietIfLarge<T>,
}

/// A [`Quiet`] if messages are large. Which of the two it is depends on the type alone and leaves nothing to remember: a small message costs
/// nothing.
struct QuietIfLarge<T>(PhantomData<T>);

impl<T> QuietIfLarge<T> {
    #[inline(always)]
    fn new() -> QuietIfLarge<T> {
        if is_large::<T>() {
            std::mem::forget(Quiet::new());
        }
        QuietIfLarge(PhantomData)
    }
}

impl<T> Drop for QuietIfLarge<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if is_large::<T>() {
            Quiet::end();
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = State<T>;

    #[inline]
    fn deref(&self) -> &State<T> {
        &self.state
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<T> {
        &mut self.state
    }
}

impl<T> Channel<T> {
    #[inline]
    fn lock(&self) -> Locked<'_, T> {
        let quiet = QuietIfLarge::new();
        Locked { state: self.state.lock(), _quiet: quiet }
    }

    /// Takes the lock without a guard, for sections that hold several locks.
    fn take(&self) {
        std::mem::forget(self.lock());
    }

    /// Releases the lock that `take` took.
    ///
    /// # Safety
    /// The caller holds the lock and has no reference into the state.
    unsafe fn give(&self) {
        // SAFETY: the caller's.
        unsafe { self.state.give() };
        if is_large::<T>() {
            Quiet::end();
        }
    }

    /// Closes the channel because one side is gone: every waiter learns of it.
    fn close(&self) {
        let here = current_worker();
        loop {
            let mut state = self.lock();
            state.closed = true;
            // SAFETY: the lock is held.
            let node = unsafe { state.senders.pop().or_else(|| state.receivers.pop()) };
            let Some(node) = node else { return };
            let waiter = node.mark(CLOSED, here.map_or(ptr::null(), |worker| worker.shared));
            drop(state);
            waiter.wake(here);
        }
    }
}

/// The sending end; clone it for more senders. When the last is dropped, receivers get what is left and then an error.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// The receiving end; clone it for more receivers. When the last is dropped, senders get their messages back.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

/// Makes a channel for up to `capacity` messages in transit; 0 is a rendezvous, where a send returns when the message
/// was received.
///
/// ```
/// # use janus::{Config, RecvError, Runtime, channel};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let (sum, end) = runtime.run(|cx| cx.nursery(|nursery| {
///     let (sender, receiver) = channel(4);
///     nursery.spawn(move |cx| (1..=10).all(|n| sender.send(cx, n).is_ok()));
///     let sum: u32 = (0..10).map(|_| receiver.recv(cx).unwrap()).sum();
///     // The sender went with its task: there is nothing more to come.
///     Ok((sum, receiver.recv(cx)))
/// })).unwrap().unwrap();
/// assert_eq!((sum, end), (55, Err(RecvError::Closed)));
/// ```
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State {
        messages: VecDeque::with_capacity(capacity.min(1024)),
        capacity,
        senders: List::new(),
        receivers: List::new(),
        closed: false,
    };
    let channel = Arc::new(Channel {
        state: SpinLock::new(state),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (Sender { channel: channel.clone() }, Receiver { channel })
}

/// Makes a channel for any number of messages: a send never waits. Only the senders' budget of channel operations, and
/// memory, bound it; use a channel with a capacity for back-pressure.
#[must_use]
pub fn unbounded<T: Send>() -> (Sender<T>, Receiver<T>) {
    channel(usize::MAX)
}

/// Why a message was not sent. The error gives the message back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// There is no receiver any more.
    Closed(T),
    /// The task was cancelled.
    Cancelled(T),
    /// [`Sender::try_send`]: the send would have to wait.
    Full(T),
}

impl<T> SendError<T> {
    /// The message that was not sent.
    pub fn into_inner(self) -> T {
        match self {
            SendError::Closed(message) | SendError::Cancelled(message) | SendError::Full(message) => message,
        }
    }

    fn text(&self) -> &'static str {
        match self {
            SendError::Closed(_) => "nobody receives from this channel any more",
            SendError::Cancelled(_) => "the task was cancelled, or ended for its budget, while it sent",
            SendError::Full(_) => "the channel is full",
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl<T> Error for SendError<T> {}

/// Why there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// There is no message, and no sender any more.
    Closed,
    /// The task was cancelled.
    Cancelled,
    /// [`Receiver::try_recv`]: there is no message now. [`Receiver::recv_timeout`]: none came in time.
    Empty,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvError::Closed => "nobody sends to this channel any more",
            RecvError::Cancelled => "the task was cancelled, or ended for its budget, while it received",
            RecvError::Empty => "there is no message",
        })
    }
}

impl Error for RecvError {}

#[inline]
fn wake(waiter: Option<Wakeup>, here: Option<&Worker>) {
    if let Some(waiter) = waiter {
        waiter.wake(here);
    }
}

impl<T: Send> Sender<T> {
    /// Sends, and waits for room in the channel, or for the receiver of a rendezvous.
    #[track_caller]
    #[inline]
    pub fn send(&self, cx: &Cx, message: T) -> Result<(), SendError<T>> {
        let at = Location::caller();
        if begin::<T>(cx, at).is_err() {
            return Err(SendError::Cancelled(message));
        }
        let mut message = Some(message);
        let mut state = self.channel.lock();
        match state.send(&mut message, cx.shared()) {
            Attempt::Done(waiter) => {
                drop(state);
                wake(waiter, Some(cx.worker()));
                Ok(())
            }
            Attempt::Closed => Err(SendError::Closed(message.expect("it was not sent"))),
            _ => {
                let node = Node::new(cx.waiter(), message, ptr::null(), 0);
                // SAFETY: the node stays here until it is served or taken out below.
                unsafe { state.senders.push(&node) };
                drop(state);
                let end = self.wait(&node, || cx.block(Wait::Send, at));
                // SAFETY: the node is out of the list: it is ours alone.
                let rest = unsafe { (*node.message.get()).take() };
                match (end, rest) {
                    (SERVED, _) => Ok(()),
                    (CLOSED, Some(message)) => Err(SendError::Closed(message)),
                    (_, Some(message)) => {
                        cx.stop_if_doomed();
                        Err(SendError::Cancelled(message))
                    }
                    (_, None) => unreachable!("an unserved sender has its message"),
                }
            }
        }
    }

    /// Sleeps by `sleep` until the node is served; takes the node out of the list if sleeping fails.
    fn wait(&self, node: &Node<T>, mut sleep: impl FnMut() -> Result<(), Cancelled>) -> u8 {
        while node.state.load(Ordering::Acquire) == WAITING {
            if sleep().is_err() {
                let mut state = self.channel.lock();
                if node.listed.get() {
                    // SAFETY: it is in this list, and the lock is held.
                    unsafe { state.senders.remove(node) };
                }
                break;
            }
        }
        node.state.load(Ordering::Acquire)
    }

    /// Sends if that needs no wait. The attempt is charged even if it fails.
    #[track_caller]
    pub fn try_send(&self, cx: &Cx, message: T) -> Result<(), SendError<T>> {
        if begin::<T>(cx, Location::caller()).is_err() {
            return Err(SendError::Cancelled(message));
        }
        let mut message = Some(message);
        let attempt = self.channel.lock().send(&mut message, cx.shared());
        match (attempt, message) {
            (Attempt::Done(waiter), _) => {
                wake(waiter, Some(cx.worker()));
                Ok(())
            }
            (Attempt::Closed, Some(message)) => Err(SendError::Closed(message)),
            (_, Some(message)) => Err(SendError::Full(message)),
            (_, None) => unreachable!("an unsent message is there"),
        }
    }

    /// Sends from a thread that does not run tasks, and blocks that thread. Called by a task it would block the task's
    /// worker: use [`Sender::send`] there.
    pub fn send_blocking(&self, message: T) -> Result<(), SendError<T>> {
        ensure_room::<T>();
        make_room_here();
        let mut message = Some(message);
        let mut state = self.channel.lock();
        match state.send(&mut message, ptr::null()) {
            Attempt::Done(waiter) => {
                drop(state);
                wake(waiter, None);
                Ok(())
            }
            Attempt::Closed => Err(SendError::Closed(message.expect("it was not sent"))),
            _ => {
                let parker = Parker::mine();
                let node = Node::new(Waiter::thread(parker), message, ptr::null(), 0);
                // SAFETY: the node stays here until it is served.
                unsafe { state.senders.push(&node) };
                drop(state);
                let end = self.wait(&node, || {
                    parker.park(None);
                    Ok(())
                });
                // SAFETY: the node was served: it is ours alone.
                let rest = unsafe { (*node.message.get()).take() };
                match (end, rest) {
                    (CLOSED, Some(message)) => Err(SendError::Closed(message)),
                    _ => Ok(()),
                }
            }
        }
    }

    /// As `send_blocking`, without waiting.
    #[doc(hidden)]
    pub fn try_send_blocking(&self, message: T) -> Result<(), SendError<T>> {
        ensure_room::<T>();
        make_room_here();
        let mut message = Some(message);
        let attempt = self.channel.lock().send(&mut message, ptr::null());
        match (attempt, message) {
            (Attempt::Closed, Some(message)) => Err(SendError::Closed(message)),
            (Attempt::Done(waiter), _) => {
                wake(waiter, None);
                Ok(())
            }
            (_, Some(message)) => Err(SendError::Full(message)),
            (_, None) => unreachable!("an unsent message is there"),
        }
    }

    /// Sends, and waits for `timeout` at most: then the error is [`SendError::Full`].
    #[track_caller]
    pub fn send_timeout(&self, cx: &Cx, message: T, timeout: Duration) -> Result<(), SendError<T>> {
        let mut arm = self.arm(message);
        let end = cx.select(&mut [&mut arm], Some(timeout));
        match (end, arm.into_result()) {
            (Err(Cancelled), Err(SendError::Full(message))) => Err(SendError::Cancelled(message)),
            (_, result) => result,
        }
    }

    /// Sends if that needs no wait, and charges nobody; otherwise the message is dropped. For events that happen only
    /// once.
    pub(crate) fn post(&self, message: T) {
        make_room_here();
        let mut message = Some(message);
        let here = current_worker();
        let mine = here.map_or(ptr::null(), |worker| worker.shared);
        let attempt = self.channel.lock().send(&mut message, mine);
        if let Attempt::Done(waiter) = attempt {
            wake(waiter, here);
        }
    }

    /// Whether no receiver is left, or one closed the channel.
    pub(crate) fn is_closed(&self) -> bool {
        self.channel.lock().closed
    }

    /// An arm of a [`Cx::select`] that sends `message`.
    pub fn arm(&self, message: T) -> SendArm<'_, T> {
        SendArm {
            sender: self,
            node: Slot::new(None),
            message: Slot::new(Some(message)),
            closed: Cell::new(false),
        }
    }
}

/// Calls `receive` with a function that sleeps until it is woken, and fails when the time is over.
fn within<T>(
    cx: &Cx,
    timeout: Duration,
    at: &'static Location<'static>,
    receive: impl FnOnce(&mut dyn FnMut() -> Result<(), Cancelled>) -> Result<T, RecvError>,
) -> Result<T, RecvError> {
    ensure_stack(cx.task);
    let until = cx.until(timeout);
    let timer = cx.arm(until);
    let result = receive(&mut || {
        if cx.shared().now_ns() >= until {
            return Err(Cancelled);
        }
        // It counts as a sleep, because it ends by itself.
        cx.block(Wait::Sleep, at)
    });
    cx.shared().timers.disarm(timer);
    match result {
        Err(RecvError::Empty) if cx.is_cancelled() => Err(RecvError::Cancelled),
        other => other,
    }
}

/// Maps the end of a wait without a time limit: if it ended without a message, its task is to end.
fn ended(cx: &Cx, error: RecvError) -> RecvError {
    if error == RecvError::Empty {
        cx.stop_if_doomed();
        return RecvError::Cancelled;
    }
    error
}

impl<T: Send> Receiver<T> {
    /// Receives, and waits for a message.
    #[track_caller]
    #[inline]
    pub fn recv(&self, cx: &Cx) -> Result<T, RecvError> {
        let at = Location::caller();
        self.recv_by(cx, at, || cx.block(Wait::Recv, at)).map_err(|error| ended(cx, error))
    }

    /// Receives, and waits for `timeout` at most: then the error is [`RecvError::Empty`].
    #[track_caller]
    pub fn recv_timeout(&self, cx: &Cx, timeout: Duration) -> Result<T, RecvError> {
        let at = Location::caller();
        within(cx, timeout, at, |sleep| self.recv_by(cx, at, sleep))
    }

    /// Receives without a charge, and waits for `timeout` at most: for an operation that was charged already, such as a
    /// guest's input.
    #[doc(hidden)]
    #[track_caller]
    pub fn recv_paid(&self, cx: &Cx, timeout: Option<Duration>) -> Result<T, RecvError> {
        let at = Location::caller();
        ensure_stack(cx.task);
        if let Some(timeout) = timeout {
            return within(cx, timeout, at, |sleep| self.recv_free(cx, sleep));
        }
        self.recv_free(cx, || cx.block(Wait::Recv, at)).map_err(|error| ended(cx, error))
    }

    /// The error `Empty` means that `sleep` failed.
    #[inline]
    fn recv_by(
        &self,
        cx: &Cx,
        at: &'static Location<'static>,
        mut sleep: impl FnMut() -> Result<(), Cancelled>,
    ) -> Result<T, RecvError> {
        begin::<T>(cx, at).map_err(|Cancelled| RecvError::Cancelled)?;
        self.recv_free(cx, &mut sleep)
    }

    /// As `recv_by`, without a charge. The caller has checked for room on the stack.
    #[inline]
    pub(crate) fn recv_free(
        &self,
        cx: &Cx,
        mut sleep: impl FnMut() -> Result<(), Cancelled>,
    ) -> Result<T, RecvError> {
        let mut state = self.channel.lock();
        match state.receive(cx.shared()) {
            Attempt::Taken(message, waiter) => {
                drop(state);
                wake(waiter, Some(cx.worker()));
                Ok(message)
            }
            Attempt::Closed => Err(RecvError::Closed),
            _ => {
                let node = Node::new(cx.waiter(), None, ptr::null(), 0);
                // SAFETY: the node stays here until it is served or taken out.
                unsafe { state.receivers.push(&node) };
                drop(state);
                self.wait(&node, &mut sleep)
            }
        }
    }

    fn wait(&self, node: &Node<T>, mut sleep: impl FnMut() -> Result<(), Cancelled>) -> Result<T, RecvError> {
        while node.state.load(Ordering::Acquire) == WAITING {
            if sleep().is_err() {
                let mut state = self.channel.lock();
                if node.listed.get() {
                    // SAFETY: it is in this list, and the lock is held.
                    unsafe { state.receivers.remove(node) };
                }
                break;
            }
        }
        // SAFETY: the node is out of the list: it is ours alone.
        match (node.state.load(Ordering::Acquire), unsafe { (*node.message.get()).take() }) {
            (_, Some(message)) => Ok(message),
            (CLOSED, None) => Err(RecvError::Closed),
            (_, None) => Err(RecvError::Empty),
        }
    }

    /// Receives if there is a message. The attempt is charged even if it fails.
    #[track_caller]
    pub fn try_recv(&self, cx: &Cx) -> Result<T, RecvError> {
        begin::<T>(cx, Location::caller()).map_err(|Cancelled| RecvError::Cancelled)?;
        let attempt = self.channel.lock().receive(cx.shared());
        match attempt {
            Attempt::Taken(message, waiter) => {
                wake(waiter, Some(cx.worker()));
                Ok(message)
            }
            Attempt::Closed => Err(RecvError::Closed),
            _ => Err(RecvError::Empty),
        }
    }

    /// Receives in a thread that does not run tasks, and blocks that thread. Called by a task it would block the task's
    /// worker: use [`Receiver::recv`] there.
    pub fn recv_blocking(&self) -> Result<T, RecvError> {
        ensure_room::<T>();
        make_room_here();
        let mut state = self.channel.lock();
        match state.receive(ptr::null()) {
            Attempt::Taken(message, waiter) => {
                drop(state);
                wake(waiter, None);
                Ok(message)
            }
            Attempt::Closed => Err(RecvError::Closed),
            _ => {
                let parker = Parker::mine();
                let node = Node::new(Waiter::thread(parker), None, ptr::null(), 0);
                // SAFETY: the node stays here until it is served.
                unsafe { state.receivers.push(&node) };
                drop(state);
                self.wait(&node, || {
                    parker.park(None);
                    Ok(())
                })
            }
        }
    }

    /// As `recv_blocking`, without waiting.
    #[doc(hidden)]
    pub fn try_recv_blocking(&self) -> Result<T, RecvError> {
        ensure_room::<T>();
        make_room_here();
        let attempt = self.channel.lock().receive(ptr::null());
        match attempt {
            Attempt::Taken(message, waiter) => {
                wake(waiter, None);
                Ok(message)
            }
            Attempt::Closed => Err(RecvError::Closed),
            _ => Err(RecvError::Empty),
        }
    }

    /// Closes the channel for all its senders and receivers: a task that sends, or waits to send, gets its message
    /// back. Messages in transit can still be received.
    ///
    /// ```
    /// # use janus::{Config, RecvError, Runtime, SendError, channel};
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// runtime.run(|cx| {
    ///     let (sender, receiver) = channel(4);
    ///     sender.send(cx, 1).unwrap();
    ///     receiver.close();
    ///     assert_eq!(sender.send(cx, 2), Err(SendError::Closed(2)));
    ///     assert_eq!((receiver.recv(cx), receiver.recv(cx)), (Ok(1), Err(RecvError::Closed)));
    /// }).unwrap();
    /// ```
    pub fn close(&self) {
        make_room_here();
        self.channel.close();
    }

    /// Closes the channel and drops the messages in it; tasks that wait to send get their messages back.
    pub(crate) fn shut(&self) {
        self.channel.close();
        let messages = std::mem::take(&mut self.channel.lock().messages);
        drop(messages);
    }

    /// Lets a channel that `shut` closed take messages again.
    pub(crate) fn reopen(&self) {
        self.channel.lock().closed = false;
    }

    /// An arm of a [`Cx::select`] that receives.
    #[must_use]
    pub fn arm(&self) -> RecvArm<'_, T> {
        RecvArm { receiver: self, node: Slot::new(None), result: Slot::new(None) }
    }
}

/// As `charge`, after checking that the stack has room for a large message.
#[inline]
fn begin<T>(cx: &Cx, at: &'static Location<'static>) -> Result<(), Cancelled> {
    ensure_room::<T>();
    charge(cx, at)
}

/// A task without room for a large message fails before it has locked anything. Outside of tasks there is enough stack.
#[inline]
fn ensure_room<T>() {
    if is_large::<T>()
        && let Some(task) = current_worker().and_then(Worker::task)
    {
        Cx::of(task).ensure_stack(COPIES.saturating_mul(size_of::<T>()));
    }
}

/// Charges one operation and one channel operation.
#[inline]
pub(crate) fn charge(cx: &Cx, at: &'static Location<'static>) -> Result<(), Cancelled> {
    ensure_stack(cx.task);
    cx.charge_channel(at)?;
    cx.check()
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.channel.senders.fetch_add(1, Ordering::Relaxed);
        Sender { channel: self.channel.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.channel.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        make_room_here();
        if self.channel.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channel.close();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        make_room_here();
        if self.channel.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.channel.close();
            // No receiver is left to take them.
            let messages = std::mem::take(&mut self.channel.lock().messages);
            drop(messages);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

mod select;
use select::Slot;
pub(crate) use select::sealed;
pub use select::{Arm, RecvArm, Selected, SendArm, TimeArm};
