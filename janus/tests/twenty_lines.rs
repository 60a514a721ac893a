//! J-19, J-20: malicious programs of twenty lines without `unsafe` against the public interface.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod common;

use common::within;
use janus::{Budget, Config, Cx, NurseryOptions, Runtime, Selected, StackClass, TaskError, channel, sync};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[allow(unsafe_code)]
fn runtime(config: Config) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config) }.expect("a runtime")
}

const HOUR: Duration = Duration::from_secs(3600);

#[inline(never)]
fn deep(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    if n == u64::MAX { 0 } else { deep(n + 1) + frame[3] }
}

/// Calls `body` with so much less stack.
#[inline(never)]
fn lower(levels: usize, body: &mut dyn FnMut()) {
    let frame = black_box([levels; 16]);
    if levels == 0 {
        body()
    } else {
        lower(levels - 1, body)
    }
    black_box(frame);
}

/// A message that is larger than the rest of the stack: the next sender finds the channel in order.
fn large_messages<const BYTES: usize>(rt: &Runtime, capacity: usize) -> usize {
    let mut overflows = 0;
    let (tx, rx) = channel::<[u8; BYTES]>(capacity);
    for levels in 0..60 {
        let (tx, rx) = (tx.clone(), rx.clone());
        let end = rt.run_owned(move |cx| {
            cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                let sends = tx.clone();
                let child = n.task().stack(StackClass::Medium).owned().spawn(move |cx| {
                    lower(levels * 8, &mut || {
                        let _ = sends.try_send(cx, black_box([1; BYTES]));
                    });
                });
                let sent = child.join(cx);
                // Whatever became of it: the channel is nobody's in the middle of a change.
                let large = n.task().stack(StackClass::Huge).owned().spawn(move |cx| {
                    while rx.try_recv(cx).is_ok() {}
                    (0..capacity.min(2)).for_each(|_| assert!(tx.try_send(cx, [2; BYTES]).is_ok()));
                    (0..capacity.min(2))
                        .for_each(|_| assert!(rx.try_recv(cx).is_ok_and(|got| got == [2; BYTES])));
                });
                large.join(cx).expect("the channel works");
                Ok(sent.is_ok())
            })
        });
        overflows += usize::from(end.expect("the main task").is_err());
    }
    overflows
}

#[test]
fn j_19_a_message_that_is_larger_than_the_stack_leaves_the_channel_unlocked() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers).root_stack(StackClass::Huge));
            for capacity in [1, 3] {
                let mut overflows = large_messages::<3_000>(&rt, capacity);
                overflows += large_messages::<9_000>(&rt, capacity);
                overflows += large_messages::<17_000>(&rt, capacity);
                overflows += large_messages::<30_000>(&rt, capacity);
                assert!(overflows > 20, "{overflows}: nothing was large");
            }
        }
    });
}

/// Every way to use a channel, with whatever stack is left: it is either done or not, and others go on.
fn every_way<T: Send + Clone + PartialEq + std::fmt::Debug + 'static>(
    rt: &Runtime,
    message: &T,
    step: usize,
) {
    type Way<T> = fn(&Cx, &janus::Sender<T>, &janus::Receiver<T>, T);
    let ways: [Way<T>; 8] = [
        |cx, tx, _, message| ignore(tx.send(cx, message)),
        |cx, tx, _, message| ignore(tx.send_timeout(cx, message, Duration::from_millis(1))),
        |cx, tx, _, message| ignore(cx.select(&mut [&mut tx.arm(message)], Some(Duration::ZERO))),
        |_, tx, _, message| ignore(tx.send_blocking(message)),
        |cx, _, rx, _| ignore(rx.recv(cx)),
        |cx, _, rx, _| ignore(rx.recv_timeout(cx, Duration::from_millis(1))),
        |cx, _, rx, _| ignore(cx.select(&mut [&mut rx.arm()], Some(Duration::ZERO))),
        |_, _, rx, _| ignore(rx.recv_blocking()),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for levels in 0..40 {
            // Senders find room, receivers a message.
            let (tx, rx) = channel::<T>(2);
            let (message, sends, receives) = (message.clone(), tx.clone(), rx.clone());
            let end = rt.run_owned(move |cx| {
                assert!(tx.send(cx, message.clone()).is_ok());
                cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                    let sent = message.clone();
                    let child = n.task().stack(StackClass::Medium).owned().spawn(move |cx| {
                        let mut sent = Some(sent);
                        lower(levels * step, &mut || way(cx, &sends, &receives, sent.take().expect("once")));
                    });
                    let first = child.join(cx);
                    assert!(matches!(first, Ok(()) | Err(TaskError::StackOverflow)), "{number}: {first:?}");
                    // What is there is whole, and both ends work.
                    while let Ok(got) = rx.try_recv(cx) {
                        assert_eq!(got, message, "{number}");
                    }
                    assert!(tx.try_send(cx, message.clone()).is_ok(), "{number}, {levels}");
                    assert_eq!(rx.try_recv(cx).ok(), Some(message), "{number}, {levels}");
                    Ok(())
                })
            });
            let end = end.expect("the main task");
            assert!(matches!(end, Ok(()) | Err(TaskError::StackOverflow)), "{end:?}");
        }
    }
}

