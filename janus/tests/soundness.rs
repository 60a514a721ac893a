//! J-19: whatever overflows, no task sees memory in the middle of a change. A task that borrows is abandoned with all tasks
//! that lent it something: the parent of the nearest owned one gets the error, and without one the process ends, with a
//! message.

mod common;

use common::within;
use janus::{Config, Cx, NurseryOptions, Runtime, Scope, StackClass, TaskError, channel, sync};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

fn runtime(config: Config) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config) }.expect("a runtime")
}

#[inline(never)]
fn deep(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    if n == u64::MAX { 0 } else { deep(n + 1) + frame[3] }
}

/// A value that must never be dropped, or compared, once its family is given up.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// What is counted is the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Watched(String);

impl Drop for Watched {
    fn drop(&mut self) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often values are compared before the stack ends.
static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

impl Ord for Watched {
    fn cmp(&self, other: &Watched) -> std::cmp::Ordering {
        if LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            deep(0);
        }
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Watched {
    fn partial_cmp(&self, other: &Watched) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Watched {
    fn eq(&self, other: &Watched) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Watched {}

/// What a task changes when its stack ends.
struct Lent {
    list: Vec<Watched>,
    heap: BinaryHeap<Watched>,
    map: BTreeMap<Watched, u64>,
    queue: VecDeque<Watched>,
    locked: Mutex<Vec<Watched>>,
    shared: RwLock<Vec<Watched>>,
    ours: sync::Mutex<Vec<Watched>>,
}

fn names() -> impl Iterator<Item = Watched> {
    (0..24_u32).map(|i| Watched(format!("{:08x} {}", i.wrapping_mul(0x9E37_79B9), "x".repeat(40))))
}

/// Others than those.
fn more() -> impl Iterator<Item = Watched> {
    (0..24).map(|i| Watched(format!("{i:02} more")))
}

impl Lent {
    fn new() -> Lent {
        LEFT.store(usize::MAX, Ordering::Relaxed);
        Lent {
            list: names().collect(),
            heap: names().collect(),
            map: names().map(|name| (name, 0)).collect(),
            queue: names().collect(),
            locked: Mutex::new(names().collect()),
            shared: RwLock::new(names().collect()),
            ours: sync::Mutex::new(names().collect()),
        }
    }
}

/// Ways to be in the middle of a change.
type Change = fn(&Cx, &mut Lent);
const CHANGES: [(&str, Change); 8] = [
    ("sort", |_, lent| lent.list.sort()),
    ("unstable sort", |_, lent| lent.list.sort_unstable()),
    ("heap", |_, lent| lent.heap.extend(more())),
    ("map", |_, lent| lent.map.extend(more().map(|name| (name, 1)))),
    ("queue", |_, lent| lent.queue.make_contiguous().sort()),
    ("mutex", |_, lent| lent.locked.lock().unwrap().sort()),
    ("read-write lock", |_, lent| lent.shared.write().unwrap().sort()),
    ("mutex of janus", |cx, lent| lent.ours.lock(cx).unwrap().sort()),
];

/// Lends `lent` down through `levels` nurseries, with busy siblings at each; the last borrower is to overflow.
fn lend(cx: &Cx, levels: usize, lent: &mut Lent, change: Change, comparisons: usize) {
    let busy = &AtomicUsize::new(0);
    let passed = cx.nursery(|n| {
        n.spawn(move |_| {
            (0..20_000).for_each(|_| {
                busy.fetch_add(1, Ordering::Relaxed);
            })
        });
        n.spawn(move |cx| while cx.yield_now().is_ok() {});
        let child = n.task().stack(StackClass::Medium).children(100 * levels as u64);
        let child = child.spawn(move |cx| {
            if levels > 1 {
                lend(cx, levels - 1, lent, change, comparisons);
            } else {
                LEFT.store(comparisons, Ordering::Relaxed);
                change(cx, lent);
            }
        });
        // By a join, or by the nursery's end: neither comes back.
        if levels.is_multiple_of(2) {
            let _ = child.join(cx);
            unreachable!("a borrower's overflow was joined");
        }
        Ok(())
    });
    unreachable!("a nursery was left whose child was given up: {passed:?}");
}

fn overflowed<T: std::fmt::Debug>(end: &Result<T, TaskError>) {
    assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}");
}

/// With an owned task at the top of the family, its parent goes on, in every configuration.
#[test]
fn j_19_an_owned_family_fails_alone() {
    within(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, change) in CHANGES {
            let two = || Config::new().workers(2).watchdog(None);
            let configs = [
                (1, two().workers(1)),
                (1, two()),
                (2, two().pinned()),
                (2, two().workers(4)),
                (3, two()),
                (2, two().seed(7)),
            ];
            for (levels, config) in configs {
                let rt = runtime(config);
                let before = SEEN.load(Ordering::Relaxed);
                let comparisons = 5 + levels;
                let end = rt.run(|cx| {
                    cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        let root = n.task().stack(StackClass::Medium).children(1 << 30).owned();
                        let root = root.spawn(move |cx| {
                            let mut lent = Lent::new();
                            lend(cx, levels, &mut lent, change, comparisons);
                        });
                        overflowed(&root.join(cx));
                        // The siblings of the owned one, and its parent, go on.
                        Ok(n.spawn(|cx| cx.yield_now().is_ok()).join(cx).unwrap())
                    })
                });
                assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{name}: {end:?}");
                assert_eq!(rt.run(|_| 7).unwrap(), 7, "{name}: the runtime goes on");
                drop(rt);
                assert_eq!(SEEN.load(Ordering::Relaxed), before, "{name}, {levels} levels: somebody saw it");
            }
        }
    });
}

