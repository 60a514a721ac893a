//! Wake storms: dozens of threads are woken at one instant beside a hog on each CPU. Each runs every time, within the bound, and no hog starves
//! (F-10).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use programs::ensure;
use programs::fair::{self, Hogs, Kind, Waits};
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::{self, Scale};
use rt::thread::Builder;
use rt::{ParkSpace, caps, println, time};

rt::main!(run);

const SCENARIO: &str = "fair-wake-storm";
const STORM: usize = 48;
const ROUNDS: u32 = 40;
const PERIOD_NS: u64 = 50 * MS;
const RUN_NS: u64 = 200_000;

fn run() -> i64 {
    prove("fair-wake-storm", || {
        let scale = Scale::measure()?;
        step("everybody is woken, and runs within the bound (F-10)", || storm(scale))
    })
}

struct Sky {
    /// The number of the round; also the word on which threads park.
    round: AtomicU32,
    /// When the round began, in ticks.
    began: AtomicU64,
    done: AtomicU32,
}

/// The body of a thread of the storm, which runs once in each round. Returns how long after each wake-up it ran, and its CPU time.
fn drop_of(sky: &Sky, scale: Scale) -> Outcome<(Vec<u64>, u64)> {
    let space: ParkSpace = caps::any().doing("park")?;
    let mut waits = Vec::new();
    let before = fair::own_runtime_ns()?;
    sky.done.fetch_add(1, Ordering::AcqRel);
    for round in 0..ROUNDS {
        while sky.round.load(Ordering::Acquire) == round {
            space.park(&sky.round, round, u64::MAX).doing("park")?;
        }
        let waited = ticks::now().saturating_sub(sky.began.load(Ordering::Acquire));
        waits.push(scale.to_ns(waited));
        ensure!(sky.round.load(Ordering::Acquire) == round + 1, "a thread of the storm missed round {round}");
        fair::compute(RUN_NS, scale);
        sky.done.fetch_add(1, Ordering::AcqRel);
    }
    Ok((waits, fair::own_runtime_ns()? - before))
}

fn storm(scale: Scale) -> Outcome {
    let cpus = rt::boot_info().cpus as usize;
    let kinds: Vec<Kind> = (0..cpus).map(|_| Kind::PLAIN).collect();
    let sky = Arc::new(Sky { round: AtomicU32::new(0), began: AtomicU64::new(0), done: AtomicU32::new(0) });
    let mut drops = Vec::new();
    for _ in 0..STORM {
        let sky = Arc::clone(&sky);
        let run = move || drop_of(&sky, scale);
        drops.push(Builder::new().stack_bytes(16 * 1024).spawn(run).doing("start a thread of the storm")?);
    }
    kit::wait_until("the storm gathers", || Ok(sky.done.load(Ordering::Acquire) as usize == STORM))?;
    let hogs = Hogs::start(&kinds, scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let space: ParkSpace = caps::any().doing("park")?;
    let before = hogs.look()?;
    for round in 0..ROUNDS {
        let ended = time::now_ns().doing("now")? + PERIOD_NS;
        sky.began.store(ticks::now(), Ordering::Release);
        sky.round.store(round + 1, Ordering::Release);
        // Threads that were not parked yet see the new round; either way none misses it.
        space.unpark(&sky.round, u32::MAX).doing("unpark")?;
        time::sleep(ended.saturating_sub(time::now_ns().doing("now")?)).doing("sleep")?;
        let (done, wanted) = (sky.done.load(Ordering::Acquire), (round + 2) * STORM as u32);
        ensure!(done == wanted, "round {round}: {done} of {wanted} were done after {PERIOD_NS} ns");
    }
    let got = hogs.look()?.since(&before);
    let (mut waits, mut stormed) = (Vec::new(), 0);
    for thread in drops {
        let (mine, runtime_ns) = thread.join().doing("join")??;
        ensure!(mine.len() == ROUNDS as usize, "a thread of the storm ran {} times", mine.len());
        waits.extend(mine);
        stormed += runtime_ns;
    }
    let ran = hogs.stop()?;
    let waits = Waits::of(waits);
    waits.show("storm, wake to run");
    let worked: u64 = got.runtime_ns.iter().sum();
    fair::say_share(SCENARIO, "hog", fair::ppm(worked, got.at_ns));
    fair::say_share(SCENARIO, "storm", fair::ppm(stormed, got.at_ns));
    // The woken threads are owed time, so they do not wait for slices to end: they run one after the other, spread over the CPUs up to three times
    // worse than evenly.
    let bound = 3 * (STORM as u64).div_ceil(cpus as u64) * RUN_NS + MS;
    let p99 = waits.percentile(99);
    ensure!(p99 <= bound, "p99 is {p99} ns, three times an even spread is {bound} ns");
    let others: Vec<Kind> = (0..STORM + cpus - 1).map(|_| Kind::PLAIN).collect();
    let starved = fair::starvation_bound_ns(&others, Kind::PLAIN);
    let longest = ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0);
    println!(
        "    a hog waited {} us at most, a thread of the storm {} us",
        longest / 1000,
        waits.max() / 1000
    );
    ensure!(longest.max(waits.max()) <= starved, "somebody waited longer than {starved} ns");
    // The storm takes a part of each period; the hogs have the rest of all CPUs.
    let all = fair::ppm(worked + stormed, got.at_ns * cpus as u64);
    ensure!(all >= 950_000, "hogs and storm got {all} ppm of all CPUs");
    for at in 0..cpus {
        fair::within("CPU time of a hog", got.runtime_ns[at], worked / cpus as u64, 10)?;
    }
    Ok(())
}
