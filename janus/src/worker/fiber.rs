//! The bottom of every fiber: it runs its task, ends it, and continues with the next one.

use super::{After, Pending};
use crate::budget::Resource;
use crate::context::switch;
use crate::cx::{Cx, floor};
use crate::error::TaskError;
use crate::family;
use crate::nursery::Nursery;
use crate::panics::contain;
use crate::state::{Event, TaskState};
use crate::task::{Outcome, Task, TaskRef, Wait, flag};
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// What an ended task's outcome means: the state transition, and the error for its nursery.
///
/// # Safety
/// The caller owns the task.
#[inline]
pub(super) unsafe fn ending(task: TaskRef) -> (Event, Option<TaskError>) {
    // SAFETY: the caller's.
    let outcome = unsafe { &*task.outcome.get() };
    match outcome {
        Outcome::Value | Outcome::Gone if task.has(flag::SAW_CANCEL) => (Event::Cancel, None),
        Outcome::Value | Outcome::Gone => (Event::Return, None),
        Outcome::Cancelled => (Event::Cancel, Some(TaskError::Cancelled)),
        Outcome::StackOverflow => (Event::Fail, Some(TaskError::StackOverflow)),
        Outcome::WorkerPanic => (Event::Fail, Some(TaskError::WorkerPanic)),
        Outcome::Budget(resource) => (Event::Fail, Some(TaskError::BudgetExceeded(*resource))),
        Outcome::Error(error) => match &**error {
            TaskError::Code(code) => (Event::Return, Some(TaskError::Code(*code))),
            // The nursery has the error already: this only says that there was one.
            TaskError::Failed(_) => (Event::Fail, Some(TaskError::Code(-1))),
            other => (Event::Fail, Some(other.clone())),
        },
        // The parent is not told.
        Outcome::Lost => (Event::Fail, None),
        Outcome::Pending => unreachable!("a task ends with an outcome"),
    }
}

/// Drops the result of an ended task.
///
/// # Safety
/// The caller owns the task, which has ended.
pub(crate) unsafe fn drop_result(task: TaskRef) {
    // SAFETY: the caller's.
    unsafe {
        match std::mem::replace(&mut *task.outcome.get(), Outcome::Pending) {
            Outcome::Value => (task.vtable.get().expect("a task has a vtable").drop_value)(task),
            // Dropping it runs the user's code.
            Outcome::Error(error) => contain(|| drop(error)),
            _ => {}
        }
    }
}

/// Runs the fiber's task, and then any other task that never ran and can use the same stack (invariant 3 of the
/// worker).
pub(super) unsafe extern "C" fn fiber_main(argument: *mut u8) {
    let task = NonNull::new(argument.cast::<Task>()).expect("a fiber has a task");
    // SAFETY: `enter` passed a task.
    let mut task = unsafe { TaskRef::from_ptr(task) };
    // SAFETY: `enter` wrote the pointer.
    unsafe { &*task.worker.get() }.settle();
    loop {
        run(task);
        // SAFETY: the worker that resumed the task last wrote the pointer.
        let worker = unsafe { &*task.worker.get() };
        // SAFETY: the task is ours.
        let mut stack = unsafe { (*task.stack.get()).take() }.expect("a running task has a stack");
        // If the task ran into its reserve and came back, the reserve is open, and below us.
        let sound = !task.overflowed.load(Ordering::Acquire) || stack.close_reserve().is_ok();
        let next = match worker.finish(task) {
            After::Pick => worker.pick(),
            After::Next(joiner) => Some(joiner),
            After::Discard(unwanted) => {
                // SAFETY: invariant 1; nothing is pending. The thread's own context is suspended, and we never come back.
                unsafe {
                    *worker.pending.get() = Pending::Discard(unwanted, stack);
                    switch(worker.grave.get(), worker.context.get());
                }
                unreachable!("a fiber that has ended was resumed");
            }
        };
        let inherits = |next: &TaskRef| sound && !next.started() && next.class.get() == stack.class();
        match next {
            Some(next) if inherits(&next) => {
                next.worker.set(worker);
                next.home.set(worker.index);
                next.floor.set(floor(&stack));
                // SAFETY: the task is ours, and so is the stack that we stand on.
                unsafe { *next.stack.get() = Some(stack) };
                worker.begin(next);
                task = next;
            }
            next => {
                // SAFETY: invariant 1; nothing is pending.
                unsafe {
                    *worker.pending.get() =
                        if sound { Pending::Release(stack) } else { Pending::Retire(stack) };
                }
                let to = match next.and_then(|task| worker.enter(task)) {
                    Some(context) => context,
                    None => worker.context.get().cast_const(),
                };
                // SAFETY: `to` is suspended and ours; we never come back.
                unsafe { switch(worker.grave.get(), to) };
                unreachable!("a fiber that has ended was resumed");
            }
        }
    }
}

pub(super) unsafe extern "C" fn fiber_returned() -> ! {
    // `fiber_main` does not return.
    std::process::abort();
}

