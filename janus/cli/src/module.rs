//! Modules as files: reading them, and `janus check`, which says what one needs.

use crate::code;
use janus_guest::pass::MODULE_BYTES_MAX;
use janus_guest::{Grant, Need, functions, needs};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// What is wrong, and the exit code that says it.
pub(crate) struct Failure(pub(crate) u8, pub(crate) String);

impl Failure {
    /// Says it. If nobody listens there is nothing to say.
    pub(crate) fn tell(&self) -> ExitCode {
        let _ = writeln!(std::io::stderr(), "janus: {}", self.1);
        ExitCode::from(self.0)
    }
}

/// Characters of a line of an error: a line of a module may have millions.
const SHOWN: usize = 120;

/// A module, from its binary or its text form.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |error| Failure(code::CANNOT_READ, format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MODULE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let bad = |why: &str| Failure(code::BAD_MODULE, format!("{} is no module: {why}", path.display()));
    if bytes.len() as u64 > MODULE_BYTES_MAX {
        return Err(bad(&format!("it has over {MODULE_BYTES_MAX} bytes")));
    }
    if !bytes.starts_with(b"\0asm") && std::str::from_utf8(&bytes).is_err() {
        return Err(bad("it begins like neither the binary nor the text form of WebAssembly"));
    }
    match wat::parse_bytes(&bytes) {
        Ok(wasm) => Ok(wasm.into_owned()),
        Err(mut error) => {
            error.set_path(path);
            Err(bad(&cut(&error.to_string())))
        }
    }
}

/// Lines of a module may be long. The one that says where it is stays whole, however long the path: the number of the line is at its end.
fn cut(text: &str) -> String {
    let lines = text.lines().map(|line| match line.char_indices().nth(SHOWN) {
        Some((end, _)) if !line.trim_start().starts_with("-->") => format!("{}...", &line[..end]),
        _ => line.to_string(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Which function a run begins with, if it is not told.
pub(crate) fn entry(functions: &[String]) -> Option<&str> {
    ["_start", "main"].into_iter().find(|name| functions.iter().any(|function| function == name))
}

/// `janus check`.
pub(crate) fn check(guest: &Path) -> ExitCode {
    let found = read(guest).and_then(|wasm| {
        let bad = |error: janus_guest::GuestError| Failure(code::BAD_MODULE, error.to_string());
        Ok((needs(&wasm).map_err(bad)?, functions(&wasm).map_err(bad)?))
    });
    let (text, code) = match found {
        Ok((needs, functions)) => describe(guest, &needs, &functions),
        Err(failure) => return failure.tell(),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Failure(code::CANNOT_READ, format!("cannot write: {error}")).tell()
        }
        _ => ExitCode::from(code),
    }
}

/// A line for each need, and the command that runs it.
fn describe(guest: &Path, needs: &[Need], exported: &[String]) -> (String, u8) {
    let (mut text, mut unknown) = (String::new(), false);
    let (mut grants, mut links): (Vec<Grant>, Vec<&str>) = (Vec::new(), Vec::new());
    for need in needs {
        let (name, says) = match need {
            Need::Free(name) => (name, "free".to_string()),
            Need::Granted(name, grant) => {
                if !grants.contains(grant) {
                    grants.push(*grant);
                }
                (name, format!("--grant {grant}"))
            }
            Need::Linked(name) => {
                let module = name.split('.').next().unwrap_or_default();
                if !links.contains(&module) {
                    links.push(module);
                }
                (name, format!("--link {module}=PATH"))
            }
            Need::Unknown(name) => {
                unknown = true;
                (name, "nobody provides it".to_string())
            }
        };
        let _ = writeln!(text, "{name:<48} {says}");
    }
    if unknown {
        text.push_str("it cannot be run: the runtime has no such imports\n");
        return (text, code::BAD_MODULE);
    }
    text.push_str("to run it: janus run");
    if !grants.is_empty() {
        let names: Vec<&str> = grants.iter().map(|grant| grant.name()).collect();
        let _ = write!(text, " --grant {}", names.join(","));
    }
    // Rights that are nothing without an amount.
    for (grant, with) in [(Grant::Spawn, " --budget spawn=10"), (Grant::Budget, " --recharge ops=1M")] {
        text.push_str(if grants.contains(&grant) { with } else { "" });
    }
    for module in links {
        let _ = write!(text, " --link {module}=PATH");
    }
    if entry(exported).is_none() {
        let _ = write!(text, " --entry {}", exported.first().map_or("FUNCTION", String::as_str));
    }
    let _ = writeln!(text, " {}", guest.display());
    (text, 0)
}
