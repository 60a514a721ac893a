//! The simulator of the scheduling core: scenarios in, timelines, tables, plots and traces out.
//!
//! `scenario` reads workloads from small text files, `engine` runs them on N simulated CPUs around the core of `sched`, and
//! `report` shows what happened. Nothing in here decides who runs.
#![forbid(unsafe_code)]

pub mod engine;
pub mod report;
pub mod scenario;
