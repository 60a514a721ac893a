//! A race is found by trying seeds, and then happens again as often as you like.
//!
//! Run it: `cargo run -p janus --example replay`

use janus::{Config, Runtime};
use std::sync::atomic::{AtomicU64, Ordering};

const TASKS: u64 = 2;
const DEPOSITS: u64 = 1;
/// Checks before each deposit, so that the two rarely meet.
const WORK: u64 = 60;

/// Two tasks pay into one account: read, think, write. The bug is that they think between the two.
/// Answers the balance and the order in which tasks were picked, as a hash.
fn run(seed: u64) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(2).seed(seed)) }?;
    let balance = AtomicU64::new(0);
    runtime.run(|cx| {
        cx.nursery(|nursery| {
            for _ in 0..TASKS {
                let teller = nursery.spawn(|cx| {
                    for _ in 0..DEPOSITS {
                        if (0..WORK).any(|_| cx.check().is_err()) {
                            return;
                        }
                        let read = balance.load(Ordering::Relaxed);
                        if cx.check().is_err() {
                            return;
                        }
                        balance.store(read + 1, Ordering::Relaxed);
                    }
                });
                drop(teller);
            }
            Ok(())
        })
    })??;
    let (_picks, hash) = runtime.order().expect("a seeded runtime keeps its order");
    Ok((balance.into_inner(), hash))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let expected = TASKS * DEPOSITS;
    let mut good = 0;
    for seed in 0..1_000 {
        let (balance, hash) = run(seed)?;
        if balance == expected {
            good += 1;
            continue;
        }
        println!("{good} seeds were fine; seed {seed} lost {} of {expected} deposits", expected - balance);
        println!("  order {hash:016x}, balance {balance}");
        for again in 1..=3 {
            let (balance, hash) = run(seed)?;
            println!("  replay {again}: order {hash:016x}, balance {balance}");
        }
        let (balance, hash) = run(seed + 1)?;
        println!("another seed, another order: {hash:016x}, balance {balance}");
        return Ok(());
    }
    println!("no seed of 1,000 showed the race");
    Ok(())
}
