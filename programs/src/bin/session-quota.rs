//! Proof that a session is bounded and can always be ended (K-29): requests beyond its quotas are refused by name, one session does not deny contexts
//! to another, and orphans that hold all memory are listed and killed by a holder of the session, which can still start a program of its own.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;

use programs::ensure;
use programs::kit::{self, MS};
use programs::machine::{Before, command};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::quotas::{self, guests, is_named, member, own};
use rt::abi::{Exception, rights};
use rt::clients::{Child, Quota};
use rt::{
    Answer, Client, Endpoint, Factory, OperationResult, ProcessSpawner, Protection, SchedulingContext, Spec,
    UserSession, args, caps, println, time, vm,
};

use rt::sync::Mutex;
use rt::thread::Builder;

rt::main!(run);

const PAGE: usize = 4096;
/// Children that their parent leaves behind.
const ORPHANS: usize = 3;

fn run() -> i64 {
    match args::args().next() {
        Some("hog") => hog(),
        Some("father") => father(),
        Some("small") => 7,
        Some("ballast") => ballast(),
        Some("limited") => prove("session-quota limited", limited),
        Some("sleeper") => i64::from(time::sleep(3600 * 1000 * MS).is_err()),
        Some("tiny") => prove("session-quota tiny", tiny),
        Some("host") => prove("session-quota host", host),
        Some("filler") => prove("session-quota filler", filler),
        Some("neighbour") => prove("session-quota neighbour", neighbour),
        Some("leaver") => prove("session-quota leaver", quotas::leaver),
        Some("bounded") => prove("session-quota bounded", quotas::bounded),
        Some("line") => prove("session-quota line", quotas::line),
        Some("founder") => prove("session-quota founder", quotas::founder),
        _ => prove("session-quota", || {
            step("one session's contexts do not deny another's (K-29)", contexts)?;
            step("sessions in a session get no more than it has (K-29)", nested)?;
            step("what a guest makes are guests (K-29)", guests_of_guests)?;
            step("every quota is refused by name, and comes back (K-29)", limits)?;
            step(
                "contexts that go deny others no more than they used (S-13, K-29)",
                quotas::contexts_that_go,
            )?;
            step("contexts that go count until what they used is back (S-13, K-29)", quotas::few_contexts)?;
            step("sessions are charged to who makes them (K-29)", quotas::founders)?;
            // Once beforehand, so that the kernel's tables and this program's heap are as large as they get.
            step("orphans hold all memory, and are ended (K-29)", orphans)?;
            let (before, quotas) = (Before::take()?, own()?.quotas()?);
            step("and once more", orphans)?;
            step("nothing is lost", || {
                before.check("afterwards")?;
                ensure!(own()?.quotas()? == quotas, "quotas {:?}, not {quotas:?}", own()?.quotas()?);
                Ok(())
            })
        }),
    }
}

// ---- contexts -------------------------------------------------------------------------------------------------------------

/// Creates as many contexts as one session gets, with next to no time; then takes as much time as it gets.
fn tiny() -> Outcome {
    let any: SchedulingContext = caps::any()?;
    let spec = Spec::new(20_000, 60_000 * MS);
    let mut all = Vec::new();
    let refusal = loop {
        match any.create(&spec).and_then(|made| made.context()) {
            Ok(made) => all.push(made),
            Err(error) => break error,
        }
        ensure!(all.len() < 4096, "{} contexts and no end", all.len());
    };
    println!("    {} contexts, then: {refusal}", all.len());
    is_named(&refusal, "tiny", "scheduling contexts")?;
    let tell: Endpoint = caps::get("tell")?;
    // While all of them exist, another process creates one.
    tell.call(1, [all.len() as u64, 0])?;
    let quota = own()?.quotas()?;
    ensure!(quota.iter().any(|quota| quota.used == all.len() as u64), "not counted: {quota:?}");
    drop(all);
    let mut large = Vec::new();
    let refusal = loop {
        match any.create(&Spec::new(10 * MS, 100 * MS)).and_then(|made| made.context()) {
            Ok(made) => large.push(made),
            Err(error) => break error,
        }
    };
    println!("    {} contexts of a tenth of a CPU, then: {refusal}", large.len());
    is_named(&refusal, "tiny", "ppm of a CPU")?;
    // A change is charged, too.
    let last = large.last().ok_or_else(|| Failure::new("none at all"))?;
    let more = last.reconfigure(&Spec::new(80 * MS, 100 * MS)).err();
    is_named(&more.ok_or_else(|| Failure::new("eight times as much was given"))?, "tiny", "ppm of a CPU")?;
    last.reconfigure(&Spec::new(5 * MS, 100 * MS))?.ok()?;
    let quota = own()?.quotas()?;
    let due = large.len() as u64 * 100_000 - 50_000;
    ensure!(
        quota.iter().any(|quota| quota.used == due),
        "a change to half is not counted, {due} ppm: {quota:?}"
    );
    drop(large);
    refused_change(&any)
}

