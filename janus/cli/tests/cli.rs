//! J-12, end to end: the tool runs programs that were compiled from C and Rust by compilers that know nothing of us, and modules
//! in text form; its exit code says what they ran out of.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The guests, built once.
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

/// Ordinary Rust: a map with random keys, files, arguments, environment, sleep, and a panic, which is a trap.
#[test]
fn j_12_rust_reads_and_writes() {
    let (words, number) = (guest("words"), guest("number"));
    let counted = "     3 b\n     2 a\n     1 c\n";
    // Input is io, and no message.
    let run = ["run", "--grant", "io,memory,random", "--budget", "messages=0", &words];
    check(&run, "b a b, c! B a", 0, counted, "io");
    let poem = text("verse", "one\ntwo\nthree\n");
    let copy = text("copy", "what was there before, and is longer than what will be");
    let given = format!("in={}", poem.display());
    let written = format!("out={}", copy.display());
    let named = ["run", "--grant", "io,memory,random", "--file", &given, &words, "--", "in", "none"];
    check(&named, "", 1, "", "none: No such file");
    let rights = ["run", "--grant", "io,memory,clock", "--file", &given, "--file-rw", &written];
    let with = |more: &[&'static str]| [&rights[..], more, &[&number, "--", "in", "out"]].concat();
    let start = Instant::now();
    check(&with(&["--env", "REST=50"]), "", 0, "3 lines\n", "");
    assert!(start.elapsed() >= Duration::from_millis(150), "it did not sleep");
    let copied = std::fs::read_to_string(&copy).expect("the copy");
    assert_eq!(copied, "   1  one\n   2  two\n   3  three\n");
    check(&with(&["--env", "REST=soon"]), "", 76, "", "REST is a number of milliseconds");
    check(&with(&["--env", "REST=1h", "--env", "REST"]), "", 64, "", "`REST` is no NAME=VALUE");
    check(&with(&["--env", "REST=3600000", "--timeout", "300ms"]), "", 77, "", "--timeout");
    // With a seed time is virtual: three hours pass at once.
    check(&with(&["--env", "REST=3600000", "--seed", "1"]), "", 0, "3 lines\n", "");
    let read_only = ["run", "--grant", "io,memory,clock", "--file", &given, &number, "--", "in", "in"];
    check(&read_only, "", 1, "", "in: Capabilities insufficient");
}

#[test]
fn j_12_rust_spawns_and_talks() {
    let collatz = guest("collatz");
    let grants = "spawn,messages,io,memory";
    let budget = "ops=10M,memory=8M,spawn=4,messages=200,io=10";
    check(&["run", "--grant", grants, "--budget", budget, &collatz], "", 0, "871 takes 178 steps\n", "spawn");
    let seeded = ["run", "--seed", "9", "--grant", grants, "--budget", budget, &collatz];
    let (one, two) = (janus(&seeded, ""), janus(&seeded, ""));
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stderr, two.stderr, "the same seed uses the same");
    let few = ["run", "--grant", grants, "--budget", "ops=10M,memory=8M,spawn=3", &collatz];
    check(&few, "", 72, "", "--budget spawn=");
}

/// What is given of files, what is refused, and how it is waited.
#[test]
fn j_12_c_uses_files_and_waits() {
    let links = ["run", "--grant", "io,clock,random,memory", &guest("links")].map(str::to_string);
    check(&links.each_ref().map(String::as_str), "", 0, "45 functions\n", "");
    let file = text("posix", "0123456789");
    let (written, read) = (format!("f={}", file.display()), format!("g={}", file.display()));
    let posix = guest("posix");
    let run =
        ["run", "--grant", "io,clock,memory", "--file", &read, "--file-rw", &written, &posix, "--", "f"];
    let said = "entry: g\nentry: f\nclosedir: done\npwrite: done\nwrite: done\npread: done\ntext: inmiddle\n\
        ftruncate: done\nsize: 4\nfsync: done\nfdatasync: done\nfadvise: done\nfallocate: Not supported\nclose: done\n\
        pread of input: Invalid seek\nmkdir: Capabilities insufficient\nrmdir: Capabilities insufficient\n\
        unlink: Capabilities insufficient\nrename: Capabilities insufficient\nlink: Capabilities insufficient\n\
        symlink: Capabilities insufficient\nreadlink: Invalid argument\ncreate: Capabilities insufficient\n\
        slept: long enough\noutput: 1\ninput: 1 at once\n";
    check(&run, "", 0, said, "");
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "inmi");
    // A terminal where nobody types: it waits, and not for ever.
    let mut child = Command::new(env!("CARGO_BIN_EXE_janus"))
        .args(run)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the tool starts");
    let stdin = child.stdin.take();
    let output = child.wait_with_output().expect("the tool ends");
    drop(stdin);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.ends_with("output: 1\ninput: 0 late\n"), "{said}");
}

