//! The parts of `bench-runtime`: who takes part and how it is built ([`contestant`]), one run of one of them
//! ([`process`]), what is measured ([`case`]), and what we want to reach ([`target`]).
//!
//! Every contestant is a program with one protocol, whatever language it is written in:
//! `<program> <workload> <workers> [size]` prints one line for each figure, `<figure> <value> <unit>`, and exits with 0.
//! Exit code 3 with a line on stderr says that it cannot do this workload, and why. Any other end is a failed run.

pub mod case;
pub mod checks;
pub mod contestant;
pub mod process;
pub mod target;
