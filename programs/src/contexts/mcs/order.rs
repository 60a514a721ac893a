//! Which thread runs first: wake-ups by band, weights and bands that change in the queue, yielding, preemption, other
//! CPUs.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi::Exception;
use rt::{
    Answer, Fallback, Incoming, OperationResult as R, ParkSpace, SchedulingPolicy, Spec, ThreadControl, caps,
    time,
};

use super::{Hog, Marks, Player, Stage, Test, endpoint, quiet};
use crate::contexts::{Lend, all_back, copy, cpu_now, new_context};
use crate::ensure;
use crate::fair;
use crate::kit::{self, MS, raised};
use crate::proof::{Doing, Outcome};
use crate::ticks;

/// The tests of this module.
pub const TESTS: [Test; 9] = [
    ("ipc-wake-order", ipc_wake_order),
    ("reweigh-queued", reweigh_queued),
    ("reply-wait", reply_wait),
    ("resume-without", resume_without),
    ("yield-to-errors", yield_to_errors),
    ("yield-to-cleanup", yield_to_cleanup),
    ("yield-to", yield_to),
    ("preempt-wake", preempt_wake),
    ("move-cpu", move_cpu),
];

/// Callers are received, and run after their answers, by band: not in the order in which they were woken or answered.
fn ipc_wake_order(stage: &Stage) -> Outcome<String> {
    let (talk, woken) = (endpoint()?, Marks::new());
    let mut callers = Vec::new();
    for band in 1..=4 {
        let (talk, woken) = (Arc::clone(&talk), Arc::clone(&woken));
        callers.push(Player::start(&stage.part(band), move || {
            talk.call(1, [band.into(), 0])?;
            woken.mark(band.into());
            Ok(())
        })?);
    }
    let heard = stage.conduct(|| {
        callers.iter().try_for_each(Player::go)?;
        let calls: rt::Result<Vec<Incoming>> = callers.iter().map(|_| talk.recv(&mut [])).collect();
        let calls = calls?;
        calls.iter().rev().try_for_each(|call| talk.reply(call.token, Answer::Words([0; 2])))?;
        Ok(calls.iter().map(|call| call.message.words()[0]).collect::<Vec<_>>())
    })?;
    callers.into_iter().try_for_each(Player::join)?;
    ensure!(heard == [4, 3, 2, 1], "heard in the order {heard:?}");
    ensure!(woken.list() == [4, 3, 2, 1], "woken in the order {:?}", woken.list());
    quiet()
}

/// A change affects a queued thread: a new band at once, a new weight from its next turn on.
fn reweigh_queued(stage: &Stage) -> Outcome<String> {
    for changes in [false, true] {
        let ran = Marks::new();
        let mut players = Vec::new();
        for band in [3, 2] {
            let ran = Arc::clone(&ran);
            players.push(Player::start(&stage.part(band), move || {
                ran.mark(band.into());
                Ok(())
            })?);
        }
        stage.conduct(|| {
            players.iter().try_for_each(Player::go)?;
            if changes {
                players[0].its()?.reconfigure(&stage.part(1))?.ok()?;
            }
            Ok(())
        })?;
        players.into_iter().try_for_each(Player::join)?;
        let wanted = if changes { [2, 3] } else { [3, 2] };
        ensure!(ran.list() == wanted, "with a change: {changes}, they ran in the order {:?}", ran.list());
    }
    weights(stage)
}

/// Two threads share the stage's CPU 1:1, and 3:1 after one has changed its weight.
fn weights(stage: &Stage) -> Outcome<String> {
    const WINDOW_NS: u64 = 120 * MS;
    let (is_heavy, cpu, scale) = (Arc::new(AtomicBool::new(false)), stage.cpu, stage.scale);
    let heavy = Arc::clone(&is_heavy);
    let changes = Hog::start(stage, MS / 10, move || {
        caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
        while !heavy.load(Ordering::Acquire) {
            fair::compute(MS / 10, scale);
        }
        Ok(caps::any::<SchedulingPolicy>()?.set_weight(3 * fair::WEIGHT)?)
    })?;
    let stays = Hog::at_weight(stage, fair::WEIGHT)?;
    changes.player.go()?;
    stays.player.go()?;
    let share = || -> Outcome<u64> {
        time::sleep(25 * MS)?;
        let before = (changes.runtime_ns()?, stays.runtime_ns()?);
        time::sleep(WINDOW_NS)?;
        let (a, b) = (changes.runtime_ns()? - before.0, stays.runtime_ns()? - before.1);
        Ok(fair::ppm(a, a + b))
    };
    let before = share()?;
    is_heavy.store(true, Ordering::Release);
    let after = share()?;
    changes.stop()?;
    stays.stop()?;
    fair::within("the share before", before, 500_000, 12)?;
    fair::within("the share after", after, 750_000, 12)?;
    Ok(format!("weight_share_before_ppm={before} weight_share_after_ppm={after}"))
}

