//! Writes what a small run did, as a trace for Perfetto and one for Chrome.
//!
//! Run it: `cargo run -p janus --example trace`, then open a file in <https://ui.perfetto.dev> or `chrome://tracing`.

use janus::{Config, Runtime, channel};
use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new().workers(2).trace(100_000)) }?;
    runtime.run(|cx| {
        cx.nursery(|nursery| {
            let (ping, pong) = channel(0);
            nursery.spawn(move |cx| while pong.recv(cx).is_ok() {});
            nursery.spawn(move |cx| (0..200).all(|n| ping.send(cx, n).is_ok()));
            for width in 1..=20 {
                nursery.spawn(move |cx| {
                    for _ in 0..width * 2_000 {
                        std::hint::black_box(width);
                        if cx.check().is_err() {
                            return;
                        }
                    }
                    let _ = cx.sleep(Duration::from_millis(width));
                });
            }
            Ok(())
        })
    })??;
    let trace = runtime.trace().expect("the configuration asked for one");
    trace.check()?;
    println!(
        "{} events of {} tasks in {:.1} ms",
        trace.events.len(),
        trace.threads.len(),
        trace.end_ns as f64 / 1e6
    );
    std::fs::create_dir_all("target")?;
    trace::chrome::write(&trace, &mut BufWriter::new(File::create("target/janus-trace.json")?))?;
    trace::perfetto::write(&trace, &mut BufWriter::new(File::create("target/janus-trace.pftrace")?))?;
    println!("written: target/janus-trace.json, target/janus-trace.pftrace");
    Ok(())
}
