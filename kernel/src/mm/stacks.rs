//! Kernel stacks: slots in an arena, each with an unmapped page below.
//!
//! A freed stack keeps its frames for the next thread; `trim` gives them back when memory is short. A stack can be freed only
//! with an [`OffStackToken`], which proves that no CPU is on it (K-08).

use super::frames::{self, FRAME_BYTES};
use super::paging;
use crate::arch::tlb;
use crate::lock::{Rank, SpinLock};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// Pages of a stack. `make run-measure` prints the deepest use of any stack.
pub const STACK_PAGES: u64 = 4;
/// Bytes of a stack.
pub const STACK_BYTES: u64 = STACK_PAGES * FRAME_BYTES;
/// Bytes of a stack with its guard page.
const SLOT_BYTES: u64 = STACK_BYTES + FRAME_BYTES;
/// The pattern that fills a new stack, so that the depth of its use can be measured.
const PAINT: u64 = 0x5354_4143_4b50_4149;

/// Proof that the CPU runs on another stack than the one that is freed. Only the dispatcher makes one for a used stack, after a switch.
pub struct OffStackToken(());

impl OffStackToken {
    /// For a stack that no thread ever ran on.
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

/// A mapped stack. Dropping it leaks its frames, which is safe but a waste; [`Stack::free`] gives it back.
#[derive(Debug)]
#[must_use = "a stack that is dropped is lost"]
pub struct Stack {
    slot: u32,
}

struct Arena {
    /// The number of slots that were ever used.
    next: u32,
    /// Slots that are mapped and unused.
    ready: Vec<u32>,
    /// Slots that are not mapped; some TLB may still have an old translation.
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
    /// Allocates a stack; `None` if memory is short.
    pub fn allocate() -> Option<Stack> {
        let mut arena = ARENA.lock();
        if let Some(slot) = arena.ready.pop() {
            CACHED.fetch_sub(STACK_PAGES, Ordering::Relaxed);
            return Some(Stack { slot });
        }
        let slot = match arena.bare.pop() {
            Some(slot) => slot,
            None => {
                // Both lists get room for this slot, so that giving it back cannot fail.
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

    /// The address just above the stack, where it begins.
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

    /// Gives back a stack that no thread ever ran on.
    pub fn free_unused(self) {
        self.free(OffStackToken::for_unused());
    }

    /// How many bytes of it were ever used.
    pub fn depth(&self) -> u64 {
        // SAFETY: mapped while `self` exists. The words may change meanwhile, which only changes the result.
        let words =
            unsafe { core::slice::from_raw_parts(base(self.slot) as *const u64, STACK_BYTES as usize / 8) };
        let untouched = words.iter().take_while(|word| **word == PAINT).count();
        STACK_BYTES - 8 * untouched as u64
    }
}

/// The number of the stack whose guard page contains `address`, if one does.
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

/// How many stacks are given back at once; few, because a lock is held.
const TRIM_STACKS: usize = 16;

/// Gives back the frames of some unused stacks. False if there were none.
pub fn trim() -> bool {
    // Called from an allocation, perhaps one by the arena itself, whose lock is held then: so it must only try.
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
        // K-30: there is room, as in `free`.
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
