//! A mark that a thread keeps for as long as it does not enter the kernel, not even for an interrupt: so it knows without a system call, and
//! without believing anybody, whether time that passed was its own.
//!
//! It is the number 3 in ES. In 64-bit mode that register means nothing; 1 to 3 name no segment, and the hardware puts 0 in their place
//! when it goes back to user mode (`iret` to an outer level; SDM volume 2, IRET).

/// What no return to user mode leaves there.
const MARK: u32 = 3;

/// From here on.
#[inline(always)]
pub fn set() {
    // SAFETY: loads a selector that names nothing, which any program may do, into a register that nothing uses.
    unsafe { core::arch::asm!("mov es, {0:e}", in(reg) MARK, options(nomem, nostack, preserves_flags)) }
}

/// Has the thread stayed in user mode since?
#[inline(always)]
pub fn is_kept() -> bool {
    let found: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {0}, es", out(reg) found, options(nomem, nostack, preserves_flags)) }
    found as u32 == MARK
}
