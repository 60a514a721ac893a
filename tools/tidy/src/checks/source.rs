//! The state of the sources: length, `unsafe`, unfinished work, first lines, white space.

use crate::tree::{extension_of, folder_of, name_of};
use crate::{Problem, Tree, rust};

/// The longest Rust file: what a person reads in one sitting.
const FILE_LINES_MAX: usize = 900;
/// The longest function.
const FUNCTION_LINES_MAX: usize = 120;
/// The files that may hold `unsafe`.
const ISLANDS: &str = "tools/tidy/unsafe-islands.txt";

/// Generated files are exempt, because nobody reads or shortens them; their first line says so.
fn is_generated(text: &str) -> bool {
    text.starts_with("// @generated")
}

/// No Rust file is longer than `FILE_LINES_MAX`.
pub(crate) fn file_length(tree: &Tree) -> Vec<Problem> {
    let written = tree.texts_of("rs").filter(|(_, text)| !is_generated(text));
    let long = written.map(|(file, text)| (file, text.lines().count()));
    long.filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(file, lines)| {
            let what = format!("{lines} lines, at most {FILE_LINES_MAX}: split it by concept");
            Problem::new(file, FILE_LINES_MAX + 1, what)
        })
        .collect()
}

/// No function is longer than `FUNCTION_LINES_MAX`.
pub(crate) fn function_length(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts_of("rs").filter(|(_, text)| !is_generated(text)) {
        for function in rust::functions(&rust::code_of(text)) {
            let (name, lines) = (function.name, function.lines);
            if lines > FUNCTION_LINES_MAX {
                let what = format!(
                    "`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}: take a step out of it"
                );
                problems.push(Problem::new(file, function.line, what));
            }
        }
    }
    problems
}

/// `unsafe` stands only in the islands, and every island holds some.
pub(crate) fn unsafe_islands(tree: &Tree) -> Vec<Problem> {
    let islands: Vec<(usize, &str)> = tree
        .text(ISLANDS)
        .unwrap_or("")
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let covers =
        |island: &str, file: &str| file == island || island.ends_with('/') && file.starts_with(island);
    let mut used = vec![false; islands.len()];
    let mut problems = Vec::new();
    for (file, text) in tree.texts_of("rs") {
        let code = rust::code_of(text);
        let Some((at, _)) = rust::words(&code).find(|(_, word)| *word == "unsafe") else { continue };
        match islands.iter().position(|(_, island)| covers(island, file)) {
            Some(island) => used[island] = true,
            None => {
                let what = format!(
                    "`unsafe` outside the islands, write it safely or name the file and the reason in {ISLANDS}"
                );
                problems.push(Problem::new(file, rust::line_of(&code, at), what));
            }
        }
    }
    for ((line, island), used) in islands.iter().zip(used) {
        if !used {
            problems.push(Problem::new(
                ISLANDS,
                *line,
                format!("no file of `{island}` holds `unsafe`, take it out"),
            ));
        }
    }
    problems
}

/// No macro and no mark that stands for work not done.
pub(crate) fn unfinished(tree: &Tree) -> Vec<Problem> {
    // Put together, so that this file does not hold the marks.
    const MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
    let mut problems = Vec::new();
    for (file, text) in tree.texts() {
        for mark in MARKS {
            if let Some((at, _)) = rust::words(text).find(|(_, word)| *word == mark) {
                let what = format!("{mark}: finish it, or say in CAVEATS.md what is missing");
                problems.push(Problem::new(file, rust::line_of(text, at), what));
            }
        }
    }
    for (file, text) in tree.texts_of("md") {
        if let Some(at) = text.find(concat!("@", "@")) {
            problems.push(Problem::new(file, rust::line_of(text, at), "a place that was never filled in"));
        }
    }
    for (file, text) in tree.texts_of("rs") {
        let code = rust::code_of(text);
        for (at, word) in rust::words(&code) {
            let is_call = code[at + word.len()..].starts_with('!');
            if is_call && matches!(word, "todo" | "unimplemented" | "dbg") {
                let what = format!("`{word}!` stands for work not done, finish it or return a typed error");
                problems.push(Problem::new(file, rust::line_of(&code, at), what));
            }
        }
    }
    problems
}

