//! A small lock for sections of a few instructions that never suspend: one atomic exchange to take, one store to give.
//!
//! A thread that finds it taken spins briefly, then lets others run: the holder may have lost its CPU.

use crate::sync::{AtomicBool, Ordering, spin_loop};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

const SPINS: u32 = 64;

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

    #[cold]
    fn contended(&self) {
        let mut spins = 0;
        loop {
            while self.taken.load(Ordering::Relaxed) {
                if spins < SPINS {
                    spins += 1;
                    spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
            if !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }

    /// Takes the lock without a guard, for sections that hold several.
    pub(crate) fn take(&self) {
        std::mem::forget(self.lock());
    }

    /// Gives back what `take` took.
    ///
    /// # Safety
    /// The caller holds the lock and has no reference into the value.
    pub(crate) unsafe fn give(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// # Safety
    /// The caller holds the lock by `take`, and there is no other reference into the value.
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
