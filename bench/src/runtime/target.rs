//! What we want to reach, row by row, and whether we did. A target is a ratio to a peer in the same run wherever there
//! is one: absolute times move with the machine.

use std::fmt;

use super::case::BLOCKING;
use super::contestant::PINNED;
use crate::report::{Better, Sample};

/// All figures of one row.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The row.
    pub row: String,
    /// Which way it runs.
    pub better: Better,
    /// Of the figures.
    pub unit: &'static str,
    /// Our figure, if we have one.
    pub ours: Option<Sample>,
    /// The figures of those peers that have one.
    pub theirs: Vec<(&'static str, Sample)>,
}

/// What our figure is held against.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    /// So many times the figure of the best of these peers.
    Best(f64, &'static [&'static str]),
    /// A figure that does not depend on others.
    Bound(f64),
    /// So many times our own figure in another row.
    Own(f64, &'static str),
}

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The row that it is about.
    pub row: &'static str,
    /// What to be as good as.
    pub mark: Mark,
}

const fn target(row: &'static str, mark: Mark) -> Target {
    Target { row, mark }
}

/// Whoever moves messages, threads of the system included.
const MESSENGERS: &[&str] = &["tokio", "async-executor", "may", "go", "boost-fiber", "threads"];
const TREES: &[&str] = &["tokio", "async-executor", "go"];

/// Every target. Rayon is no mark for spawning: its tasks cannot block.
pub const TARGETS: &[Target] = &[
    target("switch", Mark::Best(1.0, &["corosensei"])),
    target("switch-out-of-line", Mark::Best(1.0, &["boost-context"])),
    target("yield-w1", Mark::Best(0.5, BLOCKING)),
    target("spawn-join-1m-w1", Mark::Best(1.5, BLOCKING)),
    target("spawn-join-1m-w2", Mark::Best(1.5, BLOCKING)),
    target("spawn-join-one-w1", Mark::Best(0.4, BLOCKING)),
    target("spawn-join-one-w2", Mark::Best(0.4, BLOCKING)),
    target("spawn-join-one-w2", Mark::Best(0.5, &["tokio"])),
    target("skynet-w1", Mark::Best(0.5, TREES)),
    target("skynet-w2", Mark::Best(0.5, TREES)),
    target("skynet-w2", Mark::Own(1.0, "skynet-w1")),
    target("parked-bytes", Mark::Bound(4_500.0)),
    target("parked-spawn-ms", Mark::Best(1.5, &["floor"])),
    target("parked-wake-ms", Mark::Best(1.0, &["go"])),
    target("pingpong-w1", Mark::Best(0.6, BLOCKING)),
    target("pingpong-w2", Mark::Best(0.6, BLOCKING)),
    target("mpmc-4p4c-w1", Mark::Best(1.0, MESSENGERS)),
    target("mpmc-4p4c-w2", Mark::Best(1.0, MESSENGERS)),
    target("steal-searching-p50", Mark::Best(1.0, &["rayon"])),
    target("steal-searching-p99", Mark::Best(1.0, &["rayon"])),
    target("steal-parked-p50", Mark::Best(1.1, &["floor"])),
    target("steal-parked-p99", Mark::Best(1.1, &["floor"])),
    target("steal-parked-p99", Mark::Best(1.5, &["floor"])),
    target("scaling", Mark::Bound(1.95)),
    // The same on both, but for what the machine's noise is.
    target("timeouts-w2", Mark::Own(1.1, "timeouts-w1")),
    target("timeouts-w2", Mark::Best(1.0, &["tokio"])),
    target("hog-progress", Mark::Bound(1.0)),
    target("check-loop", Mark::Best(1.05, &["unchecked"])),
    target("check-call", Mark::Best(1.05, &["unchecked"])),
    target("budgeted-call", Mark::Best(1.05, &["unchecked"])),
];

/// How a target came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The row.
    pub row: &'static str,
    /// The target in words, such as `<= 0.50 x may (35.1 ns)`.
    pub wanted: String,
    /// Our figure and its ratio to the mark without its factor, in words.
    pub reached: String,
    /// Our figure with tasks that stay with their thread, in words, if that was measured. It meets nothing and misses nothing.
    pub pinned: Option<String>,
    /// Whether we are there; `None` if a figure is missing.
    pub met: Option<bool>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        };
        let Verdict { row, wanted, reached, pinned, .. } = self;
        let pinned = pinned.as_deref().map(|figure| format!("pinned {figure}")).unwrap_or_default();
        let line = format!("{row:<22} {verdict:<13} {reached:<28} {wanted:<36} {pinned}");
        f.write_str(line.trim_end())
    }
}

