//! The one queue structure of the core: a treap that owns its threads.
//!
//! A search tree on [`Key`], a heap on random rank. Why this one:
//! * the nodes *are* the threads (`Box<Entity>`), so inserting, stealing and requeueing cannot allocate, and owning a
//!   node is owning the thread: it is in one queue because it is moved there;
//! * no rebalancing code: an insert splits about two nodes, taking the first one relinks one, all in safe Rust;
//! * expected depth is `2 ln n` whatever the keys are, because ranks are independent of keys. It is not a worst case:
//!   the chance that some node among 100,000 is deeper than 100 is below 10^-12 (`depth_is_logarithmic` measures it);
//! * aggregates over subtrees answer "first that may run on CPU x" and "first that is eligible" in one descent, so
//!   that entries which cannot be taken cost nothing to skip (F-09).
//!
//! Walks are loops where nothing has to be recomputed on the way back up, and recursions bounded by the depth where
//! aggregates are kept.

use alloc::boxed::Box;

use crate::CpuId;
use crate::entity::{Entity, Key, Link};

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

    fn any(self) -> bool {
        self.least || self.reach
    }
}

/// Which thread to look for: always the first, in key order, that fits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// At or behind this position.
    EligibleAt(i64),
    /// Allowed on this CPU.
    AllowedOn(CpuId),
}

impl Wanted {
    fn fits<T>(self, node: &Entity<T>) -> bool {
        match self {
            Wanted::EligibleAt(position) => node.fair.position <= position,
            Wanted::AllowedOn(cpu) => node.may_run_on(cpu),
        }
    }

    fn may_fit_below<T>(self, root: &Entity<T>) -> bool {
        match self {
            Wanted::EligibleAt(position) => root.least <= position,
            Wanted::AllowedOn(cpu) => root.reach.contains(cpu),
        }
    }
}

pub(crate) struct Queue<T> {
    root: Link<T>,
    len: usize,
    /// Key of the first thread, so that looking costs nothing.
    first: Option<Key>,
    keeps: Aggregates,
}

