//! Random workloads with things going wrong, checked at every step (M-03).
//!
//! The seed determines everything: the scenario, the policy and the faults, so a failing seed replays anywhere.

use crate::engine::costs::Costs;
use crate::engine::random::Random;
use crate::engine::{CheckLevel, Engine, Faults, Options, Outcome, SimError};
use crate::scenario::{
    Action, Barrier, Class, ContextSpec, CostsName, Op, Overrun, PolicyName, Scenario, SourceLine, Span,
    Target, ThreadSpec, Timed,
};

const MS: u64 = 1_000_000;

/// A run that broke something.
#[derive(Debug)]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// What was broken.
    pub error: SimError,
    /// The workload, as text.
    pub scenario: Box<Scenario>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.error)?;
        write!(f, "replay with: make sim-replay SEED={}", self.seed)
    }
}

/// The workload, the faults and the costs of a seed.
#[must_use]
pub fn workload(seed: u64) -> (Scenario, Options) {
    let mut random = Random::new(seed);
    let cpus = *pick(&mut random, &[1, 1, 2, 2, 3, 4, 5, 8]);
    let mut scenario = Scenario::new(random.between(50, 400) * MS);
    scenario.title = format!("fuzz seed {seed}");
    scenario.seed = seed;
    scenario.cpus = cpus;
    scenario.policy = if random.below(2) == 0 { PolicyName::Wfq } else { PolicyName::Eevdf };
    scenario.costs = if random.below(2) == 0 { CostsName::None } else { CostsName::Default };
    if random.below(3) == 0 {
        let parties = random.between(2, 4) as u32;
        scenario.barriers.push(Barrier { name: "meet".into(), line: SourceLine(0), parties });
    }
    add_pair(&mut scenario, &mut random);
    add_loans(&mut scenario, &mut random);
    for at in 0..random.between(1, 7) {
        let thread = random_thread(&scenario, &mut random, at);
        scenario.threads.push(thread);
    }
    add_storm(&mut scenario, &mut random);
    add_forks(&mut scenario, &mut random);
    add_thieves(&mut scenario, &mut random);
    add_actions(&mut scenario, &mut random);
    let chance = |random: &mut Random| *pick(random, &[0, 0, 5, 50]);
    let faults = Faults {
        lost_tick: chance(&mut random),
        late_timer: chance(&mut random),
        late_ipi: chance(&mut random),
        busy_lock: chance(&mut random) * 4,
    };
    let costs = if scenario.costs == CostsName::None { Costs::NONE } else { Costs::defaults() };
    let options =
        Options { costs, record: false, check: CheckLevel::EveryStep, faults, plant: None, lenient: true };
    (scenario, options)
}

/// Runs one seed.
///
/// # Errors
/// The failure, with everything needed to replay it.
pub fn run_seed(seed: u64) -> Result<Outcome, Box<Failure>> {
    let (scenario, options) = workload(seed);
    run_workload(seed, scenario, options)
}

/// Runs a seed's workload, possibly changed.
///
/// # Errors
/// As [`run_seed`].
pub fn run_workload(seed: u64, scenario: Scenario, options: Options) -> Result<Outcome, Box<Failure>> {
    let result = Engine::new(&scenario, options).and_then(Engine::run);
    result.map_err(|error| Box::new(Failure { seed, error, scenario: Box::new(scenario) }))
}

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.below(from.len() as u64) as usize]
}

fn span(random: &mut Random, most_ns: u64) -> Span {
    // Round times make things coincide; odd ones do not.
    let min_ns =
        if random.below(2) == 0 { random.between(1, 20) * most_ns / 20 } else { random.between(1, most_ns) };
    let min_ns = min_ns.max(1);
    let max_ns = if random.below(2) == 0 { min_ns } else { min_ns + random.below(most_ns) };
    Span { min_ns, max_ns }
}

fn random_thread(scenario: &Scenario, random: &mut Random, at: u64) -> ThreadSpec {
    let mut thread = ThreadSpec::new(&format!("t{at}"));
    thread.count = random.between(1, 4) as u32;
    thread.weight = *pick(random, &[64, 64, 64, 128, 1, 3, 1000, 1024]);
    thread.class = *pick(random, Class::ALL);
    thread.start_ns = *pick(random, &[0, 0, 0, 10 * MS, 17_345_678]);
    thread.cpus = some_cpus(scenario, random);
    if random.below(4) == 0 {
        thread.count = thread.count.min(2);
        thread.context = Some(small_context(random));
    }
    thread.program = random_program(scenario, random);
    thread
}

