//! Figures that follow from the trace alone, so that every front end counts them the same way.

use super::{CpuRow, Summary, ThreadRow};
use std::collections::BTreeMap;
use trace::{Kind, RunKind, Trace};

impl Summary {
    /// Fills in all that a trace can tell: rows of threads and CPUs, and a counter for each
    /// kind of event that occurred. The caller adds what it alone knows: `about`, `policy`,
    /// `seed`, `command` and the expected shares.
    #[must_use]
    pub fn from_trace(trace: &Trace) -> Self {
        let index: BTreeMap<u32, usize> =
            trace.threads.iter().enumerate().map(|(at, info)| (info.id, at)).collect();
        let mut summary = Self {
            title: trace.title.clone(),
            end_ns: trace.end_ns,
            threads: trace.threads.iter().map(named_row).collect(),
            cpus: vec![CpuRow::default(); usize::from(trace.cpus)],
            ..Self::default()
        };
        summary.count_events(trace, &index);
        summary.count_runs(trace, &index);
        summary.count_waits(trace);
        summary
    }

    fn count_events(&mut self, trace: &Trace, index: &BTreeMap<u32, usize>) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for event in trace.events.iter().filter(|event| event.time_ns <= trace.end_ns) {
            *counts.entry(event.kind.name()).or_default() += 1;
            let row = event.kind.thread().and_then(|thread| index.get(&thread));
            let Some(row) = row.map(|&at| &mut self.threads[at]) else { continue };
            match event.kind {
                Kind::Preempt { .. } => row.preemptions += 1,
                Kind::Throttle { .. } => row.throttles += 1,
                _ => {}
            }
        }
        let shown = |name: &&str| counts.get(*name).map(|&count| ((*name).to_string(), count));
        self.counters = Kind::NAMES.iter().filter_map(shown).collect();
    }

    fn count_runs(&mut self, trace: &Trace, index: &BTreeMap<u32, usize>) {
        let mut runs = trace.runs();
        runs.sort_by_key(|run| run.start_ns);
        let mut last_cpu: Vec<Option<u16>> = vec![None; self.threads.len()];
        for run in &runs {
            let cpu = &mut self.cpus[usize::from(run.cpu)];
            match run.kind {
                RunKind::Thread => cpu.thread_ns += run.duration_ns(),
                RunKind::Idle => cpu.idle_ns += run.duration_ns(),
                RunKind::System => cpu.system_ns += run.duration_ns(),
            }
            let Some(&at) = run.thread.and_then(|thread| index.get(&thread)) else { continue };
            let row = &mut self.threads[at];
            row.run_ns += run.duration_ns();
            row.migrations += u64::from(last_cpu[at].is_some_and(|last| last != run.cpu));
            last_cpu[at] = Some(run.cpu);
        }
        for row in self.threads.iter_mut().filter(|_| trace.end_ns > 0) {
            row.share = row.run_ns as f64 / trace.end_ns as f64;
        }
    }

    fn count_waits(&mut self, trace: &Trace) {
        for (row, mut waits) in self.threads.iter_mut().zip(wake_waits(trace)) {
            waits.sort_unstable();
            row.waits = waits.len() as u64;
            row.wake_p50_ns = percentile_ppm(&waits, 500_000);
            row.wake_p99_ns = percentile_ppm(&waits, 990_000);
            row.wake_max_ns = percentile_ppm(&waits, 1_000_000);
        }
    }
}

/// Every wait of every thread (in the order of the thread table), from a wake to the first instruction that follows: the one
/// definition, for tables and for `expect latency`. The wait after a spawn does not count: it follows no wake.
///
/// Not taken from `Trace::states`, because a thread that runs the moment it wakes leaves no span there, and such waits of 0 ns
/// count. A wait that the end cuts short was at least this long: a starved thread must show.
#[must_use]
pub fn wake_waits(trace: &Trace) -> Vec<Vec<u64>> {
    let index: BTreeMap<u32, usize> =
        trace.threads.iter().enumerate().map(|(at, info)| (info.id, at)).collect();
    let mut woken: Vec<Option<u64>> = vec![None; trace.threads.len()];
    let mut asleep = vec![true; trace.threads.len()];
    let mut waits: Vec<Vec<u64>> = vec![Vec::new(); trace.threads.len()];
    for event in trace.events.iter().filter(|event| event.time_ns <= trace.end_ns) {
        let Some(&at) = event.kind.thread().and_then(|thread| index.get(&thread)) else { continue };
        match event.kind {
            Kind::Spawn { .. } => asleep[at] = false,
            // A wake of a thread that is awake already starts no new wait.
            Kind::Wake { .. } if asleep[at] => {
                asleep[at] = false;
                woken[at] = Some(event.time_ns);
            }
            Kind::Run { .. } => {
                asleep[at] = false;
                waits[at].extend(woken[at].take().map(|since_ns| event.time_ns - since_ns));
            }
            Kind::Block { .. } | Kind::Exit { .. } => {
                asleep[at] = true;
                woken[at] = None;
            }
            // From here it waits for budget, not for a CPU.
            Kind::Throttle { .. } => woken[at] = None,
            _ => {}
        }
    }
    for (waits, woken) in waits.iter_mut().zip(woken) {
        waits.extend(woken.map(|since_ns| trace.end_ns - since_ns));
    }
    waits
}

