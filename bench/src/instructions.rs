//! Counting instructions: this program, run again under valgrind in a mode that does a given number of steps.
//!
//! Two runs that differ in the number of steps only; the difference, divided by the steps, is what one step takes, without
//! start-up, set-up and warm-up. Unlike time it is the same on a busy machine.

use std::env;
use std::fmt;
use std::io;
use std::process::Command;

/// Why there is no count.
#[derive(Debug)]
pub enum CountError {
    /// valgrind is not installed.
    Missing,
    /// It could not be started, or it failed: what it said.
    Failed(String),
}

impl fmt::Display for CountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CountError::Missing => f.write_str("valgrind missing: apt-get install valgrind"),
            CountError::Failed(why) => write!(f, "valgrind failed: {why}"),
        }
    }
}

impl std::error::Error for CountError {}

/// Instructions for each of `steps` steps; `arguments` makes the arguments of this program for a number of steps.
pub fn per_step(steps: usize, arguments: impl Fn(usize) -> Vec<String>) -> Result<f64, CountError> {
    let without = total(&arguments(0))?;
    let with = total(&arguments(steps))?;
    Ok(with.saturating_sub(without) as f64 / steps as f64)
}

fn total(arguments: &[String]) -> Result<u64, CountError> {
    let program = env::current_exe().map_err(|error| CountError::Failed(error.to_string()))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CountError::Missing,
            _ => CountError::Failed(error.to_string()),
        })?;
    let said = String::from_utf8_lossy(&output.stderr);
    match collected(&said) {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(CountError::Failed(format!("{}, {}", output.status, said.trim()))),
    }
}

/// The number in callgrind's line `==123== Collected : 4567`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_total() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n==7== I   refs:      123,456\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Command: x\n"), None);
    }
}
