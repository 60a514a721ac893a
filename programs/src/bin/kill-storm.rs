//! Proof that a process can be killed at any moment: while its threads run, park, sleep, call, receive, join, start threads, map memory and start
//! processes. Afterwards nothing is left of it (K-05, K-08, K-17), and a victim has not noticed.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::Continue;
use core::sync::atomic::{AtomicU32, Ordering};

use programs::machine::{Before, MS, command, nap, warm_up};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use programs::victim::Watch;
use programs::{ensure, kit, ticks};
use rt::abi::rights;
use rt::clients::Child;
use rt::{
    Client, Endpoint, ExitReason, Factory, ProcessSpawner, SchedulingPolicy, ThreadControl, args, caps,
    println, thread, time, vm,
};

rt::main!(run);

/// Number of rounds, unless the first argument says otherwise; the second is the seed.
const ROUNDS: u64 = 60;
/// Rounds before the frames are counted.
const WARM_UP: u64 = 6;
/// Processes that are killed together.
const TOGETHER: u64 = 4;
/// Longest life of a process.
const LIFE_NS: u64 = 30 * MS;

fn run() -> i64 {
    match args::args().next() {
        Some("child") => child(args::number(1, 0).unwrap_or(0)),
        Some("nap") => nap(),
        Some("leaf") => leaf(args::number(1, 0).unwrap_or(0)),
        Some("crowd") => i64::from(crowd().is_err()),
        _ => prove("kill-storm", || {
            let rounds = args::number(0, ROUNDS).doing("the number of rounds is no number")?;
            let seed = args::number(1, 1).doing("the seed is no number")?;
            let mut storm = Storm { random: Random::new(seed), kills: 0, early: 0, by_itself: 0 };
            println!("kill-storm: {} CPUs, {rounds} rounds, seed {seed}", rt::boot_info().cpus);
            warm_up(160, "kill-storm", 32)?;
            step("the first rounds, for the kernel's tables", || storm.rounds(WARM_UP))?;
            let before = Before::take()?;
            let victim = Watch::start()?;
            let start = time::now_ns()?;
            step("processes are killed with threads in every state (K-08)", || storm.rounds(rounds))?;
            println!(
                "    {} kills, {} of them before the first instruction, {} processes died by themselves; {} ms",
                storm.kills,
                storm.early,
                storm.by_itself,
                (time::now_ns()? - start) / MS
            );
            step("a low weight keeps nobody from ending (K-29)", slow_ones_end)?;
            step("the victim is exact", || victim.goes_on(3))?;
            victim.finish()?;
            step("nothing is left of them (K-05, K-17)", || before.check("after the storm"))?;
            println!(
                "    {} exits checked, {} completions found nobody",
                before.counter("exits_checked")?,
                before.counter("stale_completions")?
            );
            Ok(())
        }),
    }
}

struct Storm {
    random: Random,
    kills: u64,
    early: u64,
    by_itself: u64,
}

impl Storm {
    fn rounds(&mut self, count: u64) -> Outcome {
        (0..count).try_for_each(|round| self.round().doing(&alloc::format!("round {round}")))
    }

    fn round(&mut self) -> Result<(), alloc::string::String> {
        self.storm().map_err(|Failure(why)| why)
    }

