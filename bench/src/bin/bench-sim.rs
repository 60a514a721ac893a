//! `make bench-sim`: how many scheduling events a second the simulator handles on one core, with 256 CPUs and 100,000 threads.
//!
//! A scheduling event is one event of the simulation that reached the core: a wake-up, a timer, a step of a thread that changes who
//! runs, an interrupt, a balance step. The peer is the requirement: a million a second within 256 MiB.

use std::process::ExitCode;
use std::time::Instant;

use bench::report::{Better, Report, Row, Sample};
use sim::engine::Engine;
use sim::large;

const REQUIRED_EVENTS: f64 = 1e6;
const REQUIRED_MIB: f64 = 256.0;

fn main() -> ExitCode {
    let reps = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => 3,
        [flag, number] if flag == "--reps" => match number.parse() {
            Ok(reps) if reps > 0 => reps,
            _ => return refuse(&format!("--reps: found `{number}`, expected a number above 0")),
        },
        other => return refuse(&format!("found `{}`, expected --reps N", other.join(" "))),
    };
    let scenario = large::scenario(100_000, 2_000_000_000);
    let mut rates = Vec::new();
    let mut events = 0;
    for rep in 1..=reps {
        eprintln!("run {rep} of {reps}: {}", scenario.title);
        let engine = match Engine::new(&scenario, large::options(&scenario)) {
            Ok(engine) => engine,
            Err(error) => return refuse(&error.to_string()),
        };
        let start = Instant::now();
        match engine.run() {
            Ok(outcome) => events = outcome.counters.events,
            Err(error) => return refuse(&error.to_string()),
        }
        rates.push(events as f64 / start.elapsed().as_secs_f64());
    }
    println!("{events} events a run");
    let mut report = Report::new("bench-sim");
    report.push(Row {
        name: "events-per-second".into(),
        ours: Sample::of(&rates),
        peer: "required".into(),
        theirs: Sample::exact(REQUIRED_EVENTS),
        unit: "events/s",
        better: Better::Higher,
    });
    match peak_memory_mib() {
        Some(peak) => report.push(Row {
            name: "peak-memory".into(),
            ours: Sample::exact(peak),
            peer: "required".into(),
            theirs: Sample::exact(REQUIRED_MIB),
            unit: "MiB",
            better: Better::Lower,
        }),
        None => println!("no memory row: /proc/self/status does not tell VmHWM"),
    }
    match report.write() {
        Ok(path) => {
            println!("rows: {}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => refuse(&error.to_string()),
    }
}

fn peak_memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("bench-sim: {why}");
    ExitCode::FAILURE
}