/// Runs the test `name` of this program by itself, and answers what it wrote if it was aborted.
fn aborted(name: &str, case: &str) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).env("JANUS_CASE", case);
    let output = command.output().expect("a child process");
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case}: {:?} {text}", output.status);
    text
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn lend_without_an_owned_one() {
    let Ok(case) = std::env::var("JANUS_CASE") else { return };
    let mut numbers = case.split(' ').map(|number| number.parse::<usize>().expect("a number"));
    let [change, levels, workers] = std::array::from_fn(|_| numbers.next().expect("three of them"));
    let mut lent = Lent::new();
    let rt = runtime(Config::new().workers(workers));
    let _ = rt.run(|cx| lend(cx, levels, &mut lent, CHANGES[change].1, 6));
    println!("it went on");
}

/// Without an owned task the process ends, and says which task it was and what to do.
#[test]
fn j_19_without_an_owned_one_the_process_ends_by_name() {
    for (change, levels, workers) in [(0, 1, 1), (0, 2, 2), (0, 3, 4), (2, 1, 2), (5, 2, 1), (7, 1, 1)] {
        let text = aborted("lend_without_an_owned_one", &format!("{change} {levels} {workers}"));
        assert!(text.contains("janus: abort: task #"), "{text}");
        assert!(text.contains("spawned at janus/tests/soundness.rs:"), "{text}");
        assert!(text.contains("overflowed its stack") && text.contains("Spawn::owned"), "{text}");
        assert!(!text.contains("it went on"), "{text}");
    }
}

