//! Calls and contexts: slow and fast paths, clients above and below their servers, with and without contexts, contexts that are taken
//! away meanwhile, other CPUs.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::{Exception, TransportError, rights};
use rt::{Answer, Client, Endpoint, Fallback, SchedulingPolicy, Spec, ThreadControl, caps, time};

use super::{Hog, Marks, Player, Stage, Test, endpoint, quiet, wait_lent};
use crate::contexts::{Lend, burn, copy, cpu_now, new_context};
use crate::ensure;
use crate::kit::{self, MS, raised, refused};
use crate::proof::{Doing, Failure, Outcome};

/// The tests of this module.
pub const TESTS: [Test; 9] = [
    ("abort-call", abort_call),
    ("paths-client-above", |stage| paths(stage, 5, 2)),
    ("paths-client-below", |stage| paths(stage, 2, 5)),
    ("reply-returns", reply_returns),
    ("no-context", no_context),
    ("context-deleted-sending", context_deleted_sending),
    ("context-deleted-waiting", context_deleted_waiting),
    ("low-server", low_server),
    ("donation-across-cpus", donation_across_cpus),
];

/// The main function of the process of `abort_call`: calls on a context of its own, until it is killed.
pub fn doomed_caller() -> Outcome {
    let talk: Endpoint = caps::get("talk")?;
    let own = new_context(&Spec::new(20 * MS, 100 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    talk.call(1, [0; 2])?;
    Ok(())
}

/// A caller that is killed, and one that cancels its call: the server goes on, and serves the next caller.
fn abort_call(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    let lend = Lend::start(move |call| {
        burn(MS, scale);
        if call.method == 1 {
            let _ = time::sleep(30 * MS);
        }
        burn(MS, scale);
        Answer::Words([call.method.into(), 0])
    })?;
    let child = kit::again(&["--caller"], &[("talk", lend.endpoint.cap(), rights::CALL, 0)])?;
    let its = || -> Outcome<Option<u64>> {
        let all = kit::system()?.contexts().doing("contexts")?;
        Ok(all.iter().find(|c| c.bound.is_some_and(|(pid, _)| pid == child.pid)).map(|c| c.info.id))
    };
    kit::wait_until("the child is bound", || Ok(its()?.is_some()))?;
    let id = its()?.ok_or_else(|| Failure::new("the child's context is gone"))?;
    let to = wait_lent(id, 1)?;
    ensure!(to == Some((rt::boot_info().pid, lend.tid)), "lent to {to:?}");
    child.handle.kill().doing("kill the caller")?;
    child.wait().doing("wait for the caller")?;
    kit::wait_until("the caller's context goes", || Ok(super::listed(id)?.is_none()))?;
    ensure!(lend.endpoint.call(2, [0; 2])?[0] == 2, "the server is lost");
    // Cancelled by a caller without a context; a caller with one waits for its loan to come back.
    let mut call = lend.endpoint.call_start(1, [0; 2])?;
    ensure!(call.wait_timeout(10 * MS).is_none(), "answered already");
    refused("a call that was taken back", call.cancel(), TransportError::Cancelled)?;
    ensure!(lend.endpoint.call(3, [0; 2])?[0] == 3, "the server is lost");
    lend.stop()?;
    quiet()
}

/// Which side is waiting when the call is made.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Path {
    /// The server waits: it runs at once.
    Fast,
    /// The call waits in the queue: the server comes later.
    Slow,
}

/// Performs a call between a client and a server in these bands, and returns in which order they ran: 1 the client calls, 2 the server
/// serves, 3 the client is back, 9 a third thread, of band 3. A server without a band has no context.
fn acts(stage: &Stage, client: u8, server: Option<u8>, path: Path) -> Outcome<Vec<u32>> {
    let (talk, ran) = (endpoint()?, Marks::new());
    let (theirs, marks) = (Arc::clone(&talk), Arc::clone(&ran));
    let mut serves = Player::plain(move || {
        let call = theirs.recv(&mut [])?;
        marks.mark(2);
        theirs.reply(call.token, Answer::Words([1, 0]))?;
        Ok(())
    })?;
    if let Some(band) = server {
        serves.bind(new_context(&stage.part(band))?, Fallback::BestEffort)?;
    }
    let marks = Arc::clone(&ran);
    let calls = Player::start(&stage.part(client), move || {
        marks.mark(1);
        talk.call(1, [0; 2])?;
        marks.mark(3);
        Ok(())
    })?;
    let (marks, scale) = (Arc::clone(&ran), stage.scale);
    let third = Player::start(&stage.part(3), move || {
        marks.mark(9);
        burn(MS, scale);
        Ok(())
    })?;
    let (first, second) = if path == Path::Fast { (&serves, &calls) } else { (&calls, &serves) };
    stage.conduct(|| {
        // The thread that shall wait does so by the time this sleep ends.
        first.go_and_wait()?;
        third.go()?;
        second.go()
    })?;
    [serves, calls, third].into_iter().try_for_each(Player::join)?;
    Ok(ran.list())
}

/// Bands decide which thread runs, whoever waits for whom; a server without a context has its caller's band.
fn paths(stage: &Stage, client: u8, server: u8) -> Outcome<String> {
    let is_above = client > server;
    let cases: [(Option<u8>, Path, [u32; 4]); 3] = if is_above {
        [
            // The server is in a lower band than the third thread and waits for it; on the client's context it does not.
            (Some(server), Path::Fast, [1, 9, 2, 3]),
            (Some(server), Path::Slow, [1, 9, 2, 3]),
            (None, Path::Fast, [1, 2, 3, 9]),
        ]
    } else {
        [
            // The client is in a lower band than the third thread; but a call that already waits for a server above the third thread does
            // not wait for that.
            (Some(server), Path::Fast, [9, 1, 2, 3]),
            (Some(server), Path::Slow, [1, 2, 9, 3]),
            (None, Path::Fast, [9, 1, 2, 3]),
        ]
    };
    for (band, path, wanted) in cases {
        let ran = acts(stage, client, band, path)?;
        ensure!(ran == wanted, "client {client}, server {band:?}, {path:?}: {ran:?} instead of {wanted:?}");
    }
    quiet()
}

/// With the answer, the context is back with the caller, less exactly what the server used, whatever the answer is.
fn reply_returns(stage: &Stage) -> Outcome<String> {
    const WORK_NS: u64 = 3 * MS;
    let scale = stage.scale;
    let own = new_context(&stage.spec(30 * MS, 100 * MS, 1))?;
    let (seen, inside) = (copy(&own)?, Arc::new(AtomicU64::new(0)));
    let depth = Arc::clone(&inside);
    let lend = Lend::start(move |call| {
        burn(WORK_NS, scale);
        depth.store(seen.info().map_or(99, |info| info.value.lent_depth.into()), Ordering::Relaxed);
        match call.method {
            1 => Answer::Words([1, 0]),
            2 => Answer::Raise(Exception::Failed, "not today"),
            _ => Answer::Bytes(b"much more than eight bytes"),
        }
    })?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let mut most = 0;
    for method in 1..=3 {
        let before = own.info()?.ok()?;
        match method {
            1 => ensure!(lend.endpoint.call(1, [0; 2])?[0] == 1, "another answer"),
            2 => raised("an exception", lend.endpoint.call(2, [0; 2]), Exception::Failed)?,
            _ => refused("no room", lend.endpoint.call_bytes(3, &[], &mut [0; 8]), TransportError::TooLong)?,
        }
        let after = own.info()?.ok()?;
        let used = after.consumed_ns - before.consumed_ns;
        ensure!(
            inside.swap(0, Ordering::Relaxed) == 1 && after.lent_depth == 0,
            "{method}: still lent: {after:?}"
        );
        ensure!(
            before.remaining_ns - after.remaining_ns == used,
            "{method}: {used} ns of {before:?}: {after:?}"
        );
        ensure!(used >= WORK_NS, "{method}: {used} ns used by a server that worked for {WORK_NS}");
        ensure!(!stage.is_counted || used < WORK_NS + MS, "{method}: {used} ns used for {WORK_NS}");
        most = most.max(used);
    }
    own.unbind()?.ok()?;
    lend.stop()?;
    Ok(format!("server_ns={WORK_NS} used_ns={most}"))
}

/// If one side has no context, or each has its own, calls are answered, nothing is lent, and each side is charged for itself.
fn no_context(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    for (client, server) in [(false, false), (false, true), (true, true)] {
        let lend = Lend::start(move |_| {
            burn(MS, scale);
            Answer::Words([1, 0])
        })?;
        let handle = lend.server.handle().ok_or_else(|| Failure::new("no handle"))?;
        let (mine, theirs) = (new_context(&stage.part(1))?, new_context(&stage.part(1))?);
        if server {
            theirs.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        }
        if client {
            mine.bind(Fallback::BestEffort)?.ok()?;
        }
        let (loans, before) = (kit::counter("loans")?, theirs.consumed()?.ok()?.total_ns);
        let mine_before = mine.consumed()?.ok()?.total_ns;
        ensure!(lend.endpoint.call(1, [0; 2])?[0] == 1, "another answer");
        let lent = kit::counter("loans")? - loans;
        let (used, own) =
            (theirs.consumed()?.ok()?.total_ns - before, mine.consumed()?.ok()?.total_ns - mine_before);
        ensure!(lent == 0, "client {client}, server {server}: {lent} loans");
        ensure!(
            (used >= MS) == server,
            "client {client}, server {server}: the server's was charged {used} ns"
        );
        ensure!(
            (own > 0) == client && own < MS,
            "client {client}, server {server}: the client's was charged {own} ns"
        );
        if client {
            mine.unbind()?.ok()?;
        }
        if server {
            theirs.unbind()?.ok()?;
        }
        lend.stop()?;
    }
    quiet()
}

/// While a call waits in the queue, its caller's context is deleted: the call stays.
fn context_deleted_sending(stage: &Stage) -> Outcome<String> {
    for revokes in [true, false] {
        let talk = endpoint()?;
        let theirs = Arc::clone(&talk);
        let mut calls = Player::start(&stage.part(1), move || {
            ensure!(theirs.call(1, [5, 0])?[0] == 6, "another answer");
            Ok(())
        })?;
        calls.go_and_wait()?;
        let loans = kit::counter("loans")?;
        let context = calls.context.take().ok_or_else(|| Failure::new("no context"))?;
        if revokes {
            context.revoke()?.ok()?;
        }
        drop(context);
        let call = talk.recv(&mut [])?;
        let lent = kit::counter("loans")? - loans;
        ensure!(lent == 0, "{lent} loans of a context that is gone");
        talk.reply(call.token, Answer::Words([call.message.words()[0] + 1, 0]))?;
        calls.join()?;
    }
    quiet()
}

/// While a server waits for calls, its context is deleted: it takes the next call, on the caller's context.
fn context_deleted_waiting(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    for revokes in [true, false] {
        let lend = Lend::start(move |_| {
            burn(MS, scale);
            Answer::Words([1, 0])
        })?;
        let handle = lend.server.handle().ok_or_else(|| Failure::new("no handle"))?;
        let theirs = new_context(&stage.part(1))?;
        theirs.bind_thread(handle, Fallback::Stop)?.ok()?;
        if revokes {
            theirs.revoke()?.ok()?;
        }
        drop(theirs);
        let own = new_context(&stage.part(1))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        let before = own.consumed()?.ok()?.total_ns;
        ensure!(lend.endpoint.call(1, [0; 2])?[0] == 1, "another answer");
        let used = own.consumed()?.ok()?.total_ns - before;
        ensure!(used >= MS, "{used} ns charged for the server's millisecond");
        // Lets the server run at its weight from now on, so that it can be asked to stop.
        own.unbind()?.ok()?;
        own.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        own.unbind()?.ok()?;
        lend.stop()?;
    }
    quiet()
}

/// A server of the smallest weight, among threads of the largest: on a loan it is scheduled like its caller.
fn low_server(stage: &Stage) -> Outcome<String> {
    const WORK_NS: u64 = 3 * MS;
    let (scale, cpu) = (stage.scale, stage.cpu);
    let hogs = [Hog::at_weight(stage, 1024)?, Hog::at_weight(stage, 1024)?];
    let talk = endpoint()?;
    let theirs = Arc::clone(&talk);
    let server = Player::plain(move || {
        caps::any::<SchedulingPolicy>()?.set_weight(1)?;
        caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
        for _ in 0..2 {
            let call = theirs.recv(&mut [])?;
            burn(WORK_NS, scale);
            theirs.reply(call.token, Answer::Words([1, 0]))?;
        }
        Ok(())
    })?;
    server.go_and_wait()?;
    hogs.iter().try_for_each(|hog| hog.player.go())?;
    time::sleep(10 * MS)?;
    let own = new_context(&stage.part(4))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    talk.call(1, [0; 2])?;
    let on_loan = time::now_ns()? - start;
    own.unbind()?.ok()?;
    let mut call = talk.call_start(1, [0; 2])?;
    let is_quick = call.wait_timeout(10 * WORK_NS).is_some();
    hogs.into_iter().try_for_each(Hog::stop)?;
    if !is_quick {
        call.wait()?;
    }
    server.join()?;
    ensure!(!is_quick, "at the least weight it had 3 ms within 30 ms: the loan shows nothing");
    ensure!(!stage.is_counted || on_loan < WORK_NS + MS, "{WORK_NS} ns of work on a loan took {on_loan} ns");
    Ok(format!("on_loan_ns={on_loan} work_ns={WORK_NS}"))
}

/// A server that began on one CPU serves a caller of any other CPU on the caller's CPU, on the caller's budget; a server that may not run
/// there is refused.
fn donation_across_cpus(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    let mut across = 0;
    for begins in 0..stage.cpus {
        let talk = endpoint()?;
        let theirs = Arc::clone(&talk);
        let (calls, all) = (stage.cpus, ((1u32 << stage.cpus) - 1) as u8);
        let server = Player::plain(move || {
            let control: ThreadControl = caps::any()?;
            control.set_affinity(&[1 << begins])?;
            let began = cpu_now()?;
            control.set_affinity(&[all])?;
            for _ in 0..calls {
                let call = theirs.recv(&mut [])?;
                burn(MS, scale);
                theirs.reply(call.token, Answer::Words([cpu_now()?.into(), began.into()]))?;
            }
            Ok(())
        })?;
        server.go_and_wait()?;
        for cpu in (0..stage.cpus).rev() {
            let own = new_context(&Spec::new(10 * MS, 100 * MS).cpus([cpu]))?;
            own.bind(Fallback::BestEffort)?.ok()?;
            let before = own.consumed()?.ok()?.total_ns;
            let [on, began] = talk.call(1, [0; 2])?;
            let used = own.consumed()?.ok()?.total_ns - before;
            own.unbind()?.ok()?;
            ensure!(began == begins.into(), "the server began on CPU {began}");
            ensure!(on == cpu.into(), "a caller of CPU {cpu} was served on CPU {on}");
            ensure!(used >= MS, "{used} ns charged for the server's millisecond on CPU {cpu}");
            across += u32::from(on != began);
            if cpu > 0 {
                kit::wait_blocked(server.tid)?;
            }
        }
        server.join()?;
    }
    ensure!(across == stage.cpus * (stage.cpus - 1), "{across} loans across CPUs");
    if stage.cpus > 1 {
        let talk = endpoint()?;
        let theirs = Arc::clone(&talk);
        let server = Player::plain(move || {
            caps::any::<ThreadControl>()?.set_affinity(&[1])?;
            let call = theirs.recv(&mut [])?;
            theirs.reply(call.token, Answer::Words([1, 0]))?;
            Ok(())
        })?;
        server.go_and_wait()?;
        let own = new_context(&stage.part(1))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        refused("a server that may not go there", talk.call(1, [0; 2]), TransportError::NoCommonCpu)?;
        own.unbind()?.ok()?;
        ensure!(talk.call(1, [0; 2])?[0] == 1, "a caller without a context");
        server.join()?;
    }
    Ok(format!("across={across}"))
}
