//! A worker: SPEC-021 [SCHED:6.1.1] "Worker Structure", [SCHED:6.3.1] "Worker Loop", [SCHED:6.4.1] to [SCHED:6.4.5]
//! "Thread-Local Yield Mechanism".
//!
//! A worker runs tasks on one OS thread. A task that leaves (it yields, sleeps, ends) picks the next one itself and
//! switches straight to it. Only a worker that has nothing to do goes back to the thread's own stack, where it
//! searches, backs off and parks. Work that must be done for the task that was switched out, once its registers are
//! saved, is noted in `pending` and done by the next code that runs on this worker.
//!
//! Invariants:
//! 1. Fields of the type `Cell` are touched only by the worker's own thread.
//! 2. After a switch a task may be on another worker: no code keeps a `&Worker` across a switch; it reads `task.worker`
//!    anew.
//! 3. A task that ends leaves its stack to the next task that never ran, without a switch, so that short tasks share
//!    one stack that is hot in the cache.
//! 4. Only the worker's own thread pushes into its deque and rings; other threads use the common queue or the inbox.
//! 5. Stacks are made on the thread's own stack only. Making one takes the kernel, the allocator and a lock, and a
//!    small stack may have no room for all of it: a task abandoned there would keep the lock, and take the task that it
//!    had picked with it. So a task that finds no stack for the next one leaves that `in_hand` and goes back to the
//!    thread's own stack.

use crate::account;
use crate::alloc::Quiet;
use crate::context::{Context, switch};
use crate::cx::floor;
use crate::deque::{Deque, Steal};
use crate::det::Det;
use crate::error::{SpawnError, TaskError};
use crate::family::{self, Cause};
use crate::io::Io;
use crate::join::Finished;
use crate::nursery::Nursery;
use crate::ring::Ring;
use crate::runtime::Shared;
use crate::stack::{Stack, StackClass};
use crate::state::Event;
use crate::stats::Counters;
use crate::task::{Outcome, Priority, Task, TaskCache, TaskRef, Wait, flag};
use crate::thread_cpu::ThreadCpu;
use crate::waiter::Waiter;
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

mod fiber;
mod rest;
mod shelf;

pub(crate) use fiber::drop_result;
use fiber::{ending, fiber_main, fiber_returned, pass_on_error};
use rest::Rest;
pub(crate) use shelf::{Beacon, Inbox, Seen};

/// How many picks may pass before the common queue, and before the rings, are looked at first, so that local work
/// starves neither. Two primes, so that the two rarely coincide.
const COMMON_EVERY: u32 = 61;
const RINGS_EVERY: u32 = 13;

/// How many tasks that wait for their first run one worker holds. More go to the common queue.
const DEQUE: usize = 2048;
/// The same for tasks that ran before, by priority: low, normal, high. Thousands of connections may be ready at once.
const RINGS: [usize; 3] = [512, 4096, 512];
/// How many stacks of each class a worker keeps at hand.
const STACKS: usize = 64;

/// What is to be done for the task that was switched out, once its registers are saved.
enum Pending {
    Nothing,
    /// It yielded.
    Requeue(TaskRef),
    /// It sleeps.
    Sleep(TaskRef, Event),
    /// It ended; this is its stack.
    Release(Stack),
    /// As `Release`, for a stack whose guard could not be restored.
    Retire(Stack),
    /// It ended, with a result that is not wanted any more.
    Discard(TaskRef, Stack),
    /// It was abandoned where it stood. The cause, if it is the culprit; `None` if it is given up with its family.
    Abandoned(TaskRef, Option<Cause>),
}

/// What to do after a task's end.
enum After {
    /// Pick another task.
    Pick,
    /// Run this task, which waited for the one that ended.
    Next(TaskRef),
    /// Drop the task's result, on the thread's own stack.
    Discard(TaskRef),
}

