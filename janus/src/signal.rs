//! Signals of the process that a task can wait for: Ctrl-C, and requests to a service to end.
//!
//! A signal is delivered to the process and not to a task, so receiving it is an authority, like a listener: a task
//! that holds a [`Signals`] gets the signals that it asked for, and may pass the value on. While a `Signals` for it
//! exists, a signal has no other effect; when the last one is dropped, the signal has its former effect again.
//!
//! Invariants:
//! 1. The handler may run on any thread, between any two instructions: it only touches atomics and writes a byte into
//!    pipes.
//! 2. A pipe whose descriptor the handler may have read is never closed: slots keep their pipes, and are reused.
//! 3. The handler marks the signal before it writes; a waiting task empties the pipe before it looks at the marks. So
//!    no signal is lost, though several of one kind may become one.

use crate::budget::Operation;
use crate::chan::Arm;
use crate::chan::sealed::{Either, Poll};
use crate::cx::Cx;
use crate::io::op::{Call, Manner, Request, Side, carry_out};
use crate::io::{ReadArm, begin, sys};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many [`Signals`] may exist at a time.
const SLOTS: usize = 32;
/// Signal numbers are below this.
const NUMBERS: usize = 64;

/// The signals that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt = libc::SIGINT,
    /// A polite request to end: what `kill` and service managers send.
    Terminate = libc::SIGTERM,
    /// The terminal is gone; by custom, a request to read the configuration again.
    Hangup = libc::SIGHUP,
    /// Ctrl-\\.
    Quit = libc::SIGQUIT,
    /// For the program's own use.
    User1 = libc::SIGUSR1,
    /// For the program's own use.
    User2 = libc::SIGUSR2,
}

impl Signal {
    const ALL: [Signal; 6] =
        [Signal::Interrupt, Signal::Terminate, Signal::Hangup, Signal::Quit, Signal::User1, Signal::User2];

    fn bit(self) -> u64 {
        1 << self as i32
    }
}

/// The entry by which the handler finds a [`Signals`].
struct Slot {
    taken: AtomicBool,
    /// The signals that are waited for, and those that have come.
    mask: AtomicU64,
    pending: AtomicU64,
    /// The ends of the slot's pipe; 0 if it is not made yet.
    reader: AtomicI32,
    writer: AtomicI32,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        mask: AtomicU64::new(0),
        pending: AtomicU64::new(0),
        reader: AtomicI32::new(0),
        writer: AtomicI32::new(0),
    }
}; SLOTS];

/// How many wait for a signal, and its action before the first of them.
struct Former {
    waiting: usize,
    action: Option<libc::sigaction>,
}

static FORMER: Mutex<[Former; NUMBERS]> =
    Mutex::new([const { Former { waiting: 0, action: None } }; NUMBERS]);

extern "C" fn on_signal(number: libc::c_int) {
    let bit = 1_u64 << number;
    for slot in &TABLE {
        if slot.mask.load(Ordering::Acquire) & bit != 0 {
            slot.pending.fetch_or(bit, Ordering::AcqRel);
            // SAFETY: `errno` belongs to the interrupted code, and is restored; the byte is valid memory; the pipe is
            // never closed. If the pipe is full, the task that waits has been woken already.
            unsafe {
                let errno = *libc::__errno_location();
                libc::write(slot.writer.load(Ordering::Acquire), [1_u8].as_ptr().cast(), 1);
                *libc::__errno_location() = errno;
            }
        }
    }
}

