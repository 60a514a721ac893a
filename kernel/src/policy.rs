//! The share of a thread: what was chosen for it, and what it inherits from its creator (F-05, F-06, F-07).

use crate::dispatch::percpu;
use crate::thread::SchedRef;
use crate::time;
use crate::tracing;
use core::sync::atomic::AtomicU64;
use sched::{LatencyClass, Runnable, Weight};

/// The object behind a SchedulingPolicy. It has only an epoch, so that it can be revoked.
pub struct Gate {
    /// Moves on when capabilities are revoked: see `object`.
    pub epoch: AtomicU64,
}

impl Gate {
    /// A new one, in its first epoch.
    pub fn new() -> Gate {
        Gate { epoch: AtomicU64::new(1) }
    }
}

/// Weight and class that were chosen for a thread; it inherits from its creator what was not chosen.
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

    /// Gives the share to a thread that has not run yet, together with its creator's debt: otherwise a chain of threads, each of which creates
    /// the next, would not pay for the time that it uses.
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
            // Cannot fail: a `Weight` was checked when it was made.
            let given = runnable.set_weight(weight.get());
            debug_assert!(given.is_ok());
        }
        if let Some(class) = self.class.or(made_by.map(|maker| maker.class)) {
            runnable.set_class(class);
        }
    }
}
