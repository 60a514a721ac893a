//! `capos`: builds the guest, makes its boot image, boots it in QEMU, and judges what it prints.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use capos::bench::{self, Then};
use capos::capture::{self, Capture};
use capos::guest::{self, Variant};
use capos::place::Project;
use capos::proof::{Report, Run, Show, say};
use capos::qemu::{Guest, Machine, Medium, Outcome, Stub};
use capos::script::{self, Played, Script};
use capos::suite::{self, Tally};
use capos::terminal::{Farewell, converse};
use capos::{Problem, elsewhere, iso, linux, options, package, picture, twin};
use clap::{Args, Parser, Subcommand};

/// Memory of a machine by default.
const MEM_MIB: u32 = 256;
/// CPUs of a machine by default.
const CPUS: u32 = 4;
/// The most CPUs that QEMU's machine has without an interrupt remapper.
const CPUS_MAX: u32 = 255;
/// Time limit of a run by default.
const SECONDS: u64 = 60;
/// By how much the time limit is multiplied for a run that counts instructions.
const ICOUNT_TIMES: u64 = 5;

#[derive(Parser)]
#[command(name = "capos", about = "Builds capOS, makes boot images, boots them in QEMU", version)]
struct Line {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build kernel and programs
    Build(Build),
    /// Check kernel, runtime and programs with clippy, warnings as errors
    Lint,
    /// Make the boot image of a manifest out of what was built
    Image {
        /// The manifest: a name (manifests/NAME.toml) or a path
        manifest: String,
        /// Where the image goes
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        build: Build,
    },
    /// Check a manifest, and make nothing of it
    Check {
        /// The manifests: names (manifests/NAME.toml) or paths
        #[arg(required = true)]
        manifests: Vec<String>,
    },
    /// Build, make the image, boot it, and show what it says
    Run(Boot),
    /// Build a kernel with types, boot it, and start gdb with the commands of tools/gdb/capos.py beside it
    Debug(Debug),
    /// Stop a machine whose threads, contexts and queues are known, and compare what the commands of tools/gdb/capos.py say
    GdbTest {
        /// Take what was built before as it is
        #[arg(long)]
        no_build: bool,
    },
    /// Make all runs of tools/capos/suite.txt: ends with `N passed, M failed`
    Suite {
        /// Only those of these proofs
        names: Vec<String>,
    },
    /// Drive machines by scripts of what to type and what to wait for
    TerminalTest {
        /// The scripts (default: all of tools/capos/scripts)
        scripts: Vec<PathBuf>,
        /// Take what was built before as it is
        #[arg(long)]
        no_build: bool,
        /// Put the pictures that the scripts draw into docs/plots, instead of comparing those that are there
        #[arg(long)]
        draw: bool,
    },
    /// Build, and make a disc that boots by BIOS and by UEFI
    Iso {
        /// The manifest: a name (manifests/NAME.toml) or a path
        #[arg(long, default_value = "default")]
        manifest: String,
        /// Where the disc goes (default: target/images/NAME.iso)
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Boot options for the kernel
        #[arg(long, value_name = "OPTIONS", default_value = "")]
        append: String,
        #[command(flatten)]
        build: Build,
    },
    /// Build kernel and a program at another path too: they must be the same, to the byte
    PathTest,
    /// Make a disc with a proof on it, boot it by BIOS and by UEFI, and judge
    IsoTest(IsoTest),
    /// Count the instructions of the kernel's operations, beside Linux and its own past
    Bench {
        /// The model of CPU (`max,-erms,-fsrm` is fairer to kernels that use string instructions)
        #[arg(long, value_name = "MODEL", default_value = "max")]
        cpu: String,
        /// Fail if a row has grown by more than a tenth since the history was written
        #[arg(long, conflicts_with = "record")]
        check: bool,
        /// Write the figures into the history
        #[arg(long)]
        record: bool,
    },
    /// Check kernel traces: they obey the rules, and the scheduling core decides again what the kernel did
    Replay {
        /// The traces, as the kernel wrote them (.dump)
        #[arg(required = true)]
        dumps: Vec<PathBuf>,
    },
    /// Measure capOS and Linux in the same emulator, row by row
    Linux(LinuxBench),
    /// Boot the Linux that capOS is measured beside, and look whether it prints every row
    LinuxTest,
    /// Build, make the image, boot it, and judge: ends with `proof NAME: ok` or `proof NAME: FAILED <why>`
    Proof {
        /// The proof: manifests/NAME.toml
        name: String,
        #[command(flatten)]
        boot: ProofBoot,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LinuxPart {
    Rows,
    Scale,
}

#[derive(Args)]
struct LinuxBench {
    /// Models of CPU, one table each; again for more (default: `max`, and the same without fast string instructions)
    #[arg(long, value_name = "MODEL")]
    cpu: Vec<String>,
    /// Boots of each system for thread-scale, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// Only the rows, or only thread-scale
    #[arg(long, value_name = "PART")]
    only: Option<LinuxPart>,
    /// Write the figures into the history
    #[arg(long)]
    record: bool,
}

#[derive(Args, Clone)]
struct Build {
    /// Optimised as far as it goes, without debug assertions
    #[arg(long)]
    bench: bool,
    /// As --bench, but only the kernel; the programs keep their assertions
    #[arg(long, conflicts_with = "bench")]
    release: bool,
    /// With this bug planted in the kernel
    #[arg(long, value_name = "NAME")]
    planted: Option<String>,
    /// With a kernel that measures its own work
    #[arg(long, conflicts_with = "planted")]
    measure: bool,
    /// The kernel with full debug information: gdb knows its types
    #[arg(long, conflicts_with_all = ["bench", "release"])]
    types: bool,
}

impl Build {
    fn variant(&self) -> Variant {
        let planted = self.planted.as_ref().map(|name| format!("{}{name}", guest::PLANTED_PREFIX));
        let feature = planted.or_else(|| self.measure.then(|| guest::MEASURE.to_owned()));
        Variant { bench: self.bench, release: self.release, types: self.types, feature }
    }
}

#[derive(Args, Clone)]
struct MachineOptions {
    /// Memory in MiB (default: 256; of a proof, what tools/capos/suite.txt says)
    #[arg(long, value_name = "MiB", value_parser = clap::value_parser!(u32).range(16..=65536))]
    mem: Option<u32>,
    /// Count instructions instead of time, 2^SHIFT ns each: the same run again is the same
    #[arg(long, value_name = "SHIFT", num_args = 0..=1, default_missing_value = "0",
        value_parser = clap::value_parser!(u8).range(0..=10))]
    icount: Option<u8>,
    /// The model of CPU
    #[arg(long, value_name = "MODEL", default_value = "max")]
    cpu: String,
    /// Boot options for the kernel
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Further arguments of QEMU, as they are (`-s -S` waits for gdb)
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    qemu_args: String,
    /// Words for the manifest's last process, which is a proof's own, instead of those of the manifest
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    args: String,
    /// The version of a QEMU that tools/setup.sh has unpacked under target/ (default: the system's, or what CAPOS_QEMU names)
    #[arg(long, value_name = "VERSION")]
    qemu: Option<u32>,
    /// Save the kernel's scheduling trace: .pftrace (Perfetto), .json (Chrome); the dump is kept beside it (.dump)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Take what was built before as it is
    #[arg(long)]
    no_build: bool,
    /// Where the log goes (default: target/logs/NAME.log)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
}

