//! Orders made of `BTreeSet`.

use std::collections::BTreeSet;

use super::{Entry, Order, Thread};

/// WFQ: one set, by tag.
#[derive(Default)]
pub struct BTree(BTreeSet<Entry>);

impl Order for BTree {
    const EEVDF: bool = false;
    const NAME: &'static str = "btreeset";

    fn insert(&mut self, id: u32, thread: &Thread, _: i64) {
        self.0.insert((thread.deadline, thread.sequence, id));
    }

    fn pop(&mut self, _: &[Thread], _: i64) -> Option<u32> {
        self.0.pop_first().map(|(_, _, id)| id)
    }

    fn remove(&mut self, id: u32, threads: &[Thread], _: i64) {
        let thread = &threads[id as usize];
        self.0.remove(&(thread.deadline, thread.sequence, id));
    }
}

/// EEVDF, first way: one set by deadline, searched from the front for a thread that is eligible. Linear at worst.
#[derive(Default)]
pub struct BTreeScan(BTreeSet<Entry>);

impl Order for BTreeScan {
    const EEVDF: bool = true;
    const NAME: &'static str = "btreeset-scan";

    fn insert(&mut self, id: u32, thread: &Thread, _: i64) {
        self.0.insert((thread.deadline, thread.sequence, id));
    }

    fn pop(&mut self, threads: &[Thread], limit: i64) -> Option<u32> {
        let found = *self.0.iter().find(|(_, _, id)| threads[*id as usize].position <= limit)?;
        self.0.remove(&found);
        Some(found.2)
    }

    fn remove(&mut self, id: u32, threads: &[Thread], _: i64) {
        let thread = &threads[id as usize];
        self.0.remove(&(thread.deadline, thread.sequence, id));
    }
}

/// EEVDF, second way: threads ahead of the average wait in a set by position, the others in a set by deadline.
///
/// The average can go back (a thread joins behind it), so the second set may hold threads that are not eligible any more:
/// these go back to the first when they come up.
#[derive(Default)]
pub struct BTreeTwo {
    ahead: BTreeSet<Entry>,
    due: BTreeSet<Entry>,
}

impl Order for BTreeTwo {
    const EEVDF: bool = true;
    const NAME: &'static str = "btreeset";

    fn insert(&mut self, id: u32, thread: &Thread, limit: i64) {
        if thread.position > limit {
            self.ahead.insert((thread.position, thread.sequence, id));
        } else {
            self.due.insert((thread.deadline, thread.sequence, id));
        }
    }

    fn pop(&mut self, threads: &[Thread], limit: i64) -> Option<u32> {
        while let Some(&(position, sequence, id)) = self.ahead.first()
            && position <= limit
        {
            self.ahead.pop_first();
            self.due.insert((threads[id as usize].deadline, sequence, id));
        }
        while let Some((_, sequence, id)) = self.due.pop_first() {
            let position = threads[id as usize].position;
            if position <= limit {
                return Some(id);
            }
            self.ahead.insert((position, sequence, id));
        }
        None
    }

    fn remove(&mut self, id: u32, threads: &[Thread], _: i64) {
        let thread = &threads[id as usize];
        if !self.due.remove(&(thread.deadline, thread.sequence, id)) {
            self.ahead.remove(&(thread.position, thread.sequence, id));
        }
    }
}
