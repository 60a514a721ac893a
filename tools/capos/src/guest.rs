//! Builds what runs in the machine: the kernel and the programs, with the host's toolchain and flags of their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Problem;
use crate::place::{Project, cannot};

/// Frame pointers for backtraces; no red zone, because interrupts come at any time.
const RUSTFLAGS: [&str; 2] = ["-Cforce-frame-pointers=yes", "-Cno-redzone=yes"];
/// The separator of flags in `CARGO_ENCODED_RUSTFLAGS`, which allows paths with spaces.
const FLAG_END: &str = "\x1f";

/// The cargo profile with assertions, and the fully optimised one without them.
pub(crate) const PROFILE: &str = "guest";
pub(crate) const BENCH_PROFILE: &str = "guest-bench";
/// The profile of a kernel whose types gdb knows, with the options of [`PROFILE`]. A few decisions of the compiler differ.
pub(crate) const DEBUG_PROFILE: &str = "guest-debug";

/// The prefix of the names of kernels with a planted bug.
pub const PLANTED_PREFIX: &str = "planted-";
/// The feature of the kernel that contains all planted bugs, and the boot option that chooses which of them is active.
const PLANTED: &str = "planted";
/// The one planted bug (the build path) that is in a kernel as built, and so needs a feature of its own: the comparison of two builds must find it.
pub(crate) const PLANTED_PATH: &str = "planted-path";
/// The feature of a kernel that measures itself.
pub const MEASURE: &str = "measure";
/// A name that only such a kernel contains.
const MEASURED: &[u8] = b"measured_dispatches";

/// Which build of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Kernel and programs fully optimised, without debug assertions.
    pub bench: bool,
    /// The kernel fully optimised without assertions, and the programs, which judge it, with theirs.
    pub release: bool,
    /// The kernel with full debug information, for gdb.
    pub types: bool,
    /// A feature of the kernel: [`MEASURE`], or a planted bug for tests that must catch it.
    pub feature: Option<String>,
}

impl Variant {
    /// The cargo profile of the kernel.
    fn kernel_profile(&self) -> &'static str {
        match self {
            Variant { bench: true, .. } | Variant { release: true, .. } => BENCH_PROFILE,
            Variant { types: true, .. } => DEBUG_PROFILE,
            _ => PROFILE,
        }
    }

    /// The cargo profile of the programs.
    fn program_profile(&self) -> &'static str {
        if self.bench { BENCH_PROFILE } else { PROFILE }
    }

    /// The suffix of this variant's file names.
    #[must_use]
    pub fn suffix(&self) -> String {
        let profile = match self {
            Variant { bench: true, .. } => "-bench",
            Variant { release: true, .. } => "-release",
            Variant { types: true, .. } => "-debug",
            _ => "",
        };
        format!("{profile}{}", self.feature_suffix())
    }

    fn feature_suffix(&self) -> String {
        self.feature.as_ref().map(|name| format!("-{name}")).unwrap_or_default()
    }

    /// The planted bug, if this is a variant of the kernel that contains all of them.
    fn bug(&self) -> Option<&str> {
        let name = self.feature.as_deref().filter(|name| *name != PLANTED_PATH)?;
        name.strip_prefix(PLANTED_PREFIX)
    }

    /// The feature that the kernel is built with.
    fn built_with(&self) -> Option<&str> {
        if self.bug().is_some() { Some(PLANTED) } else { self.feature.as_deref() }
    }

    /// The boot line of this variant: `options`, and the bug that is active.
    #[must_use]
    pub fn boot_line(&self, options: &str) -> String {
        match self.bug() {
            Some(bug) if options.is_empty() => format!("{PLANTED}={bug}"),
            Some(bug) => format!("{options} {PLANTED}={bug}"),
            None => options.to_owned(),
        }
    }

    /// The same variant without a feature: programs have none.
    fn clean(&self) -> Variant {
        Variant { feature: None, ..self.clone() }
    }

    /// Where cargo puts the build. Kernels with a feature have a folder of their own, so that they do not get into other builds.
    fn target(&self, project: &Project) -> PathBuf {
        project.target.join(if self.feature.is_some() { "guest-planted" } else { "guest" })
    }

    /// A program that was built.
    #[must_use]
    pub fn program(&self, project: &Project, name: &str) -> PathBuf {
        self.clean().target(project).join(self.program_profile()).join(name)
    }

    /// The kernel that was built.
    #[must_use]
    pub fn kernel(&self, project: &Project) -> PathBuf {
        let folder = self.target(project).join(self.kernel_profile());
        let suffix = self.built_with().map(|name| format!("-{name}")).unwrap_or_default();
        folder.join(format!("kernel{suffix}"))
    }
}

