//! Signals of the process, as something to wait for: Ctrl-C, and what asks a service to end.
//!
//! A signal is delivered to the process and not to a task, so it is an authority like a listener: a task that holds a
//! [`Signals`] gets what it asked for, and may pass it on. While one is there, the signal does nothing else; when the last is
//! dropped, it does again what it did before.
//!
//! Invariants:
//! 1. The handler runs anywhere, between any two instructions: it touches atomics and writes a byte into pipes, no more.
//! 2. A pipe that the handler may have read the number of is never closed: slots keep theirs, and are used again.
//! 3. The handler marks the signal before it writes; who waits empties the pipe before it looks at the marks. So none is lost,
//!    though several of one kind may become one.

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

/// So many [`Signals`] may be there at a time.
const SLOTS: usize = 32;
/// Signals are numbered below this.
const NUMBERS: usize = 64;

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt = libc::SIGINT,
    /// A polite request to end: what `kill` and service managers send.
    Terminate = libc::SIGTERM,
    /// The terminal is gone; by custom, to read the configuration again.
    Hangup = libc::SIGHUP,
    /// Ctrl-\\.
    Quit = libc::SIGQUIT,
    /// Yours.
    User1 = libc::SIGUSR1,
    /// Yours.
    User2 = libc::SIGUSR2,
}

impl Signal {
    const ALL: [Signal; 6] =
        [Signal::Interrupt, Signal::Terminate, Signal::Hangup, Signal::Quit, Signal::User1, Signal::User2];

    fn bit(self) -> u64 {
        1 << self as i32
    }
}

/// Where the handler finds who waits.
struct Slot {
    taken: AtomicBool,
    /// What is waited for, and what has come.
    mask: AtomicU64,
    pending: AtomicU64,
    /// The ends of its pipe; 0: not made yet.
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

/// Who waits for a signal, and what it did before the first of them.
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
            // SAFETY: `errno` is the interrupted code's, and is put back; the byte is there; the pipe is never closed. A full
            // pipe has woken whoever waits.
            unsafe {
                let errno = *libc::__errno_location();
                libc::write(slot.writer.load(Ordering::Acquire), [1_u8].as_ptr().cast(), 1);
                *libc::__errno_location() = errno;
            }
        }
    }
}

/// Takes a signal over, for one more who waits.
fn take_over(signal: Signal) -> io::Result<()> {
    let mut former = FORMER.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = &mut former[signal as usize];
    if entry.waiting == 0 {
        // SAFETY: all zeroes is a value of both; the handler keeps invariant 1.
        unsafe {
            let (mut ours, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
            ours.sa_sigaction = on_signal as *const () as usize;
            // System calls of threads that it interrupts go on; on the other stack, as a task's is small.
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

/// One less.
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

/// Signals to wait for, as long as this is there.
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
    /// From now on these signals come here, and do nothing else. It costs one of `syscalls`.
    #[track_caller]
    pub fn new(cx: &Cx, signals: &[Signal]) -> io::Result<Signals> {
        begin(cx, Operation::FileIo, Location::caller())?;
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let Some(slot) = TABLE.iter().position(free) else {
            return Err(io::Error::other(
                "32 tasks wait for signals already: share one Signals between them",
            ));
        };
        // From here on `drop` gives everything back.
        let mut made = Signals { slot, mask: 0 };
        if made.slot().writer.load(Ordering::Acquire) == 0 {
            let (reader, writer) = sys::pipe()?;
            // For ever (invariant 2).
            made.slot().reader.store(reader.into_raw_fd(), Ordering::Release);
            made.slot().writer.store(writer.into_raw_fd(), Ordering::Release);
        }
        made.slot().pending.store(0, Ordering::Release);
        let wanted = signals.iter().fold(0, |mask, signal| mask | signal.bit());
        for signal in Signal::ALL.into_iter().filter(|signal| wanted & signal.bit() != 0) {
            // Before it is taken over: none may come in between, and be lost.
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

    /// Takes the bytes out of the pipe, so that another one can be waited for (invariant 3).
    fn drain(&self) {
        let mut bytes = [0_u8; 64];
        // SAFETY: the buffer is there; the pipe never blocks.
        while unsafe { libc::read(self.fd(), bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
    }

    /// What has come, of what was asked for: a handler may still be marking what an earlier user of the slot had asked for.
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

    /// Waits for the next one. It costs one of `syscalls`.
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

    /// An arm of a [`Cx::select`] that is ready when one has come: then [`next`](Signals::next) has it.
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
            // A byte of a signal that was taken before the handler had written it: wait for the next one.
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
