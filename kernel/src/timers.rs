//! Timers of threads: which of them are due, and what happens to the operations that wait for them.
//!
//! A timer is in a queue of the CPU where it was set. The queues are linked through the records of the threads.

use crate::clock;
use crate::dispatch::percpu::{self, PerCpu};
use crate::hook::Hook;
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, OPS, TIMEOUT, Thread, TimerSlot};
use crate::time::{Bill, CLASSES, Class, Payer, next_deadline, now_ns, program};
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use kcore::timerq::{Node, Store, TimerQueue};

/// How many due timers one interrupt serves; the rest is left to the next one, which comes at once.
const BATCH: usize = 8;
/// Timers of other threads are held back for at least this long, so that they are worth an interrupt.
const HOLD_NS: u64 = 100_000;

/// Ends a park whose time is over; the second argument is the key that it waits on.
type ParkEnds = fn(&Waiter, (u64, u64));

/// A hook, because parking is in a higher layer.
static PARK_ENDS: Hook<ParkEnds> = Hook::empty();

/// Sets the function that ends parks whose time is over; called at boot.
pub fn hand_down(park_ends: ParkEnds) {
    PARK_ENDS.set(park_ends);
}

/// What every timer event does, whichever thread it comes for. The CPU's timer is not armed any more.
#[inline(always)]
fn fired(me: &'static PerCpu, now: u64) {
    me.armed_ns.store(u64::MAX, Ordering::Relaxed);
    me.counters.ticks.bump();
    if me.id == 0 {
        clock::discipline(now);
    }
    crate::watchdog::event(me, now);
}

/// As [`event`], if no thread's timer is due: arms the CPU's timer for the next of them, and leaves the rest to the dispatcher.
#[inline(always)]
pub fn event_of_turn(me: &'static PerCpu, now: u64) {
    fired(me, now);
    let at_ns = next_deadline(me).min(me.flight.watch.next_ns());
    if at_ns != u64::MAX {
        program(me, at_ns, now_ns());
    }
}

/// Handles a timer event; `now` is when its interrupt began. The threads that it serves are charged for it.
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
    // The event that fired is used up, so the timer is armed again, unless a wake-up has already armed it for an earlier time.
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

/// What an interrupt finds in the timer queues.
enum Taken {
    /// A timer that is due, and whether its thread has no better right to the CPU than the running one, which runs on a promise.
    Due(Due, bool),
    /// The thread (with its generation) has a context but no budget left, so its timer was moved to `Class::Other`.
    Moved(&'static Thread, u32),
    /// No timer that may be served now.
    Nothing,
}

/// Takes a timer that is due. Timers of other threads may use only a limited part of the time of a thread that runs on a promise; beyond that they
/// are held back.
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

/// [`take_due`], while a thread runs on a promise, of whose time other threads may use `left_ns` more.
#[inline(never)]
fn take_permitted(me: &PerCpu, left_ns: u64, now: u64, bill: &Bill) -> Taken {
    let others_may = bill.others_ns() < left_ns;
    // While a thread of a higher band runs, timers of the lowest band are held back, too.
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
    // The timer may have been cancelled meanwhile, by another CPU. Then the timer that is first now is left to the next interrupt, which comes at
    // once.
    if timers[class as usize].first().is_none_or(|(_, first)| first != id) {
        return Taken::Nothing;
    }
    let Some(due) = pop(me, &mut timers, class, now) else { return Taken::Nothing };
    if others_may || !is_other {
        return Taken::Due(due, is_other);
    }
    // The thread has a context, but has used its budget up.
    let (thread, slot) = split(id);
    let deadline = Records.node(id).deadline();
    insert(me, &mut timers, thread, slot, Class::Other, deadline);
    Taken::Moved(thread, who.thread_generation)
}

/// Holds the timers of other threads back until they may use some of the running thread's promised time again.
#[cold]
fn hold_others(me: &PerCpu, now: u64) {
    if now >= me.dispatch.held_until_ns.get() {
        let again_ns = me.dispatch.queue.lock().service_again_ns(now);
        me.dispatch.held_until_ns.set(again_ns.max(now + HOLD_NS));
    }
}

/// Whether a thread may be served without limit although a thread runs on a promise: it is that thread, or it is blocked and has budget itself.
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
        // SAFETY: a node is in the queue of one CPU, and is accessed only under that CPU's `timers` lock, which the callers hold.
        unsafe { &mut *thread.timers[slot].node.get() }
    }
}

fn join(thread: &Thread, slot: usize) -> u32 {
    thread.tid() << 6 | slot as u32
}

fn split(id: u32) -> (&'static Thread, usize) {
    (thread::get(id >> 6).expect("timers belong to records"), id as usize & 63)
}

/// The highest class that has a due timer, if it is not below `least`, the lowest class that may be served.
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

/// Publishes the first deadline of a class, which may have changed, for readers without the lock.
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
    // The queue is linked through the threads' records, so this allocates nothing (K-30).
    timers[class as usize].insert(&mut Records, join(thread, slot), deadline);
    publish(me, timers, class);
}

/// Sets timer `slot` of the current thread to fire at `deadline`. It ends a park, or otherwise a sleep or a wait.
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

/// Cancels timer `slot` of the thread. Returns whether it was set.
pub fn cancel_timer(thread: &'static Thread, slot: usize) -> bool {
    cancel_if(thread, slot, |_| true)
}

/// Cancels the timer of an operation, if the timer is still that operation's (K-05): the thread may have ended, and a later one with the same record
/// may have set the timer. Returns whether it was set.
pub fn cancel_operation(waiter: &Waiter) -> bool {
    let Some(thread) = thread::get(waiter.thread.tid) else { return false };
    let is_its = |timer: &TimerSlot| {
        // These two checks are enough, because a thread that ends cancels its timers before its record is used again.
        thread.is(&waiter.thread) && timer.sequence.load(Ordering::Relaxed) == waiter.sequence
    };
    cancel_if(thread, waiter.op as usize, is_its)
}

fn cancel_if(thread: &'static Thread, slot: usize, is_meant: impl FnOnce(&TimerSlot) -> bool) -> bool {
    let timer = &thread.timers[slot];
    let owner = timer.cpu.load(Ordering::Relaxed);
    let Some(cpu) = percpu::get(owner as usize) else { return false };
    let mut timers = cpu.dispatch.timers.lock();
    // The timer may have fired before this CPU got the lock.
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
