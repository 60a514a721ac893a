//! A thread's ring as the kernel sees it. Here is what is under way; taking submissions is `submit`, posting completions `complete`, and waiting for
//! them `wait`.
//!
//! I-R1: an operation is accepted only with a free completion entry, which stays reserved until it completes; so no accepted
//! completion is ever lost (K-11). I-R2: what the program writes into the shared page is read once, checked, and never believed again.

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

/// What a completion says, without the caller's own number: the rest of a [`Cqe`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// 0, an exception or a transport error.
    pub status: i32,
    /// A capability that comes with it.
    pub cap: u32,
    /// The result.
    pub value: u64,
    /// `abi::cqe_flags`.
    pub flags: u32,
    /// Of a received call.
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
    /// Done, and nothing to say.
    pub const OK: Completion = Completion { status: 0, cap: 0, value: 0, flags: 0, badge: 0, w: [0; 2] };

    /// Done, with a number.
    pub const fn value(value: u64) -> Completion {
        Completion { value, ..Completion::OK }
    }
    /// Refused by the transport.
    pub const fn error(error: TransportError) -> Completion {
        Completion { status: error as i32, ..Completion::OK }
    }
}

/// Who is told when something happens: a thread, and which of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The thread.
    pub thread: ThreadRef,
    /// Its operation.
    pub op: u8,
    /// Which use of that operation's slot: a late event does not hit the next one.
    pub sequence: u32,
}

impl Waiter {
    /// What `Thread::lent` and the book of loans say while a context is lent along this operation, a call: never 0.
    #[inline(always)]
    pub fn ticket(&self) -> u64 {
        1 << 63 | u64::from(self.op) << 32 | u64::from(self.sequence)
    }
}

/// What an operation under way waits on: enough to withdraw it. Objects are above this layer, which knows that they can be asked to.
#[derive(Clone)]
pub enum Waitable {
    /// A timer.
    Sleep,
    /// A parking place, by its key.
    Park((u64, u64)),
    /// An answer.
    Call(Arc<dyn Withdraw>),
    /// A call.
    Recv(Arc<dyn Withdraw>),
    /// A thread's end.
    Join(Arc<dyn Withdraw>),
    /// A process's end.
    Exit(Arc<dyn Withdraw>),
    /// Input.
    Read,
    /// News of a context. It does not keep that: with its last capability the context ends, and whoever waits is told.
    Watch(&'static dyn Withdraw),
}

/// An object that operations wait on.
pub trait Withdraw: Send + Sync {
    /// Takes out who waits there; true if nobody else will complete its operation.
    fn withdraw(&self, waiter: &Waiter) -> bool;
    /// The same, of one that waits for calls.
    fn withdraw_receiver(&self, _waiter: &Waiter) -> bool {
        false
    }
}

impl Waitable {
    /// Something may end with it: then it is not dropped in an interrupt, where nothing may (K-18).
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
    /// Where it waits, for cancelling.
    on: Waitable,
}

/// The completion side: under the ring's lock.
pub struct RingSide {
    page: *mut Ring,
    cq_tail: u32,
    /// Bit n: operation n is under way.
    busy: u32,
    /// How many are: each has a completion entry reserved.
    reserved: u32,
    /// The thread waits for this many completions; 0: it does not wait.
    need: u32,
    sequence: u32,
    pending: [Option<Pending>; OPS],
}

// SAFETY: the page belongs to the thread and outlives its open ring; access is under the ring's lock.
unsafe impl Send for RingSide {}

/// Completions posted to rings whose thread was gone: dropped, and counted.
pub static STALE_COMPLETIONS: AtomicU64 = AtomicU64::new(0);

impl RingSide {
    /// Of no thread.
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

    /// Of a new thread, with its page. Nothing is under way in one that is closed.
    pub fn open(&mut self, page: *mut Ring) {
        self.close();
        self.page = page;
    }

    /// Of no thread any more. Nothing is under way: whoever ends has withdrawn it all.
    fn close(&mut self) {
        debug_assert!(self.busy == 0 && self.pending.iter().all(Option::is_none), "operations under way");
        self.page = core::ptr::null_mut();
        (self.cq_tail, self.busy, self.reserved, self.need, self.sequence) = (0, 0, 0, 0, 0);
    }

