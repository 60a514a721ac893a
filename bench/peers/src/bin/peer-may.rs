//! The peer may: stackful coroutines. Its channels are unbounded, so ping-pong has no rendezvous and mpmc no bound. A
//! stack is mapped for each coroutine with a guard page: the system refuses at about 32,000, so that `spawn-join` runs
//! in waves of what its pool keeps (which favours it).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use may::coroutine::yield_now;
use may::go;
use may::sync::{mpmc, mpsc};
use peers::*;

const WAVE: usize = 1_000;

fn main() {
    let request = Request::from_arguments();
    may::config().set_workers(request.workers).set_pool_capacity(2 * WAVE);
    // The root is a coroutine too: work begins on a worker.
    go!(move || run(&request)).join().expect("the workload does not panic");
}

fn run(request: &Request) {
    match request.workload.as_str() {
        "yield" => yields(request.size(YIELDS)),
        // All waves are alike: fewer say the same in less time.
        "spawn-join" => spawn_join(request.size(TASKS / 5)),
        // 50 µs each with two workers, because every one wakes the other worker.
        "spawn-join-one" => {
            spawn_join_one(request.size(if request.workers == 1 { JOINS } else { JOINS / 10 }))
        }
        "parked" => parked(request.size(TASKS)),
        "pingpong" => ping_pong(request.size(ROUND_TRIPS)),
        "mpmc" => mpmc(request.size(MESSAGES)),
        "steal-searching" | "steal-parked" => {
            Arc::new(Steal::default()).trials(request, |steal| {
                go!(move || steal.child());
            });
        }
        "scaling" => scaling(request.size(COMPUTATIONS)),
        "hog" => hogged(),
        "skynet" => {
            unsupported("a million stacks at once are beyond the limit of mappings (vm.max_map_count)")
        }
        _ => unsupported("not a workload of may"),
    }
}

fn yields(count: usize) {
    let turns = Arc::new(Turns::default());
    let start = Instant::now();
    let tasks = [1, 2].map(|me| {
        let turns = turns.clone();
        go!(move || {
            for _ in 0..count / 2 {
                turns.taken(me);
                yield_now();
            }
        })
    });
    for task in tasks {
        task.join().unwrap();
    }
    turns.finish(start, count);
}

fn spawn_join(count: usize) {
    let best = best_of_three(|| {
        let sum = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let mut tasks = Vec::with_capacity(WAVE);
        for _ in 0..count / WAVE {
            for _ in 0..WAVE {
                let sum = sum.clone();
                tasks.push(go!(move || {
                    sum.fetch_add(1, Ordering::Relaxed);
                }));
            }
            for task in tasks.drain(..) {
                task.join().unwrap();
            }
        }
        let rate = millions(start, count);
        expect_sum("spawn-join", sum.load(Ordering::Relaxed), (count / WAVE * WAVE) as u64);
        rate
    });
    figure("spawn-join", best, "M/s");
}

fn spawn_join_one(count: usize) {
    let mut sum = 0;
    let start = Instant::now();
    for _ in 0..count {
        sum += go!(|| 1).join().unwrap();
    }
    figure("spawn-join-one", ns_each(start, count), "ns");
    expect_sum("spawn-join-one", sum, count as u64);
}

fn parked(count: usize) {
    // What a system with the usual limit gives; the panic below it says less than this line.
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530);
    if 2 * count > limit {
        unsupported(&format!(
            "{count} stacks with guards need {} mappings, vm.max_map_count is {limit}",
            2 * count
        ));
    }
    let (sender, receiver) = mpmc::channel::<()>();
    let reached = Arc::new(AtomicU64::new(0));
    let before = resident();
    let start = Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (receiver, reached) = (receiver.clone(), reached.clone());
            go!(move || {
                touch_stack();
                reached.fetch_add(1, Ordering::Relaxed);
                // Answers an error once the sender is gone: that wakes all.
                assert!(receiver.recv().is_err());
            })
        })
        .collect();
    while reached.load(Ordering::Relaxed) < count as u64 {
        yield_now();
    }
    let (spawn_ms, resident) = (ms(start), resident());
    let start = Instant::now();
    drop(sender);
    for task in tasks {
        task.join().unwrap();
    }
    parked_figures(count, before, resident, spawn_ms, ms(start));
}

fn ping_pong(count: usize) {
    let (ping, pinged) = mpsc::channel::<usize>();
    let (pong, ponged) = mpsc::channel::<usize>();
    let start = Instant::now();
    let other = go!(move || {
        for ball in pinged.iter() {
            pong.send(ball + 1).unwrap();
        }
    });
    let one = go!(move || {
        for ball in 0..count {
            ping.send(ball).unwrap();
            assert_eq!(ponged.recv(), Ok(ball + 1));
        }
    });
    one.join().unwrap();
    other.join().unwrap();
    figure("pingpong", ns_each(start, count), "ns");
}

fn mpmc(count: usize) {
    let (sender, receiver) = mpmc::channel::<u64>();
    let start = Instant::now();
    let producers: [_; 4] = std::array::from_fn(|_| {
        let sender = sender.clone();
        go!(move || {
            for message in 0..count / 4 {
                sender.send(message as u64).unwrap();
            }
        })
    });
    drop(sender);
    let consumers: [_; 4] = std::array::from_fn(|_| {
        let receiver = receiver.clone();
        go!(move || {
            let mut sum = 0;
            while let Ok(message) = receiver.recv() {
                sum += message;
            }
            sum
        })
    });
    for producer in producers {
        producer.join().unwrap();
    }
    let sum = consumers.into_iter().map(|consumer| consumer.join().unwrap()).sum();
    figure("mpmc", millions(start, count), "M/s");
    let each = count as u64 / 4;
    expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}

fn scaling(count: usize) {
    let start = Instant::now();
    for wave in 0..count / WAVE {
        let tasks: Vec<_> = (0..WAVE)
            .map(|task| {
                let seed = (wave * WAVE + task) as u64;
                go!(move || compute(seed))
            })
            .collect();
        for task in tasks {
            task.join().unwrap();
        }
    }
    figure("scaling", ms(start), "ms");
}

fn hogged() {
    let progress = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let (counted, stop) = (progress.clone(), done.clone());
    let counter = go!(move || {
        while !stop.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            yield_now();
        }
    });
    let hog = go!(move || {
        while progress.load(Ordering::Relaxed) < 10 {
            yield_now();
        }
        hog(&progress);
        done.store(true, Ordering::Relaxed);
    });
    hog.join().unwrap();
    counter.join().unwrap();
}
