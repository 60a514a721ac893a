//! Threads share a CPU by weight (F-07), and the kernel's counters of a thread add up (F-06): `thread-fairness
//! [seconds]`.
#![no_std]
#![no_main]

use programs::ensure;
use programs::fair::{self, Hogs, Kind, QUANTUM_NS, Ran, WEIGHT};
use programs::kit::{self, MS};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::ticks::Scale;
use rt::abi::LatencyClass;
use rt::{SchedulingPolicy, Share, caps, println, time};

rt::main!(run);

/// The scenario of the simulator that corresponds to this proof.
const SCENARIO: &str = "thread-fairness";
const NAMES: [&str; 2] = ["heavy", "light"];
const WEIGHTS: [u16; 2] = [2 * WEIGHT, WEIGHT];
/// The tolerance that F-07 allows.
const TOLERANCE_PERCENT: u64 = 2;
/// By how much two clocks may differ that are read one system call apart.
const SLACK_NS: i64 = 200_000;
/// How much of an always busy CPU the kernel may use for itself.
const OVERHEAD_PPM: u64 = 30_000;

fn run() -> i64 {
    prove("thread-fairness", || {
        let seconds = rt::args::number(0, 10).map_err(Failure::new)?;
        ensure!(rt::boot_info().cpus == 1, "this proof is of one CPU: CPUS=1");
        let scale = Scale::measure()?;
        println!("thread-fairness: weights {WEIGHTS:?} on one CPU for {seconds} s of guest time");
        step("a thread that waits is counted so (F-06)", blocks)?;
        step("weights 2:1 share 2:1 (F-06, F-07)", || two_to_one(seconds * 1000 * MS, scale))
    })
}

/// Every sleep counts as one block and no preemption; time asleep is neither run time nor waiting for a CPU.
fn blocks() -> Outcome {
    const SLEEPS: u64 = 7;
    let policy: SchedulingPolicy = caps::any().doing("scheduling_policy")?;
    let before = policy.snapshot().doing("snapshot")?;
    for _ in 0..SLEEPS {
        time::sleep(3 * MS).doing("sleep")?;
    }
    let after = policy.snapshot().doing("snapshot")?;
    let blocks = after.voluntary_blocks - before.voluntary_blocks;
    ensure!(blocks == SLEEPS, "{SLEEPS} sleeps are {blocks} blocks");
    ensure!(
        after.preemptions == before.preemptions,
        "a lone thread was preempted: {after:?} after {before:?}"
    );
    let spent = after.runtime_ns - before.runtime_ns + after.runnable_ns - before.runnable_ns;
    ensure!(spent <= 3 * MS, "{spent} ns of {SLEEPS} sleeps of 3 ms were not asleep");
    Ok(())
}

fn two_to_one(window_ns: u64, scale: Scale) -> Outcome {
    let kinds = WEIGHTS.map(Kind::weight);
    let before = interrupt_ns()?;
    let hogs = Hogs::start(&kinds, scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let got = hogs.run_for(window_ns)?;
    let ran = hogs.stop()?;
    let interrupts = interrupt_ns()? - before;
    for (at, name) in NAMES.iter().enumerate() {
        fair::say_share(SCENARIO, name, got.share_ppm(at));
        show(name, "first", &ran[at].first);
        show(name, "last", &ran[at].last);
    }
    let ratio = |of: &[u64]| of[0] * 1_000_000 / of[1].max(1);
    println!(
        "    ratio of CPU time {} ppm, of work done {} ppm; the rest of the CPU: {} ppm",
        ratio(&got.runtime_ns),
        ratio(&got.work),
        1_000_000u64.saturating_sub(got.share_ppm(0) + got.share_ppm(1))
    );
    fair::within("CPU time, heavy to light (ppm)", ratio(&got.runtime_ns), 2_000_000, TOLERANCE_PERCENT)?;
    fair::within("work done, heavy to light (ppm)", ratio(&got.work), 2_000_000, TOLERANCE_PERCENT)?;
    let shares = got.share_ppm(0) + got.share_ppm(1);
    ensure!(shares + OVERHEAD_PPM >= 1_000_000, "hogs leave {} ppm of the CPU", 1_000_000 - shares);
    for (at, ran) in ran.iter().enumerate() {
        adds_up(NAMES[at], kinds[at], ran, interrupts)?;
        let bound = fair::starvation_bound_ns(&[kinds[1 - at]], kinds[at]);
        ensure!(ran.longest_ns <= bound + MS, "{} waited {} ns, bound {bound}", NAMES[at], ran.longest_ns);
    }
    Ok(())
}

/// Prints every field.
fn show(name: &str, when: &str, share: &Share) {
    println!(
        "    {name} at {when}: weight {} class {} runtimeNs {} virtualRuntimeNs {} voluntaryBlocks {} preemptions {} \
         runnableAccumulatedNs {} migrations {} throttles {}",
        share.weight,
        share.class.name(),
        share.runtime_ns,
        share.virtual_runtime_ns,
        share.voluntary_blocks,
        share.preemptions,
        share.runnable_ns,
        share.migrations,
        share.throttles
    );
}

/// The time that CPUs spent on interrupts, which no thread used.
fn interrupt_ns() -> Outcome<u64> {
    Ok(kit::system()?.cpus().doing("CPUs")?.iter().map(|cpu| cpu.interrupt_ns).sum())
}

/// Checks what was counted between the start and the end of a hog (F-06), on a CPU that spent `interrupts` ns on
/// interrupts.
fn adds_up(name: &str, kind: Kind, ran: &Ran, interrupts: u64) -> Outcome {
    let Ran { first, last, wall_ns, .. } = ran;
    ensure!(last.weight == kind.weight, "{name}: weight {} is not {}", last.weight, kind.weight);
    ensure!(last.class == LatencyClass::Normal, "{name}: class {:?}", last.class);
    let runtime = last.runtime_ns - first.runtime_ns;
    let virtual_runtime = last.virtual_runtime_ns - first.virtual_runtime_ns;
    let expected = runtime * u64::from(WEIGHT) / u64::from(kind.weight);
    // The remainder of less than one virtual nanosecond is carried over, so both ends are rounded once.
    ensure!(virtual_runtime.abs_diff(expected) <= 1, "{name}: {virtual_runtime} virtual ns, not {expected}");
    ensure!(last.voluntary_blocks == first.voluntary_blocks, "{name}: a hog waited for something");
    // Each turn of two hogs ends with a preemption, and is at least as long as one slice.
    let (preemptions, turns) = (last.preemptions - first.preemptions, runtime / QUANTUM_NS);
    ensure!(
        (turns / 4..=turns + 2).contains(&preemptions),
        "{name}: {preemptions} preemptions in {turns} slices"
    );
    let waited = last.runnable_ns - first.runnable_ns;
    let rest = wall_ns.cast_signed() - (runtime + waited).cast_signed();
    println!(
        "    {name}: ran {runtime} ns, waited {waited} ns of {wall_ns} ns; {rest} ns of {interrupts} ns of interrupts"
    );
    // A hog always runs or waits, except during interrupts; the two clocks are read one system call apart.
    let is_whole = (-SLACK_NS..=interrupts.cast_signed() + SLACK_NS).contains(&rest);
    ensure!(
        is_whole,
        "{name}: ran {runtime} and waited {waited} ns in {wall_ns} ns, interrupts took {interrupts} ns"
    );
    ensure!(last.migrations == first.migrations && last.throttles == 0, "{name}: {last:?} on one CPU");
    Ok(())
}
