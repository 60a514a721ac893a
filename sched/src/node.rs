//! The nodes of a queue's tree: sorted arrays of up to [`FANOUT`] entries.
//!
//! Entries are kept in *descending* order, so that the first thread of the queue is the last entry of the last node: taking it
//! moves nothing. In an inner node an entry's key is a lower bound of everything below it; it may be lower than needed, never
//! higher. The last entry takes all keys that are smaller than the bounds before it: its own bound is [`Key::LEAST`].

use alloc::boxed::Box;
use core::mem::swap;

use crate::CpuMask;
use crate::entity::{Entity, Key};

/// Entries in a node. Sixteen keep a node within a few cache lines and a queue of 100,000 threads within five levels.
pub(crate) const FANOUT: usize = 16;
/// Fewer entries than this and a node is merged with a neighbour, or takes some of its entries.
pub(crate) const MIN_FILL: usize = FANOUT / 4;

/// What a node stores about a thread or, in an inner node, about everything below an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// Position in virtual time, the least one below an inner node (kept only where a policy asks for it).
    pub(crate) floor: i64,
}

impl Key {
    /// No thread's key is smaller.
    pub(crate) const LEAST: Key = Key { tag: i64::MIN, sequence: 0 };
}

/// What unused places hold: smaller than every key, larger than every floor.
const UNUSED: Entry = Entry { key: Key::LEAST, floor: i64::MAX };

/// A tag as a node keeps it. Unsigned, in the same order: a processor counts unsigned comparisons in fewer instructions.
type Rank = u64;
const SIGN: u64 = 1 << 63;

const fn rank(tag: i64) -> Rank {
    tag as u64 ^ SIGN
}

/// What the entries stand for.
pub(crate) enum Slots<T> {
    /// Threads, in a leaf.
    Threads([Option<Box<Entity<T>>>; FANOUT]),
    /// Nodes, all of the same height.
    Nodes([Option<Box<Node<T>>>; FANOUT]),
}

/// The ranks lie together because a search looks at nothing else; what follows the slots is touched only where it is needed.
#[repr(C)]
pub(crate) struct Node<T> {
    len: usize,
    ranks: [Rank; FANOUT],
    pub(crate) slots: Slots<T>,
    /// Whether `floors` is kept.
    has_floors: bool,
    floors: [i64; FANOUT],
    /// Kept in inner nodes only; in a leaf, the threads have their own.
    sequences: [u64; FANOUT],
    /// Union of the CPU masks below (kept only in the restricted queue).
    pub(crate) reach: CpuMask,
}

impl<T> Node<T> {
    /// An unused node: made with a thread, and empty whenever it is in no tree.
    pub(crate) fn spare() -> Box<Node<T>> {
        Box::new(Node {
            len: 0,
            ranks: [rank(UNUSED.key.tag); FANOUT],
            slots: Slots::Threads([const { None }; FANOUT]),
            has_floors: false,
            floors: [UNUSED.floor; FANOUT],
            sequences: [UNUSED.key.sequence; FANOUT],
            reach: CpuMask::EMPTY,
        })
    }

    pub(crate) fn become_leaf(&mut self, has_floors: bool) {
        debug_assert!(self.len == 0);
        self.has_floors = has_floors;
        if !self.is_leaf() {
            self.slots = Slots::Threads([const { None }; FANOUT]);
        }
    }

    pub(crate) fn become_inner(&mut self, has_floors: bool) {
        debug_assert!(self.len == 0);
        self.has_floors = has_floors;
        if self.is_leaf() {
            self.slots = Slots::Nodes([const { None }; FANOUT]);
        }
    }

    pub(crate) fn is_leaf(&self) -> bool {
        matches!(self.slots, Slots::Threads(_))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == FANOUT
    }

    pub(crate) fn entry(&self, at: usize) -> Entry {
        Entry { key: self.key(at), floor: self.floors[at] }
    }

    #[inline]
    pub(crate) fn key(&self, at: usize) -> Key {
        match self.thread(at) {
            Some(thread) => thread.key,
            None => Key { tag: (self.ranks[at] ^ SIGN) as i64, sequence: self.sequences[at] },
        }
    }

