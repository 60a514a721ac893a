//! The smallest program that does something: prints, sleeps, and asks a thread.
#![no_std]
#![no_main]

use rt::{Result, println, thread, time};

rt::main!(run);

fn run() -> Result<()> {
    println!("hello from {}, {} ms after boot", rt::args::program(), time::now_ns()? / 1_000_000);
    for argument in rt::args::args() {
        println!("  I was told: {argument}");
    }
    time::sleep(1_000_000)?;
    let answer = thread::spawn(|| 6 * 7);
    println!("a thread says {:?}", answer.join());
    Ok(())
}
