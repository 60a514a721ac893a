//! `capos linux`: capOS and Linux in the same emulator, row by row, in one run.
//!
//! Linux is Debian's kernel for clouds, unpacked under `target/linux` by `tools/setup.sh linux`. Its first program is `bench/linux`, packed
//! into an initramfs with nothing else. Both systems boot on the same machine under icount, where one tick of the TSC is one instruction;
//! `thread-scale` alone runs against time, on machines whose CPUs are threads of the host.

mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Problem;
use crate::bench;
use crate::cpio::Archive;
use crate::guest::{self, Variant};
use crate::package;
use crate::place::{Project, cannot, write_file};
use crate::proof::{Run, Show, say};
use crate::qemu::{Machine, Medium};

use table::{Figure, Scaling, Side, Table};

/// Environment variable that names another Linux kernel than the unpacked one.
pub const LINUX_VARIABLE: &str = "CAPOS_LINUX";
/// A CPU that does not advertise fast string instructions. Under icount each byte that they move counts as an instruction, so a kernel that clears a
/// page by bytes looks bad; on this CPU Linux does it by words.
pub const NO_FAST_STRINGS: &str = "max,-erms,-fsrm";
/// Earlier figures of both systems.
const HISTORY: &str = "bench/linux-history.tsv";
/// How long one boot may take. The longest simulates 10 s.
const LIMIT: Duration = Duration::from_secs(600);
/// Boot options of every Linux: the log goes to the serial line only if something is wrong, and a panic ends the machine.
const APPEND: &str = "console=ttyS0 quiet panic=-1";
/// A further boot option under icount.
const APPEND_COUNTED: &str = "tsc=reliable";
/// Linux before 6.12 under icount: the benchmark brings the other CPUs up later, because this Linux waits for them without a pause hint, which keeps
/// them from running there. Later versions bring CPUs up themselves, and fail when one comes up later.
const APPEND_ALONE: &str = "maxcpus=1";
const BRINGS_CPUS_UP: (u32, u32) = (6, 12);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Models of CPU, a table for each; the rows of time and share are measured on the first.
    pub cpus: Vec<String>,
    /// Boots of each system for `thread-scale`; 0 leaves it out.
    pub reps: u32,
    /// Write the figures into the history.
    pub record: bool,
}

/// Measures, shows, writes `target/bench/bench-linux.tsv`.
///
/// # Errors
/// When there is no Linux, something does not build or run, or a row is missing.
pub fn run(project: &Project, options: &Options) -> Result<(), Problem> {
    // Missing tools are looked for before anything is built, which takes minutes.
    let theirs = Linux::prepare(project)?;
    let ours = Ours::prepare(project)?;
    say(&format!("capOS beside {}", theirs.name));
    let mut tables = Vec::new();
    for (at, cpu) in options.cpus.iter().enumerate() {
        let with_shares = at == 0;
        let capos = ours.rows(project, cpu, with_shares)?;
        let best = theirs.rows(project, cpu, "mitigations=off", with_shares)?;
        let default = theirs.rows(project, cpu, "", with_shares)?;
        let table = Table::new(cpu, Side { capos, best, default });
        table.check(with_shares)?;
        say("");
        table.lines().iter().for_each(|line| say(line));
        tables.push(table);
    }
    let scaling = if options.reps > 0 { scale(project, &ours, &theirs, options.reps)? } else { None };
    if let Some(scaling) = &scaling {
        say("");
        scaling.lines().iter().for_each(|line| say(line));
    }
    let text = table::report(&tables, scaling.as_ref(), &theirs.name);
    write_file(&project.output("bench", "bench-linux.tsv")?, text.as_bytes())?;
    if options.record {
        let path = project.root.join(HISTORY);
        let past = std::fs::read_to_string(&path).unwrap_or_default();
        write_file(&path, table::history(&past, &tables, scaling.as_ref(), &theirs.name).as_bytes())?;
    }
    Ok(())
}

/// Boots Linux once without icount, which is quick, and checks that every row of one CPU is printed: a test of everything here but the figures.
///
/// # Errors
/// When one is not.
pub fn smoke(project: &Project) -> Result<(), Problem> {
    let linux = Linux::prepare(project)?;
    let machine = Machine { icount: None, ..counted(1, "max") };
    let text = linux.boot(project, machine, "mitigations=off", "one")?;
    let figures = table::figures(&text);
    table::missing(&figures, |row| row.is_of_one_cpu())?;
    say(&format!("{}: {} figures", linux.name, figures.len()));
    Ok(())
}

