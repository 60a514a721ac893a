//! What each CPU's timer is armed for, and who pays for an interrupt.
//!
//! A CPU's event is armed for the nearest of its threads' deadlines and the end of the running slice. A CPU with neither has none.
//!
//! The time of an interrupt that serves somebody's deadlines is that thread's ([`Bill`], S-16). While a thread runs on a promise, deadlines of others
//! may take a small part of its time only; what is more waits, so they are in a queue of their own.

use crate::arch::percpu::Asked;
pub use crate::clock::now_ns;
use crate::dispatch::heads::{self, ThreadHead};
use crate::dispatch::percpu::PerCpu;
use crate::event;
use crate::planted::{self, Bug};
use core::sync::atomic::Ordering;
use kcore::debt::Debt;

/// Whose timers those of a CPU are. Of those that are due, the highest class is served first, and in it the earliest: thousands of sleeps that end at one
/// moment keep nobody waiting who was promised more (K-26).
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Of threads that had no context when they set them, or no budget when they fired.
    Other = 0,
    /// Of threads with a context.
    Promised = 1,
    /// Of threads with a context of a higher band than the lowest: that is authority, which somebody gave them (S-17).
    Urgent = 2,
}

/// How many there are.
pub const CLASSES: usize = 3;

impl Class {
    /// All, the lowest first.
    pub const ALL: [Class; CLASSES] = [Class::Other, Class::Promised, Class::Urgent];

    /// Of what `thread` sets now.
    #[inline(always)]
    pub fn of(thread: &ThreadHead) -> Class {
        match thread.context() {
            None => Class::Other,
            Some(ctx) if ctx.band.load(Ordering::Relaxed) == 0 => Class::Promised,
            Some(_) => Class::Urgent,
        }
    }
}

/// Who pays: a thread, or a context, when a thread is next queued with it. Records of both are never unmapped.
#[derive(Clone, Copy)]
pub struct Payer {
    /// What is owed goes there.
    pub debt: &'static Debt,
    /// Of a thread, which life of its record: it may be another's by the end.
    generation: Option<u32>,
}

impl Payer {
    /// The thread that has the record in this life of it.
    #[inline(always)]
    pub fn thread(thread: &'static ThreadHead, generation: u32) -> Payer {
        Payer { debt: &thread.debt, generation: Some(generation) }
    }

    /// Who pays for what another CPU is asked to do for `thread`: its context, if it has one. A thread that is bound and unbound again and again would
    /// otherwise owe what it has no budget for by then.
    #[inline(always)]
    pub fn of(thread: &'static ThreadHead) -> Payer {
        Payer { debt: thread.context().map_or(&thread.debt, |ctx| &ctx.debt), generation: None }
    }

    /// The current thread, who asks another CPU for something.
    pub fn asker() -> Option<Payer> {
        heads::current_or_none().map(Payer::of)
    }

    fn owes(&self, spent_ns: u64) {
        match self.generation {
            Some(generation) => self.debt.add(generation, spent_ns),
            None => self.debt.add_to_whoever(spent_ns),
        }
    }

    /// The same debt, of the same life?
    #[inline(always)]
    fn is(&self, other: &Payer) -> bool {
        core::ptr::eq(self.debt, other.debt) && self.generation == other.generation
    }
}

/// What the context of `thread` owes, for whoever makes it pay now.
#[inline]
pub fn debt_of_context(thread: &ThreadHead) -> u64 {
    thread.context().filter(|ctx| ctx.debt.ns() != 0).map_or(0, |ctx| ctx.debt.pay())
}

/// A thread that does not run loses its context, out of which it would have paid what it owes: the context does, when it is next queued.
pub fn leave_debt(thread: &ThreadHead) {
    if let Some(ctx) = thread.context()
        && thread.debt.ns() != 0
    {
        ctx.debt.add_to_whoever(thread.debt.pay());
    }
}

/// Who pays for an interrupt (S-16): whom it serves, from its beginning on or from where it began to serve somebody else. Nobody, until it has
/// served somebody.
pub struct Bill {
    payer: Option<Payer>,
    /// For whom another CPU has asked, if it did.
    asked_for: Option<Payer>,
    /// It has no better right to the CPU than who runs, by a promise: what it takes is limited.
    is_other: bool,
    since_ns: u64,
    /// What those before it owe by now, and what of it is others'.
    owned_ns: u64,
    others_ns: u64,
}

