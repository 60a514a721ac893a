//! Lines that were entered.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};

/// The last lines, oldest first; at most a fixed number of them.
#[derive(Debug)]
pub struct History {
    lines: VecDeque<String>,
    max: usize,
}

impl History {
    /// Keeps the last `max` lines.
    pub fn new(max: usize) -> History {
        History { lines: VecDeque::new(), max }
    }

    /// Adds `line`, unless it is empty or the same as the last one.
    pub fn add(&mut self, line: &str) {
        if line.is_empty() || self.max == 0 || self.lines.back().is_some_and(|last| last == line) {
            return;
        }
        if self.lines.len() == self.max {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_string());
    }

    /// How many lines there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether nothing was entered yet.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Line `age` steps back: 1 is the last one.
    pub fn back(&self, age: usize) -> Option<&str> {
        let index = self.lines.len().checked_sub(age)?;
        self.lines.get(index).map(String::as_str)
    }

    /// All of them, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_lines_go_and_repeats_do_not_come() {
        let mut history = History::new(2);
        for line in ["a", "a", "", "b", "c"] {
            history.add(line);
        }
        assert_eq!(history.lines().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(
            (history.back(1), history.back(2), history.back(3), history.back(0)),
            (Some("c"), Some("b"), None, None)
        );
    }
}
