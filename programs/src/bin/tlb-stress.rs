//! Proof that no CPU uses a translation that was removed (K-02).
//!
//! Threads on all CPUs keep translations warm without entering the kernel, while others unmap, remap and protect pages. Every page holds a
//! number that tells its owner and its round, and the next use of a frame writes another: so a stale translation is detected, not only risked.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use programs::machine::{Before, MS, command};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::{ensure, kit};
use rt::abi::rights;
use rt::thread::JoinHandle;
use rt::{
    Client, ExitReason, Factory, MemoryObject, ProcessSpawner, Protection, args, caps, println, thread, time,
    vm,
};

rt::main!(run);

const PAGE: usize = 4096;
/// The page that readers read.
const WATCHED: u64 = 0x20_0000_0000;
/// Where the frame that was there is mapped next.
const ELSEWHERE: u64 = 0x21_0000_0000;
/// Pages of the step with overlapping shootdowns, one for each thread.
const SLOTS: u64 = 0x22_0000_0000;
/// How long a step goes on, and the most and the fewest rounds that it makes.
const STEP_NS: u64 = 1_500 * MS;
const ROUNDS_MAX: u64 = 3000;
const ROUNDS_MIN: u64 = 8;
/// Exit codes of the children.
const SURVIVED: i64 = 42;
const NOTHING_HAPPENED: i64 = 43;
const STALE: i64 = 44;
const UNEXPECTED: i64 = 45;

fn run() -> i64 {
    let mode = args::args().next();
    let outcome = match mode {
        Some("protect") => protected_child(args::number(1, 0).unwrap_or(0) as usize),
        Some("share") => sharing_child(),
        _ => {
            return prove("tlb-stress", || {
                println!("tlb-stress: {} CPUs, {} threads watch", rt::boot_info().cpus, watchers());
                let before = Before::take()?;
                step("a page that was unmapped and mapped anew is seen anew on every CPU (K-02)", remap)?;
                step("shootdowns that overlap are not lost (K-02)", overlap)?;
                step("read-only takes effect on every CPU (K-02)", protect)?;
                step("frames of a shared object that another process gets (K-02)", share)?;
                println!("    {} shootdowns so far", before.counter("tlb_shootdowns")?);
                Ok(())
            });
        }
    };
    match outcome {
        Ok(code) => code,
        Err(Failure(why)) => {
            println!("tlb-stress {}: {why}", mode.unwrap_or(""));
            UNEXPECTED
        }
    }
}

/// The number of watching threads: one on each other CPU.
fn watchers() -> usize {
    (rt::boot_info().cpus as usize - 1).max(1)
}

/// Waits, without giving up the CPU where every thread has its own, so that its TLB entries stay.
fn relax() {
    if rt::boot_info().cpus == 1 {
        thread::yield_now();
    } else {
        for _ in 0..16 {
            core::hint::spin_loop();
        }
    }
}

fn read(address: u64) -> u64 {
    // SAFETY: the protocol of each step ensures that the page is mapped while a thread reads it.
    unsafe { (address as *const u64).read_volatile() }
}

fn write(address: u64, value: u64) {
    // SAFETY: as `read`.
    unsafe { (address as *mut u64).write_volatile(value) }
}

fn map_at(address: u64) -> Outcome {
    vm::space()?.map(Some(address), PAGE, Protection::READ_WRITE).doing("map")?;
    Ok(())
}

fn unmap(address: u64) -> Outcome {
    // SAFETY: by the protocol of each step, no thread reads it.
    unsafe { vm::unmap(address, PAGE) }.doing("unmap")
}

/// Threads that read one page for as long as they are told to.
struct Watched {
    /// Even: read and compare; odd: hold. The next command is given when all threads have acknowledged.
    command: AtomicU64,
    expected: AtomicU64,
    acks: Vec<AtomicU64>,
    /// The thread that read a wrong value (plus one), and then that value.
    wrong: AtomicU64,
    wrong_value: AtomicU64,
}

