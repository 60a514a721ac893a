//! `make bench-runtime`: our runtime beside tokio, async-executor, may, Go, Boost.Fiber, rayon and others, workload by
//! workload, each contestant a program of its own. The protocol is described in `bench::runtime`, the workloads in
//! `bench::runtime::case`, the targets in `bench::runtime::target`.

use std::process::ExitCode;

use bench::report::{Report, Row, Sample};
use bench::runtime::case::{CASES, Case, Figure, Kind};
use bench::runtime::checks;
use bench::runtime::contestant::{self, Contestant, OURS, PINNED};
use bench::runtime::process::{Printed, Why, run};
use bench::runtime::target::{Measured, TARGETS};

const USAGE: &str = "bench-runtime [--reps N] [--only WORKLOAD[,WORKLOAD..]]
  --reps  runs of each program that a figure is the median of (5)
  --only  these workloads only: switch, yield, spawn-join, spawn-join-one, skynet, parked, pingpong, mpmc,
          steal-searching, steal-parked, scaling, timeouts, hog, check (instructions of budget checks)";

struct Options {
    reps: usize,
    only: Vec<String>,
}

impl Options {
    fn cases(&self) -> impl Iterator<Item = &'static Case> + '_ {
        CASES.iter().filter(|case| self.only.is_empty() || self.only.iter().any(|only| only == case.workload))
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { reps: 5, only: Vec::new() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--reps" => {
                let text = value()?;
                let reps = text.parse().ok().filter(|number| *number > 0);
                options.reps = reps.ok_or(format!("{text} is not a number above 0"))?;
            }
            "--only" => options.only.extend(value()?.split(',').map(str::to_string)),
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    let known = |only: &String| only == "check" || CASES.iter().any(|case| case.workload == only);
    match options.only.iter().find(|only| !known(only)) {
        Some(unknown) => Err(format!("no workload {unknown}")),
        None => Ok(options),
    }
}

/// What one contestant printed in all its runs of one case, and why runs are missing.
#[derive(Default)]
struct Entry {
    runs: Vec<Vec<Printed>>,
    failures: usize,
    why: Option<Why>,
}

impl Entry {
    /// A program that says that it cannot, or has failed twice and never succeeded, is not asked again.
    fn asked_again(&self) -> bool {
        match self.why {
            None => true,
            Some(Why::Unsupported(_)) => false,
            Some(Why::Failed(_)) => !self.runs.is_empty() || self.failures < 2,
        }
    }

    fn add(&mut self, result: Result<Vec<Printed>, Why>) {
        match result {
            Ok(printed) => self.runs.push(printed),
            Err(why) => {
                self.failures += 1;
                self.why = Some(why);
            }
        }
    }

