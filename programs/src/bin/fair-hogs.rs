//! Hogs against short sleepers: the sleepers run soon and get all they ask for, the hogs share the rest, and no thread starves (F-04, F-10).
//! Then a thread that slept for a minute beside a hog: it is owed one slice, not thirty seconds (F-15).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use programs::ensure;
use programs::fair::{self, Hogs, Kind, Nap, QUANTUM_NS, Waits};
use programs::kit::MS;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::ticks::{self, Scale};
use rt::thread::Builder;
use rt::{println, time};

rt::main!(run);

const HOGS: usize = 6;
const SLEEPERS: usize = 6;
const WINDOW_NS: u64 = 3_000 * MS;
/// A sleeper wants a thirtieth of the CPU: less than its share, a twelfth.
const RUN_NS: u64 = MS;
const SLEEP_NS: u64 = 29 * MS;

fn run() -> i64 {
    prove("fair-hogs", || {
        let seconds = rt::args::number(0, 60).map_err(Failure::new)?;
        ensure!(rt::boot_info().cpus == 1, "the bounds of this proof are of one CPU: CPUS=1");
        let scale = Scale::measure()?;
        step("hogs beside short sleepers (F-04, F-10)", || sleepers(scale))?;
        println!("  a hog alone for {seconds} s of guest time, beside a sleeper");
        step("a long sleeper is owed one slice (F-15)", || long_sleeper(seconds * 1000 * MS, scale))
    })
}

fn sleepers(scale: Scale) -> Outcome {
    const SCENARIO: &str = "fair-hogs";
    let hogs = Hogs::start(&[Kind::PLAIN; HOGS], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let until_ns = time::now_ns().doing("now")? + WINDOW_NS;
    let nap = Nap { kind: Kind::PLAIN, run_ns: RUN_NS, sleep_ns: SLEEP_NS };
    let naps = (0..SLEEPERS).map(|_| nap.start(until_ns, scale)).collect::<Outcome<Vec<_>>>()?;
    let got = hogs.run_for(WINDOW_NS)?;
    let naps = naps.into_iter().map(|nap| nap.join()).collect::<Outcome<Vec<_>>>()?;
    let ran = hogs.stop()?;
    let napped: u64 = naps.iter().map(|nap| nap.runtime_ns).sum();
    let worked: u64 = got.runtime_ns.iter().sum();
    fair::say_share(SCENARIO, "sleeper", fair::ppm(napped, got.at_ns));
    fair::say_share(SCENARIO, "hog", fair::ppm(worked, got.at_ns));
    let late = Waits::of(naps.iter().flat_map(|nap| nap.late.samples().iter().copied()).collect());
    late.show("sleepers, wake to run");
    // A sleeper that wakes while the others are awake waits for them, and at worst for the rest of the current slice.
    let soon = QUANTUM_NS + (SLEEPERS as u64 - 1) * RUN_NS;
    ensure!(
        late.percentile(99) <= soon,
        "p99 of the sleepers is {} ns, more than {soon}",
        late.percentile(99)
    );
    let p50 = late.percentile(50);
    ensure!(p50 <= QUANTUM_NS / 20, "p50 of the sleepers is {p50} ns: they wait for slices");
    // A thread that asks for less than its share gets it all: a cycle consists of run, sleep and a mean wait.
    let cycle = RUN_NS + SLEEP_NS + late.mean();
    fair::within("CPU time of the sleepers", napped, SLEEPERS as u64 * got.at_ns / cycle * RUN_NS, 10)?;
    for at in 0..HOGS {
        fair::within(
            "the share of a hog (ppm)",
            got.share_ppm(at),
            fair::ppm(worked, got.at_ns) / HOGS as u64,
            5,
        )?;
    }
    let bound = fair::starvation_bound_ns(&[Kind::PLAIN; HOGS + SLEEPERS - 1], Kind::PLAIN);
    let longest = ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0);
    println!(
        "    a hog waited {} us at most, a sleeper {} us; bound {} us",
        longest / 1000,
        late.max() / 1000,
        bound / 1000
    );
    ensure!(
        longest.max(late.max()) <= bound,
        "waited {longest} or {} ns, the bound is {bound} ns",
        late.max()
    );
    // The hogs take turns: a wait is one round of them and what the sleepers take meanwhile.
    let round = (HOGS as u64 + 1) * QUANTUM_NS * 3 / 2;
    ensure!(longest <= round, "a hog waited {longest} ns, a round is {round} ns");
    Ok(())
}

fn long_sleeper(asleep_ns: u64, scale: Scale) -> Outcome {
    /// How long both run together.
    const TOGETHER_NS: u64 = 2_000 * MS;
    let hogs = Hogs::start(&[Kind::PLAIN], scale)?;
    hogs.go()?;
    let sleeper = Builder::new().spawn(move || -> Outcome<(u64, u64, u64)> {
        let asleep = ticks::now();
        time::sleep(asleep_ns).doing("sleep")?;
        let (before, began) = (fair::own_runtime_ns()?, ticks::now());
        let late = scale.to_ns(began - asleep).saturating_sub(asleep_ns);
        while scale.to_ns(ticks::now() - began) < TOGETHER_NS {
            fair::compute(MS, scale);
        }
        Ok((late, fair::own_runtime_ns()? - before, scale.to_ns(ticks::now() - began)))
    });
    let sleeper = sleeper.doing("start the sleeper")?;
    // While it sleeps, the hog has the CPU for itself.
    let alone = hogs.run_for(asleep_ns)?;
    let both = hogs.run_for(TOGETHER_NS)?;
    let (late, ran_ns, wall_ns) = sleeper.join().doing("join the sleeper")??;
    let hog = hogs.stop()?[0];
    println!(
        "    alone the hog got {} ppm, together {} ppm; the sleeper {} ppm, and ran {} us late; the hog waited {} us at most",
        alone.share_ppm(0),
        both.share_ppm(0),
        fair::ppm(ran_ns, wall_ns),
        late / 1000,
        hog.longest_ns / 1000
    );
    let bound = fair::starvation_bound_ns(&[Kind::PLAIN], Kind::PLAIN);
    ensure!(
        hog.longest_ns <= bound,
        "the hog waited {} ns for the sleeper, the bound is {bound} ns",
        hog.longest_ns
    );
    // The sleeper runs at once, for what it is owed: the kernel's interrupt and switch take far less than a tenth of a slice.
    ensure!(late <= QUANTUM_NS, "the sleeper was {late} ns late");
    fair::within("the sleeper's share (ppm)", fair::ppm(ran_ns, wall_ns), 500_000, 3)?;
    fair::within("the hog's share (ppm)", both.share_ppm(0), 500_000, 3)
}
