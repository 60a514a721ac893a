//! Proof of the kernel's foundations: system calls, ring, console, clock, threads, preemption, IPC (K-01, on any number of
//! CPUs).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, refused};
use programs::proof::{Doing, Outcome, prove, step};
use rt::abi::{Op, Sqe, TransportError, rights};
use rt::{
    Answer, Client, Console, Endpoint, Error, Factory, Pending, caps, println, ring, syscall, thread, time,
};

rt::main!(run);

// In the program's own thread-local data, of which each thread begins with its own copy.
rt::thread_word!(tally = 0x5eed_5eed_5eed);

const MS: u64 = 1_000_000;
/// Within this time every spinning thread has had its turn.
const SPIN_LIMIT_NS: u64 = 10_000 * MS;
/// Round trips of the IPC step.
const CALLS: u64 = 1000;
/// Reads of the console that may wait: of one process, and in all.
const READS: usize = 4;
const READS_IN_ALL: usize = 64;

fn run() -> i64 {
    match rt::args::args().next() {
        Some("reads") => return prove("smoke reads", || reads(&caps::any()?)),
        Some("crowd") => return prove("smoke crowd", crowd),
        Some("warden") => return prove("smoke warden", warden),
        Some("holder") => return prove("smoke holder", holder),
        _ => {}
    }
    prove("smoke", || {
        println!("smoke: pid {}, thread {}, {}", rt::boot_info().pid, thread::id(), programs::text::cpus());
        step("two system calls and no third (K-10)", system_calls)?;
        step("ring entries complete in order (K-11)", ring_nops)?;
        step("the clock runs, sleeps last long enough (K-13)", clock)?;
        step("threads run and are joined (K-08)", threads)?;
        step("a spinning thread is preempted", preemption)?;
        step("calls between threads (K-15)", calls)?;
        step("the console is read by those who may, and nobody takes all places (K-21)", console)
    })
}

fn console() -> Outcome {
    let console: Console = caps::any()?;
    let writes_only = Console::of(console.cap().copy(rights::CALL, 0)?);
    writes_only.write(b"    written without the right to read\n")?;
    refused("a read without the right", one_read(&writes_only), TransportError::NotPermitted)?;
    let reads_only = Console::of(console.cap().copy(rights::RECV, 0)?);
    refused("a write without the right", reads_only.write(b"never seen"), TransportError::NotPermitted)?;
    reads(&reads_only)?;
    // Other processes have places of their own, whatever this process uses.
    let own: Vec<Pending<usize>> = (0..READS).map_while(|_| console.read_start(1).ok()).collect();
    kit::succeeds("a child that reads", &kit::again(&["reads"], &[])?)?;
    ensure!(own.len() == READS, "only {} reads wait", own.len());
    Ok(())
}

/// A read of one byte that does not wait for long.
fn one_read(console: &Console) -> rt::Result<Option<usize>> {
    console.read_start(1)?.wait_timeout(MS).transpose()
}

/// As many reads as a process may have can wait, but not one more. Also the role `reads`.
fn reads(console: &Console) -> Outcome {
    for round in 0..3 {
        let mut all = Vec::new();
        for n in 0..READS {
            let mut read = console.read_start(1).doing("read")?;
            let end = read.poll();
            ensure!(end.is_none(), "round {round}: read {n} ends at once: {end:?}");
            all.push(read);
        }
        refused("one read more", one_read(console), TransportError::NoSpace)?;
        drop(all);
    }
    Ok(())
}

/// Role `crowd`: leaves processes behind whose reads take all places, for the shell to cope with.
fn crowd() -> Outcome {
    let door: Endpoint = caps::any::<Factory>()?.endpoint()?;
    kit::again(&["warden"], &[("door", door.cap(), rights::CALL | rights::GRANT, 0)])?;
    let call = door.recv(&mut [])?;
    println!("smoke: {} reads wait", call.message.words()[0]);
    Ok(door.reply(call.token, Answer::Words([0; 2]))?)
}

/// Role `warden`: the parent of the holders, which ends them after a while.
fn warden() -> Outcome {
    let outside: Endpoint = caps::get("door")?;
    let door: Endpoint = caps::any::<Factory>()?.endpoint()?;
    let mut holders = Vec::new();
    for _ in 0..READS_IN_ALL / READS {
        holders.push(kit::again(&["holder"], &[("door", door.cap(), rights::CALL, 0)])?);
        let call = door.recv(&mut [])?;
        door.reply(call.token, Answer::Words([0; 2]))?;
    }
    let console: Console = caps::any()?;
    refused("a read when all places are taken", one_read(&console), TransportError::NoSpace)?;
    outside.call(0, [READS_IN_ALL as u64, 0])?;
    time::sleep(300 * MS)?;
    for holder in holders {
        holder.handle.kill()?;
        holder.wait()?;
    }
    println!("smoke: the crowd is gone");
    Ok(())
}

/// Role `holder`: reads until it is ended.
fn holder() -> Outcome {
    let console: Console = caps::any()?;
    let reads: Vec<Pending<usize>> = (0..READS).map_while(|_| console.read_start(1).ok()).collect();
    ensure!(reads.len() == READS, "only {} reads wait", reads.len());
    caps::get::<Endpoint>("door")?.call(0, [0; 2])?;
    Ok(time::sleep(60_000 * MS)?)
}

