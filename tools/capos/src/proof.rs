//! Watches a machine from boot to end, and judges its output.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Problem;
use crate::patience::Patience;
use crate::qemu::{Event, Guest, Machine, Medium, Outcome};
use crate::record;

/// How many lines of a failed run are shown again.
const TAIL_LINES: usize = 30;
/// The same for a run whose kernel has left a report or a record, from there on.
const REPORT_LINES: usize = 400;
/// The longest line that is kept; longer lines are split.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// A line that contains this (compared in lower case) is the kernel's panic message.
const PANIC_MARK: &str = "kernel panic";

/// A line that begins with this names a boot option that the kernel does not know.
const UNKNOWN_OPTION: &str = "boot: option `";
/// While a machine writes its trace, the time limit is extended: the file is checked for growth in this interval.
const DUMP_LOOK: Duration = Duration::from_secs(5);
/// The longest extension in all. QEMU writes a byte at a time, about a million in a second or two.
const DUMP_LIMIT: Duration = Duration::from_secs(15 * 60);

/// What is shown while the machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nothing.
    Nothing,
    /// Every line.
    Lines,
    /// Every line but the verdict of this proof, which is given at the end, once.
    LinesOfProof(String),
}

/// A run that shall be made.
#[derive(Clone, Debug)]
pub struct Run {
    /// The machine.
    pub machine: Machine,
    /// What it boots.
    pub medium: Medium,
    /// How long it may take.
    pub limit: Option<Duration>,
    /// Texts that must be in its output; each within one line.
    pub expects: Vec<String>,
    /// What is shown.
    pub show: Show,
    /// Where the log goes.
    pub log: PathBuf,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How the machine ended; `None` when it was stopped at the time limit.
    pub outcome: Option<Outcome>,
    /// Texts that were not in its output.
    pub missing: Vec<String>,
    /// The last lines of its output.
    pub tail: Vec<String>,
    /// The first line of a panic, if there was one.
    pub panic: Option<String>,
    /// The first boot option that the kernel did not know: then what was proved is not what was asked for.
    pub unknown_option: Option<String>,
    /// Every line that begins with `proof `.
    pub proofs: Vec<String>,
    /// Every line that begins with `share ` or `order `: what threads got and when, for the comparison with the simulator.
    pub shares: Vec<String>,
    /// QEMU's own messages.
    pub complaints: String,
    /// What is wrong with the trace that the machine wrote.
    pub trace_fault: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// Splits the serial output into lines.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for &byte in bytes {
            if byte != b'\n' {
                self.partial.push(byte);
            }
            if byte == b'\n' || self.partial.len() >= LINE_BYTES_MAX {
                self.flush(&mut each);
            }
        }
    }
    fn flush(&mut self, each: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        each(line.trim_end_matches('\r'));
    }
}

impl Run {
    /// Boots the machine and watches it to its end or to the time limit.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn watch(&self) -> Result<Report, Problem> {
        let start = Instant::now();
        let mut dump = Dump::new(self.machine.debug.as_deref());
        let mut guest = Guest::start(&self.machine, &self.medium, &self.log)?;
        let patience = self.limit.map(|limit| Patience::new(limit, Duration::ZERO));
        let mut deadline = self.limit.map(|limit| start + limit);
        let mut seen = Seen::new(&self.expects, &self.show);
        let mut lines = Lines::default();
        let mut is_time_up = false;
        let outcome = loop {
            match guest.next(deadline) {
                Event::Said(bytes) => lines.take(&bytes, |line| seen.line(line)),
                Event::Ended(outcome) => break Some(outcome),
                Event::TimeUp
                    if patience.is_some_and(|limit| limit.end(guest.starved()) > Instant::now()) =>
                {
                    deadline = patience.map(|limit| limit.end(guest.starved()));
                }
                Event::TimeUp if dump.grows() => deadline = Some(Instant::now() + DUMP_LOOK),
                Event::TimeUp => {
                    is_time_up = true;
                    break None;
                }
                Event::Quit | Event::Signal(_) => break None,
            }
        };
        if !lines.partial.is_empty() {
            lines.flush(&mut |line| seen.line(line));
        }
        if is_time_up {
            guest.examine();
        }
        guest.record.iter().for_each(|line| seen.line(line));
        Ok(Report {
            outcome,
            missing: seen.missing,
            tail: seen.tail.into(),
            panic: seen.panic,
            unknown_option: seen.unknown_option,
            proofs: seen.proofs,
            shares: seen.shares,
            complaints: std::mem::take(&mut guest.complaints),
            trace_fault: None,
            took: start.elapsed(),
        })
    }
}

