//! The peer tokio (`multi_thread`). Its channels have no rendezvous: ping-pong uses `mpsc` of capacity 1. It has no
//! channel with several receivers: mpmc uses async-channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peers::*;
use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc};
use tokio::task::{coop::unconstrained, yield_now};
use tokio::time::sleep;

fn main() {
    let request = Request::from_arguments();
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(request.workers);
    // Its timers are an option, and only one workload pays for them.
    if request.workload == "timeouts" {
        builder.enable_time();
    }
    let runtime = builder.build().expect("tokio starts");
    // The root is a task too: work begins on a worker, not on the thread that waits for it.
    let root = runtime.spawn(run(request));
    runtime.block_on(root).expect("the workload does not panic");
}

async fn run(request: Request) {
    match request.workload.as_str() {
        "yield" => yields(request.size(YIELDS)).await,
        "spawn-join" => spawn_join(request.size(TASKS)).await,
        "spawn-join-one" => spawn_join_one(request.size(JOINS)).await,
        "skynet" => skynet_once(request.size(TASKS) as u64).await,
        "parked" => parked(request.size(TASKS)).await,
        "pingpong" => ping_pong(request.size(ROUND_TRIPS)).await,
        "mpmc" => mpmc(request.size(MESSAGES)).await,
        "steal-searching" | "steal-parked" => {
            Arc::new(Steal::default()).trials(&request, |steal| {
                tokio::spawn(async move { steal.child() });
            });
        }
        "scaling" => scaling(request.size(COMPUTATIONS)).await,
        "hog" => hogged().await,
        "timeouts" => timeouts(request.workers, request.size(TIMEOUTS)).await,
        _ => unsupported("not a workload of tokio"),
    }
}

/// A time-out is set by the first poll of its future, and taken back by the drop.
async fn timeouts(workers: usize, count: usize) {
    let asleep = Arc::new(AtomicU64::new(0));
    for index in 0..SLEEPERS {
        let asleep = asleep.clone();
        tokio::spawn(async move {
            asleep.fetch_add(1, Ordering::Relaxed);
            sleep(SLEEP + Duration::from_micros(index as u64)).await;
        });
    }
    while asleep.load(Ordering::Relaxed) < SLEEPERS as u64 {
        yield_now().await;
    }
    let together = Arc::new(SideBySide::default());
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let together = together.clone();
            tokio::spawn(async move {
                // The very context of this task, and no end of its turn in between.
                std::future::poll_fn(move |context| {
                    let each = || {
                        let mut timeout = std::pin::pin!(unconstrained(sleep(TIMEOUT)));
                        assert!(timeout.as_mut().poll(context).is_pending());
                    };
                    std::task::Poll::Ready(together.run(workers, count, each))
                })
                .await
            })
        })
        .collect();
    let mut ns = Vec::new();
    for task in tasks {
        ns.push(task.await.unwrap());
    }
    SideBySide::finish(&ns);
}

