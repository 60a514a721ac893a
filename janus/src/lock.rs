//! A small lock for sections of a few instructions that never suspend: one atomic exchange to take, one store to give.
//!
//! It is not fair: see `contended`.

use crate::atomics::{AtomicBool, Ordering, spin_loop};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// How long to stay away at first, at most, and how often before others get the CPU.
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

    /// Who finds it taken stays away for a while, and longer each time: meanwhile the holder, and its neighbours on the same
    /// CPU, take it several times without moving the line. Two CPUs that fight for it get less done than one.
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
                // The holder may have lost its CPU.
                std::thread::yield_now();
            }
        }
    }

    /// Gives back what a guard took that was forgotten.
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
