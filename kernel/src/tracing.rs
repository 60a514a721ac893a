//! The kernel's trace of its scheduling (T-02): the events of each CPU's run queue and its decisions, in buffers of fixed size.
//!
//! Each CPU writes its own buffer, with interrupts off, without locks and without allocating. An event of a queue is written while that queue's
//! lock is held, and takes its ticket, its place in the one order of all CPUs, at that time. So the order of tickets is the order in which each
//! queue saw its events, and the times are the very ones that the core was given. `capos replay` gives them to a fresh core again. Without a trace,
//! each event costs a load and a branch.
//!
//! The times of a queue may go back: a CPU reads its clock, and then waits for the lock. Then an earlier charge by another CPU decides who is
//! charged, so every charge of a queue is an event, even if it has no other effect.

use crate::arch::{cpu, smp};
use crate::bootinfo::Room;
use crate::dispatch::heads::SchedRef;
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::{self, PerCpu};
use crate::time;
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sched::{
    Context, CpuTime, Decision, EvictionReason, LatencyClass, MoveOutcome, Noted, Runnable, Snapshot, Spec,
    ThreadId, Weight,
};
use trace::dump::{self, CpuPart, Header, NamedThread, Sum};
use trace::{Event, Kind};

/// QEMU's debug console.
const PORT: u16 = 0xe9;
/// Rows of one allocation: a buffer need not be contiguous.
const BLOCK_ROWS: usize = 4096;
/// How long the other CPUs may take to stop.
const HALT_NS: u64 = 200_000_000;

static ON: AtomicBool = AtomicBool::new(false);
/// The next ticket: the next place in the order of all events.
static TICKETS: AtomicU64 = AtomicU64::new(0);
/// CPUs that have stopped for good.
static HALTED: AtomicUsize = AtomicUsize::new(0);

type Row = [AtomicU64; 4];

/// Rows that are written one after the other. When all are full, a new one overwrites the oldest, or is not written at all.
struct Rows {
    blocks: Vec<Vec<Row>>,
    /// How many rows were ever written.
    used: AtomicUsize,
    capacity: usize,
    keeps_first: bool,
}

/// The outcome of writing a row.
enum Pushed {
    /// It was written, and nothing is lost.
    Kept,
    /// It was written over a row that began with this word.
    Over(u64),
    /// There is no room for it.
    Refused,
}

impl Rows {
    fn allocate(capacity: usize, keeps_first: bool) -> Option<Rows> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(capacity.div_ceil(BLOCK_ROWS)).ok()?;
        let mut left = capacity;
        while left > 0 {
            let rows = left.min(BLOCK_ROWS);
            let mut block: Vec<Row> = Vec::new();
            block.try_reserve_exact(rows).ok()?;
            block.resize_with(rows, Row::default);
            blocks.push(block);
            left -= rows;
        }
        Some(Rows { blocks, used: AtomicUsize::new(0), capacity, keeps_first })
    }

    /// Writes a row. Only called by the CPU that the rows belong to.
    fn push(&self, words: [u64; 4]) -> Pushed {
        let used = self.used.load(Ordering::Relaxed);
        if used >= self.capacity && self.keeps_first {
            return Pushed::Refused;
        }
        let row = self.row(used);
        let before = row[0].load(Ordering::Relaxed);
        for (cell, word) in row.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.used.store(used + 1, Ordering::Release);
        if used < self.capacity { Pushed::Kept } else { Pushed::Over(before) }
    }

    fn row(&self, number: usize) -> &Row {
        let at = number % self.capacity;
        &self.blocks[at / BLOCK_ROWS][at % BLOCK_ROWS]
    }

    /// Where the rows end now: a number from which [`Rows::count`] and [`Rows::each`] find the rows that are there.
    fn end(&self) -> u32 {
        let used = self.used.load(Ordering::Acquire);
        (if used < self.capacity { used } else { self.capacity + used % self.capacity }) as u32
    }

    /// How many rows there are before such an end.
    fn count(&self, end: u32) -> u32 {
        end.min(self.capacity as u32)
    }

    /// The rows before such an end, oldest first.
    fn each(&self, end: u32, mut see: impl FnMut([u64; 4])) {
        (end - self.count(end)..end).for_each(|at| {
            let at = at as usize;
            let row = self.row(at);
            see(core::array::from_fn(|i| row[i].load(Ordering::Relaxed)));
        });
    }
}

