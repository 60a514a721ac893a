//! The two ends of a mailbox, calls and replies, links and monitors.

use super::exit::Exit;
use super::life::{Life, Refused};
use crate::chan::{Receiver, RecvArm, RecvError, Selected, SendError, Sender, channel};
use crate::cx::Cx;
use crate::error::Cancelled;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where an actor's messages are sent. The address stays the same when the actor is restarted, and so do waiting
/// messages.
pub struct Address<M> {
    sender: Sender<M>,
    life: Arc<Life>,
}

/// An actor's own end of its mailbox: its function gets it.
pub struct Inbox<M> {
    receiver: Receiver<M>,
    address: Address<M>,
}

/// The way back to the caller: see [`Address::call`]. Dropping it tells the caller [`CallError::Unanswered`].
pub struct Reply<R>(Sender<R>);

/// Reports the end of an actor: see [`Address::monitor`].
pub struct Monitor(Receiver<Exit>);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The time was over, while the message was in the mailbox or with the actor.
    Timeout,
    /// The actor has ended for good, or has not been started.
    Gone,
    /// The actor dropped the question, most often because it ended while handling it.
    Unanswered,
    /// The calling task was cancelled.
    Cancelled,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::Timeout => "the actor did not answer in time",
            CallError::Gone => "the actor does not run, and nobody will restart it",
            CallError::Unanswered => "the actor ended, or dropped the question, before it answered",
            CallError::Cancelled => "the task was cancelled while it asked",
        })
    }
}

impl Error for CallError {}

/// Why two actors were not linked, or one is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// One of the two does not run now: it has ended, or is about to be restarted.
    NotRunning,
    /// 256 tasks watch it, or are linked to it, already.
    TooMany,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkError::NotRunning => "the actor does not run now",
            LinkError::TooMany => "the actor has too many watchers or links",
        })
    }
}

impl Error for LinkError {}

impl From<Refused> for LinkError {
    fn from(refused: Refused) -> LinkError {
        match refused {
            Refused::NotRunning => LinkError::NotRunning,
            Refused::TooMany => LinkError::TooMany,
        }
    }
}

impl<M: Send> Address<M> {
    /// Sends, and waits for room: that is the back-pressure. An actor that sends to itself this way may wait for
    /// itself.
    #[track_caller]
    pub fn cast(&self, cx: &Cx, message: M) -> Result<(), SendError<M>> {
        self.sender.send(cx, message)
    }

    /// Sends if there is room.
    #[track_caller]
    pub fn try_cast(&self, cx: &Cx, message: M) -> Result<(), SendError<M>> {
        self.sender.try_send(cx, message)
    }

    /// Sends, and waits for room for `timeout` at most: then the error is [`SendError::Full`].
    #[track_caller]
    pub fn cast_timeout(&self, cx: &Cx, message: M, timeout: Duration) -> Result<(), SendError<M>> {
        let mut arm = self.sender.arm(message);
        match cx.select(&mut [&mut arm], Some(timeout)) {
            Ok(Selected::Arm(_) | Selected::Timeout) => arm.into_result(),
            Err(Cancelled) => arm.into_result().map_err(|error| SendError::Cancelled(error.into_inner())),
        }
    }

    /// Asks, and waits for the answer, for `timeout` in all: `message` makes the question from the [`Reply`].
    #[track_caller]
    pub fn call<R: Send>(
        &self,
        cx: &Cx,
        timeout: Duration,
        message: impl FnOnce(Reply<R>) -> M,
    ) -> Result<R, CallError> {
        let (sender, answer) = channel(1);
        let until = cx.now().saturating_add(timeout);
        self.cast_timeout(cx, message(Reply(sender)), timeout).map_err(|error| match error {
            SendError::Closed(_) => CallError::Gone,
            SendError::Cancelled(_) => CallError::Cancelled,
            SendError::Full(_) => CallError::Timeout,
        })?;
        answer.recv_timeout(cx, until.saturating_sub(cx.now())).map_err(|error| match error {
            RecvError::Closed => CallError::Unanswered,
            RecvError::Cancelled => CallError::Cancelled,
            RecvError::Empty => CallError::Timeout,
        })
    }

