//! Reads a dump. Nothing in it is trusted: sizes are checked before anything is allocated.

use super::{
    CPU_BYTES, CPUS_MAX, CpuPart, EVENTS_MAX, HEADER_BYTES, Header, MAGIC, NAME_BYTES, NamedThread,
    RECORD_BYTES, SUM_BYTES, Sum, THREAD_BYTES, THREADS_MAX, VERSION, record_words, row_bytes,
};
use crate::{Event, Kind, ThreadInfo, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::format;
use std::string::String;
use std::vec::Vec;

/// An event and its place in the order of all events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The place.
    pub ticket: u64,
    /// The CPU that wrote it, which is not always the one that it is about.
    pub writer: u16,
    /// The event.
    pub event: Event,
}

/// A thread of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The number that events use.
    pub id: u32,
    /// Its process.
    pub pid: u32,
    /// The process's name.
    pub name: String,
}

/// A dump that was read: all its numbers fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Its header.
    pub header: Header,
    /// Its CPUs.
    pub cpus: Vec<CpuPart>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// What happened, in the order of tickets.
    pub records: Vec<Record>,
}

/// Why bytes are no dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpError {
    /// There are no bytes: the kernel never began to write.
    Empty,
    /// It does not begin as a dump does.
    NotADump,
    /// Written by another version.
    Version {
        /// The version of the dump.
        found: u32,
    },
    /// It ends too early.
    Truncated {
        /// Bytes that it should have.
        wanted: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// There are bytes behind its end.
    TooLong {
        /// Bytes that it should have.
        wanted: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The bytes do not match their check sum.
    Sum {
        /// As the dump says.
        wanted: u64,
        /// As its bytes say.
        found: u64,
    },
    /// A number that is larger than it may be.
    OutOfRange {
        /// The number's name.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A record that is no event.
    NoEvent {
        /// The record's index, counted over all CPUs.
        index: usize,
    },
    /// A record that names a CPU which the dump does not have.
    NoSuchCpu {
        /// The record's index.
        index: usize,
        /// The CPU.
        cpu: u16,
    },
    /// Two records in the same place of the order, or those of one CPU out of order.
    Ticket {
        /// The ticket.
        ticket: u64,
    },
    /// Kept and lost events are not as many as there were tickets, or a ticket is missing where nothing was lost.
    Count {
        /// Tickets that were given out, or the first that is missing.
        wanted: u64,
        /// Events that are accounted for.
        found: u64,
    },
    /// A thread is in the table twice.
    DuplicateThread {
        /// The thread's number.
        id: u32,
    },
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => {
                write!(f, "it is empty: the machine did not come to write it (no power-off, or no `trace=`)")
            }
            Self::NotADump => write!(f, "it is no trace dump"),
            Self::Version { found } => {
                write!(f, "it is of version {found}, and this tool reads version {VERSION}")
            }
            Self::Truncated { wanted, found } => {
                write!(f, "it is cut off: {found} bytes of {wanted}; did the machine end while it wrote?")
            }
            Self::TooLong { wanted, found } => write!(f, "it has {found} bytes, and should have {wanted}"),
            Self::Sum { wanted, found } => {
                write!(f, "it is damaged: its check sum is {wanted:#x}, its bytes have {found:#x}")
            }
            Self::OutOfRange { what, value } => write!(f, "its {what} cannot be {value}"),
            Self::NoEvent { index } => write!(f, "record {index} is no event"),
            Self::NoSuchCpu { index, cpu } => {
                write!(f, "record {index} names CPU {cpu}, which it does not have")
            }
            Self::Ticket { ticket } => write!(f, "ticket {ticket} is out of order, or there twice"),
            Self::Count { wanted, found } => {
                write!(f, "it should account for {wanted} events, and does for {found}")
            }
            Self::DuplicateThread { id } => write!(f, "thread {id} is in its table twice"),
        }
    }
}

impl std::error::Error for DumpError {}

/// Reads numbers; the caller has checked the length.
struct Eye<'a>(&'a [u8]);

impl<'a> Eye<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(bytes);
        self.0 = rest;
        head
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap_or_default())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap_or_default())
    }
}

fn limit(what: &'static str, value: u64, most: u64) -> Result<(), DumpError> {
    if value <= most { Ok(()) } else { Err(DumpError::OutOfRange { what, value }) }
}

