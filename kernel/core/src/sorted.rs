//! A sorted list whose every step is bounded (K-26): items lie in short runs, so that putting one in or taking one out moves a few neighbours and
//! never the whole list, as it would in a `Vec` of thousands of regions.

use alloc::vec::Vec;

/// The most items of a run.
const RUN: usize = 64;
/// Two neighbouring runs with no more items than this together are merged, so that there are few runs whatever was put in and taken out.
const MERGED: usize = RUN / 2;

/// A place in a list: that of an item, or behind the last one. It is valid until the list changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    run: usize,
    at: usize,
}

impl Place {
    /// The place of the first item, if there is one.
    pub const FIRST: Place = Place { run: 0, at: 0 };
}

/// The list. Its owner defines the order of items: it searches with a condition that holds for the first items and then for none.
#[derive(Debug)]
pub struct Sorted<T> {
    /// No run is empty.
    runs: Vec<Vec<T>>,
    len: usize,
}

/// There is no memory for one more item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

impl<T> Default for Sorted<T> {
    fn default() -> Sorted<T> {
        Sorted::new()
    }
}

impl<T> Sorted<T> {
    /// An empty list; it allocates nothing yet.
    pub const fn new() -> Sorted<T> {
        Sorted { runs: Vec::new(), len: 0 }
    }

    /// How many items are in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the first item of which `is_before` does not hold.
    #[inline]
    pub fn search(&self, is_before: impl Fn(&T) -> bool) -> Place {
        // Mostly there is one run; a place behind its last item is that of a run that is not there.
        if let [run] = self.runs.as_slice() {
            return self.normal(Place { run: 0, at: run.partition_point(is_before) });
        }
        let run = self.runs.partition_point(|run| run.last().is_some_and(&is_before));
        let at = self.runs.get(run).map_or(0, |run| run.partition_point(is_before));
        Place { run, at }
    }

    /// As [`Sorted::search`], when the place is probably `near`: looking at two items is then enough. Any place will do, also one from before the
    /// list changed.
    #[inline]
    pub fn search_near(&self, near: Place, is_before: impl Fn(&T) -> bool) -> Place {
        if let Some(run) = self.runs.get(near.run)
            && let Some([before, item]) = run.get(near.at.wrapping_sub(1)..near.at + 1)
            && is_before(before)
            && !is_before(item)
        {
            return near;
        }
        self.search(is_before)
    }

    /// The item at a place.
    #[inline]
    pub fn get(&self, place: Place) -> Option<&T> {
        self.runs.get(place.run)?.get(place.at)
    }

