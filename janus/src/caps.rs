//! Capabilities: SPEC-021 [SCHED:1.1.2], [SCHED:3.2.3] "Budget recharge mechanisms", [SCHED:10.2.4]. A capability is a
//! value that only the runtime can make: holding it proves the right, passing it on grants it.

use crate::budget::Budget;
use crate::error::RechargeError;
use crate::lock::SpinLock;
use std::fmt;

/// The right to spawn. In `:service` every task has it; in `:cluster` and `:sovereign` only tasks to which it was
/// granted with [`Spawn::grant_spawn`](crate::Spawn::grant_spawn).
#[derive(Clone, Copy, Debug)]
pub struct CapSpawn(());

impl CapSpawn {
    pub(crate) fn new() -> CapSpawn {
        CapSpawn(())
    }
}

/// The right of a task to recharge itself, up to a limit in all. Share it by reference.
///
/// ```
/// # use janus::{Budget, Config, RechargeError, Resource, Runtime};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// let again = runtime.run(|cx| {
///     let hundred = Budget { ops: 100, ..Budget::ZERO };
///     let capability = cx.cap_budget(hundred)?;
///     cx.recharge(&capability, &hundred)?;
///     cx.recharge(&capability, &hundred)
/// }).unwrap();
/// assert_eq!(again, Err(RechargeError::Exhausted(Resource::Ops)));
/// ```
pub struct CapBudget(SpinLock<Budget>);

impl CapBudget {
    pub(crate) fn new(limit: Budget) -> CapBudget {
        CapBudget(SpinLock::new(limit))
    }

    /// What may still be taken from the limit.
    #[must_use]
    pub fn left(&self) -> Budget {
        *self.0.lock()
    }

    pub(crate) fn take(&self, amount: &Budget) -> Result<(), RechargeError> {
        self.0.lock().take_all(amount).map_err(RechargeError::Exhausted)
    }
}

impl fmt::Debug for CapBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapBudget").field(&self.left()).finish()
    }
}
