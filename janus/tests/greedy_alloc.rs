//! J-06: an allocator that takes more stack than a task has left (a sanitizer's, or one that keeps records) does not leave
//! the runtime with a lock that is never released: neither where it makes stacks, nor where it allocates for a task.

use janus::{Config, Cx, Runtime, StackClass, TaskError};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Takes so many bytes of stack for each call, as program text.
struct Greedy;

static GREED: AtomicUsize = AtomicUsize::new(0);

/// Goes down to this address, however large a frame is.
#[inline(never)]
fn go_down(to: usize) -> u8 {
    let frame = black_box([1_u8; 64]);
    if frame.as_ptr().addr() <= to { frame[0] } else { black_box(go_down(to)) & black_box(&frame)[1] }
}

fn take() {
    let greed = GREED.load(Ordering::Relaxed);
    if greed > 0 {
        let here = black_box(0_u8);
        black_box(go_down((&raw const here).addr() - greed));
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Greedy {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        take();
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take();
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Greedy = Greedy;

const PATIENCE: Duration = Duration::from_secs(60);

/// The greed applies to the whole process: one test at a time. A test that hangs fails.
fn in_time(test: impl FnOnce() + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().expect("the test"),
    }
}

fn configs() -> [Config; 4] {
    let on = |workers| Config::new().workers(workers).stack(StackClass::Lean);
    [on(1).pinned(), on(2).pinned(), on(1), on(2)]
}

/// As much as a lean stack has, but for a little.
const MOST_OF_A_STACK: usize = StackClass::Lean.bytes() * 3 / 4;

#[test]
fn stacks_are_made_elsewhere_than_on_a_small_one() {
    in_time(|| {
        for config in configs() {
            // SAFETY: no task here keeps anything of its thread over a suspension.
            let rt = unsafe { Runtime::new(config) }.expect("a runtime");
            let begun = AtomicUsize::new(0);
            // Each has a stack while all the others come: three slabs, wanted by tasks that yield.
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    GREED.store(MOST_OF_A_STACK, Ordering::Relaxed);
                    for _ in 0..300 {
                        let child = n.spawn(|cx| {
                            begun.fetch_add(1, Ordering::Relaxed);
                            while begun.load(Ordering::Relaxed) < 300 && cx.yield_now().is_ok() {}
                        });
                        drop(child);
                    }
                    Ok(())
                })
            });
            GREED.store(0, Ordering::Relaxed);
            assert!(matches!(result, Ok(Ok(()))), "{result:?}");
            assert!(rt.stats().stacks_made >= 300, "{}", rt.stats());
            assert_eq!(rt.stats().total.overflows, 0);
        }
    });
}

/// What a task does on a lean stack with an allocator of each greed, and others do after it.
fn with_every_greed(each: impl Fn(&Cx) + Send + Sync + Copy + 'static) {
    in_time(move || {
        for config in configs() {
            for greed in (1..=2 * StackClass::Lean.bytes() / 1024).map(|kib| kib * 1024) {
                // A new one: a warm one allocates nothing.
                // SAFETY: no task here keeps anything of its thread over a suspension.
                let rt = unsafe { Runtime::new(config.clone()) }.expect("a runtime");
                let result = rt.run(|cx| {
                    cx.nursery(|n| {
                        let child = n.task().children(1000).owned().spawn(move |cx| {
                            GREED.store(greed, Ordering::Relaxed);
                            each(cx);
                            GREED.store(0, Ordering::Relaxed);
                        });
                        drop(child);
                        Ok(())
                    })
                });
                GREED.store(0, Ordering::Relaxed);
                match result {
                    Ok(Ok(())) => assert!(greed < StackClass::Lean.bytes(), "{greed} were taken"),
                    Ok(Err(TaskError::StackOverflow)) => {}
                    other => panic!("{other:?} with {greed}"),
                }
                // The same, where there is room: it takes the same locks.
                let after = rt.run(|cx| {
                    cx.nursery(|n| {
                        let task = n.task().stack(StackClass::Medium).children(1000);
                        drop(task.spawn(each));
                        Ok(())
                    })
                });
                assert!(matches!(after, Ok(Ok(()))), "{after:?} after {greed}");
            }
        }
    });
}

#[test]
fn a_timer_is_armed() {
    with_every_greed(|cx| {
        let _ = cx.sleep(Duration::from_micros(1));
    });
}

#[test]
fn tasks_are_made() {
    with_every_greed(|cx| {
        let _ = cx.nursery(|n| {
            // More than there is memory for, each with a closure that does not fit into its task.
            for _ in 0..300 {
                let load = [1_u64; 12];
                drop(n.spawn(move |_| black_box(load)[0]));
            }
            Ok(())
        });
    });
}
