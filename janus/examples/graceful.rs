//! An echo server with budgets, a time-out and a graceful end: Ctrl-C, or `kill`, stops it from accepting; connections get five
//! seconds to finish, a second signal none, and then they are cancelled, with a moment for a last word.
//!
//! Run it: `cargo run -p janus --example graceful`, then `nc 127.0.0.1 PORT`. With an argument it ends by itself, for tests.

use janus::net::{TcpListener, TcpStream};
use janus::prelude::*;
use janus::signal::{Signal, Signals};
use std::time::Duration;

/// What a connection may use: so many calls of the kernel, and then it is closed.
const CONNECTION: Budget = Budget { syscalls: 1_000, ..Budget::UNLIMITED };

fn echo(cx: &Cx, stream: &TcpStream) -> Result<(), TaskError> {
    let mut buffer = [0; 1024];
    // Half a minute of silence ends it.
    let told = cx.timeout(Duration::from_secs(30), || Ok(stream.read(cx, &mut buffer)?));
    match told {
        Ok(0) => Err(TaskError::Cancelled),
        Ok(length) => Ok(stream.write_all(cx, &buffer[..length])?),
        Err(error) => {
            // Cancelled or late: there is a second for a last word all the same.
            cx.shield(Duration::from_secs(1), || stream.write_all(cx, b"bye\n"))?;
            Err(error)
        }
    }
}

// SAFETY: no task keeps anything of its thread across a wait.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn main(cx: &Cx) -> Result<(), TaskError> {
    let signals = Signals::new(cx, &[Signal::Interrupt, Signal::Terminate])?;
    let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
    println!("listening on {}", listener.local_addr()?);
    let patience = std::env::args().nth(1).map(|_| Duration::from_millis(50));
    // How one connection ends is nobody else's affair.
    let end = cx.nursery_with(NurseryOptions::new().keep_going(), |nursery| {
        loop {
            if cx.select(&mut [&mut listener.arm(), &mut signals.arm()], patience)? != Selected::Arm(0) {
                break;
            }
            let (stream, peer) = listener.accept(cx)?;
            let task = nursery.task().name(format!("echo to {peer}")).budget(CONNECTION);
            task.on_exhausted(OnExhausted::End).spawn(move |cx| while echo(cx, &stream).is_ok() {});
        }
        // The first signal is taken: what follows waits for a second one.
        signals.next();
        drop(listener);
        println!("no more calls; {} connections finish", nursery.live());
        let left = cx.select(&mut [&mut nursery.arm(), &mut signals.arm()], Some(Duration::from_secs(5)))?;
        if left != Selected::Arm(0) {
            nursery.cancel();
        }
        Ok(())
    });
    println!("ended: {}", end.map_or_else(|error| error.to_string(), |()| "well".into()));
    Ok(())
}
