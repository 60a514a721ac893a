//! Regressions: user code at unlikely places, arms that are used twice, tasks that two stuck workers hold.

mod common;

use common::within;
use janus::{
    Budget, Config, NurseryOptions, RecvError, Resource, Runtime, Selected, StackClass, TaskError, channel,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn roomy(workers: usize) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(Config::new().workers(workers).watchdog(None).stack(StackClass::Medium)) }.unwrap()
}

/// Panics with a payload that panics when it is dropped, or only panics.
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if std::mem::take(&mut self.0) && !std::thread::panicking() {
            std::panic::panic_any(Bomb(true));
        }
    }
}

#[test]
fn an_arm_used_twice_drops_its_result_before_the_locks() {
    within(|| {
        let full = roomy(1).run(|cx| {
            cx.nursery(|nursery| {
                let (to_first, first) = channel::<Bomb>(1);
                let (to_second, second) = channel::<Bomb>(0);
                let mut arm = first.arm();
                assert!(to_first.send(cx, Bomb(true)).is_ok());
                assert_eq!(cx.select(&mut [&mut arm], None), Ok(Selected::Arm(0)));
                drop(nursery.spawn(move |cx| to_first.send(cx, Bomb(false)).is_ok()));
                let select = std::panic::AssertUnwindSafe(|| {
                    let mut other = Box::new(second.arm());
                    let _ = cx.select(&mut [&mut arm, &mut *other], None);
                });
                let panic = std::panic::catch_unwind(select);
                std::mem::forget(panic);
                // Nobody receives: the arm that is gone is in no list.
                Ok(to_second.try_send(cx, Bomb(false)).is_err())
            })
        });
        assert!(full.unwrap().unwrap());
    });
}

#[test]
fn an_arm_that_has_sent_is_not_chosen_again() {
    within(|| {
        let got = roomy(1).run(|cx| {
            cx.nursery(|nursery| {
                let (sender, receiver) = channel::<u32>(0);
                let other = nursery.spawn(move |cx| (receiver.recv(cx), receiver.recv(cx)));
                cx.yield_now().unwrap();
                let mut arm = sender.arm(7);
                assert_eq!(cx.select(&mut [&mut arm], None), Ok(Selected::Arm(0)));
                let again = cx.select(&mut [&mut arm], Some(Duration::from_millis(5)));
                assert_eq!(again, Ok(Selected::Timeout));
                assert!(arm.into_result().is_ok());
                drop(sender);
                Ok(other.join(cx).unwrap())
            })
        });
        assert_eq!(got.unwrap().unwrap(), (Ok(7), Err(RecvError::Closed)));
    });
}

#[test]
fn payloads_that_panic_end_with_their_task() {
    within(|| {
        roomy(1)
            .run(|cx| {
                cx.nursery(|n| {
                    drop(n.spawn(|_| Bomb(true)));
                    Ok(())
                })
            })
            .unwrap()
            .unwrap();
        let cancelled = roomy(1).run(|cx| {
            cx.nursery(|nursery| {
                let bomb = Bomb(true);
                drop(nursery.spawn(move |_| drop(bomb)));
                nursery.cancel();
                Ok(())
            })
        });
        assert!(matches!(cancelled, Ok(Err(TaskError::Cancelled))));
    });
}

/// An error whose destructor takes more than a lean stack has.
#[derive(Debug)]
struct Deep(u32);

impl std::fmt::Display for Deep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "deep {}", self.0)
    }
}

impl std::error::Error for Deep {}

impl Drop for Deep {
    fn drop(&mut self) {
        fn dig(depth: u32) -> u64 {
            let room = std::hint::black_box([u64::from(depth); 64]);
            if depth == 0 { room[3] } else { dig(depth - 1) + room[5] }
        }
        if self.0 == 2 {
            std::hint::black_box(dig(200));
        }
    }
}

#[test]
fn an_error_that_nobody_keeps_is_dropped_by_its_task() {
    within(|| {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let runtime = unsafe { Runtime::new(Config::new().workers(1)) }.unwrap();
        let ended = runtime.run(|cx| {
            cx.nursery_with(NurseryOptions::new().keep_going(), |nursery| {
                drop(nursery.spawn_try(|_| Err::<(), _>(Deep(1))));
                cx.yield_now().unwrap();
                drop(nursery.task().owned().spawn_try(|_| Err::<(), _>(Deep(2))));
                Ok(())
            })
        });
        assert!(matches!(ended, Ok(Err(TaskError::Failed(_)))));
    });
}

