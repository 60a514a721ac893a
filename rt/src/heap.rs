//! The allocator's bookkeeping: size classes over chunks of pages, and mappings of their own for large sizes.
//!
//! A freed block of a class goes back to the class's list and is used again; chunks are never unmapped, so what a program keeps is
//! bounded by what it once used. Large blocks are unmapped when freed. There are no headers: the caller that frees a block gives its
//! size.

use core::ptr::{self, NonNull};

/// Where memory comes from, in pages.
pub(crate) trait Pages {
    /// `bytes` (a multiple of the page size) of zeros, at a page; `None` if there are no more.
    fn map(&mut self, bytes: usize) -> Option<NonNull<u8>>;

    /// Gives back what [`Pages::map`] gave.
    ///
    /// # Safety
    /// The memory is not used any more.
    unsafe fn unmap(&mut self, at: NonNull<u8>, bytes: usize);
}

/// Bytes of a page.
pub(crate) const PAGE: usize = abi::PAGE_BYTES as usize;

/// Sizes of the classes, ascending: all multiples of 16 up to 128, four for each doubling up to 512, two up to 1 KiB, then one.
const CLASSES: [u16; 22] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024, 2048, 4096, 8192,
    16384,
];

/// Larger than every class.
const LARGE: usize = CLASSES[CLASSES.len() - 1] as usize + 1;

/// Bytes of the first chunk; each further one is twice as large, up to [`CHUNK_MAX`].
const CHUNK_MIN: usize = 4 * PAGE;
const CHUNK_MAX: usize = 64 * PAGE;

/// A free block: the next one of its class.
struct Free {
    next: Option<NonNull<Free>>,
}

/// The allocator.
pub(crate) struct Heap {
    lists: [Option<NonNull<Free>>; CLASSES.len()],
    /// What is left of the newest chunk.
    rest: *mut u8,
    rest_bytes: usize,
    chunk_bytes: usize,
    /// Bytes that are mapped now.
    pub(crate) mapped_bytes: usize,
    /// Bytes that are handed out now, rounded up to classes and pages.
    pub(crate) used_bytes: usize,
}

// SAFETY: the pointers are to memory that the heap owns.
unsafe impl Send for Heap {}

impl Heap {
    /// A heap that has mapped nothing yet.
    pub(crate) const fn new() -> Heap {
        Heap {
            lists: [None; CLASSES.len()],
            rest: ptr::null_mut(),
            rest_bytes: 0,
            chunk_bytes: CHUNK_MIN,
            mapped_bytes: 0,
            used_bytes: 0,
        }
    }

    /// `size` bytes aligned to `align`; null if there is no memory.
    pub(crate) fn allocate(&mut self, size: usize, align: usize, pages: &mut impl Pages) -> *mut u8 {
        let Some(class) = class_of(size, align) else { return self.map_large(size, align, pages) };
        let bytes = CLASSES[class] as usize;
        let block = match self.lists[class] {
            Some(free) => {
                // SAFETY: on the list, so it is free, ours, and holds the next one.
                self.lists[class] = unsafe { free.as_ref().next };
                free.as_ptr().cast()
            }
            None => self.cut(bytes, pages),
        };
        if !block.is_null() {
            self.used_bytes += bytes;
        }
        block
    }

    /// Takes back what [`Heap::allocate`] gave for the same size and alignment.
    ///
    /// # Safety
    /// It was given for these, and is not used any more.
    pub(crate) unsafe fn free(&mut self, at: *mut u8, size: usize, align: usize, pages: &mut impl Pages) {
        let Some(at) = NonNull::new(at) else { return };
        match class_of(size, align) {
            // SAFETY: the caller's promise; a block of a class is at least 16 bytes, aligned to 16.
            Some(class) => unsafe {
                self.used_bytes -= CLASSES[class] as usize;
                self.give(class, at);
            },
            None => {
                let bytes = size.next_multiple_of(PAGE);
                self.used_bytes -= bytes;
                self.mapped_bytes -= bytes;
                // SAFETY: a mapping of its own.
                unsafe { pages.unmap(at, bytes) };
            }
        }
    }

