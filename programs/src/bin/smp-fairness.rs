//! Threads share several CPUs by weight, although a thread can use only one CPU at a time (F-16): three equal ones on two CPUs, five on four,
//! 2:1:1 on two.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use programs::ensure;
use programs::fair::{self, Hogs, Kind, WEIGHT};
use programs::kit::MS;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::text::Count;
use programs::ticks::Scale;
use rt::{println, time};

rt::main!(run);

/// F-16 allows 5. Kernel images differ by about 1 %. When migrations lost a part of the thread's share, many images had a thread that was short
/// by 3 to 5 %, and the limit of the requirement let most of them pass.
const TOLERANCE_PERCENT: u64 = 3;

/// One crowd of hogs; its name is that of the simulator's corresponding scenario.
struct Crowd<'a> {
    scenario: &'a str,
    /// Name and weight of each hog, and the part of a CPU that it must get, in millionths.
    hogs: &'a [(&'a str, u16, u64)],
    seconds: u64,
}

const THREE_ON_TWO: Crowd<'_> = Crowd {
    scenario: "three-on-two",
    hogs: &[("hog#0", WEIGHT, 666_667), ("hog#1", WEIGHT, 666_667), ("hog#2", WEIGHT, 666_667)],
    seconds: 3,
};
const FIVE_ON_FOUR: Crowd<'_> = Crowd {
    scenario: "five-on-four",
    hogs: &[
        ("hog#0", WEIGHT, 800_000),
        ("hog#1", WEIGHT, 800_000),
        ("hog#2", WEIGHT, 800_000),
        ("hog#3", WEIGHT, 800_000),
        ("hog#4", WEIGHT, 800_000),
    ],
    seconds: 4,
};
const WEIGHTS_ON_TWO: Crowd<'_> = Crowd {
    scenario: "weights-on-two",
    hogs: &[("heavy", 2 * WEIGHT, 1_000_000), ("light#0", WEIGHT, 500_000), ("light#1", WEIGHT, 500_000)],
    seconds: 2,
};

fn run() -> i64 {
    prove("smp-fairness", || {
        let scale = Scale::measure()?;
        let crowds: &[Crowd<'_>] = match rt::boot_info().cpus {
            2 => &[THREE_ON_TWO, WEIGHTS_ON_TWO],
            4 => &[FIVE_ON_FOUR],
            cpus => return Err(Failure::new(format_args!("this proof is of 2 or 4 CPUs, not {cpus}"))),
        };
        for crowd in crowds {
            step(&format!("{} (F-16)", crowd.scenario), || share(crowd, scale))?;
        }
        Ok(())
    })
}

fn share(crowd: &Crowd<'_>, scale: Scale) -> Outcome {
    let kinds: alloc::vec::Vec<Kind> =
        crowd.hogs.iter().map(|(_, weight, _)| Kind::weight(*weight)).collect();
    let hogs = Hogs::start(&kinds, scale)?;
    hogs.go()?;
    time::sleep(200 * MS).doing("sleep")?;
    let got = hogs.run_for(crowd.seconds * 1000 * MS)?;
    let ran = hogs.stop()?;
    for (at, (name, weight, wanted)) in crowd.hogs.iter().enumerate() {
        let (moves, waited) = (ran[at].last.migrations - ran[at].first.migrations, ran[at].longest_ns);
        fair::say_share(crowd.scenario, name, got.share_ppm(at));
        println!(
            "    {name}: weight {weight}, {} ppm of a CPU, wanted {wanted}; {}, waited {} us at most",
            got.share_ppm(at),
            Count(moves, "move"),
            waited / 1000
        );
    }
    for (at, (name, _, wanted)) in crowd.hogs.iter().enumerate() {
        fair::within(name, got.share_ppm(at), *wanted, TOLERANCE_PERCENT)?;
        let others: alloc::vec::Vec<Kind> =
            kinds.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, kind)| *kind).collect();
        let bound = fair::starvation_bound_ns(&others, kinds[at]);
        ensure!(
            ran[at].longest_ns <= bound,
            "{name} waited {} ns, the bound is {bound} ns",
            ran[at].longest_ns
        );
    }
    let all: u64 = (0..kinds.len()).map(|at| got.share_ppm(at)).sum();
    let cpus = u64::from(rt::boot_info().cpus) * 1_000_000;
    ensure!(all * 100 >= cpus * 97, "{all} of {cpus} ppm were used: a CPU stood idle beside hogs");
    Ok(())
}
