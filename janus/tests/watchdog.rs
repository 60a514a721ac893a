//! J-18: a task that never checks is named, and its neighbours go on meanwhile.

use janus::{Config, Cx, Hog, Runtime};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trace::Kind;

const LIMIT: Duration = Duration::from_millis(10);
/// Long enough for anything here on a slow machine; only failures wait for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Spinning tasks take CPUs from each other: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Named = Arc<Mutex<Vec<Hog>>>;

fn watched(config: Config) -> (Runtime, Named) {
    let named = Named::default();
    let kept = named.clone();
    let config =
        config.watchdog(Some(LIMIT)).on_hog(move |hog| kept.lock().expect("nobody panics").push(hog.clone()));
    // SAFETY: no task here keeps anything of its thread over a suspension.
    (unsafe { Runtime::new(config) }.expect("a runtime"), named)
}

/// Spins, without a check, until `until` is true; false: it ran out of patience.
fn hog(until: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !until() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

#[test]
fn the_hog_is_named_and_tasks_that_never_ran_go_on() {
    let _alone = alone();
    for config in [Config::new().pinned(), Config::new()] {
        let (rt, named) = watched(config.workers(1).trace(1000));
        let ran = AtomicUsize::new(0);
        let mut id = None;
        let line = line!() + 5;
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                // Spawned first, so that it is run last of the three, if nobody relieves the worker: it is not the hog.
                drop(n.spawn(|_| ran.fetch_add(1, Ordering::Relaxed)));
                let child = n.task().name("greedy").spawn(|_| hog(|| ran.load(Ordering::Relaxed) == 1));
                id = Some(child.id());
                Ok(child.join(cx).expect("it returns"))
            })
        });
        assert!(matches!(result, Ok(Ok(true))), "the other task ran meanwhile: {result:?}");
        // The spare may have been quicker than the line that names the hog.
        assert!(hog(|| !named.lock().expect("nobody panics").is_empty()), "nobody was named");
        let named = named.lock().expect("nobody panics");
        assert_eq!(named.len(), 1, "once: {named:?}");
        let hog = &named[0];
        assert_eq!(
            (Some(hog.task), hog.name.as_deref(), hog.worker, hog.relieved),
            (id, Some("greedy"), 0, true)
        );
        let at = hog.spawned_at.expect("a place");
        assert!(at.file().ends_with("watchdog.rs") && at.line().abs_diff(line) <= 2, "{at}, not {line}");
        assert!(hog.held >= LIMIT);
        let text = hog.to_string();
        for part in ["greedy", "watchdog.rs", "worker 0", "spare", &hog.task.to_string()] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(rt.hogs(), *named);
        let trace = rt.trace().expect("a trace was asked for");
        assert!(trace.events.iter().any(|event| event.kind == Kind::Stall && event.cpu == 0));
        assert_eq!(trace.check(), Ok(()));
    }
}

#[test]
fn tasks_of_other_threads_go_on_as_well() {
    let _alone = alone();
    for config in [Config::new().pinned(), Config::new()] {
        let (rt, named) = watched(config.workers(1));
        let (ran, hogging) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (rt, ran, hogging) = (&rt, &ran, &hogging);
            // Fill the common queue while the worker is busy, so that it takes several along at once.
            let first = scope.spawn(move || rt.run(|_| std::thread::sleep(Duration::from_millis(5))));
            for i in 0..8 {
                scope.spawn(move || {
                    let result = rt.run(|_| {
                        if i == 0 {
                            hogging.store(true, Ordering::Relaxed);
                            return hog(|| ran.load(Ordering::Relaxed) == 7);
                        }
                        ran.fetch_add(1, Ordering::Relaxed);
                        true
                    });
                    assert!(result.expect("a task"), "the others ran meanwhile");
                });
            }
            first.join().expect("a thread").expect("a task");
        });
        assert!(hogging.into_inner());
        assert_eq!(ran.into_inner(), 7);
        drop(named);
    }
}