/// See the module.
#[repr(align(128))]
pub(crate) struct Worker {
    pub(crate) shared: *const Shared,
    pub(crate) index: u16,
    /// Not a worker of the configuration: a spare serves the queues of a stuck worker.
    pub(crate) spare: bool,
    context: UnsafeCell<Context>,
    /// Where the registers of a task that has ended are saved; they are never restored.
    grave: UnsafeCell<Context>,
    pub(crate) current: AtomicPtr<Task>,
    pending: UnsafeCell<Pending>,
    /// The next task, for which a stack must be made first (invariant 5).
    in_hand: Cell<Option<TaskRef>>,
    tick: Cell<u32>,
    /// The next victim, for the strategy `RoundRobin`.
    pub(crate) turn: Cell<usize>,
    /// The victim that had one task at the last look, and its epoch at that time.
    pub(crate) last_look: Cell<(u16, u64)>,
    pub(crate) seen: Seen,
    ids: Cell<u64>,
    pub(crate) rng: Cell<u64>,
    tasks: UnsafeCell<TaskCache>,
    stacks: UnsafeCell<[Vec<Stack>; 5]>,
    /// The virtual workers of deterministic mode.
    det: UnsafeCell<Option<Det>>,
    pub(crate) counters: Counters,
    pub(crate) beacon: Beacon,
    pub(crate) deque: Deque<Task>,
    pub(crate) rings: [Ring<Task>; 3],
    /// A ring was full, and the tasks that it refused are in the inbox: later tasks must not overtake them.
    spilled: Cell<bool>,
    pub(crate) inbox: Inbox,
    pub(crate) steal_enabled: AtomicBool,
    pub(crate) thread: Mutex<Option<Thread>>,
    pub(crate) cpu: ThreadCpu,
    pub(crate) rest: Rest,
    pub(crate) io: Io,
    /// The epoch at which the watchdog last named a hog here: each is named once.
    pub(crate) hogged: AtomicU64,
    /// For tests: the worker's loop shall panic.
    pub(crate) panic_wanted: AtomicBool,
    /// For a spare: it is to go back to sleep.
    pub(crate) retired: AtomicBool,
    /// A task was abandoned here between any two instructions: this thread's thread-locals may be half changed, and
    /// `std` may count the thread as panicking for ever.
    pub(crate) stained: Cell<bool>,
    /// A description of that task, if it did not end in order: it may hold locks of this thread.
    pub(crate) stained_by: Cell<Option<Arc<str>>>,
}

// SAFETY: invariant 1; the rest is atomic or locked.
unsafe impl Sync for Worker {}
// SAFETY: as above.
unsafe impl Send for Worker {}

thread_local! {
    /// The yield pointer of [SCHED:6.4.1]: the worker of this thread. Only `bind_thread` and `unbind_thread` write it.
    static WORKER: Cell<*const Worker> = const { Cell::new(ptr::null()) };
}

/// The worker whose thread this is. Never inlined: a caller must not keep the address of a thread-local across a
/// switch.
#[inline(never)]
pub(crate) fn current_worker() -> Option<&'static Worker> {
    // SAFETY: a worker's thread ends before its runtime does.
    unsafe { WORKER.get().as_ref() }
}

