//! The load that one process can put on others through what it owns, and the threads that check that nobody notices it (K-26).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rt::abi::{Op, Sqe, rights};
use rt::clients::Give;
use rt::sync::Semaphore;
use rt::thread::{Builder, JoinHandle};
use rt::{
    Child, Client, Factory, Fallback, ParkSpace, Protection, SchedulingContext, SchedulingPolicy, Spec,
    ThreadControl, Timer, VirtualMemory, args, caps, println, time,
};

use crate::contexts::{new_context, new_context_soon};
use crate::ensure;
use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::rawring::RawRing;
use crate::turns;

/// The longest that a sleeper of the highest band may be late, in instructions of its CPU: 100 us where one takes a nanosecond.
const LATE_MAX: u64 = 100_000;
/// How long the sleepers sleep each time, in instructions of their CPU.
const NAP: u64 = 500_000;

/// The highest band.
const BAND: u8 = 7;
const STACK_BYTES: usize = 8 << 10;

/// One thread of the highest band on each CPU, which sleeps repeatedly and records how late it woke at worst.
pub struct Watch {
    worst_ns: Vec<Arc<AtomicU64>>,
    /// Ticks of the clock that pass while a CPU executes one instruction.
    instruction: u64,
    _time: Vec<SchedulingContext>,
}

impl Watch {
    /// Starts the sleepers; the calling thread stays on CPU 0 from now on.
    pub fn start() -> Outcome<Watch> {
        let instruction = turns::instruction()?;
        let (mut worst_ns, mut time) = (Vec::new(), Vec::new());
        for cpu in 0..rt::boot_info().cpus {
            let worst = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&worst);
            let sleep = move || -> rt::Result<()> {
                caps::any::<ThreadControl>()?.set_affinity(&[1 << cpu])?;
                let nap_ns = NAP * instruction;
                loop {
                    let end = time::now_ns()? + nap_ns;
                    time::sleep(nap_ns)?;
                    theirs.fetch_max(time::now_ns()? - end, Ordering::Relaxed);
                }
            };
            let sleeper = Builder::new().stack_bytes(STACK_BYTES * 2).spawn(sleep).doing("spawn")?;
            // Far more than a sleeper needs, and with several CPUs enough to wait for locks, too.
            let spec = Spec::new(many(5, 1) as u64 * MS, many(100, 10) as u64 * MS).cpus([cpu]);
            let context = new_context(&Spec { criticality: BAND, ..spec })?;
            let handle = sleeper.handle().ok_or_else(|| Failure::new("a sleeper without a handle"))?;
            context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
            time.push(context);
            worst_ns.push(worst);
            // The thread ends with the process.
            core::mem::forget(sleeper);
            if rt::boot_info().cpus > 1 {
                core::mem::forget(small(move || busy(cpu))?);
            }
        }
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        Ok(Watch { worst_ns, instruction, _time: time })
    }

    /// Fails if a sleeper is late while `run` runs, or if the kernel kept interrupts off for too long.
    pub fn over(&self, run: impl FnOnce() -> Outcome) -> Outcome {
        time::sleep(5 * MS)?;
        let long = || -> Outcome<(u64, u64)> {
            Ok((kit::counter("interrupts_off_over_20k")?, kit::counter("interrupts_off_over_50k")?))
        };
        let before = long()?;
        self.worst_ns.iter().for_each(|worst| worst.store(0, Ordering::Relaxed));
        run()?;
        // By now the sleepers have slept again.
        time::sleep(5 * MS)?;
        let after = long()?;
        let worst = self.worst_ns.iter().map(|worst| worst.load(Ordering::Relaxed)).max().unwrap_or(u64::MAX);
        let worst = worst / self.instruction;
        println!(
            "    late by {} us at worst; interrupts waited for more than 20,000 instructions {} times, 50,000 {} times \
             ({} at most so far, path {})",
            worst / 1000,
            after.0 - before.0,
            after.1 - before.1,
            kit::counter("interrupts_off_max")?,
            kit::counter("interrupts_off_path")?,
        );
        ensure!(worst <= LATE_MAX, "a sleeper of the highest band was late by {} us", worst / 1000);
        // Without this, a kernel that measures no interrupts-off spans would pass the check below.
        ensure!(kit::counter("interrupts_off_max")? > 1000, "no stretch without interrupts is counted");
        ensure!(after.1 == before.1, "interrupts waited for more than 50,000 instructions");
        Ok(())
    }
}

