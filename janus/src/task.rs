//! A task: SPEC-021 [SCHED:5.1.1] "Task Structure", and the slabs that tasks live in.
//!
//! Invariants:
//! 1. The memory of a task stays a task until its runtime is gone ("type-stable"): a late wake finds a task there,
//!    perhaps another one, and costs it one look (see `wake.rs`). That is why a [`TaskRef`] may be copied freely.
//! 2. Fields of the type `Cell` belong to the current owner of the task: its maker until it is queued, then the worker
//!    that picked it, then the task itself. A queue hands the ownership over. All other threads only read atomics.
//! 3. `payload` holds the closure until the task first runs, then its list of scopes (`cancel.rs`), then its result; `vtable`
//!    knows the types.
//!
//! This file does not schedule.

use crate::account::Account;
use crate::alloc::Quiet;
use crate::budget::{Budget, Resource, UNLIMITED, put};
use crate::cancel::Node;
use crate::context::Context;
use crate::cx::UNFUELLED;
use crate::error::TaskError;
use crate::join::Join;
use crate::names::{Name, Slot};
use crate::nursery::{Nursery, OnExhausted};
use crate::runtime::Shared;
use crate::stack::{Stack, StackClass};
use crate::wake::Word;
use crate::worker::Worker;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

/// Bytes of closure or result that need no memory of their own.
pub(crate) const INLINE: usize = 48;

/// A scheduling hint [SCHED:5.1.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Priority {
    /// Runs when nothing else is ready, and every so often nevertheless.
    Low = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// Runs before the other tasks of its worker.
    High = 2,
}

impl Priority {
    pub(crate) fn from_bits(bits: u8) -> Priority {
        match bits {
            0 => Priority::Low,
            2 => Priority::High,
            _ => Priority::Normal,
        }
    }
}

/// What a task waits for, as shown in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// Nothing, or only its turn on a worker.
    None = 0,
    /// A child's end.
    Join = 1,
    /// All children of a nursery.
    Nursery = 2,
    /// Room in a channel.
    Send = 3,
    /// A message.
    Recv = 4,
    /// The first of several events.
    Select = 5,
    /// A time.
    Sleep = 6,
    /// A recharge of its budget.
    Recharge = 7,
    /// The kernel: a socket, a file, a child process.
    Io = 8,
    /// A lock, or another primitive of [`sync`](crate::sync).
    Lock = 9,
}

impl Wait {
    /// Every reason, by number.
    pub(crate) const ALL: [Wait; 10] = [
        Wait::None,
        Wait::Join,
        Wait::Nursery,
        Wait::Send,
        Wait::Recv,
        Wait::Select,
        Wait::Sleep,
        Wait::Recharge,
        Wait::Io,
        Wait::Lock,
    ];

    /// Whether the wait ends by itself, without a task of the same nursery having to act.
    pub(crate) fn is_outside(bits: u8) -> bool {
        bits == Wait::Sleep as u8 || bits == Wait::Io as u8
    }
}

/// The types behind a task's payload.
pub(crate) struct Vtable {
    /// Runs the closure and stores its result or outcome. On the task's own stack.
    pub(crate) run: unsafe fn(TaskRef),
    /// Drops a closure that never ran.
    pub(crate) drop_closure: unsafe fn(TaskRef),
    /// Drops a result that is not wanted.
    pub(crate) drop_value: unsafe fn(TaskRef),
}

/// How a task ended. `Value`: the payload holds its result.
#[derive(Debug)]
pub(crate) enum Outcome {
    Pending,
    Value,
    /// There was a result, and it was not wanted.
    Gone,
    Cancelled,
    StackOverflow,
    WorkerPanic,
    Budget(Resource),
    Error(Box<TaskError>),
    /// The task was given up with its family: only the parent of the whole family learns of it.
    Lost,
}

/// What [`Task::draw_all`] found.
pub(crate) enum Drawn {
    All,
    /// Nothing was taken, and nothing needs to be: the component is infinite.
    Infinite,
    /// Nothing was taken: only this much is there.
    Short(u64),
}

