//! Fork storms beside a hog: a thousand new threads at once; threads each of which starts the next and ends; and short threads that another thread
//! starts one after the other. The hog waits no longer than the bound, and gets its share (F-10, F-15).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use programs::ensure;
use programs::fair::{self, Hogs, Kind, QUANTUM_NS};
use programs::kit::MS;
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::Scale;
use rt::abi::LatencyClass;
use rt::thread::{self, Builder};
use rt::{ParkSpace, caps, println, time};

rt::main!(run);

/// Threads of the storm; a process may have 1,024.
const STORM: usize = 1_000;
/// CPU time of each: eight slices, so that nearly all exist at once, and a scheduler that let new threads go first until they end would be noticed.
const RUN_NS: u64 = 25 * MS;

fn run() -> i64 {
    prove("fair-fork-storm", || {
        ensure!(rt::boot_info().cpus == 1, "the bounds of this proof are of one CPU: CPUS=1");
        let scale = Scale::measure()?;
        step("a thousand new threads beside a hog (F-15)", || storm(scale))?;
        step("threads that make the next and end (F-15)", || chain(scale))?;
        step("short threads of a light maker (F-10, F-15)", || {
            light_maker("light-maker", Kind::PLAIN, Kind::class(LatencyClass::Interactive), 1_440_000, scale)
        })?;
        step("the same, beside a batch hog", || {
            light_maker("light-maker-batch", Kind::class(LatencyClass::Batch), Kind::PLAIN, 2_700_000, scale)
        })
    })
}

static ENDED: AtomicU32 = AtomicU32::new(0);
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

fn storm(scale: Scale) -> Outcome {
    const SCENARIO: &str = "fair-fork-storm";
    let hogs = Hogs::start(&[Kind::PLAIN], scale)?;
    hogs.go()?;
    time::sleep(500 * MS).doing("sleep")?;
    let before = hogs.look()?;
    let mut threads = Vec::new();
    for _ in 0..STORM {
        let run = move || {
            fair::compute(RUN_NS, scale);
            ENDED.fetch_add(1, Ordering::AcqRel);
            fair::own_runtime_ns().map(|ns| SPENT_NS.fetch_add(ns, Ordering::AcqRel))
        };
        threads.push(Builder::new().stack_bytes(8192).spawn(run).doing("start a thread of the storm")?);
    }
    let made = hogs.look()?.since(&before).at_ns;
    for thread in threads {
        thread.join().doing("join")??;
    }
    let got = hogs.look()?.since(&before);
    let hog = hogs.stop()?[0];
    ensure!(
        ENDED.load(Ordering::Acquire) as usize == STORM,
        "{} of {STORM} ended",
        ENDED.load(Ordering::Acquire)
    );
    let spent = SPENT_NS.load(Ordering::Acquire);
    println!(
        "    made in {} ms, over after {} ms; the hog got {} ppm, the storm {} ppm; the hog waited {} us at most",
        made / MS,
        got.at_ns / MS,
        got.share_ppm(0),
        fair::ppm(spent, got.at_ns),
        hog.longest_ns / 1000
    );
    fair::say_share(SCENARIO, "hog", got.share_ppm(0));
    // Every new thread enters at the current virtual time: at worst the hog has just had a slice, and waits for one slice of each of them and of
    // their parent.
    let round = (STORM as u64 + 3) * QUANTUM_NS;
    println!(
        "    each took {} us of CPU time; one round of all is {} us",
        spent / STORM as u64 / 1000,
        round / 1000
    );
    ensure!(spent >= 2 * STORM as u64 * QUANTUM_NS, "the storm took {spent} ns only: the bound says nothing");
    ensure!(hog.longest_ns <= round, "the hog waited {} ns, a round is {round} ns", hog.longest_ns);
    let others: Vec<Kind> = (0..=STORM).map(|_| Kind::PLAIN).collect();
    let bound = fair::starvation_bound_ns(&others, Kind::PLAIN);
    ensure!(hog.longest_ns <= bound, "the hog waited {} ns, the bound is {bound} ns", hog.longest_ns);
    thread::trim();
    Ok(())
}

/// Links of the chain that are still to be started.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// 1 when the chain is over, 2 if it broke.
static OVER: AtomicU32 = AtomicU32::new(0);

