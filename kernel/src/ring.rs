//! A thread's ring as the kernel sees it: reserving, posting and waiting for completions, and taking submissions.
//!
//! I-R1: an operation is accepted only with a free completion entry, which stays reserved until it completes; so no accepted
//! completion is ever lost (K-11). I-R2: what the program writes into the shared page is read once, checked, and never believed again.

use crate::arch::mem::snapshot_64;
use crate::object::Waitable;
use crate::sched;
use crate::thread::{self, OPS, TIMEOUT, Thread};
use crate::time;
use abi::{CQ_ENTRIES, Cqe, Ring, SQ_ENTRIES, Sqe, TransportError};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::generation::ThreadRef;

/// What a completion says, without the caller's own number.
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
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The thread.
    pub thread: ThreadRef,
    /// Its operation.
    pub op: u8,
    /// Which use of that operation's slot: a late event does not hit the next one.
    pub sequence: u32,
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

    /// Of a new thread, with its page.
    pub fn open(page: *mut Ring) -> RingSide {
        RingSide { page, ..RingSide::closed() }
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
    #[inline]
    fn free(&mut self, op: u8, sequence: Option<u32>) -> Option<Pending> {
        let wanted = |pending: &mut Pending| sequence.is_none_or(|sequence| pending.sequence == sequence);
        let pending = self.pending[op as usize].take_if(wanted)?;
        self.busy &= !(1 << op);
        self.reserved -= 1;
        Some(pending)
    }

    #[inline]
    fn post(&mut self, user_data: u64, c: &Completion) {
        let cqe = Cqe {
            user_data,
            status: c.status,
            cap: c.cap,
            value: c.value,
            flags: c.flags,
            badge: c.badge,
            w: c.w,
        };
        // SAFETY: an open ring has its page; the slot is inside it. The program may scribble there: its own loss.
        unsafe {
            let slot = &raw mut (*self.page).cq[(self.cq_tail % CQ_ENTRIES) as usize];
            slot.write_volatile(cqe);
            self.cq_tail = self.cq_tail.wrapping_add(1);
            (*self.page).cq_tail.store(self.cq_tail, Ordering::Release);
        }
    }

    fn satisfied(&self) -> bool {
        self.need != 0 && self.unread() >= self.need
    }
}

/// Posts a completion for an entry that was answered at once. The caller has seen a credit.
#[inline]
pub fn post_now(thread: &Thread, user_data: u64, completion: &Completion) {
    thread.ring.lock().post(user_data, completion);
}

/// Accepts an operation of the current thread that completes later. `None` if it has none to spare (which a credit excludes).
pub fn accept(thread: &Thread, user_data: u64, on: Waitable) -> Option<Waiter> {
    let mut ring = thread.ring.lock();
    let op = ring.busy.trailing_ones();
    if op as usize >= OPS {
        return None;
    }
    ring.busy |= 1 << op;
    ring.reserved += 1;
    ring.sequence = ring.sequence.wrapping_add(1);
    let sequence = ring.sequence;
    ring.pending[op as usize] = Some(Pending { sequence, user_data, on });
    drop(ring);
    Some(Waiter { thread: thread.reference(), op: op as u8, sequence })
}

