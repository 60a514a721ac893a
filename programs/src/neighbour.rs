//! A neighbour that is promised half of the first CPU, and how much of that storms of other threads leave to it (S-16). The neighbour counts its own
//! work, so its figures do not depend on whom the kernel charges for what.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rt::thread::{Builder, JoinHandle};
use rt::{Fallback, NotificationKind, SchedulingContext, Spec, ThreadControl, caps, println, time};

use crate::contexts::{copy, new_context_soon};
use crate::kit::{self, MS};
use crate::proof::{Failure, Outcome};
use crate::{mark, ticks, workload};

/// Turns of the neighbour's work, of some ten microseconds each, after which it reads how much it was charged.
const TURNS: u64 = 20;

/// How often the neighbour reads the clock, in [`watch_side_by_side`], before it reads how much it was charged.
const LOOKS: u64 = 20_000;
/// Between two readings of the clock are a few instructions; if more ticks than this passed, other CPUs had their turns.
const LOOK_TICKS: u64 = 1_000;

/// What the threads of one test case share.
#[derive(Default)]
pub struct Shared {
    /// Whether the neighbour reads the clock instead of counting turns.
    looks: bool,
    own_ns: AtomicU64,
    rounds_ns: AtomicU64,
    interruptions: AtomicU64,
    ready: AtomicU32,
    go: AtomicBool,
    over: AtomicBool,
    is_watched: AtomicBool,
    work: AtomicU64,
    charged_ns: AtomicU64,
    /// How often the storm did what it consists of, for example sleeps.
    pub blows: AtomicU64,
    /// A word on which threads of a storm wait for each other.
    pub bell: AtomicU32,
}

impl Shared {
    /// Reports that the calling thread is ready and waits until all are.
    pub fn wait(&self) -> Outcome {
        self.ready.fetch_add(1, Ordering::AcqRel);
        while !self.go.load(Ordering::Acquire) {
            time::sleep(MS)?;
        }
        Ok(())
    }

    /// Whether the case is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Counts `times` more actions of the storm.
    pub fn blow(&self, times: u64) {
        self.blows.fetch_add(times, Ordering::Relaxed);
    }

