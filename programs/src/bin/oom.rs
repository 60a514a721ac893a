//! Proof that running out of anything is a named error, and nothing else: memory, threads, processes, memory objects and capabilities are
//! used until the kernel refuses (K-07). A victim goes on meanwhile, and everything works again afterwards.
//!
//! In the steps that use up the machine's memory this program itself cannot grow: it reserves what it needs beforehand.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use programs::ensure;
use programs::kit;
use programs::machine::{Before, MS, command};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::victim::Watch;
use rt::abi::{Exception, SYS_EXIT, TransportError, rights};
use rt::clients::Child;
use rt::thread::JoinHandle;
use rt::{
    Cap, Client, Endpoint, Error, Factory, MemoryObject, ProcessSpawner, Protection, Result, ThreadSpawner,
    args, caps, println, sync, thread, time, vm,
};

rt::main!(run);

const PAGE: usize = 4096;
/// Sizes of mappings that are tried, largest first: the last free memory is in small pieces.
const SIZES: [usize; 4] = [4 << 20, 256 << 10, 16 << 10, PAGE];

fn run() -> i64 {
    match args::args().next() {
        Some("wait") => i64::from(time::sleep(3600 * 1000 * MS).is_err()),
        Some("hog") => hog(),
        Some("all") => match everything() {
            Ok(()) => 0,
            Err(Failure(why)) => {
                println!("    {why}");
                1
            }
        },
        // In processes of their own, because the page tables of a process stay until it ends. The first process makes the kernel's tables as
        // large as they get; after the second, every frame must be free again.
        _ => prove("oom", || {
            println!("oom: {}", programs::text::cpus());
            let run_all = || kit::succeeds("the process", &kit::again(&["all"], &[])?);
            step("everything is used up", run_all)?;
            let before = Before::take()?;
            step("and once more", run_all)?;
            step("nothing is lost", || before.check("afterwards"))
        }),
    }
}

/// Uses up one resource after the other, beside a victim that must not notice.
fn everything() -> Outcome {
    reserve_heap();
    let victim = Watch::start_steady()?;
    let goes_on = || victim.goes_on(3);
    goes_on()?;
    step("threads until refused (K-07)", threads).and_then(|()| goes_on())?;
    step("processes until refused (K-07)", spawns).and_then(|()| goes_on())?;
    step("maps until refused (K-07)", maps).and_then(|()| goes_on())?;
    step("memory objects until refused (K-07)", objects).and_then(|()| goes_on())?;
    step("capabilities until refused (K-21)", capabilities).and_then(|()| goes_on())?;
    step("queues of endpoints: back when empty, and paid for until refused (K-07)", queues)
        .and_then(|()| goes_on())?;
    step("everything refuses while the machine is full", || full(&victim)).and_then(|()| goes_on())?;
    victim.finish().map(drop)
}

/// Makes the heap large enough for every step, so that no step needs memory while there is none.
fn reserve_heap() {
    let blocks: Vec<Vec<u8>> = (0..24).map(|_| Vec::with_capacity(16 << 10)).collect();
    let small: Vec<Vec<u8>> = (0..512).map(|_| Vec::with_capacity(200)).collect();
    drop((blocks, small));
}

/// Fails unless `error` says that a limit is reached, with a text.
fn is_overloaded(error: &Error, what: &str) -> Outcome {
    let text = match error {
        Error::Exception { kind: Exception::Overloaded, message } => message.as_str().len(),
        _ => 0,
    };
    ensure!(text > 0, "{what}: refused with `{error}`, which is not Overloaded with a text");
    Ok(())
}

// ---- memory ---------------------------------------------------------------------------------------------------------------

/// Mappings, in a list within the mapped memory: each begins with the address and size of the one before.
struct Mappings {
    last: u64,
    pages: u64,
}

impl Mappings {
    fn new() -> Mappings {
        Mappings { last: 0, pages: 0 }
    }

