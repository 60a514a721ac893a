//! Descriptors in a select: an arm is ready when reading, or accepting, would not wait.
//!
//! The invariants are those of `op.rs`: an operation that was submitted to a driver is waited for, here by `end`,
//! before the arm can go away.

use super::op::{Call, Op, Request, Side, is_readable};
use crate::chan::Arm;
use crate::chan::sealed::{Either, Poll};
use crate::cx::Cx;
use crate::state::Event;
use crate::task::Wait;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::Location;

/// An arm of a [`Cx::select`]: see [`TcpListener::arm`](crate::net::TcpListener::arm) and
/// [`TcpStream::arm`](crate::net::TcpStream::arm).
pub struct ReadArm<'a> {
    fd: RawFd,
    /// Where the answer goes. Only `begin` and `end` write it; in between the driver refers to it.
    op: UnsafeCell<Option<Op>>,
    /// The worker whose driver has the operation.
    home: Cell<u16>,
    /// The wait could not be started, so the arm counts as ready: the task that reads learns why.
    refused: Cell<bool>,
    open: PhantomData<BorrowedFd<'a>>,
}

impl<'a> ReadArm<'a> {
    pub(crate) fn new(fd: BorrowedFd<'a>) -> ReadArm<'a> {
        ReadArm {
            fd: fd.as_raw_fd(),
            op: UnsafeCell::new(None),
            home: Cell::new(0),
            refused: Cell::new(false),
            open: PhantomData,
        }
    }

    /// Whether the driver has reported readiness. It does not report again until `end` and `begin`.
    pub(crate) fn is_answered(&self) -> bool {
        self.op().is_some_and(|op| op.answer().is_some())
    }

    fn op(&self) -> Option<&Op> {
        // SAFETY: only the select that has the arm calls this, `begin` and `end`, one after the other; what other
        // threads write in the operation is atomic, or belongs to the driver.
        unsafe { (*self.op.get()).as_ref() }
    }
}

impl Poll for ReadArm<'_> {
    fn is_ready(&self, _cx: &Cx) -> bool {
        match self.op() {
            Some(op) => op.answer().is_some(),
            None => self.refused.get() || is_readable(self.fd),
        }
    }

    fn begin(&self, cx: &Cx) {
        self.refused.set(cx.shared().is_deterministic());
        if self.refused.get() {
            return;
        }
        let request = Request::new(Call::Ready(Side::In), self.fd);
        // SAFETY: as in `op`: nothing else refers to it.
        unsafe { *self.op.get() = Some(Op::new(cx.task, &request)) };
        self.home.set(cx.worker().index);
        let started = match self.op() {
            // SAFETY: the arm, and so the operation, stays where it is until `end` has its answer.
            Some(op) => unsafe { cx.worker().io.start(cx.worker(), &request, op) },
            None => return,
        };
        if started.is_err() {
            self.refused.set(true);
            // SAFETY: the driver did not take it.
            unsafe { *self.op.get() = None };
        }
    }

    fn end(&self, cx: &Cx) {
        let Some(op) = self.op() else { return };
        if op.answer().is_none() {
            let home = self.home.get();
            cx.shared().workers[usize::from(home)].io.cancel(cx.worker(), home, op);
        }
        // Only the answer ends this wait.
        while op.answer().is_none() {
            cx.worker().sleep(cx.task, Event::Block, Wait::Io, Location::caller());
        }
        // SAFETY: it is answered, so nothing refers to it any more.
        unsafe { *self.op.get() = None };
    }
}

impl Either for ReadArm<'_> {
    fn polled(&self) -> Option<&dyn Poll> {
        Some(self)
    }
}

impl Arm for ReadArm<'_> {}
