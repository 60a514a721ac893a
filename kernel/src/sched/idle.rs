//! What a CPU does with nothing to do.

use super::moves::steal;
use super::{IDLE, enqueue_on, leave};
use crate::arch::cpu;
use crate::arch::percpu::{self, PerCpu};
use crate::time;
use crate::tracing::{self, Why};
use ::sched::Runnable;
use core::sync::atomic::Ordering;

/// What a CPU does with nothing to do. Never returns, never blocks.
pub extern "C" fn idle_loop(_: u64) -> ! {
    let me = percpu::this();
    loop {
        if let Some(next) = me.sched.handoff.take() {
            run_woken(me, next);
            continue;
        }
        let mut queue = me.sched.queue.lock();
        let mut until_ns = u64::MAX;
        if !queue.stays_idle() {
            let now = time::now_ns();
            let decision = queue.dispatch(now);
            // Somebody's refill comes then.
            until_ns = decision.until_ns;
            tracing::decided(me, None, Why::Idle, &decision, now);
            if decision.run.is_some() {
                me.sched.mark_dispatch(true);
                unmark_idle(me);
                leave(me, queue, decision, now);
                continue;
            }
        }
        drop(queue);
        // The mark first: whoever queued for a busy neighbour before it was seen is found by the look at the neighbours that follows. Who
        // queues for this CPU interrupts it.
        if !me.sched.idle.swap(true, Ordering::Relaxed) {
            IDLE.insert(me.id);
        }
        if steal(me) {
            continue;
        }
        time::arm(me, until_ns, time::now_ns());
        crate::process::note_idle(me.id);
        cpu::wait_for_interrupt();
    }
}

/// Runs the thread that has woken this idle CPU, or queues it if that is not alone.
#[inline(always)]
fn run_woken(me: &'static PerCpu, next: Runnable<()>) {
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    if queue.runs_at_once(&next) {
        tracing::arrives(me, &next, now);
    }
    match queue.run_at_once(next, now) {
        Ok(decision) => {
            tracing::decided(me, None, Why::Idle, &decision, now);
            me.counters.queue_depth_max.raise(1);
            me.sched.mark_dispatch(true);
            unmark_idle(me);
            leave(me, queue, decision, now);
        }
        Err(next) => {
            drop(queue);
            enqueue_on(me, me, next);
        }
    }
}

fn unmark_idle(me: &PerCpu) {
    if me.sched.idle.swap(false, Ordering::Relaxed) {
        IDLE.remove(me.id);
    }
}