/// A server that answers and waits in one step: a round trip takes two direct handoffs and one loan, and involves no
/// other thread.
fn reply_wait(stage: &Stage) -> Outcome<String> {
    const TRIPS: u64 = 200;
    let lend = Lend::start(|call| Answer::Words([call.message.words()[0] + 1, 0]))?;
    let own = new_context(&stage.part(1))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let before = (kit::counter("handoffs_taken")?, kit::counter("loans")?, own.consumed()?.ok()?.total_ns);
    for trip in 0..TRIPS {
        let answer = lend.endpoint.call(1, [trip, 0])?;
        ensure!(answer[0] == trip + 1, "trip {trip} was answered {answer:?}");
    }
    let used = own.consumed()?.ok()?.total_ns - before.2;
    let (taken, loans) = (kit::counter("handoffs_taken")? - before.0, kit::counter("loans")? - before.1);
    own.unbind()?.ok()?;
    ensure!(loans == TRIPS, "{loans} loans in {TRIPS} calls");
    ensure!(taken >= 2 * TRIPS, "{taken} hand-overs in {TRIPS} calls: not by the fast path");
    lend.stop()?;
    Ok(format!("round_trip_ns={}", used / TRIPS))
}

/// A thread that may run only on contexts does not run without one, nor on a used-up one before its refill.
fn resume_without(stage: &Stage) -> Outcome<String> {
    let ran = Arc::new(AtomicU64::new(0));
    let notes = || {
        let ran = Arc::clone(&ran);
        move || {
            ran.store(time::now_ns()?, Ordering::Release);
            Ok(())
        }
    };
    // The context is missing.
    let mut missing = Player::plain(notes())?;
    missing.bind(new_context(&stage.part(1))?, Fallback::Stop)?;
    missing.its()?.revoke()?.ok()?;
    missing.go()?;
    time::sleep(20 * MS)?;
    ensure!(ran.load(Ordering::Acquire) == 0, "it ran without a context");
    missing.bind(new_context(&stage.part(1))?, Fallback::Stop)?;
    missing.join()?;
    ensure!(ran.swap(0, Ordering::AcqRel) != 0, "it did not run with one");
    // The context is used up.
    let burner = Hog::on_context(stage, MS / 10, &stage.spec(2 * MS, 60 * MS, 1))?;
    burner.player.go()?;
    let spent = copy(burner.player.its()?)?;
    kit::wait_until("the budget is spent", || Ok(spent.info()?.ok()?.depletions == 1))?;
    spent.unbind()?.ok()?;
    burner.stop()?;
    let refill = spent.info()?.ok()?.next_refill_ns;
    let mut empty = Player::plain(notes())?;
    empty.bind(spent, Fallback::Stop)?;
    empty.go()?;
    ensure!(time::now_ns()? < refill, "the refill came too soon for this test");
    empty.join()?;
    let at = ran.load(Ordering::Acquire);
    ensure!(at >= refill, "it ran {} ns before its refill", refill - at);
    let late = at - refill;
    ensure!(stage.is_prompt(late), "it ran {late} ns after its refill");
    Ok(format!("after_refill_ns={late}"))
}