impl Worker {
    /// Makes worker `index` of `count`.
    pub(crate) fn new(index: u16, count: usize, spare: bool, seed: u64) -> Worker {
        Worker {
            shared: ptr::null(),
            index,
            spare,
            context: UnsafeCell::new(Context::default()),
            grave: UnsafeCell::new(Context::default()),
            current: AtomicPtr::new(ptr::null_mut()),
            pending: UnsafeCell::new(Pending::Nothing),
            in_hand: Cell::new(None),
            tick: Cell::new(0),
            turn: Cell::new(usize::from(index)),
            last_look: Cell::new((u16::MAX, 0)),
            seen: Seen::new(count),
            ids: Cell::new(0),
            rng: Cell::new(crate::det::scramble(seed ^ u64::from(index) << 32)),
            tasks: UnsafeCell::new(TaskCache::new()),
            // Reserved here, as a task that ends has no room on its stack to allocate.
            stacks: UnsafeCell::new(std::array::from_fn(|_| Vec::with_capacity(STACKS))),
            det: UnsafeCell::new(None),
            counters: Counters::default(),
            beacon: Beacon::default(),
            deque: Deque::new(DEQUE),
            rings: RINGS.map(Ring::new),
            spilled: Cell::new(false),
            inbox: Inbox::new(),
            steal_enabled: AtomicBool::new(true),
            thread: Mutex::new(None),
            cpu: ThreadCpu::default(),
            rest: Rest::new(),
            io: Io::new(),
            hogged: AtomicU64::new(u64::MAX),
            panic_wanted: AtomicBool::new(false),
            retired: AtomicBool::new(spare),
            stained: Cell::new(false),
            stained_by: Cell::new(None),
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the runtime owns the worker.
        unsafe { &*self.shared }
    }

    /// The task that runs here.
    #[inline]
    pub(crate) fn task(&self) -> Option<TaskRef> {
        let task = NonNull::new(self.current.load(Ordering::Relaxed))?;
        // SAFETY: only pointers to tasks are stored there.
        Some(unsafe { TaskRef::from_ptr(task) })
    }

    fn set_current(&self, task: Option<TaskRef>) {
        self.current.store(task.map_or(ptr::null_mut(), |task| task.as_ptr().as_ptr()), Ordering::Relaxed);
    }

    /// The worker's own resume point, for the overflow handler.
    pub(crate) fn context(&self) -> *const Context {
        self.context.get()
    }

    /// # Safety
    /// Only on the worker's own thread.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the thread's own (invariant 1)")]
    pub(crate) unsafe fn det(&self) -> Option<&mut Det> {
        // SAFETY: invariant 1, and no caller keeps it across a call that asks again.
        unsafe { (*self.det.get()).as_mut() }
    }

    /// A number that no other task of this runtime has.
    #[inline]
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.ids.get() + 1;
        self.ids.set(id);
        id * (self.shared().workers.len() as u64 + 1) + u64::from(self.index)
    }

    /// A free task.
    #[inline]
    pub(crate) fn new_task(&self) -> TaskRef {
        // SAFETY: invariant 1.
        unsafe { (*self.tasks.get()).take(&self.shared().tasks) }
    }

    #[inline]
    pub(crate) fn free_task(&self, task: TaskRef) {
        // SAFETY: invariant 1.
        unsafe { (*self.tasks.get()).give(task, &self.shared().tasks) }
    }

    /// Takes a stack, a hot one if there is one. `None`: one must be made (invariant 5).
    #[inline]
    fn take_stack(&self, class: StackClass) -> Option<Stack> {
        // SAFETY: invariant 1.
        let cache = unsafe { &mut (*self.stacks.get())[class as usize] };
        cache.pop().or_else(|| self.shared().stacks.take_made(class))
    }

    #[inline]
    fn give_stack(&self, stack: Stack) {
        // SAFETY: invariant 1.
        let cache = unsafe { &mut (*self.stacks.get())[stack.class() as usize] };
        if cache.len() >= STACKS {
            self.shared().stacks.give_many(cache.drain(..STACKS / 2));
        }
        cache.push(stack);
    }

    /// Puts a ready task into one of this worker's queues. Only on the worker's own thread.
    #[inline]
    pub(crate) fn push(&self, task: TaskRef) {
        // SAFETY: on the worker's own thread.
        if let Some(det) = unsafe { self.det() } {
            det.push(task);
            return;
        }
        if self.spilled.get() && self.follows_spilled(task) {
            return;
        }
        let priority = Priority::from_bits(task.priority.load(Ordering::Relaxed));
        let pointer = task.as_ptr();
        // SAFETY: invariant 4.
        let pushed = unsafe {
            if priority == Priority::Normal && !task.started() {
                self.deque.push(pointer)
            } else {
                self.rings[priority as usize].push(pointer)
            }
        };
        match pushed {
            Ok(()) => self.beacon.keep(1),
            // It must stay with this thread, but any worker may take from the common queue: so it goes to the inbox.
            Err(_) if task.started() && !self.shared().config.migrates() => {
                self.inbox.push(task);
                self.spilled.set(true);
            }
            Err(_) => self.shared().common.push(task),
        }
    }

