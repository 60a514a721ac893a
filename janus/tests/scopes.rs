//! Evidence for J-20: one error type, failures that end siblings and body, deadlines and shields that nest.

mod common;

use common::{Tally, everywhere, on, until, within};
use janus::{Budget, Cancelled, Cx, NurseryOptions, RecvError, SpawnError, TaskError, TaskState, channel};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Sour;

impl std::fmt::Display for Sour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sour")
    }
}

impl std::error::Error for Sour {}

fn is_sour<T>(end: &Result<T, TaskError>) -> bool {
    matches!(end, Err(TaskError::Failed(error)) if error.is::<Sour>())
}

#[test]
fn j_20_a_failure_ends_siblings_and_the_bodys_waits() {
    everywhere(|rt| {
        let ended = AtomicUsize::new(0);
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                let (_silent, never) = channel::<()>(0);
                let siblings: [_; 3] = std::array::from_fn(|_| {
                    n.spawn(|cx| {
                        ended.fetch_add(usize::from(cx.sleep(LONG).is_err()), Ordering::Relaxed);
                    })
                });
                until(cx, || siblings.iter().all(|sibling| sibling.state() == TaskState::Blocked));
                n.spawn_try(|_| Err::<(), _>(Sour));
                // Nobody sends: without the failure this would never end.
                assert_eq!(never.recv(cx), Err(RecvError::Cancelled));
                assert!(cx.is_cancelled());
                // What comes later is refused, and that is no failure of its own.
                assert_eq!(n.spawn(|_| ()).refused(), Some(SpawnError::Cancelled));
                Ok(())
            })
        });
        let end = end.unwrap();
        assert!(is_sour(&end), "{end:?}");
        assert_eq!(ended.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn j_20_after_a_nursery_that_failed_the_task_goes_on() {
    everywhere(|rt| {
        rt.run(|cx| {
            let outer: Result<(), TaskError> = cx.nursery(|n| {
                let inner: Result<(), TaskError> = cx.nursery(|n| {
                    n.spawn(|_| panic!("on purpose"));
                    Ok(cx.sleep(LONG)?)
                });
                assert!(matches!(inner, Err(TaskError::Panicked(_))), "{inner:?}");
                // Its failure was its own: nothing of it is left here.
                assert!(!cx.is_cancelled() && cx.sleep(SHORT).is_ok());
                assert_eq!(n.spawn(|_| 5).join(cx)?, 5);
                Ok(())
            });
            outer.unwrap();
        })
        .unwrap();
    });
}

#[test]
fn j_20_a_body_that_returns_an_error_ends_the_children() {
    everywhere(|rt| {
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn(|cx| cx.sleep(LONG));
                until(cx, || child.state() == TaskState::Blocked);
                Err::<(), _>(TaskError::failed(Sour))
            })
        });
        assert!(is_sour(&end.unwrap()));
    });
}

#[test]
fn j_20_keep_going_keeps_siblings_and_body() {
    everywhere(|rt| {
        let end = rt.run(|cx| {
            let done = AtomicUsize::new(0);
            let end = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                let failed = n.spawn_try(|_| Err::<(), _>(Sour));
                until(cx, || failed.is_finished());
                n.spawn(|cx| cx.sleep(SHORT).map(|()| done.fetch_add(1, Ordering::Relaxed)));
                Err::<(), _>(TaskError::Cancelled)
            });
            assert_eq!(done.load(Ordering::Relaxed), 1);
            end
        });
        assert!(is_sour(&end.unwrap()), "the first failure is the nursery's");
    });
}

#[test]
fn j_20_who_was_asked_to_end_has_not_failed() {
    everywhere(|rt| {
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn_try(|cx| cx.sleep(LONG));
                until(cx, || child.state() == TaskState::Blocked);
                child.cancel();
                assert!(matches!(child.join(cx), Err(TaskError::Cancelled)));
                n.spawn(|_| 1).join(cx)
            })
        });
        assert_eq!(end.unwrap().unwrap(), 1);
        // One that says so although nobody asked has.
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                n.spawn_try(|_| Err::<(), _>(Cancelled));
                Ok(cx.sleep(LONG)?)
            })
        });
        assert!(matches!(end.unwrap(), Err(TaskError::Cancelled)));
    });
}

#[test]
fn j_20_a_join_is_not_masked_by_the_failure_that_it_waits_for() {
    everywhere(|rt| {
        rt.run(|cx| {
            for _ in 0..100 {
                let end = cx.nursery(|n| {
                    let child = n.spawn_try(|cx| {
                        let _ = cx.yield_now();
                        Err::<(), _>(Sour)
                    });
                    assert!(is_sour(&child.join(cx)));
                    Ok(())
                });
                assert!(is_sour(&end));
            }
        })
        .unwrap();
    });
}

