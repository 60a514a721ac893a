//! Independent parsers, for the tests of every crate that exports a trace: shared by path.
//!
//! `python-env.sh` brings Perfetto's message classes from PyPI and `load_trace.py` does the
//! reading. When they cannot be had the test fails: an export that nobody read is not evidence.

use std::path::{Path, PathBuf};
use std::process::Command;
use trace::Trace;

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
        std::fs::write(&case.expected, trace::digest::json(trace)).expect("target is writable");
        std::fs::write(&case.perfetto, perfetto).expect("target is writable");
        std::fs::write(&case.chrome, chrome).expect("target is writable");
        case
    }

    /// The reader's verdict: its last line, and whether it accepted the files.
    pub(crate) fn load(&self) -> (bool, String) {
        let mut command = Command::new(python());
        command.arg(here("load_trace.py")).args([&self.expected, &self.perfetto, &self.chrome]);
        let output = command.output().expect("python runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}
