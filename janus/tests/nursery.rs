//! Evidence for J-09 (nurseries: closing, first error, results only to the parent) and J-15 (typed errors).

mod common;

use common::{everywhere, moving, on, within};
use janus::{Budget, Cx, NurseryOptions, Recharge, RuntimeError, SpawnError, TaskError, TaskState, channel};
use std::error::Error;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, PartialEq)]
struct Sour(u32);

impl fmt::Display for Sour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sour {}", self.0)
    }
}

impl Error for Sour {}

#[test]
fn children_borrow_from_the_scope_and_results_come_by_their_handles() {
    everywhere(|rt| {
        let numbers: Vec<u64> = (0..1000).collect();
        let counter = AtomicU64::new(0);
        let sums = rt.run(|cx| {
            cx.nursery(|n| {
                let chunks = numbers.chunks(100).map(|chunk| {
                    let counter = &counter;
                    n.spawn(move |_| {
                        counter.fetch_add(1, Ordering::Relaxed);
                        chunk.iter().sum::<u64>()
                    })
                });
                let handles: Vec<_> = chunks.collect();
                Ok(handles.into_iter().map(|handle| handle.join(cx).unwrap()).collect::<Vec<u64>>())
            })
            .unwrap()
        });
        assert_eq!(sums.unwrap().iter().sum::<u64>(), 499_500);
        assert_eq!(counter.load(Ordering::Relaxed), 10);
    });
}

#[test]
fn a_nursery_ends_only_after_all_its_children() {
    everywhere(|rt| {
        for _ in 0..20 {
            let done = AtomicUsize::new(0);
            rt.run(|cx| {
                cx.nursery(|n| {
                    for _ in 0..50 {
                        let body = |cx: &Cx| {
                            (0..3).for_each(|_| cx.yield_now().unwrap());
                            done.fetch_add(1, Ordering::Relaxed);
                        };
                        drop(n.spawn(body));
                    }
                    Ok(())
                })
                .unwrap();
                assert_eq!(done.load(Ordering::Relaxed), 50);
            })
            .unwrap();
        }
    });
}