const END: u64 = u64::MAX;

impl Watched {
    fn start(count: usize) -> Outcome<(Arc<Watched>, Vec<JoinHandle<u64>>)> {
        let watched = Arc::new(Watched {
            command: AtomicU64::new(1),
            expected: AtomicU64::new(0),
            acks: (0..count).map(|_| AtomicU64::new(0)).collect(),
            wrong: AtomicU64::new(0),
            wrong_value: AtomicU64::new(0),
        });
        let mut threads = Vec::new();
        for me in 0..count {
            let watched = Arc::clone(&watched);
            threads.push(thread::Builder::new().spawn(move || watched.watch(me)).doing("spawn")?);
        }
        Ok((watched, threads))
    }

    fn watch(&self, me: usize) -> u64 {
        let mut reads = 0;
        loop {
            let command = self.command.load(Ordering::Acquire);
            if command == END {
                return reads;
            }
            if command.is_multiple_of(2) {
                let value = read(WATCHED);
                reads += 1;
                // A command that has changed meanwhile does no harm: the page is unmapped only after all threads have acknowledged the hold.
                if value != self.expected.load(Ordering::Acquire)
                    && self.command.load(Ordering::Acquire) == command
                {
                    self.wrong_value.store(value, Ordering::Relaxed);
                    self.wrong.store(me as u64 + 1, Ordering::Release);
                }
            }
            self.acks[me].store(command, Ordering::Release);
            relax();
        }
    }

    /// Gives a command and waits until all threads have acknowledged it.
    fn tell(&self, command: u64) -> Outcome {
        self.command.store(command, Ordering::Release);
        for ack in &self.acks {
            while ack.load(Ordering::Acquire) != command {
                relax();
            }
        }
        let wrong = self.wrong.load(Ordering::Acquire);
        ensure!(
            wrong == 0,
            "stale translation: thread {} reads {:#x} instead of {:#x}",
            wrong - 1,
            self.wrong_value.load(Ordering::Relaxed),
            self.expected.load(Ordering::Relaxed)
        );
        Ok(())
    }

    fn end(&self, threads: Vec<JoinHandle<u64>>) -> Outcome<u64> {
        self.command.store(END, Ordering::Release);
        let mut reads = 0;
        for thread in threads {
            reads += thread.join()?;
        }
        Ok(reads)
    }
}

/// Whether a step has made enough rounds.
fn is_enough(round: u64, start_ns: u64) -> Outcome<bool> {
    let is_late = time::now_ns().doing("now")? - start_ns > STEP_NS;
    Ok(round >= ROUNDS_MAX || round >= ROUNDS_MIN && is_late)
}

fn remap() -> Outcome {
    map_at(WATCHED)?;
    let (watched, threads) = Watched::start(watchers())?;
    let rounds = remap_rounds(&watched);
    let reads = watched.end(threads)?;
    unmap(WATCHED)?;
    println!("    {} rounds, {reads} reads by {} threads", rounds?, watchers());
    Ok(())
}

fn remap_rounds(watched: &Watched) -> Outcome<u64> {
    let start = time::now_ns().doing("now")?;
    let mut round = 0;
    while !is_enough(round, start)? {
        round += 1;
        let value = 0xaaaa_0000_0000 + round;
        write(WATCHED, value);
        watched.expected.store(value, Ordering::Release);
        watched.tell(2 * round)?;
        watched.tell(2 * round + 1)?;
        // The old frame serves another page, and another frame serves this one.
        unmap(WATCHED)?;
        map_at(ELSEWHERE)?;
        write(ELSEWHERE, 0xdead_0000_0000 + round);
        map_at(WATCHED)?;
        let fresh = read(WATCHED);
        ensure!(fresh == 0, "a new page begins with {fresh:#x} instead of zeros");
        write(WATCHED, value + 0x1_0000_0000);
        watched.expected.store(value + 0x1_0000_0000, Ordering::Release);
        watched.tell(2 * round + 2)?;
        watched.tell(2 * round + 3)?;
        unmap(ELSEWHERE)?;
        round += 1;
    }
    Ok(round / 2)
}

