//! What each CPU's timer is armed for, and who is charged for an interrupt.
//!
//! A CPU's timer is armed for the earliest of its threads' deadlines and the end of the running thread's turn. A CPU with neither arms none.
//!
//! The time of an interrupt that serves a thread's timer is a deferred charge of that thread ([`Bill`], S-16). While a thread runs on a promise,
//! timers of other threads may take only a small part of its time; the rest of them wait, so they are in queues of their own ([`Class`]).

use crate::arch::percpu::Asked;
pub use crate::clock::now_ns;
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::PerCpu;
use crate::event;
use crate::planted::{self, Bug};
use core::sync::atomic::Ordering;
use kcore::debt::Debt;

/// The class of a timer, by the thread that set it. Of the timers that are due, the highest class is served first, and in it the earliest deadline:
/// so a thread that was promised more does not wait behind thousands of sleeps that end at the same moment (K-26).
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The thread had no context when it set the timer, or no budget when it fired.
    Other = 0,
    /// The thread has a context of the lowest band.
    Promised = 1,
    /// The thread has a context of a higher band, for which it was given the authority (S-17).
    Urgent = 2,
}

/// How many classes there are.
pub const CLASSES: usize = 3;

impl Class {
    /// All classes, the lowest first.
    pub const ALL: [Class; CLASSES] = [Class::Other, Class::Promised, Class::Urgent];

    /// The class of a timer that `thread` sets now.
    #[inline(always)]
    pub fn of(thread: &ThreadHead) -> Class {
        match thread.context() {
            None => Class::Other,
            Some(ctx) if ctx.band.load(Ordering::Relaxed) == 0 => Class::Promised,
            Some(_) => Class::Urgent,
        }
    }
}

/// Who is charged: a thread, or a context (which is charged when a thread is next queued with it). Records of both are never unmapped.
#[derive(Clone, Copy)]
pub struct Payer {
    /// Where the charge is added.
    pub debt: &'static Debt,
    /// The thread's generation, if it is a thread: its record may be another thread's when the interrupt ends.
    generation: Option<u32>,
}

impl Payer {
    /// The thread of this generation of a record.
    #[inline(always)]
    pub fn thread(thread: &'static ThreadHead, generation: u32) -> Payer {
        Payer { debt: &thread.debt, generation: Some(generation) }
    }

    /// Who is charged for what another CPU is asked to do for `thread`: its context, if it has one. Otherwise a thread that is bound and unbound
    /// again and again would be charged when it has no budget.
    #[inline(always)]
    pub fn of(thread: &'static ThreadHead) -> Payer {
        Payer { debt: thread.context().map_or(&thread.debt, |ctx| &ctx.debt), generation: None }
    }

    /// Who is charged if the current thread asks another CPU for something on its own behalf.
    pub fn asker() -> Option<Payer> {
        heads::current_or_none().map(Payer::of)
    }

    fn owes(&self, spent_ns: u64) {
        match self.generation {
            Some(generation) => self.debt.add(generation, spent_ns),
            None => self.debt.add_to_whoever(spent_ns),
        }
    }

    /// Whether the charge goes to the same thread or context.
    #[inline(always)]
    fn is(&self, other: &Payer) -> bool {
        core::ptr::eq(self.debt, other.debt) && self.generation == other.generation
    }
}

/// Takes the deferred charge of the context of `thread`: the caller charges it now.
#[inline]
pub fn debt_of_context(thread: &ThreadHead) -> u64 {
    thread.context().filter(|ctx| ctx.debt.ns() != 0).map_or(0, |ctx| ctx.debt.pay())
}

/// Moves the deferred charge of a thread that loses its context to that context, which is charged when a thread is next queued with it. Otherwise the
/// budget for which the interrupts worked would not be charged.
pub fn leave_debt(thread: &ThreadHead) {
    if let Some(ctx) = thread.context()
        && thread.debt.ns() != 0
    {
        ctx.debt.add_to_whoever(thread.debt.pay());
    }
}

/// Who is charged for an interrupt (S-16): the thread or context that it serves. The first one is charged from the beginning of the interrupt, each
/// further one from where the interrupt began to serve it. An interrupt that has served none is charged to none.
pub struct Bill {
    payer: Option<Payer>,
    /// For whom another CPU has sent the interrupt, if one did.
    asked_for: Option<Payer>,
    /// Whether `payer` has no better right to the CPU than the running thread, which runs on a promise: what it takes is limited.
    is_other: bool,
    since_ns: u64,
    /// What was charged before `since_ns`, and the part of it that was charged with `is_other`.
    owned_ns: u64,
    others_ns: u64,
}

impl Bill {
    /// For an interrupt that began at `now`, and has served no thread yet.
    #[inline(always)]
    pub const fn new(now: u64) -> Bill {
        Bill { payer: None, asked_for: None, is_other: false, since_ns: now, owned_ns: 0, others_ns: 0 }
    }