impl<T> Queue<T> {
    pub(crate) const fn new(keeps: Aggregates) -> Queue<T> {
        Queue { root: None, len: 0, first: None, keeps }
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
    pub(crate) fn reach(&self) -> crate::CpuMask {
        debug_assert!(self.keeps.reach);
        self.root.as_ref().map_or(crate::CpuMask::EMPTY, |root| root.reach)
    }

    /// Puts a thread in its place; its `key` is set by the caller and unique.
    pub(crate) fn insert(&mut self, mut node: Box<Entity<T>>) {
        let key = node.key;
        if self.first.is_none_or(|first| key < first) {
            self.first = Some(key);
        }
        self.len += 1;
        let mut link = &mut self.root;
        while link.as_ref().is_some_and(|below| below.rank >= node.rank) {
            let Some(below) = link else { break };
            if self.keeps.least {
                below.least = below.least.min(node.fair.position);
            }
            if self.keeps.reach {
                below.reach = below.reach.or(&node.effective_mask());
            }
            link = if key < below.key { &mut below.left } else { &mut below.right };
        }
        if self.keeps.any() {
            (node.left, node.right) = split_keeping(link.take(), key, self.keeps);
            pull(&mut node, self.keeps);
        } else {
            let rest = link.take();
            split(rest, key, &mut node);
        }
        *link = Some(node);
    }

    /// Takes the first thread.
    pub(crate) fn pop_first(&mut self) -> Option<Box<Entity<T>>> {
        let first = self.first?;
        if self.keeps.any() {
            return self.take(first);
        }
        // The new first is the leftmost of the removed node's right subtree or, without one, its parent.
        let mut parent_key = None;
        let mut link = &mut self.root;
        while link.as_ref().is_some_and(|node| node.left.is_some()) {
            let Some(node) = link else { break };
            parent_key = Some(node.key);
            link = &mut node.left;
        }
        let mut node = link.take()?;
        *link = node.right.take();
        self.first = leftmost(link).or(parent_key);
        self.len -= 1;
        Some(node)
    }

    /// Takes the thread with this key.
    pub(crate) fn take(&mut self, key: Key) -> Option<Box<Entity<T>>> {
        let node = if self.keeps.any() {
            take_keeping(&mut self.root, key, self.keeps)
        } else {
            self.take_plain(key)
        }?;
        self.len -= 1;
        if self.first == Some(key) {
            self.first = leftmost(&self.root);
        }
        Some(node)
    }

    fn take_plain(&mut self, key: Key) -> Option<Box<Entity<T>>> {
        let mut link = &mut self.root;
        while link.as_ref()?.key != key {
            let node = link.as_mut()?;
            link = if key < node.key { &mut node.left } else { &mut node.right };
        }
        let mut node = link.take()?;
        *link = merge(node.left.take(), node.right.take());
        Some(node)
    }

    /// The first thread that fits: one descent.
    pub(crate) fn find(&self, wanted: Wanted) -> Option<&Entity<T>> {
        let mut node = self.root.as_deref()?;
        if !wanted.may_fit_below(node) {
            return None;
        }
        loop {
            match node.left.as_deref() {
                Some(left) if wanted.may_fit_below(left) => node = left,
                _ if wanted.fits(node) => return Some(node),
                // Something below fits (checked on the way), it is not on the left and not here.
                _ => node = node.right.as_deref()?,
            }
        }
    }

    /// The thread with this key.
    pub(crate) fn get(&self, key: Key) -> Option<&Entity<T>> {
        let mut node = self.root.as_deref()?;
        while node.key != key {
            node = if key < node.key { node.left.as_deref()? } else { node.right.as_deref()? };
        }
        Some(node)
    }

    /// Calls `visit` for every thread in key order with its depth. For checks and listings: linear.
    pub(crate) fn for_each<'a>(&'a self, visit: &mut impl FnMut(&'a Entity<T>, usize)) {
        fn walk<'a, T>(link: &'a Link<T>, depth: usize, visit: &mut impl FnMut(&'a Entity<T>, usize)) {
            if let Some(node) = link {
                walk(&node.left, depth + 1, visit);
                visit(node, depth);
                walk(&node.right, depth + 1, visit);
            }
        }
        walk(&self.root, 0, visit);
    }

    /// I1: order, heap, aggregates, first key and length; returns what is wrong.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        fn walk<T>(link: &Link<T>, keeps: Aggregates) -> Result<usize, &'static str> {
            let Some(node) = link else { return Ok(0) };
            for below in [&node.left, &node.right].into_iter().flatten() {
                if below.rank > node.rank {
                    return Err("heap order of ranks");
                }
            }
            let count = 1 + walk(&node.left, keeps)? + walk(&node.right, keeps)?;
            let below = || [&node.left, &node.right].into_iter().flatten();
            if keeps.least && below().map(|n| n.least).fold(node.fair.position, i64::min) != node.least {
                return Err("least position of a subtree");
            }
            if keeps.reach && below().fold(node.effective_mask(), |mask, n| mask.or(&n.reach)) != node.reach {
                return Err("CPU reach of a subtree");
            }
            Ok(count)
        }
        let mut previous = None;
        let mut sorted = true;
        self.for_each(&mut |node, _| {
            sorted &= previous.is_none_or(|before| before < node.key);
            previous = Some(node.key);
        });
        if !sorted {
            return Err("key order");
        }
        if walk(&self.root, self.keeps)? != self.len {
            return Err("queue length");
        }
        if leftmost(&self.root) != self.first {
            return Err("first key");
        }
        Ok(())
    }
}

fn leftmost<T>(link: &Link<T>) -> Option<Key> {
    let mut node = link.as_deref()?;
    while let Some(left) = node.left.as_deref() {
        node = left;
    }
    Some(node.key)
}

/// Hangs the threads before `key` left and those after it right of `node`, whose links are empty.
fn split<T>(mut rest: Link<T>, key: Key, node: &mut Entity<T>) {
    let (mut before, mut after) = (&mut node.left, &mut node.right);
    while let Some(mut top) = rest {
        if top.key < key {
            rest = top.right.take();
            before = &mut before.insert(top).right;
        } else {
            rest = top.left.take();
            after = &mut after.insert(top).left;
        }
    }
}

/// Joins two trees of which the first comes before the second.
fn merge<T>(mut before: Link<T>, mut after: Link<T>) -> Link<T> {
    let mut root = None;
    let mut link = &mut root;
    loop {
        match (before, after) {
            (Some(mut left), Some(right)) if left.rank >= right.rank => {
                before = left.right.take();
                after = Some(right);
                link = &mut link.insert(left).right;
            }
            (Some(left), Some(mut right)) => {
                before = Some(left);
                after = right.left.take();
                link = &mut link.insert(right).left;
            }
            (left, right) => {
                *link = left.or(right);
                return root;
            }
        }
    }
}

