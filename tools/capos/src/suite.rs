//! The kernel's test suite: proofs, boot options and planted bugs on several machines, as listed in the table `tools/capos/suite.txt`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::Problem;
use crate::capture;
use crate::guest::{self, MEASURE, PLANTED_PREFIX, Variant};
use crate::options;
use crate::package;
use crate::place::{Project, cannot};
use crate::proof::{Report, Run, Show, say};
use crate::qemu::{self, Machine, Medium};
use crate::twin;

/// Where the table is, from the project's root.
pub const TABLE: &str = "tools/capos/suite.txt";
/// Machines with at most this many CPUs run in parallel.
const SMALL_CPUS_MAX: u32 = 2;
const COLUMNS: usize = 6;

/// The required result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The proof holds, and this text is printed, if there is one.
    Holds(Option<String>),
    /// It is no proof: the machine ends well, and prints this text.
    Says(String),
    /// The proof does not hold, and this text is printed.
    Fails(String),
    /// The machine does not end in its time, and this text is printed, by the machine or in its record.
    Hangs(String),
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The proof.
    pub name: String,
    /// Numbers of CPUs; a run on each.
    pub cpus: Vec<u32>,
    /// Instructions are counted instead of time, each as `2^n` ns.
    pub icount: Option<u8>,
    /// Memory, in MiB.
    pub mem_mib: u32,
    /// Time limit of each run, in seconds.
    pub seconds: u64,
    /// Boot options.
    pub options: String,
    /// Sockets, cores of each, threads of each core, if the topology is not flat.
    pub shape: Option<[u32; 3]>,
    /// The version of QEMU, if it is not the system's.
    pub qemu: Option<u32>,
    /// Which kernel: without assertions, with a planted bug, or one that measures itself.
    pub variant: Variant,
    /// The required result.
    pub verdict: Verdict,
}

impl Row {
    /// Whether this row is the unmodified proof: no bug, no boot options.
    fn is_plain(&self) -> bool {
        let is_usual = self.shape.is_none() && self.qemu.is_none();
        self.options.is_empty() && self.variant.feature.is_none() && is_usual
    }
}

/// Reads the table.
///
/// # Errors
/// With the line that is wrong.
pub fn parse(text: &str) -> Result<Vec<Row>, Problem> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let rows = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    rows.map(|(at, line)| parse_row(line).map_err(|why| Problem(format!("{TABLE}:{at}: {why}")))).collect()
}

fn parse_row(line: &str) -> Result<Row, String> {
    let mut rest = line;
    let mut columns = [""; COLUMNS];
    for column in &mut columns {
        let (word, after) = rest.split_once(char::is_whitespace).ok_or_else(|| {
            "a line is: proof, CPUs, icount, MiB, seconds, boot options, and what must come of it".to_owned()
        })?;
        (*column, rest) = (word, after.trim_start());
    }
    let [name, cpus, icount, mem, seconds, options] = columns;
    let cpus = cpus.split(',').map(|word| number(word, "a number of CPUs").filter_range(1..=255));
    let cpus = cpus.collect::<Result<Vec<u32>, _>>()?;
    let (variant, verdict) = parse_verdict(rest)?;
    let is_shape = |word: &&str| word.starts_with(SHAPE_PREFIX);
    let words = || options.split(',').filter(|word| *word != "-");
    let shape = words().find(is_shape).map(|word| parse_shape(word, &cpus)).transpose()?;
    let qemu = words().find_map(|word| word.strip_prefix(QEMU_PREFIX));
    let is_machines = |word: &&str| is_shape(word) || word.starts_with(QEMU_PREFIX);
    Ok(Row {
        name: name.to_owned(),
        cpus,
        shape,
        qemu: qemu.map(|word| number(word, "a version of QEMU").filter_range(1..=99)).transpose()?,
        icount: match icount {
            "no" => None,
            "yes" => Some(0),
            shift => match shift.parse() {
                Ok(shift @ 0..=10) => Some(shift),
                _ => return Err(format!("icount is `yes`, `no` or a shift up to 10, not `{shift}`")),
            },
        },
        mem_mib: number(mem, "MiB of memory").filter_range(16..=65536)?,
        seconds: number(seconds, "seconds").filter_range(1..=3600)?.into(),
        options: words().filter(|word| !is_machines(word)).collect::<Vec<_>>().join(" "),
        variant,
        verdict,
    })
}

