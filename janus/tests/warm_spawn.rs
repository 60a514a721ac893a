//! J-16: a warm runtime spawns, joins, yields, sends and receives without a call to the allocator.

use janus::{Config, Cx, Runtime, channel};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts the calls of threads that have been marked, while it is armed.
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MARKED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if ARMED.load(Ordering::Relaxed) && MARKED.try_with(Cell::get).unwrap_or(false) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The count is the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls of the allocator in `work`, by the workers, on a warm runtime of so many workers.
fn calls(workers: usize, work: impl Fn(&Cx) + Sync) -> u64 {
    // SAFETY: no task here keeps anything of its thread over a suspension, and none overflows.
    let rt = unsafe { Runtime::new(Config::new().workers(workers)) }.expect("a runtime");
    let calls = rt.run(|cx| {
        // Each worker's thread runs one of these, and marks itself.
        let marked = AtomicU64::new(0);
        let mark = cx.nursery(|n| {
            for _ in 0..workers {
                let child = n.spawn(|_| {
                    if !MARKED.replace(true) {
                        marked.fetch_add(1, Ordering::Relaxed);
                    }
                    while marked.load(Ordering::Relaxed) < workers as u64 {
                        std::thread::yield_now();
                    }
                });
                drop(child);
            }
            Ok(())
        });
        mark.expect("all end well");
        for _ in 0..20 {
            work(cx);
        }
        CALLS.store(0, Ordering::Relaxed);
        ARMED.store(true, Ordering::Relaxed);
        work(cx);
        ARMED.store(false, Ordering::Relaxed);
        CALLS.load(Ordering::Relaxed)
    });
    calls.expect("the main task")
}

fn spawn_and_join(cx: &Cx) {
    let sum = cx.nursery(|n| {
        Ok((0..1000_u64).map(|i| n.spawn(move |_| i).join(cx).expect("it returns")).sum::<u64>())
    });
    assert_eq!(sum.expect("all end well"), 499_500);
}

/// A closure of 200 bytes, and a result of as many.
fn spawn_large(cx: &Cx) {
    let sum = cx.nursery(|n| {
        let spawn = |i: u64| {
            let load = black_box([i; 25]);
            n.spawn(move |_| black_box(load))
        };
        Ok((0..1000).map(|i| spawn(i).join(cx).expect("it returns")[24]).sum::<u64>())
    });
    assert_eq!(sum.expect("all end well"), 499_500);
}

/// Fewer than the 64 stacks of a slab: which worker has how many at hand changes from time to time.
fn many_at_once(cx: &Cx) {
    for _ in 0..20 {
        let all = cx.nursery(|n| {
            for _ in 0..30 {
                drop(n.spawn(|cx| cx.yield_now().is_ok()));
            }
            Ok(())
        });
        all.expect("all end well");
    }
}

fn yields(cx: &Cx) {
    let all = cx.nursery(|n| {
        for _ in 0..4 {
            let child = n.spawn(|cx| (0..500).for_each(|_| cx.yield_now().expect("nobody cancels")));
            drop(child);
        }
        Ok(())
    });
    all.expect("all end well");
}

#[test]
fn the_counter_counts() {
    let _alone = alone();
    assert!(calls(1, |_| drop(black_box(Box::new(1)))) >= 2);
}

#[test]
fn spawn_and_join_do_not_allocate() {
    let _alone = alone();
    for workers in [1, 2] {
        assert_eq!(calls(workers, spawn_and_join), 0, "{workers} workers");
    }
}

#[test]
fn closures_of_200_bytes_do_not_allocate() {
    let _alone = alone();
    for workers in [1, 2] {
        assert_eq!(calls(workers, spawn_large), 0, "{workers} workers");
    }
}

#[test]
fn many_children_do_not_allocate() {
    let _alone = alone();
    // With two workers the stacks may gather at one of them: then the other takes fresh ones, which are no leak.
    assert_eq!(calls(1, many_at_once), 0);
}

#[test]
fn yields_do_not_allocate() {
    let _alone = alone();
    for workers in [1, 2] {
        assert_eq!(calls(workers, yields), 0, "{workers} workers");
    }
}

#[test]
fn messages_do_not_allocate() {
    let _alone = alone();
    for workers in [1, 2] {
        for capacity in [0, 8] {
            let (to, from) = channel::<u64>(capacity);
            let (back_to, back) = channel::<u64>(capacity);
            let (to, from, back_to, back) = (&to, &from, &back_to, &back);
            let work = |cx: &Cx| {
                let all = cx.nursery(|n| {
                    let echo = n.spawn(move |cx| {
                        for _ in 0..500 {
                            let i = from.recv(cx).expect("a message");
                            back_to.send(cx, i + 1).expect("somebody receives");
                        }
                    });
                    drop(echo);
                    for i in 0..500 {
                        to.send(cx, i).expect("somebody receives");
                        assert_eq!(back.recv(cx), Ok(i + 1));
                    }
                    Ok(())
                });
                all.expect("all end well");
            };
            assert_eq!(calls(workers, work), 0, "{workers} workers, capacity {capacity}");
        }
    }
}

/// Timers hang in a B-tree, which keeps its first node: so few at a time need no other. Many at once allocate a node for
/// every few of them.
#[test]
fn a_few_sleeps_do_not_allocate() {
    let _alone = alone();
    let work = |cx: &Cx| {
        let all = cx.nursery(|n| {
            for _ in 0..4 {
                let sleeper = n.spawn(|cx| {
                    (0..20).for_each(|_| cx.sleep(Duration::from_micros(50)).expect("nobody cancels"));
                });
                drop(sleeper);
            }
            Ok(())
        });
        all.expect("all end well");
    };
    assert_eq!(calls(1, work), 0);
}
