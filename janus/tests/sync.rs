//! Evidence for J-13: mutex, condition, semaphore, once, barrier, timeouts; in parallel and under seeds.

mod common;

use common::{everywhere, on, seeded, until, within};
use janus::sync::{Barrier, Condvar, Mutex, Once, OnceCell, Semaphore, WaitError};
use janus::{Budget, Cancelled, Cx, NurseryOptions, Runtime, SendError, TaskState, Wait, channel, unbounded};
use std::cell::Cell;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_micros(300);

fn free() -> NurseryOptions {
    NurseryOptions::new().share(Budget { spawn_count: 0, ..Budget::UNLIMITED })
}

fn under_seeds(test: impl Fn(&Runtime) + Send + Sync + 'static) {
    within(move || {
        for seed in 0..100 {
            test(&seeded(1 + seed as usize % 5, seed));
        }
    });
}

fn count_under_a_lock(rt: &Runtime) {
    // A cell is not for sharing: without the lock's promise this does not compile, and if it is broken, counts are lost.
    let count = Mutex::new(Cell::new(0));
    rt.run(|cx| {
        cx.nursery_with(free(), |n| {
            for _ in 0..20 {
                let count = &count;
                let adder = move |cx: &Cx| {
                    for round in 0..50 {
                        let guard = count.lock(cx).unwrap();
                        let before = guard.get();
                        if round % 5 == 0 {
                            cx.yield_now().unwrap();
                        }
                        guard.set(before + 1);
                    }
                };
                drop(n.spawn(adder));
            }
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(count.into_inner().get(), 1000);
}

#[test]
fn j_13_a_mutex_lets_one_in_at_a_time() {
    everywhere(count_under_a_lock);
    under_seeds(count_under_a_lock);
}

#[test]
fn j_13_a_mutex_is_first_come_first_served_and_a_panic_gives_it_back() {
    everywhere(|rt| {
        let order = Mutex::new(Vec::new());
        rt.run(|cx| {
            let failed = cx.nursery_with(free().keep_going(), |n| {
                let guard = order.lock(cx).unwrap();
                for number in 0..10 {
                    let order = &order;
                    let task = n.spawn(move |cx| {
                        let mut order = order.lock(cx).unwrap();
                        order.push(number);
                        assert!(number != 3, "the third panics with the lock in hand");
                    });
                    until(cx, || task.state() == TaskState::Blocked);
                }
                assert!(order.try_lock(cx).unwrap().is_none());
                assert_eq!(order.lock_timeout(cx, SHORT).unwrap_err(), WaitError::TimedOut);
                drop(guard);
                Ok(())
            });
            assert!(failed.is_err());
        })
        .unwrap();
        assert_eq!(order.into_inner(), (0..10).collect::<Vec<_>>());
    });
}

/// A task that is cancelled while it waits leaves the queue; those behind it are served.
#[test]
fn j_13_cancellation_ends_every_wait_of_sync() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (mutex, changed, doors) = (Mutex::new(0), Condvar::new(), Semaphore::new(0));
            let (meeting, once) = (Barrier::new(2), OnceCell::<u8>::new());
            let waits: [&(dyn Fn(&Cx) -> bool + Sync); 5] = [
                &|cx| mutex.lock(cx).is_err(),
                &|cx| doors.acquire(cx, 1).is_err(),
                &|cx| meeting.wait(cx).is_err(),
                &|cx| changed.wait(cx, Mutex::new(()).lock(cx).unwrap()).is_err(),
                &|cx| once.get_or_init(cx, |_| 1).is_err(),
            ];
            let held = mutex.lock(cx).unwrap();
            cx.nursery_with(free(), |n| {
                let once = &once;
                let maker =
                    n.spawn(move |cx| once.get_or_try_init(cx, |cx| cx.sleep(LONG).map(|()| 1)).is_err());
                until(cx, || maker.state() == TaskState::Blocked);
                for wait in waits {
                    let task = n.spawn(move |cx| wait(cx));
                    let waits =
                        || rt.dump().tasks.iter().any(|t| t.id == task.id() && t.waits_for == Wait::Lock);
                    until(cx, waits);
                    task.cancel();
                    assert!(task.join(cx).unwrap());
                }
                maker.cancel();
                assert!(maker.join(cx).unwrap());
                Ok(())
            })
            .unwrap();
            drop(held);
            // All of them are as good as new.
            assert!(mutex.try_lock(cx).unwrap().is_some());
            assert_eq!(once.get_or_init(cx, |_| 2).copied(), Ok(2));
            doors.give(1);
            assert!(doors.try_acquire(cx, 1).unwrap().is_some());
            cx.nursery_with(free(), |n| {
                let other = n.spawn(|cx| meeting.wait(cx).unwrap());
                let mine = meeting.wait(cx).unwrap();
                assert_ne!(mine, other.join(cx).unwrap(), "one leads");
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

fn produce_and_consume(rt: &Runtime) {
    let (queue, changed) = (Mutex::new(Vec::new()), Condvar::new());
    let sum = AtomicUsize::new(0);
    rt.run(|cx| {
        cx.nursery_with(free(), |n| {
            let (queue, changed, sum) = (&queue, &changed, &sum);
            for _ in 0..4 {
                let consumer = move |cx: &Cx| {
                    for _ in 0..25 {
                        let mut queue = changed
                            .wait_while(cx, queue.lock(cx).unwrap(), |queue: &mut Vec<usize>| {
                                queue.is_empty()
                            })
                            .unwrap();
                        sum.fetch_add(queue.pop().unwrap(), Ordering::Relaxed);
                    }
                };
                drop(n.spawn(consumer));
            }
            for number in 0..100 {
                queue.lock(cx).unwrap().push(number);
                changed.notify_one();
            }
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), 4950);
}

#[test]
fn j_13_a_condition_wakes_who_waits() {
    everywhere(produce_and_consume);
    under_seeds(produce_and_consume);
    everywhere(|rt| {
        rt.run(|cx| {
            let (mutex, changed) = (Mutex::new(()), Condvar::new());
            let (_guard, over) = changed.wait_timeout(cx, mutex.lock(cx).unwrap(), SHORT).unwrap();
            assert!(over);
            drop(_guard);
            cx.nursery_with(free(), |n| {
                let (mutex, changed) = (&mutex, &changed);
                let tasks: Vec<_> = (0..5)
                    .map(|_| n.spawn(move |cx| changed.wait(cx, mutex.lock(cx).unwrap()).map(drop)))
                    .collect();
                until(cx, || tasks.iter().all(|task| task.state() == TaskState::Blocked));
                changed.notify_all();
                for task in tasks {
                    assert_eq!(task.join(cx).unwrap(), Ok(()));
                }
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
    });
}

/// One of two waiters is notified and cancelled at once: the other one learns of the change, or the first has seen it.
#[test]
fn j_13_a_notification_is_not_lost_with_who_is_cancelled() {
    everywhere(|rt| {
        rt.run(|cx| {
            for _ in 0..30 {
                let (ready, changed) = (Mutex::new(0), Condvar::new());
                cx.nursery_with(free(), |n| {
                    let (ready, changed) = (&ready, &changed);
                    let wait = move |cx: &Cx| -> Result<(), Cancelled> {
                        let mut left = changed.wait_while(cx, ready.lock(cx)?, |ready| *ready == 0)?;
                        *left -= 1;
                        Ok(())
                    };
                    let (first, second) = (n.spawn(wait), n.spawn(wait));
                    until(cx, || first.state() == TaskState::Blocked && second.state() == TaskState::Blocked);
                    *ready.lock(cx).unwrap() = 1;
                    changed.notify_one();
                    first.cancel();
                    if first.join(cx).unwrap().is_err() {
                        assert_eq!(second.join(cx).unwrap(), Ok(()));
                    } else {
                        second.cancel();
                        assert_eq!(second.join(cx).unwrap(), Err(Cancelled));
                    }
                    Ok(())
                })
                .unwrap();
            }
        })
        .unwrap();
    });
}

#[test]
fn j_13_a_semaphore_lets_so_many_in_and_nobody_overtakes() {
    everywhere(|rt| {
        let (doors, inside, most) = (Semaphore::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        rt.run(|cx| {
            cx.nursery_with(free(), |n| {
                for guest in 0..40 {
                    let (doors, inside, most) = (&doors, &inside, &most);
                    let task = move |cx: &Cx| {
                        let places = 1 + guest % 2;
                        let _permit = doors.acquire(cx, places).unwrap();
                        most.fetch_max(inside.fetch_add(places, Ordering::AcqRel) + places, Ordering::AcqRel);
                        cx.yield_now().unwrap();
                        inside.fetch_sub(places, Ordering::AcqRel);
                    };
                    drop(n.spawn(task));
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(doors.available(), 3);
            assert!(most.load(Ordering::Acquire) <= 3);
            // A task that wants all permits is not overtaken by those that want one; when it gives up, they go on.
            let one = doors.acquire(cx, 1).unwrap();
            cx.nursery_with(free(), |n| {
                let doors = &doors;
                let greedy = n.spawn(move |cx| doors.acquire(cx, 3).map(drop));
                until(cx, || greedy.state() == TaskState::Blocked);
                assert!(doors.try_acquire(cx, 1).unwrap().is_none());
                let modest = n.spawn(move |cx| doors.acquire(cx, 1).map(drop));
                until(cx, || modest.state() == TaskState::Blocked);
                greedy.cancel();
                assert_eq!(modest.join(cx).unwrap(), Ok(()));
                assert_eq!(greedy.join(cx).unwrap(), Err(Cancelled));
                Ok(())
            })
            .unwrap();
            one.forget();
            assert_eq!(doors.available(), 2);
            assert_eq!(doors.acquire_timeout(cx, 3, SHORT).unwrap_err(), WaitError::TimedOut);
        })
        .unwrap();
    });
}

fn meet(rt: &Runtime) {
    let (meeting, rounds) = (Barrier::new(5), StdMutex::new(Vec::new()));
    rt.run(|cx| {
        cx.nursery_with(free(), |n| {
            for _ in 0..5 {
                let (meeting, rounds) = (&meeting, &rounds);
                let task = move |cx: &Cx| {
                    for round in 0..10 {
                        rounds.lock().unwrap().push(round);
                        meeting.wait(cx).unwrap();
                    }
                };
                drop(n.spawn(task));
            }
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
    let expected: Vec<_> = (0..10).flat_map(|round| [round; 5]).collect();
    assert_eq!(rounds.into_inner().unwrap(), expected, "nobody is a round ahead");
}

#[test]
fn j_13_a_barrier_keeps_tasks_in_step() {
    everywhere(meet);
    under_seeds(meet);
}

fn make_once(rt: &Runtime) {
    let (cell, once, made, done) = (OnceCell::new(), Once::new(), AtomicUsize::new(0), AtomicUsize::new(0));
    rt.run(|cx| {
        cx.nursery_with(free(), |n| {
            for task in 0..20 {
                let (cell, once, made, done) = (&cell, &once, &made, &done);
                let user = move |cx: &Cx| -> Result<(), Cancelled> {
                    let value = cell.get_or_try_init(cx, |cx| {
                        cx.yield_now()?;
                        // The first attempts fail; the next one in line tries.
                        if made.fetch_add(1, Ordering::AcqRel) < 3 { Err(Cancelled) } else { Ok(task) }
                    });
                    if let Ok(value) = value {
                        assert_eq!(Some(value), cell.get());
                    }
                    once.call_once(cx, |_cx| {
                        done.fetch_add(1, Ordering::AcqRel);
                    })
                };
                drop(n.spawn(user));
            }
            Ok(())
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!((made.load(Ordering::Acquire), done.load(Ordering::Acquire)), (4, 1));
    assert!(once.is_completed() && cell.get().is_some());
}

#[test]
fn j_13_a_once_is_made_by_one_and_tried_again_after_a_failure() {
    everywhere(make_once);
    under_seeds(make_once);
}

#[test]
fn j_13_each_call_that_may_wait_is_charged_as_a_receive() {
    on(1, |cx| {
        cx.nursery(|n| {
            let budget = Budget { ops: 10_000, channel_ops: 1000, ..Budget::ZERO };
            let task = n.task().budget(budget).spawn(|cx| {
                let (mutex, doors, meeting, once) =
                    (Mutex::new(()), Semaphore::new(1), Barrier::new(1), OnceCell::new());
                let mut spent = Vec::new();
                let mut charge = |call: &dyn Fn()| {
                    let before = cx.budget();
                    call();
                    let after = cx.budget();
                    spent.push((before.channel_ops - after.channel_ops, before.ops - after.ops));
                };
                charge(&|| drop(mutex.lock(cx).unwrap()));
                charge(&|| drop(mutex.try_lock(cx).unwrap()));
                charge(&|| drop(doors.acquire(cx, 1).unwrap()));
                charge(&|| assert!(meeting.wait(cx).unwrap()));
                charge(&|| assert_eq!(once.get_or_init(cx, |_| 1), Ok(&1)));
                charge(&|| assert_eq!(once.get_or_init(cx, |_| 1), Ok(&1)));
                charge(&|| Condvar::new().notify_all());
                spent
            });
            let spent = task.join(cx).unwrap();
            assert_eq!(spent, [(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)]);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn j_13_the_same_seed_takes_locks_in_the_same_order() {
    let order = |seed| {
        let rt = seeded(4, seed);
        let order = Mutex::new(Vec::new());
        rt.run(|cx| {
            cx.nursery_with(free(), |n| {
                for task in 0..10 {
                    let order = &order;
                    drop(n.spawn(move |cx| {
                        (0..5).all(|_| order.lock(cx).map(|mut order| order.push(task)).is_ok())
                    }));
                }
                Ok(())
            })
            .unwrap();
        })
        .unwrap();
        (order.into_inner(), rt.order())
    };
    for seed in 0..20 {
        assert_eq!(order(seed), order(seed));
        assert_ne!(order(seed).0, order(seed + 1000).0);
    }
}

#[test]
fn j_13_timeouts_are_virtual_under_a_seed() {
    let rt = seeded(2, 3);
    let started = std::time::Instant::now();
    rt.run(|cx| {
        let (mutex, changed) = (Mutex::new(()), Condvar::new());
        let held = mutex.lock(cx).unwrap();
        let before = cx.now();
        assert_eq!(mutex.lock_timeout(cx, LONG).unwrap_err(), WaitError::TimedOut);
        assert_eq!(Semaphore::new(0).acquire_timeout(cx, 1, LONG).unwrap_err(), WaitError::TimedOut);
        assert!(changed.wait_timeout(cx, held, LONG).unwrap().1);
        assert!(cx.now() - before >= 3 * LONG);
    })
    .unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn j_13_unbounded_channels_never_wait_and_sends_can_time_out() {
    everywhere(|rt| {
        rt.run(|cx| {
            let (tx, rx) = unbounded();
            for number in 0..5000 {
                tx.try_send(cx, number).unwrap();
            }
            assert!((0..5000).all(|number| rx.recv(cx) == Ok(number)));
            let (tx, rx) = channel(1);
            tx.send_timeout(cx, 1, LONG).unwrap();
            assert_eq!(tx.send_timeout(cx, 2, SHORT), Err(SendError::Full(2)));
            assert_eq!(rx.recv(cx), Ok(1));
            cx.nursery_with(free(), |n| {
                let tx = &tx;
                tx.send(cx, 3).unwrap();
                let task = n.spawn(move |cx| tx.send_timeout(cx, 4, LONG));
                until(cx, || task.state() == TaskState::Blocked);
                task.cancel();
                assert_eq!(task.join(cx).unwrap(), Err(SendError::Cancelled(4)));
                Ok(())
            })
            .unwrap();
            drop(rx);
            assert_eq!(tx.send_timeout(cx, 5, LONG), Err(SendError::Closed(5)));
        })
        .unwrap();
    });
}
