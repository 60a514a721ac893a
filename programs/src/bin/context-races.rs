//! Every operation on contexts against every other, on all CPUs at once: contexts are created, bound (to the caller and to others), lent, changed,
//! revoked, waited for and dropped, while threads end and whole processes are killed in the middle (S-02, S-05, S-06, S-09, K-05).
//!
//! Processes of hostile threads share a few slots of contexts and thread handles, and act at random. None of them has to make progress: a thread may
//! take another's time away for good. The kernel must: it answers every request with a named result, keeps its invariants and gets everything back in
//! the end, and a victim computes as if nothing happened.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::Continue;

use programs::contexts::copy;
use programs::ensure;
use programs::fuzz::contexts;
use programs::kit::{self, MS};
use programs::machine::{Before, nap, warm_up};
use programs::proof::{Doing, Outcome, prove, step};
use programs::random::Random;
use programs::victim::Watch;
use rt::abi::rights;
use rt::sync::Mutex;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Client, Endpoint, Factory, Fallback, SchedulingContext, Spec, ThreadControl, args, caps, println, thread,
    time,
};

rt::main!(run);

/// How many processes are started and killed, unless the first argument says otherwise; the second is the seed.
const ROUNDS: u64 = 24;
/// How many processes run at a time.
const TOGETHER: usize = 2;
/// Hostile threads of a process, besides those that they start.
const THREADS: u64 = 4;
const SLOTS: usize = 6;
/// The most threads that a process has, including those that its threads start and those that have ended and are not cleared away yet. The kernel
/// keeps the records of as many threads as ever lived at once, so the proof must know how many that can be, or it takes a full table for a leak.
const THREADS_MAX: u64 = 40;
/// Threads of this proof itself, of its victim and of `init`.
const OTHERS: usize = 16;
/// The longest life of a process.
const LIFE_NS: u64 = 40 * MS;

fn run() -> i64 {
    match args::args().next() {
        Some("hostile") => hostile(args::number(1, 1).unwrap_or(1)),
        Some("nap") => nap(),
        _ => prove("context-races", || {
            let rounds = args::number(0, ROUNDS).doing("the number of rounds is no number")?;
            let seed = args::number(1, 1).doing("the seed is no number")?;
            warm_up(TOGETHER * THREADS_MAX as usize + OTHERS, args::program(), 8)?;
            contexts::warm_up()?;
            step("the first processes, for the kernel's tables", || storm(rounds / 4 + 1, seed + 1))?;
            let before = Before::take()?;
            let victim = Watch::start()?;
            let (made, loans) = (kit::counter("contexts_admitted")?, kit::counter("loans")?);
            step("everything against everything (S-02, S-06, S-09)", || storm(rounds, seed))?;
            let (made, loans) = (kit::counter("contexts_admitted")? - made, kit::counter("loans")? - loans);
            println!("    {made} contexts were made, {loans} lent");
            ensure!(made > rounds && loans > 0, "nothing was tried: {made} contexts, {loans} loans");
            step("the victim is exact", || victim.goes_on(3))?;
            victim.finish()?;
            step("nothing is left of it", || {
                ensure!(kit::system()?.contexts().doing("contexts")?.is_empty(), "contexts are left");
                before.check("after the races")
            })
        }),
    }
}

/// Hostile processes, a few at a time, each killed at a random moment.
fn storm(rounds: u64, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let served = caps::any::<Factory>()?.endpoint().doing("make an endpoint")?;
    let mut children = Vec::new();
    for _ in 0..rounds {
        let word = alloc::format!("{}", random.below(1 << 40));
        children.push(kit::again(&["hostile", &word], &[("served", served.cap(), rights::ALL, 0)])?);
        time::sleep(random.below(LIFE_NS / TOGETHER as u64))?;
        if children.len() == TOGETHER {
            let child = children.swap_remove(random.below(TOGETHER as u64) as usize);
            child.handle.kill().doing("kill")?;
            child.wait().doing("wait")?;
        }
    }
    for child in children {
        child.handle.kill().doing("kill")?;
        child.wait().doing("wait")?;
    }
    Ok(())
}

/// What the threads of a process compete for.
struct Arena {
    contexts: [Mutex<Option<Arc<SchedulingContext>>>; SLOTS],
    threads: [Mutex<Option<Arc<JoinHandle<()>>>>; SLOTS],
    /// Held while a thread is started, from the check of how many there are.
    starts: Mutex<()>,
    served: Endpoint,
}