async fn yields(count: usize) {
    let turns = Arc::new(Turns::default());
    let start = Instant::now();
    let tasks = [1, 2].map(|me| {
        let turns = turns.clone();
        tokio::spawn(async move {
            for _ in 0..count / 2 {
                turns.taken(me);
                yield_now().await;
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    turns.finish(start, count);
}

async fn spawn_join(count: usize) {
    let mut best = 0.0_f64;
    for _ in 0..3 {
        let sum = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let mut tasks = Vec::with_capacity(count);
        for _ in 0..count {
            let sum = sum.clone();
            tasks.push(tokio::spawn(async move {
                sum.fetch_add(1, Ordering::Relaxed);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        best = best.max(millions(start, count));
        expect_sum("spawn-join", sum.load(Ordering::Relaxed), count as u64);
    }
    figure("spawn-join", best, "M/s");
}

async fn spawn_join_one(count: usize) {
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..count {
        sum += tokio::spawn(async { 1 }).await.unwrap();
    }
    figure("spawn-join-one", ns_each(start, count), "ns");
    expect_sum("spawn-join-one", sum, count as u64);
}

fn skynet(first: u64, leaves: u64) -> Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move {
        if leaves == 1 {
            return first;
        }
        let part = leaves / 10;
        let children: [_; 10] =
            std::array::from_fn(|child| tokio::spawn(skynet(first + child as u64 * part, part)));
        let mut sum = 0;
        for child in children {
            sum += child.await.unwrap();
        }
        sum
    })
}

async fn skynet_once(leaves: u64) {
    let start = Instant::now();
    let sum = tokio::spawn(skynet(0, leaves)).await.unwrap();
    figure("skynet", ms(start), "ms");
    expect_sum("skynet", sum, leaves * (leaves - 1) / 2);
}

async fn parked(count: usize) {
    let event = Arc::new(Notify::new());
    let reached = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::with_capacity(count);
    let before = resident();
    let start = Instant::now();
    for _ in 0..count {
        let (event, reached) = (event.clone(), reached.clone());
        tasks.push(tokio::spawn(async move {
            touch_stack();
            // Takes part in `notify_waiters` from here on, also before it is polled.
            let wakened = event.notified();
            reached.fetch_add(1, Ordering::Relaxed);
            wakened.await;
        }));
    }
    while reached.load(Ordering::Relaxed) < count as u64 {
        yield_now().await;
    }
    let (spawn_ms, resident) = (ms(start), resident());
    let start = Instant::now();
    event.notify_waiters();
    for task in tasks {
        task.await.unwrap();
    }
    parked_figures(count, before, resident, spawn_ms, ms(start));
}

async fn ping_pong(count: usize) {
    let (ping, mut pinged) = mpsc::channel::<usize>(1);
    let (pong, mut ponged) = mpsc::channel::<usize>(1);
    let start = Instant::now();
    let other = tokio::spawn(async move {
        while let Some(ball) = pinged.recv().await {
            pong.send(ball + 1).await.unwrap();
        }
    });
    let one = tokio::spawn(async move {
        for ball in 0..count {
            ping.send(ball).await.unwrap();
            assert_eq!(ponged.recv().await, Some(ball + 1));
        }
    });
    one.await.unwrap();
    other.await.unwrap();
    figure("pingpong", ns_each(start, count), "ns");
}

async fn mpmc(count: usize) {
    let (sender, receiver) = async_channel::bounded::<u64>(CAPACITY);
    let start = Instant::now();
    let producers: [_; 4] = std::array::from_fn(|_| {
        let sender = sender.clone();
        tokio::spawn(async move {
            for message in 0..count / 4 {
                sender.send(message as u64).await.unwrap();
            }
        })
    });
    drop(sender);
    let consumers: [_; 4] = std::array::from_fn(|_| {
        let receiver = receiver.clone();
        tokio::spawn(async move {
            let mut sum = 0;
            while let Ok(message) = receiver.recv().await {
                sum += message;
            }
            sum
        })
    });
    for producer in producers {
        producer.await.unwrap();
    }
    let mut sum = 0;
    for consumer in consumers {
        sum += consumer.await.unwrap();
    }
    figure("mpmc", millions(start, count), "M/s");
    let each = count as u64 / 4;
    expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}

async fn scaling(count: usize) {
    let start = Instant::now();
    let mut tasks = Vec::with_capacity(count);
    for seed in 0..count as u64 {
        tasks.push(tokio::spawn(async move { compute(seed) }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    figure("scaling", ms(start), "ms");
}

async fn hogged() {
    let progress = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let (counted, stop) = (progress.clone(), done.clone());
    let counter = tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    let hog = tokio::spawn(async move {
        while progress.load(Ordering::Relaxed) < 10 {
            yield_now().await;
        }
        hog(&progress);
        done.store(true, Ordering::Relaxed);
    });
    hog.await.unwrap();
    counter.await.unwrap();
}
