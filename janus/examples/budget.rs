//! A task that would run for ever, stopped by its budget; its parent recharges it twice and then lets it go.
//!
//! Run it: `cargo run -p janus --example budget`

use janus::{Budget, Config, NurseryOptions, Recharge, Runtime, TaskState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(1)) }?;
    let rounds = AtomicU64::new(0);
    let neighbour = AtomicU64::new(0);
    let outcome = runtime.run(|cx| {
        // Without `Manual`, the `:service` profile would recharge the child out of the pool by itself.
        cx.nursery_with(NurseryOptions::new().recharge(Recharge::Manual), |nursery| {
            let hog = nursery.task().name("hog").budget(Budget::CHILD.with(janus::Resource::Ops, 5_000));
            let hog = hog.spawn(|cx| {
                while cx.check().is_ok() {
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            // On the same worker, and it gets its turn: a task gives way after 1,024 operations, budget or not.
            nursery.spawn(|cx| {
                for _ in 0..10 {
                    neighbour.fetch_add(1, Ordering::Relaxed);
                    if cx.yield_now().is_err() {
                        break;
                    }
                }
            });
            for grant in 0..3 {
                while hog.state() != TaskState::BudgetExhausted {
                    if cx.sleep(Duration::from_millis(1)).is_err() {
                        return Ok(());
                    }
                }
                println!("the hog is stopped after {} rounds", rounds.load(Ordering::Relaxed));
                if grant < 2 {
                    println!("  recharged by its parent with 2,000 operations");
                    let more = Budget { ops: 2_000, ..Budget::ZERO };
                    hog.recharge(&more).expect("the pool is without limit");
                }
            }
            Ok(())
        })
    })?;
    // The parent now waits, and nobody is left who could recharge the child: it ends, with the reason.
    match outcome {
        Err(error) => println!("the nursery ends: {error}"),
        other => println!("unexpected: {other:?}"),
    }
    println!("its neighbour had {} turns", neighbour.load(Ordering::Relaxed));
    Ok(())
}
