//! J-12: programs, instances and everything that they hold are freed when they end, to the byte. This test has a process of
//! its own, because it counts what the whole process has allocated.

mod bombs;

use bombs::{BOMBS, SUM, beside, module, parse};
use janus::{Config, Counted, Cx, Profile, Runtime};
use janus_guest::{Grants, Program};
use std::time::Duration;

#[global_allocator]
static HEAP: Counted = Counted::new();

/// What is kept on purpose: the thread of each spare worker that the watchdog starts, and the list of the tasks that it
/// named.
const KEPT_MAX: usize = 16 << 10;
/// Rounds between two looks, and the most looks until one of them finds nothing new: a leak would show each time.
const ROUNDS: usize = 4;
const LOOKS_MAX: usize = 8;

#[test]
fn j_12_memory_comes_back() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime =
        unsafe { Runtime::new(Config::new().workers(1).profile(Profile::Sovereign)) }.expect("a runtime");
    let sum = Program::new(&parse(SUM), Grants::NONE).expect("a program");
    let rounds = |count: usize| {
        for (name, main, child, _) in BOMBS.repeat(count) {
            let bomb = Program::new(&module(main, child), Grants::ALL)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let _ = beside(&runtime, &bomb, &sum);
        }
    };
    // On a busy machine the watchdog starts a spare worker now and then; here it always does.
    let hog = |_: &Cx| {
        (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            !runtime.hogs().is_empty()
        })
    };
    assert!(runtime.run(hog).expect("the first task"), "nobody notices a hog");
    rounds(ROUNDS);
    let mut looks = vec![HEAP.live().bytes];
    let clean = (0..LOOKS_MAX).any(|_| {
        rounds(ROUNDS);
        looks.push(HEAP.live().bytes);
        looks[looks.len() - 1] <= looks[looks.len() - 2]
    });
    assert!(clean && looks[looks.len() - 1] <= looks[0] + KEPT_MAX, "bytes that are allocated: {looks:?}");
    assert_eq!(runtime.stats().stacks_abandoned, 0);
    assert_eq!(runtime.dump().tasks, []);
}
