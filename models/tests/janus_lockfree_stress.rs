//! The queues of janus with real threads and the machine's own atomics: a million items, each taken exactly once.
//!
//! Loom (`janus_lockfree_loom.rs`) explores few items in all orders; this takes many in some, with the code that the
//! compiler makes of the real atomics, and round after round of the slots.

use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;

use deque::{Deque, Steal};
use ring::Ring;

#[allow(dead_code)]
#[path = "../../janus/src/deque.rs"]
mod deque;
#[allow(dead_code)]
#[path = "../../janus/src/ring.rs"]
mod ring;

mod atomics {
    pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
}

const ITEMS: usize = 1_000_000;
const THIEVES: usize = 3;
const CAPACITY: usize = 64;
const ROUNDS: usize = 2;

/// Written by its producer without synchronization of its own, and counted by its taker.
struct Item {
    number: AtomicU32,
    taken: AtomicU32,
}

impl Item {
    /// The taker of `item` sees what was written before the push.
    fn take(item: NonNull<Item>) {
        // SAFETY: all items outlive the threads, and are shared.
        let item = unsafe { item.as_ref() };
        assert_ne!(item.number.load(Relaxed), 0, "taken unwritten");
        item.taken.fetch_add(1, Relaxed);
    }
}

/// A queue with one owner, as both are.
trait Queue: Sync {
    /// # Safety
    /// Only one thread calls it, and `pop`.
    unsafe fn push(&self, item: NonNull<Item>) -> Result<(), NonNull<Item>>;
    /// # Safety
    /// As for `push`.
    unsafe fn pop(&self) -> Option<NonNull<Item>>;
    fn steal(&self) -> Steal<Item>;
}

impl Queue for Deque<Item> {
    unsafe fn push(&self, item: NonNull<Item>) -> Result<(), NonNull<Item>> {
        // SAFETY: the caller's promise.
        unsafe { Deque::push(self, item) }
    }

    unsafe fn pop(&self) -> Option<NonNull<Item>> {
        // SAFETY: the caller's promise.
        unsafe { Deque::pop(self) }
    }

    fn steal(&self) -> Steal<Item> {
        Deque::steal(self)
    }
}

impl Queue for Ring<Item> {
    unsafe fn push(&self, item: NonNull<Item>) -> Result<(), NonNull<Item>> {
        // SAFETY: the caller's promise.
        unsafe { Ring::push(self, item) }
    }

    unsafe fn pop(&self) -> Option<NonNull<Item>> {
        Ring::pop(self)
    }

    fn steal(&self) -> Steal<Item> {
        Ring::steal(self)
    }
}

fn stress(queue: &dyn Queue, patient: bool) {
    let stolen: usize = (0..ROUNDS).map(|_| round(queue, patient)).sum();
    println!("{stolen} of {} items were stolen", ROUNDS * ITEMS);
    assert!(stolen > 0, "thieves took part");
}

/// The owner pushes in bursts of changing length and pops part of each, so that the queue is often full and often empty.
/// If it is `patient`, it leaves a full queue to the thieves, who then take most; else it makes room itself. Returns how
/// many items were stolen.
fn round(queue: &dyn Queue, patient: bool) -> usize {
    let items: Vec<Item> =
        (0..ITEMS).map(|_| Item { number: AtomicU32::new(0), taken: AtomicU32::new(0) }).collect();
    let over = AtomicBool::new(false);
    let start = Barrier::new(THIEVES + 1);
    let stolen = thread::scope(|scope| {
        let thief = || {
            start.wait();
            let (mut stolen, mut looks) = (0, 0u64);
            loop {
                match queue.steal() {
                    Steal::Taken(item) => {
                        Item::take(item);
                        stolen += 1;
                    }
                    Steal::Retry => {}
                    Steal::Empty if over.load(Acquire) => return stolen,
                    Steal::Empty => {
                        looks += 1;
                        if looks % 1000 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
                    }
                }
            }
        };
        let thieves: Vec<_> = (0..THIEVES).map(|_| scope.spawn(thief)).collect();
        start.wait();
        let mut random = 1u64;
        let mut next = items.iter().enumerate();
        let mut more = true;
        while more {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (pushes, pops) = ((random >> 33) % 8 + 1, (random >> 50) % 4);
            for _ in 0..pushes {
                let Some((index, item)) = next.next() else {
                    more = false;
                    break;
                };
                item.number.store(index as u32 + 1, Relaxed);
                let mut item = NonNull::from(item);
                // SAFETY: this thread alone pushes and pops.
                while let Err(full) = unsafe { queue.push(item) } {
                    if patient {
                        thread::yield_now();
                    // SAFETY: as above.
                    } else if let Some(popped) = unsafe { queue.pop() } {
                        Item::take(popped);
                    }
                    item = full;
                }
            }
            for _ in 0..pops {
                // SAFETY: as above.
                if let Some(popped) = unsafe { queue.pop() } {
                    Item::take(popped);
                }
            }
        }
        // SAFETY: as above.
        while let Some(popped) = unsafe { queue.pop() } {
            Item::take(popped);
        }
        over.store(true, Release);
        thieves.into_iter().map(|thief| thief.join().unwrap()).sum()
    });
    for (index, item) in items.iter().enumerate() {
        assert_eq!(item.taken.load(Relaxed), 1, "item {index} was taken exactly once");
    }
    stolen
}

#[test]
fn deque_stress() {
    stress(&Deque::new(CAPACITY), true);
}

#[test]
fn deque_stress_tiny() {
    stress(&Deque::new(2), false);
}

#[test]
fn ring_stress() {
    stress(&Ring::new(CAPACITY), true);
}

#[test]
fn ring_stress_tiny() {
    stress(&Ring::new(2), false);
}
