//! What sessions are charged: the part of the proof `session-quota` about contexts that are gone and about nested sessions (K-29, S-13).

use alloc::vec::Vec;

use rt::abi::{Exception, rights};
use rt::thread::Builder;
use rt::{
    Answer, Client, Command, Endpoint, Error, Factory, Fallback, ProcessSpawner, Protection,
    SchedulingContext, Spec, UserSession, caps, println, time, vm,
};

use crate::ensure;
use crate::kit::{self, MS};
use crate::proof::{Doing, Failure, Outcome};
use crate::ticks;

/// Indices into [`UserSession::quotas`].
const MEMORY: usize = 0;
const CONTEXTS: usize = 4;
const BANDWIDTH: usize = 5;

/// The smallest budget that a context can have.
const LEAST_NS: u64 = 20_000;
/// When the time used by the contexts here is back: after their longest period, two seconds, and a margin.
const BACK_NS: u64 = 2_500 * MS;
/// The same where the machine counts time: the host may have been away when a budget ended, so a context may have overrun it, and a few more periods
/// pass.
const BACK_BY_TIME_NS: u64 = 30_000 * MS;
/// Budgets that are not used up unless the host is away for that long.
const BUDGET_NS: u64 = 5 * MS;

/// The session that this process works for.
pub fn own() -> Outcome<UserSession> {
    caps::any().doing("the session of this process")
}

/// A session for guests, nested in this process's session.
pub fn guests(name: &str) -> Outcome<UserSession> {
    caps::any::<Factory>()?.guest_session(name).doing("make a session")
}

/// The program `session-quota` in `session`, with the capabilities that the shell gives to every program.
pub fn member<'a>(role: &'a str, session: &'a UserSession) -> Command<'a> {
    let is_left_out = |entry: &rt::abi::CapSetEntry| ["self", "session"].contains(&caps::name_of(entry));
    Command::new("session-quota")
        .name(role)
        .arg(role)
        .grant("session", session.cap(), rights::CALL | rights::GRANT, 0)
        .grant_all(is_left_out)
}

/// Fails unless a refusal names the session and the resource that it has used up.
pub fn is_named(error: &Error, session: &str, what: &str) -> Outcome {
    let is_right = matches!(error, Error::Exception { kind: Exception::Overloaded, message }
        if message.as_str().contains(session) && message.as_str().contains(what));
    ensure!(is_right, "refused with `{error}`, which does not name session {session} and {what}");
    Ok(())
}

/// How much a session uses of one kind of resource.
fn used(session: &UserSession, kind: usize) -> Outcome<u64> {
    session.quotas()?.get(kind).map(|quota| quota.used).ok_or_else(|| Failure::new("a quota is missing"))
}

/// As [`used`], of the session of this process.
fn own_use(kind: usize) -> Outcome<u64> {
    used(&own()?, kind)
}

/// Waits until `session` uses as few contexts, and as much of their time, as before.
fn comes_back(session: &UserSession, before: [u64; 2]) -> Outcome {
    let end = time::now_ns()? + if ticks::is_counted() { BACK_NS } else { BACK_BY_TIME_NS };
    loop {
        let quotas = session.quotas()?;
        if [CONTEXTS, BANDWIDTH].map(|kind| quotas[kind].used) == before {
            return Ok(());
        }
        ensure!(time::now_ns()? < end, "not back, to {before:?}: {quotas:?}");
        time::sleep(100 * MS)?;
    }
}

// ---- contexts that have gone ----------------------------------------------------------------------------------------------

fn create(spec: &Spec) -> rt::Result<SchedulingContext> {
    caps::any::<SchedulingContext>()?.create(spec)?.context()
}

/// Creates a context, runs on it for a moment and drops it. The inner `Err` says why it could not be created.
fn come_and_go(spec: &Spec) -> Outcome<Result<(), Error>> {
    let own = match create(spec) {
        Ok(own) => own,
        Err(error) => return Ok(Err(error)),
    };
    run_on(&own)?;
    own.revoke()?.ok()?;
    Ok(Ok(()))
}

/// Binds this thread to a context, and uses some of it.
fn run_on(own: &SchedulingContext) -> Outcome {
    own.bind(Fallback::BestEffort)?.ok()?;
    while own.info()?.ok()?.consumed_ns == 0 {}
    Ok(())
}

/// How many contexts with long and distinct periods a guest tries to use, and how many of them it can be sure to get.
const UNLIKE: u64 = 48;
const SURE: u64 = 24;

