//! Requirement IDs: whatever a page, a test or a scenario names stands in the list.

use crate::tree::extension_of;
use crate::{Problem, Tree};

/// The list: one ID a line.
const LIST: &str = "docs/ids.txt";
const FAMILIES: &[u8] = b"KFSIQRPTMJ";

/// Every requirement ID that a page or a source names stands in the list, and the list is well formed.
pub(crate) fn requirement_ids(tree: &Tree) -> Vec<Problem> {
    let known: Vec<&str> = tree.text(LIST).unwrap_or("").lines().collect();
    let mut problems = Vec::new();
    for (at, id) in known.iter().enumerate() {
        if ids(id).next() != Some(id) || known[..at].contains(id) {
            problems.push(Problem::new(
                LIST,
                at + 1,
                format!("`{id}`: not an ID, or there twice, take it out"),
            ));
        }
    }
    for (file, text) in tree.texts().filter(|(file, _)| is_written_by_hand(file)) {
        for (at, line) in text.lines().enumerate() {
            for id in ids(line).filter(|id| !known.contains(id)) {
                let what = format!("requirement {id} is not in {LIST}, name one that is");
                problems.push(Problem::new(file, at + 1, what));
            }
        }
    }
    problems
}

fn is_written_by_hand(file: &str) -> bool {
    matches!(extension_of(file), Some("md" | "rs" | "scn" | "toml" | "sh" | "py")) || file == "Makefile"
}

/// Every word of `line` that is shaped like an ID: a family letter, a hyphen, two digits.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    let bytes = line.as_bytes();
    let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    bytes.windows(4).enumerate().filter_map(move |(at, id)| {
        let is_shaped =
            FAMILIES.contains(&id[0]) && id[1] == b'-' && id[2].is_ascii_digit() && id[3].is_ascii_digit();
        let is_free = !is_word(at.checked_sub(1).map(|before| &bytes[before])) && !is_word(bytes.get(at + 4));
        (is_shaped && is_free).then(|| &line[at..at + 4])
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    /// An ID that is not in the project's own list, put together so that this file does not name it.
    fn unknown() -> String {
        format!("K-{}", 99)
    }

    #[test]
    fn only_known_ids_are_named() {
        let list = ("docs/ids.txt", "F-01\nF-02\n");
        let good = [list, ("a.rs", "// F-01 to F-02: UTF-16, SPEC-021, K-9, S-011\n")];
        let text = format!("//\n// see {}.\n", unknown());
        assert_catches(requirement_ids, &good, &[list, ("a.rs", &text)], "a.rs:2", &unknown());
        assert_catches(requirement_ids, &good, &[list, ("docs/a.md", &text)], "docs/a.md:2", &unknown());
    }

    #[test]
    fn the_list_holds_ids_once() {
        let good = [("docs/ids.txt", "F-01\n")];
        assert_catches(
            requirement_ids,
            &good,
            &[("docs/ids.txt", "F-01\nF-01\n")],
            "docs/ids.txt:2",
            "twice",
        );
        assert_catches(
            requirement_ids,
            &good,
            &[("docs/ids.txt", "F-01\nX\n")],
            "docs/ids.txt:2",
            "not an ID",
        );
    }
}
