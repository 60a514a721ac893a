//! Spin locks with ranks.
//!
//! Locks are taken in ascending rank (docs/kernel.md); builds with debug assertions check it on every acquisition. Interrupts are off in
//! the kernel, so a lock cannot be taken again by a handler on the same CPU.

use crate::arch::{cpu, percpu};
use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// The ranks, lowest first.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// The table of processes.
    Processes = 1,
    /// One process: capabilities, ledger, threads.
    Process = 2,
    /// One address space.
    Space = 3,
    /// One kernel object.
    Object = 4,
    /// One bucket of parked threads.
    Park = 5,
    /// Kernel stacks and thread records.
    Stacks = 6,
    /// The heap.
    Heap = 7,
    /// Physical frames.
    Frames = 8,
    /// Completion side of a ring.
    Ring = 9,
    /// A thread's parked entity.
    Wait = 10,
    /// A CPU's deadlines.
    Timers = 11,
    /// A CPU's run queue; two by ascending number.
    Cpu = 12,
    /// The serial port.
    Console = 13,
}

/// From here up nothing may allocate, print or decode (K-18).
const FORBIDS_ALLOCATION: Rank = Rank::Ring;

/// The ranks that a CPU holds.
pub struct Held {
    /// Bit r: rank r is held.
    bits: Cell<u32>,
    /// The CPU rank is held a second time.
    twice: Cell<bool>,
}

impl Held {
    /// None.
    pub const fn new() -> Held {
        Held { bits: Cell::new(0), twice: Cell::new(false) }
    }

    fn acquire(&self, rank: Rank) {
        let bit = 1u32 << rank as u8;
        let bits = self.bits.get();
        if rank == Rank::Cpu && bits & bit != 0 && !self.twice.get() {
            self.twice.set(true);
            return;
        }
        if bits >= bit {
            panic!("lock order: {rank:?} taken while ranks {bits:#b} are held");
        }
        self.bits.set(bits | bit);
    }

    fn note(&self, rank: Rank) {
        let bit = 1u32 << rank as u8;
        if rank == Rank::Cpu && self.bits.get() & bit != 0 {
            self.twice.set(true);
        }
        self.bits.set(self.bits.get() | bit);
    }

    fn release(&self, rank: Rank) {
        if rank == Rank::Cpu && self.twice.replace(false) {
            return;
        }
        self.bits.set(self.bits.get() & !(1 << rank as u8));
    }

    /// Is anything held?
    pub fn any(&self) -> bool {
        self.bits.get() != 0
    }

    /// Is a lock held under which nothing may allocate?
    pub fn forbids_allocation(&self) -> bool {
        self.bits.get() >= 1 << FORBIDS_ALLOCATION as u8
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

    /// Waits for the lock.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if checked() {
            percpu::this().held.acquire(self.rank);
        }
        if self.locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.locked.swap(true, Ordering::Acquire) {
            return None;
        }
        // Trying cannot deadlock, so the order does not matter.
        if checked() {
            percpu::this().held.note(self.rank);
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

    /// Opens the lock by force: for a panic that must print.
    pub fn force_open(&self) {
        self.locked.store(false, Ordering::Release);
    }

    /// The value, without the lock: nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
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
            percpu::this().held.release(self.lock.rank);
        }
    }
}
