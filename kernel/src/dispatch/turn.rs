//! From a timer interrupt to the decision who runs next.
//!
//! Most timer interrupts come for the running thread alone: its slice or its budget ends. Such an interrupt takes the CPU's lock once, from the moment
//! at which the thread's time stops to the switch ([`turn_ends`]). An interrupt that serves deadlines of sleepers, or a request of another CPU, has to
//! open the lock in between, because waking takes locks of higher layers: it decides afterwards ([`reschedule_interrupted`]), in the same place.

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

/// May the timer interrupt that came at `now` be taken by [`turn_ends`]? Not if there are deadlines to serve, or neighbours to look at.
#[inline(always)]
pub fn may_end_turn(me: &PerCpu, now: u64) -> bool {
    !time::is_anybody_due(me, now) && now < me.dispatch.balance_ns.get()
}

/// The timer fired at `now`, in user mode, and serves no deadline: others may run, until the interrupted thread is chosen again. The bill of the
/// interrupt if the way back from it is still to be paid for.
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

/// The rest of [`turn_ends`] if there are observers to tell of missed deadlines, for which the lock was opened.
#[cold]
#[inline(never)]
fn after_misses(
    me: &'static PerCpu,
    now: u64,
    mut bill: Bill,
    misses: &Misses,
    effect: Effect,
) -> Option<Bill> {
    misses.tell(me, &mut bill);
    if effect == Effect::Dispatch && !misses.is_full() {
        me.want_switch();
    } else {
        events::look_again(me, now, &mut bill);
    }
    let others_ran = reschedule_interrupted(me, &mut bill);
    (!others_ran || bill.pays_for_way_back()).then_some(bill)
}

/// The current thread, which was interrupted, goes back to the queue if others are to run; did they? Then the interrupt ended, and the time is
/// theirs, where they were chosen. One that another CPU asked for, and that has served nobody else, is theirs for whom it asked.
///
/// If the interrupt served somebody, it goes on where this thread is chosen again ([`events::goes_on`]), and the caller ends it.
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

/// Others ran. What was done after the switch for the thread that was left may have brought up more: a handler that is told of a timeout.
#[inline(always)]
fn reschedule_rest(bill: &mut Bill) {
    loop {
        // It may be on another CPU by now.
        let me = percpu::this();
        if !me.is_attention_asked() || !is_switch_wanted(me) {
            return;
        }
        me.mark_dispatch(true);
        decide(me, me.dispatch.queue.lock(), bill, true);
    }
}

/// Nobody is in the handoff place any more; is somebody else to run?
#[inline(always)]
fn is_switch_wanted(me: &'static PerCpu) -> bool {
    flush_handoff(me);
    let is_wanted = me.dispatch.resched.get();
    if !is_wanted {
        me.attended();
    }
    is_wanted
}

/// The interrupt ends and the core decides who runs; comes back when the interrupted thread is chosen again.
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
        // It ends the budget, or a piece of it, of the running thread.
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
