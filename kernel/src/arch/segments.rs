//! GDT, TSS and IDT of each CPU.
//!
//! Every exception enters on a stack of its own (IST), because it may mean that the current stack has overflowed. Interrupts come from user
//! mode or from the idle loop only, and use the thread's kernel stack.

use super::entry;
use super::percpu::MachineCpu;
use core::arch::asm;
use core::cell::UnsafeCell;

/// Kernel code.
pub const KERNEL_CODE: u16 = 0x08;
/// Kernel data.
pub const KERNEL_DATA: u16 = 0x10;
/// User data (before user code, as `sysret` requires).
pub const USER_DATA: u16 = 0x18 | 3;
/// User code.
pub const USER_CODE: u16 = 0x20 | 3;
const TSS: u16 = 0x28;

const FAULT_STACK_BYTES: usize = 16 * 1024;
const NMI_STACK_BYTES: usize = 4 * 1024;
/// What lies above that stack: the address of the CPU's record, and 8 bytes for the alignment.
const NMI_RECORD_BYTES: u64 = 16;

#[repr(C, packed(4))]
struct Tss {
    reserved: u32,
    rsp: [u64; 3],
    reserved2: u64,
    ist: [u64; 7],
    reserved3: u64,
    reserved4: u16,
    io_map: u16,
}

#[repr(C, align(16))]
struct FaultStack([u8; FAULT_STACK_BYTES]);
#[repr(C, align(16))]
struct NmiStack([u8; NMI_STACK_BYTES]);

/// The tables and emergency stacks of one CPU.
#[repr(C, align(64))]
pub struct Segments {
    tss: Tss,
    gdt: [u64; 7],
    faults: FaultStack,
    double: FaultStack,
    nmi: NmiStack,
}

impl Segments {
    /// Empty tables.
    pub const fn new() -> Segments {
        Segments {
            tss: Tss {
                reserved: 0,
                rsp: [0; 3],
                reserved2: 0,
                ist: [0; 7],
                reserved3: 0,
                reserved4: 0,
                io_map: size_of::<Tss>() as u16,
            },
            gdt: [0; 7],
            faults: FaultStack([0; FAULT_STACK_BYTES]),
            double: FaultStack([0; FAULT_STACK_BYTES]),
            nmi: NmiStack([0; NMI_STACK_BYTES]),
        }
    }
}

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    offset_low: u16,
    selector: u16,
    ist: u8,
    kind: u8,
    offset_mid: u16,
    offset_high: u32,
    reserved: u32,
}

impl Gate {
    const fn empty() -> Gate {
        Gate { offset_low: 0, selector: 0, ist: 0, kind: 0, offset_mid: 0, offset_high: 0, reserved: 0 }
    }
    fn new(address: u64, ist: u8) -> Gate {
        Gate {
            offset_low: address as u16,
            selector: KERNEL_CODE,
            ist,
            kind: 0x8e,
            offset_mid: (address >> 16) as u16,
            offset_high: (address >> 32) as u32,
            reserved: 0,
        }
    }
}

#[repr(C, align(16))]
struct Idt(UnsafeCell<[Gate; 256]>);
// SAFETY: written by the boot CPU before any other CPU runs, then only read (by the hardware).
unsafe impl Sync for Idt {}
static IDT: Idt = Idt(UnsafeCell::new([Gate::empty(); 256]));

const IST_FAULT: u8 = 1;
const IST_DOUBLE: u8 = 2;
const IST_NMI: u8 = 3;

/// Fills the interrupt table, which all CPUs share.
///
/// # Safety
/// Once, on the boot CPU, before others are started.
pub unsafe fn fill_idt() {
    // SAFETY: the caller's promise: nobody else reads or writes it yet.
    let gates = unsafe { &mut *IDT.0.get() };
    for (vector, gate) in gates.iter_mut().enumerate() {
        let ist = match vector {
            2 => IST_NMI,
            8 => IST_DOUBLE,
            0..32 => IST_FAULT,
            _ => 0,
        };
        *gate = Gate::new(entry::stub(vector), ist);
    }
}

