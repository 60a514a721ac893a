//! The record of each CPU, which the CPU finds through GS.
//!
//! At CPL0 the kernel's GS base is always loaded: entries from user mode swap it in first.
//!
//! This is the machine's part of a CPU's record. Each layer above puts its own part behind that of the layer below: a record begins with
//! a [`MachineCpu`], so one pointer names the parts of all layers, and each layer sees its own part and those below.

use crate::counters::Counters;
use crate::lock::Held;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use kcore::debt::Debt;
use sched::MAX_CPUS;

/// One CPU, as the machine knows it. The first fields have fixed offsets, which assembly uses.
#[repr(C)]
pub struct MachineCpu {
    /// Its own address (`gs:0`).
    this: *const MachineCpu,
    /// Where the system-call entry keeps the user's stack pointer for a moment (`gs:8`).
    pub user_rsp: Cell<u64>,
    /// The kernel stack of the running thread (`gs:16`); also in the TSS.
    pub kernel_rsp: Cell<u64>,
    /// Number of this CPU, from 0 in the order of bring-up.
    pub id: usize,
    /// Its name for interrupt delivery.
    pub apic_id: u32,
    /// Whether the CPU is in an interrupt handler.
    pub in_interrupt: Cell<bool>,
    /// What has to be done before the CPU goes back to user mode: bits of [`attention`].
    pub attention: Cell<u8>,
    /// Whether the CPU is between the decision to switch a thread out and the next thread's first step. Set only by builds that check locks.
    pub in_dispatch: Cell<bool>,
    /// The address of the one lock that may be taken there: that of the CPU's own run queue.
    pub own_lock: Cell<*const ()>,
    /// Which locks are held here.
    pub held: Held,
    /// How long the CPU has not served interrupts.
    pub irq_off: crate::irqoff::IrqOffSpan,
    /// The reasons for the next inter-processor interrupt.
    pub ipi: AtomicU32,
    /// On whose behalf that interrupt was requested, if it is to be charged to a thread or a context (S-16).
    pub asked_for: Asked,
    /// How many TLB flushes were requested of this CPU, and how many of them it has done.
    pub tlb_asked: AtomicU64,
    /// See `tlb_asked`.
    pub tlb_done: AtomicU64,
    /// Whether the CPU takes part in scheduling and shootdowns.
    pub online: AtomicBool,
    /// The time for which the local timer is armed; `u64::MAX` if it is not.
    pub armed_ns: AtomicU64,
    /// The page-table root that is loaded.
    pub root: Cell<u64>,
    /// The descriptor tables that the CPU itself reads.
    pub segments: UnsafeCell<super::segments::Segments>,
    /// The CPU's counters.
    pub counters: Counters,
}

/// On whose behalf other CPUs interrupt this one: the last requester is charged for the interrupt (S-16). A place of fixed size (K-30).
pub struct Asked(AtomicPtr<Debt>);

impl Asked {
    const fn new() -> Asked {
        Asked(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Notes who is to be charged; before the interrupt is sent.
    #[inline(always)]
    pub fn put(&self, payer: &'static Debt) {
        self.0.store(core::ptr::from_ref(payer).cast_mut(), Ordering::Relaxed);
    }

    /// Takes that note; in the interrupt.
    #[inline(always)]
    pub fn take(&self) -> Option<&'static Debt> {
        // SAFETY: `put` wrote it, from a reference that is valid for ever.
        unsafe { self.0.swap(core::ptr::null_mut(), Ordering::Relaxed).as_ref() }
    }
}

/// Bits of [`MachineCpu::attention`].
pub mod attention {
    /// Another thread may have to run.
    pub const RESCHEDULE: u8 = 1;
    /// The interrupts-off span is measured (`irqoff`), and ends with the return to user mode.
    pub const MEASURED: u8 = 2;
}

// SAFETY: cells are touched by their own CPU only, with interrupts off; what others touch is atomic or locked.
unsafe impl Sync for MachineCpu {}
// SAFETY: made on the boot CPU, then used by the CPU that it belongs to.
unsafe impl Send for MachineCpu {}

impl MachineCpu {
    /// The machine's part of a new record, with the page-table root that the CPU begins with.
    pub fn new(id: usize, apic_id: u32, root: u64) -> MachineCpu {
        MachineCpu {
            this: core::ptr::null(),
            user_rsp: Cell::new(0),
            kernel_rsp: Cell::new(0),
            id,
            apic_id,
            in_interrupt: Cell::new(false),
            attention: Cell::new(0),
            in_dispatch: Cell::new(false),
            own_lock: Cell::new(core::ptr::null()),
            held: Held::new(),
            irq_off: crate::irqoff::IrqOffSpan::new(),
            ipi: AtomicU32::new(0),
            asked_for: Asked::new(),
            tlb_asked: AtomicU64::new(0),
            tlb_done: AtomicU64::new(0),
            online: AtomicBool::new(false),
            armed_ns: AtomicU64::new(u64::MAX),
            root: Cell::new(root),
            segments: UnsafeCell::new(super::segments::Segments::new()),
            counters: Counters::new(),
        }
    }

