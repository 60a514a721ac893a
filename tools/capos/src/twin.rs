//! Compares what the kernel prints in a proof of scheduling with the result of the same scenario in the simulator, its twin.
//!
//! A line of the guest is `share <scenario> <thread> <ppm>`: CPU time of all instances of a thread (or of one, `hog#1`) as a part of one CPU's, in
//! millionths. Or it is `order <scenario> <cpu> <thread>...`: the threads that ran on a CPU, in order, without idle time; a thread that continues, or
//! returns after idle time, is named once. The scenario is `sim/scenarios/<scenario>.scn`, played with the policy that the kernel was booted with.

use std::collections::BTreeMap;

use sim::engine::{Engine, Options, Outcome};
use sim::scenario::{PolicyName, Scenario};

use crate::Problem;
use crate::place::{Project, cannot};

/// How much the two may differ, in millionths of a CPU for each CPU's worth of share: 3 points. The simulator's costs are estimates, a guest's
/// programs take time of their own, and windows begin and end in the middle of slices.
pub const TOLERANCE_PPM: u64 = 30_000;

/// One line of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    scenario: String,
    thread: String,
    ppm: u64,
}

fn parse(line: &str) -> Option<Share> {
    let mut words = line.split_whitespace().skip(1);
    let (scenario, thread, ppm) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    Some(Share { scenario: scenario.to_owned(), thread: thread.to_owned(), ppm })
}

/// How the shares that the kernel printed differ from the simulator's; `None` if they agree, or if there are none.
#[must_use]
pub fn differs(project: &Project, options: &str, lines: &[String]) -> Option<String> {
    match compare(project, options, lines) {
        Ok(rows) => rows.into_iter().find(|row| !row.agrees).map(|row| row.text),
        Err(problem) => Some(problem.to_string()),
    }
}

/// A share beside its twin.
#[derive(Clone, Debug)]
pub struct Row {
    /// For people.
    pub text: String,
    /// Whether the two are near enough.
    pub agrees: bool,
}

/// Plays the scenarios that the lines name, and puts each share beside its twin.
///
/// # Errors
/// When a line is malformed, or names a scenario or thread that does not exist.
pub fn compare(project: &Project, options: &str, lines: &[String]) -> Result<Vec<Row>, Problem> {
    let policy = options.split([' ', ',']).find_map(|word| word.strip_prefix("policy="));
    let mut played: BTreeMap<String, (Scenario, Outcome)> = BTreeMap::new();
    let mut rows = Vec::new();
    for line in lines {
        if let Some(order) = parse_order(line) {
            let name = order.scenario.to_owned();
            if !played.contains_key(&name) {
                played.insert(name.clone(), play(project, &name, policy)?);
            }
            rows.push(compare_order(&order, &played[&name].1)?);
            continue;
        }
        let share = parse(line)
            .ok_or_else(|| Problem(format!("`{line}` is not `share SCENARIO THREAD MILLIONTHS`")))?;
        if !played.contains_key(&share.scenario) {
            played.insert(share.scenario.clone(), play(project, &share.scenario, policy)?);
        }
        let (scenario, outcome) = &played[&share.scenario];
        let twin = share_of(scenario, outcome, &share.thread).ok_or_else(|| {
            Problem(format!("sim/scenarios/{}.scn has no thread `{}`", share.scenario, share.thread))
        })?;
        let allowed = TOLERANCE_PPM * twin.div_ceil(1_000_000).max(1);
        let agrees = share.ppm.abs_diff(twin) <= allowed;
        let text = format!(
            "{} {}: the kernel gave it {} of a CPU, the simulator {}{}",
            share.scenario,
            share.thread,
            percent(share.ppm),
            percent(twin),
            if agrees { String::new() } else { format!("; more than {} apart", percent(allowed)) }
        );
        rows.push(Row { text, agrees });
    }
    Ok(rows)
}

/// One line of the guest: the threads that ran on a CPU.
struct Order<'a> {
    scenario: &'a str,
    cpu: u16,
    names: Vec<&'a str>,
}

fn parse_order(line: &str) -> Option<Order<'_>> {
    let mut words = line.split_whitespace();
    let (kind, scenario, cpu) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    (kind == "order").then(|| Order { scenario, cpu, names: words.collect() })
}

