//! The peer "threads of the system and crossbeam's channels": what a program without a runtime would do.

use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;
use peers::*;

fn main() {
    let request = Request::from_arguments();
    if request.workers < 2 {
        unsupported("the system places threads, so one worker cannot be asked for");
    }
    match request.workload.as_str() {
        "pingpong" => ping_pong(request.size(ROUND_TRIPS / 5)),
        "mpmc" => mpmc(request.size(MESSAGES)),
        _ => unsupported("a million threads are more than the system gives"),
    }
}

fn ping_pong(count: usize) {
    let (ping, pinged) = bounded::<usize>(0);
    let (pong, ponged) = bounded::<usize>(0);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            for ball in pinged {
                pong.send(ball + 1).unwrap();
            }
        });
        for ball in 0..count {
            ping.send(ball).unwrap();
            assert_eq!(ponged.recv(), Ok(ball + 1));
        }
        drop(ping);
    });
    figure("pingpong", ns_each(start, count), "ns");
}

fn mpmc(count: usize) {
    let (sender, receiver) = bounded::<u64>(CAPACITY);
    let start = Instant::now();
    let sum: u64 = thread::scope(|scope| {
        for _ in 0..4 {
            let sender = sender.clone();
            scope.spawn(move || {
                for message in 0..count / 4 {
                    sender.send(message as u64).unwrap();
                }
            });
        }
        drop(sender);
        let consumers: [_; 4] = std::array::from_fn(|_| {
            let receiver = receiver.clone();
            scope.spawn(move || receiver.iter().sum::<u64>())
        });
        consumers.into_iter().map(|consumer| consumer.join().unwrap()).sum()
    });
    figure("mpmc", millions(start, count), "M/s");
    let each = count as u64 / 4;
    expect_sum("mpmc", sum, 4 * (each * (each - 1) / 2));
}