fn header(eye: &mut Eye<'_>) -> Result<Header, DumpError> {
    if eye.take(MAGIC.len()) != MAGIC {
        return Err(DumpError::NotADump);
    }
    let version = eye.word();
    if version != VERSION {
        return Err(DumpError::Version { found: version });
    }
    let flags = eye.word();
    let header = Header {
        cpus: flags as u16,
        policy: (flags >> 16) as u8,
        panicked: flags >> 24 & 1 == 1,
        keeps_last: flags >> 25 & 1 == 1,
        capacity: eye.word(),
        threads: eye.word(),
        end_ns: eye.long(),
        tickets: eye.long(),
    };
    limit("reserved words", eye.long() | u64::from(flags >> 26), 0)?;
    limit("number of CPUs", u64::from(header.cpus).wrapping_sub(1), CPUS_MAX as u64 - 1)?;
    limit("policy", u64::from(header.policy), 1)?;
    limit("capacity", u64::from(header.capacity), EVENTS_MAX as u64)?;
    limit("number of threads", u64::from(header.threads), THREADS_MAX as u64)?;
    Ok(header)
}

fn cpu_part(eye: &mut Eye<'_>, capacity: u32) -> Result<CpuPart, DumpError> {
    let has_time = eye.word();
    limit("mark of a CPU", u64::from(has_time), 1)?;
    let (events, started_ns) = (eye.word(), eye.long());
    let time = [eye.long(), eye.long(), eye.long()];
    let time = (has_time == 1).then_some(time);
    limit("number of events", u64::from(events), u64::from(capacity))?;
    let part = CpuPart { started_ns, time, events, lost: eye.long(), lost_at: eye.long() };
    if (part.lost == 0) != (part.lost_at == u64::MAX) {
        return Err(DumpError::OutOfRange { what: "place of the lost events", value: part.lost_at });
    }
    Ok(part)
}

