//! The runtime root: SPEC-021 [SCHED:2.1.2] to [SCHED:2.7.2]. It owns the workers, the queues, the pools and the clock.
//! There may be any number of runtimes; the only global state is what the operating system keeps for the process: the
//! signal handlers and the panic hook.

use crate::blocks::Blocks;
use crate::common::Common;
use crate::config::Config;
use crate::cx::Cx;
use crate::det::Det;
use crate::error::{RuntimeError, TaskError};
use crate::events::Log;
use crate::idle::Idle;
use crate::job::{self, Order};
use crate::monitor::Monitor;
use crate::names::Names;
use crate::nursery::{Nursery, OnExhausted, Pool, Terms};
use crate::panics;
use crate::stack::StackPool;
use crate::state::Event;
use crate::task::{Naming, TaskPool, TaskRef, flag};
use crate::timers::{NEVER, Timers};
use crate::waiter::{Parker, Waiter};
use crate::worker::{Worker, current_worker};
use std::panic::{AssertUnwindSafe, Location};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Everything that the workers of one runtime share.
pub struct Shared {
    pub(crate) config: Config,
    /// The workers of the configuration, then the spares.
    pub(crate) workers: Box<[Worker]>,
    active: AtomicUsize,
    pub(crate) idle: Idle,
    pub(crate) common: Common,
    pub(crate) tasks: TaskPool,
    /// Task names that were built at run time.
    pub(crate) names: Names,
    pub(crate) stacks: StackPool,
    pub(crate) blocks: Blocks,
    pub(crate) timers: Timers,
    /// Threads for calls that can only block.
    pub(crate) pool: Arc<crate::io::pool::Pool>,
    /// How many workers sleep for a bounded time.
    pub(crate) napping: AtomicUsize,
    /// The parked worker that watches the clock; `u16::MAX` if there is none.
    keeper: AtomicU16,
    started: Instant,
    /// The time in deterministic mode.
    virtual_ns: AtomicU64,
    stop: AtomicBool,
    /// A task of this runtime was given up: see `stay_for_ever`.
    kept: AtomicBool,
    /// The nurseries that given-up tasks wait for: see `family.rs`.
    pub(crate) burials: Mutex<Vec<crate::family::Burial>>,
    /// A description of the task that was given up last.
    pub(crate) last_given_up: Mutex<Option<Arc<str>>>,
    /// How many threads are about to wake a task of this runtime from outside: the runtime stays until they have.
    pub(crate) guests: AtomicUsize,
    /// Deterministic mode: steps so far, and the hash of their order.
    pub(crate) order: [AtomicU64; 2],
    foreign_ids: AtomicU64,
    pub(crate) log: Option<Log>,
    pub(crate) monitor: Monitor,
    threads: Mutex<Vec<Thread>>,
}

/// The OS thread of a worker.
struct Thread {
    handle: JoinHandle<()>,
    /// The thread left without ending: see `leave_thread`.
    left: Arc<AtomicBool>,
}

