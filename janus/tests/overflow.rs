//! J-06: the overflow of a fiber's stack, wherever it happens, fails one task and nothing else.

use janus::{Budget, Config, Cx, NurseryOptions, Runtime, StackClass, TaskError, channel};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn runtime(config: Config) -> Runtime {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    unsafe { Runtime::new(config) }.expect("a runtime")
}

/// The process still works: it allocates, formats and prints.
fn still_works() {
    let texts: Vec<String> = (0..1000).map(|i| format!("{i} {}", f64::from(i) * 1.5)).collect();
    assert_eq!(texts[10], "10 15");
    println!("printed after an overflow: {}", texts.len());
    let mut text = [0_u8; 40];
    // SAFETY: the buffer has the length that is told.
    let n = unsafe { libc::snprintf(text.as_mut_ptr().cast(), 40, c"%f".as_ptr(), 1.5_f64) };
    assert_eq!(&text[..n as usize], b"1.500000");
}

type Flavour = fn(usize) -> usize;

/// Calls `each` at every level, `n` levels deep.
macro_rules! deep {
    ($name:ident, $n:ident, $each:expr) => {
        #[inline(never)]
        fn $name($n: usize) -> usize {
            let here: usize = $each;
            black_box(here) + if $n == 0 { 0 } else { $name(black_box($n - 1)) } + 1
        }
    };
}

deep!(plain, n, black_box([n; 10])[3]);
deep!(large_frames, n, {
    let mut frame = [0_u8; 3000];
    black_box(&mut frame);
    usize::from(frame[n % 3000])
});
deep!(allocates, n, {
    let first = black_box(vec![1_u8; 40 + n * 7919 % 30_000]);
    let second = black_box(vec![2_u8; n % 2000 + 1]);
    first.len() + second.len()
});
deep!(formats, n, {
    let mut text = [0_u8; 40];
    // SAFETY: the buffer has the length that is told.
    unsafe { libc::snprintf(text.as_mut_ptr().cast(), 40, c"%f".as_ptr(), n as f64) as usize }
});
deep!(prints, n, {
    // `print!` goes to the test's capture; this goes to the real output, through its lock.
    use std::io::Write;
    let _ = write!(std::io::stdout(), "{}", if n.is_multiple_of(64) { "." } else { "" });
    format!("{n} {:?}", n as f64).len()
});

static STD_MUTEX: Mutex<()> = Mutex::new(());

struct PthreadMutex(std::cell::UnsafeCell<libc::pthread_mutex_t>);
// SAFETY: a pthread mutex is made to be shared.
unsafe impl Sync for PthreadMutex {}
static PTHREAD_MUTEX: PthreadMutex =
    PthreadMutex(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

fn locked(n: usize) -> usize {
    // A lock of its own that a task overflows with stays locked, as documented; nobody waits for it here.
    let _held = STD_MUTEX.try_lock();
    // SAFETY: the mutex is initialised and lives for ever.
    unsafe { libc::pthread_mutex_trylock(PTHREAD_MUTEX.0.get()) };
    allocates(n)
}

fn sorts(_: usize) -> usize {
    extern "C" fn order(_: *const libc::c_void, _: *const libc::c_void) -> i32 {
        allocates(1 << 30) as i32
    }
    let mut values = [3_i32, 2, 1, 9, 8, 7];
    // SAFETY: six elements of four bytes; the comparison does not return.
    unsafe { libc::qsort(values.as_mut_ptr().cast(), 6, 4, Some(order)) };
    0
}

const FLAVOURS: [(&str, Flavour); 7] = [
    ("plain", plain),
    ("large frames", large_frames),
    ("malloc", allocates),
    ("snprintf", formats),
    ("print", prints),
    ("lock held", locked),
    ("called back by qsort", sorts),
];

/// Starts `flavour` at one of several depths, so that it faults at different places.
#[inline(never)]
fn shifted(levels: usize, flavour: Flavour) -> usize {
    if levels == 0 { flavour(1 << 30) } else { black_box(shifted(black_box(levels - 1), flavour)) + 1 }
}

/// Overflows `count` tasks of `class` among others that do not; answers how many of the others finished.
fn overflow_among_siblings(rt: &Runtime, flavour: Flavour, class: StackClass, count: usize) {
    let finished = AtomicUsize::new(0);
    let overflowed = AtomicUsize::new(0);
    let ended = rt.run(|cx| {
        let result = cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
            let mut handles = Vec::new();
            for i in 0..count {
                let (finished, overflowed) = (&finished, &overflowed);
                let victim = n.task().stack(class).owned().spawn(move |_| shifted(i % 37, flavour));
                handles.push(victim);
                let sibling = n.spawn(move |cx| {
                    for _ in 0..3 {
                        cx.yield_now().expect("nobody cancels");
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                });
                drop(sibling);
                if handles.len() == 8 || i + 1 == count {
                    for handle in handles.drain(..) {
                        match handle.join(cx) {
                            Err(TaskError::StackOverflow) => overflowed.fetch_add(1, Ordering::Relaxed),
                            other => panic!("not an overflow: {other:?}"),
                        };
                    }
                }
            }
            Ok(())
        });
        matches!(result, Err(TaskError::StackOverflow))
    });
    assert!(ended.expect("the main task"), "the nursery names the overflow");
    assert_eq!(overflowed.into_inner(), count);
    assert_eq!(finished.into_inner(), count, "siblings finish");
}

