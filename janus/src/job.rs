//! Makes tasks of closures and takes results out of tasks: the only place that knows both the types and the bytes.
//!
//! Invariant: the payload of a task holds, in this order, its closure (until it first runs), its list of scopes (while
//! it runs), its result (when its outcome is `Value`). A value that does not fit into the task itself has a block of
//! its own, allocated when the value is written and freed when it is read.

use crate::alloc::Quiet;
use crate::budget::Budget;
use crate::cancel::Node;
use crate::cx::Cx;
use crate::error::{SpawnError, TaskError};
use crate::nursery::{Nursery, OnExhausted};
use crate::panics;
use crate::runtime::Shared;
use crate::stack::StackClass;
use crate::stats::Counters;
use crate::task::{INLINE, Naming, Outcome, Priority, TaskRef, Vtable, flag};
use crate::worker::{Worker, drop_result};
use std::alloc::Layout;
use std::error::Error;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// What a spawn asks for.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    /// Granted as a whole or not at all; without it the child gets its share.
    pub(crate) budget: Option<Budget>,
    /// How many children the child may have.
    pub(crate) children: u64,
    pub(crate) stack: StackClass,
    pub(crate) priority: Priority,
    /// Without it, the nursery's rule applies.
    pub(crate) on_exhausted: Option<OnExhausted>,
    pub(crate) name: Option<Naming>,
    /// Bits of `flag`: capabilities, and whether the child borrows.
    pub(crate) flags: u16,
    /// There will be a handle.
    pub(crate) wanted: bool,
    pub(crate) at: &'static Location<'static>,
}

impl Order {
    pub(crate) fn new(shared: &Shared, at: &'static Location<'static>) -> Order {
        Order {
            budget: None,
            children: 0,
            stack: shared.config.stack,
            priority: Priority::Normal,
            on_exhausted: None,
            name: None,
            flags: 0,
            wanted: true,
            at,
        }
    }
}

/// A return type of a task's closure, and how it becomes an outcome.
pub(crate) trait Ending {
    /// The type of value that the handle gets.
    type Value;
    fn into_outcome(self) -> Result<Self::Value, Outcome>;
}

/// Any value: returning it is success.
pub(crate) struct Plain<T>(pub(crate) T);

impl<T> Ending for Plain<T> {
    type Value = T;

    #[inline]
    fn into_outcome(self) -> Result<T, Outcome> {
        Ok(self.0)
    }
}

/// A `Result`: an error is the task's failure.
pub(crate) struct Fallible<T, E>(pub(crate) Result<T, E>);

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Ending for Fallible<T, E> {
    type Value = T;

    fn into_outcome(self) -> Result<T, Outcome> {
        self.0.map_err(|error| match TaskError::failed(error) {
            TaskError::Cancelled => Outcome::Cancelled,
            error => {
                let _quiet = Quiet::new();
                Outcome::Error(Box::new(error))
            }
        })
    }
}

/// The return value of a C function: negative is an error code.
pub(crate) struct Code(pub(crate) i64);

impl Ending for Code {
    type Value = i64;

    fn into_outcome(self) -> Result<i64, Outcome> {
        if self.0 >= 0 {
            return Ok(self.0);
        }
        let _quiet = Quiet::new();
        Err(Outcome::Error(Box::new(TaskError::Code(self.0))))
    }
}

/// Whether a `T` fits into the task itself.
const fn fits<T>() -> bool {
    size_of::<T>() <= INLINE && align_of::<T>() <= 8
}

/// # Safety
/// The payload is free and the caller owns the task.
#[inline]
unsafe fn write<T>(task: TaskRef, value: T) {
    // SAFETY: the payload has room for T, or for a pointer to it.
    unsafe {
        if fits::<T>() {
            task.payload.get().cast::<T>().write(value);
        } else {
            let block = (*task.shared).blocks.take(Layout::new::<T>());
            block.cast::<T>().write(value);
            task.payload.get().cast::<NonNull<u8>>().write(block);
        }
    }
}

/// # Safety
/// The payload holds a T, which is moved out; the caller owns the task.
#[inline]
unsafe fn read<T>(task: TaskRef) -> T {
    // SAFETY: the caller's.
    unsafe {
        if fits::<T>() {
            task.payload.get().cast::<T>().read()
        } else {
            let block = task.payload.get().cast::<NonNull<u8>>().read();
            let value = block.cast::<T>().read();
            (*task.shared).blocks.give(block, Layout::new::<T>());
            value
        }
    }
}

struct Job<F, E>(std::marker::PhantomData<(F, E)>);

impl<E: Ending, F: FnOnce(&Cx) -> E> Job<F, E> {
    const VTABLE: Vtable =
        Vtable { run: Self::run, drop_closure: Self::drop_closure, drop_value: Self::drop_value };

    unsafe fn run(task: TaskRef) {
        // SAFETY: the closure is there: the task never ran.
        let closure = unsafe { read::<F>(task) };
        // SAFETY: the payload is free, and stays so until the closure has returned (invariant 3 of the task).
        unsafe { task.payload.get().cast::<*const Node>().write(std::ptr::null()) };
        let cx = Cx::of(task);
        // Converting an error may run the user's code too.
        let caught = catch_unwind(AssertUnwindSafe(|| closure(&cx).into_outcome()));
        let outcome = match caught {
            Ok(Ok(value)) => {
                // SAFETY: the payload is free.
                unsafe { write(task, value) };
                Outcome::Value
            }
            Ok(Err(outcome)) => outcome,
            Err(payload) => panics::outcome(task, payload),
        };
        // SAFETY: the task is ours.
        unsafe { *task.outcome.get() = outcome };
    }