/// Bits of [`Task::flags`].
pub(crate) mod flag {
    /// The task was asked to end.
    pub(crate) const CANCEL: u16 = 1;
    /// The task's family is given up: it stops at its next check or wait, and never goes on (see `family.rs`).
    pub(crate) const DOOMED: u16 = 2;
    /// The task is in its nursery's list of children.
    pub(crate) const LISTED: u16 = 4;
    /// The task has allocated beyond its memory budget.
    pub(crate) const OVERDRAWN: u16 = 8;
    /// The task is exhausted, and nobody is left to recharge it: it is to end with that error.
    pub(crate) const SPENT: u16 = 16;
    /// Holds a `CapSpawn`.
    pub(crate) const MAY_SPAWN: u16 = 32;
    /// May make a `CapBudget`.
    pub(crate) const MAY_RECHARGE: u16 = 64;
    /// The task's budget was asked for exactly: no pool adds to it automatically.
    pub(crate) const FIXED: u16 = 256;
    /// The task lives on a budget that was asked for exactly, its own or that of an ancestor: it cannot give itself
    /// more unless it was granted that right.
    pub(crate) const BOUND: u16 = 512;
    /// The task has seen that it was cancelled.
    pub(crate) const SAW_CANCEL: u16 = 128;
    /// The task was spawned without borrowing anything: it can be given up without its parent.
    pub(crate) const OWNED: u16 = 1024;
    /// Of a doomed family: the cause was memory, and not the stack.
    pub(crate) const BY_MEMORY: u16 = 2048;
    /// The task's frames are abandoned; what runs now waits for its children.
    pub(crate) const BURIED: u16 = 4096;
    /// A call of the C adapter found too little stack for itself: the task fails with an overflow when it returns.
    pub(crate) const SHORT: u16 = 8192;
    /// The task has scopes that have to be searched (see `cancel.rs`).
    pub(crate) const SCOPED: u16 = 16384;
}

/// In [`Task::name`]: the name is in a slot, whose address follows.
const BUILT: u64 = 1 << 63;
/// In [`Task::name`]: the bits of the address.
const ADDRESS: u64 = (1 << 48) - 1;

/// A name for a task that is being spawned.
#[derive(Clone, Copy)]
pub(crate) enum Naming {
    Static(&'static str),
    Built(NonNull<Slot>),
}

/// A task's nursery. Only the task uses it, except for the watchdog, which reads the pointer of a task that may end
/// meanwhile, and does not dereference it.
#[derive(Debug, Default)]
pub(crate) struct Link(AtomicPtr<Nursery>);

impl Link {
    #[inline]
    pub(crate) fn get(&self) -> *const Nursery {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, nursery: *const Nursery) {
        self.0.store(nursery.cast_mut(), Ordering::Relaxed);
    }
}

/// See the module.
#[repr(C, align(64))]
pub(crate) struct Task {
    pub(crate) context: UnsafeCell<Context>,
    pub(crate) word: Word,
    pub(crate) flags: AtomicU16,
    /// The task ran over its stack; set by the signal handler.
    pub(crate) overflowed: AtomicBool,
    /// The nesting depth of sections whose allocations are not charged.
    pub(crate) quiet: Cell<u8>,
    // The second cache line: what running and switching touch.
    pub(crate) fuel: Cell<i64>,
    pub(crate) worker: Cell<*const Worker>,
    /// A check with the stack pointer below this has too little stack left.
    pub(crate) floor: Cell<usize>,
    pub(crate) next: Cell<Option<TaskRef>>,
    pub(crate) stack: UnsafeCell<Option<Stack>>,
    pub(crate) id: AtomicU64,
    pub(crate) nursery: Link,
    pub(crate) vtable: Cell<Option<&'static Vtable>>,
    // The third: the budget.
    pub(crate) join: Join,
    pub(crate) ops: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) spawns: AtomicU64,
    pub(crate) channel: AtomicU64,
    pub(crate) syscalls: AtomicU64,
    pub(crate) channel_fuel: Cell<u16>,
    pub(crate) home: Cell<u16>,
    pub(crate) waits_for: AtomicU8,
    pub(crate) class: Cell<StackClass>,
    pub(crate) priority: AtomicU8,
    /// The component that ran out last (low half), and the task's `OnExhausted` rule (high half).
    exhaustion: AtomicU8,
    pub(crate) outcome: UnsafeCell<Outcome>,
    // The fourth: what a dump shows, and the links of the list of siblings.
    pub(crate) spawned_at: AtomicPtr<Location<'static>>,
    pub(crate) waits_at: AtomicPtr<Location<'static>>,
    /// A `&'static str`: its length in the upper 16 bits, its address below; or, with `BUILT`, the address of a slot.
    name: AtomicU64,
    pub(crate) siblings: Cell<(Option<TaskRef>, Option<TaskRef>)>,
    /// The runtime that the task belongs to, from the making of its slab to the end.
    pub(crate) shared: *const Shared,
    /// The innermost nursery that the task has open; it links to the outer ones.
    pub(crate) open: Cell<*const Nursery>,
    /// The account that is credited when its memory blocks are freed; made at the first block.
    pub(crate) account: AtomicPtr<Account>,
    pub(crate) payload: UnsafeCell<MaybeUninit<[u64; INLINE / 8]>>,
}

