//! Random sequences of every public operation on 1 to 4 CPUs, beside a shadow model (F-01, S-12). See `common/ops.rs`.
//!
//! The seed is fixed, so that a run that passes passes everywhere; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` make it another
//! one, or a longer one. A failure is shrunk by proptest to a short list of operations.

mod common;

use common::ops::{OP_BYTES, Op, World};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sched::PolicyKind;

/// As many sequences as fit into a few seconds of a debug build, unless the environment says otherwise.
fn config(cases: u32) -> ProptestConfig {
    let asked = |name| std::env::var_os(name).is_some();
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if !asked("PROPTEST_CASES") {
        config.cases = cases;
    }
    if !asked("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(2);
    }
    config
}

fn operations(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(any::<[u8; OP_BYTES]>().prop_map(Op::decode), 0..longest)
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![Just(PolicyKind::Wfq), Just(PolicyKind::Eevdf)]
}

proptest! {
    #![proptest_config(config(20_000))]

    /// F-01, F-05, F-15, S-04, S-11, S-12: a caller that dispatches whenever it is told to.
    #[test]
    fn f_01_any_operations_by_an_obedient_caller(cpus in 1usize..=4, policy in policy(), ops in operations(160)) {
        let mut world = World::new(cpus, policy);
        for op in ops {
            world.step(op, true);
        }
    }

    /// F-01, S-12: a caller that may ignore what it is told: nothing is lost, nothing is charged twice, nothing panics.
    #[test]
    fn f_01_any_operations_by_a_careless_caller(cpus in 1usize..=4, policy in policy(), ops in operations(160)) {
        let mut world = World::new(cpus, policy);
        for op in ops {
            world.step(op, false);
        }
    }
}
