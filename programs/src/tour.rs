//! The steps of the tour that show CPU time as a capability: a budget beside hogs, a budget lent along a call, a budget taken back.
//!
//! All threads of a step share CPU 0. What only the kernel decides is checked on every machine. Whether a thread got its time on time
//! also depends on the host, which may stop the emulator at any moment: that is shown as measured, and checked only where the clock
//! counts instructions, on one CPU.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rt::sync::Mutex;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Answer, Fallback, NotificationKind, OperationResult, Pending, SchedulingContext, Spec, SystemInfo,
    ThreadControl, caps, println, thread, time,
};

use crate::contexts::{self, Lend, new_context_soon};
use crate::ensure;
use crate::fair::Kind;
use crate::kit::MS;
use crate::proof::{Doing, Failure, Outcome};
use crate::text::{Colour, Percent, Tinted, permille};
use crate::ticks::{self, Scale};
use crate::timeline::{Clock, Ruler, Timeline};

/// The budget of each step's thread.
const BUDGET_NS: u64 = 4 * MS;
/// The period of that budget.
const PERIOD_NS: u64 = 20 * MS;
/// How many periods are shown.
const PERIODS: u64 = 6;
/// Columns of a timeline.
const COLUMNS: usize = 60;
/// How many threads of the largest weight compete with it.
const HOGS: usize = 2;
const HOG_WEIGHT: u16 = 1024;

/// The person or the log that the tour is shown to.
pub struct Visitor {
    /// A person at a terminal sees moving pictures and colours; a log gets the last picture in plain text.
    pub is_live: bool,
    /// The pending read of the key that ends the tour, until a key was pressed.
    pub key: Option<Pending<usize>>,
    /// Whether a key was pressed.
    pub has_left: bool,
}

impl Visitor {
    /// Whether a key was pressed. Steps also ask between their parts, because an emulated machine can be slow.
    pub fn leaves(&mut self) -> bool {
        self.has_left |= matches!(self.key.as_mut().and_then(Pending::poll), Some(Ok(_)));
        if self.has_left {
            self.key = None;
        }
        self.has_left
    }

    /// `text` in a colour if the visitor is live.
    fn tint<T>(&self, colour: Colour, text: T) -> Tinted<T> {
        Tinted { colour: self.is_live.then_some(colour), text }
    }
}

/// Whether the machine's time is its own, so that the CPU time of a thread does not depend on the host.
fn is_exact() -> bool {
    rt::boot_info().cpus == 1 && ticks::is_counted()
}

fn spec() -> Spec {
    Spec::new(BUDGET_NS, PERIOD_NS).cpus([0])
}

/// Pins the calling thread to CPU 0.
fn pin() -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1]).doing("stay on CPU 0")
}

/// Threads of the largest weight that want all of CPU 0.
struct Hogs {
    is_over: Arc<AtomicBool>,
    /// When the timeline starts, by the CPU's counter; 0 until that is known.
    start_ticks: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Outcome<Timeline>>>,
}

impl Hogs {
    fn start(scale: Scale) -> Outcome<Hogs> {
        let is_over = Arc::new(AtomicBool::new(false));
        let start_ticks = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for _ in 0..HOGS {
            let (is_over, start_ticks) = (Arc::clone(&is_over), Arc::clone(&start_ticks));
            let hog = move || {
                Kind::weight(HOG_WEIGHT).take_on()?;
                pin()?;
                let mut timeline = Timeline::new();
                while start_ticks.load(Ordering::Acquire) == 0 && !is_over.load(Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
                let clock = Clock::since(start_ticks.load(Ordering::Acquire), scale);
                timeline.compute_while(clock, |_, _| !is_over.load(Ordering::Relaxed));
                Ok(timeline)
            };
            threads.push(Builder::new().spawn(hog).doing("start a hog")?);
        }
        Ok(Hogs { is_over, start_ticks, threads })
    }

    /// Ends the hogs; returns when each had the CPU.
    fn end(self) -> Outcome<Vec<Timeline>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|hog| hog.join()?).collect()
    }
}

/// What a thread that wanted all of CPU 0 measured, and how much of its context was used.
struct Seen {
    thread: Timeline,
    hogs: Vec<Timeline>,
    consumed_ns: u64,
    depletions: u64,
    /// Deadlines that the kernel saw pass before the budget was used.
    missed: u64,
}

