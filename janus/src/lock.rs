//! A small lock for sections of a few instructions that never suspend: one atomic exchange to take, one store to give.
//!
//! It is not fair: see `contended`.

use crate::atomics::{AtomicBool, Ordering, spin_loop};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// How many pauses a contender makes at first, how many at most, and after how many attempts it yields its CPU.
const PAUSES: u32 = 16;
const PAUSES_MOST: u32 = 256;
const LOOKS: u32 = 16;

pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time at the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: it owns the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

pub(crate) struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.contended();
        }
        SpinGuard(self)
    }

    /// A contender stays away for a while, and longer each time. Meanwhile the holder, and its neighbours on the same
    /// CPU, take the lock several times without moving the cache line. Two CPUs that fight for the lock get less done
    /// than one.
    #[cold]
    fn contended(&self) {
        let mut pauses = PAUSES;
        let mut looks = 0;
        loop {
            for _ in 0..pauses {
                spin_loop();
            }
            if !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
            pauses = (pauses * 2).min(PAUSES_MOST);
            looks += 1;
            if looks > LOOKS {
                // The holder may have been preempted.
                std::thread::yield_now();
            }
        }
    }

    /// Releases the lock of a guard that was forgotten.
    ///
    /// # Safety
    /// The caller holds the lock and has no reference into the value.
    pub(crate) unsafe fn give(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// # Safety
    /// The caller holds the lock by a guard that it forgot, and there is no other reference into the value.
    #[allow(clippy::mut_from_ref, reason = "the lock is the borrow")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
