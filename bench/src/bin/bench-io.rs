//! `make bench-io`: our servers beside those on tokio (with hyper) and Go (with net/http), under the same load, in turns. The
//! protocol is described in `bench::io`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::io::load::{self, Figures};
use bench::io::server::{Protocol, Server};
use bench::report::{Better, Report, Row, Sample};
use bench::runtime::contestant::{beside, go, rust_peers};

const USAGE: &str = "bench-io [--reps N] [--seconds S] [--peers NAME[,NAME]] [--only TEXT]
  --reps     runs of each server that a figure is the median of (5)
  --seconds  how long a run is measured (1)
  --peers    beside these only: tokio, go (both), janus-epoll (ourselves without io_uring),
             janus-pinned (ourselves with tasks that stay with their thread)
  --only     the cases whose names hold this, such as echo-64-w1, http, hog";

/// One number of a run.
type Figure = fn(&Figures) -> f64;

/// Before a run is measured.
const WARM: Duration = Duration::from_millis(300);

struct Options {
    reps: usize,
    span: Duration,
    peers: String,
    only: String,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        reps: 5,
        span: Duration::from_secs(1),
        peers: "tokio,go,janus-pinned".into(),
        only: String::new(),
    };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} needs a value"))?;
        let bad = || format!("{value} is not a number above 0");
        match argument.as_str() {
            "--reps" => options.reps = value.parse().ok().filter(|reps| *reps > 0).ok_or_else(bad)?,
            "--seconds" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0).ok_or_else(bad)?;
                options.span = Duration::from_secs_f64(seconds);
            }
            "--peers" => options.peers = value,
            "--only" => options.only = value,
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    Ok(options)
}

struct Case {
    protocol: Protocol,
    workers: usize,
    connections: usize,
    hog: bool,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for protocol in [Protocol::Echo, Protocol::Http] {
            for workers in [1, 2] {
                for connections in [64, 1000] {
                    for hog in [false, true] {
                        cases.push(Case { protocol, workers, connections, hog });
                    }
                }
            }
        }
        cases
    }

    fn name(&self) -> String {
        let hog = if self.hog { "-hog" } else { "" };
        format!("{}-{}-w{}{hog}", self.protocol.name(), self.connections, self.workers)
    }

    fn run(&self, program: &Path, more: Option<&str>, span: Duration) -> Result<Figures, String> {
        let mut server = Server::start(program, self.protocol, self.workers, more)?;
        if self.hog {
            server.add_hog(self.protocol).map_err(|error| format!("no hog: {error}"))?;
        }
        load::run(&server, self.protocol, self.connections, WARM, span).map_err(|error| error.to_string())
    }
}

/// A server, and what it did in all runs of one case.
struct Contestant {
    name: &'static str,
    program: Result<PathBuf, String>,
    /// One more argument for it.
    more: Option<&'static str>,
    runs: Vec<Figures>,
    why: Option<String>,
}

impl Contestant {
    fn new(name: &'static str, program: Result<PathBuf, String>) -> Contestant {
        Contestant { name, program, more: None, runs: Vec::new(), why: None }
    }

    fn sample(&self, figure: impl Fn(&Figures) -> f64) -> Sample {
        Sample::of(&self.runs.iter().map(figure).collect::<Vec<_>>())
    }
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut contestants = vec![Contestant::new("janus", beside("io-janus"))];
    for peer in options.peers.split(',') {
        contestants.push(match peer {
            "tokio" => Contestant::new("tokio", rust_peers().map(|folder| folder.join("peer-io-tokio"))),
            "janus-epoll" => {
                Contestant { more: Some("epoll"), ..Contestant::new("janus-epoll", beside("io-janus")) }
            }
            "janus-pinned" => {
                Contestant { more: Some("pinned"), ..Contestant::new("janus-pinned", beside("io-janus")) }
            }
            "go" => Contestant::new("go", go("go-io", "peer-io-go")),
            _ => {
                eprintln!("no peer {peer}\n{USAGE}");
                return ExitCode::from(2);
            }
        });
    }
    let mut report = Report::new("bench-io");
    // Our p99 of the last case without a hog, beside which the next one, with it, is looked at.
    let mut before = None;
    for case in Case::all().iter().filter(|case| case.name().contains(&options.only)) {
        play(case, &options, &mut contestants);
        before = print(case, &contestants, &mut report, before);
    }
    match report.write() {
        Ok(path) => println!("rows are in {}", path.display()),
        Err(error) => eprintln!("the rows could not be written: {error}"),
    }
    ExitCode::SUCCESS
}

/// Runs in turns, each round beginning with the next one.
fn play(case: &Case, options: &Options, contestants: &mut [Contestant]) {
    for contestant in contestants.iter_mut() {
        contestant.runs.clear();
        contestant.why = contestant.program.as_ref().err().cloned();
    }
    let count = contestants.len();
    for turn in 0..options.reps * count {
        let contestant = &mut contestants[(turn / count + turn) % count];
        let Ok(program) = &contestant.program else { continue };
        match case.run(program, contestant.more, options.span) {
            Ok(figures) => contestant.runs.push(figures),
            Err(why) => contestant.why = Some(why),
        }
    }
}

/// Answers our p99, if the case has no hog.
fn print(case: &Case, contestants: &[Contestant], report: &mut Report, before: Option<f64>) -> Option<f64> {
    let name = case.name();
    for contestant in contestants {
        if let Some(why) = &contestant.why {
            println!("{name:<40} {}: {why}", contestant.name);
        }
        let stuck = contestant.runs.iter().map(|run| run.stuck).max().unwrap_or(0);
        if stuck > 0 {
            println!(
                "{name:<40} {}: up to {stuck} of {} connections stuck",
                contestant.name, case.connections
            );
        }
    }
    let (ours, peers) = contestants.split_first()?;
    if ours.runs.is_empty() {
        return None;
    }
    let figures: [(&str, &str, Better, Figure); 4] = [
        ("rate", "requests/s", Better::Higher, |run| run.rate),
        ("cpu", "us/request", Better::Lower, |run| run.cpu_us),
        ("p50", "us", Better::Lower, |run| run.p50_us),
        ("p99", "us", Better::Lower, |run| run.p99_us),
    ];
    for (figure, unit, better, get) in figures {
        for peer in peers.iter().filter(|peer| !peer.runs.is_empty()) {
            report.push(Row {
                name: format!("{name}-{figure}"),
                ours: ours.sample(get),
                peer: peer.name.to_string(),
                theirs: peer.sample(get),
                unit,
                better,
            });
        }
    }
    let p99 = ours.sample(|run| run.p99_us).median;
    match before {
        Some(before) if case.hog => {
            println!("{name:<40} our p99 is {:.2} times that without a hog", p99 / before);
            None
        }
        _ => (!case.hog).then_some(p99),
    }
}
