//! The driver on io_uring: operations are submitted to the kernel a batch at a time, and carried out there.
//!
//! `user_data` is the address of the [`Op`], which stays until its answer is taken here (invariant 1 of `op.rs`).

use super::op::{ACCEPTED, Call, Name, Op, Request, Side};
use super::sys;
use crate::worker::Worker;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// How many operations wait to be submitted, and how many answers wait to be taken; the kernel keeps more if necessary.
const ENTRIES: u32 = 256;
const ANSWERS: u32 = 4096;

/// `user_data` of the ring's own operations; no address is that low.
const BELL: u64 = 1;
const CANCEL: u64 = 2;

/// Receive only after the socket is readable, without trying first.
const POLL_FIRST: u16 = 1;

/// The kernel is to complete what it has for us.
const GETEVENTS: u32 = 1;

pub(super) struct Uring {
    ring: IoUring,
    bell: OwnedFd,
    /// The kernel watches the bell.
    watched: bool,
    /// Operations without an answer.
    pub(super) under_way: usize,
}

impl Uring {
    /// Called by the thread that will use the ring. `alone`: no other thread will, and the kernel completes our
    /// operations when we ask for it, in batches. Otherwise it does so whenever that thread is in the kernel: at the
    /// next tick, if it is stuck.
    pub(super) fn new(alone: bool) -> io::Result<Uring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(ANSWERS).setup_taskrun_flag();
        let chosen = if alone {
            builder.setup_single_issuer().setup_defer_taskrun().build(ENTRIES)
        } else {
            builder.setup_coop_taskrun().build(ENTRIES)
        };
        // Before Linux 6.1.
        let ring = chosen.or_else(|_| IoUring::builder().setup_cqsize(ANSWERS).build(ENTRIES))?;
        let usable = ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop();
        if !usable {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Uring { ring, bell: sys::event()?, watched: false, under_way: 0 })
    }

    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// # Safety
    /// As for `Io::start`.
    pub(super) unsafe fn start(&mut self, request: &Request, op: &Op, here: &Worker) -> io::Result<()> {
        let entry = entry(request).user_data(std::ptr::from_ref(op).expose_provenance() as u64);
        // SAFETY: the caller's.
        unsafe { self.push(&entry, here)? };
        self.under_way += 1;
        Ok(())
    }

    /// Asks the kernel to cancel the operation: if it is too late for that, there is an answer anyway.
    pub(super) fn cancel(&mut self, name: Name, here: &Worker) {
        let entry = opcode::AsyncCancel::new(name.op as u64).build().user_data(CANCEL);
        // SAFETY: the entry refers to no memory.
        while unsafe { self.push(&entry, here) }.is_err() {
            // The kernel is out of memory for the moment. The task cannot go on without the cancellation.
            self.turn(here, Some(Some(Duration::from_millis(1))));
        }
    }

    /// # Safety
    /// What the entry refers to stays until its answer is taken.
    unsafe fn push(&mut self, entry: &Entry, here: &Worker) -> io::Result<()> {
        // A full queue is submitted; twice, if the kernel wants its answers taken first.
        for _ in 0..3 {
            // SAFETY: the caller's.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.turn(here, None);
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    pub(super) fn turn(&mut self, here: &Worker, wait: Option<Option<Duration>>) {
        match wait {
            Some(timeout) => self.wait(timeout),
            None => self.hand_over(),
        }
        self.take_answers(here);
    }

    /// Submits new entries, and lets the kernel complete what it has for us. Costs nothing if there is neither.
    fn hand_over(&mut self) {
        let queue = self.ring.submission();
        let (new, due) = (queue.len() as u32, queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if new > 0 || due {
            // An error leaves the entries where they are: they go with the next call.
            // SAFETY: the entries are complete, and there is no argument.
            let _ = unsafe { self.ring.submitter().enter::<()>(new, 0, GETEVENTS, None) };
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        if !self.watched {
            let entry = opcode::PollAdd::new(Fd(self.bell()), libc::POLLIN as u32).build().user_data(BELL);
            // SAFETY: the entry refers to nothing but the bell, which is closed after the ring.
            self.watched = unsafe { self.ring.submission().push(&entry) }.is_ok();
        }
        let span = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(span) = &span {
            args = args.timespec(span);
        }
        // If it is interrupted, or the time is over, the caller finds out.
        let want = usize::from(self.watched);
        let _ = self.ring.submitter().submit_with_args(want, &args);
    }

    fn take_answers(&mut self, here: &Worker) {
        for answer in self.ring.completion() {
            match answer.user_data() {
                CANCEL => {}
                BELL => {
                    self.watched = false;
                    sys::hush(&self.bell);
                }
                op => {
                    let op = std::ptr::with_exposed_provenance::<Op>(op as usize);
                    // SAFETY: the operation was submitted by `start`, and this is its only answer.
                    unsafe { Op::finish(op, answer.result(), here) };
                    self.under_way -= 1;
                }
            }
        }
    }
}

fn entry(request: &Request) -> Entry {
    let (fd, pointer) = (Fd(request.fd), request.pointer);
    let length = request.length as u32;
    // Means the file's current position.
    let here = u64::MAX;
    match request.call {
        Call::Recv(flags) => {
            let first = if request.patient { POLL_FIRST } else { 0 };
            opcode::Recv::new(fd, pointer, length).flags(flags).ioprio(first).build()
        }
        Call::Send => opcode::Send::new(fd, pointer, length).flags(libc::MSG_NOSIGNAL).build(),
        Call::RecvMsg => {
            opcode::RecvMsg::new(fd, pointer.cast()).flags(libc::MSG_CMSG_CLOEXEC as u32).build()
        }
        Call::SendMsg => opcode::SendMsg::new(fd, pointer.cast()).flags(libc::MSG_NOSIGNAL as u32).build(),
        Call::Accept => {
            let (storage, size) = request.address();
            opcode::Accept::new(fd, storage, size).flags(ACCEPTED).build()
        }
        Call::Read => opcode::Read::new(fd, pointer, length).offset(here).build(),
        Call::Write => opcode::Write::new(fd, pointer, length).offset(here).build(),
        Call::ReadAt(at) => opcode::Read::new(fd, pointer, length).offset(at).build(),
        Call::WriteAt(at) => opcode::Write::new(fd, pointer, length).offset(at).build(),
        Call::Flush(true) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        Call::Flush(false) => opcode::Fsync::new(fd).build(),
        Call::Ready(Side::In) => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
        Call::Ready(Side::Out) => opcode::PollAdd::new(fd, libc::POLLOUT as u32).build(),
    }
}
