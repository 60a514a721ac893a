//! Attacks on memory, threads, endpoints, listings and interrupts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::Continue;
use core::sync::atomic::{AtomicU32, Ordering};

use rt::abi::rights;
use rt::clients::Give;
use rt::{
    Client, Endpoint, Factory, ParkSpace, Protection, SchedulingPolicy, SystemInfo, Timer, VirtualMemory,
    caps,
};

use super::{PROCESSES_MAX, crew, pin, small, some_cpu, spin, wait_for_the_end};
use crate::kit::{self, MS};
use crate::proof::Outcome;
use crate::random::Random;

/// Threads of the largest weight that never wait.
pub fn hogs(random: &mut Random) -> Outcome {
    let count = 1 + random.below(40) as usize;
    crew(count, || {
        if let Ok(policy) = caps::any::<SchedulingPolicy>() {
            let _ = policy.set_weight(1024);
        }
        spin();
    })?;
    wait_for_the_end()
}

/// As many sleeps of one nanosecond as a thread may have, repeatedly: timer interrupts without end.
pub fn sleeps(random: &mut Random) -> Outcome {
    let cpu = some_cpu(random);
    crew(1 + random.below(8) as usize, move || {
        pin(cpu);
        let Ok(timer) = caps::any::<Timer>() else { return };
        loop {
            let all: Vec<_> = (0..31).filter_map(|_| timer.sleep_start(1).ok()).collect();
            for one in all {
                let _ = one.wait();
            }
        }
    })?;
    wait_for_the_end()
}

/// Maps and unmaps large areas.
pub fn maps(random: &mut Random) -> Outcome {
    let memory: VirtualMemory = caps::any()?;
    loop {
        let bytes = 1 << (12 + random.below(14));
        if let Ok(at) = memory.map(None, bytes, Protection::READ_WRITE) {
            // SAFETY: no code uses the memory that was just mapped.
            unsafe { memory.unmap(at, bytes)? };
        }
    }
}

/// Creates and drops memory objects.
pub fn objects(random: &mut Random) -> Outcome {
    let factory: Factory = caps::any()?;
    loop {
        drop(factory.memory_object(1 << (12 + random.below(14))));
    }
}

/// Takes all the memory that it can get, and keeps it.
pub fn memory(_: &mut Random) -> Outcome {
    take_all()?;
    wait_for_the_end()
}

fn take_all() -> Outcome {
    let memory: VirtualMemory = caps::any()?;
    for bytes in [1 << 20, 64 << 10, 4096] {
        while memory.map(None, bytes, Protection::READ_WRITE).is_ok() {}
    }
    Ok(())
}

/// Processes that end at once, some of which are killed before.
pub fn spawns(random: &mut Random) -> Outcome {
    loop {
        let Ok(child) = kit::again(&["attack", "leaf", "1"], &[]) else { continue };
        if random.below(3) == 0 {
            let _ = child.handle.kill();
        }
        let _ = child.wait();
    }
}

/// Fills the table of capabilities and empties it at once.
pub fn capabilities(_: &mut Random) -> Outcome {
    let endpoint = caps::any::<Factory>()?.endpoint()?;
    loop {
        drop(kit::fill_caps(endpoint.cap(), rights::ALL));
    }
}

/// Endpoints that are kept alive only by calls that wait at the endpoint before: when the first closes, all close.
pub fn chains(random: &mut Random) -> Outcome {
    loop {
        let _ = chain(2 + random.below(6) as usize);
    }
}

