//! Searching a model to its end, and for a planted bug: what the tests of all stateright models do.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// Searches everything, prints how much that was, and asserts every property.
///
/// # Panics
/// If a property does not hold.
pub fn exhaust<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let start = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, depth {depth}, {:.1} s", start.elapsed().as_secs_f64());
    for (name, path) in checker.discoveries() {
        let failed = checker.model().property(name).expectation.discovery_is_failure();
        let last = format!("{:?}", path.last_state());
        assert!(!failed, "not so: {name}, after {:?}\n{last}", path.into_actions());
    }
    checker.assert_properties();
    assert!(checker.is_done(), "the search must have seen everything");
}

/// The model's planted bug breaks this property; prints a short way there, and returns it.
///
/// # Panics
/// If the property holds.
pub fn caught<M>(flaw: impl Debug, model: M, property: &'static str) -> Vec<M::Action>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let when = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(2).finish_when(when).spawn_bfs().join();
    let path = checker.assert_any_discovery(property).into_actions();
    println!("{flaw:?}: {} states, then {} steps: {path:?}", checker.unique_state_count(), path.len());
    path
}
