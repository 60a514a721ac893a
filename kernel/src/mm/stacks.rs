//! Kernel stacks: slots in an arena, each with an unmapped page below.
//!
//! A freed stack keeps its frames for the next thread; `trim` gives them back when memory is short. A stack's frames can be freed only
//! with an [`OffStackToken`], which proves that nobody stands on it (K-08).

use super::frames::{self, FRAME_BYTES};
use super::paging;
use crate::arch::tlb;
use crate::lock::{Rank, SpinLock};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// Pages of a stack. `make run-measure` prints the deepest that any stack was used.
pub const STACK_PAGES: u64 = 4;
/// Bytes of a stack.
pub const STACK_BYTES: u64 = STACK_PAGES * FRAME_BYTES;
/// With its guard.
const SLOT_BYTES: u64 = STACK_BYTES + FRAME_BYTES;
/// Fills stacks that were never used, so that depth can be read off.
const PAINT: u64 = 0x5354_4143_4b50_4149;

/// Proof that the CPU runs on another stack than the one to be freed. Only the dispatcher makes one, after a switch.
pub struct OffStackToken(());

impl OffStackToken {
    /// For a stack that nobody ever stood on.
    pub const fn for_unused() -> OffStackToken {
        OffStackToken(())
    }
    /// For the dispatcher.
    ///
    /// # Safety
    /// The CPU has switched away from the stack that will be freed, for good.
    pub unsafe fn after_switch() -> OffStackToken {
        OffStackToken(())
    }
}

/// A mapped stack. Dropping it leaks the frames (fails closed); [`Stack::free`] is the way.
#[derive(Debug)]
#[must_use = "a stack that is dropped is lost"]
pub struct Stack {
    slot: u32,
}

struct Arena {
    /// Slots that were ever used.
    next: u32,
    /// Mapped and unused.
    ready: Vec<u32>,
    /// Not mapped; may still be in some TLB.
    bare: Vec<u32>,
}

static ARENA: SpinLock<Arena> =
    SpinLock::new(Rank::Stacks, Arena { next: 0, ready: Vec::new(), bare: Vec::new() });
static CACHED: AtomicU64 = AtomicU64::new(0);

/// Frames of stacks that nobody uses.
pub fn cached_frames() -> u64 {
    CACHED.load(Ordering::Relaxed)
}

fn base(slot: u32) -> u64 {
    paging::STACKS_BASE + u64::from(slot) * SLOT_BYTES + FRAME_BYTES
}

impl Stack {
    /// A stack, or `None` if memory is short.
    pub fn allocate() -> Option<Stack> {
        let mut arena = ARENA.lock();
        if let Some(slot) = arena.ready.pop() {
            CACHED.fetch_sub(STACK_PAGES, Ordering::Relaxed);
            return Some(Stack { slot });
        }
        let slot = match arena.bare.pop() {
            Some(slot) => slot,
            None => {
                // Room for this slot in both lists, so that giving it back cannot fail.
                let all = arena.next as usize + 1;
                let (ready, bare) = (arena.ready.len(), arena.bare.len());
                arena.ready.try_reserve(all - ready).ok()?;
                arena.bare.try_reserve(all - bare).ok()?;
                arena.next += 1;
                arena.next - 1
            }
        };
        for page in 0..STACK_PAGES {
            let mapped = frames::allocate().and_then(|frame| {
                let address = base(slot) + page * FRAME_BYTES;
                paging::map_kernel(address, frame).or_else(|| {
                    frames::free(frame);
                    None
                })
            });
            if mapped.is_none() {
                unmap(slot, page);
                forget_translations();
                arena.bare.push(slot);
                return None;
            }
        }
        let stack = Stack { slot };
        // SAFETY: just mapped; nobody else has it.
        unsafe { core::slice::from_raw_parts_mut(base(slot) as *mut u64, STACK_BYTES as usize / 8) }
            .fill(PAINT);
        Some(stack)
    }

    /// The address above the first word.
    pub fn top(&self) -> u64 {
        base(self.slot) + STACK_BYTES
    }

    /// Gives the stack back.
    pub fn free(self, _off_stack: OffStackToken) {
        let mut arena = ARENA.lock();
        // K-30: both lists have room for every stack that was ever made.
        arena.ready.push(self.slot);
        CACHED.fetch_add(STACK_PAGES, Ordering::Relaxed);
    }

    /// Gives a stack back that nobody ever stood on.
    pub fn free_unused(self) {
        self.free(OffStackToken::for_unused());
    }

    /// How many bytes of it were ever used.
    pub fn depth(&self) -> u64 {
        // SAFETY: mapped while `self` exists; words may change under us, which changes the answer only.
        let words =
            unsafe { core::slice::from_raw_parts(base(self.slot) as *const u64, STACK_BYTES as usize / 8) };
        let untouched = words.iter().take_while(|word| **word == PAINT).count();
        STACK_BYTES - 8 * untouched as u64
    }
}

/// The guard page in which `address` lies, as a stack number.
pub fn guard_hit(address: u64) -> Option<u32> {
    let offset = address.checked_sub(paging::STACKS_BASE)?;
    (offset < 1 << 39 && offset % SLOT_BYTES < FRAME_BYTES).then_some((offset / SLOT_BYTES) as u32)
}

fn unmap(slot: u32, pages: u64) {
    for page in 0..pages {
        if let Some(frame) = paging::unmap_kernel(base(slot) + page * FRAME_BYTES) {
            frames::free(frame);
        }
    }
}

/// Stacks that are given back at once: under a lock, so it is few.
const TRIM_STACKS: usize = 16;

/// Gives the frames of some unused stacks back. Was there any?
pub fn trim() -> bool {
    // Called from an allocation, perhaps one of the arena's own.
    if CACHED.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let Some(mut arena) = ARENA.try_lock() else { return false };
    let Arena { ready, bare, .. } = &mut *arena;
    if ready.is_empty() {
        return false;
    }
    let count = ready.len().min(TRIM_STACKS);
    for slot in ready.drain(ready.len() - count..) {
        unmap(slot, STACK_PAGES);
        // K-30: as above.
        bare.push(slot);
    }
    CACHED.fetch_sub(count as u64 * STACK_PAGES, Ordering::Relaxed);
    forget_translations();
    true
}

/// Makes every CPU forget the translations of stacks that were unmapped: the next frames at these addresses are others.
fn forget_translations() {
    crate::arch::cpu::flush_tlb_global();
    tlb::shootdown_all(super::asker::debt());
}
