//! The large scenario: 256 CPUs and 100,000 threads, for measuring the simulator itself.

use crate::engine::{CheckLevel, Options};
use crate::scenario::{Class, Op, Scenario, Span, ThreadSpec, TopologySpec};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Events between two full checks: a full check looks at every thread.
const CHECK_EVERY: u64 = 1 << 20;

/// `threads` threads of five kinds on 256 CPUs (4 sockets × 32 cores × 2 threads) for `duration_ns`.
#[must_use]
pub fn scenario(threads: u32, duration_ns: u64) -> Scenario {
    let mut scenario = Scenario::new(duration_ns);
    scenario.title = format!("256 CPUs, {threads} threads");
    scenario.cpus = 256;
    scenario.topology = Some(TopologySpec { sockets: 4, cores: 32, threads: 2, numa: 4 });
    let cycle = |run: Span, sleep: Span| {
        vec![Op::LoopStart { times: None, end: 3 }, Op::Run(run), Op::Sleep(sleep), Op::LoopEnd { start: 0 }]
    };
    let span = |min_ns, max_ns| Span { min_ns, max_ns };
    let kinds = [
        ("hog", 64, Class::Normal, 20, vec![Op::RunForever]),
        ("heavy", 512, Class::Batch, 5, vec![Op::RunForever]),
        ("worker", 64, Class::Normal, 40, cycle(span(200 * US, 2 * MS), span(50 * MS, 500 * MS))),
        ("light", 16, Class::Normal, 15, cycle(span(100 * US, MS), span(20 * MS, 200 * MS))),
        ("ui", 64, Class::Interactive, 20, cycle(span(20 * US, 100 * US), span(10 * MS, 100 * MS))),
    ];
    for (name, weight, class, percent, program) in kinds {
        let mut thread = ThreadSpec::new(name);
        thread.weight = weight;
        thread.class = class;
        thread.count = threads * percent / 100;
        thread.program = program;
        scenario.threads.push(thread);
    }
    scenario
}

/// How the large scenario is run: nothing recorded, everything checked now and then.
#[must_use]
pub fn options(scenario: &Scenario) -> Options {
    let mut options = Options::of(scenario);
    options.record = false;
    options.check = CheckLevel::Every(CHECK_EVERY);
    options
}
