//! K-24: what runs in the machine is the same to the byte wherever and by whomever it was built. The project is copied to a path of another
//! length and built there, with another cargo home, and the two builds are compared.

use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use crate::Problem;
use crate::guest::{self, BENCH_PROFILE, Cargo, PLANTED_PATH, PROFILE};
use crate::place::{Project, cannot, make_folder};
use crate::proof::say;
use crate::suite::Tally;

/// The program that is built beside the kernel; the others consist of the same parts.
const PROGRAM: &str = "hello";
/// Folders that are not the project's source.
const LEFT_OUT: [&str; 2] = ["target", ".git"];
/// How deep its folders may be.
const DEPTH_MAX: u32 = 32;

/// Builds the guest at a second path, compares, and reports the result.
///
/// # Errors
/// When the project cannot be copied or built.
pub fn test(project: &Project) -> Result<Tally, Problem> {
    let copy = Copy::make(project)?;
    let mut tally = Tally::default();
    for (profile, feature) in [(PROFILE, None), (PROFILE, Some(PLANTED_PATH)), (BENCH_PROFILE, None)] {
        let target = project.target.join(if feature.is_some() { "guest-planted" } else { "guest" });
        let here = build(&Cargo { project, home: None, target: &target, profile }, feature)?;
        let (there, target) = (&copy.project, copy.project.target.join("guest"));
        let home = Some(copy.cargo_home.as_path());
        let there = build(&Cargo { project: there, home, target: &target, profile }, feature)?;
        let paths = [&project.root, &copy.project.root, &guest::cargo_home(), &copy.cargo_home];
        for (here, there) in here.iter().zip(&there) {
            let found = difference(&read(here)?, &read(there)?, &paths);
            if feature.is_some() {
                // A kernel that is known to be bad is not left where a good one is expected.
                std::fs::remove_file(here).map_err(|error| cannot("remove", here, &error))?;
            }
            let name = here.file_name().unwrap_or_default().to_string_lossy();
            let (is_good, told) = match (found, feature) {
                (None, None) => (true, "the same at two paths".to_owned()),
                (Some(why), None) => (false, why),
                (Some(why), Some(bug)) => (true, format!("with {bug}, which is found: {why}")),
                (None, Some(bug)) => (false, format!("with {bug}, which is not found")),
            };
            say(&format!("{} {name} of {profile}: {told}", if is_good { "ok    " } else { "FAILED" }));
            *(if is_good { &mut tally.passed } else { &mut tally.failed }) += 1;
        }
    }
    Ok(tally)
}

/// Builds the kernel, and with the plain kernel also a program; returns their paths.
fn build(cargo: &Cargo<'_>, feature: Option<&str>) -> Result<Vec<PathBuf>, Problem> {
    let mut command = cargo.command("build");
    command.args(["-p", "kernel", "--bin", "kernel"]);
    match feature {
        Some(name) => command.arg("--features").arg(format!("kernel/{name}")),
        None => command.args(["-p", "programs", "--bin", PROGRAM]),
    };
    guest::finish(command, &format!("the guest does not build in {}", cargo.project.root.display()))?;
    let names = if feature.is_some() { &["kernel"][..] } else { &["kernel", PROGRAM] };
    Ok(names.iter().map(|name| cargo.target.join(cargo.profile).join(name)).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    std::fs::read(path).map_err(|error| cannot("read", path, &error))
}

/// How two binaries that should be identical differ, or which path they contain; `None` if they are the same.
fn difference(here: &[u8], there: &[u8], paths: &[&PathBuf]) -> Option<String> {
    for path in paths {
        let text = path.as_os_str().as_encoded_bytes();
        if let Some(at) = [here, there].iter().find_map(|bytes| find(bytes, text)) {
            return Some(format!(
                "has the path {} in it, at byte {at} of {}",
                path.display(),
                section(here, at)
            ));
        }
    }
    if here == there {
        return None;
    }
    let same = here.iter().zip(there).take_while(|(one, other)| one == other).count();
    let (here_bytes, there_bytes) = (here.len(), there.len());
    Some(format!(
        "{here_bytes} and {there_bytes} bytes, which differ from byte {same} of {} on",
        section(here, same)
    ))
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len().max(1)).position(|window| window == text)
}

/// The section of an ELF file that contains the byte at file offset `at`.
fn section(elf: &[u8], at: usize) -> String {
    let file = object::File::parse(elf).ok();
    let holds = |section: &object::Section<'_, '_>| {
        section.file_range().is_some_and(|(start, bytes)| (start..start + bytes).contains(&(at as u64)))
    };
    let name = file.and_then(|file| Some(file.sections().find(holds)?.name().ok()?.to_owned()));
    name.unwrap_or_else(|| "the file".to_owned())
}

/// A copy of the project that is removed when this value is dropped.
struct Copy {
    folder: PathBuf,
    project: Project,
    /// A cargo home as of another user: the same crates at another path.
    cargo_home: PathBuf,
}

impl Copy {
    fn make(project: &Project) -> Result<Copy, Problem> {
        // Neither a part of the other path nor as long; the space reveals flags that are split in two.
        let name =
            format!("capos elsewhere {:_<1$}", std::process::id(), project.root.as_os_str().len() % 40 + 9);
        let folder = std::env::temp_dir().join(name);
        let root = folder.join("copy");
        let copy = Copy {
            project: Project { target: root.join("target"), root },
            cargo_home: folder.join("cargo"),
            folder,
        };
        copy_folder(&project.root, &copy.project.root, DEPTH_MAX)?;
        let (from, to) = (guest::cargo_home().join("registry"), copy.cargo_home.join("registry"));
        make_folder(&to)?;
        // Cargo unpacks the sources that it builds anew, and names their path.
        for name in ["index", "cache"] {
            let (from, to) = (from.join(name), to.join(name));
            std::os::unix::fs::symlink(&from, &to).map_err(|error| cannot("make", &to, &error))?;
        }
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // If removing fails, the rest stays in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn copy_folder(from: &Path, to: &Path, depth: u32) -> Result<(), Problem> {
    if depth == 0 {
        return Err(Problem(format!("{} is nested too deeply to be copied", from.display())));
    }
    make_folder(to)?;
    let entries = std::fs::read_dir(from).map_err(|error| cannot("read", from, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| cannot("read", from, &error))?;
        let (name, path) = (entry.file_name(), entry.path());
        let kind = entry.file_type().map_err(|error| cannot("read", &path, &error))?;
        if LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        } else if kind.is_dir() {
            copy_folder(&path, &to.join(name), depth - 1)?;
        } else if kind.is_file() {
            std::fs::copy(&path, to.join(name)).map_err(|error| cannot("copy", &path, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_24_a_difference_is_said_and_a_path_named() {
        let paths = [&PathBuf::from("/home/x"), &PathBuf::from("/y")];
        assert_eq!(difference(b"same /home/z", b"same /home/z", &paths), None);
        let found = difference(b"abcd", b"abXd!", &paths).unwrap();
        assert!(found.contains("4 and 5 bytes") && found.contains("from byte 2 of the file"), "{found}");
        let found = difference(b"at /y/z", b"at /y/z", &paths).unwrap();
        assert!(found.contains("the path /y in it, at byte 3"), "{found}");
    }
}
