//! What the proofs of fair scheduling share: threads that always want to run, how much CPU time each of them got, and how that is reported.
//!
//! A line `share <scenario> <thread> <ppm>` is what `capos` compares with the simulator's run of `sim/scenarios/<scenario>.scn`: CPU time as a
//! part of one CPU's, in millionths.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rt::abi::LatencyClass;
use rt::thread::{Builder, JoinHandle};
use rt::{ParkSpace, SchedulingPolicy, Share, caps, println, thread, time};

use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks::{self, Scale};
use crate::{ensure, workload};

/// The slice of an ordinary thread; must equal the value in `sched/src/params.rs`.
pub const QUANTUM_NS: u64 = 3 * MS;
/// The weight of a thread whose weight was not set.
pub const WEIGHT: u16 = 64;
/// Turns of the compute loop between two looks at the clock: about 1,400 instructions.
const TURNS: u64 = 200;
/// Stack of each thread.
const STACK_BYTES: usize = 8192;

/// How a thread competes for CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Its weight.
    pub weight: u16,
    /// Its class.
    pub class: LatencyClass,
}

impl Kind {
    /// The kind that every new thread has.
    pub const PLAIN: Kind = Kind { weight: WEIGHT, class: LatencyClass::Normal };

    /// A normal thread of this weight.
    pub const fn weight(weight: u16) -> Kind {
        Kind { weight, class: LatencyClass::Normal }
    }

    /// A thread of this class, with the usual weight.
    pub const fn class(class: LatencyClass) -> Kind {
        Kind { weight: WEIGHT, class }
    }

    /// Gives the calling thread this weight and class.
    pub fn take_on(self) -> Outcome {
        if self == Kind::PLAIN {
            return Ok(());
        }
        let policy: SchedulingPolicy = caps::any().doing("scheduling_policy")?;
        policy.set_weight(self.weight).doing("set the weight")?;
        policy.set_class(self.class).doing("set the class")
    }
}

/// The longest that a thread may wait for its CPU among `others` (F-10): `sum (w_j S / 32 + slice)`, with `S` the longest virtual slice of all.
/// The derivation is in `sched/tests/properties.rs`.
pub fn starvation_bound_ns(others: &[Kind], own: Kind) -> u64 {
    let slice = |kind: &Kind| match kind.class {
        LatencyClass::Interactive => QUANTUM_NS / 2,
        LatencyClass::Batch => QUANTUM_NS * 4,
        _ => QUANTUM_NS,
    };
    let virtual_slice = |kind: &Kind| slice(kind) * u64::from(WEIGHT) / u64::from(kind.weight);
    let longest = others.iter().chain([&own]).map(virtual_slice).max().unwrap_or(QUANTUM_NS);
    others.iter().map(|other| u64::from(other.weight) * longest / 32 + QUANTUM_NS).sum()
}

/// What one hog publishes about itself.
#[derive(Default)]
struct Lane {
    tid: AtomicU32,
    work: AtomicU64,
    /// A weight that the hog shall set for itself as soon as it sees this; 0 means none.
    order: AtomicU32,
}

/// What a hog measured from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// The kernel's counters of the hog at its start.
    pub first: Share,
    /// The kernel's counters of the hog at its end.
    pub last: Share,
    /// The time between `first` and `last`.
    pub wall_ns: u64,
    /// The longest that it was kept from the CPU.
    pub longest_ns: u64,
    /// The longest such wait that ended after [`Hogs::settled`].
    pub settled_longest_ns: u64,
}

/// What hogs and their watcher share.
struct Board {
    ready: AtomicU32,
    go: AtomicU32,
    stop: AtomicBool,
    is_settled: AtomicBool,
    lanes: Vec<Lane>,
    sink: AtomicU64,
}

/// Threads that never want to wait.
pub struct Hogs {
    board: Arc<Board>,
    threads: Vec<JoinHandle<Outcome<Ran>>>,
}

/// How much hogs had got by one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The time of this look; of a difference, the time between two looks.
    pub at_ns: u64,
    /// CPU time of each hog, as the kernel counts it.
    pub runtime_ns: Vec<u64>,
    /// Turns of each hog, as it counts them itself.
    pub work: Vec<u64>,
}

