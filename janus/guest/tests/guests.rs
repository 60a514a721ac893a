//! J-12: guests as tasks. Budgets bind them, neighbours do not notice them, seeds replay them.

use janus::{Budget, Config, NurseryOptions, Profile, Recharge, Resource, Runtime, TaskError};
use janus_guest::{
    End, Grant, Grants, GuestError, INSTANCE_BYTES, Input, Kept, Options, Output, Program, Tally, Used, World,
};
use std::sync::{Arc, Mutex};

const SOME: Budget =
    Budget { ops: 100_000, memory: 16 << 20, spawn_count: 10, channel_ops: 1_000, syscalls: 100 };

fn sovereign() -> Config {
    Config::new().workers(2).profile(Profile::Sovereign)
}

fn program(wat: &str, grants: Grants) -> Program {
    Program::new(&wat::parse_str(wat).expect("a test's own text"), grants).expect("a program")
}

/// Runs `main` in a task with exactly this budget, which is not recharged.
fn run_with(
    config: Config,
    program: &Program,
    budget: Budget,
    options: Options,
) -> Result<Result<End, GuestError>, TaskError> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }.expect("a runtime");
    let mut end = None;
    let outcome = runtime.run(|cx| {
        let manual = NurseryOptions::new().recharge(Recharge::Manual);
        // The handle of the child reports its failure.
        let _ = cx.nursery_with(manual, |nursery| {
            end = Some(program.spawn(cx, nursery, "main", budget, options).expect("a task").join(cx));
            Ok(())
        });
    });
    outcome.expect("the first task ends well");
    end.expect("the guest was joined")
}

fn run(program: &Program, budget: Budget) -> Result<Result<End, GuestError>, TaskError> {
    run_with(sovereign(), program, budget, Options::default())
}

fn end(program: &Program, budget: Budget) -> End {
    run(program, budget).expect("no task error").expect("no guest error")
}

const ENDLESS: &str = r#"(module (func (export "main") (loop br 0)))"#;
/// The sum of 1 to 1,000.
const SUM: &str = r#"(module (func (export "main") (result i32) (local $i i32) (local $sum i32)
    (loop
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (local.set $sum (i32.add (local.get $sum) (local.get $i)))
      (br_if 0 (i32.lt_u (local.get $i) (i32.const 1000))))
    (local.get $sum)))"#;

#[test]
fn j_12_an_endless_loop_spends_its_own_budget() {
    let error = run(&program(ENDLESS, Grants::NONE), SOME).expect_err("it cannot end");
    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Ops)), "{error}");
}

#[test]
fn j_12_the_count_is_exact() {
    let sum = program(SUM, Grants::NONE);
    let used = end(&sum, SOME).used.ops;
    // 1,000 turns of 12 instructions, one to give the sum, one for the memory of the instance.
    assert_eq!(used, 12 * 1_000 + 1 + 1);
    assert_eq!(end(&sum, Budget { ops: used, ..SOME }).value, Some(500_500));
    let error = run(&sum, Budget { ops: used - 1, ..SOME }).expect_err("one operation is missing");
    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Ops)), "{error}");
}

/// On one worker, beside guests that never end, others get their results.
#[test]
fn j_12_neighbours_go_on() {
    let (endless, sum) = (program(ENDLESS, Grants::NONE), program(SUM, Grants::NONE));
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(sovereign().workers(1)) }.expect("a runtime");
    let sums = runtime.run(|cx| {
        let manual = NurseryOptions::new().recharge(Recharge::Manual);
        let mut sums = Vec::new();
        let _ = cx.nursery_with(manual, |nursery| {
            let long = Budget { ops: 50_000_000, ..SOME };
            for _ in 0..3 {
                drop(endless.spawn(cx, nursery, "main", long, Options::default()).expect("a task"));
            }
            for _ in 0..20 {
                let child = sum.spawn(cx, nursery, "main", SOME, Options::default()).expect("a task");
                sums.push(child.join(cx).expect("a sum").expect("a sum").value);
            }
            // They still run: the joins did not wait for them.
            assert_eq!(nursery.live(), 3);
            nursery.cancel();
            Ok(())
        });
        sums
    });
    assert_eq!(sums.expect("no error"), vec![Some(500_500); 20]);
}

