//! What `janus::Charged` costs, and what it does not charge: the runtime's own memory.

use janus::{Budget, Charged, Config, Cx, NurseryOptions, Runtime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: Charged = Charged::new();

fn runtime(memory: u64) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(1).root_budget(Budget { memory, ..Budget::UNLIMITED })) }
        .unwrap()
}

/// What the runtime allocates on a task's fiber is not the task's: timers, queues, closures, outcomes, nurseries.
#[test]
fn the_runtime_pays_for_itself() {
    for seed in [None, Some(7)] {
        let budget = Budget { memory: 8 << 20, ..Budget::UNLIMITED };
        let config = Config::new().workers(1).root_budget(budget).watchdog(None).trace(64);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(seed.map_or(config.clone(), |seed| config.seed(seed))) }.unwrap();
        rt.run(|cx| {
            let start = cx.budget().memory;
            cx.nursery_with(NurseryOptions::new().share(Budget { memory: 1, ..Budget::CHILD }), |n| {
                let large = [1_u8; 300];
                for i in 0..300_u64 {
                    let child = n.spawn(move |cx| {
                        let before = cx.budget().memory;
                        cx.sleep(Duration::from_micros(i % 50)).unwrap();
                        cx.yield_now().unwrap();
                        assert_eq!((before, cx.budget().memory, cx.is_cancelled()), (1, 1, false));
                        black_box(&large);
                        [i; 20]
                    });
                    drop(child);
                    assert!(start - cx.budget().memory <= i + 1);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(cx.budget().memory, start);
        })
        .unwrap();
    }
}

/// A foreign thread frees a task's block while the task ends, and its nursery right after it, over and over: each credit
/// finds the task, the pool or the opener, and none is lost between two of them.
#[test]
fn credits_race_with_ends() {
    let slot: Mutex<Option<Vec<u8>>> = Mutex::new(None);
    let (stop, freed) = (AtomicBool::new(false), AtomicU64::new(0));
    let rt = runtime(8 << 20);
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut delay = 0;
            while !stop.load(Ordering::Relaxed) && Instant::now() < end + Duration::from_secs(10) {
                let block = slot.lock().unwrap().take();
                if block.is_some() {
                    // Earlier or later: at every moment of the ends.
                    delay = (delay + 7) % 400;
                    (0..delay).for_each(|_| std::hint::spin_loop());
                    drop(block);
                    freed.fetch_add(1, Ordering::Release);
                }
            }
        });
        rt.run(|cx| {
            let start = cx.budget().memory;
            let mut round = 0;
            while round < 40_000 && Instant::now() < end {
                round += 1;
                let pool = Budget { memory: 1 << 20, ..Budget::UNLIMITED };
                cx.nursery_with(NurseryOptions::new().pool(pool), |n| {
                    drop(n.spawn(|_| *slot.lock().unwrap() = Some(vec![1; 1000])));
                    Ok(())
                })
                .unwrap();
                while freed.load(Ordering::Acquire) < round && Instant::now() < end {
                    std::hint::spin_loop();
                }
                if freed.load(Ordering::Acquire) < round {
                    break;
                }
                assert_eq!(cx.budget().memory, start, "round {round}");
            }
            stop.store(true, Ordering::Relaxed);
        })
        .unwrap();
    });
}

/// `cargo test --release -p janus --test charged_costs -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn costs() {
    fn least(name: &str, count: u32, mut body: impl FnMut()) {
        let time = |_| {
            let begin = Instant::now();
            body();
            begin.elapsed().as_nanos()
        };
        // The least of many: others use this machine too.
        let least = (0..200).map(time).min().unwrap_or_default();
        println!("{name}: {:.1} ns", least as f64 / f64::from(count));
    }
    fn pair(name: &str) {
        least(name, 10_000, || (0..10_000_u64).for_each(|i| drop(black_box(Box::new(i)))));
    }
    let layout = Layout::new::<u64>();
    least("system", 10_000, || {
        for _ in 0..10_000 {
            // SAFETY: allocated and freed with the same layout.
            unsafe {
                let block = System.alloc(layout);
                System.dealloc(black_box(block), layout);
            }
        }
    });
    pair("outside tasks");
    runtime(u64::MAX).run(|_| pair("in a task with infinite memory")).unwrap();
    runtime(8 << 20).run(|_| pair("in a task with a budget")).unwrap();
    let many = |_: &Cx| (0..1000).map(Box::new).collect::<Vec<Box<u64>>>();
    runtime(8 << 20)
        .run(|cx| {
            least("freed by another", 1000, || {
                drop(cx.nursery(|n| n.spawn(many).join(cx)).unwrap());
            });
            least("freed by itself", 1000, || {
                cx.nursery(|n| n.spawn(|cx| drop(many(cx))).join(cx)).unwrap();
            });
            least("spawn, one pair, join", 1000, || {
                for _ in 0..1000 {
                    cx.nursery(|n| n.spawn(|_| drop(black_box(Box::new(1_u64)))).join(cx)).unwrap();
                }
            });
            least("spawn, join", 1000, || {
                for _ in 0..1000 {
                    cx.nursery(|n| n.spawn(|_| ()).join(cx)).unwrap();
                }
            });
        })
        .unwrap();
}
