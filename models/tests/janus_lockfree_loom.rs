//! The lock-free parts of janus under loom: the very files of the runtime, with loom's atomics.
//!
//! Every interleaving and every reordering that the memory model allows is explored, but for the models that say they are
//! bounded: those explore all executions with at most that many preemptions. Loom takes `SeqCst` accesses for
//! acquire/release, so the fences must be explicit ones, and are.
//!
//! Planted flaws show that the models see what they are for: without its fences, without its release stores, or without
//! the second look at the queues, the same scenario must fail.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed as Tallied};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;

use atomics::{AtomicU64, Ordering, fence};
use deque::{Deque, Steal};
use idle::Idle;
use ring::Ring;

#[allow(dead_code)]
#[path = "../../janus/src/deque.rs"]
mod deque;
#[allow(dead_code)]
#[path = "../../janus/src/idle.rs"]
mod idle;
#[allow(dead_code)]
#[path = "../../janus/src/ring.rs"]
mod ring;

/// Loom's atomics, with room for planted flaws. Loom runs all threads of a model upon the OS thread that started it, so
/// a thread-local flaw is this test's alone.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicPtr, Ordering};

    use super::{FLAW, Flaw};

    pub(crate) fn fence(order: Ordering) {
        if FLAW.get() != Flaw::NoFences {
            loom::sync::atomic::fence(order);
        }
    }

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
            let order = if FLAW.get() == Flaw::RelaxedStores { Ordering::Relaxed } else { order };
            self.0.store(value, order);
        }

        #[track_caller]
        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }

        #[track_caller]
        pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(value, order)
        }

        #[track_caller]
        pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_and(value, order)
        }

        #[track_caller]
        pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_or(value, order)
        }

        #[track_caller]
        pub(crate) fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            ok: Ordering,
            no: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(old, new, ok, no)
        }

        #[track_caller]
        pub(crate) fn compare_exchange_weak(
            &self,
            old: u64,
            new: u64,
            ok: Ordering,
            no: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange_weak(old, new, ok, no)
        }
    }
}

/// What is wrong in this run of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// All fences of the files are left out.
    NoFences,
    /// All plain stores of counters are relaxed.
    RelaxedStores,
    /// Workers sleep without a second look at the queues.
    NoRecheck,
    /// The last searcher does not pass the search on.
    NoHandover,
}

thread_local! {
    static FLAW: Cell<Flaw> = const { Cell::new(Flaw::None) };
}

fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// The model fails with this flaw.
fn fails(flaw: Flaw, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    FLAW.set(flaw);
    let outcome = catch_unwind(AssertUnwindSafe(|| check(preemptions, model)));
    FLAW.set(Flaw::None);
    assert!(outcome.is_err(), "the planted flaw was not found");
}

/// Items, each with a payload whose accesses loom checks for races, and the number of times it was taken.
struct Items(Vec<(UnsafeCell<usize>, Tally)>);

// SAFETY: the payloads are shared on purpose; loom panics at the first access that is not alone.
unsafe impl Sync for Items {}

impl Items {
    fn new(count: usize) -> Items {
        Items((0..count).map(|_| (UnsafeCell::new(0), Tally::new(0))).collect())
    }

    /// Item `index`, freshly written by its producer.
    fn make(&self, index: usize) -> NonNull<(UnsafeCell<usize>, Tally)> {
        // SAFETY: loom checks the access, and panics if it is not alone.
        self.0[index].0.with_mut(|payload| unsafe { *payload = index + 1 });
        NonNull::from(&self.0[index])
    }

    /// The taker is alone with it, and sees what the producer wrote.
    fn take(&self, item: NonNull<(UnsafeCell<usize>, Tally)>) {
        // SAFETY: the address is that of an element of `self`, shared like all of them.
        let (payload, taken) = unsafe { item.as_ref() };
        assert_eq!(taken.fetch_add(1, Tallied), 0, "taken twice");
        // SAFETY: loom checks the access, and panics if it is not alone.
        payload.with_mut(|payload| unsafe {
            assert!(*payload > 0, "taken unwritten");
            *payload += 100;
        });
    }

    fn all_taken(&self) {
        assert!(self.0.iter().all(|(_, taken)| taken.load(Tallied) == 1), "an item was lost");
    }
}

type Item = (UnsafeCell<usize>, Tally);

