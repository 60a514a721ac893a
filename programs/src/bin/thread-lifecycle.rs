//! Proof of a thread's properties, from its first register to the end of its process (K-05 to K-09).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use programs::ensure;
use programs::kit::{self, MS, Usage, raised, refused};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::rawring::RawRing;
use rt::abi::{CAPSET_VADDR, CapId, Exception, Op, RING_ARENA_VADDR, Sqe, TransportError, rights};
use rt::thread::{self, Builder, JoinError, JoinHandle};
use rt::{Client, Factory, ParkSpace, ThreadControl, ThreadHandle, ThreadSpawner, caps, println, time, vm};

rt::main!(run);

// Each thread begins with its own copy.
rt::thread_word!(tally = 0x7a11_7a11_7a11);
const FRESH: u64 = 0x7a11_7a11_7a11;

/// Bytes of a stack for threads that do little.
const SMALL_STACK: usize = 8192;

fn run() -> i64 {
    match rt::args::args().next() {
        Some("last") => return last(),
        Some("first") => return first(),
        _ => {}
    }
    prove("thread-lifecycle", || {
        println!("thread-lifecycle: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("a thread starts with the registers of the contract (K-06)", start_registers)?;
        step("bad entries, stacks, FS bases and flags are Failed, and make no thread (K-06)", bad_starts)?;
        step("join once, exitCode as often as you like, never oneself (K-08)", joins)?;
        step("handles released before the end, after it, and under a join (K-08)", released_handles)?;
        step("exit of one thread leaves the others (K-08)", one_exit)?;
        step("the process ends with its last thread, and its code (K-08)", last_thread)?;
        step("thread-local data and FS base belong to the thread (K-09)", locals)?;
        step("thread records: Overloaded at the limit, and all back afterwards (K-07)", thread_limit)?;
        step("capability slots: Overloaded at the limit, and all back afterwards (K-07)", slot_limit)?;
        step(
            "who joined runs, also if a new thread that enters no kernel was chosen before (K-08)",
            joined_first,
        )?;
        step("a number that is used again gets nothing of the old thread's (K-05)", reuse)?;
        step("a joiner that ended is not told, nor is whoever has its number (K-05)", reuse_of_joiner)?;
        step("an answer to an ended thread goes to nobody (K-05)", reuse_in_call)
    })
}

/// A thread starts another one and ends while a third waits for its end. Its CPU goes to the new thread, on whose stack the joiner is woken: the new
/// thread must give way before its first instruction, because it may never enter the kernel. With several CPUs the joiner may be woken elsewhere.
fn joined_first() -> Outcome {
    static IS_JOINED: AtomicBool = AtomicBool::new(false);
    let first = thread::spawn(|| thread::spawn(|| IS_JOINED.load(Ordering::Relaxed)));
    let second = first.join().doing("join")?;
    IS_JOINED.store(true, Ordering::Relaxed);
    let gave_way = second.join().doing("join")?;
    // A slice may end in between where the host takes time.
    let is_exact = rt::boot_info().cpus == 1 && programs::ticks::is_counted();
    ensure!(gave_way || !is_exact, "a new thread ran before the joiner, which had waited longer");
    Ok(())
}

// ---- K-06 -----------------------------------------------------------------------------------------------------------------

/// What the naked entry point saw.
#[repr(C)]
#[derive(Default)]
struct Seen {
    registers: [u64; 6],
    fs_word: u64,
    others: u64,
    flags: u64,
}

/// Stores the registers that it was started with, and exits with 42. Uses no stack except for the flags.
#[unsafe(naked)]
unsafe extern "C" fn witness() -> ! {
    naked_asm!(
        "mov [rdi], rdi",
        "mov [rdi + 8], rsi",
        "mov [rdi + 16], rdx",
        "mov [rdi + 24], rcx",
        "mov [rdi + 32], r8",
        "mov [rdi + 40], rsp",
        "or rax, rbx",
        "or rax, rbp",
        "or rax, r9",
        "or rax, r10",
        "or rax, r11",
        "or rax, r12",
        "or rax, r13",
        "or rax, r14",
        "or rax, r15",
        "mov [rdi + 56], rax",
        "mov rax, fs:[0]",
        "mov [rdi + 48], rax",
        "pushfq",
        "pop qword ptr [rdi + 64]",
        "mov edi, 42",
        "mov eax, 1",
        "syscall",
        "ud2",
    )
}

fn start_registers() -> Outcome {
    let spawner: ThreadSpawner = caps::any()?;
    let page = vm::map(8192)?.as_ptr() as u64;
    let (stack_top, fs_base) = (page + 4096, page + 4096);
    let seen = (page + 6144) as *mut Seen;
    // SAFETY: this function's own new pages; the thread touches nothing else, and has ended when they are read and unmapped.
    unsafe {
        seen.write(Seen::default());
        (fs_base as *mut u64).write(0xf5f5);
        let handle = spawner.create(witness as *const () as u64, stack_top, seen as u64, fs_base, 0)?;
        let code = handle.join().doing("join")?;
        ensure!(code == 42, "the thread exited with {code}");
        let Seen { registers: [rdi, rsi, rdx, rcx, r8, rsp], fs_word, others, flags } = seen.read();
        ensure!(rdi == seen as u64, "RDI was {rdi:#x}, not the argument");
        ensure!(rsi != 0 && rsi != u64::from(thread::id()), "RSI was {rsi}, not a new thread's number");
        ensure!(rdx == u64::from(rt::boot_info().pid), "RDX was {rdx}, not the process's number");
        ensure!(rcx >= RING_ARENA_VADDR && rcx.is_multiple_of(4096), "RCX was {rcx:#x}, not a ring");
        ensure!(r8 == CAPSET_VADDR, "R8 was {r8:#x}, not the CapSet");
        ensure!(rsp == stack_top, "RSP was {rsp:#x}, not {stack_top:#x}");
        ensure!(fs_word == 0xf5f5, "FS did not point to the base: {fs_word:#x}");
        ensure!(others == 0, "other registers carried something: {others:#x}");
        ensure!(flags & 0x600 == 0x200, "RFLAGS were {flags:#x}");
        vm::unmap(page, 8192).doing("unmap")
    }
}

fn bad_starts() -> Outcome {
    const KERNEL: u64 = 0xffff_ffff_8010_0000;
    const HOLE: u64 = 0x0000_8000_0000_0000;
    let spawner: ThreadSpawner = caps::any()?;
    let page = vm::map(8192)?.as_ptr() as u64;
    let (entry, top) = (witness as *const () as u64, page + 4096);
    let before = kit::thread_count()?;
    let bad: [(&str, u64, u64, u64, u32); 12] = [
        ("a kernel entry", KERNEL, top, top, 0),
        ("an entry in the hole", HOLE, top, top, 0),
        ("a non-canonical entry", 1 << 63 | entry, top, top, 0),
        ("a kernel stack", entry, KERNEL, top, 0),
        ("a stack in the hole", entry, HOLE, top, 0),
        ("a stack off by 8", entry, top - 8, top, 0),
        ("a stack off by 1", entry, top + 1, top, 0),
        ("no stack", entry, 0, top, 0),
        ("a kernel FS base", entry, top, KERNEL, 0),
        ("an FS base in the hole", entry, top, HOLE, 0),
        ("flag 0", entry, top, top, 1),
        ("flag 31", entry, top, top, 1 << 31),
    ];
    for (what, entry, stack, fs_base, flags) in bad {
        // SAFETY: the kernel must refuse; if it does not, the proof has failed already.
        let made = unsafe { spawner.create(entry, stack, page, fs_base, flags) };
        raised(what, made, Exception::Failed)?;
    }
    let control: ThreadControl = caps::any()?;
    let base = control.fs_base().doing("get FS base")?;
    for bad in [KERNEL, HOLE, u64::MAX] {
        // SAFETY: the kernel must refuse; if it does not, nothing works any more, which the proof would show.
        raised("a bad FS base", unsafe { control.set_fs_base(bad) }, Exception::Failed)?;
    }
    ensure!(control.fs_base().doing("get FS base")? == base, "a refused FS base changed it");
    let after = kit::thread_count()?;
    ensure!(after == before, "{before} threads before the refused starts, {after} afterwards");
    // SAFETY: no thread was started there.
    unsafe { vm::unmap(page, 8192) }.doing("unmap")
}

// ---- K-08 -----------------------------------------------------------------------------------------------------------------

/// A thread that waits for `go` and then exits with `code`.
fn waiting(go: &Arc<AtomicBool>, code: i64) -> Outcome<JoinHandle<()>> {
    let go = Arc::clone(go);
    Builder::new()
        .spawn(move || {
            while !go.load(Ordering::Acquire) {
                thread::yield_now();
            }
            rt::thread::exit(code)
        })
        .doing("spawn")
}

/// The kernel's handle of a thread, borrowed.
fn handle_of<T>(join: &JoinHandle<T>) -> Outcome<ThreadHandle> {
    let handle = join.handle().ok_or_else(|| Failure::new("no handle"))?;
    Ok(kit::client(handle.cap().id()))
}

fn joins() -> Outcome {
    let go = Arc::new(AtomicBool::new(false));
    let joined = waiting(&go, 7)?;
    let handle = handle_of(&joined)?;
    ensure!(handle.exit_code().doing("exitCode")?.is_none(), "a live thread has an exit code");
    let pending = handle.join_start().doing("start a join")?;
    raised("a second join beside a waiting one", handle.join(), Exception::Failed)?;
    go.store(true, Ordering::Release);
    let code = pending.wait().doing("the join")?;
    ensure!(code == 7, "join says {code}");
    for _ in 0..3 {
        let code = handle.exit_code().doing("exitCode")?;
        ensure!(code == Some(7), "exitCode says {code:?} after the join");
    }
    raised("a second join after the first", handle.join(), Exception::Failed)?;
    // Reading the exit code does not consume it, and a cancelled join can be repeated.
    go.store(false, Ordering::Release);
    let second = waiting(&go, 8)?;
    let handle = handle_of(&second)?;
    refused("a withdrawn join", handle.join_start()?.cancel(), TransportError::Cancelled)?;
    go.store(true, Ordering::Release);
    kit::wait_until("the second thread ends", || Ok(handle.exit_code().doing("exitCode")?.is_some()))?;
    let code = handle.join().doing("join after exitCode")?;
    ensure!(code == 8, "join says {code}");
    // A thread's own handle.
    let own = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&own);
    let selfish = Builder::new()
        .spawn(move || {
            while theirs.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            let handle: ThreadHandle = kit::client(CapId(theirs.load(Ordering::Acquire)));
            raised("joining oneself", handle.join(), Exception::Failed)
        })
        .doing("spawn")?;
    own.store(handle_of(&selfish)?.cap().id().0, Ordering::Release);
    selfish.join()??;
    // A handle names a thread of this process only, so it cannot be sent away.
    let factory: Factory = caps::any()?;
    let endpoint = factory.endpoint()?;
    let other = waiting(&go, 9)?;
    let handle = handle_of(&other)?;
    let give = rt::Give::Copy(handle.cap());
    refused(
        "a handle in a message",
        endpoint.call_giving(1, &[], &mut [], give),
        TransportError::NotPermitted,
    )?;
    ended(other.join(), 9)
}

