//! What budget checks cost, in instructions: the same work with and without them, for a loop and for calls separately.
//!
//! The work is small on purpose: one iteration, or one call, hashes 32 bytes, some 100 instructions.
//! What a check adds does not depend on the work, so the rows also tell it in instructions.

use crate::instructions::{CountError, per_step};
use crate::report::{Better, Row, Sample};
use janus::{Cancelled, Config, Cx, Runtime};
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

/// Does `steps` steps of one of the four; `bench-runtime` runs this under valgrind.
///
/// # Panics
/// If there is no such kind, or the runtime does not start.
pub fn work(kind: &str, steps: usize) {
    let runtime = Runtime::new(Config::new().workers(1).watchdog(None)).expect("a runtime");
    let block = black_box([7u8; 32]);
    let done = runtime.run(|cx| match kind {
        "loop-plain" => loop_plain(steps),
        "loop-checked" => loop_checked(cx, steps).expect("nobody cancels"),
        "call-plain" => (0..steps).fold(1, |state, _| call_plain(&block, state)),
        "call-checked" => (0..steps).fold(1, |state, _| call_checked(cx, &block, state)),
        other => panic!("no work {other}"),
    });
    black_box(done.expect("the work ends"));
}

/// The rows `check-loop` and `check-call`: ours is the work with checks, the peer is the work without.
pub fn rows() -> Result<Vec<Row>, CountError> {
    let count = |kind: &str| per_step(STEPS, |steps| vec![COUNT.into(), kind.into(), steps.to_string()]);
    let mut rows = Vec::new();
    for name in ["loop", "call"] {
        let checked = count(&format!("{name}-checked"))?;
        let plain = count(&format!("{name}-plain"))?;
        println!(
            "check-{name}: {:.1} instructions added to {plain:.1}, {:.1} %",
            checked - plain,
            (checked / plain - 1.0) * 100.0
        );
        rows.push(Row {
            name: format!("check-{name}"),
            ours: Sample::exact(checked),
            peer: "unchecked".into(),
            theirs: Sample::exact(plain),
            unit: "instructions",
            better: Better::Lower,
        });
    }
    Ok(rows)
}
