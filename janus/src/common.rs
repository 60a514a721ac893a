//! The common queue: tasks from threads that are not workers, and tasks that do not fit into a worker's own queues.
//! First in, first out, with a lane for each priority. It allocates nothing: tasks are linked to each other.

use crate::task::{Priority, TaskList, TaskRef};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many tasks a worker takes along at most.
const BATCH: usize = 32;

/// See the module.
pub(crate) struct Common {
    lanes: Mutex<[TaskList; 3]>,
    length: AtomicUsize,
}

impl Common {
    pub(crate) fn new() -> Common {
        Common { lanes: Mutex::new([const { TaskList::new() }; 3]), length: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, [TaskList; 3]> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    pub(crate) fn push(&self, task: TaskRef) {
        let lane = Priority::from_bits(task.priority.load(Ordering::Relaxed)) as usize;
        let mut lanes = self.lock();
        lanes[lane].push_back(task);
        self.length.fetch_add(1, Ordering::Release);
    }

    /// Takes the first task of the highest lane that has one.
    pub(crate) fn pop_one(&self) -> Option<TaskRef> {
        if self.is_empty() {
            return None;
        }
        let mut lanes = self.lock();
        let task = lanes.iter_mut().rev().find_map(TaskList::pop_front)?;
        self.length.fetch_sub(1, Ordering::Release);
        Some(task)
    }

    /// Takes the first task of the highest lane, and offers a fair share of the normal lane to `keep`, until that is
    /// full.
    pub(crate) fn pop(&self, workers: usize, keep: impl Fn(TaskRef) -> bool) -> Option<TaskRef> {
        let mut lanes = self.lock();
        let first = lanes.iter_mut().rev().find_map(TaskList::pop_front)?;
        let share = (lanes[1].len() / workers.max(1)).min(BATCH);
        let mut taken = 1;
        for _ in 0..share {
            let Some(task) = lanes[1].pop_front() else { break };
            if !keep(task) {
                lanes[1].push_front(task);
                break;
            }
            taken += 1;
        }
        self.length.fetch_sub(taken, Ordering::Release);
        Some(first)
    }
}