/// A change that the session's quota allows and the CPU cannot promise is refused, and the session stays charged as before.
fn refused_change(any: &SchedulingContext) -> Outcome {
    let on_first = |budget_ms, deadline_ms| Spec {
        deadline_ns: deadline_ms * MS,
        ..Spec::new(budget_ms * MS, 100 * MS).cpus([0])
    };
    let bandwidth = || -> Outcome<u64> { Ok(own()?.quotas()?[5].used) };
    let _first = any.create(&on_first(10, 15))?.context()?;
    let second = any.create(&on_first(1, 100))?.context()?;
    let before = bandwidth()?;
    ensure!(before == 110_000, "{before} ppm of two contexts");
    // Both would have to be served within 25 ms, but need 30.
    let refused = second.reconfigure(&on_first(20, 25))?.result;
    ensure!(refused == OperationResult::ResourceExhausted, "a change that nobody can promise: {refused:?}");
    ensure!(bandwidth()? == before, "a refused change costs {} ppm, not {before}", bandwidth()?);
    second.reconfigure(&on_first(20, 100))?.ok()?;
    ensure!(bandwidth()? == 300_000, "a change costs {} ppm", bandwidth()?);
    Ok(())
}

fn neighbour() -> Outcome {
    let made = caps::any::<SchedulingContext>()?.create(&Spec::new(MS, 100 * MS))?.context();
    made.doing("a context beside a session that has used up its own").map(drop)
}

fn contexts() -> Outcome {
    let before = own()?.quotas()?;
    let tell = caps::any::<Factory>()?.endpoint()?;
    let (session, other) = (guests("tiny")?, guests("neighbour")?);
    let spawner: ProcessSpawner = caps::any()?;
    let child = member("tiny", &session).grant("tell", tell.cap(), rights::CALL, 0).spawn(&spawner)?;
    let call = tell.recv(&mut []).doing("hear from the session with all contexts")?;
    kit::succeeds("the neighbour", &member("neighbour", &other).spawn(&spawner)?)?;
    neighbour()?;
    tell.reply(call.token, Answer::Words([0; 2]))?;
    kit::succeeds("the session with all contexts", &child)?;
    drop((child, session, other, tell));
    let after = own()?.quotas()?;
    // Index 0 is memory, of which this process itself may have taken some.
    ensure!(after[1..] == before[1..], "afterwards {after:?}, not {before:?}");
    Ok(())
}

/// At most eight sessions can be nested; and a nested session gets less than the outer one has.
fn nested() -> Outcome {
    let limits = |session: &UserSession| -> Outcome<Vec<u64>> {
        Ok(session.quotas()?.iter().map(|quota| quota.limit).collect())
    };
    let (outer, inner) = (limits(&own()?)?, limits(&guests("inner")?)?);
    ensure!(outer.len() == 6 && outer.len() == inner.len(), "{outer:?} and {inner:?}");
    ensure!(inner.iter().zip(&outer).all(|(inner, outer)| inner < outer), "{inner:?} in {outer:?}");
    Ok(())
}

// ---- guests of guests -----------------------------------------------------------------------------------------------------

/// Endpoints of a guest session, of which its own processes keep a sixteenth.
const HOSTED: u64 = 32;

/// A guest creates two sessions that it does not declare as guests. Together they get what its guests get, and not what it keeps for itself; so they
/// cannot reach what operators keep, either.
fn guests_of_guests() -> Outcome {
    let factory: Factory = caps::any()?;
    let tell = factory.endpoint()?;
    let session = factory.limited_session("host", &[0, 0, 0, HOSTED])?;
    let child = member("host", &session)
        .grant("tell", tell.cap(), rights::CALL | rights::GRANT, 0)
        .spawn(&caps::any::<ProcessSpawner>()?)?;
    let mut calls = Vec::new();
    let mut made = 0;
    for _ in 0..2 {
        let call = tell.recv(&mut []).doing("hear from a guest's guest")?;
        made += call.message.words()[0];
        calls.push(call.token);
    }
    for token in calls {
        tell.reply(token, Answer::Words([0; 2]))?;
    }
    kit::succeeds("the guest", &child)?;
    println!("    {made} of a guest's {HOSTED} endpoints for its guests");
    ensure!(made == HOSTED - HOSTED / 16, "{made} of a guest's {HOSTED} endpoints went to its guests");
    Ok(())
}

