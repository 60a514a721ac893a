//! Timeout faults: what happens to a thread whose budget is used up, if its context says that the thread is to be stopped then.

use super::{Ctx, Record, loan, notify, seize};
use crate::dispatch;
use crate::dispatch::percpu;
use crate::endpoint::FaultRoom;
use crate::ring::Completion;
use crate::thread::{self, Thread};
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event};

/// The handler's answer that lets the thread go on without the context, at its weight.
const GO_ON_WITHOUT: u64 = 1;

/// A thread was stopped because its budget is spent: its timeout endpoint is told. Runs on another thread's stack, without locks.
pub fn fault(thread: &'static Thread) {
    let who = thread.reference();
    let Some(ctx) = Ctx::of(thread) else { return resume(thread, &who) };
    let record = ctx.record.lock();
    let room = record.timeout.clone();
    let donated = *record.book.owner() != who;
    let id = record.id;
    notify::note_timeout(ctx, &record, &who);
    drop(record);
    notify::tell(ctx);
    let words = [id, u64::from(who.tid) | u64::from(donated) << 32];
    let told = room.is_some_and(|room| FaultRoom::tell(&room, &who, words));
    percpu::this().counters.timeout_faults.bump();
    if !told {
        resume(thread, &who);
    }
}

/// The handler of a timeout has answered, or it is certain that nobody will.
pub fn fault_answered(who: &ThreadRef, completion: &Completion) {
    let Some(thread) = thread::get(who.tid).filter(|thread| thread.is(who)) else { return };
    let without = completion.status == 0 && completion.w[0] == GO_ON_WITHOUT;
    if without && let Some(ctx) = Ctx::of(thread) {
        loan::leave(ctx, who);
        let is_own = |record: &Record| record.book.holder() == who && record.book.owner() == who;
        if let Some((mut record, time)) = seize(ctx, is_own) {
            record.book.put(time);
            record.unbind();
        }
    }
    resume(thread, who);
}

/// Lets a stopped thread go on, with what budget it has.
fn resume(thread: &'static Thread, who: &ThreadRef) {
    let mut wait = thread.wait.lock();
    let is_to_wake = thread.is(who) && thread.turn(&mut wait, Event::FaultReply) == Ok(Action::Wake);
    drop(wait);
    if is_to_wake {
        dispatch::wake(who, false);
    }
}
