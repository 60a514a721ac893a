//! The dump that a kernel writes when it powers off with a trace, and how it is read: buffers, thread table, check sum.
//!
//! The writing half needs neither `std` nor an allocator. All numbers are little-endian. In order:
//! * [`Header`];
//! * a [`CpuPart`] for each CPU;
//! * a [`NamedThread`] for each thread that ever existed;
//! * the records of CPU 0, of CPU 1, and so on: a *ticket* and the three words of an [`Event`];
//! * the [`Sum`] of all bytes before it.
//!
//! A ticket is the record's place in the one order of all CPUs. A writer takes it while it holds the locks of the queues
//! that the event is about, so that the order of tickets is the order in which each queue saw its events.
//! In a full buffer an event is written over the oldest one or, if the first events are kept, not at all. Tickets are counted in either case: they
//! show how many events are missing, and where.

use crate::Event;

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"capOStrc";
/// The version of this format.
pub const VERSION: u32 = 1;
/// Most CPUs in a dump.
pub const CPUS_MAX: usize = 256;
/// Most events of one CPU.
pub const EVENTS_MAX: usize = 1 << 20;
/// Most threads in a dump.
pub const THREADS_MAX: usize = 1 << 20;
/// Longest name of a thread; what is longer is cut.
pub const NAME_BYTES: usize = 24;
/// Bytes of [`Header`].
pub const HEADER_BYTES: usize = 48;
/// Bytes of [`CpuPart`].
pub const CPU_BYTES: usize = 56;
/// Bytes of [`NamedThread`].
pub const THREAD_BYTES: usize = 32;
/// Bytes of a record: ticket and event.
pub const RECORD_BYTES: usize = 32;
/// Bytes of the sum at the end.
pub const SUM_BYTES: usize = 8;

/// The running check sum (FNV-1a, 64 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Sum {
    /// The sum of no bytes.
    pub const NEW: Sum = Sum(0xcbf2_9ce4_8422_2325);

    /// The sum with these bytes added.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Sum {
        Sum(bytes.iter().fold(self.0, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)))
    }
}

/// The beginning of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of CPUs.
    pub cpus: u16,
    /// The ordering policy, numbered as the scheduling core does.
    pub policy: u8,
    /// Whether the kernel panicked.
    pub panicked: bool,
    /// Whether the last events of each CPU are kept, and not the first ones.
    pub keeps_last: bool,
    /// Events that a buffer holds.
    pub capacity: u32,
    /// Threads in the table.
    pub threads: u32,
    /// When the trace ended.
    pub end_ns: u64,
    /// Tickets that were given out: events that happened, kept or not.
    pub tickets: u64,
}

/// One CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPart {
    /// When the core's account of it begins.
    pub started_ns: u64,
    /// The core's account at the end (thread, idle, interrupt), unless its lock was held.
    pub time: Option<[u64; 3]>,
    /// Events that were kept.
    pub events: u32,
    /// Events that were not kept.
    pub lost: u64,
    /// The ticket of the first lost event, or of the last one if the last events are kept; `u64::MAX` if none was lost.
    pub lost_at: u64,
}

/// One thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedThread {
    /// The number that events use; never used twice.
    pub id: u32,
    /// Its process.
    pub pid: u32,
    /// The process's name, with zeros behind it.
    pub name: [u8; NAME_BYTES],
}

/// Appends numbers and bytes to a buffer.
struct Pen<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Pen<N> {
    const NEW: Self = Self { bytes: [0; N], at: 0 };

    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn long(self, value: u64) -> Self {
        self.put(&value.to_le_bytes())
    }

    fn word(self, value: u32) -> Self {
        self.put(&value.to_le_bytes())
    }
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let flags = u32::from(self.cpus) | u32::from(self.policy) << 16 | u32::from(self.panicked) << 24;
        let flags = flags | u32::from(self.keeps_last) << 25;
        let start = Pen::NEW.put(&MAGIC).word(VERSION).word(flags);
        start.word(self.capacity).word(self.threads).long(self.end_ns).long(self.tickets).long(0).bytes
    }
}

impl CpuPart {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CPU_BYTES] {
        let [thread, idle, interrupt] = self.time.unwrap_or([0; 3]);
        let start = Pen::NEW.word(u32::from(self.time.is_some())).word(self.events).long(self.started_ns);
        start.long(thread).long(idle).long(interrupt).long(self.lost).long(self.lost_at).bytes
    }
}

impl NamedThread {
    /// Its bytes, as words: what a kernel keeps.
    #[must_use]
    pub fn to_words(&self) -> [u64; 4] {
        let mut words = [u64::from(self.id) | u64::from(self.pid) << 32, 0, 0, 0];
        for (word, bytes) in words[1..].iter_mut().zip(self.name.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }
}

/// The bytes of four words: a record, or a thread of the table.
#[must_use]
pub fn row_bytes(words: [u64; 4]) -> [u8; RECORD_BYTES] {
    words.iter().fold(Pen::NEW, |pen, word| pen.long(*word)).bytes
}

/// A record's four words.
#[must_use]
pub fn record_words(ticket: u64, event: Event) -> [u64; 4] {
    let [time, second, third] = event.to_words();
    [ticket, time, second, third]
}

#[cfg(feature = "std")]
pub use read::{Dump, DumpError, Record, Thread};

#[cfg(feature = "std")]
#[path = "dump_read.rs"]
mod read;
