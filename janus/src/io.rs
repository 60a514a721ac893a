//! I/O that blocks the task and not its worker: what sockets, pipes, files and child processes have in common.
//!
//! The calls look like those of `std`, and take the task's [`Cx`]: [`TcpStream::read(cx, ..)`](crate::net::TcpStream::read).
//! Each of them
//! - costs one of `syscalls` and one of `ops`, however long it waits: the rows "file I/O" and "network I/O" of the cost
//!   table. Calls that make a descriptor cost the same; calls without a `Cx` (options, addresses, `shutdown`) are free;
//! - ends with [`IoError::Cancelled`] when the task is cancelled. If the operation completed all the same, the result
//!   is `Ok` and nothing is lost;
//! - leaves nothing behind: when the call has returned, the kernel no longer uses the buffer, also after a cancellation
//!   or a timeout.
//!
//! Errors are [`std::io::Error`]; errors of the runtime itself have an [`IoError`] inside, see [`IoError::of`]. In
//! deterministic mode there is no I/O ([`IoError::Deterministic`]), because the outside world cannot be replayed.
//!
//! [`Read`] and [`Write`] are the traits of `std` with a `Cx`; [`With`] turns them into the traits of `std`, for
//! `BufReader`, `copy` and libraries. `docs/janus-io.md` is the design.

mod arm;
mod driver;
mod epoll;
pub(crate) mod op;
mod pipe;
pub(crate) mod pool;
pub(crate) mod sys;
mod uring;

pub use arm::ReadArm;
pub(crate) use driver::Io;
pub use pipe::{PipeReader, PipeWriter, pipe};
pub use pool::unblock;

use crate::budget::{Operation, Resource};
use crate::cx::{ChargeError, Cx, ensure_stack};
use std::error::Error;
use std::fmt;
use std::io;
use std::panic::Location;

/// Which of the kernel's interfaces a runtime uses for I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// io_uring, or epoll where io_uring is refused.
    #[default]
    Auto,
    /// io_uring, or an error where it is refused.
    Uring,
    /// epoll, and threads for files.
    Epoll,
}

/// An error of the runtime itself, inside a [`std::io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The task was cancelled, or a deadline around it is over.
    Cancelled,
    /// This part of the task's budget is spent, and the task is told to end because of it.
    BudgetExceeded(Resource),
    /// The time that was set for the operation is over; the kind is [`TimedOut`](io::ErrorKind::TimedOut).
    TimedOut,
    /// The runtime is deterministic, so there is no I/O. The kind is [`Unsupported`](io::ErrorKind::Unsupported).
    Deterministic,
}

impl IoError {
    /// The runtime's reason for this error, if the error is the runtime's.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<IoError> {
        error.get_ref()?.downcast_ref::<IoError>().copied()
    }

    /// The error for a task that is told to end while it waits for I/O.
    pub(crate) fn why(cx: &Cx) -> IoError {
        cx.ended_by().map_or(IoError::Cancelled, IoError::BudgetExceeded)
    }

    /// Whether the process, or the system, has no descriptors left. An accept loop survives that: it waits until one is
    /// closed, and goes on.
    #[must_use]
    pub fn is_out_of_descriptors(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::BudgetExceeded(resource) => {
                return write!(f, "the task's {resource} budget is spent: no more I/O; grant it more");
            }
            IoError::Cancelled => "the task was cancelled, or its time is over, while it waited for I/O",
            IoError::TimedOut => "the time that was set for this I/O is over",
            IoError::Deterministic => {
                "a deterministic runtime has no I/O: run without a seed, or feed it by channels"
            }
        })
    }
}

impl Error for IoError {}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        let kind = match error {
            // Not `Interrupted`: `std` would retry for ever.
            IoError::Cancelled | IoError::BudgetExceeded(_) => io::ErrorKind::Other,
            IoError::TimedOut => io::ErrorKind::TimedOut,
            IoError::Deterministic => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

/// Charges one operation of this row of the cost table.
#[inline]
pub(crate) fn charge(cx: &Cx, operation: Operation, at: &'static Location<'static>) -> io::Result<()> {
    match cx.charge_at(operation, at) {
        Ok(()) => Ok(()),
        Err(ChargeError::Cancelled) => Err(IoError::Cancelled.into()),
        Err(ChargeError::BudgetExceeded(resource)) => Err(IoError::BudgetExceeded(resource).into()),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// An error if the runtime is deterministic, and so has no I/O.
#[inline]
pub(crate) fn refused(cx: &Cx) -> io::Result<()> {
    if cx.shared().is_deterministic() { Err(IoError::Deterministic.into()) } else { Ok(()) }
}

/// Begins a call that does not wait, such as one that makes a descriptor: charges it, and makes sure that the runtime
/// has I/O and the task room on its stack.
pub(crate) fn begin(cx: &Cx, operation: Operation, at: &'static Location<'static>) -> io::Result<()> {
    charge(cx, operation, at)?;
    refused(cx)?;
    ensure_stack(cx.task);
    Ok(())
}

/// [`std::io::Read`] with a [`Cx`].
pub trait Read {
    /// Reads what is there, and waits until there is at least a byte; 0 is the end.
    fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize>;

    /// Fills the buffer; an end before that is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    fn read_exact(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<()> {
        io::Read::read_exact(&mut With::new(cx, self), buffer)
    }

    /// Appends everything up to the end, and returns how many bytes that were.
    fn read_to_end(&mut self, cx: &Cx, buffer: &mut Vec<u8>) -> io::Result<usize> {
        io::Read::read_to_end(&mut With::new(cx, self), buffer)
    }

    /// As `read_to_end`, for text.
    fn read_to_string(&mut self, cx: &Cx, buffer: &mut String) -> io::Result<usize> {
        io::Read::read_to_string(&mut With::new(cx, self), buffer)
    }
}

/// [`std::io::Write`] with a [`Cx`]. There is nothing to flush: what was written is with the kernel.
pub trait Write {
    /// Writes at least a byte of `buffer`, and waits for room.
    fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize>;

    /// Writes all of `buffer`.
    fn write_all(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut With::new(cx, self), buffer)
    }
}

impl<T: Read + ?Sized> Read for &mut T {
    fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read(cx, buffer)
    }
}

impl<T: Write + ?Sized> Write for &mut T {
    fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
        (**self).write(cx, buffer)
    }
}

/// A reader or writer together with the task that uses it, which makes it a [`std::io::Read`] or a [`std::io::Write`].
///
/// ```
/// # use janus::{Config, Runtime, io::With, net::{TcpListener, TcpStream}};
/// # use std::io::{BufRead, BufReader};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let line = runtime.run(|cx| cx.nursery(|nursery| {
///     let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     nursery.spawn_try(move |cx| TcpStream::connect(cx, address)?.write_all(cx, b"one\ntwo\n"));
///     let (stream, _) = listener.accept(cx)?;
///     BufReader::new(With::new(cx, &stream)).lines().nth(1).expect("two lines").map_err(Into::into)
/// })).unwrap().unwrap();
/// assert_eq!(line, "two");
/// ```
#[derive(Debug)]
pub struct With<'a, T> {
    cx: &'a Cx,
    inner: T,
}

impl<'a, T> With<'a, T> {
    /// `inner` may be a reference.
    pub fn new(cx: &'a Cx, inner: T) -> With<'a, T> {
        With { cx, inner }
    }

    /// The reader or writer that it was made of.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: Read> io::Read for With<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(self.cx, buffer)
    }
}

impl<T: Write> io::Write for With<'_, T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.inner.write(self.cx, buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