impl Look {
    /// What each hog got since `before`.
    pub fn since(&self, before: &Look) -> Look {
        let less = |now: &[u64], then: &[u64]| now.iter().zip(then).map(|(now, then)| now - then).collect();
        Look {
            at_ns: self.at_ns - before.at_ns,
            runtime_ns: less(&self.runtime_ns, &before.runtime_ns),
            work: less(&self.work, &before.work),
        }
    }

    /// CPU time of one hog as a part of one CPU's, in millionths; for a difference of two looks.
    pub fn share_ppm(&self, at: usize) -> u64 {
        ppm(self.runtime_ns[at], self.at_ns)
    }
}

/// A part of a whole, in millionths.
pub fn ppm(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1_000_000 / u128::from(whole.max(1))) as u64
}

/// Prints a share, for people and for the comparison with the simulator.
pub fn say_share(scenario: &str, target: &str, ppm: u64) {
    println!("share {scenario} {target} {ppm}");
}

/// Fails unless `found` differs from `wanted` by at most `percent` of `wanted`. Both must have the same unit.
pub fn within(what: &str, found: u64, wanted: u64, percent: u64) -> Outcome {
    let is_near = u128::from(found.abs_diff(wanted)) * 100 <= u128::from(wanted) * u128::from(percent);
    ensure!(is_near, "{what}: {found} instead of {wanted} within {percent} %");
    Ok(())
}

impl Hogs {
    /// Creates one hog of each kind. They wait until [`Hogs::go`].
    pub fn start(kinds: &[Kind], scale: Scale) -> Outcome<Hogs> {
        let lanes = kinds.iter().map(|_| Lane::default()).collect();
        let board = Arc::new(Board {
            ready: AtomicU32::new(0),
            go: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            lanes,
            sink: AtomicU64::new(0),
        });
        let mut threads = Vec::new();
        for (at, &kind) in kinds.iter().enumerate() {
            let theirs = Arc::clone(&board);
            let run = move || theirs.hog(at, kind, scale);
            threads.push(Builder::new().stack_bytes(STACK_BYTES).spawn(run).doing("start a hog")?);
        }
        let hogs = Hogs { board, threads };
        kit::wait_until("the hogs are ready", || {
            Ok(hogs.board.ready.load(Ordering::Acquire) as usize == kinds.len())
        })?;
        Ok(hogs)
    }

    /// Lets the hogs run.
    pub fn go(&self) -> Outcome {
        self.board.go.store(1, Ordering::Release);
        caps::any::<ParkSpace>()?.unpark(&self.board.go, u32::MAX).doing("unpark the hogs")?;
        Ok(())
    }

    /// Declares that threads have found their CPUs: longest waits are counted separately from now on.
    pub fn settled(&self) {
        self.board.is_settled.store(true, Ordering::Relaxed);
    }

    /// How much the hogs have got so far.
    pub fn look(&self) -> Outcome<Look> {
        let pid = rt::boot_info().pid;
        let all = kit::system()?.threads().doing("threads")?;
        let at_ns = time::now_ns().doing("now")?;
        let mut look = Look { at_ns, runtime_ns: Vec::new(), work: Vec::new() };
        for lane in &self.board.lanes {
            let tid = lane.tid.load(Ordering::Relaxed);
            let found = all.iter().find(|thread| thread.pid == pid && thread.tid == tid);
            let found = found.ok_or_else(|| Failure::new(format_args!("there is no thread {tid}")))?;
            ensure!(found.runtime_ns > 0, "thread {tid} has run, and the kernel says that it has not");
            look.runtime_ns.push(found.runtime_ns);
            look.work.push(lane.work.load(Ordering::Relaxed));
        }
        Ok(look)
    }

    /// Lets the hogs run for `ns` and returns how much each got meanwhile.
    pub fn run_for(&self, ns: u64) -> Outcome<Look> {
        let before = self.look()?;
        time::sleep(ns).doing("sleep")?;
        Ok(self.look()?.since(&before))
    }

