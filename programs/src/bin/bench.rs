//! What the kernel's operations cost, in guest instructions: run under icount, where one tick of the TSC is one instruction.
//!
//! Each row is the median of warm batches, printed as `bench <row> <instructions>`; `capos bench` reads these lines. With one CPU the program prints
//! the rows for one CPU, with more those across CPUs.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use programs::kit::MS;
use programs::proof::{Doing, Outcome, prove};
use rt::abi::{Cqe, Op, Sqe};
use rt::{
    Command, Factory, Fallback, ParkSpace, Pending, ProcessSpawner, SchedulingContext, Spec, ThreadControl,
    Timer, caps, println, ring, syscall, thread,
};

rt::main!(run);

/// Batches of which the median is taken, after some to warm up.
const BATCHES: usize = 41;

fn ticks() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Where a profiler begins to count; called by the row that the first argument names.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn profile_begin() {
    core::hint::black_box(0);
}

/// Where a profiler stops counting.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn profile_end() {
    core::hint::black_box(1);
}

/// The median cost of `each`, run `count` times in every batch.
fn row(name: &str, count: u64, each: impl FnMut() -> Outcome) -> Outcome {
    part_of(name, count, 1, each)
}

/// As [`row`], for an `each` that performs the measured operation `parts` times.
fn part_of(name: &str, count: u64, parts: u64, mut each: impl FnMut() -> Outcome) -> Outcome {
    let mut costs = Vec::new();
    for batch in 0..BATCHES + 5 {
        if batch == BATCHES && rt::args::args().next().is_some_and(|arg| arg == name) {
            profile_begin();
        }
        let before = ticks();
        for _ in 0..count {
            each()?;
        }
        if batch == BATCHES && rt::args::args().next().is_some_and(|arg| arg == name) {
            profile_end();
        }
        if batch >= 5 {
            costs.push((ticks() - before) / (count * parts));
        }
    }
    costs.sort_unstable();
    println!("bench {name} {} (spread {} to {})", costs[BATCHES / 2], costs[0], costs[BATCHES - 1]);
    Ok(())
}

fn run() -> i64 {
    // The role of this program when it is spawned to be measured.
    if rt::args::args().next().is_some_and(|arg| arg == "nothing") {
        return 0;
    }
    println!("These rows are instructions only where the machine counts them: `make bench-kernel` does it.");
    prove("bench", || if rt::boot_info().cpus == 1 { one_cpu() } else { across() })
}

fn nop() -> Sqe {
    Sqe { op: Op::Nop as u8, ..Sqe::default() }
}

fn one_cpu() -> Outcome {
    // SAFETY: the queue is empty.
    row("null-cap-enter", 100, || {
        // SAFETY: the queue is empty.
        unsafe { syscall::cap_enter(0, 0) };
        Ok(())
    })?;
    // SAFETY: names no memory.
    row("ring-nop-1", 100, || {
        // SAFETY: names no memory.
        unsafe { ring::run(nop()) };
        Ok(())
    })?;
    nop_batch()?;
    let yielding = Sqe { op: Op::Yield as u8, ..Sqe::default() };
    switches("context-switch", yielding, None)?;
    ipc("ipc-one-cpu", None)?;
    park_pair()?;
    row("thread-create-join", 10, || {
        thread::spawn(|| 1).join()?;
        Ok(())
    })?;
    let spawner: ProcessSpawner = caps::any()?;
    row("process-spawn-wait", 5, || {
        let own = rt::abi::Interface::ThreadControl;
        let command =
            Command::new("bench").arg("nothing").grant_own("thread_control", own, rt::abi::rights::CALL);
        let child = command.spawn(&spawner).doing("spawn")?;
        child.handle.wait().doing("wait")?;
        Ok(())
    })?;
    row("map-touch-unmap", 20, || {
        let at = rt::vm::map(4096).doing("map")?;
        // SAFETY: just mapped; no other code knows of it.
        unsafe {
            at.as_ptr().write_volatile(1);
            rt::vm::unmap(at.as_ptr() as u64, 4096).doing("unmap")
        }
    })?;
    sleeps()?;
    timer_ends("slice-end", None)?;
    contexts()
}

/// Budgets: what they add to a switch and to a call, and whether revoking one costs more among many threads.
fn contexts() -> Outcome {
    let plenty = Spec::new(900 * MS, 1000 * MS);
    let any: SchedulingContext = caps::any()?;
    let own = any.create(&Spec { budget_ns: 400 * MS, ..plenty })?.context()?;
    own.bind(Fallback::BestEffort)?.ok()?;
    ipc("ipc-lending", None)?;
    let other = any.create(&Spec { budget_ns: 400 * MS, ..plenty })?.context()?;
    switches("context-switch-budget", Sqe { op: Op::Yield as u8, ..Sqe::default() }, Some(other))?;
    own.unbind()?.ok()?;
    drop(own);
    timer_ends("budget-end", Some(any.create(&Spec::new(MS / 10, MS))?.context()?))?;
    revoke_among("revoke-among-10", 10, &any)?;
    revoke_among("revoke-among-500", 500, &any)?;
    // By then the time used by the rows before is back.
    caps::any::<Timer>()?.sleep_start(3000 * MS).doing("sleep")?.wait().doing("sleep")?;
    for (count, seed) in [(1, 0), (8, 7622), (64, 18_443), (128, 3420)] {
        admission(count, seed, &any)?;
    }
    Ok(())
}

