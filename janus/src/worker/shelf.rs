//! The parts of a worker that other threads touch: what they see of it, and where they leave tasks that only it may
//! run.

use crate::task::{TaskList, TaskRef};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What other threads see of a worker without touching its queues. Except for `stolen`, it is one cache line that only
/// the worker itself writes, so that a thief's look costs its victim one cache miss.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Beacon {
    /// How often the worker picked a task or offered to yield: a worker whose epoch stands still while it has a task is
    /// stuck in that task.
    pub(crate) epoch: AtomicU64,
    /// Tasks that the worker put into its queues, minus those it took out itself.
    kept: AtomicU64,
    /// Tasks that others took, on a cache line of its own.
    pub(super) stolen: Apart<AtomicU64>,
}

#[derive(Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

impl Beacon {
    #[inline]
    pub(crate) fn move_on(&self) {
        self.epoch.store(self.epoch.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn keep(&self, change: i64) {
        self.kept.store(self.kept.load(Ordering::Relaxed).wrapping_add(change as u64), Ordering::Relaxed);
    }

    /// About how many tasks a thief would find.
    #[inline]
    pub(crate) fn load(&self) -> usize {
        let kept = self.kept.load(Ordering::Relaxed);
        (kept.wrapping_sub(self.stolen.0.load(Ordering::Relaxed)) as i64).max(0) as usize
    }
}

/// What a worker saw of the others: the epoch of each at its last look. It lies on cache lines that only this worker
/// writes.
pub(crate) struct Seen(Box<[Apart<[Cell<u64>; SEEN]>]>);

/// As many as fit into a cache line.
const SEEN: usize = 16;

impl Seen {
    pub(super) fn new(workers: usize) -> Seen {
        Seen((0..workers.div_ceil(SEEN)).map(|_| Apart::default()).collect())
    }

    /// Whether that worker has moved on since the last look.
    #[inline]
    pub(crate) fn has_moved(&self, worker: u16, epoch: u64) -> bool {
        let worker = usize::from(worker);
        self.0[worker / SEEN].0[worker % SEEN].replace(epoch) != epoch
    }
}

/// Tasks that only this worker may run, left by other threads.
pub(crate) struct Inbox {
    list: Mutex<TaskList>,
    length: AtomicUsize,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { list: Mutex::new(TaskList::new()), length: AtomicUsize::new(0) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TaskList> {
        self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn push(&self, task: TaskRef) {
        let mut list = self.lock();
        list.push_back(task);
        self.length.store(list.len(), Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    pub(crate) fn pop(&self) -> Option<TaskRef> {
        if self.is_empty() {
            return None;
        }
        let mut list = self.lock();
        let task = list.pop_front();
        self.length.store(list.len(), Ordering::Release);
        task
    }
}
