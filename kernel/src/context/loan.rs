//! Loans: a context moves along a call to a server that waits, and back with the answer (S-06, S-07).
//!
//! What may be lent to whom and what an end means is in the record's book (`kcore::loans`); here is how the box moves. The usual call and
//! the usual answer are quick: the record names the next holder, the woken thread goes to the CPU's handoff place, and
//! the core moves the box when the current thread waits (`dispatch::hand_over_lending`, `Cpu::block_lending`). Everything else takes the box
//! from wherever it is and gives it back (`settle_slowly`).

use super::{Ctx, Record, give, leaving, seize};
use crate::dispatch;
use crate::dispatch::percpu;
use crate::lock::Guard;
use crate::ring::{self, Waiter};
use crate::session::Stake;
use crate::thread::{self, SchedRef, Thread, Wait};
use crate::time;
use crate::tracing;
use ::sched::{Blocked, Context, CpuId, CpuMask, Runnable};
use abi::{MAX_LOAN_DEPTH, TransportError};
use alloc::boxed::Box;
use kcore::generation::ThreadRef;
use kcore::life::Event;
use kcore::loans::Refused;

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
            dispatch::wake(who, false);
        });
    }
}

/// Whether the current thread's call to `server` would lend, or why it must not be made. The call lends at last only if the server still
/// waits when it is woken.
pub fn judge(lender: &'static Thread, server: &ThreadRef) -> Result<bool, TransportError> {
    let Some(ctx) = Ctx::of(lender) else { return Ok(false) };
    let mut record = ctx.record.lock();
    let Some(thread) = thread::get(server.tid) else { return Ok(false) };
    let offer = record.book.offer(lender.reference(), *server, thread.context().is_some());
    match offer {
        // Too deep it is for a server that waits only.
        Ok(()) | Err(Refused::TooDeep) => {}
        Err(Refused::Cycle) => return Err(TransportError::LoanCycle),
        Err(_) => return Ok(false),
    }
    let wait = thread.wait.lock();
    let may_take = thread.life().after(Event::Take).is_ok();
    let Some(parked) = &wait.parked else { return Ok(false) };
    if !may_take || !thread.is(server) {
        return Ok(false);
    }
    if offer.is_err() {
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
    if record.book.hosted_from().is_some() {
        return false;
    }
    let me = percpu::this();
    let now = time::now_ns();
    let mut queue = me.dispatch.queue.lock();
    let Some((mut time, effect)) = queue.unbind_current(now) else { return false };
    if let Some(current) = queue.current() {
        tracing::unbound(me, current, false, now);
    }
    drop(queue);
    record.book.seized();
    dispatch::obey(effect, now);
    // Two CPUs promise it meanwhile, and its session pays for both.
    let stake = record.session.as_ref().and_then(|session| Stake::take(session, time.spec()).ok());
    let Some(stake) = stake else {
        restore(record, time);
        return false;
    };
    let mut pieces = dispatch::HOST_PIECES;
    for cpu in time.spec().cpu_mask.and(theirs).and(&CpuMask::first_n(percpu::count())).iter() {
        let Some(host) = percpu::get(cpu.index()).filter(|host| host.id != record.cpu) else { continue };
        match dispatch::host(host.id, time, &mut pieces) {
            Ok(guest) => {
                record.cpu = host.id;
                record.hosted = Some(stake);
                record.book.host(guest);
                return true;
            }
            Err((_, back)) => time = back,
        }
    }
    restore(record, time);
    false
}

/// The current thread has its context, which is in hand, back.
fn restore(record: &mut Record, time: Box<Context>) {
    let time = leaving::send_home(time, record.hosted.take());
    record.cpu = time.home().index();
    record.book.go_home();
    match dispatch::bind_current(time, true, None) {
        Ok(()) => record.book.given(),
        // It has not moved since, so this cannot be; but what is in the record is not lost.
        Err(time) => record.book.put(time),
    }
}

/// The completion of its RECV wakes `server`: the current thread lends it its context along `call`. Says whether it did; then the server
/// is in the handoff place, and the lender must wait.
#[inline]
pub fn lend(lender: &'static Thread, call: &Waiter, server: &'static Thread, who: &ThreadRef) -> bool {
    let Some(ctx) = Ctx::of(lender) else { return false };
    let mut record = ctx.record.lock();
    let guest = record.book.guest(call.thread);
    if record.book.may_lend(call.thread).is_err() {
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
        server.set_context(ctx.head(), true);
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
    dispatch::hand_over_lending(blocked.wake_to_borrow());
    true
}

/// The current thread has made a call, and lent nothing: what was found a host meanwhile comes home.
#[cold]
pub fn cancel_hosting(lender: &'static Thread) {
    let Some(ctx) = Ctx::of(lender) else { return };
    let mut record = ctx.record.lock();
    let guest = record.book.guest(lender.reference());
    keep(&mut record, guest);
}

/// A loan did not come about: what was found a host goes home.
fn keep(record: &mut Record, guest: Option<Box<Context>>) {
    if let Some(guest) = guest {
        restore(record, guest);
    }
}

/// The server runs on its loan where that is a guest.
#[cold]
fn visit(mut record: Guard<'_, Record>, mut blocked: Blocked<SchedRef>, guest: Box<Context>) -> bool {
    if blocked.bind(guest).is_err() {
        unreachable!("its mask was asked when it was taken, and it is in our hands since");
    }
    record.book.given();
    if let Some(context) = blocked.context() {
        tracing::bound(percpu::this(), blocked.id(), context, time::now_ns());
    }
    // The record last: who looks for the box finds it in a queue.
    dispatch::run(blocked.wake_to_borrow());
    drop(record);
    true
}

/// Takes a thread that waits, to run on CPU `cpu` on what is handed to it.
#[inline(always)]
fn take(thread: &Thread, wait: &mut Wait, cpu: CpuId) -> Option<Blocked<SchedRef>> {
    if !wait.parked.as_ref().is_some_and(|blocked| blocked.could_run_on(cpu)) {
        return None;
    }
    thread.turn(wait, Event::Take).ok()?;
    wait.parked.take()
}

#[inline]
fn push(record: &mut Record, call: &Waiter, lender: &Thread, lender_wait: &mut Wait, who: &ThreadRef) {
    let depth = record.book.lend(call.thread, call.ticket(), *who);
    lender.set_lent(lender_wait, call.ticket());
    let counters = &percpu::this().counters;
    counters.loans.bump();
    counters.loan_depth_max.raise(depth as u64);
}

/// The current thread has received a call that waited in the queue: if its caller waits, its context is lent now.
pub fn borrow(server: &'static Thread, call: &Waiter) {
    let Some(lender) = thread::get(call.thread.tid) else { return };
    let Some(ctx) = Ctx::of(lender) else { return };
    let mut record = ctx.record.lock();
    if record.book.may_lend(call.thread).is_err()
        || !dispatch::current_may_run_on(record.cpu)
        || ring::receives(server)
        || !server.claim(ctx.head(), true)
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
        record.book.seized();
        push(&mut record, call, lender, &mut wait, &server.reference());
        Some(time)
    });
    let Some(time) = time.flatten() else { return server.set_context(core::ptr::null(), false) };
    // It fetches it before it returns to user mode.
    record.book.put(time);
    // Refused only if it is to end, which finds the box in the record.
    let _ = server.turn(&mut server.wait.lock(), Event::RequestBind(None));
}

