//! Things that end while they are used: contexts under threads, threads on contexts, calls that are never answered.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use abi::{Exception, rights};
use rt::{Answer, Client, Endpoint, Fallback, OperationResult as R, SchedulingContext, Spec, time};

use super::{Hog, Player, Stage, Test, endpoint, quiet, wait_lent};
use crate::contexts::{all_back, burn, copy, new_context, new_context_soon};
use crate::ensure;
use crate::kit::{self, MS, raised};
use crate::proof::{Doing, Outcome};
use crate::random::Random;
use crate::ticks::Scale;

/// The tests of this module.
pub const TESTS: [Test; 5] = [
    ("delete-context-stops", delete_context_stops),
    ("delete-thread-on-context", delete_thread_on_context),
    ("delete-thread-on-loan", delete_thread_on_loan),
    ("reply-dropped", reply_dropped),
    ("delete-while-depleting", delete_while_depleting),
];

/// When the last capability to its context is dropped, a thread that needs a context stops; another context lets it go on.
fn delete_context_stops(stage: &Stage) -> Outcome<String> {
    let mut hog = Hog::start(stage, MS / 50, || Ok(()))?;
    hog.player.bind(new_context(&stage.part(1))?, Fallback::Stop)?;
    hog.player.go()?;
    hog.wait_turn()?;
    drop(hog.player.context.take());
    let before = hog.turns();
    time::sleep(30 * MS)?;
    ensure!(hog.turns() <= before + 1, "{} turns after its context was deleted", hog.turns() - before);
    // Another context lets it go on; if it may go on at its weight, it also does so without one.
    hog.player.bind(new_context(&stage.part(1))?, Fallback::BestEffort)?;
    hog.wait_turn()?;
    drop(hog.player.context.take());
    hog.wait_turn()?;
    // The context is deleted before the running thread has fetched it.
    for round in 0..20 {
        hog.player.bind(new_context_soon(&stage.part(1))?, Fallback::Stop)?;
        drop(hog.player.context.take());
        let before = hog.turns();
        time::sleep(MS)?;
        let after = hog.turns() - before;
        ensure!(after <= 1, "round {round}: {after} turns after its context was deleted at once");
        hog.player.bind(new_context_soon(&stage.part(1))?, Fallback::BestEffort)?;
        hog.player.its()?.unbind()?.ok()?;
        time::sleep(MS / 4)?;
    }
    hog.stop()?;
    quiet()
}

/// The main function of the process of `delete_thread_on_context`: one thread that runs only on contexts, until it is
/// killed.
pub fn doomed_burner() -> Outcome {
    let scale = Scale::measure()?;
    let cpus = rt::boot_info().cpus;
    let own = new_context(&Spec::new(5 * MS, 10 * MS).cpus([cpus - 1]))?;
    own.bind(Fallback::Stop)?.ok()?;
    loop {
        burn(MS, scale);
    }
}

/// A thread that runs only on contexts is killed: it ends, and its context with it.
fn delete_thread_on_context(stage: &Stage) -> Outcome<String> {
    const ROUNDS: u64 = 8;
    let mut random = Random::new(3);
    for round in 0..ROUNDS {
        let child = kit::again(&["--burner"], &[])?;
        let its = || -> Outcome<u64> {
            let all = kit::system()?.contexts().doing("contexts")?;
            let found = all.iter().find(|c| c.bound.is_some_and(|(pid, _)| pid == child.pid));
            Ok(found.map_or(0, |found| found.info.consumed_ns))
        };
        kit::wait_until("the child runs", || Ok(its()? > MS))?;
        time::sleep(random.below(10 * MS))?;
        child.handle.kill().doing("kill")?;
        let mut end = child.handle.wait_start().doing("wait")?;
        ensure!(end.wait_timeout(1_000 * MS).is_some(), "round {round}: killed, and it does not end");
        kit::wait_until("its context goes", || Ok(kit::system()?.contexts().doing("contexts")?.is_empty()))?;
        all_back()?;
    }
    let all = new_context(&stage.spec(94 * MS, 100 * MS, 1))?;
    drop(all);
    Ok(format!("kills={ROUNDS}"))
}

/// Calls on a context of its own; the call must fail, and the context must be back, less the time that the server used.
fn fails_and_returns(stage: &Stage, endpoint: &Endpoint, own: &SchedulingContext) -> Outcome<u64> {
    let before = own.info()?.ok()?.remaining_ns;
    raised("the call", endpoint.call(1, [0; 2]), Exception::Disconnected)?;
    let after = own.info()?.ok()?;
    ensure!(after.lent_depth == 0, "still lent: {after:?}");
    ensure!(
        after.remaining_ns + MS <= before,
        "the server's millisecond is not in it: {before}, then {after:?}"
    );
    let used = own.consumed()?.ok()?.total_ns;
    stage.burn(MS / 2);
    ensure!(own.consumed()?.ok()?.total_ns >= used + MS / 2, "the caller does not run on it");
    Ok(before - after.remaining_ns)
}

