//! Ring operations: each is decoded (everything checked, nothing changed) and then done.

use crate::arch::percpu;
use crate::context::loan;
use crate::endpoint::{Answer, Buffer, Call, Endpoint, Message};
use crate::object::{Cap, Object, RevokeError, Waitable};
use crate::process::{BREATH_SLOTS, MessageCharge, Process};
use crate::ring::{self, Completion};
use crate::silence::{self, Path};
use crate::thread::Thread;
use crate::{chores, console, interrupt, methods, park, sched, time};
use abi::{
    CapId, Exception, Interface, MAX_MESSAGE_BYTES, Op, SQE_VERSION, Sqe, TransportError, cqe_flags, flags,
    rights,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::captable::CapTable;

/// What came of a submission.
pub enum Outcome {
    /// It is answered, or will be.
    Done,
    /// It will be, and the thread has lent its context along with it: nothing else is taken from it until that is back.
    Lent,
    /// The thread ends.
    Exit(i64),
}

/// What a method or operation says.
pub enum Reply {
    /// Now.
    Now(Completion),
    /// Later, by a waiter that was registered.
    Later,
    /// The same, and the thread has lent its context.
    Lent,
    /// Never: the thread ends.
    Exit(i64),
}

impl From<Completion> for Reply {
    fn from(completion: Completion) -> Reply {
        Reply::Now(completion)
    }
}

impl From<TransportError> for Reply {
    fn from(error: TransportError) -> Reply {
        Reply::Now(Completion::error(error))
    }
}

impl From<Option<Completion>> for Reply {
    fn from(completion: Option<Completion>) -> Reply {
        completion.map_or(Reply::Later, Reply::Now)
    }
}

/// Submissions so far, by operation; the last counts what is none.
pub static SUBMITTED: [AtomicU64; Op::COUNT + 1] = [const { AtomicU64::new(0) }; Op::COUNT + 1];

/// Operation, version and flags of an entry, as one number.
const fn shape(op: Op, flags: u16) -> u32 {
    op as u32 | (SQE_VERSION as u32) << 8 | (flags as u32) << 16
}

const CALL_WORDS: u32 = shape(Op::Call, flags::INLINE);
const RECV: u32 = shape(Op::Recv, 0);
const RETURN_WORDS: u32 = shape(Op::Return, flags::INLINE | flags::QUIET);
const PARK: u32 = shape(Op::Park, 0);
const UNPARK: u32 = shape(Op::Unpark, flags::QUIET);
const SLEEP: u32 = shape(Op::Sleep, 0);
const YIELD: u32 = shape(Op::Yield, 0);

/// Does what `sqe` says for the current thread. What every call, answer, park, sleep and yield comes down to is tried first, without ceremony;
/// whatever is not that simple has changed nothing, and goes the way of everything.
#[inline(always)]
pub fn submit(thread: &'static Thread, sqe: &Sqe, will_wait: bool) -> Outcome {
    let process = &thread.body().process;
    match shape_of(sqe) {
        CALL_WORDS if call_words(thread, process, sqe, will_wait) => {
            tally(Op::Call);
            called(thread)
        }
        RECV if wait_for_call(thread, process, sqe) => {
            tally(Op::Recv);
            Outcome::Done
        }
        RETURN_WORDS if answer_words(thread, process, sqe, will_wait) => {
            tally(Op::Return);
            Outcome::Done
        }
        PARK if sqe.arg0 <= u64::from(u32::MAX) && may(process, sqe.cap, &Object::ParkSpace) => {
            tally(Op::Park);
            let outcome = park::park(thread, sqe.user_data, sqe.addr, sqe.arg0 as u32, sqe.arg1);
            if let Some(completion) = &outcome {
                ring::post_now(thread, sqe.user_data, completion);
            }
            Outcome::Done
        }
        UNPARK if may(process, sqe.cap, &Object::ParkSpace) => {
            tally(Op::Unpark);
            let completion = park::unpark(thread, sqe.addr, sqe.arg0, will_wait);
            if completion.status != 0 {
                ring::post_now(thread, sqe.user_data, &completion);
            }
            Outcome::Done
        }
        SLEEP if sqe.arg0 != 0 && may(process, sqe.cap, &Object::Timer) => {
            tally(Op::Sleep);
            if let Some(completion) = &sleep(thread, process, sqe) {
                ring::post_now(thread, sqe.user_data, completion);
            }
            Outcome::Done
        }
        YIELD => {
            tally(Op::Yield);
            sched::yield_now();
            ring::post_now(thread, sqe.user_data, &Completion::OK);
            Outcome::Done
        }
        _ => submit_any(thread, sqe, will_wait),
    }
}

/// Does capability `id` name `object`, which has no state, and may it be used? Nobody revokes these, so what it is now is what it stays.
#[inline(always)]
fn may(process: &Process, id: u32, object: &Object) -> bool {
    let caps = process.caps.lock();
    caps.get(CapId(id)).is_some_and(|cap| cap.rights & rights::CALL != 0 && cap.is(object))
}

#[inline(always)]
fn shape_of(sqe: &Sqe) -> u32 {
    u32::from(sqe.op) | u32::from(sqe.version) << 8 | u32::from(sqe.flags) << 16
}

#[inline(always)]
fn tally(op: Op) {
    SUBMITTED[op as usize].fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn submit_any(thread: &'static Thread, sqe: &Sqe, will_wait: bool) -> Outcome {
    let begins = silence::begins(percpu::this(), Path::Operation(u32::from(sqe.op) * 10_000));
    let reply = match Op::from_raw(sqe.op) {
        _ if sqe.version != SQE_VERSION => TransportError::UnsupportedSqeVersion.into(),
        None => ring::end_lease(thread, sqe).into(),
        Some(Op::Nop) => nop(sqe),
        Some(op) => {
            tally(op);
            let reply = perform(thread, op, sqe, will_wait, begins).unwrap_or_else(Reply::from);
            // Before it is answered: who hears that something is gone finds it gone.
            chores::tend(thread);
            reply
        }
    };
    if begins {
        sched::end_silence();
    }
    match reply {
        Reply::Now(completion) => {
            let quiet = sqe.flags & flags::QUIET != 0 && completion.status == 0;
            if !quiet {
                ring::post_now(thread, sqe.user_data, &completion);
            }
            Outcome::Done
        }
        Reply::Later => Outcome::Done,
        Reply::Lent => Outcome::Lent,
        Reply::Exit(code) => Outcome::Exit(code),
    }
}

fn nop(sqe: &Sqe) -> Reply {
    if sqe.flags & !flags::QUIET != 0 || sqe.cap != 0 {
        return TransportError::BadFlags.into();
    }
    Completion::OK.into()
}

type Decoded<T> = Result<T, TransportError>;

/// Which flags each operation has.
fn allowed_flags(op: Op) -> u16 {
    match op {
        Op::Call => flags::INLINE | flags::MOVE,
        Op::Return => flags::INLINE | flags::MOVE | flags::QUIET,
        Op::Unpark | Op::Write | Op::Release | Op::Nop => flags::QUIET,
        _ => 0,
    }
}

#[inline(always)]
fn perform(thread: &'static Thread, op: Op, sqe: &Sqe, will_wait: bool, begins: bool) -> Decoded<Reply> {
    if sqe.flags & !allowed_flags(op) != 0 {
        return Err(TransportError::BadFlags);
    }
    let process = &thread.body().process;
    match op {
        Op::Nop => Ok(nop(sqe)),
        Op::Yield => {
            sched::yield_now();
            Ok(Completion::OK.into())
        }
        Op::Cancel => Ok(cancel(thread, sqe.arg0).into()),
        Op::Copy => copy(process, sqe),
        Op::Release | Op::Revoke => {
            let reply = if op == Op::Release { release(process, sqe) } else { revoke(process, sqe) };
            breathe(begins);
            reply
        }
        Op::Call => call(thread, process, sqe, will_wait, begins),
        Op::Recv => recv(thread, process, sqe),
        Op::Return => answer(thread, process, sqe, will_wait),
        Op::Park | Op::Unpark | Op::Sleep | Op::Write | Op::Read => {
            simple(thread, process, op, sqe, will_wait)
        }
    }
}

/// A pause at the end of an operation: of one that began the stretch without interrupts, [`submit_any`] ends that next.
#[inline(always)]
fn breathe(begins: bool) {
    if begins {
        interrupt::breathe_at_end();
    } else {
        interrupt::breathe();
    }
}

/// A capability as it was found, usable.
struct Found {
    object: Object,
    rights: u16,
    badge: u32,
    epoch: u64,
}

/// The capability with number `id`.
fn resolve(process: &Process, id: u32) -> Decoded<Found> {
    let caps = process.caps.lock();
    let cap = caps.get(CapId(id)).ok_or(TransportError::BadCap)?;
    let object = cap.object().map_err(|_| TransportError::Revoked)?.clone();
    Ok(Found { object, rights: cap.rights, badge: cap.badge, epoch: cap.epoch() })
}

fn simple(thread: &'static Thread, process: &Process, op: Op, sqe: &Sqe, will_wait: bool) -> Decoded<Reply> {
    // All of these objects are without state and nobody revokes them, so what it is now is what it stays.
    let right = if op == Op::Read { rights::RECV } else { rights::CALL };
    let interface = {
        let caps = process.caps.lock();
        let cap = caps.get(CapId(sqe.cap)).ok_or(TransportError::BadCap)?;
        let interface = cap.object().map_err(|_| TransportError::Revoked)?.interface();
        if cap.rights & right == 0 {
            return Err(TransportError::NotPermitted);
        }
        interface
    };
    match (op, interface) {
        (Op::Park, Interface::ParkSpace) => {
            let expected = u32::try_from(sqe.arg0).map_err(|_| TransportError::BadFlags)?;
            Ok(park::park(thread, sqe.user_data, sqe.addr, expected, sqe.arg1).into())
        }
        (Op::Unpark, Interface::ParkSpace) => Ok(park::unpark(thread, sqe.addr, sqe.arg0, will_wait).into()),
        (Op::Sleep, Interface::Timer) => Ok(sleep(thread, process, sqe).into()),
        (Op::Write, Interface::Console) => Ok(console::write(thread, sqe.addr, sqe.len).into()),
        (Op::Read, Interface::Console) => {
            Ok(console::read(thread, sqe.user_data, sqe.result_addr, sqe.result_len).into())
        }
        _ => Err(TransportError::NotPermitted),
    }
}

#[inline(always)]
fn sleep(thread: &'static Thread, process: &Process, sqe: &Sqe) -> Option<Completion> {
    if sqe.arg0 == 0 {
        return Some(Completion::OK);
    }
    if !process.ledger.take_sleep() {
        return Some(Completion::error(TransportError::NoSpace));
    }
    let Some(waiter) = ring::accept(thread, sqe.user_data, Waitable::Sleep) else {
        process.ledger.release_sleep();
        return Some(Completion::error(TransportError::NoSpace));
    };
    time::set_timer(thread, waiter.op as usize, waiter.sequence, false, time::deadline(sqe.arg0));
    None
}

fn cancel(thread: &'static Thread, user_data: u64) -> Completion {
    let Some((waiter, on)) = ring::pending_on(thread, user_data) else { return Completion::value(0) };
    if !crate::object::withdraw(&waiter, &on) {
        return Completion::value(0);
    }
    crate::object::cancelled(&waiter);
    Completion::value(1)
}

fn release(process: &Process, sqe: &Sqe) -> Decoded<Reply> {
    let mut caps = process.caps.lock();
    let cap = caps.remove(CapId(sqe.cap)).ok_or(TransportError::BadCap)?;
    drop(caps);
    gone(process, cap);
    Ok(Completion::OK.into())
}

/// A capability has left the table of a process. If it was the last by which that could receive from an endpoint, it answers nobody there any more.
fn gone(process: &Process, cap: Cap) {
    let endpoint = cap.served().cloned();
    drop(cap);
    let Some(endpoint) = endpoint else { return };
    let serves_still =
        |(_, other): (CapId, &Cap)| other.served().is_some_and(|served| Arc::ptr_eq(served, &endpoint));
    let mut from = 0;
    loop {
        let caps = process.caps.lock();
        if caps.iter_between(from, from + BREATH_SLOTS).any(serves_still) {
            return;
        }
        from += BREATH_SLOTS;
        if from >= caps.slots() {
            break;
        }
        drop(caps);
        interrupt::breathe();
    }
    endpoint.process_left((process.pid, process.generation));
}

fn copy(process: &Process, sqe: &Sqe) -> Decoded<Reply> {
    let wanted = u16::try_from(sqe.arg0).map_err(|_| TransportError::BadFlags)?;
    let badge = u32::try_from(sqe.arg1).map_err(|_| TransportError::BadFlags)?;
    let mut caps = process.caps.lock();
    let slot = caps.reserve().map_err(|_| TransportError::NoSpace)?;
    match passable(caps.get(CapId(sqe.cap)), wanted, badge) {
        Ok(cap) => {
            let id = caps.commit(slot, cap);
            Ok(Completion { cap: id.0, ..Completion::OK }.into())
        }
        Err(error) => {
            caps.abort(slot);
            Err(error)
        }
    }
}

/// A copy of `cap` with rights `wanted`, if its holder may pass it on.
fn passable(cap: Option<&Cap>, wanted: u16, badge: u32) -> Decoded<Cap> {
    let cap = cap.ok_or(TransportError::BadCap)?;
    let object = cap.object().map_err(|_| TransportError::Revoked)?;
    if wanted & !rights::KNOWN != 0 {
        return Err(TransportError::BadFlags);
    }
    if cap.rights & rights::GRANT == 0 || wanted & !cap.rights != 0 || !object.is_transferable() {
        return Err(TransportError::NotPermitted);
    }
    // A badge says who calls; whoever has one cannot take another's.
    if badge != 0 && cap.badge != 0 && badge != cap.badge {
        return Err(TransportError::NotPermitted);
    }
    Ok(cap.derive(wanted, badge))
}

fn revoke(process: &Process, sqe: &Sqe) -> Decoded<Reply> {
    let mut caps = process.caps.lock();
    let cap = caps.get_mut(CapId(sqe.cap)).ok_or(TransportError::BadCap)?;
    cap.object().map_err(|_| TransportError::Revoked)?;
    if cap.rights & rights::REVOKE == 0 {
        return Err(TransportError::NotPermitted);
    }
    cap.revoke_others((process.pid, process.generation)).map_err(|error| match error {
        RevokeError::Revoked => TransportError::Revoked,
        RevokeError::Never => TransportError::NotPermitted,
    })?;
    let endpoint =
        if let Ok(Object::Endpoint(endpoint)) = cap.object() { Some(endpoint.clone()) } else { None };
    drop(caps);
    if let Some(endpoint) = endpoint {
        endpoint.expel();
    }
    Ok(Completion::OK.into())
}

/// The message that an entry carries.
fn message(process: &Arc<Process>, sqe: &Sqe) -> Decoded<Message> {
    if sqe.flags & flags::INLINE != 0 {
        if sqe.addr != 0 || sqe.len != 0 {
            return Err(TransportError::BadFlags);
        }
        return Ok(Message::Inline([sqe.arg0, sqe.arg1]));
    }
    let length = sqe.len as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    let charge = MessageCharge::new(process, length as u32).ok_or(TransportError::NoSpace)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| TransportError::NoSpace)?;
    bytes.resize(length, 0);
    process.space.read(sqe.addr, &mut bytes).map_err(|_| TransportError::BadAddress)?;
    Ok(Message::Bytes { bytes, _charge: charge })
}

/// The capability that an entry passes along. It is moved out of the table only after `rest` has said that the rest is good.
fn passenger<T>(
    process: &Process,
    sqe: &Sqe,
    rest: impl FnOnce() -> Decoded<T>,
) -> Decoded<(Option<Cap>, T)> {
    let is_moved = sqe.flags & flags::MOVE != 0;
    if sqe.xfer == 0 {
        return if is_moved { Err(TransportError::BadFlags) } else { Ok((None, rest()?)) };
    }
    let mut caps = process.caps.lock();
    let id = CapId(sqe.xfer);
    let held = caps.get(id).map_or(0, |cap| cap.rights);
    let cap = passable(caps.get(id), held, 0)?;
    let value = rest()?;
    let moved = if is_moved { caps.remove(id) } else { None };
    drop(caps);
    if let Some(moved) = moved {
        gone(process, moved);
    }
    Ok((Some(cap), value))
}

/// Does an entry whose message is words carry nothing else?
#[inline(always)]
fn is_bare(sqe: &Sqe) -> bool {
    sqe.addr | u64::from(sqe.len | sqe.xfer) == 0
}

/// The endpoint that capability `id` names, if it is one that has the right `right` and was not revoked.
#[inline(always)]
fn endpoint_of(caps: &CapTable<Cap>, id: u32, right: u16) -> Option<(&Arc<Endpoint>, &Cap)> {
    let cap = caps.get(CapId(id))?;
    Some((cap.endpoint(right)?, cap))
}

/// The usual call: words, to an endpoint where a receiver waits. `false` if it is not that simple; then nothing has happened.
#[inline(always)]
fn call_words(thread: &'static Thread, process: &Process, sqe: &Sqe, will_wait: bool) -> bool {
    if !is_bare(sqe) || sqe.method > u32::from(u16::MAX) || sqe.result_len as usize > MAX_MESSAGE_BYTES {
        return false;
    }
    let reply = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let caps = process.caps.lock();
    let Some((endpoint, cap)) = endpoint_of(&caps, sqe.cap, rights::CALL) else { return false };
    let Some(met) = endpoint.meet(thread, sqe.user_data, cap.epoch(), reply) else { return false };
    let (endpoint, badge) = (endpoint.clone(), cap.badge);
    drop(caps);
    let completion = Completion {
        flags: sqe.method << cqe_flags::METHOD_SHIFT | cqe_flags::INLINE,
        badge,
        value: met.token,
        w: [sqe.arg0, sqe.arg1],
        ..Completion::OK
    };
    endpoint.deliver_words(thread, &met, &completion, will_wait);
    true
}

fn call(
    thread: &'static Thread,
    process: &Arc<Process>,
    sqe: &Sqe,
    will_wait: bool,
    begins: bool,
) -> Decoded<Reply> {
    let Found { object, rights: held, badge, epoch } = resolve(process, sqe.cap)?;
    if held & rights::CALL == 0 {
        return Err(TransportError::NotPermitted);
    }
    let Object::Endpoint(endpoint) = object else {
        if sqe.flags != 0 || sqe.xfer != 0 {
            return Err(TransportError::BadFlags);
        }
        let method = sqe.method.min(99);
        let what = u32::from(sqe.op) * 10_000 + object.interface() as u32 * 100 + method;
        silence::note(percpu::this(), Path::Operation(what));
        let reply = methods::call(thread, process, &object, held, epoch, sqe);
        // Methods may be long, and a queue is full of them before anybody else's turn comes.
        breathe(begins);
        return reply;
    };
    let method = u16::try_from(sqe.method).map_err(|_| TransportError::BadFlags)?;
    if sqe.result_len as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    let message = message(process, sqe)?;
    let reply = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let waits_on = Waitable::Call(endpoint.clone());
    let accept = || ring::accept(thread, sqe.user_data, waits_on).ok_or(TransportError::NoSpace);
    let (cap, caller) = passenger(process, sqe, accept)?;
    endpoint.call(thread, Call { caller, reply, method, badge, epoch, message, cap }, will_wait);
    Ok(match called(thread) {
        Outcome::Lent => Reply::Lent,
        _ => Reply::Later,
    })
}

/// A call was made: has it taken the thread's context along?
#[inline(always)]
fn called(thread: &'static Thread) -> Outcome {
    if thread.lent.load(Ordering::Relaxed) != 0 {
        return Outcome::Lent;
    }
    if thread.context().is_some() {
        loan::regret(thread);
    }
    Outcome::Done
}

/// The endpoint that capability `id` may receive from, and the capability's epoch.
fn served(process: &Process, id: u32) -> Decoded<(Arc<Endpoint>, u64)> {
    match resolve(process, id)? {
        Found { object: Object::Endpoint(endpoint), rights: held, epoch, .. } if held & rights::RECV != 0 => {
            Ok((endpoint, epoch))
        }
        _ => Err(TransportError::NotPermitted),
    }
}

/// The usual RECV: nobody's time is borrowed, and no call waits. `false` if it is not that simple; then nothing has happened.
#[inline(always)]
fn wait_for_call(thread: &'static Thread, process: &Process, sqe: &Sqe) -> bool {
    if sqe.result_len as usize > MAX_MESSAGE_BYTES || thread.borrows.load(Ordering::Relaxed) {
        return false;
    }
    let buffer = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let caps = process.caps.lock();
    let Some((endpoint, cap)) = endpoint_of(&caps, sqe.cap, rights::RECV) else { return false };
    endpoint.wait_for_call(thread, sqe.user_data, buffer, cap.epoch())
}

fn recv(thread: &'static Thread, process: &Process, sqe: &Sqe) -> Decoded<Reply> {
    if sqe.result_len as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    if thread.borrows.load(Ordering::Relaxed)
        && let Some(ctx) = thread.context()
    {
        // Who takes the next call does not work on the account of the last one.
        loan::leave(ctx, &thread.reference());
    }
    let buffer = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let (endpoint, epoch) = served(process, sqe.cap)?;
    Ok(endpoint.recv(thread, sqe.user_data, buffer, epoch).into())
}

/// The usual answer: words, and nobody is told that it was given. `false` if it is not that simple; then nothing has happened.
#[inline(always)]
fn answer_words(thread: &'static Thread, process: &Process, sqe: &Sqe, will_wait: bool) -> bool {
    if !is_bare(sqe) || sqe.method != 0 {
        return false;
    }
    let caps = process.caps.lock();
    let Some((endpoint, _)) = endpoint_of(&caps, sqe.cap, rights::RECV) else { return false };
    let Some(flight) = endpoint.take(&thread.reference(), sqe.result_addr) else { return false };
    drop(caps);
    flight.answer_words([sqe.arg0, sqe.arg1], will_wait);
    true
}

fn answer(thread: &'static Thread, process: &Arc<Process>, sqe: &Sqe, will_wait: bool) -> Decoded<Reply> {
    let (endpoint, _) = served(process, sqe.cap)?;
    let exception = match i32::try_from(sqe.method) {
        Ok(0) => None,
        Ok(raw) => Some(Exception::from_raw(raw).ok_or(TransportError::BadFlags)?),
        Err(_) => return Err(TransportError::BadFlags),
    };
    let message = message(process, sqe)?;
    let take = || endpoint.take(&thread.reference(), sqe.result_addr).ok_or(TransportError::BadToken);
    let (cap, flight) = passenger(process, sqe, take)?;
    flight.answer(Answer { exception, message, cap }, will_wait);
    Ok(Completion::OK.into())
}
