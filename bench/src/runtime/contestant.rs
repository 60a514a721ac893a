//! Who takes part: our own program, and the peers' programs under `bench/peers`, which are built here. One that cannot be
//! built keeps the reason, and the others go on.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::process::{finish, last_line};

/// Our own name: the runtime as `Config::new` makes it, which is what every target is about.
pub const OURS: &str = "janus";
/// Ourselves once more, with tasks that stay with their thread (`Config::pinned`): a second column, and nobody's mark.
pub const PINNED: &str = "janus-pinned";
/// What our program finds in its environment then.
pub const PIN: &str = "JANUS_PINNED";

/// Every peer. `floor` is none but what the machine takes without any runtime.
pub const NAMES: [&str; 13] = [
    "tokio",
    "tokio-current",
    "async-executor",
    "may",
    "corosensei",
    "generator",
    "rayon",
    "threads",
    "floor",
    "go",
    "boost-fiber",
    "boost-context",
    "swapcontext",
];

/// Building everything from nothing takes a minute or two.
const BUILD_LIMIT: Duration = Duration::from_secs(900);
const INSTALL: &str = "tools/setup.sh peers installs it";

/// Somebody who takes part.
pub struct Contestant {
    /// As in the rows.
    pub name: &'static str,
    /// The program, or why there is none.
    pub program: Result<PathBuf, String>,
}

impl Contestant {
    /// Set in the environment of its program.
    pub fn variable(&self) -> Option<&'static str> {
        (self.name == PINNED).then_some(PIN)
    }
}

/// Ourselves first, in both ways, then the peers among `wanted`, built.
pub fn all(wanted: &[&str]) -> Vec<Contestant> {
    let ours = [OURS, PINNED].map(|name| Contestant { name, program: own() });
    let mut rust = None;
    let peers = NAMES.into_iter().filter(|name| wanted.contains(name)).map(|name| {
        let program = match name {
            "go" => go("go", "peer-go"),
            "boost-fiber" => cpp("fiber.cpp", name),
            "boost-context" => cpp("context.cpp", name),
            "swapcontext" => cpp("swapcontext.cpp", name),
            _ => {
                rust.get_or_insert_with(rust_peers).clone().map(|folder| folder.join(format!("peer-{name}")))
            }
        };
        Contestant { name, program }
    });
    ours.into_iter().chain(peers).collect()
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn sources() -> PathBuf {
    root().join("bench/peers")
}

/// Where everything that is built for peers goes.
fn output() -> PathBuf {
    root().join("target/peers")
}

fn own() -> Result<PathBuf, String> {
    beside("bench-janus")
}

/// A program of our own stands beside this one.
pub fn beside(name: &str) -> Result<PathBuf, String> {
    let here = env::current_exe().map_err(|error| error.to_string())?;
    let program = here.with_file_name(name);
    if program.exists() { Ok(program) } else { Err(format!("not built: no {}", program.display())) }
}

/// All Rust peers at once; answers their folder.
pub fn rust_peers() -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or(OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--manifest-path"]).arg(sources().join("Cargo.toml"));
    command.arg("--target-dir").arg(output());
    build("the Rust peers", &mut command)?;
    Ok(output().join("release"))
}

/// A program in Go, of this folder, with the Go of `tools/setup.sh`, or the system's.
pub fn go(folder: &str, name: &str) -> Result<PathBuf, String> {
    let installed = root().join("target/go/bin/go");
    let go = if installed.exists() { installed.into_os_string() } else { OsString::from("go") };
    let program = output().join(name);
    let mut command = Command::new(go);
    command.args(["build", "-o"]).arg(&program).arg(".").current_dir(sources().join(folder));
    // All that it writes stays under target/, and it never fetches another Go by itself.
    command.env("GOCACHE", output().join("go-cache")).env("GOPATH", output().join("go-path"));
    command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-buildvcs=false").env("GOTELEMETRY", "off");
    build("the peer in Go", &mut command).map_err(|why| format!("{why}; {INSTALL}"))?;
    Ok(program)
}

fn cpp(source: &str, name: &str) -> Result<PathBuf, String> {
    let program = output().join(format!("peer-{name}"));
    let (source, header) = (sources().join("boost").join(source), sources().join("boost/peer.hpp"));
    if newer(&program, &[&source, &header]) {
        return Ok(program);
    }
    fs::create_dir_all(output()).map_err(|error| error.to_string())?;
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-O2", "-DNDEBUG", "-o"]).arg(&program).arg(source);
    if name != "swapcontext" {
        command.args(["-lboost_fiber", "-lboost_context", "-lpthread"]);
    }
    build(&format!("the peer {name}"), &mut command).map_err(|why| format!("{why}; {INSTALL}"))?;
    Ok(program)
}

fn newer(program: &Path, sources: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let built = time(program);
    built.is_some() && sources.iter().all(|source| time(source) <= built.or(Some(SystemTime::UNIX_EPOCH)))
}

fn build(what: &str, command: &mut Command) -> Result<(), String> {
    eprintln!("building {what}");
    let ended = finish(command, BUILD_LIMIT).map_err(|why| format!("not built: {why}"))?;
    if ended.code == Some(0) { Ok(()) } else { Err(format!("not built: {}", reason(&ended.stderr))) }
}

/// The first line with an error: what follows it is its consequence.
fn reason(stderr: &str) -> String {
    let first = stderr.lines().find(|line| line.contains("error"));
    first.map_or_else(|| last_line(stderr), |line| line.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runtime's own program may be missing, and a peer that nobody asked for is not built.
    #[test]
    fn nobody_is_built_unasked() {
        let found = all(&[]);
        assert_eq!(found.iter().map(|contestant| contestant.name).collect::<Vec<_>>(), [OURS, PINNED]);
        assert_eq!(found.iter().map(Contestant::variable).collect::<Vec<_>>(), [None, Some(PIN)]);
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let stderr = "warning: w\nfiber.cpp:9: fatal error: no such file\ncompilation terminated.\n";
        assert_eq!(reason(stderr), "fiber.cpp:9: fatal error: no such file");
        assert_eq!(reason("go: not here\n"), "go: not here");
        let why = build("nothing", Command::new("sh").args(["-c", "echo 'error: no' >&2; exit 1"]));
        assert_eq!(why, Err("not built: error: no".to_string()));
    }
}
