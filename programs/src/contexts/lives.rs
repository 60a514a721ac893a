//! Steps of the proof `scheduling-context` about binding other threads, changing contexts, CPU masks and templates
//! (S-02, S-04).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::{Exception, TransportError, rights};
use rt::{
    Client, Command, Fallback, OperationResult as R, ProcessSpawner, SchedulingContext, Spec, caps, time,
};

use super::{burn, context, copy, new_context};
use crate::kit::{self, MS, raised, refused};
use crate::proof::{Doing, Outcome};
use crate::ticks::Scale;
use crate::{ensure, markers};

/// Binds another thread: one that waits, one that runs, one that has ended; and one that stops when its context is
/// taken away.
pub fn bind_others(scale: Scale) -> Outcome {
    let (stop, burning) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (stopped, is_burning) = (Arc::clone(&stop), Arc::clone(&burning));
    let thread = rt::thread::Builder::new()
        .spawn(move || -> Outcome {
            time::sleep(30 * MS)?;
            is_burning.store(true, Ordering::Relaxed);
            while !stopped.load(Ordering::Relaxed) {
                burn(MS / 4, scale);
            }
            Ok(())
        })
        .doing("start a thread")?;
    time::sleep(5 * MS)?;
    let handle = thread.handle().ok_or_else(|| crate::proof::Failure::new("no handle"))?;
    // The thread waits.
    let first = new_context(&Spec::new(2 * MS, 20 * MS))?;
    first.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    ensure!(first.bind_thread(handle, Fallback::BestEffort)?.result == R::AlreadyBound, "bound twice");
    kit::wait_until("the thread burns", || Ok(burning.load(Ordering::Relaxed)))?;
    time::sleep(20 * MS)?;
    ensure!(first.consumed()?.ok()?.total_ns > MS, "a thread that waited is not charged");
    first.unbind()?.ok()?;
    // The thread runs, and stops when its context is taken away.
    let second = new_context(&Spec::new(2 * MS, 20 * MS))?;
    second.bind_thread(handle, Fallback::Stop)?.ok()?;
    time::sleep(30 * MS)?;
    ensure!(second.consumed()?.ok()?.total_ns > MS, "a thread that ran is not charged");
    second.revoke()?.ok()?;
    let third = new_context(&Spec::new(2 * MS, 20 * MS))?;
    time::sleep(20 * MS)?;
    stop.store(true, Ordering::Relaxed);
    time::sleep(20 * MS)?;
    ensure!(!thread.is_finished(), "a thread that runs on contexts only ran without one");
    third.bind_thread(handle, Fallback::BestEffort)?.ok()?;
    kit::wait_until("the thread goes on", || Ok(thread.is_finished()))?;
    let fourth = new_context(&Spec::new(2 * MS, 20 * MS))?;
    let dead = fourth.bind_thread(handle, Fallback::BestEffort)?.result;
    ensure!(dead == R::DeadThread, "an ended thread was bound: {dead:?}");
    thread.join()??;
    ensure!(third.info()?.result == R::StaleGeneration, "its context outlives a thread");
    markers!("bind_thread=ok context_only_stops=ok exit_stales=ok");
    Ok(())
}

/// Time that was used stays used, whatever the new specification asks for.
pub fn reconfigure(scale: Scale) -> Outcome {
    let own = new_context(&Spec::new(10 * MS, 100 * MS))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    burn(8 * MS, scale);
    let before = own.info()?.ok()?.remaining_ns;
    own.reconfigure(&Spec::new(20 * MS, 100 * MS))?.ok()?;
    let after = own.info()?.ok()?;
    ensure!(after.spec.budget_ns == 20 * MS, "not changed: {after:?}");
    ensure!(
        after.remaining_ns <= before,
        "{before} ns were left, {} are: time from nothing",
        after.remaining_ns
    );
    ensure!(own.reconfigure(&Spec::new(99 * MS, 100 * MS))?.result == R::ResourceExhausted, "99 %");
    raised("a bad change", own.reconfigure(&Spec::new(1, 100 * MS)), Exception::InvalidArgument)?;
    ensure!(own.info()?.ok()?.spec.budget_ns == 20 * MS, "a refusal changed it");
    own.unbind()?.ok()?;
    markers!("reconfigure=ok reconfigure_before={before} reconfigure_after={}", after.remaining_ns);
    Ok(())
}

