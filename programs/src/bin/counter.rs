//! A server that adds up the numbers that its callers send, separately for each caller. It serves the endpoint that it was
//! granted as `requests`.
#![no_std]
#![no_main]

use core::ops::ControlFlow::{Break, Continue};

use rt::{Endpoint, Result, caps};

rt::main!(run);

fn run() -> Result<()> {
    let requests: Endpoint = caps::get("requests")?;
    // A sum for each badge, the number by which the kernel tells a server through which capability a caller calls.
    let mut sums = [0_u64; 4];
    requests.serve(|call| {
        let [number, _] = call.message.words();
        let sum = &mut sums[call.badge as usize % 4];
        *sum = sum.wrapping_add(number);
        // Method 1 adds; any other ends the server, after its answer.
        if call.method == 1 { Continue([*sum, 0]) } else { Break([*sum, 0]) }
    })
}
