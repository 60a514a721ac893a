//! How a runtime is made.

use crate::budget::Budget;
use crate::error::RuntimeError;
use crate::io::Backend;
use crate::monitor::Hog;
use crate::nursery::Recharge;
use crate::stack::StackClass;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most workers that a runtime may have.
pub const MAX_WORKERS: usize = 960;

/// Operations after which a task yields to others, even with budget left.
pub const QUANTUM: u64 = 1024;

/// What a task may allocate beyond its budget until it next checks: room for one or two careless allocations.
pub(crate) const MEMORY_RESERVE: u64 = 4 << 20;

/// Language profiles: SPEC-021 [SCHED:10.2.1] to [SCHED:10.2.4].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// `:core`, single-threaded: there is no runtime.
    Core,
    /// `:service`: capabilities are implicit, and the pool recharges children automatically.
    #[default]
    Service,
    /// `:cluster`: supervisors recharge children.
    Cluster,
    /// `:sovereign`: nothing is implicit. Spawning needs a `CapSpawn`; a task that recharges itself needs a
    /// `CapBudget`.
    Sovereign,
}

impl Profile {
    /// Iterations of a loop between two checks [SCHED:4.3.1]; [`Cx::ticker`](crate::Cx::ticker) counts them.
    #[must_use]
    pub const fn yield_interval(self) -> u64 {
        match self {
            Profile::Core | Profile::Service | Profile::Sovereign => 1024,
            Profile::Cluster => 512,
        }
    }

    /// The specification's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Core => ":core",
            Profile::Service => ":service",
            Profile::Cluster => ":cluster",
            Profile::Sovereign => ":sovereign",
        }
    }
}

/// Where a worker without work looks for some first [SCHED:7.3.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// At a random worker, chosen by a seeded generator.
    #[default]
    RandomVictim,
    /// At one worker after the other.
    RoundRobin,
    /// At the worker with the most tasks to take.
    LeastLoaded,
}

type OnHog = Arc<dyn Fn(&Hog) + Send + Sync>;

