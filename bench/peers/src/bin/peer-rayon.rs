//! The peer rayon: its tasks cannot block, so it is the mark for spawning and stealing only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use peers::*;
use rayon::Scope;

fn main() {
    let request = Request::from_arguments();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(request.workers).build().expect("rayon starts");
    pool.install(|| match request.workload.as_str() {
        "spawn-join" => spawn_join(request.size(TASKS)),
        "spawn-join-one" => spawn_join_one(request.size(JOINS)),
        "skynet" => {
            let leaves = request.size(TASKS) as u64;
            let start = Instant::now();
            let sum = skynet(0, leaves);
            figure("skynet", ms(start), "ms");
            expect_sum("skynet", sum, leaves * (leaves - 1) / 2);
        }
        "steal-searching" | "steal-parked" => {
            Arc::new(Steal::default()).trials(&request, |steal| rayon::spawn(move || steal.child()));
        }
        "scaling" => {
            let start = Instant::now();
            rayon::scope(|scope| {
                for seed in 0..request.size(COMPUTATIONS) as u64 {
                    scope.spawn(move |_| {
                        compute(seed);
                    });
                }
            });
            figure("scaling", ms(start), "ms");
        }
        _ => unsupported("tasks of rayon cannot block"),
    });
}

fn spawn_join(count: usize) {
    let best = best_of_three(|| {
        let sum = AtomicU64::new(0);
        let start = Instant::now();
        rayon::scope(|scope| {
            for _ in 0..count {
                scope.spawn(|_| {
                    sum.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let rate = millions(start, count);
        expect_sum("spawn-join", sum.load(Ordering::Relaxed), count as u64);
        rate
    });
    figure("spawn-join", best, "M/s");
}

fn spawn_join_one(count: usize) {
    let sum = AtomicU64::new(0);
    let start = Instant::now();
    for _ in 0..count {
        rayon::scope(|scope: &Scope| {
            scope.spawn(|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        });
    }
    figure("spawn-join-one", ns_each(start, count), "ns");
    expect_sum("spawn-join-one", sum.load(Ordering::Relaxed), count as u64);
}

fn skynet(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let part = leaves / 10;
    let mut sums = [0; 10];
    rayon::scope(|scope| {
        for (child, sum) in sums.iter_mut().enumerate() {
            scope.spawn(move |_| *sum = skynet(first + child as u64 * part, part));
        }
    });
    sums.iter().sum()
}
