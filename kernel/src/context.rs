//! Scheduling contexts: CPU time as an object (docs/contexts.md).
//!
//! The time is a box of the scheduling core, and in one place: in the record here, or in the entity of the thread that runs on it. The
//! record says who *should* have it. Between the two the box may be on its way for some instructions: a call or an answer names the next
//! holder first, and the core moves the box when the current one waits. Who looks for it then tries again, without a lock (`seize`).
//!
//! I-C1: a box is in one place. I-C2: `holder` has the box, or gets it before it runs in user mode. I-C3: the loans are a chain: each
//! borrower is the next one's lender, the first lender is the owner, the last borrower the holder. I-C4: a lender has `Thread::lent` set.
//! I-C5: `Thread::context` is this record for the owner and for every borrower, and for nobody else.

pub mod loan;
pub mod methods;
pub mod notify;

use crate::arch::{cpu, percpu};
use crate::endpoint::Endpoint;
use crate::lock::{Guard, Rank, SpinLock};
use crate::mm::{heap, tlb};
use crate::object::{Session, fresh_id};
use crate::process::Process;
use crate::sched::{self, NotBound};
use crate::thread::{self, Thread, mark};
use crate::time;
use crate::tracing::{self, Promise};
use ::sched::{AdmissionError, Context, ContextId, ContextInfo, CpuId, CpuMask, Proposal, Spec, SpecError};
use abi::MAX_LOAN_DEPTH;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::sync::atomic::Ordering;
use kcore::generation::ThreadRef;
use loan::Loan;
use notify::Cells;

/// Whom a timeout is told: an endpoint, and the badge of the capability that named it.
pub type Told = (Arc<Endpoint>, u32);

/// Contexts that the machine may have.
pub const MAX_CONTEXTS: usize = 8192;

/// A context's record. Never freed; used again under another number.
pub struct Ctx {
    record: SpinLock<Record>,
    /// What observers are told; a leaf.
    pub cells: SpinLock<Cells>,
}

/// Who should have the time, and why.
pub struct Record {
    /// Its number; 0: the record is free.
    pub id: u64,
    /// Moves on when it is taken back.
    pub generation: u64,
    /// There is no time any more.
    pub revoked: bool,
    /// It never had any: it can only create.
    pub is_root: bool,
    /// Some capability names it.
    has_handle: bool,
    /// The thread that it is bound to.
    pub owner: ThreadRef,
    /// Without it the owner stops.
    context_only: bool,
    /// Who has the box, or is about to.
    pub holder: ThreadRef,
    /// The box, while nobody has it: idle, or promised to the holder.
    kept: Option<Box<Context>>,
    /// The CPU where whoever has it runs.
    pub cpu: usize,
    /// Along which calls it is lent: see I-C3.
    loans: [Loan; MAX_LOAN_DEPTH],
    depth: usize,
    /// From this loan on it runs elsewhere than at home, as a guest.
    hosted_from: Option<usize>,
    /// Those who look for the box while it is on its way.
    sought: u32,
    /// Whom a timeout is told.
    timeout: Option<Told>,
    /// Of whoever made it.
    session: Option<Arc<Session>>,
    /// What `consumed` said last.
    told_ns: u64,
}

impl Record {
    const FREE: Record = Record {
        id: 0,
        generation: 0,
        revoked: true,
        is_root: false,
        has_handle: false,
        owner: ThreadRef::NONE,
        context_only: false,
        holder: ThreadRef::NONE,
        kept: None,
        cpu: 0,
        loans: [Loan::NONE; MAX_LOAN_DEPTH],
        depth: 0,
        hosted_from: None,
        sought: 0,
        timeout: None,
        session: None,
        told_ns: 0,
    };

    /// Calls that it is lent along.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Is there time in it, somewhere?
    fn has_time(&self) -> bool {
        self.id != 0 && !self.revoked && !self.is_root
    }

    /// Does it name nobody?
    fn is_idle(&self) -> bool {
        self.owner == ThreadRef::NONE && self.holder == ThreadRef::NONE
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
        if record.generation != held || record.revoked {
            return None;
        }
        record.generation += 1;
        self.ctx.cells.lock().identity.1 = record.generation;
        Some(record.generation)
    }

