//! Writes a trace as Chrome trace-event JSON, which `chrome://tracing`, Perfetto and speedscope open.
//!
//! The same picture as [`crate::perfetto`], in the older format that any text tool can read:
//! process 1 holds the CPUs, process 2 the threads. Times are microseconds with exact
//! nanosecond decimals.

use crate::json::{Quoted, Thousandths};
use crate::{Event, Kind, Run, RunKind, State, StateSpan, ThreadInfo, Trace};
use std::collections::BTreeMap;
use std::io::{self, Write};

const CPU_PROCESS: u32 = 1;
const THREAD_PROCESS: u32 = 2;

type Names<'a> = BTreeMap<u32, &'a ThreadInfo>;

/// Writes the whole trace.
///
/// # Errors
/// `InvalidInput` when the trace fails [`Trace::check`], otherwise what `out` reports.
pub fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    trace.check()?;
    let title = Quoted(&trace.title);
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"title\":{title}}},\"traceEvents\":[")?;
    names(trace, out)?;
    let by_id = trace.by_id();
    for run in trace.runs().iter().filter(|run| run.kind != RunKind::Idle) {
        run_slice(&by_id, run, out)?;
    }
    for span in trace.states().iter().filter(|span| span.state != State::Blocked) {
        state_slice(span, out)?;
    }
    for event in trace.events.iter().filter(|event| !event.kind.sets_cpu()) {
        instant(event, out)?;
    }
    // Every line above ends in a comma; this last metadata event closes the list without one.
    writeln!(out, "{}\n]}}", meta(THREAD_PROCESS, 0, "process_sort_index", "\"sort_index\":2"))
}

fn meta(pid: u32, tid: u32, name: &str, args: &str) -> std::string::String {
    std::format!("{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{name}\",\"args\":{{{args}}}}}")
}

fn names(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let named = |name: &str| std::format!("\"name\":{}", Quoted(name));
    let ranked = |rank: usize| std::format!("\"sort_index\":{rank}");
    writeln!(out, "{},", meta(CPU_PROCESS, 0, "process_name", &named("CPUs")))?;
    writeln!(out, "{},", meta(CPU_PROCESS, 0, "process_sort_index", &ranked(1)))?;
    writeln!(out, "{},", meta(THREAD_PROCESS, 0, "process_name", &named("Threads")))?;
    for cpu in 0..trace.cpus {
        let name = std::format!("cpu{cpu}");
        writeln!(out, "{},", meta(CPU_PROCESS, cpu.into(), "thread_name", &named(&name)))?;
        let rank = ranked(usize::from(cpu));
        writeln!(out, "{},", meta(CPU_PROCESS, cpu.into(), "thread_sort_index", &rank))?;
    }
    for (rank, info) in trace.threads.iter().enumerate() {
        writeln!(out, "{},", meta(THREAD_PROCESS, info.id, "thread_name", &named(&info.name)))?;
        writeln!(out, "{},", meta(THREAD_PROCESS, info.id, "thread_sort_index", &ranked(rank)))?;
    }
    Ok(())
}

fn run_slice(names: &Names<'_>, run: &Run, out: &mut impl Write) -> io::Result<()> {
    let info = run.thread.and_then(|thread| names.get(&thread));
    let name = info.map_or(run.kind.name(), |info| &info.name);
    write!(
        out,
        "{{\"ph\":\"X\",\"pid\":{CPU_PROCESS},\"tid\":{},\"ts\":{},\"dur\":{},\"cat\":\"{}\",\"name\":{}",
        run.cpu,
        Thousandths(run.start_ns),
        Thousandths(run.duration_ns()),
        run.kind.name(),
        Quoted(name),
    )?;
    if let Some(info) = info {
        let ending = run.ending.name();
        write!(out, ",\"args\":{{\"thread\":{},\"ended by\":\"{ending}\"}}", info.id)?;
    }
    writeln!(out, "}},")
}

fn state_slice(span: &StateSpan, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{{\"ph\":\"X\",\"pid\":{THREAD_PROCESS},\"tid\":{},\"ts\":{},\"dur\":{},\"cat\":\"state\",\"name\":\"{}\",\"args\":{{\"cpu\":{}}}}},",
        span.thread,
        Thousandths(span.start_ns),
        Thousandths(span.end_ns - span.start_ns),
        span.state.name(),
        span.cpu,
    )
}

fn instant(event: &Event, out: &mut impl Write) -> io::Result<()> {
    let (pid, tid) = match event.kind.thread() {
        Some(thread) => (THREAD_PROCESS, thread),
        None => (CPU_PROCESS, event.cpu.into()),
    };
    write!(
        out,
        "{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{pid},\"tid\":{tid},\"ts\":{},\"cat\":\"sched\",\"name\":\"{}\",\"args\":{{\"cpu\":{}",
        Thousandths(event.time_ns),
        event.kind.name(),
        event.cpu,
    )?;
    match event.kind {
        Kind::Ipi { to } => write!(out, ",\"to\":{to}")?,
        Kind::Weight { weight, .. } => write!(out, ",\"weight\":{weight}")?,
        Kind::Class { class, .. } => write!(out, ",\"class\":{class}")?,
        kind => {
            if let Some(from) = kind.other_cpu() {
                write!(out, ",\"from\":{from}")?;
            }
        }
    }
    writeln!(out, "}}}},")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    #[test]
    fn one_run_as_text() {
        let name = String::from("A \"quoted\" </script>");
        let threads = std::vec![ThreadInfo { id: 4, name, ..ThreadInfo::default() }];
        let mut trace = Trace { cpus: 1, threads, end_ns: 3000, ..Trace::default() };
        trace.push(1500, 0, Kind::Run { thread: 4 });
        trace.push(2500, 0, Kind::Block { thread: 4 });
        trace.push(2500, 0, Kind::Idle);
        let mut out = Vec::new();
        write(&trace, &mut out).expect("a good trace");
        let text = String::from_utf8(out).expect("UTF-8");
        let run = text.lines().find(|line| line.contains("\"cat\":\"thread\"")).expect("a run");
        assert_eq!(
            run,
            r#"{"ph":"X","pid":1,"tid":0,"ts":1.5,"dur":1,"cat":"thread","name":"A \"quoted\" \u003c/script\u003e","args":{"thread":4,"ended by":"block"}},"#
        );
        assert!(text.contains(r#""ph":"i","s":"t","pid":2,"tid":4,"ts":2.5,"cat":"sched","name":"block""#));
        assert!(text.ends_with("}\n]}\n"));
    }

    #[test]
    fn a_broken_trace_is_refused_before_a_byte_is_written() {
        let mut trace = Trace { cpus: 1, ..Trace::default() };
        trace.push(0, 0, Kind::Run { thread: 1 });
        let mut out = Vec::new();
        let error = write(&trace, &mut out).expect_err("thread 1 is not in the table");
        assert!(error.to_string().contains("thread 1"), "{error}");
        assert!(out.is_empty());
    }
}
