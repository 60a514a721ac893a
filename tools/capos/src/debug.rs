//! Starts gdb on a machine, with the commands of `tools/gdb/capos.py` (K-27), and tests these commands.
//!
//! QEMU listens on a socket in the folder of its monitor, which no other user may enter. Whoever can talk to a gdb stub can do what the machine
//! can, so there is no port that other users of the host could find.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;

use crate::guest::Variant;
use crate::package;
use crate::place::{Project, cannot};
use crate::proof::say;
use crate::qemu::{Event, Guest, Machine, Medium, Stub};
use crate::suite::Tally;
use crate::{Problem, scene};

/// Environment variable that names another program than `gdb`.
const GDB_VARIABLE: &str = "CAPOS_GDB";
/// How long QEMU may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);
/// How long the scene may take to be set, and gdb to answer. Each usually takes 3 s.
const SCENE_LIMIT: Duration = Duration::from_secs(120);
/// How often gdb is asked again if it stopped the machine in the middle of a change.
const LOOKS: usize = 8;
/// What the commands print about a CPU that is changing its queue.
const LOCKED: &str = "has its queue locked";
/// Instructions are counted: 2^n ns each.
const SHIFT: u8 = 3;

/// gdb, if it is installed and can read the commands.
///
/// # Errors
/// When it is not, or cannot.
pub fn find() -> Result<PathBuf, Problem> {
    let gdb = PathBuf::from(std::env::var_os(GDB_VARIABLE).unwrap_or_else(|| "gdb".into()));
    let mut command = Command::new(&gdb);
    command.args(["-nx", "-batch", "-ex", "python print(6 * 7)"]).stdin(Stdio::null());
    match command.output() {
        Err(_) => {
            Err(Problem(format!("{} is not installed; install it with: tools/setup.sh gdb", gdb.display())))
        }
        Ok(output) if String::from_utf8_lossy(&output.stdout).trim() == "42" => Ok(gdb),
        Ok(_) => Err(Problem(format!(
            "{} has no Python, which tools/gdb/capos.py is written in; install the package `gdb`, or name another by {GDB_VARIABLE}=FILE",
            gdb.display()
        ))),
    }
}

/// The arguments with which gdb attaches to a machine of this kernel. A machine that is stopped before its first instruction continues to the
/// kernel's first function.
fn arguments(project: &Project, kernel: &Path, socket: &Path, stub: Stub) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["-q".into()];
    let mut then = |command: String| words.extend(["-ex".into(), command.into()]);
    then("set backtrace limit 20".to_owned());
    then(format!("set substitute-path /capos \"{}\"", project.root.display()));
    then(format!("target remote {}", socket.display()));
    then(format!("source {}", project.root.join("tools/gdb/capos.py").display()));
    if stub == Stub::Stopped {
        // A hardware breakpoint, because the page of the function is not mapped yet.
        then("hbreak kernel::start_bsp".to_owned());
        then("continue".to_owned());
    }
    words.push(kernel.into());
    words
}

/// Waits until QEMU listens for gdb; returns the socket's path.
fn socket_of(guest: &mut Guest) -> Result<PathBuf, Problem> {
    let socket = guest.stub_socket();
    let end = Instant::now() + LISTEN_LIMIT;
    while !socket.exists() {
        if let Event::Ended(outcome) = guest.next(Some(Instant::now() + Duration::from_millis(20))) {
            return Err(Problem(format!("the machine ended: {outcome}\n{}", guest.complaints)));
        }
        if Instant::now() > end {
            return Err(Problem::new("QEMU does not listen for gdb"));
        }
    }
    Ok(socket)
}

/// Starts a machine, and `after` so many seconds gdb on this terminal; with `commands`, gdb runs these and ends. The machine's output goes to its
/// log.
///
/// # Errors
/// When one of them does not start.
pub fn session(
    project: &Project,
    machine: &Machine,
    medium: &Medium,
    log: &Path,
    after: u64,
    commands: &[String],
) -> Result<ExitCode, Problem> {
    let Medium::Kernel { kernel, .. } = medium else {
        return Err(Problem::new("a disc has no kernel to debug"));
    };
    let gdb = find()?;
    // Ctrl-C on this terminal is for gdb, which stops the machine; it must not end this process.
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, interrupted)
        .map_err(|error| Problem(format!("cannot keep Ctrl-C for gdb: {error}")))?;
    let mut guest = Guest::start(machine, medium, log)?;
    let socket = socket_of(&mut guest)?;
    let start = Instant::now() + Duration::from_secs(after);
    while Instant::now() < start {
        if let Event::Ended(outcome) = guest.next(Some(start)) {
            return Err(Problem(format!(
                "the machine ended before gdb came: {outcome}; the log: {}",
                log.display()
            )));
        }
    }
    eprintln!(
        "capos: what the machine says goes to {}; `capos help` in gdb lists the commands",
        log.display()
    );
    let mut command = Command::new(gdb);
    if !commands.is_empty() {
        command.args(["-nx", "-batch"]);
    }
    command.args(arguments(project, kernel, &socket, machine.stub.unwrap_or(Stub::Running)));
    for text in commands {
        command.arg("-ex").arg(text);
    }
    let mut child = command.spawn().map_err(|error| Problem(format!("cannot start gdb: {error}")))?;
    let mut is_over = false;
    let status = loop {
        // The machine's output has to be read, or the machine would wait.
        if is_over {
            thread::sleep(Duration::from_millis(50));
        } else if let Event::Ended(outcome) = guest.next(Some(Instant::now() + Duration::from_millis(50))) {
            eprintln!("\ncapos: the machine ended: {outcome}");
            is_over = true;
        }
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => break status,
            Err(error) => return Err(Problem(format!("gdb cannot be waited for: {error}"))),
        }
    };
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the tests share.
struct Bench<'a> {
    project: &'a Project,
    medium: Medium,
    kernel: PathBuf,
    log: PathBuf,
}