// SAFETY: raw pointers in it point to itself; everything else is shared by atomics and locks.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(config: Config) -> Arc<Shared> {
        let real = if config.seed.is_some() { 1 } else { config.workers };
        let spares = if config.seed.is_some() || config.watchdog.is_none() { 0 } else { config.spares };
        let seed = config.seed.unwrap_or(0);
        let count = real + spares;
        let workers: Vec<Worker> =
            (0..count).map(|index| Worker::new(index as u16, count, index >= real, seed)).collect();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut shared = Arc::new(Shared {
            idle: Idle::with_searchers(workers.len(), cpus),
            workers: workers.into(),
            active: AtomicUsize::new(real),
            common: Common::new(),
            tasks: TaskPool::new(),
            names: Names::default(),
            stacks: StackPool::new(config.plain_guards),
            blocks: Blocks::new(),
            timers: Timers::new(real),
            pool: crate::io::pool::Pool::new(config.blocking_threads),
            napping: AtomicUsize::new(0),
            keeper: AtomicU16::new(u16::MAX),
            started: Instant::now(),
            virtual_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            burials: Mutex::new(Vec::new()),
            last_given_up: Mutex::new(None),
            guests: AtomicUsize::new(0),
            order: [const { AtomicU64::new(0) }; 2],
            foreign_ids: AtomicU64::new(0),
            log: (config.trace_events > 0).then(|| Log::new(real + spares, config.trace_events)),
            monitor: Monitor::new(),
            threads: Mutex::new(Vec::new()),
            config,
        });
        let pointer = Arc::as_ptr(&shared);
        let inner = Arc::get_mut(&mut shared).expect("nobody else has it yet");
        inner.tasks.belongs_to(pointer);
        for worker in &mut inner.workers {
            worker.shared = pointer;
        }
        if let Some(seed) = inner.config.seed {
            // SAFETY: no worker runs yet.
            unsafe { inner.workers[0].make_deterministic(Det::new(inner.config.workers, seed)) };
        }
        shared
    }

    #[inline]
    pub(crate) fn is_deterministic(&self) -> bool {
        self.config.seed.is_some()
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Workers that run tasks now: those of the configuration and the active spares.
    #[inline]
    pub(crate) fn active_workers(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    pub(crate) fn set_active(&self, change: isize) {
        self.active.fetch_add(change as usize, Ordering::AcqRel);
    }

    /// Time since the start, virtual in deterministic mode.
    pub(crate) fn now_ns(&self) -> u64 {
        if self.is_deterministic() {
            self.virtual_ns.load(Ordering::Acquire)
        } else {
            self.started.elapsed().as_nanos() as u64
        }
    }

    pub(crate) fn set_virtual_time(&self, now_ns: u64) {
        self.virtual_ns.store(now_ns, Ordering::Release);
    }

    /// Queues a ready task where a worker will find it: in a queue of the worker `here`, if that is one of ours, or of
    /// the worker that must run it, or in the common queue.
    #[inline]
    pub(crate) fn enqueue(&self, task: TaskRef, here: Option<&Worker>) {
        let here = here.filter(|worker| std::ptr::eq(worker.shared, self));
        if !self.config.migrates() && !self.is_deterministic() && task.started() {
            let home = &self.workers[usize::from(task.home.get())];
            match here {
                Some(worker) if std::ptr::eq(worker, home) => worker.push(task),
                _ => {
                    home.inbox.push(task);
                    if self.idle.claim(usize::from(home.index)) {
                        home.unpark();
                    }
                }
            }
            return;
        }
        match here {
            Some(worker) => {
                let new = !task.started();
                worker.push(task);
                if new { self.notify_from(worker) } else { self.notify_wake(worker) }
            }
            None => {
                self.common.push(task);
                self.notify();
            }
        }
    }

    /// Announces new work: wakes a sleeping worker for it, unless a worker is searching already.
    pub(crate) fn notify(&self) {
        if let Some(index) = self.idle.notify() {
            self.workers[index].unpark();
        }
    }

    /// As `notify`, by a worker for its own queue: if it is the only active worker, it will find the work itself.
    #[inline]
    pub(crate) fn notify_from(&self, _worker: &Worker) {
        if self.active_workers() > 1 {
            self.notify();
        }
    }

    /// As `notify_from`, for a task that ran before. If it is alone in the worker's queues, it is most likely the next
    /// to run there, and waking another worker for it would cost more than the task itself: a napping worker will look
    /// soon enough.
    #[inline]
    pub(crate) fn notify_wake(&self, worker: &Worker) {
        if self.active_workers() <= 1 {
            return;
        }
        if worker.beacon.load() < 2 {
            fence(Ordering::SeqCst);
            if self.napping.load(Ordering::Relaxed) > 0 {
                return;
            }
        }
        self.notify();
    }

    /// Whether there is a task that any worker could run.
    pub(crate) fn work_visible(&self) -> bool {
        !self.common.is_empty() || self.workers.iter().any(|worker| worker.stealable() > 0)
    }

    /// Wakes the waiters whose time has come. Deterministic mode moves its time itself.
    pub(crate) fn fire_timers(&self, here: Option<&Worker>) {
        if self.timers.first() != NEVER && !self.is_deterministic() && self.timers.fire(self.now_ns(), here) {
            self.earlier_timer();
        }
    }

    /// Makes `worker`, which is about to park, the one that watches the clock; false if there is one already.
    pub(crate) fn keep_time(&self, worker: u16) -> bool {
        self.keeper.compare_exchange(u16::MAX, worker, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Called when a worker leaves its park; `keeper` if it watched the clock. If it is counted as searching by then,
    /// no other worker is woken here; it takes care of the clock when it ends its search (`somebody_wanted`).
    pub(crate) fn release_time(&self, keeper: bool) {
        if keeper {
            self.keeper.store(u16::MAX, Ordering::Release);
            self.find_keeper();
        }
    }

    /// If there are timers and no worker watches the clock, finds one. Running workers look at the timers between
    /// tasks, but a task may never end: so a sleeping worker is woken, finds nothing to run, and keeps the time from
    /// then on.
    fn find_keeper(&self) {
        if self.unkept() {
            self.notify();
        }
    }

    fn unkept(&self) -> bool {
        self.timers.first() != NEVER
            && self.keeper.load(Ordering::Acquire) == u16::MAX
            && self.active_workers() > 1
            && !self.is_deterministic()
    }

    /// Whether a worker that leaves the search, or its park, to run something must wake another one: for work, or for
    /// the clock.
    pub(crate) fn somebody_wanted(&self) -> bool {
        self.work_visible() || self.unkept()
    }

    /// A timer was armed that comes before all others, so the worker that watches the clock must look again.
    pub(crate) fn earlier_timer(&self) {
        let keeper = self.keeper.load(Ordering::Acquire);
        match self.workers.get(usize::from(keeper)) {
            Some(worker) => worker.unpark(),
            None => self.find_keeper(),
        }
    }

    pub(crate) fn until_first_timer(&self) -> Option<Duration> {
        match self.timers.first() {
            NEVER => None,
            at => Some(Duration::from_nanos(at.saturating_sub(self.now_ns()).max(1))),
        }
    }

    /// Deterministic mode: the number of steps, and the hash of their order.
    pub(crate) fn order(&self) -> Option<(u64, u64)> {
        let [steps, hash] = &self.order;
        self.is_deterministic().then(|| (steps.load(Ordering::Acquire), hash.load(Ordering::Acquire)))
    }

    /// A number for a task that is made outside of any worker.
    pub(crate) fn foreign_id(&self) -> u64 {
        let stride = self.workers.len() as u64 + 1;
        (self.foreign_ids.fetch_add(1, Ordering::Relaxed) + 1) * stride + stride - 1
    }

    /// Keeps the runtime's memory for ever, because a task was given up: others may refer to its frames, and through
    /// them to all of this, as long as the process lives.
    pub(crate) fn stay_for_ever(&self) {
        if !self.kept.swap(true, Ordering::AcqRel) {
            // SAFETY: `Shared::new` is the only maker, and makes it in an `Arc`.
            unsafe { Arc::increment_strong_count(self) };
        }
    }

    #[inline]
    pub(crate) fn log_run(&self, worker: &Worker, task: TaskRef) {
        if let Some(log) = &self.log {
            log.run(self.now_ns(), worker.index, task);
        }
    }

    #[inline]
    pub(crate) fn log_leave(&self, worker: &Worker, task: TaskRef, event: Event) {
        if let Some(log) = &self.log {
            log.leave(self.now_ns(), worker.index, task, event);
        }
    }

    pub(crate) fn log_idle(&self, worker: &Worker) {
        if let Some(log) = &self.log {
            log.idle(self.now_ns(), worker.index);
        }
    }

    pub(crate) fn log_steal(&self, worker: &Worker, task: TaskRef, from: u16) {
        if let Some(log) = &self.log {
            log.steal(self.now_ns(), worker.index, task, from);
        }
    }

    #[inline]
    pub(crate) fn log_spawn(&self, worker: Option<&Worker>, task: TaskRef) {
        if let Some(log) = &self.log {
            log.spawn(self.now_ns(), worker.map_or(0, |worker| worker.index), task);
        }
    }

    /// Starts the OS thread of a worker that has none, or whose thread is the caller and about to end.
    pub(crate) fn start_thread(self: &Arc<Shared>, index: usize) -> std::io::Result<()> {
        let worker = &self.workers[index];
        let shared = self.clone();
        let left = Arc::new(AtomicBool::new(false));
        let leaves = left.clone();
        let name = if worker.spare { "janus-spare" } else { "janus" };
        let started = {
            // The thread is recorded here and not when it first runs, which on a busy machine is long after: a caller
            // that asks meanwhile would find none and start another, and a worker must not have two threads. It is
            // recorded under the lock, so that this is not written after what the thread, or its own successor, writes.
            let mut known = worker.thread.lock().unwrap_or_else(PoisonError::into_inner);
            let started = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || shared.thread_main(index, &leaves))?;
            *known = Some(started.thread().clone());
            started
        };
        self.keep_thread(started, left);
        Ok(())
    }

    /// Registers a thread that the runtime waits for at its end.
    pub(crate) fn keep_thread(&self, handle: JoinHandle<()>, left: Arc<AtomicBool>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Thread { handle, left });
    }

    fn thread_main(self: Arc<Shared>, index: usize, left: &AtomicBool) {
        let worker = &self.workers[index];
        let signals = crate::overflow_hooks::on_this_thread();
        worker.bind_thread();
        loop {
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| worker.run_loop()));
            let stained = worker.stained.get() && self.config.migrates();
            match ended {
                Ok(()) if stained => {}
                Ok(()) => return,
                Err(_) => worker.recover(),
            }
            // Tasks that must stay on their thread still have it: then the loop starts anew right here. The same goes
            // for I/O operations under way: the kernel would end them with their thread.
            if self.config.migrates() && (stained || !worker.io.is_open()) {
                // The worker belongs to another thread from now on: this thread may not touch the worker's task, not
                // even to allocate.
                Worker::unbind_thread();
                worker.stained.set(false);
                let culprit = worker.stained_by.take();
                if self.start_thread(index).is_ok() {
                    if !stained {
                        return;
                    }
                    drop(signals);
                    leave_thread(left, culprit.as_deref());
                }
                // No other thread can be started: better to go on with this one than with none.
                worker.bind_thread();
            }
        }
    }
}

