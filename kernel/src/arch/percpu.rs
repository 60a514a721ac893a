//! What each CPU has of its own, found through GS.
//!
//! At CPL0 the kernel's GS base is loaded, always: entries from user mode swap it in first.

use crate::counters::Counters;
use crate::lock::Held;
use crate::mm::stacks::Stack;
use crate::sched::{CpuSched, Desk};
use crate::thread::Thread;
use alloc::boxed::Box;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sched::MAX_CPUS;

/// One CPU. The first fields have fixed places: assembly uses them.
#[repr(C)]
pub struct PerCpu {
    /// Its own address (`gs:0`).
    pub this: *const PerCpu,
    /// Where the system-call entry keeps the user's stack pointer for a moment (`gs:8`).
    pub user_rsp: Cell<u64>,
    /// The kernel stack of the running thread (`gs:16`); also in the TSS.
    pub kernel_rsp: Cell<u64>,
    /// Who runs; null when idle (`gs:24`).
    pub current: Cell<*const Thread>,
    /// Number of this CPU, from 0 in the order of bring-up.
    pub id: usize,
    /// Its name for interrupt delivery.
    pub apic_id: u32,
    /// In an interrupt handler.
    pub in_interrupt: Cell<bool>,
    /// Which locks are held here.
    pub held: Held,
    /// How long it has not served interrupts.
    pub silence: crate::silence::Silence,
    /// Run queue, timers, idle context.
    pub sched: CpuSched,
    /// Where it judges newcomers with a context.
    pub desk: Desk,
    /// What it has done, if that is recorded.
    pub trace: crate::tracing::Buffer,
    /// Reasons of the next inter-processor interrupt.
    pub ipi: AtomicU32,
    /// TLB flushes asked of this CPU, and how many of them are done.
    pub tlb_asked: AtomicU64,
    /// See `tlb_asked`.
    pub tlb_done: AtomicU64,
    /// Takes part in scheduling and shootdowns.
    pub online: AtomicBool,
    /// The instant for which the local timer is armed (`u64::MAX`: not).
    pub armed_ns: Cell<u64>,
    /// The page-table root that is loaded.
    pub root: Cell<u64>,
    /// The space it belongs to; null for the kernel's.
    pub space: Cell<*const crate::mm::space::Space>,
    /// The tables that the CPU itself reads.
    pub segments: UnsafeCell<super::segments::Segments>,
    /// Blocks for the next allocations of their layouts; see `mm::heap::keep`.
    pub spares: [Cell<Option<(*mut u8, core::alloc::Layout)>>; crate::mm::heap::SPARES],
    /// The stack of the idle loop.
    pub idle_stack: Stack,
    /// What it counts.
    pub counters: Counters,
}

// SAFETY: cells are touched by their own CPU only, with interrupts off; what others touch is atomic or locked.
unsafe impl Sync for PerCpu {}
// SAFETY: made on the boot CPU, then used by its own.
unsafe impl Send for PerCpu {}

/// Offsets that assembly relies on.
pub const OFFSET_USER_RSP: usize = core::mem::offset_of!(PerCpu, user_rsp);
/// See `OFFSET_USER_RSP`.
pub const OFFSET_KERNEL_RSP: usize = core::mem::offset_of!(PerCpu, kernel_rsp);

const _: () = assert!(OFFSET_USER_RSP == 8 && OFFSET_KERNEL_RSP == 16);

static CPUS: [AtomicPtr<PerCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The CPU this runs on.
#[inline(always)]
pub fn this() -> &'static PerCpu {
    let pointer: *const PerCpu;
    // SAFETY: GS points to this CPU's record from `install` on, and the record is never freed. Nothing runs before `install`
    // but the first lines of the boot, which do not call this.
    unsafe {
        asm!("mov {}, gs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        &*pointer
    }
}

/// Is GS set up?
pub fn ready() -> bool {
    super::cpu::rdmsr(GS_BASE) != 0
}

const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Makes the record of a CPU, which lives for ever; at boot (K-30).
pub fn make(id: usize, apic_id: u32, idle_stack: Stack) -> &'static PerCpu {
    let record = Box::leak(Box::new(PerCpu {
        this: core::ptr::null(),
        user_rsp: Cell::new(0),
        kernel_rsp: Cell::new(0),
        current: Cell::new(core::ptr::null()),
        id,
        apic_id,
        in_interrupt: Cell::new(false),
        held: Held::new(),
        silence: crate::silence::Silence::new(),
        sched: CpuSched::new(id),
        desk: Desk::new(),
        trace: crate::tracing::Buffer::new(),
        ipi: AtomicU32::new(0),
        tlb_asked: AtomicU64::new(0),
        tlb_done: AtomicU64::new(0),
        online: AtomicBool::new(false),
        armed_ns: Cell::new(u64::MAX),
        root: Cell::new(crate::mm::paging::kernel_root()),
        space: Cell::new(core::ptr::null()),
        segments: UnsafeCell::new(super::segments::Segments::new()),
        spares: [const { Cell::new(None) }; crate::mm::heap::SPARES],
        idle_stack,
        counters: Counters::new(),
    }));
    record.this = record;
    CPUS[id].store(record, Ordering::Release);
    COUNT.fetch_max(id + 1, Ordering::AcqRel);
    record
}

/// Makes `record` what [`this`] finds on the CPU that calls.
///
/// # Safety
/// Once on each CPU, with its own record.
pub unsafe fn install(record: &'static PerCpu) {
    // SAFETY: the record lives for ever.
    unsafe {
        super::cpu::wrmsr(GS_BASE, record as *const PerCpu as u64);
        super::cpu::wrmsr(KERNEL_GS_BASE, 0);
    }
}

/// CPU number `id`, if there is one.
#[inline]
pub fn get(id: usize) -> Option<&'static PerCpu> {
    // SAFETY: records are never freed, and stored after they are complete.
    CPUS.get(id).and_then(|cpu| unsafe { cpu.load(Ordering::Acquire).as_ref() })
}

/// How many CPUs have a record.
#[inline]
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// All CPUs with a record.
pub fn all() -> impl Iterator<Item = &'static PerCpu> {
    (0..count()).filter_map(get)
}

/// Takes the last record out again: its CPU did not start.
pub fn remove_last() {
    let last = COUNT.fetch_sub(1, Ordering::AcqRel) - 1;
    CPUS[last].store(core::ptr::null_mut(), Ordering::Release);
}