    /// The rings were full: as long as the inbox is not empty, new tasks queue there too. Otherwise the tasks that a
    /// full ring refused would wait until the ring is empty, which under load is never.
    #[cold]
    fn follows_spilled(&self, task: TaskRef) -> bool {
        self.spilled.set(!self.inbox.is_empty());
        let follows = self.spilled.get() && task.started();
        if follows {
            self.inbox.push(task);
        }
        follows
    }

    /// The next task of this worker, or of the common queue, or one whose I/O has ended.
    #[inline]
    pub(crate) fn pick(&self) -> Option<TaskRef> {
        // SAFETY: on the worker's own thread.
        if let Some(det) = unsafe { self.det() } {
            return det.pick(self.shared());
        }
        match self.pick_queued() {
            None if self.io.turn(self) => self.pick_queued(),
            found => found,
        }
    }

    #[inline]
    fn pick_queued(&self) -> Option<TaskRef> {
        let tick = self.tick.get().wrapping_add(1);
        self.tick.set(tick);
        if tick.is_multiple_of(COMMON_EVERY)
            && let Some(task) = self.pick_rarely()
        {
            return Some(task);
        }
        let [low, normal, high] = &self.rings;
        let wrap = |pointer| {
            self.beacon.keep(-1);
            // SAFETY: only tasks are in the queues.
            unsafe { TaskRef::from_ptr(pointer) }
        };
        if !high.is_empty()
            && let Some(task) = high.pop()
        {
            return Some(wrap(task));
        }
        if tick.is_multiple_of(RINGS_EVERY)
            && let Some(task) = normal.pop()
        {
            return Some(wrap(task));
        }
        // SAFETY: invariant 4.
        if let Some(task) = unsafe { self.deque.pop() } {
            return Some(wrap(task));
        }
        if let Some(task) = normal.pop() {
            return Some(wrap(task));
        }
        if let Some(task) = self.inbox.pop() {
            return Some(task);
        }
        if let Some(task) = self.pick_common() {
            return Some(task);
        }
        low.pop().map(wrap)
    }

    /// A task of this worker's own queues. For a spare that hands over.
    pub(crate) fn pick_own(&self) -> Option<TaskRef> {
        // SAFETY: invariant 4.
        let task = unsafe { self.deque.pop() }.or_else(|| self.rings.iter().find_map(Ring::pop));
        if task.is_some() {
            self.beacon.keep(-1);
        }
        // SAFETY: only tasks are in the queues.
        task.map(|task| unsafe { TaskRef::from_ptr(task) })
    }

    /// Looks at everything that local work must not starve: timers, I/O, the common queue, low priority.
    #[cold]
    fn pick_rarely(&self) -> Option<TaskRef> {
        self.shared().fire_timers(Some(self));
        self.io.turn(self);
        let turn = self.tick.get() / COMMON_EVERY;
        match turn % 3 {
            0 => self.rings[0].pop().map(|task| {
                self.beacon.keep(-1);
                // SAFETY: only tasks are in the queues.
                unsafe { TaskRef::from_ptr(task) }
            }),
            1 => self.inbox.pop().or_else(|| self.pick_common()),
            _ => self.pick_common().or_else(|| self.inbox.pop()),
        }
    }

    /// Takes one task of the common queue, and moves a few more into this worker's own queue.
    fn pick_common(&self) -> Option<TaskRef> {
        let common = &self.shared().common;
        if common.is_empty() {
            return None;
        }
        common.pop(self.shared().active_workers(), |task| {
            // In pinned mode no worker steals from rings: a task that never ran would be stuck there behind a hog.
            // SAFETY: invariant 4.
            let kept = unsafe {
                if self.shared().config.migrates() {
                    self.rings[1].push(task.as_ptr()).is_ok()
                } else {
                    self.deque.push(task.as_ptr()).is_ok()
                }
            };
            if kept {
                self.beacon.keep(1);
            }
            kept
        })
    }