    /// Maps until the kernel refuses a single page; returns the refusal.
    fn fill(&mut self) -> Outcome<Error> {
        let mut refusal = Error::NoMemory;
        for bytes in SIZES {
            loop {
                match vm::space()?.map(None, bytes, Protection::READ_WRITE) {
                    Ok(at) => {
                        // SAFETY: just mapped, ours alone.
                        unsafe { (at as *mut [u64; 2]).write([self.last, bytes as u64]) };
                        self.last = at;
                        self.pages += (bytes / PAGE) as u64;
                    }
                    Err(error) => {
                        refusal = error;
                        break;
                    }
                }
            }
        }
        Ok(refusal)
    }

    fn clear(&mut self) -> Outcome {
        while self.last != 0 {
            // SAFETY: written by `fill`; unmapped once.
            unsafe {
                let [before, bytes] = *(self.last as *const [u64; 2]);
                vm::unmap(self.last, bytes as usize).doing("unmap")?;
                self.last = before;
            }
        }
        Ok(())
    }
}

fn maps() -> Outcome {
    for round in 0..2 {
        let mut mappings = Mappings::new();
        let refusal = mappings.fill()?;
        is_overloaded(&refusal, "map")?;
        println!("    {} pages, then: {refusal}", mappings.pages);
        ensure!(mappings.pages > 1000, "round {round}: only {} pages", mappings.pages);
        mappings.clear()?;
    }
    // Impossible sizes may be refused with another error, but must be refused.
    for bytes in [1_usize << 40, 1 << 46, (1 << 47) - PAGE] {
        let refused = vm::space()?.map(None, bytes, Protection::READ_WRITE);
        ensure!(refused.is_err(), "{bytes} bytes were mapped");
    }
    Ok(())
}

fn objects() -> Outcome {
    let factory: Factory = caps::any()?;
    let mut pages = 0_u64;
    let mut held: Vec<MemoryObject> = Vec::with_capacity(4096);
    let mut refusal = Error::NoMemory;
    for bytes in [64 << 20, 4 << 20, 256 << 10, PAGE as u64] {
        loop {
            if held.len() == held.capacity() {
                break;
            }
            match factory.memory_object(bytes) {
                Ok(object) => {
                    pages += bytes / PAGE as u64;
                    held.push(object);
                }
                Err(error) => {
                    refusal = error;
                    break;
                }
            }
        }
    }
    is_overloaded(&refusal, "memory object")?;
    println!("    {} objects with {pages} pages, then: {refusal}", held.len());
    drop(held);
    let again = factory.memory_object(8 << 20).doing("a memory object afterwards")?;
    ensure!(again.bytes().doing("its size")? == 8 << 20, "it has another size");
    Ok(())
}

// ---- threads --------------------------------------------------------------------------------------------------------------

fn threads() -> Outcome {
    let gate = Arc::new(sync::Semaphore::new(0));
    let mut handles: Vec<JoinHandle<()>> = Vec::with_capacity(2048);
    let refusal = loop {
        let gate = Arc::clone(&gate);
        match thread::Builder::new().stack_bytes(PAGE).spawn(move || gate.acquire()) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
        ensure!(handles.len() < handles.capacity(), "{} threads and no end", handles.len());
    };
    is_overloaded(&refusal, "thread")?;
    let count = handles.len();
    for _ in &handles {
        gate.release();
    }
    for handle in handles {
        handle.join()?;
    }
    thread::trim();
    println!("    {count} threads, then: {refusal}");
    ensure!(count > 500, "only {count} threads");
    let answer = thread::Builder::new().spawn(|| 6 * 7).doing("a thread afterwards")?.join()?;
    ensure!(answer == 42, "it returned {answer}");
    Ok(())
}

// ---- capabilities ---------------------------------------------------------------------------------------------------------