struct Books {
    events: Rows,
    names: Rows,
}

/// The state of a CPU when the trace began.
#[derive(Clone, Copy, Default)]
struct Beginning {
    now_ns: u64,
    /// The times that the core had counted until then.
    time: CpuTime,
}

/// The trace of one CPU. The room is there before [`ON`] is set, and stays.
pub struct Buffer {
    room: OnceCell<Books>,
    beginning: OnceCell<Beginning>,
    /// Whether events of this CPU's queue are recorded. Written under the queue's lock.
    begun: AtomicBool,
    lost: AtomicU64,
    /// The ticket of a lost event: of the first that was lost, or, where the last events are kept, of the last that was lost.
    lost_at: AtomicU64,
}

impl Buffer {
    /// A buffer without room.
    pub const fn new() -> Buffer {
        Buffer {
            room: OnceCell::new(),
            beginning: OnceCell::new(),
            begun: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            lost_at: AtomicU64::new(u64::MAX),
        }
    }
}

/// Makes room for events on each CPU, and begins the trace. Before the first thread is made.
pub fn begin(Room { capacity, keeps_first }: Room) {
    // Each new thread has one name, and leaves more than four events.
    let names = capacity / 4 + 1;
    for cpu in percpu::all() {
        let room = Rows::allocate(capacity, keeps_first).zip(Rows::allocate(names, keeps_first));
        let Some((events, names)) = room else {
            crate::println!(
                "trace: no memory for {capacity} events on each of {} CPUs; there is no trace",
                percpu::count()
            );
            return;
        };
        let fresh = cpu.trace.room.set(Books { events, names });
        debug_assert!(fresh.is_ok(), "a trace begins once");
    }
    let which = if keeps_first { "first" } else { "last" };
    crate::println!("trace: the {which} {capacity} events on each of {} CPUs", percpu::count());
    ON.store(true, Ordering::Release);
    // Each queue's trace begins under its own lock, between two interrupts. No thread exists yet that could migrate from one queue to another.
    for cpu in percpu::all() {
        while !begin_on(cpu) {
            cpu::pause();
        }
    }
}

fn begin_on(cpu: &PerCpu) -> bool {
    let mut queue = cpu.dispatch.queue.lock();
    if queue.is_in_interrupt() {
        return false;
    }
    queue.refreshed_summary(time::now_ns());
    // The time up to which the core has charged; it does not go back, even if the clock did.
    let now_ns = queue.started_ns() + queue.wall_ns();
    let fresh = cpu.trace.beginning.set(Beginning { now_ns, time: queue.time() });
    debug_assert!(fresh.is_ok(), "a trace begins once");
    cpu.trace.begun.store(true, Ordering::Release);
    true
}

/// Whether there is a trace.
#[inline(always)]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Records one event of the queue of `cpu`, whose lock is held.
fn record(cpu: usize, time_ns: u64, kind: Kind) {
    let own = &percpu::this().trace;
    let Some(room) = own.room.get() else { return };
    if !percpu::get(cpu).is_some_and(|cpu| cpu.trace.begun.load(Ordering::Relaxed)) {
        return;
    }
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    // A ring of fixed size (K-30).
    let pushed = room.events.push(dump::record_words(ticket, Event { time_ns, cpu: cpu as u16, kind }));
    match pushed {
        Pushed::Kept => {}
        Pushed::Over(lost) => {
            own.lost.fetch_add(1, Ordering::Relaxed);
            own.lost_at.store(lost, Ordering::Relaxed);
        }
        Pushed::Refused => {
            if own.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                own.lost_at.store(ticket, Ordering::Relaxed);
            }
        }
    }
}

/// The number of a thread in the trace.
fn name_of(id: ThreadId) -> u32 {
    heads::get(id.0 as u32).map_or(u32::MAX, ThreadHead::trace_id)
}

/// What led to the decision who runs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The CPU was idle.
    Idle,
    /// The thread blocks.
    Block,
    /// The thread blocks, and this one takes over the CPU for the rest of its slice (a direct handoff).
    Handoff(ThreadId),
    /// The same, and the thread's context is lent along.
    Lend(ThreadId),
    /// The thread queues behind this one.
    YieldTo(ThreadId),
    /// The thread ended.
    Exit,
    /// The thread lets others go first.
    Yield,
    /// Others may have to run.
    Look,
}

