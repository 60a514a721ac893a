//! Proof that every allocation of the kernel may fail (K-30): each operation is performed with the first, the second, the third … of its allocations
//! in the kernel refused, until none is refused. Each time the caller gets either a named error or what it asked for, and afterwards the ledger of
//! the process, the frames and the kernel's heap are what they were (K-07).
//!
//! The kernel is booted with `allocfail`.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::arch::naked_asm;

use programs::ensure;
use programs::kit::{self, MS};
use programs::machine::command;
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use rt::abi::{Exception, SYS_CAP_ENTER, SYS_EXIT, TransportError, rights};
use rt::clients::Child;
use rt::{
    Answer, Client, Endpoint, Error, Factory, Fallback, OperationResult as R, ProcessSpawner, Protection,
    Result, SchedulingContext, Spec, SystemInfo, ThreadSpawner, UserSession, VirtualMemory, args, caps,
    println, sync, thread, time,
};

rt::main!(run);

const PAGE: usize = 4096;
/// More allocations than any operation here needs.
const MOST: u64 = 2000;
/// Threads that exist at once.
const CROWD: usize = 60;

fn run() -> i64 {
    match args::args().next() {
        Some("wait") => i64::from(time::sleep(3600 * 1000 * MS).is_err()),
        Some("crowd") => prove("alloc-fail crowd", crowd),
        Some("templated") => prove("alloc-fail templated", templated),
        Some("inside") => prove("alloc-fail inside", inside),
        _ => prove("alloc-fail", || {
            reserve_heap();
            for (name, operation) in OPERATIONS {
                step(name, || survives(name, *operation))?;
            }
            step("in a session, whose quotas are what they were (K-29)", in_session)?;
            step("more threads than ever (K-07)", || in_child("crowd", None))?;
            step("each of which has a context (K-07)", || {
                in_child("crowd", Some(Spec::new(MS / 10, 100 * MS).demote()))
            })?;
            step("until no CPU has time for one (K-07)", || {
                in_child("templated", Some(Spec::new(40 * MS, 100 * MS).demote()))
            })
        }),
    }
}

/// Does `what` in a child process each of whose threads has a context made from `template`.
fn in_child(what: &str, template: Option<Spec>) -> Outcome {
    let mut child = command("alloc-fail", what).arg(what);
    let context: SchedulingContext = caps::any()?;
    if let Some(spec) = template {
        child = child.template(spec, &context);
    }
    kit::succeeds(what, &child.spawn(&caps::any()?)?)
}

/// Makes this program's heap large enough beforehand, so that no operation needs memory for it.
fn reserve_heap() {
    let blocks: Vec<Vec<u8>> = (0..8).map(|_| Vec::with_capacity(80 << 10)).collect();
    let small: Vec<Vec<u8>> = (0..256).map(|_| Vec::with_capacity(200)).collect();
    drop((blocks, small));
}

// ---- the method -----------------------------------------------------------------------------------------------------------

/// An operation that leaves nothing behind, whether it succeeds or not.
type Operation = fn() -> Result<()>;

const OPERATIONS: &[(&str, Operation)] = &[
    ("lists", lists),
    ("an endpoint", endpoint),
    ("a session", session),
    ("a memory object, mapped", memory_object),
    ("maps, a hole and other rights", maps),
    ("capabilities", copies),
    ("a message and its answer", message),
    ("calls that wait", waiting_calls),
    ("a thread", bare_thread),
    ("a process", process),
    ("a process with a template", template),
    ("a context", context),
    ("a context that faults", faulting_context),
    ("a context of a thread", bound_context),
];

/// The number of quotas that are free at once: memory, threads, processes and endpoints. Those of contexts are free only when the used time is back
/// ([`is_rested`]).
const LASTING: usize = 4;