/// The owner pushes `pushes` items, popping one whenever the deque is full; then pops `pops`. Meanwhile `thieves` threads
/// try `tries` times each. What is left is taken at the end.
fn deque_model(capacity: usize, pushes: usize, pops: usize, thieves: usize, tries: usize) {
    let shared = Arc::new((Deque::<Item>::new(capacity), Items::new(pushes)));
    let thieves: Vec<_> = (0..thieves)
        .map(|_| {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..tries {
                    if let Steal::Taken(item) = shared.0.steal() {
                        shared.1.take(item);
                    }
                }
            })
        })
        .collect();
    let (deque, items) = &*shared;
    for index in 0..pushes {
        let mut item = items.make(index);
        // SAFETY: only this thread pushes and pops.
        while let Err(full) = unsafe { deque.push(item) } {
            // SAFETY: as above.
            if let Some(popped) = unsafe { deque.pop() } {
                items.take(popped);
            }
            item = full;
        }
    }
    for _ in 0..pops {
        // SAFETY: as above.
        if let Some(popped) = unsafe { deque.pop() } {
            items.take(popped);
        }
    }
    for thief in thieves {
        thief.join().unwrap();
    }
    // SAFETY: as above.
    while let Some(popped) = unsafe { deque.pop() } {
        items.take(popped);
    }
    items.all_taken();
    assert!(deque.is_empty());
    assert!(matches!(deque.steal(), Steal::Empty));
}

#[test]
fn deque_owner_against_thief() {
    check(None, || deque_model(4, 3, 2, 1, 2));
}

/// At most two preemptions.
#[test]
fn deque_owner_against_two_thieves() {
    check(Some(2), || deque_model(4, 3, 2, 2, 1));
}

/// At most four preemptions.
#[test]
fn deque_last_item() {
    check(Some(4), || deque_model(2, 1, 1, 2, 1));
}

/// At most three preemptions.
#[test]
fn deque_wraps() {
    check(Some(3), || deque_model(2, 4, 1, 1, 2));
}

/// At most two preemptions.
#[test]
fn deque_wraps_with_two_thieves() {
    check(Some(2), || deque_model(2, 4, 1, 2, 1));
}

#[test]
fn deque_without_fences_fails() {
    fails(Flaw::NoFences, Some(3), || deque_model(4, 3, 2, 2, 2));
}

#[test]
fn deque_without_release_fails() {
    fails(Flaw::RelaxedStores, None, || deque_model(2, 1, 0, 1, 1));
}

/// As `deque_model`.
fn ring_model(capacity: usize, pushes: usize, pops: usize, thieves: usize, tries: usize) {
    let shared = Arc::new((Ring::<Item>::new(capacity), Items::new(pushes)));
    let thieves: Vec<_> = (0..thieves)
        .map(|_| {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..tries {
                    if let Steal::Taken(item) = shared.0.steal() {
                        shared.1.take(item);
                    }
                }
            })
        })
        .collect();
    let (ring, items) = &*shared;
    for index in 0..pushes {
        let mut item = items.make(index);
        // SAFETY: only this thread pushes.
        while let Err(full) = unsafe { ring.push(item) } {
            if let Some(popped) = ring.pop() {
                items.take(popped);
            }
            item = full;
        }
    }
    for _ in 0..pops {
        if let Some(popped) = ring.pop() {
            items.take(popped);
        }
    }
    for thief in thieves {
        thief.join().unwrap();
    }
    while let Some(popped) = ring.pop() {
        items.take(popped);
    }
    items.all_taken();
    assert!(ring.is_empty());
}

#[test]
fn ring_owner_against_thief() {
    check(None, || ring_model(4, 3, 2, 1, 2));
}

#[test]
fn ring_last_item() {
    check(None, || ring_model(2, 1, 1, 2, 1));
}

/// At most four preemptions.
#[test]
fn ring_wraps() {
    check(Some(4), || ring_model(2, 4, 1, 1, 2));
}

/// At most two preemptions.
#[test]
fn ring_wraps_with_two_thieves() {
    check(Some(2), || ring_model(2, 4, 1, 2, 1));
}

#[test]
fn ring_without_release_fails() {
    fails(Flaw::RelaxedStores, None, || ring_model(2, 1, 0, 1, 1));
}

