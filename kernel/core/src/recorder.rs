//! The flight recorder (K-27): the last moments, kept in memory for a panic's report and for a tool that reads the memory of a machine that hangs or
//! has reset itself.
//!
//! Kernel and host tool compile this file: the kernel writes the rings, both read and print them. Everything is fixed in size and made of atomics,
//! so a writer takes no lock and a reader may come at any instruction.

use crate::rank::HeldRanks;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The first word of a record: `capOSrec`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"capOSrec");
/// The version of its layout.
pub const VERSION: u64 = 1;
/// What the kernel's ELF file calls the record.
pub const SYMBOL: &str = "FLIGHT_RECORDER";
/// Events that each CPU keeps. A power of two: the index is masked.
pub const EVENTS: usize = 128;
/// Bytes of console output that are kept.
pub const LOG_BYTES: usize = 8 << 10;
/// How many threads' names are kept; of two whose numbers have the same remainder, the name that came last.
pub const NAMES: usize = 256;
/// Most CPUs.
pub const CPUS: usize = 256;
/// Longest name of a process.
pub const NAME_BYTES: usize = 24;

const _: () = assert!(EVENTS.is_power_of_two() && LOG_BYTES.is_power_of_two() && NAMES.is_power_of_two());

/// One event of a CPU. A thread is named by the address of its record, which the kernel has at hand; [`Head::thread`] makes a number of it.
///
/// Only what is needed to follow a CPU: one more event on the path of a call between CPUs would cost a percent of that call. That a CPU was idle
/// shows in the interrupt that ended it, or in a thread that runs twice in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The CPU runs this thread from now on.
    Run {
        /// The address of its record.
        thread: u64,
    },
    /// An interrupt was taken while a thread ran. Not one by which another CPU only asks for a look at the queue: the thread that runs next shows
    /// that.
    Interrupt {
        /// The interrupt's vector.
        vector: u32,
    },
    /// The same, while the CPU was idle.
    IdleInterrupt {
        /// The interrupt's vector.
        vector: u32,
    },
}

/// The vector noted for interrupts that waited and were served in a pause of a long path: no interrupt has that number.
pub const IN_A_PAUSE: u32 = 0;

/// Records of threads are aligned to this, which leaves the low bits of the address for the kind of an event.
pub const THREAD_ALIGN: u64 = 8;

impl Mark {
    /// As one word.
    #[inline(always)]
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            // An addition: the address has none of these bits, and one instruction does it.
            Mark::Run { thread } => thread + 1,
            Mark::Interrupt { vector } => (vector as u64) << 3 | 2,
            Mark::IdleInterrupt { vector } => (vector as u64) << 3 | 3,
        }
    }

    /// From one word; `None` if the word is no event.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Mark> {
        match word % THREAD_ALIGN {
            1 => Some(Mark::Run { thread: word - 1 }),
            2 => Some(Mark::Interrupt { vector: (word >> 3) as u32 }),
            3 => Some(Mark::IdleInterrupt { vector: (word >> 3) as u32 }),
            _ => None,
        }
    }
}

/// The last events of one CPU, written by that CPU alone.
#[repr(C, align(64))]
pub struct Ring {
    /// Events that were ever written, times [`STEP`]. Other CPUs also see by it that this CPU makes progress.
    written: AtomicU64,
    slots: [[AtomicU64; 2]; EVENTS],
}

/// Events are counted by the bytes that they take: then the count, masked, is the place of the next one, and no shift is needed.
const STEP: u64 = 16;

/// Words of a [`Ring`].
pub const RING_WORDS: usize = size_of::<Ring>() / 8;