/// A server thread ends while it has its caller's context on loan; so does a whole process.
fn delete_thread_on_loan(stage: &Stage) -> Outcome<String> {
    let own = new_context(&stage.spec(30 * MS, 100 * MS, 2))?;
    let (talk, scale) = (endpoint()?, stage.scale);
    let theirs = Arc::clone(&talk);
    let server = Player::plain(move || {
        theirs.recv(&mut [])?;
        burn(MS, scale);
        Ok(())
    })?;
    server.go_and_wait()?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let thread = fails_and_returns(stage, &talk, &own)?;
    own.unbind()?.ok()?;
    server.join()?;
    // A process that works and then sleeps on a loan, until it is killed.
    let (served, deeper) = (endpoint()?, endpoint()?);
    let grants = [("served", served.cap(), rights::ALL, 0), ("next", deeper.cap(), rights::CALL, 0)];
    let child = kit::again(&["--link"], &grants)?;
    time::sleep(20 * MS)?;
    let (id, used) = (own.info()?.ok()?.id, own.consumed()?.ok()?.total_ns);
    let killer = Player::plain(move || {
        wait_lent(id, 1)?;
        let is_used = || Ok(super::listed(id)?.is_some_and(|found| found.info.consumed_ns >= used + MS));
        kit::wait_until("it works", is_used)?;
        child.handle.kill().doing("kill the server")?;
        child.wait().doing("wait for it")?;
        Ok(())
    })?;
    own.bind(Fallback::BestEffort)?.ok()?;
    killer.go()?;
    let process = fails_and_returns(stage, &served, &own)?;
    ensure!(own.info()?.ok()?.generation == 1, "the context is stale");
    own.unbind()?.ok()?;
    killer.join()?;
    Ok(format!("thread_used_ns={thread} process_used_ns={process}"))
}

/// A server that will not answer: it asks for the next call, gives up the endpoint, or the call is taken from it.
fn reply_dropped(stage: &Stage) -> Outcome<String> {
    let own = new_context(&stage.spec(30 * MS, 100 * MS, 2))?;
    let scale = stage.scale;
    // The server asks for the next call: the caller may go on at once, and the first call stays open, too.
    let talk = endpoint()?;
    let theirs = Arc::clone(&talk);
    let server = Player::plain(move || {
        let first = theirs.recv(&mut [])?;
        burn(MS, scale);
        let second = theirs.recv(&mut [])?;
        burn(3 * MS, scale);
        theirs.reply(first.token, Answer::Words([1, 0]))?;
        theirs.reply(second.token, Answer::Words([2, 0]))?;
        Ok(())
    })?;
    server.go_and_wait()?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let before = own.consumed()?.ok()?.total_ns;
    let mut first = talk.call_start(1, [0; 2])?;
    ensure!(first.poll().is_none(), "answered already");
    let info = own.info()?.ok()?;
    let used = info.consumed_ns - before;
    ensure!(info.lent_depth == 0 && used >= MS, "back with the server's millisecond: {info:?}, used {used}");
    own.unbind()?.ok()?;
    ensure!(talk.call(2, [0; 2])?[0] == 2 && first.wait()?.words()[0] == 1, "other answers");
    server.join()?;
    let later = own.consumed()?.ok()?.total_ns;
    ensure!(later < before + used + MS, "{later} ns used: the second call was on the first one's account");
    // The server gives up the only right to serve.
    let talk = endpoint()?;
    let calls = talk.caller(0)?;
    let server = Player::plain(move || {
        talk.recv(&mut [])?;
        burn(MS, scale);
        drop(talk);
        Ok(())
    })?;
    server.go_and_wait()?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let gone = fails_and_returns(stage, &calls, &own)?;
    own.unbind()?.ok()?;
    server.join()?;
    Ok(format!("asked_again_ns={used} gave_up_ns={gone}"))
}

/// A context is deleted at random moments around the end of its budget, from another CPU if there is one. No time is lost.
fn delete_while_depleting(stage: &Stage) -> Outcome<String> {
    const ROUNDS: u64 = 150;
    let hog = Hog::start(stage, 5_000, || Ok(()))?;
    hog.player.go()?;
    let mut random = Random::new(6);
    let mut dry = 0;
    for round in 0..ROUNDS {
        let context = new_context(&stage.spec(25_000, 200_000, 1))?;
        context.bind_thread(hog.player.handle()?, Fallback::Stop)?.ok()?;
        // Between the middle of the first budget and the middle of the third.
        let wait = time::now_ns()? + 10_000 + random.below(400_000);
        while time::now_ns()? < wait {
            core::hint::spin_loop();
        }
        dry += u64::from(context.info()?.ok()?.depletions > 0);
        match round % 3 {
            0 => drop(context),
            1 => context.revoke()?.ok().map(drop)?,
            _ => {
                let stale = copy(&context)?;
                context.revoke()?.ok()?;
                ensure!(stale.info()?.result == R::StaleGeneration, "not stale in round {round}");
            }
        }
        let stopped = hog.turns();
        // This sleep is also long enough for the used time, overruns included, to come back.
        time::sleep(MS)?;
        let moved = hog.turns() - stopped;
        ensure!(moved <= 1, "round {round}: {moved} turns without a context");
    }
    ensure!(dry > ROUNDS / 4, "only {dry} of {ROUNDS} contexts ran dry");
    // All promised time was given back.
    let all = new_context(&stage.spec(94 * MS, 100 * MS, 1))?;
    all.bind_thread(hog.player.handle()?, Fallback::BestEffort)?.ok()?;
    hog.stop()?;
    Ok(format!("rounds={ROUNDS} ran_dry={dry}"))
}
