//! The boundary between C and the runtime: unwinding stops here, and so do floating-point modes and stack overflows.
//!
//! A task that overflows its stack is abandoned where it is. That must not be inside the runtime, where it may hold a lock;
//! so every call first checks how much stack is left, and is refused if that is too little. C cannot be unwound, so the task
//! counts as overflowed when it returns.
//!
//! C code may change the rounding, the masks and the precision (MXCSR and the x87 control word). These modes belong to the
//! task that changed them. The runtime's own switch does not save them, so every call into the runtime sets the ABI's
//! defaults and restores the caller's modes afterwards, perhaps on another thread. Threads that are started meanwhile also
//! inherit the defaults. The exception flags are not modes: as in any call, they are not preserved.

use janus::raw::{has_stack, make_room};
use std::arch::asm;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The modes that the ABI sets when a program starts.
const DEFAULT: Modes = Modes { mxcsr: 0x1F80, x87: 0x037F };
/// The bits of MXCSR that are not exception flags.
const CONTROL: u32 = 0xFFC0;

/// How much stack a call into the runtime may need: about twice the most that was measured.
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

    /// Sets these modes.
    fn load(self) {
        // SAFETY: the values were in force before, or are the ABI's defaults.
        unsafe {
            asm!("ldmxcsr [{m}]", "fldcw [{x}]", m = in(reg) &raw const self.mxcsr, x = in(reg) &raw const self.x87,
                options(nostack, preserves_flags, readonly));
        }
    }
}

/// The body of an export: runs `call` with default modes and stops unwinding; returns `failed` if the task's stack is too
/// short, or if `call` panics, which is a bug of the runtime.
#[inline]
pub(crate) fn entered<R>(failed: R, call: impl FnOnce() -> R) -> R {
    if has_stack(SHALLOW) { guarded(failed, call) } else { failed }
}

/// The same for an export that may not be refused: after awaiting its children, a caller frees what they use.
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

/// The function that C passes to be run. A C++ exception that leaves it ends the process with a message, hence the `unwind`.
pub(crate) type Body = unsafe extern "C-unwind" fn(*mut c_void) -> i64;

/// The body of a task. It begins with default modes, because every call into the runtime leaves them so; the modes that it
/// changed end with it.
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
