//! The memory functions that compiled code calls. `rep movsq` and `rep stosq` would count every word as an instruction under icount, and are slow in
//! TCG; loops of 16 bytes are fast everywhere. Most sizes are small.

use core::arch::{asm, global_asm};

global_asm!(
    r#"
    .text
    .global memcpy, memmove, memset, memcmp, bcmp
    .align 16
memmove:
    mov rax, rdi
    sub rax, rsi
    cmp rax, rdx
    jb 20f                 # the destination begins inside the source: from the end
memcpy:
    mov rax, rdi
    cmp rdx, 16
    jb 10f
    movups xmm1, [rsi + rdx - 16]
    lea r8, [rdi + rdx - 16]
    cmp rdx, 64
    jb 2f
1:  movups xmm0, [rsi]
    movups xmm2, [rsi + 16]
    movups xmm3, [rsi + 32]
    movups xmm4, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm2
    movups [rdi + 32], xmm3
    movups [rdi + 48], xmm4
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    cmp rdx, 64
    jae 1b
2:  cmp rdx, 16
    jbe 3f
    movups xmm0, [rsi]
    movups [rdi], xmm0
    add rsi, 16
    add rdi, 16
    sub rdx, 16
    jmp 2b
3:  movups [r8], xmm1
    ret
10: cmp rdx, 8
    jb 11f
    mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret
11: cmp rdx, 4
    jb 12f
    mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
12: test rdx, rdx
    jz 13f
    movzx ecx, byte ptr [rsi]
    mov [rdi], cl
    inc rsi
    inc rdi
    dec rdx
    jmp 12b
13: ret
20: mov rax, rdi
    cmp rdi, rsi
    je 13b
24: cmp rdx, 64
    jb 21f
    movups xmm0, [rsi + rdx - 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 48]
    movups xmm4, [rsi + rdx - 64]
    movups [rdi + rdx - 16], xmm0
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 48], xmm3
    movups [rdi + rdx - 64], xmm4
    sub rdx, 64
    jmp 24b
21: cmp rdx, 16
    jb 22f
    movups xmm0, [rsi + rdx - 16]
    movups [rdi + rdx - 16], xmm0
    sub rdx, 16
    jmp 21b
22: test rdx, rdx
    jz 13b
    mov cl, [rsi + rdx - 1]
    mov [rdi + rdx - 1], cl
    dec rdx
    jmp 22b

    .align 16
memset:
    mov rax, rdi
    movzx esi, sil
    movabs rcx, 0x0101010101010101
    imul rsi, rcx
    cmp rdx, 16
    jb 5f
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    movups [rdi + rdx - 16], xmm0
    cmp rdx, 64
    jb 2f
1:  movups [rdi], xmm0
    movups [rdi + 16], xmm0
    movups [rdi + 32], xmm0
    movups [rdi + 48], xmm0
    add rdi, 64
    sub rdx, 64
    cmp rdx, 64
    jae 1b
2:  cmp rdx, 16
    jb 4f
    movups [rdi], xmm0
    add rdi, 16
    sub rdx, 16
    jmp 2b
4:  ret
5:  test rdx, rdx
    jz 4b
    mov [rdi], sil
    inc rdi
    dec rdx
    jmp 5b

    .align 16
bcmp:
memcmp:
    cmp rdx, 8
    jb 2f
    mov rax, [rdi]
    mov rcx, [rsi]
    cmp rax, rcx
    jne 3f
    add rdi, 8
    add rsi, 8
    sub rdx, 8
    jmp memcmp
2:  test rdx, rdx
    jz 4f
    movzx eax, byte ptr [rdi]
    movzx ecx, byte ptr [rsi]
    inc rdi
    inc rsi
    dec rdx
    sub eax, ecx
    jz 2b
    ret
3:  bswap rax
    bswap rcx
    cmp rax, rcx
    sbb eax, eax
    or eax, 1
    ret
4:  xor eax, eax
    ret
"#
);

/// Copies 64 bytes that a program may change at the same time: each byte is read once.
///
/// # Safety
/// `from` is readable and `to` writable for 64 bytes.
#[inline(always)]
pub unsafe fn snapshot_64(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Whether bytes 16 to 63 of an entry are 0. A program may change them at the same time: each byte is read once.
///
/// # Safety
/// 64 bytes at `from` can be read, and `from` is a multiple of 16. The CPU has SSE 4.1 (`features::enable` checks it).
#[inline(always)]
pub unsafe fn is_rest_zero_64(from: *const u8) -> bool {
    let is_zero: u8;
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "movaps {a}, [{from} + 16]",
            "orps {a}, [{from} + 32]",
            "orps {a}, [{from} + 48]",
            "ptest {a}, {a}",
            "setz {is_zero}",
            from = in(reg) from,
            a = out(xmm_reg) _,
            is_zero = out(reg_byte) is_zero,
            options(nostack, readonly),
        );
    }
    is_zero != 0
}

/// Writes a word and 40 zero bytes to `to`: a completion that reports success without a result.
///
/// # Safety
/// 48 bytes at `to` can be written.
#[inline(always)]
pub unsafe fn publish_48_plain(first: u64, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "xorps {zero}, {zero}",
            "mov [{to}], {first}",
            "movups [{to} + 8], {zero}",
            "movups [{to} + 24], {zero}",
            "movlps [{to} + 40], {zero}",
            first = in(reg) first,
            to = in(reg) to,
            zero = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Writes a word and the 40 bytes at `from` to `to`: a completion, into memory that the program may touch at the same time.
///
/// # Safety
/// 40 bytes at `from` can be read and 48 at `to` be written.
#[inline(always)]
pub unsafe fn publish_48(first: u64, from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "mov {rest}, [{from} + 32]",
            "mov [{to}], {first}",
            "movups [{to} + 8], {a}",
            "movups [{to} + 24], {b}",
            "mov [{to} + 40], {rest}",
            from = in(reg) from,
            to = in(reg) to,
            first = in(reg) first,
            rest = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the same address, but hides from the compiler how it was computed. The compiler would otherwise make a separate 64-bit constant for each
/// field that is used, from the base of the table and the offset of the field.
#[inline(always)]
pub fn hide(mut address: u64) -> u64 {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    address
}
