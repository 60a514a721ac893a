//! The SMP matrix (F-14): six shapes of parallel work, each with the same total work, on more and more CPUs.

use crate::engine::{CheckLevel, Engine, Options, SimError};
use crate::scenario::{Barrier, Op, PolicyName, Scenario, SourceLine, Span, ThreadSpec};

const MS: u64 = 1_000_000;
/// CPU time of each workload's parallel part.
const WORK_NS: u64 = 3_840 * MS;

/// A shape of parallel work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A parent forks one worker a CPU, joins them and reduces.
    MapReduce,
    /// A parent forks many tasks of very different length.
    Uneven,
    /// One worker a CPU, in lock step.
    Barriers,
    /// Separate processes that wait for I/O now and then.
    Processes,
    /// The same as threads of one process.
    Threads,
    /// Clients that call servers all the time.
    Calls,
}

impl Workload {
    /// All six.
    pub const ALL: [Workload; 6] = [
        Workload::MapReduce,
        Workload::Uneven,
        Workload::Barriers,
        Workload::Processes,
        Workload::Threads,
        Workload::Calls,
    ];

    /// The name used in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Workload::MapReduce => "map/reduce",
            Workload::Uneven => "uneven tasks",
            Workload::Barriers => "barrier loops",
            Workload::Processes => "processes",
            Workload::Threads => "threads",
            Workload::Calls => "capability calls",
        }
    }

    /// The workload as a scenario for this many CPUs.
    #[must_use]
    pub fn scenario(self, cpus: u32, policy: PolicyName) -> Scenario {
        let mut scenario = Scenario::new(600_000 * MS);
        scenario.title = format!("{} on {cpus} CPUs", self.name());
        scenario.cpus = cpus;
        scenario.policy = policy;
        match self {
            Workload::MapReduce => {
                let share = exactly(WORK_NS / u64::from(cpus));
                let reduce = exactly(MS);
                fork_join(&mut scenario, vec![Op::Run(share)], cpus, Some(reduce));
            }
            Workload::Uneven => {
                // 1 ms to 29 ms, 15 ms on average: 256 tasks are the whole work.
                let task = Span { min_ns: MS, max_ns: 29 * MS };
                fork_join(&mut scenario, vec![Op::Run(task)], 256, None);
            }
            Workload::Barriers => barrier_loops(&mut scenario, cpus),
            Workload::Processes | Workload::Threads => {
                const WORKERS: u64 = 128;
                const ROUNDS: u64 = 10;
                let run = exactly(WORK_NS / WORKERS / ROUNDS);
                let program = vec![
                    Op::LoopStart { times: Some(ROUNDS as u32), end: 3 },
                    Op::Run(run),
                    Op::Sleep(exactly(200_000)),
                    Op::LoopEnd { start: 0 },
                ];
                let definitions = if self == Workload::Threads { 1 } else { WORKERS };
                for at in 0..definitions {
                    let mut worker = ThreadSpec::new(&format!("w{at}"));
                    worker.count = (WORKERS / definitions) as u32;
                    worker.program = program.clone();
                    scenario.threads.push(worker);
                }
            }
            Workload::Calls => calls(&mut scenario),
        }
        scenario
    }
}

fn exactly(ns: u64) -> Span {
    Span { min_ns: ns, max_ns: ns }
}

fn fork_join(scenario: &mut Scenario, program: Vec<Op>, count: u32, reduce: Option<Span>) {
    let mut worker = ThreadSpec::new("worker");
    worker.template = true;
    worker.count = 0;
    worker.program = program;
    scenario.threads.push(worker);
    let mut parent = ThreadSpec::new("parent");
    parent.program = vec![Op::Fork { thread: 0, count }, Op::Join];
    parent.program.extend(reduce.map(Op::Run));
    scenario.threads.push(parent);
}

fn barrier_loops(scenario: &mut Scenario, cpus: u32) {
    const PHASES: u64 = 20;
    let mean = WORK_NS / u64::from(cpus) / PHASES;
    scenario.barriers.push(Barrier { name: "phase".into(), line: SourceLine(0), parties: cpus });
    let mut worker = ThreadSpec::new("worker");
    worker.count = cpus;
    worker.program = vec![
        Op::LoopStart { times: Some(PHASES as u32), end: 3 },
        Op::Run(Span { min_ns: mean - mean / 20, max_ns: mean + mean / 20 }),
        Op::Barrier(0),
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(worker);
}

/// 64 clients and 64 servers; a call costs 100 µs at the client and 50 µs at the server.
fn calls(scenario: &mut Scenario) {
    const CLIENTS: u64 = 64;
    const CALL_NS: u64 = 150_000;
    let mut server = ThreadSpec::new("server");
    server.count = CLIENTS as u32;
    server.program = vec![
        Op::LoopStart { times: None, end: 4 },
        Op::Receive,
        Op::Run(exactly(50_000)),
        Op::Reply,
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(server);
    let mut client = ThreadSpec::new("client");
    client.count = CLIENTS as u32;
    client.program = vec![
        Op::LoopStart { times: Some((WORK_NS / CLIENTS / CALL_NS) as u32), end: 3 },
        Op::Run(exactly(100_000)),
        Op::Call(0),
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(client);
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// When the last thread (of the clients, for calls) was done.
    pub elapsed_ns: u64,
    /// Steals and balance moves.
    pub moves: u64,
    /// Overhead as a share of all CPU time.
    pub overhead: f64,
    /// Scheduling events.
    pub events: u64,
}

/// Runs one workload on one number of CPUs.
///
/// # Errors
/// As [`Engine::run`].
pub fn run(workload: Workload, cpus: u32, policy: PolicyName) -> Result<Cell, SimError> {
    let scenario = workload.scenario(cpus, policy);
    let mut options = Options::of(&scenario);
    options.record = false;
    options.check = CheckLevel::Every(1024);
    let outcome = Engine::new(&scenario, options)?.run()?;
    // Servers never end; what counts is when the other threads have ended.
    let elapsed_ns =
        outcome.threads.iter().filter_map(|thread| thread.ended_ns).max().unwrap_or(outcome.end_ns);
    let overhead: u64 = outcome.cpus.iter().map(|time| time.interrupt_ns).sum();
    Ok(Cell {
        elapsed_ns,
        moves: outcome.counters.steals + outcome.counters.balances,
        overhead: overhead as f64 / (elapsed_ns as f64 * f64::from(cpus)),
        events: outcome.counters.events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-14: every shape gets faster with more CPUs, none faster than CPUs allow, and all work is done.
    #[test]
    fn f_14_all_shapes_scale() {
        for workload in Workload::ALL {
            let one = run(workload, 1, PolicyName::Wfq).unwrap();
            assert!(one.elapsed_ns >= WORK_NS * 9 / 10, "{}: {} ns of work", workload.name(), one.elapsed_ns);
            let four = run(workload, 4, PolicyName::Wfq).unwrap();
            let speed_up = one.elapsed_ns as f64 / four.elapsed_ns as f64;
            assert!((3.0..=4.1).contains(&speed_up), "{}: {speed_up:.2} on 4 CPUs", workload.name());
        }
    }
}