/// Role `host`: creates two sessions within its own, and a process in each that takes what it can get.
fn host() -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let sessions = [factory.session("one")?, factory.session("two")?];
    let children = sessions.each_ref().map(|session| member("filler", session).spawn(&spawner));
    for child in children {
        kit::succeeds("a filler", &child?)?;
    }
    Ok(())
}

/// Role `filler`: creates endpoints until it is refused, and keeps them until it may end.
fn filler() -> Outcome {
    let factory: Factory = caps::any()?;
    let tell: Endpoint = caps::get("tell")?;
    let mut all = Vec::new();
    while let Ok(made) = factory.endpoint() {
        all.push(made);
        ensure!(all.len() as u64 <= HOSTED, "{} endpoints, and no end", all.len());
    }
    tell.call(1, [all.len() as u64, 0])?;
    Ok(())
}

// ---- limits ---------------------------------------------------------------------------------------------------------------

/// Limits of memory, threads, processes, endpoints and contexts; for the time of contexts the default applies.
const LIMITS: [u64; 5] = [16 << 20, 6, 3, 4, 2];

fn limits() -> Outcome {
    let factory: Factory = caps::any()?;
    let session = factory.limited_session("limited", &LIMITS).doing("a session with limits")?;
    let (quotas, plain) = (session.quotas()?, guests("plain")?.quotas()?);
    let have: Vec<u64> = quotas.iter().map(|quota| quota.limit).collect();
    ensure!(have[..5] == LIMITS && have[5] == plain[5].limit, "limits {have:?}, not {LIMITS:?}");
    // A session cannot be given more than its default.
    let greedy = factory.limited_session("greedy", &[u64::MAX; 6])?.quotas()?;
    let same = |(a, b): (&Quota, &Quota)| a.limit == b.limit;
    ensure!(greedy.iter().zip(&plain).all(same), "{greedy:?} was given, not {plain:?}");
    let seven = factory.limited_session("seven", &[1; 7]).err();
    ensure!(
        seven.and_then(|error| error.exception()) == Some(Exception::InvalidArgument),
        "a seventh quota was taken"
    );
    let child = member("limited", &session).spawn(&caps::any::<ProcessSpawner>()?)?;
    kit::succeeds("the one with limits", &child)?;
    drop(child);
    kit::wait_until("what it had is back", || Ok(session.quotas()?.iter().all(|quota| quota.used == 0)))
}

/// Creates something until it is refused by name; there must be as many as places left.
fn fills<T>(what: &str, left: u64, mut make: impl FnMut() -> rt::Result<T>) -> Outcome {
    let mut all = Vec::new();
    let refusal = loop {
        match make() {
            Ok(made) => all.push(made),
            Err(error) => break error,
        }
        ensure!(all.len() as u64 <= left, "{} {what}, and no end", all.len());
    };
    is_named(&refusal, "limited", what)?;
    ensure!(all.len() as u64 == left, "{} {what} were made, not {left}", all.len());
    Ok(())
}

/// Role `limited`: exhausts each quota of its session, repeatedly.
fn limited() -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let any: SchedulingContext = caps::any()?;
    let session = own()?;
    for _ in 0..3 {
        fills("endpoints", LIMITS[3], || factory.endpoint())?;
        fills("scheduling contexts", LIMITS[4], || any.create(&Spec::new(MS, 100 * MS))?.context())?;
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let mut threads = Vec::new();
        let done = fills("threads", LIMITS[1] - 1, || {
            let gate = Arc::clone(&gate);
            threads.push(Builder::new().stack_bytes(8192).spawn(move || drop(gate.lock()))?);
            Ok(())
        });
        drop(closed);
        threads.into_iter().try_for_each(|thread| thread.join())?;
        done?;
        let mut children = Vec::new();
        let refusal = loop {
            match member("sleeper", &session).spawn(&spawner) {
                Ok(child) => children.push(child),
                Err(error) => break error,
            }
        };
        is_named(&refusal, "limited", "processes")?;
        ensure!(children.len() as u64 == LIMITS[2] - 1, "{} processes", children.len() + 1);
        for child in children {
            child.handle.kill()?;
            child.wait()?;
        }
        let page = vm::space()?.map(None, LIMITS[0] as usize, Protection::READ).err();
        is_named(&page.ok_or_else(|| Failure::new("all memory was given"))?, "limited", "bytes of memory")?;
        kit::wait_until("the processes' places are back", || {
            let used: Vec<u64> = session.quotas()?.iter().map(|quota| quota.used).collect();
            Ok(used[1..] == [1, 1, 0, 0, 0])
        })?;
    }
    Ok(())
}

