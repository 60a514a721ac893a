//! Our own contestant of `make bench-runtime`: the workloads of `bench/peers`, in janus.

use janus::context::{Context, janus_context_switch, switch};
use janus::{Config, Cx, Runtime, TaskError, channel};
use peers::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../peers/src/lib.rs"]
mod peers;

fn main() {
    let request = Request::from_arguments();
    if request.workload == "switch" {
        raw_switches(request.size(SWITCHES));
        return;
    }
    let mut config = Config::new().workers(request.workers);
    // The second column of `bench-runtime`; everything else is the default.
    if std::env::var_os("JANUS_PINNED").is_some() {
        config = config.pinned();
    }
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }.unwrap_or_else(|error| fail(&error.to_string()));
    let done = runtime.run(|cx| run(cx, &request));
    if let Err(error) = done {
        fail(&error.to_string());
    }
}

fn run(cx: &Cx, request: &Request) {
    match request.workload.as_str() {
        "yield" => yields(cx, request.size(YIELDS)),
        "spawn-join" => spawn_join(cx, request.size(TASKS)),
        "spawn-join-one" => spawn_join_one(cx, request.size(JOINS)),
        "skynet" => skynet(cx, request.size(TASKS)),
        "parked" => parked(cx, request.size(TASKS)),
        "pingpong" => ping_pong(cx, request.size(ROUND_TRIPS)),
        "mpmc" => mpmc(cx, request.size(MESSAGES)),
        "steal-searching" | "steal-parked" => {
            let nursery = cx.nursery(|scope| {
                Arc::new(Steal::default()).trials(request, |steal| {
                    drop(scope.spawn(move |_| steal.child()));
                });
                Ok(())
            });
            nursery.unwrap();
        }
        "scaling" => scaling(cx, request.size(COMPUTATIONS)),
        "hog" => hogged(cx),
        "timeouts" => timeouts(cx, request.workers, request.size(TIMEOUTS)),
        _ => unsupported("not a workload of janus"),
    }
}

/// Two contexts that do nothing but switch to each other.
struct Pair {
    main: Context,
    fiber: Context,
}

unsafe extern "C" fn inlined(pair: *mut u8) {
    let pair = pair.cast::<Pair>();
    loop {
        // SAFETY: the main context waits in its own switch.
        unsafe { switch(&raw mut (*pair).fiber, &raw const (*pair).main) };
    }
}

unsafe extern "C" fn out_of_line(pair: *mut u8) {
    let pair = pair.cast::<Pair>();
    loop {
        // SAFETY: as above.
        unsafe { janus_context_switch(&raw mut (*pair).fiber, &raw const (*pair).main) };
    }
}

unsafe extern "C" fn never() -> ! {
    std::process::abort()
}

fn raw_switches(count: usize) {
    let mut stack = vec![0u128; 4096];
    let top = stack.as_mut_ptr_range().end.cast::<u8>();
    let mut pair = Pair { main: Context::default(), fiber: Context::default() };
    let pair = &raw mut pair;
    // SAFETY: the stack is ours; the fibers are dropped with it, suspended, and own nothing.
    unsafe {
        (*pair).fiber = Context::new(top, inlined, pair.cast(), never);
        let start = Instant::now();
        for _ in 0..count / 2 {
            switch(&raw mut (*pair).main, &raw const (*pair).fiber);
        }
        figure("switch", ns_each(start, count), "ns");
        (*pair).fiber = Context::new(top, out_of_line, pair.cast(), never);
        let start = Instant::now();
        for _ in 0..count / 2 {
            janus_context_switch(&raw mut (*pair).main, &raw const (*pair).fiber);
        }
        figure("switch-out-of-line", ns_each(start, count), "ns");
    }
}

fn yields(cx: &Cx, count: usize) {
    let turns = Turns::default();
    let start = Instant::now();
    let nursery = cx.nursery(|scope| {
        for me in [1, 2] {
            let turns = &turns;
            let task = scope.spawn(move |cx| {
                for _ in 0..count / 2 {
                    turns.taken(me);
                    cx.yield_now().unwrap();
                }
            });
            drop(task);
        }
        Ok(())
    });
    nursery.unwrap();
    turns.finish(start, count);
}

fn spawn_join(cx: &Cx, count: usize) {
    let best = best_of_three(|| {
        let sum = AtomicU64::new(0);
        let start = Instant::now();
        let nursery = cx.nursery(|scope| {
            for _ in 0..count {
                let task = scope.spawn(|_| sum.fetch_add(1, Ordering::Relaxed));
                drop(task);
            }
            Ok(())
        });
        nursery.unwrap();
        let rate = millions(start, count);
        expect_sum("spawn-join", sum.load(Ordering::Relaxed), count as u64);
        rate
    });
    figure("spawn-join", best, "M/s");
}

fn spawn_join_one(cx: &Cx, count: usize) {
    let mut sum = 0;
    let start = Instant::now();
    let nursery = cx.nursery(|scope| {
        for _ in 0..count {
            sum += scope.spawn(|_| 1).join(cx).unwrap();
        }
        Ok(())
    });
    nursery.unwrap();
    figure("spawn-join-one", ns_each(start, count), "ns");
    expect_sum("spawn-join-one", sum, count as u64);
}

