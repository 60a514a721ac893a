//! What interrupts ask of the dispatcher: which thread is charged for them (S-16), and whether another thread should run.

use super::above::{News, above};
use super::looks::assert_time;
use super::moves::balance;
use super::{PENDING, Queue};
use crate::arch::cpu;
use crate::clock;
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::{self, PerCpu};
use crate::planted::{self, Bug};
use crate::time::{self, Bill};
use crate::tracing;
use ::sched::{CpuId, Effect, Missed, ThreadId};
use core::sync::atomic::{AtomicU64, Ordering};
use trace::Kind;

/// As [`look`], at the request of another CPU. An idle CPU does not ask the core here, because its idle loop does so next.
#[inline(always)]
pub fn look_as_asked(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    if me.current.get().is_null() {
        PENDING.remove(me.id);
    } else {
        look(me, now, bill);
    }
}

/// As [`look`], after a thread was woken here. An idle CPU need not look: its idle loop does, and a CPU that has a request for it interrupts it.
#[inline(always)]
pub fn look_for_woken(me: &'static PerCpu, bill: &mut Bill) {
    if !me.current.get().is_null() {
        // The clock is read again, because waking took time.
        look(me, time::now_ns(), bill);
    }
}

fn thread_of(id: ThreadId) -> Option<&'static ThreadHead> {
    heads::get(id.0 as u32)
}

/// How many missed deadlines one look at the run queue reports; if there may be more, it is repeated.
const MISSES: usize = 4;

/// Missed deadlines that a look at the run queue has found, and whose observers are to be told.
#[derive(Default)]
pub(super) struct Misses {
    found: [Option<Missed>; MISSES],
    count: usize,
}

/// Asks the core, under the CPU's lock, what is to be done and until when the running thread may go on. A thread whose refill has come is charged for
/// the interrupt from here on.
#[inline(always)]
pub(super) fn look_under(
    me: &PerCpu,
    queue: &mut Queue,
    now: u64,
    bill: &mut Bill,
    misses: &mut Misses,
) -> (Effect, u64) {
    tracing::note(me, Kind::Timer, now);
    // Forgets refills that came before this interrupt: a dispatch has dealt with them.
    let _ = queue.take_refilled();
    while misses.count < MISSES
        && let Some(one) = queue.next_missed(now)
    {
        misses.found[misses.count] = Some(one);
        misses.count += 1;
    }
    let effect = queue.timer(now);
    let until_ns = queue.until_ns();
    if let Some(refilled) = queue.take_refilled().and_then(thread_of)
        && !planted::is(Bug::RefillUnpaid)
    {
        bill.falls_to(refilled);
    }
    assert_time(queue);
    (effect, until_ns)
}

impl Misses {
    /// Whether no missed deadline was found.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there may be more missed deadlines: after these were reported, the caller looks again.
    pub(super) fn is_full(&self) -> bool {
        self.count == MISSES
    }

    /// Tells the observers of the threads that missed their deadlines, and charges these threads for it. No lock is held, because telling takes locks
    /// of higher layers.
    #[cold]
    #[inline(never)]
    pub(super) fn tell(&self, me: &PerCpu, bill: &mut Bill) {
        for missed in self.found.iter().flatten() {
            me.counters.deadlines_missed.bump();
            if let Some(late) = thread_of(missed.thread) {
                bill.falls_to(late);
            }
            if let Some(news) = News::of_missed(missed) {
                (above().post)(&news);
            }
        }
    }
}

/// Asks the core what is to be done, because the timer fired or another CPU sent a request. Threads whose refill has come, or that missed a deadline,
/// are charged for their part of the interrupt.
pub fn look(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    PENDING.remove(me.id);
    if now >= me.dispatch.balance_ns.get() {
        let id = CpuId::new(me.id).expect("a CPU number");
        // The only CPU never has another one to compare itself with.
        let is_alone = percpu::count() == 1;
        me.dispatch.balance_ns.set(if is_alone { u64::MAX } else { sched::next_balance_ns(id, now) });
        if !planted::is(Bug::NoBalance) {
            balance(me, now);
        }
    }
    look_again(me, now, bill);
}

