//! Evidence for J-05: the states of a task and their table, priorities, `steal_enabled`, statistics.

mod common;

use common::{moving, on, runtime, within};
use janus::{Budget, Cx, Event, NurseryOptions, Priority, Recharge, TaskState, channel};
use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The specification's transitions [SCHED:5.2.2], and those that `decisions.md` adds, written down independently.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("Ready", "Schedule", "Running"),
    ("Running", "Block", "Blocked"),
    ("Running", "Exhaust", "BudgetExhausted"),
    ("Running", "Return", "Completed"),
    ("Running", "Cancel", "Cancelled"),
    ("Blocked", "Wake", "Ready"),
    ("BudgetExhausted", "Recharge", "Ready"),
    // Added: a yield, a panic, cancellation before the first run. Cancelled while it waits, a task is woken first.
    ("Running", "Yield", "Ready"),
    ("Running", "Fail", "Failed"),
    ("Ready", "Cancel", "Cancelled"),
];

#[test]
fn every_pair_of_state_and_event_is_as_specified() {
    let mut found = 0;
    for state in TaskState::ALL {
        for event in Event::ALL {
            let names = (format!("{state:?}"), format!("{event:?}"));
            let expected = EXPECTED.iter().find(|(s, e, _)| (*s, *e) == (&names.0, &names.1));
            let after = state.after(event).map(|state| format!("{state:?}"));
            assert_eq!(after.as_deref(), expected.map(|(_, _, after)| *after), "{state:?} and {event:?}");
            found += usize::from(after.is_some());
        }
    }
    assert_eq!(found, EXPECTED.len());
    assert_eq!(TaskState::ALL.len() * Event::ALL.len(), 63);
}

#[test]
fn all_states_are_reachable_and_the_final_ones_are_final() {
    let mut reached = HashSet::from([TaskState::Ready]);
    let mut open = vec![TaskState::Ready];
    while let Some(state) = open.pop() {
        let next = Event::ALL.into_iter().filter_map(|event| state.after(event));
        let next: Vec<TaskState> = next.collect();
        assert_eq!(next.is_empty(), state.is_final(), "{state:?}");
        // From everywhere there is a way to an end.
        open.extend(next.into_iter().filter(|state| reached.insert(*state)));
    }
    assert_eq!(reached.len(), TaskState::ALL.len());
}

#[test]
fn a_handle_and_a_dump_show_every_state() {
    within(|| {
        let rt = moving(2);
        rt.run(|cx| {
            let go = AtomicBool::new(false);
            let (tx, rx) = channel::<()>(0);
            let seen = Mutex::new(BTreeSet::new());
            let options = NurseryOptions::new().keep_going().recharge(Recharge::Manual);
            let _ = cx.nursery_with(options.keep_going(), |n| {
                let note = |state: TaskState| seen.lock().unwrap().insert(state as u8);
                let running = n.spawn(|cx| {
                    while !go.load(Ordering::Acquire) {
                        let _ = cx.is_cancelled();
                    }
                });
                common::until(cx, || running.state() == TaskState::Running);
                let dump = rt.dump();
                let task = dump.tasks.iter().find(|task| task.id == running.id()).unwrap();
                assert!(task.worker.is_some() && task.state == TaskState::Running, "{dump}");
                note(TaskState::Running);
                let blocked = n.spawn(move |cx| rx.recv(cx));
                common::until(cx, || blocked.state() == TaskState::Blocked);
                assert_eq!(
                    rt.dump().tasks.iter().find(|t| t.id == blocked.id()).unwrap().waits_for,
                    janus::Wait::Recv
                );
                note(TaskState::Blocked);
                let spent = n.task().budget(Budget { ops: 1, ..Budget::ZERO });
                let spent = spent.spawn(|cx| while cx.check().is_ok() {});
                common::until(cx, || spent.state() == TaskState::BudgetExhausted);
                note(TaskState::BudgetExhausted);
                spent.cancel();
                common::until(cx, || spent.is_finished());
                assert_eq!(spent.state(), TaskState::Cancelled);
                note(TaskState::Cancelled);
                let failed = n.spawn(|_| panic!("on purpose"));
                common::until(cx, || failed.is_finished());
                assert_eq!(failed.state(), TaskState::Failed);
                note(TaskState::Failed);
                drop(failed.join(cx));
                go.store(true, Ordering::Release);
                drop(tx);
                common::until(cx, || running.is_finished());
                assert_eq!(running.state(), TaskState::Completed);
                note(TaskState::Completed);
                let ready = n.task().priority(Priority::Low).spawn(|_| ());
                note(ready.state());
                Ok(())
            });
            assert!(seen.into_inner().unwrap().len() >= 6);
        })
        .unwrap();
    });
}

