//! The kernel's trace of its scheduling (T-02): what each CPU's queue was told and what it decided, in fixed buffers.
//!
//! Each CPU writes its own buffer, with interrupts off, without locks and without allocating. An event about a queue is written while that
//! queue's lock is held, and takes its place in the one order of all CPUs then: so the order of tickets is the order in which each queue
//! saw its events, and times are the very ones that the core was given. `capos replay` gives them to a fresh core again.
//! Without a trace, each event costs a load and a branch.
//!
//! Times of a queue may go back: a CPU reads its clock, and then waits for the lock. Then an earlier charge by another CPU decides who
//! pays, so whatever charges a queue is an event, also if nothing else came of it.

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
/// Rows of one allocation: buffers need not lie in one piece.
const BLOCK_ROWS: usize = 4096;
/// How long the other CPUs may take to stop.
const HALT_NS: u64 = 200_000_000;

static ON: AtomicBool = AtomicBool::new(false);
/// The next place in the order.
static TICKETS: AtomicU64 = AtomicU64::new(0);
/// CPUs that have stopped for good.
static HALTED: AtomicUsize = AtomicUsize::new(0);

type Row = [AtomicU64; 4];

/// Rows that are written from the first on. What comes when all are full is written over the oldest one, or not at all.
struct Rows {
    blocks: Vec<Vec<Row>>,
    /// Rows that were ever written.
    used: AtomicUsize,
    capacity: usize,
    keeps_first: bool,
}

/// What came of a row.
enum Pushed {
    /// It was written, and nothing is lost.
    Kept,
    /// It was written over one that began with this word.
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

    /// Only by the CPU that it belongs to.
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

