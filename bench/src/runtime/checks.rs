//! What budget checks cost, in instructions: the same work with and without them, for a loop and for calls separately.
//!
//! The work is small on purpose: one iteration, or one call, hashes 32 bytes, some 100 instructions.
//! What a check adds does not depend on the work, so the rows also tell it in instructions.

use crate::instructions::{CountError, per_step};
use crate::report::{Better, Row, Sample};
use janus::{Cancelled, Config, Cx, Runtime, budgeted};
use std::hint::black_box;

const STEPS: usize = 200_000;

/// The arguments by which `bench-runtime` calls itself under valgrind.
pub const COUNT: &str = "--count";

fn hash(bytes: &[u8], mut state: u64) -> u64 {
    for &byte in bytes {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    state
}

fn loop_plain(steps: usize) -> u64 {
    let block = [7u8; 32];
    let mut state = 1;
    for _ in 0..steps {
        // Read anew each time, here and below: a block kept in registers would make the work, not the check, differ.
        state = hash(black_box(&block), state);
    }
    state
}

fn loop_checked(cx: &Cx, steps: usize) -> Result<u64, Cancelled> {
    let block = [7u8; 32];
    let mut state = 1;
    let mut ticker = cx.ticker();
    for _ in 0..steps {
        ticker.tick()?;
        state = hash(black_box(&block), state);
    }
    Ok(state)
}

#[inline(never)]
fn call_plain(block: &[u8; 32], state: u64) -> u64 {
    hash(block, state)
}

#[inline(never)]
fn call_checked(cx: &Cx, block: &[u8; 32], state: u64) -> u64 {
    // Nobody cancels: what a caller does with the error is its own.
    if cx.check().is_err() {
        return 0;
    }
    hash(block, state)
}

/// The same source as two functions, without `#[budgeted]` and with it. It makes no call, so that the attribute inserts
/// nothing but the counters of its loops.
macro_rules! with_and_without {
    ($plain:ident, $budgeted:ident, |$state:ident, $steps:ident| $($body:tt)*) => {
        fn $plain($steps: usize) -> Result<u64, Cancelled> {
            let mut $state = black_box(1_u64);
            $($body)*
            Ok($state)
        }

        #[budgeted]
        fn $budgeted(cx: &Cx, $steps: usize) -> Result<u64, Cancelled> {
            let mut $state = black_box(1_u64);
            $($body)*
            Ok($state)
        }
    };
}

// Some 50 instructions a round.
with_and_without!(stir_plain, stir_budgeted, |state, steps| for _ in 0..steps {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state ^= state >> 9;
    state ^= state << 3;
    state ^= state >> 5;
    state ^= state << 11;
    state ^= state >> 21;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state ^= state >> 9;
    state ^= state << 3;
    state ^= state >> 5;
    state ^= state << 11;
    state ^= state >> 21;
});

// A loop of 32 rounds in a loop: what it costs to begin and end a counter for so few.
with_and_without!(nest_plain, nest_budgeted, |state, steps| for step in 0..steps {
    let block = [step as u8; 32];
    for byte in block {
        state = (state ^ byte as u64) << 1;
    }
});

#[inline(never)]
fn fallible_plain(block: &[u8; 32], state: u64) -> Result<u64, Cancelled> {
    Ok(hash(block, state))
}

/// As [`call_checked`]: one check pays for its own call and for that of the hash.
#[inline(never)]
#[budgeted]
fn fallible_budgeted(cx: &Cx, block: &[u8; 32], state: u64) -> Result<u64, Cancelled> {
    Ok(hash(block, state))
}

/// Does `steps` steps of one of these; `bench-runtime` runs this under valgrind.
///
/// # Panics
/// If there is no such kind, or the runtime does not start.
pub fn work(kind: &str, steps: usize) {
    #[allow(unsafe_code, reason = "the one promise of a runtime's making")]
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(1).watchdog(None)) }.expect("a runtime");
    let block = black_box([7u8; 32]);
    let done = runtime.run(|cx| match kind {
        "loop-plain" => loop_plain(steps),
        "loop-checked" => loop_checked(cx, steps).expect("nobody cancels"),
        "call-plain" => (0..steps).fold(1, |state, _| call_plain(&block, state)),
        "call-checked" => (0..steps).fold(1, |state, _| call_checked(cx, &block, state)),
        "fallible-plain" => (0..steps).fold(1, |state, _| fallible_plain(&block, state).unwrap_or(0)),
        "fallible-budgeted" => {
            (0..steps).fold(1, |state, _| fallible_budgeted(cx, &block, state).unwrap_or(0))
        }
        "stir-plain" => stir_plain(steps).expect("nobody cancels"),
        "stir-budgeted" => stir_budgeted(cx, steps).expect("nobody cancels"),
        "nest-plain" => nest_plain(steps).expect("nobody cancels"),
        "nest-budgeted" => nest_budgeted(cx, steps).expect("nobody cancels"),
        other => panic!("no work {other}"),
    });
    black_box(done.expect("the work ends"));
}

/// The rows: what is counted with checks, and the same work without.
const ROWS: [(&str, &str, &str); 5] = [
    ("check-loop", "loop-checked", "loop-plain"),
    ("check-call", "call-checked", "call-plain"),
    ("budgeted-loop", "stir-budgeted", "stir-plain"),
    ("budgeted-nest", "nest-budgeted", "nest-plain"),
    ("budgeted-call", "fallible-budgeted", "fallible-plain"),
];

/// The rows `check-…` and `budgeted-…`: ours is the work with checks, by hand or by `#[budgeted]`; the peer is the work
/// without.
pub fn rows() -> Result<Vec<Row>, CountError> {
    let count = |kind: &str| per_step(STEPS, |steps| vec![COUNT.into(), kind.into(), steps.to_string()]);
    let mut rows = Vec::new();
    for (name, checked, plain) in ROWS {
        let (checked, plain) = (count(checked)?, count(plain)?);
        println!(
            "{name}: {:.1} instructions added to {plain:.1}, {:.1} %",
            checked - plain,
            (checked / plain - 1.0) * 100.0
        );
        rows.push(Row {
            name: name.into(),
            ours: Sample::exact(checked),
            peer: "unchecked".into(),
            theirs: Sample::exact(plain),
            unit: "instructions",
            better: Better::Lower,
        });
    }
    Ok(rows)
}
