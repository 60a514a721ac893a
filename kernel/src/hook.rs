//! Functions that a lower layer calls and a higher layer provides: handed down once, at boot (K-25).

use core::cell::Cell;

/// A place for such a function.
pub struct Hook<F>(Cell<Option<F>>);

// SAFETY: written at boot, while one CPU runs, and only read from then on.
unsafe impl<F: Send> Sync for Hook<F> {}

impl<F: Copy> Hook<F> {
    /// Nothing was handed down yet.
    pub const fn empty() -> Hook<F> {
        Hook(Cell::new(None))
    }

    /// Hands a function down; at boot, while one CPU runs.
    pub fn set(&self, function: F) {
        self.0.set(Some(function));
    }

    /// The function, once there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<F> {
        self.0.get()
    }
}
