//! J-12: bad input. Every bomb ends with a typed error or a used-up budget, and its neighbours compute what they always
//! do; `memory.rs` checks that memory comes back.

mod bombs;

use bombs::{BOMBS, HOST, SUM, beside, module, parse};
use janus::{Config, Profile, Runtime, TaskError};
use janus_guest::{Grants, GuestError, Options, Program, Tally, offers};
use std::sync::Arc;

#[test]
fn j_12_bombs_harm_nobody() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime =
        unsafe { Runtime::new(Config::new().workers(1).profile(Profile::Sovereign)) }.expect("a runtime");
    let sum = Program::new(&parse(SUM), Grants::NONE).expect("a program");
    let (_, [alone, _]) = beside(&runtime, &sum, &sum);
    for (name, main, child, wanted) in BOMBS {
        let bomb = Program::new(&module(main, child), Grants::ALL).expect("a program");
        let (end, neighbours) = beside(&runtime, &bomb, &sum);
        assert_eq!(neighbours, [alone; 2], "beside {name}");
        let right = match (&end, wanted) {
            (Err(TaskError::BudgetExceeded(spent)), Err(resource)) => *spent == resource,
            (Ok(Err(error)), Ok(Some(text))) => error.to_string().contains(text),
            (Ok(Ok(_)), Ok(None)) => true,
            _ => false,
        };
        assert!(right, "{name} ended with {end:?}");
    }
}

/// Every prefix, and every bit of every byte: an error with a reason, or a module; never a panic.
#[test]
fn j_12_broken_bytes_are_refused() {
    let wasm = parse(&format!(
        r#"(module {HOST} (func $child (param i64) (result i64) (i64.const 1))
          (global (mut i32) (i32.const 3)) (data (i32.const 8) "text")
          (func (export "main") (local i64) (block (loop (br_if 1 (memory.size)) (br 0)))))"#
    ));
    let (mut refused, mut taken) = (0, 0);
    let mut attempt = |bytes: &[u8]| match Program::new(bytes, Grants::ALL) {
        Ok(_) => taken += 1,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            refused += 1;
        }
    };
    for end in 0..wasm.len() {
        attempt(&wasm[..end]);
    }
    for at in 0..wasm.len() {
        for bit in 0..8 {
            let mut bytes = wasm.clone();
            bytes[at] ^= 1 << bit;
            attempt(&bytes);
        }
    }
    assert!(refused > 500 && taken > 50, "{refused} refused, {taken} taken");
    let vectors = r#"(module (func (export "main") (drop (v128.const i32x4 0 0 0 0))))"#;
    assert!(matches!(
        Program::new(&parse(vectors), Grants::ALL),
        Err(GuestError::Malformed { offset: 1.., .. })
    ));
    let long = vec![0; (16 << 20) + 1];
    assert!(matches!(Program::new(&long, Grants::ALL), Err(GuestError::TooLarge { what: "bytes", .. })));
}

/// 50,000 nested blocks, on a thread with a small stack: nothing recurses over them.
#[test]
fn j_12_deep_nesting() {
    use wasm_encoder::{
        BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, Module, TypeSection,
    };
    const DEPTH: u32 = 50_000;
    let mut body = Function::new([]);
    let mut out = body.instructions();
    for level in 0..DEPTH {
        if level % 2 == 0 {
            out.block(BlockType::Empty)
        } else {
            out.loop_(BlockType::Empty)
        };
    }
    for _ in 0..=DEPTH {
        out.end();
    }
    let mut module = Module::new();
    let (mut types, mut functions, mut exports, mut code) =
        (TypeSection::new(), FunctionSection::new(), ExportSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    exports.export("main", ExportKind::Func, 0);
    code.function(&body);
    module.section(&types).section(&functions).section(&exports).section(&code);
    let wasm = module.finish();
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let program =
        small.spawn(move || Program::new(&wasm, Grants::NONE)).unwrap().join().expect("no overflow");
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(1)) }.expect("a runtime");
    let end = runtime.run(|cx| program.expect("a program").call(cx, "main", Options::default()));
    assert_eq!(end.expect("no task error").expect("no guest error").exit, None);
}

/// Every import with every kind of bad argument returns an answer, and never panics, hangs or touches memory outside.
#[test]
fn j_12_imports_survive_bad_arguments() {
    let bad: [u64; 8] = [0, 1, 8, 65_528, 65_536, 0x7FFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF];
    let mut calls = 0;
    for (module, name, ty) in offers() {
        let (params, results) = ty.split_once(':').expect("parameters and results");
        let letter = |letter: char| if letter == 'l' { "i64" } else { "i32" };
        let list = |word: &str, types: &str| {
            types.chars().map(|l| format!("({word} {})", letter(l))).collect::<String>()
        };
        let mut body = String::new();
        for round in 0..24u64 {
            for (index, param) in params.chars().enumerate() {
                let value = bad[(round * 5 + index as u64 * (round % 7 + 1)) as usize % bad.len()];
                let value = if param == 'i' { i64::from(value as u32 as i32) } else { value as i64 };
                body += &format!("({}.const {value})", letter(param));
            }
            body += "(call $f)";
            body += if results.is_empty() { "" } else { "drop " };
            calls += 1;
        }
        let wat = format!(
            r#"(module (import "{module}" "{name}" (func $f {} {})) (memory 1) (table 1 funcref)
              (func (export "main") {body}))"#,
            list("param", params),
            list("result", results)
        );
        let program =
            Program::new(&parse(&wat), Grants::ALL).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Time is virtual: the longest sleep passes at once.
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let runtime = unsafe { Runtime::new(Config::new().workers(2).seed(1)) }.expect("a runtime");
        let tally = Arc::new(Tally::default());
        let options = Options { tally: tally.clone(), ..Options::default() };
        let end = runtime.run(|cx| program.call(cx, "main", options)).expect("no task error");
        assert!(end.is_ok(), "{name}: {end:?}");
        assert!(tally.used().ops > 0, "{name} was not charged");
    }
    assert!(calls > 700);
}
