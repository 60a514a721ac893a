//! The one queue structure of the core: a B+ tree that owns its threads.
//!
//! Why this one:
//! * a thread is in a queue because it was moved there (`Box<Entity>`), so a second owner is impossible;
//! * nothing allocates: every thread carries one spare node, brings it along when it is queued, and leaves with one. A tree of `n`
//!   threads has fewer than `n` nodes, so there is always one to be had;
//! * keys lie together in memory: a search touches three nodes for 1,000 threads and five for 100,000, where a binary tree of
//!   threads would touch a dozen or two;
//! * insert, take and find are `O(log n)` in the worst case, and taking the first thread moves nothing;
//! * summaries of subtrees answer "first that may run on CPU x" and "first that is eligible" in one descent, so that entries
//!   which cannot be taken cost nothing to skip (F-09).
//!
//! A thread that comes to an empty queue stays outside of the tree until a second one comes: on most CPUs at most one thread waits, and
//! two threads that take turns need no tree at all.
//!
//! Loops over a node are bounded by [`FANOUT`], recursion by the height.

use alloc::boxed::Box;

use crate::entity::{Entity, Key, Link};
use crate::node::{Entry, FANOUT, MIN_FILL, Node, Pool, Slots};
use crate::{CpuId, CpuMask};

/// Which summaries of subtrees a queue keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aggregates {
    /// Least position: finds eligible threads.
    pub(crate) least: bool,
    /// Union of CPU masks: finds threads that may run on a CPU.
    pub(crate) reach: bool,
}

impl Aggregates {
    pub(crate) const NONE: Aggregates = Aggregates { least: false, reach: false };
}

/// Which thread to look for: always the first, in key order, that fits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Any thread.
    First,
    /// The one with this key.
    Exactly(Key),
    /// One at or behind this position in virtual time.
    EligibleAt(i64),
    /// One that may run on this CPU.
    AllowedOn(CpuId),
}

impl Wanted {
    /// Whether `thread` is wanted.
    #[inline]
    fn fits<T>(self, thread: &Entity<T>) -> bool {
        match self {
            Wanted::First => true,
            Wanted::Exactly(key) => thread.key == key,
            Wanted::EligibleAt(position) => thread.fair.position <= position,
            Wanted::AllowedOn(cpu) => thread.may_run_on(cpu),
        }
    }

    /// The entry of a node to take, or to descend into.
    #[inline]
    fn entry_in<T>(self, node: &Node<T>) -> Option<usize> {
        match self {
            Wanted::First => node.len().checked_sub(1),
            Wanted::Exactly(key) if node.is_leaf() => {
                let at = node.place_of(key);
                (at < node.len() && node.key(at) == key).then_some(at)
            }
            Wanted::Exactly(key) => Some(node.place_of(key)),
            Wanted::EligibleAt(position) => node.last_at_or_below(position),
            Wanted::AllowedOn(cpu) => match &node.slots {
                Slots::Threads(threads) => threads
                    .iter()
                    .rposition(|thread| thread.as_ref().is_some_and(|thread| thread.may_run_on(cpu))),
                Slots::Nodes(nodes) => {
                    nodes.iter().rposition(|node| node.as_ref().is_some_and(|node| node.reach.contains(cpu)))
                }
            },
        }
    }
}

pub(crate) struct Queue<T> {
    /// The only thread, which came to an empty queue. It keeps its own spare node. While it is here there is no tree.
    lone: Link<T>,
    root: Option<Box<Node<T>>>,
    len: usize,
    /// Key of the first thread, so that looking costs nothing.
    first: Option<Key>,
    keeps: Aggregates,
    pool: Pool<T>,
}

