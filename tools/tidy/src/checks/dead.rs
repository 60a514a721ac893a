//! No dead files: every source is compiled, every script called, every page linked, every scenario checked.

use std::collections::BTreeSet;

use crate::tree::{extension_of, folder_of, join, name_of};
use crate::{Problem, Tree, markdown, rust};

/// Every `.rs` file is a root that cargo knows, is reached from one by `mod`, or is named (by path, or by a
/// pattern of its folder) in another file.
pub(crate) fn rust_files(tree: &Tree) -> Vec<Problem> {
    let crates: Vec<&str> =
        tree.paths().filter(|path| name_of(path) == "Cargo.toml").map(folder_of).collect();
    let live = compiled(tree, &crates);
    let dead = tree.paths().filter(|path| extension_of(path) == Some("rs") && !live.contains(*path));
    dead.filter(|path| !is_named(tree, &crates, path))
        .map(|path| Problem::new(path, 1, "no `mod` reaches this file, declare it or remove it"))
        .collect()
}

/// Every file that cargo compiles: the roots, and what `mod` reaches from them.
fn compiled(tree: &Tree, crates: &[&str]) -> BTreeSet<String> {
    let mut live = BTreeSet::new();
    let mut waiting: Vec<(String, bool)> = Vec::new();
    for path in tree.paths().filter(|path| extension_of(path) == Some("rs")) {
        if crates.iter().any(|folder| is_root(tree, folder, path)) {
            waiting.push((path.to_owned(), true));
        }
    }
    while let Some((path, is_root)) = waiting.pop() {
        let source = tree.text(&path).unwrap_or("");
        let folder = folder_of(&path).to_owned();
        let stem = name_of(&path).trim_end_matches(".rs");
        let own = if is_root || stem == "mod" { folder.clone() } else { format!("{folder}/{stem}") };
        if !live.insert(path.clone()) {
            continue;
        }
        for module in rust::modules(source) {
            let inside = format!("{own}/{}", module.inside.join("/"));
            let beside = if module.inside.is_empty() { &folder } else { &inside };
            let candidates = match &module.path {
                Some(path) => vec![join(beside, path)],
                None => vec![
                    join(&inside, &format!("{}.rs", module.name)),
                    join(&inside, &format!("{}/mod.rs", module.name)),
                ],
            };
            let found = candidates.into_iter().flatten().filter(|path| tree.has_file(path));
            // A file that `#[path]` names looks for its own modules beside itself.
            waiting.extend(found.map(|file| (file, module.path.is_some())));
        }
    }
    live
}

