//! The two system calls.

use core::arch::asm;

use abi::{SYS_CAP_ENTER, SYS_EXIT};

/// Takes what is in the submission queue and waits until `min_complete` completions are there or `timeout_ns` are over
/// (0 polls, `u64::MAX` waits for ever). Returns how many completions are there, or a negative [`abi::TransportError`].
///
/// # Safety
/// Entries that are in the submission queue make the kernel read and write memory: it must be reserved for them until
/// they complete.
#[inline(always)]
pub unsafe fn cap_enter(min_complete: u64, timeout_ns: u64) -> i64 {
    let result: i64;
    // SAFETY: the kernel keeps the callee-saved registers and the stack; what entries do is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_CAP_ENTER => result,
            inlateout("rdi") min_complete => _,
            inlateout("rsi") timeout_ns => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
    result
}

/// Makes system call `number`, to test that the kernel refuses it.
///
/// # Safety
/// As [`cap_enter`].
pub unsafe fn raw(number: u64, first: u64, second: u64) -> i64 {
    let result: i64;
    // SAFETY: as `cap_enter`.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            inlateout("rdi") first => _,
            inlateout("rsi") second => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
    result
}

/// Ends the calling thread. Its stack and its thread-local data stay mapped.
pub fn exit_thread(code: i64) -> ! {
    // SAFETY: nothing of this thread runs again; code that lent a part of its stack to other threads has promised that it
    // outlives their use.
    unsafe {
        asm!("syscall", "ud2", in("rax") SYS_EXIT, in("rdi") code, options(noreturn, nostack));
    }
}
