//! Calls that wait at an endpoint: by band, then deadline, then arrival (S-15).
//!
//! Callers that run on a promise come first, by *urgency*, the tag of the scheduling core: the band in the high bits, the deadline in the low ones.
//! They are in a binary heap. All others have the urgency [`LAST`] and are in a plain list, so a queue of those costs what a list does. The place
//! of a call is returned when it is put in, and the call can be taken out by it: nothing is searched for (K-26).
//!
//! Everything is in one vector: an entry has its own links, and besides that one cell of the heap, which has as many cells as there are entries.

use alloc::vec::Vec;

/// The urgency of callers without a promise.
pub const LAST: u64 = u64::MAX;

const NONE: u32 = u32::MAX;

/// The position of a call in the order; smaller ones are first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    urgency: u64,
    /// The order of arrival.
    sequence: u64,
}

/// Where a call is at its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallState {
    /// It waits, at this place.
    Waits(u32),
    /// It was delivered and is not answered yet: it is in flight, under this number.
    Flies(usize),
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    key: Key,
    /// In the list, both are the neighbours. In the heap, `before` is the entry's cell. In a free entry, `behind` is the next free one.
    before: u32,
    behind: u32,
    /// The heap's cell with this entry's number: which entry is in it.
    cell: u32,
}

/// The queue. It grows in [`CallQueue::grow`] alone.
#[derive(Debug)]
pub struct CallQueue<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: u32,
    urgent: u32,
    first: u32,
    last: u32,
    sequence: u64,
}

impl<T> Default for CallQueue<T> {
    fn default() -> CallQueue<T> {
        CallQueue::new()
    }
}

impl<T> CallQueue<T> {
    /// Bytes of a place.
    pub const PLACE_BYTES: usize = size_of::<Entry<T>>();

    /// An empty queue without places.
    pub const fn new() -> CallQueue<T> {
        CallQueue { entries: Vec::new(), free: NONE, len: 0, urgent: 0, first: NONE, last: NONE, sequence: 0 }
    }

    /// How many calls are in it.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no call is in it.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of places, free or not.
    pub fn places(&self) -> usize {
        self.entries.capacity()
    }

    /// Makes room for exactly `more` calls beyond those that are in it. False if there is no memory.
    pub fn grow(&mut self, more: usize) -> bool {
        let wanted = self.len() + more;
        self.entries.try_reserve_exact(wanted.saturating_sub(self.entries.len())).is_ok()
    }

    /// Puts a call in, behind all that are as urgent, and returns its place, which is its own until it is taken out.
    ///
    /// # Panics
    /// If there is no room.
    pub fn push(&mut self, urgency: u64, item: T) -> u32 {
        self.sequence += 1;
        let key = Key { urgency, sequence: self.sequence };
        self.put_back(key, item)
    }

    /// Puts a call that was taken out back to where it was in the order; its place may be another one.
    ///
    /// # Panics
    /// If there is no room.
    pub fn put_back(&mut self, key: Key, item: T) -> u32 {
        let at = self.new_entry(key, item);
        self.len += 1;
        if key.urgency == LAST {
            self.link(at, key);
        } else {
            let cell = self.urgent;
            self.urgent += 1;
            self.set_cell(cell, at);
            self.rise(cell);
        }
        at
    }

    /// Takes the first call out.
    pub fn pop(&mut self) -> Option<(Key, T)> {
        let at = if self.urgent > 0 { self.entries[0].cell } else { self.first };
        self.take_entry(at)
    }

    /// Takes the call at a place out, if it is the one that is meant.
    pub fn take(&mut self, at: u32, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let item = self.entries.get(at as usize)?.item.as_ref()?;
        if is_meant(item) { self.take_entry(at).map(|(_, item)| item) } else { None }
    }

    /// The first place from `from` on, by number and not in order, of a call for which `is_meant` holds.
    pub fn find_from(&self, from: u32, is_meant: impl Fn(&T) -> bool) -> Option<u32> {
        let rest = self.entries.get(from as usize..)?;
        let found = rest.iter().position(|entry| entry.item.as_ref().is_some_and(&is_meant))?;
        Some(from + found as u32)
    }

    /// Where the call is that is meant: it waits here, or is one of `flights` calls in flight. It was `noted` to be at some place of one or the
    /// other, but the note is a hint: it may have been left by another call, and then the call is searched for.
    pub fn whereabouts(
        &self,
        noted: u32,
        is_meant: impl Fn(&T) -> bool,
        flights: usize,
        is_flight: impl Fn(usize) -> bool,
    ) -> Option<CallState> {
        let entry = self.entries.get(noted as usize);
        if entry.and_then(|entry| entry.item.as_ref()).is_some_and(&is_meant) {
            return Some(CallState::Waits(noted));
        }
        // Calls in flight are searched first: a server seldom has many, while many may wait for it.
        let noted = Some(noted as usize).filter(|at| *at < flights && is_flight(*at));
        let flight = noted.or_else(|| (0..flights).find(|at| is_flight(*at)));
        let waiting = || self.find_from(0, is_meant).map(CallState::Waits);
        flight.map(CallState::Flies).or_else(waiting)
    }