impl Target {
    /// Holds the figures of a run against the target; `None` if its row was not run at all.
    pub fn judge(&self, rows: &[Measured]) -> Option<Verdict> {
        let row = rows.iter().find(|measured| measured.row == self.row)?;
        let sign = if row.better == Better::Lower { "<=" } else { ">=" };
        let (factor, mark, whose) = match self.mark {
            Mark::Bound(bound) => (1.0, Some(bound), String::new()),
            Mark::Own(factor, other) => {
                let own = rows.iter().find(|measured| measured.row == other).and_then(|row| row.ours);
                (factor, own.map(|sample| sample.median), format!("{factor} x our {other}, "))
            }
            Mark::Best(factor, peers) => {
                let best = row.best(peers);
                let name = best.map_or_else(|| peers.join(" or "), |(name, _)| name.to_string());
                (factor, best.map(|(_, sample)| sample.median), format!("{factor} x {name}, "))
            }
        };
        let unit = row.unit;
        let limit = mark.map(|mark| mark * factor);
        let wanted = match limit {
            Some(limit) => format!("{sign} {whose}{limit:.2} {unit}"),
            None => format!("{sign} {whose}which has no figure"),
        };
        let ours = row.ours.map(|sample| sample.median);
        let reached = match (ours, mark) {
            (Some(ours), Some(mark)) => format!("{ours:.2} {unit} ({:.2} x)", ours / mark),
            (Some(ours), None) => format!("{ours:.2} {unit}"),
            (None, _) => "no figure of ours".to_string(),
        };
        let met = ours.zip(limit).map(|(ours, limit)| match row.better {
            Better::Lower => ours <= limit,
            Better::Higher => ours >= limit,
        });
        let pinned = row.best(&[PINNED]).map(|(_, sample)| format!("{:.2} {unit}", sample.median));
        Some(Verdict { row: self.row, wanted, reached, pinned, met })
    }
}

impl Measured {
    /// The best of these peers.
    fn best(&self, peers: &[&str]) -> Option<(&'static str, Sample)> {
        let of = self.theirs.iter().copied().filter(|(name, _)| peers.contains(name));
        let by_median =
            |one: &(&str, Sample), other: &(&str, Sample)| one.1.median.total_cmp(&other.1.median);
        match self.better {
            Better::Lower => of.min_by(by_median),
            Better::Higher => of.max_by(by_median),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::case::{CASES, Kind};

    fn row(name: &str, better: Better, ours: Option<f64>, theirs: &[(&'static str, f64)]) -> Measured {
        let theirs = theirs.iter().map(|(peer, figure)| (*peer, Sample::exact(*figure))).collect();
        Measured { row: name.into(), better, unit: "u", ours: ours.map(Sample::exact), theirs }
    }

    fn met(target: Target, rows: &[Measured]) -> Option<bool> {
        target.judge(rows).unwrap().met
    }

    #[test]
    fn ratios_to_the_best_of_the_right_peers() {
        let yields = target("y", Mark::Best(0.5, &["may", "go"]));
        let peers = [("may", 80.0), ("go", 130.0), ("rayon", 1.0)];
        for (ours, expected) in [(Some(40.0), Some(true)), (Some(41.0), Some(false)), (None, None)] {
            assert_eq!(met(yields, &[row("y", Better::Lower, ours, &peers)]), expected);
        }
        let verdict = yields.judge(&[row("y", Better::Lower, Some(20.0), &peers)]).unwrap();
        assert_eq!(
            (verdict.wanted.as_str(), verdict.reached.as_str()),
            ("<= 0.5 x may, 40.00 u", "20.00 u (0.25 x)")
        );
        // Ourselves in another configuration is shown, and is no mark.
        let peers = [("may", 80.0), ("go", 130.0), (PINNED, 3.0)];
        let verdict = yields.judge(&[row("y", Better::Lower, Some(20.0), &peers)]).unwrap();
        assert_eq!((verdict.met, verdict.pinned.as_deref()), (Some(true), Some("3.00 u")));
        assert!(verdict.to_string().ends_with("pinned 3.00 u"), "{verdict}");
        let rates = target("r", Mark::Best(1.5, &["may", "go"]));
        for (ours, expected) in [(195.0, true), (194.0, false)] {
            assert_eq!(met(rates, &[row("r", Better::Higher, Some(ours), &peers)]), Some(expected));
        }
        assert_eq!(met(rates, &[row("r", Better::Higher, Some(1.0), &[("rayon", 1.0)])]), None);
        assert!(rates.judge(&[]).is_none());
    }

    #[test]
    fn bounds_and_own_rows() {
        let scaling = target("s", Mark::Bound(1.95));
        assert_eq!(met(scaling, &[row("s", Better::Higher, Some(1.95), &[])]), Some(true));
        let two = target("b", Mark::Own(1.0, "a"));
        let (a, b) = (row("a", Better::Lower, Some(2.0), &[]), row("b", Better::Lower, Some(3.0), &[]));
        assert_eq!(met(two, &[a, b.clone()]), Some(false));
        assert_eq!(met(two, &[b]), None);
    }

    /// A target of a misspelt row would never be judged, one against a peer that does not run it never met.
    #[test]
    fn every_target_has_its_row() {
        // Instructions are counted apart, and the work without checks is their peer.
        let counted =
            |target: &&Target| ["check-", "budgeted-"].iter().any(|kind| target.row.starts_with(kind));
        for target in TARGETS.iter().filter(|target| !counted(target)) {
            let case = CASES.iter().find(|case| {
                case.workers
                    .iter()
                    .any(|&workers| case.figures.iter().any(|figure| case.row(figure, workers) == target.row))
            });
            let case = case.unwrap_or_else(|| panic!("{target:?}"));
            if let Mark::Best(_, peers) = target.mark {
                assert!(peers.iter().any(|peer| case.peers.contains(peer)), "{target:?}");
            }
            assert!(case.kind != Kind::Factor || matches!(target.mark, Mark::Bound(_)));
        }
    }
}
