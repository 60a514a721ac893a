//! The numbers that a manifest shares with the scheduling core are the same there.

use image::{Class, limits};

#[test]
fn limits_are_those_of_the_scheduler() {
    assert_eq!(limits::WEIGHT, (sched::MIN_WEIGHT.into(), sched::MAX_WEIGHT.into()));
    assert_eq!(limits::DEFAULT_WEIGHT, sched::DEFAULT_WEIGHT.into());
    assert_eq!(limits::BUDGET_NS.0, sched::MIN_BUDGET_NS);
    assert_eq!(limits::PERIOD_NS.1, sched::MAX_PERIOD_NS);
    assert_eq!(limits::CPU, (0, sched::MAX_CPUS as u64 - 1));
    assert_eq!(limits::CRITICALITY, (0, sched::MAX_CRITICALITY.into()));
    assert_eq!(limits::REFILLS, (sched::MIN_REFILLS as u64, sched::MAX_REFILLS as u64));
    assert_eq!(limits::PROMISED_PERCENT * 10_000, 1_000_000 - sched::BEST_EFFORT_RESERVE_PPM);
    assert_eq!(abi::CPU_MASK_BYTES_MAX * 8, sched::MAX_CPUS);
    let names: Vec<_> = sched::LatencyClass::ALL.iter().map(|class| class.name()).collect();
    assert_eq!(Class::ALL.map(Class::name).to_vec(), names);
}
