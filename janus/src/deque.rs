//! A worker's deque of runnable fibers: the owner pushes and pops at one end, thieves take from the other (Chase and Lev,
//! with the orderings of Lê, Pop, Cohen and Zappa Nardelli, PPoPP 2013).
//!
//! It moves addresses and nothing else: it never dereferences, frees, allocates after `new`, blocks or grows. A full
//! deque hands the item back, and the caller puts it elsewhere.
//!
//! Invariants:
//! 1. `bottom` and `top` count items since the beginning, in 64 bits, and never wrap. Item `i` lives in slot
//!    `i & mask`. The items present are `top..bottom`.
//! 2. Only the owner writes `bottom`, `seen_top` and slots. `top` only grows, by one, by compare-and-swap: the thread
//!    that moves it from `i` to `i + 1` has item `i`. The owner takes item `i` without moving `top` only if, after it
//!    lowered `bottom` to `i` and a fence, it still saw `top < i`; a thief that saw `top == i` before its fence then
//!    sees `bottom <= i`.
//! 3. `bottom < top` (by one) holds only inside `pop`, and reads as empty.
//! 4. `seen_top <= top`, and was read with acquire: the threads that took the items below `seen_top` have finished
//!    reading their slots. `bottom - seen_top <= capacity`, so a slot is overwritten only after its item was taken. A
//!    thief that reads an overwritten slot fails its compare-and-swap and throws the value away.
//! 5. Each store to `bottom` is a release: a thread that sees `bottom > i` sees slot `i`, and what was written before
//!    the push.

use core::cell::Cell;
use core::ptr::{NonNull, null_mut};

use crate::atomics::{AtomicPtr, AtomicU64, Ordering, fence};

/// What an attempt to steal brought.
pub(crate) enum Steal<T> {
    /// Nothing was there.
    Empty,
    /// Another thread took the item first: there may be more.
    Retry,
    /// The item, now the caller's alone.
    Taken(NonNull<T>),
}

/// A bounded work-stealing deque of addresses.
pub(crate) struct Deque<T> {
    thieves: Thieves,
    owner: Owner<T>,
}

/// The cache line that thieves write. Two lines wide: the hardware prefetches lines in pairs.
#[repr(align(128))]
struct Thieves {
    top: AtomicU64,
}

/// The cache line that only the owner writes; the thieves read all of it but `seen_top`.
#[repr(align(128))]
struct Owner<T> {
    bottom: AtomicU64,
    /// A lower bound of `top`, used only by the owner: it spares the owner a read of the thieves' line.
    seen_top: Cell<u64>,
    mask: u64,
    slots: Box<[AtomicPtr<T>]>,
}

// SAFETY: the deque holds addresses and never follows them, so moving it between threads touches no `T`.
unsafe impl<T> Send for Deque<T> {}
// SAFETY: as above; the one field that is not atomic, `seen_top`, is touched by `push` and `pop` alone, whose callers
// promise to be the one owner.
unsafe impl<T> Sync for Deque<T> {}

impl<T> Deque<T> {
    /// An empty deque for `capacity` items, a power of two.
    pub(crate) fn new(capacity: usize) -> Deque<T> {
        assert!(capacity.is_power_of_two(), "a deque's capacity is a power of two");
        Deque {
            thieves: Thieves { top: AtomicU64::new(0) },
            owner: Owner {
                bottom: AtomicU64::new(0),
                seen_top: Cell::new(0),
                mask: capacity as u64 - 1,
                slots: (0..capacity).map(|_| AtomicPtr::new(null_mut())).collect(),
            },
        }
    }

    /// Puts `item` at the owner's end, or hands it back if the deque is full.
    ///
    /// # Safety
    /// The caller is the owner: no two calls of `push` or `pop` overlap, and each happens after the one before.
    #[inline]
    pub(crate) unsafe fn push(&self, item: NonNull<T>) -> Result<(), NonNull<T>> {
        let owner = &self.owner;
        let bottom = owner.bottom.load(Ordering::Relaxed);
        if bottom - owner.seen_top.get() > owner.mask {
            owner.seen_top.set(self.thieves.top.load(Ordering::Acquire));
            if bottom - owner.seen_top.get() > owner.mask {
                return Err(item);
            }
        }
        self.slot(bottom).store(item.as_ptr(), Ordering::Relaxed);
        owner.bottom.store(bottom + 1, Ordering::Release);
        Ok(())
    }

    /// Takes the item that the owner pushed last.
    ///
    /// # Safety
    /// As for [`Deque::push`].
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<NonNull<T>> {
        let owner = &self.owner;
        let bottom = owner.bottom.load(Ordering::Relaxed);
        // `top` only grows, so what was empty once is still empty; and below, `bottom` is at least one.
        if bottom == owner.seen_top.get() {
            return None;
        }
        let last = bottom - 1;
        owner.bottom.store(last, Ordering::Release);
        fence(Ordering::SeqCst);
        let top = self.thieves.top.load(Ordering::Acquire);
        if top < last {
            owner.seen_top.set(top);
            return Some(filled(self.slot(last).load(Ordering::Relaxed)));
        }
        // One item, for which thieves may be racing, or none. Either way the deque is empty after this.
        let won = top == last
            && self.thieves.top.compare_exchange(top, bottom, Ordering::SeqCst, Ordering::Acquire).is_ok();
        owner.bottom.store(bottom, Ordering::Release);
        owner.seen_top.set(bottom);
        won.then(|| filled(self.slot(last).load(Ordering::Relaxed)))
    }

    /// Takes the oldest item. Any thread may call it, the owner too.
    ///
    /// `Empty` is exact in this sense: after a sequentially consistent fence of the caller, a push that is ordered
    /// before that fence (by the pusher's own fence) is not missed unless another thread took the item.
    #[inline]
    pub(crate) fn steal(&self) -> Steal<T> {
        let top = self.thieves.top.load(Ordering::Acquire);
        // Before the fence, because thieves mostly look at empty deques. A stale `bottom` may say empty when it is not,
        // never the reverse.
        if self.owner.bottom.load(Ordering::Relaxed) <= top {
            return Steal::Empty;
        }
        fence(Ordering::SeqCst);
        if self.owner.bottom.load(Ordering::Acquire) <= top {
            return Steal::Empty;
        }
        let item = self.slot(top).load(Ordering::Relaxed);
        match self.thieves.top.compare_exchange(top, top + 1, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Steal::Taken(filled(item)),
            Err(_) => Steal::Retry,
        }
    }

    /// How many items there are, or were a moment ago.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let top = self.thieves.top.load(Ordering::Acquire);
        self.owner.bottom.load(Ordering::Acquire).saturating_sub(top) as usize
    }

    /// Whether there is nothing, or was a moment ago; exact in the sense of [`Deque::steal`].
    #[inline]
    #[allow(dead_code, reason = "for the models")]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn slot(&self, index: u64) -> &AtomicPtr<T> {
        // SAFETY: `mask` is one less than the number of slots, a power of two; neither changes after `new`.
        unsafe { self.owner.slots.get_unchecked((index & self.owner.mask) as usize) }
    }
}

/// The item in a slot that a push filled.
#[inline]
fn filled<T>(slot: *mut T) -> NonNull<T> {
    NonNull::new(slot).expect("a slot between top and bottom is filled")
}
