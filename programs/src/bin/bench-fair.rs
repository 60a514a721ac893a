//! How late a short sleeper runs beside hogs of its own weight, and how exact a share of 2 to 1 is, on one CPU under icount, where a tick is a
//! nanosecond.
//!
//! The results are printed as `bench <row> <number>`, with the row names of `bench/linux`; `capos linux` reads them.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::borrow::ToOwned;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::ensure;
use programs::proof::{Doing, Outcome, prove};
use programs::ticks;
use rt::{LatencyClass, SchedulingPolicy, Timer, caps, println, thread};

rt::main!(run);

/// Rounds of sleeps whose delays are taken; each round starts new hogs, because the first sleep is the one that may be late.
const ROUNDS: usize = 5;
const SLEEPS: usize = 1000;
/// How long each sleep is.
const SLEEP_NS: u64 = 1_000_000;
/// Windows of the share, and how long each is: 5 s in all.
const WINDOWS: usize = 50;
const WINDOW_NS: u64 = 100_000_000;
/// Weights of the two hogs that share the CPU.
const WEIGHTS: [u16; 2] = [128, 64];
/// The weight of the watching thread, which must not wait for the hogs.
const WATCHER: u16 = 1024;

fn run() -> i64 {
    prove("bench-fair", || {
        ensure!(rt::boot_info().cpus == 1, "hogs on other CPUs are no hogs");
        [1, 4].into_iter().try_for_each(delays)?;
        shares(LatencyClass::Normal, "share-2to1")?;
        shares(LatencyClass::Interactive, "share-2to1-interactive")
    })
}

/// Threads that only count.
struct Hogs {
    stop: Arc<AtomicBool>,
    counts: Arc<Vec<AtomicU64>>,
    threads: Vec<thread::JoinHandle<Outcome>>,
}

impl Hogs {
    /// Starts a hog for each weight and class; `None` keeps those of the starting thread.
    fn start(shares: &[Option<(u16, LatencyClass)>]) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Arc<Vec<AtomicU64>> = Arc::new(shares.iter().map(|_| AtomicU64::new(0)).collect());
        let start = |(at, share): (usize, &Option<(u16, LatencyClass)>)| {
            let (stop, counts, share) = (Arc::clone(&stop), Arc::clone(&counts), *share);
            thread::spawn(move || {
                if let Some((weight, class)) = share {
                    let policy: SchedulingPolicy = caps::any()?;
                    policy.set_weight(weight).doing("set the weight")?;
                    policy.set_class(class).doing("set the class")?;
                }
                while !stop.load(Ordering::Relaxed) {
                    counts[at].store(counts[at].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        let threads = shares.iter().enumerate().map(start).collect();
        Hogs { stop, counts, threads }
    }

    fn count(&self, at: usize) -> u64 {
        self.counts[at].load(Ordering::Relaxed)
    }

    fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().try_for_each(|hog| hog.join()?)
    }
}

/// The difference between a share in thousandths of a percent and two thirds.
fn error_of(heavy: u64, light: u64) -> u64 {
    (heavy * 100_000 / (heavy + light).max(1)).abs_diff(66_667)
}

/// Runs two hogs of weights 2 and 1 and of this class for 5 s: reports the error of the share over all, and in the worst window of 100 ms.
fn shares(class: LatencyClass, row: &str) -> Outcome {
    let timer: Timer = caps::any()?;
    caps::any::<SchedulingPolicy>()?.set_weight(WATCHER).doing("set the weight")?;
    let hogs = Hogs::start(&WEIGHTS.map(|weight| Some((weight, class))));
    let look = || [hogs.count(0), hogs.count(1)];
    timer.sleep(2 * WINDOW_NS).doing("sleep")?;
    let first = look();
    let (mut before, mut worst) = (first, 0);
    for _ in 0..WINDOWS {
        timer.sleep(WINDOW_NS).doing("sleep")?;
        let now = look();
        worst = worst.max(error_of(now[0] - before[0], now[1] - before[1]));
        before = now;
    }
    println!("bench {row}-error-mpp {}", error_of(before[0] - first[0], before[1] - first[1]));
    println!("bench {row}-worst-100ms-mpp {worst}");
    hogs.stop()
}

/// Sleeps 1 ms repeatedly beside `hogs` hogs, and measures the time from the deadline until the sleeper runs. The deadline is 1 ms after the
/// clock was read, just before the call, so that the way into the kernel counts, too.
fn delays(hogs: usize) -> Outcome {
    let timer: Timer = caps::any()?;
    let mut delays = Vec::with_capacity(SLEEPS);
    for _ in 0..ROUNDS {
        let group = Hogs::start(&alloc::vec![None; hogs]);
        for _ in 0..SLEEPS / ROUNDS {
            let deadline = ticks::now() + SLEEP_NS;
            timer.sleep(SLEEP_NS).doing("sleep")?;
            delays.push(ticks::now().saturating_sub(deadline));
        }
        ensure!((0..hogs).all(|at| group.count(at) > 0), "a hog never ran");
        group.stop()?;
    }
    delays.sort_unstable();
    let name = if hogs == 1 { "hog-delay".to_owned() } else { alloc::format!("{hogs}-hogs-delay") };
    let (first, last) = (delays[0], delays[SLEEPS - 1]);
    for (part, at) in [("p50", SLEEPS / 2), ("p99", SLEEPS * 99 / 100), ("worst", SLEEPS - 1)] {
        println!("bench {name}-{part}-ns {} (spread {first} to {last})", delays[at]);
    }
    Ok(())
}
