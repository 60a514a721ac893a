//! Accounts: they say who is credited for the bytes of a block, whichever thread frees it and whenever. `alloc.rs`
//! writes an account into the header of every block that a task paid for; this file knows where the credit goes.
//!
//! ```text
//!   block --> account of the task that paid --> account of its nursery's pool --> account of the nursery's opener --> ..
//!             (while it lives: its meter)      (while it is open: its pool)      (a nursery that lives on its opener's
//!                                                                                 own budget has no account itself)
//! ```
//!
//! It must not allocate except from the system, suspend, panic, or hold two accounts' locks at once.
//!
//! Invariants:
//! 1. An account belongs to a holder (a task or a pool) until [`retire`], which happens under its lock *before* what
//!    the holder has left is counted and passed on. A credit happens under the same lock: either it is part of what is
//!    left, or it comes after the end and goes one account further up. So it is neither lost nor given twice.
//! 2. Live blocks, and accounts further down, are counted: `mine` by the holding task on its own fiber without a lock,
//!    `others` under the lock; `mine + others` is the number. An account with a holder, or with a count above 0, is not
//!    reused: a block's header always names the account that was charged.
//! 3. An account counts in its parent from its linking to its recycling, so a thread that holds a block may walk up.
//! 4. A parent is linked by the task that made the account: the holder itself or a descendant, while the holder lives.
//!    The parent is needed only after the holder's end, which waits for all descendants.
//! 5. No account stands above a holder that has an infinite meter: nothing was taken there, and nothing goes back.
//! 6. Lock order: an account, then the pool of a nursery. No charged block is allocated or freed under a nursery's lock
//!    (see `Quiet` in `alloc.rs`).
//! 7. The memory of accounts is never given back to the system.

use crate::alloc::Quiet;
use crate::budget::{Resource, UNLIMITED};
use crate::lock::SpinLock;
use crate::nursery::Nursery;
use crate::task::TaskRef;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Accounts that are allocated from the system at a time.
const CHUNK: usize = 63;

/// See the module.
#[repr(C, align(64))]
pub(crate) struct Account {
    /// Invariant 2.
    pub(crate) mine: Cell<u64>,
    /// What the task has allocated beyond its budget. Only the task uses it.
    pub(crate) overdraft: Cell<u64>,
    state: SpinLock<State>,
}

struct State {
    holder: Holder,
    others: i64,
    parent: Option<&'static Account>,
    /// The next account in the list of free ones.
    next: Option<&'static Account>,
}

#[derive(Clone, Copy)]
enum Holder {
    Task(TaskRef),
    Pool(NonNull<Nursery>),
    Ended,
}

// SAFETY: `Cell`s belong to the holding task (invariant 2), the rest is under the lock.
unsafe impl Sync for Account {}

static FREE: Mutex<Free> = Mutex::new(Free(None));

struct Free(Option<&'static Account>);

// SAFETY: free accounts belong to the list.
unsafe impl Send for Free {}

impl Free {
    fn pop(&mut self) -> Option<&'static Account> {
        let account = self.0?;
        self.0 = account.state.lock().next.take();
        Some(account)
    }

    fn push(&mut self, account: &'static Account) {
        account.state.lock().next = self.0.replace(account);
    }

    #[cold]
    fn grow(&mut self) {
        let Ok(layout) = Layout::array::<Account>(CHUNK) else { return };
        // SAFETY: the layout is not empty.
        let Some(chunk) = NonNull::new(unsafe { System.alloc(layout) }.cast::<Account>()) else { return };
        for index in 0..CHUNK {
            let state = State { holder: Holder::Ended, others: 0, parent: None, next: None };
            let fresh = Account { mine: Cell::new(0), overdraft: Cell::new(0), state: SpinLock::new(state) };
            // SAFETY: inside the chunk, written before it is read, and there for ever (invariant 7).
            let account: &'static Account = unsafe {
                let place = chunk.add(index);
                place.write(fresh);
                place.as_ref()
            };
            self.push(account);
        }
    }
}

fn free_list() -> std::sync::MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Touches the stack that the sections below need, before they lock anything: a task that ran over its stack in one of
/// them would be abandoned with the lock.
#[inline(never)]
fn probe() {
    let mut room = MaybeUninit::<[u8; 1024]>::uninit();
    // SAFETY: inside the array.
    unsafe { room.as_mut_ptr().cast::<u8>().write_volatile(0) };
    std::hint::black_box(&mut room);
}

impl Holder {
    fn slot(&self) -> Option<&AtomicPtr<Account>> {
        match self {
            Holder::Task(task) => Some(&task.account),
            // SAFETY: the nursery is open: the caller is a task in it, or its opener.
            Holder::Pool(nursery) => Some(unsafe { &nursery.as_ref().account }),
            Holder::Ended => None,
        }
    }