fn system_calls() -> Outcome {
    for number in [2, 3, 60, u64::MAX] {
        // SAFETY: the queue is empty, and a number that does not exist does nothing.
        let result = unsafe { syscall::raw(number, 0, 0) };
        ensure!(result == TransportError::UnknownSyscall as i64, "system call {number} returned {result}");
    }
    // SAFETY: the queue is empty.
    let there = unsafe { syscall::cap_enter(0, 0) };
    ensure!(there == 0, "an empty cap_enter says that {there} completions are there");
    let before = time::now_ns().doing("now")?;
    // SAFETY: the queue is empty.
    let there = unsafe { syscall::cap_enter(1, 2 * MS) };
    let took = time::now_ns().doing("now")? - before;
    ensure!(there == 0 && took >= 2 * MS, "a wait of 2 ms for nothing took {took} ns and found {there}");
    Ok(())
}

fn ring_nops() -> Outcome {
    let nop = Sqe { op: Op::Nop as u8, ..Sqe::default() };
    for round in 0..10 {
        let mut tokens = alloc::vec::Vec::new();
        for _ in 0..ring::OPS_MAX {
            // SAFETY: names no memory.
            tokens.push(unsafe { ring::queue(nop) }.map_err(Error::from)?);
        }
        // SAFETY: names no memory.
        let more = unsafe { ring::queue(nop) };
        ensure!(more.is_err(), "more operations than slots in round {round}");
        // The last one first: the completions of the others are kept meanwhile.
        while let Some(token) = tokens.pop() {
            let cqe = ring::wait(token);
            ensure!(cqe.status == 0, "a NOP completed with {}", cqe.status);
        }
    }
    ensure!(ring::strays() == 0, "{} completions were nobody's", ring::strays());
    // SAFETY: names no memory.
    let unknown = unsafe { ring::run(Sqe { op: 200, ..Sqe::default() }) };
    ensure!(
        unknown.status == TransportError::UnknownOp as i32,
        "operation 200 completed with {}",
        unknown.status
    );
    Ok(())
}

fn clock() -> Outcome {
    let mut last = time::now_ns().doing("now")?;
    for _ in 0..100 {
        let now = time::now_ns().doing("now")?;
        ensure!(now >= last, "the clock went back from {last} to {now}");
        last = now;
    }
    for ns in [1, MS / 2, 3 * MS] {
        let before = time::now_ns().doing("now")?;
        time::sleep(ns).doing("sleep")?;
        let took = time::now_ns().doing("now")? - before;
        ensure!(took >= ns, "a sleep of {ns} ns took {took}");
        println!("    sleep of {ns} ns took {took} ns");
    }
    Ok(())
}

fn threads() -> Outcome {
    let sum = Arc::new(AtomicU64::new(0));
    let mut handles = alloc::vec::Vec::new();
    for n in 1..=8 {
        let sum = Arc::clone(&sum);
        let work = move || {
            let fresh = tally::get();
            tally::set(n);
            sum.fetch_add(n, Ordering::Relaxed);
            thread::yield_now();
            (fresh, tally::get() == n)
        };
        handles.push(thread::Builder::new().spawn(work).doing("spawn")?);
    }
    for handle in handles {
        let (fresh, is_kept) = handle.join()?;
        ensure!(fresh == 0x5eed_5eed_5eed, "a thread's copy of thread-local data began as {fresh:#x} (K-09)");
        ensure!(is_kept, "a thread's copy of thread-local data was changed by another (K-09)");
    }
    ensure!(tally::get() == 0x5eed_5eed_5eed, "the first thread's copy was changed by another (K-09)");
    let sum = sum.load(Ordering::Relaxed);
    ensure!(sum == 36, "eight threads added up to {sum}, not 36");
    Ok(())
}

/// More spinning threads than CPUs: each gets its turn, and so does this thread.
fn preemption() -> Outcome {
    let is_over = Arc::new(AtomicBool::new(false));
    let began = Arc::new(AtomicU64::new(0));
    let mut spinners = alloc::vec::Vec::new();
    for _ in 0..=rt::boot_info().cpus {
        let (is_over, began) = (Arc::clone(&is_over), Arc::clone(&began));
        let spin = move || {
            began.fetch_add(1, Ordering::Relaxed);
            while !is_over.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        };
        spinners.push(thread::Builder::new().spawn(spin).doing("spawn")?);
    }
    let before = time::now_ns().doing("now")?;
    time::sleep(20 * MS).doing("sleep")?;
    let took = time::now_ns().doing("now")? - before;
    // A busy host may delay some CPUs for long; a thread that is never preempted delays its neighbour for ever.
    let limit = before + SPIN_LIMIT_NS;
    while began.load(Ordering::Relaxed) < spinners.len() as u64 && time::now_ns().doing("now")? < limit {
        time::sleep(MS).doing("sleep")?;
    }
    let began = began.load(Ordering::Relaxed);
    is_over.store(true, Ordering::Relaxed);
    ensure!(began == spinners.len() as u64, "only {began} of {} spinning threads ever ran", spinners.len());
    for spinner in spinners {
        spinner.join()?;
    }
    println!(
        "    a sleep of 20 ms beside {} spinning threads took {} ms",
        rt::boot_info().cpus + 1,
        took / MS
    );
    Ok(())
}

fn calls() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = Arc::new(factory.endpoint().doing("make an endpoint")?);
    let theirs = Arc::clone(&endpoint);
    let serve = move || {
        theirs.serve(|call| {
            let [first, second] = call.message.words();
            if call.method == 1 { Continue([first + 1, second]) } else { Break([0; 2]) }
        })
    };
    let server = thread::Builder::new().spawn(serve).doing("spawn")?;
    let before = time::now_ns().doing("now")?;
    for n in 0..CALLS {
        let words = endpoint.call(1, [n, !n]).doing("call")?;
        ensure!(words == [n + 1, !n], "call {n} was answered with {words:x?}");
    }
    let took = time::now_ns().doing("now")? - before;
    println!("    {CALLS} calls took {} us", took / 1000);
    endpoint.call(2, [0; 2]).doing("the last call")?;
    server.join()?.doing("serve")
}
