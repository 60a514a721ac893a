//! Deadlines of threads: which of them are due, and what each CPU's timer is armed for.
//!
//! A CPU's event is armed for the nearest of its threads' deadlines and the end of the running slice. A CPU with neither has none.

use crate::arch::percpu::{self, PerCpu};
use crate::clock;
pub use crate::clock::now_ns;
use crate::event;
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, OPS, TIMEOUT, Thread, TimerSlot};
use core::sync::atomic::Ordering;
use kcore::timerq::{Node, Store};

/// Due timers that one interrupt serves; the rest gets the next, which comes at once.
const BATCH: usize = 64;

/// Sees to it that this CPU's event fires no later than `until_ns` and its nearest deadline.
///
/// One that is armed for earlier stays: it finds nothing due and arms the right one. Slices mostly end later than the last one would have,
/// so most switches do not touch the hardware.
#[inline]
pub fn arm(me: &PerCpu, until_ns: u64, now: u64) {
    let at = until_ns.min(me.sched.next_deadline.load(Ordering::Relaxed));
    if at < me.armed_ns.get() {
        me.armed_ns.set(at);
        if at <= now {
            me.counters.oneshot_misses.bump();
        }
        event::program_oneshot(at.saturating_sub(now));
    }
}

/// The event fired; `now` is when its interrupt began.
pub fn event(me: &'static PerCpu, now: u64) {
    if crate::selftest::take_event() {
        return;
    }
    me.armed_ns.set(u64::MAX);
    me.counters.ticks.bump();
    let mut has_woken = false;
    if me.id == 0 {
        clock::discipline(now);
    }
    for _ in 0..BATCH {
        if now < me.sched.next_deadline.load(Ordering::Relaxed) {
            break;
        }
        let Some(waiter) = pop_due(me, now) else { break };
        has_woken = true;
        if waiter.op as usize == TIMEOUT {
            crate::sched::wake(&waiter.thread, false);
        } else {
            ring::timer_due(&waiter);
        }
    }
    if has_woken {
        // Waking takes time.
        crate::sched::look_for_woken(me, now_ns);
    } else {
        crate::sched::look(me, now);
    }
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

fn pop_due(me: &PerCpu, now: u64) -> Option<Waiter> {
    let mut timers = me.sched.timers.lock();
    let due = timers.pop_due(&mut Records, now).map(|id| {
        let (thread, slot) = split(id);
        thread.timers[slot].cpu.store(u32::MAX, Ordering::Relaxed);
        Waiter {
            thread: thread.reference(),
            op: slot as u8,
            sequence: thread.timers[slot].sequence.load(Ordering::Relaxed),
        }
    });
    publish(me, &mut timers);
    due
}

fn publish(me: &PerCpu, timers: &mut kcore::timerq::TimerQueue) {
    let next = timers.first().map_or(u64::MAX, |(deadline, _)| deadline);
    me.sched.next_deadline.store(next, Ordering::Relaxed);
}

/// Timer `slot` of the current thread will fire at `deadline`.
pub fn set_timer(thread: &'static Thread, slot: usize, sequence: u32, deadline: u64) {
    debug_assert!(slot <= OPS);
    let me = percpu::this();
    let mut timers = me.sched.timers.lock();
    thread.timers[slot].cpu.store(me.id as u32, Ordering::Relaxed);
    thread.timers[slot].sequence.store(sequence, Ordering::Relaxed);
    timers.insert(&mut Records, join(thread, slot), deadline);
    publish(me, &mut timers);
    drop(timers);
    arm(me, deadline, now_ns());
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
    let mut timers = cpu.sched.timers.lock();
    // It may have fired in the meantime.
    if timer.cpu.load(Ordering::Relaxed) != owner || !is_meant(timer) {
        return false;
    }
    let found = timers.cancel(&mut Records, join(thread, slot));
    timer.cpu.store(u32::MAX, Ordering::Relaxed);
    publish(cpu, &mut timers);
    found
}

/// A time argument as an absolute deadline: 0 is now, `u64::MAX` never.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == u64::MAX { u64::MAX } else { now_ns().saturating_add(timeout_ns) }
}

/// The completion of a sleep.
pub const SLEPT: Completion = Completion::OK;
