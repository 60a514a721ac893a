//! J-19: an abandoned task keeps its locks. No task may wait for one of them silently: the process ends with a named error,
//! or the error arrives all the same, or the watchdog reports which task waits and since when.

mod common;

use common::{alone, case};
use janus::{
    Budget, Charged, Config, Cx, NurseryOptions, Recharge, Resource, Runtime, StackClass, TaskError,
};
use std::fmt;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, RwLock};
use std::time::Duration;

#[global_allocator]
static ALLOC: Charged = Charged::new();

fn runtime(config: Config) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension, unless tasks stay with their threads.
    unsafe { Runtime::new(config) }.expect("a runtime")
}

#[inline(never)]
fn deep(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    if n == u64::MAX { 0 } else { deep(n + 1) + frame[3] }
}

/// Recurses without end when it is shown.
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if deep(0) == 7 { "seven" } else { "" })
    }
}

/// Allocates so much when it is shown.
struct Big(usize);

impl fmt::Display for Big {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&" ".repeat(self.0)[..1])
    }
}

/// What an owned task does in the end.
type Body = fn(&Cx);

/// Ways to hold an output when the end comes, and what is said then.
const HOLDS: [(&str, Body, &str); 9] = [
    ("println", |_| println!("{Endless}"), "while it printed"),
    ("eprintln", |_| eprintln!("{Endless}"), "while it printed"),
    ("write to stdout", |_| drop(write!(std::io::stdout(), "{Endless}")), "while it printed"),
    ("write to stderr", |_| drop(write!(std::io::stderr(), "{Endless}")), "while it printed"),
    ("println, memory", |_| println!("{}", Big(1 << 20)), "while it printed"),
    ("write, memory", |_| drop(write!(std::io::stdout(), "{}", Big(1 << 20))), "while it printed"),
    (
        "a guard",
        |_| {
            let _held = std::io::stdout().lock();
            deep(0);
        },
        "with standard output or standard error locked",
    ),
    (
        "a guard of standard error",
        |_| {
            let _held = Box::new(std::io::stderr().lock());
            deep(0);
        },
        "with standard output or standard error locked",
    ),
    (
        "a guard, memory",
        |_| {
            let _held = std::io::stdout().lock();
            black_box(vec![1_u8; 1 << 20]);
        },
        "with standard output or standard error locked",
    ),
];

