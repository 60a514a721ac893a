//! Six shapes of parallel work on the available CPUs (F-14): each does the same work one piece at a time and on all CPUs, and the table says how much
//! sooner it was done. `make sim-smp` plays the same shapes in the simulator, on up to 64 CPUs.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{boxed::Box, format};
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use programs::{ensure, fair, kit, ticks, workload};
use rt::abi::LatencyClass;
use rt::sync::{Condvar, Mutex};
use rt::thread::{Builder, JoinHandle};
use rt::{Factory, ParkSpace, SchedulingPolicy, ThreadControl, ThreadInfo, ThreadState, caps, println, time};

rt::main!(run);

/// Turns of the compute loop in all, for each shape; about seven instructions each.
const TURNS: u64 = 12_000_000;
/// Threads or processes that wait now and then.
const WAITERS: u64 = 16;
const NAPS: u64 = 5;
/// Callers, each with a server of its own.
const CALLERS: u64 = 8;
const CALLS: u64 = 250;
const TASKS: u64 = 64;
const PHASES: u64 = 20;
/// How idle up to eight CPUs may be, in thousandths: tasks and phases do not all end at the same time.
const IDLE_PERMILLE: u64 = 150;
const STACK_BYTES: usize = 16 * 1024;

/// The result of a shape.
struct Done {
    ns: u64,
    turns: u64,
}

type Shape = (&'static str, fn(usize) -> Outcome<u64>);

const SHAPES: [Shape; 6] = [
    ("map/reduce", map_reduce),
    ("uneven tasks", uneven),
    ("barrier loops", barriers),
    ("processes", processes),
    ("threads", threads),
    ("capability calls", calls),
];

fn run() -> i64 {
    let mut args = rt::args::args();
    if args.next() == Some("worker") {
        return worker(args.next());
    }
    prove("smp-workloads", || {
        let cpus = rt::boot_info().cpus as usize;
        println!("smp-workloads: {TURNS} turns each, one at a time and on {cpus} CPUs");
        println!("    the machine counts {}", if ticks::is_counted() { "instructions" } else { "time" });
        println!("    shape              one at a time us   {cpus:>2} CPUs us   speed-up   idle  moves");
        for (name, shape) in SHAPES {
            step(name, || compare(name, shape, cpus))?;
        }
        step("every steal is counted, once (F-08)", || steals(cpus))
    })
}

/// Does the work with one worker and on all CPUs, and prints both.
fn compare(name: &str, shape: fn(usize) -> Outcome<u64>, cpus: usize) -> Outcome {
    let one = measured(1, shape)?;
    let steals = moves()?;
    let idle = idle_ns()?;
    let all = measured(cpus, shape)?;
    let idle = (idle_ns()? - idle) * 1000 / (all.ns * cpus as u64).max(1);
    let speed_up = one.ns * 100 / all.ns.max(1);
    println!(
        "    {name:<18} {:>16} {:>12}      {:>2}.{:02} {:>4}.{} % {:>5}",
        one.ns / 1000,
        all.ns / 1000,
        speed_up / 100,
        speed_up % 100,
        idle / 10,
        idle % 10,
        moves()? - steals
    );
    if ticks::is_counted() {
        // The instructions of all CPUs advance one clock: more CPUs are not faster, but their overhead shows, and so does a CPU that is idle beside
        // work.
        ensure!(all.ns <= one.ns + one.ns / 20, "{name}: {} instructions, one at a time {}", all.ns, one.ns);
        ensure!(
            cpus > 8 || cpus == 1 || idle <= IDLE_PERMILLE,
            "{name}: CPUs were idle for {idle} thousandths"
        );
    }
    for done in [&one, &all] {
        // All work was done, and none twice.
        ensure!(done.turns == TURNS, "{name}: {} of {TURNS} turns were done", done.turns);
    }
    Ok(())
}

fn measured(workers: usize, shape: fn(usize) -> Outcome<u64>) -> Outcome<Done> {
    let began = time::now_ns().doing("now")?;
    let turns = shape(workers)?;
    Ok(Done { ns: time::now_ns().doing("now")? - began, turns })
}

fn moves() -> Outcome<u64> {
    Ok(kit::system()?.cpus().doing("CPUs")?.iter().map(|cpu| cpu.steals).sum())
}

fn idle_ns() -> Outcome<u64> {
    Ok(kit::system()?.cpus().doing("CPUs")?.iter().map(|cpu| cpu.idle_ns).sum())
}

/// Jobs whose migrations are counted, how often they are started, and turns of the longest.
const JOBS: u64 = 32;
const ROUNDS: u64 = 4;
const JOB_TURNS: u64 = 300_000;

/// What the jobs and the watching thread share.
#[derive(Default)]
struct Jobs {
    done: AtomicU64,
    blocks: AtomicU64,
    end: AtomicU32,
}

/// Jobs of very different length that only compute: each change of CPU was a steal or a move by balancing, or came with a wake-up if a job had to
/// wait in between after all. The watching thread is pinned to its CPU, so no other thread is moved.
fn steals(cpus: usize) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1]).doing("stay on CPU 0")?;
    let mut all = [0; 4];
    for round in 0..ROUNDS {
        let counts = jobs_that_compute(round)?;
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [migrations, blocks, stolen, balanced] = all;
    println!(
        "    jobs changed CPU {migrations} times: {stolen} steals, {balanced} moves by balancing; they waited {blocks} times"
    );
    ensure!(
        (migrations.saturating_sub(blocks)..=migrations).contains(&(stolen + balanced)),
        "{stolen} steals and {balanced} moves by balancing are not {migrations} changes of CPU"
    );
    let (counter, by_cpu) = (kit::counter("steals")?, moves()?);
    ensure!(
        by_cpu >= counter && by_cpu - counter <= 1,
        "the counter has {counter} steals, the CPUs {by_cpu}"
    );
    ensure!((stolen > 0) == (cpus > 1), "{stolen} steals on {cpus} CPUs");
    Ok(())
}

