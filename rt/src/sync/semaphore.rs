//! Permits that threads take and give.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{Parked, park, unpark};

/// A count of permits; a thread that finds none waits.
#[derive(Debug)]
pub struct Semaphore {
    permits: AtomicU32,
    /// How many threads wait; giving a permit back without any makes no system call.
    waiting: AtomicU32,
}

impl Semaphore {
    /// A semaphore with this many permits.
    pub const fn new(permits: u32) -> Semaphore {
        Semaphore { permits: AtomicU32::new(permits), waiting: AtomicU32::new(0) }
    }

    /// Takes a permit if there is one.
    pub fn try_acquire(&self) -> bool {
        let take = |permits: u32| permits.checked_sub(1);
        self.permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    /// Takes a permit; waits for one if there is none.
    pub fn acquire(&self) {
        while !self.acquire_timeout(u64::MAX) {}
    }

    /// Takes a permit; gives up when a wait of `timeout_ns` ended without a wake-up. Returns whether it has
    /// one.
    pub fn acquire_timeout(&self, timeout_ns: u64) -> bool {
        loop {
            if self.try_acquire() {
                return true;
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let parked = park(&self.permits, 0, timeout_ns);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if parked == Parked::TimedOut {
                return self.try_acquire();
            }
        }
    }

    /// Gives a permit.
    pub fn release(&self) {
        self.permits.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            unpark(&self.permits, 1);
        }
    }

    /// How many permits there are now.
    pub fn permits(&self) -> u32 {
        self.permits.load(Ordering::Relaxed)
    }
}