impl Arena {
    fn context(&self, random: &mut Random) -> Option<Arc<SchedulingContext>> {
        self.contexts[random.below(SLOTS as u64) as usize].lock().clone()
    }
}

/// The main function of the hostile process, which runs until it is killed.
fn hostile(seed: u64) -> i64 {
    let Ok(served) = caps::get::<Endpoint>("served") else { return 1 };
    let arena = Arc::new(Arena {
        contexts: core::array::from_fn(|_| Mutex::new(None)),
        threads: core::array::from_fn(|_| Mutex::new(None)),
        starts: Mutex::new(()),
        served,
    });
    let mut random = Random::new(seed);
    for _ in 0..THREADS {
        let (arena, seed) = (Arc::clone(&arena), random.word());
        core::mem::forget(thread::spawn(move || {
            let mut random = Random::new(seed);
            loop {
                // Refusals are expected.
                let _ = act(&arena, &mut random);
            }
        }));
    }
    let server = Arc::clone(&arena);
    core::mem::forget(thread::spawn(move || {
        let _ = server.served.serve(|_| Continue([0; 2]));
    }));
    let _ = time::sleep(u64::MAX);
    0
}

fn spec(arena: &Arena, random: &mut Random) -> Spec {
    let period_ns = (1 + random.below(5)) * MS;
    let spec = Spec::new(period_ns / (2 + random.below(20)), period_ns);
    let spec = match random.below(4) {
        0 => spec.demote(),
        1 => spec.fault(&arena.served),
        _ => spec.throttle(),
    };
    let cpus = rt::boot_info().cpus;
    if random.below(2) == 0 { spec.cpus([random.below(u64::from(cpus)) as u32]) } else { spec }
}

/// One random action.
fn act(arena: &Arc<Arena>, random: &mut Random) -> Outcome {
    let slot = random.below(SLOTS as u64) as usize;
    let fallback = if random.below(3) == 0 { Fallback::Stop } else { Fallback::BestEffort };
    match random.below(24) {
        0..2 => {
            let made = caps::any::<SchedulingContext>()?.create(&spec(arena, random))?.context()?;
            *arena.contexts[slot].lock() = Some(Arc::new(made));
        }
        2 => drop(arena.contexts[slot].lock().take()),
        3 => drop(arena.threads[slot].lock().take()),
        4 => {
            let (theirs, seed) = (Arc::clone(arena), random.word());
            // The holder of the lock may have been stopped, or may never release it.
            let Some(_starts) = arena.starts.try_lock() else { return Ok(()) };
            if kit::counter("own_thread_records")? >= THREADS_MAX {
                return Ok(());
            }
            let short = Builder::new().stack_bytes(16 * 1024).spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..random.below(30) {
                    let _ = act(&theirs, &mut random);
                }
            })?;
            *arena.threads[slot].lock() = Some(Arc::new(short));
        }
        5 => {
            let cpus = rt::boot_info().cpus.min(8);
            let mask = [1 + random.below((1 << cpus) - 1) as u8];
            caps::any::<ThreadControl>()?.set_affinity(&mask)?;
        }
        6 => time::sleep(random.below(200_000))?,
        7..10 => {
            arena.served.call(1, [0; 2])?;
        }
        _ => {
            let Some(context) = arena.context(random) else { return Ok(()) };
            with(arena, &context, slot, fallback, random)?;
        }
    }
    Ok(())
}

/// One random action with a context that other threads have, too.
fn with(
    arena: &Arena,
    context: &SchedulingContext,
    slot: usize,
    fallback: Fallback,
    random: &mut Random,
) -> Outcome {
    match random.below(10) {
        0 | 1 => drop(context.bind(fallback)?),
        2 | 3 => {
            let thread = arena.threads[slot].lock().clone();
            if let Some(handle) = thread.as_ref().and_then(|thread| thread.handle()) {
                let _ = context.bind_thread(handle, fallback)?;
            }
        }
        4 => drop(context.unbind()?),
        5 => drop(context.reconfigure(&spec(arena, random))?),
        6 => drop(copy(context)?.revoke()?),
        7 => drop(context.yield_to()?),
        8 => {
            let mut waits = context.wait_notification_start()?;
            let _ = waits.wait_timeout(random.below(100_000));
            let _ = context.drain()?;
        }
        _ => {
            let info = context.info()?;
            ensure!(info.value.remaining_ns <= info.value.spec.budget_ns, "more than there is: {info:?}");
        }
    }
    Ok(())
}
