//! Functions that a lower layer calls and a higher layer provides: handed down once, at boot (K-25).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};

/// Nothing is handed down from here on: other CPUs are about to start.
static IS_SEALED: AtomicBool = AtomicBool::new(false);

/// All that lower layers call of higher ones was handed down. Before another CPU starts.
pub fn seal() {
    IS_SEALED.store(true, Ordering::Relaxed);
}

/// A place for such a function.
pub struct Hook<F>(Cell<Option<F>>);

// SAFETY: written at boot, while one CPU runs (`set` asserts that), and only read from then on.
unsafe impl<F: Send> Sync for Hook<F> {}

impl<F: Copy> Hook<F> {
    /// Nothing was handed down yet.
    pub const fn empty() -> Hook<F> {
        Hook(Cell::new(None))
    }

    /// Hands a function down; at boot, while one CPU runs.
    pub fn set(&self, function: F) {
        assert!(!IS_SEALED.load(Ordering::Relaxed), "handed down too late: other CPUs may read it");
        self.0.set(Some(function));
    }

    /// The function, once there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<F> {
        self.0.get()
    }
}
