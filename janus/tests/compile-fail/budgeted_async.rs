//! A budgeted function waits by its own stack.

use janus::{Cx, budgeted};

#[budgeted]
async fn poll(cx: &Cx) {}

fn main() {}
