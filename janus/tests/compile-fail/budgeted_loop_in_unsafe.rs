//! A check may not end the function in the middle of an unsafe block.

use janus::{Cx, budgeted};

#[budgeted]
fn fill(cx: &Cx, to: *mut u8, len: usize) {
    unsafe {
        for n in 0..len {
            to.add(n).write(0);
        }
    }
}

fn main() {}
