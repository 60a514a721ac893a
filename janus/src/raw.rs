//! What the C adapter (`janus/capi`) needs of the runtime and Rust programs do not: nurseries without a lifetime, and
//! the running task without a [`Cx`]. Not part of the Rust interface.
//!
//! A raw nursery lives in a `Box`. A task's raw nurseries are linked to the task (`Task::open`), like those of
//! `scope.rs`; a thread that runs no task keeps its own.

use crate::budget::Budget;
use crate::caps::CapBudget;
use crate::cx::{self, Cx};
use crate::error::SpawnError;
use crate::job::{self, Code, Order};
use crate::nursery::{Nursery, OnExhausted, Pool, Terms};
use crate::runtime::{Runtime, Shared};
use crate::stack::StackClass;
use crate::task::{Naming, Priority, TaskRef, flag};
use crate::waiter::{Parker, Waiter};
use crate::worker::{Worker, current_worker};
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// How long a thread that cannot park any more sleeps between two polls.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The task that runs on this thread.
fn current_task() -> Option<TaskRef> {
    current_worker().and_then(Worker::task)
}

/// Whether the running task has `bytes` of stack left. If not, it fails with an overflow when it returns. True outside
/// of tasks.
pub fn has_stack(bytes: usize) -> bool {
    let Some(task) = current_task() else { return true };
    let enough = cx::has_stack(task, bytes);
    if !enough {
        task.set(flag::SHORT);
    }
    enough
}

/// As `has_stack`, for a call that cannot be refused: it goes on in the reserve behind the stack.
pub fn make_room() {
    cx::make_room_here();
}

/// Calls `body` with the context of the running task; `None` if there is no task.
///
/// # Safety
/// Only for an interface whose functions cannot be given a [`Cx`]: having one is the authority to act for the task,
/// which code must otherwise be given.
pub unsafe fn with_task<R>(body: impl FnOnce(&Cx) -> R) -> Option<R> {
    current_task().map(|task| body(&Cx::of(task)))
}

/// A capability to recharge, up to `limit`. A thread that runs no task made the runtime, and has every right; a task
/// needs the right itself.
pub fn cap_budget(limit: Budget) -> Option<CapBudget> {
    match current_task() {
        Some(task) => Cx::of(task).cap_budget(limit).ok(),
        None => Some(CapBudget::new(limit)),
    }
}

/// What a child gets: see [`Spawn`](crate::Spawn). The default is a share of the pool, and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The child borrows nothing: see [`Spawn::owned`](crate::Spawn::owned).
    pub owned: bool,
    /// Exactly this budget, or no child.
    pub budget: Option<Budget>,
    /// The right to have this many children.
    pub children: u64,
    /// Another stack size than the runtime's default.
    pub stack: Option<StackClass>,
    /// A hint to the scheduler.
    pub priority: Priority,
    /// A name for dumps.
    pub name: Option<&'static str>,
    /// The right to spawn; the spawner has it, otherwise it could not spawn.
    pub may_spawn: bool,
    /// The right of the child to recharge itself, which a task that grants it needs too.
    pub may_recharge: bool,
}

/// An open nursery whose owner keeps the rules that Rust's types would enforce. Nurseries of one task, or of one
/// thread, are awaited in the reverse order of their opening, by the task or thread that opened them.
// The nursery comes first, because a task has a pointer to that only.
#[repr(C)]
pub struct RawNursery {
    nursery: Nursery,
    /// Keeps the runtime until the nursery is awaited. `None`: it is the task's own runtime, which its parent's nursery
    /// holds.
    runtime: Option<Arc<Runtime>>,
}

impl RawNursery {
    /// Opens a nursery. In a task it becomes the innermost of the task, whose budget is its pool; `runtime` is then
    /// `None`, or another runtime than the task's. A nursery of a thread has an infinite pool. `None`: there is neither
    /// a task nor a runtime.
    pub fn open(runtime: Option<&Arc<Runtime>>) -> Option<NonNull<RawNursery>> {
        let Some(task) = current_task() else {
            let runtime = runtime?;
            let pool = Pool::Own(Budget::UNLIMITED);
            return Some(Self::new(&runtime.shared, Waiter::thread(Parker::mine()), pool, Some(runtime)));
        };
        // SAFETY: the runtime outlives its tasks.
        let own = unsafe { &*task.shared };
        let shared = runtime.map_or(own, |runtime| &*runtime.shared);
        let opened = Self::new(shared, Waiter::task(task), Pool::Of(task), runtime);
        // SAFETY: just made.
        let nursery = unsafe { &opened.as_ref().nursery };
        nursery.outer.set(task.open.replace(nursery));
        Some(opened)
    }

    fn new(
        shared: &Shared,
        parent: Waiter,
        pool: Pool,
        runtime: Option<&Arc<Runtime>>,
    ) -> NonNull<RawNursery> {
        let recharge = shared.config.recharge();
        let terms = Terms {
            pool,
            share: Budget::CHILD,
            recharge,
            on_exhausted: OnExhausted::default(),
            cancel_on_error: false,
        };
        let nursery = Nursery::new(shared, parent, &terms);
        nursery.raw.set(true);
        NonNull::from(Box::leak(Box::new(RawNursery { nursery, runtime: runtime.cloned() })))
    }

    /// The innermost nursery of the running task, if that is a raw one.
    pub fn innermost() -> Option<NonNull<RawNursery>> {
        let open = NonNull::new(current_task()?.open.get().cast_mut())?;
        // SAFETY: the nurseries that a task has open exist.
        unsafe { open.as_ref() }.raw.get().then(|| open.cast())
    }