    /// Makes `task` the one that runs here. `None`: a stack must be made for it first. Then the task is in hand, and
    /// the caller goes to the thread's own stack (invariant 5).
    #[inline(always)]
    fn enter(&self, task: TaskRef) -> Option<*const Context> {
        if !task.started() {
            let Some(stack) = self.take_stack(task.class.get()) else {
                self.in_hand.set(Some(task));
                return None;
            };
            self.equip(task, stack);
        }
        task.worker.set(self);
        self.begin(task);
        Some(task.context.get())
    }

    /// Prepares a task that never ran to begin on this stack.
    #[inline]
    fn equip(&self, task: TaskRef, stack: Stack) {
        // SAFETY: the stack is ours and empty; the task is ours.
        unsafe {
            let argument = task.as_ptr().as_ptr().cast::<u8>();
            *task.context.get() = Context::new(stack.top(), fiber_main, argument, fiber_returned);
            task.floor.set(floor(&stack));
            *task.stack.get() = Some(stack);
        }
        task.home.set(self.index);
    }

    /// As `enter`, for the task in hand, on the thread's own stack. `None`: there is no stack for it, and it has
    /// failed.
    #[cold]
    fn enter_on_new(&self) -> Option<*const Context> {
        let task = self.in_hand.take()?;
        let made = {
            let _quiet = Quiet::new();
            self.shared().stacks.take(task.class.get())
        };
        match made {
            Ok(stack) => {
                self.equip(task, stack);
                self.enter(task)
            }
            Err(_) => {
                self.no_stack(task);
                None
            }
        }
    }

    #[inline]
    fn begin(&self, task: TaskRef) {
        task.word.run();
        self.set_current(Some(task));
        self.beacon.move_on();
        self.shared().log_run(self, task);
    }

    #[cold]
    fn no_stack(&self, task: TaskRef) {
        if task.has(flag::BURIED) {
            family::abort(task, Cause::NoStack);
        }
        task.worker.set(self);
        task.word.run();
        // SAFETY: the task never ran, so its closure is there, and the task is ours.
        unsafe {
            (task.vtable.get().expect("a task has a vtable").drop_closure)(task);
            *task.outcome.get() =
                Outcome::Error(Box::new(TaskError::Failed(std::sync::Arc::new(SpawnError::OutOfMemory))));
        }
        pass_on_error(task);
        match self.finish(task) {
            After::Pick => {}
            After::Next(joiner) => self.push(joiner),
            After::Discard(task) => self.discard(task),
        }
    }

    /// Switches away from `me`, which continues when some worker resumes it. Called on the fiber of `me`.
    ///
    /// # Safety
    /// `me` runs on this worker, and the caller is `me`.
    #[inline]
    unsafe fn leave(&self, me: TaskRef, pending: Pending, next: Option<TaskRef>) {
        // SAFETY: invariant 1; the last pending work was done when `me` was entered.
        unsafe { *self.pending.get() = pending };
        let to = match next.and_then(|task| self.enter(task)) {
            Some(context) => context,
            None => {
                self.set_current(None);
                self.context.get().cast_const()
            }
        };
        // SAFETY: `to` is suspended, and ours to resume: a task that we picked, or our own thread.
        unsafe { switch(me.context.get(), to) };
        // We may be on another worker now (invariant 2).
        // SAFETY: the worker that resumed us wrote the pointer.
        unsafe { &*me.worker.get() }.settle();
    }

