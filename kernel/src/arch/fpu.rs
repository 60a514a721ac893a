//! Vector and floating-point state.

use super::features;
use core::arch::asm;
use core::sync::atomic::Ordering;

/// Bytes of x87, SSE and AVX state in the standard form.
const AREA_BYTES: usize = 832;

#[repr(C, align(64))]
struct Area([u8; AREA_BYTES]);

const fn initial() -> Area {
    let mut bytes = [0; AREA_BYTES];
    // FCW and MXCSR: all exceptions masked, as a new process expects. XSTATE_BV stays 0: everything else is initial.
    bytes[0] = 0x7f;
    bytes[1] = 0x03;
    bytes[24] = 0x80;
    bytes[25] = 0x1f;
    Area(bytes)
}
static INITIAL: Area = initial();

/// Puts every register into its initial state, except MXCSR, which gets the given value. A thread finds them so at its start and after it waited in
/// a system call, with nothing left of another thread.
pub fn reset(mxcsr: u32) {
    // SAFETY: loads registers that are dead here: the kernel keeps nothing in them across this call, and user code declared them clobbered.
    unsafe {
        if features::HAS_XSAVE.load(Ordering::Relaxed) {
            asm!("xrstor64 [{}]", in(reg) &INITIAL, in("eax") 7, in("edx") 0, options(nostack));
        } else {
            asm!("fxrstor64 [{}]", in(reg) &INITIAL, options(nostack));
        }
        asm!("ldmxcsr [{}]", in(reg) &mxcsr, options(nostack));
    }
}

/// MXCSR of the current thread.
pub fn mxcsr() -> u32 {
    let mut value = 0u32;
    // SAFETY: stores a register.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) }
    value
}

/// MXCSR of a new thread.
pub const MXCSR_INITIAL: u32 = 0x1f80;
