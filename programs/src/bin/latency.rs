//! Proof that no process can keep a CPU from others by what it owns (K-26): beside long operations and mass kills, threads of the highest band
//! that sleep repeatedly, one on each CPU, are never late by more than 100 us, and the kernel itself counts no interrupts-off span of more than
//! 50,000 instructions. Only under icount, because otherwise a busy host would be measured. Several CPUs must take short turns (`--append
//! turns=5`): what other CPUs execute in their turns is subtracted, and every CPU is always busy.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::rawring::RawRing;
use programs::storms::{self, Watch};
use programs::{contexts, ensure};
use rt::abi::{CapId, Op, PAGE_BYTES, SQ_ENTRIES, Sqe, rights};
use rt::sync::Semaphore;
use rt::thread::Builder;
use rt::{
    Client, Factory, OperationResult, Protection, SchedulingContext, Spec, ThreadControl, caps, println,
    time, vm,
};
use schema::messages_capnp::{virtual_memory_map_params, virtual_memory_unmap_params};

rt::main!(run);

/// Where this program maps memory; nothing else is there.
const BASE_VADDR: u64 = 0x20_0000_0000;
const MIB: u64 = 1 << 20;

/// Threads of the process that is listed.
const SPINNERS: u32 = 1000;

fn run() -> i64 {
    let mut args = rt::args::args();
    match (args.next(), args.next()) {
        (Some("spinners"), _) => prove("latency spinners", spinners),
        (Some("storm"), Some("nothing")) => 0,
        (Some("storm"), Some(name)) => prove("latency storm", || storms::child(name)),
        (Some("crowds"), Some(count)) => prove("latency-crowd", || {
            let count = count.parse().map_err(|_| programs::proof::Failure::new("how many crowds?"))?;
            crowds(&Watch::start()?, count)
        }),
        _ => prove("latency", long_paths),
    }
}

fn long_paths() -> Outcome {
    println!("latency: {}", programs::text::cpus());
    let watch = Watch::start()?;
    step("a queue full of large maps and unmaps", || watch.over(full_queue))?;
    step("thousands of regions unmapped in one call", || {
        let space = vm::space()?;
        let regions = storms::many(8000, 1000) as u64;
        for page in 0..regions {
            let at = BASE_VADDR + page * PAGE_BYTES;
            space.map(Some(at), PAGE_BYTES as usize, Protection::READ_WRITE).doing("map")?;
        }
        // SAFETY: no code uses it.
        watch.over(|| unsafe { space.unmap(BASE_VADDR, (regions * PAGE_BYTES) as usize) }.doing("unmap"))
    })?;
    step(
        "a large memory object, mapped again and again, protected, unmapped in one call each, and dropped",
        || {
            let factory: Factory = caps::any()?;
            let (bytes, maps) = (storms::many(64, 8) << 20, storms::many(256, 32));
            watch.over(|| {
                let object = factory.memory_object(bytes as u64).doing("make it")?;
                for i in 0..maps {
                    let at = BASE_VADDR + (i * bytes) as u64;
                    object.map(Some(at), 0, bytes, true).doing("map")?;
                }
                // SAFETY: no code uses it.
                unsafe {
                    object.protect(BASE_VADDR, maps * bytes, false).doing("protect")?;
                    object.unmap(BASE_VADDR, maps * bytes).doing("unmap")
                }
            })
        },
    )?;
    step(
        "a server thread ends, by whose process 1,000 calls are unanswered and 3,900 capabilities held",
        || server_ends(&watch),
    )?;
    step("1,000 threads are woken by one operation", || storms::wakes(&watch))?;
    step(
        "16 endpoints close, each by a message that waits at the one before, with 496 calls at each",
        || storms::alone(&watch, "chain"),
    )?;
    step("a process ends that has all the memory it may have", || storms::large_end(&watch))?;
    step("120 contexts are promised, changed, and some of them refused", || watch.over(admissions))?;
    step("processes come and go", || storms::alone(&watch, "births"))?;
    step("sleeps of many threads end at one moment", || {
        storms::sleeps_together(&watch, "sleeps", storms::many(6, 2) as u64)
    })?;
    step("the same, set on a context that is used up by then", || {
        storms::sleeps_together(&watch, "spent-sleeps", storms::many(4, 2) as u64)
    })?;
    step("1,000 threads that all want to run are killed", || {
        let child = start_spinners()?;
        watch.over(|| {
            child.handle.kill()?;
            child.wait()?;
            Ok(())
        })
    })?;
    crowds(&watch, storms::many(CROWDS, 1))?;
    if rt::boot_info().cpus == 1 {
        return Ok(());
    }
    step("a queue full of looks at a process of 1,000 threads that want to run", || {
        let child = start_spinners()?;
        watch.over(|| looks(child.handle.cap().id()))?;
        child.handle.kill()?;
        child.wait()?;
        Ok(())
    })
}

