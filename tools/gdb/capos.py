"""gdb commands for the kernel of capOS (K-27): threads, scheduling contexts, CPUs and their run queues.

`make debug` starts a machine and a gdb that has read this file. The commands read the kernel's memory and change nothing. They need a
kernel with types: `cargo run -p capos -- build --types` builds it.

What is looked up by name is in the tables below. A name that has moved ends a command with one line that says which; `make gdb-test`
compares what the commands print with what a program knows of itself.
"""

import re

import gdb

# Statics of the kernel.
STATICS = {
    "threads made": "kernel::dispatch::heads::COUNT",
    "contexts": "kernel::context::POOL",
    "CPUs": "kernel::arch::percpu::CPUS",
    "idle": "kernel::dispatch::IDLE",
    "pending": "kernel::dispatch::PENDING",
    "recorder": "kernel::recorder::FLIGHT_RECORDER",
}
# Its types. A record of a thread or a CPU is in layers, each of which begins with the one below it; these are the highest that are read.
TYPES = {
    "thread": "kernel::process::records::Record",
    "CPU": "kernel::dispatch::percpu::PerCpu",
    "context": "kernel::context::Ctx",
    "stage": "kcore::life::Stage",
    "rank": "kcore::rank::Rank",
    "timer class": "kernel::time::Class",
}
# The word of a thread's life (kernel/core/src/life.rs): constants are not in the debug information. A test of `capos` compares them.
STAGE_MASK = 0xF
GENERATION_SHIFT = 32
LIFE_BITS = {
    "ends": 1 << 4,
    "woken": 1 << 5,
    "awaits fault reply": 1 << 6,
    "bind requested": 1 << 8,
    "lent": 1 << 9,
}
# Reasons of an inter-processor interrupt (kernel/src/arch/smp.rs).
IPI_BITS = {"reschedule": 1, "tlb": 2, "halt": 4, "tick": 8, "kick": 16, "watch": 32}
# The queues of a CPU, in the order in which it serves them, and the field of each.
QUEUES = ["guaranteed", "direct", "open", "restricted", "throttled"]
# What `switch_stack` leaves on a stack: six registers, the last of them RBP, and where to return to.
SAVED_RBP, SAVED_RIP = 40, 48
# Functions that every thread which waits is in: whoever called them is of interest.
SWITCHING = ("kernel::dispatch", "kernel::arch::switch")

# A queue's tree is not higher than this, however damaged it is; a thread's backtrace is not longer.
HEIGHT_MAX = 8
FRAMES_MAX = 24
# A record of the table of threads has fewer bytes than this behind what is used (kernel/src/process/records.rs).
RECORD_GAP_MAX = 128
NOBODY = 0xFFFF_FFFF
FOREVER = (1 << 64) - 1


class Trouble(Exception):
    """What a person is told instead of a traceback."""


# What comes of damaged memory, and of a field that has another name or type now.
UNREADABLE = (gdb.error, KeyError, IndexError, AttributeError, TypeError, ValueError)


# ---- values of Rust ---------------------------------------------------------------------------------------------------------


def static(what):
    name = STATICS[what]
    try:
        return gdb.parse_and_eval(name)
    except gdb.error as error:
        raise Trouble(
            f"no static `{name}` with a type here ({error}): is this the kernel of `make debug`? "
            "If the kernel's source has moved it, mend the tables of tools/gdb/capos.py"
        ) from None


def kind(what):
    name = TYPES[what]
    try:
        return gdb.lookup_type(name)
    except gdb.error as error:
        raise Trouble(f"no type `{name}` ({error}): mend the tables of tools/gdb/capos.py") from None


def peel(value):
    """What is in cells and atomics."""
    while value.type.code == gdb.TYPE_CODE_STRUCT and str(value.type).startswith(("core::cell::", "core::sync::atomic::")):
        value = value[value.type.fields()[0]]
    return value


def locked(lock):
    """What a SpinLock guards."""
    return peel(lock["value"])


def is_held(lock):
    return int(peel(lock["next"])) != int(peel(lock["serving"]))


