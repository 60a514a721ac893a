//! Proof that nothing a program sends can harm the kernel or another program (K-11, K-21): unprivileged processes send random entries,
//! pointers, messages, indices and system calls, on all CPUs, beside a victim whose results must stay exact.
//!
//! Arguments: how many entries (a million), the seed (1), the proof's name. A process that has died or got stuck is started again.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use programs::ensure;
use programs::fuzz::{CHILDREN_MAX, STATS_BYTES, Stats, child, contexts};
use programs::machine::{Before, MS, command, nap, warm_up};
use programs::proof::{Doing, Outcome, prove, step};
use programs::random::Random;
use programs::victim::Watch;
use rt::abi::rights;
use rt::clients::Child;
use rt::{
    Client, Endpoint, Exit, ExitReason, Factory, MemoryObject, Pending, ProcessSpawner, args, caps, println,
    time,
};

rt::main!(run);

const ENTRIES: u64 = 1_000_000;
/// At least one of so many entries creates a context.
const CONTEXT_EVERY: u64 = 2_000;
/// The most entries of one process's life.
const LIFE: u64 = 40_000;
/// A process without progress for this long is stuck.
const STUCK_NS: u64 = 2_000 * MS;
/// How many processes run at a time.
const TOGETHER: usize = 2;

fn run() -> i64 {
    match args::args().next() {
        Some("child") => child::run(),
        Some("leaf") => 0,
        Some("nap") => nap(),
        _ => prove(args::args().nth(2).unwrap_or("fuzz"), || {
            let entries = args::number(0, ENTRIES).doing("the number of entries is no number")?;
            let seed = args::number(1, 1).doing("the seed is no number")?;
            println!("fuzz: {} CPUs, {entries} entries, seed {seed}", rt::boot_info().cpus);
            let mut fuzz = Fuzz::new(seed)?;
            warm_up(200, "fuzz", 32)?;
            contexts::warm_up()?;
            step("the first entries, for the kernel's tables", || fuzz.until(entries / 8))?;
            let before = Before::take()?;
            let victim = Watch::start()?;
            let start = time::now_ns()?;
            let (first, first_context) = (fuzz.stats.total(), contexts::made()?);
            step("random entries, pointers, messages, system calls (K-21)", || fuzz.until(entries))?;
            let (sent, took) = (fuzz.stats.total() - first, (time::now_ns()? - start) / MS);
            println!("    {sent} entries in {took} ms, {} a second", sent * 1000 / took.max(1));
            fuzz.show();
            let made = contexts::made()? - first_context;
            println!("    {made} contexts were made");
            ensure!(made > sent / CONTEXT_EVERY, "the fuzzers made too few contexts to try anything with");
            step("the victim is exact", || victim.goes_on(3))?;
            victim.finish()?;
            step("nothing is lost", || before.check("after the fuzzing"))?;
            let missing = fuzz.stats.missing();
            ensure!(missing.is_empty(), "never reached:{missing}");
            ensure!(fuzz.stats.total() >= entries, "only {} entries", fuzz.stats.total());
            println!("  every operation and every error was reached (K-11, K-21): ok");
            Ok(())
        }),
    }
}

struct Running {
    child: Child,
    end: Pending<Exit>,
    number: usize,
    entries: u64,
    since_ns: u64,
}

struct Fuzz {
    stats: &'static Stats,
    shared: MemoryObject,
    random: Random,
    running: Vec<Running>,
    started: u64,
    stuck: u64,
    killed: u64,
    faulted: u64,
}

impl Fuzz {
    fn new(seed: u64) -> Outcome<Fuzz> {
        let factory: Factory = caps::any()?;
        let shared = factory.memory_object(STATS_BYTES as u64).doing("a memory object")?;
        let at = shared.map(None, 0, STATS_BYTES, true).doing("map it")?;
        // SAFETY: mapped for as long as this process lives; only atomics, and every pattern of bits is a number.
        let stats: &'static Stats = unsafe { &*(at as *const Stats) };
        let running = Vec::with_capacity(CHILDREN_MAX);
        let random = Random::new(seed);
        Ok(Fuzz { stats, shared, random, running, started: 0, stuck: 0, killed: 0, faulted: 0 })
    }

    /// Keeps processes at work until `goal` entries have been taken, then ends them.
    fn until(&mut self, goal: u64) -> Outcome {
        // The processes reach each other through this endpoint. It is a new one each time, because queues keep the size that they once
        // had.
        let peer = caps::any::<Factory>()?.endpoint().doing("an endpoint")?;
        let mut line = self.stats.total();
        let piece = (goal - line.min(goal)) / 4;
        while self.stats.total() < goal {
            while self.running.len() < TOGETHER {
                self.start(&peer)?;
            }
            time::sleep(5 * MS).doing("sleep")?;
            self.look()?;
            if piece > 0 && self.stats.total() >= line + piece {
                line = self.stats.total();
                println!("    {line} entries, {} processes, {} stuck", self.started, self.stuck);
            }
        }
        for running in self.running.drain(..) {
            // The process may have ended by itself.
            let _ = running.child.handle.kill();
            running.end.wait().doing("wait for a process")?;
        }
        Ok(())
    }

    fn start(&mut self, peer: &Endpoint) -> Outcome {
        let number =
            (0..TOGETHER).find(|number| self.running.iter().all(|r| r.number != *number)).unwrap_or(0);
        let cpus = rt::boot_info().cpus as usize;
        let threads = cpus.div_ceil(TOGETHER).max(2);
        let seed = self.random.word() >> 1;
        let child = command("fuzz", "fuzzer")
            .arg("child")
            .arg(&alloc::format!("{number}"))
            .arg(&alloc::format!("{seed}"))
            .arg(&alloc::format!("{LIFE}"))
            .arg(&alloc::format!("{threads}"))
            .grant("stats", self.shared.cap(), rights::CALL | rights::WRITE, 0)
            .grant("peer", peer.cap(), rights::CALL | rights::RECV | rights::GRANT, 0)
            .spawn(&caps::any::<ProcessSpawner>()?)
            .doing("start a process")?;
        let end = child.handle.wait_start().doing("wait")?;
        self.started += 1;
        let entries = self.stats.entries[number].load(Ordering::Relaxed);
        self.running.push(Running { child, end, number, entries, since_ns: time::now_ns()? });
        Ok(())
    }

    /// Removes processes that have ended, and kills those that are stuck.
    fn look(&mut self) -> Outcome {
        let now = time::now_ns()?;
        let mut at = 0;
        while at < self.running.len() {
            let running = &mut self.running[at];
            if let Some(exit) = running.end.poll() {
                let exit = exit.doing("wait for a process")?;
                self.killed += u64::from(exit.reason == ExitReason::Killed);
                self.faulted += u64::from(exit.reason == ExitReason::Faulted);
                self.running.swap_remove(at);
                continue;
            }
            let entries = self.stats.entries[running.number].load(Ordering::Relaxed);
            if entries != running.entries {
                (running.entries, running.since_ns) = (entries, now);
            } else if now - running.since_ns > STUCK_NS {
                self.stuck += 1;
                running.since_ns = now;
                let _ = running.child.handle.kill();
            }
            at += 1;
        }
        Ok(())
    }

    fn show(&self) {
        println!(
            "    {} entries by {} processes: {} were killed, {} faulted, {} were stuck",
            self.stats.total(),
            self.started,
            self.killed,
            self.faulted,
            self.stuck
        );
        self.stats.show();
    }
}
