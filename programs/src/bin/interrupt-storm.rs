//! Proof that interrupts other than the timer's also have an owner (S-16): refills of budgets, threads that watch budgets or handle their faults, and
//! requests of other CPUs to a CPU, beside a neighbour that was promised half of that CPU. The neighbour counts its own work, and does less than one
//! per cent less of it than alone.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::Ordering;

use programs::contexts::{copy, new_context_soon};
use programs::kit::{self, MS};
use programs::neighbour::{self, Seen, Shared, Thread};
use programs::proof::{Failure, Outcome, prove, step};
use programs::{ensure, workload};
use rt::abi::TIMEOUT_METHOD;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Answer, Endpoint, Factory, Fallback, ParkSpace, SchedulingContext, Spec, ThreadControl, Timeout, args,
    caps,
};

rt::main!(run);

/// How long each storm is watched, unless the first argument says otherwise, in ms of guest time: whole periods of the neighbour.
const WINDOW_MS: u64 = 1_000;
/// Budgets that are used up and refilled all the time, and how large they are.
const BUDGETS: usize = 8;
const BUDGET: Spec = Spec::new(20_000, MS);
/// The contexts of the threads that watch one of these budgets, or handle its faults.
const WATCH: Spec = Spec::new(150_000, 10 * MS);

fn run() -> i64 {
    prove("interrupt-storm", || {
        let window_ns = args::number(0, WINDOW_MS).map_err(Failure::new)? * MS;
        // All storms run before any is judged, so that one failure does not hide the next.
        let mut storms = Vec::new();
        // Several CPUs must take turns (`--append turns=5`) to attack each other, and the turns of others are in every CPU's clock: refills on a CPU
        // are judged on a machine that has only one.
        let take_turns = rt::boot_info().cpus > 1;
        let alone = alone(window_ns, take_turns)?;
        let dries = [Then::Nothing, Then::Observed, Then::Faults];
        for then in dries.into_iter().filter(|_| !take_turns) {
            let dry = kit::counter("budgets_exhausted")?;
            let mut beside = budgets(then, window_ns)?;
            if then == Then::Nothing {
                beside.blows = kit::counter("budgets_exhausted")? - dry;
            }
            storms.push((then.name(), beside));
        }
        if take_turns {
            // Storms that leave least behind come first: an overrun is held back for many periods (S-13), and the share of the next context must be
            // available.
            for attack in [Attack::BindsUrgent, Attack::BindsDry, Attack::BindsLater, Attack::Unparks] {
                storms.push((attack.name(), attacked(attack, window_ns)?));
            }
        }
        for (name, beside) in &storms {
            step(name, || judge(&alone, beside, window_ns))?;
        }
        // Only with debug assertions: a kernel without them does not count this.
        let locks = kit::counter("shared_locks_in_dispatch")?;
        ensure!(locks == 0, "{locks} shared locks were taken between two threads");
        Ok(())
    })
}

fn judge(alone: &Seen, beside: &Seen, window_ns: u64) -> Outcome {
    ensure!(beside.blows > 500, "no storm: {} times", beside.blows);
    if alone.own_ns == 0 {
        let least = alone.work_a_second() * 990 / 1_000;
        let found = beside.work_a_second();
        ensure!(found >= least, "{found} turns in a second of its time, at least {least} were due");
    } else {
        let had = |seen: &Seen| seen.own_ns * 10_000 / seen.charged_ns.max(1);
        let (least, found) = (had(alone) * 990 / 1_000, had(beside));
        ensure!(
            found >= least,
            "it had {found} of 10,000 of what it was charged for, at least {least} were due"
        );
    }
    ensure!(beside.nobodys_ns * 50 <= window_ns, "{} ns were nobody's", beside.nobodys_ns);
    // The neighbour has its half of every period.
    ensure!(beside.charged_ns * 100 >= window_ns * 48, "the neighbour had {} ns only", beside.charged_ns);
    ensure!(beside.late == 0, "the neighbour was late {} times", beside.late);
    Ok(())
}

