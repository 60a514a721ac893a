//! A closure charges the task that made it, and so cannot leave it.

use janus::{Cx, budgeted};

#[budgeted]
fn elsewhere(cx: &Cx) {
    std::thread::spawn(move || loop {});
}

fn main() {}