    fn new_entry(&mut self, key: Key, item: T) -> u32 {
        let at = self.free;
        if let Some(entry) = self.entries.get_mut(at as usize) {
            self.free = entry.behind;
            entry.item = Some(item);
            entry.key = key;
            return at;
        }
        assert!(self.entries.len() < self.entries.capacity(), "callq: no room was made");
        // K-30: there is room, as was just asserted.
        self.entries.push(Entry { item: Some(item), key, before: NONE, behind: NONE, cell: NONE });
        self.entries.len() as u32 - 1
    }

    fn take_entry(&mut self, at: u32) -> Option<(Key, T)> {
        let entry = self.entries.get_mut(at as usize)?;
        let item = entry.item.take()?;
        let (key, before, behind) = (entry.key, entry.before, entry.behind);
        entry.behind = self.free;
        self.free = at;
        self.len -= 1;
        if key.urgency == LAST {
            self.unlink(before, behind);
        } else {
            self.leave(before);
        }
        Some((key, item))
    }

    // ---- the list -----------------------------------------------------------------------------------------------------

    /// Mostly at the end. A call that is put back goes before all that came later: past those few that were put back before it.
    fn link(&mut self, at: u32, key: Key) {
        let (mut before, mut behind) = (self.last, NONE);
        if self.entries.get(before as usize).is_some_and(|last| last.key > key) {
            (before, behind) = (NONE, self.first);
            while let Some(next) = self.entries.get(behind as usize).filter(|next| next.key < key) {
                (before, behind) = (behind, next.behind);
            }
        }
        let entry = &mut self.entries[at as usize];
        (entry.before, entry.behind) = (before, behind);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.behind = at,
            None => self.first = at,
        }
        match self.entries.get_mut(behind as usize) {
            Some(entry) => entry.before = at,
            None => self.last = at,
        }
    }

    fn unlink(&mut self, before: u32, behind: u32) {
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.behind = behind,
            None => self.first = behind,
        }
        match self.entries.get_mut(behind as usize) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
    }

    // ---- the heap -----------------------------------------------------------------------------------------------------

    fn set_cell(&mut self, cell: u32, at: u32) {
        self.entries[cell as usize].cell = at;
        self.entries[at as usize].before = cell;
    }

    fn key_in(&self, cell: u32) -> Key {
        self.entries[self.entries[cell as usize].cell as usize].key
    }

    fn swap(&mut self, a: u32, b: u32) {
        let (in_a, in_b) = (self.entries[a as usize].cell, self.entries[b as usize].cell);
        self.set_cell(a, in_b);
        self.set_cell(b, in_a);
    }

    /// Moves a call up, past all that are less urgent. Returns its cell then.
    fn rise(&mut self, cell: u32) -> u32 {
        let mut cell = cell;
        while cell > 0 && self.key_in(cell) < self.key_in((cell - 1) / 2) {
            self.swap(cell, (cell - 1) / 2);
            cell = (cell - 1) / 2;
        }
        cell
    }

    fn sink(&mut self, cell: u32) {
        let mut cell = cell;
        loop {
            let children = (2 * cell + 1)..(2 * cell + 3).min(self.urgent);
            let Some(child) = children.min_by_key(|child| self.key_in(*child)) else { return };
            if self.key_in(cell) <= self.key_in(child) {
                return;
            }
            self.swap(cell, child);
            cell = child;
        }
    }

    /// Takes the call in a cell out of the heap; the last one takes the cell.
    fn leave(&mut self, cell: u32) {
        self.urgent -= 1;
        let last = self.urgent;
        if cell == last {
            return;
        }
        self.set_cell(cell, self.entries[last as usize].cell);
        let cell = self.rise(cell);
        self.sink(cell);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, below: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % below
        }
    }

    /// A note may be late and belong to another call (of a caller that ended while its call was neither queued nor in flight): whatever it says,
    /// the call that is meant is found, and no other.
    #[test]
    fn k_15_notes_are_hints() {
        let mut queue = CallQueue::new();
        assert!(queue.grow(4));
        for item in 10..14 {
            queue.push(if item % 2 == 0 { LAST } else { item }, item);
        }
        // A call in the middle has left.
        assert_eq!(queue.take(1, |item| *item == 11), Some(11));
        let flights = [Some(20), None, Some(22), Some(23), None, Some(25)];
        let find = |noted: u32, meant: u64| {
            let is_flight = |at: usize| flights[at] == Some(meant);
            queue.whereabouts(noted, |item| *item == meant, flights.len(), is_flight)
        };
        for noted in [0, 1, 2, 3, 4, 5, 6, 1_000, NONE] {
            for (at, item) in [(0, 10), (2, 12), (3, 13)] {
                assert_eq!(find(noted, item), Some(CallState::Waits(at)), "{item} by a note of {noted}");
            }
            for (at, item) in flights.iter().enumerate().filter_map(|(at, item)| Some((at, (*item)?))) {
                assert_eq!(find(noted, item), Some(CallState::Flies(at)), "{item} by a note of {noted}");
            }
            for gone in [11, 21, 99] {
                assert_eq!(find(noted, gone), None, "{gone} by a note of {noted}");
            }
        }
        assert_eq!(CallQueue::<u64>::new().whereabouts(0, |_| true, 0, |_| true), None);
    }

    fn room_for_one<T>(queue: &mut CallQueue<T>) {
        if queue.len() == queue.places() {
            assert!(queue.grow((queue.len() + 1).next_power_of_two() - queue.len()));
        }
    }

    /// S-15: against a plain sorted list, with pushes, pops, withdrawals by place and calls that come back to their place in the order.
    #[test]
    fn s_15_it_is_sorted_by_urgency_then_arrival() {
        for seed in 1..=200 {
            let mut random = Random(seed);
            let (mut queue, mut model) = (CallQueue::new(), Vec::<(u64, u64)>::new());
            let mut places = std::collections::BTreeMap::new();
            // Calls that were taken out and may be put back: key in the queue, and in the model.
            let mut in_hand = Vec::new();
            let kinds = 1 + random.below(4);
            for id in 1..=2_000_u64 {
                match random.below(if id / 500 % 2 == 0 { 9 } else { 14 }) {
                    0..5 => {
                        let urgency = match random.below(kinds) {
                            0 => LAST,
                            band => band << 60 | random.below(20),
                        };
                        room_for_one(&mut queue);
                        places.insert(id, queue.push(urgency, id));
                        let at = model.partition_point(|(other, _)| *other <= urgency);
                        model.insert(at, (urgency, id));
                    }
                    5..8 => {
                        let popped = queue.pop();
                        let wanted = (!model.is_empty()).then(|| model.remove(0));
                        assert_eq!(popped.map(|(_, id)| id), wanted.map(|(_, id)| id), "seed {seed}");
                        if let (Some((key, id)), Some(wanted)) = (popped, wanted) {
                            places.remove(&id);
                            if random.below(3) == 0 {
                                in_hand.push((key, wanted));
                            }
                        }
                    }
                    8 if !in_hand.is_empty() => {
                        let which = random.below(in_hand.len() as u64) as usize;
                        let (key, wanted) = in_hand.swap_remove(which);
                        room_for_one(&mut queue);
                        places.insert(wanted.1, queue.put_back(key, wanted.1));
                        let at = model.partition_point(|other| *other < wanted);
                        model.insert(at, wanted);
                    }
                    _ if !model.is_empty() => {
                        let (_, id) = model.remove(random.below(model.len() as u64) as usize);
                        let at = places.remove(&id).unwrap();
                        assert_eq!(queue.take(at, |item| *item == id + 1), None, "seed {seed}: another one");
                        assert_eq!(queue.take(at, |item| *item == id), Some(id), "seed {seed}");
                        assert_eq!(queue.take(at, |_| true), None, "seed {seed}: gone");
                    }
                    _ => {}
                }
                assert_eq!(queue.len(), model.len());
            }
            let mut last = 0;
            let mut seen = 0;
            while let Some(at) = queue.find_from(last, |_| true) {
                (last, seen) = (at + 1, seen + 1);
            }
            assert_eq!(seen, model.len(), "seed {seed}: each is found once");
            for (_, id) in model {
                assert_eq!(queue.pop().map(|(_, id)| id), Some(id), "seed {seed}");
            }
            assert!(queue.is_empty() && queue.pop().is_none());
        }
    }

    /// K-26: no operation on a queue of 1,024 looks at more than a few entries.
    #[test]
    fn k_26_no_operation_walks_the_queue() {
        use core::cell::Cell;
        let mut queue = CallQueue::new();
        assert!(queue.grow(1024));
        for id in 0..1024_u64 {
            queue.push(if id % 2 == 0 { LAST } else { 1_000_000 - id }, id);
        }
        let looks = Cell::new(0);
        let mut places: Vec<u32> = (0..1024).collect();
        let mut random = Random(7);
        while !places.is_empty() {
            let at = places.swap_remove(random.below(places.len() as u64) as usize);
            looks.set(0);
            let taken = queue.take(at, |id| {
                looks.set(looks.get() + 1);
                *id == u64::from(at)
            });
            assert_eq!((taken, looks.get()), (Some(u64::from(at)), 1));
        }
        assert!(queue.is_empty());
    }

    /// Places are used again: a queue that is never long has no more of them than it needs.
    #[test]
    fn places_are_used_again() {
        let mut queue = CallQueue::new();
        assert!(queue.grow(4));
        for id in 0..10_000_u64 {
            for _ in 0..4 {
                queue.push(if id % 3 == 0 { id } else { LAST }, id);
            }
            assert!((0..4).all(|_| queue.pop().is_some_and(|(_, item)| item == id)));
        }
        assert_eq!(queue.places(), 4);
    }
}
