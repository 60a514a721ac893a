//! What each CPU did, as spans: the view that timelines and run-time totals are made of.
//!
//! For each CPU the spans tile `[0, end_ns]`: no gap, no overlap, no empty span. So the sum
//! over threads, idle and system is exactly the time of the machine.

use crate::{Event, Kind, Trace};
use std::vec::Vec;

/// What kind of time a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// A thread ran.
    Thread,
    /// Nothing to run.
    Idle,
    /// Overhead.
    System,
}

impl RunKind {
    /// The name that pictures and exports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Idle => "idle",
            Self::System => "system",
        }
    }
}

/// Why a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The thread was preempted.
    Preempt,
    /// The thread yielded.
    Yield,
    /// The thread blocked.
    Block,
    /// The thread ended.
    Exit,
    /// The thread's budget was spent.
    Throttle,
    /// The CPU went on to something else; the trace gives no reason.
    Switch,
    /// The trace ended.
    End,
}

impl Ending {
    /// The name that pictures and exports use; where there is one, the event's own.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preempt => "preempt",
            Self::Yield => "yield",
            Self::Block => "block",
            Self::Exit => "exit",
            Self::Throttle => "throttle",
            Self::Switch => "switch",
            Self::End => "end",
        }
    }

    const fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Preempt { .. } => Some(Self::Preempt),
            Kind::Yield { .. } => Some(Self::Yield),
            Kind::Block { .. } => Some(Self::Block),
            Kind::Exit { .. } => Some(Self::Exit),
            Kind::Throttle { .. } => Some(Self::Throttle),
            _ => None,
        }
    }
}

/// One CPU did one thing from `start_ns` to `end_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The CPU.
    pub cpu: u16,
    /// The thread that ran; `None` when the CPU was idle or busy with itself.
    pub thread: Option<u32>,
    /// From, inclusive.
    pub start_ns: u64,
    /// To, exclusive; always after `start_ns`.
    pub end_ns: u64,
    /// A thread, idle or system.
    pub kind: RunKind,
    /// Why it ended.
    pub ending: Ending,
}

impl Run {
    /// How long it took.
    #[must_use]
    pub const fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// What one CPU does now.
#[derive(Clone, Copy)]
struct Now {
    thread: Option<u32>,
    kind: RunKind,
    since_ns: u64,
}

/// One CPU's spans so far.
struct Lane {
    cpu: u16,
    now: Now,
    runs: Vec<Run>,
}

impl Lane {
    fn new(cpu: u16) -> Self {
        let now = Now { thread: None, kind: RunKind::Idle, since_ns: 0 };
        Self { cpu, now, runs: Vec::new() }
    }

    fn close(&mut self, time_ns: u64, ending: Ending) {
        let Now { thread, kind, since_ns } = self.now;
        // Zero-length spans are bookkeeping of the writer, not time.
        if time_ns > since_ns {
            let run = Run { cpu: self.cpu, thread, start_ns: since_ns, end_ns: time_ns, kind, ending };
            self.runs.push(run);
        }
    }

    fn change(&mut self, time_ns: u64, thread: Option<u32>, kind: RunKind, ending: Ending) {
        if thread == self.now.thread && kind == self.now.kind {
            return;
        }
        self.close(time_ns, ending);
        self.now = Now { thread, kind, since_ns: time_ns };
    }

