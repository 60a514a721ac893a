//! Steps of the proof `scheduling-context` about the places that an endpoint has for timeout faults (K-29, K-30).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use rt::thread::Builder;
use rt::{Endpoint, Factory, Fallback, OperationResult as R, Spec, Timeout, caps, thread, time};

use super::{context, new_context};
use crate::ensure;
use crate::kit::{self, MS, counter, wait_until};
use crate::proof::{Doing, Failure, Outcome};

/// How many contexts may report their faults to one endpoint.
const PLACES: u32 = 1024;
/// Threads that run on one context in turn: enough that a list of their faults in the kernel would be noticed.
const THREADS: u32 = 40;

/// The size of the kernel's heap in use, and the part of it that is charged to this process for queues.
fn held() -> Outcome<(u64, u64)> {
    Ok((counter("heap_used_bytes")?, counter("own_queue_bytes")?))
}

fn endpoint() -> Outcome<Endpoint> {
    caps::any::<Factory>()?.endpoint().doing("an endpoint")
}

/// Contexts that are refused because no CPU has room leave the endpoint as it was, however many there are.
pub fn refused() -> Outcome {
    let start = held()?;
    let endpoint = endpoint()?;
    let any = context()?;
    let made = held()?;
    for at in 0..PLACES + 8 {
        let refused = any.create(&Spec::new(99 * MS, 100 * MS).fault(&endpoint))?;
        ensure!(refused.result == R::ResourceExhausted, "context {at}: {:?}", refused.result);
        if at == 0 {
            // The memory that an empty queue keeps is charged.
            ensure!(held()?.0 - made.0 <= 2048, "a refused context left {} bytes", held()?.0 - made.0);
        }
    }
    let (kept, good) = (held()?, any.create(&Spec::new(MS, 100 * MS).fault(&endpoint))?.context()?);
    drop(good);
    ensure!(held()? == kept, "a context that came and went: {:?}, not {kept:?}", held()?);
    drop(endpoint);
    ensure!(held()? == start, "afterwards {:?} bytes are held and paid for, not {start:?}", held()?);
    Ok(())
}

/// A context that faults on one thread after the other while nobody receives: the second thread waits for its refill, and the kernel keeps
/// nothing.
pub fn unheard() -> Outcome {
    let start = held()?;
    let endpoint = endpoint()?;
    let ctx = new_context(&Spec::new(20_000, MS).fault(&endpoint))?;
    let (turn, first) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut threads = Vec::with_capacity(THREADS as usize);
    for at in 1..=THREADS {
        let (turn, first) = (Arc::clone(&turn), Arc::clone(&first));
        let run = move || {
            if at == 1 {
                first.store(thread::id(), Ordering::Relaxed);
            }
            while turn.load(Ordering::Acquire) < at {
                let _ = time::sleep(MS);
            }
            while turn.load(Ordering::Acquire) == at {
                spin_loop();
            }
        };
        threads.push(Builder::new().stack_bytes(8192).spawn(run).doing("a thread")?);
    }
    // Called once beforehand, so that this program's lists already have their memory.
    let _ = kit::thread_count()?;
    let made = held()?;
    for (at, thread) in (1..).zip(&threads) {
        turn.store(at, Ordering::Release);
        let handle = thread.handle().ok_or_else(|| Failure::new("no handle"))?;
        let faults = counter("timeout_faults")?;
        ctx.bind_thread(handle, Fallback::BestEffort).doing("bind")?.ok()?;
        wait_until("the budget is spent", || Ok(counter("timeout_faults")? > faults))?;
        ctx.unbind().doing("unbind")?.ok()?;
        let now = held()?;
        // The heap may give back memory that it kept for the threads' first steps.
        ensure!(
            now.0 <= made.0 && now.1 == made.1,
            "fault {at}: {now:?} bytes, {made:?} before the first one"
        );
    }
    turn.store(THREADS + 1, Ordering::Release);
    // The first fault was reported, and its thread is stopped until the fault is answered.
    let call = endpoint.recv(&mut []).doing("hear of the first")?;
    let fault = Timeout::of(&call).ok_or_else(|| Failure::new("no timeout"))?;
    ensure!(fault.tid == first.load(Ordering::Relaxed), "another thread: {fault:?}");
    endpoint.reply(call.token, Timeout::WAIT)?;
    for thread in threads {
        thread.join()?;
    }
    thread::trim();
    drop((ctx, endpoint));
    ensure!(held()?.1 == start.1, "{} bytes are paid for, not {}", held()?.1, start.1);
    Ok(())
}
