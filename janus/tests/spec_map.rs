//! `docs/janus-spec.md` has one row for each tag of SPEC-021, in its order, and names nothing else.

use std::path::Path;

/// The specification's sections that have tags, and their tags. Numbers repeat, so a tag is known by both.
const TAGS: &[(&str, &[&str])] = &[
    ("Design Philosophy", &["1.1.1", "1.1.2"]),
    ("Design Principle", &["2.1.1", "2.1.2"]),
    ("Runtime Structure", &["2.2.1", "2.2.2", "2.2.3", "2.2.4"]),
    ("Scheduler as Subsystem", &["2.3.1", "2.3.2"]),
    ("Nursery-Scheduler Binding", &["2.4.1", "2.4.2"]),
    ("Task Submission", &["2.5.1"]),
    ("Runtime Lifecycle", &["2.6.1", "2.6.2"]),
    ("Testing Support", &["2.7.1", "2.7.2"]),
    ("Purpose and Scope", &["3.1.1", "3.1.2", "3.1.3"]),
    ("RtNursery Structure", &["3.2.1", "3.2.2"]),
    ("Thread-Local Storage Containment", &["3.3.1", "3.3.2", "3.3.3", "3.3.4"]),
    ("Task Function Signatures", &["3.4.1", "3.4.2", "3.4.3"]),
    ("C Export Contracts (Frozen)", &["3.5.1"]),
    ("Error Mapping (Canonical)", &["3.6.1", "3.6.2"]),
    ("Architectural Leverage", &["3.7.1"]),
    ("Budget Structure", &["5.1.1", "5.1.2"]),
    ("Budget Exhaustion", &["5.2.1", "5.2.2", "3.2.3"]),
    ("Budget Costs", &["3.3.1"]),
    ("Compiler-Inserted Yield Checks", &["4.1.1", "4.1.2"]),
    ("Voluntary Yield", &["4.2.1", "4.2.2"]),
    ("Yield Interval Configuration", &["4.3.1"]),
    ("Task Structure", &["5.1.1"]),
    ("Task States", &["5.2.1", "5.2.2"]),
    ("Continuation (Stackful Fibers)", &["5.3.1", "5.3.2", "5.3.3", "5.3.4"]),
    ("Context Switch (x86_64 Assembly)", &["5.4.1", "5.4.2", "5.4.3", "5.4.4", "5.4.5"]),
    ("Worker Structure", &["6.1.1"]),
    ("Worker Count", &["6.2.1", "6.2.2", "6.2.3"]),
    ("Worker Loop", &["6.3.1"]),
    ("Thread-Local Yield Mechanism", &["6.4.1", "6.4.2", "6.4.3", "6.4.4", "6.4.5"]),
    ("Deque Structure (Chase-Lev)", &["7.1.1", "7.1.2"]),
    ("Steal Protocol", &["7.2.1"]),
    ("Victim Selection", &["7.3.1", "7.3.2"]),
    ("Steal Bounds", &["7.4.1", "7.4.2"]),
    ("Nursery-Scheduler Binding", &["8.1.1", "8.1.2", "8.1.3"]),
    ("Budget Inheritance", &["8.2.1"]),
    ("Cancellation", &["8.3.1"]),
    ("Reproducibility Requirements", &["9.1.1"]),
    ("Non-Determinism Sources", &["9.2.1"]),
    ("Testing Support", &["9.3.1"]),
    ("Profile-Specific Rules", &["10.2.1", "10.2.2", "10.2.3", "10.2.4"]),
    ("New Opcodes", &["11.1.1"]),
    ("Tenancy", &["11.2.1"]),
    ("C-Compatible Exports", &["12.1.1"]),
    ("Benchmarks", &["13.1.1"]),
    ("Scalability", &["13.2.1"]),
    ("Scheduler Errors", &["14.1.1"]),
    ("DoS Prevention", &["15.1.1", "15.1.2"]),
    ("Isolation", &["15.2.1", "15.2.2"]),
];

/// Tag and section of each row of the page.
fn rows(page: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let tag = cells.next()?.strip_prefix("[SCHED:")?.strip_suffix(']')?;
        Some((tag.to_string(), cells.next()?.to_string()))
    };
    page.lines().filter(|line| line.starts_with('|')).filter_map(row).collect()
}

/// What is wrong with a page, if anything.
fn complaint(page: &str) -> Option<String> {
    let specified: Vec<(String, String)> = TAGS
        .iter()
        .flat_map(|(section, tags)| tags.iter().map(|tag| (tag.to_string(), section.to_string())))
        .collect();
    let rows = rows(page);
    let name = |(tag, section): &(String, String)| format!("[SCHED:{tag}] \"{section}\"");
    if let Some(missing) = specified.iter().find(|tag| !rows.contains(tag)) {
        return Some(format!("{} has no row", name(missing)));
    }
    if let Some(unknown) = rows.iter().find(|row| !specified.contains(row)) {
        return Some(format!("{} is not in the specification", name(unknown)));
    }
    (rows != specified)
        .then(|| "the rows are not in the specification's order, or one is there twice".to_string())
}

#[test]
fn every_tag_has_its_row() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/janus-spec.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    assert_eq!(complaint(&page), None);
    for line in page.lines().filter(|line| line.starts_with("| [SCHED:")) {
        assert_eq!(line.matches('|').count(), 6, "a row has five cells: {line}");
        let last = line.split('|').nth(5).unwrap_or_default().trim();
        assert!(!last.is_empty(), "a row says whether we differ: {line}");
    }
}

/// The check can fail.
#[test]
fn a_missing_a_foreign_and_a_double_row_are_found() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/janus-spec.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let row = "| [SCHED:8.2.1] |";
    let at = page.find(row).expect("the row is there");
    let end = at + page[at..].find('\n').expect("a line ends") + 1;
    let without = format!("{}{}", &page[..at], &page[end..]);
    assert!(complaint(&without).is_some_and(|what| what.contains("8.2.1") && what.contains("no row")));
    let double = format!("{}{}", &page[..end], &page[at..]);
    assert!(complaint(&double).is_some_and(|what| what.contains("twice")));
    let foreign = page.replace("| Budget Inheritance |", "| Budget Heritage |");
    assert!(complaint(&foreign).is_some());
    let swapped = page.replace("| [SCHED:5.1.1] | Task Structure |", "| [SCHED:5.1.1] | Budget Structure |");
    assert!(complaint(&swapped).is_some_and(|what| what.contains("Task Structure")));
}