impl<T> Queue<T> {
    pub(crate) const fn new(keeps: Aggregates) -> Queue<T> {
        Queue { lone: None, root: None, len: 0, first: None, keeps, pool: Pool::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key of the first thread.
    pub(crate) fn first_key(&self) -> Option<Key> {
        self.first
    }

    /// The union of CPU masks over all threads (needs the `reach` aggregate).
    pub(crate) fn reach(&self) -> CpuMask {
        debug_assert!(self.keeps.reach);
        match (&self.lone, &self.root) {
            (Some(thread), _) => thread.effective_mask(),
            (None, Some(root)) => root.reach,
            (None, None) => CpuMask::EMPTY,
        }
    }

    /// Puts a thread in its place. Its `key` is set by the caller; its sequence is the highest so far, so it comes last among
    /// equal tags.
    pub(crate) fn insert(&mut self, thread: Box<Entity<T>>) {
        self.put::<true>(thread);
    }

    /// Puts a thread back under the key that it had.
    pub(crate) fn put_back(&mut self, thread: Box<Entity<T>>) {
        self.put::<false>(thread);
    }

    #[inline]
    fn put<const LATEST: bool>(&mut self, thread: Box<Entity<T>>) {
        if self.len == 0 {
            self.len = 1;
            self.first = Some(thread.key);
            self.lone = Some(thread);
            return;
        }
        if let Some(mut lone) = self.lone.take() {
            self.pool.extend(lone.spare.take());
            self.plant(lone);
        }
        self.put_in_tree::<LATEST>(thread);
    }

    fn put_in_tree<const LATEST: bool>(&mut self, mut thread: Box<Entity<T>>) {
        let key = thread.key;
        if self.first.is_none_or(|first| key < first) {
            self.first = Some(key);
        }
        self.len += 1;
        self.pool.extend(thread.spare.take());
        let place = |node: &Node<T>| if LATEST { node.place_of_tag(key.tag) } else { node.place_of(key) };
        let Some(mut node) = self.root.as_deref_mut() else { return self.plant(thread) };
        let keeps = self.keeps;
        let mut at = place(node);
        while !node.is_leaf() {
            if keeps != Aggregates::NONE {
                note(node, at, &thread, keeps);
            }
            node = node.node_mut(at);
            at = place(node);
        }
        if node.is_full() {
            return self.put_where_full(thread, place);
        }
        extend_reach(node, &thread, keeps);
        node.insert_thread(at, thread);
    }

    /// Begins a tree.
    #[cold]
    fn plant(&mut self, thread: Box<Entity<T>>) {
        let mut leaf = self.pool.node();
        leaf.become_leaf(self.keeps.least);
        extend_reach(&mut leaf, &thread, self.keeps);
        leaf.insert_thread(0, thread);
        self.root = Some(leaf);
    }

    /// Inserts a thread whose leaf is full: a second descent, which splits every full node on the path.
    #[cold]
    fn put_where_full(&mut self, thread: Box<Entity<T>>, place: impl Fn(&Node<T>) -> usize) {
        let Some(root) = &mut self.root else { return };
        if root.is_full() {
            let keep = share(place(root));
            grow(root, keep, &mut self.pool, self.keeps);
        }
        let mut node = &mut **root;
        while !node.is_leaf() {
            let mut at = place(node);
            let below = node.node_mut(at);
            if below.is_full() {
                let keep = share(place(below));
                split(node, at, keep, &mut self.pool, self.keeps);
                at = place(node);
            }
            note(node, at, &thread, self.keeps);
            node = node.node_mut(at);
        }
        extend_reach(node, &thread, self.keeps);
        node.insert_thread(place(node), thread);
    }

    /// Takes the first thread. The usual case is a walk to the last leaf, where it is the last entry; only a leaf that becomes empty has
    /// to be mended from above.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<Box<Entity<T>>> {
        if self.lone.is_some() {
            return self.take_lone(Wanted::First);
        }
        let mut node = self.root.as_deref_mut()?;
        while !node.is_leaf() {
            node = node.last_node_mut()?;
        }
        if node.len() < 2 || self.keeps != Aggregates::NONE {
            return self.take(Wanted::First);
        }
        let mut thread = node.pop_thread()?;
        self.first = Some(node.key(node.len() - 1));
        self.len -= 1;
        thread.spare = self.pool.get();
        Some(thread)
    }

    /// Takes the thread that is outside of the tree, if it fits.
    #[inline]
    fn take_lone(&mut self, wanted: Wanted) -> Option<Box<Entity<T>>> {
        let thread = self.lone.take_if(|thread| wanted.fits(thread))?;
        self.len = 0;
        self.first = None;
        Some(thread)
    }

    /// Takes the first thread that fits.
    pub(crate) fn take(&mut self, wanted: Wanted) -> Option<Box<Entity<T>>> {
        match wanted {
            _ if self.lone.is_some() => self.take_lone(wanted),
            // Every pick among eligible threads asks for this, so it gets code of its own.
            Wanted::EligibleAt(position) => self.take_entry(move |node| node.last_at_or_below(position)),
            _ => self.take_entry(move |node| wanted.entry_in(node)),
        }
    }

    fn take_entry(&mut self, choose: impl Fn(&Node<T>) -> Option<usize> + Copy) -> Option<Box<Entity<T>>> {
        let root = self.root.as_mut()?;
        let mut thread = take_below(root, choose, self.keeps, &mut self.pool)?;
        if root.len() < 2 {
            self.shrink();
        }
        self.len -= 1;
        if self.first == Some(thread.key) {
            self.first = first_of(self.root.as_deref());
        }
        thread.spare = self.pool.get();
        Some(thread)
    }

    /// Takes away a root that is empty or has only one node below.
    #[cold]
    fn shrink(&mut self) {
        let Some(mut root) = self.root.take_if(|root| root.len() == 0 || !root.is_leaf()) else {
            return;
        };
        self.root = if root.len() > 0 { root.remove_node(0) } else { None };
        root.reach = CpuMask::EMPTY;
        self.pool.put(root);
    }

    /// The first thread that fits: one descent.
    pub(crate) fn find(&self, wanted: Wanted) -> Option<&Entity<T>> {
        if let Some(lone) = &self.lone {
            return wanted.fits(lone).then_some(&**lone);
        }
        let mut node = self.root.as_deref()?;
        loop {
            let at = wanted.entry_in(node)?;
            match node.node(at) {
                Some(below) => node = below,
                None => return node.thread(at),
            }
        }
    }

    /// The first thread after `key`, which need not be the key of a queued thread: one descent, and at most one more.
    pub(crate) fn first_after(&self, key: Key) -> Option<&Entity<T>> {
        fn below<T>(node: &Node<T>, key: Key) -> Option<&Entity<T>> {
            let larger = node.place_of(key);
            if node.is_leaf() {
                return node.thread(larger.checked_sub(1)?);
            }
            // The bound of an entry may be lower than all keys below it.
            let within = if larger < node.len() { below(node.node(larger)?, key) } else { None };
            within.or_else(|| below(node.node(larger.checked_sub(1)?)?, key))
        }
        if let Some(lone) = &self.lone {
            return (lone.key > key).then_some(&**lone);
        }
        below(self.root.as_deref()?, key)
    }

    /// Calls `visit` for every thread in key order. For checks and listings: linear.
    pub(crate) fn for_each<'a>(&'a self, visit: &mut impl FnMut(&'a Entity<T>)) {
        fn walk<'a, T>(node: &'a Node<T>, visit: &mut impl FnMut(&'a Entity<T>)) {
            for at in (0..node.len()).rev() {
                match node.node(at) {
                    Some(below) => walk(below, visit),
                    None => node.thread(at).into_iter().for_each(&mut *visit),
                }
            }
        }
        if let Some(lone) = &self.lone {
            visit(lone);
        }
        if let Some(root) = &self.root {
            walk(root, visit);
        }
    }

    /// I1: order, bounds, fill, height, summaries, first key, length and the number of nodes; returns what is wrong.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let mut previous = None;
        let mut sorted = true;
        let mut count = 0;
        self.for_each(&mut |thread| {
            sorted &= previous.is_none_or(|before| before < thread.key);
            previous = Some(thread.key);
            count += 1;
        });
        if !sorted {
            return Err("key order");
        }
        if count != self.len {
            return Err("queue length");
        }
        if self.lone.is_some() && (self.root.is_some() || self.pool.len() > 0) {
            return Err("a tree beside the only thread");
        }
        let first = self.lone.as_ref().map(|thread| thread.key).or_else(|| first_of(self.root.as_deref()));
        if first != self.first {
            return Err("first key");
        }
        let nodes = match &self.root {
            Some(root) => check_node(root, self.keeps, None)?.nodes,
            None => 0,
        };
        if nodes + self.pool.len() + usize::from(self.lone.is_some()) != self.len {
            return Err("number of nodes");
        }
        Ok(())
    }
}