/// Children that draw numbers in turns, by a channel: the order depends on the seed and on nothing else.
const RACE: &str = r#"(module
    (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
    (import "janus" "join" (func $join (param i32 i32) (result i32)))
    (import "janus" "channel" (func $channel (param i32) (result i32)))
    (import "janus" "send" (func $send (param i32 i32 i32) (result i32)))
    (import "janus" "receive" (func $receive (param i32 i32 i32) (result i32)))
    (memory 1)
    (table funcref (elem $child))
    (func $child (param $arg i64) (result i64) (local $i i32)
      (loop (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if 0 (i32.lt_u (local.get $i) (i32.const 50))))
      (i64.store (i32.const 0) (local.get $arg))
      (drop (call $send (i32.const 0) (i32.const 0) (i32.const 8)))
      (i64.mul (local.get $arg) (local.get $arg)))
    (func (export "main") (result i64) (local $i i32) (local $order i64)
      (drop (call $channel (i32.const 16)))
      (loop
        (drop (call $spawn (i32.const 0) (i64.extend_i32_u (local.get $i)) (i32.const 0)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 8))))
      (loop
        (drop (call $receive (i32.const 0) (i32.const 16) (i32.const 8)))
        (local.set $order (i64.add (i64.mul (local.get $order) (i64.const 10)) (i64.load (i32.const 16))))
        (local.set $i (i32.sub (local.get $i) (i32.const 1)))
        (br_if 0 (local.get $i)))
      (loop
        (if (call $join (local.get $i) (i32.const 24)) (then unreachable))
        (if (i64.ne (i64.load (i32.const 24)) (i64.extend_i32_u (i32.mul (local.get $i) (local.get $i))))
          (then unreachable))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 8))))
      (local.get $order)))"#;

#[test]
fn j_12_a_seed_replays_guests() {
    let race = program(RACE, Grants::NONE.with(Grant::Spawn).with(Grant::Messages));
    let order = |seed, workers| {
        let config = sovereign().workers(workers).seed(seed);
        let end = run_with(config, &race, SOME, Options::default())
            .expect("no task error")
            .expect("no guest error");
        (end.value.expect("an order"), end.used)
    };
    let orders: Vec<_> = (0..20).map(|seed| order(seed, 4)).collect();
    for (seed, first) in orders.iter().enumerate() {
        assert_eq!(*first, order(seed as u64, 4), "seed {seed} replays");
        let mut digits: Vec<u8> = format!("{:08}", first.0).into_bytes();
        digits.sort_unstable();
        assert_eq!(digits, b"01234567", "every child was heard once");
    }
    let different: std::collections::BTreeSet<_> = orders.iter().map(|(order, _)| order).collect();
    assert!(different.len() > 5, "{} orders of 20 seeds: the seed decides nothing", different.len());
}

#[test]
fn j_12_an_import_exists_only_if_it_was_granted() {
    let wasm = wat::parse_str(RACE).expect("a test's own text");
    let refused = |grants| Program::new(&wasm, grants).map(drop).expect_err("not granted");
    assert_eq!(
        refused(Grants::NONE),
        GuestError::NotGranted { import: "janus.spawn".into(), grant: Grant::Spawn }
    );
    let grants = Grants::NONE.with(Grant::Spawn);
    assert_eq!(
        refused(grants),
        GuestError::NotGranted { import: "janus.channel".into(), grant: Grant::Messages }
    );
    let bad =
        |wat: &str| Program::new(&wat::parse_str(wat).unwrap(), Grants::ALL).map(drop).expect_err("refused");
    let unknown = bad(r#"(module (import "janus" "reboot" (func)))"#);
    assert_eq!(unknown, GuestError::UnknownImport { import: "janus.reboot".into() });
    let wrong = bad(r#"(module (import "janus" "spawn" (func (param f64))))"#);
    assert_eq!(wrong, GuestError::WrongType { import: "janus.spawn".into() });
    for own in [
        r#"(module (import "janus:pass" "fuel" (global (mut i64))))"#,
        r#"(module (func (export "janus:start")))"#,
    ] {
        assert!(matches!(bad(own), GuestError::Reserved { .. }), "{own}");
    }
}

/// Asks for pages until it is refused, and returns how many it got.
const GREEDY: &str = r#"(module (memory 1) (func (export "main") (result i32) (local $n i32)
    (block (loop
      (br_if 1 (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br 0)))
    (local.get $n)))"#;

#[test]
fn j_12_memory_is_what_the_budget_has() {
    let budget = Budget { memory: INSTANCE_BYTES + 10 * 65_536, ..SOME };
    let greedy = end(&program(GREEDY, Grants::NONE.with(Grant::Memory)), budget);
    assert_eq!((greedy.value, greedy.used.memory, greedy.used.memory_refused), (Some(9), budget.memory, 1));
    assert_eq!(end(&program(GREEDY, Grants::NONE), budget).value, Some(0), "without the right there is none");
    let giant = [
        "(module (memory 65536) (func (export \"main\")))",
        "(module (table 4294967295 funcref) (func (export \"main\")))",
    ];
    for wat in giant {
        let error =
            run(&program(wat, Grants::NONE), SOME).expect("no task error").expect_err("it does not fit");
        assert!(matches!(error, GuestError::NoMemory { bytes } if bytes > 1 << 30), "{error}");
    }
}

/// Every child tries to have two children, and so on.
const BOMB: &str = r#"(module
    (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
    (import "janus" "join" (func $join (param i32 i32) (result i32)))
    (memory 1)
    (data (i32.const 64) "\10\27\00\00\00\00\00\00" "\00\00\04\00\00\00\00\00" "\02\00\00\00\00\00\00\00"
                         "\00\00\00\00\00\00\00\00" "\00\00\00\00\00\00\00\00")
    (table funcref (elem $child))
    (func $child (param $arg i64) (result i64) (local $a i32) (local $b i32)
      (local.set $a (call $spawn (i32.const 0) (i64.const 0) (i32.const 64)))
      (local.set $b (call $spawn (i32.const 0) (i64.const 0) (i32.const 64)))
      (drop (call $join (local.get $a) (i32.const 0)))
      (drop (call $join (local.get $b) (i32.const 0)))
      (i64.const 0))
    (func (export "main") (result i32) (drop (call $child (i64.const 0))) (i32.const 7)))"#;

#[test]
fn j_12_a_fork_bomb_has_as_many_children_as_its_budget() {
    let bomb = program(BOMB, Grants::NONE.with(Grant::Spawn));
    let done = end(&bomb, Budget { ops: 1_000_000, memory: 64 << 20, spawn_count: 50, ..SOME });
    assert_eq!(done.value, Some(7));
    assert!((1..=50).contains(&done.used.spawned) && done.used.spawn_refused > 0, "{:?}", done.used);
}

const FLOOD: &str = r#"(module
    (import "janus" "channel" (func $channel (param i32) (result i32)))
    (import "janus" "send" (func $send (param i32 i32 i32) (result i32)))
    (import "janus" "receive" (func $receive (param i32 i32 i32) (result i32)))
    (memory 1)
    (func (export "main") (drop (call $channel (i32.const 4)))
      (loop (drop (call $send (i32.const 0) (i32.const 0) (i32.const 4096)))
            (drop (call $receive (i32.const 0) (i32.const 0) (i32.const 4096)))
            (br 0))))"#;