    fn storm(&mut self) -> Outcome {
        let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
        // An endpoint without a server, and one that this process serves for a while.
        let deaf = factory.endpoint().doing("make an endpoint")?;
        let served = Arc::new(factory.endpoint().doing("make an endpoint")?);
        let server = {
            let served = Arc::clone(&served);
            thread::Builder::new().spawn(move || serve(&served)).doing("spawn")?
        };
        let mut children: Vec<(Child, u64)> = Vec::new();
        for _ in 0..TOGETHER {
            let seed = self.random.word() >> 1;
            let child = command("kill-storm", "storm")
                .arg("child")
                .arg(&alloc::format!("{seed}"))
                .grant("deaf", deaf.cap(), rights::ALL, 0)
                .grant("served", served.cap(), rights::CALL | rights::GRANT, 0)
                .spawn(&spawner)
                .doing("start a child")?;
            // Some are killed before they have run, most while they are busy.
            let life = if self.random.below(8) == 0 { 0 } else { self.random.below(LIFE_NS) };
            if life == 0 {
                child.handle.kill().doing("kill")?;
                self.early += 1;
            }
            children.push((child, life));
        }
        children.sort_by_key(|(_, life)| *life);
        let mut waited = 0;
        for (child, life) in &children {
            if *life > waited {
                time::sleep(*life - waited).doing("sleep")?;
                waited = *life;
            }
            // The second time the process is ending or has ended: both must be reported, and have no effect.
            let first = child.handle.kill();
            let _ = child.handle.kill();
            self.kills += u64::from(first.is_ok());
        }
        for (child, _) in &children {
            let mut end = child.handle.wait_start().doing("wait")?;
            let exit = kit::patiently(|ns| end.wait_timeout(ns));
            ensure!(exit.is_some(), "pid {} does not end: {:?}", child.pid, child.handle.info());
            let exit = exit.unwrap_or(Err(rt::Error::BadReply)).doing("wait")?;
            self.by_itself += u64::from(exit.reason != ExitReason::Killed);
            let info = child.handle.info().doing("info")?;
            ensure!(info.threads == 0, "pid {} has ended with {} threads", child.pid, info.threads);
        }
        served.call(QUIT, [0; 2]).doing("end the server")?;
        server.join()?.doing("serve")
    }
}

// ---- a low weight ---------------------------------------------------------------------------------------------------------

/// Threads of the lowest weight, every other one asleep, and threads of the default weight that share a CPU with them.
const SLOW: usize = 8;
const HOGS: usize = 50;
/// The slice of a thread (docs/scheduling.md).
const SLICE_NS: u64 = 3 * MS;
/// The longest that the killed process may take. A thread of the default weight that has just run is ahead of the others by its slice at most, and
/// queues by the end of its next one. So every thread has run twice before it does, and once more for the work that it does in pieces. At the lowest
/// weight it would take 64 times as long.
const END_NS: u64 = 3 * (SLOW + HOGS) as u64 * SLICE_NS;

/// A process of threads of weight 1 beside many of the default weight is killed, and ends as soon as one of the default weight would.
fn slow_ones_end() -> Outcome {
    let cpus = rt::boot_info().cpus;
    let control: ThreadControl = caps::any()?;
    let all = ((1u32 << cpus) - 1) as u8;
    // Where there is another CPU, the watching thread stays out of the way.
    let others = if cpus == 1 { all } else { all >> 1 };
    control.set_affinity(&[others]).doing("leave the crowd's CPU")?;
    let slow = start_crowd(SLOW, 1)?;
    let hogs = start_crowd(HOGS, 64)?;
    let before = time::now_ns()?;
    let mut end = slow.handle.wait_start().doing("wait")?;
    slow.handle.kill().doing("kill")?;
    let exit = end.wait_timeout(20 * END_NS);
    let took = time::now_ns()? - before;
    hogs.handle.kill().doing("kill the hogs")?;
    hogs.wait().doing("wait for the hogs")?;
    control.set_affinity(&[all]).doing("run anywhere")?;
    println!(
        "    {SLOW} threads of weight 1 beside {HOGS} of 64 ended in {} us, of {}",
        took / 1000,
        END_NS / 1000
    );
    ensure!(exit.is_some(), "killed, and lives: {:?}", slow.handle.info());
    // A busy host makes slices last longer.
    ensure!(!ticks::is_counted() || took <= END_NS, "they ended in {took} ns, not in {END_NS}");
    Ok(())
}

