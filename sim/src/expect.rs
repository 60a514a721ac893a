//! Does a run meet what its scenario expects of it?

use crate::engine::Outcome;
use crate::scenario::{Check, Expect, Scenario, Target, within_ppm};

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
        Check::Latency { target, percentile_ppm, limit_ns } => {
            let mut waits: Vec<u64> = members(outcome, *target)
                .flat_map(|at| outcome.threads[at].latencies_ns.iter().copied())
                .collect();
            waits.sort_unstable();
            let rank = (waits.len() as u128 * u128::from(*percentile_ppm)).div_ceil(1_000_000) as usize;
            match rank.checked_sub(1).and_then(|at| waits.get(at)) {
                Some(wait) => (crate::scenario::duration_text(*wait), wait <= limit_ns),
                None => ("no wake-up at all".into(), false),
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