#[test]
fn j_12_a_message_flood_spends_its_messages() {
    let flood = program(FLOOD, Grants::NONE.with(Grant::Messages));
    let tally = Arc::new(Tally::default());
    let options = Options { tally: tally.clone(), ..Options::default() };
    let error = run_with(sovereign(), &flood, Budget { ops: 10_000_000, ..SOME }, options)
        .expect_err("it cannot end");
    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Channel)), "{error}");
    assert_eq!(tally.used().messages, 1_000);
}

#[test]
fn j_12_traps_are_typed() {
    let cases = [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(drop (i32.load (i32.const -4)))", "out of bounds"),
        ("(call $main)", "stack"),
        ("(call_indirect (i32.const 9))", "out of bounds"),
    ];
    for (body, reason) in cases {
        let wat = format!(r#"(module (memory 1) (table 1 funcref) (func $main (export "main") {body}))"#);
        let error = run(&program(&wat, Grants::NONE), SOME).expect("no task error").expect_err("it traps");
        assert!(matches!(&error, GuestError::Trap { reason: r } if r.contains(reason)), "{body}: {error}");
    }
    let none =
        run(&program("(module)", Grants::NONE), SOME).expect("no task error").expect_err("nothing to call");
    assert_eq!(none, GuestError::NoEntry { name: "main".into() });
}

/// The start function is charged like the rest: an endless one ends by its budget, before `main`.
#[test]
fn j_12_the_start_function_is_charged() {
    let wat = r#"(module (func $s (loop br 0)) (start $s) (func (export "main")))"#;
    let error = run(&program(wat, Grants::NONE), SOME).expect_err("it cannot end");
    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Ops)), "{error}");
}

#[test]
fn j_12_modules_are_linked_and_cycles_refused() {
    let wasm = |wat: &str| wat::parse_str(wat).expect("a test's own text");
    let twice = wasm(
        r#"(module (func (export "twice") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2))))"#,
    );
    let four = wasm(
        r#"(module (import "a" "twice" (func $t (param i32) (result i32)))
        (func (export "four") (param i32) (result i32) (call $t (call $t (local.get 0)))))"#,
    );
    let main = wasm(
        r#"(module (import "b" "four" (func $f (param i32) (result i32)))
        (func (export "main") (result i32) (call $f (i32.const 10))))"#,
    );
    let linked = Program::link(&main, &[("b", &four), ("a", &twice)], Grants::NONE).expect("a program");
    let done = end(&linked, SOME);
    // main 2, four 3, twice 3 each, and one for the memory of the instance.
    assert_eq!((done.value, done.used.ops), (Some(40), 2 + 3 + 3 + 3 + 1));

    let back = wasm(
        r#"(module (import "b" "four" (func)) (func (export "twice") (param i32) (result i32) (local.get 0)))"#,
    );
    let error =
        Program::link(&main, &[("b", &four), ("a", &back)], Grants::NONE).map(drop).expect_err("a cycle");
    assert!(
        matches!(&error, GuestError::Cycle { modules } if modules.len() == 3 && modules[0] == modules[2]),
        "{error}"
    );
    let own = wasm(r#"(module (import "c" "x" (func)) (func (export "x")))"#);
    let error = Program::link(&main, &[("c", &own)], Grants::NONE).map(drop).expect_err("a cycle of one");
    assert!(matches!(&error, GuestError::UnknownImport { .. } | GuestError::Cycle { .. }), "{error}");
}

