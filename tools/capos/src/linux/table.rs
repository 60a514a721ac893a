//! The measurements side by side: which of Linux's ways is the best, which system is ahead, and what is kept of it.

use std::fmt::Write as _;

use crate::Problem;
use crate::bench;

/// One figure of a guest: `bench <row>/<way> <number>`. capOS has one way to do a thing, and does not name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) row: String,
    pub(crate) way: String,
    pub(crate) number: u64,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) target: Option<u64>,
    unit: &'static str,
}

const NS: &str = "ns";
/// Thousandths of a percentage point.
const MPP: &str = "mpp";

/// Rows of time and share, which `bench` does not have: their names end with their unit. A sleeper may be late by one slice of 3 ms at
/// worst.
const SHARES: [Row; 10] = [
    Row { name: "hog-delay-p50-ns", target: Some(2_000), unit: NS },
    Row { name: "hog-delay-p99-ns", target: Some(3_000_000), unit: NS },
    Row { name: "hog-delay-worst-ns", target: None, unit: NS },
    Row { name: "4-hogs-delay-p50-ns", target: None, unit: NS },
    Row { name: "4-hogs-delay-p99-ns", target: None, unit: NS },
    Row { name: "4-hogs-delay-worst-ns", target: None, unit: NS },
    Row { name: "share-2to1-error-mpp", target: Some(100), unit: MPP },
    Row { name: "share-2to1-worst-100ms-mpp", target: Some(5_000), unit: MPP },
    // The setting that capOS offers: class interactive has slices of half the length. Linux has the same figure for both.
    Row { name: "share-2to1-interactive-error-mpp", target: Some(100), unit: MPP },
    Row { name: "share-2to1-interactive-worst-100ms-mpp", target: Some(5_000), unit: MPP },
];

impl Row {
    fn all() -> impl Iterator<Item = Row> {
        let costs = bench::ROWS.iter();
        costs.map(|row| Row { name: row.name, target: Some(row.target), unit: "instructions" }).chain(SHARES)
    }

    pub(crate) fn is_of_one_cpu(&self) -> bool {
        !self.is_share() && self.name != bench::ACROSS
    }

    fn is_share(&self) -> bool {
        SHARES.contains(self)
    }
}

/// The figures in a guest's output.
pub(crate) fn figures(text: &str) -> Vec<Figure> {
    let figure = |(name, number): (String, u64)| {
        let (row, way) = name.split_once('/').unwrap_or((&name, ""));
        Figure { row: row.to_owned(), way: way.to_owned(), number }
    };
    bench::rows(text).into_iter().map(figure).collect()
}

/// The smallest figure of a row.
fn least<'f>(figures: &'f [Figure], row: &str) -> Option<&'f Figure> {
    figures.iter().filter(|figure| figure.row == row).min_by_key(|figure| figure.number)
}

/// Fails unless there is a figure for each wanted row.
pub(crate) fn missing(figures: &[Figure], is_wanted: impl Fn(&Row) -> bool) -> Result<(), Problem> {
    let absent: Vec<&str> = Row::all()
        .filter(|row| is_wanted(row) && least(figures, row.name).is_none())
        .map(|row| row.name)
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    Err(Problem(format!("the guest printed no {}; see target/logs", absent.join(", "))))
}

/// Figures of the three systems.
pub(crate) struct Side {
    pub(crate) capos: Vec<Figure>,
    /// Linux without mitigations.
    pub(crate) best: Vec<Figure>,
    /// Linux as it boots.
    pub(crate) default: Vec<Figure>,
}

/// All rows on one model of CPU.
pub(crate) struct Table {
    cpu: String,
    side: Side,
}

/// One line of a table.
struct Line<'t> {
    row: Row,
    ours: Option<u64>,
    best: &'t Figure,
    default: Option<u64>,
}