/// Every refusal of `yieldTo` has its name, and the caller goes on.
fn yield_to_errors(stage: &Stage) -> Outcome<String> {
    let idle = new_context(&stage.part(0))?;
    ensure!(idle.yield_to()?.result == R::NotBound, "to nobody");
    let asleep = Player::start(&stage.part(0), || Ok(()))?;
    ensure!(asleep.its()?.yield_to()?.result == R::NotReady, "to one that sleeps");
    let scale = stage.scale;
    let spent = Player::start(&stage.spec(MS, 100 * MS, 0), move || {
        fair::compute(2 * MS, scale);
        Ok(())
    })?;
    spent.go()?;
    kit::wait_until("the budget is spent", || Ok(spent.its()?.info()?.ok()?.depletions == 1))?;
    stage.conduct(|| {
        ensure!(spent.its()?.yield_to()?.result == R::NotReady, "to one without budget");
        Ok(())
    })?;
    let own = new_context(&stage.part(0))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    ensure!(own.yield_to()?.result == R::NotReady, "to oneself");
    let stale = copy(&own)?;
    own.revoke()?.ok()?;
    ensure!(own.yield_to()?.result == R::Revoked, "to a revoked one");
    ensure!(stale.yield_to()?.result == R::StaleGeneration, "to a stale one");
    asleep.go()?;
    asleep.join()?;
    spent.join()?;
    quiet()
}

/// The thread that was yielded to ends, or takes the context of the thread queued behind it: that thread goes on,
/// with what it has.
fn yield_to_cleanup(stage: &Stage) -> Outcome<String> {
    let own = new_context(&stage.spec(10 * MS, 50 * MS, 0))?;
    let other = stage.spec(10 * MS, 200 * MS, 0);
    own.bind(Fallback::BestEffort)?.ok()?;
    // The other thread ends at once.
    let ends = Player::start(&other, || Ok(()))?;
    ends.go()?;
    ensure!(ends.its()?.yield_to()?.result == R::Ok, "did not give way");
    let before = own.consumed()?.ok()?.total_ns;
    stage.burn(MS);
    let used = own.consumed()?.ok()?.total_ns - before;
    ensure!(used >= MS, "{used} ns charged for a millisecond after giving way");
    ends.join()?;
    // The other thread unbinds the one that waits behind it.
    let theirs = copy(&own)?;
    let takes = Player::start(&other, move || {
        theirs.unbind()?.ok()?;
        Ok(())
    })?;
    takes.go()?;
    ensure!(takes.its()?.yield_to()?.result == R::Ok, "did not give way");
    ensure!(own.unbind()?.result == R::NotBound, "still bound");
    let before = own.consumed()?.ok()?.total_ns;
    stage.burn(MS);
    ensure!(own.consumed()?.ok()?.total_ns == before, "charged to a context that is not its own any more");
    takes.join()?;
    // The other thread revokes its own context, and is best effort from then on: the one behind it goes first.
    let (ran, cue, cpu) = (Marks::new(), Arc::new(AtomicU32::new(0)), stage.cpu);
    let doomed = new_context(&other)?;
    let (marks, its_cue, theirs) = (Arc::clone(&ran), Arc::clone(&cue), copy(&doomed)?);
    let mut revokes = Player::plain(move || {
        // Pins the thread, so that no other CPU takes it.
        caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
        fair::wait_for(&its_cue)?;
        marks.mark(1);
        theirs.revoke()?.ok()?;
        marks.mark(3);
        Ok(())
    })?;
    revokes.bind(doomed, Fallback::BestEffort)?;
    revokes.go_and_wait()?;
    own.bind(Fallback::BestEffort)?.ok()?;
    cue.store(1, Ordering::Release);
    caps::any::<ParkSpace>()?.unpark(&cue, 1)?;
    ensure!(revokes.its()?.yield_to()?.result == R::Ok, "did not give way");
    ran.mark(2);
    own.unbind()?.ok()?;
    revokes.join()?;
    ensure!(ran.list() == [1, 2, 3], "they ran in the order {:?}", ran.list());
    quiet()
}

/// The caller queues behind the thread that it yields to; a thread that is more urgent than that one runs before
/// both.
fn yield_to(stage: &Stage) -> Outcome<String> {
    let ran = Marks::new();
    let own = new_context(&stage.spec(10 * MS, 50 * MS, 0))?;
    let mut players = Vec::new();
    for (who, period) in [(1, 100 * MS), (2, 200 * MS)] {
        let ran = Arc::clone(&ran);
        players.push(Player::start(&stage.spec(5 * MS, period, 0), move || {
            ran.mark(who);
            Ok(())
        })?);
    }
    own.bind(Fallback::BestEffort)?.ok()?;
    players.iter().rev().try_for_each(Player::go)?;
    let before = ran.list();
    let given = players[1].its()?.yield_to()?.result;
    ran.mark(3);
    own.unbind()?.ok()?;
    players.into_iter().try_for_each(Player::join)?;
    ensure!(before.is_empty(), "{before:?} ran before the earliest deadline");
    ensure!(given == R::Ok, "did not give way: {given:?}");
    ensure!(ran.list() == [1, 2, 3], "they ran in the order {:?}", ran.list());
    quiet()
}

