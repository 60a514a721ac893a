//! What a task can do. Every task gets a [`Cx`] of its own. There is no other way to suspend, to charge or to open a
//! nursery, so a task has no authority that its code does not show.

use crate::budget::{Budget, Operation, Resource, UNLIMITED};
use crate::caps::{CapBudget, CapSpawn};
use crate::config::Profile;
use crate::error::{Cancelled, RechargeError};
use crate::family;
use crate::nursery::{Nursery, OnExhausted, refill};
use crate::panics;
use crate::runtime::Shared;
use crate::stack::{ROOM, Stack};
use crate::state::Event;
use crate::stats::Counters;
use crate::task::{Drawn, Priority, TaskRef, Wait, flag};
use crate::timers::Timer;
use crate::waiter::Waiter;
use crate::worker::Worker;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The initial `fuel` of a task that has never checked: its first check begins a quantum and does not yield.
pub(crate) const UNFUELLED: i64 = i64::MIN / 2;
/// Channel operations that a task draws from its budget at a time.
const CHANNEL_FUEL: u64 = 64;

/// Bytes of stack that every operation of the runtime finds below its caller, library calls included (measured: 1.7 KB
/// in the dev profile, 5.7 KB without optimisation, see `tests/overflow_runtime.rs`). An allocator may need more: see
/// `Quiet`.
const HEADROOM: usize = 3 * 1024 * ROOM;

/// The lowest stack pointer with which a task may call the runtime; a task below it counts as overflowed.
pub(crate) fn floor(stack: &Stack) -> usize {
    stack.limit().addr() + HEADROOM
}

#[inline(always)]
fn stack_pointer() -> usize {
    let here: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    here
}

/// Makes a task that is near the end of its stack overflow right here, before the runtime takes a lock for it or leaves
/// something half written. The overflow is then an ordinary panic, which runs destructors.
#[inline(always)]
pub(crate) fn ensure_stack(task: TaskRef) {
    if stack_pointer() < task.floor.get() {
        panics::overflow_in_time(task);
    }
}

/// As `ensure_stack`, for code that must not panic: destructors, and the end of a nursery. That code goes on in the
/// stack's reserve, and the task fails with the overflow when it next checks, or when it ends.
#[inline(always)]
pub(crate) fn make_room(task: TaskRef) {
    if stack_pointer() < task.floor.get() {
        panics::open_reserve(task);
    }
}

/// As `make_room`, for callers without a `Cx`; does nothing outside of tasks.
pub(crate) fn make_room_here() {
    if let Some(task) = crate::worker::current_worker().and_then(Worker::task) {
        make_room(task);
    }
}

/// Whether the current task has `bytes` left on its stack, the runtime's own headroom included.
pub(crate) fn has_stack(task: TaskRef, bytes: usize) -> bool {
    stack_pointer() >= task.floor.get() - HEADROOM + bytes
}

/// A task's number: no other task of the same runtime has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u64);

impl TaskId {
    /// The plain number, for logs and for comparing with a dump.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Why an operation was not charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeError {
    /// The task was cancelled while it waited for a recharge.
    Cancelled,
    /// This part of the budget is spent, and the task is told to end because of it.
    BudgetExceeded(Resource),
    /// `spawn_count` is spent.
    SpawnBudgetExhausted,
    /// Less `memory` is left than was asked for.
    MemoryBudgetExhausted,
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChargeError::BudgetExceeded(resource) => {
                return write!(
                    f,
                    "the task's {resource} budget is spent, and it ends for that; grant it more"
                );
            }
            ChargeError::Cancelled => "this task was cancelled",
            ChargeError::SpawnBudgetExhausted => "the spawn budget is spent: recharge it or spawn less",
            ChargeError::MemoryBudgetExhausted => {
                "the memory budget is spent: recharge it, free something, or ask for less"
            }
        })
    }
}

impl Error for ChargeError {}

impl From<Cancelled> for ChargeError {
    fn from(_: Cancelled) -> ChargeError {
        ChargeError::Cancelled
    }
}

/// A task's own view of itself and its runtime: everything that a task may do, it does through this.
///
/// | to | call |
/// |---|---|
/// | charge an operation, and let others run | [`check`](Cx::check), [`ticker`](Cx::ticker), [`charge`](Cx::charge), [`yield_now`](Cx::yield_now) |
/// | have children | [`nursery`](Cx::nursery) |
/// | wait | [`sleep`](Cx::sleep), [`select`](Cx::select), [`Handle::join`](crate::Handle::join), channels |
/// | end when asked to | pass on [`Cancelled`] with `?`, or look at [`is_cancelled`](Cx::is_cancelled) |
/// | know what is left | [`budget`](Cx::budget) |
///
/// It is neither `Send` nor `Sync`: a task cannot act for another.
pub struct Cx {
    pub(crate) task: TaskRef,
    mine: PhantomData<*mut ()>,
}