/// Fails unless the thread exited with `code`.
fn ended(result: Result<(), JoinError>, code: i64) -> Outcome {
    ensure!(result == Err(JoinError::Ended(code)), "the thread's end is {result:?}, not code {code}");
    Ok(())
}

/// A raw thread that exits with 42 at once, and its pages. The caller owns the handle.
fn witness_thread() -> Outcome<(ThreadHandle, u64)> {
    let spawner: ThreadSpawner = caps::any()?;
    let page = vm::map(8192)?.as_ptr() as u64;
    // SAFETY: this function's own new pages; the thread touches nothing else.
    let handle = unsafe {
        (page as *mut u64).add(512).write(0);
        spawner.create(witness as *const () as u64, page + 4096, page + 6144, page + 4096, 0)
    };
    Ok((handle.doing("create")?, page))
}

/// Waits until the word at its argument is not 0, and exits with 11.
#[unsafe(naked)]
unsafe extern "C" fn spinner() -> ! {
    naked_asm!("2: pause", "cmp dword ptr [rdi], 0", "je 2b", "mov edi, 11", "mov eax, 1", "syscall", "ud2",)
}

/// A raw thread that waits for its word, which lies in the second of its two pages.
fn spinner_thread() -> Outcome<(ThreadHandle, &'static AtomicU32)> {
    let spawner: ThreadSpawner = caps::any()?;
    let page = vm::map(8192)?.as_ptr() as u64;
    // SAFETY: this function's own new pages, which are zero; the caller unmaps them when the thread has ended and the word is used no
    // more.
    let word = unsafe { &*((page + 4096) as *const AtomicU32) };
    // SAFETY: the thread reads its word and nothing else.
    let handle = unsafe { spawner.create(spinner as *const () as u64, page + 4096, page + 4096, 0, 0) };
    Ok((handle.doing("create")?, word))
}

