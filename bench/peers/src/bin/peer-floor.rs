//! No peer but the floors: what the machine itself takes for the thing that a runtime does, without any runtime.
//! Handing work to a thread that spins, waking a thread that sleeps, and the first touch of one page for each task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use peers::*;

const PAGE: usize = 4096;

fn main() {
    let request = Request::from_arguments();
    match request.workload.as_str() {
        "steal-searching" => stolen(&request, std::hint::spin_loop),
        "steal-parked" => stolen(&request, thread::park),
        "parked" => pages(request.size(TASKS)),
        _ => unsupported("there is no floor for this workload"),
    }
}

fn stolen(request: &Request, idle: fn()) {
    let (steal, wanted) = (Arc::new(Steal::default()), Arc::new(AtomicBool::new(false)));
    let (child, asked) = (steal.clone(), wanted.clone());
    let other = thread::spawn(move || {
        loop {
            if asked.swap(false, Ordering::Acquire) {
                child.child();
            }
            idle();
        }
    });
    let parked = request.workload == "steal-parked";
    steal.trials(request, |_| {
        wanted.store(true, Ordering::Release);
        if parked {
            other.thread().unpark();
        }
    });
}

/// Zeroed memory comes untouched from the system; one byte of each page makes it real.
fn pages(count: usize) {
    let mut memory = vec![0u8; count * PAGE];
    let before = resident();
    let start = Instant::now();
    for page in memory.chunks_exact_mut(PAGE) {
        page[0] = 1;
    }
    let spawn_ms = ms(start);
    figure("parked-bytes", resident().saturating_sub(before) as f64 / count as f64, "bytes");
    figure("parked-spawn", spawn_ms, "ms");
    std::hint::black_box(memory);
}