/// The flags of the compiler. The build is the same to the byte wherever the project, cargo's home and the toolchain are (K-24): in panics and debug
/// information each of these paths is replaced by a fixed name.
fn flags(places: &[(PathBuf, String)]) -> OsString {
    let mut flags = OsString::from(RUSTFLAGS.join(FLAG_END));
    for (path, name) in places {
        flags.push(format!("{FLAG_END}--remap-path-prefix="));
        flags.push(path);
        flags.push(format!("={name}"));
    }
    flags
}

/// The paths that the compiler knows, and the name that replaces each. The last one that matches counts, so the longest is last.
fn places(project: &Project, cargo_home: PathBuf) -> Vec<(PathBuf, String)> {
    let mut places = vec![
        (project.root.clone(), "/capos".to_owned()),
        (project.target.clone(), "/capos/target".to_owned()),
    ];
    // Cargo names the target of a link.
    let registry = cargo_home.join("registry");
    if let Ok(real) = registry.canonicalize().map(|real| (real != registry).then_some(real)) {
        places.extend(real.map(|real| (real, "/cargo/registry".to_owned())));
    }
    places.push((cargo_home, "/cargo".to_owned()));
    // If the library's sources are installed, the compiler names their path instead of the one with which the library was built.
    if let (Some(sysroot), Some(version)) = (rustc(&["--print", "sysroot"]), rustc(&["-vV"])) {
        let hash = version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap_or("unknown");
        let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
        places.push((sources, format!("/rustc/{hash}")));
    }
    places.sort_by_key(|(path, _)| path.as_os_str().len());
    places
}

/// Where cargo keeps the sources of foreign crates.
pub(crate) fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// The output of the compiler for these arguments.
fn rustc(arguments: &[&str]) -> Option<String> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn cargo(project: &Project) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&project.root).stdin(Stdio::null());
    command
}

/// How cargo is called to build what runs in the machine.
pub(crate) struct Cargo<'a> {
    /// The project that it builds.
    pub(crate) project: &'a Project,
    /// The cargo home, if not the usual one; everything must be there already.
    pub(crate) home: Option<&'a Path>,
    /// Where the build output goes.
    pub(crate) target: &'a Path,
    /// The profile.
    pub(crate) profile: &'static str,
}