fn pull<T>(node: &mut Entity<T>, keeps: Aggregates) {
    if keeps.least {
        node.least = node.fair.position;
        for below in [&node.left, &node.right].into_iter().flatten() {
            node.least = node.least.min(below.least);
        }
    }
    if keeps.reach {
        node.reach = node.effective_mask();
        for below in [&node.left, &node.right].into_iter().flatten() {
            node.reach = node.reach.or(&below.reach);
        }
    }
}

fn split_keeping<T>(link: Link<T>, key: Key, keeps: Aggregates) -> (Link<T>, Link<T>) {
    let Some(mut top) = link else { return (None, None) };
    if top.key < key {
        let (before, after) = split_keeping(top.right.take(), key, keeps);
        top.right = before;
        pull(&mut top, keeps);
        (Some(top), after)
    } else {
        let (before, after) = split_keeping(top.left.take(), key, keeps);
        top.left = after;
        pull(&mut top, keeps);
        (before, Some(top))
    }
}

fn merge_keeping<T>(before: Link<T>, after: Link<T>, keeps: Aggregates) -> Link<T> {
    match (before, after) {
        (Some(mut left), Some(right)) if left.rank >= right.rank => {
            left.right = merge_keeping(left.right.take(), Some(right), keeps);
            pull(&mut left, keeps);
            Some(left)
        }
        (Some(left), Some(mut right)) => {
            right.left = merge_keeping(Some(left), right.left.take(), keeps);
            pull(&mut right, keeps);
            Some(right)
        }
        (left, right) => left.or(right),
    }
}

fn take_keeping<T>(link: &mut Link<T>, key: Key, keeps: Aggregates) -> Option<Box<Entity<T>>> {
    let node = link.as_mut()?;
    if node.key == key {
        let mut node = link.take()?;
        *link = merge_keeping(node.left.take(), node.right.take(), keeps);
        return Some(node);
    }
    let side = if key < node.key { &mut node.left } else { &mut node.right };
    let taken = take_keeping(side, key, keeps)?;
    pull(node, keeps);
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuMask, Runnable, ThreadId};
    use std::collections::BTreeMap;
    use std::vec::Vec;

    const ALL: Aggregates = Aggregates { least: true, reach: true };

    fn node(id: u64, tag: i64, position: i64, cpu: usize) -> Box<Entity<u32>> {
        let mut node = Runnable::new(ThreadId(id), id as u32, 7).0;
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
                            assert_eq!(queue.get(key).map(|n| n.key), Some(key));
                            assert_eq!(queue.take(key).map(|n| n.key), Some(key));
                            map.remove(&key);
                            assert!(queue.take(key).is_none());
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

    /// The stated depth: for ascending, descending and scattered keys, 100,000 threads stay within 60 levels
    /// (expected mean 2 ln n = 23).
    #[test]
    fn depth_is_logarithmic() {
        let patterns: [fn(u64) -> i64; 3] =
            [|id| id as i64, |id| -(id as i64), |id| (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8) as i64];
        for pattern in patterns {
            let mut queue = Queue::new(Aggregates::NONE);
            for id in 0..100_000 {
                queue.insert(node(id, pattern(id), 0, 0));
            }
            let mut depths = Vec::new();
            queue.for_each(&mut |_, depth| depths.push(depth));
            let mean = depths.iter().sum::<usize>() / depths.len();
            assert!(*depths.iter().max().unwrap() < 60, "deepest {:?}", depths.iter().max());
            assert!(mean < 28, "mean depth {mean}");
        }
    }

    /// The checks of `check` can fail: a tree that is out of order is named.
    #[test]
    fn check_finds_planted_damage() {
        let mut queue = Queue::new(ALL);
        for id in 0..50 {
            queue.insert(node(id, id as i64, 0, 0));
        }
        assert_eq!(queue.check(), Ok(()));
        let root = queue.root.as_mut().unwrap();
        root.least -= 1;
        assert_eq!(queue.check(), Err("least position of a subtree"));
        let root = queue.root.as_mut().unwrap();
        root.least += 1;
        core::mem::swap(&mut root.left, &mut root.right);
        assert_eq!(queue.check(), Err("key order"));
    }
}
