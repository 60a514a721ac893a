//! The runtime root: SPEC-021 [SCHED:2.1.2] to [SCHED:2.7.2]. It owns the workers, the queues, the pools and the clock;
//! there may be any number of runtimes, and nothing here is global but what the operating system keeps for the process:
//! the signal handlers and the panic hook.

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
use crate::nursery::{Nursery, Pool, Terms};
use crate::panics;
use crate::stack::{Stack, StackPool};
use crate::state::Event;
use crate::task::{Outcome, TaskPool, TaskRef, Vtable, flag};
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
    /// Those of the configuration, then the spares.
    pub(crate) workers: Box<[Worker]>,
    active: AtomicUsize,
    pub(crate) idle: Idle,
    pub(crate) common: Common,
    pub(crate) tasks: TaskPool,
    pub(crate) stacks: StackPool,
    pub(crate) blocks: Blocks,
    pub(crate) timers: Timers,
    /// For calls that can only block.
    pub(crate) pool: Arc<crate::io::pool::Pool>,
    /// Workers that sleep for a bounded time.
    pub(crate) napping: AtomicUsize,
    /// The parked worker that watches the clock; `u16::MAX`: none.
    keeper: AtomicU16,
    started: Instant,
    /// Deterministic mode's time.
    virtual_ns: AtomicU64,
    stop: AtomicBool,
    /// Who is about to wake a task of this runtime from outside: it stays until they have.
    pub(crate) guests: AtomicUsize,
    /// Deterministic mode: steps so far, and the hash of their order.
    pub(crate) order: [AtomicU64; 2],
    foreign_ids: AtomicU64,
    pub(crate) log: Option<Log>,
    pub(crate) monitor: Monitor,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

// SAFETY: raw pointers in it are to itself; everything else is shared by atomics and locks.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // Somebody may still refer to the frames of an abandoned stack, unless it was promised that nobody does.
        if !self.config.trusting && self.stacks.counts().abandoned > 0 {
            std::mem::forget(std::mem::replace(&mut self.stacks, StackPool::new(true)));
        }
    }
}

