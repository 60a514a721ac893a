//! On whose behalf memory is asked for. Layers above know which thread runs, and hand down a function that says so.

use crate::hook::Hook;
use kcore::debt::Debt;

/// A thread that asks for memory, as this layer knows it.
#[derive(Clone, Copy)]
pub struct Asker {
    /// The thread's process.
    pub pid: u32,
    /// Whether it may not use the memory that is kept back for operators.
    pub is_guest: bool,
    /// Where interrupts that other CPUs take on its behalf are charged (S-16).
    pub debt: &'static Debt,
}

static CURRENT: Hook<fn() -> Option<Asker>> = Hook::empty();

/// From here on `current` says which thread asks; at boot.
pub fn hand_down(current: fn() -> Option<Asker>) {
    CURRENT.set(current);
}

/// The thread that asks for memory now; `None` in the idle loop, in interrupts of the idle loop, and at boot.
#[inline(always)]
pub fn current() -> Option<Asker> {
    CURRENT.get().and_then(|current| current())
}

/// The account for interrupts that other CPUs take on behalf of the current thread.
pub fn debt() -> Option<&'static Debt> {
    current().map(|asker| asker.debt)
}
