//! From a timer interrupt to the decision which thread runs next.
//!
//! Most timer interrupts come for the running thread alone: its slice or its budget ends. Such an interrupt takes the CPU's lock once, and holds it
//! from the moment at which the thread's time stops to the switch ([`turn_ends`]). An interrupt that serves threads' timers, or a request of another
//! CPU, has to release the lock in between, because waking takes locks of higher layers: it decides afterwards ([`reschedule_interrupted`]), by the
//! same code.

use super::events::{self, Misses};
use super::heads;
use super::percpu::{self, PerCpu};
use super::{PENDING, Queue, flush_handoff, leave_until, pay, second_choice};
use crate::arch::fpu;
use crate::lock::Guard;
use crate::planted::{self, Bug};
use crate::time::{self, Bill};
use crate::tracing::{self, Why};
use ::sched::Effect;

/// Whether [`turn_ends`] may handle the timer interrupt that came at `now`: no thread's timer is due, no balance step and no look
/// of the watchdog. Such work comes after the thread's time has stopped, for which the lock is taken first.
#[inline(always)]
pub fn may_end_turn(me: &PerCpu, now: u64) -> bool {
    !time::is_anybody_due(me, now) && now < me.dispatch.balance_ns.get() && now < me.flight.watch.next_ns()
}

/// Handles a timer interrupt at `now`, from user mode, in which no thread's timer is due: other threads may run, until the interrupted thread is
/// chosen again. Returns the [`Bill`] of the interrupt if the way back from it is still to be charged.
#[inline(always)]
pub fn turn_ends(me: &'static PerCpu, now: u64) -> Option<Bill> {
    PENDING.remove(me.id);
    let mut queue = me.dispatch.queue.lock();
    let mut bill = events::turn_interrupted(me, &mut queue, now);
    let mut misses = Misses::default();
    let (effect, until_ns) = events::look_under(me, &mut queue, now, &mut bill, &mut misses);
    if !misses.is_empty() {
        drop(queue);
        return after_misses(me, now, bill, &misses, effect);
    }
    if effect != Effect::Dispatch {
        time::arm(me, until_ns, now);
        events::ends_under(me, &mut queue, &mut bill);
        return None;
    }
    me.mark_dispatch(true);
    decide(me, queue, &mut bill, false);
    reschedule_rest(&mut bill);
    bill.pays_for_way_back().then_some(bill)
}

/// The rest of [`turn_ends`] if there are observers to tell of missed deadlines, for which the lock was released.
#[cold]
#[inline(never)]
fn after_misses(
    me: &'static PerCpu,
    now: u64,
    mut bill: Bill,
    misses: &Misses,
    effect: Effect,
) -> Option<Bill> {
    // Observers are told inside the interrupt, where allocating is forbidden (K-18).
    me.in_interrupt.set(true);
    misses.tell(me, &mut bill);
    me.in_interrupt.set(false);
    if effect == Effect::Dispatch && !misses.is_full() {
        me.want_switch();
    } else {
        events::look_again(me, now, &mut bill);
    }
    let others_ran = reschedule_interrupted(me, &mut bill);
    (!others_ran || bill.pays_for_way_back()).then_some(bill)
}

/// Puts the current thread, which was interrupted, back into the run queue if others are to run, and says whether it did. Then the interrupt ended
/// where the next thread was chosen, which is charged from there on. If another CPU asked for the interrupt and it has served no other thread, the
/// one for which that CPU asked is charged for it.
///
/// If the interrupt served a thread, it goes on where this thread is chosen again ([`events::goes_on`]), and the caller ends it.
#[cold]
#[inline(never)]
pub fn reschedule_interrupted(me: &'static PerCpu, bill: &mut Bill) -> bool {
    if !is_switch_wanted(me) {
        return false;
    }
    me.mark_dispatch(true);
    decide(me, me.dispatch.queue.lock(), bill, false);
    reschedule_rest(bill);
    true
}

/// Switches again as long as it is asked for: the work for the previous thread after a switch may have woken more threads, such as the handler of a
/// timeout fault.
#[inline(always)]
fn reschedule_rest(bill: &mut Bill) {
    loop {
        // The thread may be on another CPU by now.
        let me = percpu::this();
        if !me.is_attention_asked() || !is_switch_wanted(me) {
            return;
        }
        me.mark_dispatch(true);
        decide(me, me.dispatch.queue.lock(), bill, true);
    }
}

/// Empties the handoff slot, and says whether another thread should run.
#[inline(always)]
fn is_switch_wanted(me: &'static PerCpu) -> bool {
    flush_handoff(me);
    let is_wanted = me.dispatch.resched.get();
    if !is_wanted {
        me.attended();
    }
    is_wanted
}

/// Ends the interrupt and switches to the thread that the core chooses; returns when the interrupted thread is chosen again.
#[inline(always)]
fn decide(me: &'static PerCpu, mut queue: Guard<'_, Queue>, bill: &mut Bill, others_ran: bool) {
    let thread = heads::current();
    thread.mxcsr.set(fpu::mxcsr());
    let now = time::now_ns();
    if queue.is_in_interrupt() {
        tracing::resumes(me, &queue, now);
        queue.interrupt_end(now);
    }
    pay(me, &mut queue, thread, now);
    if !others_ran && !bill.falls_to_asked() && queue.is_promised() {
        // The interrupt came because the running thread's budget, or a piece of it, is used up.
        bill.falls_to(thread);
    }
    let mut decision = queue.dispatch(now);
    events::settle(&mut queue, bill, now);
    if planted::is(Bug::SecondChoice) {
        second_choice(&mut queue, &mut decision, now);
    }
    tracing::decided(me, Some(thread), Why::Look, &decision, now);
    let resumed = |queue: &mut Queue, since_ns| events::goes_on(queue, since_ns, bill);
    leave_until(me, queue, decision, now, Some(resumed));
    fpu::reset(thread.mxcsr.get());
}