    /// What a new capability remembers.
    pub fn generation(&self) -> u64 {
        self.ctx.record.lock().generation
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
    if record.has_handle || !record.revoked || record.id == 0 {
        return;
    }
    // Who still looks for it counts itself out of whatever is here by then.
    let free = Record { sought: record.sought, ..Record::FREE };
    let over = core::mem::replace(&mut *record, free);
    drop(record);
    // Endpoint and session may end here, without a lock.
    drop(over);
    *ctx.cells.lock() = Cells::EMPTY;
    POOL.lock().free.push(ctx);
}

// ---- making ---------------------------------------------------------------------------------------------------------------

/// Why there is no new context.
#[derive(Clone, Copy, Debug)]
pub enum CreateError {
    /// No CPU could ever serve it.
    Spec(SpecError),
    /// None of its CPUs is there.
    NoCpu,
    /// No CPU has so much left; the most that one has, in parts per million.
    Full(u64),
    /// No memory, or no record.
    Memory,
}

/// Makes a context of `spec` and has the CPU with most room promise the time.
pub fn create(
    spec: Spec,
    timeout: Option<Told>,
    session: &Arc<Session>,
) -> Result<&'static Ctx, CreateError> {
    spec.validate().map_err(CreateError::Spec)?;
    let candidates = spec.cpu_mask.and(&CpuMask::first_n(percpu::count()));
    if candidates.is_empty() {
        return Err(CreateError::NoCpu);
    }
    let kept = heap::keep([Layout::new::<Context>()]).ok_or(CreateError::Memory)?;
    let id = fresh_id();
    let mut proposal = Proposal::new(ContextId { id, generation: 1 }, spec);
    drop(kept);
    let ctx = take_record().ok_or(CreateError::Memory)?;
    let mut free_ppm = 0;
    let mut tried = CpuMask::EMPTY;
    // By room, most first; somebody else may have taken it meanwhile.
    for _ in 0..percpu::count() {
        let Some(best) = roomiest(&candidates.without(&tried)) else { break };
        tried = tried.or(&CpuMask::only(best));
        let Some(home) = percpu::get(best.index()) else { continue };
        let mut queue = home.sched.queue.lock();
        let now = time::now_ns();
        match queue.admit(proposal, now) {
            Ok(time) => {
                tracing::promised(home, &time, Promise::Admit, now);
                drop(queue);
                ctx.cells.lock().identity = (id, 1);
                percpu::this().counters.contexts_admitted.bump();
                let mut record = ctx.record.lock();
                *record = Record {
                    id,
                    generation: 1,
                    revoked: false,
                    kept: Some(time),
                    cpu: best.index(),
                    timeout,
                    session: Some(session.clone()),
                    sought: record.sought,
                    ..Record::FREE
                };
                return Ok(ctx);
            }
            Err(refused) => {
                drop(queue);
                if let AdmissionError::Overcommitted { free_ppm: left, .. } = refused.why {
                    free_ppm = free_ppm.max(left);
                }
                proposal = refused.proposal;
            }
        }
    }
    POOL.lock().free.push(ctx);
    percpu::this().counters.contexts_denied.bump();
    Err(CreateError::Full(free_ppm))
}

/// The CPU of `among` that has promised least.
fn roomiest(among: &CpuMask) -> Option<CpuId> {
    among
        .iter()
        .filter_map(|cpu| Some((percpu::get(cpu.index())?.sched.queue.lock().reserved(), cpu)))
        .min_by_key(|(reserved, cpu)| (*reserved, cpu.index()))
        .map(|(_, cpu)| cpu)
}

