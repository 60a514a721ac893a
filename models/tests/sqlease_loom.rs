//! K-12 under loom: the very file of the kernel, with loom's atomics. Never two consumers, and a stale one takes nothing.
//!
//! A consumer that holds a lease touches the head of the queue in a cell that loom watches: two at a time, or one that does not see what
//! the other did, is an error. Every interleaving and every reordering that the memory model allows is explored.
//!
//! Planted flaws show that the models see what they are for: each must make its scenario fail.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use sqlease::{SqError, SqLease, SqOwner};

#[allow(dead_code, unreachable_pub)]
#[path = "../../kernel/core/src/sqlease.rs"]
mod sqlease;

/// Loom's atomics, with room for planted flaws. Loom runs all threads of a model upon the OS thread that started it, so a
/// thread-local flaw is this test's alone.
mod sync {
    pub(crate) use loom::sync::atomic::Ordering;

    use super::{FLAW, Flaw};

    #[derive(Debug)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> AtomicU64 {
            AtomicU64(loom::sync::atomic::AtomicU64::new(value))
        }

        #[track_caller]
        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        #[track_caller]
        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        #[track_caller]
        pub(crate) fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            ok: Ordering,
            no: Ordering,
        ) -> Result<u64, u64> {
            match FLAW.get() {
                Flaw::TornExchange => {
                    let found = self.0.load(Ordering::Acquire);
                    if found != old {
                        return Err(found);
                    }
                    self.0.store(new, Ordering::Release);
                    Ok(old)
                }
                Flaw::RelaxedExchange => self.0.compare_exchange(old, new, Ordering::Relaxed, no),
                _ => self.0.compare_exchange(old, new, ok, no),
            }
        }
    }
}

/// What is wrong in this run of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// The word is looked at and then written, in two steps.
    TornExchange,
    /// Taking and giving back order nothing.
    RelaxedExchange,
    /// Consumers do not verify their lease.
    NoVerify,
    /// A closed ring is used again though its last consumer has not let go.
    Impatient,
}

thread_local! {
    static FLAW: Cell<Flaw> = const { Cell::new(Flaw::None) };
}

/// A ring: its owner, and the head of its queue, which only the consumer may touch.
struct Queue {
    owner: SqOwner,
    head: UnsafeCell<usize>,
    /// The teardown is over; set after [`SqOwner::invalidate`].
    torn_down: AtomicBool,
}

// SAFETY: the head is shared on purpose; loom panics at the first access that is not alone.
unsafe impl Sync for Queue {}

impl Queue {
    fn new() -> Arc<Queue> {
        Arc::new(Queue { owner: SqOwner::new(), head: UnsafeCell::new(0), torn_down: AtomicBool::new(false) })
    }

    /// What a thread does in `cap_enter`.
    fn consume(&self, owner: u32) -> Result<(), SqError> {
        let lease = self.owner.acquire_syscall(owner)?;
        self.consume_with(lease);
        Ok(())
    }

    /// Takes up to two entries, as long as the lease holds.
    fn consume_with(&self, lease: SqLease) {
        assert_ne!(lease.generation(), 0);
        for _ in 0..2 {
            let torn_down = self.torn_down.load(Ordering::Acquire);
            if FLAW.get() != Flaw::NoVerify && self.owner.verify(&lease).is_err() {
                break;
            }
            assert!(!torn_down, "a stale owner consumes");
            self.take();
        }
        self.owner.release(lease);
    }

    fn take(&self) {
        // SAFETY: loom checks the access, and panics if it is not alone.
        self.head.with_mut(|head| unsafe { *head += 1 });
    }
}

/// Two consumers of one ring: one is told to come again, or they come one after the other.
fn two_consumers() {
    let queue = Queue::new();
    let other = queue.clone();
    let rival = thread::spawn(move || other.consume(1));
    let mine = queue.consume(2);
    let theirs = rival.join().unwrap();
    for result in [&mine, &theirs] {
        assert!(matches!(result, Ok(()) | Err(SqError::Busy)));
    }
    let consumed = [mine, theirs].iter().filter(|result| result.is_ok()).count();
    assert!(consumed > 0, "somebody always gets it");
    // SAFETY: loom checks the access; the other thread has ended.
    let head = queue.head.with(|head| unsafe { *head });
    assert_eq!(head, 2 * consumed, "two consumers took the same entry");
}

/// A ring is torn down while its consumer is at work, and then belongs to another.
fn teardown() {
    let queue = Queue::new();
    let lease = queue.owner.acquire_syscall(1).unwrap();
    let other = queue.clone();
    let consumer = thread::spawn(move || other.consume_with(lease));
    queue.owner.invalidate();
    queue.torn_down.store(true, Ordering::Release);
    assert_eq!(queue.owner.acquire_syscall(2), Err(SqError::Closed));
    // The consumer may not have let go yet: then the ring stays closed.
    match queue.owner.reopen() {
        Ok(()) => {
            let lease = queue.owner.acquire_syscall(2).expect("nobody else is there");
            assert!(queue.owner.verify(&lease).is_ok());
            queue.take();
            queue.owner.release(lease);
        }
        Err(SqError::Busy) if FLAW.get() == Flaw::Impatient => queue.take(),
        Err(error) => assert_eq!(error, SqError::Busy),
    }
    consumer.join().unwrap();
}

#[test]
fn there_are_never_two_consumers() {
    loom::model(two_consumers);
}

#[test]
fn a_stale_owner_consumes_nothing() {
    loom::model(teardown);
}

/// The model fails with this flaw, and says so with these words.
fn fails(flaw: Flaw, model: fn(), words: &str) {
    FLAW.set(flaw);
    let outcome = catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    FLAW.set(Flaw::None);
    let payload = outcome.expect_err("the planted flaw was not found");
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or(payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
    assert!(text.contains(words), "the model fails for another reason: {text}");
}

#[test]
fn an_exchange_in_two_steps_is_found() {
    fails(Flaw::TornExchange, two_consumers, "two consumers took the same entry");
}

#[test]
fn exchanges_that_order_nothing_are_found() {
    fails(Flaw::RelaxedExchange, two_consumers, "Causality violation");
}

#[test]
fn a_consumer_that_does_not_verify_is_found() {
    fails(Flaw::NoVerify, teardown, "a stale owner consumes");
}

#[test]
fn a_successor_that_does_not_wait_is_found() {
    fails(Flaw::Impatient, teardown, "Causality violation");
}