impl MachineOptions {
    fn machine(&self, project: &Project, cpus: u32, capture: Option<&Capture>) -> Result<Machine, Problem> {
        let mem_mib = self.mem.unwrap_or(MEM_MIB);
        let (cpu, mut append) = (self.cpu.clone(), self.build.variant().boot_line(&self.append));
        let debug = capture.map(Capture::dump);
        if debug.is_some() {
            append = capture::with_trace(&append);
        }
        let extra = self.qemu_args.split_whitespace().map(str::to_owned).collect();
        let machine =
            Machine { cpus, mem_mib, icount: self.icount, cpu, append, debug, extra, ..Machine::default() };
        match self.qemu {
            Some(version) => machine.on_qemu(project, version),
            None => Ok(machine),
        }
    }

    /// The trace that is asked for.
    fn capture(&self) -> Result<Option<Capture>, Problem> {
        self.trace.as_deref().map(Capture::new).transpose()
    }

    /// The time limit where none was given: `seconds`, or more for a machine that counts instructions, which is slower.
    fn limit(&self, seconds: u64) -> u64 {
        if self.icount.is_some() { seconds * ICOUNT_TIMES } else { seconds }
    }
}

#[derive(Args)]
struct Boot {
    /// The manifest: a name (manifests/NAME.toml) or a path
    #[arg(long)]
    manifest: String,
    /// CPUs
    #[arg(long, default_value_t = 4, value_parser = parse_cpus, allow_hyphen_values = true)]
    cpus: u32,
    /// Time limit in seconds (default: 60, with --icount 300, none when interactive)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Connect this terminal with the serial line; Ctrl-A x leaves
    #[arg(long)]
    interactive: bool,
    /// A text that must be in the output; again for more
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    expect: Vec<String>,
    #[command(flatten)]
    options: MachineOptions,
}

