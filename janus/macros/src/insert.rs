//! The pass: it walks over a body in the order of evaluation and inserts points.
//!
//! Calls are charged a statement at a time: one charge in front of a statement pays for the calls that it makes in any
//! case. What it may or may not do (branches, arms, the right side of `&&`) has a block of its own, and its own charge.
//! So no expression is taken apart: temporaries live as long as they did, and places stay places.

use crate::names::{self, Kind};
use crate::terms::{self, Ends, Terms};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Block, Error, Expr, ExprBlock, ExprClosure, ExprMethodCall, ItemFn, Macro, Stmt, Token};
use syn::{parse_quote, parse_quote_spanned};

/// Inserts points into the body of `function`.
pub(crate) fn into_function(function: &mut ItemFn, terms: &Terms) -> syn::Result<()> {
    let mut pass = Pass { ends: terms.ends, cx: terms.cx.clone(), calls: 0, wrong: None };
    let at = function.sig.ident.span();
    pass.body(&mut function.block, 1, at);
    pass.name_cx(&mut function.block, at);
    pass.wrong.map_or(Ok(()), Err)
}

struct Pass {
    ends: Ends,
    /// What the source calls the task's `&Cx` here.
    cx: Expr,
    /// Calls that the statement makes in any case.
    calls: u64,
    /// Everything that is refused.
    wrong: Option<Error>,
}

impl Pass {
    fn refuse(&mut self, at: Span, what: &str) {
        let error = Error::new(at, what);
        match &mut self.wrong {
            Some(wrong) => wrong.combine(error),
            None => self.wrong = Some(error),
        }
    }