/// One page of the second step; its state is `3k` not mapped, `3k + 1` ready, `3k + 2` looked at.
struct Slot {
    state: AtomicU64,
}

fn tag(owner: usize, round: u64) -> u64 {
    (owner as u64 + 1) << 48 | round
}

fn overlap() -> Outcome {
    let count = watchers() + 1;
    let slots: Arc<Vec<Slot>> = Arc::new((0..count).map(|_| Slot { state: AtomicU64::new(0) }).collect());
    let stop = Arc::new(AtomicU64::new(u64::MAX));
    let mut threads = Vec::new();
    for me in 0..count {
        let (slots, stop) = (Arc::clone(&slots), Arc::clone(&stop));
        let work = move || exchange(me, &slots, &stop).map_err(|Failure(why)| why);
        threads.push(thread::Builder::new().spawn(work).doing("spawn")?);
    }
    let start = time::now_ns().doing("now")?;
    loop {
        let least = slots.iter().map(|slot| slot.state.load(Ordering::Relaxed) / 3).min().unwrap_or(0);
        if is_enough(least, start)? || threads.iter().any(JoinHandle::is_finished) {
            break;
        }
        time::sleep(5 * MS).doing("sleep")?;
    }
    let most = slots.iter().map(|slot| slot.state.load(Ordering::Relaxed) / 3).max().unwrap_or(0);
    stop.store(most + 2, Ordering::Release);
    for thread in threads {
        thread.join()?.map_err(Failure)?;
    }
    println!("    {count} threads made {} rounds each, all at once", most + 2);
    Ok(())
}

/// Maps and unmaps its own page repeatedly, and reads the neighbour's page each time that is mapped.
fn exchange(me: usize, slots: &[Slot], stop: &AtomicU64) -> Outcome {
    let left = (me + slots.len() - 1) % slots.len();
    let (mine, theirs) = (SLOTS + (me * 2 * PAGE) as u64, SLOTS + (left * 2 * PAGE) as u64);
    loop {
        let limit = stop.load(Ordering::Acquire);
        let state = slots[me].state.load(Ordering::Acquire);
        let round = state / 3;
        if state.is_multiple_of(3) && round < limit {
            map_at(mine)?;
            write(mine, tag(me, round));
            slots[me].state.store(state + 1, Ordering::Release);
        } else if state % 3 == 2 {
            unmap(mine)?;
            slots[me].state.store(state + 1, Ordering::Release);
        }
        let state = slots[left].state.load(Ordering::Acquire);
        if state % 3 == 1 {
            let (value, right) = (read(theirs), tag(left, state / 3));
            if value != right {
                // A thread that waits for this page must not wait for ever.
                stop.store(0, Ordering::Release);
                slots[left].state.store(state + 1, Ordering::Release);
            }
            ensure!(
                value == right,
                "stale translation: thread {me} reads {value:#x} of thread {left} instead of {right:#x}"
            );
            slots[left].state.store(state + 1, Ordering::Release);
        }
        let is_done = |slot: &Slot| {
            let state = slot.state.load(Ordering::Acquire);
            state.is_multiple_of(3) && state / 3 >= limit
        };
        if is_done(&slots[me]) && is_done(&slots[left]) || limit == 0 {
            return Ok(());
        }
        relax();
    }
}

// ---- protection -----------------------------------------------------------------------------------------------------------