#[derive(Args)]
struct Debug {
    /// The manifest: a name (manifests/NAME.toml) or a path
    #[arg(long, default_value = "tour")]
    manifest: String,
    /// CPUs
    #[arg(long, default_value_t = CPUS, value_parser = parse_cpus, allow_hyphen_values = true)]
    cpus: u32,
    /// Let the machine run until gdb stops it, instead of standing at the kernel's first function
    #[arg(long)]
    running: bool,
    /// With --running: gdb comes after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "running", default_value_t = 0)]
    after: u64,
    /// A command for gdb, which ends after it; again for more
    #[arg(long = "do", value_name = "COMMAND")]
    commands: Vec<String>,
    #[command(flatten)]
    options: MachineOptions,
}

#[derive(Args)]
struct ProofBoot {
    /// CPUs; several numbers with commas make several runs (default: 4, or what tools/capos/suite.txt says if it counts instructions)
    #[arg(long, value_delimiter = ',', value_parser = parse_cpus, allow_hyphen_values = true)]
    cpus: Vec<u32>,
    /// Time limit of each run in seconds (default: what tools/capos/suite.txt says, or 60; with --icount five times that)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    options: MachineOptions,
}

#[derive(Args)]
struct IsoTest {
    /// The proof: manifests/NAME.toml
    #[arg(default_value = "smoke")]
    name: String,
    /// CPUs
    #[arg(long, default_value_t = 2, value_parser = parse_cpus, allow_hyphen_values = true)]
    cpus: u32,
    /// Time limit of each boot in seconds; the firmware takes most of it
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Show all that is said
    #[arg(short, long)]
    verbose: bool,
}

fn parse_cpus(text: &str) -> Result<u32, String> {
    let cpus = text.parse().ok().filter(|cpus| (1..=CPUS_MAX).contains(cpus));
    cpus.ok_or_else(|| format!("a machine has 1 to {CPUS_MAX} CPUs"))
}

