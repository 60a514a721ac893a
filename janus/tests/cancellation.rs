//! Evidence for J-09: cancellation reaches children wherever they wait, and is never lost.

mod common;

use common::{everywhere, moving, on, within};
use janus::{
    Budget, Cancelled, Cx, NurseryOptions, Recharge, RecvError, SendError, SpawnError, TaskError, TaskState,
    Wait, channel,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);

/// Spawns `body`, waits until it waits as `wait` says, cancels the nursery, and asserts that `body` returned true.
#[track_caller]
fn interrupts(wait: Wait, body: fn(&Cx) -> bool) {
    within(move || {
        for rt in [common::runtime(1), common::runtime(2), moving(1), moving(2)] {
            let saw = AtomicUsize::new(0);
            let result = rt.run(|cx| {
                let options = NurseryOptions::new().recharge(Recharge::Manual);
                let budget = Budget { ops: 5000, ..Budget::UNLIMITED };
                cx.nursery_with(options, |n| {
                    let child = n.task().budget(budget).spawn(|cx| {
                        saw.fetch_add(usize::from(body(cx)), Ordering::Relaxed);
                    });
                    let waits =
                        || rt.dump().tasks.iter().any(|task| task.id == child.id() && task.waits_for == wait);
                    common::until(cx, || {
                        matches!(child.state(), TaskState::Blocked | TaskState::BudgetExhausted) && waits()
                    });
                    n.cancel();
                    assert!(n.is_cancelled());
                    common::until(cx, || child.is_finished());
                    assert_eq!(child.state(), TaskState::Cancelled);
                    Ok(())
                })
            });
            assert!(matches!(result.unwrap(), Err(TaskError::Cancelled)));
            assert_eq!(saw.load(Ordering::Relaxed), 1, "the child saw it");
        }
    });
}

#[test]
fn a_receive_is_interrupted() {
    interrupts(Wait::Recv, |cx| {
        let (_tx, rx) = channel::<u8>(1);
        rx.recv(cx) == Err(RecvError::Cancelled) && cx.is_cancelled()
    });
}

#[test]
fn a_timed_receive_is_interrupted() {
    interrupts(Wait::Sleep, |cx| {
        let (_tx, rx) = channel::<u8>(1);
        rx.recv_timeout(cx, LONG) == Err(RecvError::Cancelled)
    });
}

#[test]
fn a_send_is_interrupted_and_the_message_comes_back() {
    interrupts(Wait::Send, |cx| {
        let (tx, _rx) = channel::<u8>(0);
        tx.send(cx, 7) == Err(SendError::Cancelled(7))
    });
}

#[test]
fn a_sleep_is_interrupted() {
    interrupts(Wait::Sleep, |cx| cx.sleep(LONG) == Err(Cancelled));
}

#[test]
fn a_select_is_interrupted() {
    interrupts(Wait::Select, |cx| {
        let (tx, rx) = channel::<u8>(0);
        let (_other, other) = channel::<u8>(0);
        drop(rx.clone());
        let mut send = tx.arm(3);
        let end = cx.select(&mut [&mut other.arm(), &mut send], None);
        end == Err(Cancelled) && send.into_result() == Err(SendError::Full(3))
    });
}

#[test]
fn an_exhausted_child_is_interrupted() {
    interrupts(Wait::Recharge, |cx| {
        while cx.check().is_ok() {}
        cx.is_cancelled()
    });
}

#[test]
fn a_join_is_interrupted() {
    interrupts(Wait::Nursery, |cx| {
        // The join ends first, then the wait for the child, which is cancelled with its parent.
        let result = cx.nursery(|n| {
            let child =
                n.task().budget(Budget::ZERO.with(janus::Resource::Ops, 9)).spawn(|cx| cx.sleep(LONG));
            drop(child);
            Ok(())
        });
        matches!(result, Err(TaskError::Cancelled))
    });
    interrupts(Wait::Join, |cx| {
        let result = cx.nursery(|n| {
            let child =
                n.task().budget(Budget::ZERO.with(janus::Resource::Ops, 9)).spawn(|cx| cx.sleep(LONG));
            assert!(matches!(child.join(cx), Err(TaskError::Cancelled)));
            Ok(())
        });
        matches!(result, Err(TaskError::Cancelled))
    });
}

