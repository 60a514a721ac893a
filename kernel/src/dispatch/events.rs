//! What interrupts ask of the dispatcher: whose time they are (S-16), and whether somebody else should run.

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

/// As [`look`], when another CPU asked: the loop of an idle CPU asks the core itself, next.
#[inline(always)]
pub fn look_as_asked(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    if me.current.get().is_null() {
        PENDING.remove(me.id);
    } else {
        look(me, now, bill);
    }
}

/// As [`look`], when somebody was woken here. Whoever has asked an idle CPU to look meanwhile has interrupted it, too.
#[inline(always)]
pub fn look_for_woken(me: &'static PerCpu, bill: &mut Bill) {
    if !me.current.get().is_null() {
        // Waking takes time.
        look(me, time::now_ns(), bill);
    }
}

fn thread_of(id: ThreadId) -> Option<&'static ThreadHead> {
    heads::get(id.0 as u32)
}

/// Deadlines that passed, of which one look tells; with more it looks again.
const MISSES: usize = 4;

/// Deadlines that have passed, which a look at the run queue has found, and whose observers are to be told.
#[derive(Default)]
pub(super) struct Misses {
    found: [Option<Missed>; MISSES],
    count: usize,
}

/// Looks, under the CPU's lock: what does the core ask for, and until when may the running thread go on? The thread that has a refill is put on the
/// bill.
#[inline(always)]
pub(super) fn look_under(
    me: &PerCpu,
    queue: &mut Queue,
    now: u64,
    bill: &mut Bill,
    misses: &mut Misses,
) -> (Effect, u64) {
    tracing::note(me, Kind::Timer, now);
    // A dispatch has seen to the refills that came before.
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
    /// Is there nobody to be told?
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// There may be more of them: whoever has told of these looks again.
    pub(super) fn is_full(&self) -> bool {
        self.count == MISSES
    }

    /// Tells the observers of those whose deadlines have passed, who pay for it. No lock is held: telling takes locks of higher layers.
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

/// The timer fired or another CPU asked: what does the core say? Threads that have a refill, or have missed a deadline, are put on the bill.
pub fn look(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    PENDING.remove(me.id);
    if now >= me.dispatch.balance_ns.get() {
        let id = CpuId::new(me.id).expect("a CPU number");
        // One that is alone has nobody to look at, ever.
        let is_alone = percpu::count() == 1;
        me.dispatch.balance_ns.set(if is_alone { u64::MAX } else { sched::next_balance_ns(id, now) });
        if !planted::is(Bug::NoBalance) {
            balance(me, now);
        }
    }
    look_again(me, now, bill);
}

/// [`look`], as often as there are deadlines to tell of.
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

/// The way into an interrupt and out of it: what lies before the first reading of the clock and after the last. It is no more the time of who was
/// interrupted than what lies between (S-16).
static WAY_IN_NS: AtomicU64 = AtomicU64::new(0);
static WAY_OUT_NS: AtomicU64 = AtomicU64::new(0);
/// So often are the two measured; the least counts, because the host may have other things to do.
const TRIES: usize = 32;

/// Measures the way into an interrupt and out of it, at boot, with nobody there to be interrupted. Says how long they are.
pub fn measure_ways() -> (u64, u64) {
    let me = percpu::this();
    let (mut in_ns, mut out_ns) = (u64::MAX, u64::MAX);
    for _ in 0..TRIES {
        let counted_ns = me.dispatch.queue.lock().time().interrupt_ns;
        let (before, after) = cpu::interrupt_oneself();
        let queue = me.dispatch.queue.lock();
        // Up to here it was counted, and since then that is what was counted.
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

/// So many CPUs take turns (`turns=n`), and the clock of each goes on while the others do: the ways take as many times what they took at boot, when one
/// was there alone.
pub fn share_ways(cpus: usize) {
    for way in [&WAY_IN_NS, &WAY_OUT_NS] {
        way.store(way.load(Ordering::Relaxed) * cpus as u64, Ordering::Relaxed);
    }
}

/// An interrupt came when the counter read `tsc`. Says when that was, and who pays for it.
///
/// One that comes for others has begun with the way into it. One that ends a turn has not: if who runs were charged with neither way, what is left of
/// the turn might be shorter than they are, and the next interrupt would find nearly as much of it.
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

/// As [`interrupt_begins`], of one that interrupts nobody, or that the current thread looks for itself.
#[inline(always)]
pub fn interrupt_is_found(me: &PerCpu, tsc: u64) -> (u64, Bill) {
    let now = clock::ns_at(tsc);
    (now, time_stops(me, now, |_| 0))
}

/// Since the way in before `now`, time is nobody's but the kernel's.
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

/// As [`interrupt_begins`], under the CPU's lock, of an interrupt that serves no deadline of a sleeper.
#[inline(always)]
pub(super) fn turn_interrupted(me: &PerCpu, queue: &mut Queue, now: u64) -> Bill {
    let way_ns = if queue.is_refill_due(now) { WAY_IN_NS.load(Ordering::Relaxed) } else { 0 };
    time_stops_under(me, queue, now, way_ns)
}

/// The interrupt ends, for others with the way out of it: then time goes to the running thread again. The last that is done in it.
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

/// As [`interrupt_ends`], of one that has interrupted nobody, or that the current thread has found.
#[inline(always)]
pub fn found_interrupt_ends(me: &PerCpu, mut bill: Bill) {
    let mut queue = me.dispatch.queue.lock();
    let now = time::now_ns();
    time_goes_on(me, &mut queue, &mut bill, now);
}

/// From `now` on time goes to the running thread or to idle.
#[inline(always)]
fn time_goes_on(me: &PerCpu, queue: &mut Queue, bill: &mut Bill, now: u64) {
    settle(queue, bill, now);
    tracing::resumes(me, queue, now);
    queue.interrupt_end(now);
}

/// Whom the interrupt served last owes its time up to `now`.
#[inline(always)]
pub(super) fn settle(queue: &mut Queue, bill: &mut Bill, now: u64) {
    if bill.is_due() {
        let (owned_ns, others_ns) = bill.total(now);
        queue.note_service(owned_ns, others_ns, now);
    }
}

/// What is done for `thread`, which was left, on the stack of who runs next: it is the time of neither, but of the one that it is done for. From where
/// the next one was chosen on, under the lock under which it was.
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

/// It is done.
#[cold]
pub(super) fn work_ends(me: &PerCpu, queue: &mut Queue, mut bill: Bill) {
    let now = time::now_ns();
    time_goes_on(me, queue, &mut bill, now);
}

/// The current thread was interrupted for somebody, others ran meanwhile, and now it is on its way back to what it did. That way, from where it was
/// chosen on, is part of that interrupt, and paid for by whom that served.
///
/// Under the lock under which it was chosen. Afterwards would be too late: another CPU that does something to this queue charges the running thread with the
/// time up to then, and what is charged is not given back.
#[cold]
pub(super) fn goes_on(queue: &mut Queue, since_ns: u64, bill: &mut Bill) {
    if bill.pays_for_way_back() {
        let part = begins_at(percpu::this(), queue, since_ns);
        bill.goes_on(&part);
    }
}

/// Time is nobody's but the kernel's from `since_ns` on: since somebody was chosen to run, which is the last that was charged for, or later.
fn begins_at(me: &PerCpu, queue: &mut Queue, since_ns: u64) -> Bill {
    tracing::note(me, Kind::System, since_ns);
    queue.interrupt_begin(since_ns);
    Bill::new(since_ns)
}
