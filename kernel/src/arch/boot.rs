//! The way from the boot loader's 32-bit mode to Rust in the higher half; for the other CPUs, from real mode.
//!
//! There are two ways in: the PVH note (QEMU `-kernel`) and a Multiboot2 header (GRUB, BIOS and UEFI). Both arrive in flat 32-bit
//! mode with paging off and a pointer in EBX. The tables made here map the first GiB at 0, the first 4 GiB at the physical
//! map, and the image; `paging` replaces them by tables that restrict what may be written and executed.

use super::phys;
use core::arch::global_asm;

/// How the kernel was started.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loader {
    /// PVH: EBX was a `hvm_start_info`.
    Pvh = 1,
    /// Multiboot2: EBX was its information structure.
    Multiboot2 = 2,
}

unsafe extern "C" {
    static boot_stack: u8;
}

/// Words at the end of the boot stack that nobody may use, and the pattern in them.
const GUARD_WORDS: usize = 128;
const GUARD: u64 = 0x5ca1_ab1e_0ddb_a115;

fn guards() -> impl Iterator<Item = *mut u64> {
    // A linker symbol, of which only the address is used.
    let end = phys::pointer::<u64>(&raw const boot_stack as u64);
    (0..GUARD_WORDS).map(move |at| end.wrapping_add(at))
}

/// Writes the pattern, so that [`is_stack_whole`] can tell whether the boot stack was large enough. Once, at the beginning.
pub fn guard_stack() {
    // SAFETY: the end of the stack, which lies in the physical map and which nobody has used yet.
    guards().for_each(|word| unsafe { word.write_volatile(GUARD) });
}

/// Whether the boot stack was large enough so far. Below it are the tables that other CPUs start with: an overflow would ruin them silently.
pub fn is_stack_whole() -> bool {
    // SAFETY: as above; nobody else writes there.
    guards().all(|word| unsafe { word.read_volatile() } == GUARD)
}

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_start

    .section .multiboot2, "a", @progbits
    .align 8
mb2_header:
    .long 0xe85250d6, 0, mb2_end - mb2_header, -(0xe85250d6 + (mb2_end - mb2_header))
    # where to enter
    .short 3, 0
    .long 12, mb2_start
    .align 8
    # modules on page boundaries
    .short 6, 0
    .long 8
    .short 0, 0
    .long 8
mb2_end:

    .section .boot, "awx", @progbits
    .code32
    .global pvh_start
pvh_start:
    mov esi, 1
    jmp 2f
    .global mb2_start
mb2_start:
    mov esi, 2
2:  cli
    cld
    mov esp, offset boot_stack_top
    mov edi, ebx

    # 4 page directories of 2 MiB pages: the first 4 GiB.
    mov ebx, offset boot_pd
    mov eax, 0x83
    xor ecx, ecx
3:  mov [ebx + ecx*8], eax
    mov edx, ecx
    shr edx, 11
    mov [ebx + ecx*8 + 4], edx
    add eax, 0x200000
    inc ecx
    cmp ecx, 2048
    jb 3b
    # PDPT entries 0..3 for both the identity map and the physical map; 510 for the image.
    mov ebx, offset boot_pdpt
    mov eax, offset boot_pd
    or eax, 3
    xor ecx, ecx
4:  mov [ebx + ecx*8], eax
    add eax, 4096
    inc ecx
    cmp ecx, 4
    jb 4b
    mov ebx, offset boot_pdpt_high
    mov eax, offset boot_pd
    or eax, 3
    mov [ebx + 510*8], eax
    mov ebx, offset boot_pml4
    mov eax, offset boot_pdpt
    or eax, 3
    mov [ebx], eax
    mov [ebx + 256*8], eax
    mov eax, offset boot_pdpt_high
    or eax, 3
    mov [ebx + 511*8], eax

    mov eax, offset boot_pml4
    mov cr3, eax
    mov eax, cr4
    or eax, 0x620          # PAE, OSFXSR, OSXMMEXCPT
    mov cr4, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x901          # SCE, LME, NXE
    wrmsr
    mov eax, 0x80010033    # PG, WP, NE, ET, MP, PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    .byte 0xea
    .long boot_long
    .short 8
    .code64
boot_long:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    lea rsp, [rip + boot_stack_top]
    movabs rax, 0xffff800000000000   # the physical map: it stays
    add rsp, rax
    xor ebp, ebp
    # edi = pointer, esi = loader
    movabs rax, offset kernel_start
    call rax
    ud2

    # ---- the other CPUs: copied to 0x8000, started there in real mode ----
    .global ap_trampoline, ap_trampoline_end, ap_cr3, ap_stack, ap_entry, ap_expected
    .align 16
ap_trampoline:
    .code16
    cli
    cld
    xor ax, ax
    mov ds, ax
    lgdt [low_ap_gdt_pointer]
    mov eax, 0x11
    mov cr0, eax
    .byte 0x66, 0xea
    .long ap32 - ap_trampoline + 0x8000
    .short 24
    .code32
ap32:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, [low_ap_cr3]
    mov cr3, eax
    mov eax, 0x620
    mov cr4, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x901
    wrmsr
    mov eax, 0x80010033
    mov cr0, eax
    .byte 0xea
    .long ap64 - ap_trampoline + 0x8000
    .short 8
    .code64
ap64:
    xor eax, eax
    mov fs, ax
    mov gs, ax
    # Stack and record are those of the CPU that is expected. One that comes when nobody waits for it any more must touch neither, so it
    # looks up its own number, and only who takes the expected one goes on.
    cpuid
    cmp eax, 11
    jb ap_short_number
    mov eax, 11
    xor ecx, ecx
    cpuid
    test ebx, ebx
    jz ap_short_number
    mov eax, edx
    jmp ap_claim
ap_short_number:
    mov eax, 1
    cpuid
    shr ebx, 24
    mov eax, ebx
ap_claim:
    inc eax
    xor ecx, ecx
    lock cmpxchg dword ptr [low_ap_expected], ecx
    jne ap_stays_out
    mov rsp, [low_ap_stack]
    xor ebp, ebp
    mov rax, [low_ap_entry]
    call rax
    ud2
ap_stays_out:
    cli
    hlt
    jmp ap_stays_out
    .align 8
ap_expected: .quad 0
ap_cr3: .quad 0
ap_stack: .quad 0
ap_entry: .quad 0
    .align 8
ap_gdt:
    .quad 0
    .quad 0x00af9a000000ffff
    .quad 0x00cf92000000ffff
    .quad 0x00cf9a000000ffff
ap_gdt_pointer:
    .short 31
    .long ap_gdt - ap_trampoline + 0x8000
ap_trampoline_end:
    # where these are after the copy
    .set low_ap_cr3, ap_cr3 - ap_trampoline + 0x8000
    .set low_ap_expected, ap_expected - ap_trampoline + 0x8000
    .set low_ap_entry, ap_entry - ap_trampoline + 0x8000
    .set low_ap_gdt_pointer, ap_gdt_pointer - ap_trampoline + 0x8000
    .set low_ap_stack, ap_stack - ap_trampoline + 0x8000

    .align 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff
    .quad 0x00cf92000000ffff
boot_gdt_pointer:
    .short 23
    .long boot_gdt

    .section .boot_bss, "aw", @nobits
    .align 4096
    .global boot_pml4, boot_stack
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pdpt_high: .skip 4096
boot_pd: .skip 16384
boot_stack: .skip 65536
    .global boot_stack_top
boot_stack_top:
    .text
    .code64
"#,
);
