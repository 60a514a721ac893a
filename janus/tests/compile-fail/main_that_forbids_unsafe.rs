//! A program that forbids `unsafe` makes no promise (J-19).
#![forbid(unsafe_code)]

#[janus::main(unsafe(no_thread_state_across_waits))]
fn main(_cx: &janus::Cx) {}
