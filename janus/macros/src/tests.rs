//! Evidence for J-04: what the attribute makes of a function, beside it in a file; and what it refuses.

use crate::expand;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use std::path::Path;
use syn::{File, Item, Meta};

/// The file as the compiler gets it: every `#[budgeted]` function expanded.
fn expanded(source: &str) -> String {
    let mut file: File = syn::parse_str(source).expect("the example parses");
    for item in &mut file.items {
        match item {
            Item::Fn(function) => {
                let attributes = std::mem::take(&mut function.attrs);
                *item = syn::parse2(apply(attributes, item.to_token_stream())).expect("a function comes out");
            }
            Item::Impl(block) => {
                for inner in &mut block.items {
                    let syn::ImplItem::Fn(function) = inner else { continue };
                    let attributes = std::mem::take(&mut function.attrs);
                    *inner =
                        syn::parse2(apply(attributes, inner.to_token_stream())).expect("a method comes out");
                }
            }
            _ => {}
        }
    }
    prettyplease::unparse(&file)
}

fn apply(attributes: Vec<syn::Attribute>, item: TokenStream) -> TokenStream {
    let mut item = item;
    for attribute in attributes {
        if !attribute.path().is_ident("budgeted") {
            item = quote!(#attribute #item);
            continue;
        }
        let arguments = match &attribute.meta {
            Meta::List(list) => list.tokens.clone(),
            _ => TokenStream::new(),
        };
        item = expand(arguments, item).expect("the example is accepted");
    }
    item
}

/// Every `tests/golden/*.rs` against the `.expanded` beside it. `BLESS=1` writes them anew: read the difference.
#[test]
fn j_04_expansions_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        seen += 1;
        let now = expanded(&std::fs::read_to_string(&path).expect("readable"));
        let record = path.with_extension("expanded");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&record, &now).expect("writable");
        }
        let recorded = std::fs::read_to_string(&record).unwrap_or_default();
        assert_eq!(recorded, now, "{}: BLESS=1 records what it is now", path.display());
    }
    assert!(seen >= 5, "only {seen} examples");
}

/// The same shape may be written in many ways; what is refused is refused with words that help.
#[test]
fn j_04_refusals_say_what_to_do() {
    let cases: [(TokenStream, TokenStream, &str); 15] = [
        (
            quote!(),
            quote!(
                async fn f(cx: &Cx) {}
            ),
            "without async",
        ),
        (
            quote!(),
            quote!(
                const fn f(cx: &Cx) {}
            ),
            "const fn",
        ),
        (
            quote!(),
            quote!(
                extern "C" fn f(cx: &Cx) {}
            ),
            "C-unwind",
        ),
        (
            quote!(),
            quote!(
                extern "C" fn f(cx: &Cx) {}
            ),
            "C-unwind",
        ),
        (
            quote!(),
            quote!(
                fn f(x: u32) {}
            ),
            "cx: &Cx",
        ),
        (
            quote!(),
            quote!(
                fn f(cx: &mut Cx) {}
            ),
            "cx: &Cx",
        ),
        (
            quote!(),
            quote!(
                struct S;
            ),
            "one function",
        ),
        (quote!(), quote!(impl S { fn f(cx: &Cx) {} }), "each function"),
        (
            quote!(),
            quote!(
                fn f(&self, cx: &Cx);
            ),
            "no body",
        ),
        (
            quote!(fast),
            quote!(
                fn f(cx: &Cx) {}
            ),
            "not known here",
        ),
        (
            quote!(unwind, propagate),
            quote!(
                fn f(cx: &Cx) {}
            ),
            "said twice",
        ),
        (
            quote!(),
            quote!(
                fn f(cx: &Cx) {
                    g!(loop {})
                }
            ),
            "outside of the macro",
        ),
        (
            quote!(),
            quote!(
                fn f(cx: &Cx) {
                    unsafe { while g() {} }
                }
            ),
            "unsafe block",
        ),
        (
            quote!(),
            quote!(
                fn f(cx: &Cx) {
                    async {}
                }
            ),
            "without async",
        ),
        (
            quote!(),
            quote!(
                fn f(cx: &Cx) {
                    x.await
                }
            ),
            "without await",
        ),
    ];
    for (arguments, item, words) in cases {
        let text = item.to_string();
        let error = expand(arguments, item).expect_err(&text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

/// All of what is wrong is told at once.
#[test]
fn j_04_two_faults_are_two_errors() {
    let item = quote!(
        fn f(cx: &Cx) {
            g!(while x {});
            unsafe { loop {} }
        }
    );
    let error = expand(TokenStream::new(), item).expect_err("both are refused");
    assert_eq!(error.into_iter().count(), 2);
}
