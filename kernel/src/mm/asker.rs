//! On whose behalf memory is asked for: layers above know who runs, and hand down who asks.

use crate::hook::Hook;
use kcore::debt::Debt;

/// Who asks for memory.
#[derive(Clone, Copy)]
pub struct Asker {
    /// Its process.
    pub pid: u32,
    /// It may not use the memory that is kept for operators.
    pub is_guest: bool,
    /// What it owes for interrupts that other CPUs take for it (S-16).
    pub debt: &'static Debt,
}

static CURRENT: Hook<fn() -> Option<Asker>> = Hook::empty();

/// From here on `current` says who asks; at boot.
pub fn hand_down(current: fn() -> Option<Asker>) {
    CURRENT.set(current);
}

/// Who asks for memory now; nobody in the idle loop, in interrupts of it, and at boot.
#[inline(always)]
pub fn current() -> Option<Asker> {
    CURRENT.get().and_then(|current| current())
}

/// Who pays for the interrupts that other CPUs take for it.
pub fn debt() -> Option<&'static Debt> {
    current().map(|asker| asker.debt)
}
