//! The nodes of a queue's tree: sorted arrays of up to [`FANOUT`] entries.
//!
//! Entries are kept in *descending* order, so that the first thread of the queue is the last entry of the last node: taking it
//! moves nothing. In an inner node an entry's key is a lower bound of everything below it; it may be lower than needed, never higher.

use alloc::boxed::Box;

use crate::CpuMask;
use crate::entity::{Entity, Key};

/// Entries in a node. Sixteen keep a node within a few cache lines and a queue of 100,000 threads within five levels.
pub(crate) const FANOUT: usize = 16;
/// Fewer entries than this and a node is merged with a neighbour, or takes some of its entries.
pub(crate) const MIN_FILL: usize = FANOUT / 4;

/// What a node knows of a thread, or of everything below an inner node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// Position in virtual time, the least one below an inner node (kept only where a policy asks for it).
    pub(crate) floor: i64,
}

/// What unused places hold: smaller than every key, larger than every floor.
const NO_ENTRY: Entry = Entry { key: Key { tag: i64::MIN, sequence: 0 }, floor: i64::MAX };

/// What hangs on the entries.
pub(crate) enum Slots<T> {
    /// Threads, in a leaf.
    Threads([Option<Box<Entity<T>>>; FANOUT]),
    /// Nodes, all of the same height.
    Nodes([Option<Box<Node<T>>>; FANOUT]),
}

pub(crate) struct Node<T> {
    pub(crate) len: usize,
    pub(crate) entries: [Entry; FANOUT],
    pub(crate) slots: Slots<T>,
    /// Union of the CPU masks below (kept only in the restricted queue).
    pub(crate) reach: CpuMask,
}

impl<T> Node<T> {
    /// An unused node: made with a thread, and empty whenever it is in no tree.
    pub(crate) fn spare() -> Box<Node<T>> {
        Box::new(Node {
            len: 0,
            entries: [NO_ENTRY; FANOUT],
            slots: Slots::Threads([const { None }; FANOUT]),
            reach: CpuMask::EMPTY,
        })
    }

    pub(crate) fn become_leaf(&mut self) {
        debug_assert!(self.len == 0);
        if !matches!(self.slots, Slots::Threads(_)) {
            self.slots = Slots::Threads([const { None }; FANOUT]);
        }
    }

