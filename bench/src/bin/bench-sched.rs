//! `make bench-sched`: what one wake + pick + requeue costs in ours and in schedulers made of standard containers, in
//! nanoseconds and in instructions, at 10, 1,000 and 100,000 threads. The step is described in `bench::contest`, the peers in
//! `bench::peer`; a test there says that all of them compute the same schedule, and this program compares checksums.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use bench::contest::{Contestant, Noted, Ours, Player, Scenario, Theirs, knobs};
use bench::instructions;
use bench::peer::{BTree, BTreeScan, BTreeTwo, Heap, HeapTwo};
use bench::report::{Better, Report, Row, Sample, interleave};
use sched::{Eevdf, PolicyKind, Wfq};

const USAGE: &str = "bench-sched [--reps N] [--sizes A,B,..] [--steps N] [--no-time] [--no-count]
bench-sched --count IMPL POLICY QUEUED STEPS [remove]
  --reps      repetitions that a time is the median of (7)
  --sizes     threads queued all along (10,1000,100000)
  --steps     steps of each repetition and of each count (20000)
  --no-time   do not measure time
  --no-count  do not count instructions (needs valgrind)
  --count     play STEPS steps, for valgrind to look at: IMPL is ours, selectable, btreeset, btreeset-scan or binaryheap
              (btreeset-scan with eevdf only), POLICY is wfq or eevdf";

const PEERS: [&str; 2] = ["btreeset", "binaryheap"];
const POLICIES: [&str; 2] = ["wfq", "eevdf"];
/// From 1,000 to 100,000 threads, log n grows 5/3 times.
const GROWTH_BOUND: f64 = 1.7;
const GROWTH_SIZES: [usize; 2] = [1_000, 100_000];

/// A contestant of any type, past set-up and warm-up.
trait Play {
    fn play(&mut self, steps: usize) -> u64;
}

struct Session<C> {
    player: Player<C>,
    scenario: Scenario,
}

impl<C: Contestant> Play for Session<C> {
    fn play(&mut self, steps: usize) -> u64 {
        self.player.play(self.scenario, steps)
    }
}

/// What is measured: everything but the contestant.
#[derive(Clone, Copy)]
struct Case {
    scenario: Scenario,
    policy: &'static str,
    queued: usize,
}

impl Case {
    fn name(&self, extra: &str, unit: &str) -> String {
        let scenario = if self.scenario == Scenario::Remove { "-remove" } else { "" };
        format!("{}{extra}{scenario}-{}-{unit}", self.policy, self.queued)
    }

    /// A contestant by name, warm: every thread has run about twice, so that positions are spread.
    fn open(self, name: &str) -> Option<Box<dyn Play>> {
        let threads = knobs(self.scenario, self.queued);
        let removing = self.scenario == Scenario::Remove;
        // Only who removes needs to know tickets.
        macro_rules! ours {
            ($policy:expr) => {
                if removing {
                    self.warm(Ours::<Noted, _>::new(&threads, $policy))
                } else {
                    self.warm(Ours::<u32, _>::new(&threads, $policy))
                }
            };
        }
        Some(match (name, self.policy) {
            ("ours", "wfq") => ours!(Wfq),
            ("ours", "eevdf") => ours!(Eevdf),
            // Hidden from the compiler, as a choice at boot is.
            ("selectable", "wfq") => ours!(black_box(PolicyKind::Wfq)),
            ("selectable", "eevdf") => ours!(black_box(PolicyKind::Eevdf)),
            ("btreeset", "wfq") => self.warm(Theirs::<BTree>::new(&threads)),
            ("btreeset", "eevdf") => self.warm(Theirs::<BTreeTwo>::new(&threads)),
            ("btreeset-scan", "eevdf") => self.warm(Theirs::<BTreeScan>::new(&threads)),
            ("binaryheap", "wfq") => self.warm(Theirs::<Heap>::new(&threads)),
            ("binaryheap", "eevdf") => self.warm(Theirs::<HeapTwo>::new(&threads)),
            _ => return None,
        })
    }

    fn warm<C: Contestant + 'static>(self, contestant: C) -> Box<dyn Play> {
        let mut player = Player::new(contestant, self.scenario, self.queued);
        player.play(self.scenario, self.queued.max(1_000));
        Box::new(Session { player, scenario: self.scenario })
    }

    /// Interleaved times of all `names`, in ns a step.
    fn time(self, names: &[&str], reps: usize, steps: usize) -> Vec<Sample> {
        let mut checksums = vec![Vec::new(); names.len()];
        let mut runs: Vec<_> = names
            .iter()
            .zip(&mut checksums)
            .map(|(name, checksums)| {
                let mut session = self.open(name).expect("a contestant of this program");
                move || {
                    let start = Instant::now();
                    checksums.push(session.play(steps));
                    start.elapsed().as_nanos() as f64 / steps as f64
                }
            })
            .collect();
        let mut runs: Vec<&mut dyn FnMut() -> f64> = runs.iter_mut().map(|run| run as _).collect();
        let samples = interleave(reps, &mut runs);
        drop(runs);
        assert!(checksums.iter().all(|sums| *sums == checksums[0]), "the contestants decided differently");
        samples
    }

    /// Instructions a step of all `names`.
    fn count(self, names: &[&str], steps: usize) -> Result<Vec<Sample>, instructions::CountError> {
        let count = |name: &&str| {
            instructions::per_step(steps, |steps| {
                let mut arguments: Vec<String> =
                    ["--count", name, self.policy].iter().map(|text| text.to_string()).collect();
                arguments.extend([self.queued.to_string(), steps.to_string()]);
                arguments.extend((self.scenario == Scenario::Remove).then(|| "remove".to_string()));
                arguments
            })
            .map(Sample::exact)
        };
        names.iter().map(count).collect()
    }

    /// One row for each peer; `samples` begins with ours and, in the first scenario, the selectable policy.
    fn report(self, report: &mut Report, samples: &[Sample], unit: &'static str) {
        let own = samples.len() - PEERS.len();
        for (extra, ours) in ["", "-selectable"].iter().zip(&samples[..own]) {
            for (peer, theirs) in PEERS.iter().zip(&samples[own..]) {
                report.push(Row {
                    name: self.name(extra, unit),
                    ours: *ours,
                    peer: peer.to_string(),
                    theirs: *theirs,
                    unit,
                    better: Better::Lower,
                });
            }
        }
    }
}

