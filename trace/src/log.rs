//! A whole trace: its threads, what happened, and when it ended.
//!
//! A trace may come from any writer, so [`Trace::check`] says what is wrong with one before an exporter or a
//! picture makes nonsense of it.

use crate::{Event, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::string::String;
use std::vec::Vec;

/// What readers want to know about a thread beside its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The id that events use.
    pub id: u32,
    /// The name that pictures use.
    pub name: String,
    /// The weight at the start of the trace.
    pub weight: u32,
    /// The latency class at the start of the trace, by name.
    pub class: String,
    /// The scheduling context, in words (`2ms/10ms on 0-3`), when it has one.
    pub context: Option<String>,
}

/// Events in order of time, with what is needed to read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// What this trace shows.
    pub title: String,
    /// How many CPUs; events use `0..cpus`.
    pub cpus: u16,
    /// Every thread that an event names.
    pub threads: Vec<ThreadInfo>,
    /// What happened, sorted by time; of equal times the order is the order of cause.
    pub events: Vec<Event>,
    /// When the trace ends; no event is later.
    pub end_ns: u64,
}

/// Why a trace cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// The event at this index is earlier than the one before it.
    OutOfOrder {
        /// Index into `events`.
        index: usize,
    },
    /// The event at this index is later than `end_ns`.
    AfterEnd {
        /// Index into `events`.
        index: usize,
    },
    /// The event at this index names a CPU that the trace does not have.
    NoSuchCpu {
        /// Index into `events`.
        index: usize,
        /// The CPU it names.
        cpu: u16,
    },
    /// The event at this index names a thread that is not in the table.
    NoSuchThread {
        /// Index into `events`.
        index: usize,
        /// The thread it names.
        thread: u32,
    },
    /// The event at this index starts a thread that still runs on another CPU.
    RunsTwice {
        /// Index into `events`.
        index: usize,
        /// The thread.
        thread: u32,
        /// The CPU where it already runs.
        cpu: u16,
    },
    /// Two entries of the thread table have this id.
    DuplicateThread {
        /// The id.
        thread: u32,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfOrder { index } => {
                write!(f, "event {index} is earlier than the event before it")
            }
            Self::AfterEnd { index } => write!(f, "event {index} is later than the trace's end"),
            Self::NoSuchCpu { index, cpu } => {
                write!(f, "event {index} names cpu {cpu}, which the trace does not have")
            }
            Self::NoSuchThread { index, thread } => {
                write!(f, "event {index} names thread {thread}, which is not in the thread table")
            }
            Self::RunsTwice { index, thread, cpu } => {
                write!(f, "event {index} runs thread {thread}, which still runs on cpu {cpu}")
            }
            Self::DuplicateThread { thread } => {
                write!(f, "the thread table has thread {thread} twice")
            }
        }
    }
}

impl std::error::Error for TraceError {}

impl From<TraceError> for std::io::Error {
    fn from(error: TraceError) -> Self {
        Self::new(std::io::ErrorKind::InvalidInput, error)
    }
}

impl Trace {
    /// The thread table by id, for readers that look up many.
    #[must_use]
    pub fn by_id(&self) -> BTreeMap<u32, &ThreadInfo> {
        self.threads.iter().map(|info| (info.id, info)).collect()
    }

    /// The table entry of a thread, for readers that look up a few.
    #[must_use]
    pub fn thread(&self, id: u32) -> Option<&ThreadInfo> {
        // Most writers number threads 0, 1, 2 …; the scan is for those that do not.
        let direct = self.threads.get(id as usize).filter(|info| info.id == id);
        direct.or_else(|| self.threads.iter().find(|info| info.id == id))
    }

    /// Adds an event at the end.
    pub fn push(&mut self, time_ns: u64, cpu: u16, kind: Kind) {
        self.events.push(Event { time_ns, cpu, kind });
    }

