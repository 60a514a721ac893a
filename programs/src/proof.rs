//! How a proof reports: readable lines, then `proof <name>: ok` or `proof <name>: FAILED <why>`, and exit code 0 or 1.

use alloc::string::String;
use core::fmt::{self, Write};

use rt::thread::JoinError;
use rt::{Error, println};

/// Why a proof failed.
#[derive(Debug)]
pub struct Failure(pub String);

/// What each step of a proof returns.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl fmt::Display) -> Failure {
        let mut failure = Failure(String::new());
        // Writing to a string does not fail.
        let _ = write!(failure.0, "{text}");
        failure
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error)
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Failure {
        Failure::new(error)
    }
}

/// Says what was being done when something failed.
pub trait Doing<T> {
    /// Puts `what` in front of the error.
    fn doing(self, what: &str) -> Outcome<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: &str) -> Outcome<T> {
        self.map_err(|error| Failure::new(format_args!("{what}: {error}")))
    }
}

/// Fails the step unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return ::core::result::Result::Err($crate::proof::Failure::new(::core::format_args!($($text)*)));
        }
    };
}

/// Runs the proof `name` and returns the program's exit code.
pub fn prove(name: &str, run: impl FnOnce() -> Outcome) -> i64 {
    match run() {
        Ok(()) => {
            println!("proof {name}: ok");
            0
        }
        Err(Failure(why)) => {
            println!("proof {name}: FAILED {why}");
            1
        }
    }
}

/// Runs one step of a proof and, if it succeeds, prints what the step has shown.
pub fn step(what: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    run().map_err(|Failure(why)| Failure::new(format_args!("{what}: {why}")))?;
    println!("  {what}: ok");
    Ok(())
}