fn capabilities() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = factory.endpoint().doing("an endpoint")?;
    let mut copies: Vec<Cap> = Vec::with_capacity(8192);
    let refusal = loop {
        match endpoint.cap().copy(rights::CALL, 0) {
            Ok(copy) => copies.push(copy),
            Err(error) => break error,
        }
        ensure!(copies.len() < copies.capacity(), "{} capabilities and no end", copies.len());
    };
    ensure!(refusal.transport() == Some(TransportError::NoSpace), "a copy was refused with `{refusal}`");
    // Every operation that returns a capability is refused, and says why; nothing half-made is left.
    let refused: [(&str, Result<Cap>); 3] = [
        ("an endpoint", factory.endpoint().map(Endpoint::into_cap)),
        ("a memory object", factory.memory_object(4096).map(MemoryObject::into_cap)),
        ("a thread", bare_thread().map(Client::into_cap)),
    ];
    for (what, result) in refused {
        let error = result.err().ok_or_else(|| Failure::new(format_args!("{what} was given")))?;
        is_overloaded(&error, what)?;
        println!("    {} copies, then {what}: {error}", copies.len());
    }
    let child = command("oom", "refused").arg("wait").spawn(&caps::any::<ProcessSpawner>()?);
    let error = child.err().ok_or_else(|| Failure::new("a process handle was given"))?;
    is_overloaded(&error, "a process")?;
    drop(copies);
    endpoint.caller(1).doing("a copy afterwards")?;
    Ok(())
}

/// Creates a thread that would fault at once; it must be refused.
fn bare_thread() -> Result<rt::ThreadHandle> {
    let spawner: ThreadSpawner = caps::any()?;
    // SAFETY: it is refused before it is made; otherwise this process ends by a fault, and the proof fails.
    unsafe { spawner.create(0x1000, 0x2000, 0, 0, 0) }
}

// ---- processes ------------------------------------------------------------------------------------------------------------

fn spawns() -> Outcome {
    let spawner: ProcessSpawner = caps::any()?;
    let mut children: Vec<Child> = Vec::with_capacity(8192);
    let mut refusal = None;
    while refusal.is_none() {
        match command("oom", "waiting").arg("wait").spawn(&spawner) {
            Ok(child) => children.push(child),
            Err(error) => refusal = Some(error),
        }
        ensure!(children.len() < children.capacity(), "{} processes and no end", children.len());
    }
    let count = children.len();
    for child in &children {
        child.handle.kill().doing("kill")?;
    }
    for child in &children {
        child.wait().doing("wait")?;
    }
    drop(children);
    if let Some(refusal) = refusal {
        is_overloaded(&refusal, "spawn")?;
        println!("    {count} processes, then: {refusal}");
        ensure!(count > 100, "only {count} processes");
    }
    let child = command("oom", "afterwards").arg("wait").spawn(&spawner).doing("a process afterwards")?;
    child.handle.kill().doing("kill")?;
    child.wait().doing("wait")?;
    Ok(())
}

// ---- queues ---------------------------------------------------------------------------------------------------------------

/// Threads that call, and how many calls each has at one endpoint: together nearly as many as may wait there.
const CALLERS: usize = 36;
const CALLS_OF_EACH: usize = 28;

/// What the callers share, round by round.
struct Rounds {
    endpoint: sync::Mutex<Option<Arc<Endpoint>>>,
    /// The caller that keeps one of its calls in this round.
    keeper: AtomicUsize,
    is_refused: AtomicBool,
    go: sync::Semaphore,
    have_called: sync::Semaphore,
    back: sync::Semaphore,
    done: sync::Semaphore,
}

impl Rounds {
    /// The body of a caller: calls in each round, and cancels the calls, perhaps all but one.
    fn call(&self, number: usize) -> Outcome {
        let mut kept = Vec::with_capacity(32);
        loop {
            self.go.acquire();
            let Some(endpoint) = self.endpoint.lock().clone() else { return Ok(()) };
            let mut calls = Vec::with_capacity(CALLS_OF_EACH);
            for _ in 0..CALLS_OF_EACH {
                let mut call = endpoint.call_start(1, [0; 2]).doing("call")?;
                match call.poll() {
                    None => calls.push(call),
                    Some(Err(error)) => {
                        is_overloaded(&error, "a call")?;
                        self.is_refused.store(true, Ordering::Relaxed);
                    }
                    Some(Ok(_)) => return Err(Failure::new("somebody answered")),
                }
            }
            self.have_called.release();
            self.back.acquire();
            if self.keeper.load(Ordering::Relaxed) == number {
                kept.extend(calls.pop());
            }
            drop(calls);
            self.done.release();
        }
    }

