//! J-12: the cost of each instruction, by an independent table. The random tests compare two passes that share one
//! table (`janus/guest/src/pass/cost.rs`), so they do not find errors in it; this one was written by hand, from the
//! specification ([SCHED:3.3.1]) and docs/janus-guests.md.

mod common;

use common::{Counted, End};
use janus_guest::pass;
use std::collections::BTreeSet;
use wasmi::TrapCode;

/// Instructions that take one operand of a type.
const UNARY: [(&str, &str); 4] = [
    (
        "i32",
        "i32.eqz i32.clz i32.ctz i32.popcnt i32.extend8_s i32.extend16_s i64.extend_i32_s i64.extend_i32_u \
         f32.convert_i32_s f32.convert_i32_u f64.convert_i32_s f64.convert_i32_u f32.reinterpret_i32",
    ),
    (
        "i64",
        "i64.eqz i64.clz i64.ctz i64.popcnt i64.extend8_s i64.extend16_s i64.extend32_s i32.wrap_i64 \
         f32.convert_i64_s f32.convert_i64_u f64.convert_i64_s f64.convert_i64_u f64.reinterpret_i64",
    ),
    (
        "f32",
        "f32.abs f32.neg f32.ceil f32.floor f32.trunc f32.nearest f32.sqrt f64.promote_f32 i32.reinterpret_f32 \
         i32.trunc_f32_s i32.trunc_f32_u i64.trunc_f32_s i64.trunc_f32_u \
         i32.trunc_sat_f32_s i32.trunc_sat_f32_u i64.trunc_sat_f32_s i64.trunc_sat_f32_u",
    ),
    (
        "f64",
        "f64.abs f64.neg f64.ceil f64.floor f64.trunc f64.nearest f64.sqrt f32.demote_f64 i64.reinterpret_f64 \
         i32.trunc_f64_s i32.trunc_f64_u i64.trunc_f64_s i64.trunc_f64_u \
         i32.trunc_sat_f64_s i32.trunc_sat_f64_u i64.trunc_sat_f64_s i64.trunc_sat_f64_u",
    ),
];

/// Instructions that take two operands of a type, without the type.
const INTEGER: &str = "add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u rotl rotr \
                       eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u";
const FLOAT: &str = "add sub mul div min max copysign eq ne lt gt le ge";

const LOADS: &str = "i32.load i32.load8_s i32.load8_u i32.load16_s i32.load16_u i64.load i64.load8_s i64.load8_u \
                     i64.load16_s i64.load16_u i64.load32_s i64.load32_u f32.load f64.load";
const STORES: &str =
    "i32.store i32.store8 i32.store16 i64.store i64.store8 i64.store16 i64.store32 f32.store f64.store";

/// Everything else: a body, and what it costs in all.
const OTHER: &[(&str, i64)] = &[
    // Structure is free, but its effects are not: an iteration of a loop costs its branch.
    ("nop", 0),
    ("(block nop)", 0),
    ("(loop nop)", 0),
    ("(if (i32.const 1) (then) (else))", 2),
    ("(if (i32.const 0) (then) (else nop))", 2),
    ("(if (i32.const 0) (then) (else (drop (i32.const 1))))", 4),
    ("(block (br 0))", 1),
    ("(block (br_if 0 (i32.const 1)))", 2),
    ("(block (br_if 0 (i32.const 0)))", 2),
    ("(block (br_table 0 0 (i32.const 1)))", 2),
    ("return", 1),
    ("unreachable", 1),
    ("(call $nothing)", 1),
    ("(call_indirect (type $none) (i32.const 0))", 2),
    ("(return_call $nothing)", 1),
    ("(return_call_indirect (type $none) (i32.const 0))", 2),
    // Ten turns, each of get, const, sub, tee and br_if; and before them const and set.
    (
        "(local.set $n (i32.const 10)) (loop (br_if 0 (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))",
        2 + 10 * 5,
    ),
    // Operands.
    ("(drop (select (i32.const 1) (i32.const 2) (i32.const 0)))", 5),
    ("(drop (select (result i64) (i64.const 1) (i64.const 2) (i32.const 0)))", 5),
    ("(local.set $n (local.get $n))", 2),
    ("(drop (local.tee $n (i32.const 1)))", 3),
    ("(global.set $count (global.get $count))", 2),
    ("(drop (f32.const 1))", 2),
    ("(drop (f64.const 1))", 2),
    // Memory; one more operation for each 64 bytes of bulk. The host charges the cost of a page when it is asked for.
    ("(drop (memory.size))", 2),
    ("(drop (memory.grow (i32.const 0)))", 3),
    ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 0))", 4),
    ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 640))", 4 + 10),
    ("(memory.copy (i32.const 0) (i32.const 8) (i32.const 640))", 4 + 10),
    ("(memory.init $bytes (i32.const 0) (i32.const 0) (i32.const 64))", 4 + 1),
    ("(data.drop $bytes)", 1),
    // Tables; one more for each 8 elements.
    ("(drop (table.size $table))", 2),
    ("(drop (table.grow $table (ref.null func) (i32.const 0)))", 4),
    ("(drop (table.get $table (i32.const 0)))", 3),
    ("(table.set $table (i32.const 0) (ref.func $nothing))", 3),
    ("(drop (ref.is_null (ref.null func)))", 3),
    ("(table.fill $table (i32.const 0) (ref.null func) (i32.const 16))", 4 + 2),
    ("(table.copy $table $table (i32.const 0) (i32.const 1) (i32.const 16))", 4 + 2),
    ("(table.init $table $some (i32.const 0) (i32.const 0) (i32.const 8))", 4 + 1),
    ("(elem.drop $some)", 1),
];

