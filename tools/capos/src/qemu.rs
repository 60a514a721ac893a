//! One virtual machine: its command line, its serial line, its exit.
//!
//! The machine is a child of this process alone: it is stopped when the [`Guest`] is dropped, and dies with this process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Problem;
use crate::monitor::Monitor;
use crate::options;
use crate::patience;
use crate::place::{Project, cannot, make_folder, write_file};
use crate::record;

/// Environment variable that names another program than `qemu-system-x86_64`.
pub const QEMU_VARIABLE: &str = "CAPOS_QEMU";
/// The port through which the kernel powers off: writing `v` ends QEMU with `(v << 1) | 1`.
const EXIT_DEVICE: &str = "isa-debug-exit,iobase=0xf4,iosize=0x04";
/// What the kernel adds to its exit status, so that it can be told from QEMU's own failures.
const OFF_MARK: i32 = 0x10;
/// The status of a kernel that panicked, and of nothing else.
const PANICKED: u8 = 15;
/// QEMU's word for a machine that has reset itself.
const GUEST_RESET: &str = "guest-reset";
/// How long QEMU may take to end after its serial line is closed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The properties of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs.
    pub cpus: u32,
    /// Memory, in MiB.
    pub mem_mib: u32,
    /// Count instructions instead of time: one instruction is `2^n` ns. The same run again is the same, to the byte.
    pub icount: Option<u8>,
    /// The model of CPU.
    pub cpu: String,
    /// Boot options.
    pub append: String,
    /// The file that its debug console writes to: the kernel's trace.
    pub debug: Option<PathBuf>,
    /// Whether and how gdb can attach to it ([`Guest::stub_socket`]).
    pub stub: Option<Stub>,
    /// Further arguments of QEMU, unchanged.
    pub extra: Vec<String>,
    /// The QEMU program.
    pub qemu: PathBuf,
}

/// How a machine that gdb can attach to begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stub {
    /// It is stopped before its first instruction, until gdb lets it continue.
    Stopped,
    /// It runs, until gdb stops it.
    Running,
}

impl Default for Machine {
    fn default() -> Machine {
        let qemu = std::env::var_os(QEMU_VARIABLE).unwrap_or_else(|| "qemu-system-x86_64".into()).into();
        let (cpu, append, extra) = ("max".to_owned(), String::new(), Vec::new());
        Machine { cpus: 4, mem_mib: 256, icount: None, cpu, append, debug: None, stub: None, extra, qemu }
    }
}

impl Machine {
    /// The same machine in the QEMU of this version that `tools/setup.sh` has unpacked.
    ///
    /// # Errors
    /// When that version was not unpacked.
    pub fn on_qemu(self, project: &Project, version: u32) -> Result<Machine, Problem> {
        let qemu = unpacked(project, version)?;
        // QEMU 10 stops with "Bad icount read" when a guest that is counted uses its x2APIC.
        let cpu = if self.icount.is_some() { format!("{},-x2apic", self.cpu) } else { self.cpu };
        Ok(Machine { qemu, cpu, ..self })
    }
}

/// The QEMU of this version that `tools/setup.sh` has unpacked.
///
/// # Errors
/// When it was not unpacked.
pub fn unpacked(project: &Project, version: u32) -> Result<PathBuf, Problem> {
    let qemu = project.target.join(format!("qemu-{version}/qemu-system-x86_64"));
    if is_program(&qemu) {
        return Ok(qemu);
    }
    Err(Problem(format!(
        "there is no QEMU {version} in {}; tools/setup.sh qemu{version} fetches it where it is to be had",
        project.target.display()
    )))
}

/// What a machine boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The kernel itself, by PVH, with the boot image as its module.
    Kernel {
        /// The kernel's ELF file.
        kernel: PathBuf,
        /// The boot image.
        image: PathBuf,
    },
    /// A disc with a boot loader.
    Disc {
        /// Its image.
        iso: PathBuf,
        /// A UEFI firmware; without one, the machine's own BIOS boots the disc.
        firmware: Option<PathBuf>,
    },
}

