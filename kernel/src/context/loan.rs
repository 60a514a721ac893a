//! Loans: a context moves along a call to a server that waits, and back with the answer (S-06, S-07).
//!
//! The usual call and the usual answer are quick: the record names the next holder, the woken thread goes to the CPU's handoff place, and
//! the core moves the box when the current thread waits (`sched::hand_over_lending`, `Cpu::block_lending`). Everything else takes the box
//! from wherever it is and gives it back (`settle_slowly`).

use super::{Ctx, Record, give, seize};
use crate::arch::percpu;
use crate::lock::Guard;
use crate::ring::{self, Waiter};
use crate::sched;
use crate::thread::{self, Seat, Thread, Wait};
use crate::time;
use crate::tracing;
use ::sched::{Blocked, Context, CpuId, CpuMask, Runnable};
use abi::{MAX_LOAN_DEPTH, TransportError};
use alloc::boxed::Box;
use kcore::generation::ThreadRef;
use kcore::life::Event;

/// One step of the chain.
#[derive(Clone, Copy)]
pub struct Loan {
    /// Who waits for the answer, and which of its operations that is.
    pub lender: Waiter,
    /// Who answers.
    pub borrower: ThreadRef,
}

impl Loan {
    /// None.
    pub const NONE: Loan =
        Loan { lender: Waiter { thread: ThreadRef::NONE, op: 0, sequence: 0 }, borrower: ThreadRef::NONE };

    fn is_of(&self, call: &Waiter) -> bool {
        self.lender.thread == call.thread
            && self.lender.op == call.op
            && self.lender.sequence == call.sequence
    }
}

/// What `Thread::lent` says while operation `call` is lent along: never 0.
pub fn ticket(call: &Waiter) -> u64 {
    1 << 63 | u64::from(call.op) << 32 | u64::from(call.sequence)
}

/// Threads to be woken when no lock is held any more.
pub struct Woken {
    who: [ThreadRef; MAX_LOAN_DEPTH + 1],
    count: usize,
}

impl Woken {
    /// Nobody.
    pub const NONE: Woken = Woken { who: [ThreadRef::NONE; MAX_LOAN_DEPTH + 1], count: 0 };

    fn add(&mut self, who: ThreadRef) {
        self.who[self.count] = who;
        self.count += 1;
    }

    /// They look again at what they wait for.
    pub fn wake(self) {
        self.who[..self.count].iter().for_each(|who| {
            sched::wake(who, false);
        });
    }
}

/// Whether the current thread's call to `server` would lend, or why it must not be made. The call lends at last only if the server still
/// waits when it is woken.
pub fn judge(lender: &'static Thread, server: &ThreadRef) -> Result<bool, TransportError> {
    let Some(ctx) = lender.context() else { return Ok(false) };
    let mut record = ctx.record.lock();
    // What was promised is not here yet; what is lent already does not lend.
    if record.holder != lender.reference() || record.kept.is_some() {
        return Ok(false);
    }
    let Some(thread) = thread::get(server.tid) else { return Ok(false) };
    if thread.context().is_some() {
        let is_in_chain = record.loans[..record.depth].iter().any(|loan| loan.lender.thread == *server);
        return if is_in_chain { Err(TransportError::LoanCycle) } else { Ok(false) };
    }
    let wait = thread.wait.lock();
    let may_take = thread.life().after(Event::Take).is_ok();
    let Some(parked) = &wait.parked else { return Ok(false) };
    if !may_take || !thread.is(server) {
        return Ok(false);
    }
    if record.depth == MAX_LOAN_DEPTH {
        return Err(TransportError::LoanTooDeep);
    }
    if CpuId::new(record.cpu).is_some_and(|cpu| parked.could_run_on(cpu)) {
        return Ok(true);
    }
    let theirs = parked.mask();
    drop(wait);
    if find_host(&mut record, &theirs) { Ok(true) } else { Err(TransportError::NoCommonCpu) }
}

/// The server may not run where the context does: another CPU that both may use takes it in, if one has the time. Then the box is in the
/// record, until the server has it or the lender has it back.
#[cold]
fn find_host(record: &mut Record, theirs: &CpuMask) -> bool {
    if record.hosted_from.is_some() {
        return false;
    }
    let me = percpu::this();
    let now = time::now_ns();
    let mut queue = me.sched.queue.lock();
    let Some((mut time, effect)) = queue.unbind_current(now) else { return false };
    if let Some(current) = queue.current() {
        tracing::unbound(me, current, false, now);
    }
    drop(queue);
    sched::obey(effect, now);
    let mut pieces = sched::HOST_PIECES;
    for cpu in time.spec().cpu_mask.and(theirs).and(&CpuMask::first_n(percpu::count())).iter() {
        let Some(host) = percpu::get(cpu.index()).filter(|host| host.id != record.cpu) else { continue };
        match sched::host(host.id, time, &mut pieces) {
            Ok(guest) => {
                record.cpu = host.id;
                record.hosted_from = Some(record.depth);
                record.kept = Some(guest);
                return true;
            }
            Err((_, back)) => time = back,
        }
    }
    restore(record, time);
    false
}