    fn take(&mut self, event: &Event) {
        let time_ns = event.time_ns;
        match event.kind {
            Kind::Run { thread } => {
                self.change(time_ns, Some(thread), RunKind::Thread, Ending::Switch);
            }
            Kind::Idle => self.change(time_ns, None, RunKind::Idle, Ending::Switch),
            Kind::System => self.change(time_ns, None, RunKind::System, Ending::Switch),
            kind => {
                let Some(ending) = Ending::of(kind) else { return };
                if self.now.thread == kind.thread() {
                    self.change(time_ns, None, RunKind::System, ending);
                } else if let Some(last) = self.runs.last_mut() {
                    // Accept writers that say which thread runs next before they say why the last one
                    // stopped.
                    let same = last.thread == kind.thread() && last.end_ns == time_ns;
                    if same && last.ending == Ending::Switch {
                        last.ending = ending;
                    }
                }
            }
        }
    }
}

impl Trace {
    /// Every CPU's spans, CPU by CPU and in order of time.
    ///
    /// The trace should pass [`Trace::check`]; if it does not, events of unknown CPUs and
    /// events after the end are left out, and times that run backwards count as no time, so
    /// that the spans still tile.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let mut lanes: Vec<Lane> = (0..self.cpus).map(Lane::new).collect();
        for event in &self.events {
            let Some(lane) = lanes.get_mut(usize::from(event.cpu)) else { continue };
            if event.time_ns > self.end_ns {
                continue;
            }
            let time_ns = event.time_ns.max(lane.now.since_ns);
            lane.take(&Event { time_ns, ..*event });
        }
        let mut all = Vec::with_capacity(lanes.iter().map(|lane| lane.runs.len() + 1).sum());
        for mut lane in lanes {
            lane.close(self.end_ns, Ending::End);
            all.append(&mut lane.runs);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadInfo;

    fn trace(cpus: u16, end_ns: u64, events: &[(u64, u16, Kind)]) -> Trace {
        let threads = (0..8).map(|id| ThreadInfo { id, ..ThreadInfo::default() }).collect();
        let mut trace = Trace { cpus, threads, end_ns, ..Trace::default() };
        for &(time_ns, cpu, kind) in events {
            trace.push(time_ns, cpu, kind);
        }
        trace
    }

    fn brief(trace: &Trace) -> Vec<(u16, Option<u32>, u64, u64, Ending)> {
        trace.runs().iter().map(|r| (r.cpu, r.thread, r.start_ns, r.end_ns, r.ending)).collect()
    }

    fn assert_tiles(trace: &Trace) {
        let runs = trace.runs();
        for cpu in 0..trace.cpus {
            let mut at_ns = 0;
            for run in runs.iter().filter(|run| run.cpu == cpu) {
                assert_eq!(run.start_ns, at_ns, "gap or overlap on cpu {cpu}");
                assert!(run.end_ns > run.start_ns);
                assert_eq!(run.thread.is_some(), run.kind == RunKind::Thread);
                at_ns = run.end_ns;
            }
            assert_eq!(at_ns, trace.end_ns, "cpu {cpu} does not reach the end");
        }
    }

    #[test]
    fn a_cpu_without_events_is_idle_throughout() {
        assert_eq!(brief(&trace(1, 50, &[])), [(0, None, 0, 50, Ending::End)]);
        assert!(trace(1, 0, &[]).runs().is_empty());
    }

    #[test]
    fn reasons_and_overhead_are_kept_apart() {
        let t = trace(
            1,
            100,
            &[
                (10, 0, Kind::Run { thread: 1 }),
                (40, 0, Kind::Preempt { thread: 1 }),
                (40, 0, Kind::System),
                (42, 0, Kind::Run { thread: 2 }),
                (60, 0, Kind::Block { thread: 2 }),
                (60, 0, Kind::Idle),
            ],
        );
        assert_eq!(t.check(), Ok(()));
        assert_eq!(
            brief(&t),
            [
                (0, None, 0, 10, Ending::Switch),
                (0, Some(1), 10, 40, Ending::Preempt),
                (0, None, 40, 42, Ending::Switch),
                (0, Some(2), 42, 60, Ending::Block),
                (0, None, 60, 100, Ending::End),
            ]
        );
        assert_eq!(t.runs()[2].kind, RunKind::System);
        assert_tiles(&t);
    }

    #[test]
    fn time_after_leaving_is_system_time() {
        let t = trace(
            1,
            30,
            &[(0, 0, Kind::Run { thread: 1 }), (10, 0, Kind::Exit { thread: 1 }), (20, 0, Kind::Idle)],
        );
        let kinds: Vec<_> = t.runs().iter().map(|r| (r.kind, r.duration_ns())).collect();
        assert_eq!(kinds, [(RunKind::Thread, 10), (RunKind::System, 10), (RunKind::Idle, 10)]);
    }

    #[test]
    fn a_late_reason_is_still_found_and_a_foreign_one_is_not() {
        let run = |thread| Kind::Run { thread };
        let late = [(0, 0, run(1)), (9, 0, run(2)), (9, 0, Kind::Yield { thread: 1 })];
        assert_eq!(brief(&trace(1, 20, &late))[0].4, Ending::Yield);
        let foreign = [(0, 0, run(1)), (9, 0, run(2)), (10, 0, Kind::Yield { thread: 1 })];
        assert_eq!(brief(&trace(1, 20, &foreign))[0].4, Ending::Switch);
    }

    #[test]
    fn running_on_merges_but_a_repeated_pick_after_preemption_does_not() {
        let run = Kind::Run { thread: 1 };
        assert_eq!(trace(1, 9, &[(0, 0, run), (4, 0, run)]).runs().len(), 1);
        let again = [(0, 0, run), (4, 0, Kind::Preempt { thread: 1 }), (4, 0, run)];
        assert_eq!(trace(1, 9, &again).runs().len(), 2);
    }

    #[test]
    fn any_stream_tiles_even_a_broken_one() {
        let mut seed = 1_u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..200 {
            let mut t = trace(3, 500, &[]);
            for _ in 0..60 {
                let thread = next(8) as u32;
                let kind = match next(6) {
                    0 | 1 => Kind::Run { thread },
                    2 => Kind::Idle,
                    3 => Kind::System,
                    4 => Kind::Block { thread },
                    _ => Kind::Wake { thread },
                };
                // Unsorted, beyond the end, and on a CPU that is not there.
                t.push(next(600), next(4) as u16, kind);
            }
            assert_tiles(&t);
        }
    }
}
