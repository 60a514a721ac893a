//! J-07, J-08, J-15: workers run every task exactly once, sleep without missing a wake-up, steal, and are replaced when they
//! panic.

use janus::{Config, Cx, MAX_WORKERS, NurseryOptions, Runtime, RuntimeError, Strategy, TaskError, channel};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

fn make(config: Config) -> Result<Runtime, RuntimeError> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config) }
}

fn runtime(config: Config) -> Runtime {
    make(config).expect("a runtime")
}

#[test]
fn as_many_workers_as_cpus_by_default() {
    let rt = runtime(Config::new().pinned().watchdog(None));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(rt.stats().workers.len(), cpus);
}

#[test]
fn no_workers_and_too_many_are_refused() {
    assert!(matches!(make(Config::new().workers(0)), Err(RuntimeError::NoWorkers)));
    let many = MAX_WORKERS + 1;
    let refused = make(Config::new().workers(many));
    assert!(matches!(refused, Err(RuntimeError::TooManyWorkers(n)) if n == many));
}

/// More tasks are ready than a worker's rings hold, and each is ready again at once: they take turns.
#[test]
fn tasks_that_no_ring_has_room_for_are_not_overtaken() {
    const TASKS: u64 = 6000;
    let rt = runtime(Config::new().pinned().workers(1).watchdog(None));
    // Turns of all tasks so far, and the most of them that one task saw between two of its own.
    let (all, longest) = (&AtomicU64::new(0), &AtomicU64::new(0));
    rt.run(|cx| {
        let (open, gate) = channel::<()>(0);
        let gate = &gate;
        cx.nursery_with(janus::NurseryOptions::new().share(janus::Budget::UNLIMITED), |n| {
            for _ in 0..TASKS {
                let turns = move |cx: &Cx| {
                    assert!(gate.recv(cx).is_err());
                    let mut last = all.load(Ordering::Relaxed);
                    while last < 40 * TASKS {
                        cx.yield_now().unwrap();
                        let now = all.fetch_add(1, Ordering::Relaxed);
                        longest.fetch_max(now - last, Ordering::Relaxed);
                        last = now;
                    }
                };
                drop(n.spawn(turns));
            }
            // They all have begun, and wait: nobody has anything to run but this task.
            cx.sleep(Duration::from_millis(1)).unwrap();
            drop(open);
            Ok(())
        })
    })
    .unwrap()
    .unwrap();
    let longest = longest.load(Ordering::Relaxed);
    assert!(longest < 3 * TASKS, "{longest} turns of {TASKS} others between two of one task's own");
}

#[test]
fn on_256_workers_each_of_a_million_tasks_runs_once() {
    const TASKS: usize = 1_000_000;
    const SPAWNERS: usize = 100;
    let rt = runtime(Config::new().workers(256));
    let ran: Vec<AtomicU8> = (0..TASKS).map(|_| AtomicU8::new(0)).collect();
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            for spawner in 0..SPAWNERS {
                let ran = &ran;
                let task = n.task().budget(janus::Budget::UNLIMITED).stack(janus::StackClass::Small);
                let child = task.spawn(move |cx: &Cx| {
                    let children = cx.nursery(|n| {
                        for i in (spawner..TASKS).step_by(SPAWNERS) {
                            let child = n.spawn(move |cx| {
                                if i % 64 == 0 {
                                    cx.yield_now().expect("nobody cancels");
                                }
                                ran[i].fetch_add(1, Ordering::Relaxed);
                            });
                            drop(child);
                        }
                        Ok(())
                    });
                    children.expect("all end well");
                });
                drop(child);
            }
            Ok(())
        })
    });
    assert!(matches!(result, Ok(Ok(()))), "{result:?}");
    assert!(ran.iter().all(|times| times.load(Ordering::Relaxed) == 1));
    assert_eq!(rt.stats().total.completed, (TASKS + SPAWNERS + 1) as u64);
}