impl Dump {
    /// Reads the bytes of a dump.
    ///
    /// # Errors
    /// With the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Dump, DumpError> {
        let found = bytes.len() as u64;
        let shortest = (HEADER_BYTES + SUM_BYTES) as u64;
        if bytes.is_empty() {
            return Err(DumpError::Empty);
        }
        if !bytes.starts_with(&MAGIC[..MAGIC.len().min(bytes.len())]) {
            return Err(DumpError::NotADump);
        }
        let has = |wanted: u64| {
            if found < wanted { Err(DumpError::Truncated { wanted, found }) } else { Ok(()) }
        };
        has(shortest)?;
        let mut eye = Eye(bytes);
        let header = header(&mut eye)?;
        let tables =
            u64::from(header.cpus) * CPU_BYTES as u64 + u64::from(header.threads) * THREAD_BYTES as u64;
        has(shortest + tables)?;
        let mut cpus = Vec::with_capacity(usize::from(header.cpus));
        for _ in 0..header.cpus {
            cpus.push(cpu_part(&mut eye, header.capacity)?);
        }
        let kept: u64 = cpus.iter().map(|cpu| u64::from(cpu.events)).sum();
        let wanted = shortest + tables + kept * RECORD_BYTES as u64;
        has(wanted)?;
        if found > wanted {
            return Err(DumpError::TooLong { wanted, found });
        }
        let (body, end) = bytes.split_at(bytes.len() - SUM_BYTES);
        let (wanted, found) = (Eye(end).long(), Sum::NEW.with(body).0);
        if wanted != found {
            return Err(DumpError::Sum { wanted, found });
        }
        let mut dump = Dump { header, cpus, threads: Vec::new(), records: Vec::new() };
        dump.read_threads(&mut eye)?;
        dump.read_records(&mut eye, kept as usize)?;
        Ok(dump)
    }

    fn read_threads(&mut self, eye: &mut Eye<'_>) -> Result<(), DumpError> {
        let mut known = BTreeSet::new();
        for _ in 0..self.header.threads {
            let (id, pid) = (eye.word(), eye.word());
            let name = eye.take(NAME_BYTES);
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            if !known.insert(id) {
                return Err(DumpError::DuplicateThread { id });
            }
            self.threads.push(Thread { id, pid, name });
        }
        Ok(())
    }

    fn read_records(&mut self, eye: &mut Eye<'_>, kept: usize) -> Result<(), DumpError> {
        self.records.reserve(kept);
        for (writer, cpu) in (0..).zip(&self.cpus) {
            let mut before = None;
            for _ in 0..cpu.events {
                let index = self.records.len();
                let ticket = eye.long();
                let words = [eye.long(), eye.long(), eye.long()];
                let event = Event::from_words(words).ok_or(DumpError::NoEvent { index })?;
                let others = event.kind.other_cpu();
                if let Some(cpu) =
                    [Some(event.cpu), others].into_iter().flatten().find(|cpu| *cpu >= self.header.cpus)
                {
                    return Err(DumpError::NoSuchCpu { index, cpu });
                }
                let is_lost = cpu.lost > 0
                    && if self.header.keeps_last { ticket <= cpu.lost_at } else { ticket >= cpu.lost_at };
                if before.is_some_and(|before| ticket <= before) || is_lost {
                    return Err(DumpError::Ticket { ticket });
                }
                before = Some(ticket);
                self.records.push(Record { ticket, writer, event });
            }
        }
        self.records.sort_by_key(|record| record.ticket);
        if let Some(pair) = self.records.windows(2).find(|pair| pair[0].ticket == pair[1].ticket) {
            return Err(DumpError::Ticket { ticket: pair[0].ticket });
        }
        let accounted = self.cpus.iter().fold(kept as u64, |sum, cpu| sum.saturating_add(cpu.lost));
        if accounted != self.header.tickets {
            return Err(DumpError::Count { wanted: self.header.tickets, found: accounted });
        }
        // In the part without losses, every ticket is here.
        let first = self.first_whole();
        match (first..).zip(self.whole()).find(|(at, record)| record.ticket != *at) {
            Some((at, _)) => Err(DumpError::Count { wanted: at, found: at }),
            None => Ok(()),
        }
    }

    /// The ticket of the first event that was lost, on any CPU; `None` if the last events are kept.
    #[must_use]
    pub fn lost_from(&self) -> Option<u64> {
        let first = self.cpus.iter().map(|cpu| cpu.lost_at).min();
        first.filter(|ticket| *ticket != u64::MAX && !self.header.keeps_last)
    }

    /// The ticket from which on no event was overwritten by a later one, on any CPU: 0 if the beginning is still there.
    #[must_use]
    pub fn first_whole(&self) -> u64 {
        let over = self.cpus.iter().filter(|cpu| cpu.lost > 0 && self.header.keeps_last);
        over.map(|cpu| cpu.lost_at + 1).max().unwrap_or(0)
    }

    /// Events that were lost, on all CPUs.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cpus.iter().fold(0, |sum, cpu| sum.saturating_add(cpu.lost))
    }

    /// The records between which none is missing: those before the first loss, or those after the last one. Only these can be drawn.
    #[must_use]
    pub fn whole(&self) -> &[Record] {
        let place = |ticket: u64| self.records.partition_point(|record| record.ticket < ticket);
        &self.records[place(self.first_whole())..self.lost_from().map_or(self.records.len(), place)]
    }

    /// The name of a thread: its process's name and its own number.
    #[must_use]
    pub fn name(&self, id: u32) -> String {
        let known = self.threads.iter().find(|thread| thread.id == id);
        known.map_or_else(|| format!("thread {}", show_id(id)), Thread::title)
    }

    /// The events before the first loss, or after the last one, for pictures and rules. Times are as recorded, except that none is earlier than the
    /// one before it: an event of a CPU that read its clock and then waited for a lock is placed at the time when it had the lock.
    #[must_use]
    pub fn trace(&self, title: &str) -> Trace {
        let mut trace = Trace { title: title.into(), cpus: self.header.cpus, ..Trace::default() };
        let mut infos: BTreeMap<u32, ThreadInfo> = BTreeMap::new();
        for thread in &self.threads {
            let (id, name) = (thread.id, thread.title());
            infos.insert(id, ThreadInfo { id, name, ..ThreadInfo::default() });
        }
        let mut now_ns = 0;
        for record in self.whole() {
            let Event { time_ns, cpu, kind } = record.event;
            now_ns = time_ns.max(now_ns);
            if let Some(id) = kind.thread() {
                let unnamed =
                    || ThreadInfo { id, name: format!("thread {}", show_id(id)), ..ThreadInfo::default() };
                let info = infos.entry(id).or_insert_with(unnamed);
                match kind {
                    Kind::Weight { weight, .. } => info.weight = weight,
                    Kind::Class { class, .. } => info.class = class_name(class).into(),
                    _ => {}
                }
            }
            if !kind.is_for_replay() {
                trace.push(now_ns, cpu, kind);
            }
        }
        trace.threads = infos.into_values().collect();
        trace.end_ns = if self.lost_from().is_none() { self.header.end_ns.max(now_ns) } else { now_ns };
        trace
    }

    /// The bytes of the dump.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(self.header.encode());
        self.cpus.iter().for_each(|cpu| bytes.extend(cpu.encode()));
        for thread in &self.threads {
            let mut name = [0; NAME_BYTES];
            let length = thread.name.len().min(NAME_BYTES);
            name[..length].copy_from_slice(&thread.name.as_bytes()[..length]);
            let thread = NamedThread { id: thread.id, pid: thread.pid, name };
            bytes.extend(row_bytes(thread.to_words()));
        }
        for cpu in 0..self.header.cpus {
            for record in self.records.iter().filter(|record| record.writer == cpu) {
                bytes.extend(row_bytes(record_words(record.ticket, record.event)));
            }
        }
        let sum = Sum::NEW.with(&bytes).0;
        bytes.extend(sum.to_le_bytes());
        bytes
    }
}

