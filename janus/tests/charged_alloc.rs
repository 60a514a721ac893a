//! `janus::Charged` installed: what tasks allocate is charged to their memory, and credited when it is freed.

use janus::{
    Budget, ChargeError, Charged, Config, Cx, NurseryOptions, Profile, Recharge, Resource, Runtime,
    RuntimeError, SpawnError, TaskError, channel,
};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: Charged = Charged::new();

const MEMORY: u64 = 8 << 20;
const KIB: u64 = 1 << 10;
/// What a task may allocate beyond its budget.
const RESERVE: u64 = 64 * KIB;

/// A runtime whose main task has `memory` bytes.
fn runtime(workers: usize, memory: u64) -> Runtime {
    let budget = Budget { memory, ..Budget::UNLIMITED };
    let config = Config::new().workers(workers).root_budget(budget).memory_reserve(RESERVE);
    // No task here is a hog for long enough to matter, and reports allocate.
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config.watchdog(None)) }.unwrap()
}

fn left(cx: &Cx) -> u64 {
    cx.budget().memory
}

/// A child with so much memory, and enough of the rest.
fn budget(memory: u64) -> Budget {
    Budget { memory, ops: 10_000_000, channel_ops: 1_000_000, ..Budget::ZERO }
}

/// Fails unless the task ended because its memory was used up.
fn exceeded<T: std::fmt::Debug>(end: Result<T, TaskError>) {
    assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Memory))), "{end:?}");
}

fn manual() -> NurseryOptions {
    NurseryOptions::new().recharge(Recharge::Manual)
}

#[test]
fn live_bytes_are_charged_exactly() {
    runtime(1, MEMORY)
        .run(|cx| {
            let start = left(cx);
            assert_eq!(start, MEMORY);
            let boxed = black_box(Box::new([1_u8; 1000]));
            assert_eq!(left(cx), start - 1000);
            let mut vec: Vec<u64> = Vec::with_capacity(10);
            assert_eq!(left(cx), start - 1000 - 80);
            vec.extend(0..11);
            assert_eq!(left(cx), start - 1000 - 8 * vec.capacity() as u64);
            for i in 0..10_000 {
                vec.push(i);
                assert_eq!(left(cx), start - 1000 - 8 * vec.capacity() as u64);
            }
            vec.truncate(100);
            vec.shrink_to_fit();
            assert_eq!(left(cx), start - 1000 - 800);
            assert_eq!(vec[99], 88);
            drop(boxed);
            assert_eq!(left(cx), start - 800);
            let mut text = String::from("abc");
            assert_eq!(left(cx), start - 803);
            text.push_str(&"d".repeat(5000));
            assert_eq!(left(cx), start - 800 - text.capacity() as u64);
            drop((vec, text));
            assert_eq!(left(cx), start);
            // Nothing of no size is charged.
            let nothing = black_box((Box::new(()), vec![(); 1000], Vec::<u64>::new(), String::new()));
            assert_eq!(left(cx), start);
            drop(nothing);
            assert_eq!(left(cx), start);
        })
        .unwrap();
}

