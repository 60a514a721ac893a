//! System calls that do not wait, as functions: each returns what the kernel answered. Nothing here knows about tasks.

use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What a system call returned: a number that is not negative, or the error in `errno`.
pub(super) fn checked(answer: isize) -> Result<usize, i32> {
    if answer >= 0 {
        Ok(answer as usize)
    } else {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

fn outcome(answer: libc::c_int) -> io::Result<libc::c_int> {
    checked(answer as isize).map(|value| value as libc::c_int).map_err(io::Error::from_raw_os_error)
}

fn owned(answer: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just made it for us.
    outcome(answer).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The descriptor that the kernel has made for us, from the answer of a driver's operation.
pub(crate) fn owned_answer(fd: usize) -> OwnedFd {
    // SAFETY: only answers of `accept` are passed here, once each.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// An event descriptor, to wake a worker that sleeps in the kernel.
pub(super) fn event() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Rings the bell. It cannot fail in practice: the counter of an event descriptor that is never read takes 2^64 rings.
pub(crate) fn ring(bell: RawFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the buffer is valid; an invalid descriptor is an error, which nobody could handle.
    unsafe { libc::write(bell, one.as_ptr().cast(), one.len()) };
}

/// Resets the bell's counter.
pub(super) fn hush(bell: &OwnedFd) {
    let mut count = [0_u8; 8];
    // SAFETY: the buffer is there.
    unsafe { libc::read(bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

/// A non-blocking socket.
pub(crate) fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })
}

/// A pipe: its reading end, its writing end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two.
    outcome(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just made them for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// A descriptor that is readable when the process has ended.
pub(crate) fn process(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) } as libc::c_int)
}

/// Makes the descriptor non-blocking: it answers "would block" instead of blocking.
pub(crate) fn set_nonblocking(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let flags = outcome(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    outcome(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Lends the descriptor as one of `std`'s types, for the duration of `look`.
pub(crate) fn borrowed_as<S: FromRawFd, R>(fd: &OwnedFd, look: impl FnOnce(&S) -> R) -> R {
    // SAFETY: the descriptor is open meanwhile, and is not closed by this value.
    let borrowed = ManuallyDrop::new(unsafe { S::from_raw_fd(fd.as_raw_fd()) });
    look(&borrowed)
}

/// Lets a listener bind to an address that its closed connections still occupy.
pub(crate) fn set_reuse(fd: &OwnedFd) -> io::Result<()> {
    let one: libc::c_int = 1;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const one).cast();
    // SAFETY: the value is there and of that size.
    outcome(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, value, size) })
        .map(drop)
}

/// Begins to connect; false: the connection is under way.
pub(crate) fn connect(fd: &OwnedFd, address: &Address) -> io::Result<bool> {
    // SAFETY: the address is there and of that length.
    let answer =
        unsafe { libc::connect(fd.as_raw_fd(), (&raw const address.storage).cast(), address.length) };
    match outcome(answer) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives a socket its address.
pub(crate) fn bind(fd: &OwnedFd, address: &Address) -> io::Result<()> {
    // SAFETY: the address is there and of that length.
    outcome(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address.storage).cast(), address.length) })
        .map(drop)
}

/// Lets a socket take connections.
pub(crate) fn listen(fd: &OwnedFd, backlog: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    outcome(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// An internet address as the kernel writes it.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl Address {
    /// Room for an address.
    pub(crate) fn empty() -> Address {
        // SAFETY: all zeroes is an address of no family.
        let storage = unsafe { std::mem::zeroed() };
        Address { storage, length: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(crate) fn new(address: &SocketAddr) -> Address {
        let mut room = Address::empty();
        match address {
            SocketAddr::V4(v4) => {
                let written = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                room.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
                // SAFETY: the storage has room for, and the alignment of, every address.
                unsafe { (&raw mut room.storage).cast::<libc::sockaddr_in>().write(written) };
            }
            SocketAddr::V6(v6) => {
                let written = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                room.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
                // SAFETY: as above.
                unsafe { (&raw mut room.storage).cast::<libc::sockaddr_in6>().write(written) };
            }
        }
        room
    }

    /// The family, for [`socket`].
    pub(crate) fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }

    /// The address as a `std` type; `None`: it is not an internet address.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family says which it is, and the storage is large enough.
                let v4 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// A datagram with an address, as the kernel wants it: a header that points to its parts.
pub(crate) struct Message<'a> {
    header: libc::msghdr,
    peer: Address,
    bytes: libc::iovec,
    buffer: PhantomData<&'a mut [u8]>,
}

impl<'a> Message<'a> {
    fn new(peer: Address, pointer: *mut u8, length: usize) -> Message<'a> {
        // SAFETY: all zeroes is an empty header.
        let header = unsafe { std::mem::zeroed() };
        Message {
            header,
            peer,
            bytes: libc::iovec { iov_base: pointer.cast(), iov_len: length },
            buffer: PhantomData,
        }
    }

    pub(crate) fn to(peer: Address, datagram: &'a [u8]) -> Message<'a> {
        Message::new(peer, datagram.as_ptr().cast_mut(), datagram.len())
    }

    pub(crate) fn from_anybody(buffer: &'a mut [u8]) -> Message<'a> {
        Message::new(Address::empty(), buffer.as_mut_ptr(), buffer.len())
    }

    /// The header, which is valid as long as it is borrowed: its parts do not move meanwhile.
    pub(crate) fn header(&mut self) -> &mut libc::msghdr {
        self.header.msg_name = (&raw mut self.peer.storage).cast();
        self.header.msg_namelen = self.peer.length;
        self.header.msg_iov = &raw mut self.bytes;
        self.header.msg_iovlen = 1;
        &mut self.header
    }

    /// The address that the datagram came from.
    pub(crate) fn peer(&self) -> &Address {
        &self.peer
    }
}
