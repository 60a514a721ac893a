//! A thread's end against all that still refers to it (K-31): binds at the very moment, and kills of threads that run only on contexts, sleep,
//! change CPUs, lose their context and get another one. And the cost of a bind among many threads (K-26).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use programs::contexts::{copy, new_context, new_context_soon};
use programs::ensure;
use programs::fuzz::contexts;
use programs::kit::{self, MS};
use programs::machine::{Before, nap, warm_up};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use programs::ticks;
use rt::sync::Mutex;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Fallback, OperationResult as R, SchedulingContext, Spec, ThreadControl, args, caps, println, thread, time,
};

rt::main!(run);

/// How many ends are met by a bind, unless the first argument says otherwise; one kill for each hundred of them.
const ROUNDS: u64 = 240;
/// How long a killed process may take to end. Its contexts' next refills are 10 s away.
const END_NS: u64 = 3_000 * MS;
/// Threads that wait for a CPU while others are bound: few, and many.
const CROWDS: [usize; 2] = [10, 600];
const STACK: usize = 16 * 1024;

fn run() -> i64 {
    match args::args().next() {
        Some("context-only") => context_only(args::number(1, 1).unwrap_or(1)),
        Some("nap") => nap(),
        _ => prove("life-races", || {
            let rounds = args::number(0, ROUNDS).doing("the number of rounds is no number")?;
            warm_up(64, args::program(), 8)?;
            contexts::warm_up()?;
            step("the first ones, for the kernel's tables", || {
                meet_twice(16)?;
                kills(4)
            })?;
            if ticks::is_counted() && rt::boot_info().cpus == 1 {
                step("a bind costs the same among many (K-26)", costs)?;
            }
            let before = Before::take()?;
            step("binds meet ends (K-31)", || meet_twice(rounds))?;
            step("who is killed ends, whatever it waits for (K-31)", || kills(rounds / 100 + 4))?;
            if rt::boot_info().cpus > 1 {
                step("who may not run where it is bound goes on without (K-31)", || {
                    bound_elsewhere(rounds / 4)
                })?;
            }
            step("nothing is left of it", || {
                ensure!(kit::system()?.contexts().doing("contexts")?.is_empty(), "contexts are left");
                before.check("after the races")
            })
        }),
    }
}

/// Runs [`meet`] in two threads, on two CPUs at once.
fn meet_twice(rounds: u64) -> Outcome {
    let pairs: Vec<_> = (0..2).map(|n| thread::spawn(move || meet(rounds / 2, n + 1))).collect();
    pairs.into_iter().try_for_each(|pair| pair.join()?)
}

/// Threads end, each at the moment at which another thread binds it. The delay of the bind adapts so that about half of the binds come too late.
fn meet(rounds: u64, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let (mut centre, mut bound, mut dead) = (2000u64, 0u64, 0u64);
    let mut spare = None;
    for _ in 0..rounds {
        let go = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&go);
        let context = match spare.take() {
            Some(context) => context,
            None => new_context(&Spec::new(2 * MS, 10 * MS))?,
        };
        let short = Builder::new().stack_bytes(STACK).spawn(move || {
            theirs.store(1, Ordering::Release);
            await_word(&theirs, 2);
        })?;
        await_word(&go, 1);
        let handle = short.handle().ok_or_else(|| Failure::new("no handle"))?;
        let delay = (centre + random.below(2000)).saturating_sub(1000);
        go.store(2, Ordering::Release);
        for _ in 0..delay {
            core::hint::black_box(0);
        }
        let result = context.bind_thread(handle, Fallback::BestEffort)?.result;
        short.join()?;
        let after = context.info()?.result;
        match (result, after) {
            // The context of a thread ends with it.
            (R::Ok | R::StaleGeneration | R::Revoked, R::StaleGeneration) => {
                bound += 1;
                centre = (centre + centre / 8 + 1).min(1_000_000);
            }
            (R::DeadThread, R::Ok) => {
                dead += 1;
                centre -= centre / 8;
                spare = Some(context);
            }
            other => return Err(Failure::new(alloc::format!("K-31: a bind said {other:?}"))),
        }
    }
    println!("    {bound} were bound, {dead} had ended");
    Ok(())
}

/// What [`bound_elsewhere`] and its threads share.
struct Elsewhere {
    context: Mutex<Option<Arc<SchedulingContext>>>,
    turns: AtomicU32,
    is_over: AtomicBool,
}

/// A thread of the first CPU is repeatedly bound to a context of the second, where it may not run, while another thread queries that context all
/// the time. So the context is in transit to the one thread when the other runs.
fn bound_elsewhere(rounds: u64) -> Outcome {
    let shared = Arc::new(Elsewhere {
        context: Mutex::new(None),
        turns: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
    });
    let start = |work: fn(&Elsewhere) -> Outcome| {
        let theirs = Arc::clone(&shared);
        Builder::new().stack_bytes(STACK).spawn(move || -> Outcome {
            caps::any::<ThreadControl>()?.set_affinity(&[1])?;
            while !theirs.is_over.load(Ordering::Acquire) {
                work(&theirs)?;
            }
            Ok(())
        })
    };
    let runner = start(|shared| {
        shared.turns.fetch_add(1, Ordering::Release);
        Ok(())
    })?;
    let looker = start(|shared| {
        let context = shared.context.lock().clone();
        if let Some(context) = context {
            // Any result will do; what counts is that there is one.
            let _ = context.info()?;
        }
        Ok(())
    })?;
    let handle = runner.handle().ok_or_else(|| Failure::new("no handle"))?;
    // If it were bound before it has chosen its CPU, it could not choose that CPU any more.
    kit::wait_until("it has chosen its CPU", || Ok(shared.turns.load(Ordering::Acquire) != 0))?;
    let mut bound = 0;
    for _ in 0..rounds {
        let context = Arc::new(new_context_soon(&Spec::new(MS, 10 * MS).cpus([1]))?);
        *shared.context.lock() = Some(Arc::clone(&context));
        let result = context.bind_thread(handle, Fallback::BestEffort)?.result;
        // The mask of a running thread is not known to the binder; the thread is told of the mismatch when it fetches the context.
        ensure!(matches!(result, R::Ok | R::NoCommonCpu), "a bind said {result:?}");
        bound += u64::from(result == R::Ok);
        let turns = shared.turns.load(Ordering::Acquire);
        kit::wait_until("it goes on", || Ok(shared.turns.load(Ordering::Acquire) != turns))?;
        copy(&context)?.revoke()?.ok()?;
    }
    println!("    {bound} of {rounds} were bound while they ran");
    ensure!(bound > 0, "nobody was bound while it ran");
    *shared.context.lock() = None;
    shared.is_over.store(true, Ordering::Release);
    runner.join()??;
    looker.join()?
}