/// A context for one CPU runs its thread there, and nowhere else (S-04).
pub fn masks(scale: Scale) -> Outcome {
    let cpus = rt::boot_info().cpus;
    for cpu in 0..cpus.min(4) {
        let own = new_context(&Spec::new(5 * MS, 20 * MS).cpus([cpu]))?;
        own.bind(Fallback::BestEffort)?.ok()?;
        ensure!(own.info()?.ok()?.home == cpu, "another home than CPU {cpu}");
        for _ in 0..8 {
            burn(MS, scale);
            ensure!(super::cpu_now()? == cpu, "ran elsewhere than on CPU {cpu}");
        }
        own.unbind()?.ok()?;
    }
    markers!("cpu_mask=ok");
    Ok(())
}

/// Every thread of a process that was started with a template has a context of its own.
pub fn template() -> Outcome {
    let any = context()?;
    let spawner: ProcessSpawner = caps::any()?;
    let command = || {
        Command::new(rt::args::program()).arg("template").grant_all(|entry| caps::name_of(entry) == "self")
    };
    let child = command().template(Spec::new(MS, 10 * MS), &any).spawn(&spawner).doing("spawn")?;
    kit::succeeds("the child with a template", &child)?;
    let greedy = command().template(Spec::new(99 * MS, 100 * MS), &any).spawn(&spawner);
    raised("a template that nobody has room for", greedy.map(|_| ()), Exception::Overloaded)?;
    let looks_only = SchedulingContext::of(any.cap().copy(rights::CALL, 0).doing("copy")?);
    let unauthorised = command().template(Spec::new(MS, 10 * MS), &looks_only).spawn(&spawner);
    raised("a template without the right to create", unauthorised.map(|_| ()), Exception::Failed)?;
    refused(
        "create without the right",
        looks_only.create(&Spec::new(MS, 10 * MS)),
        TransportError::NotPermitted,
    )?;
    markers!("template=ok");
    Ok(())
}

/// The child of [`template`].
pub fn in_template() -> Outcome {
    let listing = || -> Outcome<usize> {
        let contexts = kit::system()?.contexts().doing("contexts")?;
        Ok(contexts
            .iter()
            .filter(|listed| listed.bound.is_some_and(|(pid, _)| pid == rt::boot_info().pid))
            .count())
    };
    ensure!(listing()? == 1, "the first thread has {} contexts", listing()?);
    let go = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&go);
    let thread = rt::thread::spawn(move || {
        while !gone.load(Ordering::Relaxed) {
            let _ = time::sleep(MS);
        }
    });
    ensure!(listing()? == 2, "two threads have {} contexts", listing()?);
    go.store(true, Ordering::Relaxed);
    thread.join()?;
    kit::wait_until("the ended thread's context goes", || Ok(listing()? == 1))
}

/// Checks the results of `yieldTo`.
pub fn yield_to(scale: Scale) -> Outcome {
    let own = new_context(&Spec::new(10 * MS, 100 * MS).cpus([0]))?;
    ensure!(own.yield_to()?.result == R::NotBound, "nobody to give way to");
    own.bind(Fallback::BestEffort)?.ok()?;
    ensure!(own.yield_to()?.result == R::NotReady, "to oneself");
    let other = new_context(&Spec::new(10 * MS, 200 * MS).cpus([0]))?;
    let theirs = copy(&other)?;
    let (ready, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_ready, has_run) = (Arc::clone(&ready), Arc::clone(&ran));
    let thread = rt::thread::spawn(move || -> Outcome {
        theirs.bind(Fallback::BestEffort)?.ok()?;
        is_ready.store(true, Ordering::Relaxed);
        // Sleeps first, so that it becomes ready, with a later deadline, before the other thread yields.
        time::sleep(5 * MS)?;
        has_run.store(true, Ordering::Relaxed);
        burn(MS, scale);
        theirs.unbind()?.ok()?;
        Ok(())
    });
    kit::wait_until("the other one is bound", || Ok(ready.load(Ordering::Relaxed)))?;
    ensure!(other.yield_to()?.result == R::NotReady, "to one that sleeps");
    // First the other thread's sleep ends without it getting the CPU, then it gets it.
    burn(7 * MS, scale);
    let before = ran.load(Ordering::Relaxed);
    let given = other.yield_to()?.result;
    ensure!(!before, "a later deadline ran first");
    ensure!(
        given == R::Ok && ran.load(Ordering::Relaxed),
        "gave way ({given:?}), and the other one did not run"
    );
    own.unbind()?.ok()?;
    thread.join()??;
    markers!("yield_to=ok");
    Ok(())
}
