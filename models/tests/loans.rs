//! The donation stack at sizes that can be searched to the end, and with bugs planted that it must find.

use models::loans::{
    BookFlaw, Config, Errand, Flaw, LENDERS_WAIT, Loans, NOBODY_STALE, NOTHING_LEFT, ONE_PLACE,
    SPENT_IS_SPENT, STACK_IS_TRUE, WAITS_END, mark,
};
use models::search;

fn exhaust(name: &str, config: Config) {
    search::exhaust(name, Loans(config));
}

/// The planted bug breaks this property.
fn caught(flaw: Flaw, config: Config, property: &'static str) {
    search::caught(flaw, Loans(Config { flaw: Some(flaw), expect: 0, ..config }), property);
}

/// A client with time, and a server.
fn two(errands: &[Errand]) -> Config {
    Config { errands: errands.to_vec(), expect: mark::LENT | mark::BACK, ..Config::new(&[2, 0]) }
}

/// A client with time, a server, and the server's server.
fn three(errands: &[Errand]) -> Config {
    let expect = mark::LENT | mark::NESTED | mark::BACK;
    Config { errands: errands.to_vec(), expect, peers: vec![(0, 1), (1, 2)], ..Config::new(&[1, 1, 0]) }
}

/// Two clients with time of their own, 0 and 2, and a server between them.
fn clients(errands: &[Errand]) -> Config {
    Config {
        owners: vec![Some(0), None, Some(1)],
        contexts: 2,
        peers: vec![(0, 1), (2, 1)],
        calls: vec![1, 0, 1],
        expect: mark::LENT | mark::BACK,
        ..three(errands)
    }
}

/// A chain of four, whose servers wait from the beginning.
fn four(errands: &[Errand]) -> Config {
    let expect = mark::LENT | mark::NESTED | mark::BACK;
    let (peers, errands) = (vec![(0, 1), (1, 2), (2, 3)], errands.to_vec());
    Config { errands, expect, peers, waiting: true, ..Config::new(&[1, 1, 1, 0]) }
}

/// Two bound servers, 0 and 1, and a caller of each, who may revoke both contexts in the batch of its call.
fn crosswise() -> Config {
    let owners = vec![Some(0), Some(1), None, None];
    let (peers, calls) = (vec![(2, 0), (3, 1)], vec![0, 0, 1, 1]);
    Config { owners, contexts: 2, peers, calls, batch: vec![0, 1], ..three(&[]) }
}

#[test]
fn m_01_s_06_calls_and_answers() {
    exhaust("2 threads, 2 calls, budget", Config { budget: 2, ..two(&[Errand::Chance(1)]) });
}

#[test]
fn m_01_s_06_a_lender_is_woken_by_something_else() {
    let config = two(&[Errand::Chance(0), Errand::Close(1), Errand::Chance(1)]);
    exhaust("2 threads, chance and close", Config { expect: config.expect | mark::ENDED, ..config });
}

#[test]
fn m_01_s_06_s_09_either_is_killed_while_time_is_revoked() {
    let config = two(&[Errand::Revoke(0), Errand::Kill(0), Errand::Kill(1)]);
    exhaust("2 threads, revoke, both killed", Config { expect: config.expect | mark::CHASED, ..config });
}

#[test]
fn m_01_s_06_cancelled_and_revoked_in_one_batch() {
    let config = two(&[Errand::Close(1), Errand::Chance(1)]);
    exhaust("2 threads, batch", Config { batch: vec![0], cancels: true, ..config });
}

#[test]
fn m_01_s_07_calls_answers_and_receives_in_one_batch() {
    exhaust(
        "2 threads, mixed",
        Config { mixed: true, cancels: true, ..two(&[Errand::Chance(0), Errand::Revoke(0)]) },
    );
    exhaust("3 threads, mixed", Config { mixed: true, waiting: true, ..three(&[Errand::Close(1)]) });
    exhaust("2 clients, mixed", Config { mixed: true, ..clients(&[]) });
}

