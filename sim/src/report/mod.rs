//! Pictures and tables of a run: what a person looks at to see what the scheduler did.
//!
//! Input is a [`trace::Trace`] and a [`Summary`]; output is text, SVG or one HTML file. Nothing
//! here decides anything or touches the machine: same input, same bytes.

mod escape;
pub mod html;
mod shares;
mod summary;
pub mod svg;
pub mod table;
pub mod timeline;
pub mod units;

#[cfg(test)]
mod demo;

pub use shares::{Shares, shares_over_time};
pub use summary::{percentile_ppm, wake_waits};

/// The figures of one run, ready to be shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// What the run is called.
    pub title: String,
    /// What it shows, in a sentence or two for a reader who has never seen it.
    pub about: String,
    /// The scheduling policy's name.
    pub policy: String,
    /// The seed; with the scenario it determines everything.
    pub seed: u64,
    /// The command line that makes the same run again.
    pub command: String,
    /// How much time was simulated.
    pub end_ns: u64,
    /// One row a thread, in the order of the trace's thread table.
    pub threads: Vec<ThreadRow>,
    /// One row a CPU, by number.
    pub cpus: Vec<CpuRow>,
    /// Named counts (switches, steals, IPIs …), in the order in which they are shown.
    pub counters: Vec<(String, u64)>,
}

/// What one thread got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadRow {
    /// Its name.
    pub name: String,
    /// Its weight at the start.
    pub weight: u32,
    /// Its latency class at the start.
    pub class: String,
    /// How long it ran.
    pub run_ns: u64,
    /// The same as a share of one CPU: 1.0 is one whole CPU.
    pub share: f64,
    /// The share that a perfectly divisible CPU would have given it, when that is known.
    pub expected_share: Option<f64>,
    /// How often it waited for a CPU after a wake.
    pub waits: u64,
    /// Half of these waits were at most this long.
    pub wake_p50_ns: u64,
    /// Of a hundred of these waits, 99 were at most this long.
    pub wake_p99_ns: u64,
    /// The longest of these waits.
    pub wake_max_ns: u64,
    /// How often it lost the CPU while it could run on.
    pub preemptions: u64,
    /// How often it ran on another CPU than the time before.
    pub migrations: u64,
    /// How often it ran out of budget.
    pub throttles: u64,
}

/// Where one CPU's time went; the three add up to the time of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuRow {
    /// In threads.
    pub thread_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// In the scheduler itself: switches, IPIs, lock waits.
    pub system_ns: u64,
}
