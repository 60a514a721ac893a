//! Runs of machines that are shell scripts: their output, how they end, and that none outlives its run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capos::proof::{Report, Run, Show};
use capos::qemu::{Event, Guest, Machine, Medium, Outcome};

/// A folder of the test's own, with a machine that runs `script`.
fn machine(test: &str, script: &str) -> (PathBuf, Machine) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let qemu = folder.join("machine.sh");
    std::fs::write(&qemu, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    (folder, Machine { qemu, ..Machine::default() })
}

fn medium() -> Medium {
    Medium::Kernel { kernel: "kernel".into(), image: "image".into() }
}

fn watch(test: &str, script: &str, limit: Duration) -> (Report, String) {
    let (folder, machine) = machine(test, script);
    let log = folder.join("logs/serial.log");
    let expects = vec!["two".to_owned()];
    let run =
        Run { machine, medium: medium(), limit: Some(limit), expects, show: Show::Nothing, log: log.clone() };
    let report = run.watch().unwrap();
    (report, std::fs::read_to_string(log).unwrap())
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_good_run_is_one() {
    let (report, log) = watch("good", "echo one; echo two; echo 'proof x: ok'; exit 33", LONG);
    assert_eq!(report.outcome, Some(Outcome::Off(0)));
    assert_eq!(report.failure(None), None);
    assert_eq!(report.proof_failure("x", None), None);
    assert_eq!(log, "one\ntwo\nproof x: ok\n");
}

#[test]
fn boot_options_that_the_kernel_would_not_read_are_refused() {
    let (folder, machine) = machine("options", "exit 33");
    let log = folder.join("serial.log");
    let start = |bytes| {
        let machine = Machine { append: "x".repeat(bytes), ..machine.clone() };
        Guest::start(&machine, &medium(), &log).map(drop)
    };
    assert!(start(1023).is_ok());
    for bytes in [1024, 5000] {
        let why = start(bytes).unwrap_err().to_string();
        assert!(why.contains(&format!("{bytes} bytes: the kernel reads 1023 at most")), "{why}");
    }
}

#[test]
fn what_qemu_says_is_in_the_log_and_in_the_reason() {
    let (report, log) = watch("complaint", "echo 'no such machine' >&2; exit 1", LONG);
    assert_eq!(report.failure(None).unwrap(), "QEMU ended with status 1: no such machine");
    assert!(log.contains("[qemu] no such machine"), "{log}");
}

#[test]
fn output_without_a_line_end_is_kept() {
    let (report, _) = watch("partial", "printf 'one\\ntwo'; exit 35", LONG);
    assert_eq!(report.tail, ["one", "two"]);
    assert_eq!(report.failure(None).unwrap(), "the machine powered off with status 1");
}

#[test]
fn a_run_that_does_not_end_is_stopped_and_its_machine_with_it() {
    let start = Instant::now();
    let (report, log) = watch("endless", "echo $$; echo two; exec sleep 1000", Duration::from_millis(500));
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(report.outcome, None);
    assert!(report.failure(Some(Duration::from_secs(1))).unwrap().contains("not done after 1 s"));
    let process = Path::new("/proc").join(log.lines().next().unwrap());
    assert!(!process.exists(), "the machine {} still runs", process.display());
}

/// The time limit is extended only while a trace is written.
#[test]
fn a_trace_may_be_written_after_the_limit() {
    let writes = "for i in 1 2 3 4 5 6 7 8; do echo $i >>\"$0.dump\"; sleep 0.2; done; echo two; ";
    for (test, end, expected) in
        [("writes", "exit 33", Some(Outcome::Off(0))), ("then-hangs", "exec sleep 1000", None)]
    {
        let (folder, machine) = machine(test, &format!("{writes}{end}"));
        let machine = Machine { debug: Some(folder.join("machine.sh.dump")), ..machine };
        let (limit, expects) = (Some(Duration::from_millis(700)), vec!["two".to_owned()]);
        let log = folder.join("serial.log");
        let run = Run { machine, medium: medium(), limit, expects, show: Show::Nothing, log };
        assert_eq!(run.watch().unwrap().outcome, expected, "{test}");
    }
}

#[test]
fn keys_reach_the_machine() {
    let (folder, machine) = machine("keys", "read line; echo \"got $line\"; exit 33");
    let mut guest = Guest::start(&machine, &medium(), &folder.join("serial.log")).unwrap();
    guest.keys().send(b"hello\n");
    let mut said = Vec::new();
    let outcome = loop {
        match guest.next(Some(Instant::now() + LONG)) {
            Event::Said(bytes) => said.extend(bytes),
            Event::Ended(outcome) => break outcome,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((String::from_utf8(said).unwrap().as_str(), outcome), ("got hello\n", Outcome::Off(0)));
}

#[test]
fn a_machine_that_is_not_installed_is_said_so() {
    let machine = Machine { qemu: "qemu-that-is-nowhere".into(), ..Machine::default() };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere.log");
    let problem = Guest::start(&machine, &medium(), &log).map(|_| ()).unwrap_err().to_string();
    assert_eq!(problem, "qemu-that-is-nowhere is not installed; install it with: tools/setup.sh qemu");
}
