//! The rules of a thread's life, checked over a whole trace: only runnable threads run, only blocked ones wake.

use crate::{Kind, Trace, TraceError};
use std::collections::BTreeMap;
use std::fmt;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runnable,
    Running { cpu: u16 },
    Blocked,
    Throttled,
    Gone,
}

impl Life {
    const fn name(self) -> &'static str {
        match self {
            Self::Runnable => "runnable",
            Self::Running { .. } => "running",
            Self::Blocked => "blocked",
            Self::Throttled => "throttled",
            Self::Gone => "gone",
        }
    }
}

/// A rule that a trace breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// One of [`Trace::check`].
    Form(TraceError),
    /// Something happened to a thread that cannot happen in its state.
    State {
        /// Which event.
        index: usize,
        /// The thread.
        thread: u32,
        /// What happened.
        event: &'static str,
        /// What the thread was.
        state: &'static str,
    },
    /// A thread left a CPU on which it did not run.
    NotThere {
        /// Which event.
        index: usize,
        /// The thread.
        thread: u32,
        /// The CPU that it was said to leave.
        cpu: u16,
    },
    /// Thread, idle and system time of a CPU do not add up to the time of the trace (S-12).
    Time {
        /// Which CPU.
        cpu: u16,
        /// What they add up to.
        sum_ns: u64,
        /// The time of the trace.
        wall_ns: u64,
    },
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Form(error) => error.fmt(f),
            Self::State { index, thread, event, state } => {
                write!(f, "event {index} is a {event} of thread {thread}, which is {state}")
            }
            Self::NotThere { index, thread, cpu } => {
                write!(f, "event {index} takes thread {thread} off cpu {cpu}, where it does not run")
            }
            Self::Time { cpu, sum_ns, wall_ns } => {
                write!(f, "the time of cpu {cpu} adds up to {sum_ns} ns of {wall_ns} ns")
            }
        }
    }
}

impl std::error::Error for RuleError {}

impl From<TraceError> for RuleError {
    fn from(error: TraceError) -> Self {
        Self::Form(error)
    }
}

struct Lives {
    /// A thread that is absent does not exist yet.
    states: BTreeMap<u32, Life>,
    /// The thread on each CPU; it stays there, runnable, during system time.
    on_cpu: Vec<Option<u32>>,
}

impl Lives {
    fn state(&self, thread: u32) -> Option<Life> {
        self.states.get(&thread).copied()
    }

    fn vacate(&mut self, cpu: u16) {
        if let Some(thread) = self.on_cpu[usize::from(cpu)].take()
            && self.state(thread) == Some(Life::Running { cpu })
        {
            self.states.insert(thread, Life::Runnable);
        }
    }

    /// The state of the thread after the event; `Err` with the present state if the event cannot happen in it.
    fn next(&self, cpu: u16, kind: Kind, thread: u32) -> Result<Option<Life>, Option<Life>> {
        let state = self.state(thread);
        match (kind, state) {
            (Kind::Spawn { .. }, None | Some(Life::Gone))
            | (Kind::Wake { .. }, Some(Life::Blocked))
            | (Kind::Refill { .. }, Some(Life::Throttled)) => Ok(Some(Life::Runnable)),
            // It still waits for budget: the wake-up makes no difference yet.
            (Kind::Wake { .. }, Some(Life::Throttled)) => Ok(None),
            (Kind::Spawn { .. } | Kind::Wake { .. }, _) => Err(state),
            // A kernel records no refills; that the thread runs again implies one.
            (Kind::Run { .. }, Some(Life::Runnable | Life::Throttled)) => Ok(Some(Life::Running { cpu })),
            (Kind::Evict { .. }, Some(Life::Runnable | Life::Throttled)) => Ok(Some(Life::Blocked)),
            (Kind::Evict { .. }, _) => Err(state),
            // Without its context it waits for no refill.
            (Kind::Unbind { .. }, Some(Life::Throttled)) => Ok(Some(Life::Runnable)),
            (Kind::Run { .. }, Some(Life::Running { cpu: there })) if there == cpu => Ok(None),
            (Kind::Run { .. }, _) => Err(state),
            (Kind::Steal { .. } | Kind::Balance { .. } | Kind::Place { .. }, Some(Life::Runnable)) => {
                Ok(None)
            }
            (Kind::Steal { .. } | Kind::Balance { .. }, _) => Err(state),
            _ if kind.leaves_cpu() => match state {
                Some(Life::Runnable | Life::Running { .. }) => Ok(Some(match kind {
                    Kind::Block { .. } => Life::Blocked,
                    Kind::Exit { .. } => Life::Gone,
                    Kind::Throttle { .. } => Life::Throttled,
                    _ => Life::Runnable,
                })),
                _ => Err(state),
            },
            _ => Ok(None),
        }
    }
}