impl Machine {
    /// QEMU's arguments.
    #[must_use]
    pub fn arguments(&self, medium: &Medium) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        match self.icount {
            None => words.extend(["-accel", "tcg,thread=multi"].map(OsString::from)),
            Some(shift) => {
                words.extend(["-accel", "tcg", "-icount"].map(OsString::from));
                words.push(format!("shift={shift},sleep=off").into());
            }
        }
        // A timer that ends turns, and idle CPUs between those of the kernel (docs/testing.md).
        let turns_us = options::turns_us(&self.append);
        words.push("-M".into());
        match turns_us {
            None => words.push("q35".into()),
            Some(us) => {
                words.push("q35,pcspk-audiodev=turns".into());
                words.extend(["-audiodev".into(), format!("none,id=turns,timer-period={us}").into()]);
            }
        }
        words.push("-cpu".into());
        words.push(self.cpu.clone().into());
        words.extend([
            "-m".into(),
            self.mem_mib.to_string().into(),
            "-smp".into(),
            if turns_us.is_some() { self.cpus * 2 } else { self.cpus }.to_string().into(),
        ]);
        match medium {
            Medium::Kernel { kernel, image } => {
                words.extend(["-kernel".into(), kernel.into(), "-initrd".into(), image.into()]);
                if !self.append.is_empty() {
                    words.extend(["-append".into(), self.append.clone().into()]);
                }
            }
            Medium::Disc { iso, firmware } => {
                words.extend(["-cdrom".into(), iso.into()]);
                if let Some(firmware) = firmware {
                    words.extend(["-bios".into(), firmware.into()]);
                }
            }
        }
        words.extend(
            [
                "-display",
                "none",
                "-serial",
                "stdio",
                "-monitor",
                "none",
                "-nodefaults",
                // A machine that resets itself is paused, so that its memory can be read.
                "-action",
                "reboot=shutdown,shutdown=pause",
                "-device",
            ]
            .map(OsString::from),
        );
        words.push(EXIT_DEVICE.into());
        if let Some(path) = &self.debug {
            // A single comma would begin the next property.
            let path = path.to_string_lossy().replace(',', ",,");
            words.extend(["-debugcon".into(), format!("file:{path}").into()]);
        }
        if self.stub == Some(Stub::Stopped) {
            words.push("-S".into());
        }
        words.extend(self.extra.iter().map(OsString::from));
        words
    }
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel powered it off with this status; 0 is good.
    Off(u8),
    /// The machine was reset or shut down in another way.
    Reset,
    /// QEMU itself failed.
    Failed(String),
}

impl Outcome {
    /// From QEMU's exit status.
    #[must_use]
    pub fn of(status: ExitStatus) -> Outcome {
        match status.code() {
            Some(0) => Outcome::Reset,
            Some(code) if code & 1 == 1 && code >> 1 & OFF_MARK != 0 => {
                Outcome::Off((code >> 1 & !OFF_MARK) as u8)
            }
            Some(code) => Outcome::Failed(format!("QEMU ended with status {code}")),
            None => Outcome::Failed(format!("QEMU was ended by a signal ({status})")),
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Off(0) => f.write_str("powered off, all well"),
            Outcome::Off(PANICKED) => write!(f, "powered off with status {PANICKED}, a kernel panic"),
            Outcome::Off(status) => write!(f, "powered off with status {status}"),
            Outcome::Reset => f.write_str("reset itself (a triple fault?)"),
            Outcome::Failed(why) => f.write_str(why),
        }
    }
}

/// What happens on the serial line.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The machine said something.
    Said(Vec<u8>),
    /// The machine ended.
    Ended(Outcome),
    /// The person at the terminal wants to leave.
    Quit,
    /// This process was sent this signal.
    Signal(i32),
    /// The deadline has passed, and the machine still runs.
    TimeUp,
}

enum Message {
    Said(Vec<u8>),
    Complained(Vec<u8>),
    Closed,
    Quit,
    Signal(i32),
    /// The machine was shut down or has reset itself, for this reason, and is paused.
    Stands(String),
}

/// The connection to the machine's serial input.
#[derive(Clone)]
pub struct Keys {
    input: Arc<Mutex<ChildStdin>>,
    messages: Sender<Message>,
}

impl Keys {
    /// Types `bytes`; an ended machine ignores them.
    pub fn send(&self, bytes: &[u8]) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = input.write_all(bytes).and_then(|()| input.flush());
    }
    /// Makes [`Guest::next`] return [`Event::Quit`].
    pub fn quit(&self) {
        let _ = self.messages.send(Message::Quit);
    }
    /// Makes [`Guest::next`] return [`Event::Signal`].
    pub fn signal(&self, signal: i32) {
        let _ = self.messages.send(Message::Signal(signal));
    }
}

/// A running machine.
pub struct Guest {
    child: Child,
    keys: Keys,
    events: Receiver<Message>,
    log: File,
    monitor: Monitor,
    /// The kernel that it boots, if that is known.
    kernel: Option<PathBuf>,
    /// Where the log is.
    pub log_path: PathBuf,
    /// QEMU's own messages.
    pub complaints: String,
    /// What the memory of a machine that has reset itself tells about its last moments; also set by [`Guest::examine`].
    pub record: Vec<String>,
}