#[test]
fn a_worker_that_panics_is_replaced_and_loses_no_task() {
    for config in [Config::new().pinned(), Config::new()] {
        let workers = 2;
        let rt = runtime(config.workers(workers));
        let (completed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let rounds = 300;
        for round in 0..rounds {
            let result = rt.run(|cx| {
                let children = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                    let mut handles = Vec::new();
                    for _ in 0..20 {
                        let child = n.spawn(|cx| {
                            for _ in 0..5 {
                                cx.yield_now().expect("nobody cancels");
                            }
                        });
                        handles.push(child);
                    }
                    rt.panic_worker(round % workers);
                    for handle in handles {
                        match handle.join(cx) {
                            Ok(()) => completed.fetch_add(1, Ordering::Relaxed),
                            Err(TaskError::WorkerPanic) => failed.fetch_add(1, Ordering::Relaxed),
                            Err(other) => panic!("{other:?}"),
                        };
                    }
                    Ok(())
                });
                assert!(matches!(children, Ok(()) | Err(TaskError::WorkerPanic)), "{children:?}");
            });
            // The main task itself may have been the one in hand.
            assert!(matches!(result, Ok(()) | Err(RuntimeError::Task(TaskError::WorkerPanic))), "{result:?}");
        }
        let main_failed = rounds * 20 - completed.load(Ordering::Relaxed) - failed.load(Ordering::Relaxed);
        assert_eq!(main_failed % 20, 0, "all children of a round are accounted for, or it never began");
        assert!(completed.load(Ordering::Relaxed) > rounds * 10, "most tasks complete");
        for _ in 0..2000 {
            if rt.stats().total.worker_panics > 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(rt.stats().total.worker_panics > 0, "workers did panic");
        // Each worker may still owe one panic, with this very task in hand.
        let after: Vec<_> = (0..=workers).map(|_| rt.run(|_| 7)).collect();
        assert!(after.iter().any(|result| matches!(result, Ok(7))), "work goes on: {after:?}");
    }
}

#[test]
fn every_strategy_completes_and_balances() {
    for strategy in [Strategy::RandomVictim, Strategy::RoundRobin, Strategy::LeastLoaded] {
        for config in [Config::new().pinned(), Config::new()] {
            let rt = runtime(config.workers(4).strategy(strategy).watchdog(None));
            let threads = Mutex::new(HashSet::new());
            let (done, looks) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    for _ in 0..400 {
                        let child = n.spawn(|_| {
                            threads.lock().expect("nobody panics").insert(std::thread::current().id());
                            // A host that gives the other threads no CPU for a while must not make this one do all.
                            while threads.lock().expect("nobody panics").len() < 3
                                && looks.fetch_add(1, Ordering::Relaxed) < 20_000
                            {
                                std::thread::sleep(Duration::from_micros(200));
                            }
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                        drop(child);
                    }
                    Ok(())
                })
            });
            assert!(matches!(result, Ok(Ok(()))), "{strategy:?}: {result:?}");
            assert_eq!(done.into_inner(), 400, "{strategy:?}");
            let busy = rt.stats().workers[..4].iter().filter(|worker| worker.completed > 0).count();
            assert!(busy >= 3, "{strategy:?}: {busy} of 4 workers did something");
            assert!(threads.into_inner().expect("nobody panics").len() >= 3, "{strategy:?}");
            assert!(rt.stats().total.tasks_stolen > 0, "{strategy:?}");
        }
    }
}

#[test]
fn a_worker_that_may_not_steal_does_not() {
    let rt = runtime(Config::new().workers(2).watchdog(None));
    assert!(rt.set_steal_enabled(0, false) && rt.set_steal_enabled(1, false));
    assert!(!rt.set_steal_enabled(2, false), "there is no such worker");
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            (0..1000).for_each(|_| drop(n.spawn(|_| ())));
            Ok(())
        })
    });
    assert!(matches!(result, Ok(Ok(()))), "{result:?}");
    assert_eq!(rt.stats().total.tasks_stolen, 0);
}

#[test]
fn a_task_just_spawned_is_stolen_while_its_parent_spins() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = runtime(config.workers(2).watchdog(None));
        for _ in 0..50 {
            let result = rt.run(|cx| {
                let ran = AtomicBool::new(false);
                let children = cx.nursery(|n| {
                    drop(n.spawn(|_| ran.store(true, Ordering::Release)));
                    while !ran.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    Ok(())
                });
                children.is_ok()
            });
            assert!(result.expect("the main task"));
        }
    }
}

#[test]
fn tasks_of_many_threads_all_run() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = runtime(config.workers(2));
        let sum = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (rt, sum) = (&rt, &sum);
                scope.spawn(move || {
                    for i in 0..200 {
                        let value = rt.run(|cx| {
                            cx.yield_now().expect("nobody cancels");
                            thread * 1000 + i
                        });
                        sum.fetch_add(value.expect("a task"), Ordering::Relaxed);
                    }
                });
            }
        });
        let expected: u64 = (0..8).map(|thread| (0..200).map(|i| thread * 1000 + i).sum::<u64>()).sum();
        assert_eq!(sum.into_inner(), expected);
        assert_eq!(rt.stats().total.completed, 1600);
    }
}

