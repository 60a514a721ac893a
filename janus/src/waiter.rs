//! Who waits: a task of some runtime, or a thread that belongs to none. One word, so that it fits into an atomic.

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

/// See the module. Waking one that is long gone is harmless: tasks and parkers stay what they are (type-stable).
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
        // SAFETY: made by `task`.
        NonNull::new(pointer).map(|pointer| unsafe { TaskRef::from_ptr(pointer) })
    }

    pub(crate) fn bits(self) -> usize {
        self.0
    }

    pub(crate) fn from_bits(bits: usize) -> Waiter {
        Waiter(bits)
    }

    /// Leaves a permit; whoever sleeps goes on. `here` is the worker that the caller runs on, if any.
    #[inline]
    pub(crate) fn wake(self, here: Option<&Worker>) {
        if let Some(task) = self.as_task() {
            wake_task(task, here);
        } else {
            let parker = std::ptr::with_exposed_provenance::<Parker>(self.0 & !THREAD);
            // SAFETY: made by `thread` from a `&'static`.
            unsafe { (*parker).unpark() };
        }
    }
}

/// A waiter to be woken, from a moment on at which it still waits: if it is a task of another runtime than the caller's, that
/// runtime does not end before the wake is done. Under the lock that keeps the waiter there. `mine`: the caller's own
/// runtime, null if it is no task's.
#[must_use = "the waiter sleeps until it is woken"]
pub struct Wakeup(Waiter, Option<&'static Shared>);

impl Wakeup {
    #[inline]
    pub(crate) fn new(waiter: Waiter, mine: *const Shared) -> Wakeup {
        let guest_of = |task: TaskRef| {
            let own = std::ptr::eq(mine, task.shared);
            // SAFETY: the task waits, so its runtime is there; until `wake` it is held.
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
            // The last touch of that runtime.
            host.guests.fetch_sub(1, Ordering::Release);
        }
    }
}

/// See [`Waiter::wake`].
#[inline]
pub(crate) fn wake_task(task: TaskRef, here: Option<&Worker>) {
    if task.word.wake() {
        // SAFETY: a task's runtime outlives it, and it exists: it slept, and we alone may queue it.
        let shared: &Shared = unsafe { &*task.shared };
        shared.enqueue(task, here);
    }
}

/// How a thread that is no worker waits. Parkers are never freed, only reused: a late wake finds one.
pub(crate) struct Parker {
    permit: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

static FREE: Mutex<Vec<&'static Parker>> = Mutex::new(Vec::new());

/// The calling thread's parker; it goes back to the common stock with the thread.
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
    /// The calling thread's.
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