struct Options {
    reps: usize,
    sizes: Vec<usize>,
    steps: usize,
    time: bool,
    count: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { reps: 7, sizes: vec![10, 1_000, 100_000], steps: 20_000, time: true, count: true };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--reps" => options.reps = number(&value()?)?,
            "--steps" => options.steps = number(&value()?)?,
            "--sizes" => options.sizes = value()?.split(',').map(number).collect::<Result<_, _>>()?,
            "--no-time" => options.time = false,
            "--no-count" => options.count = false,
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    Ok(options)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or(format!("{text} is not a number above 0"))
}

/// The mode that valgrind looks at.
fn count_mode(arguments: &[String]) -> Result<(), String> {
    let (fixed, scenario) = match arguments {
        [fixed @ .., last] if last == "remove" => (fixed, Scenario::Remove),
        fixed => (fixed, Scenario::Switch),
    };
    let [name, policy, queued, steps] = fixed else { return Err("--count needs four values".to_string()) };
    let policy = POLICIES.into_iter().find(|known| known == policy).ok_or(format!("no policy {policy}"))?;
    let case = Case { scenario, policy, queued: number(queued)? };
    let mut session = case.open(name).ok_or(format!("no {name} for {policy}"))?;
    let steps: usize = steps.parse().map_err(|_| format!("{steps} is not a number"))?;
    println!("checksum {:016x}", session.play(steps));
    Ok(())
}

fn measure(options: &Options) -> Report {
    let mut report = Report::new("bench-sched");
    let mut may_count = options.count;
    for scenario in [Scenario::Switch, Scenario::Remove] {
        let names: &[&str] = match scenario {
            Scenario::Switch => &["ours", "selectable", PEERS[0], PEERS[1]],
            Scenario::Remove => &["ours", PEERS[0], PEERS[1]],
        };
        for policy in POLICIES {
            let mut counts = Vec::new();
            for &queued in &options.sizes {
                let case = Case { scenario, policy, queued };
                if options.time {
                    case.report(&mut report, &case.time(names, options.reps, options.steps), "ns");
                }
                if may_count {
                    match case.count(names, options.steps) {
                        Ok(samples) => {
                            case.report(&mut report, &samples, "instructions");
                            counts.push((queued, samples));
                        }
                        Err(why) => {
                            println!("no instruction rows: {why}");
                            may_count = false;
                        }
                    }
                }
            }
            growth(&mut report, scenario, policy, &counts);
        }
    }
    report
}

/// How instructions grow from 1,000 to 100,000 threads, beside the bound and the peers.
fn growth(report: &mut Report, scenario: Scenario, policy: &str, counts: &[(usize, Vec<Sample>)]) {
    let at = |size| counts.iter().find(|(queued, _)| *queued == size).map(|(_, samples)| samples);
    let (Some(small), Some(large)) = (at(GROWTH_SIZES[0]), at(GROWTH_SIZES[1])) else { return };
    let grown: Vec<Sample> =
        small.iter().zip(large).map(|(small, large)| Sample::exact(large.median / small.median)).collect();
    let removing = if scenario == Scenario::Remove { "-remove" } else { "" };
    let peers = PEERS.iter().zip(&grown[grown.len() - PEERS.len()..]).map(|(name, sample)| (*name, *sample));
    for (peer, theirs) in [("bound", Sample::exact(GROWTH_BOUND))].into_iter().chain(peers) {
        report.push(Row {
            name: format!(
                "{policy}{removing}-instructions-growth-{}-to-{}",
                GROWTH_SIZES[0], GROWTH_SIZES[1]
            ),
            ours: grown[0],
            peer: peer.to_string(),
            theirs,
            unit: "times",
            better: Better::Lower,
        });
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((first, rest)) if first == "--count" => count_mode(rest),
        Some((first, _)) if first == "--help" => {
            println!("{USAGE}");
            Ok(())
        }
        _ => options(arguments.into_iter()).and_then(|options| {
            println!(
                "a step: wake, requeue + pick, block, pick (2 inserts, 2 picks); remove: take out + put back, requeue + pick"
            );
            println!("eevdf peers keep two containers: ahead of the average by position, the others by deadline");
            let path = measure(&options).write().map_err(|error| format!("cannot write the rows: {error}"))?;
            println!("rows: {}", path.display());
            Ok(())
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-sched: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