/// One link of the chain: computes, starts the next link, ends.
fn link(scale: Scale) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        fair::compute(2 * MS, scale);
        let over = match LEFT.fetch_sub(1, Ordering::AcqRel) {
            1 => 1,
            // No thread joins it; its stack is reused by later ones.
            _ => match Builder::new().stack_bytes(8192).spawn(link(scale)) {
                Ok(next) => {
                    drop(next);
                    return;
                }
                Err(error) => {
                    println!("    the chain broke: {error}");
                    2
                }
            },
        };
        OVER.store(over, Ordering::Release);
        let _ = caps::any::<ParkSpace>().map(|space| space.unpark(&OVER, u32::MAX));
    })
}

fn chain(scale: Scale) -> Outcome {
    const SCENARIO: &str = "fair-fork-chain";
    const LINKS: u32 = 300;
    let hogs = Hogs::start(&[Kind::PLAIN], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    LEFT.store(LINKS, Ordering::Release);
    let before = hogs.look()?;
    drop(Builder::new().stack_bytes(8192).spawn(link(scale)).doing("start the chain")?);
    fair::wait_for(&OVER)?;
    ensure!(OVER.load(Ordering::Acquire) == 1, "the chain broke");
    let got = hogs.look()?.since(&before);
    let hog = hogs.stop()?[0];
    println!(
        "    {LINKS} links took {} ms; the hog got {} ppm and waited {} us at most",
        got.at_ns / MS,
        got.share_ppm(0),
        hog.longest_ns / 1000
    );
    fair::say_share(SCENARIO, "hog", got.share_ppm(0));
    // A chain is one thread at a time, and is charged like one: half of the CPU each, less the cost of creating threads.
    ensure!(got.share_ppm(0) >= 470_000, "beside the chain the hog got {} ppm", got.share_ppm(0));
    // Two threads at a time, while one starts the next.
    let bound = fair::starvation_bound_ns(&[Kind::PLAIN; 2], Kind::PLAIN);
    ensure!(hog.longest_ns <= bound, "the hog waited {} ns, the bound is {bound} ns", hog.longest_ns);
    thread::trim();
    Ok(())
}

/// A parent that hardly runs itself starts a thread, joins it, and starts the next, beside one hog. None of the threads has a debt when it begins,
/// and each ends before it has caught up with the hog's slice: the hog gets its half only if the virtual clock remembers the time of the ended
/// threads.
fn light_maker(scenario: &str, hog: Kind, short: Kind, run_ns: u64, scale: Scale) -> Outcome {
    const THREADS: u64 = 500;
    let hogs = Hogs::start(&[hog], scale)?;
    hogs.go()?;
    time::sleep(100 * MS).doing("sleep")?;
    let before = hogs.look()?;
    let make = move || -> Outcome<u64> {
        short.take_on()?; // inherited by the threads that it starts
        let mut spent = 0;
        for _ in 0..THREADS {
            let run = move || {
                fair::compute(run_ns, scale);
                fair::own_runtime_ns()
            };
            let thread = Builder::new().stack_bytes(8192).spawn(run).doing("start a short thread")?;
            spent += thread.join().doing("join")??;
        }
        Ok(spent)
    };
    let spent = Builder::new().spawn(make).doing("start the maker")?.join().doing("join the maker")??;
    let got = hogs.look()?.since(&before);
    let ran = hogs.stop()?[0];
    println!(
        "    {THREADS} threads of {} us took {} ms; they got {} ppm, the hog {} ppm; it waited {} us at most",
        run_ns / 1000,
        got.at_ns / MS,
        fair::ppm(spent, got.at_ns),
        got.share_ppm(0),
        ran.longest_ns / 1000
    );
    fair::say_share(scenario, "hog", got.share_ppm(0));
    ensure!(spent >= THREADS * run_ns, "the short threads took {spent} ns only");
    ensure!(got.share_ppm(0) >= 470_000, "beside short threads the hog got {} ppm", got.share_ppm(0));
    // One of the short threads, and their parent; and the weight of the hog itself slows down the virtual clock that stops them.
    let bound = fair::starvation_bound_ns(&[short, short, hog], hog);
    ensure!(ran.longest_ns <= bound, "the hog waited {} ns, the bound is {bound} ns", ran.longest_ns);
    thread::trim();
    Ok(())
}
