//! The kernel is built in layers, and no module uses one above its own (K-25). `kernel/layers.txt` says which module is in which layer.

use std::collections::BTreeMap;

use crate::{Problem, Tree, rust};

const TABLE: &str = "kernel/layers.txt";
const ROOT: &str = "kernel/src/";
/// The crate's root puts the layers together, so it may use all of them.
const TOP: &str = "kernel/src/main.rs";
/// A macro of the crate's root, and the module whose function it calls.
const MACRO: (&str, &str) = ("println", "log");
/// What stands for everything that `crate::*` names.
const EVERYTHING: &str = "*";

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
        let (number, name) = (layers.names.len(), name.trim());
        if layers.names.contains(&name) {
            problems.push(Problem::new(
                TABLE,
                at + 1,
                format!("there are two layers `{name}`: name each once"),
            ));
        }
        layers.names.push(name);
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

/// How many modules a file is below the crate's root: so many `super` lead to that root.
fn depth_of(file: &str) -> usize {
    let path = file.strip_prefix(ROOT).unwrap_or(file);
    path.trim_end_matches("/mod.rs").split('/').count()
}

/// The items of the crate's root that a file names, with their offsets; `*` stands for all of them. `depth` is how far below the root the
/// file is.
fn uses(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let mut found: Vec<(usize, &str)> = Vec::new();
    // The brace depths at which the modules within the file end, and how many braces are open.
    let (mut inner, mut braces, mut seen) = (Vec::new(), 0usize, 0);
    let mut words = rust::words(code).peekable();
    while let Some((at, word)) = words.next() {
        for byte in code[seen..at].bytes() {
            match byte {
                b'{' => braces += 1,
                b'}' => {
                    braces = braces.saturating_sub(1);
                    inner.retain(|level| *level < braces);
                }
                _ => {}
            }
        }
        seen = at;
        let rest = &code[at + word.len()..];
        if word == MACRO.0 && rest.starts_with('!') {
            found.push((at, MACRO.1));
        }
        if word == "mod"
            && let Some((name_at, name)) = words.peek()
            && code[name_at + name.len()..].trim_start().starts_with('{')
        {
            inner.push(braces);
        }
        let mut path_at = at + word.len();
        if word == "super" && !code[..at].ends_with("super::") {
            let mut count = 1;
            while let Some(more) = code[path_at..].strip_prefix("::super") {
                path_at = code.len() - more.len();
                count += 1;
            }
            if count != depth + inner.len() {
                continue;
            }
        } else if word != "crate" || code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[path_at..];
        let Some(path) = rest.strip_prefix("::") else {
            // `pub(crate)` names nothing; `crate as x` names everything.
            if rest.trim_start().starts_with("as ") {
                found.push((at, EVERYTHING));
            }
            continue;
        };
        let from = path_at + 2;
        if path.starts_with(EVERYTHING) {
            found.push((from, EVERYTHING));
        } else if let Some(list) = path.strip_prefix('{') {
            found.extend(heads(list).map(|(offset, head)| (from + 1 + offset, head)));
        } else {
            found.extend(rust::words(path).next().map(|(_, first)| (from, first)));
        }
    }
    found
}

/// The types and traits that a file declares.
fn declared(code: &str) -> impl Iterator<Item = &str> {
    let mut words = rust::words(code).map(|(_, word)| word).peekable();
    std::iter::from_fn(move || {
        loop {
            if matches!(words.next()?, "struct" | "enum" | "union" | "trait" | "type") {
                return words.peek().copied();
            }
        }
    })
}

