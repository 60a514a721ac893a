//! J-06, J-09, J-15: tens of thousands of overflows, panics, cancellations and exhaustions at once lose no task, no drop and no
//! memory.

use janus::{Budget, Cancelled, Config, Cx, NurseryOptions, Recharge, Runtime, TaskError, channel};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[inline(never)]
fn deep(n: u64) -> u64 {
    let frame = black_box([n; 20]);
    if n == u64::MAX { 0 } else { deep(n + 1) + frame[3] }
}

#[inline(never)]
fn checked(cx: &Cx, n: u64) -> u64 {
    let frame = black_box([n; 20]);
    cx.ensure_stack(512);
    if n == u64::MAX { 0 } else { checked(cx, n + 1) + frame[3] }
}

/// One in so many overflows is seen by nobody but the guard.
const UNSEEN: u64 = 125;

/// Counts itself when it is made and when it is dropped.
struct Counted(&'static Tally);

#[derive(Default)]
struct Tally {
    made: AtomicU64,
    dropped: AtomicU64,
    returned: AtomicU64,
    cancelled: AtomicU64,
    overflowed: AtomicU64,
    panicked: AtomicU64,
    spent: AtomicU64,
}

impl Tally {
    fn counted(&'static self) -> Counted {
        self.made.fetch_add(1, Ordering::Relaxed);
        Counted(self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// One child of each kind, again and again; every handle is joined and its answer counted.
fn storm(cx: &Cx, tally: &'static Tally, groups: u64) {
    for group in 0..groups {
        let share = Budget { memory: 1 << 12, ops: 64, ..Budget::CHILD };
        let options = NurseryOptions::new().keep_going().share(share).recharge(Recharge::Manual);
        let result = cx.nursery_with(options, |n| {
            let mut handles = Vec::new();
            for kind in 0..8 {
                let held = tally.counted();
                let body = move |cx: &Cx| -> Result<u64, Cancelled> {
                    match kind {
                        // Overflows: most of them in time, and in order; some where they are, and drop nothing.
                        0 => {
                            let held = held;
                            let deepest = if group % UNSEEN == 0 { deep(group) } else { checked(cx, group) };
                            Ok(deepest + u64::from(black_box(&held).0.made.load(Ordering::Relaxed) > 0))
                        }
                        1 => panic!("a storm's panic"),
                        // Waits for a message that never comes, until it is cancelled.
                        2 | 3 => {
                            let (_tx, rx) = channel::<u8>(0);
                            let held = held;
                            while rx.recv(cx).is_ok() {}
                            drop(held);
                            Err(Cancelled)
                        }
                        // Spends its budget and stops; nobody recharges it.
                        4 => {
                            let _held = held;
                            loop {
                                cx.check()?;
                            }
                        }
                        _ => {
                            let _held = held;
                            cx.yield_now()?;
                            Ok(group)
                        }
                    }
                };
                handles.push((kind, n.task().owned().spawn_try(body)));
            }
            for (kind, handle) in &handles {
                if matches!(kind, 2 | 3) {
                    handle.cancel();
                }
            }
            // The one that spent its budget ends when its parent waits for it alone.
            for (kind, handle) in handles {
                if kind == 4 {
                    handle.cancel();
                    match handle.join(cx) {
                        Err(TaskError::BudgetExceeded(_) | TaskError::Cancelled) => add(&tally.spent),
                        other => panic!("kind 4: {other:?}"),
                    }
                    continue;
                }
                match handle.join(cx) {
                    Ok(_) => add(&tally.returned),
                    Err(TaskError::Cancelled) => add(&tally.cancelled),
                    Err(TaskError::StackOverflow) => add(&tally.overflowed),
                    // A nursery keeps the message; the handle of an error that went there knows a code.
                    Err(TaskError::Panicked(_)) => add(&tally.panicked),
                    Err(other) => panic!("kind {kind}: {other:?}"),
                }
            }
            Ok(())
        });
        assert!(result.is_err(), "{result:?}");
    }
}

fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4
}

/// The hook's output would be most of the test.
fn hush() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<&str>().copied().unwrap_or_default();
            if text != "a storm's panic" {
                before(info);
            }
        }));
    });
}