impl Cx {
    /// Called only by the task itself, on its own stack.
    pub(crate) fn of(task: TaskRef) -> Cx {
        Cx { task, mine: PhantomData }
    }

    /// The worker that the task runs on now. The reference is not valid across a suspension.
    #[inline]
    pub(crate) fn worker(&self) -> &Worker {
        // SAFETY: the worker that resumed the task wrote the pointer.
        unsafe { &*self.task.worker.get() }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the runtime outlives its tasks.
        unsafe { &*self.task.shared }
    }

    #[inline]
    fn nursery_of_mine(&self) -> Option<&Nursery> {
        // SAFETY: the task runs, so its nursery is there.
        unsafe { self.task.nursery.get().as_ref() }
    }

    /// This task's number.
    #[must_use]
    pub fn id(&self) -> TaskId {
        TaskId(self.task.id.load(Ordering::Relaxed))
    }

    /// Charges one operation, and yields to other tasks when the quantum is over. Call it in loops and before calls.
    ///
    /// A task whose operations are spent stops here until it is recharged. The error means that it was cancelled.
    #[inline(always)]
    #[track_caller]
    pub fn check(&self) -> Result<(), Cancelled> {
        let fuel = self.task.fuel.get() - 1;
        self.task.fuel.set(fuel);
        let low = stack_pointer() < self.task.floor.get();
        if fuel < 0 || low { self.refuel(1, Location::caller()) } else { Ok(()) }
    }

    /// Makes the stack overflow in time if less than `bytes` are left of it: as a panic that runs destructors and ends
    /// the task with [`StackOverflow`](crate::TaskError::StackOverflow). [`check`](Cx::check) does the same for the
    /// stack that the runtime itself needs. Call it in recursion that does not check, and before calls that are known
    /// to need much stack.
    ///
    /// ```
    /// # use janus::{Config, Cx, Runtime, RuntimeError, TaskError};
    /// fn deep(cx: &Cx, n: u64) -> u64 {
    ///     cx.ensure_stack(4096);
    ///     if n == u64::MAX { 0 } else { std::hint::black_box(deep(cx, n + 1)) + 1 }
    /// }
    /// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
    /// // Nothing is half done: whoever called `run` goes on.
    /// let end = runtime.run(|cx| deep(cx, 0));
    /// assert!(matches!(end, Err(RuntimeError::Task(TaskError::StackOverflow))));
    /// ```
    #[inline]
    pub fn ensure_stack(&self, bytes: usize) {
        if self.stack_left() < bytes {
            panics::overflow_in_time(self.task);
        }
    }

    /// Bytes of stack that the task has left, less what the runtime needs for itself.
    #[inline]
    #[must_use]
    pub fn stack_left(&self) -> usize {
        stack_pointer().saturating_sub(self.task.floor.get())
    }

    /// Charges `count` operations at once.
    #[inline]
    #[track_caller]
    pub fn charge_ops(&self, count: u64) -> Result<(), Cancelled> {
        let count = count.min(i64::MAX as u64 / 4);
        let fuel = self.task.fuel.get() - count as i64;
        self.task.fuel.set(fuel);
        let low = stack_pointer() < self.task.floor.get();
        if fuel < 0 || low { self.refuel(count, Location::caller()) } else { Ok(()) }
    }

    /// Operations that this task has drawn from its budget and not spent yet: it may run that many before its quantum
    /// is over. For code that counts by itself, as an interpreted guest does, and reports the count with
    /// [`charge_ops`](Cx::charge_ops).
    #[inline]
    #[must_use]
    pub fn ops_in_hand(&self) -> u64 {
        self.task.fuel.get().max(0) as u64
    }