#[test]
fn high_runs_before_normal_and_normal_before_low() {
    on(1, |cx| {
        let order = Mutex::new(Vec::new());
        cx.nursery(|n| {
            for _ in 0..20 {
                for priority in [Priority::Low, Priority::Normal, Priority::High] {
                    let order = &order;
                    let body = move |_: &Cx| order.lock().unwrap().push(priority);
                    drop(n.task().priority(priority).spawn(body));
                }
            }
            Ok(())
        })
        .unwrap();
        let order = order.into_inner().unwrap();
        assert_eq!(order.len(), 60);
        // The worker looks elsewhere now and then, lest anybody starves: once in 61 picks, so two may be out of order.
        let sorted = [[Priority::High; 20], [Priority::Normal; 20], [Priority::Low; 20]].concat();
        let strays = |want: Priority, range: std::ops::Range<usize>| {
            order[range].iter().filter(|priority| **priority != want).count()
        };
        for (start, want) in [(0, Priority::High), (20, Priority::Normal), (40, Priority::Low)] {
            assert_eq!(sorted[start], want);
            assert!(strays(want, start..start + 20) <= 4, "{order:?}");
        }
    });
}

#[test]
fn low_priority_is_not_starved() {
    on(1, |cx| {
        let ran = AtomicBool::new(false);
        cx.nursery(|n| {
            for priority in [Priority::Normal, Priority::High] {
                for _ in 0..3 {
                    let busy = |cx: &Cx| {
                        while !ran.load(Ordering::Relaxed) {
                            cx.yield_now().unwrap();
                        }
                    };
                    drop(n.task().priority(priority).spawn(busy));
                }
            }
            drop(n.task().priority(Priority::Low).spawn(|_| ran.store(true, Ordering::Relaxed)));
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn normal_priority_is_not_starved_by_new_tasks() {
    on(1, |cx| {
        let (ran, spawned) = (AtomicBool::new(false), AtomicU64::new(0));
        cx.nursery(|n| {
            let waits = |cx: &Cx| {
                cx.yield_now().unwrap();
                ran.store(true, Ordering::Relaxed);
            };
            drop(n.spawn(waits));
            while !ran.load(Ordering::Relaxed) {
                drop(n.spawn(|_| spawned.fetch_add(1, Ordering::Relaxed)));
                cx.yield_now().unwrap();
            }
            Ok(())
        })
        .unwrap();
        assert!(spawned.into_inner() < 10_000);
    });
}

#[test]
fn a_worker_that_may_not_steal_steals_nothing() {
    within(|| {
        let rt = moving(4);
        for worker in 0..4 {
            assert!(rt.set_steal_enabled(worker, false));
        }
        assert!(!rt.set_steal_enabled(1000, false));
        let load = |cx: &Cx| {
            cx.nursery(|n| {
                for _ in 0..500 {
                    drop(n.spawn(|cx| (0..2000).for_each(|_| cx.check().unwrap())));
                }
                Ok(())
            })
            .unwrap();
        };
        for _ in 0..5 {
            rt.run(load).unwrap();
        }
        let stats = rt.stats();
        assert_eq!(stats.total.tasks_stolen, 0, "{stats}");
        for worker in 0..4 {
            rt.set_steal_enabled(worker, true);
        }
        // The same load is stolen from when that is allowed. On a busy machine that may take a few rounds.
        for _ in 0..200 {
            rt.run(load).unwrap();
            if rt.stats().total.tasks_stolen > 0 {
                return;
            }
        }
        panic!("nobody ever stole: {}", rt.stats());
    });
}

#[test]
fn statistics_add_up() {
    within(|| {
        for rt in [runtime(1), moving(2), moving(4)] {
            let before = rt.stats().total;
            rt.run(|cx| {
                cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                    for child in 0..100 {
                        let body = move |cx: &Cx| {
                            cx.yield_now().unwrap();
                            assert!(child % 10 != 0, "on purpose");
                        };
                        drop(n.spawn(body));
                    }
                    Ok(())
                })
                .unwrap_err();
            })
            .unwrap();
            let stats = rt.stats();
            let total = stats.total;
            // The main task was spawned by this thread, and no worker.
            assert_eq!(total.spawned - before.spawned, 100);
            assert_eq!(total.completed - before.completed, 101);
            assert_eq!(total.panics - before.panics, 10);
            assert!(total.yields > before.yields && stats.tasks_made >= 101 && stats.stacks_made >= 2);
            let sum = |pick: fn(&janus::WorkerStats) -> u64| stats.workers.iter().map(pick).sum::<u64>();
            assert_eq!(sum(|w| w.completed), total.completed);
            assert_eq!(sum(|w| w.spawned), total.spawned);
            assert!(rt.dump().tasks.is_empty(), "{}", rt.dump());
        }
    });
}
