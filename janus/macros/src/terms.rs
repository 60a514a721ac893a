//! What the attribute says, which function it stands on, and what is refused before anything is inserted.

use proc_macro2::{Ident, Span, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Error, Expr, FnArg, ItemFn, Pat, ReturnType, Signature, Token, Type, parse_quote};

/// How a point ends a function whose task was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    /// By `?`: the function returns a `Result`.
    Return,
    /// By unwinding: it returns something else.
    Unwind,
}

/// The attribute's arguments.
#[derive(Default)]
pub(crate) struct Wish {
    cx: Option<Expr>,
    ends: Option<Ends>,
}

impl Parse for Wish {
    fn parse(input: ParseStream<'_>) -> syn::Result<Wish> {
        let mut wish = Wish::default();
        while !input.is_empty() {
            let word: Ident = input.parse()?;
            match word.to_string().as_str() {
                "cx" if wish.cx.is_none() => {
                    input.parse::<Token![=]>()?;
                    wish.cx = Some(input.parse()?);
                }
                "unwind" if wish.ends.is_none() => wish.ends = Some(Ends::Unwind),
                "propagate" if wish.ends.is_none() => wish.ends = Some(Ends::Return),
                "cx" | "unwind" | "propagate" => {
                    return Err(Error::new(word.span(), "said twice: say it once"));
                }
                _ => {
                    let what = "not known here: `cx = …` says where the task's `&Cx` is, `unwind` and `propagate` how the \
                                function ends when its task was cancelled";
                    return Err(Error::new(word.span(), what));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(wish)
    }
}

/// What the pass needs to know.
pub(crate) struct Terms {
    /// Where the task's `&Cx` is.
    pub(crate) cx: Expr,
    pub(crate) ends: Ends,
}

/// The function; anything else is refused by name.
pub(crate) fn function(item: TokenStream) -> syn::Result<ItemFn> {
    let error = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => return Ok(function),
        Err(error) => error,
    };
    if let Ok(declared) = syn::parse2::<syn::TraitItemFn>(item.clone())
        && declared.default.is_none()
    {
        let what = "no body to insert checks into: put #[budgeted] on the functions that implement it";
        return Err(Error::new(declared.sig.span(), what));
    }
    match syn::parse2::<syn::Item>(item) {
        Ok(other) => {
            let what = "#[budgeted] stands on one function: put it on each function that is to be budgeted";
            Err(Error::new(other.span(), what))
        }
        Err(_) => Err(error),
    }
}

/// Refuses what cannot be done, and settles the rest. A `_` that stands for the `Cx` gets a name.
pub(crate) fn settle(wish: Wish, function: &mut ItemFn) -> syn::Result<Terms> {
    refuse(&function.sig)?;
    let ends = wish.ends.unwrap_or_else(|| ends(&function.sig.output));
    let cx = match wish.cx {
        Some(cx) => cx,
        None => parameter(&mut function.sig)?,
    };
    Ok(Terms { cx, ends })
}

fn refuse(signature: &Signature) -> syn::Result<()> {
    if let Some(token) = &signature.asyncness {
        let what = "an async function waits by being polled, and a budgeted one by its own stack: write it without async, \
                    and wait by channels, `sleep` and the like";
        return Err(Error::new(token.span, what));
    }
    if let Some(token) = &signature.constness {
        let what =
            "a const fn may run in the compiler, where there is no task to charge: budget who calls it";
        return Err(Error::new(token.span, what));
    }
    if let Some(variadic) = &signature.variadic {
        return Err(Error::new(variadic.span(), "a variadic function is C's: budget who calls it"));
    }
    let Some(abi) = &signature.abi else { return Ok(()) };
    let name = abi.name.as_ref().map_or("C".to_string(), syn::LitStr::value);
    if name == "Rust" || name.ends_with("-unwind") {
        return Ok(());
    }
    let what = format!(
        "a check may unwind, and no unwinding leaves an extern \"{name}\" function: make it \"{name}-unwind\", or let it \
         call a budgeted function and answer with a code"
    );
    Err(Error::new(abi.span(), what))
}

/// A function that visibly returns a `Result` passes the cancellation on; any other unwinds.
pub(crate) fn ends(output: &ReturnType) -> Ends {
    let ReturnType::Type(_, returned) = output else { return Ends::Unwind };
    match last_segment(returned) {
        Some(name) if name == "Result" => Ends::Return,
        _ => Ends::Unwind,
    }
}

fn last_segment(given: &Type) -> Option<&Ident> {
    match given {
        Type::Path(path) => path.path.segments.last().map(|segment| &segment.ident),
        Type::Paren(inner) => last_segment(&inner.elem),
        Type::Group(inner) => last_segment(&inner.elem),
        _ => None,
    }
}

/// Is it `&Cx`, by whatever path?
fn is_cx(given: &Type) -> bool {
    // A type that came through a macro.
    if let Type::Group(inner) = given {
        return is_cx(&inner.elem);
    }
    let Type::Reference(reference) = given else { return false };
    reference.mutability.is_none() && last_segment(&reference.elem).is_some_and(|name| name == "Cx")
}

/// The name of a parameter; a `_` gets one.
pub(crate) fn name_of(pattern: &mut Pat) -> Option<Ident> {
    match pattern {
        Pat::Ident(named) => Some(named.ident.clone()),
        Pat::Type(typed) => name_of(&mut typed.pat),
        Pat::Wild(_) => {
            let name = Ident::new("__janus_given", Span::mixed_site());
            *pattern = parse_quote!(#name);
            Some(name)
        }
        _ => None,
    }
}

/// Is it a parameter that says that it is a `&Cx`?
pub(crate) fn is_cx_pattern(pattern: &Pat) -> bool {
    matches!(pattern, Pat::Type(typed) if is_cx(&typed.ty))
}

fn parameter(signature: &mut Signature) -> syn::Result<Expr> {
    let given = signature.inputs.iter_mut().find_map(|input| match input {
        FnArg::Typed(typed) if is_cx(&typed.ty) => name_of(&mut typed.pat),
        _ => None,
    });
    given.map(|name| parse_quote!(#name)).ok_or_else(|| {
        let what = "nobody to charge: give the function its task's context, `cx: &Cx`, or say where it is, \
                    #[budgeted(cx = self.cx)]";
        Error::new(signature.ident.span(), what)
    })
}
