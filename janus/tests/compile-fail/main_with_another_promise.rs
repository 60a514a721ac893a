//! The promise has one name (J-19).

#[janus::main(unsafe(trust_me))]
fn main(_cx: &janus::Cx) {}
