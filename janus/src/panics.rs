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

/// Installs a panic hook that first opens the reserve of the panicking task's stack: printing a message, and unwinding,
/// take more than a lean stack has left. The hook is global to the process, so it is wrapped, once, and the former one
/// does the printing.
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
                    // Destructors run next, and may overflow the stack, inside `malloc` say, which then needs the lower
                    // reserve to return.
                    if !task.overflowed.load(Ordering::Acquire) {
                        stack.close_lower();
                    }
                    return;
                }
            }
            // Memory that the hook keeps (symbols, buffers) is charged to no task.
            let _quiet = Quiet::new();
            before(info);
        }));
    });
}

/// Runs a destructor of the user's and stops a panic there. The panic's payload is leaked, as its drop might panic too.
pub(crate) fn contain(drops: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(drops)).map_err(std::mem::forget);
}

/// Ends the running task, which was cancelled, from a function that cannot return an error. It is not a panic, so there
/// is no message, but it unwinds in the same way and runs destructors.
pub(crate) fn unwind_cancelled(task: TaskRef) -> ! {
    // What the unwinder allocates is charged to no task.
    let _quiet = Quiet::new();
    // SAFETY: the running task has a stack, and we stand on it. If the reserve cannot be opened the task may overflow,
    // which is handled too.
    if let Some(stack) = unsafe { &*task.stack.get() } {
        let _ = stack.open_reserve(Reserve::Upper);
    }
    resume_unwind(Box::new(Cancelled))
}

/// Lets the running task, whose stack is short, go on in the reserve, once, and marks it as overflowed.
#[cold]
#[inline(never)]
pub(crate) fn open_reserve(task: TaskRef) {
    if task.overflowed.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: the worker that resumed the task wrote the pointer.
    Counters::add(unsafe { &(*task.worker.get()).counters.overflows });
    // SAFETY: the running task has a stack, and we stand on it. If the reserve stays closed, code that needs it faults
    // there.
    if let Some(stack) = unsafe { &*task.stack.get() } {
        let _ = stack.open_reserve(Reserve::Upper);
    }
}

/// The payload of a panic that stands for a stack overflow which was noticed in time.
struct Overflow;

/// Ends the running task, which has too little stack left, with that error and in an orderly way. A task that is
/// unwinding already goes on in the reserve: a second panic would end the process.
#[cold]
#[inline(never)]
pub(crate) fn overflow_in_time(task: TaskRef) {
    open_reserve(task);
    if !Cx::of(task).panicking() {
        // What the unwinder allocates is charged to no task.
        let _quiet = Quiet::new();
        resume_unwind(Box::new(Overflow));
    }
}

/// The outcome of a task that panicked, or unwound because it was cancelled.
#[cold]
pub(crate) fn outcome(task: TaskRef, payload: Box<dyn Any + Send>) -> Outcome {
    let (cancelled, overflow) = (payload.is::<Cancelled>(), payload.is::<Overflow>());
    // SAFETY: the worker that resumed the task wrote the pointer.
    let counters = unsafe { &(*task.worker.get()).counters };
    if !cancelled && !overflow {
        Counters::add(&counters.panics);
    }
    // SAFETY: the task is ours. We are far above the reserve again.
    if let Some(stack) = unsafe { &mut *task.stack.get() }
        && !task.overflowed.load(Ordering::Acquire)
        && stack.close_reserve().is_err()
    {
        // The reserve stays open, and the task is marked: its stack is retired when the task ends.
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
                // Its drop is the user's code: a panic there stops here.
                contain(|| drop(payload));
                "a panic with a payload that is no text".to_string()
            }
        },
    };
    let _quiet = Quiet::new();
    Outcome::Error(Box::new(TaskError::Panicked(message)))
}
