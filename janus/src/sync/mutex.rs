//! Mutual exclusion: one task at a time.

use super::semaphore::{Permit, Semaphore};
use super::{WaitError, cancelled};
use crate::cx::Cx;
use crate::error::Cancelled;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

/// A value that one task at a time can access: [`std::sync::Mutex`] with a [`Cx`], and without poisoning.
///
/// ```
/// # use janus::{Config, Runtime, sync::Mutex};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let sum = Mutex::new(0);
/// runtime.run(|cx| cx.nursery(|nursery| {
///     for n in 1..=10 {
///         let sum = &sum;
///         nursery.spawn(move |cx| sum.lock(cx).map(|mut sum| *sum += n));
///     }
///     Ok(())
/// })).unwrap().unwrap();
/// assert_eq!(sum.into_inner(), 55);
/// ```
pub struct Mutex<T: ?Sized> {
    turn: Semaphore,
    value: UnsafeCell<T>,
}

// SAFETY: only one task at a time accesses the value.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Access to the value of a [`Mutex`], until this is dropped.
#[must_use = "the lock is given back when this is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(super) mutex: &'a Mutex<T>,
    _permit: Permit<'a>,
}

// SAFETY: a shared guard gives no more than a shared reference to the value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// A mutex around this value.
    #[must_use]
    pub fn new(value: T) -> Mutex<T> {
        Mutex { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Takes the value out of the mutex.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the mutex is free, and takes it.
    #[track_caller]
    pub fn lock(&self, cx: &Cx) -> Result<MutexGuard<'_, T>, Cancelled> {
        self.lock_by(cx, None, Location::caller()).map_err(cancelled)
    }

    /// As [`lock`](Mutex::lock), for `timeout` at most.
    #[track_caller]
    pub fn lock_timeout(&self, cx: &Cx, timeout: Duration) -> Result<MutexGuard<'_, T>, WaitError> {
        self.lock_by(cx, Some(cx.until(timeout)), Location::caller())
    }

    /// Takes the mutex if it is free. The attempt is charged even if it fails.
    #[track_caller]
    pub fn try_lock(&self, cx: &Cx) -> Result<Option<MutexGuard<'_, T>>, Cancelled> {
        let permit = self.turn.try_acquire(cx, 1)?;
        Ok(permit.map(|permit| MutexGuard { mutex: self, _permit: permit }))
    }

    pub(super) fn lock_by(
        &self,
        cx: &Cx,
        until: Option<u64>,
        at: &'static Location<'static>,
    ) -> Result<MutexGuard<'_, T>, WaitError> {
        let permit = self.turn.acquire_by(cx, 1, until, at)?;
        Ok(MutexGuard { mutex: self, _permit: permit })
    }

    /// The value, without locking: a caller with exclusive access to the mutex needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has the only permit.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("free", &(self.turn.available() > 0)).finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
