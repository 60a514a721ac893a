//! Timers of threads: which of them are due, and what becomes of their operations.
//!
//! The queues are those of the CPU where a timer was set; they run through the records of the threads.

use crate::clock;
use crate::dispatch::percpu::{self, PerCpu};
use crate::hook::Hook;
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, OPS, TIMEOUT, Thread, TimerSlot};
use crate::time::{Bill, CLASSES, Class, Payer, next_deadline, now_ns, program};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use kcore::timerq::{Node, Store, TimerQueue};

/// Due timers that one interrupt looks at; the rest gets the next, which comes at once.
const BATCH: usize = 8;
/// Others are held back for this long at least, for an interrupt to be worth its while.
const HOLD_NS: u64 = 100_000;

/// Ends a park, by its key, whose time is over.
type ParkEnds = fn(&Waiter, (u64, u64));

/// Parking is above this layer.
static PARK_ENDS: Hook<ParkEnds> = Hook::empty();

/// From here on `park_ends` is told of parks whose time is over; at boot.
pub fn hand_down(park_ends: ParkEnds) {
    PARK_ENDS.set(park_ends);
}

/// This CPU's event fired, and is armed no more: what each event does, whomever it comes for.
#[inline(always)]
fn fired(me: &'static PerCpu, now: u64) {
    me.armed_ns.store(u64::MAX, Ordering::Relaxed);
    me.counters.ticks.bump();
    if me.id == 0 {
        clock::discipline(now);
    }
    crate::watchdog::event(me, now);
}

/// As [`event`], of one that no sleeper waits for: it is armed for the next of those, and the dispatcher does the rest.
#[inline(always)]
pub fn event_of_turn(me: &'static PerCpu, now: u64) {
    fired(me, now);
    let at_ns = next_deadline(me).min(me.flight.watch.next_ns());
    if at_ns != u64::MAX {
        program(me, at_ns, now_ns());
    }
}

/// The event fired; `now` is when its interrupt began. Those whom it serves are put on the bill.
#[inline(always)]
pub fn event(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    if crate::selftest::take_event() {
        return;
    }
    fired(me, now);
    let mut is_served = false;
    let mut at_ns = next_deadline(me);
    for _ in 0..BATCH {
        if now < at_ns {
            break;
        }
        match take_due(me, now, bill) {
            Taken::Due(due, is_other) => {
                bill.turn_to(Payer::thread(due.thread, due.waiter.thread.thread_generation), is_other);
                serve(&due);
                is_served = true;
            }
            Taken::Moved(thread, generation) => bill.turn_to(Payer::thread(thread, generation), true),
            Taken::Nothing => {
                at_ns = next_deadline(me);
                break;
            }
        }
        at_ns = next_deadline(me);
    }
    // The event was used up; who was woken may have armed one for the end of a slice.
    at_ns = at_ns.min(me.flight.watch.next_ns());
    if at_ns < me.armed_ns.load(Ordering::Relaxed) {
        program(me, at_ns, now_ns());
    }
    if is_served {
        crate::dispatch::look_for_woken(me, bill);
    } else {
        crate::dispatch::look(me, now, bill);
    }
}

/// A timer whose time has come.
struct Due {
    thread: &'static Thread,
    waiter: Waiter,
    is_park: bool,
}

#[inline(always)]
fn serve(due: &Due) {
    if due.waiter.op as usize == TIMEOUT {
        crate::dispatch::wake(&due.waiter.thread, false);
    } else if due.is_park {
        end_park(&due.waiter);
    } else {
        ring::complete(&due.waiter, &SLEPT);
    }
}

fn end_park(waiter: &Waiter) {
    if let (Some(key), Some(ends)) = (ring::parked_on(waiter), PARK_ENDS.get()) {
        ends(waiter, key);
    }
}