impl Thread {
    fn title(&self) -> String {
        format!("{} {}", self.name, show_id(self.id))
    }
}

/// A thread's number, and which use of that number it is, unless it is the first.
fn show_id(id: u32) -> String {
    match (id & 0xffff, id >> 16) {
        (number, 0 | 1) => format!("#{number}"),
        (number, generation) => format!("#{number}.{generation}"),
    }
}

/// The classes in the order of the scheduling core.
fn class_name(class: u8) -> &'static str {
    ["interactive", "normal", "batch", "ipcserver"].get(usize::from(class)).unwrap_or(&"unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Dump {
        let (thread, other) = (1 << 16, 1 | 2 << 16);
        let kinds = [
            (0, 5, 0, Kind::Weight { thread, weight: 96 }),
            (0, 5, 0, Kind::Class { thread, class: 2 }),
            (0, 5, 1, Kind::Spawn { thread }),
            (1, 9, 1, Kind::Run { thread }),
            (0, 7, 0, Kind::Spawn { thread: other }),
            (0, 12, 0, Kind::Timer),
            (0, 12, 0, Kind::Run { thread: other }),
        ];
        let records = (0..).zip(kinds).map(|(ticket, (writer, time_ns, cpu, kind))| Record {
            ticket,
            writer,
            event: Event { time_ns, cpu, kind },
        });
        let part =
            |events| CpuPart { started_ns: 3, time: Some([1, 2, 0]), events, lost: 0, lost_at: u64::MAX };
        Dump {
            header: Header {
                cpus: 2,
                policy: 0,
                panicked: false,
                keeps_last: false,
                capacity: 64,
                threads: 1,
                end_ns: 20,
                tickets: 7,
            },
            cpus: std::vec![part(6), part(1)],
            threads: std::vec![Thread { id: thread, pid: 4, name: "init".into() }],
            records: records.collect(),
        }
    }

    #[test]
    fn a_dump_is_read_as_it_was_written() {
        let dump = sample();
        let read = Dump::parse(&dump.encode());
        assert_eq!(read.as_ref(), Ok(&dump));
        let trace = dump.trace("t");
        assert_eq!(trace.check(), Ok(()));
        let times: Vec<_> = trace.events.iter().map(|event| event.time_ns).collect();
        assert_eq!(times, [5, 5, 5, 9, 9, 12], "the timer is for replays; nothing goes back in time");
        let names: Vec<_> = trace.threads.iter().map(|info| (info.name.as_str(), info.weight)).collect();
        assert_eq!(names, [("init #0", 96), ("thread #1.2", 0)]);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_found() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            let error = Dump::parse(&bytes[..length]).expect_err("it was cut");
            let typed = matches!(error, DumpError::Empty | DumpError::Truncated { .. });
            assert!(typed, "{length} bytes: {error:?}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(Dump::parse(&longer), Err(DumpError::TooLong { .. })));
        for bit in 0..bytes.len() * 8 {
            let mut spoilt = bytes.clone();
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(Dump::parse(&spoilt).is_err(), "bit {bit}");
        }
        assert_eq!(Dump::parse(b"hello"), Err(DumpError::NotADump));
    }

    /// Also with a correct check sum, because a kernel may be wrong.
    #[test]
    fn numbers_that_do_not_fit_have_their_own_errors() {
        let spoil = |change: &dyn Fn(&mut Dump)| {
            let mut dump = sample();
            change(&mut dump);
            Dump::parse(&dump.encode()).expect_err("spoilt")
        };
        let twice = |dump: &mut Dump| {
            dump.threads.push(dump.threads[0].clone());
            dump.header.threads = 2;
        };
        assert_eq!(spoil(&twice), DumpError::DuplicateThread { id: 1 << 16 });
        assert_eq!(spoil(&|dump| dump.records[3].ticket = 2), DumpError::Ticket { ticket: 2 });
        assert_eq!(spoil(&|dump| dump.records[3].event.cpu = 2), DumpError::NoSuchCpu { index: 6, cpu: 2 });
        assert_eq!(spoil(&|dump| dump.header.tickets = 8), DumpError::Count { wanted: 8, found: 7 });
        assert_eq!(spoil(&|dump| dump.records[6].ticket = 7), DumpError::Count { wanted: 6, found: 6 });
        let policy = DumpError::OutOfRange { what: "policy", value: 9 };
        assert_eq!(spoil(&|dump| dump.header.policy = 9), policy);
        let lost = DumpError::OutOfRange { what: "place of the lost events", value: u64::MAX };
        assert_eq!(spoil(&|dump| dump.cpus[0].lost = 1), lost);
    }

    #[test]
    fn sizes_are_checked_before_they_are_believed() {
        let mut bytes = Vec::from(sample().header.encode());
        bytes[20..24].copy_from_slice(&(THREADS_MAX as u32).to_le_bytes());
        bytes.extend([0; 64]);
        assert!(matches!(Dump::parse(&bytes), Err(DumpError::Truncated { .. })));
        bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = DumpError::OutOfRange { what: "number of threads", value: u64::from(u32::MAX) };
        assert_eq!(Dump::parse(&bytes), Err(error));
    }

    #[test]
    fn what_comes_after_a_loss_is_not_drawn() {
        let mut dump = sample();
        // CPU 1 had no room for ticket 3; CPU 0 went on.
        dump.records.remove(3);
        dump.cpus[1] = CpuPart { lost: 1, lost_at: 3, events: 0, ..dump.cpus[1] };
        let read = Dump::parse(&dump.encode());
        assert_eq!(read.as_ref(), Ok(&dump));
        assert_eq!((dump.whole().len(), dump.lost(), dump.lost_from()), (3, 1, Some(3)));
        assert_eq!(dump.trace("t").events.len(), 3);
    }
    #[test]
    fn k_27_what_was_written_over_is_not_drawn() {
        let mut dump = sample();
        dump.header.keeps_last = true;
        assert_eq!(
            (Dump::parse(&dump.encode()).as_ref(), dump.whole().len()),
            (Ok(&dump), 7),
            "nothing is lost"
        );
        // CPU 0 has written over its first two events; CPU 1 has all of its one.
        dump.records.drain(..2);
        dump.cpus[0] = CpuPart { lost: 2, lost_at: 1, events: 4, ..dump.cpus[0] };
        assert_eq!(Dump::parse(&dump.encode()).as_ref(), Ok(&dump));
        assert_eq!((dump.first_whole(), dump.whole().len(), dump.lost_from()), (2, 5, None));
        let trace = dump.trace("t");
        assert_eq!((trace.events.len(), trace.end_ns), (4, 20), "drawn to the end");
        assert_eq!(trace.check(), Ok(()));
        // An event that should be gone, one that is missing after the last loss, and one that the other CPU has lost since.
        let spoil = |change: &dyn Fn(&mut Dump)| {
            let mut spoilt = dump.clone();
            change(&mut spoilt);
            Dump::parse(&spoilt.encode()).expect_err("spoilt")
        };
        assert_eq!(spoil(&|dump| dump.cpus[0].lost_at = 2), DumpError::Ticket { ticket: 2 });
        assert_eq!(spoil(&|dump| dump.cpus[0].lost_at = 0), DumpError::Count { wanted: 1, found: 1 });
        assert_eq!(spoil(&|dump| dump.cpus[0].lost = 3), DumpError::Count { wanted: 7, found: 8 });
    }
}