/// [`look`] without balancing, repeated as long as there are missed deadlines to report.
pub(super) fn look_again(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    let (effect, until_ns) = loop {
        let mut misses = Misses::default();
        let looked = look_under(me, &mut me.dispatch.queue.lock(), now, bill, &mut misses);
        if !misses.is_empty() {
            misses.tell(me, bill);
        }
        if !misses.is_full() {
            break looked;
        }
    };
    match effect {
        Effect::Dispatch => me.want_switch(),
        Effect::Keep | Effect::Rearm { .. } => time::arm(me, until_ns, now),
    }
}

/// The time of the way into an interrupt, before its first reading of the clock, and of the way out of it, after the last one. The interrupted thread
/// is no more charged for these than for what lies between (S-16).
static WAY_IN_NS: AtomicU64 = AtomicU64::new(0);
static WAY_OUT_NS: AtomicU64 = AtomicU64::new(0);
/// How often the two are measured. The least value counts, because the host may do other things during a measurement.
const TRIES: usize = 32;

/// Measures the way into an interrupt and out of it, at boot, when no thread runs that could be interrupted, and returns both in ns.
pub fn measure_ways() -> (u64, u64) {
    let me = percpu::this();
    let (mut in_ns, mut out_ns) = (u64::MAX, u64::MAX);
    for _ in 0..TRIES {
        let counted_ns = me.dispatch.queue.lock().time().interrupt_ns;
        let (before, after) = cpu::interrupt_oneself();
        let queue = me.dispatch.queue.lock();
        // The interrupt ended at the time up to which the queue has charged, and began as much earlier as interrupt time was counted.
        let ended_ns = queue.at_ns();
        let began_ns = ended_ns - (queue.time().interrupt_ns - counted_ns);
        in_ns = in_ns.min(began_ns.saturating_sub(clock::ns_at(before)));
        out_ns = out_ns.min(clock::ns_at(after).saturating_sub(ended_ns));
    }
    if !planted::is(Bug::WaysUnpaid) {
        WAY_IN_NS.store(in_ns, Ordering::Relaxed);
        WAY_OUT_NS.store(out_ns, Ordering::Relaxed);
    }
    (in_ns, out_ns)
}

/// Scales the two ways to `cpus` CPUs that take turns (`turns=n`): the clock of each goes on while the others run, so the ways take that many times
/// as long as at boot, when one CPU ran alone.
pub fn share_ways(cpus: usize) {
    for way in [&WAY_IN_NS, &WAY_OUT_NS] {
        way.store(way.load(Ordering::Relaxed) * cpus as u64, Ordering::Relaxed);
    }
}

/// Begins an interrupt that came when the counter read `tsc`. Returns when that was, and the record of who is charged.
///
/// An interrupt for other threads begins with the way into it. One that ends the running thread's turn does not: if the thread were charged for
/// neither way, what is left of its turn might be shorter than they are, and the next interrupt would find nearly as much left.
#[inline(always)]
pub fn interrupt_begins(me: &PerCpu, tsc: u64, is_asked: bool) -> (u64, Bill) {
    let now = clock::ns_at(tsc);
    let is_for_others = is_asked || time::is_anybody_due(me, now);
    (
        now,
        time_stops(me, now, |queue| {
            if is_for_others || queue.is_refill_due(now) { WAY_IN_NS.load(Ordering::Relaxed) } else { 0 }
        }),
    )
}

/// As [`interrupt_begins`], for an interrupt of the idle loop, or one that the current thread finds waiting at a preemption point.
#[inline(always)]
pub fn interrupt_is_found(me: &PerCpu, tsc: u64) -> (u64, Bill) {
    let now = clock::ns_at(tsc);
    (now, time_stops(me, now, |_| 0))
}

/// From the beginning of the way in, `way_ns` before `now`, time is charged to interrupts and to no thread.
#[inline(always)]
fn time_stops(me: &PerCpu, now: u64, way_ns: impl FnOnce(&Queue) -> u64) -> Bill {
    let mut queue = me.dispatch.queue.lock();
    let way_ns = way_ns(&queue);
    let bill = time_stops_under(me, &mut queue, now, way_ns);
    let began_ns = queue.at_ns();
    me.dispatch.service_left_ns.set(queue.service_left_ns(began_ns));
    bill
}

