//! Scheduling contexts: CPU time as an object (docs/contexts.md).
//!
//! The time is a box of the scheduling core, and in one place: in the record here, or in the entity of the thread that runs on it. The
//! record's book (`kcore::loans`) says who *should* have it and what may happen to it next; it has the invariants I-C1 to I-C3. This file
//! has the locks, moves the box, and wakes who has to be woken. The box may be on its way for some instructions: a call or an answer names
//! the next holder first, and the core moves the box when the current one waits. Who looks for it then tries again, without a lock
//! (`seize`).
//!
//! I-C4: a lender has `Thread::lent` set. I-C5: `Thread::context` is this record for the owner and for every borrower, and for nobody else.

pub mod bind;
pub mod change;
pub mod complete;
pub mod faults;
pub mod leaving;
pub mod loan;
pub mod notify;

use crate::arch::{cpu, tlb};
use crate::dispatch::percpu;
use crate::dispatch::{self, NotBound};
use crate::endpoint::FaultRoom;
use crate::lock::{Guard, Rank, SpinLock};
use crate::mm::heap;
use crate::name::fresh_id;
use crate::planted::{self, Bug};
use crate::preempt::{self, Pacer};
use crate::process::Process;
use crate::process::records::Owned;
use crate::ring::Completion;
use crate::session::{Denied, Session, Stake};
use crate::thread::{self, ContextHead, SchedRef, Thread};
use crate::time;
use crate::tracing::{self, Promise};
use ::sched::{
    AdmissionError, Context, ContextId, ContextInfo, CpuId, CpuMask, Proposal, Reason, Spec, SpecError,
    Witness,
};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use kcore::life::{Action, Event, Refused};
use kcore::loans::{Book, Flaw, Logout, Rules};
use leaving::Payment;
use notify::Cells;

/// Contexts that the machine may have.
pub const MAX_CONTEXTS: usize = 8192;

/// A context's record. Never freed; used again under another number. It begins with what the dispatcher may know of it.
#[repr(C)]
pub struct Ctx {
    head: ContextHead,
    /// Its state.
    pub record: SpinLock<Record>,
    /// What observers are told; a leaf.
    pub cells: SpinLock<Cells>,
}

impl core::ops::Deref for Ctx {
    type Target = ContextHead;
    fn deref(&self) -> &ContextHead {
        &self.head
    }
}

impl Ctx {
    /// The context that `thread` runs on or has lent.
    #[inline(always)]
    pub fn of(thread: &Thread) -> Option<&'static Ctx> {
        Ctx::at_head(thread.context_record())
    }

    /// The context that a thread named so.
    pub fn at_head(head: *const ContextHead) -> Option<&'static Ctx> {
        // SAFETY: what a thread names is a record that `Ctx::head` gave it: a whole one, which is never freed.
        unsafe { head.cast::<Ctx>().as_ref() }
    }

    /// What threads name the context by.
    #[inline(always)]
    pub fn head(&'static self) -> *const ContextHead {
        core::ptr::from_ref(self).cast()
    }
}

/// The book's rules; kernels with these planted bugs must fail their tests.
#[derive(Clone, Copy)]
pub struct Law;

impl Rules for Law {
    #[inline(always)]
    fn has(&self, flaw: Flaw) -> bool {
        match flaw {
            Flaw::OldGenerationObeyed => planted::is(Bug::StaleContext),
            Flaw::WayIgnored => planted::is(Bug::ExceptionKeepsLoan),
            _ => false,
        }
    }

    #[inline(always)]
    fn is_sound(&self) -> bool {
        !self.has(Flaw::WayIgnored)
    }
}

/// A context's state, under its lock.
pub struct Record {
    /// Its number; 0: the record is free.
    pub id: u64,
    /// Who should have the time, and why; and the time, while nobody has it.
    pub book: Book<ThreadRef, Box<Context>, Law>,
    /// Some capability names it.
    has_handle: bool,
    /// Without it the owner stops.
    pub context_only: bool,
    /// The CPU where whoever has it runs.
    pub cpu: usize,
    /// Whom a timeout is told.
    pub timeout: Option<Arc<FaultRoom>>,
    /// Of whoever made it.
    pub session: Option<Arc<Session>>,
    /// Its place in that one's quotas, while there is time,
    pub stake: Option<Stake>,
    /// and another one while it runs elsewhere than at home.
    hosted: Option<Stake>,
    /// What `consumed` said last.
    pub told_ns: u64,
}