/// Completes an operation, if its thread is still there. With `direct` the thread runs here next.
pub fn complete(waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    let mut ring = thread.ring.lock();
    // K-05: the record may serve another thread by now.
    if !thread.is(&waiter.thread) && !cfg!(feature = "planted-no-generation-check") || ring.page.is_null() {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    let Some(pending) = ring.free(waiter.op, Some(waiter.sequence)) else {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    uncharge(thread, &pending.on);
    ring.post(pending.user_data, completion);
    let wake = ring.satisfied();
    if wake {
        ring.need = 0;
    }
    let reference = thread.reference();
    drop(ring);
    // What it waited on may end here, without a lock.
    drop(pending);
    if wake {
        sched::wake(&reference, direct);
    }
    true
}

/// The timer of an operation fired.
pub fn timer_due(waiter: &Waiter) {
    let Some(thread) = thread::get(waiter.thread.tid) else { return };
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref().filter(|p| p.sequence == waiter.sequence);
    let parked = match pending.map(|p| &p.on) {
        Some(Waitable::Park(key)) if thread.is(&waiter.thread) => Some(*key),
        _ => None,
    };
    drop(ring);
    match parked {
        Some(key) => crate::park::timed_out(waiter, key),
        None => {
            complete(waiter, &time::SLEPT, false);
        }
    }
}

/// What an operation waits on, if it still waits; it is then withdrawn by the caller and completed by [`complete`].
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
        thread.body().process.ledger.release_sleep();
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
    debug_assert!(ring.pending.iter().all(Option::is_none), "a thread ends with operations under way");
    thread.generation.store(0, Ordering::Release);
    *ring = RingSide::closed();
}

// ---- submissions ----------------------------------------------------------------------------------------------------------

/// Takes submissions of the current thread until there are none, or one must wait for a free completion entry. At most a queue full, so
/// that a program that writes faster than we read does not keep us here. `will_wait`: the thread is about to wait for completions.
/// `Some(code)` if the thread asked to end.
pub fn drain(
    thread: &'static Thread,
    page: *const Ring,
    will_wait: bool,
) -> Result<Option<i64>, TransportError> {
    // SAFETY: the thread's own ring page, mapped while it lives.
    if unsafe { (*page).sq_tail.load(Ordering::Acquire) } == thread.sq_head.get() {
        return Ok(None);
    }
    let lease = match thread.sq.acquire_syscall(thread.tid()) {
        Ok(lease) => lease,
        Err(_) => return Err(TransportError::SqBusy),
    };
    let mut result = Ok(None);
    let mut head = thread.sq_head.get();
    // Credits only grow while we look: nobody else accepts operations of this thread.
    let mut credits = thread.ring.lock().credits();
    // SAFETY: the thread's own ring page, mapped while it lives.
    let tail = unsafe { (*page).sq_tail.load(Ordering::Acquire) };
    let count = tail.wrapping_sub(head);
    if count > SQ_ENTRIES {
        // The program wrote nonsense; there is no entry to complete with an error.
        thread.sq.release(lease);
        return Err(TransportError::BadMessage);
    }
    for _ in 0..count {
        if credits == 0 {
            credits = thread.ring.lock().credits();
            if credits == 0 {
                break;
            }
        }
        credits -= 1;
        if thread.sq.verify(&lease).is_err() {
            result = Err(TransportError::StaleSqConsumer);
            break;
        }
        let mut sqe = MaybeUninit::<Sqe>::uninit();
        // SAFETY: as above; a copy, because the program may change the entry while we look at it. Any bytes are an entry.
        let sqe = unsafe {
            let from = &raw const (*page).sq[(head % SQ_ENTRIES) as usize];
            snapshot_64(from.cast(), sqe.as_mut_ptr().cast());
            sqe.assume_init()
        };
        head = head.wrapping_add(1);
        if let crate::ops::Outcome::Exit(code) = crate::ops::submit(thread, &sqe, will_wait) {
            result = Ok(Some(code));
            break;
        }
    }
    thread.sq_head.set(head);
    // SAFETY: as above.
    unsafe { (*page).sq_head.store(head, Ordering::Release) };
    thread.sq.release(lease);
    result
}

/// Waits until `min` completions are there or it is `deadline`. Says how many are there.
pub fn wait(thread: &'static Thread, min: u32, deadline: u64) -> u32 {
    let mut armed = false;
    loop {
        let mut ring = thread.ring.lock();
        let unread = ring.unread();
        let ended = thread.body().process.is_ending();
        if unread >= min || ended || deadline == 0 || (armed && time::now_ns() >= deadline) {
            ring.need = 0;
            drop(ring);
            if armed {
                time::cancel_timer(thread, TIMEOUT);
            }
            return unread;
        }
        ring.need = min;
        drop(ring);
        if !armed && deadline != u64::MAX {
            armed = true;
            time::set_timer(thread, TIMEOUT, 0, deadline);
        }
        sched::block();
    }
}