    fn sample(&self, figure: &Figure) -> Option<Sample> {
        let of = |run: &Vec<Printed>| {
            run.iter()
                .find(|line| line.figure == figure.printed && line.unit == figure.unit)
                .map(|line| line.value)
        };
        let figures: Vec<f64> = self.runs.iter().filter_map(of).collect();
        (!figures.is_empty()).then(|| Sample::of(&figures))
    }
}

/// One run, or for a factor the two that make it.
fn ask(case: &Case, workers: usize, contestant: &Contestant) -> Result<Vec<Printed>, Why> {
    let program = contestant.program.as_ref().map_err(|why| Why::Unsupported(why.clone()))?;
    if case.kind != Kind::Factor {
        return run(program, case.workload, workers, contestant.variable());
    }
    let times =
        case.workers.iter().map(|&workers| run(program, case.workload, workers, contestant.variable()));
    let times = times.collect::<Result<Vec<_>, _>>()?;
    let figure = &case.figures[0];
    let time = |printed: &[Printed]| {
        printed.iter().find(|line| line.figure == figure.printed).map(|line| line.value)
    };
    let [Some(one), Some(two)] = [time(&times[0]), time(&times[1])] else {
        return Err(Why::Failed(format!("printed no {}", figure.printed)));
    };
    Ok(vec![Printed { figure: figure.printed.to_string(), value: one / two, unit: figure.unit.to_string() }])
}

/// Interleaved, so that a disturbance of the machine hits all alike, and each round begins with the next contestant.
fn measure(case: &Case, workers: usize, contestants: &[&Contestant], reps: usize) -> Vec<Entry> {
    let mut entries: Vec<Entry> = contestants.iter().map(|_| Entry::default()).collect();
    for rep in 0..reps {
        for turn in 0..contestants.len() {
            let who = (rep + turn) % contestants.len();
            if entries[who].asked_again() {
                entries[who].add(ask(case, workers, contestants[who]));
            }
        }
    }
    entries
}

/// One line for each row and peer; a comparison with us where we have a figure.
fn report_case(
    report: &mut Report,
    case: &Case,
    workers: usize,
    names: &[&'static str],
    entries: &[Entry],
) -> Vec<Measured> {
    let mut rows = Vec::new();
    for figure in case.figures {
        let name = case.row(figure, workers);
        let unit = figure.unit;
        let ours = names.iter().position(|name| *name == OURS).and_then(|at| entries[at].sample(figure));
        let mut theirs = Vec::new();
        for (peer, entry) in names.iter().zip(entries) {
            let Some(sample) = entry.sample(figure) else { continue };
            match ours {
                Some(_) if *peer == OURS && case.kind != Kind::Information => {}
                Some(ours) if case.kind != Kind::Information => report.push(Row {
                    name: name.clone(),
                    ours,
                    peer: peer.to_string(),
                    theirs: sample,
                    unit,
                    better: figure.better,
                }),
                _ => println!("{name:<40} {peer} {sample} {unit}"),
            }
            if *peer != OURS {
                theirs.push((*peer, sample));
            }
        }
        rows.push(Measured { row: name, better: figure.better, unit, ours, theirs });
    }
    let run = match case.kind {
        Kind::PerWorkers => format!("{}-w{workers}", case.workload),
        _ => case.workload.to_string(),
    };
    for (peer, entry) in names.iter().zip(entries) {
        if let Some(why) = &entry.why {
            let runs = entry.runs.len();
            let some = if runs > 0 {
                format!(" ({} of {} runs)", entry.failures, entry.failures + runs)
            } else {
                String::new()
            };
            println!("{run:<40} {peer} {why}{some}");
        } else if case.figures.iter().all(|figure| entry.sample(figure).is_none()) {
            let printed = entry.runs.first().and_then(|run| run.first());
            let printed = printed.map(|line| format!("{} in {}", line.figure, line.unit)).unwrap_or_default();
            println!("{run:<40} {peer} prints no figure of this workload, but {printed}");
        }
    }
    rows
}

/// Somebody else's work on these CPUs takes from two workers more than from one: said, because no figure shows it.
fn note_load() {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    if load > 0.5 {
        println!(
            "note: load {load} on {cpus} CPUs before we begin; figures of two workers need a quiet machine"
        );
    }
}

fn play(options: &Options) -> Report {
    note_load();
    let mut wanted: Vec<&str> = options.cases().flat_map(|case| case.peers).copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let contestants = contestant::all(&wanted);
    for Contestant { name, program } in &contestants {
        if let Err(why) = program {
            println!("{name}: {why}");
        }
    }
    let built: Vec<&Contestant> =
        contestants.iter().filter(|contestant| contestant.program.is_ok()).collect();
    let mut report = Report::new("bench-runtime");
    let mut rows = Vec::new();
    for case in options.cases() {
        let takes_part = |contestant: &&Contestant| match contestant.name {
            OURS => true,
            PINNED => case.has_tasks(),
            peer => case.peers.contains(&peer),
        };
        let contestants: Vec<&Contestant> = built.iter().copied().filter(takes_part).collect();
        let names: Vec<&'static str> = contestants.iter().map(|contestant| contestant.name).collect();
        // A factor takes all numbers of workers into one figure.
        let runs = if case.kind == Kind::Factor { &case.workers[..1] } else { case.workers };
        for &workers in runs {
            let entries = measure(case, workers, &contestants, options.reps);
            rows.extend(report_case(&mut report, case, workers, &names, &entries));
        }
    }
    if options.only.is_empty() || options.only.iter().any(|only| only == "check") {
        match checks::rows() {
            Ok(checks) => checks.into_iter().for_each(|row| {
                rows.push(Measured {
                    row: row.name.clone(),
                    better: row.better,
                    unit: row.unit,
                    ours: Some(row.ours),
                    theirs: vec![("unchecked", row.theirs)],
                });
                report.push(row);
            }),
            Err(why) => println!("check: {why}"),
        }
    }
    println!(
        "\ntargets: our figure in the default configuration (and its ratio to the mark), what it is to be, and our figure with \
         Config::pinned"
    );
    for verdict in TARGETS.iter().filter_map(|target| target.judge(&rows)) {
        println!("{verdict}");
    }
    report
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if let [count, kind, steps] = arguments.as_slice()
        && count == checks::COUNT
    {
        checks::work(kind, steps.parse().unwrap_or(0));
        return ExitCode::SUCCESS;
    }
    let done = options(arguments.into_iter()).map_err(|why| format!("{why}\n{USAGE}")).and_then(|options| {
        let path = play(&options).write().map_err(|error| format!("cannot write the rows: {error}"))?;
        println!("rows: {}", path.display());
        Ok(())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-runtime: {why}");
            ExitCode::from(2)
        }
    }
}
