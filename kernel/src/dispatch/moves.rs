//! Migration of queued threads: an idle CPU steals them, or balancing moves them because the virtual clocks of CPUs are apart.

use super::{Queue, apply};
use crate::dispatch::heads;
use crate::dispatch::percpu::{self, PerCpu};
use crate::time;
use crate::tracing;
use ::sched::{CpuId, MoveOutcome};
use trace::Kind;

/// Steals the most overdue thread that waits on another CPU. Says whether it got one.
pub(super) fn steal(me: &'static PerCpu) -> bool {
    if percpu::count() == 1 {
        return false;
    }
    let thief = CpuId::new(me.id).expect("a CPU number");
    let summaries = percpu::all()
        .filter(|other| other.id != me.id)
        .inspect(|_| me.counters.queue_locks_by_steals.bump())
        .filter_map(|other| {
            let queue = other.dispatch.queue.try_lock()?;
            queue.may_give_to(thief).then(|| queue.summary())
        });
    let Some(victim) = ::sched::most_overdue(thief, summaries) else { return false };
    let Some(victim) = percpu::get(victim.index()) else { return false };
    me.counters.queue_locks_by_steals.bump();
    let moved = with_both(me, victim, |mine, theirs, now| {
        let outcome = mine.steal_from(theirs, now);
        tracing::took(me, victim, &outcome, false, now);
        outcome
    });
    let stolen = matches!(moved, MoveOutcome::Moved { .. });
    if stolen {
        me.counters.steals.bump();
    }
    stolen
}

/// Runs `with` under the locks of two CPUs.
fn with_both(
    me: &'static PerCpu,
    other: &'static PerCpu,
    with: impl FnOnce(&mut Queue, &mut Queue, u64) -> MoveOutcome,
) -> MoveOutcome {
    let (mut mine, mut theirs) = me.dispatch.queue.lock_both(&other.dispatch.queue, (me.id, other.id));
    let now = time::now_ns();
    with(&mut mine, &mut theirs, now)
}

/// Moves a thread from a CPU whose virtual clock is behind to one whose clock is ahead.
///
/// Either of the two may do this. A CPU with one thread is the one that is ahead, but has no timer that would make it look. So a CPU with waiting
/// threads also gives one to a CPU that should take it.
pub(super) fn balance(me: &'static PerCpu, now: u64) {
    if percpu::count() == 1 {
        return;
    }
    let mut queue = me.dispatch.queue.lock();
    tracing::note(me, Kind::Charge, now);
    let mine = queue.refreshed_summary(now);
    drop(queue);
    let try_summary = |other: &'static PerCpu| other.dispatch.queue.try_lock().map(|queue| queue.summary());
    let plan = ::sched::balance_plan(&mine, neighbours(me, now).filter_map(try_summary));
    if let Some(limit) = plan.forgive_below {
        let mut queue = me.dispatch.queue.lock();
        tracing::forgives(me, limit, now);
        queue.forgive_below(limit);
    }
    if let Some(slow) = plan.pull_from.and_then(|slow| percpu::get(slow.index())) {
        pull(me, slow, me, now);
    } else if mine.waiting > 0 {
        let fast = neighbours(me, now).filter_map(|other| {
            // Charged up to now first: the CPU may have run one thread for long, without an event.
            let mut queue = other.dispatch.queue.try_lock()?;
            tracing::note(other, Kind::Charge, now);
            let theirs = queue.refreshed_summary(now);
            let takes = theirs.weight > 0 && ::sched::balance_plan(&theirs, [mine]).pull_from.is_some();
            takes.then_some((theirs.clock, other))
        });
        if let Some((_, fast)) = fast.max_by_key(|(clock, _)| *clock) {
            pull(fast, me, me, now);
        }
    }
}

/// The CPUs that this one looks at in a balance step. If there are more than a step looks at, each step looks at the next ones.
fn neighbours(me: &'static PerCpu, now: u64) -> impl Iterator<Item = &'static PerCpu> {
    let (count, others) = (percpu::count(), percpu::count() - 1);
    let scan = others.min(::sched::BALANCE_SCAN_CPUS);
    let step = if others > scan { (now / ::sched::BALANCE_PERIOD_NS) as usize * scan } else { 0 };
    (0..scan)
        .filter_map(move |at| percpu::get((me.id + 1 + (step + at) % others) % count))
        .inspect(|_| me.counters.queue_locks_by_balance.bump())
}

/// `fast` takes a thread from `slow`, if the core still agrees under both locks.
fn pull(fast: &'static PerCpu, slow: &'static PerCpu, me: &'static PerCpu, now: u64) {
    me.counters.queue_locks_by_balance.bump();
    let outcome = with_both(fast, slow, |mine, theirs, now| {
        let outcome = mine.balance_from(theirs, now);
        tracing::took(fast, slow, &outcome, true, now);
        outcome
    });
    if let MoveOutcome::Moved { effect, thread, .. } = outcome {
        me.counters.balance_moves.bump();
        let thread = heads::get(thread.0 as u32).expect("a thread that is queued");
        apply(fast, me, effect, thread, now);
    }
}
