//! The other CPUs: starting them, and interrupting them.

use super::percpu::{self, PerCpu};
use super::{apic, cpu, entry, features, segments};
use crate::clock;
use crate::mm::paging::{self, phys};
use crate::mm::stacks::Stack;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Look at your run queue.
pub const IPI_RESCHED: u32 = 1;
/// Flush your TLB.
pub const IPI_TLB: u32 = 2;
/// The machine stops.
pub const IPI_HALT: u32 = 4;
/// A clock event, passed on by the CPU that has the only timer.
pub const IPI_TICK: u32 = 8;
/// Come into the kernel: your process may be ending.
pub const IPI_KICK: u32 = 16;

/// Where the start-up code of other CPUs is put: below 1 MiB, where nothing else is.
const TRAMPOLINE: u64 = 0x8000;
/// How long a CPU may take to say that it is there.
const PATIENCE_NS: u64 = 200_000_000;

unsafe extern "C" {
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    static ap_cr3: u8;
    static ap_stack: u8;
    static ap_entry: u8;
    static boot_pml4: u8;
}

static AP_TSC: AtomicU64 = AtomicU64::new(0);
static STARTING: AtomicPtr<PerCpu> = AtomicPtr::new(core::ptr::null_mut());

/// Interrupts `cpu` for `reason`. Several reasons share one interrupt.
#[inline]
pub fn interrupt(cpu: &PerCpu, reason: u32) {
    if cpu.ipi.fetch_or(reason, Ordering::SeqCst) == 0 {
        apic::send_ipi(cpu.apic_id, entry::VECTOR_IPI);
        percpu::this().counters.ipis_sent.bump();
    }
}

/// Makes CPU `id` come into the kernel, if it is another one.
pub fn kick(id: usize) {
    if let Some(cpu) = percpu::get(id).filter(|cpu| cpu.id != percpu::this().id) {
        interrupt(cpu, IPI_KICK);
    }
}

/// Stops all others: the kernel has failed.
pub fn halt_others() {
    if percpu::count() > 1 {
        let me = percpu::this().id;
        percpu::all().filter(|cpu| cpu.id != me).for_each(|cpu| interrupt(cpu, IPI_HALT));
    }
}

/// Starts the CPUs with these APIC numbers, one after the other. Says how many came.
pub fn start_others(apic_ids: &[u32]) -> usize {
    let mine = percpu::this().apic_id;
    // SAFETY: linker symbols, of which only the addresses are used; low memory is reserved for this.
    unsafe {
        let start = &raw const ap_trampoline as u64;
        let bytes = &raw const ap_trampoline_end as u64 - start;
        core::ptr::copy_nonoverlapping(
            phys::pointer::<u8>(start),
            phys::pointer::<u8>(TRAMPOLINE),
            bytes as usize,
        );
        // The boot tables have the identity map that the way up needs; the rest becomes the kernel's.
        let root = &raw const boot_pml4 as u64;
        let kernel: &[u64] = &paging::table(paging::kernel_root())[256..];
        paging::table(root)[256..].copy_from_slice(kernel);
        put(&raw const ap_cr3 as u64 - start, root);
        put(&raw const ap_entry as u64 - start, start_ap as *const () as u64);
    }
    let mut started = 0;
    for apic_id in apic_ids.iter().filter(|id| **id != mine).take(sched::MAX_CPUS - 1) {
        let Some(stack) = Stack::allocate() else { break };
        let top = stack.top();
        let record = percpu::make(percpu::count(), *apic_id, stack);
        // SAFETY: as above.
        unsafe { put(&raw const ap_stack as u64 - &raw const ap_trampoline as u64, top) };
        clock::before_start();
        STARTING.store(record as *const PerCpu as *mut PerCpu, Ordering::Release);
        apic::send_init(*apic_id);
        clock::spin(200_000, || false);
        for _ in 0..2 {
            apic::send_startup(*apic_id, (TRAMPOLINE >> 12) as u8);
            if clock::spin(PATIENCE_NS / 2, || record.online.load(Ordering::Acquire)) {
                break;
            }
        }
        if !record.online.load(Ordering::Acquire) {
            crate::println!("smp: CPU with APIC number {apic_id} does not answer; left out");
            percpu::remove_last();
            continue;
        }
        clock::check_behind(AP_TSC.load(Ordering::Acquire));
        started += 1;
    }
    started
}

/// # Safety
/// `offset` is that of a word of the trampoline.
unsafe fn put(offset: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { phys::pointer::<u64>(TRAMPOLINE + offset).write_volatile(value) }
}

extern "C" fn start_ap() -> ! {
    // SAFETY: the record that was made for this CPU, the only one that is starting.
    let me = unsafe { &*STARTING.load(Ordering::Acquire) };
    // SAFETY: the kernel's own tables; once on this CPU, with its own record.
    unsafe {
        cpu::set_cr3(paging::kernel_root());
        percpu::install(me);
        segments::load(me);
    }
    features::enable();
    apic::init();
    clock::check_step();
    crate::event::start(me);
    AP_TSC.store(cpu::rdtsc(), Ordering::Release);
    me.online.store(true, Ordering::Release);
    // This stack is the idle loop's.
    crate::sched::idle_loop(0)
}
