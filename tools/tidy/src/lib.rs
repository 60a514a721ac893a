//! Tidy checks the state of the project: docs name only things that exist, no file is dead, no function is
//! over-long.
//!
//! A check is a function from a [`Tree`] (every file of the project, in memory) to a list of [`Problem`]s.
//! Checks read; they never write, never run a command and know no path outside the tree, so that each is
//! shown to fail by a unit test with a small tree and one planted violation.
//! To add a check, write the function and name it in [`CHECKS`].

pub mod makefile;
pub mod markdown;
pub mod rust;
pub mod tree;

mod checks;

pub use tree::Tree;

/// One thing that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path from the root of the project.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Problem {
    /// Makes a problem at `file:line`.
    #[must_use]
    pub fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A check: reads the tree and returns everything that is wrong with it.
pub type Check = fn(&Tree) -> Vec<Problem>;

/// Every check, by name.
pub const CHECKS: &[(&str, Check)] = &[
    ("make-targets", checks::docs::make_targets),
    ("make-help", checks::docs::make_help),
    ("links", checks::docs::links),
    ("paths", checks::docs::paths),
    ("machine-paths", checks::docs::machine_paths),
    ("requirement-ids", checks::ids::requirement_ids),
    ("dead-rust", checks::dead::rust_files),
    ("dead-scripts", checks::dead::scripts),
    ("dead-docs", checks::dead::docs),
    ("scenarios", checks::dead::scenarios),
    ("planted-bugs", checks::dead::planted_bugs),
    ("file-length", checks::source::file_length),
    ("function-length", checks::source::function_length),
    ("layers", checks::layers::layers),
    ("unsafe-islands", checks::source::unsafe_islands),
    ("allocations", checks::allocations::allocations),
    ("unfinished", checks::source::unfinished),
    ("crate-docs", checks::source::crate_docs),
    ("text", checks::source::text),
    ("dependencies", checks::dependencies::dependencies),
];

/// Runs every check and returns all problems, sorted by place.
#[must_use]
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems: Vec<Problem> = CHECKS.iter().flat_map(|(_, check)| check(tree)).collect();
    problems.sort();
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_its_place_first() {
        let problem = Problem::new("a/b.rs", 7, "wrong, mend it");
        assert_eq!(problem.to_string(), "a/b.rs:7: wrong, mend it");
    }

    #[test]
    fn all_problems_are_reported_at_once_and_in_order() {
        let tree = Tree::of(&[("b.rs", "\tfn x() {} \n"), ("a.txt", "no newline")]);
        let problems = check(&tree);
        let places: Vec<_> = problems.iter().map(|p| (p.file.as_str(), p.line)).collect();
        assert!(places.contains(&("a.txt", 1)) && places.contains(&("b.rs", 1)), "{places:?}");
        assert!(places.is_sorted());
        assert!(problems.len() >= 3, "a tab, a trailing space and a missing newline: {problems:?}");
    }
}