/// The cost of creating the last of `count` contexts that fill a CPU (S-14), with two bands and incommensurable periods. Of 60,000 seeds, these need
/// the most evaluations of the admission test: 72 for 8 contexts, 202 for 64, 230 for 128.
fn admission(count: u64, seed: u64, any: &SchedulingContext) -> Outcome {
    let mut specs = programs::contexts::crowd(count, seed, 949);
    let last = specs.pop().ok_or_else(|| programs::proof::Failure::new("nobody"))?;
    let others: Result<Vec<_>, _> = specs.iter().map(|spec| any.create(spec)?.context()).collect();
    let others = others.doing("contexts")?;
    row(&alloc::format!("admission-at-{count}"), 1, || {
        any.create(&last)?.context()?;
        Ok(())
    })?;
    drop(others);
    Ok(())
}

/// Revokes the context of a thread that waits, beside `count` other threads that wait.
fn revoke_among(name: &str, count: usize, any: &SchedulingContext) -> Outcome {
    static STOP: AtomicU32 = AtomicU32::new(0);
    STOP.store(0, Ordering::Relaxed);
    let park = || -> Outcome {
        let space: ParkSpace = caps::any()?;
        while STOP.load(Ordering::Relaxed) == 0 {
            space.park(&STOP, 0, u64::MAX).doing("park")?;
        }
        Ok(())
    };
    let crowd: Result<Vec<_>, _> =
        (0..count).map(|_| thread::Builder::new().stack_bytes(8192).spawn(park)).collect();
    let crowd = crowd.doing("a crowd")?;
    let bound = crowd[0].handle().ok_or_else(|| programs::proof::Failure::new("no handle"))?;
    let spec = Spec::new(MS, 100 * MS);
    row(name, 5, || {
        let context = any.create(&spec)?.context()?;
        context.bind_thread(bound, Fallback::BestEffort)?.ok()?;
        context.revoke()?.ok()?;
        Ok(())
    })?;
    STOP.store(1, Ordering::Release);
    caps::any::<ParkSpace>()?.unpark(&STOP, count as u32).doing("unpark")?;
    crowd.into_iter().try_for_each(|thread| thread.join()?)
}

/// Submits thirty-two NOPs by one system call; the row is the cost of each.
fn nop_batch() -> Outcome {
    let entries = [nop(); 32];
    let mut done = [Cqe::default(); 32];
    part_of("ring-nop-32-each", 1, 32, || {
        // SAFETY: names no memory.
        unsafe { ring::run_all(&entries, &mut done) }.map_err(rt::Error::from)?;
        Ok(())
    })?;
    // All have completed, each for its own entry.
    if done.iter().any(|cqe| cqe.status != 0)
        || done.windows(2).any(|two| two[0].user_data == two[1].user_data)
    {
        return Err(programs::proof::Failure::new("a NOP was lost"));
    }
    Ok(())
}

/// Two threads yield to each other, the other one on a context if there is one: the cost of one switch.
fn switches(name: &str, yielding: Sqe, context: Option<SchedulingContext>) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&stop);
    let other = thread::spawn(move || {
        while !theirs.load(Ordering::Relaxed) {
            // SAFETY: names no memory.
            unsafe { ring::run(yielding) };
        }
    });
    // Bound by this thread, which runs on a budget: beside it, the other thread would never get to bind itself.
    if let Some(context) = &context {
        let thread = other.handle().ok_or_else(|| programs::proof::Failure::new("no handle"))?;
        context.bind_thread(thread, Fallback::BestEffort)?.ok()?;
    }
    // A yield of this thread is two switches, there and back, each with a system call.
    part_of(name, 50, 2, || {
        // SAFETY: names no memory.
        unsafe { ring::run(yielding) };
        Ok(())
    })?;
    stop.store(true, Ordering::Relaxed);
    other.join()?;
    Ok(())
}

