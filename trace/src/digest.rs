//! A trace, added up: what an independent reader must find in the exports (`trace/tests/load_trace.py`).

use crate::json::Quoted;
use crate::{RunKind, State, Trace};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

fn object<V>(entries: &BTreeMap<String, V>, show: impl Fn(&V) -> String) -> String {
    let mut text = String::from("{");
    for (index, (key, value)) in entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{}:{}", Quoted(key), show(value));
    }
    text + "}"
}

fn add(totals: &mut BTreeMap<String, u64>, key: impl ToString, amount: u64) {
    *totals.entry(key.to_string()).or_default() += amount;
}

/// The sums of the trace, as JSON.
#[must_use]
pub fn json(trace: &Trace) -> String {
    let mut run_ns = BTreeMap::new();
    let mut endings = BTreeMap::new();
    let mut system_ns = 0;
    for run in trace.runs() {
        match run.kind {
            RunKind::Thread => {
                add(&mut run_ns, run.thread.expect("a thread run has a thread"), run.duration_ns());
                add(&mut endings, run.ending.name(), 1);
            }
            RunKind::System => system_ns += run.duration_ns(),
            RunKind::Idle => {}
        }
    }
    let mut state_ns: BTreeMap<String, u64> =
        ["running", "runnable", "throttled"].map(|name| (String::from(name), 0)).into();
    for span in trace.states().iter().filter(|span| span.state != State::Blocked) {
        add(&mut state_ns, span.state.name(), span.end_ns - span.start_ns);
    }
    let mut instants = BTreeMap::new();
    for event in trace.events.iter().filter(|event| !event.kind.sets_cpu()) {
        add(&mut instants, event.kind.name(), 1);
    }
    let names: BTreeMap<String, &str> =
        trace.threads.iter().map(|info| (info.id.to_string(), info.name.as_str())).collect();
    let cpus: Vec<String> = (0..trace.cpus).map(|cpu| format!("\"cpu{cpu}\"")).collect();
    let runs: u64 = endings.values().sum();
    format!(
        "{{\"cpu_names\":[{}],\"thread_names\":{},\"runs\":{runs},\"run_ns\":{},\"system_ns\":{system_ns},\
         \"endings\":{},\"instants\":{},\"state_ns\":{}}}\n",
        cpus.join(","),
        object(&names, |name| Quoted(name).to_string()),
        object(&run_ns, u64::to_string),
        object(&endings, u64::to_string),
        object(&instants, u64::to_string),
        object(&state_ns, u64::to_string),
    )
}
