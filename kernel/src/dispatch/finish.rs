//! The end of a switch, on the stack of the next thread: its locks are released, and what is left to do for the previous thread is done.

use super::above::{News, above};
use super::budgets::stop;
use super::lives::requeue;
use super::percpu::{self, PerCpu};
use super::{AS_IT_WAS, After, Queue, events};
use crate::lock::Guard;
use crate::mm::stacks::OffStackToken;
use crate::time;

/// The first thing that is done on a stack that was switched to: releases the locks of the switch, and frees the previous thread if it ended.
pub fn finish_switch() {
    finish_switch_and(AS_IT_WAS);
}

/// As [`finish_switch`]; `resumed` is called first, or, if there is work for the previous thread, after that.
#[inline(always)]
pub(super) fn finish_switch_and(resumed: Option<impl FnOnce(&mut Queue, u64)>) {
    let me = percpu::this();
    // SAFETY: `leave` forgot the guard, on this CPU, just before the switch.
    finish(me, unsafe { me.dispatch.queue.regain() }, resumed);
}

#[inline(always)]
pub(super) fn finish(
    me: &PerCpu,
    mut queue: Guard<'_, Queue>,
    resumed: Option<impl FnOnce(&mut Queue, u64)>,
) {
    if me.dispatch.is_work_left.get() {
        return finish_work(me, queue, resumed);
    }
    if let Some(resumed) = resumed {
        let chosen_ns = queue.at_ns();
        resumed(&mut queue, chosen_ns);
    }
    open(me, queue);
}

/// Releases the locks that a switch held.
#[inline(always)]
fn open(me: &PerCpu, queue: Guard<'_, Queue>) {
    drop(queue);
    if let Some(left) = me.dispatch.leaving.take() {
        // SAFETY: the function that set `leaving` has taken this lock on this CPU and forgotten the guard just before the switch.
        unsafe { left.wait.unlock_forgotten() };
    }
    me.mark_dispatch(false);
}

/// Does what is left to do for the previous thread, and tells the observers of its context.
#[cold]
#[inline(never)]
fn finish_work(me: &PerCpu, mut queue: Guard<'_, Queue>, resumed: Option<impl FnOnce(&mut Queue, u64)>) {
    me.dispatch.is_work_left.set(false);
    let (after, evicted, news) =
        (me.dispatch.after.take(), me.dispatch.evicted.take(), me.dispatch.news.take());
    let told = evicted.as_ref().map(|(left, _)| *left).or(news.as_ref().and_then(News::thread));
    // A thread that has ended cannot be charged any more. Freeing it is charged to the next thread: if it were charged to no thread, a storm of short
    // threads would take more than its share (F-15).
    let left = match &after {
        Some(After::Requeue(left)) if resumed.is_some() => Some(*left),
        _ => None,
    };
    let bill = told.or(left).and_then(|thread| events::work_begins(me, &mut queue, thread));
    open(me, queue);
    let ended = match after {
        Some(After::Requeue(left)) => {
            requeue(left);
            None
        }
        Some(After::Reap(left)) => Some(left),
        None => None,
    };
    if let Some((left, evicted)) = evicted {
        stop(left, evicted);
    }
    if let Some(news) = news.filter(|_| told.is_some()) {
        (above().post)(&news);
    }
    if let Some(bill) = bill {
        events::work_ends(me, &mut me.dispatch.queue.lock(), bill);
    }
    if let Some(left) = ended {
        // SAFETY: this runs after the switch away from the stack of `left`.
        let token = unsafe { OffStackToken::after_switch() };
        (above().reap)(left, token);
    }
    if let Some(resumed) = resumed {
        // Freeing may go in pieces, between which other threads run, so this may be another CPU by now.
        let mut queue = percpu::this().dispatch.queue.lock();
        // The way back of the interrupted thread begins after that: the thread that the interrupt served is not charged for freeing another one.
        let since_ns = if ended.is_some() { time::now_ns() } else { queue.at_ns() };
        resumed(&mut queue, since_ns);
    }
}
