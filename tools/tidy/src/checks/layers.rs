//! The kernel is built in layers, and no module uses one above its own (K-25). `kernel/layers.txt` says which module is in which layer.

use std::collections::BTreeMap;

use crate::{Problem, Tree, rust};

const TABLE: &str = "kernel/layers.txt";
const ROOT: &str = "kernel/src/";
/// The crate's root puts the layers together, so it may use all of them.
const TOP: &str = "kernel/src/main.rs";
/// A macro of the crate's root, and the module whose function it calls.
const MACRO: (&str, &str) = ("println", "log");

/// Layers by number, lowest first, and the layer of every module.
struct Layers<'a> {
    names: Vec<&'a str>,
    of: BTreeMap<&'a str, usize>,
}

fn parse<'a>(text: &'a str, problems: &mut Vec<Problem>) -> Layers<'a> {
    let mut layers = Layers { names: Vec::new(), of: BTreeMap::new() };
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let Some((name, modules)) = line.split_once(':') else {
            problems.push(Problem::new(TABLE, at + 1, "not a layer: write `layer: module module ...`"));
            continue;
        };
        let number = layers.names.len();
        layers.names.push(name.trim());
        for module in modules.split_whitespace() {
            if layers.of.insert(module, number).is_some() {
                problems.push(Problem::new(
                    TABLE,
                    at + 1,
                    format!("`{module}` is in two layers: leave it in one"),
                ));
            }
        }
    }
    layers
}

/// The module of the crate's root that a file belongs to.
fn module_of(file: &str) -> Option<&str> {
    let path = file.strip_prefix(ROOT).filter(|_| file != TOP)?;
    path.split('/').next().map(|first| first.trim_end_matches(".rs"))
}

/// Every module of the crate's root that `code` names by `crate::`, with the offset.
fn uses(code: &str) -> Vec<(usize, &str)> {
    let mut found: Vec<(usize, &str)> = Vec::new();
    for (at, word) in rust::words(code) {
        let rest = &code[at + word.len()..];
        if word == MACRO.0 && rest.starts_with('!') {
            found.push((at, MACRO.1));
        }
        if word != "crate" || code[..at].ends_with('$') {
            continue;
        }
        let Some(path) = rest.strip_prefix("::") else { continue };
        let from = at + word.len() + 2;
        match path.strip_prefix('{') {
            None => found.extend(rust::words(path).next().map(|(_, first)| (from, first))),
            Some(list) => found.extend(heads(list).map(|(offset, head)| (from + 1 + offset, head))),
        }
    }
    found
}

/// The first word of each part of a list in braces, `list` being what follows the opening one.
fn heads(list: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut depth = 1;
    let mut starts = vec![0];
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 1 => starts.push(at + 1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    starts.into_iter().filter_map(|start| {
        let (offset, head) = rust::words(&list[start..]).next()?;
        // A trailing comma has nothing after it but the end of the list.
        let between = &list[start..start + offset];
        (!between.contains('}')).then_some((start + offset, head))
    })
}

/// No module of the kernel uses one of a layer above its own; every module is in a layer.
pub(crate) fn layers(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Some(table) = tree.text(TABLE) else {
        // Other trees, of tests, have no kernel.
        return problems;
    };
    let layers = parse(table, &mut problems);
    let mut unused: Vec<&str> = layers.of.keys().copied().collect();
    for (file, text) in tree.texts_of("rs") {
        let Some(module) = module_of(file) else { continue };
        unused.retain(|name| *name != module);
        let Some(&own) = layers.of.get(module) else {
            problems.push(Problem::new(file, 1, format!("`{module}` is in no layer: add it to {TABLE}")));
            continue;
        };
        let code = rust::code_of(text);
        for (at, used) in uses(&code) {
            let Some(&other) = layers.of.get(used) else { continue };
            if other > own {
                let what = format!(
                    "`{module}` ({}) uses `{used}` ({}), which is a layer above it: have it handed down, or move it",
                    layers.names[own], layers.names[other],
                );
                problems.push(Problem::new(file, rust::line_of(&code, at), what));
            }
        }
    }
    problems.extend(
        unused.into_iter().map(|name| {
            Problem::new(TABLE, 1, format!("there is no module `{name}` in {ROOT}: take it out"))
        }),
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::super::assert_catches;
    use super::*;

    const LAYERS: (&str, &str) =
        (TABLE, "# lowest first\nmachine: arch log\nmemory: mm\nthreads: thread ring\n");
    const LOG: (&str, &str) = ("kernel/src/log.rs", "");
    const RING: (&str, &str) = ("kernel/src/ring.rs", "use crate::thread::Thread;\n");

    fn tree<'a>(arch: &'a str, mm: &'a str, thread: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            LAYERS,
            LOG,
            RING,
            ("kernel/src/main.rs", "use crate::thread;\n"),
            ("kernel/src/arch/cpu.rs", arch),
            ("kernel/src/mm.rs", mm),
            ("kernel/src/thread.rs", thread),
        ]
    }

    #[test]
    fn k_25_an_upward_use_is_refused() {
        let good =
            tree("// crate::thread\n", "use crate::{arch::{cpu, smp}, log};\n", "use crate::{mm, ring};\n");
        let bad = tree("", "use crate::{\n    arch::{cpu, thread},\n    thread::{self},\n};\n", "");
        assert_catches(layers, &good, &bad, "kernel/src/mm.rs:3", "`thread` (threads)");
        let bad = tree("fn f() { crate::mm::poll() }\n", "", "");
        assert_catches(layers, &good, &bad, "kernel/src/arch/cpu.rs:1", "`mm` (memory)");
    }

    #[test]
    fn k_25_printing_is_a_use() {
        let table = (TABLE, "machine: arch\nmemory: log\n");
        let file = ("kernel/src/arch.rs", "fn f() {\n    crate::println!(\"crate::mm\");\n}\n");
        assert_catches(
            layers,
            &[table, LOG, ("kernel/src/arch.rs", "")],
            &[table, LOG, file],
            "kernel/src/arch.rs:2",
            "log",
        );
    }

    #[test]
    fn k_25_the_table_names_every_module_once_and_no_other() {
        let good = [(TABLE, "a: log\n"), LOG];
        assert_catches(layers, &good, &[(TABLE, "a:\n"), LOG], "kernel/src/log.rs:1", "no layer");
        assert_catches(
            layers,
            &good,
            &[(TABLE, "a: log\nb: log\n"), LOG],
            "kernel/layers.txt:2",
            "two layers",
        );
        assert_catches(layers, &good, &[(TABLE, "a: log gone\n"), LOG], "kernel/layers.txt:1", "gone");
        assert_catches(
            layers,
            &good,
            &[(TABLE, "a: log\nthat\n"), LOG],
            "kernel/layers.txt:2",
            "not a layer",
        );
    }
}
