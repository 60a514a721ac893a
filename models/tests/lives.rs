//! A thread's life, visited to the end; and with bugs planted that must be found (K-31).

use models::lives::{Actor, CLEAN, ENDS, Flaw, Lives, MORTAL, PROMISED, STRANGERS, UNPAID, WOKEN};
use models::search;

const STOPS: Actor = Actor::Binder { context_only: true };
const STAYS: Actor = Actor::Binder { context_only: false };

fn exhaust(actors: &[Actor]) {
    search::exhaust(&format!("{actors:?}"), Lives { actors: actors.to_vec(), flaw: None });
}

/// The planted bug breaks this property; the same actors without it break none.
fn caught(flaw: Flaw, actors: &[Actor], property: &'static str) {
    search::caught(flaw, Lives { actors: actors.to_vec(), flaw: Some(flaw) }, property);
    exhaust(actors);
}

#[test]
fn k_31_a_bind_a_kill_and_a_wake() {
    exhaust(&[STOPS, Actor::Killer, Actor::Waker]);
    exhaust(&[STAYS, Actor::Killer, Actor::Waker]);
}

#[test]
fn k_31_two_binds_a_revocation_and_a_loan() {
    exhaust(&[STOPS, STAYS, Actor::Revoker, Actor::Lender]);
    exhaust(&[STOPS, STAYS, Actor::Unbinder, Actor::Waker]);
}

#[test]
fn k_31_everybody() {
    exhaust(&[STOPS, Actor::Killer, Actor::Waker, Actor::Revoker, Actor::Lender]);
    exhaust(&[STOPS, STAYS, Actor::Killer, Actor::Waker, Actor::Unbinder, Actor::Revoker, Actor::Lender]);
}

#[test]
fn k_31_a_bind_after_the_last_look_is_caught() {
    caught(Flaw::BindsTheEnding, &[STAYS, Actor::Waker], CLEAN);
    caught(Flaw::BindsTheEnding, &[STAYS, STOPS, Actor::Revoker], CLEAN);
}

#[test]
fn k_31_a_stop_of_one_that_ends_is_caught() {
    caught(Flaw::StopsTheEnding, &[STOPS, Actor::Killer], MORTAL);
}

#[test]
fn k_31_a_lookup_without_a_generation_is_caught() {
    caught(Flaw::NoGeneration, &[Actor::Waker, STOPS], STRANGERS);
    caught(Flaw::NoGeneration, &[STOPS, Actor::Revoker], STRANGERS);
    caught(Flaw::NoGeneration, &[Actor::Killer, STOPS], STRANGERS);
}

#[test]
fn k_31_a_blind_request_to_bind_is_caught() {
    caught(Flaw::RequestsBindBlindly, &[STOPS, Actor::Unbinder, STAYS], PROMISED);
}

#[test]
fn k_31_a_context_that_is_taken_before_the_kill_is_caught() {
    caught(Flaw::StripsFirst, &[STOPS, Actor::Killer], UNPAID);
}

#[test]
fn k_31_what_is_not_delivered_is_caught() {
    caught(Flaw::NotDelivered, &[STOPS, Actor::Unbinder, STAYS, Actor::Waker], PROMISED);
}

#[test]
fn k_31_who_is_not_woken_is_caught() {
    caught(Flaw::NotWoken, &[STOPS, Actor::Unbinder, STAYS, Actor::Waker], WOKEN);
}

/// Bound anew while it is on its way to what was taken back, and killed before the new binder gives it the box: whoever kills it finds nothing to take from it.
#[test]
fn k_31_who_is_killed_on_the_way_to_a_context_fetches_none() {
    caught(Flaw::FetchesTheEnding, &[STOPS, STAYS, Actor::Killer, Actor::Unbinder], UNPAID);
}

/// The endless loop of the release kernel: the next life ends, and finds a context that is not its own.
#[test]
fn k_31_the_loop_that_it_led_to() {
    let model = Lives { actors: vec![STAYS, Actor::Waker], flaw: Some(Flaw::BindsTheEnding) };
    let path = search::caught(Flaw::BindsTheEnding, model, CLEAN);
    assert!(path.len() > 3, "{ENDS}: {path:?}");
}
