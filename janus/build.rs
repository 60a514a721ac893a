//! Finds out how large the frames of this build are: see `ROOM` in `src/stack.rs`.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(sanitized, unoptimized)");
    // Not to be had as a plain `cfg`: the one is nightly's, the other nobody's.
    if var("CARGO_CFG_SANITIZE").is_ok() {
        println!("cargo::rustc-cfg=sanitized");
    }
    if var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=unoptimized");
    }
}