/// Loads the tables of `cpu` into the calling CPU.
///
/// # Safety
/// Called on that CPU, once, before it takes interrupts.
pub unsafe fn load(cpu: &'static MachineCpu) {
    // SAFETY: its own CPU is the only one that touches `segments`, and this is the first time.
    let s = unsafe { &mut *cpu.segments.get() };
    let top = |base: *const u8, bytes: usize| base as u64 + bytes as u64;
    // Whatever an NMI interrupts, GS may be that of user mode: so the handler finds the CPU's record above its stack.
    let nmi_top = top(s.nmi.0.as_ptr(), NMI_STACK_BYTES) - NMI_RECORD_BYTES;
    // SAFETY: the last bytes of the stack, which begins below them.
    unsafe { (nmi_top as *mut u64).write(core::ptr::from_ref(cpu) as u64) };
    let ist = [
        top(s.faults.0.as_ptr(), FAULT_STACK_BYTES),
        top(s.double.0.as_ptr(), FAULT_STACK_BYTES),
        nmi_top,
        0,
        0,
        0,
        0,
    ];
    s.tss.ist = ist;
    let base = &raw const s.tss as u64;
    let limit = size_of::<Tss>() as u64 - 1;
    s.gdt = [
        0,
        0x00af_9a00_0000_ffff,
        0x00cf_9200_0000_ffff,
        0x00cf_f200_0000_ffff,
        0x00af_fa00_0000_ffff,
        limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56,
        base >> 32,
    ];
    let gdt = TablePointer { limit: size_of_val(&s.gdt) as u16 - 1, base: s.gdt.as_ptr() as u64 };
    let idt = TablePointer { limit: 4095, base: IDT.0.get() as u64 };
    // SAFETY: the tables live as long as the CPU's record, which is never freed, and describe flat segments.
    unsafe {
        asm!(
            "lgdt [{gdt}]",
            "push {code}",
            "lea {tmp}, [rip + 2f]",
            "push {tmp}",
            "retfq",
            "2:",
            "mov ds, {data:x}",
            "mov es, {data:x}",
            "mov ss, {data:x}",
            "ltr {tss:x}",
            "lidt [{idt}]",
            gdt = in(reg) &gdt,
            idt = in(reg) &idt,
            code = const KERNEL_CODE as u64,
            data = in(reg) KERNEL_DATA as u64,
            tss = in(reg) TSS as u64,
            tmp = out(reg) _,
        );
    }
}

/// Sets the stack on which interrupts and system calls of the next thread enter the kernel.
#[inline(always)]
pub fn set_kernel_stack(cpu: &MachineCpu, top: u64) {
    cpu.kernel_rsp.set(top);
    // SAFETY: only its own CPU writes this field; the hardware reads it at the next entry from user mode.
    unsafe { (&raw mut (*cpu.segments.get()).tss.rsp).cast::<u64>().write_unaligned(top) }
}

/// Clears the selectors that user mode can load and read, because one process must not find what another left in them. This also zeroes the base of
/// user mode's GS, and that of FS, so the next thread's FS base is loaded after it.
///
/// Interrupts must be off: for two instructions GS is that of user mode. A non-maskable interrupt does not use GS.
#[inline(always)]
pub fn clear_selectors() {
    // SAFETY: in 64-bit mode DS and ES mean nothing, the kernel does not use FS, and its own base of GS is swapped out meanwhile.
    unsafe {
        asm!(
            "mov ds, {null:e}",
            "mov es, {null:e}",
            "mov fs, {null:e}",
            "swapgs",
            "mov gs, {null:e}",
            "swapgs",
            null = in(reg) 0_u64,
            options(nostack, preserves_flags)
        );
    }
}
