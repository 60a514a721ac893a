//! What all sockets share: a non-blocking descriptor, its timeouts, and a guess whether the next read will wait.

use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::IoError;
use crate::io::op::{Call, Manner, Request, Side, carry_out, perform};
use crate::io::sys::{self, Address};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long an accept that found no free descriptor waits before it returns the error.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// The last read left nothing in the socket: the next one most likely has to wait, and need not be tried first.
    drained: AtomicBool,
    /// In nanoseconds; 0: none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

impl Socket {
    /// The descriptor must be non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Socket {
        Socket {
            fd,
            drained: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
        }
    }

    /// For a descriptor of `std`, which may be blocking.
    pub(super) fn from_std(fd: OwnedFd) -> io::Result<Socket> {
        sys::set_nonblocking(&fd)?;
        Ok(Socket::new(fd))
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn try_clone(&self) -> io::Result<Socket> {
        self.fd.try_clone().map(Socket::new)
    }

    pub(super) fn as_std<S: FromRawFd, R>(&self, look: impl FnOnce(&S) -> R) -> R {
        sys::borrowed_as(&self.fd, look)
    }

    fn manner(cx: &Cx, timeout: &AtomicU64, eager: bool, at: &'static Location<'static>) -> Manner {
        let until = match timeout.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(cx.until(Duration::from_nanos(nanos))),
        };
        Manner { cost: Operation::NetworkIo, until, eager, at }
    }

    pub(super) fn recv(
        &self,
        cx: &Cx,
        buffer: &mut [u8],
        flags: libc::c_int,
        at: &'static Location<'static>,
    ) -> io::Result<usize> {
        let room = buffer.len();
        let eager = !self.drained.load(Ordering::Relaxed);
        let manner = Self::manner(cx, &self.read_timeout, eager, at);
        let got = perform(cx, Request::into(Call::Recv(flags), self.raw(), buffer), &manner)?;
        self.drained.store(got < room && flags & libc::MSG_PEEK == 0, Ordering::Relaxed);
        Ok(got)
    }

    pub(super) fn send(&self, cx: &Cx, buffer: &[u8], at: &'static Location<'static>) -> io::Result<usize> {
        // Where other tasks are ready to run, and to write, one system call submits all their writes.
        let eager = !cx.worker().io.batches(cx.worker());
        let manner = Self::manner(cx, &self.write_timeout, eager, at);
        perform(cx, Request::out_of(Call::Send, self.raw(), buffer), &manner)
    }

    /// Uses a message header, whose parts the caller lends, for [`Call::RecvMsg`] or [`Call::SendMsg`].
    pub(super) fn message(
        &self,
        cx: &Cx,
        call: Call,
        header: &mut libc::msghdr,
        at: &'static Location<'static>,
    ) -> io::Result<usize> {
        let timeout = if call == Call::RecvMsg { &self.read_timeout } else { &self.write_timeout };
        let manner = Self::manner(cx, timeout, true, at);
        perform(cx, Request::message(call, self.raw(), header), &manner)
    }

    pub(super) fn accept(&self, cx: &Cx, at: &'static Location<'static>) -> io::Result<(Socket, Address)> {
        let mut peer = Address::empty();
        let manner = Self::manner(cx, &self.read_timeout, true, at);
        match perform(cx, Request::accept(self.raw(), &mut peer), &manner) {
            Ok(fd) => Ok((Socket::new(sys::owned_answer(fd)), peer)),
            Err(error) if IoError::is_out_of_descriptors(&error) => {
                // The connection stays in the queue, so the next call would fail at once. A loop that only tries again
                // must neither spin nor keep tasks from running that could close a descriptor. If the sleep is
                // cancelled, the next call says so.
                let _ = cx.sleep(OUT_OF_DESCRIPTORS);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the connection is established. The caller has begun it, and charged it.
    pub(super) fn connected(
        &self,
        cx: &Cx,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> io::Result<()> {
        let until = timeout.map(|timeout| cx.until(timeout));
        let manner = Manner { cost: Operation::NetworkIo, until, eager: false, at };
        carry_out(cx, Request::new(Call::Ready(Side::Out), self.raw()), &manner)?;
        match self.as_std(|stream: &std::net::TcpStream| stream.take_error())? {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set(&self.read_timeout, timeout)
    }

    pub(super) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set(&self.write_timeout, timeout)
    }
}

fn set(timeout: &AtomicU64, value: Option<Duration>) -> io::Result<()> {
    let nanos = match value {
        None => 0,
        Some(Duration::ZERO) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of nothing: use None for none",
            ));
        }
        Some(value) => u64::try_from(value.as_nanos()).unwrap_or(u64::MAX),
    };
    timeout.store(nanos, Ordering::Relaxed);
    Ok(())
}

