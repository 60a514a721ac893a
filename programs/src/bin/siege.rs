//! The siege (issue "the kernel keeps its promises"; K-21, K-26, K-29, K-31, S-13, S-16): every known attack, mixed by a seed, for as long as one
//! likes, beside a victim whose results must stay exact and threads that were promised time. Afterwards everything is back: processes, frames, the
//! kernel's heap, contexts, and the time of every CPU.
//!
//! Arguments: seconds (1), seed (1). Where instructions are counted, shares, deadlines and lateness are judged, too (on several CPUs with the boot
//! option `turns=1`); where time is counted, they are only shown.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use programs::contexts::new_context;
use programs::ensure;
use programs::fuzz::STATS_BYTES;
use programs::kit::{self, MS};
use programs::machine::{Before, nap, ordinary, warm_up};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use programs::siege::guard::{self, Guarded, HIGHEST_BAND, Shared};
use programs::siege::{ATTACKS, PROCESSES_MAX, THREADS_MAX, role};
use programs::victim::Watch;
use programs::{ticks, turns};
use rt::abi::rights;
use rt::{
    Child, Client, Endpoint, Factory, Fallback, MemoryObject, ProcessSpawner, Spec, args, caps, println, time,
};

rt::main!(run);

const SECONDS: u64 = 1;
/// How many attacks run at a time.
const TOGETHER: usize = 3;
/// How long each attack lasts.
const LIFE_NS: core::ops::Range<u64> = 10 * MS..120 * MS;
/// The supervisor's own context, so that hogs cannot keep it from killing them.
const OWN: Spec = Spec::new(10 * MS, 100 * MS).criticality(HIGHEST_BAND - 1);
/// How much of every CPU must be free afterwards.
const FREE_AFTER: Spec = Spec::new(90 * MS, 100 * MS);
/// Records of contexts for those that were revoked, or are about to be refused.
const SPARE_RECORDS: usize = 64;
/// One more kind of attack: the entries of the fuzzer.
const GARBAGE: &str = "garbage";

fn run() -> i64 {
    let mut words = args::args();
    match words.next() {
        Some("nap") => nap(),
        Some("guarded") => told("guarded", guard::run(words.next())),
        Some("attack") => {
            let name = words.next().unwrap_or("none");
            // Whatever was refused: this is an attack, and its success does not matter.
            let _ = role(name, args::number(2, 1).unwrap_or(1));
            0
        }
        _ => prove("siege", || {
            let seconds = args::number(0, SECONDS).doing("the seconds are no number")?;
            let seed = args::number(1, 1).doing("the seed is no number")?;
            siege(seconds * 1000 * MS, seed)
        }),
    }
}

fn told(who: &str, done: Outcome) -> i64 {
    match done {
        Ok(()) => 0,
        Err(Failure(why)) => {
            println!("siege {who}: {why}");
            1
        }
    }
}

fn siege(length_ns: u64, seed: u64) -> Outcome {
    // With several CPUs only if they take short turns: see `programs::turns`.
    let instruction = if ticks::is_counted() { turns::instruction().ok() } else { None };
    let judged = if instruction.is_some() { "judged" } else { "shown" };
    println!(
        "siege: {} CPUs, {} ms, seed {seed}; shares and lateness are {judged}",
        rt::boot_info().cpus,
        length_ns / MS
    );
    warm_up(THREADS_MAX * TOGETHER + 40, "siege", PROCESSES_MAX * TOGETHER)?;
    warm_up_contexts();
    let mut siege = Siege::new(seed)?;
    let shared = Shared::new()?;
    let own = new_context(&OWN)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    step("the first attacks, for the kernel's tables", || siege.all_once())?;
    let before = Before::take()?;
    let victim = Watch::start_steady()?;
    let guarded = Guarded::start(&shared, instruction.is_some())?;
    let too_long = kit::counter("interrupts_off_over_50k")?;
    let held = step("every attack, beside the guarded and a victim", || {
        siege.until(time::now_ns()? + length_ns, || guarded.have_their_due(instruction))?;
        let is_short = instruction.is_none() || kit::counter("interrupts_off_over_50k")? == too_long;
        ensure!(is_short, "interrupts waited for more than 50,000 instructions (K-26)");
        Ok(())
    });
    let longest = (kit::counter("interrupts_off_max")?, kit::counter("interrupts_off_path")?);
    println!("    interrupts waited for {} instructions at most so far, path {}", longest.0, longest.1);
    siege.show();
    guarded.show()?;
    held?;
    step("killing always ends (K-29, K-31)", || siege.end())?;
    step("the victim is exact", || victim.goes_on(3))?;
    victim.finish()?;
    guarded.finish()?;
    step("nothing is left of it", || {
        let is_alone = || Ok(kit::system()?.contexts().doing("contexts")?.len() == 1);
        kit::wait_until("contexts are left", is_alone)?;
        before.check("after the siege")
    })?;
    let _ = own.unbind()?;
    drop(own);
    step("the time of every CPU is free again (S-13)", || {
        (0..rt::boot_info().cpus).try_for_each(|cpu| {
            kit::wait_until("a CPU's time", || Ok(new_context(&FREE_AFTER.cpus([cpu])).is_ok()))
        })
    })
}