/// Starts jobs. Returns how often they changed CPU until all had computed and how often they had to wait for something, and what the kernel counted
/// meanwhile: steals, and moves by balancing.
fn jobs_that_compute(round: u64) -> Outcome<[u64; 4]> {
    let counted = || Ok::<_, Failure>([moves()?, kit::counter("balance_moves")?]);
    let before = counted()?;
    let mut random = Random::new(8 + round);
    let shared = Arc::new(Jobs::default());
    let mut threads = Vec::new();
    for _ in 0..JOBS {
        let (turns, shared) = (random.below(JOB_TURNS), Arc::clone(&shared));
        let run = move || -> Outcome {
            compute(turns);
            let share = caps::any::<SchedulingPolicy>()?.snapshot().doing("snapshot")?;
            shared.blocks.fetch_add(share.voluntary_blocks, Ordering::AcqRel);
            shared.done.fetch_add(1, Ordering::AcqRel);
            fair::wait_for(&shared.end)
        };
        threads.push(Builder::new().stack_bytes(STACK_BYTES).spawn(run).doing("start a job")?);
    }
    let mine = rt::boot_info().pid;
    let mut migrations = 0;
    // Once all jobs wait for the end, none moves.
    kit::wait_until("all jobs wait for the end", || {
        let threads = kit::system()?.threads().doing("threads")?;
        let is_waiting = |thread: &&ThreadInfo| thread.pid == mine && thread.state == ThreadState::Blocked;
        migrations = threads.iter().filter(is_waiting).map(|thread| thread.migrations).sum();
        let waiting = threads.iter().filter(is_waiting).count() as u64;
        Ok(shared.done.load(Ordering::Acquire) == JOBS && waiting == JOBS)
    })?;
    let after = counted()?;
    shared.end.store(1, Ordering::Release);
    caps::any::<ParkSpace>()?.unpark(&shared.end, u32::MAX).doing("unpark the jobs")?;
    threads.into_iter().try_for_each(|job| job.join().doing("join a job")?)?;
    let blocks = shared.blocks.load(Ordering::Acquire);
    Ok([migrations, blocks, after[0] - before[0], after[1] - before[1]])
}

