//! The proof `mcs`: the behaviours that seL4's tests of its mixed-criticality kernel check, each as a named test (S-10).
//!
//! seL4's priority corresponds to a band of criticality here, its scheduling context to a SchedulingContext, its reply object to the token of a
//! call, and its passive server to a thread without a context. docs/contexts.md has the table.

pub mod chains;
pub mod faults;
pub mod ipc;
pub mod lifetimes;
pub mod objects;
pub mod order;
pub mod periods;
pub mod storms;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rt::thread::{Builder, JoinHandle};
use rt::{
    ContextListing, Endpoint, Factory, Fallback, ParkSpace, SchedulingContext, SchedulingPolicy, Spec,
    ThreadControl, ThreadHandle, caps, thread,
};

use super::new_context;
use crate::fair;
use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks::{self, Scale};
use crate::workload;

/// A test: its name, and its function, which returns figures for people or an empty string.
pub type Test = (&'static str, fn(&Stage) -> Outcome<String>);

/// All tests, in the order of the list that they are taken from.
pub fn tests() -> impl Iterator<Item = Test> {
    let parts: [&[Test]; 8] = [
        &order::TESTS,
        &periods::TESTS,
        &objects::TESTS,
        &lifetimes::TESTS,
        &chains::TESTS,
        &ipc::TESTS,
        &faults::TESTS,
        &storms::TESTS,
    ];
    parts.into_iter().flatten().copied()
}

/// The environment of a test.
pub struct Stage {
    /// The ratio of ticks to nanoseconds.
    pub scale: Scale,
    /// Whether instructions are counted, so that amounts are exact.
    pub is_counted: bool,
    /// How long an instruction takes, if they are counted.
    pub instruction_ns: u64,
    /// The CPU shared by the threads whose order matters.
    pub cpu: u32,
    /// The number of CPUs.
    pub cpus: u32,
}

impl Stage {
    /// Measures this machine.
    pub fn set() -> Outcome<Stage> {
        let cpus = rt::boot_info().cpus;
        let scale = Scale::measure()?;
        let before = ticks::now();
        core::hint::black_box(workload::spin(20_000, before));
        // A turn takes seven instructions, and a few more in all; the duration of one instruction is a power of two.
        let instruction_ns = 1 << (scale.to_ns(ticks::now() - before) / 140_000).max(1).ilog2();
        Ok(Stage { scale, is_counted: ticks::is_counted(), instruction_ns, cpu: cpus - 1, cpus })
    }

    /// Computes for this much CPU time.
    pub fn burn(&self, ns: u64) {
        super::burn(ns, self.scale);
    }

    /// The specification of a context with this budget and period on the CPU of the stage, in this band.
    pub fn spec(&self, budget_ns: u64, period_ns: u64, band: u8) -> Spec {
        Spec::new(budget_ns, period_ns).cpus([self.cpu]).criticality(band)
    }

    /// The specification for a thread that runs for some milliseconds in this band.
    pub fn part(&self, band: u8) -> Spec {
        self.spec(10 * MS, 100 * MS, band)
    }

    /// Runs `direct` in the highest band: threads that it wakes on the stage wait until it waits or has ended.
    pub fn conduct<T>(&self, direct: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let baton = new_context(&self.spec(25 * MS, 100 * MS, 7))?;
        baton.bind(Fallback::BestEffort)?.ok()?;
        let result = direct();
        baton.unbind()?.ok()?;
        result
    }

    /// Whether a delay is acceptable for a thread that is entitled to the CPU: checked where instructions are counted, always true otherwise.
    pub fn is_prompt(&self, late_ns: u64) -> bool {
        !self.is_counted || late_ns <= 100_000
    }

    /// Pins the calling thread to the CPU of the stage, at its weight.
    pub fn enter(&self) -> Outcome {
        caps::any::<ThreadControl>()?.set_affinity(&[1 << self.cpu]).doing("go to the stage")
    }

    /// Lets the calling thread run on any CPU again.
    pub fn leave(&self) -> Outcome {
        caps::any::<ThreadControl>()?
            .set_affinity(&[((1u32 << self.cpus) - 1) as u8])
            .doing("leave the stage")
    }
}

/// A thread that waits for its cue, on a context of its own or on none.
pub struct Player {
    /// The context that it runs on.
    pub context: Option<SchedulingContext>,
    /// The number of its thread.
    pub tid: u32,
    thread: JoinHandle<Outcome>,
    cue: Arc<AtomicU32>,
}

impl Player {
    /// A thread bound to a new context, which goes on at its weight if it loses that.
    pub fn start(spec: &Spec, act: impl FnOnce() -> Outcome + Send + 'static) -> Outcome<Player> {
        let mut player = Player::plain(act)?;
        player.bind(new_context(spec)?, Fallback::BestEffort)?;
        Ok(player)
    }

    /// A thread without a context.
    pub fn plain(act: impl FnOnce() -> Outcome + Send + 'static) -> Outcome<Player> {
        let (cue, tid) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (its_cue, its_tid) = (Arc::clone(&cue), Arc::clone(&tid));
        let run = move || {
            its_tid.store(thread::id(), Ordering::Relaxed);
            fair::wait_for(&its_cue)?;
            act()
        };
        let thread = Builder::new().spawn(run).doing("start a player")?;
        kit::wait_until("a player starts", || Ok(tid.load(Ordering::Relaxed) != 0))?;
        let tid = tid.load(Ordering::Relaxed);
        kit::wait_blocked(tid)?;
        Ok(Player { context: None, tid, thread, cue })
    }

    /// Binds the thread to this context.
    pub fn bind(&mut self, context: SchedulingContext, fallback: Fallback) -> Outcome {
        context.bind_thread(self.handle()?, fallback)?.ok().doing("bind a player")?;
        self.context = Some(context);
        Ok(())
    }

    /// The handle by which the thread is bound.
    pub fn handle(&self) -> Outcome<&ThreadHandle> {
        self.thread.handle().ok_or_else(|| Failure::new("no handle"))
    }

    /// The context of the thread; fails if it has none.
    pub fn its(&self) -> Outcome<&SchedulingContext> {
        self.context.as_ref().ok_or_else(|| Failure::new("no context"))
    }

    /// Gives the thread its cue.
    pub fn go(&self) -> Outcome {
        self.cue.store(1, Ordering::Release);
        caps::any::<ParkSpace>()?.unpark(&self.cue, 1).doing("give a cue")?;
        Ok(())
    }

    /// Gives the thread its cue, and waits until it blocks on something else.
    pub fn go_and_wait(&self) -> Outcome {
        self.go()?;
        rt::time::sleep(MS)?;
        kit::wait_blocked(self.tid)
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the thread has ended.
    pub fn join(self) -> Outcome {
        self.thread.join().doing("join a player")?
    }
}

/// A thread that always wants to run: computes, and counts its turns.
pub struct Hog {
    /// The hog's thread.
    pub player: Player,
    over: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
}

impl Hog {
    /// A hog with turns of this length, which first does `first`. It waits for its cue.
    pub fn start(
        stage: &Stage,
        turn_ns: u64,
        first: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Outcome<Hog> {
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, count, scale) = (Arc::clone(&over), Arc::clone(&turns), stage.scale);
        let player = Player::plain(move || {
            first()?;
            while !is_over.load(Ordering::Relaxed) {
                super::burn(turn_ns, scale);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(Hog { player, over, turns })
    }

    /// A hog that shares the stage's CPU at its weight.
    pub fn at_weight(stage: &Stage, weight: u16) -> Outcome<Hog> {
        let cpu = stage.cpu;
        Hog::start(stage, MS / 10, move || {
            caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
            caps::any::<SchedulingPolicy>()?.set_weight(weight)?;
            Ok(())
        })
    }

    /// A hog on a context of its own.
    pub fn on_context(stage: &Stage, turn_ns: u64, spec: &Spec) -> Outcome<Hog> {
        let mut hog = Hog::start(stage, turn_ns, || Ok(()))?;
        hog.player.bind(new_context(spec)?, Fallback::BestEffort)?;
        Ok(hog)
    }

    /// Turns since the hog began.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// The hog's CPU time.
    pub fn runtime_ns(&self) -> Outcome<u64> {
        runtime_ns(self.player.tid)
    }

    /// Waits until the hog has made one more turn.
    pub fn wait_turn(&self) -> Outcome {
        let before = self.turns();
        kit::wait_until("it should run", || Ok(self.turns() > before))
    }

    /// Ends the hog after its current turn; it must be able to run.
    pub fn stop(self) -> Outcome {
        self.over.store(true, Ordering::Relaxed);
        self.player.join()
    }
}

/// CPU time of a thread of this process.
pub fn runtime_ns(tid: u32) -> Outcome<u64> {
    let threads = kit::system()?.threads().doing("threads")?;
    let found = threads.iter().find(|thread| (thread.pid, thread.tid) == (rt::boot_info().pid, tid));
    found.map(|found| found.runtime_ns).ok_or_else(|| Failure::new(format_args!("there is no thread {tid}")))
}

/// The order in which numbered threads did something.
#[derive(Default)]
pub struct Marks {
    count: AtomicU32,
    who: [AtomicU32; 32],
}

impl Marks {
    /// An empty list that several threads can share.
    pub fn new() -> Arc<Marks> {
        Arc::default()
    }

    /// Records that thread number `who` does it now.
    pub fn mark(&self, who: u32) {
        let at = self.count.fetch_add(1, Ordering::AcqRel) as usize;
        if let Some(place) = self.who.get(at) {
            place.store(who, Ordering::Release);
        }
    }

    /// All numbers so far, in order.
    pub fn list(&self) -> Vec<u32> {
        let count = self.count.load(Ordering::Acquire) as usize;
        self.who.iter().take(count).map(|who| who.load(Ordering::Acquire)).collect()
    }
}

/// A new endpoint.
pub fn endpoint() -> Outcome<Arc<Endpoint>> {
    Ok(Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?))
}

/// A context as the kernel lists it; `None` if it is gone.
pub fn listed(id: u64) -> Outcome<Option<ContextListing>> {
    let contexts = kit::system()?.contexts().doing("contexts")?;
    Ok(contexts.into_iter().find(|context| context.info.id == id))
}

/// Waits until context `id` is lent along `depth` calls; returns the process and thread that have it.
pub fn wait_lent(id: u64, depth: u32) -> Outcome<Option<(u32, u32)>> {
    let mut to = None;
    kit::wait_until("a context should be lent", || {
        let found = listed(id)?;
        to = found.and_then(|found| found.lent_to);
        Ok(found.is_some_and(|found| found.info.lent_depth == depth))
    })?;
    Ok(to)
}

/// The result of a test without figures.
pub fn quiet() -> Outcome<String> {
    Ok(String::new())
}
