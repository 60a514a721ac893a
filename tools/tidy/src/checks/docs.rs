//! What the pages name exists: make targets, links, paths; and no page names a path of one particular
//! machine.

use crate::makefile::{self, Rule};
use crate::tree::{extension_of, folder_of, join, name_of};
use crate::{Problem, Tree, markdown};

const MAKEFILE: &str = "Makefile";

/// Every target of `make` that a page names in code exists; a name with a gap in it (`make run-<proof>`)
/// must at least begin like a target.
pub(crate) fn make_targets(tree: &Tree) -> Vec<Problem> {
    let rules = makefile::rules(tree.text(MAKEFILE).unwrap_or(""));
    let mut problems = Vec::new();
    for (file, page) in tree.texts_of("md") {
        for code in markdown::code(page) {
            for target in makefile::asked(code.text) {
                if !is_target(&rules, target) {
                    let what = format!(
                        "`make {target}`: no such target in {MAKEFILE}, name one that is there or add it"
                    );
                    problems.push(Problem::new(file, code.line, what));
                }
            }
        }
    }
    problems
}

fn is_target(rules: &[Rule], target: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match target.find(|c| !is_plain(c)) {
        Some(gap) => rules.iter().any(|rule| rule.target.starts_with(&target[..gap])),
        None => rules.iter().any(|rule| rule.target == target),
    }
}

/// Every target that `make help` shows does something and is phony or a file; every phony target has a rule;
/// every script that a recipe calls exists.
pub(crate) fn make_help(tree: &Tree) -> Vec<Problem> {
    let Some(text) = tree.text(MAKEFILE) else { return Vec::new() };
    let rules = makefile::rules(text);
    let is_phony = |name: &str| {
        rules.iter().any(|rule| rule.target == ".PHONY" && rule.needs.iter().any(|need| need == name))
    };
    let mut problems = Vec::new();
    let mut report = |line, what: String| problems.push(Problem::new(MAKEFILE, line, what));
    for rule in &rules {
        let name = &rule.target;
        if rule.help.is_some() && !rule.has_recipe && rule.needs.is_empty() {
            report(rule.line, format!("`{name}` has help but does nothing, give it a recipe or take it out"));
        }
        if rule.help.is_some() && !is_phony(name) && !tree.has_file(name) {
            report(rule.line, format!("`{name}` is neither a file nor in .PHONY, add it there"));
        }
        for need in rule.needs.iter().filter(|_| name == ".PHONY") {
            if !rules.iter().any(|rule| rule.target == *need) {
                report(
                    rule.line,
                    format!(".PHONY names `{need}`, which has no rule, write it or take the name out"),
                );
            }
        }
    }
    for (at, line) in text.lines().enumerate() {
        for path in line.split([' ', '\t', '"', '\'']).filter(|word| word.starts_with("tools/")) {
            if is_plain_path(path) && !tree.has(path) {
                report(at + 1, format!("`{path}` does not exist, mend the path"));
            }
        }
    }
    problems
}

/// Every relative link of a page leads to a file or a folder of the project.
pub(crate) fn links(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, page) in tree.texts_of("md") {
        for link in markdown::links(page) {
            let path = join(folder_of(file), link.target);
            if !path.is_some_and(|path| tree.has(&path)) {
                let what = format!("the link to `{}` leads nowhere, mend it or take it out", link.target);
                problems.push(Problem::new(file, link.line, what));
            }
        }
    }
    problems
}

/// Every path that a page names in code exists. In a span that is nothing but a path, `folder/`, `a/b.rs` and
/// `b.rs` all count; in a longer command, words that begin with a folder of the project do.
/// Build output (`target/…`) and names with a gap (`docs/<page>.md`) are left out.
pub(crate) fn paths(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, page) in tree.texts_of("md") {
        for code in markdown::code(page) {
            let is_alone = !code.fenced && !code.text.contains([' ', '=']);
            for word in code.text.split([' ', '=', '"', '\'', '(', ')', ',']) {
                let word = without_line(word);
                let wanted =
                    is_plain_path(word) && (names_a_place(tree, word) || is_alone && looks_like_path(word));
                if wanted && !is_there(tree, file, word) {
                    let what = format!("`{word}` does not exist, name a file or a folder that does");
                    problems.push(Problem::new(file, code.line, what));
                }
            }
        }
    }
    problems
}

/// `a.rs:12` without its line.
fn without_line(word: &str) -> &str {
    match word.rsplit_once(':') {
        Some((path, line)) if !line.is_empty() && line.bytes().all(|b| b.is_ascii_digit()) => path,
        _ => word,
    }
}

fn is_plain_path(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
}

/// Whether `word` begins with a folder at the root of the project.
fn names_a_place(tree: &Tree, word: &str) -> bool {
    word.split_once('/').is_some_and(|(first, _)| {
        !first.is_empty() && !first.contains("..") && first != "target" && tree.has_folder(first)
    })
}