/// Ends the calling thread, on which a task was abandoned between any two instructions. The task may have left
/// thread-locals half changed, which nothing may see: so none of their destructors runs, and their memory stays. The
/// kernel ends the I/O that the thread has under way; tasks that wait for it submit it anew (see `carry_out`). Before
/// the thread goes it looks whether the task holds an output; the runtime does not wait for that.
fn leave_thread(left: &AtomicBool, culprit: Option<&str>) -> ! {
    left.store(true, Ordering::Release);
    if let Some(culprit) = culprit {
        crate::output::examine(culprit);
    }
    // SAFETY: ends this thread and nothing else; its stack and its thread-locals stay mapped, as its handle is never
    // joined.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended");
}

/// An M:N runtime: workers, queues, stacks and the clock. See the [crate]'s page for a tour. There may be any number of
/// runtimes side by side; a task of one may use channels to tasks of another.
///
/// Dropping it stops its workers, after the tasks that other threads still run on it have ended.
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
}

impl Runtime {
    /// Starts the workers. [`main`](macro@crate::main) does so for a program that needs only one runtime.
    ///
    /// # Safety
    /// Many tasks take turns on one OS thread, and a task may continue on another thread after a *suspension*, which is
    /// any call that is given a [`Cx`]. Code that was written for threads expects neither. The caller makes the
    /// following promise for all tasks of the runtime; it is the only promise that the crate asks for:
    ///
    /// 1. No task suspends inside a scope of a thread-local that another crate sets for that scope and shows to any
    ///    code that asks on the same thread: `scoped_tls::ScopedKey::set` and the like. Other tasks would see the
    ///    value, and keep it longer than it lives.
    /// 2. No task keeps across a suspension anything that is bound to its thread: a reference into a `thread_local!`,
    ///    an `Rc` that was cloned out of one (`rand::rng()` is such a value), a guard of a `std` lock or of standard
    ///    output. [`Config::pinned`] lifts this point.
    /// 3. With [`Config::pinned`] only: when a task that may be given up ([`Spawn::owned`](crate::Spawn::owned)) is
    ///    given up, it is not in the middle of changing a thread-local that `unsafe` code relies on. (Without `pinned`,
    ///    the thread is given up with the task.)
    ///
    /// A program that keeps nothing of a thread-local, and no guard of a `std` lock, across a wait may make this
    /// promise.
    ///
    /// ```
    /// use janus::{Config, Runtime};
    /// // SAFETY: the tasks keep nothing of their thread across a suspension.
    /// let runtime = unsafe { Runtime::new(Config::new()) }?;
    /// assert_eq!(runtime.run(|_cx| 6 * 7)?, 42);
    /// # Ok::<(), janus::RuntimeError>(())
    /// ```
    pub unsafe fn new(config: Config) -> Result<Runtime, RuntimeError> {
        config.check()?;
        crate::overflow_hooks::install()?;
        panics::install_hook();
        let shared = Shared::new(config);
        let runtime = Runtime { shared };
        for index in 0..runtime.shared.active_workers() {
            runtime.shared.start_thread(index)?;
        }
        Monitor::start(&runtime.shared)?;
        Ok(runtime)
    }

