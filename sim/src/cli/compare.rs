//! `compare`: the same scenario under both policies, or on several CPU counts, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use sim::report::svg::{BarChart, Unit};
use sim::report::table::Table;
use sim::report::units::{Human, Percent};
use sim::report::{Summary, svg};

use super::play::write_file;
use super::{Failure, OUTPUT, Overrides, load};

#[derive(Args)]
pub(crate) struct Options {
    /// The scenario (default: all of them)
    scenario: Option<PathBuf>,
    /// CPU counts to compare, for example 1,2,4 (default: compare the policies instead)
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
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
    let on = |cpus: &u32| (format!("{cpus} CPUs"), Overrides { cpus: Some(*cpus), ..Overrides::default() });
    options.cpus.iter().map(on).collect()
}

fn compare_one(path: &Path, options: &Options) -> Result<(), Failure> {
    let variants = variants(options);
    let mut summaries: Vec<Summary> = Vec::new();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for (label, overrides) in &variants {
        let loaded = load::load(path, overrides)?;
        let outcome = loaded.run()?;
        let trace = outcome.trace.as_ref().expect("runs from the command line are recorded");
        let file = options.out.join(format!("{name}-{}.svg", label.replace(' ', "-")));
        write_file(&file, svg::timeline(trace, None).as_bytes())?;
        summaries.push(loaded.summary(&outcome));
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