#[test]
fn an_allocation_costs_one_operation() {
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        cx.nursery(|n| {
            let child = n.task().budget(budget(KIB)).spawn(|cx| {
                let spent = |body: &dyn Fn()| {
                    let before = cx.budget().ops;
                    body();
                    before - cx.budget().ops
                };
                let unfuelled = spent(&|| drop(black_box(Box::new(1_u64))));
                cx.check().unwrap();
                let fuelled = spent(&|| (0..10).for_each(|i| drop(black_box(Box::new(i)))));
                (unfuelled, fuelled)
            });
            assert_eq!(child.join(cx).unwrap(), (1, 10));
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
}

#[test]
fn alignments() {
    runtime(1, MEMORY)
        .run(|cx| {
            let start = left(cx);
            for align in [1, 2, 8, 16, 32, 64, 256, 4096, 65536] {
                for size in [1_usize, 15, 16, 100, 5000] {
                    let layout = Layout::from_size_align(size, align).unwrap();
                    // SAFETY: the layouts are those of the blocks, and nothing is used after its end.
                    unsafe {
                        let block = alloc(layout);
                        assert_eq!(block.addr() % align, 0);
                        block.write_bytes(7, size);
                        assert_eq!(left(cx), start - size as u64);
                        let grown = realloc(block, layout, 3 * size);
                        assert_eq!(grown.addr() % align, 0);
                        assert!((0..size).all(|i| *grown.add(i) == 7));
                        assert_eq!(left(cx), start - 3 * size as u64);
                        let layout = Layout::from_size_align(3 * size, align).unwrap();
                        let shrunk = realloc(grown, layout, 1);
                        assert_eq!((shrunk.addr() % align, *shrunk, left(cx)), (0, 7, start - 1));
                        dealloc(shrunk, Layout::from_size_align(1, align).unwrap());
                        let zeroed = alloc_zeroed(layout);
                        assert!(
                            (0..3 * size).all(|i| *zeroed.add(i) == 0) && zeroed.addr().is_multiple_of(align)
                        );
                        dealloc(zeroed, layout);
                    }
                    assert_eq!(left(cx), start);
                }
            }
        })
        .unwrap();
}

/// Sizes that overflow with the header are refused, and cost nothing.
#[test]
fn absurd_sizes_outside_tasks_are_null() {
    assert!(Vec::<u8>::new().try_reserve_exact(isize::MAX as usize - 8).is_err());
    let mut vec = vec![1_u8; 100];
    assert!(vec.try_reserve_exact(isize::MAX as usize - 200).is_err());
    assert_eq!(vec, [1; 100]);
}

#[test]
fn freed_by_another_task() {
    let rt = runtime(2, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        let (send, receive) = channel::<Vec<u8>>(0);
        let (done, all_done) = channel::<()>(0);
        assert!(left(cx) < start, "channels are memory too");
        cx.nursery(|n| {
            let owner = n.task().budget(budget(64 * KIB)).spawn(move |cx| {
                let before = left(cx);
                send.send(cx, vec![1; 10_000]).unwrap();
                assert_eq!(left(cx), before - 10_000);
                send.send(cx, vec![2; 20_000]).unwrap();
                all_done.recv(cx).unwrap();
                assert_eq!(left(cx), before, "the other freed both");
            });
            let other = n.task().budget(budget(64 * KIB)).spawn(move |cx| {
                let before = left(cx);
                let first = receive.recv(cx).unwrap();
                let mut second = receive.recv(cx).unwrap();
                assert_eq!(left(cx), before);
                second.reserve_exact(10_000);
                assert_eq!(left(cx), before - 30_000, "who grows another's block pays for all of it");
                drop((first, second));
                assert_eq!(left(cx), before);
                done.send(cx, ()).unwrap();
            });
            owner.join(cx).unwrap();
            other.join(cx).unwrap();
            Ok(())
        })
        .unwrap();
        assert_eq!(left(cx), start, "the children have dropped the channels");
    })
    .unwrap();
}

#[test]
fn results_are_credited_to_the_parent() {
    let rt = runtime(2, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        let (kept, unwanted) = cx
            .nursery(|n| {
                let kept = n.spawn(|_| vec![1_u8; 100_000]).join(cx).unwrap();
                let unwanted = n.spawn(|_| vec![1_u8; 50_000]);
                drop(unwanted);
                assert_eq!(kept.len(), 100_000);
                Ok((kept, ()))
            })
            .unwrap();
        assert_eq!(left(cx), start - 100_000, "the child has ended, its result lives");
        drop((kept, unwanted));
        assert_eq!(left(cx), start);
        // The same out of a pool of the nursery's own: freed after it has ended.
        let pool = Budget { memory: 1 << 20, ..Budget::UNLIMITED };
        let kept = cx
            .nursery_with(NurseryOptions::new().pool(pool), |n| {
                assert_eq!(left(cx), start - (1 << 20));
                let kept = n.spawn(|_| vec![1_u8; 100_000]).join(cx).unwrap();
                let short = n.spawn(|_| vec![1_u8; 30_000]).join(cx).unwrap();
                assert_eq!(n.pool().memory, (1 << 20) - 130_000);
                drop(short);
                assert_eq!(n.pool().memory, (1 << 20) - 100_000, "the pool is open: it is credited");
                Ok(kept)
            })
            .unwrap();
        assert_eq!(left(cx), start - 100_000);
        drop(kept);
        assert_eq!(left(cx), start, "the pool has ended: its opener is credited");
    })
    .unwrap();
}

