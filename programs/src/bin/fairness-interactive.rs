//! A short sleeper beside hogs runs within one quantum, and sooner if it is interactive than if it is batch work (F-04).
#![no_std]
#![no_main]

use programs::ensure;
use programs::fair::{self, Hogs, Kind, Nap, QUANTUM_NS};
use programs::kit::MS;
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::Scale;
use rt::abi::LatencyClass;
use rt::{println, time};

rt::main!(run);

/// The scenario of the simulator that corresponds to this proof.
const SCENARIO: &str = "thread-fairness-interactive";
const HOGS: usize = 4;
const WINDOW_NS: u64 = 4_000 * MS;
/// Less than its share of a sixth, so that the sleeper is never late because of its own use.
const RUN_NS: u64 = MS;
const SLEEP_NS: u64 = 19 * MS;

fn run() -> i64 {
    prove("thread-fairness-interactive", || {
        ensure!(rt::boot_info().cpus == 1, "this proof is of one CPU: CPUS=1");
        let scale = Scale::measure()?;
        step("an interactive sleeper is woken sooner than a batch one (F-04)", || sleepers(scale))
    })
}

fn sleepers(scale: Scale) -> Outcome {
    let hogs = Hogs::start(&[Kind::PLAIN; HOGS], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let until_ns = time::now_ns().doing("now")? + WINDOW_NS;
    let nap = |class| Nap { kind: Kind::class(class), run_ns: RUN_NS, sleep_ns: SLEEP_NS };
    let interactive = nap(LatencyClass::Interactive).start(until_ns, scale)?;
    let batch = nap(LatencyClass::Batch).start(until_ns, scale)?;
    let got = hogs.run_for(WINDOW_NS)?;
    let (interactive, batch) = (interactive.join()?, batch.join()?);
    let ran = hogs.stop()?;
    interactive.late.show("interactive, wake to run");
    batch.late.show("batch, wake to run");
    fair::say_share(SCENARIO, "hog", (0..HOGS).map(|at| got.share_ppm(at)).sum());
    fair::say_share(SCENARIO, "interactive", fair::ppm(interactive.runtime_ns, got.at_ns));
    fair::say_share(SCENARIO, "batch", fair::ppm(batch.runtime_ns, got.at_ns));
    let p99 = interactive.late.percentile(99);
    ensure!(p99 <= QUANTUM_NS, "p99 of the interactive one is {p99} ns, more than a quantum");
    // The interactive thread asks for less than its share, so it need not wait for a slice to end: only the kernel's own
    // delay is left.
    let p50 = interactive.late.percentile(50);
    ensure!(p50 <= QUANTUM_NS / 20, "p50 of the interactive one is {p50} ns: it waits for slices");
    for (what, of) in [("p50", 50), ("p99", 99)] {
        let (sooner, later) = (interactive.late.percentile(of), batch.late.percentile(of));
        ensure!(sooner < later, "{what}: interactive {sooner} ns, batch {later} ns");
    }
    // So many sleeps fit into the window if it waits for nearly nothing.
    let asked = (WINDOW_NS / (RUN_NS + SLEEP_NS)) as usize;
    ensure!(
        interactive.late.len() * 10 >= asked * 9,
        "the interactive one slept {} times only",
        interactive.late.len()
    );
    // The bound holds for all threads, not only for the favoured ones (F-10).
    let mut all = [Kind::PLAIN; HOGS + 2];
    (all[HOGS], all[HOGS + 1]) = (Kind::class(LatencyClass::Interactive), Kind::class(LatencyClass::Batch));
    let waits = ran.iter().map(|ran| ran.longest_ns).chain([interactive.late.max(), batch.late.max()]);
    for (at, wait) in waits.enumerate() {
        let others: alloc::vec::Vec<Kind> =
            (0..all.len()).filter(|other| *other != at).map(|other| all[other]).collect();
        let bound = fair::starvation_bound_ns(&others, all[at]);
        ensure!(wait <= bound, "thread {at} waited {wait} ns, the bound is {bound} ns");
    }
    println!("    hogs waited {} us at most", ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0) / 1000);
    Ok(())
}

extern crate alloc;
