//! How work scales with the number of workers: the table of `thread-scale` and `smp-process-scale`, and the assertions about it.

use alloc::vec::Vec;

use rt::println;

use crate::proof::Outcome;
use crate::{ensure, ticks};

/// How much more the work itself may cost when it is split among workers, in thousandths: time slices, timer interrupts.
const OVERHEAD_PERMILLE: u64 = 5;

/// One measurement, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Number of workers.
    pub workers: usize,
    /// From the first worker's start of work to the last worker's end.
    pub work: u64,
    /// The same, including starting and joining the workers.
    pub total: u64,
}

/// Measurements of one kind of workers.
pub struct Table {
    what: &'static str,
    /// Units of work: blocks times rounds.
    units: u64,
    /// Instructions that each worker may cost on top: start, gate, wake-ups, end.
    per_worker: u64,
    /// Instructions that all workers together may cost before their work: memory to be filled.
    before: u64,
    rows: Vec<(Row, Row)>,
}

impl Table {
    /// An empty table for `units` of work, done by workers that may cost `per_worker` instructions each, and `before` together before
    /// they begin.
    pub fn new(what: &'static str, units: u64, per_worker: u64, before: u64) -> Table {
        Table { what, units, per_worker, before, rows: Vec::new() }
    }

    /// Adds a measurement of the work, and one of the bare loop with as many workers.
    pub fn add(&mut self, work: Row, bare: Row) {
        self.rows.push((work, bare));
    }

    /// Prints speed-ups over one worker, in hundredths.
    pub fn show(&self) {
        let Some((one, bare_one)) = self.rows.first() else { return };
        let is_counted = ticks::is_counted();
        println!(
            "    the machine counts {}",
            if is_counted { "instructions" } else { "time: these are reports" }
        );
        println!(
            "    {:<9} {:>13} {:>13} {:>13}  speed-up: work  total   bare",
            self.what, "work", "total", "bare"
        );
        for (row, bare) in &self.rows {
            let times = |base: u64, now: u64| base * 100 / now.max(1);
            let (work, total) = (times(one.work, row.work), times(one.total, row.total));
            let loop_only = times(bare_one.work, bare.work);
            println!(
                "    {:<9} {:>13} {:>13} {:>13}           {:>2}.{:02}  {:>2}.{:02}  {:>2}.{:02}",
                row.workers,
                row.work,
                row.total,
                bare.work,
                work / 100,
                work % 100,
                total / 100,
                total % 100,
                loop_only / 100,
                loop_only % 100
            );
        }
        println!("    ticks for each block and round with one worker: {}", one.work / self.units.max(1));
    }

    /// Asserts that more workers add nothing but their own overhead. Where the machine counts instructions, all CPUs advance one clock,
    /// so the work takes the same number of ticks however many workers do it. Where the machine counts time, there is nothing to assert.
    pub fn check(&self) -> Outcome {
        if !ticks::is_counted() {
            println!("    not asserted: the machine counts time");
            return Ok(());
        }
        let Some((one, bare_one)) = self.rows.first() else { return Ok(()) };
        for (row, bare) in &self.rows {
            let workers = row.workers as u64 * self.per_worker;
            let allowed = |base: u64| base + base * OVERHEAD_PERMILLE / 1000 + workers;
            for (what, now, base) in [
                ("work", row.work, one.work),
                ("total", row.total, one.total),
                ("bare loop", bare.work, bare_one.work),
            ] {
                ensure!(
                    now <= allowed(base),
                    "{} {}: {what} takes {now} instructions, with one {base}, allowed are {}",
                    row.workers,
                    self.what,
                    allowed(base)
                );
            }
            // Starting and joining is a part of the total, not of the work.
            let around = row.total.saturating_sub(row.work);
            ensure!(
                around <= workers + self.before,
                "{} {}: {around} instructions around the work",
                row.workers,
                self.what
            );
        }
        Ok(())
    }
}
