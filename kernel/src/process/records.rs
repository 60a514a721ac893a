//! Records of threads as a whole, and their table: this layer puts its own part behind that of threads, so it makes and ends them (K-05).

use super::Process;
use crate::deferred_work::DeferredWork;
use crate::dispatch::heads::{self, record};
use crate::lock::{Rank, SpinLock};
use crate::mm::frames::{self, Frame};
use crate::mm::paging;
use crate::mm::stacks::{OffStackToken, Stack};
use crate::object::ThreadExit;
use crate::thread::{self, MAX_THREADS, Owner, RECORD_BYTES, SchedRef, Thread};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use kcore::life::Event;

/// What a live thread has. Made and taken by the table's owner functions; used by the thread itself.
pub struct Body {
    /// Whose thread it is.
    pub process: Arc<Process>,
    /// Its kernel stack.
    pub stack: Stack,
    /// Its ring's frame and user address.
    pub ring_frame: Frame,
    /// See `ring_frame`.
    pub ring_address: u64,
    /// Who wants to know how it ends.
    pub exit: Arc<ThreadExit>,
    /// Entry, stack, argument: for its first steps.
    pub start: Start,
}

/// Where a thread begins in user mode.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// RIP.
    pub entry: u64,
    /// RSP.
    pub stack: u64,
    /// RDI.
    pub argument: u64,
}

/// A whole record.
#[repr(C)]
struct Record {
    thread: Thread,
    body: UnsafeCell<Option<Body>>,
    /// What dropped capabilities have left the thread to do.
    deferred: DeferredWork,
}

const _: () = {
    assert!(size_of::<Record>() <= RECORD_BYTES, "records overlap: make `RECORD_BYTES` larger");
    assert!(RECORD_BYTES - size_of::<Record>() < 128, "records have gaps: make `RECORD_BYTES` smaller");
    assert!(RECORD_BYTES.is_multiple_of(align_of::<Record>()));
};

impl Record {
    #[inline(always)]
    fn of(thread: &Thread) -> &Record {
        // SAFETY: every thread's record is made here, by `Table::grow`, as a whole one that begins with it, and is never unmapped.
        unsafe { &*core::ptr::from_ref(thread).cast() }
    }
}

/// What this layer keeps of a thread.
pub trait Owned {
    /// What it has. Only the running thread itself may ask, and who holds the lock of its ring while that is open.
    fn body(&self) -> &Body;
    /// What dropped capabilities have left it to do; for the thread itself.
    fn deferred(&self) -> &DeferredWork;
}

impl Owned for Thread {
    #[inline(always)]
    fn body(&self) -> &Body {
        // SAFETY: the body is put there before the thread has its generation and runs, and taken after it has closed the ring and ended.
        unsafe { (*Record::of(self).body.get()).as_ref() }.expect("a live thread")
    }

    #[inline(always)]
    fn deferred(&self) -> &DeferredWork {
        &Record::of(self).deferred
    }
}

struct Table {
    /// Records that exist.
    count: u32,
    /// Records without a thread.
    free: Vec<u32>,
}

static TABLE: SpinLock<Table> = SpinLock::new(Rank::Stacks, Table { count: 0, free: Vec::new() });
impl Table {
    fn grow(&mut self) -> Option<()> {
        if self.count >= MAX_THREADS {
            return None;
        }
        // The list of free records can always take every record.
        let missing = (self.count as usize + 1).saturating_sub(self.free.len());
        self.free.try_reserve(missing).ok()?;
        let at = record(self.count) as u64;
        let end = at + RECORD_BYTES as u64;
        let mut page = at & !(frames::FRAME_BYTES - 1);
        while page < end {
            // SAFETY: the table's lock is held.
            let mapped =
                unsafe { paging::find(paging::kernel_root(), page) }.is_some_and(|slot| *slot & 1 != 0);
            if !mapped {
                let frame = frames::allocate()?;
                if paging::map_kernel(page, frame).is_none() {
                    frames::free(frame);
                    return None;
                }
            }
            page += frames::FRAME_BYTES;
        }
        let made = Record {
            thread: Thread::new(self.count),
            body: UnsafeCell::new(None),
            deferred: DeferredWork::new(),
        };
        // SAFETY: just mapped, and nobody looks beyond the count.
        unsafe { record(self.count).cast::<Record>().write(made) };
        self.free.push(self.count);
        self.count += 1;
        heads::add_record(self.count);
        Some(())
    }
}

/// Takes a free record for a thread of `body`'s process. The thread is not known to the scheduler yet; its seat there comes with it.
pub fn claim(body: Body) -> Result<SchedRef, Body> {
    let mut table = TABLE.lock();
    if table.free.is_empty() && table.grow().is_none() {
        return Err(body);
    }
    // The record that was free longest would be nicer to stale references; the last one is warm.
    let Some(tid) = table.free.pop() else { return Err(body) };
    drop(table);
    let thread = thread::get(tid).expect("records below the count exist");
    let process = &body.process;
    let owner = Owner {
        pid: process.pid,
        generation: process.generation,
        name: process.name,
        space: &raw const process.space,
        shared: &raw const process.shared,
        stack_top: body.stack.top(),
        is_guest: process.session.is_guest,
    };
    let ring = body.ring_frame.pointer();
    // SAFETY: the record is ours: it was free, and nobody finds it yet.
    unsafe { *Record::of(thread).body.get() = Some(body) };
    Ok(thread.begin(&owner, ring))
}

/// Takes the record of a thread back that never ran.
pub fn forget(thread: &'static Thread) {
    drop(release(thread, OffStackToken::for_unused()));
}

/// Takes the record of a thread that has left its stack for ever, or never stood on it, back.
///
/// Those who wait for its end are told last: when they hear of it, everything that it had is free.
pub fn release(thread: &'static Thread, token: OffStackToken) -> Option<Arc<Process>> {
    // SAFETY: the thread does not run any more, and nobody else asks for its body.
    let body = unsafe { (*Record::of(thread).body.get()).take() };
    let parked = thread.wait.lock().parked.take();
    assert!(
        parked.as_ref().is_none_or(|parked| core::ptr::eq(parked.payload().head(), &raw const **thread)),
        "K-17: a thread has ended in another's place"
    );
    debug_assert!(
        parked.as_ref().is_none_or(|parked| parked.context().is_none()),
        "I-C1: a thread ends with a context: {:?}",
        parked.as_ref().and_then(|parked| parked.context()).map(|context| context.identity())
    );
    drop(parked);
    thread.leave_owner();
    let code = thread.exit_code.get();
    body.map(|body| {
        let Body { process, stack, exit, .. } = body;
        // The search costs more than all the rest: tests only.
        if cfg!(debug_assertions) {
            super::note_depth(stack.depth());
        }
        stack.free(token);
        process.ledger.release_stack();
        thread.must(&mut thread.wait.lock(), Event::Reap);
        // K-30: there is room for every record that was ever made.
        TABLE.lock().free.push(thread.tid());
        exit.ended(code);
        process
    })
}