/// Through several generations: the grandchild's block is freed when only the grandparent is left.
#[test]
fn credits_climb_the_chain() {
    let rt = runtime(2, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        let kept = cx
            .nursery(|n| {
                let child = n.task().children(5).budget(budget(1 << 20)).spawn(|cx| {
                    let pool = Budget { spawn_count: 2, ..budget(400 * KIB) }.with(Resource::Ops, 100_000);
                    cx.nursery_with(NurseryOptions::new().pool(pool), |n| {
                        Ok(n.spawn(|_| vec![3_u8; 77_000]).join(cx).unwrap())
                    })
                    .unwrap()
                });
                Ok(child.join(cx).unwrap())
            })
            .unwrap();
        assert_eq!(left(cx), start - 77_000);
        drop(kept);
        assert_eq!(left(cx), start);
    })
    .unwrap();
}

/// By a thread that knows nothing of the runtime: while the task lives, after it ended, after its nursery ended, and
/// after the runtime is gone.
#[test]
fn freed_by_a_foreign_thread() {
    static SLOT: Mutex<Option<Vec<u8>>> = Mutex::new(None);
    static FREED: AtomicU64 = AtomicU64::new(0);
    static GONE: AtomicBool = AtomicBool::new(false);
    let thread = std::thread::spawn(|| {
        while FREED.load(Ordering::Acquire) < 3 {
            if let Some(block) = SLOT.lock().unwrap().take() {
                drop(block);
                FREED.fetch_add(1, Ordering::AcqRel);
            }
            std::thread::yield_now();
        }
        // The fourth lives longer than the runtime.
        while !GONE.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        SLOT.lock().unwrap().take().unwrap().len()
    });
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        let pass = |block: Vec<u8>, freed: u64| {
            *SLOT.lock().unwrap() = Some(block);
            while FREED.load(Ordering::Acquire) < freed {
                std::thread::yield_now();
            }
        };
        let start = left(cx);
        pass(vec![1; 50_000], 1);
        assert_eq!(left(cx), start, "the task lives");
        cx.nursery_with(NurseryOptions::new().pool(Budget { memory: 1 << 20, ..Budget::UNLIMITED }), |n| {
            let [second, third, last] =
                n.spawn(|_| [40_000, 30_000, 20_000].map(|size| vec![2_u8; size])).join(cx).unwrap();
            assert_eq!(n.pool().memory, (1 << 20) - 90_000);
            pass(second, 2);
            assert_eq!(n.pool().memory, (1 << 20) - 50_000, "the task has ended, its nursery is open");
            Ok((third, last))
        })
        .map(|(third, last)| {
            assert_eq!(left(cx), start - 50_000);
            pass(third, 3);
            assert_eq!(left(cx), start - 20_000, "the nursery has ended, its opener lives");
            *SLOT.lock().unwrap() = Some(last);
        })
        .unwrap();
    })
    .unwrap();
    drop(rt);
    GONE.store(true, Ordering::Release);
    assert_eq!(thread.join().unwrap(), 20_000);
}

