//! The record of each CPU, as far as the dispatcher sees it. Higher layers put their parts behind it (`context::leaving`).

use super::{CpuSched, Desk};
use crate::arch::percpu::{self as machine, MachineCpu};
pub use crate::arch::percpu::{attention, count, install};
use crate::dispatch::heads::ThreadHead;
use crate::mm::paging;
use crate::mm::percpu::MemoryCpu;
use crate::mm::stacks::Stack;
use crate::recorder;
use crate::tracing;
use core::cell::Cell;
use core::ops::Deref;

/// One CPU, as the layers up to the dispatcher know it.
#[repr(C)]
pub struct PerCpu {
    memory: MemoryCpu,
    /// The thread that runs; null when idle.
    pub current: Cell<*const ThreadHead>,
    /// Run queue, timers, idle context.
    pub dispatch: CpuSched,
    /// Memory in which it tests whether a new context can be admitted.
    pub desk: Desk,
    /// Its trace, if one is taken.
    pub trace: tracing::Buffer,
    /// Its part of the flight recorder.
    pub flight: recorder::Flight,
}

// SAFETY: cells are accessed by their own CPU only, with interrupts off; what other CPUs access is atomic or locked.
unsafe impl Sync for PerCpu {}

impl Deref for PerCpu {
    type Target = MemoryCpu;
    #[inline(always)]
    fn deref(&self) -> &MemoryCpu {
        &self.memory
    }
}

/// Makes this layer's part of a new record in place. Called at boot, so it may allocate (K-30). In place, because a record is large and the boot
/// stack is small: a record that is returned by value would lie on the stack more than once.
///
/// # Safety
/// `place` may be written.
pub unsafe fn make_at(place: *mut PerCpu, id: usize, apic_id: u32, idle_stack: Stack) {
    // SAFETY: the caller's promise; each field is written once, and none is read.
    unsafe {
        let machine = MachineCpu::new(id, apic_id, paging::kernel_root());
        (&raw mut (*place).memory).write(MemoryCpu::new(machine, idle_stack));
        (&raw mut (*place).current).write(Cell::new(core::ptr::null()));
        (&raw mut (*place).dispatch).write(CpuSched::new(id));
        (&raw mut (*place).desk).write(Desk::new());
        (&raw mut (*place).trace).write(tracing::Buffer::new());
        (&raw mut (*place).flight).write(recorder::Flight::new());
    }
}

/// Registers a record, so that it is found by its number.
///
/// # Safety
/// `record` points to a complete record of all layers, which begins with a [`PerCpu`] and lives for ever, and to which there is no other reference
/// yet.
pub unsafe fn register(record: *mut PerCpu) -> &'static PerCpu {
    // SAFETY: the caller's promise; a `PerCpu` begins with a `MemoryCpu`, which begins with a `MachineCpu`.
    unsafe {
        machine::register(record.cast());
        let record = &*record;
        record.own_lock.set((&raw const record.dispatch.queue).cast());
        recorder::add_cpu(record);
        record
    }
}

/// The record of the CPU that this runs on.
#[inline(always)]
pub fn this() -> &'static PerCpu {
    // SAFETY: every registered record begins with a `PerCpu`, as the contract of `register` says, and lives for ever.
    unsafe { &*machine::this_record().cast() }
}

/// CPU number `id`, if there is one.
#[inline]
pub fn get(id: usize) -> Option<&'static PerCpu> {
    // SAFETY: as in `this`.
    unsafe { machine::record(id).cast::<PerCpu>().as_ref() }
}

/// All CPUs with a record.
pub fn all() -> impl Iterator<Item = &'static PerCpu> {
    (0..count()).filter_map(get)
}