/// A thread that the given-up task lent its frame to, and its nursery, goes on reading both when the runtime is long gone.
#[test]
fn j_19_a_thread_that_borrows_from_a_given_up_task_goes_on() {
    static READS: AtomicUsize = AtomicUsize::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    fn reads(text: &str, scope: &Scope<'_, '_>) {
        while !STOP.load(Ordering::Acquire) {
            if text != "I am alive and I am long enough for the heap" {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            scope.cancel();
            WRONG.fetch_add(usize::from(!scope.is_cancelled() || scope.live() > 1), Ordering::Relaxed);
            READS.fetch_add(1, Ordering::Release);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    within(|| {
        let rt = runtime(Config::new().workers(2));
        let end = rt.run(|cx| {
            cx.nursery(|n| {
                let root = n.task().stack(StackClass::Huge).children(9).owned().spawn(|cx| {
                    let text = String::from("I am alive and I am long enough for the heap");
                    let _ = cx.nursery(|inner| {
                        drop(inner.spawn(|cx| cx.sleep(Duration::from_secs(3600))));
                        std::thread::scope(|threads| {
                            threads.spawn(|| reads(&text, inner));
                            while READS.load(Ordering::Acquire) < 3 {
                                std::thread::yield_now();
                            }
                            deep(0);
                        });
                        Ok(())
                    });
                });
                overflowed(&root.join(cx));
                Ok(())
            })
        });
        assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{end:?}");
        drop(rt);
        let noise: Vec<String> = (0..64).map(|i| format!("{i:*>44}")).collect();
        let (reads, begun) = (READS.load(Ordering::Acquire), std::time::Instant::now());
        while READS.load(Ordering::Acquire) < reads + 50 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the thread is gone");
            std::thread::sleep(Duration::from_millis(1));
        }
        STOP.store(true, Ordering::Release);
        assert_eq!(WRONG.load(Ordering::Relaxed), 0);
        assert_eq!(noise.len(), 64);
    });
}

/// A lender that runs while its borrower is given up, and only then asks for it, does not learn of it.
#[test]
fn j_19_a_late_join_does_not_return() {
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static WENT_ON: AtomicUsize = AtomicUsize::new(0);
    within(|| {
        let rt = runtime(Config::new().workers(2).watchdog(None));
        for round in 0..10 {
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    let root = n.task().stack(StackClass::Medium).children(1).owned().spawn(move |cx| {
                        let mut list = vec![round; 9];
                        let lent = &mut list;
                        let _ = cx.nursery(|n| {
                            let child = n.spawn(move |_| {
                                lent.clear();
                                BEGUN.fetch_add(1, Ordering::Release);
                                deep(0)
                            });
                            // It does not check, and its worker is busy: the other one runs the child to its end.
                            while BEGUN.load(Ordering::Acquire) <= round {
                                std::hint::spin_loop();
                            }
                            std::thread::sleep(Duration::from_millis(10));
                            WENT_ON.fetch_add(usize::from(child.is_finished()), Ordering::Relaxed);
                            let _ = child.join(cx);
                            WENT_ON.fetch_add(1, Ordering::Relaxed);
                            Ok(())
                        });
                    });
                    overflowed(&root.join(cx));
                    Ok(())
                })
            });
            assert!(end.unwrap().is_err());
        }
        assert_eq!(WENT_ON.load(Ordering::Relaxed), 0);
    });
}

/// The thread on which a task was abandoned has thread-locals in the middle of a change: no other task sees them, and they
/// are not dropped.
#[test]
fn j_19_thread_locals_go_with_the_thread() {
    struct Half(std::cell::Cell<bool>);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    impl Drop for Half {
        fn drop(&mut self) {
            DROPPED.fetch_add(usize::from(self.0.get()), Ordering::Relaxed);
        }
    }
    thread_local! {
        static LOCAL: Half = const { Half(std::cell::Cell::new(false)) };
    }
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            for _ in 0..20 {
                let end = rt.run_owned(|cx| {
                    let mut seen = 0;
                    let end = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                        let child = n.spawn_owned(|_| LOCAL.with(|local| (local.0.set(true), deep(0)).1));
                        overflowed(&child.join(cx));
                        for _ in 0..20 {
                            let other = n.spawn(|_| LOCAL.with(|local| local.0.get()));
                            seen += usize::from(other.join(cx).unwrap());
                        }
                        Ok(())
                    });
                    assert!(end.is_err());
                    seen
                });
                assert_eq!(end.unwrap(), 0, "a thread is used on which a task was given up");
            }
        }
        assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
    });
}