/// Bodies, and what they cost.
fn table() -> Vec<(String, i64)> {
    let one = |ty: &str| format!("({ty}.const 1)");
    let mut table: Vec<(String, i64)> = OTHER.iter().map(|&(body, cost)| (body.to_string(), cost)).collect();
    for (ty, names) in UNARY {
        // The operand, the instruction and the drop.
        table.extend(names.split_whitespace().map(|name| (format!("(drop ({name} {}))", one(ty)), 3)));
    }
    for (ty, names) in [("i32", INTEGER), ("i64", INTEGER), ("f32", FLOAT), ("f64", FLOAT)] {
        for name in names.split_whitespace() {
            table.push((format!("(drop ({ty}.{name} {} {}))", one(ty), one(ty)), 4));
        }
    }
    table.extend(LOADS.split_whitespace().map(|name| (format!("(drop ({name} (i32.const 8)))"), 3)));
    for name in STORES.split_whitespace() {
        table.push((format!("({name} (i32.const 8) {})", one(&name[..3])), 3));
    }
    table
}

/// A module whose only work is `body`.
fn module(body: &str) -> Vec<u8> {
    let nothings = "$nothing ".repeat(20);
    let wat = format!(
        r#"(module (type $none (func)) (memory 1 2) (data $bytes "{}") (table $table 20 30 funcref)
          (elem (i32.const 0) func {nothings}) (elem $some func {nothings}) (global $count (mut i32) (i32.const 0))
          (func $nothing) (func (export "run") (local $n i32) {body}))"#,
        "x".repeat(64)
    );
    wat::parse_str(&wat).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn charged(body: &str, plainly: bool) -> i64 {
    let wasm = module(body);
    let done = if plainly { pass::instrument_plainly(&wasm, true) } else { pass::instrument(&wasm, true) };
    let run = Counted::run(&done.expect("the pass takes what is valid").wasm, 0);
    let end =
        if body == "unreachable" { End::Trapped(TrapCode::UnreachableCodeReached) } else { End::Finished };
    assert_eq!(run.seen.end, end, "{body}");
    run.ops
}

#[test]
fn j_12_each_instruction_costs_what_the_table_says() {
    for plainly in [false, true] {
        // What the function itself costs, and the module.
        let nothing = charged("", plainly);
        for (body, cost) in table() {
            assert_eq!(charged(&body, plainly) - nothing, cost, "{body}, plainly: {plainly}");
        }
    }
}

macro_rules! names {
    ($(@$proposal:ident $name:ident $({ $($field:ident: $type:ty),* })? => $visit:ident ($($arity:tt)*))*) => {
        [$((stringify!($proposal), stringify!($name))),*]
    };
}

/// Nothing that the pass lets in is missing in the table above.
#[test]
fn j_12_the_table_of_costs_is_complete() {
    const ALLOWED: [&str; 6] =
        ["mvp", "sign_extension", "saturating_float_to_int", "bulk_memory", "reference_types", "tail_call"];
    let all = wasmparser::for_each_operator!(names);
    let mut missing: BTreeSet<&str> =
        all.iter().filter(|(proposal, _)| ALLOWED.contains(proposal)).map(|(_, name)| *name).collect();
    assert!(missing.len() > 180, "{} instructions", missing.len());
    for (body, _) in table() {
        let wasm = module(&body);
        for payload in wasmparser::Parser::new(0).parse_all(&wasm) {
            let Ok(wasmparser::Payload::CodeSectionEntry(code)) = payload else { continue };
            for op in code.get_operators_reader().expect("a body") {
                let shown = format!("{:?}", op.expect("it is valid"));
                missing.remove(shown.split([' ', '(']).next().expect("a name"));
            }
        }
    }
    // A choice of several values at once, which no engine takes yet: validation refuses it.
    missing.remove("TypedSelectMulti");
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}
