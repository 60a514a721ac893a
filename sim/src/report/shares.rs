//! How much of a CPU each thread got, bucket by bucket: the data of the share-over-time chart.

use std::collections::BTreeMap;
use trace::Trace;

/// Shares of one CPU over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// How long one bucket is.
    pub bucket_ns: u64,
    /// For each thread of the trace's table, its share in each bucket.
    pub by_thread: Vec<Vec<f64>>,
}

impl Shares {
    /// Each value replaced by the mean of the last `window` up to it: what a reader can follow
    /// when threads take turns faster than a bucket.
    #[must_use]
    pub fn smoothed(&self, window: usize) -> Self {
        let window = window.max(1);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let smooth = |lane: &Vec<f64>| {
            (0..lane.len()).map(|at| mean(&lane[(at + 1).saturating_sub(window)..=at])).collect()
        };
        Self { bucket_ns: self.bucket_ns, by_thread: self.by_thread.iter().map(smooth).collect() }
    }
}

/// Cuts the trace into at most `buckets` equal parts and adds up how long each thread ran in each.
#[must_use]
pub fn shares_over_time(trace: &Trace, buckets: usize) -> Shares {
    let bucket_ns = trace.end_ns.div_ceil(buckets.max(1) as u64).max(1);
    let count = trace.end_ns.div_ceil(bucket_ns) as usize;
    let index: BTreeMap<u32, usize> =
        trace.threads.iter().enumerate().map(|(at, info)| (info.id, at)).collect();
    let mut by_thread = vec![vec![0.0; count]; trace.threads.len()];
    for run in trace.runs() {
        let Some(&thread) = run.thread.and_then(|thread| index.get(&thread)) else { continue };
        let mut at_ns = run.start_ns;
        while at_ns < run.end_ns {
            let bucket = at_ns / bucket_ns;
            let bucket_start_ns = bucket * bucket_ns;
            // The last bucket may be shorter than the others; its share refers to its own length.
            let bucket_end_ns = (bucket_start_ns + bucket_ns).min(trace.end_ns);
            let until_ns = run.end_ns.min(bucket_end_ns);
            by_thread[thread][bucket as usize] +=
                (until_ns - at_ns) as f64 / (bucket_end_ns - bucket_start_ns) as f64;
            at_ns = until_ns;
        }
    }
    Shares { bucket_ns, by_thread }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Kind, ThreadInfo};

    #[test]
    fn a_run_is_spread_over_the_buckets_it_touches() {
        let threads = vec![ThreadInfo { id: 4, ..ThreadInfo::default() }];
        let mut trace = Trace { cpus: 1, threads, end_ns: 25, ..Trace::default() };
        trace.push(5, 0, Kind::Run { thread: 4 });
        // 25 ns in at most 3 buckets: 9, 9 and 7 ns.
        let shares = shares_over_time(&trace, 3);
        assert_eq!(shares.bucket_ns, 9);
        assert_eq!(shares.by_thread, [[4.0 / 9.0, 1.0, 1.0]]);
    }

    #[test]
    fn smoothing_is_a_trailing_mean() {
        let shares = Shares { bucket_ns: 1, by_thread: vec![vec![1.0, 0.0, 0.5, 0.5]] };
        assert_eq!(shares.smoothed(2).by_thread, [[1.0, 0.5, 0.25, 0.5]]);
        assert_eq!(shares.smoothed(0), shares);
    }

    #[test]
    fn nothing_to_share() {
        assert_eq!(shares_over_time(&Trace::default(), 0).by_thread, Vec::<Vec<f64>>::new());
    }
}
