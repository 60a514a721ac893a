//! Scheduling contexts: CPU time as an object (docs/contexts.md).
//!
//! The time itself is a value of the scheduling core, a `Box<sched::Context>` (the `Context`, for short). It is in one place: in the record here,
//! or in the entity of the thread that runs on it. The record's book (`kcore::loans`) says who *should* have it and what may happen to it next, and
//! keeps the invariants I-C1 to I-C3. This file has the locks, moves the `Context`, and wakes threads. The `Context` may be in transit for some
//! instructions: a call or an answer names the next holder first, and the core moves the `Context` when the current holder blocks. A CPU that looks
//! for it then tries again, without a lock (`seize`).
//!
//! I-C4: a lender has `Thread::lent` set. I-C5: `Thread::context` names this record for the owner and for every borrower, and for no other thread.

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

/// The most contexts that the machine may have.
pub const MAX_CONTEXTS: usize = 8192;

/// A context's record. It is never freed, but used again under another number. It begins with the part that the dispatcher may know.
#[repr(C)]
pub struct Ctx {
    head: ContextHead,
    /// The state of the context.
    pub record: SpinLock<Record>,
    /// What observers are told. Its lock is a leaf: no other lock is taken under it.
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

    /// The context whose `head` a thread named.
    pub fn at_head(head: *const ContextHead) -> Option<&'static Ctx> {
        // SAFETY: a thread names only pointers that `Ctx::head` gave it: to whole records, which are never freed.
        unsafe { head.cast::<Ctx>().as_ref() }
    }

    /// The pointer by which threads name the context.
    #[inline(always)]
    pub fn head(&'static self) -> *const ContextHead {
        core::ptr::from_ref(self).cast()
    }
}

/// The book's rules. With these bugs planted, a kernel must fail its tests.
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
    /// The number of the context; 0 if the record is free.
    pub id: u64,
    /// Who should have the `Context`, and why; and the `Context` itself while no thread has it.
    pub book: Book<ThreadRef, Box<Context>, Law>,
    /// Some capability names the context.
    has_handle: bool,
    /// Whether the owner stops when it does not have the context.
    pub context_only: bool,
    /// The CPU on which the holder of the context runs.
    pub cpu: usize,
    /// The endpoint that is told of timeouts.
    pub timeout: Option<Arc<FaultRoom>>,
    /// The session that created the context.
    pub session: Option<Arc<Session>>,
    /// The context's place in the quotas of that session, while it has time,
    pub stake: Option<Stake>,
    /// and a second one while it runs elsewhere than at home.
    hosted: Option<Stake>,
    /// The consumed time that was reported last.
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

    /// The owner goes on without the context. The `Context` is in the record, or in the caller's hands.
    pub fn unbind(&mut self) {
        let owner = self.book.unbind();
        debug_assert!(owner.is_ok(), "a bound context is unbound: {owner:?}");
        disown(owner.ok());
    }
}

/// A thread no longer owns a context.
fn disown(owner: Option<ThreadRef>) {
    let owner = owner.and_then(|owner| thread::get(owner.tid).filter(|thread| thread.is(&owner)));
    if let Some(owner) = owner {
        owner.set_context(core::ptr::null(), false);
    }
}

/// A capability's hold on a context. The context ends with the last capability.
pub struct Handle {
    /// The record.
    pub ctx: &'static Ctx,
    /// The number of the context, which tells this use of the record from others.
    pub id: u64,
}

impl Handle {
    /// Makes every capability stale, except the caller's, of generation `held`: that one's next generation is returned. A bound thread stays bound.
    pub fn advance(&self, held: u64) -> Option<u64> {
        let mut record = self.ctx.record.lock();
        let next = record.book.advance(held).ok()?;
        self.ctx.cells.lock().identity.1 = next;
        Some(next)
    }

    /// The generation that a new capability remembers.
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

/// Record number `at` of all records, used or not.
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
    // The list of free records always has room for every record, so that freeing one never allocates.
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
    // The endpoint and the session may end here, so no lock may be held.
    drop(over);
    let observer = notify::forget(ctx);
    // K-30: the list has room for every record that was ever made.
    POOL.lock().free.push(ctx);
    // Nothing will happen to the context any more, and nobody else would tell the observer.
    if let Some(observer) = observer {
        complete::operation(&observer, &Completion::OK, false);
    }
}

// ---- making ---------------------------------------------------------------------------------------------------------------

/// Why no context was created.
#[derive(Clone, Copy, Debug)]
pub enum CreateError {
    /// No CPU could ever serve it.
    Spec(SpecError),
    /// None of the CPUs that it may use exists.
    NoCpu,
    /// No CPU can promise the time. The witness is that of the CPU with most room.
    Full(Witness),
    /// No memory, or no record.
    Memory,
    /// The quotas of the session do not allow it.
    Quota(Denied),
}