/// What must return to its value: frames outside the heap, bytes in the heap, the rows of the process's ledger, and what its session uses.
fn held() -> Outcome<Vec<u64>> {
    let session = caps::any::<UserSession>().ok();
    let quotas = session.map_or(Ok(Vec::new()), |session| session.quotas())?;
    let all = kit::system()?.counters().doing("counters")?;
    let is_meant =
        |name: &str| ["frames_outside_heap", "heap_used_bytes"].contains(&name) || name.starts_with("own_");
    let counters = all.iter().filter(|counter| is_meant(&counter.name)).map(|counter| counter.value);
    Ok(counters.chain(quotas.iter().take(LASTING).map(|quota| quota.used)).collect())
}

/// Whether all time that contexts in `session` used is back. That takes a period; but if the host was away while a context ran, the context overran
/// its budget, and it takes as many periods as budgets were used. So callers check this repeatedly, and the contexts here that run have a tenth of a
/// CPU: the time that they used is back in ten times as long.
fn is_rested(session: &UserSession) -> Outcome<bool> {
    Ok(session.quotas()?.iter().skip(LASTING).all(|quota| quota.used == 0))
}

/// Waits until everything is as it was: the kernel clears ended things away in the background.
fn comes_back(before: &[u64], what: core::fmt::Arguments<'_>) -> Outcome {
    let mut now = held()?;
    for _ in 0..200 {
        if now == before {
            return Ok(());
        }
        time::sleep(MS).doing("sleep")?;
        now = held()?;
    }
    Err(Failure::new(format_args!("{what}: {now:?} are held, not {before:?}")))
}

/// Whether an error says that something is used up.
fn is_typed(error: &Error) -> bool {
    matches!(error, Error::Exception { kind: Exception::Overloaded, message } if !message.as_str().is_empty())
        || error.transport() == Some(TransportError::NoSpace)
        || matches!(error, Error::Operation(R::ResourceExhausted))
}

/// Performs the operation with its `number`th allocation refused. Returns whether there was such an allocation.
fn refused(system: &SystemInfo, name: &str, number: u64, operation: Operation) -> Outcome<bool> {
    if let Ok(session) = caps::any::<UserSession>() {
        kit::wait_until("what contexts used is back in the quotas", || is_rested(&session))?;
    }
    system.fail_allocation(number).doing("arm")?;
    let result = operation();
    let (seen, has_failed) = system.fail_allocation(0).doing("disarm")?;
    match result {
        Err(error) if !has_failed || !is_typed(&error) => {
            Err(Failure::new(format_args!("{name}, allocation {number} of {seen}: `{error}`")))
        }
        _ => Ok(has_failed),
    }
}

/// An operation that is refused at the same place repeatedly gets a little further each time, because tables that have grown stay. Soon it must not
/// take any more memory.
fn stands_still(system: &SystemInfo, name: &str, number: u64, operation: Operation) -> Outcome {
    let mut before = held()?;
    for _ in 0..12 {
        refused(system, name, number, operation)?;
        time::sleep(MS / 2).doing("sleep")?;
        let now = held()?;
        if now == before {
            return Ok(());
        }
        before = now;
    }
    Err(Failure::new(format_args!("cold, allocation {number}: each time more is held: {before:?}")))
}

fn survives(name: &str, operation: Operation) -> Outcome {
    let system = kit::system()?;
    // The first time the kernel's tables grow, and they keep that memory for the next time.
    let mut cold = 0;
    while refused(&system, name, cold + 1, operation)? {
        cold += 1;
        ensure!(cold < MOST, "{cold} allocations and no end");
        stands_still(&system, name, cold, operation)?;
    }
    operation().doing("undisturbed")?;
    time::sleep(4 * MS).doing("sleep")?;
    let before = held()?;
    operation().doing("undisturbed")?;
    comes_back(&before, format_args!("undisturbed"))?;
    let mut warm = 0;
    while refused(&system, name, warm + 1, operation)? {
        warm += 1;
        ensure!(warm < MOST, "{warm} allocations and no end");
        comes_back(&before, format_args!("allocation {warm}"))?;
    }
    ensure!(cold > 0, "no allocation was refused");
    println!("    {cold} allocations at first, {warm} later: each refused, all is as it was");
    Ok(())
}