impl Line<'_> {
    fn ratio(&self) -> Option<f64> {
        self.ours.map(|ours| self.best.number as f64 / ours.max(1) as f64)
    }

    /// Whether the target is met, and whether capOS is behind Linux.
    fn verdict(&self) -> String {
        let Some(ours) = self.ours else { return "not measured".to_owned() };
        let target = self.row.target.map(|target| if ours <= target { "met" } else { "missed" });
        let is_behind = ours > self.best.number;
        match (target, is_behind) {
            (Some(target), false) => target.to_owned(),
            (Some(target), true) => format!("{target}, BEHIND"),
            (None, true) => "BEHIND".to_owned(),
            (None, false) => "ahead".to_owned(),
        }
    }
}

impl Table {
    pub(crate) fn new(cpu: &str, side: Side) -> Table {
        Table { cpu: cpu.to_owned(), side }
    }

    /// Fails unless Linux has every row that it must have, and capOS every cost.
    pub(crate) fn check(&self, with_shares: bool) -> Result<(), Problem> {
        missing(&self.side.capos, |row| !row.is_share())?;
        missing(&self.side.best, |row| with_shares || !row.is_share())?;
        missing(&self.side.default, |row| with_shares || !row.is_share())
    }

    fn rows(&self) -> impl Iterator<Item = Line<'_>> {
        Row::all().filter_map(|row| {
            let number = |figures: &[Figure]| least(figures, row.name).map(|figure| figure.number);
            let best = least(&self.side.best, row.name)?;
            Some(Line { row, ours: number(&self.side.capos), best, default: number(&self.side.default) })
        })
    }

    /// For a person: one line per row, then every way of Linux that was not the best.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "-cpu {}, icount: guest instructions, ns, or thousandths of a percentage point",
                self.cpu
            ),
            format!(
                "{:<26} {:>8} {:>8}  {:<18} {:>8} {:>6} {:>8}",
                "row", "capOS", "Linux", "by", "default", "ratio", "target"
            ),
        ];
        for line in self.rows() {
            let shown = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
            lines.push(format!(
                "{:<26} {:>8} {:>8}  {:<18} {:>8} {:>6} {:>8}  {}",
                line.row.name,
                shown(line.ours),
                line.best.number,
                line.best.way,
                shown(line.default),
                line.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.1}x")),
                shown(line.row.target),
                line.verdict()
            ));
        }
        lines.push("the other ways of Linux, mitigations off:".to_owned());
        for line in self.rows() {
            let others = self.side.best.iter().filter(|figure| figure.row == line.row.name);
            let others: Vec<String> = others
                .filter(|figure| *figure != line.best)
                .map(|figure| format!("{} {}", figure.way, figure.number))
                .collect();
            if !others.is_empty() {
                lines.push(format!("  {:<24} {}", line.row.name, others.join(", ")));
            }
        }
        lines
    }
}

/// Ticks of one number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) workers: u64,
    pub(crate) work: u64,
    pub(crate) total: u64,
    pub(crate) bare: u64,
}

/// The lines of `thread-scale`: each begins with workers, work, total and the bare loop beside it.
pub(crate) fn scale_lines(text: &str) -> Result<Vec<Ticks>, Problem> {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(Ticks { workers: next()?, work: next()?, total: next()?, bare: next()? })
    };
    let found: Vec<Ticks> = text.lines().filter_map(line).collect();
    let workers: Vec<u64> = found.iter().map(|ticks| ticks.workers).collect();
    if workers == [1, 2, 4] {
        Ok(found)
    } else {
        Err(Problem(format!("thread-scale printed lines for {workers:?} workers, not for 1, 2 and 4")))
    }
}

/// Runs of `thread-scale` of both systems, made in turn.
#[derive(Default)]
pub(crate) struct Scaling {
    pub(crate) capos: Vec<Vec<Ticks>>,
    pub(crate) linux: Vec<Vec<Ticks>>,
}