#[test]
fn leak_and_respawn_exhausts_the_pool() {
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        let pool = Budget { memory: 100 * KIB, ..Budget::UNLIMITED };
        cx.nursery_with(manual().pool(pool), |n| {
            for round in 1..=10 {
                let child =
                    n.task().budget(budget(10 * KIB)).spawn(|_| std::mem::forget(vec![1_u8; 10 * 1024]));
                child.join(cx).unwrap();
                assert_eq!(n.pool().memory, (100 - 10 * round) * KIB);
            }
            let eleventh = n.task().budget(budget(1)).try_spawn(|_| ());
            assert_eq!(eleventh.map(drop).unwrap_err(), SpawnError::MemoryBudgetExhausted);
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
}

#[test]
fn the_pool_helps() {
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        let options = NurseryOptions::new().share(budget(10 * KIB)).recharge(Recharge::FromPool);
        let start = left(cx);
        cx.nursery_with(options, |n| {
            let child = n.spawn(|cx| {
                let large = vec![1_u8; 1 << 20];
                let before = left(cx);
                assert_eq!(cx.can_allocate(16 << 20), Err(ChargeError::MemoryBudgetExhausted));
                assert_eq!(left(cx), before, "what does not suffice stays in the pool");
                assert_eq!(cx.can_allocate(1 << 20), Ok(()));
                assert!(!cx.is_cancelled());
                large.len()
            });
            assert_eq!(child.join(cx).unwrap(), 1 << 20);
            Ok(())
        })
        .unwrap();
        assert_eq!(left(cx), start, "an absurd question does not keep the pool");
    })
    .unwrap();
}

#[test]
fn an_overdraft_ends_at_the_next_check() {
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        let (dropped, went_on) = (AtomicBool::new(false), AtomicBool::new(false));
        struct Note<'a>(&'a AtomicBool);
        impl Drop for Note<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let result = cx.nursery_with(manual(), |n| {
            let child = n.task().budget(budget(10 * KIB)).spawn(|cx| {
                let _note = Note(&dropped);
                let fits = vec![1_u8; 8 * 1024];
                // It has a quantum in hand, but the very next check finds out nevertheless.
                assert!(cx.check().is_ok() && cx.ops_in_hand() > 0);
                let beyond = vec![1_u8; 60 * 1024];
                let cancelled = cx.check().is_err();
                assert!(cx.is_cancelled());
                went_on.store(cancelled, Ordering::Relaxed);
                fits.len() + beyond.len()
            });
            exceeded(child.join(cx));
            Ok(())
        });
        assert!(matches!(result, Err(TaskError::BudgetExceeded(Resource::Memory))));
        assert!(dropped.load(Ordering::Relaxed) && went_on.load(Ordering::Relaxed));
        assert_eq!(left(cx), start, "an overdraft is neither kept nor given back");
    })
    .unwrap();
}

#[test]
fn beyond_the_reserve_a_task_is_given_up_on_the_spot() {
    for workers in [1, 2] {
        let rt = runtime(workers, MEMORY);
        static AFTER: AtomicBool = AtomicBool::new(false);
        let after = &AFTER;
        rt.run(|cx| {
            let start = left(cx);
            let rounds = AtomicU64::new(0);
            let result = cx.nursery_with(manual().keep_going(), |n| {
                let sibling = n.task().budget(budget(100 * KIB)).spawn(|cx| {
                    for _ in 0..200 {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        drop(black_box(vec![1_u8; 100]));
                        cx.yield_now().unwrap();
                    }
                });
                let mut ends = Vec::new();
                for _ in 0..20 {
                    ends.push(n.task().budget(budget(10 * KIB)).owned().spawn(move |_| {
                        let mut all = Vec::new();
                        loop {
                            all.push(black_box(vec![1_u8; 1000]));
                            if all.len() > 1000 {
                                after.store(true, Ordering::Relaxed);
                                return;
                            }
                        }
                    }));
                }
                ends.into_iter().for_each(|end| exceeded(end.join(cx)));
                // At once, and far beyond; also where the program would have coped.
                let absurd = n.task().budget(budget(10 * KIB)).owned().spawn(move |_| {
                    let refused = Vec::<u8>::new().try_reserve_exact(1 << 40).is_err();
                    after.store(true, Ordering::Relaxed);
                    refused
                });
                exceeded(absurd.join(cx));
                sibling.join(cx).unwrap();
                Ok(())
            });
            assert!(matches!(result, Err(TaskError::BudgetExceeded(Resource::Memory))));
            assert!(!after.load(Ordering::Relaxed));
            assert_eq!(rounds.load(Ordering::Relaxed), 200);
            let lost = start - left(cx);
            assert!((20 * 9000..=20 * 10 * KIB).contains(&lost), "what was abandoned stays missing: {lost}");
        })
        .unwrap();
    }
}

