//! The peer async-executor (the executor of smol), with async-channel and event-listener. Its channels have no
//! rendezvous: ping-pong uses capacity 1.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use async_executor::Executor;
use event_listener::Event;
use futures_lite::future::{block_on, yield_now};
use peers::*;

type Workers = &'static Executor<'static>;

fn main() {
    let request = Request::from_arguments();
    // Lives as long as the program, as executors of smol usually do.
    let executor: Workers = Box::leak(Box::new(Executor::new()));
    for _ in 0..request.workers {
        thread::spawn(|| block_on(executor.run(pending::<()>())));
    }
    // The root is a task too: work begins on a worker, not on the thread that waits for it.
    block_on(executor.spawn(run(request, executor)));
}

async fn run(request: Request, executor: Workers) {
    match request.workload.as_str() {
        "yield" => yields(executor, request.size(YIELDS)).await,
        "spawn-join" => spawn_join(executor, request.size(TASKS)).await,
        "spawn-join-one" => spawn_join_one(executor, request.size(JOINS)).await,
        "skynet" => skynet_once(executor, request.size(TASKS) as u64).await,
        "parked" => parked(executor, request.size(TASKS)).await,
        "pingpong" => ping_pong(executor, request.size(ROUND_TRIPS)).await,
        "mpmc" => mpmc(executor, request.size(MESSAGES)).await,
        "steal-searching" | "steal-parked" => {
            Arc::new(Steal::default()).trials(&request, |steal| {
                executor.spawn(async move { steal.child() }).detach();
            });
        }
        "scaling" => scaling(executor, request.size(COMPUTATIONS)).await,
        "hog" => hogged(executor).await,
        _ => unsupported("not a workload of async-executor"),
    }
}

async fn yields(executor: Workers, count: usize) {
    let turns = Arc::new(Turns::default());
    let start = Instant::now();
    let tasks = [1, 2].map(|me| {
        let turns = turns.clone();
        executor.spawn(async move {
            for _ in 0..count / 2 {
                turns.taken(me);
                yield_now().await;
            }
        })
    });
    for task in tasks {
        task.await;
    }
    turns.finish(start, count);
}

async fn spawn_join(executor: Workers, count: usize) {
    let mut best = 0.0_f64;
    for _ in 0..3 {
        let sum = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let mut tasks = Vec::with_capacity(count);
        for _ in 0..count {
            let sum = sum.clone();
            tasks.push(executor.spawn(async move {
                sum.fetch_add(1, Ordering::Relaxed);
            }));
        }
        for task in tasks {
            task.await;
        }
        best = best.max(millions(start, count));
        expect_sum("spawn-join", sum.load(Ordering::Relaxed), count as u64);
    }
    figure("spawn-join", best, "M/s");
}

async fn spawn_join_one(executor: Workers, count: usize) {
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..count {
        sum += executor.spawn(async { 1 }).await;
    }
    figure("spawn-join-one", ns_each(start, count), "ns");
    expect_sum("spawn-join-one", sum, count as u64);
}

fn skynet(executor: Workers, first: u64, leaves: u64) -> Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move {
        if leaves == 1 {
            return first;
        }
        let part = leaves / 10;
        let children: [_; 10] =
            std::array::from_fn(|child| executor.spawn(skynet(executor, first + child as u64 * part, part)));
        let mut sum = 0;
        for child in children {
            sum += child.await;
        }
        sum
    })
}

async fn skynet_once(executor: Workers, leaves: u64) {
    let start = Instant::now();
    let sum = executor.spawn(skynet(executor, 0, leaves)).await;
    figure("skynet", ms(start), "ms");
    expect_sum("skynet", sum, leaves * (leaves - 1) / 2);
}

async fn parked(executor: Workers, count: usize) {
    let event = Arc::new(Event::new());
    let reached = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::with_capacity(count);
    let before = resident();
    let start = Instant::now();
    for _ in 0..count {
        let (event, reached) = (event.clone(), reached.clone());
        tasks.push(executor.spawn(async move {
            touch_stack();
            // Takes part in `notify` from here on, also before it is polled.
            let wakened = event.listen();
            reached.fetch_add(1, Ordering::Relaxed);
            wakened.await;
        }));
    }
    while reached.load(Ordering::Relaxed) < count as u64 {
        yield_now().await;
    }
    let (spawn_ms, resident) = (ms(start), resident());
    let start = Instant::now();
    event.notify(usize::MAX);
    for task in tasks {
        task.await;
    }
    parked_figures(count, before, resident, spawn_ms, ms(start));
}

async fn ping_pong(executor: Workers, count: usize) {
    let (ping, pinged) = async_channel::bounded::<usize>(1);
    let (pong, ponged) = async_channel::bounded::<usize>(1);
    let start = Instant::now();
    let other = executor.spawn(async move {
        while let Ok(ball) = pinged.recv().await {
            pong.send(ball + 1).await.unwrap();
        }
    });
    let one = executor.spawn(async move {
        for ball in 0..count {
            ping.send(ball).await.unwrap();
            assert_eq!(ponged.recv().await, Ok(ball + 1));
        }
    });
    one.await;
    other.await;
    figure("pingpong", ns_each(start, count), "ns");
}

async fn mpmc(executor: Workers, count: usize) {
    let (sender, receiver) = async_channel::bounded::<u64>(CAPACITY);
    let start = Instant::now();
    let producers: [_; 4] = std::array::from_fn(|_| {
        let sender = sender.clone();
        executor.spawn(async move {
            for message in 0..count / 4 {
                sender.send(message as u64).await.unwrap();
            }
        })
    });
    drop(sender);
    let consumers: [_; 4] = std::array::from_fn(|_| {
        let receiver = receiver.clone();
        executor.spawn(async move {
            let mut sum = 0;
            while let Ok(message) = receiver.recv().await {
                sum += message;
            }
            sum
        })
    });
    for producer in producers {
        producer.await;
    }
    let mut sum = 0;
    for consumer in consumers {
        sum += consumer.await;
    }
    figure("mpmc", millions(start, count), "M/s");
    let each = count as u64 / 4;
    expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}

async fn scaling(executor: Workers, count: usize) {
    let start = Instant::now();
    let mut tasks = Vec::with_capacity(count);
    for seed in 0..count as u64 {
        tasks.push(executor.spawn(async move { compute(seed) }));
    }
    for task in tasks {
        task.await;
    }
    figure("scaling", ms(start), "ms");
}

async fn hogged(executor: Workers) {
    let progress = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let (counted, stop) = (progress.clone(), done.clone());
    let counter = executor.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    let hog = executor.spawn(async move {
        while progress.load(Ordering::Relaxed) < 10 {
            yield_now().await;
        }
        hog(&progress);
        done.store(true, Ordering::Relaxed);
    });
    hog.await;
    counter.await;
}
