//! Counters: SPEC-021 [SCHED:6.1.1] `stats`. Each worker writes its own; any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A worker's own counters; only its thread writes them.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        /// What a worker, or all of them together, did since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct WorkerStats { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> WorkerStats {
                WorkerStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl WorkerStats {
            /// Adds the counters of another worker.
            pub fn merge(&mut self, other: &WorkerStats) { $(self.$name += other.$name;)* }

            /// Name and value of each counter.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Tasks spawned on this worker.
    spawned,
    /// Tasks that ended on this worker, in whatever way.
    completed,
    /// Times a task yielded to another, by itself or at the end of its quantum.
    yields,
    /// Tasks taken from another worker.
    tasks_stolen,
    /// Attempts to steal that found nothing.
    steals_failed,
    /// Times the worker went to sleep.
    parks,
    /// Times the worker slept for a bounded time only, 1 µs to 1 ms, and then looked again by itself.
    naps,
    /// Tasks stopped because a part of their budget was spent.
    exhaustions,
    /// Panics of tasks.
    panics,
    /// Stack overflows of tasks.
    overflows,
    /// Times the worker itself panicked and was replaced.
    worker_panics,
}

impl Counters {
    /// Only the owner writes, so no atomic addition is needed.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