/// A sibling has failed, and the joined task still cleans up: the join returns how it ended, not that something failed.
#[test]
fn j_20_a_join_waits_for_who_cleans_up_after_a_failure() {
    everywhere(|rt| {
        rt.run(|cx| {
            let end = cx.nursery(|n| {
                let careful = n.spawn(|cx| cx.shield(LONG, || cx.sleep(3 * SHORT).map(|()| 5)));
                // On a busy machine its sleep may be over before anybody has seen it.
                until(cx, || careful.state() == TaskState::Blocked || careful.is_finished());
                let failing = n.spawn_try(|_| Err::<(), _>(Sour));
                assert!(is_sour(&failing.join(cx)));
                assert!(cx.is_cancelled());
                assert_eq!(careful.join(cx).ok(), Some(Ok(5)), "not that something failed");
                Ok(())
            });
            assert!(is_sour(&end), "{end:?}");
        })
        .unwrap();
    });
}

#[test]
fn j_20_a_refused_spawn_is_not_swallowed_with_its_handle() {
    on(2, |cx| {
        let none = NurseryOptions::new().pool(Budget { spawn_count: 1, ..Budget::UNLIMITED });
        let end = cx.nursery_with(none, |n| {
            n.spawn(|cx| cx.sleep(LONG));
            // Dropped at once, as most handles are.
            drop(n.spawn(|_| ()));
            Ok(())
        });
        assert!(
            matches!(end, Err(TaskError::Refused(SpawnError::SpawnBudgetExhausted))),
            "the nursery knows: {end:?}"
        );
        let end = cx.nursery_with(none, |n| {
            n.spawn(|_| ());
            let refused = n.spawn(|_| ());
            assert!(refused.is_finished() && refused.state() == TaskState::Failed);
            refused.join(cx)
        });
        assert!(matches!(end, Err(TaskError::Refused(SpawnError::SpawnBudgetExhausted))));
        // With `try_spawn` the body gets the answer, and nothing has failed.
        let end = cx.nursery_with(none, |n| {
            n.spawn(|_| ());
            assert_eq!(n.try_spawn(|_| ()).err(), Some(SpawnError::SpawnBudgetExhausted));
            Ok(())
        });
        assert!(end.is_ok());
    });
}

#[test]
fn j_20_one_question_mark_passes_every_error() {
    fn all(cx: &Cx, which: u32) -> Result<(), TaskError> {
        let (tx, rx) = channel::<&str>(0);
        match which {
            0 => Err(Cancelled)?,
            1 => {
                drop(tx);
                rx.recv(cx)?;
            }
            2 => {
                drop(rx);
                tx.send(cx, "a message that is borrowed from nobody")?;
            }
            3 => Err(std::io::Error::other(Sour))?,
            4 => cx.nursery(|n| n.spawn_try(|_| Err::<(), _>(Sour)).join(cx))?,
            5 => Err(SpawnError::NoCapability)?,
            _ => Err(std::io::Error::from(janus::io::IoError::Cancelled))?,
        }
        Ok(())
    }
    on(1, |cx| {
        let ends: Vec<_> = (0..7).map(|which| all(cx, which).unwrap_err()).collect();
        assert!(matches!(ends[0], TaskError::Cancelled));
        assert!(matches!(&ends[1], TaskError::Failed(error) if error.is::<RecvError>()));
        assert!(matches!(&ends[2], TaskError::Failed(_)));
        assert!(matches!(&ends[3], TaskError::Failed(error) if error.is::<std::io::Error>()));
        assert!(matches!(&ends[4], TaskError::Failed(error) if error.is::<Sour>()));
        assert!(matches!(ends[5], TaskError::Refused(SpawnError::NoCapability)));
        assert!(matches!(ends[6], TaskError::Cancelled), "I/O that was cancelled was cancelled");
    });
}

#[test]
fn j_20_deadlines_nest_and_the_first_counts() {
    everywhere(|rt| {
        rt.run(|cx| {
            // The outer one is over first: the inner has nothing to say.
            let end: Result<(), _> = cx.timeout(SHORT, || {
                let inner = cx.timeout(LONG, || Ok(cx.sleep(LONG)?));
                assert!(matches!(inner, Err(TaskError::Cancelled)), "{inner:?}");
                inner
            });
            assert!(matches!(end, Err(TaskError::TimedOut)), "{end:?}");
            // The inner one is: the outer goes on.
            let end = cx.timeout(LONG, || {
                let inner = cx.timeout(SHORT, || Ok(cx.sleep(LONG)?));
                assert!(matches!(inner, Err(TaskError::TimedOut)), "{inner:?}");
                cx.sleep(SHORT)?;
                Ok(7)
            });
            assert_eq!(end.unwrap(), 7);
            // A value that came too late is a value, and an error of its own kind stays what it is.
            let late = cx.timeout(SHORT, || {
                let _ = cx.sleep(LONG);
                Ok(8)
            });
            assert_eq!(late.unwrap(), 8);
            let other: Result<(), _> = cx.timeout(SHORT, || {
                let _ = cx.sleep(LONG);
                Err(TaskError::failed(Sour))
            });
            assert!(is_sour(&other));
            assert!(!cx.is_cancelled(), "nothing of it is left");
        })
        .unwrap();
    });
}