fn every_flavour(config: Config) {
    let rt = runtime(config.workers(2));
    for (name, flavour) in FLAVOURS {
        for class in [StackClass::Lean, StackClass::Small, StackClass::Medium] {
            println!("{name} on {class:?}");
            overflow_among_siblings(&rt, flavour, class, 40);
            still_works();
        }
    }
    let stats = rt.stats();
    let all = (FLAVOURS.len() * 3 * 40) as u64;
    assert_eq!(stats.total.overflows, all);
    assert_eq!(stats.stacks_abandoned, all, "stacks are kept");
}

#[test]
fn every_flavour_on_every_class_by_default() {
    every_flavour(Config::new());
}

#[test]
fn every_flavour_on_every_class_when_pinned() {
    every_flavour(Config::new().pinned());
}

#[test]
fn every_flavour_with_plain_guards() {
    every_flavour(Config::new().plain_guards());
}

/// A share that leaves something for the others.
fn small() -> NurseryOptions {
    NurseryOptions::new().share(Budget { memory: 1 << 16, ..Budget::CHILD })
}

#[test]
fn children_stand_still_before_their_parent_ends() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = runtime(config.workers(2));
        let turns = Arc::new(AtomicUsize::new(0));
        for round in 0..50 {
            let (counted, begun) = (turns.clone(), turns.load(Ordering::Relaxed));
            let middle = move |cx: &Cx| {
                let local = black_box([round; 64]);
                let _ = cx.nursery_with(small(), |inner| {
                    for _ in 0..4 {
                        let child = inner.spawn(|cx| {
                            while cx.yield_now().is_ok() {
                                assert_eq!(local, [round; 64], "frames stay as they are");
                                counted.fetch_add(1, Ordering::Relaxed);
                            }
                            unreachable!(
                                "who lent something to nobody any more is neither cancelled nor unwound"
                            );
                        });
                        drop(child);
                    }
                    // One of them runs, at least.
                    while counted.load(Ordering::Relaxed) == begun {
                        cx.yield_now().expect("nobody cancels");
                    }
                    Ok(plain(1 << 30))
                });
            };
            let result = rt.run(|cx| {
                cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                    let middle = n.task().stack(StackClass::Medium).children(4).owned().spawn(middle);
                    let result = middle.join(cx);
                    assert!(matches!(result, Err(TaskError::StackOverflow)), "{result:?}");
                    let before = turns.load(Ordering::Relaxed);
                    for _ in 0..100 {
                        cx.yield_now().expect("nobody cancels");
                    }
                    assert_eq!(turns.load(Ordering::Relaxed), before, "a child of it runs on");
                    Ok(())
                })
            });
            assert!(matches!(result, Ok(Err(TaskError::StackOverflow))), "{result:?}");
        }
        still_works();
    }
}

