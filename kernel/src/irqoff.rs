//! How long interrupts wait (K-26): the longest interrupts-off span of each CPU, in which it is in the kernel and serves none. Always counted.
//!
//! A span begins where the kernel is entered, or where waiting interrupts were served last (`preempt::point`). It ends where user mode or the idle
//! loop enables interrupts, or where they are served again. A switch does not end it: a chain of threads that all stay in the kernel is one span.
//!
//! The clock is not read where every system call would pay for it. A span is measured from its first unusual point on: an interrupt, an operation
//! that is not done in place, a long queue of those that are, the end of a thread. What comes before that point is at most a few operations of
//! bounded length. Every return to user mode checks a flag anyway, by which it sees that a span is measured and ends it. An operation that began
//! the span ends it itself; what follows is again a few operations of bounded length.

use crate::arch::cpu;
use crate::arch::percpu::{MachineCpu, attention};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Spans above this many ticks are counted: a proof compares the counts before and after, so nothing has to be reset.
const LONG_TICKS: u64 = 20_000;
const TOO_LONG_TICKS: u64 = 50_000;

/// By how much measured TSC ticks are divided. Where CPUs take turns (`turns=n`) each of them advances the common TSC, so while one CPU does one tick
/// of work, the TSC counts one more tick for each of the others.
static SHARED_BY: AtomicU64 = AtomicU64::new(1);

/// Sets the number of CPUs that take turns.
pub fn share_clock(cpus: usize) {
    SHARED_BY.store(cpus as u64, Ordering::Relaxed);
}

/// The span that a CPU is in. Written by that CPU only; the watchdogs of other CPUs read it.
pub struct IrqOffSpan {
    /// TSC when it began; 0 if it is not measured.
    since: AtomicU64,
    /// What the CPU does in it, as it last noted.
    path: AtomicU32,
}

impl IrqOffSpan {
    /// No span is measured.
    pub const fn new() -> IrqOffSpan {
        IrqOffSpan { since: AtomicU64::new(0), path: AtomicU32::new(0) }
    }

    /// Whether the CPU is in a measured span, and therefore in the kernel.
    #[inline(always)]
    pub fn is_measured(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// What the CPU did last, as a number: see [`Path`].
    pub fn path(&self) -> u32 {
        self.path.load(Ordering::Relaxed)
    }

    /// Where `path` is in this struct, for a debugger that reads the memory of a machine that hangs.
    pub const PATH_OFFSET: usize = core::mem::offset_of!(IrqOffSpan, path);

    /// Sets another beginning, and says which one was set before.
    #[inline(always)]
    fn change(&self, since: u64) -> u64 {
        let before = self.since.load(Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
        before
    }
}

/// What a span was spent on, as the counter `interrupts_off_path` reports it: the kind in millions, plus a detail.
#[derive(Clone, Copy)]
pub enum Path {
    /// An interrupt, by its vector.
    Interrupt(u32),
    /// An operation: its number in ten thousands; for a method, also the interface in hundreds, and the method.
    Operation(u32),
    /// A long queue of operations that are done in place.
    Queue,
    /// The end of a thread.
    End,
    /// A fault of a program.
    Fault,
    /// Work that a dropped capability left (`deferred_work`).
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

/// Notes what the CPU does now.
#[inline(always)]
pub fn note(me: &MachineCpu, path: Path) {
    me.irq_off.path.store(path.number(), Ordering::Relaxed);
}

/// The machine has booted: the spans so far do not count. Making the first process has preemption points as any other has.
pub fn forget(me: &MachineCpu) {
    me.irq_off.change(0);
    let counters = &me.counters;
    for counter in [
        &counters.interrupts_off_max,
        &counters.interrupts_off_path,
        &counters.interrupts_off_over_20k,
        &counters.interrupts_off_over_50k,
    ] {
        counter.set(0);
    }
}

/// The span is measured from here on, if it was not before. Says whether this call began the measurement.
#[inline(always)]
pub fn begins(me: &MachineCpu, path: Path) -> bool {
    note(me, path);
    let is_new = !me.irq_off.is_measured();
    resumes(me, cpu::rdtsc);
    is_new
}

/// As [`begins`], at a moment when the TSC read `tsc`.
#[inline(always)]
pub fn begins_at(me: &MachineCpu, path: Path, tsc: u64) {
    note(me, path);
    resumes(me, || tsc);
}

/// Interrupts that waited have been served: one span ends and the next begins.
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

/// A long path goes on, perhaps after other threads ran and the span ended with them.
#[inline(always)]
fn resumes(me: &MachineCpu, tsc: impl FnOnce() -> u64) {
    if !me.irq_off.is_measured() {
        me.irq_off.change(tsc());
        me.ask_for(attention::MEASURED);
    }
}

/// Interrupts are about to be enabled, or only a short path is left until then.
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