/// The methods of a byte stream over a [`Socket`], whatever its addresses are.
macro_rules! stream {
    ($stream:ident, $std:ty) => {
        impl $stream {
            /// Reads what is there, and waits until there is at least a byte; 0 is the end of the stream.
            #[track_caller]
            pub fn read(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.recv(cx, buffer, 0, Location::caller())
            }

            /// As `read`, but the bytes stay in the stream.
            #[track_caller]
            pub fn peek(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.recv(cx, buffer, libc::MSG_PEEK, Location::caller())
            }

            /// Writes at least a byte of `buffer`, and waits for room.
            #[track_caller]
            pub fn write(&self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
                self.0.send(cx, buffer, Location::caller())
            }

            /// Writes all of `buffer`.
            pub fn write_all(&self, cx: &Cx, buffer: &[u8]) -> io::Result<()> {
                Write::write_all(&mut &*self, cx, buffer)
            }

            /// Fills the buffer.
            pub fn read_exact(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<()> {
                Read::read_exact(&mut &*self, cx, buffer)
            }

            /// Appends everything up to the end of the stream, and returns how many bytes that were.
            pub fn read_to_end(&self, cx: &Cx, buffer: &mut Vec<u8>) -> io::Result<usize> {
                Read::read_to_end(&mut &*self, cx, buffer)
            }

            /// An arm of a [`Cx::select`] that is ready when there is something to read, or the end.
            #[must_use]
            pub fn arm(&self) -> crate::io::ReadArm<'_> {
                crate::io::ReadArm::new(self.0.as_fd())
            }

            /// Shuts down one direction, or both: the other side reads up to the end, or its writes fail. A task that
            /// waits here for that direction goes on.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.0.as_std(|stream: &$std| stream.shutdown(how))
            }

            /// A read that waits longer than this ends with [`TimedOut`](io::ErrorKind::TimedOut).
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_read_timeout(timeout)
            }

            /// A write that waits longer than this ends with [`TimedOut`](io::ErrorKind::TimedOut).
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_write_timeout(timeout)
            }

            /// Another handle for the same stream, with timeouts of its own. Two tasks can also share one by reference.
            pub fn try_clone(&self) -> io::Result<$stream> {
                self.0.try_clone().map($stream)
            }

            /// Takes the pending error of the socket, if any.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.0.as_std(|stream: &$std| stream.take_error())
            }

            /// Converts a stream of `std`.
            pub fn from_std(stream: $std) -> io::Result<$stream> {
                Socket::from_std(stream.into()).map($stream)
            }
        }

        impl Read for $stream {
            #[track_caller]
            fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.recv(cx, buffer, 0, Location::caller())
            }
        }

        impl Write for $stream {
            #[track_caller]
            fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
                self.0.send(cx, buffer, Location::caller())
            }
        }

        impl Read for &$stream {
            #[track_caller]
            fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.recv(cx, buffer, 0, Location::caller())
            }
        }

        impl Write for &$stream {
            #[track_caller]
            fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
                self.0.send(cx, buffer, Location::caller())
            }
        }
    };
}
pub(super) use stream;

/// Conversions that lend or give away the descriptor of a socket. It is non-blocking: code that reads it by other means
/// gets "would block".
macro_rules! descriptor {
    ($($socket:ident),*) => {$(
        impl std::os::fd::AsFd for $socket {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.0.as_fd()
            }
        }

        impl From<$socket> for std::os::fd::OwnedFd {
            fn from(socket: $socket) -> std::os::fd::OwnedFd {
                socket.0.into_fd()
            }
        }
    )*};
}
pub(super) use descriptor;
