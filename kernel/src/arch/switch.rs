//! Changing kernel stacks.

use core::arch::naked_asm;

/// Leaves the current stack, saves its stack pointer in `*save`, and continues on the stack whose saved pointer is `next`.
///
/// # Safety
/// `next` was saved by this function or made by [`prepare`], its stack is mapped, and nobody else runs on it.
#[unsafe(naked)]
pub unsafe extern "C" fn switch_stack(save: *mut u64, next: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// The first thing that runs on a new stack: `function(argument)`, which must not return.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!("mov rdi, r12", "xor ebp, ebp", "call r13", "ud2")
}

/// Makes the stack below `top` look as if it had been left by [`switch_stack`], to run `function(argument)`.
///
/// # Safety
/// The 128 bytes below `top` are mapped and nobody uses them; `top` is a multiple of 16.
pub unsafe fn prepare(top: u64, function: extern "C" fn(u64) -> !, argument: u64) -> u64 {
    let words = [0u64, 0, function as usize as u64, argument, 0, 0, begin as *const () as u64, 0];
    // `begin` finds the stack aligned to 16.
    let at = top - size_of_val(&words) as u64 - 8;
    // SAFETY: the caller's promise.
    unsafe { (at as *mut [u64; 8]).write(words) }
    at
}

/// Goes to user mode with the registers of `frame`. The next entry to the kernel starts at the top of the stack again.
///
/// # Safety
/// `frame` lies on the kernel stack of the current thread and holds user selectors; vector registers are as the thread should
/// see them.
#[unsafe(naked)]
pub unsafe extern "C" fn enter_user_at(frame: *const super::entry::Frame) -> ! {
    naked_asm!("mov rsp, rdi", "jmp {}", sym super::entry::enter_user)
}