fn first_of<T>(root: Option<&Node<T>>) -> Option<Key> {
    let mut node = root?;
    loop {
        let last = node.len().checked_sub(1)?;
        match node.node(last) {
            Some(below) => node = below,
            None => return Some(node.key(last)),
        }
    }
}

/// Updates the summaries at an entry below which a thread is about to be added.
#[inline]
fn note<T>(node: &mut Node<T>, at: usize, thread: &Entity<T>, keeps: Aggregates) {
    if keeps.least {
        node.lower_floor(at, thread.fair.position);
    }
    extend_reach(node, thread, keeps);
}

#[inline]
fn extend_reach<T>(node: &mut Node<T>, thread: &Entity<T>, keeps: Aggregates) {
    if keeps.reach {
        node.reach = node.reach.or(&thread.effective_mask());
    }
}

/// A full root gets a new root above it.
fn grow<T>(root: &mut Box<Node<T>>, keep: usize, pool: &mut Pool<T>, keeps: Aggregates) {
    let mut above = pool.node();
    above.become_inner(keeps.least);
    above.reach = root.reach;
    let entry = Entry { key: Key::LEAST, floor: root.floor() };
    let old = core::mem::replace(root, above);
    root.insert_node(0, entry, old);
    split(root, 0, keep, pool, keeps);
}