/// Role `leaver`: uses next to nothing of contexts with long periods, then of some with short ones. Together they must not hold more time than they
/// had.
pub fn leaver() -> Outcome {
    let long = (0..UNLIKE).map(|index| Spec::new(BUDGET_NS, (2_000 - index) * MS));
    let mut gone = 0;
    for spec in long.chain([Spec::new(LEAST_NS, MS / 5); 4]) {
        match come_and_go(&spec.cpus([0]).demote())? {
            Ok(()) => gone += 1,
            Err(error) => is_named(&error, "leaver", "scheduling contexts")?,
        }
    }
    let held = own()?.quotas()?;
    println!("    {gone} have gone: {} count, with {} ppm", held[CONTEXTS].used, held[BANDWIDTH].used);
    ensure!(gone >= SURE && held[CONTEXTS].used >= gone.min(UNLIKE), "they count no more: {held:?}");
    // The most that they had. Contexts with short periods have their time back by now, unless the host was away and they overran their budgets: then
    // they hold it for a few more periods (K-24).
    let short = if ticks::is_counted() { 0 } else { 4 * LEAST_NS * 1_000_000 / (MS / 5) };
    let most = gone * BUDGET_NS * 1_000_000 / (1_900 * MS) + short;
    ensure!(held[BANDWIDTH].used <= most, "they hold more than they had, {most} ppm: {held:?}");
    caps::get::<Endpoint>("tell")?.call(1, [0; 2])?;
    Ok(())
}

/// A guest uses and drops contexts with very different periods. Because of that, nobody else is refused more of the CPU than the guest used, neither
/// while its session exists nor afterwards; and all of that time comes back.
pub fn contexts_that_go() -> Outcome {
    let half = Spec::new(50 * MS, 100 * MS).cpus([0]);
    let before = own()?.quotas()?;
    let tell = caps::any::<Factory>()?.endpoint()?;
    let session = guests("leaver")?;
    let child = member("leaver", &session)
        .grant("tell", tell.cap(), rights::CALL, 0)
        .spawn(&caps::any::<ProcessSpawner>()?)?;
    let call = tell.recv(&mut []).doing("hear from the guest")?;
    drop(create(&half).doing("half of the CPU beside what a guest left")?);
    tell.reply(call.token, Answer::Words([0; 2]))?;
    kit::succeeds("the guest", &child)?;
    session.logout()?;
    drop((child, session));
    drop(create(&half).doing("half of the CPU after the guest's session")?);
    let after = own_use(CONTEXTS)?;
    ensure!(after >= before[CONTEXTS].used + SURE, "what has gone counts nowhere: {after}");
    comes_back(&own()?, [CONTEXTS, BANDWIDTH].map(|kind| before[kind].used))?;
    drop(tell);
    let after = own()?.quotas()?;
    // Index 0 is memory, of which this process itself may have taken some.
    ensure!(after[1..] == before[1..], "afterwards {after:?}, not {before:?}");
    Ok(())
}

/// How many contexts the session of [`bounded`] may have, and how many millionths of a CPU.
const PLACES: u64 = 6;
const PPM: u64 = 200_000;

/// Role `bounded`: a process that drops its contexts gets no more of them than one that keeps them, and gets as many again once the used time is
/// back.
pub fn bounded() -> Outcome {
    let session = own()?;
    let spec = Spec::new(BUDGET_NS, 2_000 * MS).demote();
    for _ in 0..2 {
        for gone in 0..PLACES {
            come_and_go(&spec)?.doing("a context within the quota")?;
            ensure!(used(&session, CONTEXTS)? == gone + 1, "{} have gone: {:?}", gone + 1, session.quotas()?);
        }
        let refusal = come_and_go(&spec)?.err().ok_or_else(|| Failure::new("one more than the quota"))?;
        is_named(&refusal, "bounded", "scheduling contexts")?;
        // A context that was never used leaves nothing behind; there is no quota left to show that with one.
        comes_back(&session, [0; 2])?;
    }
    // The time of a dropped context counts as far as it was used.
    let tenth = Spec::new(200 * MS, 2_000 * MS);
    let own = create(&tenth)?;
    own.bind(Fallback::BestEffort)?.ok()?;
    while own.info()?.ok()?.consumed_ns < 20 * MS {}
    own.revoke()?.ok()?;
    let held = used(&session, BANDWIDTH)?;
    ensure!((10_000..100_000).contains(&held), "a tenth of it was used, and {held} ppm count");
    let refusal = create(&Spec::new(PPM * 100, 100 * MS)).err();
    is_named(&refusal.ok_or_else(|| Failure::new("a share that is not back"))?, "bounded", "ppm of a CPU")?;
    drop(create(&Spec::new((PPM - 100_000) * 100, 100 * MS)).doing("what was not used")?);
    comes_back(&session, [0; 2])?;
    drop(create(&Spec::new(PPM * 100, 100 * MS)).doing("all of it, when it is back")?);
    changes(&session)
}

