//! A waiter: a task of some runtime, or a thread that belongs to none. It is one word, so that it fits into an atomic.

use crate::alloc::Quiet;
use crate::atomics::{AtomicBool, Ordering};
use crate::runtime::Shared;
use crate::task::{Task, TaskRef};
use crate::worker::Worker;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread::Thread;
use std::time::Duration;

const THREAD: usize = 1;

/// See the module. Waking a waiter that is long gone is harmless: the memory of tasks and parkers is type-stable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Waiter(usize);

impl Waiter {
    pub(crate) fn task(task: TaskRef) -> Waiter {
        Waiter(task.as_ptr().as_ptr().expose_provenance())
    }

    pub(crate) fn thread(parker: &'static Parker) -> Waiter {
        Waiter(std::ptr::from_ref(parker).expose_provenance() | THREAD)
    }

    pub(crate) fn as_task(self) -> Option<TaskRef> {
        if self.0 & THREAD != 0 {
            return None;
        }
        let pointer = std::ptr::with_exposed_provenance_mut::<Task>(self.0);
        // SAFETY: the pointer was made by `task`.
        NonNull::new(pointer).map(|pointer| unsafe { TaskRef::from_ptr(pointer) })
    }

    pub(crate) fn bits(self) -> usize {
        self.0
    }

    pub(crate) fn from_bits(bits: usize) -> Waiter {
        Waiter(bits)
    }

    /// Leaves a permit; if the waiter sleeps, it goes on. `here` is the worker that the caller runs on, if any.
    #[inline]
    pub(crate) fn wake(self, here: Option<&Worker>) {
        if let Some(task) = self.as_task() {
            wake_task(task, here);
        } else {
            let parker = std::ptr::with_exposed_provenance::<Parker>(self.0 & !THREAD);
            // SAFETY: the pointer was made by `thread` from a `&'static`.
            unsafe { (*parker).unpark() };
        }
    }
}

/// A waiter that is to be woken. If it is a task of another runtime than the caller's, that runtime does not end before
/// the wake is done. So a `Wakeup` is made while the waiter still waits, under the lock that keeps it there. `mine` is
/// the caller's own runtime, null if the caller is not a task.
#[must_use = "the waiter sleeps until it is woken"]
pub struct Wakeup(Waiter, Option<&'static Shared>);

impl Wakeup {
    #[inline]
    pub(crate) fn new(waiter: Waiter, mine: *const Shared) -> Wakeup {
        let guest_of = |task: TaskRef| {
            let own = std::ptr::eq(mine, task.shared);
            // SAFETY: the task waits, so its runtime is there; the count of guests holds the runtime until `wake`.
            (!own).then(|| unsafe { &*task.shared })
        };
        let host = waiter.as_task().and_then(guest_of);
        if let Some(host) = host {
            host.guests.fetch_add(1, Ordering::AcqRel);
        }
        Wakeup(waiter, host)
    }

    #[inline]
    pub(crate) fn wake(self, here: Option<&Worker>) {
        self.0.wake(here);
        if let Some(host) = self.1 {
            // This is the last touch of that runtime.
            host.guests.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Wakes a task: see [`Waiter::wake`].
#[inline]
pub(crate) fn wake_task(task: TaskRef, here: Option<&Worker>) {
    if task.word.wake() {
        // SAFETY: a task's runtime outlives it, and the task exists: it slept, and only we may queue it.
        let shared: &Shared = unsafe { &*task.shared };
        shared.enqueue(task, here);
    }
}

/// How a thread that is not a worker waits. Parkers are never freed, only reused, so a late wake still finds one.
pub(crate) struct Parker {
    permit: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

static FREE: Mutex<Vec<&'static Parker>> = Mutex::new(Vec::new());

/// The calling thread's parker, which goes back to `FREE` when the thread ends.
struct Mine(Cell<Option<&'static Parker>>);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(parker) = self.0.take() {
            FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(parker);
        }
    }
}

thread_local! {
    static MINE: Mine = const { Mine(Cell::new(None)) };
}

impl Parker {
    /// The calling thread's parker.
    pub(crate) fn mine() -> &'static Parker {
        MINE.with(|mine| match mine.0.get() {
            Some(parker) => parker,
            None => {
                let _quiet = Quiet::new();
                let free = FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
                let parker = free.unwrap_or_else(|| {
                    Box::leak(Box::new(Parker { permit: AtomicBool::new(false), thread: Mutex::new(None) }))
                });
                *parker.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    Some(std::thread::current());
                mine.0.set(Some(parker));
                parker
            }
        })
    }

    /// Sleeps until there is a permit, and uses it up; false: the time is over.
    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
        loop {
            if self.permit.swap(false, Ordering::AcqRel) {
                return true;
            }
            match deadline {
                None => std::thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        return self.permit.swap(false, Ordering::AcqRel);
                    }
                    std::thread::park_timeout(left);
                }
            }
        }
    }

    fn unpark(&self) {
        self.permit.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }
}
