//! A lock in one word.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use super::{park, unpark};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread may be parked on it.
const CONTENDED: u32 = 2;

/// How often a held lock is looked at before parking: a holder on another CPU is mostly done within these.
const SPINS: u32 = 40;

/// Data that one thread at a time may use. Not reentrant: a thread that locks twice waits for ever.
pub struct Mutex<T: ?Sized> {
    word: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the data is reached only by the holder, one thread at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free lock around `data`.
    pub const fn new(data: T) -> Mutex<T> {
        Mutex { word: AtomicU32::new(FREE), data: UnsafeCell::new(data) }
    }

    /// What was inside.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        MutexGuard { lock: self }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| MutexGuard { lock: self })
    }

    /// The data, without locking: `&mut self` proves that no other thread has a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            // A spinning thread leaves a contended lock to the threads that are parked already.
            match self.word.load(Ordering::Relaxed) {
                FREE => {
                    if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        return;
                    }
                }
                CONTENDED => break,
                _ => core::hint::spin_loop(),
            }
        }
        self.lock_parking();
    }

    /// Takes the lock as contended: others may be parked, and only the next unlock can wake them.
    pub(super) fn lock_parking(&self) {
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            park(&self.word, CONTENDED, u64::MAX);
        }
    }

    pub(super) fn unlock(&self) {
        // The address alone is kept: with the word free another thread may lock, unlock and free the mutex.
        let word: *const AtomicU32 = &self.word;
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            unpark(word, 1);
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(locked)"),
        }
    }
}

/// Holds a [`Mutex`] until dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
}

// SAFETY: a reference to the data, as `&T` is; unlocking needs no particular thread.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    pub(super) fn mutex(&self) -> &'a Mutex<T> {
        self.lock
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}
