//! Spin locks with ranks.
//!
//! Locks are taken in ascending rank (docs/kernel.md); builds with debug assertions check it on every acquisition. Interrupts are off in
//! the kernel, so a lock cannot be taken again by a handler on the same CPU.
//!
//! Locks are fair (K-26): the CPU that has waited longest is next. So a CPU that takes and releases a lock again and again, as long work in pieces
//! does, cannot keep the others out.

use crate::arch::{cpu, percpu};
use crate::planted::{self, Bug};
use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use kcore::rank::HeldRanks;
pub use kcore::rank::Rank;

/// The ranks that a CPU holds; only the CPU itself touches them.
pub struct Held(Cell<HeldRanks>);

impl Held {
    /// No rank is held.
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

    #[track_caller]
    fn acquire_second(&self, first: usize, second: usize) {
        if let Err(error) = self.change(|held| held.acquire_second_cpu(first, second)) {
            panic!("{error}");
        }
    }

    /// The ranks that are held.
    pub fn ranks(&self) -> HeldRanks {
        self.0.get()
    }

    /// Whether any lock is held.
    pub fn any(&self) -> bool {
        !self.0.get().is_empty()
    }

    /// Whether a lock is held under which nothing may allocate.
    pub fn forbids_allocation(&self) -> bool {
        self.0.get().forbids_alloc()
    }
}

/// Whether lock ranks and the allocation guard can be checked: they are kept in the CPU's record, which does not exist at the start of the boot.
static CHECKS: AtomicBool = AtomicBool::new(false);

/// From here on ranks are checked: the first CPU has its record. Called at boot.
pub fn begin_checks() {
    CHECKS.store(true, Ordering::Relaxed);
}

/// Whether the first CPU has its record; every other CPU that runs has one by then, too.
#[inline(always)]
pub fn is_begun() -> bool {
    CHECKS.load(Ordering::Relaxed)
}

/// Whether ranks are checked: only in builds with debug assertions, and only after [`begin_checks`].
#[inline(always)]
pub fn checked() -> bool {
    cfg!(debug_assertions) && is_begun()
}

/// A lock around a value.
pub struct SpinLock<T> {
    /// The ticket that the next CPU to ask for the lock draws.
    next: AtomicU16,
    /// The ticket that has the lock; if no CPU has drawn it yet, the lock is free. Written by the holder only.
    serving: AtomicU16,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one CPU at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A lock that is free.
    pub const fn new(rank: Rank, value: T) -> SpinLock<T> {
        SpinLock { next: AtomicU16::new(0), serving: AtomicU16::new(0), rank, value: UnsafeCell::new(value) }
    }

    /// The value, without locking: `&mut self` shows that nobody else can hold the lock.
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
        self.draw();
        Guard { lock: self }
    }

    /// Waits for the locks of two CPUs, in the order of their numbers; `cpus` are those of `self` and `other`. The only way to hold both (S-09).
    #[inline]
    pub fn lock_both<'a>(
        &'a self,
        other: &'a SpinLock<T>,
        cpus: (usize, usize),
    ) -> (Guard<'a, T>, Guard<'a, T>) {
        let is_first = (cpus.0 < cpus.1) != planted::is(Bug::CpuOrder);
        let ((first, one), (second, two)) =
            if is_first { ((self, cpus.0), (other, cpus.1)) } else { ((other, cpus.1), (self, cpus.0)) };
        let held = first.lock();
        if checked() {
            percpu::this().held.acquire_second(one, two);
        }
        second.draw();
        let both = (held, Guard { lock: second });
        if is_first { both } else { (both.1, both.0) }
    }

    /// Counts locks that a CPU takes while it switches threads: it should take that of its own run queue only. (The *wait* lock of the thread that is
    /// switched out is held before.)
    fn count_in_dispatch(&self, me: &percpu::MachineCpu) {
        if me.in_dispatch.get() && !core::ptr::addr_eq(self, me.own_lock.get()) {
            me.counters.shared_locks_in_dispatch.bump();
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: this CPU must see what the last holder wrote before it passed the lock on.
        let serving = self.serving.load(Ordering::Acquire);
        let drawn = self.next.compare_exchange(
            serving,
            serving.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if drawn.is_err() {
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

    /// Draws a ticket, and waits until it has the lock.
    #[inline(always)]
    fn draw(&self) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if self.serving.load(Ordering::Acquire) != number {
            self.wait(number);
        }
    }

    #[cold]
    fn wait(&self, number: u16) {
        let mut patience = crate::patience::Patience::new();
        while self.serving.load(Ordering::Acquire) != number {
            cpu::pause();
            // The holder may wait for this CPU to flush its TLB.
            crate::arch::tlb::poll();
            if patience.is_over() {
                crate::patience::cannot_go_on(format_args!("waits for a lock of rank {:?}", self.rank));
            }
        }
    }

    /// The guard of a lock whose guard was forgotten on purpose, because the lock is held over a switch of stacks.
    ///
    /// # Safety
    /// This CPU holds the lock and no guard exists.
    #[inline(always)]
    pub unsafe fn regain(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Releases a lock whose guard was forgotten.
    ///
    /// # Safety
    /// As for [`SpinLock::regain`].
    pub unsafe fn unlock_forgotten(&self) {
        drop(Guard { lock: self });
    }
}

/// Shows that the lock is held; dropping it releases the lock.
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
        // Relaxed: only the holder writes it.
        let serving = self.lock.serving.load(Ordering::Relaxed);
        self.lock.serving.store(serving.wrapping_add(1), Ordering::Release);
        if checked() {
            percpu::this().held.change(|held| held.release(self.lock.rank));
        }
    }
}
