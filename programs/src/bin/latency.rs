//! Proof that a program cannot keep its CPU from others with one long operation: a thread on the same CPU that sleeps for a
//! millisecond again and again is never late by more than a few slices. Under icount only: a busy host would be counted otherwise.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use programs::ensure;
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::rawring::RawRing;
use rt::abi::{CapId, Op, PAGE_BYTES, SQ_ENTRIES, Sqe, rights};
use rt::sync::Semaphore;
use rt::thread::Builder;
use rt::{Client, Factory, Protection, ThreadControl, caps, println, time, vm};
use schema::messages_capnp::{virtual_memory_map_params, virtual_memory_unmap_params};

rt::main!(run);

/// Longest that the sleeper may be late: two slices and a half.
const LATE_MAX_NS: u64 = 25 * MS;
/// Where this program maps: nothing else is there.
const BASE_VADDR: u64 = 0x20_0000_0000;
const MIB: u64 = 1 << 20;

/// Threads of the process that is looked at.
const SPINNERS: u32 = 1000;

fn run() -> i64 {
    if rt::args::args().next() == Some("spinners") {
        return prove("latency spinners", spinners);
    }
    prove("latency", || {
        println!("latency: {}", programs::text::cpus());
        let sleeper = Sleeper::start()?;
        step("a queue full of maps and unmaps of 100 MiB", || sleeper.is_in_time(full_queue))?;
        step("8,000 regions unmapped in one call", || {
            let space = vm::space()?;
            for page in 0..8000 {
                let at = BASE_VADDR + page * PAGE_BYTES;
                space.map(Some(at), PAGE_BYTES as usize, Protection::READ_WRITE).doing("map")?;
            }
            // SAFETY: nobody uses it.
            sleeper
                .is_in_time(|| unsafe { space.unmap(BASE_VADDR, 8000 * PAGE_BYTES as usize) }.doing("unmap"))
        })?;
        step("a memory object of 64 MiB, mapped 256 times, protected and unmapped in one call each", || {
            let factory: Factory = caps::any()?;
            sleeper.is_in_time(|| {
                let object = factory.memory_object(64 * MIB).doing("make it")?;
                for i in 0..256 {
                    let at = BASE_VADDR + i * 64 * MIB;
                    object.map(Some(at), 0, 64 << 20, true).doing("map")?;
                }
                // SAFETY: nobody uses it.
                unsafe {
                    object.protect(BASE_VADDR, 256 * (64 << 20), false).doing("protect")?;
                    object.unmap(BASE_VADDR, 256 * (64 << 20)).doing("unmap")
                }
            })
        })?;
        step(
            "a server thread ends, by whose process 1,000 calls are unanswered and 3,900 capabilities held",
            || server_ends(&sleeper),
        )?;
        if rt::boot_info().cpus == 1 {
            return Ok(());
        }
        step("a queue full of looks at a process of 1,000 threads that want to run", || {
            let child = kit::again(&["spinners"], &[])?;
            let has_all = || Ok(child.handle.info()?.threads > SPINNERS);
            kit::wait_until("the threads of the child", has_all)?;
            time::sleep(100 * MS)?;
            sleeper.is_in_time(|| looks(child.handle.cap().id()))?;
            child.handle.kill()?;
            child.wait()?;
            Ok(())
        })
    })
}

/// Threads that call, and the calls that each has under way.
const CALLERS: usize = 40;
const CALLS_OF_EACH: usize = 25;
/// Capabilities to receive from the one endpoint.
const COPIES: usize = 3900;

fn server_ends(sleeper: &Sleeper) -> Outcome {
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
    // They are unanswered from here on, and this thread has them.
    for _ in 0..CALLERS * CALLS_OF_EACH {
        endpoint.recv(&mut []).doing("receive")?;
    }
    let mut copies = Vec::new();
    for _ in 0..COPIES {
        copies.push(endpoint.cap().copy(rights::RECV, 0).doing("copy")?);
    }
    let theirs = Arc::clone(&endpoint);
    let receives_once = move || theirs.recv_start(0).map(drop);
    sleeper.is_in_time(|| {
        let server = Builder::new().spawn(receives_once).doing("spawn")?;
        server.join()?.doing("a thread that receives")
    })?;
    (0..CALLERS).for_each(|_| ARE_OVER.release());
    for caller in callers {
        caller.join()??;
    }
    Ok(())
}

/// As many looks as one system call takes.
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

/// Role `spinners`: many threads that wait for each other, and then all want CPU 1.
fn spinners() -> Outcome {
    static GO: Semaphore = Semaphore::new(0);
    for _ in 0..SPINNERS {
        let spin = || -> rt::Result<()> {
            GO.acquire();
            caps::any::<ThreadControl>()?.set_affinity(&[2])?;
            loop {
                core::hint::spin_loop();
            }
        };
        core::mem::forget(Builder::new().stack_bytes(16 << 10).spawn(spin).doing("spawn")?);
    }
    (0..SPINNERS).for_each(|_| GO.release());
    time::sleep(u64::MAX)?;
    Ok(())
}

/// A thread on CPU 0 that sleeps, and remembers how late it was at worst.
struct Sleeper {
    worst_ns: Arc<AtomicU64>,
}

impl Sleeper {
    /// It runs; and so does the calling thread, on the same CPU from now on.
    fn start() -> Outcome<Sleeper> {
        let worst_ns = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&worst_ns);
        let sleep = move || -> rt::Result<()> {
            caps::any::<ThreadControl>()?.set_affinity(&[1])?;
            loop {
                let end = time::now_ns()? + MS;
                time::sleep(MS)?;
                theirs.fetch_max(time::now_ns()? - end, Ordering::Relaxed);
            }
        };
        // It ends with the process.
        core::mem::forget(Builder::new().spawn(sleep).doing("spawn")?);
        caps::any::<ThreadControl>()?.set_affinity(&[1])?;
        Ok(Sleeper { worst_ns })
    }

    /// Fails if the sleeper is late while `run` runs.
    fn is_in_time(&self, run: impl FnOnce() -> Outcome) -> Outcome {
        time::sleep(5 * MS)?;
        self.worst_ns.store(0, Ordering::Relaxed);
        run()?;
        // It has slept again since.
        time::sleep(5 * MS)?;
        let worst = self.worst_ns.load(Ordering::Relaxed);
        println!("    a sleeper was late by {} us at worst", worst / 1000);
        ensure!(worst <= LATE_MAX_NS, "a sleeper on the same CPU was late by {} us", worst / 1000);
        Ok(())
    }
}

/// As many long operations as one system call takes.
fn full_queue() -> Outcome {
    let cap = vm::space()?.cap().id().0;
    let (mut map, mut unmap, mut result) = ([0; 64], [0; 64], [0; 64]);
    let bytes = 100 * MIB;
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
    // SAFETY: the buffers live until all completions are taken, and nobody uses what is mapped.
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
