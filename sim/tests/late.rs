//! The simulator notes deadlines that pass as the kernel does (S-15).

use sim::engine::{Engine, Options};
use sim::scenario::Scenario;
use trace::Kind;

/// S-15: of the scenario `late`, two misses are told of a nanosecond after the deadline, of who runs then and of who waits, each once.
#[test]
fn s_15_a_miss_is_noted_when_it_happens() {
    let scenario = Scenario::parse("late.scn", include_str!("../scenarios/late.scn")).unwrap();
    let outcome = Engine::new(&scenario, Options::of(&scenario)).unwrap().run().unwrap();
    let faults = outcome.trace.unwrap().events.into_iter().filter_map(|event| match event.kind {
        Kind::Fault { thread } => Some((event.time_ns, thread)),
        _ => None,
    });
    assert_eq!(faults.collect::<Vec<_>>(), [(20_000_001, 1), (20_000_001, 2)]);
    assert_eq!(outcome.counters.misses, 2);
}
