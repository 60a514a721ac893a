//! From what a user writes to addresses. Names are resolved on a thread that may block.

use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::pool::{self, Ending};
use crate::io::refused;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::panic::Location;

/// What can be an address: [`std::net::ToSocketAddrs`] with a [`Cx`]. Resolving a name blocks the task, not its worker;
/// a numeric address costs nothing.
pub trait Resolve {
    /// The addresses, at least one.
    fn resolve(&self, cx: &Cx) -> io::Result<Vec<SocketAddr>>;
}

fn look_up(cx: &Cx, name: String, port: Option<u16>) -> io::Result<Vec<SocketAddr>> {
    refused(cx)?;
    let call = move || -> io::Result<Vec<SocketAddr>> {
        match port {
            Some(port) => (name.as_str(), port).to_socket_addrs().map(Iterator::collect),
            None => name.to_socket_addrs().map(Iterator::collect),
        }
    };
    let found = pool::unblock_as(cx, Operation::NetworkIo, Location::caller(), Ending::Abandon, call)??;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

impl Resolve for SocketAddr {
    fn resolve(&self, _cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![*self])
    }
}

impl Resolve for [SocketAddr] {
    fn resolve(&self, _cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        if self.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no address to choose from"));
        }
        Ok(self.to_vec())
    }
}

impl Resolve for str {
    fn resolve(&self, cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        match self.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => look_up(cx, self.to_owned(), None),
        }
    }
}

impl Resolve for String {
    fn resolve(&self, cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        self.as_str().resolve(cx)
    }
}

impl Resolve for (&str, u16) {
    fn resolve(&self, cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        match self.0.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, self.1)]),
            Err(_) => look_up(cx, self.0.to_owned(), Some(self.1)),
        }
    }
}

macro_rules! pairs {
    ($($ip:ty),*) => {$(
        impl Resolve for ($ip, u16) {
            fn resolve(&self, _cx: &Cx) -> io::Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}
pairs!(IpAddr, Ipv4Addr, Ipv6Addr);

impl<T: Resolve + ?Sized> Resolve for &T {
    fn resolve(&self, cx: &Cx) -> io::Result<Vec<SocketAddr>> {
        (**self).resolve(cx)
    }
}