impl Shared {
    fn new(config: Config) -> Arc<Shared> {
        let real = if config.seed.is_some() { 1 } else { config.workers };
        let spares = if config.seed.is_some() || config.watchdog.is_none() { 0 } else { config.spares };
        let seed = config.seed.unwrap_or(0);
        let workers: Vec<Worker> =
            (0..real + spares).map(|index| Worker::new(index as u16, index >= real, seed)).collect();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut shared = Arc::new(Shared {
            idle: Idle::with_searchers(workers.len(), cpus),
            workers: workers.into(),
            active: AtomicUsize::new(real),
            common: Common::new(),
            tasks: TaskPool::new(),
            stacks: StackPool::new(config.plain_guards),
            blocks: Blocks::new(),
            timers: Timers::new(),
            pool: crate::io::pool::Pool::new(config.blocking_threads),
            napping: AtomicUsize::new(0),
            keeper: AtomicU16::new(u16::MAX),
            started: Instant::now(),
            virtual_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
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

    /// Workers that run tasks now: those of the configuration and the spares on duty.
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

    /// A ready task goes where it will be found: into a queue of the worker `here`, if that is one of ours, or of the
    /// worker that must run it, or into the common queue.
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

    /// There is work: somebody who sleeps is woken for it, unless somebody searches.
    pub(crate) fn notify(&self) {
        if let Some(index) = self.idle.notify() {
            self.workers[index].unpark();
        }
    }

    /// The same, by a worker about its own queue: alone, it will find it itself.
    #[inline]
    pub(crate) fn notify_from(&self, _worker: &Worker) {
        if self.active_workers() > 1 {
            self.notify();
        }
    }

    /// The same for a task that ran before. If it is alone in the worker's queues, it is most likely the next to run there,
    /// and to wake another worker for it would cost more than the task: somebody who naps will look soon enough.
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

    /// Is there anything that any worker could run?
    pub(crate) fn work_visible(&self) -> bool {
        !self.common.is_empty() || self.workers.iter().any(|worker| worker.stealable() > 0)
    }

    /// Wakes whose time has come. Deterministic mode moves its time itself.
    pub(crate) fn fire_timers(&self, here: Option<&Worker>) {
        if self.timers.first() != NEVER && !self.is_deterministic() {
            self.timers.fire(self.now_ns(), here);
        }
    }

    /// Is `worker`, which parks, the one that watches the clock?
    pub(crate) fn keep_time(&self, worker: u16) -> bool {
        self.keeper.compare_exchange(u16::MAX, worker, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The keeper leaves its park. If it has been counted as searching by then, nobody is called here; it answers for the
    /// clock when it ends its search (`somebody_wanted`).
    pub(crate) fn release_time(&self, keeper: bool) {
        if keeper {
            self.keeper.store(u16::MAX, Ordering::Release);
            self.find_keeper();
        }
    }

    /// Nobody watches the clock, and there are timers. Who runs looks at them between tasks, but may get into one that never
    /// ends: somebody who sleeps is woken, finds nothing, and keeps the time from then on.
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

    /// Must a worker that leaves the search, or its park, to run something wake another one: for work, or for the clock?
    pub(crate) fn somebody_wanted(&self) -> bool {
        self.work_visible() || self.unkept()
    }

    /// A timer was armed that comes before all others: whoever watches the clock looks again.
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

    /// Deterministic mode: steps, and the hash of their order.
    pub(crate) fn order(&self) -> Option<(u64, u64)> {
        let [steps, hash] = &self.order;
        self.is_deterministic().then(|| (steps.load(Ordering::Acquire), hash.load(Ordering::Acquire)))
    }

    /// A number for a task that no worker makes.
    pub(crate) fn foreign_id(&self) -> u64 {
        let stride = self.workers.len() as u64 + 1;
        (self.foreign_ids.fetch_add(1, Ordering::Relaxed) + 1) * stride + stride - 1
    }

    /// A task was abandoned on its stack. It gets another one, on which it waits for its own children, who may refer to
    /// the first; then it ends.
    pub(crate) fn bury(&self, task: TaskRef, here: &Worker) {
        static BURIED: Vtable = Vtable { run: reap, drop_closure: reap, drop_value: reap };
        // SAFETY: the task is ours and will not go on; its closure was moved out when it began, so the payload is free.
        unsafe {
            let stack = (*task.stack.get()).take().expect("an abandoned task has a stack");
            task.payload.get().cast::<Stack>().write(stack);
        }
        // It may have been abandoned while it was quiet.
        task.quiet.set(0);
        task.vtable.set(Some(&BURIED));
        here.push(task);
    }

    pub(crate) fn give_abandoned(&self, stack: Stack) {
        if self.config.trusting { self.stacks.recycle(stack) } else { self.stacks.retire(stack) }
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

    /// Starts the OS thread of a worker, which has none, or whose thread is the caller and ends.
    pub(crate) fn start_thread(self: &Arc<Shared>, index: usize) -> std::io::Result<()> {
        let worker = &self.workers[index];
        let shared = self.clone();
        let name = if worker.spare { "janus-spare" } else { "janus" };
        let started = {
            // The thread is named here and not when it first runs, which on a busy machine is long after: who asks meanwhile
            // would find none and start another, and a worker with two threads is no worker. Under the lock, so that this
            // is not written after what the thread, or its own successor, writes.
            let mut known = worker.thread.lock().unwrap_or_else(PoisonError::into_inner);
            let started = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || shared.thread_main(index))?;
            *known = Some(started.thread().clone());
            started
        };
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        Ok(())
    }

    fn thread_main(self: Arc<Shared>, index: usize) {
        let worker = &self.workers[index];
        let _signals = crate::overflow_hooks::on_this_thread();
        worker.bind_thread();
        loop {
            match std::panic::catch_unwind(AssertUnwindSafe(|| worker.run_loop())) {
                Ok(()) if self.stopping() => return,
                Ok(()) => worker.stained.set(false),
                Err(_) => worker.recover(),
            }
            // Tasks that must stay with their thread have it: then the loop starts anew right here.
            // So have the I/O operations that it has under way: the kernel ends them with their thread.
            if self.config.migrates() && !worker.io.is_open() {
                // The worker is another thread's from now on: this one may not touch its task, even to allocate.
                Worker::unbind_thread();
                if self.start_thread(index).is_ok() {
                    return;
                }
                worker.bind_thread();
            }
        }
    }
}

/// What a buried task runs: see [`Shared::bury`].
unsafe fn reap(task: TaskRef) {
    // SAFETY: `bury` wrote it.
    let stack = unsafe { task.payload.get().cast::<Stack>().read() };
    let cx = Cx::of(task);
    let mut nursery = task.open.get();
    // SAFETY: the nurseries lie in the abandoned frames, which are still there.
    while let Some(open) = unsafe { nursery.as_ref() } {
        open.cancel(Some(cx.worker()));
        cx.wait_for_children(open, Location::caller());
        cx.give_pool(&open.end_pool());
        nursery = open.outer.get();
        if let Some(dispose) = open.dispose.get() {
            // SAFETY: its children have ended, and the frames that could await it will not go on.
            unsafe { dispose(open) };
        }
    }
    task.open.set(std::ptr::null());
    cx.worker().shared().give_abandoned(stack);
    let outcome = if task.has(flag::OVERDRAWN) {
        Outcome::Budget(crate::budget::Resource::Memory)
    } else {
        Outcome::StackOverflow
    };
    // SAFETY: the task is ours.
    unsafe { *task.outcome.get() = outcome };
}

/// An M:N runtime: workers, queues, stacks and the clock. See the [crate]'s page for a tour. There may be any number of them
/// side by side; a task of one may use channels to tasks of another.
///
/// Dropping it stops its workers, after the tasks that other threads still run on it have ended.
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
}

impl Runtime {
    /// Starts the workers.
    pub fn new(config: Config) -> Result<Runtime, RuntimeError> {
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

    /// Runs `main` as a task and waits for it; it may borrow what the caller has. Everything else hangs on it.
    #[track_caller]
    pub fn run<T, F>(&self, main: F) -> Result<T, RuntimeError>
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
            cancel_on_error: false,
        };
        let nursery = Nursery::new(shared, Waiter::thread(parker), &terms);
        let order = Order {
            budget: Some(shared.config.root_budget),
            stack: shared.config.root_stack,
            capabilities: flag::MAY_SPAWN | flag::MAY_RECHARGE,
            name: Some("main"),
            ..Order::new(shared, Location::caller())
        };
        let spawned = job::spawn(&nursery, None, order, main);
        let task = spawned.map_err(|error| RuntimeError::Task(TaskError::Failed(Arc::new(error))))?;
        nursery.close();
        while !nursery.expect() {
            // It may have run out of its budget before anybody waited.
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
            // What a nursery keeps of an error is the whole of it.
            Err(error) => Err(RuntimeError::Task(nursery.take_error().unwrap_or(error))),
        }
    }

    /// The configuration it was made with.
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
            // A worker may have been about to sleep when it was unparked: again, until it is gone.
            while !thread.is_finished() {
                for worker in &self.shared.workers {
                    worker.unpark();
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            let _ = thread.join();
        }
        // Channels may still hold a wake in hand for a task that has ended meanwhile.
        while self.shared.guests.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}