#[test]
fn j_19_a_stack_that_ends_inside_a_channel_leaves_it_whole() {
    within(|| {
        let rt = runtime(Config::new().workers(2).root_stack(StackClass::Huge));
        every_way(&rt, &7_u64, 24);
        every_way(&rt, &[7_u8; 120], 24);
        every_way(&rt, &vec![7_u8; 120], 24);
        every_way(&rt, &[7_u64; 500], 24);
        every_way(&rt, &[7_u64; 2000], 12);
    });
}

/// Results and closures that are larger than the stack that is left.
#[test]
fn j_19_results_and_closures_that_are_larger_than_the_stack() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            for levels in 0..40 {
                let end = rt.run_owned(move |cx| {
                    cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        let large = black_box([7_u8; 20_000]);
                        let child = n.task().stack(StackClass::Medium).children(9).owned().spawn(move |cx| {
                            let mut sum = 0;
                            lower(levels * 10, &mut || {
                                let inner = cx.nursery(|n| {
                                    let inner = n.spawn_owned(move |_| large);
                                    inner.join(cx).map(|result| usize::from(result[9]) + result.len())
                                });
                                sum = inner.unwrap_or(0);
                            });
                            sum
                        });
                        let first = child.join(cx);
                        assert!(matches!(first, Ok(0 | 20_007) | Err(TaskError::StackOverflow)), "{first:?}");
                        n.spawn(|_| 42).join(cx)
                    })
                });
                let end = end.expect("the main task");
                assert!(matches!(end, Ok(42) | Err(TaskError::StackOverflow)), "{end:?}");
            }
        }
    });
}

/// A nursery in a nursery, until the stack ends: each ends, with its children, and the last error says why.
#[test]
fn j_19_nurseries_that_nest_without_end_end_in_order() {
    fn nest(cx: &Cx, alive: &AtomicUsize) -> Result<(), TaskError> {
        cx.nursery(|n| {
            n.spawn(move |cx| {
                alive.fetch_add(1, Ordering::Relaxed);
                let _ = cx.sleep(HOUR);
                alive.fetch_sub(1, Ordering::Relaxed);
            });
            nest(cx, alive)
        })
    }
    within(|| {
        for workers in [1, 2] {
            for class in [StackClass::Lean, StackClass::Medium, StackClass::Huge] {
                let rt = runtime(Config::new().workers(workers));
                let alive = &AtomicUsize::new(0);
                let end = rt.run(|cx| {
                    cx.nursery(|n| {
                        n.task().stack(class).children(1 << 20).spawn(|cx| nest(cx, alive)).join(cx)?
                    })
                });
                assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{end:?}");
                assert_eq!(alive.load(Ordering::Relaxed), 0);
                let stats = rt.stats();
                assert_eq!(stats.stacks_abandoned, 0, "it was seen in time");
            }
        }
    });
}

/// An overflow that was seen in time is caught by the program itself, again and again.
#[test]
fn j_19_an_overflow_in_time_that_the_program_catches() {
    fn down(cx: &Cx, n: u64) -> u64 {
        cx.ensure_stack(2048);
        if n == u64::MAX { 0 } else { black_box(down(cx, n + 1)) + n }
    }
    within(|| {
        let rt = runtime(Config::new().workers(1));
        let caught = &AtomicUsize::new(0);
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn(|cx| {
                    for _ in 0..100 {
                        let end = catch_unwind(AssertUnwindSafe(|| down(cx, 0)));
                        caught.fetch_add(usize::from(end.is_err()), Ordering::Relaxed);
                    }
                    42
                });
                child.join(cx)
            })
        });
        assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{end:?}");
        assert_eq!(caught.load(Ordering::Relaxed), 100);
        assert_eq!(rt.run(|cx| cx.check().is_ok()).ok(), Some(true));
    });
}

