//! J-12: the same module on both engines. Results, traps and charges are the same, to the operation; `make wasmtime-test`.
#![cfg(feature = "wasmtime")]

use janus::{Budget, Config, NurseryOptions, Profile, Recharge, Resource, Runtime, TaskError};
use janus_guest::{Engine, Grants, GuestError, Input, Kept, Options, Output, Program, Tally, Used, World};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

const BUDGET: Budget =
    Budget { ops: 20_000_000, memory: 8 << 20, spawn_count: 20, channel_ops: 500, syscalls: 200 };

/// How a run ended: its result and output, or which part of its budget was used up, or that it trapped.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ended(Option<i64>, Option<i32>),
    Spent(Resource),
    Trapped,
}

#[derive(Debug, PartialEq, Eq)]
struct Run {
    outcome: Outcome,
    used: Used,
    output: String,
}

fn run(engine: Engine, wasm: &[u8], entry: &str, input: &str, budget: Budget) -> Run {
    let program = Program::link_for(engine, wasm, &[], Grants::ALL).expect("a program");
    let (output, tally) = (Kept::default(), Arc::new(Tally::default()));
    let world = World {
        args: vec!["guest".into()],
        input: Mutex::new(Input::Bytes(input.into())),
        output: Output::direct(output.clone()),
        ..World::default()
    };
    let options = Options { world: Arc::new(world), tally: tally.clone(), recharge: None };
    let config = Config::new().workers(2).profile(Profile::Sovereign).seed(5);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }.expect("a runtime");
    let mut end = None;
    let first = runtime.run(|cx| {
        let manual = NurseryOptions::new().recharge(Recharge::Manual);
        let _ = cx.nursery_with(manual, |nursery| {
            end = Some(program.spawn(cx, nursery, entry, budget, options).expect("a task").join(cx));
            Ok(())
        });
    });
    first.expect("the first task ends well");
    let outcome = match end.expect("it was joined") {
        Ok(Ok(end)) => Outcome::Ended(end.value, end.exit),
        Ok(Err(GuestError::Trap { .. })) => Outcome::Trapped,
        Err(TaskError::BudgetExceeded(resource)) => Outcome::Spent(resource),
        other => panic!("it ended with {other:?}"),
    };
    Run { outcome, used: tally.used(), output: output.text() }
}

/// Runs it on both engines, and returns what both did.
fn both(name: &str, wasm: &[u8], entry: &str, input: &str, budget: Budget) -> Run {
    let one = run(Engine::Interpreter, wasm, entry, input, budget);
    let two = run(Engine::Compiler, wasm, entry, input, budget);
    assert_eq!(one, two, "{name}");
    one
}

fn guests() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/guests/build.sh");
    let output = Command::new(script).arg(&folder).output().expect("the build script starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

#[test]
fn j_12_engines_agree_on_c_programs() {
    let folder = guests();
    let read = |name: &str| std::fs::read(folder.join(name)).expect("a module");
    let wc = both("wc", &read("wc.wasm"), "_start", "one two\nthree\n", BUDGET);
    assert_eq!(wc.output, "2 3 14\n");
    let primes = both("primes", &read("primes.wasm"), "_start", "", BUDGET);
    assert_eq!(primes.output, "550 primes below 4000\n");
    assert_eq!(primes.used.spawned, 8);
    // With exactly as much it ends, on both; with one less it does not.
    let exact = Budget { ops: wc.used.ops, ..BUDGET };
    assert_eq!(both("wc", &read("wc.wasm"), "_start", "one two\nthree\n", exact).output, "2 3 14\n");
    let less = Budget { ops: wc.used.ops - 1, ..BUDGET };
    let stopped = both("wc", &read("wc.wasm"), "_start", "one two\nthree\n", less);
    assert_eq!(stopped.outcome, Outcome::Spent(Resource::Ops));
}

#[test]
fn j_12_engines_agree_on_rust_programs() {
    let folder = guests();
    let read = |name: &str| std::fs::read(folder.join(name)).expect("a module");
    let words = both("words", &read("words.wasm"), "_start", "b a b, c! B a", BUDGET);
    assert_eq!(words.output, "     3 b\n     2 a\n     1 c\n");
    let collatz = both("collatz", &read("collatz.wasm"), "_start", "", BUDGET);
    assert_eq!((collatz.output.as_str(), collatz.used.spawned), ("871 takes 178 steps\n", 4));
    // Without arguments it says how it is used, and exits.
    let number = both("number", &read("number.wasm"), "_start", "", BUDGET);
    assert_eq!(number.outcome, Outcome::Ended(None, Some(2)));
}

#[test]
fn j_12_engines_agree_on_bombs() {
    let bombs = [
        ("(loop br 0)", Outcome::Spent(Resource::Ops)),
        ("unreachable", Outcome::Trapped),
        ("(drop (i32.load (i32.const -4)))", Outcome::Trapped),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", Outcome::Trapped),
        ("(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))", Outcome::Ended(None, None)),
        (
            "(loop (br_if 0 (i32.ne (table.grow (ref.null func) (i32.const 9999)) (i32.const -1))))",
            Outcome::Ended(None, None),
        ),
        (
            "(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br 0))",
            Outcome::Spent(Resource::Ops),
        ),
    ];
    for (body, outcome) in bombs {
        let wat = format!(
            r#"(module (memory 1) (table 1 funcref) (global $g (mut i32) (i32.const 0))
              (func $start (global.set $g (i32.const 7))) (start $start)
              (func $main (export "main") {body}))"#
        );
        let wasm = wat::parse_str(&wat).expect("a test's own text");
        assert_eq!(both(body, &wasm, "main", "", BUDGET).outcome, outcome, "{body}");
    }
}

/// The only difference: the depth at which recursion is too deep. Both report it.
#[test]
fn j_12_engines_stop_recursion() {
    let wasm = wat::parse_str(r#"(module (func $main (export "main") (call $main)))"#).expect("text");
    for engine in [Engine::Interpreter, Engine::Compiler] {
        assert_eq!(run(engine, &wasm, "main", "", BUDGET).outcome, Outcome::Trapped, "{engine:?}");
    }
}
