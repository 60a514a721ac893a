//! A neighbour that was promised half of the first CPU, and what storms beside it leave of that (S-16). It counts its own work: what it says does not depend on
//! whom the kernel charges for what.

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

/// Turns of the neighbour's work, of some ten microseconds each, after which it looks at what it was charged.
const TURNS: u64 = 20;

/// Looks at the clock after which it does, where it looks ([`watch_side_by_side`]).
const LOOKS: u64 = 20_000;
/// Between two looks are a few instructions; if the clock went on by more, others had their turns.
const LOOK_TICKS: u64 = 1_000;

/// What the threads of one case share.
#[derive(Default)]
pub struct Shared {
    /// The neighbour looks at the clock instead of counting turns.
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
    /// What the storm did: sleeps, or whatever it consists of.
    pub blows: AtomicU64,
    /// For those who wait for each other.
    pub bell: AtomicU32,
}

impl Shared {
    /// Until everybody is there.
    pub fn wait(&self) -> Outcome {
        self.ready.fetch_add(1, Ordering::AcqRel);
        while !self.go.load(Ordering::Acquire) {
            time::sleep(MS)?;
        }
        Ok(())
    }

    /// The case is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The storm has done something once more, or so often.
    pub fn blow(&self, times: u64) {
        self.blows.fetch_add(times, Ordering::Relaxed);
    }

    /// The neighbour's CPU is never idle: whoever is woken there interrupts somebody.
    pub fn keep_busy(&self) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        while !self.is_over() {
            black_box(workload::spin(1_000, 1));
        }
        Ok(())
    }

    /// As [`Shared::toil`], where CPUs take turns. How much it does in a second depends on them: a CPU that asks for an interrupt has its turn, so the
    /// interrupt comes at the beginning of the next of the neighbour's, and the others' turns before it are the neighbour's, however little it had of the
    /// round itself. So it looks what the time is that it had: all that passes from look to look while it stays in user mode, turns of others included. Of
    /// the round before an interrupt it cannot see the end; that round is as long as the others are, on average.
    fn look(&self, own: &SchedulingContext) -> Outcome {
        self.wait()?;
        let (mut own_ns, mut rounds_ns, mut rounds, mut interruptions) = (0, 0, 0, 0);
        let mut first = None;
        while !self.is_over() {
            // It may have lost its CPU in a system call, from which it comes back with its mark.
            mark::set();
            let mut last = ticks::now();
            for _ in 0..LOOKS {
                let now = ticks::now();
                let passed = now - last;
                last = now;
                if !mark::is_kept() {
                    // The interrupt may have come after the look at the clock.
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

    /// Work that the thread counts itself, and beside it what it is charged for.
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

/// What came of one case.
#[derive(Clone, Copy)]
pub struct Seen {
    /// Turns of the neighbour's work, and what it was charged for them.
    work: u64,
    /// See `work`.
    pub charged_ns: u64,
    /// Interrupt time of all CPUs that nobody has paid for.
    pub nobodys_ns: u64,
    /// What the contexts of the storm were charged.
    pub consumed_ns: u64,
    /// What the storm did.
    pub blows: u64,
    /// Deadlines that the neighbour missed.
    pub late: u64,
    /// What it had of what it was charged for, where it looked at the clock.
    pub own_ns: u64,
}

impl Seen {
    /// What its promise is worth to the neighbour. (That it is kept is another thing: no deadline is missed.)
    pub fn work_a_second(&self) -> u64 {
        self.work * 1_000_000_000 / self.charged_ns.max(1)
    }
}

/// A thread of a storm, and its context.
pub struct Thread {
    thread: JoinHandle<Outcome>,
    /// What it runs on.
    pub context: Option<SchedulingContext>,
}

impl Thread {
    /// Starts one, on a context of its own if there is a `spec`.
    pub fn start(
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

    fn consumed_ns(&self) -> Outcome<u64> {
        self.context.as_ref().map_or(Ok(0), |context| Ok(context.consumed()?.ok()?.total_ns))
    }
}

/// Interrupt time of all CPUs that serves nobody, and all of the first one's. Of an interrupt under way it is not known yet whom it serves.
fn interrupts() -> Outcome<(u64, u64)> {
    let cpus = kit::system()?.cpus()?;
    let nobodys = |cpu: &rt::CpuInfo| cpu.interrupt_ns - cpu.interrupt_owned_ns;
    Ok((cpus.iter().map(nobodys).sum(), cpus[0].interrupt_ns))
}

/// Watches the neighbour for `window_ns`, whole periods of its, beside the threads that `storm` starts; so many of them `wait` for the beginning.
pub fn watch(
    name: &str,
    window_ns: u64,
    wait: u32,
    storm: impl FnOnce(&Arc<Shared>) -> Outcome<Vec<Thread>>,
) -> Outcome<Seen> {
    watch_one(Shared::default(), name, window_ns, wait, storm)
}

/// As [`watch`], of CPUs that take turns: the neighbour looks how much it had of what it was charged for ([`Seen::own_ns`]).
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
    // The first periods bring everybody in step.
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
