//! Deadlines of threads: which of them are due, and what each CPU's timer is armed for.
//!
//! A CPU's event is armed for the nearest of its threads' deadlines and the end of the running slice. A CPU with neither has none.
//!
//! The time of an interrupt that serves somebody's deadlines is that thread's ([`Bill`], S-16). While a thread runs on a promise, deadlines of others
//! may take a small part of its time only; what is more waits, so they are in a queue of their own.

use crate::arch::percpu::Asked;
use crate::clock;
pub use crate::clock::now_ns;
use crate::dispatch::percpu::{self, PerCpu};
use crate::event;
use crate::ring::{self, Completion, Waiter};
use crate::thread::{self, OPS, TIMEOUT, Thread, TimerSlot};
use core::sync::atomic::Ordering;
use kcore::debt::Debt;
use kcore::generation::ThreadRef;
use kcore::timerq::{Node, Store, TimerQueue};

/// Due timers that one interrupt looks at; the rest gets the next, which comes at once.
const BATCH: usize = 8;
/// Others are held back for this long at least, for an interrupt to be worth its while.
const HOLD_NS: u64 = 100_000;

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
    const ALL: [Class; CLASSES] = [Class::Other, Class::Promised, Class::Urgent];

    /// Of what `thread` sets now.
    #[inline(always)]
    fn of(thread: &Thread) -> Class {
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
    #[inline(always)]
    fn thread(thread: &'static Thread, generation: u32) -> Payer {
        Payer { debt: &thread.debt, generation: Some(generation) }
    }

    /// Who pays for what another CPU is asked to do for `thread`: its context, if it has one. A thread that is bound and unbound again and again would
    /// otherwise owe what it has no budget for by then.
    #[inline(always)]
    pub fn of(thread: &'static Thread) -> Payer {
        Payer { debt: thread.context().map_or(&thread.debt, |ctx| &ctx.debt), generation: None }
    }

    /// The current thread, who asks another CPU for something.
    pub fn asker() -> Option<Payer> {
        thread::current_or_none().map(Payer::of)
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
pub fn debt_of_context(thread: &Thread) -> u64 {
    thread.context().filter(|ctx| ctx.debt.ns() != 0).map_or(0, |ctx| ctx.debt.pay())
}

/// A thread that does not run loses its context, out of which it would have paid what it owes: the context does, when it is next queued.
pub fn leave_debt(thread: &Thread) {
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
    pub fn falls_to(&mut self, thread: &'static Thread) {
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
    fn turn_to(&mut self, payer: Payer, is_other: bool) {
        if let Some(before) = &self.payer {
            if before.is(&payer) && self.is_other == is_other {
                return;
            }
            self.settle(now_ns());
        }
        (self.payer, self.is_other) = (Some(payer), is_other);
    }

    /// What others have taken of this interrupt by now.
    fn others_ns(&self) -> u64 {
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
fn next_deadline(me: &PerCpu) -> u64 {
    let [other, promised, urgent] = &me.dispatch.nearest;
    let held_ns = me.dispatch.held_until_ns.get();
    let other_ns = other.load(Ordering::Relaxed).max(held_ns);
    let promised_ns =
        promised.load(Ordering::Relaxed).max(if me.dispatch.holds_promised.get() { held_ns } else { 0 });
    urgent.load(Ordering::Relaxed).min(promised_ns).min(other_ns)
}

/// Sees to it that this CPU's event fires no later than `until_ns`. For its deadlines it is armed already: where one comes or the event was
/// used up, that is seen to at once ([`set_timer`], [`arm_for_deadlines`]).
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

#[inline(never)]
fn program(me: &PerCpu, at_ns: u64, now: u64) {
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

/// The event fired; `now` is when its interrupt began. Those whom it serves are put on the bill.
#[inline(always)]
pub fn event(me: &'static PerCpu, now: u64, bill: &mut Bill) {
    if crate::selftest::take_event() {
        return;
    }
    me.armed_ns.store(u64::MAX, Ordering::Relaxed);
    me.counters.ticks.bump();
    if me.id == 0 {
        clock::discipline(now);
    }
    crate::watchdog::event(me, now);
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
    // The event was used up; who was woken may have armed one for the end of a slice.
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
        ring::park_due(&due.waiter);
    } else {
        ring::complete(&due.waiter, &SLEPT, false);
    }
}

/// What an interrupt finds.
enum Taken {
    /// Somebody whose time has come, and whether that one has no better right to the CPU than who runs, by a promise.
    Due(Due, bool),
    /// The timer of this thread, of this generation, was set on a promise that is used up: it waits among those of others from now on.
    Moved(&'static Thread, u32),
    /// Nobody whom it may serve now.
    Nothing,
}

/// Somebody whose time has come. Of others not more than may be taken from who runs on a promise: they are held back then.
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

/// [`take_due`], while somebody runs on a promise who has `left_ns` to spare for others.
#[inline(never)]
fn take_permitted(me: &PerCpu, left_ns: u64, now: u64, bill: &Bill) -> Taken {
    let others_may = bill.others_ns() < left_ns;
    // Beside one of a higher band, those of the lowest are others, too.
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
    // Whoever set it may have taken it back meanwhile, on another CPU: what is first now waits for the next interrupt, which comes at once.
    if timers[class as usize].first().is_none_or(|(_, first)| first != id) {
        return Taken::Nothing;
    }
    let Some(due) = pop(me, &mut timers, class, now) else { return Taken::Nothing };
    if others_may || !is_other {
        return Taken::Due(due, is_other);
    }
    // It has a context, and has used it up.
    let (thread, slot) = split(id);
    let deadline = Records.node(id).deadline();
    insert(me, &mut timers, thread, slot, Class::Other, deadline);
    Taken::Moved(thread, who.thread_generation)
}

/// The deadlines of others wait until they may have something of a promised time again.
#[cold]
fn hold_others(me: &PerCpu, now: u64) {
    if now >= me.dispatch.held_until_ns.get() {
        let again_ns = me.dispatch.queue.lock().service_again_ns(now);
        me.dispatch.held_until_ns.set(again_ns.max(now + HOLD_NS));
    }
}

/// May a thread be served although another one runs on a promise? It has budget itself, and waits, or it is that one.
fn has_budget(me: &PerCpu, who: &ThreadRef, now: u64) -> bool {
    let Some(thread) = thread::get(who.tid) else { return false };
    if core::ptr::eq(me.current.get(), thread) {
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

/// The highest class of which a timer is due, down to the `least` that may be served.
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

/// The first deadline of a class may be another one.
#[inline(always)]
fn publish(me: &PerCpu, timers: &[TimerQueue; CLASSES], class: Class) {
    me.dispatch.nearest[class as usize].store(timers[class as usize].first_deadline(), Ordering::Relaxed);
}

/// Somebody runs without a promise, or in a lower band, or nobody: the deadlines of others are held back no more.
#[cold]
#[inline(never)]
pub fn stop_holding(me: &PerCpu) {
    me.dispatch.held_until_ns.set(0);
    me.dispatch.holds_promised.set(false);
    arm_for_deadlines(me);
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
    // Linked through the threads' records: no memory (K-30).
    timers[class as usize].insert(&mut Records, join(thread, slot), deadline);
    publish(me, timers, class);
}

/// Timer `slot` of the current thread will fire at `deadline`: of a park, or of a sleep or a wait.
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
    let mut timers = cpu.dispatch.timers.lock();
    // It may have fired in the meantime.
    if timer.cpu.load(Ordering::Relaxed) != owner || !is_meant(timer) {
        return false;
    }
    let class = Class::ALL[usize::from(timer.class.load(Ordering::Relaxed)) % CLASSES];
    let found = timers[class as usize].cancel(&mut Records, join(thread, slot));
    timer.cpu.store(u32::MAX, Ordering::Relaxed);
    publish(cpu, &timers, class);
    found
}

/// A time argument as an absolute deadline: 0 is now, `u64::MAX` never.
pub fn deadline(timeout_ns: u64) -> u64 {
    if timeout_ns == u64::MAX { u64::MAX } else { now_ns().saturating_add(timeout_ns) }
}

/// The completion of a sleep.
pub const SLEPT: Completion = Completion::OK;
