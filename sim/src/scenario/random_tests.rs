//! Random scenarios survive printing; random damage never breaks the parser.

use super::tests::{EVERYTHING, documented};
use super::*;

/// How many generated scenarios make the round trip.
const ROUND_TRIPS: u64 = 2_000;
/// How many damaged files the parser sees.
const MUTATIONS: u64 = 20_000;
/// The most steps that the generator puts into one body.
const STEPS_MAX: u64 = 4;

/// Xorshift: enough to vary, the same on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number from `low` to `high`, both included.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn small(&mut self, low: u64, high: u64) -> u32 {
        u32::try_from(self.within(low, high)).expect("a small range")
    }

    fn index(&mut self, len: usize) -> usize {
        self.small(0, len as u64 - 1) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.within(1, 100) <= percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A duration with few or many digits.
    fn time_ns(&mut self, high: u64) -> u64 {
        let unit = self.pick(&[1, 1_000, 1_000_000, 1_000_000_000]);
        (self.within(1, 2_000) * unit).min(high)
    }

    fn span(&mut self) -> Span {
        let min_ns = self.time_ns(limits::TIME_NS_MAX / 2);
        let max_ns = min_ns + if self.chance(50) { self.time_ns(1 << 40) } else { 0 };
        Span { min_ns, max_ns }
    }
}

/// The threads that the generator's steps refer to.
const SERVER: usize = 0;
const TEMPLATE: usize = 1;

fn generate(random: &mut Random) -> Scenario {
    let mut scenario = Scenario::new(random.within(1_000_000, 1 << 45));
    scenario.title = random.pick(&["", "Two hogs", "a#b = 5% +- é"]).into();
    scenario.cpus = random.small(1, limits::CPUS_MAX.into());
    if random.chance(50) {
        let (sockets, cores) = (random.small(1, 8), random.small(1, 8));
        let numa = random.pick(&[1, sockets, cores, sockets * cores]);
        let topology = TopologySpec { sockets, cores, threads: random.small(1, 4), numa };
        scenario.cpus = topology.cpus();
        scenario.topology = Some(topology);
    }
    scenario.policy = random.pick(PolicyName::ALL);
    scenario.costs = random.pick(CostsName::ALL);
    scenario.seed = random.pick(&[0, 1, u64::MAX, 0x1234_5678_9abc_def0]);
    for index in 0..random.within(0, 2) {
        let (name, line) = (format!("b{index}"), SourceLine::default());
        scenario.barriers.push(Barrier { name, line, parties: random.small(1, 9) });
    }
    for index in 0..random.within(2, 6) as usize {
        let spec = generate_thread(random, index, &scenario);
        scenario.threads.push(spec);
    }
    for _ in 0..random.within(0, 6) {
        let (at_ns, action) = (random.within(0, scenario.duration_ns - 1), action(random, &scenario));
        scenario.timed.push(Timed { at_ns, line: SourceLine(7), action });
    }
    scenario.timed.sort_by_key(|timed| timed.at_ns);
    for _ in 0..random.within(0, 4) {
        let check = check(random, &scenario);
        scenario.expects.push(Expect { line: SourceLine(9), check });
    }
    scenario
}

fn generate_thread(random: &mut Random, index: usize, scenario: &Scenario) -> ThreadSpec {
    let mut spec = ThreadSpec::new(&format!("t-{index}"));
    if index == TEMPLATE {
        spec.template = true;
        spec.count = 0;
    } else {
        spec.count = random.small(1, 5);
        spec.start_ns = random.pick(&[0, scenario.duration_ns - 1, scenario.duration_ns / 2]);
    }
    spec.weight = u16::try_from(random.within(1, 1024)).expect("a weight");
    spec.class = random.pick(Class::ALL);
    if random.chance(40) {
        let mut cpus: Vec<u32> = (0..scenario.cpus).filter(|_| random.chance(60)).collect();
        if cpus.is_empty() {
            cpus.push(scenario.cpus - 1);
        }
        spec.home = random.chance(50).then(|| random.pick(&cpus));
        spec.cpus = Some(cpus);
    }
    if random.chance(40) {
        let mut context = context_spec(random);
        context.handler = (context.overrun == Overrun::Fault && random.chance(50)).then_some(SERVER);
        spec.context = Some(context);
    }
    if index == SERVER {
        spec.program.push(Op::Receive);
    }
    generate_body(random, &mut spec.program, scenario.barriers.len(), 0);
    spec
}

