//! Timers: which waiter is to be woken when. A worker that parks sleeps no longer than until the first of these; a busy
//! worker looks from time to time.
//!
//! Each worker has a shelf of its own, so that tasks that set and cancel time-outs on several workers do not wait for
//! each other. A timer is disarmed on the shelf that it was put on, wherever its task runs by then. A worker that looks
//! at the clock fires what is due on all shelves, since a worker that is stuck in a task looks at nothing.

use crate::alloc::Quiet;
use crate::earliest::Earliest;
pub(crate) use crate::earliest::NEVER;
use crate::waiter::Waiter;
use crate::worker::Worker;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A timer's key: when it fires, its number on its shelf, and the shelf.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Timer {
    at_ns: u64,
    number: u64,
    shelf: u16,
}

/// See the module.
pub(crate) struct Timers {
    shelves: Box<[Shelf]>,
    earliest: Earliest,
}

#[repr(align(128))]
struct Shelf(Mutex<Armed>);

#[derive(Default)]
struct Armed {
    waiters: BTreeMap<Timer, Waiter>,
    numbers: u64,
}

impl Armed {
    fn first(&self) -> u64 {
        self.waiters.first_key_value().map_or(NEVER, |(timer, _)| timer.at_ns)
    }
}

impl Timers {
    /// Timers on `shelves` shelves, one per worker; a single one where their order must be the same in every run.
    pub(crate) fn new(shelves: usize) -> Timers {
        Timers {
            shelves: (0..shelves).map(|_| Shelf(Mutex::default())).collect(),
            earliest: Earliest::new(shelves),
        }
    }

    fn lock(&self, shelf: usize) -> MutexGuard<'_, Armed> {
        self.shelves[shelf].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first deadline, or an earlier instant whose timer was disarmed.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.earliest.first()
    }

    /// Puts a timer on the shelf of worker number `worker`. True beside the timer: it is the first of all now.
    pub(crate) fn arm(&self, at_ns: u64, waiter: Waiter, worker: u16) -> (Timer, bool) {
        let _quiet = Quiet::new();
        let shelf = usize::from(worker) % self.shelves.len();
        let mut armed = self.lock(shelf);
        armed.numbers += 1;
        let timer = Timer { at_ns, number: armed.numbers, shelf: shelf as u16 };
        armed.waiters.insert(timer, waiter);
        (timer, self.earliest.added(shelf, at_ns, armed.first()))
    }

    pub(crate) fn disarm(&self, timer: Timer) {
        let _quiet = Quiet::new();
        let mut armed = self.lock(timer.shelf.into());
        if armed.waiters.remove(&timer).is_some() {
            self.earliest.removed(timer.shelf.into(), armed.first());
        }
    }

    /// Wakes every waiter whose time has come. True: the worker that watches the clock must look at it again.
    #[must_use]
    pub(crate) fn fire(&self, now_ns: u64, here: Option<&Worker>) -> bool {
        let mut is_earlier = false;
        loop {
            let due = self.first();
            if due > now_ns {
                return is_earlier;
            }
            // Its own shelf first: the tasks that it wakes stay with it.
            let own = here.map_or(0, |worker| usize::from(worker.index));
            for shelf in 0..self.shelves.len() {
                self.fire_shelf((own + shelf) % self.shelves.len(), now_ns, here);
            }
            is_earlier |= self.earliest.raise(due);
        }
    }

    fn fire_shelf(&self, shelf: usize, now_ns: u64, here: Option<&Worker>) {
        loop {
            let _quiet = Quiet::new();
            let mut armed = self.lock(shelf);
            let waiter = match armed.waiters.first_entry() {
                Some(entry) if entry.key().at_ns <= now_ns => entry.remove(),
                _ => return,
            };
            self.earliest.removed(shelf, armed.first());
            drop(armed);
            waiter.wake(here);
        }
    }
}
