//! Tables: the columns of a summary, and how they look in a terminal.
//!
//! The HTML report shows the same tables, so that a column is defined once.

use super::units::{Count, Human, Percent};
use super::{Summary, escape};
use std::fmt::Write as _;

/// A terminal shows at most this many rows of a table; the HTML report and the trace have all.
pub const TERMINAL_ROWS_MAX: usize = 64;

/// A terminal's columns. A table that is wider comes closer together and leaves out columns that say nothing.
pub const TERMINAL_COLUMNS_MAX: usize = 100;

/// A table of text. The first column is text and aligned left, the others are figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Column names.
    pub head: Vec<String>,
    /// Rows, each as long as `head`.
    pub rows: Vec<Vec<String>>,
    /// How many of the first columns are aligned left.
    pub left: usize,
}

impl Table {
    /// An empty table with these columns, of which the first `left` are text.
    #[must_use]
    pub fn new(head: &[&str], left: usize) -> Self {
        let head = head.iter().map(ToString::to_string).collect();
        Self { head, rows: Vec::new(), left }
    }

    /// The table as aligned text, cut after [`TERMINAL_ROWS_MAX`] rows with a note that says so. If it does not fit into [`TERMINAL_COLUMNS_MAX`],
    /// columns in which nothing was counted are left out and named below; if that is not enough, the gaps are narrow.
    #[must_use]
    pub fn text(&self) -> String {
        let clean = |row: &Vec<String>| row.iter().map(|cell| escape::line(cell)).collect::<Vec<_>>();
        let shown: Vec<Vec<String>> = self.rows.iter().take(TERMINAL_ROWS_MAX).map(clean).collect();
        let width = |column: usize| {
            let cells = shown.iter().filter_map(|row| row.get(column)).chain([&self.head[column]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let is_wide = is_too_wide(&widths);
        let says_nothing = |column: usize| shown.iter().all(|row| matches!(row[column].as_str(), "0" | "–"));
        let is_out = |column: usize| is_wide && column >= self.left && says_nothing(column);
        let kept: Vec<usize> = (0..widths.len()).filter(|at| !is_out(*at)).map(|at| widths[at]).collect();
        let is_narrow = is_too_wide(&kept);
        let mut text = String::new();
        let rule: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
        for row in [&self.head, &rule].into_iter().chain(&shown) {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate().filter(|(at, _)| !is_out(*at))
            {
                let gap = match (column, is_narrow) {
                    (0, _) => "",
                    (_, true) => " ",
                    (_, false) => "  ",
                };
                let _ = if column < self.left {
                    write!(line, "{gap}{cell:<width$}")
                } else {
                    write!(line, "{gap}{cell:>width$}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let out: Vec<&str> =
            (0..widths.len()).filter(|at| is_out(*at)).map(|at| self.head[at].as_str()).collect();
        if !out.is_empty() {
            let _ = writeln!(text, "none: {}", out.join(", "));
        }
        let hidden = self.rows.len() - shown.len();
        if hidden > 0 {
            let _ = writeln!(text, "… and {} more rows", Count(hidden as u64));
        }
        text
    }
}

/// Whether columns of these widths, with two blanks between them, do not fit into a terminal.
fn is_too_wide(widths: &[usize]) -> bool {
    widths.iter().sum::<usize>() + 2 * widths.len() > TERMINAL_COLUMNS_MAX + 2
}

/// What each thread got.
#[must_use]
pub fn threads(summary: &Summary) -> Table {
    let head = [
        "thread",
        "class",
        "weight",
        "ran",
        "share",
        "fluid",
        "waits",
        "wake p50",
        "p99",
        "max",
        "preempted",
        "moved",
        "throttled",
    ];
    let mut table = Table::new(&head, 2);
    table.rows.extend(summary.threads.iter().map(|row| {
        let latency = |ns: u64| if row.waits == 0 { "–".to_string() } else { Human(ns).to_string() };
        vec![
            row.name.clone(),
            row.class.clone(),
            row.weight.to_string(),
            Human(row.run_ns).to_string(),
            Percent(row.share).to_string(),
            row.expected_share.map_or_else(|| "–".to_string(), |share| Percent(share).to_string()),
            Count(row.waits).to_string(),
            latency(row.wake_p50_ns),
            latency(row.wake_p99_ns),
            latency(row.wake_max_ns),
            Count(row.preemptions).to_string(),
            Count(row.migrations).to_string(),
            Count(row.throttles).to_string(),
        ]
    }));
    table
}

/// Where each CPU's time went.
#[must_use]
pub fn cpus(summary: &Summary) -> Table {
    let mut table = Table::new(&["cpu", "threads", "idle", "system", "busy"], 1);
    table.rows.extend(summary.cpus.iter().enumerate().map(|(number, cpu)| {
        let total_ns = cpu.thread_ns + cpu.idle_ns + cpu.system_ns;
        let busy = if total_ns == 0 { 0.0 } else { 1.0 - cpu.idle_ns as f64 / total_ns as f64 };
        vec![
            format!("cpu{number}"),
            Human(cpu.thread_ns).to_string(),
            Human(cpu.idle_ns).to_string(),
            Human(cpu.system_ns).to_string(),
            Percent(busy).to_string(),
        ]
    }));
    table
}

/// The counters.
#[must_use]
pub fn counters(summary: &Summary) -> Table {
    let mut table = Table::new(&["counter", "count"], 1);
    let row = |(name, count): &(String, u64)| vec![name.clone(), Count(*count).to_string()];
    table.rows.extend(summary.counters.iter().map(row));
    table
}

/// The whole summary for a terminal.
#[must_use]
pub fn summary(summary: &Summary) -> String {
    let mut text = format!(
        "{}\npolicy {}, seed {}, {} on {} CPU{}\n",
        escape::line(&summary.title),
        escape::line(&summary.policy),
        summary.seed,
        Human(summary.end_ns),
        summary.cpus.len(),
        if summary.cpus.len() == 1 { "" } else { "s" },
    );
    for table in [threads(summary), cpus(summary), counters(summary)] {
        if !table.rows.is_empty() {
            text.push('\n');
            text.push_str(&table.text());
        }
    }
    if !summary.command.is_empty() {
        let _ = writeln!(text, "\nreproduce: {}", escape::line(&summary.command));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CpuRow, ThreadRow};

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "n"], 1);
        table.rows.push(vec!["käse".into(), "1".into()]);
        table.rows.push(vec!["a".into(), "1,000".into()]);
        assert_eq!(table.text(), "name      n\n────  ─────\nkäse      1\na     1,000\n");
    }

    #[test]
    fn wide_tables_leave_out_what_says_nothing() {
        let head: Vec<String> = (0..12).map(|n| format!("column-{n}")).collect();
        let mut table = Table { head: head.clone(), rows: Vec::new(), left: 1 };
        table.rows.push((0..12).map(|n| if n % 4 == 3 { "0".into() } else { "1234".into() }).collect());
        let text = table.text();
        assert!(text.lines().all(|line| line.chars().count() <= TERMINAL_COLUMNS_MAX), "{text}");
        assert!(text.ends_with("none: column-3, column-7, column-11\n"), "{text}");
        table.head.truncate(3);
        table.rows[0].truncate(3);
        assert!(table.text().starts_with("column-0  column-1  column-2\n"), "{}", table.text());
    }

    #[test]
    fn long_tables_say_what_they_hide() {
        let mut table = Table::new(&["n"], 0);
        table.rows = (0..TERMINAL_ROWS_MAX + 3).map(|n| vec![n.to_string()]).collect();
        assert!(table.text().ends_with("63\n… and 3 more rows\n"), "{}", table.text());
    }

    #[test]
    fn a_summary_as_text() {
        let thread = ThreadRow {
            name: "line\nbreak".into(),
            class: "normal".into(),
            weight: 2,
            run_ns: 12_500_000,
            share: 0.125,
            ..ThreadRow::default()
        };
        let shown = summary(&Summary {
            title: "T".into(),
            policy: "wfq".into(),
            seed: 3,
            command: "sim run x".into(),
            end_ns: 100_000_000,
            threads: vec![thread],
            cpus: vec![CpuRow { thread_ns: 12_500_000, idle_ns: 87_500_000, system_ns: 0 }],
            ..Summary::default()
        });
        assert!(shown.starts_with("T\npolicy wfq, seed 3, 100 ms on 1 CPU\n"), "{shown}");
        assert!(shown.contains("line\\nbreak  normal       2  12.5 ms  12.5%\n"), "{shown}");
        assert!(
            shown.contains("none: fluid, waits, wake p50, p99, max, preempted, moved, throttled\n"),
            "{shown}"
        );
        assert!(shown.contains("cpu0  12.5 ms  87.5 ms       0  12.5%"), "{shown}");
        assert!(shown.ends_with("reproduce: sim run x\n"), "{shown}");
    }
}
