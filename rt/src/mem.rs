//! The memory functions that the compiler may call anywhere.
//!
//! Assembly, because a Rust loop that copies would be compiled into a call of itself. Sixteen bytes at a time with SSE: under QEMU's
//! translator that is 25 times as fast as `rep movsb`. Short sizes are two overlapping moves: no loop, two or three branches.

use core::arch::global_asm;

/// The names that the compiler knows; on the host they are libc's.
#[cfg(not(test))]
macro_rules! known_names {
    () => {
        concat!(
            ".global memcpy, memmove, memset, memcmp, bcmp\n",
            ".set memcpy, rt_memcpy\n.set memmove, rt_memmove\n.set memset, rt_memset\n",
            ".set memcmp, rt_memcmp\n.set bcmp, rt_memcmp\n",
        )
    };
}

/// For tests: none.
#[cfg(test)]
macro_rules! known_names {
    () => {
        ""
    };
}

global_asm!(
    known_names!(),
    r#"
    .section .text.mem, "ax", @progbits
    .global rt_memcpy, rt_memmove, rt_memset, rt_memcmp
    .hidden rt_memcpy, rt_memmove, rt_memset, rt_memcmp

    # Sizes below 32 read everything before they write, so they serve memmove too.
    .balign 16
rt_memcpy:
    mov rax, rdi
    cmp rdx, 16
    jb .Lcopy_small
    cmp rdx, 32
    ja .Lcopy_forward
.Lcopy_16_to_32:
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    ret

    # The last 16 bytes are read first and written last: they may overlap the loop's last step.
    .balign 16
.Lcopy_forward:
    movups xmm1, [rsi + rdx - 16]
    lea r8, [rdi + rdx - 16]
2:  movups xmm0, [rsi]
    movups [rdi], xmm0
    add rsi, 16
    add rdi, 16
    cmp rdi, r8
    jb 2b
    movups [r8], xmm1
    ret

.Lcopy_small:
    cmp edx, 8
    jae 3f
    cmp edx, 4
    jae 4f
    test edx, edx
    je 5f
    movzx ecx, byte ptr [rsi]
    cmp edx, 2
    jb 6f
    movzx r8d, word ptr [rsi + rdx - 2]
    mov [rdi + rdx - 2], r8w
6:  mov [rdi], cl
5:  ret
4:  mov ecx, [rsi]
    mov r8d, [rsi + rdx - 4]
    mov [rdi], ecx
    mov [rdi + rdx - 4], r8d
    ret
3:  mov rcx, [rsi]
    mov r8, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r8
    ret

    .balign 16
rt_memmove:
    mov rax, rdi
    cmp rdx, 16
    jb .Lcopy_small
    cmp rdx, 32
    jbe .Lcopy_16_to_32
    # Forward is right unless the destination begins inside the source.
    mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jae .Lcopy_forward
    # Backward, with the first 16 bytes read first and written last.
    movups xmm1, [rsi]
    sub rdx, 16
7:  movups xmm0, [rsi + rdx]
    movups [rdi + rdx], xmm0
    sub rdx, 16
    ja 7b
    movups [rdi], xmm1
    ret

    .balign 16
rt_memset:
    mov rax, rdi
    movzx esi, sil
    mov rcx, 0x0101010101010101
    imul rcx, rsi
    cmp rdx, 16
    jb 3f
    movq xmm0, rcx
    punpcklqdq xmm0, xmm0
    lea r8, [rdi + rdx - 16]
    movups [r8], xmm0
2:  movups [rdi], xmm0
    add rdi, 16
    cmp rdi, r8
    jb 2b
    ret
3:  cmp edx, 8
    jb 4f
    mov [rdi], rcx
    mov [rdi + rdx - 8], rcx
    ret
4:  cmp edx, 4
    jb 5f
    mov [rdi], ecx
    mov [rdi + rdx - 4], ecx
    ret
5:  test edx, edx
    je 6f
    mov [rdi], cl
    mov [rdi + rdx - 1], cl
    cmp edx, 3
    jb 6f
    mov [rdi + 1], cl
6:  ret

    .balign 16
rt_memcmp:
    sub rdx, 16
    jb 3f
2:  movups xmm0, [rdi]
    movups xmm1, [rsi]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    xor eax, 0xffff
    jne 4f
    add rdi, 16
    add rsi, 16
    sub rdx, 16
    jae 2b
    # What is left, byte by byte: at most 15.
3:  add rdx, 16
    je 6f
5:  movzx eax, byte ptr [rdi]
    movzx ecx, byte ptr [rsi]
    sub eax, ecx
    jne 7f
    inc rdi
    inc rsi
    dec rdx
    jne 5b
6:  xor eax, eax
7:  ret
4:  bsf ecx, eax
    movzx eax, byte ptr [rdi + rcx]
    movzx ecx, byte ptr [rsi + rcx]
    sub eax, ecx
    ret
"#
);

#[cfg(test)]
mod tests {
    unsafe extern "C" {
        fn rt_memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
        fn rt_memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8;
        fn rt_memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8;
        fn rt_memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32;
    }

    const ROOM: usize = 512;

    fn pattern() -> Vec<u8> {
        (0..ROOM).map(|at| (at * 7 + 3) as u8).collect()
    }

    #[test]
    fn copies_of_every_length_touch_what_they_should_and_nothing_else() {
        for bytes in 0..=200 {
            for (from, to) in [(0, 0), (1, 8), (15, 16), (7, 3)] {
                let (source, mut target) = (pattern(), vec![0xee; ROOM]);
                // SAFETY: both are inside.
                let result =
                    unsafe { rt_memcpy(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes) };
                assert_eq!(result as usize, target.as_ptr() as usize + to);
                let mut expected = vec![0xee; ROOM];
                expected[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
                assert_eq!(target, expected, "{bytes} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn moves_may_overlap() {
        for bytes in 0..=200 {
            for from in 100..180 {
                let to = 140;
                let (mut actual, mut expected) = (pattern(), pattern());
                expected.copy_within(from..from + bytes, to);
                // SAFETY: both are inside.
                unsafe { rt_memmove(actual.as_mut_ptr().add(to), actual.as_ptr().add(from), bytes) };
                assert_eq!(actual, expected, "{bytes} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn sets_of_every_length() {
        for bytes in 0..=200 {
            for to in [0, 1, 9] {
                let (mut actual, mut expected) = (pattern(), pattern());
                expected[to..to + bytes].fill(0xa5);
                // SAFETY: inside. Only the lowest byte of the value counts.
                unsafe { rt_memset(actual.as_mut_ptr().add(to), 0x7ffa5, bytes) };
                assert_eq!(actual, expected, "{bytes} bytes at {to}");
            }
        }
    }

    #[test]
    fn comparisons_say_which_is_greater_at_the_first_difference() {
        for bytes in 0..=100 {
            let (a, mut b) = (pattern(), pattern());
            // SAFETY: inside.
            assert_eq!(unsafe { rt_memcmp(a.as_ptr().add(1), b.as_ptr().add(1), bytes) }, 0);
            for at in 0..bytes {
                for other in [0, 255] {
                    let old = b[1 + at];
                    b[1 + at] = other;
                    // SAFETY: inside.
                    let result = unsafe { rt_memcmp(a.as_ptr().add(1), b.as_ptr().add(1), bytes) };
                    assert_eq!(
                        result.signum(),
                        (i32::from(old) - i32::from(other)).signum(),
                        "byte {at} of {bytes}"
                    );
                    b[1 + at] = old;
                }
            }
        }
    }
}
