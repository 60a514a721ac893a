//! Entries into the kernel: system calls, interrupts, exceptions.
//!
//! I-E1: interrupts are off at CPL0 except in the idle loop, so an interrupt at CPL0 comes from there, where no register matters
//! that the stub does not save. I-E2: an exception at CPL0 is a bug of the kernel and never returns. I-E3: interrupt entries save the
//! vector registers of user mode; system calls declare them clobbered, and leave them cleared.

use super::percpu::{OFFSET_KERNEL_RSP, OFFSET_USER_RSP};
use core::arch::global_asm;

/// The local timer.
pub const VECTOR_TIMER: usize = 48;
/// Inter-processor interrupts.
pub const VECTOR_IPI: usize = 49;
/// The serial line.
pub const VECTOR_SERIAL: usize = 50;
/// The PIT through the PIC.
pub const VECTOR_PIT: usize = 32;
/// The spurious interrupt of the first PIC, its line 7.
pub const VECTOR_PIC_SPURIOUS: usize = 39;
/// The APIC's spurious interrupt.
pub const VECTOR_SPURIOUS: usize = 255;

/// What the stubs push, lowest address first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax.
    pub regs: [u64; 15],
    /// The number of the interrupt or exception.
    pub vector: u64,
    /// Its error code, or 0.
    pub error: u64,
    /// The instruction pointer at that moment.
    pub rip: u64,
    /// The code segment; its low bits are the privilege level.
    pub cs: u64,
    /// The flags.
    pub rflags: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The stack segment.
    pub ss: u64,
}

unsafe extern "C" {
    static stub_table: [u64; 256];
    /// The entry of system calls.
    pub fn syscall_entry();
    /// Returns from an interrupt or starts a thread: the stack holds a [`Frame`] without vector registers.
    pub fn enter_user();
}

/// The address of the entry for `vector`.
pub fn stub(vector: usize) -> u64 {
    // SAFETY: a table in the image.
    unsafe { stub_table[vector] }
}

global_asm!(
    r#"
    .text
    .align 16
    .global syscall_entry
syscall_entry:
    swapgs
    mov gs:[{user_rsp}], rsp
    mov rsp, gs:[{kernel_rsp}]
    push qword ptr gs:[{user_rsp}]
    push r11
    push rcx
    push rbp                  # for backtraces, and it keeps the alignment
    mov rdx, rax
    call kernel_syscall
    pop rbp
    pop rcx
    pop r11
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    cmp byte ptr [rip + {has_avx}], 0
    je 3f
    vzeroall
    jmp 4f
3:  pxor xmm0, xmm0
    pxor xmm1, xmm1
    pxor xmm2, xmm2
    pxor xmm3, xmm3
    pxor xmm4, xmm4
    pxor xmm5, xmm5
    pxor xmm6, xmm6
    pxor xmm7, xmm7
    pxor xmm8, xmm8
    pxor xmm9, xmm9
    pxor xmm10, xmm10
    pxor xmm11, xmm11
    pxor xmm12, xmm12
    pxor xmm13, xmm13
    pxor xmm14, xmm14
    pxor xmm15, xmm15
4:  pop rsp
    swapgs
    sysretq

    .macro PUSH_ALL
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    .endm
    .macro POP_ALL
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    .endm

    # When the interrupt came, for the handlers' second argument: what they do from here on is not the time of who was interrupted.
    .macro STAMP
    rdtsc
    shl rdx, 32
    mov rsi, rdx
    or rsi, rax
    .endm

    .align 16
interrupt_common:
    cld
    test byte ptr [rsp + 24], 3
    jz 5f
    swapgs
    PUSH_ALL
    STAMP
    mov rbp, rsp
    mov rbx, rsp
    sub rsp, 896
    and rsp, -64
    cmp byte ptr [rip + {has_smap}], 0
    je 1f
    clac
1:  cmp byte ptr [rip + {has_xsave}], 0
    je 2f
    xor eax, eax
    mov [rsp + 512], rax
    mov [rsp + 520], rax
    mov [rsp + 528], rax
    mov [rsp + 536], rax
    mov [rsp + 544], rax
    mov [rsp + 552], rax
    mov [rsp + 560], rax
    mov [rsp + 568], rax
    mov eax, 7
    xor edx, edx
    xsave64 [rsp]
    mov rdi, rbx
    mov r12, rsp
    call kernel_interrupt_user
    mov eax, 7
    xor edx, edx
    xrstor64 [r12]
    jmp 3f
2:  fxsave64 [rsp]
    mov rdi, rbx
    mov r12, rsp
    call kernel_interrupt_user
    fxrstor64 [r12]
3:  mov rsp, rbx
    .global enter_user
enter_user:
    POP_ALL
    add rsp, 16
    swapgs
    iretq
5:  PUSH_ALL
    STAMP
    mov rdi, rsp
    mov rbx, rsp
    and rsp, -16
    call kernel_interrupt_idle
    mov rsp, rbx
    POP_ALL
    add rsp, 16
    iretq

    .align 16
exception_common:
    cld
    test byte ptr [rsp + 24], 3
    jz 6f
    swapgs
    PUSH_ALL
    mov rdi, rsp
    mov rsp, gs:[{kernel_rsp}]
    xor ebp, ebp
    # The program's AC would suspend SMAP here, in whatever runs next, and in the idle loop.
    cmp byte ptr [rip + {has_smap}], 0
    je 1f
    clac
1:  call kernel_exception_user
    ud2
6:  PUSH_ALL
    mov rdi, rsp
    and rsp, -16
    call kernel_exception_kernel
    ud2

    # Another CPU has failed, and wants to know what this one does; otherwise nobody sends any. It may come at any instruction: GS and the stack
    # are whatever they are, so the CPU's record is found above the stack that the hardware has switched to.
nmi_entry:
    cmp byte ptr [rip + kernel_stopping], 0
    jne 7f
    iretq
7:  cld
    push 0
    push 2
    PUSH_ALL
    mov rdi, rsp
    mov rsi, [rsp + {frame_bytes}]
    call kernel_stopped
    ud2

    .altmacro
    .macro STUB n
    .align 8
stub_\n:
    .if \n == 2
    jmp nmi_entry
    .elseif (\n == 8) || ((\n >= 10) && (\n <= 14)) || (\n == 17) || (\n == 21) || (\n == 29) || (\n == 30)
    push \n
    jmp exception_common
    .elseif \n < 32
    push 0
    push \n
    jmp exception_common
    .else
    push 0
    push \n
    jmp interrupt_common
    .endif
    .endm
    .set i, 0
    .rept 256
    STUB %i
    .set i, i + 1
    .endr

    .section .rodata
    .align 8
    .global stub_table
stub_table:
    .macro ENTRY n
    .quad stub_\n
    .endm
    .set i, 0
    .rept 256
    ENTRY %i
    .set i, i + 1
    .endr
    .text
"#,
    user_rsp = const OFFSET_USER_RSP,
    kernel_rsp = const OFFSET_KERNEL_RSP,
    has_avx = sym super::features::HAS_AVX,
    has_smap = sym super::features::HAS_SMAP,
    has_xsave = sym super::features::HAS_XSAVE,
    frame_bytes = const size_of::<Frame>(),
);