/// How many entries stay in a full node that is split for a newcomer at this place. Most threads join at the end of the order, which is
/// the front of a node: then few stay, because the part that is split off is seldom added to, and should be as full as possible.
fn share(newcomer: usize) -> usize {
    if newcomer < MIN_FILL { MIN_FILL } else { FANOUT / 2 }
}

/// Splits the full node below an entry, which keeps `keep` of its entries; `node` has room for one more entry.
fn split<T>(node: &mut Node<T>, at: usize, keep: usize, pool: &mut Pool<T>, keeps: Aggregates) {
    let mut smaller = pool.node();
    let old = node.key(at);
    let larger = node.node_mut(at);
    if larger.is_leaf() {
        smaller.become_leaf(keeps.least);
    } else {
        smaller.become_inner(keeps.least);
    }
    larger.give_back_to(&mut smaller, FANOUT - keep);
    refresh(larger, keeps);
    refresh(&mut smaller, keeps);
    let entry = Entry { key: larger.cut(), floor: larger.floor() };
    node.set_entry(at, entry);
    node.insert_node(at + 1, Entry { key: old, floor: smaller.floor() }, smaller);
}

/// Takes a thread out of a subtree, and mends a node that becomes too small.
fn take_below<T>(
    node: &mut Node<T>,
    choose: impl Fn(&Node<T>) -> Option<usize> + Copy,
    keeps: Aggregates,
    pool: &mut Pool<T>,
) -> Option<Box<Entity<T>>> {
    let at = choose(node)?;
    if node.is_leaf() {
        let thread = node.remove_thread(at);
        refresh(node, keeps);
        return thread;
    }
    let below = node.node_mut(at);
    let thread = take_below(below, choose, keeps, pool)?;
    let len = below.len();
    if keeps.least && node.floor_at(at) == thread.fair.position {
        let floor = node.node_mut(at).floor();
        node.set_floor(at, floor);
    }
    // Threads are mostly taken from the last node: it may shrink until it is empty before anything is done about it.
    if len < MIN_FILL && (len == 0 || at + 1 < node.len()) {
        mend(node, at, keeps, pool);
    }
    refresh(node, keeps);
    Some(thread)
}