impl Record {
    const FREE: Record = Record {
        id: 0,
        book: Book::vacant(Law),
        has_handle: false,
        context_only: false,
        cpu: 0,
        timeout: None,
        session: None,
        stake: None,
        hosted: None,
        told_ns: 0,
    };

    /// The owner goes on without. The box is in the record, or in hand.
    pub fn unbind(&mut self) {
        let owner = self.book.unbind();
        debug_assert!(owner.is_ok(), "a bound context is unbound: {owner:?}");
        disown(owner.ok());
    }
}

/// A thread does not own a context any more.
fn disown(owner: Option<ThreadRef>) {
    let owner = owner.and_then(|owner| thread::get(owner.tid).filter(|thread| thread.is(&owner)));
    if let Some(owner) = owner {
        owner.set_context(core::ptr::null(), false);
    }
}

/// A capability's hold on a context. With the last one the context ends.
pub struct Handle {
    /// The record.
    pub ctx: &'static Ctx,
    /// Which life of the record.
    pub id: u64,
}

impl Handle {
    /// Makes every capability but one of generation `held` stale; that one's next generation. What is bound stays bound.
    pub fn advance(&self, held: u64) -> Option<u64> {
        let mut record = self.ctx.record.lock();
        let next = record.book.advance(held).ok()?;
        self.ctx.cells.lock().identity.1 = next;
        Some(next)
    }

    /// What a new capability remembers.
    pub fn generation(&self) -> u64 {
        self.ctx.record.lock().book.generation()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let id = self.id;
        end(self.ctx, |record| record.id == id);
        let mut record = self.ctx.record.lock();
        debug_assert!(record.id == id, "a handle keeps its record");
        record.has_handle = false;
        free_if_over(self.ctx, record);
    }
}

struct Pool {
    all: Vec<&'static Ctx>,
    free: Vec<&'static Ctx>,
}

static POOL: SpinLock<Pool> = SpinLock::new(Rank::Stacks, Pool { all: Vec::new(), free: Vec::new() });

/// Record number `at` of all that there are, used or not.
pub fn at(at: usize) -> Option<&'static Ctx> {
    POOL.lock().all.get(at).copied()
}

fn take_record() -> Option<&'static Ctx> {
    let mut pool = POOL.lock();
    if let Some(ctx) = pool.free.pop() {
        return Some(ctx);
    }
    let count = pool.all.len();
    drop(pool);
    if count >= MAX_CONTEXTS {
        return None;
    }
    let made = Ctx {
        record: SpinLock::new(Rank::Context, Record::FREE),
        cells: SpinLock::new(Rank::Console, Cells::EMPTY),
        head: ContextHead::new(),
    };
    let ctx: &'static Ctx = {
        let made = heap::try_arc(made).ok()?;
        // SAFETY: never freed from here on: its count stays one.
        unsafe { &*Arc::into_raw(made) }
    };
    let mut pool = POOL.lock();
    // The list of free records can always take every record.
    let missing = (pool.all.len() + 1).saturating_sub(pool.free.len());
    if pool.all.try_reserve(1).is_err() || pool.free.try_reserve(missing).is_err() {
        drop(pool);
        // SAFETY: as it came from `into_raw`, and nobody else knows of it.
        drop(unsafe { Arc::from_raw(ctx) });
        return None;
    }
    pool.all.push(ctx);
    Some(ctx)
}

/// Puts a record that nobody can reach any more back among the free ones.
fn free_if_over(ctx: &'static Ctx, mut record: Guard<'_, Record>) {
    if record.has_handle || !record.book.is_over() || record.id == 0 {
        return;
    }
    let free = Record { book: record.book.after(), ..Record::FREE };
    let over = core::mem::replace(&mut *record, free);
    drop(record);
    // Endpoint and session may end here, without a lock.
    drop(over);
    let observer = notify::forget(ctx);
    // K-30: there is room for every record that was ever made.
    POOL.lock().free.push(ctx);
    // Nothing will happen any more, and nobody else would tell it.
    if let Some(observer) = observer {
        complete::operation(&observer, &Completion::OK, false);
    }
}

// ---- making ---------------------------------------------------------------------------------------------------------------

