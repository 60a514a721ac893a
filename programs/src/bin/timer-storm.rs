//! Proof that interrupt time has an owner (S-16): storms of sleeps beside a neighbour that was promised half of the CPU. The neighbour counts its own
//! work, and has less than one per cent less of it than alone; who storms pays out of its budget or its weight. Budgets run dry all the time
//! meanwhile, and between two threads no CPU takes a lock that others use.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use programs::contexts::{copy, new_context_soon};
use programs::kit::{self, MS};
use programs::proof::{Failure, Outcome, prove, step};
use programs::rawring::RawRing;
use programs::{ensure, workload};
use rt::abi::{Op, Sqe};
use rt::thread::{Builder, JoinHandle};
use rt::{
    Client, Fallback, NotificationKind, ParkSpace, SchedulingContext, Spec, ThreadControl, Timer, args, caps,
    println, time,
};

rt::main!(run);

/// How long each storm is watched, if the first argument does not say otherwise, in ms of guest time: whole periods of the neighbour.
const WINDOW_MS: u64 = 1_000;
/// Sleeps of a thread at a time: all that its ring can hold, but one.
const SLEEPS: u32 = 31;
/// Turns of the neighbour's work, of some ten microseconds each, after which it looks at what it was charged.
const TURNS: u64 = 50;
/// Sleepers at their weight: more sleeps than a process may have are refused.
const CROWD: u32 = 8;

fn run() -> i64 {
    prove("timer-storm", || {
        let window_ns = args::number(0, WINDOW_MS).map_err(Failure::new)? * MS;
        let alone = watch("nobody else", window_ns, &[])?;
        let budget = Spec { criticality: 7, ..Spec::new(44 * MS, 100 * MS) };
        let half = Spec { criticality: 7, ..Spec::new(22 * MS, 100 * MS) };
        // Sleeps that end one by one: with each comes an interrupt, and who is interrupted loses nothing by the way in and out, nor by a switch there
        // and back, if that is the storm's.
        let by_one = |sleeps| Storm { sleeps, ..Storm::of(Some(budget), 60_000, 60_000) };
        let storms: [(&str, Vec<Storm>); 5] = [
            ("31 sleeps of 1 ns, on a budget of a higher band", alloc::vec![Storm::of(Some(budget), 1, 0)]),
            ("two of them", alloc::vec![Storm::of(Some(half), 1, 0); 2]),
            ("sleeps that end one by one", alloc::vec![by_one(SLEEPS)]),
            ("a sleep at a time", alloc::vec![by_one(1)]),
            ("a crowd at its weight", alloc::vec![Storm::of(None, 200_000, 11_000); CROWD as usize]),
        ];
        for (name, storms) in storms {
            let beside = watch(name, window_ns, &storms)?;
            step(name, || {
                let least = alone.work_a_second() * 990 / 1_000;
                let found = beside.work_a_second();
                ensure!(found >= least, "{found} turns in a second of its time, at least {least} were due");
                // 95 % are promised, and the rest of the time is for everybody.
                ensure!(beside.nobodys_ns * 50 <= window_ns, "{} ns were nobody's", beside.nobodys_ns);
                ensure!(beside.sleeps > 1_000, "no storm: {} sleeps", beside.sleeps);
                // What interrupts did for them counts; a period more or less.
                let promised = |storm: &Storm| storm.spec.map(|spec| spec.budget_ns);
                let promised_ns: u64 = storms.iter().filter_map(promised).sum();
                let most_ns = promised_ns * (window_ns / (100 * MS) + 1);
                ensure!(beside.consumed_ns <= most_ns, "storms had {} ns of {most_ns}", beside.consumed_ns);
                ensure!(beside.late == 0, "the neighbour was late {} times", beside.late);
                Ok(())
            })?;
        }
        if rt::boot_info().cpus > 1 {
            let woken = watch("woken by another CPU", window_ns, &[Storm::woken(budget)])?;
            // Where CPUs do not take short turns (docs/testing.md), the waker hardly ever runs beside a busy CPU. Where they do, its turns are in
            // everybody's clock: what the neighbour does in a second of its time says little, and what is nobody's says it.
            if woken.sleeps > 1_000 {
                step("woken by another CPU", || {
                    let found_ns = woken.nobodys_ns;
                    ensure!(found_ns * 100 <= window_ns, "{found_ns} ns of interrupts were nobody's");
                    Ok(())
                })?;
            }
        }
        // With debug assertions only: a kernel without them does not count.
        let locks = kit::counter("shared_locks_in_dispatch")?;
        ensure!(locks == 0, "{locks} shared locks were taken between two threads");
        ensure!(kit::counter("budgets_exhausted")? > 10, "no budget ran dry");
        Ok(())
    })
}