fn main() -> ExitCode {
    let line = Line::parse();
    let result = Project::find().and_then(|project| match &line.command {
        Action::Build(build) => guest::build(&project, &build.variant()).map(|()| ExitCode::SUCCESS),
        Action::Lint => guest::lint(&project).map(|()| ExitCode::SUCCESS),
        Action::Image { manifest, output, build } => {
            package::make(&project, &build.variant(), &project.manifest(manifest), output)
                .map(|()| ExitCode::SUCCESS)
        }
        Action::Check { manifests } => check(&project, manifests),
        Action::Run(boot) => run(&project, boot),
        Action::Iso { manifest, output, append, build } => {
            let output = match output {
                Some(path) => path.clone(),
                None => project.output("images", &format!("{}.iso", name_of(Path::new(manifest))))?,
            };
            make_disc(&project, &build.variant(), manifest, append, &output)?;
            say(&output.display().to_string());
            say(&format!("boot it with: {}", boot_line(&output)));
            say("a clean power-off ends that with status 33, which is QEMU's word for it");
            Ok(ExitCode::SUCCESS)
        }
        Action::Bench { cpu, check, record } => {
            let then = match (check, record) {
                (true, _) => Then::Check,
                (_, true) => Then::Record,
                _ => Then::Show,
            };
            bench::run(&project, cpu, then).map(|()| ExitCode::SUCCESS)
        }
        Action::Linux(options) => {
            let default = || vec!["max".to_owned(), linux::NO_FAST_STRINGS.to_owned()];
            let cpus = if options.cpu.is_empty() { default() } else { options.cpu.clone() };
            let (cpus, reps) = match options.only {
                None => (cpus, options.reps),
                Some(LinuxPart::Rows) => (cpus, 0),
                Some(LinuxPart::Scale) => (Vec::new(), options.reps),
            };
            let options = linux::Options { cpus, reps, record: options.record };
            linux::run(&project, &options).map(|()| ExitCode::SUCCESS)
        }
        Action::LinuxTest => linux::smoke(&project).map(|()| ExitCode::SUCCESS),
        Action::Debug(line) => debug(&project, line),
        Action::GdbTest { no_build } => {
            let tally = capos::debug::test(&project, !no_build)?;
            Ok(tally.map_or(ExitCode::SUCCESS, |tally| tell(&tally)))
        }
        Action::Suite { names } => suite::run(&project, names).map(|tally| tell(&tally)),
        Action::TerminalTest { scripts, no_build, draw } => {
            test_terminal(&project, scripts, !no_build, *draw).map(|tally| tell(&tally))
        }
        Action::PathTest => elsewhere::test(&project).map(|tally| tell(&tally)),
        Action::IsoTest(test) => test_disc(&project, test).map(|tally| tell(&tally)),
        Action::Replay { dumps } => Ok(replay(dumps)),
        Action::Proof { name, boot } => {
            let plan = Plan::new(&project, name, boot)?;
            Ok(proof(&project, name, &plan))
        }
    });
    result.unwrap_or_else(|problem| {
        eprintln!("capos: {problem}");
        ExitCode::from(2)
    })
}

