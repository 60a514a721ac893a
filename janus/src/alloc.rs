//! [`Charged`]: the allocator that charges what a task allocates to its `memory` budget, and credits it when it is
//! freed.
//!
//! ```text
//!   system's block:  | .. padding for alignments above 16 .. | account, bytes | what the caller gets ..
//!                    '- aligned as asked, at least to 16       '- 16 bytes: whom to credit, and how much
//! ```
//!
//! It must not suspend, panic, print, or take a lock that any thread holds while it allocates. Signal handlers do not
//! call it.
//!
//! Invariants:
//! 1. A block's header names the account that paid and the amount that it paid: nothing for blocks that were allocated
//!    outside of tasks, by the runtime ([`Quiet`]), by a task whose memory is infinite, and beyond a task's budget.
//!    Exactly that amount is credited, once.
//! 2. An allocation draws only from the meter of the running task, on its own thread, all or nothing; so the fast paths
//!    need no lock. All other threads credit through `account.rs`.
//! 3. The task that grows a block pays for it: for its own block it pays the difference; a block of another becomes its
//!    own (and is credited to the other as a whole). A block that shrinks keeps its account.
//! 4. A task is stopped on the spot only on its own stack, while it does not panic, and outside [`Quiet`] sections. It
//!    holds no lock of the runtime then: every allocation under one is quiet. A task that prints holds a lock that the
//!    whole process may wait for: then not the task but the process is stopped.

use crate::account::{self, Account};
use crate::budget::Resource;
use crate::family::{self, Cause};
use crate::nursery::Nursery;
use crate::overflow;
use crate::task::{Drawn, TaskRef, flag};
use crate::worker::current_worker;
use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

const HEADER: usize = size_of::<Header>();

/// A global allocator that charges tasks for their memory: install it with
///
/// ```
/// #[global_allocator]
/// static ALLOC: janus::Charged = janus::Charged::new();
/// ```
///
/// Then every byte that a task has allocated and that was not freed is missing from its `memory` budget. It does not
/// matter which task frees it: it is credited to the task that allocated it or, if that has ended, to the pool that the
/// task's budget came from. An allocation also costs one of `ops`.
///
/// A task whose memory is spent, and whose nursery gives it no more, may finish what it does: it lives on a reserve
/// ([`Config::memory_reserve`](crate::Config::memory_reserve)), counts as cancelled from its next check on, and ends
/// with [`BudgetExceeded`](crate::TaskError::BudgetExceeded). Beyond the reserve it is given up where it is, as after a
/// stack overflow: see [`Spawn::owned`](crate::Spawn::owned). Fallible allocation is no exception, as an allocator
/// cannot tell it apart: before a large allocation ask [`Cx::can_allocate`](crate::Cx::can_allocate).
#[derive(Debug, Default)]
pub struct Charged<A = System>(A);

impl Charged {
    /// Charges on top of the system's allocator.
    #[must_use]
    pub const fn new() -> Charged {
        Charged(System)
    }
}

impl<A> Charged<A> {
    /// Charges on top of another allocator.
    #[must_use]
    pub const fn over(inner: A) -> Charged<A> {
        Charged(inner)
    }
}

/// Precedes every block (invariant 1).
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    account: Option<&'static Account>,
    paid: u64,
}

const _: () = assert!(HEADER == 16);

impl Header {
    const NONE: Header = Header { account: None, paid: 0 };
}

/// The layout of a block with its header, and the offset at which the caller's part begins.
#[inline]
fn whole(layout: Layout) -> Option<(Layout, usize)> {
    let offset = layout.align().max(HEADER);
    let size = layout.size().checked_add(offset)?;
    Some((Layout::from_size_align(size, offset).ok()?, offset))
}

/// While a `Quiet` lives, what the running task allocates belongs to the runtime and is not charged, and the task is
/// not abandoned if it runs over its stack (see `overflow.rs`). It must not be kept across a suspension, nor while code
/// of the user's runs.
pub(crate) struct Quiet(Option<TaskRef>);

impl Quiet {
    pub(crate) fn new() -> Quiet {
        let task = current_worker().and_then(|worker| worker.task());
        if let Some(task) = task {
            task.quiet.set(task.quiet.get() + 1);
            // The signal handler looks at the count, during what comes next.
            compiler_fence(Ordering::SeqCst);
        }
        Quiet(task)
    }
}

