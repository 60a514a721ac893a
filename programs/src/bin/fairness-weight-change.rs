//! A change of weight takes effect when the thread is queued next, and shares follow it (F-07).
#![no_std]
#![no_main]

use programs::ensure;
use programs::fair::{self, Hogs, Kind, QUANTUM_NS, WEIGHT};
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::Scale;
use rt::{println, time};

rt::main!(run);

/// The scenario of the simulator that corresponds to this proof: both halves together.
const SCENARIO: &str = "thread-fairness-weight-change";
/// How long each half lasts.
const HALF_NS: u64 = 2_000 * MS;
const NEW_WEIGHT: u16 = 3 * WEIGHT;
const TOLERANCE_PERCENT: u64 = 2;

fn run() -> i64 {
    prove("thread-fairness-weight-change", || {
        ensure!(rt::boot_info().cpus == 1, "this proof is of one CPU: CPUS=1");
        let scale = Scale::measure()?;
        step("1:1 becomes 3:1 at the next enqueue (F-07)", || change(scale))
    })
}

fn change(scale: Scale) -> Outcome {
    let hogs = Hogs::start(&[Kind::PLAIN; 2], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let start = hogs.look()?;
    let before = hogs.run_for(HALF_NS)?;
    hogs.reweigh(1, NEW_WEIGHT);
    let changed = hogs.look()?;
    // The hog obeys when it runs, which is in the next slice but one at the latest.
    kit::wait_until("the hog changes its weight", || Ok(hogs.has_obeyed(1)))?;
    let obeyed = hogs.look()?.since(&changed).at_ns;
    // Six turns of the new pattern: one slice of one thread, three of the other.
    let early = hogs.run_for(24 * QUANTUM_NS)?;
    time::sleep(HALF_NS.saturating_sub(obeyed + early.at_ns)).doing("sleep")?;
    let (after, whole) = (hogs.look()?.since(&changed), hogs.look()?.since(&start));
    let ran = hogs.stop()?;
    println!("    the weight was changed {} us after it was ordered", obeyed / 1000);
    for (when, got) in [("before", &before), ("24 slices after", &early), ("after", &after)] {
        println!("    {when}: {} and {} ppm of the CPU", got.share_ppm(0), got.share_ppm(1));
    }
    for (at, name) in ["stays", "changes"].iter().enumerate() {
        fair::say_share(SCENARIO, name, whole.share_ppm(at));
    }
    ensure!(obeyed <= 3 * QUANTUM_NS, "the change took {obeyed} ns");
    fair::within(
        "before, ratio (ppm)",
        fair::ppm(before.runtime_ns[1], before.runtime_ns[0]),
        1_000_000,
        TOLERANCE_PERCENT,
    )?;
    // In 24 slices the lag of either thread may be one slice: of the 6 that the light one gets, one more or
    // one less.
    let light = early.runtime_ns[0];
    ensure!(
        (5 * QUANTUM_NS..=7 * QUANTUM_NS + QUANTUM_NS / 2).contains(&light),
        "just after the change: {early:?}"
    );
    let ratio = fair::ppm(after.runtime_ns[1], after.runtime_ns[0]);
    // The time until the hog obeyed still counts as 1:1: at most three slices of six hundred.
    fair::within("after, ratio (ppm)", ratio, 3_000_000, TOLERANCE_PERCENT + 2)?;
    let changes = &ran[1];
    ensure!(changes.last.weight == NEW_WEIGHT, "the weight is {}", changes.last.weight);
    // Virtual time runs at a third of its speed after the change: between a half and a third over all.
    let (real, slow) = (
        changes.last.runtime_ns - changes.first.runtime_ns,
        changes.last.virtual_runtime_ns - changes.first.virtual_runtime_ns,
    );
    let first_half = before.runtime_ns[1] + QUANTUM_NS * 10;
    let expected = first_half + (real - first_half) / 3;
    println!("    {real} ns of CPU time are {slow} ns of virtual time; expected about {expected}");
    fair::within("virtual time", slow, expected, 5)
}