    /// Tells one hog to change its weight; the hog does so itself, as soon as it runs.
    pub fn reweigh(&self, at: usize, weight: u16) {
        self.board.lanes[at].order.store(weight.into(), Ordering::Release);
    }

    /// Whether a hog has done what [`Hogs::reweigh`] told it.
    pub fn has_obeyed(&self, at: usize) -> bool {
        self.board.lanes[at].order.load(Ordering::Acquire) == 0
    }

    /// Ends the hogs and returns what each measured.
    pub fn stop(self) -> Outcome<Vec<Ran>> {
        self.board.stop.store(true, Ordering::Release);
        self.go()?;
        self.threads.into_iter().map(|thread| thread.join().doing("join a hog")?).collect()
    }
}

impl Board {
    /// The body of a hog's thread.
    fn hog(&self, at: usize, kind: Kind, scale: Scale) -> Outcome<Ran> {
        let lane = &self.lanes[at];
        let policy: SchedulingPolicy = caps::any().doing("scheduling_policy")?;
        kind.take_on()?;
        lane.tid.store(thread::id(), Ordering::Relaxed);
        self.ready.fetch_add(1, Ordering::AcqRel);
        wait_for(&self.go)?;
        let (began, first) = counted(&policy)?;
        let (mut seed, mut work, mut last) = (at as u64, 0u64, ticks::now());
        let (mut longest, mut settled_longest) = (0u64, 0u64);
        while !self.stop.load(Ordering::Relaxed) {
            seed = workload::spin(TURNS, seed);
            let now = ticks::now();
            let waited = now.saturating_sub(last);
            longest = longest.max(waited);
            if self.is_settled.load(Ordering::Relaxed) {
                settled_longest = settled_longest.max(waited);
            }
            last = now;
            work += 1;
            lane.work.store(work, Ordering::Relaxed);
            if lane.order.load(Ordering::Relaxed) != 0 {
                let weight = lane.order.load(Ordering::Acquire) as u16;
                policy.set_weight(weight).doing("change the weight")?;
                lane.order.store(0, Ordering::Release);
            }
            // Lets the other CPUs of an emulated machine go on.
            core::hint::spin_loop();
        }
        let (ended, last) = counted(&policy)?;
        self.sink.fetch_xor(seed, Ordering::Relaxed);
        let (longest_ns, settled_longest_ns) = (scale.to_ns(longest), scale.to_ns(settled_longest));
        Ok(Ran { first, last, wall_ns: ended - began, longest_ns, settled_longest_ns })
    }
}

/// The kernel's counters of the calling thread and the time at which they were read; repeated until no other thread ran in between.
fn counted(policy: &SchedulingPolicy) -> Outcome<(u64, Share)> {
    loop {
        let before = policy.snapshot().doing("snapshot")?;
        let now = time::now_ns().doing("now")?;
        let after = policy.snapshot().doing("snapshot")?;
        if (before.runnable_ns, before.preemptions) == (after.runnable_ns, after.preemptions) {
            return Ok((now, before));
        }
    }
}

/// Parks until `go` is not 0.
pub fn wait_for(go: &AtomicU32) -> Outcome {
    let space: ParkSpace = caps::any().doing("park")?;
    while go.load(Ordering::Acquire) == 0 {
        space.park(go, 0, u64::MAX).doing("park")?;
    }
    Ok(())
}

/// Keeps the CPU busy for about `ns` of the thread's own time. Time in which other threads run does not count, unless it is shorter than a
/// turn.
pub fn compute(ns: u64, scale: Scale) {
    compute_while(ns, scale, || true);
}

/// As [`compute`], as long as `go_on`, which is asked every turn, returns true.
pub fn compute_while(ns: u64, scale: Scale, mut go_on: impl FnMut() -> bool) {
    let (mut done, mut last, mut seed) = (0, ticks::now(), ns);
    while done < ns && go_on() {
        seed = workload::spin(TURNS / 4, seed);
        core::hint::spin_loop();
        let now = ticks::now();
        // A turn takes microseconds; a thread for which much more time passed was off its CPU for the rest.
        done += scale.to_ns(now.saturating_sub(last)).min(AWAY_NS);
        last = now;
    }
    core::hint::black_box(seed);
}

