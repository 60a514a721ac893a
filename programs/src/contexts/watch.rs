//! Steps of the proof `scheduling-context` about the end of a budget, and who is notified of it (S-05, S-08).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use rt::{
    Answer, Factory, Fallback, NotificationKind as Kind, OperationResult as R, SchedulingContext, Spec,
    Timeout, caps, time,
};

use super::{Lend, burn, copy, new_context};
use crate::kit::{self, MS, wait_until};
use crate::proof::{Doing, Outcome};
use crate::ticks::Scale;
use crate::{ensure, markers};

/// A demoted thread goes on; a thread that faults is reported, and goes on as the handler decides.
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
    // At the first end of the budget the handler lets the thread wait for the refill, at the second it takes the context away.
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

/// Notifications of a revocation, to a stale observer, and of a loan whose budget is used up. Missed deadlines are covered by the proof
/// `deadline-misses`.
pub fn notifications(scale: Scale) -> Outcome {
    let urgent = caps::any::<SchedulingContext>()?;
    let late = new_context(&Spec::new(2 * MS, 70 * MS).deadline(5 * MS).cpus([0]))?;
    let refused = urgent.create(&Spec::new(30 * MS, 100 * MS).criticality(7).cpus([0]))?;
    ensure!(
        refused.result == R::ResourceExhausted,
        "a band that keeps a lower one from its deadline was admitted"
    );
    // The capability that revoked is notified; the other one is stale.
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
    let server = lend.tid;
    // Sleeps until something happens, on no budget.
    let observer = rt::thread::spawn(move || -> Outcome {
        seen.wait_notification()?;
        told.store(time::now_ns()?, Ordering::Relaxed);
        let news = seen.drain()?.ok()?;
        let dry = news.get(Kind::BudgetDepleted).copied();
        ensure!(dry.is_some_and(|cell| cell.is_donated), "not on loan: {news:?}");
        // The notification names the thread that ran on the context, not its owner.
        let me = rt::boot_info().pid;
        ensure!(
            dry.is_some_and(|cell| (cell.holder_pid, cell.holder_tid) == (me, server)),
            "not {server}: {news:?}"
        );
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

/// An observer does not keep a context alive: the context ends with the last capability to it, also if it was revoked before, and the observer is
/// woken. Contexts were once kept alive by their observers, and ended in the interrupt that brought the notification (K-18).
pub fn unkept() -> Outcome {
    for is_revoked in [false, true] {
        let own = new_context(&Spec::new(2 * MS, 20 * MS))?;
        let id = own.info()?.ok()?.id;
        if is_revoked {
            own.revoke()?.ok()?;
            let _ = own.drain()?;
        }
        let mut waits = own.wait_notification_start()?;
        ensure!(waits.poll().is_none(), "told before anything has happened");
        drop(own);
        wait_until("an observer is told of the end", || Ok(waits.poll().is_some()))?;
        let left = kit::system()?.contexts().doing("contexts")?;
        ensure!(
            left.iter().all(|context| context.info.id != id),
            "it is there without a capability: {left:?}"
        );
    }
    markers!("watch_keeps_nothing=ok");
    Ok(())
}

/// An observer is told of each event once: after it has drained the notifications, it sleeps until something new happens.
pub fn after_a_drain(scale: Scale) -> Outcome {
    let own = new_context(&Spec::new(2 * MS, 20 * MS))?;
    let seen = copy(&own)?;
    let heard = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&heard);
    let observer = rt::thread::spawn(move || -> Outcome {
        loop {
            seen.wait_notification()?;
            told.fetch_add(1, Ordering::AcqRel);
            let news = seen.drain()?;
            if news.result == R::StaleGeneration {
                return Ok(());
            }
            ensure!(news.value.get(Kind::BudgetDepleted).is_some(), "woken for nothing: {news:?}");
        }
    });
    let heard = || heard.load(Ordering::Acquire);
    for round in 1..=3 {
        own.bind(Fallback::BestEffort)?.ok()?;
        burn(3 * MS, scale);
        own.unbind()?.ok()?;
        wait_until("a budget runs dry", || Ok(heard() >= round))?;
        let before = heard();
        ensure!(before <= 2 * round, "heard {before} times of {round} budgets");
        time::sleep(30 * MS)?;
        ensure!(heard() == before, "heard {} times more, and nothing has happened", heard() - before);
    }
    own.revoke()?.ok()?;
    observer.join()??;
    markers!("notification_ends=ok");
    Ok(())
}