/// A guest that floods a pipe which nobody reads is stopped in time, also when the report would go there too.
#[test]
fn j_12_a_pipe_that_nobody_reads() {
    let flood = text(
        "pipe",
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
          (memory 1) (data (i32.const 4) "\00\10\00\00") (func (export "main")
            (loop (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br 0))))"#,
    );
    for both in [false, true] {
        let (from, to) = std::io::pipe().expect("a pipe");
        let errors = if both { to.try_clone().expect("a descriptor").into() } else { Stdio::null() };
        let start = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_janus"))
            .args(["run", "--workers", "1", "--timeout", "1s", "--budget", "ops=unlimited,io=unlimited"])
            .args(["--grant", "io", flood.to_str().expect("a plain path")])
            .stdin(Stdio::null())
            .stdout(to)
            .stderr(errors)
            .spawn()
            .expect("the tool starts");
        // So that a tool which hangs does not hang the test.
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break Some(status),
                None if start.elapsed() > Duration::from_secs(60) => break None,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        if status.is_none() {
            child.kill().expect("it still runs");
            child.wait().expect("it ends");
        }
        drop(from);
        assert_eq!(status.and_then(|status| status.code()), Some(77));
        assert!(start.elapsed() >= Duration::from_secs(1));
    }
}

#[test]
fn j_12_results_are_shown() {
    let fib = text("result", r#"(module (func (export "main") (result i64) (i64.const -42)))"#);
    let fib = fib.to_str().expect("a plain path");
    check(&["run", fib], "", 0, "", "result                  -42\n");
    let quiet = janus(&["run", "--quiet", fib], "");
    assert_eq!((quiet.status.code(), &quiet.stderr[..]), (Some(0), &b""[..]));
    check(&["help", "run"], "", 0, "has the row `result`", "");
}

#[test]
fn j_12_exit_codes_say_what_ran_out() {
    let endless = text("endless", r#"(module (func (export "main") (loop br 0)))"#);
    let endless = endless.to_str().expect("a plain path");
    check(&["run", endless], "", 70, "", "ran out of ops");
    check(&["run", "--budget", "ops=unlimited", "--timeout", "200ms", endless], "", 77, "", "--timeout");
    // Virtual time stands still there.
    let seeded = ["run", "--budget", "ops=unlimited", "--timeout", "200ms", "--seed", "3", endless];
    check(&seeded, "", 77, "", "--timeout");
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
    let negative = text(
        "negative",
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $e (param i32))) (func (export "main") (call $e (i32.const -1))))"#,
    );
    check(&["run", negative.to_str().unwrap()], "", 63, "", "");
    let wants = text(
        "wants",
        r#"(module (memory 1) (func (export "main")
          (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))))"#,
    );
    check(&["run", wants.to_str().unwrap()], "", 76, "", "--grant memory");
    let trap = text("trap", r#"(module (func (export "main") unreachable))"#);
    check(&["run", trap.to_str().unwrap()], "", 76, "", "unreachable");
}

/// Whatever comes as a module, what is said of it is short; and nobody minds if it is not read.
#[test]
fn j_12_errors_are_short() {
    let zeros = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zeros.wasm");
    for (bytes, said) in [
        (vec![0; 17 << 20], "it has over 16777216 bytes"),
        (vec![b'('; 1 << 20], "zeros.wasm:1:"),
        (vec![0xFF; 1 << 10], "neither the binary nor the text form"),
    ] {
        std::fs::write(&zeros, bytes).expect("a file");
        let zeros = zeros.to_str().expect("a plain path");
        check(&["run", zeros], "", 65, "", said);
        let output = janus(&["check", zeros], "");
        assert!(output.stderr.len() < 1_000, "{} bytes of error", output.stderr.len());
    }
    let wc = guest("wc");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let (closed, pipe) = std::io::pipe().expect("a pipe");
    drop(closed);
    for (out, code) in [(Stdio::from(full), 66), (Stdio::from(pipe), 0)] {
        let status = Command::new(env!("CARGO_BIN_EXE_janus"))
            .args(["check", &wc])
            .stdout(out)
            .stderr(Stdio::null())
            .status()
            .expect("the tool starts");
        assert_eq!(status.code(), Some(code));
    }
}