def number(value):
    """The one number in newtypes around it."""
    value = peel(value)
    while value.type.code == gdb.TYPE_CODE_STRUCT:
        value = peel(value[value.type.fields()[0]])
    return int(value)


def variant(value):
    """The name of an enum's variant, and what is in it."""
    field = value.type.fields()[-1]
    if field.name is None:
        # All that gdb has found is the discriminant.
        raise Trouble(f"a value of `{value.type}` that it does not have: damaged memory, or another kernel's symbols")
    return field.name, value[field]


def some(option):
    """What is in an Option; None if nothing is."""
    name, inside = variant(option)
    return None if name == "None" else inside["__0"]


def word(value):
    """The name of a variant without fields."""
    return str(value).rsplit("::", 1)[-1]


def pointer(value):
    """The pointer in a Box, an Arc or a Vec, however deep."""
    found = pointer_in(peel(value))
    if found is None:
        raise Trouble(f"no pointer in a `{value.type}`: mend tools/gdb/capos.py")
    return found


def pointer_in(value):
    value = peel(value)
    if value.type.code == gdb.TYPE_CODE_PTR:
        return value
    if value.type.code != gdb.TYPE_CODE_STRUCT:
        return None
    inside = (pointer_in(value[field]) for field in value.type.fields() if field.type.sizeof)
    return next((found for found in inside if found is not None), None)


def at(address, what):
    return gdb.Value(address).cast(kind(what).pointer()).dereference()


def layer(record, field):
    """The layer of a record that has a field: each begins with the one below it."""
    found = record
    while field not in [one.name for one in found.type.fields()]:
        first = found.type.fields()[0]
        if first.type.code != gdb.TYPE_CODE_STRUCT:
            raise Trouble(f"no field `{field}` in a `{record.type}`: mend tools/gdb/capos.py")
        found = found[first]
    return found


def variants(what):
    """The names of an enum's variants by their numbers."""
    return {field.enumval: field.name.rsplit("::", 1)[-1] for field in kind(what).fields()}


def members(mask):
    """The numbers in a mask of CPUs."""
    words = mask[mask.type.fields()[0]]
    low, high = words.type.range()
    return {index * 64 + bit for index in range(low, high + 1) for bit in range(64) if number(words[index]) >> bit & 1}


def function(address):
    """The function at an address, without the hash that its name ends with."""
    text = gdb.execute(f"info symbol {address:#x}", to_string=True).split(" + ")[0].split(" in section")[0].strip()
    if text.startswith("No symbol"):
        return f"{address:#x}"
    return re.sub(r"::h[0-9a-f]{16}$", "", text)


def word_at(address):
    memory = gdb.selected_inferior().read_memory(address, 8)
    return int.from_bytes(memory.tobytes(), "little")


def text_of(array):
    low, high = array.type.range()
    return bytes(number(array[index]) for index in range(low, high + 1)).split(b"\0")[0].decode("utf-8", "replace")


def when(ns):
    return "never" if ns == FOREVER else f"{ns / 1e9:.6f} s"