#[test]
fn tasks_that_had_started_go_on_by_default() {
    let _alone = alone();
    let (rt, named) = watched(Config::new().workers(1));
    let turns = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            for sleeps in [false, true] {
                let (turns, stop) = (&turns, &stop);
                let child = n.task().budget(janus::Budget::UNLIMITED).spawn(move |cx: &Cx| {
                    while !stop.load(Ordering::Relaxed) {
                        turns.fetch_add(1, Ordering::Relaxed);
                        let rest = if sleeps { cx.sleep(Duration::from_micros(10)) } else { cx.yield_now() };
                        rest.expect("nobody cancels");
                    }
                });
                drop(child);
            }
            while turns.load(Ordering::Relaxed) < 10 {
                cx.yield_now().expect("nobody cancels");
            }
            let before = turns.load(Ordering::Relaxed);
            let done = hog(|| turns.load(Ordering::Relaxed) > before + 100);
            stop.store(true, Ordering::Relaxed);
            Ok(done)
        })
    });
    assert!(matches!(result, Ok(Ok(true))), "{result:?}");
    assert_eq!(named.lock().expect("nobody panics")[0].name.as_deref(), Some("main"));
}

/// The worker threads, spares included, that run or sleep; there is one more for the watchdog.
fn worker_busy_after(rt: &Runtime, spare: usize, before: u64) -> bool {
    rt.stats().workers[spare].completed > before
}

#[test]
fn the_spare_retires_and_comes_back() {
    let _alone = alone();
    let (rt, named) = watched(Config::new().workers(1).spares(1));
    for round in 0..3 {
        let ran = AtomicBool::new(false);
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                drop(n.spawn(|_| ran.store(true, Ordering::Relaxed)));
                Ok(hog(|| ran.load(Ordering::Relaxed)))
            })
        });
        assert!(matches!(result, Ok(Ok(true))), "{result:?}");
        // There is one spare only: if it had not retired, the next hog would not be relieved.
        assert!(named.lock().expect("nobody panics").iter().all(|hog| hog.relieved), "round {round}");
        assert_eq!(named.lock().expect("nobody panics").len(), round + 1);
        // Let the watchdog see that the worker goes on.
        let start = Instant::now();
        let mut idle_rounds = 0;
        while idle_rounds < 5 && start.elapsed() < PATIENCE {
            let before = rt.stats().workers[1].completed;
            for _ in 0..50 {
                rt.run(|_| ()).expect("a task");
            }
            std::thread::sleep(LIMIT);
            idle_rounds = if worker_busy_after(&rt, 1, before) { 0 } else { idle_rounds + 1 };
        }
        assert_eq!(idle_rounds, 5, "the spare still serves");
    }
}

#[test]
fn two_hogs_get_two_spares_and_a_third_none() {
    let _alone = alone();
    for config in [Config::new().pinned(), Config::new()] {
        let (rt, named) = watched(config.workers(1).spares(2));
        let all_named = || named.lock().expect("nobody panics").len() >= 3;
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                let handles: Vec<_> = (0..2).map(|_| n.spawn(|_| hog(all_named))).collect();
                let mut done = hog(all_named);
                for handle in handles {
                    done &= handle.join(cx).expect("it returns");
                }
                Ok(done)
            })
        });
        assert!(matches!(result, Ok(Ok(true))), "{result:?}");
        // On a busy machine more may follow: a task whose thread loses its CPU for long looks like a hog.
        let named = &named.lock().expect("nobody panics")[..3];
        let relieved: Vec<bool> = named.iter().map(|hog| hog.relieved).collect();
        assert_eq!(relieved, [true, true, false]);
        let ids: std::collections::BTreeSet<_> = named.iter().map(|hog| hog.task).collect();
        assert_eq!(ids.len(), 3, "three different tasks");
        assert!(named[2].to_string().contains("no spare worker is left"));
    }
}

#[test]
fn without_a_watchdog_nobody_is_named() {
    let _alone = alone();
    for config in
        [Config::new().pinned().watchdog(None), Config::new().pinned().seed(1).watchdog(Some(LIMIT))]
    {
        let named = Named::default();
        let kept = named.clone();
        let config =
            config.workers(1).on_hog(move |hog| kept.lock().expect("nobody panics").push(hog.clone()));
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(config) }.expect("a runtime");
        assert_eq!(rt.stats().workers.len(), 1, "there is no spare either");
        let start = Instant::now();
        rt.run(|_| hog(|| start.elapsed() > LIMIT * 5)).expect("a task");
        assert_eq!(rt.hogs(), []);
        assert!(named.lock().expect("nobody panics").is_empty());
    }
}

