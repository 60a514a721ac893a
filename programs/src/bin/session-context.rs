//! What a logout does to contexts: those of the session are stale at once; those that its threads have on loan are counted and left alone
//! (K-20, S-09).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use programs::contexts::{Lend, burn, copy, new_context};
use programs::ensure;
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::ticks::Scale;
use rt::abi::rights;
use rt::{
    Answer, Child, Client, DispatchEffect, Endpoint, Error, Factory, Fallback, OperationResult as R, Spec,
    UserSession, args, caps, println, thread, time,
};

rt::main!(run);

fn run() -> i64 {
    match args::args().next() {
        Some("owner") => prove("session-context owner", owner),
        Some("server") => prove("session-context server", server),
        Some("donor") => prove("session-context donor", donor),
        Some("outer") => prove("session-context outer", outer),
        Some("idle") => prove("session-context idle", idle),
        _ => prove("session-context", || {
            let scale = Scale::measure()?;
            step("a session's contexts are stale after its logout (K-20, S-09)", bound)?;
            step("idle contexts of a session inside it are stale, too (K-20)", inner)?;
            step("a loan to a session that logs out stays (K-20)", || receiver(scale))?;
            step("a loan of a session that logs out ends, and nothing is restored (K-20)", || lender(scale))
        }),
    }
}

/// Creates a session, and a process in it that calls `endpoint`.
fn member(name: &str, role: &str, endpoint: &Endpoint, rights: u16) -> Outcome<(UserSession, Child)> {
    let session = caps::any::<Factory>()?.session(name).doing("make a session")?;
    let all = rt::abi::rights::ALL;
    let child =
        kit::again(&[role], &[("session", session.cap(), all, 0), ("talk", endpoint.cap(), rights, 0)])?;
    Ok((session, child))
}

fn endpoint() -> Outcome<Endpoint> {
    caps::any::<Factory>()?.endpoint().doing("make an endpoint")
}

// ---- bound ------------------------------------------------------------------------------------------------------------------

fn bound() -> Outcome {
    let talk = endpoint()?;
    let (session, child) = member("owner", "owner", &talk, rights::CALL)?;
    // The child reports that it is bound; the answer tells it that its session is over.
    let ready = talk.recv(&mut [])?;
    let out = session.logout()?;
    ensure!(out.stale_marked == 1, "stale contexts: {out:?}");
    ensure!(out.donation_inflight_skipped == 0, "nothing was lent: {out:?}");
    let again = session.logout().err();
    ensure!(matches!(again, Some(Error::Operation(R::AlreadyRevoked))), "logged out twice: {again:?}");
    talk.reply(ready.token, Answer::Words([0; 2]))?;
    kit::succeeds("the owner", &child)?;
    println!("session_stale_marked={} donation_inflight_skipped=0", out.stale_marked);
    Ok(())
}

