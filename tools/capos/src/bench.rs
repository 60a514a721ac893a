//! `capos bench`: what the kernel's operations cost, in guest instructions.
//!
//! The guest's `bench` program prints `bench <row> <instructions> …`; under icount one tick of the TSC is one instruction, and the same run
//! again gives the same numbers. Each row stands beside the figure of Linux in the same emulator (recorded once: a Debian 6.1 cloud kernel,
//! mitigations off) and beside what this kernel needed when the history was last written.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Problem;
use crate::guest::Variant;
use crate::package;
use crate::place::{Project, write_file};
use crate::proof::{Run, Show, say};
use crate::qemu::{Machine, Medium};

/// The name of the guest program's proof.
pub(crate) const PROOF: &str = "bench";
/// The row that needs two CPUs.
pub(crate) const ACROSS: &str = "ipc-across-cpus";

/// One row: its name, what Linux needs, and the target for capOS.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    linux: Option<u64>,
    pub(crate) target: u64,
}

/// In the order of the guest's output.
pub(crate) const ROWS: [Row; 11] = [
    Row { name: "null-cap-enter", linux: Some(325), target: 150 },
    Row { name: "ring-nop-1", linux: Some(861), target: 400 },
    Row { name: "ring-nop-32-each", linux: Some(274), target: 100 },
    Row { name: "context-switch", linux: Some(2040), target: 800 },
    Row { name: "ipc-one-cpu", linux: Some(8370), target: 1500 },
    Row { name: "park-unpark", linux: Some(6950), target: 2000 },
    Row { name: "thread-create-join", linux: Some(72_200), target: 15_000 },
    Row { name: "process-spawn-wait", linux: Some(250_000), target: 60_000 },
    Row { name: "map-touch-unmap", linux: Some(27_400), target: 6_000 },
    Row { name: "sleep-1us", linux: Some(6_350), target: 2_500 },
    Row { name: ACROSS, linux: Some(13_190), target: 5_000 },
];

/// Rows of contexts. Linux has nothing comparable: each is compared with another row of the same run, of which it may be at most so many
/// percent.
const BESIDE: [(&str, &str, u64); 5] = [
    ("slice-end", "context-switch", 150),
    ("budget-end", "context-switch", 300),
    ("ipc-lending", "ipc-one-cpu", 125),
    ("context-switch-budget", "context-switch", 110),
    ("revoke-among-500", "revoke-among-10", 105),
];

/// Creating a context beside so many others (S-14), and the most instructions that it may take. These rows are hard bounds: exceeding one
/// fails the run.
const ADMISSIONS: [(&str, u64); 4] = [
    ("admission-at-1", 20_000),
    ("admission-at-8", 60_000),
    ("admission-at-64", 200_000),
    ("admission-at-128", 500_000),
];

/// How much a row may grow over the history before `--check` fails, in percent. The counts are exact; this leaves room for compilers.
const GROWTH_PERCENT_MAX: u64 = 10;
/// Earlier figures of this kernel.
const HISTORY: &str = "bench/kernel-history.tsv";

/// What to do with the figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// Show them.
    Show,
    /// Show them, and fail if one has grown.
    Check,
    /// Show them, and write them into the history.
    Record,
}

