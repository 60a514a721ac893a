//! A spawn that must own everything is not one that may borrow, however its lifetimes are shortened.

fn shorten<'a>(spawn: janus::Spawn<'a, 'static>) -> janus::Spawn<'a, 'a> {
    spawn
}

fn main() {
    let _ = shorten;
}
