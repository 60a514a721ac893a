//! Steps of the proof `scheduling-context` about what happens at the end of a budget, and who is told (S-05, S-08).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rt::{
    Answer, Factory, Fallback, NotificationKind as Kind, OperationResult as R, Spec, Timeout, caps, time,
};

use super::{Lend, burn, copy, new_context};
use crate::kit::{MS, wait_until};
use crate::proof::{Doing, Outcome};
use crate::ticks::Scale;
use crate::{ensure, markers};

/// Who is demoted goes on; who faults is reported, and goes on as the handler says.
pub fn overruns(scale: Scale) -> Outcome {
    let demoted = new_context(&Spec::new(2 * MS, 500 * MS).demote())?;
    demoted.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    burn(20 * MS, scale);
    let took = time::now_ns()? - start;
    ensure!(took < 400 * MS, "a demoted thread waited for its refill: {took} ns");
    let info = demoted.info()?.ok()?;
    ensure!(info.depletions == 1 && info.remaining_ns == 0, "not demoted: {info:?}");
    ensure!(info.consumed_ns < 4 * MS, "what it ran at its weight is charged to the context: {info:?}");
    demoted.unbind()?.ok()?;
    markers!("overrun_throttle=ok overrun_demote=ok");
    faults(scale)
}

fn faults(scale: Scale) -> Outcome {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let handler = Arc::clone(&endpoint);
    let heard = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&heard);
    let watcher = rt::thread::spawn(move || -> Outcome {
        let call = handler.recv(&mut [])?;
        let first = Timeout::of(&call);
        ensure!(first.is_some_and(|fault| !fault.is_donated), "no timeout: {call:?}");
        told.store(first.map_or(0, |fault| fault.context_id), Ordering::Relaxed);
        let call = handler.reply_recv(call.token, Timeout::WAIT, &mut [])?;
        ensure!(Timeout::of(&call) == first, "another timeout: {call:?}");
        handler.reply(call.token, Timeout::DEMOTE)?;
        Ok(())
    });
    let own = new_context(&Spec::new(2 * MS, 40 * MS).fault(&endpoint))?;
    let id = own.info()?.ok()?.id;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    // The first end of the budget waits for the refill, the second one takes the context away.
    burn(30 * MS, scale);
    let took = time::now_ns()? - start;
    ensure!(took >= 38 * MS, "it did not wait for a refill: {took} ns");
    ensure!(
        heard.load(Ordering::Relaxed) == id,
        "the handler heard of context {}",
        heard.load(Ordering::Relaxed)
    );
    let info = own.info()?.ok()?;
    ensure!(info.consumed_ns < 6 * MS, "it ran on: {info:?}");
    ensure!(own.unbind()?.result == R::NotBound, "the handler's answer did not unbind");
    let news = own.drain()?.ok()?;
    ensure!(news.get(Kind::DeadlineOrTimeout).is_some_and(|cell| cell.coalesced == 2), "not noted: {news:?}");
    watcher.join()??;
    markers!("overrun_fault=ok timeout_fault_notifications=2");
    Ok(())
}

/// A deadline that passes while others run, a revocation, a stale observer, a loan that runs dry.
pub fn notifications(scale: Scale) -> Outcome {
    // A higher band keeps the lower one from its deadline, on the same CPU.
    let urgent = new_context(&Spec::new(30 * MS, 100 * MS).criticality(7).cpus([0]))?;
    let late = new_context(&Spec::new(2 * MS, 70 * MS).deadline(5 * MS).cpus([0]))?;
    let (mine, is_done) = (copy(&late)?, Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let lower = rt::thread::spawn(move || -> Outcome {
        mine.bind(Fallback::BestEffort)?.ok()?;
        while !done.load(Ordering::Relaxed) {
            burn(MS / 4, scale);
        }
        mine.unbind()?.ok()?;
        Ok(())
    });
    urgent.bind(Fallback::BestEffort)?.ok()?;
    wait_until("a deadline passes", || {
        burn(20 * MS, scale);
        let news = late.drain()?.ok()?;
        Ok(news.get(Kind::DeadlineOrTimeout).is_some_and(|cell| cell.coalesced > 0))
    })?;
    is_done.store(true, Ordering::Relaxed);
    urgent.unbind()?.ok()?;
    lower.join()??;
    markers!("deadline_notification=ok");
    // Revoked: told to the one, stale for the other.
    let other = copy(&late)?;
    late.drain()?.ok()?;
    late.revoke()?.ok()?;
    let news = late.drain()?;
    ensure!(
        news.result == R::Revoked && news.value.get(Kind::ExplicitRevoke).is_some(),
        "not told: {news:?}"
    );
    let stale = other.drain()?;
    ensure!(
        stale.result == R::StaleGeneration && stale.value.is_empty(),
        "a stale observer hears: {stale:?}"
    );
    markers!("revoke_notification=explicitRevoke stale_notification=staleGeneration");
    donated(scale)
}

fn donated(scale: Scale) -> Outcome {
    let lend = Lend::start(move |_| {
        burn(4 * MS, scale);
        Answer::Words([1, 0])
    })?;
    let own = new_context(&Spec::new(2 * MS, 40 * MS))?;
    let seen = copy(&own)?;
    let heard = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&heard);
    // Sleeps until something happens, on nobody's budget.
    let observer = rt::thread::spawn(move || -> Outcome {
        seen.wait_notification()?;
        told.store(time::now_ns()?, Ordering::Relaxed);
        let news = seen.drain()?.ok()?;
        let dry = news.get(Kind::BudgetDepleted).copied();
        ensure!(dry.is_some_and(|cell| cell.is_donated && cell.holder_tid != 0), "not on loan: {news:?}");
        Ok(())
    });
    time::sleep(5 * MS)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let start = time::now_ns()?;
    lend.endpoint.call(1, [0; 2])?;
    let took = time::now_ns()? - start;
    ensure!(took > 30 * MS, "4 ms of a server on 2 ms in 40 ms took {took} ns");
    own.unbind()?.ok()?;
    observer.join()??;
    let at = heard.load(Ordering::Relaxed);
    ensure!(
        at > start && at < start + took,
        "the observer heard at {at}, the call went from {start} for {took} ns"
    );
    markers!("endpoint_donated_notification=ok observer_woken_after_ns={}", at - start);
    lend.stop()
}
