//! Single instructions for which Rust has no construct.

use core::arch::asm;

/// Writes a byte to an I/O port.
pub fn outb(port: u16, value: u8) {
    // SAFETY: port I/O does not touch memory that Rust knows of; the drivers are responsible for the ports that they write.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

/// Writes many bytes to an I/O port, one after the other, by one instruction.
pub fn outsb(port: u16, bytes: &[u8]) {
    // SAFETY: reads exactly `bytes`, and the direction flag is clear wherever Rust runs; otherwise as `outb`.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") bytes.as_ptr() => _, inout("rcx") bytes.len() => _,
            options(readonly, nostack, preserves_flags))
    }
}

/// Writes four bytes to an I/O port.
pub fn outl(port: u16, value: u32) {
    // SAFETY: as `outb`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) }
}

/// Writes two bytes to an I/O port.
pub fn outw(port: u16, value: u16) {
    // SAFETY: as `outb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) }
}

/// Reads a byte from an I/O port.
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: as `outb`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Reads four bytes from an I/O port.
pub fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: as `outb`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// The time-stamp counter.
#[inline(always)]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) }
    u64::from(high) << 32 | u64::from(low)
}

/// Reads a model-specific register.
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the callers name registers that exist on every x86_64 CPU or that CPUID promised.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The value must keep the kernel's assumptions: entry points, bases and features.
#[inline(always)]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

/// The result of CPUID.
pub fn cpuid(leaf: u32, sub: u32) -> [u32; 4] {
    let r = core::arch::x86_64::__cpuid_count(leaf, sub);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// Changes the page-table root, which also flushes translations that are not global.
///
/// # Safety
/// The tables must map the running kernel as it is mapped now.
#[inline(always)]
pub unsafe fn set_cr3(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) }
}

/// The address of the last page fault.
pub fn cr2() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// CR4.
pub fn cr4() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Sets CR4.
///
/// # Safety
/// Only features that the CPU has and the kernel is written for.
pub unsafe fn set_cr4(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) }
}

/// Alignment checks in user mode; at CPL0 this flag suspends SMAP.
pub const FLAG_AC: u64 = 1 << 18;
/// Interrupts are enabled.
pub const FLAG_IF: u64 = 1 << 9;

/// The flags register.
#[inline(always)]
pub fn flags() -> u64 {
    let value;
    // SAFETY: pushes and pops a word.
    unsafe { asm!("pushfq", "pop {}", out(reg) value, options(nomem, preserves_flags)) }
    value
}

/// Flushes the translation of one page on this CPU.
#[inline(always)]
pub fn invlpg(address: u64) {
    // SAFETY: flushing a translation is always sound; the CPU reads it from the tables again.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) }
}

/// Flushes all translations on this CPU, including the kernel's global ones.
pub fn flush_tlb_global() {
    const PGE: u64 = 1 << 7;
    let old = cr4();
    // SAFETY: toggling PGE flushes everything, and restores the value that was set.
    unsafe {
        set_cr4(old & !PGE);
        set_cr4(old);
    }
}

/// Lets a sibling thread of the core, or the emulator, go on.
#[inline(always)]
pub fn pause() {
    core::hint::spin_loop();
}

/// Stops this CPU for good.
pub fn halt() -> ! {
    loop {
        // SAFETY: nothing is expected of this CPU any more.
        unsafe { asm!("cli; hlt", options(nomem, nostack)) }
    }
}

/// Resets the machine by an exception without a handler.
pub fn triple_fault() -> ! {
    let empty = [0_u16; 5];
    // SAFETY: the machine is reset on purpose.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &empty, options(noreturn)) }
}

/// Waits for an interrupt, takes it, and comes back with interrupts off. `sti` takes effect after the next instruction, so no interrupt
/// can come between it and `hlt`.
pub fn wait_for_interrupt() {
    // SAFETY: only the idle loop calls this, with no lock held; the handlers leave everything as it was. There is no red zone to be overwritten: the
    // kernel is compiled without one, and nothing else is live here.
    unsafe { asm!("sti; hlt; cli", options(nostack)) }
}

/// Takes the interrupts that are pending, and comes back with interrupts off.
pub fn open_window() {
    // SAFETY: as `wait_for_interrupt`.
    unsafe { asm!("sti; nop; nop; cli", options(nostack)) }
}

/// Takes an interrupt that requests nothing. Returns the TSC before and after it.
pub fn interrupt_oneself() -> (u64, u64) {
    let (before, after): (u64, u64);
    // SAFETY: as `wait_for_interrupt`; the handler of this vector does nothing and expects no end of interrupt.
    unsafe {
        asm!(
            "rdtsc", "shl rdx, 32", "mov {before}, rdx", "or {before}, rax",
            "int {vector}",
            "rdtsc", "shl rdx, 32", "mov {after}, rdx", "or {after}, rax",
            before = out(reg) before, after = out(reg) after, vector = const super::entry::VECTOR_SPURIOUS,
            out("rax") _, out("rdx") _, options(nostack),
        );
    }
    (before, after)
}
