//! What the Rust peers of `make bench-runtime` share: the protocol, the sizes of the workloads, and what must be the
//! same for all of them (the computation, the check of turns, percentiles, resident memory).
//!
//! Protocol: `<program> <workload> <workers> [size]` prints one line for each figure, `<figure> <value> <unit>`, and
//! exits with 0. Exit code 3 with a line on stderr says that this peer cannot do the workload, and why.
#![forbid(unsafe_code)]

use std::fs;
use std::hint::{black_box, spin_loop};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Default sizes; the Go and C++ programs repeat them.
pub const SWITCHES: usize = 20_000_000;
pub const YIELDS: usize = 1_000_000;
pub const TASKS: usize = 1_000_000;
pub const JOINS: usize = 200_000;
pub const ROUND_TRIPS: usize = 500_000;
pub const MESSAGES: usize = 2_000_000;
pub const CAPACITY: usize = 128;
pub const SEARCHING_TRIALS: usize = 2_000;
pub const PARKED_TRIALS: usize = 500;
pub const COMPUTATIONS: usize = 20_000;
pub const TIMEOUTS: usize = 500_000;
/// Tasks that sleep meanwhile.
pub const SLEEPERS: usize = 100_000;
/// What they sleep, each a little longer than the one before, and what the time-outs are: neither comes about.
pub const SLEEP: Duration = Duration::from_secs(3600);
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// What the command line asks for.
pub struct Request {
    pub workload: String,
    pub workers: usize,
    size: Option<usize>,
}

impl Request {
    pub fn from_arguments() -> Request {
        let mut arguments = std::env::args().skip(1);
        let workload = arguments.next();
        let workers = arguments.next().and_then(|text| text.parse().ok()).filter(|workers| *workers > 0);
        let (Some(workload), Some(workers)) = (workload, workers) else {
            eprintln!("which workload, how many workers? <program> <workload> <workers> [size]");
            exit(2);
        };
        Request { workload, workers, size: arguments.next().and_then(|text| text.parse().ok()) }
    }

    pub fn size(&self, default: usize) -> usize {
        self.size.unwrap_or(default)
    }
}

pub fn figure(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.3} {unit}");
}

/// This peer cannot do it.
pub fn unsupported(why: &str) -> ! {
    eprintln!("{why}");
    exit(3)
}

/// It should have worked, and the figure would be wrong.
pub fn fail(why: &str) -> ! {
    eprintln!("{why}");
    exit(1)
}

