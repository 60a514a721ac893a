//! `tour`: what a newcomer sees first. A few scenarios, each with a sentence, a picture in text, and a page to open.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use sim::report::table;
use trace::{RunKind, Trace};

use super::play::{print_verdicts, write_report};
use super::{Failure, Overrides, load};

#[derive(Args)]
pub(crate) struct Options {
    /// Do not wait for Enter between the stops
    #[arg(long)]
    straight: bool,
}

/// The stops: a scenario, what it shows, and how much of it to draw.
const STOPS: [(&str, &str, u64); 5] = [
    (
        "two-to-one",
        "Two threads that never stop computing, on one CPU. A weighs twice as much as B, so it gets twice the time.",
        150_000_000,
    ),
    (
        "short-sleeper",
        "A thread that wakes often and runs briefly, beside four that never stop. It need not wait for their slices.",
        100_000_000,
    ),
    (
        "budget",
        "CPU time as a right: a thread with 2 ms in every 10 ms gets exactly that, in time, beside heavy competition.",
        60_000_000,
    ),
    (
        "three-on-two",
        "Three equal threads, two CPUs. Whichever way they lie, one CPU has two of them: the scheduler keeps moving one.",
        200_000_000,
    ),
    (
        "call-chain",
        "A client calls a server. The server takes over the CPU on the spot, for the rest of the client's slice.",
        24_000_000,
    ),
];

pub(super) fn tour(options: &Options) -> Result<ExitCode, Failure> {
    let waits = !options.straight && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    println!("capOS: CPU time as a capability. The scheduling core, in the simulator.\n");
    let folder = load::folder()?;
    let mut all_met = true;
    for (at, (name, about, shown_ns)) in STOPS.iter().enumerate() {
        let path = folder.join(name).with_extension("scn");
        let loaded = load::load(&path, &Overrides::default())?;
        let outcome = loaded.run()?;
        let trace = outcome.trace.as_ref().expect("the tour is recorded");
        println!("{} of {}: {}\n{about}\n", at + 1, STOPS.len(), loaded.scenario.title);
        print!("{}", draw(trace, *shown_ns));
        println!("\n{}", table::threads(&loaded.summary(&outcome)).text());
        all_met &= print_verdicts(&loaded, &outcome);
        write_report(&loaded, &outcome)?;
        println!();
        if waits && at + 1 < STOPS.len() {
            print!("Enter for the next stop, q to leave ");
            std::io::stdout().flush()?;
            let mut answer = String::new();
            std::io::stdin().lock().read_line(&mut answer)?;
            if answer.trim().eq_ignore_ascii_case("q") {
                break;
            }
        }
    }
    println!("Open a report in a browser: each page has a timeline to zoom into.");
    println!(
        "Next: `make help`, `make sim SCENARIO={}`, docs/scenarios.md.",
        folder.join("two-to-one.scn").display()
    );
    Ok(if all_met && Path::new(super::OUTPUT).is_dir() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// With the name of the CPU before it and a bar behind, a line has a hundred columns.
const COLUMNS: usize = 90;

/// One line a CPU: the letter of the thread that ran most in each column.
fn draw(trace: &Trace, shown_ns: u64) -> String {
    let shown_ns = shown_ns.min(trace.end_ns).max(1);
    let letter = |thread: u32| char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[thread as usize % 26]);
    let mut text = String::new();
    let runs = trace.runs();
    for cpu in 0..trace.cpus {
        let mut line = format!("  cpu{cpu:<2} |");
        for column in 0..COLUMNS as u64 {
            let (from, to) = (shown_ns * column / COLUMNS as u64, shown_ns * (column + 1) / COLUMNS as u64);
            let overlap = |run: &trace::Run| run.end_ns.min(to).saturating_sub(run.start_ns.max(from));
            let most = runs.iter().filter(|run| run.cpu == cpu).max_by_key(|run| overlap(run));
            line.push(match most {
                Some(run) if run.kind == RunKind::Thread => run.thread.map_or(' ', letter),
                Some(run) if run.kind == RunKind::System => '-',
                _ => '.',
            });
        }
        text += &format!("{line}|\n");
    }
    let names: Vec<String> =
        trace.threads.iter().take(8).map(|info| format!("{} {}", letter(info.id), info.name)).collect();
    text += &format!("        0 to {} ms: {}, . idle\n", shown_ns / 1_000_000, names.join(", "));
    text
}