/// Runs `body` as an owned task with little memory, and answers how it ended.
fn run(rt: &Runtime, body: impl FnOnce(&Cx) + Send + 'static) -> Result<(), TaskError> {
    let little = Budget { ops: 1 << 40, memory: 16 << 10, spawn_count: 1 << 20, ..Budget::ZERO };
    let manual = NurseryOptions::new().recharge(Recharge::Manual).keep_going();
    let end = rt.run(|cx| {
        cx.nursery_with(manual, |n| {
            Ok(n.task().name("talker").budget(little).stack(StackClass::Medium).owned().spawn(body).join(cx))
        })
    });
    end.expect("the main task").and_then(|end| end)
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn holds_an_output() {
    let Some(case) = case() else { return };
    let (number, workers) = case.split_once(' ').expect("two numbers");
    let (_, body, _) = HOLDS[number.parse::<usize>().expect("a number")];
    let workers = workers.parse().expect("a number");
    let rt = runtime(Config::new().workers(workers).memory_reserve(64 << 10));
    let end = run(&rt, body);
    println!("others print: {end:?}");
    eprintln!("others print: {end:?}");
    // The process ends while we are here.
    std::thread::sleep(Duration::from_secs(60));
    println!("it went on");
}

/// Issue 15: one that ends inside `println!` hung every later `println!`.
#[test]
fn j_19_who_is_given_up_with_an_output_locked_ends_the_process_by_name() {
    for (number, (what, _, said)) in HOLDS.into_iter().enumerate() {
        for workers in [1, 2] {
            let (status, text) = alone("holds_an_output", &format!("{number} {workers}"));
            assert_eq!(status.signal(), Some(libc::SIGABRT), "{what}: {status:?} {text}");
            let named = text.contains("janus: abort: task #") && text.contains("\"talker\"");
            assert!(named && text.contains(said), "{what}: {text}");
            assert!(text.contains("spawned at janus/tests/given_up_locks.rs:"), "{what}: {text}");
        }
    }
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn holds_an_output_in_vain() {
    let Some(case) = case() else { return };
    let config = Config::new().workers(2).memory_reserve(64 << 10);
    let rt = runtime(if case == "pinned" { config.pinned() } else { config });
    let overflows = |_: &Cx| {
        deep(0);
    };
    // `main` prints a table, a row of which comes from a task.
    let mut held = std::io::stdout().lock();
    for row in 0..4 {
        let end = run(&rt, overflows);
        assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}");
        let _ = writeln!(held, "row {row}");
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(held);
    // Others print without a pause, on both outputs.
    let talk = |mut output: Box<dyn Write>| {
        (0..2000).for_each(|i| {
            drop(writeln!(output, "{i}").map(|()| std::thread::sleep(Duration::from_micros(200))))
        });
    };
    std::thread::scope(|threads| {
        threads.spawn(|| talk(Box::new(std::io::stdout())));
        threads.spawn(|| talk(Box::new(std::io::stderr())));
        for _ in 0..20 {
            assert!(run(&rt, overflows).is_err());
        }
    });
    println!("it went on");
}

/// No other task that holds an output, for however long, is taken for the abandoned one.
#[test]
fn j_19_an_output_that_others_hold_ends_nothing() {
    for case in ["moving", "pinned"] {
        let (status, text) = alone("holds_an_output_in_vain", case);
        assert!(status.success() && text.contains("it went on"), "{case}: {status:?} {text}");
    }
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn holds_an_output_and_stays() {
    if case().is_some() {
        let rt = runtime(Config::new().workers(2).pinned());
        let end = run(&rt, |_| {
            let _held = std::io::stdout().lock();
            deep(0);
        });
        assert!(matches!(end, Err(TaskError::StackOverflow)));
        std::thread::sleep(Duration::from_secs(5));
        std::process::exit(3);
    }
}

/// Where tasks stay on their threads it cannot be told; that is reported.
#[test]
fn j_19_an_output_that_is_lost_for_a_pinned_runtime_is_named() {
    let (status, text) = alone("holds_an_output_and_stays", "it");
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(text.contains("has been locked since task #") && text.contains("\"talker\""), "{text}");
}

/// Within the reserve no task is abandoned, whatever prints.
#[test]
fn j_19_printing_within_the_reserve_is_an_error_of_the_task() {
    common::within(|| {
        let rt = runtime(Config::new().workers(1));
        let end = run(&rt, |_| drop(write!(std::io::stdout(), "{}", Big(1 << 20))));
        assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Memory))), "{end:?}");
        let printed = std::thread::spawn(|| writeln!(std::io::stdout(), "others print").is_ok());
        assert!(printed.join().unwrap());
    });
}

/// Locks of `std` under which a child overflows, while its sibling waits for them.
struct Locks {
    mutex: Mutex<u32>,
    either: RwLock<u32>,
    once: Once,
}

type Use = fn(&Locks, &dyn Fn());
const USES: [(&str, Use); 3] = [
    ("mutex", |locks, under| drop(locks.mutex.lock().map(|_held| under()))),
    ("read-write lock", |locks, under| drop(locks.either.write().map(|_held| under()))),
    ("once", |locks, under| locks.once.call_once(under)),
];