#[test]
fn j_20_a_deadline_ends_a_loop_that_only_checks() {
    everywhere(|rt| {
        let end: Result<(), _> = rt
            .run(|cx| {
                cx.timeout(SHORT, || {
                    loop {
                        cx.check()?;
                    }
                })
            })
            .unwrap();
        assert!(matches!(end, Err(TaskError::TimedOut)), "{end:?}");
    });
}

#[test]
fn j_20_a_deadline_reaches_the_children_of_nurseries_inside() {
    everywhere(|rt| {
        let ended = AtomicUsize::new(0);
        let end = rt.run(|cx| {
            cx.timeout(SHORT, || {
                cx.nursery(|n| {
                    for _ in 0..3 {
                        n.spawn(|cx| {
                            ended.fetch_add(usize::from(cx.sleep(LONG).is_err()), Ordering::Relaxed);
                        });
                    }
                    // They have begun, or they would not have seen it.
                    until(cx, || n.live() == 3);
                    Ok(())
                })
            })
        });
        let end = end.unwrap();
        assert!(matches!(end, Err(TaskError::TimedOut)), "{end:?}");
        assert!(ended.load(Ordering::Relaxed) <= 3);
    });
}

#[test]
fn j_20_virtual_time_ends_deadlines_at_once() {
    within(|| {
        let rt = common::seeded(2, 5);
        let end: Result<(), _> = rt.run(|cx| cx.timeout(LONG, || Ok(cx.sleep(2 * LONG)?))).unwrap();
        assert!(matches!(end, Err(TaskError::TimedOut)));
    });
}

#[test]
fn j_20_a_shield_lets_clean_up_wait_after_a_cancellation() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (to_us, heard) = channel(0);
            let heard = cx.nursery(|n| {
                let child = n.spawn(move |cx| {
                    let end = cx.sleep(LONG);
                    assert!(end.is_err());
                    // Unshielded, nothing waits any more.
                    assert!(cx.sleep(SHORT).is_err());
                    let sent = cx.shield(LONG, || {
                        assert!(!cx.is_cancelled());
                        // A nursery of its own, and a deadline, work as ever.
                        cx.nursery(|_| Ok(cx.sleep(SHORT)?)).unwrap();
                        let over = cx.timeout(SHORT, || Ok(cx.sleep(LONG)?));
                        assert!(matches!(over, Err(TaskError::TimedOut)));
                        to_us.send(cx, 2)
                    });
                    assert!(sent.is_ok() && cx.is_cancelled());
                });
                until(cx, || child.state() == TaskState::Blocked);
                child.cancel();
                let heard = heard.recv(cx);
                child.join(cx)?;
                Ok(heard)
            });
            assert_eq!(heard.unwrap(), Ok(2));
        })
        .unwrap();
    });
}

