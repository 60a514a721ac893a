//! Moving threads between CPUs: stealing by the idle, balancing among the busy.
//!
//! Both are steps that take two CPUs, `thief.steal_from(victim)`: the caller holds both locks, taken in ascending CPU order or
//! the second by try-lock. Candidates are found beforehand from [`Summary`] values, which may be read without any lock and
//! be stale; every condition is checked again under the locks.
//!
//! # Why balancing looks at clocks
//! Three equal threads on two CPUs: whichever way they lie, one CPU has two of them, so counting threads or weight never
//! moves anything, and the lone thread gets twice the share of the others. But the lone thread's CPU has the faster
//! virtual clock. So a CPU that is *ahead* in the common frame pulls the most overdue thread from one that is behind, if the
//! move does not make the new neighbourhood much more crowded than the old one was. The thread brings its lag along (a slice
//! at once, the rest as arrears), runs until it has caught up, and after that the other CPU has the faster clock.

use crate::cpu::{Cpu, Tier};
use crate::entity::Entrance;
use crate::queue::Wanted;
use crate::{
    BALANCE_GAP_NS, BALANCE_PERIOD_NS, CpuId, CpuMask, Effect, MAX_SKEW_NS, Payload, Policy, QueueKind,
    Utilisation,
};

/// What other CPUs need to know of a CPU: small, copyable, published after events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The CPU that this describes.
    pub cpu: CpuId,
    /// The virtual clock in the common frame.
    pub clock: i64,
    /// Weight of all best-effort threads, the running one included.
    pub weight: u64,
    /// Best-effort threads that wait.
    pub waiting: u32,
    /// How overdue the first unrestricted thread is (virtual ns; larger is more).
    pub overdue: Option<i64>,
    /// The same for the first thread of the restricted queue.
    pub restricted_overdue: Option<i64>,
    /// Where the threads of the restricted queue may run.
    pub restricted_reach: CpuMask,
    /// Whether the only best-effort thread waits because a thread with budget runs: a CPU that takes it frees this one to take another.
    pub lone_waiter: bool,
    /// Whether nothing runs and nothing waits.
    pub idle: bool,
    /// The share that is promised to contexts.
    pub reserved: Utilisation,
}

impl Summary {
    /// How overdue the most overdue thread is that `thief` might take.
    fn overdue_for(&self, thief: CpuId) -> Option<i64> {
        let restricted = self.restricted_overdue.filter(|_| self.restricted_reach.contains(thief));
        self.overdue.max(restricted)
    }

    /// Weight in relation to the time that contexts leave, scaled so that comparing two needs no division.
    fn crowding_against(&self, weight: u64, other: &Summary) -> u128 {
        let left = Utilisation::ONE.minus(other.reserved).ppm();
        u128::from(weight) * u128::from(left)
    }
}

/// The sibling to steal from: the one with the most overdue thread, the lower number among equals (F-08).
pub fn most_overdue(thief: CpuId, siblings: impl IntoIterator<Item = Summary>) -> Option<CpuId> {
    let mut best: Option<(i64, CpuId)> = None;
    for sibling in siblings {
        if sibling.cpu == thief {
            continue;
        }
        if let Some(overdue) = sibling.overdue_for(thief)
            && best.is_none_or(|(most, cpu)| overdue > most || (overdue == most && sibling.cpu < cpu))
        {
            best = Some((overdue, sibling.cpu));
        }
    }
    best.map(|(_, cpu)| cpu)
}

/// What a CPU should do in its periodic balance step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BalancePlan {
    /// Pull one thread from this CPU.
    pub pull_from: Option<CpuId>,
    /// Move the own clock up to this value of the common frame: what it is behind that is forgiven.
    pub forgive_below: Option<i64>,
}

/// Plans one bounded balance step for `me` from its neighbours' summaries.
pub fn balance_plan(me: &Summary, others: impl IntoIterator<Item = Summary>) -> BalancePlan {
    let mut plan = BalancePlan::default();
    let mut slowest: Option<Summary> = None;
    let mut fastest = i64::MIN;
    for other in others {
        if other.cpu == me.cpu || other.weight == 0 {
            continue;
        }
        fastest = fastest.max(other.clock);
        if worth_moving(me, &other) && slowest.is_none_or(|least| other.clock < least.clock) {
            slowest = Some(other);
        }
    }
    plan.pull_from = slowest.map(|summary| summary.cpu);
    if me.weight > 0 && fastest != i64::MIN && me.clock < fastest - MAX_SKEW_NS {
        plan.forgive_below = Some(fastest - MAX_SKEW_NS);
    }
    plan
}

