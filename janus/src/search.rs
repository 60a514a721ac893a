//! What a worker does when it has no task: SPEC-021 [SCHED:6.3.1] "Worker Loop", [SCHED:7.2.1] "Steal Protocol",
//! [SCHED:7.3.1] "Victim Selection", [SCHED:7.4.1] and [SCHED:7.4.2] "Steal Bounds".
//!
//! All of this runs on the thread's own stack. A worker searches for a while, then backs off in naps of 1 µs to 1 ms,
//! then sleeps until it is woken. A nap can be ended like any sleep; only a worker that wakes a single task does not
//! end the naps of others.

use crate::atomics::{fence, spin_loop};
use crate::config::Strategy;
use crate::det::scramble;
use crate::stats::Counters;
use crate::task::TaskRef;
use crate::timers::NEVER;
use crate::worker::Worker;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Victims that one round of stealing looks at, at most [SCHED:7.2.1].
const ATTEMPTS: usize = 4;
/// How long a worker searches before it backs off: longer than a wake-up costs, so that a runtime which is never quite idle
/// does not wake its workers over and over.
const SEARCH: Duration = Duration::from_micros(50);
/// Rounds between two looks at the clock.
const ROUNDS: u32 = 32;
/// Pauses between rounds: at first, and at most, when the other workers run the tasks that they make themselves.
const PAUSES: u32 = 1;
const PAUSES_MOST: u32 = 128;
/// How many naps a worker takes before it sleeps for good.
const NAPS: u32 = 11;
/// How many more tasks a thief takes along at most.
const LOOT: usize = 16;

impl Worker {
    /// Runs until the runtime ends, or the thread is to be replaced.
    pub(crate) fn run_loop(&self) {
        let shared = self.shared();
        let mut searching = false;
        let mut naps = 0;
        // The worker left the set of parked workers by itself: producers may have relied on it to search.
        let mut owes = false;
        loop {
            if self.panic_wanted.load(Ordering::Relaxed) {
                if searching {
                    shared.idle.end_search();
                }
                self.panic_wanted.store(false, Ordering::Relaxed);
                panic!("a test asked this worker to panic");
            }
            // A task was abandoned on this thread: the worker continues on another one.
            if self.stained.get() && shared.config.migrates() && !searching {
                return;
            }
            if shared.stopping() {
                match self.pick() {
                    Some(task) => self.resume(task),
                    None => return,
                }
                continue;
            }
            if self.spare && self.retired.load(Ordering::Acquire) {
                if searching {
                    shared.idle.end_search();
                    searching = false;
                }
                self.stand_by();
                continue;
            }
            if !searching {
                if let Some(task) = self.pick() {
                    naps = 0;
                    if std::mem::take(&mut owes) && shared.somebody_wanted() {
                        shared.notify();
                    }
                    self.resume(task);
                    continue;
                }
                if shared.is_deterministic() {
                    self.wait_deterministically();
                    continue;
                }
                shared.fire_timers(Some(self));
                searching = shared.idle.start_search();
            }
            if searching && let Some(task) = self.search() {
                searching = false;
                naps = 0;
                if shared.idle.end_search() && shared.somebody_wanted() {
                    shared.notify();
                }
                self.resume(task);
                continue;
            }
            searching = self.park(searching, &mut naps);
            owes = !searching;
        }
    }

    /// Looks for a task in all places, for a while.
    fn search(&self) -> Option<TaskRef> {
        let shared = self.shared();
        let mut pauses = PAUSES;
        let start = Instant::now();
        for round in 1.. {
            if round % ROUNDS == 0 {
                if start.elapsed() > SEARCH || self.io.is_busy() {
                    break;
                }
                shared.fire_timers(Some(self));
            }
            if let Some(task) = self.pick() {
                return Some(task);
            }
            match self.try_steal() {
                Look::Found(task) => return Some(task),
                look => pauses = pauses_after(&look, pauses),
            }
            if shared.stopping() {
                return None;
            }
            for _ in 0..pauses {
                spin_loop();
            }
        }
        None
    }