/// Whatever comes of it.
fn ignore<T>(_: T) {}

/// Unwinds, or has unwound: what it does there it does with the task's `Cx`.
struct AtTheEnd<'a, F: FnMut(&Cx)>(&'a Cx, F);

impl<F: FnMut(&Cx)> Drop for AtTheEnd<'_, F> {
    fn drop(&mut self) {
        (self.1)(self.0);
    }
}

/// Destructors that wait, spawn, select, lock and open nurseries while their task panics.
#[test]
fn j_19_destructors_that_wait_while_their_task_panics() {
    within(|| {
        for workers in [1, 2] {
            for which in 0..8 {
                let rt = runtime(Config::new().workers(workers));
                let (ran, lock) = (&AtomicUsize::new(0), &sync::Mutex::new(0));
                let end = rt.run(|cx| {
                    cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        // Somebody else panics, and unwinds, on the same thread.
                        for _ in 0..3 {
                            n.spawn(|cx| {
                                let _ = cx.yield_now();
                                let _bomb = AtTheEnd(cx, |cx| ignore(cx.yield_now()));
                                std::panic::resume_unwind(Box::new("neighbour"));
                            });
                        }
                        let child = n.task().children(100).spawn(move |cx| {
                            let (tx, rx) = channel::<u32>(0);
                            let _end = AtTheEnd(cx, |cx| {
                                assert!(std::thread::panicking());
                                match which {
                                    0 => ignore(cx.sleep(Duration::from_millis(1))),
                                    1 => ignore(cx.yield_now()),
                                    2 => drop(lock.lock(cx).map(|mut value| *value += 1)),
                                    3 => drop(tx.send(cx, 1)),
                                    4 => ignore(
                                        cx.select(&mut [&mut rx.arm()], Some(Duration::from_millis(1))),
                                    ),
                                    5 => drop(cx.nursery(|n| {
                                        n.spawn(|cx| {
                                            let _ = cx.yield_now();
                                            ran.fetch_add(1, Ordering::Relaxed);
                                        });
                                        Ok(())
                                    })),
                                    6 => drop(cx.nursery(|n| {
                                        let child = n.spawn(|cx| cx.sleep(HOUR).is_ok());
                                        Ok(child.join(cx).is_ok())
                                    })),
                                    _ => drop(cx.shield(HOUR, || cx.timeout(HOUR, || Ok(cx.yield_now()?)))),
                                }
                                ran.fetch_add(1, Ordering::Relaxed);
                            });
                            std::panic::resume_unwind(Box::new("the task"));
                        });
                        let end: Result<(), _> = child.join(cx);
                        assert!(matches!(end, Err(TaskError::Panicked(_))), "{which}: {end:?}");
                        Ok(())
                    })
                });
                assert!(matches!(end, Ok(Err(TaskError::Panicked(_)))), "{which}: {end:?}");
                assert!(ran.load(Ordering::Relaxed) >= 1, "{which}: the destructor came to its end");
                let calm = rt.run(|cx| {
                    cx.nursery(|n| (0..8).map(|_| n.spawn(|_| std::thread::panicking()).join(cx)).collect())
                });
                assert_eq!(calm.ok().and_then(Result::ok), Some(vec![false; 8]), "{which}");
            }
        }
    });
}