/// Why there is no new context.
#[derive(Clone, Copy, Debug)]
pub enum CreateError {
    /// No CPU could ever serve it.
    Spec(SpecError),
    /// None of its CPUs is there.
    NoCpu,
    /// No CPU can promise it; what shows that, of the one that has promised least.
    Full(Witness),
    /// No memory, or no record.
    Memory,
    /// The session may not have as much.
    Quota(Denied),
}

/// Makes a context of `spec` and has the CPU with most room promise the time; or, if one of its line (not 0) has just gone, the CPU where that
/// was, which remembers what it used.
pub fn create(
    spec: Spec,
    timeout: Option<Arc<FaultRoom>>,
    session: &Arc<Session>,
    template: u64,
) -> Result<&'static Ctx, CreateError> {
    spec.validate().map_err(CreateError::Spec)?;
    let candidates = spec.cpu_mask.and(&CpuMask::first_n(percpu::count()));
    if candidates.is_empty() {
        return Err(CreateError::NoCpu);
    }
    let kept = heap::keep([Layout::new::<Context>()]).ok_or(CreateError::Memory)?;
    let id = fresh_id();
    let mut proposal = Proposal::new(ContextId { id, generation: 1 }, spec).of_template(template);
    drop(kept);
    let ctx = take_record().ok_or(CreateError::Memory)?;
    let payment = match Payment::take(session, &spec, template) {
        Ok(payment) => payment,
        Err(denied) => {
            POOL.lock().free.push(ctx);
            return Err(CreateError::Quota(denied));
        }
    };
    // Who pays with what one of its line left takes that one's place.
    let candidates = match payment.home() {
        Some(home) => candidates.and(&CpuMask::only(home)),
        None => candidates,
    };
    let mut shown: Option<Witness> = None;
    let mut tried = CpuMask::EMPTY;
    // By room, most first; somebody else may have taken it meanwhile.
    for _ in 0..percpu::count() {
        let Some(best) = roomiest(&candidates.without(&tried), template) else { break };
        tried = tried.or(&CpuMask::only(best));
        let Some(home) = percpu::get(best.index()) else { continue };
        // All CPUs were looked at.
        if percpu::count() > 1 {
            preempt::point();
        }
        match dispatch::admit(home, proposal) {
            Ok(time) => {
                let stake = match payment.settle() {
                    Ok(stake) => stake,
                    Err(denied) => {
                        retire(time, None, None);
                        POOL.lock().free.push(ctx);
                        return Err(CreateError::Quota(denied));
                    }
                };
                ctx.cells.lock().identity = (id, 1);
                ctx.life.store(id, Ordering::Relaxed);
                ctx.band.store(spec.criticality, Ordering::Relaxed);
                ctx.debt.begin(0);
                percpu::this().counters.contexts_admitted.bump();
                let mut record = ctx.record.lock();
                let mut book = record.book.after();
                book.make(time);
                *record = Record {
                    id,
                    book,
                    cpu: best.index(),
                    timeout,
                    session: Some(session.clone()),
                    stake: Some(stake),
                    ..Record::FREE
                };
                return Ok(ctx);
            }
            Err(refused) => {
                shown = Some(worth_showing(shown, refused.why, best));
                proposal = refused.proposal;
                // A test that was too short for a pause is one stretch with the next CPU's otherwise (K-26).
                preempt::point();
            }
        }
    }
    payment.give_back();
    POOL.lock().free.push(ctx);
    percpu::this().counters.contexts_denied.bump();
    Err(shown.map_or(CreateError::NoCpu, CreateError::Full))
}

/// What the caller is shown: why the first CPU refused, the roomiest; of several, that none of them has a home for it. That it need only wait
/// is better news than either.
fn worth_showing(before: Option<Witness>, why: AdmissionError, cpu: CpuId) -> Witness {
    let now = match why {
        AdmissionError::Refused(witness) => witness,
        // Too many contexts, or others are quicker again and again.
        _ => Witness::unfinished(cpu),
    };
    match before {
        None => now,
        Some(before) if before.reason == Reason::BusyLeaving => before,
        Some(_) if now.reason == Reason::BusyLeaving => now,
        Some(before) => Witness { reason: Reason::NoHome, ..before },
    }
}