/// Operations that are charged to a session, performed in one.
const INSIDE: &[(&str, Operation)] = &[
    ("a session", session),
    ("capabilities", copies),
    ("a process", process),
    ("a process with a template", template),
    ("a context", context),
    ("a context of a thread", bound_context),
];

fn in_session() -> Outcome {
    let session = factory()?.guest_session("inside")?;
    let child = command("alloc-fail", "inside").arg("inside").grant(
        "session",
        session.cap(),
        rights::CALL | rights::GRANT,
        0,
    );
    kit::succeeds("inside", &child.spawn(&caps::any()?)?)?;
    kit::wait_until("what contexts used is back in the quotas", || is_rested(&session))?;
    let quotas = session.quotas()?;
    ensure!(quotas.iter().all(|quota| quota.used == 0), "the session is empty, and uses {quotas:?}");
    // A logout must not keep anything of the contexts that it ends, either.
    let any: SchedulingContext = caps::any()?;
    let member = command("alloc-fail", "waiting").arg("wait").grant(
        "session",
        session.cap(),
        rights::CALL | rights::GRANT,
        0,
    );
    let member = Gone(member.template(TENTH, &any).spawn(&caps::any()?)?);
    ensure!(!is_rested(&session)?, "a context counts nowhere: {:?}", session.quotas()?);
    session.logout()?;
    drop(member);
    kit::wait_until("what contexts had is back after the logout", || is_rested(&session))
}

fn inside() -> Outcome {
    reserve_heap();
    for (name, operation) in INSIDE {
        step(name, || survives(name, *operation))?;
    }
    Ok(())
}

// ---- operations -----------------------------------------------------------------------------------------------------------

fn factory() -> Result<Factory> {
    caps::any()
}

fn lists() -> Result<()> {
    let system: SystemInfo = caps::any()?;
    system.free_frames()?;
    system.processes()?;
    system.threads()?;
    system.cpus()?;
    system.counters()?;
    system.contexts()?;
    caps::any::<ProcessSpawner>()?.programs().map(drop)
}

fn endpoint() -> Result<()> {
    factory()?.endpoint().map(drop)
}

fn session() -> Result<()> {
    factory()?.session("somebody").map(drop)
}

fn memory_object() -> Result<()> {
    let object = factory()?.memory_object(8 * PAGE as u64)?;
    let at = object.map(None, 0, 8 * PAGE, true)?;
    // Unmaps a hole, then the rest. If the hole cannot be made, all is unmapped at once.
    // SAFETY: mapped just now, and used by no code.
    unsafe {
        let cut = object.unmap(at + 3 * PAGE as u64, PAGE);
        match cut {
            Ok(()) => {
                object.unmap(at, 3 * PAGE).or_else(|_| object.unmap(at, 3 * PAGE))?;
                let rest = at + 4 * PAGE as u64;
                object.unmap(rest, 4 * PAGE).or_else(|_| object.unmap(rest, 4 * PAGE))
            }
            Err(error) => object.unmap(at, 8 * PAGE).and(Err(error)),
        }
    }
}

fn maps() -> Result<()> {
    let memory: VirtualMemory = caps::any()?;
    // Large enough to need two pieces in the kernel, and page tables of its own.
    let bytes = 600 * PAGE;
    let at = memory.map(None, bytes, Protection::READ_WRITE)?;
    // SAFETY: as above.
    unsafe {
        let changed = memory.protect(at, 4 * PAGE, Protection::READ);
        let hole = at + 8 * PAGE as u64;
        let cut = changed.and_then(|()| memory.unmap(hole, PAGE));
        match cut {
            Ok(()) => {
                memory.unmap(at, 8 * PAGE)?;
                memory.unmap(hole + PAGE as u64, bytes - 9 * PAGE)
            }
            Err(error) => memory.unmap(at, bytes).and(Err(error)),
        }
    }
}

