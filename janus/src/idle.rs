//! How workers fall asleep without losing a wake-up: which of them search, which are parked, and which may be woken.
//!
//! It counts and marks; it never blocks, and wakes no thread itself: the caller unparks the OS thread that it is told
//! to. It knows nothing of the queues.
//!
//! A worker is *busy*, *searching* or *parked*. A thread that makes work visible calls `notify`, which does nothing
//! while any worker searches. In return, the last searcher that finds something notifies in turn, and a searcher that
//! finds nothing looks at all queues once more after it has marked itself parked. The worker's side:
//!
//! ```text
//! searching = start_search();
//! if searching && found { if end_search() { notify() } run }        // each notify(): unpark whom it names
//! else { prepare_park(me, searching);
//!        if all queues are empty { do { os_park() } while is_parked(me); search again, counted as searching }
//!        else if cancel_park(me) { take the work, notify(), run }   // neither parked nor searching
//!        else { search again, counted as searching } }              // a stale OS token stays: is_parked() absorbs it
//! ```
//!
//! Invariants:
//! 1. A worker is parked while its `PARKED` bit is set. It alone sets the bit; the thread that clears it (one atomic
//!    step decides) is the only one that lowers `parked` for it. The bit is set after `parked` was raised, and `parked`
//!    is lowered after the bit was cleared: `parked` is never less than the number of bits, and never below zero.
//! 2. `searching` is never less than the number of searchers, and never below zero: `notify` raises it before it clears
//!    the bit of the worker that it wakes, so that worker may leave the search at once.
//! 3. A worker summoned by `claim` is not counted as searching until it notices its `SUMMONED` bit, set in the step
//!    that cleared `PARKED`, and counts itself. Thus `claim` never raises `searching` in vain.
//! 4. A `notify` that raised `searching` in vain (another thread took the bit) lowers it, fences and starts over: it
//!    takes care of the work of producers that relied on a searcher meanwhile.
//! 5. There is a sequentially consistent fence between making work visible and reading the state (`notify`), between
//!    setting `PARKED` and looking at the queues again (`prepare_park`), and between the fall of `searching` to zero
//!    and looking at the queues again (`end_search`, `prepare_park`, 4.). Hence the work of a notifier that read
//!    `parked == 0`, no bit, or `searching > 0` is found by a worker that goes to sleep later, or that was the last to
//!    search.

use crate::atomics::{AtomicU64, Ordering, fence};

/// One searcher in `counts`, whose low half counts searchers.
const SEARCHING: u64 = 1;
/// One parked worker in `counts`, whose high half counts parked workers.
const PARKED: u64 = 1 << 32;
/// How many workers share a word: bit `i` says parked, bit `32 + i` says summoned.
const PER_WORD: usize = 32;
/// The most workers there may be.
const MAX_WORKERS: usize = 1024;

/// Which workers search and which are parked.
pub(crate) struct Idle {
    counts: Counts,
    bits: Bits,
}

/// Every notifier reads this cache line, and nothing else while all workers are busy.
#[repr(align(128))]
struct Counts {
    counts: AtomicU64,
    max_searching: u64,
}

#[repr(align(128))]
struct Bits {
    words: Box<[AtomicU64]>,
}

impl Idle {
    /// All of `workers` workers are busy.
    #[allow(dead_code, reason = "for the models")]
    pub(crate) fn new(workers: usize) -> Idle {
        Idle::with_searchers(workers, workers)
    }

    /// As `new`, with at most half of `cpus` workers searching at a time: more would only take CPUs from each other.
    pub(crate) fn with_searchers(workers: usize, cpus: usize) -> Idle {
        assert!((1..=MAX_WORKERS).contains(&workers), "1 to 1024 workers");
        Idle {
            counts: Counts {
                counts: AtomicU64::new(0),
                max_searching: (workers.min(cpus) as u64 / 2).max(1),
            },
            bits: Bits { words: (0..workers.div_ceil(PER_WORD)).map(|_| AtomicU64::new(0)).collect() },
        }
    }

    /// Called after work was made visible: returns the worker to unpark for it, if there must be one. That worker
    /// counts as searching from now on.
    ///
    /// The lowest parked worker is chosen, so that the same few stay warm and the others sleep deeply. That is not
    /// unfair, as a parked worker has nothing to wait for.
    #[inline]
    pub(crate) fn notify(&self) -> Option<usize> {
        fence(Ordering::SeqCst);
        let counts = self.counts.counts.load(Ordering::Relaxed);
        if searching(counts) > 0 || parked(counts) == 0 { None } else { self.wake_one(counts) }
    }