    /// Whether a block of `size` can serve as one of `new_size` where it is.
    pub(crate) fn fits_in_place(size: usize, new_size: usize, align: usize) -> bool {
        match (class_of(size, align), class_of(new_size, align)) {
            (Some(old), Some(new)) => old == new,
            (None, None) => size.next_multiple_of(PAGE) == new_size.next_multiple_of(PAGE),
            _ => false,
        }
    }

    /// # Safety
    /// `at` is a block of `class` that is not in use.
    unsafe fn give(&mut self, class: usize, at: NonNull<u8>) {
        let free = at.cast::<Free>();
        // SAFETY: the caller's promise.
        unsafe { free.write(Free { next: self.lists[class] }) };
        self.lists[class] = Some(free);
    }

    /// A block of `bytes`, the size of a class, from the newest chunk, or from a new one.
    fn cut(&mut self, bytes: usize, pages: &mut impl Pages) -> *mut u8 {
        // Sizes that are powers of two are aligned to themselves up to a page; chunks begin at pages.
        let skip = self.rest.align_offset(natural_align(bytes));
        if self.rest.is_null() || skip + bytes > self.rest_bytes {
            self.give_rest();
            let chunk = self.chunk_bytes.max(bytes.next_multiple_of(PAGE));
            // When there is little memory left, a small chunk may still fit.
            let smallest = bytes.next_multiple_of(PAGE);
            let found = pages.map(chunk).map(|at| (at, chunk));
            let Some((at, chunk)) = found.or_else(|| pages.map(smallest).map(|at| (at, smallest))) else {
                return ptr::null_mut();
            };
            self.mapped_bytes += chunk;
            self.chunk_bytes = (chunk * 2).min(CHUNK_MAX);
            (self.rest, self.rest_bytes) = (at.as_ptr(), chunk);
            return self.take(bytes);
        }
        self.skip(skip);
        self.take(bytes)
    }

    fn take(&mut self, bytes: usize) -> *mut u8 {
        let block = self.rest;
        self.rest = self.rest.wrapping_add(bytes);
        self.rest_bytes -= bytes;
        block
    }

    /// Gives everything that is left of the chunk to the lists.
    fn give_rest(&mut self) {
        let left = self.rest_bytes;
        if !self.rest.is_null() {
            self.skip(left);
        }
    }

    /// Gives the next `bytes` of the chunk to the lists, in blocks as large as their place allows.
    fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left >= CLASSES[0] as usize {
            let at = self.rest as usize;
            let fits = |&class: &usize| {
                let size = CLASSES[class] as usize;
                size <= left && at.is_multiple_of(natural_align(size))
            };
            let Some(class) = (0..CLASSES.len()).rev().find(fits) else { break };
            let size = CLASSES[class] as usize;
            let block = self.take(size);
            left -= size;
            // SAFETY: cut from our own chunk; never null.
            unsafe { self.give(class, NonNull::new_unchecked(block)) };
        }
    }

    fn map_large(&mut self, size: usize, align: usize, pages: &mut impl Pages) -> *mut u8 {
        // Mappings are aligned to pages; larger alignments are not supported.
        if align > PAGE || size > isize::MAX as usize - PAGE {
            return ptr::null_mut();
        }
        let bytes = size.next_multiple_of(PAGE);
        let Some(at) = pages.map(bytes) else { return ptr::null_mut() };
        self.mapped_bytes += bytes;
        self.used_bytes += bytes;
        at.as_ptr()
    }
}

/// What blocks of a class are aligned to: the largest power of two in their size, a page at most.
const fn natural_align(bytes: usize) -> usize {
    let align = 1 << bytes.trailing_zeros();
    if align < PAGE { align } else { PAGE }
}

