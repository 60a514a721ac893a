//! Binding a thread to a context.

use super::{Handle, give};
use crate::dispatch;
use crate::planted::{self, Bug};
use crate::thread::Thread;
use ::sched::CpuId;
use kcore::generation::ThreadRef;
use kcore::life::Event;
use kcore::loans::Refused;

/// Why a thread was not bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// The book of the context refuses.
    Refused(Refused),
    /// The thread may not run on the CPU that promised the time.
    NoCommonCpu,
    /// It has ended, or is about to.
    Dead,
    /// It has a context already.
    Bound,
}

/// The outcome of a bind, as it was when the lock was released.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Whether the capability is still good.
    pub standing: Result<(), Refused>,
    /// Whether a thread owns the context.
    pub is_owned: bool,
}

/// Binds the thread `who` to a context: it owns the context from here on, and has its time at once, or before it next leaves the kernel.
pub fn bind(
    handle: &Handle,
    held: u64,
    thread: &'static Thread,
    who: ThreadRef,
    context_only: bool,
) -> Result<Bound, BindError> {
    claim(handle, held, thread, &who, context_only)?;
    let mut record = handle.ctx.record.lock();
    // The context may have been revoked since.
    let mut is_to_wake = false;
    if record.book.promise(who).is_ok() {
        is_to_wake = give(&mut record, who);
        if *record.book.owner() != who {
            // The thread waits in a run queue, and may not run on this context's CPU.
            return Err(BindError::NoCommonCpu);
        }
    }
    let is_owned = *record.book.owner() != ThreadRef::NONE;
    let bound = Bound { standing: record.book.standing(held), is_owned };
    drop(record);
    if is_to_wake {
        dispatch::wake(&who, false);
    }
    Ok(bound)
}

/// Makes a thread that has no context the owner of this one. The `Context` stays where it is.
fn claim(
    handle: &Handle,
    held: u64,
    thread: &'static Thread,
    who: &ThreadRef,
    context_only: bool,
) -> Result<(), BindError> {
    let mut record = handle.ctx.record.lock();
    record.book.may_bind(held).map_err(BindError::Refused)?;
    let home = CpuId::new(record.cpu).ok_or(BindError::NoCommonCpu)?;
    let mut wait = thread.wait.lock();
    // A thread that ends has looked for its context for the last time: it would not find this one.
    let may_bind = thread.turn(&mut wait, Event::Bind).is_ok() || planted::is(Bug::BindsTheEnding);
    if !thread.is(who) || !may_bind {
        return Err(BindError::Dead);
    }
    if thread.context().is_some() {
        return Err(BindError::Bound);
    }
    let may_run = wait.parked.as_ref().is_none_or(|parked| parked.could_run_on(home));
    if !may_run || !dispatch::may_run_on(thread, home) {
        return Err(BindError::NoCommonCpu);
    }
    record.book.bind(*who);
    record.context_only = context_only;
    thread.set_context(handle.ctx.head(), false);
    Ok(())
}
