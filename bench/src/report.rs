//! What every benchmark shares: interleaved repetitions, medians with their spread, and rows on the terminal and in
//! `target/bench/<target>.tsv`.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

/// The first line of every TSV.
pub const HEADER: &str = "row\tours\tpeer\ttheirs\tunit\tbetter\tratio";

/// Which way a unit runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Better::Lower => "lower",
            Better::Higher => "higher",
        })
    }
}

/// The figure of several repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The middle one (of an even number, the mean of the two in the middle).
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Sample {
    /// From at least one figure.
    ///
    /// # Panics
    /// If there is none: a benchmark that measured nothing has no result.
    pub fn of(figures: &[f64]) -> Sample {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (last, middle) = (sorted.len() - 1, sorted.len() / 2);
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Sample { median, least: sorted[0], most: sorted[last] }
    }

    /// A figure that does not vary.
    pub fn exact(figure: f64) -> Sample {
        Sample { median: figure, least: figure, most: figure }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", figure(self.median))?;
        if self.least < self.most {
            write!(f, " ({}..{})", figure(self.least), figure(self.most))?;
        }
        Ok(())
    }
}

/// Runs every contestant `reps` times and answers their samples in the same order.
///
/// Repetitions are interleaved, so that a disturbance of the machine hits all alike, and each round starts with the
/// next contestant, so that nobody always runs in the cache that another one left.
pub fn interleave(reps: usize, contestants: &mut [&mut dyn FnMut() -> f64]) -> Vec<Sample> {
    let count = contestants.len();
    let mut figures = vec![Vec::with_capacity(reps); count];
    for rep in 0..reps.max(1) {
        for turn in 0..count {
            let who = (rep + turn) % count;
            figures[who].push(contestants[who]());
        }
    }
    figures.iter().map(|figures| Sample::of(figures)).collect()
}

/// One comparison: us and one peer.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured, such as `wfq-1000-ns`.
    pub name: String,
    /// Our figure.
    pub ours: Sample,
    /// Whom we are compared with.
    pub peer: String,
    /// Its figure.
    pub theirs: Sample,
    /// Of both figures.
    pub unit: &'static str,
    /// Which way the unit runs.
    pub better: Better,
}

impl Row {
    /// Above 1 if we are ahead, whichever way the unit runs.
    pub fn ratio(&self) -> f64 {
        match self.better {
            Better::Lower => self.theirs.median / self.ours.median,
            Better::Higher => self.ours.median / self.theirs.median,
        }
    }

    fn tsv(&self) -> String {
        let (ours, theirs) = (figure(self.ours.median), figure(self.theirs.median));
        let ratio = self.ratio();
        format!("{}\t{ours}\t{}\t{theirs}\t{}\t{}\t{ratio:.3}", self.name, self.peer, self.unit, self.better)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { name, ours, peer, theirs, unit, .. } = self;
        let verdict = if self.ratio() > 1.0 { "ahead" } else { "BEHIND" };
        write!(f, "{name:<40} {ours} {unit}, {peer} {theirs}: {:.2} {verdict}", self.ratio())
    }
}

/// Three significant digits at least, and no more decimals than that takes.
fn figure(value: f64) -> String {
    match value.abs() {
        least if least < 10.0 => format!("{value:.2}"),
        least if least < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The rows of one benchmark: printed as they come, and written to its TSV at the end.
pub struct Report {
    target: &'static str,
    rows: Vec<Row>,
}

impl Report {
    /// For the `make` target of this name.
    pub fn new(target: &'static str) -> Report {
        Report { target, rows: Vec::new() }
    }

    /// Prints a row and keeps it.
    pub fn push(&mut self, row: Row) {
        println!("{row}");
        self.rows.push(row);
    }

    /// What the file will hold.
    pub fn tsv(&self) -> String {
        let lines = self.rows.iter().map(Row::tsv);
        std::iter::once(HEADER.to_string()).chain(lines).map(|line| line + "\n").collect()
    }

    /// Writes `target/bench/<target>.tsv` of this source tree, whatever the current directory is; answers where it is.
    pub fn write(&self) -> io::Result<PathBuf> {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        fs::create_dir_all(&directory)?;
        let path = directory.canonicalize()?.join(format!("{}.tsv", self.target));
        fs::write(&path, self.tsv())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spread() {
        let odd = Sample::of(&[9.0, 1.0, 5.0]);
        assert_eq!(odd, Sample { median: 5.0, least: 1.0, most: 9.0 });
        assert_eq!(Sample::of(&[4.0, 1.0, 2.0, 100.0]).median, 3.0);
        assert_eq!(odd.to_string(), "5.00 (1.00..9.00)");
        assert_eq!(Sample::exact(1234.5).to_string(), "1234");
    }

    /// Every round begins with the next contestant, and results come back in the order of the arguments.
    #[test]
    fn repetitions_are_interleaved() {
        let order = std::cell::RefCell::new(String::new());
        let named = |name: char, value: f64| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                value
            }
        };
        let (mut a, mut b, mut c) = (named('a', 1.0), named('b', 2.0), named('c', 3.0));
        let samples = interleave(3, &mut [&mut a, &mut b, &mut c]);
        assert_eq!(*order.borrow(), "abcbcacab");
        assert_eq!(samples.iter().map(|sample| sample.median).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    }

    /// The ratio is above 1 for the winner whichever way the unit runs, and the columns are those of the header.
    #[test]
    fn rows() {
        let mut row = Row {
            name: "wfq-10-ns".into(),
            ours: Sample::exact(50.0),
            peer: "btreeset".into(),
            theirs: Sample::exact(100.0),
            unit: "ns",
            better: Better::Lower,
        };
        let mut report = Report::new("test");
        report.push(row.clone());
        row.better = Better::Higher;
        report.push(row);
        assert_eq!(
            report.tsv(),
            "row\tours\tpeer\ttheirs\tunit\tbetter\tratio\n\
             wfq-10-ns\t50.0\tbtreeset\t100\tns\tlower\t2.000\n\
             wfq-10-ns\t50.0\tbtreeset\t100\tns\thigher\t0.500\n"
        );
    }
}
