//! libjanus as a C programmer gets it: installed, found by pkg-config, compiled against with gcc and g++, linked static
//! and shared, and run.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than any program here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Building the library may take longer.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-abi")
}

/// Runs a command to its end, which must come within the limit.
fn output(command: &mut Command, limit: Duration) -> Output {
    let shown = format!("{command:?}");
    let log = scratch().join(format!("{:?}.log", std::thread::current().id()).replace(['(', ')'], "-"));
    std::fs::create_dir_all(scratch()).expect("the scratch folder can be made");
    let file = |name: &str| log.with_extension(name);
    let open = |name: &str| std::fs::File::create(file(name)).expect("a log can be written");
    let spawned = command.stdin(Stdio::null()).stdout(open("out")).stderr(open("err")).spawn();
    let mut child = spawned.unwrap_or_else(|error| {
        panic!("{shown}: {error}; install it (Debian: apt-get install gcc g++ pkg-config binutils)")
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status,
            None if begun.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{shown} did not end within {limit:?}");
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let read = |name: &str| std::fs::read(file(name)).unwrap_or_default();
    Output { status, stdout: read("out"), stderr: read("err") }
}

/// As [`output`]; the command must succeed. Returns what it printed.
fn succeed(command: &mut Command, limit: Duration) -> String {
    let output = output(command, limit);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Installs the library, and returns what the script printed.
fn install(prefix: &str, destdir: &str) -> String {
    let mut command = Command::new(here().join("install.sh"));
    // Cargo's own folder, whichever that is: two levels above the scratch folder of tests.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder holds it");
    succeed(command.args([prefix, destdir]).env("CARGO_TARGET_DIR", target), BUILD_LIMIT)
}

/// Every file and link below `folder`, sorted.
fn files(folder: &Path) -> Vec<String> {
    let mut command = Command::new("find");
    let listed = succeed(command.args([".", "!", "-type", "d"]).current_dir(folder), LIMIT);
    let mut files: Vec<String> =
        listed.lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
    files.sort();
    files
}

/// Exactly what a C programmer needs is installed; and the command that the script prints compiles a program that runs.
#[test]
fn what_is_installed_and_the_command_that_is_printed() {
    let plain = scratch().join("own-place");
    let _ = std::fs::remove_dir_all(&plain);
    let said = install(plain.to_str().expect("a plain name"), "");
    let wanted = [
        "include/janus.h",
        "include/janus_compiler.h",
        "include/janus_task.h",
        "lib/libjanus.a",
        "lib/libjanus.so",
        "lib/libjanus.so.0",
        "lib/pkgconfig/janus.pc",
    ];
    assert_eq!(files(&plain), wanted);
    let printed = said.lines().find_map(|line| line.strip_prefix("to compile: ")).expect("a command");
    let work = scratch().join("own-work");
    std::fs::create_dir_all(&work).expect("a folder can be made");
    std::fs::copy(here().join("examples/hello.c"), work.join("program.c")).expect("the example is there");
    succeed(Command::new("sh").args(["-c", &format!("{printed} -o program")]).current_dir(&work), LIMIT);
    let out = succeed(&mut Command::new(work.join("program")), LIMIT);
    assert!(out.starts_with("sum 4999950000, code 0\n"), "{out}");
    // Staged for a packager: the same files, and no command that could not work yet.
    let root = scratch().join("staged");
    let _ = std::fs::remove_dir_all(&root);
    let said = install("/opt/janus", root.to_str().expect("a plain name"));
    assert_eq!(files(&root.join("opt/janus")), wanted);
    assert!(said.contains("it is staged") && !said.contains("to compile"), "{said}");
}

/// Where it is installed, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch().join("usr");
        let _ = std::fs::remove_dir_all(&prefix);
        install(prefix.to_str().expect("the target folder has a plain name"), "");
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("janus").env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    succeed(&mut command, LIMIT).split_whitespace().map(String::from).collect()
}

/// Compiles `source` and answers the program.
fn compile(source: &str, is_static: bool) -> PathBuf {
    let (compiler, standard) =
        if source.ends_with(".cpp") { ("g++", "-std=c++17") } else { ("gcc", "-std=c11") };
    let name = source.replace(['/', '.'], "-");
    let program = scratch().join(format!("{name}-{}", if is_static { "static" } else { "shared" }));
    let mut flags = pkg_config(if is_static { &["--static", "--libs"] } else { &["--libs"] });
    if is_static {
        // Both are installed, and a linker prefers the shared one.
        flags.iter_mut().filter(|flag| *flag == "-ljanus").for_each(|flag| *flag = "-l:libjanus.a".into());
    }
    let mut command = Command::new(compiler);
    command.args([standard, "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.args(pkg_config(&["--cflags"])).arg("-o").arg(&program).arg(here().join(source)).args(flags);
    // The example's own thread calls; libm for fesetround.
    succeed(command.args(["-pthread", "-lm"]), LIMIT);
    program
}

fn execute(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}

fn both_ways(source: &str, expected: &str) {
    for is_static in [true, false] {
        assert_eq!(
            succeed(&mut execute(&compile(source, is_static)), LIMIT),
            expected,
            "static: {is_static}"
        );
    }
}

#[test]
fn every_export_and_every_code() {
    both_ways("tests/abi.c", "ok\n");
}

#[test]
fn hello() {
    let lines = [
        "sum 4999950000, code 0",
        "a child failed: code -42",
        "a child may use 1000000 operations and 16777216 bytes",
        "",
    ];
    both_ways("examples/hello.c", &lines.join("\n"));
}

#[test]
fn nursery_in_cpp() {
    let lines =
        ["code 0", "sum of squares 285", "an exception: code -100", "leaving: every child has ended", ""];
    both_ways("examples/nursery.cpp", &lines.join("\n"));
}

/// J-02, J-11: a budget, a name, a stack and capabilities of a child; sleep; channels.
#[test]
fn j_02_children_with_options_capabilities_sleep_and_channels() {
    both_ways("tests/tasks.c", "ok\n");
    let ended = output(execute(&compile("tests/tasks.c", false)).arg("named"), LIMIT);
    assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("\"miller\""), "the child's name is told: {text}");
}

/// J-02: types have a prefix; the specification's names are available on request.
#[test]
fn j_02_names_of_types_are_ours_or_the_programs() {
    both_ways("tests/names.c", "41 euros left, code 0, 8\n");
    both_ways("tests/names.cpp", "0, 0, 42, code 0\n");
}

#[test]
fn pipeline() {
    both_ways("examples/pipeline.c", "the primes below 1000 add up to 76127, code 0\n");
}

#[test]
fn exceptions_stay_in_their_task() {
    both_ways("tests/exceptions.cpp", "1000 caught, code 0\n");
    let escaped = output(execute(&compile("tests/exceptions.cpp", false)).arg("escape"), LIMIT);
    assert!(!escaped.status.success() && escaped.status.code().is_none(), "{escaped:?}");
}

/// J-19: nobody sees a half-made change of a child whose stack overflowed, in C either.
#[test]
fn j_19_borrowers_are_given_up_with_their_lenders() {
    both_ways("tests/borrows.c", "ok\n");
    for depth in ["1", "2", "3"] {
        let ended = output(execute(&compile("tests/borrows.c", false)).arg(depth), LIMIT);
        assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(text.contains("janus: abort: task #") && text.contains("overflowed its stack"), "{text}");
        assert!(ended.stdout.is_empty(), "somebody went on: {ended:?}");
    }
}

/// Exports these names and nothing else: programs may contain Rust, or another libjanus_something.
#[test]
fn the_shared_library_exports_its_names_only() {
    let library = prefix().join("lib/libjanus.so");
    let symbols = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&library), LIMIT);
    let mut names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    names.sort_unstable();
    let expected = [
        "janus_budget_charge",
        "janus_budget_check",
        "janus_budget_get_current",
        "janus_budget_recharge",
        "janus_cap_budget_create",
        "janus_cap_budget_free",
        "janus_cap_budget_left",
        "janus_cap_budget_recharge",
        "janus_channel_close",
        "janus_channel_create",
        "janus_channel_free",
        "janus_channel_receive",
        "janus_channel_send",
        "janus_context_switch",
        "janus_fiber_cleanup",
        "janus_fiber_entry",
        "janus_nursery_await_all",
        "janus_nursery_cancel",
        "janus_nursery_create",
        "janus_nursery_create_on",
        "janus_nursery_spawn",
        "janus_nursery_spawn_owned",
        "janus_nursery_spawn_with",
        "janus_rt_get",
        "janus_rt_init",
        "janus_rt_shutdown",
        "janus_scheduler_create",
        "janus_scheduler_shutdown",
        "janus_scheduler_spawn",
        "janus_scheduler_yield",
        "janus_task_sleep",
    ];
    assert_eq!(names, expected);
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(&library), LIMIT);
    assert!(dynamic.contains("[libjanus.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn installs_below_destdir() {
    // Not at the same time as the other installation.
    prefix();
    let root = scratch().join("root");
    let _ = std::fs::remove_dir_all(&root);
    install("/opt/janus", root.to_str().expect("the target folder has a plain name"));
    let at = root.join("opt/janus");
    for file in [
        "lib/libjanus.a",
        "lib/libjanus.so.0",
        "include/janus.h",
        "include/janus_compiler.h",
        "include/janus_task.h",
    ] {
        assert!(at.join(file).is_file(), "{file}");
    }
    assert_eq!(std::fs::read_link(at.join("lib/libjanus.so")).unwrap(), Path::new("libjanus.so.0"));
    let described = std::fs::read_to_string(at.join("lib/pkgconfig/janus.pc")).unwrap();
    assert!(described.starts_with("prefix=/opt/janus\n") && !described.contains('@'), "{described}");
    let version = format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(described.contains(&version), "{described}");
}
