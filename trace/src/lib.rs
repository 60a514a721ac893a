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
//! `Spawn` and `Wake` name the CPU whose queue takes the thread. `Weight`, `Class`, `Affinity` and `Debt` of a thread that does not exist yet are
//! what it starts with.
//!
//! This crate makes no scheduling decisions; it only records what was decided.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(feature = "std", test))]
extern crate std;

#[cfg(feature = "std")]
pub mod chrome;
#[cfg(feature = "std")]
pub mod digest;
pub mod dump;
#[cfg(feature = "std")]
pub mod json;
#[cfg(feature = "std")]
mod log;
#[cfg(feature = "std")]
pub mod perfetto;
#[cfg(feature = "std")]
mod rules;
#[cfg(feature = "std")]
mod runs;
#[cfg(feature = "std")]
mod states;
mod wire;

#[cfg(feature = "std")]
pub use log::{ThreadInfo, Trace, TraceError};
#[cfg(feature = "std")]
pub use rules::RuleError;
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
        /// The thread that runs.
        thread: u32,
    },
    /// The CPU has nothing to run.
    Idle,
    /// The CPU starts to spend time on overhead: a switch, an IPI, a lock wait.
    System,
    /// The thread begins to exist, runnable.
    Spawn {
        /// The thread that was created.
        thread: u32,
    },
    /// The thread becomes runnable after a block.
    Wake {
        /// The thread that woke.
        thread: u32,
    },
    /// The thread loses the CPU while it could still run.
    Preempt {
        /// The thread that was preempted.
        thread: u32,
    },
    /// The thread gives the CPU away and stays runnable.
    Yield {
        /// The thread that yielded.
        thread: u32,
    },
    /// The thread waits for something other than the CPU.
    Block {
        /// The thread that blocked.
        thread: u32,
    },
    /// The thread is gone.
    Exit {
        /// The thread that ended.
        thread: u32,
    },
    /// An idle CPU (the event's) took the thread from another CPU's queue.
    Steal {
        /// The thread that was moved.
        thread: u32,
        /// The CPU that lost it.
        from: u16,
    },
    /// The periodic balance step moved the thread to the event's CPU.
    Balance {
        /// The thread that was moved.
        thread: u32,
        /// The CPU that lost it.
        from: u16,
    },
    /// Wake placement put the thread on the event's CPU.
    Place {
        /// The thread that was placed.
        thread: u32,
        /// The CPU where it last ran.
        from: u16,
    },
    /// The thread's budget is spent: it waits in the refill queue.
    Throttle {
        /// The thread that is throttled.
        thread: u32,
    },
    /// The thread's budget was refilled; a throttled thread is runnable again.
    Refill {
        /// The thread whose budget it is.
        thread: u32,
    },
    /// The thread's budget reached zero.
    Deplete {
        /// The thread whose budget it is.
        thread: u32,
    },
    /// Something went wrong with the thread: an injected or a real fault.
    Fault {
        /// The thread that is affected.
        thread: u32,
    },
    /// The thread fell back to best effort.
    Demote {
        /// The thread that is affected.
        thread: u32,
    },
    /// The thread's scheduling context was revoked.
    Revoke {
        /// The thread that is affected.
        thread: u32,
    },
    /// The CPU, and the budget on loan, were handed straight to this thread.
    Handoff {
        /// The thread that receives them.
        thread: u32,
    },
    /// The event's CPU sent an inter-processor interrupt.
    Ipi {
        /// The CPU that is interrupted.
        to: u16,
    },
    /// The thread's weight changed.
    Weight {
        /// The thread whose weight it is.
        thread: u32,
        /// The new weight.
        weight: u32,
    },
    /// The thread's latency class changed.
    Class {
        /// The thread whose class it is.
        thread: u32,
        /// The new class, numbered as the scheduling core does.
        class: u8,
    },
    /// The CPU stopped making progress (injected, or seen by a watchdog).
    Stall,
    /// A timer tick that was due did not come.
    LostTick,
    /// The CPU was asked which thread runs next, and the answer was: this one goes on.
    Keep {
        /// The thread that goes on.
        thread: u32,
    },
    /// The scheduling core was told that a timer fired, or that another CPU asked for a look.
    Timer,
    /// The accounts of the CPU were brought up to date, because they were read.
    Charge,
    /// The CPU's virtual clock was behind a limit in the common frame and was moved up to it.
    Forgive {
        /// The upper half of the limit, a signed number of 64 bits.
        high: u32,
        /// The lower half.
        low: u32,
    },
    /// From its next enqueue on the thread may run on these CPUs; all eight parts come together, in order.
    Affinity {
        /// Which part of the mask.
        part: u16,
        /// The thread whose mask it is.
        thread: u32,
        /// Bit n is CPU `32 * part + n`.
        cpus: u32,
    },
    /// The thread, which does not exist yet, will begin with a debt of `high << 32 | low` nanoseconds; or it runs on the event's CPU, is about to
    /// leave it, and is charged that much for interrupts that served it; or it waits, is about to be queued, and its context is charged.
    Debt {
        /// The upper 16 bits.
        high: u16,
        /// The thread whose debt it is.
        thread: u32,
        /// The lower 32.
        low: u32,
    },
    /// What the next `Admit` or `Readmit` of the context asks for; all parts come together, in order: see [`SPEC_PARTS`].
    Spec {
        /// Which part.
        part: u16,
        /// The context that it is for.
        context: u32,
        /// The value of that part.
        value: u32,
    },
    /// The event's CPU promised time to a context.
    Admit {
        /// The context.
        context: u32,
    },
    /// The event's CPU changed what it promised.
    Readmit {
        /// The context to which it was promised.
        context: u32,
    },
    /// The event's CPU takes its promise back.
    Retire {
        /// The context to which it was promised.
        context: u32,
    },
    /// The event's CPU takes in a context of another CPU as a guest.
    Host {
        /// The context.
        context: u32,
    },
    /// The event's CPU sends a guest back to its home.
    Unhost {
        /// The context.
        context: u32,
    },
    /// The thread has a context from now on. It runs on the event's CPU, or waits for something, or does not exist yet.
    Bind {
        /// The thread.
        thread: u32,
        /// The context.
        context: u32,
    },
    /// The thread has no context any more. It is on the event's CPU, or waits for something.
    Unbind {
        /// The thread.
        thread: u32,
    },
    /// As `Handoff`, and the context of the thread that waits goes along: a loan, or its return.
    Lend {
        /// The thread that has the context now.
        thread: u32,
    },
    /// The thread that yields queues behind this one.
    Behind {
        /// The thread that goes first.
        thread: u32,
    },
    /// Whether the thread stops without a context, from now on.
    ContextOnly {
        /// Whether it does.
        only: bool,
        /// The thread.
        thread: u32,
    },
    /// The thread that leaves, or that waited for the CPU, is in no queue any more: it waits until another thread acts on it.
    Evict {
        /// Whether it has lost its context; otherwise its budget is spent, or it is to be queued again.
        lost: bool,
        /// The thread.
        thread: u32,
    },
}