/// Creates a context with `spec`, and has the CPU with most room promise the time. If a context of the same `template` (not 0) has just left, that
/// one's CPU comes first, because it remembers what was used.
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
    // Paid with the stake of a context of the same template that left, the new one must take that one's place.
    let candidates = match payment.home() {
        Some(home) => candidates.and(&CpuMask::only(home)),
        None => candidates,
    };
    let mut shown: Option<Witness> = None;
    let mut tried = CpuMask::EMPTY;
    // The CPU with most room first. It may refuse all the same: another context may have taken that room since.
    for _ in 0..percpu::count() {
        let Some(best) = roomiest(&candidates.without(&tried), template) else { break };
        tried = tried.or(&CpuMask::only(best));
        let Some(home) = percpu::get(best.index()) else { continue };
        // `roomiest` has looked at all CPUs, which takes long.
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
                // Each test may be too short to pause by itself; without this point the tests of several CPUs would be one interrupts-off span
                // (K-26).
                preempt::point();
            }
        }
    }
    payment.give_back();
    POOL.lock().free.push(ctx);
    percpu::this().counters.contexts_denied.bump();
    Err(shown.map_or(CreateError::NoCpu, CreateError::Full))
}

/// The refusal that the caller is shown: that of the first CPU, which has most room; after several refusals, that no CPU can be its home. If one
/// CPU's reason is that the caller need only wait (`BusyLeaving`), that is shown instead: it is better news.
fn worth_showing(before: Option<Witness>, why: AdmissionError, cpu: CpuId) -> Witness {
    let now = match why {
        AdmissionError::Refused(witness) => witness,
        // The CPU has too many contexts, or other admissions overtook this one again and again.
        _ => Witness::unfinished(cpu),
    };
    match before {
        None => now,
        Some(before) if before.reason == Reason::BusyLeaving => before,
        Some(_) if now.reason == Reason::BusyLeaving => now,
        Some(before) => Witness { reason: Reason::NoHome, ..before },
    }
}

/// The CPU of `among` that has promised least, counting what it holds for contexts that left. A CPU that a context of `template` has just left
/// comes first.
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

/// The context without time that `init` has: it can only create others.
pub fn root(session: &Arc<Session>) -> Option<Arc<Handle>> {
    let ctx = take_record()?;
    let mut record = ctx.record.lock();
    let mut book = record.book.after();
    book.make_root();
    *record = Record { id: fresh_id(), book, session: Some(session.clone()), ..Record::FREE };
    drop(record);
    handle(ctx)
}

/// The hold of the first capability. If there is no memory for it, the context ends.
pub fn handle(ctx: &'static Ctx) -> Option<Arc<Handle>> {
    let id = {
        let mut record = ctx.record.lock();
        record.has_handle = true;
        record.id
    };
    heap::try_arc(Handle { ctx, id }).ok()
}

// ---- finding the context --------------------------------------------------------------------------------------------------

/// Takes the `Context` from wherever it is, as long as `still` holds. `None` as soon as it does not.
///
/// Waits, without a lock, while the `Context` is in transit. That is short: the CPU that moves it is in the kernel, which does not preempt itself,
/// and will soon block the thread or return to user mode. A thread in this CPU's own handoff place is queued first, because it may be the one that
/// has it.
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

/// Takes the `Context`, unless it is in transit.
fn fetch(record: &mut Record) -> Option<Box<Context>> {
    if let Some(time) = record.book.seize() {
        return Some(time);
    }
    let taken = fetch_away(record)?;
    debug_assert_eq!(taken.identity().id, record.id, "I-C2: {:?} has another context", record.book.holder());
    record.book.seized();
    Some(taken)
}

/// Takes the `Context` from its holder.
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

/// Looks at the `Context`, wherever it is.
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

/// Gives the `Context`, which is in the record, to thread `to`, to which it is promised: at once if the thread is blocked or queued, otherwise when
/// it next leaves the kernel. Says whether the thread must be woken, because it was stopped for want of a context.
#[must_use]
pub fn give(record: &mut Record, to: ThreadRef) -> bool {
    debug_assert!(record.book.is_promised_to(to), "I-C2: given to whom it is promised");
    let Some(thread) = thread::get(to.tid) else { return false };
    // Tries again if the thread blocked while it was looked for in the run queues: then nobody would complete the bind.
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
    /// The thread has the `Context`, or will find it in the record.
    Done { is_to_wake: bool },
    /// The thread is not blocked.
    Runs,
}

/// [`give`], to a thread that is blocked.
fn give_waiting(record: &mut Record, thread: &'static Thread, to: &ThreadRef) -> Given {
    let kept = Given::Done { is_to_wake: false };
    let mut wait = thread.wait.lock();
    // A thread that ends takes the `Context` out of the record itself, and must not have to wait for budget. An earlier request to bind is void.
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
        // The thread's affinity has changed since. It is told when it fetches the context.
        Err(back) => {
            record.book.put(back);
            kept
        }
    }
}

