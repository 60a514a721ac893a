//! Preemption points: where a long path of the kernel lets others go first.
//!
//! The kernel does not preempt itself. Without such points a program could keep timers, wake-ups and everybody else on its CPU waiting for
//! seconds (K-26). A point looks whether an interrupt waits or somebody else should run; what is done then belongs to layers above, which hand
//! it down at boot ([`hand_down`]).

use crate::arch::percpu::{self, MachineCpu, attention};
use crate::clock;
use crate::hook::Hook;
use crate::irqoff;
use core::sync::atomic::Ordering;

/// Serves the interrupts that wait and lets others run, until nothing is left to do.
static SERVE: Hook<fn()> = Hook::empty();
/// The same, once.
static SERVE_ONCE: Hook<fn()> = Hook::empty();

/// What points do if there is something to do. At boot; before that there is nobody else, and they do nothing.
pub fn hand_down(serve: fn(), serve_once: fn()) {
    SERVE.set(serve);
    SERVE_ONCE.set(serve_once);
}

/// Has an interrupt been asked for that this CPU has not taken?
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

/// As [`point`], at the end of an operation that ends its stretch without interrupts itself.
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

/// A preemption point every so many steps of a long path. Each step is bounded, and so is what comes between two points.
pub struct Pacer {
    each: u32,
    left: u32,
}

impl Pacer {
    /// A point every `each` steps.
    pub const fn of(each: u32) -> Pacer {
        Pacer { each, left: each }
    }

    /// For steps that free or enter a page: some 300 instructions each.
    pub const fn of_pages() -> Pacer {
        Pacer::of(32)
    }

    /// For steps that free `frames::BATCH` pages.
    pub const fn of_batches() -> Pacer {
        Pacer::of(2)
    }

    /// For steps that tell somebody something: some 1,500 instructions each.
    pub const fn of_wakes() -> Pacer {
        Pacer::of(8)
    }

    /// For entries of a ring that are done in place: some 1,000 instructions each.
    pub const fn of_entries() -> Pacer {
        Pacer::of(8)
    }

    /// For steps that search a long queue and tell somebody: some 10,000 instructions each, at worst.
    pub const fn of_searches() -> Pacer {
        Pacer::of(1)
    }

    /// One step is done. No lock is held.
    #[inline]
    pub fn step(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.each;
            point();
        }
    }
}
