//! The attribute behind `janus::budgeted`: it inserts yield checks and charges into an ordinary function, where SPEC-021
//! [SCHED:4.1.1] wants a compiler to. `docs/janus-macro.md` is its design; `janus::budgeted` is its page for users.
//!
//! | file | is |
//! |---|---|
//! | `start.rs` | the attribute behind `janus::main` |
//! | `terms.rs` | what the attribute says, which function it is, and what is refused |
//! | `insert.rs` | the pass over the body |
//! | `names.rs` | what can be told from a name: constructors, allocations, what charges itself |
//!
//! It sees tokens, no types: every rule here is one about how the source is written.

use proc_macro2::TokenStream;

mod insert;
mod names;
mod start;
mod terms;

#[cfg(test)]
mod tests;

/// Inserts yield checks and charges into a function: see `janus::budgeted`.
#[proc_macro_attribute]
pub fn budgeted(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let unchanged = TokenStream::from(item.clone());
    let refused = |error: syn::Error| {
        // The function stays, so that nobody else complains that it is missing.
        let error = error.into_compile_error();
        quote::quote!(#error #unchanged)
    };
    expand(arguments.into(), item.into()).unwrap_or_else(refused).into()
}

/// Makes a function the first task of a program: see `janus::main`.
#[proc_macro_attribute]
pub fn main(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let unchanged = item.clone().into();
    start::expand(arguments.into(), item.into())
        .unwrap_or_else(|error| start::refused(&error, unchanged))
        .into()
}

fn expand(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let wish: terms::Wish = syn::parse2(arguments)?;
    let mut function = terms::function(item)?;
    let terms = terms::settle(wish, &mut function)?;
    insert::into_function(&mut function, &terms)?;
    Ok(quote::ToTokens::into_token_stream(function))
}