    /// One round of stealing.
    fn try_steal(&self) -> Look {
        if !self.steal_enabled.load(Ordering::Relaxed) {
            return Look::Nothing;
        }
        let workers = &self.shared().workers;
        let mut look = Look::Nothing;
        for attempt in 0..ATTEMPTS.min(workers.len() - 1) {
            let victim = &workers[self.victim(attempt)];
            if victim.index == self.index {
                continue;
            }
            let there = victim.takeable();
            let epoch = victim.beacon.epoch.load(Ordering::Relaxed);
            // The victim picks one task after the other and has none to spare, whether one waits at this very moment or
            // not.
            if self.seen.has_moved(victim.index, epoch) && there < 2 {
                look = Look::Busy;
            }
            if there > 0 {
                // A single task is most often the one that its worker will run next: leave it there for a moment. It is
                // taken if that worker has not picked anything since the last look.
                if there == 1 && !self.stood_still(victim, epoch) {
                    look = Look::Busy;
                    continue;
                }
                if let Some(task) = self.steal_from(victim) {
                    Counters::add(&self.counters.tasks_stolen);
                    self.shared().log_steal(self, task, victim.index);
                    self.loot(victim, there);
                    return Look::Found(task);
                }
                // There was nothing that we could take: look at other victims.
                self.last_look.set((u16::MAX, 0));
            }
            Counters::add(&self.counters.steals_failed);
        }
        look
    }

    /// For a victim that has one task: whether it had one at the last look, and has not moved on since. Only one victim
    /// is remembered, until it moves on: otherwise two victims that stand still would push each other out, and neither
    /// would be relieved.
    fn stood_still(&self, victim: &Worker, epoch: u64) -> bool {
        let (last, before) = self.last_look.get();
        if last == victim.index && before == epoch {
            return true;
        }
        let stands = |other: &Worker| {
            other.index != victim.index
                && other.beacon.epoch.load(Ordering::Relaxed) == before
                && other.takeable() == 1
        };
        if !self.shared().workers.get(usize::from(last)).is_some_and(stands) {
            self.last_look.set((victim.index, epoch));
        }
        false
    }

    /// Takes a part of the other tasks that the victim has.
    fn loot(&self, victim: &Worker, there: usize) {
        for _ in 0..(there / 2).min(LOOT) {
            match self.steal_from(victim) {
                Some(task) => self.push(task),
                None => return,
            }
        }
    }