/// The call `call` of `lender` is about to complete: its loan, if there is one, comes back. The lender itself is handed out if it goes to the
/// handoff place with the context of the current thread, which is about to wait.
pub fn settle(lender: &'static Thread, call: &Waiter, direct: bool) -> Option<Runnable<SchedRef>> {
    let ctx = Ctx::of(lender)?;
    if direct && let Some(runnable) = settle_quickly(ctx, lender, call) {
        return Some(runnable);
    }
    settle_slowly(ctx, call);
    None
}

#[inline]
fn settle_quickly(ctx: &'static Ctx, lender: &'static Thread, call: &Waiter) -> Option<Runnable<SchedRef>> {
    let me = percpu::this();
    let mut record = ctx.record.lock();
    record.book.may_return(call.thread, call.ticket()).ok()?;
    let server = thread::current_or_none()?;
    if record.cpu != me.id || !server.is(record.book.holder()) {
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
    record.book.hand_back();
    server.set_context(core::ptr::null(), false);
    drop(record);
    Some(blocked.wake_to_borrow())
}

/// As [`settle`], wherever everybody is. Loans further along the chain end with it.
pub fn settle_slowly(ctx: &'static Ctx, call: &Waiter) {
    let find = |record: &Record| record.book.loan_along(call.thread, call.ticket());
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}

/// Ends the loans from `at` on, and gives the box to the lender of the first of them.
fn back(ctx: &'static Ctx, mut record: Guard<'_, Record>, time: Box<Context>, at: usize) {
    let mut woken = Woken::NONE;
    let mut time = time;
    if record.book.ends_visit(at) {
        time = leaving::send_home(time, record.hosted.take());
        record.cpu = time.home().index();
    }
    end_from(ctx, &mut record, at, &mut woken);
    record.book.put(time);
    let lender = *record.book.holder();
    if give(&mut record, lender) {
        woken.add(lender);
    }
    drop(record);
    woken.wake();
}

/// Ends the loans from `at` on; the box is in hand. Nobody borrows and nobody waits for a loan any more. The lenders are to be woken: all but
/// the first may go on before their calls are answered. (The first one's call is about to complete, or it waits for the loan only.)
pub fn end_from(ctx: &'static Ctx, record: &mut Record, at: usize, woken: &mut Woken) {
    let ended = match record.book.end_loans(at) {
        Ok(ended) => ended,
        Err(refused) => unreachable!("a loan ends with the box in hand: {refused:?}"),
    };
    // The last one first: a thread that ends looks without a lock whether it has a context, and is gone when it has none; what it lent must be
    // over by then.
    for loan in ended.iter().rev() {
        if let Some(borrower) = thread::get(loan.borrower.tid).filter(|thread| thread.is(&loan.borrower)) {
            debug_assert!(core::ptr::eq(borrower.context_record(), ctx.head()), "I-C5");
            borrower.set_context(core::ptr::null(), false);
        }
        if let Some(thread) = thread::get(loan.lender.tid).filter(|thread| thread.is(&loan.lender)) {
            thread.set_lent(&mut thread.wait.lock(), 0);
        }
        woken.add(loan.lender);
    }
}

/// The bug `exception-keeps-loan`: the loan is over, and the box stays where it is.
pub fn forget(lender: &'static Thread) {
    if let Some(ctx) = Ctx::of(lender) {
        let mut woken = Woken::NONE;
        end_from(ctx, &mut ctx.record.lock(), 0, &mut woken);
    }
}

/// `who` has it on loan and gives it back before it has answered, if so: its lender may go on, and the call does, too.
pub fn leave(ctx: &'static Ctx, who: &ThreadRef) {
    let find = |record: &Record| record.book.loan_to(*who);
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}