#[test]
fn m_01_s_07_nested_with_a_budget() {
    exhaust("3 threads, nested, budget", Config { budget: 2, ..three(&[]) });
}

#[test]
fn m_01_s_07_nested_and_revoked() {
    exhaust("3 threads, nested, revoke, chance", three(&[Errand::Revoke(0), Errand::Chance(1)]));
}

#[test]
fn m_01_s_07_nested_and_the_middle_ends() {
    let config = three(&[Errand::Revoke(0), Errand::Kill(1)]);
    exhaust("3 threads, nested, revoke, middle killed", Config { waiting: true, ..config });
}

#[test]
fn m_01_s_07_nested_and_the_first_loan_ends() {
    let config = three(&[Errand::Close(1), Errand::Chance(1)]);
    exhaust("3 threads, nested, close, chance", Config { expect: config.expect | mark::ENDED, ..config });
}

#[test]
fn m_01_s_07_nested_and_both_servers_end() {
    exhaust(
        "3 threads, nested, servers killed",
        Config { waiting: true, ..three(&[Errand::Kill(1), Errand::Kill(2)]) },
    );
}

#[test]
fn m_01_s_07_answered_by_another_thread_of_the_process() {
    let config = Config { pair: true, ..three(&[Errand::Revoke(0)]) };
    exhaust("3 threads, answers out of order", Config { expect: config.expect | mark::ENDED, ..config });
}

#[test]
fn m_01_s_07_circles() {
    let peers = vec![(0, 1), (1, 2), (2, 0), (2, 1)];
    // The first one asks for calls, is woken by something else, and calls: only a server that asked for calls closes a circle.
    let config = Config { peers, calls: vec![1, 1, 1], ..three(&[Errand::Chance(0)]) };
    exhaust("3 threads, circles", Config { expect: config.expect | mark::REFUSED, ..config });
}

#[test]
fn m_01_s_06_two_clients_with_budgets() {
    exhaust("2 clients, budgets", Config { budget: 1, ..clients(&[]) });
}

#[test]
fn m_01_s_06_two_clients_and_the_server_ends() {
    exhaust("2 clients, revoke, server killed", clients(&[Errand::Revoke(0), Errand::Kill(1)]));
}

#[test]
fn m_01_s_09_two_revoke_each_others_time_with_a_box_in_hand() {
    let config = crosswise();
    exhaust("2 bound servers, revoked crosswise", Config { expect: mark::CHASED, ..config });
}

#[test]
fn m_01_s_06_bound_while_it_is_lent_to() {
    let config = Config { contexts: 2, ..two(&[Errand::Bind(1, 1), Errand::Chance(1), Errand::Revoke(0)]) };
    exhaust("bind and lend to one thread", Config { expect: config.expect | mark::FETCHED, ..config });
}

#[test]
fn m_01_s_09_bound_revoked_and_killed() {
    let errands = [Errand::Bind(1, 1), Errand::Revoke(1), Errand::Kill(1)];
    exhaust("bind, revoke, kill", Config { contexts: 2, ..two(&errands) });
}

#[test]
fn m_01_s_07_a_chain_of_four() {
    exhaust("4 threads, chain, first loan ends", four(&[Errand::Close(1)]));
}

#[test]
fn m_01_s_07_a_chain_too_deep() {
    let config = Config { depth: 2, ..four(&[Errand::Revoke(0)]) };
    exhaust("4 threads, depth 2, revoke", Config { expect: config.expect | mark::REFUSED, ..config });
}

#[test]
fn m_01_s_06_a_charge_to_the_wrong_account_is_caught() {
    caught(Flaw::ChargedAfterMove, Config { budget: 2, ..two(&[]) }, SPENT_IS_SPENT);
}

#[test]
fn m_01_s_06_a_loan_left_behind_by_an_exception_is_caught() {
    caught(Flaw::ReturnSkippedOnException, two(&[Errand::Close(1)]), NOTHING_LEFT);
}

#[test]
fn m_01_s_09_a_stale_generation_accepted_is_caught() {
    caught(Flaw::Book(BookFlaw::StaleAccepted), two(&[Errand::Revoke(0)]), NOBODY_STALE);
}

