//! A thread's ring as the kernel sees it. This file keeps the operations that are under way; `submit` takes submissions, `complete` posts
//! completions, and `wait` waits for them.
//!
//! I-R1: an operation is accepted only with a free completion entry, which stays reserved until the operation completes; so no accepted
//! completion is ever lost (K-11). I-R2: what the program writes into the shared page is read once and checked; it is never trusted afterwards.

mod complete;
mod submit;
mod wait;

pub use complete::{Posted, complete, post, post_now, wake, while_open, while_pending};
pub use submit::{Submitted, Submitter, accept, allow_ending_leases, drain, end_lease};
pub use wait::{unread, wait};

use crate::arch::mem::{publish_48, publish_48_plain};
use crate::thread::{self, OPS, Thread};
use abi::{CQ_ENTRIES, Cqe, Ring, TransportError};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::generation::ThreadRef;
use kcore::life::Event;

/// The contents of a completion without the caller's own number (`user_data`): the rest of a [`Cqe`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// 0, the code of an exception, or a transport error.
    pub status: i32,
    /// A capability that comes with the completion.
    pub cap: u32,
    /// The result.
    pub value: u64,
    /// `abi::cqe_flags`.
    pub flags: u32,
    /// The badge of a received call.
    pub badge: u32,
    /// Further words.
    pub w: [u64; 2],
}

const _: () = {
    use core::mem::offset_of;
    const REST: usize = offset_of!(Cqe, status);
    assert!(size_of::<Completion>() + REST == size_of::<Cqe>() && offset_of!(Cqe, user_data) == 0);
    assert!(offset_of!(Completion, status) + REST == offset_of!(Cqe, status));
    assert!(offset_of!(Completion, cap) + REST == offset_of!(Cqe, cap));
    assert!(offset_of!(Completion, value) + REST == offset_of!(Cqe, value));
    assert!(offset_of!(Completion, flags) + REST == offset_of!(Cqe, flags));
    assert!(offset_of!(Completion, badge) + REST == offset_of!(Cqe, badge));
    assert!(offset_of!(Completion, w) + REST == offset_of!(Cqe, w));
};

impl Completion {
    /// Success without a result.
    pub const OK: Completion = Completion { status: 0, cap: 0, value: 0, flags: 0, badge: 0, w: [0; 2] };

    /// Success with a number.
    pub const fn value(value: u64) -> Completion {
        Completion { value, ..Completion::OK }
    }
    /// Refused by the transport.
    pub const fn error(error: TransportError) -> Completion {
        Completion { status: error as i32, ..Completion::OK }
    }
}

/// Who is told when something happens: a thread, and the operation of it that completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The thread.
    pub thread: ThreadRef,
    /// Its operation.
    pub op: u8,
    /// Which use of that operation's slot: a late event must not complete the next operation in the slot.
    pub sequence: u32,
}

impl Waiter {
    /// A number for this operation, a call: `Thread::lent` and the book of loans contain it while a context is lent along the call. Never 0.
    #[inline(always)]
    pub fn ticket(&self) -> u64 {
        1 << 63 | u64::from(self.op) << 32 | u64::from(self.sequence)
    }
}