/// The context without time that init has: it can only create.
pub fn root(session: &Arc<Session>) -> Option<Arc<Handle>> {
    let ctx = take_record()?;
    *ctx.record.lock() = Record {
        id: fresh_id(),
        generation: 1,
        revoked: false,
        is_root: true,
        session: Some(session.clone()),
        ..Record::FREE
    };
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
fn seize(
    ctx: &'static Ctx,
    still: impl Fn(&Record) -> bool,
) -> Option<(Guard<'static, Record>, Box<Context>)> {
    sched::settle_handoff();
    let mut is_sought = false;
    loop {
        let mut record = ctx.record.lock();
        let is_over = !still(&record) || !record.has_time();
        let found = if is_over { None } else { fetch(&mut record) };
        // While somebody looks for it, it is not lent anew: two threads that call each other all the time cannot keep it from us.
        if is_over || found.is_some() {
            record.sought -= u32::from(is_sought);
            return found.map(|time| (record, time));
        }
        record.sought += u32::from(!is_sought);
        is_sought = true;
        drop(record);
        cpu::pause();
        tlb::poll();
    }
}

/// The box, unless it is on its way.
fn fetch(record: &mut Record) -> Option<Box<Context>> {
    if let Some(time) = record.kept.take() {
        return Some(time);
    }
    let thread = thread::get(record.holder.tid)?;
    let mut wait = thread.wait.lock();
    if thread.is(&record.holder)
        && let Some(parked) = &mut wait.parked
        && parked.context().is_some_and(|context| context.identity().id == record.id)
    {
        tracing::unbound(percpu::this(), parked.id(), false, time::now_ns());
        return parked.unbind();
    }
    drop(wait);
    let taken = sched::take_context(record.cpu, thread);
    if let Some(time) = &taken {
        debug_assert_eq!(time.identity().id, record.id, "I-C2: {:?} has another context", record.holder);
    }
    taken
}

/// Looks at the box, wherever it is.
fn look<R>(ctx: &'static Ctx, id: u64, see: impl Fn(&Record, Option<&ContextInfo>) -> R) -> R {
    sched::settle_handoff();
    loop {
        let record = ctx.record.lock();
        if record.id != id || !record.has_time() {
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
    if let Some(time) = &record.kept {
        return Some(time.info(now));
    }
    let thread = thread::get(record.holder.tid)?;
    let wait = thread.wait.lock();
    if thread.is(&record.holder)
        && let Some(parked) = &wait.parked
        && let Some(context) = parked.context()
        && context.identity().id == record.id
    {
        return Some(context.info(now));
    }
    drop(wait);
    sched::context_info(record.cpu, thread)
}

/// Gives the box to thread `to`, which had it before or is bound to it: at once if it waits or is queued, otherwise when it next leaves the
/// kernel. Says whether it must be woken: it was stopped for want of a context.
#[must_use]
fn give(record: &mut Record, time: Box<Context>, to: ThreadRef) -> bool {
    record.holder = to;
    let Some(thread) = thread::get(to.tid) else {
        record.kept = Some(time);
        return false;
    };
    let mut wait = thread.wait.lock();
    if thread.is(&to)
        && let Some(parked) = &mut wait.parked
    {
        match parked.bind(time) {
            Ok(before) => {
                debug_assert!(before.is_none(), "I-C5: a thread with two contexts");
                thread.marks.fetch_and(!(mark::STOPS | mark::STAYS), Ordering::AcqRel);
                let (me, now) = (percpu::this(), time::now_ns());
                if let Some(context) = parked.context() {
                    tracing::bound(me, parked.id(), context, now);
                }
                if record.owner == to && parked.is_context_only() != record.context_only {
                    tracing::depends(me, parked.id(), record.context_only, now);
                    parked.set_context_only(record.context_only);
                }
                return thread.stopped.swap(false, Ordering::AcqRel);
            }
            // Its mask has changed since; it will be told when it fetches it.
            Err(back) => {
                drop(wait);
                record.kept = Some(back);
                return false;
            }
        }
    }
    drop(wait);
    thread.marks.fetch_and(!(mark::STOPS | mark::STAYS), Ordering::AcqRel);
    let is_own = record.owner == to;
    match sched::bind_queued(thread, time, is_own.then_some(record.context_only)) {
        Ok(()) => return false,
        Err(NotBound::NotQueued(time)) => record.kept = Some(time),
        Err(NotBound::Elsewhere(time)) => {
            record.kept = Some(time);
            if is_own {
                // It has chosen other CPUs: it goes on without.
                thread.set_context(None, false);
                record.owner = ThreadRef::NONE;
                record.holder = ThreadRef::NONE;
                return false;
            }
        }
    }
    let without = match record.context_only {
        _ if record.owner != to => 0,
        true => mark::STOPS,
        false => mark::STAYS,
    };
    thread.marks.fetch_or(mark::SUMMONS | without, Ordering::AcqRel);
    if !core::ptr::eq(percpu::this().current.get(), thread) {
        crate::arch::smp::kick(thread.cpu.load(Ordering::Relaxed) as usize);
    }
    false
}

/// The current thread is about to leave the kernel: it waits until its context is back, and fetches one that is promised to it.
#[cold]
pub fn see_to(thread: &'static Thread) {
    while thread.marks.load(Ordering::Acquire) != 0 && !thread.body().process.is_ending() {
        if thread.marks.load(Ordering::Acquire) & mark::LENT != 0 {
            sched::block();
        } else {
            answer_summons(thread);
        }
        sched::attend();
    }
}

/// The current thread, on its way out of the kernel, fetches what is promised to it.
pub fn fetch_promised(thread: &'static Thread) {
    // One that has lent its context waits for it first: see `see_to`.
    let is_summoned = thread.marks.load(Ordering::Acquire) == mark::SUMMONS;
    if is_summoned && !thread.body().process.is_ending() {
        answer_summons(thread);
    }
}

fn answer_summons(thread: &'static Thread) {
    const ALL: u8 = mark::SUMMONS | mark::STOPS | mark::STAYS;
    let marks = thread.marks.fetch_and(!ALL, Ordering::AcqRel);
    let promised = thread.context().and_then(|ctx| {
        let mut record = ctx.record.lock();
        let time = if record.holder == thread.reference() { record.kept.take() } else { None };
        time.map(|time| (ctx, record, time))
    });
    let Some((ctx, record, time)) = promised else {
        // Taken back before it was fetched: what it was bound to lasts.
        if marks & (mark::STOPS | mark::STAYS) != 0 {
            sched::depend(marks & mark::STOPS != 0);
        }
        return;
    };
    let is_here = record.cpu == percpu::this().id;
    let context_only = (record.owner == thread.reference()).then_some(record.context_only);
    // From here on the box is on its way.
    drop(record);
    let refused = sched::bind_current(time, is_here, context_only);
    if let Err(time) = refused {
        // It has chosen other CPUs since the context was promised: it goes on without.
        let who = thread.reference();
        ctx.record.lock().kept = Some(time);
        loan::leave(ctx, &who);
        let mut record = ctx.record.lock();
        if record.owner == who {
            thread.set_context(None, false);
            record.owner = ThreadRef::NONE;
            record.holder = ThreadRef::NONE;
        }
    }
}

/// Gives the promise of a CPU back.
fn retire(time: Box<Context>) {
    let time = sched::send_home(time);
    let home = time.home().index();
    let Some(home) = percpu::get(home) else { return };
    let mut queue = home.sched.queue.lock();
    tracing::promised(home, &time, Promise::Retire, time::now_ns());
    let left = queue.retire(time);
    drop(queue);
    debug_assert!(left.is_ok(), "a context is retired at home");
    drop(left);
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
            if !which(&record) || record.id == 0 || record.revoked {
                return false;
            }
            debug_assert!(record.is_root, "a live context has time");
            (record, None)
        }
    };
    loan::end_from(ctx, &mut record, 0, &mut woken);
    if let Some(owner) = thread::get(record.owner.tid).filter(|owner| owner.is(&record.owner)) {
        owner.set_context(None, false);
    }
    record.owner = ThreadRef::NONE;
    record.holder = ThreadRef::NONE;
    record.generation += 1;
    record.revoked = true;
    notify::revoked(ctx, &record);
    drop(record);
    if let Some(time) = time {
        retire(time);
    }
    woken.wake();
    notify::tell(ctx);
    true
}

/// A thread ends: what it had bound is stale, what it had on loan goes back.
pub fn thread_ends(thread: &'static Thread) {
    let who = thread.reference();
    // Its own after a loan: it can have had one or the other.
    while let Some(ctx) = thread.context() {
        if end(ctx, |record| record.owner == who) {
            free_if_over(ctx, ctx.record.lock());
        } else {
            loan::leave(ctx, &who);
        }
    }
    debug_assert!(thread.lent.load(Ordering::Relaxed) == 0, "I-C4: a thread ends that has lent");
    thread.marks.fetch_and(!mark::SUMMONS, Ordering::AcqRel);
}

/// A thread is to end soon: it must not have to wait for budget. What it runs on is taken from it.
pub fn strip(who: &ThreadRef) {
    let Some(thread) = thread::get(who.tid).filter(|thread| thread.is(who)) else { return };
    if let Some(ctx) = thread.context() {
        loan::leave(ctx, who);
        if let Some((mut record, time)) = seize(ctx, |record| record.holder == *who) {
            // Its own: idle until the thread has ended, which makes it stale.
            record.kept = Some(time);
            record.holder = ThreadRef::NONE;
        }
    }
    let mut wait = thread.wait.lock();
    if !thread.is(who) {
        return;
    }
    thread.marks.fetch_or(mark::ENDS, Ordering::AcqRel);
    if let Some(parked) = &mut wait.parked {
        sched::free(parked);
    }
    drop(wait);
    thread.stopped.store(false, Ordering::Release);
}

/// Lets a stopped thread go on, if it can: it has a context, or is to end.
pub fn unstop(thread: &'static Thread) {
    let who = thread.reference();
    if let Some(ctx) = thread.context() {
        let mut record = ctx.record.lock();
        if record.holder == who
            && let Some(time) = record.kept.take()
        {
            // It waits, so it is bound at once; whether it was stopped is asked below.
            if give(&mut record, time, who) {
                thread.stopped.store(true, Ordering::Release);
            }
        }
    }
    if thread.stopped.swap(false, Ordering::AcqRel) {
        sched::wake(&who, false);
    }
}

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
    while let Some(ctx) = at(index) {
        index += 1;
        let (id, is_its, is_lent_to_it) = {
            let record = ctx.record.lock();
            if !record.has_time() && !record.is_root {
                continue;
            }
            let made = record.session.as_ref().is_some_and(|made| Arc::ptr_eq(made, session));
            let owner = record.owner;
            let is_its =
                if owner == ThreadRef::NONE { made && !record.is_root } else { works_for(&owner, session) };
            (record.id, is_its, record.depth > 0 && works_for(&record.holder, session))
        };
        if is_its {
            done.stale_marked += u32::from(end(ctx, |record| record.id == id));
        } else if is_lent_to_it {
            done.donation_inflight_skipped += 1;
        }
    }
    done
}

fn works_for(who: &ThreadRef, session: &Arc<Session>) -> bool {
    process_of(who).is_some_and(|process| Arc::ptr_eq(&process.session, session))
}

/// The process of a thread, if that is still there.
fn process_of(who: &ThreadRef) -> Option<Arc<Process>> {
    crate::ring::process_of_thread(who)
}

// ---- templates ------------------------------------------------------------------------------------------------------------

/// A context that was just made becomes that of a thread that was, too, and has not run yet.
pub fn furnish(ctx: &'static Ctx, runnable: &mut ::sched::Runnable<()>) {
    let mut record = ctx.record.lock();
    let thread = thread::get(runnable.id().0 as u32);
    // Nobody else knows of either, and a new thread may run anywhere.
    let (Some(thread), Some(time)) = (thread, record.kept.take()) else { unreachable!("both are new") };
    let who = thread.reference();
    record.owner = who;
    record.holder = who;
    thread.set_context(Some(ctx), false);
    let bound = runnable.bind(time);
    debug_assert!(bound.is_ok(), "a new thread has a mask");
}

/// A context that was just made is not needed after all.
pub fn abandon(ctx: &'static Ctx) {
    end(ctx, |record| record.is_idle());
    free_if_over(ctx, ctx.record.lock());
}