    pub(crate) fn become_inner(&mut self) {
        debug_assert!(self.len == 0);
        if !matches!(self.slots, Slots::Nodes(_)) {
            self.slots = Slots::Nodes([const { None }; FANOUT]);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == FANOUT
    }

    pub(crate) fn used(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// How many entries have a larger tag: where a newcomer, last among equals, belongs. Halving without branches: which way it
    /// goes cannot be predicted, and unused entries are smaller than everything.
    #[inline]
    pub(crate) fn place_of_tag(&self, tag: i64) -> usize {
        const { assert!(FANOUT == 16) };
        let larger = |at: usize| usize::from(self.entries[at & (FANOUT - 1)].key.tag > tag);
        let mut at = 8 * larger(7);
        at += 4 * larger(at + 3);
        at += 2 * larger(at + 1);
        at += larger(at);
        at + larger(at)
    }

    /// How many entries have a larger key.
    pub(crate) fn place_of(&self, key: Key) -> usize {
        self.used().partition_point(|entry| entry.key > key)
    }

    /// The least floor of all entries.
    pub(crate) fn floor(&self) -> i64 {
        self.entries.iter().map(|entry| entry.floor).fold(i64::MAX, i64::min)
    }

    /// Adds an entry; what follows moves one place up.
    #[inline]
    pub(crate) fn insert_thread(&mut self, at: usize, entry: Entry, thread: Box<Entity<T>>) {
        let Slots::Threads(threads) = &mut self.slots else { unreachable!("threads live in leaves") };
        insert(&mut self.entries, threads, self.len, at, entry, thread);
        self.len += 1;
    }

    pub(crate) fn insert_node(&mut self, at: usize, entry: Entry, node: Box<Node<T>>) {
        let Slots::Nodes(nodes) = &mut self.slots else { unreachable!("nodes live in inner nodes") };
        insert(&mut self.entries, nodes, self.len, at, entry, node);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove_thread(&mut self, at: usize) -> Option<Box<Entity<T>>> {
        let Slots::Threads(threads) = &mut self.slots else { return None };
        self.len -= 1;
        remove(&mut self.entries, threads, self.len, at)
    }

    pub(crate) fn remove_node(&mut self, at: usize) -> Option<Box<Node<T>>> {
        let Slots::Nodes(nodes) = &mut self.slots else { return None };
        self.len -= 1;
        remove(&mut self.entries, nodes, self.len, at)
    }

    pub(crate) fn thread(&self, at: usize) -> Option<&Entity<T>> {
        match &self.slots {
            Slots::Threads(threads) => threads.get(at)?.as_deref(),
            Slots::Nodes(_) => None,
        }
    }

    pub(crate) fn node(&self, at: usize) -> Option<&Node<T>> {
        match &self.slots {
            Slots::Nodes(nodes) => nodes.get(at)?.as_deref(),
            Slots::Threads(_) => None,
        }
    }

    /// Two neighbours below this inner node: the one at `at`, and the next one, which has the smaller keys.
    pub(crate) fn pair_mut(&mut self, at: usize) -> Option<(&mut Node<T>, &mut Node<T>)> {
        let Slots::Nodes(nodes) = &mut self.slots else { return None };
        let [larger, smaller] = nodes.get_disjoint_mut([at, at + 1]).ok()?;
        Some((larger.as_deref_mut()?, smaller.as_deref_mut()?))
    }

    /// Appends the first `count` entries of a neighbour with smaller keys.
    pub(crate) fn take_front_of(&mut self, smaller: &mut Node<T>, count: usize) {
        let (to, from) = (self.len, smaller.len);
        self.entries[to..to + count].copy_from_slice(&smaller.entries[..count]);
        smaller.entries.copy_within(count..from, 0);
        smaller.entries[from - count..from].fill(NO_ENTRY);
        match (&mut self.slots, &mut smaller.slots) {
            (Slots::Threads(mine), Slots::Threads(theirs)) => shift_front(mine, to, theirs, from, count),
            (Slots::Nodes(mine), Slots::Nodes(theirs)) => shift_front(mine, to, theirs, from, count),
            _ => unreachable!("neighbours have the same height"),
        }
        self.len += count;
        smaller.len -= count;
    }

    /// Gives the last `count` entries to the front of a neighbour with smaller keys.
    pub(crate) fn give_back_to(&mut self, smaller: &mut Node<T>, count: usize) {
        let (keep, len) = (self.len - count, smaller.len);
        smaller.entries.copy_within(..len, count);
        smaller.entries[..count].copy_from_slice(&self.entries[keep..self.len]);
        self.entries[keep..self.len].fill(NO_ENTRY);
        match (&mut self.slots, &mut smaller.slots) {
            (Slots::Threads(mine), Slots::Threads(theirs)) => shift_back(mine, keep, theirs, len, count),
            (Slots::Nodes(mine), Slots::Nodes(theirs)) => shift_back(mine, keep, theirs, len, count),
            _ => unreachable!("neighbours have the same height"),
        }
        self.len = keep;
        smaller.len += count;
    }
}

#[inline]
fn insert<S>(
    entries: &mut [Entry; FANOUT],
    slots: &mut [Option<Box<S>>; FANOUT],
    len: usize,
    at: usize,
    entry: Entry,
    what: Box<S>,
) {
    // Mostly a few places at the end: a loop beats two calls to move memory.
    let mut to = len;
    while to > at {
        entries[to] = entries[to - 1];
        slots.swap(to, to - 1);
        to -= 1;
    }
    entries[at] = entry;
    slots[at] = Some(what);
}

#[inline]
fn remove<S>(
    entries: &mut [Entry; FANOUT],
    slots: &mut [Option<Box<S>>; FANOUT],
    last: usize,
    at: usize,
) -> Option<Box<S>> {
    let taken = slots[at].take();
    for to in at..last {
        entries[to] = entries[to + 1];
        slots.swap(to, to + 1);
    }
    entries[last] = NO_ENTRY;
    taken
}

fn shift_front<S>(mine: &mut [Option<S>], to: usize, theirs: &mut [Option<S>], from: usize, count: usize) {
    for at in 0..count {
        mine[to + at] = theirs[at].take();
    }
    for at in count..from {
        theirs[at - count] = theirs[at].take();
    }
}

fn shift_back<S>(mine: &mut [Option<S>], keep: usize, theirs: &mut [Option<S>], len: usize, count: usize) {
    for at in (0..len).rev() {
        theirs[at + count] = theirs[at].take();
    }
    for at in 0..count {
        theirs[at] = mine[keep + at].take();
    }
}