/// A timer interrupt that takes the CPU from one thread and gives it to another. Without a context, two threads never wait, and the interrupt is the
/// end of a slice; with a context, which the second thread runs on, it is the end of its budget. Both threads read the counter all the time, and the
/// row is what passes between the last reading of one and the first of the other.
fn timer_ends(name: &str, context: Option<SchedulingContext>) -> Outcome {
    /// The last reading: its time, and the thread that made it.
    static LAST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static STOP: AtomicBool = AtomicBool::new(false);
    /// Few samples: reading is slow where instructions are counted, and a slice has many readings.
    const SAMPLES: usize = 9;
    const MINE: u64 = 1;
    const THEIRS: u64 = 2;
    /// Reads the counter once. Returns the time since the last reading if another thread made that, and was not interrupted in the middle of it.
    fn look(who: u64) -> Option<u64> {
        let now = ticks();
        let (last, other) = (LAST[0].load(Ordering::Relaxed), LAST[1].load(Ordering::Relaxed));
        LAST[0].store(now, Ordering::Relaxed);
        LAST[1].store(who, Ordering::Relaxed);
        now.checked_sub(last).filter(|_| other != who)
    }
    STOP.store(false, Ordering::Relaxed);
    LAST[1].store(MINE, Ordering::Relaxed);
    let other = thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            look(THEIRS);
        }
    });
    if let Some(context) = &context {
        let thread = other.handle().ok_or_else(|| programs::proof::Failure::new("no handle"))?;
        context.bind_thread(thread, Fallback::BestEffort)?.ok()?;
    }
    let mut costs = Vec::new();
    while costs.len() < SAMPLES {
        costs.extend(look(MINE));
        if costs.len() == SAMPLES / 2 && rt::args::args().next().is_some_and(|arg| arg == name) {
            profile_begin();
        }
    }
    STOP.store(true, Ordering::Relaxed);
    other.join()?;
    costs.sort_unstable();
    println!("bench {name} {} (spread {} to {})", costs[SAMPLES / 2], costs[0], costs[SAMPLES - 1]);
    Ok(())
}

/// A call and its answer, two words each way; with `pin` the server runs on another CPU than the caller.
fn ipc(name: &str, pin: Option<[u8; 2]>) -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = Arc::new(factory.endpoint().doing("make an endpoint")?);
    let theirs = Arc::clone(&endpoint);
    let server = thread::spawn(move || {
        if let Some([_, cpu]) = pin {
            caps::any::<ThreadControl>()?.set_affinity(&[cpu])?;
        }
        theirs.serve(|call| {
            let [first, second] = call.message.words();
            if call.method == 1 { Continue([first + 1, second]) } else { Break([0; 2]) }
        })
    });
    if let Some([cpu, _]) = pin {
        caps::any::<ThreadControl>()?.set_affinity(&[cpu]).doing("pin")?;
    }
    row(name, 50, || {
        endpoint.call(1, [1, 2]).doing("call")?;
        Ok(())
    })?;
    endpoint.call(2, [0; 2]).doing("the last call")?;
    server.join()?.doing("serve")
}

/// Two threads that take turns: each wakes the other and parks until it is its turn again, by one system call.
fn park_pair() -> Outcome {
    static TURN: AtomicU32 = AtomicU32::new(0);
    const STOP: u32 = 9;
    /// Passes the turn to `next`, and waits until it is `mine` again, or all is over.
    fn pass(space: &ParkSpace, mine: u32, next: u32) -> Outcome {
        TURN.store(next, Ordering::Release);
        space.unpark_then_park(&TURN, 1, &TURN, next, u64::MAX).doing("park")?;
        while TURN.load(Ordering::Acquire) == next {
            space.park(&TURN, next, u64::MAX).doing("park")?;
        }
        debug_assert!([mine, STOP].contains(&TURN.load(Ordering::Acquire)));
        Ok(())
    }
    let space: ParkSpace = caps::any()?;
    TURN.store(0, Ordering::Relaxed);
    let other = thread::spawn(move || {
        let space: ParkSpace = caps::any()?;
        while TURN.load(Ordering::Acquire) == 0 {
            space.park(&TURN, 0, u64::MAX).doing("park")?;
        }
        while TURN.load(Ordering::Acquire) != STOP {
            pass(&space, 1, 0)?;
        }
        Outcome::Ok(())
    });
    row("park-unpark", 50, || pass(&space, 0, 1))?;
    TURN.store(STOP, Ordering::Release);
    space.unpark(&TURN, 1).doing("unpark")?;
    other.join()?
}

/// A sleep of 1 µs: how much the CPU executes for it. The sleeper is alone, so the time in between is idle and not counted.
fn sleeps() -> Outcome {
    let timer: Timer = caps::any()?;
    row("sleep-1us", 20, || timer.sleep(1000).doing("sleep"))
}

fn across() -> Outcome {
    ipc("ipc-across-cpus", Some([1, 2]))?;
    // Started and answered without waiting in between, so there is no direct handoff.
    let timer: Timer = caps::any()?;
    let pending: Pending<()> = timer.sleep_start(1000).doing("sleep")?;
    pending.wait().doing("sleep")
}
