//! The peers' half of the comparison: everything that a best-effort scheduler does besides ordering.
//!
//! A [`Peer`] does the work of `sched::Cpu` for best-effort threads on one CPU: weighted charge with carried remainder,
//! clock of service and credit, average position, joining clamp, tags, quanta, preemption check, timer deadline, and the same counters. It is written
//! as somebody would who has only a standard container for the order: a thread table (`Vec`, indexed by id) and an [`Order`] of
//! keys and ids beside it. Both peers share this file, so they differ in the container and in nothing else.
//!
//! Leaner than ours on purpose: no CPU masks, contexts, throttling, direct handoff or interrupt time, and only branches that
//! this workload takes. What ours pays for having those is part of the comparison. What can be computed once per weight
//! (slice, credit limit) is, and the clock divides once an event.

mod btree;
mod heap;

pub use btree::{BTree, BTreeScan, BTreeTwo};
pub use heap::{Heap, HeapTwo};

use sched::{Effect, FOREVER, LatencyClass, REFERENCE_WEIGHT, SLICE_NS, Snapshot, WAKE_GAP_DIVISOR, Weight};

/// A queue key: tag, then order of arrival, then whose it is.
pub type Entry = (i64, u64, u32);

/// What an [`Order`] may look up of a thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Where it is in virtual time.
    pub position: i64,
    /// Its tag.
    pub deadline: i64,
    /// Under which number it is queued; 0 while it is not. Tells live entries of a lazy heap from dead ones.
    pub sequence: u64,
    weight: u64,
    virtual_slice: i64,
    quantum_ns: u64,
    remainder: u64,
    lag: i64,
    credit_limit: i64,
    slice_ns: u64,
    runtime_ns: u64,
    virtual_runtime_ns: u64,
    runnable_ns: u64,
    runnable_since_ns: u64,
    voluntary_blocks: u64,
    preemptions: u64,
    class: LatencyClass,
    joined: bool,
}

impl Thread {
    /// Its tag if it were queued now.
    fn tag<O: Order>(&self) -> i64 {
        let asks_anew = self.position >= self.deadline || self.deadline - self.position > self.virtual_slice;
        if !O::EEVDF || asks_anew { self.position + self.virtual_slice } else { self.deadline }
    }
}

/// The container that keeps waiting threads in order.
pub trait Order: Default {
    /// Whether it orders for EEVDF (`true`: only threads at or behind `limit` are popped) or for WFQ.
    const EEVDF: bool;
    /// The name in rows.
    const NAME: &'static str;

    /// Queues a thread under its `deadline` and `sequence`. `limit` is the last known eligibility limit: a hint.
    fn insert(&mut self, id: u32, thread: &Thread, limit: i64);

    /// Takes the first thread, of those at or behind `limit` if this is EEVDF.
    fn pop(&mut self, threads: &[Thread], limit: i64) -> Option<u32>;

    /// Takes out a thread that is queued; its `sequence` becomes 0 right after.
    fn remove(&mut self, id: u32, threads: &[Thread], limit: i64);
}

/// Who runs, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The thread.
    pub run: u32,
    /// The end of its quantum.
    pub until_ns: u64,
    /// Whether it is another one than before.
    pub switched: bool,
}

#[derive(Default)]
struct Clock {
    origin: i64,
    weighted: i64,
    weight: i64,
    high: i64,
    served: i64,
    skew: i64,
}

impl Clock {
    /// Service moves the clock; credit holds it.
    fn settle(&mut self) {
        if self.weight > 0 && self.served >= self.weight {
            let step = self.served / self.weight;
            self.high += step;
            self.served -= step * self.weight;
        }
    }

    /// Afterwards `origin` is the average, rounded down: also the eligibility limit.
    fn anchor(&mut self) {
        if self.weight <= 0 {
            return;
        }
        let step = self.weighted.div_euclid(self.weight);
        self.origin += step;
        self.weighted -= step * self.weight;
    }

    /// What all threads here together are behind the clock.
    fn behind(&self) -> i64 {
        self.weight * (self.high - self.origin) - self.weighted
    }