// ---- memory ---------------------------------------------------------------------------------------------------------------

/// A part of the machine that the system itself uses, so that memory runs out before the operator's quota does.
fn ballast() -> i64 {
    let total =
        kit::system().ok().and_then(|system| system.machine(0).ok()).map_or(0, |machine| machine.frames);
    let part = vm::space().and_then(|memory| memory.map(None, total as usize / 4 * PAGE, Protection::READ));
    i64::from(part.is_err() || time::sleep(3600 * 1000 * MS).is_err())
}

/// Waits until its parent is gone: until then its siblings must be able to get memory, too.
fn is_orphan() -> Outcome {
    let system = kit::system()?;
    kit::wait_until("the father is gone", || {
        let all = system.processes()?;
        let own = all.iter().find(|process| process.pid == rt::boot_info().pid);
        Ok(own.is_some_and(|own| all.iter().all(|process| process.pid != own.parent)))
    })
}

/// Takes all memory that it can get, and waits to be killed.
fn hog() -> i64 {
    if is_orphan().is_err() {
        return 2;
    }
    for bytes in [1 << 20, 64 << 10, PAGE] {
        loop {
            match vm::space().and_then(|memory| memory.map(None, bytes, Protection::READ_WRITE)) {
                Ok(_) => {}
                Err(error) if error.exception() == Some(Exception::Overloaded) => break,
                Err(_) => return 1,
            }
        }
    }
    i64::from(time::sleep(3600 * 1000 * MS).is_err())
}

/// Starts hogs, and leaves them behind.
fn father() -> i64 {
    for _ in 0..ORPHANS {
        let Ok(hog) = kit::start("session-quota", &["hog"], &[]) else { return 1 };
        core::mem::forget(hog);
    }
    0
}

/// Nobody holds a handle of the processes that take all memory. A holder of the session lists and ends them, and needs no memory of theirs.
fn orphans() -> Outcome {
    let (system, mine, spawner) = (kit::system()?, own()?, caps::any::<ProcessSpawner>()?);
    // This much is the operator's own.
    let total = system.machine(0)?.frames;
    let ballast = vm::space()?.map(None, (total as usize * 2 / 5) * PAGE, Protection::READ_WRITE)?;
    let session = guests("storm")?;
    kit::succeeds("the father", &member("father", &session).spawn(&spawner)?)?;
    let mut last = 0;
    kit::wait_until("memory is used up", || {
        time::sleep(20 * MS)?;
        let free = system.free_frames()?;
        Ok(core::mem::replace(&mut last, free) == free && free < total / 8)
    })?;
    println!("    {last} of {total} frames are left");
    ensure!(last > 256, "guests have used what is kept for the operator: {last} frames are left");
    // All orphans are listed, by their session and by the one around it; their parent is not.
    let left = session.processes()?;
    ensure!(left.len() == ORPHANS, "{} processes of the session, not {ORPHANS}", left.len());
    let all = mine.processes()?;
    for orphan in &left {
        ensure!(all.iter().any(|process| process.pid == orphan.pid), "pid {} is in no list", orphan.pid);
        ensure!(all.iter().all(|process| process.pid != orphan.parent), "pid {} has a parent", orphan.pid);
    }
    // Guests get nothing more, but the operator can start a program.
    let refused = member("small", &session).spawn(&spawner).err();
    let refused = refused.ok_or_else(|| Failure::new("a guest was started in full memory"))?;
    ensure!(refused.exception() == Some(Exception::Overloaded), "a guest was refused with `{refused}`");
    let small: Child =
        command("session-quota", "small").arg("small").spawn(&spawner).doing("a small program")?;
    let exit = small.wait()?;
    ensure!(exit.code == 7, "a small program in full memory: {exit}");
    // A process of another session cannot be killed through this one.
    let other = session.kill(rt::boot_info().pid).err();
    ensure!(
        other.is_some_and(|error| error.exception() == Some(Exception::Failed)),
        "a guest killed its host"
    );
    for orphan in &left {
        mine.kill(orphan.pid).doing("kill an orphan")?;
    }
    kit::wait_until("orphans end", || Ok(session.processes()?.is_empty()))?;
    // SAFETY: mapped here, and never touched.
    unsafe { vm::unmap(ballast, (total as usize * 2 / 5) * PAGE) }.doing("unmap")?;
    kit::wait_until("their quota is free", || Ok(session.quotas()?.iter().all(|quota| quota.used == 0)))
}