/// A word among the boot options that describes the machine: `smp:2x4x2` has two sockets of four cores of two threads.
const SHAPE_PREFIX: &str = "smp:";
/// Another such word: `qemu:10` is a machine in the QEMU 10 that `tools/setup.sh` has unpacked. If it is missing, the run is skipped.
const QEMU_PREFIX: &str = "qemu:";

fn parse_shape(word: &str, cpus: &[u32]) -> Result<[u32; 3], String> {
    let numbers =
        word[SHAPE_PREFIX.len()..].split('x').map(|word| number(word, "a number").filter_range(1..=255));
    let shape: Result<Vec<u32>, String> = numbers.collect();
    match shape?.as_slice() {
        &[sockets, cores, threads] if cpus.iter().all(|cpus| *cpus == sockets * cores * threads) => {
            Ok([sockets, cores, threads])
        }
        _ => Err(format!("`{word}` is not SOCKETSxCORESxTHREADS with as many CPUs as the line says")),
    }
}

/// QEMU's arguments for a topology; they add to the number of CPUs.
fn smp([sockets, cores, threads]: [u32; 3]) -> Vec<String> {
    vec!["-smp".to_owned(), format!("sockets={sockets},cores={cores},threads={threads}")]
}

fn number(word: &str, what: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("`{word}` is not {what}"))
}

trait InRange {
    fn filter_range(self, range: std::ops::RangeInclusive<u32>) -> Result<u32, String>;
}

impl InRange for Result<u32, String> {
    fn filter_range(self, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
        self.and_then(|value| match range.contains(&value) {
            true => Ok(value),
            false => Err(format!("{value} is not from {} to {}", range.start(), range.end())),
        })
    }
}

/// The word for a kernel without assertions.
const RELEASE: &str = "release";

fn parse_verdict(text: &str) -> Result<(Variant, Verdict), String> {
    let known = "`ok`, `ok with TEXT`, `says TEXT`, `must fail with TEXT`, `must hang with TEXT`, `planted-NAME must fail with TEXT`, \
         `measure ok with TEXT`, and `release` before any of them";
    let (release, text) = match text.split_once(' ').filter(|(word, _)| *word == RELEASE) {
        Some((_, rest)) => (true, rest.trim_start()),
        None => (false, text),
    };
    let is_feature = |word: &str| word == MEASURE || word.starts_with(PLANTED_PREFIX);
    let (feature, text) = match text.split_once(' ').filter(|(word, _)| is_feature(word)) {
        Some((name, rest)) => (Some(name.to_owned()), rest.trim_start()),
        None => (None, text),
    };
    let is_planted = feature.as_ref().is_some_and(|name| name.starts_with(PLANTED_PREFIX));
    let verdict = if let Some(text) = text.strip_prefix("must fail with ") {
        Verdict::Fails(text.trim().to_owned())
    } else if let Some(text) = text.strip_prefix("must hang with ") {
        Verdict::Hangs(text.trim().to_owned())
    } else if is_planted {
        return Err(format!("what must come of it is one of: {known}; a planted bug must fail"));
    } else if let Some(text) = text.strip_prefix("ok with ") {
        Verdict::Holds(Some(text.trim().to_owned()))
    } else if let Some(text) = text.strip_prefix("says ") {
        Verdict::Says(text.trim().to_owned())
    } else if text == "ok" {
        Verdict::Holds(None)
    } else {
        return Err(format!("what must come of it is one of: {known}; not `{text}`"));
    };
    Ok((Variant { release, feature, ..Variant::default() }, verdict))
}

/// Reads the project's table.
///
/// # Errors
/// When it cannot be read, or is wrong.
pub fn read(project: &Project) -> Result<Vec<Row>, Problem> {
    let path = project.root.join(TABLE);
    parse(&std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?)
}

/// The memory and the time limit that the table gives the proof `name`, if it lists the proof.
#[must_use]
pub fn size_of(rows: &[Row], name: &str) -> Option<(u32, u64)> {
    let rows = rows.iter().filter(|row| row.name == name && row.is_plain());
    rows.map(|row| (row.mem_mib, row.seconds)).reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)))
}

