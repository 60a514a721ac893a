//! Deterministic mode: SPEC-021 [SCHED:9.1.1] to [SCHED:9.3.1], [SCHED:2.7.2]. Any number of *virtual* workers take
//! turns on one thread, in an order that a seeded generator chooses; time is virtual and moves when no task can run. So
//! the same input, seed, worker count and budgets give the same order, run for run, and another seed gives another
//! order.
//!
//! What a task does between two of its suspension points is atomic here. So quanta are short and random: a task that
//! checks can be interrupted at any check.

use crate::alloc::Quiet;
use crate::runtime::Shared;
use crate::task::TaskRef;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// A step of splitmix64: any seed, 0 too, gives a good stream.
pub(crate) fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The longest quantum, in operations.
const QUANTUM: u64 = 32;

/// One pick in `SURPRISE` takes any task of the queue.
const SURPRISE: u64 = 4;

/// See the module.
pub(crate) struct Det {
    state: u64,
    /// The virtual workers' queues.
    queues: Vec<VecDeque<TaskRef>>,
    /// The virtual worker whose turn it is.
    turn: usize,
    ready: usize,
    steps: u64,
    hash: u64,
    pub(crate) now_ns: u64,
}

impl Det {
    pub(crate) fn new(workers: usize, seed: u64) -> Det {
        Det {
            state: scramble(seed),
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            turn: 0,
            ready: 0,
            steps: 0,
            hash: 0xCBF2_9CE4_8422_2325,
            now_ns: 0,
        }
    }

    /// The next number of the stream.
    pub(crate) fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scramble(self.state)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.random()) * bound as u128) >> 64) as usize
    }

    /// How many operations the next quantum has.
    pub(crate) fn quantum(&mut self) -> u64 {
        1 + self.random() % QUANTUM
    }

    /// Adds a task to the queue of the virtual worker whose turn it is.
    pub(crate) fn push(&mut self, task: TaskRef) {
        let _quiet = Quiet::new();
        self.queues[self.turn].push_back(task);
        self.ready += 1;
    }

    /// Chooses a virtual worker and takes what that worker would take: its youngest task if that never ran, otherwise
    /// its oldest, otherwise the oldest of a victim.
    pub(crate) fn pick(&mut self, shared: &Shared) -> Option<TaskRef> {
        // Other threads push there, and their order is input from outside.
        while let Some(task) = shared.common.pop_one() {
            self.push(task);
        }
        if self.ready == 0 {
            return None;
        }
        self.turn = self.below(self.queues.len());
        let mut victim = self.turn;
        if self.queues[victim].is_empty() {
            victim = self.below(self.queues.len());
            while self.queues[victim].is_empty() {
                victim = (victim + 1) % self.queues.len();
            }
        }
        let own = victim == self.turn;
        // Sometimes take any task: this gives orders that real workers reach by being slow at the wrong moment.
        let surprise = self.random().is_multiple_of(SURPRISE).then(|| self.below(self.queues[victim].len()));
        let queue = &mut self.queues[victim];
        let youngest = own && queue.back().is_some_and(|task| !task.started());
        let task = match surprise {
            Some(place) => queue.swap_remove_back(place),
            None if youngest => queue.pop_back(),
            None => queue.pop_front(),
        }?;
        self.ready -= 1;
        self.steps += 1;
        let id = task.id.load(Ordering::Relaxed);
        for word in [self.turn as u64, id] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        }
        shared.order[0].store(self.steps, Ordering::Relaxed);
        shared.order[1].store(self.hash, Ordering::Relaxed);
        Some(task)
    }
}