    /// `point` as an expression: it goes on, or ends the function.
    fn or_end(&self, at: Span, point: &TokenStream) -> TokenStream {
        let at = at.resolved_at(Span::mixed_site());
        match self.ends {
            Ends::Return => quote_spanned!(at=> #point?),
            Ends::Unwind => quote_spanned!(at=> ::janus::points::or_unwind(__janus_cx, #point)),
        }
    }

    /// Charges so many operations.
    fn charge(&self, at: Span, count: u64) -> TokenStream {
        let span = at.resolved_at(Span::mixed_site());
        let point = match count {
            1 => quote_spanned!(span=> ::janus::Cx::check(__janus_cx)),
            _ => quote_spanned!(span=> ::janus::Cx::charge_ops(__janus_cx, #count)),
        };
        self.or_end(at, &point)
    }

    /// The task, under a name that the source cannot shadow.
    fn name_cx(&self, block: &mut Block, at: Span) {
        let span = at.resolved_at(Span::mixed_site());
        let cx = &self.cx;
        block.stmts.insert(0, parse_quote_spanned!(span=> let __janus_cx: &::janus::Cx = #cx;));
    }

    /// Each statement is preceded by the charge for its calls; the first pays for what is `due` already.
    fn body(&mut self, block: &mut Block, mut due: u64, at: Span) {
        for mut statement in std::mem::take(&mut block.stmts) {
            let at = statement.span();
            let calls = self.apart(|pass| pass.visit_stmt_mut(&mut statement));
            if !matches!(statement, Stmt::Item(_)) {
                self.pay(block, calls + std::mem::take(&mut due), at);
            }
            block.stmts.push(statement);
        }
        self.pay(block, due, at);
    }

    fn pay(&self, block: &mut Block, count: u64, at: Span) {
        if count > 0 {
            let charge = self.charge(at, count);
            block.stmts.push(parse_quote!(#charge;));
        }
    }

    /// Runs `walk` apart from the statement; answers the calls that it found.
    fn apart(&mut self, walk: impl FnOnce(&mut Pass)) -> u64 {
        let before = std::mem::take(&mut self.calls);
        walk(self);
        std::mem::replace(&mut self.calls, before)
    }

    /// An expression that is evaluated or not: if it calls, it becomes a block with a charge of its own.
    fn maybe(&mut self, expression: &mut Expr) {
        let calls = self.apart(|pass| pass.visit_expr_mut(expression));
        if calls > 0 {
            let charge = self.charge(expression.span(), calls);
            // The block is parentheses enough.
            let inner = match &*expression {
                Expr::Paren(inner) => &*inner.expr,
                other => other,
            };
            *expression = parse_quote!({ #charge; #inner });
        }
    }

    /// A loop, whose body was visited, gets its counter. `calls`: what the condition calls every time.
    fn count(&self, looped: &mut Expr, calls: u64) {
        let at = looped.span();
        let (body, attributes) = match looped {
            Expr::Loop(inner) => (&mut inner.body, &mut inner.attrs),
            Expr::While(inner) => (&mut inner.body, &mut inner.attrs),
            Expr::ForLoop(inner) => (&mut inner.body, &mut inner.attrs),
            _ => unreachable!("only loops are counted"),
        };
        let span = at.resolved_at(Span::mixed_site());
        let tick = self.or_end(at, &quote_spanned!(span=> ::janus::Ticker::tick(&mut __janus_loop)));
        body.stmts.insert(0, parse_quote!(#tick;));
        if calls > 0 {
            let charge = self.charge(at, calls);
            body.stmts.insert(1, parse_quote!(#charge;));
        }
        let attributes = std::mem::take(attributes);
        let mut block: ExprBlock = parse_quote_spanned!(span=> {
            let mut __janus_loop = ::janus::Cx::ticker(__janus_cx);
            #looped
        });
        block.attrs = attributes;
        *looped = Expr::Block(block);
    }

    /// Is it the task's `&Cx`, passed on? Then whoever gets it charges the call.
    fn is_cx(&self, given: &Expr) -> bool {
        let given = match given {
            Expr::Reference(reference) => &reference.expr,
            other => other,
        };
        given.to_token_stream().to_string() == self.cx.to_token_stream().to_string()
    }

    fn add(&mut self, expression: &mut Expr, kind: Kind) {
        match kind {
            Kind::Free => {}
            Kind::Call => self.calls += 1,
            Kind::Allocation => {
                let charge = self.charge(expression.span(), 1);
                *expression = parse_quote!(::janus::points::after(#expression, #charge));
            }
        }
    }

    /// The arguments of a macro, if they can be seen; what it costs.
    fn enter_macro(&mut self, used: &mut Macro) -> Kind {
        if names::is_open(used) && self.visit_arguments(used) {
            return names::kind_of_macro(used);
        }
        if let Some(word) = names::loop_word(&used.tokens) {
            let what = "a loop in the arguments of a macro, which #[budgeted] cannot see: write it outside of the macro";
            self.refuse(word.span(), what);
        }
        Kind::Call
    }

    fn visit_arguments(&mut self, used: &mut Macro) -> bool {
        if let Ok(mut list) = used.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            list.iter_mut().for_each(|argument| self.visit_expr_mut(argument));
            used.tokens = list.into_token_stream();
            return true;
        }
        let repeated = used.parse_body_with(|input: syn::parse::ParseStream<'_>| {
            let value: Expr = input.parse()?;
            input.parse::<Token![;]>()?;
            Ok((value, input.parse::<Expr>()?))
        });
        let Ok((mut value, mut length)) = repeated else { return false };
        self.visit_expr_mut(&mut value);
        self.visit_expr_mut(&mut length);
        used.tokens = quote!(#value; #length);
        true
    }

    fn enter_method(&mut self, call: &mut ExprMethodCall) -> Kind {
        self.visit_expr_mut(&mut call.receiver);
        let spawns = names::is_spawn(call);
        for argument in &mut call.args {
            match argument {
                Expr::Closure(closure) => self.enter_closure(closure, spawns),
                other => self.visit_expr_mut(other),
            }
        }
        let charges_itself = self.is_cx(&call.receiver) || call.args.iter().any(|given| self.is_cx(given));
        if charges_itself { Kind::Free } else { names::kind_of_method(call) }
    }

    /// A closure is a function of its own: it charges its own call, as nobody sees who calls it. `child`: it is a task.
    fn enter_closure(&mut self, closure: &mut ExprClosure, child: bool) {
        if let Some(token) = &closure.asyncness {
            self.refuse(token.span, "an async closure waits by being polled: write it without async");
            return;
        }
        let outer = self.cx.to_token_stream().to_string();
        let only = child && closure.inputs.len() == 1;
        let own = closure.inputs.iter_mut().find(|pattern| {
            only || terms::is_cx_pattern(pattern) || pattern.to_token_stream().to_string() == outer
        });
        let own = own.and_then(terms::name_of);
        let outer_ends = std::mem::replace(&mut self.ends, terms::ends(&closure.output));
        let outer_cx = own.as_ref().map(|name| std::mem::replace(&mut self.cx, parse_quote!(#name)));
        let at = closure.body.span();
        let mut block: Block = match &*closure.body {
            Expr::Block(body) if body.label.is_none() && body.attrs.is_empty() => body.block.clone(),
            body => parse_quote!({ #body }),
        };
        self.body(&mut block, 1, at);
        if own.is_some() {
            self.name_cx(&mut block, at);
        }
        *closure.body = parse_quote!(#block);
        self.ends = outer_ends;
        if let Some(cx) = outer_cx {
            self.cx = cx;
        }
    }

    fn enter_binary(&mut self, binary: &mut syn::ExprBinary) {
        self.visit_expr_mut(&mut binary.left);
        let lazy = matches!(binary.op, BinOp::And(_) | BinOp::Or(_));
        if lazy && !Chain::is(&binary.right) {
            self.maybe(&mut binary.right);
        } else {
            self.visit_expr_mut(&mut binary.right);
        }
    }

    fn enter_match(&mut self, matched: &mut syn::ExprMatch) {
        self.visit_expr_mut(&mut matched.expr);
        for arm in &mut matched.arms {
            match &mut arm.guard {
                Some((_, guard)) if Chain::is(guard) => self.visit_expr_mut(guard),
                Some((_, guard)) => self.maybe(guard),
                None => {}
            }
            self.maybe(&mut arm.body);
        }
    }

    fn enter_if(&mut self, branch: &mut syn::ExprIf) {
        self.visit_expr_mut(&mut branch.cond);
        self.visit_block_mut(&mut branch.then_branch);
        if let Some((_, otherwise)) = &mut branch.else_branch {
            self.maybe(otherwise);
        }
    }

    /// No point inside: it could end the function in the middle of what the block promises. Its calls are charged before.
    fn enter_unsafe(&mut self, block: &Block) {
        let mut sealed = Sealed::default();
        sealed.visit_block(block);
        self.calls += sealed.calls;
        for at in sealed.loops {
            let what = "a loop in an unsafe block: a check there could end the function half-way through what the block \
                        promises. Put the block into the loop, or the loop into a function without #[budgeted]";
            self.refuse(at, what);
        }
    }

    fn refuse_kind(&mut self, expression: &Expr) -> bool {
        let what = match expression {
            Expr::Async(_) => "an async block waits by being polled: write it without async",
            Expr::Await(_) => "a task waits without await: use channels, `sleep` and the like",
            Expr::Yield(_) => "a generator's yield is not a task's: give way with `cx.yield_now()`",
            Expr::TryBlock(_) => {
                "a try block would catch what ends the function: use a closure that returns a Result"
            }
            _ => return false,
        };
        self.refuse(expression.span(), what);
        true
    }
}

impl VisitMut for Pass {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let at = block.span();
        self.body(block, 0, at);
    }

    fn visit_stmt_mut(&mut self, statement: &mut Stmt) {
        match statement {
            // An item is another function's business; types and constants are the compiler's.
            Stmt::Item(_) => {}
            Stmt::Macro(used) => {
                self.enter_macro(&mut used.mac);
                self.calls += 1;
            }
            Stmt::Local(local) => {
                let Some(init) = &mut local.init else { return };
                self.visit_expr_mut(&mut init.expr);
                if let Some((_, otherwise)) = &mut init.diverge {
                    self.visit_expr_mut(otherwise);
                }
            }
            Stmt::Expr(expression, _) => self.visit_expr_mut(expression),
        }
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        if self.refuse_kind(expression) {
            return;
        }
        match expression {
            Expr::Call(call) => {
                visit_mut::visit_expr_call_mut(self, call);
                let charges_itself = call.args.iter().any(|given| self.is_cx(given));
                let kind = if charges_itself { Kind::Free } else { names::kind_of_call(call) };
                self.add(expression, kind);
            }
            Expr::MethodCall(call) => {
                let kind = self.enter_method(call);
                self.add(expression, kind);
            }
            Expr::Macro(used) => {
                let kind = self.enter_macro(&mut used.mac);
                self.add(expression, kind);
            }
            Expr::Closure(closure) => self.enter_closure(closure, false),
            Expr::Binary(binary) => self.enter_binary(binary),
            Expr::If(branch) => self.enter_if(branch),
            Expr::Match(matched) => self.enter_match(matched),
            Expr::Unsafe(block) => self.enter_unsafe(&block.block),
            Expr::Loop(inner) => {
                self.visit_block_mut(&mut inner.body);
                self.count(expression, 0);
            }
            Expr::While(inner) => {
                let calls = self.apart(|pass| pass.visit_expr_mut(&mut inner.cond));
                self.visit_block_mut(&mut inner.body);
                // The first look at the condition is the statement's, every other one its iteration's.
                self.calls += calls;
                self.count(expression, calls);
            }
            Expr::ForLoop(inner) => {
                self.visit_expr_mut(&mut inner.expr);
                self.visit_block_mut(&mut inner.body);
                self.count(expression, 0);
            }
            // The length is the compiler's.
            Expr::Repeat(repeat) => self.visit_expr_mut(&mut repeat.expr),
            Expr::Const(_) => {}
            other => visit_mut::visit_expr_mut(self, other),
        }
    }

    // No calls of the task's are in there.
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_path_mut(&mut self, _: &mut syn::Path) {}
}

/// Does an operand hold a `let`? It may not become a block then.
#[derive(Default)]
struct Chain(bool);

impl Chain {
    fn is(expression: &Expr) -> bool {
        let mut chain = Chain::default();
        chain.visit_expr(expression);
        chain.0
    }
}

impl Visit<'_> for Chain {
    fn visit_expr(&mut self, expression: &Expr) {
        match expression {
            Expr::Let(_) => self.0 = true,
            Expr::Binary(binary) => visit::visit_expr_binary(self, binary),
            Expr::Paren(inner) => visit::visit_expr_paren(self, inner),
            _ => {}
        }
    }
}

/// Counts what an unsafe block calls, and finds its loops.
#[derive(Default)]
struct Sealed {
    calls: u64,
    loops: Vec<Span>,
}

impl Visit<'_> for Sealed {
    fn visit_expr(&mut self, expression: &Expr) {
        match expression {
            Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) => self.loops.push(expression.span()),
            Expr::Call(call) => self.calls += u64::from(names::kind_of_call(call) != Kind::Free),
            Expr::MethodCall(_) => self.calls += 1,
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_macro(&mut self, used: &Macro) {
        self.calls += 1;
        self.loops.extend(names::loop_word(&used.tokens).map(|word| word.span()));
    }

    fn visit_item(&mut self, _: &syn::Item) {}
}
