//! Preemption points: places where a long path of the kernel lets interrupts and other threads go first.
//!
//! The kernel does not preempt itself. Without such points a program could delay timers, wake-ups and every other thread of its CPU for seconds
//! (K-26). A point checks whether an interrupt waits or another thread should run. What is done then belongs to layers above, which hand it down at
//! boot ([`hand_down`]).

use crate::arch::percpu::{self, MachineCpu, attention};
use crate::clock;
use crate::hook::Hook;
use crate::irqoff;
use core::sync::atomic::Ordering;

/// Serves the waiting interrupts and lets other threads run, until nothing is left to do.
static SERVE: Hook<fn()> = Hook::empty();
/// The same, once.
static SERVE_ONCE: Hook<fn()> = Hook::empty();

/// Sets what points do if there is something to do. At boot; before that points do nothing, because there is no other thread.
pub fn hand_down(serve: fn(), serve_once: fn()) {
    SERVE.set(serve);
    SERVE_ONCE.set(serve_once);
}

/// Whether an interrupt is due or was requested that this CPU has not taken yet.
#[inline(always)]
pub fn is_interrupt_waiting(me: &MachineCpu) -> bool {
    me.ipi.load(Ordering::Relaxed) != 0 || clock::now_ns() >= me.armed_ns.load(Ordering::Relaxed)
}

#[inline(always)]
fn is_anything_to_do(me: &MachineCpu) -> bool {
    me.attention.get() & attention::RESCHEDULE != 0 || is_interrupt_waiting(me)
}

/// A preemption point in a long path of the current thread, which holds no lock.
pub fn point() {
    let Some(serve) = SERVE.get() else { return };
    let me = percpu::this();
    debug_assert!(!me.held.any(), "a preemption point with a lock held");
    if is_anything_to_do(me) {
        serve();
    } else {
        irqoff::served(me);
    }
}

/// As [`point`], at the end of an operation that ends its interrupts-off span itself.
#[inline(always)]
pub fn point_at_end() {
    let me = percpu::this();
    debug_assert!(!me.held.any(), "a preemption point with a lock held");
    if is_anything_to_do(me)
        && let Some(serve) = SERVE_ONCE.get()
    {
        serve();
    }
}

/// A preemption point every so many steps of a long path. Each step is bounded, so the time between two points is, too.
pub struct Pacer {
    each: u32,
    left: u32,
}

impl Pacer {
    /// A point every `each` steps.
    pub const fn of(each: u32) -> Pacer {
        Pacer { each, left: each }
    }

    /// For steps that free or map a page: some 300 instructions each.
    pub const fn of_pages() -> Pacer {
        Pacer::of(32)
    }

    /// For steps that free `frames::BATCH` pages.
    pub const fn of_batches() -> Pacer {
        Pacer::of(2)
    }

    /// For steps that wake or notify a thread: some 1,500 instructions each.
    pub const fn of_wakes() -> Pacer {
        Pacer::of(8)
    }

    /// For entries of a ring that are done in place: some 1,000 instructions each.
    pub const fn of_entries() -> Pacer {
        Pacer::of(8)
    }

    /// For steps that search a long queue and then notify a thread: some 10,000 instructions each at worst.
    pub const fn of_searches() -> Pacer {
        Pacer::of(1)
    }

    /// One step is done. The caller holds no lock.
    #[inline]
    pub fn step(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.each;
            point();
        }
    }
}