    fn enter(&mut self, thread: &mut Thread) {
        self.settle();
        if thread.joined {
            let common = self.high + self.skew;
            if self.weight == 0 && thread.position > common {
                self.skew += thread.position - common;
            }
            let owed = self.high + self.skew - thread.position;
            let lag = owed.max(thread.lag).min(thread.credit_limit);
            if self.weight > 0 && lag > thread.lag {
                let weight = thread.weight as i64;
                self.served -= weight * (lag - thread.lag);
                self.served = self.served.max(-(self.behind() + weight * lag).max(0));
            }
            let shift = self.high - lag - thread.position;
            thread.position += shift;
            thread.deadline += shift;
        } else {
            thread.position = self.high;
            thread.deadline = self.high;
        }
        if self.weight == 0 {
            self.origin = thread.position;
        }
        self.weighted += thread.weight as i64 * (thread.position - self.origin);
        self.weight += thread.weight as i64;
        self.anchor();
    }

    fn leave(&mut self, thread: &mut Thread) {
        self.settle();
        self.weighted -= thread.weight as i64 * (thread.position - self.origin);
        self.weight -= thread.weight as i64;
        self.anchor();
        self.served = self.served.min((self.weight - 1).max(0)).max(-self.behind().max(0));
        thread.lag = self.high - thread.position;
        thread.position += self.skew;
        thread.deadline += self.skew;
        thread.joined = true;
    }
}

/// One CPU that schedules with the order `O`.
pub struct Peer<O> {
    order: O,
    threads: Vec<Thread>,
    clock: Clock,
    waiting: usize,
    sequence: u64,
    running: Option<u32>,
    until_ns: u64,
    at_ns: u64,
    thread_ns: u64,
    idle_ns: u64,
}

impl<O: Order> Peer<O> {
    /// An idle CPU and its threads, none of which is queued.
    pub fn new(knobs: impl Iterator<Item = (u16, LatencyClass)>) -> Peer<O> {
        let threads = knobs.map(|(weight, class)| {
            let to_virtual =
                |real_ns: u64| (real_ns * u64::from(REFERENCE_WEIGHT) / u64::from(weight)) as i64;
            Thread {
                position: 0,
                deadline: 0,
                sequence: 0,
                weight: u64::from(weight),
                virtual_slice: to_virtual(class.slice_ns()),
                quantum_ns: 0,
                remainder: 0,
                lag: 0,
                credit_limit: to_virtual(SLICE_NS),
                slice_ns: class.slice_ns(),
                runtime_ns: 0,
                virtual_runtime_ns: 0,
                runnable_ns: 0,
                runnable_since_ns: 0,
                voluntary_blocks: 0,
                preemptions: 0,
                class,
                joined: false,
            }
        });
        Peer {
            order: O::default(),
            threads: threads.collect(),
            clock: Clock::default(),
            waiting: 0,
            sequence: 0,
            running: None,
            until_ns: FOREVER,
            at_ns: 0,
            thread_ns: 0,
            idle_ns: 0,
        }
    }

    /// The counters of a thread, the wait that goes on included.
    pub fn snapshot(&self, id: u32) -> Snapshot {
        let thread = &self.threads[id as usize];
        let waits_ns = if thread.sequence == 0 { 0 } else { self.at_ns - thread.runnable_since_ns };
        Snapshot {
            weight: Weight::new(thread.weight as u16).expect("taken from a valid weight"),
            class: thread.class,
            runtime_ns: thread.runtime_ns,
            virtual_runtime_ns: thread.virtual_runtime_ns,
            voluntary_blocks: thread.voluntary_blocks,
            preemptions: thread.preemptions,
            runnable_accumulated_ns: thread.runnable_ns + waits_ns,
            throttled_ns: 0,
            served_ns: 0,
            migrations: 0,
            throttles: 0,
            is_throttled: false,
        }
    }