    /// Where the rows end, counted so that all that are there lie before it.
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

/// A CPU when the trace began.
#[derive(Clone, Copy, Default)]
struct Beginning {
    now_ns: u64,
    /// What the core had counted until then.
    time: CpuTime,
}

/// What a CPU keeps of its trace. The room is there before [`ON`] says so, and stays.
pub struct Buffer {
    room: OnceCell<Books>,
    beginning: OnceCell<Beginning>,
    /// Events of this CPU's queue are recorded from here on. Written under its lock.
    begun: AtomicBool,
    lost: AtomicU64,
    /// The ticket of the first event that was lost; where the last ones are kept, of the last one that was.
    lost_at: AtomicU64,
}

impl Buffer {
    /// Without room.
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

/// Makes room for events on each CPU, and begins. Before the first thread is made.
pub fn begin(Room { capacity, keeps_first }: Room) {
    // A thread that is made leaves more than four events.
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
    // Each queue's trace begins under its own lock, between two interrupts. There are no threads yet that could move from one to another.
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
    // What the core is charged up to: it does not go back, if the clock should have.
    let now_ns = queue.started_ns() + queue.wall_ns();
    let fresh = cpu.trace.beginning.set(Beginning { now_ns, time: queue.time() });
    debug_assert!(fresh.is_ok(), "a trace begins once");
    cpu.trace.begun.store(true, Ordering::Release);
    true
}

/// Is there a trace?
#[inline(always)]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// One event of the queue of `cpu`, whose lock is held.
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

/// The name of a thread in the trace.
fn name_of(id: ThreadId) -> u32 {
    heads::get(id.0 as u32).map_or(u32::MAX, ThreadHead::trace_id)
}

/// What led to a decision who runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The CPU was idle.
    Idle,
    /// The thread waits.
    Block,
    /// The thread waits for this one, and gives it the rest of its slice.
    Handoff(ThreadId),
    /// The same, with its context.
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

/// `runnable` is about to be queued on `target`, whose lock is held: it was made, or it has waited.
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

/// What a new thread is born with, and what it is called.
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
        // A ring of fixed size (K-30): there is room as long as there is for its events.
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

/// From its next enqueue on, `thread` runs on these CPUs only.
#[inline(always)]
pub fn confined(me: &PerCpu, thread: &ThreadHead, cpus: sched::CpuMask, now: u64) {
    if on() {
        record_mask(me.id, thread.trace_id(), cpus, now);
    }
}

/// The queue of `me`, whose lock is held, was told that the current thread leaves, and has decided who runs.
#[inline(always)]
pub fn decided(me: &PerCpu, left: Option<&ThreadHead>, why: Why, decision: &Decision<SchedRef>, now: u64) {
    if on() {
        record_decision(me.id, left, why, decision, now);
    }
}

/// As [`decided`]: the current thread of `me` waits, and `run` runs in its place.
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

/// What the CPU does from now on.
#[cold]
#[inline(never)]
fn record_running(me: usize, run: Option<ThreadId>, now: u64) {
    record(me, now, run.map_or(Kind::Idle, |id| Kind::Run { thread: name_of(id) }));
}

/// An event of the queue of `cpu`, whose lock is held, that is about no thread.
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

/// The interrupt of `me` ends: what it did before goes on.
#[inline(always)]
pub fn resumes(me: &PerCpu, queue: &sched::Cpu<SchedRef>, now: u64) {
    if on() {
        record_running(me.id, queue.current(), now);
    }
}

/// The current thread of `me`, whose lock is held, has made `child`, which inherits its debt.
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

/// The current thread of `me`, whose lock is held, pays for what interrupts did for it; or the context of one that is about to be queued there does.
#[inline(always)]
pub fn pays(me: &PerCpu, thread: &ThreadHead, owed_ns: u64, now: u64) {
    let thread = thread.trace_id();
    note(me, Kind::Debt { high: (owed_ns >> 32) as u16, thread, low: owed_ns as u32 }, now);
}

/// The weight of `thread` changes: it runs on `cpu`, whose lock is held, or is about to be queued there again.
pub fn weighs(cpu: &PerCpu, thread: ThreadId, weight: Weight, now: u64) {
    note(cpu, Kind::Weight { thread: name_of(thread), weight: weight.get().into() }, now);
}

/// The class of the current thread of `me` changes.
pub fn ranks(me: &PerCpu, class: LatencyClass, now: u64) {
    note(me, Kind::Class { thread: heads::current().trace_id(), class: class as u8 }, now);
}

/// `me` gives up what its clock is behind `limit`.
#[inline(always)]
pub fn forgives(me: &PerCpu, limit: i64, now: u64) {
    note(me, Kind::Forgive { high: (limit >> 32) as u32, low: limit as u32 }, now);
}

/// A context has come to its CPU, `cpu`, whose lock is held, or goes. What is promised (`Admit`, `Readmit`) comes with its specification.
#[inline(always)]
pub fn promised(cpu: &PerCpu, context: &Context, what: Promise, now: u64) {
    if on() {
        let line = context.template() as u32;
        record_promise(cpu.id, (name_of_context(context), line), context.spec(), what, now);
    }
}

/// What a CPU does about a context that nobody runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Promises it time.
    Admit,
    /// Promises it another time.
    Readmit,
    /// Promises nothing any more; written before the box is given back.
    Retire,
    /// Takes it in.
    Host,
    /// Sends it home.
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

/// The name of a context in the trace.
fn name_of_context(context: &Context) -> u32 {
    context.identity().id as u32
}

/// `thread` has a context from now on: it runs on `cpu`, whose lock is held, or waits, and its `wait` lock is held. A new thread's is written
/// when it arrives.
#[inline(always)]
pub fn bound(cpu: &PerCpu, thread: ThreadId, context: &Context, now: u64) {
    if on() {
        record_note(cpu.id, Kind::Bind { thread: name_of(thread), context: name_of_context(context) }, now);
    }
}

/// `thread` has none any more; `stopped` if it was queued, and cannot go on without. As [`bound`], or it is queued on `cpu`.
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

/// `thread` was taken out of the queue of `cpu`, whose lock is held, to be queued anew.
#[inline(always)]
pub fn dequeued(cpu: &PerCpu, thread: ThreadId, now: u64) {
    if on() {
        record_note(cpu.id, Kind::Evict { lost: false, thread: name_of(thread) }, now);
    }
}

/// `thread` stops without a context from now on, or does not; as [`bound`].
#[inline(always)]
pub fn depends(cpu: &PerCpu, thread: ThreadId, only: bool, now: u64) {
    if on() {
        record_note(cpu.id, Kind::ContextOnly { only, thread: name_of(thread) }, now);
    }
}

/// `me` tried to take a thread from `other`; both locks are held.
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
        // A balance step brings both accounts up to date before it looks.
        MoveOutcome::Nothing if balances => {
            record(me, now, Kind::Charge);
            record(other, now, Kind::Charge);
        }
        MoveOutcome::Nothing => {}
    }
}

/// This CPU is about to stop for good.
pub fn note_halt() {
    HALTED.fetch_add(1, Ordering::AcqRel);
}

/// If there is a trace, has the other CPUs stop between two events, as far as they take interrupts: then what they have written is whole.
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

/// Writes everything to the debug console, if there is a trace and a console. The machine does nothing else any more.
pub fn write_out(panicked: bool) {
    if !on() {
        return;
    }
    // The report of a panic has stopped the others already.
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
    // The others may not have stopped, if something is badly wrong: what is counted here is what is written below.
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
