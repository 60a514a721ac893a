//! The trace that a machine wrote to its debug console: kept as a dump, exported for viewers, replayed.

use std::path::{Path, PathBuf};
use std::process::Command;

use trace::dump::Dump;

use crate::Problem;
use crate::place::{Project, cannot, write_file};
use crate::replay::{self, Replayed};

/// Events on each CPU, unless the boot options say otherwise.
const EVENTS: usize = 1 << 17;
/// The largest dump that is read: 64 full buffers of the largest size.
const BYTES_MAX: u64 = 2 << 30;
/// The file extension of dumps.
const DUMP: &str = "dump";

/// The formats in which a trace can be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Perfetto,
    Chrome,
    Dump,
}

impl Format {
    fn of(path: &Path) -> Result<Format, Problem> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("pftrace" | "perfetto-trace") => Ok(Format::Perfetto),
            Some("json") => Ok(Format::Chrome),
            Some(DUMP) => Ok(Format::Dump),
            _ => Err(Problem(format!(
                "{}: a trace is saved as .pftrace (Perfetto), .json (Chrome) or .dump (as the kernel wrote it)",
                path.display()
            ))),
        }
    }
}

/// A trace that shall be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    file: PathBuf,
}

impl Capture {
    /// A trace that is saved as `file`, in the format of its extension.
    ///
    /// # Errors
    /// When there is no such format, or no such folder: a misspelt folder is not created.
    pub fn new(file: &Path) -> Result<Capture, Problem> {
        Format::of(file)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.filter(|folder| !folder.is_dir()) {
            None => Ok(Capture { file: file.to_path_buf() }),
            Some(folder) => Err(Problem(format!(
                "{}: there is no folder {}; make it first",
                file.display(),
                folder.display()
            ))),
        }
    }

    /// As this, with a file name for one of several runs.
    #[must_use]
    pub fn numbered(&self, cpus: u32) -> Capture {
        let stem = self.file.file_stem().unwrap_or_default().to_string_lossy();
        let extension = self.file.extension().unwrap_or_default().to_string_lossy();
        Capture { file: self.file.with_file_name(format!("{stem}-{cpus}.{extension}")) }
    }

    /// The file that the machine writes to, next to the saved one.
    #[must_use]
    pub fn dump(&self) -> PathBuf {
        self.file.with_extension(DUMP)
    }

    /// Reads what the machine wrote, saves it, and returns a message that says where.
    ///
    /// # Errors
    /// When it is no dump, or the file cannot be written.
    pub fn save(&self) -> Result<String, Problem> {
        let dump = load(&self.dump())?;
        if Format::of(&self.file)? != Format::Dump {
            export(&dump, &self.file)?;
        }
        let lost = match dump.lost() {
            0 => String::new(),
            lost => format!(", {lost} lost: give the kernel a larger `trace=`"),
        };
        Ok(format!("trace: {} ({} events{lost}); {}", self.file.display(), dump.records.len(), self.advice()))
    }

    fn advice(&self) -> String {
        let dump = self.dump().display().to_string().replace('\'', "'\\''");
        format!("check it with: cargo run -q -p capos -- replay '{dump}'")
    }
}

/// Boot options that ask for a trace, unless `options` already do.
#[must_use]
pub fn with_trace(options: &str) -> String {
    match options.split_whitespace().any(|word| word.starts_with("trace=")) {
        true => options.to_owned(),
        false => format!("{options} trace={EVENTS}").trim_start().to_owned(),
    }
}

/// Reads a dump.
///
/// # Errors
/// When the file cannot be read, or is no dump.
pub fn load(path: &Path) -> Result<Dump, Problem> {
    let size = std::fs::metadata(path).map_err(|error| cannot("read the trace", path, &error))?.len();
    if size > BYTES_MAX {
        return Err(Problem(format!(
            "{} has {size} bytes, and no dump has more than {BYTES_MAX}",
            path.display()
        )));
    }
    let bytes = std::fs::read(path).map_err(|error| cannot("read the trace", path, &error))?;
    Dump::parse(&bytes).map_err(|error| Problem(format!("the trace {} is not good: {error}", path.display())))
}

