//! Which consumer may take entries from a submission queue (K-12). It is decided here, outside of the memory that a program can write.
//!
//! ```text
//!  63                      32 31                8 7    5 4    2   1      0
//! |  generation (odd, never 0) |      owner      |  0   | mode |closed| held |
//! ```
//! The state is one word. To consume, a consumer takes a *lease*: it sets `held` and moves the generation on. The word is then that lease,
//! and everything that ends the lease changes the word. After [`SqOwner::invalidate`] no consumer gets a lease, and `held` stays set until
//! the last consumer has released its own, so a stale consumer that checked just before and takes an entry just after is never beside
//! another one. `models/tests/sqlease_loom.rs` compiles this very file with loom's atomics.

use crate::sync::{AtomicU64, Ordering};

const HELD: u64 = 1;
const CLOSED: u64 = 2;
const MODE_SHIFT: u32 = 2;
const MODE_MASK: u64 = 7 << MODE_SHIFT;
const OWNER_SHIFT: u32 = 8;
const OWNER_MASK: u64 = 0xff_ffff << OWNER_SHIFT;
/// Generations are odd numbers: adding two keeps them from ever being 0, without a branch.
const GENERATION_FIRST: u64 = 1 << 32;
const GENERATION_STEP: u64 = 2 << 32;

/// How a ring is consumed (Q-01).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingMode {
    /// By the thread itself, in `cap_enter`.
    Syscall = 0,
    /// A poller is being started; there is no consumer.
    SqpollStarting = 1,
    /// By a poller.
    SqpollRunning = 2,
    /// The poller sleeps; `cap_enter` wakes it.
    SqpollSleeping = 3,
    /// The poller is being stopped; there is no consumer.
    SqpollStopping = 4,
}

/// What happens to a ring's mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeEvent {
    /// A poller is asked for.
    Start,
    /// The poller runs.
    Started,
    /// The poller could not be started: back to where it was.
    StartFailed,
    /// The poller found nothing for a while.
    Sleep,
    /// The poller has work.
    Wake,
    /// The poller is asked to stop.
    Stop,
    /// The poller has stopped.
    Stopped,
}

impl RingMode {
    /// All of them, in the order of their numbers.
    pub const ALL: [RingMode; 5] = [
        RingMode::Syscall,
        RingMode::SqpollStarting,
        RingMode::SqpollRunning,
        RingMode::SqpollSleeping,
        RingMode::SqpollStopping,
    ];

    /// The mode after `event`; nothing if the event cannot happen in this mode.
    pub const fn after(self, event: ModeEvent) -> Option<RingMode> {
        use RingMode::*;
        Some(match (self, event) {
            (Syscall, ModeEvent::Start) => SqpollStarting,
            (SqpollStarting, ModeEvent::Started) => SqpollRunning,
            (SqpollStarting, ModeEvent::StartFailed) => Syscall,
            (SqpollRunning, ModeEvent::Sleep) => SqpollSleeping,
            (SqpollSleeping, ModeEvent::Wake) => SqpollRunning,
            (SqpollStarting | SqpollRunning | SqpollSleeping, ModeEvent::Stop) => SqpollStopping,
            (SqpollStopping, ModeEvent::Stopped) => Syscall,
            _ => return None,
        })
    }

    fn of(word: u64) -> RingMode {
        RingMode::ALL[((word & MODE_MASK) >> MODE_SHIFT) as usize % RingMode::ALL.len()]
    }

    const fn bits(self) -> u64 {
        (self as u64) << MODE_SHIFT
    }
}

/// Why there is no lease, or no change of mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SqError {
    /// Another consumer has the lease, or the word changed meanwhile: try again.
    Busy,
    /// The ring is in this mode, which does not allow it.
    WrongMode(RingMode),
    /// The ring is being torn down.
    Closed,
    /// [`SqOwner::reopen`] of a ring that is not closed.
    NotClosed,
}

/// The lease is over: consume nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleSqConsumer;

/// The right to take one entry: the lease was found to hold a moment ago. Only [`SqOwner::verify`] makes it, and it cannot be used twice,
/// so that no entry is taken without a check (K-12).
#[must_use = "it stands for one entry"]
#[derive(PartialEq, Eq, Debug)]
pub struct Verified(());

/// The right to consume, as long as [`SqOwner::verify`] agrees. Give it back with [`SqOwner::release`].
#[must_use = "a lease that is not released keeps every other consumer away"]
#[derive(Debug, PartialEq, Eq)]
pub struct SqLease {
    word: u64,
}

impl SqLease {
    /// Its generation, never 0.
    pub const fn generation(&self) -> u32 {
        (self.word >> 32) as u32
    }

    /// The thread that took it.
    pub const fn owner(&self) -> u32 {
        ((self.word & OWNER_MASK) >> OWNER_SHIFT) as u32
    }
}

/// The word that says which consumer has one submission queue.
#[derive(Debug)]
pub struct SqOwner {
    word: AtomicU64,
}