/// [`give`], to a thread in a run queue. False if it is in none, or cannot take the context there.
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
                // The thread has chosen other CPUs: it goes on without its context.
                record.unbind();
            }
            is_own
        }
    }
}

/// [`give`], to a thread that runs: it fetches the `Context` before it next leaves the kernel. False if it is blocked by now.
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

/// As [`dispatch::reschedule`], for a system call that returns. What is promised to the thread is fetched first, because it decides which thread is
/// more urgent: a server that answers one caller and takes the call of the next has the next one's deadline before anybody looks whether the first
/// should run.
///
/// Says whether the interrupts-off span goes on, because the thread has errands or ends: then the caller sees to that, and ends the span. The
/// caller cannot find that out by a look of its own: another CPU may have done the errand meanwhile, and the span would go on in user mode.
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

/// The current thread, which is about to leave the kernel, fetches the context that is promised to it.
fn fetch_promised(thread: &'static Thread) {
    // A thread that has lent its context waits for that first: see `settle_before_user`.
    if thread.life().is_bind_requested_only() && !thread.body().process.is_ending() {
        complete_bind(thread);
    }
}

/// The current thread fetches the context that is promised to it, or finds that the promise was taken back.
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
        // Taken back before it was fetched. The request still decides whether the thread stops or goes on without a context.
        if let Action::Depend(Some(only)) = action {
            dispatch::depend(only);
        }
        return;
    };
    let is_here = record.cpu == percpu::this().id;
    let context_only = (*record.book.owner() == thread.reference()).then_some(record.context_only);
    // From here on the `Context` is in transit.
    drop(record);
    let refused = dispatch::bind_current(time, is_here, context_only);
    if let Err(time) = refused {
        // The thread has chosen other CPUs since the context was promised: it goes on without.
        let who = thread.reference();
        ctx.record.lock().book.put(time);
        loan::leave(ctx, &who);
        let mut record = ctx.record.lock();
        if record.book.is_promised_to(who) && *record.book.owner() == who {
            record.unbind();
        }
    }
}

/// Gives the promise back to its CPU. Until the time that was used is back, `stake` pays for it, and `hosted` where it was used away from home.
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

/// Ends a context's life if `which` holds: its time goes back to the CPU, the thread that had it goes on at its weight, and its capabilities are
/// stale. Says whether there was a context to end.
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

/// A thread ends: the context that it owns is stale, and one that it has on loan goes back.
pub fn thread_ends(thread: &'static Thread) {
    let who = thread.reference();
    // Until it has none: a context is the thread's own, which ends, or on loan to it, which goes back.
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

/// A thread is to end soon, and must not have to wait for budget: the context that it runs on is taken from it.
pub fn strip(who: &ThreadRef) {
    let Some(thread) = thread::get(who.tid) else { return };
    // First, so that it gets no other context from here on.
    if !dispatch::doom(thread, who) {
        return;
    }
    if let Some(ctx) = Ctx::of(thread) {
        loan::leave(ctx, who);
        if let Some((mut record, time)) = seize(ctx, |record| record.book.holder() == who) {
            // Its own context: idle until the thread has ended, which makes the context stale.
            record.book.put(time);
            let laid_down = record.book.lay_down();
            debug_assert!(laid_down.is_ok(), "it was the thread's own: {laid_down:?}");
        }
    }
    // Last, because only without its context is the thread queued by its weight.
    dispatch::hasten(thread, who);
}

/// A thread was stopped before it could fetch a context that is promised to it: it is given the context now, if the promise still holds.
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

/// How many contexts are looked at, and perhaps ended, between two preemption points: some 5,000 instructions each.
const PACE_CONTEXTS: u32 = 2;

/// What a logout did to contexts.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedOut {
    /// Contexts that became stale.
    pub stale_marked: u32,
    /// Contexts that threads of the session have on loan: they were left alone.
    pub donation_inflight_skipped: u32,
}

/// A session ends: contexts that its threads own, and idle ones that it created, are stale from now on (K-20).
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

/// Binds a context that was just created to a thread that was just created, too, and has not run yet.
pub fn furnish(ctx: &'static Ctx, runnable: &mut ::sched::Runnable<SchedRef>) {
    let mut record = ctx.record.lock();
    let thread = thread::get(runnable.id().0 as u32);
    // Nobody else knows either of them, and a new thread may run anywhere.
    let Some(thread) = thread else { unreachable!("both are new") };
    let who = thread.reference();
    record.book.bind(who);
    let time = record.book.promise(who).and_then(|()| record.book.fetch(who));
    let Ok(time) = time else { unreachable!("both are new") };
    thread.set_context(ctx.head(), false);
    let bound = runnable.bind(time);
    debug_assert!(bound.is_ok(), "a new thread has a mask");
}

/// Ends a context that was just created and is not needed after all.
pub fn abandon(ctx: &'static Ctx) {
    end(ctx, |record| *record.book.owner() == ThreadRef::NONE);
    free_if_over(ctx, ctx.record.lock());
}
