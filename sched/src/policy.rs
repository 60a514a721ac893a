//! Ordering policies for best-effort threads: the one place that decides which of them comes first.
//!
//! A policy turns a thread's virtual position into a queue tag when it is queued, says whether only *eligible* threads
//! (those the clock says are owed service) may be picked, how long a picked thread runs, and whether a newcomer may take
//! the CPU at once. Everything else (charging, joining, stealing, balancing) is common to all policies.

use crate::fair::Fair;

/// An ordering policy. Implement it to try another one: `Cpu<T, YourPolicy>`.
///
/// ```
/// use sched::{Cpu, CpuId, Fair, Policy, Runnable, ThreadId};
///
/// /// Whoever has run least, weighted, runs next, for a millisecond.
/// #[derive(Clone, Copy)]
/// struct LeastRun;
///
/// impl Policy for LeastRun {
///     fn name(self) -> &'static str { "least-run" }
///     fn eligible_only(self) -> bool { false }
///     fn tag(self, fair: &mut Fair) -> i64 { fair.position() }
///     fn quantum_ns(self, _: &Fair) -> u64 { 1_000_000 }
///     fn preempts(self, newcomer: i64, _eligible: bool, running: i64) -> bool { newcomer < running }
/// }
///
/// let mut cpu = Cpu::new(CpuId::new(0).unwrap(), LeastRun, 0);
/// for (id, weight) in [(1, 128), (2, 64)] {
///     let mut thread = Runnable::new(ThreadId(id), ());
///     thread.set_weight(weight).unwrap();
///     let _ = cpu.enqueue(thread, 0).unwrap();
/// }
/// let (mut now, mut ran) = (0, [0, 0]);
/// while now < 300_000_000 {
///     let decision = cpu.dispatch(now);
///     ran[decision.run.unwrap().0 as usize - 1] += decision.until_ns - now;
///     now = decision.until_ns; // a kernel would arm its timer for this, and dispatch when it fires
/// }
/// assert_eq!(ran[0] / ran[1], 2);
/// assert_eq!(cpu.check(), Ok(()));
/// ```
pub trait Policy: Copy {
    /// The name used on command lines and in reports.
    fn name(self) -> &'static str;

    /// Whether only threads at or behind the average position may be picked.
    fn eligible_only(self) -> bool;

    /// The tag to be queued under; lower runs earlier. Called at every enqueue.
    fn tag(self, fair: &mut Fair) -> i64;

    /// How long the thread may run before the queue is asked again.
    fn quantum_ns(self, fair: &Fair) -> u64;

    /// Whether a thread that was just queued under `newcomer_tag` takes the CPU from one that was picked under
    /// `running_tag`. `eligible` says whether the newcomer is at or behind the average.
    fn preempts(self, newcomer_tag: i64, eligible: bool, running_tag: i64) -> bool;
}

/// Weighted fair queueing: ascending virtual finish time `position + slice(class) * 64 / weight` (F-03), derived afresh
/// at every enqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wfq;

impl Policy for Wfq {
    fn name(self) -> &'static str {
        "wfq"
    }

    fn eligible_only(self) -> bool {
        false
    }

    fn tag(self, fair: &mut Fair) -> i64 {
        fair.deadline = fair.position + fair.virtual_slice();
        debug_assert!(fair.deadline >= fair.position, "F-03: a virtual finish time is never in the past");
        fair.deadline
    }

    fn quantum_ns(self, fair: &Fair) -> u64 {
        fair.class().slice_ns()
    }

    fn preempts(self, newcomer_tag: i64, _eligible: bool, running_tag: i64) -> bool {
        newcomer_tag < running_tag
    }
}

/// Earliest eligible virtual deadline first (F-11): of the threads that are not ahead of the average, the one whose
/// request ends first. A request (one slice) keeps its deadline until it has been served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eevdf;

impl Policy for Eevdf {
    fn name(self) -> &'static str {
        "eevdf"
    }

    fn eligible_only(self) -> bool {
        true
    }

    fn tag(self, fair: &mut Fair) -> i64 {
        let slice = fair.virtual_slice();
        // A finished request is followed by a new one; one that is now longer than a slice (the weight or the class was
        // changed) is cut to size.
        if fair.position >= fair.deadline || fair.deadline - fair.position > slice {
            fair.deadline = fair.position + slice;
        }
        fair.deadline
    }

    fn quantum_ns(self, fair: &Fair) -> u64 {
        fair.weight().to_real(fair.deadline - fair.position).clamp(1, fair.class().slice_ns())
    }

    fn preempts(self, newcomer_tag: i64, eligible: bool, running_tag: i64) -> bool {
        eligible && newcomer_tag < running_tag
    }
}

/// The policies that can be chosen when the system starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`Wfq`].
    #[default]
    Wfq,
    /// [`Eevdf`].
    Eevdf,
}

impl Policy for PolicyKind {
    fn name(self) -> &'static str {
        match self {
            PolicyKind::Wfq => Wfq.name(),
            PolicyKind::Eevdf => Eevdf.name(),
        }
    }

    fn eligible_only(self) -> bool {
        match self {
            PolicyKind::Wfq => Wfq.eligible_only(),
            PolicyKind::Eevdf => Eevdf.eligible_only(),
        }
    }

    fn tag(self, fair: &mut Fair) -> i64 {
        match self {
            PolicyKind::Wfq => Wfq.tag(fair),
            PolicyKind::Eevdf => Eevdf.tag(fair),
        }
    }

    fn quantum_ns(self, fair: &Fair) -> u64 {
        match self {
            PolicyKind::Wfq => Wfq.quantum_ns(fair),
            PolicyKind::Eevdf => Eevdf.quantum_ns(fair),
        }
    }

    fn preempts(self, newcomer_tag: i64, eligible: bool, running_tag: i64) -> bool {
        match self {
            PolicyKind::Wfq => Wfq.preempts(newcomer_tag, eligible, running_tag),
            PolicyKind::Eevdf => Eevdf.preempts(newcomer_tag, eligible, running_tag),
        }
    }
}
