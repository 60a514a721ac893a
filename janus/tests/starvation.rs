//! Evidence for J-03: when no task is left that could recharge, the await ends the exhausted ones.

mod common;

use common::{everywhere, moving, on, within};
use janus::{
    Budget, Cancelled, Config, Cx, NurseryOptions, Profile, Recharge, Resource, Runtime, RuntimeError,
    TaskError, TaskState, channel,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TEN: Budget = Budget { ops: 10, ..Budget::ZERO };

fn manual() -> NurseryOptions {
    NurseryOptions::new().recharge(Recharge::Manual)
}

fn endless(cx: &Cx) -> Result<(), Cancelled> {
    loop {
        cx.check()?;
    }
}

#[track_caller]
fn assert_spent<T: std::fmt::Debug>(result: &Result<T, TaskError>, resource: Resource) {
    let expected = matches!(result, Err(TaskError::BudgetExceeded(r)) if *r == resource);
    assert!(expected, "{result:?}");
}

#[test]
fn all_children_exhausted_end_the_await_with_that_error() {
    everywhere(|rt| {
        // Often: children that stop at the same moment must not overlook each other.
        for round in 0..200 {
            let children = 1 + round % 4;
            let result = rt.run(|cx| {
                cx.nursery_with(manual(), |n| {
                    for _ in 0..children {
                        drop(n.task().budget(TEN).spawn(endless));
                    }
                    Ok(())
                })
            });
            assert_spent(&result.unwrap(), Resource::Ops);
        }
    });
}

#[test]
fn the_error_names_the_component_that_ran_out() {
    on(1, |cx| {
        let (tx, _rx) = channel::<u8>(100);
        let result = cx.nursery_with(manual(), |n| {
            let budget = Budget { ops: 1000, channel_ops: 3, ..Budget::ZERO };
            drop(n.task().budget(budget).spawn(move |cx| while tx.send(cx, 1).is_ok() {}));
            Ok(())
        });
        assert_spent(&result, Resource::Channel);
        let result = cx.nursery_with(manual(), |n| {
            let budget = Budget { ops: 1000, syscalls: 3, ..Budget::ZERO };
            let body = |cx: &Cx| while cx.charge(janus::Operation::FileIo).is_ok() {};
            drop(n.task().budget(budget).spawn(body));
            Ok(())
        });
        assert_spent(&result, Resource::Syscalls);
    });
}

#[test]
fn children_that_wait_for_an_exhausted_one_do_not_keep_it() {
    everywhere(|rt| {
        for _ in 0..50 {
            let result = rt.run(|cx| {
                let (tx, rx) = channel::<u8>(0);
                cx.nursery_with(manual(), |n| {
                    let stopped = n.task().budget(TEN).spawn(move |cx| {
                        let _tx = tx;
                        endless(cx)
                    });
                    // One waits for its end, one for a message of it. Both learn of its end.
                    drop(n.spawn(move |cx| assert!(stopped.join(cx).is_err())));
                    drop(n.spawn(move |cx| assert_eq!(rx.recv(cx), Err(janus::RecvError::Closed))));
                    Ok(())
                })
            });
            assert_spent(&result.unwrap(), Resource::Ops);
        }
    });
}

#[test]
fn a_sibling_that_sleeps_goes_on_by_itself_and_is_waited_for() {
    everywhere(|rt| {
        let result = rt.run(|cx| {
            let slept = AtomicU64::new(0);
            let result = cx.nursery_with(manual(), |n| {
                let stopped = n.task().budget(TEN).spawn(|cx| {
                    let end = endless(cx);
                    assert_eq!(slept.load(Ordering::Acquire), 1, "ended before its sibling");
                    end
                });
                drop(stopped);
                let sleeper = |cx: &Cx| {
                    cx.sleep(Duration::from_millis(2)).unwrap();
                    slept.store(1, Ordering::Release);
                };
                drop(n.task().budget(TEN).spawn(sleeper));
                Ok(())
            });
            assert_eq!(slept.load(Ordering::Relaxed), 1);
            result
        });
        assert_spent(&result.unwrap(), Resource::Ops);
    });
}

#[test]
fn siblings_that_end_at_once_leave_no_exhausted_one_behind() {
    within(|| {
        let rt = moving(4);
        for _ in 0..300 {
            let result = rt.run(|cx| {
                let go = AtomicU64::new(0);
                cx.nursery_with(manual(), |n| {
                    let stopped = n.task().budget(TEN).spawn(endless);
                    for _ in 0..3 {
                        let wait = |cx: &Cx| {
                            while go.load(Ordering::Acquire) == 0 {
                                cx.yield_now().unwrap();
                            }
                        };
                        drop(n.task().budget(TEN).spawn(wait));
                    }
                    common::until(cx, || stopped.state() == TaskState::BudgetExhausted);
                    go.store(1, Ordering::Release);
                    Ok(())
                })
            });
            assert_spent(&result.unwrap(), Resource::Ops);
        }
    });
}

#[test]
fn while_there_is_a_supervisor_the_exhausted_are_waited_for() {
    everywhere(|rt| {
        let outcome = rt.run(|cx| {
            let recharged = AtomicU64::new(0);
            let result = cx.nursery_with(manual(), |n| {
                let body = |cx: &Cx| -> Result<(), Cancelled> { (0..15).try_for_each(|_| cx.check()) };
                let stopped = n.task().budget(TEN).spawn_try(body);
                let supervisor = n.supervisor();
                let (tx, rx) = channel::<()>(0);
                // Blocked, and not asleep: only the supervisor it holds keeps the other one alive.
                let recharged = &recharged;
                let keeper = move |cx: &Cx| {
                    rx.recv(cx).unwrap();
                    // On a busy machine it may not have come so far.
                    while supervisor.exhausted().is_empty() {
                        cx.yield_now().unwrap();
                    }
                    supervisor.recharge(stopped.id(), &TEN).unwrap();
                    recharged.store(1, Ordering::Relaxed);
                    drop(supervisor);
                    stopped.join(cx).unwrap();
                };
                drop(n.spawn(keeper));
                let teller = move |cx: &Cx| {
                    cx.sleep(Duration::from_millis(1)).unwrap();
                    tx.send(cx, ()).unwrap();
                };
                drop(n.spawn(teller));
                Ok(())
            });
            (result.is_ok(), recharged.load(Ordering::Relaxed))
        });
        assert_eq!(outcome.unwrap(), (true, 1));
    });
}

#[test]
fn when_the_last_supervisor_goes_the_exhausted_end() {
    everywhere(|rt| {
        let result = rt.run(|cx| {
            cx.nursery_with(manual(), |n| {
                drop(n.task().budget(TEN).spawn(endless));
                let supervisor = n.supervisor();
                let body = |cx: &Cx| {
                    common::until(cx, || supervisor.exhausted().len() == 1);
                    drop(supervisor);
                };
                drop(n.spawn(body));
                Ok(())
            })
        });
        assert_spent(&result.unwrap(), Resource::Ops);
    });
}

/// An exact budget is a limit in every profile: a task that joins such a child, or one that waits for it, learns that it
/// is used up.
#[test]
fn a_join_finds_an_exact_budget_spent_in_a_default_nursery() {
    for workers in [1, 2] {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { janus::Runtime::new(janus::Config::new().workers(workers)) }.unwrap();
        let exact = Budget { ops: 5_000, ..Budget::ZERO };
        let end = rt.run(|cx| {
            let mut ends = Vec::new();
            let _ = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                let child = n.task().budget(exact).spawn(|cx| while cx.check().is_ok() {});
                ends.push(child.join(cx).map_err(|error| error.to_string()));
                let calls = n.task().budget(Budget { ops: 50, ..Budget::ZERO });
                let child = calls.spawn(|cx| cx.charge(janus::Operation::FileIo).is_ok());
                ends.push(child.join(cx).map(|_| ()).map_err(|error| error.to_string()));
                Ok(())
            });
            ends
        });
        let ends = end.unwrap();
        assert!(
            ends.iter().all(|end| end.as_ref().is_err_and(|text| text.contains("budget is spent"))),
            "{ends:?}"
        );
    }
}