/// Memory is the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rounds(workers: usize, groups: u64) {
    hush();
    let _alone = alone();
    // Lean stacks: each keeps the pages that it once touched, and which one overflows is chance.
    let config = Config::new().workers(workers).stack(janus::StackClass::Lean);
    // SAFETY: no task here keeps anything of its thread over a suspension, and only children refer to frames.
    let rt = unsafe { Runtime::new(config) }.expect("a runtime");
    let tally: &'static Tally = Box::leak(Box::default());
    let round = || {
        // Four storms side by side.
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                for _ in 0..4 {
                    let budget = Budget::UNLIMITED;
                    let stack = janus::StackClass::Large;
                    let child =
                        n.task().budget(budget).stack(stack).spawn(move |cx| storm(cx, tally, groups));
                    drop(child);
                }
                Ok(())
            })
        });
        assert!(matches!(result, Ok(Ok(()))), "{result:?}");
    };
    round();
    round();
    let (warm, rss) = (rt.stats(), rss_kib());
    for _ in 0..5 {
        round();
    }
    let (after, rss_after) = (rt.stats(), rss_kib());
    let unseen = groups.div_ceil(UNSEEN) * 4 * 7;
    let groups = groups * 4 * 7;
    assert_eq!(get(&tally.overflowed), groups);
    assert_eq!(get(&tally.panicked), groups);
    assert_eq!(get(&tally.cancelled), groups * 2);
    assert_eq!(get(&tally.spent), groups);
    assert_eq!(get(&tally.returned), groups * 3);
    assert_eq!(get(&tally.made), groups * 8);
    assert_eq!(get(&tally.dropped), groups * 8 - unseen, "all but what is given up is dropped");
    // The main task of each round is spawned by the test's own thread, which counts nothing.
    assert_eq!(after.total.completed, after.total.spawned + 7, "every task that was spawned has ended");
    assert_eq!(after.total.overflows, groups);
    assert_eq!(after.total.panics, groups);
    assert_eq!(rt.dump().tasks, [], "nobody is left");
    // Which worker has how many at hand differs from round to round: some slack, but no growth by the round.
    assert!(
        after.stacks_made <= warm.stacks_made + 130,
        "stacks: {} then {}",
        warm.stacks_made,
        after.stacks_made
    );
    assert!(
        after.tasks_made <= warm.tasks_made + 1024,
        "tasks: {} then {}",
        warm.tasks_made,
        after.tasks_made
    );
    assert_eq!(after.stacks_abandoned, unseen);
    // 5 rounds leak more than this if each overflow leaks a kilobyte.
    let slack = 2048 + groups / 2;
    assert!(rss_after <= rss + slack, "memory: {rss} KiB, then {rss_after} KiB");
}

#[test]
fn storm_on_1_worker() {
    rounds(1, 250);
}

#[test]
fn storm_on_2_workers() {
    rounds(2, 250);
}

#[test]
fn storm_on_4_workers() {
    rounds(4, 250);
}

#[test]
fn every_unseen_overflow_keeps_its_stack_and_nothing_else() {
    let _alone = alone();
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().workers(2)) }.expect("a runtime");
    let round = || {
        let result = rt.run(|cx| {
            cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
                for _ in 0..50 {
                    let end = n.spawn_owned(|_| deep(0)).join(cx);
                    assert!(matches!(end, Err(TaskError::StackOverflow)), "{end:?}");
                }
                Ok(())
            })
        });
        assert!(matches!(result, Ok(Err(TaskError::StackOverflow))), "{result:?}");
    };
    round();
    let (tasks, rss) = (rt.stats().tasks_made, rss_kib());
    (0..9).for_each(|_| round());
    let stats = rt.stats();
    assert_eq!((stats.stacks_abandoned, stats.tasks_made), (500, tasks));
    assert_eq!(stats.total.completed, stats.total.spawned + 10);
    assert!(stats.stacks_made < 500 + 200, "{}", stats.stacks_made);
    // A stack of 28 KiB, the thread that it was on, and what that had at hand.
    let each = (rss_kib() - rss) / 450;
    println!("{each} KiB for each");
    assert!(each < 128, "{each} KiB for each overflow");
}

/// Children that go to sleep for the first time while their nursery is cancelled: none sleeps on.
#[test]
fn no_cancellation_is_lost() {
    let _alone = alone();
    for workers in [1, 2, 4] {
        // SAFETY: as above.
        let rt = unsafe { Runtime::new(Config::new().workers(workers)) }.expect("a runtime");
        let done = AtomicU64::new(0);
        for round in 0..4000_u64 {
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    for _ in 0..2 {
                        let child = n.spawn(|cx| {
                            let (_tx, rx) = channel::<u8>(0);
                            assert!(rx.recv(cx).is_err());
                            add(&done);
                        });
                        drop(child);
                    }
                    for _ in 0..round % 500 {
                        std::hint::spin_loop();
                    }
                    n.cancel();
                    Ok(())
                })
            });
            assert!(matches!(result, Ok(Err(TaskError::Cancelled))), "{result:?}");
        }
        assert!(get(&done) <= 8000);
    }
}
