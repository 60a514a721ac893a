//! Runs modules on the bare engine, with and without charges.
#![allow(dead_code, reason = "each test uses its part")]

use arbitrary::Unstructured;
use janus_guest::GuestError;
use janus_guest::pass::{self, INTERNAL};
use wasmi::{
    Config, Engine, Error, Extern, ExternType, Func, Global, Instance, Module, Mutability, Store, TrapCode,
    Val,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Trapped(TrapCode),
    Overflow,
    Endless,
}

/// What can be observed of a run: how every export ended, what it returned, and the memory after it.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) end: End,
    pub(crate) results: Vec<String>,
    pub(crate) globals: Vec<String>,
    pub(crate) memory: Vec<u8>,
}

const FUEL: u64 = 200_000;
const PLENTY: i64 = 1 << 50;

fn show(val: &Val) -> String {
    match val {
        Val::F32(f) => format!("f32 {:x}", f.to_bits()),
        Val::F64(f) => format!("f64 {:x}", f.to_bits()),
        Val::FuncRef(f) => format!("func {}", f.is_null()),
        Val::ExternRef(r) => format!("extern {}", r.is_null()),
        other => format!("{other:?}"),
    }
}

fn end_of(error: &Error) -> End {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => End::Endless,
        Some(TrapCode::StackOverflow) => End::Overflow,
        Some(code) => End::Trapped(code),
        None => panic!("an error of the engine: {error}"),
    }
}

/// A function that fills the engine's stack, as deep as it goes, with a number of its caller's.
const PAINTER: &str = r#"(module (func $paint (export "paint") (param i64 i32) (result i64) (local i64 i64 i64 i64 i64 i64 i64 i64)
  (local.set 2 (local.get 0)) (local.set 3 (local.get 0)) (local.set 4 (local.get 0)) (local.set 5 (local.get 0))
  (local.set 6 (local.get 0)) (local.set 7 (local.get 0)) (local.set 8 (local.get 0)) (local.set 9 (local.get 0))
  (if (local.get 1) (then (drop (call $paint (local.get 0) (i32.sub (local.get 1) (i32.const 1))))))
  (i64.add (local.get 2) (i64.add (local.get 3) (i64.add (local.get 4) (i64.add (local.get 5)
    (i64.add (local.get 6) (i64.add (local.get 7) (i64.add (local.get 8) (local.get 9))))))))))"#;
/// How many of its frames: more than a random module has.
const FRAMES: i32 = 200;

/// Fills the engine's stack with a colour, which the next call finds if it reads something that it never wrote.
fn paint<T>(store: &mut Store<T>, engine: &Engine, color: i64) {
    let module = Module::new(engine, wat::parse_str(PAINTER).expect("text")).expect("a module");
    let instance = Instance::new(&mut *store, &module, &[]).expect("it imports nothing");
    let paint = instance.get_typed_func::<(i64, i32), i64>(&*store, "paint").expect("it has it");
    paint.call(&mut *store, (color, FRAMES)).expect("it ends");
}

/// Numbers that differ in every byte.
const COLORS: [i64; 2] = [0x5A5A_5A5A_5A5A_5A5A, 0x25C3_25C3_25C3_25C3];

/// Runs on stacks of two colours; `None` if the engine reads uninitialised stack, which makes the result arbitrary. wasmi 2.0.0
/// does so in some random modules (CAVEATS), with and without charges.
fn on_any_stack<R: PartialEq>(run: impl Fn(i64) -> R) -> Option<R> {
    let [one, other] = COLORS.map(run);
    (one == other).then_some(one)
}

fn call_all<T>(store: &mut Store<T>, instance: Instance) -> Seen {
    let mut seen = Seen { end: End::Finished, results: Vec::new(), globals: Vec::new(), memory: Vec::new() };
    let mut names: Vec<String> = instance
        .exports(&*store)
        .map(|e| e.name().to_string())
        .filter(|n| !n.starts_with("janus:"))
        .collect();
    names.sort();
    for name in &names {
        let Some(func) = instance.get_func(&*store, name) else { continue };
        let ty = func.ty(&*store);
        let params: Vec<Val> = ty.params().iter().map(|&ty| Val::default_for_ty(ty)).collect();
        let mut results: Vec<Val> = ty.results().iter().map(|&ty| Val::default_for_ty(ty)).collect();
        match func.call(&mut *store, &params, &mut results) {
            Ok(()) => {
                seen.results.push(format!("{name}: {:?}", results.iter().map(show).collect::<Vec<_>>()))
            }
            Err(error) => {
                seen.end = end_of(&error);
                return seen;
            }
        }
    }
    for name in &names {
        if let Some(global) = instance.get_global(&*store, name) {
            seen.globals.push(show(&global.get(&*store)));
        }
        if let Some(memory) = instance.get_memory(&*store, name) {
            seen.memory = memory.data(&*store).to_vec();
        }
    }
    seen
}

/// The original, stopped by the engine's own fuel.
pub(crate) struct Plain;

