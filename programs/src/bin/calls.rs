//! A client: starts the server `counter`, calls it under two badges, and lets it work on a budget that this program holds.
#![no_std]
#![no_main]

use rt::abi::rights;
use rt::{Client, Command, Endpoint, Factory, Fallback, ProcessSpawner, Result, SchedulingContext, Spec};
use rt::{caps, println};

rt::main!(run);

const MS: u64 = 1_000_000;

fn run() -> Result<()> {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let requests = factory.endpoint()?;
    // A process may call whom it holds a capability to, under the badge of that capability.
    let (ada, bob): (Endpoint, Endpoint) = (requests.caller(1)?, requests.caller(2)?);
    let server = Command::new("counter")
        .grant_basics()
        .grant("requests", requests.cap(), rights::RECV, 0)
        .spawn(&spawner)?;
    // Only the server can receive now: should it die, calls fail instead of waiting for ever.
    drop(requests);

    // From here on this thread has 2 ms of CPU time in every 10 ms, and any server that works for it uses that time.
    let any: SchedulingContext = caps::any()?;
    let context = any.create(&Spec::new(2 * MS, 10 * MS))?.context()?;
    context.bind(Fallback::BestEffort)?.ok()?;
    for number in 1..=100 {
        ada.call(1, [number, 0])?;
        bob.call(1, [2 * number, 0])?;
    }
    let used_us = context.consumed()?.ok()?.total_ns / 1000;
    let ([ada_sum, _], [bob_sum, _]) = (ada.call(1, [0; 2])?, bob.call(2, [0; 2])?);
    println!("calls: 202 calls, the sums are {ada_sum} and {bob_sum}");
    println!("calls: client and server used {used_us} us of the client's budget");
    println!("calls: the server ended: {}", server.wait()?);
    Ok(())
}