def amount(ns):
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size and ns % (size // 10**3) == 0:
            return f"{ns / size:g} {unit}"
    return f"{ns} ns"


# ---- the kernel -------------------------------------------------------------------------------------------------------------


class Thread:
    """A record of the table of threads."""

    def __init__(self, address):
        self.record = at(address, "thread")
        head = layer(self.record, "tid")
        self.tid = int(head["tid"])
        life = number(head["life"])
        self.stage = variants("stage").get(life & STAGE_MASK, f"stage {life & STAGE_MASK}?")
        self.generation = life >> GENERATION_SHIFT
        self.marks = [name for name, bit in LIFE_BITS.items() if life & bit]
        self.pid = number(head["pid"])
        self.cpu = number(head["cpu"])
        self.context = number(head["context"])
        self.borrows = number(head["borrows"]) != 0

    def process(self):
        body = some(peel(layer(self.record, "body")["body"]))
        return "-" if body is None else text_of(peel(pointer(body["process"]).dereference()["data"]["name"])["__0"])

    def entity(self):
        """The scheduler's part of it, if it lies with the record."""
        parked = some(locked(layer(self.record, "wait")["wait"])["parked"])
        return None if parked is None else pointer(parked).dereference()

    def operations(self):
        """What the operations that it has under way wait for."""
        ring = locked(layer(self.record, "ring")["ring"])
        low, high = ring["pending"].type.range()
        under_way = [some(ring["pending"][index]) for index in range(low, high + 1) if int(ring["busy"]) >> index & 1]
        return [variant(one["on"])[0].lower() for one in under_way if one is not None]

    def frames(self):
        """Where it was left, from the inside: return addresses by frame pointers."""
        rsp = number(layer(self.record, "rsp")["rsp"])
        if rsp == 0:
            return
        yield word_at(rsp + SAVED_RIP)
        rbp = word_at(rsp + SAVED_RBP)
        for _ in range(FRAMES_MAX):
            # Frames of the kernel lie above each other in the upper half.
            if rbp >> 63 == 0 or rbp & 7 or rbp <= rsp:
                return
            address = word_at(rbp + 8)
            if address >> 63 == 0:
                return
            yield address
            rsp, rbp = rbp, word_at(rbp)

    def place(self):
        """The first function that it is in and that says something."""
        try:
            for address in self.frames():
                name = function(address)
                if not name.startswith(SWITCHING):
                    return name
        except gdb.MemoryError:
            return "(its stack cannot be read)"
        return "-"


def thread_count():
    return number(static("threads made"))


def thread(tid):
    if not 0 <= tid < thread_count():
        raise Trouble(f"no thread {tid}: there are records 0 to {thread_count() - 1}")
    head = static("recorder")["head"]
    room, size = int(head["thread_bytes"]), kind("thread").sizeof
    if not 0 <= room - size < RECORD_GAP_MAX:
        raise Trouble(f"the kernel's records of threads have {room} bytes, and gdb's type has {size}: another kernel's symbols")
    return Thread(int(head["threads_base"]) + tid * room)


def threads():
    return (thread(tid) for tid in range(thread_count()))


def thread_of(entity):
    """The thread that an entity of the scheduler is of."""
    return Thread(int(pointer(entity["payload"])))


def name_of(one):
    return f"#{one.tid} {one.process()}"


class Cpu:
    """A CPU's record."""

    def __init__(self, record):
        self.machine = layer(record, "armed_ns")
        self.id = number(self.machine["id"])
        self.dispatch = record["dispatch"]
        self.queue = locked(self.dispatch["queue"])
        self.is_locked = is_held(self.dispatch["queue"])

    def running(self):
        """Who runs, as the scheduler has it: its entity, tier and end of turn."""
        running = some(self.queue["running"])
        return None if running is None else (pointer(running["thread"]).dereference(), word(running["tier"]), int(running["until_ns"]))

    def waiting(self, name):
        """The entities in one of its queues, in the order in which they run."""
        field = self.queue[name]
        if name == "direct":
            only = some(field)
            return [] if only is None else [pointer(only).dereference()]
        lone = some(field["lone"])
        if lone is not None:
            return [pointer(lone).dereference()]
        root = some(field["root"])
        found = [] if root is None else list(in_order(pointer(root).dereference(), HEIGHT_MAX))
        if len(found) != int(field["len"]):
            raise Trouble(f"the {name} queue of CPU {self.id} says that it has {int(field['len'])} threads, and {len(found)} were found")
        return found

    def handed(self):
        """Who runs next if the current thread waits, in no queue."""
        runnable = some(peel(self.dispatch["handoff"]))
        return None if runnable is None else pointer(runnable).dereference()


def in_order(node, height):
    """The entities below a node: places are in descending order."""
    if height == 0:
        raise Trouble("a queue's tree is higher than it can be: its memory is damaged")
    name, inside = variant(node["slots"])
    slots = inside["__0"]
    low, high = slots.type.range()
    length = int(node["len"])
    if length > high - low + 1:
        raise Trouble(f"a node of a queue's tree with {length} entries: its memory is damaged")
    for index in reversed(range(length)):
        below = some(slots[index])
        if below is None:
            raise Trouble("a node of a queue's tree without its entry: its memory is damaged")
        below = pointer(below).dereference()
        if name == "Threads":
            yield below
        else:
            yield from in_order(below, height - 1)


def cpus():
    table = static("CPUs")
    low, high = table.type.range()
    found = (number(table[index]) for index in range(low, high + 1))
    return [Cpu(at(address, "CPU")) for address in found if address]


def places():
    """Where each thread is that a CPU has: what is said of it, and its entity."""
    found = {}
    for cpu in cpus():
        running = cpu.running()
        if running:
            found[thread_of(running[0]).tid] = (f"running on CPU {cpu.id}", running[0])
        for name in QUEUES:
            for entity in cpu.waiting(name):
                said = f"throttled on CPU {cpu.id}" if name == "throttled" else f"queued on CPU {cpu.id} ({name})"
                found[thread_of(entity).tid] = (said, entity)
        handed = cpu.handed()
        if handed is not None:
            found[thread_of(handed).tid] = (f"next on CPU {cpu.id}", handed)
    return found


def context_id(address):
    return "-" if address == 0 else str(int(locked(at(address, "context")["record"])["id"]))


# ---- what is printed --------------------------------------------------------------------------------------------------------


def table(heads, rows):
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [heads] + rows) for at in range(len(heads))]
    for row in [heads] + rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def safely(make, number):
    """A row, or what keeps it from being read."""
    try:
        return make()
    except (Trouble, *UNREADABLE) as error:
        return [number, f"unreadable: {error}"]