    /// Does the pending work for the task that was switched out, now that its registers are saved.
    #[inline(always)]
    fn settle(&self) {
        // SAFETY: invariant 1.
        let pending = unsafe { std::mem::replace(&mut *self.pending.get(), Pending::Nothing) };
        match pending {
            Pending::Nothing => {}
            Pending::Requeue(task) => {
                self.push(task);
                self.shared().notify_wake(self);
            }
            Pending::Sleep(task, event) => self.put_to_sleep(task, event),
            Pending::Release(stack) => self.give_stack(stack),
            Pending::Retire(stack) => self.shared().stacks.retire(stack),
            Pending::Discard(task, stack) => {
                self.discard(task);
                self.shared().stacks.recycle(stack);
            }
            Pending::Abandoned(task, cause) => self.bury(task, cause),
        }
    }

    #[inline]
    fn put_to_sleep(&self, task: TaskRef, event: Event) {
        let sleep = || {
            if !task.word.sleep(event) {
                self.push(task);
            }
        };
        // SAFETY: the task has not slept yet, so its nursery is there.
        let nursery = unsafe { task.nursery.get().as_ref() };
        match nursery {
            Some(nursery) if event == Event::Exhaust || nursery.is_starving() => {
                nursery.watch_sleep(event == Event::Exhaust, Some(self), sleep);
            }
            _ => sleep(),
        }
    }

    /// Lets other tasks run, if any are ready. On the fiber of `me`.
    #[inline]
    pub(crate) fn yield_now(&self, me: TaskRef) {
        if let Some(next) = self.pick() {
            Counters::add(&self.counters.yields);
            self.shared().log_leave(self, me, Event::Yield);
            // SAFETY: the caller is `me`.
            unsafe { self.leave(me, Pending::Requeue(me), Some(next)) };
        } else {
            // The task is alone, but not a hog: the watchdog sees that it checks.
            self.beacon.move_on();
        }
    }

    /// Sleeps once, until woken. On the fiber of `me`; callers loop.
    #[inline]
    pub(crate) fn sleep(&self, me: TaskRef, event: Event, wait: Wait, at: &'static Location<'static>) {
        if me.flags.load(Ordering::Relaxed) & flag::LISTED == 0 {
            // SAFETY: the task runs, so its nursery is there.
            if let Some(nursery) = unsafe { me.nursery.get().as_ref() } {
                nursery.list(me);
            }
        }
        me.waits_for.store(wait as u8, Ordering::Relaxed);
        me.waits_at.store(ptr::from_ref(at).cast_mut(), Ordering::Relaxed);
        let next = self.pick();
        self.shared().log_leave(self, me, event);
        // SAFETY: the caller is `me`.
        unsafe { self.leave(me, Pending::Sleep(me, event), next) };
        me.waits_for.store(Wait::None as u8, Ordering::Relaxed);
    }

    /// Runs `task` from the thread's own stack until the worker has nothing to run.
    pub(crate) fn resume(&self, task: TaskRef) {
        let mut next = Some(task);
        while let Some(task) = next {
            self.set_current(Some(task));
            if self.panic_wanted.swap(false, Ordering::AcqRel) {
                panic!("a test asked this worker to panic with a task in hand");
            }
            if let Some(context) = self.enter(task).or_else(|| self.enter_on_new()) {
                // SAFETY: the task is ours to resume; our own context is free.
                unsafe { switch(self.context.get(), context) };
                self.settle();
            }
            next = self.in_hand.take();
        }
    }

