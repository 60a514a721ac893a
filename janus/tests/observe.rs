//! J-18: a dump says which tasks there are, in which state, where and with what; statistics count; a trace can be
//! trusted.

use janus::{Budget, Config, Cx, Dump, NurseryOptions, Recharge, Runtime, TaskState, Wait, channel};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Dumps until `good` says so; the last dump anyway.
fn dump_until(rt: &Runtime, good: impl Fn(&Dump) -> bool) -> Dump {
    let start = Instant::now();
    loop {
        let dump = rt.dump();
        if good(&dump) || start.elapsed() > PATIENCE {
            return dump;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The tasks that wait, and what they wait for, in `in_every_state`.
const WAITING: [(&str, TaskState, Wait); 4] = [
    ("receiver", TaskState::Blocked, Wait::Recv),
    ("sleeper", TaskState::Blocked, Wait::Sleep),
    ("spent", TaskState::BudgetExhausted, Wait::Recharge),
    ("joiner", TaskState::Blocked, Wait::Join),
];

/// Whether the dump shows all of these.
fn shows(dump: &Dump, expected: &[(&str, TaskState, Wait)]) -> bool {
    expected.iter().all(|&(name, state, wait)| {
        dump.tasks.iter().any(|t| t.name.as_deref() == Some(name) && (t.state, t.waits_for) == (state, wait))
    })
}

/// Tasks in every state that lasts, on one worker whose last task spins until `stop`.
fn in_every_state(rt: &Runtime, cx: &Cx, stop: &AtomicBool) {
    let share = Budget { memory: 1 << 16, ..Budget::CHILD };
    let options = NurseryOptions::new().share(share).recharge(Recharge::Manual);
    let result = cx.nursery_with(options, |n| {
        let _supervisor = n.supervisor();
        let (tx, rx) = channel::<u8>(0);
        let receiver = n.task().name("receiver").spawn(move |cx| rx.recv(cx).is_ok());
        let sleeper = n.task().name("sleeper").spawn(|cx| cx.sleep(Duration::from_secs(3600)).is_ok());
        let spent = n.task().name("spent").budget(Budget { ops: 5, memory: 99, ..Budget::ZERO });
        let spent = spent.spawn(|cx| while cx.check().is_ok() {});
        let joiner = n.task().name("joiner").spawn(|cx| receiver.join(cx).is_ok());
        // They run to where they wait. Nobody moves while the only worker looks: this dump is sharp.
        while !shows(&rt.dump(), &WAITING) && !stop.load(Ordering::Acquire) {
            cx.yield_now().expect("nobody cancels");
        }
        let ready = n.task().name("ready").priority(janus::Priority::Low).spawn(|_| ());
        while !stop.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        drop((tx, ready, joiner, spent, sleeper));
        n.cancel();
        Ok(())
    });
    assert!(result.is_err(), "it was cancelled");
}

#[test]
fn a_dump_shows_everybody() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().pinned().workers(1).watchdog(None)) }.expect("a runtime");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let main = scope.spawn(|| rt.run(|cx| in_every_state(&rt, cx, &stop)));
        let mut expected =
            vec![("main", TaskState::Running, Wait::None), ("ready", TaskState::Ready, Wait::None)];
        expected.extend(WAITING);
        // A dump is blurred: one that saw some of them before they came to where they stay is taken again.
        let dump = dump_until(&rt, |dump| dump.tasks.len() == 6 && shows(dump, &expected));
        stop.store(true, Ordering::Release);
        main.join().expect("a thread").expect("the main task");
        let find =
            |name: &str| dump.tasks.iter().find(|task| task.name.as_deref() == Some(name)).expect(name);
        for (name, state, wait) in expected {
            let task = find(name);
            assert_eq!((task.state, task.waits_for), (state, wait), "{name}");
            let at = task.spawned_at.expect("a place");
            assert!(at.file().ends_with("observe.rs") && at.line() > 1, "{at}");
            if wait != Wait::None {
                let at = task.waits_at.expect("a place");
                assert!(at.file().ends_with("observe.rs"), "{name} waits at {at}");
            }
        }
        assert_eq!(find("main").worker, Some(0));
        assert_eq!(find("main").budget.ops, u64::MAX);
        assert_eq!(find("receiver").worker, None);
        assert_eq!((find("spent").budget.ops, find("spent").budget.memory), (0, 99));
        assert_eq!(find("sleeper").budget.memory, 1 << 16);
        assert_eq!(find("ready").priority, janus::Priority::Low);
        assert!(dump.tasks.windows(2).all(|two| two[0].id < two[1].id));

        let text = dump.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "a head and a line each:\n{text}");
        let line = |name: &str| *lines.iter().find(|line| line.contains(name)).expect(name);
        assert!(line("main").contains("Running") && line("main").contains("on worker 0"), "{text}");
        assert!(line("main").contains("unlimited"), "{text}");
        assert!(line("receiver").contains("Recv at observe.rs:"), "{text}");
        assert!(line("sleeper").contains("Sleep at observe.rs:"), "{text}");
        assert!(
            line("spent").contains("BudgetExhausted") && line("spent").trim_end().ends_with(" 0"),
            "{text}"
        );
        assert!(line("ready").contains("Ready"), "{text}");
        println!("{text}");
    });
    assert_eq!(rt.dump().tasks, [], "and nobody afterwards");
}