/// Whether `me` is ahead by the gap, `other` has a waiting thread that `me` might take, and with one more thread of the least weight `me` would not
/// be much more crowded than `other` is. The exact weight is checked under the locks.
fn worth_moving(me: &Summary, other: &Summary) -> bool {
    me.clock - other.clock >= BALANCE_GAP_NS && other.overdue_for(me.cpu).is_some() && fits(me, other, 1)
}

/// Whether `me` may take a thread of this weight from `other`: afterwards it is at most an eighth more crowded than `other` is now (not zero: weights
/// that differ a little must not prevent all moves). Or `other` has no best-effort thread left then and will take one of ours: the two threads change
/// places.
fn fits(me: &Summary, other: &Summary, weight: u64) -> bool {
    other.lone_waiter
        || 8 * me.crowding_against(me.weight + weight, other) <= 9 * other.crowding_against(other.weight, me)
}

/// When a CPU should take its next balance step. Not strictly periodic: a step that always came at the same point of a thread's cycle would always
/// see the same thread waiting.
pub fn next_balance_ns(cpu: CpuId, now: u64) -> u64 {
    let mixed = (now ^ (cpu.index() as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    now + BALANCE_PERIOD_NS - BALANCE_PERIOD_NS / 8 + mixed % (BALANCE_PERIOD_NS / 4)
}

/// The result of a steal or a balance step.
#[must_use = "a moved thread may have to be dispatched"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// A thread was moved to this CPU.
    Moved {
        /// The thread that was moved.
        thread: crate::ThreadId,
        /// What the receiving CPU must do.
        effect: Effect,
    },
    /// There was nothing to take (any more).
    Nothing,
}

impl<T: Payload, P: Policy> Cpu<T, P> {
    /// What others need to know, as of now: what a CPU publishes when it looks at its neighbours.
    pub fn refreshed_summary(&mut self, now: u64) -> Summary {
        self.charge(now);
        self.clock.settle();
        self.summary()
    }

    /// What others need to know, as of the last event.
    pub fn summary(&self) -> Summary {
        let clock = self.clock.now();
        let overdue = |queue: &crate::queue::Queue<T>| queue.first_key().map(|key| clock - key.tag);
        Summary {
            cpu: self.id,
            clock: self.clock.common(),
            weight: self.clock.weight(),
            waiting: self.waiting() as u32,
            overdue: overdue(&self.open),
            restricted_overdue: overdue(&self.restricted),
            restricted_reach: self.restricted.reach(),
            lone_waiter: self.waiting() == 1 && self.current_is_guaranteed(),
            idle: self.running.is_none() && self.queued() == self.throttled.len(),
            reserved: self.reserved,
        }
    }

    /// Whether a thread waits here that `thief` might take: without one, [`most_overdue`] need not be told of this CPU.
    #[inline]
    pub fn may_give_to(&self, thief: CpuId) -> bool {
        !self.open.is_empty() || (!self.restricted.is_empty() && self.restricted.reach().contains(thief))
    }

    /// Takes the victim's first thread that may run here. For a CPU that has nothing else to run.
    pub fn steal_from(&mut self, victim: &mut Cpu<T, P>, now: u64) -> MoveOutcome {
        self.take_from(victim, now, |_| true)
    }

    /// Takes one thread from a CPU whose clock is behind ours, if that mends more than it breaks.
    pub fn balance_from(&mut self, slow: &mut Cpu<T, P>, now: u64) -> MoveOutcome {
        let (me, other) = (self.refreshed_summary(now), slow.refreshed_summary(now));
        if !worth_moving(&me, &other) {
            return MoveOutcome::Nothing;
        }
        self.take_from(slow, now, |weight| fits(&me, &other, weight))
    }

    /// Moves this CPU's clock up to `limit` in the common frame if it is behind that; returns by how much. See [`BalancePlan::forgive_below`].
    pub fn forgive_below(&mut self, limit: i64) -> i64 {
        self.clock.settle();
        self.clock.forgive_below(limit)
    }

    fn take_from(&mut self, victim: &mut Cpu<T, P>, now: u64, fits: impl Fn(u64) -> bool) -> MoveOutcome {
        debug_assert!(self.id != victim.id, "a CPU does not take from itself");
        let open = victim.open.first_key();
        let restricted = victim.restricted.find(Wanted::AllowedOn(self.id)).map(|thread| thread.key);
        let (queue, key) = match (open, restricted) {
            (Some(a), Some(b)) if b < a => (QueueKind::Restricted, b),
            (Some(a), _) => (QueueKind::Open, a),
            (None, Some(b)) => (QueueKind::Restricted, b),
            (None, None) => return MoveOutcome::Nothing,
        };
        let candidate = victim.queue_mut(queue).find(Wanted::Exactly(key));
        if !candidate.is_some_and(|thread| fits(u64::from(thread.fair.weight().get()))) {
            return MoveOutcome::Nothing;
        }
        victim.charge(now);
        let Some(mut thread) = victim.queue_mut(queue).take(Wanted::Exactly(key)) else {
            return MoveOutcome::Nothing;
        };
        victim.leave_fair(&mut thread);
        thread.entrance = Entrance::Moved;
        let id = thread.id;
        self.charge(now);
        self.arrive(&mut thread);
        MoveOutcome::Moved { thread: id, effect: self.queue_and_react(thread) }
    }

    /// Whether the running thread has budget of a context.
    pub fn current_is_guaranteed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.tier == Tier::Guaranteed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicyKind, Proposal, Runnable, Spec, ThreadId};

    fn cpu_id(number: usize) -> CpuId {
        CpuId::new(number).unwrap()
    }

    /// A CPU on which `threads` best-effort threads of weight 64 wait, with `reserved_percent` promised to a context that is not bound.
    fn cpu(number: usize, threads: u64, reserved_percent: u64) -> Cpu<u32> {
        let mut cpu = Cpu::new(cpu_id(number), PolicyKind::Wfq, 0);
        if reserved_percent > 0 {
            let identity = crate::ContextId { id: number as u64, generation: 1 };
            let spec = Spec::new(reserved_percent * 1_000_000, 100_000_000);
            core::mem::forget(cpu.admit(Proposal::new(identity, spec), 0).expect("admitted"));
        }
        for id in 0..threads {
            let thread = Runnable::new(ThreadId(10 * number as u64 + id), 0);
            let _ = cpu.enqueue(thread, 0).unwrap();
        }
        cpu
    }

    /// What crowding decides: whether a CPU with `mine` threads and promises, ahead by far, takes one of `theirs`.
    fn takes(mine: (u64, u64), theirs: (u64, u64)) -> bool {
        let (mut me, mut other) = (cpu(0, mine.0, mine.1), cpu(1, theirs.0, theirs.1));
        me.clock.forgive_below(4 * BALANCE_GAP_NS);
        let planned = balance_plan(&me.summary(), [other.summary()]).pull_from == Some(cpu_id(1));
        let waiting = (me.waiting(), other.waiting());
        let moved = matches!(me.balance_from(&mut other, 0), MoveOutcome::Moved { .. });
        assert!(planned || !moved, "{mine:?} from {theirs:?}: what is done was worth planning");
        assert_eq!((me.check(), other.check()), (Ok(()), Ok(())));
        let one = usize::from(moved);
        assert_eq!((me.waiting(), other.waiting()), (waiting.0 + one, waiting.1 - one));
        moved
    }

    /// F-16: crowding is weight in relation to the time that contexts leave. A CPU that would be more crowded by more than an eighth afterwards takes
    /// no thread, though it is ahead.
    #[test]
    fn f_16_crowding_counts_what_contexts_leave() {
        assert!(takes((2, 0), (3, 0)), "three beside three are as crowded");
        assert!(!takes((3, 0), (3, 0)), "four beside three are more crowded");
        // Half of the other's time is promised: its two threads are as crowded as four here.
        assert!(takes((3, 0), (2, 50)), "four here, and two in half of the time there");
        assert!(!takes((4, 0), (2, 50)), "five here");
        // Half of the own time is promised: two threads here are as crowded as four there.
        assert!(takes((1, 50), (4, 0)), "two in half of the time here, and four there");
        assert!(!takes((1, 50), (3, 0)), "two in half of the time here, and three there");
        assert!(!takes((2, 50), (4, 0)), "three in half of the time here, and four there");
        // Both alike: as without.
        assert!(takes((2, 50), (3, 50)) && !takes((3, 50), (3, 50)), "both have half");
    }
}
