//! The calling thread's ring: entries in, completions out, each completion to the operation that waits for it.
//!
//! An operation has one of [`OPS_MAX`] slots from its submission until its completion is taken. The completion queue has as many entries, so
//! an operation never waits for a free completion, and completions that arrive while the thread waits for another one are kept in their
//! slots: nothing is lost, nothing grows.
//!
//! Only the thread itself uses its ring; [`Token`] is not `Send`.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use abi::{CQ_ENTRIES, Cqe, Op, Ring, SQ_ENTRIES, SQE_VERSION, Sqe, TransportError, flags};

use crate::{syscall, tls};

/// How many operations a thread can have in progress.
pub const OPS_MAX: u32 = CQ_ENTRIES;

/// `user_data` of entries without a completion; if one fails all the same, its completion is counted and dropped.
const QUIET_ID: u64 = u64::MAX;

/// Exit code of a thread whose ring the kernel no longer serves.
pub const EXIT_RING_BROKEN: i64 = 122;

/// How often in a row `cap_enter` may fail: some errors (`SqBusy`) ask to try again.
const REFUSALS_MAX: u32 = 1000;

/// The thread's side of a ring. All fields are the owner's alone.
pub(crate) struct Client {
    ring: Cell<*const Ring>,
    sq_tail: Cell<u32>,
    cq_head: Cell<u32>,
    /// One bit for each slot that is free.
    free: Cell<u32>,
    /// One bit for each slot whose completion is there.
    done: Cell<u32>,
    serial: Cell<u32>,
    /// Failures of quiet entries, and completions that no operation waits for.
    strays: Cell<u32>,
    /// The completion of each slot; until it is there, `user_data` is the number that the completion will carry.
    slots: [Cell<Cqe>; OPS_MAX as usize],
}

/// An operation in progress: [`wait`] or [`poll`] for it. Dropping the token does not free its slot, so a token whose operation is no longer
/// wanted goes to [`cancel`].
#[derive(Debug)]
#[must_use = "its slot is taken until it is waited for or cancelled"]
pub struct Token {
    id: u64,
    of_this_thread: PhantomData<*const ()>,
}

impl Token {
    fn slot(&self) -> usize {
        slot_of(self.id)
    }

    /// The number that the completion carries, and that `CANCEL` needs.
    pub fn user_data(&self) -> u64 {
        self.id
    }
}

fn slot_of(id: u64) -> usize {
    (id % OPS_MAX as u64) as usize
}

impl Client {
    /// The client of a new ring, whose indices are all 0.
    pub(crate) const fn new(ring: *const Ring) -> Client {
        Client {
            ring: Cell::new(ring),
            sq_tail: Cell::new(0),
            cq_head: Cell::new(0),
            free: Cell::new(u32::MAX),
            done: Cell::new(0),
            serial: Cell::new(0),
            strays: Cell::new(0),
            slots: [const {
                Cell::new(Cqe { user_data: 0, status: 0, cap: 0, value: 0, flags: 0, badge: 0, w: [0; 2] })
            }; OPS_MAX as usize],
        }
    }

    /// Sets the ring, which a thread learns when it starts.
    pub(crate) fn set_ring(&self, ring: *const Ring) {
        self.ring.set(ring);
    }

    #[inline(always)]
    fn ring(&self) -> &Ring {
        // SAFETY: the kernel maps a thread's ring before it starts and unmaps it after it has ended. What the kernel writes is
        // atomic, or is read only after an index said so.
        unsafe { &*self.ring.get() }
    }