    /// For loops: counts iterations in a register and charges them [`Profile::yield_interval`] at a time.
    ///
    /// ```
    /// # use janus::{Cancelled, Cx};
    /// fn sum(cx: &Cx, numbers: &[u64]) -> Result<u64, Cancelled> {
    ///     let mut ticker = cx.ticker();
    ///     let mut sum = 0;
    ///     for number in numbers {
    ///         ticker.tick()?;
    ///         sum += number;
    ///     }
    ///     Ok(sum)
    /// }
    /// # let runtime = unsafe { janus::Runtime::new(janus::Config::new()) }.unwrap();
    /// # assert_eq!(runtime.run(|cx| sum(cx, &[1; 5000])).unwrap(), Ok(5000));
    /// ```
    #[inline]
    #[must_use]
    pub fn ticker(&self) -> Ticker<'_> {
        let interval = self.shared().config.yield_interval;
        // If an earlier ticker used up the task's quantum, or its budget is spent, the first iteration checks:
        // otherwise a program of many short loops would never stop, nor yield.
        let fuel = self.task.fuel.get();
        let due = fuel == 0 || (fuel < 0 && self.task.ops.load(Ordering::Relaxed) == 0);
        let first = if due { 1 } else { interval };
        Ticker { cx: self, left: first, granted: first, interval }
    }

    /// Charges an operation by the table of costs [SCHED:3.3.1]. For what the runtime cannot see: an allocation, a
    /// system call. Channels and spawns charge themselves. When operations, channel operations or system calls are
    /// spent, the task stops until it is recharged; when memory or spawns are spent, the caller gets an error instead.
    #[track_caller]
    pub fn charge(&self, operation: Operation) -> Result<(), ChargeError> {
        self.charge_at(operation, Location::caller())
    }

    /// The part of its budget because of which this task is told to end, if that is why its waits fail. The parent gets
    /// it as [`BudgetExceeded`](crate::TaskError::BudgetExceeded), whatever the task returns.
    #[must_use]
    pub fn ended_by(&self) -> Option<Resource> {
        self.task.ended_by()
    }

    pub(crate) fn charge_at(
        &self,
        operation: Operation,
        at: &'static Location<'static>,
    ) -> Result<(), ChargeError> {
        self.charge_masked(operation, at).map_err(|error| match self.ended_by() {
            Some(resource) if error == ChargeError::Cancelled => ChargeError::BudgetExceeded(resource),
            _ => error,
        })
    }

    /// As `charge_at`, but if the task is to end because of its budget, the error is only `Cancelled`.
    fn charge_masked(&self, operation: Operation, at: &'static Location<'static>) -> Result<(), ChargeError> {
        let cost = operation.cost();
        if cost.memory > 0 && !self.draw_memory(cost.memory) {
            return Err(ChargeError::MemoryBudgetExhausted);
        }
        if cost.spawn_count > 0 && !self.take_or_feed(Resource::Spawn, cost.spawn_count) {
            return Err(ChargeError::SpawnBudgetExhausted);
        }
        if cost.channel_ops > 0 {
            self.charge_channel(at)?;
        }
        for _ in 0..cost.syscalls {
            while !self.take_or_feed(Resource::Syscalls, 1) {
                self.stop(Resource::Syscalls, at)?;
            }
        }
        let fuel = self.task.fuel.get() - 1;
        self.task.fuel.set(fuel);
        if fuel < 0 {
            self.refuel(1, at)?;
        }
        Ok(())
    }

    /// Charges an allocation of `bytes` until the returned value is dropped, which credits them; a plain
    /// [`charge`](Cx::charge) cannot be given back. For memory that no allocator sees; with [`Charged`](crate::Charged)
    /// installed, all other memory charges itself.
    #[track_caller]
    pub fn hold_memory(&self, bytes: u64) -> Result<Held<'_>, ChargeError> {
        self.charge(Operation::Allocation(bytes))?;
        Ok(Held { cx: self, bytes })
    }

    /// Whether `bytes` of memory are left in the budget or, where the nursery recharges, in its pool. Ask before a
    /// large allocation, which under [`Charged`](crate::Charged) could only stop the task. Nothing is charged.
    pub fn can_allocate(&self, bytes: u64) -> Result<(), ChargeError> {
        if !self.draw_memory(bytes) {
            return Err(ChargeError::MemoryBudgetExhausted);
        }
        self.task.fill(Resource::Memory, bytes);
        Ok(())
    }

    fn draw_memory(&self, bytes: u64) -> bool {
        self.take_or_feed(Resource::Memory, bytes)
    }

    /// Takes all of `amount`, with the pool's help, or nothing.
    fn take_or_feed(&self, resource: Resource, amount: u64) -> bool {
        ensure_stack(self.task);
        loop {
            let Drawn::Short(here) = self.task.draw_all(resource, amount) else { return true };
            let feed = |nursery: &Nursery| nursery.feed(self.task, resource, amount - here);
            // No pool adds up to an infinite amount: it is there at once or never.
            if amount == UNLIMITED || !self.nursery_of_mine().is_some_and(feed) {
                return false;
            }
        }
    }

    /// Charges one channel operation, once, however long the operation then waits. The caller charges the `ops` part.
    #[inline]
    pub(crate) fn charge_channel(&self, at: &'static Location<'static>) -> Result<(), Cancelled> {
        let left = self.task.channel_fuel.get();
        if left > 0 {
            self.task.channel_fuel.set(left - 1);
            return Ok(());
        }
        self.refuel_channel(at)
    }

    #[cold]
    fn refuel_channel(&self, at: &'static Location<'static>) -> Result<(), Cancelled> {
        ensure_stack(self.task);
        loop {
            match self.task.draw(Resource::Channel, CHANNEL_FUEL) {
                0 => {}
                drawn => {
                    self.task.channel_fuel.set((drawn - 1) as u16);
                    return Ok(());
                }
            }
            self.stop(Resource::Channel, at)?;
        }
    }

    /// Draws operations for the next quantum: the last one is over, and perhaps the budget too.
    #[cold]
    #[inline(never)]
    fn refuel(&self, count: u64, at: &'static Location<'static>) -> Result<(), Cancelled> {
        let task = self.task;
        ensure_stack(task);
        let before = task.fuel.get() + count as i64;
        let fresh = before < -1;
        // The fuel that was left when this operation came; it did not suffice.
        let mut in_hand = if fresh { 0 } else { before.max(0) as u64 };
        task.fuel.set(0);
        loop {
            if self.is_cancelled() {
                task.fuel.set(in_hand as i64);
                return Err(Cancelled);
            }
            // SAFETY: on the worker's own thread.
            let quantum = match unsafe { self.worker().det() } {
                Some(det) => det.quantum(),
                None => self.shared().config.quantum,
            };
            // From a small budget a task draws only a part at a time: siblings cannot use what a sleeping task has
            // drawn.
            let quantum = quantum.min(task.ops.load(Ordering::Relaxed).div_ceil(8));
            in_hand += task.draw(Resource::Ops, quantum.max(count - in_hand.min(count)));
            if in_hand >= count {
                break;
            }
            self.stop(Resource::Ops, at).inspect_err(|_| task.fuel.set(in_hand as i64))?;
        }
        task.fuel.set((in_hand - count) as i64);
        // SAFETY: on the worker's own thread. In deterministic mode the seed decides whether a first check yields.
        let gives_way =
            !fresh || unsafe { self.worker().det() }.is_some_and(|det| det.random().is_multiple_of(2));
        if gives_way && !self.panicking() {
            self.worker().yield_now(task);
        }
        if self.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    /// A part of the budget is spent: the pool gives more, or the task stops until somebody does.
    #[cold]
    fn stop(&self, resource: Resource, at: &'static Location<'static>) -> Result<(), Cancelled> {
        let task = self.task;
        Counters::add(&self.worker().counters.exhaustions);
        task.note_spent(resource);
        loop {
            let fed = self.nursery_of_mine().is_some_and(|nursery| nursery.feed(task, resource, 1));
            if fed || task.meter(resource).load(Ordering::Acquire) > 0 {
                return Ok(());
            }
            if self.is_cancelled() || self.panicking() {
                return Err(Cancelled);
            }
            if task.rule() == OnExhausted::End {
                task.set(flag::SPENT | flag::SAW_CANCEL);
                return Err(Cancelled);
            }
            self.worker().sleep(task, Event::Exhaust, Wait::Recharge, at);
        }
    }

    /// Lets other tasks run, if any are ready. It costs nothing [SCHED:4.2.2]. The error means that the task was
    /// cancelled.
    #[inline]
    #[track_caller]
    pub fn yield_now(&self) -> Result<(), Cancelled> {
        if self.panicking() {
            return Ok(());
        }
        ensure_stack(self.task);
        self.worker().yield_now(self.task);
        if self.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    /// Whether this task is unwinding from a panic.
    #[inline]
    pub(crate) fn panicking(&self) -> bool {
        std::thread::panicking() && !self.worker().stained.get()
    }

    /// Was this task asked to end?
    #[inline]
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let asked = self.is_asked();
        if asked {
            self.stop_if_doomed();
        }
        asked
    }

    /// As `is_cancelled`, but does not stop a doomed task: for a caller in the middle of something that other tasks
    /// refer to, which must be completed first.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked_but(std::ptr::null())
    }

    /// As `is_asked`, for a task that waits for a child of `except`: if that nursery has failed, the failure ends the
    /// child, and thereby the wait, so it does not count here.
    #[inline]
    fn is_asked_but(&self, except: *const Nursery) -> bool {
        const ASKED: u16 = flag::CANCEL | flag::SPENT | flag::OVERDRAWN | flag::DOOMED | flag::SCOPED;
        let flags = self.task.flags.load(Ordering::Acquire);
        let cancelled = self.nursery_of_mine().is_some_and(Nursery::is_cancelled);
        (flags & ASKED != 0 || cancelled) && self.weigh(flags, cancelled, except)
    }

    /// Decides whether the task must end, when a flag or its nursery says that it may have to.
    #[cold]
    fn weigh(&self, flags: u16, cancelled: bool, except: *const Nursery) -> bool {
        if flags & (flag::SPENT | flag::OVERDRAWN | flag::DOOMED) != 0 {
            self.task.set(flag::SAW_CANCEL);
            return true;
        }
        self.must_end(cancelled || flags & flag::CANCEL != 0, except)
    }

    /// Stops this task for good if its family is given up: see `family.rs`. A task that waited and was told to end
    /// calls this after it has left the queue it waited in: otherwise the queue would serve a task that never takes
    /// what it gets.
    #[cold]
    pub(crate) fn stop_if_doomed(&self) {
        if family::is_doomed(self.task) {
            // SAFETY: we are the task; a task that asks whether it is cancelled holds no lock of the runtime.
            unsafe { self.worker().abandon(self.task, None) };
        }
    }

    /// Sleeps once, until woken for whatever reason; the caller finds out which. The error means that the task was
    /// cancelled, or that it is unwinding: a panic may not suspend. Callers check for room on the stack before they
    /// begin, because by now other tasks may refer to their frames. After an error they call `stop_if_doomed`.
    #[inline]
    pub(crate) fn block(&self, wait: Wait, at: &'static Location<'static>) -> Result<(), Cancelled> {
        self.block_but(std::ptr::null(), wait, at)
    }

    /// As `block`, for a task that waits for a child of `except`.
    #[inline]
    pub(crate) fn block_but(
        &self,
        except: *const Nursery,
        wait: Wait,
        at: &'static Location<'static>,
    ) -> Result<(), Cancelled> {
        if self.is_asked_but(except) || self.panicking() {
            return Err(Cancelled);
        }
        self.worker().sleep(self.task, Event::Block, wait, at);
        Ok(())
    }

    /// Waits until no child is left; cancels them if this task is cancelled.
    pub(crate) fn wait_for_children(&self, nursery: &Nursery, at: &'static Location<'static>) {
        make_room(self.task);
        while !nursery.expect() {
            if self.is_cancelled() {
                nursery.cancel(Some(self.worker()));
            }
            if nursery.is_starving() {
                nursery.starve(Some(self.worker()), None, 0);
            }
            self.worker().sleep(self.task, Event::Block, Wait::Nursery, at);
        }
        // The last child may have been given up: then this task must not see what that child had borrowed.
        if nursery.is_doomed() {
            self.stop_if_doomed();
        }
    }

    /// Waits for at least `duration`. In deterministic mode time is virtual: an hour passes at once when no task can
    /// run. A sleep costs an operation, so a loop of sleeps that are over at once yields like any other loop.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> Result<(), Cancelled> {
        ensure_stack(self.task);
        self.check()?;
        let until = self.until(duration);
        let at = Location::caller();
        let timer = self.arm(until);
        let mut result = Ok(());
        while self.shared().now_ns() < until && result.is_ok() {
            result = self.block(Wait::Sleep, at);
        }
        self.shared().timers.disarm(timer);
        if result.is_err() {
            self.stop_if_doomed();
        }
        result
    }

    /// A random number of the worker's generator, or in deterministic mode of the seeded one.
    pub(crate) fn random(&self) -> u64 {
        let worker = self.worker();
        // SAFETY: on the worker's own thread.
        if let Some(det) = unsafe { worker.det() } {
            return det.random();
        }
        worker.rng.set(worker.rng.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        crate::det::scramble(worker.rng.get())
    }

    /// Time since the runtime began.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared().now_ns())
    }

    /// The time on the runtime's clock that is `duration` from now.
    pub(crate) fn until(&self, duration: Duration) -> u64 {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.shared().now_ns().saturating_add(nanos).min(u64::MAX - 1)
    }

    pub(crate) fn arm(&self, at_ns: u64) -> Timer {
        let (timer, first) = self.shared().timers.arm(at_ns, self.waiter(), self.worker().index);
        if first {
            self.shared().earlier_timer();
        }
        timer
    }

    #[inline]
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::task(self.task)
    }

    /// What is left of this task's budget, including what it has drawn and not spent.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let mut left = self.task.budget();
        left.put(&self.task.in_hand());
        left
    }

    /// Sets this task's priority.
    pub fn set_priority(&self, priority: Priority) {
        self.task.priority.store(priority as u8, Ordering::Relaxed);
    }

    /// The right to spawn, if this task has it.
    #[must_use]
    pub fn cap_spawn(&self) -> Option<CapSpawn> {
        self.may(flag::MAY_SPAWN).then(CapSpawn::new)
    }

    /// The right to recharge this task, up to `limit` in all, if the task may have it. Children can be lent it by
    /// reference.
    pub fn cap_budget(&self, limit: Budget) -> Result<CapBudget, RechargeError> {
        if self.may(flag::MAY_RECHARGE) {
            Ok(CapBudget::new(limit))
        } else {
            Err(RechargeError::NoCapability)
        }
    }

    /// Recharges this task out of a capability's limit.
    pub fn recharge(&self, capability: &CapBudget, amount: &Budget) -> Result<(), RechargeError> {
        ensure_stack(self.task);
        capability.take(amount)?;
        refill(self.task, amount, Some(self.worker()));
        Ok(())
    }

    /// Whether the task holds this capability, or the profile grants it to every task.
    #[inline]
    pub(crate) fn may(&self, capability: u16) -> bool {
        // A task with an exact budget cannot give itself more unless it was granted that right, nor can its children
        // for it.
        if capability == flag::MAY_RECHARGE && self.task.has(flag::BOUND) {
            return self.task.has(capability);
        }
        self.task.has(capability) || matches!(self.shared().config.profile, Profile::Service)
    }
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("task", &self.id()).finish()
    }
}