    /// Keeps the neighbour's CPU from being idle, so that every thread that is woken there interrupts another one.
    pub fn keep_busy(&self) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        while !self.is_over() {
            black_box(workload::spin(1_000, 1));
        }
        Ok(())
    }

    /// Does what [`Shared::toil`] does, for an emulator in which CPUs take turns. There the work done in a second depends on the turns: a CPU that
    /// asks for an interrupt is in its turn, so the interrupt arrives at the beginning of the neighbour's next turn, and the other CPUs' turns before
    /// it are charged to the neighbour, however little it had of that round itself. So the neighbour measures the time that it had: all that passes
    /// between two readings of the clock while it stays in user mode, turns of other CPUs included. It cannot see the end of the round before an
    /// interrupt; that round is taken to be as long as the others are on average.
    fn look(&self, own: &SchedulingContext) -> Outcome {
        self.wait()?;
        let (mut own_ns, mut rounds_ns, mut rounds, mut interruptions) = (0, 0, 0, 0);
        let mut first = None;
        while !self.is_over() {
            // A thread that lost its CPU inside a system call returns with its mark in place, so the measurement starts anew here.
            mark::set();
            let mut last = ticks::now();
            for _ in 0..LOOKS {
                let now = ticks::now();
                let passed = now - last;
                last = now;
                if !mark::is_kept() {
                    // The interrupt may have come after the clock was read.
                    mark::set();
                    last = ticks::now();
                    interruptions += 1;
                } else {
                    own_ns += passed;
                    if passed > LOOK_TICKS {
                        rounds_ns += passed;
                        rounds += 1;
                    }
                }
            }
            let charged_ns = own.consumed()?.ok()?.total_ns;
            if !self.is_watched.load(Ordering::Acquire) {
                continue;
            }
            let (charged_first, own_first, interruptions_first) =
                *first.get_or_insert((charged_ns, own_ns, interruptions));
            if charged_ns > charged_first {
                self.charged_ns.store(charged_ns - charged_first, Ordering::Relaxed);
                self.own_ns.store(own_ns - own_first, Ordering::Relaxed);
                let count = interruptions - interruptions_first;
                self.rounds_ns.store(count * rounds_ns / rounds.max(1), Ordering::Relaxed);
                self.interruptions.store(count, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Does work that the thread counts itself, and records what it is charged for that work.
    fn toil(&self, own: &SchedulingContext) -> Outcome {
        self.wait()?;
        let mut first = None;
        while !self.is_over() {
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

/// The result of one case.
#[derive(Clone, Copy)]
pub struct Seen {
    /// Turns of the neighbour's work, which took `charged_ns`.
    work: u64,
    /// What the neighbour was charged for `work`.
    pub charged_ns: u64,
    /// Interrupt time of all CPUs that was charged to no thread.
    pub nobodys_ns: u64,
    /// What the contexts of the storm were charged.
    pub consumed_ns: u64,
    /// How often the storm did what it consists of.
    pub blows: u64,
    /// Deadlines that the neighbour missed.
    pub late: u64,
    /// How much of `charged_ns` the neighbour really had, where it read the clock.
    pub own_ns: u64,
}

impl Seen {
    /// What its promise is worth to the neighbour. (Whether the promise is kept is seen by `late`: no deadline is missed.)
    pub fn work_a_second(&self) -> u64 {
        self.work * 1_000_000_000 / self.charged_ns.max(1)
    }
}

/// A thread of a storm, and its context.
pub struct Thread {
    thread: JoinHandle<Outcome>,
    /// The context that the thread runs on.
    pub context: Option<SchedulingContext>,
}

impl Thread {
    /// Starts a thread, on a context of its own if there is a `spec`.
    pub fn start(
        shared: &Arc<Shared>,
        spec: Option<&Spec>,
        f: impl FnOnce(&Shared, Option<SchedulingContext>) -> Outcome + Send + 'static,
    ) -> Outcome<Thread> {
        // The time that the storm before used is held until it would be back (S-13), so there may be no room for a context at once.
        let context = spec.map(new_context_soon).transpose()?;
        let (theirs, own) = (Arc::clone(shared), context.as_ref().map(copy).transpose()?);
        let thread = Builder::new().stack_bytes(32 * 1024).spawn(move || f(&theirs, own))?;
        if let Some(context) = &context {
            let handle = thread.handle().ok_or_else(|| Failure::new("no handle"))?;
            context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        }
        Ok(Thread { thread, context })
    }

    fn consumed_ns(&self) -> Outcome<u64> {
        self.context.as_ref().map_or(Ok(0), |context| Ok(context.consumed()?.ok()?.total_ns))
    }
}

/// Interrupt time of all CPUs that serves no thread, and all interrupt time of the first CPU. An interrupt under way counts as serving no thread
/// until it is known which one it serves.
fn interrupts() -> Outcome<(u64, u64)> {
    let cpus = kit::system()?.cpus()?;
    let nobodys = |cpu: &rt::CpuInfo| cpu.interrupt_ns - cpu.interrupt_owned_ns;
    Ok((cpus.iter().map(nobodys).sum(), cpus[0].interrupt_ns))
}

/// Watches the neighbour for `window_ns` (whole periods of its context) beside the threads that `storm` starts; `wait` of them call [`Shared::wait`].
pub fn watch(
    name: &str,
    window_ns: u64,
    wait: u32,
    storm: impl FnOnce(&Arc<Shared>) -> Outcome<Vec<Thread>>,
) -> Outcome<Seen> {
    watch_one(Shared::default(), name, window_ns, wait, storm)
}

/// As [`watch`], for CPUs that take turns: the neighbour measures how much it had of what it was charged for ([`Seen::own_ns`]).
pub fn watch_side_by_side(
    name: &str,
    window_ns: u64,
    wait: u32,
    storm: impl FnOnce(&Arc<Shared>) -> Outcome<Vec<Thread>>,
) -> Outcome<Seen> {
    watch_one(Shared { looks: true, ..Shared::default() }, name, window_ns, wait, storm)
}

fn watch_one(
    shared: Shared,
    name: &str,
    window_ns: u64,
    wait: u32,
    storm: impl FnOnce(&Arc<Shared>) -> Outcome<Vec<Thread>>,
) -> Outcome<Seen> {
    let shared = Arc::new(shared);
    let half = Spec::new(50 * MS, 100 * MS).cpus([0]);
    let toil = |shared: &Shared, own: Option<SchedulingContext>| {
        let own = own.ok_or_else(|| Failure::new("no context"))?;
        if shared.looks { shared.look(&own) } else { shared.toil(&own) }
    };
    let neighbour = Thread::start(&shared, Some(&half), toil)?;
    let threads = storm(&shared)?;
    kit::wait_until("everybody is there", || Ok(shared.ready.load(Ordering::Acquire) == 1 + wait))?;
    shared.go.store(true, Ordering::Release);
    // The first periods bring all threads in step.
    time::sleep(300 * MS)?;
    let consumed = || threads.iter().map(Thread::consumed_ns).sum::<Outcome<u64>>();
    let before = (interrupts()?, consumed()?, shared.blows.load(Ordering::Relaxed));
    shared.is_watched.store(true, Ordering::Release);
    time::sleep(window_ns)?;
    shared.is_watched.store(false, Ordering::Release);
    let after = (interrupts()?, consumed()?, shared.blows.load(Ordering::Relaxed));
    let late = neighbour.context.as_ref().map_or(Ok(0), |context| -> Outcome<u64> {
        let news = context.drain()?.ok()?;
        Ok(news.get(NotificationKind::DeadlineOrTimeout).map_or(0, |cell| cell.coalesced))
    })?;
    shared.over.store(true, Ordering::Release);
    let seen = Seen {
        work: shared.work.load(Ordering::Relaxed),
        charged_ns: shared.charged_ns.load(Ordering::Relaxed),
        nobodys_ns: after.0.0.saturating_sub(before.0.0),
        consumed_ns: after.1 - before.1,
        blows: after.2 - before.2,
        late,
        own_ns: shared.own_ns.load(Ordering::Relaxed) + shared.rounds_ns.load(Ordering::Relaxed),
    };
    if shared.looks {
        println!(
            "    {name}: had {} us of {} us, {} of them before {} interrupts",
            seen.own_ns / 1_000,
            seen.charged_ns / 1_000,
            shared.rounds_ns.load(Ordering::Relaxed) / 1_000,
            shared.interruptions.load(Ordering::Relaxed),
        );
    } else {
        println!(
            "    {name}: {} turns in {} us, {} a second",
            seen.work,
            seen.charged_ns / 1_000,
            seen.work_a_second()
        );
    }
    println!(
        "    {name}: {} blows, storms {} us, interrupts {} us, of which nobody's {} us",
        seen.blows,
        seen.consumed_ns / 1_000,
        (after.0.1 - before.0.1) / 1_000,
        seen.nobodys_ns / 1_000
    );
    for thread in threads.into_iter().chain([neighbour]) {
        thread.thread.join()??;
    }
    Ok(seen)
}