/// Starts threads of this weight on the last CPU, and waits until each has run for a while.
fn start_crowd(threads: usize, weight: u32) -> Outcome<Child> {
    let (count, chosen) = (alloc::format!("{threads}"), alloc::format!("{weight}"));
    let crowd = command("kill-storm", "crowd").arg("crowd").arg(&count).arg(&chosen);
    let crowd = crowd.spawn(&caps::any::<ProcessSpawner>()?).doing("start a crowd")?;
    let cpu = rt::boot_info().cpus - 1;
    kit::wait_until("a crowd should run", || {
        let all = kit::system()?.threads().doing("threads")?;
        let ready = all.iter().filter(|it| {
            (it.pid, it.cpu, it.weight) == (crowd.pid, cpu, weight) && it.runtime_ns >= CROWD_RUNS_NS
        });
        Ok(ready.count() == threads)
    })?;
    Ok(crowd)
}

/// How long a thread of a crowd must have run before it counts.
const CROWD_RUNS_NS: u64 = MS;

/// Role `crowd`: so many threads of such a weight. All compute, but every other one of the lowest weight sleeps afterwards.
fn crowd() -> Outcome {
    let (threads, weight) = (args::number(1, 1).doing("threads")?, args::number(2, 64).doing("weight")?);
    let cpu = rt::boot_info().cpus - 1;
    caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
    caps::any::<SchedulingPolicy>()?.set_weight(weight as u16)?;
    let run = move |at: u64| -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
        if weight == 1 && at % 2 == 1 {
            let policy = caps::any::<SchedulingPolicy>()?;
            while policy.snapshot()?.runtime_ns < 2 * CROWD_RUNS_NS {}
            time::sleep(3600 * 1000 * MS)?;
        }
        loop {
            core::hint::spin_loop();
        }
    };
    for at in 1..threads {
        let _ = thread::Builder::new().stack_bytes(16 << 10).spawn(move || run(at)).doing("spawn")?;
    }
    run(0)
}

const QUIT: u16 = 99;

/// Answers every second call late and the others at once, until it is told to quit.
fn serve(endpoint: &Endpoint) -> rt::Result<()> {
    let mut count = 0_u64;
    endpoint.serve(|call| {
        count += 1;
        if call.method == QUIT {
            return core::ops::ControlFlow::Break([0; 2]);
        }
        if count.is_multiple_of(2) {
            // The caller may be gone when this sleep is over.
            let _ = time::sleep(MS);
        }
        Continue([count, 0])
    })
}

// ---- those who are killed -------------------------------------------------------------------------------------------------

/// The body of a thread.
type Work = fn(&Shared);

/// What threads of a child do for ever.
const STATES: [(&str, Work); 14] = [
    ("runs", spin),
    ("yields", yields),
    ("parks", park),
    ("parks for a while", park_shortly),
    ("wakes", unpark),
    ("sleeps", sleep),
    ("sleeps shortly", sleep_shortly),
    ("calls the deaf", call_deaf),
    ("calls the server", call_served),
    ("receives", receive),
    ("calls a sibling", call_sibling),
    ("joins", join),
    ("makes threads", make_threads),
    ("maps", map),
];

/// What threads of a child share.
struct Shared {
    word: AtomicU32,
    deaf: Endpoint,
    served: Endpoint,
    own: Endpoint,
}

fn child(seed: u64) -> i64 {
    match begin(seed) {
        Ok(()) => 0,
        Err(Failure(why)) => {
            println!("storm child: {why}");
            1
        }
    }
}

fn begin(seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let shared = Arc::new(Shared {
        word: AtomicU32::new(0),
        deaf: caps::get("deaf")?,
        served: caps::get("served")?,
        own: caps::any::<Factory>()?.endpoint().doing("make an endpoint")?,
    });
    // All states, beginning with a random one, so that early kills do not always hit the same.
    let first = random.below(STATES.len() as u64) as usize;
    for at in 0..STATES.len() {
        let (_, work) = STATES[(first + at) % STATES.len()];
        let shared = Arc::clone(&shared);
        let _ = thread::Builder::new().stack_bytes(16 << 10).spawn(move || work(&shared)).doing("spawn")?;
    }
    spawn_processes(&mut random)
}

