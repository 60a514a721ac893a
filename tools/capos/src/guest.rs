//! Builds what runs in the machine: the kernel and the programs, with the host's toolchain and flags of their own.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Problem;
use crate::place::Project;

/// Frame pointers for backtraces; no red zone, because interrupts come at any time.
const RUSTFLAGS: &str = "-C force-frame-pointers=yes -C no-redzone=yes";

/// Which build of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Optimised as far as it goes, without debug assertions.
    pub bench: bool,
    /// The name of a planted bug, for tests that must catch it.
    pub planted: Option<String>,
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
        let planted = self.planted.as_ref().map(|name| format!("-planted-{name}")).unwrap_or_default();
        format!("{bench}{planted}")
    }

    /// Where cargo puts it. A planted bug has a folder of its own, so that it is in nobody else's build.
    #[must_use]
    pub fn target(&self, project: &Project) -> PathBuf {
        match &self.planted {
            None => project.target.join("guest"),
            Some(name) => project.target.join(format!("guest-planted-{name}")),
        }
    }

    /// A file that was built.
    #[must_use]
    pub fn built(&self, project: &Project, name: &str) -> PathBuf {
        self.target(project).join(self.profile()).join(name)
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

/// Builds kernel and programs.
///
/// # Errors
/// When cargo fails; it has said why.
pub fn build(project: &Project, variant: &Variant) -> Result<(), Problem> {
    let mut command = guest_cargo(project, variant, "build");
    command.args(["-p", "kernel", "-p", "programs"]);
    if let Some(name) = &variant.planted {
        command.arg("--features").arg(format!("kernel/planted-{name}"));
    }
    let status =
        command.status().map_err(|error| Problem(format!("cannot run cargo: {error}; install Rust")))?;
    if status.success() {
        return Ok(());
    }
    let planted = variant.planted.as_ref().map(|name| format!(" with the planted bug `{name}`"));
    Err(Problem(format!(
        "the guest{} does not build; mend what cargo says above",
        planted.unwrap_or_default()
    )))
}

/// Clippy on what runs in the machine, with warnings as errors.
///
/// # Errors
/// When it finds something; it has said what.
pub fn lint(project: &Project) -> Result<(), Problem> {
    let mut command = guest_cargo(project, &Variant::default(), "clippy");
    command.args(["-p", "kernel", "-p", "rt", "-p", "programs", "--", "-D", "warnings"]);
    let status = command.status();
    let status = status.map_err(|error| Problem(format!("cannot run cargo: {error}; install Rust")))?;
    if status.success() { Ok(()) } else { Err(Problem::new("mend what clippy says above")) }
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
        assert_eq!(plain.built(&project, "kernel"), PathBuf::from("/p/target/guest/guest/kernel"));
        let odd = Variant { bench: true, planted: Some("x".to_owned()) };
        assert_eq!(odd.built(&project, "init"), PathBuf::from("/p/target/guest-planted-x/guest-bench/init"));
        assert_eq!((plain.suffix().as_str(), odd.suffix().as_str()), ("", "-bench-planted-x"));
    }
}