impl Trace {
    /// Checks [`Trace::check`], the rules of each thread's life, and that the time of each CPU adds up.
    ///
    /// # Errors
    /// With the first rule that is broken.
    pub fn check_rules(&self) -> Result<(), RuleError> {
        self.check()?;
        let on_cpu = std::vec![None; usize::from(self.cpus)];
        let mut lives = Lives { states: BTreeMap::new(), on_cpu };
        for (index, event) in self.events.iter().enumerate() {
            let (cpu, kind) = (event.cpu, event.kind);
            if kind.sets_cpu() {
                let stays = matches!(kind, Kind::System);
                let same = kind.thread().is_some() && lives.on_cpu[usize::from(cpu)] == kind.thread();
                if !same && !stays {
                    lives.vacate(cpu);
                }
            }
            let Some(thread) = kind.thread() else { continue };
            let next = lives.next(cpu, kind, thread).map_err(|state| {
                let state = state.map_or("not made yet", Life::name);
                RuleError::State { index, thread, event: kind.name(), state }
            })?;
            if kind.leaves_cpu() {
                let slot = &mut lives.on_cpu[usize::from(cpu)];
                if *slot != Some(thread) {
                    return Err(RuleError::NotThere { index, thread, cpu });
                }
                *slot = None;
            }
            if matches!(kind, Kind::Run { .. }) {
                lives.on_cpu[usize::from(cpu)] = Some(thread);
            }
            if let Some(next) = next {
                lives.states.insert(thread, next);
            }
        }
        let mut sums = std::vec![0; usize::from(self.cpus)];
        self.runs().iter().for_each(|run| sums[usize::from(run.cpu)] += run.duration_ns());
        match (0..).zip(sums).find(|(_, sum_ns)| *sum_ns != self.end_ns) {
            Some((cpu, sum_ns)) => Err(RuleError::Time { cpu, sum_ns, wall_ns: self.end_ns }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadInfo;

    fn checked(events: &[(u64, u16, Kind)]) -> Result<(), RuleError> {
        let threads = (0..4).map(|id| ThreadInfo { id, ..ThreadInfo::default() }).collect();
        let mut trace = Trace { cpus: 2, end_ns: 100, threads, ..Trace::default() };
        events.iter().for_each(|&(time_ns, cpu, kind)| trace.push(time_ns, cpu, kind));
        trace.check_rules()
    }

    const SPAWN: Kind = Kind::Spawn { thread: 1 };
    const RUN: Kind = Kind::Run { thread: 1 };
    const BLOCK: Kind = Kind::Block { thread: 1 };
    const WAKE: Kind = Kind::Wake { thread: 1 };
    const EXIT: Kind = Kind::Exit { thread: 1 };

    #[test]
    fn a_good_life() {
        let life = [
            (0, 0, SPAWN),
            (1, 0, RUN),
            (5, 0, Kind::System),
            (6, 0, RUN),
            (9, 0, BLOCK),
            (9, 0, Kind::Idle),
            (10, 1, WAKE),
            (11, 0, Kind::Steal { thread: 1, from: 1 }),
            (12, 0, RUN),
            (20, 0, Kind::Preempt { thread: 1 }),
            (20, 0, RUN),
            (30, 0, EXIT),
            (30, 0, Kind::Idle),
            (40, 1, SPAWN),
        ];
        assert_eq!(checked(&life), Ok(()));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let state = |index, event, state| Err(RuleError::State { index, thread: 1, event, state });
        assert_eq!(checked(&[(0, 0, RUN)]), state(0, "run", "not made yet"));
        assert_eq!(checked(&[(0, 0, SPAWN), (1, 0, WAKE)]), state(1, "wake", "runnable"));
        assert_eq!(checked(&[(0, 0, SPAWN), (1, 0, SPAWN)]), state(1, "spawn", "runnable"));
        let blocked = [(0, 0, SPAWN), (1, 0, RUN), (2, 0, BLOCK)];
        assert_eq!(checked(&[&blocked[..], &[(3, 0, RUN)]].concat()), state(3, "run", "blocked"));
        assert_eq!(
            checked(&[&blocked[..], &[(3, 0, WAKE), (3, 0, WAKE)]].concat()),
            state(4, "wake", "runnable")
        );
        let gone = [(0, 0, SPAWN), (1, 0, RUN), (2, 0, EXIT)];
        assert_eq!(checked(&[&gone[..], &[(3, 1, WAKE)]].concat()), state(3, "wake", "gone"));
        let elsewhere = [(0, 0, SPAWN), (1, 0, RUN), (2, 1, BLOCK)];
        assert_eq!(checked(&elsewhere), Err(RuleError::NotThere { index: 2, thread: 1, cpu: 1 }));
        let twice = [(0, 0, SPAWN), (1, 0, RUN), (2, 1, RUN)];
        assert!(matches!(checked(&twice), Err(RuleError::Form(TraceError::RunsTwice { .. }))));
    }
}
