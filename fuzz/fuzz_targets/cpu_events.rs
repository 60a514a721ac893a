//! Any byte stream as operations on 1 to 4 CPUs, by the interpreter of `sched/tests/operations.rs` (F-01, S-12).
//!
//! The first byte chooses CPUs, policy and whether the caller obeys; every six that follow are one operation.
#![no_main]

#[path = "../../sched/tests/common/ops.rs"]
mod ops;

use libfuzzer_sys::fuzz_target;
use ops::{OP_BYTES, Op, World};
use sched::PolicyKind;

fuzz_target!(|bytes: &[u8]| {
    let Some((&setup, rest)) = bytes.split_first() else { return };
    let policy = if setup & 4 == 0 { PolicyKind::Wfq } else { PolicyKind::Eevdf };
    let mut world = World::new(1 + usize::from(setup & 3), policy);
    for op in rest.chunks_exact(OP_BYTES) {
        world.step(Op::decode(op.try_into().unwrap()), setup & 8 == 0);
    }
});
