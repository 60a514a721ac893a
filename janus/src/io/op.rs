//! One operation of the kernel on behalf of a task: what is asked ([`Request`]), and where the answer goes ([`Op`]).
//!
//! Invariants:
//! 1. An operation that was submitted to a driver is waited for: the task that asked does not return from [`perform`],
//!    and so does not end the frames and buffers that the kernel or the driver refer to, before its answer is there. A
//!    cancelled task asks the kernel to stop, and waits for that answer too.
//! 2. No code of the user's runs between the submission and the answer, and there is room on the stack for the code
//!    that does (`ensure_stack` at the start): the task cannot overflow, panic or be abandoned in between.
//! 3. The thread that has the answer copies the waiter out of the operation, writes the answer, and only then wakes the
//!    waiter: from the moment of the answer on the frame may be gone.

use super::sys::{self, Address};
use super::{IoError, charge, refused};
use crate::budget::Operation;
use crate::cx::{Cx, ensure_stack};
use crate::error::Cancelled;
use crate::state::Event;
use crate::task::{TaskRef, Wait};
use crate::waiter::wake_task;
use crate::worker::Worker;
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

/// The kernel transfers no more in one call.
const MOST: usize = 0x7FFF_F000;

/// There is no answer yet. The kernel's answers are 32 bits wide, so none has this value.
const NONE: i64 = i64::MIN;

/// What the kernel is asked to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// With these receive flags.
    Recv(libc::c_int),
    Send,
    /// `pointer` is to a `msghdr`.
    RecvMsg,
    /// As for `RecvMsg`.
    SendMsg,
    /// `pointer` is to an [`Address`].
    Accept,
    /// Of a pipe, or of a file at its current position.
    Read,
    Write,
    /// Of a file, at this position.
    ReadAt(u64),
    WriteAt(u64),
    /// Of a file; true: only its data.
    Flush(bool),
    /// Only waits until the descriptor is readable or writable; the answer is the kernel's `POLL` bits.
    Ready(Side),
}

/// The direction in which the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    In,
    Out,
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(super) call: Call,
    pub(super) fd: RawFd,
    pub(super) pointer: *mut u8,
    pub(super) length: usize,
    /// The operation most likely has to wait: the kernel need not try it first.
    pub(super) patient: bool,
}

impl Request {
    pub(crate) fn new(call: Call, fd: RawFd) -> Request {
        Request { call, fd, pointer: ptr::null_mut(), length: 0, patient: false }
    }

    /// Reads into this buffer, which is borrowed until [`perform`] returns.
    pub(crate) fn into(call: Call, fd: RawFd, buffer: &mut [u8]) -> Request {
        Request { call, fd, pointer: buffer.as_mut_ptr(), length: buffer.len().min(MOST), patient: false }
    }

    /// Writes out of this buffer.
    pub(crate) fn out_of(call: Call, fd: RawFd, buffer: &[u8]) -> Request {
        Request {
            call,
            fd,
            pointer: buffer.as_ptr().cast_mut(),
            length: buffer.len().min(MOST),
            patient: false,
        }
    }

    /// Uses this message header, whose parts stay where they are until [`perform`] returns.
    pub(crate) fn message(call: Call, fd: RawFd, header: &mut libc::msghdr) -> Request {
        Request { call, fd, pointer: ptr::from_mut(header).cast(), length: 0, patient: false }
    }

    /// Accepts a connection, and writes down the peer's address.
    pub(crate) fn accept(fd: RawFd, peer: &mut Address) -> Request {
        Request { call: Call::Accept, fd, pointer: ptr::from_mut(peer).cast(), length: 0, patient: false }
    }

    /// The address and its length, of an `accept`.
    pub(super) fn address(&self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        let peer = self.pointer.cast::<Address>();
        // SAFETY: `accept` made the pointer from an `Address`, which is borrowed.
        unsafe { ((&raw mut (*peer).storage).cast(), &raw mut (*peer).length) }
    }

    pub(super) fn side(&self) -> Side {
        match self.call {
            Call::Recv(_) | Call::RecvMsg | Call::Accept | Call::Read | Call::ReadAt(_) => Side::In,
            Call::Send | Call::SendMsg | Call::Write | Call::WriteAt(_) | Call::Flush(_) => Side::Out,
            Call::Ready(side) => side,
        }
    }

