//! The share of a thread: what was chosen for it, and what it inherits from its maker (F-05, F-06, F-07).

use crate::dispatch::percpu;
use crate::thread::SchedRef;
use crate::time;
use crate::tracing;
use core::sync::atomic::AtomicU64;
use sched::{LatencyClass, Runnable, Weight};

/// What a SchedulingPolicy names: nothing but itself, so that it can be revoked.
pub struct Gate {
    /// See `object`.
    pub epoch: AtomicU64,
}

impl Gate {
    /// A new one.
    pub fn new() -> Gate {
        Gate { epoch: AtomicU64::new(1) }
    }
}

/// Weight and class that somebody chose for a thread; what is missing it has from its maker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Its weight.
    pub weight: Option<Weight>,
    /// Its class.
    pub class: Option<LatencyClass>,
}

impl Share {
    /// Nothing is chosen.
    pub const INHERITED: Share = Share { weight: None, class: None };

    /// Gives it to a thread that has not run yet, together with its maker's debt: a chain of threads, each of which makes the next,
    /// pays for what it uses.
    pub fn give(self, runnable: &mut Runnable<SchedRef>) {
        let me = percpu::this();
        let mut made_by = None;
        if !me.current.get().is_null() {
            let mut queue = me.dispatch.queue.lock();
            let now = time::now_ns();
            let debt_ns = queue.current_debt_ns(now);
            tracing::owes(me, runnable, debt_ns, now);
            runnable.owe(debt_ns);
            made_by = queue.current_snapshot();
        }
        if let Some(weight) = self.weight.or(made_by.map(|maker| maker.weight)) {
            // It is a weight: it was checked when it became one.
            let given = runnable.set_weight(weight.get());
            debug_assert!(given.is_ok());
        }
        if let Some(class) = self.class.or(made_by.map(|maker| maker.class)) {
            runnable.set_class(class);
        }
    }
}
