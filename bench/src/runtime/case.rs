//! What is measured: the workloads, the figures that a program prints for each, and who takes part.

use crate::report::Better;

/// One figure that a program prints, and the row that it becomes.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The first word of the line that the program prints.
    pub printed: &'static str,
    /// The row, without the number of workers.
    pub row: &'static str,
    /// The last word of that line.
    pub unit: &'static str,
    /// Which way the unit runs.
    pub better: Better,
}

/// What the figures of a case become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One row for each number of workers, such as `yield-w1`.
    PerWorkers,
    /// One row: the number of workers is no part of its name.
    Plain,
    /// One row: the time with one worker divided by the time with two.
    Factor,
    /// As [`Kind::Plain`], but a ratio of these figures says nothing: printed, and not a row.
    Information,
}

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The first argument of the program.
    pub workload: &'static str,
    /// The second argument: a run for each.
    pub workers: &'static [usize],
    /// What the program prints; what it leaves out has no row.
    pub figures: &'static [Figure],
    /// Who takes part beside ourselves.
    pub peers: &'static [&'static str],
    /// What the figures become.
    pub kind: Kind,
}

impl Case {
    /// Has it tasks that could stay with a thread? Raw switches have none.
    pub fn has_tasks(&self) -> bool {
        self.workload != "switch"
    }

    /// The name of a row of this case.
    pub fn row(&self, figure: &Figure, workers: usize) -> String {
        match self.kind {
            Kind::PerWorkers => format!("{}-w{workers}", figure.row),
            Kind::Plain | Kind::Factor | Kind::Information => figure.row.to_string(),
        }
    }
}

const fn lower(printed: &'static str, row: &'static str, unit: &'static str) -> Figure {
    Figure { printed, row, unit, better: Better::Lower }
}

const fn higher(printed: &'static str, row: &'static str, unit: &'static str) -> Figure {
    Figure { printed, row, unit, better: Better::Higher }
}

/// Runtimes whose tasks may block anywhere: those that we are measured by.
pub const BLOCKING: &[&str] = &["tokio", "tokio-current", "async-executor", "may", "go", "boost-fiber"];

/// Every workload, in the order in which it is run.
pub const CASES: &[Case] = &[
    Case {
        workload: "switch",
        workers: &[1],
        figures: &[lower("switch", "switch", "ns"), lower("switch-out-of-line", "switch-out-of-line", "ns")],
        peers: &["corosensei", "generator", "boost-context", "swapcontext"],
        kind: Kind::Plain,
    },
    Case {
        workload: "yield",
        workers: &[1],
        figures: &[lower("yield", "yield", "ns")],
        peers: BLOCKING,
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "spawn-join",
        workers: &[1, 2],
        figures: &[higher("spawn-join", "spawn-join-1m", "M/s")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "spawn-join-one",
        workers: &[1, 2],
        figures: &[lower("spawn-join-one", "spawn-join-one", "ns")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "skynet",
        workers: &[1, 2],
        figures: &[lower("skynet", "skynet", "ms")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "parked",
        workers: &[1],
        figures: &[
            lower("parked-bytes", "parked-bytes", "bytes"),
            lower("parked-spawn", "parked-spawn-ms", "ms"),
            lower("parked-wake", "parked-wake-ms", "ms"),
        ],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "floor"],
        kind: Kind::Plain,
    },
    Case {
        workload: "pingpong",
        workers: &[1, 2],
        figures: &[lower("pingpong", "pingpong", "ns")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "mpmc",
        workers: &[1],
        figures: &[higher("mpmc", "mpmc-4p4c", "M/s")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber"],
        kind: Kind::PerWorkers,
    },
    // The system places threads, so that they cannot be asked for one worker.
    Case {
        workload: "mpmc",
        workers: &[2],
        figures: &[higher("mpmc", "mpmc-4p4c", "M/s")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "threads"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "steal-searching",
        workers: &[2],
        figures: &[
            lower("steal-searching-p50", "steal-searching-p50", "us"),
            lower("steal-searching-p99", "steal-searching-p99", "us"),
        ],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon", "floor"],
        kind: Kind::Plain,
    },
    Case {
        workload: "steal-parked",
        workers: &[2],
        figures: &[
            lower("steal-parked-p50", "steal-parked-p50", "us"),
            lower("steal-parked-p99", "steal-parked-p99", "us"),
        ],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon", "floor"],
        kind: Kind::Plain,
    },
    Case {
        workload: "scaling",
        workers: &[1, 2],
        figures: &[Figure { printed: "scaling", row: "scaling", unit: "times", better: Better::Higher }],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber", "rayon"],
        kind: Kind::Factor,
    },
    // Each worker's task has as much to do: the figures of one and of two are to be the same.
    Case {
        workload: "timeouts",
        workers: &[1, 2],
        figures: &[lower("timeouts", "timeouts", "ns")],
        peers: &["tokio", "go"],
        kind: Kind::PerWorkers,
    },
    Case {
        workload: "hog",
        workers: &[1],
        figures: &[higher("hog", "hog-progress", "yields")],
        peers: &["tokio", "async-executor", "may", "go", "boost-fiber"],
        kind: Kind::Information,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::contestant::NAMES;

    #[test]
    fn peers_are_known_and_rows_are_distinct() {
        let mut rows = Vec::new();
        for case in CASES {
            assert!(case.peers.iter().all(|peer| NAMES.contains(peer)), "{case:?}");
            // A factor is one row of all its runs.
            let runs = if case.kind == Kind::Factor { &case.workers[..1] } else { case.workers };
            rows.extend(
                runs.iter()
                    .flat_map(|&workers| case.figures.iter().map(move |figure| case.row(figure, workers))),
            );
        }
        let count = rows.len();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), count);
        for known in ["yield-w1", "spawn-join-1m-w2", "parked-bytes", "mpmc-4p4c-w2", "steal-searching-p50"] {
            assert!(rows.iter().any(|row| row == known), "{known}");
        }
    }
}
