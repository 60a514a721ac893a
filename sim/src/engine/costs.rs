//! What the machine costs: the only numbers of the simulator that stand for hardware.
//!
//! `sim/costs.txt` holds the defaults; a file of the same form with measured numbers replaces them (`--costs FILE`).

use sched::{CpuId, Level, Topology};

/// Nanoseconds for each thing that a scheduler makes a machine do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Switching from one thread to another.
    pub switch_ns: u64,
    /// What is added when the address space changes.
    pub address_space_ns: u64,
    /// From sending an inter-processor interrupt until it is handled.
    pub ipi_ns: u64,
    /// Taking a thread from another CPU's queue.
    pub steal_ns: u64,
    /// Holding a queue's lock for one operation; others wait that long.
    pub lock_hold_ns: u64,
    /// Refilling caches after a move to another core of the same cache.
    pub cold_core_ns: u64,
    /// The same to another cache of the same memory node.
    pub cold_cache_ns: u64,
    /// The same to another memory node.
    pub cold_node_ns: u64,
    /// The interrupt of a timer that a thread has set, which is charged to that thread (S-16).
    pub timer_ns: u64,
}

const DEFAULTS: &str = include_str!("../../costs.txt");

/// A line of a cost file that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostsError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What the line says.
    pub found: String,
    /// What was expected there.
    pub expected: String,
}

impl std::fmt::Display for CostsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: found `{}`, expected {}", self.file, self.line, self.found, self.expected)
    }
}

impl std::error::Error for CostsError {}

impl Costs {
    /// Everything is free: what hand-checked timelines use.
    pub const NONE: Costs = Costs {
        switch_ns: 0,
        address_space_ns: 0,
        ipi_ns: 0,
        steal_ns: 0,
        lock_hold_ns: 0,
        cold_core_ns: 0,
        cold_cache_ns: 0,
        cold_node_ns: 0,
        timer_ns: 0,
    };

    /// Nothing costs but the timers that threads set: for timelines that show who is charged for them.
    pub const TIMERS: Costs = Costs { timer_ns: 10_000, ..Costs::NONE };

    /// The numbers of `sim/costs.txt`.
    ///
    /// # Panics
    /// Never in a build that passed its tests: the file is part of the program and a test reads it.
    #[must_use]
    pub fn defaults() -> Costs {
        Costs::parse("costs.txt", DEFAULTS).expect("the built-in cost file is checked by a test")
    }

    /// Reads lines of the form `name number`; `#` starts a comment; every name must occur once.
    ///
    /// # Errors
    /// The first line that makes no sense, or the first name that is missing.
    pub fn parse(file: &str, text: &str) -> Result<Costs, CostsError> {
        let mut costs = Costs::NONE;
        let mut seen: Vec<&str> = Vec::new();
        let refuse = |line: usize, found: &str, expected: &str| CostsError {
            file: file.into(),
            line,
            found: found.into(),
            expected: expected.into(),
        };
        for (at, line) in text.lines().enumerate() {
            let line_number = at + 1;
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let Some((name, number)) = content.split_once(char::is_whitespace) else {
                return Err(refuse(line_number, content, "a name and a number of nanoseconds"));
            };
            let Some(field) = costs.field(name) else {
                return Err(refuse(line_number, name, &format!("one of {}", Costs::NAMES.join(", "))));
            };
            if seen.contains(&name) {
                return Err(refuse(line_number, name, "each name once"));
            }
            let Ok(value) = number.trim().parse::<u64>() else {
                return Err(refuse(line_number, number.trim(), "a whole number of nanoseconds"));
            };
            *field = value;
            seen.push(name);
        }
        match Costs::NAMES.iter().find(|name| !seen.contains(name)) {
            Some(missing) => {
                Err(refuse(text.lines().count(), "end of file", &format!("a line for `{missing}`")))
            }
            None => Ok(costs),
        }
    }

    const NAMES: [&'static str; 9] = [
        "switch_ns",
        "address_space_ns",
        "ipi_ns",
        "steal_ns",
        "lock_hold_ns",
        "cold_core_ns",
        "cold_cache_ns",
        "cold_node_ns",
        "timer_ns",
    ];

    fn field(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "switch_ns" => &mut self.switch_ns,
            "address_space_ns" => &mut self.address_space_ns,
            "ipi_ns" => &mut self.ipi_ns,
            "steal_ns" => &mut self.steal_ns,
            "lock_hold_ns" => &mut self.lock_hold_ns,
            "cold_core_ns" => &mut self.cold_core_ns,
            "cold_cache_ns" => &mut self.cold_cache_ns,
            "cold_node_ns" => &mut self.cold_node_ns,
            "timer_ns" => &mut self.timer_ns,
            _ => return None,
        })
    }

    /// The cost of a thread's move from `from` to `to`.
    #[must_use]
    pub fn cold_ns(&self, topology: &Topology, from: CpuId, to: CpuId) -> u64 {
        let near = |level| topology.group(from, level).contains(to);
        if near(Level::Core) {
            0
        } else if near(Level::Cache) {
            self.cold_core_ns
        } else if near(Level::Node) {
            self.cold_cache_ns
        } else {
            self.cold_node_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_file_is_complete() {
        assert!(Costs::defaults().switch_ns > 0);
    }

    #[test]
    fn broken_files_are_refused_with_their_line() {
        let error = |text: &str| Costs::parse("x", text).unwrap_err();
        assert_eq!((error("switch_ns 1\nfoo 2").line, error("switch_ns 1\nfoo 2").found), (2, "foo".into()));
        assert_eq!(error("switch_ns").expected, "a name and a number of nanoseconds");
        assert_eq!(
            error("# c\nswitch_ns -3").to_string(),
            "x:2: found `-3`, expected a whole number of nanoseconds"
        );
        assert_eq!(error("switch_ns 1\nswitch_ns 1").expected, "each name once");
        assert_eq!(error("switch_ns 1").expected, "a line for `address_space_ns`");
    }

    #[test]
    fn distance_costs() {
        let costs = Costs { cold_core_ns: 1, cold_cache_ns: 2, cold_node_ns: 3, ..Costs::NONE };
        let topology = Topology::regular(4, 2, 2, 2).unwrap();
        let cost = |to| costs.cold_ns(&topology, CpuId::new(0).unwrap(), CpuId::new(to).unwrap());
        assert_eq!([cost(0), cost(1), cost(2), cost(4), cost(8)], [0, 0, 1, 2, 3]);
    }
}
