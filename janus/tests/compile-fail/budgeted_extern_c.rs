//! No unwinding leaves an extern "C" function.

use janus::{Cx, budgeted};

#[budgeted]
extern "C" fn callback(cx: &Cx) -> i32 {
    loop {}
}

fn main() {}