    fn victim(&self, attempt: usize) -> usize {
        let shared = self.shared();
        let count = shared.workers.len();
        let random = || {
            self.rng.set(self.rng.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
            let random = scramble(self.rng.get());
            ((u128::from(random) * count as u128) >> 64) as usize
        };
        match shared.config.strategy {
            // With few workers, a round looks at each of them once.
            Strategy::RandomVictim if count - 1 <= ATTEMPTS => {
                (usize::from(self.index) + 1 + attempt) % count
            }
            Strategy::RandomVictim => random(),
            Strategy::RoundRobin => {
                let turn = self.turn.get().wrapping_add(1);
                self.turn.set(turn);
                turn % count
            }
            Strategy::LeastLoaded if attempt == 0 => {
                let busiest =
                    shared.workers.iter().filter(|w| w.index != self.index).max_by_key(|w| w.stealable());
                busiest.map_or(0, |worker| usize::from(worker.index))
            }
            Strategy::LeastLoaded => random(),
        }
    }

    /// Whether there is anything for this worker to do, as far as can be seen. Asked before it sleeps for good.
    fn anything(&self) -> bool {
        // Its own rings count too: a timer that it fired itself may have put a task there that no other worker can see.
        let own = || !self.inbox.is_empty() || self.rings.iter().any(|ring| !ring.is_empty());
        self.shared().work_visible() || own() || self.shared().stopping()
    }

    /// As `anything`, before a nap, which ends by itself: a single task is left to its worker, unless it was there at
    /// the last look and that worker has not moved on since.
    fn anything_much(&self) -> bool {
        let shared = self.shared();
        let others = || {
            shared.workers.iter().filter(|worker| worker.index != self.index).any(|worker| {
                let epoch = worker.beacon.epoch.load(Ordering::Relaxed);
                match worker.takeable() {
                    0 => false,
                    1 => self.stood_still(worker, epoch),
                    _ => true,
                }
            })
        };
        let own = !self.inbox.is_empty() || self.rings.iter().any(|ring| !ring.is_empty());
        own || !shared.common.is_empty() || shared.stopping() || others()
    }

    /// Sleeps, unless there is work after all: in naps at first, then for good. Returns whether the worker now counts
    /// as searching.
    ///
    /// A napping worker looks again by itself, so a task that wakes one other task need not wake a worker for it (see
    /// `Shared::notify_wake`): two tasks that talk to each other stay on their worker. The last nap ends with a fence
    /// and a strict look, so that work whose producer relied on the napping worker is not forgotten.
    fn park(&self, searching: bool, naps: &mut u32) -> bool {
        let shared = self.shared();
        let me = usize::from(self.index);
        // A worker with I/O under way sleeps where the I/O wakes it. It does not count as napping, so no wake-up relies
        // on it.
        let mut napping = *naps < NAPS && !self.io.is_busy();
        if napping {
            shared.napping.fetch_add(1, Ordering::SeqCst);
        }
        let wake_up = |napping: bool| {
            if napping {
                shared.napping.fetch_sub(1, Ordering::SeqCst);
            }
        };
        shared.idle.prepare_park(me, searching);
        if if napping { self.anything_much() } else { self.anything() } {
            wake_up(napping);
            return !shared.idle.cancel_park(me) || shared.idle.start_search();
        }
        Counters::add(&self.counters.parks);
        shared.log_idle(self);
        let keeper = shared.keep_time(self.index);
        loop {
            if napping && *naps >= NAPS {
                napping = false;
                wake_up(true);
                fence(Ordering::SeqCst);
                if self.anything() {
                    let searching = !shared.idle.cancel_park(me);
                    shared.release_time(keeper);
                    return searching;
                }
            }
            let nap = if napping { nap(*naps) } else { None };
            if nap.is_some() {
                Counters::add(&self.counters.naps);
            }
            *naps += 1;
            let until = if keeper { shared.until_first_timer() } else { None };
            self.rest(nap.into_iter().chain(until).min());
            if !shared.idle.is_parked(me) {
                *naps = 0;
                wake_up(napping);
                shared.release_time(keeper);
                return true;
            }
            let due = keeper && shared.timers.first() <= shared.now_ns();
            let look = if napping { self.anything_much() } else { self.anything() };
            if due || look || self.panic_wanted.load(Ordering::Relaxed) {
                wake_up(napping);
                // In this order: the next keeper is not this worker, and is not called for a timer that has already
                // fired.
                let searching = !shared.idle.cancel_park(me);
                shared.fire_timers(Some(self));
                shared.release_time(keeper);
                return searching;
            }
        }
    }

    /// A spare that is not needed hands over the tasks that it has and sleeps.
    fn stand_by(&self) {
        let shared = self.shared();
        while self.retired.load(Ordering::Acquire) && !shared.stopping() {
            // Also tasks whose I/O, which it still watches, ends later.
            while let Some(task) = self.pick_own() {
                shared.common.push(task);
            }
            shared.notify();
            self.rest(None);
        }
    }

    /// Deterministic mode, when no task can run: moves the time, or waits for a thread outside.
    fn wait_deterministically(&self) {
        let shared = self.shared();
        // SAFETY: on the worker's own thread.
        let det = unsafe { self.det() }.expect("deterministic mode");
        let first = shared.timers.first();
        if first != NEVER {
            det.now_ns = det.now_ns.max(first);
            shared.set_virtual_time(det.now_ns);
            // Deterministic mode has one shelf of timers, and no timer is armed meanwhile.
            let _ = shared.timers.fire(det.now_ns, Some(self));
            return;
        }
        shared.log_idle(self);
        let me = usize::from(self.index);
        shared.idle.prepare_park(me, false);
        while shared.idle.is_parked(me) && !shared.work_visible() && !shared.stopping() {
            self.rest(None);
        }
        if shared.idle.cancel_park(me) {
            return;
        }
        shared.idle.end_search();
    }
}

/// The back-off [SCHED:6.3.1]: how long a worker naps after `naps` naps: 1 µs, doubled each time, up to 1 ms. `None`:
/// it naps no more, and sleeps until it is woken.
fn nap(naps: u32) -> Option<Duration> {
    (naps < NAPS).then(|| Duration::from_micros(1 << naps))
}

/// How long to pause after a look at the other workers, given the pause before it.
///
/// A worker that makes tasks and runs them itself pays for each look with a cache miss, so the looks become rarer. One look that saw no movement
/// says little, because that look may have come just after the one before: the pause shortens by and by. If it went back to the shortest at once, the
/// next two looks would find the same single task, take it for one that stands still, and steal it from a worker that was about to run it; thief and
/// victim would then change places over and over.
fn pauses_after(look: &Look, pauses: u32) -> u32 {
    match look {
        Look::Busy => (pauses * 2).min(PAUSES_MOST),
        Look::Nothing | Look::Found(_) => (pauses / 2).max(PAUSES),
    }
}

/// What one round of stealing came to.
enum Look {
    Found(TaskRef),
    Nothing,
    Busy,
}

#[cfg(test)]
mod tests;
