//! Gives itself 2 ms of CPU time in every 10 ms, wants 200 ms, and says what it got.
#![no_std]
#![no_main]

use rt::{Fallback, Result, SchedulingContext, Spec, caps, println, time};

rt::main!(run);

const MS: u64 = 1_000_000;

fn run() -> Result<()> {
    let any: SchedulingContext = caps::any()?;
    let context = any.create(&Spec::new(2 * MS, 10 * MS))?.context()?;
    context.bind(Fallback::BestEffort)?.ok()?;
    let end = time::now_ns()? + 200 * MS;
    while time::now_ns()? < end {}
    let info = context.info()?.ok()?;
    println!("budget: used {} of 200 ms, and ran dry {} times", info.consumed_ns / MS, info.depletions);
    Ok(())
}