fn context_spec(random: &mut Random) -> ContextSpec {
    let period_ns = random.time_ns(u64::MAX);
    let budget_ns = random.within(1, period_ns);
    let byte = |random: &mut Random, low, high| u8::try_from(random.within(low, high)).expect("a byte");
    ContextSpec {
        budget_ns,
        period_ns,
        deadline_ns: random.within(budget_ns, period_ns),
        band: byte(random, 0, 7),
        overrun: random.pick(Overrun::ALL),
        refills: byte(random, 2, 8),
        handler: None,
    }
}

fn generate_body(random: &mut Random, program: &mut Vec<Op>, barriers: usize, depth: usize) {
    for _ in 0..random.within(0, STEPS_MAX) {
        if depth < limits::LOOP_DEPTH_MAX && random.chance(25) {
            let start = program.len();
            let times = random.chance(60).then(|| random.small(1, u32::MAX.into()));
            program.push(Op::LoopStart { times, end: 0 });
            // Every loop must take time: that is a rule of the language.
            program.push(Op::Run(random.span()));
            generate_body(random, program, barriers, depth + 1);
            program[start] = Op::LoopStart { times, end: program.len() };
            program.push(Op::LoopEnd { start });
            continue;
        }
        let barrier = if barriers == 0 { Op::Yield } else { Op::Barrier(random.index(barriers)) };
        let fork = Op::Fork { thread: TEMPLATE, count: random.small(1, 12) };
        let (run, sleep) = (Op::Run(random.span()), Op::Sleep(random.span()));
        program.extend(match random.within(0, 6) {
            0 => vec![Op::Receive, random.pick(&[Op::Reply, Op::Release])],
            1 => vec![Op::Call(SERVER)],
            2 => vec![fork, Op::Join, Op::Yield],
            3 => vec![barrier],
            4 => vec![Op::Exit],
            5 => vec![run, sleep],
            _ => vec![Op::RunForever],
        });
    }
}

fn target(random: &mut Random, scenario: &Scenario) -> Target {
    let thread = random.index(scenario.threads.len());
    let count = u64::from(scenario.threads[thread].count.max(1));
    let instance = random.chance(50).then(|| random.small(0, count - 1));
    Target { thread, instance }
}

fn action(random: &mut Random, scenario: &Scenario) -> Action {
    let target = target(random, scenario);
    let cpu = random.small(0, u64::from(scenario.cpus) - 1);
    let context = scenario.threads[target.thread].context;
    match random.within(0, 6) {
        0 => Action::Weight(target, 1 + u16::try_from(random.index(1024)).expect("a weight")),
        1 => Action::Class(target, random.pick(Class::ALL)),
        2 if context.is_some() => Action::Revoke(target),
        5 if context.is_some() => {
            let handler = context.and_then(|context| context.handler);
            Action::Reconfigure(target, ContextSpec { handler, ..context_spec(random) })
        }
        3 => Action::Kill(target),
        4 => Action::Wake(target),
        _ => Action::Stall { cpu, duration_ns: random.time_ns(u64::MAX) },
    }
}

fn check(random: &mut Random, scenario: &Scenario) -> Check {
    let (left, right) = (target(random, scenario), target(random, scenario));
    let tolerance_ppm = random.within(0, limits::WHOLE_PPM);
    let cpus = u64::from(scenario.cpus);
    match random.within(0, 3) {
        0 => {
            let share_ppm = random.within(0, cpus * limits::WHOLE_PPM);
            Check::Share { target: left, share_ppm, tolerance_ppm }
        }
        1 => {
            let ratio_ppm = random.pick(&[1, 2_000_000, 1_234_567, 999_999_999_999]);
            Check::Ratio { left, right, ratio_ppm, tolerance_ppm }
        }
        2 => {
            let percentile_ppm = random.pick(&[1, 500_000, 990_000, 999_990, 1_000_000]);
            Check::Latency { target: left, percentile_ppm, limit_ns: random.within(0, 1 << 40) }
        }
        _ => Check::Order { cpu: random.small(0, cpus - 1), runs: vec![left, right, left] },
    }
}

