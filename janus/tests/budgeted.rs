//! Evidence for J-04: `#[budgeted]` functions as they run. An endless loop in one starves no other task, uses up its budget
//! and can be cancelled, whatever the function returns; the charges are those of the table; a seed replays it.

mod common;

use common::{Tally, everywhere, runtime, seeded, within};
use janus::{
    Budget, Cancelled, Config, Cx, NurseryOptions, Profile, Recharge, Resource, Runtime, TaskError, budgeted,
    channel,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// No exit, no call, nothing that waits.
#[budgeted]
fn spin(cx: &Cx, turns: &AtomicU64) {
    loop {
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[budgeted]
fn spin_or_fail(cx: &Cx) -> Result<u64, Cancelled> {
    let mut turns = 0_u64;
    loop {
        turns = turns.wrapping_add(1);
    }
}

/// Recursion without a loop: each call leads to two more, so it never comes to its end.
#[budgeted]
fn recurse(cx: &Cx, depth: u64) -> u64 {
    if depth == 0 {
        return 1;
    }
    recurse(cx, depth - 1).wrapping_add(recurse(cx, depth - 1))
}

/// The endless loop is in the library; the closure is in this test.
#[budgeted]
fn endless_iterator(cx: &Cx) -> u64 {
    std::iter::repeat_with(|| 1_u64).fold(0, |sum, one| sum.wrapping_add(one))
}

/// Loops too short for any interval, in one that is not.
#[budgeted]
fn short_loops(cx: &Cx) -> u64 {
    let mut sum = 0_u64;
    'outer: loop {
        for n in 0..3_u64 {
            if n == 2 {
                continue 'outer;
            }
            sum = sum.wrapping_add(n);
        }
    }
}

fn endless(which: usize, cx: &Cx) {
    match which {
        0 => spin(cx, &AtomicU64::new(0)),
        1 => drop(spin_or_fail(cx)),
        2 => drop(recurse(cx, 62)),
        3 => drop(endless_iterator(cx)),
        _ => drop(short_loops(cx)),
    }
}

const ENDLESS: usize = 5;

/// One worker, an endless function and a neighbour that only needs its turn: the neighbour ends, then the endless one is
/// cancelled and ends too.
#[test]
fn j_04_an_endless_function_starves_nobody() {
    everywhere(|runtime| {
        for which in 0..ENDLESS {
            let outcome = runtime.run(|cx| {
                cx.nursery(|n| {
                    let endless = n.spawn(move |cx| endless(which, cx));
                    let neighbour = n.spawn(|cx| (0..50).filter(|_| cx.yield_now().is_ok()).count());
                    assert_eq!(neighbour.join(cx).unwrap(), 50);
                    assert!(!endless.is_finished(), "{which} has an end");
                    endless.cancel();
                    Ok(())
                })
            });
            assert!(!matches!(outcome.unwrap(), Err(TaskError::Panicked(_))), "{which}");
        }
    });
}

/// With a budget it ends by itself, with the reason, whatever it returns.
#[test]
fn j_04_an_endless_function_spends_its_budget() {
    everywhere(|runtime| {
        for which in 0..ENDLESS {
            let manual = NurseryOptions::new().recharge(Recharge::Manual);
            let outcome = runtime.run(|cx| {
                cx.nursery_with(manual, |n| {
                    let budget = Budget { ops: 5_000, ..Budget::ZERO };
                    let child = n.task().budget(budget).spawn(move |cx| endless(which, cx));
                    Ok(child.join(cx))
                })
            });
            let end = outcome.unwrap();
            assert!(matches!(end, Err(TaskError::BudgetExceeded(Resource::Ops))), "{which}: {end:?}");
        }
    });
}

/// A spent function stops where it is, and goes on there when it is recharged.
#[test]
fn j_04_a_recharged_function_goes_on() {
    #[budgeted]
    fn count(cx: &Cx, to: u64) -> u64 {
        let mut n = 0;
        while n < to {
            n += 1;
        }
        n
    }
    within(|| {
        let manual = NurseryOptions::new().recharge(Recharge::Manual);
        let got = runtime(1).run(|cx| {
            cx.nursery_with(manual, |n| {
                let some = Budget { ops: 3_000, ..Budget::ZERO };
                let child = n.task().budget(some).spawn(|cx| count(cx, 10_000));
                let mut recharged = 0;
                while !child.is_finished() {
                    if child.state() == janus::TaskState::BudgetExhausted {
                        child.recharge(&some).unwrap();
                        recharged += 1;
                    }
                    cx.sleep(Duration::from_micros(50)).unwrap();
                }
                Ok((child.join(cx).unwrap(), recharged))
            })
        });
        let (counted, recharged) = got.unwrap().unwrap();
        assert_eq!(counted, 10_000);
        assert!(recharged >= 3, "10,000 rounds on 3,000 operations at a time: {recharged}");
    });
}

/// Unwinding drops what the frames hold, is no panic to the counters, and is `Cancelled` to the parent.
#[test]
fn j_04_unwinding_cleans_up_and_is_no_panic() {
    #[budgeted]
    fn hold(cx: &Cx, tally: &Tally, started: &AtomicBool) {
        let _outer = tally.token();
        let keep = || {
            let _inner = tally.token();
            started.store(true, Ordering::Release);
            loop {}
        };
        keep()
    }
    within(|| {
        let runtime = runtime(1);
        let (tally, started) = (Tally::default(), AtomicBool::new(false));
        let end = runtime.run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn(|cx| hold(cx, &tally, &started));
                common::until(cx, || started.load(Ordering::Acquire));
                child.cancel();
                Ok(child.join(cx).unwrap_err())
            })
        });
        // A task that was asked to end has not failed: the nursery ends well.
        assert!(matches!(end.unwrap(), Ok(TaskError::Cancelled)));
        assert_eq!(tally.made(), 2);
        tally.assert_even();
        assert_eq!(runtime.stats().workers.iter().map(|w| w.panics).sum::<u64>(), 0);
    });
}