    /// Completions that the program has not taken. Nonsense in the shared page makes it look full, which harms its writer only.
    #[inline]
    fn unread(&self) -> u32 {
        // SAFETY: an open ring has its page.
        let head = unsafe { (*self.page).cq_head.load(Ordering::Acquire) };
        self.cq_tail.wrapping_sub(head).min(CQ_ENTRIES)
    }

    /// How many more completions there is room for.
    #[inline]
    fn credits(&self) -> u32 {
        CQ_ENTRIES.saturating_sub(self.unread() + self.reserved)
    }

    /// The operation in slot `op` is over.
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

    /// Writes a completion, `ahead` of the next one, which nobody sees yet.
    #[inline(always)]
    fn put(&mut self, ahead: u32, user_data: u64, c: &Completion) {
        // SAFETY: an open ring has its page; the slot is inside it. The program may scribble there: its own loss.
        unsafe {
            let slot = &raw mut (*self.page).cq[(self.cq_tail.wrapping_add(ahead) % CQ_ENTRIES) as usize];
            publish_48(user_data, (&raw const *c).cast(), slot.cast());
        }
    }

    /// As [`RingSide::put`], of [`Completion::OK`].
    #[inline(always)]
    fn put_plain(&mut self, ahead: u32, user_data: u64) {
        // SAFETY: as in `put`.
        unsafe {
            let slot = &raw mut (*self.page).cq[(self.cq_tail.wrapping_add(ahead) % CQ_ENTRIES) as usize];
            publish_48_plain(user_data, slot.cast());
        }
    }

    /// The next `count` completions are there to be seen.
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

/// Does a thread wait for calls?
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

/// What somebody is parked on, if the operation is under way.
pub fn parked_on(waiter: &Waiter) -> Option<(u64, u64)> {
    let thread = thread::get(waiter.thread.tid)?;
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref().filter(|p| p.sequence == waiter.sequence)?;
    match pending.on {
        Waitable::Park(key) if thread.is(&waiter.thread) => Some(key),
        _ => None,
    }
}

/// What an operation waits on, if it still waits; it is then withdrawn by the caller and completed by [`complete()`].
pub fn pending_on(thread: &Thread, user_data: u64) -> Option<(Waiter, Waitable)> {
    let ring = thread.ring.lock();
    let op = ring.pending.iter().position(|p| p.as_ref().is_some_and(|p| p.user_data == user_data))?;
    let pending = ring.pending[op].as_ref()?;
    let (on, sequence) = (pending.on.clone(), pending.sequence);
    drop(ring);
    Some((Waiter { thread: thread.reference(), op: op as u8, sequence }, on))
}

/// Gives back what an operation under way was charged.
/// The ring's lock is held and the ring is open, so the thread has not ended and its body is there.
fn uncharge(thread: &Thread, on: &Waitable) {
    if matches!(on, Waitable::Sleep) {
        thread.shared().release_sleep();
    }
}

/// Some operation of the current thread that is under way.
pub fn any_pending(thread: &Thread) -> Option<(Waiter, Waitable)> {
    let ring = thread.ring.lock();
    let op = ring.pending.iter().position(Option::is_some)?;
    let pending = ring.pending[op].as_ref()?;
    let (on, sequence) = (pending.on.clone(), pending.sequence);
    drop(ring);
    Some((Waiter { thread: thread.reference(), op: op as u8, sequence }, on))
}

/// Forgets an operation of the current thread that was withdrawn: it does not complete.
pub fn forget(thread: &Thread, waiter: &Waiter) {
    let mut ring = thread.ring.lock();
    let Some(pending) = ring.free(waiter.op, None) else { return };
    uncharge(thread, &pending.on);
    drop(ring);
    // What it waited on may end here, without a lock.
    drop(pending);
}

/// Closes the ring of a thread that ends and has nothing under way: later completions find nobody.
pub fn close(thread: &Thread) {
    let mut ring = thread.ring.lock();
    thread.must(&mut thread.wait.lock(), Event::Close);
    ring.close();
}
