//! Proof of scheduling policy as a capability (F-05, F-06, F-07): invalid weights and classes change nothing, threads and children inherit
//! theirs, and only a holder of a SchedulingPolicy can choose.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;

use abi::{CapId, Exception, TransportError, rights};
use programs::ensure;
use programs::kit::{self, MS, Usage};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use rt::{
    Cap, Child, Client, Command, Error, LatencyClass, ProcessSpawner, SchedulingPolicy, Share, Timer, args,
    caps, println, thread, time,
};

rt::main!(run);

/// The weight and class that `manifests/policy.toml` gives to this process.
const BORN: (u16, LatencyClass) = (96, LatencyClass::Batch);
/// How often a child is killed while it calls.
const KILLS: usize = 12;
/// How many threads end with an answer unread.
const ENDS: usize = 64;

fn run() -> i64 {
    let words: Vec<&str> = args::args().collect();
    match words.as_slice() {
        ["report"] => report(),
        ["hammer"] => hammer(),
        ["without"] => prove("policy (without the capability)", without),
        _ => prove("policy", proof),
    }
}

fn proof() -> Outcome {
    println!("policy: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
    step("the manifest's weight and class are the process's", || is("the first thread", share()?, BORN))?;
    step("weights outside 1 to 1024 change nothing (F-05)", bad_weights)?;
    step("classes that do not exist change nothing (F-05)", bad_classes)?;
    step("the snapshot counts (F-06)", counts)?;
    step("threads and children inherit from their maker", inheritance)?;
    step("a parent chooses for its child", choice)?;
    step("bad choices start nothing", bad_choices)?;
    step("without the capability there is no choice", || kit::succeeds("child", &child_without()?))?;
    step("every CPU's time goes to threads, idle or interrupts (S-12)", cpu_time)?;
    step("the scheduler counts, and dispatch takes no lock of others (T-01)", counters)?;
    step("ends in the middle of calls leave nothing behind", ends)?;
    step("stale, weak and revoked capabilities are refused (K-21)", worthless)
}

fn policy() -> Outcome<SchedulingPolicy> {
    caps::any().doing("scheduling_policy")
}

fn share() -> Outcome<Share> {
    policy()?.snapshot().doing("snapshot")
}

fn is(what: &str, share: Share, (weight, class): (u16, LatencyClass)) -> Outcome {
    ensure!(
        (share.weight, share.class) == (weight, class),
        "{what} has {} {:?} instead of {weight} {class:?}",
        share.weight,
        share.class
    );
    Ok(())
}

/// Fails unless the refusal is `InvalidArgument` and names what was wrong.
fn names<T: core::fmt::Debug>(what: &str, result: rt::Result<T>, texts: &[&str]) -> Outcome {
    match &result {
        Err(Error::Exception { kind: Exception::InvalidArgument, message })
            if texts.iter().all(|text| message.as_str().contains(text)) =>
        {
            Ok(())
        }
        _ => Err(Failure::new(format_args!("{what}: {result:?} does not say {texts:?}"))),
    }
}

fn bad_weights() -> Outcome {
    let policy = policy()?;
    for bad in [0, 1025, 65535, 65536, 65536 + 64, u32::MAX] {
        let number = format!("weight {bad} ");
        names("a bad weight", policy.set_weight_raw(bad), &[&number, "1 to 1024"])?;
        is("after a bad weight the thread", share()?, BORN)?;
    }
    for good in [1, 1024, 64] {
        policy.set_weight(good).doing("a good weight")?;
        is("after a good weight the thread", share()?, (good, BORN.1))?;
    }
    policy.set_weight(BORN.0).doing("back")
}

fn bad_classes() -> Outcome {
    let policy = policy()?;
    for bad in [4, 5, 255, 256, 0xffff] {
        let number = format!("class {bad} ");
        names("a bad class", policy.set_class_raw(bad), &[&number, "3 ipcserver"])?;
        is("after a bad class the thread", share()?, BORN)?;
    }
    for good in LatencyClass::ALL {
        policy.set_class(good).doing("a good class")?;
        is("after a good class the thread", share()?, (BORN.0, good))?;
    }
    policy.set_class(BORN.1).doing("back")
}

/// Runs until the thread has used `ns` of CPU time; returns the counters before and after.
fn burn(policy: &SchedulingPolicy, ns: u64) -> Outcome<(Share, Share)> {
    let first = policy.snapshot().doing("snapshot")?;
    loop {
        let now = policy.snapshot().doing("snapshot")?;
        if now.runtime_ns >= first.runtime_ns + ns {
            return Ok((first, now));
        }
    }
}

fn counts() -> Outcome {
    let policy = policy()?;
    for weight in [32, 128] {
        policy.set_weight(weight).doing("set the weight")?;
        let (first, last) = burn(&policy, 20 * MS)?;
        let real = last.runtime_ns - first.runtime_ns;
        let virtual_ns = last.virtual_runtime_ns - first.virtual_runtime_ns;
        let exact = real * 64 / u64::from(weight);
        ensure!(
            virtual_ns.abs_diff(exact) <= exact / 100,
            "{real} ns at weight {weight} were {virtual_ns} virtual ns instead of {exact}"
        );
    }
    let before = share()?;
    for _ in 0..5 {
        time::sleep(MS).doing("sleep")?;
    }
    let after = share()?;
    ensure!(after.voluntary_blocks >= before.voluntary_blocks + 5, "{before:?}, after 5 sleeps {after:?}");
    ensure!(after.throttles == 0, "{after:?}");
    policy.set_weight(BORN.0).doing("back")
}

/// The weight and class that a child with the argument `report` returns as its exit code.
fn reported(child: &Child) -> Outcome<(u16, LatencyClass)> {
    let exit = child.wait().doing("wait")?;
    let class = LatencyClass::from_raw((exit.code & 7) as u32);
    match (u16::try_from(exit.code >> 3), class) {
        (Ok(weight), Some(class)) if exit.code >= 0 => Ok((weight, class)),
        _ => Err(Failure::new(format_args!("a child that should report: {exit}"))),
    }
}

fn report() -> i64 {
    // By its own capability, in a second thread: both inherited their share from the first thread.
    let told = thread::spawn(|| share().map(|share| i64::from(share.weight) << 3 | share.class as i64));
    told.join().map_or(-2, |told| told.unwrap_or(-1))
}

fn command<'a>(word: &str) -> Command<'a> {
    Command::new(args::program()).arg(word).grant_all(|_| false)
}

fn inheritance() -> Outcome {
    let mine = thread::spawn(|| -> Outcome {
        is("a new thread", share()?, BORN)?;
        let policy = policy()?;
        policy.set_weight(200).doing("set the weight")?;
        policy.set_class(LatencyClass::IpcServer).doing("set the class")?;
        let of_thread = thread::spawn(share).join()??;
        is("a thread's thread", of_thread, (200, LatencyClass::IpcServer))?;
        let found = reported(&kit::again(&["report"], &[])?)?;
        ensure!(found == (200, LatencyClass::IpcServer), "a thread's child has {found:?}");
        Ok(())
    });
    mine.join()??;
    // The change that the other thread made applies only to itself.
    is("the first thread", share()?, BORN)
}

fn choice() -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    let normal = LatencyClass::Normal;
    let chosen = [
        (command("report").weight(7).class(LatencyClass::Interactive), (7, LatencyClass::Interactive)),
        (command("report").weight(1024), (1024, BORN.1)),
        (command("report").class(normal), (BORN.0, normal)),
        (command("report"), BORN),
    ];
    for (command, want) in chosen {
        let found = reported(&command.spawn(&spawner).doing("spawn")?)?;
        ensure!(found == want, "a child has {found:?} instead of {want:?}");
    }
    Ok(())
}