const _: () = assert!(size_of::<Task>() <= 320);

/// A task that exists, or existed (invariant 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaskRef(NonNull<Task>);

// SAFETY: invariants 1 and 2.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl std::ops::Deref for TaskRef {
    type Target = Task;

    fn deref(&self) -> &Task {
        // SAFETY: invariant 1.
        unsafe { self.0.as_ref() }
    }
}

impl TaskRef {
    pub(crate) fn as_ptr(self) -> NonNull<Task> {
        self.0
    }

    /// # Safety
    /// The pointer came from [`TaskRef::as_ptr`] and the runtime is still there.
    pub(crate) unsafe fn from_ptr(pointer: NonNull<Task>) -> TaskRef {
        TaskRef(pointer)
    }
}

impl Task {
    fn new(shared: *const Shared) -> Task {
        Task {
            context: UnsafeCell::new(Context::default()),
            word: Word::new(),
            flags: AtomicU16::new(0),
            overflowed: AtomicBool::new(false),
            quiet: Cell::new(0),
            fuel: Cell::new(0),
            worker: Cell::new(ptr::null()),
            floor: Cell::new(0),
            next: Cell::new(None),
            stack: UnsafeCell::new(None),
            id: AtomicU64::new(0),
            nursery: Link::default(),
            vtable: Cell::new(None),
            join: Join::new(),
            ops: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            spawns: AtomicU64::new(0),
            channel: AtomicU64::new(0),
            syscalls: AtomicU64::new(0),
            channel_fuel: Cell::new(0),
            waits_for: AtomicU8::new(0),
            home: Cell::new(u16::MAX),
            class: Cell::new(StackClass::Lean),
            priority: AtomicU8::new(1),
            exhaustion: AtomicU8::new(0),
            outcome: UnsafeCell::new(Outcome::Pending),
            spawned_at: AtomicPtr::new(ptr::null_mut()),
            waits_at: AtomicPtr::new(ptr::null_mut()),
            name: AtomicU64::new(0),
            siblings: Cell::new((None, None)),
            shared,
            open: Cell::new(ptr::null()),
            account: AtomicPtr::new(ptr::null_mut()),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The innermost deadline or shield that the task has open. Valid only while the task's closure runs, and only for
    /// the task itself: then nothing else is in the payload (invariant 3).
    #[inline]
    pub(crate) fn scopes(&self) -> &Cell<*const Node> {
        const { assert!(size_of::<*const Node>() <= INLINE && align_of::<*const Node>() <= 8) };
        // SAFETY: the payload has room for it, and the code that runs the closure wrote it first; only the task itself
        // looks.
        unsafe { &*self.payload.get().cast::<Cell<*const Node>>() }
    }

    /// Whether the task has a stack, that is, whether it ran before.
    #[inline]
    pub(crate) fn started(&self) -> bool {
        // SAFETY: the caller owns the task (invariant 2) or it is suspended.
        unsafe { (*self.stack.get()).is_some() }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub(crate) fn set(&self, flag: u16) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    /// The counter of one component.
    pub(crate) fn meter(&self, resource: Resource) -> &AtomicU64 {
        match resource {
            Resource::Ops => &self.ops,
            Resource::Memory => &self.memory,
            Resource::Spawn => &self.spawns,
            Resource::Channel => &self.channel,
            Resource::Syscalls => &self.syscalls,
        }
    }

    /// Sets the whole budget of a new task.
    #[inline]
    pub(crate) fn set_budget(&self, budget: &Budget) {
        for resource in Resource::ALL {
            self.meter(resource).store(budget.get(resource), Ordering::Relaxed);
        }
        self.fuel.set(UNFUELLED);
        self.channel_fuel.set(0);
    }

    /// Takes up to `most` of a component, and returns how much.
    #[inline]
    pub(crate) fn draw(&self, resource: Resource, most: u64) -> u64 {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            if here == UNLIMITED {
                return most;
            }
            let amount = here.min(most);
            match meter.compare_exchange_weak(here, here - amount, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return amount,
                Err(found) => here = found,
            }
        }
    }

    /// Takes `amount` of a component, or nothing.
    #[inline]
    pub(crate) fn draw_all(&self, resource: Resource, amount: u64) -> Drawn {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            match here {
                UNLIMITED => return Drawn::Infinite,
                here if here < amount => return Drawn::Short(here),
                _ => {}
            }
            match meter.compare_exchange_weak(here, here - amount, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Drawn::All,
                Err(found) => here = found,
            }
        }
    }

    /// Adds `amount` to a component: what comes back, or a recharge.
    pub(crate) fn fill(&self, resource: Resource, amount: u64) {
        let meter = self.meter(resource);
        let mut here = meter.load(Ordering::Acquire);
        loop {
            let next = put(here, amount);
            match meter.compare_exchange_weak(here, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) => here = found,
            }
        }
    }

