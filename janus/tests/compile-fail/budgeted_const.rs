//! In the compiler there is no task to charge.

use janus::{Cx, budgeted};

#[budgeted]
const fn square(cx: &Cx, n: u32) -> u32 {
    n * n
}

fn main() {}
