//! Proof that sleeps are limited for each process, and that one process at its limit hinders no other
//! (K-13).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::ensure;
use programs::kit::{self, MS, Usage, refused};
use programs::proof::{Doing, Outcome, prove, step};
use programs::random::Random;
use rt::abi::TransportError;
use rt::sync::Semaphore;
use rt::thread::{self, Builder, JoinHandle};
use rt::{ExitReason, Pending, Timer, caps, println, time};

rt::main!(run);

/// `PROCESS_SLEEP_LIMIT` of the kernel.
const LIMIT: usize = 256;
/// Sleeps of one thread; a few operations are left for waiting.
const PER_THREAD: usize = 28;
const HOUR: u64 = 3_600_000 * MS;

fn run() -> i64 {
    match rt::args::args().next() {
        Some("neighbour") => return prove("timer-flood neighbour", neighbour),
        Some("hog") => return hog(false),
        Some("leave") => return hog(true),
        _ => {}
    }
    prove("timer-flood", || {
        println!("timer-flood: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("256 sleeps for a process and no more; one ended makes room for one (K-13)", limit)?;
        step("a process at its limit does not hinder another (K-13)", beside)?;
        step("sleeps end with their process, killed or not (K-13)", ends)?;
        step("thousands of sleeps, each ends once (K-13)", flood)
    })
}

/// Threads that keep as many sleeps of an hour as the process may have.
struct Keepers {
    state: Arc<State>,
    threads: Vec<JoinHandle<Outcome>>,
}

struct State {
    kept: AtomicU32,
    refused: AtomicU32,
    /// 0: keep the sleeps; 1: each thread cancels one; 2: end.
    phase: AtomicU32,
    withdrawn: AtomicU32,
}

fn keep(state: &State, mine: usize) -> Outcome {
    let timer: Timer = caps::any()?;
    let mut sleeps: Vec<Pending<()>> = Vec::new();
    for _ in 0..mine {
        let mut sleep = timer.sleep_start(HOUR).doing("start a sleep")?;
        match sleep.poll() {
            None => {
                sleeps.push(sleep);
                state.kept.fetch_add(1, Ordering::AcqRel);
            }
            Some(result) => {
                refused("a sleep too many", result, TransportError::NoSpace)?;
                state.refused.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
    while state.phase.load(Ordering::Acquire) == 0 {
        time_out(MS)?;
    }
    if state.phase.load(Ordering::Acquire) == 1
        && let Some(sleep) = sleeps.pop()
    {
        refused("a withdrawn sleep", sleep.cancel(), TransportError::Cancelled)?;
        state.withdrawn.fetch_add(1, Ordering::AcqRel);
    }
    while state.phase.load(Ordering::Acquire) < 2 {
        time_out(MS)?;
    }
    Ok(())
}

/// Waits without a sleep, because no sleep is available.
fn time_out(ns: u64) -> Outcome {
    let end = time::now_ns()? + ns;
    while time::now_ns()? < end {
        thread::yield_now();
    }
    Ok(())
}

impl Keepers {
    /// Starts the threads and waits until they have tried.
    fn start() -> Outcome<Keepers> {
        let state = Arc::new(State {
            kept: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            phase: AtomicU32::new(0),
            withdrawn: AtomicU32::new(0),
        });
        let mut threads = Vec::new();
        let mut left = LIMIT + 10;
        let tried = || state.kept.load(Ordering::Acquire) + state.refused.load(Ordering::Acquire);
        while left > 0 {
            let (theirs, mine) = (Arc::clone(&state), left.min(PER_THREAD));
            left -= mine;
            threads.push(Builder::new().spawn(move || keep(&theirs, mine)).doing("spawn")?);
        }
        let (mut patience, nobody) = (kit::Patience::default(), Semaphore::new(0));
        while (tried() as usize) < LIMIT + 10 {
            ensure!(patience.is_left(), "only {} sleeps were tried", tried());
            ensure!(!threads.iter().any(JoinHandle::is_finished), "a thread that keeps sleeps has ended");
            // A sleep would count against the limit.
            let _ = nobody.acquire_timeout(MS);
        }
        let (kept, over) = (state.kept.load(Ordering::Acquire), state.refused.load(Ordering::Acquire));
        ensure!((kept as usize, over) == (LIMIT, 10), "{kept} sleeps were accepted, {over} refused");
        Ok(Keepers { state, threads })
    }

    fn end(self) -> Outcome {
        self.state.phase.store(2, Ordering::Release);
        self.threads.into_iter().try_for_each(|thread| thread.join()?)
    }
}

fn limit() -> Outcome {
    let keepers = Keepers::start()?;
    refused("a sleep of the first thread", time::sleep(MS), TransportError::NoSpace)?;
    // Other timeouts do not count as sleeps.
    let park: rt::ParkSpace = caps::any()?;
    let word = AtomicU32::new(0);
    ensure!(park.park(&word, 0, MS)? == rt::Parked::TimedOut, "a park with a time limit does not time out");
    keepers.state.phase.store(1, Ordering::Release);
    while (keepers.state.withdrawn.load(Ordering::Acquire) as usize) < keepers.threads.len() {
        ensure!(!keepers.threads.iter().any(JoinHandle::is_finished), "a thread that keeps sleeps has ended");
        thread::yield_now();
    }
    time::sleep(MS).doing("a sleep after others were withdrawn")?;
    keepers.end()?;
    // All were given back, so the whole test can be repeated.
    Keepers::start()?.end()?;
    time::sleep(MS).doing("a sleep after all have ended")
}

/// Role `neighbour`: sleeps as usual.
fn neighbour() -> Outcome {
    let timer: Timer = caps::any()?;
    for round in 0..20 {
        let before = time::now_ns()?;
        let several: Vec<_> = (1..=10).map(|n| timer.sleep_start(n * MS / 10)).collect::<rt::Result<_>>()?;
        for sleep in several {
            sleep.wait().doing("sleep")?;
        }
        ensure!(time::now_ns()? - before >= MS, "round {round}: ten sleeps of up to 1 ms were too short");
    }
    Ok(())
}

fn beside() -> Outcome {
    let keepers = Keepers::start()?;
    let child = kit::again(&["neighbour"], &[])?;
    kit::succeeds("the neighbour", &child)?;
    refused("a sleep beyond the limit", time::sleep(MS), TransportError::NoSpace)?;
    keepers.end()
}

/// Roles `hog` and `leave`: takes all sleeps that it may have, and waits, or ends with all of them under
/// way.
fn hog(is_leaving: bool) -> i64 {
    let Ok(_keepers) = Keepers::start() else { return 1 };
    if is_leaving {
        let me: rt::Result<rt::ProcessHandle> = caps::get("self");
        let _ = me.and_then(|me| me.kill());
        return 1;
    }
    loop {
        thread::yield_now();
    }
}

fn ends() -> Outcome {
    let mut before = Usage::now()?;
    for round in 0..4 {
        let hog = kit::again(&["hog"], &[])?;
        time::sleep(30 * MS)?;
        hog.handle.kill().doing("kill")?;
        let exit = hog.wait().doing("wait")?;
        ensure!(exit.reason == ExitReason::Killed, "the hog: {exit}");
        let leaver = kit::again(&["leave"], &[])?;
        let exit = leaver.wait().doing("wait")?;
        ensure!(exit.reason == ExitReason::Killed, "the leaver: {exit}");
        drop((hog, leaver));
        time::sleep(MS)?;
        if round == 1 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after processes full of sleeps")
}

fn flood() -> Outcome {
    let mut threads = Vec::new();
    for seed in 0..9 {
        let work = move || -> Outcome<u64> {
            let timer: Timer = caps::any()?;
            let mut random = Random::new(seed);
            let mut ended = 0;
            for _ in 0..12 {
                let batch = (0..PER_THREAD).map(|_| {
                    let ns = random.below(2 * MS);
                    Ok((time::now_ns()? + ns, timer.sleep_start(ns)?))
                });
                let batch: Vec<(u64, Pending<()>)> = batch.collect::<rt::Result<_>>()?;
                for (due, sleep) in batch {
                    sleep.wait().doing("a sleep of the flood")?;
                    let now = time::now_ns()?;
                    ensure!(now >= due, "a sleep ended {} ns early", due - now);
                    ended += 1;
                }
            }
            Ok(ended)
        };
        threads.push(Builder::new().spawn(work).doing("spawn")?);
    }
    let mut ended = 0;
    for thread in threads {
        ended += thread.join()??;
    }
    ensure!(ended == 9 * 12 * PER_THREAD as u64, "{ended} sleeps ended");
    println!("    {ended} sleeps, {} at a time", 9 * PER_THREAD);
    Ok(())
}