/// A scenario prints as text that parses to an equal scenario and prints alike.
fn assert_round_trip(scenario: &Scenario) {
    let text = scenario.to_string();
    let parsed = Scenario::parse("printed.scn", &text);
    let parsed = parsed.unwrap_or_else(|error| panic!("{error}\nin\n{text}"));
    assert_eq!(&parsed, scenario, "in\n{text}");
    assert_eq!(parsed.to_string(), text);
}

#[test]
fn generated_scenarios_survive_printing() {
    let mut steps = 0;
    for seed in 1..=ROUND_TRIPS {
        let scenario = generate(&mut Random::new(seed));
        steps += scenario.threads.iter().map(|thread| thread.program.len()).sum::<usize>();
        assert_round_trip(&scenario);
    }
    assert!(steps > 20_000, "the generator writes programs: {steps} steps");
}

#[test]
fn a_change_is_a_difference() {
    // The comparison above must be able to fail: only lines are ignored.
    let scenario = Scenario::parse("a.scn", EVERYTHING).expect("a good file");
    let mut moved = scenario.clone();
    moved.threads[0].line = SourceLine(99);
    assert_eq!(moved, scenario);
    moved.threads[0].weight += 1;
    assert_ne!(moved, scenario);
}

#[test]
fn a_tree_that_no_parser_makes_prints_and_is_refused() {
    let mut scenario = Scenario::new(1_000);
    let mut thread = ThreadSpec::new("a");
    thread.program = vec![Op::LoopEnd { start: 7 }, Op::Call(9), Op::Barrier(3)];
    scenario.threads.push(thread);
    assert!(Scenario::parse("printed.scn", &scenario.to_string()).is_err());
}

/// One random change: of a byte, or of a whole line.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const SPICE: &[u8] = b"\0\t\n\r #=,.-+%0123456789abcmnsu\xc2\xb1\xff";
    let at = random.index(bytes.len() + 1).min(bytes.len().saturating_sub(1));
    match random.within(0, 6) {
        0 => bytes[at] = random.pick(SPICE),
        1 => bytes.insert(at, random.pick(SPICE)),
        2 => drop(bytes.remove(at)),
        3 => bytes[at] ^= 1 << random.small(0, 7),
        choice => {
            let mut lines: Vec<Vec<u8>> = bytes.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
            let (from, to) = (random.index(lines.len()), random.index(lines.len()));
            match choice {
                4 => drop(lines.remove(from)),
                5 => lines.swap(from, to),
                _ => lines.insert(to, lines[from].clone()),
            }
            *bytes = lines.join(&b'\n');
        }
    }
    if bytes.is_empty() {
        bytes.push(b'\n');
    }
}

#[test]
fn damage_is_refused_with_a_place_or_makes_sense() {
    let mut samples = documented();
    samples.push(EVERYTHING.into());
    let (mut accepted, mut refused) = (0u64, 0u64);
    for seed in 1..=MUTATIONS {
        let mut random = Random::new(seed);
        // The full sample as often as all the short ones together.
        let short = random.index(samples.len());
        let choice = if random.chance(50) { samples.len() - 1 } else { short };
        let mut bytes = samples[choice].clone().into_bytes();
        for _ in 0..random.within(1, 4) {
            mutate(&mut random, &mut bytes);
        }
        match Scenario::parse_bytes("damaged.scn", &bytes) {
            Ok(scenario) => {
                accepted += 1;
                assert_round_trip(&scenario);
            }
            Err(error) => {
                refused += 1;
                let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() + 1;
                assert!((1..=lines).contains(&(error.line as usize)), "{error}");
                let width = error.source.chars().count() + 1;
                assert!((1..=width).contains(&(error.column as usize)), "{error}");
                assert!(!error.found.is_empty() && !error.expected.is_empty(), "{error}");
            }
        }
    }
    // Both outcomes must be common, or the test looks at one half only.
    assert!(accepted > MUTATIONS / 20 && refused > MUTATIONS / 20, "{accepted} {refused}");
}

#[test]
fn large_files_are_read_in_linear_time() {
    // A quadratic step would take minutes here instead of well under a second.
    let mut text = String::from("for 1s\n");
    for index in 0..100_000 {
        text.push_str(&format!("thread t{index} weight=5\nrun 1ms\n"));
    }
    text.push_str(&format!("expect order{}\n", " t7".repeat(100_000)));
    let scenario = Scenario::parse("large.scn", &text).expect("a good file");
    assert_eq!(scenario.threads.len(), 100_000);
}