/// A destructor that overflows while its task is cancelled, unwinds, or has panicked.
#[test]
fn j_19_destructors_that_overflow_at_the_end() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            for way in 0..4 {
                let begun = Arc::new(AtomicUsize::new(0));
                let begins = begun.clone();
                let end = rt.run(|cx| {
                    cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        let child = n.spawn_owned(move |cx| {
                            begins.store(1, Ordering::Release);
                            let _end = AtTheEnd(cx, |_| assert!(deep(0) > 0));
                            match way {
                                0 => drop(cx.sleep(HOUR)),
                                1 => std::panic::resume_unwind(Box::new("quietly")),
                                2 => drop(catch_unwind(AssertUnwindSafe(|| {
                                    let _inner = AtTheEnd(cx, |_| assert!(deep(0) > 0));
                                    std::panic::resume_unwind(Box::new("inside"));
                                }))),
                                _ => cx.ensure_stack(1 << 30),
                            }
                        });
                        common::until(cx, || begun.load(Ordering::Acquire) == 1);
                        child.cancel();
                        Ok(child.join(cx))
                    })
                });
                assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{way}: {end:?}");
                assert_eq!(rt.run(|cx| cx.yield_now().is_ok()).ok(), Some(true), "{way}");
            }
        }
    });
}

/// Threads that a task starts ask its nursery, and are refused a child: they have no budget. Tasks of another runtime have one.
#[test]
fn j_19_threads_of_a_task_use_its_nursery() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            let other = runtime(Config::new().workers(2));
            let count = &AtomicUsize::new(0);
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    std::thread::scope(|threads| {
                        for _ in 0..3 {
                            threads.spawn(|| {
                                for _ in 0..50 {
                                    assert!(n.try_spawn(|_| ()).is_err());
                                    black_box((n.live(), n.is_cancelled(), n.pool()));
                                }
                            });
                            threads.spawn(|| {
                                let spawns = |_: &Cx| {
                                    for _ in 0..50 {
                                        n.spawn(|cx| {
                                            let _ = cx.yield_now();
                                            count.fetch_add(1, Ordering::Relaxed);
                                        });
                                    }
                                };
                                other.run(spawns).expect("the other runtime");
                            });
                        }
                    });
                    Ok(())
                })
            });
            assert!(matches!(end, Ok(Ok(()))), "{end:?}");
            assert_eq!(count.load(Ordering::Relaxed), 150);
        }
    });
}

/// What is leaked: arms, guards, handles, permits.
#[test]
fn j_19_whatever_is_leaked() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            let gate = Arc::new(sync::Semaphore::new(3));
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    let (tx, rx) = channel::<Box<u32>>(1);
                    for round in 0..20 {
                        let handle = n.spawn(move |_| Box::new(round));
                        std::mem::forget(handle);
                        let mut arm = rx.arm();
                        let none = cx.select(&mut [&mut arm], Some(Duration::ZERO))?;
                        assert_eq!(none, Selected::Timeout);
                        std::mem::forget(arm);
                        let mut full = tx.arm(Box::new(1));
                        let _ = cx.select(&mut [&mut full], Some(Duration::ZERO))?;
                        std::mem::forget(full);
                        assert_eq!(*rx.recv(cx)?, 1);
                        std::mem::forget(cx.ticker());
                    }
                    std::mem::forget(gate.acquire(cx, 2)?);
                    assert_eq!(gate.available(), 1);
                    std::mem::forget(cx.hold_memory(10));
                    Ok(())
                })
            });
            assert!(matches!(end, Ok(Ok(()))), "{end:?}");
        }
    });
}

/// Numbers at the ends of their ranges.
#[test]
fn j_19_numbers_at_the_ends_of_their_ranges() {
    static WATCHDOGS: AtomicUsize = AtomicUsize::new(0);
    within(|| {
        // A watchdog that panics is none.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            WATCHDOGS.fetch_add(
                usize::from(std::thread::current().name() == Some("janus-watchdog")),
                Ordering::Relaxed,
            );
            before(info);
        }));
        for limit in [Duration::ZERO, Duration::MAX] {
            let config = Config::new().workers(1).watchdog(Some(limit)).spares(usize::MAX).quantum(0);
            let config = config.yield_interval(0).memory_reserve(u64::MAX).blocking_threads(usize::MAX);
            let rt = runtime(config.on_hog(|_| {}));
            // The watchdog is there, and looks at somebody who does not move.
            let end = rt.run(|cx| {
                std::thread::sleep(Duration::from_millis(120));
                let (tx, rx) = channel::<u8>(usize::MAX);
                tx.send(cx, 1).unwrap();
                assert_eq!(rx.recv_timeout(cx, Duration::MAX), Ok(1));
                assert!(cx.timeout(Duration::MAX, || Ok(cx.yield_now()?)).is_ok());
                assert!(matches!(
                    cx.timeout(Duration::ZERO, || Ok(cx.sleep(HOUR)?)),
                    Err(TaskError::TimedOut)
                ));
                cx.shield(Duration::MAX, || cx.shield(Duration::ZERO, || cx.yield_now()))?;
                let gate = sync::Semaphore::new(usize::MAX);
                drop(gate.acquire(cx, usize::MAX)?);
                let late = cx.timeout(Duration::from_millis(1), || Ok(cx.sleep(Duration::MAX)?));
                assert!(matches!(late, Err(TaskError::TimedOut)), "{late:?}");
                let long = "€".repeat(100);
                cx.nursery(|n| {
                    let child = n.task().name(long).budget(Budget { memory: 0, ..Budget::UNLIMITED });
                    child.children(u64::MAX).spawn(|cx| cx.charge_ops(u64::MAX).is_ok()).join(cx)
                })
            });
            assert!(matches!(end, Ok(Ok(_))), "{end:?}");
            assert_eq!(WATCHDOGS.load(Ordering::Relaxed), 0, "{limit:?}");
        }
    });
}

