//! The earliest deadline of all workers, each of which keeps its own set of deadlines under a lock of its own: arming a
//! timer writes to no cache line that other workers write to, unless the timer comes before all others.
//!
//! `all` is never later than the first deadline of any set, unless a thread that has raised it is about to look again.
//! It may be earlier: cancelling a timer leaves `all` unchanged, and a thread that looks at the sets when that time has
//! come finds nothing, and raises it.
//!
//! Invariants, which `models/tests/janus_earliest_loom.rs` checks under loom:
//! 1. A thread that adds a deadline writes it to its set, fences, and then reads `all`; a thread that raises `all`
//!    writes that, fences, and then reads the sets again. So one of the two sees the other, and lowers `all`.
//! 2. With one set there is nothing to agree on: `all` is exactly its first deadline. Deterministic mode, whose time
//!    jumps to that deadline, relies on it.

use crate::atomics::{AtomicU64, Ordering, fence};

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// A cache line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// See the module.
pub(crate) struct Earliest {
    all: Line,
    sets: Box<[Line]>,
}

impl Earliest {
    pub(crate) fn new(sets: usize) -> Earliest {
        let line = || Line(AtomicU64::new(NEVER));
        Earliest { all: line(), sets: (0..sets).map(|_| line()).collect() }
    }

    /// The first deadline of all, or an earlier instant.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.all.0.load(Ordering::Acquire)
    }

    /// Called under the lock of `set`: the deadline `at` was added, and `first` is now the first there. True: `at`
    /// comes before all others.
    pub(crate) fn added(&self, set: usize, at: u64, first: u64) -> bool {
        if self.sets.len() == 1 {
            return at < self.all.0.swap(first, Ordering::AcqRel);
        }
        self.sets[set].0.store(first, Ordering::Release);
        fence(Ordering::SeqCst);
        self.lower(at)
    }

    /// Called under the lock of `set`: a deadline was taken out, and `first` is now the first there.
    pub(crate) fn removed(&self, set: usize, first: u64) {
        let line = if self.sets.len() == 1 { &self.all } else { &self.sets[set] };
        line.0.store(first, Ordering::Release);
    }

    /// Called after the deadlines that had come at `due` were taken out of the sets. True: a deadline was added
    /// meanwhile that comes before all others, and the thread that watches the clock must be told.
    pub(crate) fn raise(&self, due: u64) -> bool {
        self.raise_from(due).is_some_and(|raised| self.look_again(raised))
    }

    /// The first half of [`Earliest::raise`]; returns what `all` was raised to.
    pub(crate) fn raise_from(&self, due: u64) -> Option<u64> {
        let first = self.first_of_sets().filter(|first| *first > due)?;
        self.all.0.compare_exchange(due, first, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(first)
    }

    /// The other half: a thread that added a deadline before it could see the raised `all` relied on the old value.
    pub(crate) fn look_again(&self, raised: u64) -> bool {
        fence(Ordering::SeqCst);
        self.first_of_sets().is_some_and(|first| first < raised && self.lower(first))
    }

    fn lower(&self, at: u64) -> bool {
        at < self.all.0.load(Ordering::Relaxed) && at < self.all.0.fetch_min(at, Ordering::AcqRel)
    }

    /// `None` if there is only one set, which keeps `all` itself.
    fn first_of_sets(&self) -> Option<u64> {
        match &*self.sets {
            [_] => None,
            sets => sets.iter().map(|set| set.0.load(Ordering::Acquire)).min(),
        }
    }
}