#[test]
fn an_overflow_below_two_open_nurseries_ends_both() {
    let rt = runtime(Config::new().workers(2));
    #[derive(Default)]
    struct Counts {
        started: AtomicUsize,
        ended: AtomicUsize,
    }
    let counts = Arc::new(Counts::default());
    let sleeper = |counts: Arc<Counts>| {
        move |cx: &Cx| {
            counts.started.fetch_add(1, Ordering::Relaxed);
            let (_tx, rx) = channel::<u8>(0);
            assert!(rx.recv(cx).is_err());
            counts.ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    let counted = counts.clone();
    let body = move |cx: &Cx| {
        let sleeper = || sleeper(counted.clone());
        let _ = cx.nursery_with(small(), |outer| {
            drop(outer.spawn(sleeper()));
            let _ = cx.nursery_with(small(), |inner| {
                drop(inner.spawn(sleeper()));
                drop(inner.spawn_owned(sleeper()));
                while counted.started.load(Ordering::Relaxed) < 3 {
                    cx.yield_now().expect("nobody cancels");
                }
                Ok(plain(1 << 30))
            });
            Ok(())
        });
    };
    let result = rt.run(|cx| {
        cx.nursery(|n| {
            let child = n.task().stack(StackClass::Medium).children(4).owned().spawn(body);
            Ok(child.join(cx))
        })
    });
    assert!(matches!(result, Ok(Err(TaskError::StackOverflow))), "{result:?}");
    let ended = counts.ended.load(Ordering::Relaxed);
    assert_eq!(ended, 1, "who owns what it uses is cancelled in order, who borrows stands still");
}

/// Its drop overflows, while the task panics.
struct Overflows;

impl Drop for Overflows {
    fn drop(&mut self) {
        black_box(allocates(1 << 30));
    }
}

#[test]
fn an_overflow_while_panicking_fails_that_task_and_the_worker_goes_on() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = runtime(config.workers(1));
        for loud in [false, true, false, true] {
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    let body = move |_: &Cx| {
                        let _bomb = Overflows;
                        if loud {
                            panic!("it also overflows while it unwinds");
                        }
                        std::panic::resume_unwind(Box::new("quiet"));
                    };
                    Ok(n.task().stack(StackClass::Small).owned().spawn(body).join(cx))
                })
            });
            assert!(matches!(result, Ok(Err(TaskError::StackOverflow))), "{result:?}");
            // The worker's later tasks block and are woken as ever: they do not take themselves for panicking.
            let sum = rt.run(|cx| {
                let (tx, rx) = channel::<u32>(0);
                let sum = cx.nursery(|n| {
                    drop(n.spawn(move |cx| (0..10).for_each(|i| tx.send(cx, i).expect("somebody receives"))));
                    Ok((0..10).map(|_| rx.recv(cx).expect("somebody sends")).sum::<u32>())
                });
                sum.expect("both end well")
            });
            assert_eq!(sum.expect("a task after it"), 45);
            still_works();
        }
    }
}

#[test]
fn the_main_task_may_overflow_too() {
    for config in [Config::new().pinned(), Config::new()] {
        let rt = runtime(config.workers(1).root_stack(StackClass::Small));
        for _ in 0..20 {
            let result = rt.run_owned(|_| allocates(1 << 30));
            assert!(matches!(result, Err(janus::RuntimeError::Task(TaskError::StackOverflow))), "{result:?}");
            assert_eq!(rt.run(|_| 7).expect("the next"), 7);
        }
    }
}

#[test]
fn an_overflow_in_a_cancelled_nursery_is_still_an_overflow() {
    let rt = runtime(Config::new().workers(2));
    for _ in 0..20 {
        let state = Arc::new(AtomicUsize::new(0));
        let theirs = state.clone();
        let result = rt.run(|cx| {
            let result = cx.nursery(|n| {
                let handle = n.spawn_owned(move |_| {
                    theirs.store(1, Ordering::Release);
                    while theirs.load(Ordering::Acquire) < 2 {
                        std::hint::spin_loop();
                    }
                    plain(1 << 30)
                });
                while state.load(Ordering::Acquire) < 1 {
                    std::hint::spin_loop();
                }
                n.cancel();
                state.store(2, Ordering::Release);
                Ok(handle.join(cx))
            });
            matches!(result, Err(TaskError::StackOverflow))
        });
        assert!(result.expect("the main task"));
        assert_eq!(rt.run(|_| 7).expect("the next"), 7);
    }
    assert_eq!(rt.stats().total.overflows, 20);
}

/// Runs the test `name` of this program by itself, with the variable set that arms it.
fn alone(name: &str) -> std::process::Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("JANUS_ALONE", "1").output().expect("a child process")
}

#[test]
#[ignore = "run by `a_foreign_fault_still_kills` in a process of its own"]
fn null_dereference_in_a_task() {
    if std::env::var_os("JANUS_ALONE").is_some() {
        let rt = runtime(Config::new().workers(1));
        // SAFETY: none: it is to die of it, and does so in a process of its own.
        let _ = rt.run(|_| unsafe { black_box(8 as *mut u8).write_volatile(1) });
    }
}

#[test]
#[ignore = "run by `a_foreign_fault_still_kills` in a process of its own"]
fn null_dereference_outside() {
    if std::env::var_os("JANUS_ALONE").is_some() {
        let _rt = runtime(Config::new().workers(1));
        // SAFETY: as above.
        unsafe { black_box(8 as *mut u8).write_volatile(1) };
    }
}

#[test]
#[ignore = "run by `a_thread_of_its_own_that_overflows_still_kills`"]
fn overflow_of_a_thread() {
    if std::env::var_os("JANUS_ALONE").is_some() {
        let _rt = runtime(Config::new().workers(1));
        let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(|| plain(1 << 30)).map(|t| t.join());
    }
}

#[test]
fn a_foreign_fault_still_kills() {
    for name in ["null_dereference_in_a_task", "null_dereference_outside"] {
        let output = alone(name);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{name}: {output:?}");
    }
}

#[test]
fn a_thread_of_its_own_that_overflows_still_kills() {
    let output = alone("overflow_of_a_thread");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("has overflowed its stack"), "Rust's own message is kept: {text}");
}