/// The CPU of `among` that has promised least and holds least for those who left; before all one that `template` has just left.
fn roomiest(among: &CpuMask, template: u64) -> Option<CpuId> {
    if among.count() == 1 {
        return among.iter().next();
    }
    let mut pacer = Pacer::of_wakes();
    among
        .iter()
        .filter_map(|cpu| {
            pacer.step();
            let now = time::now_ns();
            let mut queue = percpu::get(cpu.index())?.dispatch.queue.lock();
            Some((!queue.has_left(template, now), queue.taken(now), cpu))
        })
        .min_by_key(|(is_new, taken, cpu)| (*is_new, *taken, cpu.index()))
        .map(|(_, _, cpu)| cpu)
}

/// The context without time that init has: it can only create.
pub fn root(session: &Arc<Session>) -> Option<Arc<Handle>> {
    let ctx = take_record()?;
    let mut record = ctx.record.lock();
    let mut book = record.book.after();
    book.make_root();
    *record = Record { id: fresh_id(), book, session: Some(session.clone()), ..Record::FREE };
    drop(record);
    handle(ctx)
}

/// The hold of a first capability. Without memory for it the context ends.
pub fn handle(ctx: &'static Ctx) -> Option<Arc<Handle>> {
    let id = {
        let mut record = ctx.record.lock();
        record.has_handle = true;
        record.id
    };
    heap::try_arc(Handle { ctx, id }).ok()
}

// ---- finding the box ------------------------------------------------------------------------------------------------------

/// Takes the box from wherever it is, while `still` holds. `None` as soon as it does not.
///
/// Waits, without a lock, while the box is on its way: the CPU that has it is in the kernel, which does not preempt itself, on the way to its
/// next wait or to user mode. What this CPU itself has in its handoff place is queued first.
pub fn seize(
    ctx: &'static Ctx,
    still: impl Fn(&Record) -> bool,
) -> Option<(Guard<'static, Record>, Box<Context>)> {
    dispatch::settle_handoff();
    let mut is_sought = false;
    loop {
        let mut record = ctx.record.lock();
        let is_over = !still(&record) || !record.book.has_time();
        let found = if is_over { None } else { fetch(&mut record) };
        if is_over || found.is_some() {
            if is_sought {
                record.book.found();
            }
            return found.map(|time| (record, time));
        }
        if !is_sought {
            record.book.seek();
            is_sought = true;
        }
        drop(record);
        cpu::pause();
        tlb::poll();
    }
}

/// The box, in hand, unless it is on its way.
fn fetch(record: &mut Record) -> Option<Box<Context>> {
    if let Some(time) = record.book.seize() {
        return Some(time);
    }
    let taken = fetch_away(record)?;
    debug_assert_eq!(taken.identity().id, record.id, "I-C2: {:?} has another context", record.book.holder());
    record.book.seized();
    Some(taken)
}

/// The box, from its holder.
fn fetch_away(record: &Record) -> Option<Box<Context>> {
    let holder = record.book.holder();
    let thread = thread::get(holder.tid)?;
    let mut wait = thread.wait.lock();
    if thread.is(holder)
        && let Some(parked) = &mut wait.parked
        && parked.context().is_some_and(|context| context.identity().id == record.id)
    {
        tracing::unbound(percpu::this(), parked.id(), false, time::now_ns());
        return parked.unbind();
    }
    drop(wait);
    dispatch::take_context(record.cpu, thread)
}

/// Looks at the box, wherever it is.
pub fn look<R>(ctx: &'static Ctx, id: u64, see: impl Fn(&Record, Option<&ContextInfo>) -> R) -> R {
    dispatch::settle_handoff();
    loop {
        let record = ctx.record.lock();
        if record.id != id || !record.book.has_time() {
            return see(&record, None);
        }
        if let Some(info) = peek(&record) {
            return see(&record, Some(&info));
        }
        drop(record);
        cpu::pause();
        tlb::poll();
    }
}

fn peek(record: &Record) -> Option<ContextInfo> {
    let now = time::now_ns();
    if let Some(time) = record.book.kept() {
        return Some(time.info(now));
    }
    let holder = record.book.holder();
    let thread = thread::get(holder.tid)?;
    let wait = thread.wait.lock();
    if thread.is(holder)
        && let Some(parked) = &wait.parked
        && let Some(context) = parked.context()
        && context.identity().id == record.id
    {
        return Some(context.info(now));
    }
    drop(wait);
    dispatch::context_info(record.cpu, thread)
}

