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
//! Loops over a node are bounded by [`FANOUT`], recursion by the height.

use alloc::boxed::Box;

use crate::entity::{Entity, Key};
use crate::node::{Entry, FANOUT, MIN_FILL, Node, Slots};
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
    /// Any.
    First,
    /// The one with this key.
    Exactly(Key),
    /// At or behind this position.
    EligibleAt(i64),
    /// Allowed on this CPU.
    AllowedOn(CpuId),
}

impl Wanted {
    /// The entry of a node to take, or to go on below.
    #[inline]
    fn entry_in<T>(self, node: &Node<T>) -> Option<usize> {
        match self {
            Wanted::First => node.len().checked_sub(1),
            Wanted::Exactly(key) if node.is_leaf() => {
                let at = node.place_of(key);
                (at < node.len() && node.key(at) == key).then_some(at)
            }
            Wanted::Exactly(key) => Some(node.place_of(key).min(node.len() - 1)),
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

/// Unused nodes: what queued threads brought along and the tree does not need.
struct Pool<T> {
    /// The last few, so that a thread that comes and one that goes pass a node on without touching it.
    near: [Option<Box<Node<T>>>; Pool::<()>::NEAR],
    near_len: usize,
    /// The rest, each in the first slot of the one before.
    far: Option<Box<Node<T>>>,
    len: usize,
}

impl Pool<()> {
    const NEAR: usize = 8;
}

impl<T> Pool<T> {
    #[inline]
    fn put(&mut self, node: Box<Node<T>>) {
        debug_assert!(node.len() == 0);
        self.len += 1;
        if self.near_len < self.near.len() {
            self.near[self.near_len] = Some(node);
            self.near_len += 1;
        } else {
            self.put_far(node);
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
    fn get(&mut self) -> Option<Box<Node<T>>> {
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
    fn node(&mut self) -> Box<Node<T>> {
        self.get().expect("every queued thread brought a node, and the tree has fewer nodes than threads")
    }
}

/// Unlinks one by one: a chain of a hundred thousand nodes must not be dropped by recursion.
impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        while self.get().is_some() {}
    }
}

pub(crate) struct Queue<T> {
    root: Option<Box<Node<T>>>,
    len: usize,
    /// Key of the first thread, so that looking costs nothing.
    first: Option<Key>,
    keeps: Aggregates,
    pool: Pool<T>,
}

impl<T> Queue<T> {
    pub(crate) const fn new(keeps: Aggregates) -> Queue<T> {
        let pool = Pool { near: [const { None }; Pool::<()>::NEAR], near_len: 0, far: None, len: 0 };
        Queue { root: None, len: 0, first: None, keeps, pool }
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
        self.root.as_ref().map_or(CpuMask::EMPTY, |root| root.reach)
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
    fn put<const LATEST: bool>(&mut self, mut thread: Box<Entity<T>>) {
        let key = thread.key;
        if self.first.is_none_or(|first| key < first) {
            self.first = Some(key);
        }
        self.len += 1;
        if let Some(spare) = thread.spare.take() {
            self.pool.put(spare);
        }
        let place = |node: &Node<T>| if LATEST { node.place_of_tag(key.tag) } else { node.place_of(key) };
        // At most twice: with room made, the second descent finds it.
        loop {
            let Some(mut node) = self.root.as_deref_mut() else {
                let mut leaf = self.pool.node();
                leaf.become_leaf(self.keeps.least);
                self.root = Some(leaf);
                continue;
            };
            let mut at = place(node);
            while !node.is_leaf() {
                let below = at.min(node.len() - 1);
                if self.keeps != Aggregates::NONE {
                    note(node, below, &thread, self.keeps);
                }
                node = node.node_mut(below);
                at = place(node);
            }
            if !node.is_full() {
                if self.keeps.reach {
                    node.reach = node.reach.or(&thread.effective_mask());
                }
                return node.insert_thread(at, thread);
            }
            self.make_room(place);
        }
    }

    /// Splits every full node on the way to a place.
    #[cold]
    fn make_room(&mut self, place: impl Fn(&Node<T>) -> usize) {
        let Some(root) = &mut self.root else { return };
        if root.is_full() {
            grow(root, &mut self.pool, self.keeps);
        }
        let mut node = &mut **root;
        while !node.is_leaf() {
            let mut at = place(node).min(node.len() - 1);
            if node.node(at).is_some_and(Node::is_full) {
                split(node, at, &mut self.pool, self.keeps);
                at = place(node).min(node.len() - 1);
            }
            node = node.node_mut(at);
        }
    }

    /// Takes the first thread. The usual case is a walk to the last leaf, where it is the last entry; only a leaf that runs out
    /// has to be mended from above.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<Box<Entity<T>>> {
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

    /// Takes the first thread that fits.
    pub(crate) fn take(&mut self, wanted: Wanted) -> Option<Box<Entity<T>>> {
        let root = self.root.as_mut()?;
        let mut thread = take_below(root, wanted, self.keeps, &mut self.pool)?;
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
        let mut node = self.root.as_deref()?;
        loop {
            let at = wanted.entry_in(node)?;
            match node.node(at) {
                Some(below) => node = below,
                None => return node.thread(at),
            }
        }
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
        if first_of(self.root.as_deref()) != self.first {
            return Err("first key");
        }
        let nodes = match &self.root {
            Some(root) => check_node(root, self.keeps, None)?.nodes,
            None => 0,
        };
        if nodes + self.pool.len != self.len {
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

/// A thread is about to be added below an entry: the summaries on its way learn of it.
fn note<T>(node: &mut Node<T>, at: usize, thread: &Entity<T>, keeps: Aggregates) {
    if keeps.least {
        node.set_floor(at, node.floor_at(at).min(thread.fair.position));
    }
    if keeps.reach {
        node.reach = node.reach.or(&thread.effective_mask());
    }
}

/// A full root gets a new root above it.
fn grow<T>(root: &mut Box<Node<T>>, pool: &mut Pool<T>, keeps: Aggregates) {
    let mut above = pool.node();
    above.become_inner(keeps.least);
    above.reach = root.reach;
    let entry = summary_of(root);
    let old = core::mem::replace(root, above);
    root.insert_node(0, entry, old);
    split(root, 0, pool, keeps);
}

/// What an inner node knows of the node below. The smallest key has to be fetched from a leaf: last entries do not tell.
fn summary_of<T>(node: &Node<T>) -> Entry {
    let smallest = first_of(Some(node));
    Entry { key: smallest.unwrap_or(Key { tag: i64::MIN, sequence: 0 }), floor: node.floor() }
}

/// Splits the full node below an entry; there is room for one more entry.
fn split<T>(node: &mut Node<T>, at: usize, pool: &mut Pool<T>, keeps: Aggregates) {
    let mut fresh = pool.node();
    match node.node(at).map(|below| &below.slots) {
        Some(Slots::Nodes(_)) => fresh.become_inner(keeps.least),
        _ => fresh.become_leaf(keeps.least),
    }
    node.insert_node(at + 1, node.entry(at), fresh);
    if let Some((larger, smaller)) = node.pair_mut(at) {
        larger.give_back_to(smaller, FANOUT / 2);
    }
    summarise_pair(node, at, keeps);
}

/// Computes anew what a node knows of two neighbours below.
fn summarise_pair<T>(node: &mut Node<T>, at: usize, keeps: Aggregates) {
    let Some((larger, smaller)) = node.pair_mut(at) else { return };
    refresh(larger, keeps);
    refresh(smaller, keeps);
    let (left, right) = (summary_of(larger), summary_of(smaller));
    node.set_entry(at, left);
    node.set_entry(at + 1, right);
}

/// Takes a thread out of a subtree, and mends what that leaves too small.
fn take_below<T>(
    node: &mut Node<T>,
    wanted: Wanted,
    keeps: Aggregates,
    pool: &mut Pool<T>,
) -> Option<Box<Entity<T>>> {
    let at = wanted.entry_in(node)?;
    let floor = node.floor_at(at);
    let thread = match &mut node.slots {
        Slots::Threads(_) => node.remove_thread(at)?,
        Slots::Nodes(nodes) => {
            let below = nodes[at].as_mut()?;
            let thread = take_below(below, wanted, keeps, pool)?;
            let len = below.len();
            if keeps.least && floor == thread.fair.position {
                let floor = below.floor();
                node.set_floor(at, floor);
            }
            // The last node is where threads are taken from: it may run out before anything is done about it.
            if len == 0 || (len < MIN_FILL && at + 1 < node.len()) {
                mend(node, at, keeps, pool);
            }
            thread
        }
    };
    if keeps.reach {
        refresh(node, keeps);
    }
    Some(thread)
}

/// The node below an entry has become too small: it is taken out, merged with the next one, or gets some of its entries.
#[cold]
fn mend<T>(node: &mut Node<T>, at: usize, keeps: Aggregates, pool: &mut Pool<T>) {
    if at + 1 == node.len() {
        // The last one, and empty.
        if let Some(mut empty) = node.remove_node(at) {
            empty.reach = CpuMask::EMPTY;
            pool.put(empty);
        }
        return;
    }
    let Some((larger, smaller)) = node.pair_mut(at) else { return };
    let total = larger.len() + smaller.len();
    if total > FANOUT {
        larger.take_front_of(smaller, total / 2 - larger.len());
        return summarise_pair(node, at, keeps);
    }
    larger.take_front_of(smaller, smaller.len());
    refresh(larger, keeps);
    let merged = summary_of(larger);
    node.set_entry(at, merged);
    if let Some(mut empty) = node.remove_node(at + 1) {
        empty.reach = CpuMask::EMPTY;
        pool.put(empty);
    }
}

/// Computes the CPU reach of a node anew.
fn refresh<T>(node: &mut Node<T>, keeps: Aggregates) {
    if keeps.reach {
        node.reach = match &node.slots {
            Slots::Threads(threads) => threads
                .iter()
                .flatten()
                .fold(CpuMask::EMPTY, |mask, thread| mask.or(&thread.effective_mask())),
            Slots::Nodes(nodes) => {
                nodes.iter().flatten().fold(CpuMask::EMPTY, |mask, node| mask.or(&node.reach))
            }
        };
    }
}

struct Checked {
    nodes: usize,
    height: usize,
    smallest: Key,
    largest: Key,
}

/// `above` is the entry for this node, and whether it is the last one of its node.
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
                if !last && below.smallest < entry.key {
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
    use std::vec::Vec;

    const ALL: Aggregates = Aggregates { least: true, reach: true };

    fn node(id: u64, tag: i64, position: i64, cpu: usize) -> Box<Entity<u32>> {
        let mut node = Runnable::new(ThreadId(id), id as u32).0;
        node.key = Key { tag, sequence: id };
        node.fair.position = position;
        node.allowed = CpuMask::only(CpuId::new(cpu).unwrap());
        node
    }

    /// The treap does what a sorted map does, for every operation, with and without aggregates.
    #[test]
    fn agrees_with_a_sorted_map() {
        for keeps in [Aggregates::NONE, ALL] {
            let mut queue = Queue::new(keeps);
            let mut map: BTreeMap<Key, (i64, usize)> = BTreeMap::new();
            let mut random = 42u64;
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
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
                    _ => {}
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

    /// Three levels and more: the first eligible thread, taken and put in again for long.
    #[test]
    fn eligible_threads_of_a_large_queue() {
        let mut queue = Queue::new(Aggregates { least: true, reach: false });
        let mut map: BTreeMap<Key, i64> = BTreeMap::new();
        let mut random = 7u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below) as i64
        };
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
}