impl Bill {
    /// Of an interrupt that began at `now`, and has served nobody.
    #[inline(always)]
    pub const fn new(now: u64) -> Bill {
        Bill { payer: None, asked_for: None, is_other: false, since_ns: now, owned_ns: 0, others_ns: 0 }
    }

    /// Whether anybody was served.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.payer.is_some()
    }

    /// Others ran meanwhile: whether the way back to the interrupted thread is paid for by whom the interrupt served.
    #[inline(always)]
    pub fn pays_for_way_back(&self) -> bool {
        self.is_due() && !planted::is(Bug::NoWayBack)
    }

    /// The payer owes the time up to `now`.
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

    /// The interrupt ends: what all owe for it, and what of it others do.
    #[inline(always)]
    pub fn total(&mut self, now: u64) -> (u64, u64) {
        self.settle(now);
        (self.owned_ns, self.others_ns)
    }

    /// It serves `thread` from here on, which has the CPU next, or a refill, or news.
    pub fn falls_to(&mut self, thread: &'static ThreadHead) {
        self.turn_to(Payer::thread(thread, thread.reference().thread_generation), false);
    }

    /// Another CPU asked for it. That one is known to the end: the interrupt may serve others by the way.
    #[inline(always)]
    pub fn is_asked_for(&mut self, asked: &Asked) {
        self.asked_for = asked.take().map(|debt| Payer { debt, generation: None });
    }

    /// It has served nobody else: so it is theirs for whom another CPU asked. Was there anybody?
    #[inline(always)]
    pub fn falls_to_asked(&mut self) -> bool {
        if self.payer.is_none()
            && let Some(payer) = self.asked_for
        {
            self.turn_to(payer, false);
        }
        self.is_due()
    }

    /// It has ended, and goes on for whom it served last, from where `part` begins.
    pub fn goes_on(&mut self, part: &Bill) {
        (self.since_ns, self.owned_ns, self.others_ns) = (part.since_ns, 0, 0);
    }

    /// The interrupt serves `payer` from here on; if that is the first one, from its beginning on.
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

    /// What others have taken of this interrupt by now.
    pub fn others_ns(&self) -> u64 {
        let is_other = self.is_other && self.payer.is_some();
        self.others_ns + if is_other { now_ns().saturating_sub(self.since_ns) } else { 0 }
    }
}

/// Has somebody's deadline come, or passed?
#[inline(always)]
pub fn is_anybody_due(me: &PerCpu, now: u64) -> bool {
    next_deadline(me) <= now
}

/// When the timer must fire for deadlines.
#[inline]
pub fn next_deadline(me: &PerCpu) -> u64 {
    let [other, promised, urgent] = &me.dispatch.nearest;
    let held_ns = me.dispatch.held_until_ns.get();
    let other_ns = other.load(Ordering::Relaxed).max(held_ns);
    let promised_ns =
        promised.load(Ordering::Relaxed).max(if me.dispatch.holds_promised.get() { held_ns } else { 0 });
    urgent.load(Ordering::Relaxed).min(promised_ns).min(other_ns)
}

/// Sees to it that this CPU's event fires no later than `until_ns`. For its deadlines it is armed already: where one comes or the event was
/// used up, that is seen to at once (`timers::set_timer`, [`arm_for_deadlines`]).
///
/// One that is armed for earlier stays: it finds nothing due and arms the right one. Slices mostly end later than the last one would have,
/// so most switches do not touch the hardware.
#[inline(always)]
pub fn arm(me: &PerCpu, until_ns: u64, now: u64) {
    // While an event is being served there may be none.
    debug_assert!(
        me.in_interrupt.get() || me.armed_ns.load(Ordering::Relaxed) <= next_deadline(me),
        "a CPU has no event for its next deadline"
    );
    if until_ns < me.armed_ns.load(Ordering::Relaxed) {
        program(me, until_ns, now);
    }
}

/// Arms it, for earlier than it is.
#[inline(never)]
pub fn program(me: &PerCpu, at_ns: u64, now: u64) {
    me.armed_ns.store(at_ns, Ordering::Relaxed);
    if at_ns <= now {
        me.counters.oneshot_misses.bump();
    }
    event::program_oneshot(at_ns.saturating_sub(now));
}

/// Deadlines come earlier than they seemed to.
#[cold]
fn arm_for_deadlines(me: &PerCpu) {
    let at_ns = next_deadline(me);
    if at_ns < me.armed_ns.load(Ordering::Relaxed) {
        program(me, at_ns, now_ns());
    }
}

/// Somebody runs without a promise, or in a lower band, or nobody: the deadlines of others are held back no more.
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