/// As [`time_stops`], under the CPU's lock.
#[inline(always)]
fn time_stops_under(me: &PerCpu, queue: &mut Queue, now: u64, way_ns: u64) -> Bill {
    let began_ns = now.saturating_sub(way_ns).max(queue.at_ns());
    tracing::note(me, Kind::System, began_ns);
    queue.interrupt_begin(began_ns);
    Bill::new(began_ns)
}

/// As [`interrupt_begins`], under the CPU's lock, for an interrupt in which no thread's timer is due.
#[inline(always)]
pub(super) fn turn_interrupted(me: &PerCpu, queue: &mut Queue, now: u64) -> Bill {
    let way_ns = if queue.is_refill_due(now) { WAY_IN_NS.load(Ordering::Relaxed) } else { 0 };
    time_stops_under(me, queue, now, way_ns)
}

/// Ends an interrupt, together with the way out of it if it served other threads: from then on time is charged to the running thread again. Called
/// last.
#[inline(always)]
pub fn interrupt_ends(me: &PerCpu, mut bill: Bill) {
    ends_under(me, &mut me.dispatch.queue.lock(), &mut bill);
}

/// As [`interrupt_ends`], under the CPU's lock.
#[inline(always)]
pub(super) fn ends_under(me: &PerCpu, queue: &mut Queue, bill: &mut Bill) {
    let way_ns = if bill.falls_to_asked() { WAY_OUT_NS.load(Ordering::Relaxed) } else { 0 };
    let now = time::now_ns() + way_ns;
    time_goes_on(me, queue, bill, now);
}

/// As [`interrupt_ends`], for one that began with [`interrupt_is_found`].
#[inline(always)]
pub fn found_interrupt_ends(me: &PerCpu, mut bill: Bill) {
    let mut queue = me.dispatch.queue.lock();
    let now = time::now_ns();
    time_goes_on(me, &mut queue, &mut bill, now);
}

/// From `now` on time is charged to the running thread or to idle.
#[inline(always)]
fn time_goes_on(me: &PerCpu, queue: &mut Queue, bill: &mut Bill, now: u64) {
    settle(queue, bill, now);
    tracing::resumes(me, queue, now);
    queue.interrupt_end(now);
}

/// Adds the time up to `now` to the deferred charge of the thread that the interrupt served last.
#[inline(always)]
pub(super) fn settle(queue: &mut Queue, bill: &mut Bill, now: u64) {
    if bill.is_due() {
        let (owned_ns, others_ns) = bill.total(now);
        queue.note_service(owned_ns, others_ns, now);
    }
}

/// Begins work for `thread`, which was switched out, on the stack of the next thread. The next thread is not charged for it; it becomes a deferred
/// charge of `thread`, from the time at which the next thread was chosen. Called under the same hold of the lock as that choice.
#[cold]
pub(super) fn work_begins(me: &PerCpu, queue: &mut Queue, thread: &'static ThreadHead) -> Option<Bill> {
    if planted::is(Bug::NewsUnpaid) {
        return None;
    }
    let chosen_ns = queue.at_ns();
    let mut bill = begins_at(me, queue, chosen_ns);
    bill.falls_to(thread);
    Some(bill)
}

/// Ends work that [`work_begins`] began.
#[cold]
pub(super) fn work_ends(me: &PerCpu, queue: &mut Queue, mut bill: Bill) {
    let now = time::now_ns();
    time_goes_on(me, queue, &mut bill, now);
}

/// The current thread was interrupted on behalf of another one, other threads ran meanwhile, and now it returns to what it did. The way back, from
/// the time at which it was chosen, is part of that interrupt, and charged to the thread that the interrupt served.
///
/// Called under the same hold of the lock as the choice. Later would be too late: another CPU that changes this queue charges the running thread for
/// the time up to then, and what is charged is not given back.
#[cold]
pub(super) fn goes_on(queue: &mut Queue, since_ns: u64, bill: &mut Bill) {
    if bill.pays_for_way_back() {
        let part = begins_at(percpu::this(), queue, since_ns);
        bill.goes_on(&part);
    }
}

/// From `since_ns` on time is charged to interrupts and to no thread. `since_ns` is when the running thread was chosen, up to which all is charged,
/// or later.
fn begins_at(me: &PerCpu, queue: &mut Queue, since_ns: u64) -> Bill {
    tracing::note(me, Kind::System, since_ns);
    queue.interrupt_begin(since_ns);
    Bill::new(since_ns)
}