/// The longest that a turn of [`compute`] takes if no other thread interrupts it.
const AWAY_NS: u64 = 50_000;

/// Sorted durations.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<u64>);

impl Waits {
    /// Sorts the samples.
    pub fn of(mut samples: Vec<u64>) -> Waits {
        samples.sort_unstable();
        Waits(samples)
    }

    /// All samples, the smallest first.
    pub fn samples(&self) -> &[u64] {
        &self.0
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest sample that `percent` of the samples do not exceed.
    pub fn percentile(&self, percent: usize) -> u64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }

    /// The longest; 0 if there is none.
    pub fn max(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// The average; 0 if there is no sample.
    pub fn mean(&self) -> u64 {
        self.0.iter().sum::<u64>() / self.0.len().max(1) as u64
    }

    /// Prints percentiles and a histogram whose rows double in width.
    pub fn show(&self, what: &str) {
        println!(
            "    {what}: {} samples, p50 {} us, p99 {} us, max {} us, mean {} us",
            self.len(),
            self.percentile(50) / 1000,
            self.percentile(99) / 1000,
            self.max() / 1000,
            self.mean() / 1000
        );
        let (mut from, mut to_ns) = (0, 1000);
        while from < self.0.len() {
            let to = self.0.partition_point(|sample| *sample < to_ns);
            if to > from {
                let bar: String =
                    core::iter::repeat_n('#', ((to - from) * 40).div_ceil(self.0.len())).collect();
                println!("      < {:>7} us {:>5} {bar}", to_ns / 1000, to - from);
            }
            (from, to_ns) = (to, to_ns * 2);
        }
    }
}

/// A thread that repeatedly computes a little and then sleeps, and measures how late each of its wake-ups was.
#[derive(Clone, Copy, Debug)]
pub struct Nap {
    /// The weight and class of the thread.
    pub kind: Kind,
    /// How long it computes each time.
    pub run_ns: u64,
    /// How long it sleeps each time.
    pub sleep_ns: u64,
}

/// A sleeper that was started.
pub struct Sleeper(JoinHandle<Outcome<Slept>>);

/// What a sleeper measured.
#[derive(Clone, Debug)]
pub struct Slept {
    /// The time from the end of each sleep until the thread ran again.
    pub late: Waits,
    /// The thread's CPU time, as the kernel counts it.
    pub runtime_ns: u64,
}

impl Nap {
    /// Starts the thread; it ends after `until_ns`.
    pub fn start(self, until_ns: u64, scale: Scale) -> Outcome<Sleeper> {
        let run = move || self.run(until_ns, scale);
        Ok(Sleeper(Builder::new().stack_bytes(2 * STACK_BYTES).spawn(run).doing("start a sleeper")?))
    }

    fn run(self, until_ns: u64, scale: Scale) -> Outcome<Slept> {
        self.kind.take_on()?;
        let timer = time::timer().doing("timer")?;
        let mut late = Vec::new();
        let before = own_runtime_ns()?;
        loop {
            let asleep = ticks::now();
            timer.sleep(self.sleep_ns).doing("sleep")?;
            late.push(scale.to_ns(ticks::now() - asleep).saturating_sub(self.sleep_ns));
            if timer.now_ns().doing("now")? >= until_ns {
                break;
            }
            compute(self.run_ns, scale);
        }
        Ok(Slept { late: Waits::of(late), runtime_ns: own_runtime_ns()? - before })
    }
}

impl Sleeper {
    /// Waits for its end.
    pub fn join(self) -> Outcome<Slept> {
        self.0.join().doing("join a sleeper")?
    }
}

/// CPU time of the calling thread.
pub fn own_runtime_ns() -> Outcome<u64> {
    let policy: SchedulingPolicy = caps::any().doing("scheduling_policy")?;
    Ok(policy.snapshot().doing("snapshot")?.runtime_ns)
}