/// Gives the box, which is in the record, to thread `to`, to whom it is promised: at once if it waits or is queued, otherwise when it next
/// leaves the kernel. Says whether it must be woken: it was stopped for want of a context.
#[must_use]
pub fn give(record: &mut Record, to: ThreadRef) -> bool {
    debug_assert!(record.book.is_promised_to(to), "I-C2: given to whom it is promised");
    let Some(thread) = thread::get(to.tid) else { return false };
    // Again, if it came to wait while it was looked for in the queues: then nobody would complete the bind.
    loop {
        match give_waiting(record, thread, &to) {
            Given::Done { is_to_wake } => return is_to_wake,
            Given::Runs => {}
        }
        if give_queued(record, thread, &to) || request_bind(record, thread, &to) {
            return false;
        }
    }
}

enum Given {
    /// It has the box, or finds it in the record.
    Done { is_to_wake: bool },
    /// It does not wait.
    Runs,
}

/// [`give`], to a thread that waits.
fn give_waiting(record: &mut Record, thread: &'static Thread, to: &ThreadRef) -> Given {
    let kept = Given::Done { is_to_wake: false };
    let mut wait = thread.wait.lock();
    // One that ends takes the box out of the record, and must not have to wait for budget. What it was asked to bind to before is void.
    if !thread.is(to) || thread.turn(&mut wait, Event::Bind).is_err() {
        return kept;
    }
    let Some(parked) = &mut wait.parked else {
        thread.must(&mut wait, Event::GiveContext);
        return Given::Runs;
    };
    let Ok(time) = record.book.fetch(*to) else { return kept };
    match parked.bind(time) {
        Ok(before) => {
            debug_assert!(before.is_none(), "I-C5: a thread with two contexts");
            let (me, now) = (percpu::this(), time::now_ns());
            if let Some(context) = parked.context() {
                tracing::bound(me, parked.id(), context, now);
            }
            if record.book.owner() == to && parked.is_context_only() != record.context_only {
                tracing::depends(me, parked.id(), record.context_only, now);
                parked.set_context_only(record.context_only);
            }
            Given::Done { is_to_wake: thread.must(&mut wait, Event::GiveContext) == Action::Wake }
        }
        // Its mask has changed since; it will be told when it fetches it.
        Err(back) => {
            record.book.put(back);
            kept
        }
    }
}

/// [`give`], to a thread that waits for a CPU. False, if it does not, or cannot take it there.
fn give_queued(record: &mut Record, thread: &'static Thread, to: &ThreadRef) -> bool {
    let Ok(time) = record.book.fetch(*to) else { return true };
    let is_own = record.book.owner() == to;
    match dispatch::bind_queued(thread, to, time, is_own.then_some(record.context_only)) {
        Ok(()) => true,
        Err(NotBound::NotQueued(time)) => {
            record.book.put(time);
            false
        }
        Err(NotBound::Elsewhere(time)) => {
            record.book.put(time);
            if is_own {
                // It has chosen other CPUs: it goes on without.
                record.unbind();
            }
            is_own
        }
    }
}

/// [`give`], to a thread that runs: it fetches the box before it next leaves the kernel. False if it waits by now.
fn request_bind(record: &Record, thread: &'static Thread, to: &ThreadRef) -> bool {
    let without = (record.book.owner() == to).then_some(record.context_only);
    if thread.turn(&mut thread.wait.lock(), Event::RequestBind(without)) == Err(Refused::Waits) {
        return false;
    }
    if !core::ptr::eq(percpu::this().current.get(), &raw const **thread) {
        dispatch::kick(thread);
    }
    true
}

/// The current thread is about to leave the kernel: it waits until its context is back, and fetches one that is promised to it.
#[cold]
pub fn settle_before_user(thread: &'static Thread) {
    while thread.life().has_errands() && !thread.body().process.is_ending() {
        if thread.life().has_lent() {
            dispatch::block();
        } else {
            complete_bind(thread);
        }
        dispatch::reschedule();
    }
}

/// As [`dispatch::reschedule`], of a system call that returns. What is promised to its thread decides who is more urgent, so it is fetched first: a server
/// answers one caller, takes the call of the next one, and has that one's deadline before the first one is looked at.
///
/// Says whether the stretch without interrupts goes on, because the thread has errands or ends: then whoever asked sees to that, and ends the stretch.
/// A look of its own would not do: another CPU may have done the errand meanwhile, and the thread would take the stretch with it to user mode.
#[inline(always)]
#[must_use]
pub fn reschedule_leaving(thread: &'static Thread) -> bool {
    percpu::this().attention.get() != 0 && reschedule_leaving_thread(thread)
}