/// S-14: an admission test on a full CPU is long, and is done in pieces.
fn admissions() -> Outcome {
    let any: SchedulingContext = caps::any()?;
    // With several CPUs, the sleepers have more of the time.
    let permille = storms::many(800, 700) as u64;
    let held: Result<Vec<_>, _> =
        contexts::crowd(120, 3420, permille).iter().map(|spec| any.create(spec)?.context()).collect();
    let held = held.doing("contexts")?;
    let mut refused = 0;
    for (context, spec) in held.iter().zip(contexts::crowd(120, 3421, permille + 60)) {
        refused += u32::from(context.reconfigure(&spec)?.result != OperationResult::Ok);
        refused +=
            u32::from(any.create(&Spec::new(20 * MS, 30 * MS).cpus([0]))?.result != OperationResult::Ok);
    }
    ensure!(refused >= 120, "20 ms of 30 were promised beside the rest");
    Ok(())
}

fn start_spinners() -> Outcome<rt::Child> {
    let child = kit::again(&["spinners"], &[])?;
    kit::wait_until("the threads of the child", || Ok(child.handle.info()?.threads > SPINNERS))?;
    time::sleep(100 * MS)?;
    Ok(child)
}

/// Processes of 1,001 threads each.
const CROWDS: usize = 5;

/// Many waiting threads: listed, and then killed at once.
fn crowds(watch: &Watch, count: usize) -> Outcome {
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(storms::start("crowd", 1000)?);
    }
    let threads = count * 1001;
    step("a listing of all threads and processes", || {
        watch.over(|| {
            let listed = kit::system()?.threads()?.len();
            ensure!(listed >= threads, "{listed} threads are listed of more than {threads}");
            let crowds = kit::system()?.processes()?.iter().filter(|process| process.threads > 1000).count();
            ensure!(crowds == count, "{crowds} processes of 1,001 threads are listed instead of {count}");
            println!("    {listed} threads");
            Ok(())
        })
    })?;
    step("mass death of them", || {
        watch.over(|| {
            for child in &children {
                child.handle.kill()?;
            }
            for child in &children {
                child.wait()?;
            }
            Ok(())
        })
    })
}

/// Threads that call, and the calls that each has under way.
const CALLERS: usize = 40;
const CALLS_OF_EACH: usize = 25;
/// Capabilities to receive from the one endpoint.
const COPIES: usize = 3900;

fn server_ends(watch: &Watch) -> Outcome {
    static HAVE_CALLED: Semaphore = Semaphore::new(0);
    static ARE_OVER: Semaphore = Semaphore::new(0);
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let endpoint = Arc::clone(&endpoint);
        let call = move || -> Outcome {
            let mut calls = Vec::new();
            for n in 0..CALLS_OF_EACH {
                calls.push(endpoint.call_start(1, [n as u64, 0]).doing("call")?);
            }
            HAVE_CALLED.release();
            ARE_OVER.acquire();
            Ok(())
        };
        callers.push(Builder::new().stack_bytes(16 << 10).spawn(call).doing("spawn")?);
    }
    (0..CALLERS).for_each(|_| HAVE_CALLED.acquire());
    // The calls are unanswered from here on, and this thread has received them.
    for _ in 0..CALLERS * CALLS_OF_EACH {
        endpoint.recv(&mut []).doing("receive")?;
    }
    let mut copies = Vec::new();
    for _ in 0..COPIES {
        copies.push(endpoint.cap().copy(rights::RECV, 0).doing("copy")?);
    }
    let theirs = Arc::clone(&endpoint);
    let receives_once = move || theirs.recv_start(0).map(drop);
    watch.over(|| {
        let server = Builder::new().spawn(receives_once).doing("spawn")?;
        server.join()?.doing("a thread that receives")
    })?;
    (0..CALLERS).for_each(|_| ARE_OVER.release());
    for caller in callers {
        caller.join()??;
    }
    Ok(())
}

