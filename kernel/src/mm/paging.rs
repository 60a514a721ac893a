//! Page tables: walking and changing them, and the kernel's own mappings.

use super::frames::{self, FRAME_BYTES, Frame};
use crate::arch::cpu;
use crate::arch::phys::{self, IMAGE_BASE, PHYS_BASE};
use core::sync::atomic::{AtomicU64, Ordering};

/// Present.
pub const PRESENT: u64 = 1;
/// Writable.
pub const WRITABLE: u64 = 1 << 1;
/// Reachable from user mode.
pub const USER: u64 = 1 << 2;
/// Not cached, for device registers.
const UNCACHED: u64 = 1 << 3 | 1 << 4;
/// A large page (in a directory).
const LARGE: u64 = 1 << 7;
/// Stays in the TLB when the root changes.
const GLOBAL: u64 = 1 << 8;
/// For software: the frame belongs to the address space, and is freed when it is unmapped.
pub const OWNED: u64 = 1 << 9;
/// Not executable.
pub const NO_EXECUTE: u64 = 1 << 63;
/// The address in an entry.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Where kernel stacks are mapped.
pub const STACKS_BASE: u64 = 0xffff_8080_0000_0000;
/// Where thread records are mapped.
pub const THREADS_BASE: u64 = 0xffff_8100_0000_0000;

const LARGE_BYTES: u64 = 2 << 20;

/// The physical address of the kernel's root table.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// The physical address of the kernel's root table.
pub fn kernel_root() -> u64 {
    ROOT.load(Ordering::Relaxed)
}

/// A table of 512 entries in frame `frame`.
///
/// # Safety
/// The frame holds a table, and the caller holds the lock that guards it.
pub unsafe fn table<'a>(frame: u64) -> &'a mut [u64; 512] {
    // SAFETY: the caller's promise.
    unsafe { &mut *phys::pointer::<[u64; 512]>(frame & ADDRESS) }
}

/// The index of `address` in a table of `level` (3 is the root).
pub const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * level)) as usize & 511
}

/// The entry for `address` at `level` (0: pages, 1: large pages). Tables above it that are missing are made, with `flags`.
///
/// # Safety
/// As [`table`], for the whole tree under `root`.
pub unsafe fn entry<'a>(root: u64, address: u64, level: u32, flags: u64) -> Option<&'a mut u64> {
    // SAFETY: the caller's promise.
    unsafe { entry_noting(root, address, level, flags, |_| {}) }
}

/// As [`entry`]; `made` is called with every table that had to be made.
///
/// # Safety
/// As [`entry`].
pub unsafe fn entry_noting<'a>(
    root: u64,
    address: u64,
    level: u32,
    flags: u64,
    mut made: impl FnMut(Frame),
) -> Option<&'a mut u64> {
    let mut frame = root;
    for above in (level + 1..4).rev() {
        // SAFETY: the caller's promise.
        let slot = unsafe { &mut table(frame)[index(address, above)] };
        if *slot & PRESENT == 0 {
            let table = frames::allocate_zeroed()?;
            made(table);
            *slot = table.0 | PRESENT | WRITABLE | flags;
        }
        frame = *slot & ADDRESS;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { &mut table(frame)[index(address, level)] })
}

/// The page entry for `address`, if the tables above it exist.
///
/// # Safety
/// As [`entry`].
#[inline]
pub unsafe fn find<'a>(root: u64, address: u64) -> Option<&'a mut u64> {
    let mut frame = root;
    for above in [3, 2, 1] {
        // SAFETY: the caller's promise.
        let slot = unsafe { table(frame)[index(address, above)] };
        if slot & PRESENT == 0 || slot & LARGE != 0 {
            return None;
        }
        frame = slot & ADDRESS;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { &mut table(frame)[index(address, 0)] })
}

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static kernel_end: u8;
}

/// Whether `address` is in the kernel's code.
pub fn is_text(address: u64) -> bool {
    (&raw const text_start as u64..&raw const text_end as u64).contains(&address)
}

/// Builds the kernel's final tables and loads them: no page of the image is writable and executable, nothing else is executable, nothing is mapped
/// at 0.
pub fn init(top: u64) {
    let top = top.max(4 << 30).next_multiple_of(LARGE_BYTES);
    let root = frames::allocate_zeroed().expect("memory for page tables").0;
    let global = PRESENT | GLOBAL;
    let mut address = 0;
    while address < top {
        // SAFETY: the tables are new, and only the boot CPU runs.
        let slot = unsafe { entry(root, PHYS_BASE + address, 1, 0) }.expect("memory for page tables");
        *slot = address | global | WRITABLE | NO_EXECUTE | LARGE;
        address += LARGE_BYTES;
    }
    let bound = |symbol: &u8| symbol as *const u8 as u64;
    // SAFETY: symbols of the linker script; only their addresses are used.
    let parts = unsafe {
        [
            (bound(&text_start), bound(&text_end), 0),
            (bound(&rodata_start), bound(&rodata_end), NO_EXECUTE),
            (bound(&data_start), bound(&kernel_end), WRITABLE | NO_EXECUTE),
        ]
    };
    for (start, end, flags) in parts {
        for page in (start..end).step_by(FRAME_BYTES as usize) {
            // SAFETY: see above.
            let slot = unsafe { entry(root, page, 0, 0) }.expect("memory for page tables");
            *slot = (page - IMAGE_BASE) | global | flags;
        }
    }
    // The second level of the arenas exists from the start, so that every root shares it.
    for base in [STACKS_BASE, THREADS_BASE] {
        // SAFETY: see above.
        unsafe { entry(root, base, 2, 0) }.expect("memory for page tables");
    }
    phys::set_end(top);
    ROOT.store(root, Ordering::Relaxed);
    // SAFETY: maps the running image, the stack (in the image) and the physical map as before.
    unsafe { cpu::set_cr3(root) };
}

/// Maps device registers, uncached, and says where. At boot only: the whole large page of the physical map becomes uncached.
pub fn map_device(address: u64, bytes: u64) -> u64 {
    let first = address & !(LARGE_BYTES - 1);
    let last = (address + bytes - 1) & !(LARGE_BYTES - 1);
    for page in [first, last] {
        // SAFETY: at boot only one CPU changes the kernel's tables; devices lie apart from memory.
        let slot = unsafe { entry(kernel_root(), PHYS_BASE + page, 1, 0) }.expect("memory for page tables");
        *slot = page | PRESENT | GLOBAL | WRITABLE | NO_EXECUTE | LARGE | UNCACHED;
        cpu::invlpg(PHYS_BASE + page);
    }
    PHYS_BASE + address
}

/// Maps a kernel page, which every root shares.
pub fn map_kernel(address: u64, frame: Frame) -> Option<()> {
    // SAFETY: the callers hold the lock of the arena that `address` is in.
    let slot = unsafe { entry(kernel_root(), address, 0, 0) }?;
    debug_assert!(*slot & PRESENT == 0, "{address:#x} is mapped already");
    *slot = frame.0 | PRESENT | GLOBAL | WRITABLE | NO_EXECUTE;
    Some(())
}

/// Unmaps a kernel page; the caller flushes TLBs before the address is used again.
pub fn unmap_kernel(address: u64) -> Option<Frame> {
    // SAFETY: as `map_kernel`.
    let slot = unsafe { find(kernel_root(), address) }?;
    let frame = Frame(*slot & ADDRESS);
    (core::mem::take(slot) & PRESENT != 0).then_some(frame)
}