    /// What is left; exact only if the task itself asks.
    pub(crate) fn budget(&self) -> Budget {
        let mut left = Budget::ZERO;
        for resource in Resource::ALL {
            *left.get_mut(resource) = self.meter(resource).load(Ordering::Acquire);
        }
        left
    }

    /// What the task has drawn and not spent, in addition to [`Task::budget`].
    pub(crate) fn in_hand(&self) -> Budget {
        Budget {
            ops: self.fuel.get().max(0) as u64,
            channel_ops: u64::from(self.channel_fuel.get()),
            ..Budget::ZERO
        }
    }

    /// Sets what happens to the task when its budget is spent. Called before the task is queued.
    #[inline]
    pub(crate) fn set_rule(&self, rule: OnExhausted) {
        self.exhaustion.store((rule as u8) << 4, Ordering::Relaxed);
    }

    pub(crate) fn rule(&self) -> OnExhausted {
        match self.exhaustion.load(Ordering::Relaxed) >> 4 {
            1 => OnExhausted::Wait,
            2 => OnExhausted::End,
            _ => OnExhausted::EndIfStuck,
        }
    }

    /// Notes that this component ran out. Called only by the task itself.
    pub(crate) fn note_spent(&self, resource: Resource) {
        let rule = self.exhaustion.load(Ordering::Relaxed) & 0xF0;
        self.exhaustion.store(rule | resource as u8, Ordering::Relaxed);
    }

    /// The part of its budget because of which the task is told to end, if it is.
    pub(crate) fn ended_by(&self) -> Option<Resource> {
        match self.flags.load(Ordering::Acquire) {
            flags if flags & flag::OVERDRAWN != 0 => Some(Resource::Memory),
            flags if flags & flag::SPENT != 0 => {
                Some(Resource::ALL[usize::from(self.exhaustion.load(Ordering::Relaxed) & 0xF)])
            }
            _ => None,
        }
    }