impl Ring {
    /// A ring without events.
    #[must_use]
    pub const fn new() -> Ring {
        Ring { written: AtomicU64::new(0), slots: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; EVENTS] }
    }

    /// Writes an event, over the oldest one. Only for the CPU that the ring belongs to.
    #[inline(always)]
    pub fn push(&self, time_ns: u64, mark: Mark) {
        let at = self.written.load(Ordering::Relaxed);
        let [time, word] = &self.slots[(at / STEP) as usize % EVENTS];
        time.store(time_ns, Ordering::Relaxed);
        word.store(mark.to_word(), Ordering::Relaxed);
        // Release: a reader that sees the count sees the event.
        self.written.store(at + STEP, Ordering::Release);
    }

    /// How many events were ever written.
    #[inline(always)]
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire) / STEP
    }

    /// The last `count` events, oldest first: when, and what (nothing, if the word is no event). There are [`EVENTS`] - 1 of them at most: a CPU that
    /// was stopped in the middle of [`Ring::push`] has begun to write over the oldest one.
    pub fn last(&self, count: usize) -> impl Iterator<Item = (u64, Option<Mark>)> {
        let end = self.written();
        let count = (count as u64).min(EVENTS as u64 - 1).min(end);
        (end - count..end).map(|at| {
            let [time, word] = &self.slots[at as usize % EVENTS];
            (time.load(Ordering::Relaxed), Mark::from_word(word.load(Ordering::Relaxed)))
        })
    }

    /// The ring that another machine's memory holds; nothing if there are too few words.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Ring> {
        let (written, slots) = words.get(..RING_WORDS)?.split_first()?;
        let ring = Ring::new();
        ring.written.store(*written, Ordering::Relaxed);
        for (slot, words) in ring.slots.iter().zip(slots.chunks_exact(2)) {
            slot.iter().zip(words).for_each(|(cell, word)| cell.store(*word, Ordering::Relaxed));
        }
        Some(ring)
    }
}

impl Default for Ring {
    fn default() -> Ring {
        Ring::new()
    }
}

/// The last bytes of console output. The writer holds the console, or is the only CPU that still runs.
#[repr(C)]
pub struct Log {
    written: AtomicU64,
    bytes: [AtomicU8; LOG_BYTES],
}

impl Log {
    /// A log without output.
    #[must_use]
    pub const fn new() -> Log {
        Log { written: AtomicU64::new(0), bytes: [const { AtomicU8::new(0) }; LOG_BYTES] }
    }

    /// Writes a byte, over the oldest one.
    #[inline]
    pub fn push(&self, byte: u8) {
        let at = self.written.load(Ordering::Relaxed);
        self.bytes[at as usize % LOG_BYTES].store(byte, Ordering::Relaxed);
        self.written.store(at + 1, Ordering::Release);
    }

    /// Calls `each` with the bytes of the last `lines` lines, or of as many as there are whole ones.
    pub fn tail(&self, lines: usize, mut each: impl FnMut(u8)) {
        let end = self.written.load(Ordering::Acquire);
        let at = |place: u64| self.bytes[place as usize % LOG_BYTES].load(Ordering::Relaxed);
        let oldest = end.saturating_sub(LOG_BYTES as u64);
        let (mut start, mut left) = (end, lines);
        while start > oldest {
            // A line begins after a newline; after one at the very end, no line begins.
            if start < end && at(start - 1) == b'\n' {
                left -= 1;
                if left == 0 {
                    break;
                }
            }
            start -= 1;
        }
        // The oldest line may be half overwritten: it is left out.
        if start == oldest && oldest > 0 {
            start = (start..end).find(|place| at(*place) == b'\n').map_or(end, |place| place + 1);
        }
        (start..end).for_each(|place| each(at(place)));
    }

    /// The log that another machine's memory holds.
    #[must_use]
    pub fn from_parts(written: u64, bytes: &[u8]) -> Option<Log> {
        let log = Log::new();
        log.written.store(written, Ordering::Relaxed);
        let bytes = bytes.get(..LOG_BYTES)?;
        log.bytes.iter().zip(bytes).for_each(|(cell, byte)| cell.store(*byte, Ordering::Relaxed));
        Some(log)
    }
}

impl Default for Log {
    fn default() -> Log {
        Log::new()
    }
}

/// The beginning of the record: where other things are. All of it is known when the kernel is compiled.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u64,
    /// Bytes of the record.
    pub bytes: u64,
    /// Where physical address 0 is mapped.
    pub phys_base: u64,
    /// Where the record of thread 0 is.
    pub threads_base: u64,
    /// Bytes of such a record.
    pub thread_bytes: u64,
    /// Bytes of a CPU's record.
    pub cpu_bytes: u64,
    /// 1, if the kernel keeps which locks a CPU holds.
    pub keeps_locks: u64,
    /// Where in a CPU's record the parts of [`Part`] are, in their order.
    pub parts: [u64; Part::COUNT],
}

/// Words of a [`Head`].
pub const HEAD_WORDS: usize = size_of::<Head>() / 8;

