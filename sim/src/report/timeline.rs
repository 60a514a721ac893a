//! The golden text timeline: what ran where and when, one line a run, to be kept in a file and
//! compared to the byte.
//!
//! ```text
//! cpu0  0ms..10ms  A
//! cpu0  10ms..20ms  B
//!
//! thread A  ran 10ms  runs 1
//! ```
//! Times are exact. A thread that goes on on the same CPU is one line, however often the
//! scheduler picked it again. CPU by CPU, so that each tells its own story from top to bottom.

use super::escape;
use super::units::ExactMs;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use trace::{Run, RunKind, Trace};

/// The golden text of a trace.
#[must_use]
pub fn golden(trace: &Trace) -> String {
    let names = trace.by_id();
    let name_of = |run: &Run| match (run.kind, run.thread) {
        (RunKind::Thread, Some(id)) => {
            names.get(&id).map_or_else(|| format!("#{id}"), |info| escape::line(&info.name))
        }
        (kind, _) => format!("({})", kind.name()),
    };
    let runs = merged(trace.runs());
    let mut text = String::new();
    let mut cpu_before = 0;
    for run in &runs {
        if run.cpu != cpu_before {
            text.push('\n');
            cpu_before = run.cpu;
        }
        let (from, to) = (ExactMs(run.start_ns), ExactMs(run.end_ns));
        let _ = writeln!(text, "cpu{}  {from}..{to}  {}", run.cpu, name_of(run));
    }
    totals(trace, &runs, &mut text);
    text
}

/// Joins what touches and is the same.
fn merged(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last)
                if last.cpu == run.cpu
                    && last.end_ns == run.start_ns
                    && (last.thread, last.kind) == (run.thread, run.kind) =>
            {
                last.end_ns = run.end_ns;
                last.ending = run.ending;
            }
            _ => joined.push(run),
        }
    }
    joined
}

fn totals(trace: &Trace, runs: &[Run], text: &mut String) {
    let mut by_thread: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut by_cpu = vec![[0_u64; 3]; usize::from(trace.cpus)];
    for run in runs {
        let column = match run.kind {
            RunKind::Thread => 0,
            RunKind::Idle => 1,
            RunKind::System => 2,
        };
        by_cpu[usize::from(run.cpu)][column] += run.duration_ns();
        if let Some(thread) = run.thread {
            let (ran_ns, count) = by_thread.entry(thread).or_default();
            *ran_ns += run.duration_ns();
            *count += 1;
        }
    }
    text.push('\n');
    for info in &trace.threads {
        let (ran_ns, count) = by_thread.get(&info.id).copied().unwrap_or_default();
        let name = escape::line(&info.name);
        let _ = writeln!(text, "thread {name}  ran {}  runs {count}", ExactMs(ran_ns));
    }
    for (cpu, [threads, idle, system]) in by_cpu.into_iter().enumerate() {
        let (threads, idle, system) = (ExactMs(threads), ExactMs(idle), ExactMs(system));
        let _ = writeln!(text, "cpu{cpu}  threads {threads}  idle {idle}  system {system}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Kind, ThreadInfo};

    const MS: u64 = 1_000_000;

    #[test]
    fn golden_by_hand() {
        let thread = |id, name: &str| ThreadInfo { id, name: name.into(), ..ThreadInfo::default() };
        let threads = vec![thread(1, "A"), thread(2, "B\n")];
        let mut trace = Trace { cpus: 2, threads, end_ns: 30 * MS, ..Trace::default() };
        trace.push(0, 0, Kind::Run { thread: 1 });
        // Picked again at its slice's end: the same run to a reader.
        trace.push(5 * MS, 0, Kind::Preempt { thread: 1 });
        trace.push(5 * MS, 0, Kind::Run { thread: 1 });
        trace.push(10 * MS, 0, Kind::Preempt { thread: 1 });
        trace.push(10 * MS, 0, Kind::System);
        trace.push(10 * MS + 123, 0, Kind::Run { thread: 2 });
        trace.push(20 * MS, 0, Kind::Block { thread: 2 });
        trace.push(20 * MS, 0, Kind::Idle);
        trace.push(20 * MS, 1, Kind::Run { thread: 2 });
        let wanted = "\
cpu0  0ms..10ms  A
cpu0  10ms..10.000123ms  (system)
cpu0  10.000123ms..20ms  B\\n
cpu0  20ms..30ms  (idle)

cpu1  0ms..20ms  (idle)
cpu1  20ms..30ms  B\\n

thread A  ran 10ms  runs 1
thread B\\n  ran 19.999877ms  runs 2
cpu0  threads 19.999877ms  idle 10ms  system 0.000123ms
cpu1  threads 10ms  idle 20ms  system 0ms
";
        assert_eq!(golden(&trace), wanted);
    }
}