fn protect() -> Outcome {
    let spawner: ProcessSpawner = caps::any().doing("process_spawner")?;
    // On many CPUs only the first, the last, and two between, because each is a process with a thread on every CPU.
    let count = watchers();
    let some = [0, count / 3, 2 * count / 3, count - 1];
    for writer in (0..count).filter(|writer| count <= 4 || some.contains(writer)) {
        let number = alloc::format!("{writer}");
        let child = command("tlb-stress", "tlb-protect").arg("protect").arg(&number).spawn(&spawner);
        let exit = child.doing("start a child")?.wait().doing("wait")?;
        ensure!(
            exit.code != SURVIVED,
            "stale translation: writer {writer} of {} wrote to a page that is read-only",
            watchers()
        );
        ensure!(exit.reason == ExitReason::Faulted, "the child with writer {writer} ended: {exit}");
    }
    println!("    warm writers on {count} CPUs were stopped by a fault");
    Ok(())
}

/// Commands of the writers.
const WARM: u64 = 0;
const HOLD: u64 = 1;
const AGAIN: u64 = 2;
const STRIKE: u64 = 3;
const QUIT: u64 = 4;

/// Threads that write to a page, each its own word, when they are told to.
struct Writers {
    order: AtomicU64,
    acks: Vec<AtomicU64>,
    survived: AtomicU32,
}

impl Writers {
    fn work(&self, me: usize, striker: usize) {
        let word = WATCHED + 8 * me as u64;
        loop {
            let now = self.order.load(Ordering::Acquire);
            match now {
                WARM | AGAIN => write(word, now + 1),
                STRIKE if me == striker => {
                    write(word, 0xbad);
                    self.survived.store(1, Ordering::Release);
                }
                QUIT => return,
                _ => {}
            }
            self.acks[me].store(now, Ordering::Release);
            relax();
        }
    }

    fn tell(&self, order: u64) {
        self.order.store(order, Ordering::Release);
        while self.acks.iter().any(|ack| ack.load(Ordering::Acquire) != order) {
            relax();
        }
    }
}

fn change(protection: Protection) -> Outcome {
    // SAFETY: writers hold, or must fault, which is what the proof checks.
    unsafe { vm::space()?.protect(WATCHED, PAGE, protection) }.doing("protect")
}

/// Makes a page read-only under writers whose translations are warm, and lets one of them write.
fn protected_child(striker: usize) -> Outcome<i64> {
    let count = watchers();
    map_at(WATCHED)?;
    let acks = (0..count).map(|_| AtomicU64::new(u64::MAX)).collect();
    let writers = Arc::new(Writers { order: AtomicU64::new(WARM), acks, survived: AtomicU32::new(0) });
    let mut threads = Vec::new();
    for me in 0..count {
        let writers = Arc::clone(&writers);
        threads.push(thread::Builder::new().spawn(move || writers.work(me, striker)).doing("spawn")?);
    }
    let all_wrote = |value: u64| (0..count).all(|at| read(WATCHED + 8 * at as u64) == value);
    writers.tell(WARM);
    writers.tell(HOLD);
    change(Protection::READ)?;
    ensure!(all_wrote(WARM + 1), "a warm write is missing");
    change(Protection::READ_WRITE)?;
    writers.tell(AGAIN);
    writers.tell(HOLD);
    ensure!(all_wrote(AGAIN + 1), "a second write is missing");
    change(Protection::READ)?;
    writers.order.store(STRIKE, Ordering::Release);
    let end = time::now_ns().doing("now")? + 5_000 * MS;
    let survived = || writers.survived.load(Ordering::Acquire) != 0;
    while !survived() && time::now_ns().doing("now")? < end {
        relax();
    }
    // If this is reached, the write was not stopped.
    writers.order.store(QUIT, Ordering::Release);
    for thread in threads {
        thread.join()?;
    }
    Ok(if survived() { SURVIVED } else { NOTHING_HAPPENED })
}

// ---- shared objects -------------------------------------------------------------------------------------------------------