fn bad_choices() -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    let before = Usage::settled()?;
    let spawn = |command: Command<'_>| command.spawn(&spawner).map(|child| child.pid);
    names("weight 1025", spawn(command("report").weight(1025)), &["weight 1025 ", "1 to 1024"])?;
    names("class 9", spawn(command("report").class_raw(9)), &["class 9 "])?;
    let none = Cap::borrowed(CapId::NONE);
    kit::raised("no policy", spawn(command("report").weight(7).policy(&none)), Exception::Failed)?;
    let stale = Cap::borrowed(policy()?.cap().copy(rights::CALL, 0).doing("copy")?.id());
    kit::raised(
        "a stale policy",
        spawn(command("report").weight(7).policy(&stale)),
        Exception::InvalidArgument,
    )?;
    let timer: Timer = caps::any()?;
    let wrong = command("report").weight(7).policy(timer.cap());
    kit::raised("a timer as policy", spawn(wrong), Exception::InvalidArgument)?;
    let weak = policy()?.cap().copy(rights::GRANT, 0).doing("copy")?;
    kit::raised("a weak policy", spawn(command("report").weight(7).policy(&weak)), Exception::Failed)?;
    drop(weak);
    before.comes_back("after bad choices")
}

/// Between two readings each CPU's time has grown as much as the clock, and a part of it is interrupt time.
fn cpu_time() -> Outcome {
    let look = || -> Outcome<(u64, Vec<rt::CpuInfo>, u64)> {
        let system = kit::system()?;
        Ok((time::now_ns()?, system.cpus().doing("cpus")?, time::now_ns()?))
    };
    let (before, first, after_first) = look()?;
    for _ in 0..20 {
        time::sleep(MS).doing("sleep")?;
    }
    let (before_last, last, after) = look()?;
    for (first, last) in first.iter().zip(&last) {
        let whole = |cpu: &rt::CpuInfo| cpu.busy_ns + cpu.idle_ns + cpu.interrupt_ns;
        let grown = whole(last) - whole(first);
        ensure!(
            (before_last - after_first..=after - before).contains(&grown),
            "CPU {}: {grown} ns in between {} and {}",
            last.id,
            before_last - after_first,
            after - before
        );
    }
    let interrupts = |cpus: &[rt::CpuInfo]| cpus.iter().map(|cpu| cpu.interrupt_ns).sum::<u64>();
    let grown = interrupts(&last) - interrupts(&first);
    ensure!(grown > 0, "20 sleeps ended and no interrupt took time");
    println!("    20 sleeps of 1 ms: {} us in interrupts", grown / 1000);
    Ok(())
}