/// What an operation under way waits on, so that it can be withdrawn. The objects are above this layer, which knows only that they can withdraw it.
#[derive(Clone)]
pub enum Waitable {
    /// A timer.
    Sleep,
    /// A parking place, by its key.
    Park((u64, u64)),
    /// An answer to a call.
    Call(Arc<dyn Withdraw>),
    /// A call to a server.
    Recv(Arc<dyn Withdraw>),
    /// A thread's end.
    Join(Arc<dyn Withdraw>),
    /// A process's end.
    Exit(Arc<dyn Withdraw>),
    /// Input.
    Read,
    /// An event of a context. This does not keep the context alive: it ends with its last capability, and the waiting thread is told.
    Watch(&'static dyn Withdraw),
}

/// An object that operations wait on.
pub trait Withdraw: Send + Sync {
    /// Removes the waiter from the object; true if nobody else will complete its operation.
    fn withdraw(&self, waiter: &Waiter) -> bool;
    /// The same for a waiter that waits for calls.
    fn withdraw_receiver(&self, _waiter: &Waiter) -> bool {
        false
    }
}

impl Waitable {
    /// Whether this keeps an object alive, which may end with it. Then it is not dropped in an interrupt, where nothing may end (K-18).
    pub fn keeps_something(&self) -> bool {
        match self {
            Waitable::Sleep | Waitable::Park(_) | Waitable::Read | Waitable::Watch(_) => false,
            Waitable::Call(_) | Waitable::Recv(_) | Waitable::Join(_) | Waitable::Exit(_) => true,
        }
    }
}

/// An operation under way.
struct Pending {
    sequence: u32,
    user_data: u64,
    /// What it waits on, for cancelling.
    on: Waitable,
}

/// The completion side of a ring; under the ring's lock.
pub struct RingSide {
    page: *mut Ring,
    cq_tail: u32,
    /// Bit n: operation n is under way.
    busy: u32,
    /// How many operations are under way: each has a completion entry reserved.
    reserved: u32,
    /// The thread waits for this many completions; 0 if it does not wait.
    need: u32,
    sequence: u32,
    pending: [Option<Pending>; OPS],
}

// SAFETY: the page belongs to the thread and outlives its open ring; access is under the ring's lock.
unsafe impl Send for RingSide {}

/// Completions for threads that were gone or operations that were over: they are dropped, and counted.
pub static STALE_COMPLETIONS: AtomicU64 = AtomicU64::new(0);

impl RingSide {
    /// A ring without a thread.
    pub const fn closed() -> RingSide {
        RingSide {
            page: core::ptr::null_mut(),
            cq_tail: 0,
            busy: 0,
            reserved: 0,
            need: 0,
            sequence: 0,
            pending: [const { None }; OPS],
        }
    }

    /// Opens the ring for a new thread, with the thread's page. A closed ring has nothing under way.
    pub fn open(&mut self, page: *mut Ring) {
        self.close();
        self.page = page;
    }

    /// Closes the ring. Nothing is under way: a thread that ends has withdrawn all its operations.
    fn close(&mut self) {
        debug_assert!(self.busy == 0 && self.pending.iter().all(Option::is_none), "operations under way");
        self.page = core::ptr::null_mut();
        (self.cq_tail, self.busy, self.reserved, self.need, self.sequence) = (0, 0, 0, 0, 0);
    }

    /// Completions that the program has not taken. Nonsense in the shared page can make the ring look full, which harms only that program.
    #[inline]
    fn unread(&self) -> u32 {
        // SAFETY: an open ring has its page.
        let head = unsafe { (*self.page).cq_head.load(Ordering::Acquire) };
        self.cq_tail.wrapping_sub(head).min(CQ_ENTRIES)
    }

    /// How many more operations can be accepted: each needs an entry for its completion.
    #[inline]
    fn credits(&self) -> u32 {
        CQ_ENTRIES.saturating_sub(self.unread() + self.reserved)
    }

    /// Frees slot `op`, whose operation is over; if `sequence` is given, only if the slot still belongs to that operation.
    #[inline(always)]
    fn free(&mut self, op: u8, sequence: Option<u32>) -> Option<Pending> {
        let wanted = |pending: &mut Pending| sequence.is_none_or(|sequence| pending.sequence == sequence);
        let pending = self.pending[op as usize].take_if(wanted)?;
        self.busy &= !(1 << op);
        self.reserved -= 1;
        Some(pending)
    }

    #[inline]
    fn post(&mut self, user_data: u64, c: &Completion) {
        self.put(0, user_data, c);
        self.publish(1);
    }

