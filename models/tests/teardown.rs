//! Ends of everything at once, by the order of their locks; and with orders planted that must be found.

use models::search;
use models::teardown::{Flaw, NO_DEADLOCK, ORDER, Path, Teardown};

fn exhaust(paths: &[Path]) {
    search::exhaust(&format!("{paths:?}"), Teardown::new(paths, None));
}

/// The planted bug breaks this property; the same paths without it do not.
fn caught(flaw: Flaw, paths: &[Path], property: &'static str) {
    search::caught(flaw, Teardown::new(paths, Some(flaw)), property);
    exhaust(paths);
}

#[test]
fn m_01_s_09_a_call_and_the_ends_of_thread_and_endpoint() {
    exhaust(&[Path::Call, Path::ThreadEnd, Path::Close]);
}

#[test]
fn m_01_s_09_an_answer_a_kill_and_a_revocation() {
    exhaust(&[Path::Answer, Path::Kill, Path::Revoke, Path::Balance]);
}

#[test]
fn m_01_s_09_thread_process_endpoint_and_context_end_at_once() {
    exhaust(&[Path::ThreadEnd, Path::Kill, Path::Close, Path::Revoke]);
}

#[test]
fn m_01_s_09_a_call_among_them() {
    exhaust(&[Path::Call, Path::ThreadEnd, Path::Kill, Path::Close, Path::Revoke]);
}

#[test]
fn m_01_s_09_an_answer_among_them() {
    exhaust(&[Path::Answer, Path::ThreadEnd, Path::Kill, Path::Close, Path::Revoke]);
}

#[test]
fn m_01_s_09_an_inverted_order_is_caught() {
    caught(Flaw::Inverted, &[Path::Call, Path::ThreadEnd], ORDER);
    caught(Flaw::Inverted, &[Path::Call, Path::ThreadEnd], NO_DEADLOCK);
}

#[test]
fn m_01_s_09_a_box_given_under_a_cpus_lock_is_caught() {
    caught(Flaw::GivenUnderCpu, &[Path::Close, Path::Call], ORDER);
    caught(Flaw::GivenUnderCpu, &[Path::Close, Path::Call], NO_DEADLOCK);
}

#[test]
fn m_01_s_09_two_wait_slots_at_once_are_caught() {
    caught(Flaw::TwoSlots, &[Path::Close, Path::Kill], ORDER);
}

#[test]
fn m_01_s_09_waiting_for_a_box_under_a_lock_is_caught() {
    // No rank is broken here: only the wait is.
    caught(Flaw::AwaitsUnderEndpoint, &[Path::Close, Path::Answer], NO_DEADLOCK);
    caught(Flaw::AwaitsUnderRecord, &[Path::Close, Path::Call, Path::Answer], NO_DEADLOCK);
}

#[test]
fn m_01_s_09_unordered_cpus_are_caught() {
    caught(Flaw::CpusUnordered, &[Path::Balance, Path::Revoke], ORDER);
}