#[test]
fn no_wake_up_is_lost_on_an_idle_runtime() {
    for config in [Config::new().pinned(), Config::new()] {
        for workers in [1, 2, 4] {
            // No watchdog: it would fire what a worker missed.
            let rt = runtime(config.clone().workers(workers).watchdog(None));
            let mut random = 88_172_645_463_325_252_u64;
            for round in 0..200_u64 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Now and then they are all asleep for good, mostly they are just about to be.
                let pause = if round % 50 == 0 { 8000 } else { random % 300 };
                std::thread::sleep(Duration::from_micros(pause));
                assert_eq!(rt.run(move |_| round).expect("a task"), round);
                // And a started one that must be woken where it is.
                let (tx, rx) = channel::<u64>(0);
                std::thread::scope(|scope| {
                    scope.spawn(move || tx.send_blocking(round).expect("somebody receives"));
                    assert_eq!(rt.run(|cx| rx.recv(cx).expect("somebody sends")).expect("a task"), round);
                });
            }
            assert!(rt.stats().total.parks > 0);
        }
    }
}

#[test]
fn local_work_does_not_starve_the_common_queue() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = Arc::new(runtime(config.workers(1)));
        let (stop, spinning) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let local = {
            let (rt, stop, spinning) = (rt.clone(), stop.clone(), spinning.clone());
            std::thread::spawn(move || {
                rt.run(|cx| {
                    cx.nursery(|n| {
                        for _ in 0..4 {
                            let child = n.task().budget(janus::Budget::UNLIMITED).spawn(|cx| {
                                while !stop.load(Ordering::Relaxed) {
                                    spinning.store(true, Ordering::Relaxed);
                                    cx.yield_now().expect("nobody cancels");
                                }
                            });
                            drop(child);
                        }
                        Ok(())
                    })
                    .is_ok()
                })
            })
        };
        while !spinning.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for i in 0..50 {
            assert_eq!(rt.run(move |_| i).expect("it gets its turn"), i);
        }
        assert!(!stop.swap(true, Ordering::Relaxed));
        assert!(local.join().expect("a thread").expect("a task"));
    }
}

/// How many of `tasks` tasks that yield saw more than one thread.
fn moved(rt: &Runtime, tasks: usize) -> usize {
    let moved = AtomicUsize::new(0);
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            for _ in 0..tasks {
                let child = n.spawn(|cx| {
                    let first: ThreadId = std::thread::current().id();
                    let mut elsewhere = false;
                    for turn in 0..20 {
                        if turn == 10 {
                            cx.sleep(Duration::from_micros(50)).expect("nobody cancels");
                        }
                        cx.yield_now().expect("nobody cancels");
                        elsewhere |= std::thread::current().id() != first;
                    }
                    moved.fetch_add(usize::from(elsewhere), Ordering::Relaxed);
                });
                drop(child);
            }
            Ok(())
        })
    });
    assert!(matches!(result, Ok(Ok(()))), "{result:?}");
    moved.into_inner()
}

#[test]
fn started_tasks_stay_with_their_thread_by_default() {
    // 5,000 are more than a worker's own queues hold.
    for tasks in [20, 5000] {
        for workers in [2, 4] {
            assert_eq!(
                moved(&runtime(Config::new().pinned().workers(workers)), tasks),
                0,
                "{tasks} on {workers}"
            );
        }
    }
}

#[test]
fn started_tasks_move_by_default() {
    let rt = runtime(Config::new().workers(4));
    assert!((0..20).any(|_| moved(&rt, 2000) > 0));
}

/// Both workers sleep, one of them until the timer. Whichever is woken gets into a task that does not check: the other one,
/// which has nothing else to do, keeps the time.
#[test]
fn a_timer_rings_though_who_kept_the_time_is_busy() {
    for _ in 0..5 {
        // Nobody else looks at the clock.
        let rt = runtime(Config::new().workers(2).watchdog(None));
        let rang = AtomicBool::new(false);
        let (tx, rx) = channel::<()>(0);
        let in_time = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Longer than all naps: both sleep for good.
                std::thread::sleep(Duration::from_millis(50));
                tx.send_blocking(()).expect("somebody receives");
            });
            rt.run(|cx| {
                cx.nursery(|n| {
                    let hog = n.spawn(|cx| {
                        rx.recv(cx).expect("somebody sends");
                        let start = Instant::now();
                        while !rang.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(20) {
                            std::hint::spin_loop();
                        }
                        rang.load(Ordering::Relaxed)
                    });
                    let sleeper = n.spawn(|cx| {
                        cx.sleep(Duration::from_millis(100)).expect("nobody cancels");
                        rang.store(true, Ordering::Relaxed);
                    });
                    drop(sleeper);
                    Ok(hog.join(cx).expect("it returns"))
                })
            })
        });
        assert!(matches!(in_time, Ok(Ok(true))), "{in_time:?}");
    }
}