impl Quiet {
    /// Ends a `Quiet` that was forgotten.
    pub(crate) fn end() {
        drop(Quiet(running()));
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(task) = self.0 {
            compiler_fence(Ordering::SeqCst);
            task.quiet.set(task.quiet.get() - 1);
        }
    }
}

/// The task that runs on this thread.
#[inline]
fn running() -> Option<TaskRef> {
    current_worker()?.task()
}

/// The task that runs on this thread, if it is charged for allocations.
#[inline]
fn payer() -> Option<TaskRef> {
    running().filter(|task| task.quiet.get() == 0)
}

/// Charges what an allocation costs beside its bytes [SCHED:3.3.1]. It does not yield: the next check does.
#[inline]
fn charge_operation(task: TaskRef) {
    match task.fuel.get() {
        fuel if fuel > 0 => task.fuel.set(fuel - 1),
        // Nothing is in hand, and perhaps nothing is left at all: then the next check stops the task.
        _ => {
            task.draw(Resource::Ops, 1);
        }
    }
}

/// Draws `size` from the budget of the running task; returns how much it paid: all, or nothing.
#[inline]
fn pay(task: TaskRef, size: u64) -> u64 {
    charge_operation(task);
    match task.draw_all(Resource::Memory, size) {
        Drawn::All => size,
        Drawn::Infinite => 0,
        Drawn::Short(here) => pay_beyond(task, size, size - here),
    }
}

/// Draws with the pool's help; if that does not suffice, the task is overdrawn.
#[cold]
#[inline(never)]
fn pay_beyond(task: TaskRef, size: u64, short: u64) -> u64 {
    // SAFETY: the task runs, so its nursery is there.
    let nursery: Option<&Nursery> = unsafe { task.nursery.get().as_ref() };
    let mut short = short;
    while nursery.is_some_and(|nursery| nursery.feed(task, Resource::Memory, short)) {
        match task.draw_all(Resource::Memory, size) {
            Drawn::All => return size,
            Drawn::Infinite => return 0,
            // A child, which lives on this task's budget, was faster.
            Drawn::Short(here) => short = size - here,
        }
    }
    task.set(flag::OVERDRAWN);
    // With no fuel left, the next check finds out why.
    if let fuel @ 1.. = task.fuel.replace(task.fuel.get().min(0)) {
        task.fill(Resource::Ops, fuel as u64);
    }
    let Some(account) = account_of(task) else { return 0 };
    let beyond = account.overdraft.get().saturating_add(size);
    // SAFETY: the runtime outlives its tasks.
    if beyond <= unsafe { (*task.shared).config.memory_reserve } {
        account.overdraft.set(beyond);
    } else if may_stop(task) {
        // SAFETY: the task is ours, and we stand on its stack.
        if unsafe { (*task.stack.get()).as_ref() }.is_some_and(overflow::prints_here) {
            family::abort(task, Cause::PrintingMemory);
        }
        // SAFETY: the worker that resumed the task wrote the pointer; the task is running, and we are it, without a
        // lock (invariant 4).
        unsafe { (*task.worker.get()).abandon(task, Some(Cause::Memory)) };
    }
    0
}

/// Whether the task may be stopped on the spot (invariant 4).
fn may_stop(task: TaskRef) -> bool {
    let here = MaybeUninit::<u8>::uninit();
    let address = here.as_ptr().addr();
    // SAFETY: the task is ours.
    let stack = unsafe { &*task.stack.get() };
    let inside = stack.as_ref().is_some_and(|s| (s.hard_low().addr()..s.top().addr()).contains(&address));
    inside && !std::thread::panicking()
}

#[inline]
fn account_of(task: TaskRef) -> Option<&'static Account> {
    // SAFETY: accounts are there for ever.
    match unsafe { task.account.load(Ordering::Relaxed).as_ref() } {
        Some(account) => Some(account),
        None => account::open(task),
    }
}

/// Charges a new block.
#[inline]
fn charge(size: usize) -> Header {
    let Some(task) = payer() else { return Header::NONE };
    let paid = pay(task, size as u64);
    if paid == 0 {
        return Header::NONE;
    }
    let Some(account) = account_of(task) else {
        task.fill(Resource::Memory, paid);
        return Header::NONE;
    };
    account.mine.set(account.mine.get() + 1);
    Header { account: Some(account), paid }
}