fn copies() -> Result<()> {
    let endpoint = factory()?.endpoint()?;
    let mut copies = Vec::with_capacity(64);
    for _ in 0..64 {
        copies.push(endpoint.cap().copy(rights::CALL, 0)?);
    }
    Ok(())
}

/// A long message, which this thread itself receives and answers.
fn message() -> Result<()> {
    let endpoint = factory()?.endpoint()?;
    let mut call = endpoint.call_bytes_start(1, &[7; 3000], 3000)?;
    if let Some(result) = call.poll() {
        return result.map(drop);
    }
    let mut buffer = alloc::vec![0; 3000];
    let heard = endpoint.recv(&mut buffer)?;
    endpoint.reply(heard.token, Answer::Bytes(&[9; 3000]))?;
    call.wait().map(drop)
}

/// Calls that wait at an endpoint until they are cancelled.
fn waiting_calls() -> Result<()> {
    let endpoint = factory()?.endpoint()?;
    let mut calls = Vec::with_capacity(24);
    for _ in 0..24 {
        let mut call = endpoint.call_start(1, [0; 2])?;
        if let Some(result) = call.poll() {
            return result.map(drop);
        }
        calls.push(call);
    }
    Ok(())
}

#[repr(align(4096))]
struct Stack([u8; PAGE]);
static STACK: Stack = Stack([0; PAGE]);

/// The entry point of a thread that ends at once.
#[unsafe(naked)]
unsafe extern "C" fn end_at_once() -> ! {
    naked_asm!("mov eax, {exit}", "xor edi, edi", "syscall", "ud2", exit = const SYS_EXIT)
}

/// The entry point of a thread that waits until its process ends.
#[unsafe(naked)]
unsafe extern "C" fn wait_for_ever() -> ! {
    naked_asm!("mov eax, {enter}", "mov edi, 1", "mov rsi, -1", "syscall", "ud2", enter = const SYS_CAP_ENTER)
}

/// Starts a thread with one of these entry points.
fn start(what: unsafe extern "C" fn() -> !) -> Result<rt::ThreadHandle> {
    let stack = STACK.0.as_ptr() as u64 + PAGE as u64;
    // SAFETY: the thread touches nothing, not even its stack.
    unsafe { caps::any::<ThreadSpawner>()?.create(what as *const () as u64, stack, 0, 0, 0) }
}

fn bare_thread() -> Result<()> {
    start(end_at_once)?.join().map(drop)
}

/// A child that is killed and waited for when this value is dropped.
struct Gone(Child);

impl Drop for Gone {
    fn drop(&mut self) {
        // The child may have ended; and the allocation that is refused, once, may be the one for this wait.
        let _ = self.0.handle.kill();
        for _ in 0..2 {
            if self.0.wait().is_ok() {
                return;
            }
        }
    }
}

fn process() -> Result<()> {
    let child = Gone(command("alloc-fail", "waiting").arg("wait").spawn(&caps::any()?)?);
    child.0.handle.kill()?;
    child.0.wait().map(drop)
}

/// The specification of contexts that something runs on. They run one after the other and use at most one CPU, so each leaves enough for the next,
/// which comes after a period or less.
const TENTH: Spec = Spec::new(MS, 10 * MS).demote();

fn template() -> Result<()> {
    let command = command("alloc-fail", "waiting").arg("wait");
    let child = Gone(command.template(TENTH, &caps::any()?).spawn(&caps::any()?)?);
    child.0.handle.kill()?;
    child.0.wait().map(drop)
}

fn made(spec: &Spec) -> Result<SchedulingContext> {
    caps::any::<SchedulingContext>()?.create(spec)?.context()
}

