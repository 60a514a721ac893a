//! Proof that nobody takes entries from a ring whose lease has ended (K-12): the consumer is told `StaleSqConsumer`, and entries that it has
//! not taken yet stay.
//!
//! Today the only consumer of a ring is its own thread, so the kernel is booted with `endlease`, which lets an entry end a lease.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use programs::ensure;
use programs::kit::{self, MS};
use programs::proof::{Doing, Outcome, prove, step};
use programs::rawring::RawRing;
use rt::abi::{OP_END_LEASE, Op, SQ_ENTRIES, Sqe, TransportError};
use rt::thread::Builder;
use rt::{println, syscall, thread, time};

rt::main!(run);

/// How often a lease is ended by another thread, at a random moment.
const TRIES: u32 = 40;
const STALE: i64 = TransportError::StaleSqConsumer as i64;
/// The error for a ring that has no lease to give.
const BUSY: i64 = TransportError::SqBusy as i64;

fn run() -> i64 {
    prove("stale-consumer", || {
        step("a lease that ends in the middle of a queue (K-12)", || {
            for before in [0, 1, 7] {
                for behind in [1, 2, 20] {
                    ends_in_the_middle(before, behind)?;
                }
            }
            Ok(())
        })?;
        step("one that somebody else ends (K-12)", ended_by_another)?;
        step("the rings of those who come after work", || {
            for _ in 0..8 {
                let sleeper = thread::spawn(|| time::sleep(MS).is_ok());
                ensure!(sleeper.join()?, "a thread cannot sleep");
            }
            Ok(())
        })
    })
}

/// What a thread observed whose ring was taken away.
#[derive(Default)]
struct Seen {
    tid: AtomicU32,
    rounds: AtomicU32,
    /// What `cap_enter` returned when the lease had ended; `next` is what it returned the next time.
    said: AtomicI64,
    next: AtomicI64,
    /// By how much the entries that were taken then exceed the completions.
    lost: AtomicI64,
    completions: AtomicU32,
    is_over: AtomicBool,
}

impl Seen {
    fn wait(&self) -> Outcome {
        kit::wait_until("the thread has ended", || Ok(self.is_over.load(Ordering::Acquire)))
    }

    /// Enters the kernel with entries that `push` writes until the lease has ended, and once more. Never returns: without a ring a thread can
    /// do nothing else.
    fn submit(&self, mut push: impl FnMut(&RawRing)) -> ! {
        self.tid.store(thread::id(), Ordering::Release);
        // SAFETY: nothing of rt is under way, entries name no memory, and rt is not used any more.
        let mut ring = unsafe { RawRing::take() };
        let first = ring.sq_head();
        let mut completions = 0;
        loop {
            push(&ring);
            let said = ring.enter(0, 0);
            while ring.pop().is_some() {
                completions += 1;
            }
            self.rounds.fetch_add(1, Ordering::Release);
            if said < 0 {
                self.said.store(said, Ordering::Relaxed);
                break;
            }
        }
        self.next.store(ring.enter(0, 0), Ordering::Relaxed);
        while ring.pop().is_some() {
            completions += 1;
        }
        let taken = ring.sq_head().wrapping_sub(first);
        self.lost.store(i64::from(taken) - i64::from(completions), Ordering::Relaxed);
        self.completions.store(completions, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Release);
        core::mem::forget(ring);
        syscall::exit_thread(0)
    }
}

fn nop() -> Sqe {
    Sqe { op: Op::Nop as u8, ..Sqe::default() }
}

fn end_of(tid: u32) -> Sqe {
    Sqe { op: OP_END_LEASE, arg0: tid.into(), ..Sqe::default() }
}

fn start(f: impl FnOnce(&Seen) + Send + 'static) -> Outcome<Arc<Seen>> {
    let seen = Arc::new(Seen::default());
    let its = Arc::clone(&seen);
    core::mem::forget(Builder::new().spawn(move || f(&its)).doing("spawn")?);
    Ok(seen)
}

/// Submits `before` entries, one that ends the lease, and `behind` more: the latter are never taken.
fn ends_in_the_middle(before: u32, behind: u32) -> Outcome {
    let seen = start(move |seen| {
        seen.submit(|ring| {
            (0..before).for_each(|_| ring.push(nop()));
            ring.push(end_of(0));
            (0..behind).for_each(|_| ring.push(nop()));
        })
    })?;
    seen.wait()?;
    let (said, next) = (seen.said.load(Ordering::Relaxed), seen.next.load(Ordering::Relaxed));
    let (done, lost) = (seen.completions.load(Ordering::Relaxed), seen.lost.load(Ordering::Relaxed));
    ensure!(done == before + 1, "a stale consumer took {done} of {before} + 1 + {behind} entries: {said}");
    ensure!((said, next, lost) == (STALE, BUSY, 0), "said {said}, then {next}; {lost} were lost");
    Ok(())
}

/// The lease of a thread that submits as fast as it can is ended by another thread, at a random moment.
fn ended_by_another() -> Outcome {
    let mut stale = 0;
    for _ in 0..TRIES {
        let seen = start(|seen| seen.submit(|ring| (0..SQ_ENTRIES).for_each(|_| ring.push(nop()))))?;
        kit::wait_until("it submits", || Ok(seen.rounds.load(Ordering::Acquire) > 50))?;
        let target = end_of(seen.tid.load(Ordering::Acquire));
        let ended = thread::spawn(move || {
            // SAFETY: nothing of rt is under way, the entry names no memory, and its completion is taken.
            let mut ring = unsafe { RawRing::take() };
            ring.push(target);
            ring.next_cqe().status
        });
        let status = ended.join()?;
        ensure!(status == 0, "the lease cannot be ended: {status}");
        seen.wait()?;
        let (said, next) = (seen.said.load(Ordering::Relaxed), seen.next.load(Ordering::Relaxed));
        let lost = seen.lost.load(Ordering::Relaxed);
        ensure!(matches!(said, STALE | BUSY) && next == BUSY, "said {said}, then {next}");
        ensure!(lost == 0, "{lost} entries were taken and not completed");
        stale += u32::from(said == STALE);
    }
    println!("    {stale} of {TRIES} in the middle of a queue");
    Ok(())
}
