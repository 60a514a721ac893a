//! The simulator of the scheduling core: scenarios in, timelines, tables, plots and traces out.
//!
//! `scenario` reads workloads from small text files, `engine` runs them on N simulated CPUs around the core of `sched`,
//! `expect` judges them, `report` shows what happened; `fuzz` and `smp` make workloads of their own. Nothing in here decides
//! which thread runs.
#![forbid(unsafe_code)]

pub mod engine;
pub mod expect;
pub mod fuzz;
pub mod large;
pub mod report;
pub mod scenario;
pub mod smp;