/// The machine that counts instructions; the same for both systems.
fn counted(cpus: u32, cpu: &str) -> Machine {
    let extra = ["-seed", "1", "-rtc", "base=2026-01-01,clock=vm"].map(str::to_owned).to_vec();
    Machine { cpus, mem_mib: 512, icount: Some(0), cpu: cpu.to_owned(), extra, ..Machine::default() }
}

/// The machine whose CPUs are threads of the host.
fn timed(cpus: u32) -> Machine {
    Machine { icount: None, ..counted(cpus, "max") }
}

/// Boots a machine, watches it to its end, and returns its output.
fn boot(
    project: &Project,
    machine: Machine,
    medium: &Medium,
    proof: &str,
    log: &str,
) -> Result<String, Problem> {
    let log = project.output("logs", &format!("{log}.log"))?;
    let cpus = machine.cpus;
    let (medium, limit, expects) = (medium.clone(), Some(LIMIT), Vec::new());
    let report = Run { machine, medium, limit, expects, show: Show::Nothing, log: log.clone() }.watch()?;
    if let Some(why) = report.proof_failure(proof, limit) {
        let tail = report.last_lines();
        return Err(Problem(format!("{proof} on {cpus} CPUs: {why}\n{tail}capos: {}", report.advice(&log))));
    }
    let text = std::fs::read(&log).map_err(|error| cannot("read", &log, &error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// capOS, built and packed.
struct Ours {
    bench: Medium,
    fair: Medium,
    scale: Option<Medium>,
}

impl Ours {
    fn prepare(project: &Project) -> Result<Ours, Problem> {
        let variant = Variant { bench: true, ..Variant::default() };
        let prepare = |name: &str, build| {
            let (kernel, image) = package::prepare(project, &variant, &project.manifest(name), build)?;
            Ok::<_, Problem>(Medium::Kernel { kernel, image })
        };
        let (bench, fair) = (prepare("bench", true)?, prepare("bench-fair", false)?);
        let has_scale = project.manifest("thread-scale").is_file();
        let scale = if has_scale { Some(prepare("thread-scale", false)?) } else { None };
        Ok(Ours { bench, fair, scale })
    }

    fn rows(&self, project: &Project, cpu: &str, with_shares: bool) -> Result<Vec<Figure>, Problem> {
        let mut figures = Vec::new();
        let mut measure = |cpus, medium, proof: &str| {
            let log = format!("linux-capos-{proof}-{cpus}");
            let text = timed_boot(&format!("capOS, {proof}, {cpus} CPU, {cpu}"), || {
                boot(project, counted(cpus, cpu), medium, proof, &log)
            })?;
            figures.extend(table::figures(&text));
            Ok::<_, Problem>(())
        };
        measure(1, &self.bench, bench::PROOF)?;
        measure(2, &self.bench, bench::PROOF)?;
        if with_shares {
            measure(1, &self.fair, "bench-fair")?;
        }
        Ok(figures)
    }
}

/// Linux, found and packed.
struct Linux {
    /// The name of the kernel.
    name: String,
    /// Its first two numbers.
    version: (u32, u32),
    medium: Medium,
}

impl Linux {
    fn prepare(project: &Project) -> Result<Linux, Problem> {
        let kernel = find_kernel(project)?;
        let file = kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let release = file.trim_start_matches("vmlinuz-");
        let (name, version) = (format!("Linux {release}"), version_of(release));
        let init = package::strip(&guest::build_linux(project)?)?;
        let nothing = assemble_nothing(project)?;
        let archive = Archive::default()
            .folder("dev")
            .folder("proc")
            .folder("sys")
            .device("dev/console", 5, 1)
            .program("init", &init)
            .program("nothing", &nothing);
        let image = project.output("images", "linux.cpio")?;
        write_file(&image, &archive.finish())?;
        Ok(Linux { name, version, medium: Medium::Kernel { kernel, image } })
    }

    /// Boots Linux for the named groups of rows (`bench/linux/src/main.rs`).
    fn boot(
        &self,
        project: &Project,
        machine: Machine,
        options: &str,
        groups: &str,
    ) -> Result<String, Problem> {
        let counted = if machine.icount.is_some() { APPEND_COUNTED } else { "" };
        let alone = if machine.icount.is_some() && self.version < BRINGS_CPUS_UP { APPEND_ALONE } else { "" };
        let append = format!("{APPEND} {counted} {alone} {options} -- {groups}");
        let log = format!("linux-{}-{}", groups.replace(' ', "-"), machine.cpus);
        boot(project, Machine { append, ..machine }, &self.medium, "linux-bench", &log)
    }

    fn rows(
        &self,
        project: &Project,
        cpu: &str,
        options: &str,
        with_shares: bool,
    ) -> Result<Vec<Figure>, Problem> {
        let one = if with_shares { "one fair" } else { "one" };
        let what = if options.is_empty() { "default mitigations" } else { options };
        let mut figures = Vec::new();
        for (cpus, groups) in [(1, one), (2, "across")] {
            let text = timed_boot(&format!("Linux, {what}, {cpus} CPU, {cpu}"), || {
                self.boot(project, counted(cpus, cpu), options, groups)
            })?;
            figures.extend(table::figures(&text));
        }
        Ok(figures)
    }
}

/// Reports what was run and how long it took, because the whole takes minutes.
fn timed_boot(what: &str, run: impl FnOnce() -> Result<String, Problem>) -> Result<String, Problem> {
    let start = std::time::Instant::now();
    let text = run()?;
    say(&format!("  {what}: {:.0} s", start.elapsed().as_secs_f64()));
    Ok(text)
}

/// The same work on both systems in turn, because the host has other things to do: what disturbs one then disturbs the other.
fn scale(project: &Project, ours: &Ours, theirs: &Linux, reps: u32) -> Result<Option<Scaling>, Problem> {
    let Some(medium) = &ours.scale else {
        say("no manifest `thread-scale` here: how threads scale is left out");
        return Ok(None);
    };
    let mut scaling = Scaling::default();
    for rep in 1..=reps {
        let what = |system: &str| format!("{system}, thread-scale, {rep} of {reps}");
        let text = timed_boot(&what("capOS"), || {
            boot(project, timed(4), medium, "thread-scale", "linux-capos-thread-scale")
        })?;
        scaling.capos.push(table::scale_lines(&text)?);
        let text = timed_boot(&what("Linux"), || theirs.boot(project, timed(4), "mitigations=off", "scale"))?;
        scaling.linux.push(table::scale_lines(&text)?);
    }
    Ok(Some(scaling))
}

/// The first two numbers of a version such as `6.12.9-1-cloud`; a version that does not begin so counts as the newest.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

/// The newest of the unpacked kernels, or the one that the variable names.
fn find_kernel(project: &Project) -> Result<PathBuf, Problem> {
    if let Some(path) = std::env::var_os(LINUX_VARIABLE) {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Problem(format!("{LINUX_VARIABLE} names {}, which is no file", path.display())))
        };
    }
    let folder = project.target.join("linux/boot");
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    let entries = std::fs::read_dir(&folder).into_iter().flatten();
    let kernels: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_kernel).collect();
    let release = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (version_of(name.trim_start_matches("vmlinuz-")), name)
    };
    kernels.into_iter().max_by_key(release).ok_or_else(|| {
        Problem(format!(
            "no Linux kernel in {}; fetch one with `tools/setup.sh linux`, or name one by {LINUX_VARIABLE}=FILE",
            folder.display()
        ))
    })
}

/// The program that Linux starts in order to be measured: five instructions, assembled by the compiler that rustc links with.
fn assemble_nothing(project: &Project) -> Result<Vec<u8>, Problem> {
    let source = project.root.join("bench/linux/nothing.s");
    let program = project.output("images", "linux-nothing")?;
    let run = |path: &Path| {
        Command::new("cc").args(["-nostdlib", "-static", "-s", "-o"]).arg(path).arg(&source).output()
    };
    let output = run(&program).map_err(|error| Problem(format!("cannot run cc: {error}; install gcc")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Problem(format!("cc cannot assemble {}: {said}", source.display())));
    }
    std::fs::read(&program).map_err(|error| cannot("read", &program, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_of("6.12.95+deb12-cloud-amd64"), (6, 12));
        assert_eq!(version_of("6.1.0-48-cloud-amd64"), (6, 1));
        assert!(version_of("6.9.1") < BRINGS_CPUS_UP && version_of("6.12") >= BRINGS_CPUS_UP);
        assert!(version_of("bzImage") > BRINGS_CPUS_UP, "whoever names a kernel names a new one");
    }
}