/// The types for which a file has inherent methods, with the offset: `impl Type {`, and not `impl Trait for Type {`.
fn implemented(code: &str) -> impl Iterator<Item = (usize, &str)> {
    rust::words(code).filter_map(|(at, word)| {
        let rest = &code[at + word.len()..];
        let head = &rest[..rest.find('{')?];
        let is_own = word == "impl"
            && code[..at].rsplit('\n').next().is_none_or(|line| line.trim().is_empty())
            && !rust::words(head).any(|(_, word)| word == "for");
        // After the parameters, if there are any.
        let path = head.trim_start().strip_prefix('<').map_or(head, |rest| {
            let mut open = 1;
            let end = rest.find(|letter| {
                open += i32::from(letter == '<') - i32::from(letter == '>');
                open == 0
            });
            end.map_or(rest, |end| &rest[end..])
        });
        let path = path.split('<').find(|part| !part.trim().trim_matches('>').is_empty())?;
        is_own.then(|| rust::words(path).last().map(|(_, name)| (at, name))).flatten()
    })
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
    let codes: Vec<_> = tree
        .texts_of("rs")
        .filter_map(|(file, text)| Some((file, module_of(file)?, rust::code_of(text))))
        .collect();
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, module, code) in &codes {
        declared(code).for_each(|name| owners.entry(name).or_default().push(module));
    }
    for (file, module, code) in &codes {
        let (file, module) = (*file, *module);
        unused.retain(|name| *name != module);
        let Some(&own) = layers.of.get(module) else {
            problems.push(Problem::new(file, 1, format!("`{module}` is in no layer: add it to {TABLE}")));
            continue;
        };
        for (at, used) in uses(code, depth_of(file)) {
            let what = match layers.of.get(used) {
                Some(&other) if other > own => format!(
                    "`{module}` ({}) uses `{used}` ({}), which is a layer above it: have it handed down, or move it",
                    layers.names[own], layers.names[other],
                ),
                Some(_) => continue,
                None if used == MACRO.0 || used == "self" => continue,
                None if used == EVERYTHING => {
                    format!("`{module}` uses everything of the crate's root: name the modules")
                }
                None => format!(
                    "`{module}` uses `{used}` of the crate's root, which is above all layers: have it handed down, or move it"
                ),
            };
            problems.push(Problem::new(file, rust::line_of(code, at), what));
        }
        for (at, name) in implemented(code) {
            let Some(of) = owners.get(name).filter(|of| !of.contains(&module)) else { continue };
            let what = format!(
                "`{module}` has methods for `{name}` of `{}`, whose layer could call them without a `use`: write a trait or functions",
                of[0],
            );
            problems.push(Problem::new(file, rust::line_of(code, at), what));
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
    fn k_25_the_root_is_found_by_any_way_up() {
        let inner = "mod inner {\n    use super::super::arch;\n    use super::thread_like;\n}\n";
        let good = tree("use super::cpu;\nuse super::super::log;\n", inner, "use super::{mm, ring};\n");
        let bad = tree("", "use super::{arch, thread};\n", "");
        assert_catches(layers, &good, &bad, "kernel/src/mm.rs:1", "`thread` (threads)");
        let bad = tree("\nfn f() { super::super::mm::poll() }\n", "", "");
        assert_catches(layers, &good, &bad, "kernel/src/arch/cpu.rs:2", "`mm` (memory)");
        let bad = tree("", "mod inner {\n    fn f() { super::super::thread::poll() }\n}\n", "");
        assert_catches(layers, &good, &bad, "kernel/src/mm.rs:2", "`thread` (threads)");
        // After an inner module has ended, `super` is the root again.
        let bad = tree("", "mod inner {\n    fn f() {}\n}\nuse super::thread;\n", "");
        assert_catches(layers, &good, &bad, "kernel/src/mm.rs:4", "`thread` (threads)");
    }

    #[test]
    fn k_25_the_root_itself_is_above_all_layers() {
        let good = tree("pub(crate) fn f() {}\n", "fn f() { crate::println!() }\n", "");
        for (bad, why) in [
            ("fn f() { crate::boot() }\n", "`boot` of the crate's root"),
            ("use super::CHECKS;\n", "`CHECKS` of the crate's root"),
            ("use crate::*;\n", "everything"),
            ("use super::*;\n", "everything"),
            ("use crate as kernel;\n", "everything"),
        ] {
            assert_catches(layers, &good, &tree("", bad, ""), "kernel/src/mm.rs:1", why);
        }
    }

    #[test]
    fn k_25_methods_are_where_their_type_is() {
        let low = "pub struct Cpu<T>(T);\npub trait Runs {}\n";
        let good = tree(
            low,
            "struct Own;\nimpl Own {}\nimpl Runs for Cpu<u8> {}\nfn f(a: impl Runs) { if a {} }\n",
            "",
        );
        for bad in [
            "fn f() {}\nimpl Cpu<u8> {}\n",
            "\nimpl<T: Into<u8>> Cpu<T> {}\n",
            "\nimpl crate::arch::cpu::Cpu<u8> {}\n",
        ] {
            assert_catches(layers, &good, &tree(low, bad, ""), "kernel/src/mm.rs:2", "`Cpu` of `arch`");
        }
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
        assert_catches(layers, &good, &[(TABLE, "a: log\na:\n"), LOG], "kernel/layers.txt:2", "two layers");
        assert_catches(
            layers,
            &good,
            &[(TABLE, "a: log\nthat\n"), LOG],
            "kernel/layers.txt:2",
            "not a layer",
        );
    }
}