/// Whether the trace of a machine whose time is over is still being written.
struct Dump<'a> {
    file: Option<&'a Path>,
    bytes: u64,
    first_look: Option<Instant>,
}

impl Dump<'_> {
    fn new(file: Option<&Path>) -> Dump<'_> {
        Dump { file, bytes: 0, first_look: None }
    }

    /// Whether the file has grown since the last check, and may go on.
    fn grows(&mut self) -> bool {
        let bytes = self.file.and_then(|file| file.metadata().ok()).map_or(0, |found| found.len());
        let first = *self.first_look.get_or_insert_with(Instant::now);
        bytes > std::mem::replace(&mut self.bytes, bytes) && first.elapsed() < DUMP_LIMIT
    }
}

/// What a run has printed so far.
struct Seen {
    missing: Vec<String>,
    tail: VecDeque<String>,
    panic: Option<String>,
    unknown_option: Option<String>,
    proofs: Vec<String>,
    shares: Vec<String>,
    show: Show,
    /// Whether there is a report among the last lines, all of which is kept.
    has_report: bool,
}

impl Seen {
    fn new(expects: &[String], show: &Show) -> Seen {
        let missing = expects.to_vec();
        Seen {
            missing,
            tail: VecDeque::new(),
            panic: None,
            unknown_option: None,
            proofs: Vec::new(),
            shares: Vec::new(),
            show: show.clone(),
            has_report: false,
        }
    }

    fn line(&mut self, line: &str) {
        self.missing.retain(|text| !line.contains(text.as_str()));
        let lower = line.to_lowercase();
        if self.panic.is_none() && lower.contains(PANIC_MARK) {
            self.panic = Some(line.to_owned());
        }
        if let Some((word, _)) = line.strip_prefix(UNKNOWN_OPTION).and_then(|rest| rest.split_once('`')) {
            self.unknown_option.get_or_insert_with(|| word.to_owned());
        }
        if line.starts_with("proof ") {
            self.proofs.push(line.to_owned());
        }
        if line.starts_with("share ") || line.starts_with("order ") {
            self.shares.push(line.to_owned());
        }
        self.has_report |= lower.contains(PANIC_MARK) || line.starts_with(record::PREFIX);
        if self.tail.len() == if self.has_report { REPORT_LINES } else { TAIL_LINES } {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
        let is_shown = match &self.show {
            Show::Nothing => false,
            Show::Lines => true,
            Show::LinesOfProof(name) => !line.starts_with(&format!("proof {name}: ")),
        };
        if is_shown {
            say(line);
        }
    }
}

/// Prints a line; a reader that went away does not matter.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

impl Report {
    /// Adds the result of the trace check as a last line; a bad trace is a failure.
    pub fn add_trace(&mut self, checked: Result<String, String>) {
        let line = match &checked {
            Ok(told) => format!("replay: ok: {told}"),
            Err(why) => format!("replay: FAILED: {why}"),
        };
        self.missing.retain(|text| !line.contains(text.as_str()));
        self.tail.push(line);
        self.trace_fault = checked.err();
    }

    /// Why the run failed, in a few words; `None` if it succeeded.
    #[must_use]
    pub fn failure(&self, limit: Option<Duration>) -> Option<String> {
        if let Some(panic) = &self.panic {
            return Some(format!("kernel panic: {}", panic.trim()));
        }
        match &self.outcome {
            None => {
                let limit = limit.unwrap_or(self.took).as_secs_f64();
                return Some(format!("not done after {limit:.0} s, stopped"));
            }
            Some(Outcome::Failed(why)) => {
                let said = self.complaints.lines().next_back().unwrap_or("it said nothing");
                return Some(format!("{why}: {said}"));
            }
            Some(Outcome::Off(0)) => {}
            Some(outcome) => return Some(format!("the machine {outcome}")),
        }
        let fault = self.trace_fault.as_ref().map(|why| format!("its trace is not good: {why}"));
        fault.or_else(|| self.missing.first().map(|text| format!("never said `{text}`")))
    }

    /// Why the proof `name` does not hold; `None` if it does.
    #[must_use]
    pub fn proof_failure(&self, name: &str, limit: Option<Duration>) -> Option<String> {
        let failed = format!("proof {name}: FAILED");
        if let Some(line) = self.proofs.iter().find(|line| line.starts_with(&failed)) {
            let why = line[failed.len()..].trim();
            return Some(if why.is_empty() { "and did not say why".to_owned() } else { why.to_owned() });
        }
        let good = format!("proof {name}: ok");
        let holds = self.proofs.contains(&good);
        match self.failure(limit) {
            Some(why) if holds => Some(format!("said ok, and then: {why}")),
            Some(why) => Some(why),
            None if holds => {
                let unknown = self.unknown_option.as_ref();
                unknown.map(|word| format!("the boot option `{word}` is not known to the kernel"))
            }
            None => Some(format!("powered off without saying `{good}`")),
        }
    }