/// The parts of a [`Kind::Spec`]: budget, period and deadline in nanoseconds, each low half first; overrun policy, criticality and number of
/// refills, a byte each; the CPU mask as in [`Kind::Affinity`]; and the template of the context.
pub const SPEC_PARTS: u16 = 16;

impl Kind {
    /// Every name that [`Kind::name`] can return, in the order of the enum.
    pub const NAMES: [&'static str; 42] = [
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
        "keep",
        "timer",
        "charge",
        "forgive",
        "affinity",
        "debt",
        "spec",
        "admit",
        "readmit",
        "retire",
        "host",
        "unhost",
        "bind",
        "unbind",
        "lend",
        "behind",
        "context_only",
        "evict",
    ];

    /// The stable name: what traces, counters and documents call this event.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.tag() as usize]
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
            | Self::Class { thread, .. }
            | Self::Keep { thread }
            | Self::Affinity { thread, .. }
            | Self::Debt { thread, .. }
            | Self::Bind { thread, .. }
            | Self::Unbind { thread }
            | Self::Lend { thread }
            | Self::Behind { thread }
            | Self::ContextOnly { thread, .. }
            | Self::Evict { thread, .. } => Some(thread),
            Self::Idle
            | Self::System
            | Self::Ipi { .. }
            | Self::Stall
            | Self::LostTick
            | Self::Timer
            | Self::Charge
            | Self::Forgive { .. }
            | Self::Spec { .. }
            | Self::Admit { .. }
            | Self::Readmit { .. }
            | Self::Retire { .. }
            | Self::Host { .. }
            | Self::Unhost { .. } => None,
        }
    }

    /// The context that the event names.
    #[must_use]
    pub const fn context(self) -> Option<u32> {
        match self {
            Self::Spec { context, .. }
            | Self::Admit { context }
            | Self::Readmit { context }
            | Self::Retire { context }
            | Self::Host { context }
            | Self::Unhost { context }
            | Self::Bind { context, .. } => Some(context),
            _ => None,
        }
    }

    /// The other CPU that the event names: where a moved thread came from, or which one an IPI interrupts.
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

    /// Is this only input that a replay must give to the core again? Pictures leave it out.
    #[must_use]
    pub const fn is_for_replay(self) -> bool {
        matches!(
            self,
            Self::Keep { .. }
                | Self::Timer
                | Self::Charge
                | Self::Forgive { .. }
                | Self::Debt { .. }
                | Self::Spec { .. }
                | Self::ContextOnly { .. }
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
            Kind::Keep { thread },
            Kind::Timer,
            Kind::Charge,
            Kind::Forgive { high: u32::MAX, low: 5 },
            Kind::Affinity { thread, cpus: 3, part: 7 },
            Kind::Debt { thread, low: 8, high: 1 },
            Kind::Spec { part: 3, context: 9, value: 4 },
            Kind::Admit { context: 9 },
            Kind::Readmit { context: 9 },
            Kind::Retire { context: 9 },
            Kind::Host { context: 9 },
            Kind::Unhost { context: 9 },
            Kind::Bind { thread, context: 9 },
            Kind::Unbind { thread },
            Kind::Lend { thread },
            Kind::Behind { thread },
            Kind::ContextOnly { thread, only: true },
            Kind::Evict { thread, lost: true },
        ]
    }

    #[test]
    fn words_come_back_as_they_were_and_others_do_not() {
        for (tag, kind) in one_of_each(u32::MAX - 7).into_iter().enumerate() {
            let event = Event { time_ns: u64::MAX - 1, cpu: 0x1234, kind };
            let words = event.to_words();
            assert_eq!(usize::from(kind.tag()), tag);
            assert_eq!(Event::from_words(words), Some(event));
            // Every bit has a meaning: any change is rejected, or makes another event.
            for bit in 0..192 {
                let mut spoilt = words;
                spoilt[bit / 64] ^= 1 << (bit % 64);
                assert_ne!(Event::from_words(spoilt), Some(event), "{} bit {bit}", kind.name());
            }
        }
        assert_eq!(Event::from_words([0, (Kind::NAMES.len() as u64) << 16, 0]), None);
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
        let machine = ["idle", "system", "ipi", "stall", "lost_tick", "timer", "charge", "forgive"];
        let contexts = ["spec", "admit", "readmit", "retire", "host", "unhost"];
        assert_eq!(without, [&machine[..], &contexts[..]].concat());
        let of_context = one_of_each(5).into_iter().filter(|kind| kind.context() == Some(9)).map(Kind::name);
        assert_eq!(of_context.collect::<Vec<_>>(), [&contexts[..], &["bind"]].concat());
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