/// The CPUs and the shift of the proof `name`, if the table lists it only with counted instructions.
#[must_use]
pub fn counted(rows: &[Row], name: &str) -> Option<(Vec<u32>, u8)> {
    let mut rows = rows.iter().filter(|row| row.name == name && row.is_plain()).peekable();
    let shift = rows.peek()?.icount?;
    let mut cpus = Vec::new();
    for row in rows {
        row.icount?;
        cpus.extend(row.cpus.iter().copied().filter(|count| !cpus.contains(count)).collect::<Vec<_>>());
    }
    Some((cpus, shift))
}

/// Refuses machines on which the proof `name` is meaningless. Shares and bounds apply to one number of CPUs, that of the simulator's scenario. Such a
/// proof is known by its shift: it counts an instruction as several ns, so that seconds of guest time take few seconds of real time.
///
/// # Errors
/// With the machines that it is for.
pub fn refuse_other_machines(rows: &[Row], name: &str, cpus: &[u32]) -> Result<(), Problem> {
    let Some((known, 1..)) = counted(rows, name) else { return Ok(()) };
    let Some(other) = cpus.iter().find(|cpus| !known.contains(cpus)) else { return Ok(()) };
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    let known = known.join(" or ");
    Err(Problem(format!(
        "the proof {name} is of a machine with CPUS={known}, not {other}; it means nothing on others"
    )))
}

/// One run of a row.
#[derive(Clone, Debug)]
struct Case {
    row: Row,
    cpus: u32,
    /// What it boots, or why that could not be made.
    medium: Result<Medium, Problem>,
}

impl Case {
    /// A title for people: `smoke on 2 CPUs, icount, pit`.
    fn title(&self) -> String {
        let Case { row, cpus, .. } = self;
        let mut title = format!("{} on {cpus} CPU{}", row.name, if *cpus == 1 { "" } else { "s" });
        match row.icount {
            None => {}
            Some(0) => title.push_str(", icount"),
            Some(shift) => title.push_str(&format!(", icount {shift}")),
        }
        if !row.options.is_empty() {
            title.push_str(&format!(", {}", row.options));
        }
        if let Some([sockets, cores, threads]) = row.shape {
            title.push_str(&format!(", {sockets}x{cores}x{threads}"));
        }
        if let Some(version) = row.qemu {
            title.push_str(&format!(", QEMU {version}"));
        }
        if row.variant.release {
            title.push_str(&format!(", {RELEASE}"));
        }
        if let Some(name) = &row.variant.feature {
            title.push_str(&format!(", {name}"));
        }
        title
    }

    /// The title as a file name.
    fn file(&self) -> String {
        self.title().replace(", ", "-").replace([' ', '='], "-")
    }

    /// The command that repeats this run.
    fn command(&self) -> String {
        let Case { row, cpus, .. } = self;
        let kind = if matches!(row.verdict, Verdict::Says(_)) { "run --manifest" } else { "proof" };
        let mut command =
            format!("cargo run -p capos -- {kind} {} --cpus {cpus} --mem {}", row.name, row.mem_mib);
        if let Some(shift) = row.icount {
            command.push_str(&format!(" --icount {shift}"));
        }
        if !row.options.is_empty() {
            command.push_str(&format!(" --append '{}'", row.options));
        }
        if let Some(shape) = row.shape {
            command.push_str(&format!(" --qemu-args='{}'", smp(shape).join(" ")));
        }
        if let Some(version) = row.qemu {
            command.push_str(&format!(" --qemu {version}"));
        }
        if row.variant.release {
            command.push_str(&format!(" --{RELEASE}"));
        }
        match row.variant.feature.as_ref().map(|name| name.strip_prefix(PLANTED_PREFIX)) {
            Some(Some(bug)) => command.push_str(&format!(" --planted {bug}")),
            Some(None) => command.push_str(" --measure"),
            None => {}
        }
        command
    }

    fn is_small(&self) -> bool {
        self.cpus <= SMALL_CPUS_MAX || self.row.icount.is_some()
    }

