//! Spin locks with ranks.
//!
//! Locks are taken in ascending rank (docs/kernel.md); builds with debug assertions check it on every acquisition. Interrupts are off in
//! the kernel, so a lock cannot be taken again by a handler on the same CPU.

use crate::arch::{cpu, percpu};
use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use kcore::rank::HeldRanks;
pub use kcore::rank::Rank;

/// The ranks that a CPU holds; only the CPU itself touches them.
pub struct Held(Cell<HeldRanks>);

impl Held {
    /// None.
    pub const fn new() -> Held {
        Held(Cell::new(HeldRanks::new()))
    }

    fn change<R>(&self, change: impl FnOnce(&mut HeldRanks) -> R) -> R {
        let mut held = self.0.get();
        let result = change(&mut held);
        self.0.set(held);
        result
    }

    #[track_caller]
    fn acquire(&self, rank: Rank) {
        if let Err(error) = self.change(|held| held.acquire(rank)) {
            panic!("{error}");
        }
    }

    /// Is anything held?
    pub fn any(&self) -> bool {
        !self.0.get().is_empty()
    }

    /// Is a lock held under which nothing may allocate?
    pub fn forbids_allocation(&self) -> bool {
        self.0.get().forbids_alloc()
    }
}

/// Are ranks checked in this build, and yet on this CPU?
#[inline(always)]
fn checked() -> bool {
    cfg!(debug_assertions) && crate::CHECKS.load(Ordering::Relaxed)
}

/// A lock around a value.
pub struct SpinLock<T> {
    locked: AtomicBool,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one CPU at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An open lock.
    pub const fn new(rank: Rank, value: T) -> SpinLock<T> {
        SpinLock { locked: AtomicBool::new(false), rank, value: UnsafeCell::new(value) }
    }

    /// The value, of a lock that nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Waits for the lock.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if checked() {
            let me = percpu::this();
            me.held.acquire(self.rank);
            self.count_in_dispatch(me);
        }
        if self.locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Between two threads a CPU takes its own queue's lock and no other; the lock over the wait of the thread that is left it has already.
    fn count_in_dispatch(&self, me: &percpu::PerCpu) {
        if me.sched.in_dispatch.get() && !core::ptr::addr_eq(self, &me.sched.queue) {
            me.counters.shared_locks_in_dispatch.bump();
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.locked.swap(true, Ordering::Acquire) {
            return None;
        }
        // Trying cannot deadlock, so the order does not matter.
        if checked() {
            let me = percpu::this();
            me.held.change(|held| held.note(self.rank));
            self.count_in_dispatch(me);
        }
        Some(Guard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        loop {
            while self.locked.load(Ordering::Relaxed) {
                cpu::pause();
                // The holder may wait for this CPU to flush its TLB.
                crate::mm::tlb::poll();
            }
            if !self.locked.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }

    /// Opens a lock whose guard was forgotten: locks that are held over a switch of stacks.
    ///
    /// # Safety
    /// This CPU holds the lock and no guard exists.
    pub unsafe fn unlock_forgotten(&self) {
        drop(Guard { lock: self });
    }
}

/// The lock is held.
pub struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and `self` is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
        if checked() {
            percpu::this().held.change(|held| held.release(self.lock.rank));
        }
    }
}