    /// Starts a child that runs `body`; a negative result is its error code. A calling task needs the capability and is
    /// charged one operation, which may suspend it.
    ///
    /// # Safety
    /// The nursery is open, and what `body` borrows stays until the nursery has been awaited.
    #[track_caller]
    pub unsafe fn spawn<F: FnOnce() -> i64>(
        this: NonNull<RawNursery>,
        asked: &Asked,
        body: F,
    ) -> Result<(), SpawnError> {
        if let Some(task) = current_task() {
            let cx = Cx::of(task);
            let passes_on = !asked.may_recharge || cx.may(flag::MAY_RECHARGE);
            if !cx.may(flag::MAY_SPAWN) || !passes_on {
                return Err(SpawnError::NoCapability);
            }
            if cx.check().is_err() {
                return Err(SpawnError::Cancelled);
            }
        }
        // SAFETY: the caller guarantees that it is open.
        let nursery = unsafe { &this.as_ref().nursery };
        // SAFETY: the runtime outlives its nurseries.
        let shared = unsafe { &*nursery.shared };
        let flags = [
            (asked.owned, flag::OWNED),
            (asked.may_spawn, flag::MAY_SPAWN),
            (asked.may_recharge, flag::MAY_RECHARGE),
        ];
        let plain = Order::new(shared, Location::caller());
        let order = Order {
            budget: asked.budget,
            children: asked.children,
            stack: asked.stack.unwrap_or(plain.stack),
            priority: asked.priority,
            name: asked.name.map(Naming::Static),
            flags: flags.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, flag)| flags | flag),
            wanted: false,
            ..plain
        };
        job::spawn_as::<Code, _>(nursery, current_worker(), order, move |_: &Cx| {
            let code = body();
            // Nurseries that `body` forgot to await are awaited now: no child outlives its parent.
            while let Some(left) = RawNursery::innermost() {
                // SAFETY: it is open, and innermost.
                unsafe {
                    RawNursery::cancel(left);
                    RawNursery::await_all(left);
                }
            }
            Code(code)
        })?;
        Ok(())
    }

    /// Asks every child to end.
    ///
    /// # Safety
    /// The nursery is open.
    pub unsafe fn cancel(this: NonNull<RawNursery>) {
        // SAFETY: it is open.
        unsafe { this.as_ref() }.nursery.cancel(current_worker());
    }

    /// Waits for all children, frees the nursery and returns the specification's code [SCHED:3.6.1].
    ///
    /// # Safety
    /// The nursery is the innermost open one of the task, or thread, that opened it and calls now. It does not exist
    /// afterwards.
    #[track_caller]
    pub unsafe fn await_all(this: NonNull<RawNursery>) -> i64 {
        // SAFETY: it is open.
        let nursery = unsafe { &this.as_ref().nursery };
        nursery.close();
        match current_task() {
            Some(task) => {
                Cx::of(task).wait_for_children(nursery, Location::caller());
                task.open.set(nursery.outer.get());
            }
            None => {
                while !nursery.expect() {
                    if nursery.is_starving() {
                        nursery.starve(None, None, 0);
                    }
                    Parker::mine().park(None);
                }
            }
        }
        // SAFETY: no child is left, and nothing else refers to it.
        unsafe { Self::end(this) }
    }

    /// As [`RawNursery::await_all`], for a thread that is about to end: the children are cancelled first, and the
    /// thread does not park, as its parker may be gone already.
    ///
    /// # Safety
    /// As for [`RawNursery::await_all`], and the caller is not a task.
    pub unsafe fn abandon(this: NonNull<RawNursery>) {
        // SAFETY: it is open.
        let nursery = unsafe { &this.as_ref().nursery };
        nursery.close();
        nursery.cancel(None);
        while nursery.live() > 0 {
            std::thread::sleep(LOOK_AGAIN);
        }
        // SAFETY: no child is left, and nothing else refers to it.
        unsafe { Self::end(this) };
    }

    unsafe fn end(this: NonNull<RawNursery>) -> i64 {
        // SAFETY: the caller's; `new` made the box.
        let ended = unsafe { Box::from_raw(this.as_ptr()) };
        match ended.nursery.take_error() {
            _ if ended.nursery.is_cancelled() => -1,
            Some(error) => error.code(),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn a_thread_and_a_task_have_nurseries() {
        // SAFETY: no task here keeps anything of its thread across a suspension.
        let runtime = Arc::new(unsafe { Runtime::new(Config::new().workers(2)) }.unwrap());
        assert!(RawNursery::open(None).is_none() && RawNursery::innermost().is_none());
        let sum = AtomicI64::new(0);
        let outer = RawNursery::open(Some(&runtime)).unwrap();
        for number in 1..=4 {
            let sum = &sum;
            let body = move || {
                // SAFETY: as C would.
                unsafe { with_task(|cx| crate::nursery::refill(cx.task, &Budget::UNLIMITED, None)) }.unwrap();
                let inner = RawNursery::open(None).unwrap();
                for _ in 0..number {
                    // SAFETY: `sum` outlives both nurseries.
                    unsafe {
                        RawNursery::spawn(inner, &Asked::default(), move || {
                            sum.fetch_add(1, Ordering::Relaxed)
                        })
                    }
                    .unwrap();
                }
                // The even ones forget to await.
                // SAFETY: it is the innermost.
                if number % 2 == 1 { unsafe { RawNursery::await_all(inner) } } else { -10 * number }
            };
            // SAFETY: as above.
            unsafe { RawNursery::spawn(outer, &Asked::default(), body) }.unwrap();
        }
        // SAFETY: opened here.
        let code = unsafe { RawNursery::await_all(outer) };
        assert!(code == -20 || code == -40, "{code}");
        assert!((4..=10).contains(&sum.load(Ordering::Relaxed)));
        assert_eq!(Arc::strong_count(&runtime), 1);
    }
}