fn random_program(scenario: &Scenario, random: &mut Random) -> Vec<Op> {
    let run = Op::Run(span(random, 15 * MS));
    let mut body = match random.below(5) {
        0 => return vec![Op::RunForever],
        1 => vec![run, Op::Sleep(span(random, 20 * MS))],
        2 => vec![run, Op::Yield, Op::Run(span(random, MS)), Op::Sleep(span(random, 2 * MS))],
        3 if !scenario.barriers.is_empty() => vec![run, Op::Barrier(0)],
        _ => vec![
            run,
            Op::Sleep(span(random, MS)),
            Op::Run(span(random, 100_000)),
            Op::Sleep(span(random, 50_000)),
        ],
    };
    let times = if random.below(3) == 0 { Some(random.between(1, 20) as u32) } else { None };
    let end = body.len() + 1;
    body.insert(0, Op::LoopStart { times, end });
    body.push(Op::LoopEnd { start: 0 });
    body
}

fn some_cpus(scenario: &Scenario, random: &mut Random) -> Option<Vec<u32>> {
    if random.below(4) != 0 {
        return None;
    }
    let mut cpus: Vec<u32> = (0..scenario.cpus).filter(|_| random.below(2) == 0).collect();
    if cpus.is_empty() {
        cpus.push(random.below(u64::from(scenario.cpus)) as u32);
    }
    Some(cpus)
}

/// Small enough that every instance is admitted even if all land on one CPU.
fn small_context(random: &mut Random) -> ContextSpec {
    let period_ns = *pick(random, &[10 * MS, 20 * MS, 7_654_321]);
    ContextSpec {
        budget_ns: (period_ns * random.between(1, 40) / 1000).max(sched::MIN_BUDGET_NS),
        period_ns,
        deadline_ns: period_ns,
        band: random.below(8) as u8,
        overrun: *pick(random, Overrun::ALL),
        refills: random.between(2, 8) as u8,
        handler: None,
    }
}

/// A loop for ever over these steps.
fn for_ever(mut body: Vec<Op>) -> Vec<Op> {
    let end = body.len() + 1;
    body.insert(0, Op::LoopStart { times: None, end });
    body.push(Op::LoopEnd { start: 0 });
    body
}

/// Clients with contexts that call servers without, which call on: loans of all depths, now and then in a circle, to servers that are bound to
/// other CPUs, that forget to answer or go on working after the answer; and a handler of their faults.
fn add_loans(scenario: &mut Scenario, random: &mut Random) {
    if random.below(2) != 0 {
        return;
    }
    let first = scenario.threads.len();
    let servers = random.between(1, 3) as usize;
    for at in 0..servers {
        let mut server = ThreadSpec::new(&format!("s{at}"));
        server.count = random.between(1, 2) as u32;
        server.cpus = some_cpus(scenario, random);
        let mut body = vec![Op::Receive, Op::Run(span(random, 400_000))];
        let circle = random.below(8) == 0;
        if at + 1 < servers || circle {
            body.push(Op::Call(first + if circle { 0 } else { at + 1 }));
            body.push(Op::Run(span(random, 200_000)));
        }
        if random.below(6) == 0 {
            body.push(Op::Sleep(span(random, MS)));
        }
        if random.below(8) != 0 {
            body.push(Op::Reply);
        }
        if random.below(4) == 0 {
            body.push(Op::Run(span(random, 100_000)));
        }
        server.program = for_ever(body);
        scenario.threads.push(server);
    }
    let handler = scenario.threads.len();
    let mut thread = ThreadSpec::new("handler");
    let verdict = *pick(random, &[Op::Reply, Op::Reply, Op::Release]);
    thread.program = for_ever(vec![Op::Receive, Op::Run(span(random, 300_000)), verdict]);
    scenario.threads.push(thread);
    for at in 0..random.between(1, 3) {
        let mut client = ThreadSpec::new(&format!("c{at}"));
        client.count = random.between(1, 2) as u32;
        client.cpus = some_cpus(scenario, random);
        let mut context = small_context(random);
        context.handler = (context.overrun == Overrun::Fault && random.below(2) == 0).then_some(handler);
        client.context = Some(context);
        let mut body =
            vec![Op::Run(span(random, 300_000)), Op::Call(first + random.below(servers as u64) as usize)];
        if random.below(2) == 0 {
            body.push(Op::Sleep(span(random, 5 * MS)));
        }
        client.program = for_ever(body);
        scenario.threads.push(client);
    }
}