    /// Writes a completion `ahead` entries past the tail; the program does not see it until it is published.
    #[inline(always)]
    fn put(&mut self, ahead: u32, user_data: u64, c: &Completion) {
        // SAFETY: an open ring has its page, and the slot is inside it. The program may overwrite the slot, which harms only itself.
        unsafe {
            let slot = &raw mut (*self.page).cq[(self.cq_tail.wrapping_add(ahead) % CQ_ENTRIES) as usize];
            publish_48(user_data, (&raw const *c).cast(), slot.cast());
        }
    }

    /// As [`RingSide::put`], for [`Completion::OK`].
    #[inline(always)]
    fn put_plain(&mut self, ahead: u32, user_data: u64) {
        // SAFETY: as in `put`.
        unsafe {
            let slot = &raw mut (*self.page).cq[(self.cq_tail.wrapping_add(ahead) % CQ_ENTRIES) as usize];
            publish_48_plain(user_data, slot.cast());
        }
    }

    /// Makes the next `count` completions visible to the program.
    #[inline(always)]
    fn publish(&mut self, count: u32) {
        self.cq_tail = self.cq_tail.wrapping_add(count);
        // SAFETY: an open ring has its page.
        unsafe { (*self.page).cq_tail.store(self.cq_tail, Ordering::Release) };
    }

    fn satisfied(&self) -> bool {
        self.need != 0 && self.unread() >= self.need
    }
}

/// Whether a thread waits for calls.
pub fn receives(thread: &Thread) -> bool {
    let ring = thread.ring.lock();
    let mut busy = ring.busy;
    while busy != 0 {
        let pending = ring.pending[busy.trailing_zeros() as usize].as_ref();
        if pending.is_some_and(|pending| matches!(pending.on, Waitable::Recv(_))) {
            return true;
        }
        busy &= busy - 1;
    }
    false
}

/// The key that the operation is parked on, if it is under way and is a park.
pub fn parked_on(waiter: &Waiter) -> Option<(u64, u64)> {
    let thread = thread::get(waiter.thread.tid)?;
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref().filter(|p| p.sequence == waiter.sequence)?;
    match pending.on {
        Waitable::Park(key) if thread.is(&waiter.thread) => Some(key),
        _ => None,
    }
}

/// An operation that is still under way, and what it waits on. The caller withdraws it from there, and then completes it by [`complete()`].
pub fn pending_on(thread: &Thread, user_data: u64) -> Option<(Waiter, Waitable)> {
    let ring = thread.ring.lock();
    let op = ring.pending.iter().position(|p| p.as_ref().is_some_and(|p| p.user_data == user_data))?;
    let pending = ring.pending[op].as_ref()?;
    let (on, sequence) = (pending.on.clone(), pending.sequence);
    drop(ring);
    Some((Waiter { thread: thread.reference(), op: op as u8, sequence }, on))
}

/// Gives back what the process was charged for an operation under way.
/// The ring's lock is held and the ring is open, so the thread has not ended and its `shared` part is there.
fn uncharge(thread: &Thread, on: &Waitable) {
    if matches!(on, Waitable::Sleep) {
        thread.shared().release_sleep();
    }
}

/// Any one operation of the current thread that is under way.
pub fn any_pending(thread: &Thread) -> Option<(Waiter, Waitable)> {
    let ring = thread.ring.lock();
    let op = ring.pending.iter().position(Option::is_some)?;
    let pending = ring.pending[op].as_ref()?;
    let (on, sequence) = (pending.on.clone(), pending.sequence);
    drop(ring);
    Some((Waiter { thread: thread.reference(), op: op as u8, sequence }, on))
}

/// Removes an operation of the current thread that was withdrawn, without a completion.
pub fn forget(thread: &Thread, waiter: &Waiter) {
    let mut ring = thread.ring.lock();
    let Some(pending) = ring.free(waiter.op, None) else { return };
    uncharge(thread, &pending.on);
    drop(ring);
    // The object that it waited on may end here, so no lock may be held.
    drop(pending);
}

/// Closes the ring of a thread that ends and has nothing under way: later completions are found stale.
pub fn close(thread: &Thread) {
    let mut ring = thread.ring.lock();
    thread.must(&mut thread.wait.lock(), Event::Close);
    ring.close();
}
