//! The checks, one file a subject; `CHECKS` in the crate root is the list.

pub(crate) mod allocations;
pub(crate) mod dead;
pub(crate) mod dependencies;
pub(crate) mod docs;
pub(crate) mod ids;
pub(crate) mod layers;
pub(crate) mod source;

/// For tests: asserts that `check` finds nothing in `good`, and in `bad` exactly one problem, at `place`
/// (`file:line`) and with `word` in its text. So each check is shown both to pass and to fail.
#[cfg(test)]
#[track_caller]
fn assert_catches(check: crate::Check, good: &[(&str, &str)], bad: &[(&str, &str)], place: &str, word: &str) {
    assert_eq!(check(&crate::Tree::of(good)), [], "the good tree");
    let found = check(&crate::Tree::of(bad));
    assert_eq!(found.len(), 1, "the bad tree: {found:?}");
    let text = found[0].to_string();
    assert!(text.starts_with(&format!("{place}: ")) && text.contains(word), "{text}");
}
