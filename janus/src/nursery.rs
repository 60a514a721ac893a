//! Nurseries: SPEC-021 [SCHED:2.4.1], [SCHED:8.1.1] to [SCHED:8.3.1]. A nursery is a scope that owns its children: it
//! ends when they have all ended, and it gives them their budgets.
//!
//! This is the untyped part: `scope.rs` wraps it for Rust programs, the C adapter wraps the same thing.
//!
//! Invariants:
//! 1. A nursery outlives its children: `Cx::wait_for_children` returns only when none is left, and a child's last touch
//!    of its nursery is the decrement of `live`.
//! 2. A child that may be asleep is in `children`, so that cancellation finds it. It lists itself before it first
//!    sleeps, and looks for a cancellation under the same lock; in a boundless nursery, a child that never sleeps and
//!    does not fail never takes the lock.
//! 3. What children were given and have not used is put back into the pool before `live` falls.

use crate::account::{self, Account};
use crate::budget::{Budget, PART, Resource, UNLIMITED, put};
use crate::cx::TaskId;
use crate::error::{RechargeError, SpawnError, TaskError};
use crate::lock::SpinLock;
use crate::runtime::Shared;
use crate::state::TaskState;
use crate::task::{TaskRef, Wait, flag};
use crate::waiter::{Waiter, wake_task};
use crate::worker::Worker;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

const CLOSING: u32 = 1;
const CANCELLED: u32 = 2;
/// A child has an exact budget, which no pool adds to.
const HAS_FIXED: u32 = 4;
/// The nursery's children are given up, together with the task that opened it: see `family.rs`.
const DOOMED: u32 = 8;
/// A child has failed, and that ends the whole nursery: also its body, at the next wait.
const FAILED: u32 = 16;

/// In `live`: the parent waits for the last child.
const WAITING: usize = 1;
/// In `live`: a child was exhausted with an empty pool. From then on each child that leaves wakes the parent, which
/// looks for a dead end. Both bits are in one word, so that neither the parent nor the child misses the other.
const STARVING: usize = 2;
const CHILD: usize = 4;

/// What happens to a child whose operations, channel operations or system calls are spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recharge {
    /// The nursery's pool gives the child another share, as long as anything is left in the pool.
    FromPool,
    /// The child stops until its parent, a supervisor or its own `CapBudget` recharges it.
    Manual,
}

/// What becomes of a child that has spent its operations, channel operations or system calls, when its nursery's pool gives it
/// no more: [`Spawn::on_exhausted`](crate::Spawn::on_exhausted), [`NurseryOptions::on_exhausted`](crate::NurseryOptions::on_exhausted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum OnExhausted {
    /// The child stops until somebody recharges it. If its parent waits for it and no task of the nursery can go on,
    /// nobody is assumed to be left who could, and it ends with [`BudgetExceeded`](TaskError::BudgetExceeded)
    /// [SCHED:8.3.1].
    #[default]
    EndIfStuck = 0,
    /// The child stops until somebody recharges or cancels it, however long that takes, and a task that waits for it
    /// waits as long.
    Wait = 1,
    /// The child ends at once with [`BudgetExceeded`](TaskError::BudgetExceeded) and drops what it owns: a connection
    /// is closed.
    End = 2,
}

pub(crate) struct Nursery {
    pub(crate) shared: *const Shared,
    /// The next outer nursery that the same task (or the same thread of the C adapter) has open.
    pub(crate) outer: Cell<*const Nursery>,
    /// A nursery of `raw.rs`, which has its own `Box`.
    pub(crate) raw: Cell<bool>,
    parent: Waiter,
    live: AtomicUsize,
    flags: AtomicU32,
    /// The pool is infinite in every resource, so only spawns are counted.
    boundless: bool,
    /// The task whose own budget is the pool; if none, the pool is `Inner::pool`.
    backing: Option<TaskRef>,
    /// The number of live supervisors: while there is one, no child is taken to starve for good.
    pub(crate) supervisors: AtomicUsize,
    pub(crate) cancel_on_error: bool,
    recharge: Recharge,
    /// The rule for children that do not have one of their own.
    pub(crate) on_exhausted: OnExhausted,
    /// What a child gets at most, unless it asks for an exact budget.
    share: Budget,
    /// Only with a pool of the nursery's own: the account that is credited for memory blocks of children that have
    /// ended.
    pub(crate) account: AtomicPtr<Account>,
    inner: SpinLock<Inner>,
}

