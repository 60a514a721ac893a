# The context switch of SPEC-021 [SCHED:5.4.1], x86_64 System V. What is kept and why: docs/context-switch.md.
#
# A suspended context is: its callee-saved registers in the 56-byte Context (sp at 0, rbx 8, rbp 16, r12 24, r13 32,
# r14 40, r15 48), and at [sp] the address at which it goes on. The code that resumes it sets rsp, leaves the address of the
# Context in rsi, pops that address and jumps there; the code at that address loads from [rsi] what it needs of the
# registers. So contexts saved by this code and by the inlined switch of context.rs resume each other, and the inlined
# one loads no register that its caller does not use.

    .text

# void janus_context_switch(Context *from, const Context *to)
    .globl  janus_context_switch
    .type   janus_context_switch, @function
    .p2align 5
janus_context_switch:
    .cfi_startproc
    # MXCSR and the x87 control word belong to the callee-saved state too. They lie on the stack beside the Context.
    sub     rsp, 16
    .cfi_adjust_cfa_offset 16
    stmxcsr [rsp + 8]
    fnstcw  [rsp + 12]
    lea     rax, [rip + 2f]
    mov     [rsp], rax
    mov     [rdi], rsp
    mov     [rdi + 8], rbx
    mov     [rdi + 16], rbp
    mov     [rdi + 24], r12
    mov     [rdi + 32], r13
    mov     [rdi + 40], r14
    mov     [rdi + 48], r15
    mov     rsp, [rsi]
    pop     rax
    .cfi_adjust_cfa_offset -8
    jmp     rax
2:
    ldmxcsr [rsp]
    fldcw   [rsp + 4]
    mov     rbx, [rsi + 8]
    mov     rbp, [rsi + 16]
    mov     r12, [rsi + 24]
    mov     r13, [rsi + 32]
    mov     r14, [rsi + 40]
    mov     r15, [rsi + 48]
    # Pop and jump is what `ret` does, less the return predictor, which would guess the other context's caller.
    add     rsp, 8
    pop     rcx
    jmp     rcx
    .cfi_endproc
    .size   janus_context_switch, . - janus_context_switch

# Where a new context begins: r12 holds the entry function, r13 its argument; the cleanup address is on the stack.
    .globl  janus_fiber_entry
    .type   janus_fiber_entry, @function
    .p2align 4
janus_fiber_entry:
    .cfi_startproc
    # The outermost frame: an unwinder stops here.
    .cfi_undefined rip
    sub     rsp, 8
    mov     r12, [rsi + 24]
    mov     r13, [rsi + 32]
    mov     r14, [rsi + 40]
    xor     ebp, ebp
    mov     rdi, r13
    call    r12
    add     rsp, 8
    ret
    .cfi_endproc
    .size   janus_fiber_entry, . - janus_fiber_entry

# What lies under the entry function: r14 holds the function that ends the fiber. It does not return.
    .globl  janus_fiber_cleanup
    .type   janus_fiber_cleanup, @function
    .p2align 4
janus_fiber_cleanup:
    .cfi_startproc
    .cfi_undefined rip
    and     rsp, -16
    call    r14
    ud2
    .cfi_endproc
    .size   janus_fiber_cleanup, . - janus_fiber_cleanup