/// The settings of a runtime. Every setting has a default; change what you need.
///
/// ```
/// use janus::{Config, Profile, Runtime, RuntimeError};
/// use std::time::Duration;
///
/// let config = Config::new().workers(2).profile(Profile::Cluster).watchdog(Some(Duration::from_millis(20)));
/// assert!(unsafe { Runtime::new(config.clone()) }.is_ok());
/// assert!(matches!(unsafe { Runtime::new(config.workers(0)) }, Err(RuntimeError::NoWorkers)));
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) workers: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) profile: Profile,
    pub(crate) strategy: Strategy,
    pub(crate) quantum: u64,
    pub(crate) yield_interval: u64,
    pub(crate) watchdog: Option<Duration>,
    pub(crate) spares: usize,
    pub(crate) root_budget: Budget,
    pub(crate) root_stack: StackClass,
    pub(crate) stack: StackClass,
    pub(crate) memory_reserve: u64,
    pub(crate) trace_events: usize,
    pub(crate) pinned: bool,
    pub(crate) plain_guards: bool,
    pub(crate) backend: Backend,
    pub(crate) blocking_threads: usize,
    pub(crate) on_hog: Option<OnHog>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("workers", &self.workers)
            .field("seed", &self.seed)
            .field("profile", &self.profile)
            .field("strategy", &self.strategy)
            .field("quantum", &self.quantum)
            .field("watchdog", &self.watchdog)
            .field("pinned", &self.pinned)
            .finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// One worker for every CPU that the process may use, the `:service` profile, and a watchdog that looks for tasks
    /// that run for 100 ms without a check.
    #[must_use]
    pub fn new() -> Config {
        Config {
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS),
            seed: None,
            profile: Profile::Service,
            strategy: Strategy::RandomVictim,
            quantum: QUANTUM,
            yield_interval: Profile::Service.yield_interval(),
            watchdog: Some(Duration::from_millis(100)),
            spares: 4,
            root_budget: Budget::UNLIMITED,
            root_stack: StackClass::Huge,
            stack: StackClass::Medium,
            memory_reserve: MEMORY_RESERVE,
            trace_events: 0,
            pinned: false,
            plain_guards: false,
            backend: Backend::Auto,
            blocking_threads: 16,
            on_hog: None,
        }
    }

    /// The number of workers, from 1 to [`MAX_WORKERS`].
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Config {
        self.workers = workers;
        self
    }

    /// Deterministic mode: the workers are virtual, time is virtual, and this seed decides which task runs when. There
    /// is no watchdog then, and a task that never checks is never interrupted.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Config {
        self.seed = Some(seed);
        self
    }

    /// The language profile; it also sets the yield interval.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Config {
        self.profile = profile;
        self.yield_interval = profile.yield_interval();
        self
    }

    /// Iterations of a loop between two checks, in [`Cx::ticker`](crate::Cx::ticker); at least 1.
    #[must_use]
    pub fn yield_interval(mut self, iterations: u64) -> Config {
        self.yield_interval = iterations.max(1);
        self
    }

    /// Where a worker without work looks for some first.
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Config {
        self.strategy = strategy;
        self
    }

    /// Operations after which a task yields to others; at least 1.
    #[must_use]
    pub fn quantum(mut self, operations: u64) -> Config {
        self.quantum = operations.clamp(1, i64::MAX as u64);
        self
    }

    /// How long a task may run without a check before it is named a hog and a spare worker serves its worker's queue;
    /// `None`: there is no watchdog.
    #[must_use]
    pub fn watchdog(mut self, limit: Option<Duration>) -> Config {
        self.watchdog = limit;
        self
    }

    /// How many spare workers the watchdog may start; at most 64.
    #[must_use]
    pub fn spares(mut self, spares: usize) -> Config {
        self.spares = spares.min(64);
        self
    }

    /// The budget that [`Runtime::run`](crate::Runtime::run) gives to the task that it starts.
    #[must_use]
    pub fn root_budget(mut self, budget: Budget) -> Config {
        self.root_budget = budget;
        self
    }

    /// The stack of the task that [`Runtime::run`](crate::Runtime::run) starts.
    #[must_use]
    pub fn root_stack(mut self, class: StackClass) -> Config {
        self.root_stack = class;
        self
    }

    /// The stack of every other task that does not ask for another; the default is [`StackClass::Medium`].
    #[must_use]
    pub fn stack(mut self, class: StackClass) -> Config {
        self.stack = class;
        self
    }

    /// What a task may allocate beyond its memory budget, in all, before it is given up: see [`Charged`](crate::Charged).
    /// 4 MiB by default.
    #[must_use]
    pub fn memory_reserve(mut self, bytes: u64) -> Config {
        self.memory_reserve = bytes;
        self
    }

    /// Keeps the last `events` events of every worker, for [`Runtime::trace`](crate::Runtime::trace).
    #[must_use]
    pub fn trace(mut self, events: usize) -> Config {
        self.trace_events = events;
        self
    }

    /// Calls this function when a hog is found, instead of printing a line to standard error.
    #[must_use]
    pub fn on_hog(mut self, call: impl Fn(&Hog) + Send + Sync + 'static) -> Config {
        self.on_hog = Some(Arc::new(call));
        self
    }

    /// Which of the kernel's interfaces tasks use for I/O.
    #[must_use]
    pub fn io_backend(mut self, backend: Backend) -> Config {
        self.backend = backend;
        self
    }

    /// The most threads that run calls which can only block ([`io::unblock`](crate::io::unblock), name resolution,
    /// opening files); at least 1. They are started when they are needed, and end when they are not.
    #[must_use]
    pub fn blocking_threads(mut self, threads: usize) -> Config {
        self.blocking_threads = threads.clamp(1, 512);
        self
    }

    /// Guards stacks with `mprotect`, as on kernels before 6.13. For tests: such a process has at most some 32,000
    /// stacks.
    #[must_use]
    pub fn plain_guards(mut self) -> Config {
        self.plain_guards = true;
        self
    }

    /// A task that has started stays on the OS thread that first ran it. Then it may keep things across a suspension
    /// that are bound to its thread, such as the guard of a `std` lock or a reference into a `thread_local!` (but see
    /// [`Runtime::new`](crate::Runtime::new) for what remains promised). The price is worse balance: only tasks that
    /// have not started are stolen, and tasks queued behind one that never checks wait with it.
    #[must_use]
    pub fn pinned(mut self) -> Config {
        self.pinned = true;
        self
    }

    /// Whether a task that has started may continue on another worker.
    pub(crate) fn migrates(&self) -> bool {
        !self.pinned
    }

    pub(crate) fn recharge(&self) -> Recharge {
        if self.profile == Profile::Service { Recharge::FromPool } else { Recharge::Manual }
    }

    /// The reason why no runtime can be made with this configuration, if there is one.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        match self.workers {
            _ if self.profile == Profile::Core => Err(RuntimeError::CoreProfile),
            0 => Err(RuntimeError::NoWorkers),
            n if n > MAX_WORKERS => Err(RuntimeError::TooManyWorkers(n)),
            _ => Ok(()),
        }
    }
}