def warn_of_locks(all_cpus):
    for cpu in all_cpus:
        if cpu.is_locked:
            print(f"CPU {cpu.id} has its queue locked: what is said of it may be half of a change. Let it run for a moment, and ask again.")


def show_threads(_words):
    heads = ["tid", "gen", "pid", "process", "state", "cpu", "context", "operations", "in"]
    warn_of_locks(cpus())
    known, rows, free = places(), [], 0

    def row(tid):
        one = thread(tid)
        if one.stage in ("Free", "Ended"):
            return None
        state = one.stage.lower()
        if one.stage == "Running":
            state = known.get(tid, ("on its way to a queue", None))[0]
        if one.marks:
            state += ", " + ", ".join(one.marks)
        context = context_id(one.context) + (" (borrowed)" if one.borrows and one.context else "")
        is_away = state.startswith("running")
        operations = ", ".join(one.operations()) or "-"
        return [tid, one.generation, one.pid, one.process(), state, one.cpu, context, operations, "-" if is_away else one.place()]

    for tid in range(thread_count()):
        made = safely(lambda: row(tid), tid)
        if made is None:
            free += 1
        else:
            rows.append(made + [""] * (len(heads) - len(made)))
    table(heads, rows)
    print(f"{len(rows)} threads, {free} free records")


def spec_of(box, now):
    """What a context promises, and how much of it can be used now."""
    spec, ledger = box["spec"], box["ledger"]
    low, high = ledger["refills"].type.range()
    refills = [ledger["refills"][index] for index in range(low, min(int(ledger["len"]), high + 1))]
    left = sum(int(refill["amount_ns"]) for refill in refills if int(refill["time_ns"]) <= now)
    budget = f"{amount(int(spec['budget_ns']))} in {amount(int(spec['period_ns']))}"
    return [budget, amount(left), word(spec["overrun"]).lower(), int(spec["criticality"]), number(box["home"])]


def person(reference):
    """A thread by its reference, and whether that still names somebody."""
    tid, generation = int(reference["tid"]), int(reference["thread_generation"])
    if generation == 0 or tid == NOBODY:
        return "-"
    one = thread(tid)
    return name_of(one) if one.generation == generation else f"#{tid} (ended)"