    /// The rest of `notify`. Each round follows a fence; a round fails only because another thread made progress.
    #[cold]
    fn wake_one(&self, mut counts: u64) -> Option<usize> {
        while searching(counts) == 0 && parked(counts) > 0 {
            // No bit is set: workers counted as parked are about to look at the queues again (invariant 5), or are
            // woken already.
            let (word, bit) = self.lowest()?;
            // Only one notifier at a time gets to wake a worker.
            let raised = counts + SEARCHING;
            match self.counts.counts.compare_exchange(counts, raised, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {}
                Err(now) => {
                    counts = now;
                    continue;
                }
            }
            if self.bits.words[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                self.counts.counts.fetch_sub(PARKED, Ordering::AcqRel);
                return Some(word * PER_WORD + bit.trailing_zeros() as usize);
            }
            self.counts.counts.fetch_sub(SEARCHING, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            counts = self.counts.counts.load(Ordering::Relaxed);
        }
        None
    }

    /// A busy worker without work asks to search. False: enough workers are searching, so it parks.
    pub(crate) fn start_search(&self) -> bool {
        let mut counts = self.counts.counts.load(Ordering::Relaxed);
        while searching(counts) < self.counts.max_searching {
            let raised = counts + SEARCHING;
            match self.counts.counts.compare_exchange_weak(
                counts,
                raised,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => counts = now,
            }
        }
        false
    }

    /// A searcher found work and is busy. True: it was the last one, and must `notify` if more work is left, as
    /// producers relied on it. It looks at what is left after this call.
    pub(crate) fn end_search(&self) -> bool {
        let before = self.counts.counts.fetch_sub(SEARCHING, Ordering::AcqRel);
        debug_assert!(searching(before) > 0, "only a searcher ends its search");
        let last = searching(before) == 1;
        if last {
            fence(Ordering::SeqCst);
        }
        last
    }

    /// Worker `me` is about to sleep. The caller now looks at all queues again, and sleeps only if they are empty: this
    /// look finds work whose producer saw no worker to wake.
    pub(crate) fn prepare_park(&self, me: usize, was_searching: bool) {
        let change = if was_searching { PARKED - SEARCHING } else { PARKED };
        let before = self.counts.counts.fetch_add(change, Ordering::AcqRel);
        debug_assert!(!was_searching || searching(before) > 0, "only a searcher ends its search");
        let (word, parked_bit, summoned_bit) = self.place(me);
        let before = word.fetch_or(parked_bit, Ordering::AcqRel);
        debug_assert!(before & (parked_bit | summoned_bit) == 0, "a worker parks once");
        fence(Ordering::SeqCst);
    }

    /// Worker `me`, after `prepare_park`, does not want to sleep (any longer): there is work, or a timeout. True: it is
    /// neither parked nor searching now; if it goes on to take work, it must `notify` if more is left, as the last
    /// searcher must. False: it was woken already, counts as searching, and its unpark token is or will be set.
    pub(crate) fn cancel_park(&self, me: usize) -> bool {
        let (word, parked_bit, summoned_bit) = self.place(me);
        let before = word.fetch_and(!(parked_bit | summoned_bit), Ordering::AcqRel);
        if before & parked_bit != 0 {
            self.counts.counts.fetch_sub(PARKED, Ordering::AcqRel);
            return true;
        }
        if before & summoned_bit != 0 {
            self.counts.counts.fetch_add(SEARCHING, Ordering::AcqRel);
        }
        false
    }

    /// For worker `me`, back from its OS park: whether it is still parked (the wake-up was spurious, or an old token).
    /// If not, it was woken, and counts as searching. Only `me` may ask, between `prepare_park` and leaving the search.
    pub(crate) fn is_parked(&self, me: usize) -> bool {
        let (word, parked_bit, summoned_bit) = self.place(me);
        let now = word.load(Ordering::Acquire);
        if now & parked_bit != 0 {
            return true;
        }
        if now & summoned_bit != 0 {
            word.fetch_and(!summoned_bit, Ordering::AcqRel);
            self.counts.counts.fetch_add(SEARCHING, Ordering::AcqRel);
        }
        false
    }

    /// Called after work that only worker `who` can do was made visible to it: whether the caller must unpark `who`. If
    /// not, `who` is awake, or was woken by another thread, or has yet to look at its queues before it sleeps. `who`
    /// searches when it wakes.
    pub(crate) fn claim(&self, who: usize) -> bool {
        fence(Ordering::SeqCst);
        let (word, parked_bit, summoned_bit) = self.place(who);
        let mut now = word.load(Ordering::Relaxed);
        while now & parked_bit != 0 {
            let summoned = now & !parked_bit | summoned_bit;
            match word.compare_exchange_weak(now, summoned, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.counts.counts.fetch_sub(PARKED, Ordering::AcqRel);
                    return true;
                }
                Err(before) => now = before,
            }
        }
        false
    }

    /// The word index and the bit of the lowest parked worker that is seen.
    fn lowest(&self) -> Option<(usize, u64)> {
        self.bits.words.iter().enumerate().find_map(|(index, word)| {
            let bits = word.load(Ordering::Relaxed) & (PARKED - 1);
            (bits != 0).then(|| (index, bits & bits.wrapping_neg()))
        })
    }

    /// The word of a worker, its parked bit and its summoned bit.
    fn place(&self, worker: usize) -> (&AtomicU64, u64, u64) {
        let bit = 1 << (worker % PER_WORD);
        (&self.bits.words[worker / PER_WORD], bit, bit << PER_WORD)
    }

    /// How many workers search and how many are parked.
    #[cfg(test)]
    #[allow(dead_code, reason = "for the models, which compile this file with loom's atomics")]
    pub(crate) fn counts(&self) -> (u64, u64) {
        let counts = self.counts.counts.load(Ordering::Relaxed);
        (searching(counts), parked(counts))
    }
}

#[inline]
fn searching(counts: u64) -> u64 {
    counts & (PARKED - 1)
}

#[inline]
fn parked(counts: u64) -> u64 {
    counts >> 32
}
