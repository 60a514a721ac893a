//! Panics of tasks: caught, mapped to an outcome, and reported without overflowing the task's small stack.

use crate::alloc::Quiet;
use crate::cx::Cx;
use crate::error::{Cancelled, TaskError};
use crate::stack::Reserve;
use crate::stats::Counters;
use crate::task::{Outcome, TaskRef};
use crate::worker::current_worker;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering;

/// The panic hook opens the reserve of the panicking task's stack first: printing a message, and unwinding, take more
/// than a lean stack has left. It is the process's hook, so it is wrapped, once, and the former one does the printing.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(task) = current_worker().and_then(|worker| worker.task()) {
                // SAFETY: the running task has a stack, and we stand on it.
                if let Some(stack) = unsafe { &*task.stack.get() } {
                    let _ =
                        stack.open_reserve(Reserve::Upper).and_then(|()| stack.open_reserve(Reserve::Lower));
                    before(info);
                    // Destructors run next, and may overflow: inside `malloc`, say, which must find something to return on.
                    if !task.overflowed.load(Ordering::Acquire) {
                        stack.close_lower();
                    }
                    return;
                }
            }
            // What the hook keeps (symbols, buffers) is nobody's.
            let _quiet = Quiet::new();
            before(info);
        }));
    });
}

/// Runs a destructor of the user's: a panic there ends here. So does one of its payload, which is not dropped.
pub(crate) fn contain(drops: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(drops)).map_err(std::mem::forget);
}

/// Ends the running task, which was cancelled, from a function that cannot pass that on: no panic, so no message, but the
/// same way out, destructors and all.
pub(crate) fn unwind_cancelled(task: TaskRef) -> ! {
    // What the unwinder allocates is nobody's.
    let _quiet = Quiet::new();
    // SAFETY: the running task has a stack, and we stand on it. Without the reserve it may overflow: that is survived too.
    if let Some(stack) = unsafe { &*task.stack.get() } {
        let _ = stack.open_reserve(Reserve::Upper);
    }
    resume_unwind(Box::new(Cancelled))
}

/// Lets the running task, whose stack is short, go on in the reserve, once; it has overflowed.
#[cold]
#[inline(never)]
pub(crate) fn open_reserve(task: TaskRef) {
    if task.overflowed.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: whoever resumed the task wrote it.
    Counters::add(unsafe { &(*task.worker.get()).counters.overflows });
    // SAFETY: the running task has a stack, and we stand on it. If the reserve stays shut, what needs it faults there.
    if let Some(stack) = unsafe { &*task.stack.get() } {
        let _ = stack.open_reserve(Reserve::Upper);
    }
}

/// The payload of a panic that stands for a stack overflow which was seen in time.
struct Overflow;

/// The running task has too little stack left: it ends with that error, in order. One that unwinds already goes on, in the
/// reserve: a second panic would end the process.
#[cold]
#[inline(never)]
pub(crate) fn overflow_in_time(task: TaskRef) {
    open_reserve(task);
    if !Cx::of(task).panicking() {
        // What the unwinder allocates is nobody's.
        let _quiet = Quiet::new();
        resume_unwind(Box::new(Overflow));
    }
}

/// The outcome of a task that panicked, or unwound because it was cancelled.
#[cold]
pub(crate) fn outcome(task: TaskRef, payload: Box<dyn Any + Send>) -> Outcome {
    let (cancelled, overflow) = (payload.is::<Cancelled>(), payload.is::<Overflow>());
    // SAFETY: whoever resumed the task wrote it.
    let counters = unsafe { &(*task.worker.get()).counters };
    if !cancelled && !overflow {
        Counters::add(&counters.panics);
    }
    // SAFETY: the task is ours. We are far above the reserve again.
    if let Some(stack) = unsafe { &mut *task.stack.get() }
        && !task.overflowed.load(Ordering::Acquire)
        && stack.close_reserve().is_err()
    {
        // Left open and marked: the stack is retired when the task ends.
        task.overflowed.store(true, Ordering::Release);
    }
    match () {
        () if cancelled => return Outcome::Cancelled,
        () if overflow => return Outcome::StackOverflow,
        () => {}
    }
    let message = match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(message) => (*message).to_string(),
            Err(payload) => {
                // Its drop is the user's code: a panic there ends here.
                contain(|| drop(payload));
                "a panic with a payload that is no text".to_string()
            }
        },
    };
    let _quiet = Quiet::new();
    Outcome::Error(Box::new(TaskError::Panicked(message)))
}