/// `runnable` is about to be queued on `target`, whose lock is held: it is new, or was blocked.
#[inline(always)]
pub fn arrives(target: &PerCpu, runnable: &Runnable<SchedRef>, now: u64) {
    if on() {
        record_arrival(target.id, runnable, now);
    }
}

#[cold]
#[inline(never)]
fn record_arrival(target: usize, runnable: &Runnable<SchedRef>, now: u64) {
    let thread = name_of(runnable.id());
    match runnable.last_cpu() {
        None => {
            introduce(target, thread, runnable, now);
            record(target, now, Kind::Spawn { thread });
        }
        Some(last) => {
            record(target, now, Kind::Wake { thread });
            if last.index() != target {
                record(target, now, Kind::Place { thread, from: last.index() as u16 });
            }
        }
    }
}

/// Records what a new thread starts with, and its name.
fn introduce(target: usize, thread: u32, runnable: &Runnable<SchedRef>, now: u64) {
    let Snapshot { weight, class, .. } = runnable.snapshot();
    record(target, now, Kind::Weight { thread, weight: weight.get().into() });
    record(target, now, Kind::Class { thread, class: class as u8 });
    if runnable.mask() != sched::CpuMask::ALL {
        record_mask(target, thread, runnable.mask(), now);
    }
    if runnable.is_context_only() {
        record(target, now, Kind::ContextOnly { only: true, thread });
    }
    if let Some(context) = runnable.context() {
        record(target, now, Kind::Bind { thread, context: name_of_context(context) });
    }
    if let (Some(room), Some(made)) = (percpu::this().trace.room.get(), heads::get(runnable.id().0 as u32)) {
        let pid = made.pid.load(Ordering::Relaxed);
        let named = NamedThread { id: thread, pid, name: made.name.get().0 };
        // A ring of fixed size (K-30): there is room for a name as long as there is for the thread's events.
        let _ = room.names.push(named.to_words());
    }
}

fn record_mask(cpu: usize, thread: u32, cpus: sched::CpuMask, now: u64) {
    let mut bytes = [0; sched::MAX_CPUS / 8];
    cpus.to_bytes(&mut bytes);
    for (part, bytes) in (0..).zip(bytes.chunks_exact(4)) {
        let cpus = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        record(cpu, now, Kind::Affinity { part, thread, cpus });
    }
}

/// `thread` may run on these CPUs only, from its next enqueue on.
#[inline(always)]
pub fn confined(me: &PerCpu, thread: &ThreadHead, cpus: sched::CpuMask, now: u64) {
    if on() {
        record_mask(me.id, thread.trace_id(), cpus, now);
    }
}

/// The queue of `me`, whose lock is held, was told why the current thread leaves, and has decided who runs.
#[inline(always)]
pub fn decided(me: &PerCpu, left: Option<&ThreadHead>, why: Why, decision: &Decision<SchedRef>, now: u64) {
    if on() {
        record_decision(me.id, left, why, decision, now);
    }
}

/// As [`decided`]: the current thread of `me` blocks, and `run` runs in its place.
#[inline(always)]
pub fn handed_over(me: &PerCpu, left: &ThreadHead, run: ThreadId, now: u64) {
    if on() {
        record_handoff(me.id, left, run, now);
    }
}

#[cold]
#[inline(never)]
fn record_handoff(me: usize, left: &ThreadHead, run: ThreadId, now: u64) {
    let decision =
        Decision { run: Some(run), until_ns: u64::MAX, switched: true, noted: Noted::NOTHING, evicted: None };
    record_decision(me, Some(left), Why::Handoff(run), &decision, now);
}