impl Plain {
    pub(crate) fn run(wasm: &[u8], color: i64) -> Seen {
        let mut config = Config::default();
        config.consume_fuel(true);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, wasm).expect("the engine takes it");
        let mut store = Store::new(&engine, ());
        store.set_fuel(FUEL).expect("metering is on");
        paint(&mut store, &engine, color);
        store.set_fuel(FUEL).expect("metering is on");
        match Instance::new(&mut store, &module, &[]) {
            Ok(instance) => call_all(&mut store, instance),
            Err(error) => {
                let end = error.as_trap_code().map_or(End::Endless, |_| end_of(&error));
                Seen { end, results: Vec::new(), globals: Vec::new(), memory: Vec::new() }
            }
        }
    }
}

/// A run with charges, and unlimited fuel.
#[derive(PartialEq)]
pub(crate) struct Counted {
    pub(crate) seen: Seen,
    pub(crate) ops: i64,
}

impl Counted {
    pub(crate) fn run(wasm: &[u8], color: i64) -> Counted {
        let engine = Engine::default();
        let module = Module::new(&engine, wasm).expect("the engine takes it");
        let mut store = Store::new(&engine, ());
        paint(&mut store, &engine, color);
        let fuel = Global::new(&mut store, Val::I64(PLENTY), Mutability::Var);
        let imports: Vec<Extern> = module
            .imports()
            .map(|import| {
                assert_eq!(import.module(), INTERNAL);
                match (import.name(), import.ty()) {
                    ("fuel", _) => Extern::Global(fuel),
                    ("refuel", _) => {
                        Extern::Func(Func::wrap(&mut store, |_: i64| -> i64 { panic!("plenty") }))
                    }
                    ("allocate", _) => Extern::Func(Func::wrap(&mut store, |_: i32, _: i32| 1)),
                    ("release", _) => Extern::Func(Func::wrap(&mut store, |_: i32, _: i32| ())),
                    (name, ty) => panic!("the pass imports {name}: {}", matches!(ty, ExternType::Func(_))),
                }
            })
            .collect();
        let instance =
            Instance::new(&mut store, &module, &imports).expect("the original was instantiated too");
        let seen = call_all(&mut store, instance);
        let Val::I64(left) = fuel.get(&store) else { unreachable!("it is an i64") };
        Counted { seen, ops: PLENTY - left }
    }
}

fn config() -> wasm_smith::Config {
    wasm_smith::Config {
        min_funcs: 1,
        max_funcs: 8,
        max_imports: 0,
        min_exports: 4,
        max_exports: 12,
        max_memories: 1,
        max_memory32_bytes: 1 << 20,
        max_tables: 2,
        table_max_size_required: true,
        max_table_elements: 1_000,
        memory_max_size_required: true,
        allow_start_export: false,
        exceptions_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        simd_enabled: false,
        threads_enabled: false,
        shared_everything_threads_enabled: false,
        wide_arithmetic_enabled: false,
        custom_page_sizes_enabled: false,
        custom_descriptors_enabled: false,
        compact_imports_enabled: false,
        multi_value_enabled: true,
        reference_types_enabled: true,
        bulk_memory_enabled: true,
        tail_call_enabled: true,
        extended_const_enabled: true,
        canonicalize_nans: true,
        ..wasm_smith::Config::default()
    }
}

/// Makes a module of the bytes and compares its runs; returns whether it ran to its end.
pub(crate) fn compare(bytes: &[u8]) -> bool {
    let mut source = Unstructured::new(bytes);
    let Ok(module) = wasm_smith::Module::new(config(), &mut source) else { return false };
    compare_module(&module.to_bytes())
}

/// Compares the runs of a module; returns whether it ran to its end.
pub(crate) fn compare_module(wasm: &[u8]) -> bool {
    let smart = match pass::instrument(wasm, true) {
        // A fuzzer finds out which names are the pass's own, and functions with many results.
        Err(GuestError::Reserved { .. } | GuestError::TooLarge { .. }) => return false,
        smart => smart.expect("the pass takes what is valid"),
    };
    let plain = pass::instrument_plainly(wasm, true).expect("the plain pass too");
    for wasm in [&smart.wasm, &plain.wasm] {
        wasmparser::Validator::new_with_features(pass::features())
            .validate_all(wasm)
            .expect("what comes out is valid");
    }
    let Some(original) = on_any_stack(|color| Plain::run(wasm, color)) else { return false };
    if original.end != End::Finished {
        return false;
    }
    let runs = [&smart, &plain].map(|done| on_any_stack(|color| Counted::run(&done.wasm, color)));
    let [Some(smart), Some(plain)] = runs else { return false };
    // Another layout of frames may overflow the engine's stack at another depth.
    if [&smart, &plain].iter().any(|run| run.seen.end == End::Overflow) {
        return false;
    }
    assert_eq!(smart.seen, original, "another result");
    assert_eq!(plain.seen, original, "another result of the plain pass");
    assert_eq!(smart.ops, plain.ops, "another count");
    true
}