fn replay(dumps: &[PathBuf]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in dumps {
        match capture::check(path) {
            Ok(replayed) => say(&format!("replay: ok: {}: {replayed}", path.display())),
            Err(problem) => {
                say(&format!("replay: FAILED: {}: {problem}", path.display()));
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Saves the trace of a run that has ended, whatever its result.
fn save(capture: Option<&Capture>) -> Result<(), Problem> {
    if let Some(capture) = capture {
        say(&format!("capos: {}", capture.save()?));
    }
    Ok(())
}

fn check(project: &Project, manifests: &[String]) -> Result<ExitCode, Problem> {
    let mut code = ExitCode::SUCCESS;
    for name in manifests {
        match package::check(project, &project.manifest(name)) {
            Ok((bytes, _)) => say(&format!("{name}: ok, {} bytes", bytes.len())),
            Err(problem) => {
                say(&problem.to_string());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// Prints how many runs passed.
fn tell(tally: &Tally) -> ExitCode {
    say(&format!("{} passed, {} failed", tally.passed, tally.failed));
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the pictures that a script drew: into docs/plots, or next to the logs; in the latter case the pictures in docs/plots must
/// have the same words.
fn keep_pictures(project: &Project, played: &Played, draw: bool) -> Result<(), Problem> {
    for (name, svg) in &played.pictures {
        let kept = project.root.join(format!("docs/plots/{name}.svg"));
        let made = if draw { kept.clone() } else { project.output("pictures", &format!("{name}.svg"))? };
        std::fs::write(&made, svg)
            .map_err(|error| Problem(format!("cannot write {}: {error}", made.display())))?;
        let old = std::fs::read_to_string(&kept)
            .map_err(|error| Problem(format!("cannot read {}: {error}", kept.display())))?;
        if let Some(word) = picture::stale_word(&old, &played.text) {
            return Err(Problem(format!(
                "docs/plots/{name}.svg says `{word}`, which the machine does not; draw it anew: make picture"
            )));
        }
    }
    Ok(())
}

fn test_terminal(project: &Project, scripts: &[PathBuf], build: bool, draw: bool) -> Result<Tally, Problem> {
    let scripts = match scripts {
        [] => script::all(&project.root.join("tools/capos/scripts"))?,
        _ => scripts.to_vec(),
    };
    let mut tally = Tally::default();
    for (index, path) in scripts.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(path);
        let text =
            text.map_err(|error| Problem(format!("cannot read the script {}: {error}", path.display())))?;
        let script = Script::parse(&name, &text)?;
        let manifest = project.manifest(&script.manifest);
        let (kernel, image) = package::prepare(project, &Variant::default(), &manifest, build && index == 0)?;
        let machine = Machine { cpus: script.cpus, icount: script.icount, ..Machine::default() };
        let log = project.output("logs", &format!("terminal-{}.log", name_of(path)))?;
        let start = Instant::now();
        let mut guest = Guest::start(&machine, &Medium::Kernel { kernel, image }, &log)?;
        let played = script.play(&mut guest);
        let played = played.and_then(|played| keep_pictures(project, &played, draw));
        let seconds = start.elapsed().as_secs_f64();
        match played {
            Ok(()) => {
                say(&format!("ok     {name}: {} steps, {seconds:.1} s", script.len()));
                tally.passed += 1;
            }
            Err(problem) => {
                say(&format!("FAILED {problem}"));
                tally.failed += 1;
            }
        }
    }
    Ok(tally)
}

/// The name for the runs of a manifest: its file name without the extension.
fn name_of(manifest: &Path) -> String {
    manifest.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Builds what the options ask for, and makes the image.
fn prepare(project: &Project, options: &MachineOptions, manifest: &Path) -> Result<Medium, Problem> {
    let variant = options.build.variant();
    let args: Vec<String> = options.args.split_whitespace().map(str::to_owned).collect();
    let (kernel, image) = package::prepare_with(project, &variant, manifest, &args, !options.no_build)?;
    Ok(Medium::Kernel { kernel, image })
}

fn make_disc(
    project: &Project,
    variant: &Variant,
    manifest: &str,
    options: &str,
    output: &Path,
) -> Result<(), Problem> {
    let (kernel, image) = package::prepare(project, variant, &project.manifest(manifest), true)?;
    iso::make(&kernel, &image, options, output)
}

/// The command that boots a disc, with this terminal as its serial line; Ctrl-A x leaves.
fn boot_line(disc: &Path) -> String {
    let disc = disc.display();
    format!(
        "qemu-system-x86_64 -M q35 -cpu max -smp 4 -m 256 -cdrom '{disc}' -display none -serial mon:stdio -no-reboot \
         -device isa-debug-exit,iobase=0xf4,iosize=0x04"
    )
}

fn test_disc(project: &Project, test: &IsoTest) -> Result<Tally, Problem> {
    let IsoTest { name, cpus, .. } = test;
    let firmware = iso::firmware()?;
    let disc = project.output("images", &format!("{name}-test.iso"))?;
    make_disc(project, &Variant::default(), name, "", &disc)?;
    let limit = Some(Duration::from_secs(test.timeout));
    let mut tally = Tally::default();
    for (by, firmware) in [("bios", None), ("uefi", Some(firmware))] {
        let log = project.output("logs", &format!("iso-{by}.log"))?;
        let machine = Machine { cpus: *cpus, ..Machine::default() };
        let show = if test.verbose { Show::Lines } else { Show::Nothing };
        let medium = Medium::Disc { iso: disc.clone(), firmware };
        let run =
            Run { machine, medium, limit, expects: vec!["(Multiboot2)".to_owned()], show, log: log.clone() };
        let report = run.watch()?;
        let seconds = report.took.as_secs_f64();
        match report.proof_failure(name, limit) {
            None => {
                say(&format!("ok     {name} by {by}: {seconds:.1} s"));
                tally.passed += 1;
            }
            Some(why) => {
                say(&format!("{}FAILED {name} by {by}: {why}; {}", report.last_lines(), report.advice(&log)));
                tally.failed += 1;
            }
        }
    }
    Ok(tally)
}

fn log_of(project: &Project, options: &MachineOptions, name: &str) -> Result<PathBuf, Problem> {
    match &options.log {
        Some(path) => Ok(path.clone()),
        None => project.output("logs", &format!("{name}{}.log", options.build.variant().suffix())),
    }
}

fn run(project: &Project, boot: &Boot) -> Result<ExitCode, Problem> {
    options::check(&boot.options.append)?;
    let capture = boot.options.capture()?;
    let manifest = project.manifest(&boot.manifest);
    let medium = prepare(project, &boot.options, &manifest)?;
    let log = log_of(project, &boot.options, &name_of(&manifest))?;
    let machine = boot.options.machine(project, boot.cpus, capture.as_ref())?;
    let default = (!boot.interactive).then_some(boot.options.limit(SECONDS));
    let limit = boot.timeout.or(default).map(Duration::from_secs);
    if boot.interactive {
        let code = interact(&machine, &medium, &log, limit)?;
        return save(capture.as_ref()).map(|()| code);
    }
    let (expects, show) = (boot.expect.clone(), Show::Lines);
    let report = Run { machine, medium, limit, expects, show, log: log.clone() }.watch()?;
    save(capture.as_ref())?;
    let Some(why) = report.failure(limit) else { return Ok(ExitCode::SUCCESS) };
    say(&format!("capos: {why}; {}", report.advice(&log)));
    Ok(status_of(&report))
}

/// A machine with gdb beside it.
fn debug(project: &Project, line: &Debug) -> Result<ExitCode, Problem> {
    options::check(&line.options.append)?;
    let mut options = line.options.clone();
    if options.build.bench || options.build.release {
        return Err(Problem::new(
            "gdb does not know the types of an optimised kernel; leave --bench and --release out",
        ));
    }
    options.build.types = true;
    capos::debug::find()?;
    let capture = options.capture()?;
    let manifest = project.manifest(&line.manifest);
    let medium = prepare(project, &options, &manifest)?;
    let log = log_of(project, &options, &name_of(&manifest))?;
    let mut machine = options.machine(project, line.cpus, capture.as_ref())?;
    machine.stub = Some(if line.running { Stub::Running } else { Stub::Stopped });
    let code = capos::debug::session(project, &machine, &medium, &log, line.after, &line.commands)?;
    save(capture.as_ref()).map(|()| code)
}

/// The guest's own exit status, if it gave one.
fn status_of(report: &Report) -> ExitCode {
    match report.outcome {
        Some(Outcome::Off(status)) if status > 0 => ExitCode::from(status),
        _ => ExitCode::FAILURE,
    }
}

fn interact(
    machine: &Machine,
    medium: &Medium,
    log: &Path,
    limit: Option<Duration>,
) -> Result<ExitCode, Problem> {
    eprintln!("capos: Ctrl-A x leaves the machine; Ctrl-A twice types one");
    if let Some(shift) = machine.icount {
        eprintln!(
            "capos: its clock counts instructions, {} ns each: it stands still or leaps beside yours, and the tour takes up to a minute \
             (a key skips it)",
            1u64 << shift
        );
    }
    let mut guest = Guest::start(machine, medium, log)?;
    Ok(match converse(&mut guest, limit) {
        Farewell::Ended(Outcome::Off(status)) => ExitCode::from(status),
        Farewell::Ended(outcome) => {
            guest.record.iter().for_each(|line| eprintln!("{line}"));
            eprintln!("capos: the machine ended: {outcome}\n{}the log: {}", guest.complaints, log.display());
            ExitCode::FAILURE
        }
        Farewell::Left => {
            eprintln!("\ncapos: left, and the machine is off; the log: {}", log.display());
            ExitCode::SUCCESS
        }
        Farewell::Signal(signal) => {
            eprintln!(
                "\ncapos: ended by signal {signal}, and the machine is off; the log: {}",
                log.display()
            );
            // The exit code that shells use for a signal.
            ExitCode::from(128u8.saturating_add(signal as u8))
        }
        Farewell::TimeUp => {
            guest.examine();
            guest.record.iter().for_each(|line| eprintln!("{line}"));
            eprintln!("\ncapos: the time is over, and the machine is off; the log: {}", log.display());
            ExitCode::FAILURE
        }
    })
}

/// The runs of a proof, checked before anything is built.
struct Plan {
    cpus: Vec<u32>,
    seconds: u64,
    options: MachineOptions,
    capture: Option<Capture>,
}

impl Plan {
    fn new(project: &Project, name: &str, boot: &ProofBoot) -> Result<Plan, Problem> {
        options::check(&boot.options.append)?;
        let table = suite::read(project)?;
        let size = suite::size_of(&table, name);
        let default = boot.options.limit(size.map_or(SECONDS, |(_, seconds)| seconds));
        let seconds = boot.timeout.unwrap_or(default);
        let mut options = boot.options.clone();
        options.mem = options.mem.or(size.map(|(mem_mib, _)| mem_mib));
        // A proof that the table lists only with counted instructions is meaningless, or takes for ever, in another mode.
        let counted = suite::counted(&table, name);
        options.icount = options.icount.or(counted.as_ref().map(|(_, shift)| *shift));
        suite::refuse_other_machines(&table, name, &boot.cpus)?;
        let mut cpus = boot.cpus.clone();
        if cpus.is_empty() {
            cpus = counted.map_or(vec![CPUS], |(cpus, _)| cpus);
        }
        let capture = options.capture()?;
        Ok(Plan { cpus, seconds, options, capture })
    }
}

/// Runs a proof on each number of CPUs and prints one verdict.
fn proof(project: &Project, name: &str, plan: &Plan) -> ExitCode {
    match prove(project, name, plan) {
        Ok(()) => {
            say(&format!("proof {name}: ok"));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            let text = problem.to_string();
            let mut lines = text.lines();
            let first = lines.next().unwrap_or_default();
            lines.for_each(say);
            say(&format!("proof {name}: FAILED {first}"));
            ExitCode::FAILURE
        }
    }
}

fn prove(project: &Project, name: &str, plan: &Plan) -> Result<(), Problem> {
    let Plan { cpus: numbers, seconds, options, capture } = plan;
    let medium = prepare(project, options, &project.manifest(name))?;
    let log = log_of(project, options, name)?;
    for &cpus in numbers {
        if numbers.len() > 1 {
            say(&format!("--- {name} on {cpus} CPUs"));
        }
        let limit = Some(Duration::from_secs(*seconds));
        let show = Show::LinesOfProof(name.to_owned());
        let capture = match capture {
            Some(capture) if numbers.len() > 1 => Some(capture.numbered(cpus)),
            capture => capture.clone(),
        };
        let machine = options.machine(project, cpus, capture.as_ref())?;
        let (medium, log) = (medium.clone(), log.clone());
        let report = Run { machine, medium, limit, expects: Vec::new(), show, log: log.clone() }.watch()?;
        let saved = save(capture.as_ref());
        let rows = twin::compare(project, &options.append, &report.shares)?;
        rows.iter().for_each(|row| say(&format!("  {}", row.text)));
        let differs = || rows.iter().find(|row| !row.agrees).map(|row| row.text.clone());
        if let Some(why) = report.proof_failure(name, limit).or_else(differs) {
            let on = if numbers.len() > 1 { format!(" (on {cpus} CPUs)") } else { String::new() };
            return Err(Problem(format!("{why}{on}\ncapos: {}", report.advice(&log))));
        }
        saved?;
    }
    Ok(())
}
