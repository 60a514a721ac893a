//! In the kernel every allocation can fail without a panic (K-30).

use crate::{Problem, Tree, rust};

/// Folders in which a failed allocation would be a panic of the machine.
const KERNEL: [&str; 2] = ["kernel/src/", "kernel/core/src/"];
/// The allocator itself.
const HEAP: &str = "kernel/src/mm/heap";
/// Methods that may allocate and cannot report a failure.
const METHODS: [&str; 12] = [
    "push",
    "push_back",
    "push_front",
    "insert",
    "append",
    "extend",
    "extend_from_slice",
    "resize",
    "to_vec",
    "to_owned",
    "to_string",
    "collect",
];
const PATHS: [&str; 8] = [
    "Box::new(",
    "Box::default(",
    "Arc::new(",
    "Rc::new(",
    "String::from(",
    "::with_capacity(",
    "vec!",
    "format!",
];
/// Calls by which a function has reserved memory before; `reserve` is `queue::reserve`, which can fail.
const ASKED: [&str; 4] = ["try_reserve", "try_reserve_exact", "reserve", "keep"];
/// How many lines above an allocation the reason may begin.
const ABOVE: usize = 3;

/// Every allocation in the kernel is in a function that reserved the memory, or has a comment with `K-30` at most three lines above it, or
/// above its function, that says why it cannot fail.
pub(crate) fn allocations(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_kernel =
        |file: &str| KERNEL.iter().any(|folder| file.starts_with(folder)) && !file.starts_with(HEAP);
    for (file, text) in tree.texts_of("rs").filter(|(file, _)| is_kernel(file)) {
        let text = text.find("#[cfg(test)]").map_or(text, |tests| &text[..tests]);
        let code = rust::code_of(text);
        let functions = rust::functions(&code);
        let lines: Vec<&str> = text.lines().collect();
        let code_lines: Vec<&str> = code.lines().collect();
        for (at, line) in code_lines.iter().enumerate() {
            let Some(what) = grows(line) else { continue };
            let says =
                |at: usize| lines[at.saturating_sub(ABOVE)..=at].iter().any(|line| line.contains("K-30"));
            // The innermost function around it.
            let around = functions.iter().filter(|f| (f.line..f.line + f.lines).contains(&(at + 1)));
            let around = around.min_by_key(|f| f.lines);
            let has_reason = says(at) || around.is_some_and(|f| says(f.line - 1));
            let has_asked = around.is_some_and(|f| {
                code_lines[f.line - 1..at]
                    .iter()
                    .any(|line| rust::words(line).any(|(_, word)| ASKED.contains(&word)))
            });
            if !has_reason && !has_asked {
                let what = format!(
                    "`{what}` may allocate and cannot be refused: reserve before, or say in a comment with K-30 why it cannot fail"
                );
                problems.push(Problem::new(file, at + 1, what));
            }
        }
    }
    problems
}

fn grows(line: &str) -> Option<&'static str> {
    if let Some(path) = PATHS.iter().find(|path| line.contains(*path)) {
        return Some(path.trim_end_matches('('));
    }
    METHODS.into_iter().find(|method| {
        rust::words(line).any(|(at, word)| {
            word == *method && line[..at].ends_with('.') && line[at + word.len()..].starts_with(['(', ':'])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(source: &str) -> Vec<usize> {
        let tree = Tree::of(&[("kernel/src/a.rs", source), ("sched/src/b.rs", "fn f() { v.push(1); }\n")]);
        allocations(&tree).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn k_30_what_cannot_be_refused_is_found() {
        assert_eq!(
            problems("fn f() {\n    v.push(1);\n    let b = Box::new(2);\n    vec![0; 4]\n}\n"),
            [2, 3, 4]
        );
        assert_eq!(problems("fn f() {\n    x.iter().collect::<Vec<_>>()\n}\n"), [2]);
        assert_eq!(problems("fn f() { v.try_reserve(1)?; }\nfn g() {\n    v.push(1);\n}\n"), [3]);
        assert_eq!(problems("fn f() {\n    v.push(1);\n    v.try_reserve(1)?;\n}\n"), [2], "asked too late");
    }

    #[test]
    fn k_30_what_was_asked_for_or_explained_is_not() {
        assert_eq!(problems("fn f() {\n    v.try_reserve(1)?;\n    v.push(1);\n}\n"), []);
        assert_eq!(problems("fn f() {\n    // K-30: has room for all.\n    v.push(1);\n}\n"), []);
        assert_eq!(problems("/// At boot (K-30).\nfn f() {\n    v.push(1);\n}\n"), []);
        assert_eq!(problems("fn f() {\n    // v.push(1)\n    pushes(1); push(2);\n}\n"), []);
        assert_eq!(problems("fn f() {}\n#[cfg(test)]\nmod tests { fn f() { v.push(1); } }\n"), []);
    }
}