/// No arm at all, arms that are dropped in the middle, arms of a channel that closes, chosen again and again.
#[test]
fn j_20_selects_of_nothing_and_of_what_goes_away() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            let end = rt.run(|cx| {
                assert_eq!(cx.select(&mut [], Some(Duration::from_millis(1)))?, Selected::Timeout);
                let begun = &AtomicUsize::new(0);
                cx.nursery(|n| {
                    let forever = n.spawn(move |cx| {
                        begun.store(1, Ordering::Release);
                        cx.select(&mut [], None).is_err()
                    });
                    common::until(cx, || begun.load(Ordering::Acquire) == 1);
                    forever.cancel();
                    assert!(forever.join(cx)?, "a wait for nothing ends when it is told to");
                    let (tx, rx) = channel::<String>(0);
                    let waits = n.spawn({
                        let rx = rx.clone();
                        move |cx| {
                            let (mut one, mut two) = (rx.arm(), rx.arm());
                            let chosen = cx.select(&mut [&mut one, &mut two], None)?;
                            drop(one);
                            drop(two);
                            Ok::<_, TaskError>(chosen)
                        }
                    });
                    cx.sleep(Duration::from_millis(1))?;
                    drop(tx);
                    assert!(matches!(waits.join(cx)??, Selected::Arm(_)));
                    for _ in 0..10 {
                        let mut closed = rx.arm();
                        assert_eq!(cx.select(&mut [&mut closed], None)?, Selected::Arm(0));
                        assert!(closed.into_result().is_err());
                    }
                    Ok(())
                })
            });
            assert!(matches!(end, Ok(Ok(()))), "{end:?}");
        }
    });
}

/// Tasks that use their thread's own parking place, as code for threads does.
#[test]
fn j_19_tasks_that_park_and_unpark_their_thread() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            let threads: &Mutex<Vec<std::thread::Thread>> = &Mutex::new(Vec::new());
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    for i in 0..20 {
                        n.spawn(move |cx| {
                            for _ in 0..20 {
                                threads.lock().unwrap().push(std::thread::current());
                                std::thread::current().unpark();
                                if i % 2 == 0 {
                                    std::thread::park_timeout(Duration::from_micros(10));
                                }
                                let _ = cx.sleep(Duration::from_micros(50));
                                threads.lock().unwrap().iter().for_each(std::thread::Thread::unpark);
                            }
                        });
                    }
                    Ok(())
                })
            });
            assert!(matches!(end, Ok(Ok(()))), "{end:?}");
        }
    });
}

/// A runtime in a task of another, dropped there, with a task in it that was given up.
#[test]
fn j_19_runtimes_in_tasks() {
    within(|| {
        let rt = runtime(Config::new().workers(2));
        for _ in 0..5 {
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    let child = n.spawn(|_| {
                        let inner = runtime(Config::new().workers(1));
                        let end = inner.run_owned(|cx| {
                            cx.nursery(|n| n.task().owned().spawn(|_| deep(0)).join(cx)).map(|_| ())
                        });
                        (
                            end.is_ok_and(|end| matches!(end, Err(TaskError::StackOverflow))),
                            inner.run(|_| 7).ok(),
                        )
                    });
                    child.join(cx)
                })
            });
            assert!(matches!(end, Ok(Ok((true, Some(7))))), "{end:?}");
        }
    });
}
