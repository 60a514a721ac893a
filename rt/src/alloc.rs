//! The program's heap, for everything in `alloc`. Without memory an allocation returns null.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use crate::heap::{Heap, Pages};
use crate::sync::Mutex;
use crate::vm;

/// The global allocator of every program.
struct Allocator {
    heap: Mutex<Heap>,
}

#[cfg_attr(not(test), global_allocator)]
static ALLOCATOR: Allocator = Allocator { heap: Mutex::new(Heap::new()) };

/// Pages that come from the process's VirtualMemory.
struct Mapped;

impl Pages for Mapped {
    fn map(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        vm::map(bytes).ok()
    }
    unsafe fn unmap(&mut self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. If the kernel refuses, the pages stay mapped and unused.
        let _ = unsafe { vm::unmap(at.as_ptr() as u64, bytes) };
    }
}

// SAFETY: blocks are apart, aligned, and stay until freed (tests in `heap`); the heap is locked; nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.heap.lock().allocate(layout.size(), layout.align(), &mut Mapped)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.heap.lock().free(at, layout.size(), layout.align(), &mut Mapped) };
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if Heap::fits_in_place(layout.size(), new_size, layout.align()) {
            return at;
        }
        let mut heap = self.heap.lock();
        let new = heap.allocate(new_size, layout.align(), &mut Mapped);
        if !new.is_null() {
            // SAFETY: both blocks have at least as many bytes, and they do not overlap.
            unsafe {
                ptr::copy_nonoverlapping(at, new, layout.size().min(new_size));
                heap.free(at, layout.size(), layout.align(), &mut Mapped);
            }
        }
        new
    }
}

/// Bytes of heap: handed out now, and mapped now.
pub fn heap_bytes() -> (usize, usize) {
    let heap = ALLOCATOR.heap.lock();
    (heap.used_bytes, heap.mapped_bytes)
}