    /// Takes a slot and writes `sqe` into the queue; the kernel sees it at the next [`Client::enter`].
    ///
    /// # Safety
    /// The entry's buffers must stay until the completion is there, and whatever it does must be sound.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, mut sqe: Sqe) -> Result<Token, TransportError> {
        let free = self.free.get();
        if free == 0 {
            return Err(TransportError::NoSpace);
        }
        let slot = free.trailing_zeros();
        self.free.set(free & (free - 1));
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        // 31 bits of serial number, so that no operation has the number of quiet ones.
        let id = ((serial & 0x7fff_ffff) as u64) << 32 | slot as u64;
        // SAFETY: `Cell` of this thread; only the one word is written because the rest is not read before the completion is there.
        unsafe { (*self.slots[slot as usize].as_ptr()).user_data = id };
        sqe.user_data = id;
        // SAFETY: the caller's promise.
        unsafe { self.write(sqe) };
        Ok(Token { id, of_this_thread: PhantomData })
    }

    /// Writes `sqe` at the tail. If the queue is full (of entries that want no completion), the kernel takes those first.
    ///
    /// # Safety
    /// As [`Client::push`].
    #[inline(always)]
    unsafe fn write(&self, mut sqe: Sqe) {
        let ring = self.ring();
        let tail = self.sq_tail.get();
        if tail.wrapping_sub(ring.sq_head.load(Ordering::Acquire)) >= SQ_ENTRIES {
            self.make_room(tail);
        }
        sqe.version = SQE_VERSION;
        let place = &raw const ring.sq[(tail % SQ_ENTRIES) as usize];
        // SAFETY: the kernel reads this slot only after the tail has passed it, and writes it never. The page is writable.
        unsafe { place.cast_mut().write(sqe) };
        self.sq_tail.set(tail.wrapping_add(1));
        ring.sq_tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Has the kernel take entries until there is room for one at `tail`.
    #[cold]
    #[inline(never)]
    fn make_room(&self, tail: u32) {
        while tail.wrapping_sub(self.ring().sq_head.load(Ordering::Acquire)) >= SQ_ENTRIES {
            self.enter(0, 0);
            self.take_all();
        }
    }

    /// Has the kernel take the entries, and waits.
    #[inline(always)]
    fn enter(&self, min_complete: u64, timeout_ns: u64) -> i64 {
        // SAFETY: `push` and `write` had the promise for every entry that is in the queue.
        unsafe { syscall::cap_enter(min_complete, timeout_ns) }
    }

    /// The next completion of the queue.
    #[inline(always)]
    fn take_one(&self) -> Option<Cqe> {
        let ring = self.ring();
        let head = self.cq_head.get();
        if head == ring.cq_tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: below the tail, so the kernel has written it and does not write it again before the head has passed it.
        let cqe = unsafe { (&raw const ring.cq[(head % CQ_ENTRIES) as usize]).read() };
        self.pass(head);
        Some(cqe)
    }

    /// The completion at `head` has been taken.
    #[inline(always)]
    fn pass(&self, head: u32) {
        self.cq_head.set(head.wrapping_add(1));
        self.ring().cq_head.store(head.wrapping_add(1), Ordering::Release);
    }

    /// Puts a completion into its slot.
    fn keep(&self, cqe: Cqe) {
        let (slot, bit) = (slot_of(cqe.user_data), 1 << slot_of(cqe.user_data));
        let expected = self.slots[slot].get().user_data;
        if cqe.user_data == expected && (self.free.get() | self.done.get()) & bit == 0 {
            self.slots[slot].set(cqe);
            self.done.set(self.done.get() | bit);
        } else {
            self.strays.set(self.strays.get().wrapping_add(1));
        }
    }

    fn take_all(&self) {
        while let Some(cqe) = self.take_one() {
            self.keep(cqe);
        }
    }

    /// The completion of `token` if it is there; its slot is free then.
    fn poll(&self, token: &Token) -> Option<Cqe> {
        self.take_all();
        let bit = 1 << token.slot();
        if self.done.get() & bit == 0 {
            return None;
        }
        self.done.set(self.done.get() & !bit);
        self.free.set(self.free.get() | bit);
        Some(self.slots[token.slot()].get())
    }

    /// Waits for `token` as long as it takes.
    #[inline(always)]
    pub(crate) fn wait(&self, token: Token) -> Cqe {
        // The usual case: no other operation is in progress, and the completion is there when the system call returns.
        if self.done.get() & (1 << token.slot()) == 0 {
            let ring = self.ring();
            let head = self.cq_head.get();
            if head == ring.cq_tail.load(Ordering::Acquire) {
                self.enter(1, u64::MAX);
            }
            let place = &raw const ring.cq[(head % CQ_ENTRIES) as usize];
            // SAFETY: looked at only if it is below the tail: see `take_one`.
            if head != ring.cq_tail.load(Ordering::Acquire) && unsafe { (*place).user_data } == token.id {
                // SAFETY: as above.
                let cqe = unsafe { place.read() };
                self.pass(head);
                self.free.set(self.free.get() | 1 << token.slot());
                return cqe;
            }
        }
        self.wait_slow(token)
    }

    #[cold]
    #[inline(never)]
    fn wait_slow(&self, token: Token) -> Cqe {
        let mut refusals = 0;
        loop {
            if let Some(cqe) = self.poll(&token) {
                return cqe;
            }
            // A wait without end fails only if the ring itself is broken; then no message can be printed any more.
            refusals = if self.enter(1, u64::MAX) < 0 { refusals + 1 } else { 0 };
            if refusals > REFUSALS_MAX {
                syscall::exit_thread(EXIT_RING_BROKEN);
            }
        }
    }

    /// See [`run_all`].
    ///
    /// # Safety
    /// As [`Client::push`], until this returns.
    unsafe fn run_all(&self, sqes: &[Sqe], done: &mut [Cqe]) -> Result<(), TransportError> {
        let ring = self.ring();
        let (count, free) = (sqes.len() as u32, self.free.get());
        let tail = self.sq_tail.get();
        let used = tail.wrapping_sub(ring.sq_head.load(Ordering::Acquire));
        // With no other operation in progress slot n is entry n, and completions are mostly there in the order of the entries.
        if free != u32::MAX || count == 0 || used + count > SQ_ENTRIES || done.len() < sqes.len() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_all_singly(sqes, done) };
        }
        let first = self.serial.get().wrapping_add(1) & 0x7fff_ffff;
        let first = if first > 0x7fff_ffff - SQ_ENTRIES { 1 } else { first };
        self.serial.set(first + count - 1);
        self.free.set(u32::MAX.checked_shl(count).unwrap_or(0));
        let ids = u64::from(first) << 32;
        // The numbers of neighbouring entries differ by one in both halves: serial and slot.
        const STEP: u64 = 1 << 32 | 1;
        let mut id = ids;
        for (at, sqe) in (tail..).zip(sqes) {
            let place = (&raw const ring.sq[(at % SQ_ENTRIES) as usize]).cast_mut();
            // SAFETY: there is room, so the kernel does not read this slot before the tail has passed it. The page is writable.
            unsafe { place.write(Sqe { user_data: id, version: SQE_VERSION, ..*sqe }) };
            id += STEP;
        }
        self.sq_tail.set(tail.wrapping_add(count));
        ring.sq_tail.store(tail.wrapping_add(count), Ordering::Release);
        self.enter(count.into(), u64::MAX);
        let head = self.cq_head.get();
        let there = ring.cq_tail.load(Ordering::Acquire).wrapping_sub(head).min(count);
        let (mut taken, mut id) = (0, ids);
        for (at, place) in (head..).zip(done.iter_mut()).take(there as usize) {
            // SAFETY: below the tail: see `take_one`.
            let cqe = unsafe { (&raw const ring.cq[(at % CQ_ENTRIES) as usize]).read() };
            if cqe.user_data != id {
                break;
            }
            *place = cqe;
            taken += 1;
            id += STEP;
        }
        self.cq_head.set(head.wrapping_add(taken));
        ring.cq_head.store(head.wrapping_add(taken), Ordering::Release);
        self.free.set(self.free.get() | !u32::MAX.checked_shl(taken).unwrap_or(0));
        if taken < count {
            self.wait_rest(ids, STEP, taken, &mut done[..sqes.len()]);
        }
        Ok(())
    }

    /// The rest of [`Client::run_all`]: completions that come in another order, or later.
    #[cold]
    #[inline(never)]
    fn wait_rest(&self, ids: u64, step: u64, from: u32, done: &mut [Cqe]) {
        let id_of = |at: u32| ids + u64::from(at) * step;
        for at in from..done.len() as u32 {
            // SAFETY: `Cell` of this thread, as in `push`: now completions go through the slots.
            unsafe { (*self.slots[at as usize].as_ptr()).user_data = id_of(at) };
        }
        for (at, place) in (0..).zip(done.iter_mut()).skip(from as usize) {
            *place = self.wait(Token { id: id_of(at), of_this_thread: PhantomData });
        }
    }

    /// As [`Client::run_all`], beside other operations that are in progress.
    ///
    /// # Safety
    /// As [`Client::push`], until this returns.
    #[cold]
    #[inline(never)]
    unsafe fn run_all_singly(&self, sqes: &[Sqe], done: &mut [Cqe]) -> Result<(), TransportError> {
        if self.free.get().count_ones() < sqes.len() as u32 || done.len() < sqes.len() {
            return Err(TransportError::NoSpace);
        }
        let mut tokens = [const { None }; OPS_MAX as usize];
        for (token, sqe) in tokens.iter_mut().zip(sqes) {
            // SAFETY: the caller's promise.
            *token = Some(unsafe { self.push(*sqe)? });
        }
        for (token, place) in tokens.into_iter().flatten().zip(done) {
            *place = self.wait(token);
        }
        Ok(())
    }

    /// Submits `sqe` and waits for it.
    ///
    /// # Safety
    /// As [`Client::push`], until this returns.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, sqe: Sqe) -> Cqe {
        // SAFETY: the caller's promise.
        match unsafe { self.push(sqe) } {
            Ok(token) => self.wait(token),
            Err(error) => Cqe { status: error as i32, ..Cqe::default() },
        }
    }
}