/// The children of an abandoned task, which may use its frames, stand still before it ends; their pool goes back to where
/// it came from.
#[test]
fn a_given_up_parent_waits_for_its_children() {
    let rt = runtime(2, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        static TURNS: AtomicU64 = AtomicU64::new(0);
        static ENDED: AtomicBool = AtomicBool::new(false);
        let result = cx.nursery_with(manual().keep_going(), |n| {
            let parent = n.task().children(4).budget(budget(200 * KIB)).owned().spawn(|cx| {
                let local = AtomicU64::new(1);
                let pool = Budget { memory: 50 * KIB, ops: 1_000_000, spawn_count: 2, ..Budget::ZERO };
                let _ = cx.nursery_with(NurseryOptions::new().keep_going().pool(pool), |n| {
                    let child = n.spawn(|cx| {
                        while !cx.is_cancelled() {
                            TURNS.store(local.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                            let _ = cx.yield_now();
                        }
                        ENDED.store(true, Ordering::Relaxed);
                    });
                    drop(child);
                    while local.load(Ordering::Relaxed) < 10 {
                        cx.yield_now().unwrap();
                    }
                    drop(black_box(vec![1_u8; 1 << 20]));
                    Ok(())
                });
            });
            exceeded(parent.join(cx));
            let turns = TURNS.load(Ordering::Relaxed);
            (0..100).for_each(|_| cx.yield_now().unwrap());
            assert_eq!(TURNS.load(Ordering::Relaxed), turns, "it runs on");
            Ok(())
        });
        assert!(result.is_err());
        assert!(!ENDED.load(Ordering::Relaxed) && TURNS.load(Ordering::Relaxed) >= 9);
        assert_eq!(
            left(cx),
            start,
            "nothing was allocated, and the pool of an abandoned nursery is not lost"
        );
    })
    .unwrap();
}

#[test]
fn the_main_task_too() {
    let budget = Budget { memory: 10 * KIB, ..Budget::UNLIMITED };
    // Without supervision the pool of `Runtime::run` would recharge it, for ever.
    let config = Config::new().workers(1).root_budget(budget).profile(Profile::Cluster);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(config.memory_reserve(RESERVE)) }.unwrap();
    let end = rt.run_owned(|_| drop(black_box(vec![1_u8; 1 << 20])));
    assert!(matches!(end, Err(RuntimeError::Task(TaskError::BudgetExceeded(Resource::Memory)))), "{end:?}");
    assert_eq!(rt.run(|_| 42).unwrap(), 42, "the runtime goes on");
}

