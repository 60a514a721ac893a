//! The context as an object: how it can be configured, changed and bound, and how a server uses it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{CapId, Exception, Overrun, TransportError, rights};
use rt::{
    Answer, Client, CpuMask, DispatchEffect, Fallback, OperationResult as R, SchedulingContext, Spec,
    ThreadControl, caps, time,
};

use super::{Player, Stage, Test, quiet, wait_lent};
use crate::contexts::{Lend, burn, context, copy, new_context};
use crate::ensure;
use crate::kit::{self, MS, raised, refused};
use crate::proof::{Doing, Outcome};

/// The tests of this module.
pub const TESTS: [Test; 5] = [
    ("configure", configure),
    ("reconfigure", reconfigure),
    ("bind-errors", bind_errors),
    ("passive-start", passive_start),
    ("unbind-from-server", unbind_from_server),
];

/// A context has the specification that was asked for; impossible ones are refused by name; a CPU does not promise more than
/// 95 % of itself.
fn configure(stage: &Stage) -> Outcome<String> {
    let spec = stage.spec(3 * MS, 70 * MS, 5).deadline(40 * MS).refills(4).demote();
    let made = new_context(&spec)?;
    let info = made.info()?.ok()?;
    ensure!(info.spec == spec && info.home == stage.cpu, "asked for {spec:?}, got {info:?}");
    ensure!(info.remaining_ns == 3 * MS && info.consumed_ns == 0, "not new: {info:?}");
    ensure!(info.effect == DispatchEffect::InfoOnlyNoDispatchChange, "nobody runs on it: {info:?}");
    drop(made);
    let good = stage.part(1);
    let bad = [
        ("no budget", Spec { budget_ns: 0, ..good }),
        ("a budget above the period", Spec { budget_ns: 101 * MS, ..good }),
        ("a deadline above the period", good.deadline(101 * MS)),
        ("no CPU", good.mask(CpuMask::of([]))),
        ("a CPU that is not there", good.cpus([200])),
        ("a band that is not there", good.criticality(8)),
        ("one refill", good.refills(1)),
        ("a fault without an endpoint", Spec { overrun: Overrun::Fault, ..good }),
    ];
    for (what, spec) in bad {
        raised(what, context()?.create(&spec), Exception::InvalidArgument)?;
    }
    let looks_only = SchedulingContext::of(context()?.cap().copy(rights::CALL, 0).doing("copy")?);
    refused("create without the right", looks_only.create(&good), TransportError::NotPermitted)?;
    let mut crowd: Vec<SchedulingContext> = Vec::new();
    let full = loop {
        let created = context()?.create(&good)?;
        if created.result != R::Ok {
            break created;
        }
        crowd.push(created.context()?);
        ensure!(crowd.len() < 10, "ten times a tenth of a CPU");
    };
    ensure!(full.result == R::ResourceExhausted && crowd.len() == 9, "{} fit: {full:?}", crowd.len());
    ensure!((48_500..=50_000).contains(&full.value.free_ppm), "{} ppm are left", full.value.free_ppm);
    crowd.pop();
    crowd.push(new_context(&good)?);
    Ok(format!("admitted={} free_ppm={}", crowd.len(), full.value.free_ppm))
}