fn looks_like_path(word: &str) -> bool {
    const FILES: [&str; 11] =
        ["rs", "md", "toml", "sh", "scn", "golden", "py", "txt", "svg", "html", "capnp"];
    // A bare name of these kinds may be an output that a command makes.
    const OUTPUTS: [&str; 4] = ["svg", "html", "txt", "py"];
    if word.starts_with(['/', '.', '-']) || word.starts_with("target/") || word == "target" {
        return false;
    }
    let has_stem = name_of(word).find('.').is_some_and(|at| at > 0);
    let is_file = has_stem
        && extension_of(word)
            .is_some_and(|ext| FILES.contains(&ext) && (word.contains('/') || !OUTPUTS.contains(&ext)));
    is_file || word.ends_with('/')
}

/// From the root, from the page's own folder, or (a bare name) anywhere.
fn is_there(tree: &Tree, page: &str, word: &str) -> bool {
    tree.has(word)
        || join(folder_of(page), word).is_some_and(|path| tree.has(&path))
        || !word.contains('/') && tree.paths().any(|path| name_of(path) == word)
}

/// No file that a person reads names an absolute path of one particular machine. Rust sources are left out,
/// since no reader follows a path there.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts() {
        if matches!(extension_of(file), Some("rs" | "lock")) {
            continue;
        }
        let is_doc = file.starts_with("docs/") || extension_of(file) == Some("md");
        for (at, line) in text.lines().enumerate() {
            for folder in ["work", "root", "home", "tmp"] {
                // A script may use the system's folder for temporary files; a page has no reason to.
                if (is_doc || folder != "tmp") && has_absolute(line, &format!("/{folder}/")) {
                    let what = format!(
                        "names a path under `/{folder}/` of one machine, write it from the project's root"
                    );
                    problems.push(Problem::new(file, at + 1, what));
                }
            }
        }
    }
    problems
}

/// Whether `path` stands in `line` as the beginning of an absolute path.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~/})*>".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    const RULES: (&str, &str) = ("Makefile", ".PHONY: run-a\nrun-a: ## runs\n\techo\n");

    #[test]
    fn a_page_may_name_only_targets_that_exist() {
        let good = [RULES, ("README.md", "`make run-a`, `make run-<name>`\n\n```\nmake -s run-a X=1\n```\n")];
        let bad = [RULES, ("README.md", "ok\n\n```\n$ make run-b\n```\n")];
        assert_catches(make_targets, &good, &bad, "README.md:4", "run-b");
        assert_catches(make_targets, &good, &[RULES, ("docs/a.md", "`make sim-…`\n")], "docs/a.md:1", "sim-");
    }

    #[test]
    fn help_is_only_for_real_targets() {
        let good = [RULES];
        let empty = [("Makefile", ".PHONY: a\na: ## nothing\n")];
        assert_catches(make_help, &good, &empty, "Makefile:2", "does nothing");
        assert_catches(make_help, &good, &[("Makefile", "a: ## x\n\techo\n")], "Makefile:1", ".PHONY");
        assert_catches(make_help, &good, &[("Makefile", ".PHONY: b\n")], "Makefile:1", "no rule");
        let script = [("Makefile", "a:\n\ttools/gone.sh x\n")];
        assert_catches(make_help, &good, &script, "Makefile:2", "tools/gone.sh");
    }

    #[test]
    fn links_lead_somewhere() {
        let good = [
            ("docs/a.md", "[b](b.md#x) [root](../README.md)\n"),
            ("docs/b.md", ""),
            ("README.md", "[d](docs)\n"),
        ];
        assert_catches(links, &good, &[("docs/a.md", "\n[b](c.md)\n")], "docs/a.md:2", "c.md");
        assert_catches(links, &good, &[("a.md", "[out](../b.md)\n")], "a.md:1", "../b.md");
    }

    #[test]
    fn paths_exist() {
        let file = ("sched/src/tree.rs", "");
        let page = "`sched/src/tree.rs:3` `tree.rs` `sched/` `target/x.rs` `and/or` `docs/<x>.md` `out.svg` `std::a`\n\
                    ```\nsim run sched/src/tree.rs\n```\n";
        let good = [file, ("README.md", page)];
        for (text, word) in [
            ("`sched/src/gone.rs`\n", "gone.rs"),
            ("`gone.rs`\n", "gone.rs"),
            ("`kernel/`\n", "kernel/"),
            ("`sim --in=sched/gone`\n", "sched/gone"),
        ] {
            assert_catches(paths, &good, &[file, ("README.md", text)], "README.md:1", word);
        }
    }

    #[test]
    fn no_page_names_a_path_of_one_machine() {
        let good = [("README.md", "a/tmp/b ~/work/c https://x.y/home/z\n"), ("a.sh", "d=/tmp/x\n")];
        assert_catches(machine_paths, &good, &[("docs/a.txt", "x\nin /tmp/x\n")], "docs/a.txt:2", "/tmp/");
        assert_catches(machine_paths, &good, &[("a.sh", "d=/home/x\n")], "a.sh:1", "/home/");
    }
}
