//! What stands between C and the runtime: unwinding stops here, and so do floating-point modes and stack overflows.
//!
//! A task that overflows its stack is given up where it stands. That must not be inside the runtime, with a lock held;
//! so every call first looks at the stack that is left, and is refused if that is too little. C cannot be unwound: the task
//! has overflowed when it returns.
//!
//! C code may change the rounding, the masks and the precision (MXCSR and the x87 control word). They belong to the
//! task that changed them. The runtime's own switch does not keep them, so every call into it puts the ABI's defaults in
//! force and the caller's modes back afterwards, perhaps on another thread. Threads that are started meanwhile inherit
//! the defaults too. The exception flags are no modes: as for any call, they are not kept.

use janus::raw::{has_stack, make_room};
use std::arch::asm;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the ABI has in force when a program starts.
const DEFAULT: Modes = Modes { mxcsr: 0x1F80, x87: 0x037F };
/// The bits of MXCSR that are no flags.
const CONTROL: u32 = 0xFFC0;

/// Stack that a call into the runtime may need: about twice what any was seen to use.
const SHALLOW: usize = 3 << 10;
/// The same for calls that start or stop a runtime.
const DEEP: usize = 14 << 10;

/// The floating-point modes of a thread.
#[derive(Clone, Copy)]
struct Modes {
    mxcsr: u32,
    x87: u16,
}

impl Modes {
    #[inline]
    fn now() -> Modes {
        let mut modes = DEFAULT;
        // SAFETY: stores two registers into two variables.
        unsafe {
            asm!("stmxcsr [{m}]", "fnstcw [{x}]", m = in(reg) &raw mut modes.mxcsr, x = in(reg) &raw mut modes.x87,
                options(nostack, preserves_flags));
        }
        modes
    }

    #[inline]
    fn are_default(self) -> bool {
        self.mxcsr & CONTROL == DEFAULT.mxcsr && self.x87 == DEFAULT.x87
    }

    /// Puts them in force.
    fn load(self) {
        // SAFETY: the values were in force before, or are the ABI's defaults.
        unsafe {
            asm!("ldmxcsr [{m}]", "fldcw [{x}]", m = in(reg) &raw const self.mxcsr, x = in(reg) &raw const self.x87,
                options(nostack, preserves_flags, readonly));
        }
    }
}

/// The body of an export: `call` with default modes and without unwinding; `failed` if the task's stack is too short for it,
/// or if it panics, a bug of ours.
#[inline]
pub(crate) fn entered<R>(failed: R, call: impl FnOnce() -> R) -> R {
    if has_stack(SHALLOW) { guarded(failed, call) } else { failed }
}

/// The same for an export that may not be refused: who awaits children frees next what they use.
#[inline]
pub(crate) fn entered_surely<R>(failed: R, call: impl FnOnce() -> R) -> R {
    make_room();
    guarded(failed, call)
}

/// The same for an export that may start or stop a runtime.
#[inline]
pub(crate) fn entered_deep<R>(failed: R, call: impl FnOnce() -> R) -> R {
    if has_stack(DEEP) { guarded(failed, call) } else { failed }
}

#[inline]
fn guarded<R>(failed: R, call: impl FnOnce() -> R) -> R {
    let modes = Modes::now();
    let changed = !modes.are_default();
    if changed {
        DEFAULT.load();
    }
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or(failed);
    if changed {
        modes.load();
    }
    result
}

/// What C gives us to run. An exception of C++ that leaves it ends the process, with a message: hence the `unwind`.
pub(crate) type Body = unsafe extern "C-unwind" fn(*mut c_void) -> i64;

/// The body of a task. It begins with default modes, as every call into the runtime leaves them; what it changed ends
/// with it.
///
/// # Safety
/// As the caller of the export that spawned it promised: `body` may be called with `arg`.
pub(crate) unsafe fn run(body: Body, arg: *mut c_void) -> i64 {
    // SAFETY: the caller's.
    let code = unsafe { body(arg) };
    if !Modes::now().are_default() {
        DEFAULT.load();
    }
    code
}