/// A destructor that is budgeted itself, and run by a panic, does not turn one panic into two.
#[test]
fn j_04_a_budgeted_destructor_survives_a_panic() {
    struct Sweeper<'a>(&'a Cx, &'a AtomicU64);
    impl Drop for Sweeper<'_> {
        #[budgeted(cx = self.0)]
        fn drop(&mut self) {
            for _ in 0..5_000 {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    within(|| {
        let swept = AtomicU64::new(0);
        let end = runtime(1).run(|cx| {
            cx.nursery(|n| {
                let child = n.spawn(|cx| {
                    let _sweeper = Sweeper(cx, &swept);
                    panic!("swept away");
                });
                let child: janus::Handle<'_, ()> = child;
                child.cancel();
                let _ = child.join(cx);
                let child: janus::Handle<'_, ()> = n.spawn(|cx| {
                    let _sweeper = Sweeper(cx, &swept);
                    let _ = cx.yield_now();
                    panic!("swept away");
                });
                cx.yield_now().unwrap();
                child.cancel();
                Ok(child.join(cx).unwrap_err())
            })
        });
        assert!(end.unwrap().is_err());
        assert_eq!(swept.load(Ordering::Relaxed) % 5_000, 0, "a destructor ran half-way");
        assert!(swept.load(Ordering::Relaxed) > 0);
    });
}

/// What `body` charges to a task with nothing else to do.
fn cost(body: impl FnOnce(&Cx) + Send) -> Budget {
    let everything =
        Budget { ops: 1_000_000, memory: 1 << 20, spawn_count: 10, channel_ops: 1_000, syscalls: 9 };
    let config = Config::new().workers(1).watchdog(None).root_budget(everything);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let left = unsafe { Runtime::new(config) }.unwrap().run(|cx| {
        body(cx);
        cx.budget()
    });
    let left = left.unwrap();
    Budget {
        ops: everything.ops - left.ops,
        memory: everything.memory - left.memory,
        spawn_count: everything.spawn_count - left.spawn_count,
        channel_ops: everything.channel_ops - left.channel_ops,
        syscalls: everything.syscalls - left.syscalls,
    }
}

fn plain(n: u64) -> u64 {
    n + 1
}

