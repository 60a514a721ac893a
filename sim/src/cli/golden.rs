//! Golden timelines: what each scenario does, recorded in a file beside it.

use std::fs;
use std::process::ExitCode;

use clap::Args;
use sim::expect::judge;
use sim::report::timeline;

use super::load;
use super::{Failure, Overrides};

#[derive(Args)]
pub(crate) struct Options {
    /// Compare with the files (the default)
    #[arg(long)]
    check: bool,
    /// Write the files anew: read the difference before you commit it
    #[arg(long, conflicts_with = "check")]
    bless: bool,
}

pub(super) fn golden(options: &Options) -> Result<ExitCode, Failure> {
    let (mut passed, mut failed) = (0u32, 0u32);
    for path in load::all()? {
        let loaded = load::load(&path, &Overrides::default())?;
        let outcome = loaded.run()?;
        let trace = outcome.trace.as_ref().expect("golden runs are recorded");
        let text = timeline::golden(trace);
        let golden = path.with_extension("golden");
        let mut problems: Vec<String> = judge(&loaded.scenario, &outcome)
            .into_iter()
            .filter(|verdict| !verdict.met)
            .map(|verdict| {
                format!("line {}: expect {} (found {})", verdict.line, verdict.expected, verdict.found)
            })
            .collect();
        if options.bless {
            fs::write(&golden, &text).map_err(|error| format!("{}: {error}", golden.display()))?;
        } else {
            let written = fs::read_to_string(&golden).unwrap_or_default();
            problems.extend(difference(&written, &text));
        }
        if problems.is_empty() {
            passed += 1;
        } else {
            failed += 1;
            println!("{}:", path.display());
            problems.iter().for_each(|problem| println!("  {problem}"));
        }
    }
    if failed > 0 && !options.bless {
        println!("If the change is meant, write them anew with: make golden-bless");
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first line that differs.
fn difference(golden: &str, now: &str) -> Option<String> {
    if golden == now {
        return None;
    }
    let mut golden = golden.lines();
    for (at, line) in now.lines().enumerate() {
        match golden.next() {
            Some(same) if same == line => {}
            other => {
                let golden = other.unwrap_or("(the golden timeline ends here)");
                return Some(format!("line {}: golden `{golden}`, now `{line}`", at + 1));
            }
        }
    }
    Some(format!("golden goes on with `{}`", golden.next().unwrap_or_default()))
}