/// Makes the kernel's table of contexts as large as it will get, because records stay. There are more records than contexts that may live at once: a
/// revoked context has its record for as long as a capability names it, and a context that will be refused has one during the admission test.
fn warm_up_contexts() {
    let mut all = Vec::new();
    for spare in [SPARE_RECORDS, 0] {
        while let Ok(context) = new_context(&Spec::new(20_000, 60_000 * MS)) {
            all.push(context);
        }
        for context in all.iter().take(spare) {
            let _ = context.revoke();
        }
    }
}

struct Running {
    child: Child,
    name: &'static str,
    until_ns: u64,
}

struct Siege {
    random: Random,
    running: Vec<Running>,
    /// How often each attack was started; `refused` is how often there was no room for one.
    started: [u64; ATTACKS.len() + 1],
    refused: u64,
    shared: MemoryObject,
    /// The processes that send garbage reach each other through this endpoint. It is a new one each time, because queues keep the size that they once
    /// had.
    peer: Option<Endpoint>,
}

impl Siege {
    fn new(seed: u64) -> Outcome<Siege> {
        let factory: Factory = caps::any()?;
        Ok(Siege {
            random: Random::new(seed),
            running: Vec::with_capacity(TOGETHER),
            started: [0; ATTACKS.len() + 1],
            refused: 0,
            shared: factory.memory_object(STATS_BYTES as u64).doing("a memory object")?,
            peer: None,
        })
    }

    /// Runs each attack once, alone.
    fn all_once(&mut self) -> Outcome {
        for kind in 0..=ATTACKS.len() {
            self.start(kind, 30 * MS)?;
            self.end()?;
        }
        Ok(())
    }

    /// Runs attacks until `end_ns`, and calls `look` now and then.
    fn until(&mut self, end_ns: u64, mut look: impl FnMut() -> Outcome) -> Outcome {
        let (mut said_ns, start_ns) = (time::now_ns()?, time::now_ns()?);
        while time::now_ns()? < end_ns {
            while self.running.len() < TOGETHER {
                let kind = self.random.below(ATTACKS.len() as u64 + 1) as usize;
                let life_ns = LIFE_NS.start + self.random.below(LIFE_NS.end - LIFE_NS.start);
                self.start(kind, life_ns)?;
            }
            time::sleep(2 * MS)?;
            let now = time::now_ns()?;
            while let Some(at) = self.running.iter().position(|running| running.until_ns <= now) {
                let over = self.running.swap_remove(at);
                self.kill(&over)?;
            }
            look().map_err(|Failure(why)| {
                let names: Vec<_> = self.running.iter().map(|running| running.name).collect();
                let after_ms = (now - start_ns) / MS;
                Failure::new(format_args!(
                    "{after_ms} ms after the start, beside {}: {why}",
                    names.join(", ")
                ))
            })?;
            if now - said_ns > 60_000 * MS {
                said_ns = now;
                println!("    {} attacks so far", self.started.iter().sum::<u64>());
            }
        }
        Ok(())
    }

    /// Starts an attack; if there is no memory or no process left for it, that is only counted.
    fn start(&mut self, kind: usize, life_ns: u64) -> Outcome {
        let name = ATTACKS.get(kind).map_or(GARBAGE, |(name, _)| name);
        let seed = alloc::format!("{}", self.random.below(1 << 40));
        let spawner: ProcessSpawner = caps::any()?;
        let made = if name == GARBAGE {
            let peer = match self.peer.take() {
                Some(peer) => peer,
                None => caps::any::<Factory>()?.endpoint().doing("an endpoint")?,
            };
            let peer = self.peer.insert(peer);
            ordinary("fuzz", "garbage")
                .arg("child")
                .arg("0")
                .arg(&seed)
                .arg("1000000")
                .arg("2")
                .grant("stats", self.shared.cap(), rights::CALL | rights::WRITE, 0)
                .grant("peer", peer.cap(), rights::CALL | rights::RECV | rights::GRANT, 0)
                .spawn(&spawner)
        } else {
            ordinary("siege", name).arg("attack").arg(name).arg(&seed).spawn(&spawner)
        };
        match made {
            Ok(child) => {
                self.started[kind] += 1;
                self.running.push(Running { child, name, until_ns: time::now_ns()? + life_ns });
            }
            Err(_) => {
                self.refused += 1;
                time::sleep(MS)?;
            }
        }
        Ok(())
    }

    fn kill(&self, over: &Running) -> Outcome {
        let mut end = over.child.handle.wait_start().doing("wait")?;
        // The attack may have ended by itself.
        let _ = over.child.handle.kill();
        ensure!(
            kit::patiently(|ns| end.wait_timeout(ns)).is_some(),
            "{}: killed, and lives: {:?}",
            over.name,
            over.child.handle.info()
        );
        Ok(())
    }

    /// Kills the attacks that still run, when their time has come.
    fn end(&mut self) -> Outcome {
        while let Some(over) = self.running.pop() {
            let now = time::now_ns()?;
            time::sleep(over.until_ns.saturating_sub(now))?;
            self.kill(&over)?;
        }
        self.peer = None;
        Ok(())
    }

    fn show(&self) {
        let names = ATTACKS.iter().map(|(name, _)| *name).chain([GARBAGE]);
        let list: Vec<_> =
            names.zip(&self.started).map(|(name, count)| alloc::format!("{name} {count}")).collect();
        println!("    attacks: {}; no room for {}", list.join(", "), self.refused);
    }
}
