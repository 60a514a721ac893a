//! Proof of parking and waking by address (K-14).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, MS, Usage};
use programs::proof::{Doing, Outcome, prove, step};
use programs::random::Random;
use programs::rawring::RawRing;
use rt::abi::{Cqe, Op, Sqe, TransportError, rights};
use rt::sync::{Condvar, Mutex};
use rt::thread::{self, Builder};
use rt::{Client, ExitReason, Factory, MemoryObject, ParkSpace, Parked, caps, println, ring, time, vm};

rt::main!(run);

/// A word at the same address in every process of this program.
static PRIVATE: AtomicU32 = AtomicU32::new(0);

fn run() -> i64 {
    match rt::args::args().next() {
        Some("partner") => return prove("park partner", partner),
        Some("victim") => return victim(),
        Some("private") => return private_child(),
        _ => {}
    }
    prove("park", || {
        println!("park: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("another value, no time, or nobody there (K-14)", simple)?;
        step("bad words are refused (K-14)", bad_words)?;
        step("as many are woken as asked for, first come first (K-14)", counts)?;
        step("a park can be withdrawn, and a thread parks once (K-14)", withdrawn)?;
        step("a thread that ends while parked is not parked any more (K-14)", exit_while_parked)?;
        step("private words belong to their process (K-14)", private_keys)?;
        step("shared words are the same in two processes (K-14)", shared_keys)?;
        step("a process killed while parked is not parked any more (K-14)", kill_while_parked)?;
        step("time limits and wake-ups at the same time: each park ends once (K-14)", races)?;
        step("a mutex and a condition variable under load (K-14)", locks)
    })
}

fn space() -> Outcome<ParkSpace> {
    caps::any().doing("park space")
}

fn simple() -> Outcome {
    let space = space()?;
    let word = AtomicU32::new(5);
    ensure!(space.park(&word, 4, u64::MAX)? == Parked::OtherValue, "parked on another value");
    ensure!(space.park(&word, 5, 0)? == Parked::TimedOut, "a park without time");
    for ns in [1, MS, 3 * MS] {
        let before = time::now_ns()?;
        ensure!(space.park(&word, 5, ns)? == Parked::TimedOut, "nobody woke it, and it did not time out");
        let took = time::now_ns()? - before;
        ensure!(took >= ns, "a time limit of {ns} ns was over after {took}");
    }
    ensure!(space.unpark(&word, u32::MAX)? == 0, "somebody was parked where nobody is");
    ensure!(space.unpark(&word, 0)? == 0, "waking nobody woke somebody");
    Ok(())
}

/// A PARK entry with these fields, unchecked.
fn park_entry(space: &ParkSpace, addr: u64, expected: u64, timeout_ns: u64) -> Sqe {
    Sqe {
        op: Op::Park as u8,
        cap: space.cap().id().0,
        addr,
        arg0: expected,
        arg1: timeout_ns,
        ..Sqe::default()
    }
}

fn run_entry(sqe: Sqe) -> Cqe {
    // SAFETY: PARK and UNPARK read a word at most, and the kernel checks that the process may read it.
    unsafe { ring::run(sqe) }
}

fn bad_words() -> Outcome {
    let space = space()?;
    let page = vm::map(4096)?.as_ptr() as u64;
    // SAFETY: mapped just now, used by nobody.
    unsafe { vm::unmap(page, 4096) }?;
    let word = AtomicU32::new(0);
    let at = word.as_ptr() as u64;
    let console = caps::any::<rt::Console>()?.cap().id().0;
    let cases = [
        ("an unmapped word", page, 0, TransportError::BadAddress),
        ("null", 0, 0, TransportError::BadAddress),
        ("a misaligned word", at + 1, 0, TransportError::BadAddress),
        ("a word off by 2", at + 2, 0, TransportError::BadAddress),
        ("a kernel word", 0xffff_ffff_8010_0000, 0, TransportError::BadAddress),
        ("a non-canonical word", 0x8000_0000_0000, 0, TransportError::BadAddress),
        ("the last word", u64::MAX - 3, 0, TransportError::BadAddress),
        ("a value of more than 32 bits", at, 1 << 32, TransportError::BadFlags),
    ];
    for (what, addr, expected, want) in cases {
        let cqe = run_entry(park_entry(&space, addr, expected, MS));
        ensure!(cqe.status == want as i32, "{what}: {cqe:?} instead of {want:?}");
    }
    let flagged = run_entry(Sqe { flags: 1, ..park_entry(&space, at, 0, MS) });
    ensure!(flagged.status == TransportError::BadFlags as i32, "a flag: {flagged:?}");
    let wrong = run_entry(Sqe { cap: console, ..park_entry(&space, at, 0, MS) });
    ensure!(wrong.status == TransportError::NotPermitted as i32, "by a console: {wrong:?}");
    let none = run_entry(Sqe { cap: 0, ..park_entry(&space, at, 0, MS) });
    ensure!(none.status == TransportError::BadCap as i32, "by nothing: {none:?}");
    let unpark = Sqe { op: Op::Unpark as u8, cap: space.cap().id().0, arg0: 1, ..Sqe::default() };
    for (what, addr, want) in
        [("misaligned", at + 1, -21), ("kernel", 0xffff_ffff_8010_0000, -21), ("unmapped", page, 0)]
    {
        let cqe = run_entry(Sqe { addr, ..unpark });
        ensure!(cqe.status == want && cqe.value == 0, "unpark, {what}: {cqe:?}");
    }
    Ok(())
}

fn counts() -> Outcome {
    let space = space()?;
    let word = Arc::new(AtomicU32::new(0));
    let woken = Arc::new(Mutex::new(Vec::new()));
    let mut threads = Vec::new();
    for n in 0..7 {
        let (word, woken, tid) = (Arc::clone(&word), Arc::clone(&woken), Arc::new(AtomicU32::new(0)));
        let theirs = Arc::clone(&tid);
        let wait = move || -> Outcome {
            let space = self::space()?;
            theirs.store(thread::id(), Ordering::Release);
            let parked = space.park(&word, 0, u64::MAX)?;
            ensure!(parked == Parked::Woken, "thread {n}: {parked:?}");
            woken.lock().push(n);
            Ok(())
        };
        threads.push(Builder::new().spawn(wait).doing("spawn")?);
        kit::wait_until("a thread starts", || Ok(tid.load(Ordering::Acquire) != 0))?;
        // Each thread is parked before the next one starts, so the order is known.
        kit::wait_blocked(tid.load(Ordering::Acquire))?;
    }
    let expect = |count: usize| {
        kit::wait_until("woken threads say so", || Ok(woken.lock().len() >= count))?;
        time::sleep(2 * MS)?;
        let there = woken.lock().clone();
        ensure!(there.len() == count, "{count} were woken, {there:?} say so");
        Ok(())
    };
    // One at a time: in the order in which they parked.
    for n in 0..3 {
        ensure!(space.unpark(&word, 1)? == 1, "the thread that came {n}th was not woken");
        expect(n + 1)?;
    }
    let order = woken.lock().clone();
    ensure!(order == [0, 1, 2], "woken in the order {order:?}");
    ensure!(space.unpark(&word, 2)? == 2, "two were not woken");
    expect(5)?;
    let mut pair = woken.lock()[3..5].to_vec();
    pair.sort_unstable();
    ensure!(pair == [3, 4], "the next two were {pair:?}");
    ensure!(space.unpark(&word, u32::MAX)? == 2, "the rest was not woken");
    ensure!(space.unpark(&word, 1)? == 0, "somebody is left");
    threads.into_iter().try_for_each(|thread| thread.join()?)
}

fn withdrawn() -> Outcome {
    let space = space()?;
    let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
    let entry = |word: &AtomicU32, user_data| Sqe {
        user_data,
        ..park_entry(&space, word.as_ptr() as u64, 0, u64::MAX)
    };
    // SAFETY: nothing of rt is under way; the words outlive their entries; all completions are taken.
    let mut raw = unsafe { RawRing::take() };
    raw.push(entry(&first, 1));
    raw.push(entry(&second, 2));
    let second_park = raw.next_cqe();
    raw.push(Sqe { op: Op::Cancel as u8, user_data: 3, arg0: 1, ..Sqe::default() });
    let (one, other) = (raw.next_cqe(), raw.next_cqe());
    let left = raw.unread();
    drop(raw);
    ensure!(
        second_park.user_data == 2 && second_park.status == TransportError::NoSpace as i32,
        "a second park beside the first: {second_park:?}"
    );
    ensure!(one.user_data == 1 && one.status == TransportError::Cancelled as i32, "the park: {one:?}");
    ensure!(other.user_data == 3 && other.value == 1, "the withdrawal: {other:?}");
    ensure!(left == 0 && space.unpark(&first, 1)? == 0, "the withdrawn park is still there");
    // Parking still works.
    ensure!(space.park(&first, 0, MS)? == Parked::TimedOut, "a park after a withdrawn one");
    Ok(())
}

fn exit_while_parked() -> Outcome {
    let space = space()?;
    let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
    for round in 0..50 {
        let timeout = if round % 2 == 0 { u64::MAX } else { 2 * MS };
        let leave = move || -> Outcome {
            let space = self::space()?;
            let sqe = park_entry(&space, word.as_ptr() as u64, 0, timeout);
            // SAFETY: the word is never freed. The thread ends with the park under way.
            let _never_waited_for = unsafe { ring::start(sqe) }.map_err(rt::Error::from)?;
            Ok(())
        };
        Builder::new().spawn(leave).doing("spawn")?.join()??;
        let woken = space.unpark(word, u32::MAX)?;
        ensure!(woken == 0, "round {round}: {woken} ended threads were woken");
    }
    Ok(())
}

/// Role `private`: parks on the word at the same address as its parent's. Exits with 3 if it was not woken.
fn private_child() -> i64 {
    let woken = space().ok().and_then(|space| space.park(&PRIVATE, 0, 60 * MS).ok());
    if woken == Some(Parked::TimedOut) { 3 } else { 4 }
}

fn private_keys() -> Outcome {
    let space = space()?;
    let child = kit::again(&["private"], &[])?;
    let mut exit = child.handle.wait_start()?;
    let mut tries = 0;
    let exit = loop {
        if let Some(exit) = exit.poll() {
            break exit?;
        }
        let woken = space.unpark(&PRIVATE, u32::MAX)?;
        ensure!(woken == 0, "a thread of another process was woken by a private word");
        tries += 1;
        time::sleep(MS / 2)?;
    };
    ensure!(exit.code == 3, "the child: {exit}");
    println!("    {tries} wake-ups at the same address of another process reached nobody");
    Ok(())
}

/// Rounds between two processes.
const ROUNDS: u32 = 20_000;

/// A shared page: the two players pass `turn` to each other, and a victim parks on `extra`.
#[repr(C)]
struct Shared {
    pad: [AtomicU32; 7],
    turn: AtomicU32,
    extra: AtomicU32,
    is_parked: AtomicU32,
}

fn shared(object: &MemoryObject, offset: u64) -> Outcome<&'static Shared> {
    let at = object.map(None, offset, 4096, true).doing("map shared memory")?;
    // SAFETY: a page of zeros, shared with processes that use the same structure of atomics; it stays mapped.
    Ok(unsafe { &*(at as *const Shared) })
}

