//! The watchdog: finds a worker that is stuck in a task which never checks, names the task, and has a spare worker
//! serve the queue meanwhile. It also fires timers for which no worker had time.

use crate::cx::TaskId;
use crate::family::{self, Cause};
use crate::names::Name;
use crate::runtime::Shared;
use crate::task::{Task, TaskRef};
use crate::worker::Worker;
use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// After how many times the limit the process ends, if a given-up family waits for a member that waits for a lock.
const LOCKED: u32 = 100;

/// How many hogs are remembered.
const REMEMBERED: usize = 64;

/// A task that ran too long without a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hog {
    /// The task's number.
    pub task: TaskId,
    /// Its name, if it has one.
    pub name: Option<Name>,
    /// Where it was spawned.
    pub spawned_at: Option<&'static Location<'static>>,
    /// The worker that the task held.
    pub worker: u16,
    /// How long it had held the worker when it was found.
    pub held: Duration,
    /// Whether a spare worker took over.
    pub relieved: bool,
    /// If the task does not run but waits for a lock outside of the runtime: the task that was given up last (see
    /// [`Spawn::owned`](crate::Spawn::owned)), with all the locks that it held. Perhaps this lock is one of them.
    pub given_up: Option<Arc<str>>,
}

impl fmt::Display for Hog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.task)?;
        if let Some(name) = self.name {
            write!(f, " ({name})")?;
        }
        if let Some(at) = self.spawned_at {
            write!(f, ", spawned at {}:{}", at.file(), at.line())?;
        }
        write!(f, ", has held worker {} for {:?} without a check", self.worker, self.held)?;
        f.write_str(if self.relieved {
            "; a spare worker serves its queue"
        } else {
            "; no spare worker is left"
        })?;
        match &self.given_up {
            Some(who) => write!(f, "; it waits for a lock, perhaps one that {who} held when it was given up"),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Monitor {
    stop: AtomicBool,
    thread: Mutex<Option<Thread>>,
    pub(crate) hogs: Mutex<Vec<Hog>>,
}

/// What the watchdog knows about one worker.
#[derive(Clone, Copy, Default)]
struct Seen {
    epoch: u64,
    task: u64,
    since_ns: u64,
    /// CPU time of the thread when it was first found still in the same task.
    cpu_ns: Option<u64>,
    /// The spare that stands in for the worker.
    spare: Option<usize>,
    /// It was reported that the task waits for a lock, and which task was given up.
    told: bool,
}

impl Monitor {
    pub(crate) fn new() -> Monitor {
        Monitor::default()
    }

    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
        let Some(limit) = shared.config.watchdog else { return Ok(()) };
        if shared.is_deterministic() {
            return Ok(());
        }
        let watched = shared.clone();
        let thread = std::thread::Builder::new()
            .name("janus-watchdog".into())
            .spawn(move || watch(&watched, limit))?;
        *shared.monitor.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread.thread().clone());
        shared.keep_thread(thread, Arc::default());
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }
}

fn watch(shared: &Arc<Shared>, limit: Duration) {
    let tick = (limit / 4).clamp(Duration::from_micros(500), Duration::from_millis(50));
    let mut seen = vec![Seen::default(); shared.workers.len()];
    // Active spares whose worker goes on: in pinned mode a spare stays active, because the tasks that it started stay
    // with it.
    let mut free: Vec<usize> = Vec::new();
    while !shared.monitor.stop.load(Ordering::Acquire) {
        std::thread::park_timeout(tick);
        shared.fire_timers(None);
        let now = shared.now_ns();
        for (index, worker) in shared.workers.iter().enumerate() {
            let epoch = worker.beacon.epoch.load(Ordering::Relaxed);
            let task = worker.task();
            let id = task.map_or(0, |task| task.id.load(Ordering::Relaxed));
            let moved = epoch != seen[index].epoch || id != seen[index].task || id == 0;
            if moved {
                if let Some(spare) = seen[index].spare.take()
                    && !relieve(shared, spare)
                {
                    free.push(spare);
                }
                seen[index] = Seen { epoch, task: id, since_ns: now, cpu_ns: None, spare: None, told: false };
                continue;
            }
            let held = Duration::from_nanos(now - seen[index].since_ns);
            seen[index].cpu_ns = seen[index].cpu_ns.or_else(|| worker.cpu.time_ns());
            if held >= limit.saturating_mul(LOCKED) {
                end_if_locked(shared, worker, task, now, limit.saturating_mul(LOCKED));
            }
            // A task that was named before any task had been given up is named again.
            let named = worker.hogged.load(Ordering::Relaxed) == epoch;
            if held >= limit
                && named
                && !seen[index].told
                && let Some(task) = task
            {
                let given_up = lost_lock(shared, worker);
                seen[index].told = given_up.is_some();
                if given_up.is_some() {
                    let relieved = seen[index].spare.is_some();
                    report(shared, worker, hog(task, id, worker, held, relieved, given_up));
                }
            }
            if held < limit || seen[index].spare.is_some() || is_starved(worker, &seen[index], limit) {
                continue;
            }
            // Take an active spare that is free and not stuck itself, or a rested one; if there is none, try again at
            // the next look.
            let at = free.iter().position(|&spare| seen[spare].spare.is_none());
            let rested = || shared.workers.iter().position(|w| w.spare && w.retired.load(Ordering::Acquire));
            // Report first: a spare may be faster than the line that announces it.
            if worker.hogged.swap(epoch, Ordering::Relaxed) != epoch {
                let task = task.expect("an id comes with a task");
                let relieved = at.is_some() || rested().is_some();
                let given_up = lost_lock(shared, worker);
                seen[index].told = given_up.is_some();
                report(shared, worker, hog(task, id, worker, held, relieved, given_up));
            }
            seen[index].spare = match at {
                Some(at) => Some(free.swap_remove(at)),
                None => rested().and_then(|index| call_spare(shared, index, worker.index)),
            };
        }
    }
}