#[test]
fn a_task_that_checks_is_never_named() {
    let _alone = alone();
    // A generous limit: between two checks this test's thread may lose its CPU.
    let limit = Duration::from_millis(500);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt =
        unsafe { Runtime::new(Config::new().pinned().workers(2).watchdog(Some(limit))) }.expect("a runtime");
    let start = Instant::now();
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            for _ in 0..4 {
                let child = n.task().budget(janus::Budget::UNLIMITED).spawn(|cx| {
                    while start.elapsed() < limit * 3 {
                        cx.check().expect("nobody cancels");
                    }
                });
                drop(child);
            }
            Ok(())
        })
    });
    assert!(matches!(result, Ok(Ok(()))), "{result:?}");
    assert_eq!(rt.hogs(), []);
}

#[test]
fn a_task_that_checks_all_alone_is_not_named_either() {
    let _alone = alone();
    // As generous as above.
    let limit = Duration::from_millis(500);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt =
        unsafe { Runtime::new(Config::new().pinned().workers(1).watchdog(Some(limit))) }.expect("a runtime");
    let start = Instant::now();
    let alone = rt.run(|cx| {
        while start.elapsed() < limit * 3 {
            cx.check().expect("nobody cancels");
        }
    });
    alone.expect("a task");
    assert_eq!(rt.hogs(), [], "it checks, though nobody else wants to run");
}

/// Threads of spares that there are in this process.
fn spare_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.flatten().filter_map(|task| name(task).ok()).filter(|name| name.starts_with("janus-spare")).count()
}

/// A spare is called, sent back and called again before its thread has run at all: it is not started twice.
#[test]
fn a_spare_has_one_thread_however_late_it_starts() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // New threads wait long for a CPU.
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let start = Instant::now();
        let mut most = 0;
        while most <= 1 && start.elapsed() < Duration::from_secs(4) {
            // The last one's thread was joined, but may still be on its way out.
            assert!(hog(|| spare_threads() == 0));
            let config = Config::new().workers(1).spares(1).on_hog(|_| ());
            // SAFETY: no task here keeps anything of its thread over a suspension.
            let rt =
                unsafe { Runtime::new(config.watchdog(Some(Duration::from_millis(1)))) }.expect("a runtime");
            let result = rt.run(|cx| {
                for _ in 0..4 {
                    let begun = Instant::now();
                    hog(|| begun.elapsed() > Duration::from_millis(4));
                    cx.yield_now().expect("nobody cancels");
                }
            });
            result.expect("the main task");
            most = most.max(spare_threads());
            if most > 1 {
                // It cannot be stopped any more.
                std::mem::forget(rt);
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(most <= 1, "{most} threads of one spare");
    });
}