/// The node below an entry has become too small: it is removed if it is empty, merged with the next one, or gets some of that one's
/// entries.
#[cold]
fn mend<T>(node: &mut Node<T>, at: usize, keeps: Aggregates, pool: &mut Pool<T>) {
    if at + 1 == node.len() {
        // A last node comes here only when it is empty.
        return remove_empty(node, at, pool);
    }
    let (bound, next_bound) = (node.key(at), node.key(at + 1));
    let Some((larger, smaller)) = node.pair_mut(at) else { return };
    let (total, seam) = (larger.len() + smaller.len(), larger.len() - 1);
    let merged = total <= FANOUT;
    if !larger.is_leaf() {
        larger.set_bound(seam, bound); // this entry will not be the last of its node any more
    }
    larger.take_front_of(smaller, if merged { smaller.len() } else { total / 2 - larger.len() });
    let key = if merged { next_bound } else { larger.cut() };
    // A last node may be small, but the one at the seam is last no longer: it may have to be mended, too; one node a level, down to the
    // leaves.
    if larger.node(seam).is_some_and(|below| below.len() < MIN_FILL) {
        mend(larger, seam, keeps, pool);
    }
    refresh(larger, keeps);
    refresh(smaller, keeps);
    let (floor, next_floor) = (larger.floor(), smaller.floor());
    node.set_entry(at, Entry { key, floor });
    node.set_floor(at + 1, next_floor);
    if merged {
        remove_empty(node, at + 1, pool);
    }
}

/// Takes out an empty node.
fn remove_empty<T>(node: &mut Node<T>, at: usize, pool: &mut Pool<T>) {
    if let Some(mut empty) = node.remove_node(at) {
        empty.reach = CpuMask::EMPTY;
        pool.put(empty);
    }
    if at > 0 && at == node.len() {
        node.set_bound(at - 1, Key::LEAST);
    }
}

/// Recomputes the CPU reach of a node, if the queue keeps it.
#[inline]
fn refresh<T>(node: &mut Node<T>, keeps: Aggregates) {
    if keeps.reach {
        compute_reach(node);
    }
}

#[inline(never)] // keeps the path of other queues short
fn compute_reach<T>(node: &mut Node<T>) {
    node.reach = match &node.slots {
        Slots::Threads(threads) => {
            threads.iter().flatten().fold(CpuMask::EMPTY, |mask, thread| mask.or(&thread.effective_mask()))
        }
        Slots::Nodes(nodes) => nodes.iter().flatten().fold(CpuMask::EMPTY, |mask, node| mask.or(&node.reach)),
    };
}

struct Checked {
    nodes: usize,
    height: usize,
    smallest: Key,
    largest: Key,
}