#[test]
fn cancellation_goes_down_through_nested_nurseries() {
    fn nest(cx: &Cx, depth: usize, ended: &AtomicUsize) {
        if depth == 0 {
            assert_eq!(cx.sleep(LONG), Err(Cancelled));
        } else {
            let result = cx.nursery(|n| {
                let body = |cx: &Cx| nest(cx, depth - 1, ended);
                drop(n.task().budget(Budget::UNLIMITED).spawn(body));
                drop(n.task().budget(Budget::UNLIMITED).spawn(body));
                Ok(())
            });
            assert!(matches!(result, Err(TaskError::Cancelled)), "{result:?}");
        }
        ended.fetch_add(1, Ordering::Relaxed);
    }
    everywhere(|rt| {
        let ended = AtomicUsize::new(0);
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                drop(n.task().budget(Budget::UNLIMITED).spawn(|cx| nest(cx, 4, &ended)));
                let asleep = || rt.dump().tasks.iter().filter(|task| task.waits_for == Wait::Sleep).count();
                common::until(cx, || asleep() >= 16);
                n.cancel();
                Ok(())
            })
        });
        assert!(matches!(result.unwrap(), Err(TaskError::Cancelled)));
        assert_eq!(ended.load(Ordering::Relaxed), 31);
    });
}

#[test]
fn a_child_that_is_cancelled_before_it_starts_never_runs() {
    on(1, |cx| {
        let ran = AtomicUsize::new(0);
        let result = cx.nursery(|n| {
            let one = n.spawn(|_| ran.fetch_add(1, Ordering::Relaxed));
            one.cancel();
            let error = one.join(cx).unwrap_err();
            assert!(matches!(error, TaskError::Cancelled) && error.code() == -1);
            let others = [0; 3].map(|_| n.spawn(|_| ran.fetch_add(1, Ordering::Relaxed)));
            n.cancel();
            for other in others {
                assert!(matches!(other.join(cx), Err(TaskError::Cancelled)));
            }
            assert_eq!(n.try_spawn(|_| ()).map(drop), Err(SpawnError::Cancelled));
            Ok(())
        });
        assert!(matches!(result, Err(TaskError::Cancelled)));
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn one_child_is_cancelled_and_the_others_are_not() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (tx, rx) = channel::<u8>(0);
            cx.nursery(|n| {
                let asleep = n.spawn(|cx| cx.sleep(LONG));
                let other = n.spawn(move |cx| rx.recv(cx));
                common::until(cx, || {
                    asleep.state() == TaskState::Blocked && other.state() == TaskState::Blocked
                });
                asleep.cancel();
                assert_eq!(asleep.join(cx).unwrap(), Err(Cancelled));
                tx.send(cx, 4).unwrap();
                assert_eq!(other.join(cx).unwrap(), Ok(4));
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

#[test]
fn a_running_child_sees_it_at_its_next_check() {
    everywhere(|rt| {
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.task().budget(Budget::UNLIMITED).spawn_try(|cx| -> Result<(), Cancelled> {
                    loop {
                        cx.check()?;
                    }
                });
                cx.yield_now().unwrap();
                n.cancel();
                assert!(matches!(child.join(cx), Err(TaskError::Cancelled)));
                Ok(())
            })
        });
        assert!(matches!(result.unwrap(), Err(TaskError::Cancelled)));
    });
}

#[test]
fn a_cancel_at_any_moment_finds_the_child() {
    // The child may be about to wait for the first time just when the nursery is cancelled.
    within(|| {
        let rt = moving(2);
        rt.run(|cx| {
            for round in 0..20_000_u32 {
                let started = AtomicUsize::new(0);
                let (_tx, rx) = channel::<u8>(0);
                // The sender stays: only the cancellation can end the wait.
                let result = cx.nursery(|n| {
                    let child = |cx: &Cx| {
                        started.store(1, Ordering::Release);
                        assert_eq!(rx.recv(cx), Err(RecvError::Cancelled));
                    };
                    drop(n.spawn(child));
                    while started.load(Ordering::Acquire) == 0 && round % 8 != 0 {
                        cx.yield_now().unwrap();
                    }
                    for _ in 0..round % 64 {
                        std::hint::spin_loop();
                    }
                    n.cancel();
                    Ok(())
                });
                assert!(matches!(result, Err(TaskError::Cancelled)), "{result:?}");
            }
        })
        .unwrap();
    });
}