/// Keeps a CPU busy when it has nothing else to do: where CPUs take turns, the clock is as fast as this module assumes only if all of them are busy.
fn busy(cpu: u32) {
    if let (Ok(control), Ok(policy)) = (caps::any::<ThreadControl>(), caps::any::<SchedulingPolicy>())
        && control.set_affinity(&[1 << cpu]).is_ok()
        && policy.set_weight(1).is_ok()
    {
        spin();
    }
}

/// Spins for ever, without a hint that lets the emulator turn to another CPU.
pub fn spin() -> ! {
    loop {
        core::hint::black_box(0);
    }
}

/// An amount of load: `one` on a single CPU, where the machine is not shared, else `several`.
pub fn many(one: usize, several: usize) -> usize {
    if rt::boot_info().cpus == 1 { one } else { several }
}

fn small(run: impl FnOnce() + Send + 'static) -> Outcome<JoinHandle<()>> {
    Builder::new().stack_bytes(STACK_BYTES).spawn(run).doing("spawn")
}

/// Starts a child in role `name`, and waits until it has `threads` threads beside its first one.
pub fn start(name: &str, threads: u32) -> Outcome<Child> {
    let child = kit::again(&["storm", name], &[])?;
    kit::wait_until("the threads of a child", || Ok(child.handle.info()?.threads > threads))?;
    Ok(child)
}

/// Watches a child in role `name` until the child has ended by itself.
pub fn alone(watch: &Watch, name: &str) -> Outcome {
    watch.over(|| kit::succeeds(name, &kit::again(&["storm", name], &[])?))
}

/// Kills a process that has all the memory that it may have.
pub fn large_end(watch: &Watch) -> Outcome {
    let child = start("large", 1)?;
    watch.over(|| {
        child.handle.kill()?;
        child.wait()?;
        Ok(())
    })
}

/// Wakes a thousand threads that are parked on one word by one operation.
pub fn wakes(watch: &Watch) -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    const SLEEPERS: u32 = 1000;
    WORD.store(0, Ordering::Relaxed);
    let parked = || {
        if let Ok(park) = caps::any::<ParkSpace>() {
            while WORD.load(Ordering::Relaxed) == 0 {
                let _ = park.park(&WORD, 0, u64::MAX);
            }
        }
    };
    let threads = (0..SLEEPERS).map(|_| small(parked)).collect::<Outcome<Vec<_>>>()?;
    time::sleep(100 * MS)?;
    watch.over(|| {
        WORD.store(1, Ordering::Relaxed);
        let woken = caps::any::<ParkSpace>()?.unpark(&WORD, SLEEPERS)?;
        ensure!(woken == u64::from(SLEEPERS), "{woken} threads were woken of {SLEEPERS}");
        for thread in threads {
            thread.join()?;
        }
        Ok(())
    })
}

/// The body of a child in role `name`.
pub fn child(name: &str) -> Outcome {
    caps::any::<ThreadControl>()?.set_affinity(&[1])?;
    match name {
        "crowd" => {
            static NEVER: Semaphore = Semaphore::new(0);
            for _ in 0..1000 {
                core::mem::forget(small(|| NEVER.acquire())?);
            }
            for_ever()
        }
        "large" => {
            let memory: VirtualMemory = caps::any()?;
            while memory.map(None, 1 << 20, Protection::READ_WRITE).is_ok() {}
            // There is no memory left for a large stack. This thread's existence shows that all memory is taken.
            core::mem::forget(small(|| drop(for_ever())));
            for_ever()
        }
        "births" => {
            for _ in 0..20 {
                kit::again(&["storm", "nothing"], &[])?.wait()?;
            }
            Ok(())
        }
        "chain" => chain(),
        "sleeps" => sleeps(None),
        "spent-sleeps" => sleeps(Some(new_context_soon(&Spec::new(MS, 20 * MS).cpus([0]))?)),
        _ => Ok(()),
    }
}

fn for_ever() -> Outcome {
    time::sleep(u64::MAX).doing("sleep")
}

const CHAIN: usize = 16;
const CALLERS: usize = 16;
const CALLS: usize = 31;

