//! After every signal that can be caught, the terminal is restored and the machine is off.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capos::qemu::{Guest, Machine, Medium};
use capos::terminal::{Farewell, converse};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

/// The environment variable that names the machine to the process that gets the signals.
const MACHINE: &str = "CAPOS_TEST_MACHINE";
const LIMIT: Duration = Duration::from_secs(30);

#[test]
#[ignore = "the process that the test below starts"]
fn inside() {
    let qemu = std::env::var_os(MACHINE).expect("started by the test below").into();
    let medium = Medium::Kernel { kernel: "kernel".into(), image: "image".into() };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("signals/serial.log");
    let mut guest = Guest::start(&Machine { qemu, ..Machine::default() }, &medium, &log).unwrap();
    let Farewell::Signal(signal) = converse(&mut guest, Some(LIMIT)) else { panic!("no signal came") };
    drop(guest);
    std::process::exit(128 + signal);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("signals");
    std::fs::create_dir_all(&folder).unwrap();
    let (qemu, pid_file) = (folder.join("machine.sh"), folder.join("machine.sh.pid"));
    std::fs::write(&qemu, "#!/bin/sh\necho $$ >\"$0.pid\"\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1] {
        let _ = std::fs::remove_file(&pid_file);
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&pty).and_then(|()| unlockpt(&pty)).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let terminal: File = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        assert!(before.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "inside", "--ignored", "--nocapture"])
            .env(MACHINE, &qemu)
            .stdin(terminal.try_clone().unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let is_raw = || !tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON);
        wait_until("the terminal is raw", is_raw);
        let machine = || std::fs::read_to_string(&pid_file).ok().filter(|pid| pid.ends_with('\n'));
        wait_until("the machine runs", || machine().is_some());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{signal:?}: {status}");
        let after = tcgetattr(&terminal).unwrap();
        assert_eq!(after.local_modes, before.local_modes, "{signal:?}");
        assert_eq!(after.input_modes, before.input_modes, "{signal:?}");
        let process = Path::new("/proc").join(machine().unwrap().trim());
        assert!(!process.exists(), "{signal:?}: the machine {} still runs", process.display());
    }
}