/// A part of a line: work, total, or the bare loop.
type Part = (&'static str, fn(&Ticks) -> u64);

const PARTS: [Part; 3] =
    [("work", |ticks| ticks.work), ("total", |ticks| ticks.total), ("bare", |ticks| ticks.bare)];

/// The speed-up over one worker in each run: median, least, greatest.
fn speed_up(runs: &[Vec<Ticks>], at: usize, part: fn(&Ticks) -> u64) -> [f64; 3] {
    let mut found: Vec<f64> =
        runs.iter().map(|run| part(&run[0]) as f64 / part(&run[at]).max(1) as f64).collect();
    found.sort_by(f64::total_cmp);
    [found[found.len() / 2], found[0], found[found.len() - 1]]
}

impl Scaling {
    /// Each speed-up: its name, that of capOS and that of Linux.
    fn rows(&self) -> Vec<(String, [f64; 3], [f64; 3])> {
        let mut rows = Vec::new();
        for (at, workers) in [(1, 2), (2, 4)] {
            for (name, part) in PARTS {
                let (ours, theirs) = (speed_up(&self.capos, at, part), speed_up(&self.linux, at, part));
                rows.push((format!("thread-scale-{workers}-{name}"), ours, theirs));
            }
        }
        rows
    }

    /// For a person.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "thread-scale, speed-up over one thread: medians of {} boots of each in turn (least to greatest); a report",
                self.capos.len()
            ),
            format!("{:<22} {:<22} {:<22} ratio", "row", "capOS", "Linux"),
        ];
        for (name, ours, theirs) in self.rows() {
            let shown =
                |[median, least, greatest]: [f64; 3]| format!("{median:.2} ({least:.2} to {greatest:.2})");
            let ratio = ours[0] / theirs[0];
            lines.push(format!("{name:<22} {:<22} {:<22} {ratio:.2}", shown(ours), shown(theirs)));
        }
        lines
    }
}

/// The rows as other benchmarks write them: `target/bench/*.tsv`.
pub(crate) fn report(tables: &[Table], scaling: Option<&Scaling>, peer: &str) -> String {
    let mut text = String::from("row\tours\tpeer\ttheirs\tunit\tbetter\tratio\n");
    for (at, table) in tables.iter().enumerate() {
        for line in table.rows() {
            let (Some(ours), Some(ratio)) = (line.ours, line.ratio()) else { continue };
            let suffix = if at == 0 { String::new() } else { format!("@{}", table.cpu) };
            let (name, unit, best) = (line.row.name, line.row.unit, line.best);
            let _ = writeln!(
                text,
                "{name}{suffix}\t{ours}\t{peer} ({})\t{}\t{unit}\tlower\t{ratio:.2}",
                best.way, best.number
            );
        }
    }
    for (name, ours, theirs) in scaling.map(Scaling::rows).unwrap_or_default() {
        let ratio = ours[0] / theirs[0];
        let _ = writeln!(text, "{name}\t{:.2}\t{peer}\t{:.2}\ttimes\thigher\t{ratio:.2}", ours[0], theirs[0]);
    }
    text
}