/// What an interrupt finds.
enum Taken {
    /// Somebody whose time has come, and whether that one has no better right to the CPU than who runs, by a promise.
    Due(Due, bool),
    /// The timer of this thread, of this generation, was set on a promise that is used up: it waits among those of others from now on.
    Moved(&'static Thread, u32),
    /// Nobody whom it may serve now.
    Nothing,
}

/// Somebody whose time has come. Of others not more than may be taken from who runs on a promise: they are held back then.
#[inline(always)]
fn take_due(me: &PerCpu, now: u64, bill: &Bill) -> Taken {
    let left_ns = me.dispatch.service_left_ns.get();
    if left_ns == u64::MAX {
        let mut timers = me.dispatch.timers.lock();
        let due = first_due(&timers, Class::Other, now).and_then(|class| pop(me, &mut timers, class, now));
        return due.map_or(Taken::Nothing, |due| Taken::Due(due, false));
    }
    take_permitted(me, left_ns, now, bill)
}

/// [`take_due`], while somebody runs on a promise who has `left_ns` to spare for others.
#[inline(never)]
fn take_permitted(me: &PerCpu, left_ns: u64, now: u64, bill: &Bill) -> Taken {
    let others_may = bill.others_ns() < left_ns;
    // Beside one of a higher band, those of the lowest are others, too.
    let is_urgent = thread::current_or_none().is_some_and(|thread| Class::of(thread) == Class::Urgent);
    let least = match (others_may, is_urgent) {
        (true, _) => Class::Other,
        (false, false) => Class::Promised,
        (false, true) => Class::Urgent,
    };
    if !others_may {
        me.dispatch.holds_promised.set(is_urgent);
        hold_others(me, now);
    }
    let (class, id, who) = {
        let timers = me.dispatch.timers.lock();
        let class = first_due(&timers, least, now);
        let Some((class, (_, id))) = class.and_then(|class| Some((class, timers[class as usize].first()?)))
        else {
            return Taken::Nothing;
        };
        (class, id, split(id).0.reference())
    };
    let is_other = class == Class::Other || !has_budget(me, &who, now);
    let mut timers = me.dispatch.timers.lock();
    // Whoever set it may have taken it back meanwhile, on another CPU: what is first now waits for the next interrupt, which comes at once.
    if timers[class as usize].first().is_none_or(|(_, first)| first != id) {
        return Taken::Nothing;
    }
    let Some(due) = pop(me, &mut timers, class, now) else { return Taken::Nothing };
    if others_may || !is_other {
        return Taken::Due(due, is_other);
    }
    // It has a context, and has used it up.
    let (thread, slot) = split(id);
    let deadline = Records.node(id).deadline();
    insert(me, &mut timers, thread, slot, Class::Other, deadline);
    Taken::Moved(thread, who.thread_generation)
}

/// The deadlines of others wait until they may have something of a promised time again.
#[cold]
fn hold_others(me: &PerCpu, now: u64) {
    if now >= me.dispatch.held_until_ns.get() {
        let again_ns = me.dispatch.queue.lock().service_again_ns(now);
        me.dispatch.held_until_ns.set(again_ns.max(now + HOLD_NS));
    }
}

/// May a thread be served although another one runs on a promise? It has budget itself, and waits, or it is that one.
fn has_budget(me: &PerCpu, who: &ThreadRef, now: u64) -> bool {
    let Some(thread) = thread::get(who.tid) else { return false };
    if core::ptr::eq(me.current.get(), &raw const **thread) {
        return true;
    }
    let wait = thread.wait.lock();
    let context = wait.parked.as_ref().and_then(|parked| parked.context());
    context.is_some_and(|time| thread.debt.is_covered_by(time.ledger().available_ns(now)))
}

struct Records;
impl Store for Records {
    fn node(&mut self, id: u32) -> &mut Node {
        let (thread, slot) = split(id);
        // SAFETY: nodes belong to the queue of one CPU, whose lock the callers hold.
        unsafe { &mut *thread.timers[slot].node.get() }
    }
}

fn join(thread: &Thread, slot: usize) -> u32 {
    thread.tid() << 6 | slot as u32
}

fn split(id: u32) -> (&'static Thread, usize) {
    (thread::get(id >> 6).expect("timers belong to records"), id as usize & 63)
}

/// The highest class of which a timer is due, down to the `least` that may be served.
#[inline(always)]
fn first_due(timers: &[TimerQueue; CLASSES], least: Class, now: u64) -> Option<Class> {
    let is_due = |class: &Class| timers[*class as usize].first_deadline() <= now;
    Class::ALL.into_iter().skip(least as usize).rev().find(is_due)
}

#[inline(always)]
fn pop(me: &PerCpu, timers: &mut [TimerQueue; CLASSES], class: Class, now: u64) -> Option<Due> {
    let due = timers[class as usize].pop_due(&mut Records, now).map(|id| {
        let (thread, slot) = split(id);
        let timer = &thread.timers[slot];
        timer.cpu.store(u32::MAX, Ordering::Relaxed);
        let sequence = timer.sequence.load(Ordering::Relaxed);
        let is_park = timer.is_park.load(Ordering::Relaxed);
        Due { thread, waiter: Waiter { thread: thread.reference(), op: slot as u8, sequence }, is_park }
    });
    publish(me, timers, class);
    due
}

/// The first deadline of a class may be another one.
#[inline(always)]
fn publish(me: &PerCpu, timers: &[TimerQueue; CLASSES], class: Class) {
    me.dispatch.nearest[class as usize].store(timers[class as usize].first_deadline(), Ordering::Relaxed);
}

/// Puts a timer into a queue of this CPU.
fn insert(
    me: &PerCpu,
    timers: &mut [TimerQueue; CLASSES],
    thread: &'static Thread,
    slot: usize,
    class: Class,
    deadline: u64,
) {
    let timer = &thread.timers[slot];
    timer.cpu.store(me.id as u32, Ordering::Relaxed);
    timer.class.store(class as u8, Ordering::Relaxed);
    // Linked through the threads' records: no memory (K-30).
    timers[class as usize].insert(&mut Records, join(thread, slot), deadline);
    publish(me, timers, class);
}

/// Timer `slot` of the current thread will fire at `deadline`: of a park, or of a sleep or a wait.
#[inline]
pub fn set_timer(thread: &'static Thread, slot: usize, sequence: u32, is_park: bool, deadline: u64) {
    debug_assert!(slot <= OPS);
    let me = percpu::this();
    let class = Class::of(thread);
    let mut timers = me.dispatch.timers.lock();
    thread.timers[slot].sequence.store(sequence, Ordering::Relaxed);
    thread.timers[slot].is_park.store(is_park, Ordering::Relaxed);
    insert(me, &mut timers, thread, slot, class, deadline);
    drop(timers);
    if deadline < me.armed_ns.load(Ordering::Relaxed) {
        program(me, deadline, now_ns());
    }
}

/// Timer `slot` of the current thread will not fire any more. Did it wait to?
pub fn cancel_timer(thread: &'static Thread, slot: usize) -> bool {
    cancel_if(thread, slot, |_| true)
}

/// The timer of somebody's operation will not fire any more, if it is still that operation's (K-05): the thread may have ended, and another
/// one may have set the timer in its place.
pub fn cancel_operation(waiter: &Waiter) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    let is_its = |timer: &TimerSlot| {
        // A thread that ends takes its timers back before its record is used again.
        thread.is(&waiter.thread) && timer.sequence.load(Ordering::Relaxed) == waiter.sequence
    };
    cancel_if(thread, waiter.op as usize, is_its)
}

fn cancel_if(thread: &'static Thread, slot: usize, is_meant: impl FnOnce(&TimerSlot) -> bool) -> bool {
    let timer = &thread.timers[slot];
    let owner = timer.cpu.load(Ordering::Relaxed);
    let Some(cpu) = percpu::get(owner as usize) else { return false };
    let mut timers = cpu.dispatch.timers.lock();
    // It may have fired in the meantime.
    if timer.cpu.load(Ordering::Relaxed) != owner || !is_meant(timer) {
        return false;
    }
    let class = Class::ALL[usize::from(timer.class.load(Ordering::Relaxed)) % CLASSES];
    let found = timers[class as usize].cancel(&mut Records, join(thread, slot));
    timer.cpu.store(u32::MAX, Ordering::Relaxed);
    publish(cpu, &timers, class);
    found
}

/// The completion of a sleep.
const SLEPT: Completion = Completion::OK;
