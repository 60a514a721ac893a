//! Orders made of `BinaryHeap` with lazy deletion: removing marks the thread, and its entry is dropped when it comes up.
//!
//! An entry is alive if the thread is still queued under the entry's sequence number. When more than half of the entries
//! are dead the heap is rebuilt, so that it stays within twice its live size.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Entry, Order, Thread};

/// A min-heap and the number of its dead entries.
#[derive(Default)]
struct Lazy {
    heap: BinaryHeap<Reverse<Entry>>,
    dead: usize,
}

impl Lazy {
    fn push(&mut self, entry: Entry) {
        self.heap.push(Reverse(entry));
    }

    /// The first live entry.
    fn pop(&mut self, threads: &[Thread]) -> Option<Entry> {
        loop {
            let Reverse(entry) = self.heap.pop()?;
            if alive(&entry, threads) {
                return Some(entry);
            }
            self.dead -= 1;
        }
    }

    /// The first entry if it is at or below `limit` and alive; dead ones before it are dropped.
    fn pop_until(&mut self, limit: i64, threads: &[Thread]) -> Option<Entry> {
        while self.heap.peek()?.0.0 <= limit {
            let Reverse(entry) = self.heap.pop()?;
            if alive(&entry, threads) {
                return Some(entry);
            }
            self.dead -= 1;
        }
        None
    }

    /// The entry of `doomed` is dead from now on.
    fn bury(&mut self, doomed: u32, threads: &[Thread]) {
        self.dead += 1;
        if self.dead * 2 > self.heap.len() {
            self.heap.retain(|Reverse(entry)| entry.2 != doomed && alive(entry, threads));
            self.dead = 0;
        }
    }
}

fn alive(entry: &Entry, threads: &[Thread]) -> bool {
    threads[entry.2 as usize].sequence == entry.1
}

/// WFQ: one heap, by tag.
#[derive(Default)]
pub struct Heap(Lazy);

impl Order for Heap {
    const EEVDF: bool = false;
    const NAME: &'static str = "binaryheap";

    fn insert(&mut self, id: u32, thread: &Thread, _: i64) {
        self.0.push((thread.deadline, thread.sequence, id));
    }

    fn pop(&mut self, threads: &[Thread], _: i64) -> Option<u32> {
        self.0.pop(threads).map(|(_, _, id)| id)
    }

    fn remove(&mut self, id: u32, threads: &[Thread], _: i64) {
        self.0.bury(id, threads);
    }
}

/// EEVDF: threads ahead of the average in a heap by position, the others in a heap by deadline; see
/// [`BTreeTwo`](super::BTreeTwo).
#[derive(Default)]
pub struct HeapTwo {
    ahead: Lazy,
    due: Lazy,
    /// Which heap has the live entry, by id: only `remove` needs it, to count the dead where they are.
    is_due: Vec<bool>,
}

impl HeapTwo {
    fn put(&mut self, due: bool, id: u32, thread: &Thread) {
        if due {
            self.due.push((thread.deadline, thread.sequence, id));
        } else {
            self.ahead.push((thread.position, thread.sequence, id));
        }
        let at = id as usize;
        if at >= self.is_due.len() {
            self.is_due.resize(at + 1, false);
        }
        self.is_due[at] = due;
    }
}

impl Order for HeapTwo {
    const EEVDF: bool = true;
    const NAME: &'static str = "binaryheap";

    fn insert(&mut self, id: u32, thread: &Thread, limit: i64) {
        self.put(thread.position <= limit, id, thread);
    }

    fn pop(&mut self, threads: &[Thread], limit: i64) -> Option<u32> {
        while let Some((_, _, id)) = self.ahead.pop_until(limit, threads) {
            self.put(true, id, &threads[id as usize]);
        }
        while let Some((_, _, id)) = self.due.pop(threads) {
            let thread = &threads[id as usize];
            if thread.position <= limit {
                return Some(id);
            }
            self.put(false, id, thread);
        }
        None
    }

    fn remove(&mut self, id: u32, threads: &[Thread], _: i64) {
        let heap = if self.is_due[id as usize] { &mut self.due } else { &mut self.ahead };
        heap.bury(id, threads);
    }
}