/// A tree of tasks with ten children each; the leaves' numbers are added up on the way back.
fn skynet(cx: &Cx, leaves: usize) {
    fn node(cx: &Cx, first: u64, leaves: u64) -> u64 {
        if leaves == 1 {
            return first;
        }
        let part = leaves / 10;
        let nursery = cx.nursery(|scope| {
            let children: [_; 10] = std::array::from_fn(|child| {
                let first = first + child as u64 * part;
                let right = descendants(part);
                scope.task().children(right).spawn(move |cx| node(cx, first, part))
            });
            Ok(children.into_iter().map(|child| child.join(cx).unwrap()).sum())
        });
        nursery.unwrap()
    }
    fn descendants(leaves: u64) -> u64 {
        if leaves == 1 { 0 } else { 10 * (1 + descendants(leaves / 10)) }
    }
    let start = Instant::now();
    let sum = node(cx, 0, leaves as u64);
    figure("skynet", ms(start), "ms");
    expect_sum("skynet", sum, (leaves as u64 - 1) * leaves as u64 / 2);
}

fn parked(cx: &Cx, count: usize) {
    let (sender, receiver) = channel::<()>(0);
    let reached = AtomicU64::new(0);
    let before = resident();
    let start = Instant::now();
    let mut wake = start;
    let mut figures = (0, 0.0);
    let nursery = cx.nursery(|scope| {
        for _ in 0..count {
            let (receiver, reached) = (&receiver, &reached);
            let task = scope.spawn(move |cx| {
                touch_stack();
                reached.fetch_add(1, Ordering::Relaxed);
                // Answers an error once the sender is gone: that wakes all.
                assert!(receiver.recv(cx).is_err());
            });
            drop(task);
        }
        while reached.load(Ordering::Relaxed) < count as u64 {
            cx.yield_now().unwrap();
        }
        figures = (resident(), ms(start));
        wake = Instant::now();
        drop(sender);
        Ok(())
    });
    nursery.unwrap();
    parked_figures(count, before, figures.0, figures.1, ms(wake));
}

fn ping_pong(cx: &Cx, count: usize) {
    let (ping, pinged) = channel::<usize>(0);
    let (pong, ponged) = channel::<usize>(0);
    let start = Instant::now();
    let nursery = cx.nursery(|scope| {
        let other = scope.spawn(move |cx| {
            while let Ok(ball) = pinged.recv(cx) {
                pong.send(cx, ball + 1).unwrap();
            }
        });
        let one = scope.spawn(move |cx| {
            for ball in 0..count {
                ping.send(cx, ball).unwrap();
                assert_eq!(ponged.recv(cx), Ok(ball + 1));
            }
        });
        drop((one, other));
        Ok(())
    });
    nursery.unwrap();
    figure("pingpong", ns_each(start, count), "ns");
}

fn mpmc(cx: &Cx, count: usize) {
    let (sender, receiver) = channel::<u64>(CAPACITY);
    let start = Instant::now();
    let sum: u64 = cx
        .nursery(|scope| {
            for _ in 0..4 {
                let sender = sender.clone();
                let producer = scope.spawn(move |cx| {
                    for message in 0..count / 4 {
                        sender.send(cx, message as u64).unwrap();
                    }
                });
                drop(producer);
            }
            drop(sender);
            let consumers: [_; 4] = std::array::from_fn(|_| {
                let receiver = receiver.clone();
                scope.spawn(move |cx| {
                    let mut sum = 0;
                    while let Ok(message) = receiver.recv(cx) {
                        sum += message;
                    }
                    sum
                })
            });
            Ok(consumers.into_iter().map(|consumer| consumer.join(cx).unwrap()).sum())
        })
        .unwrap();
    figure("mpmc", millions(start, count), "M/s");
    let each = count as u64 / 4;
    expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}

fn scaling(cx: &Cx, count: usize) {
    let start = Instant::now();
    let nursery = cx.nursery(|scope| {
        for seed in 0..count as u64 {
            drop(scope.spawn(move |_| std::hint::black_box(compute(seed))));
        }
        Ok(())
    });
    nursery.unwrap();
    figure("scaling", ms(start), "ms");
}

fn timeouts(cx: &Cx, workers: usize, count: usize) {
    let asleep = AtomicU64::new(0);
    let nursery = cx.nursery(|scope| {
        for index in 0..SLEEPERS {
            let asleep = &asleep;
            let sleeper = scope.spawn(move |cx| {
                asleep.fetch_add(1, Ordering::Relaxed);
                assert!(cx.sleep(SLEEP + Duration::from_micros(index as u64)).is_err(), "until cancelled");
            });
            drop(sleeper);
        }
        while asleep.load(Ordering::Relaxed) < SLEEPERS as u64 {
            cx.yield_now()?;
        }
        let together = SideBySide::default();
        let ns = cx.nursery(|pair| {
            let tasks: Vec<_> = (0..workers)
                .map(|_| {
                    pair.spawn(|cx| together.run(workers, count, || cx.timeout(TIMEOUT, || Ok(())).unwrap()))
                })
                .collect();
            tasks.into_iter().map(|task| task.join(cx)).collect::<Result<Vec<_>, _>>()
        })?;
        SideBySide::finish(&ns);
        scope.cancel();
        Ok(())
    });
    // The sleepers were asked to end.
    assert!(matches!(nursery, Err(TaskError::Cancelled)), "{nursery:?}");
}

fn hogged(cx: &Cx) {
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let nursery = cx.nursery(|scope| {
        let neighbour = scope.spawn(|cx| {
            while !stop.load(Ordering::Relaxed) {
                progress.fetch_add(1, Ordering::Relaxed);
                cx.yield_now().unwrap();
            }
        });
        drop(neighbour);
        cx.yield_now().unwrap();
        hog(&progress);
        stop.store(true, Ordering::Relaxed);
        Ok(())
    });
    nursery.unwrap();
}
