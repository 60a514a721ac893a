//! Nothing in a budgeted function is polled.

use janus::{Cx, budgeted};

#[budgeted]
fn wait(cx: &Cx) -> u32 {
    let later = async { 1 };
    async { later.await };
    2
}

fn main() {}