fn hog(
    task: TaskRef,
    id: u64,
    worker: &Worker,
    held: Duration,
    relieved: bool,
    given_up: Option<Arc<str>>,
) -> Hog {
    let (name, spawned_at) = (task.name(id), Task::location(&task.spawned_at));
    Hog { task: TaskId(id), name, spawned_at, worker: worker.index, held, relieved, given_up }
}

/// If the worker's thread waits for a lock: the task that was given up last, and perhaps holds it.
fn lost_lock(shared: &Shared, worker: &Worker) -> Option<Arc<str>> {
    let last = shared.last_given_up.lock().unwrap_or_else(PoisonError::into_inner).clone();
    last.filter(|_| worker.cpu.waits_for_lock())
}

/// Ends the process if a task whose family is given up waits for a lock: the family's parent would wait for ever,
/// without a message. The lock is one that the culprit keeps, or one that another task holds for very long; nobody can
/// tell which.
fn end_if_locked(shared: &Shared, worker: &Worker, task: Option<TaskRef>, now: u64, patience: Duration) {
    let awaited = task.and_then(|task| Some((task, shared.awaited_since(task)?)));
    if let Some((task, since)) = awaited
        && Duration::from_nanos(now.saturating_sub(since)) >= patience
        && worker.cpu.waits_for_lock()
    {
        family::abort(task, Cause::Locked);
    }
}

/// On a busy machine a thread may wait for a CPU for longer than the limit. Its task is not a hog before it had half of
/// the limit in CPU time, unless the thread waits for something else: then the task blocks its worker.
fn is_starved(worker: &Worker, seen: &Seen, limit: Duration) -> bool {
    let (Some(before), Some(now)) = (seen.cpu_ns, worker.cpu.time_ns()) else { return false };
    Duration::from_nanos(now.saturating_sub(before)) < limit / 2 && worker.cpu.wants_cpu()
}

/// Prints a line to standard error on a thread of its own, so that the watchdog neither waits for a reader nor fails
/// without one. One line at a time; a hog that is not printed is still in the list of hogs.
fn tell(line: String) {
    static TELLS: AtomicBool = AtomicBool::new(false);
    if TELLS.swap(true, Ordering::AcqRel) {
        return;
    }
    let told = std::thread::Builder::new().name("janus-hog".into()).spawn(move || {
        let _ = std::io::stderr().write_all(line.as_bytes());
        TELLS.store(false, Ordering::Release);
    });
    if told.is_err() {
        TELLS.store(false, Ordering::Release);
    }
}

fn report(shared: &Shared, worker: &Worker, hog: Hog) {
    if let Some(log) = &shared.log {
        log.stall(shared.now_ns(), worker.index);
    }
    match &shared.config.on_hog {
        // The user's code: a panic there is contained, and the watchdog goes on.
        Some(call) => crate::panics::contain(|| call(&hog)),
        None => tell(format!("janus: {hog}\n")),
    }
    let mut hogs = shared.monitor.hogs.lock().unwrap_or_else(PoisonError::into_inner);
    if hogs.len() == REMEMBERED {
        hogs.remove(0);
    }
    hogs.push(hog);
}

/// Activates this spare for a stuck worker; `None`: the system refused a thread.
fn call_spare(shared: &Arc<Shared>, index: usize, stuck: u16) -> Option<usize> {
    let spare = &shared.workers[index];
    // In pinned mode, tasks that wait for I/O belong to the stuck worker, whichever worker takes their completions.
    spare.io.cover(shared.config.migrates().then_some(stuck));
    let known = spare.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    spare.retired.store(false, Ordering::Release);
    shared.set_active(1);
    if known {
        spare.unpark();
    } else if shared.start_thread(index).is_err() {
        spare.retired.store(true, Ordering::Release);
        shared.set_active(-1);
        return None;
    }
    Some(index)
}

/// Sends a spare back to sleep, as the worker that it stood in for goes on. False: the spare stays active, because
/// tasks that it started stay with its thread.
fn relieve(shared: &Shared, index: usize) -> bool {
    let moves = shared.config.migrates();
    if moves {
        let spare = &shared.workers[index];
        spare.io.cover(None);
        spare.retired.store(true, Ordering::Release);
        shared.set_active(-1);
        spare.unpark();
    }
    moves
}
