//! When a thread had a CPU, as measured by the thread itself, and that as a line of text.
//!
//! A thread that computes reads the clock again and again. Where two readings are far apart, it had no CPU in
//! between.

use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter, Write};

use crate::ticks::{self, Scale};

/// Two readings that are further apart than this have a pause between them: a reading takes less than a microsecond.
const PAUSE_NS: u64 = 250_000;
/// How many spans are kept; later ones are dropped. A timeline of this program has a few dozen.
const SPANS_MAX: usize = 512;

/// Time since a moment, without a system call.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_ticks: u64,
    scale: Scale,
}

impl Clock {
    /// Starts now.
    pub fn start(scale: Scale) -> Clock {
        Clock::since(ticks::now(), scale)
    }

    /// A clock that started at this reading of the CPU's counter.
    pub fn since(start_ticks: u64, scale: Scale) -> Clock {
        Clock { start_ticks, scale }
    }

    /// The reading at which the clock started, for threads that shall use the same start.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.scale.to_ns(ticks::now().saturating_sub(self.start_ticks))
    }
}

/// The spans of time in which a thread had a CPU.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// First and last nanosecond of each span, in chronological order.
    spans: Vec<(u64, u64)>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new()
    }
}

impl Timeline {
    /// The timeline of a thread that has not run.
    pub fn new() -> Timeline {
        Timeline { spans: Vec::with_capacity(SPANS_MAX) }
    }

    /// Computes while `go_on` returns true. `go_on` is given the time and for how long this call has had a CPU.
    pub fn compute_while(&mut self, clock: Clock, mut go_on: impl FnMut(u64, u64) -> bool) {
        let (mut first, mut last, mut own_ns) = (clock.now_ns(), clock.now_ns(), 0);
        while go_on(last, own_ns) {
            // Without this hint, the emulator that counts instructions lets no other CPU run.
            core::hint::spin_loop();
            let now = clock.now_ns();
            if now - last > PAUSE_NS {
                self.add(first, last);
                first = now;
            } else {
                own_ns += now - last;
            }
            last = now;
        }
        self.add(first, last);
    }

    fn add(&mut self, first: u64, last: u64) {
        if self.spans.len() < SPANS_MAX {
            self.spans.push((first, last));
        }
    }

    /// How long the thread had a CPU between two moments.
    pub fn ran_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        let part = |&(first, last): &(u64, u64)| last.min(to_ns).saturating_sub(first.max(from_ns));
        self.spans.iter().map(part).sum()
    }

    /// When the thread first had a CPU at or after a moment.
    pub fn first_after(&self, from_ns: u64) -> Option<u64> {
        self.spans.iter().find(|(_, last)| *last > from_ns).map(|(first, _)| (*first).max(from_ns))
    }

    /// A line of `columns` characters, each of which stands for `column_ns` nanoseconds.
    pub fn row(&self, column_ns: u64, columns: usize) -> Row<'_> {
        Row { timeline: self, column_ns, columns }
    }
}

/// A [`Timeline`] as text: `#` where the thread had a CPU for most of a column, `:` for a part of it, `.` for none.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    timeline: &'a Timeline,
    column_ns: u64,
    columns: usize,
}

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for column in 0..self.columns as u64 {
            let ran_ns = self.timeline.ran_ns(column * self.column_ns, (column + 1) * self.column_ns);
            f.write_char(match ran_ns {
                ran_ns if ran_ns * 2 >= self.column_ns => '#',
                ran_ns if ran_ns * 20 >= self.column_ns => ':',
                _ => '.',
            })?;
        }
        Ok(())
    }
}

/// The numbers above a timeline: one every `step` columns, each `step_ms` larger than the one before.
#[derive(Clone, Copy, Debug)]
pub struct Ruler {
    /// Columns of the timeline.
    pub columns: usize,
    /// Columns from one number to the next.
    pub step: usize,
    /// Milliseconds that `step` columns stand for.
    pub step_ms: u64,
}

impl Display for Ruler {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for index in 0..self.columns / self.step {
            let step = self.step;
            write!(f, "{:<step$}", index as u64 * self.step_ms)?;
        }
        f.write_str("ms")
    }
}
