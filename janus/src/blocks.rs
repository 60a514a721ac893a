//! Memory for closures and results that do not fit into their task: a few sizes, kept and reused, so that a warm runtime
//! does not call the allocator.

use crate::alloc::Quiet;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const SIZES: [usize; 3] = [256, 1024, 4096];
const ALIGN: usize = 64;
/// Blocks of each size that are kept at most.
const KEPT: usize = 1024;

/// See the module.
pub(crate) struct Blocks([Mutex<Vec<Block>>; 3]);

struct Block(NonNull<u8>);

// SAFETY: a free block belongs to the list it is in.
unsafe impl Send for Block {}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks([const { Mutex::new(Vec::new()) }; 3])
    }

    fn class(layout: Layout) -> Option<(usize, Layout)> {
        let class = SIZES.iter().position(|&size| layout.size() <= size && layout.align() <= ALIGN)?;
        Some((class, Layout::from_size_align(SIZES[class], ALIGN).ok()?))
    }

    pub(crate) fn take(&self, layout: Layout) -> NonNull<u8> {
        // A block of a kept size belongs to the runtime; any other block is charged to the task that writes it.
        let mut quiet = None;
        let real = match Self::class(layout) {
            Some((class, real)) => {
                let block = self.0[class].lock().unwrap_or_else(PoisonError::into_inner).pop();
                if let Some(block) = block {
                    return block.0;
                }
                quiet = Some(Quiet::new());
                real
            }
            None => layout,
        };
        // SAFETY: payloads that have a block are not empty.
        let block = NonNull::new(unsafe { alloc(real) }).unwrap_or_else(|| handle_alloc_error(real));
        drop(quiet);
        block
    }

    /// # Safety
    /// The block came from `take` with the same layout, and nothing uses it.
    pub(crate) unsafe fn give(&self, block: NonNull<u8>, layout: Layout) {
        let real = match Self::class(layout) {
            Some((class, real)) => {
                let mut kept = self.0[class].lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() < KEPT {
                    let _quiet = (kept.len() == kept.capacity()).then(Quiet::new);
                    kept.push(Block(block));
                    return;
                }
                real
            }
            None => layout,
        };
        // SAFETY: the caller's.
        unsafe { dealloc(block.as_ptr(), real) };
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (class, size) in SIZES.into_iter().enumerate() {
            let layout = Layout::from_size_align(size, ALIGN).expect("a fixed size");
            let kept = self.0[class].get_mut().unwrap_or_else(PoisonError::into_inner);
            for Block(block) in kept.drain(..) {
                // SAFETY: it came from `take` with this layout.
                unsafe { dealloc(block.as_ptr(), layout) };
            }
        }
    }
}