/// A child that would have no room for its memory is refused when it is made.
#[test]
fn j_12_a_share_that_is_too_small_is_refused_at_once() {
    let many = text(
        "many",
        r#"(module (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
          (import "janus" "join" (func $join (param i32 i32) (result i32)))
          (table funcref (elem $child)) (memory 1)
          (func $child (param i64) (result i64) (local.get 0))
          (func (export "main") (result i32) (local $made i32) (local $i i32)
            (block (loop
              (br_if 1 (i32.eq (call $spawn (i32.const 0) (i64.const 0) (i32.const 0)) (i32.const -3)))
              (local.set $made (i32.add (local.get $made) (i32.const 1)))
              (br 0)))
            (loop
              (if (call $join (local.get $i) (i32.const 0)) (then unreachable))
              (local.set $i (i32.add (local.get $i) (i32.const 1)))
              (br_if 0 (i32.lt_u (local.get $i) (local.get $made))))
            (local.get $made)))"#,
    );
    let many = many.to_str().expect("a plain path");
    check(&["run", "--grant", "spawn", "--budget", "spawn=100,memory=4M", many], "", 0, "", "result");
}

#[test]
fn j_12_errors_say_what_to_do() {
    check(&["run"], "", 64, "", "Usage");
    check(&["run", "--budget", "cpu=3", "x"], "", 64, "", "a budget has no `cpu`");
    check(&["run", "--grant", "root", "x"], "", 64, "", "there is no grant `root`; there are memory, spawn");
    check(&["run", "--profile", "core", "x"], "", 64, "", "has no tasks");
    check(&["run", "--recharge", "ops=1k", &guest("wc")], "", 64, "", "--grant budget");
    let recharged = ["run", "--recharge", "ops=1k", "--grant", "budget,io,memory", &guest("wc")];
    check(&recharged, "", 0, "0 0 0", "");
    check(&["run", "/nonexistent.wasm"], "", 66, "", "cannot read /nonexistent.wasm");
    let broken = text("broken", "(module (func (export \"main\") i32.add))");
    check(&["run", broken.to_str().unwrap()], "", 65, "", "not a valid module");
    let nothing = text("nothing", "(module)");
    check(
        &["run", nothing.to_str().unwrap()],
        "",
        65,
        "",
        "neither `_start` nor `main`; it exports no function at all",
    );
    let add = text("add", r#"(module (func (export "add") (param i32)) (func (export "run")))"#);
    check(&["run", add.to_str().unwrap()], "", 65, "", "with --entry: add, run");
    check(&["run", "--entry", "add", add.to_str().unwrap()], "", 65, "", "without parameters");
    check(&["check", add.to_str().unwrap()], "", 0, "janus run --entry add", "");
    check(&["run", "--grant", "budget", &guest("wc")], "", 64, "", "--recharge ops=1M");
    check(&["run", "--workers", "0", &guest("wc")], "", 64, "", "1 or more");
    check(&["run", "--file", "x=/", &guest("wc")], "", 75, "", "--grant io");
    check(&["run", "--grant", "io", "--file", "x=/", &guest("wc")], "", 66, "", "is a directory");
    let twice = format!("{0}", broken.display());
    let twice = ["run", "--grant", "io", "--file", &twice, "--file", &twice, &guest("wc")];
    check(&twice, "", 64, "", "two files are called `broken.wat`");
    // All that it lacks, at once.
    check(&["run", &guest("words")], "", 75, "", "--grant io,random");
    let needy = text("needy", r#"(module (import "lib" "f" (func)) (func (export "main")))"#);
    check(&["run", needy.to_str().unwrap()], "", 65, "", "janus check");
    check(&["check", needy.to_str().unwrap()], "", 0, "janus run --link lib=PATH", "");
    let odd = text("odd", r#"(module (import "janus" "fly" (func)) (func (export "main")))"#);
    check(&["check", odd.to_str().unwrap()], "", 65, "nobody provides it", "");
    check(&["check", &guest("primes")], "", 0, "to run it: janus run --grant", "");
    check(&["help", "run"], "", 0, "the guest ran out of ops", "");
}

#[test]
fn j_12_top_looks_into_a_running_runtime() {
    let endless = text("watched", r#"(module (func (export "main") (loop br 0)))"#);
    // The path of a socket has 108 bytes at most, and that of a clone may be longer (K-24).
    let socket = std::env::temp_dir().join(format!("janus-top-{}.sock", std::process::id()));
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
    std::fs::remove_file(socket).expect("a socket");
    run(short.to_str().unwrap(), 66, "name a path that is free");
    assert!(short.exists());
}
