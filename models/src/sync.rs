//! All atomics and locks of the glue, behind one trait, so that loom can replace them and lock order can be watched.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The rank of a leaf lock: taken last, and no other lock after it. The lock of CPU `n` has rank `n`.
pub const LEAF: u32 = u32::MAX;

/// Where the glue gets its atomics and locks from.
pub trait Backend: Sized + 'static {
    /// A shared word.
    type Word: Word;
    /// A lock around a `T`.
    type Lock<T>: Lock<T>;

    /// A fence in the single total order of such fences.
    fn fence();
}

/// A shared word. Loads acquire, stores release, the others do both: what needs more says so with a fence.
pub trait Word {
    /// All bits clear.
    fn new() -> Self;
    /// Reads it.
    fn load(&self) -> u64;
    /// Writes it.
    fn store(&self, value: u64);
    /// Sets bits; returns what was there.
    fn set(&self, bits: u64) -> u64;
    /// Clears bits; returns what was there.
    fn clear(&self, bits: u64) -> u64;
}

/// A lock with a rank: whoever holds several took them by ascending rank, or the others by `try_lock`.
pub trait Lock<T> {
    /// Holds the lock while it lives.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;
    /// A free lock.
    fn new(rank: u32, value: T) -> Self;
    /// Waits for it.
    fn lock(&self) -> Self::Guard<'_>;
    /// Takes it if it is free.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// The standard library's atomics and locks, with the lock order watched.
#[derive(Debug)]
pub struct Host;

impl Backend for Host {
    type Word = AtomicU64;
    type Lock<T> = Ranked<T>;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Word for AtomicU64 {
    fn new() -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn set(&self, bits: u64) -> u64 {
        self.fetch_or(bits, Ordering::AcqRel)
    }

    fn clear(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::AcqRel)
    }
}

thread_local! {
    static HELD: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    static BREACHES: Cell<u64> = const { Cell::new(0) };
}

/// How often this OS thread waited for a lock while it held one of the same or a higher rank.
pub fn breaches() -> u64 {
    BREACHES.get()
}

/// A mutex that knows its rank.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: u32,
    inner: Mutex<T>,
}

/// A held [`Ranked`].
#[derive(Debug)]
pub struct Held<'a, T> {
    rank: u32,
    inner: MutexGuard<'a, T>,
}

impl<'a, T> Held<'a, T> {
    fn new(rank: u32, inner: MutexGuard<'a, T>) -> Held<'a, T> {
        HELD.with_borrow_mut(|held| held.push(rank));
        Held { rank, inner }
    }
}

impl<T> Lock<T> for Ranked<T> {
    type Guard<'a>
        = Held<'a, T>
    where
        Self: 'a,
        T: 'a;

    fn new(rank: u32, value: T) -> Ranked<T> {
        Ranked { rank, inner: Mutex::new(value) }
    }

    fn lock(&self) -> Held<'_, T> {
        // Counted before waiting: a breach is a possible deadlock whether or not it happens this time.
        if HELD.with_borrow(|held| held.iter().any(|rank| *rank >= self.rank)) {
            BREACHES.set(BREACHES.get() + 1);
        }
        Held::new(self.rank, self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Option<Held<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(Held::new(self.rank, guard)),
            Err(TryLockError::Poisoned(error)) => Some(Held::new(self.rank, error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|rank| *rank == self.rank) {
                held.swap_remove(at);
            }
        });
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