#[test]
fn m_01_s_09_a_lock_held_while_waiting_is_caught() {
    caught(
        Flaw::LockHeldWhileWaiting,
        Config { mixed: true, waiting: true, ..three(&[Errand::Close(1)]) },
        WAITS_END,
    );
}

#[test]
fn m_01_s_07_a_return_under_a_nested_loan_is_caught() {
    caught(Flaw::Book(BookFlaw::NestedIgnored), Config { pair: true, ..three(&[]) }, STACK_IS_TRUE);
}

#[test]
fn m_01_s_06_a_lost_request_to_bind_is_caught() {
    caught(Flaw::RequestsBindTooEarly, Config { contexts: 2, ..two(&[Errand::Bind(1, 1)]) }, NOTHING_LEFT);
}

#[test]
fn m_01_s_09_waiting_for_what_one_has_is_caught() {
    caught(Flaw::OwnWayOpen, Config { cancels: true, ..two(&[]) }, WAITS_END);
    caught(Flaw::OwnWayOpen, Config { waiting: true, ..crosswise() }, WAITS_END);
}

#[test]
fn m_01_s_06_a_loan_ended_under_way_is_caught() {
    caught(Flaw::Book(BookFlaw::WayIgnored), two(&[Errand::Close(1)]), STACK_IS_TRUE);
}

#[test]
fn m_01_s_06_a_lender_that_sleeps_on_is_caught() {
    caught(Flaw::LenderNotWoken, two(&[Errand::Chance(0)]), NOTHING_LEFT);
}

#[test]
fn m_01_s_06_a_lender_in_user_mode_is_caught() {
    caught(Flaw::LenderRuns, two(&[Errand::Chance(0)]), LENDERS_WAIT);
}

#[test]
fn m_01_s_06_two_contexts_in_one_thread_are_caught() {
    caught(Flaw::Unclaimed, Config { contexts: 2, ..two(&[Errand::Bind(1, 1)]) }, ONE_PLACE);
}

#[test]
fn m_01_s_06_a_loan_kept_over_recv_is_caught() {
    caught(Flaw::KeptOverRecv, two(&[]), STACK_IS_TRUE);
}

#[test]
fn m_01_s_09_a_loan_that_outlives_its_borrower_is_caught() {
    let config = Config { waiting: true, ..three(&[Errand::Kill(1), Errand::Kill(2)]) };
    caught(Flaw::EndsByCalls, config, ONE_PLACE);
}

#[test]
fn m_01_s_06_a_loan_along_a_call_that_is_over_is_caught() {
    caught(Flaw::LentAlongNothing, two(&[Errand::Close(1)]), NOTHING_LEFT);
    caught(Flaw::LentAlongNothing, Config { pair: true, ..three(&[]) }, NOTHING_LEFT);
}

#[test]
fn m_01_s_06_a_loan_to_one_who_asked_for_more_is_caught() {
    caught(Flaw::LentToReceiver, two(&[Errand::Chance(1)]), STACK_IS_TRUE);
}

#[test]
fn m_04_s_07_a_chain_without_a_bound_is_caught() {
    caught(Flaw::Book(BookFlaw::DepthIgnored), Config { depth: 1, ..four(&[]) }, STACK_IS_TRUE);
}

#[test]
fn m_04_s_06_an_answer_that_returns_another_loan_is_caught() {
    let config = Config { pair: true, ..three(&[]) };
    caught(Flaw::Book(BookFlaw::AnyAnswerReturns), config, WAITS_END);
}

#[test]
fn m_04_s_06_a_loan_of_what_was_not_fetched_is_caught() {
    // Bound while it is in the kernel, and calls in the same batch.
    let config =
        Config { owners: vec![None, None], mixed: true, waiting: true, ..two(&[Errand::Bind(0, 0)]) };
    caught(Flaw::Book(BookFlaw::UnfetchedLent), config, STACK_IS_TRUE);
}