    /// Sets the name. A name that is longer than 32 KiB, or whose address has more than 48 bits, is ignored. A name
    /// that was built for the last task in this memory is given back.
    #[inline]
    pub(crate) fn set_name(&self, name: Option<Naming>) {
        if self.name.load(Ordering::Relaxed) & BUILT != 0 {
            self.give_name_back();
        }
        let pack = |name: Naming| match name {
            Naming::Static(name) => {
                let address = name.as_ptr().expose_provenance() as u64;
                (name.len() < 1 << 15 && address < 1 << 48).then_some((name.len() as u64) << 48 | address)
            }
            Naming::Built(slot) => {
                let address = slot.as_ptr().expose_provenance() as u64;
                (address < 1 << 48).then_some(BUILT | address)
            }
        };
        self.name.store(name.and_then(pack).unwrap_or(0), Ordering::Relaxed);
    }

    #[cold]
    fn give_name_back(&self) {
        let address = self.name.load(Ordering::Relaxed) & ADDRESS;
        let slot = ptr::with_exposed_provenance_mut::<Slot>(address as usize);
        if let Some(slot) = NonNull::new(slot) {
            // SAFETY: the runtime outlives its tasks.
            unsafe { &*self.shared }.names.give(slot);
        }
    }

    /// The name, if the task is the one with this id.
    pub(crate) fn name(&self, id: u64) -> Option<Name> {
        let packed = self.name.load(Ordering::Acquire);
        if packed == 0 {
            return None;
        }
        let address = (packed & ADDRESS) as usize;
        let name = if packed & BUILT != 0 {
            // SAFETY: slots stay as long as the runtime, and are read atomically, word by word.
            unsafe { &*ptr::with_exposed_provenance::<Slot>(address) }.read()
        } else {
            let bytes = ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: only `&'static str`s are stored, address and length in one word.
            Name::fixed(unsafe {
                std::str::from_utf8_unchecked(std::slice::from_raw_parts(bytes, (packed >> 48) as usize))
            })
        };
        // The name was read before this: if the task is still the one with this id, the name was its name.
        (self.id.load(Ordering::Acquire) == id).then_some(name)
    }

    pub(crate) fn location(pointer: &AtomicPtr<Location<'static>>) -> Option<&'static Location<'static>> {
        // SAFETY: only `&'static Location`s are stored.
        unsafe { pointer.load(Ordering::Acquire).as_ref() }
    }
}

/// How many tasks a slab holds.
const SLAB: usize = 256;
/// How many tasks move between a worker and the common pool at a time.
const BATCH: usize = 64;
const _: () = assert!(SLAB.is_multiple_of(BATCH), "a slab is whole batches");

/// A list of tasks through `next`, first in first out. It owns them.
#[derive(Default)]
pub(crate) struct TaskList {
    head: Option<TaskRef>,
    tail: Option<TaskRef>,
    count: usize,
}