/// Submits `sqe` and waits for its completion.
///
/// # Safety
/// The buffers that the entry names must be the caller's until this returns, and the operation must be sound.
#[inline(always)]
pub unsafe fn run(sqe: Sqe) -> Cqe {
    // SAFETY: the caller's promise.
    unsafe { tls::current().client.run(sqe) }
}

/// Submits `sqes`, by one system call, and waits for all of them: `done` gets their completions, in the order of the entries. `NoSpace`, and
/// nothing is submitted, if there are more than the thread may have in progress, or than `done` has places.
///
/// # Safety
/// As [`run`], for each of them.
pub unsafe fn run_all(sqes: &[Sqe], done: &mut [Cqe]) -> Result<(), TransportError> {
    // SAFETY: the caller's promise.
    unsafe { tls::current().client.run_all(sqes, done) }
}

/// Submits `sqe`; the kernel has taken it when this returns. `NoSpace` if [`OPS_MAX`] operations are in progress.
///
/// # Safety
/// As [`run`], until the token has been waited for.
pub unsafe fn start(sqe: Sqe) -> Result<Token, TransportError> {
    let client = &tls::current().client;
    // SAFETY: the caller's promise.
    let token = unsafe { client.push(sqe)? };
    client.enter(0, 0);
    Ok(token)
}

