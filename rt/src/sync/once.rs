//! A value that is made once, by the first thread that needs it.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use super::{park, unpark};

const EMPTY: u32 = 0;
const MAKING: u32 = 1;
/// One thread makes it and another one waits for it.
const AWAITED: u32 = 2;
const READY: u32 = 3;

/// A cell that is filled once. Threads that come while it is being filled wait.
pub struct Once<T> {
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by one thread before READY is stored, and only shared after that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for Once<T> {}

impl<T> Once<T> {
    /// An empty cell.
    pub const fn new() -> Once<T> {
        Once { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value if it is there.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: READY is stored after the value was written, and nothing writes it again.
        (self.state.load(Ordering::Acquire) == READY)
            .then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value, made by `make` if it is not there yet. `make` must not ask for the same cell.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if self.state.load(Ordering::Acquire) == EMPTY
            && self.state.compare_exchange(EMPTY, MAKING, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            // SAFETY: only one thread gets from EMPTY to MAKING, and no thread reads before READY.
            unsafe { (*self.value.get()).write(make()) };
            if self.state.swap(READY, Ordering::AcqRel) == AWAITED {
                unpark(&self.state, u32::MAX);
            }
        }
        loop {
            if let Some(value) = self.get() {
                return value;
            }
            self.await_ready();
        }
    }

    #[cold]
    fn await_ready(&self) {
        let _ = self.state.compare_exchange(MAKING, AWAITED, Ordering::Relaxed, Ordering::Relaxed);
        park(&self.state, AWAITED, u64::MAX);
    }
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == READY {
            // SAFETY: READY says that it was written, and with `&mut self` there is no other reference.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}
