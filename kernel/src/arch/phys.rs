//! Where physical memory and the kernel's image are mapped.

use core::sync::atomic::{AtomicU64, Ordering};

/// Where all of physical memory is mapped.
pub const PHYS_BASE: u64 = 0xffff_8000_0000_0000;
/// Where the kernel's image is mapped.
pub const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;

/// First physical address that the map does not cover.
static END: AtomicU64 = AtomicU64::new(4 << 30);

unsafe extern "C" {
    static kernel_end: u8;
}

/// The map covers physical memory up to `end` from now on.
pub fn set_end(end: u64) {
    END.store(end, Ordering::Relaxed);
}

/// Where the physical `address` is mapped.
pub fn pointer<T>(address: u64) -> *mut T {
    debug_assert!(address < END.load(Ordering::Relaxed), "physical {address:#x} is not mapped");
    (PHYS_BASE + address) as *mut T
}

/// The physical address of `pointer`, which lies in the map.
pub fn address(pointer: u64) -> u64 {
    pointer - PHYS_BASE
}

/// Memory that nobody changes: firmware tables and boot modules.
pub fn bytes(address: u64, length: usize) -> Option<&'static [u8]> {
    let end = address.checked_add(length as u64)?;
    if end > END.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: mapped, as just checked; the callers name memory that the boot loader or firmware wrote and nobody writes again.
    Some(unsafe { core::slice::from_raw_parts((PHYS_BASE + address) as *const u8, length) })
}

/// First physical address behind the image.
pub fn image_end() -> u64 {
    &raw const kernel_end as u64 - IMAGE_BASE
}
