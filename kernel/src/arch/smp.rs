//! The other CPUs: starting them, and interrupting them.

use super::percpu::{self, MachineCpu};
use super::{apic, cpu, entry, features, phys, segments};
use crate::clock;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use kcore::debt::Debt;

/// The CPU is to look at its run queue.
pub const IPI_RESCHED: u32 = 1;
/// The CPU is to flush its TLB.
pub const IPI_TLB: u32 = 2;
/// The CPU is to halt: the machine stops.
pub const IPI_HALT: u32 = 4;
/// A clock event, passed on by the CPU that has the only timer.
pub const IPI_TICK: u32 = 8;
/// The CPU is to enter the kernel, because its thread's process may be ending.
pub const IPI_KICK: u32 = 16;
/// From the watchdog: the CPU is to make sure that its next check comes, or to do what the boot options have planted.
pub const IPI_WATCH: u32 = 32;

/// Where the start-up code of other CPUs is put: below 1 MiB, where nothing else is.
const TRAMPOLINE: u64 = 0x8000;
/// How long a CPU may take to start: as long as Linux gives it. An emulated CPU waits for one of the host, which may be busy.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How long the test waits for a CPU that must not come.
const LATE_NS: u64 = 50_000_000;
/// How often a CPU is told to start; the second time is for a CPU that missed the first.
const STARTUPS: u64 = 2;

unsafe extern "C" {
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    static ap_cr3: u8;
    static ap_stack: u8;
    static ap_entry: u8;
    static ap_expected: u8;
    static boot_pml4: u8;
}

/// The expected number that no CPU has: each CPU compares it with its APIC number plus one.
const NOBODY: u32 = 0;

static AP_TSC: AtomicU64 = AtomicU64::new(0);
static STARTING: AtomicPtr<MachineCpu> = AtomicPtr::new(core::ptr::null_mut());

/// Interrupts `cpu` for `reason`, and charges `payer` for it (S-16). Several reasons share one interrupt.
#[inline]
pub fn interrupt(cpu: &MachineCpu, reason: u32, payer: Option<&'static Debt>) {
    if let Some(payer) = payer {
        cpu.asked_for.put(payer);
    }
    if cpu.ipi.fetch_or(reason, Ordering::SeqCst) == 0 {
        apic::send_ipi(cpu.apic_id, entry::VECTOR_IPI);
        percpu::this().counters.ipis_sent.bump();
    }
}

/// Stops all other CPUs: the kernel has failed.
pub fn halt_others() {
    if percpu::count() > 1 {
        let me = percpu::this().id;
        percpu::all().filter(|cpu| cpu.id != me).for_each(|cpu| interrupt(cpu, IPI_HALT, None));
    }
}

/// What layers above provide for a new CPU.
pub struct NewCpu {
    /// Its record.
    pub record: &'static MachineCpu,
    /// The top of the stack that it begins on.
    pub stack_top: u64,
}

/// How records of new CPUs are made, and what the CPUs do.
pub struct Start {
    /// The kernel's page-table root.
    pub root: u64,
    /// Makes the record of the next CPU, with this APIC number; `None` if memory is short.
    pub make: fn(u32) -> Option<NewCpu>,
    /// Called if the CPU with this number did not start.
    pub give_up: fn(usize),
    /// What the CPU does after it has started, on the stack that it began on.
    pub run: extern "C" fn(u64) -> !,
    /// Whether the first CPU is given up before it can come, for the test that it then stays out.
    pub is_first_late: bool,
}

/// The [`Start`] for the CPU that starts. Written before it is started.
static START: AtomicPtr<Start> = AtomicPtr::new(core::ptr::null_mut());