    fn charge(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.at_ns);
        if elapsed == 0 {
            return;
        }
        self.at_ns = now;
        let Some(id) = self.running else {
            self.idle_ns += elapsed;
            return;
        };
        self.thread_ns += elapsed;
        let thread = &mut self.threads[id as usize];
        thread.runtime_ns += elapsed;
        let scaled = elapsed * u64::from(REFERENCE_WEIGHT) + thread.remainder;
        let virtual_ns = (scaled / thread.weight) as i64;
        thread.remainder = scaled % thread.weight;
        thread.position += virtual_ns;
        thread.virtual_runtime_ns += virtual_ns as u64;
        thread.quantum_ns = thread.quantum_ns.saturating_sub(elapsed);
        let service = thread.weight as i64 * virtual_ns;
        self.clock.weighted += service;
        self.clock.served += service;
    }

    fn queue(&mut self, id: u32) {
        let thread = &mut self.threads[id as usize];
        thread.deadline = thread.tag::<O>();
        self.sequence += 1;
        thread.sequence = self.sequence;
        self.order.insert(id, thread, self.clock.origin);
        self.waiting += 1;
    }

    /// A thread becomes runnable.
    pub fn enqueue(&mut self, id: u32, now: u64) -> Effect {
        self.charge(now);
        let thread = &mut self.threads[id as usize];
        thread.runnable_since_ns = self.at_ns;
        self.clock.enter(thread);
        self.queue(id);
        let Some(running) = self.running else { return Effect::Dispatch };
        let (newcomer, running) = (&self.threads[id as usize], &self.threads[running as usize]);
        let eligible = !O::EEVDF || {
            self.clock.anchor();
            newcomer.position <= self.clock.origin
        };
        let picked_tag = running.deadline + i64::from(newcomer.position < running.position);
        let now_tag = running.tag::<O>() - running.virtual_slice / WAKE_GAP_DIVISOR;
        if eligible && newcomer.deadline < now_tag.max(picked_tag) {
            return Effect::Dispatch;
        }
        let until_ns = self.at_ns + running.quantum_ns;
        if until_ns == self.until_ns {
            return Effect::Keep;
        }
        self.until_ns = until_ns;
        Effect::Rearm { until_ns }
    }

    /// The running thread waits for something.
    pub fn block(&mut self, now: u64) -> Option<u32> {
        self.charge(now);
        let id = self.running.take()?;
        let thread = &mut self.threads[id as usize];
        self.clock.leave(thread);
        thread.voluntary_blocks += 1;
        Some(id)
    }

    /// Puts the running thread back and chooses who runs next. At that point every counted thread is queued, so there
    /// is always one that is eligible.
    pub fn dispatch(&mut self, now: u64) -> Option<Picked> {
        self.charge(now);
        let previous = self.running.take();
        if let Some(id) = previous {
            let thread = &mut self.threads[id as usize];
            thread.runnable_since_ns = self.at_ns;
            thread.preemptions += 1;
            self.queue(id);
        }
        if O::EEVDF {
            self.clock.anchor();
        }
        let id = self.order.pop(&self.threads, self.clock.origin)?;
        self.waiting -= 1;
        let switched = previous != Some(id);
        let thread = &mut self.threads[id as usize];
        thread.sequence = 0;
        thread.preemptions -= u64::from(!switched);
        thread.runnable_ns += self.at_ns - thread.runnable_since_ns;
        thread.quantum_ns = if O::EEVDF {
            let left = (thread.deadline - thread.position).max(0) as u64;
            (left * thread.weight).div_ceil(u64::from(REFERENCE_WEIGHT)).clamp(1, thread.slice_ns)
        } else {
            thread.slice_ns
        };
        self.until_ns = if self.waiting == 0 { FOREVER } else { self.at_ns + thread.quantum_ns };
        self.running = Some(id);
        Some(Picked { run: id, until_ns: self.until_ns, switched })
    }

    /// Takes a queued thread out; answers whether it was queued.
    pub fn remove(&mut self, id: u32, now: u64) -> bool {
        if self.threads[id as usize].sequence == 0 {
            return false;
        }
        self.charge(now);
        self.order.remove(id, &self.threads, self.clock.origin);
        self.waiting -= 1;
        let thread = &mut self.threads[id as usize];
        thread.sequence = 0;
        self.clock.leave(thread);
        true
    }
}
