//! Makes boot images: all programs, the compiled manifest, the kernel's symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Manifest, write_archive};

use crate::guest::{self, Variant};
use crate::place::{Project, cannot, write_file};
use crate::{Problem, manifest, symbols};

/// The manifest's name in the image.
pub const MANIFEST: &str = "manifest";
/// The symbols' name in the image.
pub const SYMBOLS: &str = "kernel.sym";

/// Compiles the manifest in `path`; `args`, if there are any, replace the arguments of its last process.
///
/// # Errors
/// When it cannot be read, or is bad.
pub fn compile_manifest(path: &Path, args: &[String]) -> Result<Vec<u8>, Problem> {
    let text = std::fs::read_to_string(path).map_err(|error| no_manifest(path, &error))?;
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(manifest::compile_with(&file, &text, args)?)
}

/// Why a manifest cannot be read; if there is none of that name, lists the existing ones.
fn no_manifest(path: &Path, error: &std::io::Error) -> Problem {
    let folder = path.parent().filter(|_| error.kind() == std::io::ErrorKind::NotFound);
    let Some(entries) = folder.and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return cannot("read the manifest", path, error);
    };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_manifest = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "toml");
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut names: Vec<String> = files.filter(is_manifest).map(|file| stem(&file)).collect();
    names.sort();
    let (name, file) = (stem(path), path.display());
    Problem(format!("no manifest `{name}`: write {file}, or take one of: {}", names.join(" ")))
}

/// Compiles the manifest in `path`, and checks that its programs exist; returns it, and the names of all programs.
///
/// # Errors
/// When the manifest is bad, or names a program that does not exist.
pub fn check(project: &Project, path: &Path) -> Result<(Vec<u8>, Vec<String>), Problem> {
    check_with(project, path, &[])
}

fn check_with(project: &Project, path: &Path, args: &[String]) -> Result<(Vec<u8>, Vec<String>), Problem> {
    let compiled = compile_manifest(path, args)?;
    let names = guest::programs(project)?;
    let manifest = Manifest::parse(&compiled).map_err(|error| Problem(error.to_string()))?;
    manifest
        .check_programs(|name| names.iter().any(|known| known == name))
        .map_err(|error| Problem(format!("{error}\nthere are {}", names.join(", "))))?;
    Ok((compiled, names))
}

/// Makes the image of the manifest in `path` from what was built, and writes it to `output`.
///
/// # Errors
/// When the manifest is bad, names a program that does not exist, or something is not built.
pub fn make(project: &Project, variant: &Variant, path: &Path, output: &Path) -> Result<(), Problem> {
    make_with(project, variant, path, &[], output)
}

fn make_with(
    project: &Project,
    variant: &Variant,
    path: &Path,
    args: &[String],
    output: &Path,
) -> Result<(), Problem> {
    let (compiled, names) = check_with(project, path, args)?;
    let mut files = vec![(MANIFEST.to_owned(), compiled)];
    let kernel = variant.kernel(project);
    let kernel = std::fs::read(&kernel).map_err(|error| not_built(&cannot("read", &kernel, &error)))?;
    files.push((SYMBOLS.to_owned(), symbols::table(&kernel)?));
    for name in names {
        let stripped = strip(&variant.program(project, &name))?;
        files.push((name, stripped));
    }
    files.sort();
    let list: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let mut image = Vec::new();
    write_archive(&list, |piece| image.extend_from_slice(piece)).map_err(|error| {
        Problem(format!("{error}; rename a program: `{MANIFEST}` and `{SYMBOLS}` are taken"))
    })?;
    write_file(output, &image)
}

/// Builds the guest, if `build` is set, and makes the image of the manifest in `path`. Returns the paths of kernel and image.
///
/// # Errors
/// As [`make`], and when the guest does not build.
pub fn prepare(
    project: &Project,
    variant: &Variant,
    path: &Path,
    build: bool,
) -> Result<(PathBuf, PathBuf), Problem> {
    prepare_with(project, variant, path, &[], build)
}

/// As [`prepare`]; `args`, if there are any, replace the arguments of the manifest's last process.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_with(
    project: &Project,
    variant: &Variant,
    path: &Path,
    args: &[String],
    build: bool,
) -> Result<(PathBuf, PathBuf), Problem> {
    // A bad manifest is reported at once, not after the build.
    check_with(project, path, args)?;
    if build {
        guest::build(project, variant)?;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let image = project.output("images", &format!("{name}{}.img", variant.suffix()))?;
    make_with(project, variant, path, args, &image)?;
    Ok((variant.kernel(project), image))
}

fn not_built(problem: &Problem) -> Problem {
    Problem(format!(
        "{problem}; build the guest first: leave --no-build out, or `cargo run -p capos -- build`"
    ))
}

/// A program without its debug information. A copy that was stripped before is reused as long as it has the same age as the program.
pub(crate) fn strip(program: &Path) -> Result<Vec<u8>, Problem> {
    let unreadable = |error: std::io::Error| not_built(&cannot("read", program, &error));
    let age = std::fs::metadata(program).and_then(|data| data.modified()).map_err(unreadable)?;
    let beside = |ending: &str| {
        let mut path = program.as_os_str().to_owned();
        path.push(ending);
        PathBuf::from(path)
    };
    let stripped = beside(".stripped");
    let kept = std::fs::metadata(&stripped).and_then(|data| data.modified());
    if !kept.is_ok_and(|kept| kept == age) {
        let draft = beside(&format!(".stripped.{}", std::process::id()));
        let output = Command::new("objcopy").arg("--strip-debug").arg(program).arg(&draft).output();
        let output =
            output.map_err(|error| Problem(format!("cannot run objcopy: {error}; install binutils")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Problem(format!("objcopy cannot strip {}: {said}", program.display())));
        }
        let file = std::fs::File::options().append(true).open(&draft);
        file.and_then(|file| file.set_modified(age))
            .and_then(|()| std::fs::rename(&draft, &stripped))
            .map_err(|error| cannot("write", &stripped, &error))?;
    }
    std::fs::read(&stripped).map_err(|error| cannot("read", &stripped, &error))
}