/// Workers, common work of which each unit is worth one worker, and work for one worker alone.
struct World {
    idle: Idle,
    common: AtomicU64,
    own: Vec<AtomicU64>,
    /// Scaffolding, no part of the model: each worker enters itself before all else.
    threads: std::sync::Mutex<Vec<Option<thread::Thread>>>,
}

impl World {
    fn new(workers: usize) -> Arc<World> {
        Arc::new(World {
            idle: Idle::new(workers),
            common: AtomicU64::new(0),
            own: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            threads: std::sync::Mutex::new(vec![None; workers]),
        })
    }

    fn unpark(&self, worker: usize) {
        let thread = self.threads.lock().unwrap()[worker].clone();
        // Who did not enter itself never parks; loom would take its wake-up for the end of a join.
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    fn notify(&self) {
        if let Some(worker) = self.idle.notify() {
            self.unpark(worker);
        }
    }

    fn produce(&self) {
        self.common.fetch_add(1, Ordering::Release);
        self.notify();
    }

    fn produce_for(&self, worker: usize) {
        self.own[worker].store(1, Ordering::Release);
        if self.idle.claim(worker) {
            self.unpark(worker);
        }
    }

    fn has_work(&self, me: usize) -> bool {
        self.own[me].load(Ordering::Acquire) > 0 || self.has_common_work()
    }

    fn has_common_work(&self) -> bool {
        self.common.load(Ordering::Acquire) > 0
    }

    /// Takes a unit of work. Own work, which comes last, is always enough for the worker; common work is if `enough`.
    fn take(&self, me: usize, enough: bool) -> Option<bool> {
        if self.own[me].load(Ordering::Acquire) > 0 {
            self.own[me].store(0, Ordering::Relaxed);
            return Some(true);
        }
        let mut left = self.common.load(Ordering::Acquire);
        while left > 0 {
            match self.common.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(enough),
                Err(now) => left = now,
            }
        }
        None
    }

    /// A worker that does one unit of work and is busy with it for ever; or, if one is not `enough`, does common units until
    /// its own one comes. Whoever sleeps for ever is a deadlock, which loom reports: with enough units for all workers, that
    /// is a lost wake-up.
    fn work(&self, me: usize, enough: bool) {
        self.threads.lock().unwrap()[me] = Some(thread::current());
        let mut searching = self.idle.start_search();
        loop {
            if searching && let Some(done) = self.take(me, enough) {
                if self.idle.end_search() && FLAW.get() != Flaw::NoHandover && self.has_common_work() {
                    self.notify();
                }
                if done {
                    return;
                }
                searching = self.idle.start_search();
                continue;
            }
            self.idle.prepare_park(me, searching);
            if FLAW.get() == Flaw::NoRecheck || !self.has_work(me) {
                thread::park();
                while self.idle.is_parked(me) {
                    thread::park();
                }
                searching = true;
            } else if self.idle.cancel_park(me) {
                if let Some(done) = self.take(me, enough) {
                    self.notify();
                    if done {
                        return;
                    }
                }
                searching = self.idle.start_search();
            } else {
                searching = true;
            }
        }
    }

    fn spawn(self: &Arc<World>, worker: usize, enough: bool) -> thread::JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || world.work(worker, enough))
    }

    fn all_busy(&self) {
        fence(Ordering::SeqCst);
        assert_eq!(self.idle.counts(), (0, 0), "all are busy");
        assert_eq!(self.common.load(Ordering::Relaxed), 0, "no work is left");
    }
}

fn sleeper() {
    let world = World::new(1);
    let worker = world.spawn(0, true);
    world.produce();
    worker.join().unwrap();
    world.all_busy();
}

#[test]
fn idle_one_worker_is_woken() {
    check(None, sleeper);
}

#[test]
fn idle_without_recheck_fails() {
    fails(Flaw::NoRecheck, None, sleeper);
}

#[test]
fn idle_without_fences_fails() {
    fails(Flaw::NoFences, None, sleeper);
}

fn two_sleepers() {
    let world = World::new(2);
    let workers = [world.spawn(0, true), world.spawn(1, true)];
    world.produce();
    world.produce();
    for worker in workers {
        worker.join().unwrap();
    }
    world.all_busy();
}

/// At most three preemptions.
#[test]
fn idle_two_workers_are_woken() {
    check(Some(3), two_sleepers);
}

#[test]
fn idle_without_handover_fails() {
    fails(Flaw::NoHandover, Some(3), two_sleepers);
}