/// A more urgent thread that wakes has the CPU at once; a less urgent one waits.
fn preempt_wake(stage: &Stage) -> Outcome<String> {
    let mut late = [0, 0];
    for (at, bands) in [(0, [1, 5]), (1, [5, 1])] {
        all_back()?;
        let (scale, times) = (stage.scale, Arc::new([const { AtomicU64::new(0) }; 3]));
        let (theirs, its) = (Arc::clone(&times), Arc::clone(&times));
        let runs = Player::start(&stage.spec(20 * MS, 100 * MS, bands[0]), move || {
            fair::compute(10 * MS, scale);
            theirs[0].store(ticks::now(), Ordering::Release);
            Ok(())
        })?;
        let sleeps = Player::start(&stage.part(bands[1]), move || {
            let timer = time::timer()?;
            its[1].store(ticks::now(), Ordering::Release);
            timer.sleep(3 * MS)?;
            its[2].store(ticks::now(), Ordering::Release);
            Ok(())
        })?;
        // The sleeper first, so that it sleeps before the other thread runs.
        stage.conduct(|| {
            sleeps.go()?;
            time::sleep(MS / 2)?;
            runs.go()
        })?;
        runs.join()?;
        sleeps.join()?;
        let [done, asleep, awake] = times.each_ref().map(|time| time.load(Ordering::Acquire));
        late[at] = scale.to_ns(awake - asleep).saturating_sub(3 * MS);
        if bands[1] > bands[0] {
            ensure!(awake < done, "the urgent one waited until the other one had ended");
            ensure!(stage.is_prompt(late[at]), "the urgent one ran {} ns late", late[at]);
        } else {
            ensure!(awake > done, "a less urgent one ran first");
        }
    }
    Ok(format!("urgent_late_ns={} other_late_ns={}", late[0], late[1]))
}

/// A thread runs where its context is, and moves when it gets another context; an affinity without that CPU is
/// refused.
fn move_cpu(stage: &Stage) -> Outcome<String> {
    let control: ThreadControl = caps::any()?;
    for cpu in (0..stage.cpus).chain([0]) {
        let own = new_context(&Spec::new(5 * MS, 50 * MS).cpus([cpu]))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        ensure!(cpu_now()? == cpu, "on CPU {} with a context of CPU {cpu}", cpu_now()?);
        let before = own.consumed()?.ok()?.total_ns;
        stage.burn(MS);
        ensure!(own.consumed()?.ok()?.total_ns >= before + MS, "not charged on CPU {cpu}");
        ensure!(cpu_now()? == cpu, "it strayed to CPU {}", cpu_now()?);
        let elsewhere = (cpu + 1) % 8;
        let refused = control.set_affinity(&[1 << elsewhere]);
        raised("a mask without the context's CPU", refused, Exception::InvalidArgument)?;
        ensure!(cpu_now()? == cpu && own.info()?.ok()?.home == cpu, "a refusal moved it");
        own.unbind()?.ok()?;
    }
    // A thread that runs on another CPU is moved by its new context.
    let hog = Hog::start(stage, MS / 10, || Ok(()))?;
    hog.player.go()?;
    for cpu in 0..stage.cpus {
        let context = new_context(&Spec::new(5 * MS, 50 * MS).cpus([cpu]))?;
        context.bind_thread(hog.player.handle()?, Fallback::BestEffort)?.ok()?;
        kit::wait_until("it runs there", || Ok(context.consumed()?.ok()?.total_ns > MS))?;
        let threads = kit::system()?.threads().doing("threads")?;
        let found = threads.iter().find(|t| (t.pid, t.tid) == (rt::boot_info().pid, hog.player.tid));
        let on = found.map(|found| found.cpu);
        ensure!(on == Some(cpu), "it should run on CPU {cpu}, and does on {on:?}");
        context.unbind()?.ok()?;
    }
    hog.stop()?;
    Ok(format!("cpus={}", stage.cpus))
}
