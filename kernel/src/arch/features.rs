//! Which features this CPU has, and enabling them.

use super::{cpu, entry, segments};
use core::sync::atomic::{AtomicBool, Ordering};

/// XSAVE is there and on.
pub static HAS_XSAVE: AtomicBool = AtomicBool::new(false);
/// AVX is there and on.
pub static HAS_AVX: AtomicBool = AtomicBool::new(false);
/// SMAP is there and on.
pub static HAS_SMAP: AtomicBool = AtomicBool::new(false);

const CR4_PGE: u64 = 1 << 7;
const CR4_UMIP: u64 = 1 << 11;
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

const MSR_EFER: u32 = 0xc000_0080;
const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_FMASK: u32 = 0xc000_0084;
const MSR_FS_BASE: u32 = 0xc000_0100;

/// What protects the kernel on this machine, for the boot log.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    /// The kernel cannot execute user pages.
    pub smep: bool,
    /// The kernel cannot touch user pages.
    pub smap: bool,
    /// Programs cannot read descriptor tables.
    pub umip: bool,
}

/// Enables what the CPU has, and points system calls at the kernel's entry. Called on each CPU.
pub fn enable() -> Protection {
    let leaf1 = cpu::cpuid(1, 0);
    let leaf7 = cpu::cpuid(7, 0);
    let xsave = leaf1[2] & 1 << 26 != 0;
    let avx = xsave && leaf1[2] & 1 << 28 != 0;
    let p = Protection {
        smep: leaf7[1] & 1 << 7 != 0,
        smap: leaf7[1] & 1 << 20 != 0,
        umip: leaf7[2] & 1 << 2 != 0,
    };
    assert!(leaf1[2] & 1 << 19 != 0, "this CPU has no SSE 4.1, which the kernel needs (x86-64-v2)");
    let mut cr4 = cpu::cr4() | CR4_PGE;
    for (has, bit) in [(p.smep, CR4_SMEP), (p.smap, CR4_SMAP), (p.umip, CR4_UMIP), (xsave, CR4_OSXSAVE)] {
        if has {
            cr4 |= bit;
        }
    }
    // SAFETY: CPUID reports each of them; the kernel neither accesses nor executes user pages through user addresses.
    unsafe { cpu::set_cr4(cr4) };
    if xsave {
        let mask: u32 = if avx { 7 } else { 3 };
        // SAFETY: XCR0 takes x87 and SSE always, and AVX where CPUID has it.
        unsafe { core::arch::asm!("xsetbv", in("ecx") 0, in("eax") mask, in("edx") 0, options(nostack)) };
    }
    HAS_XSAVE.store(xsave, Ordering::Relaxed);
    HAS_AVX.store(avx, Ordering::Relaxed);
    HAS_SMAP.store(p.smap, Ordering::Relaxed);
    let star = (segments::KERNEL_CODE as u64) << 32 | ((segments::USER_DATA - 8) as u64) << 48;
    // SAFETY: selectors as `segments` lays them out; the entry is the kernel's; the flags are those that must be off in the kernel: IF, DF, TF, AC,
    // NT.
    unsafe {
        cpu::wrmsr(MSR_EFER, cpu::rdmsr(MSR_EFER) | 1 | 1 << 11);
        cpu::wrmsr(MSR_STAR, star);
        cpu::wrmsr(MSR_LSTAR, entry::syscall_entry as *const () as u64);
        cpu::wrmsr(MSR_FMASK, 0x4_4700 | 1 << 18);
    }
    p
}

/// Sets the base of FS: the thread's local data.
#[inline(always)]
pub fn set_fs_base(base: u64) {
    // SAFETY: the kernel does not use FS; the value was checked to be canonical.
    unsafe { cpu::wrmsr(MSR_FS_BASE, base) }
}