    /// Runs `main` as a task and waits for it; it may borrow from the caller. All other tasks are its descendants. If
    /// it, or a descendant that borrows from it, overflows its stack or exceeds its memory reserve, the process ends:
    /// see [`Spawn::owned`](crate::Spawn::owned).
    #[track_caller]
    pub fn run<T, F>(&self, main: F) -> Result<T, RuntimeError>
    where
        F: FnOnce(&Cx) -> T + Send,
        T: Send,
    {
        self.run_as(0, main)
    }

    /// As [`run`](Runtime::run), for a task that borrows nothing: whatever happens to it is returned as its error.
    #[track_caller]
    pub fn run_owned<T, F>(&self, main: F) -> Result<T, RuntimeError>
    where
        F: FnOnce(&Cx) -> T + Send + 'static,
        T: Send + 'static,
    {
        self.run_as(flag::OWNED, main)
    }

    #[track_caller]
    fn run_as<T, F>(&self, owned: u16, main: F) -> Result<T, RuntimeError>
    where
        F: FnOnce(&Cx) -> T + Send,
        T: Send,
    {
        let shared = &*self.shared;
        if current_worker()
            .is_some_and(|worker| std::ptr::eq(worker.shared, shared) && worker.task().is_some())
        {
            return Err(RuntimeError::InsideTask);
        }
        let parker = Parker::mine();
        let terms = Terms {
            pool: Pool::Own(crate::budget::Budget::UNLIMITED),
            share: shared.config.root_budget,
            recharge: shared.config.recharge(),
            on_exhausted: OnExhausted::default(),
            cancel_on_error: false,
        };
        let nursery = Nursery::new(shared, Waiter::thread(parker), &terms);
        let order = Order {
            budget: Some(shared.config.root_budget),
            stack: shared.config.root_stack,
            flags: flag::MAY_SPAWN | flag::MAY_RECHARGE | owned,
            name: Some(Naming::Static("main")),
            ..Order::new(shared, Location::caller())
        };
        let spawned = job::spawn(&nursery, None, order, main);
        let task = spawned.map_err(|error| RuntimeError::Task(TaskError::Failed(Arc::new(error))))?;
        nursery.close();
        while !nursery.expect() {
            // The task may have spent its budget before we began to wait.
            if nursery.is_starving() {
                nursery.starve(None, None, 0);
            }
            parker.park(None);
        }
        // SAFETY: it is the task's only handle, and the task has ended.
        let result = unsafe { job::take_result::<T>(task) };
        shared.tasks.give(task);
        match result {
            Ok(value) => Ok(value),
            // The nursery has kept the complete error.
            Err(error) => Err(RuntimeError::Task(nursery.take_error().unwrap_or(error))),
        }
    }

    /// The configuration that the runtime was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.monitor.stop();
        self.shared.pool.close();
        loop {
            for worker in &self.shared.workers {
                worker.unpark();
            }
            let thread = self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(thread) = thread else { break };
            // A worker may have been about to sleep when it was unparked: unpark again, until it is gone.
            while !thread.handle.is_finished() && !thread.left.load(Ordering::Acquire) {
                for worker in &self.shared.workers {
                    worker.unpark();
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            if thread.left.load(Ordering::Acquire) {
                std::mem::forget(thread.handle);
            } else {
                let _ = thread.handle.join();
            }
        }
        // A channel may still be about to wake a task that has ended meanwhile.
        while self.shared.guests.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}
