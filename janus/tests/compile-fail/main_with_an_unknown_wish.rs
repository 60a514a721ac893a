//! What the attribute does not know it refuses.

#[janus::main(unsafe(no_thread_state_across_waits), workers = 2)]
fn main(_cx: &janus::Cx) {}