/// Credits a block that is freed (`gone`), or a part of one that stays.
#[inline]
fn credit(account: &'static Account, amount: u64, gone: bool) {
    match running() {
        Some(task) if ptr::eq(task.account.load(Ordering::Relaxed), account) => {
            task.fill(Resource::Memory, amount);
            account.mine.set(account.mine.get() - u64::from(gone));
        }
        _ => account::credit(account, amount, gone),
    }
}

/// Completes a new block, or takes the charge back if the allocation failed.
///
/// # Safety
/// `base` is null or the beginning of a block with room for the offset.
#[inline]
unsafe fn hand_out(base: *mut u8, offset: usize, header: Header) -> *mut u8 {
    if base.is_null() {
        if let Some(account) = header.account {
            credit(account, header.paid, true);
        }
        return base;
    }
    // SAFETY: the caller's; the offset is a multiple of 16 and at least 16.
    unsafe {
        let block = base.add(offset);
        block.cast::<Header>().sub(1).write(header);
        block
    }
}

// SAFETY: what is handed out lies in a block of the inner allocator behind its header, aligned as asked (the offset is
// a multiple of the alignment, and the block is aligned to it), and is given back with the layout that it was allocated
// with.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Charged<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, offset)) = whole(layout) else { return ptr::null_mut() };
        let header = charge(layout.size());
        // SAFETY: the layout is not empty: it has the header.
        unsafe { hand_out(self.0.alloc(whole), offset, header) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((whole, offset)) = whole(layout) else { return ptr::null_mut() };
        let header = charge(layout.size());
        // SAFETY: as above.
        unsafe { hand_out(self.0.alloc_zeroed(whole), offset, header) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // This gives the same layout as when the block was allocated.
        let Some((whole, offset)) = whole(layout) else { return };
        // SAFETY: the block is ours, with its header before it.
        let header = unsafe { block.cast::<Header>().sub(1).read() };
        // SAFETY: as above.
        unsafe { self.0.dealloc(block.sub(offset), whole) };
        if let Some(account) = header.account {
            credit(account, header.paid, true);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some((old, offset)) = whole(layout) else { return ptr::null_mut() };
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return ptr::null_mut() };
        let Some((new, _)) = whole(wanted) else { return ptr::null_mut() };
        // SAFETY: the block is ours, with its header before it.
        let mut header = unsafe { block.cast::<Header>().sub(1).read() };
        let grows = size.saturating_sub(layout.size()) as u64;
        let mut more = 0;
        if let Some(task) = payer().filter(|_| grows > 0) {
            let mine = task.account.load(Ordering::Relaxed);
            let own = header.account.is_some_and(|account| ptr::eq(account, mine));
            if own {
                more = pay(task, grows);
            } else if task.meter(Resource::Memory).load(Ordering::Relaxed) != crate::budget::UNLIMITED {
                // SAFETY: the caller's: a block of the old layout, which is smaller than the new one.
                return unsafe { self.take_over(block, layout, wanted) };
            }
        }
        // SAFETY: the block is the inner allocator's, of this layout; the new size is not 0 and does not overflow.
        let base = unsafe { self.0.realloc(block.sub(offset), old, new.size()) };
        if base.is_null() {
            if let Some(account) = header.account.filter(|_| more > 0) {
                credit(account, more, false);
            }
            return base;
        }
        // No more than the new size stays paid for.
        header.paid += more;
        let back = header.paid.saturating_sub(size as u64);
        header.paid -= back;
        if let Some(account) = header.account.filter(|_| back > 0) {
            credit(account, back, false);
        }
        // SAFETY: the block has room for the offset, and the header was copied with it.
        unsafe {
            let block = base.add(offset);
            block.cast::<Header>().sub(1).write(header);
            block
        }
    }
}

impl<A: GlobalAlloc> Charged<A> {
    /// A block that another paid for grows in the hands of the running task (invariant 3).
    ///
    /// # Safety
    /// The block has the layout `old`, which is not larger than `new`; the caller gives the block up unless the result
    /// is null.
    #[cold]
    unsafe fn take_over(&self, block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, old.size());
                self.dealloc(block, old);
            }
            moved
        }
    }
}