/// Writes a dump for a viewer; the file's extension says for which.
///
/// # Errors
/// When the trace breaks the reading rules, or the file cannot be written.
pub fn export(dump: &Dump, file: &Path) -> Result<(), Problem> {
    let title = file.file_stem().unwrap_or_default().to_string_lossy();
    let trace = dump.trace(&title);
    let mut bytes = Vec::new();
    let written = match Format::of(file)? {
        Format::Perfetto => trace::perfetto::write(&trace, &mut bytes),
        Format::Chrome => trace::chrome::write(&trace, &mut bytes),
        Format::Dump => return write_file(file, &dump.encode()),
    };
    written.map_err(|error| Problem(format!("the trace cannot be drawn: {error}")))?;
    write_file(file, &bytes)
}

/// Reads and replays a dump.
///
/// # Errors
/// With the first difference.
pub fn check(path: &Path) -> Result<Replayed, Problem> {
    let dump = load(path)?;
    replay::replay(&dump).map_err(|difference| Problem(difference.to_string()))
}

/// Checks everything about a trace: it is exported for both viewers, a foreign reader finds in the exports what is in the trace, and it
/// replays.
///
/// # Errors
/// With the first thing that is wrong.
pub fn examine(project: &Project, path: &Path) -> Result<String, Problem> {
    let dump = load(path)?;
    let replayed = replay::replay(&dump).map_err(|difference| Problem(difference.to_string()))?;
    let (perfetto, chrome) = (path.with_extension("pftrace"), path.with_extension("json"));
    export(&dump, &perfetto)?;
    export(&dump, &chrome)?;
    let expected = path.with_extension("expected.json");
    write_file(&expected, trace::digest::json(&dump.trace("")).as_bytes())?;
    let tests = project.root.join("trace/tests");
    let python = told(Command::new("sh").arg(tests.join("python-env.sh")), "python-env.sh")?;
    let mut reader = Command::new(python.trim());
    reader.arg(tests.join("load_trace.py")).args([&expected, &perfetto, &chrome]);
    let said = told(&mut reader, "the reader of exports")?;
    if !said.contains("load_trace: ok") {
        return Err(Problem(format!("the reader of exports: {}", said.trim())));
    }
    Ok(format!("{replayed}; {}", said.trim()))
}

/// The standard output of a command that must succeed.
fn told(command: &mut Command, what: &str) -> Result<String, Problem> {
    let output = command.output().map_err(|error| Problem(format!("cannot run {what}: {error}")))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Problem(format!("{what}: {} {}", said.trim(), why.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_format() {
        for (file, format) in
            [("a.pftrace", Format::Perfetto), ("b/a.JSON", Format::Chrome), ("a.dump", Format::Dump)]
        {
            assert_eq!(Format::of(Path::new(file)), Ok(format));
        }
        let problem = Capture::new(Path::new("trace.txt")).unwrap_err().to_string();
        assert!(problem.contains(".pftrace"), "{problem}");
        let capture = Capture::new(Path::new("src/smoke.json")).unwrap();
        assert_eq!(capture.dump(), Path::new("src/smoke.dump"));
        assert_eq!(capture.numbered(4).file, Path::new("src/smoke-4.json"));
        assert!(capture.advice().ends_with("-- replay 'src/smoke.dump'"), "{}", capture.advice());
        assert!(Capture::new(Path::new("smoke.json")).is_ok());
        let problem = Capture::new(Path::new("no-such/smoke.json")).unwrap_err().to_string();
        assert!(problem.contains("no folder no-such"), "{problem}");
    }

    #[test]
    fn a_trace_is_asked_for_once() {
        assert_eq!(with_trace("pit trace=5"), "pit trace=5");
        assert_eq!(with_trace(""), format!("trace={EVENTS}"));
        assert_eq!(with_trace("pit"), format!("pit trace={EVENTS}"));
    }
}