/// The history with these figures at its end. An entry is one run; speed-ups are in hundredths.
pub(crate) fn history(past: &str, tables: &[Table], scaling: Option<&Scaling>, peer: &str) -> String {
    let mut text = if past.is_empty() {
        "entry\tkernel\tcpu\trow\tcapos\tlinux\tway\tlinux_default\n".to_owned()
    } else {
        past.to_owned()
    };
    let last = past.lines().last().and_then(|line| line.split('\t').next()?.parse::<u64>().ok());
    let entry = last.unwrap_or(0) + 1;
    let shown = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    for table in tables {
        for line in table.rows() {
            let (ours, default, best) = (shown(line.ours), shown(line.default), line.best);
            let (cpu, name) = (&table.cpu, line.row.name);
            let _ = writeln!(
                text,
                "{entry}\t{peer}\t{cpu}\t{name}\t{ours}\t{}\t{}\t{default}",
                best.number, best.way
            );
        }
    }
    for (name, ours, theirs) in scaling.map(Scaling::rows).unwrap_or_default() {
        let _ = writeln!(
            text,
            "{entry}\t{peer}\ttime\t{name}\t{:.0}\t{:.0}\tpthread\t-",
            ours[0] * 100.0,
            theirs[0] * 100.0
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row once, as a guest prints it, with `more` lines behind.
    fn guest(number: u64, more: &str) -> Vec<Figure> {
        let lines: String =
            Row::all().map(|row| format!("bench {}/a {number} (spread 1 to 2)\r\n", row.name)).collect();
        figures(&format!("noise\n{lines}{more}\n"))
    }

    fn table(capos: u64) -> Table {
        let best = guest(1000, "bench ipc-one-cpu/futex 900\nbench ipc-one-cpu/pipe 5000");
        Table::new("max", Side { capos: guest(capos, ""), best, default: guest(1100, "") })
    }

    #[test]
    fn the_least_of_the_ways_is_the_peer() {
        let lines = table(100).lines();
        let line = lines.iter().find(|line| line.starts_with("ipc-one-cpu")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["ipc-one-cpu", "100", "900", "futex", "1100", "9.0x", "1500", "met"]);
        assert!(
            lines.iter().any(|line| line.trim() == "ipc-one-cpu              a 1000, pipe 5000"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_verdict_says_who_is_ahead_and_whether_the_target_is_met() {
        let verdict = |ours, row: &str| {
            let lines = table(ours).lines();
            lines.iter().find(|line| line.starts_with(row)).unwrap().clone()
        };
        assert!(verdict(120, "null-cap-enter").ends_with("150  met"));
        assert!(verdict(160, "null-cap-enter").ends_with("150  missed"));
        assert!(verdict(1001, "sleep-1us").ends_with("2500  met, BEHIND"));
        assert!(verdict(1001, "context-switch").ends_with("800  missed, BEHIND"));
        assert!(verdict(10, "4-hogs-delay-p50-ns").ends_with("-  ahead"));
    }

    #[test]
    fn a_missing_row_is_named() {
        let mut table = table(1);
        assert_eq!(table.check(true), Ok(()));
        table.side.default.retain(|figure| figure.row != "sleep-1us");
        assert!(table.check(false).unwrap_err().0.contains("no sleep-1us"));
        // A share that capOS does not measure is shown as such; one that Linux lacks is a fault, where it is wanted.
        let mut table = self::table(1);
        table.side.capos.retain(|figure| !figure.row.starts_with("share"));
        assert_eq!(table.check(true), Ok(()));
        assert!(table.lines().iter().any(|line| line.ends_with("not measured")));
        table.side.best.retain(|figure| !figure.row.starts_with("share"));
        assert_eq!(table.check(false), Ok(()));
        assert!(table.check(true).is_err());
    }

    #[test]
    fn threads_are_read_from_either_table() {
        let capos = "    threads  work total bare  speed-up\n    1   300  310  200      1.00\n    2 150 155 100 2.00\n4 75 80 50\n";
        let found = scale_lines(capos).unwrap();
        assert_eq!(found[1], Ticks { workers: 2, work: 150, total: 155, bare: 100 });
        assert!(scale_lines("1 2 3 4\n").unwrap_err().0.contains("[1]"));
        let scaling = Scaling { capos: vec![found.clone()], linux: vec![found] };
        assert!(
            scaling.lines().iter().any(|line| line.starts_with("thread-scale-2-work    2.00 (2.00 to 2.00)"))
        );
    }

    #[test]
    fn the_history_grows_by_whole_entries() {
        let tables = [table(100)];
        let first = history("", &tables, None, "Linux x");
        assert!(
            first.starts_with("entry\t")
                && first.contains("1\tLinux x\tmax\tipc-one-cpu\t100\t900\tfutex\t1100\n")
        );
        let second = history(&first, &tables, None, "Linux x");
        assert!(second.starts_with(&first) && second.contains("\n2\tLinux x\t"));
        let report = report(&tables, None, "Linux x");
        assert!(
            report.contains("ipc-one-cpu\t100\tLinux x (futex)\t900\tinstructions\tlower\t9.00\n"),
            "{report}"
        );
    }
}