/// Creates endpoints at each of which many calls wait; a call at each carries the last right to serve the next. When the first is dropped, all close.
fn chain() -> Outcome {
    static READY: Semaphore = Semaphore::new(0);
    let factory: Factory = caps::any()?;
    let mut threads = Vec::new();
    let mut endpoints = Vec::new();
    for _ in 0..CHAIN {
        let endpoint = factory.endpoint()?;
        let caller = Arc::new(endpoint.caller(1)?);
        for _ in 0..CALLERS {
            let caller = Arc::clone(&caller);
            threads.push(small(move || {
                let calls: Vec<_> = (0..CALLS).filter_map(|_| caller.call_start(1, [0; 2]).ok()).collect();
                READY.release();
                for call in calls {
                    // The call ends when the endpoint is closed.
                    let _ = call.wait();
                }
            })?);
        }
        endpoints.push((endpoint, caller));
    }
    (0..CHAIN * CALLERS).for_each(|_| READY.acquire());
    // From the last to the first: the right to serve each endpoint but the first is moved into a message at the endpoint before it.
    while endpoints.len() > 1 {
        let Some((last, _)) = endpoints.pop() else { break };
        let Some((_, before)) = endpoints.last() else { break };
        let cap = last.cap().copy(rights::ALL, 0)?;
        drop(last);
        let before = Arc::clone(before);
        threads.push(small(move || {
            let mut room = [0; 64];
            let _ = before.call_giving(1, &[], &mut room, Give::Move(cap));
        })?);
        time::sleep(MS)?;
    }
    drop(endpoints);
    for thread in threads {
        thread.join()?;
    }
    Ok(())
}

const SLEEPERS: usize = 8;
const SLEEPS: u32 = 31;

/// Watches `count` children in role `name`, each with 248 sleeps that end at one moment, while another thread runs on a promised budget.
pub fn sleeps_together(watch: &Watch, name: &str, count: u64) -> Outcome {
    let promised = new_context_soon(&Spec::new(60 * MS, 100 * MS).cpus([0]).demote())?;
    let hog = small(|| {
        if caps::any::<ThreadControl>().is_ok_and(|control| control.set_affinity(&[1]).is_ok()) {
            spin();
        }
    })?;
    watch.over(|| {
        let at = alloc::format!("{}", time::now_ns()? + (count + 1) * 200 * MS + 35 * MS);
        let mut children = Vec::new();
        for _ in 0..count {
            children.push(kit::again(&["storm", name, &at], &[])?);
            time::sleep(200 * MS)?;
        }
        let handle = hog.handle().ok_or_else(|| Failure::new("a hog without a handle"))?;
        promised.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        children.iter().try_for_each(|child| kit::succeeds(name, child))
    })?;
    // The thread ends with the process.
    core::mem::forget(hog);
    Ok(())
}

/// Starts threads with as many sleeps as a thread may have, which all end at the time that the second argument gives. If there is a `context`, each
/// thread runs on it only while it submits its sleeps, so the context is gone when they end.
fn sleeps(context: Option<SchedulingContext>) -> Outcome {
    static TURN: AtomicU32 = AtomicU32::new(u32::MAX);
    static DONE: AtomicU32 = AtomicU32::new(0);
    let end_ns = args::number(2, 0).map_err(Failure::new)?;
    let timer = caps::any::<Timer>()?.cap().id().0;
    let is_free = context.is_none();
    let mut threads = Vec::new();
    for at in 0..SLEEPERS as u32 {
        let run = move || -> Outcome {
            while !is_free && TURN.load(Ordering::Acquire) != at {
                time::sleep(MS / 4)?;
            }
            let left_ns = end_ns.saturating_sub(time::now_ns()?);
            // SAFETY: nothing else of this thread is under way, and sleeps name no memory.
            let mut ring = unsafe { RawRing::take() };
            for _ in 0..SLEEPS {
                ring.push(Sqe { op: Op::Sleep as u8, cap: timer, arg0: left_ns, ..Sqe::default() });
            }
            ring.enter(0, 0);
            DONE.fetch_add(1, Ordering::Release);
            for _ in 0..SLEEPS {
                ring.next_cqe();
            }
            Ok(())
        };
        threads.push(Builder::new().stack_bytes(STACK_BYTES * 2).spawn(run).doing("spawn")?);
    }
    for (at, thread) in threads.iter().enumerate() {
        let Some(context) = &context else { break };
        let handle = thread.handle().ok_or_else(|| Failure::new("no handle"))?;
        context.bind_thread(handle, Fallback::BestEffort)?.ok()?;
        TURN.store(at as u32, Ordering::Release);
        while DONE.load(Ordering::Acquire) as usize <= at {
            time::sleep(MS / 4)?;
        }
        context.unbind()?.ok()?;
    }
    drop(context);
    threads.into_iter().try_for_each(|thread| thread.join()?)
}