/// Any waiting member of a family, wherever it waits, stands still, leaves what it waited in, and keeps what it holds.
#[test]
fn j_19_members_that_wait_leave_their_queues() {
    within(|| {
        for workers in [1, 2] {
            let rt = runtime(Config::new().workers(workers));
            let (tx, rx) = channel::<u32>(0);
            let (tx2, rx2) = channel::<u32>(0);
            let lock = Arc::new(sync::Mutex::new(0));
            let gate = Arc::new(sync::Semaphore::new(0));
            let end = rt.run(|cx| {
                let held = lock.lock(cx).unwrap();
                let end = cx.nursery(|n| {
                    let waiting = Arc::new(AtomicUsize::new(0));
                    let (rx, tx2, lock, gate) = (rx.clone(), tx2.clone(), lock.clone(), gate.clone());
                    let waits = waiting.clone();
                    let root = n.task().stack(StackClass::Medium).children(99).owned().spawn(move |cx| {
                        let (rx, tx2, lock, gate, waits) = (&rx, &tx2, &lock, &gate, &waits);
                        let _ = cx.nursery(|n| {
                            let hour = Duration::from_secs(3600);
                            let bodies: [Waits<'_>; 7] = [
                                Box::new(move |cx| ignore(rx.recv(cx))),
                                Box::new(move |cx| ignore(tx2.send(cx, 666))),
                                Box::new(move |cx| drop(lock.lock(cx))),
                                Box::new(move |cx| drop(gate.acquire(cx, 1))),
                                Box::new(move |cx| ignore(cx.select(&mut [&mut rx.arm()], None))),
                                Box::new(move |cx| ignore(cx.sleep(hour))),
                                Box::new(move |cx| {
                                    drop(cx.nursery(|n| {
                                        drop(n.spawn(move |cx| cx.sleep(hour)));
                                        Ok(())
                                    }));
                                }),
                            ];
                            for body in bodies {
                                let task = n.task().stack(StackClass::Medium).children(9);
                                drop(task.spawn(move |cx| wait_one(waits, || body(cx))));
                            }
                            while waits.load(Ordering::Relaxed) < 7 {
                                cx.yield_now().unwrap();
                            }
                            cx.sleep(Duration::from_millis(2)).unwrap();
                            deep(0);
                            Ok(())
                        });
                    });
                    overflowed(&root.join(cx));
                    Ok(())
                });
                assert!(end.is_err());
                drop(held);
                // Nobody given up takes what comes now.
                gate.give(1);
                drop(gate.acquire(cx, 1).unwrap());
                *lock.lock(cx).unwrap() += 1;
                cx.nursery(|n| {
                    let (rx, tx2) = (&rx, &tx2);
                    let here = n.spawn(move |cx| rx.recv(cx).unwrap());
                    tx.send(cx, 42).unwrap();
                    assert_eq!(here.join(cx).unwrap(), 42);
                    drop(n.spawn(move |cx| tx2.send(cx, 43).unwrap()));
                    assert_eq!(rx2.recv(cx).unwrap(), 43, "a given-up sender's message");
                    Ok(())
                })
                .unwrap();
            });
            end.unwrap();
            assert_eq!(rt.stats().total.panics, 0, "somebody went on");
        }
    });
}

type Waits<'a> = Box<dyn Fn(&Cx) + Send + Sync + 'a>;

/// Whatever comes of it.
fn ignore<T>(_: T) {}

fn wait_one(waits: &AtomicUsize, wait: impl FnOnce()) {
    waits.fetch_add(1, Ordering::Relaxed);
    wait();
    unreachable!("a given-up task went on");
}

/// An overflow that a check sees is a panic like any other: nothing is half done, and borrowers fail alone.
#[test]
fn j_19_an_overflow_in_time_runs_destructors() {
    fn checked(cx: &Cx, n: u64) -> u64 {
        let frame = black_box([n; 8]);
        assert!(cx.check().is_ok());
        if n == u64::MAX { 0 } else { checked(cx, n + 1) + frame[3] }
    }
    #[janus::budgeted]
    fn budgeted(cx: &Cx, n: u64) -> u64 {
        let frame = black_box([n; 8]);
        if n == u64::MAX { 0 } else { budgeted(cx, n + 1) + frame[3] }
    }
    fn ensured(cx: &Cx, n: u64) -> u64 {
        let frame = black_box([n; 8]);
        cx.ensure_stack(1024);
        if n == u64::MAX { 0 } else { ensured(cx, n + 1) + frame[3] }
    }
    within(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for (round, recurse) in [checked, budgeted, ensured].into_iter().enumerate() {
            for class in StackClass::ALL {
                let rt = runtime(Config::new().workers(1 + round % 2));
                let before = SEEN.load(Ordering::Relaxed);
                let mut list: Vec<Watched> = names().collect();
                let lent = &mut list;
                let end = rt.run(|cx| {
                    cx.nursery(|n| {
                        let child = n.task().stack(class).spawn(move |cx| {
                            let _own = Watched(String::new());
                            lent.sort_by(|one, other| {
                                if one.0 > other.0 {
                                    recurse(cx, 0);
                                }
                                one.0.cmp(&other.0)
                            });
                        });
                        overflowed(&child.join(cx));
                        Ok(())
                    })
                });
                assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{end:?}");
                assert_eq!(
                    SEEN.load(Ordering::Relaxed),
                    before + 1,
                    "its own is dropped, the lent ones are not"
                );
                list.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                list.dedup_by(|one, other| one.0 == other.0);
                assert_eq!(list.len(), 24, "every one is there once");
                let stats = rt.stats();
                assert_eq!((stats.total.overflows, stats.stacks_abandoned), (1, 0));
            }
        }
    });
}