/// Tasks that wait for I/O behind a task that never checks: the spare takes their answers, and them, where they may move.
#[test]
fn io_under_way_on_a_stuck_worker_goes_on_by_default() {
    let _alone = alone();
    for backend in [janus::io::Backend::Uring, janus::io::Backend::Epoll] {
        let config = Config::new().workers(1).io_backend(backend);
        let (rt, _) = watched(config);
        let (done, hogging) = (&AtomicUsize::new(0), &AtomicBool::new(false));
        let ends: Vec<_> = (0..8).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        std::thread::scope(|scope| {
            // The peers are outside: they ask, and wait for each answer.
            for mut peer in theirs {
                scope.spawn(move || {
                    use std::io::{Read, Write};
                    while !hogging.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    for round in 0..20_u8 {
                        peer.write_all(&[round]).unwrap();
                        let mut answer = [0];
                        peer.read_exact(&mut answer).unwrap();
                        assert_eq!(answer, [round]);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            let relieved = rt.run(|cx| {
                cx.nursery(|n| {
                    for stream in ours {
                        let stream = janus::net::UnixStream::from_std(stream).unwrap();
                        let echo = move |cx: &Cx| {
                            let mut byte = [0];
                            while stream.read(cx, &mut byte).is_ok_and(|got| got > 0) {
                                stream.write_all(cx, &byte).unwrap();
                            }
                        };
                        drop(n.spawn(echo));
                    }
                    // They all wait in the one worker's driver.
                    cx.sleep(Duration::from_millis(2)).unwrap();
                    hogging.store(true, Ordering::Relaxed);
                    Ok(hog(|| done.load(Ordering::Relaxed) == 8))
                })
            });
            assert!(
                relieved.unwrap().unwrap(),
                "{backend:?}: the peers were answered while the worker was stuck"
            );
        });
    }
}

/// Keeps the calling thread on the first of the CPUs that it may use.
fn stay_on_one_cpu() {
    // SAFETY: a set of CPUs is plain bits, there is room for the answer, and what is set is one of those that were there.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut all), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &all)).expect("a CPU");
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
    }
}

/// A worker that gets a tenth of a CPU is away for longer than the limit, again and again. A task that checks is not named
/// for it; one that does not still is.
#[test]
fn who_gets_no_cpu_is_no_hog() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..9 {
            threads.spawn(|| {
                stay_on_one_cpu();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (rt, named) = watched(Config::new().pinned().workers(1));
        let longest = rt.run(|cx| {
            stay_on_one_cpu();
            let (start, mut before, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
            while start.elapsed() < Duration::from_secs(3) {
                cx.yield_now().expect("nobody cancels");
                longest = longest.max(before.elapsed());
                before = Instant::now();
            }
            longest
        });
        let hogs = named.lock().expect("nobody panics").clone();
        let found = rt.run(|_| hog(|| !named.lock().expect("nobody panics").is_empty()));
        stop.store(true, Ordering::Relaxed);
        assert!(longest.as_ref().is_ok_and(|longest| *longest > LIMIT), "it was never away: {longest:?}");
        assert_eq!(hogs, [], "it was away for {longest:?} at most");
        assert!(matches!(found, Ok(true)), "a hog is named: {found:?}");
    });
}

/// The watchdog writes to standard error; whether that can be written must not matter to a task that waits behind a hog. The
/// test runs itself, because all tests of a process share its standard error.
#[test]
fn j_18_a_standard_error_that_takes_nothing_stops_no_watchdog() {
    const CHILD: &str = "JANUS_TEST_HOG";
    const NAME: &str = "j_18_a_standard_error_that_takes_nothing_stops_no_watchdog";
    if std::env::var_os(CHILD).is_some() {
        return relieved_in_time();
    }
    let _alone = alone();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let (closed, broken) = std::io::pipe().expect("a pipe");
    drop(closed);
    // Nobody reads this one, and it is full before it begins.
    let (_unread, stuck) = std::io::pipe().expect("a pipe");
    fill(&stuck);
    for (what, to) in [("/dev/full", full.into()), ("broken", broken.into()), ("stuck", stuck.into())] {
        let status = std::process::Command::new(std::env::current_exe().expect("a test"))
            // What is captured does not get there.
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr::<std::process::Stdio>(to)
            .status()
            .expect("it starts");
        assert!(status.success(), "standard error is {what}: {status}");
    }
}

/// Fills a pipe until it takes no more. Its own mode does not change: a later writer to it still blocks.
fn fill(pipe: &std::io::PipeWriter) {
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(pipe));
    let mut again =
        std::fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("a pipe");
    while std::io::Write::write(&mut again, &[b'.'; 4096]).is_ok() {}
}

/// One worker, and a hog that waits for a task behind it.
fn relieved_in_time() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt =
        unsafe { Runtime::new(Config::new().pinned().workers(1).watchdog(Some(LIMIT))) }.expect("a runtime");
    let ran = AtomicBool::new(false);
    let relieved = rt.run(|cx| {
        cx.nursery(|n| {
            drop(n.spawn(|_| ran.store(true, Ordering::Relaxed)));
            Ok(n.spawn(|_| hog(|| ran.load(Ordering::Relaxed))).join(cx).expect("it returns"))
        })
    });
    assert!(matches!(relieved, Ok(Ok(true))), "{relieved:?}");
    assert_eq!(rt.hogs().len(), 1);
}