/// Passes `turn` on when it has the wanted parity.
fn play(shared: &Shared, parity: u32) -> Outcome {
    let space = space()?;
    loop {
        let turn = shared.turn.load(Ordering::Acquire);
        if turn >= ROUNDS {
            return Ok(());
        }
        if turn % 2 == parity {
            shared.turn.store(turn + 1, Ordering::Release);
            space.unpark(&shared.turn, 1)?;
        } else {
            let parked = space.park(&shared.turn, turn, 10_000 * MS)?;
            ensure!(parked != Parked::TimedOut, "turn {turn}: a wake-up by the other process was lost");
        }
    }
}

/// Role `partner`: plays the odd turns. Its mapping is at another address than the parent's.
fn partner() -> Outcome {
    let object: MemoryObject = caps::get("shared")?;
    let elsewhere = object.map(None, 0, 4096, true)?;
    let page = shared(&object, 4096)?;
    ensure!(elsewhere != page as *const Shared as u64, "both mappings are at the same place");
    play(page, 1)
}

fn shared_keys() -> Outcome {
    let object = caps::any::<Factory>()?.memory_object(8192)?;
    let page = shared(&object, 4096)?;
    let grant = ("shared", object.cap(), rights::CALL | rights::WRITE, 0);
    let child = kit::again(&["partner"], &[grant])?;
    let before = time::now_ns()?;
    play(page, 0)?;
    let took = time::now_ns()? - before;
    kit::succeeds("the partner", &child)?;
    println!("    {ROUNDS} turns between two processes in {} us", took / 1000);
    // A second mapping in the same process is the same word, too.
    let alias = shared(&object, 4096)?;
    ensure!(!core::ptr::eq(alias, page), "both mappings are at the same place");
    let wait = move || -> Outcome<Parked> { Ok(space()?.park(&alias.extra, 0, 10_000 * MS)?) };
    let waiter = Builder::new().spawn(wait).doing("spawn")?;
    kit::wait_until("a wake-up by the other mapping", || Ok(space()?.unpark(&page.extra, 1)? == 1))?;
    ensure!(waiter.join()?? == Parked::Woken, "the waiter was not woken");
    Ok(())
}