/// `above` is the parent's entry for this node, and whether that is the parent's last entry.
fn check_node<T>(
    node: &Node<T>,
    keeps: Aggregates,
    above: Option<(Entry, bool)>,
) -> Result<Checked, &'static str> {
    if node.len() == 0 || above.is_some_and(|(_, last)| !last && node.len() < MIN_FILL) {
        return Err("fill of a node");
    }
    if keeps.least && above.is_some_and(|(above, _)| node.floor() != above.floor) {
        return Err("least position of a subtree");
    }
    let mut whole: Option<Checked> = None;
    let mut reach = CpuMask::EMPTY;
    for at in 0..node.len() {
        let (entry, last) = (node.entry(at), at + 1 == node.len());
        let part = match (node.node(at), node.thread(at)) {
            (Some(below), _) => {
                reach = reach.or(&below.reach);
                let below = check_node(below, keeps, Some((entry, last)))?;
                if below.smallest < entry.key || (last && entry.key != Key::LEAST) {
                    return Err("lower bound of a subtree");
                }
                Checked { height: below.height + 1, ..below }
            }
            (None, Some(thread)) => {
                if thread.key != entry.key || (keeps.least && thread.fair.position != entry.floor) {
                    return Err("entry of a thread");
                }
                reach = reach.or(&thread.effective_mask());
                Checked { nodes: 0, height: 0, smallest: thread.key, largest: thread.key }
            }
            (None, None) => return Err("an entry without anything below"),
        };
        let first = Checked { nodes: 1, height: part.height, smallest: part.smallest, largest: part.largest };
        let before = whole.get_or_insert(first);
        if before.height != part.height {
            return Err("height of a subtree");
        }
        // What is below an entry lies at or under the bound of the entry before.
        if at > 0 && part.largest > node.key(at - 1) {
            return Err("upper bound of a subtree");
        }
        before.nodes += part.nodes;
        before.smallest = part.smallest;
    }
    if keeps.reach && node.reach != reach {
        return Err("CPU reach of a subtree");
    }
    whole.ok_or("fill of a node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuMask, Runnable, ThreadId};
    use std::collections::BTreeMap;
    use std::ops::Bound;
    use std::vec::Vec;

    const ALL: Aggregates = Aggregates { least: true, reach: true };

    fn node(id: u64, tag: i64, position: i64, cpu: usize) -> Box<Entity<u32>> {
        let mut thread = Runnable::new(ThreadId(id), id as u32);
        thread.set_allowed(CpuMask::only(CpuId::new(cpu).unwrap())).unwrap();
        let mut node = thread.0;
        node.key = Key { tag, sequence: id };
        node.fair.position = position;
        node
    }

    /// Random numbers below a limit.
    fn numbers(mut random: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        }
    }

    /// The tree does what a sorted map does, for every operation, with and without aggregates.
    #[test]
    fn agrees_with_a_sorted_map() {
        for keeps in [Aggregates::NONE, ALL] {
            let mut queue = Queue::new(keeps);
            let mut map: BTreeMap<Key, (i64, usize)> = BTreeMap::new();
            let mut random = numbers(42);
            let mut next = || random(u64::MAX);
            for id in 0..4_000u64 {
                let (tag, position, cpu) =
                    ((next() % 300) as i64, (next() % 500) as i64 - 250, next() as usize % 5);
                match next() % 5 {
                    0 | 1 => {
                        queue.insert(node(id, tag, position, cpu));
                        map.insert(Key { tag, sequence: id }, (position, cpu));
                    }
                    2 => assert_eq!(queue.pop_first().map(|n| n.key), map.pop_first().map(|(key, _)| key)),
                    3 => {
                        let at = next() as usize % map.len().max(1);
                        if let Some(&key) = map.keys().nth(at) {
                            assert_eq!(queue.find(Wanted::Exactly(key)).map(|n| n.key), Some(key));
                            assert_eq!(queue.take(Wanted::Exactly(key)).map(|n| n.key), Some(key));
                            map.remove(&key);
                            assert!(queue.take(Wanted::Exactly(key)).is_none());
                        }
                    }
                    _ if keeps == ALL => {
                        let on = CpuId::new(cpu).unwrap();
                        let eligible = map.iter().find(|(_, (p, _))| *p <= position).map(|(key, _)| *key);
                        let allowed = map.iter().find(|(_, (_, c))| *c == cpu).map(|(key, _)| *key);
                        assert_eq!(queue.find(Wanted::EligibleAt(position)).map(|n| n.key), eligible);
                        assert_eq!(queue.find(Wanted::AllowedOn(on)).map(|n| n.key), allowed);
                    }
                    _ => {
                        // After the key of a queued thread, and after a key that no thread has.
                        let at = next() as usize % map.len().max(1);
                        let there = map.keys().nth(at).copied();
                        for key in there.into_iter().chain([Key { tag, sequence: next() % 4_000 }]) {
                            let after = map.range((Bound::Excluded(key), Bound::Unbounded)).next();
                            assert_eq!(queue.first_after(key).map(|n| n.key), after.map(|(key, _)| *key));
                        }
                    }
                }
                assert_eq!(queue.first_key(), map.keys().next().copied());
                assert_eq!(queue.len(), map.len());
                if id % 16 == 0 {
                    assert_eq!(queue.check(), Ok(()));
                }
            }
        }
    }

    /// The worst case: for ascending, descending and scattered keys, 100,000 threads stay within `1 + log_8(n)` levels, and the
    /// tree uses fewer nodes than a third of the threads.
    #[test]
    fn height_is_logarithmic() {
        let patterns: [fn(u64) -> i64; 3] =
            [|id| id as i64, |id| -(id as i64), |id| (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8) as i64];
        for pattern in patterns {
            let mut queue = Queue::new(Aggregates::NONE);
            for id in 0..100_000 {
                queue.insert(node(id, pattern(id), 0, 0));
            }
            let checked = check_node(queue.root.as_deref().unwrap(), queue.keeps, None).unwrap();
            assert!(checked.height <= 6, "height {}", checked.height);
            assert!(checked.nodes < 100_000 / 3, "{} nodes", checked.nodes);
        }
    }

    /// In a tree of three levels and more, the first eligible thread is found and taken while others keep coming.
    #[test]
    fn eligible_threads_of_a_large_queue() {
        let mut queue = Queue::new(Aggregates { least: true, reach: false });
        let mut map: BTreeMap<Key, i64> = BTreeMap::new();
        let mut random = numbers(7);
        let mut next = |below: u64| random(below) as i64;
        for sequence in 0..12_000u64 {
            let (tag, position) = (next(5_000), next(1_000));
            queue.insert(node(sequence, tag, position, 0));
            map.insert(Key { tag, sequence }, position);
            if sequence >= 3_000 {
                let limit = next(400);
                let expected = map.iter().find(|(_, position)| **position <= limit).map(|(key, _)| *key);
                assert_eq!(queue.take(Wanted::EligibleAt(limit)).map(|thread| thread.key), expected);
                expected.map(|key| map.remove(&key));
            }
            if sequence % 512 == 0 {
                assert_eq!(queue.check(), Ok(()));
            }
        }
        while let Some((key, _)) = map.pop_first() {
            assert_eq!(queue.pop_first().map(|thread| thread.key), Some(key));
        }
        assert_eq!(queue.check(), Ok(()));
    }

    /// Nodes in the middle run out, are merged and filled again: bounds stay bounds.
    #[test]
    fn bounds_survive_removals_everywhere() {
        let mut queue = Queue::new(Aggregates { least: true, reach: false });
        let mut keys: Vec<Key> = Vec::new();
        let mut next = numbers(99);
        let mut around = 0;
        for sequence in 0..60_000u64 {
            if sequence % 500 == 0 {
                around = next(10_000);
            }
            // The queue grows, then shrinks, around a key that moves about.
            let growing = sequence % 4_000 < 2_200;
            if keys.len() < 10 || (growing && next(4) > 0) || next(8) == 0 {
                let key = Key { tag: (around + next(300)) as i64, sequence };
                queue.insert(node(sequence, key.tag, key.tag, 0));
                let at = keys.partition_point(|other| *other < key);
                keys.insert(at, key);
            } else {
                let from = keys.partition_point(|key| key.tag < around as i64);
                let key = keys.remove((from + next(40) as usize).min(keys.len() - 1));
                assert_eq!(queue.take(Wanted::Exactly(key)).map(|thread| thread.key), Some(key));
            }
            if sequence % 16 == 0 {
                assert_eq!(queue.check(), Ok(()));
            }
        }
    }

    /// Every thread leaves with a node, in whatever order threads come and go.
    #[test]
    fn nodes_are_passed_on() {
        let mut queue = Queue::new(Aggregates::NONE);
        let mut away: Vec<Box<Entity<u32>>> = (0..500).map(|id| node(id, 0, 0, 0)).collect();
        let mut sequence = 0u64;
        for round in 0..20_000u64 {
            let mixed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            if mixed % 2 == 0
                && let Some(mut thread) = away.pop()
            {
                assert!(thread.spare.is_some());
                sequence += 1;
                thread.key = Key { tag: (mixed % 97) as i64, sequence };
                queue.insert(thread);
            } else {
                away.extend(queue.pop_first());
            }
        }
        assert_eq!(queue.check(), Ok(()));
        assert!(away.iter().all(|thread| thread.spare.is_some()));
    }

    /// The checks of `check` can fail: damage is named.
    #[test]
    fn check_finds_planted_damage() {
        let damaged = |damage: fn(&mut Queue<u32>)| {
            let mut queue = Queue::new(ALL);
            for id in 0..50 {
                queue.insert(node(id, id as i64, 0, 0));
            }
            assert_eq!(queue.check(), Ok(()));
            damage(&mut queue);
            queue.check().unwrap_err()
        };
        fn root(queue: &mut Queue<u32>) -> &mut Node<u32> {
            queue.root.as_mut().unwrap()
        }
        fn lift(node: &mut Node<u32>) {
            let mut entry = node.entry(0);
            entry.key.tag += 100;
            node.set_entry(0, entry);
        }
        assert_eq!(damaged(|queue| root(queue).set_floor(0, -1)), "least position of a subtree");
        assert_eq!(damaged(|queue| root(queue).reach = CpuMask::EMPTY), "CPU reach of a subtree");
        assert_eq!(damaged(|queue| lift(root(queue))), "lower bound of a subtree");
        assert_eq!(damaged(|queue| queue.len += 1), "queue length");
        assert_eq!(damaged(|queue| drop(queue.pool.get())), "number of nodes");
        assert_eq!(
            damaged(|queue| {
                if let Slots::Nodes(nodes) = &mut root(queue).slots {
                    nodes.swap(0, 1);
                }
            }),
            "key order"
        );
    }

    /// Growing and shrinking by threads taken from anywhere, deep enough that inner nodes are merged again and again.
    #[test]
    fn inner_nodes_come_and_go() {
        for (seed, keeps) in (1..14u64).flat_map(|seed| [(seed, Aggregates::NONE), (seed, ALL)]) {
            let mut next = numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut queue = Queue::new(keeps);
            let mut keys: Vec<Key> = Vec::new();
            let mut sequence = 0;
            for phase in 0..8 {
                let grows = phase % 2 == 0;
                let (target, range) =
                    (if grows { 1_500 + next(1_500) } else { next(200) }, 1 + next(100_000));
                while (keys.len() as u64) != target {
                    if keys.is_empty() || next(10) < if grows { 7 } else { 3 } {
                        sequence += 1;
                        let tag = next(range) as i64;
                        queue.insert(node(sequence, tag, next(1_000) as i64, next(5) as usize));
                        keys.push(Key { tag, sequence });
                    } else {
                        let key = keys.swap_remove(next(keys.len() as u64) as usize);
                        assert_eq!(queue.take(Wanted::Exactly(key)).map(|thread| thread.key), Some(key));
                    }
                    if keys.len().is_multiple_of(61) {
                        assert_eq!(queue.check(), Ok(()), "seed {seed}, phase {phase}");
                    }
                }
            }
        }
    }
}