/// A guest that was given the right recharges itself, up to its limit.
#[test]
fn j_12_cap_budget_recharges() {
    let wat = r#"(module
        (import "janus" "budget_recharge" (func $recharge (param i32 i64) (result i32)))
        (import "janus" "budget_left" (func $left (param i32) (result i64)))
        (func (export "main") (result i32) (local $n i32)
          (block (loop
            (br_if 1 (call $recharge (i32.const 0) (i64.const 1000)))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br 0)))
          (local.get $n)))"#;
    let recharging = program(wat, Grants::NONE.with(Grant::Budget));
    let options = Options { recharge: Some(Budget { ops: 5_500, ..Budget::ZERO }), ..Options::default() };
    let done =
        run_with(sovereign(), &recharging, SOME, options).expect("no task error").expect("no guest error");
    assert_eq!(done.value, Some(5));
    assert_eq!(end(&recharging, SOME).value, Some(0), "no limit, no recharge");
}

/// Copies its input to its output, by WASI.
const CAT: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory 1)
    (func (export "main")
      (block (loop
        (i32.store (i32.const 0) (i32.const 64))
        (i32.store (i32.const 4) (i32.const 1000))
        (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
        (br_if 1 (i32.eqz (i32.load (i32.const 8))))
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
        (br 0)))
      (call $exit (i32.const 3))))"#;

#[test]
fn j_12_wasi_input_and_output() {
    let cat = program(CAT, Grants::NONE.with(Grant::Io));
    let text: String = (0..600).map(|n| format!("{n} ")).collect();
    for pieces in [false, true] {
        let input = if pieces {
            Input::reader(std::io::Cursor::new(text.clone().into_bytes())).expect("a thread")
        } else {
            Input::Bytes(text.clone().into_bytes())
        };
        let kept = Kept::default();
        let world =
            World { input: Mutex::new(input), output: Output::direct(kept.clone()), ..World::default() };
        let options = Options { world: Arc::new(world), ..Options::default() };
        let done =
            run_with(sovereign(), &cat, SOME, options).expect("no task error").expect("no guest error");
        assert_eq!((done.exit, kept.text()), (Some(3), text.clone()));
        // Three times 1,000 bytes at most, each read and written, and the end.
        assert_eq!(done.used.io, 2 * text.len().div_ceil(1_000) as u64 + 1);
    }
    let tally = Arc::new(Tally::default());
    let world = World { input: Mutex::new(Input::Bytes(vec![b'x'; 100_000])), ..World::default() };
    let options = Options { world: Arc::new(world), tally: tally.clone(), ..Options::default() };
    let error = run_with(sovereign(), &cat, SOME, options).expect_err("100 operations do not suffice");
    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Syscalls)), "{error}");
    assert_eq!(tally.used().io, 100);
}

/// The use equals what the budget lost: the pool gets the rest back.
#[test]
fn j_12_used_is_what_was_charged() {
    let race = program(RACE, Grants::NONE.with(Grant::Spawn).with(Grant::Messages));
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(sovereign().seed(3)) }.expect("a runtime");
    let (used, lost): (Used, Budget) = runtime
        .run(|cx| {
            let pool = NurseryOptions::new().pool(SOME).recharge(Recharge::Manual);
            let mut result = None;
            let _ = cx.nursery_with(pool, |nursery| {
                let budget = Budget { spawn_count: SOME.spawn_count - 1, ..SOME };
                let child = race.spawn(cx, nursery, "main", budget, Options::default()).expect("a task");
                let used = child.join(cx).expect("no task error").expect("no guest error").used;
                let left = nursery.pool();
                let mut lost = SOME;
                for resource in Resource::ALL {
                    *lost.get_mut(resource) -= left.get(resource);
                }
                result = Some((used, lost));
                Ok(())
            });
            result.expect("it ran")
        })
        .expect("no error");
    assert_eq!(used.ops, lost.ops, "operations");
    assert_eq!(used.messages, lost.channel_ops, "messages");
    assert_eq!(lost.memory, 0, "memory came back");
}
