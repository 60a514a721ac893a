"""Reads our exports back with parsers that are not ours, and compares them with what Rust says.

usage: load_trace.py EXPECTED.json TRACE.perfetto TRACE.json

Perfetto: the message classes of the PyPI package `perfetto`, generated from Perfetto's own
`.proto` files. Chrome: Python's `json`, and the rules of the trace-event format document.
Exit status 0 and one line when all agrees; 1 and the first difference when not.
"""

import json
import sys
from collections import Counter, defaultdict
from decimal import Decimal

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb


class Wrong(Exception):
    """An export does not say what Rust says, or breaks a rule of its format."""


def expect(what, found, wanted):
    if found != wanted:
        raise Wrong(f"{what}: found {found!r}, expected {wanted!r}")


def note(event, name):
    for annotation in event.debug_annotations:
        if annotation.name == name:
            return getattr(annotation, annotation.WhichOneof("value"))
    return None


class Totals:
    """What both formats must agree on with Rust."""

    def __init__(self):
        self.cpu_names = {}
        self.thread_names = {}
        self.runs = 0
        self.run_ns = defaultdict(int)
        self.system_ns = 0
        self.state_ns = defaultdict(int)
        self.instants = Counter()
        self.endings = Counter()

    def compare(self, where, wanted):
        def by_thread(totals):
            return {str(thread): ns for thread, ns in sorted(totals.items()) if ns}

        expect(f"{where}: CPU names", list(self.cpu_names.values()), wanted["cpu_names"])
        names = {str(thread): name for thread, name in self.thread_names.items()}
        expect(f"{where}: thread names", names, wanted["thread_names"])
        expect(f"{where}: thread runs", self.runs, wanted["runs"])
        expect(f"{where}: run time by thread", by_thread(self.run_ns), wanted["run_ns"])
        expect(f"{where}: system time", self.system_ns, wanted["system_ns"])
        expect(f"{where}: endings", dict(self.endings), wanted["endings"])
        expect(f"{where}: instants", dict(self.instants), wanted["instants"])
        states = {name: 0 for name in ("running", "runnable", "throttled")}
        for (_, state), ns in self.state_ns.items():
            states[state] += ns
        expect(f"{where}: time by state", states, wanted["state_ns"])
        running = {thread: ns for (thread, state), ns in self.state_ns.items() if state == "running"}
        expect(f"{where}: thread tracks against CPU tracks", by_thread(running), by_thread(self.run_ns))


