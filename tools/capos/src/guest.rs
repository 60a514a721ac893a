//! Builds what runs in the machine: the kernel and the programs, with the host's toolchain and flags of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Problem;
use crate::place::{Project, cannot};

/// Frame pointers for backtraces; no red zone, because interrupts come at any time.
const RUSTFLAGS: &str = "-C force-frame-pointers=yes -C no-redzone=yes";

/// What the names of planted bugs begin with, as features of the kernel.
pub const PLANTED_PREFIX: &str = "planted-";
/// The feature of a kernel that measures itself.
pub const MEASURE: &str = "measure";
/// A name that only such a kernel has in it.
const MEASURED: &[u8] = b"measured_dispatches";

/// Which build of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Optimised as far as it goes, without debug assertions.
    pub bench: bool,
    /// A feature of the kernel: [`MEASURE`], or a planted bug for tests that must catch it.
    pub feature: Option<String>,
}

impl Variant {
    /// The cargo profile.
    #[must_use]
    pub fn profile(&self) -> &'static str {
        if self.bench { "guest-bench" } else { "guest" }
    }

    /// What file names of this variant end with.
    #[must_use]
    pub fn suffix(&self) -> String {
        let bench = if self.bench { "-bench" } else { "" };
        let feature = self.feature.as_ref().map(|name| format!("-{name}"));
        format!("{bench}{}", feature.unwrap_or_default())
    }

    /// The same without a feature: programs have none.
    fn clean(&self) -> Variant {
        Variant { feature: None, ..self.clone() }
    }

    /// Where cargo puts it. Kernels with a feature have a folder of their own, so that they are in nobody else's build.
    fn target(&self, project: &Project) -> PathBuf {
        project.target.join(if self.feature.is_some() { "guest-planted" } else { "guest" })
    }

    /// A program that was built.
    #[must_use]
    pub fn program(&self, project: &Project, name: &str) -> PathBuf {
        let clean = self.clean();
        clean.target(project).join(clean.profile()).join(name)
    }

    /// The kernel that was built.
    #[must_use]
    pub fn kernel(&self, project: &Project) -> PathBuf {
        let folder = self.target(project).join(self.profile());
        folder.join(format!("kernel{}", self.suffix().trim_start_matches("-bench")))
    }
}

fn cargo(project: &Project) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&project.root).stdin(Stdio::null());
    command
}

/// A cargo command for what runs in the machine, with its profile, its flags and its folder.
fn guest_cargo(project: &Project, variant: &Variant, what: &str) -> Command {
    let mut command = cargo(project);
    command.args([what, "--locked", "--profile", variant.profile()]);
    command.arg("--target-dir").arg(variant.target(project)).env("RUSTFLAGS", RUSTFLAGS);
    // These would take the place of RUSTFLAGS, or of the linker that the kernel's build script speaks to.
    for name in ["CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command
}

fn finish(mut command: Command, what: &str) -> Result<(), Problem> {
    let status = command.status();
    let status = status.map_err(|error| Problem(format!("cannot run cargo: {error}; install Rust")))?;
    if status.success() { Ok(()) } else { Err(Problem(format!("{what}; mend what cargo says above"))) }
}

/// Builds kernel and programs.
///
/// # Errors
/// When cargo fails; it has said why.
pub fn build(project: &Project, variant: &Variant) -> Result<(), Problem> {
    let mut command = guest_cargo(project, &variant.clean(), "build");
    command.args(["-p", "kernel", "-p", "programs"]);
    finish(command, "the guest does not build")?;
    let Some(name) = &variant.feature else { return Ok(()) };
    let mut command = guest_cargo(project, variant, "build");
    command.args(["-p", "kernel", "--features"]).arg(format!("kernel/{name}"));
    finish(command, &format!("the kernel with the feature `{name}` does not build"))?;
    // The next feature's kernel will be in the same place.
    let (from, to) =
        (variant.target(project).join(variant.profile()).join("kernel"), variant.kernel(project));
    std::fs::copy(&from, &to).map_err(|error| cannot("copy", &from, &error))?;
    if name == MEASURE { costs_nothing(&variant.clean().kernel(project), &to) } else { Ok(()) }
}

/// T-03: what is measured is in the kernel that measures, and nothing of it in the other.
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

/// Builds the first program of a Linux guest, and says where it is. The guest has no libraries, so it is static; not moving it saves Linux the work.
///
/// # Errors
/// When cargo fails; it has said why.
pub fn build_linux(project: &Project) -> Result<PathBuf, Problem> {
    // With a target named, the flags are not those of build scripts.
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
    let mut command = guest_cargo(project, &Variant::default(), "clippy");
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
        let odd = Variant { bench: true, feature: Some("planted-x".to_owned()) };
        let kernel = "/p/target/guest-planted/guest-bench/kernel-planted-x";
        assert_eq!(odd.kernel(&project), PathBuf::from(kernel));
        assert_eq!(odd.program(&project, "init"), PathBuf::from("/p/target/guest/guest-bench/init"));
        assert_eq!((plain.suffix().as_str(), odd.suffix().as_str()), ("", "-bench-planted-x"));
    }
}
