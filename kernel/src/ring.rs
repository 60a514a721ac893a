//! A thread's ring as the kernel sees it: reserving, posting and waiting for completions, and taking submissions.
//!
//! I-R1: an operation is accepted only with a free completion entry, which stays reserved until it completes; so no accepted
//! completion is ever lost (K-11). I-R2: what the program writes into the shared page is read once, checked, and never believed again.

use crate::arch::mem::{is_rest_zero_64, publish_48, publish_48_plain, snapshot_64};
use crate::context::loan;
use crate::dispatch;
use crate::dispatch::percpu;
use crate::irqoff::{self, Path};
use crate::object::Waitable;
use crate::planted::{self, Bug};
use crate::preempt::Pacer;
use crate::process::Process;
use crate::thread::{self, OPS, TIMEOUT, Thread};
use crate::time;
use abi::{CQ_ENTRIES, Cqe, OP_END_LEASE, Op, Ring, SQ_ENTRIES, SQE_VERSION, Sqe, TransportError};
use alloc::sync::Arc;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kcore::generation::ThreadRef;
use kcore::life::Event;
use kcore::sqlease::{SqLease, SqOwner, StaleSqConsumer, Verified};

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

/// Posts a completion for an entry that was answered at once. The caller has seen a credit.
#[inline]
pub fn post_now(thread: &Thread, user_data: u64, completion: &Completion) {
    thread.ring.lock().post(user_data, completion);
}

/// The process of whoever waits, if the thread is still there.
pub fn process_of(waiter: &Waiter) -> Option<Arc<Process>> {
    process_of_thread(&waiter.thread)
}

/// The process of a thread, if that is still there.
pub fn process_of_thread(who: &ThreadRef) -> Option<Arc<Process>> {
    let thread = thread::get(who.tid)?;
    let ring = thread.ring.lock();
    // The ring is open while the body is there.
    (thread.is(who) && !ring.page.is_null()).then(|| thread.body().process.clone())
}

/// Accepts an operation of the current thread that completes later. `None` if it has none to spare (which a credit excludes).
#[inline(always)]
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
    let before = ring.pending[op as usize].replace(Pending { sequence, user_data, on });
    debug_assert!(before.is_none(), "the slot was free");
    // Nothing is dropped, which the compiler cannot know.
    core::mem::forget(before);
    drop(ring);
    Some(Waiter { thread: thread.reference(), op: op as u8, sequence })
}

/// [`Waiter::op`] of a timeout fault: no operation, but a thread that was stopped and waits for the verdict.
pub const FAULT_OP: u8 = u8::MAX;

/// Completes an operation, if its thread is still there. With `direct` the thread runs here next.
///
/// A call along which a context was lent ends here, however it ends: the loan is back before the completion is.
pub fn complete(waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    complete_here(waiter, completion, direct)
}

/// As [`complete`], for the paths of every call and answer.
#[inline(always)]
pub fn complete_here(waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    if waiter.op == FAULT_OP {
        crate::context::faults::fault_answered(&waiter.thread, completion);
        return true;
    }
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    match post(thread, waiter, completion) {
        Posted::Stale => false,
        Posted::Quiet => true,
        Posted::Wakes => {
            wake(thread, waiter, direct);
            true
        }
        Posted::Lent => complete_lent(thread, waiter, completion, direct),
    }
}

/// The thread that a completion was posted to. The same, as was just checked; without that check whoever is there now is woken.
#[inline(always)]
fn wake(thread: &'static Thread, waiter: &Waiter, direct: bool) {
    if planted::is(Bug::NoGenerationCheck) {
        dispatch::wake_thread(thread, &thread.reference(), direct);
    } else {
        dispatch::wake_thread(thread, &waiter.thread, direct);
    }
}

/// As [`complete`], of a call along which the thread has lent its context. The thread is woken in any case: it may wait for the loan only.
#[cold]
#[inline(never)]
fn complete_lent(thread: &'static Thread, waiter: &Waiter, completion: &Completion, direct: bool) -> bool {
    if planted::is(Bug::ExceptionKeepsLoan) && completion.status > 0 {
        loan::forget(thread);
    }
    let mut handed = loan::settle(thread, waiter, direct);
    let posted = loop {
        match post(thread, waiter, completion) {
            // Another CPU is about to end the loan: it has begun, under the context's lock, and does not wait for anybody.
            Posted::Lent => {
                crate::arch::cpu::pause();
                crate::arch::tlb::poll();
                handed = handed.or_else(|| loan::settle(thread, waiter, direct));
            }
            posted => break posted,
        }
    };
    match handed {
        Some(runnable) => dispatch::hand_over_lending(runnable),
        None => {
            dispatch::wake_thread(thread, &waiter.thread, direct);
        }
    }
    !matches!(posted, Posted::Stale)
}

