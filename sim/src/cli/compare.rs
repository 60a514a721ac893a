//! `compare`: the same scenario under both policies, or on several CPU counts, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sim::report::svg::{BarChart, LineChart, Series, Unit};
use sim::report::table::Table;
use sim::report::units::{Human, Percent};
use sim::report::{Summary, svg};

use super::play::{print_verdicts, write_file};
use super::{Failure, OUTPUT, Overrides, load};

#[derive(Args)]
pub(crate) struct Options {
    /// The scenario (default: all of them)
    scenario: Option<PathBuf>,
    /// CPU counts to compare, for example 1,2,4 (default: compare the policies instead)
    #[arg(long, value_delimiter = ',', value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=256))]
    cpus: Vec<u32>,
    /// Where to put the pictures
    #[arg(long, value_name = "FOLDER", default_value = OUTPUT)]
    out: PathBuf,
}

pub(super) fn compare(options: &Options) -> Result<ExitCode, Failure> {
    let paths = match &options.scenario {
        Some(path) => vec![path.clone()],
        None => load::all()?,
    };
    for path in paths {
        compare_one(&path, options)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn variants(options: &Options) -> Vec<(String, Overrides)> {
    if options.cpus.is_empty() {
        return ["wfq", "eevdf"]
            .map(|policy| {
                (policy.to_string(), Overrides { policy: Some(policy.into()), ..Overrides::default() })
            })
            .into();
    }
    let on = |cpus: &u32| {
        (
            format!("{cpus} CPU{}", if *cpus == 1 { "" } else { "s" }),
            Overrides { cpus: Some(*cpus), ..Overrides::default() },
        )
    };
    options.cpus.iter().map(on).collect()
}

/// Points of the line that shows how far a thread is ahead of its fluid share.
const AHEAD_POINTS: u64 = 400;

/// Run time so far minus the fluid share of the time so far, in ns, over time.
fn ahead(trace: &trace::Trace, thread: u32, share: f64) -> Vec<(f64, f64)> {
    let runs: Vec<_> = trace.runs().into_iter().filter(|run| run.thread == Some(thread)).collect();
    let at = |point: u64| {
        let time_ns = trace.end_ns * point / AHEAD_POINTS;
        let ran: u64 = runs.iter().map(|run| run.end_ns.min(time_ns).saturating_sub(run.start_ns)).sum();
        (time_ns as f64, ran as f64 - share * time_ns as f64)
    };
    (0..=AHEAD_POINTS).map(at).collect()
}

fn compare_one(path: &Path, options: &Options) -> Result<(), Failure> {
    let variants = variants(options);
    let mut lines: Vec<Series> = Vec::new();
    let mut summaries: Vec<Summary> = Vec::new();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for (label, overrides) in &variants {
        let loaded = load::load(path, overrides)?;
        let outcome = loaded.run()?;
        let trace = outcome.trace.as_ref().expect("runs from the command line are recorded");
        let file = options.out.join(format!("{name}-{}.svg", label.replace(' ', "-")));
        write_file(&file, svg::timeline(trace, None).as_bytes())?;
        if !loaded.scenario.expects.is_empty() {
            println!("{label}:");
            print_verdicts(&loaded, &outcome);
        }
        let summary = loaded.summary(&outcome);
        // The first thread stands for all: scenarios name the interesting one first.
        if let Some(share) = summary.threads.first().and_then(|row| row.expected_share) {
            let points = ahead(trace, trace.threads[0].id, share);
            lines.push(Series {
                name: format!("{} under {label}", summary.threads[0].name),
                points,
                dashed: false,
            });
        }
        summaries.push(summary);
    }
    if !lines.is_empty() {
        let chart = LineChart {
            title: format!("{}: ahead of the fluid share", summaries[0].title),
            x_label: "time".into(),
            y_label: "ahead".into(),
            x_unit: Unit::Time,
            y_unit: Unit::Time,
            series: lines,
        };
        write_file(&options.out.join(format!("{name}-ahead.svg")), chart.svg().as_bytes())?;
    }
    println!("\n{}", summaries[0].title);
    let mut head = vec!["thread".to_string()];
    for column in ["share", "wake p50", "wake p99", "preempted"] {
        head.extend(variants.iter().map(|(label, _)| format!("{column} {label}")));
    }
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    let rows = summaries[0].threads.len();
    for at in 0..rows {
        let each = |show: &dyn Fn(&sim::report::ThreadRow) -> String| -> Vec<String> {
            summaries.iter().map(|summary| summary.threads.get(at).map_or("-".into(), show)).collect()
        };
        let mut row = vec![summaries[0].threads[at].name.clone()];
        row.extend(each(&|thread| Percent(thread.share).to_string()));
        row.extend(each(&|thread| Human(thread.wake_p50_ns).to_string()));
        row.extend(each(&|thread| Human(thread.wake_p99_ns).to_string()));
        row.extend(each(&|thread| thread.preemptions.to_string()));
        table.rows.push(row);
    }
    println!("{}", table.text());
    let chart =
        |title: &str, y_label: &str, unit: Unit, value: &dyn Fn(&sim::report::ThreadRow) -> f64| BarChart {
            title: format!("{}: {title}", summaries[0].title),
            y_label: y_label.into(),
            y_unit: unit,
            series: variants.iter().map(|(label, _)| label.clone()).collect(),
            groups: (0..rows.min(12))
                .map(|at| {
                    let values = summaries.iter().map(|s| s.threads.get(at).map_or(0.0, value)).collect();
                    (summaries[0].threads[at].name.clone(), values)
                })
                .collect(),
        };
    let shares = chart("share of a CPU", "share", Unit::Share, &|thread| thread.share);
    let waits = chart("wake-to-run, p99", "wait", Unit::Time, &|thread| thread.wake_p99_ns as f64);
    write_file(&options.out.join(format!("{name}-shares.svg")), shares.svg().as_bytes())?;
    write_file(&options.out.join(format!("{name}-waits.svg")), waits.svg().as_bytes())
}
