//! Keeps CPUs busy, to be watched in `top` or to be killed: `spin [threads] [seconds]`; 0 seconds means for ever.
#![no_std]
#![no_main]

use rt::{args, println, thread, time};

rt::main!(run);

/// More threads than this are taken for a typing error.
const THREADS_MAX: u64 = 256;

fn run() -> i64 {
    match (args::number(0, 1), args::number(1, 0)) {
        (Ok(threads @ 1..=THREADS_MAX), Ok(seconds)) => match spin(threads, seconds) {
            Ok(()) => 0,
            Err(error) => {
                println!("spin: {error}");
                1
            }
        },
        _ => {
            println!(
                "spin: `spin [threads] [seconds]`, with 1 to {THREADS_MAX} threads; 0 seconds is for ever"
            );
            2
        }
    }
}

/// Returns when the time is over; the threads end with the process.
fn spin(threads: u64, seconds: u64) -> rt::Result<()> {
    for _ in 0..threads {
        let turn = || {
            loop {
                core::hint::spin_loop();
            }
        };
        // Never joined; the type says that the thread would return nothing.
        drop(thread::Builder::new().stack_bytes(8192).spawn::<()>(turn)?);
    }
    time::sleep(if seconds == 0 { u64::MAX } else { seconds.saturating_mul(1_000_000_000) })
}
