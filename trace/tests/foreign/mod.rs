//! Parsers that are not ours, for the tests of every crate that exports a trace: shared by path.
//!
//! `python-env.sh` brings Perfetto's message classes from PyPI and `load_trace.py` does the
//! reading. When they cannot be had the test fails: an export that nobody read is not evidence.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use trace::json::Quoted;
use trace::{RunKind, State, Trace};

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

/// What the Rust side says about the trace, as JSON.
fn expected(trace: &Trace) -> String {
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
        ["running", "runnable", "throttled"].map(|name| (name.to_string(), 0)).into();
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

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests").join(file)
}

fn python() -> PathBuf {
    let script = here("python-env.sh");
    let output = Command::new("sh").arg(&script).output().expect("sh runs");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no Python environment for the viewer test:\n{why}");
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// The three files of one case: what we say, and the two exports.
pub(crate) struct Case {
    pub(crate) expected: PathBuf,
    pub(crate) perfetto: PathBuf,
    pub(crate) chrome: PathBuf,
}

impl Case {
    pub(crate) fn write(name: &str, trace: &Trace) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = |suffix| folder.join(format!("{name}.{suffix}"));
        let case = Self {
            expected: file("expected.json"),
            perfetto: file("perfetto-trace"),
            chrome: file("trace.json"),
        };
        let (mut perfetto, mut chrome) = (Vec::new(), Vec::new());
        trace::perfetto::write(trace, &mut perfetto).expect("a good trace");
        trace::chrome::write(trace, &mut chrome).expect("a good trace");
        std::fs::write(&case.expected, expected(trace)).expect("target is writable");
        std::fs::write(&case.perfetto, perfetto).expect("target is writable");
        std::fs::write(&case.chrome, chrome).expect("target is writable");
        case
    }

    /// The reader's verdict: its last word, and whether it was content.
    pub(crate) fn load(&self) -> (bool, String) {
        let mut command = Command::new(python());
        command.arg(here("load_trace.py")).args([&self.expected, &self.perfetto, &self.chrome]);
        let output = command.output().expect("python runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}
