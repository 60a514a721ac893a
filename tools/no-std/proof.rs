//! Links the crates of the kernel where there is no standard library: a static library that brings its own panic handler and
//! allocator. If one of them or anything that they depend on pulled in `std`, there would be two panic handlers,
//! and this would not compile. `check.sh` builds it, and shows that it fails with `--cfg planted_std`.

#![no_std]

extern crate abi;
extern crate alloc;
extern crate kcore;
extern crate sched;
extern crate schema;
#[cfg(planted_std)]
extern crate std;
extern crate trace;

use core::alloc::{GlobalAlloc, Layout};

/// Has no memory to give: the proof is about linking and never runs.
struct NoMemory;

// SAFETY: it hands out nothing, so there is no block that could overlap another or be freed twice.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