#[test]
fn a_join_finds_the_dead_end_too() {
    everywhere(|rt| {
        for _ in 0..20 {
            rt.run(|cx| {
                let result = cx.nursery_with(manual(), |n| {
                    let child = n.task().budget(TEN).spawn(endless);
                    let error = child.join(cx).unwrap_err();
                    assert!(matches!(error, TaskError::BudgetExceeded(Resource::Ops)), "{error}");
                    Ok(())
                });
                assert_spent(&result, Resource::Ops);
            })
            .unwrap();
        }
    });
}

#[test]
fn the_main_task_that_runs_out_ends_the_run() {
    within(|| {
        let config = Config::new().workers(2).watchdog(None).profile(Profile::Cluster).root_budget(TEN);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(config) }.unwrap();
        for _ in 0..2000 {
            let result = rt.run(endless);
            let spent = matches!(result, Err(RuntimeError::Task(TaskError::BudgetExceeded(Resource::Ops))));
            assert!(spent, "{result:?}");
        }
    });
}

#[test]
fn what_a_sibling_gives_back_feeds_the_exhausted_one() {
    everywhere(|rt| {
        for _ in 0..20 {
            rt.run(|cx| {
                // The first child gets all there is; the second stops at once, until the first has ended.
                let pool = Budget { ops: 1000, spawn_count: 2, ..Budget::UNLIMITED };
                cx.nursery_with(NurseryOptions::new().pool(pool), |n| {
                    let (tx, rx) = channel::<()>(0);
                    drop(n.spawn(move |cx| rx.recv(cx).unwrap()));
                    let hungry = n.spawn(|cx| (0..500).try_for_each(|_| cx.check()));
                    common::until(cx, || hungry.state() == TaskState::BudgetExhausted);
                    tx.send(cx, ()).unwrap();
                    assert_eq!(hungry.join(cx).unwrap(), Ok(()));
                    Ok(())
                })
                .unwrap();
            })
            .unwrap();
        }
    });
}
