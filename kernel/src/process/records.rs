//! Whole records of threads, and their table. This layer puts the last part behind that of `thread`, so it makes and frees the records (K-05).

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

/// What a live thread has. Put there and taken out by `claim` and `release`; used by the thread itself.
pub struct Body {
    /// The process that the thread belongs to.
    pub process: Arc<Process>,
    /// Its kernel stack.
    pub stack: Stack,
    /// Its ring's frame and user address.
    pub ring_frame: Frame,
    /// See `ring_frame`.
    pub ring_address: u64,
    /// Tells others how the thread ends.
    pub exit: Arc<ThreadExit>,
    /// Where the thread starts in user mode.
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
    /// Work that dropped capabilities have left to the thread.
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
        // SAFETY: every thread's record is made here, by `Table::grow`, as a whole `Record`, which begins with the thread, and is never unmapped.
        unsafe { &*core::ptr::from_ref(thread).cast() }
    }
}

/// The parts of a thread's record that this layer adds.
pub trait Owned {
    /// What the thread has. Only for the running thread itself, and for a caller that holds the lock of the thread's ring while the ring is open.
    fn body(&self) -> &Body;
    /// Work that dropped capabilities have left to the thread; for the thread itself.
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
        // The list of free records always has room for every record, so that freeing one never allocates.
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

/// Takes a free record for a thread of `body`'s process. The scheduler does not know the thread yet; its reference to the thread is returned.
pub fn claim(body: Body) -> Result<SchedRef, Body> {
    let mut table = TABLE.lock();
    if table.free.is_empty() && table.grow().is_none() {
        return Err(body);
    }
    // Taking the record that was free longest would make stale references rarer, but the last one is still in the cache.
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
    // SAFETY: the record is ours alone: it was free, and nobody can find it yet.
    unsafe { *Record::of(thread).body.get() = Some(body) };
    Ok(thread.begin(&owner, ring))
}

/// Frees the record of a thread that never ran.
pub fn forget(thread: &'static Thread) {
    drop(release(thread, OffStackToken::for_unused()));
}

/// Frees the record of a thread that has left its stack for good, or never was on it.
///
/// Threads that wait for its end are told last, so that everything that it had is free when they hear of it.
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
        // Measuring the depth costs more than all the rest, so only test builds do it.
        if cfg!(debug_assertions) {
            super::note_depth(stack.depth());
        }
        stack.free(token);
        process.ledger.release_stack();
        thread.must(&mut thread.wait.lock(), Event::Reap);
        // K-30: the list has room for every record that was ever made.
        TABLE.lock().free.push(thread.tid());
        exit.ended(code);
        process
    })
}