/// The current thread has its context back.
fn restore(record: &mut Record, time: Box<Context>) {
    let time = sched::send_home(time);
    record.cpu = time.home().index();
    record.hosted_from = None;
    if let Err(time) = sched::bind_current(time, true, None) {
        // It has not moved since, so this cannot be; but what is in the record is not lost.
        record.kept = Some(time);
    }
}

/// The completion of its RECV wakes `server`: the current thread lends it its context along `call`. Says whether it did; then the server
/// is in the handoff place, and the lender must wait.
#[inline]
pub fn lend(lender: &'static Thread, call: &Waiter, server: &'static Thread, who: &ThreadRef) -> bool {
    let Some(ctx) = lender.context() else { return false };
    let mut record = ctx.record.lock();
    let depth = record.depth;
    // Only a guest: what else is in the record is promised, or was taken from a thread that is to end.
    let is_guest = record.holder == call.thread && record.hosted_from == Some(depth);
    let guest = if is_guest { record.kept.take() } else { None };
    if record.holder != call.thread || record.kept.is_some() || depth == MAX_LOAN_DEPTH || record.sought > 0 {
        keep(&mut record, guest);
        return false;
    }
    let Some(cpu) = CpuId::new(record.cpu) else { return false };
    // A call that is over already (the endpoint has closed, another thread has answered) brings nothing back.
    let taken = ring::while_pending(lender, call, || {
        let mut wait = server.wait.lock();
        if !server.is(who) || server.context().is_some() {
            return None;
        }
        let blocked = take(server, &mut wait, cpu)?;
        debug_assert!(
            blocked.context().is_none(),
            "I-C5: a server has {:?}",
            blocked.context().map(|c| c.identity())
        );
        // Under its wait lock: nobody else gives it another one meanwhile.
        server.set_context(Some(ctx), true);
        drop(wait);
        push(&mut record, call, lender, &mut lender.wait.lock(), who);
        Some(blocked)
    });
    let Some(blocked) = taken.flatten() else {
        keep(&mut record, guest);
        return false;
    };
    if let Some(guest) = guest {
        return visit(record, blocked, guest);
    }
    drop(record);
    sched::hand_over_lending(blocked.wake_to_borrow());
    true
}

/// The current thread has made a call, and lent nothing: what was found a host meanwhile comes home.
#[cold]
pub fn regret(lender: &'static Thread) {
    let Some(ctx) = lender.context() else { return };
    let mut record = ctx.record.lock();
    if record.holder == lender.reference() && record.hosted_from == Some(record.depth) {
        let guest = record.kept.take();
        keep(&mut record, guest);
    }
}

/// A loan did not come about: what was found a host goes home.
fn keep(record: &mut Record, guest: Option<Box<Context>>) {
    if let Some(guest) = guest {
        restore(record, guest);
    }
}

/// The server runs on its loan where that is a guest.
#[cold]
fn visit(record: Guard<'_, Record>, mut blocked: Blocked<Seat>, guest: Box<Context>) -> bool {
    if blocked.bind(guest).is_err() {
        unreachable!("its mask was asked when it was taken, and it is in our hands since");
    }
    if let Some(context) = blocked.context() {
        tracing::bound(percpu::this(), blocked.id(), context, time::now_ns());
    }
    // The record last: who looks for the box finds it in a queue.
    sched::run(blocked.wake_to_borrow());
    drop(record);
    true
}

/// Takes a thread that waits, to run on CPU `cpu` on what is handed to it.
#[inline(always)]
fn take(thread: &Thread, wait: &mut Wait, cpu: CpuId) -> Option<Blocked<Seat>> {
    if !wait.parked.as_ref().is_some_and(|blocked| blocked.could_run_on(cpu)) {
        return None;
    }
    thread.turn(wait, Event::Take).ok()?;
    wait.parked.take()
}

#[inline]
fn push(record: &mut Record, call: &Waiter, lender: &Thread, lender_wait: &mut Wait, who: &ThreadRef) {
    record.loans[record.depth] = Loan { lender: *call, borrower: *who };
    record.depth += 1;
    record.holder = *who;
    lender.set_lent(lender_wait, ticket(call));
    let counters = &percpu::this().counters;
    counters.loans.bump();
    counters.loan_depth_max.raise(record.depth as u64);
}

