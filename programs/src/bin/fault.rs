//! Does one forbidden thing, chosen by its argument: the kernel must end this process, say why, and touch no other.
#![no_std]
#![no_main]

use core::arch::asm;

use rt::{args, println, syscall};

rt::main!(run);

/// Every forbidden thing: its name, what it does, and its function.
const FAULTS: [(&str, &str, fn()); 12] = [
    ("null-read", "reads address 0", null_read),
    ("kernel-read", "reads an address of the kernel", kernel_read),
    ("write-text", "writes to its own code", write_text),
    ("execute-data", "jumps into its data", execute_data),
    ("jump-kernel", "jumps to an address of the kernel", jump_kernel),
    ("jump-noncanonical", "jumps to an address that no machine has", jump_noncanonical),
    ("divide", "divides by zero", divide),
    ("privileged", "executes HLT", privileged),
    ("stack-overflow", "calls itself without end", stack_overflow),
    ("suspend-smap", "sets AC, which suspends SMAP, and reads address 0", suspend_smap),
    ("panic", "panics in a thread that the first one waits for", panic_in_thread),
    ("bad-syscall", "makes system calls that do not exist; survives", bad_syscall),
];

/// Exit code when the forbidden thing had no effect, so that survival is not taken for success.
const SURVIVED: i64 = 99;

fn run() -> i64 {
    let Some(wanted) = args::args().next() else {
        println!("fault: which one?");
        for (name, what, _) in FAULTS {
            println!("  {name:18} {what}");
        }
        return 2;
    };
    let Some((name, what, fault)) = FAULTS.iter().find(|(name, ..)| *name == wanted) else {
        println!("fault: there is no `{wanted}`; without an argument I list them");
        return 2;
    };
    println!("fault {name}: {what}");
    fault();
    if *name == "bad-syscall" {
        return 0;
    }
    println!("fault {name}: nothing happened");
    SURVIVED
}

fn null_read() {
    // SAFETY: none: the page is not mapped, and this must fault.
    unsafe { asm!("mov {0}, [{0}]", inout(reg) 0_u64 => _, options(nostack)) };
}

fn kernel_read() {
    // SAFETY: none: this must fault.
    unsafe { asm!("mov {0}, [{0}]", inout(reg) 0xffff_ffff_8010_0000_u64 => _, options(nostack)) };
}

fn write_text() {
    // SAFETY: none: the page is read-only, and this must fault.
    unsafe { asm!("mov byte ptr [{}], 0x90", in(reg) run as *const () as u64, options(nostack)) };
}

fn execute_data() {
    /// A `ret`.
    static mut CODE: [u8; 1] = [0xc3];
    // SAFETY: none: the page may not be executed, and this must fault.
    unsafe { asm!("call {}", in(reg) &raw mut CODE, clobber_abi("sysv64")) };
}

fn jump_kernel() {
    // SAFETY: none: this must fault.
    unsafe { asm!("jmp {}", in(reg) 0xffff_ffff_8010_0000_u64, options(noreturn)) };
}

fn jump_noncanonical() {
    // SAFETY: none: this must fault.
    unsafe { asm!("jmp {}", in(reg) 0x8000_0000_0000_0000_u64, options(noreturn)) };
}

fn divide() {
    // SAFETY: none: this must fault.
    unsafe {
        asm!("div {0:r}", in(reg) 0_u64, inout("rax") 1_u64 => _, inout("rdx") 0_u64 => _, options(nostack))
    };
}

fn privileged() {
    // SAFETY: none: this must fault.
    unsafe { asm!("hlt", options(nostack)) };
}

fn suspend_smap() {
    // SAFETY: AC has no effect on a program, because CR0.AM is off; then none: this must fault.
    unsafe {
        asm!("pushfq", "or dword ptr [rsp], 0x40000", "popfq", "mov {0}, [{0}]", inout(reg) 0_u64 => _)
    };
}

fn stack_overflow() {
    deeper(0);
}

/// Uses a piece of stack that the compiler cannot optimise away.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let room = core::hint::black_box([depth; 64]);
    if room[0] == u64::MAX {
        return 0;
    }
    deeper(depth + 1) + room[depth as usize % 64]
}

/// The runtime ends the whole process with code 101; the kernel is not involved.
fn panic_in_thread() {
    let thread = rt::thread::spawn(|| panic!("as it was told to"));
    // Not reached, unless the thread ended alone.
    let _ = thread.join();
}

fn bad_syscall() {
    for number in [2, 1 << 20, 1 << 31, u64::MAX] {
        // SAFETY: the queue is empty, and a number that does not exist does nothing.
        let result = unsafe { syscall::raw(number, 1, 2) };
        println!("  system call {number:#x}: {result}");
    }
}