/// Runs a thread beside hogs for the time that is shown, with a budget or with its weight alone.
fn beside_hogs(scale: Scale, has_budget: bool) -> Outcome<Seen> {
    let context = if has_budget { Some(new_context_soon(&spec())?) } else { None };
    let hogs = Hogs::start(scale)?;
    let start_ticks = Arc::clone(&hogs.start_ticks);
    let work = move || -> Outcome<(Timeline, [u64; 3])> {
        pin()?;
        if let Some(context) = &context {
            context.bind(Fallback::BestEffort)?.ok()?;
        }
        let clock = Clock::start(scale);
        start_ticks.store(clock.start_ticks(), Ordering::Release);
        let mut timeline = Timeline::new();
        timeline.compute_while(clock, |now, _| now < PERIODS * PERIOD_NS);
        let used = match &context {
            Some(context) => {
                let info = context.info()?.ok()?;
                let news = context.drain()?.ok()?;
                let missed = news.get(NotificationKind::DeadlineOrTimeout).map_or(0, |cell| cell.coalesced);
                [info.consumed_ns, info.depletions, missed]
            }
            None => [timeline.ran_ns(0, u64::MAX), 0, 0],
        };
        Ok((timeline, used))
    };
    let (thread, [consumed_ns, depletions, missed]) =
        Builder::new().spawn(work).doing("start the thread")?.join()??;
    Ok(Seen { thread, hogs: hogs.end()?, consumed_ns, depletions, missed })
}

/// Prints a row of a timeline under its name.
fn print_row(name: &str, row: impl core::fmt::Display) {
    println!("   {name:12} {row}");
}

fn ruler(step_ms: u64) -> Ruler {
    Ruler { columns: COLUMNS, step: COLUMNS / PERIODS as usize, step_ms }
}

/// Step: a thread with a budget beside hogs, throttled and on time.
pub fn budget(visitor: &mut Visitor) -> Outcome {
    let column_ns = PERIODS * PERIOD_NS / COLUMNS as u64;
    let scale = Scale::measure()?;
    let plain = beside_hogs(scale, false)?;
    if visitor.leaves() {
        return Ok(());
    }
    let seen = beside_hogs(scale, true)?;
    let share = |ns: u64| Percent(permille(ns, PERIODS * PERIOD_NS));
    print_row("", ruler(20));
    print_row("no budget", plain.thread.row(column_ns, COLUMNS));
    print_row("budget", visitor.tint(Colour::Met, seen.thread.row(column_ns, COLUMNS)));
    for hog in &seen.hogs {
        print_row("  a hog", hog.row(column_ns, COLUMNS));
    }
    let on_time = PERIODS.saturating_sub(seen.missed);
    let ran_ns = seen.thread.ran_ns(0, PERIODS * PERIOD_NS);
    let promised_ns = PERIODS * BUDGET_NS;
    println!("   by its weight alone it had {} % of the CPU", share(plain.consumed_ns));
    let colour = if on_time == PERIODS { Colour::Met } else { Colour::Missed };
    println!(
        "   with a budget {} %: throttled {} times, {}",
        share(ran_ns),
        seen.depletions,
        visitor.tint(colour, format_args!("on time in {on_time} of {PERIODS} periods"))
    );
    ensure!(seen.depletions > 0, "a thread that wants all of a CPU was never throttled");
    // Only by counted instructions: if the host stops a CPU in the middle of an interrupt, the thread that the interrupt serves is charged for the stop.
    if is_exact() {
        ensure!(
            seen.consumed_ns.abs_diff(promised_ns) * 100 <= promised_ns,
            "it had {} ns, promised were {promised_ns}",
            seen.consumed_ns
        );
        // Also by the thread's own measurement: it got no time that was charged to no context.
        ensure!(ran_ns.abs_diff(promised_ns) * 20 <= promised_ns, "it ran for {ran_ns} ns of {promised_ns}");
        ensure!(on_time == PERIODS, "it was on time in {on_time} of {PERIODS} periods only");
        let got = |period: u64| seen.thread.ran_ns(period * PERIOD_NS, (period + 1) * PERIOD_NS);
        let short = (0..PERIODS).find(|period| got(*period) * 10 < BUDGET_NS * 9);
        ensure!(short.is_none(), "it had less than its budget in period {short:?}: {:?}", seen.thread);
        ensure!(
            plain.consumed_ns * 10 < promised_ns * 5,
            "without a budget it had {} ns of {promised_ns}",
            plain.consumed_ns
        );
    } else if on_time < PERIODS || ran_ns.abs_diff(promised_ns) * 10 > promised_ns {
        say_disturbed();
    }
    Ok(())
}