fn owner() -> Outcome {
    let scale = Scale::measure()?;
    let talk: Endpoint = caps::get("talk")?;
    let own = new_context(&Spec::new(2 * MS, 20 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    ensure!(own.info()?.ok()?.effect == DispatchEffect::BudgetEnforced, "not bound");
    talk.call(1, [0; 2])?;
    let info = own.info()?;
    ensure!(info.result == R::StaleGeneration && info.value.remaining_ns == 0, "after the logout: {info:?}");
    ensure!(info.value.effect == DispatchEffect::InfoOnlyNoDispatchChange, "still enforced: {info:?}");
    ensure!(own.bind(Fallback::BestEffort)?.result == R::StaleGeneration, "a stale context was bound");
    ensure!(
        own.create(&Spec::new(2 * MS, 20 * MS))?.result == R::StaleGeneration,
        "a stale context created one"
    );
    ensure!(own.revoke()?.result == R::StaleGeneration, "a stale context was revoked");
    ensure!(own.drain()?.result == R::StaleGeneration, "a stale observer heard something");
    // It runs at its weight from now on: work that took ten periods is not throttled any more.
    let start = time::now_ns()?;
    burn(20 * MS, scale);
    let took = time::now_ns()? - start;
    ensure!(took < 180 * MS, "20 ms of work took {took} ns: still throttled");
    println!("stale_info=ok stale_bind=ok stale_create=ok stale_revoke=ok stale_drain=ok");
    Ok(())
}

// ---- idle -------------------------------------------------------------------------------------------------------------------

/// A session, one nested in it, and an unbound context there: the logout of the outer session ends the context, that of a neighbour does
/// not.
fn inner() -> Outcome {
    let talk = endpoint()?;
    let neighbour = caps::any::<Factory>()?.session("neighbour")?;
    let (session, child) = member("outer", "outer", &talk, rights::CALL | rights::GRANT)?;
    let ready = talk.recv(&mut [])?;
    let out = neighbour.logout()?;
    ensure!(out.stale_marked == 0, "of a session with no context: {out:?}");
    let out = session.logout()?;
    ensure!(out.stale_marked == 1, "stale contexts: {out:?}, one was idle in a session inside");
    talk.reply(ready.token, Answer::Words([0; 2]))?;
    kit::succeeds("the session around it", &child)?;
    println!("inner_idle_stale_marked={}", out.stale_marked);
    Ok(())
}

fn outer() -> Outcome {
    let talk: Endpoint = caps::get("talk")?;
    let (session, child) = member("inner", "idle", &talk, rights::CALL)?;
    kit::succeeds("the one inside", &child)?;
    drop(session);
    Ok(())
}

fn idle() -> Outcome {
    let talk: Endpoint = caps::get("talk")?;
    let own = new_context(&Spec::new(2 * MS, 20 * MS))?;
    ensure!(own.info()?.ok()?.remaining_ns > 0, "a new context has no time");
    talk.call(1, [0; 2])?;
    let info = own.info()?;
    ensure!(info.result == R::StaleGeneration && info.value.remaining_ns == 0, "after the logout: {info:?}");
    Ok(())
}

// ---- on loan ------------------------------------------------------------------------------------------------------------------

fn receiver(scale: Scale) -> Outcome {
    let talk = Arc::new(endpoint()?);
    let (session, child) = member("server", "server", &talk, rights::ALL)?;
    time::sleep(30 * MS)?;
    let own = new_context(&Spec::new(20 * MS, 100 * MS))?;
    let watched = copy(&own)?;
    let back = Arc::new(AtomicU64::new(0));
    let (came_back, theirs) = (Arc::clone(&back), Arc::clone(&talk));
    let donor = thread::spawn(move || -> Outcome<u64> {
        own.bind(Fallback::BestEffort)?.ok()?;
        burn(MS, scale);
        let before = own.info()?.ok()?.remaining_ns;
        // The call is only submitted, but the loan keeps the caller in the kernel.
        let mut call = theirs.call_start(1, [0; 2])?;
        came_back.store(time::now_ns()?, Ordering::Relaxed);
        ensure!(call.poll().is_some_and(|answer| answer.is_ok()), "back without an answer");
        let after = own.info()?.ok()?.remaining_ns;
        ensure!(after + 4 * MS < before, "the server's time is not in it: {before} before, {after} after");
        own.unbind()?.ok()?;
        Ok(after)
    });
    kit::wait_until("the context is lent", || Ok(watched.info()?.ok()?.lent_depth == 1))?;
    let out = session.logout()?;
    let at = time::now_ns()?;
    ensure!(out.stale_marked == 0 && out.donation_inflight_skipped == 1, "a loan in flight: {out:?}");
    let after = donor.join()??;
    ensure!(back.load(Ordering::Relaxed) > at, "the donor was back before the server had answered");
    kit::succeeds("the server", &child)?;
    println!("session_stale_marked=0 donation_inflight_skipped=1 donor_after={after}");
    Ok(())
}

fn server() -> Outcome {
    let scale = Scale::measure()?;
    let talk: Endpoint = caps::get("talk")?;
    let call = talk.recv(&mut [])?;
    burn(2 * MS, scale);
    // Time enough for the logout.
    time::sleep(40 * MS)?;
    burn(3 * MS, scale);
    talk.reply(call.token, Answer::Words([0; 2])).doing("answer")
}

// ---- lent -------------------------------------------------------------------------------------------------------------------

fn lender(scale: Scale) -> Outcome {
    let lend = Lend::start(move |call| {
        let _ = time::sleep(if call.method == 1 { 40 * MS } else { 0 });
        burn(MS, scale);
        Answer::Words([1, 0])
    })?;
    let (session, child) = member("donor", "donor", &lend.endpoint, rights::CALL)?;
    let pid = child.pid;
    let lent_to = || -> Outcome<Option<(u32, u32)>> {
        let contexts = kit::system()?.contexts().doing("contexts")?;
        Ok(contexts
            .iter()
            .find(|listed| listed.bound.is_some_and(|(owner, _)| owner == pid))
            .and_then(|listed| listed.lent_to))
    };
    kit::wait_until("the context is lent", || Ok(lent_to()?.is_some()))?;
    ensure!(lent_to()? == Some((rt::boot_info().pid, lend.tid)), "lent to {:?}", lent_to()?);
    let out = session.logout()?;
    ensure!(out.stale_marked == 1 && out.donation_inflight_skipped == 0, "the lender's logout: {out:?}");
    ensure!(lent_to()?.is_none(), "still lent");
    kit::succeeds("the donor", &child)?;
    println!("donor_logout=ok");
    lend.stop()
}

fn donor() -> Outcome {
    let talk: Endpoint = caps::get("talk")?;
    let own = new_context(&Spec::new(4 * MS, 20 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    ensure!(talk.call(1, [0; 2])?[0] == 1, "another answer");
    let info = own.info()?;
    ensure!(info.result == R::StaleGeneration && info.value.remaining_ns == 0, "restored: {info:?}");
    Ok(())
}
