//! The one vocabulary of scheduling events, for kernel, simulator and M:N runtime alike (T-02).
//!
//! This file is the vocabulary: it needs neither `std` nor an allocator, so the kernel can
//! write [`Event`]s into a fixed ring. Everything that stores, derives or exports events is
//! behind the feature `std` (on by default).
//!
//! # Reading rules
//! A stream of events is read in order, and three rules make it unambiguous:
//! 1. `Run`, `Idle` and `System` say what a CPU does *from now on*. Before the first of them
//!    a CPU is idle.
//! 2. `Preempt`, `Yield`, `Block`, `Exit` and `Throttle` say that the thread gives up the CPU
//!    and why. They come *before* the CPU's next `Run`, `Idle` or `System`; time in between
//!    is system time, so no nanosecond is ever charged to a thread that has left.
//! 3. Everything else is a remark at a point in time and moves no CPU time.
//!
//! This crate may not make scheduling decisions; it only says what was decided.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "std")]
pub mod chrome;
#[cfg(feature = "std")]
pub mod json;
#[cfg(feature = "std")]
mod log;
#[cfg(feature = "std")]
pub mod perfetto;
#[cfg(feature = "std")]
mod runs;
#[cfg(feature = "std")]
mod states;

#[cfg(feature = "std")]
pub use log::{ThreadInfo, Trace, TraceError};
#[cfg(feature = "std")]
pub use runs::{Ending, Run, RunKind};
#[cfg(feature = "std")]
pub use states::{State, StateSpan};

/// One thing that happened on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since the trace began.
    pub time_ns: u64,
    /// The CPU that saw it.
    pub cpu: u16,
    /// What happened.
    pub kind: Kind,
}

// A kernel ring of events is sized in bytes, so a change here is a change of its capacity.
const _: () = assert!(size_of::<Event>() == 24);

/// What happened. Thread ids are the writer's own; a trace names them in its thread table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The CPU starts to run this thread.
    Run {
        /// Who runs.
        thread: u32,
    },
    /// The CPU has nothing to run.
    Idle,
    /// The CPU starts to spend time on overhead: a switch, an IPI, a lock wait.
    System,
    /// The thread begins to exist, runnable.
    Spawn {
        /// Who was made.
        thread: u32,
    },
    /// The thread becomes runnable after a block.
    Wake {
        /// Who woke.
        thread: u32,
    },
    /// The thread loses the CPU while it could still run.
    Preempt {
        /// Who was preempted.
        thread: u32,
    },
    /// The thread gives the CPU away and stays runnable.
    Yield {
        /// Who yielded.
        thread: u32,
    },
    /// The thread waits for something other than the CPU.
    Block {
        /// Who blocked.
        thread: u32,
    },
    /// The thread is gone.
    Exit {
        /// Who ended.
        thread: u32,
    },
    /// An idle CPU (the event's) took the thread from another CPU's queue.
    Steal {
        /// Who was moved.
        thread: u32,
        /// The CPU that lost it.
        from: u16,
    },
    /// The periodic balance step moved the thread to the event's CPU.
    Balance {
        /// Who was moved.
        thread: u32,
        /// The CPU that lost it.
        from: u16,
    },
    /// Wake placement put the thread on the event's CPU.
    Place {
        /// Who was placed.
        thread: u32,
        /// The CPU where it last ran.
        from: u16,
    },
    /// The thread's budget is spent: it waits in the refill queue.
    Throttle {
        /// Who is throttled.
        thread: u32,
    },
    /// The thread's budget was refilled; a throttled thread is runnable again.
    Refill {
        /// Whose budget.
        thread: u32,
    },
    /// The thread's budget reached zero.
    Deplete {
        /// Whose budget.
        thread: u32,
    },
    /// Something went wrong with the thread: an injected or a real fault.
    Fault {
        /// Who is affected.
        thread: u32,
    },
    /// The thread fell back to best effort.
    Demote {
        /// Who is affected.
        thread: u32,
    },
    /// The thread's scheduling context was revoked.
    Revoke {
        /// Who is affected.
        thread: u32,
    },
    /// The CPU, and the budget on loan, were handed straight to this thread.
    Handoff {
        /// Who receives.
        thread: u32,
    },
    /// The event's CPU sent an inter-processor interrupt.
    Ipi {
        /// The CPU that is interrupted.
        to: u16,
    },
    /// The thread's weight changed.
    Weight {
        /// Whose weight.
        thread: u32,
        /// The new weight.
        weight: u32,
    },
    /// The thread's latency class changed.
    Class {
        /// Whose class.
        thread: u32,
        /// The new class, numbered as the scheduling core does.
        class: u8,
    },
    /// The CPU stopped making progress (injected, or seen by a watchdog).
    Stall,
    /// A timer tick that was due did not come.
    LostTick,
}

impl Kind {
    /// Every name that [`Kind::name`] can return, in the order of the enum.
    pub const NAMES: [&'static str; 24] = [
        "run",
        "idle",
        "system",
        "spawn",
        "wake",
        "preempt",
        "yield",
        "block",
        "exit",
        "steal",
        "balance",
        "place",
        "throttle",
        "refill",
        "deplete",
        "fault",
        "demote",
        "revoke",
        "handoff",
        "ipi",
        "weight",
        "class",
        "stall",
        "lost_tick",
    ];

