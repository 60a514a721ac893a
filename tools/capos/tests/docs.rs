//! Lists in the docs that must be complete.

/// T-01: docs/shell.md explains every counter of the kernel.
#[test]
fn t_01_every_counter_is_explained() {
    let page = include_str!("../../../docs/shell.md");
    let scheduler = include_str!("../../../kernel/src/counters.rs");
    let (_, list) = scheduler.rsplit_once("counters! {").unwrap();
    let names = list.lines().filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name);
    let names = names.filter(|name| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'));
    let others = include_str!("../../../kernel/src/sysinfo.rs");
    let (_, list) = others.split_once("fn other_counters()").unwrap();
    let (list, _) = list.split_once("\n}").unwrap();
    let others = list.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'));
    let names: Vec<&str> = names.chain(others.map(|(name, _)| name)).collect();
    assert!(
        names.len() > 25 && names.contains(&"switches") && names.contains(&"clock_error_ns"),
        "{names:?}"
    );
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/shell.md does not explain `{name}`");
    }
}

/// The programs that docs/programs.md shows are those that are compiled, to the letter.
#[test]
fn programs_in_the_docs_are_the_programs() {
    let page = include_str!("../../../docs/programs.md");
    let whole = [
        ("counter", include_str!("../../../programs/src/bin/counter.rs")),
        ("calls", include_str!("../../../programs/src/bin/calls.rs")),
    ];
    for (name, source) in whole {
        assert!(page.contains(&format!("```rust\n{source}```")), "docs/programs.md shows another {name}.rs");
    }
    // Of this program the page shows only the function.
    let budget = include_str!("../../../programs/src/bin/budget.rs");
    let (_, function) = budget.split_once("\nfn run()").unwrap();
    assert!(page.contains(&format!("fn run(){function}```")), "docs/programs.md shows another budget.rs");
}