/// Two producers, one of whom is suppressed by what the other raised. At most two preemptions.
#[test]
fn idle_two_producers() {
    check(Some(2), || {
        let world = World::new(2);
        let workers = [world.spawn(0, true), world.spawn(1, true)];
        let other = world.clone();
        let producer = thread::spawn(move || other.produce());
        world.produce();
        producer.join().unwrap();
        for worker in workers {
            worker.join().unwrap();
        }
        world.all_busy();
    });
}

/// Work for each worker alone, and work for anybody before it. At most two preemptions.
#[test]
fn idle_claim_reaches_the_one() {
    check(Some(2), || {
        let world = World::new(2);
        let workers = [world.spawn(0, false), world.spawn(1, false)];
        world.produce();
        world.produce_for(1);
        world.produce_for(0);
        for worker in workers {
            worker.join().unwrap();
        }
        fence(Ordering::SeqCst);
        assert_eq!(world.idle.counts(), (0, 0), "all are busy");
    });
}

/// The same for one worker, with the two kinds of work from two threads. At most four preemptions.
#[test]
fn idle_claim_against_notify() {
    check(Some(4), || {
        let world = World::new(1);
        let worker = world.spawn(0, false);
        let other = world.clone();
        let producer = thread::spawn(move || other.produce());
        world.produce_for(0);
        producer.join().unwrap();
        worker.join().unwrap();
        fence(Ordering::SeqCst);
        assert_eq!(world.idle.counts(), (0, 0), "all are busy");
    });
}

/// A producer that raises `searching` for worker 0 and then loses it answers for another producer that relied upon this:
/// worker 1 gets a unit whatever happens. At most two preemptions.
#[test]
fn idle_loser_answers_for_others() {
    check(Some(2), || {
        let world = World::new(2);
        world.idle.prepare_park(0, false);
        let worker = world.spawn(1, true);
        let other = world.clone();
        let producer = thread::spawn(move || other.produce());
        let searching = !world.idle.cancel_park(0);
        let _ = world.take(0, true);
        if !searching || world.idle.end_search() {
            world.notify();
        }
        world.produce();
        producer.join().unwrap();
        worker.join().unwrap();
        fence(Ordering::SeqCst);
        assert_eq!(world.idle.counts(), (0, 0), "all are busy");
    });
}

/// A claim, a notification and a cancellation race for one worker: one of them gets it, and the counts come out right. At most four preemptions.
#[test]
fn idle_one_wins_the_race() {
    check(Some(4), || {
        let idle = Arc::new(Idle::new(2));
        idle.prepare_park(0, false);
        let notifier = idle.clone();
        let notifier = thread::spawn(move || notifier.notify());
        let claimer = idle.clone();
        let claimer = thread::spawn(move || claimer.claim(0));
        let cancelled = idle.cancel_park(0);
        let sane = |(searching, parked): (u64, u64)| {
            assert!(searching <= 2 && parked <= 1, "a count fell below zero")
        };
        sane(idle.counts());
        if !cancelled {
            // Woken, it leaves the search before the one that woke it is done.
            assert!(!idle.is_parked(0));
            idle.end_search();
            sane(idle.counts());
        }
        let notified = notifier.join().unwrap();
        let claimed = claimer.join().unwrap();
        assert!(notified.is_none() || notified == Some(0));
        assert_eq!(cancelled as u32 + claimed as u32 + notified.is_some() as u32, 1, "one gets it");
        assert_eq!(idle.counts(), (0, 0));
    });
}

/// The same, and the worker parks again at once: no stale claim takes it twice or leaves it marked. At most three preemptions.
#[test]
fn idle_parks_again() {
    check(Some(3), || {
        let idle = Arc::new(Idle::new(1));
        idle.prepare_park(0, false);
        let notifier = idle.clone();
        let notifier = thread::spawn(move || notifier.notify().is_some());
        let claimer = idle.clone();
        let claimer = thread::spawn(move || claimer.claim(0));
        let woken = !idle.cancel_park(0);
        idle.prepare_park(0, woken);
        let wakes = notifier.join().unwrap() as u32 + claimer.join().unwrap() as u32;
        let woken = woken as u32 + !idle.is_parked(0) as u32;
        assert_eq!(wakes, woken, "each wake-up reached the worker once");
        assert!(!idle.cancel_park(0) || idle.counts() == (0, 0));
    });
}