/// The work of this thread: starts processes that outlive this one for a moment. Now and then a fault coincides with the kill.
fn spawn_processes(random: &mut Random) -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    loop {
        let life = alloc::format!("{}", random.below(3 * MS));
        let child =
            command("kill-storm", "leaf").arg("leaf").arg(&life).spawn(&spawner).doing("start a leaf")?;
        if random.below(3) == 0 {
            let _ = child.handle.kill();
        }
        if random.below(40) == 0 {
            // SAFETY: none: nothing is mapped there, and this must fault while the process is being killed.
            unsafe { (0x4000_0000_u64 as *mut u64).write_volatile(0) };
        }
        let _ = child.wait();
    }
}

fn leaf(life: u64) -> i64 {
    i64::from(time::sleep(life).is_err())
}

fn spin(_: &Shared) {
    loop {
        core::hint::spin_loop();
    }
}

fn yields(_: &Shared) {
    loop {
        thread::yield_now();
    }
}

fn park(shared: &Shared) {
    park_for(shared, u64::MAX);
}

fn park_shortly(shared: &Shared) {
    park_for(shared, MS / 5);
}

fn park_for(shared: &Shared, timeout_ns: u64) {
    while let Ok(space) = caps::any::<rt::ParkSpace>() {
        let _ = space.park(&shared.word, shared.word.load(Ordering::Relaxed), timeout_ns);
    }
}

fn unpark(shared: &Shared) {
    while let Ok(space) = caps::any::<rt::ParkSpace>() {
        shared.word.fetch_add(1, Ordering::Relaxed);
        let _ = space.unpark(&shared.word, 2);
        let _ = time::sleep(MS / 10);
    }
}

fn sleep(_: &Shared) {
    let _ = time::sleep(3600 * 1000 * MS);
}

fn sleep_shortly(_: &Shared) {
    while time::sleep(MS / 20).is_ok() {}
}

fn call_deaf(shared: &Shared) {
    let _ = shared.deaf.call(1, [0; 2]);
}

fn call_served(shared: &Shared) {
    loop {
        let _ = shared.served.call(1, [1, 2]);
    }
}

fn receive(shared: &Shared) {
    loop {
        let _ = shared.own.serve(|call| Continue(call.message.words()));
    }
}

fn call_sibling(shared: &Shared) {
    let message = [7; 700];
    let mut reply = [0; 700];
    loop {
        let _ = shared.own.call(1, [3, 4]);
        let _ = shared.own.call_bytes(2, &message, &mut reply);
        // A capability to its own endpoint goes along, so that the process holds itself in more than one way.
        if let Ok(copy) = shared.own.caller(0) {
            let _ = shared.own.call_giving(3, &message[..8], &mut reply, rt::Give::Move(copy.into_cap()));
        }
    }
}

fn join(_: &Shared) {
    let endless = thread::Builder::new().stack_bytes(8 << 10).spawn(|| time::sleep(3600 * 1000 * MS));
    if let Ok(endless) = endless {
        let _ = endless.join();
    }
}

fn make_threads(_: &Shared) {
    loop {
        if let Ok(thread) = thread::Builder::new().stack_bytes(8 << 10).spawn(|| ()) {
            let _ = thread.join();
        }
    }
}

fn map(_: &Shared) {
    loop {
        if let Ok(at) = vm::map(12 * 4096) {
            // SAFETY: this thread's own mapping, which no other code keeps.
            unsafe {
                at.as_ptr().write_volatile(1);
                let space = vm::space();
                let _ = space.map(|space| space.protect(at.as_ptr() as u64, 4096, rt::Protection::READ));
                let _ = vm::unmap(at.as_ptr() as u64, 12 * 4096);
            }
        }
    }
}