/// Used time stays used, a refusal changes nothing, and a context that is lent cannot be changed.
fn reconfigure(stage: &Stage) -> Outcome<String> {
    let own = new_context(&stage.part(2))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    stage.burn(8 * MS);
    let before = own.info()?.ok()?;
    let larger = stage.spec(20 * MS, 100 * MS, 2).deadline(90 * MS).refills(8);
    own.reconfigure(&larger)?.ok()?;
    let after = own.info()?.ok()?;
    ensure!(after.spec == larger, "asked for {larger:?}, got {after:?}");
    ensure!(after.remaining_ns <= before.remaining_ns, "time from nothing: {before:?}, then {after:?}");
    ensure!(after.id == before.id && after.generation == before.generation, "another context: {after:?}");
    ensure!(own.reconfigure(&stage.spec(99 * MS, 100 * MS, 1))?.result == R::ResourceExhausted, "99 %");
    raised("too little", own.reconfigure(&stage.spec(1, 100 * MS, 1)), Exception::InvalidArgument)?;
    if stage.cpus > 1 {
        let elsewhere = own.reconfigure(&larger.cpus([0]))?.result;
        ensure!(elsewhere == R::NoCommonCpu, "a mask without its CPU: {elsewhere:?}");
    }
    ensure!(own.info()?.ok()?.spec == larger, "a refusal changed it: {:?}", own.info()?);
    let root = context()?.reconfigure(&larger)?.result;
    ensure!(root == R::InvalidSpec, "a context without time was given some: {root:?}");
    // While it is lent.
    let theirs = copy(&own)?;
    let results = Arc::new(rt::sync::Mutex::new(Vec::new()));
    let told = Arc::clone(&results);
    let smaller = stage.part(1).deadline(100 * MS).refills(8);
    let lend = Lend::start(move |_| {
        told.lock().extend(theirs.reconfigure(&smaller).map(|outcome| outcome.result));
        told.lock().extend(theirs.unbind().map(|outcome| outcome.result));
        Answer::Words([0; 2])
    })?;
    lend.endpoint.call(1, [0; 2])?;
    ensure!(
        *results.lock() == [R::Lent, R::Lent],
        "changed, unbound while lent: {:?}",
        results.lock().as_slice()
    );
    ensure!(own.info()?.ok()?.spec == larger, "changed while lent");
    own.unbind()?.ok()?;
    lend.stop()?;
    // While it is unbound, a smaller specification fits at once.
    own.reconfigure(&smaller)?.ok()?;
    ensure!(own.info()?.ok()?.spec == smaller, "not changed while unbound");
    Ok(format!("left_before_ns={} left_after_ns={}", before.remaining_ns, after.remaining_ns))
}

/// A thread has at most one context and a context at most one thread: every other attempt is refused by name, and changes
/// nothing.
fn bind_errors(stage: &Stage) -> Outcome<String> {
    let (one, two) = (new_context(&stage.part(1))?, new_context(&stage.part(1))?);
    ensure!(one.unbind()?.result == R::NotBound, "unbound what is not bound");
    one.bind(Fallback::BestEffort)?.ok()?;
    ensure!(one.bind(Fallback::BestEffort)?.result == R::AlreadyBound, "the same again");
    ensure!(two.bind(Fallback::BestEffort)?.result == R::AlreadyBound, "a thread with two contexts");
    let waits = Player::plain(|| Ok(()))?;
    let taken = one.bind_thread(waits.handle()?, Fallback::BestEffort)?.result;
    ensure!(taken == R::AlreadyBound, "a context with two threads: {taken:?}");
    let root = context()?.bind_thread(waits.handle()?, Fallback::BestEffort)?.result;
    ensure!(root == R::InvalidSpec, "bound to a context without time: {root:?}");
    let nothing = two.bind_thread_raw(CapId(0x7fff), Fallback::BestEffort);
    raised("a handle that is not there", nothing, Exception::InvalidArgument)?;
    let other = two.bind_thread_raw(one.cap().id(), Fallback::BestEffort);
    raised("a handle that is none", other, Exception::InvalidArgument)?;
    let looks_only = SchedulingContext::of(two.cap().copy(rights::CALL, 0).doing("copy")?);
    refused("bind without the right", looks_only.bind(Fallback::BestEffort), TransportError::NotPermitted)?;
    ensure!(two.info()?.ok()?.effect == DispatchEffect::InfoOnlyNoDispatchChange, "a refusal bound it");
    // A context for another CPU than the thread may run on.
    if stage.cpus > 1 {
        one.unbind()?.ok()?;
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        let elsewhere = one.bind(Fallback::BestEffort)?.result;
        ensure!(
            elsewhere == R::NoCommonCpu,
            "a thread of CPU 0 and a context of CPU {}: {elsewhere:?}",
            stage.cpu
        );
        stage.leave()?;
        one.bind(Fallback::BestEffort)?.ok()?;
    }
    // Ended threads, stale and revoked contexts.
    waits.go()?;
    kit::wait_until("the thread ends", || Ok(waits.has_ended()))?;
    let dead = two.bind_thread(waits.handle()?, Fallback::BestEffort)?.result;
    ensure!(dead == R::DeadThread, "an ended thread: {dead:?}");
    waits.join()?;
    let stale = copy(&one)?;
    one.revoke()?.ok()?;
    ensure!(one.bind(Fallback::BestEffort)?.result == R::Revoked, "bound to a revoked one");
    ensure!(stale.bind(Fallback::BestEffort)?.result == R::StaleGeneration, "bound to a stale one");
    two.bind(Fallback::BestEffort)?.ok().doing("bind after all refusals")?;
    two.unbind()?.ok()?;
    quiet()
}