fn chain(length: usize) -> Outcome {
    const CALLERS: usize = 16;
    static READY: AtomicU32 = AtomicU32::new(0);
    READY.store(0, Ordering::Relaxed);
    let factory: Factory = caps::any()?;
    let mut endpoints = Vec::new();
    for _ in 0..length {
        endpoints.push(Some(factory.endpoint()?));
    }
    let (mut callers, mut threads) = (Vec::new(), Vec::new());
    for endpoint in endpoints.iter().flatten() {
        let caller = Arc::new(endpoint.caller(1)?);
        for _ in 0..CALLERS {
            let caller = Arc::clone(&caller);
            threads.push(small(move || {
                let calls: Vec<_> = (0..31).filter_map(|_| caller.call_start(1, [0; 2]).ok()).collect();
                READY.fetch_add(1, Ordering::Relaxed);
                for call in calls {
                    let _ = call.wait();
                }
            })?);
        }
        callers.push(caller);
    }
    while (READY.load(Ordering::Relaxed) as usize) < length * CALLERS {
        rt::time::sleep(MS)?;
    }
    for at in 0..length - 1 {
        let Some(next) = endpoints[at + 1].take() else { continue };
        let cap = next.cap().copy(rights::ALL, 0)?;
        drop(next);
        let caller = Arc::clone(&callers[at]);
        threads.push(small(move || {
            let _ = caller.call_giving(1, &[], &mut [0; 64], Give::Move(cap));
        })?);
    }
    rt::time::sleep(MS)?;
    drop(endpoints);
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

/// Processes with many parked threads, which are killed with all of them.
pub fn crowd(random: &mut Random) -> Outcome {
    loop {
        let Ok(child) = kit::again(&["attack", "crowd-member", "1"], &[]) else { continue };
        rt::time::sleep((5 + random.below(40)) * MS)?;
        let _ = child.handle.kill();
        let _ = child.wait();
    }
}

/// Role: parks `count` threads.
pub fn park_many(count: usize) -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    crew(count, || {
        if let Ok(park) = caps::any::<ParkSpace>() {
            let _ = park.park(&WORD, 0, u64::MAX);
        }
    })?;
    wait_for_the_end()
}

/// Wakes threads on every CPU: interprocessor interrupts without end.
pub fn wakes(_: &mut Random) -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    for cpu in 0..rt::boot_info().cpus {
        core::mem::forget(small(move || {
            pin(cpu);
            let Ok(park) = caps::any::<ParkSpace>() else { return };
            loop {
                let _ = park.park(&WORD, 0, u64::MAX);
            }
        })?);
    }
    let park: ParkSpace = caps::any()?;
    loop {
        let _ = park.unpark(&WORD, 64);
    }
}

/// Asks for every list of the kernel again and again, with many threads of its own to be listed.
pub fn listings(_: &mut Random) -> Outcome {
    crew(100, spin)?;
    let info: SystemInfo = caps::any()?;
    loop {
        let _ = (info.threads(), info.processes(), info.contexts(), info.counters(), info.cpus());
    }
}

/// Creates children whose parent is gone, with memory and threads; they end by themselves after a while.
pub fn orphans(random: &mut Random) -> Outcome {
    loop {
        let seed = alloc::format!("{}", random.below(1 << 40));
        if let Ok(child) = kit::again(&["attack", "has-orphans", &seed], &[]) {
            let _ = child.wait();
        }
        rt::time::sleep(30 * MS)?;
    }
}

/// Role: leaves children behind.
pub fn leave_orphans(random: &mut Random) -> Outcome {
    for _ in 0..PROCESSES_MAX / 4 {
        let seed = alloc::format!("{}", random.below(1 << 40));
        core::mem::forget(kit::again(&["attack", "lingers", &seed], &[]));
    }
    Ok(())
}

/// Role: an orphan.
pub fn linger(random: &mut Random) -> Outcome {
    if random.below(2) == 0 {
        take_all()?;
    }
    crew(4, spin)?;
    rt::time::sleep((1 + random.below(30)) * MS)?;
    // The other threads would keep the process alive, so it kills itself.
    if let Ok(own) = caps::get::<rt::ProcessHandle>("self") {
        own.kill()?;
    }
    Ok(())
}

/// Creates sessions and logs them out, and meanwhile serves endpoints badly.
pub fn sessions(random: &mut Random) -> Outcome {
    let factory: Factory = caps::any()?;
    let served: Arc<Endpoint> = Arc::new(factory.endpoint()?);
    for _ in 0..2 {
        let served = Arc::clone(&served);
        core::mem::forget(small(move || {
            let _ = served.serve(|_| Continue([0; 2]));
        })?);
    }
    loop {
        if let Ok(session) = factory.session("siege") {
            let _ = session.logout();
        }
        let mut call = served.call_start(1, [0; 2])?;
        let _ = call.wait_timeout(random.below(50_000));
    }
}
