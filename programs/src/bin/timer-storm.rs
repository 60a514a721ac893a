//! Proof that interrupt time has an owner (S-16): storms of sleeps beside a neighbour that was promised half of the CPU. The neighbour counts its own
//! work, and does less than one per cent less of it than alone; the storming threads are charged, on their budgets or at their weights. Budgets are
//! used up all the time meanwhile, and between two threads no CPU takes a shared lock.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use programs::contexts::{copy, new_context_soon};
use programs::kit::{self, MS};
use programs::neighbour::{self, Seen, Shared, Thread};
use programs::proof::{Failure, Outcome, prove, step};
use programs::rawring::RawRing;
use programs::ticks::{self, Scale};
use programs::{ensure, workload};
use rt::abi::{Op, Ring, Sqe};
use rt::thread::Builder;
use rt::{Client, Fallback, ParkSpace, Spec, ThreadControl, Timer, args, caps, println, time};

rt::main!(run);

/// How long each storm is watched, unless the first argument says otherwise, in ms of guest time: whole periods of the neighbour.
const WINDOW_MS: u64 = 1_000;
/// Sleeps of a thread at a time: all that its ring can hold, but one.
const SLEEPS: u32 = 31;
/// Sleepers at their weight; sleeps beyond the limit of a process are refused.
const CROWD: u32 = 8;

fn run() -> i64 {
    prove("timer-storm", || {
        let window_ns = args::number(0, WINDOW_MS).map_err(Failure::new)? * MS;
        let alone = watch("nobody else", window_ns, &[])?;
        let budget = Spec { criticality: 7, ..Spec::new(44 * MS, 100 * MS) };
        let half = Spec { criticality: 7, ..Spec::new(22 * MS, 100 * MS) };
        // Sleeps that end one by one: each brings an interrupt. The interrupted thread must not lose time by the way into and out of the interrupt,
        // nor by a switch to the storm and back.
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
                // 95 % of the time are promised, and the rest is for all threads.
                ensure!(beside.nobodys_ns * 50 <= window_ns, "{} ns were nobody's", beside.nobodys_ns);
                ensure!(beside.blows > 1_000, "no storm: {} sleeps", beside.blows);
                // The time of interrupts for the storm counts; a period more or less.
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
            // every CPU's clock: the neighbour's work per second of its time says little, so interrupt time without an owner is checked instead.
            if woken.blows > 1_000 {
                step("woken by another CPU", || {
                    let found_ns = woken.nobodys_ns;
                    ensure!(found_ns * 100 <= window_ns, "{found_ns} ns of interrupts were nobody's");
                    Ok(())
                })?;
            }
        }
        step("who owes all that it has is served no more", in_debt)?;
        // Only with debug assertions: a kernel without them does not count this.
        let locks = kit::counter("shared_locks_in_dispatch")?;
        ensure!(locks == 0, "{locks} shared locks were taken between two threads");
        ensure!(kit::counter("budgets_exhausted")? > 10, "no budget ran dry");
        Ok(())
    })
}

/// A thread that repeatedly sleeps for very short times.
#[derive(Clone)]
struct Storm {
    spec: Option<Spec>,
    /// How many sleeps at a time; 0 means that the thread is parked, and woken by a thread of another CPU.
    sleeps: u32,
    first_ns: u64,
    /// By how much each sleep ends later than the one before.
    apart_ns: u64,
}

impl Storm {
    fn of(spec: Option<Spec>, first_ns: u64, apart_ns: u64) -> Storm {
        Storm { spec: spec.map(|spec| spec.cpus([0])), sleeps: SLEEPS, first_ns, apart_ns }
    }

    /// A storm that is woken as often as other storms sleep, and does as little.
    fn woken(spec: Spec) -> Storm {
        Storm { sleeps: 0, ..Storm::of(Some(spec), 60_000, 0) }
    }

    fn be_woken(&self, shared: &Shared) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let space = caps::any::<ParkSpace>()?;
        shared.wait()?;
        while !shared.is_over() {
            let seen = shared.bell.load(Ordering::Acquire);
            space.park(&shared.bell, seen, 10 * MS)?;
            shared.blow(1);
        }
        Ok(())
    }

    /// Wakes the storm from the second CPU.
    fn wake(&self, shared: &Shared) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[2])?;
        let space = caps::any::<ParkSpace>()?;
        while !shared.is_over() {
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
        // The storm runs on the neighbour's CPU.
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let cap = caps::any::<Timer>()?.cap().id().0;
        shared.wait()?;
        // SAFETY: nothing of rt is under way, sleeps name no memory, and all completions are taken.
        let mut ring = unsafe { RawRing::take() };
        while !shared.is_over() {
            for at in 0..u64::from(self.sleeps) {
                let arg0 = self.first_ns + at * self.apart_ns;
                ring.push(Sqe { op: Op::Sleep as u8, cap, arg0, ..Sqe::default() });
            }
            ring.enter(u64::from(self.sleeps), u64::MAX);
            while ring.pop().is_some() {}
            shared.blow(u64::from(self.sleeps));
        }
        Ok(())
    }
}

