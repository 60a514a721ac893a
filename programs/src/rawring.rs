//! Raw access to the calling thread's ring, without rt in between: entries are submitted unchanged, and completions are read in the
//! order in which the kernel posts them.

use core::sync::atomic::Ordering;

use abi::{CQ_ENTRIES, Cqe, Ring, SQ_ENTRIES, SQE_VERSION, Sqe};
use rt::{ring, syscall};

/// The ring of the calling thread. While this value exists, the thread must not use any part of rt that needs the kernel. That is more
/// than it seems: a `Vec` that grows may have to map memory, and rt then takes completions that are not its own. So memory is reserved
/// beforehand. A failure may be reported, because rt is kept in step with the indices.
pub struct RawRing {
    ring: *const Ring,
    /// Next completion to be read; the copy in the shared page may hold another value (see [`RawRing::lie`]).
    head: u32,
}

impl RawRing {
    /// Takes over the calling thread's ring.
    ///
    /// # Safety
    /// No operation of rt is under way on this thread. The memory that entries name must belong to them until they complete, and the
    /// operations that they ask for must be sound. All completions are taken before the value is dropped.
    pub unsafe fn take() -> RawRing {
        let ring = ring::raw();
        // SAFETY: the thread's ring, mapped as long as it lives.
        let head = unsafe { (*ring).cq_head.load(Ordering::Relaxed) };
        RawRing { ring, head }
    }

    /// The shared page.
    fn page(&self) -> &Ring {
        // SAFETY: the thread's ring, mapped as long as it lives.
        unsafe { &*self.ring }
    }

    /// Writes an entry as it is, without looking whether there is room.
    pub fn push_as_is(&self, sqe: Sqe) {
        let tail = self.page().sq_tail.load(Ordering::Relaxed);
        let place = &raw const self.page().sq[(tail % SQ_ENTRIES) as usize];
        // SAFETY: a slot of the thread's own ring; the kernel copies entries before it looks at them.
        unsafe { place.cast_mut().write_volatile(sqe) };
        self.set_tail(tail.wrapping_add(1));
        ring::resync();
    }

    /// Writes an entry with the right version.
    pub fn push(&self, sqe: Sqe) {
        self.push_as_is(Sqe { version: SQE_VERSION, ..sqe });
    }

    /// Publishes the entries up to `tail`.
    pub fn set_tail(&self, tail: u32) {
        self.page().sq_tail.store(tail, Ordering::Release);
    }

    /// The index up to which entries were published.
    pub fn tail(&self) -> u32 {
        self.page().sq_tail.load(Ordering::Relaxed)
    }

    /// The index up to which the kernel has taken entries.
    pub fn sq_head(&self) -> u32 {
        self.page().sq_head.load(Ordering::Acquire)
    }

    /// Enters the kernel with `cap_enter`.
    pub fn enter(&self, min_complete: u64, timeout_ns: u64) -> i64 {
        // SAFETY: the promise of `take`.
        unsafe { syscall::cap_enter(min_complete, timeout_ns) }
    }

    /// How many completions wait to be read.
    pub fn unread(&self) -> u32 {
        self.page().cq_tail.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// Takes the next completion, if there is one.
    pub fn pop(&mut self) -> Option<Cqe> {
        if self.unread() == 0 {
            return None;
        }
        // SAFETY: below the tail, so the kernel has written it and does not write it again before the head has passed it.
        let cqe = unsafe { (&raw const self.page().cq[(self.head % CQ_ENTRIES) as usize]).read_volatile() };
        self.head = self.head.wrapping_add(1);
        self.page().cq_head.store(self.head, Ordering::Release);
        ring::resync();
        Some(cqe)
    }

    /// Claims that completions up to `head` were read, whether or not they were.
    pub fn lie(&self, head: u32) {
        self.page().cq_head.store(head, Ordering::Release);
    }

    /// Waits for a completion and takes it.
    pub fn next_cqe(&mut self) -> Cqe {
        loop {
            if let Some(cqe) = self.pop() {
                return cqe;
            }
            self.enter(1, u64::MAX);
        }
    }
}

impl Drop for RawRing {
    fn drop(&mut self) {
        self.page().cq_head.store(self.head, Ordering::Release);
        ring::resync();
    }
}