/// Explains why figures differ from those of a machine that runs all the time.
fn say_disturbed() {
    println!("   (the host kept this machine waiting: `make run ICOUNT=1` is not disturbed)");
}

/// A method that only lets the emulator translate the server's code.
const WARM_UP: u16 = 2;
/// How long the server of the step [`loan`] works for a call: longer than the caller's budget lasts.
const SERVER_NS: u64 = 5 * MS;

/// Step: a budget goes along with a call. The server runs on it, and the rest comes back with the answer.
pub fn loan(visitor: &mut Visitor) -> Outcome {
    const COLUMN_NS: u64 = MS / 2;
    let scale = Scale::measure()?;
    let clock_start = Arc::new(AtomicU64::new(0));
    let server_line = Arc::new(Mutex::new(Timeline::new()));
    let (theirs, their_start) = (Arc::clone(&server_line), Arc::clone(&clock_start));
    let server = Lend::start_on(Some(0), move |call| {
        if call.method != WARM_UP {
            let clock = Clock::since(their_start.load(Ordering::Acquire), scale);
            theirs.lock().compute_while(clock, |_, own_ns| own_ns < SERVER_NS);
        }
        Answer::Words([has_loan().unwrap_or(false).into(), 0])
    })?;
    let context = new_context_soon(&spec())?;
    let hogs = Hogs::start(scale)?;
    let (endpoint, hogs_start) = (Arc::clone(&server.endpoint), Arc::clone(&hogs.start_ticks));
    let work = move || -> Outcome<(Timeline, u64, [u64; 2])> {
        pin()?;
        context.bind(Fallback::BestEffort)?.ok()?;
        // An emulator translates code when it runs for the first time, which takes milliseconds: the first call gets that done, and
        // charged, beforehand.
        endpoint.call(WARM_UP, [0; 2]).doing("call for the first time")?;
        let _ = context.info()?;
        time::sleep(2 * PERIOD_NS)?;
        let clock = Clock::start(scale);
        clock_start.store(clock.start_ticks(), Ordering::Release);
        hogs_start.store(clock.start_ticks(), Ordering::Release);
        let mut timeline = Timeline::new();
        timeline.compute_while(clock, |_, own_ns| own_ns < MS);
        let called_ns = clock.now_ns();
        let before = context.info()?.ok()?;
        let [is_lent, _] = endpoint.call(1, [0; 2]).doing("call")?;
        let info = context.info()?.ok()?;
        ensure!(is_lent == 1, "the server had no loan");
        ensure!(info.lent_depth == 0, "the loan is not back: {info:?}");
        timeline.compute_while(clock, |_, own_ns| own_ns < MS);
        let charged_ns = info.consumed_ns - before.consumed_ns;
        Ok((timeline, called_ns, [charged_ns, info.depletions - before.depletions]))
    };
    let caller = Builder::new().spawn(work).doing("start the caller")?;
    let (caller, called_ns, [charged_ns, depletions]) = caller.join()??;
    hogs.end()?;
    server.stop()?;
    let server = server_line.lock();
    print_row("", ruler(5));
    print_row("the caller", visitor.tint(Colour::Met, caller.row(COLUMN_NS, COLUMNS)));
    print_row("its server", visitor.tint(Colour::Met, server.row(COLUMN_NS, COLUMNS)));
    println!(
        "   the server's 5 ms cost the caller's budget {}.{} ms; where that was used up,\n   \
         the server waited for the caller's next period",
        charged_ns / MS,
        charged_ns / (MS / 10) % 10
    );
    if charged_ns > 2 * SERVER_NS {
        say_disturbed();
    }
    ensure!(charged_ns * 10 >= SERVER_NS * 9, "the server's 5 ms cost the caller {charged_ns} ns");
    ensure!(depletions > 0, "7 ms of work on a budget of 4 ms, and it was never used up");
    if is_exact() {
        let begins = server.first_after(0).unwrap_or(u64::MAX);
        ensure!(begins < called_ns + MS / 2, "called at {called_ns} ns, the server began at {begins}");
        let ends = caller.ran_ns(0, 20 * MS + 4 * MS);
        ensure!(ends >= 19 * MS / 10, "the caller was not back in its second period: {caller:?}");
    }
    Ok(())
}