fn context() -> Result<()> {
    let context = made(&Spec::new(MS, 100 * MS))?;
    context.info()?.ok()?;
    context.reconfigure(&Spec::new(2 * MS, 100 * MS))?.ok()?;
    context.drain()?.ok().map(drop)
}

fn faulting_context() -> Result<()> {
    let (one, other): (Endpoint, Endpoint) = (factory()?.endpoint()?, factory()?.endpoint()?);
    let context = made(&Spec::new(MS, 100 * MS).fault(&one))?;
    context.reconfigure(&Spec::new(MS, 100 * MS).fault(&other))?.ok().map(drop)
}

fn bound_context() -> Result<()> {
    let context = made(&TENTH)?;
    context.bind(Fallback::BestEffort)?.ok()?;
    // The context is unbound whatever the result is.
    let result = bare_thread();
    context.unbind()?.ok()?;
    result
}

// ---- templates ------------------------------------------------------------------------------------------------------------

/// Threads that stay: each needs a record, a stack and new places in lists. A thread that cannot be created leaves nothing in the ledger. Which
/// allocation is refused is random, because what one attempt leaves to the next changes how many allocations there are.
fn crowd() -> Outcome {
    reserve_heap();
    let system = kit::system()?;
    let mut random = Random::new(30);
    let (mut threads, mut failed) = (Vec::with_capacity(CROWD), 0_usize);
    let mut before = held()?;
    while threads.len() < CROWD {
        let number = 1 + random.below(9);
        system.fail_allocation(number).doing("arm")?;
        let made = start(wait_for_ever);
        let (seen, has_failed) = system.fail_allocation(0).doing("disarm")?;
        match made {
            Ok(thread) => {
                threads.push(thread);
                before = held()?;
            }
            Err(error) => {
                let at = threads.len();
                let is_right = has_failed && is_typed(&error);
                ensure!(is_right, "thread {at}, allocation {number} of {seen}: `{error}`");
                let now = held()?;
                let is_back = now[2..] == before[2..];
                ensure!(is_back, "thread {at}, allocation {number}: the ledger is {now:?}, not {before:?}");
                failed += 1;
            }
        }
    }
    println!("    {CROWD} threads, and {failed} that could not be made");
    ensure!(failed > CROWD / 2, "only {failed} allocations were refused");
    Ok(())
}

/// In a process whose threads each have a context, a thread that gets no context is not created (K-07).
fn templated() -> Outcome {
    reserve_heap();
    survives("a thread with a context", bare_thread)?;
    let before = held()?;
    let (gate, mut threads) = (alloc::sync::Arc::new(sync::Semaphore::new(0)), Vec::with_capacity(256));
    let refusal = loop {
        let gate = alloc::sync::Arc::clone(&gate);
        match thread::Builder::new().stack_bytes(PAGE).spawn(move || gate.acquire()) {
            Ok(thread) => threads.push(thread),
            Err(error) => break error,
        }
        ensure!(threads.len() < 200, "CPUs that have no end of time");
    };
    ensure!(is_typed(&refusal), "a thread that no CPU has time for: `{refusal}`");
    let full = held()?;
    for _ in 0..3 {
        let refused = start(end_at_once).err().ok_or_else(|| Failure::new("a thread was made"))?;
        ensure!(is_typed(&refused), "a thread that no CPU has time for: `{refused}`");
        comes_back(&full, format_args!("a thread without time"))?;
    }
    let count = threads.len();
    threads.iter().for_each(|_| gate.release());
    for thread in threads {
        thread.join()?;
    }
    thread::trim();
    println!("    {count} threads, then: {refusal}");
    // The runtime may keep pages of its own; the ledger must be as it was.
    let ledger = |held: &[u64]| held.get(2..).map(<[u64]>::to_vec);
    ensure!(ledger(&held()?) == ledger(&before), "afterwards {:?}, not {before:?}", held()?);
    Ok(())
}