    unsafe fn drop_closure(task: TaskRef) {
        // SAFETY: the closure is there.
        let closure = unsafe { read::<F>(task) };
        // Dropping it runs the user's code: a panic there stops here.
        panics::contain(|| drop(closure));
    }

    unsafe fn drop_value(task: TaskRef) {
        // SAFETY: the value is there.
        let value = unsafe { read::<E::Value>(task) };
        panics::contain(|| drop(value));
    }
}

/// Makes a task of `closure` and queues it. `here` is the worker that the caller runs on.
///
/// The closure may borrow: the nursery's owner keeps what it borrows alive until the nursery has ended.
#[inline]
pub(crate) fn spawn<T, F>(
    nursery: &Nursery,
    here: Option<&Worker>,
    order: Order,
    closure: F,
) -> Result<TaskRef, SpawnError>
where
    F: FnOnce(&Cx) -> T + Send,
    T: Send,
{
    spawn_as::<Plain<T>, _>(nursery, here, order, move |cx: &Cx| Plain(closure(cx)))
}

/// As `spawn`, for every way to end.
#[inline]
pub(crate) fn spawn_as<E: Ending, F: FnOnce(&Cx) -> E>(
    nursery: &Nursery,
    here: Option<&Worker>,
    order: Order,
    closure: F,
) -> Result<TaskRef, SpawnError> {
    let granted = nursery.admit(order.budget.as_ref(), order.children)?;
    // SAFETY: the runtime outlives its nurseries.
    let shared = unsafe { &*nursery.shared };
    let here = here.filter(|worker| std::ptr::eq(worker.shared, shared));
    let (task, id) = match here {
        Some(worker) => {
            Counters::add(&worker.counters.spawned);
            (worker.new_task(), worker.next_id())
        }
        None => (shared.tasks.take(), shared.foreign_id()),
    };
    task.id.store(id, Ordering::Relaxed);
    let mut fixed = if order.budget.is_some() { flag::FIXED | flag::BOUND } else { 0 };
    if nursery.opener().is_some_and(|opener| opener.has(flag::BOUND) && !opener.has(flag::MAY_RECHARGE)) {
        fixed |= flag::BOUND;
    }
    task.flags.store(order.flags | fixed, Ordering::Relaxed);
    task.overflowed.store(false, Ordering::Relaxed);
    task.set_budget(&granted);
    task.set_rule(order.on_exhausted.unwrap_or(nursery.on_exhausted));
    task.nursery.set(nursery);
    task.open.set(std::ptr::null());
    task.quiet.set(0);
    task.vtable.set(Some(&Job::<F, E>::VTABLE));
    task.class.set(order.stack);
    task.priority.store(order.priority as u8, Ordering::Relaxed);
    task.spawned_at.store(std::ptr::from_ref(order.at).cast_mut(), Ordering::Relaxed);
    task.set_name(order.name);
    task.join.reset(order.wanted);
    // SAFETY: the task is ours and its payload free.
    unsafe {
        *task.outcome.get() = Outcome::Pending;
        write(task, closure);
    }
    task.word.make_ready();
    shared.log_spawn(here, task);
    shared.enqueue(task, here);
    Ok(task)
}

/// Takes the result of an ended task.
///
/// # Safety
/// The task has ended, its result is a T, and the caller is its only handle.
pub(crate) unsafe fn take_result<T>(task: TaskRef) -> Result<T, TaskError> {
    // SAFETY: the caller's.
    unsafe {
        match std::mem::replace(&mut *task.outcome.get(), Outcome::Pending) {
            Outcome::Value => Ok(read::<T>(task)),
            Outcome::Cancelled => Err(TaskError::Cancelled),
            Outcome::StackOverflow => Err(TaskError::StackOverflow),
            Outcome::WorkerPanic => Err(TaskError::WorkerPanic),
            Outcome::Budget(resource) => Err(TaskError::BudgetExceeded(resource)),
            Outcome::Error(error) => Err(*error),
            Outcome::Pending | Outcome::Gone | Outcome::Lost => {
                unreachable!("an ended task has an outcome for its handle")
            }
        }
    }
}

/// Drops the result of an ended task and frees the task.
///
/// # Safety
/// As for [`take_result`].
pub(crate) unsafe fn discard(task: TaskRef, here: Option<&Worker>) {
    // SAFETY: the caller's.
    unsafe { drop_result(task) };
    free(task, here);
}

/// Frees the task's memory.
#[inline]
pub(crate) fn free(task: TaskRef, here: Option<&Worker>) {
    // SAFETY: the runtime outlives its tasks, and this one has only just ended.
    let shared = unsafe { &*task.shared };
    match here.filter(|worker| std::ptr::eq(worker.shared, shared)) {
        Some(worker) => worker.free_task(task),
        None => shared.tasks.give(task),
    }
}
