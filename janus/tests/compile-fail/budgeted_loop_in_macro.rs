//! What a macro gets is tokens: a loop among them cannot be seen.

use janus::{Cx, budgeted};

macro_rules! again {
    ($body:expr) => {
        $body
    };
}

#[budgeted]
fn hidden(cx: &Cx) {
    again!(loop {});
}

fn main() {}