    /// Whether the interrupt has served a thread, which is charged.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.payer.is_some()
    }

    /// If other threads ran meanwhile: whether the thread that the interrupt served is charged for the way back to the interrupted thread.
    #[inline(always)]
    pub fn pays_for_way_back(&self) -> bool {
        self.is_due() && !planted::is(Bug::NoWayBack)
    }

    /// Adds the time up to `now` to the deferred charge of the payer.
    #[inline(always)]
    fn settle(&mut self, now: u64) {
        let Some(payer) = &self.payer else { return };
        let spent_ns = now.saturating_sub(self.since_ns);
        payer.owes(spent_ns);
        self.owned_ns += spent_ns;
        if self.is_other {
            self.others_ns += spent_ns;
        }
        self.since_ns = now;
    }

    /// Settles the interrupt, which ends at `now`. Returns what is charged for it in all, and the part of that which is limited (`is_other`).
    #[inline(always)]
    pub fn total(&mut self, now: u64) -> (u64, u64) {
        self.settle(now);
        (self.owned_ns, self.others_ns)
    }

    /// The interrupt serves `thread` from here on: its refill has come, its budget ends, or its context has news.
    pub fn falls_to(&mut self, thread: &'static ThreadHead) {
        self.turn_to(Payer::thread(thread, thread.reference().thread_generation), false);
    }

    /// Notes for whom another CPU has sent the interrupt. It is kept apart until the end, because the interrupt may serve other threads as well.
    #[inline(always)]
    pub fn is_asked_for(&mut self, asked: &Asked) {
        self.asked_for = asked.take().map(|debt| Payer { debt, generation: None });
    }

    /// If the interrupt has served no other thread, charges the one for which another CPU has sent it. Returns whether anyone is charged now.
    #[inline(always)]
    pub fn falls_to_asked(&mut self) -> bool {
        if self.payer.is_none()
            && let Some(payer) = self.asked_for
        {
            self.turn_to(payer, false);
        }
        self.is_due()
    }

    /// Continues an interrupt that had ended, for the thread that it served last, from where `part` begins.
    pub fn goes_on(&mut self, part: &Bill) {
        (self.since_ns, self.owned_ns, self.others_ns) = (part.since_ns, 0, 0);
    }

    /// The interrupt serves `payer` from here on. If `payer` is the first one, it is charged from the interrupt's beginning.
    #[inline(always)]
    pub fn turn_to(&mut self, payer: Payer, is_other: bool) {
        if let Some(before) = &self.payer {
            if before.is(&payer) && self.is_other == is_other {
                return;
            }
            self.settle(now_ns());
        }
        (self.payer, self.is_other) = (Some(payer), is_other);
    }

    /// How much of this interrupt was spent so far on threads with no better right to the CPU than the running one (`is_other`).
    pub fn others_ns(&self) -> u64 {
        let is_other = self.is_other && self.payer.is_some();
        self.others_ns + if is_other { now_ns().saturating_sub(self.since_ns) } else { 0 }
    }
}

/// Whether a thread's timer is due.
#[inline(always)]
pub fn is_anybody_due(me: &PerCpu, now: u64) -> bool {
    next_deadline(me) <= now
}

/// When the CPU's timer must fire for threads' timers, those that are held back included.
#[inline]
pub fn next_deadline(me: &PerCpu) -> u64 {
    let [other, promised, urgent] = &me.dispatch.nearest;
    let held_ns = me.dispatch.held_until_ns.get();
    let other_ns = other.load(Ordering::Relaxed).max(held_ns);
    let promised_ns =
        promised.load(Ordering::Relaxed).max(if me.dispatch.holds_promised.get() { held_ns } else { 0 });
    urgent.load(Ordering::Relaxed).min(promised_ns).min(other_ns)
}

/// Makes this CPU's timer fire no later than `until_ns`. For threads' timers it is armed already, wherever one is set, fires, or is no longer held
/// back (`timers::set_timer`, `timers::event`, [`stop_holding`]).
///
/// A timer that is armed for an earlier time stays as it is: its interrupt finds nothing due, and arms the right time. A slice mostly ends later than
/// the last one would have, so most switches do not touch the hardware.
#[inline(always)]
pub fn arm(me: &PerCpu, until_ns: u64, now: u64) {
    // While a timer interrupt is being served, the timer may not be armed.
    debug_assert!(
        me.in_interrupt.get() || me.armed_ns.load(Ordering::Relaxed) <= next_deadline(me),
        "a CPU has no event for its next deadline"
    );
    if until_ns < me.armed_ns.load(Ordering::Relaxed) {
        program(me, until_ns, now);
    }
}

/// Arms the CPU's timer for `at_ns`, which is earlier than what it is armed for.
#[inline(never)]
pub fn program(me: &PerCpu, at_ns: u64, now: u64) {
    me.armed_ns.store(at_ns, Ordering::Relaxed);
    if at_ns <= now {
        me.counters.oneshot_misses.bump();
    }
    event::program_oneshot(at_ns.saturating_sub(now));
}

/// Arms the CPU's timer for the next deadline, if that is earlier than what it is armed for.
#[cold]
fn arm_for_deadlines(me: &PerCpu) {
    let at_ns = next_deadline(me);
    if at_ns < me.armed_ns.load(Ordering::Relaxed) {
        program(me, at_ns, now_ns());
    }
}

/// Holds back no timers any more: the next thread does not run on a promise, or may be of a lower band, or there is none.
#[cold]
#[inline(never)]
pub fn stop_holding(me: &PerCpu) {
    me.dispatch.held_until_ns.set(0);
    me.dispatch.holds_promised.set(false);
    arm_for_deadlines(me);
}

/// A time argument as an absolute deadline: 0 is now, `u64::MAX` never.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == u64::MAX { u64::MAX } else { now_ns().saturating_add(timeout_ns) }
}