/// Takes a signal over, for one more [`Signals`].
fn take_over(signal: Signal) -> io::Result<()> {
    let mut former = FORMER.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = &mut former[signal as usize];
    if entry.waiting == 0 {
        // SAFETY: all zeroes is a valid value of both; the handler keeps invariant 1.
        unsafe {
            let (mut ours, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
            ours.sa_sigaction = on_signal as *const () as usize;
            // System calls of interrupted threads are restarted; the handler runs on the signal stack, as a task's
            // stack is small.
            ours.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            if libc::sigaction(signal as i32, &raw const ours, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            entry.action = Some(before);
        }
    }
    entry.waiting += 1;
    Ok(())
}

/// Undoes one `take_over`; the last one restores the former action.
fn give_back(signal: Signal) {
    let mut former = FORMER.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = &mut former[signal as usize];
    entry.waiting -= 1;
    if entry.waiting == 0
        && let Some(before) = entry.action.take()
    {
        // SAFETY: the kernel gave it to us.
        unsafe { libc::sigaction(signal as i32, &raw const before, std::ptr::null_mut()) };
    }
}

/// A set of signals to wait for, as long as this exists.
///
/// ```
/// # use janus::{Config, Runtime, signal::{Signal, Signals}};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let came = runtime.run(|cx| {
///     let signals = Signals::new(cx, &[Signal::User1])?;
///     # unsafe { libc::raise(libc::SIGUSR1) };
///     signals.wait(cx)
/// }).unwrap();
/// assert_eq!(came.unwrap(), Signal::User1);
/// ```
#[derive(Debug)]
pub struct Signals {
    slot: usize,
    mask: u64,
}

impl Signals {
    /// From now on these signals are delivered here, and have no other effect. It costs one of `syscalls`.
    #[track_caller]
    pub fn new(cx: &Cx, signals: &[Signal]) -> io::Result<Signals> {
        begin(cx, Operation::FileIo, Location::caller())?;
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let Some(slot) = TABLE.iter().position(free) else {
            return Err(io::Error::other(
                "32 tasks wait for signals already: share one Signals between them",
            ));
        };
        // From here on `drop` undoes everything.
        let mut made = Signals { slot, mask: 0 };
        if made.slot().writer.load(Ordering::Acquire) == 0 {
            let (reader, writer) = sys::pipe()?;
            // They are never closed (invariant 2).
            made.slot().reader.store(reader.into_raw_fd(), Ordering::Release);
            made.slot().writer.store(writer.into_raw_fd(), Ordering::Release);
        }
        made.slot().pending.store(0, Ordering::Release);
        let wanted = signals.iter().fold(0, |mask, signal| mask | signal.bit());
        for signal in Signal::ALL.into_iter().filter(|signal| wanted & signal.bit() != 0) {
            // Before the signal is taken over, so that none comes in between and is lost.
            made.slot().mask.store(made.mask | signal.bit(), Ordering::Release);
            take_over(signal)?;
            made.mask |= signal.bit();
        }
        Ok(made)
    }

    fn slot(&self) -> &'static Slot {
        &TABLE[self.slot]
    }

    fn fd(&self) -> RawFd {
        self.slot().reader.load(Ordering::Acquire)
    }

    /// Takes the bytes out of the pipe, so that the next signal can be waited for (invariant 3).
    fn drain(&self) {
        let mut bytes = [0_u8; 64];
        // SAFETY: the buffer is there; the pipe never blocks.
        while unsafe { libc::read(self.fd(), bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
    }

    /// The signals that have come, of those asked for: a handler may still be marking one that an earlier user of the
    /// slot had asked for.
    fn came(&self) -> u64 {
        self.slot().pending.load(Ordering::Acquire) & self.mask
    }

    /// The next signal that has come, if one has. It costs nothing.
    pub fn next(&self) -> Option<Signal> {
        let came = self.came();
        let signal = Signal::ALL.into_iter().find(|signal| came & signal.bit() != 0)?;
        self.slot().pending.fetch_and(!signal.bit(), Ordering::AcqRel);
        Some(signal)
    }

    /// Waits for the next signal. It costs one of `syscalls`.
    #[track_caller]
    pub fn wait(&self, cx: &Cx) -> io::Result<Signal> {
        let at = Location::caller();
        begin(cx, Operation::FileIo, at)?;
        let manner = Manner { cost: Operation::FileIo, until: None, eager: true, at };
        loop {
            self.drain();
            if let Some(signal) = self.next() {
                return Ok(signal);
            }
            carry_out(cx, Request::new(Call::Ready(Side::In), self.fd()), &manner)?;
        }
    }

    /// An arm of a [`Cx::select`] that is ready when a signal has come: then [`next`](Signals::next) returns it.
    #[must_use]
    pub fn arm(&self) -> SignalArm<'_> {
        SignalArm { signals: self, pipe: ReadArm::new(self.as_fd()) }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is never closed (invariant 2).
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        crate::cx::make_room_here();
        self.slot().mask.store(0, Ordering::Release);
        for signal in Signal::ALL.into_iter().filter(|signal| self.mask & signal.bit() != 0) {
            give_back(signal);
        }
        if self.fd() != 0 {
            self.drain();
        }
        self.slot().taken.store(false, Ordering::Release);
    }
}

/// See [`Signals::arm`].
pub struct SignalArm<'a> {
    signals: &'a Signals,
    pipe: ReadArm<'a>,
}

impl Poll for SignalArm<'_> {
    fn is_ready(&self, cx: &Cx) -> bool {
        if self.signals.came() == 0 && self.pipe.is_answered() {
            // This is the byte of a signal that was taken before the handler had written it: wait for the next one.
            self.pipe.end(cx);
            self.begin(cx);
        }
        self.signals.came() != 0
    }

    fn begin(&self, cx: &Cx) {
        self.signals.drain();
        self.pipe.begin(cx);
    }

    fn end(&self, cx: &Cx) {
        self.pipe.end(cx);
    }
}

impl Either for SignalArm<'_> {
    fn polled(&self) -> Option<&dyn Poll> {
        Some(self)
    }
}

impl Arm for SignalArm<'_> {}
