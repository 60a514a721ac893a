//! Budgets and periods: how exact they are, how often threads run on them, and that they cannot be bypassed.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rt::{Fallback, ParkSpace, caps, time};

use super::{Hog, Player, Stage, Test, runtime_ns};
use crate::contexts::new_context;
use crate::ensure;
use crate::fair;
use crate::kit::{self, MS};
use crate::proof::Outcome;
use crate::ticks;

/// The tests of this module.
pub const TESTS: [Test; 6] = [
    ("periodic-accuracy", periodic_accuracy),
    ("periodic-one", |stage| periodic(stage, &[4])),
    ("periodic-two", |stage| periodic(stage, &[2, 1])),
    ("periodic-three", |stage| periodic(stage, &[4, 2, 1])),
    ("overrun-stops", overrun_stops),
    ("resume-in-budget", resume_in_budget),
];

/// The budget of a thread with 10 ms in 100 ms comes back every 100 ms, within 2 ms, although others want the
/// CPU.
fn periodic_accuracy(stage: &Stage) -> Outcome<String> {
    const PERIOD_NS: u64 = 100 * MS;
    const RELEASES: usize = 5;
    let other = Hog::at_weight(stage, fair::WEIGHT)?;
    let releases: Arc<[AtomicU64; RELEASES]> = Arc::default();
    let (seen, scale) = (Arc::clone(&releases), stage.scale);
    let periodic = Player::start(&stage.spec(10 * MS, PERIOD_NS, 1), move || {
        let mut last = ticks::now();
        for release in seen.iter() {
            // A long gap means that the thread was throttled, and is back with a new budget.
            loop {
                let before = core::mem::replace(&mut last, ticks::now());
                if scale.to_ns(last - before) >= 20 * MS {
                    break;
                }
                core::hint::spin_loop();
            }
            release.store(scale.to_ns(last), Ordering::Relaxed);
        }
        Ok(())
    })?;
    other.player.go()?;
    periodic.go()?;
    periodic.join()?;
    other.stop()?;
    let at: Vec<u64> = releases.iter().map(|release| release.load(Ordering::Relaxed)).collect();
    let mut worst = 0;
    for pair in at.windows(2) {
        let period = pair[1] - pair[0];
        worst = worst.max(period.abs_diff(PERIOD_NS));
        ensure!(period.abs_diff(PERIOD_NS) <= 2 * MS, "a period of {period} ns: {at:?}");
    }
    Ok(format!("periods={} worst_error_ns={worst}", at.len() - 1))
}

/// Threads run as often as their `rates` say, and each gets its budget every time.
fn periodic(stage: &Stage, rates: &[u64]) -> Outcome<String> {
    const BUDGET_NS: u64 = 2 * MS;
    const LONGEST_NS: u64 = 80 * MS;
    const WINDOWS: u64 = 3;
    let hog = |rate: &u64| Hog::on_context(stage, MS / 20, &stage.spec(BUDGET_NS, LONGEST_NS / rate, 1));
    let hogs: Outcome<Vec<Hog>> = rates.iter().map(hog).collect();
    let hogs = hogs?;
    let looks = || -> Outcome<Vec<(u64, u64)>> {
        let look = |hog: &Hog| {
            let info = hog.player.its()?.info()?.ok()?;
            Ok((info.depletions, info.consumed_ns))
        };
        hogs.iter().map(look).collect()
    };
    // The first budgets are used one after the other; counting starts in the middle of the quiet time after
    // that.
    hogs.iter().try_for_each(|hog| hog.player.go())?;
    time::sleep(LONGEST_NS + 10 * MS)?;
    let before = looks()?;
    time::sleep(WINDOWS * LONGEST_NS)?;
    let after = looks()?;
    hogs.into_iter().try_for_each(Hog::stop)?;
    let mut text = String::from("runs=");
    for (at, rate) in rates.iter().enumerate() {
        let (runs, used) = (after[at].0 - before[at].0, after[at].1 - before[at].1);
        ensure!(runs == WINDOWS * rate, "{runs} runs instead of {} of {rates:?}", WINDOWS * rate);
        let wanted = WINDOWS * rate * BUDGET_NS;
        ensure!(used.abs_diff(wanted) <= wanted / 50, "{used} ns in {runs} runs of {BUDGET_NS} ns");
        text += &format!("{}{runs}", if at == 0 { "" } else { ":" });
    }
    Ok(text)
}