fn await_word(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) != value {
        if rt::boot_info().cpus == 1 {
            thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }
}

/// Processes whose threads cannot run without contexts are killed at random moments, and end at once.
fn kills(rounds: u64) -> Outcome {
    let mut random = Random::new(3);
    for round in 0..rounds {
        let word = alloc::format!("{}", random.below(1 << 40));
        let child = kit::again(&["context-only", &word], &[])?;
        time::sleep(random.below(60 * MS))?;
        let mut end = child.handle.wait_start()?;
        child.handle.kill().doing("kill")?;
        let killed = time::now_ns()?;
        while end.poll().is_none() {
            let waits_ns = time::now_ns()? - killed;
            ensure!(waits_ns < END_NS, "round {round}: killed {waits_ns} ns ago, and lives");
            time::sleep(MS)?;
        }
    }
    Ok(())
}

/// The main function of the process that is killed. Refusals are expected.
fn context_only(seed: u64) -> i64 {
    let mut random = Random::new(seed);
    let threads: Vec<JoinHandle<()>> = (0..4)
        .filter_map(|which| {
            let seed = random.word();
            Builder::new().stack_bytes(STACK).spawn(move || lives(which, seed)).ok()
        })
        .collect();
    loop {
        // Each thread is bound to another context whenever it has lost its own.
        for thread in &threads {
            if let (Ok(context), Some(handle)) = (new_context(&tight(&mut random)), thread.handle()) {
                let _ = context.bind_thread(handle, Fallback::Stop);
                let _ = time::sleep(random.below(MS));
                let _ = if random.below(2) == 0 { context.unbind() } else { context.revoke() };
            }
        }
    }
}

/// A specification with a large budget at first, and then none for a long time.
fn tight(random: &mut Random) -> Spec {
    Spec::new((1 + random.below(4)) * MS, 10_000 * MS)
}

fn lives(which: u64, seed: u64) {
    let mut random = Random::new(seed);
    let Ok(control) = caps::any::<ThreadControl>() else { return };
    let cpus = rt::boot_info().cpus.min(8);
    if let Ok(context) = new_context(&tight(&mut random)) {
        let _ = context.bind(Fallback::Stop);
        let kept = copy(&context);
        drop(context);
        core::mem::forget(kept);
    }
    loop {
        match which {
            0 => drop(control.set_affinity(&[1 + random.below((1 << cpus) - 1) as u8])),
            1 => drop(time::sleep(random.below(100_000))),
            2 => thread::yield_now(),
            _ => (0..random.below(20_000)).for_each(|n| {
                core::hint::black_box(n);
            }),
        }
    }
}

/// The cost of binding a queued thread does not depend on how many others wait.
fn costs() -> Outcome {
    let own = new_context(&Spec::new(90 * MS, 100 * MS))?;
    let mut least = [u64::MAX; CROWDS.len()];
    for (at, crowd) in CROWDS.into_iter().enumerate() {
        let stop = Arc::new(AtomicBool::new(false));
        // With a budget this thread runs before all of them, so each of them waits for the CPU meanwhile.
        own.bind(Fallback::BestEffort)?.ok()?;
        let threads = (0..crowd)
            .map(|_| {
                let stop = Arc::clone(&stop);
                Builder::new().stack_bytes(STACK).spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        core::hint::spin_loop();
                    }
                })
            })
            .collect::<rt::Result<Vec<_>>>()
            .doing("start a crowd")?;
        let context = new_context(&Spec::new(100_000, 100 * MS))?;
        for target in threads.iter().step_by(crowd / 5) {
            let handle = target.handle().ok_or_else(|| Failure::new("no handle"))?;
            let before = ticks::now();
            let bound = context.bind_thread(handle, Fallback::BestEffort)?.result;
            let taken = ticks::now() - before;
            let unbound = context.unbind()?.result;
            ensure!(bound == R::Ok && unbound == R::Ok, "bound: {bound:?}, unbound: {unbound:?}");
            least[at] = least[at].min(taken);
        }
        stop.store(true, Ordering::Relaxed);
        own.unbind()?.ok()?;
        threads.into_iter().try_for_each(JoinHandle::join)?;
        println!("    among {crowd}: {} ticks", least[at]);
    }
    let [few, many] = least;
    ensure!(many * 2 <= few * 3, "a bind costs {few} ticks among {}, {many} among {}", CROWDS[0], CROWDS[1]);
    Ok(())
}