#[test]
fn the_first_error_is_the_nurserys_and_the_others_go_on() {
    on(2, |cx| {
        let done = AtomicUsize::new(0);
        let result = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
            let (tx, rx) = channel::<()>(0);
            let first = n.spawn_try(|_| -> Result<(), Sour> { Err(Sour(1)) });
            let first = first.join(cx).unwrap_err();
            // The handle gets the error, and the nursery too.
            let TaskError::Failed(error) = first else { panic!("{first}") };
            assert_eq!(error.downcast_ref::<Sour>(), Some(&Sour(1)));
            drop(n.spawn_try(|_| -> Result<(), Sour> { Err(Sour(2)) }));
            drop(n.spawn(|_| panic!("on purpose")));
            drop(n.spawn(move |cx| rx.recv(cx).map(|()| done.fetch_add(1, Ordering::Relaxed))));
            tx.send(cx, ()).unwrap();
            Ok(())
        });
        match result {
            Err(TaskError::Failed(error)) => {
                assert_eq!(error.downcast_ref::<Sour>(), Some(&Sour(1)));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_panic_is_caught_and_its_message_kept() {
    everywhere(|rt| {
        rt.run(|cx| {
            let result = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                let text = n.spawn(|_| -> u8 { panic!("plain text") });
                let formatted = n.spawn(|_| -> u8 { panic!("number {}", 7) });
                let other = n.spawn(|_| -> u8 { std::panic::panic_any(42_u32) });
                for (handle, message) in [(text, "plain text"), (formatted, "number 7")] {
                    let error = handle.join(cx).unwrap_err();
                    assert!(matches!(&error, TaskError::Panicked(m) if m == message), "{error}");
                    assert_eq!(error.code(), -2);
                }
                assert!(matches!(other.join(cx), Err(TaskError::Panicked(_))));
                // The workers are as before.
                Ok(n.spawn(|_| 5).join(cx).unwrap())
            });
            assert!(matches!(result, Err(TaskError::Panicked(_))), "{result:?}");
        })
        .unwrap();
        let error = rt.run(|_| panic!("main")).unwrap_err();
        assert!(matches!(&error, RuntimeError::Task(TaskError::Panicked(m)) if m == "main"), "{error}");
        assert_eq!(rt.run(|_| 1).unwrap(), 1);
    });
}

#[test]
fn a_panic_of_the_body_cancels_the_children_and_goes_on_after_they_ended() {
    everywhere(|rt| {
        let ended = AtomicUsize::new(0);
        let error = rt.run(|cx| {
            let _: Result<(), _> = cx.nursery(|n| {
                for _ in 0..5 {
                    let body = |cx: &Cx| {
                        let end = cx.sleep(std::time::Duration::from_secs(3600));
                        assert!(end.is_err());
                        ended.fetch_add(1, Ordering::Relaxed);
                    };
                    let child = n.spawn(body);
                    common::until(cx, || child.state() == TaskState::Blocked);
                }
                panic!("the body")
            });
            unreachable!("the panic goes on");
        });
        let error = error.unwrap_err();
        assert!(matches!(&error, RuntimeError::Task(TaskError::Panicked(m)) if m == "the body"), "{error}");
        assert_eq!(ended.load(Ordering::Relaxed), 5);
    });
}

#[test]
fn cancel_on_error_ends_the_siblings() {
    everywhere(|rt| {
        let result = rt.run(|cx| {
            let cancelled = AtomicUsize::new(0);
            let result = cx.nursery_with(NurseryOptions::new(), |n| {
                for _ in 0..5 {
                    let wait = |cx: &Cx| {
                        let end = cx.sleep(std::time::Duration::from_secs(3600));
                        cancelled.fetch_add(usize::from(end.is_err()), Ordering::Relaxed);
                    };
                    let child = n.spawn(wait);
                    common::until(cx, || child.state() == TaskState::Blocked);
                }
                drop(n.spawn_try(|_| -> Result<(), Sour> { Err(Sour(3)) }));
                Ok(())
            });
            (result, cancelled.load(Ordering::Relaxed))
        });
        let (result, cancelled) = result.unwrap();
        assert_eq!(cancelled, 5);
        assert!(
            matches!(&result, Err(TaskError::Failed(e)) if e.downcast_ref() == Some(&Sour(3))),
            "{result:?}"
        );
    });
}

#[test]
fn after_the_body_no_child_is_taken() {
    everywhere(|rt| {
        let refused = Mutex::new(None);
        rt.run(|cx| {
            cx.nursery(|n| {
                let refused = &refused;
                let late = move |cx: &Cx| {
                    // The body ends meanwhile: the only way to spawn late is out of a child.
                    loop {
                        match n.try_spawn(|_| ()) {
                            Ok(_) => cx.yield_now().unwrap(),
                            Err(error) => break *refused.lock().unwrap() = Some(error),
                        }
                    }
                };
                let endless = Budget { spawn_count: 1, ..Budget::UNLIMITED };
                drop(n.task().budget(endless).spawn(late));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(refused.into_inner().unwrap(), Some(SpawnError::NurseryNotActive));
    });
}

#[test]
fn nurseries_nest() {
    fn tree(cx: &Cx, depth: u32) -> u64 {
        if depth == 0 {
            return 1;
        }
        cx.nursery(|n| {
            let child = |cx: &Cx| tree(cx, depth - 1);
            let children = [0; 3].map(|_| n.task().budget(Budget::UNLIMITED).spawn(child));
            Ok(children.into_iter().map(|child| child.join(cx).unwrap()).sum())
        })
        .unwrap()
    }
    everywhere(|rt| assert_eq!(rt.run(|cx| tree(cx, 5)).unwrap(), 243));
}

#[test]
fn an_inner_error_is_the_inner_nurserys_alone() {
    on(2, |cx| {
        cx.nursery(|n| {
            let inner = |cx: &Cx| {
                cx.nursery(|n| {
                    drop(n.spawn(|_| panic!("inner")));
                    Ok(())
                })
                .is_err()
            };
            assert!(n.task().children(1).spawn(inner).join(cx).unwrap());
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn spawn_errors_are_typed_and_change_nothing() {
    on(1, |cx| {
        let pool = Budget { ops: 100, memory: 100, spawn_count: 3, channel_ops: 10, syscalls: 10 };
        cx.nursery_with(NurseryOptions::new().pool(pool).recharge(Recharge::Manual), |n| {
            let ask = |budget: Budget| n.task().budget(budget).try_spawn(|_| ()).map(drop);
            let cases = [
                (Budget { ops: 101, ..Budget::ZERO }, SpawnError::PoolExhausted(janus::Resource::Ops)),
                (Budget { memory: 101, ..Budget::ZERO }, SpawnError::MemoryBudgetExhausted),
                (Budget { spawn_count: 3, ..Budget::ZERO }, SpawnError::SpawnBudgetExhausted),
                (
                    Budget { channel_ops: 11, ..Budget::ZERO },
                    SpawnError::PoolExhausted(janus::Resource::Channel),
                ),
                (
                    Budget { syscalls: 11, ..Budget::ZERO },
                    SpawnError::PoolExhausted(janus::Resource::Syscalls),
                ),
            ];
            for (budget, error) in cases {
                assert_eq!(ask(budget), Err(error));
                assert_eq!((n.pool(), n.live()), (pool, 0));
                assert!(!error.to_string().is_empty());
            }
            n.cancel();
            assert_eq!(ask(Budget::ZERO), Err(SpawnError::Cancelled));
            Ok(())
        })
        .unwrap_err();
    });
}

#[test]
fn a_panicking_worker_is_replaced_and_no_task_is_lost() {
    within(|| {
        let rt = moving(2);
        for round in 0..20 {
            rt.panic_worker(round % 2);
            let done = AtomicUsize::new(0);
            let result = rt.run(|cx| {
                cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                    for _ in 0..20 {
                        let body = |cx: &Cx| {
                            cx.yield_now().unwrap();
                            done.fetch_add(1, Ordering::Relaxed);
                        };
                        drop(n.spawn(body));
                    }
                    Ok(())
                })
            });
            match result {
                Ok(Ok(())) => assert_eq!(done.load(Ordering::Relaxed), 20),
                // A task that the worker had in hand, and that had not begun, has this error.
                Ok(Err(TaskError::WorkerPanic)) => {
                    assert!(done.load(Ordering::Relaxed) >= 18)
                }
                Err(RuntimeError::Task(TaskError::WorkerPanic)) => {}
                other => panic!("{other:?}"),
            }
        }
        // A panic that prints a backtrace takes its time; `within` bounds the wait.
        while rt.stats().total.worker_panics == 0 {
            std::thread::yield_now();
        }
        assert_eq!(rt.run(|_| 3).unwrap(), 3);
    });
}

#[test]
fn run_inside_a_task_of_the_same_runtime_is_refused() {
    within(|| {
        let (rt, other) = (moving(1), moving(1));
        let refused = rt.run(|_| matches!(rt.run(|_| ()), Err(RuntimeError::InsideTask))).unwrap();
        assert!(refused);
        // Another runtime is another matter.
        assert_eq!(rt.run(|_| other.run(|_| 8).unwrap()).unwrap(), 8);
    });
}

#[test]
fn many_runtimes_and_threads_side_by_side() {
    within(|| {
        let shared = moving(2);
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let shared = &shared;
                scope.spawn(move || {
                    let own = common::runtime(1);
                    for rt in [&own, shared] {
                        for _ in 0..50 {
                            let body = |cx: &Cx| cx.nursery(|n| n.spawn(|_| number).join(cx));
                            assert_eq!(rt.run(body).unwrap().unwrap(), number);
                        }
                    }
                });
            }
        });
    });
}
