//! J-12: the pass on random modules. The output is valid, computes what the original computes, and charges what a count of
//! every single instruction finds.

mod calls;
mod common;

use common::{compare, compare_module};
use janus_guest::pass;
use proptest::prelude::*;
use wasmi::{Engine, Extern, Func, Global, Instance, Module, Mutability, Store, Val};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn j_12_random_modules(bytes in prop::collection::vec(any::<u8>(), 200..6_000)) {
        compare(&bytes);
    }
}

#[test]
fn j_12_random_modules_finish() {
    let mut state = 7u64;
    // A test that skips them all would prove nothing.
    let mut finished = 0;
    for _ in 0..150 {
        let bytes: Vec<u8> = (0..4_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        finished += u32::from(compare(&bytes));
    }
    assert!(finished >= 30, "only {finished} modules ran to their end: the generator is of no use");
}

/// Callers pay for the functions that they call, wherever the calls are: in arms, in loops, before returns, or as tail
/// calls. `SEEDS=20000` tries more.
#[test]
fn j_12_random_calls() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    let mut finished = 0u64;
    for seed in 0..seeds {
        let wat = calls::module(seed);
        let wasm = wat::parse_str(&wat).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{wat}"));
        finished += u64::from(compare_module(&wasm));
    }
    assert!(
        finished >= seeds * 3 / 4,
        "only {finished} modules ran to their end: the generator is of no use"
    );
}

/// A small function that only calls can reach has no charge and no check of its own; one that is exported has.
#[test]
fn j_12_small_functions_are_paid_for_by_their_callers() {
    let charged = |export: &str| {
        let wat = format!(
            r#"(module (func $small {export} (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
              (func (export "run") (result i32) (call $small (call $small (i32.const 1)))))"#
        );
        let wasm = pass::instrument(&wat::parse_str(&wat).expect("text"), false).expect("it is valid").wasm;
        let first = wasmparser::Parser::new(0).parse_all(&wasm).find_map(|payload| match payload {
            Ok(wasmparser::Payload::CodeSectionEntry(body)) => Some(body),
            _ => None,
        });
        let body = first.expect("it has code").get_operators_reader().expect("a body");
        body.into_iter().any(|op| matches!(op, Ok(wasmparser::Operator::GlobalSet { .. })))
    };
    assert!(!charged(""));
    assert!(charged(r#"(export "small")"#));
}

/// A chain of calls that do nearly all of their work after their callees have returned: what runs between two checks is
/// bounded by the lag of one function and a little for each frame, not by a lag for each frame.
#[test]
fn j_12_returns_are_checked() {
    const DEPTH: i64 = 200;
    // Less than a lag in all, in separate segments: nothing of it is charged before the call.
    let some = "(drop (i32.const 1))".repeat(4);
    let work = format!("(block (br_if 0 (i32.eqz (local.get $n))) {some})").repeat(80);
    let wat = format!(
        r#"(module (func $f (export "run") (param $n i32)
          (if (local.get $n) (then (call $f (i32.sub (local.get $n) (i32.const 1))))) {work}))"#
    );
    let wasm = pass::instrument(&wat::parse_str(&wat).expect("text"), false).expect("it is valid").wasm;
    let engine = Engine::default();
    let module = Module::new(&engine, &wasm).expect("the engine takes it");
    // The largest debt at a check; the debt at the end is in the global.
    let mut store = Store::new(&engine, 0i64);
    let fuel = Global::new(&mut store, Val::I64(0), Mutability::Var);
    let refuel = Func::wrap(&mut store, |mut caller: wasmi::Caller<'_, i64>, left: i64| -> i64 {
        let most = (*caller.data()).max(-left);
        *caller.data_mut() = most;
        0
    });
    let imports: Vec<Extern> = module
        .imports()
        .map(|import| if import.name() == "fuel" { Extern::Global(fuel) } else { Extern::Func(refuel) })
        .collect();
    let instance = Instance::new(&mut store, &module, &imports).expect("it has no start");
    let run = instance.get_typed_func::<i32, ()>(&store, "run").expect("an export");
    run.call(&mut store, DEPTH as i32).expect("it ends");
    let Val::I64(left) = fuel.get(&store) else { unreachable!("it is an i64") };
    let most = (*store.data()).max(-left);
    assert!((1..=1_024 + 193 * (DEPTH + 1)).contains(&most), "{most} operations were owed");
}
