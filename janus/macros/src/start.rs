//! `#[janus::main]`: the function becomes the first task of a runtime, and `main` starts that.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, ItemFn, Token, parenthesized};

/// The promise, by name: see `janus::main`.
const PROMISE: &str = "no_thread_state_across_waits";

const ASK: &str = "tasks share OS threads and move between them, which safe code can notice: `janus::main` asks for a promise. If no \
                   task of this program keeps across a wait what is bound to its thread (a reference into a `thread_local!`, an \
                   `Rc` cloned out of one such as `rand::rng()`, a guard of a `std` lock), nor waits inside a scoped thread-local, \
                   write `#[janus::main(unsafe(no_thread_state_across_waits))]`";

/// `unsafe(..)`, and perhaps `config = ..`.
#[derive(Default)]
struct Wish {
    promise: Option<Token![unsafe]>,
    config: Option<Expr>,
}

impl Parse for Wish {
    fn parse(input: ParseStream<'_>) -> syn::Result<Wish> {
        let mut wish = Wish::default();
        while !input.is_empty() {
            if input.peek(Token![unsafe]) {
                wish.promise = Some(input.parse()?);
                let inner;
                parenthesized!(inner in input);
                let name: Ident = inner.parse()?;
                if name != PROMISE || !inner.is_empty() {
                    return Err(syn::Error::new(name.span(), format!("the promise is `{PROMISE}`")));
                }
            } else {
                let name: Ident = input.parse()?;
                if name != "config" {
                    let known = format!(
                        "`janus::main` knows `unsafe({PROMISE})` and `config = <an expression>` only"
                    );
                    return Err(syn::Error::new(name.span(), known));
                }
                input.parse::<Token![=]>()?;
                wish.config = Some(input.parse()?);
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(wish)
    }
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let Wish { promise, config } = syn::parse2(arguments)?;
    let promise = promise.ok_or_else(|| syn::Error::new(proc_macro2::Span::call_site(), ASK))?;
    let function: ItemFn = syn::parse2(item)?;
    let signature = &function.sig;
    let refuse = |at: &dyn Spanned, why| Err(syn::Error::new(at.span(), why));
    if let Some(asyncness) = &signature.asyncness {
        return refuse(asyncness, "a task is no future: it may simply wait");
    }
    if signature.inputs.len() != 1 {
        return refuse(&signature.inputs, "the first task gets one thing: `cx: &janus::Cx`");
    }
    if !signature.generics.params.is_empty() {
        return refuse(&signature.generics, "nobody says what these would be");
    }
    let config = config.map_or_else(|| quote!(::janus::Config::new()), |config| quote!(#config));
    let (attributes, visibility, name, output) =
        (&function.attrs, &function.vis, &signature.ident, &signature.output);
    let (inputs, body) = (&signature.inputs, &function.block);
    // Where the program says `unsafe`, so that `#![forbid(unsafe_code)]` and a reader's search find it there.
    let starts = quote_spanned!(promise.span => unsafe { ::janus::start::main(config, first_task) });
    Ok(quote! {
        #(#attributes)*
        #visibility fn #name() #output {
            fn first_task(#inputs) #output #body
            let config = #config;
            // The reason is in the attribute's own word.
            #[allow(clippy::undocumented_unsafe_blocks)]
            let ended = #starts;
            ended
        }
    })
}

/// The error, and a function of that name, so that nobody else complains that it is missing.
pub(crate) fn refused(error: &syn::Error, item: TokenStream) -> TokenStream {
    let told = error.to_compile_error();
    match syn::parse2::<ItemFn>(item) {
        Ok(function) => {
            let (visibility, name) = (&function.vis, &function.sig.ident);
            quote!(#told #visibility fn #name() {})
        }
        Err(_) => told,
    }
}
