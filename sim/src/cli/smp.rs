//! `smp`: the matrix of F-14 as a table, a TSV file and a plot.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use sim::report::svg::{LineChart, Series, Unit};
use sim::report::table::Table;
use sim::report::units::{Human, Percent};
use sim::scenario::PolicyName;
use sim::smp::{Workload, run};

use super::play::write_file;
use super::{Failure, OUTPUT};

#[derive(Args)]
pub(crate) struct Options {
    /// The CPU counts
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u32).range(1..=256))]
    cpus: Vec<u32>,
    /// The ordering policy: wfq or eevdf
    #[arg(long, default_value = "wfq")]
    policy: String,
}

pub(super) fn smp(options: &Options) -> Result<ExitCode, Failure> {
    let policy = PolicyName::from_name(&options.policy)
        .ok_or_else(|| format!("--policy: found `{}`, expected wfq or eevdf", options.policy))?;
    let mut table = Table::new(&["workload", "CPUs", "time", "speed-up", "moves", "overhead"], 1);
    let mut tsv = String::from("workload\tcpus\telapsed_ns\tspeed_up\tmoves\toverhead\n");
    let mut series = Vec::new();
    for workload in Workload::ALL {
        let mut points = Vec::new();
        let mut first = None;
        for &cpus in &options.cpus {
            let cell = run(workload, cpus, policy)?;
            // Relative to the first count that was asked for, as if the work scaled perfectly up to that one.
            let (base_ns, base_cpus) = *first.get_or_insert((cell.elapsed_ns, cpus));
            let speed_up = base_ns as f64 * f64::from(base_cpus) / cell.elapsed_ns as f64;
            points.push((f64::from(cpus), speed_up));
            table.rows.push(vec![
                workload.name().into(),
                cpus.to_string(),
                Human(cell.elapsed_ns).to_string(),
                format!("{speed_up:.2}"),
                cell.moves.to_string(),
                Percent(cell.overhead).to_string(),
            ]);
            writeln!(
                tsv,
                "{}\t{cpus}\t{}\t{speed_up:.3}\t{}\t{:.6}",
                workload.name(),
                cell.elapsed_ns,
                cell.moves,
                cell.overhead
            )?;
        }
        series.push(Series { name: workload.name().into(), points, dashed: false });
    }
    let ideal = options.cpus.iter().map(|cpus| (f64::from(*cpus), f64::from(*cpus))).collect();
    series.push(Series { name: "ideal".into(), points: ideal, dashed: false });
    println!("{}", table.text());
    let chart = LineChart {
        title: format!("Speed-up of six parallel workloads ({policy})"),
        x_label: "CPUs".into(),
        y_label: "speed-up".into(),
        x_unit: Unit::Plain,
        y_unit: Unit::Plain,
        series,
    };
    write_file(&Path::new(OUTPUT).join(format!("smp-{policy}.svg")), chart.svg().as_bytes())?;
    write_file(&Path::new(OUTPUT).join(format!("smp-{policy}.tsv")), tsv.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
