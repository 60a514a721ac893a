//! A runtime is made with a promise: see `Runtime::new`.
#![forbid(unsafe_code)]

fn main() {
    let _ = janus::Runtime::new(janus::Config::new());
}
