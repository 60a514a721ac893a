//! Channels, select, sleep and cancellation: a pipeline that a deadline ends.
//!
//! Run it: `cargo run -p janus --example pipeline`

use janus::{Receiver, Selected, Sender, TaskError, channel};
use std::time::Duration;

/// Sends 0, 1, 2, ... for ever, or until it is cancelled, or nobody listens.
fn count(cx: &janus::Cx, out: Sender<u64>, every: Duration) -> u64 {
    let mut sent = 0;
    while cx.sleep(every).is_ok() && out.send(cx, sent).is_ok() {
        sent += 1;
    }
    sent
}

/// Takes from two channels whichever has something, and gives up after 5 ms without any.
fn merge(cx: &janus::Cx, fast: &Receiver<u64>, slow: &Receiver<u64>, out: &Sender<String>) {
    loop {
        let (mut first, mut second) = (fast.arm(), slow.arm());
        let line = match cx.select(&mut [&mut first, &mut second], Some(Duration::from_millis(5))) {
            Ok(Selected::Arm(0)) => first.into_result().map(|n| format!("fast {n}")),
            Ok(Selected::Arm(_)) => second.into_result().map(|n| format!("slow {n}")),
            Ok(Selected::Timeout) => Ok("(quiet)".to_string()),
            Err(janus::Cancelled) => return,
        };
        let Ok(line) = line else { return };
        if out.send(cx, line).is_err() {
            return;
        }
    }
}

// SAFETY: no task keeps anything of its thread across a wait.
#[janus::main(unsafe(no_thread_state_across_waits))]
fn main(cx: &janus::Cx) {
    let outcome = cx.nursery(|nursery| {
        let (to_merge, fast) = channel(0);
        let (also_to_merge, slow) = channel(4);
        let (lines_in, lines) = channel(16);
        let quick = nursery.spawn(move |cx| count(cx, to_merge, Duration::from_millis(4)));
        let lazy = nursery.spawn(move |cx| count(cx, also_to_merge, Duration::from_millis(15)));
        nursery.spawn(move |cx| merge(cx, &fast, &slow, &lines_in));
        let until = cx.now() + Duration::from_millis(60);
        while let Some(left) = until.checked_sub(cx.now()) {
            match lines.recv_timeout(cx, left) {
                Ok(line) => println!("{:>6.1} ms  {line}", cx.now().as_secs_f64() * 1e3),
                Err(_) => break,
            }
        }
        // Everybody who waits is woken, sees it, and returns; a value is a value all the same.
        nursery.cancel();
        println!("cancelled; sent: {:?} fast, {:?} slow", quick.join(cx).ok(), lazy.join(cx).ok());
        Ok(())
    });
    assert!(matches!(outcome, Err(TaskError::Cancelled)), "{outcome:?}");
    println!("the nursery says so too: {}", TaskError::Cancelled);
}