/// Every crate root begins by saying what the crate is for.
pub(crate) fn crate_docs(tree: &Tree) -> Vec<Problem> {
    let is_root = |path: &str| {
        matches!(name_of(path), "lib.rs" | "main.rs") && name_of(folder_of(path)) == "src"
            || folder_of(path).ends_with("src/bin")
    };
    tree.texts_of("rs")
        .filter(|(path, text)| is_root(path) && !text.starts_with("//!"))
        .map(|(path, _)| Problem::new(path, 1, "begin with `//!` and say what the crate is for"))
        .collect()
}

/// No trailing white space, no tab in Rust, a newline at the end. Inputs of a fuzzer are data, not text.
pub(crate) fn text(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, text) in tree.texts().filter(|(file, _)| !file.contains("/corpus/")) {
        let is_rust = extension_of(file) == Some("rs");
        for (at, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) {
                problems.push(Problem::new(file, at + 1, "white space at the end of the line, remove it"));
            }
            if is_rust && line.contains('\t') {
                problems.push(Problem::new(file, at + 1, "a tab, run `make fmt` (in a literal write \\t)"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            problems.push(Problem::new(
                file,
                text.lines().count(),
                "no newline at the end of the file, add one",
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    #[test]
    fn files_have_a_length_that_one_reads_in_one_sitting() {
        let (good, bad) = ("//\n".repeat(900), "//\n".repeat(901));
        let generated = format!("// @generated by a tool\n{bad}");
        assert_catches(
            file_length,
            &[("a.rs", &good), ("b.rs", &generated)],
            &[("a.rs", &bad)],
            "a.rs:901",
            "901 lines",
        );
    }

    #[test]
    fn functions_have_a_length_too() {
        let of = |lines: usize| format!("// fn\nfn long() {{\n{}}}\n", "x();\n".repeat(lines - 2));
        let (good, bad) = (of(120), of(121));
        assert_catches(function_length, &[("a.rs", &good)], &[("a.rs", &bad)], "a.rs:2", "`long` has 121");
    }

    #[test]
    fn unsafe_lives_on_islands() {
        let islands = (ISLANDS, "# reasons\nk/arch/\n");
        let used = ("k/arch/x.rs", "unsafe {}\n");
        let fine = ("a.rs", "#![deny(unsafe_code)] // unsafe\nlet x = \"unsafe\";\n");
        let good = [islands, used, fine];
        let bad = [islands, used, ("a/tests/t.rs", "\nunsafe {}\n")];
        assert_catches(unsafe_islands, &good, &bad, "a/tests/t.rs:2", "outside the islands");
        let place = format!("{ISLANDS}:2");
        assert_catches(unsafe_islands, &good, &[islands, fine], &place, "holds");
    }

    #[test]
    fn nothing_is_left_unfinished() {
        let good = [("a.rs", "// todo!() in words\nlet dbg = \"dbg!\"; x_todo!();\n")];
        for (word, bad) in [("todo", "todo!()"), ("unimplemented", "unimplemented!()"), ("dbg", "dbg!(1)")] {
            let text = format!("\nlet x = {bad};\n");
            assert_catches(unfinished, &good, &[("a.rs", &text)], "a.rs:2", word);
        }
        let page = format!("a\n{0}FIGURES{0}\n", "@@");
        assert_catches(unfinished, &good, &[("a.md", &page)], "a.md:2", "never filled in");
        let mark = ["FIX", "ME"].concat();
        assert_catches(unfinished, &good, &[("a.sh", &format!("# {mark}: x\n"))], "a.sh:1", &mark);
    }

    #[test]
    fn crates_say_what_they_are_for() {
        let good = [("a/src/lib.rs", "//! A.\n"), ("a/src/b.rs", "fn b() {}\n")];
        for root in ["a/src/lib.rs", "a/src/main.rs", "a/src/bin/c.rs"] {
            assert_catches(crate_docs, &good, &[(root, "fn a() {}\n")], &format!("{root}:1"), "//!");
        }
    }

    #[test]
    fn white_space_is_clean() {
        let good = [("a.rs", "a\n"), ("Makefile", "a:\n\tb\n"), ("empty", ""), ("fuzz/corpus/x/1", "a ")];
        assert_catches(text, &good, &[("a.md", "a\nb \n")], "a.md:2", "end of the line");
        assert_catches(text, &good, &[("a.rs", "a\tb\n")], "a.rs:1", "a tab");
        assert_catches(text, &good, &[("a.txt", "a\nb")], "a.txt:2", "no newline");
    }
}