fn released_handles() -> Outcome {
    let threads = kit::thread_count()?;
    let mut before = Usage::now()?;
    for round in 0..3 {
        // Released before or after the thread's end, at random; the record must come back in each case.
        for _ in 0..20 {
            let (handle, page) = witness_thread()?;
            let id = handle.cap().id();
            handle.into_cap().release().doing("release")?;
            let gone: ThreadHandle = kit::client(id);
            refused("join after detach", gone.join(), TransportError::BadCap)?;
            refused("exitCode after detach", gone.exit_code(), TransportError::BadCap)?;
            kit::wait_until("the detached thread ends", || Ok(kit::thread_count()? == threads))?;
            // SAFETY: the thread has ended.
            unsafe { vm::unmap(page, 8192) }.doing("unmap")?;
        }
        // Released after the thread's end.
        let (handle, page) = witness_thread()?;
        kit::wait_until("the thread ends", || Ok(handle.exit_code().doing("exitCode")? == Some(42)))?;
        handle.into_cap().release().doing("release")?;
        // Released with a join under way, which pins the thread's record.
        let (handle, word) = spinner_thread()?;
        let pending = handle.join_start().doing("start a join")?;
        let id = handle.cap().id();
        handle.into_cap().release().doing("release under a join")?;
        refused(
            "exitCode of the released handle",
            kit::client::<ThreadHandle>(id).exit_code(),
            TransportError::BadCap,
        )?;
        word.store(1, Ordering::Release);
        let code = pending.wait().doing("the pinned join")?;
        ensure!(code == 11, "the pinned join says {code}");
        // SAFETY: the thread has ended; its word is at the second page.
        unsafe { vm::unmap(word.as_ptr() as u64 - 4096, 8192) }.doing("unmap")?;
        // SAFETY: the thread has ended.
        unsafe { vm::unmap(page, 8192) }.doing("unmap")?;
        if round == 0 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after detached threads")
}

fn one_exit() -> Outcome {
    let go = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..4).map(|code| waiting(&go, 100 + code)).collect::<Outcome<_>>()?;
    let leaver: JoinHandle<()> = Builder::new().spawn(|| rt::thread::exit(77)).doing("spawn")?;
    ended(leaver.join(), 77)?;
    let by_control: JoinHandle<()> = Builder::new()
        .spawn(|| {
            let control: rt::Result<ThreadControl> = caps::any();
            let _ = control.and_then(|control| control.exit_thread(-5));
        })
        .doing("spawn")?;
    ended(by_control.join(), -5)?;
    for other in &others {
        let code = handle_of(other)?.exit_code()?;
        ensure!(code.is_none(), "a thread ended with {code:?} because another did");
    }
    go.store(true, Ordering::Release);
    for (code, other) in (100..).zip(others) {
        ended(other.join(), code)?;
    }
    Ok(())
}