/// Starts the CPUs with these APIC numbers, one after the other. Says how many have started.
pub fn start_others(apic_ids: &[u32], start: &'static Start) -> usize {
    START.store(core::ptr::from_ref(start).cast_mut(), Ordering::Release);
    let mine = percpu::this().apic_id;
    // SAFETY: linker symbols, of which only the addresses are used; low memory is reserved for this.
    unsafe {
        let trampoline = &raw const ap_trampoline as u64;
        let bytes = &raw const ap_trampoline_end as u64 - trampoline;
        core::ptr::copy_nonoverlapping(
            phys::pointer::<u8>(trampoline),
            phys::pointer::<u8>(TRAMPOLINE),
            bytes as usize,
        );
        // The boot tables have the identity map that start-up needs; their upper half becomes the kernel's.
        let root = &raw const boot_pml4 as u64;
        let upper_half = |root: u64| phys::pointer::<u64>(root).add(256);
        core::ptr::copy_nonoverlapping(upper_half(start.root), upper_half(root), 256);
        put(&raw const ap_cr3 as u64 - trampoline, root);
        put(&raw const ap_entry as u64 - trampoline, start_ap as *const () as u64);
    }
    // SAFETY: an aligned word of the trampoline, which CPUs change by atomic instructions only.
    let expected = unsafe {
        let offset = &raw const ap_expected as u64 - &raw const ap_trampoline as u64;
        AtomicU32::from_ptr(phys::pointer::<u32>(TRAMPOLINE + offset))
    };
    let (mut started, mut late) = (0, None);
    for apic_id in apic_ids.iter().filter(|id| **id != mine).take(sched::MAX_CPUS - 1) {
        let Some(NewCpu { record, stack_top }) = (start.make)(*apic_id) else { break };
        // SAFETY: as above.
        unsafe { put(&raw const ap_stack as u64 - &raw const ap_trampoline as u64, stack_top) };
        clock::before_start();
        STARTING.store(core::ptr::from_ref(record).cast_mut(), Ordering::Release);
        expected.store(apic_id + 1, Ordering::SeqCst);
        apic::send_init(*apic_id);
        clock::spin(200_000, || false);
        let is_online = || record.online.load(Ordering::Acquire);
        let is_late = start.is_first_late && started == 0 && late.is_none();
        if let Some(late) = late.take_if(|_| !is_late) {
            // The CPU that was given up comes now, when another one is expected.
            apic::send_startup(late, (TRAMPOLINE >> 12) as u8);
            clock::spin(LATE_NS, is_online);
            assert!(!is_online(), "K-01: a CPU that was given up has the stack and the record of another");
        }
        if is_late {
            expected.store(NOBODY, Ordering::SeqCst);
            late = Some(*apic_id);
        }
        for _ in 0..if is_late { 0 } else { STARTUPS } {
            apic::send_startup(*apic_id, (TRAMPOLINE >> 12) as u8);
            if clock::spin(PATIENCE_NS / STARTUPS, is_online) {
                break;
            }
        }
        // A CPU that has taken its number is starting, with the stack and the record, and nothing can stop it any more.
        if !is_online() && (is_late || expected.swap(NOBODY, Ordering::SeqCst) != NOBODY) {
            crate::println!("smp: CPU with APIC number {apic_id} does not answer; left out");
            percpu::remove_last();
            (start.give_up)(record.id);
            continue;
        }
        let has_come = clock::spin(PATIENCE_NS, is_online);
        assert!(has_come, "K-01: the CPU with APIC number {apic_id} has begun to start, and does not come");
        clock::check_behind(AP_TSC.load(Ordering::Acquire));
        started += 1;
    }
    started
}

/// # Safety
/// `offset` is that of a word in the trampoline.
unsafe fn put(offset: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { phys::pointer::<u64>(TRAMPOLINE + offset).write_volatile(value) }
}

extern "C" fn start_ap() -> ! {
    // SAFETY: the record that was made for this CPU, which has taken the number that belongs to it. Both pointers were stored before it was started,
    // and stay until it is online.
    let (me, start) = unsafe { (&*STARTING.load(Ordering::Acquire), &*START.load(Ordering::Acquire)) };
    // SAFETY: the kernel's own tables; once on this CPU, with its own record.
    unsafe {
        cpu::set_cr3(start.root);
        percpu::install(me);
        segments::load(me);
    }
    features::enable();
    apic::init();
    clock::check_step();
    crate::event::start(me);
    AP_TSC.store(cpu::rdtsc(), Ordering::Release);
    me.online.store(true, Ordering::Release);
    (start.run)(0)
}
