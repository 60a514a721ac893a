//! Does a run meet what its scenario expects of it?

use crate::engine::Outcome;
use crate::report::units::Human;
use crate::report::{percentile_ppm, wake_waits};
use crate::scenario::{Check, ContextSpec, Expect, Op, Overrun, Scenario, Target, within_ppm};

/// One expectation, and how it turned out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its line in the scenario.
    pub line: u32,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// Whether the two agree.
    pub met: bool,
}

/// Judges every `expect` line of a scenario.
#[must_use]
pub fn judge(scenario: &Scenario, outcome: &Outcome) -> Vec<Verdict> {
    scenario.expects.iter().map(|expect| judge_one(scenario, outcome, expect)).collect()
}

fn judge_one(scenario: &Scenario, outcome: &Outcome, expect: &Expect) -> Verdict {
    let (found, met) = match &expect.check {
        Check::Share { target, share_ppm, tolerance_ppm } => {
            let share = ppm(run_ns(outcome, *target), outcome.end_ns);
            (percent(share), within_ppm(share, *share_ppm, *tolerance_ppm))
        }
        Check::Ratio { left, right, ratio_ppm, tolerance_ppm } => {
            let ratio = ppm(run_ns(outcome, *left), run_ns(outcome, *right));
            (
                format!("{}.{:03}", ratio / 1_000_000, ratio % 1_000_000 / 1_000),
                within_ppm(ratio, *ratio_ppm, *tolerance_ppm),
            )
        }
        Check::Latency { target, percentile_ppm: percentile_ppm_asked, limit_ns } => {
            let waits = outcome.trace.as_ref().map(wake_waits).unwrap_or_default();
            let mut waits: Vec<u64> =
                members(outcome, *target).filter_map(|at| waits.get(at)).flatten().copied().collect();
            waits.sort_unstable();
            let wait = percentile_ppm(&waits, *percentile_ppm_asked);
            if waits.is_empty() {
                ("no wake-up at all".into(), false)
            } else {
                (Human(wait).to_string(), wait <= *limit_ns)
            }
        }
        Check::Order { cpu, runs } => {
            let kept = &outcome.order[*cpu as usize];
            let fits = runs.len() <= kept.len()
                && runs
                    .iter()
                    .zip(kept)
                    .all(|(target, index)| members(outcome, *target).any(|at| at == *index as usize));
            let names: Vec<&str> = kept
                .iter()
                .take(runs.len())
                .map(|index| outcome.threads[*index as usize].name.as_str())
                .collect();
            (names.join(" "), fits)
        }
    };
    Verdict { line: expect.line.0, expected: scenario.describe_check(&expect.check), found, met }
}

/// The shares that perfectly divisible CPUs would give, for scenarios in which every thread always wants to run: contexts get
/// their budgets, the others share the rest by weight, and no thread gets more than one CPU. `None` for scenarios that are
/// not so simple.
#[must_use]
pub fn fluid_shares(scenario: &Scenario) -> Option<Vec<f64>> {
    let simple = scenario.timed.is_empty()
        && scenario.threads.iter().all(|thread| {
            let throttled = |context: &ContextSpec| context.overrun == Overrun::Throttle;
            thread.program == [Op::RunForever]
                && thread.start_ns == 0
                && thread.cpus.is_none()
                && thread.context.as_ref().is_none_or(throttled)
        });
    if !simple {
        return None;
    }
    let mut shares = Vec::new();
    let mut capacity = f64::from(scenario.cpus);
    let mut weights = Vec::new();
    for thread in &scenario.threads {
        for _ in 0..thread.count {
            let promised =
                thread.context.as_ref().map(|context| context.budget_ns as f64 / context.period_ns as f64);
            capacity -= promised.unwrap_or(0.0);
            weights.push(if promised.is_some() { 0.0 } else { f64::from(thread.weight) });
            shares.push(promised.unwrap_or(0.0));
        }
    }
    // A thread whose weight asks for more than one CPU gets one; the others share what is left. At most one round a thread.
    for _ in 0..weights.len() {
        let total: f64 = weights.iter().sum();
        let Some(at) =
            (0..weights.len()).find(|at| weights[*at] > 0.0 && weights[*at] / total * capacity > 1.0)
        else {
            break;
        };
        shares[at] = 1.0;
        weights[at] = 0.0;
        capacity -= 1.0;
    }
    let total: f64 = weights.iter().sum();
    for (share, weight) in shares.iter_mut().zip(&weights).filter(|(_, weight)| **weight > 0.0) {
        *share = weight / total * capacity;
    }
    Some(shares)
}

fn members(outcome: &Outcome, target: Target) -> impl Iterator<Item = usize> {
    let meant = move |at: &usize| {
        let thread = &outcome.threads[*at];
        thread.spec == target.thread && target.instance.is_none_or(|one| one == thread.instance)
    };
    (0..outcome.threads.len()).filter(meant)
}

fn run_ns(outcome: &Outcome, target: Target) -> u64 {
    members(outcome, target).map(|at| outcome.threads[at].snapshot.runtime_ns).sum()
}

fn ppm(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part) * 1_000_000 / u128::from(whole)) as u64 }
}

fn percent(ppm: u64) -> String {
    format!("{}.{:02}%", ppm / 10_000, ppm % 10_000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Options};

    fn verdicts(expects: &str) -> Vec<(String, bool)> {
        let text = format!(
            "for 300ms\ncosts none\nthread a weight=128\n run forever\nthread b\n run forever\nthread s\n loop\n run 1ms\n sleep 20ms\n end\n{expects}\n"
        );
        let scenario = Scenario::parse("t", &text).unwrap();
        let outcome = Engine::new(&scenario, Options::of(&scenario)).unwrap().run().unwrap();
        judge(&scenario, &outcome).into_iter().map(|verdict| (verdict.found, verdict.met)).collect()
    }

    #[test]
    fn fluid_shares_by_hand() {
        let shares = |text: &str| fluid_shares(&Scenario::parse("t", text).unwrap());
        let two = "for 1s\ncpus 2\nthread a weight=640\n run forever\nthread b count=2\n run forever\n";
        assert_eq!(shares(two), Some(vec![1.0, 0.5, 0.5]));
        let budget = "for 1s\nthread a budget=1ms period=4ms\n run forever\nthread b\n run forever\n";
        assert_eq!(shares(budget), Some(vec![0.25, 0.75]));
        assert_eq!(shares("for 1s\nthread a\n sleep 1ms\n"), None);
    }

    /// Every kind of expectation can be met and can be missed.
    #[test]
    fn expectations_can_fail() {
        assert!(verdicts("expect ratio a b 2 +-10%")[0].1);
        assert!(!verdicts("expect ratio a b 3 +-10%")[0].1);
        assert!(verdicts("expect share a 63% +-5%")[0].1);
        assert!(!verdicts("expect share a 50% +-5%")[0].1);
        assert!(verdicts("expect latency s max <= 10ms")[0].1);
        assert!(
            !verdicts("expect latency a p50 <= 1ns\nexpect latency s max <= 10ms\nexpect order s s")[2].1
        );
        assert!(verdicts("expect order a b")[0].1);
    }
}
