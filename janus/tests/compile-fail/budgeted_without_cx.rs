//! No hidden global: somebody must pass the task's context.

use janus::budgeted;

#[budgeted]
fn spin() {
    loop {}
}

fn main() {}
