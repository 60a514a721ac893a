//! What can be told from a name. A wrong guess costs or saves one operation; no guess decides whether a loop is checked.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Expr, ExprCall, ExprMethodCall, Ident, Macro};

/// Types whose `new` or `from` allocates.
const BOXES: [&str; 3] = ["Box", "Rc", "Arc"];
/// Methods that give an allocation of their own.
const COPIES: [&str; 4] = ["to_vec", "to_string", "to_owned", "into_boxed_slice"];
/// Macros whose arguments are expressions, and what they do is known.
const OPEN_MACROS: [&str; 20] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "dbg",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "eprint",
    "eprintln",
    "format",
    "format_args",
    "panic",
    "print",
    "println",
    "todo",
    "unimplemented",
    "unreachable",
    "vec",
    "write",
    "writeln",
];

/// Starts with a capital: `Some(…)`, `Point(…)` make a value and call nothing.
fn is_constructor(name: &Ident) -> bool {
    name.to_string().starts_with(|first: char| first.is_uppercase())
}

/// What a call costs beside its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing: it makes a value, or the callee charges itself.
    Free,
    /// One operation, before it.
    Call,
    /// One operation, after it.
    Allocation,
}

pub(crate) fn kind_of_call(call: &ExprCall) -> Kind {
    let Expr::Path(path) = &*call.func else { return Kind::Call };
    let mut names = path.path.segments.iter().rev().map(|segment| &segment.ident);
    let Some(last) = names.next() else { return Kind::Call };
    let of = names.next().map(ToString::to_string).unwrap_or_default();
    match last.to_string().as_str() {
        _ if is_constructor(last) => Kind::Free,
        "new" if BOXES.contains(&of.as_str()) => Kind::Allocation,
        "from" if of == "String" || of == "Vec" || BOXES.contains(&of.as_str()) => Kind::Allocation,
        "with_capacity" => Kind::Allocation,
        _ => Kind::Call,
    }
}

/// A child is charged by the spawn itself.
pub(crate) fn is_spawn(call: &ExprMethodCall) -> bool {
    call.method == "spawn" || call.method == "spawn_try"
}

pub(crate) fn kind_of_method(call: &ExprMethodCall) -> Kind {
    if is_spawn(call) {
        Kind::Free
    } else if call.args.is_empty() && COPIES.iter().any(|name| call.method == name) {
        Kind::Allocation
    } else {
        Kind::Call
    }
}

fn name_of(used: &Macro) -> String {
    used.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Are its arguments expressions that the pass may enter?
pub(crate) fn is_open(used: &Macro) -> bool {
    OPEN_MACROS.contains(&name_of(used).as_str())
}

pub(crate) fn kind_of_macro(used: &Macro) -> Kind {
    if matches!(name_of(used).as_str(), "vec" | "format") { Kind::Allocation } else { Kind::Call }
}

/// The first word in a macro's tokens that begins a loop.
pub(crate) fn loop_word(tokens: &TokenStream) -> Option<Ident> {
    tokens.clone().into_iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "loop" || word == "while" || word == "for" => Some(word),
        TokenTree::Group(group) => loop_word(&group.stream()),
        _ => None,
    })
}