/// One of the tests.
type Look = fn(&Bench<'_>) -> Result<(), Problem>;

impl Bench<'_> {
    /// Starts a machine with these boot options; returns it with gdb's arguments for it.
    fn start(&self, stub: Stub, append: &str) -> Result<(Guest, Vec<OsString>), Problem> {
        let append = append.to_owned();
        let machine =
            Machine { cpus: 2, icount: Some(SHIFT), append, stub: Some(stub), ..Machine::default() };
        let mut guest = Guest::start(&machine, &self.medium, &self.log)?;
        let socket = socket_of(&mut guest)?;
        Ok((guest, arguments(self.project, &self.kernel, &socket, stub)))
    }

    /// What gdb prints for `commands` about a machine; the machine continues afterwards.
    fn ask(&self, words: &[OsString], commands: &[&str]) -> Result<String, Problem> {
        let path = self.log.with_extension("gdb.log");
        let file = File::create(&path).map_err(|error| cannot("write the log", &path, &error))?;
        let copy = file.try_clone().map_err(|error| cannot("write the log", &path, &error))?;
        let mut command = Command::new(find()?);
        command.args(["-nx", "-batch"]).args(words).stdin(Stdio::null()).stdout(file).stderr(copy);
        for text in commands {
            command.arg("-ex").arg(format!("echo {}{text}\\n", scene::MARK)).arg("-ex").arg(text);
        }
        let mut child = command.spawn().map_err(|error| Problem(format!("cannot start gdb: {error}")))?;
        let deadline = Instant::now() + SCENE_LIMIT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Problem(format!("gdb does not end; what it said: {}", path.display())));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let answer = std::fs::read(&path).map_err(|error| cannot("read", &path, &error))?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The test of the commands (K-27): a machine whose threads, contexts and queues are known is stopped, and gdb must report the same. Without gdb
/// the test is skipped, with a message.
///
/// # Errors
/// When something does not start.
pub fn test(project: &Project, build: bool) -> Result<Option<Tally>, Problem> {
    let mut tally = Tally::default();
    if let Err(why) = find() {
        say(&format!("skipped the test of gdb's commands: {why}"));
        return Ok(None);
    }
    let variant = Variant { types: true, ..Variant::default() };
    let (kernel, image) = package::prepare(project, &variant, &project.manifest("gdb"), build)?;
    let log = project.output("logs", "gdb-test.log")?;
    let bench = Bench { project, medium: Medium::Kernel { kernel: kernel.clone(), image }, kernel, log };
    let looks: [(&str, Look); 3] =
        [("gdb at the first function", at_start), ("gdb on a hang", on_hang), ("gdb on the scene", on_scene)];
    for (name, look) in looks {
        let start = Instant::now();
        match look(&bench) {
            Ok(()) => {
                say(&format!("ok     {name}: {:.1} s", start.elapsed().as_secs_f64()));
                tally.passed += 1;
            }
            Err(problem) => {
                say(&format!("FAILED {name}: {problem}"));
                tally.failed += 1;
            }
        }
    }
    Ok(Some(tally))
}

/// Before there is anything to list, the commands must say so.
fn at_start(bench: &Bench<'_>) -> Result<(), Problem> {
    let (_guest, words) = bench.start(Stub::Stopped, "")?;
    scene::judge_start(&bench.ask(&words, &scene::START)?)
}

/// The commands must show a CPU that hangs with its queue locked.
fn on_hang(bench: &Bench<'_>) -> Result<(), Problem> {
    let (mut guest, words) = bench.start(Stub::Running, "hang=lock watchdog=0")?;
    let deadline = Instant::now() + SCENE_LIMIT;
    loop {
        // The machine hangs 20 ms after its boot, without a message.
        let pause = Instant::now() + Duration::from_millis(300);
        while let Event::Said(_) = guest.next(Some(pause)) {}
        let answer = bench.ask(&words, &scene::HANG)?;
        if answer.contains(LOCKED) || Instant::now() > deadline {
            return scene::judge_hang(&answer);
        }
    }
}

/// The commands must show the scene as it is; and after damage to the machine's data they must end with one line.
fn on_scene(bench: &Bench<'_>) -> Result<(), Problem> {
    let (mut guest, words) = bench.start(Stub::Running, "")?;
    let mut said = String::new();
    let deadline = Instant::now() + SCENE_LIMIT;
    while !said.contains(scene::STANDS) {
        match guest.next(Some(deadline)) {
            Event::Said(bytes) => said.push_str(&String::from_utf8_lossy(&bytes)),
            Event::Ended(outcome) => return Err(Problem(format!("the scene ended: {outcome}\n{said}"))),
            _ => return Err(Problem(format!("the scene does not stand after {SCENE_LIMIT:?}\n{said}"))),
        }
    }
    let scene = scene::Scene::parse(&said)?;
    let commands = scene.commands();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let mut answer = bench.ask(&words, &commands)?;
    // The machine stops at any point, possibly in the middle of a switch: then the commands say so, and gdb is asked again, as a person would do.
    for _ in 1..LOOKS {
        if !answer.contains(LOCKED) {
            break;
        }
        answer = bench.ask(&words, &commands)?;
    }
    if answer.contains(LOCKED) {
        return Err(Problem(format!("a queue is locked at each of {LOOKS} looks; gdb said:\n{answer}")));
    }
    scene.judge(&answer)?;
    scene::judge_damage(&bench.ask(&words, &scene::DAMAGE)?)
}
