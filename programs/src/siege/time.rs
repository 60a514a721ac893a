//! Attacks on CPU time: to get more than was promised, to leave none to others, to bind contexts to threads that are
//! ending.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::Continue;
use core::sync::atomic::{AtomicU32, Ordering};

use rt::thread::Builder;
use rt::{Command, Factory, Fallback, ProcessSpawner, SchedulingContext, Spec, ThreadControl, caps};

use super::{crew, small, some_cpu, spin, wait_for_the_end};
use crate::contexts::{burn, copy, new_context};
use crate::kit::MS;
use crate::proof::Outcome;
use crate::random::Random;
use crate::ticks::Scale;

/// A random specification; most ask for more time than is left.
fn spec(random: &mut Random) -> Spec {
    let period_ns = (1 + random.below(50)) * MS;
    let spec = Spec::new((period_ns * (1 + random.below(90)) / 100).max(20_000), period_ns);
    let spec = spec.criticality(random.below(8) as u8);
    if random.below(2) == 0 { spec.cpus([some_cpu(random)]) } else { spec }
}

/// A context of this specification, or of smaller and smaller ones, in the lowest band if need be.
fn any_context(mut spec: Spec) -> Option<SchedulingContext> {
    for _ in 0..8 {
        for band in [spec.criticality, 0] {
            let made = new_context(&Spec { criticality: band, ..spec });
            if let Ok(context) = made {
                return Some(context);
            }
        }
        spec.budget_ns /= 2;
    }
    None
}

/// Threads that always want to run, on all the time that can be had.
pub fn contexts(random: &mut Random) -> Outcome {
    let mut kept = Vec::new();
    for _ in 0..40 {
        let thread = small(spin)?;
        if let (Some(context), Some(handle)) = (any_context(spec(random)), thread.handle()) {
            let _ = context.bind_thread(handle, Fallback::BestEffort)?;
            kept.push(context);
        }
        core::mem::forget(thread);
    }
    wait_for_the_end()
}

/// As many contexts as can be had, each with next to no time.
pub fn tiny(_: &mut Random) -> Outcome {
    let mut kept = Vec::new();
    while kept.len() < 1000
        && let Ok(context) = new_context(&Spec::new(20_000, 60_000 * MS))
    {
        kept.push(context);
    }
    wait_for_the_end()
}

/// Requests that must be refused, each with an endpoint for timeout faults.
pub fn refusals(_: &mut Random) -> Outcome {
    let endpoint = caps::any::<Factory>()?.endpoint()?;
    let any: SchedulingContext = caps::any()?;
    loop {
        let _ = any.create(&Spec::new(99 * MS, 100 * MS).fault(&endpoint));
    }
}

/// A thread that has used its budget replaces its context by a new one, which is full.
pub fn successors(random: &mut Random) -> Outcome {
    let scale = Scale::measure()?;
    let wanted = spec(random);
    let mut context = any_context(wanted);
    loop {
        if let Some(context) = &context {
            let _ = context.bind(Fallback::BestEffort)?;
        }
        burn((wanted.budget_ns / 2).min(2 * MS), scale);
        if let Some(old) = context.take() {
            let _ = old.revoke();
        }
        context = any_context(wanted);
    }
}

/// A context that is switched between long and short periods whenever some of it was used.
pub fn changes(random: &mut Random) -> Outcome {
    let scale = Scale::measure()?;
    let Some(context) = any_context(spec(random)) else { return Ok(()) };
    let _ = context.bind(Fallback::BestEffort)?;
    loop {
        burn(random.below(2 * MS), scale);
        let _ = context.reconfigure(&spec(random))?;
    }
}

/// A process with a template: its threads follow each other, and each begins with a new context from the template.
pub fn relay(random: &mut Random) -> Outcome {
    let any: SchedulingContext = caps::any()?;
    let period_ns = (2 + random.below(30)) * MS;
    let template = Spec::new(period_ns / 10, period_ns).cpus([some_cpu(random)]);
    loop {
        let child = Command::new(rt::args::program())
            .arg("attack")
            .arg("runner")
            .arg("1")
            .grant_all(|entry| caps::name_of(entry) == "self")
            .template(template, &any)
            .spawn(&caps::any::<ProcessSpawner>()?);
        let Ok(child) = child else { continue };
        rt::time::sleep((5 + random.below(40)) * MS)?;
        let _ = child.handle.kill();
        let _ = child.wait();
    }
}