/// Nanoseconds each of `count` since `start`.
pub fn ns_each(start: Instant, count: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Millions a second of `count` since `start`.
pub fn millions(start: Instant, count: usize) -> f64 {
    count as f64 / start.elapsed().as_secs_f64() / 1e6
}

pub fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// The first two rounds warm pools and allocators: best of three, for every peer.
pub fn best_of_three(mut round: impl FnMut() -> f64) -> f64 {
    (0..3).map(|_| round()).fold(0.0, f64::max)
}

pub fn expect_sum(what: &str, sum: u64, expected: u64) {
    if sum != expected {
        fail(&format!("{what}: counted {sum} instead of {expected}"));
    }
}

/// Resident bytes of this process.
pub fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Prints the three figures of `parked`.
pub fn parked_figures(tasks: usize, before: u64, parked: u64, spawn_ms: f64, wake_ms: f64) {
    figure("parked-bytes", parked.saturating_sub(before) as f64 / tasks as f64, "bytes");
    figure("parked-spawn", spawn_ms, "ms");
    figure("parked-wake", wake_ms, "ms");
}

/// A task's use of its stack.
#[inline(never)]
pub fn touch_stack() {
    black_box([1u8; 256]);
}

/// About 8.5 µs: a chain of dependent steps, so that no compiler makes it shorter than another's.
#[inline(never)]
pub fn compute(seed: u64) -> u64 {
    let mut state = seed;
    for _ in 0..6_000 {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    state
}

/// Whether two tasks really take turns: a `yield` that comes straight back would measure nothing. Two turns in a row are
/// allowed: tokio's current_thread wakes those that yielded in the reverse order each time (1 2 2 1 1 2 2 1), and Go
/// and tokio's multi_thread look into another queue every 61st time. Three in a row are rare where tasks take turns.
#[derive(Default)]
pub struct Turns {
    last: AtomicUsize,
    again: AtomicUsize,
    failures: AtomicUsize,
}

impl Turns {
    /// Task `me` (1 or 2) runs. Loads and stores, no read-modify-write: one worker runs both, and the check is not to
    /// be what is measured.
    #[inline]
    pub fn taken(&self, me: usize) {
        if self.last.load(Ordering::Relaxed) == me {
            let again = self.again.load(Ordering::Relaxed) + 1;
            self.again.store(again, Ordering::Relaxed);
            if again > 1 {
                self.failures.store(self.failures.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        } else {
            self.last.store(me, Ordering::Relaxed);
            self.again.store(0, Ordering::Relaxed);
        }
    }

    /// Prints ns a yield, or fails if more than one in twenty came straight back.
    pub fn finish(&self, start: Instant, yields: usize) {
        let ns = ns_each(start, yields);
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > yields / 20 {
            fail(&format!(
                "the two tasks do not alternate: {failures} of {yields} yields came straight back"
            ));
        }
        figure("yield", ns, "ns");
    }
}

/// How long the other worker may take before we say that it never comes.
const NEVER: Duration = Duration::from_millis(500);

/// The trials of `steal-searching` and `steal-parked`: the parent spins, the child says when it began.
pub struct Steal {
    start: Instant,
    began: AtomicU64,
    ran: AtomicBool,
}

impl Default for Steal {
    fn default() -> Steal {
        Steal { start: Instant::now(), began: AtomicU64::new(0), ran: AtomicBool::new(false) }
    }
}

impl Steal {
    /// What the child does.
    pub fn child(&self) {
        self.began.store(self.start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.ran.store(true, Ordering::Release);
    }

    /// All trials; `spawn` starts one child that calls [`Steal::child`] and is called from a worker.
    pub fn trials(self: &Arc<Steal>, request: &Request, mut spawn: impl FnMut(Arc<Steal>)) {
        let parked = request.workload == "steal-parked";
        let count = request.size(if parked { PARKED_TRIALS } else { SEARCHING_TRIALS });
        // The other worker has just finished the last child: 2 µs later it still searches, 5 ms later it sleeps.
        let pause = if parked { Duration::from_millis(5) } else { Duration::from_micros(2) };
        let mut latencies = Vec::with_capacity(count);
        for trial in 0..count + 10 {
            spin(pause);
            self.ran.store(false, Ordering::Relaxed);
            let spawned = self.start.elapsed().as_nanos() as u64;
            spawn(self.clone());
            let waiting = Instant::now();
            while !self.ran.load(Ordering::Acquire) {
                spin_loop();
                if waiting.elapsed() > NEVER {
                    unsupported("no other worker takes the child while its parent spins");
                }
            }
            // The first ones only warm up.
            if trial >= 10 {
                latencies.push(self.began.load(Ordering::Relaxed).saturating_sub(spawned));
            }
        }
        latencies.sort_unstable();
        let percentile = |hundredth: usize| latencies[(count - 1) * hundredth / 100] as f64 / 1e3;
        figure(&format!("{}-p50", request.workload), percentile(50), "us");
        figure(&format!("{}-p99", request.workload), percentile(99), "us");
    }
}

/// The tasks that set time-outs and take them back, one a worker: all begin when all are there, so that they run side by
/// side. The figure is the time that one of them takes for each, from that moment on.
#[derive(Default)]
pub struct SideBySide {
    arrived: AtomicUsize,
}

impl SideBySide {
    /// What one of `workers` tasks does: `each` so often.
    pub fn run(&self, workers: usize, count: usize, mut each: impl FnMut()) -> f64 {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let waiting = Instant::now();
        while self.arrived.load(Ordering::Acquire) < workers {
            spin_loop();
            if waiting.elapsed() > NEVER {
                unsupported("no other worker takes the second task while the first one spins");
            }
        }
        let start = Instant::now();
        for _ in 0..count {
            each();
        }
        ns_each(start, count)
    }

    /// Prints the mean of all these tasks.
    pub fn finish(ns: &[f64]) {
        figure("timeouts", ns.iter().sum::<f64>() / ns.len() as f64, "ns");
    }
}

/// Spins on this worker: a sleep would let it go.
pub fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        spin_loop();
    }
}

/// The hog's second: how far `progress` comes while this worker is not given back.
pub fn hog(progress: &AtomicU64) {
    let before = progress.load(Ordering::Relaxed);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        black_box(compute(1));
    }
    figure("hog", (progress.load(Ordering::Relaxed) - before) as f64, "yields");
}
