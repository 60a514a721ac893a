//! J-12: findings of a hostile review: host memory and host time that were not charged, and valid modules that were
//! refused. Each of these tests failed once.

use janus::{Budget, Config, NurseryOptions, Profile, Recharge, Resource, Runtime, TaskError};
use janus_guest::{End, Grants, GuestError, Input, Kept, Options, Output, Program, Used, World, pass};
use std::fmt::Write;
use std::sync::{Arc, Mutex};

const SOME: Budget =
    Budget { ops: 10_000_000, memory: 8 << 20, spawn_count: 200, channel_ops: 1_000_000, syscalls: 100 };

fn program(wat: &str) -> Program {
    Program::new(&wat::parse_str(wat).expect("a test's own text"), Grants::ALL).expect("a program")
}

/// Runs `main` with exactly this budget; returns its use also if it did not end well.
fn run(
    program: &Program,
    budget: Budget,
    options: Options,
) -> (Result<Result<End, GuestError>, TaskError>, Used) {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime =
        unsafe { Runtime::new(Config::new().workers(1).profile(Profile::Sovereign)) }.expect("a runtime");
    let tally = options.tally.clone();
    let mut end = None;
    let outcome = runtime.run(|cx| {
        let manual = NurseryOptions::new().recharge(Recharge::Manual);
        let _ = cx.nursery_with(manual, |nursery| {
            end = Some(program.spawn(cx, nursery, "main", budget, options).expect("a task").join(cx));
            Ok(())
        });
    });
    outcome.expect("the first task ends well");
    (end.expect("the guest was joined"), tally.used())
}

fn value(program: &Program, budget: Budget) -> Option<i64> {
    run(program, budget, Options::default()).0.expect("no task error").expect("no guest error").value
}

/// The maker of a channel is charged for its room: when the maker ends the channel ends, too, and its number is not valid
/// any more.
#[test]
fn j_12_channels_end_with_who_paid_for_them() {
    let wat = r#"(module (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
        (import "janus" "join" (func $join (param i32 i32) (result i32)))
        (import "janus" "channel" (func $channel (param i32) (result i32)))
        (import "janus" "send" (func $send (param i32 i32 i32) (result i32)))
        (import "janus" "receive" (func $receive (param i32 i32 i32) (result i32)))
        (table funcref (elem $child)) (memory 1)
        (func $child (param i64) (result i64) (local $c i32)
          (local.set $c (call $channel (i32.const 1)))
          (if (call $send (local.get $c) (i32.const 0) (i32.const 8)) (then unreachable))
          (i64.extend_i32_s (local.get $c)))
        (func (export "main") (result i32) (local $left i32) (local $last i32)
          (local.set $left (i32.const 50))
          (loop
            (if (call $join (call $spawn (i32.const 0) (i64.const 0) (i32.const 0)) (i32.const 8)) (then unreachable))
            ;; Never the same number again, and nothing behind the old one.
            (if (i32.and (i32.lt_u (local.get $left) (i32.const 50)) (i32.le_s (i32.load (i32.const 8)) (local.get $last)))
              (then unreachable))
            (local.set $last (i32.load (i32.const 8)))
            (if (i32.ne (call $receive (local.get $last) (i32.const 16) (i32.const 8)) (i32.const -1)) (then unreachable))
            (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
          (i32.const 7)))"#;
    assert_eq!(value(&program(wat), SOME), Some(7));
}

/// What an engine records for a module with very many parts is charged before it is made.
#[test]
fn j_12_instances_of_large_modules_are_paid_for() {
    let mut wat = String::from("(module (func $f) (elem func");
    (0..200_000).for_each(|_| wat.push_str(" $f"));
    wat.push_str(") (func (export \"main\")))");
    let program = program(&wat);
    let (end, used) = run(&program, Budget { memory: 1 << 20, ..SOME }, Options::default());
    assert!(matches!(end, Ok(Err(GuestError::NoMemory { bytes: 3_000_000.. }))), "{end:?}");
    assert_eq!(used.memory, 0);
    let (end, used) = run(&program, SOME, Options::default());
    assert!(end.is_ok_and(|end| end.is_ok()) && used.ops > 40_000, "{} operations", used.ops);
}

/// A branch moves the values that it carries and costs one operation, so there may be only few of them.
#[test]
fn j_12_blocks_carry_few_values() {
    let many = "i32 ".repeat(17);
    let results = format!(r#"(module (func (export "main") (result {many}) unreachable))"#);
    let params = format!(
        r#"(module (type $many (func (param {many}))) (func (export "main") unreachable (loop (type $many) unreachable)))"#
    );
    for wat in [results, params] {
        let refused = Program::new(&wat::parse_str(&wat).expect("text"), Grants::NONE);
        assert!(matches!(refused, Err(GuestError::TooLarge { has: 17, limit: 16, .. })), "{refused:?}");
    }
}

/// A branch out of a deep nest is planned at the cost of one step. This would take minutes if each branch walked through
/// the nest.
#[test]
fn j_12_deep_branches_are_planned_quickly() {
    const DEEP: usize = 60_000;
    // Not folded, because the folded form would also nest the parser of the text.
    for branch in ["i32.const 0 br_if 59999\n", "i32.const 0 if return end\n"] {
        let body = "block\n".repeat(DEEP) + &branch.repeat(DEEP) + &"end\n".repeat(DEEP);
        let wat = format!("(module (func (export \"main\")\n{body}))");
        pass::instrument(&wat::parse_str(&wat).expect("text"), false).expect("the pass takes it");
    }
}

/// Loops that leave values on the stack, or carry one out, cannot be unrolled, but run nevertheless.
#[test]
fn j_12_loops_that_cannot_be_unrolled_run() {
    let carries = r#"(module (func (export "main") (result i32) (local i32)
      block (result i32)
        loop i32.const 5 local.get 0 i32.const 10 i32.eq br_if 1 drop
          local.get 0 i32.const 1 i32.add local.set 0 br 0 end
        unreachable end))"#;
    let leaves = r#"(module (func (export "main") (result i32) (local i32)
      block loop local.get 0 i32.const 10 i32.eq if br 2 end
        local.get 0 i32.const 1 i32.add local.tee 0 br 0 end end local.get 0))"#;
    assert_eq!(value(&program(carries), SOME), Some(5));
    assert_eq!(value(&program(leaves), SOME), Some(10));
}