#[inline(never)]
fn reschedule_leaving_thread(thread: &'static Thread) -> bool {
    if percpu::this().is_attention_asked() {
        fetch_and_reschedule(thread);
    }
    let goes_on = thread.life().has_errands() || thread.body().process.is_ending();
    if !goes_on {
        dispatch::end_irq_off();
    }
    goes_on
}

#[cold]
#[inline(never)]
fn fetch_and_reschedule(thread: &'static Thread) {
    dispatch::settle_handoff();
    fetch_promised(thread);
    dispatch::reschedule();
}

/// The current thread, on its way out of the kernel, fetches what is promised to it.
fn fetch_promised(thread: &'static Thread) {
    // One that has lent its context waits for it first: see `settle_before_user`.
    if thread.life().is_bind_requested_only() && !thread.body().process.is_ending() {
        complete_bind(thread);
    }
}

/// The current thread fetches what is promised to it, or finds that it is not any more.
pub fn complete_bind(thread: &'static Thread) {
    let action = thread.must(&mut thread.wait.lock(), Event::Fetch);
    let promised = Ctx::of(thread).and_then(|ctx| {
        let mut record = ctx.record.lock();
        let holder = *record.book.holder();
        let is_its = holder.tid == thread.tid() && thread.life().fetches(holder.thread_generation);
        let time = if is_its { record.book.fetch(holder).ok() } else { None };
        time.map(|time| (ctx, record, time))
    });
    let Some((ctx, record, time)) = promised else {
        // Taken back before it was fetched: what it was bound to lasts.
        if let Action::Depend(Some(only)) = action {
            dispatch::depend(only);
        }
        return;
    };
    let is_here = record.cpu == percpu::this().id;
    let context_only = (*record.book.owner() == thread.reference()).then_some(record.context_only);
    // From here on the box is on its way.
    drop(record);
    let refused = dispatch::bind_current(time, is_here, context_only);
    if let Err(time) = refused {
        // It has chosen other CPUs since the context was promised: it goes on without.
        let who = thread.reference();
        ctx.record.lock().book.put(time);
        loan::leave(ctx, &who);
        let mut record = ctx.record.lock();
        if record.book.is_promised_to(who) && *record.book.owner() == who {
            record.unbind();
        }
    }
}

/// Gives the promise of a CPU back. What was used of it is paid for with `stake` until it is back, and with `hosted` where it ran elsewhere.
fn retire(time: Box<Context>, stake: Option<Stake>, hosted: Option<Stake>) {
    let time = leaving::send_home(time, hosted);
    let (home, template) = (time.home().index(), time.template());
    let Some(home) = percpu::get(home) else { return };
    let mut queue = home.dispatch.queue.lock();
    let now = time::now_ns();
    tracing::promised(home, &time, Promise::Retire, now);
    let left = queue.retire(time, now);
    let departed = queue.departed();
    drop(queue);
    debug_assert!(left.is_ok(), "a context is retired at home");
    drop(left);
    if let (Some(number), Some(stake)) = (departed, stake) {
        leaving::keep(home, number, template, stake);
    }
}

// ---- taking back ----------------------------------------------------------------------------------------------------------

/// Ends a context's life, if `which`: its time goes back to the CPU, whoever had it goes on at its weight, capabilities are stale. Says
/// whether there was one.
pub fn end(ctx: &'static Ctx, which: impl Fn(&Record) -> bool) -> bool {
    let mut woken = loan::Woken::NONE;
    let (mut record, time) = match seize(ctx, &which) {
        Some((record, time)) => (record, Some(time)),
        None => {
            let record = ctx.record.lock();
            if !which(&record) || record.book.is_over() {
                return false;
            }
            debug_assert!(record.book.is_root(), "a live context has time");
            (record, None)
        }
    };
    loan::end_from(ctx, &mut record, 0, &mut woken);
    let owner = record.book.end();
    debug_assert!(owner.is_ok(), "a context ends with its box in hand: {owner:?}");
    disown(owner.ok());
    let (stake, hosted) = (record.stake.take(), record.hosted.take());
    notify::revoked(ctx, &record);
    drop(record);
    if let Some(time) = time {
        retire(time, stake, hosted);
    }
    woken.wake();
    notify::tell(ctx);
    true
}

