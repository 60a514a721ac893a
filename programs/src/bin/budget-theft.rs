//! The proof `budget-theft` (S-13): contexts that are dropped and created again, a chain of template threads and changed periods take no time
//! from a neighbour.
//!
//! The neighbour has half of a CPU in every 100 ms and counts its own work: beside every attack it does as much as alone, within 1 %, and misses
//! no deadline.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::contexts::{all_back, burn, new_context};
use programs::ensure;
use programs::kit::MS;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::ticks::Scale;
use rt::thread::Builder;
use rt::{
    Command, Fallback, NotificationKind as Kind, OperationResult, ProcessSpawner, SchedulingContext, Spec,
    ThreadControl, args, caps, println, thread, time,
};

rt::main!(run);

/// What the neighbour is promised.
const PROMISE: Spec = Spec::new(50 * MS, 100 * MS);
/// How many of its periods each attack lasts.
const PERIODS: u64 = 10;
/// How long the neighbour computes between two readings of the clock.
const TURN_NS: u64 = MS;

fn run() -> i64 {
    match args::args().next() {
        Some("relay") => return relay_until(args::number(1, 0).unwrap_or(0)).unwrap_or(-1),
        Some("succeed") => return succeed().unwrap_or(-1),
        _ => {}
    }
    prove("budget-theft", || {
        let scale = Scale::measure()?;
        // All threads are on one CPU: where instructions are counted, the turns of other CPUs would be in the clock.
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let alone = neighbour(scale, &sleep_until)?;
        // The measuring loop costs something, too; but not more than this.
        ensure!(alone >= 970, "alone it had {alone} per mille of its promise");
        let beside = |what, attack: &dyn Fn(u64) -> Outcome<u64>| {
            step(what, || {
                let had = neighbour(scale, attack)?;
                ensure!(
                    had * 100 >= alone * 99,
                    "the neighbour had {had} per mille, {alone} when it was alone"
                );
                Ok(())
            })
        };
        beside("revoke and create again (S-13)", &|until| come_and_go(until, scale))?;
        beside("a chain of template threads (S-13)", &chain)?;
        step("the next thread of a template takes the last one's place (S-13)", successors)?;
        beside("other periods again and again (S-13)", &|until| change(until, scale))?;
        beside("contexts that are let go when they are used up (S-13)", &|until| let_go(until, scale))?;
        step("the highest band is not for everybody (S-17)", || {
            let made = caps::any::<SchedulingContext>()?.create(&Spec::new(MS, 10 * MS).criticality(7))?;
            ensure!(made.result == OperationResult::Unauthorized, "band 7: {made:?}");
            Ok(())
        })
    })
}

fn sleep_until(until_ns: u64) -> Outcome<u64> {
    time::sleep(until_ns.saturating_sub(time::now_ns()?))?;
    Ok(1)
}

