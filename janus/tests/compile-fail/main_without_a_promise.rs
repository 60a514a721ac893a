//! The attribute makes the promise of `Runtime::new` for a program: it is made in words, or not at all (J-19).

#[janus::main]
fn main(_cx: &janus::Cx) {}