/// Runs the task's closure, unless the task was cancelled before.
#[inline]
fn run(task: TaskRef) {
    // SAFETY: the task runs, so its nursery is there.
    let cancelled = unsafe { task.nursery.get().as_ref() }.is_some_and(Nursery::is_cancelled);
    if cancelled || task.has(flag::CANCEL | flag::BURIED) {
        run_no_more(task);
        return;
    }
    let vtable = task.vtable.get().expect("a task has a vtable");
    // SAFETY: the closure is there, as the task never ran; we are on its stack.
    unsafe {
        (vtable.run)(task);
        pass_on_error(task);
        if task.overflowed.load(Ordering::Acquire) || task.has(flag::SPENT | flag::OVERDRAWN | flag::SHORT) {
            overrule(task);
        }
        // The result is not wanted: it is dropped while the task still is one, with a stack and a guard.
        if task.join.is_detached() && matches!(*task.outcome.get(), Outcome::Value) {
            *task.outcome.get() = Outcome::Gone;
            (vtable.drop_value)(task);
            if task.overflowed.load(Ordering::Acquire) {
                *task.outcome.get() = Outcome::StackOverflow;
            }
        }
    }
}

/// Ends a task that was cancelled before it ran, or that was given up, before it ran or later.
#[cold]
fn run_no_more(task: TaskRef) {
    let outcome = if task.has(flag::BURIED) {
        stand_still(task)
    } else if family::is_doomed(task) {
        // What the closure has borrowed stays borrowed, and what it owns is not dropped.
        Outcome::Lost
    } else {
        let vtable = task.vtable.get().expect("a task has a vtable");
        // SAFETY: the closure is there, as the task never ran; we are on its stack.
        unsafe { (vtable.drop_closure)(task) };
        Outcome::Cancelled
    };
    // SAFETY: the task is ours.
    unsafe { *task.outcome.get() = outcome };
}

/// What a buried task does: it waits for its children, which may refer to its frames (invariant 3 of `family.rs`).
fn stand_still(task: TaskRef) -> Outcome {
    let cx = Cx::of(task);
    let mut nursery = task.open.get();
    // SAFETY: the nurseries lie in the abandoned frames, which are there for ever, or in boxes that nobody frees.
    while let Some(open) = unsafe { nursery.as_ref() } {
        open.close();
        open.doom(Some(cx.worker()));
        let mut waits = None;
        while !open.expect() {
            waits.get_or_insert_with(|| family::Waits::new(cx.shared(), open));
            if open.is_starving() {
                open.starve(Some(cx.worker()), None, 0);
            }
            cx.worker().sleep(task, Event::Block, Wait::Nursery, Location::caller());
        }
        drop(waits);
        cx.give_pool(&open.end_pool());
        nursery = open.outer.get();
    }
    task.open.set(std::ptr::null());
    match () {
        () if !task.has(flag::OWNED) => Outcome::Lost,
        () if task.has(flag::BY_MEMORY) => Outcome::Budget(Resource::Memory),
        () => Outcome::StackOverflow,
    }
}

/// Passes the user's own error to the nursery, which keeps the first; the error also stays for the handle, if there is
/// one. An error that is not wanted is dropped here, while the task still is one, with a stack and a guard: its
/// destructor is the user's code.
#[inline]
pub(super) fn pass_on_error(task: TaskRef) {
    // SAFETY: the task is ours, and has not ended, so its nursery is there.
    let (outcome, nursery) = unsafe { (&mut *task.outcome.get(), task.nursery.get().as_ref()) };
    if let (Outcome::Error(error), Some(nursery)) = (outcome, nursery)
        && matches!(**error, TaskError::Failed(_))
        && !task.overflowed.load(Ordering::Acquire)
        && !task.has(flag::OVERDRAWN | flag::SPENT)
    {
        let surplus = nursery.keep_error((**error).clone());
        contain(|| drop(surplus));
        if task.join.is_detached() {
            let unwanted = std::mem::replace(&mut **error, TaskError::Code(-1));
            contain(|| drop(unwanted));
        }
    }
}

/// Replaces the result of a task that returned, but had exceeded its stack or its budget on the way.
#[cold]
fn overrule(task: TaskRef) {
    let outcome = if task.overflowed.load(Ordering::Acquire) || task.has(flag::SHORT) {
        Outcome::StackOverflow
    } else if task.has(flag::OVERDRAWN) {
        Outcome::Budget(Resource::Memory)
    } else {
        // SAFETY: the task is ours.
        let outcome = unsafe { &*task.outcome.get() };
        match (outcome, task.ended_by()) {
            // The task was told to end because of its budget: that is the reason, whatever it returned.
            (Outcome::Value | Outcome::Cancelled | Outcome::Error(_), Some(resource)) => {
                Outcome::Budget(resource)
            }
            _ => return,
        }
    };
    // SAFETY: the task is ours.
    unsafe {
        drop_result(task);
        *task.outcome.get() = outcome;
    }
    debug_assert_ne!(task.word.state(), TaskState::Completed);
}