/// The parts of a CPU's record that a reader of the memory looks at.
#[repr(usize)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The [`Ring`].
    Ring,
    /// The address of the thread that runs; 0 for none. 8 bytes.
    Current,
    /// Whether it is in an interrupt handler. 1 byte.
    InInterrupt,
    /// The locks that are held. 4 bytes.
    Held,
    /// When its timer fires. 8 bytes.
    Armed,
    /// What it entered the kernel for. 4 bytes.
    Path,
    /// What others have asked it for. 4 bytes.
    Asked,
    /// Its number for interrupt delivery. 4 bytes.
    ApicId,
}

impl Part {
    /// How many there are.
    pub const COUNT: usize = 8;
}

impl Head {
    /// From the first words of a record.
    ///
    /// # Errors
    /// When the words are no record, or that of another kernel.
    pub fn from_words(words: &[u64]) -> Result<Head, HeadError> {
        let words = words.get(..HEAD_WORDS).ok_or(HeadError::Short)?;
        let mut parts = [0; Part::COUNT];
        parts.copy_from_slice(&words[8..]);
        let head = Head {
            magic: words[0],
            version: words[1],
            bytes: words[2],
            phys_base: words[3],
            threads_base: words[4],
            thread_bytes: words[5],
            cpu_bytes: words[6],
            keeps_locks: words[7],
            parts,
        };
        match head {
            Head { magic, .. } if magic != MAGIC => Err(HeadError::NotARecord),
            Head { version, .. } if version != VERSION => Err(HeadError::Version(version)),
            Head { bytes, .. } if bytes != size_of::<Recorder>() as u64 => Err(HeadError::Size(bytes)),
            _ => Ok(head),
        }
    }

    /// The number of the thread whose record is at this address.
    #[must_use]
    pub fn thread(&self, address: u64) -> u32 {
        (address.wrapping_sub(self.threads_base) / self.thread_bytes.max(1)) as u32
    }
}

/// Why some memory is no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadError {
    /// It is too short.
    Short,
    /// It does not begin as one: the kernel was never loaded, or has written over itself.
    NotARecord,
    /// Its layout has another version.
    Version(u64),
    /// It has another size.
    Size(u64),
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadError::Short => f.write_str("the memory ends within the record"),
            HeadError::NotARecord => f.write_str("there is no flight record where the kernel has its own"),
            HeadError::Version(found) => {
                write!(f, "the flight record has version {found}, and {VERSION} is known")
            }
            HeadError::Size(found) => write!(f, "the flight record says that it has {found} bytes"),
        }
    }
}

impl core::error::Error for HeadError {}

/// The record itself: one static of the kernel.
#[repr(C)]
pub struct Recorder {
    /// Where everything is.
    pub head: Head,
    /// The address of each CPU's record; 0 for none.
    pub cpus: [AtomicU64; CPUS],
    /// Names of threads: the numbers of thread and process in the first word, the process's name in the others.
    names: [[AtomicU64; 4]; NAMES],
    /// The last output.
    pub log: Log,
}

/// How a thread is named in reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The thread's number.
    pub thread: u32,
    /// Its process's number.
    pub pid: u32,
    /// Its process's name, with zeros behind it.
    pub name: [u8; NAME_BYTES],
}

impl Name {
    /// For a thread whose name is no longer known.
    #[must_use]
    pub const fn unknown(thread: u32) -> Name {
        Name { thread, pid: 0, name: [0; NAME_BYTES] }
    }

    fn from_words(words: [u64; 4]) -> Name {
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&words[1..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Name { thread: words[0] as u32, pid: (words[0] >> 32) as u32, name }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        match core::str::from_utf8(&self.name[..end]) {
            Ok(name) if !name.is_empty() => write!(f, "{name} #{}", self.thread),
            _ => write!(f, "thread #{}", self.thread),
        }
    }
}

impl Recorder {
    /// An empty record.
    #[must_use]
    pub const fn new(head: Head) -> Recorder {
        Recorder {
            head,
            cpus: [const { AtomicU64::new(0) }; CPUS],
            names: [const { [const { AtomicU64::new(0) }; 4] }; NAMES],
            log: Log::new(),
        }
    }

