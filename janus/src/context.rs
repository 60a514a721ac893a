//! Switching from one stack to another: SPEC-021 [SCHED:5.3.1] and [SCHED:5.4.1] to [SCHED:5.4.5].
//!
//! There are two switches and one representation. [`janus_context_switch`] is the specified function, out of line,
//! callable from C. [`switch`] is the same inlined into its caller, where the compiler knows which registers are live
//! and saves no others; the scheduler uses that one. Either resumes what the other suspended.
//!
//! The inlined switch does not save the floating-point control words: Rust code may not change them. C code may, so the
//! C adapter restores them around every call that can switch.
//!
//! This module knows nothing of tasks or workers.

use core::arch::{asm, global_asm};

global_asm!(include_str!("context_switch.s"));

/// Where a suspended flow of control continues: its stack pointer and callee-saved registers, 56 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Stack pointer; the word that it points to is the address at which to continue.
    pub sp: usize,
    /// Callee-saved registers.
    pub regs: SavedRegisters,
}

/// The callee-saved registers of the System V ABI but `rsp`, in the order that the assembly uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedRegisters {
    /// Offset 8 of the context.
    pub rbx: u64,
    /// Offset 16.
    pub rbp: u64,
    /// Offset 24; in a new context the entry function.
    pub r12: u64,
    /// Offset 32; in a new context the entry function's argument.
    pub r13: u64,
    /// Offset 40; in a new context the function that ends the fiber.
    pub r14: u64,
    /// Offset 48.
    pub r15: u64,
}

const _: () = {
    assert!(size_of::<Context>() == 56 && size_of::<SavedRegisters>() == 48);
    assert!(core::mem::offset_of!(Context, sp) == 0 && core::mem::offset_of!(Context, regs) == 8);
    assert!(
        core::mem::offset_of!(SavedRegisters, rbx) == 0 && core::mem::offset_of!(SavedRegisters, rbp) == 8
    );
    assert!(
        core::mem::offset_of!(SavedRegisters, r12) == 16 && core::mem::offset_of!(SavedRegisters, r13) == 24
    );
    assert!(
        core::mem::offset_of!(SavedRegisters, r14) == 32 && core::mem::offset_of!(SavedRegisters, r15) == 40
    );
};

unsafe extern "C" {
    /// Saves the caller in `from` and continues with `to`; returns when something switches to `from`.
    ///
    /// # Safety
    /// `from` is writable; `to` was suspended by a switch or made by [`Context::new`] on a stack that still exists, and
    /// nothing else resumes it.
    pub fn janus_context_switch(from: *mut Context, to: *const Context);
    fn janus_fiber_entry();
    fn janus_fiber_cleanup();
}

/// What a new fiber runs. It may return; then the fiber's `cleanup` is called on the same stack.
pub type Entry = unsafe extern "C" fn(*mut u8);

/// How a fiber ends: switches away for ever.
pub type Cleanup = unsafe extern "C" fn() -> !;

impl Context {
    /// A context that, once switched to, calls `entry(argument)` and then `cleanup()`.
    ///
    /// # Safety
    /// `top` is the 16-byte aligned upper end of a writable stack with room for `entry`.
    pub unsafe fn new(top: *mut u8, entry: Entry, argument: *mut u8, cleanup: Cleanup) -> Context {
        debug_assert!(top.addr().is_multiple_of(16));
        // SAFETY: the caller gives us this memory.
        let sp = unsafe {
            let sp = top.cast::<usize>().sub(4);
            sp.write(janus_fiber_entry as *const () as usize);
            sp.add(1).write(janus_fiber_cleanup as *const () as usize);
            sp
        };
        let (entry, cleanup) = (entry as usize as u64, cleanup as usize as u64);
        let regs =
            SavedRegisters { r12: entry, r13: argument.addr() as u64, r14: cleanup, ..Default::default() };
        Context { sp: sp.addr(), regs }
    }
}

/// [`janus_context_switch`], inlined: about half the work, because the compiler saves only live registers.
///
/// # Safety
/// As for [`janus_context_switch`]. The caller may continue on another thread than before: it keeps no address of a
/// thread-local across the call.
#[inline(always)]
pub unsafe fn switch(from: *mut Context, to: *const Context) {
    // SAFETY: the contract is the caller's; rbx and rbp, which cannot be named as clobbers, are saved by hand, all
    // others are declared.
    unsafe {
        asm!(
            "lea rax, [rip + 2f]",
            "push rax",
            "mov [rdi], rsp",
            "mov [rdi + 8], rbx",
            "mov [rdi + 16], rbp",
            "mov rsp, [rsi]",
            "pop rax",
            "jmp rax",
            "2:",
            "mov rbx, [rsi + 8]",
            "mov rbp, [rsi + 16]",
            inout("rdi") from => _,
            inout("rsi") to => _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
        );
    }
}