/// Whether the calling thread runs on another's context.
fn has_loan() -> Outcome<bool> {
    let me = (rt::boot_info().pid, thread::id());
    let contexts = caps::any::<SystemInfo>()?.contexts()?;
    Ok(contexts.iter().any(|listing| listing.lent_to == Some(me)))
}

/// Step: the owner of a budget revokes it while it is in use, and later gives another one.
pub fn taken_back(visitor: &mut Visitor) -> Outcome {
    const COLUMN_NS: u64 = 2 * MS;
    let scale = Scale::measure()?;
    let owner = new_context_soon(&spec())?;
    let held: SchedulingContext = contexts::copy(&owner)?;
    let hogs = Hogs::start(scale)?;
    let start_ticks = Arc::clone(&hogs.start_ticks);
    let work = move || -> Outcome<Timeline> {
        pin()?;
        held.bind(Fallback::Stop)?.ok()?;
        let clock = Clock::start(scale);
        start_ticks.store(clock.start_ticks(), Ordering::Release);
        let mut timeline = Timeline::new();
        timeline.compute_while(clock, |now, _| now < PERIODS * PERIOD_NS);
        let stale = held.info()?.result;
        ensure!(stale == OperationResult::StaleGeneration, "the old capability says {stale:?}");
        Ok(timeline)
    };
    let runs = Builder::new().spawn(work).doing("start the thread")?;
    crate::kit::wait_until("the thread begins", || Ok(hogs.start_ticks.load(Ordering::Acquire) != 0))?;
    let clock = Clock::since(hogs.start_ticks.load(Ordering::Acquire), scale);
    // Sleeps until the thread is probably between two turns; this thread has no budget, so it cannot tell exactly.
    time::sleep((50 * MS).saturating_sub(clock.now_ns()).max(MS))?;
    let ended = owner.revoke()?;
    let revoked_ns = clock.now_ns();
    ensure!(ended.result == OperationResult::Ok, "the revocation says {:?}", ended.result);
    time::sleep((85 * MS).saturating_sub(clock.now_ns()).max(20 * MS))?;
    let handle = runs.handle().ok_or_else(|| Failure::new("the thread has no handle"))?;
    // The time that the revoked context used in this period comes back before the new one gets it (S-13).
    let again = new_context_soon(&spec())?;
    let given_ns = clock.now_ns();
    again.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    let timeline = runs.join()??;
    hogs.end()?;
    print_row("", ruler(20));
    print_row("the thread", visitor.tint(Colour::Met, timeline.row(COLUMN_NS, COLUMNS)));
    let column = |ns: u64| (ns / COLUMN_NS) as usize;
    let (left, right) = (column(revoked_ns).min(COLUMNS), column(given_ns).min(COLUMNS));
    let gap = right.saturating_sub(left + "^ taken back".len());
    println!("   {:12} {:left$}^ taken back{:gap$}^ given anew", "", "", "");
    println!(
        "   revoked at {} ms: it stops, and its capability is stale; another at {} ms",
        revoked_ns / MS,
        given_ns / MS
    );
    // A CPU that the host has stopped hears of the revocation when the host lets it go on.
    let stolen_ns = timeline.ran_ns(revoked_ns, given_ns);
    ensure!(stolen_ns <= MS, "it ran for {stolen_ns} ns on time that was taken back");
    ensure!(timeline.ran_ns(0, revoked_ns) > 0, "it never ran before that");
    // On a host that was away for long there was nothing left to run for.
    let wants_more = is_exact() || given_ns + PERIOD_NS / 2 < PERIODS * PERIOD_NS;
    ensure!(!wants_more || timeline.ran_ns(given_ns, u64::MAX) > 0, "it never ran again");
    Ok(())
}