/// As many queries as one system call takes.
fn looks(handle: CapId) -> Outcome {
    let mut room = [0; 256];
    let mut failed = 0;
    // SAFETY: the buffer lives until all completions are taken.
    let mut ring = unsafe { RawRing::take() };
    for _ in 0..SQ_ENTRIES {
        ring.push(Sqe {
            op: Op::Call as u8,
            cap: handle.0,
            method: 2,
            result_addr: room.as_mut_ptr() as u64,
            result_len: room.len() as u32,
            ..Sqe::default()
        });
    }
    for _ in 0..SQ_ENTRIES {
        failed += u32::from(ring.next_cqe().status != 0);
    }
    drop(ring);
    ensure!(failed == 0, "{failed} of {SQ_ENTRIES} entries failed");
    Ok(())
}

/// Role `spinners`: many threads that wait for each other, and then all want one CPU.
fn spinners() -> Outcome {
    static GO: Semaphore = Semaphore::new(0);
    for _ in 0..SPINNERS {
        let spin = || -> rt::Result<()> {
            GO.acquire();
            // On the other CPU, if there is one.
            let cpu = if rt::boot_info().cpus > 1 { 2 } else { 1 };
            caps::any::<ThreadControl>()?.set_affinity(&[cpu])?;
            storms::spin()
        };
        core::mem::forget(Builder::new().stack_bytes(16 << 10).spawn(spin).doing("spawn")?);
    }
    (0..SPINNERS).for_each(|_| GO.release());
    time::sleep(u64::MAX)?;
    Ok(())
}

/// As many long operations as one system call takes.
fn full_queue() -> Outcome {
    let cap = vm::space()?.cap().id().0;
    let (mut map, mut unmap, mut result) = ([0; 64], [0; 64], [0; 64]);
    let bytes = storms::many(100, 8) as u64 * MIB;
    let map_bytes = schema::encode::<virtual_memory_map_params::Owned>(&mut map, 0, |mut p| {
        p.set_addr(BASE_VADDR);
        p.set_bytes(bytes);
        p.set_writable(true);
    });
    let unmap_bytes = schema::encode::<virtual_memory_unmap_params::Owned>(&mut unmap, 0, |mut p| {
        p.set_addr(BASE_VADDR);
        p.set_bytes(bytes);
    });
    let (Ok(map_bytes), Ok(unmap_bytes)) = (map_bytes, unmap_bytes) else {
        unreachable!("64 bytes are enough")
    };
    let entry = Sqe {
        op: Op::Call as u8,
        cap,
        result_addr: result.as_mut_ptr() as u64,
        result_len: result.len() as u32,
        ..Sqe::default()
    };
    let mut failed = 0;
    // SAFETY: the buffers live until all completions are taken, and no code uses what is mapped.
    let mut ring = unsafe { RawRing::take() };
    for _ in 0..SQ_ENTRIES / 2 {
        ring.push(Sqe { method: 0, addr: map.as_ptr() as u64, len: map_bytes as u32, ..entry });
        ring.push(Sqe { method: 1, addr: unmap.as_ptr() as u64, len: unmap_bytes as u32, ..entry });
    }
    for _ in 0..SQ_ENTRIES {
        failed += u32::from(ring.next_cqe().status != 0);
    }
    drop(ring);
    ensure!(failed == 0, "{failed} of {SQ_ENTRIES} entries failed");
    Ok(())
}