    /// As [`Sorted::get`], to be changed; the item must stay in order with its neighbours.
    #[inline]
    pub fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        self.runs.get_mut(place.run)?.get_mut(place.at)
    }

    /// The place behind one.
    #[inline]
    pub fn next(&self, place: Place) -> Place {
        self.normal(Place { at: place.at + 1, ..place })
    }

    /// The items from a place on.
    pub fn iter_from(&self, place: Place) -> impl Iterator<Item = &T> {
        let first = self.runs.get(place.run).and_then(|run| run.get(place.at..)).unwrap_or_default();
        let rest = self.runs.get(place.run + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flatten())
    }

    /// All items, out of the list.
    pub fn into_items(self) -> impl Iterator<Item = T> {
        self.runs.into_iter().flatten()
    }

    /// Makes sure that an item can be put in at `place`; only this allocates or fails. It changes nothing that can be seen.
    #[inline]
    pub fn make_room(&mut self, place: Place) -> Result<Place, NoMemory> {
        let mut place = place;
        if place.run == self.runs.len() && place.run > 0 {
            place = Place { run: place.run - 1, at: self.runs[place.run - 1].len() };
        }
        match self.runs.get_mut(place.run) {
            Some(run) if run.len() < RUN => run.try_reserve(1).map_err(|_| NoMemory)?,
            Some(_) => {
                // A full run becomes two.
                let mut half = Vec::new();
                half.try_reserve_exact(RUN).map_err(|_| NoMemory)?;
                self.runs.try_reserve(1).map_err(|_| NoMemory)?;
                half.extend(self.runs[place.run].drain(RUN / 2..));
                self.runs.insert(place.run + 1, half);
                if place.at > RUN / 2 {
                    place = Place { run: place.run + 1, at: place.at - RUN / 2 };
                }
            }
            None => {
                let mut run = Vec::new();
                run.try_reserve(1).map_err(|_| NoMemory)?;
                self.runs.try_reserve(1).map_err(|_| NoMemory)?;
                // Empty until the item comes, which the caller puts in next.
                self.runs.push(run);
            }
        }
        Ok(place)
    }

    /// Puts an item in at a place that [`Sorted::make_room`] has just returned.
    ///
    /// # Panics
    /// If the place is another one.
    #[inline]
    pub fn insert(&mut self, place: Place, item: T) {
        let run = &mut self.runs[place.run];
        assert!(run.len() < run.capacity(), "sorted: no room was made");
        // K-30: the room was made before, as was just asserted.
        run.insert(place.at, item);
        self.len += 1;
    }

    /// Takes the item at a place out; the place is then that of the item behind it.
    pub fn remove(&mut self, place: &mut Place) -> Option<T> {
        let run = self.runs.get_mut(place.run)?;
        if place.at >= run.len() {
            return None;
        }
        let item = run.remove(place.at);
        self.len -= 1;
        if run.is_empty() {
            self.runs.remove(place.run);
        } else if self.runs.len() > 1 {
            self.merge(place.run);
            let before = place.run.checked_sub(1);
            if let Some((before, len)) = before.and_then(|run| Some((run, self.runs.get(run)?.len())))
                && self.merge(before)
            {
                *place = Place { run: before, at: len + place.at };
            }
        }
        *place = self.normal(*place);
        Some(item)
    }

    /// Merges a run with the next one, if both are short. For lack of memory they stay two.
    fn merge(&mut self, run: usize) -> bool {
        let [first, second] = match self.runs.get(run..run + 2) {
            Some([first, second]) => [first.len(), second.len()],
            _ => return false,
        };
        if first + second > MERGED || self.runs[run].try_reserve(second).is_err() {
            return false;
        }
        let second = self.runs.remove(run + 1);
        self.runs[run].extend(second);
        true
    }

    /// A place behind the last item of a run is the first of the next.
    #[inline]
    fn normal(&self, place: Place) -> Place {
        match self.runs.get(place.run) {
            Some(run) if place.at >= run.len() => Place { run: place.run + 1, at: 0 },
            _ => place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K-26. Against a plain list, with many items and few, growing and shrinking: the same items, few runs, none of them long or empty.
    #[test]
    fn it_is_a_sorted_list_of_short_runs() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let (mut list, mut model) = (Sorted::new(), Vec::new());
        let mut before = Place::FIRST;
        for step in 0..60_000_u64 {
            let grows = step / 10_000 % 2 == 0;
            let key = next(20_000);
            let place = list.search(|item| *item < key);
            let at = model.partition_point(|item| *item < key);
            assert_eq!(list.get(place), model.get(at));
            // With the right place, with an earlier one, and with any.
            let any = Place { run: next(300) as usize, at: next(70) as usize };
            for near in [place, before, any] {
                assert_eq!(list.search_near(near, |item| *item < key), place);
            }
            before = place;
            if next(8) < if grows { 6 } else { 1 } {
                let place = list.make_room(place).unwrap();
                list.insert(place, key);
                model.insert(at, key);
            } else {
                let mut place = place;
                let gone = (at < model.len()).then(|| model.remove(at));
                assert_eq!(list.remove(&mut place), gone);
                assert_eq!(list.get(place), model.get(at), "the place is that of the next");
            }
            assert_eq!(list.len(), model.len());
            assert!(list.runs.iter().all(|run| !run.is_empty() && run.len() <= RUN));
            assert!(list.runs.len() <= 1 + 2 * list.len() / MERGED, "{} runs", list.runs.len());
            if step % 500 == 0 {
                assert!(list.iter_from(list.search(|_| false)).eq(&model));
                let middle = list.search(|item| *item < 10_000);
                assert!(list.iter_from(middle).eq(model.iter().filter(|item| **item >= 10_000)));
            }
        }
        assert!(list.into_items().eq(model));
    }

    /// What an adversary would do: runs are made full, split, and emptied from the left, so that none becomes short beside a short one on its right.
    #[test]
    fn short_runs_become_one() {
        let mut list = Sorted::new();
        for key in 0..4096_u32 {
            let place = list.make_room(list.search(|item| *item < key)).unwrap();
            list.insert(place, key);
        }
        for key in 0..4096 {
            if key % 32 != 0 {
                let mut place = list.search(|item| *item < key);
                assert_eq!(list.remove(&mut place), Some(key));
                assert_eq!(list.get(place), (key < 4095).then_some(&(key + 1)));
            }
        }
        assert_eq!(list.len(), 128);
        assert!(list.runs.len() <= 9, "{} runs of 128 items", list.runs.len());
        let mut place = list.search(|_| false);
        while list.remove(&mut place).is_some() {}
        assert!(list.is_empty() && list.runs.is_empty() && list.get(place).is_none());
        assert_eq!(list.next(place), Place { run: 0, at: 1 });
    }
}