/// A server that began on a context and waits for calls needs none any more: it runs on its callers' contexts, and not
/// without one.
fn passive_start(stage: &Stage) -> Outcome<String> {
    let scale = stage.scale;
    let lend = Lend::start(move |_| {
        burn(MS, scale);
        Answer::Words([1, 0])
    })?;
    let handle = lend.server.handle().ok_or_else(|| crate::proof::Failure::new("no handle"))?;
    let first = new_context(&stage.part(1))?;
    first.bind_thread(handle, Fallback::Stop)?.ok()?;
    first.unbind()?.ok()?;
    let own = new_context(&stage.part(2))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let before = own.consumed()?.ok()?.total_ns;
    ensure!(lend.endpoint.call(1, [0; 2])?[0] == 1, "another answer");
    let used = own.consumed()?.ok()?.total_ns - before;
    ensure!(used >= MS, "{used} ns charged for the server's millisecond");
    ensure!(first.consumed()?.ok()?.total_ns < MS, "charged to the context that it began on");
    own.unbind()?.ok()?;
    // A call by a caller without a context: the server has the call, but no time.
    let mut call = lend.endpoint.call_start(1, [0; 2])?;
    ensure!(call.wait_timeout(20 * MS).is_none(), "answered without any time");
    first.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    ensure!(call.wait()?.words()[0] == 1, "another answer");
    let on_its_own = first.consumed()?.ok()?.total_ns;
    ensure!(on_its_own >= MS, "{on_its_own} ns charged to its own");
    first.unbind()?.ok()?;
    lend.stop()?;
    Ok(format!("on_loan_ns={used} on_its_own_ns={on_its_own}"))
}

/// A server with a context of its own runs on that; if it is taken away, between calls or during one, the server runs on
/// loans or at its weight.
fn unbind_from_server(stage: &Stage) -> Outcome<String> {
    let (scale, serving, may_end) =
        (stage.scale, Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let (serves, ends) = (Arc::clone(&serving), Arc::clone(&may_end));
    let lend = Lend::start(move |_| {
        serves.store(true, Ordering::Relaxed);
        loop {
            burn(MS, scale);
            if ends.load(Ordering::Relaxed) {
                return Answer::Words([1, 0]);
            }
        }
    })?;
    let handle = lend.server.handle().ok_or_else(|| crate::proof::Failure::new("no handle"))?;
    let theirs = new_context(&stage.part(3))?;
    theirs.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    let own = new_context(&stage.part(2))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let used = |context: &SchedulingContext| -> Outcome<u64> { Ok(context.consumed()?.ok()?.total_ns) };
    let charged = || -> Outcome<[u64; 2]> {
        let before = [used(&own)?, used(&theirs)?];
        lend.endpoint.call(1, [0; 2])?;
        Ok([used(&own)? - before[0], used(&theirs)? - before[1]])
    };
    let bound = charged()?;
    ensure!(bound[0] < MS && bound[1] >= MS, "own server, charged to the caller and it: {bound:?}");
    theirs.unbind()?.ok()?;
    let unbound = charged()?;
    ensure!(
        unbound[0] >= MS && unbound[1] == 0,
        "passive server, charged to the caller and its old one: {unbound:?}"
    );
    own.unbind()?.ok()?;
    // In the middle of a call.
    theirs.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    may_end.store(false, Ordering::Relaxed);
    serving.store(false, Ordering::Relaxed);
    let mut call = lend.endpoint.call_start(1, [0; 2])?;
    kit::wait_until("it serves", || Ok(serving.load(Ordering::Relaxed)))?;
    theirs.unbind()?.ok()?;
    let before = used(&theirs)?;
    time::sleep(5 * MS)?;
    may_end.store(true, Ordering::Relaxed);
    ensure!(call.wait_timeout(5_000 * MS).is_some_and(|answer| answer.is_ok()), "no answer at its weight");
    ensure!(used(&theirs)? == before, "charged to what was taken from it");
    // A context that the server has on loan cannot be unbound from it.
    may_end.store(false, Ordering::Relaxed);
    let endpoint = Arc::clone(&lend.endpoint);
    let client = Player::start(&stage.part(2), move || {
        endpoint.call(1, [0; 2])?;
        Ok(())
    })?;
    client.go()?;
    wait_lent(client.its()?.info()?.ok()?.id, 1)?;
    ensure!(client.its()?.unbind()?.result == R::Lent, "unbound while lent");
    may_end.store(true, Ordering::Relaxed);
    client.join()?;
    lend.stop()?;
    quiet()
}