    /// Plays one round, at a new endpoint.
    fn play(&self, keeper: usize) -> Outcome<Arc<Endpoint>> {
        let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("an endpoint")?);
        *self.endpoint.lock() = Some(Arc::clone(&endpoint));
        self.keeper.store(keeper, Ordering::Relaxed);
        for (begin, end) in [(&self.go, &self.have_called), (&self.back, &self.done)] {
            (0..CALLERS).for_each(|_| begin.release());
            for _ in 0..CALLERS {
                ensure!(
                    kit::patiently(|ns| end.acquire_timeout(ns).then_some(())).is_some(),
                    "a caller has given up"
                );
            }
        }
        Ok(endpoint)
    }
}

fn queues() -> Outcome {
    let rounds = Arc::new(Rounds {
        endpoint: sync::Mutex::new(None),
        keeper: AtomicUsize::new(0),
        is_refused: AtomicBool::new(false),
        go: sync::Semaphore::new(0),
        have_called: sync::Semaphore::new(0),
        back: sync::Semaphore::new(0),
        done: sync::Semaphore::new(0),
    });
    let mut callers = Vec::with_capacity(CALLERS);
    for number in 0..CALLERS {
        let rounds = Arc::clone(&rounds);
        let call = move || rounds.call(number);
        callers.push(thread::Builder::new().stack_bytes(4 * PAGE).spawn(call).doing("a caller")?);
    }
    let mut endpoints = Vec::with_capacity(256);
    endpoints.push(rounds.play(CALLERS)?);
    let before = kit::counter("heap_used_bytes")?;
    for _ in 0..3 {
        endpoints.push(rounds.play(CALLERS)?);
    }
    let more = kit::counter("heap_used_bytes")?.saturating_sub(before);
    ensure!(more < 4096, "three endpoints where nobody waits any more hold {more} bytes");
    ensure!(!rounds.is_refused.load(Ordering::Relaxed), "a first thousand calls was refused");
    // A single call that stays keeps a whole long queue in memory.
    let mut long = 0;
    while !rounds.is_refused.load(Ordering::Relaxed) {
        ensure!(endpoints.len() < endpoints.capacity(), "{long} long queues and no end");
        endpoints.push(rounds.play(long % CALLERS)?);
        long += 1;
    }
    let bytes = kit::counter("heap_used_bytes")? - before;
    println!("    {long} long queues with {} KiB, then calls are Overloaded", bytes / 1024);
    *rounds.endpoint.lock() = None;
    (0..CALLERS).for_each(|_| rounds.go.release());
    for caller in callers {
        caller.join()??;
    }
    let again = endpoints.pop().ok_or_else(|| Failure::new("no endpoint"))?;
    drop(endpoints);
    let mut call = again.call_start(1, [0; 2]).doing("a call afterwards")?;
    let end = call.poll();
    ensure!(end.is_none(), "a call afterwards ends at once: {end:?}");
    Ok(())
}

// ---- the machine ----------------------------------------------------------------------------------------------------------

/// Takes all memory that it can get, reports that, and waits to be killed.
fn hog() -> i64 {
    let Ok(ready) = caps::get::<Endpoint>("ready") else { return 1 };
    let mut mappings = Mappings::new();
    loop {
        let Ok(refusal) = mappings.fill() else { return 2 };
        let is_right = refusal.exception() == Some(Exception::Overloaded);
        if ready.call(1, [mappings.pages, u64::from(is_right)]).is_err() {
            return 3;
        }
        // Takes the memory that others give back meanwhile, too.
        if time::sleep(2 * MS).is_err() {
            return 4;
        }
    }
}