struct Inner {
    children: Option<TaskRef>,
    pool: Budget,
    error: Option<TaskError>,
}

// SAFETY: what is shared is atomic or under the lock; `shared` outlives the nursery.
unsafe impl Sync for Nursery {}
// SAFETY: as above.
unsafe impl Send for Nursery {}

/// Where children's budgets come from.
#[derive(Clone, Copy)]
pub(crate) enum Pool {
    /// The nursery has an amount of its own.
    Own(Budget),
    /// The pool is the remaining budget of this task, the parent.
    Of(TaskRef),
}

/// How a nursery is made.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) pool: Pool,
    pub(crate) share: Budget,
    pub(crate) recharge: Recharge,
    pub(crate) on_exhausted: OnExhausted,
    pub(crate) cancel_on_error: bool,
}

impl Nursery {
    pub(crate) fn new(shared: *const Shared, parent: Waiter, terms: &Terms) -> Nursery {
        let (pool, backing, boundless) = match terms.pool {
            Pool::Own(pool) => (pool, None, pool == Budget::UNLIMITED),
            Pool::Of(task) => (Budget::ZERO, Some(task), is_boundless(task, terms)),
        };
        Nursery {
            shared,
            outer: Cell::new(std::ptr::null()),
            raw: Cell::new(false),
            parent,
            live: AtomicUsize::new(0),
            flags: AtomicU32::new(0),
            boundless,
            backing,
            supervisors: AtomicUsize::new(0),
            cancel_on_error: terms.cancel_on_error,
            recharge: terms.recharge,
            on_exhausted: terms.on_exhausted,
            share: terms.share,
            account: AtomicPtr::new(std::ptr::null_mut()),
            inner: SpinLock::new(Inner { children: None, pool, error: None }),
        }
    }

    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Whether the nursery is to end because a child failed.
    #[inline]
    pub(crate) fn is_failed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & FAILED != 0
    }

    /// How many children have not ended.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Acquire) / CHILD
    }

    /// Steps 1 to 3 of a spawn [SCHED:8.1.2]: is the nursery open, does the pool suffice, what does the child get?
    /// `asked` is granted as a whole or not at all; without it the child gets its share of what is there. `children` is
    /// how many children it may spawn itself.
    #[inline]
    pub(crate) fn admit(&self, asked: Option<&Budget>, children: u64) -> Result<Budget, SpawnError> {
        match self.flags.load(Ordering::Acquire) {
            f if f & CLOSING != 0 => return Err(SpawnError::NurseryNotActive),
            f if f & CANCELLED != 0 => return Err(SpawnError::Cancelled),
            _ => {}
        }
        let mut wanted = *asked.unwrap_or(&self.share);
        wanted.spawn_count = wanted.spawn_count.max(children);
        let granted = if !self.boundless {
            self.take_grant(&wanted, asked.is_some())?
        } else if self.take_spawns(wanted.spawn_count) {
            wanted
        } else {
            return Err(SpawnError::SpawnBudgetExhausted);
        };
        if asked.is_some() && self.flags.load(Ordering::Relaxed) & HAS_FIXED == 0 {
            self.flags.fetch_or(HAS_FIXED, Ordering::AcqRel);
        }
        self.live.fetch_add(CHILD, Ordering::AcqRel);
        Ok(granted)
    }

    /// In a boundless nursery only spawns are counted: one for the child, and those that it may make itself.
    #[inline]
    fn take_spawns(&self, children: u64) -> bool {
        let Some(backing) = self.backing else { return true };
        if backing.spawns.load(Ordering::Relaxed) == UNLIMITED {
            return true;
        }
        let wanted = put(children, 1);
        let taken = backing.draw(Resource::Spawn, wanted);
        if taken < wanted {
            backing.fill(Resource::Spawn, taken);
        }
        taken == wanted
    }

    /// Takes one child and its grant out of the pool, or nothing.
    fn take_grant(&self, wanted: &Budget, whole: bool) -> Result<Budget, SpawnError> {
        let lacks = |resource| match resource {
            Resource::Memory => SpawnError::MemoryBudgetExhausted,
            Resource::Spawn => SpawnError::SpawnBudgetExhausted,
            other => SpawnError::PoolExhausted(other),
        };
        // The child itself costs one spawn, beside those that it may make.
        let mut with_child = wanted.with(Resource::Spawn, put(wanted.spawn_count, 1));
        if let (Some(backing), false) = (self.backing, whole) {
            // A child that lives on its parent's own budget gets a part of it, not all: the parent and the siblings
            // need some.
            for resource in [Resource::Ops, Resource::Memory, Resource::Channel, Resource::Syscalls] {
                let part = backing.meter(resource).load(Ordering::Relaxed).div_ceil(PART);
                let want = with_child.get_mut(resource);
                *want = (*want).min(part);
            }
        }
        let taken = self.take_from_pool(&with_child);
        let short = Resource::ALL.into_iter().find(|&r| {
            let (want, got) = (with_child.get(r), taken.get(r));
            // Spawns are never cut. Other resources may be, unless the whole was asked for or there is no memory at
            // all.
            let none = r == Resource::Memory && got == 0 && wanted.memory > 0;
            none || (got < want && (whole || r == Resource::Spawn))
        });
        if let Some(short) = short {
            self.put_into_pool(&taken);
            return Err(lacks(short));
        }
        Ok(taken.with(Resource::Spawn, wanted.spawn_count))
    }

    /// Takes as much of `wanted` as is there.
    fn take_from_pool(&self, wanted: &Budget) -> Budget {
        let Some(backing) = self.backing else { return self.inner.lock().pool.take(wanted) };
        let mut taken = Budget::ZERO;
        for resource in Resource::ALL {
            let want = wanted.get(resource);
            if want > 0 {
                *taken.get_mut(resource) = backing.draw(resource, want);
            }
        }
        taken
    }

    fn put_into_pool(&self, amount: &Budget) {
        match self.backing {
            None => self.inner.lock().pool.put(amount),
            Some(backing) => {
                for resource in Resource::ALL {
                    match amount.get(resource) {
                        0 => {}
                        amount => backing.fill(resource, amount),
                    }
                }
            }
        }
    }

    /// Puts some of one resource into the pool.
    pub(crate) fn credit(&self, resource: Resource, amount: u64) {
        self.put_into_pool(&Budget::ZERO.with(resource, amount));
    }

    /// The task whose own budget is the pool.
    pub(crate) fn backing(&self) -> Option<TaskRef> {
        self.backing
    }

    /// The task that opened it.
    pub(crate) fn opener(&self) -> Option<TaskRef> {
        self.parent.as_task()
    }

    /// Takes what is left of the nursery's own pool, for the opener. No child is left, and memory that is freed later
    /// is credited to the opener itself.
    pub(crate) fn end_pool(&self) -> Budget {
        account::retire(&self.account);
        match self.backing {
            Some(_) => Budget::ZERO,
            None => std::mem::replace(&mut self.inner.lock().pool, Budget::ZERO),
        }
    }

    /// Lists a child that is about to sleep for the first time (invariant 2).
    #[cold]
    pub(crate) fn list(&self, child: TaskRef) {
        let mut inner = self.inner.lock();
        child.set(flag::LISTED);
        child.siblings.set((None, inner.children));
        if let Some(first) = inner.children {
            first.siblings.set((Some(child), first.siblings.get().1));
        }
        inner.children = Some(child);
        // A cancellation that came before we held the lock did not find the child; one that comes later will.
        if self.is_cancelled() {
            child.set(flag::CANCEL);
            // The child is running: this only leaves a permit, so that its sleep returns at once.
            let _ = child.word.wake();
        }
    }

    fn unlist(inner: &mut Inner, child: TaskRef) {
        let (before, after) = child.siblings.get();
        match before {
            Some(before) => before.siblings.set((before.siblings.get().0, after)),
            None => inner.children = after,
        }
        if let Some(after) = after {
            after.siblings.set((before, after.siblings.get().1));
        }
    }

    /// Accounts for a child that has ended: what it did not use goes back. The nursery stays until the child's `leave`.
    #[inline]
    pub(crate) fn child_ended(&self, child: TaskRef, error: Option<TaskError>, here: Option<&Worker>) {
        let listed = child.flags.load(Ordering::Relaxed) & flag::LISTED != 0;
        if listed || !self.boundless || error.is_some() {
            let mut inner = self.inner.lock();
            if listed {
                Self::unlist(&mut inner, child);
            }
            // A child that was asked to end, and did, has not failed.
            let error =
                error.filter(|error| !matches!(error, TaskError::Cancelled) || !self.has_asked(child));
            let failed = error.is_some();
            if inner.error.is_none() {
                inner.error = error;
            }
            drop(inner);
            if !self.boundless {
                self.put_into_pool(&unused(child));
            }
            if failed && self.cancel_on_error {
                self.fail(here);
            }
        }
        if self.boundless {
            // Spawns are counted in boundless nurseries too.
            let spawns = child.spawns.load(Ordering::Relaxed);
            if let Some(backing) = self.backing
                && spawns > 0
                && spawns != UNLIMITED
            {
                backing.fill(Resource::Spawn, spawns);
            }
        }
        if self.is_starving() {
            self.starve(here, Some(child), 0);
        }
    }

    fn has_asked(&self, child: TaskRef) -> bool {
        child.has(flag::CANCEL | flag::SAW_CANCEL) || self.is_cancelled()
    }

    /// Fails the nursery, because a child failed or a spawn was refused: the other children are to end, and so is the
    /// body.
    #[cold]
    pub(crate) fn fail(&self, here: Option<&Worker>) {
        self.flags.fetch_or(FAILED, Ordering::AcqRel);
        self.cancel(here);
        if let (Some(opener), false) = (self.opener(), self.raw.get()) {
            opener.set(flag::SCOPED);
            wake_task(opener, here);
        }
    }

    /// A spawn was refused, and nobody but the nursery is told of it.
    #[cold]
    pub(crate) fn refuse(&self, error: SpawnError, here: Option<&Worker>) {
        // A cancelled nursery takes no more children, and has not failed because of that.
        if error == SpawnError::Cancelled {
            return;
        }
        let _ = self.keep_error(TaskError::Refused(error));
        if self.cancel_on_error {
            self.fail(here);
        }
    }

    /// Keeps the error of a child that is about to end, if it is the first; otherwise the error is returned.
    pub(crate) fn keep_error(&self, error: TaskError) -> Option<TaskError> {
        let mut inner = self.inner.lock();
        if inner.error.is_some() {
            return Some(error);
        }
        inner.error = Some(error);
        None
    }

    /// The last thing that a child does with its nursery.
    #[inline]
    pub(crate) fn leave(&self, here: Option<&Worker>) {
        let parent = self.parent;
        let before = self.live.fetch_sub(CHILD, Ordering::AcqRel);
        // If several children leave at once, each may have assumed that the others can go on, so the parent looks
        // again.
        if before == CHILD | WAITING || before & (WAITING | STARVING) == WAITING | STARVING {
            parent.wake(here);
        }
    }

    /// Asks every child to end, and wakes those that sleep [SCHED:8.3.1].
    pub(crate) fn cancel(&self, here: Option<&Worker>) {
        if self.flags.fetch_or(CANCELLED, Ordering::AcqRel) & CANCELLED != 0 {
            return;
        }
        self.cancel_listed(here);
    }

    fn cancel_listed(&self, here: Option<&Worker>) {
        let inner = self.inner.lock();
        let mut next = inner.children;
        while let Some(child) = next {
            next = child.siblings.get().1;
            child.set(flag::CANCEL);
            wake_task(child, here);
        }
    }

    /// Gives up the children, as no task may pass the nursery's end any more. Children that own what they use are only
    /// cancelled.
    pub(crate) fn doom(&self, here: Option<&Worker>) {
        if self.flags.fetch_or(DOOMED | CANCELLED, Ordering::AcqRel) & DOOMED == 0 {
            self.cancel_listed(here);
        }
    }

    #[inline]
    pub(crate) fn is_doomed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DOOMED != 0
    }

    /// Admits no more children. True: none is left.
    pub(crate) fn close(&self) -> bool {
        self.flags.fetch_or(CLOSING, Ordering::AcqRel);
        self.live.load(Ordering::Acquire) / CHILD == 0
    }

    /// Whether none of the children can ever be stopped for good.
    #[inline]
    pub(crate) fn never_starves(&self) -> bool {
        self.is_endless() && self.flags.load(Ordering::Acquire) & HAS_FIXED == 0
    }

    /// Whether the pool recharges children without end (except those with an exact budget).
    fn is_endless(&self) -> bool {
        self.boundless && self.recharge == Recharge::FromPool
    }

    /// The parent announces that it sleeps until the last child has left. True: there is no child to wait for.
    pub(crate) fn expect(&self) -> bool {
        self.live.fetch_or(WAITING, Ordering::AcqRel) / CHILD == 0
    }

    /// If `waiter` is the parent, it is about to wait for one child. If the children cannot go on, that is as much a
    /// dead end as a wait for all of them (see `starve`).
    pub(crate) fn expect_one(&self, waiter: Waiter, here: Option<&Worker>) {
        if self.parent == waiter {
            self.live.fetch_or(WAITING, Ordering::AcqRel);
            if self.is_starving() {
                self.starve(here, None, 0);
            }
        }
    }

    /// The parent, if `waiter` is it, waits no more.
    pub(crate) fn expect_none(&self, waiter: Waiter) {
        if self.parent == waiter {
            self.live.fetch_and(!WAITING, Ordering::AcqRel);
        }
    }

    /// Takes the first error of a child.
    pub(crate) fn take_error(&self) -> Option<TaskError> {
        self.inner.lock().error.take()
    }

    /// What is in the pool.
    pub(crate) fn pool(&self) -> Budget {
        match self.backing {
            Some(backing) => backing.budget(),
            None => self.inner.lock().pool,
        }
    }

    /// Calls `look` for every live child that has ever slept; all exhausted children are among them.
    pub(crate) fn for_each_listed(&self, mut look: impl FnMut(TaskRef)) {
        let inner = self.inner.lock();
        let mut next = inner.children;
        while let Some(child) = next {
            next = child.siblings.get().1;
            look(child);
        }
    }

    /// A child has none of `resource` left. True: the pool gave it another share, of at least `least`.
    pub(crate) fn feed(&self, child: TaskRef, resource: Resource, least: u64) -> bool {
        // A child with an exact budget gets no more than that, and spawns are only granted, never recharged by the
        // pool.
        let fixed = child.flags.load(Ordering::Relaxed) & flag::FIXED != 0;
        if self.recharge == Recharge::Manual || fixed || resource == Resource::Spawn {
            return false;
        }
        let share = self.share.get(resource).max(least);
        let mut taken = if self.boundless { share } else { self.take_part(resource, share, least) };
        if taken < least && self.feed_parent(resource, least) {
            self.put_into_pool(&Budget::ZERO.with(resource, taken));
            taken = self.take_part(resource, share, least);
        }
        if taken < least {
            self.put_into_pool(&Budget::ZERO.with(resource, taken));
            return false;
        }
        child.fill(resource, taken);
        true
    }

    /// If the pool is the parent's own budget and is empty, the parent's nursery gives the parent another share, and so
    /// on upwards.
    fn feed_parent(&self, resource: Resource, least: u64) -> bool {
        let Some(parent) = self.backing else { return false };
        // SAFETY: the parent has children, so it lives, and so does its nursery; the pointer was written before it ran.
        unsafe { parent.nursery.get().as_ref() }.is_some_and(|nursery| nursery.feed(parent, resource, least))
    }

    /// Takes a share of one resource, but of a parent's own budget only a part, unless `least` is more.
    fn take_part(&self, resource: Resource, share: u64, least: u64) -> u64 {
        let part = match self.backing {
            Some(backing) => backing.meter(resource).load(Ordering::Relaxed).div_ceil(PART).max(least),
            None => share,
        };
        self.take_from_pool(&Budget::ZERO.with(resource, share.min(part))).get(resource)
    }

    /// Gives a child more, out of the pool.
    pub(crate) fn recharge(
        &self,
        child: TaskRef,
        amount: &Budget,
        here: Option<&Worker>,
    ) -> Result<(), Resource> {
        self.take_whole(amount)?;
        refill(child, amount, here);
        Ok(())
    }

    /// As `recharge`, for a child named by its number. It cannot end meanwhile, as that takes the lock.
    pub(crate) fn recharge_listed(
        &self,
        child: TaskId,
        amount: &Budget,
        here: Option<&Worker>,
    ) -> Result<(), RechargeError> {
        self.take_whole(amount).map_err(RechargeError::Exhausted)?;
        let mut found = false;
        self.for_each_listed(|task| {
            if task.id.load(Ordering::Relaxed) == child.0 {
                found = true;
                refill(task, amount, here);
            }
        });
        if found {
            return Ok(());
        }
        self.put_back(amount);
        Err(RechargeError::Ended)
    }

    /// Puts back what `take_whole` took.
    fn put_back(&self, amount: &Budget) {
        if self.boundless {
            self.put_into_pool(&Budget::ZERO.with(Resource::Spawn, amount.spawn_count));
        } else {
            self.put_into_pool(amount);
        }
    }

    /// Takes all of `amount` out of the pool, or nothing.
    fn take_whole(&self, amount: &Budget) -> Result<(), Resource> {
        let taken = if self.boundless {
            // Spawns are counted in boundless nurseries too.
            let spawns =
                self.backing.map_or(amount.spawn_count, |b| b.draw(Resource::Spawn, amount.spawn_count));
            amount.with(Resource::Spawn, spawns)
        } else {
            self.take_from_pool(amount)
        };
        match Resource::ALL.into_iter().find(|&r| taken.get(r) < amount.get(r)) {
            Some(short) => {
                self.put_back(&taken);
                Err(short)
            }
            None => Ok(()),
        }
    }

    /// Runs `sleep`, by which a child goes to sleep. If some child is exhausted, this child may have been the last one
    /// that could go on. The nursery is held meanwhile, as the child may be woken and end at once.
    pub(crate) fn watch_sleep(&self, exhausted: bool, here: Option<&Worker>, sleep: impl FnOnce()) {
        self.live.fetch_add(CHILD, Ordering::AcqRel);
        if exhausted {
            self.live.fetch_or(STARVING, Ordering::AcqRel);
        }
        sleep();
        self.starve(here, None, 1);
        if exhausted && self.supervisors.load(Ordering::Acquire) > 0 {
            // The opener may be the one that recharges.
            self.parent.wake(here);
        }
        self.leave(here);
    }

    /// Is the parent waiting for children that cannot go on? Then the exhausted ones end with that error, and tasks
    /// that wait for them learn of it as of any other end. Called when a child sleeps or ends, and when the parent
    /// begins to wait. `except` is a child that is just ending; `held` is how many counts in `live` are not children.
    pub(crate) fn starve(&self, here: Option<&Worker>, except: Option<TaskRef>, held: usize) {
        self.feed_exhausted(here);
        if self.live.load(Ordering::Acquire) & WAITING == 0 || self.supervisors.load(Ordering::Acquire) > 0 {
            return;
        }
        let inner = self.inner.lock();
        let mut listed = 0;
        let mut exhausted = 0;
        let mut next = inner.children;
        while let Some(child) = next {
            next = child.siblings.get().1;
            if Some(child) == except {
                continue;
            }
            listed += 1;
            match child.word.state() {
                // The program has promised that somebody will recharge this child.
                TaskState::BudgetExhausted if child.rule() == OnExhausted::Wait => return,
                TaskState::BudgetExhausted => exhausted += 1,
                // A child that waits for a time, or for the kernel, goes on by itself.
                TaskState::Blocked if !Wait::is_outside(child.waits_for.load(Ordering::Relaxed)) => {}
                _ => return,
            }
        }
        let ending = usize::from(except.is_some());
        if exhausted == 0 || listed + ending + held < self.live() {
            return;
        }
        let mut next = inner.children;
        while let Some(child) = next {
            next = child.siblings.get().1;
            if Some(child) != except && child.word.state() == TaskState::BudgetExhausted {
                child.set(flag::SPENT);
                wake_task(child, here);
            }
        }
    }

    /// Gives what came back into the pool to the children that stopped for want of it.
    fn feed_exhausted(&self, here: Option<&Worker>) {
        if self.recharge == Recharge::Manual {
            return;
        }
        let mut inner = self.inner.lock();
        let mut next = inner.children;
        while let Some(child) = next {
            next = child.siblings.get().1;
            if child.word.state() != TaskState::BudgetExhausted || child.has(flag::FIXED) {
                continue;
            }
            for resource in [Resource::Ops, Resource::Channel, Resource::Syscalls] {
                if child.meter(resource).load(Ordering::Acquire) > 0 {
                    continue;
                }
                let share = self.share.get(resource).max(1);
                let taken = match self.backing {
                    Some(backing) => backing.draw(resource, share),
                    None => inner.pool.take(&Budget::ZERO.with(resource, share)).get(resource),
                };
                if taken > 0 {
                    child.fill(resource, taken);
                    wake_task(child, here);
                }
            }
        }
    }

    /// Whether some child is exhausted.
    #[inline]
    pub(crate) fn is_starving(&self) -> bool {
        self.live.load(Ordering::Acquire) & STARVING != 0
    }
}

