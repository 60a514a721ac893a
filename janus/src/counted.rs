//! [`Counted`]: an allocator that counts what is allocated. The resident memory that the system reports for a process
//! includes what the allocator below keeps for later, by thread; whether memory was freed is seen only here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A global allocator that counts the bytes and the blocks that are not freed yet:
///
/// ```
/// #[global_allocator]
/// static HEAP: janus::Counted = janus::Counted::new();
///
/// let before = HEAP.live();
/// let kept = std::hint::black_box(vec![0_u8; 1000]);
/// assert_eq!(HEAP.live().bytes, before.bytes + 1000);
/// drop(kept);
/// assert_eq!(HEAP.live(), before);
/// ```
///
/// Stacks of tasks and rings of workers are mapped by the runtime, and are not counted.
#[derive(Debug, Default)]
pub struct Counted<A = System> {
    bytes: AtomicUsize,
    blocks: AtomicUsize,
    inner: A,
}

/// What is allocated. If other threads allocate meanwhile, the two numbers may not match exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Bytes, as they were asked for.
    pub bytes: usize,
    /// The number of allocations.
    pub blocks: usize,
}

impl Counted {
    /// Counts on top of the system's allocator.
    #[must_use]
    pub const fn new() -> Counted {
        Counted::over(System)
    }
}

impl<A> Counted<A> {
    /// Counts on top of another allocator.
    #[must_use]
    pub const fn over(inner: A) -> Counted<A> {
        Counted { bytes: AtomicUsize::new(0), blocks: AtomicUsize::new(0), inner }
    }

    /// What is allocated now.
    #[must_use]
    pub fn live(&self) -> Live {
        Live { bytes: self.bytes.load(Ordering::Relaxed), blocks: self.blocks.load(Ordering::Relaxed) }
    }

    fn made(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        if !block.is_null() {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
        block
    }
}

// SAFETY: the inner allocator does the work.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.made(unsafe { self.inner.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.made(unsafe { self.inner.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.inner.dealloc(block, layout) };
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        self.blocks.fetch_sub(1, Ordering::Relaxed);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        let moved = unsafe { self.inner.realloc(block, layout, size) };
        if !moved.is_null() {
            // The addition wraps if the block shrinks.
            self.bytes.fetch_add(size.wrapping_sub(layout.size()), Ordering::Relaxed);
        }
        moved
    }
}