#[test]
fn a_dump_of_a_busy_runtime_harms_nobody() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().workers(2)) }.expect("a runtime");
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                let dump = rt.dump();
                most = most.max(dump.tasks.len());
                seen.store(most, Ordering::Relaxed);
                assert!(dump.to_string().lines().count() > dump.tasks.len());
            }
            most
        });
        // On a busy machine the looker may get no turn for a while.
        for round in 0..3000 {
            if round >= 30 && seen.load(Ordering::Relaxed) > 1 {
                break;
            }
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    for _ in 0..500 {
                        let child = n.task().name("busy").spawn(|cx| cx.yield_now().is_ok());
                        drop(child);
                    }
                    Ok(())
                })
            });
            assert!(matches!(result, Ok(Ok(()))), "{result:?}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(looker.join().expect("a thread") > 1, "it saw some");
    });
}

#[test]
fn statistics_count() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().workers(2).watchdog(None)) }.expect("a runtime");
    let result = rt.run(|cx| {
        cx.nursery_with(NurseryOptions::new().keep_going().recharge(Recharge::Manual), |n| {
            for _ in 0..100 {
                let child = n.spawn(|cx| (0..10).for_each(|_| cx.yield_now().expect("nobody cancels")));
                drop(child);
            }
            let failing = n.spawn(|_| -> () { std::panic::resume_unwind(Box::new("quiet")) });
            let spent =
                n.task().budget(Budget { ops: 5, ..Budget::ZERO }).spawn(|cx| while cx.check().is_ok() {});
            drop((failing, spent));
            Ok(())
        })
        .is_err()
    });
    assert!(result.expect("the main task"));
    let stats = rt.stats();
    assert_eq!((stats.total.spawned, stats.total.completed), (102, 103));
    assert_eq!((stats.total.panics, stats.total.overflows, stats.total.worker_panics), (1, 0, 0));
    assert!(stats.total.yields >= 100 && stats.total.exhaustions >= 1, "{stats:?}");
    assert!(stats.stacks_made >= 1 && stats.tasks_made >= 102, "{stats:?}");
    assert_eq!(stats.stacks_abandoned, 0);
    assert_eq!(stats.workers.len(), 2);
    let sum: u64 = stats.workers.iter().map(|worker| worker.completed).sum();
    assert_eq!(sum, stats.total.completed);
    let text = stats.to_string();
    for (name, value) in stats.total.iter() {
        assert!(
            text.lines().any(|line| line.split_whitespace().eq([name, value.to_string().as_str()])),
            "{name}: {text}"
        );
    }
}

#[test]
fn a_trace_can_be_believed_and_exported() {
    for base in [Config::new().pinned(), Config::new()] {
        for workers in [1, 2, 4] {
            // SAFETY: no task here keeps anything of its thread over a suspension.
            let rt = unsafe { Runtime::new(base.clone().workers(workers).trace(50_000)) }.expect("a runtime");
            for _ in 0..10 {
                let result = rt.run(|cx| {
                    let (tx, rx) = channel::<u32>(1);
                    cx.nursery(|n| {
                        for _ in 0..20 {
                            let tx = tx.clone();
                            let child = n.spawn(move |cx| {
                                for i in 0..5 {
                                    cx.yield_now().expect("nobody cancels");
                                    tx.send(cx, i).expect("somebody receives");
                                }
                                cx.sleep(Duration::from_micros(20)).expect("nobody cancels");
                            });
                            drop(child);
                        }
                        drop(tx);
                        while rx.recv(cx).is_ok() {}
                        Ok(())
                    })
                });
                assert!(matches!(result, Ok(Ok(()))), "{result:?}");
            }
            let trace = rt.trace().expect("a trace was asked for");
            assert_eq!(trace.check(), Ok(()), "{workers} workers");
            let count = |want: fn(&trace::Kind) -> bool| {
                trace.events.iter().filter(|event| want(&event.kind)).count()
            };
            assert_eq!(count(|kind| matches!(kind, trace::Kind::Spawn { .. })), 210);
            assert_eq!(count(|kind| matches!(kind, trace::Kind::Exit { .. })), 210);
            assert!(count(|kind| matches!(kind, trace::Kind::Run { .. })) >= 210);
            let mut chrome = Vec::new();
            trace::chrome::write(&trace, &mut chrome).expect("Chrome's format");
            assert!(chrome.starts_with(b"{") || chrome.starts_with(b"["));
            let mut perfetto = Vec::new();
            trace::perfetto::write(&trace, &mut perfetto).expect("Perfetto's format");
            assert!(perfetto.len() > 1000 && chrome.len() > 1000);
        }
    }
}

#[test]
fn a_short_trace_keeps_the_last_events_and_passes_too() {
    for workers in [1, 2, 4] {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(Config::new().workers(workers).trace(64)) }.expect("a runtime");
        for _ in 0..20 {
            let result = rt.run(|cx| {
                cx.nursery(|n| {
                    for _ in 0..50 {
                        let child =
                            n.spawn(|cx| (0..5).for_each(|_| cx.yield_now().expect("nobody cancels")));
                        drop(child);
                    }
                    Ok(())
                })
            });
            assert!(matches!(result, Ok(Ok(()))), "{result:?}");
            let trace = rt.trace().expect("a trace was asked for");
            assert_eq!(trace.check(), Ok(()), "{workers} workers");
            assert!(trace.events.len() <= 64 * usize::from(trace.cpus));
        }
    }
}

#[test]
fn without_the_setting_there_is_no_trace() {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().pinned().workers(1)) }.expect("a runtime");
    assert_eq!(rt.trace(), None);
}
