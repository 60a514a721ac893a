//! What the parser makes of good files, and how it refuses bad ones.

use super::*;

/// Every directive, step, action and check at least once.
pub(super) const EVERYTHING: &str = include_str!("everything.scn");

/// The scenario blocks of the reference page: it must not drift from the parser.
pub(super) fn documented() -> Vec<String> {
    let page = include_str!("../../../docs/scenarios.md");
    let blocks = page.split("```scn\n").skip(1);
    let mut samples: Vec<String> =
        blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect();
    // The page's fragments leave out the one line that every file needs.
    for sample in &mut samples {
        if !sample.lines().any(|line| line.starts_with("for ")) {
            sample.push_str("for 1s\n");
        }
    }
    samples
}

fn parse(text: &str) -> Scenario {
    Scenario::parse("t.scn", text).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(text: &str) -> ScenarioError {
    match Scenario::parse("t.scn", text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error,
    }
}

const fn span(min_ns: u64, max_ns: u64) -> Span {
    Span { min_ns, max_ns }
}

const fn target(thread: usize, instance: Option<u32>) -> Target {
    Target { thread, instance }
}

#[test]
fn headers() {
    let scenario = parse(EVERYTHING);
    assert_eq!(scenario.title, "Every word of the language");
    assert_eq!(scenario.cpus, 8);
    let topology = TopologySpec { sockets: 2, cores: 2, threads: 2, numa: 2 };
    assert_eq!(scenario.topology, Some(topology));
    assert_eq!(scenario.duration_ns, 600_500_000);
    assert_eq!(scenario.policy, PolicyName::Eevdf);
    assert_eq!(scenario.seed, 255);
    assert_eq!(scenario.costs, CostsName::None);
    let phase = Barrier { name: "phase".into(), line: SourceLine(9), parties: 4 };
    assert_eq!(scenario.barriers, [phase]);
    assert_eq!(scenario.barriers[0].line.0, 9);
}

#[test]
fn defaults() {
    let scenario = parse("for 1s\nthread a\n");
    let mut expected = Scenario::new(1_000_000_000);
    expected.threads.push(ThreadSpec::new("a"));
    assert_eq!(scenario, expected);
    assert_eq!(scenario.threads[0].weight, 64);
    assert_eq!(scenario.threads[0].line.0, 2);
    assert_eq!((scenario.policy, scenario.costs), (PolicyName::Wfq, CostsName::Default));
    let context = parse("for 1s\nthread a budget=1ms period=4ms").threads[0].context;
    let expected = ContextSpec {
        budget_ns: 1_000_000,
        period_ns: 4_000_000,
        deadline_ns: 4_000_000,
        band: 0,
        overrun: Overrun::Throttle,
        refills: 8,
        handler: None,
    };
    assert_eq!(context, Some(expected));
}

#[test]
fn threads_and_programs() {
    let scenario = parse(EVERYTHING);
    let thread = |name: &str| &scenario.threads[scenario.thread_index(name).expect("a thread")];
    let hog = thread("hog");
    assert_eq!((hog.count, hog.weight, hog.class), (3, 128, Class::Batch));
    assert_eq!(hog.cpus, Some(vec![0, 1, 3]));
    assert_eq!((hog.start_ns, hog.home), (5_000_000, Some(0)));
    assert_eq!(hog.program, [Op::RunForever]);
    let client = [
        Op::LoopStart { times: Some(100), end: 6 },
        Op::Run(span(100_000, 200_000)),
        Op::LoopStart { times: None, end: 5 },
        Op::Call(scenario.thread_index("server").expect("a thread")),
        Op::Sleep(span(1_500_000, 1_500_000)),
        Op::LoopEnd { start: 2 },
        Op::LoopEnd { start: 0 },
    ];
    assert_eq!(thread("client").program, client);
    let child = scenario.thread_index("child").expect("a thread");
    assert!(scenario.threads[child].template);
    assert_eq!(scenario.threads[child].count, 0);
    let parent = [
        Op::Fork { thread: child, count: 10 },
        Op::Fork { thread: child, count: 1 },
        Op::Join,
        Op::Yield,
        Op::Barrier(0),
        Op::Exit,
    ];
    assert_eq!(thread("parent").program, parent);
    let context = ContextSpec {
        budget_ns: 2_000_000,
        period_ns: 10_000_000,
        deadline_ns: 8_000_000,
        band: 1,
        overrun: Overrun::Demote,
        refills: 4,
        handler: None,
    };
    assert_eq!(thread("rt").context, Some(context));
    let watched = thread("watched").context.expect("a context");
    assert_eq!((watched.overrun, watched.handler), (Overrun::Fault, scenario.thread_index("handler")));
    assert_eq!(thread("handler").program, [Op::Receive, Op::Release]);
    assert_eq!(scenario.boot_threads(), 3 + 1 + 1 + 1 + 1 + 1 + 2);
}

#[test]
fn what_happens_and_what_should_come_out() {
    let scenario = parse(EVERYTHING);
    // The file gives the stall last; the tree orders by time.
    let actions: Vec<(u64, Action)> =
        scenario.timed.iter().map(|timed| (timed.at_ns / 1_000_000, timed.action)).collect();
    let reconfigured = ContextSpec {
        budget_ns: 1_000_000,
        period_ns: 5_000_000,
        deadline_ns: 4_000_000,
        band: 2,
        overrun: Overrun::Throttle,
        refills: 8,
        handler: None,
    };
    let expected = [
        (10, Action::Stall { cpu: 1, duration_ns: 5_000_000 }),
        (50, Action::Weight(target(0, None), 256)),
        (60, Action::Class(target(0, Some(0)), Class::Interactive)),
        (70, Action::Reconfigure(target(2, None), reconfigured)),
        (80, Action::Revoke(target(2, None))),
        (90, Action::Kill(target(0, Some(2)))),
        (95, Action::Wake(target(1, None))),
    ];
    assert_eq!(actions, expected);
    let checks: Vec<Check> = scenario.expects.iter().map(|expect| expect.check.clone()).collect();
    let (hog0, hog1) = (target(0, Some(0)), target(0, Some(1)));
    let sleeper = target(1, None);
    let expected = [
        Check::Share { target: hog0, share_ppm: 333_000, tolerance_ppm: 50_000 },
        Check::Ratio { left: hog0, right: hog1, ratio_ppm: 2_000_000, tolerance_ppm: 25_000 },
        Check::Latency { target: sleeper, percentile_ppm: 990_000, limit_ns: 10_000_000 },
        Check::Latency { target: sleeper, percentile_ppm: 999_000, limit_ns: 10_000_000 },
        Check::Latency { target: sleeper, percentile_ppm: 1_000_000, limit_ns: 20_000_000 },
        Check::Order { cpu: 0, runs: vec![hog0, hog1, hog0] },
        Check::Order { cpu: 1, runs: vec![hog1, target(1, None)] },
    ];
    assert_eq!(checks, expected);
}

#[test]
fn the_shape_of_lines_does_not_matter() {
    let plain = parse("for 1s\ncpus 4\nthread a cpus=0-1,3\nrun 1ms\nthread b\nyield\n");
    let odd = "\u{feff}\tthread a cpus=3,0-1# no\n".replace("# no", "  # yes")
        + "\r\n   run 1000us #x\r\nthread b\r\nyield\n#\ncpus 4\nfor 1.000s";
    assert_eq!(parse(&odd), plain);
}

#[test]
fn a_zero_time_loop_is_bounded_not_forbidden() {
    let fine = ["loop 1000|yield|end", "loop|exit|end", "loop|fork t|join|end", "loop|call s|end"];
    for program in fine {
        let program = program.replace('|', "\n");
        parse(&format!("for 1s\nthread a\n{program}\nthread t template\nthread s\nreceive\n"));
    }
}

#[test]
fn the_limit_of_threads_counts_all_lines() {
    let exact = format!("for 1s\nthread a count={}\nthread b count=1\n", limits::THREADS_MAX - 1);
    assert_eq!(parse(&exact).boot_threads(), limits::THREADS_MAX);
    let error = refusal(&format!("{exact}thread t template\nthread c\n"));
    assert_eq!((error.line, error.column, error.found.as_str()), (5, 8, "`c`"));
    assert_eq!(error.expected, "no further thread");
}

#[test]
fn the_reference_page_is_true() {
    let samples = documented();
    assert!(samples.len() > 10, "the page has examples");
    for sample in samples {
        parse(&sample);
    }
}

#[test]
fn tolerances_are_relative() {
    assert!(within_ppm(105, 100, 50_000) && within_ppm(95, 100, 50_000));
    assert!(!within_ppm(106, 100, 50_000) && !within_ppm(94, 100, 50_000));
    assert!(within_ppm(0, 0, 0) && !within_ppm(1, 0, 1_000_000));
    assert!(within_ppm(u64::MAX, u64::MAX, 0));
}

#[test]
fn durations_print_exactly() {
    let cases = [(0, "0ns"), (1, "1ns"), (1_500, "1500ns"), (1_500_000, "1500us")];
    for (ns, text) in cases.into_iter().chain([(20_000_000, "20ms"), (3_000_000_000, "3s")]) {
        assert_eq!(duration_text(ns), text);
    }
}

#[test]
fn a_message_shows_the_place() {
    let error = refusal("for 1s\nthread hog wieght=2\n");
    let expected = "\
t.scn:2:12: found `wieght`, expected one of `count`, `weight`, `class`, `cpus`, `start`, `home`, \
`budget`, `period`, `deadline`, `band`, `overrun`, `refills`, `handler`, `template`
   |
 2 | thread hog wieght=2
   |            ^^^^^^
   = note: did you mean `weight`?";
    assert_eq!(error.to_string(), expected);
    // Columns count characters, a tab is one, and escapes do not reach the terminal.
    let error = refusal("for 1s\nthread a\n\trun \u{1b}[1mé # note");
    assert_eq!((error.line, error.column), (3, 6));
    assert!(error.to_string().ends_with(" 3 |  run \u{fffd}[1mé # note\n   |      ^^^^^"), "{error}");
}

#[test]
fn a_message_stays_short() {
    let line = format!("thread a\n{}run {}", " ".repeat(5_000), "x".repeat(5_000));
    let message = refusal(&format!("for 1s\n{line}")).to_string();
    assert!(message.len() < 600, "{message}");
    assert!(message.contains("…`, expected a duration"), "{message}");
    assert!(message.contains("^^^"), "{message}");
}

#[test]
fn bytes_that_are_not_text_have_a_place() {
    let error = Scenario::parse_bytes("t.scn", b"for 1s\nthread \xff\n").expect_err("refused");
    assert_eq!((error.line, error.column, error.found.as_str()), (2, 8, "byte 0xff"));
    assert_eq!(error.expected, "UTF-8 text");
    assert!(Scenario::parse_bytes("t.scn", b"for 1s").is_ok());
}

/// One refusal a line: the text, with `|` between its lines, then what the
/// message says after the file name. `{for}` stands for `for 1s|`, so that most
/// cases start on line 2. A last column in braces is part of the note.
const REFUSALS: &str = include_str!("refusals.txt");

#[test]
fn refusals() {
    let mut cases = 0;
    for case in REFUSALS.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let (text, said) = case.split_once(" => ").expect("a case has an arrow");
        let (said, note) = match said.split_once(" {") {
            Some((said, note)) => (said, note.strip_suffix('}')),
            None => (said, None),
        };
        let error = refusal(&text.replace("{for}", "for 1s|").replace('|', "\n"));
        let ScenarioError { line, column, found, expected, .. } = &error;
        let actual = format!("{line}:{column}: found {found}, expected {expected}");
        assert_eq!(actual, said, "in `{text}`");
        match note {
            None => assert_eq!(error.note, None, "in `{text}`"),
            Some(note) => assert_eq!(error.note.as_deref(), Some(note), "in `{text}`"),
        }
        cases += 1;
    }
    assert!(cases > 90, "only {cases} cases were read");
}