#[test]
fn j_20_the_grace_of_a_shield_ends() {
    everywhere(|rt| {
        rt.run(|cx| {
            cx.nursery(|n| {
                // Entered before the cancellation: the grace begins with that, and not here.
                let child = n.spawn(|cx| cx.shield(SHORT, || cx.sleep(LONG).is_err()));
                until(cx, || child.state() == TaskState::Blocked);
                cx.sleep(3 * SHORT)?;
                assert!(!child.is_finished(), "nobody has asked yet");
                child.cancel();
                assert!(child.join(cx)?);
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// In virtual time this is exact: the grace is counted from the cancellation, and neither from the beginning of the shield nor
/// not at all.
#[test]
fn j_20_the_grace_begins_with_the_cancellation() {
    const SECOND: Duration = Duration::from_secs(1);
    within(|| {
        for seed in 0..20 {
            let end = common::seeded(2, seed).run(|cx| {
                cx.nursery(|n| {
                    let child = n.spawn(|cx| {
                        let ended = cx.shield(10 * SECOND, || cx.sleep(LONG));
                        (ended, cx.now())
                    });
                    cx.sleep(60 * SECOND)?;
                    let asked = cx.now();
                    child.cancel();
                    let (ended, at) = child.join(cx)?;
                    assert_eq!(ended, Err(Cancelled));
                    assert_eq!(at - asked, 10 * SECOND);
                    Ok(())
                })
            });
            end.unwrap().unwrap();
        }
    });
}

#[test]
fn j_20_a_shield_holds_off_deadlines_and_failures_around_it() {
    everywhere(|rt| {
        rt.run(|cx| {
            let end: Result<(), _> = cx.timeout(SHORT, || {
                cx.shield(LONG, || cx.sleep(3 * SHORT))?;
                Ok(cx.sleep(LONG)?)
            });
            assert!(matches!(end, Err(TaskError::TimedOut)), "{end:?}");
            let end = cx.nursery(|n| {
                let failing = n.spawn_try(|_| Err::<(), _>(Sour));
                cx.shield(LONG, || {
                    until(cx, || failing.is_finished());
                    cx.sleep(SHORT)
                })?;
                assert!(cx.is_cancelled());
                Ok(())
            });
            assert!(is_sour(&end), "{end:?}");
        })
        .unwrap();
    });
}

/// Every wait that a task can be in, cancelled once in front of each, behind a shield or not.
#[test]
fn j_20_cancellation_at_every_suspension_point() {
    fn points(cx: &Cx, steps: &AtomicUsize, tally: &Tally) -> Result<(), TaskError> {
        let _token = tally.token();
        let (tx, rx) = channel::<u8>(0);
        let step = || steps.fetch_add(1, Ordering::Relaxed);
        step();
        cx.yield_now()?;
        step();
        cx.sleep(Duration::from_micros(10))?;
        step();
        let _ = rx.recv_timeout(cx, Duration::from_micros(10));
        step();
        cx.nursery(|n| {
            n.spawn_try(|cx| tx.send(cx, 1).map_err(|_| Cancelled));
            let got = rx.recv(cx)?;
            step();
            n.spawn(move |cx| cx.yield_now()).join(cx)?.map(|()| got)?;
            Ok(())
        })?;
        step();
        let _ = cx.timeout(Duration::from_micros(10), || Ok(cx.sleep(LONG)?));
        step();
        cx.shield(LONG, || cx.sleep(Duration::from_micros(10)))?;
        step();
        cx.check()?;
        Ok(())
    }
    within(|| {
        for seed in 0..300 {
            let rt = common::seeded(2, seed);
            let (steps, tally) = (AtomicUsize::new(0), Tally::default());
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    let (steps, tally) = (&steps, &tally);
                    let child = n.task().children(10).spawn_try(move |cx| points(cx, steps, tally));
                    // The seed decides where the child is then.
                    for _ in 0..seed % 30 {
                        cx.yield_now()?;
                        cx.sleep(Duration::from_micros(seed % 4))?;
                    }
                    child.cancel();
                    let end = child.join(cx);
                    assert!(matches!(end, Ok(()) | Err(TaskError::Cancelled)), "{end:?}");
                    assert!(n.live() == 0);
                    Ok(())
                })
            });
            assert!(end.unwrap().is_ok());
            tally.assert_even();
        }
    });
}

#[test]
fn j_20_a_panic_in_a_destructor_while_being_cancelled_is_one_tasks_end() {
    struct Rude<'a>(&'a AtomicBool);
    impl Drop for Rude<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            panic!("in a destructor");
        }
    }
    everywhere(|rt| {
        let dropped = AtomicBool::new(false);
        let end = rt.run(|cx| {
            cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                let child = n.spawn_try(|cx| {
                    let _rude = Rude(&dropped);
                    cx.shield(LONG, || cx.timeout(LONG, || Ok(cx.sleep(SHORT)?)))?;
                    cx.sleep(LONG).map_err(TaskError::from)
                });
                until(cx, || child.state() == TaskState::Blocked);
                child.cancel();
                let end = child.join(cx);
                assert!(matches!(end, Err(TaskError::Panicked(_))), "{end:?}");
                // Its neighbours are served as before.
                n.spawn(|_| 3).join(cx)
            })
        });
        assert!(matches!(end.unwrap(), Err(TaskError::Panicked(_))));
        assert!(dropped.load(Ordering::Relaxed));
        assert!(rt.run(|cx| cx.sleep(SHORT).is_ok()).unwrap());
    });
}

#[test]
fn j_20_a_panic_leaves_scopes_behind() {
    on(1, |cx| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _: Result<(), _> = cx.timeout(SHORT, || panic!("inside"));
        }));
        assert!(caught.is_err());
        // The deadline went with its frame: it ends nothing any more.
        assert!(cx.sleep(3 * SHORT).is_ok());
    });
}