/// The table of costs, row by row, in a function of which nothing else is charged but its own call.
#[test]
fn j_04_charges_are_those_of_the_table() {
    #[budgeted]
    fn nothing(_: &Cx) {}
    #[budgeted]
    fn rounds(cx: &Cx, n: u64) {
        for _ in 0..n {}
    }
    #[budgeted]
    fn calls(cx: &Cx) -> u64 {
        let one = plain(1);
        plain(plain(one))
    }
    #[budgeted]
    fn passes_on(cx: &Cx) {
        nothing(cx);
        nothing(cx);
    }
    #[budgeted]
    fn yields(cx: &Cx) -> Result<(), Cancelled> {
        cx.yield_now()?;
        cx.yield_now()
    }
    #[budgeted]
    fn messages(cx: &Cx, ends: &(janus::Sender<u8>, janus::Receiver<u8>)) -> u8 {
        let (tx, rx) = ends;
        if tx.send(cx, 7).is_err() {
            return 0;
        }
        rx.recv(cx).unwrap_or_default()
    }
    #[budgeted]
    fn allocates(cx: &Cx) -> Box<u64> {
        Box::new(1)
    }
    #[budgeted]
    fn branches(cx: &Cx, deep: bool) -> u64 {
        if deep { plain(plain(1)) } else { 0 }
    }
    #[budgeted]
    fn lazily(cx: &Cx, first: bool) -> bool {
        first && plain(1) == 2
    }
    let ops = |body: fn(&Cx)| cost(body).ops;
    assert_eq!(ops(nothing), 1);
    assert_eq!(ops(|cx| rounds(cx, 10)), 11);
    assert_eq!(ops(|cx| rounds(cx, 5_000)), 5_001);
    assert_eq!(ops(|cx| _ = calls(cx)), 4);
    assert_eq!(ops(passes_on), 3);
    assert_eq!(ops(|cx| yields(cx).unwrap()), 1, "an explicit yield is free");
    assert_eq!(ops(|cx| drop(allocates(cx))), 2);
    assert_eq!((ops(|cx| _ = branches(cx, false)), ops(|cx| _ = branches(cx, true))), (1, 3));
    assert_eq!((ops(|cx| _ = lazily(cx, false)), ops(|cx| _ = lazily(cx, true))), (1, 2));
    // `is_err` and `unwrap_or_default` are calls too.
    let sent = cost(|cx| assert_eq!(messages(cx, &channel(1)), 7));
    assert_eq!((sent.ops, sent.channel_ops), (5, 2), "a channel operation is charged once");
}

/// The interval is the profile's, and the configuration's: between two checks of a bare loop lie so many rounds.
#[test]
fn j_04_profiles_set_the_interval() {
    #[budgeted]
    fn turn(cx: &Cx, turns: &mut u64) {
        loop {
            *turns += 1;
        }
    }
    let rounds_until_spent = |config: Config| {
        let mut turns = 0;
        let counted = &mut turns;
        let config = config.workers(1).watchdog(None);
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let end = unsafe { Runtime::new(config) }.unwrap().run(|cx| {
            let manual = NurseryOptions::new().recharge(Recharge::Manual);
            cx.nursery_with(manual, |n| {
                // Less than any interval, so that the first check of the loop finds it spent.
                let little = Budget { ops: 30, ..Budget::ZERO };
                drop(n.task().budget(little).spawn(|cx| turn(cx, counted)));
                Ok(())
            })
        });
        assert!(matches!(end.unwrap(), Err(TaskError::BudgetExceeded(Resource::Ops))));
        // The check comes before its round.
        turns + 1
    };
    assert_eq!(rounds_until_spent(Config::new()), 1024);
    assert_eq!(rounds_until_spent(Config::new().profile(Profile::Cluster)), 512);
    assert_eq!(rounds_until_spent(Config::new().profile(Profile::Sovereign).yield_interval(64)), 64);
}

/// Deterministic mode: the same seed runs budgeted functions in the same order, other seeds in others.
#[test]
fn j_04_a_seed_replays_budgeted_functions() {
    #[budgeted]
    fn mix(cx: &Cx, who: u64, log: &std::sync::Mutex<Vec<u64>>) -> Result<(), Cancelled> {
        for _ in 0..20 {
            log.lock().unwrap().push(who);
            plain(who);
        }
        Ok(())
    }
    fn run(seed: u64) -> ((u64, u64), Vec<u64>) {
        let log = std::sync::Mutex::new(Vec::new());
        let runtime = seeded(3, seed);
        let done = runtime.run(|cx| {
            cx.nursery(|n| {
                for who in 0..4 {
                    let log = &log;
                    drop(n.spawn(move |cx| mix(cx, who, log)));
                }
                let endless = n.spawn(short_loops);
                while n.live() > 1 {
                    // No sleep: while one can run, virtual time stands still.
                    cx.yield_now().unwrap();
                }
                endless.cancel();
                Ok(())
            })
        });
        done.unwrap().unwrap();
        (runtime.order().unwrap(), log.into_inner().unwrap())
    }
    within(|| {
        let runs: Vec<_> = (0..20).map(run).collect();
        for (seed, first) in runs.iter().enumerate() {
            assert_eq!(*first, run(seed as u64), "seed {seed}");
        }
        let orders: std::collections::HashSet<_> = runs.iter().map(|(order, _)| *order).collect();
        assert!(orders.len() > 15, "seeds hardly differ: {}", orders.len());
    });
}