/// Memory that is charged to a task: see [`Cx::hold_memory`].
#[derive(Debug)]
#[must_use = "it is credited when this is dropped"]
pub struct Held<'a> {
    cx: &'a Cx,
    bytes: u64,
}

impl<'a> Held<'a> {
    /// How many bytes are charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over the charge of `more`, so that one value stands for memory that grows.
    ///
    /// # Panics
    /// If `more` belongs to another task.
    pub fn absorb(&mut self, more: Held<'a>) {
        assert!(std::ptr::eq(self.cx, more.cx), "memory of two tasks cannot be held together");
        self.bytes += more.bytes;
        std::mem::forget(more);
    }

    /// Credits a part of the memory now, at most what is still held.
    pub fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.cx.task.fill(Resource::Memory, bytes);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cx.task.fill(Resource::Memory, self.bytes);
    }
}

/// Counts a loop's iterations: see [`Cx::ticker`].
#[derive(Debug)]
pub struct Ticker<'a> {
    cx: &'a Cx,
    left: u64,
    /// The value of `left` after the last charge.
    granted: u64,
    interval: u64,
}

impl Ticker<'_> {
    /// Counts one iteration; checks when the interval is over.
    #[inline(always)]
    #[track_caller]
    pub fn tick(&mut self) -> Result<(), Cancelled> {
        self.left -= 1;
        if self.left == 0 { self.charge(Location::caller()) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn charge(&mut self, at: &'static Location<'static>) -> Result<(), Cancelled> {
        let count = std::mem::replace(&mut self.granted, self.interval);
        self.left = self.interval;
        let fuel = self.cx.task.fuel.get() - count as i64;
        self.cx.task.fuel.set(fuel);
        if fuel < 0 { self.cx.refuel(count, at) } else { Ok(()) }
    }
}

impl Drop for Ticker<'_> {
    /// Charges the iterations since the last check. A task that has no budget left for them stops at its next check.
    fn drop(&mut self) {
        let open = self.granted - self.left;
        let task = self.cx.task;
        let in_hand = task.fuel.get().max(0) as u64;
        if in_hand >= open {
            // Nothing is open, or all of it is in hand.
            task.fuel.set(task.fuel.get() - open as i64);
        } else {
            // Not drawn yet: the task never checked, or its quantum is at its end.
            task.fuel.set(task.fuel.get().min(0));
            task.draw(Resource::Ops, open - in_hand);
        }
    }
}
