//! `fuzz` and `replay`: random workloads, and one of them again.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use sim::engine::Engine;
use sim::fuzz::{run_seed, workload};
use sim::report::{Summary, html, table};

use super::play::write_file;
use super::{Failure, OUTPUT};

#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// How many seeds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first one
    #[arg(long, default_value_t = 0)]
    first: u64,
}

#[derive(Args)]
pub(crate) struct ReplayOptions {
    /// The seed
    #[arg(long)]
    seed: u64,
}

pub(super) fn fuzz(options: &FuzzOptions) -> Result<ExitCode, Failure> {
    let terminal = std::io::stderr().is_terminal();
    let (mut events, mut failures, mut injected) = (0, Vec::new(), 0);
    for seed in options.first..options.first.saturating_add(options.seeds) {
        match run_seed(seed) {
            Ok(outcome) => {
                events += outcome.counters.events;
                injected += outcome.counters.injected;
            }
            Err(failure) => {
                println!("{failure}");
                failures.push(failure.seed);
            }
        }
        let done = seed - options.first + 1;
        if terminal && done.is_multiple_of(64) {
            eprint!("\r{done} of {} seeds, {events} events", options.seeds);
        }
    }
    if terminal {
        eprint!("\r{:60}\r", "");
    }
    println!(
        "{} seeds, {events} events checked at every step, {injected} faults injected, {} failures",
        options.seeds,
        failures.len()
    );
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn replay(options: &ReplayOptions) -> Result<ExitCode, Failure> {
    let (scenario, mut engine_options) = workload(options.seed);
    engine_options.record = true;
    let base = Path::new(OUTPUT).join(format!("fuzz-{}", options.seed));
    let faults = engine_options.faults;
    let injected = format!(
        "in a thousand: {} lost ticks, {} late timers, {} late interrupts, {} busy locks",
        faults.lost_tick, faults.late_timer, faults.late_ipi, faults.busy_lock
    );
    let note = format!(
        "# The workload of fuzz seed {}. Injected faults ({injected}) are not in this file: only\n# `make sim-replay SEED={}` makes the same run.\n\n",
        options.seed, options.seed
    );
    write_file(&base.with_extension("scn"), (note + &scenario.to_string()).as_bytes())?;
    println!("faults {injected}");
    match Engine::new(&scenario, engine_options).and_then(Engine::run) {
        Ok(outcome) => {
            let trace = outcome.trace.as_ref().expect("replays are recorded");
            let mut summary = Summary::from_trace(trace);
            summary.policy = scenario.policy.to_string();
            summary.seed = options.seed;
            summary.command = format!("make sim-replay SEED={}", options.seed);
            summary.about = "A random workload with injected faults.".into();
            print!("{}", table::summary(&summary));
            write_file(&base.with_extension("html"), html::page(trace, &summary).as_bytes())?;
            println!("schedule digest {:016x}\nno invariant was broken", outcome.order_hash);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}
