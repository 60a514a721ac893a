//! One run of one contestant: its process under a time limit, and the figures that it prints.

use super::contestant::PIN;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The slowest run of all, a million fibers of Boost with their stacks, takes ten seconds.
const LIMIT: Duration = Duration::from_secs(90);
/// How often we look whether it has ended: seldom enough not to disturb what is measured.
const LOOK: Duration = Duration::from_millis(20);
/// The exit code that says "not supported".
const UNSUPPORTED: i32 = 3;

/// One printed line.
#[derive(Clone, Debug, PartialEq)]
pub struct Printed {
    /// What it is.
    pub figure: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// The program says that it cannot: no use in asking again.
    Unsupported(String),
    /// The run ended otherwise, or not at all.
    Failed(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Unsupported(why) => write!(f, "not supported: {why}"),
            Why::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// Runs `program` once, with this variable set in its environment, if there is one.
pub fn run(
    program: &Path,
    workload: &str,
    workers: usize,
    variable: Option<&str>,
) -> Result<Vec<Printed>, Why> {
    let mut command = Command::new(program);
    command.arg(workload).arg(workers.to_string());
    // What somebody else set must not make the default column another one.
    command.env_remove(PIN);
    if let Some(variable) = variable {
        command.env(variable, "1");
    }
    let ended = finish(&mut command, LIMIT).map_err(Why::Failed)?;
    match ended.code {
        Some(0) => parse(&ended.stdout).map_err(Why::Failed),
        Some(UNSUPPORTED) => Err(Why::Unsupported(last_line(&ended.stderr))),
        Some(code) => Err(Why::Failed(format!("exit code {code}: {}", last_line(&ended.stderr)))),
        None => Err(Why::Failed(format!("ended by a signal: {}", last_line(&ended.stderr)))),
    }
}

/// A process that has ended.
pub struct Ended {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// Runs a command to its end, or kills it at the limit.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Ended, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
    // Both pipes are read all along: a program that fills one must not wait for us.
    let readers = [
        child.stdout.take().map(|pipe| thread::spawn(move || read(pipe))),
        child.stderr.take().map(|pipe| thread::spawn(move || read(pipe))),
    ];
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if start.elapsed() < limit => thread::sleep(LOOK),
            Ok(None) => break Err(format!("did not end within {} s", limit.as_secs())),
            Err(error) => break Err(error.to_string()),
        }
    };
    if status.is_err() {
        // It may have ended by itself in the meantime, which is as good.
        let _ = child.kill();
        let _ = child.wait();
    }
    let [stdout, stderr] =
        readers.map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
    Ok(Ended { code: status?.code(), stdout, stderr })
}

fn read(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last line that says something.
pub fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("note: "));
    line.unwrap_or("no message").trim().to_string()
}

/// The lines of the protocol.
fn parse(stdout: &str) -> Result<Vec<Printed>, String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (figure, value, unit) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        words.next().is_none().then(|| Printed { figure: figure.to_string(), value, unit: unit.to_string() })
    };
    let printed: Result<Vec<Printed>, String> = stdout
        .lines()
        .map(|text| line(text).ok_or(format!("`{text}` is not `<figure> <value> <unit>`")))
        .collect();
    printed.and_then(|lines| if lines.is_empty() { Err("printed nothing".to_string()) } else { Ok(lines) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Ended, String> {
        finish(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn lines() {
        let printed = parse("yield 72.4 ns\nother 1 M/s\n").unwrap();
        assert_eq!(printed[0], Printed { figure: "yield".into(), value: 72.4, unit: "ns".into() });
        assert_eq!(printed.len(), 2);
        for wrong in ["", "yield 72.4", "yield fast ns", "yield 72.4 ns ns"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ends() {
        let ended = shell("echo out; echo why >&2; exit 3", LIMIT).unwrap();
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(3), "out\n", "why\n"));
        assert_eq!(shell("kill -9 $$", LIMIT).unwrap().code, None);
        // More than a pipe holds.
        assert_eq!(shell("head -c 300000 /dev/zero", LIMIT).unwrap().stdout.len(), 300_000);
        let late = shell("exec sleep 60", Duration::from_millis(50)).err().unwrap();
        assert!(late.contains("did not end"), "{late}");
        assert!(run(Path::new("no/such/program"), "yield", 1, None).is_err());
        assert_eq!(last_line("a\nb\nnote: c\n\n"), "b");
    }
}
