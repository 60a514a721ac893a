//! How long interrupts wait (K-26): the longest stretch that each CPU spent in the kernel without serving them, counted always.
//!
//! A stretch begins where the kernel is entered, or where waiting interrupts were served last (`preempt::point`), and ends where user mode
//! or the idle loop opens interrupts, or where they are served again. A switch does not end it: a chain of threads that all stay in the kernel is
//! one stretch.
//!
//! The clock is not read where every call would pay for it. A stretch is measured from the first point on that is not of the usual kind: an
//! interrupt, an operation that is not done in place, a long queue of them, the end of a thread. What may come before is a few
//! operations of a bounded kind. Its end is seen by the flag that every return to user mode looks at anyway; an operation that began it ends
//! it itself, and what comes after that is of the same kind as what comes before.

use crate::arch::cpu;
use crate::arch::percpu::{MachineCpu, attention};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Stretches above these many ticks are counted: a proof compares the counts before and after, so nobody has to reset anything.
const LONG_TICKS: u64 = 20_000;
const TOO_LONG_TICKS: u64 = 50_000;

/// Ticks of the TSC that are one here. Where CPUs take turns (`turns=n`) all of them make the TSC go on, and while a CPU does one thing it counts one
/// for each of the others.
static SHARED_BY: AtomicU64 = AtomicU64::new(1);

/// So many CPUs take turns.
pub fn share_clock(cpus: usize) {
    SHARED_BY.store(cpus as u64, Ordering::Relaxed);
}

/// The stretch that a CPU is in. Written by that CPU alone; the watchdog of others reads it.
pub struct IrqOffSpan {
    /// TSC when it began; 0 if it is not measured.
    since: AtomicU64,
    /// What the CPU does in it: the last that was noted.
    path: AtomicU32,
}

impl IrqOffSpan {
    /// None.
    pub const fn new() -> IrqOffSpan {
        IrqOffSpan { since: AtomicU64::new(0), path: AtomicU32::new(0) }
    }

    /// Whether the CPU is in a stretch that is measured, and so in the kernel.
    #[inline(always)]
    pub fn is_measured(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// What the CPU did last, as a number: see [`Path`].
    pub fn path(&self) -> u32 {
        self.path.load(Ordering::Relaxed)
    }

    /// Where the number of what it does is, for who reads the memory of a machine that hangs.
    pub const PATH_OFFSET: usize = core::mem::offset_of!(IrqOffSpan, path);

    /// Another beginning: says which one it was before.
    #[inline(always)]
    fn change(&self, since: u64) -> u64 {
        let before = self.since.load(Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
        before
    }
}

/// What a stretch was spent on, as the counter `interrupts_off_path` says it: the kind in millions, and then what kind of that.
#[derive(Clone, Copy)]
pub enum Path {
    /// An interrupt, by its vector.
    Interrupt(u32),
    /// An operation, by its number in ten thousands; of methods the interface in hundreds, and the method.
    Operation(u32),
    /// A long queue of operations that are done in place.
    Queue,
    /// The end of a thread.
    End,
    /// A fault of a program.
    Fault,
    /// What a dropped capability left (`deferred_work`).
    DeferredWork,
}

impl Path {
    fn number(self) -> u32 {
        match self {
            Path::Interrupt(vector) => 1_000_000 + vector,
            Path::Operation(what) => 2_000_000 + what,
            Path::Queue => 3_000_000,
            Path::End => 4_000_000,
            Path::Fault => 5_000_000,
            Path::DeferredWork => 6_000_000,
        }
    }
}

/// What the CPU does now.
#[inline(always)]
pub fn note(me: &MachineCpu, path: Path) {
    me.irq_off.path.store(path.number(), Ordering::Relaxed);
}

/// The machine has booted: what came before does not count.
pub fn forget(me: &MachineCpu) {
    me.irq_off.change(0);
}

/// From here on the stretch is measured, if it was not already: says whether it was not.
#[inline(always)]
pub fn begins(me: &MachineCpu, path: Path) -> bool {
    note(me, path);
    let is_new = !me.irq_off.is_measured();
    resumes(me, cpu::rdtsc);
    is_new
}

/// As [`begins`], when the counter read `tsc`.
#[inline(always)]
pub fn begins_at(me: &MachineCpu, path: Path, tsc: u64) {
    note(me, path);
    resumes(me, || tsc);
}

/// The interrupts that waited have been served: the next stretch begins.
#[inline(always)]
pub fn served(me: &MachineCpu) {
    let now = cpu::rdtsc();
    let since = me.irq_off.change(now);
    if since == 0 {
        me.ask_for(attention::MEASURED);
    } else {
        count(me, now.wrapping_sub(since));
    }
}

/// A long path goes on, perhaps after others ran and a stretch ended with them.
#[inline(always)]
fn resumes(me: &MachineCpu, tsc: impl FnOnce() -> u64) {
    if !me.irq_off.is_measured() {
        me.irq_off.change(tsc());
        me.ask_for(attention::MEASURED);
    }
}

/// Interrupts are about to be open, or what is left until then is short.
#[inline(always)]
pub fn ends(me: &MachineCpu) {
    let since = me.irq_off.change(0);
    if since != 0 {
        count(me, cpu::rdtsc().wrapping_sub(since));
    }
}

#[inline(always)]
fn count(me: &MachineCpu, ticks: u64) {
    if ticks > me.counters.interrupts_off_max.get() || ticks > LONG_TICKS {
        count_long(me, ticks);
    }
}

#[cold]
#[inline(never)]
fn count_long(me: &MachineCpu, ticks: u64) {
    let ticks = ticks / SHARED_BY.load(Ordering::Relaxed);
    if ticks > me.counters.interrupts_off_max.get() {
        me.counters.interrupts_off_max.raise(ticks);
        me.counters.interrupts_off_path.set(me.irq_off.path().into());
    }
    if ticks > LONG_TICKS {
        me.counters.interrupts_off_over_20k.bump();
        if ticks > TOO_LONG_TICKS {
            me.counters.interrupts_off_over_50k.bump();
        }
    }
}