/// Measures, shows, writes `target/bench/bench-kernel.tsv`.
///
/// # Errors
/// When the guest does not build or run, a row is missing, or (with [`Then::Check`]) one has grown.
pub fn run(project: &Project, cpu: &str, then: Then) -> Result<(), Problem> {
    let variant = Variant { bench: true, ..Variant::default() };
    let (kernel, image) = package::prepare(project, &variant, &project.manifest("bench"), true)?;
    let medium = Medium::Kernel { kernel, image };
    let mut figures = Vec::new();
    for cpus in [1, 2] {
        let log = project.output("logs", &format!("bench-{cpus}.log"))?;
        measure(cpus, cpu, medium.clone(), &log, &mut figures)?;
    }
    let past = history(&project.root.join(HISTORY));
    let mut table = String::from("row\tours\tpeer\ttheirs\tunit\tbetter\tratio\n");
    let mut grown = Vec::new();
    say("Instructions each; Linux was recorded once, `before` is bench/kernel-history.tsv.");
    say("row                        ours     Linux  ratio   target         before");
    for row in &ROWS {
        let Some((_, ours)) = figures.iter().find(|(name, _)| name == row.name) else {
            return Err(Problem(format!(
                "the guest printed no row `{}`; see target/logs/bench-1.log",
                row.name
            )));
        };
        let before = past.iter().rev().find(|(name, _)| name == row.name).map(|(_, count)| *count);
        show(row, *ours, before);
        if let Some(linux) = row.linux {
            let ratio = linux as f64 / *ours as f64;
            let _ = writeln!(
                table,
                "{}\t{ours}\tLinux 6.1 (recorded)\t{linux}\tinstructions\tlower\t{ratio:.2}",
                row.name
            );
        }
        if before.is_some_and(|before| *ours * 100 > before * (100 + GROWTH_PERCENT_MAX)) {
            grown.push(row.name);
        }
    }
    for (name, other, percent) in BESIDE {
        let figure = |wanted: &str| figures.iter().find(|(name, _)| name == wanted).map(|(_, count)| *count);
        let (Some(ours), Some(theirs)) = (figure(name), figure(other)) else {
            return Err(Problem(format!(
                "the guest printed no row `{name}` or `{other}`; see target/logs/bench-1.log"
            )));
        };
        let row = Row { name, linux: None, target: theirs * percent / 100 };
        show(&row, ours, past.iter().rev().find(|(known, _)| known == name).map(|(_, count)| *count));
        let ratio = theirs as f64 / ours as f64;
        let _ = writeln!(table, "{name}\t{ours}\t{other}\t{theirs}\tinstructions\tlower\t{ratio:.2}");
    }
    for (name, most) in ADMISSIONS {
        let Some((_, ours)) = figures.iter().find(|(known, _)| known == name) else {
            return Err(Problem(format!("the guest printed no row `{name}`; see target/logs/bench-1.log")));
        };
        let row = Row { name, linux: None, target: most };
        show(&row, *ours, past.iter().rev().find(|(known, _)| known == name).map(|(_, count)| *count));
        let _ = writeln!(table, "{name}\t{ours}\tbound\t{most}\tinstructions\tlower\t1.00");
        if *ours > most {
            return Err(Problem(format!("{name}: {ours} instructions, and {most} are the most (S-14)")));
        }
    }
    write_file(&project.output("bench", "bench-kernel.tsv")?, table.as_bytes())?;
    match then {
        Then::Record => record(&project.root.join(HISTORY), &figures),
        Then::Check if !grown.is_empty() => Err(Problem(format!(
            "more than {GROWTH_PERCENT_MAX} % above {HISTORY}: {}\nmend it, or (if it must be) write the new figures with `make bench-kernel ARGS=--record`",
            grown.join(", ")
        ))),
        Then::Check | Then::Show => Ok(()),
    }
}

fn show(row: &Row, ours: u64, before: Option<u64>) {
    let linux = row.linux.map_or("-".to_owned(), |linux| linux.to_string());
    let ratio = row.linux.map_or("-".to_owned(), |linux| format!("{:.1}x", linux as f64 / ours as f64));
    let met = if ours <= row.target { "met" } else { "missed" };
    let change = before.map_or(String::new(), |before| {
        format!("{before} ({:+.1} %)", (ours as f64 / before as f64 - 1.0) * 100.0)
    });
    say(&format!("{:<22} {ours:>8} {linux:>9} {ratio:>6} {:>8} {met:<7} {change}", row.name, row.target));
}

fn measure(
    cpus: u32,
    cpu: &str,
    medium: Medium,
    log: &Path,
    figures: &mut Vec<(String, u64)>,
) -> Result<(), Problem> {
    let machine = Machine { cpus, icount: Some(0), cpu: cpu.to_owned(), ..Machine::default() };
    let limit = Some(Duration::from_secs(120));
    let run =
        Run { machine, medium, limit, expects: Vec::new(), show: Show::Nothing, log: log.to_path_buf() };
    let report = run.watch()?;
    if let Some(why) = report.proof_failure(PROOF, limit) {
        return Err(Problem(format!("{why}\ncapos: {}", report.advice(log))));
    }
    let text = std::fs::read_to_string(log)
        .map_err(|error| Problem(format!("cannot read {}: {error}", log.display())))?;
    figures.extend(rows(&text));
    Ok(())
}

/// The rows of a guest's output.
pub(crate) fn rows(text: &str) -> Vec<(String, u64)> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.trim().strip_prefix("bench ")?.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect()
}

/// Rows of the history, oldest first. A file that is not there is an empty one.
fn history(path: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let mut cells = line.split('\t').skip(1);
            Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
        })
        .collect()
}

fn record(path: &PathBuf, figures: &[(String, u64)]) -> Result<(), Problem> {
    let mut text =
        std::fs::read_to_string(path).unwrap_or_else(|_| "version\trow\tinstructions\n".to_owned());
    // The number of the new entry, found by how often the first row occurs.
    let first = format!("\t{}\t", ROWS[0].name);
    let entry = text.matches(&first).count() + 1;
    for (name, count) in figures {
        let _ = writeln!(text, "{entry}\t{name}\t{count}");
    }
    write_file(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let text =
            "noise\r\nbench ipc-one-cpu 3850 (spread 1 to 2)\r\nbench context-switch 1200 (x)\r\nbench bad\n";
        assert_eq!(rows(text), [("ipc-one-cpu".to_owned(), 3850), ("context-switch".to_owned(), 1200)]);
    }
}
