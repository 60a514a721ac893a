//! A mark that a thread keeps for as long as it does not enter the kernel, not even for an interrupt. By it a thread knows, without a system
//! call and without trusting the kernel, whether the time that passed was its own.
//!
//! The mark is the selector 3 in register ES, which has no meaning in 64-bit mode. Selectors 1 to 3 name no segment, and the hardware
//! replaces them by 0 on a return to user mode (`iret` to an outer level; SDM volume 2, IRET).

/// A selector that no return to user mode leaves in ES.
const MARK: u32 = 3;

/// Sets the mark: [`is_kept`] tells about the time from here on.
#[inline(always)]
pub fn set() {
    // SAFETY: loads a selector that names nothing, which any program may do, into a register that nothing uses.
    unsafe { core::arch::asm!("mov es, {0:e}", in(reg) MARK, options(nomem, nostack, preserves_flags)) }
}

/// Whether the thread has stayed in user mode since [`set`].
#[inline(always)]
pub fn is_kept() -> bool {
    let found: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {0}, es", out(reg) found, options(nomem, nostack, preserves_flags)) }
    found as u32 == MARK
}
