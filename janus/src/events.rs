//! The event log, in the common vocabulary of `trace/`: workers are its CPUs, tasks its threads.
//!
//! Each worker keeps its last events in a ring of its own, under a lock that only a reader contends for.

use crate::alloc::Quiet;
use crate::state::Event as Change;
use crate::task::TaskRef;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use trace::{Event, Kind, ThreadInfo, Trace};

/// The last events of one worker, each with its task's full number.
type Kept = VecDeque<(Event, u64)>;

/// See the module.
pub(crate) struct Log {
    rings: Box<[Mutex<Kept>]>,
    most: usize,
}

fn name_of(task: TaskRef) -> (u32, u64) {
    let id = task.id.load(Ordering::Relaxed);
    // Ids of the vocabulary are 32 bits wide: the thread table of a trace keeps the full number in the name.
    (id as u32, id)
}

impl Log {
    pub(crate) fn new(workers: usize, most: usize) -> Log {
        Log { rings: (0..workers).map(|_| Mutex::new(VecDeque::with_capacity(most))).collect(), most }
    }

    fn push(&self, time_ns: u64, worker: u16, kind: Kind, id: u64) {
        let mut ring = self.rings[usize::from(worker)].lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == self.most {
            ring.pop_front();
        }
        ring.push_back((Event { time_ns, cpu: worker, kind }, id));
    }

    pub(crate) fn run(&self, time_ns: u64, worker: u16, task: TaskRef) {
        let (thread, id) = name_of(task);
        self.push(time_ns, worker, Kind::Run { thread }, id);
    }

    pub(crate) fn spawn(&self, time_ns: u64, worker: u16, task: TaskRef) {
        let (thread, id) = name_of(task);
        self.push(time_ns, worker, Kind::Spawn { thread }, id);
    }

    pub(crate) fn leave(&self, time_ns: u64, worker: u16, task: TaskRef, change: Change) {
        let (thread, id) = name_of(task);
        let kind = match change {
            Change::Yield => Kind::Yield { thread },
            Change::Exhaust => Kind::Throttle { thread },
            Change::Return => Kind::Exit { thread },
            _ => Kind::Block { thread },
        };
        self.push(time_ns, worker, kind, id);
    }

    pub(crate) fn steal(&self, time_ns: u64, worker: u16, task: TaskRef, from: u16) {
        let (thread, id) = name_of(task);
        self.push(time_ns, worker, Kind::Steal { thread, from }, id);
    }

    pub(crate) fn idle(&self, time_ns: u64, worker: u16) {
        self.push(time_ns, worker, Kind::Idle, 0);
    }

    /// A hog was found on this worker.
    pub(crate) fn stall(&self, time_ns: u64, worker: u16) {
        self.push(time_ns, worker, Kind::Stall, 0);
    }

    /// All events that are kept, in order of time.
    pub(crate) fn trace(&self, now_ns: u64) -> Trace {
        // The allocations happen under the rings' locks.
        let _quiet = Quiet::new();
        let mut events: Vec<(Event, u64)> = Vec::new();
        for ring in &self.rings {
            events.extend(ring.lock().unwrap_or_else(PoisonError::into_inner).iter().copied());
        }
        events.sort_by_key(|(event, _)| event.time_ns);
        let names: BTreeMap<u32, u64> =
            events.iter().filter_map(|(event, id)| event.kind.thread().map(|thread| (thread, *id))).collect();
        let threads = names
            .iter()
            .map(|(&thread, id)| ThreadInfo {
                id: thread,
                name: format!("task #{id}"),
                weight: 1,
                class: "task".to_string(),
                context: None,
            })
            .collect();
        let mut trace = Trace {
            title: "janus".to_string(),
            cpus: self.rings.len() as u16,
            threads,
            events: events.into_iter().map(|(event, _)| event).collect(),
            end_ns: now_ns,
        };
        settle(&mut trace);
        trace
    }
}

/// Workers read the clock before they write: two events of one task on two workers may be slightly out of order. A run
/// that begins while the task, according to the record, still runs elsewhere is left out.
fn settle(trace: &mut Trace) {
    let mut running: BTreeMap<u16, u32> = BTreeMap::new();
    let mut busy: BTreeSet<u32> = BTreeSet::new();
    let mut kept = Vec::with_capacity(trace.events.len());
    for event in trace.events.drain(..) {
        if (event.kind.sets_cpu() || event.kind.leaves_cpu())
            && let Some(thread) = running.remove(&event.cpu)
        {
            busy.remove(&thread);
        }
        if let Kind::Run { thread } = event.kind {
            if !busy.insert(thread) {
                continue;
            }
            running.insert(event.cpu, thread);
        }
        kept.push(event);
    }
    trace.end_ns = trace.end_ns.max(kept.last().map_or(0, |event| event.time_ns));
    trace.events = kept;
}