    /// Records the name of a thread.
    pub fn introduce(&self, name: &Name) {
        let slot = &self.names[name.thread as usize % NAMES];
        // Two CPUs that create threads may write here at the same time: the worst result is a wrong name in a report.
        slot[0].store(u64::from(name.thread) | u64::from(name.pid) << 32, Ordering::Relaxed);
        for (cell, bytes) in slot[1..].iter().zip(name.name.chunks_exact(8)) {
            let word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// The name of the thread with this number, if it is still known.
    #[must_use]
    pub fn name(&self, thread: u32) -> Name {
        let slot = &self.names[thread as usize % NAMES];
        let name = Name::from_words(core::array::from_fn(|i| slot[i].load(Ordering::Relaxed)));
        if name.thread == thread { name } else { Name::unknown(thread) }
    }

    /// The record that another machine's memory holds.
    ///
    /// # Errors
    /// When the bytes hold no record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Recorder, HeadError> {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at * 8..at * 8 + 8)?.try_into().ok()?))
        };
        let mut head = [0; HEAD_WORDS];
        for (at, cell) in head.iter_mut().enumerate() {
            *cell = word(at).ok_or(HeadError::Short)?;
        }
        let mut record = Recorder::new(Head::from_words(&head)?);
        let mut at = HEAD_WORDS;
        let names = record.names.iter().flatten();
        for cell in record.cpus.iter().chain(names) {
            cell.store(word(at).ok_or(HeadError::Short)?, Ordering::Relaxed);
            at += 1;
        }
        let written = word(at).ok_or(HeadError::Short)?;
        let log = bytes.get((at + 1) * 8..).and_then(|bytes| Log::from_parts(written, bytes));
        record.log = log.ok_or(HeadError::Short)?;
        Ok(record)
    }

    /// What an event says, with names.
    #[must_use]
    pub fn show(&self, mark: Option<Mark>) -> Shown<'_> {
        Shown { record: self, mark }
    }
}

/// An event in words.
pub struct Shown<'a> {
    record: &'a Recorder,
    mark: Option<Mark>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |thread: u64| self.record.name(self.record.head.thread(thread));
        match self.mark {
            Some(Mark::Run { thread }) => write!(f, "runs {}", name(thread)),
            Some(Mark::Interrupt { vector }) => write!(f, "takes {}", Vector(vector)),
            Some(Mark::IdleInterrupt { vector }) => write!(f, "is idle, and takes {}", Vector(vector)),
            None => f.write_str("(no event: this memory was overwritten)"),
        }
    }
}

struct Vector(u32);

impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IN_A_PAUSE => f.write_str("what has waited, in a pause of a long path"),
            32 => f.write_str("the PIT's interrupt"),
            48 => f.write_str("its timer's interrupt"),
            49 => f.write_str("an interrupt of another CPU"),
            50 => f.write_str("the serial line's interrupt"),
            vector => write!(f, "interrupt {vector}"),
        }
    }
}

/// What a CPU entered the kernel for, as `irqoff::Path` numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u32);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.0 % 1_000_000;
        match self.0 / 1_000_000 {
            1 => write!(f, "{}", Vector(rest)),
            2 => write!(f, "operation {rest}"),
            3 => f.write_str("a long queue of operations"),
            4 => f.write_str("the end of a thread"),
            5 => f.write_str("a program's fault"),
            6 => f.write_str("what a dropped capability left"),
            _ => f.write_str("nothing that is noted"),
        }
    }
}

/// What a CPU does at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuState {
    /// The thread that runs.
    pub thread: Option<Name>,
    /// Whether it is in an interrupt handler.
    pub in_interrupt: bool,
    /// The locks that it holds, if this kernel keeps them.
    pub held: Option<HeldRanks>,
    /// How long until its timer fires, in ns; negative if that is past; `None` if the timer is not armed or the time is not known.
    pub timer_ns: Option<i64>,
    /// What it entered the kernel for, last.
    pub entry: Entry,
    /// What others have asked it for and it has not done: bits.
    pub asked: u32,
    /// The threads that wait for it.
    pub queue: QueueState,
}

/// How many threads wait for a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueState {
    /// So many.
    Waiting(usize),
    /// Its lock is held.
    Locked,
    /// The reader does not know.
    Unknown,
}