/// Role `victim`: parks for ever, on the shared word.
fn victim() -> i64 {
    let parked = || -> Outcome {
        let object: MemoryObject = caps::get("shared")?;
        let page = shared(&object, 0)?;
        let wait = move || -> Outcome {
            page.is_parked.fetch_add(1, Ordering::AcqRel);
            space()?.park(&page.extra, 0, u64::MAX)?;
            Ok(())
        };
        let other = Builder::new().spawn(wait).doing("spawn")?;
        wait()?;
        other.join()?
    };
    if parked().is_ok() { 5 } else { 6 }
}

fn kill_while_parked() -> Outcome {
    let object = caps::any::<Factory>()?.memory_object(4096)?;
    let page = shared(&object, 0)?;
    let mut before = Usage::now()?;
    for round in 0..6 {
        page.is_parked.store(0, Ordering::Release);
        let grant = ("shared", object.cap(), rights::CALL | rights::WRITE, 0);
        let child = kit::again(&["victim"], &[grant])?;
        kit::wait_until("the victim parks", || Ok(page.is_parked.load(Ordering::Acquire) == 2))?;
        if round % 2 == 0 {
            time::sleep(2 * MS)?;
        }
        child.handle.kill().doing("kill")?;
        let exit = child.wait().doing("wait")?;
        ensure!(exit.reason == ExitReason::Killed, "round {round}: {exit}");
        let woken = space()?.unpark(&page.extra, u32::MAX)?;
        ensure!(woken == 0, "round {round}: {woken} threads of a dead process were woken");
        drop(child);
        if round == 1 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after killed processes")
}

fn races() -> Outcome {
    let words: Arc<[AtomicU32; 3]> = Arc::new([const { AtomicU32::new(0) }; 3]);
    let is_over = Arc::new(AtomicBool::new(false));
    let (woken, timed_out) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for seed in 0..6 {
        let (words, is_over) = (Arc::clone(&words), Arc::clone(&is_over));
        let (woken, timed_out) = (Arc::clone(&woken), Arc::clone(&timed_out));
        let wait = move || -> Outcome {
            let space = space()?;
            let mut random = Random::new(seed);
            while !is_over.load(Ordering::Acquire) {
                let word = &words[random.below(3) as usize];
                match space.park(word, 0, random.below(300_000) + 1)? {
                    Parked::Woken => woken.fetch_add(1, Ordering::Relaxed),
                    Parked::TimedOut => timed_out.fetch_add(1, Ordering::Relaxed),
                    Parked::OtherValue => 0,
                };
            }
            ensure!(ring::strays() == 0, "{} completions were nobody's", ring::strays());
            Ok(())
        };
        threads.push(Builder::new().spawn(wait).doing("spawn")?);
    }
    let space = space()?;
    let mut random = Random::new(99);
    let mut counted = 0;
    let end = time::now_ns()? + 400 * MS;
    while time::now_ns()? < end {
        counted += space.unpark(&words[random.below(3) as usize], random.below(4) as u32)?;
        for _ in 0..random.below(3000) {
            core::hint::spin_loop();
        }
    }
    // On a busy host the threads may not have reached both cases by then (K-24): so some are left alone until they time out, and one is
    // woken.
    kit::wait_until("a park times out", || Ok(timed_out.load(Ordering::Relaxed) > 0))?;
    kit::wait_until("a park is woken", || {
        counted += space.unpark(&words[random.below(3) as usize], 1)?;
        Ok(woken.load(Ordering::Relaxed) > 0)
    })?;
    is_over.store(true, Ordering::Release);
    for thread in threads {
        thread.join()??;
    }
    let (woken, timed_out) = (woken.load(Ordering::Relaxed), timed_out.load(Ordering::Relaxed));
    println!("    {woken} parks were woken, {timed_out} timed out");
    ensure!(woken == counted, "unpark says that it woke {counted}, but {woken} were woken");
    Ok(())
}

fn locks() -> Outcome {
    let count = u64::from(rt::boot_info().cpus) + 4;
    let shared = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let mut threads = Vec::new();
    for n in 0..count {
        let shared = Arc::clone(&shared);
        let work = move || {
            for _ in 0..300 {
                let (mutex, condvar) = &*shared;
                let mut guard = mutex.lock();
                // Strictly in turn: every step needs a wake-up of the right thread.
                guard = condvar.wait_while(guard, |turn| *turn % count != n);
                *guard += 1;
                drop(guard);
                condvar.notify_all();
            }
        };
        threads.push(Builder::new().spawn(work).doing("spawn")?);
    }
    for thread in threads {
        thread.join()?;
    }
    let total = *shared.0.lock();
    ensure!(total == count * 300, "{count} threads took {total} turns");
    println!("    {total} turns of {count} threads");
    Ok(())
}