/// Runs an attack beside the neighbour, which works as fast as it can. Returns how much of its promise the neighbour used, in thousandths; fails
/// if it missed a deadline.
fn neighbour(scale: Scale, attack: &dyn Fn(u64) -> Outcome<u64>) -> Outcome<u64> {
    all_back()?;
    let promise = new_context(&PROMISE.cpus([0]))?;
    let (turns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (its, over) = (Arc::clone(&turns), Arc::clone(&is_over));
    let until = time::now_ns()? + PERIODS * PROMISE.period_ns;
    let neighbour = Builder::new().stack_bytes(32 * 1024).spawn(move || -> Outcome {
        while time::now_ns()? < until {
            burn(TURN_NS, scale);
            its.fetch_add(1, Ordering::Relaxed);
        }
        // The thread's context ends with it, so it stays until the result was read.
        while !over.load(Ordering::Relaxed) {}
        Ok(())
    })?;
    let handle = neighbour.handle().ok_or_else(|| Failure::new("no handle"))?;
    promise.bind_thread(handle, Fallback::Stop)?.ok()?;
    let rounds = attack(until)?;
    let news = promise.drain()?.ok()?;
    is_over.store(true, Ordering::Relaxed);
    neighbour.join()??;
    let had_ns = turns.load(Ordering::Relaxed) * TURN_NS;
    let part = had_ns * 1000 / (PERIODS * PROMISE.budget_ns);
    println!("    {rounds} rounds; the neighbour had {part} of 1000 parts");
    ensure!(rounds > 0, "the attack did nothing");
    ensure!(news.get(Kind::DeadlineOrTimeout).is_none_or(|cell| cell.coalesced == 0), "late: {news:?}");
    Ok(part)
}

/// Uses up a context that just fits beside the neighbour, revokes it, and asks for the next.
fn come_and_go(until_ns: u64, scale: Scale) -> Outcome<u64> {
    let spec = Spec::new(4 * MS, 10 * MS).cpus([0]);
    let any = caps::any::<SchedulingContext>()?;
    let mut rounds = 0;
    while time::now_ns()? < until_ns {
        let Ok(own) = any.create(&spec)?.context() else {
            time::sleep(MS / 2)?;
            continue;
        };
        own.bind(Fallback::BestEffort)?.ok()?;
        burn(4 * MS - MS / 5, scale);
        own.revoke()?.ok()?;
        rounds += 1;
    }
    Ok(rounds)
}

/// As [`come_and_go`], in a thread that ends when its context is nearly used up, and without a revocation.
fn let_go(until_ns: u64, scale: Scale) -> Outcome<u64> {
    let spec = Spec::new(8 * MS, 20 * MS).cpus([0]);
    let mut rounds = 0;
    while time::now_ns()? < until_ns {
        let user = Builder::new().stack_bytes(16 * 1024).spawn(move || -> Outcome {
            let own = new_context(&spec)?;
            own.bind(Fallback::BestEffort)?.ok()?;
            burn(8 * MS - MS / 10, scale);
            drop(own);
            Ok(())
        })?;
        match user.join()? {
            Ok(()) => rounds += 1,
            Err(_) => time::sleep(MS / 2)?,
        }
    }
    Ok(rounds)
}

/// The specification of each template thread's context.
const TEMPLATE: Spec = Spec::new(2 * MS, 20 * MS);
/// How much of it a thread uses before it ends.
const USED_NS: u64 = 8 * MS / 5;

/// Starts a process with the template and the arguments `words`; returns its exit code, which is what it counted.
fn with_template(words: &[&str]) -> Outcome<u64> {
    let any: SchedulingContext = caps::any()?;
    let command = words.iter().fold(Command::new("budget-theft"), |command, word| command.arg(word));
    let child = command
        .grant_all(|entry| caps::name_of(entry) == "self")
        .template(TEMPLATE.cpus([0]), &any)
        .spawn(&caps::any::<ProcessSpawner>()?)
        .doing("spawn")?;
    let exit = child.wait().doing("wait")?;
    u64::try_from(exit.code).map_err(|_| Failure::new("the process with a template failed"))
}

/// A process whose threads each have a context, use it up, start the next thread and end.
fn chain(until_ns: u64) -> Outcome<u64> {
    let until = alloc::format!("{until_ns}");
    let rounds = with_template(&["relay", &until])?;
    ensure!(rounds >= PERIODS, "the relay was passed on {rounds} times only");
    Ok(rounds)
}

/// How often one thread of the relay has started the next.
static PASSED: AtomicU64 = AtomicU64::new(0);

fn relay_until(until_ns: u64) -> Outcome<i64> {
    let scale = Scale::measure()?;
    relay(until_ns, scale);
    while time::now_ns()? < until_ns {
        time::sleep(5 * MS)?;
    }
    Ok(PASSED.load(Ordering::Relaxed) as i64)
}

fn relay(until_ns: u64, scale: Scale) {
    burn(USED_NS, scale);
    while time::now_ns().is_ok_and(|now| now < until_ns) {
        let next = Builder::new().stack_bytes(16 * 1024).spawn(move || relay(until_ns, scale));
        if next.is_ok() {
            PASSED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        thread::yield_now();
    }
}

/// How many threads of the template follow each other.
const SUCCESSORS: i64 = 20;

/// The CPU has room for two threads of the template and not for three. One thread waits for the other and starts the next, which takes its
/// predecessor's place at once, although the time that the predecessor used is not back yet.
fn successors() -> Outcome {
    all_back()?;
    let rest = new_context(&Spec::new(70 * MS, 100 * MS).cpus([0]))?;
    let refused = with_template(&["succeed"])?;
    ensure!(
        refused == 0,
        "{refused} of {SUCCESSORS} times the next thread was refused the place of the last"
    );
    rest.revoke()?.ok()?;
    Ok(())
}

/// Returns how many threads were refused.
fn succeed() -> Outcome<i64> {
    let scale = Scale::measure()?;
    let mut refused = 0;
    for _ in 0..SUCCESSORS {
        match Builder::new().stack_bytes(16 * 1024).spawn(move || burn(USED_NS, scale)) {
            Ok(thread) => thread.join()?,
            // The place is free when the time that the last thread used is back.
            Err(_) => {
                refused += 1;
                time::sleep(TEMPLATE.period_ns)?;
            }
        }
    }
    Ok(refused)
}

/// Uses its budget under one period, then asks for the same share with a shorter one.
fn change(until_ns: u64, scale: Scale) -> Outcome<u64> {
    let specs = [(40 * MS, 100 * MS), (2 * MS / 5, MS), (4 * MS, 10 * MS)];
    let specs = specs.map(|(budget, period)| Spec::new(budget, period).cpus([0]));
    let own = new_context(&specs[0])?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let mut rounds = 0;
    while time::now_ns()? < until_ns {
        burn(3 * MS, scale);
        // A refusal is a valid answer, too.
        let _ = own.reconfigure(&specs[rounds as usize % specs.len()])?;
        rounds += 1;
    }
    own.unbind()?.ok()?;
    Ok(rounds)
}
