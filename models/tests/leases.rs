//! Leases, visited to the end; and with bugs planted that must be found (I-04, I-05, I-12, M-01).

use kcore::leases::Flaw as BookFlaw;
use models::leases::{Actor, BOOK, ENDS, FRESH, Flaw, Leases};
use models::search;

fn exhaust(actors: &[Actor]) {
    search::exhaust(&format!("{actors:?}"), Leases { actors: actors.to_vec(), flaw: None });
}

/// The planted bug breaks this property; the same actors without it break none.
fn caught(flaw: Flaw, actors: &[Actor], property: &'static str) {
    search::caught(flaw, Leases { actors: actors.to_vec(), flaw: Some(flaw) }, property);
    exhaust(actors);
}

#[test]
fn i_12_no_lease_outlives_its_grant() {
    exhaust(&[Actor::Holder, Actor::Holder, Actor::Minter]);
    exhaust(&[Actor::Holder, Actor::Stranger, Actor::Minter, Actor::Revoker]);
}

#[test]
fn i_04_i_05_everybody() {
    use Actor::{Holder, Keeper, Minter, Revoker, Stranger};
    exhaust(&[Holder, Stranger, Minter, Revoker, Keeper]);
    exhaust(&[Holder, Holder, Stranger, Minter, Revoker, Keeper, Keeper]);
}

#[test]
fn i_12_bugs_of_the_book_are_caught() {
    caught(Flaw::Book(BookFlaw::StaleGrantObeyed), &[Actor::Holder, Actor::Minter], BOOK);
    caught(Flaw::Book(BookFlaw::NoCascade), &[Actor::Holder, Actor::Minter], BOOK);
    caught(Flaw::Book(BookFlaw::AccountAsserted), &[Actor::Holder], BOOK);
    caught(Flaw::Book(BookFlaw::OverlapIgnored), &[Actor::Holder, Actor::Stranger], BOOK);
}

#[test]
fn i_05_a_request_that_is_not_checked_again_is_caught() {
    caught(Flaw::NotCheckedAgain, &[Actor::Holder, Actor::Minter], FRESH);
    caught(Flaw::NotCheckedAgain, &[Actor::Holder, Actor::Keeper], FRESH);
}

#[test]
fn i_04_a_cpu_that_is_told_nothing_or_too_early_is_caught() {
    for actors in
        [[Actor::Holder, Actor::Minter], [Actor::Stranger, Actor::Revoker], [Actor::Stranger, Actor::Keeper]]
    {
        caught(Flaw::NotTold, &actors, ENDS);
        caught(Flaw::ToldTooEarly, &actors, ENDS);
    }
}