/// The smallest class for `size` aligned to `align`; `None` for large ones.
fn class_of(size: usize, align: usize) -> Option<usize> {
    if align <= 16 {
        return if size < LARGE {
            Some(CLASSES.partition_point(|&class| (class as usize) < size))
        } else {
            None
        };
    }
    let size = size.max(align);
    CLASSES.iter().position(|&class| class as usize >= size && natural_align(class as usize) >= align)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::collections::BTreeMap;

    /// Pages of the host, at most `left` of them.
    struct Host {
        left: usize,
        mapped: BTreeMap<usize, usize>,
    }

    impl Pages for Host {
        fn map(&mut self, bytes: usize) -> Option<NonNull<u8>> {
            self.left = self.left.checked_sub(bytes / PAGE)?;
            // SAFETY: not empty.
            let at = NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, PAGE).unwrap()) })?;
            assert!(self.mapped.insert(at.as_ptr() as usize, bytes).is_none());
            Some(at)
        }
        unsafe fn unmap(&mut self, at: NonNull<u8>, bytes: usize) {
            assert_eq!(self.mapped.remove(&(at.as_ptr() as usize)), Some(bytes));
            self.left += bytes / PAGE;
            // SAFETY: from `map`.
            unsafe { dealloc(at.as_ptr(), Layout::from_size_align(bytes, PAGE).unwrap()) };
        }
    }

    #[test]
    fn random_blocks_are_aligned_apart_and_keep_what_is_written() {
        let mut host = Host { left: 4096, mapped: BTreeMap::new() };
        let mut heap = Heap::new();
        let mut live: Vec<(*mut u8, usize, usize, u8)> = Vec::new();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |bound: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 11) as usize % bound
        };
        for step in 0..20_000 {
            if random(5) < 3 {
                let scale = 1 + random(16);
                let size = 1 + random(1 << scale);
                let align = 1 << random(13);
                let at = heap.allocate(size, align, &mut host);
                assert!(!at.is_null() && (at as usize).is_multiple_of(align), "size {size} align {align}");
                // SAFETY: `size` bytes are ours.
                unsafe { ptr::write_bytes(at, step as u8, size) };
                live.push((at, size, align, step as u8));
            } else if !live.is_empty() {
                let (at, size, align, mark) = live.swap_remove(random(live.len()));
                // SAFETY: allocated above; freed once.
                unsafe {
                    assert!(
                        std::slice::from_raw_parts(at, size).iter().all(|&byte| byte == mark),
                        "written over"
                    );
                    heap.free(at, size, align, &mut host);
                }
            }
            if live.len() > 200 {
                let (at, size, align, _) = live.swap_remove(0);
                // SAFETY: as above.
                unsafe { heap.free(at, size, align, &mut host) };
            }
        }
        for (at, size, align, _) in live {
            // SAFETY: as above.
            unsafe { heap.free(at, size, align, &mut host) };
        }
        assert_eq!(heap.used_bytes, 0);
        assert_eq!(heap.mapped_bytes, host.mapped.values().sum::<usize>());
    }

    #[test]
    fn without_memory_the_answer_is_null_and_freed_blocks_serve_again() {
        let mut host = Host { left: 16, mapped: BTreeMap::new() };
        let mut heap = Heap::new();
        let mut live = Vec::new();
        loop {
            let at = heap.allocate(100, 8, &mut host);
            if at.is_null() {
                break;
            }
            live.push(at);
        }
        assert!(live.len() >= 16 * PAGE / 112 - 16, "only {} blocks in 16 pages", live.len());
        assert!(heap.allocate(1 << 20, 8, &mut host).is_null());
        // SAFETY: allocated above.
        unsafe { heap.free(live.pop().unwrap(), 100, 8, &mut host) };
        assert!(!heap.allocate(100, 8, &mut host).is_null());
    }
}