    pub(crate) fn set_entry(&mut self, at: usize, entry: Entry) {
        self.set_bound(at, entry.key);
        self.floors[at] = entry.floor;
    }

    pub(crate) fn set_bound(&mut self, at: usize, key: Key) {
        (self.ranks[at], self.sequences[at]) = (rank(key.tag), key.sequence);
    }

    /// The bound between this node and the next one: the key of its last entry, whose own bound in an inner node becomes
    /// [`Key::LEAST`].
    pub(crate) fn cut(&mut self) -> Key {
        let key = self.key(self.len - 1);
        if !self.is_leaf() {
            self.set_bound(self.len - 1, Key::LEAST);
        }
        key
    }

    pub(crate) fn set_floor(&mut self, at: usize, floor: i64) {
        self.floors[at] = floor;
    }

    #[inline]
    pub(crate) fn lower_floor(&mut self, at: usize, floor: i64) {
        let place = &mut self.floors[at & (FANOUT - 1)];
        *place = floor.min(*place);
    }

    pub(crate) fn floor_at(&self, at: usize) -> i64 {
        self.floors[at]
    }

    /// How many entries have a larger tag: where a newcomer, last among equals, belongs. Unused entries are smaller than
    /// everything. First the quarter, then the place in it: comparisons that do not wait for each other, and no branches,
    /// because they could not be predicted.
    #[inline]
    pub(crate) fn place_of_tag(&self, tag: i64) -> usize {
        const { assert!(FANOUT == 16) };
        let rank = rank(tag);
        let larger = |at: usize| usize::from(self.ranks[at & (FANOUT - 1)] > rank);
        let quarter = 4 * (larger(3) + larger(7) + larger(11));
        quarter + larger(quarter) + larger(quarter + 1) + larger(quarter + 2) + larger(quarter + 3)
    }

    /// How many entries have a larger key.
    pub(crate) fn place_of(&self, key: Key) -> usize {
        // Those with a larger tag, then those with the same tag that came later.
        let above = self.place_of_tag(key.tag);
        let later = |at: &usize| self.ranks[*at] == rank(key.tag) && self.key(*at).sequence > key.sequence;
        above + (above..self.len).take_while(later).count()
    }

    /// The last entry whose floor is at or below a position.
    #[inline]
    pub(crate) fn last_at_or_below(&self, position: i64) -> Option<usize> {
        let mut at = self.len.checked_sub(1)?;
        while *self.floors.get(at)? > position {
            at = at.wrapping_sub(1); // past the first entry, `get` returns `None` and ends the search
        }
        Some(at)
    }

    /// The least floor of all entries.
    pub(crate) fn floor(&self) -> i64 {
        if !self.has_floors {
            return UNUSED.floor;
        }
        // All floors, used or not: a mispredicted branch would cost more than a few comparisons.
        self.floors.iter().copied().fold(UNUSED.floor, i64::min)
    }

    /// Adds a thread; what follows moves one place up.
    #[inline]
    pub(crate) fn insert_thread(&mut self, at: usize, thread: Box<Entity<T>>) {
        let Slots::Threads(threads) = &mut self.slots else { unreachable!("threads live in leaves") };
        let (mut rank, mut floor, mut thread) = (rank(thread.key.tag), thread.fair.position, Some(thread));
        self.len += 1;
        // One loop for all: most often only a few places move.
        let places = (at..self.len).map(|place| place & (FANOUT - 1));
        if self.has_floors {
            for place in places {
                swap(&mut self.ranks[place], &mut rank);
                swap(&mut self.floors[place], &mut floor);
                swap(&mut threads[place], &mut thread);
            }
        } else {
            for place in places {
                swap(&mut self.ranks[place], &mut rank);
                swap(&mut threads[place], &mut thread);
            }
        }
        debug_assert!(thread.is_none());
        core::mem::forget(thread); // it is `None`: nothing to drop, and the compiler need not ask
    }

    pub(crate) fn insert_node(&mut self, at: usize, entry: Entry, node: Box<Node<T>>) {
        let Slots::Nodes(nodes) = &mut self.slots else { unreachable!("nodes live in inner nodes") };
        push_in(&mut nodes[at..=self.len], Some(node));
        push_in(&mut self.ranks[at..=self.len], rank(entry.key.tag));
        push_in(&mut self.sequences[at..=self.len], entry.key.sequence);
        push_in(&mut self.floors[at..=self.len], entry.floor);
        self.len += 1;
    }