    /// Watches the actor's current incarnation.
    pub fn monitor(&self) -> Result<Monitor, LinkError> {
        let (sender, receiver) = channel(1);
        self.life.watch(sender)?;
        Ok(Monitor(receiver))
    }

    /// The child's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.life.name
    }

    /// Whether an incarnation of the actor runs now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.life.is_running()
    }
}

impl<M: Send> Inbox<M> {
    pub(super) fn new(capacity: usize, life: Arc<Life>) -> Inbox<M> {
        // With a rendezvous, the success of `try_cast` would be a matter of luck.
        let (sender, receiver) = channel(capacity.max(1));
        Inbox { receiver, address: Address { sender, life } }
    }

    /// Receives the next message. The error means that the actor is to end: pass it on with `?`.
    #[track_caller]
    pub fn recv(&self, cx: &Cx) -> Result<M, Cancelled> {
        // The inbox's own address keeps the mailbox open.
        self.receiver.recv(cx).map_err(|_| Cancelled)
    }

    /// Receives the next message, if one comes in time.
    #[track_caller]
    pub fn recv_timeout(&self, cx: &Cx, timeout: Duration) -> Result<Option<M>, Cancelled> {
        match self.receiver.recv_timeout(cx, timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvError::Empty) => Ok(None),
            Err(_) => Err(Cancelled),
        }
    }

    /// Receives the next message, if there is one.
    #[track_caller]
    pub fn try_recv(&self, cx: &Cx) -> Result<Option<M>, Cancelled> {
        match self.receiver.try_recv(cx) {
            Ok(message) => Ok(Some(message)),
            Err(RecvError::Empty) => Ok(None),
            Err(_) => Err(Cancelled),
        }
    }

    /// An arm of a [`Cx::select`] that receives.
    #[must_use]
    pub fn arm(&self) -> RecvArm<'_, M> {
        self.receiver.arm()
    }

    /// The actor's own address, to give to others.
    #[must_use]
    pub fn address(&self) -> Address<M> {
        self.address.clone()
    }

    /// Links this incarnation and the other actor's: if one of them ends abnormally, the other is ended with
    /// [`Exit::Linked`]. A normal end undoes the link.
    pub fn link<N>(&self, other: &Address<N>) -> Result<(), LinkError> {
        Ok(self.address.life.link(&other.life)?)
    }
}

/// What a supervisor does with a mailbox, whatever the type of its messages.
pub(super) trait Mailbox {
    /// The child has ended for good: senders learn of it.
    fn shut(&self);
    fn reopen(&self);
}

impl<M: Send> Mailbox for Inbox<M> {
    fn shut(&self) {
        self.receiver.shut();
    }

    fn reopen(&self) {
        self.receiver.reopen();
    }
}

impl<R: Send> Reply<R> {
    /// Answers. The actor need not care whether the caller still waits.
    #[track_caller]
    pub fn send(self, cx: &Cx, answer: R) {
        // There is room for one answer; a caller that has given up waiting has closed the channel.
        let _ = self.0.try_send(cx, answer);
    }
}

impl Monitor {
    /// Waits for the end of the actor.
    #[track_caller]
    pub fn wait(&self, cx: &Cx) -> Result<Exit, Cancelled> {
        self.0.recv(cx).map_err(|_| Cancelled)
    }

    /// As [`wait`](Monitor::wait), for `timeout` at most.
    #[track_caller]
    pub fn wait_timeout(&self, cx: &Cx, timeout: Duration) -> Result<Option<Exit>, Cancelled> {
        match self.0.recv_timeout(cx, timeout) {
            Ok(exit) => Ok(Some(exit)),
            Err(RecvError::Empty) => Ok(None),
            Err(_) => Err(Cancelled),
        }
    }

    /// An arm of a [`Cx::select`] that receives the actor's exit.
    #[must_use]
    pub fn arm(&self) -> RecvArm<'_, Exit> {
        self.0.arm()
    }
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Address<M> {
        Address { sender: self.sender.clone(), life: self.life.clone() }
    }
}

impl<M> Clone for Inbox<M> {
    fn clone(&self) -> Inbox<M> {
        Inbox { receiver: self.receiver.clone(), address: self.address.clone() }
    }
}

impl<M> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.life.name).finish()
    }
}

impl<M> fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.address.life.name).finish()
    }
}

impl<R> fmt::Debug for Reply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}