/// How much the neighbour gets beside only the threads that keep CPUs busy, as all storms do: so the clock is as fast as there, where CPUs take
/// turns.
fn alone(window_ns: u64, take_turns: bool) -> Outcome<Seen> {
    let storm = |shared: &Arc<Shared>| {
        let mut threads = alloc::vec![Thread::start(shared, None, |shared, _| shared.keep_busy())?];
        if take_turns {
            threads.push(Thread::start(shared, None, |shared, _| elsewhere(shared, 1))?);
            threads.extend(bystanders(shared)?);
        }
        Ok(threads)
    };
    let name = "nobody else";
    if take_turns {
        neighbour::watch_side_by_side(name, window_ns, 0, storm)
    } else {
        neighbour::watch(name, window_ns, 0, storm)
    }
}

/// Keeps all CPUs busy but the neighbour's and the attacker's: where CPUs take turns, each has the same part of the clock only as long as none is
/// idle.
fn bystanders(shared: &Arc<Shared>) -> Outcome<Vec<Thread>> {
    (2..rt::boot_info().cpus)
        .map(|cpu| Thread::start(shared, None, move |shared, _| elsewhere(shared, cpu)))
        .collect()
}

/// Keeps `cpu` busy until the case is over.
fn elsewhere(shared: &Shared, cpu: u32) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
    while !shared.is_over() {
        black_box(workload::spin(1_000, 1));
    }
    Ok(())
}

/// What follows when a budget is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It is refilled, and nothing else.
    Nothing,
    /// A thread waits to be notified.
    Observed,
    /// A fault handler is called.
    Faults,
}

impl Then {
    fn name(self) -> &'static str {
        match self {
            Then::Nothing => "budgets that are refilled",
            Then::Observed => "budgets that somebody watches",
            Then::Faults => "budgets that end in faults",
        }
    }
}

/// Budgets are used up and refilled.
fn budgets(then: Then, window_ns: u64) -> Outcome<Seen> {
    let seen = neighbour::watch(then.name(), window_ns, 0, |shared| {
        let mut threads = Vec::new();
        let watch = WATCH.cpus([0]);
        for _ in 0..BUDGETS {
            let mut spec = BUDGET.cpus([0]);
            let handler = Arc::new(caps::any::<Factory>()?.endpoint()?);
            if then == Then::Faults {
                spec = spec.fault(&handler);
                let theirs = Arc::clone(&handler);
                threads.push(Thread::start(shared, Some(&watch), move |shared, _| handle(shared, &theirs))?);
            }
            let handled = (then == Then::Faults).then(|| Arc::clone(&handler));
            let hog = Thread::start(shared, Some(&spec), move |shared, own| {
                shared.keep_busy()?;
                let Some(handler) = handled else { return Ok(()) };
                // The handler waits for a fault that does not come, and is told to end. From then on there must be no fault: so the budget is given
                // up first, unless the handler has taken it away already.
                if let Some(own) = own {
                    let _ = own.unbind()?;
                }
                Ok(handler.call(OVER, [0; 2]).map(drop)?)
            })?;
            let context = hog.context.as_ref().map(copy).transpose()?;
            threads.push(hog);
            if let Some(context) = context.filter(|_| then == Then::Observed) {
                threads
                    .push(Thread::start(shared, Some(&watch), move |shared, _| observe(shared, &context))?);
            }
        }
        Ok(threads)
    })?;
    Ok(seen)
}

/// Waits for notifications of `context`, again and again.
fn observe(shared: &Shared, context: &SchedulingContext) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1])?;
    loop {
        let news = context.wait_notification().and_then(|_| context.drain());
        // The context is gone, or will be, with the thread that runs on it until the case is over.
        if shared.is_over() {
            return Ok(());
        }
        let _ = news?;
        shared.blow(1);
    }
}

/// The method by which a thread tells its fault handler that it ends.
const OVER: u16 = 0;

