//! `#[janus::main]`: the function becomes the first task of a runtime, and `main` starts that.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, ItemFn, Token};

/// `config = ..`, or nothing.
struct Wish(Option<Expr>);

impl Parse for Wish {
    fn parse(input: ParseStream<'_>) -> syn::Result<Wish> {
        if input.is_empty() {
            return Ok(Wish(None));
        }
        let name: Ident = input.parse()?;
        if name != "config" {
            return Err(syn::Error::new(name.span(), "`janus::main` knows `config = <an expression>` only"));
        }
        input.parse::<Token![=]>()?;
        Ok(Wish(Some(input.parse()?)))
    }
}

pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let Wish(config) = syn::parse2(arguments)?;
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
    Ok(quote! {
        #(#attributes)*
        #visibility fn #name() #output {
            fn first_task(#inputs) #output #body
            ::janus::start::main(#config, first_task)
        }
    })
}