fn counters() -> Outcome {
    let names = [
        "ticks",
        "oneshot_misses",
        "switches",
        "wakes_stayed",
        "wakes_to_idle",
        "wakes_to_loaded",
        "queue_depth_max",
        "handoffs_taken",
        "exits_checked",
        "ipis_sent",
        "migrations",
        "steals",
        "balance_moves",
        "tlb_shootdowns",
        "queue_locks_by_wakes",
        "queue_locks_by_steals",
        "queue_locks_by_balance",
        "interrupts_off_max",
    ];
    for name in names {
        println!("    {name:24} {}", kit::counter(name)?);
    }
    for name in
        ["ticks", "switches", "wakes_stayed", "queue_depth_max", "exits_checked", "interrupts_off_max"]
    {
        ensure!(kit::counter(name)? > 0, "{name} is 0");
    }
    for name in ["shared_locks_in_dispatch", "wakes_failed"] {
        let count = kit::counter(name)?;
        ensure!(count == 0, "{name} is {count}");
    }
    Ok(())
}

fn child_without() -> Outcome<Child> {
    let spawner: ProcessSpawner = caps::any()?;
    let command = Command::new(args::program())
        .arg("without")
        .grant_all(|entry| entry.interface == abi::Interface::SchedulingPolicy as u16);
    command.spawn(&spawner).doing("spawn")
}

/// The child that was not granted a SchedulingPolicy.
fn without() -> Outcome {
    let found = caps::any::<SchedulingPolicy>().map(|_| ());
    ensure!(found == Err(Error::NoCapability("SchedulingPolicy")), "found {found:?}");
    let spawner: ProcessSpawner = caps::any()?;
    let spawned = command("report").weight(7).spawn(&spawner).map(|child| child.pid);
    kit::raised("a weight without a policy", spawned, Exception::Failed)
}

/// Calls until it is killed.
fn hammer() -> i64 {
    let work = |weight: u16| {
        move || -> Outcome {
            let policy = policy()?;
            loop {
                policy.set_weight(weight)?;
                policy.set_class(LatencyClass::ALL[usize::from(weight % 4)])?;
                drop(policy.snapshot_start()?);
            }
        }
    };
    let others: Vec<_> = (1..4).map(|weight| thread::spawn(work(weight))).collect();
    let mine = work(4)();
    drop(others);
    i64::from(mine.is_err())
}

fn ends() -> Outcome {
    let before = Usage::settled()?;
    for round in 0..KILLS {
        let child = kit::again(&["hammer"], &[])?;
        time::sleep(MS * (1 + round as u64 % 4)).doing("sleep")?;
        child.handle.kill().doing("kill")?;
        child.wait().doing("wait")?;
    }
    before.comes_back("after children that were killed while they called")?;
    let before = Usage::settled()?;
    for _ in 0..ENDS {
        let ended = thread::spawn(|| {
            let started = policy().map(|policy| policy.snapshot_start());
            // The answer is never read: the thread ends instead.
            core::mem::forget(started);
            rt::thread::exit(7);
        });
        ensure!(ended.join() == Err(thread::JoinError::Ended(7)), "a thread that ended has another code");
    }
    before.comes_back("after threads that ended with an answer unread")
}

fn worthless() -> Outcome {
    let policy = policy()?;
    let copy = policy.cap().copy(rights::CALL, 0).doing("copy")?;
    let id = copy.id();
    copy.release().doing("release")?;
    kit::refused("a stale one", kit::client::<SchedulingPolicy>(id).set_weight(5), TransportError::BadCap)?;
    let weak = SchedulingPolicy::of(policy.cap().copy(rights::GRANT, 0).doing("copy")?);
    kit::refused("a weak one", weak.set_weight(5), TransportError::NotPermitted)?;
    let copy = SchedulingPolicy::of(policy.cap().copy(rights::CALL, 0).doing("copy")?);
    copy.set_weight(BORN.0).doing("a good one")?;
    policy.cap().revoke().doing("revoke")?;
    kit::refused("a revoked one: weight", copy.set_weight(5), TransportError::Revoked)?;
    let class = LatencyClass::Interactive;
    kit::refused("a revoked one: class", copy.set_class(class), TransportError::Revoked)?;
    kit::refused("a revoked one: snapshot", copy.snapshot(), TransportError::Revoked)?;
    let spawner: ProcessSpawner = caps::any()?;
    let spawned = command("report").weight(7).policy(copy.cap()).spawn(&spawner).map(|child| child.pid);
    kit::raised("a spawn by a revoked one", spawned, Exception::Disconnected)?;
    is("who revoked", share()?, BORN)
}