/// Panics print, format and unwind with a budget that has no room for any of it. The worker's count of panics stays
/// right: a later task does not think that it unwinds.
#[test]
fn panics_under_a_tiny_budget() {
    let rt = runtime(1, MEMORY);
    rt.run(|cx| {
        let start = left(cx);
        for memory in [1, 16, 100, 1000] {
            let result = cx.nursery_with(manual(), |n| {
                let child = n.task().budget(budget(memory)).spawn(move |_| -> u64 {
                    panic!("a task with {memory} bytes panicked, as it should");
                });
                let end = child.join(cx);
                let budget = matches!(end, Err(TaskError::BudgetExceeded(Resource::Memory)));
                let text = matches!(&end, Err(TaskError::Panicked(text)) if text.starts_with("a task with"));
                assert!(budget || text, "{end:?}");
                Ok(())
            });
            assert!(result.is_err());
            // While a task unwinds it is not stopped, whatever its destructors allocate.
            struct Greedy<'a>(&'a AtomicU64);
            impl Drop for Greedy<'_> {
                fn drop(&mut self) {
                    (0..10).for_each(|_| drop(black_box(vec![1_u8; 100_000])));
                    self.0.fetch_add(1, Ordering::Relaxed);
                }
            }
            let dropped = AtomicU64::new(0);
            let result = cx.nursery_with(manual(), |n| {
                let child = n.task().budget(budget(memory)).spawn(|_| {
                    let _greedy = Greedy(&dropped);
                    panic!("with a greedy destructor");
                });
                exceeded(child.join(cx));
                Ok(())
            });
            assert!(result.is_err());
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
            let calm = cx.nursery(|n| n.spawn(|_| std::thread::panicking()).join(cx));
            assert!(!calm.unwrap());
        }
        assert_eq!(left(cx), start);
    })
    .unwrap();
}

/// Random blocks go from hand to hand between many tasks, some of which end early, and a foreign thread; at the end every
/// meter is back where it was.
#[test]
fn stress() {
    const TASKS: u64 = 16;
    const ROUNDS: u64 = 7000;
    let rt = runtime(4, 256 << 20);
    // All that the exchange needs is there before anything is measured.
    let shelf: Vec<Mutex<Option<Vec<u8>>>> = (0..64).map(|_| Mutex::new(None)).collect();
    let stop = AtomicBool::new(false);
    let give_up = Instant::now() + Duration::from_secs(50);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while Instant::now() < give_up && !stop.load(Ordering::Relaxed) {
                for place in &shelf {
                    drop(place.lock().unwrap().take());
                }
            }
        });
        rt.run(|cx| {
            let start = left(cx);
            let pool = Budget { memory: 64 << 20, ..Budget::UNLIMITED };
            cx.nursery_with(NurseryOptions::new().pool(pool), |n| {
                for generation in 0..4 {
                    for seed in 0..TASKS {
                        let shelf = &shelf;
                        let child = n.task().budget(budget(2 << 20)).spawn(move |cx| {
                            let mut random = (seed + 1) * 0x9E37_79B9 + generation;
                            for _ in 0..ROUNDS / 4 {
                                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                                let (place, size) = ((random >> 33) % 64, (random >> 40) % 5000);
                                let mut block = vec![1_u8; size as usize];
                                if random >> 62 == 0 {
                                    block.reserve(3000);
                                }
                                let other = shelf[place as usize].lock().unwrap().replace(block);
                                if let Some(mut other) = other
                                    && random >> 61 & 1 == 0
                                {
                                    other.shrink_to(size as usize / 2);
                                    other.resize(size as usize, 2);
                                }
                                cx.check().unwrap();
                            }
                        });
                        drop(child);
                    }
                    while n.live() > 8 {
                        cx.yield_now().unwrap();
                    }
                }
                Ok(())
            })
            .unwrap();
            shelf.iter().for_each(|place| drop(place.lock().unwrap().take()));
            stop.store(true, Ordering::Relaxed);
            // The foreign thread may be about to credit what it just took.
            let patience = Instant::now() + Duration::from_secs(5);
            while left(cx) != start && Instant::now() < patience {
                cx.yield_now().unwrap();
            }
            assert_eq!(left(cx), start);
        })
        .unwrap();
    });
}
