//! Writes a trace as Perfetto protobuf, which `ui.perfetto.dev` opens.
//!
//! Two groups of tracks: *CPUs*, one track a CPU with a slice for each run, and *Threads*, one
//! track a thread with a slice for each running, runnable or throttled span. Remarks (wakes,
//! steals, faults …) are instants on the thread's track, or on the CPU's when they are about no
//! thread.
//!
//! The encoder is by hand: the part of the format that is needed is a dozen field numbers, all
//! below, and a test reads the result back with Perfetto's own message classes.

use crate::{Event, Kind, Run, RunKind, State, StateSpan, ThreadInfo, Trace};
use std::collections::BTreeMap;
use std::format;
use std::io::{self, Write};
use std::vec::Vec;

/// Field numbers of Perfetto's `.proto` files, by message.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const PACKET_TIMESTAMP: u32 = 8;
    pub(super) const PACKET_SEQUENCE: u32 = 10;
    pub(super) const PACKET_TRACK_EVENT: u32 = 11;
    pub(super) const PACKET_FLAGS: u32 = 13;
    pub(super) const PACKET_TRACK: u32 = 60;
    pub(super) const TRACK_UUID: u32 = 1;
    pub(super) const TRACK_NAME: u32 = 2;
    pub(super) const TRACK_PARENT: u32 = 5;
    pub(super) const TRACK_CHILD_ORDERING: u32 = 11;
    pub(super) const TRACK_RANK: u32 = 12;
    pub(super) const TRACK_DESCRIPTION: u32 = 14;
    pub(super) const EVENT_ANNOTATION: u32 = 4;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_TRACK: u32 = 11;
    pub(super) const EVENT_CATEGORY: u32 = 22;
    pub(super) const EVENT_NAME: u32 = 23;
    pub(super) const ANNOTATION_UINT: u32 = 3;
    pub(super) const ANNOTATION_STRING: u32 = 6;
    pub(super) const ANNOTATION_NAME: u32 = 10;
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
/// Children are shown by rank, not by name: `cpu10` comes after `cpu9`.
const ORDER_EXPLICIT: u64 = 3;
/// There is one writer, so one sequence; and it depends on nothing that was sent before.
const SEQUENCE: u64 = 1;
const STATE_CLEARED: u64 = 1;

const CPU_GROUP: u64 = 1;
const THREAD_GROUP: u64 = 2;
const CPU_TRACKS: u64 = 1 << 32;
const THREAD_TRACKS: u64 = 2 << 32;

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn uint(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn note(&mut self, name: &str, value: Note<'_>) {
        let mut note = Self::default();
        note.text(field::ANNOTATION_NAME, name);
        match value {
            Note::Number(number) => note.uint(field::ANNOTATION_UINT, number),
            Note::Text(text) => note.text(field::ANNOTATION_STRING, text),
        }
        self.bytes(field::EVENT_ANNOTATION, &note.0);
    }
}

/// The value of a debug annotation.
enum Note<'a> {
    Number(u64),
    Text(&'a str),
}

