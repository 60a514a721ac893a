//! J-12, end to end: the tool runs programs that were compiled from C by a compiler that knows nothing of us, and modules
//! in text form; its exit code says what they ran out of.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The C guests, built once.
fn guests() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/guests/build.sh");
        let output = Command::new(script).arg(&folder).output().expect("the build script starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "no guests; `tools/setup.sh wasm` installs a compiler for them: {said}"
        );
        folder
    })
}

fn text(name: &str, wat: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.wat"));
    std::fs::write(&path, wat).expect("a file");
    path
}

fn janus(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_janus"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A guest that does not read ends before it is written to.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the tool ends")
}

fn check(arguments: &[&str], input: &str, code: i32, out: &str, err: &str) {
    let output = janus(arguments, input);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{said}\n{complained}");
    assert!(said.contains(out), "{arguments:?}: no `{out}` in\n{said}");
    assert!(complained.contains(err), "{arguments:?}: no `{err}` in\n{complained}");
}

fn guest(name: &str) -> String {
    guests().join(format!("{name}.wasm")).to_str().expect("a plain path").to_string()
}

#[test]
fn j_12_c_reads_input_arguments_and_files() {
    let wc = guest("wc");
    check(&["run", "--grant", "io,memory", &wc], "one two\nthree\n", 0, "2 3 14\n", "ops");
    let file = text("poem", "a b c\nd e\n");
    let given = format!("poem.txt={}", file.display());
    let run =
        ["run", "--grant", "io", "--grant", "memory", "--file", &given, &wc, "--", "poem.txt", "other.txt"];
    check(&run, "", 1, "2 5 10 poem.txt", "other.txt: No such file");
    // A path that leaves its one directory names nothing, whatever is there.
    let outside =
        ["run", "--grant", "io,memory", "--file", &given, &wc, "--", "../../etc/passwd", "/etc/passwd"];
    check(&outside, "", 1, "", "passwd: ");
    check(&["run", &wc], "", 75, "", "--grant io");
}

#[test]
fn j_12_c_spawns_and_talks() {
    let primes = guest("primes");
    let grants = "spawn,messages,io,memory";
    let budget = "ops=10M,memory=64M,spawn=8,messages=100,io=10";
    check(&["run", "--grant", grants, "--budget", budget, &primes], "", 0, "550 primes below 4000", "spawn");
    let seeded = ["run", "--seed", "5", "--grant", grants, "--budget", budget, &primes];
    let (one, two) = (janus(&seeded, ""), janus(&seeded, ""));
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stderr, two.stderr, "the same seed uses the same");
    let few = ["run", "--grant", grants, "--budget", "ops=10M,memory=64M,spawn=3", &primes];
    check(&few, "", 72, "", "--budget spawn=");
    let service = ["run", "--profile", "service", "--budget", budget, &primes];
    check(&service, "", 0, "550 primes", "");
}

#[test]
fn j_12_c_needs_memory() {
    let sort = guest("sort");
    let run = |memory: &str| format!("ops=100M,memory={memory}");
    check(
        &["run", "--grant", "io,memory", "--budget", &run("8M"), &sort, "--", "20000"],
        "",
        0,
        "20000 sorted",
        "",
    );
    check(
        &["run", "--grant", "io,memory", "--budget", &run("1M"), &sort, "--", "1000000"],
        "",
        71,
        "",
        "memory=",
    );
    check(
        &["run", "--grant", "io,memory", "--budget", "ops=1M", &sort, "--", "20000"],
        "",
        70,
        "",
        "--budget ops=",
    );
}