/// Role `last`: the first thread exits first; the process goes on with the other one and gets its code.
fn last() -> i64 {
    let other: JoinHandle<()> = thread::spawn(|| {
        let _ = time::sleep(20 * MS);
        rt::thread::exit(33)
    });
    core::mem::forget(other);
    // Returning would end the process, as in any Rust program.
    rt::thread::exit(5)
}

/// Role `first`: the other thread exits first.
fn first() -> i64 {
    let other: JoinHandle<()> = thread::spawn(|| rt::thread::exit(9));
    if other.join() == Err(JoinError::Ended(9)) { 12 } else { 1 }
}

fn last_thread() -> Outcome {
    for (role, code) in [("last", 33), ("first", 12)] {
        let child = kit::again(&[role], &[])?;
        let exit = child.wait().doing("wait")?;
        ensure!(exit.code == code && exit.reason == rt::ExitReason::Exited, "{role}: {exit}, not {code}");
        let late = child.handle.exit().doing("exitCode")?;
        ensure!(late == Some(exit), "{role}: exitCode says {late:?}");
    }
    Ok(())
}

// ---- K-09 -----------------------------------------------------------------------------------------------------------------

fn locals() -> Outcome {
    let count = u64::from(rt::boot_info().cpus) * 2 + 6;
    let mut threads = Vec::new();
    for n in 1..=count {
        let work = move || -> Outcome {
            let control: ThreadControl = caps::any()?;
            ensure!(tally::get() == FRESH, "thread {n} began with {:#x}", tally::get());
            let base = control.fs_base().doing("get FS base")?;
            for round in 0..200 {
                let mine = n << 32 | round;
                tally::set(mine);
                if round % 4 == 0 {
                    thread::yield_now();
                } else {
                    // Long enough that some are preempted.
                    (0..2000).for_each(|_| core::hint::spin_loop());
                }
                ensure!(tally::get() == mine, "thread {n} had {mine:#x} and found {:#x}", tally::get());
            }
            let after = control.fs_base().doing("get FS base")?;
            ensure!(after == base, "thread {n}: the FS base moved from {base:#x} to {after:#x}");
            Ok(())
        };
        threads.push(Builder::new().spawn(work).doing("spawn")?);
    }
    for thread in threads {
        thread.join()??;
    }
    ensure!(tally::get() == FRESH, "the first thread's copy was changed: {:#x}", tally::get());
    println!("    {count} threads, 200 rounds each");
    Ok(())
}

