//! The scheduling core: which thread runs next on a CPU, and until when.
//!
//! The kernel, the simulator, the fuzzer and the models all call these functions. The crate knows nothing of
//! the machine it runs on: it has no clock (time is an argument), no locks (the caller holds the lock of each
//! [`Cpu`] it passes), and no allocation outside the creation of a thread, a context or a CPU.
//!
//! # The shape
//! * One [`Cpu`] is all the scheduling state of one processor and is meant to live under one lock of its own.
//!   No type here owns two of them; [`steal`](Cpu::steal_from) and [`balance`](Cpu::balance_from) borrow two.
//! * A thread is owned by exactly one place, and the owner is a value that can only be moved: [`Blocked`] (held by the
//!   caller, not runnable), [`Runnable`] (held by the caller, about to be queued), or inside one `Cpu`
//!   (queued, throttled, in the direct slot, or running). A second owner does not compile:
//! * An event is a method that takes `now` and returns what must happen next: [`Effect`] (keep running, re-arm the
//!   timer, or dispatch) or [`Decision`] (who runs and until when). Both are `#[must_use]`.
//!
//! # Two tiers
//! Threads with a [`Context`] that has budget run first: by criticality band, then earliest deadline. All others share
//! what is left by weight, ordered by a [`Policy`] ([`Wfq`] or [`Eevdf`]).
//!
//! # Invariants
//! Numbered where they are kept; [`Cpu::check`] asserts all of them.
//! * **I1** every queue is a B+ tree on [`Key`] with full enough nodes and exact summaries, and every thread in it brought one node;
//! * **I2** the virtual clock's sums equal the sums over the fair threads of this CPU;
//! * **I3** the high-water mark of the virtual clock never goes back;
//! * **I4** a context's refills add up to its budget;
//! * **I5** thread + idle + interrupt time = wall time since the CPU's start;
//! * **I6** the reserved utilisation equals the sum over the contexts admitted or hosted here, each has one promise, and it stays within the bound;
//! * **I7** every queued thread may run on this CPU.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod account;
mod balance;
mod budget;
mod check;
mod clock;
mod context;
mod cpu;
mod decision;
mod demand;
mod entity;
mod fair;
mod ledger;
mod lend;
mod mask;
mod miss;
mod node;
mod params;
mod place;
mod policy;
mod promise;
mod queue;
mod serve;
mod tickets;
mod topology;

pub use account::{CpuTime, Snapshot};
pub use balance::{BalancePlan, MoveOutcome, Summary, balance_plan, most_overdue, next_balance_ns};
pub use check::Violation;
pub use context::{
    AdmissionError, Context, ContextId, ContextInfo, Overrun, Proposal, Refused, Spec, SpecError, Utilisation,
};
pub use cpu::Cpu;
pub use decision::{
    Decision, Effect, Evicted, EvictionReason, Exchanged, Misplaced, NotReady, Noted, Replaced, Taken,
};
pub use demand::{Demand, Overheads, Reason, Witness, judge_all};
pub use entity::{Blocked, EmptyMask, Key, Payload, QueueKind, Runnable, THREAD_BYTES, ThreadId, Ticket};
pub use fair::Fair;
pub use ledger::{Ledger, Refill};
pub use mask::{CpuId, CpuMask, MAX_CPUS, MaskError};
pub use miss::Missed;
pub use params::*;
pub use place::{CpuMap, Placement, place};
pub use policy::{Eevdf, Policy, PolicyKind, Wfq};
pub use promise::{Held, Successor, Survey, Verdict};
pub use topology::{CpuIds, Level, Topology, TopologyError};

/// "No timer needed": the instant that never comes.
pub const FOREVER: u64 = u64::MAX;