/// A thread that sleeps for very short times, again and again.
#[derive(Clone)]
struct Storm {
    spec: Option<Spec>,
    /// So many at a time; 0: it is parked, and woken by a thread of another CPU.
    sleeps: u32,
    first_ns: u64,
    /// Each sleep ends so much after the one before.
    apart_ns: u64,
}

impl Storm {
    fn of(spec: Option<Spec>, first_ns: u64, apart_ns: u64) -> Storm {
        Storm { spec: spec.map(|spec| spec.cpus([0])), sleeps: SLEEPS, first_ns, apart_ns }
    }

    /// Is woken as often as it sleeps in other storms, and does as little.
    fn woken(spec: Spec) -> Storm {
        Storm { sleeps: 0, ..Storm::of(Some(spec), 60_000, 0) }
    }

    fn be_woken(&self, shared: &Shared) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let space = caps::any::<ParkSpace>()?;
        shared.wait()?;
        while !shared.over.load(Ordering::Acquire) {
            let seen = shared.bell.load(Ordering::Acquire);
            space.park(&shared.bell, seen, 10 * MS)?;
            shared.sleeps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Wakes it, from the second CPU.
    fn wake(&self, shared: &Shared) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[2])?;
        let space = caps::any::<ParkSpace>()?;
        while !shared.over.load(Ordering::Acquire) {
            time::sleep(self.first_ns)?;
            shared.bell.fetch_add(1, Ordering::Release);
            space.unpark(&shared.bell, 1)?;
        }
        Ok(())
    }

    fn rage(&self, shared: &Shared) -> Outcome {
        if self.sleeps == 0 {
            return self.be_woken(shared);
        }
        // The neighbour's CPU is the one that matters.
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let cap = caps::any::<Timer>()?.cap().id().0;
        shared.wait()?;
        // SAFETY: nothing of rt is under way, sleeps name no memory, and all completions are taken.
        let mut ring = unsafe { RawRing::take() };
        while !shared.over.load(Ordering::Acquire) {
            for at in 0..u64::from(self.sleeps) {
                let arg0 = self.first_ns + at * self.apart_ns;
                ring.push(Sqe { op: Op::Sleep as u8, cap, arg0, ..Sqe::default() });
            }
            ring.enter(u64::from(self.sleeps), u64::MAX);
            while ring.pop().is_some() {}
            shared.sleeps.fetch_add(u64::from(self.sleeps), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What the threads of one case share.
#[derive(Default)]
struct Shared {
    ready: AtomicU32,
    go: AtomicBool,
    over: AtomicBool,
    is_watched: AtomicBool,
    work: AtomicU64,
    charged_ns: AtomicU64,
    sleeps: AtomicU64,
    bell: AtomicU32,
}

impl Shared {
    fn wait(&self) -> Outcome {
        self.ready.fetch_add(1, Ordering::AcqRel);
        while !self.go.load(Ordering::Acquire) {
            time::sleep(MS)?;
        }
        Ok(())
    }

    /// The neighbour's CPU is never idle: whoever is woken there interrupts somebody.
    fn keep_busy(&self) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        while !self.over.load(Ordering::Relaxed) {
            black_box(workload::spin(1_000, 1));
        }
        Ok(())
    }

    /// Work that the thread counts itself, and beside it what it is charged for.
    fn toil(&self, own: &SchedulingContext) -> Outcome {
        self.wait()?;
        let mut first = None;
        while !self.over.load(Ordering::Relaxed) {
            for turn in 0..TURNS {
                black_box(workload::spin(1_000, turn));
            }
            let charged_ns = own.consumed()?.ok()?.total_ns;
            if !self.is_watched.load(Ordering::Acquire) {
                continue;
            }
            let first_ns = *first.get_or_insert(charged_ns);
            if charged_ns > first_ns {
                self.work.fetch_add(TURNS, Ordering::Relaxed);
                self.charged_ns.store(charged_ns - first_ns, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// What came of one case.
#[derive(Clone, Copy)]
struct Seen {
    /// Turns of the neighbour's work, and what it was charged for them.
    work: u64,
    charged_ns: u64,
    /// Interrupt time of the neighbour's CPU that nobody has paid for.
    nobodys_ns: u64,
    consumed_ns: u64,
    sleeps: u64,
    /// Deadlines that the neighbour missed.
    late: u64,
}

impl Seen {
    /// What its promise is worth to the neighbour. (That it is kept is another thing: no deadline is missed.)
    fn work_a_second(&self) -> u64 {
        self.work * 1_000_000_000 / self.charged_ns.max(1)
    }
}

fn start(
    shared: &Arc<Shared>,
    spec: Option<&Spec>,
    f: impl FnOnce(&Shared, Option<SchedulingContext>) -> Outcome + Send + 'static,
) -> Outcome<Thread> {
    // What the storm before used is held until it would be back (S-13).
    let context = spec.map(new_context_soon).transpose()?;
    let (theirs, own) = (Arc::clone(shared), context.as_ref().map(copy).transpose()?);
    let thread = Builder::new().stack_bytes(32 * 1024).spawn(move || f(&theirs, own))?;
    if let Some(context) = &context {
        let handle = thread.handle().ok_or_else(|| Failure::new("no handle"))?;
        context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    }
    Ok(Thread { thread, context })
}

struct Thread {
    thread: JoinHandle<Outcome>,
    context: Option<SchedulingContext>,
}

impl Thread {
    fn consumed_ns(&self) -> Outcome<u64> {
        self.context.as_ref().map_or(Ok(0), |context| Ok(context.consumed()?.ok()?.total_ns))
    }
}

/// Interrupt time of all CPUs that serves nobody, and all of the first one's.
fn interrupts() -> Outcome<(u64, u64)> {
    let cpus = kit::system()?.cpus()?;
    let nobodys = |cpu: &rt::CpuInfo| cpu.interrupt_ns - cpu.interrupt_owned_ns;
    Ok((cpus.iter().map(nobodys).sum(), cpus[0].interrupt_ns))
}

fn watch(name: &str, window_ns: u64, storms: &[Storm]) -> Outcome<Seen> {
    let shared = Arc::new(Shared::default());
    let half = Spec::new(50 * MS, 100 * MS).cpus([0]);
    let toil = |shared: &Shared, own: Option<SchedulingContext>| {
        own.as_ref().map_or_else(|| Err(Failure::new("no context")), |own| shared.toil(own))
    };
    let neighbour = start(&shared, Some(&half), toil)?;
    let mut threads = Vec::new();
    for storm in storms {
        let theirs = storm.clone();
        threads.push(start(&shared, storm.spec.as_ref(), move |shared, _| theirs.rage(shared))?);
    }
    for storm in storms.iter().filter(|storm| storm.sleeps == 0) {
        let theirs = storm.clone();
        threads.push(start(&shared, None, move |shared, _| theirs.wake(shared))?);
        threads.push(start(&shared, None, |shared, _| shared.keep_busy())?);
    }
    let everybody = 1 + storms.len() as u32;
    kit::wait_until("everybody is there", || Ok(shared.ready.load(Ordering::Acquire) == everybody))?;
    shared.go.store(true, Ordering::Release);
    // The first periods bring everybody in step.
    time::sleep(300 * MS)?;
    let consumed = || threads.iter().map(Thread::consumed_ns).sum::<Outcome<u64>>();
    let before = (interrupts()?, consumed()?);
    shared.is_watched.store(true, Ordering::Release);
    time::sleep(window_ns)?;
    shared.is_watched.store(false, Ordering::Release);
    let after = (interrupts()?, consumed()?);
    let late = neighbour.context.as_ref().map_or(Ok(0), |context| -> Outcome<u64> {
        let news = context.drain()?.ok()?;
        Ok(news.get(NotificationKind::DeadlineOrTimeout).map_or(0, |cell| cell.coalesced))
    })?;
    shared.over.store(true, Ordering::Release);
    let seen = Seen {
        work: shared.work.load(Ordering::Relaxed),
        charged_ns: shared.charged_ns.load(Ordering::Relaxed),
        nobodys_ns: after.0.0 - before.0.0,
        consumed_ns: after.1 - before.1,
        sleeps: shared.sleeps.load(Ordering::Relaxed),
        late,
    };
    println!(
        "    {name}: {} turns in {} us, {} a second; {} sleeps, storms {} us, interrupts {} us, of which nobody's {} us",
        seen.work,
        seen.charged_ns / 1_000,
        seen.work_a_second(),
        seen.sleeps,
        seen.consumed_ns / 1_000,
        (after.0.1 - before.0.1) / 1_000,
        seen.nobodys_ns / 1_000
    );
    for thread in threads.into_iter().chain([neighbour]) {
        thread.thread.join()??;
    }
    Ok(seen)
}