#[cold]
#[inline(never)]
fn record_decision(me: usize, left: Option<&ThreadHead>, why: Why, decision: &Decision<SchedRef>, now: u64) {
    let run = decision.run;
    if let Some(left) = left {
        let thread = left.trace_id();
        let goes_on = run == Some(ThreadId(left.tid().into()));
        let kind = match why {
            Why::Idle | Why::Block | Why::Handoff(_) | Why::Lend(_) => Kind::Block { thread },
            Why::Exit => Kind::Exit { thread },
            Why::Yield | Why::YieldTo(_) => Kind::Yield { thread },
            Why::Look if goes_on => Kind::Keep { thread },
            Why::Look if decision.noted.has(Noted::THROTTLED) => Kind::Throttle { thread },
            Why::Look => Kind::Preempt { thread },
        };
        record(me, now, kind);
        if let Why::YieldTo(target) = why {
            record(me, now, Kind::Behind { thread: name_of(target) });
        }
        if let Some(evicted) = &decision.evicted {
            record(me, now, Kind::Evict { thread, lost: evicted.reason == EvictionReason::ContextLost });
        }
    }
    if let Why::Handoff(id) | Why::Lend(id) = why
        && let Some(next) = heads::get(id.0 as u32)
    {
        let thread = next.trace_id();
        record(me, now, Kind::Wake { thread });
        let last = next.cpu.load(Ordering::Relaxed);
        if last as usize != me {
            record(me, now, Kind::Place { thread, from: last as u16 });
        }
        let lends = matches!(why, Why::Lend(_));
        record(me, now, if lends { Kind::Lend { thread } } else { Kind::Handoff { thread } });
    }
    record_running(me, run, now);
}

/// Records what the CPU does from now on.
#[cold]
#[inline(never)]
fn record_running(me: usize, run: Option<ThreadId>, now: u64) {
    record(me, now, run.map_or(Kind::Idle, |id| Kind::Run { thread: name_of(id) }));
}

/// Records an event of the queue of `cpu`, whose lock is held; for kinds that need no further rows.
#[inline(always)]
pub fn note(cpu: &PerCpu, kind: Kind, now: u64) {
    if on() {
        record_note(cpu.id, kind, now);
    }
}

#[cold]
#[inline(never)]
fn record_note(cpu: usize, kind: Kind, now: u64) {
    record(cpu, now, kind);
}

/// The interrupt of `me` ends: the CPU goes on with what it did before.
#[inline(always)]
pub fn resumes(me: &PerCpu, queue: &sched::Cpu<SchedRef>, now: u64) {
    if on() {
        record_running(me.id, queue.current(), now);
    }
}

/// The current thread of `me`, whose lock is held, has created `child`, which inherits its debt.
#[inline(always)]
pub fn owes(me: &PerCpu, child: &Runnable<SchedRef>, debt_ns: u64, now: u64) {
    if on() {
        record_debt(me.id, child.id(), debt_ns, now);
    }
}

#[cold]
#[inline(never)]
fn record_debt(me: usize, child: ThreadId, debt_ns: u64, now: u64) {
    record(me, now, Kind::Charge);
    let thread = name_of(child);
    record(me, now, Kind::Debt { high: (debt_ns >> 32) as u16, thread, low: debt_ns as u32 });
}

/// The deferred charge of a thread for interrupts that served it is taken: from the current thread of `me`, whose lock is held, or from the context
/// of a thread that is about to be queued there.
#[inline(always)]
pub fn pays(me: &PerCpu, thread: &ThreadHead, owed_ns: u64, now: u64) {
    let thread = thread.trace_id();
    note(me, Kind::Debt { high: (owed_ns >> 32) as u16, thread, low: owed_ns as u32 }, now);
}

/// The weight of `thread` changes: the thread runs on `cpu`, whose lock is held, or is about to be queued there again.
pub fn weighs(cpu: &PerCpu, thread: ThreadId, weight: Weight, now: u64) {
    note(cpu, Kind::Weight { thread: name_of(thread), weight: weight.get().into() }, now);
}

/// The latency class of the current thread of `me` changes.
pub fn ranks(me: &PerCpu, class: LatencyClass, now: u64) {
    note(me, Kind::Class { thread: heads::current().trace_id(), class: class as u8 }, now);
}

/// The virtual clock of `me` is moved forward to `limit`, as it is behind it.
#[inline(always)]
pub fn forgives(me: &PerCpu, limit: i64, now: u64) {
    note(me, Kind::Forgive { high: (limit >> 32) as u32, low: limit as u32 }, now);
}