/// Lets a thread that has used up its budget wait for the next refill, until the thread ends.
fn handle(shared: &Shared, endpoint: &Endpoint) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1])?;
    let mut call = endpoint.recv(&mut [])?;
    while call.method == TIMEOUT_METHOD {
        shared.blow(1);
        let answer = if shared.is_over() { Timeout::DEMOTE } else { Timeout::WAIT };
        call = endpoint.reply_recv(call.token, answer, &mut [])?;
    }
    Ok(endpoint.reply(call.token, Answer::Words([0; 2]))?)
}

/// What is done to the neighbour's CPU from another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// A thread is bound to a context with a later deadline than the neighbour's, and unbound.
    BindsLater,
    /// As `BindsLater`, with a context whose budget is used up.
    BindsDry,
    /// As `BindsLater`, with a context of a higher band: it goes before the neighbour, at its own cost.
    BindsUrgent,
    /// A thread is woken that parks again at once.
    Unparks,
}

impl Attack {
    fn name(self) -> &'static str {
        match self {
            Attack::BindsLater => "binds of another CPU, less urgent",
            Attack::BindsDry => "binds of another CPU, without budget",
            Attack::BindsUrgent => "binds of another CPU, of a higher band",
            Attack::Unparks => "wake-ups of another CPU, without a promise",
        }
    }

    fn spec(self) -> Option<Spec> {
        let spec = match self {
            Attack::BindsLater => Spec::new(20 * MS, 400 * MS),
            Attack::BindsDry => Spec::new(20_000, 90 * MS),
            Attack::BindsUrgent => Spec::new(40 * MS, 100 * MS).criticality(7),
            Attack::Unparks => return None,
        };
        Some(spec.cpus([0]))
    }
}

fn attacked(attack: Attack, window_ns: u64) -> Outcome<Seen> {
    let context = attack.spec().as_ref().map(new_context_soon).transpose()?;
    let mut target: Option<Arc<JoinHandle<Outcome>>> = None;
    let seen = neighbour::watch_side_by_side(attack.name(), window_ns, 1, |shared| {
        let mut threads = alloc::vec![Thread::start(shared, None, |shared, _| shared.keep_busy())?];
        let theirs = Arc::clone(shared);
        let hit = Builder::new()
            .stack_bytes(32 * 1024)
            .spawn(move || if attack == Attack::Unparks { park(&theirs) } else { theirs.keep_busy() })?;
        let hit = Arc::new(hit);
        target = Some(Arc::clone(&hit));
        let own = context.as_ref().map(copy).transpose()?;
        let mut attacker = Thread::start(shared, None, move |shared, _| {
            caps::any::<ThreadControl>()?.set_affinity(&[2])?;
            shared.wait()?;
            let space = caps::any::<ParkSpace>()?;
            let handle = hit.handle().ok_or_else(|| Failure::new("no handle"))?;
            while !shared.is_over() {
                if let Some(context) = &own {
                    // Refused if the thread ends meanwhile, or if the context is in transit.
                    let _ = context.bind_thread(handle, Fallback::BestEffort)?;
                    let _ = context.unbind()?;
                } else {
                    shared.bell.fetch_add(1, Ordering::Release);
                    space.unpark(&shared.bell, 1)?;
                }
                shared.blow(1);
            }
            shared.bell.fetch_add(1, Ordering::Release);
            space.unpark(&shared.bell, 1)?;
            Ok(())
        })?;
        // The context that it binds is the one that the storm is charged to.
        attacker.context = context.as_ref().map(copy).transpose()?;
        threads.push(attacker);
        threads.extend(bystanders(shared)?);
        Ok(threads)
    })?;
    if let Some(target) = target.and_then(Arc::into_inner) {
        target.join()??;
    }
    Ok(seen)
}

/// Parks again whenever it was woken.
fn park(shared: &Shared) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1])?;
    let space = caps::any::<ParkSpace>()?;
    while !shared.is_over() {
        let seen = shared.bell.load(Ordering::Acquire);
        space.park(&shared.bell, seen, 10 * MS)?;
    }
    Ok(())
}