    fn run(&self, project: &Project) -> Result<(Report, PathBuf), Problem> {
        let (row, medium) = (&self.row, self.medium.clone()?);
        let machine = Machine {
            cpus: self.cpus,
            mem_mib: row.mem_mib,
            icount: row.icount,
            append: row.variant.boot_line(&row.options),
            debug: self.dump(project)?,
            extra: row.shape.map(smp).unwrap_or_default(),
            ..Machine::default()
        };
        let machine = match row.qemu {
            Some(version) => machine.on_qemu(project, version)?,
            None => machine,
        };
        let expects = match &row.verdict {
            Verdict::Holds(text) => text.iter().cloned().collect(),
            Verdict::Says(text) | Verdict::Fails(text) | Verdict::Hangs(text) => vec![text.clone()],
        };
        let log = project.output("logs/suite", &format!("{}.log", self.file()))?;
        let limit = Some(Duration::from_secs(row.seconds));
        let dump = machine.debug.clone();
        let run = Run { machine, medium, limit, expects, show: Show::Nothing, log: log.clone() };
        let mut report = run.watch()?;
        if let Some(dump) = dump {
            report.add_trace(capture::examine(project, &dump).map_err(|problem| problem.to_string()));
        }
        Ok((report, log))
    }

    /// Where the machine writes its trace, if the row asks for one.
    fn dump(&self, project: &Project) -> Result<Option<PathBuf>, Problem> {
        let is_traced = self.row.options.split(' ').any(|word| {
            // A refused trace option produces no trace.
            word.strip_prefix("trace=").and_then(options::events).is_some()
        });
        is_traced.then(|| project.output("traces/suite", &format!("{}.dump", self.file()))).transpose()
    }

    /// Why a run does not have the required result; `None` if it does.
    fn judge(&self, project: &Project, report: &Report) -> Option<String> {
        let limit = Some(Duration::from_secs(self.row.seconds));
        let failure = report.proof_failure(&self.row.name, limit);
        match &self.row.verdict {
            Verdict::Holds(_) => {
                failure.or_else(|| twin::differs(project, &self.row.options, &report.shares))
            }
            Verdict::Says(_) => report.failure(limit),
            Verdict::Fails(text) => match failure {
                None => Some("the proof holds, and must not".to_owned()),
                Some(why) if report.missing.is_empty() => {
                    // A machine that hangs has not detected the bug.
                    report.outcome.is_none().then_some(why)
                }
                Some(why) => Some(format!("failed, but never said `{text}`: {why}")),
            },
            Verdict::Hangs(text) => match &report.outcome {
                Some(outcome) => Some(format!("the machine {outcome}, and must hang")),
                None if report.missing.is_empty() => None,
                None => Some(format!("hung, and nobody said `{text}`")),
            },
        }
    }
}

/// The number of runs by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs with the required result.
    pub passed: usize,
    /// Runs without it.
    pub failed: usize,
}

/// Makes the runs of the table, or only those of the proofs `names`, and prints the result of each.
///
/// # Errors
/// When the table is wrong, or knows none of the names.
pub fn run(project: &Project, names: &[String]) -> Result<Tally, Problem> {
    let rows = read(project)?;
    if let Some(name) = names.iter().find(|name| !rows.iter().any(|row| row.name == **name)) {
        let known: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let known: Vec<&str> = known.into_iter().collect();
        return Err(Problem(format!("{TABLE} has no proof `{name}`; it has {}", known.join(" "))));
    }
    let rows: Vec<Row> =
        rows.into_iter().filter(|row| names.is_empty() || names.contains(&row.name)).collect();
    let cases = prepare(project, &rows)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (small, large): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(Case::is_small);
    let tallies = [run_all(project, &small, cores), run_all(project, &large, (cores / 4).max(1))];
    Ok(Tally {
        passed: tallies.iter().map(|tally| tally.passed).sum(),
        failed: tallies.iter().map(|tally| tally.failed).sum(),
    })
}

/// Builds every variant that the rows need, once, and the image of each.
fn prepare(project: &Project, rows: &[Row]) -> Result<Vec<Case>, Problem> {
    let mut built: Vec<Variant> = Vec::new();
    let mut cases = Vec::new();
    for row in rows {
        if let Some(problem) = row.qemu.and_then(|version| qemu::unpacked(project, version).err()) {
            for &cpus in &row.cpus {
                let case = Case { row: row.clone(), cpus, medium: Err(problem.clone()) };
                say(&format!("skip   {}: {problem}", case.title()));
            }
            continue;
        }
        if !built.contains(&row.variant) {
            guest::build(project, &row.variant)?;
            built.push(row.variant.clone());
        }
        let made = package::prepare(project, &row.variant, &project.manifest(&row.name), false);
        let medium = made.map(|(kernel, image)| Medium::Kernel { kernel, image });
        let case = |cpus: &u32| Case { row: row.clone(), cpus: *cpus, medium: medium.clone() };
        cases.extend(row.cpus.iter().map(case));
    }
    Ok(cases)
}