/// Role: threads that follow each other.
pub fn runner() -> Outcome {
    let scale = Scale::measure()?;
    pass_on(scale);
    wait_for_the_end()
}

fn pass_on(scale: Scale) {
    burn(MS / 2, scale);
    while Builder::new().stack_bytes(16 << 10).spawn(move || pass_on(scale)).map(core::mem::forget).is_err() {
        rt::thread::yield_now();
    }
}

/// Binds contexts to threads just while these end.
pub fn late_binds(random: &mut Random) -> Outcome {
    let mut centre: u64 = 2000;
    loop {
        let Some(context) = any_context(Spec::new(100_000, 100 * MS)) else { continue };
        let go = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&go);
        let short = small(move || {
            theirs.store(1, Ordering::Release);
            while theirs.load(Ordering::Acquire) != 2 {}
            drop(theirs);
            rt::syscall::exit_thread(0);
        })?;
        while go.load(Ordering::Acquire) != 1 {
            rt::thread::yield_now();
        }
        go.store(2, Ordering::Release);
        for _ in 0..random.below(2 * centre + 1) {
            core::hint::black_box(0);
        }
        if let Some(handle) = short.handle() {
            // The delay converges on the moment at which half of the binds come too late.
            let is_bound = context.bind_thread(handle, Fallback::BestEffort).is_ok_and(|it| it.ok().is_ok());
            centre = if is_bound { centre + 40 } else { centre.saturating_sub(40) }.min(200_000);
        }
        let _ = short.join();
    }
}

/// Threads that may run only on a context set their affinity all the time while their contexts are revoked.
pub fn stops(random: &mut Random) -> Outcome {
    let cpus = rt::boot_info().cpus.min(8);
    let all = [((1_u16 << cpus) - 1) as u8];
    let kept = Arc::new(rt::sync::Mutex::new(Vec::new()));
    for _ in 0..4 {
        let kept = Arc::clone(&kept);
        core::mem::forget(small(move || {
            let Some(context) = any_context(Spec::new(80 * MS, 100 * MS)) else { return };
            if let Ok(copy) = copy(&context) {
                kept.lock().push(copy);
            }
            let _ = context.bind(Fallback::Stop);
            let Ok(control) = caps::any::<ThreadControl>() else { return };
            loop {
                let _ = control.set_affinity(&all);
            }
        })?);
    }
    loop {
        rt::time::sleep(random.below(3 * MS))?;
        let mut kept = kept.lock();
        if let Some(context) = kept.pop() {
            let _ = context.revoke();
        }
    }
}

/// A context that faults is bound to one thread after the other; nobody answers the faults.
pub fn faults(random: &mut Random) -> Outcome {
    let endpoint = caps::any::<Factory>()?.endpoint()?;
    let Some(context) = any_context(Spec::new(20_000, MS).fault(&endpoint)) else { return Ok(()) };
    for _ in 0..200 {
        let thread = small(spin)?;
        if let Some(handle) = thread.handle() {
            let _ = context.bind_thread(handle, Fallback::BestEffort)?;
        }
        core::mem::forget(thread);
        rt::time::sleep(random.below(2 * MS))?;
        let _ = context.unbind()?;
    }
    wait_for_the_end()
}

/// Calls that lend a context, along a server that calls itself, while the context is revoked.
pub fn loans(random: &mut Random) -> Outcome {
    let served = Arc::new(caps::any::<Factory>()?.endpoint()?);
    for _ in 0..3 {
        let served = Arc::clone(&served);
        core::mem::forget(small(move || {
            let inner = Arc::clone(&served);
            let _ = served.serve(move |call| {
                let [depth, _] = call.message.words();
                if depth > 0 {
                    let mut pending = inner.call_start(1, [depth - 1, 0]).ok();
                    let _ = pending.as_mut().map(|pending| pending.wait_timeout(200_000).is_some());
                }
                Continue([0; 2])
            });
        })?);
    }
    crew(2, move || {
        if let Some(context) = any_context(Spec::new(MS, 4 * MS)) {
            let _ = context.bind(Fallback::BestEffort);
        }
        loop {
            let _ = served.call(1, [3, 0]);
        }
    })?;
    loop {
        let Some(context) = any_context(spec(random)) else { continue };
        let _ = context.bind(Fallback::BestEffort)?;
        rt::time::sleep(random.below(2 * MS))?;
        let _ = context.revoke();
    }
}