/// Completes the RECV of a server, whom the current thread lends its context along `call`, if it can.
#[inline]
pub fn complete_lending(
    server: &Waiter,
    completion: &Completion,
    lender: &'static Thread,
    call: &Waiter,
) -> bool {
    let Some(thread) = thread::get(server.thread.tid) else { return false };
    match post(thread, server, completion) {
        Posted::Stale => false,
        Posted::Quiet => true,
        Posted::Wakes => {
            // Who waits for more calls than this one does not work for this one alone.
            if receives(thread) || !loan::lend(lender, call, thread, &server.thread) {
                wake(thread, server, true);
            }
            true
        }
        Posted::Lent => complete_lent(thread, server, completion, true),
    }
}

enum Posted {
    /// Nobody to tell.
    Stale,
    /// It waits for more.
    Quiet,
    /// It is to be woken.
    Wakes,
    /// Nothing was posted: a context was lent along the operation, and has to come back first.
    Lent,
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

/// Runs `then` while the operation is under way and cannot complete; nothing, if it is over.
#[inline(always)]
pub fn while_pending<R>(thread: &Thread, waiter: &Waiter, then: impl FnOnce() -> R) -> Option<R> {
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref()?;
    (pending.sequence == waiter.sequence && thread.is(&waiter.thread)).then(then)
}

#[inline(always)]
fn post(thread: &'static Thread, waiter: &Waiter, completion: &Completion) -> Posted {
    let mut ring = thread.ring.lock();
    // K-05: the record may serve another thread by now.
    if !thread.is(&waiter.thread) && !planted::is(Bug::NoGenerationCheck) || ring.page.is_null() {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return Posted::Stale;
    }
    // Under the ring's lock, as it is set: a call either completes before it lends, or brings the loan back.
    let lent = thread.lent.load(Ordering::Relaxed);
    if lent != 0 && lent == loan::ticket(waiter) {
        return Posted::Lent;
    }
    let Some(pending) = ring.free(waiter.op, Some(waiter.sequence)) else {
        STALE_COMPLETIONS.fetch_add(1, Ordering::Relaxed);
        return Posted::Stale;
    };
    debug_assert!(
        !percpu::this().in_interrupt.get() || !pending.on.keeps_something(),
        "K-18: an interrupt completes what keeps something"
    );
    uncharge(thread, &pending.on);
    ring.post(pending.user_data, completion);
    let wake = ring.satisfied();
    if wake {
        ring.need = 0;
    }
    drop(ring);
    // What it waited on may end here, without a lock.
    drop(pending);
    if wake { Posted::Wakes } else { Posted::Quiet }
}

/// The timer of a park fired.
pub fn park_due(waiter: &Waiter) {
    let Some(thread) = thread::get(waiter.thread.tid) else { return };
    let ring = thread.ring.lock();
    let pending = ring.pending[waiter.op as usize].as_ref().filter(|p| p.sequence == waiter.sequence);
    let parked = match pending.map(|p| &p.on) {
        Some(Waitable::Park(key)) if thread.is(&waiter.thread) => Some(*key),
        _ => None,
    };
    drop(ring);
    if let Some(key) = parked {
        crate::park::timed_out(waiter, key);
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
    thread.must(&mut thread.wait.lock(), Event::Close);
    ring.close();
}

// ---- leases that end on purpose ----------------------------------------------------------------------------------------------

/// The kernel was booted with `endlease`.
static MAY_END_LEASES: AtomicBool = AtomicBool::new(false);

/// From now on programs may end leases.
pub fn allow_ending_leases() {
    MAY_END_LEASES.store(true, Ordering::Relaxed);
}

/// An entry of an unknown operation; [`abi::OP_END_LEASE`] is known to a kernel that was booted with `endlease`. It does what will be done by who
/// takes a ring over: today a ring has one consumer only, the thread itself, and no program can make it a stale one (K-12).
#[cold]
pub fn end_lease(thread: &Thread, sqe: &Sqe) -> Completion {
    if sqe.op != OP_END_LEASE || !MAY_END_LEASES.load(Ordering::Relaxed) {
        return Completion::error(TransportError::UnknownOp);
    }
    let pid = |thread: &Thread| thread.pid.load(Ordering::Relaxed);
    let target = if sqe.arg0 == 0 { Some(thread) } else { thread::get(sqe.arg0 as u32) };
    let Some(target) = target.filter(|target| pid(target) == pid(thread)) else {
        return Completion::error(TransportError::BadMessage);
    };
    Completion::value(target.sq.invalidate().into())
}

// ---- submissions ----------------------------------------------------------------------------------------------------------

/// Who submits an entry, and how.
#[derive(Clone, Copy)]
pub struct Submitter {
    /// Whose ring it is.
    pub thread: &'static Thread,
    /// The thread is about to wait for completions: whom it wakes may have its place.
    pub will_wait: bool,
}

/// What came of a submission.
pub enum Submitted {
    /// It is answered, or will be.
    Done,
    /// It will be, and the thread has lent its context along with it: nothing else is taken from it until that is back.
    Lent,
    /// The thread ends.
    Exit(i64),
}

/// Takes submissions of a thread until there are none, or one must wait for a free completion entry, and has each done by `submit`. At most a
/// queue full, so that a program that writes faster than we read does not keep us here. `Some(code)` if the thread asked to end.
#[inline(always)]
pub fn drain(
    by: Submitter,
    page: *const Ring,
    submit: impl Fn(Submitter, &Sqe) -> Submitted,
) -> Result<Option<i64>, TransportError> {
    let thread = by.thread;
    // SAFETY: the thread's own ring page, mapped while it lives.
    if unsafe { (*page).sq_tail.load(Ordering::Acquire) } == thread.sq_head.get() {
        return Ok(None);
    }
    consume(thread, page, by.will_wait, submit)
}

/// Entries that are done in place and taken together without a look at the clock.
const SHORT_QUEUE: u32 = 4;

/// The beginning of a NOP without flags; the rest of it is its number and 0 (K-28).
const PLAIN_NOP: u64 = Op::Nop as u64 | (SQE_VERSION as u64) << 8;

/// Is the entry at `from`, which begins with `first`, a NOP without flags, of which `request::decode` would say the same?
#[inline(always)]
fn is_plain_nop(from: *const Sqe, first: u64) -> bool {
    // SAFETY: an entry of the thread's own ring page, which is mapped while it lives.
    first == PLAIN_NOP && unsafe { is_rest_zero_64(from.cast()) }
}

// A NOP's completion is that of everything that was done and has nothing to say.
const _: () = {
    let Completion { status, cap, value, flags, badge, w } = Completion::OK;
    assert!(status == 0 && cap == 0 && value == 0 && flags == 0 && badge == 0 && w[0] == 0 && w[1] == 0);
};

/// Completes a NOP without flags, `user_data`, and those that follow it at `head`, `most` at most. Says how many followed.
#[inline(always)]
fn complete_nops(
    thread: &Thread,
    lease: &SqLease,
    page: *const Ring,
    head: u32,
    user_data: u64,
    most: u32,
) -> u32 {
    let mut ring = thread.ring.lock();
    ring.put_plain(0, user_data);
    let mut count = 0;
    while count < most
        && let Ok(verified) = verify(thread, lease)
    {
        let (from, [first, user_data]) = entry(page, head.wrapping_add(count), verified);
        if !is_plain_nop(from, first) {
            break;
        }
        count += 1;
        ring.put_plain(count, user_data);
    }
    ring.publish(count + 1);
    count
}

/// May one more entry be taken?
#[inline(always)]
fn verify(thread: &Thread, lease: &SqLease) -> Result<Verified, StaleSqConsumer> {
    if planted::is(Bug::StaleConsumer) {
        // The bug: a ring that nobody else has is asked.
        let other = SqOwner::new();
        return other.acquire_syscall(0).map_err(|_| StaleSqConsumer).and_then(|its| other.verify(&its));
    }
    thread.sq.verify(lease)
}

/// The entry at `head`, and its first two words; for one whose lease was found to hold.
#[inline(always)]
fn entry(page: *const Ring, head: u32, _verified: Verified) -> (*const Sqe, [u64; 2]) {
    // SAFETY: the thread's own ring page, mapped while it lives; each word is read once.
    unsafe {
        let from = &raw const (*page).sq[(head % SQ_ENTRIES) as usize];
        (from, from.cast::<[u64; 2]>().read_volatile())
    }
}

#[inline(never)]
fn consume(
    thread: &'static Thread,
    page: *const Ring,
    will_wait: bool,
    submit: impl Fn(Submitter, &Sqe) -> Submitted,
) -> Result<Option<i64>, TransportError> {
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
    if count > SHORT_QUEUE {
        irqoff::begins(percpu::this(), Path::Queue);
    }
    let mut left = count;
    let mut pacer = Pacer::of_entries();
    while left > 0 {
        if credits == 0 {
            credits = thread.ring.lock().credits();
            if credits == 0 {
                break;
            }
        }
        credits -= 1;
        left -= 1;
        let Ok(verified) = verify(thread, &lease) else {
            result = Err(TransportError::StaleSqConsumer);
            break;
        };
        // An entry that is something else by the time it is copied is that.
        let (from, [first, user_data]) = entry(page, head, verified);
        head = head.wrapping_add(1);
        if is_plain_nop(from, first) {
            let nops = 1 + complete_nops(thread, &lease, page, head, user_data, left.min(credits));
            (head, left, credits) = (head.wrapping_add(nops - 1), left - (nops - 1), credits - (nops - 1));
            continue;
        }
        let mut sqe = MaybeUninit::<Sqe>::uninit();
        // SAFETY: as above; a copy, because the program may change the entry while we look at it. Any bytes are an entry.
        let sqe = unsafe {
            snapshot_64(from.cast(), sqe.as_mut_ptr().cast());
            sqe.assume_init_ref()
        };
        match submit(Submitter { thread, will_wait }, sqe) {
            Submitted::Done => {}
            // Who has lent its context waits now.
            Submitted::Lent => break,
            Submitted::Exit(code) => {
                result = Ok(Some(code));
                break;
            }
        }
        // A queue full of sleeps is long, too (K-26).
        if left > 0 {
            pacer.step();
        }
    }
    thread.sq_head.set(head);
    // SAFETY: as above.
    unsafe { (*page).sq_head.store(head, Ordering::Release) };
    thread.sq.release(lease);
    result
}

/// Waits until `min` completions are there or `timeout_ns` are over. Says how many are there.
#[inline(always)]
pub fn wait(thread: &'static Thread, min: u32, timeout_ns: u64) -> u32 {
    let mut ring = thread.ring.lock();
    let unread = ring.unread();
    if unread >= min || timeout_ns == 0 {
        return unread;
    }
    ring.need = min;
    drop(ring);
    wait_for_more(thread, min, timeout_ns)
}

/// Completions that are there.
pub fn unread(thread: &Thread) -> u32 {
    thread.ring.lock().unread()
}

/// The end of [`wait`], whose completions are still missing: the ring says how many are needed.
#[inline(never)]
fn wait_for_more(thread: &'static Thread, min: u32, timeout_ns: u64) -> u32 {
    debug_assert!(!thread.deferred.any(), "a thread waits and has deferred work left");
    let deadline = if timeout_ns == u64::MAX { u64::MAX } else { time::deadline(timeout_ns) };
    if deadline != u64::MAX {
        time::set_timer(thread, TIMEOUT, 0, false, deadline);
    }
    let unread = loop {
        // Whoever ends a process says so before it wakes the threads; one that was not woken yet will see it here, or be woken.
        let ended = thread.body().process.is_ending();
        if !ended {
            dispatch::block_here();
        }
        let mut ring = thread.ring.lock();
        let unread = ring.unread();
        if unread >= min || ended || (deadline != u64::MAX && time::now_ns() >= deadline) {
            ring.need = 0;
            break unread;
        }
        ring.need = min;
        drop(ring);
        // Threads that are woken for nothing, one after the other, would keep interrupts waiting.
        crate::preempt::point();
    };
    if deadline != u64::MAX {
        time::cancel_timer(thread, TIMEOUT);
    }
    unread
}