/// One child holds the lock and overflows, when the other waits for it. Both borrow it from their parent, which is owned.
fn lose(cx: &Cx, locked: Use) {
    let (locks, held, waits) = (
        &Locks { mutex: Mutex::new(0), either: RwLock::new(0), once: Once::new() },
        &AtomicBool::new(false),
        &AtomicBool::new(false),
    );
    let _ = cx.nursery(|n| {
        n.task().name("loser").spawn(move |_| {
            locked(locks, &|| {
                held.store(true, Ordering::Release);
                while !waits.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                deep(0);
            });
        });
        n.task().name("waiter").spawn(move |_| {
            while !held.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            waits.store(true, Ordering::Release);
            locked(locks, &|| println!("it has the lock"));
        });
        Ok(())
    });
}

#[test]
#[ignore = "run by the next in a process of its own"]
fn loses_a_lock() {
    let Some(case) = case() else { return };
    let (_, locked) = USES[case.parse::<usize>().expect("a number")];
    let limit = Some(Duration::from_millis(5));
    let config = Config::new().workers(2).watchdog(limit).memory_reserve(1 << 20);
    let rt = runtime(config.on_hog(|hog| eprintln!("janus: {hog}")));
    let end = run(&rt, move |cx| lose(cx, locked));
    println!("it went on: {end:?}");
}

/// A sibling that waits for a lock of the culprit would keep the error from their parent for ever.
#[test]
fn j_19_a_sibling_that_waits_for_a_lost_lock_ends_the_process_by_name() {
    for (number, (what, _)) in USES.into_iter().enumerate() {
        let (status, text) = alone("loses_a_lock", &number.to_string());
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{what}: {status:?} {text}");
        // First the watchdog says who waits, and whose lock it may be.
        let hog = text.find("(waiter), spawned at").unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(text[hog..].contains("it waits for a lock, perhaps one that task #"), "{what}: {text}");
        assert!(text[hog..].contains("\"loser\""), "{what}: {text}");
        let abort = text.find("janus: abort: task #").unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(
            text[abort..].contains("\"waiter\"") && text[abort..].contains("waited for a lock"),
            "{what}: {text}"
        );
        assert!(!text.contains("it went on") && !text.contains("it has the lock"), "{what}: {text}");
    }
}

/// A sibling that waits for another task, or sleeps, or computes, is waited for: then its parent gets the error.
#[test]
fn j_19_a_sibling_that_is_only_slow_is_waited_for() {
    common::within(|| {
        let slow: [fn(); 3] = [
            || std::thread::sleep(Duration::from_millis(900)),
            || {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_millis(900) {
                    std::hint::spin_loop();
                }
            },
            // Far shorter than what is taken for ever, five seconds.
            || {
                let (tx, rx) = std::sync::mpsc::channel();
                let thread = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(150));
                    tx.send(7)
                });
                assert_eq!(rx.recv(), Ok(7));
                thread.join().unwrap().unwrap();
            },
        ];
        for (number, slow) in slow.into_iter().enumerate() {
            // 100 times this is taken for ever, of a lock: shorter than the first two take, which are no locks.
            let limit = Some(Duration::from_millis(if number < 2 { 5 } else { 50 }));
            let rt = runtime(Config::new().workers(2).watchdog(limit));
            static BEGUN: AtomicBool = AtomicBool::new(false);
            static SLOW: AtomicBool = AtomicBool::new(false);
            BEGUN.store(false, Ordering::Relaxed);
            SLOW.store(false, Ordering::Relaxed);
            let end = run(&rt, move |cx| {
                let _ = cx.nursery(|n| {
                    n.spawn(move |_| {
                        BEGUN.store(true, Ordering::Release);
                        slow();
                        SLOW.store(true, Ordering::Release);
                    });
                    n.spawn(|_| {
                        while !BEGUN.load(Ordering::Acquire) {
                            std::thread::yield_now();
                        }
                        deep(0)
                    });
                    Ok(())
                });
            });
            assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}");
            assert!(SLOW.load(Ordering::Acquire), "it stands still before its parent's parent goes on");
        }
    });
}