/// Computes, with a pause hint for other CPUs of an emulated machine now and then.
fn compute(turns: u64) -> u64 {
    let (mut left, mut seed) = (turns, turns);
    while left > 0 {
        let some = left.min(2_000);
        seed = workload::spin(some, seed);
        left -= some;
        core::hint::spin_loop();
    }
    core::hint::black_box(seed);
    turns
}

/// Runs each closure in a thread of its own; adds up what they return.
fn together(work: Vec<Box<dyn FnOnce() -> Outcome<u64> + Send>>) -> Outcome<u64> {
    let mut threads: Vec<JoinHandle<Outcome<u64>>> = Vec::new();
    for run in work {
        threads.push(Builder::new().stack_bytes(STACK_BYTES).spawn(run).doing("start a thread")?);
    }
    let mut sum = 0;
    for thread in threads {
        sum += thread.join().doing("join")??;
    }
    Ok(sum)
}

/// A parent starts a worker for each CPU, joins them, and reduces.
fn map_reduce(workers: usize) -> Outcome<u64> {
    let reduce = TURNS / 1000;
    let map = TURNS - reduce;
    let part = |at: usize| map * (at as u64 + 1) / workers as u64 - map * at as u64 / workers as u64;
    let work = (0..workers).map(|at| {
        let turns = part(at);
        Box::new(move || Ok(compute(turns))) as Box<dyn FnOnce() -> Outcome<u64> + Send>
    });
    Ok(together(work.collect())? + compute(reduce))
}

/// Many tasks of very different length, taken by a worker for each CPU as they come.
fn uneven(workers: usize) -> Outcome<u64> {
    // The lengths are the same whenever they are drawn, and add up to the whole.
    let mut random = Random::new(14);
    let mut cuts: Vec<u64> = (1..TASKS).map(|_| random.below(TURNS)).chain([0, TURNS]).collect();
    cuts.sort_unstable();
    let tasks: Arc<Vec<u64>> = Arc::new(cuts.windows(2).map(|pair| pair[1] - pair[0]).collect());
    let next = Arc::new(AtomicU32::new(0));
    let work = (0..workers).map(|_| {
        let (tasks, next) = (Arc::clone(&tasks), Arc::clone(&next));
        let run = move || {
            let mut sum = 0;
            while let Some(turns) = tasks.get(next.fetch_add(1, Ordering::AcqRel) as usize) {
                sum += compute(*turns);
            }
            Ok(sum)
        };
        Box::new(run) as Box<dyn FnOnce() -> Outcome<u64> + Send>
    });
    together(work.collect())
}

/// A worker for each CPU, in lock step.
fn barriers(workers: usize) -> Outcome<u64> {
    struct Barrier {
        /// How many workers have arrived in this phase, and the number of the phase.
        state: Mutex<(usize, u64)>,
        opened: Condvar,
    }
    let barrier = Arc::new(Barrier { state: Mutex::new((0, 0)), opened: Condvar::new() });
    let work = (0..workers as u64).map(|at| {
        let barrier = Arc::clone(&barrier);
        let run = move || {
            let mut sum = 0;
            for phase in 0..PHASES {
                let whole = TURNS * (phase + 1) / PHASES - TURNS * phase / PHASES;
                let workers = workers as u64;
                sum += compute(whole * (at + 1) / workers - whole * at / workers);
                let mut state = barrier.state.lock();
                state.0 += 1;
                if state.0 == workers as usize {
                    *state = (0, phase + 1);
                    barrier.opened.notify_all();
                }
                while state.1 == phase {
                    state = barrier.opened.wait(state);
                }
            }
            Ok(sum)
        };
        Box::new(run) as Box<dyn FnOnce() -> Outcome<u64> + Send>
    });
    together(work.collect())
}