/// Time that was used under an earlier specification of a context also counts until it is back.
fn changes(session: &UserSession) -> Outcome {
    let period = |index: u64| Spec::new(BUDGET_NS, (1_900 - index) * MS).demote();
    let own = create(&period(0))?;
    own.bind(Fallback::BestEffort)?.ok()?;
    let mut changed = 0;
    let refusal = loop {
        let before = own.info()?.ok()?.consumed_ns;
        while own.info()?.ok()?.consumed_ns == before {}
        match own.reconfigure(&period(changed + 1)).and_then(|answer| answer.ok()) {
            Ok(_) => changed += 1,
            Err(error) => break error,
        }
        ensure!(changed < 2 * PLACES, "{changed} changes count as one context: {:?}", session.quotas()?);
    };
    is_named(&refusal, "bounded", "scheduling contexts")?;
    ensure!(used(session, CONTEXTS)? <= PLACES, "more than the quota: {:?}", session.quotas()?);
    own.revoke()?.ok()?;
    comes_back(session, [0; 2])
}

/// The specification of the contexts of role `line`'s threads.
const LINE: Spec = Spec::new(MS / 2, 400 * MS);

/// Role `line`: its threads run one after the other, and each takes its predecessor's place in quotas that have none to spare.
pub fn line() -> Outcome {
    for _ in 0..6 {
        let next = Builder::new().stack_bytes(16 * 1024).spawn(|| {
            let start = time::now_ns().unwrap_or(0);
            while time::now_ns().is_ok_and(|now| now < start + MS / 10) {}
        });
        next.doing("the next thread of the line")?.join()?;
    }
    Ok(())
}

/// Runs [`bounded`] and [`line()`] in sessions with small quotas.
pub fn few_contexts() -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let session = factory.limited_session("bounded", &[0, 0, 0, 0, PLACES, PPM])?;
    kit::succeeds("the one with few contexts", &member("bounded", &session).spawn(&spawner)?)?;
    comes_back(&session, [0; 2])?;
    let session = factory.limited_session("line", &[0, 0, 0, 0, 2, 0])?;
    let any: SchedulingContext = caps::any()?;
    let child = member("line", &session).template(LINE, &any).spawn(&spawner)?;
    kit::succeeds("the line of threads", &child)?;
    drop(child);
    comes_back(&session, [0; 2])
}

// ---- sessions, records and tables -----------------------------------------------------------------------------------------

/// How much of its session's memory the role `founder` leaves free.
const ROOM: u64 = 128 << 10;
const PAGE: u64 = 4096;

/// Role `founder`: creates sessions until its own has no memory for one more, drops them, and creates as many again.
pub fn founder() -> Outcome {
    let (session, factory, system) = (own()?, caps::any::<Factory>()?, kit::system()?);
    let heap = || -> Outcome<u64> {
        let all = system.counters()?;
        let found = all.iter().find(|counter| counter.name == "heap_used_bytes");
        found.map(|counter| counter.value).ok_or_else(|| Failure::new("a counter is missing"))
    };
    let mut made: Vec<UserSession> = Vec::with_capacity(4096);
    let quota = session.quotas()?.swap_remove(MEMORY);
    let spare = (quota.limit - quota.used).saturating_sub(ROOM) / PAGE * PAGE;
    vm::space()?.map(None, spare as usize, Protection::READ).doing("all memory but a little")?;
    let mut counts = [0; 3];
    for count in &mut counts {
        let (before, heap_before) = (own_use(MEMORY)?, heap()?);
        let refusal = loop {
            match factory.guest_session("inner") {
                Ok(inner) => made.push(inner),
                Err(error) => break error,
            }
        };
        is_named(&refusal, "founder", "bytes of memory")?;
        let (charged, held) = (own_use(MEMORY)? - before, heap()?.saturating_sub(heap_before));
        println!("    {} sessions: {charged} bytes charged, {held} bytes of heap", made.len());
        ensure!(held <= charged + PAGE, "{held} bytes are held, and {charged} charged");
        *count = made.len();
        made.clear();
        let after = own_use(MEMORY)?;
        ensure!(after <= before + ROOM && (*count == 0 || after < before + charged), "{after} stay charged");
    }
    // The table of capabilities has grown in the first round, so later rounds may have room for more.
    ensure!(counts[0] > 100 && counts[1] >= counts[0] && counts[1] == counts[2], "{counts:?} sessions");
    // A process is refused, too, without memory for its record.
    let refusal = member("small", &session).spawn(&caps::any::<ProcessSpawner>()?).err();
    is_named(&refusal.ok_or_else(|| Failure::new("a process for nothing"))?, "founder", "bytes of memory")
}

/// Sessions, tables of capabilities and records of processes are charged to the session that creates them, and given back.
pub fn founders() -> Outcome {
    let session = caps::any::<Factory>()?.limited_session("founder", &[8 << 20])?;
    let child = member("founder", &session).spawn(&caps::any::<ProcessSpawner>()?)?;
    kit::succeeds("the founder", &child)?;
    let held = used(&session, MEMORY)?;
    ensure!((1..=4 * PAGE).contains(&held), "its record is there, and {held} bytes are charged");
    drop(child);
    kit::wait_until("what it had is back", || Ok(session.quotas()?.iter().all(|quota| quota.used == 0)))
}