def context_row(address, known, now):
    record = locked(at(address, "context")["record"])
    if int(record["id"]) == 0:
        return None
    book = record["book"]
    standing, (where, inside) = word(book["standing"]).lower(), variant(book["place"])
    holder = book["holder"]
    box = None
    if where == "Here":
        box = pointer(inside["__0"]).dereference()
    elif where == "Away" and int(holder["tid"]) < thread_count():
        entity = known.get(int(holder["tid"]), (None, None))[1]
        entity = thread(int(holder["tid"])).entity() if entity is None else entity
        held = None if entity is None else some(entity["context"])
        box = None if held is None else pointer(held).dereference()
    place = {"Here": "record", "Away": "holder", "InHand": "a CPU's hand", "Nowhere": "-"}.get(where, where)
    if where == "Here" and person(holder) != "-":
        place = "record, promised"
    if where == "Away" and box is None:
        place = "on its way"
    depth = min(int(book["depth"]), 64)
    chain = [f"#{int(book['loans'][index]['lender']['tid'])}" for index in range(depth)]
    chain += [f"#{int(book['loans'][depth - 1]['borrower']['tid'])}"] if depth else []
    spec = spec_of(box, now) if box is not None else ["-"] * 5
    return [int(record["id"]), int(book["generation"]), standing, *spec, person(book["owner"]), person(holder), place, " > ".join(chain) or "-"]


def show_contexts(_words):
    everyone = cpus()
    warn_of_locks(everyone)
    # The latest instant that a CPU has counted up to.
    now = max((int(cpu.queue["at_ns"]) for cpu in everyone), default=0)
    known, rows, free = places(), [], 0
    everything = locked(static("contexts"))["all"]
    records = pointer(everything["buf"]).cast(kind("context").pointer().pointer())
    heads = ["id", "gen", "standing", "budget", "left", "overrun", "band", "home", "bound to", "holder", "time is in", "loans"]
    for index in range(int(everything["len"])):
        made = safely(lambda: context_row(int(records[index]), known, now), index)
        if made is None:
            free += 1
        else:
            rows.append(made + [""] * (len(heads) - len(made)))
    table(heads, rows)
    print(f"{len(rows)} contexts, {free} free records")


def ranks(cpu):
    held = number(cpu.machine["held"])
    return ", ".join(name for value, name in sorted(variants("rank").items()) if held >> value & 1) or "-"


def asked(cpu):
    bits = number(cpu.machine["ipi"])
    words = [name for name, bit in IPI_BITS.items() if bits & bit]
    words += ["told to look"] if cpu.id in members(static("pending")) else []
    return ", ".join(words) or "-"


def cpu_row(cpu):
    running = cpu.running()
    who = "idle" if running is None else name_of(thread_of(running[0]))
    if running is None and cpu.id not in members(static("idle")):
        who = "nobody, and not idle"
    lengths = [len(cpu.waiting(name)) for name in QUEUES]
    return [cpu.id, who, *lengths, when(number(cpu.machine["armed_ns"])), asked(cpu), ranks(cpu)]


def show_cpus(_words):
    everyone = cpus()
    if not everyone:
        raise Trouble("there is no CPU yet: the kernel has just begun to boot")
    warn_of_locks(everyone)
    heads = ["cpu", "runs", *QUEUES, "timer", "asked for", "locks"]
    rows = [safely(lambda: cpu_row(cpu), cpu.id) for cpu in everyone]
    table(heads, [row + [""] * (len(heads) - len(row)) for row in rows])


def queued_row(place, entity):
    one = thread_of(entity)
    return [place, f"#{one.tid}", one.process(), int(entity["key"]["tag"]), int(entity["key"]["sequence"]), context_id(one.context)]


