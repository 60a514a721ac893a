//! What can be typed, and what it means.

#[macro_use]
mod out;

mod compare;
mod fuzz;
mod golden;
mod load;
mod play;
mod smp;
mod tour;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Any error, already in words for the user.
pub(crate) type Failure = Box<dyn Error>;

/// See threads with weights, latency classes and CPU budgets being scheduled on 1 to 256 simulated CPUs.
#[derive(Parser)]
#[command(name = "sim", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sim tour                                    a guided tour (this is what `make tour` plays)
  sim run sim/scenarios/two-to-one.scn        one scenario: table and verdicts
  sim run FILE --html out.html                the same, as a page with a timeline to zoom into
  sim run FILE --policy eevdf --cpus 4        under another policy, on more CPUs
  sim compare FILE                            WFQ beside EEVDF
  sim compare FILE --cpus 1,2,4,8             CPU counts side by side
  sim smp                                     six parallel workloads on 1 to 64 CPUs
  sim fuzz --seeds 1000                       random workloads with injected faults
  sim replay --seed 17                        one of them again, with a report

Scenarios are small text files: see docs/scenarios.md.";

#[derive(Subcommand)]
enum Command {
    /// Play the guided tour: a few scenarios with pictures
    Tour(tour::Options),
    /// Run one scenario
    Run(play::Options),
    /// Run a scenario under both policies, or on several CPU counts, side by side
    Compare(compare::Options),
    /// Run the six parallel workloads on 1 to 64 CPUs (F-14)
    Smp(smp::Options),
    /// Run random workloads with injected faults, checking every invariant at every step
    Fuzz(fuzz::FuzzOptions),
    /// Run one fuzz seed again and write down what happened
    Replay(fuzz::ReplayOptions),
    /// Check (or write) the golden timelines of the scenarios
    Golden(golden::Options),
    /// Write an HTML report of each scenario
    Report(play::ReportOptions),
    /// List the scenarios
    List,
}

impl Cli {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Tour(options) => tour::tour(&options),
            Command::Run(options) => play::run(&options),
            Command::Compare(options) => compare::compare(&options),
            Command::Smp(options) => smp::smp(&options),
            Command::Fuzz(options) => fuzz::fuzz(&options),
            Command::Replay(options) => fuzz::replay(&options),
            Command::Golden(options) => golden::golden(&options),
            Command::Report(options) => play::report(&options),
            Command::List => load::list(),
        }
    }
}

/// Where pictures and reports go unless a path is given.
pub(crate) const OUTPUT: &str = "target/sim";

/// What may be changed about a scenario from outside.
#[derive(Args, Clone, Default)]
pub(crate) struct Overrides {
    /// The ordering policy: wfq or eevdf (default: the scenario's)
    #[arg(long)]
    policy: Option<String>,
    /// How many CPUs, 1 to 256 (default: the scenario's)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    cpus: Option<u32>,
    /// The seed of everything random (default: the scenario's)
    #[arg(long)]
    seed: Option<u64>,
    /// A file of costs like sim/costs.txt
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
}