impl<'a> Cargo<'a> {
    fn new(project: &'a Project, target: &'a Path, profile: &'static str) -> Cargo<'a> {
        Cargo { project, home: None, target, profile }
    }

    /// The command, with the flags.
    pub(crate) fn command(&self, what: &str) -> Command {
        let mut command = cargo(self.project);
        command.args([what, "--locked", "--profile", self.profile]).arg("--target-dir").arg(self.target);
        if let Some(home) = self.home {
            command.arg("--offline").env("CARGO_HOME", home);
        }
        let home = self.home.map_or_else(cargo_home, Path::to_path_buf);
        command.env("CARGO_ENCODED_RUSTFLAGS", flags(&places(self.project, home)));
        // Incremental builds would be divided differently from one build to the next.
        command.env("CARGO_INCREMENTAL", "0");
        // These would change the linker that the kernel's build script expects, or the folder.
        for name in ["CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
            command.env_remove(name);
        }
        command
    }
}

pub(crate) fn finish(mut command: Command, what: &str) -> Result<(), Problem> {
    let status = command.status();
    let status = status.map_err(|error| Problem(format!("cannot run cargo: {error}; install Rust")))?;
    if status.success() { Ok(()) } else { Err(Problem(format!("{what}; mend what cargo says above"))) }
}

/// Builds kernel and programs.
///
/// # Errors
/// When cargo fails; it has said why.
pub fn build(project: &Project, variant: &Variant) -> Result<(), Problem> {
    let plain = variant.clean().target(project);
    let profiles = (variant.kernel_profile(), variant.program_profile());
    let mut command = Cargo::new(project, &plain, profiles.1).command("build");
    command.args(["-p", "programs"]);
    if profiles.0 == profiles.1 {
        command.args(["-p", "kernel"]);
    }
    finish(command, "the guest does not build")?;
    if profiles.0 != profiles.1 {
        let mut command = Cargo::new(project, &plain, profiles.0).command("build");
        command.args(["-p", "kernel"]);
        finish(command, "the kernel does not build")?;
    }
    let Some(name) = variant.built_with() else { return Ok(()) };
    let target = variant.target(project);
    let mut command = Cargo::new(project, &target, profiles.0).command("build");
    command.args(["-p", "kernel", "--features"]).arg(format!("kernel/{name}"));
    finish(command, &format!("the kernel with the feature `{name}` does not build"))?;
    // The next feature's kernel will have the same path.
    let (from, to) = (target.join(profiles.0).join("kernel"), variant.kernel(project));
    std::fs::copy(&from, &to).map_err(|error| cannot("copy", &from, &error))?;
    if name == MEASURE { costs_nothing(&variant.clean().kernel(project), &to) } else { Ok(()) }
}

/// T-03: the measuring code is in the kernel that measures, and nothing of it in the other.
fn costs_nothing(plain: &Path, measured: &Path) -> Result<(), Problem> {
    let has_it = |kernel: &Path| -> Result<bool, Problem> {
        let bytes = std::fs::read(kernel).map_err(|error| cannot("read", kernel, &error))?;
        Ok(bytes.windows(MEASURED.len()).any(|window| window == MEASURED))
    };
    match (has_it(plain)?, has_it(measured)?) {
        (false, true) => Ok(()),
        (true, _) => {
            Err(Problem::new("the kernel without `measure` has some of it (T-03): look for a missing cfg"))
        }
        (_, false) => Err(Problem::new("the kernel with `measure` counts no dispatches (T-03)")),
    }
}

/// Builds the first program of a Linux guest, and returns its path. The guest has no libraries, so the program is static; not position-independent,
/// which saves Linux the relocation.
///
/// # Errors
/// When cargo fails; it has said why.
pub fn build_linux(project: &Project) -> Result<PathBuf, Problem> {
    // With an explicit target, the flags do not apply to build scripts.
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let folder = project.target.join("linux-guest");
    let mut command = cargo(project);
    command.args(["build", "--locked", "--release", "-p", "linux-bench", "--target", TARGET]);
    command.arg("--target-dir").arg(&folder);
    command.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    for name in ["CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    finish(command, "the program of the Linux guest does not build")?;
    Ok(folder.join(TARGET).join("release/linux-init"))
}

/// Clippy on what runs in the machine, with warnings as errors.
///
/// # Errors
/// When it finds something; it has said what.
pub fn lint(project: &Project) -> Result<(), Problem> {
    let target = Variant::default().target(project);
    let mut command = Cargo::new(project, &target, PROFILE).command("clippy");
    command.args(["-p", "kernel", "-p", "rt", "-p", "programs", "--", "-D", "warnings"]);
    finish(command, "the guest is not clean")
}

/// The names of all programs: the binaries of the package `programs`.
///
/// # Errors
/// When cargo does not know them.
pub fn programs(project: &Project) -> Result<Vec<String>, Problem> {
    let output = cargo(project)
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Problem(format!("cannot run cargo: {error}; install Rust")))?;
    let names = binaries_of(&output.stdout, "programs");
    names.filter(|_| output.status.success()).ok_or_else(|| {
        Problem::new("cargo metadata does not list the package `programs`; is it a member of the workspace?")
    })
}

/// The binaries of a package in the output of `cargo metadata`.
fn binaries_of(metadata: &[u8], package: &str) -> Option<Vec<String>> {
    let metadata: serde_json::Value = serde_json::from_slice(metadata).ok()?;
    let packages = metadata["packages"].as_array()?;
    let package = packages.iter().find(|known| known["name"] == package)?;
    let is_binary = |target: &&serde_json::Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"bin".into()))
    };
    let targets = package["targets"].as_array()?.iter().filter(is_binary);
    let mut names: Vec<String> =
        targets.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect();
    names.sort();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_24_the_longest_path_is_renamed_last_and_may_have_spaces() {
        let project = Project { root: "/home/a b/capos".into(), target: "/t".into() };
        let places = places(&project, "/home/a b/capos/.cargo".into());
        let flags = flags(&places).into_string().unwrap();
        let flags: Vec<&str> = flags.split(FLAG_END).collect();
        let at = |flag: &str| flags.iter().position(|known| *known == flag).expect(flag);
        assert_eq!((at(RUSTFLAGS[0]), at(RUSTFLAGS[1])), (0, 1));
        let (root, home) = ("--remap-path-prefix=/home/a b/capos", "/.cargo=/cargo");
        assert!(at(&format!("{root}=/capos")) < at(&format!("{root}{home}")));
        assert!(at("--remap-path-prefix=/t=/capos/target") > 1);
    }

    #[test]
    fn binaries_are_found_in_metadata() {
        let metadata = br#"{"packages": [
            {"name": "kernel", "targets": [{"kind": ["bin"], "name": "kernel"}]},
            {"name": "programs", "targets": [
                {"kind": ["bin"], "name": "shell"}, {"kind": ["lib"], "name": "programs"},
                {"kind": ["bin"], "name": "init"}, {"kind": ["custom-build"], "name": "build-script-build"}]}]}"#;
        assert_eq!(binaries_of(metadata, "programs").unwrap(), ["init", "shell"]);
        assert_eq!(binaries_of(metadata, "absent"), None);
        assert_eq!(binaries_of(b"{", "programs"), None);
    }

    #[test]
    fn each_variant_has_its_own_files() {
        let project = Project { root: "/p".into(), target: "/p/target".into() };
        let plain = Variant::default();
        assert_eq!(plain.kernel(&project), PathBuf::from("/p/target/guest/guest/kernel"));
        let odd = Variant { bench: true, feature: Some("planted-x".to_owned()), ..Variant::default() };
        let kernel = "/p/target/guest-planted/guest-bench/kernel-planted";
        assert_eq!(odd.kernel(&project), PathBuf::from(kernel));
        assert_eq!(odd.program(&project, "init"), PathBuf::from("/p/target/guest/guest-bench/init"));
        assert_eq!((plain.suffix().as_str(), odd.suffix().as_str()), ("", "-bench-planted-x"));
        let release = Variant { release: true, ..Variant::default() };
        assert_eq!(release.kernel(&project), PathBuf::from("/p/target/guest/guest-bench/kernel"));
        assert_eq!(release.program(&project, "init"), PathBuf::from("/p/target/guest/guest/init"));
        assert_eq!(release.suffix(), "-release", "its image has the symbols of its own kernel");
        let debug = Variant { types: true, ..Variant::default() };
        assert_eq!(debug.kernel(&project), PathBuf::from("/p/target/guest/guest-debug/kernel"));
        assert_eq!(debug.program(&project, "init"), PathBuf::from("/p/target/guest/guest/init"));
        assert_eq!(debug.suffix(), "-debug");
    }
}
