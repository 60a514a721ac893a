//! The kernel's heap: size classes in single pages; larger blocks come straight from the frame allocator.
//!
//! Allocating is forbidden under scheduler locks and in interrupt handlers (K-18); builds with debug assertions check.

use super::frames::{self, FRAME_BYTES, Frame};
use super::percpu;
use super::plant;
use crate::arch::phys;
use crate::lock::{self, Rank, SpinLock};
use alloc::sync::Arc;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// Block sizes. Each page of a class begins with a [`Page`] header of 64 bytes.
const CLASSES: [usize; 12] = [32, 64, 96, 128, 192, 256, 384, 512, 768, 1008, 1344, 2016];
const HEADER_BYTES: usize = 64;
/// The class of each block size; the index is (bytes + 15) / 16.
static CLASS_OF: [u8; 127] = class_table();

const fn class_table() -> [u8; 127] {
    let mut table = [0; 127];
    let mut i = 0;
    while i < 127 {
        let mut class = 0;
        while CLASSES[class] < i * 16 {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
}

/// The header of a page.
struct Page {
    next: *mut Page,
    previous: *mut Page,
    /// The first free block; each free block holds a pointer to the next.
    free: *mut u8,
    used: u16,
    class: u16,
}

/// Pages of one class that have a free block.
struct Class {
    partial: *mut Page,
    /// How many of them have no used block; one such page is kept.
    empty: u32,
}

struct Heap {
    classes: [Class; CLASSES.len()],
}
// SAFETY: the pointers lead to pages that only the heap touches, under its lock.
unsafe impl Send for Heap {}

static HEAP: SpinLock<Heap> = SpinLock::new(
    Rank::Heap,
    Heap { classes: [const { Class { partial: null_mut(), empty: 0 } }; CLASSES.len()] },
);
static CACHED: AtomicU64 = AtomicU64::new(0);
/// Pages of all classes and of larger blocks, and bytes of the blocks that are used in them. Both change under the heap's lock.
static PAGES: AtomicU64 = AtomicU64::new(0);
static USED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Frames that the heap holds, and bytes of them that are used. The first depends on the order in which blocks were freed, the second does not.
pub fn used() -> (u64, u64) {
    let _heap = HEAP.lock();
    (PAGES.load(Ordering::Relaxed), USED_BYTES.load(Ordering::Relaxed))
}

/// Frames of pages that have no used block.
pub fn cached_frames() -> u64 {
    CACHED.load(Ordering::Relaxed)
}

/// K-18: panics where allocation is forbidden.
fn guard() {
    if lock::checked() {
        let cpu = percpu::this();
        assert!(!cpu.held.forbids_allocation(), "K-18: allocation under a scheduler lock");
        assert!(!cpu.in_interrupt.get(), "K-18: allocation in interrupt context");
    }
}

fn class_for(layout: &Layout) -> Option<usize> {
    if layout.align() <= 16 {
        let index = layout.size().div_ceil(16);
        return CLASS_OF.get(index).map(|class| *class as usize);
    }
    if layout.align() > HEADER_BYTES {
        return None;
    }
    (0..CLASSES.len()).find(|c| CLASSES[*c] >= layout.size() && CLASSES[*c].is_multiple_of(layout.align()))
}

fn allocate_large(order: usize) -> *mut u8 {
    let Some(frame) = frames::allocate_order(order) else { return null_mut() };
    let _heap = HEAP.lock();
    PAGES.fetch_add(1 << order, Ordering::Relaxed);
    USED_BYTES.fetch_add(FRAME_BYTES << order, Ordering::Relaxed);
    frame.pointer()
}

fn free_large(block: *mut u8, order: usize) {
    let heap = HEAP.lock();
    PAGES.fetch_sub(1 << order, Ordering::Relaxed);
    USED_BYTES.fetch_sub(FRAME_BYTES << order, Ordering::Relaxed);
    drop(heap);
    frames::free_order(Frame(phys::address(block as u64)), order);
}

fn order_for(layout: &Layout) -> usize {
    let bytes = layout.size().max(layout.align()) as u64;
    bytes.div_ceil(FRAME_BYTES).next_power_of_two().trailing_zeros() as usize
}

impl Heap {
    /// # Safety
    /// `page` is in no list.
    unsafe fn link(&mut self, class: usize, page: *mut Page) {
        // SAFETY: pages in lists are live and ours.
        unsafe {
            let first = self.classes[class].partial;
            (*page).next = first;
            (*page).previous = null_mut();
            if !first.is_null() {
                (*first).previous = page;
            }
        }
        self.classes[class].partial = page;
    }

    /// # Safety
    /// `page` is in the list of its class.
    unsafe fn unlink(&mut self, class: usize, page: *mut Page) {
        // SAFETY: as `link`.
        unsafe {
            let (next, previous) = ((*page).next, (*page).previous);
            if previous.is_null() {
                self.classes[class].partial = next;
            } else {
                (*previous).next = next;
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
        }
    }

    fn allocate(&mut self, class: usize) -> *mut u8 {
        if self.classes[class].partial.is_null() && !self.grow(class) {
            return null_mut();
        }
        let page = self.classes[class].partial;
        // SAFETY: a page of the list has a free block; blocks are inside the page.
        unsafe {
            let block = (*page).free;
            (*page).free = block.cast::<*mut u8>().read();
            if (*page).used == 0 {
                self.classes[class].empty -= 1;
                CACHED.fetch_sub(1, Ordering::Relaxed);
            }
            (*page).used += 1;
            USED_BYTES.fetch_add(CLASSES[class] as u64, Ordering::Relaxed);
            if (*page).free.is_null() {
                self.unlink(class, page);
            }
            block
        }
    }

    fn grow(&mut self, class: usize) -> bool {
        let Some(frame) = frames::allocate() else { return false };
        let page = frame.pointer::<Page>();
        let bytes = CLASSES[class];
        let count = (FRAME_BYTES as usize - HEADER_BYTES) / bytes;
        // SAFETY: a fresh frame; blocks are laid inside it.
        unsafe {
            let mut next = null_mut();
            for i in (0..count).rev() {
                let block = page.cast::<u8>().add(HEADER_BYTES + i * bytes);
                block.cast::<*mut u8>().write(next);
                next = block;
            }
            page.write(Page {
                next: null_mut(),
                previous: null_mut(),
                free: next,
                used: 0,
                class: class as u16,
            });
            self.link(class, page);
        }
        self.classes[class].empty += 1;
        CACHED.fetch_add(1, Ordering::Relaxed);
        PAGES.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// # Safety
    /// `block` came from `allocate` and is not used any more. Returns a page that is to be freed, if there is one.
    unsafe fn free(&mut self, block: *mut u8) -> Option<Frame> {
        let page = (block as usize & !(FRAME_BYTES as usize - 1)) as *mut Page;
        // SAFETY: blocks lie in their page, behind its header.
        unsafe {
            let class = (*page).class as usize;
            let was_full = (*page).free.is_null();
            block.cast::<*mut u8>().write((*page).free);
            (*page).free = block;
            (*page).used -= 1;
            USED_BYTES.fetch_sub(CLASSES[class] as u64, Ordering::Relaxed);
            if was_full {
                self.link(class, page);
            }
            if (*page).used > 0 {
                return None;
            }
            if self.classes[class].empty > 0 {
                self.unlink(class, page);
                PAGES.fetch_sub(1, Ordering::Relaxed);
                return Some(Frame(phys::address(page as u64)));
            }
            self.classes[class].empty += 1;
            CACHED.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// Blocks that are kept for the next allocations of their layouts on this CPU. Dropping this frees the blocks that were not used.
///
/// `Box::new` and `Arc::new` abort when there is no memory, and programs can exhaust it. So their blocks are allocated before, at a point where the
/// operation can still be refused. Nothing comes between, because the kernel does not preempt itself.
pub struct Kept(());

impl Drop for Kept {
    fn drop(&mut self) {
        for (block, layout) in percpu::this().spares.iter().filter_map(Cell::take) {
            // SAFETY: allocated by `keep`, and no allocation took it.
            unsafe { ALLOCATOR.dealloc(block, layout) };
        }
    }
}

/// Allocates a block of each layout for the allocations that follow; `None` if there is no memory.
pub fn keep<const N: usize>(layouts: [Layout; N]) -> Option<Kept> {
    const { assert!(N <= SPARES) };
    // All of them before any is offered: otherwise the second allocation could take the first block, if the layouts are equal.
    // SAFETY: the callers' types have a size.
    let blocks = layouts.map(|layout| unsafe { ALLOCATOR.alloc(layout) });
    let spares = &percpu::this().spares;
    for ((spare, block), layout) in spares.iter().zip(blocks).zip(layouts) {
        spare.set((!block.is_null()).then_some((block, layout)));
    }
    let kept = Kept(());
    blocks.iter().all(|block| !block.is_null()).then_some(kept)
}

/// A value as an `Arc` lays it out, with its two counts.
#[repr(C)]
struct Counted<T>(usize, usize, T);

/// Bytes that the block of an `Arc` takes.
pub fn arc_bytes<T>() -> u64 {
    block_bytes(&Layout::new::<Counted<T>>())
}

/// Bytes that a block of `layout` takes, as [`used`] counts them.
pub fn block_bytes(layout: &Layout) -> u64 {
    match class_for(layout) {
        Some(class) => CLASSES[class] as u64,
        None => FRAME_BYTES << order_for(layout),
    }
}

/// Puts `value` into an `Arc`; returns the value itself if there is no memory.
pub fn try_arc<T>(value: T) -> Result<Arc<T>, T> {
    let Some(kept) = keep([Layout::new::<Counted<T>>()]) else { return Err(value) };
    let arc = Arc::new(value);
    debug_assert!(percpu::this().spares[0].get().is_none(), "an Arc has another layout");
    drop(kept);
    Ok(arc)
}

/// How many blocks a CPU can keep.
pub const SPARES: usize = 2;

struct KernelAllocator;

// SAFETY: blocks are disjoint, large and aligned enough for their layout, and live until they are freed.
unsafe impl GlobalAlloc for KernelAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        guard();
        if lock::is_begun() {
            let spares = &percpu::this().spares;
            let found = spares.iter().find(|spare| spare.get().is_some_and(|(_, kept)| kept == layout));
            if let Some((block, _)) = found.and_then(Cell::take) {
                return block;
            }
        }
        if plant::fails() {
            return null_mut();
        }
        match class_for(&layout) {
            Some(class) => HEAP.lock().allocate(class),
            None => allocate_large(order_for(&layout)),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        guard();
        match class_for(&layout) {
            Some(_) => {
                // SAFETY: the caller's promise.
                let page = unsafe { HEAP.lock().free(pointer) };
                if let Some(page) = page {
                    frames::free(page);
                }
            }
            None => free_large(pointer, order_for(&layout)),
        }
    }
}

#[global_allocator]
static ALLOCATOR: KernelAllocator = KernelAllocator;
