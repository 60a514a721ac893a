//! The local APIC (x2APIC by MSRs where the CPU has it, otherwise xAPIC by memory) and the IO APIC.

use super::cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of the registers of a local APIC, and of an IO APIC.
pub const REGISTER_BYTES: u64 = 4096;
const MSR_APIC_BASE: u32 = 0x1b;
const MSR_X2APIC: u32 = 0x800;

const EOI: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const ICR_LOW: u32 = 0x300;
const ICR_HIGH: u32 = 0x310;
const LVT_TIMER: u32 = 0x320;
const LVT_LINT0: u32 = 0x350;
const LVT_ERROR: u32 = 0x370;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

static X2: AtomicBool = AtomicBool::new(false);
static BASE: AtomicU64 = AtomicU64::new(0);

fn read(register: u32) -> u32 {
    if X2.load(Ordering::Relaxed) {
        return cpu::rdmsr(MSR_X2APIC + register / 16) as u32;
    }
    let address = BASE.load(Ordering::Relaxed) + u64::from(register);
    // SAFETY: `map_registers` had the page mapped; these are device registers, read with their side effects.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(register: u32, value: u32) {
    if X2.load(Ordering::Relaxed) {
        // SAFETY: an APIC register; what is written changes interrupt delivery only.
        return unsafe { cpu::wrmsr(MSR_X2APIC + register / 16, u64::from(value)) };
    }
    let address = BASE.load(Ordering::Relaxed) + u64::from(register);
    // SAFETY: as `read`.
    unsafe { (address as *mut u32).write_volatile(value) }
}

/// Whether there is a local APIC.
pub fn exists() -> bool {
    cpu::cpuid(1, 0)[3] & 1 << 9 != 0
}

/// How the APIC is reached, for the boot log.
pub fn mode() -> &'static str {
    if X2.load(Ordering::Relaxed) { "x2apic" } else { "xapic" }
}

fn has_x2() -> bool {
    cpu::cpuid(1, 0)[2] & 1 << 21 != 0
}

/// Has `map` map the registers, if they are reached by memory; before the first [`init`].
pub fn map_registers(map: impl FnOnce(u64, u64) -> u64) {
    if !has_x2() {
        BASE.store(map(cpu::rdmsr(MSR_APIC_BASE) & 0xf_ffff_f000, REGISTER_BYTES), Ordering::Relaxed);
    }
}

/// Enables this CPU's APIC.
pub fn init() {
    let x2 = has_x2();
    let base = cpu::rdmsr(MSR_APIC_BASE);
    let mode = if x2 { 1 << 10 | 1 << 11 } else { 1 << 11 };
    // SAFETY: enables the APIC where the firmware put it.
    unsafe { cpu::wrmsr(MSR_APIC_BASE, base | mode) };
    X2.store(x2, Ordering::Relaxed);
    write(LVT_LINT0, 1 << 16);
    write(LVT_ERROR, 1 << 16);
    write(LVT_TIMER, 1 << 16);
    write(SPURIOUS, 0x100 | super::entry::VECTOR_SPURIOUS as u32);
}

/// Lets interrupts of the PIC through to this CPU.
pub fn accept_pic() {
    write(LVT_LINT0, 0x700);
}

/// Tells the APIC that the interrupt was taken.
#[inline]
pub fn end_of_interrupt() {
    write(EOI, 0);
}

fn send(target: u32, command: u32) {
    if X2.load(Ordering::Relaxed) {
        // SAFETY: sends an interrupt.
        unsafe { cpu::wrmsr(MSR_X2APIC + ICR_LOW / 16, u64::from(target) << 32 | u64::from(command)) };
        return;
    }
    write(ICR_HIGH, target << 24);
    write(ICR_LOW, command);
    while read(ICR_LOW) & 1 << 12 != 0 {
        cpu::pause();
    }
}

/// Interrupts another CPU with `vector`.
pub fn send_ipi(target: u32, vector: usize) {
    send(target, 0x4000 | vector as u32);
}

/// Sends a non-maskable interrupt, which another CPU takes even with interrupts off.
pub fn send_nmi(target: u32) {
    send(target, 0x4400);
}

/// Resets another CPU.
pub fn send_init(target: u32) {
    send(target, 0x4500);
}

/// Starts another CPU at `page`.
pub fn send_startup(target: u32, page: u8) {
    send(target, 0x4600 | u32::from(page));
}

/// Starts a count down from `count`, at a 16th of the bus clock; an interrupt comes at its end.
#[inline]
pub fn timer_oneshot(count: u32) {
    write(TIMER_INITIAL, count);
}

/// Sets the timer up for one interrupt per count.
pub fn timer_setup_oneshot() {
    write(TIMER_DIVIDE, 3);
    write(LVT_TIMER, super::entry::VECTOR_TIMER as u32);
    write(TIMER_INITIAL, 0);
}

/// Sets the timer up for an interrupt every `count`.
pub fn timer_setup_periodic(count: u32) {
    write(TIMER_DIVIDE, 3);
    write(LVT_TIMER, 1 << 17 | super::entry::VECTOR_TIMER as u32);
    write(TIMER_INITIAL, count);
}

/// Sets the timer up to count down without interrupts, for calibration.
pub fn timer_setup_masked() {
    write(TIMER_DIVIDE, 3);
    write(LVT_TIMER, 1 << 16);
    write(TIMER_INITIAL, u32::MAX);
}

/// The current value of the count.
pub fn timer_current() -> u32 {
    read(TIMER_CURRENT)
}

/// Stops the timer.
pub fn timer_stop() {
    write(TIMER_INITIAL, 0);
}

/// Routes interrupt `gsi` of an IO APIC to `vector` on the CPU `target`. The IO APIC's registers are mapped at `base`, and its first interrupt is
/// `gsi_base`.
///
/// # Safety
/// `base` is where the registers of an IO APIC are mapped.
pub unsafe fn route(base: u64, gsi_base: u32, gsi: u32, vector: usize, target: u32, level: bool, low: bool) {
    let write = |register: u32, value: u32| {
        // SAFETY: the caller's promise; IOREGSEL and IOWIN.
        unsafe {
            (base as *mut u32).write_volatile(register);
            ((base + 16) as *mut u32).write_volatile(value);
        }
    };
    let entry = 0x10 + (gsi - gsi_base) * 2;
    write(entry + 1, target << 24);
    write(entry, vector as u32 | u32::from(low) << 13 | u32::from(level) << 15);
}
