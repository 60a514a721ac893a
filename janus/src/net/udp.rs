//! UDP.

use super::Resolve;
use super::socket::{Socket, descriptor};
use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::begin;
use crate::io::op::Call;
use crate::io::sys::{Address, Message};
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::time::Duration;

/// A socket for datagrams: [`std::net::UdpSocket`] with a [`Cx`].
#[derive(Debug)]
pub struct UdpSocket(Socket);

impl UdpSocket {
    /// Receives at the first address that can be bound; port 0 is any free port.
    #[track_caller]
    pub fn bind(cx: &Cx, address: impl Resolve) -> io::Result<UdpSocket> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        let bound = std::net::UdpSocket::bind(&*address.resolve(cx)?)?;
        UdpSocket::from_std(bound)
    }

    /// Restricts the socket: from now on it sends to, and receives from, this address only.
    #[track_caller]
    pub fn connect(&self, cx: &Cx, address: impl Resolve) -> io::Result<()> {
        begin(cx, Operation::NetworkIo, Location::caller())?;
        let addresses = address.resolve(cx)?;
        self.0.as_std(|socket: &std::net::UdpSocket| socket.connect(&*addresses))
    }

    /// Sends one datagram.
    #[track_caller]
    pub fn send_to(&self, cx: &Cx, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        let mut message = Message::to(Address::new(&to), datagram);
        self.0.message(cx, Call::SendMsg, message.header(), Location::caller())
    }

    /// Receives the next datagram, as much of it as fits the buffer, and its sender's address.
    #[track_caller]
    pub fn recv_from(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut message = Message::from_anybody(buffer);
        let got = self.0.message(cx, Call::RecvMsg, message.header(), Location::caller())?;
        let from = message.peer().get().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok((got, from))
    }

    /// Sends one datagram to the address that the socket is connected to.
    #[track_caller]
    pub fn send(&self, cx: &Cx, datagram: &[u8]) -> io::Result<usize> {
        self.0.send(cx, datagram, Location::caller())
    }

    /// Receives the next datagram from the address that the socket is connected to.
    #[track_caller]
    pub fn recv(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(cx, buffer, 0, Location::caller())
    }

    /// A receive that waits longer than this ends with [`TimedOut`](io::ErrorKind::TimedOut).
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// The socket's own address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.as_std(|socket: &std::net::UdpSocket| socket.local_addr())
    }

    /// Converts a socket of `std`.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        Socket::from_std(socket.into()).map(UdpSocket)
    }
}

descriptor!(UdpSocket);
