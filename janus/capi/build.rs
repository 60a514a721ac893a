//! The shared library's name, what it exports, and that it stays: it has signal handlers, threads and thread-locals, so
//! it cannot be unloaded.
//!
//! The list of exports adds to rustc's own: lld, the toolchain's linker, takes both; GNU ld refuses the second.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libjanus.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={here}/exports.map");
    println!("cargo::rerun-if-changed=exports.map");
    println!("cargo::rerun-if-changed=build.rs");
}