/// A thread ends: what it had bound is stale, what it had on loan goes back.
pub fn thread_ends(thread: &'static Thread) {
    let who = thread.reference();
    // Its own after a loan: it can have had one or the other.
    while let Some(ctx) = Ctx::of(thread) {
        if end(ctx, |record| *record.book.owner() == who) {
            free_if_over(ctx, ctx.record.lock());
        } else {
            loan::leave(ctx, &who);
        }
    }
    debug_assert!(thread.lent.load(Ordering::Relaxed) == 0, "I-C4: a thread ends that has lent");
    if planted::is(Bug::BindsTheEnding) {
        (0..50_000).for_each(|_| cpu::pause());
    }
}

/// A thread is to end soon: it must not have to wait for budget. What it runs on is taken from it.
pub fn strip(who: &ThreadRef) {
    let Some(thread) = thread::get(who.tid) else { return };
    // First: from here on it gets no other.
    if !dispatch::doom(thread, who) {
        return;
    }
    if let Some(ctx) = Ctx::of(thread) {
        loan::leave(ctx, who);
        if let Some((mut record, time)) = seize(ctx, |record| record.book.holder() == who) {
            // Its own: idle until the thread has ended, which makes it stale.
            record.book.put(time);
            let laid_down = record.book.lay_down();
            debug_assert!(laid_down.is_ok(), "it was the thread's own: {laid_down:?}");
        }
    }
    // Last: without its context it is queued by its weight.
    dispatch::hasten(thread, who);
}

/// A thread was stopped on the way to what is promised to it: that is given to it, if it is still there.
pub fn deliver(thread: &'static Thread) {
    let who = thread.reference();
    let record = Ctx::of(thread).map(|ctx| ctx.record.lock());
    if let Some(mut record) = record
        && record.book.is_promised_to(who)
    {
        if give(&mut record, who) {
            drop(record);
            dispatch::wake(&who, false);
        }
        return;
    }
    dispatch::find_nothing(thread);
}

/// Contexts that are looked at, and perhaps ended, before others may run: some 5,000 instructions each.
const PACE_CONTEXTS: u32 = 2;

/// What a logout did.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedOut {
    /// Contexts that are stale now.
    pub stale_marked: u32,
    /// Contexts that threads of the session have on loan: left alone.
    pub donation_inflight_skipped: u32,
}

/// A session ends: contexts of its threads, and idle ones that it made, are stale from now on (K-20).
pub fn logout(session: &Arc<Session>) -> LoggedOut {
    let mut done = LoggedOut::default();
    let mut index = 0;
    let mut pacer = Pacer::of(PACE_CONTEXTS);
    while let Some(ctx) = at(index) {
        index += 1;
        pacer.step();
        let (id, fate) = {
            let record = ctx.record.lock();
            let made = record.session.as_ref().is_some_and(|made| session.holds(made));
            (record.id, record.book.logout(made, |who| works_for(who, session)))
        };
        match fate {
            Logout::Ends => done.stale_marked += u32::from(end(ctx, |record| record.id == id)),
            Logout::Skipped => done.donation_inflight_skipped += 1,
            Logout::Untouched => {}
        }
    }
    leaving::sweep_all();
    done
}

fn works_for(who: &ThreadRef, session: &Arc<Session>) -> bool {
    Process::of_thread(who).is_some_and(|process| session.holds(&process.session))
}

// ---- templates ------------------------------------------------------------------------------------------------------------

/// A context that was just made becomes that of a thread that was, too, and has not run yet.
pub fn furnish(ctx: &'static Ctx, runnable: &mut ::sched::Runnable<SchedRef>) {
    let mut record = ctx.record.lock();
    let thread = thread::get(runnable.id().0 as u32);
    // Nobody else knows of either, and a new thread may run anywhere.
    let Some(thread) = thread else { unreachable!("both are new") };
    let who = thread.reference();
    record.book.bind(who);
    let time = record.book.promise(who).and_then(|()| record.book.fetch(who));
    let Ok(time) = time else { unreachable!("both are new") };
    thread.set_context(ctx.head(), false);
    let bound = runnable.bind(time);
    debug_assert!(bound.is_ok(), "a new thread has a mask");
}

/// A context that was just made is not needed after all.
pub fn abandon(ctx: &'static Ctx) {
    end(ctx, |record| *record.book.owner() == ThreadRef::NONE);
    free_if_over(ctx, ctx.record.lock());
}