impl fmt::Display for CpuState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.thread {
            Some(name) => write!(f, "{name}")?,
            None => f.write_str("idle")?,
        }
        if self.in_interrupt {
            f.write_str(", in an interrupt")?;
        }
        match self.queue {
            QueueState::Waiting(count) => write!(f, "; {count} wait")?,
            QueueState::Locked => f.write_str("; its queue is locked")?,
            QueueState::Unknown => {}
        }
        match self.timer_ns {
            None => {}
            Some(ns @ 0..) => write!(f, "; timer in {} us", ns / 1000)?,
            Some(ns) => write!(f, "; timer overdue by {} us", ns.unsigned_abs() / 1000)?,
        }
        Ok(())
    }
}

impl CpuState {
    /// The second line: locks, what it entered the kernel for, and what it was asked for.
    pub fn details(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        match self.held {
            None => f.write_str("locks not kept by this kernel")?,
            Some(held) if held.is_empty() => f.write_str("no locks")?,
            Some(held) => {
                f.write_str("locks")?;
                held.iter().try_for_each(|rank| write!(f, " {rank:?}"))?;
            }
        }
        write!(f, "; last entered for {}", self.entry)?;
        if self.asked != 0 {
            f.write_str("; not yet answered:")?;
            let names = ["look", "flush", "halt", "tick", "kick", "watch"];
            for (_, name) in names.iter().enumerate().filter(|(bit, _)| self.asked >> bit & 1 == 1) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    const HEAD: Head = Head {
        magic: MAGIC,
        version: VERSION,
        bytes: size_of::<Recorder>() as u64,
        phys_base: 1 << 40,
        threads_base: 1 << 41,
        thread_bytes: 3200,
        cpu_bytes: 4096,
        keeps_locks: 1,
        parts: [1, 2, 3, 4, 5, 6, 7, 8],
    };

    fn times(ring: &Ring, count: usize) -> Vec<u64> {
        ring.last(count).map(|(time, _)| time).collect()
    }

    #[test]
    fn k_27_a_ring_has_the_last_events_in_their_order() {
        let ring = Ring::new();
        assert_eq!(times(&ring, 10), []);
        for time in 0..5 {
            ring.push(time, Mark::Interrupt { vector: time as u32 });
        }
        assert_eq!((times(&ring, 3), times(&ring, 99)), (Vec::from([2, 3, 4]), Vec::from([0, 1, 2, 3, 4])));
        assert_eq!(ring.last(1).next(), Some((4, Some(Mark::Interrupt { vector: 4 }))));
        // At every count of events around the ring's size: what is shown is the end, and the oldest slot is left out.
        for total in 5..3 * EVENTS as u64 {
            ring.push(total, Mark::IdleInterrupt { vector: 48 });
            assert_eq!(ring.written(), total + 1);
            let shown = times(&ring, usize::MAX);
            let first = (total + 1).saturating_sub(EVENTS as u64 - 1);
            assert_eq!(shown, (first..=total).collect::<Vec<_>>());
        }
    }

    #[test]
    fn k_27_marks_come_back_as_they_were() {
        let thread = HEAD.threads_base + 7 * HEAD.thread_bytes;
        let marks =
            [Mark::Run { thread }, Mark::Interrupt { vector: 255 }, Mark::IdleInterrupt { vector: 48 }];
        for mark in marks {
            assert_eq!(Mark::from_word(mark.to_word()), Some(mark));
        }
        for word in [0, 4, 5, 6, 7] {
            assert_eq!(Mark::from_word(word), None, "{word}");
        }
        assert_eq!(HEAD.thread(thread), 7);
    }

    fn tail(log: &Log, lines: usize) -> String {
        let mut bytes = Vec::new();
        log.tail(lines, |byte| bytes.push(byte));
        String::from_utf8(bytes).expect("ASCII")
    }

    #[test]
    fn k_27_the_log_has_its_last_whole_lines() {
        let log = Log::new();
        assert_eq!(tail(&log, 3), "");
        let write = |text: &str| text.bytes().for_each(|byte| log.push(byte));
        write("one\ntwo\nthree");
        assert_eq!((tail(&log, 2), tail(&log, 9)), ("two\nthree".into(), "one\ntwo\nthree".into()));
        write("\n");
        assert_eq!((tail(&log, 1), tail(&log, 2)), ("three\n".into(), "two\nthree\n".into()));
        for number in 0..3000 {
            write(&format!("line {number}\n"));
        }
        assert_eq!(tail(&log, 2), "line 2998\nline 2999\n");
        let all = tail(&log, usize::MAX);
        assert!(all.len() < LOG_BYTES && all.len() > LOG_BYTES - 11, "{}", all.len());
        assert!(all.starts_with("line ") && all.lines().count() == all.len() / 10, "no half line is shown");
    }

    #[test]
    fn k_27_a_record_is_read_from_memory_as_it_was_written() {
        let record = Recorder::new(HEAD);
        record.cpus[3].store(0x1234, Ordering::Relaxed);
        let mut name = [0; NAME_BYTES];
        name[..5].copy_from_slice(b"smoke");
        record.introduce(&Name { thread: 7, pid: 3, name });
        record.introduce(&Name { thread: 8 + NAMES as u32, pid: 4, name });
        b"last words\n".iter().for_each(|byte| record.log.push(*byte));
        let mut bytes = Vec::new();
        let Head { bytes: size, phys_base, threads_base, thread_bytes, cpu_bytes, keeps_locks, .. } = HEAD;
        let head = [MAGIC, VERSION, size, phys_base, threads_base, thread_bytes, cpu_bytes, keeps_locks];
        let words = head.into_iter().chain(HEAD.parts);
        let cells = record.cpus.iter().chain(record.names.iter().flatten()).chain([&record.log.written]);
        let words = words.chain(cells.map(|cell| cell.load(Ordering::Relaxed)));
        words.for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(record.log.bytes.iter().map(|byte| byte.load(Ordering::Relaxed)));
        assert_eq!(bytes.len(), size_of::<Recorder>(), "no gap that the reader does not know of");
        let read = Recorder::from_bytes(&bytes).expect("a record");
        assert_eq!((read.head, read.cpus[3].load(Ordering::Relaxed)), (HEAD, 0x1234));
        assert_eq!(format!("{} {}", read.name(7), tail(&read.log, 1)), "smoke #7 last words\n");
        // Another thread has the slot by now.
        assert_eq!(format!("{}", read.name(8)), "thread #8");
        let thread = HEAD.threads_base + 7 * HEAD.thread_bytes;
        assert_eq!(format!("{}", read.show(Some(Mark::Run { thread }))), "runs smoke #7");
        assert_eq!(Recorder::from_bytes(&bytes[..bytes.len() - 1]).err(), Some(HeadError::Short));
        bytes[8] = 9;
        assert_eq!(Recorder::from_bytes(&bytes).err(), Some(HeadError::Version(9)));
        bytes[0] = 0;
        assert_eq!(Recorder::from_bytes(&bytes).err(), Some(HeadError::NotARecord));
    }

    #[test]
    fn k_27_a_ring_is_read_from_memory() {
        let mut words = Vec::from([3 * STEP]);
        for time in 0..EVENTS as u64 {
            words.extend([time, Mark::Interrupt { vector: 48 }.to_word()]);
        }
        // The alignment of the ring leaves words at its end.
        words.resize(RING_WORDS, 0);
        let ring = Ring::from_words(&words).expect("enough words");
        assert_eq!(times(&ring, 99), [0, 1, 2]);
        assert!(Ring::from_words(&words[1..]).is_none());
    }

    #[test]
    fn k_27_a_cpu_is_described_in_two_short_lines() {
        let mut held = HeldRanks::new();
        Rank::ALL.into_iter().for_each(|rank| held.note(rank));
        let name = Name { thread: 65535, pid: 1, name: [b'x'; NAME_BYTES] };
        let state = CpuState {
            thread: Some(name),
            in_interrupt: true,
            held: Some(held),
            timer_ns: Some(-5_000_000),
            entry: Entry(1_000_048),
            asked: 0x3f,
            queue: QueueState::Waiting(12),
        };
        let line = format!("{state}");
        assert!(line.ends_with("x #65535, in an interrupt; 12 wait; timer overdue by 5000 us"), "{line}");
        assert!(line.len() < 90);
        let mut details = String::new();
        CpuState { held: None, ..state }.details(&mut details).expect("a string takes all");
        assert!(
            details.contains("its timer's interrupt; not yet answered: look flush halt tick"),
            "{details}"
        );
        assert!(
            format!("{}", CpuState { thread: None, queue: QueueState::Locked, ..state })
                .starts_with("idle, in an")
        );
    }
}
