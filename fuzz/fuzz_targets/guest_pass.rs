//! Any bytes as a module (J-12): the pass never panics, what it takes is valid afterwards; and a random valid module
//! computes and costs the same as with every instruction charged by itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../janus/guest/tests/common/mod.rs"]
mod common;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(done) = janus_guest::pass::instrument(bytes, true) {
        wasmi::Module::new(&wasmi::Engine::default(), &done.wasm).expect("what comes out is valid");
    }
    common::compare(bytes);
});