fn named_row(info: &trace::ThreadInfo) -> ThreadRow {
    let (name, class) = (info.name.clone(), info.class.clone());
    ThreadRow { name, weight: info.weight, class, ..ThreadRow::default() }
}

/// Nearest rank, in parts per million; 0 when there is nothing to rank.
#[must_use]
pub fn percentile_ppm(sorted: &[u64], ppm: u64) -> u64 {
    let rank = (sorted.len() as u128 * u128::from(ppm)).div_ceil(1_000_000) as usize;
    rank.checked_sub(1).map_or(0, |at| sorted[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::demo;
    use trace::ThreadInfo;

    #[test]
    fn nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        let ranks = |waits: &[u64]| [500_000, 990_000, 1_000_000].map(|ppm| percentile_ppm(waits, ppm));
        assert_eq!(ranks(&hundred), [50, 99, 100]);
        assert_eq!(ranks(&[7]), [7, 7, 7]);
        assert_eq!(ranks(&[]), [0, 0, 0]);
    }

    #[test]
    fn waits_are_felt_even_when_they_never_end() {
        let threads = vec![ThreadInfo::default()];
        let mut trace = Trace { cpus: 1, threads, end_ns: 100, ..Trace::default() };
        let thread = 0;
        trace.push(0, 0, Kind::Spawn { thread });
        trace.push(0, 0, Kind::Run { thread });
        trace.push(3, 0, Kind::Wake { thread });
        trace.push(5, 0, Kind::Block { thread });
        trace.push(10, 0, Kind::Wake { thread });
        trace.push(14, 0, Kind::Run { thread });
        trace.push(20, 0, Kind::Block { thread });
        trace.push(30, 0, Kind::Wake { thread });
        trace.push(35, 0, Kind::Wake { thread });
        let row = &Summary::from_trace(&trace).threads[0];
        // Not the spawn; 4 after the first sleep, and 70 that the end cuts short.
        assert_eq!((row.waits, row.wake_p50_ns, row.wake_max_ns), (2, 4, 70));
    }

    #[test]
    fn a_small_trace_by_hand() {
        let thread = |id, name: &str| ThreadInfo { id, name: name.into(), ..ThreadInfo::default() };
        let threads = vec![thread(7, "A"), thread(3, "B")];
        let mut trace = Trace { cpus: 2, threads, end_ns: 100, ..Trace::default() };
        trace.push(0, 0, Kind::Spawn { thread: 7 });
        trace.push(0, 0, Kind::Spawn { thread: 3 });
        trace.push(0, 0, Kind::Run { thread: 7 });
        trace.push(40, 0, Kind::Preempt { thread: 7 });
        trace.push(40, 0, Kind::System);
        trace.push(42, 0, Kind::Run { thread: 3 });
        trace.push(60, 1, Kind::Run { thread: 7 });
        let summary = Summary::from_trace(&trace);
        let [a, b] = &summary.threads[..] else { panic!("two threads") };
        assert_eq!((a.run_ns, a.migrations, a.preemptions, a.wake_max_ns), (40 + 40, 1, 1, 0));
        assert_eq!((b.run_ns, b.waits), (58, 0));
        assert!((a.share - 0.8).abs() < 1e-12);
        assert_eq!(summary.cpus[0], CpuRow { thread_ns: 98, idle_ns: 0, system_ns: 2 });
        assert_eq!(summary.cpus[1], CpuRow { thread_ns: 40, idle_ns: 60, system_ns: 0 });
        let names: Vec<_> = summary.counters.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(names, [("run", 3), ("system", 1), ("spawn", 2), ("preempt", 1)]);
    }

    #[test]
    fn all_time_is_charged_once() {
        let (trace, summary) = demo::demo();
        let threads: u64 = summary.threads.iter().map(|row| row.run_ns).sum();
        assert_eq!(threads, summary.cpus.iter().map(|cpu| cpu.thread_ns).sum::<u64>());
        for cpu in &summary.cpus {
            assert_eq!(cpu.thread_ns + cpu.idle_ns + cpu.system_ns, trace.end_ns);
        }
    }
}
