//! A scene for the gdb commands (K-27): threads in every state that the commands name. The program says which thread is where, and stands
//! still. `make gdb-test` then stops the machine, and compares that with gdb's output.
//!
//! On two CPUs: a thread whose context is lent along two calls, one that waits for its next budget, some that are parked or asleep, and more
//! threads that want CPU 1 than a node of a queue's tree can hold.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use programs::contexts::{Lend, new_context};
use programs::kit::{self, MS};
use programs::proof::{Doing, Failure, Outcome};
use rt::thread::Builder;
use rt::{Answer, Fallback, ParkSpace, Spec, ThreadControl, ThreadState, caps, println, thread, time};

rt::main!(run);

/// Threads that want CPU 1 and nothing else.
const PINNED: usize = 20;
/// Threads that run on any CPU.
const ROAMING: usize = 3;
const STACK_BYTES: usize = 16 * 1024;

fn run() -> i64 {
    match scene() {
        Ok(()) => 0,
        Err(failure) => {
            println!("scene: FAILED {}", failure.0);
            1
        }
    }
}

/// Starts a thread that reports its number before it does `what`; returns the number.
fn start(what: impl FnOnce() -> Outcome + Send + 'static) -> Outcome<u32> {
    let tid = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&tid);
    let work = move || {
        told.store(thread::id(), Ordering::Release);
        if let Err(failure) = what() {
            println!("scene: FAILED {}", failure.0);
        }
    };
    drop(Builder::new().stack_bytes(STACK_BYTES).spawn(work).doing("start a thread")?);
    kit::wait_until("a thread starts", || Ok(tid.load(Ordering::Acquire) != 0))?;
    Ok(tid.load(Ordering::Acquire))
}

fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Waits for something that never comes.
fn park() -> Outcome {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    caps::any::<ParkSpace>()?.park(&NEVER, 0, u64::MAX)?;
    Err(Failure::new("woken by nobody"))
}

fn scene() -> Outcome {
    let parked = start(park)?;
    let asleep = start(|| Ok(time::sleep(u64::MAX / 4)?))?;
    // The caller lends its context to the first server, which lends it to the second, which keeps it.
    let second = Lend::start(|_| {
        let _ = park();
        Answer::Words([0; 2])
    })?;
    let further = Arc::clone(&second.endpoint);
    let first = Lend::start(move |_| Answer::Words(further.call(1, [0; 2]).unwrap_or([0; 2])))?;
    let lent = new_context(&Spec::new(5 * MS, 50 * MS))?;
    let (id, door) = (lent.info()?.ok()?.id, Arc::clone(&first.endpoint));
    let caller = start(move || {
        lent.bind(Fallback::BestEffort)?.ok()?;
        door.call(1, [0; 2])?;
        Err(Failure::new("answered by nobody"))
    })?;
    kit::wait_blocked(second.tid)?;
    // No thread is bound to this one.
    let spare = new_context(&Spec::new(7 * MS, 70 * MS).cpus([0]))?;
    let small = new_context(&Spec::new(MS, 60_000 * MS).cpus([1]))?;
    let (spare_id, small_id) = (spare.info()?.ok()?.id, small.info()?.ok()?.id);
    let throttled = start(move || {
        small.bind(Fallback::BestEffort)?.ok()?;
        spin()
    })?;
    kit::wait_until("a budget is spent", || {
        let threads = kit::system()?.threads().doing("threads")?;
        Ok(threads.iter().any(|one| one.tid == throttled && one.state == ThreadState::Throttled))
    })?;
    let roaming: Vec<u32> = (0..ROAMING).map(|_| start(|| spin())).collect::<Outcome<_>>()?;
    let pinned = || {
        caps::any::<ThreadControl>()?.set_affinity(&[0b10])?;
        spin()
    };
    let pinned: Vec<u32> = (0..PINNED).map(|_| start(pinned)).collect::<Outcome<_>>()?;
    // All threads have moved to their CPU by now.
    time::sleep(100 * MS)?;
    println!(
        "scene: ready main={} parked={parked} asleep={asleep} caller={caller} first={} second={} throttled={throttled}",
        thread::id(),
        first.tid,
        second.tid
    );
    println!("scene: lent={id} spare={spare_id} small={small_id} pinned={pinned:?} roaming={roaming:?}");
    let main = thread::id();
    // This thread says so when all threads are in place, the first thread included.
    static IS_SET: AtomicBool = AtomicBool::new(false);
    start(move || {
        kit::wait_until("the scene is set", || Ok(IS_SET.load(Ordering::Acquire)))?;
        kit::wait_blocked(main)?;
        println!("scene: stands");
        park()
    })?;
    // Two operations under way, neither of which ends; from here on the first thread waits for nothing else.
    IS_SET.store(true, Ordering::Release);
    let news = spare.wait_notification_start()?;
    time::sleep(u64::MAX / 4)?;
    Ok(news.wait()?)
}
