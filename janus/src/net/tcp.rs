//! TCP.

use super::Resolve;
use super::socket::{Socket, descriptor, stream};
use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::sys::{self, Address};
use crate::io::{Read, ReadArm, Write, begin};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::panic::Location;
use std::time::Duration;

/// Connections that wait to be accepted; the kernel may allow fewer.
const BACKLOG: libc::c_int = 4096;

/// A socket that takes connections: [`std::net::TcpListener`] with a [`Cx`].
///
/// ```
/// # use janus::{Config, Runtime, net::{TcpListener, TcpStream}};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let heard = runtime.run(|cx| cx.nursery(|nursery| {
///     let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     nursery.spawn_try(move |cx| TcpStream::connect(cx, address)?.write_all(cx, b"hello"));
///     let (stream, _peer) = listener.accept(cx)?;
///     let mut heard = Vec::new();
///     stream.read_to_end(cx, &mut heard)?;
///     Ok(heard)
/// })).unwrap().unwrap();
/// assert_eq!(heard, b"hello");
/// ```
#[derive(Debug)]
pub struct TcpListener(Socket);

/// A connection: [`std::net::TcpStream`] with a [`Cx`].
#[derive(Debug)]
pub struct TcpStream(Socket);

impl TcpListener {
    /// Listens at the first address that can be bound; port 0 is any free port.
    #[track_caller]
    pub fn bind(cx: &Cx, address: impl Resolve) -> io::Result<TcpListener> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        first(&address.resolve(cx)?, |address| {
            let address = Address::new(&address);
            let fd = sys::socket(address.family(), libc::SOCK_STREAM)?;
            sys::set_reuse(&fd)?;
            sys::bind(&fd, &address)?;
            sys::listen(&fd, BACKLOG)?;
            Ok(TcpListener(Socket::new(fd)))
        })
    }

    /// Accepts the next connection, and returns it with the peer's address. When there are no descriptors left
    /// ([`IoError::is_out_of_descriptors`](crate::io::IoError::is_out_of_descriptors)), the connection stays in the
    /// queue and can be accepted later; the call waits a moment before it returns, so that a loop which only tries
    /// again does not spin.
    #[track_caller]
    pub fn accept(&self, cx: &Cx) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.0.accept(cx, Location::caller())?;
        let peer = peer.get().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok((TcpStream(socket), peer))
    }

    /// An arm of a [`Cx::select`] that is ready when a connection waits to be accepted.
    #[must_use]
    pub fn arm(&self) -> ReadArm<'_> {
        ReadArm::new(self.0.as_fd())
    }

    /// An accept that waits longer than this ends with [`TimedOut`](io::ErrorKind::TimedOut).
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.as_std(|listener: &std::net::TcpListener| listener.local_addr())
    }

    /// Another handle for the same listener.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        self.0.try_clone().map(TcpListener)
    }

    /// Converts a listener of `std`.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        Socket::from_std(listener.into()).map(TcpListener)
    }
}

impl TcpStream {
    /// Connects to the first address that answers.
    #[track_caller]
    pub fn connect(cx: &Cx, address: impl Resolve) -> io::Result<TcpStream> {
        let at = Location::caller();
        first(&address.resolve(cx)?, |address| TcpStream::connect_by(cx, &address, None, at))
    }

    /// Connects to one address, and waits for `timeout` at most.
    #[track_caller]
    pub fn connect_timeout(cx: &Cx, address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        TcpStream::connect_by(cx, address, Some(timeout), Location::caller())
    }

    fn connect_by(
        cx: &Cx,
        address: &SocketAddr,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> io::Result<TcpStream> {
        begin(cx, Operation::NetworkIo, at)?;
        let address = Address::new(address);
        let socket = Socket::new(sys::socket(address.family(), libc::SOCK_STREAM)?);
        // If the connection is established at once, the wait below ends at once.
        sys::connect(socket.fd(), &address)?;
        socket.connected(cx, timeout, at)?;
        Ok(TcpStream(socket))
    }

    /// The address of the other side.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.as_std(|stream: &std::net::TcpStream| stream.peer_addr())
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.as_std(|stream: &std::net::TcpStream| stream.local_addr())
    }

    /// Whether small writes go out at once (true), or wait for the acknowledgement of those before them (false: Nagle's
    /// algorithm, the default).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.as_std(|stream: &std::net::TcpStream| stream.set_nodelay(nodelay))
    }

    /// See [`TcpStream::set_nodelay`].
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.as_std(std::net::TcpStream::nodelay)
    }
}

stream!(TcpStream, std::net::TcpStream);
descriptor!(TcpListener, TcpStream);

/// The result for the first address that works, or the last error.
fn first<T>(addresses: &[SocketAddr], mut attempt: impl FnMut(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "there is no address");
    for &address in addresses {
        match attempt(address) {
            // The address is not the cause: the next one would fail in the same way.
            Err(error) if crate::io::IoError::of(&error).is_some() => return Err(error),
            Err(error) => last = error,
            done => return done,
        }
    }
    Err(last)
}
