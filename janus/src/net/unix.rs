//! Unix sockets: connections and datagrams by the path of a file, and pairs without one.

use super::socket::{Socket, descriptor, stream};
use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::pool::{self, Ending};
use crate::io::{Read, Write, begin};
use std::io;
use std::net::Shutdown;
use std::os::unix::net as std_unix;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

/// A socket that takes connections at a path: [`std::os::unix::net::UnixListener`] with a [`Cx`].
#[derive(Debug)]
pub struct UnixListener(Socket);

/// A connection: [`std::os::unix::net::UnixStream`] with a [`Cx`].
#[derive(Debug)]
pub struct UnixStream(Socket);

/// A socket for datagrams: [`std::os::unix::net::UnixDatagram`] with a [`Cx`].
#[derive(Debug)]
pub struct UnixDatagram(Socket);

impl UnixListener {
    /// Creates the socket file and listens there. As with `std`, the file stays when the listener is dropped.
    #[track_caller]
    pub fn bind(cx: &Cx, path: impl AsRef<Path>) -> io::Result<UnixListener> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        UnixListener::from_std(std_unix::UnixListener::bind(path)?)
    }

    /// The next connection.
    #[track_caller]
    pub fn accept(&self, cx: &Cx) -> io::Result<UnixStream> {
        let (socket, _peer) = self.0.accept(cx, Location::caller())?;
        Ok(UnixStream(socket))
    }

    /// Converts a listener of `std`.
    pub fn from_std(listener: std_unix::UnixListener) -> io::Result<UnixListener> {
        Socket::from_std(listener.into()).map(UnixListener)
    }
}

impl UnixStream {
    /// Connects. If the listener's queue is full, connecting blocks, so a thread that may block does it.
    #[track_caller]
    pub fn connect(cx: &Cx, path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let path = path.as_ref().to_owned();
        let call = move || std_unix::UnixStream::connect(path);
        UnixStream::from_std(pool::unblock_as(
            cx,
            Operation::NetworkIo,
            Location::caller(),
            Ending::Abandon,
            call,
        )??)
    }

    /// Makes two connected ends.
    #[track_caller]
    pub fn pair(cx: &Cx) -> io::Result<(UnixStream, UnixStream)> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        let (one, other) = std_unix::UnixStream::pair()?;
        Ok((UnixStream::from_std(one)?, UnixStream::from_std(other)?))
    }
}

stream!(UnixStream, std_unix::UnixStream);

impl UnixDatagram {
    /// Creates the socket file and receives there.
    #[track_caller]
    pub fn bind(cx: &Cx, path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        UnixDatagram::from_std(std_unix::UnixDatagram::bind(path)?)
    }

    /// Makes two connected sockets.
    #[track_caller]
    pub fn pair(cx: &Cx) -> io::Result<(UnixDatagram, UnixDatagram)> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        let (one, other) = std_unix::UnixDatagram::pair()?;
        Ok((UnixDatagram::from_std(one)?, UnixDatagram::from_std(other)?))
    }

    /// From now on `send` sends to the socket at `path`.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.0.as_std(|socket: &std_unix::UnixDatagram| socket.connect(path))
    }

    /// Sends one datagram, and waits while the receiver has no room for it.
    #[track_caller]
    pub fn send(&self, cx: &Cx, datagram: &[u8]) -> io::Result<usize> {
        self.0.send(cx, datagram, Location::caller())
    }

    /// Receives the next datagram, as much of it as fits the buffer.
    #[track_caller]
    pub fn recv(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(cx, buffer, 0, Location::caller())
    }

    /// A receive that waits longer than this ends with [`TimedOut`](io::ErrorKind::TimedOut).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Converts a socket of `std`.
    pub fn from_std(socket: std_unix::UnixDatagram) -> io::Result<UnixDatagram> {
        Socket::from_std(socket.into()).map(UnixDatagram)
    }
}

descriptor!(UnixListener, UnixStream, UnixDatagram);