    /// The holder that gave this one its budget (invariant 5).
    fn above(&self) -> Option<Holder> {
        let finite = |task: &TaskRef| task.meter(Resource::Memory).load(Ordering::Relaxed) != UNLIMITED;
        match self {
            Holder::Task(task) => {
                let nursery = NonNull::new(task.nursery.get().cast_mut())?;
                // SAFETY: the task lives, so its nursery is there; the field is constant while the nursery lives.
                let open = unsafe { nursery.as_ref() };
                match open.backing() {
                    Some(backing) => finite(&backing).then_some(Holder::Task(backing)),
                    None => (open.pool().memory != UNLIMITED).then_some(Holder::Pool(nursery)),
                }
            }
            // SAFETY: the nursery is open, and so its opener lives.
            Holder::Pool(nursery) => unsafe { nursery.as_ref() }.opener().filter(finite).map(Holder::Task),
            Holder::Ended => None,
        }
    }
}

/// The account of a live task, which is the caller. `None`: the system has no memory.
#[cold]
pub(crate) fn open(task: TaskRef) -> Option<&'static Account> {
    probe();
    // The system's allocator may need more stack, under the lock of the free accounts.
    let _quiet = Quiet::new();
    let mut holder = Holder::Task(task);
    let mut first = None;
    let mut below: Option<&'static Account> = None;
    loop {
        let (account, fresh) = find_or_make(&holder)?;
        if let Some(below) = below {
            // Invariant 3: counted first. The holder above lives, so its account is there.
            account.state.lock().others += 1;
            below.state.lock().parent = Some(account);
        }
        first = first.or(Some(account));
        if !fresh {
            return first;
        }
        below = Some(account);
        match holder.above() {
            Some(above) => holder = above,
            None => return first,
        }
    }
}

/// The holder's account. True: it was made here, and has no parent yet.
fn find_or_make(holder: &Holder) -> Option<(&'static Account, bool)> {
    let slot = holder.slot()?;
    // SAFETY: invariant 7.
    if let Some(found) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
        return Some((found, false));
    }
    let mut free = free_list();
    if free.0.is_none() {
        free.grow();
    }
    let account = free.pop()?;
    drop(free);
    account.mine.set(0);
    account.overdraft.set(0);
    {
        let mut state = account.state.lock();
        state.holder = *holder;
        state.others = 0;
        state.parent = None;
    }
    let pointer = ptr::from_ref(account).cast_mut();
    match slot.compare_exchange(ptr::null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some((account, true)),
        Err(found) => {
            account.state.lock().holder = Holder::Ended;
            free_list().push(account);
            // SAFETY: invariant 7.
            unsafe { found.as_ref() }.map(|found| (found, false))
        }
    }
}

/// Ends the holder's account: credits from now on go further up (invariant 1). Call it before what is left is counted.
#[inline]
pub(crate) fn retire(slot: &AtomicPtr<Account>) {
    if !slot.load(Ordering::Acquire).is_null() {
        // SAFETY: invariant 7.
        if let Some(account) = unsafe { slot.swap(ptr::null_mut(), Ordering::AcqRel).as_ref() } {
            retire_account(account);
        }
    }
}

#[cold]
fn retire_account(account: &'static Account) {
    let mut state = account.state.lock();
    state.others += account.mine.replace(0) as i64;
    state.holder = Holder::Ended;
    let (count, parent) = (state.others, state.parent);
    drop(state);
    debug_assert!(count >= 0);
    if count == 0 {
        recycle(account, parent);
    }
}

/// Frees an account that nothing refers to any more; its parent counts one less.
fn recycle(account: &'static Account, parent: Option<&'static Account>) {
    free_list().push(account);
    if let Some(parent) = parent {
        release(parent);
    }
}

/// Counts one block or account less, and recycles the account if it was the last.
fn release(account: &'static Account) {
    let mut account = account;
    loop {
        let mut state = account.state.lock();
        state.others -= 1;
        let dead = state.others == 0 && matches!(state.holder, Holder::Ended);
        let parent = state.parent;
        drop(state);
        if !dead {
            return;
        }
        free_list().push(account);
        match parent {
            Some(parent) => account = parent,
            None => return,
        }
    }
}

/// Credits `amount` to the current holder, from any thread; `gone`: the block is freed. The block pins its account
/// until then (invariants 2 and 3).
#[cold]
#[inline(never)]
pub(crate) fn credit(account: &'static Account, amount: u64, gone: bool) {
    probe();
    let mut next = Some(account);
    while let Some(account) = next {
        let state = account.state.lock();
        next = match state.holder {
            Holder::Task(task) => {
                task.fill(Resource::Memory, amount);
                None
            }
            Holder::Pool(nursery) => {
                // SAFETY: the nursery retires the account under this lock before it goes.
                unsafe { nursery.as_ref() }.credit(Resource::Memory, amount);
                None
            }
            Holder::Ended => state.parent,
        };
    }
    if gone {
        release(account);
    }
}