impl TaskList {
    pub(crate) const fn new() -> TaskList {
        TaskList { head: None, tail: None, count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn push_back(&mut self, task: TaskRef) {
        task.next.set(None);
        match self.tail {
            Some(tail) => tail.next.set(Some(task)),
            None => self.head = Some(task),
        }
        self.tail = Some(task);
        self.count += 1;
    }

    pub(crate) fn push_front(&mut self, task: TaskRef) {
        task.next.set(self.head);
        self.head = Some(task);
        if self.tail.is_none() {
            self.tail = Some(task);
        }
        self.count += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<TaskRef> {
        let task = self.head?;
        self.head = task.next.get();
        if self.head.is_none() {
            self.tail = None;
        }
        self.count -= 1;
        Some(task)
    }
}

/// Where tasks come from: slabs that live as long as the runtime, common batches of free tasks, and two batches per
/// worker.
///
/// Batches change hands as a whole, so that it costs the same however many tasks are in one, and a CPU does not touch a
/// task that another CPU has in its cache before it uses that task.
pub(crate) struct TaskPool {
    common: Mutex<Common>,
    made: AtomicUsize,
}

struct Common {
    shared: *const Shared,
    /// Batches of `BATCH` tasks each; `grow` reserves room for all that there can be.
    batches: Vec<TaskList>,
    /// At most `BATCH` tasks, for threads that have no cache of their own.
    singles: TaskList,
    slabs: Vec<NonNull<Task>>,
}

// SAFETY: the pointers are to tasks (invariant 1), under the lock.
unsafe impl Send for Common {}

/// A worker's own free tasks: the batch in use, and perhaps a full one, so that a worker that takes and gives by turns
/// at the edge of a batch does not go to the pool each time.
pub(crate) struct TaskCache {
    current: TaskList,
    full: TaskList,
}

impl TaskCache {
    pub(crate) const fn new() -> TaskCache {
        TaskCache { current: TaskList::new(), full: TaskList::new() }
    }

    #[inline]
    pub(crate) fn take(&mut self, pool: &TaskPool) -> TaskRef {
        match self.current.pop_front() {
            Some(task) => task,
            None => self.take_from_next(pool),
        }
    }

    #[cold]
    fn take_from_next(&mut self, pool: &TaskPool) -> TaskRef {
        self.current = std::mem::take(&mut self.full);
        if self.current.len() == 0 {
            self.current = pool.lock().batch(pool);
        }
        self.current.pop_front().expect("a batch is not empty")
    }

    #[inline]
    pub(crate) fn give(&mut self, task: TaskRef, pool: &TaskPool) {
        if self.current.len() == BATCH {
            self.put_aside(pool);
        }
        // The task that was freed last is used next: it is still in the CPU's cache.
        self.current.push_front(task);
    }

    #[cold]
    fn put_aside(&mut self, pool: &TaskPool) {
        let before = std::mem::replace(&mut self.full, std::mem::take(&mut self.current));
        if before.len() > 0 {
            pool.lock().keep(before);
        }
    }
}

impl Common {
    fn keep(&mut self, batch: TaskList) {
        debug_assert!(batch.len() == BATCH && self.batches.len() < self.batches.capacity());
        self.batches.push(batch);
    }

    /// A batch of free tasks, new ones if there are none.
    fn batch(&mut self, pool: &TaskPool) -> TaskList {
        if self.batches.is_empty() && self.singles.len() == 0 {
            pool.grow(self);
        }
        self.batches.pop().unwrap_or_else(|| std::mem::take(&mut self.singles))
    }
}

impl TaskPool {
    pub(crate) fn new() -> TaskPool {
        let common =
            Common { shared: ptr::null(), batches: Vec::new(), singles: TaskList::new(), slabs: Vec::new() };
        TaskPool { common: Mutex::new(common), made: AtomicUsize::new(0) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Common> {
        // Nothing that could panic runs under this lock.
        self.common.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells the pool which runtime owns it, before the first task is made.
    pub(crate) fn belongs_to(&self, shared: *const Shared) {
        self.lock().shared = shared;
    }

    /// The number of tasks for which memory was allocated.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Takes a free task, for threads that have no cache.
    pub(crate) fn take(&self) -> TaskRef {
        let mut common = self.lock();
        if common.singles.len() == 0 {
            common.singles = common.batch(self);
        }
        common.singles.pop_front().expect("a batch is not empty")
    }

    /// Gives a task back, for threads that have no cache.
    pub(crate) fn give(&self, task: TaskRef) {
        let mut common = self.lock();
        if common.singles.len() == BATCH {
            let full = std::mem::take(&mut common.singles);
            common.keep(full);
        }
        common.singles.push_front(task);
    }

    fn layout() -> Layout {
        Layout::array::<Task>(SLAB).expect("a slab is small")
    }

    fn grow(&self, common: &mut Common) {
        let _quiet = Quiet::new();
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(Self::layout()) };
        let Some(slab) = NonNull::new(memory.cast::<Task>()) else { handle_alloc_error(Self::layout()) };
        common.slabs.push(slab);
        let batches = common.slabs.len() * (SLAB / BATCH);
        common.batches.reserve_exact(batches.next_power_of_two() - common.batches.len());
        for first in (0..SLAB).step_by(BATCH) {
            let mut batch = TaskList::new();
            for index in first..first + BATCH {
                // SAFETY: inside the slab, and written before it is read.
                let task = unsafe {
                    let task = slab.add(index);
                    task.write(Task::new(common.shared));
                    TaskRef(task)
                };
                batch.push_back(task);
            }
            common.keep(batch);
        }
        self.made.fetch_add(SLAB, Ordering::Relaxed);
    }

    /// Calls `look` for every task for which memory was ever allocated, in use or free.
    pub(crate) fn for_each(&self, mut look: impl FnMut(TaskRef)) {
        let slabs = {
            let _quiet = Quiet::new();
            self.lock().slabs.clone()
        };
        for slab in slabs {
            for index in 0..SLAB {
                // SAFETY: inside the slab.
                look(TaskRef(unsafe { slab.add(index) }));
            }
        }
    }
}

impl Drop for TaskPool {
    fn drop(&mut self) {
        let common = self.common.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for slab in common.slabs.drain(..) {
            // SAFETY: the runtime is gone, and with it every task; a task needs no drop when it is free.
            unsafe { dealloc(slab.as_ptr().cast(), Self::layout()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Tasks that one worker takes and another gives back circulate: no two owners have the same task, none is lost,
    /// and a thread without a cache takes part.
    #[test]
    fn free_tasks_go_round_and_none_is_lost() {
        let pool = TaskPool::new();
        let (mut taker, mut giver) = (TaskCache::new(), TaskCache::new());
        for round in 0..50 {
            let mut taken: Vec<TaskRef> = (0..3 * BATCH + 7).map(|_| taker.take(&pool)).collect();
            taken.extend((0..BATCH + 5).map(|_| pool.take()));
            let distinct: HashSet<_> = taken.iter().map(|task| task.as_ptr()).collect();
            assert_eq!(distinct.len(), taken.len(), "round {round}: a task is one taker's alone");
            // Free tasks are held by two workers, two batches each, and by the pool.
            assert!(pool.made() <= taken.len() + 4 * BATCH + SLAB, "round {round}: {} made", pool.made());
            for (index, task) in taken.into_iter().enumerate() {
                if index % 3 == 0 { pool.give(task) } else { giver.give(task, &pool) }
            }
            assert!(giver.current.len() <= BATCH && giver.full.len() <= BATCH);
        }
        let common = pool.lock();
        let lists = [&taker.current, &taker.full, &giver.current, &giver.full, &common.singles];
        let free = lists.iter().map(|list| list.len()).sum::<usize>();
        assert_eq!(free + common.batches.len() * BATCH, pool.made(), "all are free again");
    }

    /// A worker that takes one task and gives one back, at the edge of a batch, does not go to the pool each time.
    #[test]
    fn the_edge_of_a_batch_is_not_a_way_to_the_pool() {
        let pool = TaskPool::new();
        let mut cache = TaskCache::new();
        let held: Vec<TaskRef> = (0..3 * BATCH).map(|_| cache.take(&pool)).collect();
        let (one, others) = held.split_last().expect("there are some");
        for task in &others[..BATCH] {
            cache.give(*task, &pool);
        }
        let before = pool.lock().batches.len();
        for _ in 0..3 {
            cache.give(*one, &pool);
            assert_eq!(pool.lock().batches.len(), before, "a full batch stays at hand");
            assert_eq!(cache.take(&pool).as_ptr(), one.as_ptr(), "the last freed is the next used");
            let next = cache.take(&pool);
            assert_eq!(pool.lock().batches.len(), before);
            cache.give(next, &pool);
        }
    }
}