// ---- K-07 -----------------------------------------------------------------------------------------------------------------

/// Starts as many threads as the kernel allows, all parked, then lets them go. Returns how many.
fn as_many_as_possible() -> Outcome<usize> {
    let word = Arc::new(AtomicU32::new(0));
    let mut threads = Vec::new();
    let start = time::now_ns()?;
    let refusal = loop {
        let theirs = Arc::clone(&word);
        let wait = move || {
            let space: rt::Result<ParkSpace> = caps::any();
            while theirs.load(Ordering::Acquire) == 0 {
                let _ = space.as_ref().map(|space| space.park(&theirs, 0, u64::MAX));
            }
        };
        match Builder::new().stack_bytes(SMALL_STACK).spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(error) => break error,
        }
        ensure!(threads.len() < 5000, "5000 threads and no limit");
    };
    raised::<()>("one thread too many", Err(refusal), Exception::Overloaded)?;
    // It is refused again, and still leaves nothing half-made.
    let again = Builder::new().stack_bytes(SMALL_STACK).spawn(|| ());
    raised("and again", again.map(|_| ()), Exception::Overloaded)?;
    let count = kit::thread_count()?;
    ensure!(count as usize == threads.len() + 1, "{} threads were made, {count} are there", threads.len());
    let made = time::now_ns()?;
    word.store(1, Ordering::Release);
    let space: ParkSpace = caps::any()?;
    space.unpark(&word, u32::MAX).doing("unpark")?;
    let count = threads.len();
    for thread in threads {
        thread.join()?;
    }
    thread::trim();
    let joined = time::now_ns()?;
    println!("    {count} threads made in {} ms, joined in {} ms", (made - start) / MS, (joined - made) / MS);
    Ok(count)
}