/// As [`start`], but leaves the entry in the queue: the kernel takes it at the thread's next system call for a ring operation.
///
/// # Safety
/// As [`start`].
#[inline]
pub unsafe fn queue(sqe: Sqe) -> Result<Token, TransportError> {
    // SAFETY: the caller's promise.
    unsafe { tls::current().client.push(sqe) }
}

/// Submits `sqe` with [`flags::QUIET`]: no completion if it succeeds; a failure is only counted ([`strays`]).
///
/// # Safety
/// As [`run`]; buffers must stay until this returns.
pub unsafe fn run_quiet(mut sqe: Sqe) {
    let client = &tls::current().client;
    sqe.flags |= flags::QUIET;
    sqe.user_data = QUIET_ID;
    // SAFETY: the caller's promise; a quiet operation ends at once, so its buffers are not needed after `enter`.
    unsafe { client.write(sqe) };
    client.enter(0, 0);
    client.take_all();
}

/// As [`run_quiet`], but leaves the entry in the queue for the thread's next system call.
///
/// # Safety
/// As [`run`], until the thread has waited for something.
#[inline(always)]
pub unsafe fn queue_quiet(mut sqe: Sqe) {
    sqe.flags |= flags::QUIET;
    sqe.user_data = QUIET_ID;
    // SAFETY: the caller's promise.
    unsafe { tls::current().client.write(sqe) };
}

