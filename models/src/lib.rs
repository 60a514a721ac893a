//! Exhaustive and memory-model checks of the protocol around the scheduling core (M-01, M-02).
//!
//! `sched` has no locks; a kernel puts one around each [`sched::Cpu`]. What can go wrong *between* those locks (a lost
//! wake-up, a thread that nobody owns, a deadlock) is the subject of this crate. The glue is written once and driven in
//! three ways:
//! * [`ownership`]: a stateright model that visits every interleaving of the glue's steps on a few CPUs and threads;
//! * `tests/stress.rs`: real OS threads and real locks, some hundred threads, random operations;
//! * `tests/doorbell_loom.rs`: loom, for the one lock-free piece ([`doorbell`]) and its memory orderings.
//!
//! Contexts and loans are the kernel's, above the core: [`loans`] drives the kernel's own book of loans, [`lives`] its machine of a thread's
//! life, [`leases`] its book of leases, all from `kernel/core`. [`teardown`] has the order of the locks around them, and stands for itself.
//!
//! Each of them is also run with a bug planted ([`Flaw`], [`loans::Flaw`], [`teardown::Flaw`]), and must find it.
//!
//! # The parts
//! [`sync`] is the only module that names an atomic or a lock. [`doorbell`] and [`board`] are what CPUs tell each other
//! without locks; [`record`] is a thread as the kernel keeps it; [`protocol`] has the steps; [`core`] strings them
//! together as a CPU does. [`search`] is what the tests of the stateright models share.
#![forbid(unsafe_code)]

pub mod board;
pub mod core;
pub mod doorbell;
pub mod leases;
pub mod lives;
pub mod loans;
pub mod ownership;
pub mod protocol;
pub mod record;
pub mod search;
pub mod sync;
pub mod teardown;
pub mod world;

/// A bug that can be planted, to show that the checks can fail. A kernel has none of these branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The waker looks whether the target is idle *before* it queues the thread, and rings only then.
    IdleCheckedTooEarly,
    /// A thief notes the first ticket of the victim, drops the lock, takes by that ticket later, and goes on as if it had
    /// got something when there is nothing.
    StaleSteal,
    /// A waker that finds the target busy drops what it holds.
    WakeForgotten,
    /// A CPU parks its thread without looking whether a wake came in the meantime.
    PermitIgnored,
    /// A bell is answered with `Cpu::timer`, whose `Keep` is relative to what the *waker* was told.
    TimerTrusted,
    /// A thief takes its own lock first, whatever the numbers.
    LocksUnordered,
    /// A CPU halts without a second look after it announced that it is idle.
    NoRecheck,
    /// The second look is there, but no fence before it.
    NoFence,
    /// A CPU that was called to help, and has work of its own by then, does not pass the call on.
    CallNotPassedOn,
}
