//! The ownership model at sizes that can be searched to the end, and with bugs planted that it must find.

use models::Flaw;
use models::ownership::{
    LOCK_ORDER, NO_IDLE_BESIDE_WORK, NO_LOST_WAKE, ONE_OWNER, Ownership, TIMER_ARMED, WAKES_HONOURED,
};
use models::search;
use models::world::Config;
use sched::PolicyKind;
use stateright::{Checker, HasDiscoveries, Model, UniformChooser};

fn exhaust(name: &str, config: Config) {
    search::exhaust(name, Ownership(config));
}

/// The planted bug breaks this property.
fn caught(flaw: Flaw, config: Config, property: &'static str) {
    let path = search::caught(flaw, Ownership(Config { flaw: Some(flaw), ..config }), property);
    // The same machine without the bug, on the same way: the bug is to blame, not the way.
    let mut sound = models::world::World::new(config);
    for action in path {
        if sound.enabled().contains(&action) {
            sound.act(action);
        }
        assert_eq!(sound.faults(), 0, "the sound glue fails too");
    }
}

#[test]
fn m_01_f_01_two_cpus_two_threads_two_wakers() {
    exhaust("2 CPUs x 2 threads, 2 wakers", Config { wakers: 2, ..Config::new(2, 2) });
}

#[test]
fn m_01_f_01_two_cpus_three_threads() {
    exhaust("2 CPUs x 3 threads", Config::new(2, 3));
}

#[test]
fn m_01_f_08_three_cpus_two_threads() {
    exhaust("3 CPUs x 2 threads", Config { permits: false, ..Config::new(3, 2) });
}

#[test]
fn m_01_f_01_exit_yield_and_direct_call() {
    exhaust("2 CPUs x 2 threads, exit, yield, call", Config { extras: true, ..Config::new(2, 2) });
}

#[test]
fn m_01_f_01_killed_by_ticket() {
    exhaust("2 CPUs x 2 threads, one kill", Config { kills: 1, permits: false, ..Config::new(2, 2) });
}

#[test]
fn m_01_f_08_a_pinned_thread() {
    exhaust("2 CPUs x 3 threads, one pinned", Config { pinned: true, permits: false, ..Config::new(2, 3) });
}

#[test]
fn m_01_f_11_eevdf() {
    exhaust("2 CPUs x 2 threads, EEVDF", Config { policy: PolicyKind::Eevdf, ..Config::new(2, 2) });
}

#[test]
fn m_01_f_03_timers_fire() {
    exhaust("2 CPUs x 2 threads, 1 timer", Config { ticks: 1, permits: false, ..Config::new(2, 2) });
}

#[test]
fn m_01_an_idle_check_before_the_enqueue_is_caught() {
    caught(Flaw::IdleCheckedTooEarly, Config::new(2, 2), NO_LOST_WAKE);
}

#[test]
fn m_01_a_steal_by_stale_ticket_is_caught() {
    caught(Flaw::StaleSteal, Config { permits: false, ..Config::new(2, 3) }, NO_IDLE_BESIDE_WORK);
}

#[test]
fn m_01_a_forgotten_wake_is_caught() {
    caught(Flaw::WakeForgotten, Config::new(2, 2), ONE_OWNER);
}

#[test]
fn m_01_an_ignored_permit_is_caught() {
    caught(Flaw::PermitIgnored, Config::new(2, 2), WAKES_HONOURED);
}

#[test]
fn m_01_a_timer_armed_by_the_wrong_cpu_is_caught() {
    caught(Flaw::TimerTrusted, Config { permits: false, ..Config::new(1, 2) }, TIMER_ARMED);
}

#[test]
fn m_01_unordered_locks_are_caught() {
    caught(Flaw::LocksUnordered, Config::new(2, 3), LOCK_ORDER);
}

#[test]
fn m_01_halting_without_a_second_look_is_caught() {
    caught(Flaw::NoRecheck, Config { permits: false, ..Config::new(2, 3) }, NO_IDLE_BESIDE_WORK);
}

/// Three CPUs, three threads and two wakers are too many states to see all of; random walks, always the same ones.
fn walk(flaw: Option<Flaw>) -> bool {
    let config = Config { permits: false, wakers: 2, flaw, ..Config::new(3, 3) };
    let builder = Ownership(config).checker().target_max_depth(60).target_state_count(1_000_000);
    let checker = builder.finish_when(HasDiscoveries::AnyFailures).spawn_simulation(1, UniformChooser).join();
    println!("random walks with {flaw:?}: {} states", checker.state_count());
    let failures = checker
        .discoveries()
        .into_iter()
        .filter(|(name, _)| Ownership(config).property(name).expectation.discovery_is_failure());
    let failures: Vec<_> = failures.map(|(name, path)| (name, path.into_actions())).collect();
    assert!(flaw.is_some() || failures.is_empty(), "{failures:?}");
    failures.iter().any(|(name, _)| *name == NO_IDLE_BESIDE_WORK)
}

#[test]
fn m_01_f_08_three_cpus_three_threads_by_random_walks() {
    assert!(!walk(None));
}

#[test]
fn m_01_a_swallowed_call_for_help_is_caught() {
    assert!(walk(Some(Flaw::CallNotPassedOn)));
}
