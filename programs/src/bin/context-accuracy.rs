//! A context is a guarantee and a cap: threads beside hogs of the largest weight get their budget, to the percent, and not more (S-11); time
//! adds up on every CPU (S-12).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use programs::contexts::{burn, new_context};
use programs::ensure;
use programs::fair::{Hogs, Kind};
use programs::kit::MS;
use programs::proof::{Outcome, prove, step};
use programs::ticks::Scale;
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
    // One on every CPU, so that each has its guarantee and its cap.
    let mut threads = Vec::new();
    let mut contexts = Vec::new();
    let crowd = Hogs::start(&alloc::vec![Kind::weight(1024); hogs], scale)?;
    crowd.go()?;
    for cpu in 0..cpus {
        let context = new_context(&Spec::new(budget_ms * MS, 100 * MS).cpus([cpu]))?;
        let over = Arc::clone(&over);
        let runs = thread::Builder::new().spawn(move || {
            while !over.load(Ordering::Relaxed) {
                burn(MS / 4, scale);
            }
        })?;
        let handle = runs.handle().ok_or_else(|| programs::proof::Failure::new("no handle"))?;
        context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        contexts.push(context);
        threads.push(runs);
    }
    // The first periods bring everybody in step.
    time::sleep(300 * MS)?;
    let consumed = |contexts: &[rt::SchedulingContext]| -> Outcome<Vec<u64>> {
        contexts.iter().map(|context| Ok(context.consumed()?.ok()?.total_ns)).collect()
    };
    let (start, before) = (time::now_ns()?, consumed(&contexts)?);
    time::sleep(window_ns)?;
    let (end, after) = (time::now_ns()?, consumed(&contexts)?);
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
    }
    for thread in threads {
        thread.join()?;
    }
    crowd.stop()?;
    Ok(())
}