#[test]
fn j_12_exit_codes_say_what_ran_out() {
    let endless = text("endless", r#"(module (func (export "main") (loop br 0)))"#);
    let endless = endless.to_str().expect("a plain path");
    check(&["run", endless], "", 70, "", "ran out of ops");
    check(&["run", "--budget", "ops=unlimited", "--timeout", "200ms", endless], "", 77, "", "--timeout");
    let flood = text(
        "flood",
        r#"(module (import "janus" "channel" (func $c (param i32) (result i32)))
          (import "janus" "send" (func $s (param i32 i32 i32) (result i32)))
          (import "janus" "receive" (func $r (param i32 i32 i32) (result i32)))
          (memory 1) (func (export "main") (drop (call $c (i32.const 1)))
            (loop (drop (call $s (i32.const 0) (i32.const 0) (i32.const 8)))
                  (drop (call $r (i32.const 0) (i32.const 0) (i32.const 8))) (br 0))))"#,
    );
    check(
        &["run", "--grant", "messages", "--budget", "ops=10M,messages=1k", flood.to_str().unwrap()],
        "",
        73,
        "",
        "1,000",
    );
    let noise = text(
        "noise",
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
          (memory 1) (func (export "main") (loop (drop (call $w (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 8)))
            (br 0))))"#,
    );
    check(
        &["run", "--grant", "io", "--budget", "io=100", noise.to_str().unwrap()],
        "",
        74,
        "",
        "--budget io=",
    );
    let exits = text(
        "exits",
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $e (param i32))) (func (export "main") (call $e (i32.const 300))))"#,
    );
    check(&["run", exits.to_str().unwrap()], "", 63, "", "");
    let trap = text("trap", r#"(module (func (export "main") unreachable))"#);
    check(&["run", trap.to_str().unwrap()], "", 76, "", "unreachable");
}

#[test]
fn j_12_errors_say_what_to_do() {
    check(&["run"], "", 64, "", "Usage");
    check(&["run", "--budget", "cpu=3", "x"], "", 64, "", "a budget has no `cpu`");
    check(&["run", "--grant", "root", "x"], "", 64, "", "there is no grant `root`; there are memory, spawn");
    check(&["run", "--profile", "core", "x"], "", 64, "", "has no tasks");
    check(&["run", "/nonexistent.wasm"], "", 66, "", "cannot read /nonexistent.wasm");
    let broken = text("broken", "(module (func (export \"main\") i32.add))");
    check(&["run", broken.to_str().unwrap()], "", 65, "", "not a valid module");
    let nothing = text("nothing", "(module)");
    check(&["run", nothing.to_str().unwrap()], "", 65, "", "--entry");
    let needy = text("needy", r#"(module (import "lib" "f" (func)) (func (export "main")))"#);
    check(&["run", needy.to_str().unwrap()], "", 65, "", "janus check");
    check(&["check", needy.to_str().unwrap()], "", 0, "--link lib=PATH", "");
    check(&["check", &guest("primes")], "", 0, "to run it: janus run --grant", "");
    check(&["help", "run"], "", 0, "the guest ran out of ops", "");
}

#[test]
fn j_12_top_looks_into_a_running_runtime() {
    let endless = text("watched", r#"(module (func (export "main") (loop br 0)))"#);
    let socket = Path::new(env!("CARGO_TARGET_TMPDIR")).join("top.sock");
    let _ = std::fs::remove_file(&socket);
    let socket = socket.to_str().expect("a plain path");
    let mut child = Command::new(env!("CARGO_BIN_EXE_janus"))
        .args([
            "run",
            "--budget",
            "ops=unlimited",
            "--timeout",
            "60s",
            "--watch",
            socket,
            endless.to_str().unwrap(),
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the tool starts");
    let start = Instant::now();
    let said = loop {
        let output = janus(&["top", "--once", socket], "");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said.contains("guest: ") && said.contains("launcher") || start.elapsed() > Duration::from_secs(30)
        {
            break said;
        }
    };
    child.kill().expect("it still runs");
    child.wait().expect("it ends");
    assert!(said.contains("guest") && said.contains("launcher") && said.contains("tasks_made"), "{said}");
    check(&["top", "--once", "/nonexistent.sock"], "", 66, "", "janus run --watch");
    // The killed one left its socket behind, which is no reason to refuse the next one. Somebody who answers there is, and so is a file.
    let short = text("short", r#"(module (func (export "main")))"#);
    let watched = |path: &str| ["run", "--watch", path, short.to_str().unwrap()].map(str::to_string);
    let run = |path: &str, code, err| {
        check(&watched(path).iter().map(String::as_str).collect::<Vec<_>>(), "", code, "", err);
    };
    assert!(Path::new(socket).exists());
    run(socket, 0, "");
    let answered = std::os::unix::net::UnixListener::bind(socket).expect("the path is free again");
    run(socket, 66, "name a path that is free");
    drop(answered);
    run(short.to_str().unwrap(), 66, "name a path that is free");
    assert!(short.exists());
}