/// Whether cargo compiles `path` on its own for the crate in `folder`.
fn is_root(tree: &Tree, folder: &str, path: &str) -> bool {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let Some(inner) = path.strip_prefix(&prefix) else { return false };
    let parts: Vec<&str> = inner.split('/').collect();
    let by_place = matches!(
        parts[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    );
    let manifest = tree.text(&format!("{prefix}Cargo.toml")).unwrap_or("");
    by_place
        || manifest.lines().any(|line| line.starts_with("path") && line.contains(&format!("\"{inner}\"")))
}

/// Whether a file that is not a page names `path`, from the root or from its crate, itself or by `folder/*`.
fn is_named(tree: &Tree, crates: &[&str], path: &str) -> bool {
    let owner = crates.iter().filter(|folder| !folder.is_empty() && path.starts_with(&format!("{folder}/")));
    let inner = owner.map(|folder| &path[folder.len() + 1..]).min_by_key(|inner| inner.len());
    let mut names = Vec::new();
    for name in [Some(path), inner].into_iter().flatten().filter(|name| name.contains('/')) {
        names.push(name.to_owned());
        names.push(format!("{}/*", folder_of(name)));
    }
    let is_prose = |file: &str| matches!(extension_of(file), Some("md" | "txt"));
    let readers = tree.texts().filter(|(file, _)| *file != path && !is_prose(file));
    readers.into_iter().any(|(_, text)| names.iter().any(|name| text.contains(name)))
}

/// Every script is called by another file: a script, the Makefile, a test, or a page that tells how.
pub(crate) fn scripts(tree: &Tree) -> Vec<Problem> {
    let is_script = |path: &&str| matches!(extension_of(path), Some("sh" | "py"));
    tree.paths()
        .filter(is_script)
        .filter(|path| !tree.texts().any(|(file, text)| file != *path && text.contains(name_of(path))))
        .map(|path| Problem::new(path, 1, "nothing calls this script, call it or remove it"))
        .collect()
}

/// Every page and picture under `docs/` is linked from another page.
pub(crate) fn docs(tree: &Tree) -> Vec<Problem> {
    let mut linked = BTreeSet::new();
    for (file, page) in tree.texts_of("md") {
        let targets = markdown::links(page).into_iter().filter_map(|link| join(folder_of(file), link.target));
        linked.extend(targets.filter(|target| target != file));
    }
    tree.paths()
        .filter(|path| path.starts_with("docs/") && extension_of(path) != Some("txt"))
        .filter(|path| !linked.contains(*path))
        .map(|path| Problem::new(path, 1, "no page links to this file, link it or remove it"))
        .collect()
}

/// Every scenario has a golden timeline beside it (`a.scn`, `a.golden` or `a.<variant>.golden`), and no
/// timeline is left without its scenario.
pub(crate) fn scenarios(tree: &Tree) -> Vec<Problem> {
    const FOLDER: &str = "sim/scenarios/";
    let stems = |suffix: &'static str| {
        tree.paths().filter(|path| path.starts_with(FOLDER)).filter_map(move |path| path.strip_suffix(suffix))
    };
    let belongs = |golden: &str, scenario: &str| {
        golden.strip_prefix(scenario).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut problems = Vec::new();
    for scenario in stems(".scn") {
        if !stems(".golden").any(|golden| belongs(golden, scenario)) {
            let what = "has no golden timeline beside it, make one with `make golden-bless` and read it";
            problems.push(Problem::new(&format!("{scenario}.scn"), 1, what));
        }
    }
    for golden in stems(".golden") {
        if !stems(".scn").any(|scenario| belongs(golden, scenario)) {
            let what = "a timeline without its scenario, write the scenario or remove this file";
            problems.push(Problem::new(&format!("{golden}.golden"), 1, what));
        }
    }
    problems
}

/// Every bug that can be planted into the kernel is in its sources, and some test runs a kernel with it.
pub(crate) fn planted_bugs(tree: &Tree) -> Vec<Problem> {
    const MANIFEST: &str = "kernel/Cargo.toml";
    let mut problems = Vec::new();
    for (at, line) in tree.text(MANIFEST).unwrap_or("").lines().enumerate() {
        let Some(name) = line.split(" =").next().filter(|name| name.starts_with("planted-")) else {
            continue;
        };
        let quoted = format!("\"{name}\"");
        let is_written =
            tree.texts_of("rs").any(|(file, text)| file.starts_with("kernel/src/") && text.contains(&quoted));
        let is_run = tree.texts().any(|(file, text)| file.starts_with("tools/") && text.contains(name));
        if !is_written || !is_run {
            let what = if is_written { "no test runs" } else { "no source has" };
            problems.push(Problem::new(
                MANIFEST,
                at + 1,
                format!("{what} `{name}`, add it again or take it out"),
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    const CRATE: [(&str, &str); 4] = [
        ("a/Cargo.toml", "[[bin]]\nname = \"x\"\npath = \"odd/x.rs\"\n"),
        ("a/src/lib.rs", "mod b;\nmod d { mod e; }\n#[path = \"named/f.rs\"]\nmod g;\n"),
        ("a/src/b.rs", "mod c;\n"),
        ("a/src/b/c.rs", ""),
    ];

    #[test]
    fn every_source_is_compiled_or_named() {
        let mut good = CRATE.to_vec();
        good.extend([("a/src/d/e.rs", ""), ("a/src/named/f.rs", "mod h;"), ("a/src/named/h.rs", "")]);
        good.extend([("a/odd/x.rs", ""), ("a/src/bin/y.rs", ""), ("a/build.rs", "")]);
        good.extend([("a/tests/t.rs", "t.compile_fail(\"tests/ui/*.rs\");"), ("a/tests/ui/u.rs", "")]);
        for dead in ["a/src/gone.rs", "a/src/c.rs", "a/odd/z.rs", "a/tests/other/u.rs", "loose.rs"] {
            let mut bad = good.clone();
            bad.push((dead, ""));
            assert_catches(rust_files, &good, &bad, &format!("{dead}:1"), "no `mod`");
        }
    }

    #[test]
    fn every_script_is_called() {
        let good = [("tools/a.sh", ""), ("Makefile", "x:\n\ttools/a.sh\n")];
        assert_catches(scripts, &good, &[("tools/a.sh", "# a.sh\n")], "tools/a.sh:1", "nothing calls");
    }

    #[test]
    fn every_page_is_linked() {
        let good = [
            ("README.md", "[a](docs/a.md)\n"),
            ("docs/a.md", "![b](b.svg)\n"),
            ("docs/b.svg", ""),
            ("docs/ids.txt", ""),
        ];
        assert_catches(docs, &good, &[("docs/a.md", "[self](a.md)\n")], "docs/a.md:1", "no page links");
        assert_catches(docs, &good, &[("docs/b.svg", "")], "docs/b.svg:1", "no page links");
    }

    #[test]
    fn scenarios_and_timelines_come_in_pairs() {
        let good = [
            ("sim/scenarios/a.scn", ""),
            ("sim/scenarios/a.golden", ""),
            ("sim/scenarios/b.scn", ""),
            ("sim/scenarios/b.eevdf.golden", ""),
        ];
        let at = "sim/scenarios/a.scn:1";
        assert_catches(scenarios, &good, &[("sim/scenarios/a.scn", "")], at, "no golden");
        let at = "sim/scenarios/a.golden:1";
        assert_catches(scenarios, &good, &[("sim/scenarios/a.golden", "")], at, "without its scenario");
    }

    #[test]
    fn planted_bugs_are_there_and_run() {
        let manifest = ("kernel/Cargo.toml", "[features]\nplanted-x = []\n");
        let suite = ("tools/capos/suite.txt", "smoke 1 - planted-x must fail\n");
        let source = ("kernel/src/a.rs", "if cfg!(feature = \"planted-x\") {}\n");
        let good = [manifest, suite, source];
        assert_catches(planted_bugs, &good, &[manifest, suite], "kernel/Cargo.toml:2", "no source has");
        assert_catches(planted_bugs, &good, &[manifest, source], "kernel/Cargo.toml:2", "no test runs");
    }
}