impl Default for SqOwner {
    fn default() -> SqOwner {
        SqOwner::new()
    }
}

impl SqOwner {
    /// No consumer yet; in [`RingMode::Syscall`].
    pub fn new() -> SqOwner {
        SqOwner { word: AtomicU64::new(GENERATION_FIRST) }
    }

    /// A lease for a thread in `cap_enter`. `owner` is its number, 24 bits of which are kept for reports.
    #[inline]
    pub fn acquire_syscall(&self, owner: u32) -> Result<SqLease, SqError> {
        self.acquire(RingMode::Syscall, owner)
    }

    /// A lease for the ring's poller.
    pub fn acquire_poller(&self, owner: u32) -> Result<SqLease, SqError> {
        self.acquire(RingMode::SqpollRunning, owner)
    }

    #[inline]
    fn acquire(&self, mode: RingMode, owner: u32) -> Result<SqLease, SqError> {
        let old = self.word.load(Ordering::Relaxed);
        if old & (HELD | CLOSED | MODE_MASK) != mode.bits() {
            return Err(refusal(old));
        }
        let word = (old & !OWNER_MASK).wrapping_add(GENERATION_STEP)
            | (u64::from(owner) << OWNER_SHIFT & OWNER_MASK)
            | HELD;
        // Acquire: what the previous consumer did with the queue is seen.
        match self.word.compare_exchange(old, word, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(SqLease { word }),
            Err(_) => Err(SqError::Busy),
        }
    }

    /// Whether the lease still holds: ask before taking each entry.
    #[inline]
    pub fn verify(&self, lease: &SqLease) -> Result<Verified, StaleSqConsumer> {
        if self.word.load(Ordering::Relaxed) == lease.word { Ok(Verified(())) } else { Err(StaleSqConsumer) }
    }

    /// Gives the lease back.
    #[inline]
    pub fn release(&self, lease: SqLease) {
        let free = lease.word & !HELD;
        // Release: the next consumer sees what this one did.
        if self.word.compare_exchange(lease.word, free, Ordering::Release, Ordering::Relaxed).is_err() {
            self.release_stale(lease.word);
        }
    }

    /// The ring was closed while the lease was held: only `held` is cleared. If the word is another one, the lease is from before
    /// [`SqOwner::reset`].
    #[cold]
    fn release_stale(&self, lease: u64) {
        let closed = closed(lease);
        let _ = self.word.compare_exchange(closed, closed & !HELD, Ordering::Release, Ordering::Relaxed);
    }

    /// Ends every lease and gives out no more. Returns whether a consumer has not released its own yet.
    pub fn invalidate(&self) -> bool {
        let mut old = self.word.load(Ordering::Relaxed);
        while old & CLOSED == 0 {
            match self.word.compare_exchange(old, closed(old), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        old & HELD != 0
    }

    /// Makes a closed ring usable again, in [`RingMode::Syscall`]; busy until the last consumer has released its lease.
    pub fn reopen(&self) -> Result<(), SqError> {
        let old = self.word.load(Ordering::Relaxed);
        if old & CLOSED == 0 {
            return Err(SqError::NotClosed);
        }
        if old & HELD != 0 {
            return Err(SqError::Busy);
        }
        let word = reopened(old);
        match self.word.compare_exchange(old, word, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(SqError::Busy),
        }
    }

    /// As new, for a ring whose consumer ended without releasing its lease; `&mut` proves that there is no consumer any more. Earlier
    /// leases stay stale.
    pub fn reset(&mut self) {
        let old = self.word.load(Ordering::Relaxed);
        self.word.store(reopened(old), Ordering::Release);
    }

    /// The ring's mode.
    pub fn mode(&self) -> RingMode {
        RingMode::of(self.word.load(Ordering::Relaxed))
    }

    /// Changes the mode; busy while a lease is held. Leases of the old mode stay stale.
    pub fn transition(&self, event: ModeEvent) -> Result<RingMode, SqError> {
        let old = self.word.load(Ordering::Relaxed);
        if old & (HELD | CLOSED) != 0 {
            return Err(refusal(old));
        }
        let mode = RingMode::of(old);
        let next = mode.after(event).ok_or(SqError::WrongMode(mode))?;
        let word = (old & !(MODE_MASK | OWNER_MASK)).wrapping_add(GENERATION_STEP) | next.bits();
        match self.word.compare_exchange(old, word, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(next),
            Err(_) => Err(SqError::Busy),
        }
    }
}

/// The word of a ring that is closed in whatever state `word` says.
const fn closed(word: u64) -> u64 {
    word.wrapping_add(GENERATION_STEP) | CLOSED
}

const fn reopened(word: u64) -> u64 {
    (word & !(OWNER_MASK | MODE_MASK | CLOSED | HELD)).wrapping_add(GENERATION_STEP)
}

#[cold]
fn refusal(word: u64) -> SqError {
    if word & CLOSED != 0 {
        SqError::Closed
    } else if word & HELD != 0 {
        SqError::Busy
    } else {
        SqError::WrongMode(RingMode::of(word))
    }
}
