//! Ring operations: each is decoded (everything checked, nothing changed) and then done.

use crate::context::loan;
use crate::endpoint::{Answer, Buffer, Call, Endpoint, Message};
use crate::object::{Cap, Object, RevokeError, Waitable};
use crate::process::{MessageCharge, Process};
use crate::ring::{self, Completion};
use crate::thread::Thread;
use crate::{console, interrupt, methods, park, sched, time};
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

/// Does what `sqe` says for the current thread.
pub fn submit(thread: &'static Thread, sqe: &Sqe, will_wait: bool) -> Outcome {
    let reply = match Op::from_raw(sqe.op) {
        _ if sqe.version != SQE_VERSION => TransportError::UnsupportedSqeVersion.into(),
        None => TransportError::UnknownOp.into(),
        Some(Op::Nop) => nop(sqe),
        Some(op) => {
            SUBMITTED[op as usize].fetch_add(1, Ordering::Relaxed);
            perform(thread, op, sqe, will_wait).unwrap_or_else(Reply::from)
        }
    };
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

fn perform(thread: &'static Thread, op: Op, sqe: &Sqe, will_wait: bool) -> Decoded<Reply> {
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
            // An endpoint may have closed, with a thousand calls in it.
            interrupt::breathe();
            reply
        }
        Op::Call => call(thread, process, sqe, will_wait),
        Op::Recv => recv(thread, process, sqe),
        Op::Return => answer(thread, process, sqe, will_wait),
        Op::Park | Op::Unpark | Op::Sleep | Op::Write | Op::Read => {
            simple(thread, process, op, sqe, will_wait)
        }
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
    time::set_timer(thread, waiter.op as usize, waiter.sequence, time::deadline(sqe.arg0));
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
    let left = left_by(&caps, &cap);
    drop(caps);
    drop(cap);
    if let Some(endpoint) = left {
        endpoint.process_left((process.pid, process.generation));
    }
    Ok(Completion::OK.into())
}

/// The endpoint that a process could receive from by `cap` only, which has left its table.
fn left_by(caps: &CapTable<Cap>, cap: &Cap) -> Option<Arc<Endpoint>> {
    let endpoint = cap.served()?;
    let serves_still = |other: &Cap| other.served().is_some_and(|served| Arc::ptr_eq(served, endpoint));
    if caps.iter().any(|(_, other)| serves_still(other)) { None } else { Some(endpoint.clone()) }
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
    if wanted & !rights::ALL != 0 {
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
    let left = moved.as_ref().and_then(|moved| left_by(&caps, moved));
    drop(caps);
    drop(moved);
    if let Some(endpoint) = left {
        endpoint.process_left((process.pid, process.generation));
    }
    Ok((Some(cap), value))
}

/// Does an entry carry two words and nothing else?
#[inline]
fn is_words(sqe: &Sqe) -> bool {
    sqe.flags & !flags::QUIET == flags::INLINE && sqe.addr | u64::from(sqe.len | sqe.xfer) == 0
}

/// Runs `then` with the endpoint that capability `id` names, if it is one that has the right `right` and was not revoked.
#[inline(always)]
fn with_endpoint<T>(
    process: &Process,
    id: u32,
    right: u16,
    then: impl FnOnce(&Arc<Endpoint>, &Cap) -> Option<T>,
) -> Option<T> {
    let caps = process.caps.lock();
    let cap = caps.get(CapId(id))?;
    then(cap.endpoint(right)?, cap)
}

/// The usual call: words, to an endpoint where a receiver waits. `false` if it is not that simple; then nothing has happened.
#[inline]
fn call_words(thread: &'static Thread, process: &Process, sqe: &Sqe, will_wait: bool) -> bool {
    if !is_words(sqe) || sqe.method > u32::from(u16::MAX) || sqe.result_len as usize > MAX_MESSAGE_BYTES {
        return false;
    }
    let reply = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let met = with_endpoint(process, sqe.cap, rights::CALL, |endpoint, cap| {
        let met = endpoint.meet(thread, sqe.user_data, cap.epoch(), reply)?;
        Some((endpoint.clone(), met, cap.badge))
    });
    let Some((endpoint, met, badge)) = met else { return false };
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

fn call(thread: &'static Thread, process: &Arc<Process>, sqe: &Sqe, will_wait: bool) -> Decoded<Reply> {
    if call_words(thread, process, sqe, will_wait) {
        return Ok(called(thread));
    }
    let Found { object, rights: held, badge, epoch } = resolve(process, sqe.cap)?;
    if held & rights::CALL == 0 {
        return Err(TransportError::NotPermitted);
    }
    let Object::Endpoint(endpoint) = object else {
        if sqe.flags != 0 || sqe.xfer != 0 {
            return Err(TransportError::BadFlags);
        }
        let reply = methods::call(thread, process, &object, held, epoch, sqe);
        // Methods may be long, and a queue is full of them before anybody else's turn comes.
        interrupt::breathe();
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
    Ok(called(thread))
}

/// A call was made: has it taken the thread's context along?
#[inline]
fn called(thread: &'static Thread) -> Reply {
    if thread.lent.load(Ordering::Relaxed) != 0 {
        return Reply::Lent;
    }
    if thread.context().is_some() {
        loan::regret(thread);
    }
    Reply::Later
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
    let waits = with_endpoint(process, sqe.cap, rights::RECV, |endpoint, cap| {
        endpoint.wait_for_call(thread, sqe.user_data, buffer, cap.epoch()).then_some(())
    });
    if waits.is_some() {
        return Ok(Reply::Later);
    }
    let (endpoint, epoch) = served(process, sqe.cap)?;
    Ok(endpoint.recv(thread, sqe.user_data, buffer, epoch).into())
}

fn answer(thread: &'static Thread, process: &Arc<Process>, sqe: &Sqe, will_wait: bool) -> Decoded<Reply> {
    if is_words(sqe) && sqe.method == 0 {
        let take = |endpoint: &Arc<Endpoint>, _: &Cap| endpoint.take(&thread.reference(), sqe.result_addr);
        if let Some(flight) = with_endpoint(process, sqe.cap, rights::RECV, take) {
            flight.answer_words([sqe.arg0, sqe.arg1], will_wait);
            return Ok(Completion::OK.into());
        }
    }
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