/// The completion of `token` if it is there, which uses the token up; otherwise the token again. Makes no system call.
pub fn poll(token: Token) -> Result<Cqe, Token> {
    tls::current().client.poll(&token).ok_or(token)
}

/// Waits for `token` as long as it takes.
#[inline]
pub fn wait(token: Token) -> Cqe {
    tls::current().client.wait(token)
}

/// Waits for `token` for `timeout_ns` at most; the token again if the time is over.
///
/// Completions of other operations that arrive meanwhile make it look at the clock, if the process has a timer; otherwise
/// they start the time again.
pub fn wait_timeout(token: Token, timeout_ns: u64) -> Result<Cqe, Token> {
    let client = &tls::current().client;
    if let Some(cqe) = client.poll(&token) {
        return Ok(cqe);
    }
    let deadline = crate::time::deadline(timeout_ns);
    let mut left = timeout_ns;
    loop {
        let count = client.enter(1, left);
        if let Some(cqe) = client.poll(&token) {
            return Ok(cqe);
        }
        left = deadline.map_or(left, crate::time::left_ns);
        // No completion came, so the time is over; or others came, and took the rest of it.
        if count <= 0 || left == 0 {
            return Err(token);
        }
    }
}

/// Waits until some operation of this thread has completed; [`poll`] says which one. Returns at once if none is in progress.
pub fn wait_any() {
    let client = &tls::current().client;
    client.take_all();
    if client.done.get() == 0 && client.free.get() != u32::MAX {
        client.enter(1, u64::MAX);
    }
}

/// Withdraws an operation and waits for its completion: [`TransportError::Cancelled`], or its result if that was faster. When this returns,
/// the kernel no longer uses its buffers.
pub fn cancel(token: Token) -> Cqe {
    let sqe = Sqe { op: Op::Cancel as u8, arg0: token.user_data(), ..Sqe::default() };
    // SAFETY: names no memory. With every slot taken the withdrawal goes without one, and the wait below sees its effect.
    match unsafe { tls::current().client.push(sqe) } {
        Ok(cancel) => drop(wait(cancel)),
        // SAFETY: names no memory.
        Err(_) => unsafe { run_unanswered(sqe) },
    }
    wait(token)
}

/// Submits an entry whose completion is only counted.
///
/// # Safety
/// As [`run`].
unsafe fn run_unanswered(mut sqe: Sqe) {
    let client = &tls::current().client;
    sqe.user_data = QUIET_ID;
    // SAFETY: the caller's promise.
    unsafe { client.write(sqe) };
    client.enter(0, 0);
    client.take_all();
}

/// How many completions of this thread belonged to no operation: failures of quiet ones.
pub fn strays() -> u32 {
    tls::current().client.strays.get()
}

/// Where this thread's ring is, for programs that want to write entries themselves (fuzzers). They may use none of rt's operations
/// on this thread until they have taken all their completions and told [`resync`].
pub fn raw() -> *const Ring {
    tls::current().client.ring.get()
}

/// After use of [`raw`]: rt goes on where the indices are now.
pub fn resync() {
    let client = &tls::current().client;
    let ring = client.ring();
    client.sq_tail.set(ring.sq_tail.load(Ordering::Acquire));
    client.cq_head.set(ring.cq_head.load(Ordering::Acquire));
}
