//! J-07, J-08, J-09: behaviour of an idle worker that no test from outside can see. These tests look inside: at how
//! many victims a round looks, how a worker backs off, and what happens between a task's last look and its first sleep.

use super::*;
use crate::config::Config;
use crate::runtime::Runtime;
use crate::state::Event;
use crate::task::Wait;
use std::panic::Location;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};

/// Far longer than any of these tests takes: a test that is not over by then hangs.
const PATIENCE: Duration = Duration::from_secs(25);

/// Runs `test`, and fails if it hangs.
fn within(test: impl FnOnce() + Send + 'static) {
    let (done, end) = channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    assert_ne!(end.recv_timeout(PATIENCE), Err(RecvTimeoutError::Timeout), "the test hangs");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn runtime(config: Config) -> Runtime {
    // SAFETY: no task here keeps anything of its thread across a suspension.
    unsafe { Runtime::new(config.watchdog(None)) }.expect("a runtime")
}

/// [SCHED:7.2.1]: 4, however many workers there are. The number is written out because it is the specification's.
#[test]
fn j_08_a_round_of_stealing_looks_at_four_victims_at_most() {
    within(|| {
        for strategy in [Strategy::RandomVictim, Strategy::RoundRobin, Strategy::LeastLoaded] {
            for workers in [1, 2, 4, 5, 6, 16, 64] {
                let rt = runtime(Config::new().workers(workers).spares(0).strategy(strategy));
                let most = rt.run(|cx| {
                    let worker = cx.worker();
                    let failed = || worker.counters.steals_failed.load(Ordering::Relaxed);
                    let looks = (0..200).map(|_| {
                        let before = failed();
                        // This is the only task, so there is nothing to steal.
                        assert!(!matches!(worker.try_steal(), Look::Found(_)));
                        failed() - before
                    });
                    looks.max().expect("200 rounds")
                });
                // A random victim may be the thief itself, but not in all of 200 rounds.
                let expected = (workers as u64 - 1).min(4);
                assert_eq!(most.expect("the task ends"), expected, "{strategy:?}, {workers} workers");
            }
        }
    });
}

/// [SCHED:6.3.1], J-07: 1 µs, doubled each time, up to 1 ms, then no more.
#[test]
fn j_07_the_back_off_goes_from_a_microsecond_to_a_millisecond() {
    let naps: Vec<u128> = (0..).map_while(nap).map(|nap| nap.as_micros()).collect();
    assert_eq!(naps, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
}

/// A worker with nothing to do takes all its naps once and then sleeps: it takes no more naps, and no CPU time at all.
/// New work starts this over.
#[test]
fn j_07_an_idle_worker_backs_off_and_then_sleeps() {
    within(|| {
        for config in [Config::new(), Config::new().pinned()] {
            let rt = runtime(config.workers(1).spares(0));
            let worker = &rt.shared.workers[0];
            let naps = || worker.counters.naps.load(Ordering::Relaxed);
            // Neither in a nap, which would take a little CPU time meanwhile, nor waiting for a CPU.
            let asleep = || {
                let before = worker.cpu.time_ns();
                std::thread::sleep(Duration::from_millis(10));
                before.is_some() && before == worker.cpu.time_ns() && !worker.cpu.wants_cpu()
            };
            while !asleep() {}
            for _ in 0..3 {
                let before = naps();
                rt.run(|_| ()).expect("a task");
                while !asleep() {}
                assert_eq!(naps(), before + 11, "each nap is taken once");
            }
        }
    });
}

/// A cancellation that comes after the child has looked for one, and before it has slept: the child is not listed then,
/// so it must find out by itself, or it sleeps for ever. The child plays the other thread, at exactly that moment.
#[test]
fn j_09_a_cancellation_is_not_lost_at_a_first_sleep() {
    within(|| {
        for (workers, seed) in [(1, None), (2, None), (2, Some(7))] {
            let config = Config::new().workers(workers);
            let rt = runtime(match seed {
                Some(seed) => config.seed(seed),
                None => config,
            });
            let woken = AtomicBool::new(false);
            let ended = rt.run(|cx| {
                cx.nursery(|n| {
                    let child = n.spawn(|cx| {
                        assert!(!cx.is_asked(), "it looks, and goes on");
                        // SAFETY: the task runs, so its nursery is there.
                        let nursery = unsafe { cx.task.nursery.get().as_ref() }.expect("a child has one");
                        nursery.cancel(None);
                        cx.worker().sleep(cx.task, Event::Block, Wait::Sleep, Location::caller());
                        woken.store(cx.is_asked(), Ordering::Relaxed);
                    });
                    drop(child);
                    Ok(())
                })
            });
            assert!(ended.expect("the main task ends").is_err(), "the nursery was cancelled");
            assert!(woken.load(Ordering::Relaxed), "the child woke, and saw why");
        }
    });
}

/// A worker that runs one task after the other is looked at less often, also when none of them waits at the very
/// moment: each look costs it a cache miss. A worker that stands still is looked at again at once.
#[test]
fn j_08_a_worker_that_moves_on_is_left_in_peace() {
    within(|| {
        let rt = runtime(Config::new().workers(2).spares(0));
        rt.run(|cx| {
            let worker = cx.worker();
            let other = &cx.shared().workers[usize::from(1 - worker.index)];
            // The other worker has nothing to run, so its beacon stands still unless we move it.
            let _ = worker.try_steal();
            assert!(matches!(worker.try_steal(), Look::Nothing));
            for _ in 0..3 {
                other.beacon.move_on();
                assert!(matches!(worker.try_steal(), Look::Busy));
                assert!(matches!(worker.try_steal(), Look::Nothing));
            }
        })
        .expect("the task ends");
    });
}

/// The pause between two looks at workers that run one task after the other grows to its most, one look without movement does not end that, and a worker
/// that has seen none for a while is back at the shortest.
#[test]
fn j_08_a_single_look_without_movement_does_not_bring_a_thief_back_at_once() {
    let after = |look: &Look, times: u32, pauses: u32| {
        (0..times).fold(pauses, |pauses, _| pauses_after(look, pauses))
    };
    let busy = after(&Look::Busy, 20, PAUSES);
    assert_eq!(busy, PAUSES_MOST);
    assert!(pauses_after(&Look::Nothing, busy) >= PAUSES_MOST / 2);
    assert_eq!(after(&Look::Nothing, 20, busy), PAUSES);
}

/// A spare that stands in for a worker without I/O sleeps: a thread that wakes for nothing takes a CPU from threads
/// that were woken for something. If that worker has I/O under way, the spare looks from time to time.
#[test]
fn j_13_a_spare_wakes_for_the_io_of_a_stuck_worker_only_if_there_is_any() {
    within(|| {
        for with_io in [false, true] {
            let config = Config::new().workers(1).spares(1).on_hog(|_| ());
            // SAFETY: no task here keeps anything of its thread across a suspension.
            let rt =
                unsafe { Runtime::new(config.watchdog(Some(Duration::from_millis(5)))) }.expect("a runtime");
            let (stop, spare) = (&AtomicBool::new(false), &rt.shared.workers[1]);
            let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    while !spare.io.covers() {
                        std::thread::yield_now();
                    }
                    assert_eq!(spare.io.covers_io(spare), with_io);
                    // As in the test of idle workers: it uses no CPU time at all, and wants none.
                    let asleep = || {
                        let before = spare.cpu.time_ns();
                        std::thread::sleep(Duration::from_millis(10));
                        before.is_some() && before == spare.cpu.time_ns() && !spare.cpu.wants_cpu()
                    };
                    while !with_io && !asleep() {}
                    stop.store(true, Ordering::Release);
                });
                rt.run(|cx| {
                    cx.nursery(|nursery| {
                        if with_io {
                            let reader = crate::net::UnixStream::from_std(reader)?;
                            nursery.spawn_try(move |cx| reader.read(cx, &mut [0; 1]).map(drop));
                            // The child has run, and waits.
                            while !cx.worker().io.is_busy() {
                                cx.yield_now()?;
                            }
                        }
                        while !stop.load(Ordering::Acquire) {
                            spin_loop();
                        }
                        drop(writer);
                        Ok(())
                    })
                })
                .expect("the task ends")
                .expect("the children end");
            });
        }
    });
}