/// A server and its clients, now and then.
fn add_pair(scenario: &mut Scenario, random: &mut Random) {
    if random.below(3) != 0 {
        return;
    }
    let mut server = ThreadSpec::new("server");
    server.count = random.between(1, 2) as u32;
    server.class = Class::IpcServer;
    server.program = vec![
        Op::LoopStart { times: None, end: 4 },
        Op::Receive,
        Op::Run(span(random, 2 * MS)),
        Op::Reply,
        Op::LoopEnd { start: 0 },
    ];
    let at = scenario.threads.len();
    scenario.threads.push(server);
    let mut client = ThreadSpec::new("client");
    client.count = random.between(1, 4) as u32;
    client.program = vec![
        Op::LoopStart { times: None, end: 3 },
        Op::Run(span(random, MS)),
        Op::Call(at),
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(client);
}

/// Many threads that wake at the same instant.
fn add_storm(scenario: &mut Scenario, random: &mut Random) {
    if random.below(3) != 0 {
        return;
    }
    let mut storm = ThreadSpec::new("storm");
    storm.count = random.between(5, 40) as u32;
    let nap_ns = random.between(5, 40) * MS;
    storm.program = vec![
        Op::LoopStart { times: None, end: 3 },
        Op::Sleep(Span { min_ns: nap_ns, max_ns: nap_ns }),
        Op::Run(Span { min_ns: 10_000, max_ns: 500_000 }),
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(storm);
}

fn add_forks(scenario: &mut Scenario, random: &mut Random) {
    if random.below(4) != 0 {
        return;
    }
    let mut child = ThreadSpec::new("child");
    child.template = true;
    child.count = 0;
    child.program = vec![Op::Run(span(random, 5 * MS))];
    let at = scenario.threads.len();
    scenario.threads.push(child);
    let mut parent = ThreadSpec::new("parent");
    parent.program = vec![
        Op::LoopStart { times: Some(random.between(1, 5) as u32), end: 4 },
        Op::Fork { thread: at, count: random.between(1, 10) as u32 },
        Op::Run(span(random, MS)),
        Op::Join,
        Op::LoopEnd { start: 0 },
    ];
    scenario.threads.push(parent);
}

/// Neighbours with large promises, and beside them contexts that come and go: threads that use what they have, end, and are followed by others
/// that ask for the same. A context that gets more than its share takes it from a neighbour (S-13).
fn add_thieves(scenario: &mut Scenario, random: &mut Random) {
    if random.below(3) != 0 {
        return;
    }
    let cpu = random.below(u64::from(scenario.cpus)) as u32;
    let large = |random: &mut Random, percent: u64| {
        let period_ns = *pick(random, &[5 * MS, 10 * MS, 20 * MS, 40 * MS]);
        let budget_ns = period_ns * percent / 100;
        let deadline_ns = if random.below(2) == 0 { period_ns } else { random.between(budget_ns, period_ns) };
        ContextSpec { budget_ns, period_ns, deadline_ns, overrun: Overrun::Throttle, ..small_context(random) }
    };
    let mut neighbour = ThreadSpec::new("neighbour");
    neighbour.cpus = Some(vec![cpu]);
    let percent = random.between(20, 60);
    neighbour.context = Some(large(random, percent));
    neighbour.program = vec![Op::RunForever];
    let its = scenario.threads.len();
    scenario.threads.push(neighbour);
    if random.below(2) == 0 {
        // So that the thieves have an odd or an even index: independent of each other, or successors of one template.
        scenario
            .threads
            .push(ThreadSpec { program: vec![Op::Run(span(random, MS))], ..ThreadSpec::new("passer") });
    }
    let mut thief = ThreadSpec::new("thief");
    thief.template = true;
    thief.count = 0;
    thief.cpus = Some(vec![cpu]);
    let rest = random.between(10, 90 - percent);
    let context = large(random, rest);
    thief.program = vec![Op::Run(span(random, 2 * context.budget_ns))];
    thief.context = Some(context);
    let at = scenario.threads.len();
    scenario.threads.push(thief);
    let mut maker = ThreadSpec::new("maker");
    maker.weight = 1024;
    maker.program = for_ever(vec![
        Op::Fork { thread: at, count: random.between(1, 2) as u32 },
        Op::Join,
        Op::Run(span(random, 200_000)),
    ]);
    scenario.threads.push(maker);
    for _ in 0..random.below(3) {
        let wish = large(random, percent);
        let (at_ns, target) = (random.below(scenario.duration_ns), Target { thread: its, instance: None });
        scenario.timed.push(Timed { at_ns, line: SourceLine(0), action: Action::Reconfigure(target, wish) });
    }
}

/// Kills, revocations, re-weighting and stalls, often exactly at the end of a slice or a period.
fn add_actions(scenario: &mut Scenario, random: &mut Random) {
    for _ in 0..random.below(8) {
        let worst = random.between(1, scenario.duration_ns / (5 * MS)) * 5 * MS;
        let at_ns = if random.below(2) == 0 { worst } else { random.below(scenario.duration_ns) };
        let at_ns = at_ns.min(scenario.duration_ns - 1);
        let thread = random.below(scenario.threads.len() as u64) as usize;
        let count = u64::from(scenario.threads[thread].count);
        let instance = (random.below(2) == 0 && count > 0).then(|| random.below(count) as u32);
        let target = Target { thread, instance };
        let action = match random.below(8) {
            0 => Action::Weight(target, *pick(random, &[1, 64, 256, 1024])),
            1 => Action::Class(target, *pick(random, Class::ALL)),
            2 if scenario.threads[thread].context.is_some() => Action::Revoke(target),
            3 => Action::Kill(target),
            4 => Action::Wake(target),
            5 | 6 if scenario.threads[thread].context.is_some() => {
                let handler = scenario.threads[thread].context.and_then(|context| context.handler);
                Action::Reconfigure(target, ContextSpec { handler, ..small_context(random) })
            }
            _ => Action::Stall {
                cpu: random.below(u64::from(scenario.cpus)) as u32,
                duration_ns: random.between(1, 30) * MS,
            },
        };
        scenario.timed.push(Timed { at_ns, line: SourceLine(0), action });
    }
    scenario.timed.sort_by_key(|timed| timed.at_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Plant;

    /// M-03: a hundred seeds keep all invariants, and each gives the same run again.
    #[test]
    fn m_03_seeds_hold_and_replay() {
        let mut different = 0;
        for seed in 0..100 {
            let first = run_seed(seed).unwrap_or_else(|failure| panic!("{failure}\n{}", failure.scenario));
            let again = run_seed(seed).unwrap();
            assert_eq!(first.order_hash, again.order_hash, "seed {seed} does not replay");
            let other = {
                let (mut scenario, options) = workload(seed);
                scenario.seed = seed + 1_000;
                run_workload(seed, scenario, options).unwrap()
            };
            different += u32::from(first.order_hash != other.order_hash);
        }
        assert!(different > 50, "only {different} of 100 workloads depend on the seed");
    }

    /// M-03: each planted bug is found within a few hundred seeds, and its seed finds it again.
    #[test]
    fn m_03_planted_bugs_are_caught() {
        let plants = [
            Plant::ForgottenIpi,
            Plant::UnchargedSwitch,
            Plant::LeakedReservation,
            Plant::KeptLoan,
            Plant::FreshLoan,
            Plant::ForgottenUse,
        ];
        for plant in plants {
            let planted = |seed| {
                let (scenario, mut options) = workload(seed);
                options.plant = Some(plant);
                run_workload(seed, scenario, options)
            };
            let failure = (0..400).find_map(|seed| planted(seed).err());
            let failure = failure.unwrap_or_else(|| panic!("{plant:?} was not found"));
            assert_eq!(planted(failure.seed).unwrap_err().error, failure.error, "{plant:?} does not replay");
        }
    }

    /// S-06, S-07: the workloads lend along chains, to other CPUs, and are refused.
    #[test]
    fn s_07_seeds_lend_in_every_way() {
        let mut sum = crate::engine::Counters::default();
        for seed in 0..200 {
            let counters = run_seed(seed).unwrap().counters;
            sum.loans += counters.loans;
            sum.loans_hosted += counters.loans_hosted;
            sum.loans_refused += counters.loans_refused;
            sum.loan_depth_max = sum.loan_depth_max.max(counters.loan_depth_max);
        }
        assert!(sum.loans > 2_000 && sum.loans_hosted > 20 && sum.loans_refused > 20, "{sum:?}");
        assert!(sum.loan_depth_max >= 3, "{sum:?}");
    }

    /// What the fuzzer prints is a scenario that the parser takes and that means the same.
    #[test]
    fn m_03_workloads_are_scenarios() {
        for seed in 0..300 {
            let (scenario, _) = workload(seed);
            let text = scenario.to_string();
            let parsed =
                Scenario::parse("fuzz", &text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
            assert_eq!(parsed, scenario, "seed {seed}");
        }
    }
}