/// How much of its budget the sleeper has left when it waits: enough for about eight interrupts. Then when its first sleep ends, by which time all
/// threads are in place, and how far apart its sleeps end.
const LEFT_NS: u64 = 100_000;
const DEBT_FIRST_NS: u64 = 5 * MS;
const DEBT_APART_NS: u64 = 100_000;

/// A thread waits for many sleeps, each of which costs it an interrupt, a deferred charge that it pays when it runs again. While another thread runs
/// on a promised budget, a few of these interrupts use up what the sleeper has left: the remaining sleeps wait, like those of threads without a
/// budget (S-16).
fn in_debt() -> Outcome {
    let scale = Scale::measure()?;
    let sleeper_own = new_context_soon(&Spec::new(2 * MS, 100 * MS).cpus([0]))?;
    let sleepers = copy(&sleeper_own)?;
    let runner_own = new_context_soon(&Spec::new(50 * MS, 100 * MS).cpus([0]))?;
    // When the sleeps were submitted, and the ring in which their completions are counted.
    let (set_ns, ring) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let (theirs, their_ring) = (Arc::clone(&set_ns), Arc::clone(&ring));
    let sleeper = Builder::new().stack_bytes(32 * 1024).spawn(move || -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let cap = caps::any::<Timer>()?.cap().id().0;
        their_ring.store(rt::ring::raw().expose_provenance(), Ordering::Relaxed);
        sleeper_own.bind(Fallback::BestEffort)?.ok()?;
        let now_ns = time::now_ns()?;
        let (left_ns, began) = (sleeper_own.info()?.ok()?.remaining_ns, ticks::now());
        // SAFETY: nothing of rt is under way, sleeps name no memory, and all completions are taken.
        let mut ring = unsafe { RawRing::take() };
        for at in 0..u64::from(SLEEPS) {
            let arg0 = DEBT_FIRST_NS + at * DEBT_APART_NS;
            ring.push(Sqe { op: Op::Sleep as u8, cap, arg0, ..Sqe::default() });
        }
        ring.enter(0, 0);
        while left_ns.saturating_sub(scale.to_ns(ticks::now() - began)) > LEFT_NS {
            core::hint::spin_loop();
        }
        theirs.store(now_ns, Ordering::Release);
        ring.enter(u64::from(SLEEPS), u64::MAX);
        while ring.pop().is_some() {}
        drop(ring);
        Ok(sleeper_own.unbind()?.ok().map(drop)?)
    })?;
    let runner = Builder::new().stack_bytes(32 * 1024).spawn(move || -> Outcome<(u32, u64)> {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        kit::wait_until("the sleeps are set", || Ok(set_ns.load(Ordering::Acquire) != 0))?;
        let page = core::ptr::with_exposed_provenance::<Ring>(ring.load(Ordering::Relaxed));
        // SAFETY: the sleeper's ring, which is mapped until the sleeper ends; it does not end before all its sleeps are over, and is joined only
        // after this thread.
        let posted = || unsafe { (*page).cq_tail.load(Ordering::Acquire) };
        let (before, left_ns) = (posted(), sleepers.info()?.ok()?.remaining_ns);
        runner_own.bind(Fallback::BestEffort)?.ok()?;
        let over_ns = set_ns.load(Ordering::Acquire) + DEBT_FIRST_NS + u64::from(SLEEPS + 5) * DEBT_APART_NS;
        while time::now_ns()? < over_ns {
            black_box(workload::spin(100, 1));
        }
        let served = posted().wrapping_sub(before);
        runner_own.unbind()?.ok()?;
        Ok((served, left_ns))
    })?;
    let (served, left_ns) = runner.join()??;
    sleeper.join()??;
    println!("    {served} of {SLEEPS} sleeps ended in time, with {} us of a budget left", left_ns / 1_000);
    ensure!(0 < left_ns && left_ns <= LEFT_NS && served > 0, "{served} sleeps ended, with {left_ns} ns left");
    ensure!(
        served <= SLEEPS * 2 / 3,
        "{served} of {SLEEPS} sleeps ended beside a promise: it owes more than it has"
    );
    Ok(())
}

fn watch(name: &str, window_ns: u64, storms: &[Storm]) -> Outcome<Seen> {
    neighbour::watch(name, window_ns, storms.len() as u32, |shared| {
        let mut threads = Vec::new();
        for storm in storms {
            let theirs = storm.clone();
            threads.push(Thread::start(shared, storm.spec.as_ref(), move |shared, _| theirs.rage(shared))?);
        }
        for storm in storms.iter().filter(|storm| storm.sleeps == 0) {
            let theirs = storm.clone();
            threads.push(Thread::start(shared, None, move |shared, _| theirs.wake(shared))?);
            threads.push(Thread::start(shared, None, |shared, _| shared.keep_busy())?);
        }
        Ok(threads)
    })
}