    /// Takes the last thread of a leaf: the first in order. Nothing moves.
    #[inline]
    pub(crate) fn pop_thread(&mut self) -> Option<Box<Entity<T>>> {
        let Slots::Threads(threads) = &mut self.slots else { return None };
        let last = self.len.checked_sub(1)?;
        self.len = last;
        self.ranks[last] = rank(UNUSED.key.tag);
        if self.has_floors {
            self.floors[last] = UNUSED.floor;
        }
        threads[last].take()
    }

    /// Takes out a thread; what follows moves one place down.
    #[inline]
    pub(crate) fn remove_thread(&mut self, at: usize) -> Option<Box<Entity<T>>> {
        let Slots::Threads(threads) = &mut self.slots else { return None };
        let (mut rank, mut floor, mut thread) = (rank(UNUSED.key.tag), UNUSED.floor, None);
        for place in (at..self.len).rev().map(|place| place & (FANOUT - 1)) {
            swap(&mut self.ranks[place], &mut rank);
            swap(&mut self.floors[place], &mut floor);
            swap(&mut threads[place], &mut thread);
        }
        self.len -= 1;
        thread
    }

    pub(crate) fn remove_node(&mut self, at: usize) -> Option<Box<Node<T>>> {
        let Slots::Nodes(nodes) = &mut self.slots else { return None };
        let used = at..self.len;
        pull_out(&mut self.ranks[used.clone()], rank(UNUSED.key.tag));
        pull_out(&mut self.sequences[used.clone()], UNUSED.key.sequence);
        pull_out(&mut self.floors[used.clone()], UNUSED.floor);
        self.len -= 1;
        pull_out(&mut nodes[used], None)
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

    /// The node below an entry.
    #[inline]
    pub(crate) fn node_mut(&mut self, at: usize) -> &mut Node<T> {
        match &mut self.slots {
            Slots::Nodes(nodes) => {
                nodes[at & (FANOUT - 1)].as_mut().expect("every entry of an inner node has a node")
            }
            Slots::Threads(_) => unreachable!("leaves have no nodes below"),
        }
    }

    /// The node below the last entry, which has the smallest keys.
    #[inline]
    pub(crate) fn last_node_mut(&mut self) -> Option<&mut Node<T>> {
        match &mut self.slots {
            Slots::Nodes(nodes) => nodes.get_mut(self.len.checked_sub(1)?)?.as_deref_mut(),
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
        move_front(&mut self.ranks, to, &mut smaller.ranks, from, count, rank(UNUSED.key.tag));
        if !self.is_leaf() {
            move_front(&mut self.sequences, to, &mut smaller.sequences, from, count, UNUSED.key.sequence);
        }
        if self.has_floors {
            move_front(&mut self.floors, to, &mut smaller.floors, from, count, UNUSED.floor);
        }
        match (&mut self.slots, &mut smaller.slots) {
            (Slots::Threads(mine), Slots::Threads(theirs)) => shift_front(mine, to, theirs, from, count),
            (Slots::Nodes(mine), Slots::Nodes(theirs)) => shift_front(mine, to, theirs, from, count),
            _ => unreachable!("neighbours have the same height"),
        }
        self.len += count;
        smaller.len -= count;
    }

    /// Gives the last `count` entries to an empty neighbour with smaller keys.
    pub(crate) fn give_back_to(&mut self, empty: &mut Node<T>, count: usize) {
        debug_assert!(empty.len == 0);
        let keep = self.len - count;
        move_back(&mut self.ranks, keep, &mut empty.ranks, count, rank(UNUSED.key.tag));
        if !self.is_leaf() {
            move_back(&mut self.sequences, keep, &mut empty.sequences, count, UNUSED.key.sequence);
        }
        if self.has_floors {
            move_back(&mut self.floors, keep, &mut empty.floors, count, UNUSED.floor);
        }
        match (&mut self.slots, &mut empty.slots) {
            (Slots::Threads(mine), Slots::Threads(theirs)) => shift_back(mine, keep, theirs, count),
            (Slots::Nodes(mine), Slots::Nodes(theirs)) => shift_back(mine, keep, theirs, count),
            _ => unreachable!("neighbours have the same height"),
        }
        self.len = keep;
        empty.len = count;
    }
}

/// Puts a value first; the others move one place up, and the last one (unused) falls out.
#[inline]
fn push_in<V>(places: &mut [V], mut value: V) {
    for place in places {
        swap(place, &mut value);
    }
}

/// Takes the first value; the others move one place down, and the last place becomes `unused`.
#[inline]
fn pull_out<V>(places: &mut [V], mut unused: V) -> V {
    for place in places.iter_mut().rev() {
        swap(place, &mut unused);
    }
    unused
}

fn move_front<V: Copy>(mine: &mut [V], to: usize, theirs: &mut [V], from: usize, count: usize, unused: V) {
    mine[to..to + count].copy_from_slice(&theirs[..count]);
    theirs.copy_within(count..from, 0);
    theirs[from - count..from].fill(unused);
}

fn move_back<V: Copy>(mine: &mut [V], keep: usize, theirs: &mut [V], count: usize, unused: V) {
    theirs[..count].copy_from_slice(&mine[keep..keep + count]);
    mine[keep..keep + count].fill(unused);
}

fn shift_front<S>(mine: &mut [Option<S>], to: usize, theirs: &mut [Option<S>], from: usize, count: usize) {
    for (place, other) in mine[to..to + count].iter_mut().zip(&mut theirs[..count]) {
        *place = other.take();
    }
    theirs[..from].rotate_left(count);
}

fn shift_back<S>(mine: &mut [Option<S>], keep: usize, theirs: &mut [Option<S>], count: usize) {
    for (place, other) in theirs[..count].iter_mut().zip(&mut mine[keep..keep + count]) {
        *place = other.take();
    }
}

/// Spare nodes that queued threads brought along and the tree does not need.
pub(crate) struct Pool<T> {
    /// The most recent few, so that a node goes from an arriving thread to a leaving one without being touched.
    near: [Option<Box<Node<T>>>; Pool::<()>::NEAR],
    near_len: usize,
    /// The rest, as a list: each is in the first slot of the one before.
    far: Option<Box<Node<T>>>,
    len: usize,
}

impl Pool<()> {
    const NEAR: usize = 8;
}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Pool<T> {
        Pool { near: [const { None }; Pool::<()>::NEAR], near_len: 0, far: None, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn put(&mut self, node: Box<Node<T>>) {
        debug_assert!(node.len() == 0);
        self.len += 1;
        if self.near_len < self.near.len() {
            self.near[self.near_len] = Some(node);
            self.near_len += 1;
        } else {
            self.put_far(node);
        }
    }

    /// As `put`, for the spare node of a thread, if it has one.
    #[inline]
    pub(crate) fn extend(&mut self, node: Option<Box<Node<T>>>) {
        if let Some(node) = node {
            self.put(node);
        }
    }

    #[cold]
    fn put_far(&mut self, mut node: Box<Node<T>>) {
        node.become_inner(false);
        if let Slots::Nodes(nodes) = &mut node.slots {
            nodes[0] = self.far.take();
        }
        self.far = Some(node);
    }

    #[inline]
    pub(crate) fn get(&mut self) -> Option<Box<Node<T>>> {
        let node = match self.near_len.checked_sub(1) {
            Some(last) => {
                self.near_len = last;
                self.near[last].take()
            }
            None => self.get_far(),
        };
        self.len -= usize::from(node.is_some());
        node
    }

    #[cold]
    fn get_far(&mut self) -> Option<Box<Node<T>>> {
        let mut node = self.far.take()?;
        if let Slots::Nodes(nodes) = &mut node.slots {
            self.far = nodes[0].take();
        }
        Some(node)
    }

    /// A node for the tree, which always has fewer nodes than threads.
    pub(crate) fn node(&mut self) -> Box<Node<T>> {
        self.get().expect("every queued thread brought a node, and the tree has fewer nodes than threads")
    }
}

/// Unlinks one by one: a chain of a hundred thousand nodes must not be dropped by recursion.
impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        while self.get().is_some() {}
    }
}