    /// Requests `what` (bits of [`attention`]), to be done before the CPU goes back to user mode.
    #[inline(always)]
    pub fn ask_for(&self, what: u8) {
        self.attention.set(self.attention.get() | what);
    }
}

/// Offsets that assembly relies on.
pub const OFFSET_USER_RSP: usize = core::mem::offset_of!(MachineCpu, user_rsp);
/// See `OFFSET_USER_RSP`.
pub const OFFSET_KERNEL_RSP: usize = core::mem::offset_of!(MachineCpu, kernel_rsp);

const _: () = assert!(OFFSET_USER_RSP == 8 && OFFSET_KERNEL_RSP == 16);

static CPUS: [AtomicPtr<MachineCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The record of the CPU that this code runs on: the whole record, for layers that know more of it.
#[inline(always)]
pub fn this_record() -> *const MachineCpu {
    let pointer: *const MachineCpu;
    // SAFETY: GS points to this CPU's record from `install` on, and the record is never freed. Only the first lines of the boot
    // run before `install`, and they do not call this.
    unsafe {
        asm!("mov {}, gs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// The CPU that this code runs on.
#[inline(always)]
pub fn this() -> &'static MachineCpu {
    // SAFETY: as in `this_record`; records are never freed.
    unsafe { &*this_record() }
}

/// Whether GS is set up.
pub fn ready() -> bool {
    super::cpu::rdmsr(GS_BASE) != 0
}

const GS_BASE: u32 = 0xc000_0101;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// From here on the record is found by its number.
///
/// # Safety
/// `record` points to a whole record, of all layers, which begins with a [`MachineCpu`], is never freed, and is not known to anybody else yet.
pub unsafe fn register(record: *mut MachineCpu) {
    // SAFETY: the caller's promise.
    let id = unsafe {
        (*record).this = record;
        (*record).id
    };
    CPUS[id].store(record, Ordering::Release);
    COUNT.fetch_max(id + 1, Ordering::AcqRel);
}

/// Makes `record` the one that [`this`] finds on the calling CPU.
///
/// # Safety
/// Called once on each CPU, with its own record.
pub unsafe fn install(record: &'static MachineCpu) {
    // SAFETY: the record is never freed.
    unsafe {
        super::cpu::wrmsr(GS_BASE, record as *const MachineCpu as u64);
        super::cpu::wrmsr(KERNEL_GS_BASE, 0);
    }
}

/// The whole record of CPU number `id`, for layers that know more of it; null if there is none.
#[inline]
pub fn record(id: usize) -> *const MachineCpu {
    CPUS.get(id).map_or(core::ptr::null(), |cpu| cpu.load(Ordering::Acquire))
}

/// CPU number `id`, if there is one.
#[inline]
pub fn get(id: usize) -> Option<&'static MachineCpu> {
    // SAFETY: records are never freed, and stored after they are complete.
    unsafe { record(id).as_ref() }
}

/// How many CPUs have a record.
#[inline]
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// All CPUs with a record.
pub fn all() -> impl Iterator<Item = &'static MachineCpu> {
    (0..count()).filter_map(get)
}

/// Removes the last record again: its CPU did not start.
pub fn remove_last() {
    let last = COUNT.fetch_sub(1, Ordering::AcqRel) - 1;
    CPUS[last].store(core::ptr::null_mut(), Ordering::Release);
}