    /// Ends a task: its result goes to its handle, its unused budget to its nursery. The task is not touched
    /// afterwards, and its stack was taken from it before.
    #[inline]
    #[must_use = "what comes after is the caller's"]
    fn finish(&self, task: TaskRef) -> After {
        self.set_current(None);
        self.shared().log_leave(self, task, Event::Return);
        Counters::add(&self.counters.completed);
        // Memory that is freed later is credited to the pool; this must precede the count of what is left.
        account::retire(&task.account);
        // SAFETY: the task is ours until `join.finish`.
        let (event, error) = unsafe { ending(task) };
        task.word.end(event);
        let nursery = task.nursery.get();
        // SAFETY: invariant 1 of the nursery: it is there until we leave it.
        let nursery: Option<&Nursery> = unsafe { nursery.as_ref() };
        if let Some(nursery) = nursery {
            nursery.child_ended(task, error, Some(self));
        }
        let mut after = After::Pick;
        // SAFETY: the task is ours until `join.finish`.
        if matches!(unsafe { &*task.outcome.get() }, Outcome::Lost) {
            // Its handle is never told: otherwise a task that joins it would go on. The task's memory is never reused.
            if let Some(nursery) = nursery {
                nursery.leave(Some(self));
            }
            return after;
        }
        match task.join.finish() {
            Finished::Kept => {}
            Finished::Unwanted => {
                // SAFETY: we are the only owner left.
                let late = match unsafe { &*task.outcome.get() } {
                    Outcome::Value => true,
                    Outcome::Error(error) => matches!(**error, TaskError::Failed(_)),
                    _ => false,
                };
                if late {
                    return After::Discard(task);
                }
                // SAFETY: as above; the result contains nothing of the user's.
                unsafe { drop_result(task) };
                self.free_task(task);
            }
            Finished::Awaited(waiter) => after = self.wake_joiner(Waiter::from_bits(waiter)),
        }
        if let Some(nursery) = nursery {
            nursery.leave(Some(self));
        }
        after
    }

    /// A task that waited for this very task continues at once, if it may run here: it need not queue, and the result
    /// is still in the cache. Other tasks do not starve: spawning costs operations, and a quantum ends.
    #[inline]
    fn wake_joiner(&self, waiter: Waiter) -> After {
        let shared = self.shared();
        let Some(joiner) = waiter.as_task().filter(|joiner| ptr::eq(joiner.shared, shared)) else {
            waiter.wake(Some(self));
            return After::Pick;
        };
        let stays = shared.is_deterministic() || !shared.config.migrates();
        // Only the joiner itself may change its home, until the wake has made it ours: it may have given up long ago.
        match joiner.word.wake_to(|| joiner.home.get()) {
            None => After::Pick,
            Some(home) if stays && (shared.is_deterministic() || home != self.index) => {
                shared.enqueue(joiner, Some(self));
                After::Pick
            }
            Some(_) => After::Next(joiner),
        }
    }

    /// The rest of `finish`, for a result whose handle was dropped at the last moment. Its destructor is the user's
    /// code and may need more than what is left of a lean stack, so this runs on the thread's own stack; and before the
    /// nursery is left, as the result may borrow from there.
    #[cold]
    fn discard(&self, task: TaskRef) {
        let nursery = task.nursery.get();
        // SAFETY: nobody else has the task; its nursery is there until we leave it.
        unsafe {
            drop_result(task);
            self.free_task(task);
            if let Some(nursery) = nursery.as_ref() {
                nursery.leave(Some(self));
            }
        }
    }

    /// Called after switching away from a task that was abandoned. Its frames stay as they are for ever.
    #[cold]
    fn bury(&self, task: TaskRef, cause: Option<Cause>) {
        self.set_current(None);
        if cause == Some(Cause::Stack) {
            Counters::add(&self.counters.overflows);
        }
        // We are on the thread's own stack, on which nothing panics: a panic that `std` still counts was the task's.
        if cause.is_some() || std::thread::panicking() {
            self.stained.set(true);
        }
        let who: Arc<str> = family::Described(task).to_string().into();
        if cause.is_some() {
            let mut last = self.shared().last_given_up.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(who.clone());
        }
        // Where tasks stay on their threads, any of them may hold an output across a wait.
        if !self.shared().config.migrates() {
            crate::output::suspect(who);
        } else if cause.is_some() {
            self.stained_by.set(Some(who));
        }
        if let Some(cause) = cause
            && !family::is_doomed(task)
        {
            family::give_up(task, cause, self);
        }
        self.shared().bury(task, self);
    }