/// Growing by nothing, very often, costs operations and leaves nothing behind.
#[test]
fn j_12_growing_by_nothing_is_charged() {
    let wat =
        r#"(module (memory 1) (func (export "main") (loop (drop (memory.grow (i32.const 0))) (br 0))))"#;
    let (end, used) = run(&program(wat), Budget { ops: 100_000, ..SOME }, Options::default());
    assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{end:?}");
    assert_eq!(used.memory, janus_guest::INSTANCE_BYTES + (64 << 10));
}

/// What was run beyond a quantum before a trap is charged: a guest cannot run on credit and then trap.
#[test]
fn j_12_a_trap_pays_what_was_run() {
    let mut work = String::new();
    (0..26).for_each(|_| work.push_str("(drop (i32.eqz (i32.const 1)))"));
    let main = |then: &str| {
        let mut wat = String::from("(module (global $z (mut i32) (i32.const 0)) (func $f (param $n i32)");
        let _ = write!(
            wat,
            "(if (local.get $n) (then (call $f (i32.sub (local.get $n) (i32.const 1)))))
             (if (global.get $z) (then return)) {work})
             (func (export \"main\") (call $f (i32.const 900)) {then}))"
        );
        program(&wat)
    };
    let (end, whole) = run(&main(""), SOME, Options::default());
    assert!(end.is_ok_and(|end| end.is_ok()) && whole.ops > 50_000, "{} operations", whole.ops);
    let little = Budget { ops: whole.ops / 8, ..SOME };
    let (end, used) = run(&main("unreachable"), little, Options::default());
    assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{end:?} after {}", used.ops);
}

/// Input that one member of a family has received and not read is available to the others.
#[test]
fn j_12_a_family_shares_its_input() {
    let wat = r#"(module (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
        (import "janus" "join" (func $join (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (table funcref (elem $child)) (memory 1)
        (func $get (param $most i32) (result i32)
          (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (local.get $most))
          (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))) (i32.load (i32.const 8)))
        (func $child (param i64) (result i64) (i64.extend_i32_u (call $get (i32.const 1))))
        (func (export "main")
          (drop (call $join (call $spawn (i32.const 0) (i64.const 0) (i32.const 0)) (i32.const 16)))
          (i32.store (i32.const 4) (call $get (i32.const 32)))
          (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    let kept = Kept::default();
    let input = Input::reader(&b"hello world"[..]).expect("a thread");
    let world = World { input: Mutex::new(input), output: Output::direct(kept.clone()), ..World::default() };
    let (end, _) = run(&program(wat), SOME, Options { world: Arc::new(world), ..Options::default() });
    assert!(end.is_ok_and(|end| end.is_ok()));
    assert_eq!(kept.text(), "ello world");
}