    /// The stable name: what traces, counters and documents call this event.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Idle => "idle",
            Self::System => "system",
            Self::Spawn { .. } => "spawn",
            Self::Wake { .. } => "wake",
            Self::Preempt { .. } => "preempt",
            Self::Yield { .. } => "yield",
            Self::Block { .. } => "block",
            Self::Exit { .. } => "exit",
            Self::Steal { .. } => "steal",
            Self::Balance { .. } => "balance",
            Self::Place { .. } => "place",
            Self::Throttle { .. } => "throttle",
            Self::Refill { .. } => "refill",
            Self::Deplete { .. } => "deplete",
            Self::Fault { .. } => "fault",
            Self::Demote { .. } => "demote",
            Self::Revoke { .. } => "revoke",
            Self::Handoff { .. } => "handoff",
            Self::Ipi { .. } => "ipi",
            Self::Weight { .. } => "weight",
            Self::Class { .. } => "class",
            Self::Stall => "stall",
            Self::LostTick => "lost_tick",
        }
    }

    /// The thread that the event is about, if it is about one.
    #[must_use]
    pub const fn thread(self) -> Option<u32> {
        match self {
            Self::Run { thread }
            | Self::Spawn { thread }
            | Self::Wake { thread }
            | Self::Preempt { thread }
            | Self::Yield { thread }
            | Self::Block { thread }
            | Self::Exit { thread }
            | Self::Steal { thread, .. }
            | Self::Balance { thread, .. }
            | Self::Place { thread, .. }
            | Self::Throttle { thread }
            | Self::Refill { thread }
            | Self::Deplete { thread }
            | Self::Fault { thread }
            | Self::Demote { thread }
            | Self::Revoke { thread }
            | Self::Handoff { thread }
            | Self::Weight { thread, .. }
            | Self::Class { thread, .. } => Some(thread),
            Self::Idle | Self::System | Self::Ipi { .. } | Self::Stall | Self::LostTick => None,
        }
    }

    /// The other CPU that the event names: where a moved thread came from, or whom an IPI hits.
    #[must_use]
    pub const fn other_cpu(self) -> Option<u16> {
        match self {
            Self::Steal { from, .. } | Self::Balance { from, .. } | Self::Place { from, .. } => Some(from),
            Self::Ipi { to } => Some(to),
            _ => None,
        }
    }

    /// Rule 1: does this say what its CPU does from now on?
    #[must_use]
    pub const fn sets_cpu(self) -> bool {
        matches!(self, Self::Run { .. } | Self::Idle | Self::System)
    }

    /// Rule 2: does this say that its thread gives up the CPU?
    #[must_use]
    pub const fn leaves_cpu(self) -> bool {
        matches!(
            self,
            Self::Preempt { .. }
                | Self::Yield { .. }
                | Self::Block { .. }
                | Self::Exit { .. }
                | Self::Throttle { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// One of each kind, in the order of the enum.
    fn one_of_each(thread: u32) -> Vec<Kind> {
        std::vec![
            Kind::Run { thread },
            Kind::Idle,
            Kind::System,
            Kind::Spawn { thread },
            Kind::Wake { thread },
            Kind::Preempt { thread },
            Kind::Yield { thread },
            Kind::Block { thread },
            Kind::Exit { thread },
            Kind::Steal { thread, from: 1 },
            Kind::Balance { thread, from: 1 },
            Kind::Place { thread, from: 1 },
            Kind::Throttle { thread },
            Kind::Refill { thread },
            Kind::Deplete { thread },
            Kind::Fault { thread },
            Kind::Demote { thread },
            Kind::Revoke { thread },
            Kind::Handoff { thread },
            Kind::Ipi { to: 1 },
            Kind::Weight { thread, weight: 7 },
            Kind::Class { thread, class: 2 },
            Kind::Stall,
            Kind::LostTick,
        ]
    }

    #[test]
    fn names_are_the_published_list_and_unique() {
        let names: Vec<_> = one_of_each(1).into_iter().map(Kind::name).collect();
        assert_eq!(names, Kind::NAMES);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn thread_and_cpu_of_each_kind() {
        let without: Vec<_> =
            one_of_each(9).into_iter().filter(|kind| kind.thread() != Some(9)).map(Kind::name).collect();
        assert_eq!(without, ["idle", "system", "ipi", "stall", "lost_tick"]);
        let with_cpu: Vec<_> =
            one_of_each(9).into_iter().filter(|kind| kind.other_cpu() == Some(1)).map(Kind::name).collect();
        assert_eq!(with_cpu, ["steal", "balance", "place", "ipi"]);
    }

    #[test]
    fn no_kind_both_sets_and_leaves() {
        for kind in one_of_each(0) {
            assert!(!(kind.sets_cpu() && kind.leaves_cpu()), "{}", kind.name());
        }
    }
}
