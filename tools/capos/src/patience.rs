//! Time limits that do not depend on the load of the host (K-24): time in which a machine wanted a CPU of the host and had none does not count.

use std::time::{Duration, Instant};

/// By how much a limit may be stretched at most, so that a machine that waits for ever is noticed on any host.
const STRETCH_MAX: u32 = 10;

/// A limit that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    start: Instant,
    limit: Duration,
    starved: Duration,
}

impl Patience {
    /// A limit that begins now, for a process that was starved for `starved` before.
    #[must_use]
    pub fn new(limit: Duration, starved: Duration) -> Patience {
        Patience { start: Instant::now(), limit, starved }
    }

    /// When the limit ends, given for how long the process has been `starved` by now.
    #[must_use]
    pub fn end(&self, starved: Duration) -> Instant {
        let lost = starved.saturating_sub(self.starved).min(self.limit * (STRETCH_MAX - 1));
        self.start + self.limit + lost
    }
}

/// The longest time for which a thread of the process has waited for a CPU so far. Zero if the host does not report it.
#[must_use]
pub fn starved(process: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Duration::ZERO };
    let waits = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        waited(&text)
    });
    waits.max().unwrap_or_default()
}

/// The second of the three numbers of `schedstat`: nanoseconds in which the thread could run and did not.
fn waited(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_24_starved_time_does_not_count_and_has_a_bound() {
        let limit = Duration::from_secs(60);
        let patience = Patience::new(limit, Duration::from_secs(5));
        let end = |starved| patience.end(Duration::from_secs(starved)) - patience.start;
        assert_eq!(end(5), limit, "it never waited: the limit is the limit");
        assert_eq!(end(45), Duration::from_secs(100));
        assert_eq!(end(100_000), limit * STRETCH_MAX);
        assert_eq!(end(0), limit);
    }

    #[test]
    fn the_host_says_how_long_a_thread_waited() {
        assert_eq!(waited("12 34000 5\n"), Some(Duration::from_micros(34)));
        assert_eq!(waited(""), None);
        assert_eq!(starved(0), Duration::ZERO, "no such process");
    }
}
