//! Many CPUs: with fewer runnable threads than CPUs each thread has one for itself, with many more they share all of them evenly (F-08, F-16).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use programs::ensure;
use programs::fair::{self, Hogs, Kind};
use programs::kit::MS;
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::Scale;
use rt::{println, time};

rt::main!(run);

const WINDOW_NS: u64 = 2_000 * MS;
/// All threads are woken at one instant, and a thread that finds a CPU with few others gets ahead of the rest by up to four slices (the frame of
/// virtual time). If balancing then moves it to a CPU with five, it waits until those have caught up: 4 slices of each, and a round.
const SETTLING_NS: u64 = 300 * MS;

fn run() -> i64 {
    prove("fair-crowd", || {
        let cpus = rt::boot_info().cpus as usize;
        ensure!(cpus >= 4, "this proof is of many CPUs, not {cpus}");
        let scale = Scale::measure()?;
        step("half as many threads as CPUs", || few(cpus / 2, scale))?;
        step("one less than CPUs", || few(cpus - 1, scale))?;
        step("four threads for each CPU and one more", || many(4 * cpus + 1, scale))
    })
}

/// Fewer threads than CPUs: each has a CPU for itself.
fn few(count: usize, scale: Scale) -> Outcome {
    let hogs = Hogs::start(&(0..count).map(|_| Kind::PLAIN).collect::<Vec<_>>(), scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let got = hogs.run_for(WINDOW_NS / 2)?;
    let ran = hogs.stop()?;
    let least = (0..count).map(|at| got.share_ppm(at)).min().unwrap_or(0);
    let longest = ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0);
    let moves: u64 = ran.iter().map(|ran| ran.last.migrations - ran.first.migrations).sum();
    println!(
        "    {count} hogs: the least got {least} ppm of a CPU; {moves} moves; waits of {} us at most",
        longest / 1000
    );
    if count * 2 == rt::boot_info().cpus as usize {
        fair::say_share("fair-crowd-few", "hog", (0..count).map(|at| got.share_ppm(at)).sum());
    }
    // The watcher wakes twice, possibly on a hog's CPU: that is all that a hog may lose.
    ensure!(least >= 970_000, "a thread got {least} ppm of a CPU while others stood idle");
    Ok(())
}

/// Many more threads than CPUs: all get the same.
fn many(count: usize, scale: Scale) -> Outcome {
    let cpus = rt::boot_info().cpus as usize;
    let kinds: Vec<Kind> = (0..count).map(|_| Kind::PLAIN).collect();
    let hogs = Hogs::start(&kinds, scale)?;
    hogs.go()?;
    time::sleep(SETTLING_NS).doing("sleep")?;
    hogs.settled();
    let got = hogs.run_for(WINDOW_NS)?;
    let ran = hogs.stop()?;
    let shares = || (0..count).map(|at| got.share_ppm(at));
    let (least, most) = (shares().min().unwrap_or(0), shares().max().unwrap_or(0));
    let fair_share = (cpus * 1_000_000 / count) as u64;
    let longest = ran.iter().map(|ran| ran.longest_ns).max().unwrap_or(0);
    let settled = ran.iter().map(|ran| ran.settled_longest_ns).max().unwrap_or(0);
    let moves: u64 = ran.iter().map(|ran| ran.last.migrations - ran.first.migrations).sum();
    println!(
        "    {count} hogs on {cpus} CPUs: {least} to {most} ppm of a CPU, a fair share is {fair_share}; {moves} moves; waits of {} us at most, of \
         {} us once settled",
        longest / 1000,
        settled / 1000
    );
    fair::say_share("fair-crowd", "hog", shares().sum());
    // There are 666 slices in the window, about 164 of each thread: the slack is a slice more or less, and what balancing leaves (F-16).
    let slack = fair_share / 10;
    ensure!(least + slack >= fair_share, "a thread got {least} ppm, a fair share is {fair_share}");
    ensure!(most <= fair_share + slack, "a thread got {most} ppm, a fair share is {fair_share}");
    ensure!(shares().sum::<u64>() >= cpus as u64 * 960_000, "a CPU stood idle");
    let bound = fair::starvation_bound_ns(&kinds[1..], Kind::PLAIN);
    ensure!(longest <= bound, "a thread waited {longest} ns, the bound is {bound} ns");
    // While they settle: four slices of each thread of the fullest CPU, and a round.
    let fullest = count.div_ceil(cpus) as u64 + 2;
    let catching_up = 5 * fullest * fair::QUANTUM_NS;
    ensure!(
        longest <= catching_up,
        "a thread waited {longest} ns, four slices of each and a round are {catching_up} ns"
    );
    // After that no thread waits longer than it takes the threads of the fullest CPU to have two turns each.
    let two_rounds = 2 * fullest * fair::QUANTUM_NS;
    ensure!(settled <= two_rounds, "a thread waited {settled} ns, two rounds are {two_rounds} ns");
    Ok(())
}
