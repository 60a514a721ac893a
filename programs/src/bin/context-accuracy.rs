//! A context is a guarantee and a limit: beside hogs of the largest weight, threads get their budget, within a percent, and not more (S-11); time
//! adds up on every CPU (S-12). How much a thread got is what the kernel charged it, and also what the thread itself counted: turns of a loop of
//! known duration.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::contexts::new_context;
use programs::fair::{Hogs, Kind};
use programs::kit::MS;
use programs::proof::{Outcome, prove, step};
use programs::ticks::{self, Scale};
use programs::{ensure, workload};
use rt::{Fallback, Spec, args, println, thread, time};

rt::main!(run);

/// How long each case is watched, if the first argument does not say otherwise, in ms of guest time.
const WINDOW_MS: u64 = 10_000;

fn run() -> i64 {
    prove("context-accuracy", || {
        let scale = Scale::measure()?;
        let window_ns = args::number(0, WINDOW_MS).map_err(programs::proof::Failure::new)? * MS;
        step("10 ms in 100 ms beside 40 hogs (S-11)", || beside(40, 10, window_ns, scale))?;
        step("60 ms in 100 ms beside 4 hogs (S-11)", || beside(4, 60, window_ns, scale))
    })
}

fn beside(hogs: usize, budget_ms: u64, window_ns: u64, scale: Scale) -> Outcome {
    let over = Arc::new(AtomicBool::new(false));
    let cpus = rt::boot_info().cpus;
    // Measures an undisturbed turn before there are other threads. Where the instructions of several CPUs are counted by one clock, a turn has no
    // fixed length.
    let is_counted = cpus == 1 && ticks::is_counted();
    let turn_ticks = (0..100).map(|_| one_turn(0)).min().unwrap_or(1);
    let turns: Arc<Vec<AtomicU64>> = Arc::new((0..cpus).map(|_| AtomicU64::new(0)).collect());
    // One thread on every CPU, so that each CPU has a guarantee and a limit to keep.
    let mut threads = Vec::new();
    let mut contexts = Vec::new();
    let crowd = Hogs::start(&alloc::vec![Kind::weight(1024); hogs], scale)?;
    crowd.go()?;
    for cpu in 0..cpus {
        let context = new_context(&Spec::new(budget_ms * MS, 100 * MS).cpus([cpu]))?;
        let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
        let runs = thread::Builder::new().spawn(move || {
            let mine = &turns[cpu as usize];
            while !over.load(Ordering::Relaxed) {
                one_turn(mine.fetch_add(1, Ordering::Relaxed));
                // Without this hint, the emulator that counts instructions lets no other CPU run.
                core::hint::spin_loop();
            }
        })?;
        let handle = runs.handle().ok_or_else(|| programs::proof::Failure::new("no handle"))?;
        context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        contexts.push(context);
        threads.push(runs);
    }
    // The first periods bring all threads in step.
    time::sleep(300 * MS)?;
    let consumed = |contexts: &[rt::SchedulingContext]| -> Outcome<Vec<u64>> {
        contexts.iter().map(|context| Ok(context.consumed()?.ok()?.total_ns)).collect()
    };
    let counted = || -> Vec<u64> { turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect() };
    let (start, before, turns_before) = (time::now_ns()?, consumed(&contexts)?, counted());
    time::sleep(window_ns)?;
    let (end, after, turns_after) = (time::now_ns()?, consumed(&contexts)?, counted());
    let overruns: Outcome<Vec<u64>> =
        contexts.iter().map(|context| Ok(context.info()?.ok()?.overrun_max_ns)).collect();
    let overrun = overruns?.into_iter().max().unwrap_or(0);
    println!("context_overrun_max_ns={overrun}");
    over.store(true, Ordering::Relaxed);
    let mut worst = 0;
    for (cpu, (before, after)) in before.iter().zip(&after).enumerate() {
        let share_ppm = (after - before) * 1_000_000 / (end - start);
        let wanted_ppm = budget_ms * 10_000;
        let error = share_ppm.abs_diff(wanted_ppm) * 100 / wanted_ppm;
        println!("    cpu {cpu}: {share_ppm} ppm of {wanted_ppm}");
        ensure!(
            share_ppm.abs_diff(wanted_ppm) * 100 <= wanted_ppm,
            "{share_ppm} ppm of a CPU, promised were {wanted_ppm}"
        );
        worst = worst.max(error);
        // Switches are included in what is charged, but not in what the thread counts.
        let own_ns = scale.to_ns((turns_after[cpu] - turns_before[cpu]) * turn_ticks);
        let own_ppm = own_ns * 1_000_000 / (end - start);
        println!("    cpu {cpu}: {own_ppm} ppm by its own count");
        ensure!(
            !is_counted || own_ppm.abs_diff(wanted_ppm) * 100 <= 3 * wanted_ppm,
            "{own_ppm} ppm of a CPU by the thread's own count, promised were {wanted_ppm}"
        );
    }
    for thread in threads {
        thread.join()?;
    }
    crowd.stop()?;
    Ok(())
}

/// One turn of the loop; returns the ticks that it took.
fn one_turn(seed: u64) -> u64 {
    let before = ticks::now();
    black_box(workload::spin(1_000, seed));
    ticks::now() - before
}
