//! Looking at a runtime from outside: a dump of its tasks, statistics, a trace. Nothing here stops a worker, so a dump
//! of a running system is not a consistent snapshot: each task is seen at its own moment.

use crate::alloc::Quiet;
use crate::budget::Budget;
use crate::cx::TaskId;
use crate::monitor::Hog;
use crate::names::Name;
use crate::runtime::Runtime;
use crate::state::TaskState;
use crate::stats::WorkerStats;
use crate::task::{Priority, Task, TaskRef, Wait};
use std::fmt;
use std::panic::Location;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// One task of a [`Dump`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskDump {
    /// The task's number.
    pub id: TaskId,
    /// Its name, if it has one.
    pub name: Option<Name>,
    /// Its state.
    pub state: TaskState,
    /// What it waits for.
    pub waits_for: Wait,
    /// Where in the program it waits, or last waited.
    pub waits_at: Option<&'static Location<'static>>,
    /// Where it was spawned.
    pub spawned_at: Option<&'static Location<'static>>,
    /// The worker that it runs on.
    pub worker: Option<u16>,
    /// Its hint to the scheduler.
    pub priority: Priority,
    /// What is left of its budget, without what it has drawn for its quantum.
    pub budget: Budget,
}

/// Every task that has not ended: see [`Runtime::dump`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The tasks, in the order of their numbers.
    pub tasks: Vec<TaskDump>,
}

/// What a runtime has done, and what it holds: see [`Runtime::stats`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The counters of each worker; spares come last.
    pub workers: Vec<WorkerStats>,
    /// The sum over all workers.
    pub total: WorkerStats,
    /// Stacks made, of all sizes.
    pub stacks_made: u64,
    /// Of these, the stacks that no task has and no worker keeps at hand.
    pub stacks_free: u64,
    /// Stacks that were abandoned after overflows.
    pub stacks_abandoned: u64,
    /// Overflows, of the whole process, that used up the reserve as well, or could not open it.
    pub overflows_hard: u64,
    /// The number of tasks for which memory was allocated.
    pub tasks_made: usize,
}

impl Runtime {
    /// Lists the tasks that have not ended: their state, what each waits for and where, and its remaining budget.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let running: Vec<(TaskRef, u16)> =
            self.shared.workers.iter().filter_map(|w| Some((w.task()?, w.index))).collect();
        let mut tasks = Vec::new();
        self.shared.tasks.for_each(|task| {
            let state = task.word.state();
            let id = task.id.load(Ordering::Acquire);
            if state.is_final() || id == 0 {
                return;
            }
            let worker = running.iter().find(|(running, _)| *running == task).map(|(_, worker)| *worker);
            tasks.push(TaskDump {
                id: TaskId(id),
                name: task.name(id),
                // A task that yielded is ready, though its word says running.
                state: if state == TaskState::Running && worker.is_none() { TaskState::Ready } else { state },
                waits_for: Wait::ALL[usize::from(task.waits_for.load(Ordering::Relaxed)) % Wait::ALL.len()],
                waits_at: Task::location(&task.waits_at),
                spawned_at: Task::location(&task.spawned_at),
                worker,
                priority: Priority::from_bits(task.priority.load(Ordering::Relaxed)),
                budget: task.budget(),
            });
        });
        tasks.sort_by_key(|task| task.id);
        Dump { tasks }
    }

    /// What the workers did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let workers: Vec<WorkerStats> =
            self.shared.workers.iter().map(|worker| worker.counters.read()).collect();
        let mut total = WorkerStats::default();
        for worker in &workers {
            total.merge(worker);
        }
        let stacks = self.shared.stacks.counts();
        Stats {
            workers,
            total,
            stacks_made: stacks.made,
            stacks_free: stacks.free,
            stacks_abandoned: stacks.abandoned,
            overflows_hard: crate::overflow::counts().hard,
            tasks_made: self.shared.tasks.made(),
        }
    }

    /// The last events, if [`Config::trace`](crate::Config::trace) asked for them: workers appear as CPUs, tasks as
    /// threads. The `trace` crate writes them for Perfetto and Chrome.
    #[must_use]
    pub fn trace(&self) -> Option<trace::Trace> {
        self.shared.log.as_ref().map(|log| log.trace(self.shared.now_ns()))
    }

    /// The last 64 tasks that the watchdog has named.
    #[must_use]
    pub fn hogs(&self) -> Vec<Hog> {
        // The allocation happens under a lock.
        let _quiet = Quiet::new();
        self.shared.monitor.hogs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Deterministic mode: how many times a task was picked so far, and a hash of which task was picked on which
    /// virtual worker. Equal hashes mean equal orders. Ask when nothing runs.
    #[must_use]
    pub fn order(&self) -> Option<(u64, u64)> {
        self.shared.order()
    }

    /// Allows or forbids worker `index` to steal [SCHED:6.1.1]. False: there is no such worker.
    pub fn set_steal_enabled(&self, index: usize, enabled: bool) -> bool {
        match self.shared.workers.get(index) {
            Some(worker) => {
                worker.steal_enabled.store(enabled, Ordering::Release);
                true
            }
            None => false,
        }
    }

    /// For tests: the loop of worker `index` panics at its next turn, as if the runtime had a bug.
    #[doc(hidden)]
    pub fn panic_worker(&self, index: usize) {
        let worker = &self.shared.workers[index];
        worker.panic_wanted.store(true, Ordering::Release);
        worker.unpark();
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>8}  {:<16} {:<16} {:<28} {:<28} ops left",
            "task", "name", "state", "waits", "spawned"
        )?;
        let place = |at: Option<&Location<'_>>| {
            at.map_or(String::new(), |at| {
                let file = at.file().rsplit('/').next().unwrap_or_default();
                format!("{file}:{}", at.line())
            })
        };
        for task in &self.tasks {
            let waits = match (task.state, task.worker) {
                (TaskState::Running, Some(worker)) => format!("on worker {worker}"),
                (TaskState::Blocked | TaskState::BudgetExhausted, _) => {
                    format!("{:?} at {}", task.waits_for, place(task.waits_at))
                }
                _ => String::new(),
            };
            let ops = match task.budget.ops {
                crate::budget::UNLIMITED => "unlimited".to_string(),
                ops => ops.to_string(),
            };
            writeln!(
                f,
                "{:>8}  {:<16} {:<16} {:<28} {:<28} {}",
                task.id.to_string(),
                task.name.as_deref().unwrap_or("-"),
                format!("{:?}", task.state),
                waits,
                place(task.spawned_at),
                ops
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, total) in self.total.iter() {
            writeln!(f, "{name:<16} {total}")?;
        }
        writeln!(f, "{:<16} {}", "stacks_made", self.stacks_made)?;
        writeln!(f, "{:<16} {}", "stacks_free", self.stacks_free)?;
        writeln!(f, "{:<16} {}", "stacks_abandoned", self.stacks_abandoned)?;
        writeln!(f, "{:<16} {}", "overflows_hard", self.overflows_hard)?;
        writeln!(f, "{:<16} {}", "tasks_made", self.tasks_made)
    }
}