/// One thing to write, in the order of time.
#[derive(Clone, Copy)]
enum Item<'a> {
    RunBegin(&'a Run),
    RunEnd(&'a Run),
    StateBegin(&'a StateSpan),
    StateEnd(&'a StateSpan),
    Instant(&'a Event),
}

impl Item<'_> {
    /// Ends come before begins of the same time, or slices that touch would nest.
    fn key(&self) -> (u64, u8) {
        match self {
            Self::RunEnd(run) => (run.end_ns, 0),
            Self::StateEnd(span) => (span.end_ns, 0),
            Self::Instant(event) => (event.time_ns, 1),
            Self::RunBegin(run) => (run.start_ns, 2),
            Self::StateBegin(span) => (span.start_ns, 2),
        }
    }
}

type Names<'a> = BTreeMap<u32, &'a ThreadInfo>;

/// Writes the whole trace.
///
/// # Errors
/// `InvalidInput` when the trace fails [`Trace::check`], otherwise what `out` reports.
pub fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    trace.check()?;
    let names = trace.by_id();
    let runs = trace.runs();
    let spans = trace.states();
    let mut items: Vec<Item<'_>> = Vec::with_capacity(2 * (runs.len() + spans.len()));
    // Idle time is the absence of slices: that is what an empty lane looks like in a viewer.
    for run in runs.iter().filter(|run| run.kind != RunKind::Idle) {
        items.extend([Item::RunBegin(run), Item::RunEnd(run)]);
    }
    for span in spans.iter().filter(|span| span.state != State::Blocked) {
        items.extend([Item::StateBegin(span), Item::StateEnd(span)]);
    }
    items.extend(trace.events.iter().filter(|event| !event.kind.sets_cpu()).map(Item::Instant));
    items.sort_by_key(Item::key);

    descriptors(trace, out)?;
    for item in items {
        let (time_ns, _) = item.key();
        let mut packet = Message::default();
        packet.uint(field::PACKET_TIMESTAMP, time_ns);
        packet.uint(field::PACKET_SEQUENCE, SEQUENCE);
        packet.bytes(field::PACKET_TRACK_EVENT, &track_event(&names, item).0);
        send(out, &packet)?;
    }
    Ok(())
}

fn send(out: &mut impl Write, packet: &Message) -> io::Result<()> {
    let mut framed = Message::default();
    framed.bytes(field::TRACE_PACKET, &packet.0);
    out.write_all(&framed.0)
}

fn descriptors(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let mut first = true;
    let mut send_track = |track: Message| {
        let mut packet = Message::default();
        packet.uint(field::PACKET_SEQUENCE, SEQUENCE);
        if first {
            packet.uint(field::PACKET_FLAGS, STATE_CLEARED);
            first = false;
        }
        packet.bytes(field::PACKET_TRACK, &track.0);
        send(out, &packet)
    };
    for (uuid, name) in [(CPU_GROUP, "CPUs"), (THREAD_GROUP, "Threads")] {
        let mut track = Message::default();
        track.uint(field::TRACK_UUID, uuid);
        track.text(field::TRACK_NAME, name);
        track.text(field::TRACK_DESCRIPTION, &trace.title);
        track.uint(field::TRACK_CHILD_ORDERING, ORDER_EXPLICIT);
        send_track(track)?;
    }
    for cpu in 0..trace.cpus {
        let mut track = Message::default();
        track.uint(field::TRACK_UUID, CPU_TRACKS + u64::from(cpu));
        track.text(field::TRACK_NAME, &format!("cpu{cpu}"));
        track.uint(field::TRACK_PARENT, CPU_GROUP);
        track.uint(field::TRACK_RANK, u64::from(cpu));
        send_track(track)?;
    }
    for (rank, info) in trace.threads.iter().enumerate() {
        let mut track = Message::default();
        track.uint(field::TRACK_UUID, THREAD_TRACKS + u64::from(info.id));
        track.text(field::TRACK_NAME, &info.name);
        track.uint(field::TRACK_PARENT, THREAD_GROUP);
        track.uint(field::TRACK_RANK, rank as u64);
        track.text(field::TRACK_DESCRIPTION, &describe(info));
        send_track(track)?;
    }
    Ok(())
}

fn describe(info: &ThreadInfo) -> std::string::String {
    let context = info.context.as_deref().unwrap_or("no context");
    format!("thread {}, weight {}, class {}, {context}", info.id, info.weight, info.class)
}

fn event_on(kind: u64, track: u64) -> Message {
    let mut event = Message::default();
    event.uint(field::EVENT_TYPE, kind);
    event.uint(field::EVENT_TRACK, track);
    event
}

fn track_event(names: &Names<'_>, item: Item<'_>) -> Message {
    match item {
        Item::RunEnd(run) => event_on(SLICE_END, CPU_TRACKS + u64::from(run.cpu)),
        Item::StateEnd(span) => event_on(SLICE_END, THREAD_TRACKS + u64::from(span.thread)),
        Item::RunBegin(run) => {
            let mut event = event_on(SLICE_BEGIN, CPU_TRACKS + u64::from(run.cpu));
            event.text(field::EVENT_CATEGORY, run.kind.name());
            match run.thread.and_then(|thread| names.get(&thread)) {
                Some(info) => {
                    event.text(field::EVENT_NAME, &info.name);
                    event.note("thread", Note::Number(u64::from(info.id)));
                    event.note("ended by", Note::Text(run.ending.name()));
                }
                None => event.text(field::EVENT_NAME, run.kind.name()),
            }
            event
        }
        Item::StateBegin(span) => {
            let mut event = event_on(SLICE_BEGIN, THREAD_TRACKS + u64::from(span.thread));
            event.text(field::EVENT_CATEGORY, "state");
            event.text(field::EVENT_NAME, span.state.name());
            event.note("cpu", Note::Number(u64::from(span.cpu)));
            event
        }
        Item::Instant(remark) => instant(remark),
    }
}

fn instant(remark: &Event) -> Message {
    let track = match remark.kind.thread() {
        Some(thread) => THREAD_TRACKS + u64::from(thread),
        None => CPU_TRACKS + u64::from(remark.cpu),
    };
    let mut event = event_on(INSTANT, track);
    event.text(field::EVENT_CATEGORY, "sched");
    event.text(field::EVENT_NAME, remark.kind.name());
    event.note("cpu", Note::Number(u64::from(remark.cpu)));
    match remark.kind {
        Kind::Ipi { to } => event.note("to", Note::Number(u64::from(to))),
        Kind::Weight { weight, .. } => event.note("weight", Note::Number(u64::from(weight))),
        Kind::Class { class, .. } => event.note("class", Note::Number(u64::from(class))),
        kind => {
            if let Some(from) = kind.other_cpu() {
                event.note("from", Note::Number(u64::from(from)));
            }
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_as_the_protobuf_manual_has_them() {
        let encoded = |value| {
            let mut message = Message::default();
            message.varint(value);
            message.0
        };
        assert_eq!(encoded(0), [0]);
        assert_eq!(encoded(127), [0x7f]);
        assert_eq!(encoded(150), [0x96, 0x01]);
        assert_eq!(encoded(u64::MAX).len(), 10);
        let mut message = Message::default();
        message.text(2, "testing");
        assert_eq!(message.0, b"\x12\x07testing");
    }

    #[test]
    fn a_broken_trace_is_refused_before_a_byte_is_written() {
        let mut trace = Trace { cpus: 1, ..Trace::default() };
        trace.push(5, 0, Kind::Idle);
        let mut out = Vec::new();
        let error = write(&trace, &mut out).expect_err("event after the end");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(out.is_empty());
    }
}