/// Makes the runs, `jobs` at a time.
fn run_all(project: &Project, cases: &[Case], jobs: usize) -> Tally {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !run_one(project, case) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    Tally { passed: cases.len() - failed, failed }
}

fn run_one(project: &Project, case: &Case) -> bool {
    let title = case.title();
    match case.run(project) {
        Err(problem) => {
            say(&format!("FAILED {title}: {problem}"));
            false
        }
        Ok((report, log)) => {
            let seconds = report.took.as_secs_f64();
            let Some(why) = case.judge(project, &report) else {
                say(&format!("ok     {title:<52} {seconds:6.1} s"));
                return true;
            };
            let (lines, log, command) = (report.last_lines(), log.display(), case.command());
            say(&format!(
                "FAILED {title:<52} {seconds:6.1} s: {why}\n{lines}    the whole log: {log}; again: {command}"
            ));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Outcome;

    const GOOD: &str = "# comment\n\n\
        smoke 1,2 no  256 30 -           ok\n\
        smoke 4   yes 128 60 pit,quiet   ok with events by Pit\n\
        tlb   4   no  256 90 -           planted-no-ipi must fail with stale byte\n\
        smoke 2   no  256 30 panic       must fail with start_bsp\n";

    #[test]
    fn the_table_is_read() {
        let rows = parse(GOOD).unwrap();
        assert_eq!(
            (rows.len(), &rows[0].cpus[..], &rows[0].verdict),
            (4, &[1, 2][..], &Verdict::Holds(None))
        );
        assert_eq!((rows[1].icount, rows[1].options.as_str(), rows[1].mem_mib), (Some(0), "pit quiet", 128));
        assert_eq!(rows[1].verdict, Verdict::Holds(Some("events by Pit".to_owned())));
        assert_eq!(rows[2].variant.feature.as_deref(), Some("planted-no-ipi"));
        assert_eq!(rows[2].verdict, Verdict::Fails("stale byte".to_owned()));
        assert_eq!(rows[3].verdict, Verdict::Fails("start_bsp".to_owned()));
        assert_eq!(size_of(&rows, "smoke"), Some((256, 30)));
        assert_eq!(size_of(&rows, "tlb"), None, "only planted");
        assert_eq!(counted(&rows, "smoke"), None, "one row is of time");
        let rows_of_counts = parse("a 2,1 3 256 9 - ok\na 4,2 3 256 9 - ok\n").unwrap();
        assert_eq!(counted(&rows_of_counts, "a"), Some((vec![2, 1, 4], 3)));
        assert_eq!(refuse_other_machines(&rows_of_counts, "a", &[4, 1]), Ok(()));
        assert_eq!(refuse_other_machines(&rows, "smoke", &[7]), Ok(()));
        let problem = refuse_other_machines(&rows_of_counts, "a", &[4, 3]).unwrap_err().to_string();
        assert!(problem.contains("CPUS=2 or 1 or 4, not 3"), "{problem}");
        let case = Case { row: rows[1].clone(), cpus: 4, medium: Err(Problem::new("none")) };
        assert_eq!(case.title(), "smoke on 4 CPUs, icount, pit quiet");
        assert_eq!(case.file(), "smoke-on-4-CPUs-icount-pit-quiet");
        assert!(case.command().ends_with("proof smoke --cpus 4 --mem 128 --icount 0 --append 'pit quiet'"));
    }

    #[test]
    fn a_shape_is_the_machines_and_no_boot_option() {
        let rows = parse("smoke 8 no 256 30 pit,smp:2x2x2 ok").unwrap();
        assert_eq!((rows[0].options.as_str(), rows[0].shape), ("pit", Some([2, 2, 2])));
        let case = Case { row: rows[0].clone(), cpus: 8, medium: Err(Problem::new("none")) };
        assert_eq!(case.title(), "smoke on 8 CPUs, pit, 2x2x2");
        assert!(case.command().ends_with("--append 'pit' --qemu-args='-smp sockets=2,cores=2,threads=2'"));
    }

    #[test]
    fn k_24_a_row_may_be_of_another_qemu() {
        let rows = parse("smoke 4 yes 256 30 pit,qemu:10 ok with x2apic").unwrap();
        assert_eq!((rows[0].options.as_str(), rows[0].qemu), ("pit", Some(10)));
        assert_eq!(size_of(&rows, "smoke"), None, "it is not the usual machine");
        let case = Case { row: rows[0].clone(), cpus: 4, medium: Err(Problem::new("none")) };
        assert_eq!(case.title(), "smoke on 4 CPUs, icount, pit, QEMU 10");
        assert!(case.command().ends_with("--append 'pit' --qemu 10"), "{}", case.command());
        let project = Project { root: ".".into(), target: "no-such-folder".into() };
        assert_eq!(prepare(&project, &rows).unwrap().len(), 0, "skipped where there is none");
    }

    #[test]
    fn a_row_may_be_of_the_kernel_without_assertions() {
        let rows = parse(
            "races 4 no 256 30 - release ok with x\nraces 4 no 256 30 - release planted-y must fail with z",
        )
        .unwrap();
        assert_eq!(rows[0].variant, Variant { release: true, ..Variant::default() });
        assert_eq!(rows[0].verdict, Verdict::Holds(Some("x".to_owned())));
        let case = Case { row: rows[1].clone(), cpus: 4, medium: Err(Problem::new("none")) };
        assert_eq!(case.title(), "races on 4 CPUs, release, planted-y");
        assert!(case.command().ends_with("--mem 256 --release --planted y"), "{}", case.command());
    }

    #[test]
    fn the_projects_own_table_is_good() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let rows = parse(&std::fs::read_to_string(root.join(TABLE)).unwrap()).unwrap();
        assert!(rows.iter().any(|row| row.name == "smoke"));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (line, why) in [
            ("smoke 1 no 256", "a line is: proof"),
            ("smoke 0 no 256 30 - ok", "0 is not from 1 to 255"),
            ("smoke x no 256 30 - ok", "`x` is not a number of CPUs"),
            ("smoke 1 on 256 30 - ok", "icount is `yes`, `no`"),
            ("smoke 1 no 8 30 - ok", "8 is not from 16"),
            ("smoke 4 no 256 30 smp:2x2 ok", "`smp:2x2` is not SOCKETSxCORESxTHREADS"),
            ("smoke 4,8 no 256 30 smp:2x2x2 ok", "as many CPUs as the line says"),
            ("smoke 4 no 256 30 smp:2x0x2 ok", "0 is not from 1 to 255"),
            ("smoke 1 no 256 30 - okay", "not `okay`"),
            ("smoke 1 no 256 30 qemu:x ok", "`x` is not a version of QEMU"),
            ("smoke 1 no 256 30 - planted-x ok", "a planted bug must fail"),
            ("smoke 1 no 256 30 - release planted-x ok", "a planted bug must fail"),
        ] {
            let problem = parse(&format!("# one\n{line}\n")).unwrap_err().to_string();
            assert!(problem.contains(why) && problem.contains(":2: "), "{line}: {problem}");
        }
    }

    #[test]
    fn what_must_fail_must_say_why() {
        let row = parse(GOOD).unwrap()[3].clone();
        let case = Case { row, cpus: 2, medium: Err(Problem::new("none")) };
        let report = |missing: &[&str], outcome, proofs: &[&str]| Report {
            outcome,
            missing: missing.iter().map(|text| (*text).to_owned()).collect(),
            tail: Vec::new(),
            panic: None,
            unknown_option: None,
            proofs: proofs.iter().map(|line| (*line).to_owned()).collect(),
            shares: Vec::new(),
            complaints: String::new(),
            trace_fault: None,
            took: Duration::ZERO,
        };
        let project = Project { root: ".".into(), target: "target".into() };
        let off = |status| Some(Outcome::Off(status));
        assert_eq!(case.judge(&project, &report(&[], off(15), &[])), None);
        let says = |report, text: &str| {
            let why = case.judge(&project, &report).unwrap_or_default();
            assert!(why.contains(text), "wanted {text}, got {why}");
        };
        says(report(&["start_bsp"], off(15), &[]), "never said `start_bsp`");
        says(report(&[], off(0), &["proof smoke: ok"]), "holds, and must not");
        says(report(&[], None, &[]), "not done after");
    }
}
