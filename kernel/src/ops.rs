//! Ring operations: each is decoded (everything checked, nothing changed) and then done.

use crate::context::{Ctx, loan};
use crate::dispatch::percpu;
use crate::endpoint::{Answer, Call, Endpoint, Message};
use crate::irqoff::{self, Path};
use crate::object::{Cap, Object, RevokeError};
use crate::process::records::Owned;
use crate::process::{MessageCharge, PACE_SLOTS, Process};
use crate::ring::{self, Completion, Submitted, Submitter, Waitable};
use crate::thread::Thread;
use crate::{console, deferred_work, dispatch, methods, park, preempt, time};
use abi::{
    CapId, Exception, Interface, MAX_MESSAGE_BYTES, Op, Sqe, TransportError, cqe_flags, flags, rights,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::captable::CapTable;
use kcore::request::{self, Buffer, Passed, Request, Said};

/// When a method or operation is answered.
pub enum Reply {
    /// Now, with this completion.
    Now(Completion),
    /// Later, by a waiter that was registered.
    Later,
    /// The same, and the thread has lent its context.
    Lent,
    /// Never, because the thread ends.
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

/// Submissions so far, by operation; the last counter is for unknown ones.
pub static SUBMITTED: [AtomicU64; Op::COUNT + 1] = [const { AtomicU64::new(0) }; Op::COUNT + 1];

/// Does what `sqe` says. The usual form of each frequent operation (call, receive, return, park, unpark, sleep, yield) is tried first, on a short
/// path. An entry that is not that simple has changed nothing there, and takes the general path.
#[inline(always)]
pub fn submit(by: Submitter, sqe: &Sqe) -> Submitted {
    use request::{is_usual, shape};
    let (thread, process, user_data) = (by.thread, process_of(by), sqe.user_data);
    match shape::of_entry(sqe) {
        shape::CALL if is_usual(sqe, shape::CALL) && call_words(by, process, sqe) => {
            tally(Op::Call);
            called(thread)
        }
        shape::RECV if is_usual(sqe, shape::RECV) && wait_for_call(by, process, sqe) => {
            tally(Op::Recv);
            Submitted::Done
        }
        shape::RETURN if is_usual(sqe, shape::RETURN) && answer_words(by, process, sqe) => {
            tally(Op::Return);
            Submitted::Done
        }
        shape::PARK if is_usual(sqe, shape::PARK) && may(process, sqe.cap, &Object::ParkSpace) => {
            tally(Op::Park);
            let outcome = park::park(thread, user_data, sqe.addr, sqe.arg0 as u32, sqe.arg1);
            if let Some(completion) = &outcome {
                ring::post_now(thread, user_data, completion);
            }
            Submitted::Done
        }
        shape::UNPARK if is_usual(sqe, shape::UNPARK) && may(process, sqe.cap, &Object::ParkSpace) => {
            tally(Op::Unpark);
            let completion = park::unpark(thread, sqe.addr, sqe.arg0, by.will_wait);
            if completion.status != 0 {
                ring::post_now(thread, user_data, &completion);
            }
            Submitted::Done
        }
        shape::SLEEP if is_usual(sqe, shape::SLEEP) && may(process, sqe.cap, &Object::Timer) => {
            tally(Op::Sleep);
            if let Some(completion) = &sleep(by, user_data, sqe.arg0) {
                ring::post_now(thread, user_data, completion);
            }
            Submitted::Done
        }
        shape::YIELD if is_usual(sqe, shape::YIELD) => {
            tally(Op::Yield);
            dispatch::yield_now();
            ring::post_now(thread, user_data, &Completion::OK);
            Submitted::Done
        }
        _ => submit_any(by, sqe),
    }
}

/// The process whose capabilities an entry names.
#[inline(always)]
pub fn process_of(by: Submitter) -> &'static Arc<Process> {
    &by.thread.body().process
}

/// Whether capability `id` names `object`, which has no state, and may be called. Such capabilities are never revoked, so the answer stays true.
#[inline(always)]
fn may(process: &Process, id: u32, object: &Object) -> bool {
    let caps = process.caps.lock();
    caps.get(CapId(id)).is_some_and(|cap| cap.rights & rights::CALL != 0 && cap.is(object))
}

#[inline(always)]
fn tally(op: Op) {
    SUBMITTED[op as usize].fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn submit_any(by: Submitter, sqe: &Sqe) -> Submitted {
    let begins = irqoff::begins(percpu::this(), Path::Operation(u32::from(sqe.op) * 10_000));
    let reply = match request::decode(sqe) {
        Ok(Request::Nop) => Completion::OK.into(),
        Err(TransportError::UnknownOp) => ring::end_lease(by.thread, sqe).into(),
        Err(error) => error.into(),
        Ok(request) => {
            SUBMITTED[usize::from(sqe.op).min(Op::COUNT)].fetch_add(1, Ordering::Relaxed);
            let reply = perform(by, sqe.user_data, request, begins).unwrap_or_else(Reply::from);
            // Before the answer: a program that hears that something is gone must find it gone.
            deferred_work::tend(by.thread);
            reply
        }
    };
    if begins {
        dispatch::end_irq_off();
    }
    match reply {
        Reply::Now(completion) => {
            let quiet = sqe.flags & flags::QUIET != 0 && completion.status == 0;
            if !quiet {
                ring::post_now(by.thread, sqe.user_data, &completion);
            }
            Submitted::Done
        }
        Reply::Later => Submitted::Done,
        Reply::Lent => Submitted::Lent,
        Reply::Exit(code) => Submitted::Exit(code),
    }
}

type Decoded<T> = Result<T, TransportError>;

#[inline(always)]
fn perform(by: Submitter, user_data: u64, request: Request, begins: bool) -> Decoded<Reply> {
    let (thread, process) = (by.thread, process_of(by));
    match request {
        Request::Nop => Ok(Completion::OK.into()),
        Request::Yield => {
            dispatch::yield_now();
            Ok(Completion::OK.into())
        }
        Request::Cancel { user_data } => Ok(cancel(thread, user_data).into()),
        Request::Copy { cap, rights, badge } => copy(process, cap, rights, badge),
        Request::Release { cap } => {
            let reply = release(process, cap);
            pause(begins);
            reply
        }
        Request::Revoke { cap } => {
            let reply = revoke(process, cap);
            pause(begins);
            reply
        }
        Request::Call(request) => call(by, user_data, &request, begins),
        Request::Recv { cap, result } => recv(by, user_data, cap, result),
        Request::Return(request) => answer(by, &request),
        Request::Park { cap, address, expected, timeout_ns } => {
            usable(process, cap, Interface::ParkSpace, rights::CALL)?;
            Ok(park::park(thread, user_data, address, expected, timeout_ns).into())
        }
        Request::Unpark { cap, address, count } => {
            usable(process, cap, Interface::ParkSpace, rights::CALL)?;
            Ok(park::unpark(thread, address, count, by.will_wait).into())
        }
        Request::Sleep { cap, ns } => {
            usable(process, cap, Interface::Timer, rights::CALL)?;
            Ok(sleep(by, user_data, ns).into())
        }
        Request::Write { cap, bytes } => {
            usable(process, cap, Interface::Console, rights::CALL)?;
            Ok(console::write(thread, bytes.address, bytes.length).into())
        }
        Request::Read { cap, result } => {
            usable(process, cap, Interface::Console, rights::RECV)?;
            Ok(console::read(thread, user_data, result.address, result.length).into())
        }
    }
}

/// A preemption point at the end of an operation. If the operation began the interrupts-off span, [`submit_any`] ends that span next.
#[inline(always)]
fn pause(begins: bool) {
    if begins {
        preempt::point_at_end();
    } else {
        preempt::point();
    }
}

/// A capability that was found and not revoked.
struct Found {
    object: Object,
    rights: u16,
    badge: u32,
    epoch: u64,
}

/// Finds the capability with number `id`.
fn resolve(process: &Process, id: u32) -> Decoded<Found> {
    let caps = process.caps.lock();
    let cap = caps.get(CapId(id)).ok_or(TransportError::BadCap)?;
    let object = cap.object().map_err(|_| TransportError::Revoked)?.clone();
    Ok(Found { object, rights: cap.rights, badge: cap.badge, epoch: cap.epoch() })
}

/// Checks that capability `id` names an object with `interface`, which has no state, and has `right`. Such capabilities are never revoked, so the
/// answer stays true.
fn usable(process: &Process, id: u32, interface: Interface, right: u16) -> Decoded<()> {
    let caps = process.caps.lock();
    let cap = caps.get(CapId(id)).ok_or(TransportError::BadCap)?;
    let found = cap.object().map_err(|_| TransportError::Revoked)?.interface();
    if cap.rights & right == 0 || found != interface {
        return Err(TransportError::NotPermitted);
    }
    Ok(())
}

#[inline(always)]
fn sleep(by: Submitter, user_data: u64, ns: u64) -> Option<Completion> {
    if ns == 0 {
        return Some(Completion::OK);
    }
    let process = process_of(by);
    if !process.take_sleep() {
        return Some(Completion::error(TransportError::NoSpace));
    }
    let Some(waiter) = ring::accept(by.thread, user_data, Waitable::Sleep) else {
        process.release_sleep();
        return Some(Completion::error(TransportError::NoSpace));
    };
    crate::timers::set_timer(by.thread, waiter.op as usize, waiter.sequence, false, time::deadline(ns));
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

fn release(process: &Process, cap: u32) -> Decoded<Reply> {
    let mut caps = process.caps.lock();
    let cap = caps.remove(CapId(cap)).ok_or(TransportError::BadCap)?;
    drop(caps);
    gone(process, cap);
    Ok(Completion::OK.into())
}

/// A capability has left the table of a process. If it was the last one by which the process could receive from an endpoint, its open calls there
/// fail.
fn gone(process: &Process, cap: Cap) {
    let endpoint = cap.served().cloned();
    drop(cap);
    let Some(endpoint) = endpoint else { return };
    let serves_still =
        |(_, other): (CapId, &Cap)| other.served().is_some_and(|served| Arc::ptr_eq(served, &endpoint));
    let mut from = 0;
    loop {
        let caps = process.caps.lock();
        if caps.iter_between(from, from + PACE_SLOTS).any(serves_still) {
            return;
        }
        from += PACE_SLOTS;
        if from >= caps.slots() {
            break;
        }
        drop(caps);
        preempt::point();
    }
    endpoint.process_left((process.pid, process.generation));
}

fn copy(process: &Process, cap: u32, wanted: u16, badge: u32) -> Decoded<Reply> {
    let mut caps = process.caps.lock();
    let slot = process.reserve_slot(&mut caps).map_err(|_| TransportError::NoSpace)?;
    match passable(caps.get(CapId(cap)), wanted, badge) {
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
    // A badge says who calls; a capability that has one cannot get another.
    if badge != 0 && cap.badge != 0 && badge != cap.badge {
        return Err(TransportError::NotPermitted);
    }
    Ok(cap.derive(wanted, badge))
}

fn revoke(process: &Process, cap: u32) -> Decoded<Reply> {
    let mut caps = process.caps.lock();
    let cap = caps.get_mut(CapId(cap)).ok_or(TransportError::BadCap)?;
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

/// Reads the message of a call or an answer.
fn message(process: &Arc<Process>, said: Said) -> Decoded<Message> {
    let Buffer { address, length } = match said {
        Said::Words(words) => return Ok(Message::Inline(words)),
        Said::Bytes(bytes) => bytes,
    };
    if length as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    let charge = MessageCharge::new(process, length).ok_or(TransportError::NoSpace)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize).map_err(|_| TransportError::NoSpace)?;
    bytes.resize(length as usize, 0);
    process.space.read(address, &mut bytes).map_err(|_| TransportError::BadAddress)?;
    Ok(Message::Bytes { bytes, _charge: charge })
}

/// Takes the capability that goes along with a message. It is moved out of the table only after `rest` has succeeded.
fn passenger<T>(
    process: &Process,
    passed: Passed,
    rest: impl FnOnce() -> Decoded<T>,
) -> Decoded<(Option<Cap>, T)> {
    if passed.cap == 0 {
        return Ok((None, rest()?));
    }
    let mut caps = process.caps.lock();
    let id = CapId(passed.cap);
    let held = caps.get(id).map_or(0, |cap| cap.rights);
    let cap = passable(caps.get(id), held, 0)?;
    let value = rest()?;
    let moved = if passed.is_moved { caps.remove(id) } else { None };
    drop(caps);
    if let Some(moved) = moved {
        gone(process, moved);
    }
    Ok((Some(cap), value))
}

/// The endpoint that capability `id` names, if it names one, has the right `right` and was not revoked.
#[inline(always)]
fn endpoint_of(caps: &CapTable<Cap>, id: u32, right: u16) -> Option<(&Arc<Endpoint>, &Cap)> {
    let cap = caps.get(CapId(id))?;
    Some((cap.endpoint(right)?, cap))
}

/// The usual call: words, to an endpoint where a receiver waits. `false` if it is not that simple; then nothing has changed.
#[inline(always)]
fn call_words(by: Submitter, process: &Process, sqe: &Sqe) -> bool {
    if sqe.result_len as usize > MAX_MESSAGE_BYTES {
        return false;
    }
    let reply = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let caps = process.caps.lock();
    let Some((endpoint, cap)) = endpoint_of(&caps, sqe.cap, rights::CALL) else { return false };
    let Some(met) = endpoint.rendezvous(by.thread, sqe.user_data, cap.epoch(), reply) else { return false };
    let (endpoint, badge) = (endpoint.clone(), cap.badge);
    drop(caps);
    let completion = Completion {
        flags: sqe.method << cqe_flags::METHOD_SHIFT | cqe_flags::INLINE,
        badge,
        value: met.token,
        w: [sqe.arg0, sqe.arg1],
        ..Completion::OK
    };
    endpoint.deliver_words(by.thread, &met, &completion, by.will_wait);
    true
}

fn call(by: Submitter, user_data: u64, request: &request::Call, begins: bool) -> Decoded<Reply> {
    let (thread, process) = (by.thread, process_of(by));
    let Found { object, rights: held, badge, epoch } = resolve(process, request.cap)?;
    if held & rights::CALL == 0 {
        return Err(TransportError::NotPermitted);
    }
    let Object::Endpoint(endpoint) = object else {
        let Said::Bytes(params) = request.said else { return Err(TransportError::BadFlags) };
        if request.passed.cap != 0 {
            return Err(TransportError::BadFlags);
        }
        let method = request.method.min(99);
        let what = Op::Call as u32 * 10_000 + object.interface() as u32 * 100 + method;
        irqoff::note(percpu::this(), Path::Operation(what));
        let reply = methods::call(by, user_data, &object, held, epoch, request, params);
        // Methods may take long, and a queue can be full of them.
        pause(begins);
        return reply;
    };
    let method = u16::try_from(request.method).map_err(|_| TransportError::BadFlags)?;
    let reply = request.result;
    if reply.length as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    let message = message(process, request.said)?;
    let waits_on = Waitable::Call(endpoint.clone());
    let accept = || ring::accept(thread, user_data, waits_on).ok_or(TransportError::NoSpace);
    let (cap, caller) = passenger(process, request.passed, accept)?;
    endpoint.call(thread, Call { caller, reply, method, badge, epoch, message, cap }, by.will_wait);
    Ok(match called(thread) {
        Submitted::Lent => Reply::Lent,
        _ => Reply::Later,
    })
}

/// What a call was, after it was made: whether it has lent the thread's context.
#[inline(always)]
fn called(thread: &'static Thread) -> Submitted {
    if thread.lent.load(Ordering::Relaxed) != 0 {
        return Submitted::Lent;
    }
    if thread.context().is_some() {
        loan::cancel_hosting(thread);
    }
    Submitted::Done
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

/// The usual RECV: the thread has borrowed no context, and no call is queued. `false` if it is not that simple; then nothing has changed.
#[inline(always)]
fn wait_for_call(by: Submitter, process: &Process, sqe: &Sqe) -> bool {
    if sqe.result_len as usize > MAX_MESSAGE_BYTES || by.thread.borrows.load(Ordering::Relaxed) {
        return false;
    }
    let buffer = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let caps = process.caps.lock();
    let Some((endpoint, cap)) = endpoint_of(&caps, sqe.cap, rights::RECV) else { return false };
    endpoint.wait_for_call(by.thread, sqe.user_data, buffer, cap.epoch())
}

fn recv(by: Submitter, user_data: u64, cap: u32, buffer: Buffer) -> Decoded<Reply> {
    if buffer.length as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    if by.thread.borrows.load(Ordering::Relaxed)
        && let Some(ctx) = Ctx::of(by.thread)
    {
        // A server that takes the next call must not go on using the context of the last caller.
        loan::leave(ctx, &by.thread.reference());
    }
    let (endpoint, epoch) = served(process_of(by), cap)?;
    Ok(endpoint.recv(by.thread, user_data, buffer, epoch).into())
}

/// The usual answer: words, without a completion for the server itself. `false` if it is not that simple; then nothing has changed.
#[inline(always)]
fn answer_words(by: Submitter, process: &Process, sqe: &Sqe) -> bool {
    let caps = process.caps.lock();
    let Some((endpoint, _)) = endpoint_of(&caps, sqe.cap, rights::RECV) else { return false };
    let Some(caller) = endpoint.take_caller(&by.thread.reference(), sqe.result_addr) else { return false };
    drop(caps);
    caller.answer_words([sqe.arg0, sqe.arg1], by.will_wait);
    true
}

fn answer(by: Submitter, request: &request::Return) -> Decoded<Reply> {
    let process = process_of(by);
    let (endpoint, _) = served(process, request.cap)?;
    let exception = match i32::try_from(request.method) {
        Ok(0) => None,
        Ok(raw) => Some(Exception::from_raw(raw).ok_or(TransportError::BadFlags)?),
        Err(_) => return Err(TransportError::BadFlags),
    };
    let message = message(process, request.said)?;
    let take = || endpoint.take(&by.thread.reference(), request.token).ok_or(TransportError::BadToken);
    let (cap, flight) = passenger(process, request.passed, take)?;
    flight.answer(Answer { exception, message, cap }, by.will_wait);
    Ok(Completion::OK.into())
}