/// The two agree if one is the beginning of the other, apart from the last run: a window may end just before or just after it.
fn compare_order(order: &Order<'_>, outcome: &Outcome) -> Result<Row, Problem> {
    let Order { scenario, cpu, names } = order;
    let trace = outcome.trace.as_ref().ok_or_else(|| Problem::new("the simulator kept no trace"))?;
    if *cpu >= trace.cpus {
        return Err(Problem(format!("sim/scenarios/{scenario}.scn has no CPU {cpu}")));
    }
    let infos = trace.by_id();
    let runs = trace.runs();
    let mut twin: Vec<&str> = runs
        .iter()
        .filter(|run| run.cpu == *cpu && run.kind == trace::RunKind::Thread && run.duration_ns() > 0)
        .filter_map(|run| infos.get(&run.thread?).map(|info| info.name.as_str()))
        .collect();
    twin.dedup();
    let common = names.len().min(twin.len());
    let agrees = common > 0 && names[..common] == twin[..common] && names.len().abs_diff(twin.len()) <= 1;
    let text = if agrees {
        format!("{scenario} CPU {cpu}: {} runs in the same order", common)
    } else {
        let (kernel, simulator) = (names.join(" "), twin.join(" "));
        format!("{scenario} CPU {cpu}: the kernel ran {kernel}, the simulator {simulator}")
    };
    Ok(Row { text, agrees })
}

fn percent(ppm: u64) -> String {
    format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100)
}

fn play(project: &Project, name: &str, policy: Option<&str>) -> Result<(Scenario, Outcome), Problem> {
    let path = project.root.join("sim/scenarios").join(format!("{name}.scn"));
    let text = std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    let mut scenario = Scenario::parse(name, &text).map_err(|error| Problem(error.to_string()))?;
    if let Some(policy) = policy {
        scenario.policy = PolicyName::from_name(policy)
            .ok_or_else(|| Problem(format!("`policy={policy}`: the simulator has wfq and eevdf")))?;
    }
    let options = Options::of(&scenario);
    let outcome = Engine::new(&scenario, options).and_then(Engine::run);
    let outcome = outcome.map_err(|error| Problem(format!("{name} in the simulator: {error}")))?;
    Ok((scenario, outcome))
}

/// CPU time of a thread's instances, or of one of them, as a part of one CPU's.
fn share_of(scenario: &Scenario, outcome: &Outcome, thread: &str) -> Option<u64> {
    let (name, instance) = match thread.split_once('#') {
        Some((name, instance)) => (name, Some(instance.parse::<u32>().ok()?)),
        None => (thread, None),
    };
    let spec = scenario.threads.iter().position(|spec| spec.name == name)?;
    let mut meant = outcome
        .threads
        .iter()
        .filter(|thread| thread.spec == spec && instance.is_none_or(|one| one == thread.instance))
        .peekable();
    meant.peek()?;
    let ran: u64 = meant.map(|thread| thread.snapshot.runtime_ns).sum();
    Some((u128::from(ran) * 1_000_000 / u128::from(outcome.end_ns.max(1))) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(options: &str, lines: &[&str]) -> Result<Vec<Row>, Problem> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let project = Project { root: root.into(), target: "target".into() };
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        compare(&project, options, &lines)
    }

    /// F-07, F-16: a share is compared with the simulator's, near ones agree and others do not, under either policy.
    #[test]
    fn f_16_shares_are_compared_with_the_simulator() {
        for options in ["", "trace=0 policy=eevdf"] {
            let found =
                rows(options, &["share three-on-two hog 1990000", "share two-to-one A 500000"]).unwrap();
            assert!(found[0].agrees && !found[1].agrees, "{found:?}");
            assert!(found[1].text.contains("50.00 %"), "{found:?}");
        }
    }

    /// S-06: the order of runs is compared, CPU by CPU; one run more or less at the end is allowed.
    #[test]
    fn s_06_orders_are_compared_with_the_simulator() {
        let judged = |line: &str| rows("", &[line]).unwrap().remove(0);
        assert!(judged("order ctx-dry 0 c s hog s c s hog s").agrees);
        assert!(judged("order ctx-dry 0 c s hog s c s hog").agrees);
        assert!(judged("order ctx-across 0 h0 c s c h0 c s c h0 c").agrees);
        assert!(judged("order ctx-across 1 s h1").agrees);
        for wrong in ["c s hog s c s", "c s hog c s hog s hog", "", "s c s hog s c s hog s"] {
            let row = judged(&format!("order ctx-dry 0 {wrong}"));
            assert!(!row.agrees, "{row:?}");
            assert!(row.text.contains("the simulator c s hog s c s hog s"), "{row:?}");
        }
        assert!(rows("", &["order ctx-dry 1 c"]).is_err());
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for (line, why) in [
            ("share three-on-two hog#1", "is not"),
            ("share three-on-two hog#7 1", "no thread"),
            ("share three-on-two cat 1", "no thread"),
            ("share no-such-thing hog 1", "cannot read"),
        ] {
            let error = rows("", &[line]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(rows("policy=fifo", &["share three-on-two hog 1"]).is_err());
    }
}
