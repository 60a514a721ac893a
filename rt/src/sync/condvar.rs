//! Waiting for a condition that a mutex guards.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{MutexGuard, Parked, park, unpark};

/// A place to wait for a change of what a [`super::Mutex`] guards. Waits may end without a reason: look at the condition again.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Counts notifications; a waiting thread parks on the value that it saw with the lock held.
    changes: AtomicU32,
    /// How many threads wait; a notification without any makes no system call.
    waiting: AtomicU32,
}

impl Condvar {
    /// A condition variable on which no thread waits.
    pub const fn new() -> Condvar {
        Condvar { changes: AtomicU32::new(0), waiting: AtomicU32::new(0) }
    }

    /// Frees the lock, waits for a notification, takes the lock again.
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_timeout(guard, u64::MAX).0
    }

    /// As [`Condvar::wait`] for `timeout_ns` at most; returns whether the time was over.
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout_ns: u64,
    ) -> (MutexGuard<'a, T>, bool) {
        let mutex = guard.mutex();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let seen = self.changes.load(Ordering::SeqCst);
        drop(guard);
        let parked = park(&self.changes, seen, timeout_ns);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        (mutex.lock(), parked == Parked::TimedOut)
    }

    /// Waits while `condition` holds.
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Wakes one waiting thread, if there is one.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.notify(u32::MAX);
    }

    fn notify(&self, count: u32) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            unpark(&self.changes, count);
        }
    }
}
