//! The cancellation must fit into the function's error; if it does not, `#[budgeted(unwind)]` is there.

use janus::{Cx, budgeted};

#[budgeted]
fn read(cx: &Cx) -> Result<u32, std::num::ParseIntError> {
    "7".parse()
}

fn main() {}
