//! One at a time.

use super::semaphore::{Permit, Semaphore};
use super::{WaitError, cancelled};
use crate::cx::Cx;
use crate::error::Cancelled;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

/// A value that one task at a time can get at: [`std::sync::Mutex`] with a [`Cx`], and without poison.
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

// SAFETY: one at a time gets at the value.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// The value of a [`Mutex`], until this is dropped.
#[must_use = "the lock is given back when this is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(super) mutex: &'a Mutex<T>,
    _permit: Permit<'a>,
}

// SAFETY: it is as good as a reference to the value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// Around this value.
    #[must_use]
    pub fn new(value: T) -> Mutex<T> {
        Mutex { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for its turn.
    #[track_caller]
    pub fn lock(&self, cx: &Cx) -> Result<MutexGuard<'_, T>, Cancelled> {
        self.lock_by(cx, None, Location::caller()).map_err(cancelled)
    }

    /// The same, for so long at most.
    #[track_caller]
    pub fn lock_timeout(&self, cx: &Cx, timeout: Duration) -> Result<MutexGuard<'_, T>, WaitError> {
        self.lock_by(cx, Some(cx.until(timeout)), Location::caller())
    }

    /// The same, if nobody has it. It is charged all the same.
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

    /// The value: who has the mutex to himself needs no turn.
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
