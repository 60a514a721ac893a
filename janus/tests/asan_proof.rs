//! J-06: proves that `tools/asan.sh` finds a use-after-free inside a task.

use janus::{Config, Runtime};
use std::hint::black_box;

#[test]
#[ignore = "it reads freed memory on purpose: tools/asan.sh --prove"]
fn use_after_free_in_a_task() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().workers(1)) }.expect("a runtime");
    let read = rt.run(|cx| {
        let there = black_box(Box::new(7_u64));
        let pointer: *const u64 = &raw const *there;
        cx.yield_now().expect("nobody cancels");
        drop(there);
        // SAFETY: none: the memory is gone. That is what is to be found.
        black_box(unsafe { pointer.read_volatile() })
    });
    println!("nobody noticed: {read:?}");
}