/// Waits until a thread can be started again, and joins it.
fn one_more() -> Outcome {
    kit::wait_until("a thread can be made again", || {
        match Builder::new().stack_bytes(SMALL_STACK).spawn(|| 5) {
            Ok(thread) => Ok(thread.join()? == 5),
            Err(error) if error.exception() == Some(Exception::Overloaded) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
}

fn thread_limit() -> Outcome {
    // The first round creates records, tables and lists that stay.
    let first = as_many_as_possible()?;
    kit::wait_until("all threads are gone", || Ok(kit::thread_count()? == 1))?;
    one_more()?;
    thread::trim();
    time::sleep(5 * MS)?;
    let before = Usage::settled()?;
    // With fewer host CPUs than guest CPUs each TLB shootdown is slow, and there are two for each thread.
    for round in 0..if rt::boot_info().cpus > 4 { 1 } else { 2 } {
        let count = as_many_as_possible()?;
        ensure!(count == first, "round {round}: {count} threads could be made, {first} at first");
        one_more()?;
        thread::trim();
        before.comes_back("after all threads")?;
    }
    println!(
        "    {first} threads beside the first one, each time; {} frames free after each",
        before.free_frames
    );
    Ok(())
}

fn slot_limit() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = factory.endpoint()?;
    let mut usage = Usage::now()?;
    for round in 0..3 {
        let mut copies = kit::fill_caps(endpoint.cap(), rights::CALL)?;
        let before = kit::thread_count()?;
        let made = Builder::new().spawn(|| ());
        raised("a thread without a slot for its handle", made.map(|_| ()), Exception::Overloaded)?;
        raised("an endpoint without a slot", factory.endpoint(), Exception::Overloaded)?;
        let child = kit::again(&["first"], &[]);
        ensure!(child.is_err(), "a process without a slot for its handle");
        let after = kit::thread_count()?;
        ensure!(after == before, "{before} threads before the refusals, {after} afterwards");
        copies.pop();
        ensure!(Builder::new().spawn(|| 3).doing("spawn with one slot")?.join()? == 3, "a wrong result");
        let count = copies.len() + 1;
        drop(copies);
        thread::trim();
        if round == 0 {
            usage = Usage::settled()?;
            println!("    {count} copies filled the table");
        }
    }
    usage.comes_back("after full tables")
}

// ---- K-05 -----------------------------------------------------------------------------------------------------------------

/// The most rounds of each reuse step, and how often a number must have been reused.
const ROUNDS_MAX: u32 = 400;
const REUSES: u32 = 25;

/// What a thread with a reused number reports: its number, and what went wrong.
type Report = (u32, Outcome);

/// Starts `old`, waits for its end, then starts `new`, until the kernel has given `new` the number of `old` [`REUSES`] times.
fn reusing<F, G>(mut old: impl FnMut() -> F, mut new: impl FnMut() -> G) -> Outcome
where
    F: FnOnce() -> Outcome + Send + 'static,
    G: FnOnce() -> Outcome + Send + 'static,
{
    let (mut reused, mut rounds) = (0, 0);
    while reused < REUSES {
        ensure!(rounds < ROUNDS_MAX, "only {reused} numbers were used again in {rounds} rounds");
        let (old, new) = (old(), new());
        let first = Builder::new().spawn(move || -> Report { (thread::id(), old()) }).doing("spawn")?;
        let (tid, outcome) = first.join()?;
        outcome?;
        let second = Builder::new().spawn(move || -> Report { (thread::id(), new()) }).doing("spawn")?;
        let (other, outcome) = second.join()?;
        outcome?;
        reused += u32::from(tid == other);
        rounds += 1;
    }
    println!("    {reused} numbers used again in {rounds} rounds");
    Ok(())
}

/// Operations that both threads have under way.
const SLEEPS: u64 = 12;

/// The old thread leaves sleeps, a park, a call and a RECV behind; the new one has sleeps of its own in the same slots.
fn reuse() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = Arc::new(factory.endpoint()?);
    let word: &'static AtomicU32 = alloc::boxed::Box::leak(alloc::boxed::Box::new(AtomicU32::new(0)));
    let stale = kit::counter("stale_completions")?;
    let timer = time::timer()?.cap().id();
    let park: ParkSpace = caps::any()?;
    let park_id = park.cap().id();
    let old = || {
        let endpoint = Arc::clone(&endpoint);
        move || -> Outcome {
            // SAFETY: nothing of rt is under way; the entries name no memory but a word that is never freed. The thread ends before they
            // complete; should one be faster, rt drops its completion.
            let ring = unsafe { RawRing::take() };
            for n in 0..SLEEPS {
                ring.push(Sqe {
                    op: Op::Sleep as u8,
                    cap: timer.0,
                    user_data: n,
                    arg0: 3 * MS,
                    ..Sqe::default()
                });
            }
            let call = Sqe { op: Op::Call as u8, cap: endpoint.cap().id().0, flags: 1, ..Sqe::default() };
            ring.push(Sqe { user_data: 20, ..call });
            let addr = word.as_ptr() as u64;
            ring.push(Sqe { op: Op::Park as u8, cap: park_id.0, addr, arg1: 5 * MS, ..Sqe::default() });
            ring.enter(0, 0);
            drop(ring);
            Ok(())
        }
    };
    let new = || {
        move || -> Outcome {
            // SAFETY: nothing of rt is under way; the entries name no memory; all completions are taken.
            let mut ring = unsafe { RawRing::take() };
            for n in 0..SLEEPS {
                let user_data = 100 + n;
                ring.push(Sqe {
                    op: Op::Sleep as u8,
                    cap: timer.0,
                    user_data,
                    arg0: 12 * MS,
                    ..Sqe::default()
                });
            }
            let there = ring.enter(1, 8 * MS);
            let early = ring.unread();
            for n in 0..SLEEPS {
                let cqe = ring.next_cqe();
                ensure!(
                    cqe.status == 0 && (100..100 + SLEEPS).contains(&cqe.user_data),
                    "completion {n} is {cqe:?}, of an operation that this thread did not start"
                );
            }
            ensure!(ring.unread() == 0, "{} completions too many", ring.unread());
            drop(ring);
            // A busy host may make 8 ms longer than 12; then nothing can be said about early ones.
            if early > 0 && there > 0 {
                println!("    (a wait of 8 ms took longer than 12: {early} sleeps were over)");
            }
            Ok(())
        }
    };
    reusing(old, new)?;
    // No thread is left on the word, and none waits at the endpoint.
    ensure!(park.unpark(word, u32::MAX)? == 0, "an ended thread is still parked");
    let receiving = endpoint.recv_start(0)?;
    refused("a call of an ended thread", receiving.cancel(), TransportError::Cancelled)?;
    println!("    stale completions refused: {}", kit::counter("stale_completions")? - stale);
    Ok(())
}

/// The old thread waits to join a thread that lives on; the new one has a RECV in the same slot when that thread ends.
fn reuse_of_joiner() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = Arc::new(factory.endpoint()?);
    let go = Arc::new(AtomicBool::new(false));
    let target_id = Arc::new(AtomicU32::new(0));
    let (mut reused, mut rounds) = (0, 0);
    while reused < REUSES {
        ensure!(rounds < ROUNDS_MAX, "only {reused} numbers were used again in {rounds} rounds");
        rounds += 1;
        go.store(false, Ordering::Release);
        let target = waiting(&go, 66)?;
        target_id.store(handle_of(&target)?.cap().id().0, Ordering::Release);
        let theirs = Arc::clone(&target_id);
        let old = Builder::new()
            .spawn(move || -> Report {
                let handle: ThreadHandle = kit::client(CapId(theirs.load(Ordering::Acquire)));
                // Forgotten, so that the thread ends with the join under way.
                let outcome = handle.join_start().map(core::mem::forget).doing("start a join");
                (thread::id(), outcome)
            })
            .doing("spawn")?;
        let (tid, outcome) = old.join()?;
        outcome?;
        let (served, signal) = (Arc::clone(&endpoint), Arc::clone(&go));
        let new = Builder::new()
            .spawn(move || -> Report {
                let outcome = (|| {
                    let mut receiving = served.recv_start(0).doing("start a RECV")?;
                    signal.store(true, Ordering::Release);
                    // Meanwhile the target ends, and the thread to be notified is gone.
                    let early = receiving.wait_timeout(3 * MS);
                    ensure!(early.is_none(), "a RECV without a call completed: {early:?}");
                    refused("the RECV", receiving.cancel(), TransportError::Cancelled)
                })();
                (thread::id(), outcome)
            })
            .doing("spawn")?;
        let (other, outcome) = new.join()?;
        outcome?;
        reused += u32::from(tid == other);
        // A joiner that ended has not used up the right to join.
        ended(target.join(), 66)?;
    }
    println!("    {reused} numbers used again in {rounds} rounds");
    Ok(())
}

