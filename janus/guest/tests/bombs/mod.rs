//! Guests that do harm, and how each must end.

use janus::{Budget, NurseryOptions, Recharge, Resource, Runtime, TaskError};
use janus_guest::{End, GuestError, Options, Program};

const BUDGET: Budget =
    Budget { ops: 300_000, memory: 8 << 20, spawn_count: 20, channel_ops: 500, syscalls: 100 };

pub(crate) fn parse(wat: &str) -> Vec<u8> {
    wat::parse_str(wat).expect("a test's own text")
}

pub(crate) const SUM: &str = r#"(module (func (export "main") (result i32) (local $i i32) (local $sum i32)
    (loop
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (local.set $sum (i32.add (local.get $sum) (local.get $i)))
      (br_if 0 (i32.lt_u (local.get $i) (i32.const 5000))))
    (local.get $sum)))"#;

/// Imports that bombs use.
pub(crate) const HOST: &str = r#"
    (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
    (import "janus" "join" (func $join (param i32 i32) (result i32)))
    (import "janus" "channel" (func $channel (param i32) (result i32)))
    (import "janus" "send" (func $send (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory 1) (table 4 funcref) (elem (i32.const 0) $child)"#;

/// How a bomb ends: by a used-up part of its budget, by a text in the guest's error, or well
/// (`None`).
pub(crate) type Ends = Result<Option<&'static str>, Resource>;

/// A name, a `main` and a `$child`, and how it ends.
pub(crate) const BOMBS: [(&str, &str, &str, Ends); 12] = [
    ("an endless loop", "(loop br 0)", "(i64.const 0)", Err(Resource::Ops)),
    (
        "endless recursion",
        "(drop (call $child (i64.const 0)))",
        "(call $child (i64.const 0))",
        Ok(Some("stack")),
    ),
    (
        "endless tail calls",
        "(drop (call $child (i64.const 0)))",
        "(return_call $child (i64.const 0))",
        Err(Resource::Ops),
    ),
    (
        "memory growth",
        "(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable",
        "(i64.const 0)",
        Ok(Some("unreachable")),
    ),
    (
        "all memory at once",
        "(br_if 0 (i32.eq (memory.grow (i32.const 65535)) (i32.const -1))) unreachable",
        "(i64.const 0)",
        Ok(None),
    ),
    (
        "table growth",
        "(loop (br_if 0 (i32.ne (table.grow (ref.null func) (i32.const 100000)) (i32.const -1))))",
        "(i64.const 0)",
        Ok(None),
    ),
    (
        "a huge fill",
        "(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br 0))",
        "(i64.const 0)",
        Err(Resource::Ops),
    ),
    (
        "a fork bomb",
        "(loop (drop (call $spawn (i32.const 0) (i64.const 0) (i32.const 0))) (br 0))",
        "(loop (drop (call $spawn (i32.const 0) (i64.const 0) (i32.const 0))) (br 0)) (i64.const 0)",
        Err(Resource::Ops),
    ),
    (
        "children that never end",
        "(loop (br_if 0 (i32.ge_s (call $spawn (i32.const 0) (i64.const 0) (i32.const 0)) (i32.const 0))))",
        "(loop (br 0)) (i64.const 0)",
        Ok(None),
    ),
    (
        "channels",
        "(loop (br_if 0 (i32.ge_s (call $channel (i32.const 1000)) (i32.const 0))))",
        "(i64.const 0)",
        Ok(None),
    ),
    (
        "a message flood",
        "(drop (call $channel (i32.const 1000))) (loop (drop (call $send (i32.const 0) (i32.const 0) (i32.const 4096))) (br 0))",
        "(i64.const 0)",
        Err(Resource::Channel),
    ),
    (
        "a flood of output",
        "(loop (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16))) (br 0))",
        "(i64.const 0)",
        Err(Resource::Syscalls),
    ),
];

/// A bomb's module.
pub(crate) fn module(main: &str, child: &str) -> Vec<u8> {
    parse(&format!(
        r#"(module {HOST} (func $child (param i64) (result i64) {child}) (func (export "main") {main}))"#
    ))
}

/// Runs a bomb between two neighbours on one worker; returns how all three ended.
pub(crate) fn beside(
    runtime: &Runtime,
    bomb: &Program,
    sum: &Program,
) -> (Result<Result<End, GuestError>, TaskError>, [End; 2]) {
    runtime
        .run(|cx| {
            let mut ends = None;
            let _ = cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |nursery| {
                let spawn = |program: &Program| {
                    program.spawn(cx, nursery, "main", BUDGET, Options::default()).expect("a task")
                };
                let (first, bomb, second) = (spawn(sum), spawn(bomb), spawn(sum));
                let bomb = bomb.join(cx);
                let neighbour = |child: janus::Handle<'_, Result<End, GuestError>>| {
                    child.join(cx).expect("a neighbour's task").expect("a neighbour's result")
                };
                ends = Some((bomb, [neighbour(first), neighbour(second)]));
                Ok(())
            });
            ends.expect("all were joined")
        })
        .expect("the first task")
}
