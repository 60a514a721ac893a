//! A bounded first-in-first-out queue of fibers with one producer, its owner, and any number of consumers.
//!
//! It moves addresses and nothing else: it never dereferences, frees, allocates after `new`, blocks or grows. A full
//! ring hands the item back, and the caller puts it elsewhere.
//!
//! Invariants:
//! 1. `tail` and `head` count items since the beginning, in 64 bits, and never wrap: no compare-and-swap takes one round
//!    of the ring for another. Item `i` lives in slot `i & mask`. The items present are `head..tail`.
//! 2. Only the owner writes `tail`, `seen_head` and slots. `tail` only grows, with release: a thread that sees
//!    `tail > i` sees slot `i`, and what was written before the push.
//! 3. `head` only grows, by one, by compare-and-swap: the thread that moves it from `i` to `i + 1` has item `i`.
//! 4. `seen_head <= head`, and was read with acquire, which pairs with the release of the compare-and-swap: the threads
//!    that took the items below `seen_head` have finished reading their slots. `tail - seen_head <= capacity`, so a
//!    slot is overwritten only after its item was taken. A thread that reads an overwritten slot fails its
//!    compare-and-swap and throws the value away.

use core::cell::Cell;
use core::ptr::{NonNull, null_mut};

use crate::atomics::{AtomicPtr, AtomicU64, Ordering};
use crate::deque::Steal;

/// A bounded single-producer, many-consumer queue of addresses.
pub(crate) struct Ring<T> {
    consumers: Consumers,
    owner: Owner<T>,
}

/// The cache line that consumers write. Two lines wide: the hardware prefetches lines in pairs.
#[repr(align(128))]
struct Consumers {
    head: AtomicU64,
}

/// The cache line that only the owner writes; the consumers read all of it but `seen_head`.
#[repr(align(128))]
struct Owner<T> {
    tail: AtomicU64,
    /// A lower bound of `head`, used only by the owner: it spares the push a read of the consumers' line.
    seen_head: Cell<u64>,
    mask: u64,
    slots: Box<[AtomicPtr<T>]>,
}

// SAFETY: the ring holds addresses and never follows them, so moving it between threads touches no `T`.
unsafe impl<T> Send for Ring<T> {}
// SAFETY: as above; the one field that is not atomic, `seen_head`, is touched by `push` alone, whose callers promise to
// be the one owner.
unsafe impl<T> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// An empty ring for `capacity` items, a power of two.
    pub(crate) fn new(capacity: usize) -> Ring<T> {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
        Ring {
            consumers: Consumers { head: AtomicU64::new(0) },
            owner: Owner {
                tail: AtomicU64::new(0),
                seen_head: Cell::new(0),
                mask: capacity as u64 - 1,
                slots: (0..capacity).map(|_| AtomicPtr::new(null_mut())).collect(),
            },
        }
    }

    /// Puts `item` at the tail, or hands it back if the ring is full.
    ///
    /// # Safety
    /// The caller is the owner: no two calls of `push` overlap, and each happens after the one before.
    #[inline]
    pub(crate) unsafe fn push(&self, item: NonNull<T>) -> Result<(), NonNull<T>> {
        let owner = &self.owner;
        let tail = owner.tail.load(Ordering::Relaxed);
        if tail - owner.seen_head.get() > owner.mask {
            owner.seen_head.set(self.consumers.head.load(Ordering::Acquire));
            if tail - owner.seen_head.get() > owner.mask {
                return Err(item);
            }
        }
        self.slot(tail).store(item.as_ptr(), Ordering::Relaxed);
        owner.tail.store(tail + 1, Ordering::Release);
        Ok(())
    }

    /// Takes the oldest item; `None` only if there was none.
    ///
    /// Any thread may call it, but it is meant for the owner: it retries whenever another thread takes an item first,
    /// which for the owner (which does not push meanwhile) happens at most as often as there are items.
    #[inline]
    pub(crate) fn pop(&self) -> Option<NonNull<T>> {
        loop {
            match self.steal() {
                Steal::Empty => return None,
                Steal::Retry => {}
                Steal::Taken(item) => return Some(item),
            }
        }
    }

    /// Takes the oldest item, in one attempt. Any thread may call it.
    ///
    /// `Empty` is exact in this sense: after a sequentially consistent fence of the caller, a push that is ordered
    /// before that fence (by the pusher's own fence) is not missed unless another thread took the item.
    #[inline]
    pub(crate) fn steal(&self) -> Steal<T> {
        let head = self.consumers.head.load(Ordering::Acquire);
        if self.owner.tail.load(Ordering::Acquire) <= head {
            return Steal::Empty;
        }
        let item = self.slot(head).load(Ordering::Relaxed);
        match self.consumers.head.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Steal::Taken(NonNull::new(item).expect("a slot between head and tail is filled")),
            Err(_) => Steal::Retry,
        }
    }

    /// How many items there are, or were a moment ago.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let head = self.consumers.head.load(Ordering::Acquire);
        self.owner.tail.load(Ordering::Acquire).saturating_sub(head) as usize
    }

    /// Whether there is nothing, or was a moment ago; exact in the sense of [`Ring::steal`].
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn slot(&self, index: u64) -> &AtomicPtr<T> {
        // SAFETY: `mask` is one less than the number of slots, a power of two; neither changes after `new`.
        unsafe { self.owner.slots.get_unchecked((index & self.owner.mask) as usize) }
    }
}