impl Guest {
    /// Starts the machine; all its output goes to the file `log`.
    ///
    /// # Errors
    /// When there is no QEMU, or the log cannot be written.
    pub fn start(machine: &Machine, medium: &Medium, log: &Path) -> Result<Guest, Problem> {
        if matches!(medium, Medium::Kernel { .. }) {
            options::fit(&machine.append)?;
        }
        if let Some(folder) = log.parent() {
            make_folder(folder)?;
        }
        if let Some(path) = &machine.debug {
            // Removes the output of an earlier run.
            write_file(path, &[])?;
        }
        let file = File::create(log).map_err(|error| cannot("write the log", log, &error))?;
        let qemu = &machine.qemu;
        if !is_program(qemu) {
            return Err(Problem(format!(
                "{} is not installed; install it with: tools/setup.sh qemu",
                qemu.display()
            )));
        }
        let (messages, events) = channel();
        let stands = messages.clone();
        let monitor = Monitor::listen(move |reason| drop(stands.send(Message::Stands(reason))))?;
        let mut words = machine.arguments(medium);
        words.extend(monitor.arguments().map(OsString::from));
        if machine.stub.is_some() {
            words.extend(monitor.stub_arguments().map(OsString::from));
        }
        let start = |mut command: Command| {
            if machine.stub.is_some() {
                // Ctrl-C on this terminal is for gdb, which asks QEMU to stop the machine.
                command.process_group(0);
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        // Whatever ends us ends the machine too.
        let mut guarded = Command::new("setpriv");
        guarded.args(["--pdeathsig", "KILL", "--"]).arg(qemu).args(&words);
        let mut child = start(guarded)
            .or_else(|_| {
                let mut plain = Command::new(qemu);
                plain.args(&words);
                start(plain)
            })
            .map_err(|error| cannot("start", qemu, &error))?;
        if let Some(output) = child.stdout.take() {
            read_on(output, messages.clone(), Message::Said, Some(Message::Closed));
        }
        if let Some(output) = child.stderr.take() {
            read_on(output, messages.clone(), Message::Complained, None);
        }
        let Some(input) = child.stdin.take() else { return Err(Problem::new("QEMU has no input")) };
        let keys = Keys { input: Arc::new(Mutex::new(input)), messages };
        let log_path = log.to_path_buf();
        let kernel = match medium {
            Medium::Kernel { kernel, .. } => Some(kernel.clone()),
            Medium::Disc { .. } => None,
        };
        let (complaints, record) = (String::new(), Vec::new());
        Ok(Guest { child, keys, events, log: file, monitor, kernel, log_path, complaints, record })
    }

    /// The connection to its serial input.
    #[must_use]
    pub fn keys(&self) -> Keys {
        self.keys.clone()
    }

    /// Where QEMU listens for gdb, now or soon, if the machine has a [`Machine::stub`].
    #[must_use]
    pub fn stub_socket(&self) -> PathBuf {
        self.monitor.stub_socket()
    }

    /// How long the machine has waited for a CPU of the host so far.
    #[must_use]
    pub fn starved(&self) -> Duration {
        patience::starved(self.child.id())
    }

    /// Waits for the next event, until `deadline`.
    pub fn next(&mut self, deadline: Option<Instant>) -> Event {
        loop {
            let message = match deadline {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => {
                    self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
            };
            match message {
                Ok(Message::Said(bytes)) => {
                    let _ = self.log.write_all(&bytes);
                    return Event::Said(bytes);
                }
                Ok(Message::Complained(bytes)) => self.complain(&bytes),
                Ok(Message::Quit) => return Event::Quit,
                Ok(Message::Signal(signal)) => return Event::Signal(signal),
                Ok(Message::Stands(reason)) => {
                    // A machine that does not reset has ended QEMU by itself; from version 9 on the kernel's exit device pauses
                    // here, too.
                    if reason == GUEST_RESET {
                        self.examine();
                    }
                    self.monitor.quit();
                }
                Ok(Message::Closed) | Err(RecvTimeoutError::Disconnected) => {
                    return Event::Ended(self.wait());
                }
                Err(RecvTimeoutError::Timeout) => return Event::TimeUp,
            }
        }
    }

    /// Stops the machine, and stores what its memory tells about its last moments in `record` and in the log.
    pub fn examine(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        self.record = match record::take(&mut self.monitor, kernel) {
            Ok(lines) => lines,
            Err(problem) => vec![format!("{}none: {problem}", record::PREFIX)],
        };
        self.record.iter().for_each(|line| drop(writeln!(self.log, "{line}")));
    }

    fn complain(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let _ = write!(self.log, "[qemu] {text}");
        self.complaints.push_str(&text);
    }

    /// Waits for the end of a machine whose serial line is closed.
    fn wait(&mut self) -> Outcome {
        let limit = Instant::now() + END_LIMIT;
        let outcome = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Outcome::of(status),
                Ok(None) if Instant::now() < limit => thread::sleep(Duration::from_millis(2)),
                Ok(None) => break Outcome::Failed("QEMU closed its serial line and did not end".to_owned()),
                Err(error) => break Outcome::Failed(format!("QEMU cannot be waited for: {error}")),
            }
        };
        while let Ok(message) = self.events.recv_timeout(Duration::from_millis(20)) {
            if let Message::Complained(bytes) = message {
                self.complain(&bytes);
            }
        }
        outcome
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the program exists: at that path, or in `PATH`.
fn is_program(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.is_file();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Reads `output` in a thread of its own, until it is closed.
fn read_on(
    mut output: impl Read + Send + 'static,
    messages: Sender<Message>,
    make: fn(Vec<u8>) -> Message,
    last: Option<Message>,
) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            if messages.send(make(buffer[..count].to_vec())).is_err() {
                return;
            }
        }
        if let Some(last) = last {
            let _ = messages.send(last);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn words(machine: &Machine) -> String {
        let medium = Medium::Kernel { kernel: "K".into(), image: "I".into() };
        let words: Vec<String> =
            machine.arguments(&medium).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn the_command_line_is_the_one_that_was_tried() {
        assert_eq!(
            words(&Machine::default()),
            "-accel tcg,thread=multi -M q35 -cpu max -m 256 -smp 4 -kernel K -initrd I -display none -serial stdio \
             -monitor none -nodefaults -action reboot=shutdown,shutdown=pause -device isa-debug-exit,iobase=0xf4,iosize=0x04"
        );
        let counted = Machine { icount: Some(0), append: "a b".to_owned(), ..Machine::default() };
        let line = words(&counted);
        assert!(line.starts_with("-accel tcg -icount shift=0,sleep=off -M q35"), "{line}");
        assert!(line.contains("-initrd I -append a b -display"), "{line}");
        let turns = Machine { append: "turns=5".to_owned(), ..counted };
        let line = words(&turns);
        let sound =
            "-M q35,pcspk-audiodev=turns -audiodev none,id=turns,timer-period=5 -cpu max -m 256 -smp 8";
        assert!(line.contains(sound), "{line}");
        let traced = Machine { debug: Some("x,y.dump".into()), ..Machine::default() };
        let line = words(&traced);
        assert!(line.ends_with("iosize=0x04 -debugcon file:x,,y.dump"), "{line}");
    }

    #[test]
    fn k_24_another_qemu_is_one_that_was_unpacked() {
        let target = std::env::temp_dir().join(format!("capos-qemu-{}", std::process::id()));
        let project = Project { root: ".".into(), target: target.clone() };
        let absent = Machine::default().on_qemu(&project, 10).unwrap_err().to_string();
        assert!(absent.contains("no QEMU 10") && absent.contains("tools/setup.sh qemu10"), "{absent}");
        let qemu = target.join("qemu-10/qemu-system-x86_64");
        write_file(&qemu, b"#!/bin/sh\n").unwrap();
        let plain = Machine::default().on_qemu(&project, 10).unwrap();
        assert_eq!((&plain.qemu, plain.cpu.as_str()), (&qemu, "max"));
        let counted = Machine { icount: Some(0), ..Machine::default() }.on_qemu(&project, 10).unwrap();
        assert_eq!(counted.cpu, "max,-x2apic");
        std::fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn the_exit_status_says_how_it_ended() {
        let of = |code: i32| Outcome::of(ExitStatus::from_raw(code << 8));
        assert_eq!(of(33), Outcome::Off(0));
        assert_eq!(of(35), Outcome::Off(1));
        assert_eq!(of((0x1f << 1) | 1), Outcome::Off(15));
        assert_eq!(of(0), Outcome::Reset);
        assert_eq!(of(1), Outcome::Failed("QEMU ended with status 1".to_owned()));
        assert!(matches!(Outcome::of(ExitStatus::from_raw(9)), Outcome::Failed(_)));
    }
}
