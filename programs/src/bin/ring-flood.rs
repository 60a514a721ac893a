//! To be written.
#![no_std]
#![no_main]
rt::main!(run);
fn run() {}
