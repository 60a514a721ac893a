//! The counters of the scheduler, which are always on (T-01). Each CPU has its own, in cache lines of its own: counting is a load and a store.

use crate::arch::percpu;
use core::sync::atomic::{AtomicU64, Ordering};

/// Interrupts with an unknown vector, on any CPU.
pub static UNEXPECTED_INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// A number that one CPU changes and others read.
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds one. Only on the CPU that the counter belongs to, or under the lock that its comment names.
    #[inline(always)]
    pub fn bump(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    /// Raises it to `value`, if it is lower.
    #[inline(always)]
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// Sets it to `value`.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $how:ident,)*) => {
        /// The counters of one CPU.
        #[repr(align(64))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// All 0.
            pub const fn new() -> Counters {
                Counters { $($name: Counter::new(),)* }
            }
        }

        /// How many there are.
        pub const COUNT: usize = [$(stringify!($name)),*].len();

        /// All of them, over all CPUs: name and value.
        pub fn all() -> [(&'static str, u64); COUNT] {
            [$((stringify!($name), over_all!($how, $name))),*]
        }
    };
}

macro_rules! over_all {
    (sum, $name:ident) => {
        percpu::all().map(|cpu| cpu.counters.$name.get()).sum::<u64>()
    };
    (of_worst, $name:ident) => {
        percpu::all()
            .max_by_key(|cpu| cpu.counters.interrupts_off_max.get())
            .map_or(0, |cpu| cpu.counters.$name.get())
    };
    (max, $name:ident) => {
        percpu::all().map(|cpu| cpu.counters.$name.get()).max().unwrap_or(0)
    };
}

counters! {
    /// Timer interrupts.
    ticks: sum,
    /// Timers that were armed for a time that had already passed.
    oneshot_misses: sum,
    /// Switches from one thread to another, or to or from the idle loop.
    switches: sum,
    /// Threads that an idle CPU stole from others.
    steals: sum,
    /// Threads that a busy CPU pulled because the virtual clocks were too far apart.
    balance_moves: sum,
    /// Wake-ups on the CPU where the thread ran last.
    wakes_stayed: sum,
    /// Wake-ups on another CPU, which was idle.
    wakes_to_idle: sum,
    /// Wake-ups on another CPU, which was busy; new threads, too.
    wakes_to_loaded: sum,
    /// Wake-ups for which no CPU was found.
    wakes_failed: sum,
    /// Interrupts sent to other CPUs.
    ipis_sent: sum,
    /// The most threads that were queued on one CPU. Under that CPU's lock.
    queue_depth_max: max,
    /// Direct handoffs: threads that took over the CPU of a thread that blocked for them.
    handoffs_taken: sum,
    /// Threads that were to do so but were queued instead.
    handoffs_flushed: sum,
    /// Shootdowns: how often other CPUs had to flush translations.
    tlb_shootdowns: sum,
    /// Exits for which it was checked that no queue named the thread.
    exits_checked: sum,
    /// Locks that other CPUs use, too, taken between the decision to switch a thread out and the next one's first step. Must stay 0. Counted by
    /// builds with debug assertions, like lock ranks.
    shared_locks_in_dispatch: sum,
    /// Contexts that were lent along a call.
    loans: sum,
    /// The most calls that one context was lent along at a time.
    loan_depth_max: max,
    /// Threads that were stopped because their budget was spent, and reported.
    timeout_faults: sum,
    /// How often a budget was used up.
    budgets_exhausted: sum,
    /// How often a deadline passed before its budget was used.
    deadlines_missed: sum,
    /// Contexts that a CPU admitted.
    contexts_admitted: sum,
    /// Contexts that no CPU admitted.
    contexts_denied: sum,
    /// Other CPUs' queue locks, taken for a wake-up.
    queue_locks_by_wakes: sum,
    /// Other CPUs' queue locks, taken to steal.
    queue_locks_by_steals: sum,
    /// Other CPUs' queue locks, taken to balance.
    queue_locks_by_balance: sum,
    /// Ticks of the longest interrupts-off span, and what it was spent on (`irqoff`).
    interrupts_off_max: max,
    /// See `interrupts_off_max`.
    interrupts_off_path: of_worst,
    /// Interrupts-off spans of more than 20,000 ticks.
    interrupts_off_over_20k: sum,
    /// Interrupts-off spans of more than 50,000 ticks.
    interrupts_off_over_50k: sum,
}