/// The current thread has received a call that waited in the queue: if its caller waits, its context is lent now.
pub fn borrow(server: &'static Thread, call: &Waiter) {
    let Some(lender) = thread::get(call.thread.tid) else { return };
    let Some(ctx) = lender.context() else { return };
    let mut record = ctx.record.lock();
    let may_lend = record.holder == call.thread && record.depth < MAX_LOAN_DEPTH && record.sought == 0;
    if !may_lend
        || !sched::current_may_run_on(record.cpu)
        || ring::receives(server)
        || !server.claim(ctx, true)
    {
        return;
    }
    let time = ring::while_pending(lender, call, || {
        let mut wait = lender.wait.lock();
        let parked = wait.parked.as_mut().filter(|_| lender.is(&call.thread));
        let time = parked.and_then(|parked| {
            tracing::unbound(percpu::this(), parked.id(), false, time::now_ns());
            parked.unbind()
        })?;
        push(&mut record, call, lender, &mut wait, &server.reference());
        Some(time)
    });
    let Some(time) = time.flatten() else { return server.set_context(None, false) };
    // It fetches it before it returns to user mode.
    record.kept = Some(time);
    // Refused only if it is to end, which finds the box in the record.
    let _ = server.turn(&mut server.wait.lock(), Event::Summon(None));
}

/// The call `call` of `lender` is about to complete: its loan, if there is one, comes back. The lender itself is handed out if it goes to the
/// handoff place with the context of the current thread, which is about to wait.
pub fn settle(lender: &'static Thread, call: &Waiter, direct: bool) -> Option<Runnable<Seat>> {
    let ctx = lender.context()?;
    if direct && let Some(runnable) = settle_quickly(ctx, lender, call) {
        return Some(runnable);
    }
    settle_slowly(ctx, call);
    None
}

#[inline]
fn settle_quickly(ctx: &'static Ctx, lender: &'static Thread, call: &Waiter) -> Option<Runnable<Seat>> {
    let me = percpu::this();
    let mut record = ctx.record.lock();
    let top = record.depth.checked_sub(1)?;
    let server = thread::current_or_none()?;
    let is_here = record.kept.is_none() && record.cpu == me.id && server.is(&record.holder);
    if !record.loans[top].is_of(call) || !is_here || record.sought > 0 || record.hosted_from == Some(top) {
        return None;
    }
    let mut wait = lender.wait.lock();
    if !lender.is(&call.thread) {
        return None;
    }
    let cpu = CpuId::new(me.id)?;
    let blocked = take(lender, &mut wait, cpu)?;
    debug_assert!(
        blocked.context().is_none(),
        "I-C5: a lender has {:?}",
        blocked.context().map(|c| c.identity())
    );
    lender.set_lent(&mut wait, 0);
    drop(wait);
    record.depth = top;
    record.holder = call.thread;
    server.set_context(None, false);
    drop(record);
    Some(blocked.wake_to_borrow())
}

/// As [`settle`], wherever everybody is. Loans further along the chain end with it.
pub fn settle_slowly(ctx: &'static Ctx, call: &Waiter) {
    let find = |record: &Record| record.loans[..record.depth].iter().position(|loan| loan.is_of(call));
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}

/// Ends the loans from `at` on, and gives the box to the lender of the first of them.
fn back(ctx: &'static Ctx, mut record: Guard<'_, Record>, time: Box<Context>, at: usize) {
    let mut woken = Woken::NONE;
    let lender = record.loans[at].lender.thread;
    let mut time = time;
    if record.hosted_from.is_some_and(|from| at <= from) {
        time = sched::send_home(time);
        record.cpu = time.home().index();
        record.hosted_from = None;
    }
    end_from(ctx, &mut record, at, &mut woken);
    if give(&mut record, time, lender) {
        woken.add(lender);
    }
    drop(record);
    woken.wake();
}

/// Ends the loans from `at` on, without regard to the box: nobody borrows and nobody waits for a loan any more. The lenders of all but the
/// first are to be woken: they may go on before their calls are answered. (The first one's call is about to complete, or it is woken, too.)
pub fn end_from(ctx: &'static Ctx, record: &mut Record, at: usize, woken: &mut Woken) {
    // The last one first: who lent on what it had borrowed has it back before it has nothing. A thread that ends looks without a lock whether it
    // has a context, and is gone when it has none; what it lent must be over by then.
    for loan in record.loans[at..record.depth].iter().rev() {
        if let Some(borrower) = thread::get(loan.borrower.tid).filter(|thread| thread.is(&loan.borrower)) {
            debug_assert!(borrower.context().is_some_and(|its| core::ptr::eq(its, ctx)), "I-C5");
            borrower.set_context(None, false);
        }
        let lender = &loan.lender.thread;
        if let Some(thread) = thread::get(lender.tid).filter(|thread| thread.is(lender)) {
            thread.set_lent(&mut thread.wait.lock(), 0);
        }
        woken.add(*lender);
    }
    record.depth = at;
}

/// The bug of `planted-exception-keeps-loan`: the loan is over, and the box stays where it is.
#[cfg(feature = "planted-exception-keeps-loan")]
pub fn forget(lender: &'static Thread) {
    if let Some(ctx) = lender.context() {
        end_from(ctx, &mut ctx.record.lock(), 0, &mut Woken::NONE);
    }
}

/// `who` has it on loan and gives it back before it has answered, if so: its lender may go on, and the call does, too.
pub fn leave(ctx: &'static Ctx, who: &ThreadRef) {
    let find = |record: &Record| record.loans[..record.depth].iter().position(|loan| loan.borrower == *who);
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}
