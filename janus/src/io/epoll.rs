//! The driver on epoll, for systems that refuse io_uring: it waits until a descriptor is ready, and the task does the
//! call itself. Unless the operation is cancelled, the answer is always `EAGAIN`: try it.
//!
//! A descriptor is registered for one event at a time, and again as long as an operation waits for it; so a descriptor
//! that was closed, or for which nothing waits any more, causes no events. Waiters form a list through their
//! operations: nothing is allocated for a wait.

use super::op::{Name, Op, Side};
use super::sys;
use crate::alloc::Quiet;
use crate::worker::Worker;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Events that are taken at a time.
const BATCH: usize = 64;

const BELL: u64 = u64::MAX;

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// These events concern every operation that waits for the descriptor.
const BOTH: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

pub(super) struct Epoll {
    poll: OwnedFd,
    bell: OwnedFd,
    /// The first operation that waits for each descriptor.
    waiting: Vec<*const Op>,
    /// On the heap, because the stacks of tasks are small.
    events: Box<[libc::epoll_event; BATCH]>,
    /// Turns without a wait since the last system call.
    looks: u32,
    /// Operations without an answer.
    pub(super) under_way: usize,
}

/// Of turns without a wait, one in `LOOKS` asks the kernel.
const LOOKS: u32 = 4;

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointers.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let poll = sys::checked(poll as isize).map_err(io::Error::from_raw_os_error)?;
        // SAFETY: the kernel has just made it for us.
        let poll = unsafe { OwnedFd::from_raw_fd(poll as RawFd) };
        let events = Box::new([libc::epoll_event { events: 0, u64: 0 }; BATCH]);
        let epoll = Epoll { poll, bell: sys::event()?, waiting: Vec::new(), events, looks: 0, under_way: 0 };
        epoll.control(libc::EPOLL_CTL_ADD, epoll.bell.as_raw_fd(), libc::EPOLLIN as u32, BELL)?;
        Ok(epoll)
    }

    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn control(&self, what: libc::c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event is there.
        let answer = unsafe { libc::epoll_ctl(self.poll.as_raw_fd(), what, fd, &raw mut event) };
        sys::checked(answer as isize).map(drop).map_err(io::Error::from_raw_os_error)
    }

    /// Registers for one event of the kinds that operations wait for.
    fn register(&self, fd: RawFd) -> io::Result<()> {
        let mut events = libc::EPOLLONESHOT as u32;
        let mut op = self.waiting[fd as usize];
        // SAFETY: an operation in the list has no answer yet, so its frame exists.
        while let Some(waits) = unsafe { op.as_ref() } {
            events |= if waits.side == Side::In { READABLE } else { WRITABLE };
            op = waits.next.get();
        }
        match self.control(libc::EPOLL_CTL_MOD, fd, events, fd as u64) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, fd, events, fd as u64)
            }
            other => other,
        }
    }

    /// # Safety
    /// As for `Io::start`.
    pub(super) unsafe fn start(&mut self, op: &Op) -> io::Result<()> {
        let index = op.fd as usize;
        if index >= self.waiting.len() {
            let _quiet = Quiet::new();
            self.waiting.resize((index + 1).next_power_of_two(), ptr::null());
        }
        op.next.set(self.waiting[index]);
        self.waiting[index] = op;
        self.register(op.fd).inspect_err(|_| self.waiting[index] = op.next.get())?;
        self.under_way += 1;
        Ok(())
    }

    /// Cancels the operation, if it is still there.
    pub(super) fn cancel(&mut self, name: Name, here: &Worker) {
        let this = |waits: &Op| ptr::from_ref(waits).addr() == name.op;
        if (name.fd as usize) < self.waiting.len() {
            self.unlist(name.fd as usize, this, -libc::ECANCELED, here);
        }
    }

    /// Takes the operations that `chosen` selects out of the list of a descriptor, and gives them this answer.
    fn unlist(&mut self, fd: usize, chosen: impl Fn(&Op) -> bool, answer: i32, here: &Worker) {
        let mut op = std::mem::replace(&mut self.waiting[fd], ptr::null());
        // SAFETY: an operation in the list has no answer yet, so its frame exists.
        while let Some(waits) = unsafe { op.as_ref() } {
            let next = waits.next.get();
            if chosen(waits) {
                // SAFETY: the operation is out of the list, and this is its only answer.
                unsafe { Op::finish(op, answer, here) };
                self.under_way -= 1;
            } else {
                waits.next.set(self.waiting[fd]);
                self.waiting[fd] = op;
            }
            op = next;
        }
    }

    /// Waits for events, for `timeout` at most; returns how many came. An interruption counts as none: the caller looks
    /// again.
    fn ask(&mut self, timeout: Option<Duration>) -> usize {
        let (poll, room) = (self.poll.as_raw_fd(), self.events.len() as libc::c_int);
        let events = self.events.as_mut_ptr();
        let span = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let span = span.as_ref().map_or(ptr::null(), ptr::from_ref);
        let no_mask = ptr::null::<libc::sigset_t>();
        // SAFETY: there is room for that many events, and the time is valid or null.
        let found = unsafe { libc::syscall(libc::SYS_epoll_pwait2, poll, events, room, span, no_mask, 0) };
        match sys::checked(found as isize) {
            Ok(found) => found,
            // Before Linux 5.11. The time is rounded up: waking too early would only make the caller look again.
            Err(libc::ENOSYS) => {
                let milliseconds = timeout.map_or(-1, |timeout| {
                    timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int
                });
                // SAFETY: as above.
                unsafe { libc::epoll_wait(poll, events, room, milliseconds) }.max(0) as usize
            }
            Err(_) => 0,
        }
    }

    pub(super) fn turn(&mut self, here: &Worker, wait: Option<Option<Duration>>) {
        self.looks += 1;
        if wait.is_none() && self.looks < LOOKS {
            return;
        }
        self.looks = 0;
        let found = self.ask(wait.unwrap_or(Some(Duration::ZERO)));
        for index in 0..found {
            let libc::epoll_event { events, u64: data } = self.events[index];
            if data == BELL {
                sys::hush(&self.bell);
                continue;
            }
            let fd = data as usize;
            let concerns =
                |op: &Op| events & (BOTH | if op.side == Side::In { READABLE } else { WRITABLE }) != 0;
            self.unlist(fd, concerns, -libc::EAGAIN, here);
            if !self.waiting[fd].is_null() && self.register(fd as RawFd).is_err() {
                // The tasks find out the reason when they try the call.
                self.unlist(fd, |_| true, -libc::EAGAIN, here);
            }
        }
    }
}
