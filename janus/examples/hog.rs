//! A task that never checks holds its worker: the watchdog names it, and a spare worker serves the others.
//!
//! Run it: `cargo run -p janus --example hog`

use janus::{Config, Runtime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Work without a single check, as foreign code would do it.
fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let found = move |hog: &janus::Hog| println!("{:>4} ms  {hog}", start.elapsed().as_millis());
    let config = Config::new().workers(1).watchdog(Some(Duration::from_millis(20))).on_hog(found);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(config) }?;
    let done = AtomicU64::new(0);
    runtime.run(|cx| {
        cx.nursery(|nursery| {
            for _ in 0..1_000 {
                let polite = nursery.task().name("polite").spawn(|_cx| done.fetch_add(1, Ordering::Relaxed));
                drop(polite);
            }
            // The youngest runs first: the only worker goes into this one and does not come back for 200 ms.
            let hog = nursery.task().name("cruncher").spawn(|_cx| {
                println!(
                    "{:>4} ms  the hog begins; {} others are done",
                    start.elapsed().as_millis(),
                    done.load(Ordering::Relaxed)
                );
                spin(Duration::from_millis(200));
                println!(
                    "{:>4} ms  the hog ends;   {} others are done",
                    start.elapsed().as_millis(),
                    done.load(Ordering::Relaxed)
                );
            });
            drop(hog);
            Ok(())
        })
    })??;
    println!("{:>4} ms  all is over; hogs named: {}", start.elapsed().as_millis(), runtime.hogs().len());
    Ok(())
}