class Perfetto:
    """Replays the packets as the viewer does: a stack of open slices for each track."""

    def __init__(self):
        self.totals = Totals()
        self.tracks = {}
        self.open = defaultdict(list)
        self.last_ns = 0

    def descriptor(self, track):
        if track.uuid in self.tracks:
            raise Wrong(f"track {track.uuid} is described twice")
        parent = self.tracks.get(track.parent_uuid)
        if track.HasField("parent_uuid") and parent is None:
            raise Wrong(f"track {track.name!r} names a parent that was not described")
        self.tracks[track.uuid] = track
        if parent is not None and parent.name == "CPUs":
            self.totals.cpu_names[track.uuid] = track.name
        elif parent is not None:
            self.totals.thread_names[track.uuid & 0xFFFFFFFF] = track.name

    def event(self, time_ns, event):
        if event.track_uuid not in self.tracks:
            raise Wrong(f"event at {time_ns} ns on a track that was not described")
        if time_ns < self.last_ns:
            raise Wrong(f"packet at {time_ns} ns comes after one at {self.last_ns} ns")
        self.last_ns = time_ns
        stack = self.open[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            if stack:
                raise Wrong(f"slice {event.name!r} at {time_ns} ns begins inside {stack[-1][1].name!r}")
            stack.append((time_ns, event))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            if not stack:
                raise Wrong(f"slice end at {time_ns} ns without a begin")
            start_ns, begin = stack.pop()
            self.slice(begin, time_ns - start_ns)
        elif event.type == pb.TrackEvent.TYPE_INSTANT:
            self.totals.instants[event.name] += 1
        else:
            raise Wrong(f"event type {event.type} at {time_ns} ns")

    def slice(self, begin, ns):
        if ns <= 0:
            raise Wrong(f"slice {begin.name!r} takes {ns} ns")
        category = begin.categories[0]
        if category == "thread":
            thread = note(begin, "thread")
            expect("slice name", begin.name, self.totals.thread_names[thread])
            self.totals.runs += 1
            self.totals.run_ns[thread] += ns
            self.totals.endings[note(begin, "ended by")] += 1
        elif category == "system":
            self.totals.system_ns += ns
        else:
            self.totals.state_ns[begin.track_uuid & 0xFFFFFFFF, begin.name] += ns

    def read(self, path):
        trace = pb.Trace()
        with open(path, "rb") as file:
            trace.ParseFromString(file.read())
        for packet in trace.packet:
            expect("sequence id", packet.trusted_packet_sequence_id, 1)
            for message in (packet, packet.track_descriptor, packet.track_event):
                # A wrong field number would otherwise pass in silence.
                expect("fields that Perfetto does not know", len(UnknownFieldSet(message)), 0)
            if packet.HasField("track_descriptor"):
                self.descriptor(packet.track_descriptor)
            elif packet.HasField("track_event"):
                self.event(packet.timestamp, packet.track_event)
            else:
                raise Wrong("a packet holds neither a track nor an event")
        expect("first packet's flags", trace.packet[0].sequence_flags, 1)
        left = [stack[-1][1].name for stack in self.open.values() if stack]
        expect("slices that never end", left, [])
        return self.totals


def nanoseconds(micros):
    ns = Decimal(micros) * 1000
    if ns != int(ns):
        raise Wrong(f"{micros} µs is not a whole number of nanoseconds")
    return int(ns)


def read_chrome(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file, parse_float=Decimal)
    totals = Totals()
    slices = defaultdict(list)
    for event in document["traceEvents"]:
        for key in ("ph", "pid", "tid", "name"):
            if key not in event:
                raise Wrong(f"event without {key}: {event}")
        pid, tid, name = event["pid"], event["tid"], event["name"]
        if event["ph"] == "M":
            if name == "thread_name":
                (totals.cpu_names if pid == 1 else totals.thread_names)[tid] = event["args"]["name"]
        elif event["ph"] == "i":
            expect("instant scope", event["s"], "t")
            nanoseconds(event["ts"])
            totals.instants[name] += 1
        elif event["ph"] == "X":
            start_ns, ns = nanoseconds(event["ts"]), nanoseconds(event["dur"])
            slices[pid, tid].append((start_ns, start_ns + ns))
            if event["cat"] == "thread":
                expect("slice name", name, totals.thread_names[event["args"]["thread"]])
                totals.runs += 1
                totals.run_ns[event["args"]["thread"]] += ns
                totals.endings[event["args"]["ended by"]] += 1
            elif event["cat"] == "system":
                totals.system_ns += ns
            else:
                totals.state_ns[tid, name] += ns
        else:
            raise Wrong(f"phase {event['ph']!r}")
    for lane, spans in slices.items():
        spans.sort()
        for (_, end_ns), (start_ns, _) in zip(spans, spans[1:]):
            if start_ns < end_ns:
                raise Wrong(f"slices overlap on {lane} at {start_ns} ns")
    return totals


def main():
    expected_path, perfetto_path, chrome_path = sys.argv[1:]
    with open(expected_path, encoding="utf-8") as file:
        wanted = json.load(file)
    try:
        Perfetto().read(perfetto_path).compare("perfetto", wanted)
        read_chrome(chrome_path).compare("chrome", wanted)
    except Exception as error:  # a parser's own complaint is a verdict too
        print(f"load_trace: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"load_trace: ok, {wanted['runs']} runs, {sum(wanted['instants'].values())} instants")
    return 0


if __name__ == "__main__":
    sys.exit(main())