/// A thread that has used its budget does not run until the next period.
fn overrun_stops(stage: &Stage) -> Outcome<String> {
    const BUDGET_NS: u64 = 2 * MS;
    let hog = Hog::on_context(stage, MS / 50, &stage.spec(BUDGET_NS, 60 * MS, 1))?;
    let start = time::now_ns()?;
    hog.player.go()?;
    time::sleep(20 * MS)?;
    let first = (hog.turns(), hog.player.its()?.info()?.ok()?);
    time::sleep(30 * MS)?;
    let second = (hog.turns(), hog.player.its()?.info()?.ok()?);
    ensure!(time::now_ns()? < start + 60 * MS, "this took longer than a period");
    ensure!(first.0 > 10 && first.0 == second.0, "{} turns, and then {}", first.0, second.0);
    ensure!(first.1.depletions == 1 && first.1.remaining_ns == 0, "not spent: {:?}", first.1);
    ensure!(first.1.consumed_ns == second.1.consumed_ns, "charged while it stood still");
    let past = first.1.consumed_ns.saturating_sub(BUDGET_NS);
    let most = 5_000 * stage.instruction_ns;
    ensure!(!stage.is_counted || past <= most, "{past} ns past its budget, {most} at the most");
    kit::wait_until("it runs again", || Ok(hog.turns() > second.0))?;
    ensure!(time::now_ns()? >= start + 60 * MS, "it ran before its period was over");
    hog.stop()?;
    Ok(format!("past_budget_ns={past} most_ns={most}"))
}

/// Waking a thread, or unbinding and binding it again, does not give it more than its budget.
fn resume_in_budget(stage: &Stage) -> Outcome<String> {
    const BUDGET_NS: u64 = MS;
    const PERIOD_NS: u64 = 30 * MS;
    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (is_over, called, scale) = (Arc::clone(&over), Arc::clone(&calls), stage.scale);
    let mut player = Player::plain(move || {
        let space: ParkSpace = caps::any()?;
        while !is_over.load(Ordering::Relaxed) {
            let seen = called.load(Ordering::Acquire);
            fair::compute(MS / 2, scale);
            space.park(&called, seen, u64::MAX)?;
        }
        Ok(())
    })?;
    player.bind(new_context(&stage.spec(BUDGET_NS, PERIOD_NS, 1))?, Fallback::Stop)?;
    let space: ParkSpace = caps::any()?;
    let (start, before) = (time::now_ns()?, runtime_ns(player.tid)?);
    player.go()?;
    let (mut wakes, mut binds) = (0u64, 0u64);
    while time::now_ns()? < start + 4 * PERIOD_NS {
        time::sleep(MS)?;
        calls.fetch_add(1, Ordering::AcqRel);
        space.unpark(&calls, 1)?;
        wakes += 1;
        if wakes % 3 == 0 {
            player.its()?.unbind()?.ok()?;
            player.its()?.bind_thread(player.handle()?, Fallback::Stop)?.ok()?;
            binds += 1;
        }
    }
    let (used, elapsed) = (player.its()?.consumed()?.ok()?.total_ns, time::now_ns()? - start);
    let ran = runtime_ns(player.tid)? - before;
    let most = (elapsed / PERIOD_NS + 1) * BUDGET_NS;
    ensure!(used > 2 * BUDGET_NS, "it hardly ran: {used} ns");
    ensure!(used <= most + most / 50, "{used} ns in {elapsed} ns of {BUDGET_NS} in {PERIOD_NS}");
    ensure!(ran <= most + most / 10, "it ran for {ran} ns on {used} ns of budget");
    over.store(true, Ordering::Relaxed);
    calls.fetch_add(1, Ordering::AcqRel);
    space.unpark(&calls, 1)?;
    player.join()?;
    Ok(format!("used_ns={used} most_ns={most} wakes={wakes} binds={binds}"))
}
