//! The first deadline of several shelves of timers, under loom: `earliest.rs` of the runtime itself, with loom's atomics.
//!
//! A planted flaw, in which who raises it does not look again, shows that the model sees what it is for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use earliest::{Earliest, NEVER};
use loom::thread;

/// Loom's atomics.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}
#[path = "../../janus/src/earliest.rs"]
mod earliest;

/// A timer of the first shelf is due at 1, and whoever looks at the clock at 5 fires it; meanwhile one is added to the second shelf, for `at`.
/// Afterwards the first of all is not later than that, and if it is only then so early, somebody was told.
fn fired_while_one_is_added(at: u64, looks_again: bool) {
    let earliest = Arc::new(Earliest::new(2));
    assert!(earliest.added(0, 1, 1));
    let theirs = Arc::clone(&earliest);
    let adds = thread::spawn(move || theirs.added(1, at, at));
    let due = earliest.first();
    assert_eq!(due, 1);
    earliest.removed(0, NEVER);
    let raised = earliest.raise_from(due);
    let told = looks_again && raised.is_some_and(|raised| earliest.look_again(raised));
    let first = adds.join().unwrap();
    assert!(earliest.first() <= at, "a timer is forgotten");
    // Before it was raised, 1 was the first: nobody slept for longer. After that, who lowered it says so.
    let was_seen = raised.is_some_and(|raised| raised <= at) || raised.is_none();
    assert!(was_seen || told != first, "told {told}, first {first}, raised to {raised:?}");
}

/// J-13: a timer that is armed while others fire is not forgotten, and who keeps the time hears of it, once.
#[test]
fn j_13_a_timer_armed_while_others_fire_is_not_forgotten() {
    for at in [3, 7] {
        loom::model(move || fired_while_one_is_added(at, true));
    }
}

/// The planted flaw.
#[test]
fn who_raises_it_must_look_again() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let caught = catch_unwind(AssertUnwindSafe(|| loom::model(|| fired_while_one_is_added(7, false))));
    std::panic::set_hook(hook);
    assert!(caught.is_err(), "the model does not see the planted flaw");
}

/// J-13, J-10: two who fire at once, and one shelf alone, whose first is exact.
#[test]
fn j_13_two_who_fire_agree_and_one_shelf_is_exact() {
    loom::model(|| {
        let earliest = Arc::new(Earliest::new(2));
        assert!(earliest.added(0, 1, 1));
        assert!(!earliest.added(1, 9, 9));
        let theirs = Arc::clone(&earliest);
        let other = thread::spawn(move || theirs.raise(1));
        earliest.removed(0, NEVER);
        earliest.raise(1);
        other.join().unwrap();
        assert_eq!(earliest.first(), 9);
    });
    loom::model(|| {
        let alone = Earliest::new(1);
        assert!(alone.added(0, 5, 5) && alone.added(0, 3, 3) && !alone.added(0, 4, 3));
        alone.removed(0, 4);
        assert_eq!((alone.first(), alone.raise(4)), (4, false));
        alone.removed(0, NEVER);
        assert_eq!(alone.first(), NEVER);
    });
}