/// A context has come to its CPU, `cpu`, whose lock is held, or leaves it. A promise (`Admit`, `Readmit`) is recorded with its specification.
#[inline(always)]
pub fn promised(cpu: &PerCpu, context: &Context, what: Promise, now: u64) {
    if on() {
        let line = context.template() as u32;
        record_promise(cpu.id, (name_of_context(context), line), context.spec(), what, now);
    }
}

/// What a CPU does with a context that no thread runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Promises it time.
    Admit,
    /// Promises it other parameters.
    Readmit,
    /// Takes the promise back; written before the context itself is given back.
    Retire,
    /// Takes the context in as a guest.
    Host,
    /// Sends the context home.
    Unhost,
}

#[cold]
#[inline(never)]
fn record_promise(cpu: usize, (context, line): (u32, u32), spec: &Spec, what: Promise, now: u64) {
    let kind = match what {
        Promise::Admit => Kind::Admit { context },
        Promise::Readmit => Kind::Readmit { context },
        Promise::Retire => Kind::Retire { context },
        Promise::Host => Kind::Host { context },
        Promise::Unhost => Kind::Unhost { context },
    };
    if matches!(what, Promise::Admit | Promise::Readmit) {
        let mut part = 0;
        let mut write = |value: u32| {
            record(cpu, now, Kind::Spec { part, context, value });
            part += 1;
        };
        for long in [spec.budget_ns, spec.period_ns, spec.relative_deadline_ns] {
            write(long as u32);
            write((long >> 32) as u32);
        }
        write(u32::from_le_bytes([spec.overrun as u8, spec.criticality, spec.max_refills, 0]));
        let mut bytes = [0; sched::MAX_CPUS / 8];
        spec.cpu_mask.to_bytes(&mut bytes);
        for four in bytes.chunks_exact(4) {
            write(four.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
        }
        write(line);
        debug_assert_eq!(part, trace::SPEC_PARTS);
    }
    record(cpu, now, kind);
}

/// The number of a context in the trace.
fn name_of_context(context: &Context) -> u32 {
    context.identity().id as u32
}

/// `thread` has a context from now on. It runs on `cpu`, whose lock is held, or is blocked, and its *wait* lock is held. For a new thread this is
/// written when it arrives.
#[inline(always)]
pub fn bound(cpu: &PerCpu, thread: ThreadId, context: &Context, now: u64) {
    if on() {
        record_note(cpu.id, Kind::Bind { thread: name_of(thread), context: name_of_context(context) }, now);
    }
}

/// `thread` has no context any more; `stopped` if it was queued and cannot go on without one. As for [`bound`], or the thread is queued on `cpu`.
#[inline(always)]
pub fn unbound(cpu: &PerCpu, thread: ThreadId, stopped: bool, now: u64) {
    if on() {
        record_unbound(cpu.id, thread, stopped, now);
    }
}

#[cold]
#[inline(never)]
fn record_unbound(cpu: usize, thread: ThreadId, stopped: bool, now: u64) {
    let thread = name_of(thread);
    record(cpu, now, Kind::Unbind { thread });
    if stopped {
        record(cpu, now, Kind::Evict { thread, lost: true });
    }
}

/// `thread` was taken out of the queue of `cpu`, whose lock is held, to be queued again.
#[inline(always)]
pub fn dequeued(cpu: &PerCpu, thread: ThreadId, now: u64) {
    if on() {
        record_note(cpu.id, Kind::Evict { lost: false, thread: name_of(thread) }, now);
    }
}

/// Whether `thread` stops without a context has changed to `only`; locks as for [`bound`].
#[inline(always)]
pub fn depends(cpu: &PerCpu, thread: ThreadId, only: bool, now: u64) {
    if on() {
        record_note(cpu.id, Kind::ContextOnly { only, thread: name_of(thread) }, now);
    }
}

/// `me` tried to steal or pull a thread from `other`; both locks are held.
#[inline(always)]
pub fn took(me: &PerCpu, other: &PerCpu, outcome: &MoveOutcome, balances: bool, now: u64) {
    if on() {
        record_move(me.id, other.id, outcome, balances, now);
    }
}

#[cold]
#[inline(never)]
fn record_move(me: usize, other: usize, outcome: &MoveOutcome, balances: bool, now: u64) {
    let from = other as u16;
    match outcome {
        MoveOutcome::Moved { thread, .. } if balances => {
            record(me, now, Kind::Balance { thread: name_of(*thread), from });
        }
        MoveOutcome::Moved { thread, .. } => {
            record(me, now, Kind::Steal { thread: name_of(*thread), from });
        }
        // A balance step charges both CPUs before it looks.
        MoveOutcome::Nothing if balances => {
            record(me, now, Kind::Charge);
            record(other, now, Kind::Charge);
        }
        MoveOutcome::Nothing => {}
    }
}

/// Counts this CPU as stopped; it is about to stop for good.
pub fn note_halt() {
    HALTED.fetch_add(1, Ordering::AcqRel);
}

/// If there is a trace, stops the other CPUs between two events, as far as they take interrupts, so that what they have written is complete.
pub fn stop_others() {
    if !on() {
        return;
    }
    let (before, others) = (time::now_ns(), percpu::count() - 1);
    smp::halt_others();
    while HALTED.load(Ordering::Acquire) < others && time::now_ns() - before < HALT_NS {
        cpu::pause();
    }
}

/// Writes the whole trace to the debug console, if there are both. The machine does nothing else any more.
pub fn write_out(panicked: bool) {
    if !on() {
        return;
    }
    // In a panic the report has stopped the other CPUs already.
    if !panicked {
        stop_others();
    }
    ON.store(false, Ordering::Release);
    let tickets = TICKETS.load(Ordering::Relaxed);
    if cpu::inb(PORT) != PORT as u8 {
        crate::println!("trace: {tickets} events, and no debug console to write them to (QEMU's -debugcon)");
        return;
    }
    let lost: u64 = percpu::all().map(|cpu| cpu.trace.lost.load(Ordering::Relaxed)).sum();
    if !panicked {
        crate::println!("trace: {tickets} events, {lost} of them lost");
    }
    let mut sum = Sum::NEW;
    let mut put = |bytes: &[u8]| {
        sum = sum.with(bytes);
        cpu::outsb(PORT, bytes);
    };
    // If something is badly wrong other CPUs may still run. So the ends are fixed here, and exactly what they count is written below.
    let mut ends = [(0u32, 0u32); sched::MAX_CPUS];
    for (cpu, ends) in percpu::all().zip(&mut ends) {
        if let Some(room) = cpu.trace.room.get() {
            *ends = (room.events.end(), room.names.end());
        }
    }
    let rooms = || percpu::all().zip(ends).filter_map(|(cpu, ends)| Some((cpu, cpu.trace.room.get()?, ends)));
    let threads = rooms().map(|(_, room, (_, names))| room.names.count(names)).sum();
    put(&header(threads, tickets, panicked).encode());
    for (cpu, room, (events, _)) in rooms() {
        put(&part(cpu, room.events.count(events)).encode());
    }
    for (_, room, (_, names)) in rooms() {
        room.names.each(names, |row| put(&dump::row_bytes(row)));
    }
    for (_, room, (events, _)) in rooms() {
        room.events.each(events, |row| put(&dump::row_bytes(row)));
    }
    cpu::outsb(PORT, &sum.0.to_le_bytes());
}

fn header(threads: u32, tickets: u64, panicked: bool) -> Header {
    let room = percpu::this().trace.room.get();
    Header {
        cpus: percpu::count() as u16,
        policy: crate::dispatch::policy() as u8,
        panicked,
        keeps_last: room.is_some_and(|room| !room.events.keeps_first),
        capacity: room.map_or(0, |room| room.events.capacity) as u32,
        threads,
        end_ns: time::now_ns(),
        tickets,
    }
}

fn part(cpu: &PerCpu, events: u32) -> CpuPart {
    let begun = cpu.trace.beginning.get().copied().unwrap_or_default();
    let time = cpu.dispatch.queue.try_lock().map(|queue| queue.time());
    CpuPart {
        started_ns: begun.now_ns,
        time: time.map(|time| {
            [
                time.thread_ns - begun.time.thread_ns,
                time.idle_ns - begun.time.idle_ns,
                time.interrupt_ns - begun.time.interrupt_ns,
            ]
        }),
        events,
        lost: cpu.trace.lost.load(Ordering::Relaxed),
        lost_at: cpu.trace.lost_at.load(Ordering::Relaxed),
    }
}