/// Overflows, one after the other, at every frame of a program that allocates, locks, prints into a buffer and waits.
#[test]
fn j_19_the_stack_ends_at_every_frame() {
    static LOCK: Mutex<u64> = Mutex::new(0);
    fn walk(cx: &Cx, depth: usize, text: &mut String) -> usize {
        use std::fmt::Write;
        let _ = write!(text, "{depth:?} {:>9.3}", depth as f64);
        if depth.is_multiple_of(7) {
            *LOCK.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
        if depth.is_multiple_of(31) {
            let _ = cx.yield_now();
        }
        if depth == usize::MAX { 0 } else { black_box(walk(cx, depth + 1, text)) + text.len() }
    }
    #[inline(never)]
    fn padded(cx: &Cx, bytes: usize) -> usize {
        if bytes < 16 {
            return walk(cx, 0, &mut String::new());
        }
        let pad = black_box([bytes; 2]);
        black_box(padded(cx, bytes - 16)) + pad[0]
    }
    within(|| {
        let rt = runtime(Config::new().workers(2));
        for pad in 0..96 {
            let end = rt.run(|cx| {
                cx.nursery(|n| {
                    let class = if pad % 2 == 0 { StackClass::Lean } else { StackClass::Small };
                    Ok(n.task().stack(class).owned().spawn(move |cx| padded(cx, pad * 16)).join(cx))
                })
            });
            assert!(matches!(end, Ok(Err(TaskError::StackOverflow))), "{pad}: {end:?}");
            assert_eq!(format!("{pad} {}", "ok".repeat(100)).len(), 201 + pad.to_string().len());
        }
    });
}

/// A task that gave up waiting for a child, by a time-out, is woken late by it, at home or elsewhere, or as another task:
/// it costs a look, and nobody is queued twice or on a worker that is not its own.
#[test]
fn j_19_a_stale_joiner_is_left_alone() {
    within(|| {
        for pinned in [true, false] {
            let config = Config::new().workers(4).watchdog(None);
            let rt = runtime(if pinned { config.pinned() } else { config });
            let rounds = AtomicUsize::new(0);
            rt.run(|cx| {
                cx.nursery(|n| {
                    for joiner in 0..8 {
                        let rounds = &rounds;
                        let body = move |cx: &Cx| {
                            for round in 0..300_u64 {
                                cx.nursery(|inner| {
                                    let late = inner.spawn(move |cx| {
                                        let _ =
                                            cx.sleep(Duration::from_micros(20 + (round * 7 + joiner) % 60));
                                        round
                                    });
                                    let wait = Duration::from_micros(20 + round % 60);
                                    match late.join_timeout(cx, wait) {
                                        Ok(end) => assert_eq!(end.unwrap(), round),
                                        // The word of the child still names us; we sleep on something else, or end.
                                        Err(handle) if round % 3 == 0 => drop(handle),
                                        Err(handle) => {
                                            let _ = cx.sleep(Duration::from_micros(5));
                                            assert_eq!(handle.join(cx).unwrap(), round);
                                        }
                                    }
                                    Ok(())
                                })
                                .unwrap();
                                rounds.fetch_add(1, Ordering::Relaxed);
                            }
                        };
                        drop(n.task().stack(StackClass::Medium).children(1 << 30).spawn(body));
                    }
                    Ok(())
                })
                .unwrap();
            })
            .unwrap();
            assert_eq!(rounds.into_inner(), 8 * 300);
        }
    });
}