/// The work of one thread or process: computes and sleeps in turns.
fn doze(turns: u64) -> Outcome<u64> {
    let mut sum = 0;
    for nap in 0..NAPS {
        sum += compute(turns * (nap + 1) / NAPS - turns * nap / NAPS);
        time::sleep(200_000).doing("sleep")?;
    }
    Ok(sum)
}

/// How many of `all` run at a time: all of them, or one for the measurement without parallelism.
fn at_a_time(workers: usize, all: u64) -> u64 {
    if workers == 1 { 1 } else { all }
}

fn threads(workers: usize) -> Outcome<u64> {
    let wave = at_a_time(workers, WAITERS);
    let (mut sum, mut at) = (0, 0);
    while at < WAITERS {
        let work = (at..(at + wave).min(WAITERS)).map(|at| {
            let turns = TURNS * (at + 1) / WAITERS - TURNS * at / WAITERS;
            Box::new(move || doze(turns)) as Box<dyn FnOnce() -> Outcome<u64> + Send>
        });
        sum += together(work.collect())?;
        at += wave;
    }
    Ok(sum)
}

/// Role `worker`: one of the processes.
fn worker(turns: Option<&str>) -> i64 {
    let turns: u64 = turns.and_then(|text| text.parse().ok()).unwrap_or(0);
    i64::from(!doze(turns).is_ok_and(|done| done == turns && done > 0))
}

fn processes(workers: usize) -> Outcome<u64> {
    let wave = at_a_time(workers, WAITERS);
    let (mut sum, mut at) = (0, 0);
    while at < WAITERS {
        let mut children = Vec::new();
        for at in at..(at + wave).min(WAITERS) {
            let turns = TURNS * (at + 1) / WAITERS - TURNS * at / WAITERS;
            children.push((turns, kit::again(&["worker", &format!("{turns}")], &[])?));
        }
        for (turns, child) in &children {
            kit::succeeds("a worker", child)?;
            sum += turns;
        }
        at += wave;
    }
    Ok(sum)
}

/// Callers that call servers all the time: callers do two thirds of the work, servers a third.
fn calls(workers: usize) -> Outcome<u64> {
    let wave = at_a_time(workers, CALLERS);
    let (mut sum, mut at) = (0, 0);
    while at < CALLERS {
        let pairs = (at..(at + wave).min(CALLERS)).map(|at| {
            let turns = TURNS * (at + 1) / CALLERS - TURNS * at / CALLERS;
            Box::new(move || pair(turns)) as Box<dyn FnOnce() -> Outcome<u64> + Send>
        });
        sum += together(pairs.collect())?;
        at += wave;
    }
    Ok(sum)
}

fn pair(turns: u64) -> Outcome<u64> {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let (theirs, served) = (Arc::clone(&endpoint), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&served);
    let serve = move || {
        caps::any::<SchedulingPolicy>()?.set_class(LatencyClass::IpcServer)?;
        theirs.serve(|call| {
            let [turns, _] = call.message.words();
            count.fetch_add(compute(turns), Ordering::AcqRel);
            if call.method == 1 { Continue([turns, 0]) } else { Break([0; 2]) }
        })
    };
    let server = Builder::new().stack_bytes(STACK_BYTES).spawn(serve).doing("start a server")?;
    let mut sum = 0;
    for call in 0..CALLS {
        let some = turns * (call + 1) / CALLS - turns * call / CALLS;
        sum += compute(some - some / 3);
        endpoint.call(1, [some / 3, 0]).doing("call")?;
    }
    endpoint.call(2, [0; 2]).doing("the last call")?;
    server.join().map_err(Failure::from)?.doing("serve")?;
    Ok(sum + served.load(Ordering::Acquire))
}