#[test]
fn who_joins_a_child_whose_exact_budget_is_spent_learns_it() {
    within(|| {
        let ended = roomy(2).run(|cx| {
            cx.nursery(|nursery| {
                let exact = nursery.task().budget(Budget { ops: 1000, ..Budget::ZERO });
                Ok(exact.spawn(|cx| while cx.check().is_ok() {}).join(cx))
            })
        });
        let spent = TaskError::BudgetExceeded(Resource::Ops);
        assert!(matches!(ended, Ok(Err(error)) if error.to_string() == spent.to_string()));
    });
}

#[test]
fn a_child_makes_no_budget_for_a_parent_that_may_not() {
    within(|| {
        let exact = Budget { ops: 1000, memory: 1 << 20, spawn_count: 4, channel_ops: 100, syscalls: 100 };
        let refused = roomy(2).run(|cx| {
            cx.nursery(|nursery| {
                let child = nursery.task().budget(exact).spawn(|cx| {
                    let grandchild = |cx: &janus::Cx| cx.cap_budget(Budget::UNLIMITED).is_err();
                    cx.nursery(|inner| Ok(inner.spawn(grandchild).join(cx))).unwrap().unwrap()
                });
                Ok(child.join(cx).unwrap())
            })
        });
        assert!(refused.unwrap().unwrap());
    });
}

#[test]
fn the_right_to_spawn_is_not_made_by_a_recharge() {
    within(|| {
        let refused = roomy(2).run(|cx| {
            cx.nursery(|nursery| {
                let child = nursery.task().children(3).spawn(|cx| {
                    let body = |inner: &janus::Scope<'_, '_>| Ok(inner.pool().spawn_count);
                    let before = cx.nursery(body).unwrap();
                    let thousand = Budget { spawn_count: 1000, ..Budget::ZERO };
                    let refused =
                        cx.nursery(|inner| Ok(inner.spawn(|_| ()).recharge(&thousand).is_err())).unwrap();
                    refused && cx.budget().spawn_count <= before
                });
                Ok(child.join(cx).unwrap())
            })
        });
        assert!(refused.unwrap().unwrap());
    });
}

#[test]
fn short_loops_are_stopped_too() {
    within(|| {
        let ended = roomy(1).run(|cx| {
            cx.nursery(|nursery| {
                let exact = nursery.task().budget(Budget { ops: 1000, ..Budget::ZERO });
                let loops = exact.spawn(|cx| {
                    for _ in 0..1000 {
                        let mut ticker = cx.ticker();
                        for _ in 0..1000 {
                            if ticker.tick().is_err() {
                                return;
                            }
                        }
                    }
                });
                drop(loops);
                Ok(())
            })
        });
        assert!(matches!(ended, Ok(Err(TaskError::BudgetExceeded(Resource::Ops)))));
    });
}

#[test]
fn two_stuck_workers_with_a_task_each_are_both_relieved() {
    within(|| {
        let ready = AtomicUsize::new(0);
        let done = [const { AtomicBool::new(false) }; 2];
        roomy(3)
            .run(|cx| {
                cx.nursery(|nursery| {
                    let third = |_: &janus::Cx| std::thread::sleep(Duration::from_millis(100));
                    drop(nursery.spawn(third));
                    for done in &done {
                        let ready = &ready;
                        let stuck = move |cx: &janus::Cx| {
                            cx.nursery(|inner| {
                                ready.fetch_add(1, Ordering::SeqCst);
                                while ready.load(Ordering::SeqCst) < 2 {
                                    std::thread::sleep(Duration::from_micros(100));
                                }
                                std::thread::sleep(Duration::from_millis(20));
                                drop(inner.spawn(|_| done.store(true, Ordering::SeqCst)));
                                while !done.load(Ordering::SeqCst) {
                                    std::thread::sleep(Duration::from_micros(100));
                                }
                                Ok(())
                            })
                            .unwrap();
                        };
                        drop(nursery.task().children(1).spawn(stuck));
                    }
                    Ok(())
                })
            })
            .unwrap()
            .unwrap();
    });
}
