//! Loans: a context moves along a call to a server that waits, and back with the answer (S-06, S-07).
//!
//! The record's book (`kcore::loans`) decides what may be lent to whom and what the end of a loan means; this file moves the `Context`. The usual
//! call and the usual answer are quick: the record names the next holder, the woken thread goes to the CPU's handoff place, and the core moves the
//! `Context` when the current thread blocks (`dispatch::hand_over_lending`, `Cpu::block_lending`). Every other case takes the `Context` from
//! wherever it is and gives it back (`settle_slowly`).

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

/// Threads to wake as soon as no lock is held any more.
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

    /// Wakes them: they look again at what they wait for.
    pub fn wake(self) {
        self.who[..self.count].iter().for_each(|who| {
            dispatch::wake(who, false);
        });
    }
}

/// Whether the current thread's call to `server` would lend its context, or why the call must not be made. In the end the call lends only if the
/// server is still blocked when it is woken.
pub fn judge(lender: &'static Thread, server: &ThreadRef) -> Result<bool, TransportError> {
    let Some(ctx) = Ctx::of(lender) else { return Ok(false) };
    let mut record = ctx.record.lock();
    let Some(thread) = thread::get(server.tid) else { return Ok(false) };
    let offer = record.book.offer(lender.reference(), *server, thread.context().is_some());
    match offer {
        // Too deep a chain matters only if the server is blocked: see below.
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

/// The server may not run on the CPU of the context: another CPU that both may use hosts the context, if it can promise the time. Then the
/// `Context` is in the record until the server gets it, or the lender gets it back.
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
    // Two CPUs promise the time meanwhile, and the session pays for both.
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

/// Gives the current thread its context back; `time` is in the caller's hands.
fn restore(record: &mut Record, time: Box<Context>) {
    let time = leaving::send_home(time, record.hosted.take());
    record.cpu = time.home().index();
    record.book.go_home();
    match dispatch::bind_current(time, true, None) {
        Ok(()) => record.book.given(),
        // The thread has not moved since, so this cannot happen; if it does, the record keeps the `Context`.
        Err(time) => record.book.put(time),
    }
}

/// `server` is woken by the completion of its RECV: the current thread lends it its context along `call`. Says whether it did; then the server is
/// in the handoff place, and the lender must block.
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
    // A call that is already over (the endpoint has closed, another thread has answered) would bring nothing back.
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
        // Under the server's wait lock, so that nobody gives it another context meanwhile.
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

/// The current thread has made a call and lent nothing: a context that was hosted for that call goes home.
#[cold]
pub fn cancel_hosting(lender: &'static Thread) {
    let Some(ctx) = Ctx::of(lender) else { return };
    let mut record = ctx.record.lock();
    let guest = record.book.guest(lender.reference());
    keep(&mut record, guest);
}

/// A loan did not come about: a context that was hosted for it goes home.
fn keep(record: &mut Record, guest: Option<Box<Context>>) {
    if let Some(guest) = guest {
        restore(record, guest);
    }
}

/// Starts the server on its loan, on the CPU that hosts the context.
#[cold]
fn visit(mut record: Guard<'_, Record>, mut blocked: Blocked<SchedRef>, guest: Box<Context>) -> bool {
    if blocked.bind(guest).is_err() {
        unreachable!("its mask was asked when it was taken, and it is in our hands since");
    }
    record.book.given();
    if let Some(context) = blocked.context() {
        tracing::bound(percpu::this(), blocked.id(), context, time::now_ns());
    }
    // The record is released last: whoever looks for the `Context` then finds it in a run queue.
    dispatch::run(blocked.wake_to_borrow());
    drop(record);
    true
}

/// Takes a blocked thread, so that it runs on CPU `cpu` with the context that is handed to it.
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

/// The current thread has received a call that waited in the queue: if the caller is blocked, its context is lent now.
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
    // The server fetches it before it returns to user mode.
    record.book.put(time);
    // Refused only if the server is to end; its end finds the `Context` in the record.
    let _ = server.turn(&mut server.wait.lock(), Event::RequestBind(None));
}

/// The call `call` of `lender` is about to complete: its loan, if there is one, comes back. Returns the lender itself if it is to go to the handoff
/// place, where it takes over the context of the current thread, which is about to block.
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

/// As [`settle`], wherever the threads and the `Context` are. Loans further along the chain end, too.
pub fn settle_slowly(ctx: &'static Ctx, call: &Waiter) {
    let find = |record: &Record| record.book.loan_along(call.thread, call.ticket());
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}

/// Ends the loans from `at` on, and gives the `Context` to the lender of the first of them.
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

/// Ends the loans from `at` on; the `Context` is in the caller's hands. Their borrowers have no context any more, and their lenders wait for no
/// loan. The lenders are to be woken: all but the first may go on before their calls are answered. (The first one's call is about to complete, or
/// that thread waits for the loan only.)
pub fn end_from(ctx: &'static Ctx, record: &mut Record, at: usize, woken: &mut Woken) {
    let ended = match record.book.end_loans(at) {
        Ok(ended) => ended,
        Err(refused) => unreachable!("a loan ends with the box in hand: {refused:?}"),
    };
    // The newest loan first: a thread that ends checks without a lock whether it has a context, and is gone as soon as it has none. By then what it
    // lent must be over.
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

/// The bug `exception-keeps-loan`: the loan is over, but the `Context` stays where it is.
pub fn forget(lender: &'static Thread) {
    if let Some(ctx) = Ctx::of(lender) {
        let mut woken = Woken::NONE;
        end_from(ctx, &mut ctx.record.lock(), 0, &mut woken);
    }
}

/// If `who` has the context on loan, it gives it back before it has answered: its lender may go on, and the call stays open.
pub fn leave(ctx: &'static Ctx, who: &ThreadRef) {
    let find = |record: &Record| record.book.loan_to(*who);
    let Some((record, time)) = seize(ctx, |record| find(record).is_some()) else { return };
    let Some(at) = find(&record) else { unreachable!("seized for it") };
    back(ctx, record, time, at);
}