/// Whether the budget of `task` is as good as infinite for its children: it is infinite, or pools recharge it
/// automatically, all the way up to an infinite one. Then only spawns need to be counted.
fn is_boundless(task: TaskRef, terms: &Terms) -> bool {
    let own = task.budget();
    let endless = own.with(Resource::Spawn, UNLIMITED) == Budget::UNLIMITED;
    // SAFETY: the task runs, so its nursery is there.
    let fed = || unsafe { task.nursery.get().as_ref() }.is_some_and(Nursery::is_endless);
    endless || (terms.recharge == Recharge::FromPool && !task.has(flag::FIXED) && fed())
}

impl Drop for Nursery {
    fn drop(&mut self) {
        account::retire(&self.account);
    }
}

/// Gives a task more budget, and lets it go on if it had stopped.
pub(crate) fn refill(task: TaskRef, amount: &Budget, here: Option<&Worker>) {
    for resource in Resource::ALL {
        match amount.get(resource) {
            0 => {}
            more => task.fill(resource, more),
        }
    }
    // Leave a permit even if the task runs: it may be about to stop.
    wake_task(task, here);
}

/// What a child has left for the pool. Infinite resources are not given back: the pool did not lose them.
fn unused(task: TaskRef) -> Budget {
    let mut left = task.budget();
    left.put(&task.in_hand());
    for resource in Resource::ALL {
        if left.get(resource) == UNLIMITED {
            *left.get_mut(resource) = 0;
        }
    }
    left
}