/// The old thread's call is in flight when it ends; the new one calls, and both calls are answered.
fn reuse_in_call() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = Arc::new(factory.endpoint()?);
    let (mut reused, mut rounds) = (0, 0);
    while reused < REUSES {
        ensure!(rounds < ROUNDS_MAX, "only {reused} numbers were used again in {rounds} rounds");
        rounds += 1;
        let theirs = Arc::clone(&endpoint);
        let is_received = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_received);
        let old = Builder::new()
            .spawn(move || -> Report {
                let outcome = theirs.call_start(1, [1, 1]).map(core::mem::forget).doing("start a call");
                while !seen.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                (thread::id(), outcome)
            })
            .doing("spawn")?;
        let first = endpoint.recv(&mut []).doing("receive the old call")?;
        is_received.store(true, Ordering::Release);
        let (tid, outcome) = old.join()?;
        outcome?;
        let theirs = Arc::clone(&endpoint);
        let new = Builder::new().spawn(move || (thread::id(), theirs.call(2, [2, 2]))).doing("spawn")?;
        let second = endpoint.recv(&mut []).doing("receive the new call")?;
        ensure!(second.method == 2, "method {} was received", second.method);
        let late = endpoint.reply(first.token, rt::Answer::Words([0xbad, 0xbad]));
        refused("an answer to an ended thread", late, TransportError::BadToken)?;
        endpoint.reply(second.token, rt::Answer::Words([3, 4])).doing("answer the new call")?;
        let (other, words) = new.join()?;
        let words = words.doing("the new call")?;
        ensure!(words == [3, 4], "the new call was answered with {words:?}");
        reused += u32::from(tid == other);
    }
    println!("    {reused} numbers used again in {rounds} rounds");
    Ok(())
}
