//! What each CPU tells the others about itself without a lock: the fields of [`sched::Summary`].
//!
//! Hints only. The fields are written one by one and may be read torn or old: whoever acts on them checks again under the
//! locks, and nobody goes to sleep because of them (that is the [`crate::doorbell`]'s business). So plain relaxed
//! words do, and loom does not explore them.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use sched::{CpuId, Summary, Utilisation};

use crate::doorbell::{bits_of, mask_of};

/// "Nobody": less overdue than any thread can be.
const NOBODY: i64 = i64::MIN;
const PPM: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Entry {
    clock: AtomicI64,
    weight: AtomicU64,
    waiting: AtomicU32,
    overdue: AtomicI64,
    restricted_overdue: AtomicI64,
    restricted_reach: AtomicU64,
    lone_waiter: AtomicU32,
    idle: AtomicU32,
    reserved_ppm: AtomicU64,
}

/// The published summaries.
#[derive(Debug)]
pub struct Board(Vec<Entry>);

impl Board {
    /// For `cpus` CPUs.
    pub fn new(cpus: usize) -> Board {
        Board((0..cpus).map(|_| Entry::default()).collect())
    }

    /// Writes the summary of one CPU; under its lock.
    pub fn publish(&self, summary: &Summary) {
        let entry = &self.0[summary.cpu.index()];
        entry.clock.store(summary.clock, Relaxed);
        entry.weight.store(summary.weight, Relaxed);
        entry.waiting.store(summary.waiting, Relaxed);
        entry.overdue.store(summary.overdue.unwrap_or(NOBODY), Relaxed);
        entry.restricted_overdue.store(summary.restricted_overdue.unwrap_or(NOBODY), Relaxed);
        entry.restricted_reach.store(bits_of(summary.restricted_reach), Relaxed);
        entry.lone_waiter.store(u32::from(summary.lone_waiter), Relaxed);
        entry.idle.store(u32::from(summary.idle), Relaxed);
        entry.reserved_ppm.store(summary.reserved.ppm(), Relaxed);
    }

    /// Reads the summary of one CPU, as far as it is known.
    pub fn read(&self, cpu: CpuId) -> Summary {
        let entry = &self.0[cpu.index()];
        let somebody = |overdue: i64| Some(overdue).filter(|overdue| *overdue != NOBODY);
        Summary {
            cpu,
            clock: entry.clock.load(Relaxed),
            weight: entry.weight.load(Relaxed),
            waiting: entry.waiting.load(Relaxed),
            overdue: somebody(entry.overdue.load(Relaxed)),
            restricted_overdue: somebody(entry.restricted_overdue.load(Relaxed)),
            restricted_reach: mask_of(entry.restricted_reach.load(Relaxed)),
            lone_waiter: entry.lone_waiter.load(Relaxed) != 0,
            idle: entry.idle.load(Relaxed) != 0,
            reserved: Utilisation::of(entry.reserved_ppm.load(Relaxed), PPM),
        }
    }

    /// The weight on one CPU.
    pub fn weight(&self, cpu: CpuId) -> u64 {
        self.0[cpu.index()].weight.load(Relaxed)
    }

    /// The CPUs that there are.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.0.len()).filter_map(CpuId::new)
    }
}