    /// Does the call if that needs no wait; otherwise the error is `EAGAIN`.
    pub(super) fn attempt(&self) -> Result<usize, i32> {
        let (fd, pointer, length) = (self.fd, self.pointer.cast::<libc::c_void>(), self.length);
        // SAFETY: the maker of the request lends the buffer, of that length, or the header; the descriptor is open, as
        // its owner is borrowed.
        let answer = unsafe {
            match self.call {
                Call::Recv(flags) => libc::recv(fd, pointer, length, flags | libc::MSG_DONTWAIT),
                Call::Send => libc::send(fd, pointer, length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
                Call::RecvMsg => {
                    libc::recvmsg(fd, pointer.cast(), libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
                }
                Call::SendMsg => libc::sendmsg(fd, pointer.cast(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
                Call::Accept => {
                    let (storage, size) = self.address();
                    libc::accept4(fd, storage, size, ACCEPTED) as isize
                }
                Call::Read => libc::read(fd, pointer, length),
                Call::Write => libc::write(fd, pointer, length),
                Call::ReadAt(at) => libc::pread(fd, pointer, length, at as libc::off_t),
                Call::WriteAt(at) => libc::pwrite(fd, pointer, length, at as libc::off_t),
                Call::Flush(true) => libc::fdatasync(fd) as isize,
                Call::Flush(false) => libc::fsync(fd) as isize,
                Call::Ready(side) => return ready(fd, side),
            }
        };
        sys::checked(answer)
    }
}

/// The flags of an accepted socket.
pub(super) const ACCEPTED: libc::c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

fn ready(fd: RawFd, side: Side) -> Result<usize, i32> {
    let events = if side == Side::In { libc::POLLIN } else { libc::POLLOUT };
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the pointer is to one `pollfd`.
    match sys::checked(unsafe { libc::poll(&raw mut poll, 1, 0) } as isize)? {
        0 => Err(libc::EAGAIN),
        _ => Ok(poll.revents as u16 as usize),
    }
}

/// Whether a read would not wait.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    ready(fd, Side::In).is_ok()
}

/// See the module. It lies in the frame of the task that asked.
pub(super) struct Op {
    task: TaskRef,
    answer: AtomicI64,
    /// For the driver: what it waits for, and the link of its list.
    pub(super) side: Side,
    pub(super) fd: RawFd,
    pub(super) next: Cell<*const Op>,
}

/// The name of an operation, for code that may not dereference it any more.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) op: usize,
    pub(super) fd: RawFd,
}

impl Op {
    pub(super) fn name(&self) -> Name {
        Name { op: ptr::from_ref(self).addr(), fd: self.fd }
    }

    pub(super) fn new(task: TaskRef, request: &Request) -> Op {
        let answer = AtomicI64::new(NONE);
        Op { task, answer, side: request.side(), fd: request.fd, next: Cell::new(ptr::null()) }
    }

    /// Delivers the kernel's answer, in which an error is negative, and wakes the task.
    ///
    /// # Safety
    /// The operation was handed to a driver and has no answer yet (invariant 1); it is not touched afterwards.
    pub(super) unsafe fn finish(op: *const Op, answer: i32, here: &Worker) {
        // SAFETY: the caller's; invariant 3.
        let task = unsafe {
            let task = (*op).task;
            (*op).answer.store(i64::from(answer), Ordering::Release);
            task
        };
        wake_task(task, Some(here));
    }

    pub(super) fn answer(&self) -> Option<i32> {
        match self.answer.load(Ordering::Acquire) {
            NONE => None,
            answer => Some(answer as i32),
        }
    }
}

/// How a request is carried out.
pub(crate) struct Manner {
    /// The row of the cost table.
    pub(crate) cost: Operation,
    /// When the wait ends with [`io::ErrorKind::TimedOut`], on the runtime's clock.
    pub(crate) until: Option<u64>,
    /// Try the call at once. If false, the operation most likely has to wait.
    pub(crate) eager: bool,
    pub(crate) at: &'static Location<'static>,
}

/// Charges the request, carries it out, and blocks the task meanwhile.
pub(crate) fn perform(cx: &Cx, request: Request, manner: &Manner) -> io::Result<usize> {
    charge(cx, manner.cost, manner.at)?;
    carry_out(cx, request, manner)
}

/// As `perform`, for a request that the caller has charged already.
pub(crate) fn carry_out(cx: &Cx, request: Request, manner: &Manner) -> io::Result<usize> {
    let mut eager = manner.eager;
    let mut asked = Request { patient: !eager, ..request };
    loop {
        if eager {
            match request.attempt() {
                Ok(done) => return Ok(done),
                Err(libc::EAGAIN) => {}
                Err(libc::EINTR) => continue,
                Err(error) => return Err(io::Error::from_raw_os_error(error)),
            }
        }
        let [answer] = see_through(cx, &[asked], manner)?;
        match answer.unwrap_or(-libc::EIO) {
            // Only a driver that cannot carry out the request itself says so: then wait for the descriptor to be ready.
            answer if answer == -libc::EAGAIN => {
                asked = Request::new(Call::Ready(request.side()), request.fd);
                eager = true;
            }
            // The task did not ask for that: the thread that carried the operation out is gone, or was interrupted.
            answer if answer == -libc::ECANCELED || answer == -libc::EINTR => {}
            answer if answer < 0 => return Err(io::Error::from_raw_os_error(-answer)),
            _ if asked.call != request.call => eager = true,
            answer => return Ok(answer as usize),
        }
    }
}

/// Waits until one of these descriptors is readable; the caller finds out which. It is not charged, because what the
/// caller does then is.
pub(crate) fn any_readable(cx: &Cx, fds: [RawFd; 2], manner: &Manner) -> io::Result<()> {
    let requests = fds.map(|fd| Request::new(Call::Ready(Side::In), fd));
    see_through(cx, &requests, manner).map(drop)
}

/// Submits the requests, waits for the first answer, and then cancels the others (invariants 1 and 2). An answer of
/// `None`: that operation was cancelled. At least one answer is there.
fn see_through<const N: usize>(
    cx: &Cx,
    requests: &[Request; N],
    manner: &Manner,
) -> io::Result<[Option<i32>; N]> {
    ensure_stack(cx.task);
    refused(cx)?;
    if cx.is_cancelled() || cx.panicking() {
        return Err(IoError::why(cx).into());
    }
    let ops = requests.each_ref().map(|request| Op::new(cx.task, request));
    let home = cx.worker().index;
    let mut why: Option<io::Error> = None;
    let mut started = 0;
    for (request, op) in requests.iter().zip(&ops) {
        // SAFETY: the frame stays until there is an answer.
        if let Err(error) = unsafe { cx.worker().io.start(cx.worker(), request, op) } {
            why = Some(error);
            break;
        }
        started += 1;
    }
    let started = &ops[..started];
    if why.is_none() {
        why = wait_for_first(cx, started, manner).err().map(io::Error::from);
    }
    for op in started.iter().filter(|op| op.answer().is_none()) {
        cx.shared().workers[usize::from(home)].io.cancel(cx.worker(), home, op);
    }
    // Only the answers end this wait.
    while started.iter().any(|op| op.answer().is_none()) {
        cx.worker().sleep(cx.task, Event::Block, Wait::Io, manner.at);
    }
    if why.is_some() {
        cx.stop_if_doomed();
    }
    let answers = ops.each_ref().map(|op| op.answer().filter(|&answer| why.is_none() || answer >= 0));
    match why {
        // An operation that completed all the same is not lost.
        Some(why) if answers.iter().all(Option::is_none) => Err(why),
        _ => Ok(answers),
    }
}

fn wait_for_first(cx: &Cx, ops: &[Op], manner: &Manner) -> Result<(), IoError> {
    let timer = manner.until.map(|until| cx.arm(until));
    let mut end = Ok(());
    while end.is_ok() && ops.iter().all(|op| op.answer().is_none()) {
        if manner.until.is_some_and(|until| cx.shared().now_ns() >= until) {
            end = Err(IoError::TimedOut);
        } else if let Err(Cancelled) = cx.block(Wait::Io, manner.at) {
            end = Err(IoError::why(cx));
        }
    }
    if let Some(timer) = timer {
        cx.shared().timers.disarm(timer);
    }
    end
}