    /// The last lines, indented, for a person who has not seen them.
    #[must_use]
    pub fn last_lines(&self) -> String {
        self.tail.iter().map(|line| format!("    | {line}\n")).collect()
    }

    /// What to do about a failure.
    #[must_use]
    pub fn advice(&self, log: &std::path::Path) -> String {
        let first = match &self.outcome {
            None => "give it more time with --timeout, or look in its record where it stands",
            Some(Outcome::Failed(_)) => "mend the command line or the installation of QEMU",
            Some(Outcome::Reset) => {
                "look in its record, or boot it again with --qemu-args=\"-d int,cpu_reset\" to see the fault"
            }
            Some(Outcome::Off(_)) => "read what it said last",
        };
        format!("{first}; the whole log: {}", log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for piece in ["one\r\ntw", "o\n\n", "thr"] {
            lines.take(piece.as_bytes(), |line| found.push(line.to_owned()));
        }
        lines.flush(&mut |line: &str| found.push(line.to_owned()));
        assert_eq!(found, ["one", "two", "", "thr"]);
        let mut count = 0;
        lines.take(&vec![b'x'; 3 * LINE_BYTES_MAX], |_| count += 1);
        assert_eq!(count, 3, "a line without an end is cut");
    }

    fn report(lines: &[&str], outcome: Option<Outcome>) -> Report {
        let mut seen = Seen::new(&["needed".to_owned()], &Show::Nothing);
        lines.iter().for_each(|line| seen.line(line));
        Report {
            outcome,
            missing: seen.missing,
            tail: seen.tail.into(),
            panic: seen.panic,
            unknown_option: seen.unknown_option,
            proofs: seen.proofs,
            shares: seen.shares,
            complaints: "qemu: bad thing\n".to_owned(),
            trace_fault: None,
            took: Duration::from_secs(3),
        }
    }

    #[test]
    fn a_proof_holds_only_with_its_line_and_a_good_end() {
        let limit = Some(Duration::from_secs(60));
        let good = ["so needed it is", "proof x: ok"];
        let judge = |lines: &[&str], outcome| report(lines, outcome).proof_failure("x", limit);
        assert_eq!(judge(&good, Some(Outcome::Off(0))), None);
        let says = |lines: &[&str], outcome, expected: &str| {
            let why = judge(lines, outcome).unwrap_or_default();
            assert!(why.contains(expected), "wanted {expected}, got {why}");
        };
        says(&good, Some(Outcome::Off(3)), "said ok, and then: the machine powered off with status 3");
        says(&good, None, "said ok, and then: not done after 60 s, stopped");
        says(&good, Some(Outcome::Reset), "reset itself");
        let odd = ["boot: option `policy=x` is not known and left out; known are", "needed", "proof x: ok"];
        says(&odd, Some(Outcome::Off(0)), "the boot option `policy=x` is not known");
        says(&good[..1], Some(Outcome::Off(0)), "powered off without saying `proof x: ok`");
        says(&["needed", "proof xy: ok"], Some(Outcome::Off(0)), "without saying");
        says(&["needed", "proof x: okay"], Some(Outcome::Off(0)), "without saying");
        says(&["needed", "proof x: ok", "proof x: FAILED later"], Some(Outcome::Off(0)), "later");
        says(&good[1..], Some(Outcome::Off(0)), "never said `needed`");
        says(&["needed", "proof x: FAILED too slow"], Some(Outcome::Off(1)), "too slow");
        says(&["needed", "KERNEL PANIC: oh"], Some(Outcome::Off(15)), "kernel panic: KERNEL PANIC: oh");
        says(&[], Some(Outcome::Failed("QEMU ended with status 1".to_owned())), "status 1: qemu: bad thing");
    }

    #[test]
    fn only_the_last_lines_are_shown_again() {
        let lines: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let report = report(&lines, None);
        assert_eq!(report.tail.len(), TAIL_LINES);
        assert!(report.last_lines().starts_with("    | 70\n") && report.last_lines().ends_with("    | 99\n"));
    }

    #[test]
    fn k_27_of_a_report_nothing_is_left_out() {
        for first in ["panic: kernel panic on CPU 0: oh", "record: what the memory of the machine says"] {
            let lines: Vec<String> = (0..100).map(|number| number.to_string()).collect();
            let all = std::iter::once(first).chain(lines.iter().map(String::as_str));
            let report = self::report(&all.collect::<Vec<_>>(), None);
            assert_eq!((report.tail.len(), report.tail[0].as_str()), (101, first));
        }
    }
}
