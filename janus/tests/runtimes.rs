//! J-01: any number of runtimes in one process, side by side, one inside another, made and dropped again and again.

use janus::{Config, Runtime, RuntimeError, TaskError, channel};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Threads and memory are the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("tasks").count()
}

fn mapped_and_resident_kib() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = |n| text.split_whitespace().nth(n).and_then(|p| p.parse::<u64>().ok()).expect("pages") * 4;
    (pages(0), pages(1))
}

/// A little of everything.
fn use_it(rt: &Runtime) {
    let sum = rt.run(|cx| {
        let (tx, rx) = channel::<u64>(4);
        let sum = cx.nursery(|n| {
            drop(n.spawn(move |cx| (0..50).for_each(|i| tx.send(cx, i).expect("somebody receives"))));
            let mut sum = 0;
            while let Ok(i) = rx.recv(cx) {
                sum += i;
            }
            Ok(sum)
        });
        sum.expect("both end well")
    });
    assert_eq!(sum.expect("the main task"), 1225);
}

#[test]
fn many_side_by_side_do_not_mix() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtimes: Vec<Runtime> = (0..16)
        .map(|i| match i % 3 {
            0 => Config::new().pinned().workers(1),
            1 => Config::new().workers(2),
            _ => Config::new().pinned().workers(2).seed(i),
        })
        // SAFETY: no task here keeps anything of its thread over a suspension.
        .map(|config| unsafe { Runtime::new(config) }.expect("a runtime"))
        .collect();
    let ran: Vec<AtomicUsize> = runtimes.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for (rt, ran) in runtimes.iter().zip(&ran) {
            scope.spawn(move || {
                for _ in 0..20 {
                    use_it(rt);
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    for (rt, ran) in runtimes.iter().zip(&ran) {
        assert_eq!(ran.load(Ordering::Relaxed), 20);
        // Its own tasks and nobody else's: a main task and one child each time.
        assert_eq!(rt.stats().total.completed, 40);
        assert_eq!(rt.stats().total.spawned, 20);
        assert_eq!(rt.dump().tasks, []);
    }
}

#[test]
fn one_inside_a_task_of_another() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let (outer, inner) = (unsafe { Runtime::new(Config::new().pinned().workers(2)) }, unsafe {
        Runtime::new(Config::new().pinned().workers(1))
    });
    let (outer, inner) = (outer.expect("a runtime"), inner.expect("a runtime"));
    let value = outer.run(|cx| {
        let answers = cx.nursery(|n| {
            let task = || n.task().stack(janus::StackClass::Medium);
            let handles: Vec<_> = (0..4)
                .map(|i| {
                    task().spawn({
                        let inner = &inner;
                        move |_| inner.run(|_| i)
                    })
                })
                .collect();
            Ok(handles.into_iter().map(|h| h.join(cx).expect("a child").expect("a task")).sum::<i32>())
        });
        use_it(&inner);
        answers.expect("all end well")
    });
    assert_eq!(value.expect("the main task"), 6);
    // And one made inside a task, used and dropped there.
    let value = outer.run(|_| {
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let third = unsafe { Runtime::new(Config::new().workers(2)) }.expect("a runtime");
        use_it(&third);
        third.run(|_| 3).expect("a task")
    });
    assert_eq!(value.expect("the main task"), 3);
}

#[test]
fn run_inside_its_own_task_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let rt = unsafe { Runtime::new(Config::new().pinned().workers(2)) }.expect("a runtime");
    let refused = rt.run(|cx| {
        let child =
            cx.nursery(|n| Ok(n.spawn(|_| matches!(rt.run(|_| 1), Err(RuntimeError::InsideTask))).join(cx)));
        matches!(rt.run(|_| 1), Err(RuntimeError::InsideTask)) && matches!(child, Ok(Ok(true)))
    });
    assert!(refused.expect("the main task"));
    assert_eq!(rt.run(|_| 1).expect("outside it is fine"), 1);
    let failed = rt.run(|_| -> () { std::panic::resume_unwind(Box::new("quiet")) });
    assert!(matches!(failed, Err(RuntimeError::Task(TaskError::Panicked(_)))), "{failed:?}");
}

#[test]
fn made_and_dropped_200_times_leaves_no_thread_and_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let round = |i: usize| {
        let config = if i.is_multiple_of(2) { Config::new().pinned() } else { Config::new() };
        // SAFETY: no task here keeps anything of its thread over a suspension.
        let rt = unsafe { Runtime::new(config.workers(1 + i % 3)) }.expect("a runtime");
        if !i.is_multiple_of(5) {
            use_it(&rt);
        }
    };
    (0..20).for_each(round);
    let (before, (mapped, resident)) = (threads(), mapped_and_resident_kib());
    (0..200).for_each(round);
    let (after, (mapped_after, resident_after)) = (threads(), mapped_and_resident_kib());
    assert_eq!(after, before, "threads");
    // A runtime maps 10 MB and more: 200 of them that stayed would be gigabytes.
    assert!(mapped_after < mapped + 200 * 1024, "mapped: {mapped} KiB, then {mapped_after} KiB");
    assert!(resident_after < resident + 8 * 1024, "resident: {resident} KiB, then {resident_after} KiB");
}