    /// Abandons the running task `me` where it stands: it goes no further, see `bury`.
    ///
    /// # Safety
    /// The caller is `me`, on its own fiber, and holds no lock of the runtime.
    #[cold]
    pub(crate) unsafe fn abandon(&self, me: TaskRef, cause: Option<Cause>) -> ! {
        // SAFETY: invariant 1; the last pending work was done when `me` was entered. The worker's own context waits
        // where it resumed a task, and `me` is never resumed there again.
        unsafe {
            *self.pending.get() = Pending::Abandoned(me, cause);
            switch(me.context.get(), self.context.get());
        }
        std::process::abort();
    }

    /// Called by the overflow handler, on the signal stack: leaves a note for `settle`.
    pub(crate) fn abandon_current(&self) {
        if let Some(task) = self.task() {
            // SAFETY: on the worker's own thread; the task's last pending work was done when it was entered, and the
            // overwritten value needs no drop.
            unsafe { ptr::write(self.pending.get(), Pending::Abandoned(task, Some(Cause::Stack))) };
        }
    }

    /// Called after the worker's loop panicked, which is a bug of the runtime. The task that it had in hand is not
    /// lost: a task that has started goes on, one that has not ends with that error.
    pub(crate) fn recover(&self) {
        Counters::add(&self.counters.worker_panics);
        let Some(task) = self.task() else { return };
        self.set_current(None);
        if task.started() {
            self.push(task);
            return;
        }
        task.word.run();
        // SAFETY: the task never ran, so its closure is there, and the task is ours.
        unsafe {
            (task.vtable.get().expect("a task has a vtable").drop_closure)(task);
            *task.outcome.get() = Outcome::WorkerPanic;
        }
        match self.finish(task) {
            After::Pick => {}
            After::Next(joiner) => self.push(joiner),
            After::Discard(task) => self.discard(task),
        }
    }

    /// Makes the calling thread this worker's: sets the thread-local, and the thread to unpark.
    pub(crate) fn bind_thread(&self) {
        WORKER.set(self);
        self.cpu.bind();
        *self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(std::thread::current());
    }

    /// The calling thread does not belong to a worker any more.
    pub(crate) fn unbind_thread() {
        WORKER.set(ptr::null());
    }

    /// # Safety
    /// Before the worker's thread starts.
    pub(crate) unsafe fn make_deterministic(&self, det: Det) {
        // SAFETY: no other thread has the worker yet.
        unsafe { *self.det.get() = Some(det) };
    }

    /// Steals from `victim`: a task that never ran or, if tasks may migrate, one that did.
    pub(crate) fn steal_from(&self, victim: &Worker) -> Option<TaskRef> {
        let mut queues: [Option<&Ring<Task>>; 3] = [None; 3];
        if self.shared().config.migrates() {
            let [low, normal, high] = &victim.rings;
            queues = [Some(high), Some(normal), Some(low)];
        }
        let mut taken = match victim.deque.steal() {
            Steal::Taken(task) => Some(task),
            _ => None,
        };
        for ring in queues.into_iter().flatten() {
            if taken.is_some() {
                break;
            }
            if let Steal::Taken(task) = ring.steal() {
                taken = Some(task);
            }
        }
        if taken.is_some() {
            victim.beacon.stolen.0.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: only tasks are in the queues.
        taken.map(|task| unsafe { TaskRef::from_ptr(task) })
    }

    /// About how many tasks a thief would find here, at the cost of reading the beacon. In pinned mode no worker may
    /// take what is in the rings, and looking for it would keep the others awake.
    #[inline]
    pub(crate) fn takeable(&self) -> usize {
        match self.beacon.load() {
            0 => 0,
            there if self.shared().config.migrates() => there,
            there => there.min(self.deque.len()),
        }
    }

    /// How many tasks a thief would find here, counted in the queues themselves.
    pub(crate) fn stealable(&self) -> usize {
        let rings = if self.shared().config.migrates() { self.rings.iter().map(Ring::len).sum() } else { 0 };
        self.deque.len() + rings
    }
}
