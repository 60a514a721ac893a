//! One task recurses without end, and borrows nothing. It fails; its neighbours, the heap and the output go on.
//!
//! Run it: `cargo run -p janus --example overflow`

use janus::{Config, NurseryOptions, Runtime, StackClass, TaskError};
use std::time::Duration;

#[inline(never)]
fn depth(n: u64) -> u64 {
    let room = std::hint::black_box([n; 16]);
    if n == u64::MAX { 0 } else { depth(n + 1) + room[3] }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new()) }?;
    let outcome = runtime.run(|cx| {
        // The neighbours have nothing to do with it: its failure does not end them.
        cx.nursery_with(NurseryOptions::new().keep_going(), |nursery| {
            let deep = nursery.task().name("deep").owned().spawn(|_cx| depth(0));
            let steady = nursery.task().name("steady").stack(StackClass::Medium).spawn(|cx| {
                let mut text = String::new();
                for n in 0..5 {
                    text.push_str(&format!("{n} "));
                    if cx.sleep(Duration::from_millis(2)).is_err() {
                        break;
                    }
                }
                text
            });
            match deep.join(cx) {
                Err(TaskError::StackOverflow) => println!("deep:   {}", TaskError::StackOverflow),
                other => println!("unexpected: {other:?}"),
            }
            println!("\nwho is there now:\n{}", runtime.dump());
            println!("steady: {:?}", steady.join(cx).ok());
            Ok(())
        })
    })?;
    assert!(matches!(outcome, Err(TaskError::StackOverflow)), "{outcome:?}");
    println!("\nwhat happened:\n{}", runtime.stats());
    Ok(())
}