def show_cpu(words):
    if len(words) != 1 or not words[0].isdigit():
        raise Trouble("which CPU? capos cpu N; `capos cpus` lists them")
    cpu = next((cpu for cpu in cpus() if cpu.id == int(words[0])), None)
    if cpu is None:
        raise Trouble(f"no CPU {words[0]}; `capos cpus` lists them")
    warn_of_locks([cpu])
    running = cpu.running()
    if running is None:
        print(f"CPU {cpu.id}: " + ("idle" if cpu.id in members(static("idle")) else "runs nobody, and is not marked as idle"))
    else:
        entity, tier, until = running
        one = thread_of(entity)
        print(f"CPU {cpu.id}: runs {name_of(one)}, tier {tier.lower()}, context {context_id(one.context)}, turn ends at {when(until)}")
    print(f"  policy {word(cpu.queue['policy']).lower()}, charged up to {when(int(cpu.queue['at_ns']))}, timer armed for {when(number(cpu.machine['armed_ns']))}")
    print(f"  in an interrupt: {'yes' if number(cpu.machine['in_interrupt']) else 'no'}; asked for: {asked(cpu)}; locks: {ranks(cpu)}")
    handed = cpu.handed()
    if handed is not None:
        print(f"  next if the current thread waits: {name_of(thread_of(handed))}")
    classes, queues = variants("timer class"), locked(cpu.dispatch["timers"])
    counts = [f"{int(queues[index]['len'])} {name.lower()}" for index, name in sorted(classes.items())]
    print(f"  timers: {', '.join(counts)}")
    for name in QUEUES:
        found = cpu.waiting(name)
        print(f"  {name}: {len(found) or 'nobody'}")
        if found:
            rows = [safely(lambda: queued_row(place, entity), place) for place, entity in enumerate(found)]
            table(["    ", "thread", "process", "tag", "sequence", "context"], [["    " + str(row[0])] + row[1:] + [""] * (6 - len(row)) for row in rows])


def show_backtrace(words):
    if len(words) != 1 or not words[0].isdigit():
        raise Trouble("which thread? capos bt TID; `capos threads` lists them")
    one = thread(int(words[0]))
    print(f"thread {name_of(one)}: {one.stage.lower()}")
    if places().get(one.tid, ("", None))[0].startswith("running"):
        raise Trouble(f"it runs on CPU {one.cpu}: `thread {one.cpu + 1}`, then `bt`")
    for depth, address in enumerate(one.frames()):
        print(f"  {depth:2} {address:#x} {function(address)}")


def show_log(_words):
    log = static("recorder")["log"]
    written, room = number(log["written"]), log["bytes"].type.sizeof
    memory = gdb.selected_inferior().read_memory(int(log["bytes"].address), room).tobytes()
    end = written % room
    text = memory[:end] if written <= room else memory[end:] + memory[:end]
    print(text.decode("utf-8", "replace").replace("\r", "").rstrip("\n"))


COMMANDS = {
    "threads": (show_threads, "every thread: process, state, CPU, context, what its operations wait for, and in which function it is"),
    "contexts": (show_contexts, "every scheduling context: budget, who it is bound to, who has the time, along which calls it is lent"),
    "cpus": (show_cpus, "every CPU: who runs, how many wait in each queue, timer, what others ask of it, locks"),
    "cpu": (show_cpu, "capos cpu N: one CPU, and who waits in its queues, in order"),
    "bt": (show_backtrace, "capos bt TID: where a thread that does not run is in the kernel"),
    "log": (show_log, "the last output of the machine"),
}


def show_help(_words=None):
    for name, (_, says) in COMMANDS.items():
        print(f"  capos {name:9} {says}")


class Prefix(gdb.Command):
    """Threads, contexts and queues of the capOS kernel: `capos help`."""

    def __init__(self):
        super().__init__("capos", gdb.COMMAND_STATUS, prefix=True)

    def invoke(self, words, _from_tty):
        if words:
            print(f"capos: no command `{words}`; there are:")
        show_help()


class Command(gdb.Command):
    """One of `capos help`."""

    def __init__(self, name, show):
        super().__init__(f"capos {name}", gdb.COMMAND_STATUS)
        self.name, self.show = name, show

    def invoke(self, argument, _from_tty):
        language = gdb.parameter("language")
        gdb.execute("set language rust", to_string=True)
        try:
            self.show(argument.split())
        except Trouble as trouble:
            print(f"capos {self.name}: {trouble}")
        except UNREADABLE as error:
            print(f"capos {self.name}: cannot be read: {error}")
        finally:
            gdb.execute(f"set language {language}", to_string=True)


Prefix()
for command, (show, _) in COMMANDS.items():
    Command(command, show)
Command("help", show_help)