/// While hogs hold all memory, everything is tried: some of it works, the rest is refused by name, and nothing breaks.
fn full(victim: &Watch) -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    let ready = factory.endpoint().doing("an endpoint")?;
    let mut hogs: Vec<Child> = Vec::with_capacity(4);
    let mut pages = [0_u64; 4];
    for number in 1..=3_u32 {
        let hog = command("oom", "hog").arg("hog").grant("ready", ready.cap(), rights::CALL, number);
        match hog.spawn(&spawner) {
            Ok(hog) => hogs.push(hog),
            Err(error) => is_overloaded(&error, "a hog")?,
        }
        // Each hog is full before the next begins; earlier hogs report repeatedly meanwhile.
        let mut heard_from = 0;
        while hogs.len() == number as usize && heard_from != number {
            let call = ready.recv(&mut []).doing("hear from a hog")?;
            let [held, is_right] = call.message.words();
            ensure!(is_right == 1, "a hog was refused with something else than Overloaded");
            heard_from = call.badge;
            pages[call.badge as usize % 4] = held;
            ready.reply(call.token, rt::Answer::Words([0; 2])).doing("answer a hog")?;
        }
    }
    println!("    {} hogs hold {:?} pages", hogs.len(), &pages[1..]);
    let mut tally = [0_u64; 2];
    for round in 0..400_u64 {
        let result = attempt(round, &factory, &spawner);
        if let Err(error) = &result {
            let is_typed = matches!(error, Error::Exception { kind: Exception::Overloaded, .. })
                || error.transport() == Some(TransportError::NoSpace);
            ensure!(is_typed, "attempt {round}: refused with `{error}`");
        }
        tally[usize::from(result.is_ok())] += 1;
    }
    println!("    400 attempts: {} refused, {} done", tally[0], tally[1]);
    ensure!(tally[0] > 0, "the machine was not full");
    victim.goes_on(2)?;
    for hog in &hogs {
        hog.handle.kill().doing("kill a hog")?;
    }
    for hog in &hogs {
        hog.wait().doing("wait for a hog")?;
    }
    Ok(())
}

#[repr(align(4096))]
struct Stack([u8; PAGE]);
static STACK: Stack = Stack([0; PAGE]);

/// A thread that ends.
#[unsafe(naked)]
unsafe extern "C" fn end_at_once() -> ! {
    naked_asm!("mov eax, {exit}", "xor edi, edi", "syscall", "ud2", exit = const SYS_EXIT)
}

/// One of the operations that need memory.
fn attempt(round: u64, factory: &Factory, spawner: &ProcessSpawner) -> Result<()> {
    match round % 7 {
        0 => factory.endpoint().map(drop),
        1 => factory.memory_object(64 << 10).map(drop),
        2 => {
            let at = vm::map(PAGE)?;
            // SAFETY: just mapped, used by no code.
            unsafe { vm::unmap(at.as_ptr() as u64, PAGE) }
        }
        3 => {
            let child = command("oom", "small").arg("wait").spawn(spawner)?;
            child.handle.kill()?;
            child.wait().map(drop)
        }
        4 => factory.session("somebody").map(drop),
        5 => {
            // Only what the kernel needs for a thread: the stack exists, and is never used.
            let stack = STACK.0.as_ptr() as u64 + PAGE as u64;
            // SAFETY: the thread ends with its first instructions, and touches nothing.
            unsafe { caps::any::<ThreadSpawner>()?.create(end_at_once as *const () as u64, stack, 0, 0, 0) }
                .map(drop)
        }
        _ => {
            // A message that the kernel has to store.
            let endpoint = factory.endpoint()?;
            let mut call = endpoint.call_bytes_start(1, &[7; 4000], 64)?;
            match call.poll() {
                Some(Err(error)) => Err(error),
                _ => Ok(()),
            }
        }
    }
}