    /// Checks everything that readers of a trace rely on, and names the first thing that is wrong.
    ///
    /// # Errors
    /// One [`TraceError`] for each rule: sorted, within the end, known CPUs and threads,
    /// and no thread on two CPUs at once.
    pub fn check(&self) -> Result<(), TraceError> {
        let mut known = BTreeSet::new();
        for info in &self.threads {
            if !known.insert(info.id) {
                return Err(TraceError::DuplicateThread { thread: info.id });
            }
        }
        let mut before_ns = 0;
        let mut on_cpu: Vec<Option<u32>> = std::vec![None; usize::from(self.cpus)];
        let mut home: BTreeMap<u32, u16> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            if event.time_ns < before_ns {
                return Err(TraceError::OutOfOrder { index });
            }
            before_ns = event.time_ns;
            if event.time_ns > self.end_ns {
                return Err(TraceError::AfterEnd { index });
            }
            for cpu in [Some(event.cpu), event.kind.other_cpu()].into_iter().flatten() {
                if cpu >= self.cpus {
                    return Err(TraceError::NoSuchCpu { index, cpu });
                }
            }
            if let Some(thread) = event.kind.thread().filter(|thread| !known.contains(thread)) {
                return Err(TraceError::NoSuchThread { index, thread });
            }
            let slot = &mut on_cpu[usize::from(event.cpu)];
            let leaves = event.kind.leaves_cpu() && *slot == event.kind.thread();
            if (event.kind.sets_cpu() || leaves)
                && let Some(old) = slot.take()
            {
                home.remove(&old);
            }
            if let Kind::Run { thread } = event.kind {
                if let Some(cpu) = home.insert(thread, event.cpu) {
                    return Err(TraceError::RunsTwice { index, thread, cpu });
                }
                *slot = Some(thread);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_cpus() -> Trace {
        let thread = |id| ThreadInfo { id, ..ThreadInfo::default() };
        Trace { cpus: 2, threads: std::vec![thread(0), thread(5)], end_ns: 100, ..Trace::default() }
    }

    fn checked(events: &[(u64, u16, Kind)]) -> Result<(), TraceError> {
        let mut trace = two_cpus();
        for &(time_ns, cpu, kind) in events {
            trace.push(time_ns, cpu, kind);
        }
        trace.check()
    }

    #[test]
    fn each_rule_has_its_own_error() {
        let run = |thread| Kind::Run { thread };
        assert_eq!(checked(&[(0, 0, run(0)), (0, 1, run(5)), (100, 0, Kind::Idle)]), Ok(()));
        assert_eq!(checked(&[(5, 0, run(0)), (4, 1, run(5))]), Err(TraceError::OutOfOrder { index: 1 }));
        assert_eq!(checked(&[(101, 0, run(0))]), Err(TraceError::AfterEnd { index: 0 }));
        assert_eq!(checked(&[(0, 2, Kind::Idle)]), Err(TraceError::NoSuchCpu { index: 0, cpu: 2 }));
        assert_eq!(
            checked(&[(0, 1, Kind::Steal { thread: 0, from: 9 })]),
            Err(TraceError::NoSuchCpu { index: 0, cpu: 9 })
        );
        assert_eq!(checked(&[(0, 1, run(1))]), Err(TraceError::NoSuchThread { index: 0, thread: 1 }));
        assert_eq!(
            checked(&[(0, 0, run(5)), (1, 1, run(5))]),
            Err(TraceError::RunsTwice { index: 1, thread: 5, cpu: 0 })
        );
        let mut twice = two_cpus();
        twice.threads[1].id = 0;
        assert_eq!(twice.check(), Err(TraceError::DuplicateThread { thread: 0 }));
    }

    #[test]
    fn a_thread_that_left_may_run_elsewhere_at_once() {
        let (run, yields) = (Kind::Run { thread: 5 }, Kind::Yield { thread: 5 });
        assert_eq!(checked(&[(0, 0, run), (7, 0, yields), (7, 1, run)]), Ok(()));
        // A yield of another thread does not free the CPU of thread 5.
        let other = Kind::Yield { thread: 0 };
        assert!(checked(&[(0, 0, run), (7, 0, other), (7, 1, run)]).is_err());
    }

    #[test]
    fn threads_are_found_by_id_not_by_position() {
        let trace = two_cpus();
        assert_eq!(trace.thread(5).map(|info| info.id), Some(5));
        assert_eq!(trace.thread(0).map(|info| info.id), Some(0));
        assert!(trace.thread(1).is_none());
        assert_eq!(trace.by_id().keys().copied().collect::<Vec<_>>(), [0, 5]);
    }
}