/// Words of the page by which parent and child synchronise: how far each is.
const CHILD: u64 = 0;
const PARENT: u64 = 8;
/// What the objects hold, and what the parent writes into the frames that it gets.
const FIRST: u64 = 0x1111_1111;
const SECOND: u64 = 0x2222_2222;
const SECRET: u64 = 0x005e_c2e7;
const SHARE_ROUNDS: u64 = 4;

fn wait_for(control: u64, word: u64, value: u64) -> Outcome {
    let mut patience = kit::Patience::default();
    while read(control + word) < value {
        ensure!(patience.is_left(), "the other process does not come to {value}");
        time::sleep(MS).doing("sleep")?;
    }
    Ok(())
}

fn object(factory: &Factory, value: u64) -> Outcome<(MemoryObject, u64)> {
    let object = factory.memory_object(PAGE as u64).doing("make a memory object")?;
    let at = object.map(None, 0, PAGE, true).doing("map it")?;
    write(at, value);
    Ok((object, at))
}

fn share() -> Outcome {
    let (factory, spawner): (Factory, ProcessSpawner) = (caps::any()?, caps::any()?);
    for _ in 0..SHARE_ROUNDS {
        let (control, control_at) = object(&factory, 0)?;
        let (first, first_at) = object(&factory, FIRST)?;
        let (second, second_at) = object(&factory, SECOND)?;
        let child = command("tlb-stress", "tlb-share")
            .arg("share")
            .grant("control", control.cap(), rights::CALL | rights::WRITE, 0)
            .grant("first", first.cap(), rights::CALL, 0)
            .grant("second", second.cap(), rights::CALL, 0)
            .spawn(&spawner)
            .doing("start a child")?;
        wait_for(control_at, CHILD, 1)?;
        // The child has released the first object; without this process's mapping and capability it is gone, and its frame is free.
        // SAFETY: no code uses it any more.
        unsafe { first.unmap(first_at, PAGE) }.doing("unmap")?;
        first.into_cap().release().doing("release")?;
        let bytes = 16 * PAGE;
        let taken = vm::map(bytes).doing("map")?.as_ptr() as u64;
        (0..16).for_each(|page| write(taken + page * PAGE as u64, SECRET));
        write(control_at + PARENT, 1);
        let exit = child.wait().doing("wait")?;
        // SAFETY: the child has ended, and no other code uses them.
        unsafe {
            vm::unmap(taken, bytes)?;
            second.unmap(second_at, PAGE)?;
            control.unmap(control_at, PAGE)?;
        }
        ensure!(exit.code != STALE, "stale translation: a child sees the memory of its parent");
        ensure!(exit.is_success(), "the child ended: {exit}");
    }
    println!("    {SHARE_ROUNDS} times a frame went from an object to another process");
    Ok(())
}

fn sharing_child() -> Outcome<i64> {
    let control: MemoryObject = caps::get("control")?;
    let (first, second): (MemoryObject, MemoryObject) = (caps::get("first")?, caps::get("second")?);
    let control_at = control.map(None, 0, PAGE, true).doing("map")?;
    first.map(Some(WATCHED), 0, PAGE, false).doing("map")?;
    let (watched, threads) = Watched::start(watchers())?;
    watched.expected.store(FIRST, Ordering::Release);
    watched.tell(2)?;
    watched.tell(3)?;
    // SAFETY: readers hold.
    unsafe { first.unmap(WATCHED, PAGE) }.doing("unmap")?;
    // Borrowed from the CapSet, and released nevertheless.
    rt::Cap::owned(first.into_cap().into_id()).release().doing("release")?;
    write(control_at + CHILD, 1);
    wait_for(control_at, PARENT, 1)?;
    second.map(Some(WATCHED), 0, PAGE, false).doing("map")?;
    watched.expected.store(SECOND, Ordering::Release);
    let seen = watched.tell(4).is_ok() && watched.tell(5).is_ok();
    watched.end(threads)?;
    Ok(if seen { 0 } else { STALE })
}
