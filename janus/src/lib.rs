//! janus.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("janus runs on Linux on x86_64: its context switch is written for that. See docs/context-switch.md.");

mod blocks;
pub mod budget;
mod caps;
mod chan;
mod common;
mod config;
pub mod context;
mod cx;
mod deque;
mod det;
mod error;
mod events;
mod idle;
mod job;
mod join;
mod lock;
mod monitor;
mod nursery;
mod observe;
mod overflow;
mod overflow_hooks;
mod panics;
#[doc(hidden)]
pub mod raw;
mod ring;
mod runtime;
mod scope;
mod search;
mod stack;
mod state;
mod stats;
mod sync;
mod task;
mod timers;
mod unwind;
mod waiter;
mod wake;
mod worker;

pub use budget::{Budget, Operation, Resource};
pub use caps::{CapBudget, CapSpawn};
pub use chan::{Arm, Receiver, RecvArm, RecvError, Selected, SendArm, SendError, Sender, channel};
pub use config::{Config, MAX_WORKERS, Profile, QUANTUM, Strategy};
pub use cx::{ChargeError, Cx, TaskId, Ticker};
pub use error::{Cancelled, RechargeError, RuntimeError, SpawnError, TaskError};
pub use monitor::Hog;
pub use nursery::Recharge;
pub use observe::{Dump, Stats, TaskDump};
pub use runtime::Runtime;
pub use scope::{Handle, NurseryError, NurseryOptions, Scope, Spawn, Supervisor};
pub use stack::StackClass;
pub use state::{Event, TaskState};
pub use stats::WorkerStats;
pub use task::{Priority, Wait};
