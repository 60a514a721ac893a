//! `run` and `report`: one scenario, in words and pictures.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use sim::engine::Outcome;
use sim::expect::judge;
use sim::report::{html, svg, table, timeline};

use super::load::{self, Loaded};
use super::{Failure, OUTPUT, Overrides};

#[derive(Args)]
pub(crate) struct Options {
    /// The scenario: a path, or the name of one in sim/scenarios
    scenario: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Print every run instead of the summary
    #[arg(long)]
    timeline: bool,
    /// Write a self-contained HTML report
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the timeline as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the SVG only up to this time, for example 400ms
    #[arg(long, value_name = "TIME", value_parser = milliseconds, requires = "svg")]
    until: Option<u64>,
    /// Write a Perfetto trace (open it in ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a Chrome JSON trace
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ReportOptions {
    /// The scenario (default: all of them)
    scenario: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn run(options: &Options) -> Result<ExitCode, Failure> {
    let loaded = load::load(&options.scenario, &options.overrides)?;
    let outcome = loaded.run()?;
    let summary = loaded.summary(&outcome);
    let trace = outcome.trace.as_ref().expect("runs from the command line are recorded");
    if options.timeline {
        print!("{}", timeline::golden(trace));
    } else {
        print!("{}", table::summary(&summary));
    }
    println!("schedule digest {:016x}", outcome.order_hash);
    let met = print_verdicts(&loaded, &outcome);
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => write_file(path, text().as_bytes()),
        None => Ok(()),
    };
    write(&options.html, &|| html::page(trace, &summary))?;
    let window = options.until.map(|to_ns| svg::Window { from_ns: 0, to_ns });
    write(&options.svg, &|| svg::timeline(trace, window))?;
    if let Some(path) = &options.trace {
        trace::perfetto::write(trace, &mut create(path)?)?;
        println!("wrote {}", path.display());
    }
    if let Some(path) = &options.chrome {
        trace::chrome::write(trace, &mut create(path)?)?;
        println!("wrote {}", path.display());
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn report(options: &ReportOptions) -> Result<ExitCode, Failure> {
    let paths = match &options.scenario {
        Some(path) => vec![path.clone()],
        None => load::all()?,
    };
    let mut all_met = true;
    for path in paths {
        let loaded = load::load(&path, &options.overrides)?;
        let outcome = loaded.run()?;
        write_report(&loaded, &outcome)?;
        all_met &= print_verdicts(&loaded, &outcome);
    }
    Ok(if all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the HTML report of a run under `target/sim`.
pub(super) fn write_report(loaded: &Loaded, outcome: &Outcome) -> Result<PathBuf, Failure> {
    let name = loaded.path.file_stem().unwrap_or_default();
    let path = Path::new(OUTPUT).join(name).with_extension("html");
    let trace = outcome.trace.as_ref().expect("runs from the command line are recorded");
    write_file(&path, html::page(trace, &loaded.summary(outcome)).as_bytes())?;
    Ok(path)
}

/// Prints what was expected and found; returns whether all expectations were met.
pub(super) fn print_verdicts(loaded: &Loaded, outcome: &Outcome) -> bool {
    let verdicts = judge(&loaded.scenario, outcome);
    // Colours only on a terminal.
    let is_seen = std::io::stdout().is_terminal();
    for verdict in &verdicts {
        let word = match (verdict.met, is_seen) {
            (true, false) => "met   ",
            (false, false) => "MISSED",
            (true, true) => "\x1b[32mmet   \x1b[0m",
            (false, true) => "\x1b[1;31mMISSED\x1b[0m",
        };
        println!("{word} line {}: expect {}  (found {})", verdict.line, verdict.expected, verdict.found);
    }
    verdicts.iter().all(|verdict| verdict.met)
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let number =
        text.strip_suffix("ms").and_then(|number| number.parse::<u64>().ok()).filter(|number| *number > 0);
    number
        .and_then(|number| number.checked_mul(1_000_000))
        .ok_or_else(|| format!("found `{text}`, expected whole milliseconds such as 400ms"))
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(BufWriter::new(file))
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut file = create(path)?;
    file.write_all(bytes)?;
    file.flush()?;
    println!("wrote {}", path.display());
    Ok(())
}

/// One line on a terminal that shows how far a long run is; nothing elsewhere, nothing for short runs.
pub(super) struct Progress {
    total_ns: u64,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(super) fn new(total_ns: u64) -> Progress {
        Progress { total_ns, started: Instant::now(), shown: None }
    }

    pub(super) fn show(&mut self, (now_ns, events): (u64, u64)) {
        let long = self.started.elapsed() > Duration::from_secs(1);
        let due = self.shown.is_none_or(|shown| shown.elapsed() > Duration::from_millis(200));
        if long && due && std::io::stderr().is_terminal() {
            self.shown = Some(Instant::now());
            let percent = now_ns as f64 * 100.0 / self.total_ns as f64;
            eprint!("\r{percent:5.1} %  {events} events");
        }
    }

    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r{:40}\r", "");
        }
    }
}
