//! Sharing one CPU: how late a short sleeper runs beside hogs, and how exact a share of 2 to 1 is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::machine::{Policy, checked, exact_sleeps, pin};

/// Sleeps of which the delays are taken: some rounds beside hogs that were just started, since the first sleep is the one that may be late.
const ROUNDS: usize = 5;
const SLEEPS: usize = 1000;
/// How long each is.
const SLEEP_NS: u64 = 1_000_000;
/// Windows of the share, and how long each is: 5 s in all.
const WINDOWS: usize = 50;
const WINDOW_NS: u64 = 100_000_000;
/// Nice values whose weights are 36 and 18: the only pair of the kernel's table that is 2 to 1 exactly.
const NICE: [i32; 2] = [15, 18];

fn now_ns() -> u64 {
    // SAFETY: a structure of numbers, filled by the call.
    unsafe {
        let mut time: libc::timespec = core::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn sleep_until(ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let absolute = libc::TIMER_ABSTIME;
    // SAFETY: a structure that lives as long as the call.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, absolute, &raw const time, core::ptr::null_mut()) };
}

/// A thread that only counts.
fn hog(count: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Both.
pub(crate) fn one_cpu() -> Result<(), String> {
    pin(0)?;
    for hogs in [1, 4] {
        for (way, exact) in [("slack-1ns", true), ("slack-default", false)] {
            exact_sleeps(exact)?;
            delays(hogs, way);
        }
    }
    exact_sleeps(true)?;
    shares()
}

/// How long after its deadline a thread runs that sleeps 1 ms again and again, beside `hogs` of its own weight.
fn delays(hogs: usize, way: &str) {
    let mut delays = Vec::with_capacity(SLEEPS);
    for _ in 0..ROUNDS {
        let stop = AtomicBool::new(false);
        let counts: Vec<AtomicU64> = (0..hogs).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for count in &counts {
                scope.spawn(|| hog(count, &stop));
            }
            for _ in 0..SLEEPS / ROUNDS {
                let deadline = now_ns() + SLEEP_NS;
                sleep_until(deadline);
                delays.push(now_ns() - deadline);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 0), "a hog never ran");
    }
    delays.sort_unstable();
    let name = if hogs == 1 { "hog-delay".to_owned() } else { format!("{hogs}-hogs-delay") };
    let (first, last) = (delays[0], delays[SLEEPS - 1]);
    for (part, at) in [("p50", SLEEPS / 2), ("p99", SLEEPS * 99 / 100), ("worst", SLEEPS - 1)] {
        println!("bench {name}-{part}-ns/{way} {} (spread {first} to {last})", delays[at]);
    }
}

/// The difference between a share in thousandths of a percent and two thirds.
fn error_of(heavy: u64, light: u64) -> u64 {
    (heavy * 100_000 / (heavy + light).max(1)).abs_diff(66_667)
}

/// Two hogs of weights 2 and 1 for 5 s: the error of the share over all, and in the worst window of 100 ms.
fn shares() -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let read = || [0, 1].map(|at: usize| counts[at].load(Ordering::Relaxed));
    // Who looks must not wait for those that it looks at.
    Policy::Fifo.set()?;
    thread::scope(|scope| {
        let mut hogs = Vec::new();
        for (count, nice) in counts.iter().zip(NICE) {
            let stop = &stop;
            hogs.push(scope.spawn(move || {
                Policy::Other.set()?;
                // SAFETY: changes a number of this thread; 0 is the caller.
                checked("nice", unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })?;
                hog(count, stop);
                Ok::<(), String>(())
            }));
        }
        let mut at = now_ns() + 2 * WINDOW_NS;
        sleep_until(at);
        let first = read();
        let (mut before, mut worst) = (first, 0);
        for _ in 0..WINDOWS {
            at += WINDOW_NS;
            sleep_until(at);
            let counts = read();
            worst = worst.max(error_of(counts[0] - before[0], counts[1] - before[1]));
            before = counts;
        }
        stop.store(true, Ordering::Relaxed);
        let all = error_of(before[0] - first[0], before[1] - first[1]);
        // There are no latency classes: the peer of capOS's interactive threads is the same run.
        for row in ["share-2to1", "share-2to1-interactive"] {
            println!("bench {row}-error-mpp/nice {all}");
            println!("bench {row}-worst-100ms-mpp/nice {worst}");
        }
        hogs.into_iter().try_for_each(|hog| hog.join().unwrap_or_else(|_| Err("a hog panicked".to_owned())))
    })?;
    Policy::Other.set()
}
